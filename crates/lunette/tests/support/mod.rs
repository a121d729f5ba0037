//! What the integration tests share: the daemon as a process, other programs, and our own initiator.
#![allow(dead_code, reason = "every test crate uses its own part of this")]

pub mod aoe;
pub mod browser;
#[path = "../../../store/tests/support/ceph.rs"]
pub mod ceph;
pub mod conformance;
pub mod daemon;
pub mod disk;
#[path = "../../../store/tests/support/fuse.rs"]
pub mod fuse;
pub mod initiator;
pub mod limits;
pub mod load;
#[path = "../../../store/tests/support/nbd.rs"]
pub mod nbd;
pub mod net;
pub mod peer;
pub mod segment;
pub mod thread;
pub mod tools;
pub mod vblade;

use std::time::{Duration, Instant};

/// Waits for an event that nothing else reports; two minutes without it are a failure.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A small generator of reproducible noise (SplitMix64).
pub struct Noise(pub u64);

impl Noise {
    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// This many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}
