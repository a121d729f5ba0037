//! Which commands count towards a unit's limits, and for how many bytes.

use crate::state::limits::TRANSFER_BYTES_MAX;
use crate::state::unit::View;
use crate::vocabulary::command::Request;
use crate::vocabulary::storage::CHUNK_BYTES;
use wire::Cdb;
use wire::ata::{Command, PassThrough, SECTOR_BYTES};
use wire::scsi::command::{Read6, Read10, Read12, Read16};
use wire::scsi::opcode;
use wire::scsi::opcode::service_action::extended_copy;

impl View {
    /// Bytes that a command transfers between initiator and unit, if it reads or changes the medium: such
    /// commands count towards limits. They are known before it is admitted, and an initiator that announces
    /// more than its CDB transfers does not use up what it shares with others.
    pub fn metered(&self, request: &Request<'_>) -> Option<u32> {
        let moved = request.read_bytes.max(request.write_bytes);
        let most = match request.cdb.opcode() {
            opcode::READ_6
            | opcode::READ_10
            | opcode::READ_12
            | opcode::READ_16
            | opcode::WRITE_6
            | opcode::WRITE_10
            | opcode::WRITE_12
            | opcode::WRITE_16
            | opcode::WRITE_AND_VERIFY_10
            | opcode::WRITE_AND_VERIFY_12
            | opcode::WRITE_AND_VERIFY_16
            | opcode::VERIFY_10
            | opcode::VERIFY_12
            | opcode::VERIFY_16
            | opcode::ORWRITE_16 => self.bytes_of(request.cdb),
            opcode::WRITE_ATOMIC_16
            | opcode::COMPARE_AND_WRITE
            | opcode::WRITE_SAME_10
            | opcode::WRITE_SAME_16
            | opcode::UNMAP => CHUNK_BYTES,
            opcode::EXTENDED_COPY => match request.cdb.service_action() {
                extended_copy::LID1 | extended_copy::LID4 => CHUNK_BYTES,
                _ => return None,
            },
            _ => ata_bytes(request.cdb)?,
        };
        Some(moved.min(most))
    }

    /// The length in bytes that a CDB specifies, if its number of blocks is at the usual place.
    fn bytes_of(&self, cdb: &Cdb) -> u32 {
        // CDBs of one length have the same fields.
        let blocks = match opcode::cdb_bytes(cdb.opcode()) {
            Some(6) => match cdb.get(Read6::BLOCKS) {
                0 => 256,
                blocks => u32::from(blocks),
            },
            Some(16) => cdb.get(Read16::BLOCKS),
            Some(12) => cdb.get(Read12::BLOCKS),
            _ => u32::from(cdb.get(Read10::BLOCKS)),
        };
        let bytes = u64::from(blocks).saturating_mul(u64::from(self.policy.block_bytes));
        let bytes = bytes.min(self.policy.traits.size_bytes).min(u64::from(TRANSFER_BYTES_MAX));
        u32::try_from(bytes).unwrap_or(TRANSFER_BYTES_MAX)
    }
}

/// The direction in which a command transfers blocks between initiator and medium, for counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It reads them.
    Read,
    /// It writes them.
    Write,
    /// It moves none.
    Other,
}

impl Direction {
    /// Of the command in a CDB.
    pub fn of(cdb: &Cdb) -> Direction {
        match cdb.opcode() {
            opcode::READ_6 | opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => Direction::Read,
            opcode::WRITE_6
            | opcode::WRITE_10
            | opcode::WRITE_12
            | opcode::WRITE_16
            | opcode::WRITE_AND_VERIFY_10
            | opcode::WRITE_AND_VERIFY_12
            | opcode::WRITE_AND_VERIFY_16
            | opcode::WRITE_ATOMIC_16
            | opcode::COMPARE_AND_WRITE
            | opcode::ORWRITE_16 => Direction::Write,
            _ => PassThrough::from_cdb(cdb)
                .and_then(|pass| pass.registers.command())
                .map_or(Direction::Other, Direction::of_ata),
        }
    }

    fn of_ata(command: Command) -> Direction {
        match command {
            Command::ReadSectors
            | Command::ReadSectorsExt
            | Command::ReadDma
            | Command::ReadDmaExt
            | Command::ReadMultiple
            | Command::ReadMultipleExt => Direction::Read,
            Command::WriteSectors
            | Command::WriteSectorsExt
            | Command::WriteDma
            | Command::WriteDmaExt
            | Command::WriteMultiple
            | Command::WriteMultipleExt
            | Command::WriteDmaFuaExt
            | Command::WriteMultipleFuaExt => Direction::Write,
            Command::ReadVerifySectors
            | Command::ReadVerifySectorsExt
            | Command::DataSetManagement
            | Command::FlushCache
            | Command::FlushCacheExt
            | Command::Standby
            | Command::StandbyImmediate
            | Command::IdentifyDevice
            | Command::SetFeatures
            | Command::SetMultipleMode
            | Command::CheckPowerMode
            | Command::Idle
            | Command::IdleImmediate
            | Command::ReadNativeMaxAddress
            | Command::ReadNativeMaxAddressExt
            | Command::Smart
            | Command::ReadLogExt => Direction::Other,
        }
    }
}

/// Bytes of an ATA command that counts, as ATA over Ethernet and ATA PASS-THROUGH carry it.
fn ata_bytes(cdb: &Cdb) -> Option<u32> {
    let PassThrough { registers, .. } = PassThrough::from_cdb(cdb)?;
    let command = registers.command()?;
    let counts = match Direction::of_ata(command) {
        Direction::Read | Direction::Write => true,
        Direction::Other => matches!(
            command,
            Command::ReadVerifySectors | Command::ReadVerifySectorsExt | Command::DataSetManagement
        ),
    };
    counts.then(|| registers.sectors().saturating_mul(SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use crate::testing::{BLOCK, Bench};
    use crate::vocabulary::command::{Attribute, Request};
    use wire::Cdb;
    use wire::scsi::command::{
        CopyOperationAbort, Inquiry, Read10, Read12, Read16, SynchronizeCache10, TestUnitReady, Unmap,
        Verify10, Write6, Write16,
    };
    use wire::scsi::opcode;

    fn metered(bench: &Bench, cdb: impl Into<Cdb>, read_bytes: u32, write_bytes: u32) -> Option<u32> {
        let cdb = cdb.into();
        bench.view.metered(&Request { cdb: &cdb, attribute: Attribute::Simple, read_bytes, write_bytes })
    }

    #[test]
    fn what_moves_data_counts_as_what_it_moves_and_nothing_else_counts() {
        let bench = Bench::new();
        let block = BLOCK as u32;
        assert_eq!(metered(&bench, Read10::new(0, 8), 8 * block, 0), Some(8 * block), "READ(10)");
        assert_eq!(metered(&bench, Read10::new(0, 8), 2 * block, 0), Some(2 * block), "an underflow");
        assert_eq!(metered(&bench, Read10::new(0, 8), u32::MAX, 0), Some(8 * block), "an overflow");
        assert_eq!(metered(&bench, Write6::new(0, 0), 0, u32::MAX), Some(256 * block), "WRITE(6)");
        assert_eq!(metered(&bench, Read12::new(0, 3), u32::MAX, 0), Some(3 * block), "READ(12)");
        let write_16 = Write16::new(0, 5);
        assert_eq!(metered(&bench, write_16, 0, u32::MAX), Some(5 * block));
        assert_eq!(metered(&bench, Verify10::new(0, 8), 0, 0), Some(0), "VERIFY without data");
        assert_eq!(metered(&bench, Unmap::new(24), 0, 24), Some(24), "UNMAP");
        let whole = Read16::new(0, u32::MAX);
        let size = u32::try_from(bench.view.policy.traits.size_bytes).expect("a small medium");
        assert_eq!(metered(&bench, whole, u32::MAX, 0), Some(size), "no more than there is");
        let others =
            [Cdb::from(Inquiry::new(96)), TestUnitReady {}.into(), SynchronizeCache10::new(0, 0).into()];
        for other in others {
            assert_eq!(metered(&bench, other, 96, 0), None);
        }
        assert_eq!(metered(&bench, CopyOperationAbort::new(0), 0, 0), None, "COPY OPERATION ABORT");
        let read_dma = [opcode::ATA_PASS_THROUGH_16, 0x0c, 0x0e, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x40, 0xc8, 0];
        assert_eq!(metered(&bench, &read_dma, u32::MAX, 0), Some(4 * 512));
        let identify = [opcode::ATA_PASS_THROUGH_16, 0x08, 0x0e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xec, 0];
        assert_eq!(metered(&bench, &identify, 512, 0), None);
    }
}
