//! What is in a file: what reads find, and what would be there if power failed.

use crate::register::BLOCK_BYTES;
use fastrand::Rng;
use reactor::io::Errno;
use std::collections::BTreeSet;

/// A file's bytes.
#[derive(Debug)]
pub(crate) struct Disk {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks that differ.
    dirty: BTreeSet<usize>,
}

impl Disk {
    pub(crate) fn new(size_bytes: usize) -> Disk {
        Disk { bytes: vec![0; size_bytes], durable: vec![0; size_bytes], dirty: BTreeSet::new() }
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[at as usize..][..into.len()]);
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8], durable: bool) {
        let at = at as usize;
        self.bytes[at..][..bytes.len()].copy_from_slice(bytes);
        let block = BLOCK_BYTES as usize;
        let blocks: Vec<usize> = (at / block..(at + bytes.len()).div_ceil(block)).collect();
        self.dirty.extend(&blocks);
        if durable {
            self.keep(&blocks);
        }
    }

    pub(crate) fn clear(&mut self, at: u64, len: u64) -> Result<u32, Errno> {
        self.write(at, &vec![0; len as usize], false);
        Ok(0)
    }

    /// What a sync that begins now makes durable.
    pub(crate) fn dirty(&self) -> Vec<usize> {
        self.dirty.iter().copied().collect()
    }

    /// These blocks become durable, as they are now.
    pub(crate) fn keep(&mut self, blocks: &[usize]) {
        for block in blocks.iter().filter(|block| self.dirty.remove(block)) {
            let range = block * BLOCK_BYTES as usize..(block + 1) * BLOCK_BYTES as usize;
            self.durable[range.clone()].copy_from_slice(&self.bytes[range]);
        }
    }

    /// Power fails: of what is not durable any part may have been written all the same.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        let kept: Vec<usize> = self.dirty.iter().copied().filter(|_| rng.bool()).collect();
        self.keep(&kept);
        self.dirty.clear();
        self.bytes.copy_from_slice(&self.durable);
    }
}
