//! Descriptors of every shape.

use super::rig::{CONFIG, Rig, TestAccess, target};
use super::scripted::{ScriptedPeer, Shape, cdb, command, function};
use crate::support::{DISK, Device, HANG, HOST, READ, Random, WRITE};
use proptest::prelude::*;
use proto::message::Access;
use proto::srp::target::TargetConfig;
use wire::srp::{Command, Direct, LoginRequest, Opcode, Response, TaskFunction};
use wire::{Places, Span};
use zerocopy::IntoBytes;

/// Where tables are in the peer's memory.
const TABLE_AT: u64 = 2 << 20;

/// Buffers of these lengths in the peer's memory, in any order, and the data in them joined.
pub(super) fn buffers(
    rig: &mut Rig<ScriptedPeer>,
    lens: &[u32],
    access: Access,
    random: &mut Random,
) -> (Vec<Direct>, Vec<Span>) {
    let mut at = random.below(100) as u64;
    let mut spans: Vec<Span> = Vec::new();
    for len in lens {
        spans.push(Span { buffer: HOST, offset: at, len: *len });
        at += u64::from(*len) + random.below(50) as u64;
    }
    for n in (1..spans.len()).rev() {
        spans.swap(n, random.below(n + 1));
    }
    let list = spans.iter().map(|span| {
        // Some begin in the middle of what is advertised.
        let before = span.offset.min(7);
        let whole = Span { offset: span.offset - before, len: span.len + before as u32, ..*span };
        let advertised = rig.advertise(Places::one(whole), access);
        Direct::new(advertised.offset + before, advertised.stag, span.len)
    });
    (list.collect(), spans)
}

/// A table of these descriptors, `listed` of which are also in the command.
pub(super) fn table(rig: &mut Rig<ScriptedPeer>, list: Vec<Direct>, listed: usize, len: u32) -> Shape {
    let span = Span { buffer: HOST, offset: TABLE_AT, len: list.as_bytes().len() as u32 };
    rig.memory.at(span).copy_from_slice(list.as_bytes());
    let at = rig.advertise(Places::one(span), Access::Read);
    Shape::Table { listed: listed.min(list.len()), list, at, len }
}

fn contents(rig: &mut Rig<ScriptedPeer>, spans: &[Span]) -> Vec<u8> {
    spans.iter().flat_map(|span| rig.memory.at(*span).to_vec()).collect()
}

fn disk(rig: &mut Rig<ScriptedPeer>, at: u32, len: usize) -> Vec<u8> {
    rig.memory.at(Span { buffer: DISK, offset: at.into(), len: len as u32 }).to_vec()
}

/// Transfers data of these lengths with a table, in both directions.
fn there_and_back(seed: u64, lens: &[u32], listed: usize) {
    let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, seed);
    rig.device = Some(Device::default());
    let mut random = Random::new(seed ^ 0x55);
    let total: u32 = lens.iter().sum();
    let (list, spans) = buffers(&mut rig, lens, Access::Read, &mut random);
    let shape = table(&mut rig, list, listed, total);
    rig.send(&command(1, &cdb(WRITE, 5000, total), &shape, &Shape::None));
    rig.run();
    let (response, ..) = rig.peer.machine.response();
    assert_eq!((response.tag.get(), response.status, response.flags), (1, 0, 0));
    let sent = contents(&mut rig, &spans);
    assert!(sent == disk(&mut rig, 5000, sent.len()));

    let (list, spans) = buffers(&mut rig, lens, Access::Write, &mut random);
    let shape = table(&mut rig, list, listed, total);
    rig.send(&command(2, &cdb(READ, 900_000, total), &Shape::None, &shape));
    rig.run();
    assert_eq!(rig.peer.machine.response().0.flags, 0);
    let came = contents(&mut rig, &spans);
    assert!(came == disk(&mut rig, 900_000, came.len()));
    assert!(rig.is_quiet());
}

#[test]
fn tables_longer_than_the_command_are_read() {
    there_and_back(1, &[512; 300], 0);
    there_and_back(2, &[100; 2048], 12);
    there_and_back(3, &[3, 1, 0, 700, 0], 5);
    there_and_back(4, &[4096], 0);
}

/// The longest tables of many commands at a time would need unbounded memory: the initiator has to wait.
#[test]
fn more_descriptors_than_there_is_room_for_wait() {
    let config = TargetConfig { queue_depth: 20, ..CONFIG };
    let mut rig = Rig::new(ScriptedPeer::new(0), target(config, TestAccess::default()), 7);
    rig.connect();
    rig.device = Some(Device::default());
    let (list, _) = buffers(&mut rig, &[4; 2048], Access::Read, &mut Random::new(3));
    let out = table(&mut rig, list.clone(), 0, 8192);
    // The same length less one descriptor.
    let shorter = table(&mut rig, list[1..].to_vec(), 3, 8188);
    for tag in 0..15 {
        rig.send(&command(tag, &cdb(HANG, 0, 0), &out, &Shape::None));
    }
    rig.send(&command(15, &cdb(HANG, 0, 0), &shorter, &Shape::None));
    let one = Shape::Direct(list[0]);
    rig.send(&command(16, &cdb(WRITE, 0, 4), &one, &Shape::None));
    rig.send(&command(17, &cdb(WRITE, 0, 4), &one, &one));
    rig.run();
    let mut statuses = [0; 2].map(|_| {
        let (response, ..) = rig.peer.machine.response();
        (response.tag.get(), response.status)
    });
    statuses.sort();
    assert_eq!(statuses, [(16, 0), (17, 0x28)], "there was room for one");
    let [terminated] = &rig.device().terminated[..] else { panic!("the log can say which was terminated") };
    assert_eq!((terminated.read_bytes, terminated.write_bytes), (4, 4));
    assert_eq!(rig.device().running(), 16);
    rig.send(&function(99, TaskFunction::ABORT_TASK, 3));
    rig.run();
    rig.send(&command(18, &cdb(WRITE, 0, 8192), &out, &Shape::None));
    rig.run();
    // Beside it, the answer to the abort, and perhaps a credit.
    let of_it = |unit: &Vec<u8>| unit[0] == Opcode::RESPONSE.0 && unit[8..16] == 18u64.to_be_bytes();
    rig.peer.machine.inbox.retain(of_it);
    assert_eq!(rig.peer.machine.response().0.status, 0, "and there is room again");
}

/// Data in the command is not overwritten by a table of the other direction.
#[test]
fn a_table_beside_immediate_data() {
    let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, 5);
    rig.device = Some(Device::default());
    let (list, spans) = buffers(&mut rig, &[64; 50], Access::Write, &mut Random::new(3));
    let data_in = table(&mut rig, list, 0, 3200);
    let data: Vec<u8> = (0..8192u32).map(|n| (n * 7) as u8).collect();
    rig.send(&command(1, &cdb(WRITE, 64, 8192), &Shape::Immediate(data.clone()), &data_in));
    rig.run();
    let (response, ..) = rig.peer.machine.response();
    assert_eq!((response.flags, response.data_in_residual.get()), (Response::IN_UNDERFLOW, 3200));
    assert!(disk(&mut rig, 64, 8192) == data);
    rig.send(&command(2, &cdb(READ, 64, 3200), &Shape::Immediate(vec![1; 10]), &data_in));
    rig.run();
    let (response, ..) = rig.peer.machine.response();
    assert_eq!((response.flags, response.data_out_residual.get()), (Response::OUT_UNDERFLOW, 10));
    assert!(contents(&mut rig, &spans) == data[..3200]);
    assert!(rig.is_quiet());
}

#[test]
fn notification_is_solicited_as_requested() {
    for (asked, opcode, solicited) in [
        (0, WRITE, false),
        (Command::SUCCESS_SOLICITED, WRITE, true),
        (Command::FAILURE_SOLICITED, WRITE, false),
        (Command::SUCCESS_SOLICITED, crate::support::BROKEN, false),
        (Command::FAILURE_SOLICITED, crate::support::BROKEN, true),
    ] {
        let mut rig = Rig::scripted(0, 6);
        rig.device = Some(Device::default());
        let mut unit = command(1, &cdb(opcode, 0, 0), &Shape::None, &Shape::None);
        unit[1] = asked;
        rig.send(&unit);
        rig.run();
        let (response, ..) = rig.peer.machine.response();
        assert_eq!((response.sol_not == 1, rig.solicited), (solicited, solicited));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_table_is_followed(
        seed in any::<u64>(),
        lens in prop_oneof![
            proptest::collection::vec(0..5000u32, 1..20),
            proptest::collection::vec(0..300u32, 100..700),
        ],
        listed in prop_oneof![Just(0usize), 0..20usize, Just(255)],
    ) {
        // A command with all of them would be too long.
        there_and_back(seed, &lens, if lens.len() > 20 { listed.min(100) } else { listed });
    }
}
