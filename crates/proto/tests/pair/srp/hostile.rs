//! Initiators that violate the standard.

use super::rig::{CONFIG, INITIATOR, Rig, TestAccess, target};
use super::scripted::{ScriptedPeer, Shape, cdb, command, function};
use crate::support::{Device, WRITE};
use proptest::prelude::*;
use proto::message::{Advertised, Message, MessageMachine};
use proto::services::{Termination, Up};
use proto::srp::initiator::{Initiator, InitiatorConfig};
use proto::time::Time;
use wire::srp::{
    Direct, Layout, LoginRequest, LogoutReason, Opcode, ResponseCode, TargetLogout, TaskFunction,
};
use wire::{BufferId, Places, Span};

fn logged_in() -> Rig<ScriptedPeer> {
    Rig::scripted(LoginRequest::IMMEDIATE | LoginRequest::LOGOUT_SOLICITED, 1)
}

fn plain(tag: u64) -> Vec<u8> {
    command(tag, &cdb(0, 0, 0), &Shape::None, &Shape::None)
}

fn immediate(len: usize) -> Vec<u8> {
    command(1, &cdb(WRITE, 0, len as u32), &Shape::Immediate(vec![3; len]), &Shape::None)
}

fn direct() -> Shape {
    Shape::Direct(Direct::new(1 << 20, 5, 512))
}

fn table(count: u32, at: u64, list: Vec<Direct>, len: u32) -> Vec<u8> {
    let listed = list.len();
    let at = Advertised { stag: 1, offset: at };
    let mut unit = command(1, &cdb(WRITE, 0, len), &Shape::Table { list, listed, at, len }, &Shape::None);
    unit[60..64].copy_from_slice(&count.to_be_bytes());
    unit
}

/// The target logs the initiator out, with the reason on the wire and in the log.
fn logged_out(mut rig: Rig<ScriptedPeer>, unit: &[u8], reason: LogoutReason, text: &str) {
    rig.send(unit);
    rig.run();
    let last = rig.peer.machine.inbox.pop_back().expect("a logout came");
    let logout = TargetLogout::view(&last).unwrap();
    assert_eq!((logout.opcode, logout.reason), (Opcode::TARGET_LOGOUT, reason), "{text}");
    assert!(rig.solicited && logout.sol_not == 1);
    let gone = rig.target_gone.unwrap();
    assert!(gone.contains(text), "{gone}");
    assert!(rig.peer.machine.closed);
}

#[test]
fn truncated_units_end_the_connection() {
    let units = [
        command(1, &cdb(WRITE, 0, 512), &direct(), &direct()),
        table(2, 0, vec![Direct::new(0, 1, 256); 2], 512),
        function(1, TaskFunction::ABORT_TASK, 9),
        vec![3; 16],
        vec![0x41; 16],
    ];
    for unit in units {
        for len in 0..unit.len() {
            logged_out(logged_in(), &unit[..len], LogoutReason::INVALID_LENGTH, "shorter");
        }
    }
    // The data may not be truncated either.
    let unit = immediate(100);
    for len in 52..unit.len() {
        logged_out(logged_in(), &unit[..len], LogoutReason::INVALID_LENGTH, "immediate data outside");
    }
}

/// A receive may be longer than what was negotiated.
#[test]
fn units_are_no_longer_than_agreed() {
    let short = InitiatorConfig { it_iu_bytes: 300, ..INITIATOR };
    let mut rig = Rig::ours(short, CONFIG, 1);
    let nothing = Places::EMPTY;
    rig.execute(crate::support::command(WRITE, 0, 4096, nothing, crate::support::host(0, 4096)));
    let mut machine = target(CONFIG, TestAccess::default());
    machine.asked(Time(1), Initiator::new(short, Time(1)).request().as_slice());
    machine.established(Time(1), &[]);
    let place = Span { buffer: BufferId(1), len: 1024, offset: 0 };
    machine.received(Time(1), Message { place, bytes: &[2; 301], invalidated: None });
    machine.closed(Time(1), "closed");
    let last = std::iter::from_fn(|| machine.poll()).last();
    assert!(matches!(last, Some(Up::Gone { reason }) if reason.contains("longer than agreed")));
}

#[test]
fn immediate_data_stays_within_its_message() {
    for len in [101u32, 8193, u32::MAX - 67, u32::MAX] {
        let mut unit = immediate(100);
        unit[48..52].copy_from_slice(&len.to_be_bytes());
        logged_out(logged_in(), &unit, LogoutReason::INVALID_LENGTH, "immediate data outside");
    }
    // Descriptors may not reach into it.
    let mut unit = immediate(100);
    (unit[5], unit[7]) = (0x32, 1);
    logged_out(logged_in(), &unit, LogoutReason::INVALID_LENGTH, "immediate data outside");
    // And an initiator that was not granted it may not send it.
    let rig = Rig::scripted(LoginRequest::LOGOUT_SOLICITED, 1);
    logged_out(rig, &immediate(100), LogoutReason::DATA_OUT_FORMAT, "data-out descriptor format");
}

#[test]
fn unknown_units_and_formats() {
    for code in (0..=255u8).filter(|code| ![1, 2, 3, 0x41, 0x42].contains(code)) {
        logged_out(logged_in(), &[code; 64], LogoutReason::INVALID_TYPE, "unknown information unit type");
    }
    for code in [0x41, 0x42] {
        logged_out(logged_in(), &[code; 16], LogoutReason::SPURIOUS_RESPONSE, "response to no request");
    }
    for format in 4..16u8 {
        let mut unit = plain(1);
        unit[5] = format << 4;
        logged_out(logged_in(), &unit, LogoutReason::DATA_OUT_FORMAT, "data-out descriptor format");
        unit[5] = format;
        logged_out(logged_in(), &unit, LogoutReason::DATA_IN_FORMAT, "data-in descriptor format");
    }
    let mut unit = plain(1);
    unit[5] = 3;
    unit.extend([0; 64]);
    logged_out(logged_in(), &unit, LogoutReason::DATA_IN_FORMAT, "data-in descriptor format");
}

#[test]
fn tags_and_credits_are_kept_to() {
    let mut rig = logged_in();
    rig.send(&plain(7));
    rig.run();
    logged_out(rig, &plain(7), LogoutReason::UNSPECIFIED, "tag in use");
    let mut rig = logged_in();
    rig.send(&function(7, TaskFunction::LOGICAL_UNIT_RESET, 0));
    rig.run();
    logged_out(rig, &function(7, TaskFunction::ABORT_TASK, 0), LogoutReason::UNSPECIFIED, "tag in use");
    for last in [plain(9), function(9, TaskFunction::ABORT_TASK, 1)] {
        let mut rig = logged_in();
        (0..8).for_each(|tag| rig.send(&plain(tag)));
        rig.run();
        assert_eq!((rig.ups.len(), rig.target.port.ready()), (8, 10));
        logged_out(rig, &last, LogoutReason::UNSPECIFIED, "beyond the request limit");
    }
}

/// Answered with REQUEST FIELDS INVALID; the connection continues, and no credit is lost.
fn refused(unit: &[u8], text: &str) {
    let mut rig = logged_in();
    rig.send(unit);
    rig.run();
    let (response, data, _) = rig.peer.machine.response();
    assert_eq!(wire::srp::Response::code(&data), Some(ResponseCode::FIELDS_INVALID), "{text}");
    assert_eq!((response.tag.get(), response.status), (1, 0));
    match rig.ups.pop() {
        Some(Up::Refused { reason }) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((rig.peer.machine.limit, rig.broken), (8, None));
    assert!(rig.is_quiet());
    rig.send(&plain(1));
    rig.run();
    assert!(matches!(rig.ups.pop(), Some(Up::Command(_))));
}

#[test]
fn wrong_descriptors_are_refused() {
    let piece = || vec![Direct::new(0, 1, 256)];
    for count in [17, 15, 31, 0] {
        refused(&table(count, 0, piece(), 256), "wrong length");
    }
    for count in [2049 * 16, 0xffff_fff0] {
        refused(&table(count, 0, piece(), 256), "table too long");
    }
    refused(&table(32, u64::MAX, piece(), 256), "beyond the address space");
    refused(&table(16, 0, vec![Direct::new(u64::MAX - 254, 1, 256)], 256), "beyond the address space");
    refused(&table(16, 0, piece(), 257), "less data");
    refused(&table(0, 0, vec![], 1), "less data");
    let whole = Shape::Direct(Direct::new(u64::MAX, 1, 1));
    refused(&command(1, &cdb(WRITE, 0, 1), &whole, &Shape::None), "beyond the address space");
    let mut unit = plain(1);
    unit[31] = 52;
    unit.extend([0; 52]);
    refused(&unit, "additional CDB too long");
}

/// Invalid keys break the connection, not us.
#[test]
fn bogus_keys_break_the_connection() {
    let mut rig = logged_in();
    rig.device = Some(Device::default());
    rig.send(&command(1, &cdb(WRITE, 0, 512), &direct(), &Shape::None));
    rig.run();
    assert_eq!(rig.broken, Some("an RDMA Read of what is not advertised"));
    let mut rig = logged_in();
    rig.send(&table(64, 99, vec![], 512));
    rig.run();
    assert_eq!(rig.broken, Some("an RDMA Read of what is not advertised"));
    assert!(matches!(&rig.ups[..], [Up::Terminated { how: Termination::Aborted, .. }]), "{:?}", rig.ups);
}

/// Functions that the standard does not define are not supported.
#[test]
fn unknown_functions_are_not_supported() {
    for code in (0..=255u8).filter(|code| ![1, 2, 4, 8, 0x40].contains(code)) {
        let mut rig = logged_in();
        rig.send(&function(1, TaskFunction(code), 0));
        rig.run();
        let (_, data, _) = rig.peer.machine.response();
        assert_eq!(data, [0, 0, 0, ResponseCode::NOT_SUPPORTED.0]);
        assert_eq!((rig.peer.machine.limit, rig.ups.len()), (8, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever arrives, the machine and its receives stay consistent.
    #[test]
    fn anything_may_come(
        seed in any::<u64>(),
        units in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                (0..200usize, 0..8u8, any::<u8>(), proptest::collection::vec(any::<u8>(), 64..200)).prop_map(
                    |(at, tag, value, tail)| {
                        let mut unit = [plain(tag.into()), tail].concat();
                        unit[5] = value & 0x33;
                        unit[31] &= 0x0c;
                        let at = at % unit.len();
                        unit[at] = value;
                        unit[0] = 1 + (value & 1);
                        unit
                    }
                ),
            ],
            1..12,
        ),
    ) {
        let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, seed);
        rig.device = Some(Device::default());
        for unit in &units {
            rig.send(unit);
        }
        rig.run();
        if rig.broken.is_none() {
            assert!(rig.is_quiet());
        }
    }
}
