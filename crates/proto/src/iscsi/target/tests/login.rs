//! The connection before the full feature phase; negotiation is tested with the login itself.

use super::harness::{Driver, read};
use crate::services::{Down, Up};
use crate::stream::{StreamMachine, Want};
use crate::time::Time;
use wire::iscsi::{LoginRequest, LoginResponse, LoginStatus};
use zerocopy::IntoBytes;

fn login() -> LoginRequest {
    LoginRequest { opcode: 0x43, flags: 0x87, initiator_task_tag: 1.into(), ..LoginRequest::default() }
}

#[test]
fn nothing_but_login_is_taken_at_login() {
    let mut driver = Driver::at_login();
    assert_eq!(driver.target.want(), Want::Header { len: 48 });
    driver.send(read(7, 0, 0).as_bytes(), &[]);
    assert!(driver.gone().contains("6.3"));
}

#[test]
fn another_request_in_the_middle_of_a_login_is_refused_with_the_reason() {
    let mut driver = Driver::at_login();
    // A login that has not ended: the text continues.
    let pdu = LoginRequest { flags: 0x44, isid: [1, 2, 3, 4, 5, 6], ..login() };
    driver.send(pdu.as_bytes(), b"InitiatorName=iqn.");
    driver.sent();
    driver.send(read(7, 0, 0).as_bytes(), &[]);
    let (response, _) = driver.one::<LoginResponse>();
    assert_eq!(response.status, LoginStatus::INVALID_DURING_LOGIN);
    assert_eq!((response.initiator_task_tag.get(), response.isid), (1, pdu.isid), "it ends the login task");
    assert!(driver.gone().contains("6.3"));
}

#[test]
fn long_login_text_is_refused_before_it_is_read() {
    let mut driver = Driver::at_login();
    driver.send(login().as_bytes(), &[b'a'; 8193]);
    assert!(driver.gone().contains("13.12"));
}

#[test]
fn a_slow_login_is_ended() {
    let mut driver = Driver::at_login();
    let deadline = driver.target.deadline().unwrap();
    assert_eq!(deadline, Time(10_000_000_000));
    driver.pending.extend(&login().as_bytes()[..40]);
    driver.run();
    driver.target.tick(Time(deadline.0 - 1));
    assert!(!driver.target.finished());
    driver.target.tick(deadline);
    assert_eq!(driver.gone(), "login took too long");
    driver.target.closed(deadline, None);
    assert!(driver.up().is_none(), "reported once");
}

#[test]
fn a_connection_in_login_is_closed_without_ceremony() {
    let mut driver = Driver::at_login();
    driver.down(Down::RequestLogout { within_seconds: 5 });
    assert!(driver.gone().contains("before login"));
}

#[test]
fn a_login_that_is_granted_is_answered_when_the_layer_above_admits_it() {
    let text = b"InitiatorName=iqn.a\0TargetName=iqn.b\0SessionType=Normal\0";
    let granted = || {
        let mut driver = Driver::at_open_login();
        driver.send(login().as_bytes(), text);
        assert!(matches!(driver.up(), Some(Up::Ready(session)) if session.initiator == "iqn.a"));
        assert_eq!(driver.target.want(), Want::Nothing);
        driver.quiet();
        driver
    };
    let mut driver = granted();
    driver.down(Down::Admit);
    let (response, _) = driver.one::<LoginResponse>();
    assert_eq!((response.status, response.flags & 0x83), (LoginStatus::SUCCESS, 0x83));
    driver.send(read(7, 0, 0).as_bytes(), &[]);
    driver.command();

    let mut driver = granted();
    let deadline = driver.target.deadline().unwrap();
    driver.target.tick(deadline);
    assert_eq!(driver.gone(), "login took too long");
    driver.down(Down::Admit);
    driver.quiet();
}
