//! State of a session, rather than of one of its connections.

use std::collections::BTreeSet;

/// The position of a command's CmdSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CmdSnPosition {
    /// The next one.
    Next,
    /// Within the window but ahead: one before it is missing.
    Gap,
    /// The same, but the missing one was rejected.
    BehindRejected,
    /// Outside the window, or received before: silently ignored.
    Outside,
}

/// Command numbering of a session (section 4.2.2.1). The window is what was last announced to the initiator:
/// free slots open it, as far as there is room, only when a PDU announces that.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// The next command expected.
    pub exp_cmd_sn: u32,
    /// The highest CmdSN that was announced to the initiator.
    pub max_cmd_sn: u32,
    /// Commands that occupy a slot of the window.
    in_flight: u32,
    depth: u32,
    /// Commands that there is room for beside them.
    room: u32,
    /// A window was sent to the initiator.
    is_announced: bool,
    /// Requests of the window that were rejected: they count as not received (section 7.3), so the gaps that
    /// they leave are caused by us.
    rejected: BTreeSet<u32>,
    /// Commands of the window, ahead of the next one, that an abort has replaced (section 7.11).
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
            room: u32::MAX,
            is_announced: false,
            rejected: BTreeSet::new(),
            plugged: BTreeSet::new(),
        };
        session.max_cmd_sn = cmd_sn.wrapping_add(depth).wrapping_sub(1);
        session
    }

    /// The position of a non-immediate command with this CmdSN.
    pub(crate) fn position(&self, cmd_sn: u32) -> CmdSnPosition {
        match cmd_sn.wrapping_sub(self.exp_cmd_sn) {
            ahead if ahead >= self.window() => CmdSnPosition::Outside,
            0 => CmdSnPosition::Next,
            _ if self.plugged.contains(&cmd_sn) => CmdSnPosition::Outside,
            _ if self.rejected.contains(&self.exp_cmd_sn) => CmdSnPosition::BehindRejected,
            _ => CmdSnPosition::Gap,
        }
    }

    /// How many commands the initiator may send from now on.
    pub(crate) fn window(&self) -> u32 {
        self.max_cmd_sn.wrapping_sub(self.exp_cmd_sn).wrapping_add(1)
    }

    /// The next command was received; `holds`: it occupies a slot of the window until [`Session::release`].
    pub(crate) fn receive(&mut self, holds: bool) {
        if !self.rejected.is_empty() {
            self.rejected.remove(&self.exp_cmd_sn);
        }
        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        while !self.plugged.is_empty() && self.plugged.remove(&self.exp_cmd_sn) {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        }
        if holds {
            self.in_flight = self.in_flight.saturating_add(1);
        }
    }

    /// The command with this number, which is in the window, counts as received: it was aborted before it
    /// arrived.
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
        if self.position(cmd_sn) != CmdSnPosition::Outside {
            self.rejected.insert(cmd_sn);
        }
    }

    /// Whether there is a command that the initiator may not send yet though there is room for it, and none
    /// that it may.
    pub(crate) fn is_closed_for_nothing(&self) -> bool {
        self.window() == 0 && self.free() > 0
    }

    /// Whether the window is closed for lack of room alone.
    pub(crate) fn wants_room(&self) -> bool {
        self.window() == 0 && self.in_flight < self.depth && self.free() == 0
    }

    /// There is room for this many commands beside those in flight.
    pub(crate) fn limit(&mut self, room: u32) {
        self.room = room;
    }

    /// Commands that the window may be opened for. An initiator with none in flight may always send one: no
    /// answer would open its window.
    fn free(&self) -> u32 {
        let room = if self.in_flight == 0 { self.room.max(1) } else { self.room };
        self.depth.saturating_sub(self.in_flight).min(room)
    }

    /// Allows this many commands in flight from now on. If they are fewer, more have not been announced to
    /// the initiator.
    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// A slot is free again.
    pub(crate) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// MaxCmdSN of the next PDU. It never decreases, whatever happens to the room; and the window never
    /// exceeds the slots: each command received increments ExpCmdSN and occupies at most one of them.
    pub(crate) fn advertise(&mut self) -> u32 {
        let announced = if self.is_announced { self.window() } else { 0 };
        self.is_announced = true;
        let free = self.free().max(announced);
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
        assert_eq!(session.position(u32::MAX), CmdSnPosition::Next);
        assert_eq!(session.position(0), CmdSnPosition::Gap);
        assert_eq!(session.position(3), CmdSnPosition::Outside);
        assert_eq!(session.position(u32::MAX - 1), CmdSnPosition::Outside);
        for _ in 0..4 {
            session.receive(true);
        }
        assert_eq!(session.window(), 0);
        assert_eq!(session.position(session.exp_cmd_sn), CmdSnPosition::Outside);
        session.release();
        assert_eq!(session.window(), 0, "not advertised yet");
        session.advertise();
        assert_eq!((session.window(), session.max_cmd_sn), (1, 3));
    }

    #[test]
    fn the_window_follows_the_room_and_never_goes_back() {
        let mut session = Session::new(0, 8);
        session.limit(5);
        assert_eq!(session.advertise(), 4);
        session.limit(2);
        assert_eq!(session.advertise(), 4, "what was sent stands");
        for _ in 0..5 {
            session.receive(true);
        }
        session.limit(0);
        assert_eq!((session.advertise(), session.window(), session.wants_room()), (4, 0, true));
        session.limit(7);
        assert!(session.is_closed_for_nothing() && !session.wants_room());
        assert_eq!((session.advertise(), session.window()), (7, 3), "no more than the slots");
        session.limit(0);
        for _ in 0..3 {
            session.receive(true);
        }
        assert!(!session.wants_room(), "it wants slots");
        (0..8).for_each(|_| session.release());
        assert_eq!((session.advertise(), session.window()), (8, 1), "who has none in flight may send one");
    }
}
