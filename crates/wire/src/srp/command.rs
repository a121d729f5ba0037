//! SRP_TSK_MGMT and SRP_CMD (SRP r16a sections 6.7, 6.8), and data buffer descriptors (section 5.4.2).

use crate::Cdb;
use crate::iwarp::{Layout, layout};
use crate::srp::{Opcode, TaskAttribute, TaskFunction};
use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

layout! {
    /// SRP_TSK_MGMT (section 6.7).
    TaskManagement, 48, {
        /// [`Opcode::TASK_MANAGEMENT`].
        opcode: Opcode,
        /// [`Command::SUCCESS_SOLICITED`], [`Command::FAILURE_SOLICITED`].
        sol_not: u8,
        /// Zero.
        reserved1: [u8; 6],
        /// The initiator's tag for this request.
        tag: U64,
        /// Zero.
        reserved2: [u8; 4],
        /// The eight LUN bytes.
        lun: U64,
        /// Zero.
        reserved3: [u8; 2],
        /// The function.
        function: TaskFunction,
        /// Zero.
        reserved4: u8,
        /// The task that it refers to.
        task_tag: U64,
        /// Zero.
        reserved5: [u8; 8],
    }
}

layout! {
    /// SRP_CMD (section 6.8). The additional CDB, the data-out descriptor and the data-in descriptor follow.
    Command, 48, {
        /// [`Opcode::COMMAND`].
        opcode: Opcode,
        /// [`Command::SUCCESS_SOLICITED`], [`Command::FAILURE_SOLICITED`].
        sol_not: u8,
        /// Zero.
        reserved1: [u8; 3],
        /// Formats of the descriptors: data-out in the high half.
        buf_fmt: u8,
        /// Memory descriptors in an indirect data-out descriptor.
        data_out_desc_cnt: u8,
        /// Memory descriptors in an indirect data-in descriptor.
        data_in_desc_cnt: u8,
        /// The initiator's tag.
        tag: U64,
        /// Zero.
        reserved2: [u8; 4],
        /// The eight LUN bytes.
        lun: U64,
        /// Zero.
        reserved3: u8,
        /// Task attribute.
        task_attr: u8,
        /// Zero.
        reserved4: u8,
        /// Length of the additional CDB: bits 7 to 2 count words.
        add_cdb_len: u8,
        /// The CDB's first 16 bytes.
        cdb: [u8; 16],
    }
}

impl Command {
    /// Solicited notification of a successful end (SCSOLNT).
    pub const SUCCESS_SOLICITED: u8 = 0x02;
    /// Solicited notification of an unsuccessful end (UCSOLNT).
    pub const FAILURE_SOLICITED: u8 = 0x04;
    /// The bits of the additional CDB's length; unshifted, it counts bytes.
    pub const ADDITIONAL_CDB_MASK: u8 = 0xfc;

    /// Task attribute.
    pub fn attribute(&self) -> TaskAttribute {
        TaskAttribute(self.task_attr & TaskAttribute::MASK)
    }
}

layout! {
    /// A memory descriptor, which is also the direct data buffer descriptor.
    Direct, 16, {
        /// Address of the buffer.
        address: U64,
        /// The key to it (R_Key, STag).
        key: U32,
        /// Its length.
        len: U32,
    }
}

impl Direct {
    /// A descriptor.
    pub fn new(address: u64, key: u32, len: u32) -> Direct {
        Direct { address: U64::new(address), key: U32::new(key), len: U32::new(len) }
    }
}

layout! {
    /// The beginning of an indirect data buffer descriptor; the first memory descriptors of the table follow,
    /// as many as the command's count says.
    IndirectHead, 20, {
        /// Where the whole table is.
        table: Direct,
        /// Length of the data.
        len: U32,
    }
}

/// The beginning of an immediate data buffer descriptor: its length.
const IMMEDIATE_BYTES: usize = 4;

/// A data buffer descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor<'a> {
    /// No data.
    None,
    /// One buffer.
    Direct(Direct),
    /// A table of buffers.
    Indirect(Table<'a>),
    /// The data is in the command, at the offset negotiated at login (SRP-2).
    Immediate {
        /// Its length.
        len: u32,
    },
}

/// A table of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Table<'a> {
    /// Where the whole table is.
    pub table: Direct,
    /// Length of the data.
    pub len: u32,
    /// Its beginning, or all of it.
    pub list: &'a [Direct],
}

impl Descriptor<'_> {
    /// Format codes of `buf_fmt`: no data.
    pub const NONE: u8 = 0;
    /// One buffer.
    pub const DIRECT: u8 = 1;
    /// A table.
    pub const INDIRECT: u8 = 2;
    /// Immediate data.
    pub const IMMEDIATE: u8 = 3;

    /// Length of the data.
    pub fn data_bytes(&self) -> u32 {
        match self {
            Descriptor::None => 0,
            Descriptor::Direct(direct) => direct.len.get(),
            Descriptor::Indirect(table) => table.len,
            Descriptor::Immediate { len } => *len,
        }
    }
}

/// A complete SRP_CMD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandUnit<'a> {
    /// The fixed-length part.
    pub head: &'a Command,
    /// The CDB with its additional part.
    pub cdb: Cdb,
    /// Where the data-out comes from.
    pub data_out: Descriptor<'a>,
    /// Where the data-in goes.
    pub data_in: Descriptor<'a>,
    /// Where the descriptors end in the information unit.
    pub end: usize,
}

/// An error in an SRP_CMD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandFault {
    /// Shorter than its fields say.
    Truncated,
    /// An additional CDB that is too long ([`Cdb::MAX`]).
    LongCdb,
    /// An unknown format of the data-out descriptor.
    DataOutFormat,
    /// An unknown format of the data-in descriptor, or one valid for data-out only.
    DataInFormat,
}

impl<'a> CommandUnit<'a> {
    /// Parses an information unit.
    pub fn split(iu: &'a [u8]) -> Result<CommandUnit<'a>, CommandFault> {
        let head = Command::view(iu).ok_or(CommandFault::Truncated)?;
        let rest = iu.get(Command::BYTES..).unwrap_or_default();
        let additional = usize::from(head.add_cdb_len & Command::ADDITIONAL_CDB_MASK);
        let (additional, rest) = rest.split_at_checked(additional).ok_or(CommandFault::Truncated)?;
        let mut cdb = [0; Cdb::MAX];
        let cdb_len = head.cdb.len().saturating_add(additional.len());
        let whole = cdb.get_mut(..cdb_len).ok_or(CommandFault::LongCdb)?;
        for (place, byte) in whole.iter_mut().zip(head.cdb.iter().chain(additional)) {
            *place = *byte;
        }
        let cdb = Cdb::from_bytes(whole).ok_or(CommandFault::LongCdb)?;
        let (out_format, in_format) = (head.buf_fmt >> 4, head.buf_fmt & 0x0f);
        if in_format == Descriptor::IMMEDIATE {
            return Err(CommandFault::DataInFormat);
        }
        let (data_out, rest) =
            descriptor(out_format, head.data_out_desc_cnt, rest, CommandFault::DataOutFormat)?;
        let (data_in, rest) = descriptor(in_format, head.data_in_desc_cnt, rest, CommandFault::DataInFormat)?;
        Ok(CommandUnit { head, cdb, data_out, data_in, end: iu.len().saturating_sub(rest.len()) })
    }
}

fn descriptor(
    format: u8,
    count: u8,
    bytes: &[u8],
    unknown: CommandFault,
) -> Result<(Descriptor<'_>, &[u8]), CommandFault> {
    match format {
        Descriptor::NONE => Ok((Descriptor::None, bytes)),
        Descriptor::DIRECT => {
            let (direct, rest) = Direct::ref_from_prefix(bytes).map_err(|_| CommandFault::Truncated)?;
            Ok((Descriptor::Direct(*direct), rest))
        }
        Descriptor::INDIRECT => {
            let (head, rest) = IndirectHead::ref_from_prefix(bytes).map_err(|_| CommandFault::Truncated)?;
            let (list, rest) = <[Direct]>::ref_from_prefix_with_elems(rest, usize::from(count))
                .map_err(|_| CommandFault::Truncated)?;
            Ok((Descriptor::Indirect(Table { table: head.table, len: head.len.get(), list }), rest))
        }
        Descriptor::IMMEDIATE => {
            let (len, rest) = bytes.split_first_chunk::<IMMEDIATE_BYTES>().ok_or(CommandFault::Truncated)?;
            Ok((Descriptor::Immediate { len: u32::from_be_bytes(*len) }, rest))
        }
        _ => Err(unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;
    use zerocopy::IntoBytes;

    /// WRITE (10) of two blocks from two buffers, with everything else that a command may have.
    fn command() -> Vec<u8> {
        let mut bytes = vec![2, 6, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0];
        bytes.extend([0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 4]);
        bytes.extend([0x2a, 0, 0, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([0xad; 4]);
        bytes.extend(IndirectHead { table: Direct::new(0x1000, 5, 32), len: U32::new(1024) }.as_bytes());
        bytes.extend(Direct::new(0x2000, 6, 1000).as_bytes());
        bytes.extend(Direct::new(0x3000, 7, 24).as_bytes());
        bytes.extend(Direct::new(0x4000, 8, 96).as_bytes());
        bytes
    }

    #[test]
    fn a_command_with_everything() {
        let bytes = command();
        let head: Command = decoded(&bytes[..48]);
        assert_eq!((head.opcode, head.tag.get(), head.lun.get()), (Opcode::COMMAND, 9, 1 << 48));
        assert_eq!(head.attribute(), TaskAttribute::ORDERED);
        assert_eq!(head.sol_not, Command::SUCCESS_SOLICITED | Command::FAILURE_SOLICITED);
        let unit = CommandUnit::split(&bytes).unwrap();
        assert_eq!((unit.cdb.opcode(), unit.cdb.as_bytes().len()), (0x2a, 20));
        assert_eq!(unit.cdb.as_bytes()[16..20], [0xad; 4]);
        let list = [Direct::new(0x2000, 6, 1000), Direct::new(0x3000, 7, 24)];
        let table = Table { table: Direct::new(0x1000, 5, 32), len: 1024, list: &list };
        assert_eq!((unit.data_out, unit.data_out.data_bytes()), (Descriptor::Indirect(table), 1024));
        assert_eq!(unit.data_in, Descriptor::Direct(Direct::new(0x4000, 8, 96)));
        assert_eq!(unit.end, bytes.len());
        for len in 0..bytes.len() {
            assert_eq!(CommandUnit::split(&bytes[..len]), Err(CommandFault::Truncated), "{len}");
        }
    }

    #[test]
    fn immediate_data_is_for_data_out() {
        let mut bytes = command();
        bytes[5] = 0x30;
        bytes.truncate(52);
        bytes.extend([0, 0, 2, 0]);
        let unit = CommandUnit::split(&bytes).unwrap();
        assert_eq!((unit.data_out, unit.data_in), (Descriptor::Immediate { len: 512 }, Descriptor::None));
        assert_eq!(unit.end, 56);
        bytes[5] = 0x03;
        assert_eq!(CommandUnit::split(&bytes), Err(CommandFault::DataInFormat));
    }

    #[test]
    fn unknown_formats_and_long_cdbs() {
        let mut bytes = command();
        bytes[5] = 0x41;
        assert_eq!(CommandUnit::split(&bytes), Err(CommandFault::DataOutFormat));
        bytes[5] = 0x0f;
        assert_eq!(CommandUnit::split(&bytes), Err(CommandFault::DataInFormat));
        bytes[5] = 0;
        bytes[31] = 48;
        assert_eq!(CommandUnit::split(&bytes).unwrap().cdb.as_bytes().len(), 64);
        bytes[31] = 0x37;
        bytes.resize(400, 0);
        assert_eq!(CommandUnit::split(&bytes), Err(CommandFault::LongCdb));
        bytes[31] = 0xff;
        assert_eq!(CommandUnit::split(&bytes), Err(CommandFault::LongCdb));
    }

    #[test]
    fn task_management() {
        let mut bytes = [0; 48];
        bytes[..2].copy_from_slice(&[1, 2]);
        (bytes[15], bytes[21], bytes[30], bytes[39]) = (0x80, 1, 8, 9);
        let request: TaskManagement = decoded(&bytes);
        assert_eq!((request.opcode, request.tag.get()), (Opcode::TASK_MANAGEMENT, 0x80));
        assert_eq!((request.lun.get(), request.task_tag.get()), (1 << 48, 9));
        assert_eq!(request.function, TaskFunction::LOGICAL_UNIT_RESET);
    }
}
