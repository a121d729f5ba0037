//! Regions of memory and the table that finds them by their id.

use super::{Arena, HUGE_PAGE_BYTES, PAGE_BYTES, shared};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wire::{BufferId, Places, Span};

/// The most regions that may exist at a time in one process.
pub const REGIONS_MAX: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;

/// Pages that one [`Region::extent`] checks.
const EXTENT_PAGES_MAX: u64 = 64 * 1024;

/// Bytes compared or combined at a time, on the stack.
const CHUNK_BYTES: usize = 4096;
/// Bytes of a span that [`Region::prefetch`] requests: what the processor can have in flight at a time.
const PREFETCH_BYTES: u32 = 4096;
/// Bytes that are loaded together.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE_BYTES: usize = 64;
/// Lines of a block of 512 bytes, which are requested without checking for the end.
#[cfg(target_arch = "x86_64")]
const LINES: usize = 8;

/// The pages in which the system allocates memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// As the machine's setting for transparent huge pages says.
    System,
    /// In small pages: no more memory is taken than is written.
    Small,
    /// In huge pages, if the machine's setting allows them (Documentation/admin-guide/mm/transhuge.rst):
    /// random reads miss the TLB far less often, but the first write takes and clears [`HUGE_PAGE_BYTES`].
    Huge,
}

/// Zeroed memory of a fixed size, registered in the process-wide table.
///
/// The memory of a region may be read and written at the same time by several cores, and by the kernel on
/// their behalf, so no reference to it is ever created: bytes are moved by the copying functions below, and
/// racing writers leave a mixture of their bytes, as on any disk.
///
/// Functions that take an offset panic when the range is outside the region: their callers have checked the
/// range against the capacity. The other operand's places are in the calling core's `arena` or in another
/// shared region.
#[derive(Debug)]
pub struct Region {
    id: BufferId,
    base: *mut u8,
    len: u64,
}

// SAFETY: the mapping lives as long as the region, and is only reached through raw copies that need no exclusive
// access (or, for an arena's private region, through the one arena that owns it).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes that read as zeros. Memory is taken from the system only when a page is first written.
    pub fn map(len: u64) -> io::Result<Arc<Region>> {
        Region::map_on(len, Pages::System)
    }

    /// Like [`Region::map`], on these pages.
    pub fn map_on(len: u64, pages: Pages) -> io::Result<Arc<Region>> {
        Ok(Arc::new(Region::map_as(len, SHARED, pages)?))
    }

    /// Like [`Region::map_on`], but spans of it cannot be resolved through the table.
    pub(super) fn map_private(len: u64, pages: Pages) -> io::Result<Region> {
        Region::map_as(len, PRIVATE, pages)
    }

    fn map_as(len: u64, flags: u64, pages: Pages) -> io::Result<Region> {
        let bytes = mapped_bytes(len).ok_or(io::ErrorKind::InvalidInput)?;
        let base = map_pages(bytes, pages)?;
        // Child processes do not need buffers, and `extent` relies on pages not being shared. SAFETY: the
        // range is the mapping made above.
        let advised = unsafe { rustix::mm::madvise(base.cast(), bytes, Advice::LinuxDontFork) };
        let id = advised.map_err(io::Error::from).and_then(|()| register(base, len, flags));
        match id {
            Ok(id) => Ok(Region { id, base, len }),
            Err(error) => {
                // SAFETY: nobody has seen the mapping.
                unsafe { unmap(base, bytes) };
                Err(error)
            }
        }
    }

    /// The id by which spans find this region.
    pub fn id(&self) -> BufferId {
        self.id
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the region has no bytes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The span of `len` bytes from `at`, if it is inside the region.
    pub fn span(&self, at: u64, len: u32) -> Option<Span> {
        let end = at.checked_add(u64::from(len))?;
        (end <= self.len).then_some(Span { buffer: self.id, len, offset: at })
    }

    /// Prefetches the first bytes of a span that is about to be sent: they are loaded while the command is
    /// processed. (READs of 4 KiB at random: 5 to 10 % more a second.)
    pub fn prefetch(&self, at: u64, len: u32) {
        if at.checked_add(u64::from(len)).is_none_or(|end| end > self.len) {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        {
            let here = self.base.wrapping_add(at as usize);
            if len >= PREFETCH_BYTES {
                return prefetch_lines::<{ PREFETCH_BYTES as usize / CACHE_LINE_BYTES }>(here);
            }
            for block in 0..(len as usize).div_ceil(LINES * CACHE_LINE_BYTES) {
                prefetch_lines::<LINES>(here.wrapping_add(block * LINES * CACHE_LINE_BYTES));
            }
        }
    }

    /// Copies the bytes of `from` to `at`.
    pub fn copy_in(&self, at: u64, arena: &Arena, from: &Places) {
        self.each(at, from, |here, span| {
            with_address(arena, span, |there| {
                // SAFETY: both ranges were checked to be `span.len` bytes inside living mappings; they may overlap.
                unsafe { shared::copy_past_cache(there, here, span.len as usize) }
            });
        });
    }

    /// Copies the bytes from `at` on to `into`.
    pub fn copy_out(&self, at: u64, arena: &mut Arena, into: &Places) {
        self.each(at, into, |here, span| {
            with_address(arena, span, |there| {
                // SAFETY: both ranges were checked to be `span.len` bytes inside living mappings; they may overlap.
                unsafe { shared::copy(here, there, span.len as usize) }
            });
        });
    }

    /// Compares the bytes from `at` on with `with`; returns the offset of the first byte that differs.
    pub fn compare(&self, at: u64, arena: &Arena, with: &Places) -> Option<u32> {
        let mut before = 0;
        let mut found = None;
        self.each(at, with, |here, span| {
            if found.is_none() {
                found = with_address(arena, span, |there| first_difference(here, there, span.len));
                found = found.map(|offset| offset + before);
            }
            before += span.len;
        });
        found
    }

    /// ORs the bytes of `from` into those from `at` on.
    pub fn or_in(&self, at: u64, arena: &Arena, from: &Places) {
        self.each(at, from, |here, span| {
            with_address(arena, span, |there| or_into(here, there, span.len));
        });
    }

    /// Writes zeros. The range stays, or becomes, allocated.
    pub fn fill_zero(&self, at: u64, len: u64) {
        let (here, bytes) = self.range(at, len);
        // SAFETY: the range was checked to lie inside this mapping.
        unsafe { shared::fill_zero(here, bytes) }
    }

    /// Zeroes the range and returns the memory of its whole pages to the system.
    pub fn release(&self, at: u64, len: u64) {
        let (_, _) = self.range(at, len);
        let first_page = at.next_multiple_of(PAGE_BYTES);
        let last_page = (at + len) / PAGE_BYTES * PAGE_BYTES;
        if first_page >= last_page {
            return self.fill_zero(at, len);
        }
        self.fill_zero(at, first_page - at);
        self.fill_zero(last_page, at + len - last_page);
        let (here, bytes) = self.range(first_page, last_page - first_page);
        // SAFETY: whole pages of this private mapping; without references to it, losing the content is an ordinary
        // write of zeros.
        let given = unsafe { rustix::mm::madvise(here.cast(), bytes, Advice::LinuxDontNeed) };
        if given.is_err() {
            self.fill_zero(first_page, last_page - first_page);
        }
    }

    /// Makes the first `used` bytes, the only ones that were written, read as zeros again, and keeps no more than so much memory of
    /// them for the next writes.
    pub(super) fn renew(&self, used: u64, kept: u64) {
        let kept = used.min(kept);
        let mut entries = vec![0u8; kept.div_ceil(PAGE_BYTES) as usize * 8];
        let at = self.base as u64 / PAGE_BYTES * 8;
        let is_known = page_map().is_ok_and(|map| map.read_exact_at(&mut entries, at).is_ok());
        for (entry, at) in entries.as_chunks::<8>().0.iter().zip((0..kept).step_by(PAGE_BYTES as usize)) {
            if !is_known || page_is_allocated(u64::from_ne_bytes(*entry)) {
                self.fill_zero(at, PAGE_BYTES.min(kept - at));
            }
        }
        if kept < used {
            self.release(kept, used - kept);
        }
    }

    /// Whether memory is allocated at `at`, and for how many bytes from there on the same is known to apply.
    /// If the system does not report it, everything counts as allocated.
    pub fn extent(&self, at: u64) -> (bool, u64) {
        let (_, _) = self.range(at, 1);
        let first = at / PAGE_BYTES;
        let pages = (self.len.div_ceil(PAGE_BYTES) - first).min(EXTENT_PAGES_MAX);
        match self.extent_pages(first, pages) {
            Ok((mapped, same)) => (mapped, ((first + same) * PAGE_BYTES).min(self.len) - at),
            Err(_) => (true, self.len - at),
        }
    }

    /// Like [`Region::extent`], in pages, by the kernel's page map
    /// (Documentation/admin-guide/mm/pagemap.rst).
    fn extent_pages(&self, first: u64, pages: u64) -> io::Result<(bool, u64)> {
        const ENTRIES: u64 = 512;
        let map = page_map()?;
        let base = self.base as u64 / PAGE_BYTES;
        let mut entries = [0u8; ENTRIES as usize * 8];
        let mut mapped = None;
        let mut seen = 0;
        while seen < pages {
            let wanted = (pages - seen).min(ENTRIES) as usize * 8;
            map.read_exact_at(&mut entries[..wanted], (base + first + seen) * 8)?;
            for entry in entries[..wanted].as_chunks::<8>().0 {
                let page = page_is_allocated(u64::from_ne_bytes(*entry));
                if *mapped.get_or_insert(page) != page {
                    return Ok((!page, seen));
                }
                seen += 1;
            }
        }
        Ok((mapped.unwrap_or(true), seen))
    }

    /// Bytes of the region for which memory is allocated; all of them if the system does not report it. Takes a millisecond or two
    /// for a GiB.
    pub fn allocated_bytes(&self) -> u64 {
        let count = || -> io::Result<u64> {
            let map = page_map()?;
            let (base, pages) = (self.base as u64 / PAGE_BYTES, self.len.div_ceil(PAGE_BYTES));
            let mut entries = vec![0u8; 1 << 16];
            let (mut seen, mut allocated) = (0, 0);
            while seen < pages {
                let wanted =
                    entries.len().min(usize::try_from(pages - seen).unwrap_or(usize::MAX).saturating_mul(8));
                map.read_exact_at(&mut entries[..wanted], (base + seen) * 8)?;
                let each = entries[..wanted].as_chunks::<8>().0;
                allocated +=
                    each.iter().filter(|entry| page_is_allocated(u64::from_ne_bytes(**entry))).count() as u64;
                seen += each.len() as u64;
            }
            Ok(allocated * PAGE_BYTES)
        };
        count().unwrap_or(self.len)
    }

    /// Calls `act` with the address in this region and the span, for each span of `places`.
    fn each(&self, at: u64, places: &Places, mut act: impl FnMut(*mut u8, Span)) {
        let (mut here, _) = self.range(at, u64::from(places.len()));
        for span in places.iter() {
            act(here, span);
            here = here.wrapping_add(span.len as usize);
        }
    }

    fn range(&self, at: u64, len: u64) -> (*mut u8, usize) {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {at} are outside a region of {} bytes", self.len);
        (self.base.wrapping_add(at as usize), len as usize)
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Where it is mapped, and its length: for registering it with a device, which may write there until that
    /// has ended. No references to a region's bytes exist: they are copied.
    pub fn mapping(&self) -> (*mut u8, usize) {
        (self.base, self.len as usize)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        retire(self.id);
    }
}

pub(super) fn mapped_bytes(len: u64) -> Option<usize> {
    let bytes = len.checked_next_multiple_of(PAGE_BYTES)?;
    let bytes = usize::try_from(bytes).ok()?;
    (bytes > 0 && isize::try_from(bytes).is_ok()).then_some(bytes)
}

/// A mapping of this length, a multiple of the page size, on these pages.
pub(super) fn map_pages(bytes: usize, pages: Pages) -> io::Result<*mut u8> {
    let huge = HUGE_PAGE_BYTES as usize;
    let more = if pages == Pages::Huge { huge } else { 0 };
    let all = bytes.checked_add(more).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            all,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }?
    .cast::<u8>();
    // A huge page has to be aligned.
    let before = if pages == Pages::Huge { start.align_offset(huge) } else { 0 };
    let base = start.wrapping_add(before);
    for (at, bytes) in [(start, before), (base.wrapping_add(bytes), more - before)] {
        if bytes > 0 {
            // SAFETY: whole pages of the mapping made above that nobody has seen, outside of what is returned.
            unsafe { unmap(at, bytes) };
        }
    }
    let advice = match pages {
        Pages::System => return Ok(base),
        Pages::Small => Advice::LinuxNoHugepage,
        Pages::Huge => Advice::LinuxHugepage,
    };
    // A kernel without huge pages refuses both: then all pages are small.
    // SAFETY: the range is what is left of the mapping made above.
    let _ = unsafe { rustix::mm::madvise(base.cast(), bytes, advice) };
    Ok(base)
}

/// The kernel's page map of this process, opened once: a daemon that has dropped root's privileges could no
/// longer open it (prctl(2), PR_SET_DUMPABLE), and opens it before that.
pub fn page_map() -> io::Result<&'static File> {
    static MAP: OnceLock<File> = OnceLock::new();
    if let Some(map) = MAP.get() {
        return Ok(map);
    }
    let map = File::open("/proc/self/pagemap")?;
    Ok(MAP.get_or_init(|| map))
}

/// Swapped out, or present and mapped only by us. A page that was only ever read is the system's shared zero
/// page: present, but not exclusively ours.
fn page_is_allocated(entry: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const EXCLUSIVE: u64 = 1 << 56;
    entry & SWAPPED != 0 || entry & (PRESENT | EXCLUSIVE) == PRESENT | EXCLUSIVE
}

/// Copies `from` to `to`, which have the same length.
pub(crate) fn copy(arena: &mut Arena, from: Span, to: Span) {
    assert!(from.len == to.len, "{from:?} is not as long as {to:?}");
    with_address(arena, from, |source| {
        with_address(arena, to, |target| {
            // SAFETY: both ranges were checked to be `from.len` bytes inside living mappings; they may overlap; the
            // arena is borrowed exclusively, so there is no reference to its bytes.
            unsafe { shared::copy(source, target, from.len as usize) }
        });
    });
}

/// Copies a span of the arena or of a shared region to a slice of the same length.
pub(crate) fn copy_to(arena: &Arena, from: Span, to: &mut [u8]) {
    assert!(from.len as usize == to.len(), "{from:?} is not as long as {} bytes", to.len());
    // SAFETY: `with_address` checked that `from.len` bytes lie there in a living mapping; `to` has as many, and is ours.
    with_address(arena, from, |source| unsafe { shared::copy(source, to.as_mut_ptr(), to.len()) });
}

/// Copies a slice to a span of the same length, in the arena or in a shared region.
pub(crate) fn copy_from(arena: &mut Arena, from: &[u8], to: Span) {
    assert!(from.len() == to.len as usize, "{to:?} is not as long as {} bytes", from.len());
    // SAFETY: `with_address` checked that as many bytes lie there in a living mapping; the arena is borrowed exclusively, so
    // there is no reference to its bytes.
    with_address(arena, to, |target| unsafe { shared::copy(from.as_ptr(), target, from.len()) });
}

/// Calls `act` with the bytes of a span of a shared region, piece by piece, each copied to where no other
/// core writes.
pub(crate) fn with_shared_bytes(span: Span, mut act: impl FnMut(&[u8])) {
    let pin = Pin::new(span).expect("a span names bytes of a living shared region");
    let mut piece = [0u8; CHUNK_BYTES];
    for at in (0..span.len as usize).step_by(CHUNK_BYTES) {
        let bytes = CHUNK_BYTES.min(span.len as usize - at);
        // SAFETY: the pinned region has `span.len` bytes there, and the stack buffer is ours.
        unsafe { shared::copy(pin.address(span).add(at), piece.as_mut_ptr(), bytes) }
        act(&piece[..bytes]);
    }
}

/// Calls `act` with the address of a span of the arena or of a shared region. The bytes may be lent to the kernel.
fn with_address<T>(arena: &Arena, span: Span, act: impl FnOnce(*mut u8) -> T) -> T {
    if span.buffer == arena.id() {
        return act(arena.address(span));
    }
    let pin = Pin::new(span).expect("a span names bytes of a living shared region");
    act(pin.address(span))
}

/// Copies two chunks to the stack, where no other core can change them, and compares those.
fn first_difference(a: *const u8, b: *const u8, len: u32) -> Option<u32> {
    let (mut ours, mut theirs) = ([0u8; CHUNK_BYTES], [0u8; CHUNK_BYTES]);
    for at in (0..len as usize).step_by(CHUNK_BYTES) {
        let bytes = CHUNK_BYTES.min(len as usize - at);
        // SAFETY: the callers checked `len` bytes at `a` and at `b`; the stack buffers are ours.
        unsafe {
            shared::copy(a.add(at), ours.as_mut_ptr(), bytes);
            shared::copy(b.add(at), theirs.as_mut_ptr(), bytes);
        }
        if ours[..bytes] != theirs[..bytes] {
            let differs = |(a, b): (&u8, &u8)| a != b;
            let offset = ours.iter().zip(&theirs).position(differs).unwrap_or(0);
            return u32::try_from(at + offset).ok();
        }
    }
    None
}

fn or_into(target: *mut u8, operand: *const u8, len: u32) {
    let (mut ours, mut theirs) = ([0u8; CHUNK_BYTES], [0u8; CHUNK_BYTES]);
    for at in (0..len as usize).step_by(CHUNK_BYTES) {
        let bytes = CHUNK_BYTES.min(len as usize - at);
        // SAFETY: the callers checked `len` bytes at both addresses; the stack buffers are ours.
        unsafe {
            shared::copy(target.add(at), ours.as_mut_ptr(), bytes);
            shared::copy(operand.add(at), theirs.as_mut_ptr(), bytes);
        }
        for (byte, operand) in ours[..bytes].iter_mut().zip(&theirs) {
            *byte |= operand;
        }
        // SAFETY: as above.
        unsafe { shared::copy(ours.as_ptr(), target.add(at), bytes) }
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_lines<const N: usize>(from: *mut u8) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    for line in 0..N {
        // SAFETY: a hint, which reads nothing that the program could see, and fails nowhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(line * CACHE_LINE_BYTES).cast()) }
    }
}

/// Keeps a shared region mapped: the proof that addresses of its spans stay valid.
#[derive(Debug)]
pub(crate) struct Pin {
    id: BufferId,
    base: *mut u8,
    len: u64,
}

impl Pin {
    /// Pins the shared region of `span`, if there is one and the span lies inside it.
    pub(crate) fn new(span: Span) -> Option<Pin> {
        let slot = slot_of(span.buffer);
        let alive = |state: u64| (state & (DEAD | PRIVATE) == 0).then_some(state + 1);
        slot.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, alive).ok()?;
        if slot.id.load(Ordering::Relaxed) != span.buffer.0 {
            unpin(slot);
            return None;
        }
        let base = slot.base.load(Ordering::Relaxed) as *mut u8;
        let pin = Pin { id: span.buffer, base, len: slot.len.load(Ordering::Relaxed) };
        pin.covers(span).then_some(pin)
    }

    /// Whether the span lies inside the pinned region.
    pub(crate) fn covers(&self, span: Span) -> bool {
        let end = span.offset.checked_add(u64::from(span.len));
        self.id == span.buffer && end.is_some_and(|end| end <= self.len)
    }

    /// The address of the span's bytes, valid as long as the pin is held.
    pub(crate) fn address(&self, span: Span) -> *mut u8 {
        self.find(span).unwrap_or_else(|| panic!("{span:?} is outside the pinned region"))
    }

    /// The same, if the span is inside the pinned region.
    pub(crate) fn find(&self, span: Span) -> Option<*mut u8> {
        self.covers(span).then(|| self.base.wrapping_add(span.offset as usize))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        unpin(slot_of(self.id));
    }
}

/// One entry of the table. `state` counts pins in its low bits; `base`, `len` and `id` change only while it
/// is DEAD without pins.
#[repr(align(64))]
struct Slot {
    state: AtomicU64,
    id: AtomicU32,
    base: AtomicUsize,
    len: AtomicU64,
}

const DEAD: u64 = 1 << 63;
const PRIVATE: u64 = 1 << 62;
const SHARED: u64 = 0;

static TABLE: [Slot; REGIONS_MAX] = [const {
    Slot {
        state: AtomicU64::new(DEAD),
        id: AtomicU32::new(0),
        base: AtomicUsize::new(0),
        len: AtomicU64::new(0),
    }
}; REGIONS_MAX];

/// Free slots: those that were freed, and the first that was never used.
struct Free {
    freed: Vec<usize>,
    untouched: usize,
}

static FREE: Mutex<Free> = Mutex::new(Free { freed: Vec::new(), untouched: 0 });

fn slot_of(id: BufferId) -> &'static Slot {
    &TABLE[id.0 as usize % REGIONS_MAX]
}

fn register(base: *mut u8, len: u64, flags: u64) -> io::Result<BufferId> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let index = match free.freed.pop() {
        Some(index) => index,
        None if free.untouched < REGIONS_MAX => {
            free.untouched += 1;
            free.untouched - 1
        }
        None => return Err(io::Error::other(format!("more than {REGIONS_MAX} memory regions"))),
    };
    let slot = &TABLE[index];
    // The upper bits count the occupants of the slot, from 1, so that an old span does not find a new region.
    let occupant = (slot.id.load(Ordering::Relaxed) >> SLOT_BITS).wrapping_add(1);
    let occupant = (occupant << SLOT_BITS >> SLOT_BITS).max(1);
    let id = occupant << SLOT_BITS | index as u32;
    slot.id.store(id, Ordering::Relaxed);
    slot.base.store(base as usize, Ordering::Relaxed);
    slot.len.store(len, Ordering::Relaxed);
    slot.state.store(flags, Ordering::Release);
    Ok(BufferId(id))
}

fn retire(id: BufferId) {
    let slot = slot_of(id);
    let before = slot.state.fetch_or(DEAD, Ordering::AcqRel);
    if before & !PRIVATE == 0 {
        reclaim(slot);
    }
}

fn unpin(slot: &'static Slot) {
    if slot.state.fetch_sub(1, Ordering::AcqRel) == DEAD | 1 {
        reclaim(slot);
    }
}

/// The region was dropped and the last pin is gone.
fn reclaim(slot: &'static Slot) {
    let base = slot.base.load(Ordering::Relaxed) as *mut u8;
    if let Some(bytes) = mapped_bytes(slot.len.load(Ordering::Relaxed)) {
        // SAFETY: the table's entry was made from a mapping of this size; nobody can reach it any more.
        unsafe { unmap(base, bytes) };
    }
    let index = slot.id.load(Ordering::Relaxed) as usize % REGIONS_MAX;
    FREE.lock().unwrap_or_else(PoisonError::into_inner).freed.push(index);
}

/// # Safety
/// The range is mapped, whole pages, and nobody uses it.
pub(super) unsafe fn unmap(base: *mut u8, bytes: usize) {
    // SAFETY: by contract.
    let unmapped = unsafe { rustix::mm::munmap(base.cast(), bytes) };
    assert!(unmapped.is_ok(), "munmap of mapped pages fails only for a wrong range");
}

#[cfg(test)]
mod tests;
