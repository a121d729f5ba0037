//! An initiator against a target that breaks the standard.

use super::fabric::Posted;
use super::pair::Pair;
use crate::support::{HANG, READ, Setup, command, host};
use proto::iscsi::initiator::Event;
use wire::Places;
use wire::iscsi::{DataIn, Opcode, ReadyToTransfer};
use wire::iser::Header;
use zerocopy::IntoBytes;

/// A pair with a READ whose response the target has just posted, and that response.
fn answered() -> (Pair, Vec<u8>, u32) {
    let mut pair = Pair::logged_in(Setup::default());
    pair.initiator.machine.submit(command(READ, 0, 512, host(0, 512), Places::EMPTY)).unwrap();
    for _ in 0..100 {
        if let Some(Posted::Send { header, invalidate, .. }) = pair.target.queues.posted.back() {
            let (header, stag) = (header.clone(), invalidate.expect("an STag comes back"));
            return (pair, header, stag);
        }
        pair.step();
    }
    panic!("no response");
}

/// The message ends the connection, for this reason.
fn ends(mut pair: Pair, bytes: Vec<u8>, invalidated: Option<u32>, why: &str) {
    pair.initiator.receive(pair.now, bytes, invalidated);
    pair.target.queues.posted.clear();
    pair.run();
    assert!(pair.gone().contains(why), "{}", pair.gone());
    assert!(!pair.events.iter().any(|event| matches!(event, Event::Completed(_))));
}

#[test]
fn an_stag_that_is_not_the_commands_is_not_invalidated() {
    let (pair, response, stag) = answered();
    ends(pair, response, Some(stag ^ 1), "invalidation");
    // With a message that is no response.
    let (pair, mut nop, stag) = answered();
    nop[28] = Opcode::NOP_IN.0;
    nop[28 + 16..28 + 24].fill(0xff);
    ends(pair, nop, Some(stag), "invalidation");
}

#[test]
fn data_pdus_are_refused() {
    let (pair, ..) = answered();
    let header = Header::control(None, None);
    ends(pair, [header.as_bytes(), DataIn::default().as_bytes()].concat(), None, "data-type PDU");
    let (pair, response, _) = answered();
    let mut r2t = response;
    r2t[28] = ReadyToTransfer::default().opcode;
    ends(pair, r2t, None, "data-type PDU");
}

#[test]
fn lengths_that_lie_are_refused() {
    for len in 0..76 {
        let (pair, response, _) = answered();
        ends(pair, response[..len].to_vec(), None, "shorter than its headers");
    }
    let (pair, mut response, _) = answered();
    response.push(0);
    ends(pair, response, None, "length of the message");
    let (pair, mut response, _) = answered();
    response[28 + 4] = 1;
    response.extend([0; 4]);
    ends(pair, response, None, "additional header segments");
}

#[test]
fn a_response_to_no_command_is_refused() {
    let (pair, mut response, _) = answered();
    response[28 + 16..28 + 20].fill(0x77);
    ends(pair, response, None, "no task");
}

/// Without invalidation by the target the initiator sees to it, before the command is reported.
#[test]
fn a_response_that_invalidates_nothing_will_do() {
    let (mut pair, response, _) = answered();
    let done = |pair: &Pair| pair.events.iter().any(|event| matches!(event, Event::Completed(_)));
    pair.target.queues.posted.clear();
    pair.initiator.receive(pair.now, response, None);
    assert_eq!((done(&pair), pair.initiator.queues.advertised()), (false, 1));
    pair.run();
    assert_eq!((done(&pair), pair.initiator.queues.advertised()), (true, 0));
}

/// What waits when the connection goes is over with it, and nothing is posted any more.
#[test]
fn hanging_commands_go_with_the_connection() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.initiator.machine.submit(command(HANG, 0, 0, host(0, 100), Places::EMPTY)).unwrap();
    pair.run();
    let hello = Header { flags: 0x30, ..Header::control(None, None) };
    ends(pair, [hello.as_bytes(), &[0; 48]].concat(), None, "Hello");
}
