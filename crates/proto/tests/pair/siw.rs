//! What Linux's ib_iser and ib_srp sent over siw, and what our machines answer. The frames in `tests/siw` were captured
//! by `cargo xtask vm frames`: Debian's kernel 6.1 in the virtual machine, `lunette serve` on the host.

mod capture;
mod replay;

use crate::support::rig::START;
use crate::support::{INITIATOR, Setup, TARGET, Transport, addresses};
use capture::{Line, Message, messages, sides};
use proto::iser;
use proto::message::MessageMachine;
use proto::services::Up;
use proto::srp;
use proto::srp::target::TargetConfig;
use proto::srp::target::login::{Access, Applicant};
use replay::{READ, Replay, WRITE};
use std::sync::Arc;
use std::time::Duration;
use wire::iscsi::{BHS_BYTES, BasicHeader, Opcode, Pdu, ScsiCommand, ScsiResponse};
use wire::iser::Header;
use wire::iwarp::{Layout, StartFrame};
use wire::scsi::command::Read10;
use wire::srp::{Descriptor, RejectReason};

const ISER: &str = include_str!("../siw/iser.txt");
const ISER_DISCOVERY: &str = include_str!("../siw/iser_discovery.txt");
const SRP: &str = include_str!("../siw/srp.txt");
const SRP_SECOND: &str = include_str!("../siw/srp_second.txt");

const IDLE: Duration = Duration::from_secs(30);
const CLOSED: &str = "closed by the peer";
/// The stream in one piece.
const WHOLE: usize = usize::MAX;

/// A command as an initiator sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Asked {
    tag: u64,
    cdb: [u8; 16],
    /// What it advertises: STag and offset.
    buffer: Option<(u32, u64)>,
    /// Data in the message.
    inside: Vec<u8>,
}

impl Asked {
    fn lba(&self) -> u32 {
        Read10::read(&self.cdb).lba
    }

    fn len(&self) -> u32 {
        u32::from(Read10::read(&self.cdb).blocks) * 512
    }
}

/// The protocol of one of the transports.
trait Speaks: MessageMachine<Event = Up> + Transport {
    fn new() -> Self;
    fn command(message: &[u8]) -> Option<Asked>;
    /// Tag and status.
    fn response(message: &[u8]) -> Option<(u64, u8)>;
}

impl Speaks for iser::target::Target {
    fn new() -> Self {
        let (from, portal) = addresses();
        let setup = Setup { queue_depth: 128, ..Setup::default() };
        iser::target::Target::new(setup.target(), 1024, Arc::new(setup.access), from, portal, START)
    }

    fn command(message: &[u8]) -> Option<Asked> {
        let (header, pdu) = (Header::view(message).unwrap(), &message[Header::BYTES..]);
        if BasicHeader::view(pdu).unwrap().opcode() != Opcode::SCSI_COMMAND {
            return None;
        }
        let command = ScsiCommand::view(pdu).unwrap();
        Some(Asked {
            tag: command.initiator_task_tag.get().into(),
            cdb: command.cdb,
            buffer: header.read().or(header.write()),
            inside: pdu[BHS_BYTES..].to_vec(),
        })
    }

    fn response(message: &[u8]) -> Option<(u64, u8)> {
        let pdu = &message[Header::BYTES..];
        let is_response = BasicHeader::view(pdu).unwrap().opcode() == Opcode::SCSI_RESPONSE;
        let response = ScsiResponse::view(pdu).filter(|_| is_response)?;
        Some((response.initiator_task_tag.get().into(), response.status))
    }
}

/// Grants all logins.
struct TestAccess;

impl Access for TestAccess {
    fn admit(&self, applicant: &Applicant) -> Result<bool, (RejectReason, String)> {
        Ok(applicant.keeps_others)
    }
}

impl Speaks for srp::target::Target {
    fn new() -> Self {
        let (from, portal) = addresses();
        let target_port = *b"\x02\x4c\x75\0\0\0\0\x01\x02\x4c\x75\0\0\0\0\x01";
        let config = TargetConfig {
            queue_depth: 128,
            max_it_iu_bytes: 80 + 8192,
            target_port,
            login_within: IDLE,
            idle: IDLE,
        };
        srp::target::Target::new(config, Arc::new(TestAccess), from, portal, START)
    }

    fn command(message: &[u8]) -> Option<Asked> {
        if message[0] != wire::srp::Opcode::COMMAND.0 {
            return None;
        }
        let command = wire::srp::CommandUnit::split(message).unwrap();
        let mut asked =
            Asked { tag: command.head.tag.get(), cdb: command.head.cdb, buffer: None, inside: Vec::new() };
        for descriptor in [&command.data_out, &command.data_in] {
            match descriptor {
                Descriptor::None => {}
                Descriptor::Direct(direct) => asked.buffer = Some((direct.key.get(), direct.address.get())),
                Descriptor::Immediate { .. } => asked.inside = message[68..].to_vec(),
                Descriptor::Indirect(table) => panic!("{} descriptors", table.list.len()),
            }
        }
        Some(asked)
    }

    fn response(message: &[u8]) -> Option<(u64, u8)> {
        if message[0] != wire::srp::Opcode::RESPONSE.0 {
            return None;
        }
        let response = wire::srp::Response::view(message).unwrap();
        Some((response.tag.get(), response.status))
    }
}

/// What siw sent.
fn asked(capture: &str) -> Vec<Message> {
    messages(sides(capture).0.iter().filter_map(Line::frame))
}

/// What the daemon answered when the capture was made.
fn recorded(capture: &str) -> Vec<Message> {
    messages(sides(capture).1.iter().filter_map(Line::frame))
}

/// The results of `of` for the messages that are Sends.
fn sends<T>(messages: &[Message], of: fn(&[u8]) -> Option<T>) -> Vec<T> {
    let send = |message: &Message| if let Message::Send { bytes } = message { of(bytes) } else { None };
    messages.iter().filter_map(send).collect()
}

/// The successful reads and writes of a capture, each with its first response: tags are reused.
fn transfers<M: Speaks>(capture: &str) -> Vec<Asked> {
    let mut responses = sends(&recorded(capture), M::response);
    let mut commands = sends(&asked(capture), M::command);
    commands.retain(|asked| {
        let response = responses.iter().position(|(tag, _)| *tag == asked.tag).unwrap();
        let (_, status) = responses.remove(response);
        status == 0 && [READ, WRITE].contains(&asked.cdb[0])
    });
    commands
}

/// One piece of RDMA.
#[derive(PartialEq, Eq, Debug)]
enum Piece {
    Written { offset: u64, len: usize },
    Read { offset: u64, len: u32 },
}

/// How the data of a command was moved.
fn moved(asked: &Asked, answers: &[Message]) -> Vec<Piece> {
    let is_its = |stag: u32| asked.buffer.is_some_and(|(buffer, _)| buffer == stag);
    let piece = |message: &Message| match message {
        Message::Write { stag, offset, data } if is_its(*stag) => {
            Some(Piece::Written { offset: *offset, len: data.len() })
        }
        Message::ReadRequest { stag, offset, len, .. } if is_its(*stag) => {
            Some(Piece::Read { offset: *offset, len: *len })
        }
        _ => None,
    };
    answers.iter().filter_map(piece).collect()
}

/// Reads and writes of every kind are answered with the same RDMA as in the capture, with the data of the
/// disk.
fn data_moves_as_it_did<M: Speaks>(capture: &str) {
    let replay = Replay::<M>::play(M::new(), capture, WHOLE);
    let answers = replay.answers();
    let mut tags = [
        sends(&asked(capture), |bytes| M::command(bytes).map(|asked| asked.tag)),
        sends(&answers, |bytes| M::response(bytes).map(|(tag, _)| tag)),
    ];
    tags.iter_mut().for_each(|tags| tags.sort_unstable());
    assert_eq!(tags[0], tags[1], "each command has one response");
    let recorded = recorded(capture);
    for asked in &transfers::<M>(capture) {
        assert_eq!(moved(asked, &answers), moved(asked, &recorded), "{asked:?}");
        if asked.cdb[0] == READ {
            let (stag, offset) = asked.buffer.unwrap();
            assert_eq!(written(&answers, stag, offset), replay.disk(asked.lba(), asked.len()), "{asked:?}");
        }
    }
    assert!(pattern(replay.disk(64, 4096)) && pattern(replay.disk(96, 16_384)));
}

/// The content that RDMA Writes have put into a buffer, from its beginning on.
fn written(answers: &[Message], buffer: u32, from: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in answers {
        match message {
            Message::Write { stag, offset, data } if *stag == buffer => {
                assert_eq!(*offset, from + bytes.len() as u64);
                bytes.extend(data);
            }
            _ => {}
        }
    }
    bytes
}

/// Whether this is what the guest wrote.
fn pattern(bytes: &[u8]) -> bool {
    bytes.chunks(64).zip(0..).all(|(chunk, n)| chunk.iter().all(|byte| u32::from(*byte) == 33 + n % 94))
}

#[test]
fn ib_iser_s_data_moves_as_it_did() {
    data_moves_as_it_did::<iser::target::Target>(ISER);
}

#[test]
fn ib_srp_s_data_moves_as_it_did() {
    data_moves_as_it_did::<srp::target::Target>(SRP);
}

/// Small writes are inside the message; longer data is read.
#[test]
fn data_lies_where_linux_puts_it() {
    let kinds = |transfers: Vec<Asked>| -> Vec<(u8, u32, usize, bool)> {
        let kind = |asked: &Asked| (asked.cdb[0], asked.len(), asked.inside.len(), asked.buffer.is_some());
        transfers.iter().map(kind).collect()
    };
    let iser = kinds(transfers::<iser::target::Target>(ISER));
    for kind in [(WRITE, 4096, 4096, false), (WRITE, 16_384, 8192, true), (READ, 16_384, 0, true)] {
        assert!(iser.contains(&kind), "{iser:?}");
    }
    let srp = kinds(transfers::<srp::target::Target>(SRP));
    for kind in [(WRITE, 4096, 4096, false), (WRITE, 16_384, 0, true), (READ, 16_384, 0, true)] {
        assert!(srp.contains(&kind), "{srp:?}");
    }
}

#[test]
fn connections_are_requested_and_granted_as_recorded() {
    let start = |messages: Vec<Message>| match messages.into_iter().next() {
        Some(Message::Start { flags, private_data }) => (flags, private_data),
        other => panic!("{other:?}"),
    };
    let iser = (StartFrame::ENHANCED, vec![0, 0x80, 0, 1, 0x80, 0, 0, 0]);
    assert_eq!([start(asked(ISER)), start(asked(ISER_DISCOVERY))], [iser.clone(), iser]);
    for capture in [ISER, ISER_DISCOVERY] {
        let replay = Replay::<iser::target::Target>::play(Speaks::new(), capture, WHOLE);
        assert_eq!(start(replay.answers()), start(recorded(capture)));
    }
    for capture in [SRP, SRP_SECOND] {
        let (flags, private_data) = start(asked(capture));
        assert_eq!(
            (flags, &private_data[..4], private_data.len()),
            (StartFrame::ENHANCED, &[0, 4, 0, 0][..], 60)
        );
        let replay = Replay::<srp::target::Target>::play(Speaks::new(), capture, WHOLE);
        let mut granted = [start(replay.answers()), start(recorded(capture))];
        // The number of requests is up to the target.
        granted.iter_mut().for_each(|(_, private_data)| private_data[8..12].fill(0));
        assert_eq!(granted[0], granted[1]);
    }
}

#[test]
fn linux_logs_in_and_goes() {
    for (capture, target, gone) in [(ISER_DISCOVERY, None, CLOSED), (ISER, Some(TARGET), "logged out")] {
        let replay = Replay::<iser::target::Target>::play(Speaks::new(), capture, WHOLE);
        let session = replay.session.unwrap();
        assert_eq!((session.initiator.as_str(), session.target.as_deref()), (INITIATOR, target));
        assert_eq!(replay.gone.as_deref(), Some(gone));
    }
    // ib_srp closes the connection without a logout.
    for (capture, keeps_others) in [(SRP, false), (SRP_SECOND, true)] {
        let replay = Replay::<srp::target::Target>::play(Speaks::new(), capture, WHOLE);
        assert_eq!(replay.session.unwrap().keeps_others, keeps_others);
        assert_eq!(replay.gone.as_deref(), Some(CLOSED));
    }
}

#[test]
fn the_same_comes_of_single_bytes() {
    for capture in [ISER, ISER_DISCOVERY] {
        let play = |chunk| Replay::<iser::target::Target>::play(Speaks::new(), capture, chunk).answers();
        assert_eq!(play(1), play(WHOLE));
    }
    for capture in [SRP, SRP_SECOND] {
        let play = |chunk| Replay::<srp::target::Target>::play(Speaks::new(), capture, chunk).answers();
        assert_eq!(play(1), play(WHOLE));
    }
}
