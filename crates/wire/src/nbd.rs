//! Messages of the Network Block Device protocol (NetworkBlockDevice/nbd, doc/proto.md), as a client sends and receives them.
//!
//! All are big-endian in memory as on the wire; what a server sent is kept as is, for the machine to
//! validate.

use crate::iwarp::layout;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

pub use crate::iwarp::Layout;

/// `NBDMAGIC`, the start of every server's greeting.
pub const SERVER_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// `IHAVEOPT`: the newstyle handshake, and the start of every option.
pub const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// What servers of the oldstyle handshake send in its place (`cliserv_magic`).
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Start of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// `NBD_REQUEST_MAGIC`.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// `NBD_SIMPLE_REPLY_MAGIC`.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// `NBD_STRUCTURED_REPLY_MAGIC`.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The longest string of the protocol, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Zeros after the answer to `NBD_OPT_EXPORT_NAME`, unless both sides agree to omit them.
pub const EXPORT_NAME_ZEROS: usize = 124;
/// The only metadata context that the protocol defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// Handshake flags of the server; those of the client are the same.
pub mod handshake {
    /// `NBD_FLAG_FIXED_NEWSTYLE`.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// `NBD_FLAG_NO_ZEROES`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export supports.
pub mod transmission {
    /// `NBD_FLAG_HAS_FLAGS`.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// `NBD_FLAG_READ_ONLY`.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_FLAG_SEND_FLUSH`.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_FLAG_SEND_FUA`.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `NBD_FLAG_ROTATIONAL`.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `NBD_FLAG_SEND_WRITE_ZEROES`.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_FLAG_CAN_MULTI_CONN`.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// Options (`NBD_OPT_*`).
pub mod option {
    /// `NBD_OPT_EXPORT_NAME`.
    pub const EXPORT_NAME: u32 = 1;
    /// `NBD_OPT_STARTTLS`.
    pub const START_TLS: u32 = 5;
    /// `NBD_OPT_GO`.
    pub const GO: u32 = 7;
    /// `NBD_OPT_STRUCTURED_REPLY`.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// `NBD_OPT_SET_META_CONTEXT`.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options (`NBD_REP_*`).
pub mod reply {
    /// `NBD_REP_ACK`.
    pub const ACK: u32 = 1;
    /// `NBD_REP_INFO`.
    pub const INFO: u32 = 3;
    /// `NBD_REP_META_CONTEXT`.
    pub const META_CONTEXT: u32 = 4;
    /// Set in all errors.
    pub const ERROR: u32 = 1 << 31;
    /// `NBD_REP_ERR_UNSUP`.
    pub const UNSUPPORTED: u32 = ERROR | 1;
    /// `NBD_REP_ERR_POLICY`.
    pub const POLICY: u32 = ERROR | 2;
    /// `NBD_REP_ERR_TLS_REQD`.
    pub const TLS_REQUIRED: u32 = ERROR | 5;
    /// `NBD_REP_ERR_UNKNOWN`.
    pub const UNKNOWN: u32 = ERROR | 6;
    /// `NBD_REP_ERR_SHUTDOWN`.
    pub const SHUTDOWN: u32 = ERROR | 7;
}

/// Types of information about an export (`NBD_INFO_*`).
pub mod info {
    /// `NBD_INFO_EXPORT`.
    pub const EXPORT: u16 = 0;
    /// `NBD_INFO_BLOCK_SIZE`.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands (`NBD_CMD_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `NBD_CMD_READ`.
    Read,
    /// `NBD_CMD_WRITE`.
    Write,
    /// `NBD_CMD_DISC`.
    Disconnect,
    /// `NBD_CMD_FLUSH`.
    Flush,
    /// `NBD_CMD_WRITE_ZEROES`.
    WriteZeroes,
    /// `NBD_CMD_BLOCK_STATUS`.
    BlockStatus,
}

impl Command {
    /// Its number.
    pub fn number(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
        }
    }
}

/// Flags of commands (`NBD_CMD_FLAG_*`).
pub mod command_flag {
    /// `NBD_CMD_FLAG_FUA`.
    pub const FUA: u16 = 1 << 0;
    /// `NBD_CMD_FLAG_NO_HOLE`.
    pub const NO_HOLE: u16 = 1 << 1;
    /// `NBD_CMD_FLAG_REQ_ONE`.
    pub const REQ_ONE: u16 = 1 << 3;
}

/// Types of chunks of structured replies (`NBD_REPLY_TYPE_*`).
pub mod chunk {
    /// `NBD_REPLY_FLAG_DONE`.
    pub const DONE: u16 = 1 << 0;
    /// `NBD_REPLY_TYPE_NONE`.
    pub const NONE: u16 = 0;
    /// `NBD_REPLY_TYPE_OFFSET_DATA`.
    pub const OFFSET_DATA: u16 = 1;
    /// `NBD_REPLY_TYPE_OFFSET_HOLE`.
    pub const OFFSET_HOLE: u16 = 2;
    /// `NBD_REPLY_TYPE_BLOCK_STATUS`.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in all errors.
    pub const ERROR: u16 = 1 << 15;
}

/// States of an extent (`base:allocation`).
pub mod state {
    /// `NBD_STATE_HOLE`.
    pub const HOLE: u32 = 1 << 0;
    /// `NBD_STATE_ZERO`.
    pub const ZERO: u32 = 1 << 1;
}

/// Error numbers (`NBD_E*`): the same as Linux's.
pub mod error {
    /// `NBD_EPERM`.
    pub const EPERM: u32 = 1;
    /// `NBD_EIO`.
    pub const EIO: u32 = 5;
    /// `NBD_ENOMEM`.
    pub const ENOMEM: u32 = 12;
    /// `NBD_EINVAL`.
    pub const EINVAL: u32 = 22;
    /// `NBD_ENOSPC`.
    pub const ENOSPC: u32 = 28;
    /// `NBD_ESHUTDOWN`.
    pub const ESHUTDOWN: u32 = 108;
}

layout! {
    /// The greeting of a server of the newstyle handshake.
    Greeting, 18, {
        /// [`SERVER_MAGIC`].
        magic: U64,
        /// [`OPTION_MAGIC`].
        style: U64,
        /// Handshake flags.
        flags: U16,
    }
}

layout! {
    /// What precedes the data of an option.
    OptionHead, 16, {
        /// [`OPTION_MAGIC`].
        magic: U64,
        /// The option's number.
        option: U32,
        /// Bytes of its data.
        len: U32,
    }
}

layout! {
    /// What precedes the data of a reply to an option.
    OptionReplyHead, 20, {
        /// [`OPTION_REPLY_MAGIC`].
        magic: U64,
        /// The option.
        option: U32,
        /// The type of the reply.
        kind: U32,
        /// Bytes of its data.
        len: U32,
    }
}

layout! {
    /// An export, as in the answer to `NBD_OPT_EXPORT_NAME`, and as in `NBD_INFO_EXPORT` after its type.
    ExportInfo, 10, {
        /// Bytes of the export.
        size: U64,
        /// Transmission flags.
        flags: U16,
    }
}

layout! {
    /// `NBD_INFO_BLOCK_SIZE`, after its type.
    BlockSizeInfo, 12, {
        /// The minimum block size, in bytes.
        minimum: U32,
        /// The preferred block size, in bytes.
        preferred: U32,
        /// The maximum payload, in bytes.
        maximum: U32,
    }
}

layout! {
    /// A request; the data of a write follows.
    Request, 28, {
        /// [`REQUEST_MAGIC`].
        magic: U32,
        /// Flags of the command.
        flags: U16,
        /// The command.
        command: U16,
        /// Identifies the request in replies.
        cookie: U64,
        /// Offset in the export, in bytes.
        offset: U64,
        /// Length in bytes.
        len: U32,
    }
}

layout! {
    /// A simple reply; the data of a read follows.
    SimpleReply, 16, {
        /// [`SIMPLE_REPLY_MAGIC`].
        magic: U32,
        /// 0: success.
        error: U32,
        /// That of the request.
        cookie: U64,
    }
}

layout! {
    /// What precedes the payload of a chunk of a structured reply.
    ChunkHead, 20, {
        /// [`STRUCTURED_REPLY_MAGIC`].
        magic: U32,
        /// Flags.
        flags: U16,
        /// The type.
        kind: U16,
        /// That of the request.
        cookie: U64,
        /// Bytes of payload.
        len: U32,
    }
}

layout! {
    /// The payload of a hole chunk.
    Hole, 12, {
        /// Offset in the export, in bytes.
        offset: U64,
        /// Length in bytes.
        len: U32,
    }
}

layout! {
    /// The beginning of error chunks; a message follows.
    ErrorHead, 6, {
        /// Not 0.
        error: U32,
        /// Bytes of the message.
        message_len: U16,
    }
}

layout! {
    /// The payload of a block status chunk with one descriptor.
    BlockStatus, 12, {
        /// The metadata context.
        context: U32,
        /// Length in bytes, from the requested offset.
        len: U32,
        /// Its state.
        flags: U32,
    }
}

impl OptionHead {
    /// The head of an option with this many bytes of data.
    pub fn new(option: u32, len: u32) -> OptionHead {
        OptionHead { magic: OPTION_MAGIC.into(), option: option.into(), len: len.into() }
    }
}

impl Request {
    /// A request.
    pub fn new(command: Command, flags: u16, cookie: u64, offset: u64, len: u32) -> Request {
        Request {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.number().into(),
            cookie: cookie.into(),
            offset: offset.into(),
            len: len.into(),
        }
    }

    /// A request to disconnect cleanly; there is no reply.
    pub fn disconnect() -> [u8; 28] {
        let request = Request::new(Command::Disconnect, 0, 0, 0, 0);
        let mut bytes = [0; 28];
        bytes.copy_from_slice(request.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::decoded;

    #[test]
    fn what_qemu_nbd_sends_is_decoded() {
        let greeting: Greeting = decoded(b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!((greeting.magic.get(), greeting.style.get()), (SERVER_MAGIC, OPTION_MAGIC));
        assert_eq!(greeting.flags.get(), handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        let reply: OptionReplyHead =
            decoded(&[0, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 12]);
        assert_eq!((reply.magic.get(), reply.option.get()), (OPTION_REPLY_MAGIC, option::GO));
        assert_eq!((reply.kind.get(), reply.len.get()), (reply::INFO, 12));
        let chunk: ChunkHead =
            decoded(&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0x10, 8]);
        assert_eq!((chunk.magic.get(), chunk.flags.get()), (STRUCTURED_REPLY_MAGIC, chunk::DONE));
        assert_eq!((chunk.kind.get(), chunk.len.get()), (chunk::OFFSET_DATA, 4104));
    }

    #[test]
    fn a_request_is_laid_out_as_the_protocol_has_it() {
        let request = Request::new(Command::Write, command_flag::FUA, 0x0102_0304_0506_0708, 4096, 512);
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 2, 0,
        ];
        assert_eq!(request.as_bytes(), bytes);
        assert_eq!(decoded::<Request>(&bytes), request);
    }
}
