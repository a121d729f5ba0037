use super::*;
use crate::memory::Region;
use rustix::event::{EventfdFlags, eventfd};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

fn ring() -> Uring {
    Uring::new(Arena::new(1 << 20).unwrap(), Waker::new().unwrap()).unwrap()
}

#[test]
fn a_core_sleeps_only_with_its_wake_up_armed() {
    let mut ring = ring();
    let mut completions = Vec::new();
    ring.turn(Wait::No, &mut completions);
    // A wake-up whose completion arrives when the core is already up.
    assert!(ring.waker.fall_asleep());
    ring.waker.wake();
    ring.waker.get_up();
    while ring.ring.completion().is_empty() {
        ring.ring.submit_and_wait(1).unwrap();
    }
    ring.turn(Wait::AtMost(Duration::from_millis(1)), &mut completions);
    assert!(ring.wake_is_armed, "it slept, and nothing would have woken it");
    assert!(completions.is_empty());
}

#[test]
fn reaping_queues_nothing_and_the_rest_of_a_send_follows() {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let places = ring.arena.take(100).unwrap();
    let span = places.iter().next().unwrap();
    for (byte, number) in ring.arena.bytes_mut(span).iter_mut().zip(0..) {
        *byte = number;
    }
    let index = ring.requests.start(Tag(7), Kind::Send { socket: ours.as_raw_fd() }).unwrap();
    ring.requests.lend_all(index, &mut ring.arena, &[span]);
    ring.in_flight += 1;
    let nothing = opcode::Nop::new().build().user_data(CANCEL);
    // SAFETY: the entry points to nothing.
    while unsafe { ring.ring.submission().push(&nothing) }.is_ok() {}

    let mut completions = Vec::new();
    ring.finish(index, 10, &mut completions);
    assert!(ring.ring.submission().is_full(), "the queue was emptied from within");
    while completions.is_empty() {
        ring.turn(Wait::Forever, &mut completions);
    }
    let all = Completion { tag: Tag(7), result: Ok(100) };
    assert_eq!(completions, [all]);
    let mut rest = [0; 90];
    theirs.read_exact(&mut rest).unwrap();
    assert!(rest.iter().copied().eq(10..100));
}

#[test]
fn a_connect_without_room_closes_its_socket() {
    let mut ring = ring();
    while ring.requests.start(Tag(0), Kind::Bare).is_some() {}
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ring.start(Tag(3), Kind::Connect { socket: ours.into_raw_fd() }, |_, _, _| unreachable!("no room"));
    theirs.set_nonblocking(true).unwrap();
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the other end is still open");
    let mut completions = Vec::new();
    ring.turn(Wait::No, &mut completions);
    let refused = Completion { tag: Tag(3), result: Err(Errno(libc::ENOBUFS)) };
    assert_eq!(completions, [refused]);
}

#[test]
fn the_clock_is_read_with_work_and_now_and_then_while_a_core_spins() {
    let mut ring = ring();
    let mut completions = Vec::new();
    while ring.spins != 1 {
        ring.turn(Wait::No, &mut completions);
    }
    let mut readings = vec![ring.now];
    for _ in 0..2 * SPINS_PER_CLOCK {
        ring.turn(Wait::No, &mut completions);
        if readings.last() != Some(&ring.now) {
            readings.push(ring.now);
        }
    }
    assert_eq!(readings.len(), 3, "once in {SPINS_PER_CLOCK} turns");

    let reads_clock = |ring: &mut Uring| {
        let before = ring.now;
        ring.turn(Wait::No, &mut Vec::new());
        ring.now > before
    };
    assert!(!reads_clock(&mut ring), "it spins on");
    ring.worked();
    assert!(reads_clock(&mut ring), "how long the work took");
    assert!(!reads_clock(&mut ring));
    ring.fail(Tag(1), rustix::io::Errno::INVAL);
    assert!(reads_clock(&mut ring), "a completion");
    assert!(reads_clock(&mut ring), "how long it took");
}

/// Bytes without a short period.
fn pattern(len: usize) -> Vec<u8> {
    let mut draw = draws(1);
    (0..len).map(|_| draw(256) as u8).collect()
}

/// Numbers below a bound.
fn draws(seed: u32) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % bound
    }
}

fn handle(socket: &UnixStream) -> Handle {
    Handle(socket.as_raw_fd())
}

/// Requests a receive of a hot connection.
fn recv_hot(ring: &mut Uring, socket: &UnixStream, bytes: u32, tag: u64) -> Places {
    let into = ring.arena.take(bytes).unwrap();
    ring.hot.heat(socket.as_raw_fd());
    ring.recv(handle(socket), &into, Tag(tag));
    into
}

/// Writes all of it, in pieces of lengths drawn from a seed, with pauses.
fn write_in_pieces(socket: &mut UnixStream, mut left: &[u8], seed: u32) {
    let mut draw = draws(seed);
    while !left.is_empty() {
        let (some, rest) = left.split_at((1 + draw(20_000)).min(left.len()));
        socket.write_all(some).unwrap();
        left = rest;
        if draw(3) == 0 {
            std::thread::yield_now();
        }
    }
}

/// Places filled with these bytes.
fn filled(ring: &mut Uring, mut bytes: &[u8]) -> Places {
    let places = ring.arena.take(bytes.len() as u32).unwrap();
    for span in places.iter() {
        let (some, rest) = bytes.split_at(span.len as usize);
        ring.arena.bytes_mut(span).copy_from_slice(some);
        bytes = rest;
    }
    places
}

#[test]
fn a_stream_stays_whole_where_a_connection_goes_between_direct_calls_and_the_ring() {
    const BYTES: usize = 8 << 20;
    let seed = std::process::id();
    println!("seed {seed}");
    let mut draw = draws(seed);
    let mut ring = Uring::new(Arena::new(16 << 20).unwrap(), Waker::new().unwrap()).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let bytes = pattern(BYTES);
    let (mut reads, mut writes, sent) = (theirs.try_clone().unwrap(), theirs, bytes.clone());
    let writer = std::thread::spawn(move || write_in_pieces(&mut writes, &sent, seed ^ 1));
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; BYTES];
        reads.read_exact(&mut got).unwrap();
        got
    });

    let (receive, send) = (Tag(1), Tag(2));
    let (mut got, mut given) = (Vec::new(), 0);
    let mut into = Places::EMPTY;
    let mut from = None;
    let mut is_receiving = false;
    let mut completions = Vec::new();
    // How receives ended (listed, or by the ring), and sends (in full at once, in part, or by the ring).
    let (mut direct, mut by_ring, mut at_once, mut in_part) = (0, 0, 0, 0);
    while got.len() < BYTES || given < BYTES || from.is_some() {
        match draw(2) {
            0 => ring.hot.heat(ours.as_raw_fd()),
            _ => ring.hot.received(ours.as_raw_fd(), Time(0), Time(1_000_000)),
        }
        if !is_receiving && got.len() < BYTES {
            into = ring.arena.take(1 + draw(30_000) as u32).unwrap();
            ring.recv(handle(&ours), &into, receive);
            is_receiving = true;
        }
        if from.is_none() && given < BYTES {
            let most = if draw(2) == 0 { 1000 } else { 250_000 };
            let len = (1 + draw(most)).min(BYTES - given);
            let places = filled(&mut ring, &bytes[given..][..len]);
            let fills = ring.fills.len();
            ring.send(handle(&ours), &Vec::from_iter(places.iter()), send);
            at_once += usize::from(ring.is_ready());
            in_part += ring.fills.len() - fills;
            from = Some((places, len));
        }
        let is_listed = !ring.hot.receives.is_empty();
        let wait = if draw(2) == 0 { Wait::No } else { Wait::AtMost(Duration::from_micros(200)) };
        ring.turn(wait, &mut completions);
        for completion in completions.drain(..) {
            let moved = completion.result.unwrap() as usize;
            if completion.tag == send {
                let (places, len) = from.take().unwrap();
                assert_eq!(moved, len);
                ring.arena.give(&places);
                given += len;
            } else {
                let all: Vec<u8> = into.iter().flat_map(|span| ring.arena.bytes(span).to_vec()).collect();
                got.extend_from_slice(&all[..moved]);
                ring.arena.give(&into);
                is_receiving = false;
                direct += usize::from(is_listed && wait == Wait::No);
                by_ring += usize::from(!is_listed);
            }
        }
    }
    writer.join().unwrap();
    assert!(got == bytes, "what was received is not what was sent");
    assert!(reader.join().unwrap() == bytes, "what was sent is not what arrived");
    let ways = [direct, by_ring, at_once, in_part];
    assert!(ways.iter().all(|times| *times > 0), "a way was not taken: {ways:?}");
}

#[test]
fn a_hot_connection_is_received_from_without_the_ring_and_answered_at_once() {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut completions = Vec::new();
    ring.turn(Wait::No, &mut completions);
    recv_hot(&mut ring, &ours, 100, 1);
    theirs.write_all(&[5; 60]).unwrap();
    ring.turn(Wait::No, &mut completions);
    assert_eq!(completions, [Completion { tag: Tag(1), result: Ok(60) }]);

    let span = ring.arena.take(100).unwrap().iter().next().unwrap();
    ring.send(handle(&ours), &[span], Tag(2));
    assert_eq!(theirs.read(&mut [0; 200]).unwrap(), 100, "before the turn");
    // A core that sleeps between commands submits and waits in one call.
    ring.turn(Wait::AtMost(Duration::ZERO), &mut completions);
    ring.send(handle(&ours), &[span], Tag(3));
    assert_eq!(theirs.read(&mut [0; 200]).unwrap_err().kind(), ErrorKind::WouldBlock);
    while completions.len() < 3 {
        ring.turn(Wait::Forever, &mut completions);
    }
    assert_eq!(theirs.read(&mut [0; 200]).unwrap(), 100);
}

#[test]
fn a_hot_connection_goes_to_the_ring_when_the_core_sleeps_or_it_stays_quiet() {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut completions = Vec::new();
    recv_hot(&mut ring, &ours, 100, 1);
    let writer = std::thread::spawn(move || {
        theirs.write_all(&[5; 60]).unwrap();
        theirs
    });
    while completions.is_empty() {
        ring.turn(Wait::Forever, &mut completions);
    }
    assert_eq!(completions, [Completion { tag: Tag(1), result: Ok(60) }]);
    let mut theirs = writer.join().unwrap();

    completions.clear();
    recv_hot(&mut ring, &ours, 100, 2);
    while !ring.hot.receives.is_empty() {
        ring.turn(Wait::No, &mut completions);
    }
    theirs.write_all(&[5; 60]).unwrap();
    while completions.is_empty() {
        ring.turn(Wait::No, &mut completions);
    }
    assert_eq!(completions, [Completion { tag: Tag(2), result: Ok(60) }]);
    assert!(!ring.hot.takes_receive(ours.as_raw_fd()), "it was quiet for a while");
}

#[test]
fn more_hot_connections_than_a_turn_tries_go_to_the_ring() {
    let mut ring = ring();
    let mut completions = Vec::new();
    let mut pairs: Vec<_> = (0..4).map(|_| UnixStream::pair().unwrap()).collect();
    for ((ours, _), tag) in pairs.iter().zip(0..) {
        recv_hot(&mut ring, ours, 100, tag);
    }
    assert_eq!(ring.hot.receives.len(), hot::HOT_MAX + 1);
    ring.turn(Wait::No, &mut completions);
    assert!(ring.hot.receives.is_empty() && completions.is_empty());
    for (_, theirs) in &mut pairs {
        theirs.write_all(&[1]).unwrap();
    }
    while completions.len() < pairs.len() {
        ring.turn(Wait::Forever, &mut completions);
    }
    let mut tags: Vec<u64> = completions.iter().map(|completion| completion.tag.0).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3]);

    // For a while the ring keeps all of them, then they are tried again.
    let socket = pairs[0].0.as_raw_fd();
    let (crowded, over) = (Time(1 << 40), Time(1 << 40).after(Duration::from_millis(1)));
    ring.hot.receives.extend(0..=hot::HOT_MAX as u32);
    ring.hot.received(socket, crowded, crowded);
    assert!(!ring.hot.turn(Wait::No, crowded));
    ring.hot.receives.clear();
    assert!(
        !ring.hot.turn(Wait::No, crowded) && !ring.hot.takes_receive(socket) && !ring.hot.takes_send(socket)
    );
    assert!(ring.hot.turn(Wait::No, over) && ring.hot.takes_receive(socket) && ring.hot.takes_send(socket));
}

#[test]
fn a_hot_receive_ends_with_its_socket_and_with_its_ring() {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut completions = Vec::new();
    recv_hot(&mut ring, &ours, 100, 1);
    drop(ring);
    theirs.write_all(&[9]).unwrap();
    assert_eq!((&ours).read(&mut [0; 8]).unwrap(), 1, "the ring has let go of it");

    let mut ring = self::ring();
    recv_hot(&mut ring, &ours, 100, 2);
    ring.shutdown(handle(&ours));
    while completions.is_empty() {
        ring.turn(Wait::No, &mut completions);
    }
    assert_eq!(completions, [Completion { tag: Tag(2), result: Ok(0) }]);
    let span = ring.arena.take(100).unwrap().iter().next().unwrap();
    ring.hot.heat(ours.as_raw_fd());
    ring.send(handle(&ours), &[span], Tag(3));
    completions.clear();
    ring.turn(Wait::No, &mut completions);
    assert_eq!(completions, [Completion { tag: Tag(3), result: Err(Errno(libc::EPIPE)) }]);
}

#[test]
fn what_a_socket_has_room_for_is_sent_without_a_completion() {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut completions = Vec::new();
    ring.turn(Wait::AtMost(Duration::ZERO), &mut completions);
    let region = Region::map(4096).unwrap();
    region.fill_zero(0, 4096);
    let shared = Segment::Payload(region.span(0, 10).unwrap());
    let bytes = pattern(4 << 16);
    let span = ring.arena.take(1000).unwrap().iter().next().unwrap();
    ring.arena.bytes_mut(span).copy_from_slice(&bytes[..1000]);
    let own = Segment::Payload(span.slice(0, 30));
    let segments = [Segment::Bytes { len: 5 }, own, shared, Segment::Bytes { len: 20 }];
    assert_eq!(ring.send_now(handle(&ours), &bytes[100..125], &segments), Some(Ok(65)));
    let mut got = [1; 200];
    assert_eq!(theirs.read(&mut got).unwrap(), 65);
    assert_eq!(got[..65], [&bytes[100..105], &bytes[..30], &[0; 10], &bytes[105..125]].concat());
    // None of it is lent.
    ring.arena.bytes_mut(span);

    let all = [Segment::Bytes { len: 4 << 16 }];
    let Some(Ok(sent)) = ring.send_now(handle(&ours), &bytes, &all) else {
        panic!("there was room for some")
    };
    assert!(0 < sent && sent < 4 << 16, "a socket has room for 200 KiB or so, not for {sent} bytes");
    assert_eq!(ring.send_now(handle(&ours), &bytes, &all), None, "more calls than a turn may make");
    ring.turn(Wait::No, &mut completions);
    assert_eq!(ring.send_now(handle(&ours), &bytes, &all), Some(Ok(0)), "there is no room");
    let mut got = vec![0; sent as usize];
    theirs.read_exact(&mut got).unwrap();
    assert!(got[..] == bytes[..sent as usize]);
    let summed = [Segment::SumStart, own, Segment::Sum];
    assert_eq!(ring.send_now(handle(&ours), &[], &summed), None, "it is to be summed");
    ring.turn(Wait::No, &mut completions);
    drop(theirs);
    assert_eq!(ring.send_now(handle(&ours), &bytes, &all), Some(Err(Errno(libc::EPIPE))));
    assert!(completions.is_empty());
}

/// Has a socket receive, watches something, and has the socket receive again; returns whether the core is
/// shared after that.
fn is_shared_after(watch: impl FnOnce(&mut Uring, Handle)) -> bool {
    let mut ring = ring();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
    let mut completions = Vec::new();
    let mut receive = |ring: &mut Uring, completions: &mut Vec<Completion>| {
        let places = ring.arena.take(100).unwrap();
        theirs.write_all(&[1]).unwrap();
        ring.recv(handle(&ours), &places, Tag(1));
        let before = completions.len();
        while completions.len() == before {
            ring.turn(Wait::Forever, completions);
        }
    };
    receive(&mut ring, &mut completions);
    watch(&mut ring, Handle(event.as_raw_fd()));
    while completions.len() < 2 {
        ring.turn(Wait::Forever, &mut completions);
    }
    receive(&mut ring, &mut completions);
    ring.is_shared()
}

#[test]
fn a_core_is_shared_by_peers_and_not_by_timers_or_events_of_its_own() {
    assert!(!is_shared_after(|ring, event| ring.watch(event, Tag(2))));
    assert!(is_shared_after(|ring, event| ring.watch_peers(event, Tag(2))));
}

#[test]
fn reads_go_to_the_device_while_others_are_prepared() {
    let mut ring = ring();
    let mut completions = Vec::new();
    ring.turn(Wait::No, &mut completions);
    let file = tempfile::tempfile().unwrap();
    (&file).write_all(&pattern(1 << 16)).unwrap();
    let many = READS_AT_ONCE as u64 + 1;
    let places: Vec<Places> = (0..many).map(|_| ring.arena.take(4096).unwrap()).collect();
    for (into, number) in places.iter().zip(0..many) {
        ring.read(Handle(file.as_raw_fd()), number * 4096, into, Tag(number));
        let waiting = (number as usize + 1) % READS_AT_ONCE;
        assert_eq!((ring.reads.len(), ring.ring.submission().len()), (waiting, 0));
    }
    while (completions.len() as u64) < many {
        ring.turn(Wait::Forever, &mut completions);
    }
    let bytes = pattern(1 << 16);
    for completion in completions {
        assert_eq!(completion.result, Ok(4096));
        let span = places[completion.tag.0 as usize].iter().next().unwrap();
        assert!(*ring.arena.bytes(span) == bytes[completion.tag.0 as usize * 4096..][..4096]);
    }
}
