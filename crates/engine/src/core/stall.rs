//! Peers that stall. While the data of a command moves, others may wait for its buffer, and at its unit's gate for its end.
//! So its initiator has a bounded time in all to send that data, or to take it: `stall_timeout`, and as long as the data takes
//! at [`NANOS_PER_BYTE`]. The clock runs only while it is the initiator's turn.

use super::Core;
use super::session::DISCOVERY_WITHIN;
use super::task::Task;
use crate::slots::Key;
use crate::transport::Transport;
use proto::time::Time;
use reactor::io::Io;

/// A megabyte a second.
const NANOS_PER_BYTE: u64 = 1000;

/// What other commands of the connection move meanwhile counts as well, up to so many bytes.
const BESIDE_BYTES: u64 = 16 << 20;

/// The time in all, in nanoseconds, for so many bytes of a command, and those of others beside it.
fn patience(stall_nanos: u64, bytes: u64, beside_bytes: u64) -> u64 {
    stall_nanos + (bytes + beside_bytes.min(BESIDE_BYTES)) * NANOS_PER_BYTE
}

impl<I: Io> Core<I> {
    /// The time in all, in nanoseconds, that the initiator of this connection has for so many bytes of a new command.
    pub(super) fn patience(&self, connection: Key, bytes: u64) -> u64 {
        let beside = self.connections.get(connection).map_or(0, |conn| conn.share.bytes() + conn.lent_bytes);
        patience(self.stall_nanos, bytes, beside)
    }

    /// Ends discovery sessions that last too long, and sessions whose data moves too slowly: what the initiator announced and
    /// does not send, or asked for and does not take.
    pub(super) fn end_stalled(&mut self, now: Time) {
        for key in self.keys_where(|conn| conn.expires.is_some_and(|at| at <= now)) {
            self.gone(key, &format!("a discovery session lasts {} s", DISCOVERY_WITHIN.as_secs()));
        }
        let late = self.tasks.iter().filter(|(_, task)| task.is_late(now)).map(|(_, task)| task.origin);
        // Frames of AoE wait for room at the interface, and not for a peer.
        let waits = |key: &Key| {
            self.connections.get(*key).is_some_and(|conn| !matches!(conn.machine, Transport::Aoe(_)))
        };
        let mut stalled: Vec<Key> = late.filter(waits).collect();
        stalled.extend(self.keys_where(|conn| conn.is_lent_late(now)));
        if let Some(then) = now.0.checked_sub(self.stall_nanos).map(Time) {
            stalled.extend(self.keys_where(|conn| conn.kept.iter().any(|kept| kept.since <= then)));
            stalled.extend(self.keys_where(|conn| conn.sends_since().is_some_and(|since| since <= then)));
        }
        let limit = self.shared.config.stall_timeout.as_secs();
        for key in stalled {
            self.gone(key, &format!("its data moved too slowly (stall_timeout is {limit} s)"));
        }
    }
}

impl Task {
    /// The initiator has to move data from now on; until when it has time for it.
    pub(super) fn begin_moving(&self, now: Time) -> Time {
        Time(now.0.saturating_add(self.patience_nanos))
    }

    /// The data has moved.
    pub(super) fn end_moving(&mut self, until: Time, now: Time) {
        self.patience_nanos = until.0.saturating_sub(now.0);
    }
}

#[cfg(test)]
mod tests;
