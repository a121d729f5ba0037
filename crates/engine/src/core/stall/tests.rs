use super::{InFlight, Moving, Pace, is_send_late};
use crate::testing::initiator::{Initiator, Login, Pdu, write_cdb};
use crate::testing::{HeldStore, Slow, serve};
use proto::time::Time;
use std::collections::VecDeque;
use std::thread::{scope, sleep};
use std::time::Duration;
use wire::scsi::command::TestUnitReady;

const ORDERED: u8 = 2;
const SECOND: u64 = 1_000_000_000;
const STALL: u64 = 5 * SECOND;
const PIECE: u32 = 256 << 10;

/// It keeps sending what one R2T requests, each time in much less than `stall_timeout`.
#[test]
fn a_trickle_of_data_does_not_hold_up_an_ordered_task() {
    let stores = [HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |config| config.stall_timeout = Duration::from_millis(300));
    let mut slow = Slow::login(&url, "slow");
    slow.write(100, 4096);
    let mut other = Initiator::login(&url, &Login::named("other")).expect("a session");
    other.ready(0).expect("the unit is ready");
    scope(|threads| {
        threads.spawn(move || {
            let is_over = (0..100).any(|_| {
                sleep(Duration::from_millis(100));
                slow.answer().is_err()
            });
            assert!(is_over, "its session ends before it has sent all");
        });
        let tag = other.issue_as(ORDERED, 0, TestUnitReady {}, 0, Vec::new()).expect("it is sent");
        assert_eq!(other.complete(tag).expect("an answer").status, 0);
    });
    daemon.stop().expect("every core ends in order");
}

/// How many seconds pass, with this many bytes moved per second in the order of `moving`, until one of these
/// is late.
fn seconds_until_late(pace: &mut Pace, moving: &mut VecDeque<Moving>, bytes_per_second: u64) -> Option<u64> {
    let mut bytes = 0;
    for second in 1..10_000 {
        let now = Time(second * SECOND);
        bytes += bytes_per_second;
        while bytes >= u64::from(PIECE) {
            bytes -= u64::from(PIECE);
            pace.end(moving.pop_front()?);
        }
        pace.measure(now, STALL);
        if moving.iter().any(|moving| pace.is_late(*moving, None, now)) {
            return Some(second);
        }
    }
    panic!("it neither ends nor is late");
}

fn queue(pace: &mut Pace, pieces: usize) -> VecDeque<Moving> {
    pace.measure(Time(0), STALL);
    (0..pieces).map(|_| pace.begin(Time(0), STALL, PIECE)).collect()
}

#[test]
fn an_initiator_within_the_rate_may_have_a_deep_queue() {
    let mut pace = Pace::default();
    let mut moving = queue(&mut pace, 512);
    assert_eq!(seconds_until_late(&mut pace, &mut moving, 1_170_000), None);
}

#[test]
fn a_trickle_of_data_is_soon_late() {
    let mut pace = Pace::default();
    let mut moving = queue(&mut pace, 512);
    let late = seconds_until_late(&mut pace, &mut moving, u64::from(PIECE) / 3);
    assert!(late.is_some_and(|seconds| seconds <= 7), "{late:?}");
}

/// Whatever else the connection moves, and however fast.
#[test]
fn data_that_is_held_back_is_late_soon_after_what_was_on_its_way_before_it() {
    let mut pace = Pace::default();
    let before = queue(&mut pace, 40);
    let held = pace.begin(Time(0), STALL, PIECE);
    before.into_iter().for_each(|moving| pace.end(moving));
    let late = (1..100).find(|second| {
        let now = Time(second * SECOND);
        for _ in 0..100 {
            let other = pace.begin(now, STALL, PIECE);
            pace.end(other);
        }
        pace.measure(now, STALL);
        pace.is_late(held, None, now)
    });
    assert_eq!(late, Some(16), "5 s, and 41 pieces at 1 MB/s");
}

/// Whether the session ends when a send of 1 MiB, which carries the data of 16 commands, has not completed
/// after this long.
fn is_send_of_a_mebibyte_late(millis: u64) -> bool {
    const COMMAND_BYTES: u32 = 64 << 10;
    let mut pace = Pace::default();
    pace.measure(Time(0), SECOND);
    let moving: Vec<Moving> = (0..16).map(|_| pace.begin(Time(0), SECOND, COMMAND_BYTES)).collect();
    let send = InFlight { since: Time(0), bytes: 16 * u64::from(COMMAND_BYTES) };
    let now = Time(millis * 1_000_000);
    pace.measure(now, SECOND);
    is_send_late(send, now, SECOND) || moving.iter().any(|moving| pace.is_late(*moving, Some(send), now))
}

#[test]
fn a_large_send_has_the_time_that_its_bytes_take() {
    assert!(!is_send_of_a_mebibyte_late(1500));
    assert!(is_send_of_a_mebibyte_late(2100));
}

/// Data that is announced, but never requested, buys no time.
#[test]
fn a_write_that_announces_much_and_sends_nothing_does_not_hold_up_an_ordered_task() {
    let stores = [HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |config| config.stall_timeout = Duration::from_millis(300));
    let mut slow = Slow::login(&url, "slow");
    let cmd_sn = slow.initiator.next_cmd_sn();
    let mut command = Pdu::new(0x01, 0x80 | 0x20 | 1).lun(0);
    command = command.word(16, 0x7000_0000 | cmd_sn).word(20, 0xffff_fe00).word(24, cmd_sn);
    command.set_cdb(write_cdb(0, 4096, 512, false));
    slow.initiator.send(&command).expect("it is sent");
    slow.initiator.skip_cmd_sn();
    while slow.receive().expect("an R2T") != 0x31 {}
    let mut other = Initiator::login(&url, &Login::named("other")).expect("a session");
    other.ready(0).expect("the unit is ready");
    let tag = other.issue_as(ORDERED, 0, TestUnitReady {}, 0, Vec::new()).expect("it is sent");
    assert_eq!(other.complete(tag).expect("an answer").status, 0);
    daemon.stop().expect("every core ends in order");
}
