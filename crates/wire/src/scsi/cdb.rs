//! Command descriptor blocks (SPC-4 section 4.2).

use super::Command;
use super::field::{Field, Value};

/// SERVICE ACTION, for operation codes that have them.
pub const SERVICE_ACTION: Field<u8> = Field::bits(1, 0x1f);

/// A command descriptor block as it arrived: 6 to 16 bytes, or up to [`Cdb::MAX`] with an extended-CDB header
/// segment. Bytes past the end read as zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cdb {
    bytes: [u8; Cdb::MAX],
    len: u8,
}

impl Cdb {
    /// The longest CDB accepted, in bytes (the longest variable-length CDBs in use have 32).
    pub const MAX: usize = 64;

    /// Copies the CDB; `None` when it is longer than [`Cdb::MAX`].
    #[inline]
    pub fn from_bytes(cdb: &[u8]) -> Option<Cdb> {
        let mut bytes = [0; Cdb::MAX];
        bytes.get_mut(..cdb.len())?.copy_from_slice(cdb);
        Some(Cdb { bytes, len: u8::try_from(cdb.len()).ok()? })
    }

    /// The CDB with these bytes after its operation code; the service action is merged into byte 1.
    pub(super) fn of(opcode: u8, action: Option<u8>, fields: &[u8]) -> Cdb {
        let mut bytes = [0; Cdb::MAX];
        bytes.iter_mut().zip(fields).for_each(|(slot, byte)| *slot = *byte);
        let [code, flags, ..] = &mut bytes;
        *code = opcode;
        *flags |= action.unwrap_or(0);
        Cdb { bytes, len: u8::try_from(fields.len()).unwrap_or(0) }
    }

    /// The CDB's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The first 16 bytes, as many as iSCSI and SRP headers hold, zero-padded.
    #[inline]
    pub fn basic(&self) -> &[u8; 16] {
        self.bytes.first_chunk().unwrap_or(&[0; 16])
    }

    /// The operation code.
    #[inline]
    pub fn opcode(&self) -> u8 {
        let [opcode, ..] = self.bytes;
        opcode
    }

    /// Reads a field, zero past the end.
    #[inline]
    pub fn get<T: Value>(&self, field: Field<T>) -> T {
        field.get(&self.bytes).unwrap_or_default()
    }

    /// SERVICE ACTION, for operation codes that have them.
    #[inline]
    pub fn service_action(&self) -> u8 {
        self.get(SERVICE_ACTION)
    }

    /// Byte `at`, zero past the end, for layouts that are not fields.
    pub(crate) fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }
}

impl<C: Command> From<C> for Cdb {
    fn from(command: C) -> Cdb {
        command.to_cdb()
    }
}

impl From<&Cdb> for Cdb {
    fn from(cdb: &Cdb) -> Cdb {
        *cdb
    }
}

/// Raw bytes, for CDBs that are not a command.
impl<const N: usize> From<&[u8; N]> for Cdb {
    fn from(cdb: &[u8; N]) -> Cdb {
        const { assert!(N <= Cdb::MAX) };
        Cdb::from_bytes(cdb).unwrap_or(Cdb { bytes: [0; Cdb::MAX], len: 0 })
    }
}

impl AsRef<[u8]> for Cdb {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}
