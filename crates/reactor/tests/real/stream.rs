//! The stream driver with a scripted machine, over loopback TCP.
//!
//! The script's PDUs: a header of 8 bytes (length of the payload, kind), payload, padding to 4 bytes, and
//! four bytes that are a CRC32C of all this for kinds with a digest, and unused for others.

use crate::common::*;
use proptest::prelude::*;
use proto::services::{TaskId, Up};
use proto::stream::{Segment, StreamMachine, Transmit, Want};
use proto::time::Time;
use reactor::crc::crc32c;
use reactor::io::{Io, Tag, Wait};
use reactor::memory::Region;
use reactor::stream::Stream;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::IntoRawFd;
use std::time::Duration;
use wire::{Places, Span};

const HEADER: u32 = 8;
const RECV: Tag = Tag(1);
const SEND: Tag = Tag(2);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Placed,
    PlacedDigest,
    Skipped,
    SkippedDigest,
}

impl Kind {
    fn has_digest(self) -> bool {
        matches!(self, Kind::PlacedDigest | Kind::SkippedDigest)
    }

    fn is_placed(self) -> bool {
        matches!(self, Kind::Placed | Kind::PlacedDigest)
    }
}

const KINDS: [Kind; 4] = [Kind::Placed, Kind::PlacedDigest, Kind::Skipped, Kind::SkippedDigest];

fn pdu(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes().to_vec();
    bytes.extend((kind as u32).to_le_bytes());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let digest = if kind.has_digest() { crc32c(&bytes) } else { 0 };
    bytes.extend(digest.to_le_bytes());
    bytes
}

/// Records what it was fed.
#[derive(Default)]
struct Script {
    want: Option<(Kind, Places, u32)>,
    /// The sum of the header.
    sum: u32,
    /// Places for future payloads.
    places: Vec<Places>,
    fed: Vec<(Kind, Places, bool)>,
    end: Option<Option<String>>,
    is_silent: bool,
    owed: Vec<Segment>,
    owed_bytes: Vec<u8>,
    done: Vec<TaskId>,
}

impl StreamMachine for Script {
    type Event = Up;

    fn want(&self) -> Want {
        if self.is_silent {
            return Want::Nothing;
        }
        match self.want {
            None => Want::Header { len: HEADER },
            Some((kind, place, len)) => {
                let padding = len.next_multiple_of(4) - len;
                let (pad, digest) =
                    if kind.has_digest() { (padding, Some(self.sum)) } else { (padding + 4, None) };
                match kind.is_placed() {
                    true => Want::Body { place, pad, digest },
                    false => Want::Skip { len, pad, digest },
                }
            }
        }
    }

    fn header(&mut self, _: Time, bytes: &[u8]) {
        let len = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let kind = KINDS[bytes[4] as usize];
        let place = if kind.is_placed() { self.places.remove(0) } else { Places::EMPTY };
        self.sum = crc32c(bytes);
        self.want = Some((kind, place, len));
    }

    fn body(&mut self, _: Time, digest_ok: bool) {
        let (kind, place, _) = self.want.take().unwrap();
        self.fed.push((kind, place, digest_ok));
    }

    fn closed(&mut self, _: Time, error: Option<&str>) {
        assert!(self.end.is_none(), "closed twice");
        self.end = Some(error.map(str::to_owned));
    }

    fn poll(&mut self) -> Option<Up> {
        None
    }

    fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    fn transmit(&mut self, _: Time, batch: &mut Transmit) {
        batch.segments.append(&mut self.owed);
        batch.bytes.append(&mut self.owed_bytes);
        batch.done.append(&mut self.done);
    }

    fn finished(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn tick(&mut self, _: Time) {}
}

/// A connection as in the engine, and its peer.
struct Rig {
    ring: Uring,
    stream: Stream,
    machine: Script,
    peer: TcpStream,
    pushed: Vec<TaskId>,
}

impl Rig {
    fn new(arena_bytes: u64) -> Rig {
        let (ours, peer) = tcp_pair();
        Rig::over(arena_bytes, ours, peer)
    }

    fn over(arena_bytes: u64, ours: TcpStream, peer: TcpStream) -> Rig {
        let socket = reactor::io::Handle(ours.into_raw_fd());
        Rig {
            ring: ring_with(arena_bytes, Waker::new().unwrap()),
            stream: Stream::new(socket, RECV, SEND, Vec::new()),
            machine: Script::default(),
            peer,
            pushed: Vec::new(),
        }
    }

    fn work(&mut self) {
        while self.stream.feed(&mut self.ring, &mut self.machine) {}
        self.stream.end_turn();
        self.stream.flush(&mut self.ring, &mut self.machine);
    }

    fn turn(&mut self) {
        self.turn_waiting(if self.stream.wants_more() { Wait::No } else { Wait::Forever });
    }

    fn turn_waiting(&mut self, wait: Wait) {
        let mut completions = Vec::new();
        self.ring.turn(wait, &mut completions);
        for done in completions {
            match done.tag {
                RECV => self.stream.received(&mut self.ring, done.result),
                _ => {
                    self.stream.sent(&mut self.ring, &mut self.machine, done.result, &mut self.pushed);
                }
            }
        }
    }

    fn run_until(&mut self, mut done: impl FnMut(&Rig) -> bool) {
        self.work();
        while !done(self) {
            self.turn();
            self.work();
        }
    }

    /// The peer sends `bytes` in pieces of these sizes, cyclically, and closes.
    fn feed(&mut self, bytes: Vec<u8>, pieces: Vec<usize>) {
        let mut peer = self.peer.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            let mut rest = &bytes[..];
            for piece in pieces.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*piece).min(rest.len()));
                peer.write_all(now).unwrap();
                rest = later;
            }
            peer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        self.run_until(|rig| rig.machine.end.is_some());
        writer.join().unwrap();
    }

    fn close(mut self) {
        self.stream.shutdown(&mut self.ring);
        self.run_until(|rig| rig.stream.quiet());
        let before = self.ring.arena().in_use();
        self.stream.close(&mut self.ring);
        assert!(self.ring.arena().in_use() <= before);
    }
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..64, 0usize..9000, 60_000usize..70_000, Just(262_144usize)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn every_payload_reaches_its_place_however_it_is_cut(
        script in proptest::collection::vec((0usize..4, sizes()), 1..12),
        pieces in proptest::collection::vec(prop_oneof![1usize..100, 1000usize..100_000], 1..5),
    ) {
        let mut rig = Rig::new(16 << 20);
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (n, (kind, size)) in script.iter().enumerate() {
            let payload = pattern(*size, n as u32 * 2 + 1);
            bytes.extend(pdu(KINDS[*kind], &payload));
            if KINDS[*kind].is_placed() {
                let place = rig.ring.arena().take(*size as u32).unwrap_or(Places::EMPTY);
                rig.machine.places.push(place);
                expected.push((place, payload));
            }
        }
        rig.feed(bytes, pieces);
        prop_assert_eq!(rig.machine.end.clone(), Some(None));
        prop_assert_eq!(rig.machine.fed.len(), script.len());
        prop_assert!(rig.machine.fed.iter().all(|(_, _, digest_ok)| *digest_ok));
        for (place, payload) in expected {
            prop_assert!(content(&mut rig.ring, &place) == payload);
            rig.ring.arena().give(&place);
        }
        rig.run_until(|rig| rig.stream.quiet());
        rig.stream.close(&mut rig.ring);
        prop_assert_eq!(rig.ring.arena().in_use(), 0);
    }
}

#[test]
fn a_wrong_digest_is_reported() {
    for (kind, size) in [(Kind::PlacedDigest, 100), (Kind::PlacedDigest, 65_536), (Kind::SkippedDigest, 100)]
    {
        let mut rig = Rig::new(1 << 20);
        rig.machine.places = vec![rig.ring.arena().take(size as u32).unwrap()];
        let mut bytes = pdu(kind, &pattern(size, 1));
        bytes[20] ^= 1;
        rig.feed(bytes, vec![1 << 20]);
        assert!(!rig.machine.fed[0].2);
        rig.close();
    }
}

#[test]
fn an_end_inside_a_pdu_is_reported_as_such() {
    let mut rig = Rig::new(1 << 20);
    rig.feed(vec![0; 5], vec![5]);
    assert!(rig.machine.end.clone().unwrap().unwrap().contains("in the middle"));
    rig.close();
}

#[test]
fn an_aborted_payload_is_not_written_any_more() {
    let mut rig = Rig::new(1 << 20);
    let place = rig.ring.arena().take(65_536).unwrap();
    rig.machine.places = vec![place];
    let mut peer = rig.peer.try_clone().unwrap();
    let bytes = pdu(Kind::PlacedDigest, &pattern(65_536, 1));
    peer.write_all(&bytes[..20_000]).unwrap();
    rig.run_until(|rig| rig.machine.want.is_some());
    // The abort: its place is released at once, though a recv into it may be in flight.
    rig.machine.want = Some((Kind::SkippedDigest, Places::EMPTY, 65_536));
    rig.ring.arena().give(&place);
    peer.write_all(&bytes[20_000..]).unwrap();
    peer.write_all(&pdu(Kind::Skipped, b"next")).unwrap();
    rig.run_until(|rig| rig.machine.fed.len() == 2);
    assert!(rig.machine.fed[0].2);
    assert!(rig.ring.arena().in_use() <= 65_536);
    rig.close();
}

#[test]
fn an_idle_connection_holds_one_small_buffer() {
    let mut rig = Rig::new(1 << 20);
    rig.work();
    assert_eq!(rig.ring.arena().in_use(), 4096);
    let mut peer = rig.peer.try_clone().unwrap();
    peer.write_all(&pdu(Kind::Skipped, &[0; 50_000])).unwrap();
    rig.run_until(|rig| rig.machine.fed.len() == 1);
    peer.write_all(&pdu(Kind::Skipped, b"a quiet message")).unwrap();
    rig.run_until(|rig| rig.machine.fed.len() == 2);
    assert_eq!(rig.ring.arena().in_use(), 4096);
    rig.close();
}

/// What is read ahead of a large body has to be copied; between small ones it saves receives.
#[test]
fn little_is_read_ahead_of_large_bodies() {
    let mut rig = Rig::new(1 << 20);
    let mut peer = rig.peer.try_clone().unwrap();
    for n in 1..4 {
        let place = rig.ring.arena().take(60_000).unwrap();
        rig.machine.places.push(place);
        peer.write_all(&pdu(Kind::Placed, &[n; 60_000])).unwrap();
        rig.run_until(|rig| rig.machine.fed.len() == usize::from(n));
        assert!(rig.ring.arena().bytes(place.iter().next().unwrap()).iter().all(|byte| *byte == n));
        rig.ring.arena().give(&place);
        assert_eq!(rig.ring.arena().in_use(), 4096);
    }
    peer.write_all(&pdu(Kind::Skipped, &[0; 3000]).repeat(60)).unwrap();
    let mut most = 0;
    while rig.machine.fed.len() < 63 {
        rig.turn();
        rig.work();
        most = most.max(rig.ring.arena().in_use());
    }
    assert_eq!(most, 65_536);
    rig.close();
}

/// A peer that spins works on these answers while the rest of its commands is processed. The clock does not
/// advance between two turns, so that nothing is sent for having waited; whether the connection is hot
/// depends on the machine's load, and is retried.
#[test]
fn many_answers_of_one_receive_leave_at_once_where_the_core_spins() {
    const COMMANDS: usize = 100;
    let mut rig = Rig::new(1 << 20);
    let burst = pdu(Kind::Skipped, &[0; 1000]).repeat(COMMANDS);
    let mut peer = rig.peer.try_clone().unwrap();
    for _ in 0..1000 {
        peer.write_all(&burst).unwrap();
        let end = rig.machine.fed.len() + COMMANDS;
        let (mut waits, mut is_ahead) = (false, false);
        while rig.machine.fed.len() < end || !rig.stream.has_sent() {
            let before = rig.machine.fed.len();
            rig.turn_waiting(Wait::No);
            while rig.stream.feed(&mut rig.ring, &mut rig.machine) {}
            let answered = rig.machine.fed.len() - before;
            (0..answered).for_each(|_| rig.stream.answers(&rig.ring).push_bytes(&[1; 48]));
            rig.stream.end_turn();
            let sent = rig.stream.gather(&mut rig.ring, &mut rig.machine);
            is_ahead |= sent.is_some() && !waits && answered >= 8 && rig.machine.fed.len() < end;
            waits = sent.is_none() && !rig.stream.has_sent();
            if let Some(result) = sent {
                rig.stream.sent(&mut rig.ring, &mut rig.machine, result, &mut rig.pushed);
            }
        }
        peer.read_exact(&mut vec![0; COMMANDS * 48]).unwrap();
        if is_ahead {
            return rig.close();
        }
    }
    panic!("answers always waited for the last command");
}

#[test]
fn answers_wait_for_what_is_already_here_and_for_nothing_else() {
    let mut rig = Rig::new(1 << 20);
    let answer = |rig: &mut Rig| {
        while rig.stream.feed(&mut rig.ring, &mut rig.machine) {
            rig.machine.owed.push(Segment::Bytes { len: 1 });
            rig.machine.owed_bytes.push(1);
        }
        rig.stream.end_turn();
        if let Some(result) = rig.stream.gather(&mut rig.ring, &mut rig.machine) {
            rig.stream.sent(&mut rig.ring, &mut rig.machine, result, &mut rig.pushed);
        }
    };
    let mut peer = rig.peer.try_clone().unwrap();
    // The first recv brings 4096 bytes, and with them one whole PDU.
    peer.write_all(&pdu(Kind::Skipped, &[0; 3000]).repeat(60)).unwrap();
    answer(&mut rig);
    while rig.machine.fed.is_empty() {
        rig.turn();
        answer(&mut rig);
    }
    assert_eq!(rig.machine.fed.len(), 1);
    assert!(rig.stream.has_sent() && rig.stream.wants_more());
    while rig.machine.fed.len() < 60 || rig.machine.owes() || !rig.stream.has_sent() {
        rig.turn();
        answer(&mut rig);
    }
    peer.read_exact(&mut [0; 60]).unwrap();
    // Nothing follows this one.
    peer.write_all(&pdu(Kind::Skipped, &[0; 3000])).unwrap();
    while rig.machine.fed.len() < 61 {
        rig.turn();
        answer(&mut rig);
    }
    assert!(!rig.machine.owes() && !rig.stream.wants_more());
    rig.close();
}

#[test]
fn a_detached_stream_continues_elsewhere() {
    let mut rig = Rig::new(1 << 20);
    let mut bytes = pdu(Kind::Skipped, b"first");
    bytes.extend(pdu(Kind::Skipped, b"second"));
    bytes.extend(pdu(Kind::SkippedDigest, &pattern(30_000, 1)));
    rig.peer.write_all(&bytes).unwrap();
    rig.work();
    while rig.machine.fed.is_empty() {
        rig.turn();
        while rig.machine.fed.is_empty() && rig.stream.feed(&mut rig.ring, &mut rig.machine) {}
    }
    assert!(rig.stream.is_movable());
    let (socket, unread) = rig.stream.detach(&mut rig.ring);
    assert_eq!(rig.ring.arena().in_use(), 0);
    rig.ring = ring_with(1 << 20, Waker::new().unwrap());
    rig.stream = Stream::new(socket, RECV, SEND, unread);
    rig.run_until(|rig| rig.machine.fed.len() == 3);
    assert!(rig.machine.fed[2].2);
    rig.close();
}

#[test]
fn a_held_stream_becomes_quiet() {
    let mut rig = Rig::new(1 << 20);
    rig.work();
    rig.stream.hold(true);
    assert!(!rig.stream.quiet());
    rig.peer.write_all(&pdu(Kind::Skipped, b"ping")).unwrap();
    rig.run_until(|rig| rig.machine.fed.len() == 1);
    assert!(rig.stream.is_movable());
    rig.stream.hold(false);
    rig.close();
}

#[test]
fn nothing_is_read_while_nothing_is_wanted() {
    let mut rig = Rig::new(1 << 20);
    rig.machine.is_silent = true;
    rig.work();
    assert!(rig.stream.quiet());
    rig.peer.write_all(&pdu(Kind::Skipped, b"later")).unwrap();
    rig.machine.is_silent = false;
    rig.run_until(|rig| rig.machine.fed.len() == 1);
    rig.close();
}

#[test]
fn a_loud_peer_gets_its_share_of_each_turn_and_no_more() {
    /// Headers and bodies in one turn, in PDUs.
    const SHARE: usize = 256 / 2;
    let mut rig = Rig::new(1 << 20);
    rig.peer.write_all(&pdu(Kind::Skipped, b"").repeat(300)).unwrap();
    rig.work();
    rig.turn();
    for fed in [SHARE, 2 * SHARE] {
        while rig.stream.feed(&mut rig.ring, &mut rig.machine) {}
        assert_eq!(rig.machine.fed.len(), fed);
        assert!(rig.stream.wants_more(), "it continues without an event to come");
        let more = rig.stream.feed(&mut rig.ring, &mut rig.machine);
        assert!(!more, "whatever else happens in the turn");
        rig.stream.end_turn();
    }
    rig.work();
    assert_eq!(rig.machine.fed.len(), 300);
    assert!(!rig.stream.wants_more());
    rig.close();
}

/// A batch with header bytes, payload from the arena and from a store's memory, and sums over both.
fn batch(rig: &mut Rig, store: &Region, pdus: usize) -> Vec<u8> {
    let mut expected = Vec::new();
    let own = pattern(3000, 1);
    let place = filled(&mut rig.ring, &own);
    let own_span = place.iter().next().unwrap();
    for n in 0..pdus {
        let bytes = pattern(20_000, n as u32 * 2 + 1);
        let at = n as u64 * 32_768;
        let staged = filled(&mut rig.ring, &bytes);
        store.copy_in(at, rig.ring.arena(), &staged);
        rig.ring.arena().give(&staged);
        let span: Span = store.span(at, 20_000).unwrap();
        let header = [n as u8; 48];
        let pad = [0u8; 3];
        let len = |bytes: &[u8]| Segment::Bytes { len: bytes.len() as u32 };
        let owed = [
            len(&header),
            Segment::Payload(span),
            Segment::SumStart,
            Segment::Payload(own_span),
            Segment::Payload(span),
            len(&pad),
            Segment::Sum,
        ];
        rig.machine.owed.extend(owed);
        rig.machine.owed_bytes.extend([&header[..], &pad[..]].concat());
        let summed = [&own[..], &bytes[..], &pad[..]].concat();
        let digest = crc32c(&summed).to_le_bytes();
        expected.extend([&header[..], &bytes[..], &summed[..], &digest[..]].concat());
        rig.machine.done.push(TaskId { slot: n as u16, generation: 1 });
    }
    expected
}

fn sends_whole(arena_bytes: u64, pdus: usize) {
    let mut rig = Rig::new(arena_bytes);
    let store = Region::map(4 << 20).unwrap();
    let expected = batch(&mut rig, &store, pdus);
    let mut peer = rig.peer.try_clone().unwrap();
    let len = expected.len();
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; len];
        peer.read_exact(&mut received).unwrap();
        received
    });
    rig.run_until(|rig| rig.pushed.len() == pdus);
    assert!(reader.join().unwrap() == expected);
    assert!(rig.stream.has_sent());
    rig.close();
}

#[test]
fn a_batch_is_sent_in_order_with_right_sums() {
    sends_whole(16 << 20, 60);
}

#[test]
fn a_send_in_flight_counts_all_its_bytes() {
    let mut rig = Rig::new(16 << 20);
    let store = Region::map(4 << 20).unwrap();
    let expected = batch(&mut rig, &store, 2);
    rig.stream.flush(&mut rig.ring, &mut rig.machine);
    let send = rig.stream.in_flight().expect("a send");
    assert_eq!(send.bytes, expected.len() as u64);
    rig.run_until(|rig| rig.stream.in_flight().is_none());
    rig.close();
}

#[test]
fn what_was_given_has_left_although_there_is_always_more_to_send() {
    let mut rig = Rig::new(16 << 20);
    let store = Region::map(4 << 20).unwrap();
    batch(&mut rig, &store, 2);
    rig.stream.flush(&mut rig.ring, &mut rig.machine);
    let given = rig.stream.given();
    batch(&mut rig, &store, 2);
    while !rig.stream.have_left(given) {
        rig.turn();
        rig.stream.flush(&mut rig.ring, &mut rig.machine);
    }
    assert!(!rig.stream.has_sent() && !rig.stream.have_left(rig.stream.given()));
    rig.run_until(|rig| rig.pushed.len() == 4);
    rig.close();
}

#[test]
fn a_batch_is_sent_also_where_memory_is_short() {
    sends_whole(3 * 65_536, 40);
}

#[test]
fn what_has_no_room_at_once_follows_in_order() {
    let (ours, peer) = tcp_pair();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 65_536).unwrap();
    let mut rig = Rig::over(4 << 20, ours, peer);
    let store = Region::map(4 << 20).unwrap();
    let own = pattern(3000, 1);
    let place = filled(&mut rig.ring, &own);
    let mut expected = Vec::new();
    for n in 0..100u32 {
        let bytes = pattern(20_000, n * 2 + 1);
        let (at, staged) = (u64::from(n) * 32_768, filled(&mut rig.ring, &bytes));
        store.copy_in(at, rig.ring.arena(), &staged);
        rig.ring.arena().give(&staged);
        let header = [n as u8; 48];
        rig.machine.owed.extend([
            Segment::Bytes { len: 48 },
            Segment::Payload(store.span(at, 20_000).unwrap()),
            Segment::Payload(place.iter().next().unwrap()),
        ]);
        rig.machine.owed_bytes.extend(header);
        expected.extend([&header[..], &bytes[..], &own[..]].concat());
    }
    rig.machine.done.push(TaskId { slot: 1, generation: 1 });
    rig.ring.turn(Wait::AtMost(Duration::ZERO), &mut Vec::new());
    assert_eq!(rig.stream.gather(&mut rig.ring, &mut rig.machine), None, "a part is left");
    rig.peer.set_nonblocking(true).unwrap();
    assert_eq!(rig.peer.peek(&mut [0]).unwrap(), 1, "nothing was sent at once");
    rig.peer.set_nonblocking(false).unwrap();
    let mut peer = rig.peer.try_clone().unwrap();
    let len = expected.len();
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; len];
        peer.read_exact(&mut received).unwrap();
        received
    });
    rig.run_until(|rig| !rig.pushed.is_empty());
    assert!(reader.join().unwrap() == expected);
    assert!(rig.stream.has_sent());
    rig.close();
}

#[test]
fn a_failed_send_ends_the_connection_and_reports_no_push() {
    let mut rig = Rig::new(4 << 20);
    let store = Region::map(4 << 20).unwrap();
    rig.work();
    rustix::net::sockopt::set_socket_linger(&rig.peer, Some(std::time::Duration::ZERO)).unwrap();
    let (_unused, other) = tcp_pair();
    drop(std::mem::replace(&mut rig.peer, other));
    batch(&mut rig, &store, 60);
    rig.run_until(|rig| rig.machine.end.is_some() && rig.stream.quiet());
    assert!(rig.machine.end.clone().unwrap().is_some());
    assert!(rig.pushed.is_empty());
    rig.stream.close(&mut rig.ring);
}
