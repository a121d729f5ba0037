//! What is in a file.

use reactor::io::Errno;

/// A file's bytes.
#[derive(Debug)]
pub(crate) struct Disk {
    bytes: Vec<u8>,
}

impl Disk {
    pub(crate) fn new(size_bytes: usize) -> Disk {
        Disk { bytes: vec![0; size_bytes] }
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[at as usize..][..into.len()]);
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn clear(&mut self, at: u64, len: u64) -> Result<u32, Errno> {
        self.bytes[at as usize..(at + len) as usize].fill(0);
        Ok(0)
    }
}
