//! Tests of reservations, command by command.

use super::*;
use crate::state::attention::UnitAttention;
use crate::state::home::{HomeRequest, Who};
use crate::testing::{BLOCK, Bench, Outcome};
use crate::vocabulary::command::Status;
use wire::Cdb;
use wire::scsi::command::{
    Inquiry, ModeSense6, PersistentReserveIn, PersistentReserveOut, Read10, Release6, Release10, Reserve6,
    Reserve10, TestUnitReady, Write10,
};

const FIRST: u64 = 0x1111;
const SECOND: u64 = 0x2222;
const THIRD: u64 = 0x3333;

const READ: Read10 = Read10::new(0, 1);
const WRITE: Write10 = Write10::new(0, 1);
const READY: TestUnitReady = TestUnitReady {};
const INQUIRY: Inquiry = Inquiry::new(96);
const MODE_SENSE: ModeSense6 = ModeSense6::new(0x3f, 255);
const RESERVE6: Reserve6 = Reserve6::ZERO;
const RELEASE6: Release6 = Release6::ZERO;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const IGNORE: u8 = 6;
const MOVE: u8 = 7;

const WRITE_EXCLUSIVE: u8 = 1;
const EXCLUSIVE_ACCESS: u8 = 3;
const WRITE_REGISTRANTS: u8 = 5;
const WRITE_ALL: u8 = 7;
const EXCLUSIVE_ALL: u8 = 8;

/// Three nexuses of iSCSI initiators at target port 1.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let third = NexusId(3);
    bench.nexuses.push(crate::state::nexus::NexusUnit::new(third, Vec::new(), 1, false));
    for (at, nexus) in bench.nexuses.iter_mut().enumerate() {
        nexus.transport_id = transport_id(at).into();
        nexus.attentions.clear();
    }
    bench
}

fn transport_id(at: usize) -> Vec<u8> {
    wire::scsi::transport_id::iscsi_port(&format!("iqn.2026-11.example:host{at}"), 0x8000_0000_0000)
}

fn basic(key: u64, action_key: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn send(bench: &mut Bench, nexus: usize, action: u8, kind: u8, list: &[u8]) -> Outcome {
    let cdb = PersistentReserveOut {
        scope: kind >> 4,
        ..PersistentReserveOut::new(action, kind, list.len() as u32)
    };
    bench.run(nexus, cdb, list, 0)
}

/// PERSISTENT RESERVE OUT; returns its status.
fn order(bench: &mut Bench, nexus: usize, action: u8, kind: u8, key: u64, action_key: u64) -> Status {
    send(bench, nexus, action, kind, &basic(key, action_key, 0)).ending.status
}

fn register(bench: &mut Bench, keys: &[u64]) {
    for (nexus, key) in keys.iter().enumerate() {
        assert_eq!(order(bench, nexus, IGNORE, 0, 0, *key), Status::Good);
    }
}

/// Data of PERSISTENT RESERVE IN; unit attentions stay pending.
fn input(bench: &mut Bench, action: u8, allocation: u8) -> Vec<u8> {
    let pending = std::mem::take(&mut bench.nexuses[0].attentions);
    let data = bench.read(PersistentReserveIn::new(action, allocation.into())).assert_good().data.clone();
    bench.nexuses[0].attentions = pending;
    data
}

fn keys(bench: &mut Bench) -> Vec<u64> {
    input(bench, 0, 255)[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
}

fn generation(bench: &mut Bench) -> u32 {
    u32::from_be_bytes(input(bench, 0, 255)[..4].try_into().unwrap())
}

/// Key and type of the reservation.
fn reserved(bench: &mut Bench) -> Option<(u64, u8)> {
    let data = input(bench, 1, 255);
    (data.len() > 8).then(|| (u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
}

/// Whether reads and writes of a nexus are accepted.
fn reads_and_writes(bench: &mut Bench, nexus: usize) -> (bool, bool) {
    bench.nexuses[nexus].attentions.clear();
    let mut is_let_in = |cdb: Cdb, out: &[u8]| match bench.run(nexus, cdb, out, 512).ending.status {
        Status::Good => true,
        Status::ReservationConflict => false,
        other => panic!("{other:?}"),
    };
    (is_let_in(READ.into(), &[]), is_let_in(WRITE.into(), &[0; BLOCK]))
}

fn attentions(bench: &mut Bench, nexus: usize) -> Vec<UnitAttention> {
    bench.nexuses[nexus].attentions.drain(..).collect()
}

/// SPC-4 tables 64 and 65, and SBC-3 table 13: type by holder, registrant and other nexuses, by read and
/// write.
#[test]
fn each_reservation_type_grants_its_reads_and_writes() {
    let all = (true, true);
    let (read, none) = ((true, false), (false, false));
    for (kind, registrant, stranger) in
        [(1, read, read), (3, none, none), (5, all, read), (6, all, none), (7, all, read), (8, all, none)]
    {
        let mut bench = bench();
        register(&mut bench, &[FIRST, SECOND]);
        assert_eq!(order(&mut bench, 0, RESERVE, kind, FIRST, 0), Status::Good);
        assert_eq!(reads_and_writes(&mut bench, 0), all, "holder, type {kind}");
        assert_eq!(reads_and_writes(&mut bench, 1), registrant, "registrant, type {kind}");
        assert_eq!(reads_and_writes(&mut bench, 2), stranger, "stranger, type {kind}");
        for nexus in 0..3 {
            bench.run(nexus, READY, &[], 0).assert_good();
            bench.run(nexus, INQUIRY, &[], 96).assert_good();
            bench.run(nexus, PersistentReserveIn::new(0, 255), &[], 255).assert_good();
        }
        let status = bench.run(2, MODE_SENSE, &[], 255).ending.status;
        assert_eq!(status, Status::ReservationConflict);
        assert_eq!(order(&mut bench, 0, RELEASE, kind, FIRST, 0), Status::Good);
        assert_eq!(reads_and_writes(&mut bench, 2), all);
    }
}

#[test]
fn keys_are_registered_changed_and_unregistered() {
    let mut bench = bench();
    assert_eq!(order(&mut bench, 0, REGISTER, 0, 0, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, REGISTER, 0, 5, FIRST), Status::ReservationConflict);
    assert_eq!(order(&mut bench, 0, REGISTER, 0, 0, FIRST), Status::Good);
    assert_eq!(order(&mut bench, 0, REGISTER, 0, 0, SECOND), Status::ReservationConflict);
    assert_eq!(keys(&mut bench), [FIRST]);
    assert_eq!(order(&mut bench, 0, REGISTER, 0, FIRST, SECOND), Status::Good);
    assert_eq!(order(&mut bench, 0, IGNORE, 0, 99, THIRD), Status::Good);
    assert_eq!(keys(&mut bench), [THIRD]);
    assert_eq!(generation(&mut bench), 4);
    assert_eq!(order(&mut bench, 0, REGISTER, 0, THIRD, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, IGNORE, 0, 0, 0), Status::Good);
    assert!(keys(&mut bench).is_empty());
    assert_eq!(order(&mut bench, 0, RESERVE, 1, 0, 0), Status::ReservationConflict);
    assert_eq!(order(&mut bench, 0, CLEAR, 0, 0, 0), Status::ReservationConflict);
}

#[test]
fn reading_in_is_cut_but_reports_its_whole_length() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND]);
    assert_eq!(input(&mut bench, 0, 8), [0, 0, 0, 2, 0, 0, 0, 16]);
    assert_eq!(order(&mut bench, 1, RESERVE, EXCLUSIVE_ACCESS, SECOND, 0), Status::Good);
    assert_eq!(input(&mut bench, 2, 255), [0, 8, 0x1d, 0x90, 0xea, 0x01, 0, 0]);
    let status = input(&mut bench, 3, 255);
    let id = transport_id(0);
    let (first, second) = status[8..].split_at(24 + id.len());
    assert_eq!(first[..8], FIRST.to_be_bytes());
    assert_eq!(first[12..14], [0, 0]);
    assert_eq!(first[18..24], [0, 1, 0, 0, 0, id.len() as u8]);
    assert_eq!(first[24..], id);
    assert_eq!(second[12..14], [1, EXCLUSIVE_ACCESS]);
    for action in 4..32 {
        bench.read(PersistentReserveIn::new(action, 8)).assert_invalid_field(1);
    }
}

#[test]
fn a_reservation_has_one_owner_until_released() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND]);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, SECOND, 0), Status::ReservationConflict);
    let before = generation(&mut bench);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, RESERVE, EXCLUSIVE_ACCESS, FIRST, 0), Status::ReservationConflict);
    assert_eq!(order(&mut bench, 1, RESERVE, WRITE_EXCLUSIVE, SECOND, 0), Status::ReservationConflict);
    assert_eq!(order(&mut bench, 1, RELEASE, WRITE_EXCLUSIVE, SECOND, 0), Status::Good);
    assert_eq!(reserved(&mut bench), Some((FIRST, WRITE_EXCLUSIVE)));
    for kind in [EXCLUSIVE_ACCESS, 0x0f, 0x10 | WRITE_EXCLUSIVE] {
        send(&mut bench, 0, RELEASE, kind, &basic(FIRST, 0, 0)).assert_check(0x5, 0x2604);
    }
    assert_eq!(order(&mut bench, 0, RELEASE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, RELEASE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!((reserved(&mut bench), generation(&mut bench)), (None, before));
    assert!(attentions(&mut bench, 1).is_empty());
    for kind in [0, 2, 4, 9, 0x11] {
        send(&mut bench, 0, RESERVE, kind, &basic(FIRST, 0, 0)).assert_invalid_field(2);
    }
}

#[test]
fn the_release_of_a_shared_reservation_is_reported() {
    for kind in 5..=8 {
        let mut bench = bench();
        register(&mut bench, &[FIRST, SECOND]);
        assert_eq!(order(&mut bench, 0, RESERVE, kind, FIRST, 0), Status::Good);
        assert_eq!(order(&mut bench, 0, RELEASE, kind, FIRST, 0), Status::Good);
        assert_eq!(attentions(&mut bench, 1), [UnitAttention::ReservationsReleased]);
        assert!(attentions(&mut bench, 0).is_empty() && attentions(&mut bench, 2).is_empty());
    }
}

#[test]
fn a_holder_that_unregisters_ends_its_reservation() {
    for kind in [1, 3, 5, 6, 7, 8] {
        let mut bench = bench();
        register(&mut bench, &[FIRST, SECOND]);
        assert_eq!(order(&mut bench, 0, RESERVE, kind, FIRST, 0), Status::Good);
        assert_eq!(order(&mut bench, 0, REGISTER, 0, FIRST, 0), Status::Good);
        let is_of_all = kind >= WRITE_ALL;
        assert_eq!(reserved(&mut bench), is_of_all.then_some((0, kind)));
        let expected: &[_] =
            if kind == 5 || kind == 6 { &[UnitAttention::ReservationsReleased] } else { &[] };
        assert_eq!(attentions(&mut bench, 1), expected);
        assert_eq!(order(&mut bench, 1, REGISTER, 0, SECOND, 0), Status::Good);
        assert_eq!(reserved(&mut bench), None);
    }
}

#[test]
fn clear_takes_everything_and_notifies_the_others() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND]);
    assert_eq!(order(&mut bench, 0, RESERVE, EXCLUSIVE_ACCESS, FIRST, 0), Status::Good);
    let before = generation(&mut bench);
    assert_eq!(order(&mut bench, 1, CLEAR, 0, SECOND, 0), Status::Good);
    assert_eq!(attentions(&mut bench, 0), [UnitAttention::ReservationsPreempted]);
    assert_eq!((keys(&mut bench).len(), reserved(&mut bench)), (0, None));
    assert_eq!(generation(&mut bench), before + 1);
    assert!(attentions(&mut bench, 1).is_empty() && attentions(&mut bench, 2).is_empty());
}

#[test]
fn preempt_of_a_key_without_the_reservation_takes_registrations_only() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND, SECOND]);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, PREEMPT, 0, FIRST, THIRD), Status::ReservationConflict);
    assert_eq!(order(&mut bench, 0, PREEMPT, 0x0f, FIRST, SECOND), Status::Good);
    assert_eq!(keys(&mut bench), [FIRST]);
    assert_eq!(reserved(&mut bench), Some((FIRST, WRITE_EXCLUSIVE)));
    for nexus in [1, 2] {
        assert_eq!(attentions(&mut bench, nexus), [UnitAttention::RegistrationsPreempted]);
    }
    send(&mut bench, 0, PREEMPT, 1, &basic(FIRST, 0, 0)).assert_check(0x5, 0x2600);
}

#[test]
fn preempt_of_the_holder_takes_the_reservation_over() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND, THIRD]);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    send(&mut bench, 1, PREEMPT_AND_ABORT, 0x0f, &basic(SECOND, FIRST, 0)).assert_invalid_field(2);
    assert_eq!(keys(&mut bench).len(), 3);
    let status = order(&mut bench, 1, PREEMPT_AND_ABORT, EXCLUSIVE_ACCESS, SECOND, FIRST);
    assert_eq!(status, Status::Good);
    assert_eq!(reserved(&mut bench), Some((SECOND, EXCLUSIVE_ACCESS)));
    assert_eq!(keys(&mut bench), [SECOND, THIRD]);
    let preempted = Who::Port { transport_id: transport_id(0), target_port: 1 };
    assert_eq!(bench.published.take().unwrap().aborts, [(preempted, Aborted::Silently)]);
    assert_eq!(attentions(&mut bench, 0), [UnitAttention::RegistrationsPreempted]);
    assert!(attentions(&mut bench, 1).is_empty());
    assert_eq!(attentions(&mut bench, 2), [UnitAttention::ReservationsReleased]);
}

#[test]
fn preempt_of_all_registrants() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND, THIRD]);
    assert_eq!(order(&mut bench, 0, RESERVE, EXCLUSIVE_ALL, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 1, PREEMPT, WRITE_ALL, SECOND, THIRD), Status::Good);
    assert_eq!(reserved(&mut bench), Some((0, EXCLUSIVE_ALL)));
    assert_eq!(order(&mut bench, 1, PREEMPT, WRITE_EXCLUSIVE, SECOND, 0), Status::Good);
    assert_eq!(reserved(&mut bench), Some((SECOND, WRITE_EXCLUSIVE)));
    assert_eq!(keys(&mut bench), [SECOND]);
    assert_eq!(attentions(&mut bench, 0), [UnitAttention::RegistrationsPreempted]);
}

/// Preempting one's own key is not an error (SPC-4 section 5.13.11.2.4.4).
#[test]
fn preempt_of_ones_own_key() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, FIRST]);
    assert_eq!(order(&mut bench, 0, PREEMPT, 0, FIRST, FIRST), Status::Good);
    assert!(keys(&mut bench).is_empty() && attentions(&mut bench, 0).is_empty());
    assert_eq!(attentions(&mut bench, 1), [UnitAttention::RegistrationsPreempted]);
    register(&mut bench, &[FIRST, FIRST]);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_REGISTRANTS, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, PREEMPT, WRITE_EXCLUSIVE, FIRST, FIRST), Status::Good);
    assert_eq!((keys(&mut bench), reserved(&mut bench)), (vec![FIRST], Some((FIRST, WRITE_EXCLUSIVE))));
}

#[test]
fn parameter_lists_have_their_length() {
    let mut bench = bench();
    for len in [0, 1, 23, 25, 28] {
        let list = vec![0; len];
        send(&mut bench, 0, REGISTER, 0, &list).assert_check(0x5, 0x1a00);
    }
    for action in [RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT, IGNORE] {
        send(&mut bench, 0, action, 1, &basic(0, FIRST, 0x08)).assert_check(0x5, 0x2600);
    }
    send(&mut bench, 0, 8, 0, &basic(0, 0, 0)).assert_invalid_field(1);
    bench.run(0, PersistentReserveOut::new(0, 0, 0x0001_0000), &[0; 24], 0).assert_check(0x5, 0x1a00);
}

/// A parameter list with TransportIDs after the basic fields.
fn with_ids(key: u64, action_key: u64, ids: &[Vec<u8>]) -> Vec<u8> {
    let mut list = basic(key, action_key, 0x08);
    let ids = ids.concat();
    list.extend((ids.len() as u32).to_be_bytes());
    list.extend(ids);
    list
}

#[test]
fn initiators_may_be_registered_by_name() {
    let mut bench = bench();
    let list = with_ids(0, FIRST, &[transport_id(1), transport_id(7)]);
    for len in 24..list.len() {
        send(&mut bench, 0, REGISTER, 0, &list[..len]).assert_check(0x5, 0x1a00);
    }
    send(&mut bench, 0, REGISTER, 0, &list).assert_good();
    assert_eq!(keys(&mut bench), [FIRST; 3]);
    assert_eq!(order(&mut bench, 1, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    send(&mut bench, 0, REGISTER, 0, &with_ids(FIRST, SECOND, &[])).assert_check(0x5, 0x2400);
    send(&mut bench, 2, REGISTER, 0, &with_ids(0, SECOND, &[transport_id(7)])).assert_check(0x5, 0x2600);
    send(&mut bench, 2, REGISTER, 0, &with_ids(0, SECOND, &[vec![9; 24]])).assert_check(0x5, 0x2600);
    assert_eq!(keys(&mut bench), [FIRST; 3]);
}

/// A name without a session identifier stands for all ports of that initiator (SPC-4 section 7.6.4.6).
#[test]
fn an_initiator_device_is_registered_with_all_its_ports() {
    let mut bench = bench();
    let mut device = vec![0x05, 0, 0, 28];
    device.extend_from_slice(b"iqn.2026-11.example:host1\0\0\0");
    send(&mut bench, 0, REGISTER, 0, &with_ids(0, FIRST, &[device])).assert_good();
    assert_eq!(order(&mut bench, 1, RESERVE, EXCLUSIVE_ACCESS, FIRST, 0), Status::Good);
    assert_eq!(reads_and_writes(&mut bench, 1), (true, true));
    assert_eq!(reads_and_writes(&mut bench, 0), (false, false));
    assert_eq!(order(&mut bench, 0, CLEAR, 0, FIRST, 0), Status::Good);
    assert_eq!(attentions(&mut bench, 1), [UnitAttention::ReservationsPreempted]);
}

#[test]
fn a_registration_through_all_target_ports() {
    let mut bench = bench();
    send(&mut bench, 0, REGISTER, 0, &basic(0, FIRST, 0x04)).assert_good();
    assert_eq!(keys(&mut bench), [FIRST; 2]);
    bench.nexuses[0].target_port = 2;
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!(order(&mut bench, 0, REGISTER, 0, FIRST, SECOND), Status::Good);
    let conflict = send(&mut bench, 0, REGISTER, 0, &basic(SECOND, THIRD, 0x04));
    assert_eq!(conflict.ending.status, Status::ReservationConflict);
    send(&mut bench, 0, IGNORE, 0, &basic(0, 0, 0x04)).assert_good();
    assert!(keys(&mut bench).is_empty());
}

#[test]
fn registrations_are_bounded_and_refused_as_a_whole() {
    let mut bench = bench();
    let ids = |range: std::ops::Range<usize>| range.map(transport_id).collect::<Vec<_>>();
    let mut send_long =
        |list: &[u8]| bench.run(0, PersistentReserveOut::new(REGISTER, 0, list.len() as u32), list, 0);
    send_long(&with_ids(0, FIRST, &ids(3..131))).assert_check(0x5, 0x5504);
    send_long(&with_ids(0, FIRST, &ids(3..130))).assert_good();
    let second = send(&mut bench, 1, REGISTER, 0, &basic(0, SECOND, 0));
    second.assert_check(0x5, 0x5504);
}

fn move_to(key: u64, action_key: u64, flags: u8, port: u8, id: &[u8]) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), action_key.to_be_bytes()].concat();
    list.extend([0, flags, 0, port, 0, 0, 0, id.len() as u8]);
    list.extend(id);
    list
}

#[test]
fn a_reservation_is_moved() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND]);
    let list = move_to(FIRST, THIRD, 0x02, 2, &transport_id(2));
    send(&mut bench, 0, MOVE, 0, &list).assert_check(0x5, 0x2400);
    assert_eq!(order(&mut bench, 0, RESERVE, EXCLUSIVE_ACCESS, FIRST, 0), Status::Good);
    let other = send(&mut bench, 1, MOVE, 0, &move_to(SECOND, THIRD, 0, 1, &transport_id(2)));
    assert_eq!(other.ending.status, Status::ReservationConflict);
    for wrong in [
        move_to(FIRST, 0, 0, 1, &transport_id(2)),
        move_to(FIRST, THIRD, 0, 9, &transport_id(2)),
        move_to(FIRST, THIRD, 0, 1, &transport_id(0)),
        move_to(FIRST, THIRD, 0, 1, &[&[5, 0, 0, 20][..], b"iqn.2026-11.a:b\0\0\0\0\0"].concat()),
    ] {
        send(&mut bench, 0, MOVE, 0, &wrong).assert_check(0x5, 0x2600);
    }
    send(&mut bench, 0, MOVE, 0, &list[..list.len() - 1]).assert_check(0x5, 0x1a00);
    send(&mut bench, 0, MOVE, 0, &list).assert_good();
    assert_eq!(keys(&mut bench), [SECOND, THIRD]);
    assert_eq!(reserved(&mut bench), Some((THIRD, EXCLUSIVE_ACCESS)));
    bench.nexuses[2].target_port = 2;
    bench.nexuses[2].access_epoch = 0;
    assert_eq!(reads_and_writes(&mut bench, 2), (true, true));
    assert_eq!(reads_and_writes(&mut bench, 0), (false, false));
}

#[test]
fn what_is_to_outlive_a_restart_is_kept() {
    let mut bench = bench();
    register(&mut bench, &[0, SECOND]);
    assert_eq!(bench.published.take().unwrap().persist, None);
    send(&mut bench, 0, REGISTER, 0, &basic(0, FIRST, 0x01)).assert_good();
    assert_eq!(input(&mut bench, 2, 255)[3] & 1, 1);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    let saved = bench.published.take().unwrap().persist.unwrap();
    let table = Table::decode(&saved, PortNames::of(&bench.view.unit.ports, &[])).unwrap();
    assert_eq!(table.access(NexusId(9), &transport_id(0), 1), Access::Full);
    assert_eq!(table.access(NexusId(9), &transport_id(1), 1), Access::Read);
    assert_eq!(order(&mut bench, 1, IGNORE, 0, 0, SECOND), Status::Good);
    assert_eq!(bench.published.take().unwrap().persist, Some(Vec::new()));
}

#[test]
fn persistent_reservations_outlive_a_reset_and_reserve_does_not() {
    let mut bench = bench();
    register(&mut bench, &[FIRST]);
    assert_eq!(order(&mut bench, 0, RESERVE, EXCLUSIVE_ACCESS, FIRST, 0), Status::Good);
    bench.ask(HomeRequest::Reset { from: None });
    bench.ask(HomeRequest::NexusLost(NexusId(1)));
    assert_eq!(reads_and_writes(&mut bench, 1), (false, false));
    assert_eq!(reads_and_writes(&mut bench, 0), (true, true));
    assert_eq!(order(&mut bench, 0, CLEAR, 0, FIRST, 0), Status::Good);
    bench.nexuses[1].attentions.clear();
    for end in [HomeRequest::Reset { from: None }, HomeRequest::NexusLost(NexusId(1))] {
        bench.read(RESERVE6).assert_good();
        assert_eq!(bench.run(1, RESERVE6, &[], 0).ending.status, Status::ReservationConflict);
        bench.ask(end);
        for nexus in &mut bench.nexuses {
            nexus.attentions.clear();
        }
        bench.run(1, RESERVE6, &[], 0).assert_good();
        bench.run(1, RELEASE6, &[], 0).assert_good();
    }
}

#[test]
fn reserve_stops_nearly_everything_of_others() {
    let mut bench = bench();
    bench.read(RESERVE6).assert_good();
    bench.read(Reserve10::default()).assert_good();
    assert_eq!(reads_and_writes(&mut bench, 0), (true, true));
    assert_eq!(reads_and_writes(&mut bench, 1), (false, false));
    let persistent_in = PersistentReserveIn::new(0, 255);
    for cdb in [Cdb::from(READY), Cdb::from(MODE_SENSE), Cdb::from(RESERVE6), Cdb::from(persistent_in)] {
        assert_eq!(bench.run(1, cdb, &[], 255).ending.status, Status::ReservationConflict);
    }
    assert_eq!(bench.read(persistent_in).ending.status, Status::ReservationConflict);
    assert_eq!(order(&mut bench, 0, IGNORE, 0, 0, FIRST), Status::ReservationConflict);
    for cdb in [Cdb::from(INQUIRY), Cdb::from(RELEASE6)] {
        bench.run(1, cdb, &[], 96).assert_good();
    }
    assert_eq!(bench.run(1, RESERVE6, &[], 0).ending.status, Status::ReservationConflict);
    bench.read(Release10::default()).assert_good();
    bench.run(1, RESERVE6, &[], 0).assert_good();
    bench.read(Reserve6 { third_party: true, ..Reserve6::default() }).assert_invalid_field(1);
    bench.read(Reserve10 { long_id: true, ..Reserve10::default() }).assert_invalid_field(1);
}

/// SPC-4 section 5.13.3 (CRH): GOOD for holders and those that share the reservation, without effect.
#[test]
fn reserve_beside_registrations() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND]);
    assert_eq!(bench.read(RESERVE6).ending.status, Status::ReservationConflict);
    assert_eq!(bench.read(RELEASE6).ending.status, Status::ReservationConflict);
    for (kind, shared) in [(WRITE_EXCLUSIVE, false), (WRITE_REGISTRANTS, true)] {
        assert_eq!(order(&mut bench, 0, RESERVE, kind, FIRST, 0), Status::Good);
        for cdb in [Cdb::from(RESERVE6), Cdb::from(RELEASE6)] {
            bench.read(cdb).assert_good();
            let expected = if shared { Status::Good } else { Status::ReservationConflict };
            assert_eq!(bench.run(1, cdb, &[], 0).ending.status, expected);
            assert_eq!(bench.run(2, cdb, &[], 0).ending.status, Status::ReservationConflict);
        }
        assert_eq!(reserved(&mut bench), Some((FIRST, kind)));
        assert_eq!(order(&mut bench, 0, RELEASE, kind, FIRST, 0), Status::Good);
        attentions(&mut bench, 1);
    }
}

#[test]
fn preempt_and_abort_ends_the_victims_prevention_of_removal() {
    for (action, prevented) in [(PREEMPT, true), (PREEMPT_AND_ABORT, false)] {
        let mut bench = bench();
        register(&mut bench, &[FIRST, SECOND]);
        let from = bench.nexuses[1].identity();
        bench.ask(HomeRequest::PreventRemoval { from, prevent: true });
        assert!(bench.view.policy.removal_prevented);
        assert_eq!(order(&mut bench, 0, action, 0, FIRST, SECOND), Status::Good);
        assert_eq!(bench.view.policy.removal_prevented, prevented);
    }
}

#[test]
fn nothing_is_saved_without_a_place_to_save_it() {
    let mut bench = bench();
    Arc::make_mut(&mut bench.view.unit).ptpl_capable = false;
    bench.home = crate::state::home::Home::new(bench.view.unit.clone(), bench.view.policy.traits);
    let outcome = send(&mut bench, 0, IGNORE, 0, &basic(0, FIRST, 1));
    outcome.assert_check(0x5, 0x2600);
    assert_eq!(outcome.ending.sense.unwrap().as_bytes()[15..18], [0x88, 0, 20]);
    assert!(bench.published.is_none());
    assert_eq!(input(&mut bench, 2, 255)[2], 0x1c);
    assert_eq!(order(&mut bench, 0, IGNORE, 0, 0, FIRST), Status::Good);
    assert_eq!(order(&mut bench, 0, RESERVE, WRITE_EXCLUSIVE, FIRST, 0), Status::Good);
    assert_eq!(bench.published.unwrap().persist, None);
}

#[test]
fn what_is_registered_at_a_port_outlives_its_absence() {
    let mut bench = bench();
    register(&mut bench, &[FIRST, SECOND]);
    assert_eq!(order(&mut bench, 0, RESERVE, EXCLUSIVE_ACCESS, FIRST, 0), Status::Good);
    let unit = Unit::clone(&bench.view.unit);
    let without = unit.ports.iter().filter(|port| port.relative_id != 1).cloned().collect();
    bench.ask(HomeRequest::Configure(Arc::new(Unit { ports: without, ..unit.clone() })));
    assert_eq!(bench.view.policy.reservations.gone_ports().len(), 1, "it stays reserved");
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    assert_eq!(bench.run(2, READ, &[], 512).ending.status, Status::ReservationConflict);
    bench.ask(HomeRequest::Configure(Arc::new(unit)));
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    assert_eq!(bench.run(0, READ, &[], 512).ending.status, Status::Good, "the holder is back");
    assert_eq!(bench.run(2, READ, &[], 512).ending.status, Status::ReservationConflict);
}
