//! Draining a portal, such as for maintenance.

use super::paths::served;
use crate::support::initiator::{Initiator, Login};
use crate::support::wait_until;
use std::thread;

#[test]
fn initiators_leave_a_portal_that_is_drained_and_those_that_do_not_are_ended() {
    let (served, [first, second]) = served();
    let portal = second.portal.ip().to_string() + ":0";
    let mut stays = Initiator::login(&first, &Login::named("stays")).expect("login");
    let mut obeys = Initiator::login(&second, &Login::named("obeys")).expect("login");
    let mut lingers = Initiator::login(&second, &Login::named("lingers")).expect("login");
    let dry = served.must(&["drain", &portal, "--dry-run"]);
    assert!(dry.contains(&format!("change drain of portal {portal}")), "{dry}");
    let to = first.portal.to_string();
    let drained = thread::scope(|scope| {
        let drains = scope.spawn(|| served.must(&["drain", &portal, "--to", &to, "--within", "1s"]));
        let asked = obeys.read(0, &[0; 6], 0).map(|_| ()).and_then(|()| obeys.complete(u32::MAX).map(|_| ()));
        assert_eq!(asked.expect_err("a message").to_string(), "asynchronous event 1");
        obeys.logout().expect("an answer");
        while lingers.read(0, &[0; 6], 0).is_ok() {}
        drains.join().expect("it ends")
    });
    assert!(drained.contains("No sessions are left."), "{drained}");
    let refused = Initiator::login(&second, &Login::named("late")).err().expect("it is refused");
    assert!(refused.to_string().contains("status class 1, detail 1"), "{refused}");
    stays.ready(0).expect("the other portal is another matter");
    served.must(&["drain", &portal, "--cancel"]);
    let mut back = Initiator::login(&second, &Login::named("late")).expect("login");
    back.read(0, &[0; 6], 0).expect("an answer");
    let log = || served.daemon.log();
    wait_until("the reason is not in the log", || log().contains("did not log out when requested"));
    assert!(log().contains("is asked to log out within 1 s: its portal is being drained"), "{}", log());
    served.daemon.stop();
}
