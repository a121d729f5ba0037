//! ATA commands inside SCSI commands, and their registers in sense data (SAT-3 clause 12).

use super::{DEVICE_LBA, Registers, Transfer, lba_bytes, lba_of};
use crate::scsi::{Field, opcode};
use crate::{Cdb, Sense, SenseData, SenseKey};

/// How data is transferred (SAT-3 table 104: PROTOCOL). DMA is treated like PIO: there is no bus here on
/// which they differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Non-data.
    NonData,
    /// PIO Data-In, and DMA from the device.
    PioIn,
    /// PIO Data-Out, and DMA to the device.
    PioOut,
}

impl Protocol {
    const fn bits(self) -> u8 {
        match self {
            Protocol::NonData => 3,
            Protocol::PioIn => 4,
            Protocol::PioOut => 5,
        }
    }

    /// The protocol in an ATA PASS-THROUGH CDB: for DMA, T_DIR gives the direction. `None`: any other
    /// protocol.
    pub fn of(cdb: &Cdb) -> Option<Protocol> {
        const DMA: u8 = 6;
        const UDMA_IN: u8 = 10;
        const UDMA_OUT: u8 = 11;
        let is_in = cdb.get(PassThrough::FROM_DEVICE);
        match cdb.get(PassThrough::PROTOCOL) {
            DMA if is_in => Some(Protocol::PioIn),
            DMA => Some(Protocol::PioOut),
            UDMA_IN => Some(Protocol::PioIn),
            UDMA_OUT => Some(Protocol::PioOut),
            bits => [Protocol::NonData, Protocol::PioIn, Protocol::PioOut]
                .into_iter()
                .find(|protocol| protocol.bits() == bits),
        }
    }
}

/// ATA PASS-THROUGH (16) (SAT-3 section 12.2.3). The command itself defines the transfer: its length is COUNT
/// or, for a command that has no use for COUNT, one sector; so the transport's expected length holds, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassThrough {
    /// How data is transferred.
    pub protocol: Protocol,
    /// Return the registers in sense data even on success (CK_COND).
    pub check_condition: bool,
    /// The command.
    pub registers: Registers,
}

impl PassThrough {
    /// Operation code.
    pub const OPCODE: u8 = opcode::ATA_PASS_THROUGH_16;
    /// PROTOCOL.
    pub const PROTOCOL: Field<u8> = Field::bits(1, 0x1e);
    /// FEATURES.
    pub const FEATURE: Field<u16> = Field::at(3);
    /// COUNT.
    pub const COUNT: Field<u16> = Field::at(5);
    const CDB_BYTES: usize = 16;
    const EXTEND: Field<bool> = Field::bits(1, 0x01);
    /// CK_COND.
    pub const CHECK_CONDITION: Field<bool> = Field::bits(2, 0x20);
    /// T_DIR: from the device.
    pub const FROM_DEVICE: Field<bool> = Field::bits(2, 0x08);
    /// BYT_BLOK: lengths are in blocks, of 512 bytes whatever T_TYPE is.
    pub const IN_BLOCKS: Field<bool> = Field::bits(2, 0x04);
    /// T_LENGTH: which field holds the length.
    pub const LENGTH: Field<u8> = Field::bits(2, 0x03);
    /// T_LENGTH: no data is transferred.
    pub const NO_LENGTH: u8 = 0;
    /// T_LENGTH: the length is in FEATURES.
    pub const LENGTH_IN_FEATURE: u8 = 1;
    /// T_LENGTH: the length is in COUNT.
    pub const LENGTH_IN_COUNT: u8 = 2;

    /// The command with these registers.
    pub fn new(registers: Registers) -> PassThrough {
        let protocol = match registers.transfer() {
            Transfer::Nothing => Protocol::NonData,
            Transfer::In(_) => Protocol::PioIn,
            Transfer::Out(_) => Protocol::PioOut,
        };
        PassThrough { protocol, check_condition: false, registers }
    }

    /// What is transferred: for an unknown command, COUNT sectors in the protocol's direction.
    pub fn transfer(&self) -> Transfer {
        match (self.registers.command(), self.protocol) {
            (Some(_), _) => self.registers.transfer(),
            (None, Protocol::NonData) => Transfer::Nothing,
            (None, Protocol::PioIn) => Transfer::In(self.registers.sectors()),
            (None, Protocol::PioOut) => Transfer::Out(self.registers.sectors()),
        }
    }

    /// The CDB.
    pub fn to_cdb(&self) -> Option<Cdb> {
        let Registers { extend, feature, count, lba, device, command } = self.registers;
        let moves = self.protocol != Protocol::NonData;
        let fields = Fields { count, lba, device, last: command }.encode(extend);
        let mut bytes = [0; PassThrough::CDB_BYTES];
        let registers = bytes.iter_mut().skip(usize::from(PassThrough::COUNT.byte()));
        registers.zip(fields).for_each(|(slot, byte)| *slot = byte);
        Field::at(0).set(&mut bytes, PassThrough::OPCODE);
        PassThrough::PROTOCOL.set(&mut bytes, self.protocol.bits());
        PassThrough::EXTEND.set(&mut bytes, extend);
        PassThrough::CHECK_CONDITION.set(&mut bytes, self.check_condition);
        PassThrough::FROM_DEVICE.set(&mut bytes, self.protocol == Protocol::PioIn);
        PassThrough::IN_BLOCKS.set(&mut bytes, moves);
        let length = if moves { PassThrough::LENGTH_IN_COUNT } else { PassThrough::NO_LENGTH };
        PassThrough::LENGTH.set(&mut bytes, length);
        PassThrough::FEATURE.set(&mut bytes, feature);
        Cdb::from_bytes(&bytes)
    }

    /// The command in a CDB; `None` when it is a different command, or uses another protocol.
    pub fn from_cdb(cdb: &Cdb) -> Option<PassThrough> {
        if cdb.opcode() != PassThrough::OPCODE || cdb.as_bytes().len() != PassThrough::CDB_BYTES {
            return None;
        }
        Some(PassThrough {
            protocol: Protocol::of(cdb)?,
            check_condition: cdb.get(PassThrough::CHECK_CONDITION),
            registers: PassThrough::registers(cdb),
        })
    }

    /// The registers in a CDB, whatever its protocol.
    pub fn registers(cdb: &Cdb) -> Registers {
        let extend = cdb.get(PassThrough::EXTEND);
        let fields = std::array::from_fn(|at| cdb.byte(at.saturating_add(5)));
        let Fields { count, lba, device, last: command } = Fields::decode(fields, extend);
        let feature = if extend { cdb.get(PassThrough::FEATURE) } else { cdb.byte(4).into() };
        Registers { extend, feature, count, lba, device, command }
    }

    /// The registers in an ATA PASS-THROUGH (12) CDB, whose commands have 28-bit LBAs (SAT-3 section 12.2.2).
    pub fn short_registers(cdb: &Cdb) -> Registers {
        let [feature, count, lba_0, lba_8, lba_16, device, command] =
            std::array::from_fn(|at| cdb.byte(at.saturating_add(3)));
        let fields = [0, count, 0, lba_0, 0, lba_8, 0, lba_16, device, command];
        let Fields { count, lba, device, last: command } = Fields::decode(fields, false);
        Registers { extend: false, feature: feature.into(), count, lba, device, command }
    }
}

/// ATA Status Return: how a command ended (SAT-3 section 12.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatusReturn {
    /// Whether it was a 48-bit command.
    pub extend: bool,
    /// ERROR.
    pub error: u8,
    /// COUNT.
    pub count: u16,
    /// LBA.
    pub lba: u64,
    /// DEVICE, without LBA bits.
    pub device: u8,
    /// STATUS.
    pub status: u8,
}

impl StatusReturn {
    /// ATA PASS THROUGH INFORMATION AVAILABLE: the sense code for a command that succeeded.
    pub const AVAILABLE: u16 = 0x001d;
    const DESCRIPTOR: u8 = 0x09;
    const ADDITIONAL: u8 = 0x0c;
    const DESCRIPTOR_BYTES: usize = 14;
    const HEADER_BYTES: usize = 8;

    /// Success, with all registers unchanged.
    pub fn good(registers: &Registers) -> StatusReturn {
        StatusReturn {
            extend: registers.extend,
            error: 0,
            count: registers.count,
            lba: registers.lba,
            device: registers.device,
            status: super::status::DRDY,
        }
    }

    /// Failure, with these bits of ERROR.
    pub fn failed(registers: &Registers, error: u8) -> StatusReturn {
        let status = super::status::DRDY | super::status::ERR;
        StatusReturn { error, status, ..StatusReturn::good(registers) }
    }

    /// Sense data of a successful command, with the registers that it returns.
    pub fn available(&self) -> Sense {
        self.sense(&SenseData {
            key: SenseKey::RecoveredError,
            code: StatusReturn::AVAILABLE,
            information: None,
            command_specific: None,
            specific: None,
        })
    }

    /// Sense data in descriptor format, with the registers as its last descriptor.
    pub fn sense(&self, data: &SenseData) -> Sense {
        let head = Sense::descriptor(data);
        let head = head.as_bytes();
        let mut bytes = [0; Sense::MAX];
        let (start, rest) = bytes.split_at_mut(head.len().min(Sense::MAX));
        start.copy_from_slice(head);
        if let Some(room) = rest.get_mut(..StatusReturn::DESCRIPTOR_BYTES) {
            room.copy_from_slice(&self.descriptor());
        }
        let len = head.len().saturating_add(StatusReturn::DESCRIPTOR_BYTES);
        let additional = u8::try_from(len.saturating_sub(StatusReturn::HEADER_BYTES)).unwrap_or(u8::MAX);
        if let Some(slot) = bytes.get_mut(7) {
            *slot = additional;
        }
        Sense::from_bytes(bytes.get(..len).unwrap_or_default())
    }

    fn descriptor(&self) -> [u8; StatusReturn::DESCRIPTOR_BYTES] {
        let StatusReturn { extend, error, count, lba, device, status } = *self;
        let fields = Fields { count, lba, device, last: status }.encode(extend);
        let head = [StatusReturn::DESCRIPTOR, StatusReturn::ADDITIONAL, u8::from(extend), error];
        let mut bytes = [0; StatusReturn::DESCRIPTOR_BYTES];
        bytes.iter_mut().zip(head.into_iter().chain(fields)).for_each(|(slot, byte)| *slot = byte);
        bytes
    }

    /// The registers in sense data, if there are any.
    pub fn from_sense(sense: &Sense) -> Option<StatusReturn> {
        let bytes = sense.as_bytes();
        if bytes.first()? & 0x7e != 0x72 {
            return None;
        }
        let mut rest = bytes.get(StatusReturn::HEADER_BYTES..)?;
        loop {
            let [kind, additional, ..] = *rest else { return None };
            let len = usize::from(additional).saturating_add(2);
            if kind == StatusReturn::DESCRIPTOR {
                let one: &[u8; StatusReturn::DESCRIPTOR_BYTES] = rest.get(..len)?.try_into().ok()?;
                return Some(StatusReturn::from_descriptor(one));
            }
            rest = rest.get(len..)?;
        }
    }

    fn from_descriptor(bytes: &[u8; StatusReturn::DESCRIPTOR_BYTES]) -> StatusReturn {
        let [_, _, extend, error, fields @ ..] = *bytes;
        let extend = extend & 0x01 != 0;
        let Fields { count, lba, device, last: status } = Fields::decode(fields, extend);
        StatusReturn { extend, error, count, lba, device, status }
    }
}

/// The registers that are laid out alike in the CDB and in the descriptor.
struct Fields {
    count: u16,
    lba: u64,
    device: u8,
    /// COMMAND or STATUS.
    last: u8,
}

impl Fields {
    /// With a 28-bit LBA, its highest bits are in DEVICE, and the high bytes of the fields are reserved.
    fn encode(self, extend: bool) -> [u8; 10] {
        let [count_high, count_low] = self.count.to_be_bytes();
        let [lba_0, lba_8, lba_16, lba_24, lba_32, lba_40] = lba_bytes(self.lba);
        let (high, device) = if extend {
            ([lba_24, lba_32, lba_40], self.device)
        } else {
            ([0; 3], self.device & !DEVICE_LBA | lba_24 & DEVICE_LBA)
        };
        let [lba_24, lba_32, lba_40] = high;
        [count_high, count_low, lba_24, lba_0, lba_32, lba_8, lba_40, lba_16, device, self.last]
    }

    fn decode(bytes: [u8; 10], extend: bool) -> Fields {
        let [count_high, count_low, lba_24, lba_0, lba_32, lba_8, lba_40, lba_16, device, last] = bytes;
        let (count, lba, device) = if extend {
            let lba = [lba_0, lba_8, lba_16, lba_24, lba_32, lba_40];
            (u16::from_be_bytes([count_high, count_low]), lba, device)
        } else {
            let lba = [lba_0, lba_8, lba_16, device & DEVICE_LBA, 0, 0];
            (count_low.into(), lba, device & !DEVICE_LBA)
        };
        Fields { count, lba: lba_of(lba), device, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ata::{Command, error, status};

    #[test]
    fn a_cdb_is_read_back() {
        let registers =
            Registers { feature: 0xabcd, ..Registers::new(Command::WriteDmaExt, 0x6655_4433_2211, 0x102) };
        let cdb = PassThrough::new(registers).to_cdb().unwrap();
        assert_eq!(
            cdb.as_bytes(),
            [0x85, 0x0b, 0x06, 0xab, 0xcd, 1, 2, 0x44, 0x11, 0x55, 0x22, 0x66, 0x33, 0x40, 0x35, 0]
        );
        assert_eq!(PassThrough::from_cdb(&cdb), Some(PassThrough::new(registers)));
    }

    #[test]
    fn a_28_bit_lba_is_partly_in_the_device_register() {
        let registers = Registers::new(Command::ReadSectors, 0x0403_0201, 1);
        let cdb = PassThrough::new(registers).to_cdb().unwrap();
        assert_eq!(cdb.as_bytes()[1..], [0x08, 0x0e, 0, 0, 0, 1, 0, 1, 0, 2, 0, 3, 0x44, 0x20, 0]);
        assert_eq!(PassThrough::from_cdb(&cdb).unwrap().registers, registers);
    }

    #[test]
    fn the_high_bytes_of_a_28_bit_command_mean_nothing() {
        let registers = Registers { feature: 0xcd, ..Registers::new(Command::ReadDma, 0x0403_0201, 9) };
        let mut bytes = [0; 16];
        bytes.copy_from_slice(PassThrough::new(registers).to_cdb().unwrap().as_bytes());
        for at in [3, 5, 7, 9, 11] {
            bytes[at] = 0xff;
        }
        let cdb = Cdb::from_bytes(&bytes).unwrap();
        assert_eq!(PassThrough::from_cdb(&cdb).unwrap().registers, registers);
        let short = [0xa1, 0x08, 0x0e, 0xcd, 9, 1, 2, 3, 0x44, 0xc8, 0, 0];
        assert_eq!(PassThrough::short_registers(&Cdb::from_bytes(&short).unwrap()), registers);
    }

    #[test]
    fn dma_moves_what_pio_moves() {
        let read = PassThrough::new(Registers::new(Command::ReadDma, 1, 2));
        let write = PassThrough::new(Registers::new(Command::WriteDma, 1, 2));
        for (pass, protocols) in [(read, [4, 6, 10]), (write, [5, 6, 11])] {
            for protocol in protocols {
                let mut bytes = pass.to_cdb().unwrap().as_bytes().to_vec();
                bytes[1] = protocol << 1;
                assert_eq!(
                    PassThrough::from_cdb(&Cdb::from_bytes(&bytes).unwrap()),
                    Some(pass),
                    "{protocol}"
                );
            }
        }
    }

    #[test]
    fn an_unknown_command_moves_what_its_protocol_says() {
        let registers = Registers { command: 0xfe, count: 3, ..Registers::default() };
        for (protocol, transfer) in [
            (Protocol::NonData, Transfer::Nothing),
            (Protocol::PioIn, Transfer::In(3)),
            (Protocol::PioOut, Transfer::Out(3)),
        ] {
            let pass = PassThrough { protocol, ..PassThrough::new(registers) };
            assert_eq!(pass.transfer(), transfer);
        }
        assert_eq!(PassThrough::new(Registers::new(Command::ReadDma, 0, 2)).transfer(), Transfer::In(2));
    }

    #[test]
    fn other_cdbs_are_none_of_it() {
        for bytes in [&[0x85u8; 12][..], &[0x88; 16], &[0x85; 16], &[]] {
            assert_eq!(PassThrough::from_cdb(&Cdb::from_bytes(bytes).unwrap()), None);
        }
    }

    #[test]
    fn registers_in_sense_data_are_read_back_behind_other_descriptors() {
        for extend in [false, true] {
            let lba = if extend { 0x6655_4433_2211 } else { 0x0433_2211 };
            let end = StatusReturn {
                extend,
                error: error::UNC,
                count: if extend { 0x0102 } else { 2 },
                lba,
                device: 0x40,
                status: status::DRDY | status::ERR,
            };
            let data = SenseData {
                key: SenseKey::MediumError,
                code: 0x1100,
                information: Some(lba),
                command_specific: None,
                specific: None,
            };
            let sense = end.sense(&data);
            assert_eq!((sense.key(), sense.code()), (Some(SenseKey::MediumError), 0x1100));
            assert_eq!(sense.information(), Some(lba));
            assert_eq!(StatusReturn::from_sense(&sense), Some(end));
        }
    }

    #[test]
    fn a_good_status_is_read_back() {
        let end = StatusReturn { count: 0xff, ..StatusReturn::good(&Registers::default()) };
        let sense = end.available();
        assert_eq!(
            sense.as_bytes(),
            [0x72, 1, 0, 0x1d, 0, 0, 0, 14, 9, 12, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x40]
        );
        assert_eq!(StatusReturn::from_sense(&sense), Some(end));
    }

    #[test]
    fn sense_data_that_has_no_registers_or_is_cut_gives_none() {
        let end = StatusReturn::default().available();
        for len in 0..end.as_bytes().len() {
            assert_eq!(StatusReturn::from_sense(&Sense::from_bytes(&end.as_bytes()[..len])), None);
        }
        assert_eq!(StatusReturn::from_sense(&Sense::from_bytes(&[0x70; 18])), None);
        assert_eq!(StatusReturn::from_sense(&Sense::from_bytes(&[0x72, 0, 0, 0, 0, 0, 0, 2, 0, 0])), None);
    }
}
