use crate::testing::initiator::{Initiator, Login};
use crate::testing::{HeldStore, Slow, serve};
use std::thread::{scope, sleep};
use std::time::Duration;

const ORDERED: u8 = 2;
const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// It sends what one R2T asks for, again and again, each in much less than `stall_timeout`.
#[test]
fn who_sends_a_little_now_and_then_does_not_hold_up_an_ordered_task() {
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
        let tag = other.issue_as(ORDERED, 0, &TEST_UNIT_READY, 0, Vec::new()).expect("it is sent");
        assert_eq!(other.complete(tag).expect("an answer").status, 0);
    });
    daemon.stop().expect("every core ends in order");
}
