//! Login over iSER, and how sessions end.

use super::rig::Rig;
use crate::support::{IDLE, READ, Setup, TARGET, command, host};
use proto::iscsi::chap::Algorithm;
use proto::iscsi::initiator::{Event, Outcome};
use proto::iscsi::login::{Digests, Offers, Refusal};
use proto::services::Down;
use std::time::Duration;
use wire::Places;
use wire::iscsi::AsyncEvent;

#[test]
fn login_agrees_on_the_keys_of_iser() {
    let wish =
        Offers { header_digest: Digests::Required, data_digest: Digests::Required, ..Offers::default() };
    let mut setup = Setup { offers: wish, ..Setup::default() };
    setup.plan.offers = wish;
    let rig = Rig::logged_in(setup);
    let negotiated = rig.peer.machine.negotiated().unwrap();
    assert!(!negotiated.header_digest && !negotiated.data_digest && negotiated.rdma.is_some());
    assert_eq!((negotiated.max_recv_initiator, negotiated.max_recv_target), (8192, 8192));
    assert_eq!(negotiated.rdma.unwrap().unexpected_max, 16);
    let session = rig.device().session.as_ref().unwrap();
    assert!(session.negotiated.contains(&("RDMAExtensions", "Yes".to_string())), "{session:?}");
    assert!(rig.is_at_rest());
}

#[test]
fn chap_and_refusals_are_those_of_iscsi() {
    let (credentials, own) = crate::support::chap(&[Algorithm::Sha256], true);
    let mut setup = Setup::default();
    setup.access.chap = Some(credentials);
    setup.plan.chap = Some(own);
    setup.plan.text_bytes = 25;
    let rig = Rig::logged_in(setup);
    assert_eq!(rig.device().session.as_ref().unwrap().negotiated[0], ("AuthMethod", "CHAP".to_string()));

    let mut setup = Setup::default();
    setup.access.refusal = Some(Refusal::NotFound);
    let mut rig = Rig::ours(setup);
    rig.run();
    assert!(rig.gone().contains("0203"), "{}", rig.gone());
    assert!(rig.target_gone.is_some());
}

#[test]
fn discovery_works_over_messages() {
    let mut setup = Setup::default();
    setup.plan.target = None;
    setup.access.targets = 100;
    let mut rig = Rig::logged_in(setup);
    assert_eq!(rig.peer.machine.negotiated().unwrap().rdma, None);
    assert!(rig.peer.machine.text(b"SendTargets=All\0"));
    rig.run();
    let Some(Event::Text(text)) = rig.events.pop() else { panic!("{:?}", rig.target_gone) };
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with(&format!("TargetName={TARGET}\0TargetAddress=192.0.2.2:3260,7\0")));
    assert_eq!(text.matches("TargetName=").count(), 100);
    rig.peer.machine.logout(rig.now);
    rig.run();
    assert_eq!((rig.gone(), rig.target_gone.as_deref()), ("logged out", Some("logged out")));
}

#[test]
fn both_ends_keep_the_connection_alive() {
    let mut rig = Rig::logged_in(Setup::default());
    rig.pass(IDLE * 40);
    assert!(rig.events.is_empty() && rig.target_gone.is_none(), "{:?}", rig.events);
    assert!(rig.peer.machine.ping(b"are you there"));
    rig.run();
    assert_eq!(rig.events.pop(), Some(Event::Pong(b"are you there".to_vec())));
    assert!(rig.is_at_rest());
    rig.silent = true;
    rig.pass(IDLE * 3);
    assert_eq!(rig.gone(), "no answer to keep-alive");
    assert!(rig.target_gone.unwrap().contains("keep-alive"));
}

#[test]
fn a_silent_login_ends() {
    let mut rig = Rig::ours(Setup::default());
    rig.silent = true;
    rig.pass(Duration::from_secs(11));
    assert_eq!(rig.gone(), "login took too long");
    assert!(rig.target_gone.is_some());
}

#[test]
fn a_target_that_stops_asks_for_logout() {
    let mut rig = Rig::logged_in(Setup::default());
    rig.down(Down::RequestLogout { within_seconds: 3 });
    rig.run();
    let asked = Event::Async { event: AsyncEvent::LOGOUT_REQUEST, parameters: [0, 0, 3] };
    assert_eq!(rig.events.pop(), Some(asked));
    rig.peer.machine.logout(rig.now);
    rig.run();
    assert_eq!((rig.gone(), rig.target_gone.as_deref()), ("logged out", Some("logged out")));
}

#[test]
fn a_target_that_closes_says_so() {
    let mut rig = Rig::logged_in(Setup::default());
    rig.down(Down::Close);
    rig.run();
    let is_drop = |event: &Event| matches!(event, Event::Async { event: AsyncEvent::SESSION_DROP, .. });
    assert!(rig.events.iter().any(is_drop), "{:?}", rig.events);
    assert_eq!(rig.target_gone.as_deref(), Some("closed by this side"));
}

#[test]
fn a_connection_that_breaks_takes_its_commands_along() {
    let mut rig = Rig::logged_in(Setup::default());
    rig.peer.machine.submit(command(READ, 0, 9000, host(0, 9000), Places::EMPTY)).unwrap();
    rig.step();
    rig.cut("the cable was pulled");
    assert_eq!(rig.gone(), "the cable was pulled");
    assert!(rig.target_gone.is_some());
    let completed =
        |event: &Event| matches!(event, Event::Completed(done) if done.outcome != Outcome::Aborted);
    assert!(!rig.events.iter().any(completed));
}
