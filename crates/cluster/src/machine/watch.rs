//! Whether a gateway shows that it is alive.

use std::time::Duration;

/// A gateway that does not show it for this many of its intervals is considered dead.
const BEATS_MISSED: u32 = 3;

/// What a gateway changes as long as it is alive, as last seen.
#[derive(Clone, Debug)]
pub(super) struct Watch<T> {
    sign: T,
    /// How many looks, an interval apart, found it unchanged, and when the last of them was.
    /// Time alone would count periods during which nobody could change or read it.
    quiet: u32,
    looked: Duration,
    /// It has changed.
    has_changed: bool,
}

impl<T: PartialEq> Watch<T> {
    pub(super) fn new(now: Duration, sign: T) -> Watch<T> {
        Watch { sign, quiet: 0, looked: now, has_changed: false }
    }

    /// It is this now.
    pub(super) fn look(&mut self, now: Duration, sign: T, interval: Duration) {
        if self.sign != sign {
            *self = Watch { has_changed: true, ..Watch::new(now, sign) };
        } else if now.saturating_sub(self.looked) >= interval {
            (self.quiet, self.looked) = (self.quiet.saturating_add(1), now);
        }
    }

    /// It gets the time of one more look.
    pub(super) fn look_again(&mut self, now: Duration) {
        (self.quiet, self.looked) = (BEATS_MISSED - 1, now);
    }

    /// What was seen last.
    pub(super) fn sign(&self) -> &T {
        &self.sign
    }

    /// It is late, but not so late that it is considered dead.
    pub(super) fn is_late(&self) -> bool {
        self.quiet > 0 && !self.has_lapsed()
    }

    /// When it was last looked at, apart from looks in between.
    pub(super) fn looked(&self) -> Duration {
        self.looked
    }

    /// It may be considered dead.
    pub(super) fn has_lapsed(&self) -> bool {
        self.quiet >= BEATS_MISSED
    }

    /// It was alive since this began.
    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// It was certainly alive a moment ago.
    pub(super) fn is_lively(&self) -> bool {
        self.quiet <= 1
    }
}
