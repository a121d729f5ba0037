//! Writes that a target executes late, after it has answered the login that was to end them.

use super::chain::pattern;
use super::holding_target::HoldingTarget;
use super::lanes::Core;
use initiator::remote::{self, RemoteOptions};
use initiator::{InitiatorPort, Options};
use scsi::storage::StoreError;
use store::lane::{Op, OpId, Outcome};

/// Blocks that the tests do not otherwise use.
const ELSEWHERE: u64 = 2 << 20;

/// Two lanes of its unit, and the number of logins for that.
fn two_lanes(target: &HoldingTarget, options: &str) -> (Core, Core, usize) {
    let url = target.url(options).parse().expect("a URL");
    let store = remote::open(&url, &RemoteOptions::default()).expect("a unit");
    let (one, two) = (Core::of(&store), Core::of(&store));
    (one, two, target.logins())
}

/// Abandons a write of the first lane that the target keeps, and logs in again.
fn abandon_write(target: &HoldingTarget, one: &mut Core, two: &mut Core, data: &[u8], logins: usize) {
    target.keep(&data[..512]);
    let stale = one.begin_write(0, data);
    assert_eq!(one.end(stale), Err(StoreError::Unavailable));
    assert!(target.is_keeping());
    log_in_again(target, one, two, logins);
}

fn log_in_again(target: &HoldingTarget, one: &mut Core, two: &mut Core, logins: usize) {
    while target.logins() == logins {
        one.turn();
    }
    for _ in 0..20 {
        one.turn();
        two.turn();
    }
}

/// Waits for an operation of the first lane; the second one shows that the target is the same.
fn end(one: &mut Core, two: &mut Core, id: OpId) -> Outcome {
    loop {
        if let Some(outcome) = one.take(id) {
            return outcome;
        }
        one.turn();
        two.turn();
    }
}

fn is_held_off(outcome: &Outcome) -> bool {
    matches!(outcome, Err(StoreError::Busy | StoreError::Unavailable))
}

/// Retries until the blocks are free.
fn write(one: &mut Core, two: &mut Core, data: &[u8]) {
    while is_held_off(&two.write(0, data)) {
        one.turn();
    }
}

#[test]
fn a_login_does_not_free_the_blocks_of_a_write_that_was_abandoned() {
    let target = HoldingTarget::start(true);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=5");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    abandon_write(&target, &mut one, &mut two, &old, logins);
    assert!(is_held_off(&two.write(0, &new)) && is_held_off(&two.read(0)));
    let free = two.begin_write(ELSEWHERE, &new);
    end(&mut two, &mut one, free).expect("other blocks are free");
    target.land();
    write(&mut one, &mut two, &new);
    assert!(target.ordered() > 0, "nothing else proves it");
    assert!(target.read(0, 4096) == new);
    one.write(0, &old).expect("the first lane continues, too");
}

#[test]
fn an_ordered_command_behind_a_stuck_write_holds_nobody_up_for_long() {
    let target = HoldingTarget::start(true);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=5");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    abandon_write(&target, &mut one, &mut two, &old, logins);
    let first = one.begin_write(ELSEWHERE, &new);
    end(&mut one, &mut two, first).expect("it continues without the proof");
    // The query is repeated.
    while target.ordered() < 2 {
        for _ in 0..2 {
            let id = one.begin_write(ELSEWHERE, &new);
            end(&mut one, &mut two, id).expect("other blocks are free");
            assert!(is_held_off(&one.write(0, &new)) && is_held_off(&one.read(0)));
            std::mem::swap(&mut one, &mut two);
        }
    }
    assert_eq!(target.logins(), logins + 1, "no session is given up for the question's sake");
    target.land();
    write(&mut one, &mut two, &new);
    assert!(target.read(0, 4096) == new);
}

#[test]
fn an_earlier_lunette_that_answers_logins_at_once_proves_nothing_by_that() {
    let target = HoldingTarget::earlier_lunette();
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=5");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    abandon_write(&target, &mut one, &mut two, &old, logins);
    let free = one.begin_write(ELSEWHERE, &new);
    end(&mut one, &mut two, free).expect("other blocks are free");
    assert!(is_held_off(&one.write(0, &new)) && is_held_off(&two.write(0, &new)));
    target.land();
    write(&mut one, &mut two, &new);
    assert!(target.ordered() > 0 && target.read(0, 4096) == new);
}

#[test]
fn a_first_copy_may_land_also_when_the_second_was_refused() {
    let target = HoldingTarget::start(false);
    let (mut one, mut two, _) = two_lanes(&target, "?give_up_after=60");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    target.keep(&old[..512]);
    let thrice = one.begin_write(0, &old);
    while !target.is_keeping() {
        one.turn();
    }
    target.refuse(Some(&old[..512]));
    target.cut();
    // It waits longer after each attempt, so the next loss finds it waiting.
    while target.refused() < 4 {
        one.turn();
        two.turn();
    }
    (0..4).for_each(|_| one.turn());
    target.refuse(None);
    target.cut();
    end(&mut one, &mut two, thrice).expect("it is sent once more");
    for lane in [&mut one, &mut two] {
        assert!(is_held_off(&lane.write(0, &new)));
    }
    target.land();
    assert!(target.read(0, 4096) == old);
}

#[test]
fn a_unit_attention_keeps_no_other_lane_from_the_blocks() {
    let target = HoldingTarget::start(true);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=60");
    let (first, second) = (pattern(1, 4096), pattern(2, 4096));
    target.alarm(&first[..512]);
    let waits = one.begin_write(0, &first);
    while target.refused() == 0 {
        one.turn();
    }
    one.turn();
    two.write(0, &second).expect("the other write is under way as before");
    one.end(waits).expect("it is sent after the revalidation");
    assert_eq!(target.logins(), logins);
}

#[test]
fn a_read_that_waited_does_not_return_what_a_lost_write_may_change_later() {
    let target = HoldingTarget::start(false);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=60");
    let old = pattern(1, 4096);
    target.keep(&old[..512]);
    let lost = one.begin_write(0, &old);
    while !target.is_keeping() {
        one.turn();
    }
    target.ignore_logins(true);
    target.cut();
    (0..10).for_each(|_| one.turn());
    let into = one.buffer(&old);
    let read = one.begin(&Op::Read { offset: 0, into });
    let with = one.buffer(&[0; 4096]);
    let compare = one.begin(&Op::Compare { offset: 0, with });
    let free = one.begin(&Op::Read { offset: ELSEWHERE, into });
    one.cancel(lost);
    target.ignore_logins(false);
    log_in_again(&target, &mut one, &mut two, logins);
    for id in [read, compare] {
        assert_eq!(end(&mut one, &mut two, id), Err(StoreError::Busy));
    }
    end(&mut one, &mut two, free).expect("other blocks are free");
    assert_eq!(one.take(lost), None, "nothing proves that it has ended");
}

/// A write of the first lane that the target keeps, cancelled while the connection is lost.
fn cancel_lost(target: &HoldingTarget, one: &mut Core, data: &[u8]) -> OpId {
    target.keep(&data[..512]);
    let lost = one.begin_write(0, data);
    while !target.is_keeping() {
        one.turn();
    }
    target.ignore_logins(true);
    target.cut();
    (0..10).for_each(|_| one.turn());
    one.cancel(lost);
    lost
}

#[test]
fn a_cancelled_write_ends_when_the_target_has_proven_that_it_is_over() {
    let target = HoldingTarget::start(true);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=60");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    let lost = cancel_lost(&target, &mut one, &old);
    target.ignore_logins(false);
    log_in_again(&target, &mut one, &mut two, logins);
    assert_eq!(one.take(lost), None, "a login proves nothing");
    target.land();
    assert_eq!(end(&mut one, &mut two, lost), Err(StoreError::Cancelled));
    assert!(target.ordered() > 0 && target.read(0, 4096) == old);
    one.write(0, &new).expect("its blocks are free");
}

#[test]
fn a_cancelled_write_ends_only_when_its_first_copy_is_over_too() {
    let target = HoldingTarget::start(true);
    let (mut one, mut two, _) = two_lanes(&target, "?give_up_after=60");
    let old = pattern(1, 4096);
    target.keep(&old[..512]);
    let twice = one.begin_write(0, &old);
    while !target.is_keeping() {
        one.turn();
    }
    target.refuse(Some(&old[..512]));
    target.cut();
    while target.refused() == 0 {
        one.turn();
        two.turn();
    }
    one.cancel(twice);
    (0..20).for_each(|_| one.turn());
    assert_eq!(one.take(twice), None, "the second copy was refused, the first was not");
    target.land();
    assert_eq!(end(&mut one, &mut two, twice), Err(StoreError::Cancelled));
}

#[test]
fn a_cancelled_write_without_a_proof_ends_when_it_is_abandoned() {
    let target = HoldingTarget::start(false);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=5");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    let lost = cancel_lost(&target, &mut one, &old);
    assert_eq!(end(&mut one, &mut two, lost), Err(StoreError::Cancelled));
    target.ignore_logins(false);
    log_in_again(&target, &mut one, &mut two, logins);
    for lane in [&mut one, &mut two] {
        assert!(is_held_off(&lane.write(0, &new)));
    }
}

#[test]
fn a_cancelled_write_that_never_left_ends_at_once() {
    let target = HoldingTarget::start(false);
    let (mut one, _, _) = two_lanes(&target, "?give_up_after=60");
    target.ignore_logins(true);
    target.cut();
    (0..10).for_each(|_| one.turn());
    let waits = one.begin_write(0, &pattern(1, 4096));
    one.cancel(waits);
    one.turn();
    assert_eq!(one.take(waits), Some(Err(StoreError::Cancelled)));
    target.ignore_logins(false);
}

#[test]
fn blocks_stay_held_while_a_target_can_prove_nothing() {
    let target = HoldingTarget::start(false);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=5");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    abandon_write(&target, &mut one, &mut two, &old, logins);
    while is_held_off(&one.read(ELSEWHERE)) {
        two.turn();
    }
    for round in 0..2 {
        for lane in [&mut one, &mut two] {
            assert!(is_held_off(&lane.write(0, &new)) && is_held_off(&lane.read(0)), "round {round}");
            lane.write(ELSEWHERE, &new).expect("other blocks are free");
        }
        if round == 0 {
            target.land();
        }
    }
    assert!(target.read(0, 4096) == old && target.ordered() == 0);
}

#[test]
fn a_write_that_is_sent_again_keeps_its_blocks_while_its_first_copy_may_land() {
    let target = HoldingTarget::start(false);
    let (mut one, mut two, _) = two_lanes(&target, "?give_up_after=60");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    target.keep(&old[..512]);
    let twice = one.begin_write(0, &old);
    while !target.is_keeping() {
        one.turn();
    }
    target.cut();
    end(&mut one, &mut two, twice).expect("it is sent again");
    two.write(ELSEWHERE, &new).expect("other blocks are free");
    for lane in [&mut one, &mut two] {
        assert!(is_held_off(&lane.write(0, &new)));
    }
    target.land();
    assert!(target.read(0, 4096) == old);
}

#[test]
fn a_compare_and_write_that_lost_its_connection_holds_its_blocks_until_it_is_over() {
    let target = HoldingTarget::start(true);
    let (mut one, mut two, logins) = two_lanes(&target, "?give_up_after=5");
    let (old, new) = (pattern(1, 4096), pattern(2, 4096));
    target.keep(&old[..512]);
    let (compare, write_from) = (one.buffer(&[0; 4096]), one.buffer(&old));
    let id = one.begin(&Op::CompareAndWrite { offset: 0, compare, write: write_from, durable: false });
    while !target.is_keeping() {
        one.turn();
    }
    target.cut();
    assert_eq!(one.end(id), Err(StoreError::Unavailable), "its outcome is unknown");
    log_in_again(&target, &mut one, &mut two, logins);
    // The other lane has lost its connection, too.
    while is_held_off(&two.write(ELSEWHERE, &new)) {
        one.turn();
    }
    assert!(is_held_off(&two.write(0, &new)));
    target.land();
    write(&mut one, &mut two, &new);
    assert!(target.read(0, 4096) == new);
}

/// A refused command was ordered behind nothing: what an earlier process sent may still be executed.
#[test]
fn an_ordered_command_that_is_refused_does_not_end_a_takeover() {
    let target = HoldingTarget::start(true);
    let url = target.url("").parse().expect("a URL");
    let take_over = || {
        let port =
            InitiatorPort { name: "iqn.2026-11.org.example:front".into(), isid: [0x80, 0, 0, 0, 0, 1] };
        remote::take_over(&url, &Options::default(), vec![port])
    };
    target.refuse_ordered(2);
    take_over().expect("the third ends well");
    assert_eq!(target.ordered(), 3);
    target.refuse_ordered(usize::MAX);
    let error = take_over().expect_err("none ends well").to_string();
    assert!(error.contains("does not prove"), "{error}");
}
