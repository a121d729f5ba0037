//! Connections while the core's memory is short.

use crate::commands::{self, Pair, close, open, ready};
use crate::common::*;
use crate::disk::{READ, WRITE};
use crate::rig::CONFIG;
use proto::iser::initiator::Initiator as IserInitiator;
use proto::srp::initiator::{Event, Initiator};
use reactor::io::Io;
use reactor::memory::{LARGE_BYTES, SMALL_BYTES};
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::time::Duration;
use wire::Places;

/// Longer than a connection waits.
const TOO_LONG: Duration = Duration::from_secs(6);
const NO_MEMORY: &str = "there was no memory for receives";
/// Large buffers of a ring with 4 MiB.
const BLOCKS: usize = 64;

/// A ring with this many large buffers free, one of which streams need.
fn crowded(free: usize) -> (Uring, Vec<Places>) {
    let mut ring = ring_with(BLOCKS as u64 * u64::from(LARGE_BYTES), Waker::new().unwrap());
    let mut taken: Vec<Places> = (free..BLOCKS).map(|_| ring.arena().take(LARGE_BYTES).unwrap()).collect();
    // Small buffers keep that one from being whole.
    taken.push(ring.arena().take(1).unwrap());
    (ring, taken)
}

fn release(ring: &mut Uring, taken: Vec<Places>) {
    taken.iter().for_each(|places| ring.arena().give(places));
}

fn asking<M: commands::Initiator>(ring: Uring) -> Pair<M> {
    let pair = M::pair(ring.now());
    open(ring, CONFIG, pair)
}

#[test]
fn an_initiator_waits_for_the_memory_of_its_receives() {
    let (ring, taken) = crowded(1);
    let mut rig = asking::<Initiator>(ring);
    for _ in 0..50 {
        rig.turn();
    }
    assert!(
        rig.initiator.channel.wants_more() && !rig.target.channel.wants_more(),
        "the target is not asked"
    );
    release(&mut rig.ring, taken);
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.sessions == 1);
    assert!(matches!(rig.initiator.above[..], [Event::Ready(_)]), "{:?}", rig.initiator.above);
    close(rig);
}

#[test]
fn an_initiator_without_memory_gives_up() {
    let (ring, taken) = crowded(1);
    let mut rig = asking::<Initiator>(ring);
    rig.run_until(|rig| rig.initiator.channel.wants_more());
    rig.initiator.channel.tick(rig.ring.now().after(TOO_LONG));
    rig.run_until(|rig| !rig.initiator.above.is_empty());
    assert_eq!(rig.initiator.above, [Event::Gone { reason: NO_MEMORY.to_string() }]);
    release(&mut rig.ring, taken);
    close(rig);
}

/// Half of the memory is taken: the rest is for data.
#[test]
fn a_target_without_memory_for_receives_rejects_logins() {
    assert!(is_rejected::<Initiator>().contains("login rejected with reason 0x00010001"));
    assert_eq!(is_rejected::<IserInitiator>(), "the connection was rejected");
}

fn is_rejected<M: commands::Initiator>() -> String {
    let (ring, taken) = crowded(BLOCKS / 2);
    let mut rig = asking::<M>(ring);
    rig.run_until(|rig| rig.is_gone());
    assert_eq!(rig.target.above.gone.as_deref(), Some(NO_MEMORY));
    let reason = rig.reason().unwrap().to_string();
    release(&mut rig.ring, taken);
    close(rig);
    reason
}

#[test]
fn a_target_with_few_receives_promises_no_more_than_these() {
    works_with_few::<Initiator>();
    works_with_few::<IserInitiator>();
}

fn works_with_few<M: commands::Initiator>() {
    let mut modest = 0;
    for spare in 0..16 {
        let (ring, taken) = crowded(BLOCKS / 2 + spare);
        let mut rig = asking::<M>(ring);
        rig.run_until(|rig| {
            !rig.initiator.above.is_empty() && (rig.target.above.sessions == 1 || rig.is_gone())
        });
        if rig.is_gone() {
            assert_eq!(modest, 0, "more memory is enough, too");
            release(&mut rig.ring, taken);
            close(rig);
            continue;
        }
        rig.initiator.above.clear();
        let leaves_half_free = !rig.ring.arena().is_half_free();
        let held: u64 =
            taken.iter().map(|places| u64::from(places.len().next_multiple_of(SMALL_BYTES))).sum();
        let in_stock = rig.ring.arena().in_use() - held;
        fill_queue(&mut rig);
        release(&mut rig.ring, taken);
        fill_queue(&mut rig);
        fill_queue(&mut rig);
        let has_grown = rig.ring.arena().in_use() > in_stock;
        assert!(has_grown || !leaves_half_free, "it takes what it lacked when that is there");
        modest += usize::from(leaves_half_free);
        close(rig);
    }
    assert!((1..16).contains(&modest), "{modest}");
}

/// As many commands at once as the initiator has room for.
fn fill_queue<M: commands::Initiator>(rig: &mut Pair<M>) {
    let data = pattern(4096, 3);
    for opcode in [WRITE, READ] {
        let places: Vec<Places> = (0..16).map(|_| filled(&mut rig.ring, &data)).collect();
        for (n, place) in (0..).zip(&places) {
            rig.submit(opcode, n * 4096, *place);
        }
        rig.complete(16);
        for place in &places {
            assert!(rig.take(place) == data);
        }
    }
}

/// Headers that need a buffer of their own are sent one by one when memory is exhausted.
#[test]
fn long_headers_need_no_memory_that_is_not_there() {
    let mut rig = ready::<Initiator>(ring_with(2 << 20, Waker::new().unwrap()), CONFIG);
    let data = pattern(262_144, 9);
    let source = filled(&mut rig.ring, &data);
    let arena = rig.ring.arena();
    let mut taken: Vec<Places> = std::iter::from_fn(|| arena.take(LARGE_BYTES)).collect();
    taken.extend(std::iter::from_fn(|| arena.take(SMALL_BYTES)));
    // What both ends need for batches in flight.
    for _ in 0..2 {
        arena.give(&taken.pop().unwrap());
    }
    for n in 0..16 {
        rig.submit(WRITE, n * 262_144, source);
    }
    rig.complete(16);
    for places in taken {
        rig.ring.arena().give(&places);
    }
    for n in 0..16 {
        assert!(rig.disk(n * 262_144, 262_144) == data, "{n}");
    }
    rig.ring.arena().give(&source);
    close(rig);
}
