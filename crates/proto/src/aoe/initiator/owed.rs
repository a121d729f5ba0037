//! Writes without an answer whose commands are over. No login ends them, and a target may execute them whenever it comes
//! to it: only its answer proves that it is done. So each is sent again, with its tag, by which a target knows a copy,
//! until it is answered.

use super::pace::TIMEOUT_MAX;
use super::send::LONG_TIMEOUT;
use crate::time::Time;
use std::ops::Range;
use std::time::Duration;
use wire::ata::Section;

/// Such writes; those in flight are counted with them to [`super::PIECES_MAX`].
#[derive(Debug, Default)]
pub(super) struct Owed {
    requests: Vec<Request>,
    /// One was answered since this was asked last.
    has_ended: bool,
}

/// One of them: all that makes its frame but addresses.
#[derive(Debug)]
pub(super) struct Request {
    pub tag: u32,
    pub section: Section,
    pub data: Vec<u8>,
    /// What it changes.
    pub sectors: Range<u64>,
    /// When it is to be sent again; `None`: now.
    deadline: Option<Time>,
    timeout: Duration,
}

impl Owed {
    pub(super) fn add(&mut self, tag: u32, section: Section, data: Vec<u8>, sectors: Range<u64>) {
        self.requests.push(Request { tag, section, data, sectors, deadline: None, timeout: LONG_TIMEOUT });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn len(&self) -> u16 {
        u16::try_from(self.requests.len()).unwrap_or(u16::MAX)
    }

    pub(super) fn has(&self, tag: u32) -> bool {
        self.requests.iter().any(|request| request.tag == tag)
    }

    /// Whether any of them changes one of these sectors.
    pub(super) fn meets(&self, sectors: &Range<u64>) -> bool {
        let meets = |one: &Range<u64>| one.start < sectors.end && sectors.start < one.end;
        self.requests.iter().any(|request| meets(&request.sectors))
    }

    /// Whether one has more data than that.
    pub(super) fn has_longer(&self, room: usize) -> bool {
        self.requests.iter().any(|request| request.data.len() > room)
    }

    /// A new session begins: all are to be sent.
    pub(super) fn begin(&mut self) {
        for request in &mut self.requests {
            (request.deadline, request.timeout) = (None, LONG_TIMEOUT);
        }
    }

    /// Whether one is to be sent, while so many may be in flight and a frame has room for so many bytes of data.
    pub(super) fn is_due(&self, window: u16, room: usize) -> bool {
        let flying = self.requests.iter().filter(|request| request.deadline.is_some()).count();
        flying < usize::from(window) && self.requests.iter().any(|request| request.is_due(room))
    }

    /// The next one to send, which happens now, and when it is due again.
    pub(super) fn next(&mut self, now: Time, room: usize) -> Option<(&Request, Time)> {
        let position = self.requests.iter().position(|request| request.is_due(room))?;
        // All have their turn: what was sent last goes to the end.
        let mut request = self.requests.remove(position);
        let deadline = now.after(request.timeout);
        request.deadline = Some(deadline);
        request.timeout = request.timeout.saturating_mul(2).min(TIMEOUT_MAX);
        self.requests.push(request);
        self.requests.last().map(|request| (request, deadline))
    }

    /// Those whose time has come are to be sent again. Returns when the next one's comes.
    pub(super) fn expire(&mut self, now: Time) -> Option<Time> {
        for request in &mut self.requests {
            request.deadline = request.deadline.filter(|deadline| *deadline > now);
        }
        self.requests.iter().filter_map(|request| request.deadline).min()
    }

    /// The target is done with it.
    pub(super) fn answered(&mut self, tag: u32) {
        self.requests.retain(|request| request.tag != tag);
        self.has_ended = true;
    }

    /// Whether any was answered since the last call.
    pub(super) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }
}

impl Request {
    fn is_due(&self, room: usize) -> bool {
        self.deadline.is_none() && self.data.len() <= room
    }
}
