//! A single machine, whose calls end as a test decides.

mod calls;
mod maps;

use cluster::{
    Access, Action, By, Holder, Machine, Me, Member, Next, Outcome, Port, Record, ReplaceError, Reply,
    Request, Role, Serving,
};
use std::time::Duration;

const TAKEOVER: Duration = Duration::from_secs(10);
/// All OSDs have a map after this time.
const MAPS: Duration = Duration::from_secs(7);

/// A machine and the object that it reads and replaces, both of which work.
struct Rig {
    machine: Machine,
    object: Option<(u64, Record)>,
    now: Duration,
}

/// Sets the disk of another gateway.
fn set_disk(record: &mut Record, disk: &str) {
    record.members.get_mut("b").expect("the other one").disk = disk.into();
}

fn member(process: &str, takeover: Duration) -> Member {
    Member {
        process: process.into(),
        takeover_ms: takeover.as_millis() as u64,
        osd_map_ms: MAPS.as_millis() as u64,
        disk: "512".into(),
    }
}

fn port(id: u16) -> Port {
    Port { id, group: id, name: format!("port{id}"), state: 0 }
}

impl Rig {
    fn new() -> Rig {
        Rig::with(Access::One)
    }

    fn with(access: Access) -> Rig {
        let me = Me {
            gateway: "a".into(),
            client: "client".into(),
            ports: vec![port(1)],
            member: member("mine", TAKEOVER),
        };
        Rig { machine: Machine::new(me, TAKEOVER, access), object: None, now: Duration::ZERO }
    }

    /// It cannot become active, and has no lock.
    fn is_refused(&mut self) {
        self.machine.promoted(Err("another client has locked it".into()));
        assert_eq!(self.next(), Some(Action::Demote));
        self.machine.demoted(self.now, Ok(()));
    }

    /// The next action that does not concern the object, within two takeovers.
    fn next(&mut self) -> Option<Action> {
        self.next_within(2 * TAKEOVER)
    }

    /// The same within this time, which passes if there is none.
    fn next_within(&mut self, time: Duration) -> Option<Action> {
        let until = self.now + time;
        loop {
            match self.machine.next(self.now) {
                Some(Action::Read) => self.machine.read(self.now, Ok(self.object.clone())),
                Some(Action::Replace { record, .. }) => {
                    let version = self.object.as_ref().map_or(1, |(version, _)| version + 1);
                    self.object = Some((version, *record));
                    self.machine.replaced(self.now, Ok(version));
                }
                Some(Action::Adopt { .. }) => self.machine.applied(),
                Some(action) => return Some(action),
                None if self.now >= until => return None,
                None => {
                    let wake = self.machine.wake_at(self.now).max(self.now + Duration::from_millis(1));
                    self.now = wake.min(until);
                }
            }
        }
    }
}

#[test]
fn why_it_did_not_become_active_is_shown_until_it_does() {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.is_refused();
    let expected = Some("another client has locked it".to_owned());
    // It has released the object, reads it, and tries again.
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    assert_eq!(rig.machine.status().fault, expected);
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    assert_eq!((rig.machine.status().role, rig.machine.status().fault), (Role::Active, None));
}

impl Rig {
    /// What it writes next.
    fn write(&mut self) -> Record {
        loop {
            match self.machine.next(self.now) {
                Some(Action::Read) => self.machine.read(self.now, Ok(self.object.clone())),
                Some(Action::Replace { record, .. }) => return *record,
                None => self.now = self.machine.wake_at(self.now).max(self.now + Duration::from_millis(1)),
                action => panic!("{action:?}"),
            }
        }
    }

    fn written(&mut self, record: Record) {
        let version = self.object.as_ref().map_or(1, |(version, _)| version + 1);
        self.object = Some((version, record));
        self.machine.replaced(self.now, Ok(version));
    }
}

#[test]
fn a_sign_of_life_from_before_others_were_fenced_confirms_no_claim() {
    let mut rig = held(TAKEOVER);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    let claim = rig.object.clone().expect("it is there").1;
    let beat = rig.write();
    assert_eq!((beat.epoch, &beat.fence), (claim.epoch, &claim.fence), "the monitors have yet to answer");
    assert_ne!(beat.beat, claim.beat);
    rig.machine.promoted(Ok(()));
    rig.written(beat);
    let confirmed = rig.write();
    assert!(confirmed.fence.is_empty());
    rig.written(confirmed);
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
}

#[test]
fn one_that_the_monitors_do_not_answer_leaves_the_claim_to_another_one() {
    for access in [Access::One, Access::All] {
        let mut rig = held_with(access, TAKEOVER);
        assert!(matches!(rig.next(), Some(Action::Promote { .. })));
        let began = rig.now;
        rig.pass(2 * TAKEOVER);
        let (_, record) = rig.object.as_ref().expect("it is there");
        let (epoch, beat) = (record.epoch, record.beat);
        assert!(rig.now - began >= 2 * TAKEOVER);
        rig.pass(TAKEOVER);
        let (_, record) = rig.object.as_ref().expect("it is there");
        match access {
            Access::One => assert_eq!((record.epoch, record.beat), (epoch, beat), "it has stopped"),
            Access::All => assert!(record.fence.iter().all(|client| client != "client")),
        }
    }
}

#[test]
fn one_that_withdraws_while_it_becomes_active_releases_the_unit_without_its_home() {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.withdraw();
    rig.machine.promoted(Ok(()));
    assert_eq!(rig.next(), Some(Action::Demote));
    rig.machine.demoted(rig.now, Ok(()));
    assert_eq!(rig.next(), None);
    assert!(rig.machine.has_withdrawn());
    assert_eq!(rig.object.expect("it was written").1.active, None);
}

/// A rig whose object is held by another gateway, which does nothing.
fn held(takeover: Duration) -> Rig {
    held_with(Access::One, takeover)
}

fn held_with(access: Access, takeover: Duration) -> Rig {
    let mut rig = Rig::with(access);
    let active = Some(Holder { gateway: "b".into(), client: "other".into() });
    let members = [("b".into(), member("theirs", takeover))].into();
    rig.object = Some((1, Record { epoch: 1, active, members, ..Record::default() }));
    rig
}

#[test]
fn a_holder_that_shows_less_often_that_it_lives_is_given_its_own_time() {
    let mut rig = held(TAKEOVER);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    assert!((2 * TAKEOVER / 5..TAKEOVER).contains(&rig.now), "{:?}", rig.now);
    let mut rig = held(3 * TAKEOVER);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    assert!((3 * TAKEOVER * 3 / 5..2 * TAKEOVER).contains(&rig.now), "{:?}", rig.now);
}

#[test]
fn requests_to_a_dead_holder_do_not_delay_the_claim() {
    let mut rig = held(TAKEOVER);
    for id in 0.. {
        rig.machine.ask(rig.now, id, vec![]);
        let until = rig.now + TAKEOVER * 9 / 50;
        while rig.now < until {
            match rig.machine.next(rig.now) {
                Some(Action::Read) => rig.machine.read(rig.now, Ok(rig.object.clone())),
                Some(Action::Replace { record, .. }) => {
                    let version = rig.object.as_ref().map_or(1, |(version, _)| version + 1);
                    rig.object = Some((version, *record));
                    rig.machine.replaced(rig.now, Ok(version));
                }
                Some(Action::Promote { .. }) => return assert!(rig.now < TAKEOVER * 4 / 5, "{:?}", rig.now),
                Some(_) => rig.machine.applied(),
                None => {
                    rig.now = rig.machine.wake_at(rig.now).clamp(rig.now + Duration::from_millis(1), until)
                }
            }
        }
        assert!(rig.now < TAKEOVER * 2, "it never claims");
    }
}

#[test]
fn one_whose_disk_is_another_does_not_become_active() {
    let mut rig = held(TAKEOVER);
    let (_, record) = rig.object.as_mut().expect("it is there");
    set_disk(record, "4096");
    assert_eq!(rig.next(), None);
    let fault = rig.machine.status().fault.expect("it says so");
    assert!(fault.contains("4096 at gateway b, and 512 here"), "{fault}");
}

#[test]
fn a_namesake_is_noticed_by_the_one_that_was_there_before() {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    assert_eq!(rig.machine.status().fault, None);
    let (_, record) = rig.object.as_mut().expect("it is there");
    record.members.insert("a".into(), member("another", TAKEOVER));
    rig.machine.noticed();
    assert_eq!(rig.next(), None);
    let status = rig.machine.status();
    assert_eq!(status.role, Role::Active, "it serves on");
    assert!(status.fault.is_some_and(|why| why.contains("another daemon is gateway a, too")));
}

/// A rig that is active.
fn active() -> Rig {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    rig
}

impl Rig {
    /// Another gateway changes the object, and notifies this one.
    fn change(&mut self, change: impl FnOnce(&mut Record)) {
        let (version, record) = self.object.as_mut().expect("it is there");
        *version += 1;
        change(record);
        self.machine.noticed();
    }

    /// The same: it claims the unit, or releases it.
    fn claim(&mut self, epoch: u64, is_released: bool) {
        self.change(|record| {
            let holder = Holder { gateway: "b".into(), client: "other".into() };
            (record.epoch, record.next, record.active) = (epoch, None, (!is_released).then_some(holder));
        });
    }

    /// The holder agrees to this one's request, which then tries to become active.
    fn agree(&mut self) {
        self.pass(Duration::ZERO);
        let next = &self.object.as_ref().expect("it is there").1.next;
        assert!(next.as_ref().is_some_and(|next| next.gateway == "a"), "it asks for the unit");
        self.change(|record| (record.active, record.epoch) = (None, record.epoch + 1));
        assert!(matches!(self.next(), Some(Action::Promote { .. })));
    }

    /// Its next answer, at once and while its home applies nothing.
    fn stuck(&mut self) -> Action {
        loop {
            match self.machine.next(self.now) {
                Some(Action::Read) => self.machine.read(self.now, Ok(self.object.clone())),
                Some(Action::Replace { record, .. }) => {
                    let version = self.object.as_ref().map_or(1, |(version, _)| version + 1);
                    self.object = Some((version, *record));
                    self.machine.replaced(self.now, Ok(version));
                }
                Some(action @ Action::Answer { .. }) => return action,
                Some(_) => {}
                None => panic!("it waits"),
            }
        }
    }

    /// Runs for this time, during which it may only access the object.
    fn pass(&mut self, time: Duration) {
        assert_eq!(self.next_within(time), None);
    }
}

#[test]
fn requests_that_came_together_are_answered_without_a_wait_between_them() {
    let mut rig = held(TAKEOVER);
    rig.pass(Duration::ZERO);
    (0..20).for_each(|id| rig.machine.ask(rig.now, id, vec![]));
    for id in 0..20 {
        rig.pass(Duration::ZERO);
        let request =
            rig.object.as_ref().and_then(|(_, record)| record.requests.get("a")).expect("it is sent");
        assert_eq!(request.id, id);
        rig.change(|record| {
            record.requests.remove("a");
            record.replies.insert("a".into(), Reply { id, outcome: vec![], is_applied: true });
        });
        assert_eq!(rig.next(), Some(Action::Answer { id, outcome: Outcome::Executed(vec![]) }));
    }
    assert_eq!(rig.now, Duration::ZERO);
}

#[test]
fn a_request_that_nobody_waits_for_any_more_is_not_sent_or_is_withdrawn() {
    let mut rig = held(TAKEOVER);
    rig.pass(Duration::ZERO);
    [1, 2, 3].into_iter().for_each(|id| rig.machine.ask(rig.now, id, vec![]));
    rig.pass(Duration::ZERO);
    let sent =
        |rig: &Rig| rig.object.as_ref().and_then(|(_, record)| record.requests.get("a")).map(|one| one.id);
    assert_eq!(sent(&rig), Some(1));
    rig.machine.recall(rig.now, 2);
    rig.machine.recall(rig.now, 1);
    assert_eq!(rig.next(), Some(Action::Answer { id: 1, outcome: Outcome::NotExecuted }));
    rig.pass(Duration::ZERO);
    assert_eq!(sent(&rig), Some(3));
}

#[test]
fn a_recalled_request_ends_although_the_home_applies_nothing_until_then() {
    let mut rig = held(TAKEOVER);
    rig.pass(Duration::ZERO);
    rig.machine.ask(rig.now, 1, vec![]);
    rig.pass(Duration::ZERO);
    rig.change(|record| {
        record.requests.remove("a");
        record.saved = vec![1];
        record.replies.insert("a".into(), Reply { id: 1, outcome: vec![], is_applied: true });
    });
    assert!(!rig.machine.recall(rig.now, 1), "it may have been executed");
    assert_eq!(rig.stuck(), Action::Answer { id: 1, outcome: Outcome::Executed(vec![]) });
}

#[test]
fn one_that_could_not_become_active_wants_it_no_longer() {
    let mut rig = held(TAKEOVER);
    rig.machine.want(By::Person);
    rig.agree();
    rig.is_refused();
    rig.pass(Duration::ZERO);
    assert!(!rig.machine.is_wanted());
    rig.claim(5, false);
    rig.pass(Duration::ZERO);
    assert_eq!(rig.object.as_ref().and_then(|(_, record)| record.next.clone()), None);
}

#[test]
fn one_that_may_yet_get_the_lock_stays_in_the_object_to_be_fenced() {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    let no_answer = || Err("the cluster does not answer".to_owned());
    rig.machine.promoted(no_answer());
    assert_eq!(rig.next(), Some(Action::Demote));
    rig.machine.demoted(rig.now, no_answer());
    for _ in 0..2 {
        assert_eq!(rig.next(), Some(Action::Reopen));
        rig.machine.reopened(rig.now, Err("the cluster does not answer".into()));
        let active = rig.object.as_ref().and_then(|(_, record)| record.active.as_ref());
        assert_eq!(active.map(|holder| &*holder.client), Some("client"));
    }
    assert_eq!(rig.next(), Some(Action::Reopen));
    rig.machine.reopened(rig.now, Ok("client2".into()));
    assert_eq!(rig.next(), Some(Action::Promote { fence: vec!["client".into()] }));
}

#[test]
fn what_is_wanted_while_it_becomes_active_does_not_outlive_that() {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.want(By::Person);
    rig.machine.applied();
    assert!(!rig.machine.is_wanted());
}

fn leave(rig: &mut Rig) {
    rig.change(|record| record.next = Some(Next { gateway: "b".into(), by: By::Person }));
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
}

#[test]
fn one_that_has_handed_over_takes_the_unit_back_at_once_when_the_other_one_gives_it_up() {
    let mut rig = active();
    leave(&mut rig);
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Demote));
    rig.machine.demoted(rig.now, Ok(()));
    rig.pass(TAKEOVER / 10);
    rig.claim(2, false);
    rig.pass(TAKEOVER / 10);
    rig.claim(2, true);
    let began = rig.now;
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    assert_eq!(rig.now, began);
    // If it cannot either, it gives others time.
    rig.is_refused();
    rig.pass(TAKEOVER / 10);
    rig.claim(4, true);
    rig.pass(TAKEOVER / 2);
}

#[test]
fn one_that_cannot_end_what_it_has_begun_leaves_it_to_others_to_shut_it_out() {
    let mut rig = active();
    leave(&mut rig);
    let began = rig.now;
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: true }));
    assert!((TAKEOVER..=TAKEOVER * 6 / 5).contains(&(rig.now - began)), "{:?}", rig.now - began);
    let version = rig.object.as_ref().expect("it is there").0;
    rig.pass(TAKEOVER);
    assert_eq!(rig.object.as_ref().expect("it is there").0, version, "it does not show that it lives");
}

#[test]
fn ports_that_a_reload_changes_are_written_at_once_unless_another_gateway_has_them() {
    let ports = |rig: &Rig| rig.object.as_ref().expect("it is there").1.gateways.get("a").cloned();
    for mut rig in [active(), held(TAKEOVER)] {
        rig.pass(Duration::ZERO);
        let role = rig.machine.status().role;
        rig.change(|record| _ = record.gateways.insert("b".into(), vec![port(7)]));
        rig.pass(Duration::ZERO);
        rig.machine.set_ports(vec![port(1), port(2)]);
        rig.pass(Duration::ZERO);
        assert_eq!(ports(&rig), Some(vec![port(1), port(2)]), "{role:?}");
        rig.machine.set_ports(vec![port(7)]);
        rig.pass(Duration::ZERO);
        assert_eq!(ports(&rig), Some(vec![port(1), port(2)]), "{role:?}");
        let fault = rig.machine.status().fault.expect("it says so");
        assert!(fault.contains("target port group 7 is gateway b's as well"), "{fault}");
        rig.machine.set_ports(vec![port(2)]);
        rig.pass(Duration::ZERO);
        assert_eq!((ports(&rig), rig.machine.status().fault), (Some(vec![port(2)]), None));
        assert_eq!(rig.machine.status().role, role);
    }
}

#[test]
fn a_disk_that_all_gateways_have_changed_alike_is_served_again() {
    let mut rig = held(TAKEOVER);
    rig.change(|record| {
        set_disk(record, "4096");
        (record.active, record.disk) = (None, Some("4096".into()));
    });
    rig.pass(2 * TAKEOVER);
    assert!(rig.machine.status().fault.is_some_and(|why| why.contains("4096 at gateway b, and 512 here")));
    assert_eq!(rig.object.as_ref().expect("it is there").1.members["a"].disk, "512", "it shows what it has");
    rig.change(|record| set_disk(record, "512"));
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    assert_eq!(rig.object.expect("it is there").1.disk.as_deref(), Some("512"));
}

#[test]
fn one_that_has_the_disk_as_it_was_served_last_is_not_kept_from_it_by_one_that_has_another() {
    let mut rig = held(TAKEOVER);
    rig.change(|record| {
        set_disk(record, "4096");
        record.disk = Some("512".into());
    });
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
}

#[test]
fn clients_with_access_are_fenced_although_somebody_removed_the_object() {
    let mut rig = active();
    rig.object = None;
    rig.machine.noticed();
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: true }));
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Reopen));
    rig.machine.reopened(rig.now, Ok("client2".into()));
    assert_eq!(rig.next(), Some(Action::Promote { fence: vec!["client".into()] }));
}

/// Another gateway that serves.
fn serving(client: &str, applied: u64) -> Serving {
    Serving { client: client.into(), beat: 0, applied, fences: 0 }
}

#[test]
fn one_that_is_to_be_alone_fences_all_that_serve() {
    let mut rig = held(TAKEOVER);
    rig.change(|record| _ = record.serving.insert("c".into(), serving("third", 0)));
    let Some(Action::Promote { mut fence }) = rig.next() else { panic!("it claims the unit") };
    fence.sort();
    assert_eq!(fence, ["other", "third"]);
    assert!(rig.object.expect("it is there").1.serving.is_empty());
}

#[test]
fn one_serves_after_it_is_in_the_object_and_the_others_have_shown_that_they_are_alive() {
    let mut rig = held_with(Access::All, TAKEOVER);
    rig.pass(TAKEOVER / 10);
    let entry = |rig: &Rig| rig.object.as_ref().and_then(|(_, record)| record.serving.get("a").cloned());
    assert_eq!(entry(&rig), None, "the disk is served otherwise");
    rig.change(|record| {
        record.disk = Some("512".into());
        record.saved = vec![7];
        // An earlier process of the same gateway.
        record.serving.insert("a".into(), serving("earlier", 0));
    });
    rig.pass(TAKEOVER / 10);
    assert_eq!(entry(&rig).map(|one| one.client), Some("client".into()));
    assert_eq!(rig.object.as_ref().expect("it is there").1.fence, ["earlier"]);
    rig.change(|record| record.beat += 1);
    rig.pass(TAKEOVER / 10);
    assert_eq!(rig.machine.status().role, Role::Transitioning, "that one is not fenced yet");
    rig.change(|record| {
        (record.beat, record.fences, record.change) = (record.beat + 1, 1, 1);
        record.fence.clear();
    });
    assert_eq!(rig.next(), Some(Action::CatchUp));
    rig.machine.caught_up(rig.now, Ok(()));
    assert_eq!(rig.next(), Some(Action::Join { saved: vec![7] }));
    rig.machine.applied();
    assert_eq!(rig.machine.status().role, Role::Serving);
    assert_eq!(entry(&rig).map(|one| (one.applied, one.fences)), Some((1, 1)));
}

#[test]
fn a_gateway_that_was_restarted_is_not_in_standby_before_its_former_process_is_fenced() {
    for (client, adopts) in [(None, true), (Some("killed"), false)] {
        let mut rig = held_with(Access::All, TAKEOVER);
        let record = &mut rig.object.as_mut().expect("it is there").1;
        record.disk = Some("512".into());
        record.serving.extend(client.map(|client| ("a".into(), serving(client, 0))));
        assert_eq!(rig.machine.next(rig.now), Some(Action::Read));
        rig.machine.read(rig.now, Ok(rig.object.clone()));
        let action = rig.machine.next(rig.now);
        assert_eq!(matches!(action, Some(Action::Adopt { .. })), adopts, "{action:?}");
    }
}

#[test]
fn a_change_is_complete_when_all_that_serve_have_applied_it() {
    let mut rig = Rig::with(Access::All);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    rig.change(|record| _ = record.serving.insert("c".into(), serving("third", 0)));
    rig.machine.save(vec![1], None, false);
    rig.pass(TAKEOVER / 10);
    assert_eq!(rig.object.as_ref().map(|(_, record)| record.change), Some(1));
    rig.change(|record| _ = record.serving.insert("c".into(), serving("third", 1)));
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    // One that does not is fenced, and that takes its time to be in force at all OSDs.
    rig.machine.save(vec![2], None, false);
    let began = rig.now;
    assert_eq!(rig.next(), Some(Action::Fence { clients: vec!["third".into()] }));
    rig.machine.fenced_others(rig.now, Ok(()));
    assert_eq!(rig.next(), Some(Action::CatchUp));
    rig.machine.caught_up(rig.now, Ok(()));
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    let waited = rig.now - began;
    assert!((TAKEOVER..TAKEOVER * 2).contains(&waited), "{waited:?}");
}

/// A rig that serves beside the active gateway, `b`.
fn among() -> Rig {
    let mut rig = joining();
    rig.machine.applied();
    rig
}

/// The same, while its home has yet to serve.
fn joining() -> Rig {
    let mut rig = held_with(Access::All, TAKEOVER);
    rig.change(|record| record.disk = Some("512".into()));
    rig.pass(TAKEOVER / 10);
    rig.change(|record| record.beat += 1);
    assert_eq!(rig.next(), Some(Action::CatchUp));
    rig.machine.caught_up(rig.now, Ok(()));
    assert!(matches!(rig.next(), Some(Action::Join { .. })));
    rig
}

#[test]
fn a_gateway_with_hanging_writes_has_itself_fenced_only_while_another_one_can_do_that() {
    let mut rig = among();
    rig.pass(TAKEOVER / 2);
    let record = |rig: &Rig| rig.object.clone().expect("it is there").1;
    rig.machine.medium_stuck(true);
    rig.pass(Duration::ZERO);
    assert!(record(&rig).fence.is_empty(), "the other one has been silent for some time");
    assert_eq!(record(&rig).stuck, ["client"]);
    rig.change(|record| record.beat += 1);
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    assert_eq!((record(&rig).fence, record(&rig).serving.len()), (vec!["client".to_owned()], 0));
    // What it has begun hangs. It ends when all others have caught up with the fence.
    rig.change(|record| {
        (record.fences, record.change) = (1, 1);
        record.fence.clear();
        record.serving.insert("c".into(), serving("third", 0));
    });
    rig.pass(TAKEOVER / 10);
    rig.change(|record| record.serving.get_mut("c").expect("it serves").fences = 1);
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: true }));
}

/// The object's entry of this gateway has this.
fn applied(rig: &Rig) -> Option<u64> {
    rig.object.as_ref().and_then(|(_, record)| record.serving.get("a")).map(|one| one.applied)
}

#[test]
fn a_change_that_the_home_could_not_apply_is_not_shown_as_applied() {
    let mut rig = among();
    rig.pass(Duration::ZERO);
    rig.change(|record| (record.saved, record.change) = (vec![9], record.change + 1));
    let adopt = loop {
        match rig.machine.next(rig.now).expect("it adopts the change") {
            Action::Read => rig.machine.read(rig.now, Ok(rig.object.clone())),
            Action::Replace { record, .. } => {
                let version = rig.object.as_ref().map_or(1, |(version, _)| version + 1);
                rig.object = Some((version, *record));
                rig.machine.replaced(rig.now, Ok(version));
            }
            action => break action,
        }
    };
    assert_eq!(adopt, Action::Adopt { saved: vec![9] });
    rig.machine.not_applied();
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    rig.change(|record| record.beat += 1);
    rig.pass(TAKEOVER / 2);
    assert_eq!(applied(&rig), Some(0), "its commands have yet to end");
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Demote));
    assert_eq!(applied(&rig), Some(0));
    rig.machine.demoted(rig.now, Ok(()));
    rig.pass(Duration::ZERO);
    assert_eq!(applied(&rig), None);
    assert!(rig.machine.has_withdrawn());
}

#[test]
fn one_whose_home_could_not_join_leaves() {
    let mut rig = joining();
    rig.change(|record| record.change += 1);
    rig.machine.not_applied();
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    assert_eq!(applied(&rig), Some(0));
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Demote));
}

#[test]
fn one_that_is_in_the_object_no_more_has_itself_fenced_before_what_hangs_ends() {
    let mut rig = among();
    rig.pass(Duration::ZERO);
    // Somebody has restored an earlier version.
    rig.change(|record| record.serving.clear());
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    rig.pass(TAKEOVER / 10);
    assert_eq!(rig.object.as_ref().expect("it is there").1.fence, ["client"]);
    rig.change(|record| {
        (record.fences, record.change) = (1, 1);
        record.fence.clear();
    });
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: true }));
}

#[test]
fn one_without_hanging_writes_ends_its_sessions_when_it_is_fenced() {
    let mut rig = among();
    rig.pass(Duration::ZERO);
    rig.change(|record| {
        record.serving.clear();
        record.fence.push("client".into());
    });
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    rig.machine.applied();
    rig.pass(TAKEOVER / 10);
    rig.change(|record| {
        (record.fences, record.change) = (1, 1);
        record.fence.clear();
    });
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: true }));
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Reopen));
}

#[test]
fn a_claim_that_is_written_after_it_had_failed_does_not_outlive_the_gateway() {
    let mut rig = among();
    rig.pass(Duration::ZERO);
    rig.change(|record| record.active = None);
    let claim = loop {
        match rig.machine.next(rig.now) {
            Some(Action::Read) => rig.machine.read(rig.now, Ok(rig.object.clone())),
            Some(Action::Replace { record, .. }) => break *record,
            action => panic!("{action:?}"),
        }
    };
    assert_eq!(claim.active.as_ref().map(|holder| &*holder.client), Some("client"));
    rig.machine.replaced(rig.now, Err(ReplaceError::Failed("it takes too long".into())));
    rig.machine.withdraw();
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    rig.change(|record| *record = claim);
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Demote));
    rig.machine.demoted(rig.now, Ok(()));
    rig.pass(Duration::ZERO);
    let (_, record) = rig.object.as_ref().expect("it is there");
    assert_eq!((&record.active, record.serving.len()), (&None, 0));
}

#[test]
fn what_one_was_about_to_write_when_it_left_undoes_nothing_that_others_have_written_since() {
    let mut rig = among();
    rig.pass(Duration::ZERO);
    let sees = loop {
        match rig.machine.next(rig.now) {
            Some(Action::Read) => break rig.object.clone(),
            None => rig.now = rig.machine.wake_at(rig.now).max(rig.now + Duration::from_millis(1)),
            action => panic!("{action:?}"),
        }
    };
    rig.machine.withdraw();
    rig.machine.read(rig.now, Ok(sees));
    assert_eq!(rig.machine.next(rig.now), Some(Action::Deactivate { lost: false }));
    rig.machine.applied();
    rig.change(|record| {
        (record.saved, record.change) = (vec![9], 1);
        record.fence.push("fourth".into());
    });
    assert_eq!(rig.next(), Some(Action::Demote));
    rig.machine.demoted(rig.now, Ok(()));
    rig.pass(Duration::ZERO);
    assert!(rig.machine.has_withdrawn());
    let (_, record) = rig.object.as_ref().expect("it is there");
    assert_eq!((&*record.saved, record.change, &*record.fence), (&[9][..], 1, &["fourth".to_owned()][..]));
}
