//! The ATA section of an AoE packet: 12 bytes after the AoE header (AoEr11 section 3.1).

use super::{DEVICE_IS_LBA, DEVICE_LBA, NOP, NOP_AUTO_POLL, Registers, StatusReturn, lba_bytes, lba_of};
use crate::iwarp::Layout;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The registers of a command or of its completion; data follows.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Section {
    /// AFlags.
    pub flags: u8,
    /// FEATURE of a command, ERROR of its completion.
    pub feature: u8,
    /// COUNT.
    pub count: u8,
    /// COMMAND, or STATUS.
    pub command: u8,
    /// LBA, lowest byte first.
    pub lba: [u8; 6],
    reserved: [u8; 2],
}

const _: () = assert!(size_of::<Section>() == 12);

impl Layout for Section {}

impl Section {
    /// AFlags: a 48-bit command (E).
    pub const EXTEND: u8 = 0x40;
    /// AFlags: bit 4 of DEVICE (D).
    pub const DEVICE: u8 = 0x10;
    /// AFlags: a write may be answered before it is done (A).
    pub const ASYNCHRONOUS: u8 = 0x02;
    /// AFlags: data goes to the device (W).
    pub const WRITE: u8 = 0x01;

    /// The section for a command. FEATURE and COUNT have eight bits here; the higher bits are lost.
    pub fn request(registers: &Registers, write: bool) -> Section {
        let mut flags = registers.device & Section::DEVICE;
        if registers.extend {
            flags |= Section::EXTEND;
        }
        if write {
            flags |= Section::WRITE;
        }
        let [feature, _] = registers.feature.to_le_bytes();
        let [count, _] = registers.count.to_le_bytes();
        let lba = placed(registers.lba, registers.extend, registers.device);
        Section { flags, feature, count, command: registers.command, lba, reserved: [0; 2] }
    }

    /// The section for the completion of a command that had these AFlags.
    pub fn response(flags: u8, end: &StatusReturn) -> Section {
        let [count, _] = end.count.to_le_bytes();
        let lba = placed(end.lba, flags & Section::EXTEND != 0, end.device);
        Section { flags, feature: end.error, count, command: end.status, lba, reserved: [0; 2] }
    }

    /// The command.
    pub fn registers(&self) -> Registers {
        let (lba, device) = self.address();
        Registers {
            extend: self.is_extended(),
            feature: u16::from(self.feature),
            count: u16::from(self.count),
            lba,
            device,
            command: self.command,
        }
    }

    /// The tag in a [`Registers::nop`].
    pub fn nop_tag(&self) -> Option<u32> {
        let is_nop = self.command == NOP && self.feature == NOP_AUTO_POLL && self.is_extended();
        is_nop.then(|| u32::try_from(lba_of(self.lba)).ok()).flatten()
    }

    /// How the command ended.
    pub fn status_return(&self) -> StatusReturn {
        let (lba, device) = self.address();
        StatusReturn {
            extend: self.is_extended(),
            error: self.feature,
            count: u16::from(self.count),
            lba,
            device,
            status: self.command,
        }
    }

    /// Whether it is a 48-bit command.
    pub fn is_extended(&self) -> bool {
        self.flags & Section::EXTEND != 0
    }

    /// Whether data goes to the device.
    pub fn is_write(&self) -> bool {
        self.flags & Section::WRITE != 0
    }

    /// LBA and DEVICE.
    fn address(&self) -> (u64, u8) {
        let device = DEVICE_IS_LBA | self.flags & Section::DEVICE;
        if self.is_extended() {
            return (lba_of(self.lba), device);
        }
        // The fourth byte is DEVICE, as initiators fill it: its upper half is not part of the address.
        let [a, b, c, d, _, _] = self.lba;
        (lba_of([a, b, c, d & DEVICE_LBA, 0, 0]), device)
    }
}

fn placed(lba: u64, extend: bool, device: u8) -> [u8; 6] {
    if extend {
        return lba_bytes(lba);
    }
    let [a, b, c, d, _, _] = lba_bytes(lba);
    [a, b, c, d & DEVICE_LBA | device & !DEVICE_LBA, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ata::{Command, status};

    #[test]
    fn a_48_bit_command_is_read_back() {
        let registers = Registers::new(Command::WriteSectorsExt, 0x0605_0403_0201, 8);
        let section = Section::request(&registers, true);
        assert_eq!(section.as_bytes(), [0x41, 0, 8, 0x34, 1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(section.registers(), registers);
        assert!(section.is_write());
        assert_eq!(Section::view(section.as_bytes()), Some(&section));
    }

    #[test]
    fn a_28_bit_command_keeps_its_upper_half_byte_out_of_the_address() {
        let section =
            Section { flags: 0, count: 1, command: 0x20, lba: [1, 2, 3, 0xe4, 9, 9], ..Section::default() };
        assert_eq!(section.registers().lba, 0x0403_0201);
        let again = Section::request(&section.registers(), false);
        assert_eq!(again.lba, [1, 2, 3, 0x44, 0, 0]);
    }

    #[test]
    fn an_end_is_read_back() {
        let end = StatusReturn {
            extend: true,
            error: 0x10,
            count: 3,
            lba: 77,
            device: DEVICE_IS_LBA,
            status: status::DRDY | status::ERR,
        };
        let section = Section::response(Section::EXTEND, &end);
        assert_eq!(section.status_return(), end);
    }
}
