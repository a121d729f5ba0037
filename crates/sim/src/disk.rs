//! A file's content: what reads find, and what would remain after a power failure.

use crate::register::{BLOCK_BYTES, STAMP_BYTES};
use fastrand::Rng;
use proto::time::Time;
use reactor::io::{Errno, Handle};
use std::collections::BTreeSet;

pub(crate) const EINTR: Errno = Errno(4);
const EIO: Errno = Errno(5);
const ENXIO: Errno = Errno(6);
pub(crate) const EAGAIN: Errno = Errno(11);
pub(crate) const ENOMEM: Errno = Errno(12);
const ENOSPC: Errno = Errno(28);
const ESTALE: Errno = Errno(116);
const EDQUOT: Errno = Errno(122);

/// Where a file's bytes are cached until they are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cache {
    /// In the system's page cache: pages that it fails to write back become clean, and the next sync of the
    /// open file gets the error, once (fsync(2)).
    Pages,
    /// In a disk's cache: a failed sync may lose its content, which reads find until the power fails.
    Disk,
    /// In a device's cache, which keeps its content when a sync fails.
    Device,
}

/// How likely disk failures are: each in 1000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    /// A read or a write.
    pub(crate) transfer: u32,
    pub(crate) sync: u32,
    /// Writing back after a write, for which nobody waits.
    pub(crate) write_back: u32,
    /// A request hangs for seconds.
    pub(crate) hang: u32,
}

impl Faults {
    /// Half of all disks never fail.
    pub(crate) fn draw(rng: &mut Rng) -> Faults {
        if rng.bool() {
            return Faults { hang: [0, 0, 0, 1][rng.usize(0..4)], ..Faults::NONE };
        }
        Faults {
            transfer: [0, 0, 5, 50][rng.usize(0..4)],
            sync: [0, 50, 300][rng.usize(0..3)],
            write_back: [0, 0, 5][rng.usize(0..3)],
            hang: 0,
        }
    }

    pub(crate) const NONE: Faults = Faults { transfer: 0, sync: 0, write_back: 0, hang: 0 };

    /// Whether anything can be lost or fail.
    pub(crate) fn can_fail(self) -> bool {
        self.transfer + self.sync + self.write_back > 0
    }
}

/// Identifies the write that a block's bytes belong to.
pub(crate) type Stamp = [u8; STAMP_BYTES];

/// A block whose bytes will not become durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Loss {
    pub(crate) unit: usize,
    pub(crate) block: usize,
    /// What is lost, and what is durable.
    pub(crate) lost: Stamp,
    pub(crate) left: Stamp,
    /// Reads find the durable bytes from now on.
    pub(crate) is_gone: bool,
}

/// A set of a file's blocks, as a bitmap.
#[derive(Clone, Debug)]
pub(crate) struct Blocks(Vec<u64>);

impl Blocks {
    fn none_of(size_bytes: usize) -> Blocks {
        Blocks(vec![0; size_bytes.div_ceil(64 * BLOCK_BYTES as usize)])
    }

    fn insert(&mut self, block: usize) {
        self.0[block / 64] |= 1 << (block % 64);
    }

    fn insert_all(&mut self, blocks: std::ops::Range<usize>) {
        bit_words(blocks).for_each(|(word, bits)| self.0[word] |= bits);
    }

    fn remove_all(&mut self, blocks: std::ops::Range<usize>) {
        bit_words(blocks).for_each(|(word, bits)| self.0[word] &= !bits);
    }

    fn has(&self, block: usize) -> bool {
        self.0[block / 64] & 1 << (block % 64) != 0
    }

    /// Whether the block was in the set.
    fn remove(&mut self, block: usize) -> bool {
        let (word, bit) = (&mut self.0[block / 64], 1 << (block % 64));
        let was_there = *word & bit != 0;
        *word &= !bit;
        was_there
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn clear(&mut self) {
        self.0.fill(0);
    }

    /// In ascending order.
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
                rest &= rest - 1;
                Some(64 * index + bit)
            })
        })
    }
}

/// The words that contain these bits, with masks.
fn bit_words(bits: std::ops::Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let below = |bit: usize| if bit < 64 { (1 << bit) - 1 } else { u64::MAX };
    let of_word = move |word: usize| {
        let [from, to] = [bits.start, bits.end].map(|bit| bit.saturating_sub(64 * word));
        (word, below(to) & !below(from))
    };
    (bits.start / 64..bits.end.div_ceil(64)).map(of_word)
}

/// A file's bytes.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) unit: usize,
    cache: Cache,
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks that are not durable.
    dirty: Blocks,
    /// Allocated blocks.
    mapped: Blocks,
    /// Blocks that are not durable either, but are no longer written back.
    lost: BTreeSet<usize>,
    /// Something was lost, and no sync has reported it.
    has_lost: bool,
    /// When a sync first reported a loss to this process.
    said: Option<Time>,
}

impl Disk {
    pub(crate) fn new(unit: usize, cache: Cache, size_bytes: usize) -> Disk {
        let zeros = || vec![0; size_bytes];
        let none = || Blocks::none_of(size_bytes);
        let (dirty, mapped, lost) = (none(), none(), BTreeSet::new());
        let (bytes, durable) = (zeros(), zeros());
        Disk { unit, cache, bytes, durable, dirty, mapped, lost, has_lost: false, said: None }
    }

    pub(crate) fn read(&self, at: u64, len: u32) -> &[u8] {
        &self.bytes[at as usize..][..len as usize]
    }

    /// The bytes, to be written by the caller now.
    pub(crate) fn write(&mut self, at: u64, len: u32) -> &mut [u8] {
        let blocks = blocks(at, len);
        if !self.lost.is_empty() {
            blocks.clone().for_each(|block| _ = self.lost.remove(&block));
        }
        self.dirty.insert_all(blocks.clone());
        self.mapped.insert_all(blocks);
        &mut self.bytes[at as usize..][..len as usize]
    }

    /// Makes them durable when the write ends (RWF_DSYNC); the write gets the error of earlier losses.
    pub(crate) fn write_through(&mut self, now: Time, at: u64, len: u32) -> Result<(), Errno> {
        self.keep(blocks(at, len));
        self.ends_sync(now)
    }

    /// Makes this range read as zeros; with `punches`, it is also deallocated.
    pub(crate) fn clear(&mut self, at: u64, len: u64, punches: bool) {
        self.write(at, len as u32).fill(0);
        if punches {
            self.mapped.remove_all(blocks(at, len as u32));
        }
    }

    /// Whether the block there is allocated, and where that extent ends.
    pub(crate) fn extent(&self, at: u64) -> (bool, u64) {
        let (first, count) = (at as usize / BLOCK_BYTES as usize, self.bytes.len() / BLOCK_BYTES as usize);
        let is_mapped = self.mapped.has(first);
        let end = (first..count).find(|block| self.mapped.has(*block) != is_mapped).unwrap_or(count);
        (is_mapped, (end * BLOCK_BYTES as usize) as u64)
    }

    /// The blocks that a sync beginning now makes durable.
    pub(crate) fn dirty(&self) -> Blocks {
        self.dirty.clone()
    }

    /// Makes these blocks durable in their current state.
    fn keep(&mut self, blocks: impl Iterator<Item = usize>) {
        for block in blocks {
            if self.dirty.remove(block) {
                let range = range(block);
                self.durable[range.clone()].copy_from_slice(&self.bytes[range]);
            }
        }
    }

    fn ends_sync(&mut self, now: Time) -> Result<(), Errno> {
        if std::mem::take(&mut self.has_lost) {
            self.said.get_or_insert(now);
            return Err(EIO);
        }
        Ok(())
    }

    /// A sync of these blocks ends.
    pub(crate) fn synced(&mut self, now: Time, blocks: &Blocks) -> Result<(), Errno> {
        self.keep(blocks.iter());
        self.ends_sync(now)
    }

    /// The same for a failed sync.
    pub(crate) fn sync_failed(
        &mut self,
        now: Time,
        rng: &mut Rng,
        blocks: &Blocks,
        losses: &mut Vec<Loss>,
    ) -> Errno {
        if self.cache != Cache::Device {
            let lost: Vec<usize> = blocks.iter().filter(|_| rng.bool()).collect();
            self.lose(rng, &lost, losses);
            self.keep(blocks.iter());
        }
        self.has_lost = false;
        self.said.get_or_insert(now);
        [EIO, EIO, ENOSPC, EDQUOT, ESTALE][rng.usize(0..5)]
    }

    /// Writing back fails, which the next sync reports.
    pub(crate) fn write_back_fails(&mut self, rng: &mut Rng, losses: &mut Vec<Loss>) {
        if self.cache == Cache::Pages && !self.dirty.is_empty() {
            let lost: Vec<usize> = self.dirty.iter().filter(|_| rng.u8(0..4) == 0).collect();
            self.has_lost |= !lost.is_empty();
            self.lose(rng, &lost, losses);
        }
    }

    /// These are not written back, and reads find them as they were until the memory is needed for something
    /// else.
    fn lose(&mut self, rng: &mut Rng, blocks: &[usize], losses: &mut Vec<Loss>) {
        let fresh: Vec<usize> = blocks.iter().copied().filter(|block| self.dirty.remove(*block)).collect();
        self.lost.extend(&fresh);
        let leaves = |_: &usize| self.cache == Cache::Pages && rng.bool();
        let gone: Vec<usize> = self.lost.iter().copied().filter(leaves).collect();
        let stays = fresh.iter().copied().filter(|block| !gone.contains(block));
        losses.extend(stays.map(|block| self.loss(block, false)));
        for block in gone {
            losses.push(self.loss(block, true));
            self.lost.remove(&block);
            self.mapped.insert(block);
            let range = range(block);
            self.bytes[range.clone()].copy_from_slice(&self.durable[range]);
        }
    }

    fn loss(&self, block: usize, is_gone: bool) -> Loss {
        let stamp = |bytes: &[u8]| {
            let mut stamp = [0; STAMP_BYTES];
            stamp.copy_from_slice(&bytes[range(block)][..STAMP_BYTES]);
            stamp
        };
        Loss { unit: self.unit, block, lost: stamp(&self.bytes), left: stamp(&self.durable), is_gone }
    }

    /// When a sync first reported a loss to its process.
    pub(crate) fn said(&self) -> Option<Time> {
        self.said
    }

    /// Its process ends. Returns when a sync first reported a loss to it, which no other process gets.
    pub(crate) fn is_left(&mut self) -> Option<Time> {
        self.said.take()
    }

    /// The power fails: any part of what is not durable may have been written nevertheless. The rest is lost.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) -> Vec<Loss> {
        let survivors: Vec<usize> = self.dirty.iter().filter(|_| rng.bool()).collect();
        self.keep(survivors.into_iter());
        let lost: BTreeSet<usize> = self.dirty.iter().chain(self.lost.iter().copied()).collect();
        let losses = lost.iter().map(|block| self.loss(*block, true)).collect();
        lost.into_iter().for_each(|block| self.mapped.insert(block));
        self.dirty.clear();
        self.lost.clear();
        self.has_lost = false;
        self.bytes.copy_from_slice(&self.durable);
        losses
    }
}

/// The disk that this file is on.
pub(crate) fn disk_of(disks: &mut [(Handle, Disk)], file: Handle) -> &mut Disk {
    let disk = disks.iter_mut().find(|(handle, _)| *handle == file);
    disk.map(|(_, disk)| disk).expect("a file that is open")
}

/// The same, read-only.
pub(crate) fn disk_at(disks: &[(Handle, Disk)], file: Handle) -> &Disk {
    let disk = disks.iter().find(|(handle, _)| *handle == file);
    disk.map(|(_, disk)| disk).expect("a file that is open")
}

/// The error of a failed read or write.
pub(crate) fn transfer_error(rng: &mut Rng, writes: bool) -> Errno {
    const READ_ERRORS: [Errno; 6] = [EIO, EIO, EINTR, EAGAIN, ENXIO, ENOMEM];
    const WRITE_ERRORS: [Errno; 8] = [EIO, EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, ESTALE, ENOMEM];
    if writes {
        WRITE_ERRORS[rng.usize(0..WRITE_ERRORS.len())]
    } else {
        READ_ERRORS[rng.usize(0..READ_ERRORS.len())]
    }
}

fn blocks(at: u64, len: u32) -> std::ops::Range<usize> {
    let block = BLOCK_BYTES as usize;
    at as usize / block..(at as usize + len as usize).div_ceil(block)
}

fn range(block: usize) -> std::ops::Range<usize> {
    block * BLOCK_BYTES as usize..(block + 1) * BLOCK_BYTES as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_allocated_until_it_is_punched_and_again_when_that_is_undone() {
        let blocks = 130;
        let mut disk = Disk::new(0, Cache::Pages, blocks * BLOCK_BYTES as usize);
        let at = |block: u64| block * u64::from(BLOCK_BYTES);
        assert_eq!(disk.extent(0), (false, at(130)));
        disk.write(at(60), 70 * BLOCK_BYTES).fill(1);
        assert_eq!([disk.extent(0), disk.extent(at(60))], [(false, at(60)), (true, at(130))]);
        let all = disk.dirty();
        disk.synced(Time(1), &all).unwrap();
        disk.clear(at(64), at(10), true);
        disk.clear(at(80), at(1), false);
        disk.write(at(70), 0);
        assert_eq!([disk.extent(at(63)), disk.extent(at(64))], [(true, at(64)), (false, at(74))]);
        assert_eq!(disk.extent(at(74)), (true, at(130)));
        let before = disk.dirty();
        let losses = disk.lose_power(&mut Rng::with_seed(1));
        assert!(!losses.is_empty() && losses.len() < before.iter().count());
        for loss in losses {
            assert!(disk.extent(at(loss.block as u64)).0, "what holds something again is allocated");
        }
    }
}
