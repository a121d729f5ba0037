use super::*;
use std::io::Read;
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
    // A wake-up whose completion comes when the core is up already.
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
