//! Throttles with a clock of the test's own, and commands that wait in those of a daemon.

use super::*;
use crate::limits::Limit;
use crate::testing::initiator::{Initiator, Login, write_cdb};
use crate::testing::{HeldStore, everyone, serve};
use config::Rate;
use wire::scsi::command::TestUnitReady;

const SECOND: u64 = 1_000_000_000;
const BLOCK: u32 = 512;

fn limit(iops: u64, bytes: u64) -> Arc<Limit> {
    let rate = |per_second| (per_second > 0).then_some(Rate { per_second, burst: 0 });
    Arc::new(Limit::new(config::Limits { iops: rate(iops), bytes: rate(bytes) }))
}

/// A session with a number of commands of a certain size in flight, on a core that wakes late, by a certain
/// time, when something is due.
struct Session {
    throttle: Throttle,
    depth: usize,
    bytes: u32,
    late: u64,
    /// The time from admitting a command until the next one replaces it.
    round: u64,
    /// When those arrive.
    next: VecDeque<u64>,
    commands: u64,
}

impl Session {
    fn new(limits: &[&Arc<Limit>], depth: usize, bytes: u32, late: u64) -> Session {
        Session::of_shares(
            &limits.iter().map(|limit| Share::of(Arc::clone(limit))).collect::<Vec<_>>(),
            depth,
            bytes,
            late,
        )
    }

    fn of_shares(shares: &[Arc<Share>], depth: usize, bytes: u32, late: u64) -> Session {
        let throttle = Throttle::new([shares.first().cloned(), shares.get(1).cloned()]);
        Session { throttle, depth, bytes, late, round: 0, next: VecDeque::new(), commands: 0 }
    }

    fn with_rounds_of(self, round: u64) -> Session {
        Session { round, ..self }
    }

    /// Sends as many commands as it may.
    fn fill(&mut self, now: Time) {
        while self.next.pop_front_if(|next| *next <= now.0).is_some() {}
        while self.throttle.waiting.len() + self.next.len() < self.depth {
            match self.throttle.bar(Some(self.bytes), Attribute::Simple, now) {
                None => self.assert_admitted(now),
                Some(wait) => self.throttle.push(Key { index: 0, generation: 0 }, Attribute::Simple, wait),
            }
        }
    }

    fn assert_admitted(&mut self, now: Time) {
        self.commands += 1;
        if self.round > 0 {
            self.next.push_back(now.0 + self.round);
        }
    }

    fn wakes_at(&mut self, now: Time) -> u64 {
        let due = self.throttle.first_due(now).map(|due| due.0 + self.late);
        due.into_iter().chain(self.next.front().copied()).min().unwrap_or(u64::MAX)
    }
}

/// What each of these does in two seconds.
fn run(mut sessions: Vec<Session>) -> Vec<u64> {
    let mut now = Time(SECOND);
    sessions.iter_mut().for_each(|session| session.fill(now));
    while now < Time(3 * SECOND) {
        let wakes: Vec<u64> = sessions.iter_mut().map(|session| session.wakes_at(now)).collect();
        now = Time((*wakes.iter().min().expect("there are some")).max(now.0));
        // A throttle queued behind another LUN's is on that one's core.
        let is_awake = |at: &usize| wakes[*at] <= now.0 || wakes[*at] == u64::MAX;
        let awake: Vec<usize> = (0..sessions.len()).filter(is_awake).collect();
        // In turns, as a core does it.
        let mut has_gone = true;
        while std::mem::take(&mut has_gone) {
            for at in &awake {
                if sessions[*at].throttle.next(now).is_some() {
                    sessions[*at].assert_admitted(now);
                    has_gone = true;
                }
            }
        }
        awake.iter().for_each(|at| sessions[*at].fill(now));
    }
    sessions.iter().map(|session| session.commands).collect()
}

fn assert_close(what: u64, to: u64) {
    assert!(what.abs_diff(to) * 20 <= to, "{what} is not within 5 % of {to}");
}

#[test]
fn sessions_have_equal_shares_however_many_commands_each_has_in_flight() {
    for rate in [200, 5000, 100_000] {
        let all = limit(rate, 0);
        // At the highest rate a throttle takes 20 places ahead.
        let least = if rate == 100_000 { 20 } else { 4 };
        let sessions = [128, 32, 32, least].map(|depth| Session::new(&[&all], depth, 4096, 0));
        let done = run(sessions.into());
        assert_close(done.iter().sum(), 2 * rate);
        done.iter().for_each(|one| assert_close(*one, done.iter().sum::<u64>() / 4));
    }
}

#[test]
fn one_with_few_commands_has_its_share_although_cores_wake_late_and_its_next_ones_take_a_while() {
    for (rate, late) in [(5000, 100), (5000, 1000), (20_000, 100), (20_000, 500)] {
        let all = limit(rate, 0);
        let session = |depth| Session::new(&[&all], depth, 512, late * 1000).with_rounds_of(200_000);
        let done = run([8, 32, 32, 120].map(session).into());
        assert_close(done.iter().sum(), 2 * rate);
        let share = done.iter().sum::<u64>() / 4;
        assert!(
            done.iter().all(|one| one.abs_diff(share) * 10 <= share),
            "{rate} a second, {late} us late: {done:?}"
        );
    }
}

#[test]
fn a_core_that_wakes_late_loses_no_share_to_one_that_never_sleeps() {
    // Without the places that throttles take ahead, a core that is 500 us late had half of its share.
    let percent = |late| if late > 150 { 10 } else { 5 };
    for (rate, late) in
        [(1000, 70), (1000, 500), (5000, 150), (5000, 500), (20_000, 150), (20_000, 500), (50_000, 500)]
    {
        for others in [1, 3] {
            let all = limit(rate, 0);
            let late_one = Session::new(&[&all], 512, 4096, late * 1000);
            let others = (0..others).map(|_| Session::new(&[&all], 512, 4096, 0));
            let done = run(others.chain([late_one]).collect());
            assert_close(done.iter().sum(), 2 * rate);
            let share = done.iter().sum::<u64>() / done.len() as u64;
            let is_fair = |one: &u64| one.abs_diff(share) * 100 <= share * percent(late);
            assert!(done.iter().all(is_fair), "{rate} a second, {late} us late: {done:?}");
        }
    }
}

#[test]
fn one_with_small_commands_has_its_share_of_bytes_beside_one_with_large() {
    let all = limit(0, 100 << 20);
    let done = run(vec![Session::new(&[&all], 32, 256 << 10, 0), Session::new(&[&all], 128, 4096, 0)]);
    let bytes = [done[0] * (256 << 10), done[1] * 4096];
    assert_close(bytes[0] + bytes[1], 200 << 20);
    assert!(bytes[1] * 2 >= bytes[0] * 3 / 2, "{bytes:?}");
}

#[test]
fn the_limit_of_a_group_holds_beside_that_of_a_lun() {
    let (lun, group) = (limit(10_000, 0), limit(1000, 0));
    let done = run(vec![
        Session::new(&[&lun, &group], 32, 4096, 0),
        Session::new(&[&lun, &group], 32, 4096, 0),
        Session::new(&[&lun], 32, 4096, 0),
    ]);
    assert_close(done[0] + done[1], 2000);
    assert_close(done[0], 1000);
    assert_close(done.iter().sum(), 20_000);
}

#[test]
fn an_initiator_of_ten_luns_gets_no_more_of_a_group_limit_than_one_of_one() {
    for rate in [50, 200, 5000, 50_000] {
        let all = limit(rate, 0);
        let of_group = |share: &Arc<Share>, depth| {
            let mut session = Session::new(&[], depth, 4096, 0);
            session.throttle = Throttle::new([None, Some(share.clone())]);
            session
        };
        let many = Share::of(all.clone());
        let sessions = (0..10).map(|_| of_group(&many, 32)).chain([of_group(&Share::of(all.clone()), 128)]);
        let done = run(sessions.collect());
        let (many, one) = (&done[..10], done[10]);
        assert_close(done.iter().sum(), 2 * rate);
        assert!(one.abs_diff(rate) <= 1.max(rate / 20), "{rate} a second: {done:?}");
        // Its LUNs take turns.
        assert!(
            many.iter().all(|lun| lun.abs_diff(rate / 10) <= 4.max(rate / 20)),
            "{rate} a second: {done:?}"
        );
    }
}

#[test]
fn a_lun_that_waits_for_its_own_limit_does_not_hold_up_another_at_the_limit_of_their_group() {
    let (slow, all) = (limit(1, 0), Share::of(limit(1000, 0)));
    let slow = Session::of_shares(&[Share::of(slow), all.clone()], 32, 4096, 0);
    let mut other = Session::new(&[], 32, 4096, 0);
    other.throttle = Throttle::new([None, Some(all)]);
    let done = run(vec![slow, other]);
    assert_close(done[1], 2000);
}

fn key(index: u32) -> Key {
    Key { index, generation: 0 }
}

/// A throttle with these commands, the first of which has its place.
fn waiting(all: &Arc<Limit>, commands: &[(Option<u32>, Attribute)], now: Time) -> Throttle {
    let mut throttle = Throttle::new([Some(Share::of(all.clone())), None]);
    while throttle.bar(Some(0), Attribute::Simple, now).is_none() {}
    throttle.release(Some(0));
    for (index, (bytes, attribute)) in (0..).zip(commands) {
        let wait = throttle.bar(*bytes, *attribute, now).expect("it waits");
        throttle.push(key(index), *attribute, wait);
    }
    throttle
}

#[test]
fn unlimited_commands_pass_except_ordered_ones_and_those_behind_them() {
    let (all, now) = (limit(10, 0), Time(SECOND));
    let mut throttle = waiting(&all, &[(Some(512), Attribute::Simple)], now);
    assert!(throttle.bar(None, Attribute::Simple, now).is_none());
    assert!(throttle.bar(None, Attribute::HeadOfQueue, now).is_none());
    let ordered = throttle.bar(None, Attribute::Ordered, now).expect("it waits");
    throttle.push(key(1), Attribute::Ordered, ordered);
    let behind = throttle.bar(None, Attribute::Simple, now).expect("it keeps its order");
    throttle.push(key(2), Attribute::Simple, behind);
    assert_eq!(throttle.next(now), None);
    let due = throttle.first_due(now).expect("it waits");
    // A command that is not limited waits only to keep its order.
    assert_eq!(
        [throttle.next(due), throttle.next(due), throttle.next(due)],
        [Some(key(0)), Some(key(1)), Some(key(2))]
    );
    assert!(throttle.bar(None, Attribute::Ordered, now).is_none());
}

#[test]
fn a_command_that_is_aborted_leaves_its_place_to_others() {
    let (all, now) = (limit(10, 0), Time(SECOND));
    let mut throttle = waiting(&all, &[(Some(512), Attribute::Simple); 3], now);
    let due = throttle.first_due(now);
    throttle.forget(key(0));
    throttle.forget(key(0));
    assert_eq!(throttle.first_due(now), due);
    throttle.forget(key(2));
    assert_eq!(throttle.next(due.expect("it waits")), Some(key(1)));
    assert_eq!(throttle.first_due(now), None);
}

#[test]
fn waiting_commands_follow_a_changed_limit() {
    let (slow, fast, now) = (limit(1, 0), limit(1000, 0), Time(SECOND));
    let mut throttle = waiting(&slow, &[(Some(512), Attribute::Simple); 3], now);
    assert!(throttle.first_due(now) > Some(Time(SECOND + SECOND / 2)));
    throttle.change([Some(Share::of(fast)), None]);
    assert_eq!(throttle.next(now), Some(key(0)));
    throttle.change([None, None]);
    assert_eq!([throttle.next(now), throttle.next(now)], [Some(key(1)), Some(key(2))]);
}

/// A session whose LUN 0 admits one command at once and further ones a second apart, and whose LUN 1 admits
/// all; with WRITEs that wait.
fn held_up(commands: usize) -> (crate::Daemon, Initiator, Vec<u32>) {
    let (daemon, url) = serve(1, &[HeldStore::new(), HeldStore::new()], |config| {
        config.luns[0].limits.iops = Some(Rate { per_second: 1, burst: 0 });
    });
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    initiator.write_blocks(0, 0, BLOCK, &[9; 512], false).expect("GOOD");
    let write = |at: usize| write_cdb(at as u64, 512, BLOCK, false);
    let tags = (0..commands)
        .map(|at| initiator.issue(0, write(at), 0, vec![at as u8; 512]).expect("it is sent"))
        .collect();
    (daemon, initiator, tags)
}

#[test]
fn a_session_that_waits_for_one_lun_uses_another_and_asks_what_it_likes() {
    let (daemon, mut initiator, tags) = held_up(2);
    initiator.ready(0).expect("what moves no data is answered");
    initiator.write_blocks(1, 7, BLOCK, &[7; 512], false).expect("GOOD");
    assert_eq!(initiator.read_blocks(1, 7, 1, BLOCK).expect("GOOD"), [7; 512]);
    // They still complete, one after another.
    for tag in tags {
        assert_eq!(initiator.complete(tag).expect("an answer").status, 0);
    }
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn commands_that_wait_end_by_abort_reset_and_logout_and_never_write() {
    const ABORT_TASK: u8 = 1;
    const LOGICAL_UNIT_RESET: u8 = 5;
    let (daemon, mut initiator, tags) = held_up(100);
    assert_eq!(initiator.manage(ABORT_TASK, 0, tags[99]).expect("an answer"), 0);
    assert_eq!(initiator.manage(LOGICAL_UNIT_RESET, 0, 0).expect("an answer"), 0);
    let sense = initiator.read(0, TestUnitReady {}, 0).expect("an answer").sense;
    assert_eq!(sense[12], 0x29, "it was reset");
    // No more wait there now, so the next has the place of the first.
    assert_eq!(initiator.read_blocks(0, 60, 1, BLOCK).expect("GOOD"), [0; 512]);
    let left = initiator.issue(0, write_cdb(70, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    assert_ne!(left, 0);
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn commands_that_wait_go_by_the_limit_that_is_configured_meanwhile() {
    let (mut daemon, mut initiator, tags) = held_up(100);
    let mut config = daemon.config().clone();
    config.luns[0].limits = config::Limits::default();
    let step = config::StepOfChange::ChangeLun("lun0".into());
    daemon.take_step(&step, &config, crate::daemon::Wants::Store).expect("it changes");
    for (at, tag) in tags.into_iter().enumerate() {
        assert_eq!(initiator.complete(tag).expect("an answer").status, 0, "WRITE {at}");
    }
    assert_eq!(initiator.read_blocks(0, 60, 1, BLOCK).expect("GOOD"), [60; 512]);
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

/// A session whose group admits one command at once and further ones a second apart; with a WRITE of LUN 0
/// that has the next place, and one of LUN 1 behind it.
fn held_up_by_group() -> (crate::Daemon, Initiator, [u32; 2]) {
    let (daemon, url) = serve(1, &[HeldStore::new(), HeldStore::new()], |config| {
        let limits = config::Limits { iops: Some(Rate { per_second: 1, burst: 0 }), bytes: None };
        config.targets[0].groups = vec![config::Group { limits, ..everyone() }];
    });
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    initiator.write_blocks(0, 0, BLOCK, &[9; 512], false).expect("GOOD");
    let tags = [0, 1].map(|lun| {
        initiator.issue(lun, write_cdb(1, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent")
    });
    (daemon, initiator, tags)
}

#[test]
fn a_lun_queued_behind_another_has_its_turn_when_that_is_aborted() {
    const ABORT_TASK: u8 = 1;
    let (daemon, mut initiator, [first, behind]) = held_up_by_group();
    assert_eq!(initiator.manage(ABORT_TASK, 0, first).expect("an answer"), 0);
    assert_eq!(initiator.complete(behind).expect("an answer").status, 0);
    // The two LUNs take turns from then on.
    assert_eq!(initiator.read_blocks(0, 1, 1, BLOCK).expect("GOOD"), [0; 512]);
    assert_eq!(initiator.read_blocks(1, 1, 1, BLOCK).expect("GOOD"), [1; 512]);
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_lun_queued_behind_another_has_its_turn_when_that_is_hidden() {
    let (mut daemon, mut initiator, [first, behind]) = held_up_by_group();
    let mut config = daemon.config().clone();
    config.targets[0].luns.remove(0);
    let (target, lun) = (config.targets[0].name.clone(), config.luns[0].name.clone());
    let step = config::StepOfChange::Hide { target, lun };
    daemon.take_step(&step, &config, crate::daemon::Wants::Store).expect("it changes");
    initiator.complete(first).expect("an answer");
    // It reaches its unit now, which reports that the session's LUNs have changed.
    let sense = initiator.complete(behind).expect("an answer").sense;
    assert_eq!(sense[12..14], [0x3F, 0x0E]);
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_lun_queued_behind_another_continues_when_the_group_is_no_longer_limited() {
    let (mut daemon, mut initiator, tags) = held_up_by_group();
    let mut config = daemon.config().clone();
    config.targets[0].groups[0].limits = config::Limits::default();
    let step = config::StepOfChange::ChangeTarget(config.targets[0].name.clone());
    daemon.take_step(&step, &config, crate::daemon::Wants::Store).expect("it changes");
    for tag in tags {
        assert_eq!(initiator.complete(tag).expect("an answer").status, 0);
    }
    assert_eq!(initiator.read_blocks(1, 1, 1, BLOCK).expect("GOOD"), [1; 512]);
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}
