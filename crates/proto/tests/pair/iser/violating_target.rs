//! An initiator against a target that violates the standard.

use super::rig::Rig;
use crate::support::fabric::Op;
use crate::support::{HANG, READ, Setup, command, host};
use proto::iscsi::initiator::Event;
use wire::Places;
use wire::iscsi::{DataIn, Opcode, ReadyToTransfer};
use wire::iser::Header;
use zerocopy::IntoBytes;

/// Two machines with a READ whose response the target has just posted, and that response.
fn answered() -> (Rig, Vec<u8>, u32) {
    let mut rig = Rig::logged_in(Setup::default());
    rig.submit(command(READ, 0, 512, host(0, 512), Places::EMPTY));
    for _ in 0..100 {
        rig.post();
        if let Some(Op::Send { header, invalidate, .. }) = rig.target.port.queue.back() {
            let (header, stag) = (header.clone(), invalidate.expect("an STag comes back"));
            return (rig, header, stag);
        }
        rig.step();
    }
    panic!("no response");
}

/// The message ends the connection, for this reason.
fn ends(mut rig: Rig, bytes: Vec<u8>, invalidated: Option<u32>, why: &str) {
    rig.peer.inject(rig.now, &mut rig.memory, &bytes, invalidated);
    rig.target.port.queue.clear();
    rig.run();
    assert!(rig.gone().contains(why), "{}", rig.gone());
    assert!(!rig.events.iter().any(|event| matches!(event, Event::Completed(_))));
}

#[test]
fn an_stag_that_is_not_the_commands_is_not_invalidated() {
    let (rig, response, stag) = answered();
    ends(rig, response, Some(stag ^ 1), "invalidation");
    // With a message that is not a response.
    let (rig, mut nop, stag) = answered();
    nop[28] = Opcode::NOP_IN.0;
    nop[28 + 16..28 + 24].fill(0xff);
    ends(rig, nop, Some(stag), "invalidation");
}

#[test]
fn data_pdus_are_refused() {
    let (rig, ..) = answered();
    let header = Header::control(None, None);
    ends(rig, [header.as_bytes(), DataIn::default().as_bytes()].concat(), None, "data-type PDU");
    let (rig, response, _) = answered();
    let mut r2t = response;
    r2t[28] = ReadyToTransfer::default().opcode;
    ends(rig, r2t, None, "data-type PDU");
}

#[test]
fn inconsistent_lengths_are_refused() {
    for len in 0..76 {
        let (rig, response, _) = answered();
        ends(rig, response[..len].to_vec(), None, "shorter than its headers");
    }
    let (rig, mut response, _) = answered();
    response.push(0);
    ends(rig, response, None, "length of the message");
    let (rig, mut response, _) = answered();
    response[28 + 4] = 1;
    response.extend([0; 4]);
    ends(rig, response, None, "additional header segments");
}

#[test]
fn a_response_to_no_command_is_refused() {
    let (rig, mut response, _) = answered();
    response[28 + 16..28 + 20].fill(0x77);
    ends(rig, response, None, "no task");
}

/// Without invalidation by the target, the initiator invalidates it before the command is reported.
#[test]
fn a_response_that_invalidates_nothing_will_do() {
    let (mut rig, response, _) = answered();
    let done = |rig: &Rig| rig.events.iter().any(|event| matches!(event, Event::Completed(_)));
    rig.target.port.queue.clear();
    rig.peer.inject(rig.now, &mut rig.memory, &response, None);
    assert_eq!((done(&rig), rig.peer.port.advertised()), (false, 1));
    rig.run();
    assert_eq!((done(&rig), rig.peer.port.advertised()), (true, 0));
}

/// What waits when the connection is lost ends with it, and nothing more is posted.
#[test]
fn hanging_commands_go_with_the_connection() {
    let mut rig = Rig::logged_in(Setup::default());
    rig.submit(command(HANG, 0, 0, host(0, 100), Places::EMPTY));
    rig.run();
    let hello = Header { flags: 0x30, ..Header::control(None, None) };
    ends(rig, [hello.as_bytes(), &[0; 48]].concat(), None, "Hello");
}
