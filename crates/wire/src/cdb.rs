//! Command descriptor blocks (SPC-4 section 4.2).

/// One command descriptor block as it arrived: 6 to 16 bytes, or up to [`Cdb::MAX`] with an extended-CDB header
/// segment. Bytes past the end read as zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cdb {
    bytes: [u8; Cdb::MAX],
    len: u8,
}

impl Cdb {
    /// The longest CDB taken, in bytes (variable-length CDBs in use end at 32).
    pub const MAX: usize = 64;

    /// Takes the CDB; `None` when it is longer than [`Cdb::MAX`].
    pub fn from_bytes(cdb: &[u8]) -> Option<Cdb> {
        let mut bytes = [0; Cdb::MAX];
        bytes.get_mut(..cdb.len())?.copy_from_slice(cdb);
        Some(Cdb { bytes, len: u8::try_from(cdb.len()).ok()? })
    }

    /// The CDB's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The operation code.
    pub fn opcode(&self) -> u8 {
        self.u8(0)
    }

    /// Byte `at`, zero past the end.
    pub fn u8(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    /// Big-endian 16 bits at `at`.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    /// Big-endian 32 bits at `at`.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    /// Big-endian 64 bits at `at`.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        for (slot, byte) in out.iter_mut().zip(self.bytes.iter().skip(at)) {
            *slot = *byte;
        }
        out
    }
}
