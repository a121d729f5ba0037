//! What a unit says of itself: a disk of 512-byte blocks. Everything is fixed but for its size.

use super::BLOCK_BYTES;

/// Bytes of the longest answer: a page of block limits.
const ANSWER_BYTES: usize = 64;

/// The answer to a command with which a unit is opened.
pub(super) struct Answer {
    data: [u8; ANSWER_BYTES],
    len: usize,
}

impl Answer {
    fn new(begin: &[u8], len: usize) -> Answer {
        let mut data = [0; ANSWER_BYTES];
        data[..begin.len()].copy_from_slice(begin);
        Answer { data, len }
    }

    fn at(mut self, place: usize, bytes: &[u8]) -> Answer {
        self.data[place..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Its first bytes, at most so many.
    pub(super) fn data(&self, max: usize) -> &[u8] {
        &self.data[..self.len.min(max)]
    }
}

/// The answer and how much of it the CDB allows, for a unit of so many blocks; `None`: a command like any other.
pub(super) fn answer(cdb: &[u8; 16], blocks: u64) -> Option<(Answer, usize)> {
    let last = blocks.saturating_sub(1);
    let allocation =
        |at: usize, len: usize| cdb[at..][..len].iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    match (cdb[0], cdb[1] & 0x1f) {
        (0x12, evpd) => Some((inquiry(evpd & 1 == 1, cdb[2]), allocation(3, 2))),
        (0x1a, _) => {
            // Caching page: WCE. The device takes FUA (SBC-4 section 6.5.6).
            Some((Answer::new(&[23, 0, 0x10, 0, 0x08, 0x12, 0x04], 24), allocation(4, 1)))
        }
        (0x5a, _) => {
            Some((Answer::new(&[0, 26, 0, 0x10, 0, 0, 0, 0, 0x08, 0x12, 0x04], 28), allocation(7, 2)))
        }
        (0x25, _) => {
            let last = u32::try_from(last).unwrap_or(u32::MAX);
            Some((Answer::new(&last.to_be_bytes(), 8).at(4, &BLOCK_BYTES.to_be_bytes()), 8))
        }
        (0x9e, 0x10) => {
            let capacity = Answer::new(&last.to_be_bytes(), 32).at(8, &BLOCK_BYTES.to_be_bytes());
            // Eight blocks in a physical one; LBPME and LBPRZ.
            Some((capacity.at(13, &[3, 0xc0]), allocation(10, 4)))
        }
        // REPORT LUNS: every number is a LUN; LUN 0 is reported.
        (0xa0, _) => Some((Answer::new(&[0, 0, 0, 8], 16), allocation(6, 4))),
        _ => None,
    }
}

/// INQUIRY (SPC-4 section 6.6), and its pages (section 7.8; SBC-4 section 6.6).
fn inquiry(vital: bool, page: u8) -> Answer {
    match (vital, page) {
        (false, _) => {
            // SPC-4, response format 2, CmdQue.
            let standard = Answer::new(&[0, 0, 6, 2, 31, 0, 0, 2], 36);
            standard.at(8, b"LUNETTE Ceiling         0   ")
        }
        (true, 0x00) => Answer::new(&[0, 0x00, 0, 5, 0x00, 0x80, 0xb0, 0xb1, 0xb2], 9),
        (true, 0x80) => Answer::new(b"\0\x80\0\x07CEILING", 11),
        // UNMAP of any length, in up to 256 descriptors.
        (true, 0xb0) => Answer::new(&[0, 0xb0, 0, 60], 64).at(20, &[0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0]),
        // Not rotating.
        (true, 0xb1) => Answer::new(&[0, 0xb1, 0, 60, 0, 1], 64),
        // LBPU and LBPRZ; thin.
        (true, 0xb2) => Answer::new(&[0, 0xb2, 0, 4, 0, 0x84, 2], 8),
        (true, other) => Answer::new(&[0, other, 0, 0], 4),
    }
}
