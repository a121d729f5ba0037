use crate::state::attention::UnitAttention;
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::nexus::NexusId;
use crate::state::unit::Unit;
use crate::testing::{BLOCK, Bench, Outcome, unit};
use crate::vocabulary::sense::Check;
use std::sync::Arc;
use wire::Cdb;
use wire::scsi::AccessState::{self, NonOptimized, Optimized, Standby, Transitioning, Unavailable};
use wire::scsi::code;
use wire::scsi::command::{
    Inquiry, ModeSense6, PersistentReserveIn, Read10, ReadCapacity10, ReadCapacity16, ReportLuns,
    ReportSupportedFunctions, ReportSupportedOperationCodes, ReportTargetPortGroups, RequestSense, Reserve6,
    SetTargetPortGroups, SynchronizeCache10, TestUnitReady, Write10,
};

#[test]
fn groups_hold_their_ports() {
    let mut bench = Bench::new();
    let body = [0, 0x8f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0x8f, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
    let data = bench.read(ReportTargetPortGroups::new(256)).assert_good().data.clone();
    assert_eq!(data, [&[0, 0, 0, 24][..], &body].concat());
    let data = bench
        .read(ReportTargetPortGroups { format: 1, ..ReportTargetPortGroups::new(256) })
        .assert_good()
        .data
        .clone();
    assert_eq!(data, [&[0, 0, 0, 28, 0x10, 0, 0, 0][..], &body].concat());
}

#[test]
fn ports_that_are_hidden_from_an_initiator_are_reported_to_others_alone() {
    let mut bench = Bench::new();
    let mut pages = || {
        [0, 1].map(|nexus| bench.run(nexus, Inquiry::page(0x88, 1024), &[], 1024).assert_good().data.clone())
    };
    let [all, same] = pages();
    assert!(all == same && all.len() > 4);
    bench.nexuses[1].hidden_ports = [2].into();
    let mut pages = || {
        [0, 1].map(|nexus| bench.run(nexus, Inquiry::page(0x88, 1024), &[], 1024).assert_good().data.clone())
    };
    let [first, second] = pages();
    assert!(first == all && all[4..].starts_with(&second[4..]) && second.len() < all.len());
    let groups = bench.run(1, ReportTargetPortGroups::new(256), &[], 256).assert_good().data.clone();
    assert_eq!(groups, [0, 0, 0, 12, 0, 0x8f, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
}

#[test]
fn functions_in_both_forms() {
    let mut bench = Bench::new();
    let report = |extended, len| ReportSupportedFunctions { extended, ..ReportSupportedFunctions::new(len) };
    assert_eq!(bench.read(report(false, 4)).assert_good().data, [0xda, 0, 0, 0]);
    assert_eq!(bench.read(report(true, 16)).assert_good().data.len(), 16);
    bench.read(report(false, 3)).assert_invalid_field(6);
}

const TRANSITION: (u8, u16) = (0x2, code::ACCESS_STATE_TRANSITION);
const IN_STANDBY: (u8, u16) = (0x2, code::PORT_IN_STANDBY);
const UNAVAILABLE: (u8, u16) = (0x2, code::PORT_UNAVAILABLE);

/// A unit with two groups. The first, through whose port all nexuses come, is configured like this.
fn with_group(state: AccessState, explicit: bool) -> Bench {
    let mut unit = unit();
    (unit.groups[0].state, unit.groups[0].explicit) = (state, explicit);
    Bench::of(unit, 1 << 20)
}

fn list(states: &[(u16, u8)]) -> Vec<u8> {
    let descriptor = |(group, state): &(u16, u8)| {
        let [high, low] = group.to_be_bytes();
        [*state, 0, high, low]
    };
    [[0; 4]].into_iter().chain(states.iter().map(descriptor)).flatten().collect()
}

fn set(bench: &mut Bench, nexus: usize, states: &[(u16, u8)]) -> Outcome {
    let list = list(states);
    bench.run(nexus, SetTargetPortGroups::new(list.len() as u32), &list, 0)
}

/// For each reported group, its first byte and its status code.
fn reported(bench: &mut Bench) -> Vec<(u8, u8)> {
    let data = bench.read(ReportTargetPortGroups::new(256)).assert_good().data.clone();
    data[4..].chunks(12).map(|group| (group[0], group[5])).collect()
}

/// The sense data that a command without data-out is refused with, if it is.
fn refusal(bench: &mut Bench, cdb: Cdb) -> Option<(u8, u16)> {
    let outcome = bench.read(cdb);
    outcome.ending.sense.is_some().then(|| outcome.sense())
}

#[test]
fn each_state_accepts_what_the_standard_lists_for_it() {
    let of_medium =
        [Read10::new(0, 1).into(), TestUnitReady {}.into(), SynchronizeCache10::new(0, 1).into(), {
            Cdb::from(Reserve6::ZERO)
        }];
    let in_standby = [
        Cdb::from(ModeSense6::page_only(0x3f, 255)),
        PersistentReserveIn::new(0, 255).into(),
        ReadCapacity10::new().into(),
        ReadCapacity16::new(32).into(),
        ReportSupportedOperationCodes::new(255).into(),
    ];
    let settled = [Cdb::from(SetTargetPortGroups::new(0))];
    let always = [
        Cdb::from(Inquiry::new(96)),
        Inquiry::page(0x83, 255).into(),
        ReportLuns::new(256).into(),
        RequestSense::new(252).into(),
        ReportTargetPortGroups::new(256).into(),
    ];
    for (state, [medium, standby, set]) in [
        (Optimized, [None; 3]),
        (NonOptimized, [None; 3]),
        (Standby, [Some(IN_STANDBY), None, None]),
        (Unavailable, [Some(UNAVAILABLE), Some(UNAVAILABLE), None]),
        (Transitioning, [Some(TRANSITION); 3]),
    ] {
        let all = [(&of_medium[..], medium), (&in_standby, standby), (&settled, set), (&always, None)];
        for (cdbs, expected) in all {
            for cdb in cdbs {
                let mut bench = with_group(state, true);
                assert_eq!(refusal(&mut bench, *cdb), expected, "{state:?} {cdb:?}");
            }
        }
        let mut bench = with_group(state, true);
        let written = bench.write(Write10::new(0, 1), &[1; BLOCK]);
        assert_eq!(written.ending.sense.is_some().then(|| written.sense()), medium, "{state:?}");
        let sense = bench.read(RequestSense::new(18)).data;
        let pending = (sense[2], u16::from_be_bytes([sense[12], sense[13]]));
        assert_eq!(pending, medium.unwrap_or_default(), "{state:?}: what REQUEST SENSE reports");
    }
}

#[test]
fn the_state_is_that_of_the_port_and_comes_before_reservations() {
    let mut bench = with_group(Standby, false);
    bench.nexuses[1].target_port = 2;
    bench.run(1, Read10::new(0, 1), &[], BLOCK as u32).assert_good();
    bench.run(1, Reserve6::ZERO, &[], 0).assert_good();
    bench.read(Read10::new(0, 1)).assert_check(IN_STANDBY.0, IN_STANDBY.1);
    let sensed = bench.read(ModeSense6::page_only(0x3f, 255));
    assert_eq!(
        sensed.ending.status,
        wire::scsi::Status::ReservationConflict,
        "accepted in standby, but reserved"
    );
    bench.nexuses[0].target_port = 0;
    bench.nexuses[0].access_epoch = 0;
    let read = bench.read(Read10::new(0, 1));
    assert_eq!(read.ending.status, wire::scsi::Status::ReservationConflict, "no port, no group");
}

#[test]
fn initiators_set_the_states_of_groups_that_are_explicit_and_others_are_notified() {
    let mut bench = with_group(Optimized, true);
    set(&mut bench, 0, &[(1, 0x2)]).assert_good();
    assert_eq!(reported(&mut bench), [(0x02, 1), (0x00, 0)]);
    assert_eq!(bench.nexuses[0].attentions, []);
    assert_eq!(bench.nexuses[1].attentions, [UnitAttention::AccessStateChanged]);
    assert_eq!(bench.published.take().unwrap().deactivated, [1]);
    bench.run(1, TestUnitReady {}, &[], 0).assert_check(0x6, code::ASYMMETRIC_ACCESS_STATE_CHANGED);
    bench.run(1, TestUnitReady {}, &[], 0).assert_check(IN_STANDBY.0, IN_STANDBY.1);
    // Setting the present state is not a change.
    set(&mut bench, 1, &[(1, 0x2)]).assert_good();
    assert!(bench.published.is_none() && bench.nexuses[0].attentions.is_empty());
    bench.ask(HomeRequest::Reset { from: None });
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    assert_eq!(reported(&mut bench)[0], (0x02, 1), "a reset leaves it");
    set(&mut bench, 1, &[(1, 0x1)]).assert_good();
    assert_eq!(bench.published.take().unwrap().deactivated, []);
    bench.read(TestUnitReady {}).assert_check(0x6, code::ASYMMETRIC_ACCESS_STATE_CHANGED);
    bench.read(TestUnitReady {}).assert_good();
}

#[test]
fn states_that_cannot_be_set_are_refused_and_nothing_changes() {
    let mut bench = with_group(Optimized, true);
    let at = |outcome: Outcome, byte: u8| {
        outcome.assert_check(0x5, 0x2600);
        assert_eq!(outcome.ending.sense.unwrap().as_bytes()[16..18], [0, byte]);
    };
    at(set(&mut bench, 0, &[(1, 0x1), (2, 0x1)]), 8);
    at(set(&mut bench, 0, &[(1, 0x1), (3, 0x1)]), 10);
    for state in [0x4, 0xe, 0xf] {
        at(set(&mut bench, 0, &[(1, state)]), 4);
    }
    bench.nexuses[0].hidden_ports = [1].into();
    at(set(&mut bench, 0, &[(1, 0x1)]), 6);
    bench.nexuses[0].hidden_ports = [].into();
    bench.nexuses[0].read_only = true;
    set(&mut bench, 0, &[(1, 0x1)]).assert_check(0x7, 0x2700);
    assert!(bench.published.is_none());
    bench.write(SetTargetPortGroups::new(6), &[0; 6]).assert_check(0x5, 0x1a00);
    bench.write(SetTargetPortGroups::new(8), &[0; 4]).assert_check(0x5, 0x1a00);
    let mut implicit = with_group(Optimized, false);
    set(&mut implicit, 0, &[(1, 0x1)]).assert_check(0x5, 0x2400);
    let tpgs = |bench: &mut Bench| bench.read(Inquiry::new(96)).data[5] >> 4 & 0x3;
    bench.nexuses[0].read_only = false;
    assert_eq!((tpgs(&mut bench), tpgs(&mut implicit)), (3, 1));
}

/// The unit of a bench, changed.
fn configure(bench: &mut Bench, change: impl FnOnce(&mut Unit)) {
    let mut unit = Unit::clone(&bench.view.unit);
    change(&mut unit);
    bench.ask(HomeRequest::Configure(Arc::new(unit)));
}

#[test]
fn a_state_that_is_configured_replaces_the_one_that_was_set_and_no_other() {
    let mut bench = with_group(Optimized, true);
    set(&mut bench, 0, &[(1, 0x1)]).assert_good();
    bench.nexuses[1].attentions.clear();
    configure(&mut bench, |unit| unit.product = "Other".into());
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    assert_eq!(reported(&mut bench)[0], (0x01, 1), "what was set stays");
    configure(&mut bench, |unit| unit.groups[1].state = Unavailable);
    assert_eq!(bench.published.as_ref().unwrap().deactivated, [2]);
    for nexus in &mut bench.nexuses {
        assert_eq!(std::mem::take(&mut nexus.attentions), [UnitAttention::AccessStateChanged]);
    }
    assert_eq!(reported(&mut bench), [(0x01, 1), (0x03, 2)]);
    configure(&mut bench, |unit| unit.groups[0].state = Standby);
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    assert_eq!(reported(&mut bench)[0], (0x02, 2));
    configure(&mut bench, |unit| unit.groups[0].preferred = true);
    assert_eq!(bench.nexuses[1].attentions, [UnitAttention::AccessStateChanged]);
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    assert_eq!(reported(&mut bench)[0], (0x82, 2));
    configure(&mut bench, |unit| unit.groups[0].explicit = false);
    assert_eq!(bench.nexuses[1].attentions, [UnitAttention::InquiryChanged]);
}

#[test]
fn what_waits_at_the_home_is_judged_by_the_state_of_then() {
    let mut bench = with_group(Optimized, true);
    let from = bench.nexuses[0].identity();
    set(&mut bench, 1, &[(1, 0x2)]).assert_good();
    let reply = bench.ask(HomeRequest::Reserve(from.clone()));
    assert_eq!(reply, HomeReply::Check(Check::PORT_IN_STANDBY));
    let reply = bench.ask(HomeRequest::StartStop { from, start: false, load_eject: false });
    assert_eq!(reply, HomeReply::Check(Check::PORT_IN_STANDBY));
    bench.ask(HomeRequest::NexusLost(NexusId(1)));
}
