//! Connections while the core's memory is short.

use crate::commands::{Initiator as _, Pair, close, open, ready};
use crate::common::*;
use crate::disk::WRITE;
use crate::rig::CONFIG;
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

/// A ring of which all large buffers are taken but one, which is for what streams need.
fn crowded() -> (Uring, Vec<Places>) {
    let mut ring = ring_with(1 << 20, Waker::new().unwrap());
    let mut taken: Vec<Places> = std::iter::from_fn(|| ring.arena().take(LARGE_BYTES)).collect();
    ring.arena().give(&taken.pop().unwrap());
    // Small buffers keep it from being whole.
    taken.push(ring.arena().take(1).unwrap());
    (ring, taken)
}

fn asking(ring: Uring) -> Pair<Initiator> {
    let pair = Initiator::pair(ring.now());
    open(ring, CONFIG, pair)
}

#[test]
fn a_connection_waits_for_the_memory_of_its_receives() {
    let (ring, mut taken) = crowded();
    let mut rig = asking(ring);
    // One large buffer for the initiator's receives, and four for the target's.
    for free in 0..5 {
        for _ in 0..50 {
            rig.turn();
        }
        rig.run_until(|rig| free == 0 || rig.target.channel.wants_more());
        assert!(rig.initiator.channel.agreed().is_none() && rig.target.above.sessions == 0);
        let waits = [rig.initiator.channel.wants_more(), rig.target.channel.wants_more()];
        assert_eq!(waits, [free == 0, free > 0], "the target is not asked before the initiator can receive");
        rig.ring.arena().give(&taken.remove(0));
    }
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.sessions == 1);
    assert!(matches!(rig.initiator.above[..], [Event::Ready(_)]), "{:?}", rig.initiator.above);
    for places in taken {
        rig.ring.arena().give(&places);
    }
    close(rig);
}

#[test]
fn an_initiator_without_memory_gives_up() {
    let (ring, taken) = crowded();
    let mut rig = asking(ring);
    rig.run_until(|rig| rig.initiator.channel.wants_more());
    rig.initiator.channel.tick(rig.ring.now().after(TOO_LONG));
    rig.run_until(|rig| !rig.initiator.above.is_empty());
    assert_eq!(rig.initiator.above, [Event::Gone { reason: NO_MEMORY.to_string() }]);
    for places in taken {
        rig.ring.arena().give(&places);
    }
    close(rig);
}

#[test]
fn a_target_without_memory_gives_up() {
    let (ring, mut taken) = crowded();
    let mut rig = asking(ring);
    rig.ring.arena().give(&taken.remove(0));
    rig.run_until(|rig| rig.target.channel.wants_more());
    rig.target.channel.tick(rig.ring.now().after(TOO_LONG));
    rig.run_until(|rig| rig.target.above.gone.is_some());
    assert_eq!(rig.target.above.gone.as_deref(), Some(NO_MEMORY));
    for places in taken {
        rig.ring.arena().give(&places);
    }
    close(rig);
}

/// Headers that need a buffer of their own go one by one when there is no other memory.
#[test]
fn long_headers_need_no_memory_that_is_not_there() {
    let mut rig = ready::<Initiator>(ring_with(2 << 20, Waker::new().unwrap()), CONFIG);
    let data = pattern(262_144, 9);
    let source = filled(&mut rig.ring, &data);
    let arena = rig.ring.arena();
    let mut taken: Vec<Places> = std::iter::from_fn(|| arena.take(LARGE_BYTES)).collect();
    taken.extend(std::iter::from_fn(|| arena.take(SMALL_BYTES)));
    // What both ends need for the batches on their way.
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
