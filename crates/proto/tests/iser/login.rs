//! Login over iSER, and how sessions end.

use super::pair::Pair;
use crate::support::{IDLE, READ, Setup, TARGET, command, host};
use proto::iscsi::chap::Algorithm;
use proto::iscsi::initiator::{Event, Outcome};
use proto::iscsi::login::{Digests, Offers, Refusal};
use proto::verbs::Down;
use std::time::Duration;
use wire::Places;
use wire::iscsi::AsyncEvent;

#[test]
fn login_agrees_on_the_keys_of_iser() {
    let wish =
        Offers { header_digest: Digests::Required, data_digest: Digests::Required, ..Offers::default() };
    let mut setup = Setup { offers: wish, ..Setup::default() };
    setup.plan.offers = wish;
    let pair = Pair::logged_in(setup);
    let negotiated = pair.initiator.machine.negotiated().unwrap();
    assert!(!negotiated.header_digest && !negotiated.data_digest && negotiated.rdma.is_some());
    assert_eq!((negotiated.max_recv_initiator, negotiated.max_recv_target), (8192, 8192));
    assert_eq!(negotiated.rdma.unwrap().unexpected_max, 16);
    let session = pair.device.session.as_ref().unwrap();
    assert!(session.negotiated.contains(&("RDMAExtensions", "Yes".to_string())), "{session:?}");
    assert!(pair.is_at_rest());
}

#[test]
fn chap_and_refusals_are_those_of_iscsi() {
    let (credentials, own) = crate::support::chap(&[Algorithm::Sha256], true);
    let mut setup = Setup::default();
    setup.door.chap = Some(credentials);
    setup.plan.chap = Some(own);
    setup.plan.text_bytes = 25;
    let pair = Pair::logged_in(setup);
    assert_eq!(pair.device.session.unwrap().negotiated[0], ("AuthMethod", "CHAP".to_string()));

    let mut setup = Setup::default();
    setup.door.refusal = Some(Refusal::NotFound);
    let mut pair = Pair::new(setup);
    pair.run();
    assert!(pair.gone().contains("0203"), "{}", pair.gone());
    assert!(pair.target_gone.is_some());
}

#[test]
fn discovery_works_over_messages() {
    let mut setup = Setup::default();
    setup.plan.target = None;
    setup.door.targets = 100;
    let mut pair = Pair::logged_in(setup);
    assert_eq!(pair.initiator.machine.negotiated().unwrap().rdma, None);
    assert!(pair.initiator.machine.text(b"SendTargets=All\0"));
    pair.run();
    let Some(Event::Text(text)) = pair.events.pop() else { panic!("{:?}", pair.target_gone) };
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with(&format!("TargetName={TARGET}\0TargetAddress=192.0.2.2:3260,7\0")));
    assert_eq!(text.matches("TargetName=").count(), 100);
    pair.initiator.machine.logout(pair.now);
    pair.run();
    assert_eq!((pair.gone(), pair.target_gone.as_deref()), ("logged out", Some("logged out")));
}

#[test]
fn both_ends_keep_the_connection_alive() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.pass(IDLE * 40);
    assert!(pair.events.is_empty() && pair.target_gone.is_none(), "{:?}", pair.events);
    assert!(pair.initiator.machine.ping(b"are you there"));
    pair.run();
    assert_eq!(pair.events.pop(), Some(Event::Pong(b"are you there".to_vec())));
    assert!(pair.is_at_rest());
    pair.cut = true;
    pair.pass(IDLE * 3);
    assert_eq!(pair.gone(), "no answer to keep-alive");
    assert!(pair.target_gone.unwrap().contains("keep-alive"));
}

#[test]
fn a_silent_login_ends() {
    let mut pair = Pair::new(Setup::default());
    pair.cut = true;
    pair.pass(Duration::from_secs(11));
    assert_eq!(pair.gone(), "login took too long");
    assert!(pair.target_gone.is_some());
}

#[test]
fn a_target_that_stops_asks_for_logout() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.down(Down::Goodbye { within_seconds: 3 });
    pair.run();
    let asked = Event::Async { event: AsyncEvent::LOGOUT_REQUEST, parameters: [0, 0, 3] };
    assert_eq!(pair.events.pop(), Some(asked));
    pair.initiator.machine.logout(pair.now);
    pair.run();
    assert_eq!((pair.gone(), pair.target_gone.as_deref()), ("logged out", Some("logged out")));
}

#[test]
fn a_target_that_closes_says_so() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.down(Down::Close);
    pair.run();
    let told = |event: &Event| matches!(event, Event::Async { event: AsyncEvent::SESSION_DROP, .. });
    assert!(pair.events.iter().any(told), "{:?}", pair.events);
    assert_eq!(pair.target_gone.as_deref(), Some("closed by this side"));
}

#[test]
fn a_connection_that_breaks_takes_its_commands_along() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.initiator.machine.submit(command(READ, 0, 9000, host(0, 9000), Places::EMPTY)).unwrap();
    pair.step();
    use proto::message::MessageMachine;
    pair.initiator.machine.closed(pair.now, "the cable was pulled");
    pair.run();
    assert_eq!(pair.gone(), "the cable was pulled");
    assert!(pair.target_gone.is_some());
    let completed =
        |event: &Event| matches!(event, Event::Completed(done) if done.outcome != Outcome::Aborted);
    assert!(!pair.events.iter().any(completed));
}
