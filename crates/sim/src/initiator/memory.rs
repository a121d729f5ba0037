//! Where a command's data is: in the initiator's buffers or, if it is longer than any, in memory of its own.

use super::{Initiator, Kind};
use crate::register::{self, BLOCK_BYTES, Range};
use proto::services::Attribute;
use proto::time::Time;
use reactor::io::Io;
use reactor::memory::{Arena, LARGE_BYTES, Region};
use std::borrow::Cow;
use wire::{Places, Span};

/// The most data that buffers hold.
pub(super) const BUFFERS_BYTES: u32 = LARGE_BYTES * Places::MAX as u32;
/// Longer commands of one connection: each keeps its memory until the connection ends.
const LONGER_MAX: usize = 32;

impl Initiator {
    pub(super) fn take(&mut self, bytes: u32) -> Option<Places> {
        match bytes {
            0 => Some(Places::EMPTY),
            1..=BUFFERS_BYTES => self.kernel.arena().take(bytes),
            _ => {
                let longer = &mut self.link.as_mut()?.longer;
                if longer.len() == LONGER_MAX {
                    return None;
                }
                let region = Region::map(bytes.into()).expect("memory");
                let span = region.span(0, bytes)?;
                longer.push(region);
                Some(Places::one(span))
            }
        }
    }

    /// Memory longer than buffers is kept with its connection, which may still send from there.
    pub(super) fn give(&mut self, places: &Places) {
        let arena = self.kernel.arena();
        if places.iter().all(|span| span.buffer == arena.id()) {
            arena.give(places);
        }
    }

    /// Puts the data of a write in its place.
    pub(super) fn fill(
        &mut self,
        now: Time,
        range: Range,
        (is_durable, attribute): (bool, Attribute),
        place: &Places,
    ) -> Kind {
        let id = self.registers.borrow_mut().begin_placed(now, self.index, range, attribute);
        let arena = self.kernel.arena();
        for (part, span) in parts(range, place) {
            if span.buffer == arena.id() {
                register::fill(id, part, arena.bytes_mut(span));
            } else {
                let mut bytes = vec![0; span.len as usize];
                register::fill(id, part, &mut bytes);
                arena.copy_in(&bytes, &Places::one(span));
            }
        }
        if is_durable { Kind::Durable(range, id) } else { Kind::Write(range, id) }
    }

    pub(super) fn fill_place(&mut self, bytes: &[u8], place: &Places) {
        self.kernel.arena().copy_in(bytes, place);
    }
}

/// The bytes in such a place.
pub(super) fn bytes(arena: &Arena, span: Span) -> Cow<'_, [u8]> {
    if span.buffer == arena.id() { arena.bytes(span).into() } else { arena.to_vec(&Places::one(span)).into() }
}

/// The blocks of a range in each of its places.
pub(super) fn parts(range: Range, places: &Places) -> impl Iterator<Item = (Range, Span)> {
    let mut first = range.first;
    places.iter().map(move |span| {
        let part = Range { first, blocks: span.len / BLOCK_BYTES, ..range };
        first += part.blocks;
        (part, span)
    })
}
