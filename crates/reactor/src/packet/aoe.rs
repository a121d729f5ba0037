//! ATA over Ethernet: fields that a filter checks, and a machine's frames in slots of the arena.

use super::{Field, Line, Packets, Width};
use crate::memory::Arena;
use proto::aoe::Frame;
use wire::{Places, Span};

/// Bytes before the data of a command: the headers of Ethernet, AoE and its ATA section.
pub const HEADERS_BYTES: u32 = 36;

/// The flags.
pub const FLAGS: Field = Field { at: 14, width: Width::Byte };
/// The source of a frame, in two fields.
pub const SOURCE: [Field; 2] = [Field { at: 6, width: Width::Half }, Field { at: 8, width: Width::Word }];
/// Shelf and slot.
pub const SHELF: Field = Field { at: 16, width: Width::Half };
/// Shelf and slot.
pub const SLOT: Field = Field { at: 18, width: Width::Byte };
/// The highest byte of the tag.
pub const LANE: Field = Field { at: 20, width: Width::Byte };

/// The shortest frame, without its checksum (IEEE 802.3 section 3.2.8).
const FRAME_BYTES_MIN: u32 = 60;

/// Queues frames of a machine, as far as there is room; `next` puts one into a slot. Returns whether there
/// were any.
pub fn queue<L: Line>(
    packets: &mut Packets<L>,
    arena: &mut Arena,
    mut next: impl FnMut(&mut Arena, Span) -> Option<u32>,
) -> bool {
    let mut any = false;
    while let Some(slot) = packets.slot() {
        let len = next(arena, slot).unwrap_or(0);
        packets.queue(slot, len);
        if len == 0 {
            break;
        }
        any = true;
    }
    any
}

/// Copies a frame with its payload to a slot, followed by other data built for it; returns its length.
pub fn copy_frame(arena: &mut Arena, frame: &Frame, made: &[u8], slot: Span) -> u32 {
    let header = frame.header();
    let mut at = header.len() as u32;
    arena.bytes_mut(slot.slice(0, at)).copy_from_slice(header);
    for span in frame.payload.iter() {
        arena.copy(span, &Places::one(slot.slice(at, span.len)));
        at += span.len;
    }
    if !made.is_empty() {
        arena.bytes_mut(slot.slice(at, made.len() as u32)).copy_from_slice(made);
        at += made.len() as u32;
    }
    if at < FRAME_BYTES_MIN {
        arena.bytes_mut(slot.slice(at, FRAME_BYTES_MIN - at)).fill(0);
    }
    at.max(FRAME_BYTES_MIN)
}
