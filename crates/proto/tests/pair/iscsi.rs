//! Our initiator machine against our target machine, on a virtual clock, with bytes split anywhere.

use crate::support::{
    BROKEN, GOOD, HANG, IDLE, INCONSISTENT, INITIATOR, Pair, READ, Setup, TARGET, TEST_UNIT_READY, WRITE,
    chap, command, host,
};
use proptest::prelude::*;
use proto::iscsi::chap::Algorithm;
use proto::iscsi::initiator::{Event, Initiator, Outcome, Residual, TEXT_PARTS_MAX};
use proto::iscsi::login::{Digests, InitiatorChap, Offers, Refusal};
use proto::services::Down;
use proto::stream::{StreamMachine as _, Transmit};
use proto::time::Time;
use std::time::Duration;
use wire::Places;
use wire::iscsi::{AsyncEvent, FunctionResponse, LoginStatus, Opcode, TaskFunction};

/// Lengths of every kind: none, less than a word, one PDU, more than a first burst, more than a burst.
const LENGTHS: [u32; 9] = [0, 1, 512, 4096, 65_535, 65_536, 200_000, 262_148, 1 << 20];

fn digests(on: bool) -> Offers {
    let digests = if on { Digests::Required } else { Digests::Never };
    Offers { header_digest: digests, data_digest: digests, ..Offers::default() }
}

#[test]
fn login_agrees_on_all_keys() {
    let theirs = Offers {
        header_digest: Digests::Required,
        data_digest: Digests::Never,
        max_recv: 4096,
        max_burst: 100_000,
        first_burst: 8192,
        max_outstanding_r2t: 3,
        ..Offers::default()
    };
    let mut pair = Pair::logged_in(Setup::with(theirs, |setup| setup.chunk = 1));
    let negotiated = pair.initiator.machine.negotiated().unwrap();
    assert!(negotiated.header_digest && !negotiated.data_digest && !negotiated.discovery);
    assert!(!negotiated.initial_r2t && negotiated.immediate_data);
    assert_eq!((negotiated.max_recv_initiator, negotiated.max_recv_target), (4096, 262_144));
    assert_eq!((negotiated.first_burst, negotiated.max_burst), (8192, 100_000));
    assert_eq!(negotiated.max_outstanding_r2t, 3);
    let session = pair.device.session.take().unwrap();
    assert_eq!((session.initiator.as_str(), session.target.as_deref()), (INITIATOR, Some(TARGET)));
    assert_eq!((session.alias.as_deref(), session.tsih), (Some("a test"), 1));
    assert!(session.transport_id.starts_with(&[0x45, 0, 0, 48]));
}

/// The target proposes what it needs where the initiator's defaults exceed what it supports.
#[test]
fn a_small_target_gets_its_way() {
    let small = Offers {
        data_digest: Digests::Required,
        immediate_data: false,
        max_burst: 8192,
        first_burst: 4096,
        max_recv: 1024,
        ..Offers::default()
    };
    let mut pair = Pair::logged_in(Setup::with(Offers::default(), |setup| setup.offers = small));
    let negotiated = pair.initiator.machine.negotiated().unwrap();
    assert!(negotiated.data_digest && !negotiated.immediate_data);
    assert_eq!(
        (negotiated.max_recv_target, negotiated.first_burst, negotiated.max_burst),
        (1024, 4096, 8192)
    );
    let done = pair.execute(command(WRITE, 0, 50_000, Places::EMPTY, host(4, 50_000)));
    assert_eq!(done.outcome, GOOD);
    assert!(pair.same(4, 0, 50_000));
}

#[test]
fn chap_works_with_every_algorithm_both_ways() {
    for algorithm in Algorithm::ALL {
        for mutual in [false, true] {
            let (credentials, own) = chap(&[algorithm], mutual);
            let pair = Pair::logged_in(Setup::with(Offers::default(), |setup| {
                setup.chunk = 64;
                setup.access.chap = Some(credentials);
                setup.plan.chap = Some(own);
            }));
            let session = pair.device.session.unwrap();
            assert_eq!(session.negotiated[0], ("AuthMethod", "CHAP".to_string()));
        }
    }
}

#[test]
fn wrong_secrets_are_refused() {
    type Case = (fn(&mut Setup), &'static str, &'static str);
    let cases: [Case; 5] = [
        (|setup| setup.plan.chap.as_mut().unwrap().own.secret = b"wrong".to_vec(), "0201", "wrong CHAP"),
        (|setup| setup.plan.chap.as_mut().unwrap().own.name = "bob".into(), "0201", "wrong CHAP"),
        (|setup| setup.plan.chap = None, "0201", "AuthMethod"),
        (|setup| setup.access.chap.as_mut().unwrap().mutual = None, "0201", "mutual CHAP"),
        (
            |setup| {
                let secret = setup.access.chap.as_ref().unwrap().secret.clone();
                setup.access.chap.as_mut().unwrap().mutual.as_mut().unwrap().1 = secret;
            },
            "0201",
            "one CHAP secret",
        ),
    ];
    for (spoil, status, why) in cases {
        let (credentials, own) = chap(&Algorithm::ALL, true);
        let mut pair = Pair::new(Setup::with(Offers::default(), |setup| {
            setup.access.chap = Some(credentials);
            setup.plan.chap = Some(own);
            spoil(setup);
        }));
        pair.run();
        assert!(pair.gone().contains(status), "{}", pair.gone());
        let gone = pair.target_gone.unwrap();
        assert!(gone.contains(why), "{gone}");
    }
    // The target is the one without the secret.
    let (mut credentials, own) = chap(&Algorithm::ALL, true);
    credentials.mutual.as_mut().unwrap().1 = b"not it".to_vec();
    let mut pair = Pair::new(Setup::with(Offers::default(), |setup| {
        setup.access.chap = Some(credentials);
        setup.plan.chap = Some(own);
    }));
    pair.run();
    assert!(pair.gone().contains("failed to authenticate"), "{}", pair.gone());
}

#[test]
fn refusals_have_their_status() {
    let cases = [
        (Refusal::NotFound, "0203"),
        (Refusal::Forbidden("not in the group".into()), "0202"),
        (Refusal::TooManySessions, "0302"),
        (Refusal::Unavailable("store failed".into()), "0301"),
    ];
    for (refusal, status) in cases {
        let mut pair =
            Pair::new(Setup::with(Offers::default(), |setup| setup.access.refusal = Some(refusal)));
        pair.run();
        assert!(pair.gone().contains(status), "{}", pair.gone());
        assert!(pair.target_gone.unwrap().contains(INITIATOR));
    }
}

#[test]
fn login_text_may_come_in_pieces() {
    let (credentials, own) = chap(&[Algorithm::Md5], true);
    let pair = Pair::logged_in(Setup::with(digests(true), |setup| {
        setup.plan.text_bytes = 25;
        setup.access.chap = Some(credentials);
        setup.plan.chap = Some(own);
    }));
    assert!(pair.initiator.machine.negotiated().unwrap().header_digest);
}

#[test]
fn discovery_lists_targets() {
    let mut pair = Pair::logged_in(Setup::with(digests(true), |setup| {
        setup.plan.target = None;
        setup.plan.offers.max_recv = 1024;
        setup.access.targets = 100;
    }));
    assert!(pair.initiator.machine.text(b"SendTargets=All\0"));
    pair.run();
    let Some(Event::Text(text)) = pair.events.pop() else { panic!("{:?}", pair.target_gone) };
    let text = String::from_utf8(text).unwrap();
    let first = format!(
        "TargetName={TARGET}\0TargetAddress=192.0.2.2:3260,7\0TargetAddress=[fe80::1]:3261,8\0TargetName={TARGET}1\0"
    );
    assert!(text.starts_with(&first));
    assert_eq!(text.matches("TargetName=").count(), 100);
    assert!(pair.initiator.machine.text(format!("SendTargets={TARGET}9\0").as_bytes()));
    pair.run();
    let Some(Event::Text(text)) = pair.events.pop() else { panic!("{:?}", pair.target_gone) };
    assert_eq!(String::from_utf8(text).unwrap().matches("TargetName=").count(), 1);
    pair.initiator.machine.logout(pair.now);
    pair.run();
    assert_eq!(pair.gone(), "logged out");
}

#[test]
fn a_normal_session_may_ask_for_its_own_target() {
    let mut pair = Pair::logged_in(Setup::default());
    for (text, answer) in [
        ("SendTargets=\0", Some("TargetName=")),
        ("SendTargets=All\0", Some("SendTargets=Reject\0")),
        ("X-com.example.key=1\0MaxRecvDataSegmentLength=4096\0", Some("X-com.example.key=NotUnderstood\0")),
        ("MaxBurstLength=4096\0", None),
    ] {
        assert!(pair.initiator.machine.text(text.as_bytes()));
        pair.run();
        match (answer, pair.events.pop()) {
            (Some(answer), Some(Event::Text(text))) => assert!(text.starts_with(answer.as_bytes())),
            (None, Some(Event::Rejected { opcode: Opcode::TEXT_REQUEST, .. })) => {}
            (_, other) => panic!("{text:?}: {other:?}, {:?}", pair.target_gone),
        }
    }
    let done = pair.execute(command(READ, 0, 50_000, host(0, 50_000), Places::EMPTY));
    assert_eq!((done.outcome, done.read_bytes), (GOOD, 50_000));
}

#[test]
fn data_of_every_length_arrives() {
    for (initial_r2t, immediate_data) in [(false, false), (false, true), (true, false), (true, true)] {
        for on in [false, true] {
            let offers = Offers { initial_r2t, immediate_data, ..digests(on) };
            let mut pair = Pair::logged_in(Setup::with(offers, |setup| setup.seed = 3));
            for (n, len) in (0u32..).zip(LENGTHS) {
                let done = pair.execute(command(WRITE, n, len, Places::EMPTY, host(77, len)));
                assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, len));
                assert!(pair.same(77, n, len), "{len}");
                let done = pair.execute(command(READ, n + 5, len, host(2 << 20, len), Places::EMPTY));
                assert_eq!((done.outcome, done.residual, done.read_bytes), (GOOD, Residual::None, len));
                assert!(pair.same(2 << 20, n + 5, len), "{len}");
            }
        }
    }
}

/// All pairs use the shortcut for every second command that may ([`Pair::step`]).
#[test]
fn what_ends_as_it_should_may_go_the_short_way() {
    let shortly = |offers: Offers, opcode: u8, device: u32, len: u32| {
        let mut pair = Pair::logged_in(Setup::with(offers, |setup| setup.chunk = 1 << 20));
        for _ in 0..20 {
            let (read, write) = (host(0, len), Places::EMPTY);
            let (read, write) = if opcode == READ { (read, write) } else { (write, read) };
            pair.execute(command(opcode, 0, device, read, write));
        }
        assert!(pair.initiator.machine.ping(b""));
        pair.run();
        assert_eq!(pair.events.pop(), Some(Event::Pong(Vec::new())), "StatSN went on");
        pair.ended_shortly
    };
    for (opcode, len) in [(READ, 512), (READ, 4095), (WRITE, 0), (WRITE, 4096), (WRITE, 200_000)] {
        assert_ne!(shortly(Offers::default(), opcode, len, len), 0, "{opcode} {len}");
    }
    let small = Offers { max_recv: 512, ..Offers::default() };
    for (offers, opcode, device, len) in [
        (Offers::default(), READ, 512, 4096),
        (Offers::default(), READ, 4096, 512),
        (Offers::default(), WRITE, 512, 4096),
        (Offers::default(), BROKEN, 0, 512),
        (digests(true), READ, 4096, 4096),
        (small, READ, 4096, 4096),
    ] {
        assert_eq!(shortly(offers, opcode, device, len), 0, "{opcode} {device} {len}");
    }
}

#[test]
fn data_that_did_not_move_is_not_counted_whatever_the_target_says() {
    let offers = Offers { initial_r2t: true, immediate_data: false, ..Offers::default() };
    let mut pair = Pair::logged_in(Setup::with(offers, |_| ()));
    for len in [512, 40_000, 300_000] {
        let done = pair.execute(command(INCONSISTENT, 0, 0, Places::EMPTY, host(0, len)));
        assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, 0));
        let done = pair.execute(command(INCONSISTENT, 0, 0, host(0, len), Places::EMPTY));
        assert_eq!((done.outcome, done.residual, done.read_bytes), (GOOD, Residual::None, 0));
        let done = pair.execute(command(WRITE, 0, len, Places::EMPTY, host(0, len)));
        assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, len));
        let done = pair.execute(command(WRITE, 0, 512, Places::EMPTY, host(0, len)));
        assert_eq!((done.outcome, done.write_bytes), (GOOD, 512));
    }
}

#[test]
fn residuals_are_counted() {
    let mut pair = Pair::logged_in(Setup::default());
    for (expected, device, residual) in [
        (8192, 512, Residual::Underflow(7680)),
        (512, 8192, Residual::Overflow(7680)),
        (512, 0, Residual::Underflow(512)),
    ] {
        let done = pair.execute(command(READ, 0, device, host(0, expected), Places::EMPTY));
        assert_eq!((done.residual, done.read_bytes), (residual, expected.min(device)));
        let done = pair.execute(command(WRITE, 0, device, Places::EMPTY, host(0, expected)));
        assert_eq!((done.outcome, done.residual), (GOOD, residual));
    }
    let done = pair.execute(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY));
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
}

#[test]
fn sense_data_comes_with_check_condition() {
    let mut pair = Pair::logged_in(Setup::with(digests(true), |setup| setup.chunk = 1));
    for write in [Places::EMPTY, host(0, 512), host(0, 100_000)] {
        let done = pair.execute(command(BROKEN, 0, 0, Places::EMPTY, write));
        let Outcome::Status { status: 2, sense: Some(sense) } = done.outcome else { panic!("{done:?}") };
        assert_eq!((sense.as_bytes()[2], sense.as_bytes()[12]), (5, 0x20));
    }
}

/// A command is aborted after any number of steps of its life.
#[test]
fn a_command_can_be_aborted_at_any_moment() {
    let offers = Offers { first_burst: 4096, max_recv: 4096, ..digests(true) };
    for opcode in [WRITE, READ, HANG] {
        for steps in 0..60 {
            let mut pair = Pair::logged_in(Setup::with(offers, |setup| {
                setup.seed = steps;
                setup.chunk = 2048;
                setup.offers.max_recv = 4096;
            }));
            let data = host(0, 30_000);
            let (read, write) = if opcode == READ { (data, Places::EMPTY) } else { (Places::EMPTY, data) };
            let task = pair.initiator.machine.submit(command(opcode, 0, 30_000, read, write)).unwrap();
            for _ in 0..steps {
                pair.step();
            }
            let done_before = pair.events.iter().any(|event| matches!(event, Event::Completed(_)));
            let asked = pair.initiator.machine.function(0, TaskFunction::ABORT_TASK, Some(task));
            assert_eq!(asked.is_none(), done_before);
            pair.run();
            let ended = pair.events.iter().filter(|event| matches!(event, Event::Completed(_))).count();
            let answered =
                pair.events.iter().filter(|event| matches!(event, Event::FunctionDone { .. })).count();
            assert_eq!(
                (ended, answered),
                (1, usize::from(asked.is_some())),
                "{opcode} {steps} {:?}",
                pair.events
            );
            assert_eq!(pair.device.running(), 0);
            pair.events.clear();
            let done = pair.execute(command(WRITE, 0, 9999, Places::EMPTY, host(5, 9999)));
            assert_eq!(done.outcome, GOOD);
            assert!(pair.same(5, 0, 9999));
        }
    }
}

#[test]
fn a_reset_ends_what_is_before_it() {
    let mut pair = Pair::logged_in(Setup::default());
    for write in [0, 512, 100_000] {
        assert!(pair.initiator.machine.submit(command(HANG, 0, 0, Places::EMPTY, host(0, write))).is_some());
    }
    pair.run();
    assert_eq!((pair.events.len(), pair.device.running()), (0, 3));
    let id = pair.initiator.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None).unwrap();
    let after = pair.initiator.machine.submit(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY));
    pair.run();
    let aborted = pair.events.iter().filter(
        |event| matches!(event, Event::Completed(completion) if completion.outcome == Outcome::Aborted),
    );
    assert_eq!((aborted.count(), pair.device.aborted), (3, 3));
    assert!(pair.events.contains(&Event::FunctionDone { id, response: FunctionResponse::COMPLETE }));
    let finished = |event: &Event| matches!(event, Event::Completed(done) if Some(done.task) == after && done.outcome == GOOD);
    assert!(pair.events.iter().any(finished));
}

#[test]
fn more_commands_than_the_window_wait_for_it() {
    let mut pair = Pair::logged_in(Setup::with(Offers::default(), |setup| {
        setup.queue_depth = 2;
        setup.initiator_depth = 64;
    }));
    for n in 0..64 {
        let (read, write) = (host(n * 9000, 9000), Places::EMPTY);
        let (read, write) = if n % 2 == 0 { (read, write) } else { (write, read) };
        let opcode = if n % 2 == 0 { READ } else { WRITE };
        assert!(pair.initiator.machine.submit(command(opcode, n * 9000, 9000, read, write)).is_some());
    }
    let one = command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY);
    assert!(pair.initiator.machine.submit(one).is_none(), "the queue is full");
    pair.run();
    assert_eq!(pair.events.len(), 64);
    assert!(pair.events.iter().all(|event| matches!(event, Event::Completed(done) if done.outcome == GOOD)));
    assert!(pair.same(0, 0, 64 * 9000));
}

#[test]
fn both_ends_keep_the_connection_alive() {
    let mut pair = Pair::logged_in(Setup::with(digests(true), |_| {}));
    pair.pass(IDLE * 20);
    assert!(pair.events.is_empty() && pair.target_gone.is_none());
    assert!(pair.initiator.machine.ping(b"are you there"));
    pair.run();
    assert_eq!(pair.events.pop(), Some(Event::Pong(b"are you there".to_vec())));
    pair.cut = true;
    pair.pass(IDLE * 3);
    assert_eq!(pair.gone(), "no answer to keep-alive");
    assert!(pair.target_gone.unwrap().contains("keep-alive"));
}

#[test]
fn a_target_that_talks_but_never_answers_the_logout_is_left() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.initiator.machine.logout(pair.now);
    let machine = &mut pair.initiator.machine;
    let mut request = Transmit::default();
    machine.transmit(pair.now, &mut request);
    // A NOP-In that requires no answer, with the expected StatSN.
    let mut nop = [0; 48];
    (nop[0], nop[1]) = (Opcode::NOP_IN.0, 0x80);
    nop[16..24].fill(0xff);
    nop[24..28].copy_from_slice(&request.bytes[28..32]);
    for _ in 0..IDLE.as_secs() {
        assert!(!machine.finished());
        pair.now = pair.now.after(Duration::from_secs(1));
        machine.header(pair.now, &nop);
        machine.tick(pair.now);
    }
    let gone = Event::Gone { reason: "no answer to the logout request".into() };
    assert_eq!(machine.poll(), Some(gone));
}

/// Takes the machine's next request; returns its header.
fn request(machine: &mut Initiator, now: Time) -> Vec<u8> {
    let mut batch = Transmit::default();
    machine.transmit(now, &mut batch);
    batch.bytes[..48].to_vec()
}

/// A login response must name the request and the session that it answers.
#[test]
fn a_login_response_for_another_session_is_refused() {
    for (at, why) in [(13, "another ISID"), (19, "another task tag")] {
        let now = Time(0);
        let mut machine = Initiator::new(Setup::default().initiator(), now);
        let asked = request(&mut machine, now);
        let mut response = [0; 48];
        response[..2].copy_from_slice(&[Opcode::LOGIN_RESPONSE.0, asked[1]]);
        response[8..14].copy_from_slice(&asked[8..14]);
        response[16..20].copy_from_slice(&asked[16..20]);
        response[at] ^= 1;
        machine.header(now, &response);
        let Some(Event::Gone { reason }) = machine.poll() else { panic!("{why} is taken") };
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn a_redirected_login_is_reported_with_the_address_or_with_what_is_wrong_with_it() {
    let redirected = |status: LoginStatus, text: &str| {
        let now = Time(0);
        let mut machine = Initiator::new(Setup::default().initiator(), now);
        let asked = request(&mut machine, now);
        let mut response = [0; 48];
        (response[0], response[7]) = (Opcode::LOGIN_RESPONSE.0, text.len() as u8);
        response[8..14].copy_from_slice(&asked[8..14]);
        response[16..20].copy_from_slice(&asked[16..20]);
        (response[36], response[37]) = (status.class, status.detail);
        machine.header(now, &response);
        let mut text = text.as_bytes().to_vec();
        text.resize(text.len().next_multiple_of(4), 0);
        if !text.is_empty() {
            machine.header(now, &text);
        }
        std::iter::from_fn(|| machine.poll()).collect::<Vec<_>>()
    };
    let (temporarily, permanently) = (LoginStatus::MOVED_TEMPORARILY, LoginStatus::MOVED_PERMANENTLY);
    for (status, address, to) in [
        (temporarily, "192.0.2.1:3261", "192.0.2.1:3261"),
        (permanently, "192.0.2.1,2", "192.0.2.1:3260"),
        (temporarily, "[2001:db8::1]:3261,1", "[2001:db8::1]:3261"),
        (permanently, "[2001:db8::1]", "[2001:db8::1]:3260"),
        (temporarily, "disks.example.org:3261", "disks.example.org:3261"),
        (permanently, "gw-2,1", "gw-2:3260"),
    ] {
        let events = redirected(status, &format!("TargetAddress={address}\0"));
        let [Event::Moved { to: moved }, Event::Gone { reason }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(moved.to_string(), to);
        assert!(reason.starts_with("login refused: target moved"), "{reason}");
    }
    for (status, text, why) in [
        (temporarily, "", "(status 0101), but it has sent no TargetAddress"),
        (permanently, "TargetAlias=x\0", "(status 0102), but it has sent no TargetAddress"),
        (temporarily, "TargetAddress=\0", "which is not an address"),
        (temporarily, "TargetAddress=192.0.2.256\0", "which is not an address"),
        (temporarily, "TargetAddress=disks.example.org:65536\0", "which is not an address"),
        (temporarily, "TargetAddress=disks..org\0", "which is not an address"),
        (temporarily, "TargetAddress=disks/a\0", "which is not an address"),
    ] {
        let events = redirected(status, text);
        let [Event::Gone { reason }] = &events[..] else { panic!("{events:?}") };
        assert!(reason.contains(why), "{reason}");
    }
}

/// The initiator's reaction to a target that answers its login like this.
fn answered(own: InitiatorChap, answers: &[&str]) -> String {
    let now = Time(0);
    let setup = Setup::with(Offers::default(), |setup| setup.plan.chap = Some(own));
    let mut machine = Initiator::new(setup.initiator(), now);
    for (stat_sn, text) in answers.iter().enumerate() {
        let asked = request(&mut machine, now);
        let mut response = [0; 48];
        (response[0], response[7], response[27]) =
            (Opcode::LOGIN_RESPONSE.0, text.len() as u8, stat_sn as u8);
        response[8..14].copy_from_slice(&asked[8..14]);
        response[16..20].copy_from_slice(&asked[16..20]);
        machine.header(now, &response);
        let mut text = text.as_bytes().to_vec();
        text.resize(text.len().next_multiple_of(4), 0);
        machine.header(now, &text);
    }
    match machine.poll() {
        Some(Event::Gone { reason }) => reason,
        other => format!("{other:?}"),
    }
}

#[test]
fn a_target_cannot_negotiate_required_authentication_away() {
    let (_, own) = chap(&[Algorithm::Sha256], false);
    let insisting = InitiatorChap { is_required: true, ..own.clone() };
    assert_eq!(answered(own.clone(), &["AuthMethod=None\0"]), "None", "it may continue");
    assert!(answered(insisting, &["AuthMethod=None\0"]).contains("chose AuthMethod=None"));
    let challenge = "CHAP_A=5\0CHAP_I=1\0CHAP_C=0x000102030405060708090a0b0c0d0e0f\0";
    assert!(answered(own, &["AuthMethod=CHAP\0", challenge]).contains("not offered"));
}

#[test]
fn a_short_challenge_is_not_answered() {
    let (_, own) = chap(&Algorithm::ALL, false);
    for (bytes, answer) in [(1, "less than 16 bytes"), (15, "less than 16 bytes"), (16, "None")] {
        let challenge = format!("CHAP_A=5\0CHAP_I=1\0CHAP_C=0x{}\0", "ab".repeat(bytes));
        let reason = answered(own.clone(), &["AuthMethod=CHAP\0", &challenge]);
        assert!(reason.contains(answer), "{bytes}: {reason}");
    }
}

#[test]
fn a_text_response_of_endless_empty_parts_ends_the_connection() {
    let mut pair = Pair::logged_in(Setup::with(Offers::default(), |setup| setup.plan.target = None));
    let (machine, now) = (&mut pair.initiator.machine, pair.now);
    assert!(machine.text(b"SendTargets=All\0"));
    for part in 0..=TEXT_PARTS_MAX {
        assert!(!machine.finished(), "after {part} parts");
        let asked = request(machine, now);
        let mut response = [0; 48];
        response[0] = Opcode::TEXT_RESPONSE.0;
        response[16..20].copy_from_slice(&asked[16..20]);
        response[24..28].copy_from_slice(&asked[28..32]);
        machine.header(now, &response);
    }
    let Some(Event::Gone { reason }) = machine.poll() else { panic!("it continues") };
    assert!(reason.contains("endless"), "{reason}");
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
    pair.down(Down::RequestLogout { within_seconds: 3 });
    pair.run();
    let asked = Event::Async { event: AsyncEvent::LOGOUT_REQUEST, parameters: [0, 0, 3] };
    assert_eq!(pair.events.pop(), Some(asked));
    pair.initiator.machine.logout(pair.now);
    pair.run();
    assert_eq!((pair.gone(), pair.target_gone.as_deref()), ("logged out", Some("logged out")));
}

/// A flipped bit anywhere is found by a digest, and never taken for data.
#[test]
fn digests_find_flipped_bits() {
    for at in (0..9000).step_by(97) {
        let mut pair = Pair::logged_in(Setup::with(digests(true), |setup| setup.chunk = 1 << 20));
        pair.initiator.machine.submit(command(WRITE, 0, 8000, Places::EMPTY, host(0, 8000))).unwrap();
        pair.initiator.fill(pair.now, &mut pair.memory);
        if !pair.initiator.corrupt(at) {
            continue;
        }
        pair.run();
        let good = |event: &Event| matches!(event, Event::Completed(done) if done.outcome == GOOD);
        assert!(!pair.events.iter().any(good), "{at}");
        assert!(pair.target_gone.is_some(), "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was negotiated and however bytes are split, reads return what was written.
    #[test]
    fn what_is_written_is_read_back(
        seed in any::<u64>(),
        chunk in prop_oneof![Just(1usize), 2..64usize, Just(8192), Just(1 << 20)],
        flags in any::<[bool; 4]>(),
        lengths in (512..20_000u32, 512..100_000u32, 512..100_000u32),
        outstanding in 1..6u16,
        commands in proptest::collection::vec((any::<bool>(), 0..40_000u32), 1..12),
    ) {
        let pick = |on| if on { Digests::Required } else { Digests::Never };
        let offers = Offers {
            header_digest: pick(flags[0]),
            data_digest: pick(flags[1]),
            initial_r2t: flags[2],
            immediate_data: flags[3],
            max_recv: lengths.0,
            first_burst: lengths.1,
            max_burst: lengths.2,
            max_outstanding_r2t: outstanding,
            ..Offers::default()
        };
        let mut pair = Pair::logged_in(Setup::with(offers, |setup| {
            setup.seed = seed;
            setup.chunk = chunk;
            setup.queue_depth = 3;
            setup.offers.max_recv = lengths.2;
        }));
        let mut areas = Vec::new();
        for (n, (reads, len)) in (0u32..).zip(commands) {
            let at = n * 40_000;
            let request = if reads {
                command(READ, at, len, host(at, len), Places::EMPTY)
            } else {
                command(WRITE, at, len, Places::EMPTY, host(at, len))
            };
            pair.initiator.machine.submit(request).unwrap();
            areas.push((at, len));
        }
        pair.run();
        prop_assert_eq!(pair.events.len(), areas.len(), "{:?}", pair.target_gone);
        for event in &pair.events {
            let good = matches!(event, Event::Completed(done)
                if done.outcome == GOOD && done.residual == Residual::None);
            prop_assert!(good, "{event:?}");
        }
        for (at, len) in areas {
            prop_assert!(pair.same(at, at, len));
        }
        pair.initiator.machine.logout(pair.now);
        pair.run();
        prop_assert_eq!(pair.gone(), "logged out");
    }
}
