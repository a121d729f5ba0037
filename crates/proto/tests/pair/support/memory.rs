//! Memory that spans name, and how it is filled and summed.

use wire::{BufferId, Places, Span};

pub(crate) const MEMORY_BYTES: usize = 4 << 20;

/// Pseudorandom numbers from a seed (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }
}

/// Memory that spans name.
pub(crate) struct Memory {
    pub regions: [Vec<u8>; 2],
    /// Receives of both sides, in the buffers after those.
    receives: [Vec<u8>; 2],
}

impl Memory {
    /// Both regions filled with pseudorandom bytes.
    pub(crate) fn new(random: &mut Random) -> Memory {
        // A block of a prime length, repeated: no two sectors are the same.
        let mut region = || {
            let block: Vec<u8> = (0..32_749).map(|_| (random.next() >> 20) as u8).collect();
            let mut region = block.repeat(MEMORY_BYTES / block.len() + 1);
            region.truncate(MEMORY_BYTES);
            region
        };
        Memory { regions: [region(), region()], receives: [Vec::new(), Vec::new()] }
    }

    /// Copies between places of the same length.
    pub(crate) fn copy(&mut self, from: Places, to: Places) {
        assert_eq!(from.len(), to.len());
        let bytes: Vec<u8> = from.iter().flat_map(|span| self.at(span).to_vec()).collect();
        let mut rest = &bytes[..];
        for span in to.iter() {
            let (piece, after) = rest.split_at(span.len as usize);
            self.at(span).copy_from_slice(piece);
            rest = after;
        }
    }

    pub(crate) fn at(&mut self, span: Span) -> &mut [u8] {
        let [a, b] = &mut self.regions;
        let [c, d] = &mut self.receives;
        let from = span.offset as usize;
        &mut [a, b, c, d][span.buffer.0 as usize][from..from + span.len as usize]
    }

    /// The same, for reading.
    pub(crate) fn look(&self, span: Span) -> &[u8] {
        let [a, b] = &self.regions;
        let [c, d] = &self.receives;
        let from = span.offset as usize;
        &[a, b, c, d][span.buffer.0 as usize][from..from + span.len as usize]
    }

    /// Whether `len` bytes at `host` in the initiator's memory and at `disk` are the same.
    pub(crate) fn same(&self, host: u32, disk: u32, len: u32) -> bool {
        let (host, disk, len) = (host as usize, disk as usize, len as usize);
        let [a, b] = &self.regions;
        a[host..host + len] == b[disk..disk + len]
    }

    /// A new receive.
    pub(crate) fn grow(&mut self, buffer: BufferId, len: u32) -> Span {
        let receives = &mut self.receives[buffer.0 as usize - self.regions.len()];
        let offset = receives.len().next_multiple_of(64);
        receives.resize(offset + len as usize, 0);
        Span { buffer, offset: offset as u64, len }
    }
}

/// CRC32C.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_after(0, bytes)
}

/// CRC32C by table, of `bytes` after what has the sum `before`.
pub(crate) fn crc32c_after(before: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let mut crc = n as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ (0x82f6_3b78 * (crc & 1));
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    !bytes.iter().fold(!before, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize])
}
