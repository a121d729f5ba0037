//! Calls that concern the image: some are not answered for a long time, or too late.

use super::*;

impl Rig {
    fn record(&self) -> &Record {
        &self.object.as_ref().expect("it is there").1
    }

    /// Another gateway, `c` if that serves, otherwise the holder, shows that it is alive: the next action that does not
    /// concern the object, within this time.
    pub(super) fn beside(&mut self, time: Duration) -> Option<Action> {
        let until = self.now + time;
        let mut next = self.now;
        while self.now < until {
            if self.now >= next {
                next += TAKEOVER / 10;
                self.change(|record| match record.serving.get_mut("c") {
                    Some(one) => one.beat += 1,
                    None => record.beat += 1,
                });
            }
            match self.machine.next(self.now) {
                Some(Action::Read) => self.machine.read(self.now, Ok(self.object.clone())),
                Some(Action::Replace { record, .. }) => self.written(*record),
                Some(Action::Adopt { .. }) => self.machine.applied(),
                Some(action) => return Some(action),
                None => {
                    let wake = self.machine.wake_at(self.now);
                    self.now = wake.max(self.now + Duration::from_millis(1)).min(next);
                }
            }
        }
        None
    }

    /// The object cannot be accessed: the next action that does not concern it.
    fn cut_off(&mut self) -> Option<Action> {
        let until = self.now + 2 * TAKEOVER;
        while self.now < until {
            let why = "the cluster does not answer";
            match self.machine.next(self.now) {
                Some(Action::Read) => self.machine.read(self.now, Err(why.into())),
                Some(Action::Replace { .. }) => {
                    self.machine.replaced(self.now, Err(ReplaceError::Failed(why.into())));
                }
                Some(action) => return Some(action),
                None => {
                    self.now = self.machine.wake_at(self.now).max(self.now + Duration::from_millis(1));
                }
            }
        }
        None
    }
}

#[test]
fn one_that_withdraws_before_it_has_the_lock_waits_for_the_monitors_no_longer_than_it_shows_that_it_is_alive()
{
    let mut rig = held(TAKEOVER);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.withdraw();
    rig.pass(TAKEOVER / 2);
    assert!(!rig.machine.has_withdrawn(), "they may answer");
    assert!(rig.record().active.is_some());
    rig.pass(TAKEOVER);
    assert!(rig.machine.has_withdrawn());
    assert_eq!(rig.record().active, None);
    assert_eq!(rig.record().fence, ["other", "client"], "its call may yet get the lock");
}

#[test]
fn one_that_leaves_does_not_wait_for_monitors_whose_answer_it_needs_no_more() {
    // It serves, and has yet to catch up with a fence.
    let mut rig = among();
    rig.change(|record| (record.fences, record.change) = (1, 1));
    assert_eq!(rig.next(), Some(Action::CatchUp));
    rig.machine.withdraw();
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: false }));
    rig.machine.applied();
    rig.pass(Duration::ZERO);
    assert!(rig.machine.has_withdrawn() && rig.record().serving.is_empty(), "{:?}", rig.machine.status());
    // It does not serve yet.
    let mut rig = held_with(Access::All, TAKEOVER);
    rig.change(|record| record.disk = Some("512".into()));
    rig.pass(TAKEOVER / 10);
    rig.change(|record| record.beat += 1);
    assert_eq!(rig.next(), Some(Action::CatchUp));
    rig.machine.withdraw();
    rig.pass(Duration::ZERO);
    assert!(rig.machine.has_withdrawn() && rig.record().serving.is_empty(), "{:?}", rig.machine.status());
}

#[test]
fn one_that_has_lost_the_unit_has_nothing_to_hand_over() {
    let mut rig = active();
    rig.claim(2, false);
    assert_eq!(rig.next(), Some(Action::Deactivate { lost: true }));
    rig.machine.applied();
    assert_eq!(rig.next(), Some(Action::Reopen));
    rig.machine.withdraw();
    assert!(rig.machine.has_withdrawn());
}

#[test]
fn a_call_that_has_failed_is_repeated_after_an_interval() {
    let mut rig = among();
    // Not when it shows that it is alive.
    rig.pass(TAKEOVER / 20);
    rig.change(|record| (record.fences, record.change) = (1, 1));
    assert_eq!(rig.next(), Some(Action::CatchUp));
    let failed = rig.now;
    rig.machine.caught_up(rig.now, Err("the monitors do not answer".into()));
    assert_eq!(rig.next(), Some(Action::CatchUp));
    assert_eq!(rig.now - failed, TAKEOVER / 5);
}

#[test]
fn one_that_needs_the_monitors_no_more_does_not_say_that_it_waits_for_them() {
    let mut rig = Rig::with(Access::All);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    rig.change(|record| {
        record.serving.insert("c".into(), serving("third", 0));
        (record.fences, record.change) = (1, 1);
    });
    assert_eq!(rig.beside(TAKEOVER), Some(Action::CatchUp));
    rig.machine.caught_up(rig.now, Ok(()));
    // The other one has not caught up, and is not fenced unless it could have.
    assert_eq!(rig.beside(TAKEOVER), Some(Action::CatchUp));
    assert_eq!(rig.beside(TAKEOVER / 2), None);
    assert!(rig.record().is_waiting);
    rig.machine.caught_up(rig.now, Err("the monitors do not answer".into()));
    rig.change(|record| record.serving = [("c".into(), Serving { fences: 1, ..serving("third", 1) })].into());
    assert_eq!(rig.beside(TAKEOVER), None);
    assert!(!rig.record().is_waiting);
}

#[test]
fn an_answer_to_an_earlier_claim_is_not_taken_for_having_caught_up_since() {
    let mut rig = held_with(Access::All, TAKEOVER);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    let epoch = rig.record().epoch;
    // It releases the claim, and another gateway completes a fence.
    while rig.record().active.is_some() {
        rig.pass(TAKEOVER / 10);
    }
    rig.change(|record| {
        (record.fences, record.change) = (1, 1);
        record.fence.clear();
    });
    while rig.record().epoch == epoch {
        rig.pass(TAKEOVER / 10);
    }
    rig.machine.promoted(Ok(()));
    assert_eq!(rig.next(), Some(Action::CatchUp));
    rig.machine.caught_up(rig.now, Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
}

/// A rig that serves, and claims the unit of a holder that is dead, beside another one that serves.
fn claims() -> Rig {
    let mut rig = among();
    rig.change(|record| _ = record.serving.insert("c".into(), serving("third", 0)));
    assert!(matches!(rig.beside(2 * TAKEOVER), Some(Action::Promote { .. })));
    rig
}

#[test]
fn one_that_has_claimed_the_unit_leaves_it_to_others_if_its_writes_hang() {
    for is_confirmed in [false, true] {
        let mut rig = claims();
        if is_confirmed {
            rig.change(|record| record.change = 1);
            rig.machine.promoted(Ok(()));
            assert_eq!(rig.beside(TAKEOVER / 2), None, "the other one has yet to apply a change");
            assert!(rig.record().serving.len() == 1);
        }
        rig.machine.medium_stuck(true);
        assert_eq!(rig.beside(TAKEOVER / 2), Some(Action::Deactivate { lost: false }));
        assert!(rig.record().fence.contains(&"client".to_owned()), "{:?}", rig.record());
        assert_eq!(rig.record().active, None);
    }
}

#[test]
fn one_that_serves_and_cannot_write_the_object_stops_although_it_has_claimed_the_unit() {
    for outcome in [None, Some(Ok(())), Some(Err("the monitors do not answer".to_owned()))] {
        let mut rig = claims();
        outcome.into_iter().for_each(|outcome| rig.machine.promoted(outcome));
        assert_eq!(rig.cut_off(), Some(Action::Deactivate { lost: false }));
    }
}

/// A rig that has just taken over from a gateway that was fenced.
fn taken_over() -> Rig {
    let mut rig = held(TAKEOVER);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    rig
}

#[test]
fn one_that_leaves_soon_after_a_takeover_leaves_what_ends_others_commands_to_the_next_holder() {
    for (before, id) in [(false, None), (true, None), (false, Some(7)), (true, Some(7))] {
        let mut rig = taken_over();
        if let Some(id) = id {
            rig.change(|record| {
                record.requests.insert("b".into(), Request { id, body: vec![1] });
            });
            assert_eq!(rig.next(), Some(Action::Execute { body: vec![1] }));
        }
        let began = rig.now;
        let outcome = id.map(|_| vec![2]);
        // Its home goes to standby after it has made the change.
        if before {
            rig.machine.save(vec![1], outcome.clone(), true);
            rig.pass(TAKEOVER / 10);
        }
        leave(&mut rig);
        if !before {
            rig.machine.save(vec![1], outcome, true);
        }
        assert_eq!(rig.next(), Some(Action::Saved(false)));
        assert!(rig.now - began < TAKEOVER / 5, "{:?}", rig.now - began);
        rig.machine.executed(vec![3]);
        // The same holds for whatever comes with it.
        rig.machine.save(vec![4], None, false);
        assert_eq!(rig.next(), Some(Action::Saved(false)));
        rig.pass(TAKEOVER * 9 / 10);
        let reply = rig.record().replies.get("b").cloned();
        let kept = Reply { id: 7, outcome: vec![2], is_applied: false };
        assert_eq!(
            reply,
            (before && id.is_some()).then_some(kept),
            "it may be in force at the next holder only"
        );
        assert_eq!(rig.record().saved, if before { vec![1] } else { vec![] });
        rig.machine.applied();
        assert_eq!(rig.next(), Some(Action::Demote));
        rig.machine.demoted(rig.now, Ok(()));
        rig.pass(TAKEOVER / 10);
        assert_eq!((rig.record().active.clone(), rig.record().fence.len()), (None, 0));
        assert_eq!(rig.record().fading, ["other"], "the next holder waits");
    }
}

impl Rig {
    /// It becomes active, and the medium does not answer: how long it keeps the unit.
    fn keeps(&mut self) -> Duration {
        let mut next = || (0..20).find_map(|_| self.next());
        assert!(matches!(next(), Some(Action::Promote { .. })));
        self.machine.promoted(Ok(()));
        assert!(matches!(self.next(), Some(Action::Activate { .. })));
        self.machine.applied();
        let began = self.now;
        self.machine.medium_stuck(true);
        let mut next = || (0..20).find_map(|_| self.next());
        assert_eq!(next(), Some(Action::Deactivate { lost: true }));
        let kept = self.now - began;
        self.machine.applied();
        assert_eq!(self.next(), Some(Action::Reopen));
        self.machine.reopened(self.now, Ok(format!("client{}", self.now.as_millis())));
        kept
    }
}

#[test]
fn one_whose_medium_does_not_answer_keeps_the_unit_longer_each_time_that_nobody_takes_it_over() {
    let mut rig = held(TAKEOVER);
    for times in [1, 2, 4] {
        let (kept, expected) = (rig.keeps(), 6 * TAKEOVER * times);
        assert!((expected..expected + TAKEOVER / 2).contains(&kept), "{times}: {kept:?}");
    }
    let epoch = rig.record().epoch;
    rig.claim(epoch + 1, false);
    rig.pass(TAKEOVER / 10);
    rig.claim(epoch + 1, true);
    assert!(rig.keeps() < 7 * TAKEOVER);
}
