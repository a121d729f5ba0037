//! Unanswered requests, each a frame.

use super::abandoned::Abandoned;
use crate::services::TaskId;
use crate::time::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// The most unanswered commands, however many the target can queue.
pub const PIECES_MAX: u16 = 254;
/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Config query: whether the target exists, and its limits.
    Query,
    /// IDENTIFY DEVICE, for a task or, without one, for the login.
    Identify(Option<TaskId>),
    /// Sectors `at ..` of a task's transfer.
    Move { task: TaskId, at: u32, sectors: u8 },
    /// FLUSH CACHE for a task.
    Flush(TaskId),
    /// Ranges `at ..` of a task's TRIM.
    Trim { task: TaskId, at: u32, ranges: u16 },
    /// The ATA command of a task.
    Ata(TaskId),
    /// The AoE command of a task; a test may get no answer.
    Order { task: TaskId, is_test: bool },
}

impl Kind {
    /// The task that it belongs to; the machine's own requests have none.
    fn task(self) -> Option<TaskId> {
        match self {
            Kind::Query => None,
            Kind::Identify(task) => task,
            Kind::Move { task, .. }
            | Kind::Flush(task)
            | Kind::Trim { task, .. }
            | Kind::Ata(task)
            | Kind::Order { task, .. } => Some(task),
        }
    }

    /// Whether the time to its answer depends on the network alone: the device has little to do.
    pub(super) fn is_prompt(self) -> bool {
        match self {
            Kind::Query | Kind::Identify(_) | Kind::Move { .. } => true,
            Kind::Flush(_) | Kind::Trim { .. } | Kind::Ata(_) | Kind::Order { .. } => false,
        }
    }
}

/// A request that was sent and is unanswered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub kind: Kind,
    /// When it was sent first, and last.
    pub first_at: Time,
    pub sent_at: Time,
    /// The timeout of its answer, since it was sent last.
    pub timeout: Duration,
    /// How often it was retransmitted.
    pub retries: u8,
    /// Its answer is still awaited; otherwise it is to be retransmitted.
    pub is_in_flight: bool,
}

impl Piece {
    /// It was sent more than once.
    pub(super) fn is_copied(&self) -> bool {
        self.retries > 0
    }

    /// When it is to be retransmitted, if nothing is heard before.
    pub(super) fn deadline(&self) -> Time {
        self.sent_at.after(self.timeout)
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u16,
    piece: Option<Piece>,
}

/// All requests. A tag is, from its highest byte: the lane, the slot's generation in two bytes, the slot.
/// Slots are used in turn, so that it takes long until a tag is reused.
#[derive(Debug)]
pub(super) struct Pieces {
    lane: u8,
    slots: Vec<Slot>,
    free: VecDeque<u8>,
    /// Tags of requests to be retransmitted, in the order in which they timed out; some may have been
    /// answered since.
    retransmissions: VecDeque<u32>,
    in_flight: u16,
}

impl Pieces {
    pub(super) fn new(lane: u8, first_generation: u16) -> Pieces {
        // One more for the machine's own requests.
        let count = u8::try_from(PIECES_MAX.saturating_add(1)).unwrap_or(u8::MAX);
        Pieces {
            lane,
            slots: vec![Slot { generation: first_generation, piece: None }; usize::from(count)],
            free: (0..count).collect(),
            retransmissions: VecDeque::with_capacity(usize::from(count)),
            in_flight: 0,
        }
    }

    /// Unanswered requests.
    pub(super) fn unanswered(&self) -> u16 {
        u16::try_from(self.slots.len().saturating_sub(self.free.len())).unwrap_or(u16::MAX)
    }

    /// Those of them whose answer is still awaited.
    pub(super) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// A request that is sent now, with a tag that no abandoned write has; `None`: there are too many.
    pub(super) fn take(
        &mut self,
        kind: Kind,
        now: Time,
        timeout: Duration,
        abandoned: &Abandoned,
    ) -> Option<u32> {
        let number = self.free.pop_front()?;
        let slot = self.slots.get_mut(usize::from(number))?;
        let piece = Piece { kind, first_at: now, sent_at: now, timeout, retries: 0, is_in_flight: true };
        slot.piece = Some(piece);
        self.in_flight = self.in_flight.saturating_add(1);
        loop {
            slot.generation = slot.generation.wrapping_add(1);
            let [high, low] = slot.generation.to_be_bytes();
            let tag = u32::from_be_bytes([self.lane, high, low, number]);
            if !abandoned.has(tag) {
                return Some(tag);
            }
        }
    }

    /// All unanswered requests, with their tags.
    pub(super) fn all(&self) -> Vec<(u32, Piece)> {
        let of_slot = |(number, slot): (u8, &Slot)| {
            let [high, low] = slot.generation.to_be_bytes();
            slot.piece.map(|piece| (u32::from_be_bytes([self.lane, high, low, number]), piece))
        };
        (0..=u8::MAX).zip(&self.slots).filter_map(of_slot).collect()
    }

    /// Forgets the requests of a task. Returns them, with their tags.
    pub(super) fn drop_task(&mut self, task: TaskId) -> Vec<(u32, Piece)> {
        let mut dropped = self.all();
        dropped.retain(|(_, piece)| piece.kind.task() == Some(task));
        for (tag, _) in &dropped {
            self.release(*tag);
        }
        dropped
    }

    /// No answers are awaited any more. Tags continue from where they were.
    pub(super) fn forget(&mut self) {
        self.retransmissions.clear();
        self.in_flight = 0;
        for (number, slot) in (0..=u8::MAX).zip(&mut self.slots) {
            if slot.piece.take().is_some() {
                self.free.push_back(number);
            }
        }
    }

    /// The request with this tag.
    pub(super) fn find(&self, tag: u32) -> Option<&Piece> {
        let [lane, high, low, number] = tag.to_be_bytes();
        let slot = self.slots.get(usize::from(number))?;
        let is_it = lane == self.lane && slot.generation == u16::from_be_bytes([high, low]);
        slot.piece.as_ref().filter(|_| is_it)
    }

    fn find_mut(&mut self, tag: u32) -> Option<&mut Piece> {
        self.find(tag)?;
        let [_, _, _, number] = tag.to_be_bytes();
        self.slots.get_mut(usize::from(number))?.piece.as_mut()
    }

    /// The request was answered.
    pub(super) fn release(&mut self, tag: u32) -> Option<Piece> {
        let piece = *self.find(tag)?;
        let [_, _, _, number] = tag.to_be_bytes();
        self.slots.get_mut(usize::from(number))?.piece = None;
        self.free.push_back(number);
        if piece.is_in_flight {
            self.in_flight = self.in_flight.saturating_sub(1);
        } else {
            self.retransmissions.retain(|other| *other != tag);
        }
        Some(piece)
    }

    /// Whether anything is to be retransmitted.
    pub(super) fn has_retransmission(&self) -> bool {
        !self.retransmissions.is_empty()
    }

    /// The next request to retransmit, which counts as sent now, with this timeout.
    pub(super) fn take_retransmission(
        &mut self,
        now: Time,
        timeout: impl Fn(&Piece) -> Duration,
    ) -> Option<(u32, Piece)> {
        let tag = self.retransmissions.pop_front()?;
        let piece = self.find_mut(tag)?;
        piece.retries = piece.retries.saturating_add(1);
        (piece.sent_at, piece.timeout, piece.is_in_flight) = (now, timeout(piece), true);
        let piece = *piece;
        self.in_flight = self.in_flight.saturating_add(1);
        Some((tag, piece))
    }

    /// Times out the answers that are overdue according to `deadline`, and passes their kinds to `expired`,
    /// which decides whether the request is retransmitted or forgotten. Returns when the next one is due.
    pub(super) fn expire(
        &mut self,
        now: Time,
        deadline: impl Fn(&Piece) -> Time,
        mut expired: impl FnMut(&Piece) -> bool,
    ) -> Option<Time> {
        let mut next: Option<Time> = None;
        for (number, slot) in (0..=u8::MAX).zip(&mut self.slots) {
            let Some(piece) = slot.piece.as_mut().filter(|piece| piece.is_in_flight) else { continue };
            let deadline = deadline(piece);
            if deadline > now {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
                continue;
            }
            piece.is_in_flight = false;
            self.in_flight = self.in_flight.saturating_sub(1);
            if expired(piece) {
                let [high, low] = slot.generation.to_be_bytes();
                self.retransmissions.push_back(u32::from_be_bytes([self.lane, high, low, number]));
            } else {
                slot.piece = None;
                self.free.push_back(number);
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = TaskId { slot: 3, generation: 9 };
    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_tag_finds_its_request_until_it_is_answered() {
        let mut pieces = Pieces::new(7, 0xffff);
        let tag = pieces.take(Kind::Flush(TASK), Time(0), MS, &Abandoned::default()).unwrap();
        assert_eq!(tag.to_be_bytes()[0], 7);
        assert!(pieces.find(tag ^ 0x0100_0000).is_none(), "of another lane");
        assert!(pieces.find(tag ^ 0x0000_0100).is_none(), "of another time");
        assert_eq!(pieces.release(tag).unwrap().kind, Kind::Flush(TASK));
        assert!(pieces.release(tag).is_none());
        assert_eq!((pieces.unanswered(), pieces.in_flight()), (0, 0));
    }

    #[test]
    fn pieces_are_limited_and_tags_are_not_reused_soon() {
        let mut pieces = Pieces::new(0, 0);
        let mut tags = std::collections::BTreeSet::new();
        while let Some(tag) = pieces.take(Kind::Query, Time(0), MS, &Abandoned::default()) {
            assert!(tags.insert(tag));
        }
        assert_eq!(pieces.unanswered(), PIECES_MAX + 1);
        tags.iter().for_each(|tag| assert!(pieces.release(*tag).is_some()));
        for _ in 0..10_000 {
            let tag = pieces.take(Kind::Query, Time(0), MS, &Abandoned::default()).unwrap();
            assert!(tags.insert(tag));
            pieces.release(tag);
        }
    }

    #[test]
    fn the_tag_of_an_abandoned_write_is_no_other_request_s() {
        let mut abandoned = Abandoned::default();
        let mut pieces = Pieces::new(0, 0);
        let tag = pieces.take(Kind::Flush(TASK), Time(0), MS, &abandoned).unwrap();
        let way = (wire::aoe::Mac::BROADCAST, wire::aoe::Mac::BROADCAST);
        abandoned.add(tag, way, false, wire::ata::Section::default(), Vec::new(), 0..1);
        assert!(matches!(pieces.all()[..], [(other, Piece { kind: Kind::Flush(TASK), .. })] if other == tag));
        pieces.forget();
        assert_eq!((pieces.unanswered(), pieces.in_flight(), pieces.find(tag).is_some()), (0, 0, false));
        let mut pieces = Pieces::new(0, 0);
        assert_ne!(pieces.take(Kind::Query, Time(0), MS, &abandoned), Some(tag));
    }

    #[test]
    fn requests_that_time_out_are_retransmitted_with_their_tag() {
        let mut pieces = Pieces::new(0, 0);
        let first = pieces.take(Kind::Query, Time(0), MS, &Abandoned::default()).unwrap();
        let second = pieces.take(Kind::Query, Time(0), 3 * MS, &Abandoned::default()).unwrap();
        let mut expired = 0;
        let at = Time(0).after(MS);
        let mut count = |_: &Piece| {
            expired += 1;
            true
        };
        assert_eq!(pieces.expire(at, Piece::deadline, &mut count), Some(Time(0).after(3 * MS)));
        assert_eq!((expired, pieces.in_flight(), pieces.unanswered()), (1, 1, 2));
        let (tag, piece) = pieces.take_retransmission(at, |piece| MS * u32::from(piece.retries)).unwrap();
        assert_eq!((tag, piece.retries, piece.timeout), (first, 1, MS));
        assert!(pieces.take_retransmission(at, |_| MS).is_none());
        pieces.expire(Time(0).after(9 * MS), Piece::deadline, |_| true);
        pieces.release(first);
        assert_eq!(pieces.take_retransmission(at, |_| MS).unwrap().0, second);
        pieces.expire(Time(0).after(99 * MS), Piece::deadline, |_| false);
        assert!(pieces.find(second).is_none() && !pieces.has_retransmission());
        assert_eq!((pieces.unanswered(), pieces.in_flight()), (0, 0));
    }
}
