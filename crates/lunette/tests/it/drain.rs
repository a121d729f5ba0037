//! Draining a portal, such as for maintenance.

use super::manage::request;
use super::paths::{served, served_by};
use crate::support::daemon::Url;
use crate::support::initiator::{Initiator, Login};
use crate::support::load::Load;
use crate::support::wait_until;
use initiator::{Client, Options};
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

const ONE_GROUP: &str = r#"admin = "./admin.sock"

[[portal]]
listen = "127.0.0.1:0"

[[portal]]
listen = "127.0.0.2:0"

[[lun]]
name = "disk"
ram = "16M"

[[target]]
name = "iqn.2026-11.io.lunette:disk"
"#;

#[test]
fn our_initiator_follows_the_redirection_of_a_portal_and_begins_there_again_with_the_next_login() {
    let (served, [first, second]) = served_by(ONE_GROUP);
    let socket = served.directory.path().join("admin.sock");
    let is_only_at = |portal: &Url| {
        let sessions = request(&socket, "GET", "/v1/sessions", "", "").json();
        let sessions = sessions["items"].as_array().expect("a list").clone();
        let portal = portal.portal.to_string();
        !sessions.is_empty() && sessions.iter().all(|session| session["portal"] == portal.as_str())
    };
    let name = |portal: &Url| portal.portal.ip().to_string() + ":0";
    let drain = |portal: &Url, to: &str| served.must(&["drain", &name(portal), "--within", "1s", "--to", to]);
    let mut load = Load::on(&second.to_string(), &["--bs", "4K", "--iodepth", "8"]);
    load.wait_for_progress();
    assert!(is_only_at(&second));
    drain(&second, &first.portal.to_string());
    load.wait_for_progress();
    assert!(is_only_at(&first));
    served.must(&["drain", &name(&second), "--cancel"]);
    load.wait_for_progress();
    assert!(is_only_at(&first), "nothing moves it back");
    drain(&first, "127.0.0.1:1");
    load.wait_for_progress();
    assert!(is_only_at(&second), "that is its portal");
    load.stop();

    let nowhere = Client::connect(&first.to_string().parse().expect("a URL"), &Options::default());
    let problem = nowhere.err().expect("there is nothing").to_string();
    assert!(problem.ends_with("redirected to 127.0.0.1:1: Connection refused (os error 111)"), "{problem}");
    served.daemon.stop();
}
