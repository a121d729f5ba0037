//! Commands of AoE that are not ATA (AoEr11 sections 3.2 to 3.4): a vendor-specific CDB becomes a frame, and
//! its answer becomes data-in, or the sense data of a [`Refusal`].

use super::failure::{Failure, check, truncated};
use crate::aoe::Frame;
use crate::iscsi::initiator::Request;
use crate::services::TaskId;
use wire::aoe::{
    CONFIG_BYTES_MAX, Command, ConfigArgument, Directive, ErrorCode, Header, Mac, MaskArgument, MaskCommand,
    MaskError, Order, OrderKind, Query, QueryKind, Refusal, ReserveArgument, ReserveCommand,
};
use wire::iwarp::Layout;
use wire::scsi::{code, status};
use wire::{Cdb, Places, SenseKey};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

/// Bytes of the AoE header in the payload of an Ethernet frame.
const AOE_BYTES: u32 = 10;

/// An order or a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    /// AoE command, and its subcommand.
    codes: (Command, u8),
    /// Entries of its argument.
    entries: u16,
    /// It gets no answer where it does not match.
    pub is_test: bool,
}

/// The answer.
pub(super) enum Answered {
    /// This many bytes of the frame, from this offset on.
    Data { at: u32, len: u32 },
    /// It was refused.
    Failed(Failure),
}

impl Asked {
    /// Decodes a CDB. Its argument must fit into a frame of this MTU.
    pub(super) fn of(request: &Request, mtu: u32) -> Result<Asked, Failure> {
        let refused = || refused(Refusal::Error(ErrorCode::BAD_ARGUMENT));
        let (codes, bytes, is_test) = codes(&request.cdb).ok_or_else(refused)?;
        let (entry_bytes, entries_max) = shape(codes);
        let entries = bytes.checked_div(entry_bytes).and_then(|entries| u16::try_from(entries).ok());
        let entries = entries.filter(|entries| *entries <= entries_max).ok_or_else(refused)?;
        let is_whole = bytes.checked_rem(entry_bytes) == Some(0);
        let asked = Asked { codes, entries, is_test };
        let frame_bytes = AOE_BYTES.saturating_add(asked.argument_bytes()).saturating_add(bytes);
        if is_whole && bytes <= request.write.len() && frame_bytes <= mtu {
            Ok(asked)
        } else {
            Err(refused())
        }
    }

    /// The AoE command.
    pub(super) fn command(self) -> Command {
        self.codes.0
    }

    /// Bytes of its data-out.
    pub(super) fn bytes(self) -> u32 {
        u32::from(self.entries).saturating_mul(shape(self.codes).0)
    }

    /// Bytes of the argument before its data.
    fn argument_bytes(self) -> u32 {
        let bytes = match self.command() {
            Command::CONFIG => ConfigArgument::BYTES,
            Command::MASK => MaskArgument::BYTES,
            _ => ReserveArgument::BYTES,
        };
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    /// Its frame.
    pub(super) fn frame(self, header: &Header, data: &Places, task: TaskId) -> Frame {
        let (payload, (command, code)) = (data.slice(0, self.bytes()), self.codes);
        // The count is one byte.
        let count = u8::try_from(self.entries).unwrap_or(u8::MAX);
        let of = |argument: &[u8]| Frame::new([header.as_bytes(), argument], payload, Some(task));
        match command {
            Command::CONFIG => {
                let version_command = (Header::VERSION << 4) | code;
                let len = U16::new(self.entries);
                of(ConfigArgument { version_command, len, ..ConfigArgument::default() }.as_bytes())
            }
            Command::MASK => {
                of(MaskArgument { command: MaskCommand(code), count, ..MaskArgument::default() }.as_bytes())
            }
            _ => of(ReserveArgument { command: ReserveCommand(code), count }.as_bytes()),
        }
    }

    /// The answer in a frame.
    pub(super) fn answer(self, header: &Header, frame: &[u8]) -> Answered {
        Answered::Failed(match header.refusal() {
            Some(ErrorCode::TARGET_IS_RESERVED) => {
                Failure { status: status::RESERVATION_CONFLICT, sense: None }
            }
            Some(ErrorCode::DEVICE_UNAVAILABLE) => check(SenseKey::NotReady, code::NOT_READY),
            Some(error) => refused(Refusal::Error(error)),
            None => return self.good_answer(frame).unwrap_or(Answered::Failed(truncated())),
        })
    }

    /// The answer in a frame without an error; `None`: it is truncated.
    fn good_answer(self, frame: &[u8]) -> Option<Answered> {
        let (_, rest) = frame.split_at_checked(Header::BYTES)?;
        let entries = match self.command() {
            Command::CONFIG => ConfigArgument::view(rest)?.len.get(),
            Command::MASK => {
                let MaskArgument { error, count, .. } = *MaskArgument::view(rest)?;
                if error != MaskError::NONE {
                    return Some(Answered::Failed(refused(Refusal::Mask { error, done: count })));
                }
                u16::from(count)
            }
            _ => u16::from(ReserveArgument::view(rest)?.count),
        };
        let at = u32::try_from(Header::BYTES).unwrap_or(u32::MAX).saturating_add(self.argument_bytes());
        let len = u32::from(entries).saturating_mul(shape(self.codes).0);
        let end = usize::try_from(at.saturating_add(len)).unwrap_or(usize::MAX);
        (end <= frame.len()).then_some(Answered::Data { at, len })
    }
}

/// The failure of a test that is not answered.
pub(super) fn no_match() -> Failure {
    check(SenseKey::Miscompare, code::MISCOMPARE_DURING_VERIFY)
}

fn refused(refusal: Refusal) -> Failure {
    Failure { status: status::CHECK_CONDITION, sense: Some(refusal.sense()) }
}

/// Command and subcommand, bytes of the argument, and whether it is a test.
fn codes(cdb: &Cdb) -> Option<((Command, u8), u32, bool)> {
    if let Some(Query { kind, argument_bytes }) = Query::from_cdb(cdb) {
        let is_test = match kind {
            QueryKind::Read => false,
            QueryKind::Test | QueryKind::TestPrefix => true,
        };
        return Some((kind.codes(), argument_bytes, is_test));
    }
    let Order { kind, argument_bytes } = Order::from_cdb(cdb)?;
    let argument_bytes = match kind {
        OrderKind::ReadMask | OrderKind::ReadReserve => 0,
        OrderKind::SetConfig
        | OrderKind::ForceConfig
        | OrderKind::EditMask
        | OrderKind::SetReserve
        | OrderKind::ForceReserve => argument_bytes,
    };
    Some((kind.codes(), argument_bytes, false))
}

/// Bytes of an entry of the argument, and the most entries.
fn shape((command, _): (Command, u8)) -> (u32, u16) {
    let of = |bytes: usize| (u32::try_from(bytes).unwrap_or(u32::MAX), u16::from(u8::MAX));
    match command {
        Command::CONFIG => (1, CONFIG_BYTES_MAX),
        Command::MASK => of(Directive::BYTES),
        _ => of(Mac::BYTES),
    }
}
