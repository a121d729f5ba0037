//! The ATA commands that Lunette serves and sends (ACS-3): registers as AoE and SCSI/ATA translation carry
//! them, IDENTIFY DEVICE data, SMART data.

pub mod identify;
pub mod pass_through;
pub mod section;
pub mod smart;

pub use identify::{Feature, IdentifyData};
pub use pass_through::{PassThrough, Protocol, StatusReturn};
pub use section::Section;

/// Bytes per logical sector, unless the device reports otherwise.
pub const SECTOR_BYTES: u32 = 512;
/// Sectors that a 28-bit command can address: LBAs are below this.
pub const SECTORS_28_BIT: u64 = 1 << 28;
/// Sectors that a 48-bit command can address.
pub const SECTORS_48_BIT: u64 = 1 << 48;

/// STATUS (ACS-3 section 6.2).
pub mod status {
    /// DEVICE READY.
    pub const DRDY: u8 = 0x40;
    /// DEVICE FAULT.
    pub const DF: u8 = 0x20;
    /// ERROR.
    pub const ERR: u8 = 0x01;
}

/// ERROR (ACS-3 section 6.3).
pub mod error {
    /// UNCORRECTABLE ERROR.
    pub const UNC: u8 = 0x40;
    /// ID NOT FOUND.
    pub const IDNF: u8 = 0x10;
    /// ABORT.
    pub const ABRT: u8 = 0x04;
}

/// Subcommands of SET FEATURES, in its FEATURE field (ACS-3 section 7.45).
pub mod set_features {
    /// Enable the volatile write cache.
    pub const WRITE_CACHE_ON: u8 = 0x02;
    /// Set the transfer mode, as COUNT says.
    pub const TRANSFER_MODE: u8 = 0x03;
    /// Disable read look-ahead.
    pub const LOOK_AHEAD_OFF: u8 = 0x55;
    /// Disable the volatile write cache.
    pub const WRITE_CACHE_OFF: u8 = 0x82;
    /// Enable read look-ahead.
    pub const LOOK_AHEAD_ON: u8 = 0xaa;
}

/// NOP, which every device answers with ABORT. With FEATURE 01h it does not abort outstanding commands
/// (ATA8-ACS).
const NOP: u8 = 0x00;
const NOP_AUTO_POLL: u8 = 0x01;

/// Bit of FEATURE in DATA SET MANAGEMENT: TRIM, its only function (ACS-3 section 7.5).
pub const TRIM: u16 = 0x01;

/// COUNT as CHECK POWER MODE returns it: active or idle (ACS-3 section 7.3).
pub const POWER_ACTIVE_OR_IDLE: u16 = 0xff;

/// Commands that move data to or from the medium, or that hosts commonly send to a disk (ACS-3 annex B).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Command {
    /// DATA SET MANAGEMENT; with FEATURE bit 0 it is TRIM.
    DataSetManagement = 0x06,
    /// READ SECTOR(S).
    ReadSectors = 0x20,
    /// READ SECTOR(S) EXT.
    ReadSectorsExt = 0x24,
    /// READ DMA EXT.
    ReadDmaExt = 0x25,
    /// READ NATIVE MAX ADDRESS EXT, obsolete since ACS-3 but still used by tools.
    ReadNativeMaxAddressExt = 0x27,
    /// READ MULTIPLE EXT.
    ReadMultipleExt = 0x29,
    /// READ LOG EXT, of the general purpose logs ([`smart::log`]).
    ReadLogExt = 0x2f,
    /// WRITE SECTOR(S).
    WriteSectors = 0x30,
    /// WRITE SECTOR(S) EXT.
    WriteSectorsExt = 0x34,
    /// WRITE DMA EXT.
    WriteDmaExt = 0x35,
    /// WRITE MULTIPLE EXT.
    WriteMultipleExt = 0x39,
    /// WRITE DMA FUA EXT.
    WriteDmaFuaExt = 0x3d,
    /// READ VERIFY SECTOR(S).
    ReadVerifySectors = 0x40,
    /// READ VERIFY SECTOR(S) EXT.
    ReadVerifySectorsExt = 0x42,
    /// SMART; FEATURE selects the command ([`smart::Function`]).
    Smart = 0xb0,
    /// READ MULTIPLE.
    ReadMultiple = 0xc4,
    /// WRITE MULTIPLE.
    WriteMultiple = 0xc5,
    /// SET MULTIPLE MODE.
    SetMultipleMode = 0xc6,
    /// READ DMA.
    ReadDma = 0xc8,
    /// WRITE DMA.
    WriteDma = 0xca,
    /// WRITE MULTIPLE FUA EXT.
    WriteMultipleFuaExt = 0xce,
    /// STANDBY IMMEDIATE.
    StandbyImmediate = 0xe0,
    /// IDLE IMMEDIATE.
    IdleImmediate = 0xe1,
    /// STANDBY.
    Standby = 0xe2,
    /// IDLE.
    Idle = 0xe3,
    /// CHECK POWER MODE.
    CheckPowerMode = 0xe5,
    /// FLUSH CACHE.
    FlushCache = 0xe7,
    /// FLUSH CACHE EXT.
    FlushCacheExt = 0xea,
    /// IDENTIFY DEVICE.
    IdentifyDevice = 0xec,
    /// SET FEATURES; FEATURE selects which ([`set_features`]).
    SetFeatures = 0xef,
    /// READ NATIVE MAX ADDRESS, likewise obsolete.
    ReadNativeMaxAddress = 0xf8,
}

impl Command {
    const ALL: [Command; 31] = [
        Command::DataSetManagement,
        Command::ReadSectors,
        Command::ReadSectorsExt,
        Command::ReadDmaExt,
        Command::ReadNativeMaxAddressExt,
        Command::ReadMultipleExt,
        Command::ReadLogExt,
        Command::WriteSectors,
        Command::WriteSectorsExt,
        Command::WriteDmaExt,
        Command::WriteMultipleExt,
        Command::WriteDmaFuaExt,
        Command::ReadVerifySectors,
        Command::ReadVerifySectorsExt,
        Command::Smart,
        Command::ReadMultiple,
        Command::WriteMultiple,
        Command::SetMultipleMode,
        Command::ReadDma,
        Command::WriteDma,
        Command::WriteMultipleFuaExt,
        Command::StandbyImmediate,
        Command::IdleImmediate,
        Command::Standby,
        Command::Idle,
        Command::CheckPowerMode,
        Command::FlushCache,
        Command::FlushCacheExt,
        Command::IdentifyDevice,
        Command::SetFeatures,
        Command::ReadNativeMaxAddress,
    ];

    /// The command's code.
    pub const fn code(self) -> u8 {
        match self {
            Command::DataSetManagement => 0x06,
            Command::ReadSectors => 0x20,
            Command::ReadSectorsExt => 0x24,
            Command::ReadDmaExt => 0x25,
            Command::ReadNativeMaxAddressExt => 0x27,
            Command::ReadMultipleExt => 0x29,
            Command::ReadLogExt => 0x2f,
            Command::WriteSectors => 0x30,
            Command::WriteSectorsExt => 0x34,
            Command::WriteDmaExt => 0x35,
            Command::WriteMultipleExt => 0x39,
            Command::WriteDmaFuaExt => 0x3d,
            Command::ReadVerifySectors => 0x40,
            Command::ReadVerifySectorsExt => 0x42,
            Command::Smart => 0xb0,
            Command::ReadMultiple => 0xc4,
            Command::WriteMultiple => 0xc5,
            Command::SetMultipleMode => 0xc6,
            Command::ReadDma => 0xc8,
            Command::WriteDma => 0xca,
            Command::WriteMultipleFuaExt => 0xce,
            Command::StandbyImmediate => 0xe0,
            Command::IdleImmediate => 0xe1,
            Command::Standby => 0xe2,
            Command::Idle => 0xe3,
            Command::CheckPowerMode => 0xe5,
            Command::FlushCache => 0xe7,
            Command::FlushCacheExt => 0xea,
            Command::IdentifyDevice => 0xec,
            Command::SetFeatures => 0xef,
            Command::ReadNativeMaxAddress => 0xf8,
        }
    }

    /// The command with this code, if we know it.
    pub fn from_code(code: u8) -> Option<Command> {
        // The few that carry data, without a search.
        match code {
            0x24 => Some(Command::ReadSectorsExt),
            0x34 => Some(Command::WriteSectorsExt),
            0x25 => Some(Command::ReadDmaExt),
            0x35 => Some(Command::WriteDmaExt),
            code => Command::ALL.into_iter().find(|command| command.code() == code),
        }
    }

    /// What the command does.
    pub const fn action(self) -> Action {
        match self {
            Command::ReadSectors
            | Command::ReadSectorsExt
            | Command::ReadDmaExt
            | Command::ReadMultipleExt
            | Command::ReadMultiple
            | Command::ReadDma => Action::Read,
            Command::WriteSectors
            | Command::WriteSectorsExt
            | Command::WriteDmaExt
            | Command::WriteMultipleExt
            | Command::WriteMultiple
            | Command::WriteDma => Action::Write { fua: false },
            Command::WriteDmaFuaExt | Command::WriteMultipleFuaExt => Action::Write { fua: true },
            Command::ReadVerifySectors | Command::ReadVerifySectorsExt => Action::Verify,
            Command::FlushCache | Command::FlushCacheExt => Action::Flush,
            Command::DataSetManagement
            | Command::ReadNativeMaxAddressExt
            | Command::ReadNativeMaxAddress
            | Command::ReadLogExt
            | Command::Smart
            | Command::SetMultipleMode
            | Command::StandbyImmediate
            | Command::IdleImmediate
            | Command::Standby
            | Command::Idle
            | Command::CheckPowerMode
            | Command::IdentifyDevice
            | Command::SetFeatures => Action::Other,
        }
    }

    /// Whether it is a 48-bit command.
    pub const fn is_extended(self) -> bool {
        match self {
            Command::DataSetManagement
            | Command::ReadSectorsExt
            | Command::ReadDmaExt
            | Command::ReadNativeMaxAddressExt
            | Command::ReadMultipleExt
            | Command::ReadLogExt
            | Command::WriteSectorsExt
            | Command::WriteDmaExt
            | Command::WriteMultipleExt
            | Command::WriteDmaFuaExt
            | Command::WriteMultipleFuaExt
            | Command::ReadVerifySectorsExt
            | Command::FlushCacheExt => true,
            Command::ReadSectors
            | Command::WriteSectors
            | Command::ReadVerifySectors
            | Command::Smart
            | Command::ReadMultiple
            | Command::WriteMultiple
            | Command::SetMultipleMode
            | Command::ReadDma
            | Command::WriteDma
            | Command::StandbyImmediate
            | Command::IdleImmediate
            | Command::Standby
            | Command::Idle
            | Command::CheckPowerMode
            | Command::FlushCache
            | Command::IdentifyDevice
            | Command::SetFeatures
            | Command::ReadNativeMaxAddress => false,
        }
    }
}

/// What a command does to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Reads COUNT sectors from LBA.
    Read,
    /// Writes COUNT sectors from LBA.
    Write {
        /// The data is on the medium when the command ends.
        fua: bool,
    },
    /// Reads COUNT sectors from LBA without transferring them.
    Verify,
    /// Flushes the volatile cache to the medium.
    Flush,
    /// Nothing.
    Other,
}

/// What a command transfers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// Nothing.
    Nothing,
    /// This many sectors of 512 bytes to the initiator.
    In(u32),
    /// This many sectors of 512 bytes to the device.
    Out(u32),
}

impl Transfer {
    /// Bytes transferred.
    pub fn bytes(self) -> u32 {
        match self {
            Transfer::Nothing => 0,
            Transfer::In(sectors) | Transfer::Out(sectors) => sectors.saturating_mul(SECTOR_BYTES),
        }
    }
}

/// The fields of a command (ACS-3 section 4.1), of 28 or 48 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registers {
    /// Whether it is a 48-bit command.
    pub extend: bool,
    /// FEATURE; 8 bits unless extended.
    pub feature: u16,
    /// COUNT; 8 bits unless extended.
    pub count: u16,
    /// LBA, of 28 or 48 bits; bits 24 to 27 of a 28-bit LBA are here, not in the device register.
    pub lba: u64,
    /// DEVICE, without LBA bits.
    pub device: u8,
    /// COMMAND.
    pub command: u8,
}

/// The bits of DEVICE that belong to the LBA in a 28-bit command.
pub(crate) const DEVICE_LBA: u8 = 0x0f;
/// The LBA bit of DEVICE, set in all commands with an LBA.
pub const DEVICE_IS_LBA: u8 = 0x40;

impl Registers {
    /// A command with an LBA and COUNT.
    pub fn new(command: Command, lba: u64, count: u16) -> Registers {
        let extend = command.is_extended();
        Registers { extend, feature: 0, count, lba, device: DEVICE_IS_LBA, command: command.code() }
    }

    /// NOP with the tag of an earlier AoE request in LBA: Lunette does not answer it before that request has
    /// ended.
    pub fn nop(tag: u32) -> Registers {
        let (feature, lba) = (u16::from(NOP_AUTO_POLL), u64::from(tag));
        Registers { extend: true, feature, count: 0, lba, device: DEVICE_IS_LBA, command: NOP }
    }

    /// The command, if we know it.
    pub fn command(&self) -> Option<Command> {
        Command::from_code(self.command)
    }

    /// The sector count in COUNT: zero means the maximum (ACS-3 sections 7.20 and 7.21).
    pub fn sectors(&self) -> u32 {
        match (self.count, self.extend) {
            (0, false) => 1 << 8,
            (0, true) => 1 << 16,
            (count, _) => u32::from(count),
        }
    }

    /// What the command transfers; an unknown one is aborted and transfers nothing.
    pub fn transfer(&self) -> Transfer {
        let Some(command) = self.command() else { return Transfer::Nothing };
        match command.action() {
            Action::Read => Transfer::In(self.sectors()),
            Action::Write { .. } => Transfer::Out(self.sectors()),
            Action::Verify | Action::Flush => Transfer::Nothing,
            Action::Other if command == Command::IdentifyDevice => Transfer::In(1),
            Action::Other if command == Command::DataSetManagement => Transfer::Out(self.sectors()),
            Action::Other if command == Command::ReadLogExt => Transfer::In(u32::from(self.count)),
            Action::Other if command == Command::Smart => smart::transfer(self),
            Action::Other => Transfer::Nothing,
        }
    }
}

/// The bytes of an LBA, lowest first.
pub(crate) fn lba_bytes(lba: u64) -> [u8; 6] {
    let [a, b, c, d, e, f, _, _] = lba.to_le_bytes();
    [a, b, c, d, e, f]
}

/// The LBA in these bytes, lowest first.
pub(crate) fn lba_of(bytes: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = bytes;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_leads_back_to_its_command() {
        let mut known = 0;
        for code in 0..=u8::MAX {
            if let Some(command) = Command::from_code(code) {
                assert_eq!(command.code(), code);
                known += 1;
            }
        }
        assert_eq!(known, Command::ALL.len());
    }

    #[test]
    fn a_count_of_zero_is_the_most() {
        assert_eq!(Registers::new(Command::ReadDma, 0, 0).transfer(), Transfer::In(256));
        assert_eq!(Registers::new(Command::WriteDmaExt, 0, 0).transfer(), Transfer::Out(65536));
        assert_eq!(Registers::new(Command::WriteSectorsExt, 0, 3).transfer().bytes(), 1536);
    }

    #[test]
    fn a_nop_names_an_earlier_request() {
        let nop = Registers::nop(0xfedc_ba98);
        let section = Section::request(&nop, false);
        assert_eq!((section.nop_tag(), section.registers()), (Some(0xfedc_ba98), nop));
        assert_eq!(nop.transfer(), Transfer::Nothing);
        for other in [
            Registers { command: 0xff, ..nop },
            Registers { feature: 0, ..nop },
            Registers { lba: 1 << 32, ..nop },
        ] {
            assert_eq!(Section::request(&other, false).nop_tag(), None);
        }
    }

    #[test]
    fn commands_without_the_medium_move_what_they_are_for() {
        assert_eq!(Registers::new(Command::IdentifyDevice, 0, 0).transfer(), Transfer::In(1));
        assert_eq!(Registers::new(Command::DataSetManagement, 0, 2).transfer(), Transfer::Out(2));
        assert_eq!(Registers::new(Command::FlushCacheExt, 0, 5).transfer(), Transfer::Nothing);
        let unknown = Registers { command: 0xff, count: 3, ..Registers::default() };
        assert_eq!(unknown.transfer(), Transfer::Nothing);
    }
}
