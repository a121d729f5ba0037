//! What waits until every OSD has the map with a fence, with one gateway at a time.

use super::*;

#[test]
fn what_ends_others_commands_waits_until_all_osds_have_the_map_with_the_fence() {
    let mut rig = held(TAKEOVER);
    let reply = Reply { id: 7, outcome: vec![1], is_applied: false };
    rig.object.as_mut().expect("it is there").1.replies = [("c".into(), reply)].into();
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    let (began, is_applied) =
        (rig.now, |rig: &Rig| rig.object.as_ref().expect("it is there").1.replies["c"].is_applied);
    assert!(!is_applied(&rig), "it may have ended others' commands as well");
    rig.machine.save(vec![1], None, false);
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    assert!(rig.now - began < MAPS / 2, "nothing else waits for that");
    rig.machine.save(vec![2], None, true);
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    assert!((MAPS..MAPS + TAKEOVER / 5).contains(&(rig.now - began)), "{:?}", rig.now - began);
    assert!(is_applied(&rig));
    let now = rig.now;
    rig.machine.save(vec![3], None, true);
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    assert!(rig.now - now < MAPS / 2, "they have it");
}

#[test]
fn the_longest_time_that_any_gateway_gives_osds_for_a_map_counts() {
    let mut rig = held(TAKEOVER);
    rig.object.as_mut().expect("it is there").1.members.get_mut("b").expect("the other one").osd_map_ms =
        21_000;
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    let began = rig.now;
    rig.machine.save(vec![2], None, true);
    assert_eq!(rig.next(), None, "within two takeovers");
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    assert!((3 * MAPS..3 * MAPS + TAKEOVER / 5).contains(&(rig.now - began)), "{:?}", rig.now - began);
}

#[test]
fn a_fence_of_which_osds_may_not_know_is_waited_for_by_the_next_holder_too() {
    let mut rig = Rig::new();
    let members = [("b".into(), member("theirs", TAKEOVER))].into();
    let fading = vec!["old".into()];
    rig.object = Some((1, Record { epoch: 1, fading, members, ..Record::default() }));
    assert!(matches!(rig.next(), Some(Action::Promote { fence }) if fence.is_empty()));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    let began = rig.now;
    rig.machine.save(vec![2], None, true);
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    assert!(rig.now - began >= MAPS, "{:?}", rig.now - began);
}

#[test]
fn a_time_that_nobody_can_configure_does_not_count() {
    let mut rig = held(TAKEOVER);
    rig.change(|record| record.members.get_mut("b").expect("the other one").osd_map_ms = u64::MAX);
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    let began = rig.now;
    rig.machine.save(vec![2], None, true);
    let saved = (0..10).find_map(|_| rig.next());
    assert_eq!(saved, Some(Action::Saved(true)));
    let most = Duration::from_secs(120);
    assert!((most..most + TAKEOVER / 5).contains(&(rig.now - began)), "{:?}", rig.now - began);
}

#[test]
fn a_forwarded_request_may_wait_as_long_as_the_active_gateway_for_osds() {
    for access in [Access::One, Access::All] {
        let mut rig = held_with(access, TAKEOVER);
        let maps = 3 * TAKEOVER;
        rig.change(|record| {
            record.members.get_mut("b").expect("the other one").osd_map_ms = maps.as_millis() as u64
        });
        rig.pass(TAKEOVER / 10);
        let asked = rig.now;
        rig.machine.ask(rig.now, 1, vec![]);
        let answer = rig.beside(6 * TAKEOVER);
        assert_eq!(answer, Some(Action::Answer { id: 1, outcome: Outcome::NotExecuted }));
        let waited = rig.now - asked;
        assert!((TAKEOVER + maps..2 * TAKEOVER + maps).contains(&waited), "{waited:?}");
    }
}

#[test]
fn a_fence_of_which_osds_may_not_know_is_waited_for_although_another_version_has_removed_it_from_the_object()
{
    let mut rig = held(TAKEOVER);
    let reply = Reply { id: 7, outcome: vec![1], is_applied: false };
    rig.change(|record| record.replies = [("c".into(), reply)].into());
    assert!(matches!(rig.next(), Some(Action::Promote { .. })));
    rig.machine.promoted(Ok(()));
    assert!(matches!(rig.next(), Some(Action::Activate { .. })));
    rig.machine.applied();
    let began = rig.now;
    rig.change(|record| record.fading.clear());
    rig.machine.save(vec![2], None, true);
    assert_eq!(rig.next(), Some(Action::Saved(true)));
    assert!((MAPS..MAPS + TAKEOVER * 2 / 5).contains(&(rig.now - began)), "{:?}", rig.now - began);
    rig.pass(TAKEOVER / 5);
    assert!(rig.object.expect("it is there").1.replies["c"].is_applied);
}
