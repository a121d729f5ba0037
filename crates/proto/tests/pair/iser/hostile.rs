//! A target against an initiator played by the test: Linux's, and hostile ones.

use super::raw::{GOOD, LINUX, Raw, disk, read, write};
use crate::support::fabric::Op;
use crate::support::{DISK, Random};
use proto::message::{Advertised, MessageMachine};
use proto::services::{Down, Ending, Up};
use wire::Span;
use wire::iscsi::{
    AsyncMessage, DataOut, FINAL, LoginRequest, NopIn, NopOut, Opcode, Reject, RejectReason, ScsiCommand,
    ScsiResponse, TAG_NONE, U24,
};
use wire::iser::Header;
use zerocopy::IntoBytes;

const NOTHING: Option<(u32, u64)> = None;

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
    // open-iscsi fails when it gets a key that it does not know.
    assert!(!text.contains("MaxOutstandingUnexpectedPDUs") && !text.contains("MaxRecvData"), "{text:?}");
    // 8 commands, each with one Data-Out, immediate requests, and answers to our own.
    assert_eq!(raw.node.machine.receives().count, 8 * 2 + 16 + 2);
}

/// The standard has no discovery over iSER, but Linux does, and requests RDMA for it, too.
#[test]
fn linux_discovers() {
    let mut raw = Raw::new(&[0x80, 0, 0, 0]);
    let text = raw.login_to(&format!("SessionType=Discovery\0{LINUX}MaxRecvDataSegmentLength=32768\0"));
    assert!(raw.session.as_ref().is_some_and(|session| session.target.is_none()));
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
    assert!(raw.node.machine.receives().count <= 4096);
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

/// A login frame truncated anywhere in its headers ends the connection, and is not answered.
#[test]
fn short_login_frames_are_refused() {
    let login = LoginRequest { opcode: 0x43, flags: 0x87, ..LoginRequest::default() };
    let whole = [Header::control(None, None).as_bytes(), login.as_bytes()].concat();
    for len in 0..whole.len() {
        let mut raw = Raw::new(&[0x80, 0, 0, 0]);
        raw.send_bytes(whole[..len].to_vec());
        let gone = raw.gone();
        assert!(gone.contains("shorter than its headers"), "{len}: {gone}");
        assert!(raw.node.port.queue.is_empty());
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

/// Where the rest of a write is read from: with Linux the base offset excludes unsolicited data; by the
/// standard's default it includes it.
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
        let Op::Read { work, into, from } = raw.posted() else { panic!("no read") };
        assert_eq!((into, from), (disk(8192, 4096), Advertised { stag: 77, offset }));
        assert_eq!(raw.memory.at(Span { buffer: DISK, offset: 0, len: 8192 }), [0xab; 8192]);
        assert!(raw.node.machine.poll().is_none(), "the rest is still to come");
        raw.finished(work);
        assert!(matches!(raw.up(), Up::Fetched(task) if task == command.task));
        raw.down(Down::End { task: command.task, ending: Ending { write_bytes: 12_288, ..GOOD } });
        let (response, _, invalidate) = raw.sent::<ScsiResponse>();
        assert_eq!((response.status, invalidate), (0, Some(77)));
        assert_eq!(raw.node.port.held(), 0);
    }
}

/// A peer that does not support invalidation is not sent it.
#[test]
fn nothing_is_invalidated_for_a_peer_that_cannot() {
    for private_data in [&[0xc0, 0, 0, 0][..], &[], &[0x80]] {
        let mut raw = Raw::new(private_data);
        raw.login(LINUX);
        raw.send(Header::control(None, Some((5, 64))), read(7, 1, 512).as_bytes(), &[]);
        let task = raw.command().task;
        raw.down(Down::Push {
            task,
            at: 0,
            from: disk(0, 512),
            end: Some(Ending { read_bytes: 512, ..GOOD }),
        });
        let Op::Write { work, to, .. } = raw.posted() else { panic!("no write") };
        assert_eq!(to, Advertised { stag: 5, offset: 64 });
        raw.finished(work);
        let (response, data, invalidate) = raw.sent::<ScsiResponse>();
        assert_eq!((response.status, data.len(), invalidate), (0, 0, None));
        assert!(matches!(raw.up(), Up::Pushed(pushed) if pushed == task));
    }
}

/// In both directions at once: the read STag is invalidated, and the response waits for the read of the
/// data-out.
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
    let Op::Read { work, .. } = raw.posted() else { panic!("no read") };
    let ending = Ending { read_bytes: 1024, write_bytes: 512, ..GOOD };
    raw.down(Down::Push { task: command.task, at: 0, from: disk(0, 1024), end: Some(ending) });
    assert!(matches!(raw.posted(), Op::Write { .. }));
    assert!(raw.node.port.queue.is_empty(), "the write STag is in use");
    raw.finished(work);
    assert_eq!(raw.sent::<ScsiResponse>().2, Some(2));
}

#[test]
fn data_out_that_nobody_requested_is_refused() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    let header = Header::control(Some((1, 0)), None);
    raw.send(header, write(7, 1, 100_000).as_bytes(), &[]);
    let task = raw.command().task;
    raw.down(Down::Fetch { task, at: 0, into: disk(0, 100_000) });
    assert!(matches!(raw.posted(), Op::Read { .. }));
    // For the read in progress, with any tag; and unsolicited, when the command had announced none.
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
    assert_eq!(raw.node.port.held(), 0);
}

/// Data in several messages, misplaced, or too much: the task ends, and its messages are returned.
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
            assert_eq!(raw.node.port.held(), 2);
            raw.down(Down::Fetch { task: command.task, at: 0, into: disk(0, 8192) });
            assert!(matches!(raw.up(), Up::Fetched(_)));
            assert_eq!(raw.memory.at(Span { buffer: DISK, offset: 4095, len: 2 }), [3, 4]);
            raw.down(Down::End { task: command.task, ending: Ending { write_bytes: 8192, ..GOOD } });
            assert_eq!(raw.sent::<ScsiResponse>().0.status, 0);
        } else {
            assert!(matches!(raw.up(), Up::FetchFailed { .. }));
            assert!(matches!(raw.up(), Up::Refused { .. }));
            assert_eq!(raw.sent::<ScsiResponse>().0.status, 2);
        }
        raw.quiet();
        assert_eq!(raw.node.port.held(), 0);
    }
}

/// Immediate requests are bounded by their receives while no answers are being sent.
#[test]
fn a_flood_of_pings_keeps_its_receives() {
    let (mut raw, _) = Raw::logged_in(LINUX);
    raw.node.port.room = 0;
    let ping = NopOut {
        opcode: Opcode::NOP_OUT.0 | Opcode::IMMEDIATE,
        flags: FINAL,
        initiator_task_tag: 9.into(),
        target_transfer_tag: TAG_NONE.into(),
        cmd_sn: 1.into(),
        ..NopOut::default()
    };
    let receives = usize::from(raw.node.machine.receives().count);
    let mut taken = 0;
    while raw.node.port.held() < receives {
        raw.send(Header::control(None, None), ping.as_bytes(), &[]);
        taken += 1;
        assert!(taken < 200, "a flood has no end");
    }
    raw.node.port.room = usize::MAX;
    raw.post();
    assert_eq!((raw.node.port.held(), raw.node.port.queue.len()), (0, taken));
}

/// The initiator accepts two unexpected PDUs until it has acknowledged them; one of them may be a ping.
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
        raw.now = raw.node.machine.deadline().unwrap();
        raw.node.machine.tick(raw.now);
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
    raw.down(Down::RequestLogout { within_seconds: 1 });
    raw.sent::<AsyncMessage>();
    raw.quiet();
}

/// Whatever arrives in one message, nothing panics, and what is held is bounded.
#[test]
fn noise_is_survived() {
    let mut random = Random::new(42);
    for _ in 0..100 {
        let (mut raw, _) = Raw::logged_in(LINUX);
        for _ in 0..100 {
            if raw.node.machine.is_over() {
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
            while let Some(up) = raw.node.machine.poll() {
                if let Up::Command(command) = up {
                    raw.down(Down::End { task: command.task, ending: GOOD });
                }
            }
        }
    }
}
