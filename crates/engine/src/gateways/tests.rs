use super::peers::{concerns_others, others};
use super::*;
use crate::state::files::System;
use cluster::record::Serving;
use scsi::NexusId;
use scsi::storage::Traits;
use std::sync::atomic::{AtomicBool, Ordering};
use store::lane::Store;
use wire::scsi::AccessState;

#[test]
fn a_thread_that_does_not_end_in_time_must_end_at_once() {
    let (inbox, events) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let running = Running { inbox, ended, leaves_within: Duration::ZERO, ports: Arc::default() };
    running.wait(0, Instant::now());
    assert!(matches!(events.try_recv(), Ok(GatewayEvent::End)));
    end.send(()).expect("it is waited for");
    running.wait(0, Instant::now());
    assert!(events.try_recv().is_err(), "it has ended");
}

#[test]
fn what_a_thread_is_asked_after_its_end_is_refused() {
    let text = "[cluster]\nname = 'c'\ngateway = 'a'\npool = 'p'\n[[lun]]\nrbd = 'p/i'\naccess = 'one'\n\
                [[target]]\nname = 'iqn.2026-11.a:x'\n";
    let config = Config::from_toml(text, std::path::Path::new("lunette.toml"));
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let store = store::open_ram(1 << 20).expect("memory");
    let handle = GatewayHandle::of(&config.luns[0]);
    let opened = [Opened {
        store,
        failed: None,
        losses: Arc::default(),
        space: Arc::default(),
        gateway: handle.clone(),
    }];
    let (units, _) = NewUnit::all(&config, &opened, &System);
    let core = reactor::mailbox::mesh::<Message>(1).expect("a mailbox");
    let gateways = Gateways::all(&config, &units, &opened, &[core[0].sender(0)]).expect("a thread");
    let inbox = handle.expect("it is shared").inbox();
    inbox.send(GatewayEvent::Withdraw).expect("it runs");
    gateways.running[0].1.ended.recv().expect("it ends");
    let (outbox, outcome) = mpsc::channel();
    inbox.send(GatewayEvent::Activate(Requester::Administrator(outbox))).expect("it refuses what comes");
    assert_eq!(outcome.recv(), Ok(Err(ENDED.to_owned())));
}

#[test]
fn ports_that_another_gateway_has_are_found_unless_this_one_shares_some_already() {
    let mut rig = Forwarding::new();
    let other = |id, group| vec![Port { id, group, name: format!("iqn.a:x,t,0x{group:04x}"), state: 0 }];
    rig.object.1.gateways = [("a".into(), other(1, 1)), ("b".into(), other(20, 2))].into();
    rig.run();
    let running = Running {
        inbox: mpsc::channel().0,
        ended: mpsc::channel().1,
        leaves_within: Duration::ZERO,
        ports: rig.gateway.handle.ports.clone(),
    };
    let gateways = Gateways { cluster: Some(rig.gateway.cluster.clone()), running: vec![(7, running)] };
    let port = |relative_id, group| scsi::unit::Port {
        relative_id,
        group,
        name: "iqn.a:x".into(),
        device: "iqn.a:x".into(),
        protocol: scsi::unit::Protocol::Iscsi,
    };
    let own = [port(1, 1)];
    let clash =
        |before: &[scsi::unit::Port], group, id| gateways.clash(7, before, &[port(1, 1), port(id, group)]);
    assert_eq!(clash(&own, 3, 21), None);
    assert!(clash(&own, 2, 21).is_some_and(|what| what.contains("group 2 is gateway b's")));
    assert!(clash(&own, 3, 20).is_some_and(|what| what.contains("identifier 20 is gateway b's")));
    assert_eq!(clash(&[port(20, 3)], 3, 20), None, "a reload that changes something else is made");
    assert_eq!(gateways.clash(8, &own, &[port(20, 3)]), None, "no gateways share that one");
}

/// A gateway in standby whose request the active one may be executing.
struct Forwarding {
    gateway: Gateway<reactor::uring::Uring>,
    object: (u64, Record),
    mailbox: reactor::mailbox::Mailbox<Message>,
    origin: Origin,
    now: Duration,
}

impl Forwarding {
    fn new() -> Forwarding {
        let text = "[cluster]\nname = 'c'\ngateway = 'a'\npool = 'p'\n[[lun]]\nrbd = 'p/i'\naccess = 'one'\n\
                    [[target]]\nname = 'iqn.2026-11.a:x'\n";
        let config = Config::from_toml(text, std::path::Path::new("lunette.toml"));
        let config = config.unwrap_or_else(|problems| panic!("{problems}"));
        let (lun, cluster) = (&config.luns[0], config.cluster.as_ref().expect("it has one"));
        let opened: Opened = Opened {
            store: store::open_ram(1 << 20).expect("memory"),
            failed: None,
            losses: Arc::default(),
            space: Arc::default(),
            gateway: GatewayHandle::of(lun),
        };
        let handle = opened.gateway.clone().expect("it is shared");
        let (units, _) = NewUnit::all(&config, &[opened], &System);
        let mailbox = reactor::mailbox::mesh::<Message>(1).expect("a mailbox").remove(0);
        let home = HomeSender { unit: 0, core: 0, cores: vec![mailbox.sender(0)] };
        let (mut gateway, _) =
            Gateway::of(cluster, lun, &units[0].view.unit, &handle, home).expect("it is shared");
        let (process, disk) = ("a".into(), gateway.disk.clone());
        let member = Member { process, takeover_ms: 10_000, osd_map_ms: 15_000, disk };
        let me =
            Me { gateway: "a".into(), client: "192.0.2.1:0/1".into(), ports: gateway.ports.clone(), member };
        gateway.machine = Some(Box::new(Machine::new(me, cluster.takeover, Access::One)));
        let active = Some(cluster::Holder { gateway: "b".into(), client: "192.0.2.1:0/2".into() });
        let who = Waiter::Task(crate::slots::Slots::with_capacity(1).insert(()));
        let object = (1, Record { epoch: 1, active, ..Record::default() });
        Forwarding { gateway, object, mailbox, origin: Origin { core: 0, who }, now: Duration::ZERO }
    }

    /// Makes its calls that concern the object until it has none; returns the one for the image that it begins.
    fn run(&mut self) -> Option<ImageCall> {
        loop {
            let call = match self.gateway.next(self.now) {
                Step::Call(call) => call,
                Step::Begin(call) => return Some(call),
                Step::Wait(_) | Step::End => return None,
            };
            let answer = match call {
                ObjectCall::Read => Answer::Read(Ok(Some((self.object.0, self.object.1.encode())))),
                ObjectCall::Replace { bytes, .. } => {
                    self.object = (self.object.0 + 1, Record::decode(&bytes).expect("a record"));
                    Answer::Replaced(Ok(self.object.0))
                }
                ObjectCall::Notify => Answer::Notified,
            };
            self.gateway.answered(self.now, answer);
        }
    }

    fn happened(&mut self, event: GatewayEvent) {
        self.gateway.happened(self.now, event);
    }

    /// The messages that it has sent to the unit's core.
    fn messages(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        self.mailbox.drain(&mut messages);
        messages
    }

    /// Carries out an action, with a machine that does not notice; returns the call.
    fn act(&mut self, action: Action) -> Option<Step> {
        let mut machine = self.gateway.machine.take().expect("it has begun");
        let call = self.gateway.act(&mut machine, action);
        self.gateway.machine = Some(machine);
        call
    }

    /// How often the task's end was reported.
    fn recalled(&mut self) -> usize {
        let mut messages = Vec::new();
        self.mailbox.drain(&mut messages);
        messages.iter().filter(|message| matches!(message, Message::Recalled { .. })).count()
    }
}

#[test]
fn an_aborted_task_ends_when_the_active_gateway_cannot_execute_its_request_any_more() {
    for is_executed in [false, true] {
        let mut rig = Forwarding::new();
        let forward = |rig: &mut Forwarding| {
            let (origin, request) = (rig.origin, HomeRequest::SpaceChanged);
            rig.happened(GatewayEvent::Forward(Box::new(Forward { origin, request, body: vec![1] })));
        };
        rig.run();
        rig.happened(GatewayEvent::Applied(true));
        forward(&mut rig);
        rig.happened(GatewayEvent::Recall(rig.origin));
        assert_eq!(rig.recalled(), 1, "it is not in the object yet");
        forward(&mut rig);
        rig.run();
        let id = rig.object.1.requests["a"].id;
        rig.happened(GatewayEvent::Recall(rig.origin));
        assert_eq!(rig.recalled(), 0, "it may be executed");
        if is_executed {
            let reply = cluster::Reply { id, outcome: HomeReply::Done.encode(), is_applied: true };
            rig.object.0 += 1;
            rig.object.1.requests.clear();
            rig.object.1.replies.insert("a".into(), reply);
        }
        rig.run();
        assert_eq!(rig.recalled(), 1);
        assert!(rig.gateway.forwarded.is_empty() && !rig.object.1.requests.contains_key("a"));
    }
}

#[test]
fn a_reset_that_was_forwarded_ends_tasks_here_unless_this_gateway_serves_by_then() {
    for (home, role, ends_tasks) in [
        (scsi::Role::Standby, Role::Standby, true),
        (scsi::Role::Serving, Role::Serving, false),
        (scsi::Role::Serving, Role::Transitioning, false),
        (scsi::Role::Active, Role::Active, false),
    ] {
        let mut rig = Forwarding::new();
        rig.gateway.role = home;
        let (origin, request) = (rig.origin, HomeRequest::Reset { from: Some(NexusId(3)) });
        let forward = Forward { origin, request, body: Vec::new() };
        rig.gateway.forwarded.insert(7, Forwarded { forward, is_recalled: false });
        rig.gateway.forward_ended(role, 7, &Outcome::Executed(HomeReply::Done.encode()));
        let messages = rig.messages();
        let is_end = |message: &Message| {
            matches!(message, Message::Home { request: HomeRequest::EndTasks { from: NexusId(3) }, .. })
        };
        let is_answer = |message: &Message| matches!(message, Message::Answer { .. });
        assert_eq!(messages.len(), 1);
        assert!(if ends_tasks { is_end(&messages[0]) } else { is_answer(&messages[0]) }, "{role:?}");
    }
}

#[test]
fn ports_of_other_gateways_are_in_the_state_that_their_gateway_is_in() {
    let port = |id: u16, state: AccessState| {
        vec![Port { id, group: id, name: format!("iqn.a:x,t,0x{id:04x}"), state: state.code() }]
    };
    let (best, second) = (AccessState::Optimized, AccessState::NonOptimized);
    let gateways = [("a".into(), port(1, best)), ("b".into(), port(2, second)), ("c".into(), port(3, best))];
    let active = Some(cluster::Holder { gateway: "b".into(), client: "client".into() });
    let mut record = Record { gateways: gateways.into(), active, ..Record::default() };
    let states = |record: &Record| -> Vec<_> {
        others(record, Access::One, "a", &[]).into_iter().map(|port| (port.relative_id, port.state)).collect()
    };
    assert_eq!(states(&record), [(2, second), (3, AccessState::Standby)]);
    record.fence.push("earlier".into());
    assert_eq!(states(&record), [(2, AccessState::Transitioning), (3, AccessState::Standby)]);
    record.active = None;
    assert_eq!(states(&record), [(2, AccessState::Standby), (3, AccessState::Standby)]);

    // All of those that serve are active, while one of them is fenced as well.
    let active = Some(cluster::Holder { gateway: "b".into(), client: "client".into() });
    record = Record { active, ..record };
    let states = |record: &Record| -> Vec<_> {
        others(record, Access::All, "a", &[]).into_iter().map(|port| port.state).collect()
    };
    assert_eq!(states(&record), [second, AccessState::Standby]);
    record.serving = [("c".into(), serving(0, 0))].into();
    assert_eq!(states(&record), [second, best]);
    record.active = None;
    assert_eq!(states(&record), [AccessState::Standby, best]);
}

fn serving(beat: u64, applied: u64) -> Serving {
    Serving { client: "c".into(), beat, applied, fences: 0 }
}

#[test]
fn gateways_are_notified_of_what_one_of_them_waits_for_and_not_of_signs_of_life() {
    let before = Record {
        active: Some(cluster::Holder { gateway: "b".into(), client: "client".into() }),
        serving: [("c".into(), serving(1, 1))].into(),
        change: 1,
        ..Record::default()
    };
    let with = |change: fn(&mut Record)| {
        let mut after = before.clone();
        change(&mut after);
        concerns_others(&before, &after)
    };
    assert!(!with(|record| record.beat = 2));
    assert!(!with(|record| record.serving = [("c".into(), serving(2, 1))].into()));
    for change in [
        |record: &mut Record| record.serving = [("c".into(), serving(1, 2))].into(),
        |record: &mut Record| record.serving.clear(),
        |record: &mut Record| record.change = 2,
        |record: &mut Record| record.fence.push("c".into()),
        |record: &mut Record| record.active = None,
    ] {
        assert!(with(change));
    }
}

/// An image whose client may be stuck.
#[derive(Default)]
struct Shared {
    is_abandoned: AtomicBool,
    is_suspended: AtomicBool,
    /// It has a bug.
    panics: bool,
}

impl Store for Shared {
    fn traits(&self) -> Traits {
        Traits { size_bytes: 1 << 20, ..Traits::NONE }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "shared".into()
    }
}

impl Failover for Shared {
    fn client(&self) -> Option<String> {
        Some("a".into())
    }

    fn promote(&self, _fence: &[String]) -> Result<(), String> {
        assert!(!self.panics, "as a test wants it");
        Err("promote".into())
    }

    fn catch_up(&self) -> Result<(), String> {
        Err("catch up".into())
    }

    fn fence(&self, clients: &[String]) -> Result<(), String> {
        Err(format!("fence {}", clients.join(", ")))
    }

    fn is_stuck(&self) -> bool {
        false
    }

    fn suspend(&self, is_suspended: bool) {
        self.is_suspended.store(is_suspended, Ordering::SeqCst);
    }

    fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::SeqCst);
    }

    fn demote(&self) -> Result<(), String> {
        Err("demote".into())
    }

    fn is_fenced(&self) -> bool {
        false
    }

    fn reopen(&self) -> Result<(), String> {
        Err("reopen".into())
    }
}

#[test]
fn a_home_serves_adopts_and_decides_as_its_gateway_requests() {
    let mut rig = Forwarding::new();
    rig.gateway.access = Access::All;
    let store = Arc::new(Shared::default());
    rig.gateway.store = Some(store.clone());
    let saved = vec![7];
    let role = |rig: &mut Forwarding, action: Action| {
        assert_eq!(rig.act(action), None);
        let mut kinds = Vec::new();
        for message in rig.messages() {
            kinds.push(match message {
                Message::Home { request: HomeRequest::StoreChanged(_), .. } => "size",
                Message::Home { request: HomeRequest::SetRole { role, saved }, origin, .. } => {
                    assert!(matches!(origin.who, Waiter::Gateway(0)));
                    assert!(saved.is_none_or(|saved| *saved == [7]));
                    match role {
                        scsi::Role::Standby => "standby",
                        scsi::Role::Serving => "serving",
                        scsi::Role::Active => "active",
                    }
                }
                Message::EndSessionsOf { unit: 0 } => "end sessions",
                _ => panic!("it sends something else"),
            });
        }
        kinds
    };
    let adopt = Action::Adopt { saved: saved.clone() };
    assert_eq!(role(&mut rig, adopt.clone()), ["standby"]);
    assert_eq!(role(&mut rig, Action::Join { saved: saved.clone() }), ["size", "serving"]);
    assert_eq!(role(&mut rig, adopt.clone()), ["serving"]);
    assert_eq!(role(&mut rig, Action::Activate { saved: saved.clone() }), ["size", "active"]);
    assert_eq!(role(&mut rig, Action::Deactivate { lost: false }), ["standby"]);
    assert!(!store.is_abandoned.load(Ordering::SeqCst), "what it has begun ends");
    let is_suspended = || store.is_suspended.load(Ordering::SeqCst);
    assert!(is_suspended(), "nothing new is begun, even if the home has yet to apply a change");
    assert_eq!(role(&mut rig, Action::Join { saved }), ["size", "serving"]);
    assert!(!is_suspended());
    assert_eq!(role(&mut rig, Action::Deactivate { lost: true }), ["standby", "end sessions"]);
    assert!(store.is_abandoned.load(Ordering::SeqCst), "what hangs must not keep it");
    assert_eq!(role(&mut rig, adopt), ["standby"]);
}

#[test]
fn one_gateway_at_a_time_waits_for_what_it_has_begun_also_when_it_has_lost_the_unit() {
    let mut rig = Forwarding::new();
    let store = Arc::new(Shared::default());
    rig.gateway.store = Some(store.clone());
    rig.act(Action::Deactivate { lost: true });
    assert!(!store.is_abandoned.load(Ordering::SeqCst));
}

#[test]
fn fencing_and_catching_up_are_calls_to_the_image_and_what_was_fenced_is_shown() {
    let mut rig = Forwarding::new();
    let clients = vec!["192.0.2.1:0/7".to_owned()];
    let fence = ImageCall::Fence { clients: clients.clone() };
    assert_eq!(rig.act(Action::CatchUp), Some(Step::Begin(ImageCall::CatchUp)));
    for (outcome, shown) in [(Err("no answer".to_owned()), 0), (Ok(()), 1)] {
        assert_eq!(rig.act(Action::Fence { clients: clients.clone() }), Some(Step::Begin(fence.clone())));
        rig.gateway.answered(Duration::ZERO, Answer::Fenced(outcome));
        assert_eq!(rig.gateway.shut_out.len(), shown);
    }
    let (inbox, events) = mpsc::channel();
    let calls = Calls::new(String::new(), rig.gateway.cluster.place.clone(), inbox);
    let made = |call: ImageCall| {
        calls.begin(Arc::new(Shared::default()), call);
        assert!(matches!(events.recv(), Ok(GatewayEvent::CallEnded)));
        calls.ended()
    };
    assert_eq!(made(ImageCall::CatchUp), Some(Answer::CaughtUp(Err("catch up".into()))));
    assert_eq!(made(fence), Some(Answer::Fenced(Err("fence 192.0.2.1:0/7".into()))));
}

#[test]
fn a_gateway_shows_that_it_is_alive_while_the_monitors_do_not_answer() {
    let mut rig = Forwarding::new();
    rig.object.1.active = None;
    rig.run();
    rig.happened(GatewayEvent::Applied(true));
    rig.run();
    assert!(matches!(rig.gateway.next(rig.now), Step::Wait(_)), "its call was begun");
    let (epoch, beat) = (rig.object.1.epoch, rig.object.1.beat);
    assert_eq!(rig.object.1.active.as_ref().map(|holder| &*holder.gateway), Some("a"));
    rig.now += Duration::from_secs(3);
    rig.run();
    assert_eq!(rig.object.1.epoch, epoch);
    assert_ne!(rig.object.1.beat, beat);
    rig.gateway.answered(rig.now, Answer::Promoted(Ok(())));
    rig.run();
    rig.happened(GatewayEvent::Applied(true));
    rig.run();
    assert_eq!(rig.gateway.machine.as_ref().map(|machine| machine.status().role), Some(Role::Active));
}

/// An image whose cluster's monitors do not answer.
struct Hangs(std::sync::Mutex<mpsc::Receiver<()>>);

impl Store for Hangs {
    fn traits(&self) -> Traits {
        Traits::NONE
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "hangs".into()
    }
}

impl Failover for Hangs {
    fn client(&self) -> Option<String> {
        None
    }

    fn promote(&self, _fence: &[String]) -> Result<(), String> {
        self.0.lock().expect("it is whole").recv().map_err(|error| error.to_string())
    }

    fn catch_up(&self) -> Result<(), String> {
        self.promote(&[])
    }

    fn fence(&self, clients: &[String]) -> Result<(), String> {
        self.promote(clients)
    }

    fn is_stuck(&self) -> bool {
        false
    }

    fn suspend(&self, _is_suspended: bool) {}

    fn abandon(&self) {}

    fn demote(&self) -> Result<(), String> {
        self.promote(&[])
    }

    fn is_fenced(&self) -> bool {
        false
    }

    fn reopen(&self) -> Result<(), String> {
        self.promote(&[])
    }
}

#[test]
fn a_call_that_concerns_the_image_keeps_the_thread_from_nothing() {
    let rig = Forwarding::new();
    let (release, hangs) = mpsc::channel();
    let (inbox, events) = mpsc::channel();
    let calls = Calls::new(String::new(), rig.gateway.cluster.place.clone(), inbox);
    calls.begin(Arc::new(Hangs(hangs.into())), ImageCall::Promote { fence: Vec::new() });
    assert_eq!(calls.ended(), None);
    release.send(()).expect("it waits for that");
    assert!(matches!(events.recv(), Ok(GatewayEvent::CallEnded)));
    assert_eq!(calls.ended(), Some(Answer::Promoted(Ok(()))));
}

#[test]
fn a_call_whose_thread_panics_is_answered_as_failed() {
    let mut rig = Forwarding::new();
    rig.object.1.active = None;
    let call = rig.run().expect("it has claimed the unit");
    let (inbox, events) = mpsc::channel();
    let calls = Calls::new(String::new(), rig.gateway.cluster.place.clone(), inbox);
    calls.begin(Arc::new(Shared { panics: true, ..Shared::default() }), call);
    assert!(matches!(events.recv(), Ok(GatewayEvent::CallEnded)));
    let answer = calls.ended().expect("it is answered");
    assert!(matches!(&answer, Answer::Promoted(Err(why)) if why.contains("a bug")), "{answer:?}");
    rig.gateway.answered(rig.now, answer);
    assert_eq!(rig.run(), Some(ImageCall::Demote), "it may have the lock");
    rig.gateway.answered(rig.now, Answer::Demoted(Ok(())));
    assert_eq!(rig.run(), None);
    assert_eq!(rig.object.1.active, None, "it has released its claim");
}

#[test]
fn a_unit_does_not_move_where_all_gateways_are_active() {
    let mut rig = Forwarding::new();
    rig.gateway.access = Access::All;
    let (outbox, outcome) = mpsc::channel();
    rig.happened(GatewayEvent::Activate(Requester::Administrator(outbox)));
    let why = outcome.try_recv().expect("at once").expect_err("it is refused");
    assert!(why.starts_with("all gateways are active for it at the same time"), "{why}");
    rig.run();
    assert!(rig.object.1.next.is_none());
}

#[test]
fn an_image_has_one_object_whoever_serves_it() {
    let image = config::RbdImage::parse("rbd/tenant/disk").expect("an image");
    assert_eq!(object("c", &image), "lunette.c.rbd/tenant/disk");
    let other = config::RbdImage { client: Some("b".into()), conf: Some("/c".into()), ..image.clone() };
    assert_eq!(object("c", &other), object("c", &image));
    assert_ne!(object("d", &image), object("c", &image));
}
