//! Exports whose server may still carry out what it was sent on a connection that is no longer used. They are
//! not reopened until it has answered, or has ended that connection, since that could overwrite newer data.
//! Where the connection has failed, neither is ever known, and the export stays closed for as long as this
//! process runs.

use super::connection::Connection;
use crate::error::OpenError;
use config::NbdUrl;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The pause between two checks of such a connection.
const PAUSE: Duration = Duration::from_millis(100);

static LINGERING: Mutex<Vec<Lingering>> = Mutex::new(Vec::new());

/// An export that is not reopened.
struct Lingering {
    url: NbdUrl,
    /// It is not waited for any more.
    is_permanent: bool,
}

/// Keeps a connection whose store is closed for as long as it may do harm.
pub(super) fn keep(connection: &Arc<Connection>) {
    if !connection.may_change() {
        return;
    }
    let is_permanent = connection.is_unsettled();
    lingering().push(Lingering { url: connection.url().clone(), is_permanent });
    if is_permanent {
        return;
    }
    let lingering_connection = connection.clone();
    let thread = thread::Builder::new().name("nbd-linger".into()).spawn(move || {
        while lingering_connection.may_change() && !lingering_connection.is_unsettled() {
            thread::sleep(PAUSE);
            lingering_connection.pump();
        }
        ended(lingering_connection.url(), lingering_connection.is_unsettled());
    });
    if let Err(error) = thread {
        ended(connection.url(), true);
        tracing::error!(
            store = %connection.url(),
            %error,
            "cannot start a thread to wait for the NBD server: its export is not reopened until this daemon is restarted"
        );
    }
}

/// A connection is not waited for any more; its export may be reopened, or never.
fn ended(url: &NbdUrl, is_permanent: bool) {
    let mut lingering = lingering();
    let Some(at) = lingering.iter().position(|one| !one.is_permanent && one.url == *url) else { return };
    if is_permanent {
        lingering[at].is_permanent = true;
    } else {
        lingering.swap_remove(at);
    }
}

/// # Errors
/// When an export may not be opened for writing.
pub(super) fn check(url: &NbdUrl) -> Result<(), OpenError> {
    let lingering = lingering();
    let is_it = |one: &&Lingering| (&one.url.server, &one.url.export) == (&url.server, &url.export);
    let Some(one) = lingering.iter().filter(is_it).max_by_key(|one| one.is_permanent) else { return Ok(()) };
    let (problem, remedy) = if one.is_permanent {
        (
            "the server may still carry out writes of an earlier use of this export, whose connection failed before \
             they were answered: they could overwrite newer ones",
            "restart this daemon once the server has closed that connection or was restarted",
        )
    } else {
        (
            "the server has not answered writes of an earlier use of this export, which could overwrite newer ones",
            "wait until it does, or restart the server",
        )
    };
    Err(OpenError::new(url, problem, remedy))
}

fn lingering() -> MutexGuard<'static, Vec<Lingering>> {
    LINGERING.lock().unwrap_or_else(PoisonError::into_inner)
}
