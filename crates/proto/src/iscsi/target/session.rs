//! What belongs to a session, not to one of its connections.

use std::collections::BTreeSet;

/// Where a command's CmdSN stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The next one.
    Next,
    /// Within the window but ahead: one before it is missing.
    Gap,
    /// The same, and the one that is missing was rejected.
    BehindRejected,
    /// Outside the window, or received before: silently ignored.
    Outside,
}

/// Command numbering of a session (section 4.2.2.1). The window is what was last told to the initiator: it opens by
/// free slots only when a PDU says so.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The next command expected.
    pub exp_cmd_sn: u32,
    /// The highest CmdSN that the initiator was told it may use.
    pub max_cmd_sn: u32,
    /// Commands that hold a slot of the window.
    in_flight: u32,
    depth: u32,
    /// Requests of the window that were rejected: they count as not received (section 7.3), and so the gaps that they
    /// leave are our doing.
    rejected: BTreeSet<u32>,
    /// Commands of the window, ahead of the next one, that an abort has taken the place of (section 7.11).
    plugged: BTreeSet<u32>,
}

impl Session {
    /// Numbering from the CmdSN of the first login request.
    pub(crate) fn new(cmd_sn: u32, depth: u32) -> Session {
        let mut session = Session {
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn.wrapping_sub(1),
            in_flight: 0,
            depth,
            rejected: BTreeSet::new(),
            plugged: BTreeSet::new(),
        };
        session.advertise();
        session
    }

    /// Where a non-immediate command with this CmdSN stands.
    pub(crate) fn order(&self, cmd_sn: u32) -> Order {
        match cmd_sn.wrapping_sub(self.exp_cmd_sn) {
            ahead if ahead >= self.window() => Order::Outside,
            0 => Order::Next,
            _ if self.plugged.contains(&cmd_sn) => Order::Outside,
            _ if self.rejected.contains(&self.exp_cmd_sn) => Order::BehindRejected,
            _ => Order::Gap,
        }
    }

    /// How many commands the initiator may send from now on.
    pub(crate) fn window(&self) -> u32 {
        self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1)
    }

    /// The next command was received; `holds`: until [`Session::release`] it takes a slot of the window.
    pub(crate) fn receive(&mut self, holds: bool) {
        self.rejected.remove(&self.exp_cmd_sn);
        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        while self.plugged.remove(&self.exp_cmd_sn) {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        }
        if holds {
            self.in_flight = self.in_flight.saturating_add(1);
        }
    }

    /// The command with this number, which lies in the window, counts as received: it was aborted before it came.
    pub(crate) fn plug(&mut self, cmd_sn: u32) {
        if cmd_sn == self.exp_cmd_sn {
            self.receive(false);
        } else {
            self.rejected.remove(&cmd_sn);
            self.plugged.insert(cmd_sn);
        }
    }

    /// The numbered request with this CmdSN was rejected.
    pub(crate) fn reject(&mut self, cmd_sn: u32) {
        if self.order(cmd_sn) != Order::Outside {
            self.rejected.insert(cmd_sn);
        }
    }

    /// Whether there is a free slot that the initiator may not use yet, and none that it may.
    pub(crate) fn is_closed_for_nothing(&self) -> bool {
        self.window() == 0 && self.in_flight < self.depth
    }

    /// So many commands may be in flight from now on. When these are fewer, the initiator was not told of more.
    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// A slot is free again.
    pub(crate) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// MaxCmdSN as the next PDU tells it. It never goes back: each command received moves ExpCmdSN up by one and
    /// takes at most one slot.
    pub(crate) fn advertise(&mut self) -> u32 {
        let free = self.depth.saturating_sub(self.in_flight);
        self.max_cmd_sn = self.exp_cmd_sn.wrapping_add(free).wrapping_sub(1);
        self.max_cmd_sn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_the_free_slots_and_wraps() {
        let mut session = Session::new(u32::MAX, 4);
        assert_eq!(session.max_cmd_sn, 2);
        assert_eq!(session.order(u32::MAX), Order::Next);
        assert_eq!(session.order(0), Order::Gap);
        assert_eq!(session.order(3), Order::Outside);
        assert_eq!(session.order(u32::MAX - 1), Order::Outside);
        for _ in 0..4 {
            session.receive(true);
        }
        assert_eq!(session.window(), 0);
        assert_eq!(session.order(session.exp_cmd_sn), Order::Outside);
        session.release();
        assert_eq!(session.window(), 0, "not told yet");
        session.advertise();
        assert_eq!((session.window(), session.max_cmd_sn), (1, 3));
    }
}
