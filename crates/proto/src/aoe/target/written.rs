//! Recently answered writes; flushes; SET FEATURES, and orders that change something.
//!
//! A request that arrives late is a duplicate, made by the network or by an initiator that lost patience;
//! after the first one was answered, newer data may have been written to the same place. So it is answered
//! again, and not executed again. Initiators that reuse a tag for another request do not retransmit the
//! earlier one: only the last request of a tag is remembered. A flush is executed again unless it failed
//! ([`Kind::stays`]).

use super::task::{Answer, Kind};
use crate::time::Time;
use std::time::Duration;

/// Writes remembered: in sets, found by their tags.
const SETS: usize = 128;
/// Writes of one set.
const WAYS: usize = 8;
const _: () = assert!(SETS * WAYS == 1024);
/// How long a duplicate may be in transit: an answered write is remembered this long, if it is among the last
/// 1024 writes of its session.
pub const COPIES_WITHIN: Duration = Duration::from_secs(5);

/// What identifies a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Write {
    pub tag: u32,
    pub kind: Kind,
    /// CRC32C of the data.
    pub sum: u32,
}

/// The last writes of a session: memory is allocated with the first of them.
#[derive(Debug, Default)]
pub struct Written {
    sets: Vec<Set>,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    writes: [Option<Remembered>; WAYS],
    /// The oldest entry.
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Remembered {
    write: Write,
    answer: Answer,
    at: Time,
}

impl Written {
    /// The answer to this write, if it was answered.
    pub(super) fn find(&mut self, now: Time, write: &Write) -> Option<Answer> {
        let remembered = self.of_tag(write.tag)?.as_ref()?;
        let is_it = remembered.write == *write && now.since(remembered.at) <= COPIES_WITHIN;
        is_it.then_some(remembered.answer)
    }

    /// The tag is now used by another request.
    pub(super) fn forget(&mut self, tag: u32) {
        if let Some(place) = self.of_tag(tag) {
            *place = None;
        }
    }

    /// A write was answered.
    pub(super) fn remember(&mut self, now: Time, write: Write, answer: Answer) {
        self.forget(write.tag);
        if self.sets.is_empty() {
            self.sets = vec![Set { writes: [None; WAYS], next: 0 }; SETS];
        }
        let Some(set) = self.set(write.tag) else { return };
        if let Some(place) = set.writes.get_mut(set.next) {
            *place = Some(Remembered { write, answer, at: now });
        }
        set.next = set.next.wrapping_add(1).checked_rem(WAYS).unwrap_or(0);
    }

    fn of_tag(&mut self, tag: u32) -> Option<&mut Option<Remembered>> {
        let is_it = |place: &&mut Option<Remembered>| place.as_ref().is_some_and(|one| one.write.tag == tag);
        self.set(tag)?.writes.iter_mut().find(is_it)
    }

    /// Tags count up in some of their bits: multiplied, neighbours are in different sets.
    fn set(&mut self, tag: u32) -> Option<&mut Set> {
        let mixed = tag.wrapping_mul(0x9e37_79b1) >> 25;
        self.sets.get_mut(usize::try_from(mixed).ok()?)
    }
}

const _: () = assert!(SETS == 1 << (32 - 25));

#[cfg(test)]
mod tests {
    use super::*;
    use wire::aoe::ErrorCode;
    use wire::ata::{Registers, Section};

    fn write(tag: u32, lba: u8, sum: u32) -> Write {
        let registers = Registers::new(wire::ata::Command::WriteSectorsExt, u64::from(lba), 1);
        Write { tag, kind: Kind::Ata(Section::request(&registers, true)), sum }
    }

    fn answer(byte: u8) -> Answer {
        Answer { error: ErrorCode::NONE, argument: [byte; 12], has_data: false }
    }

    #[test]
    fn a_write_is_known_by_all_that_makes_it_one() {
        let mut written = Written::default();
        let one = write(1, 2, 3);
        assert_eq!(written.find(Time(0), &one), None);
        written.remember(Time(0), one, answer(9));
        assert_eq!(written.find(Time(0), &one), Some(answer(9)));
        for other in [write(2, 2, 3), write(1, 1, 3), write(1, 2, 4)] {
            assert_eq!(written.find(Time(0), &other), None);
        }
        assert_eq!(written.find(Time(0).after(COPIES_WITHIN), &one), Some(answer(9)));
        assert_eq!(written.find(Time(1).after(COPIES_WITHIN), &one), None);
    }

    #[test]
    fn only_the_last_request_of_a_tag_is_remembered() {
        let mut written = Written::default();
        written.remember(Time(0), write(1, 2, 3), answer(1));
        written.remember(Time(0), write(1, 2, 4), answer(2));
        assert_eq!(written.find(Time(0), &write(1, 2, 3)), None);
        assert_eq!(written.find(Time(0), &write(1, 2, 4)), Some(answer(2)));
        written.forget(1);
        assert_eq!(written.find(Time(0), &write(1, 2, 4)), None);
    }

    #[test]
    fn memory_is_bounded_and_holds_the_newest() {
        let mut written = Written::default();
        for tags in [|n: u32| n, |n: u32| n << 16, |n: u32| n.swap_bytes()] {
            for n in 0..100_000 {
                written.remember(Time(0), write(tags(n), 2, n), answer(0));
            }
            assert_eq!((written.sets.len(), written.sets.capacity()), (SETS, SETS));
            let known =
                (99_000..100_000).filter(|n| written.find(Time(0), &write(tags(*n), 2, *n)).is_some());
            assert!(known.count() > 500, "tags that count up are spread");
            assert!((99_900..100_000).all(|n| written.find(Time(0), &write(tags(n), 2, n)).is_some()));
        }
    }
}
