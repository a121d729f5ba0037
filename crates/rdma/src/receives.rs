//! The receives of one connection: pieces of large buffers, allocated once and reused.

use proto::message::Receives;
use reactor::memory::{Arena, LARGE_BYTES, PAGE_BYTES};
use wire::{Places, Span};

/// Alignment of receives whose data need not be aligned.
const LINE_BYTES: u64 = 64;

/// All receives, whether posted or held by the machine.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    /// At least half of the arena is left to others.
    leaves_half_free: bool,
    blocks: Vec<Places>,
    /// The part of the last block that is not yet cut up.
    rest: Span,
    /// Bytes of each receive.
    bytes: u32,
    made: u16,
    /// How many the machine holds.
    held: u16,
}

impl ReceiveBuffers {
    /// None yet. `leaves_half_free`: receives reserve memory for any peer that connects, and must not starve data in
    /// transit; so they take no more than half of the arena.
    pub(crate) fn new(leaves_half_free: bool) -> ReceiveBuffers {
        ReceiveBuffers {
            leaves_half_free,
            blocks: Vec::new(),
            rest: Span::default(),
            bytes: 0,
            made: 0,
            held: 0,
        }
    }

    /// How many there are.
    pub(crate) fn made(&self) -> u16 {
        self.made
    }

    /// How many the machine does not hold.
    pub(crate) fn ready(&self) -> u16 {
        self.made - self.held
    }

    /// Allocates one more; `None`: out of memory for now, or longer than a large buffer.
    pub(crate) fn make(&mut self, wanted: &Receives, arena: &mut Arena) -> Option<Span> {
        assert!(self.made == 0 || self.bytes == wanted.bytes, "receives of one connection are of one length");
        self.bytes = wanted.bytes;
        let span = match cut(&mut self.rest, wanted) {
            Some(span) => span,
            None => self.cut_another(wanted, arena)?,
        };
        self.made += 1;
        Some(span)
    }

    fn cut_another(&mut self, wanted: &Receives, arena: &mut Arena) -> Option<Span> {
        if self.leaves_half_free && !arena.is_half_free() {
            return None;
        }
        let block = arena.take(LARGE_BYTES)?;
        let mut rest = block.iter().next()?;
        match cut(&mut rest, wanted) {
            Some(span) => {
                self.blocks.push(block);
                self.rest = rest;
                Some(span)
            }
            None => {
                arena.give(&block);
                None
            }
        }
    }

    /// Hands the receive that begins here to the machine.
    pub(crate) fn hand_out(&mut self, arena: &Arena, offset: u64) -> Span {
        self.held += 1;
        Span { buffer: arena.id(), len: self.bytes, offset }
    }

    /// The machine is done with a receive, which is returned whole.
    pub(crate) fn reclaim(&mut self, place: Span) -> Span {
        self.held = self.held.checked_sub(1).expect("a receive is released once");
        Span { len: self.bytes, ..place }
    }

    /// Releases all memory.
    pub(crate) fn close(self, arena: &mut Arena) {
        for block in self.blocks {
            arena.give(&block);
        }
    }
}

/// Cuts off a receive; `None`: there is no room.
fn cut(rest: &mut Span, wanted: &Receives) -> Option<Span> {
    let (at, unit) = match wanted.aligned_at {
        0 => (rest.offset, LINE_BYTES),
        aligned_at => (rest.offset + u64::from(aligned_at), PAGE_BYTES),
    };
    let gap = at.next_multiple_of(unit) - at;
    let span = rest.slice(gap as u32, wanted.bytes);
    if span.len < wanted.bytes {
        return None;
    }
    *rest = rest.slice(gap as u32 + span.len, rest.len);
    Some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_all(wanted: Receives, arena: &mut Arena) -> (ReceiveBuffers, Vec<Span>) {
        let mut buffers = ReceiveBuffers::new(false);
        let spans = (0..wanted.count).map_while(|_| buffers.make(&wanted, arena)).collect();
        (buffers, spans)
    }

    #[test]
    fn receives_are_apart_and_their_data_lies_on_pages() {
        for (bytes, aligned_at, blocks) in [(8272, 80, 3), (8528, 76, 3), (1024, 0, 1), (65_536, 0, 11)] {
            let mut arena = Arena::new(1 << 20).unwrap();
            let (buffers, mut spans) = make_all(Receives { count: 11, bytes, aligned_at }, &mut arena);
            assert_eq!((spans.len(), arena.in_use()), (11, blocks * 65_536), "{bytes}");
            spans.sort_by_key(|span| span.offset);
            assert!(spans.iter().all(|span| span.len == bytes));
            assert!(spans.windows(2).all(|pair| pair[0].offset + u64::from(bytes) <= pair[1].offset));
            let at = |span: &Span| span.offset + u64::from(aligned_at);
            assert!(aligned_at == 0 || spans.iter().all(|span| at(span).is_multiple_of(4096)));
            buffers.close(&mut arena);
            assert_eq!(arena.in_use(), 0);
        }
    }

    #[test]
    fn receives_longer_than_a_buffer_are_not_made() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let (buffers, spans) = make_all(Receives { count: 2, bytes: 65_000, aligned_at: 80 }, &mut arena);
        assert_eq!((buffers.ready(), spans.len(), arena.in_use()), (0, 0, 0));
    }

    #[test]
    fn what_there_is_no_memory_for_is_made_later() {
        let mut arena = Arena::new(2 * 65_536).unwrap();
        let other = arena.take(65_536).unwrap();
        let wanted = Receives { count: 6, bytes: 8272, aligned_at: 80 };
        let (mut buffers, spans) = make_all(wanted, &mut arena);
        assert_eq!((spans.len(), buffers.ready()), (5, 5));
        arena.give(&other);
        assert!(buffers.make(&wanted, &mut arena).is_some());
        assert_eq!(buffers.ready(), 6);
        let place = buffers.hand_out(&arena, spans[3].offset);
        assert_eq!((place, buffers.ready()), (spans[3], 5));
        assert_eq!((buffers.reclaim(place), buffers.ready()), (place, 6));
        buffers.close(&mut arena);
        assert_eq!(arena.in_use(), 0);
    }

    #[test]
    fn receives_can_leave_half_of_the_memory_free() {
        let mut arena = Arena::new(8 * 65_536).unwrap();
        let wanted = Receives { count: u16::MAX, bytes: 65_536, aligned_at: 0 };
        for (leaves_half_free, count) in [(true, 5), (false, 8)] {
            let mut buffers = ReceiveBuffers::new(leaves_half_free);
            assert_eq!((0..9).map_while(|_| buffers.make(&wanted, &mut arena)).count(), count);
            assert_eq!(buffers.made(), count as u16);
            buffers.close(&mut arena);
        }
    }
}
