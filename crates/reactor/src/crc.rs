//! CRC32C, the digest of iSCSI (RFC 7143 section 13.1) and MPA.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C of some bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// A CRC32C over pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crc32c {
    state: u32,
}

impl Crc32c {
    /// The sum of nothing.
    pub const START: Crc32c = Crc32c { state: u32::MAX };

    /// Continues after bytes that have this sum.
    pub fn after(value: u32) -> Crc32c {
        Crc32c { state: !value }
    }

    /// Adds the next piece.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.state));
        digest.update(bytes);
        self.state = digest.get_state() as u32;
    }

    /// The sum of all pieces.
    pub fn value(self) -> u32 {
        !self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 appendix A.4 (as RFC 3720 B.4) gives these examples.
    #[test]
    fn the_standards_examples() {
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    #[test]
    fn pieces_sum_to_the_whole() {
        let bytes: Vec<u8> = (0..70_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        for cut in [0, 1, 15, 16, 255, 4096, 65_537, bytes.len()] {
            let mut sum = Crc32c::START;
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            assert_eq!(sum.value(), crc32c(&bytes), "cut at {cut}");
            let mut rest = Crc32c::after(crc32c(&bytes[..cut]));
            rest.add(&bytes[cut..]);
            assert_eq!(rest.value(), crc32c(&bytes), "cut at {cut}");
        }
    }
}
