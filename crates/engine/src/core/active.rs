//! Which connections a tick checks: those with something under way, and those whose deadline has passed. Ten
//! thousand idle ones are not visited several times a second.

use super::connection::Connection;
use crate::slots::{Key, Slots};
use proto::time::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The connections that the next tick may have to check.
#[derive(Debug)]
pub(super) struct ActiveConnections {
    /// Those that have had a turn, until nothing of them is under way.
    busy: Vec<Key>,
    /// When the deadlines of the others pass; these may have changed since, but only to a later time.
    timers: BinaryHeap<Reverse<(Time, Key)>>,
    /// Scratch list of those that a tick checks.
    keys: Vec<Key>,
}

/// Connections that memory is reserved for at start.
const AT_START: usize = 64;

impl ActiveConnections {
    pub(super) fn new() -> ActiveConnections {
        let keys = || Vec::with_capacity(AT_START);
        ActiveConnections { busy: keys(), timers: BinaryHeap::with_capacity(AT_START), keys: keys() }
    }

    /// A connection has a turn, after which it may wait for something else.
    pub(super) fn note(&mut self, key: Key, conn: &mut Connection) {
        if !std::mem::replace(&mut conn.activity.is_busy, true) {
            self.busy.push(key);
        }
    }

    /// Visits all that have something under way, or have had since the last tick.
    pub(super) fn each_busy(
        &self,
        connections: &mut Slots<Connection>,
        mut act: impl FnMut(&mut Connection),
    ) {
        for key in &self.busy {
            if let Some(conn) = connections.get_mut(*key) {
                act(conn);
            }
        }
    }

    /// Those that the tick at this time checks. The caller hands the list back to [`ActiveConnections::restore`].
    pub(super) fn take_due(&mut self, now: Time, connections: &mut Slots<Connection>) -> Vec<Key> {
        let timers = &mut self.timers;
        self.busy.retain(|key| {
            let Some(conn) = connections.get_mut(*key) else { return false };
            conn.activity.is_busy = !conn.can_only_time_out();
            if !conn.activity.is_busy
                && let Some(deadline) = conn.deadline()
                && conn.activity.timer.is_none_or(|timer| deadline < timer)
            {
                conn.activity.timer = Some(deadline);
                timers.push(Reverse((deadline, *key)));
            }
            conn.activity.is_busy
        });
        while let Some(Reverse((time, key))) = timers.peek().copied()
            && time <= now
        {
            timers.pop();
            if let Some(conn) = connections.get_mut(key)
                && conn.activity.timer.take_if(|timer| *timer == time).is_some()
                && !std::mem::replace(&mut conn.activity.is_busy, true)
            {
                self.busy.push(key);
            }
        }
        let mut keys = std::mem::take(&mut self.keys);
        keys.clone_from(&self.busy);
        keys
    }

    /// Takes the list back, for the next tick.
    pub(super) fn restore(&mut self, keys: Vec<Key>) {
        self.keys = keys;
    }
}
