//! One machine, whose calls end as a test has it.

use cluster::{Action, Holder, Machine, Me, Member, Port, Record, Role};
use std::time::Duration;

const TAKEOVER: Duration = Duration::from_secs(10);

/// A machine and the object that it reads and replaces, both of which work.
struct Rig {
    machine: Machine,
    object: Option<(u64, Record)>,
    now: Duration,
}

fn member(process: &str, takeover: Duration) -> Member {
    Member { process: process.into(), takeover_ms: takeover.as_millis() as u64, disk: "512".into() }
}

impl Rig {
    fn new() -> Rig {
        let port = Port { id: 1, group: 1, name: "port".into(), state: 0 };
        let me = Me {
            gateway: "a".into(),
            client: "client".into(),
            ports: vec![port],
            member: member("mine", TAKEOVER),
        };
        Rig { machine: Machine::new(me, TAKEOVER), object: None, now: Duration::ZERO }
    }

    /// The next action that is none of the object's, within two takeovers.
    fn next(&mut self) -> Option<Action> {
        let until = self.now + 2 * TAKEOVER;
        while self.now < until {
            match self.machine.next(self.now) {
                Some(Action::Read) => self.machine.read(self.now, Ok(self.object.clone())),
                Some(Action::Replace { record, .. }) => {
                    let version = self.object.as_ref().map_or(1, |(version, _)| version + 1);
                    self.object = Some((version, *record));
                    self.machine.replaced(self.now, Ok(version));
                }
                Some(Action::Adopt { .. }) => self.machine.applied(),
                Some(action) => return Some(action),
                None => self.now = self.machine.wake_at().max(self.now + Duration::from_millis(1)),
            }
        }
        None
    }
}

#[test]
fn why_it_did_not_become_active_is_shown_until_it_does() {
    let mut rig = Rig::new();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Err("another client has locked it".into()));
    let expected = Some("another client has locked it".to_owned());
    // It has let go of the object, reads it, and tries again.
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    assert_eq!(rig.machine.status().fault, expected);
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    assert_eq!((rig.machine.status().role, rig.machine.status().fault), (Role::Active, None));
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

/// A rig whose object is another gateway's, which does nothing.
fn held(takeover: Duration) -> Rig {
    let mut rig = Rig::new();
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
fn one_whose_disk_is_another_does_not_become_active() {
    let mut rig = held(TAKEOVER);
    let (_, record) = rig.object.as_mut().expect("it is there");
    record.members.get_mut("b").expect("the other one").disk = "4096".into();
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
    assert!(status.fault.is_some_and(|why| why.contains("another daemon is gateway a as well")));
}
