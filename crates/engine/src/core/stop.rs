//! The stop of a core, in two steps: it serves its homes until no core has a connection or task left, since
//! others may need them and write to the stores; only then does it flush its stores.

mod steps;

use proto::time::Time;

/// How far a core is with stopping.
#[derive(Debug, Default)]
pub(super) struct Stop {
    /// The stop has begun: initiators may log out until then.
    deadline: Option<Time>,
    /// How many cores have nothing left to do before the stores are flushed.
    drained: usize,
    /// This core is one of them.
    is_drained: bool,
}

impl Stop {
    /// Whether it has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether the time to log out has passed.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether this core has reported that it has nothing left.
    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// A core has nothing left.
    pub(super) fn core_drained(&mut self) {
        self.drained += 1;
    }
}
