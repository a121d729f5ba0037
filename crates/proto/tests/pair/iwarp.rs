//! Our two ends of an iWARP connection against each other.

mod hostile;
mod startup;

use crate::support::MEMORY_BYTES;
use crate::support::link::{CONFIG, Link, Side};
use proptest::prelude::*;
use proto::iwarp::memory::Access;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::iwarp::{Config, Event, Refused};
use proto::message::WorkId;
use proto::stream::{StreamMachine, Transmit};
use wire::Places;

const READ: Access = Access { remote_read: true, remote_write: false };
const WRITE: Access = Access { remote_read: false, remote_write: true };
/// Lengths of every kind: none, one byte, around one FPDU, and many.
const LENGTHS: [u32; 10] = [0, 1, 3, 1424, 1425, 1428, 1429, 65_536, 100_001, 300_000];

fn large() -> Config {
    Config { crc: false, long_fpdus: true, ..CONFIG }
}

/// A copy of `len` bytes in each possible way, from `from` to the other end.
fn copy_in_every_way(link: &mut Link, from: Side, len: u32) {
    let to = from.other();
    let (at_a, at_b) = (1 << 20, 2 << 20);
    for way in 0..3 {
        let seed = link.random.next();
        scramble(link, seed);
        let (source, sink) = (from.places(at_a, len), to.places(at_b, len));
        match way {
            0 => {
                link.end(to).post_receive(7, to.places(at_b - 20, len + 20)).unwrap();
                link.end(from).send(8, &[0x5a; 20], source, true, None).unwrap();
                link.run();
                let received = Event::Received { id: 7, len: len + 20, solicited: true, invalidated: None };
                assert_eq!(link.events(to).pop(), Some(received));
                assert_eq!(link.events(from).pop(), Some(Event::Sent { id: 8 }));
            }
            1 => {
                let stag = link.end(to).register(sink, WRITE).unwrap();
                link.end(to).post_receive(9, Places::EMPTY).unwrap();
                link.end(from).write(10, source, stag, 0).unwrap();
                link.end(from).send(11, &[], Places::EMPTY, false, Some(stag)).unwrap();
                link.run();
                let received = Event::Received { id: 9, len: 0, solicited: false, invalidated: Some(stag) };
                assert_eq!(link.events(to).pop(), Some(received));
                assert!(!link.end(to).invalidate(stag), "the peer did");
                let left = std::mem::take(link.events(from));
                assert_eq!(left, [Event::Written { id: 10 }, Event::Sent { id: 11 }]);
            }
            _ => {
                let stag = link.end(from).register(source, READ).unwrap();
                link.end(to).read(12, sink, stag, 0).unwrap();
                link.run();
                assert_eq!(link.events(to).pop(), Some(Event::Read { id: 12 }));
                assert!(link.end(from).invalidate(stag));
            }
        }
        assert!(link.initiator_events.is_empty() && link.responder_events.is_empty());
        let (host, disk) = if from == Side::Initiator { (at_a, at_b) } else { (at_b, at_a) };
        assert!(link.same(host, disk, len), "{way} {len}");
    }
}

/// New bytes everywhere, so that old ones are not mistaken for what was copied.
fn scramble(link: &mut Link, seed: u64) {
    for (region, salt) in link.memory.regions.iter_mut().zip([1, 2]) {
        assert_eq!(region.len(), MEMORY_BYTES);
        let key = (seed >> (8 * salt)) as u8 | 1;
        region.iter_mut().step_by(7).for_each(|byte| *byte = byte.wrapping_add(key));
    }
}

#[test]
fn data_of_every_length_arrives() {
    for config in [CONFIG, large(), Config { enhanced: false, ..CONFIG }] {
        let mut link = Link::established(config, config, 1, 16 << 10);
        for len in LENGTHS {
            copy_in_every_way(&mut link, Side::Initiator, len);
            copy_in_every_way(&mut link, Side::Responder, len);
        }
    }
}

#[test]
fn a_byte_at_a_time_is_enough() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 1);
    copy_in_every_way(&mut link, Side::Initiator, 3001);
    copy_in_every_way(&mut link, Side::Responder, 3001);
}

/// A write that nothing waits for ends with the message behind it.
#[test]
fn an_unsignaled_write_reports_nothing() {
    let mut link = Link::established(large(), large(), 1, 999);
    let (source, sink) = (Side::Initiator.places(1 << 20, 131_072), Side::Responder.places(2 << 20, 131_072));
    let stag = link.responder.machine.register(sink, WRITE).unwrap();
    link.responder.machine.post_receive(1, Side::Responder.places(0, 64)).unwrap();
    link.initiator.machine.write(WorkId::UNSIGNALED.0, source, stag, 0).unwrap();
    link.initiator.machine.send(2, &[7; 64], Places::EMPTY, false, None).unwrap();
    link.run();
    assert_eq!(link.initiator_events, [Event::Sent { id: 2 }]);
    let received = Event::Received { id: 1, len: 64, solicited: false, invalidated: None };
    assert_eq!(link.responder_events, [received]);
}

#[test]
fn receives_are_used_in_their_order() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 999);
    for id in 0..16 {
        link.responder.machine.post_receive(id, Side::Responder.places(id as u32 * 5000, 5000)).unwrap();
    }
    let more = link.responder.machine.post_receive(16, Places::EMPTY);
    assert_eq!(more, Err(Refused::Full));
    for id in 0..16 {
        let from = Side::Initiator.places(id as u32 * 5000, id as u32 * 300);
        link.initiator.machine.send(id, &[], from, false, None).unwrap();
    }
    assert_eq!(link.initiator.machine.send(16, &[], Places::EMPTY, false, None), Err(Refused::Full));
    link.run();
    let received = (0..16).map(|id| {
        let len = id as u32 * 300;
        Event::Received { id, len, solicited: false, invalidated: None }
    });
    assert_eq!(link.responder_events, received.collect::<Vec<_>>());
    assert_eq!(link.initiator_events, (0..16).map(|id| Event::Sent { id }).collect::<Vec<_>>());
    assert!((0..16).all(|id| link.same(id * 5000, id * 5000, id * 300)));
}

/// Reads beyond ORD wait for their turn, and what was posted behind them waits, too.
#[test]
fn reads_keep_within_their_depth() {
    let few = Config { depths: Depths { ird: 2, ord: 3 }, ..CONFIG };
    let mut link = Link::established(few, few, 5, 4000);
    for side in [Side::Initiator, Side::Responder] {
        assert_eq!(link.end(side).agreed().unwrap().depths, Depths { ird: 2, ord: 2 });
    }
    link.initiator.machine.send(99, &[], Places::EMPTY, false, None).unwrap();
    link.responder.machine.post_receive(99, Places::EMPTY).unwrap();
    let stag = link.initiator.machine.register(Side::Initiator.places(0, 100_000), READ).unwrap();
    for id in 0..10 {
        let into = Side::Responder.places(id as u32 * 10_000, 10_000);
        link.responder.machine.read(id, into, stag, id * 10_000).unwrap();
    }
    link.initiator.machine.post_receive(98, Places::EMPTY).unwrap();
    link.responder.machine.send(10, &[], Places::EMPTY, false, None).unwrap();
    link.run();
    let read: Vec<_> =
        link.responder_events.iter().filter(|event| matches!(event, Event::Read { .. })).collect();
    assert_eq!(read, (0..10).map(|id| Event::Read { id }).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    assert!(link.same(0, 0, 100_000));
    let none = Config { depths: Depths { ird: 0, ord: 0 }, ..CONFIG };
    let mut link = Link::established(CONFIG, none, 5, 4000);
    assert_eq!(link.initiator.machine.read(0, Places::EMPTY, 0, 0), Err(Refused::NoReads));
}

#[test]
fn what_is_too_long_is_refused() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 999);
    let machine = &mut link.initiator.machine;
    assert_eq!(machine.send(1, &[0; 129], Places::EMPTY, false, None), Err(Refused::TooLong));
    for _ in 0..16 {
        machine.register(Side::Initiator.places(0, 10), READ).unwrap();
    }
    assert_eq!(machine.register(Side::Initiator.places(0, 10), READ), Err(Refused::Full));
}

/// In a peer-to-peer connection the responder may be the first to send.
#[test]
fn a_responder_speaks_when_the_initiator_is_ready() {
    let none = ReadyToReceive { by_send: false, by_write: false, by_read: false };
    let ways = [
        ReadyToReceive { by_send: true, ..none },
        ReadyToReceive { by_write: true, ..none },
        ReadyToReceive { by_read: true, ..none },
        ReadyToReceive::ANY,
    ];
    for ready in ways {
        for depths in [Depths { ird: 4, ord: 4 }, Depths { ird: 4, ord: 0 }] {
            let initiator = Config { ready: Some(ready), depths, ..CONFIG };
            let mut link = Link::established(initiator, CONFIG, 1, 7);
            copy_in_every_way_but_reads(&mut link, Side::Responder);
            copy_in_every_way_but_reads(&mut link, Side::Initiator);
        }
    }
}

fn copy_in_every_way_but_reads(link: &mut Link, from: Side) {
    link.end(from.other()).post_receive(1, from.other().places(0, 5000)).unwrap();
    link.end(from).send(2, b"", from.places(0, 5000), false, None).unwrap();
    link.run();
    let received = Event::Received { id: 1, len: 5000, solicited: false, invalidated: None };
    assert_eq!(link.events(from.other()).pop(), Some(received));
    assert_eq!(link.events(from).pop(), Some(Event::Sent { id: 2 }));
    assert!(link.same(0, 0, 5000));
}

#[test]
fn a_responder_is_silent_before_the_first_message() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 999);
    link.initiator.machine.post_receive(1, Places::EMPTY).unwrap();
    link.responder.machine.send(2, &[], Places::EMPTY, false, None).unwrap();
    link.run();
    assert!(link.initiator_events.is_empty() && link.responder_events.is_empty());
    let stag = link.responder.machine.register(Places::EMPTY, WRITE).unwrap();
    link.initiator.machine.write(3, Places::EMPTY, stag, 0).unwrap();
    link.run();
    assert_eq!(link.responder_events, [Event::Sent { id: 2 }]);
    assert_eq!(link.initiator_events.len(), 2);
}

/// What is invalidated while the peer reads or writes it is no longer accessed, and the peer gets a
/// Terminate.
#[test]
fn an_invalidated_buffer_is_no_more_touched() {
    for (writes, code) in [(true, "code 0"), (false, "code 0")] {
        for steps in 0..40 {
            let mut link = Link::established(CONFIG, CONFIG, steps, 3000);
            let places = Side::Responder.places(0, 200_000);
            let stag = link.responder.machine.register(places, if writes { WRITE } else { READ }).unwrap();
            let own = Side::Initiator.places(0, 200_000);
            let posted = match writes {
                true => link.initiator.machine.write(1, own, stag, 0),
                false => link.initiator.machine.read(1, own, stag, 0),
            };
            posted.unwrap();
            for _ in 0..steps {
                link.step();
            }
            assert!(link.responder.machine.invalidate(stag));
            let before = link.memory.regions[1].clone();
            let done = link.initiator_events.contains(&Event::Read { id: 1 });
            link.run();
            assert!(before == link.memory.regions[1], "{steps}");
            assert!(!done && link.gone(Side::Initiator).contains(code), "{}", link.gone(Side::Initiator));
            assert!(link.gone(Side::Responder).contains("invalid STag"));
        }
    }
}

/// What the peer has read of a buffer may have arrived before this end is notified that it was sent: until
/// then the places are borrowed, whichever side has invalidated the STag.
#[test]
fn what_is_read_is_lent_until_it_has_left() {
    for invalidates in [false, true] {
        let mut link = Link::established(CONFIG, CONFIG, 1, 1 << 20);
        let (at, now) = (Side::Initiator.places(0, 50_000), link.now);
        let stag = link.initiator.machine.register(at, READ).unwrap();
        link.initiator.machine.post_receive(1, Places::EMPTY).unwrap();
        link.initiator.machine.write(7, Places::EMPTY, 0, 0).unwrap();
        link.run();
        assert_eq!(link.initiator_events.pop(), Some(Event::Written { id: 7 }));
        link.responder.machine.read(2, Side::Responder.places(0, 50_000), stag, 0).unwrap();
        link.responder.fill(now, &mut link.memory);
        link.responder.carry(usize::MAX, &mut link.initiator);
        assert!(link.responder.left().is_empty());
        while link.initiator.feed(now, &mut link.memory) {}
        assert!(!link.initiator.machine.is_leaving(stag), "nothing of it is on its way yet");
        // The first batch has all of it; the peer reports completion when most of it has arrived.
        link.initiator.fill(now, &mut link.memory);
        link.initiator.carry(40_000, &mut link.responder);
        let invalidate = invalidates.then_some(stag);
        link.responder.machine.send(3, &[], Places::EMPTY, false, invalidate).unwrap();
        link.responder.fill(now, &mut link.memory);
        link.responder.carry(usize::MAX, &mut link.initiator);
        while link.initiator.feed(now, &mut link.memory) {}
        let received = Event::Received { id: 1, len: 0, solicited: false, invalidated: invalidate };
        assert_eq!(link.initiator.machine.poll(), Some(received));
        assert_eq!(link.initiator.machine.invalidate(stag), !invalidates);
        assert!(link.initiator.machine.is_leaving(stag) && link.initiator.machine.poll().is_none());
        link.run();
        assert_eq!(link.initiator_events, [Event::Freed { stag }]);
        assert!(!link.initiator.machine.is_leaving(stag) && link.same(0, 0, 50_000));
        assert!(link.responder_events.contains(&Event::Read { id: 2 }));
    }
}

/// A full batch takes the rest of a message as long as a burst of iSCSI, and no other.
#[test]
fn a_burst_is_not_cut() {
    let config = Config { long_fpdus: true, ..CONFIG };
    for (len, is_whole) in [(262_144, true), (262_145, false)] {
        let mut link = Link::established(config, config, 1, 1 << 20);
        for id in [1, 2] {
            link.initiator.machine.write(id, Side::Initiator.places(0, len), 7, 0).unwrap();
        }
        let mut batch = Transmit::default();
        link.initiator.machine.transmit(link.now, &mut batch);
        assert_eq!((batch.total_bytes > len, batch.done.len()), (is_whole, usize::from(is_whole)));
        assert!(batch.total_bytes < len + 1000 && link.initiator.machine.owes());
    }
}

/// Batches with bytes of a buffer come and go; what was sent before it is invalidated is not reported.
#[test]
fn what_is_read_and_has_left_is_free_at_once() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 3000);
    let stag = link.initiator.machine.register(Side::Initiator.places(0, 300_000), READ).unwrap();
    link.initiator.machine.write(7, Places::EMPTY, 0, 0).unwrap();
    for id in 0..3 {
        link.responder.machine.read(id, Side::Responder.places(0, 200_000), stag, 1000 * id).unwrap();
    }
    while !link.initiator.machine.is_leaving(stag) {
        assert!(link.step());
    }
    link.run();
    assert_eq!(link.responder_events.len(), 3);
    assert!(!link.initiator.machine.is_leaving(stag) && link.initiator.machine.invalidate(stag));
    link.run();
    assert_eq!(link.initiator_events, [Event::Written { id: 7 }]);
    for _ in 0..CONFIG.registrations {
        link.initiator.machine.register(Side::Initiator.places(0, 10), READ).unwrap();
    }
}

/// Reads that will not be answered any more do not delay what was posted behind them.
#[test]
fn closing_sends_what_was_posted_behind_reads_that_wait() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 999);
    let stag = link.responder.machine.register(Side::Responder.places(0, 9000), READ).unwrap();
    link.responder.machine.post_receive(1, Side::Responder.places(10_000, 5000)).unwrap();
    for id in 0..6 {
        link.initiator.machine.read(id, Side::Initiator.places(0, 9000), stag, 0).unwrap();
    }
    // As many as may be outstanding at a time are.
    link.initiator.fill(link.now, &mut link.memory);
    link.initiator.machine.send(8, b"farewell", Places::EMPTY, false, None).unwrap();
    link.initiator.machine.close(link.now);
    link.run();
    let received = Event::Received { id: 1, len: 8, solicited: false, invalidated: None };
    assert_eq!(link.responder_events.first(), Some(&received));
    assert_eq!(link.gone(Side::Initiator), "closed by this side");
    assert_eq!(link.gone(Side::Responder), "closed by the peer");
}

#[test]
fn closing_sends_what_was_posted() {
    let mut link = Link::established(CONFIG, CONFIG, 1, 999);
    link.responder.machine.post_receive(1, Side::Responder.places(0, 60_000)).unwrap();
    link.initiator.machine.send(2, &[], Side::Initiator.places(0, 60_000), false, None).unwrap();
    link.initiator.machine.close(link.now);
    assert_eq!(link.initiator.machine.send(3, &[], Places::EMPTY, false, None), Err(Refused::State));
    link.run();
    let received = Event::Received { id: 1, len: 60_000, solicited: false, invalidated: None };
    assert_eq!(link.responder_events[0], received);
    assert_eq!(link.gone(Side::Initiator), "closed by this side");
    assert_eq!(link.gone(Side::Responder), "closed by the peer");
}

/// A flipped bit anywhere is found by the CRC, and never taken for data.
#[test]
fn crcs_find_flipped_bits() {
    for at in (0..40).chain((40..3100).step_by(61)) {
        let mut link = Link::established(CONFIG, CONFIG, 1, 1 << 20);
        link.responder.machine.post_receive(1, Side::Responder.places(0, 3000)).unwrap();
        link.initiator.machine.send(2, &[], Side::Initiator.places(0, 3000), false, None).unwrap();
        link.initiator.fill(link.now, &mut link.memory);
        if !link.initiator.corrupt(at) {
            continue;
        }
        link.run();
        assert!(!link.responder_events.iter().any(|event| matches!(event, Event::Received { .. })), "{at}");
    }
}

/// Events that arrive in the order of their requests, within each kind.
const KINDS: [fn(&Event) -> bool; 4] = [
    |event| matches!(event, Event::Sent { .. } | Event::Written { .. }),
    |event| matches!(event, Event::Read { .. }),
    |event| matches!(event, Event::Received { id, .. } if *id != 1000),
    |event| matches!(event, Event::Gone { .. } | Event::Rejected { .. }),
];

fn of_kind(kind: fn(&Event) -> bool, events: &[Event]) -> Vec<Event> {
    events.iter().filter(|event| kind(event)).cloned().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was negotiated and however bytes are split, all posted work completes, in order, and every
    /// byte reaches its place.
    #[test]
    fn all_that_is_posted_arrives(
        seed in any::<u64>(),
        chunk in prop_oneof![Just(1usize), 2..64usize, Just(8192), Just(1 << 20)],
        flags in any::<[bool; 5]>(),
        segments in (128..9000u32, 128..9000u32),
        depths in (1..6u16, 1..6u16),
        works in proptest::collection::vec((any::<bool>(), 0..3u8, 0..30_000u32, 0..=128usize), 1..16),
    ) {
        let config = |segment_bytes, ord, crc| Config {
            enhanced: flags[0],
            crc,
            long_fpdus: flags[3],
            depths: Depths { ird: if flags[0] { 3 } else { 8 }, ord },
            ready: flags[4].then_some(ReadyToReceive::ANY),
            segment_bytes,
            ..CONFIG
        };
        let (one, other) = (config(segments.0, depths.0, flags[1]), config(segments.1, depths.1, flags[2]));
        let mut link = Link::established(one, other, seed, chunk);
        // Without a peer-to-peer connection the initiator has to send something first.
        link.responder.machine.post_receive(1000, Places::EMPTY).unwrap();
        link.initiator.machine.send(1000, &[], Places::EMPTY, false, None).unwrap();
        let mut expected = [vec![Event::Sent { id: 1000 }], vec![]];
        let mut areas = Vec::new();
        for (id, (from_initiator, kind, len, header)) in (0u64..).zip(works) {
            let (from, us) = if from_initiator { (Side::Initiator, 0) } else { (Side::Responder, 1) };
            let (to, at) = (from.other(), id as u32 * 40_000);
            match kind {
                0 => {
                    link.end(to).post_receive(id, to.places(at, len + 200)).unwrap();
                    link.end(from).send(id, &[7; 128][..header], from.places(at, len), false, None).unwrap();
                    let (invalidated, solicited) = (None, false);
                    let len = len + header as u32;
                    expected[1 - us].push(Event::Received { id, len, solicited, invalidated });
                    expected[us].push(Event::Sent { id });
                    areas.push((from, at, at + header as u32, len - header as u32));
                }
                1 => {
                    let stag = link.end(to).register(to.places(at, len), WRITE).unwrap();
                    link.end(from).write(id, from.places(at, len), stag, 0).unwrap();
                    expected[us].push(Event::Written { id });
                    areas.push((from, at, at, len));
                }
                _ => {
                    let stag = link.end(to).register(to.places(at, len + 9), READ).unwrap();
                    link.end(from).read(id, from.places(at, len), stag, 9).unwrap();
                    expected[us].push(Event::Read { id });
                    areas.push((to, at + 9, at, len));
                }
            }
        }
        link.run();
        for (side, expected) in [Side::Initiator, Side::Responder].into_iter().zip(&expected) {
            let events = link.events(side).clone();
            for kind in KINDS {
                prop_assert_eq!(of_kind(kind, &events), of_kind(kind, expected));
            }
        }
        for (from, source, sink, len) in areas {
            let (host, disk) = if from == Side::Initiator { (source, sink) } else { (sink, source) };
            prop_assert!(link.same(host, disk, len), "{from:?} {source} {sink} {len}");
        }
    }
}
