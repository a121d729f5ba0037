//! Memory that a peer may access: what was advertised, while it is advertised, in the direction it was
//! advertised for (RFC 5042 sections 6.3 and 7.3).

use super::violation::Violation;
use wire::Places;

/// The most buffers of one connection that are registered at a time.
pub const REGISTRATIONS_MAX: u16 = 4096;

/// The bits of an STag that are the slot; the others are random.
const SLOT_MASK: u32 = 0x0fff;

/// What a peer may do with a registered buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// RDMA Read from it.
    pub remote_read: bool,
    /// RDMA Write into it.
    pub remote_write: bool,
}

/// The registered buffers of one connection.
pub(super) struct Registrations {
    slots: Vec<Slot>,
    free: Vec<u16>,
    random: fn() -> u32,
}

#[derive(Clone, Copy)]
struct Slot {
    /// The STag of the registration, or of the last one.
    stag: u32,
    buffer: Option<Buffer>,
    /// Bytes that the peer has written to it, or that were sent because the peer reads them.
    moved: u32,
    /// Batches being sent that carry bytes of it; the slot stays in use until they have been sent.
    leaving: u32,
}

#[derive(Clone, Copy)]
struct Buffer {
    places: Places,
    access: Access,
}

/// Why a peer may not access a range of memory.
pub(super) enum Fault {
    Stag,
    Access,
    Bounds,
    Wrap,
}

impl Fault {
    pub(super) fn of_write(self) -> Violation {
        match self {
            Fault::Stag => Violation::InvalidStag,
            Fault::Access => Violation::NotForWriting,
            Fault::Bounds => Violation::Bounds,
            Fault::Wrap => Violation::OffsetWrap,
        }
    }

    pub(super) fn of_read(self) -> Violation {
        match self {
            Fault::Stag => Violation::InvalidSource,
            Fault::Access => Violation::NotForReading,
            Fault::Bounds => Violation::SourceBounds,
            Fault::Wrap => Violation::SourceWrap,
        }
    }
}

impl Registrations {
    pub(super) fn new(limit: u16, random: fn() -> u32) -> Registrations {
        let limit = limit.min(REGISTRATIONS_MAX);
        let slots = (0..limit).map(|_| Slot { stag: 0, buffer: None, moved: 0, leaving: 0 }).collect();
        Registrations { slots, free: (0..limit).rev().collect(), random }
    }

    /// The STag that a peer may use from now on; offsets are relative to the beginning of `places`. `None`:
    /// no slot is free.
    pub(super) fn register(&mut self, places: Places, access: Access) -> Option<u32> {
        let index = self.free.pop()?;
        let slot = self.slots.get_mut(usize::from(index))?;
        let mut stag = ((self.random)() & !SLOT_MASK) | u32::from(index);
        // A late message for the last buffer in this slot must not find the new one; and zero is not a valid
        // STag.
        while stag == slot.stag || stag == 0 {
            stag = stag.wrapping_add(SLOT_MASK).wrapping_add(1);
        }
        *slot = Slot { stag, buffer: Some(Buffer { places, access }), moved: 0, leaving: 0 };
        Some(stag)
    }

    /// Invalidates the STag; `false` when it was not valid.
    pub(super) fn invalidate(&mut self, stag: u32) -> bool {
        let Some(slot) = self.slot(stag) else { return false };
        let was = slot.buffer.take().is_some();
        if was && slot.leaving == 0 {
            self.free.push(u16::try_from(stag & SLOT_MASK).unwrap_or(0));
        }
        was
    }

    /// The peer has written this many bytes to this buffer, or they are being sent to it.
    pub(super) fn moves(&mut self, stag: u32, len: u32) {
        if let Some(slot) = self.slot(stag) {
            slot.moved = slot.moved.saturating_add(len);
        }
    }

    /// Bytes transferred of the buffer with this STag, or that last had it.
    pub(super) fn moved(&self, stag: u32) -> u32 {
        let slot = usize::try_from(stag & SLOT_MASK).ok().and_then(|index| self.slots.get(index));
        slot.filter(|slot| slot.stag == stag).map_or(0, |slot| slot.moved)
    }

    /// A batch carries bytes of this buffer.
    pub(super) fn leaves(&mut self, stag: u32) {
        if let Some(slot) = self.slot(stag) {
            slot.leaving = slot.leaving.saturating_add(1);
        }
    }

    /// A batch with bytes of this buffer has been sent: `true` when it was the last, and the STag is invalid.
    pub(super) fn left(&mut self, stag: u32) -> bool {
        let Some(slot) = self.slot(stag) else { return false };
        slot.leaving = slot.leaving.saturating_sub(1);
        let is_free = slot.leaving == 0 && slot.buffer.is_none();
        if is_free {
            self.free.push(u16::try_from(stag & SLOT_MASK).unwrap_or(0));
        }
        is_free
    }

    /// Whether a batch being sent carries bytes of this buffer.
    pub(super) fn is_leaving(&self, stag: u32) -> bool {
        let slot = usize::try_from(stag & SLOT_MASK).ok().and_then(|index| self.slots.get(index));
        slot.is_some_and(|slot| slot.stag == stag && slot.leaving > 0)
    }

    /// Where a peer may write `len` bytes.
    pub(super) fn for_write(&self, stag: u32, offset: u64, len: u32) -> Result<Places, Fault> {
        self.part(stag, offset, len, |access| access.remote_write)
    }

    /// Where a peer may read `len` bytes.
    pub(super) fn for_read(&self, stag: u32, offset: u64, len: u32) -> Result<Places, Fault> {
        self.part(stag, offset, len, |access| access.remote_read)
    }

    fn part(&self, stag: u32, offset: u64, len: u32, may: fn(Access) -> bool) -> Result<Places, Fault> {
        let buffer = self.buffer(stag).ok_or(Fault::Stag)?;
        if !may(buffer.access) {
            return Err(Fault::Access);
        }
        let end = offset.checked_add(u64::from(len)).ok_or(Fault::Wrap)?;
        if end > u64::from(buffer.places.len()) {
            return Err(Fault::Bounds);
        }
        let from = u32::try_from(offset).map_err(|_| Fault::Bounds)?;
        Ok(buffer.places.slice(from, len))
    }

    fn buffer(&self, stag: u32) -> Option<&Buffer> {
        let slot = self.slots.get(usize::try_from(stag & SLOT_MASK).ok()?)?;
        slot.buffer.as_ref().filter(|_| slot.stag == stag)
    }

    fn slot(&mut self, stag: u32) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::try_from(stag & SLOT_MASK).ok()?)?;
        Some(slot).filter(|slot| slot.stag == stag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{BufferId, Span};

    const BOTH: Access = Access { remote_read: true, remote_write: true };

    fn places(len: u32) -> Places {
        let mut places = Places::EMPTY;
        places.push(Span { buffer: BufferId(1), len: 10, offset: 0 });
        places.push(Span { buffer: BufferId(2), len: len - 10, offset: 50 });
        places
    }

    #[test]
    fn only_what_is_registered_can_be_touched() {
        let mut memory = Registrations::new(4, || 0x1234_5678);
        let stag = memory.register(places(100), BOTH).unwrap();
        assert_eq!(memory.for_write(stag, 5, 10).ok().unwrap(), places(100).slice(5, 10));
        assert!(matches!(memory.for_write(stag, 95, 6), Err(Fault::Bounds)));
        assert!(matches!(memory.for_read(stag, 1 << 33, 1), Err(Fault::Bounds)));
        assert!(matches!(memory.for_read(stag, u64::MAX, 2), Err(Fault::Wrap)));
        for other in [stag ^ 1, stag ^ 0x8000_0000, 0, u32::MAX] {
            assert!(matches!(memory.for_write(other, 0, 1), Err(Fault::Stag)), "{other:x}");
            assert!(!memory.invalidate(other));
        }
        assert!(memory.invalidate(stag) && !memory.invalidate(stag));
        assert!(matches!(memory.for_read(stag, 0, 1), Err(Fault::Stag)));
    }

    #[test]
    fn a_slot_is_taken_until_its_bytes_have_left() {
        let mut memory = Registrations::new(1, || 7);
        let stag = memory.register(places(20), BOTH).unwrap();
        memory.leaves(stag);
        memory.leaves(stag);
        assert!(memory.is_leaving(stag) && !memory.left(stag));
        assert!(memory.invalidate(stag) && memory.is_leaving(stag));
        assert!(matches!(memory.for_read(stag, 0, 1), Err(Fault::Stag)));
        assert_eq!(memory.register(places(20), BOTH), None);
        assert!(memory.left(stag) && !memory.is_leaving(stag));
        let next = memory.register(places(20), BOTH).unwrap();
        memory.leaves(next);
        assert!(!memory.left(next), "it is registered still");
        assert!(memory.invalidate(next) && memory.register(places(20), BOTH).is_some());
    }

    #[test]
    fn what_moved_is_known_until_the_slot_is_taken_again() {
        let mut memory = Registrations::new(1, || 7);
        let stag = memory.register(places(20), BOTH).unwrap();
        assert_eq!(memory.moved(stag), 0);
        memory.moves(stag, 12);
        memory.moves(stag, 3);
        assert!(memory.invalidate(stag));
        assert_eq!((memory.moved(stag), memory.moved(stag ^ 0x8000_0000)), (15, 0));
        let next = memory.register(places(20), BOTH).unwrap();
        assert_eq!((memory.moved(next), memory.moved(stag)), (0, 0));
    }

    #[test]
    fn directions_are_apart() {
        let mut memory = Registrations::new(2, || 7);
        let read = memory.register(places(20), Access { remote_read: true, remote_write: false }).unwrap();
        let write = memory.register(places(20), Access { remote_read: false, remote_write: true }).unwrap();
        assert!(memory.for_read(read, 0, 20).is_ok() && memory.for_write(write, 0, 20).is_ok());
        assert!(matches!(memory.for_write(read, 0, 20), Err(Fault::Access)));
        assert!(matches!(memory.for_read(write, 0, 20), Err(Fault::Access)));
        assert_eq!(memory.register(places(20), BOTH), None, "all slots are taken");
    }

    #[test]
    fn an_stag_is_not_used_twice_in_a_row() {
        let mut memory = Registrations::new(1, || 0);
        let mut last = 0;
        for _ in 0..10 {
            let stag = memory.register(places(20), BOTH).unwrap();
            assert!(stag != last && stag != 0);
            assert!(memory.invalidate(stag));
            last = stag;
        }
    }
}
