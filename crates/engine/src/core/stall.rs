//! Peers that stall. While the data of a command moves, others may wait for its buffer, and at its unit's
//! gate for its end. So its initiator has a limited time in total to send or receive that data:
//! `stall_timeout`, plus the time that what was actually requested or sent takes at [`NANOS_PER_BYTE`]. What
//! the initiator merely announces buys no time. The clock runs only while the target waits for the initiator.
//!
//! A command's data may have to wait for that of others on the connection, so its clock stops while the
//! connection moves data at that rate, but for no longer than the data takes that was in transit when it
//! began. A send may carry the data of many commands, and shows no progress before all of it has been sent:
//! it has `stall_timeout` plus the time that its bytes take, and while it is in flight a command has that
//! much more.

mod enforce;

use proto::time::Time;
use reactor::stream::InFlight;

/// A megabyte a second.
const NANOS_PER_BYTE: u64 = 1000;

/// How much data of a connection's commands is in transit, and how fast it moves.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// What is in transit.
    moving_bytes: u64,
    /// What has moved since the last measurement.
    moved_bytes: u64,
    /// When that was.
    measured_at: Option<Time>,
    /// For how long after the last measurement what has moved counts as keeping pace.
    ahead_nanos: u64,
    /// The total time for which it has kept pace with the rate.
    on_pace_nanos: u64,
}

/// Data of one command in transit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moving {
    bytes: u32,
    /// The deadline by a clock that stops while the connection keeps pace with the rate.
    until: Time,
    /// The deadline by the real clock.
    latest: Time,
}

impl Moving {
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }
}

impl Pace {
    /// This many bytes begin to move.
    pub(super) fn begin(&mut self, now: Time, patience_nanos: u64, bytes: u32) -> Moving {
        let time = patience_nanos + u64::from(bytes) * NANOS_PER_BYTE;
        let until = Time(self.clock(now).0 + time);
        let latest = Time(now.0 + time + self.moving_bytes * NANOS_PER_BYTE);
        self.moving_bytes += u64::from(bytes);
        Moving { bytes, until, latest }
    }

    /// This many more are sent with these, and have as long.
    pub(super) fn join(&mut self, moving: &mut Moving, bytes: u32) {
        moving.bytes += bytes;
        self.moving_bytes += u64::from(bytes);
    }

    /// They have moved.
    pub(super) fn end(&mut self, moving: Moving) {
        self.stop(moving);
        self.moved_bytes += u64::from(moving.bytes);
    }

    /// They will not move.
    fn stop(&mut self, moving: Moving) {
        self.moving_bytes -= u64::from(moving.bytes);
    }

    /// The patience that is left if this ends now.
    fn left(&self, moving: Moving, now: Time) -> u64 {
        let by_clock = moving.until.0.saturating_sub(self.clock(now).0);
        by_clock.min(moving.latest.0.saturating_sub(now.0))
    }

    /// Whether its time is up. How much of a send in flight the peer has received is not known before all of
    /// it has been sent.
    pub(super) fn is_late(&self, mut moving: Moving, send: Option<InFlight>, now: Time) -> bool {
        let unknown_nanos = send.map_or(0, |send| send.bytes * NANOS_PER_BYTE);
        moving.until.0 += unknown_nanos;
        moving.latest.0 += unknown_nanos;
        self.left(moving, now) == 0
    }

    fn clock(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.on_pace_nanos))
    }

    /// Measures how much has moved. Data faster than the rate makes up for a pause of `stall_nanos` at most.
    fn measure(&mut self, now: Time, stall_nanos: u64) {
        let moved = std::mem::take(&mut self.moved_bytes) * NANOS_PER_BYTE;
        let Some(then) = self.measured_at.replace(now) else { return };
        let ahead = self.ahead_nanos + moved;
        let counted = ahead.min(now.0.saturating_sub(then.0));
        self.on_pace_nanos += counted;
        self.ahead_nanos = (ahead - counted).min(stall_nanos);
    }
}

/// Whether the peer takes too long to receive one send.
fn is_send_late(send: InFlight, now: Time, stall_nanos: u64) -> bool {
    send.since.0 + stall_nanos + send.bytes * NANOS_PER_BYTE <= now.0
}

#[cfg(test)]
mod tests;
