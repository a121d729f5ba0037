//! Portals that initiators have to leave.

use super::while_serving::{BASE, change, login, session};
use crate::testing::initiator::Initiator;

/// The configuration with these keys in the second portal.
fn with(keys: &str) -> String {
    BASE.replace("'127.0.0.2:0' }", &format!("'127.0.0.2:0', {keys} }}"))
}

/// What a TEST UNIT READY receives instead of its response.
fn event(initiator: &mut Initiator) -> String {
    initiator.read(0, &[0; 6], 0).expect_err("an asynchronous message").to_string()
}

#[test]
fn sessions_of_a_portal_that_is_drained_are_asked_to_log_out_and_no_others_begin() {
    let mut daemon = super::while_serving::start(BASE);
    let [first, second] = daemon.addresses()[..] else { panic!("two portals") };
    let mut stays = login(first, "x", "stays").expect("a session");
    let mut leaves = session(second, "x", 2);
    change(&mut daemon, &with("drain = '10m'")).expect("it changes");
    assert_eq!(event(&mut leaves), "asynchronous event 1", "it is asked to log out");
    leaves.ready(0).expect("it is served until it does");
    let refused = |portal| login(portal, "x", "late").err().expect("it is refused").to_string();
    assert!(refused(second).contains("status class 3, detail 1"), "service unavailable");
    leaves.logout().expect("an answer");
    stays.ready(0).expect("the other portal is another matter");
    change(&mut daemon, &with(&format!("drain = '10m', redirect = '{first}'"))).expect("it changes");
    assert!(refused(second).contains("status class 1, detail 1"), "target moved temporarily");
    change(&mut daemon, BASE).expect("it changes");
    session(second, "x", 2).logout().expect("an answer");
    stays.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_session_that_is_to_be_gone_earlier_is_asked_again() {
    let mut daemon = super::while_serving::start(BASE);
    let [_, second] = daemon.addresses()[..] else { panic!("two portals") };
    let mut lingers = session(second, "x", 2);
    change(&mut daemon, &with("drain = '30m'")).expect("it changes");
    assert_eq!(event(&mut lingers), "asynchronous event 1");
    change(&mut daemon, &with("drain = '29m'")).expect("it changes");
    assert_eq!(event(&mut lingers), "asynchronous event 1");
    change(&mut daemon, &with("drain = '1h'")).expect("it changes");
    lingers.ready(0).expect("it has been asked");
    change(&mut daemon, &with("drain = '1s'")).expect("it changes");
    assert_eq!(event(&mut lingers), "asynchronous event 1");
    while lingers.read(0, &[0; 6], 0).is_ok() {}
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_session_that_does_not_log_out_in_time_is_ended() {
    let mut daemon = super::while_serving::start(BASE);
    let [_, second] = daemon.addresses()[..] else { panic!("two portals") };
    let mut lingers = session(second, "x", 2);
    change(&mut daemon, &with("drain = '1s'")).expect("it changes");
    assert_eq!(event(&mut lingers), "asynchronous event 1");
    // It continues as if nothing had been requested, until it cannot.
    while lingers.read(0, &[0; 6], 0).is_ok() {}
    daemon.stop().expect("every core ends in order");
}
