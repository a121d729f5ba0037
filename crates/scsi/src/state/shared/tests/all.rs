//! Tests of units that all gateways serve at the same time.

use super::super::*;
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::nexus::NexusId;
use crate::state::port_groups::PortGroup;
use crate::state::unit::{Port, Sharing};
use crate::testing::{BLOCK, Bench, unit};
use crate::vocabulary::command::Status;
use crate::vocabulary::modes::ModesChange;
use crate::vocabulary::storage::Traits;
use wire::scsi::AccessState;
use wire::scsi::command::{
    Inquiry, ModeSelect6, ModeSense6, OrWrite16, PersistentReserveIn, PersistentReserveOut,
    PreventAllowMediumRemoval, Read16, Release6, Reserve6, StartStopUnit, TestUnitReady, Write10,
    WriteAtomic16,
};
use wire::scsi::mode::{control, page};
use wire::scsi::opcode;

const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const WRITE: Write10 = Write10::new(0, 1);

fn all() -> Unit {
    Unit { sharing: Some(Sharing::All), removable: true, ..unit() }
}

/// A gateway whose ports have these identifiers; it knows the other one's.
fn gateway(role: Role, [first, second]: [u16; 2], other: u16) -> Bench {
    let mut unit = all();
    let port = |id: u16| Port { relative_id: id, name: format!("port{id}"), ..unit.ports[0].clone() };
    unit.ports = vec![port(first), port(second)];
    let mut bench = Bench::of(unit, 1 << 20);
    for nexus in &mut bench.nexuses {
        nexus.target_port = first;
        nexus.transport_id = [5, first as u8, nexus.id.0 as u8].into();
    }
    let (name, state) = (format!("port{other}"), AccessState::Optimized);
    bench.ask(HomeRequest::SetOthers([OtherPort { relative_id: other, group: other, name, state }].into()));
    bench.ask(HomeRequest::SetRole { role, saved: Some(Arc::default()) });
    bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
    bench
}

/// The gateway that decides, and another one that serves the unit as well.
fn both() -> [Bench; 2] {
    [gateway(Role::Active, [1, 2], 8), gateway(Role::Serving, [8, 9], 1)]
}

/// The state that a home has saved with its last change.
fn saved(bench: &mut Bench) -> Arc<[u8]> {
    bench.published.take().and_then(|publish| publish.persist).expect("it is saved").into()
}

/// Adopts this state; returns the unit attentions of both nexuses, and which of them had their tasks aborted.
fn adopt(
    bench: &mut Bench,
    role: Role,
    saved: &Arc<[u8]>,
) -> ([Vec<UnitAttention>; 2], [Option<Aborted>; 2]) {
    bench.ask(HomeRequest::SetRole { role, saved: Some(saved.clone()) });
    let publish = bench.published.take().expect("it is published");
    let aborted = [0, 1].map(|nexus| {
        let mut its = publish.aborts.iter().filter(|(who, _)| who.includes(&bench.nexuses[nexus]));
        its.next().map(|(_, how)| *how)
    });
    assert!(publish.deactivated.is_empty() && publish.persist.is_none());
    ([0, 1].map(|nexus| std::mem::take(&mut bench.nexuses[nexus].attentions).into()), aborted)
}

/// Forwards a request of the serving gateway to the other one, which executes it.
fn execute(active: &mut Bench, serving: &Bench, request: &HomeRequest) -> HomeReply {
    let body = serving.home.forwards(request).expect("it is forwarded");
    let ports = serving.view.unit.ports.clone();
    let port = |name: &str| ports.iter().find(|port| port.name == name).map(|port| port.relative_id);
    active.ask(HomeRequest::forwarded(&body, port).expect("a request"))
}

fn reserve_out(bench: &mut Bench, nexus: usize, action: u8, keys: [u64; 2]) -> HomeRequest {
    bench.nexuses[nexus].sync(&bench.home.policy());
    let list = [&keys[0].to_be_bytes()[..], &keys[1].to_be_bytes(), &[0; 8]].concat();
    let cdb = PersistentReserveOut::new(action, 1, 24).into();
    let order = crate::state::reservation::ReserveOut::parse(&cdb, &list).expect("a list");
    HomeRequest::PersistentReserveOut { from: bench.nexuses[nexus].identity(), order }
}

fn set_modes(bench: &mut Bench, nexus: usize, set: impl FnOnce(&mut Modes)) -> HomeRequest {
    bench.nexuses[nexus].sync(&bench.home.policy());
    let mut modes = bench.home.policy().modes;
    set(&mut modes);
    let change = ModesChange { control: true, ..ModesChange::none(modes) };
    HomeRequest::SetModes { from: bench.nexuses[nexus].identity(), change }
}

#[test]
fn a_serving_gateway_accesses_the_medium_and_leaves_to_another_what_changes_the_unit() {
    let mut bench = Bench::of(all(), 1 << 20);
    // Initiators must not use another gateway before a former process of this one is fenced.
    bench.read(TestUnitReady {}).assert_check(2, Check::ACCESS_STATE_TRANSITION.code);
    bench.ask(HomeRequest::SetRole { role: Role::Serving, saved: Some(Arc::default()) });
    for nexus in &mut bench.nexuses {
        assert_eq!(std::mem::take(&mut nexus.attentions), [UnitAttention::AccessStateChanged]);
    }
    bench.read(TestUnitReady {}).assert_good();
    bench.write(WRITE, &[7; BLOCK]).assert_good();
    assert_eq!(bench.read(Read16::new(0, 1)).data, [7; BLOCK]);
    let from = bench.nexuses[0].identity();
    let requests = [
        reserve_out(&mut bench, 0, 0, [0, 7]),
        set_modes(&mut bench, 0, |modes| modes.queue_error = 3),
        HomeRequest::StartStop { from, start: false, load_eject: false },
        HomeRequest::Reset { from: Some(NexusId(1)) },
    ];
    let before = bench.home.policy();
    for request in requests {
        assert!(bench.home.forwards(&request).is_some(), "{request:?}");
        let (reply, publish) = bench.home.handle(request);
        assert!(matches!(reply, HomeReply::Check(_)) && publish.is_none());
    }
    assert!(Arc::ptr_eq(&before, &bench.home.policy()));
    // It may be another gateway's state that a MODE SELECT changes.
    let current = bench.read(ModeSense6::page_only(page::CONTROL, 255)).data;
    let list = [&[0; 4][..], &current[4..]].concat();
    bench.write(ModeSelect6::new(list.len() as u8), &list).assert_check(2, Check::PORT_IN_STANDBY.code);
}

#[test]
fn a_gateway_begins_and_ceases_to_decide_while_it_serves() {
    let mut bench = gateway(Role::Serving, [1, 2], 8);
    for role in [Role::Active, Role::Serving, Role::Active] {
        bench.ask(HomeRequest::SetRole { role, saved: (role == Role::Active).then(Arc::default) });
        let publish = bench.published.take().expect("it is published");
        assert!(publish.aborts.is_empty() && publish.deactivated.is_empty() && publish.attentions.is_empty());
        assert_eq!(bench.home.policy().decides(), role == Role::Active);
        bench.write(WRITE, &[7; BLOCK]).assert_good();
    }
    bench.ask(HomeRequest::SetRole { role: Role::Standby, saved: None });
    assert_eq!(bench.published.take().expect("it is published").deactivated, [1, 2]);
}

#[test]
fn a_reservation_that_a_gateway_adopts_holds_for_what_begins_there_afterwards() {
    let [mut active, mut serving] = both();
    for (action, keys) in [(0, [0, 7]), (1, [7, 0])] {
        let request = reserve_out(&mut active, 0, action, keys);
        assert_eq!(active.ask(request), HomeReply::Done);
    }
    serving.write(WRITE, &[7; BLOCK]).assert_good();
    let state = saved(&mut active);
    assert_eq!(adopt(&mut serving, Role::Serving, &state), ([vec![], vec![]], [None, None]));
    assert_eq!(serving.write(WRITE, &[7; BLOCK]).ending.status, Status::ReservationConflict);
    assert_eq!(serving.read(PersistentReserveIn::new(1, 255)).data[4..8], [0, 0, 0, 16]);
}

#[test]
fn preempt_and_abort_ends_commands_of_the_preempted_at_each_gateway_that_serves() {
    for (action, how) in [(PREEMPT, None), (PREEMPT_AND_ABORT, Some(Aborted::Silently))] {
        let [mut active, mut serving] = both();
        let request = reserve_out(&mut serving, 0, 0, [0, 2]);
        assert_eq!(execute(&mut active, &serving, &request), HomeReply::Done);
        let state = saved(&mut active);
        adopt(&mut serving, Role::Serving, &state);
        for (action, keys) in [(0, [0, 1]), (action, [1, 2])] {
            let request = reserve_out(&mut active, 0, action, keys);
            assert_eq!(active.ask(request), HomeReply::Done);
        }
        let state = saved(&mut active);
        let preempted = vec![UnitAttention::RegistrationsPreempted];
        assert_eq!(adopt(&mut serving, Role::Serving, &state), ([preempted, vec![]], [how, None]));
        // What comes after the unit attention is not ended.
        assert_eq!(adopt(&mut serving, Role::Serving, &state), ([vec![], vec![]], [None, None]));
        // Nor once more by the gateway that takes over.
        assert_eq!(adopt(&mut serving, Role::Active, &state), ([vec![], vec![]], [None, None]));
    }
}

#[test]
fn a_reset_ends_the_commands_at_each_gateway_that_serves_whichever_executes_it() {
    let reset = [vec![UnitAttention::Reset], vec![UnitAttention::Reset]];
    for how in [Aborted::Silently, Aborted::WithStatus] {
        for role in [Role::Serving, Role::Active] {
            let [mut active, mut serving] = both();
            let with_status = how == Aborted::WithStatus;
            let request = set_modes(&mut active, 0, |modes| modes.task_aborted_status = with_status);
            active.ask(request);
            if with_status {
                let state = saved(&mut active);
                adopt(&mut serving, Role::Serving, &state);
            }
            let request = HomeRequest::Reset { from: Some(serving.nexuses[1].id) };
            assert_eq!(execute(&mut active, &serving, &request), HomeReply::Done);
            let state = saved(&mut active);
            assert_eq!(adopt(&mut serving, role, &state), (reset.clone(), [Some(how); 2]));
            assert_eq!(serving.home.policy().modes, Modes::initial(&serving.view.unit));
            assert_eq!(adopt(&mut serving, role, &state), ([vec![], vec![]], [None, None]));
        }
    }
    // Commands that wait at a gateway in standby may have come after it: nothing of them has begun.
    let [mut active, _] = both();
    let mut joining = gateway(Role::Standby, [8, 9], 1);
    active.ask(HomeRequest::Reset { from: Some(NexusId(1)) });
    let state = saved(&mut active);
    let joins = [(); 2].map(|()| vec![UnitAttention::Reset, UnitAttention::AccessStateChanged]);
    assert_eq!(adopt(&mut joining, Role::Serving, &state), (joins, [None, None]));
}

#[test]
fn a_medium_that_is_ejected_or_stopped_at_one_gateway_is_so_at_the_others() {
    let [mut active, mut serving] = both();
    let eject = |bench: &Bench, start| {
        let from = bench.nexuses[0].identity();
        HomeRequest::StartStop { from, start, load_eject: true }
    };
    serving.nexuses[0].sync(&serving.home.policy());
    let request = eject(&serving, false);
    assert_eq!(execute(&mut active, &serving, &request), HomeReply::Done);
    active.read(TestUnitReady {}).assert_check(2, 0x3a00);
    let state = saved(&mut active);
    adopt(&mut serving, Role::Serving, &state);
    serving.read(TestUnitReady {}).assert_check(2, 0x3a00);
    let request = eject(&serving, true);
    assert_eq!(execute(&mut active, &serving, &request), HomeReply::Done);
    let changed = vec![UnitAttention::MediumChanged];
    assert_eq!(active.nexuses[0].attentions, changed);
    let state = saved(&mut active);
    // The requester knows.
    assert_eq!(adopt(&mut serving, Role::Serving, &state), ([vec![], changed], [None, None]));
    serving.read(TestUnitReady {}).assert_good();
    // A store that was away is the same medium.
    active.ask(HomeRequest::StoreFailed("away".into()));
    active.ask(HomeRequest::StoreChanged(active.view.policy.traits));
    assert!(active.nexuses[1].attentions.contains(&UnitAttention::MediumChanged));
    let request = set_modes(&mut active, 0, |modes| modes.queue_error = 3);
    active.ask(request);
    let state = saved(&mut active);
    let modes = vec![UnitAttention::ModeChanged];
    assert_eq!(adopt(&mut serving, Role::Serving, &state).0, [modes.clone(), modes]);
}

/// The operation codes of REPORT SUPPORTED OPERATION CODES.
fn reported(bench: &mut Bench) -> Vec<u8> {
    let data = bench.read(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0]).assert_good().data.clone();
    data[4..].chunks(8).map(|command| command[0]).collect()
}

#[test]
fn what_needs_one_gateway_that_sees_all_commands_is_not_offered() {
    let serve = |sharing| {
        let mut bench = Bench::of(Unit { sharing: Some(sharing), ..all() }, 1 << 20);
        bench.ask(HomeRequest::SetRole { role: Role::Active, saved: Some(Arc::default()) });
        let traits = Traits { cryptographic_erase: true, ..bench.view.policy.traits };
        bench.ask(HomeRequest::StoreChanged(traits));
        bench.nexuses[0].attentions.clear();
        bench
    };
    let (mut one, mut both) = (serve(Sharing::One), serve(Sharing::All));
    let refused = [
        opcode::ORWRITE_16,
        opcode::WRITE_ATOMIC_16,
        opcode::PREVENT_ALLOW_MEDIUM_REMOVAL,
        opcode::RESERVE_6,
        opcode::RELEASE_6,
        opcode::RESERVE_10,
        opcode::RELEASE_10,
        opcode::FORMAT_UNIT,
        opcode::SANITIZE,
    ];
    let (before, after) = (reported(&mut one), reported(&mut both));
    let left: Vec<u8> = before.iter().copied().filter(|code| !refused.contains(code)).collect();
    assert!(refused.iter().all(|code| before.contains(code)));
    assert_eq!(after, left);
    both.write(OrWrite16::new(0, 1), &[0; BLOCK]).assert_check(5, 0x2000);
    both.write(WriteAtomic16::new(0, 1), &[0; BLOCK]).assert_check(5, 0x2000);
    for cdb in [
        wire::Cdb::from(PreventAllowMediumRemoval { prevent: 1 }),
        Reserve6::ZERO.into(),
        Release6::ZERO.into(),
    ] {
        both.read(cdb).assert_check(5, 0x2000);
    }
    both.read(&[opcode::FORMAT_UNIT, 0, 0, 0, 0, 0]).assert_check(5, 0x2000);
    for action in [1, 2, 3, 0x1f] {
        both.read(&[opcode::SANITIZE, action, 0, 0, 0, 0, 0, 0, 0, 0]).assert_check(5, 0x2400);
    }
    // Block limits, block device characteristics and capabilities agree.
    let page = |bench: &mut Bench, code| bench.read(Inquiry::page(code, 255)).assert_good().data.clone();
    let atomic = |bench: &mut Bench| page(bench, 0xb0)[44..48].to_vec();
    assert_eq!((atomic(&mut one), atomic(&mut both)), (vec![0, 0, 1, 0], vec![0; 4]));
    let erasure = |bench: &mut Bench| page(bench, 0xb1)[7] & 0xf0;
    assert_eq!((erasure(&mut one), erasure(&mut both)), (0x50, 0));
    let capabilities = |bench: &mut Bench| bench.read(PersistentReserveIn::new(2, 255)).data[2] & 0x10;
    assert_eq!((capabilities(&mut one), capabilities(&mut both)), (0x10, 0), "CRH");
    both.read(StartStopUnit { start: true, ..StartStopUnit::ZERO }).assert_good();
}

#[test]
fn each_nexus_has_a_task_set_of_its_own_as_no_gateway_knows_the_tasks_of_another() {
    let mut bench = gateway(Role::Active, [1, 2], 8);
    let sense = ModeSense6::page_only(page::CONTROL, 255);
    let current = bench.read(sense).data[4..].to_vec();
    assert_eq!(current[2] >> 5, 1, "TST");
    assert_eq!(bench.read(ModeSense6 { control: control::CHANGEABLE, ..sense }).data[6] >> 5, 0);
    let mut list = [&[0; 4][..], &current].concat();
    list[4 + 2] &= 0x1f;
    bench.write(ModeSelect6::new(list.len() as u8), &list).assert_check(5, 0x2600);
    bench.ask(HomeRequest::ClearTaskSet { from: NexusId(1) });
    let aborts = bench.published.take().expect("it is published").aborts;
    assert_eq!(aborts, [(Who::Only(NexusId(1)), Aborted::Silently)]);
}

#[test]
fn set_target_port_groups_changes_nothing_where_all_gateways_are_active() {
    let mut unit = all();
    unit.groups = [1, 2].map(|tag| PortGroup { explicit: true, ..PortGroup::new(tag) }).into();
    let mut bench = Bench::of(unit, 1 << 20);
    let name = "port9".to_owned();
    let other = OtherPort { relative_id: 9, group: 9, name, state: AccessState::Optimized };
    bench.ask(HomeRequest::SetOthers([other].into()));
    let (best, standby) = (AccessState::Optimized, AccessState::Standby);
    for role in [Role::Standby, Role::Serving, Role::Active] {
        bench.ask(HomeRequest::SetRole { role, saved: Some(Arc::default()) });
        bench.nexuses.iter_mut().for_each(|nexus| nexus.attentions.clear());
        let own = if role == Role::Standby { standby } else { best };
        for (states, is_so) in [
            (vec![], true),
            (vec![(1, own)], true),
            (vec![(9, best), (1, own), (2, own)], true),
            (vec![(1, if own == best { standby } else { best })], false),
            (vec![(9, standby), (1, own)], false),
        ] {
            let request = HomeRequest::SetAccessStates { from: bench.nexuses[0].identity(), states };
            assert!(!bench.home.is_wanted(&request), "no gateway can become active by it");
            let (reply, publish) = bench.home.handle(request.clone());
            assert!(publish.is_none());
            assert_eq!(reply == HomeReply::Done, is_so, "{role:?} {request:?}: {reply:?}");
        }
    }
}
