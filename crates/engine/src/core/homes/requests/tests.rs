//! A unit that other gateways serve as well.

use crate::gateway_handle::{GatewayEvent, GatewayHandle};
use crate::message::{Message, Origin, Waiter};
use crate::state::files::System;
use crate::stores::Opened;
use crate::testing::HeldStore;
use crate::testing::daemon::Url;
use crate::testing::initiator::{Initiator, Login, write_cdb};
use crate::units::NewUnit;
use crate::{Daemon, Events};
use config::{Access, Config, ServeOptions};
use scsi::attention::UnitAttention;
use scsi::{Home, HomeRequest, NexusId, Role};
use std::sync::{Arc, mpsc};
use store::lane::Store;
use wire::scsi::command::{PersistentReserveOut, TestUnitReady};
use wire::scsi::status::{CHECK_CONDITION, GOOD};

const BLOCK: u32 = 512;
const CORES: usize = 2;

/// A gateway on two cores that serves a unit, and another one's home, which decides.
struct Rig {
    daemon: Daemon,
    url: Url,
    store: Arc<HeldStore>,
    events: mpsc::Receiver<GatewayEvent>,
    other: Home,
}

impl Rig {
    fn new(access: Access) -> Rig {
        let options = ServeOptions {
            listen: vec!["127.0.0.1:0".into()],
            lun: vec!["ram:1M".into()],
            cores: Some("0".into()),
            ..ServeOptions::default()
        };
        let mut config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
        config.cores = (0..CORES).collect();
        config.portals[0].cores = config.cores.clone();
        config.luns[0].access = Some(access);
        let target = config.targets[0].name.clone();
        let (store, handle) = (HeldStore::new(), GatewayHandle::of(&config.luns[0]).expect("it is shared"));
        let opened = || Opened {
            store: store.clone(),
            failed: None,
            losses: Arc::default(),
            space: Arc::default(),
            gateway: Some(handle.clone()),
        };
        let (units, _) = NewUnit::all(&config, &[opened()], &System);
        let mut other = Home::new(units[0].view.unit.clone(), store.traits());
        other.handle(HomeRequest::SetRole { role: Role::Active, saved: Some(Arc::default()) });
        let daemon = Daemon::start_with(config, Events::default(), |_, _| vec![opened()]).expect("it starts");
        let url = Url { portal: daemon.addresses()[0], target };
        let events = handle.take_events().expect("nobody else receives them");
        let rig = Rig { daemon, url, store, events, other };
        rig.set_role(Role::Serving, Arc::default());
        rig.applied();
        rig
    }

    fn set_role(&self, role: Role, saved: Arc<[u8]>) {
        let (_, mail) = self.daemon.insides();
        let origin = Origin { core: 0, who: Waiter::Gateway(0) };
        let request = HomeRequest::SetRole { role, saved: Some(saved) };
        mail[0].post(Message::Home { unit: 0, origin, request });
    }

    /// Waits until all cores have applied that.
    fn applied(&self) {
        while !matches!(self.events.recv(), Ok(GatewayEvent::Applied(true))) {}
    }

    /// The state that the other gateway has saved with this change.
    fn decide(&mut self, request: HomeRequest) -> Arc<[u8]> {
        let (_, publish) = self.other.handle(request);
        publish.and_then(|publish| publish.persist).expect("it is saved").into()
    }

    /// Receives the request of a task that another gateway is to execute.
    fn forwarded(&self) -> Origin {
        match self.events.recv() {
            Ok(GatewayEvent::Forward(forward)) => forward.origin,
            _ => panic!("a request is forwarded"),
        }
    }

    /// Waits until a request is to be withdrawn.
    fn recalled(&self) -> Origin {
        match self.events.recv() {
            Ok(GatewayEvent::Recall(origin)) => origin,
            _ => panic!("a request is recalled"),
        }
    }

    /// A request can no longer be executed.
    fn withdraw(&self, origin: Origin) {
        self.daemon.insides().1[origin.core].post(Message::recalled(origin));
    }

    fn session(&self, name: &str) -> Initiator {
        let mut initiator = Initiator::login(&self.url, &Login::named(name)).expect("a session");
        initiator.ready(0).expect("the unit is ready");
        initiator
    }
}

fn write(initiator: &mut Initiator, block: u64) -> u32 {
    initiator.issue(0, write_cdb(block, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent")
}

/// What TEST UNIT READY reports.
fn report(initiator: &mut Initiator) -> Option<u16> {
    let response = initiator.read(0, TestUnitReady {}, 0).expect("an answer");
    (response.status == CHECK_CONDITION).then(|| u16::from_be_bytes([response.sense[12], response.sense[13]]))
}

#[test]
fn a_reset_by_another_gateway_is_applied_when_nothing_that_came_before_can_reach_the_medium() {
    let mut rig = Rig::new(Access::All);
    let mut initiators: Vec<Initiator> = (0..4).map(|number| rig.session(&format!("host{number}"))).collect();
    rig.store.hold();
    let before: Vec<u32> = initiators.iter_mut().map(|initiator| write(initiator, 0)).collect();
    rig.store.wait_for(4);
    let state = rig.decide(HomeRequest::Reset { from: Some(NexusId(1)) });
    rig.set_role(Role::Serving, state);
    for initiator in &mut initiators {
        // Each core publishes at its own time.
        while report(initiator) != Some(UnitAttention::Reset.code()) {}
    }
    let after: Vec<u32> = initiators.iter_mut().map(|initiator| write(initiator, 1)).collect();
    rig.store.wait_for(8);
    assert!(rig.events.try_recv().is_err(), "what came before may still be written");
    rig.store.release();
    rig.applied();
    for (mut initiator, (before, after)) in initiators.into_iter().zip(before.into_iter().zip(after)) {
        assert_eq!(initiator.complete(after).expect("an answer").status, GOOD, "it came later");
        assert!(!initiator.has_ended(before));
        initiator.logout().expect("an answer");
    }
    rig.daemon.stop().expect("every core ends in order");
}

const ABORT_TASK_SET: u8 = 2;
const CLEAR_TASK_SET: u8 = 4;

#[test]
fn a_task_set_is_aborted_when_no_other_gateway_can_execute_a_request_of_its_tasks() {
    for (function, access, ends_both) in [
        (ABORT_TASK_SET, Access::One, false),
        (CLEAR_TASK_SET, Access::One, true),
        (CLEAR_TASK_SET, Access::All, false),
    ] {
        let rig = Rig::new(access);
        // Two for each core.
        let mut sessions: Vec<Initiator> =
            (0..4).map(|number| rig.session(&format!("host{number}"))).collect();
        let mut waiting = Vec::new();
        for initiator in &mut sessions {
            let list = [&[0; 15][..], &[7], &[0; 8]].concat();
            let task = initiator.issue(0, PersistentReserveOut::new(0, 0, 24), 0, list).expect("it is sent");
            waiting.push((task, rig.forwarded()));
        }
        let ended = if ends_both { 4 } else { 1 };
        let abort = sessions[0].ask_to_manage(function, 0, 0).expect("it is sent");
        let mut recalled: Vec<Origin> = (0..ended).map(|_| rig.recalled()).collect();
        assert!(recalled.contains(&waiting[0].1));
        // Its home does not wait: it applies what another gateway has changed.
        rig.set_role(Role::Serving, Arc::default());
        rig.applied();
        for _ in 0..2 {
            let (last, others) = (recalled.pop().expect("one is left"), recalled);
            sessions[0].ready(0).expect("the unit is ready");
            assert!(!sessions[0].has_ended(abort), "another gateway may execute it");
            others.iter().for_each(|origin| rig.withdraw(*origin));
            recalled = vec![last];
        }
        rig.withdraw(recalled[0]);
        assert_eq!(sessions[0].complete(abort).expect("an answer").status, 0);
        for (initiator, (task, origin)) in sessions.into_iter().zip(waiting) {
            assert!(!initiator.has_ended(task));
            if !ends_both {
                rig.withdraw(origin);
            }
            drop(initiator);
        }
        rig.daemon.stop().expect("every core ends in order");
    }
}
