//! One machine, whose calls end as a test has it.

use cluster::{Action, Machine, Me, Port, Record, Role};
use std::time::Duration;

const TAKEOVER: Duration = Duration::from_secs(10);

/// A machine and the object that it reads and replaces, both of which work.
struct Rig {
    machine: Machine,
    object: Option<(u64, Record)>,
    now: Duration,
}

impl Rig {
    fn new() -> Rig {
        let port = Port { id: 1, group: 1, name: "port".into(), state: 0 };
        let me = Me { gateway: "a".into(), client: "client".into(), ports: vec![port] };
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
