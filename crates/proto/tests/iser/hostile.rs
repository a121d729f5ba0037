//! A target against an initiator that is played by the test: Linux's, and those that lie.

use super::fabric::{End, Posted};
use super::pair::target;
use crate::support::{DISK, INITIATOR, Memory, Random, Setup, TARGET};
use proto::iser::target::Target;
use proto::message::{Advertised, Answer, MessageMachine};
use proto::time::Time;
use proto::verbs::{Command, Down, Ending, Function, FunctionResponse, Up};
use wire::iscsi::{
    AsyncMessage, BHS_BYTES, BasicHeader, DataOut, FINAL, LoginRequest, LoginResponse, NopIn, NopOut, Opcode,
    Pdu, Reject, RejectReason, ScsiCommand, ScsiResponse, TAG_NONE, TaskFunction, TaskManagementRequest,
    TaskManagementResponse, U24,
};
use wire::iser::Header;
use wire::{Places, Span};
use zerocopy::IntoBytes;

const NOW: Time = Time(1_000_000);
const GOOD: Ending = Ending { status: 0, sense: None, read_bytes: 0, write_bytes: 0 };
const NOTHING: Option<(u32, u64)> = None;
/// What Linux offers in its operational stage.
const LINUX: &str = "HeaderDigest=None\0DataDigest=None\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0IFMarker=No\0\
    OFMarker=No\0ErrorRecoveryLevel=0\0InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=16776192\0\
    FirstBurstLength=262144\0MaxOutstandingR2T=1\0MaxConnections=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
    RDMAExtensions=Yes\0InitiatorRecvDataSegmentLength=262144\0TargetRecvDataSegmentLength=8192\0";

/// A target, and what its initiator sees.
struct Raw {
    end: End<Target>,
    memory: Memory,
    random: Random,
    now: Time,
}

impl Raw {
    fn new(private_data: &[u8]) -> Raw {
        let mut random = Random::new(1);
        let memory = Memory::new(&mut random);
        let mut machine = target(&mut Setup::default(), NOW);
        assert!(matches!(machine.asked(NOW, private_data), Answer::Accept(_)));
        machine.established(NOW, &[]);
        let mut raw = Raw { end: End::new(machine), memory, random, now: NOW };
        raw.post();
        raw
    }

    /// Logged in with these keys.
    fn logged_in(keys: &str) -> (Raw, String) {
        let mut raw = Raw::new(&[0x80, 0, 0, 0]);
        let text = raw.login(keys);
        match raw.up() {
            Up::Ready(session) => assert_eq!(session.initiator, INITIATOR),
            other => panic!("{other:?}"),
        }
        (raw, text)
    }

    fn login(&mut self, keys: &str) -> String {
        self.login_to(&format!("TargetName={TARGET}\0SessionType=Normal\0{keys}"))
    }

    fn login_to(&mut self, keys: &str) -> String {
        let pdu = LoginRequest {
            opcode: Opcode::LOGIN_REQUEST.0 | Opcode::IMMEDIATE,
            flags: LoginRequest::TRANSIT | 0x07,
            cmd_sn: 1.into(),
            ..LoginRequest::default()
        };
        let text = format!("InitiatorName={INITIATOR}\0{keys}");
        self.send(Header::control(None, None), pdu.as_bytes(), text.as_bytes());
        let (bhs, text, _) = self.sent::<LoginResponse>();
        assert!(bhs.status.class != 0 || bhs.flags & LoginResponse::TRANSIT != 0, "{bhs:?}");
        String::from_utf8(text).unwrap()
    }

    fn post(&mut self) {
        while self.end.post(self.now, &mut self.memory, &mut self.random) {}
    }

    /// A message arrives, of a PDU with this data.
    fn send(&mut self, header: Header, pdu: &[u8], data: &[u8]) {
        let mut pdu = pdu.to_vec();
        pdu[5..8].copy_from_slice(U24::new(data.len() as u32).as_bytes());
        self.send_bytes([header.as_bytes(), &pdu, data].concat());
    }

    fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.end.receive(self.now, bytes, None);
        self.post();
    }

    fn down(&mut self, down: Down) {
        self.end.machine.down(self.now, down);
        self.post();
    }

    fn up(&mut self) -> Up {
        self.end.machine.poll().expect("an event")
    }

    fn command(&mut self) -> Command {
        match self.up() {
            Up::Command(command) => command,
            other => panic!("{other:?}"),
        }
    }

    fn gone(&mut self) -> String {
        loop {
            match self.up() {
                Up::Gone { reason } => {
                    assert!(self.end.machine.is_over() && self.end.machine.poll().is_none());
                    return reason;
                }
                Up::Command(_) | Up::Refused { .. } | Up::FetchFailed(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The oldest work that the target has posted.
    fn posted(&mut self) -> Posted {
        self.end.queues.posted.pop_front().expect("posted work")
    }

    /// The oldest work is a message with this PDU, which is also said to be done.
    fn sent<P: Pdu>(&mut self) -> (P, Vec<u8>, Option<u32>) {
        match self.posted() {
            Posted::Send { work, header, payload, invalidate } => {
                assert!(payload.is_empty());
                self.end.machine.finished(self.now, work);
                let pdu = &header[28..];
                let basic = BasicHeader::view(pdu).unwrap();
                assert_eq!((header[0], basic.opcode()), (0x10, P::OPCODE), "{header:?}");
                let len = basic.data_segment_length.get() as usize;
                (*P::view(pdu).unwrap(), pdu[BHS_BYTES..BHS_BYTES + len].to_vec(), invalidate)
            }
            other => panic!("{other:?}"),
        }
    }

    fn rejected(&mut self, reason: RejectReason) {
        assert!(matches!(self.up(), Up::Refused { .. }));
        assert_eq!(self.sent::<Reject>().0.reason, reason);
    }

    fn quiet(&mut self) {
        assert!(self.end.machine.poll().is_none() && self.end.queues.posted.is_empty());
    }
}

fn read(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand {
        flags: FINAL | ScsiCommand::READ | ScsiCommand::SIMPLE,
        initiator_task_tag: tag.into(),
        expected_data_transfer_length: len.into(),
        cmd_sn: cmd_sn.into(),
        ..ScsiCommand::default()
    }
}

fn write(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand { flags: FINAL | ScsiCommand::WRITE | ScsiCommand::SIMPLE, ..read(tag, cmd_sn, len) }
}

fn disk(at: u32, len: u32) -> Places {
    Places::one(Span { buffer: DISK, offset: at.into(), len })
}

#[test]
fn linux_logs_in() {
    let (raw, text) = Raw::logged_in(LINUX);
    let has = |pair: &str| text.split('\0').any(|found| found == pair);
    for pair in [
        "RDMAExtensions=Yes",
        "InitiatorRecvDataSegmentLength=8192",
        "TargetRecvDataSegmentLength=8192",
        "HeaderDigest=None",
        "DataDigest=None",
        "InitialR2T=No",
        "ImmediateData=Yes",
        "FirstBurstLength=8192",
        "MaxBurstLength=262144",
    ] {
        assert!(has(pair), "{pair} in {text:?}");
    }
    // open-iscsi gives up when it is told a key that it does not know.
    assert!(!text.contains("MaxOutstandingUnexpectedPDUs") && !text.contains("MaxRecvData"), "{text:?}");
    // 8 commands, each with one Data-Out, immediate requests, and answers to our own.
    assert_eq!(raw.end.machine.receives().count, 8 * 2 + 16 + 2);
}

/// The standard has no discovery over iSER, but Linux has, and asks for RDMA there, too.
#[test]
fn linux_discovers() {
    let mut raw = Raw::new(&[0x80, 0, 0, 0]);
    let text = raw.login_to(&format!("SessionType=Discovery\0{LINUX}MaxRecvDataSegmentLength=32768\0"));
    assert!(matches!(raw.up(), Up::Ready(session) if session.target.is_none()));
    assert!(
        text.contains("RDMAExtensions=Yes\0") && text.contains("MaxBurstLength=Irrelevant\0"),
        "{text:?}"
    );
}

#[test]
fn every_other_key_of_iser_has_its_answer() {
    let keys = "MaxOutstandingUnexpectedPDUs=4\0MaxAHSLength=512\0TaggedBufferForSolicitedDataOnly=No\0\
        iSERHelloRequired=Yes\0TargetRecvDataSegmentLength=512\0RDMAExtensions=Yes\0HeaderDigest=CRC32C\0\
        FirstBurstLength=8192\0";
    let (raw, text) = Raw::logged_in(keys);
    let has = |pair: &str| text.split('\0').any(|found| found == pair);
    for pair in [
        "MaxOutstandingUnexpectedPDUs=16",
        "iSERHelloRequired=No",
        "TargetRecvDataSegmentLength=512",
        "HeaderDigest=Reject",
    ] {
        assert!(has(pair), "{pair} in {text:?}");
    }
    assert!(!text.contains("MaxAHS") && !text.contains("TaggedBuffer"), "{text:?}");
    assert!(raw.end.machine.receives().count <= 4096);
}

#[test]
fn a_session_without_rdma_is_refused() {
    for keys in ["FirstBurstLength=8192\0", "FirstBurstLength=8192\0RDMAExtensions=No\0"] {
        let mut raw = Raw::new(&[]);
        raw.login(keys);
        let gone = raw.gone();
        assert!(gone.contains("RDMAExtensions"), "{gone}");
    }
}

/// A login frame that is cut anywhere in its headers ends the connection, and is answered by nothing.
#[test]
fn short_login_frames_are_refused() {
    let login = LoginRequest { opcode: 0x43, flags: 0x87, ..LoginRequest::default() };
    let whole = [Header::control(None, None).as_bytes(), login.as_bytes()].concat();
    for len in 0..whole.len() {
        let mut raw = Raw::new(&[0x80, 0, 0, 0]);
        raw.send_bytes(whole[..len].to_vec());
        let gone = raw.gone();
        assert!(gone.contains("shorter than its headers"), "{len}: {gone}");
        assert!(raw.end.queues.posted.is_empty());
    }
    for (len, data) in [(1, 0), (100, 99), (100, 101), (0, 1), (5, 12)] {
        let mut raw = Raw::new(&[0x80, 0, 0, 0]);
        let mut bytes = whole.clone();
        bytes[28 + 7] = len;
        bytes.resize(76 + data, 0);
        raw.send_bytes(bytes);
        let gone = raw.gone();
        assert!(gone.contains("length of the message"), "{len} {data}: {gone}");
    }
}

#[test]
fn hello_and_unknown_messages_end_the_connection() {
    for (flags, why) in [(0x20, "Hello"), (0x30, "Hello"), (0x00, "opcode"), (0x4c, "opcode")] {
        let (mut raw, _) = Raw::logged_in(LINUX);
        let header = Header { flags, ..Header::control(None, None) };
        raw.send(header, NopOut::default().as_bytes(), &[]);
        let gone = raw.gone();
        assert!(gone.contains(why), "{gone}");
    }
}

#[test]
fn a_command_must_advertise_what_it_needs() {
    for (pdu, write_stag, read_stag, why) in [
        (read(7, 1, 512), NOTHING, NOTHING, Some("no read STag")),
        (read(7, 1, 512), Some((1, 0)), NOTHING, Some("no read STag")),
        (write(7, 1, 512), NOTHING, NOTHING, Some("no write STag")),
        (write(7, 1, 512), NOTHING, Some((1, 0)), Some("no write STag")),
        (read(7, 1, 512), Some((1, 0)), Some((2, 0)), None),
        (write(7, 1, 512), Some((1, 0)), Some((2, 0)), None),
        (read(7, 1, 0), NOTHING, NOTHING, None),
    ] {
        let (mut raw, _) = Raw::logged_in(LINUX);
        raw.send(Header::control(write_stag, read_stag), pdu.as_bytes(), &[]);
        match why {
            Some(why) => {
                let gone = raw.gone();
                assert!(gone.contains(why), "{gone}");
            }
            None => assert_eq!(raw.command().unsolicited_bytes, 0),
        }
    }
}

/// Where the rest of a write is read from: with Linux the offset counts in what came unasked; the standard's default is
/// that it does not.
#[test]
fn the_base_offset_of_a_write_is_as_the_initiator_means_it() {
    for (key, offset) in [
        ("", 0x10_0000),
        ("TaggedBufferForSolicitedDataOnly=Yes\0", 0x10_0000),
        ("TaggedBufferForSolicitedDataOnly=No\0", 0x10_2000),
    ] {
        let (mut raw, _) = Raw::logged_in(&format!("{LINUX}{key}"));
        let header = Header::control(Some((77, 0x10_0000)), None);
        raw.send(header, write(7, 1, 12_288).as_bytes(), &[0xab; 8192]);
        let command = raw.command();
        assert_eq!((command.write_bytes, command.unsolicited_bytes), (12_288, 8192));
        raw.down(Down::Fetch { task: command.task, at: 0, into: disk(0, 12_288) });
        let Posted::Read { work, into, from } = raw.posted() else { panic!("no read") };
        assert_eq!((into, from), (disk(8192, 4096), Advertised { stag: 77, offset }));
        assert_eq!(raw.memory.at(Span { buffer: DISK, offset: 0, len: 8192 }), [0xab; 8192]);
        assert!(raw.end.machine.poll().is_none(), "the rest is still to come");
        raw.end.machine.finished(raw.now, work);
        assert!(matches!(raw.up(), Up::Fetched(task) if task == command.task));
        raw.down(Down::End { task: command.task, ending: Ending { write_bytes: 12_288, ..GOOD } });
        let (response, _, invalidate) = raw.sent::<ScsiResponse>();
        assert_eq!((response.status, invalidate), (0, Some(77)));
        assert_eq!(raw.end.queues.held(), 0);
    }
}

/// A peer that cannot take it is not sent it.
#[test]
fn nothing_is_invalidated_for_a_peer_that_cannot() {
    for private_data in [&[0xc0, 0, 0, 0][..], &[], &[0x80]] {
        let mut raw = Raw::new(private_data);
        raw.login(LINUX);
        assert!(matches!(raw.up(), Up::Ready(_)));
        raw.send(Header::control(None, Some((5, 64))), read(7, 1, 512).as_bytes(), &[]);
        let task = raw.command().task;
        raw.down(Down::Push {
            task,
            at: 0,
            from: disk(0, 512),
            end: Some(Ending { read_bytes: 512, ..GOOD }),
        });
        let Posted::Write { work, to, .. } = raw.posted() else { panic!("no write") };
        assert_eq!(to, Advertised { stag: 5, offset: 64 });
        raw.end.machine.finished(raw.now, work);
        assert!(matches!(raw.up(), Up::Pushed(pushed) if pushed == task));
        let (response, data, invalidate) = raw.sent::<ScsiResponse>();
        assert_eq!((response.status, data.len(), invalidate), (0, 0, None));
    }
}

/// Both ways at once: the read STag comes back, and the response waits for the read of the data-out.
#[test]
fn a_bidirectional_command_reads_and_writes() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    let pdu = ScsiCommand { total_ahs_length: 2, ..write(7, 1, 512) };
    let pdu = ScsiCommand { flags: pdu.flags | ScsiCommand::READ, ..pdu };
    let segments = [0, 5, 2, 0, 0, 0, 4, 0];
    let header = Header::control(Some((1, 0)), Some((2, 0)));
    raw.send(header, &[pdu.as_bytes(), &segments].concat(), &[]);
    let command = raw.command();
    assert_eq!((command.write_bytes, command.read_bytes), (512, 1024));
    raw.down(Down::Fetch { task: command.task, at: 0, into: disk(0, 512) });
    let Posted::Read { work, .. } = raw.posted() else { panic!("no read") };
    let ending = Ending { read_bytes: 1024, write_bytes: 512, ..GOOD };
    raw.down(Down::Push { task: command.task, at: 0, from: disk(0, 1024), end: Some(ending) });
    assert!(matches!(raw.posted(), Posted::Write { .. }));
    assert!(raw.end.queues.posted.is_empty(), "the write STag is in use");
    raw.end.machine.finished(raw.now, work);
    raw.post();
    assert_eq!(raw.sent::<ScsiResponse>().2, Some(2));
}

#[test]
fn data_out_that_nobody_asked_for_is_refused() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    let header = Header::control(Some((1, 0)), None);
    raw.send(header, write(7, 1, 100_000).as_bytes(), &[]);
    let task = raw.command().task;
    raw.down(Down::Fetch { task, at: 0, into: disk(0, 100_000) });
    assert!(matches!(raw.posted(), Posted::Read { .. }));
    // For the read that is under way, by any tag; and unasked, when the command said that there is none.
    for transfer_tag in [0, 1, 0x0001_0000, TAG_NONE] {
        let pdu = DataOut {
            flags: FINAL,
            initiator_task_tag: 7.into(),
            target_transfer_tag: transfer_tag.into(),
            ..DataOut::default()
        };
        raw.send(Header::control(None, None), pdu.as_bytes(), &[1; 512]);
        raw.rejected(RejectReason::INVALID_FIELD);
    }
    raw.quiet();
    assert_eq!(raw.end.queues.held(), 0);
}

/// Data in several messages, out of place, or too much: the task ends, and its messages come home.
#[test]
fn unsolicited_data_is_put_together_or_refused() {
    let data_out = |data_sn: u32, offset: u32, last: bool| DataOut {
        flags: if last { FINAL } else { 0 },
        initiator_task_tag: 7.into(),
        target_transfer_tag: TAG_NONE.into(),
        data_sn: data_sn.into(),
        buffer_offset: offset.into(),
        ..DataOut::default()
    };
    for (offset, len, good) in [(4096, 4096, true), (0, 4096, false), (4096, 4100, false), (8192, 0, false)] {
        let (mut raw, _) = Raw::logged_in(LINUX);
        let pdu = ScsiCommand { flags: ScsiCommand::WRITE, ..write(7, 1, 8192) };
        raw.send(Header::control(None, None), pdu.as_bytes(), &[3; 4096]);
        let command = raw.command();
        assert_eq!(command.unsolicited_bytes, 8192);
        // Its message waits, and the next one, until there is a place.
        raw.send(Header::control(None, None), data_out(0, offset, true).as_bytes(), &vec![4; len]);
        if good {
            assert_eq!(raw.end.queues.held(), 2);
            raw.down(Down::Fetch { task: command.task, at: 0, into: disk(0, 8192) });
            assert!(matches!(raw.up(), Up::Fetched(_)));
            assert_eq!(raw.memory.at(Span { buffer: DISK, offset: 4095, len: 2 }), [3, 4]);
            raw.down(Down::End { task: command.task, ending: Ending { write_bytes: 8192, ..GOOD } });
            assert_eq!(raw.sent::<ScsiResponse>().0.status, 0);
        } else {
            assert!(matches!(raw.up(), Up::FetchFailed(_)));
            assert!(matches!(raw.up(), Up::Refused { .. }));
            assert_eq!(raw.sent::<ScsiResponse>().0.status, 2);
        }
        raw.quiet();
        assert_eq!(raw.end.queues.held(), 0);
    }
}

/// What the initiator is told of an abort waits for the reads of what it will take back.
#[test]
fn an_abort_is_answered_after_the_reads() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    raw.send(Header::control(Some((1, 0)), None), write(7, 1, 100_000).as_bytes(), &[]);
    let task = raw.command().task;
    raw.down(Down::Fetch { task, at: 0, into: disk(0, 100_000) });
    let Posted::Read { work, .. } = raw.posted() else { panic!("no read") };
    let pdu = TaskManagementRequest {
        opcode: Opcode::TASK_MANAGEMENT_REQUEST.0 | Opcode::IMMEDIATE,
        flags: FINAL | TaskFunction::ABORT_TASK.0,
        initiator_task_tag: 8.into(),
        referenced_task_tag: 7.into(),
        cmd_sn: 2.into(),
        ..TaskManagementRequest::default()
    };
    raw.send(Header::control(None, None), pdu.as_bytes(), &[]);
    let Up::Function { id, function: Function::AbortTask(Some(aborted)), .. } = raw.up() else {
        panic!("no function")
    };
    assert_eq!(aborted, task);
    raw.down(Down::Abort { task });
    raw.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
    raw.quiet();
    raw.end.machine.finished(raw.now, work);
    raw.post();
    raw.sent::<TaskManagementResponse>();
    raw.quiet();
}

/// An ending that does not wait for the data-out is told once the reads are over.
#[test]
fn a_response_waits_for_the_reads() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    raw.send(Header::control(Some((1, 0)), None), write(7, 1, 100_000).as_bytes(), &[]);
    let task = raw.command().task;
    raw.down(Down::Fetch { task, at: 0, into: disk(0, 100_000) });
    let Posted::Read { work, .. } = raw.posted() else { panic!("no read") };
    raw.down(Down::End { task, ending: Ending { status: 0x40, ..GOOD } });
    raw.quiet();
    raw.end.machine.finished(raw.now, work);
    raw.post();
    let (response, _, invalidate) = raw.sent::<ScsiResponse>();
    assert_eq!((response.status, invalidate), (0x40, Some(1)));
    raw.quiet();
}

/// Immediate requests are bounded by their receives while nothing of what is answered leaves.
#[test]
fn a_flood_of_pings_keeps_its_receives() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    raw.end.queues.room = 0;
    let ping = NopOut {
        opcode: Opcode::NOP_OUT.0 | Opcode::IMMEDIATE,
        flags: FINAL,
        initiator_task_tag: 9.into(),
        target_transfer_tag: TAG_NONE.into(),
        cmd_sn: 1.into(),
        ..NopOut::default()
    };
    let receives = usize::from(raw.end.machine.receives().count);
    let mut taken = 0;
    while raw.end.queues.held() < receives {
        raw.send(Header::control(None, None), ping.as_bytes(), &[]);
        taken += 1;
        assert!(taken < 200, "a flood has no end");
    }
    raw.end.queues.room = 1 << 20;
    raw.post();
    assert_eq!((raw.end.queues.held(), raw.end.queues.posted.len()), (0, taken));
}

/// The initiator takes two PDUs that it does not expect until it has acknowledged them; one of them may be a ping.
#[test]
fn unexpected_pdus_are_no_more_than_the_initiator_takes() {
    let (mut raw, _) = Raw::logged_in(&format!("{LINUX}MaxOutstandingUnexpectedPDUs=2\0"));
    for cmd_sn in 1..5 {
        let snack = NopOut { opcode: 0x3e, cmd_sn: cmd_sn.into(), ..NopOut::default() };
        raw.send(Header::control(None, None), snack.as_bytes(), &[]);
        assert!(matches!(raw.up(), Up::Refused { .. }));
    }
    let last = raw.sent::<Reject>().0.stat_sn.get();
    raw.quiet();
    for _ in 0..3 {
        raw.now = raw.end.machine.deadline().unwrap();
        raw.end.machine.tick(raw.now);
        raw.post();
        let ping = raw.sent::<NopIn>().0;
        let pong = NopOut {
            opcode: Opcode::NOP_OUT.0 | Opcode::IMMEDIATE,
            initiator_task_tag: TAG_NONE.into(),
            target_transfer_tag: ping.target_transfer_tag,
            cmd_sn: 1.into(),
            ..NopOut::default()
        };
        raw.send(Header::control(None, None), pong.as_bytes(), &[]);
        raw.quiet();
    }
    let acknowledges = NopOut {
        opcode: Opcode::NOP_OUT.0 | Opcode::IMMEDIATE,
        initiator_task_tag: TAG_NONE.into(),
        target_transfer_tag: TAG_NONE.into(),
        cmd_sn: 1.into(),
        exp_stat_sn: (last + 1).into(),
        ..NopOut::default()
    };
    raw.send(Header::control(None, None), acknowledges.as_bytes(), &[]);
    raw.down(Down::Goodbye { within_seconds: 1 });
    raw.sent::<AsyncMessage>();
    raw.quiet();
}

/// Whatever comes in one message, nothing panics, and what is held is bounded.
#[test]
fn noise_is_survived() {
    let mut random = Random::new(42);
    for _ in 0..100 {
        let (mut raw, _) = Raw::logged_in(LINUX);
        for _ in 0..100 {
            if raw.end.machine.is_over() {
                break;
            }
            let mut bytes: Vec<u8> =
                (0..76 + random.below(64)).map(|_| (random.next() >> 11) as u8).collect();
            bytes[0] = 0x10 | (bytes[0] & 0x0c);
            bytes[28] &= 0x47;
            bytes[32] &= 3;
            let data = bytes.len().saturating_sub(76 + 4 * usize::from(bytes[32]));
            bytes[33..36].copy_from_slice(U24::new(data as u32).as_bytes());
            bytes[52..56].copy_from_slice(&(random.below(3) as u32 + 1).to_be_bytes());
            raw.send_bytes(bytes);
            while let Some(up) = raw.end.machine.poll() {
                if let Up::Command(command) = up {
                    raw.down(Down::End { task: command.task, ending: GOOD });
                }
            }
        }
    }
}
