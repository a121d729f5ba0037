//! Self-describing blocks, and the version that each must have.
//!
//! A block is as long as one operation. Each of its 512-byte units contains its address, the version of the
//! block, the seed and the run that wrote it, filler derived from these, and a CRC32C of everything before:
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | magic |
//! | 4..8 | version |
//! | 8..16 | address of the unit, in bytes |
//! | 16..24 | seed |
//! | 24..32 | run |
//! | 32..508 | filler, of which the end is zeros where data is to be compressible |
//! | 508..512 | CRC32C of all before |
//!
//! Numbers are little-endian. The [`BlockVersions`] remembers the last acknowledged version of each block, and lets
//! an operation begin only when it does not conflict with another on the same block: so the content that a
//! read must find is known exactly. Only after a failed write are both versions valid.

use crate::result::VerifyCounts;
use reactor::crc::crc32c;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes per unit, each with its own header.
pub const UNIT_BYTES: u32 = 512;

/// Most memory for the block versions: 8 bytes for each block.
pub const BLOCK_VERSIONS_BYTES_MAX: u64 = 1 << 30;

const UNIT: usize = UNIT_BYTES as usize;
const FILLER: usize = 32;
const CHECKSUM: usize = UNIT - 4;
const MAGIC: u32 = u32::from_le_bytes(*b"LnVb");

/// The version that each block in a range of a target must have. Shared by all threads that access it.
pub struct BlockVersions {
    offset: u64,
    block_bytes: u32,
    seed: u64,
    run: u64,
    /// Offset of the zeros at the end of a unit's filler.
    zeros_from: usize,
    blocks: Vec<AtomicU64>,
}

/// Why the block versions cannot be held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockVersionsError {
    /// Blocks are not a multiple of units.
    Unit,
    /// There would be too many blocks: this many bytes of memory would be needed.
    TooLarge(u64),
}

impl fmt::Display for BlockVersionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockVersionsError::Unit => {
                write!(f, "blocks cannot be verified unless they are multiples of {UNIT_BYTES} bytes")
            }
            BlockVersionsError::TooLarge(bytes) => write!(
                f,
                "verification needs 8 bytes of memory for each block, {bytes} in total; the limit is {BLOCK_VERSIONS_BYTES_MAX}"
            ),
        }
    }
}

impl std::error::Error for BlockVersionsError {}

/// A write that may start: what it must write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Writing {
    block: u64,
    version: u32,
}

/// A read that may start: what it must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    block: u64,
    /// The oldest and the newest valid version; 0: never written, any content is valid.
    oldest: u32,
    newest: u32,
}

/// What was found in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The expected content.
    Good,
    /// Never written, so nothing is known.
    Unknown,
    /// An older version, intact.
    Stale {
        /// The version found.
        found: u32,
        /// The oldest valid version.
        wanted: u32,
    },
    /// Content of another address, or of this address in another layout.
    Misplaced {
        /// Where it belongs, in bytes.
        belongs: u64,
    },
    /// A mixture, or bytes of no version.
    Torn,
    /// Nothing that this run wrote.
    Lost,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Good => write!(f, "is good"),
            Verdict::Unknown => write!(f, "was never written"),
            Verdict::Stale { found, wanted } => {
                write!(f, "is stale: it holds version {found}, but version {wanted} was acknowledged")
            }
            Verdict::Misplaced { belongs } => {
                write!(f, "is misplaced: it holds the data of byte {belongs}")
            }
            Verdict::Torn => write!(f, "is torn: it mixes versions, or holds bytes that no version had"),
            Verdict::Lost => write!(f, "is lost: a write was acknowledged, but it holds nothing of this run"),
        }
    }
}

impl VerifyCounts {
    /// Counts what was found in a block.
    pub fn count(&mut self, verdict: Verdict) {
        let counter = match verdict {
            Verdict::Unknown => return,
            Verdict::Good => None,
            Verdict::Stale { .. } => Some(&mut self.stale),
            Verdict::Misplaced { .. } => Some(&mut self.misplaced),
            Verdict::Torn => Some(&mut self.torn),
            Verdict::Lost => Some(&mut self.lost),
        };
        if let Some(counter) = counter {
            *counter += 1;
        }
        self.checked += 1;
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: VerifyCounts) {
        self.checked += other.checked;
        self.stale += other.stale;
        self.misplaced += other.misplaced;
        self.torn += other.torn;
        self.lost += other.lost;
        self.unread += other.unread;
    }

    /// Blocks with wrong content.
    pub fn bad(&self) -> u64 {
        self.stale + self.misplaced + self.torn + self.lost
    }
}

/// The state of a block: the newest version attempted (32 bits), how many older versions are possible because
/// writes failed (16 bits), reads in progress (15 bits), a write in progress (1 bit).
mod state {
    pub(super) const DOUBT_SHIFT: u32 = 32;
    pub(super) const DOUBT_MAX: u64 = 0xffff;
    pub(super) const READER: u64 = 1 << 48;
    pub(super) const READERS_MAX: u64 = 0x7fff;
    pub(super) const WRITER: u64 = 1 << 63;

    pub(super) fn newest(state: u64) -> u32 {
        state as u32
    }

    pub(super) fn doubt(state: u64) -> u64 {
        state >> DOUBT_SHIFT & DOUBT_MAX
    }

    pub(super) fn readers(state: u64) -> u64 {
        (state / READER) & READERS_MAX
    }

    pub(super) fn settled(newest: u32, doubt: u64) -> u64 {
        u64::from(newest) | doubt.min(DOUBT_MAX) << DOUBT_SHIFT
    }
}

impl BlockVersions {
    /// The versions of `blocks` blocks starting at byte `offset` of a target, all of unknown content. `run`
    /// distinguishes this run from earlier ones with the same seed; `compress`: the percentage of each unit
    /// that is zeros.
    ///
    /// # Errors
    /// When blocks are not a multiple of units, or there are too many.
    pub fn new(
        offset: u64,
        block_bytes: u32,
        blocks: u64,
        seed: u64,
        run: u64,
        compress: u8,
    ) -> Result<BlockVersions, BlockVersionsError> {
        if block_bytes == 0 || !block_bytes.is_multiple_of(UNIT_BYTES) {
            return Err(BlockVersionsError::Unit);
        }
        let memory = blocks.saturating_mul(8);
        let mut states = Vec::new();
        if memory > BLOCK_VERSIONS_BYTES_MAX || states.try_reserve_exact(blocks as usize).is_err() {
            return Err(BlockVersionsError::TooLarge(memory));
        }
        states.resize_with(blocks as usize, AtomicU64::default);
        let zeros_from = (UNIT - UNIT * usize::from(compress.min(100)) / 100).clamp(FILLER, CHECKSUM);
        Ok(BlockVersions { offset, block_bytes, seed, run, zeros_from, blocks: states })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// A block's offset on the target, in bytes.
    pub fn address(&self, block: u64) -> u64 {
        self.offset + block * u64::from(self.block_bytes)
    }

    /// Begins a write of the block; `None`: another operation on it is in progress.
    pub fn begin_write(&self, block: u64) -> Option<Writing> {
        let next = |before: u64| {
            if before & state::WRITER != 0 || state::readers(before) > 0 {
                return None;
            }
            let version = state::newest(before).checked_add(1).expect("no block is written so often");
            // Until the write has succeeded, the previously valid versions stay valid.
            Some(state::settled(version, state::doubt(before) + 1) | state::WRITER)
        };
        let before = self.state(block).fetch_update(Ordering::Acquire, Ordering::Relaxed, next).ok()?;
        Some(Writing { block, version: state::newest(before) + 1 })
    }

    /// Ends the write: acknowledged, or failed but possibly done nevertheless.
    pub fn end_write(&self, writing: Writing, is_acknowledged: bool) {
        let state = self.state(writing.block);
        let before = state.load(Ordering::Relaxed);
        let after = match is_acknowledged {
            true => state::settled(writing.version, 0),
            false => before & !state::WRITER,
        };
        assert!(before & state::WRITER != 0, "a write that ends has begun");
        state.store(after, Ordering::Release);
    }

    /// Begins a read of the block; `None`: a write of it is in progress.
    pub fn begin_read(&self, block: u64) -> Option<Reading> {
        let next = |before: u64| {
            let is_free = before & state::WRITER == 0 && state::readers(before) < state::READERS_MAX;
            is_free.then_some(before + state::READER)
        };
        let before = self.state(block).fetch_update(Ordering::Acquire, Ordering::Relaxed, next).ok()?;
        let newest = state::newest(before);
        let oldest = newest.saturating_sub(state::doubt(before) as u32);
        Some(Reading { block, oldest, newest })
    }

    /// Ends the read, successful or not.
    pub fn end_read(&self, reading: Reading) {
        let before = self.state(reading.block).fetch_sub(state::READER, Ordering::Release);
        assert!(state::readers(before) > 0, "a read that ends has begun");
    }

    /// Whether a write of the block was ever begun.
    pub fn is_written(&self, block: u64) -> bool {
        state::newest(self.state(block).load(Ordering::Relaxed)) != 0
    }

    /// Fills a buffer with the content to write, starting at byte `from` of the block: whole units.
    pub fn fill(&self, writing: Writing, from: u32, bytes: &mut [u8]) {
        let mut address = self.address(writing.block) + u64::from(from);
        for unit in bytes.chunks_exact_mut(UNIT) {
            self.fill_unit(writing.version, address, unit);
            address += u64::from(UNIT_BYTES);
        }
    }

    fn fill_unit(&self, version: u32, address: u64, unit: &mut [u8]) {
        unit[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        unit[4..8].copy_from_slice(&version.to_le_bytes());
        unit[8..16].copy_from_slice(&address.to_le_bytes());
        unit[16..24].copy_from_slice(&self.seed.to_le_bytes());
        unit[24..32].copy_from_slice(&self.run.to_le_bytes());
        let mut mixed = self.seed ^ address.rotate_left(32) ^ u64::from(version);
        let (filler, zeros) = unit[FILLER..CHECKSUM].split_at_mut(self.zeros_from - FILLER);
        for word in filler.chunks_mut(8) {
            word.copy_from_slice(&splitmix(&mut mixed).to_le_bytes()[..word.len()]);
        }
        zeros.fill(0);
        let sum = crc32c(&unit[..CHECKSUM]);
        unit[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Begins to check what a read found.
    pub fn check(&self, reading: Reading) -> Check<'_> {
        Check { block_versions: self, reading, address: self.address(reading.block), seen: Seen::default() }
    }

    fn state(&self, block: u64) -> &AtomicU64 {
        &self.blocks[block as usize]
    }

    fn classify(&self, address: u64, unit: &[u8]) -> Unit {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| unit[at + n]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| unit[at + n]));
        if word(0) != MAGIC {
            return Unit::Foreign;
        }
        if word(CHECKSUM) != crc32c(&unit[..CHECKSUM]) {
            return Unit::Broken;
        }
        if (long(16), long(24)) != (self.seed, self.run) {
            return Unit::Foreign;
        }
        match long(8) {
            found if found == address => Unit::Version(word(4)),
            found => Unit::Misplaced(found),
        }
    }
}

/// One unit as found.
enum Unit {
    Version(u32),
    Misplaced(u64),
    /// Not written by this run.
    Foreign,
    /// Its checksum is wrong.
    Broken,
}

/// The check of one block, piece by piece.
pub struct Check<'a> {
    block_versions: &'a BlockVersions,
    reading: Reading,
    address: u64,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    /// The lowest and the highest version.
    versions: Option<(u32, u32)>,
    misplaced: Option<u64>,
    foreign: bool,
    broken: bool,
}

impl Check<'_> {
    /// Checks the next piece: whole units.
    pub fn add(&mut self, bytes: &[u8]) {
        if self.reading.newest == 0 {
            return;
        }
        for unit in bytes.chunks_exact(UNIT) {
            match self.block_versions.classify(self.address, unit) {
                Unit::Version(version) => {
                    let (low, high) = self.seen.versions.unwrap_or((version, version));
                    self.seen.versions = Some((low.min(version), high.max(version)));
                }
                Unit::Misplaced(belongs) => self.seen.misplaced = Some(belongs),
                Unit::Foreign => self.seen.foreign = true,
                Unit::Broken => self.seen.broken = true,
            }
            self.address += u64::from(UNIT_BYTES);
        }
    }

    /// The verdict on the block, once all of it was checked.
    pub fn verdict(&self) -> Verdict {
        let Reading { oldest, newest, .. } = self.reading;
        let first_may_be_missing = oldest == 0;
        let Seen { versions, misplaced, foreign, broken } = self.seen;
        match (newest, misplaced, versions) {
            (0, ..) => Verdict::Unknown,
            _ if broken => Verdict::Torn,
            (_, Some(belongs), _) => Verdict::Misplaced { belongs },
            (_, None, None) if first_may_be_missing => Verdict::Good,
            (_, None, None) => Verdict::Lost,
            (_, None, Some(_)) if foreign && !first_may_be_missing => Verdict::Torn,
            (_, None, Some((low, high))) if low >= oldest && high <= newest => Verdict::Good,
            (_, None, Some((low, high))) if low == high && low < oldest => {
                Verdict::Stale { found: low, wanted: oldest }
            }
            (_, None, Some(_)) => Verdict::Torn,
        }
    }
}

/// The next number of a pseudorandom sequence (splitmix64).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 4 * UNIT;

    fn block_versions() -> BlockVersions {
        BlockVersions::new(4096, BLOCK as u32, 8, 7, 99, 0).unwrap()
    }

    /// An acknowledged write; returns what it wrote.
    fn write(block_versions: &BlockVersions, block: u64) -> Vec<u8> {
        let writing = block_versions.begin_write(block).unwrap();
        let mut bytes = vec![0; BLOCK];
        block_versions.fill(writing, 0, &mut bytes[..UNIT]);
        block_versions.fill(writing, UNIT_BYTES, &mut bytes[UNIT..]);
        block_versions.end_write(writing, true);
        bytes
    }

    fn read(block_versions: &BlockVersions, block: u64, bytes: &[u8]) -> Verdict {
        let reading = block_versions.begin_read(block).unwrap();
        let mut check = block_versions.check(reading);
        bytes.chunks(2 * UNIT).for_each(|piece| check.add(piece));
        block_versions.end_read(reading);
        check.verdict()
    }

    #[test]
    fn every_way_of_being_wrong_has_its_word() {
        let block_versions = block_versions();
        let other = write(&block_versions, 4);
        assert_eq!(read(&block_versions, 3, &[5; BLOCK]), Verdict::Unknown);
        let first = write(&block_versions, 3);
        assert_eq!(read(&block_versions, 3, &first), Verdict::Good);
        assert_eq!(read(&block_versions, 3, &[0; BLOCK]), Verdict::Lost);
        let second = write(&block_versions, 3);
        assert_eq!(read(&block_versions, 3, &second), Verdict::Good);
        assert_eq!(read(&block_versions, 3, &first), Verdict::Stale { found: 1, wanted: 2 });
        assert_eq!(read(&block_versions, 3, &[9; BLOCK]), Verdict::Lost);
        assert!(
            matches!(read(&block_versions, 3, &other), Verdict::Misplaced { belongs } if belongs >= 4096 + 4 * 2048)
        );
        let mixed = [&second[..UNIT], &first[UNIT..]].concat();
        assert_eq!(read(&block_versions, 3, &mixed), Verdict::Torn);
        let half = [&second[..UNIT], &vec![0; BLOCK - UNIT]].concat();
        assert_eq!(read(&block_versions, 3, &half), Verdict::Torn);
        for bit in (0..BLOCK * 8).step_by(37) {
            let mut flipped = second.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&block_versions, 3, &flipped), Verdict::Torn, "bit {bit}");
        }
    }

    #[test]
    fn what_an_earlier_run_wrote_is_not_ours() {
        let earlier = BlockVersions::new(4096, BLOCK as u32, 8, 7, 98, 0).unwrap();
        let theirs = write(&earlier, 0);
        let block_versions = block_versions();
        let ours = write(&block_versions, 0);
        assert_eq!(read(&block_versions, 0, &theirs), Verdict::Lost);
        assert_eq!(read(&block_versions, 0, &[&ours[..UNIT], &theirs[UNIT..]].concat()), Verdict::Torn);
    }

    #[test]
    fn a_write_excludes_all_and_reads_exclude_writes() {
        let block_versions = block_versions();
        let writing = block_versions.begin_write(1).unwrap();
        assert!(block_versions.begin_write(1).is_none() && block_versions.begin_read(1).is_none());
        block_versions.end_write(writing, true);
        let readings = [block_versions.begin_read(1).unwrap(), block_versions.begin_read(1).unwrap()];
        assert!(block_versions.begin_write(1).is_none());
        assert!(block_versions.begin_write(2).is_some(), "another block is not concerned");
        readings.into_iter().for_each(|reading| block_versions.end_read(reading));
        assert!(block_versions.begin_write(1).is_some());
        assert!(block_versions.is_written(1) && !block_versions.is_written(3));
    }

    #[test]
    fn a_write_that_failed_leaves_all_since_the_last_good_one() {
        let block_versions = block_versions();
        let tried = |block| {
            let writing = block_versions.begin_write(block).unwrap();
            let mut bytes = vec![0; BLOCK];
            block_versions.fill(writing, 0, &mut bytes);
            block_versions.end_write(writing, false);
            bytes
        };
        let first = tried(0);
        assert_eq!(read(&block_versions, 0, &[0; BLOCK]), Verdict::Good, "it may not have been done");
        assert_eq!(read(&block_versions, 0, &first), Verdict::Good);
        let (old, good) = (write(&block_versions, 0), write(&block_versions, 0));
        let failed = [tried(0), tried(0)];
        assert!(failed.iter().chain([&good]).all(|bytes| read(&block_versions, 0, bytes) == Verdict::Good));
        let half = [&failed[1][..UNIT], &good[UNIT..]].concat();
        assert_eq!(read(&block_versions, 0, &half), Verdict::Good, "it may have been done in part");
        assert_eq!(read(&block_versions, 0, &old), Verdict::Stale { found: 2, wanted: 3 });
        assert_eq!(read(&block_versions, 0, &[0; BLOCK]), Verdict::Lost);
        let last = write(&block_versions, 0);
        assert_eq!(read(&block_versions, 0, &last), Verdict::Good);
        assert_eq!(read(&block_versions, 0, &failed[1]), Verdict::Stale { found: 5, wanted: 6 });
    }

    #[test]
    fn filler_ends_in_zeros_as_asked() {
        let zeros = |compress| {
            let block_versions = BlockVersions::new(0, 512, 1, 1, 1, compress).unwrap();
            let mut unit = [1; UNIT];
            block_versions.fill(block_versions.begin_write(0).unwrap(), 0, &mut unit);
            unit[..CHECKSUM].iter().rev().take_while(|&&byte| byte == 0).count()
        };
        assert!(zeros(0) < 4);
        assert!((252..256).contains(&zeros(50)));
        assert!(zeros(100) >= CHECKSUM - FILLER);
    }

    #[test]
    fn impossible_block_versions_are_refused() {
        let error = |block_bytes, blocks| BlockVersions::new(0, block_bytes, blocks, 0, 0, 0).err();
        assert_eq!(error(0, 1), Some(BlockVersionsError::Unit));
        assert_eq!(error(513, 1), Some(BlockVersionsError::Unit));
        assert_eq!(error(512, u64::MAX), Some(BlockVersionsError::TooLarge(u64::MAX)));
        assert_eq!(
            error(512, BLOCK_VERSIONS_BYTES_MAX / 8 + 1),
            Some(BlockVersionsError::TooLarge(BLOCK_VERSIONS_BYTES_MAX + 8))
        );
    }
}
