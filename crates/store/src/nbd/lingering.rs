//! Connections that nobody uses any more, while their server may still carry out what it was sent: until it has answered, or has ended
//! them, the export is not opened again, since that could land over what is newer.

use super::connection::Connection;
use config::NbdUrl;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The pause between two looks at such a connection.
const PAUSE: Duration = Duration::from_millis(100);

static LINGERING: Mutex<Vec<NbdUrl>> = Mutex::new(Vec::new());

/// Keeps a connection whose store is closed for as long as it may do harm.
pub(super) fn keep(connection: &Arc<Connection>) {
    if !connection.may_change() {
        return;
    }
    lingering().push(connection.url().clone());
    let connection = connection.clone();
    let thread = thread::Builder::new().name("nbd-linger".into()).spawn(move || {
        while connection.may_change() {
            thread::sleep(PAUSE);
            connection.pump();
        }
        let mut lingering = lingering();
        if let Some(at) = lingering.iter().position(|url| url == connection.url()) {
            lingering.swap_remove(at);
        }
    });
    if let Err(error) = thread {
        tracing::error!(
            "there is no thread to wait for an NBD server: {error}; its export opens when this daemon is restarted"
        );
    }
}

/// Whether there is such a connection to an export.
pub(super) fn has(url: &NbdUrl) -> bool {
    lingering().iter().any(|other| (&other.server, &other.export) == (&url.server, &url.export))
}

fn lingering() -> MutexGuard<'static, Vec<NbdUrl>> {
    LINGERING.lock().unwrap_or_else(PoisonError::into_inner)
}
