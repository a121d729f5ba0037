//! Unanswered writes whose command has ended, or whose session was lost. No login ends them: the target may
//! execute one at any time, and only an answer proves that it has.
//!
//! - While its command waits, a write is retransmitted until it is answered, with its tag, by which a target
//!   recognises a duplicate.
//! - **Once its command has ended, a write is abandoned, and never retransmitted**: its initiator may have
//!   written newer data on another path since. An answer may still arrive. Where the target orders NOP behind
//!   earlier requests ([`IdentifyData::proves_by_nop`](wire::ata::IdentifyData::proves_by_nop)), the answer
//!   to a NOP proves as much, if it was sent between the same two interfaces when no copy of the write could
//!   still be in transit.

use super::pace::{LONG_TIMEOUT, TIMEOUT_MAX};
use crate::aoe::target::COPIES_WITHIN;
use crate::time::Time;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;
use wire::aoe::Mac;
use wire::ata::{Registers, Section};

/// No new writes are sent beyond this many.
const ABANDONED_MAX: usize = 1024;
/// NOPs in flight.
const NOPS_MAX: usize = 4;
/// The last byte of a NOP's tag, which no command's request has ([`super::piece::Pieces`]).
const NOP_SLOT: u8 = 0xff;

/// All of them. Those that are retransmitted count as requests in flight towards
/// [`super::piece::PIECES_MAX`].
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    requests: Vec<Request>,
    /// How many are retransmitted. There may be many abandoned ones for long: if there are no others, they
    /// are not checked for each frame.
    repeated: u16,
    /// Their tags, and those of the NOPs sent.
    tags: BTreeSet<u32>,
    /// The highest byte of all tags.
    lane: u8,
    /// NOPs sent so far.
    nops: u16,
    /// One was proven to have ended since the last query.
    has_ended: bool,
}

#[derive(Debug)]
struct Request {
    tag: u32,
    /// The sectors that it changes.
    sectors: Range<u64>,
    /// Our interface and the target's, if all copies went between the same two.
    way: Option<(Mac, Mac)>,
    kind: Kind,
    /// It was sent more than once.
    is_copied: bool,
    /// It, or its NOP, was sent, and may be answered until the deadline.
    is_in_flight: bool,
    /// When to send it or its NOP next; `None`: now.
    deadline: Option<Time>,
    timeout: Duration,
}

#[derive(Debug)]
enum Kind {
    /// It is retransmitted: all parts of its frame except addresses.
    Repeated { section: Section, data: Vec<u8> },
    /// Its end is queried by a NOP, with this tag once it was sent.
    GivenUp { nop: Option<u32> },
}

/// A frame without its addresses.
pub(super) struct Next<'a> {
    pub tag: u32,
    pub section: Section,
    pub data: &'a [u8],
}

/// What may be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    /// Our interface and the target's.
    pub way: (Mac, Mac),
    /// Bytes of data in a frame.
    pub room: usize,
    /// The most requests in flight, and those of commands.
    pub window: u16,
    pub in_flight: u16,
    /// NOP proves something.
    pub has_nop: bool,
}

impl Abandoned {
    /// None yet; `first_nop` is random.
    pub(super) fn new(lane: u8, first_nop: u16) -> Abandoned {
        Abandoned { lane, nops: first_nop, ..Abandoned::default() }
    }

    pub(super) fn add(
        &mut self,
        tag: u32,
        way: (Mac, Mac),
        is_copied: bool,
        section: Section,
        data: Vec<u8>,
        sectors: Range<u64>,
    ) {
        self.tags.insert(tag);
        self.requests.push(Request {
            tag,
            sectors,
            way: Some(way),
            kind: Kind::Repeated { section, data },
            is_copied,
            is_in_flight: false,
            deadline: None,
            timeout: LONG_TIMEOUT,
        });
        self.repeated = self.repeated.saturating_add(1);
    }

    /// Adds a write that is not retransmitted from now on.
    pub(super) fn add_abandoned(
        &mut self,
        now: Time,
        tag: u32,
        way: (Mac, Mac),
        is_copied: bool,
        sectors: Range<u64>,
    ) {
        self.add(tag, way, is_copied, Section::default(), Vec::new(), sectors);
        self.requests.last_mut().into_iter().for_each(|request| request.abandon(now));
        self.repeated = self.repeated.saturating_sub(1);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Whether there are so many that no new write may be sent.
    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= ABANDONED_MAX
    }

    /// How many are retransmitted.
    pub(super) fn repeated(&self) -> u16 {
        self.repeated
    }

    /// Whether one of them, or its NOP, has this tag.
    pub(super) fn has(&self, tag: u32) -> bool {
        self.tags.contains(&tag)
    }

    /// Whether the write with this tag was sent more than once.
    pub(super) fn is_copied(&self, tag: u32) -> bool {
        self.requests.iter().any(|request| request.tag == tag && request.is_copied)
    }

    /// How many of those that are retransmitted may still be answered.
    pub(super) fn in_flight(&self) -> u16 {
        if self.repeated == 0 {
            return 0;
        }
        u16::try_from(self.in_flight_of(false)).unwrap_or(u16::MAX)
    }

    fn in_flight_of(&self, is_abandoned: bool) -> usize {
        let is_one = |one: &&Request| one.is_in_flight && one.is_abandoned() == is_abandoned;
        self.requests.iter().filter(is_one).count()
    }

    /// Whether the end of all abandoned ones that change one of these sectors can be queried between these
    /// interfaces; whether they have ended may be unknown.
    pub(super) fn can_be_asked(&self, sectors: &Range<u64>, (ours, theirs): (Mac, Option<Mac>)) -> bool {
        let is_on_way = |way: (Mac, Mac)| way.0 == ours && theirs.is_none_or(|theirs| way.1 == theirs);
        let mut abandoned =
            self.requests.iter().filter(|request| request.is_abandoned() && request.meets(sectors));
        abandoned.all(|request| request.way.is_some_and(is_on_way))
    }

    /// Whether any of them changes one of these sectors.
    pub(super) fn meets(&self, sectors: &Range<u64>) -> bool {
        self.requests.iter().any(|request| request.meets(sectors))
    }

    /// Whether a retransmitted one does.
    pub(super) fn repeats(&self, sectors: &Range<u64>) -> bool {
        self.repeated > 0
            && self.requests.iter().any(|request| !request.is_abandoned() && request.meets(sectors))
    }

    /// Stops retransmitting what changes these sectors.
    pub(super) fn abandon(&mut self, now: Time, sectors: &Range<u64>) {
        self.abandon_where(now, |request| request.meets(sectors));
    }

    /// Stops retransmitting what has more data than fits.
    pub(super) fn abandon_longer(&mut self, now: Time, room: usize) {
        self.abandon_where(now, |request| request.data().len() > room);
    }

    fn abandon_where(&mut self, now: Time, is_one: impl Fn(&Request) -> bool) {
        let repeated = self.requests.iter_mut().filter(|request| !request.is_abandoned());
        for request in repeated.filter(|request| is_one(request)) {
            request.abandon(now);
            self.repeated = self.repeated.saturating_sub(1);
        }
    }

    /// A tag that none of them has.
    fn nop_tag(&mut self) -> u32 {
        loop {
            self.nops = self.nops.wrapping_add(1);
            let [high, low] = self.nops.to_be_bytes();
            let tag = u32::from_be_bytes([self.lane, high, low, NOP_SLOT]);
            if self.tags.insert(tag) {
                return tag;
            }
        }
    }

    /// A new session begins: what was in transit is to be retransmitted.
    pub(super) fn begin(&mut self) {
        for request in &mut self.requests {
            if std::mem::take(&mut request.is_in_flight) {
                request.deadline = None;
            }
            request.timeout = LONG_TIMEOUT;
        }
    }

    /// The one to be sent next.
    fn due(&self, passage: &Passage) -> Option<usize> {
        if self.repeated == 0 && !passage.has_nop {
            return None;
        }
        let may_repeat = passage.in_flight.saturating_add(self.in_flight()) < passage.window;
        let may_ask = passage.has_nop && self.in_flight_of(true) < NOPS_MAX;
        self.requests.iter().position(|request| {
            request.deadline.is_none()
                && match &request.kind {
                    Kind::Repeated { data, .. } => may_repeat && data.len() <= passage.room,
                    Kind::GivenUp { .. } => may_ask && request.way == Some(passage.way),
                }
        })
    }

    /// Whether one has to be sent.
    pub(super) fn is_due(&self, passage: &Passage) -> bool {
        self.due(passage).is_some()
    }

    /// The next one to send, and when it is due again; it counts as sent now.
    pub(super) fn next(&mut self, now: Time, passage: &Passage) -> Option<(Next<'_>, Time)> {
        // They take turns: the one sent last goes to the end.
        let mut request = self.requests.remove(self.due(passage)?);
        let deadline = now.after(request.timeout);
        (request.deadline, request.is_in_flight) = (Some(deadline), true);
        request.timeout = request.timeout.saturating_mul(2).min(TIMEOUT_MAX);
        request.way = request.way.filter(|way| *way == passage.way);
        if let Kind::GivenUp { nop: nop @ None } = &mut request.kind {
            *nop = Some(self.nop_tag());
        } else {
            request.is_copied |= !request.is_abandoned();
        }
        self.requests.push(request);
        let request = self.requests.last()?;
        let (tag, section) = match &request.kind {
            Kind::Repeated { section, .. } => (request.tag, *section),
            Kind::GivenUp { nop } => ((*nop)?, Section::request(&Registers::nop(request.tag), false)),
        };
        Some((Next { tag, section, data: request.data() }, deadline))
    }

    /// Those that are overdue are to be sent. Returns when the next one is.
    pub(super) fn expire(&mut self, now: Time) -> Option<Time> {
        for request in &mut self.requests {
            request.deadline = request.deadline.filter(|deadline| *deadline > now);
            request.is_in_flight &= request.deadline.is_some();
        }
        self.requests.iter().filter_map(|request| request.deadline).min()
    }

    /// One of them, or its NOP, was answered: the target has finished with it.
    pub(super) fn answered(&mut self, tag: u32) {
        for request in self.requests.extract_if(.., |request| request.is_of(tag)) {
            self.tags.remove(&request.tag);
            self.repeated = self.repeated.saturating_sub(u16::from(!request.is_abandoned()));
            if let Kind::GivenUp { nop: Some(nop) } = request.kind {
                self.tags.remove(&nop);
            }
        }
        self.has_ended = true;
    }

    /// Whether any was proven to have ended since the last call.
    pub(super) fn take_ended(&mut self) -> bool {
        std::mem::take(&mut self.has_ended)
    }
}

impl Request {
    /// Stops retransmitting it; a NOP follows when no copy of it can be in transit any more.
    fn abandon(&mut self, now: Time) {
        self.kind = Kind::GivenUp { nop: None };
        (self.is_in_flight, self.timeout) = (false, LONG_TIMEOUT);
        self.deadline = Some(now.after(COPIES_WITHIN));
    }

    fn is_abandoned(&self) -> bool {
        matches!(self.kind, Kind::GivenUp { .. })
    }

    fn is_of(&self, tag: u32) -> bool {
        self.tag == tag || matches!(self.kind, Kind::GivenUp { nop: Some(nop) } if nop == tag)
    }

    fn meets(&self, sectors: &Range<u64>) -> bool {
        self.sectors.start < sectors.end && sectors.start < self.sectors.end
    }

    fn data(&self) -> &[u8] {
        match &self.kind {
            Kind::Repeated { data, .. } => data,
            Kind::GivenUp { .. } => &[],
        }
    }
}
