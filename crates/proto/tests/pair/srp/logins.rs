//! Logins that are granted, and logins that are not.

use super::rig::{CONFIG, INITIATOR, Rig, TestAccess, target};
use super::scripted::login;
use crate::support::Device;
use crate::support::rig::START;
use proto::message::{Answer, MessageMachine};
use proto::services::{Down, Up, Withdrawal};
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::TargetConfig;
use proto::time::Time;
use wire::srp::{Layout, LoginReject, LoginRequest, LoginRequestRdma, LoginResponse, Opcode, RejectReason};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

fn asked(access: TestAccess, private_data: &[u8]) -> Result<LoginResponse, RejectReason> {
    let mut machine = target(CONFIG, access);
    let answer = machine.asked(Time(1), private_data);
    match answer {
        Answer::Accept(answer) => {
            assert_eq!(answer.len(), 52);
            let response = LoginResponse::view(&answer).unwrap();
            assert_eq!(machine.poll().is_none(), response.opcode == Opcode::LOGIN_RESPONSE);
            Ok(*response)
        }
        Answer::Reject(answer) => {
            assert_eq!(answer.len(), 32);
            let reject = LoginReject::view(&answer).unwrap();
            assert_eq!((reject.opcode, reject.buf_fmt.get()), (Opcode::LOGIN_REJECT, 6));
            assert!(matches!(machine.poll(), Some(Up::Gone { .. })) && machine.is_over());
            Err(reject.reason)
        }
    }
}

/// The 56 bytes that Linux's ib_srp sends over siw, for a target whose GUIDs are all 02:11:22:ff:fe:33:44:55.
#[rustfmt::skip]
const IB_SRP: [u8; 56] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x06, 0x80, 0x00, 0x00, 0x00, 0x20, 0x44,
    0, 0, 0, 0, 0, 0, 0, 0, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x66,
    0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55, 0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x55,
    0x00, 0x44, 0, 0, 0, 0, 0, 0,
];

#[test]
fn linux_is_admitted() {
    let mut machine = target(CONFIG, TestAccess::default());
    let Answer::Accept(answer) = machine.asked(Time(1), &IB_SRP) else { panic!("it is let in") };
    let response = LoginResponse::view(&answer).unwrap();
    assert_eq!((response.req_lim_delta.get(), response.max_it_iu_len.get()), (8, 8260));
    assert_eq!((response.rsp_flags, response.buf_fmt.get()), (LoginResponse::IMMEDIATE, 6));
    let receives = machine.receives();
    assert_eq!((receives.count, receives.bytes, receives.aligned_at), (10, 8260, 68));
    assert!(machine.poll().is_none(), "not before the receives stand ready");
    assert!(!machine.may_accept());
    let Some(Up::Ready(session)) = machine.poll() else { panic!("it is ready") };
    assert_eq!(session.initiator, "0x0000000000000000021122fffe334466");
    assert_eq!(session.target.as_deref(), Some("0x021122fffe334455021122fffe334455"));
    assert_eq!(session.transport_id[..8], [4, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(session.transport_id[8..], IB_SRP[16..32]);
    assert!(!session.keeps_others);
    assert!(!machine.may_accept() && machine.poll().is_none(), "reported once");
    machine.down(Time(2), Down::Admit);
    assert!(machine.may_accept());
    machine.established(Time(3), &[]);
    assert!(machine.poll().is_none() && !machine.is_over());
}

#[test]
fn a_login_waits_a_bounded_time_for_the_session_it_reinstates() {
    let mut machine = target(CONFIG, TestAccess::default());
    assert!(matches!(machine.asked(Time(1), &IB_SRP), Answer::Accept(_)) && !machine.may_accept());
    assert!(matches!(machine.poll(), Some(Up::Ready(_))));
    let deadline = machine.deadline().unwrap();
    assert_eq!(deadline, Time(1).after(CONFIG.login_within));
    machine.tick(deadline);
    assert!(machine.is_over());
    assert!(matches!(machine.poll(), Some(Up::Gone { reason }) if reason == "login took too long"));
}

#[test]
fn a_login_that_was_granted_may_still_be_rejected() {
    let reasons = [
        (Withdrawal::NoRoom, RejectReason::INSUFFICIENT_RESOURCES),
        (Withdrawal::Unavailable, RejectReason::UNABLE_TO_ESTABLISH),
    ];
    for (why, reason) in reasons {
        let mut machine = target(CONFIG, TestAccess::default());
        assert!(matches!(machine.asked(Time(1), &IB_SRP), Answer::Accept(_)) && !machine.may_accept());
        assert!(machine.rejection().is_none());
        machine.down(Time(2), Down::Refuse(why));
        let rejection = machine.rejection().unwrap();
        let reject = LoginReject::view(&rejection).unwrap();
        assert_eq!((reject.opcode, reject.reason), (Opcode::LOGIN_REJECT, reason));
        assert!(machine.rejection().is_none() && !machine.may_accept(), "rejected once");
    }
}

#[test]
fn both_forms_and_their_tags() {
    let packed = LoginRequestRdma { tag: U64::new(77), ..login() };
    let whole = LoginRequest::from_private_data(packed.as_bytes()).unwrap();
    for bytes in [packed.as_bytes(), whole.as_bytes()] {
        assert_eq!(asked(TestAccess::default(), bytes).unwrap().tag.get(), 77);
    }
}

#[test]
fn every_reason_for_a_reject() {
    let cases: [(LoginRequestRdma, RejectReason); 8] = [
        (LoginRequestRdma { opcode: Opcode::COMMAND, ..login() }, RejectReason::UNABLE_TO_ESTABLISH),
        (LoginRequestRdma { req_it_iu_len: U32::new(63), ..login() }, RejectReason::LENGTH_TOO_LARGE),
        (
            LoginRequestRdma { req_it_iu_len: U32::new(CONFIG.max_it_iu_bytes + 1), ..login() },
            RejectReason::LENGTH_TOO_LARGE,
        ),
        (LoginRequestRdma { req_it_iu_len: U32::new(u32::MAX), ..login() }, RejectReason::LENGTH_TOO_LARGE),
        (LoginRequestRdma { req_buf_fmt: U16::new(0xe), ..login() }, RejectReason::DESCRIPTOR_FORMAT),
        (LoginRequestRdma { req_flags: 0x82, ..login() }, RejectReason::MULTI_CHANNEL),
        (LoginRequestRdma { req_flags: 0x83, ..login() }, RejectReason::MULTI_CHANNEL),
        (LoginRequestRdma { target_port_id: [1; 16], ..login() }, RejectReason::UNABLE_TO_ASSOCIATE),
    ];
    for (request, reason) in cases {
        assert_eq!(asked(TestAccess::default(), request.as_bytes()), Err(reason), "{request:?}");
    }
    for reason in [RejectReason::INSUFFICIENT_RESOURCES, RejectReason::CHANNEL_LIMIT] {
        let access = TestAccess { refusal: Some(reason), others: true };
        assert_eq!(asked(access, login().as_bytes()), Err(reason));
    }
    for len in 0..56 {
        let cut = asked(TestAccess::default(), &login().as_bytes()[..len]);
        assert_eq!(cut, Err(RejectReason::UNABLE_TO_ESTABLISH), "{len}");
    }
}

#[test]
fn immediate_data_is_granted_where_it_can_be() {
    for (offset, granted) in [(0, false), (51, false), (52, true), (68, true), (80, true), (81, false)] {
        let request = LoginRequestRdma { imm_data_offset: U16::new(offset), ..login() };
        let response = asked(TestAccess::default(), request.as_bytes()).unwrap();
        assert_eq!(response.rsp_flags == LoginResponse::IMMEDIATE, granted, "{offset}");
    }
    let request = LoginRequestRdma { req_flags: 0, ..login() };
    assert_eq!(asked(TestAccess::default(), request.as_bytes()).unwrap().rsp_flags, 0);
    let short = LoginRequestRdma { req_it_iu_len: U32::new(64), ..login() };
    assert_eq!(asked(TestAccess::default(), short.as_bytes()).unwrap().max_it_iu_len.get(), 64);
}

#[test]
fn the_response_says_what_happens_to_other_channels() {
    for (flags, others, flags_returned) in [(0, false, 0), (1, false, 0), (0, true, 1), (1, true, 2)] {
        let request = LoginRequestRdma { req_flags: flags, ..login() };
        let response = asked(TestAccess { refusal: None, others }, request.as_bytes()).unwrap();
        assert_eq!(response.rsp_flags, flags_returned);
    }
    let several = InitiatorConfig { keeps_others: true, ..INITIATOR };
    let rig = Rig::ours(several, CONFIG, 1);
    assert!(rig.device.unwrap().session.unwrap().keeps_others);
}

#[test]
fn an_initiator_hears_why_it_is_rejected() {
    let machine = Initiator::new(INITIATOR, START);
    let access = TestAccess { refusal: Some(RejectReason::CHANNEL_LIMIT), others: false };
    let mut rig = Rig::new(machine, target(CONFIG, access), 1);
    rig.connect();
    assert_eq!(
        rig.gone(),
        "login rejected with reason 0x00010006, the session has the maximum number of channels (SRP r16a section 6.4)"
    );
    assert_eq!(rig.target_gone.as_deref(), Some("login rejected: refused (SRP r16a section 6.4)"));
}

#[test]
fn an_initiator_refuses_a_response_that_is_none() {
    for answer in [&[][..], &[0xc0; 51], &[0xc1; 52], &[0xc0; 52]] {
        let mut machine = Initiator::new(INITIATOR, Time(1));
        machine.established(Time(1), answer);
        assert!(machine.is_over() && machine.poll().is_none());
        machine.closed(Time(1), "closed");
        assert!(matches!(machine.poll(), Some(Event::Gone { .. })));
    }
}

/// A message may overtake the notification that the connection is established.
#[test]
fn a_command_may_come_first() {
    let mut rig = Rig::new(
        Initiator::new(INITIATOR, START),
        target(TargetConfig { queue_depth: 4, ..CONFIG }, TestAccess::default()),
        1,
    );
    rig.device = Some(Device::default());
    let request = rig.peer.machine.request();
    let Answer::Accept(answer) = rig.target.machine.asked(rig.now, &request) else { panic!("granted") };
    assert!(!rig.target.machine.may_accept());
    rig.run();
    assert!(rig.target.machine.may_accept(), "the device has admitted it");
    rig.target.post(rig.now, &mut rig.memory, &mut rig.random);
    rig.peer.machine.established(rig.now, &answer);
    rig.run();
    rig.events.clear();
    let nothing = wire::Places::EMPTY;
    rig.execute(crate::support::command(crate::support::TEST_UNIT_READY, 0, 0, nothing, nothing));
    rig.target.machine.established(rig.now, &[]);
    rig.run();
    assert!(rig.device.unwrap().session.is_some());
}

/// The log shows which initiator requested which port.
#[test]
fn a_login_to_another_port_is_refused_by_name() {
    let mut machine = target(TargetConfig { target_port: [7; 16], ..CONFIG }, TestAccess::default());
    assert!(matches!(machine.asked(Time(1), &IB_SRP), Answer::Reject(_)));
    let Some(Up::Gone { reason }) = machine.poll() else { panic!("it is refused") };
    let asked = "another target port (initiator 0x0000000000000000021122fffe334466, target port \
                 0x021122fffe334455021122fffe334455)";
    assert_eq!(reason, format!("login rejected: {asked} (SRP r16a section 6.4)"));
}
