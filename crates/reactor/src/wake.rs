//! Waking a core that sleeps in its ring.

use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Wakes one core, from any thread. Cheap while that core is awake: one atomic exchange.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU32,
    event: OwnedFd,
}

const AWAKE: u32 = 0;
/// Awake, or about to be, and not allowed to sleep before it has checked for work once more.
const CALLED: u32 = 1;
const ASLEEP: u32 = 2;

impl Waker {
    /// A waker for a core that has not started yet.
    pub fn new() -> io::Result<Waker> {
        // Not nonblocking: the ring would answer EAGAIN instead of waiting.
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Waker { shared: Arc::new(Shared { state: AtomicU32::new(AWAKE), event }) })
    }

    /// Whatever was made visible to the core before this call is seen after its current or next turn.
    pub fn wake(&self) {
        // The exchange (not a load) orders what the caller published before the core's next check.
        if self.shared.state.swap(CALLED, Ordering::AcqRel) == ASLEEP {
            // Fails only when the counter is full, and then the core wakes anyway.
            let _ = rustix::io::write(&self.shared.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether it was called since it got up.
    pub fn is_called(&self) -> bool {
        self.shared.state.load(Ordering::Acquire) == CALLED
    }

    /// The core wants to sleep. False: it was called meanwhile, and must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The core is up and will check for work now.
    pub fn get_up(&self) {
        if self.shared.state.load(Ordering::Relaxed) != AWAKE {
            self.shared.state.swap(AWAKE, Ordering::AcqRel);
        }
    }

    /// Readable when the sleeping core was called.
    pub(crate) fn event(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }
}
