//! Times data in transit, and ends peers that stall.

use super::{Moving, is_send_late};
use crate::core::Core;
use crate::core::connection::Connection;
use crate::core::session::DISCOVERY_WITHIN;
use crate::slots::Key;
use crate::transport::Transport;
use proto::time::Time;
use reactor::io::Io;
use reactor::stream::InFlight;

impl<I: Io> Core<I> {
    /// The initiator has to move this much data of a task from now on.
    pub(in crate::core) fn begin_moving(&mut self, key: Key, bytes: u32) -> Option<Moving> {
        let now = self.io.now();
        let task = self.tasks.get(key)?;
        let conn = self.connections.get_mut(task.origin)?;
        Some(conn.pace.begin(now, task.patience_nanos, bytes))
    }

    /// The data of a task that was in transit has moved.
    pub(in crate::core) fn has_moved(&mut self, key: Key) {
        let now = self.io.now();
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (Some(moving), Some(conn)) = (task.moving(), self.connections.get_mut(task.origin)) else {
            return;
        };
        // Time that was not needed does not accumulate, or it would all be available for the last byte.
        task.patience_nanos = conn.pace.left(moving, now).min(self.stall_nanos);
        conn.pace.end(moving);
    }

    /// A task has ended: none of its data is in transit any more.
    pub(in crate::core) fn stop_moving(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key) else { return };
        if let (Some(moving), Some(conn)) = (task.moving(), self.connections.get_mut(task.origin)) {
            conn.pace.stop(moving);
        }
    }

    /// Of these connections, ends discovery sessions that last too long, and sessions whose data moves too
    /// slowly: data that was requested and the initiator does not send, or that the initiator requested and
    /// does not receive.
    pub(in crate::core) fn end_stalled(&mut self, keys: &[Key], now: Time) {
        for key in self.those_of(keys, |conn| conn.login.expires.is_some_and(|at| at <= now)) {
            self.gone(key, &format!("a discovery session lasts {} s", DISCOVERY_WITHIN.as_secs()));
        }
        let stall_nanos = self.stall_nanos;
        for key in keys {
            if let Some(conn) = self.connections.get_mut(*key) {
                conn.pace.measure(now, stall_nanos);
            }
        }
        let connections = &self.connections;
        let is_late = |origin: &Key, moving: Moving| {
            connections.get(*origin).is_some_and(|conn| conn.pace.is_late(moving, conn.in_flight(), now))
        };
        let late = self
            .tasks
            .iter()
            .filter(|(_, task)| task.moving().is_some_and(|moving| is_late(&task.origin, moving)));
        let mut stalled: Vec<Key> = late.map(|(_, task)| task.origin).collect();
        stalled.extend(self.those_of(keys, |conn| conn.is_immediate_read_stalled(now)));
        // Frames of AoE wait for room at the interface, not for a peer.
        stalled.retain(|key| {
            self.connections.get(*key).is_some_and(|conn| !matches!(conn.machine, Transport::Aoe(_)))
        });
        if let Some(then) = now.0.checked_sub(self.stall_nanos).map(Time) {
            stalled.extend(self.those_of(keys, |conn| conn.quiescing.iter().any(|one| one.since <= then)));
        }
        let is_stuck = |send: InFlight| is_send_late(send, now, stall_nanos);
        stalled.extend(self.those_of(keys, |conn| conn.in_flight().is_some_and(is_stuck)));
        let limit = self.served.config.stall_timeout.as_secs();
        for key in stalled {
            self.gone(key, &format!("its data moved too slowly (stall_timeout is {limit} s)"));
        }
    }

    fn those_of(&self, keys: &[Key], which: impl Fn(&Connection) -> bool) -> Vec<Key> {
        let is_one = |key: &&Key| self.connections.get(**key).is_some_and(&which);
        keys.iter().filter(is_one).copied().collect()
    }
}
