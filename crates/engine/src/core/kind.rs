//! What completions belong to: the kind is in the top four bits of their tags.

use reactor::io::Tag;
use reactor::poll::Work;
use store::lane::{LANE_TAGS, OpId};

pub(super) const ACCEPT: u64 = 1;
pub(super) const RECV: u64 = 2;
pub(super) const SEND: u64 = 3;
pub(super) const LANE: u64 = 4;
pub(super) const DEVICE: u64 = 5;
pub(super) const ASKED: u64 = 6;
pub(super) const FRAMES: u64 = 7;
pub(super) const ROOM: u64 = 8;
pub(super) const SHIFT: u32 = 60;
/// What fits into a tag besides its kind and a generation.
pub(super) const NUMBERS: u32 = 1 << 28;

/// The number in a tag.
pub(super) fn index(tag: u64) -> u32 {
    (tag >> 32) as u32 & (NUMBERS - 1)
}

/// What has completed; frames are found by searching for them.
pub(super) fn work(tag: Tag) -> Work {
    match tag.0 >> SHIFT {
        LANE => Work::Own,
        FRAMES | ROOM => Work::None,
        _ => Work::Other,
    }
}

/// The tag range of a lane on any core.
pub(super) fn lane_tags(unit: u32) -> Tag {
    Tag((LANE << SHIFT) | (u64::from(unit) * LANE_TAGS))
}

/// The operation that flushes a store at the end, and when its unit is removed; it belongs to no task.
pub(super) const FINAL_FLUSH: OpId = OpId(u32::MAX);
pub(super) const LEAVING_FLUSH: OpId = OpId(u32::MAX - 1);
