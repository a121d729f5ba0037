//! A peer that violates a rule gets a Terminate that identifies it, and nothing else.

use crate::support::crc32c;
use crate::support::link::{CONFIG, Side, Solo};
use proptest::prelude::*;
use proto::iwarp::memory::Access;
use proto::iwarp::setup::Depths;
use proto::iwarp::violation::Violation;
use proto::iwarp::{Config, Event};
use wire::Places;

/// The length of buffers that the tests advertise.
const BUFFER: u32 = 1000;

/// A responder that has accepted a peer, with two receives and three registered buffers.
struct Victim {
    solo: Solo,
    /// For reading, for writing, and one that was invalidated.
    stags: [u32; 3],
}

impl Victim {
    fn new(crc: bool) -> Victim {
        Victim::asked(crc, [0, 4, 0, 2])
    }

    /// The request had these depths.
    fn asked(crc: bool, words: [u8; 4]) -> Victim {
        let mut solo = Solo::responder(Config { crc, depths: Depths { ird: 2, ord: 2 }, ..CONFIG });
        solo.exchange(&[&b"MPA ID Req Frame\x10\x02\x00\x04"[..], &words].concat());
        let machine = &mut solo.end.machine;
        machine.accept(solo.now, b"").unwrap();
        let mut register = |at, remote_read| {
            let access = Access { remote_read, remote_write: !remote_read };
            machine.register(Side::Responder.places(at, BUFFER), access).unwrap()
        };
        let stags = [register(0, true), register(1000, false), register(2000, false)];
        assert!(machine.invalidate(stags[2]));
        for id in [1, 2] {
            machine.post_receive(id, Side::Responder.places(3000, 2000)).unwrap();
        }
        solo.exchange(&[]);
        solo.events.clear();
        Victim { solo, stags }
    }

    /// The machine answers this FPDU with a Terminate that identifies the violation, and ends.
    fn refuses(mut self, segment: &[u8], crc: bool, violation: Violation) {
        let before = self.solo.memory.regions.clone();
        let answer = self.solo.exchange(&fpdu(segment, crc));
        assert!(before == self.solo.memory.regions, "{violation:?}: nothing is placed");
        self.got_terminate(&answer, segment, crc, violation);
    }

    fn got_terminate(&self, answer: &[u8], segment: &[u8], crc: bool, violation: Violation) {
        assert_eq!(self.solo.gone(), violation.to_string());
        let code = violation.code();
        let tagged = segment[0] & 0x80 != 0;
        let is_request = !tagged && segment[1] & 15 == 1;
        let (headers, copied) = match (code.layer, code.error_type) {
            (2, _) => (0, 0),
            (0, 1) if is_request => (0xe0, 18 + 28),
            (0 | 1, _) => (0xc0, if tagged { 14 } else { 18 }),
            other => panic!("{other:?}"),
        };
        let mut payload = vec![code.layer << 4 | code.error_type, code.code, headers, 0];
        if headers > 0 {
            payload.extend((segment.len() as u16).to_be_bytes());
            payload.extend(&segment[..copied]);
        }
        let mut terminate = vec![0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
        terminate.extend(payload);
        assert_eq!(answer, fpdu(&terminate, crc), "{violation:?}");
    }
}

/// A DDP segment with length, padding and CRC.
fn fpdu(segment: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = u16::try_from(segment.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(segment);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let sum = if crc { crc32c(&bytes) } else { 0 };
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn tagged(control: [u8; 2], stag: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut segment = control.to_vec();
    segment.extend(stag.to_be_bytes());
    segment.extend(offset.to_be_bytes());
    segment.extend(vec![0x77; len]);
    segment
}

fn untagged(control: [u8; 2], numbers: [u32; 4], payload: &[u8]) -> Vec<u8> {
    let mut segment = control.to_vec();
    numbers.iter().for_each(|number| segment.extend(number.to_be_bytes()));
    segment.extend(payload);
    segment
}

/// The payload of a Read Request.
fn read_request(size: u32, stag: u32, offset: u64) -> Vec<u8> {
    let mut payload = vec![0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8];
    payload.extend(size.to_be_bytes());
    payload.extend(stag.to_be_bytes());
    payload.extend(offset.to_be_bytes());
    payload
}

/// Every violation of a single segment.
fn cases(stags: [u32; 3]) -> Vec<(Vec<u8>, Violation)> {
    let [readable, writable, gone] = stags;
    let send = |numbers, len: usize| untagged([0x41, 0x43], numbers, &vec![1; len]);
    let read = |msn, payload: &[u8]| untagged([0x41, 0x41], [0, 1, msn, 0], payload);
    vec![
        (vec![0x81, 0x40], Violation::FpduLength),
        (tagged([0xc1, 0x40], writable, 0, 0)[..13].to_vec(), Violation::FpduLength),
        (send([0, 0, 1, 0], 0)[..17].to_vec(), Violation::FpduLength),
        (tagged([0xc0, 0x40], writable, 0, 9), Violation::TaggedVersion),
        (tagged([0xc2, 0x40], writable, 0, 9), Violation::TaggedVersion),
        (untagged([0x43, 0x43], [0, 0, 1, 0], &[1; 9]), Violation::UntaggedVersion),
        (tagged([0xc1, 0x80], writable, 0, 9), Violation::RdmapVersion),
        (untagged([0x41, 0xc3], [0, 0, 1, 0], &[1; 9]), Violation::RdmapVersion),
        (tagged([0xc1, 0x40], gone, 0, 9), Violation::InvalidStag),
        (tagged([0xc1, 0x40], writable ^ 0x1000, 0, 9), Violation::InvalidStag),
        (tagged([0xc1, 0x40], readable, 0, 9), Violation::NotForWriting),
        (tagged([0xc1, 0x40], writable, 992, 9), Violation::Bounds),
        (tagged([0xc1, 0x40], writable, 1 << 40, 9), Violation::Bounds),
        (tagged([0xc1, 0x40], writable, u64::MAX - 3, 9), Violation::OffsetWrap),
        (tagged([0xc1, 0x43], writable, 0, 9), Violation::UnexpectedOpcode),
        (tagged([0xc1, 0x4f], writable, 0, 9), Violation::UnexpectedOpcode),
        (tagged([0xc1, 0x42], writable, 0, 9), Violation::UnexpectedOpcode),
        (untagged([0x41, 0x40], [0, 0, 1, 0], &[1; 9]), Violation::UnexpectedOpcode),
        (untagged([0x41, 0x47], [0, 0, 1, 0], &[1; 9]), Violation::UnexpectedOpcode),
        (untagged([0x41, 0x43], [0, 1, 1, 0], &[1; 28]), Violation::UnexpectedOpcode),
        (untagged([0x41, 0x41], [0, 2, 1, 0], &[1; 28]), Violation::UnexpectedOpcode),
        (send([0, 3, 1, 0], 9), Violation::InvalidQueue),
        (send([0, u32::MAX, 1, 0], 9), Violation::InvalidQueue),
        (send([0, 0, 0, 0], 9), Violation::InvalidMsn),
        (send([0, 0, 2, 0], 9), Violation::InvalidMsn),
        (send([0, 0, 1, 1], 9), Violation::InvalidOffset),
        (send([0, 0, 1, 0], 2001), Violation::MessageTooLong),
        (read(2, &read_request(9, readable, 0)), Violation::InvalidMsn),
        (untagged([0x41, 0x41], [0, 1, 1, 4], &read_request(9, readable, 0)), Violation::InvalidOffset),
        (untagged([0x01, 0x41], [0, 1, 1, 0], &read_request(9, readable, 0)), Violation::MalformedHeader),
        (read(1, &[0; 27]), Violation::MalformedHeader),
        (read(1, &[0; 29]), Violation::MessageTooLong),
        (read(1, &read_request(9, gone, 0)), Violation::InvalidSource),
        (read(1, &read_request(9, writable, 0)), Violation::NotForReading),
        (read(1, &read_request(9, readable, 992)), Violation::SourceBounds),
        (read(1, &read_request(u32::MAX, readable, 0)), Violation::SourceBounds),
        (read(1, &read_request(9, readable, u64::MAX)), Violation::SourceWrap),
        (untagged([0x41, 0x47], [0, 2, 1, 0], &[0; 3]), Violation::MalformedHeader),
        (untagged([0x41, 0x47], [0, 2, 2, 0], &[0; 4]), Violation::InvalidMsn),
        (untagged([0x41, 0x47], [0, 2, 1, 0], &[0; 129]), Violation::MessageTooLong),
    ]
}

#[test]
fn every_violation_has_its_terminate() {
    for crc in [false, true] {
        let count = cases([0; 3]).len();
        for n in 0..count {
            let mut victim = Victim::new(crc);
            let (segment, violation) = cases(victim.stags).swap_remove(n);
            if violation == Violation::FpduLength {
                // At least the bytes of the shortest header must arrive before it is checked.
                let mut bytes = fpdu(&segment, crc);
                bytes.resize(bytes.len().max(16), 0);
                let answer = victim.solo.exchange(&bytes);
                victim.got_terminate(&answer, &segment, crc, violation);
                continue;
            }
            victim.refuses(&segment, crc, violation);
        }
    }
}

/// Violations that take more than one segment.
#[test]
fn a_message_must_go_on_as_it_began() {
    let second: [([u8; 2], [u32; 4], usize, Violation); 6] = [
        ([0x41, 0x43], [0, 0, 1, 99], 9, Violation::InvalidOffset),
        ([0x41, 0x43], [0, 0, 1, 0], 9, Violation::InvalidOffset),
        ([0x41, 0x43], [0, 0, 2, 100], 9, Violation::InvalidMsn),
        ([0x41, 0x45], [0, 0, 1, 100], 9, Violation::UnexpectedOpcode),
        ([0x41, 0x43], [7, 0, 1, 100], 9, Violation::UnexpectedOpcode),
        ([0x41, 0x43], [0, 0, 1, 100], 1901, Violation::MessageTooLong),
    ];
    for (control, numbers, len, violation) in second {
        let mut victim = Victim::new(true);
        let first = untagged([0x01, 0x43], [0, 0, 1, 0], &[1; 100]);
        assert!(victim.solo.exchange(&fpdu(&first, true)).is_empty());
        assert!(victim.solo.events.is_empty());
        victim.refuses(&untagged(control, numbers, &vec![1; len]), true, violation);
    }
}

#[test]
fn a_send_needs_a_receive() {
    let mut victim = Victim::new(false);
    for msn in [1, 2] {
        victim.solo.exchange(&fpdu(&untagged([0x41, 0x43], [0, 0, msn, 0], b"hello"), false));
        let received = Event::Received { id: msn.into(), len: 5, solicited: false, invalidated: None };
        assert_eq!(victim.solo.events.pop(), Some(received));
    }
    victim.refuses(&untagged([0x41, 0x43], [0, 0, 3, 0], b""), false, Violation::NoBuffer);
}

#[test]
fn more_reads_than_ird_are_refused() {
    let mut victim = Victim::new(false);
    let request =
        |msn, stag| fpdu(&untagged([0x41, 0x41], [0, 1, msn, 0], &read_request(500, stag, 0)), false);
    // Once a read was answered, it does not count.
    let answer = victim.solo.exchange(&request(1, victim.stags[0]));
    let mut response = tagged([0xc1, 0x42], 9, 8, 0);
    response.extend(&victim.solo.memory.regions[1][..500]);
    assert_eq!(answer, fpdu(&response, false));
    let mut bytes = request(2, victim.stags[0]);
    bytes.extend(request(3, victim.stags[0]));
    bytes.extend(request(4, victim.stags[0]));
    victim.solo.end.inject(&bytes);
    while victim.solo.end.feed(victim.solo.now, &mut victim.solo.memory) {}
    let answer = victim.solo.exchange(&[]);
    assert_eq!(victim.solo.gone(), Violation::NoBuffer.to_string());
    assert_eq!(answer[20..24], [0x12, 2, 0xc0, 0], "the two that are within IRD are not answered any more");
}

#[test]
fn only_what_was_advertised_can_be_invalidated() {
    for (n, known) in [(0, true), (1, true), (2, false)] {
        let mut victim = Victim::new(true);
        let stag = victim.stags[n];
        let segment = untagged([0x41, 0x46], [stag, 0, 1, 0], b"");
        let answer = victim.solo.exchange(&fpdu(&segment, true));
        if known {
            let received = Event::Received { id: 1, len: 0, solicited: true, invalidated: Some(stag) };
            assert_eq!(victim.solo.events.pop(), Some(received));
            victim.refuses(&tagged([0xc1, 0x40], stag, 0, 9), true, Violation::InvalidStag);
        } else {
            victim.got_terminate(&answer, &segment, true, Violation::CannotInvalidate);
        }
    }
}

/// The answer to a read must match the request, and arrive only once.
#[test]
fn a_read_response_must_fit_its_request() {
    type Case = (fn(&mut Vec<u8>), Violation);
    let spoil: [Case; 7] = [
        (|response| response[2] ^= 1, Violation::InvalidStag),
        (|response| response[13] ^= 1, Violation::Bounds),
        (|response| response[6] ^= 0x80, Violation::Bounds),
        (|response| response.truncate(14 + 99), Violation::Bounds),
        (|response| response.push(0), Violation::Bounds),
        (|response| response[0] = 0x81, Violation::Bounds),
        (|response| *response = tagged([0xc1, 0x42], 0, 0, 0), Violation::Bounds),
    ];
    for (spoil, violation) in spoil {
        let mut victim = Victim::new(true);
        victim.solo.exchange(&fpdu(&tagged([0xc1, 0x40], 0, 0, 0), true));
        victim.solo.end.machine.read(5, Side::Responder.places(0, 100), 1, 2).unwrap();
        let request = victim.solo.exchange(&[]);
        let sink = u32::from_be_bytes(request[20..24].try_into().unwrap());
        assert_eq!(
            request[20..48],
            [&sink.to_be_bytes()[..], &[0; 8], &[0, 0, 0, 100, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]].concat()
        );
        let mut response = tagged([0xc1, 0x42], sink, 0, 100);
        spoil(&mut response);
        victim.refuses(&response, true, violation);
    }
    let mut victim = Victim::new(true);
    victim.solo.exchange(&fpdu(&tagged([0xc1, 0x40], 0, 0, 0), true));
    victim.solo.end.machine.read(5, Side::Responder.places(0, 100), 1, 2).unwrap();
    let request = victim.solo.exchange(&[]);
    let sink = u32::from_be_bytes(request[20..24].try_into().unwrap());
    // The sink of a read is not a writable buffer.
    let response = tagged([0xc1, 0x42], sink, 0, 100);
    victim.solo.exchange(&fpdu(&response, true));
    assert_eq!(victim.solo.events, [Event::Read { id: 5 }]);
    victim.refuses(&response, true, Violation::UnexpectedOpcode);
    let mut victim = Victim::new(true);
    victim.solo.exchange(&fpdu(&tagged([0xc1, 0x40], 0, 0, 0), true));
    victim.solo.end.machine.read(5, Side::Responder.places(0, 100), 1, 2).unwrap();
    let request = victim.solo.exchange(&[]);
    let sink = u32::from_be_bytes(request[20..24].try_into().unwrap());
    victim.refuses(&tagged([0xc1, 0x40], sink, 0, 100), true, Violation::InvalidStag);
}

#[test]
fn a_wrong_crc_is_found_in_every_message() {
    for n in 0..4 {
        let mut victim = Victim::new(true);
        let segment = match n {
            0 => tagged([0xc1, 0x40], victim.stags[1], 0, 9),
            1 => untagged([0x41, 0x43], [0, 0, 1, 0], b"hello"),
            2 => untagged([0x41, 0x41], [0, 1, 1, 0], &read_request(9, victim.stags[0], 0)),
            _ => untagged([0x41, 0x47], [0, 2, 1, 0], &[0; 4]),
        };
        let mut bytes = fpdu(&segment, true);
        *bytes.last_mut().unwrap() ^= 1;
        let answer = victim.solo.exchange(&bytes);
        victim.got_terminate(&answer, &segment, true, Violation::Crc);
        assert_eq!(victim.solo.events.len(), 1);
    }
}

/// The first message of a peer-to-peer initiator is one of those announced (RFC 6581 section 9.2).
#[test]
fn a_peer_to_peer_initiator_must_say_that_it_is_ready() {
    let write = tagged([0xc1, 0x40], 0, 0, 0);
    let send = untagged([0x41, 0x43], [0, 0, 1, 0], b"");
    let read = untagged([0x41, 0x41], [0, 1, 1, 0], &read_request(0, 0, 0));
    for (words, right) in [([0x80, 1, 0x80, 1], 0), ([0xc0, 1, 0, 1], 1), ([0x80, 1, 0x40, 1], 2)] {
        for (n, segment) in [&write, &send, &read].into_iter().enumerate() {
            let mut victim = Victim::asked(true, words);
            if n != right {
                victim.refuses(segment, true, Violation::ReadyToReceive);
                continue;
            }
            let answer = victim.solo.exchange(&fpdu(segment, true));
            let expected = if n == 2 { fpdu(&tagged([0xc1, 0x42], 9, 8, 0), true) } else { Vec::new() };
            assert_eq!(answer, expected);
            assert!(victim.solo.events.is_empty());
        }
    }
    let long = tagged([0xc1, 0x40], 0, 0, 4);
    Victim::asked(true, [0xc0, 1, 0xc0, 1]).refuses(&long, true, Violation::ReadyToReceive);
    let long = untagged([0x41, 0x43], [0, 0, 1, 0], b"hello");
    Victim::asked(true, [0xc0, 1, 0xc0, 1]).refuses(&long, true, Violation::ReadyToReceive);
}

#[test]
fn a_terminate_of_the_peer_is_reported_with_its_meaning() {
    let mut victim = Victim::new(false);
    let payload = [0x11, 1, 0xc0, 0, 0, 23, 0xc1, 0x40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let answer = victim.solo.exchange(&fpdu(&untagged([0x41, 0x47], [0, 2, 1, 0], &payload), false));
    assert!(answer.is_empty());
    let reason = "terminated by the peer: base or bounds violation (DDP, error type 1, code 1)";
    assert_eq!(victim.solo.gone(), reason);
    assert_eq!(victim.solo.end.machine.post_receive(9, Places::EMPTY), Err(proto::iwarp::Refused::State));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever arrives: nothing outside the advertised buffers changes, and the connection ends cleanly.
    #[test]
    fn nothing_else_is_touched(
        segments in proptest::collection::vec((any::<[u8; 2]>(), any::<[u8; 12]>(), 0..40usize, 0..4usize), 1..20),
    ) {
        let mut victim = Victim::new(false);
        let before = victim.solo.memory.regions[1].clone();
        for (control, rest, len, stag) in segments {
            let mut segment = vec![control[0] & 0xc3 | 1, 0x40 | control[1] & 7];
            match victim.stags.get(stag) {
                Some(stag) => segment.extend(stag.to_be_bytes()),
                None => segment.extend(&rest[..4]),
            }
            segment.extend([0, 0, 0, rest[5] & 3, 0, 0, rest[6] & 3, rest[7]]);
            segment.extend(vec![rest[8]; len]);
            victim.solo.exchange(&fpdu(&segment, false));
        }
        let after = &victim.solo.memory.regions[1];
        prop_assert!(before[..1000] == after[..1000], "for reading only");
        prop_assert!(before[2000..3000] == after[2000..3000], "invalidated");
        prop_assert!(before[5000..] == after[5000..]);
        victim.solo.end.machine.close(victim.solo.now);
        victim.solo.exchange(&[]);
        let gone = matches!(victim.solo.events.last(), Some(Event::Gone { .. }));
        prop_assert!(gone);
    }
}
