//! The ring against the real kernel.

use crate::common::*;
use reactor::io::{Allocate, Completion, Errno, Handle, Io, Tag, Wait};
use reactor::mailbox;
use reactor::memory::Region;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use wire::{Places, Span};

fn span(places: &Places) -> Span {
    places.iter().next().unwrap()
}

#[test]
fn a_connection_is_made_used_and_closed() {
    let mut ring = ring();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ring.accept(handle(&listener), Tag(1));
    ring.connect(listener.local_addr().unwrap(), Tag(2));
    let mut made = complete(&mut ring, 2);
    made.sort_by_key(|completion| completion.tag.0);
    let [server, client] = [made[0], made[1]].map(|made| Handle(made.result.unwrap() as i32));

    let from = filled(&mut ring, b"hello");
    let into = ring.arena().take(100).unwrap();
    ring.send(client, &[span(&from)], Tag(3));
    ring.recv(server, &into, Tag(4));
    let mut moved = complete(&mut ring, 2);
    moved.sort_by_key(|completion| completion.tag.0);
    assert_eq!([moved[0].result, moved[1].result], [Ok(5), Ok(5)]);
    assert_eq!(content(&mut ring, &into.slice(0, 5)), b"hello");

    ring.recv(server, &into, Tag(5));
    ring.close(client);
    assert_eq!(complete_one(&mut ring).result, Ok(0));
    ring.close(server);
}

#[test]
fn sockets_of_the_ring_do_not_delay() {
    let mut ring = ring();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    ring.accept(handle(&listener), Tag(1));
    ring.connect(listener.local_addr().unwrap(), Tag(2));
    for made in complete(&mut ring, 2) {
        // SAFETY: the test owns the socket that was made for it.
        let socket = unsafe { OwnedFd::from_raw_fd(made.result.unwrap() as i32) };
        assert!(rustix::net::sockopt::tcp_nodelay(&socket).unwrap());
    }
}

#[test]
fn a_refused_connection_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut ring = ring();
    ring.connect(address, TAG);
    let refused = rustix::io::Errno::CONNREFUSED.raw_os_error();
    assert_eq!(complete_one(&mut ring).result, Err(Errno(refused)));
}

#[test]
fn a_large_send_of_many_spans_arrives_whole_and_in_order() {
    let mut ring = ring();
    let (ours, mut theirs) = tcp_pair();
    let store = Region::map(1 << 20).unwrap();
    let bytes = pattern(1 << 20, 3);
    for (n, part) in bytes.chunks(65_536).enumerate() {
        let places = filled(&mut ring, part);
        store.copy_in(n as u64 * 65_536, ring.arena(), &places);
        ring.arena().give(&places);
    }
    // Small spans of the arena and of the store, alternating: 512 of them, more than the socket accepts at
    // once.
    let header = filled(&mut ring, &[0xee; 48]);
    let spans: Vec<Span> =
        (0..256u64).flat_map(|n| [span(&header), store.span(n * 4096, 4096).unwrap()]).collect();
    ring.send(handle(&ours), &spans, TAG);
    let reader = std::thread::spawn(move || {
        let mut received = vec![0; 256 * (48 + 4096)];
        theirs.read_exact(&mut received).unwrap();
        received
    });
    assert_eq!(complete_one(&mut ring).result, Ok(256 * (48 + 4096)));
    for (n, pdu) in reader.join().unwrap().chunks(48 + 4096).enumerate() {
        assert_eq!(pdu[..48], [0xee; 48]);
        assert_eq!(pdu[48..], bytes[n * 4096..][..4096]);
    }
}

#[test]
fn a_send_to_a_closed_peer_fails_without_a_signal() {
    let mut ring = ring();
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    let from = filled(&mut ring, b"x");
    ring.send(handle(&ours), &[span(&from)], TAG);
    let broken = rustix::io::Errno::PIPE.raw_os_error();
    assert_eq!(complete_one(&mut ring).result, Err(Errno(broken)));
}

#[test]
fn a_recv_scatters_over_its_places() {
    let mut ring = ring();
    let (ours, mut theirs) = tcp_pair();
    let places: Vec<Places> = (0..3).map(|_| ring.arena().take(4).unwrap()).collect();
    let mut into = Places::EMPTY;
    places.iter().for_each(|place| assert!(into.push(span(place))));
    theirs.write_all(b"abcdefghij").unwrap();
    ring.recv(handle(&ours), &into, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(10));
    assert_eq!(content(&mut ring, &into.slice(0, 10)), b"abcdefghij");
}

#[test]
fn a_watch_completes_when_its_file_can_be_read_and_once_for_each_request() {
    let mut ring = ring();
    let (mut writer, mut reader) = UnixStream::pair().unwrap();
    reader.set_nonblocking(true).unwrap();
    ring.watch(handle(&reader), Tag(8));
    let mut completions = Vec::new();
    ring.turn(Wait::No, &mut completions);
    assert!(completions.is_empty());
    writer.write_all(b"ab").unwrap();
    let done = complete_one(&mut ring);
    assert!(done.tag == Tag(8) && done.result.is_ok());
    // This reads nothing, and a watch of something already readable completes, too.
    ring.watch(handle(&reader), Tag(9));
    assert_eq!(complete_one(&mut ring).tag, Tag(9));
    assert_eq!(reader.read(&mut [0; 4]).unwrap(), 2);
    ring.watch(handle(&reader), Tag(10));
    ring.turn(Wait::No, &mut completions);
    ring.unwatch(Tag(10));
    let done = complete_one(&mut ring);
    assert!(done.tag == Tag(10) && done.result.is_err());
    // That watch no longer exists.
    ring.unwatch(Tag(10));
}

#[test]
fn shutdown_ends_a_recv() {
    let mut ring = ring();
    let (ours, _theirs) = tcp_pair();
    let into = ring.arena().take(4096).unwrap();
    ring.recv(handle(&ours), &into, TAG);
    ring.turn(Wait::No, &mut Vec::new());
    ring.shutdown(handle(&ours));
    assert_eq!(complete_one(&mut ring).result, Ok(0));
}

#[test]
fn a_file_is_written_read_synced_and_punched() {
    let mut ring = ring();
    let file = tempfile::tempfile().unwrap();
    let file = handle(&file);
    let bytes = pattern(200_000, 5);
    let from = filled(&mut ring, &bytes);
    ring.write(file, 8192, &from, true, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(200_000));
    ring.sync(file, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(0));
    let small = filled(&mut ring, &[7; 512]);
    ring.write(file, 0, &small, false, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(512));

    for how in [Allocate::PunchHole, Allocate::Zero] {
        ring.allocate(file, how, 8192, 4096, TAG);
        let done = complete_one(&mut ring).result;
        let unsupported = Err(Errno(rustix::io::Errno::OPNOTSUPP.raw_os_error()));
        assert!(done == Ok(0) || how == Allocate::Zero && done == unsupported, "{done:?}");
    }

    let into = ring.arena().take(200_000).unwrap();
    ring.read(file, 8192, &into, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(200_000));
    let read = content(&mut ring, &into);
    assert_eq!(read[..4096], [0; 4096]);
    assert_eq!(read[4096..], bytes[4096..]);
    ring.read(file, 0, &small, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(512));
    ring.read(file, 1 << 40, &small, TAG);
    assert_eq!(complete_one(&mut ring).result, Ok(0), "behind the end");
}

#[test]
fn more_requests_than_the_queue_holds_are_all_served() {
    let mut ring = ring();
    let file = tempfile::tempfile().unwrap();
    let into = ring.arena().take(512).unwrap();
    for tag in 0..5000 {
        ring.read(handle(&file), 0, &into, Tag(tag));
    }
    let mut tags: Vec<u64> = complete(&mut ring, 5000).iter().map(|done| done.tag.0).collect();
    tags.sort_unstable();
    assert_eq!(tags, Vec::from_iter(0..5000));
}

#[test]
fn a_buffer_in_flight_is_not_reused() {
    let mut ring = ring_with(65_536, reactor::wake::Waker::new().unwrap());
    let (ours, mut theirs) = tcp_pair();
    let into = ring.arena().take(65_536).unwrap();
    ring.recv(handle(&ours), &into, TAG);
    ring.arena().give(&into);
    assert_eq!(ring.arena().take(1), None);
    theirs.write_all(b"late").unwrap();
    assert_eq!(complete_one(&mut ring).result, Ok(4));
    assert!(ring.arena().take(65_536).is_some());
}

#[test]
fn a_region_dropped_while_in_flight_stays_until_the_completion() {
    let mut ring = ring();
    let (ours, mut theirs) = tcp_pair();
    let region = Region::map(65_536).unwrap();
    ring.recv(handle(&ours), &Places::one(region.span(0, 65_536).unwrap()), TAG);
    drop(region);
    ring.turn(Wait::No, &mut Vec::new());
    theirs.write_all(b"bytes for nobody").unwrap();
    assert_eq!(complete_one(&mut ring).result, Ok(16));
}

#[test]
#[should_panic(expected = "is not in use")]
fn a_free_buffer_cannot_be_lent() {
    let mut ring = ring();
    let (ours, _theirs) = tcp_pair();
    let into = ring.arena().take(100).unwrap();
    ring.arena().give(&into);
    ring.recv(handle(&ours), &into, TAG);
}

#[test]
fn a_turn_ends_after_its_time() {
    let mut ring = ring();
    let before = ring.now();
    let mut completions: Vec<Completion> = Vec::new();
    ring.turn(Wait::AtMost(Duration::from_millis(20)), &mut completions);
    assert!(completions.is_empty());
    assert!(ring.now().since(before) >= Duration::from_millis(20));
}

#[test]
fn another_thread_ends_the_sleep() {
    let mut boxes = mailbox::mesh::<u32>(2).unwrap();
    let mut other = boxes.pop().unwrap();
    let mut own = boxes.pop().unwrap();
    let thread = std::thread::spawn(move || {
        let mut ring = ring_with(65_536, other.waker());
        let mut arrived = Vec::new();
        while arrived.last() != Some(&1000) {
            ring.turn(Wait::Forever, &mut Vec::new());
            let before = arrived.len();
            other.drain(&mut arrived);
            arrived[before..].iter().for_each(|n| other.post(0, *n));
        }
        arrived
    });
    let mut ring = ring_with(65_536, own.waker());
    let mut echoed = Vec::new();
    for n in 1..=1000 {
        own.post(1, n);
        while echoed.last() != Some(&n) {
            ring.turn(Wait::Forever, &mut Vec::new());
            own.drain(&mut echoed);
        }
    }
    assert_eq!(thread.join().unwrap(), Vec::from_iter(1..=1000));
    assert_eq!(echoed, Vec::from_iter(1..=1000));
}

#[test]
fn a_call_before_the_sleep_is_not_lost() {
    let waker = reactor::wake::Waker::new().unwrap();
    let mut ring = ring_with(65_536, waker.clone());
    waker.wake();
    ring.turn(Wait::Forever, &mut Vec::new());
    waker.wake();
    waker.wake();
    ring.turn(Wait::Forever, &mut Vec::new());
}

#[test]
fn dropping_a_ring_drains_it() {
    let (ours, mut theirs) = tcp_pair();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let region = Region::map(65_536).unwrap();
    let file = tempfile::tempfile().unwrap();
    let mut ring = ring();
    let into = ring.arena().take(65_536).unwrap();
    let from = filled(&mut ring, &pattern(65_536, 1));
    ring.recv(handle(&ours), &into, Tag(1));
    ring.accept(handle(&listener), Tag(2));
    ring.write(handle(&file), 0, &from, true, Tag(3));
    // More than the peer, who does not read, will ever accept.
    ring.send(handle(&ours), &[region.span(0, 65_536).unwrap(); 512], Tag(4));
    ring.turn(Wait::No, &mut Vec::new());
    ring.recv(handle(&ours), &Places::one(region.span(0, 4096).unwrap()), Tag(5));
    drop(ring);

    // The kernel has released the socket's receive side: what arrives now can still be read.
    theirs.write_all(b"still here").unwrap();
    drop(theirs.shutdown(std::net::Shutdown::Write));
    let mut rest = Vec::new();
    let mut ours = ours;
    ours.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"still here");
}

#[test]
fn a_ring_that_was_never_turned_can_be_dropped() {
    drop(ring());
    let mut ring = ring();
    let (ours, _theirs) = tcp_pair();
    let into = ring.arena().take(4096).unwrap();
    ring.recv(handle(&ours), &into, TAG);
}

#[test]
fn closing_a_handle_closes_the_socket() {
    let mut ring = ring();
    let (ours, mut theirs) = tcp_pair();
    ring.close(Handle(ours.into_raw_fd()));
    assert!(is_closed(theirs.read(&mut [0; 1])));
}
