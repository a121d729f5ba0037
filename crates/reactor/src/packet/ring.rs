//! The ring that the kernel receives frames into (Linux, Documentation/networking/packet_mmap.rst), TPACKET_V2.

use super::socket::Options;
use proto::time::Stamp;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Frames do not cross the ends of these blocks of memory.
const BLOCK_BYTES: u32 = 65536;
/// The latest offset at which a frame with an Ethernet header begins: after `tpacket2_hdr` and `sockaddr_ll`.
const LEAD_BYTES: u32 = 80;

/// Received frames. Each is copied out as soon as it is seen: the kernel wraps around and stops at the first
/// that was not returned, so none can be kept.
#[derive(Debug)]
pub(super) struct Ring {
    base: *mut u8,
    bytes: usize,
    frame_bytes: u32,
    frames: u32,
    /// The frame that the kernel fills next, or has filled.
    head: u32,
}

// SAFETY: the mapping is this value's own, and goes with it from thread to thread.
unsafe impl Send for Ring {}

/// The oldest frame.
pub(super) struct Frame {
    bytes: *const u8,
    /// Its length.
    pub(super) len: u32,
    /// How much of it is present.
    there: u32,
    /// When the kernel put it there.
    pub(super) stamp: Stamp,
}

/// The time now, by the clock of [`super::Packets::stamped_frame`].
pub fn now() -> Stamp {
    stamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn stamp(since_epoch: Duration) -> Stamp {
    Stamp(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}

impl Ring {
    /// For at least this many frames.
    pub(super) fn new(socket: &OwnedFd, options: &Options<'_>, room: u32, frames: u32) -> io::Result<Ring> {
        let frame_bytes = (LEAD_BYTES + room).next_multiple_of(libc::TPACKET_ALIGNMENT as u32);
        let in_block = BLOCK_BYTES / frame_bytes;
        let blocks = frames.div_ceil(in_block).max(1);
        options.set(libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES,
            tp_block_nr: blocks,
            tp_frame_size: frame_bytes,
            tp_frame_nr: blocks * in_block,
        };
        options.set(libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let bytes = (blocks * BLOCK_BYTES) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, socket, 0) }?.cast();
        Ok(Ring { base, bytes, frame_bytes, frames: blocks * in_block, head: 0 })
    }

    /// The oldest frame that has arrived.
    pub(super) fn first(&self) -> Option<Frame> {
        // What the kernel wrote before the status is seen after it.
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let at = self.header();
        // SAFETY: the header is the kernel's, aligned, and it writes there no more until the frame is returned.
        let header = unsafe { at.cast::<libc::tpacket2_hdr>().read() };
        let (begin, there) = (u32::from(header.tp_mac), header.tp_snaplen);
        let is_inside = there <= self.frame_bytes && begin <= self.frame_bytes - there;
        assert!(is_inside, "the kernel's frames lie inside their places");
        let stamp = stamp(Duration::new(header.tp_sec.into(), header.tp_nsec));
        Some(Frame { bytes: at.wrapping_add(begin as usize), len: header.tp_len, there, stamp })
    }

    /// The oldest frame is no longer needed.
    pub(super) fn advance(&mut self) {
        // What was read of it was read before.
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) % self.frames;
    }

    fn header(&self) -> *mut u8 {
        let in_block = BLOCK_BYTES / self.frame_bytes;
        let at = self.head / in_block * BLOCK_BYTES + self.head % in_block * self.frame_bytes;
        self.base.wrapping_add(at as usize)
    }

    /// The first word of a frame's header: its owner.
    fn status(&self) -> &AtomicU32 {
        // SAFETY: the header lies in the mapping, which lives as long as this, and is aligned to 16 bytes; the kernel
        // and this change its first word only as a whole.
        unsafe { AtomicU32::from_ptr(self.header().cast()) }
    }
}

impl Frame {
    /// Whether it is not truncated.
    pub(super) fn is_whole(&self) -> bool {
        self.there == self.len
    }

    /// Copies it.
    ///
    /// # Safety
    /// There is room for `len` bytes at `to`, which nobody else uses; the frame is whole, and was not returned.
    pub(super) unsafe fn copy(&self, to: *mut u8) {
        // SAFETY: the frame's bytes lie in the ring, as `first` checked; the rest is by contract.
        unsafe { ptr::copy_nonoverlapping(self.bytes, to, self.len as usize) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it: frames are read and
        // returned by `Packets::receive` alone.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}
