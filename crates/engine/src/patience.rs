//! How long changes of what is served wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long a change waits for what it ends, and for a store that it needs.
const LIMIT: Duration = Duration::from_secs(30);

/// How often it is checked whether the daemon is ending.
pub(crate) const SLICE: Duration = Duration::from_millis(20);

/// How long changes wait for what hangs.
#[derive(Clone, Debug)]
pub struct Patience {
    pub(crate) limit: Duration,
    has_ended: Arc<AtomicBool>,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { limit: LIMIT, has_ended: Arc::default() }
    }
}

impl Patience {
    /// No change waits any more: the daemon is ending.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// Whether the daemon is ending.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// The deadline of a wait that begins now.
    pub(crate) fn begin(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Whether a wait with this deadline has to end.
    pub(crate) fn is_over(&self, until: Instant) -> bool {
        self.has_ended() || Instant::now() >= until
    }

    /// Waits for an answer, until patience runs out.
    ///
    /// # Errors
    /// When patience has run out, or the sender is gone.
    pub fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, RecvTimeoutError> {
        let until = self.begin();
        loop {
            match answer.recv_timeout(SLICE) {
                Err(RecvTimeoutError::Timeout) if !self.is_over(until) => {}
                heard => return heard,
            }
        }
    }
}
