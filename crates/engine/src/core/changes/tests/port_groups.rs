//! Target port groups that change their asymmetric access state: by the configuration, or by SET TARGET PORT
//! GROUPS.

use super::unended;
use crate::testing::daemon::Url;
use crate::testing::initiator::{Initiator, Login, Pdu, Response, write_cdb};
use crate::testing::{HeldStore, Slow, serve};
use crate::{Daemon, Wants};
use config::{Config, PortIds, PortalGroup};
use std::sync::Arc;
use std::time::Duration;
use wire::scsi::AccessState::{self, NonOptimized, Optimized, Standby, Unavailable};
use wire::scsi::code;
use wire::scsi::command::{Read16, ReportTargetPortGroups, SetTargetPortGroups};
use wire::scsi::status::{CHECK_CONDITION, GOOD};

const BLOCK: u32 = 512;
const STATE_CHANGED: u16 = code::ASYMMETRIC_ACCESS_STATE_CHANGED;
const INQUIRY_CHANGED: u16 = code::INQUIRY_DATA_CHANGED;
const TRANSITION: u16 = code::ACCESS_STATE_TRANSITION;
const IN_STANDBY: u16 = code::PORT_IN_STANDBY;
const UNAVAILABLE: u16 = code::PORT_UNAVAILABLE;

/// A daemon on two cores, whose unit is reached through one portal in group 1 and one in group 2; initiators
/// may set their states.
fn served(stores: &[Arc<HeldStore>]) -> (Daemon, [Url; 2]) {
    let (daemon, first) = serve(2, stores, |config| {
        let listen = "127.0.0.2:0".parse().expect("an address");
        let second = config::Portal { listen, group: 2, ..config.portals[0].clone() };
        config.portals.push(second);
        config.targets[0].portals = vec![0, 1];
        config.portal_groups = [1, 2].map(|tag| group(tag, Optimized)).to_vec();
    });
    let second = Url { portal: daemon.addresses()[1], target: first.target.clone() };
    (daemon, [first, second])
}

fn group(tag: u16, state: AccessState) -> PortalGroup {
    PortalGroup { tag, state, preferred: false, explicit: true, port_ids: PortIds::ALL }
}

fn session(url: &Url, name: &str) -> Initiator {
    let mut initiator = Initiator::login(url, &Login::named(name)).expect("a session");
    initiator.ready(0).expect("the unit is ready");
    initiator
}

/// Takes the steps to another configuration.
fn configure(daemon: &mut Daemon, change: impl FnOnce(&mut Config)) -> Result<(), crate::ChangeError> {
    let mut to = daemon.config().clone();
    change(&mut to);
    let steps = config::diff(daemon.config(), &to);
    steps.iter().try_for_each(|step| daemon.take_step(step, &to, Wants::Store))
}

fn list(tag: u8, state: AccessState) -> Vec<u8> {
    vec![0, 0, 0, 0, state.code(), 0, 0, tag]
}

fn set(initiator: &mut Initiator, tag: u8, state: AccessState) -> Response {
    initiator.write(0, SetTargetPortGroups::new(8), &list(tag, state)).expect("an answer")
}

fn code(response: &Response) -> Option<u16> {
    (response.status == CHECK_CONDITION).then(|| u16::from_be_bytes([response.sense[12], response.sense[13]]))
}

/// The outcome of reading one block.
fn read(initiator: &mut Initiator) -> Option<u16> {
    code(&initiator.read(0, Read16::new(0, 1), BLOCK as usize).expect("an answer"))
}

fn write(initiator: &mut Initiator) -> Option<u16> {
    code(&initiator.write(0, write_cdb(0, 512, BLOCK, false), &[1; 512]).expect("an answer"))
}

#[test]
fn a_state_that_one_initiator_sets_holds_on_every_core_and_all_others_are_notified() {
    let (daemon, [first, second]) = served(&[HeldStore::new()]);
    let mut asks = session(&first, "asks");
    let mut by_first: Vec<Initiator> = (0..4).map(|n| session(&first, &format!("first{n}"))).collect();
    let mut by_second: Vec<Initiator> = (0..4).map(|n| session(&second, &format!("second{n}"))).collect();
    for (state, refused) in
        [(Standby, Some(IN_STANDBY)), (Unavailable, Some(UNAVAILABLE)), (NonOptimized, None)]
    {
        assert_eq!(set(&mut asks, 2, state).status, GOOD);
        assert_eq!(read(&mut asks), None);
        for other in &mut by_first {
            assert_eq!([read(other), read(other)], [Some(STATE_CHANGED), None]);
        }
        for other in &mut by_second {
            assert_eq!([read(other), read(other), write(other)], [Some(STATE_CHANGED), refused, refused]);
            let groups = other.read(0, ReportTargetPortGroups::new(64), 64).expect("an answer");
            assert_eq!((groups.data[4], groups.data[16]), (Optimized.code(), state.code()));
        }
    }
    // The initiator that has locked itself out lets itself in again.
    assert_eq!(set(&mut asks, 2, Standby).status, GOOD);
    let other = &mut by_second[0];
    assert_eq!(read(other), Some(STATE_CHANGED));
    assert_eq!(set(other, 2, Optimized).status, GOOD);
    assert_eq!(read(other), None);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn set_target_port_groups_is_answered_when_nothing_of_the_group_can_be_written_any_more() {
    let stores = [HeldStore::new()];
    let (daemon, [first, second]) = served(&stores);
    let (mut asks, mut writes) = (session(&first, "asks"), session(&second, "writes"));
    stores[0].hold();
    let write = writes.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    let tag = asks.issue(0, SetTargetPortGroups::new(8), 0, list(2, Standby)).expect("it is sent");
    // The unit attention shows that it has been published.
    while read(&mut writes) != Some(STATE_CHANGED) {}
    assert_eq!(read(&mut writes), Some(IN_STANDBY), "nothing new begins");
    assert_eq!(read(&mut asks), None);
    assert!(!asks.has_ended(tag) && stores[0].has_held(1) && stores[0].cancelled() == 0);
    stores[0].release();
    assert_eq!(asks.complete(tag).expect("an answer").status, GOOD);
    assert_eq!(writes.complete(write).expect("an answer").status, GOOD, "what was under way ends as it does");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_write_whose_data_comes_late_is_refused_and_holds_up_nobody() {
    let (daemon, [first, second]) = served(&[HeldStore::new()]);
    let mut asks = session(&first, "asks");
    let mut late = Slow::login(&second, "late");
    late.write(1, 4096);
    assert_eq!(late.asked(), 1);
    assert_eq!(set(&mut asks, 2, Standby).status, GOOD);
    late.answer().expect("it is sent");
    let response = loop {
        let pdu: Pdu = late.initiator.receive().expect("an answer");
        if pdu.opcode() == 0x21 {
            break pdu;
        }
    };
    let code = u16::from_be_bytes([response.data[2 + 12], response.data[2 + 13]]);
    assert_eq!((response.header[3], code), (CHECK_CONDITION, TRANSITION));
    assert_eq!(asks.read_blocks(0, 0, 8, BLOCK).expect("GOOD"), [0; 4096]);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_command_that_has_yet_to_come_to_the_unit_is_subject_to_the_state_that_it_finds() {
    let (mut daemon, [_, second]) = served(&[HeldStore::new()]);
    let mut waits = session(&second, "waits");
    let rate = |iops| config::Limits { iops, bytes: None };
    let slow = rate(Some(config::Rate { per_second: 1, burst: 0 }));
    configure(&mut daemon, |config| config.luns[0].limits = slow).expect("it changes");
    let read = |waits: &mut Initiator| waits.issue(0, Read16::new(0, 1), BLOCK as usize, Vec::new());
    // The last of them would be admitted after a minute. Commands that are not limited are answered while
    // they all wait.
    let tags: Vec<u32> = (0..60).map(|_| read(&mut waits).expect("it is sent")).collect();
    waits.read(0, ReportTargetPortGroups::new(64), 64).expect("an answer");
    for state in [Standby, Optimized] {
        configure(&mut daemon, |config| config.portal_groups[1].state = state).expect("it changes");
    }
    configure(&mut daemon, |config| config.luns[0].limits = rate(None)).expect("it changes");
    let last = tags.last().expect("there are some");
    assert_eq!(code(&waits.complete(*last).expect("an answer")), None);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_configured_state_is_reported_as_made_when_what_was_begun_has_ended() {
    let stores = [HeldStore::new()];
    let (mut daemon, [first, second]) = served(&stores);
    let (mut stays, mut writes) = (session(&first, "stays"), session(&second, "writes"));
    stores[0].hold();
    let write = writes.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    daemon.wait_at_most(Duration::ZERO);
    let outcome =
        configure(&mut daemon, |config| config.portal_groups = vec![group(1, Optimized), group(2, Standby)]);
    let what = unended(outcome);
    assert!(what.contains("LUN lun0"), "{what}");
    stores[0].release();
    daemon.wait_at_most(Duration::from_secs(60));
    assert_eq!(writes.complete(write).expect("an answer").status, GOOD);
    configure(&mut daemon, |config| config.logins_max += 1).expect("it waits for no write any more");
    assert_eq!([read(&mut writes), read(&mut writes)], [Some(STATE_CHANGED), Some(IN_STANDBY)]);
    assert_eq!([read(&mut stays), read(&mut stays)], [Some(STATE_CHANGED), None]);
    // A new session finds that state, and so does a change that is unrelated to it.
    let mut late = Initiator::login(&second, &Login::named("late")).expect("a session");
    while read(&mut late) != Some(IN_STANDBY) {}
    configure(&mut daemon, |config| config.portal_groups.clear()).expect("it changes");
    assert_eq!(
        [read(&mut writes), read(&mut writes)],
        [Some(INQUIRY_CHANGED), Some(STATE_CHANGED)],
        "TPGS, too"
    );
    assert_eq!(read(&mut writes), None);
    daemon.stop().expect("every core ends in order");
}
