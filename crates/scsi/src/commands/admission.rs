//! What is checked of a command while its program is created.

use crate::state::limits::{Range, TRANSFER_BYTES_MAX};
use crate::state::nexus::NexusUnit;
use crate::state::unit::View;
use crate::vocabulary::command::Request;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::{Read10, Write10};

/// What is available while a command's program is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    /// The unit.
    pub(crate) view: &'a View,
    /// The nexus.
    pub(crate) nexus: &'a NexusUnit,
    /// The command.
    pub(crate) request: &'a Request<'a>,
}

impl Admission<'_> {
    /// The CDB.
    pub(crate) fn cdb(&self) -> &Cdb {
        self.request.cdb
    }

    /// The unit's block size.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.view.policy.block_bytes
    }

    /// RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT must be zero: the medium is not formatted with protection
    /// information (SBC-3 section 4.22).
    pub(crate) fn check_protect(&self) -> Result<(), Check> {
        if self.cdb().get(Read10::PROTECT) == 0 { Ok(()) } else { Err(Check::cdb_field(Read10::PROTECT)) }
    }

    /// The range of a transfer and its length in bytes; `length_byte` is where the CDB's length field is.
    pub(crate) fn transfer(&self, lba: u64, blocks: u32, length_byte: u16) -> Result<(Range, u32), Failure> {
        let range = self.view.range(lba, u64::from(blocks))?;
        match u32::try_from(range.len) {
            Ok(len) if len <= TRANSFER_BYTES_MAX => Ok((range, len)),
            _ => Err(Check::cdb_byte(length_byte).into()),
        }
    }

    /// How many of `total` bytes of data-out to transfer: less if the initiator sends less, but whole blocks.
    pub(crate) fn blocks_out(&self, total: u32) -> Result<u32, Failure> {
        let coming = total.min(self.request.write_bytes);
        match coming.checked_rem(self.block_bytes()) {
            Some(0) => Ok(coming),
            _ => Err(Failure::DataOut { taken: total }),
        }
    }

    /// FUA of a write: durable before it ends, whether or not the write cache is on.
    pub(crate) fn is_forced(&self) -> bool {
        self.cdb().get(Write10::FUA)
    }
}
