//! Everything that a machine can post.

use crate::common::*;
use crate::rig::{CONFIG, Rig, configs};
use crate::script::{RECEIVES, Reported, Script};
use proto::iwarp::Config;
use proto::message::{Access, Advertised, WorkId};
use rdma::iwarp::Channel;
use reactor::io::Io;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wire::{Places, Span};

type Scripts = Rig<Script, Vec<Reported>, Script, Vec<Reported>>;

fn open(config: Config) -> Scripts {
    let ring = ring();
    let ours = Channel::initiator(config, Script::default(), ring.now()).unwrap();
    let theirs = Channel::responder(config, Script::default(), ring.now());
    Rig::new(ring, (ours, Vec::new()), (theirs, Vec::new()))
}

fn ready(config: Config) -> Scripts {
    let mut rig = open(config);
    rig.run_until(|rig| !rig.initiator.above.is_empty() && !rig.target.above.is_empty());
    assert_eq!(rig.initiator.above.pop(), Some(Reported::Ready(b"you may".to_vec())));
    assert_eq!(rig.target.above.pop(), Some(Reported::Ready(Vec::new())));
    rig
}

fn close(rig: Scripts) {
    let (mut ring, ..) = rig.close();
    assert_eq!(ring.arena().in_use(), 0, "all buffers came back");
}

impl Scripts {
    /// Sends a message, and returns the result.
    fn message(&mut self, header: Vec<u8>, payload: Places, invalidate: Option<u32>) -> (Span, Vec<u8>) {
        let work = WorkId(header.len() as u64);
        self.initiator.machine().post(move |to| to.send(work, &header, payload, true, invalidate));
        self.run_until(|rig| !rig.initiator.above.is_empty() && !rig.target.above.is_empty());
        assert_eq!(self.initiator.above.pop(), Some(Reported::Finished(work.0)));
        match self.target.above.pop() {
            Some(Reported::Message { place, bytes, invalidated }) => {
                assert_eq!(invalidated, invalidate);
                (place, bytes)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Gives the initiator access to places of the target.
    fn advertise(&mut self, places: Places, access: Access) -> Advertised {
        let cell = Rc::new(Cell::new(None));
        let advertised = cell.clone();
        self.target.machine().post(move |to| {
            advertised.set(Some(to.advertise(places, access)?));
            Ok(())
        });
        self.target.run(&mut self.ring);
        cell.get().unwrap()
    }
}

/// Headers that the queue copies, longer ones, and ones longer than the reserved buffer.
#[test]
fn messages_arrive_whole_whatever_their_header() {
    for config in configs() {
        let mut rig = ready(config);
        let payload = {
            let mut payload = Places::EMPTY;
            for (n, len) in [700, 1, 2000, 299].into_iter().enumerate() {
                payload.push(filled(&mut rig.ring, &pattern(len, n as u32)).iter().next().unwrap());
            }
            payload
        };
        let data = content(&mut rig.ring, &payload);
        for header in [0, 1, 127, 128, 129, 300, 4000, 4300, 9000] {
            for payload in [Places::EMPTY, payload] {
                let bytes = pattern(header, 99);
                let (place, message) = rig.message(bytes.clone(), payload, None);
                let data = if payload.is_empty() { &[] } else { &data[..] };
                assert!(message == [&bytes[..], data].concat(), "a header of {header}");
                assert_eq!((place.offset + u64::from(RECEIVES.aligned_at)) % 4096, 0);
                assert_eq!(place.len, RECEIVES.bytes);
                // There are four receives, so the fifth message arrives in the first again.
                rig.target.machine().release(place);
            }
        }
        payload.iter().for_each(|span| rig.ring.arena().give(&Places::one(span)));
        close(rig);
    }
}

/// A message without a receive breaks the connection: it never overwrites one that the machine still holds.
#[test]
fn messages_stay_until_they_are_released() {
    let mut rig = ready(CONFIG);
    let came: Vec<(Span, Vec<u8>)> =
        (0..4).map(|n| rig.message(pattern(9000, n), Places::EMPTY, None)).collect();
    rig.initiator.machine().post(|to| to.send(WorkId(9), b"one too many", Places::EMPTY, false, None));
    rig.run_until(|rig| matches!(rig.target.above.last(), Some(Reported::Gone(_))));
    let Some(Reported::Gone(reason)) = rig.target.above.last() else { panic!() };
    assert!(reason.contains("no buffer for a message"), "{reason}");
    for (place, bytes) in came {
        assert!(*rig.ring.arena().bytes(place.slice(0, 9000)) == bytes);
    }
    close(rig);
}

#[test]
fn rdma_reaches_what_is_advertised_and_no_more() {
    for config in configs() {
        let mut rig = ready(config);
        let source = filled(&mut rig.ring, &pattern(100_000, 1));
        let sink = filled(&mut rig.ring, &pattern(100_000, 2));
        let into = filled(&mut rig.ring, &pattern(50_000, 3));
        let writable = rig.advertise(sink, Access::Write);
        let readable = rig.advertise(source, Access::Read);
        let at = |to: Advertised, by: u64| Advertised { offset: to.offset + by, ..to };
        let from = source.slice(20_000, 60_000);
        rig.initiator.machine().post(move |to| to.write(WorkId(1), from, at(writable, 40_000)));
        rig.initiator.machine().post(move |to| to.read(WorkId(2), into, at(readable, 50_000)));
        rig.run_until(|rig| rig.initiator.above.len() == 2);
        assert_eq!(std::mem::take(&mut rig.initiator.above), [Reported::Finished(1), Reported::Finished(2)]);
        assert!(content(&mut rig.ring, &into) == pattern(100_000, 1)[50_000..]);
        // What was written before an answer is in place.
        let written = content(&mut rig.ring, &sink);
        assert!(written[..40_000] == pattern(100_000, 2)[..40_000]);
        assert!(written[40_000..] == pattern(100_000, 1)[20_000..80_000]);
        // A message invalidates the STag: from then on the peer may not use it.
        let (place, _) = rig.message(b"thanks".to_vec(), Places::EMPTY, Some(writable.stag));
        rig.target.machine().release(place);
        rig.target.machine().post(move |to| {
            // Data read from it may not be known to have left.
            let _ = to.invalidate(readable.stag);
            Ok(())
        });
        rig.initiator.machine().post(move |to| to.write(WorkId(3), from, writable));
        rig.run_until(|rig| matches!(rig.target.above.last(), Some(Reported::Gone(_))));
        assert!(content(&mut rig.ring, &sink) == written);
        for places in [source, sink, into] {
            rig.ring.arena().give(&places);
        }
        close(rig);
    }
}

/// A table read into a message's place, while another message arrives beside it.
#[test]
fn what_was_read_into_a_message_can_be_inspected() {
    let mut rig = ready(CONFIG);
    let (place, _) = rig.message(pattern(10_000, 1), Places::EMPTY, None);
    let table = filled(&mut rig.ring, &pattern(12_000, 7));
    let cell = Rc::new(Cell::new(None));
    let advertised = cell.clone();
    rig.initiator.machine().post(move |to| {
        advertised.set(Some(to.advertise(table, Access::Read)?));
        Ok(())
    });
    let ring = &mut rig.ring;
    rig.initiator.run(ring);
    let from = cell.get().unwrap();
    rig.target.machine().post(move |to| to.read(WorkId(5), Places::one(place), from));
    rig.run_until(|rig| !rig.target.above.is_empty());
    assert_eq!(rig.target.above.pop(), Some(Reported::Finished(5)));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let look = seen.clone();
    rig.target.machine().post(move |to| {
        look.borrow_mut().extend_from_slice(to.bytes(place));
        Ok(())
    });
    rig.target.run(&mut rig.ring);
    assert!(*seen.borrow() == pattern(12_000, 7));
    rig.ring.arena().give(&table);
    close(rig);
}

#[test]
fn a_peer_that_serves_no_reads_is_reported() {
    let none = proto::iwarp::setup::Depths { ird: 0, ord: 0 };
    let mut rig = ready(Config { depths: none, ready: None, ..CONFIG });
    let from = Advertised { stag: 1, offset: 0 };
    rig.initiator.machine().post(move |to| to.read(WorkId(1), Places::EMPTY, from));
    rig.run_until(|rig| !rig.initiator.above.is_empty());
    let gone = "work cannot be posted: the peer serves no RDMA Reads".to_string();
    assert_eq!(rig.initiator.above, [Reported::Gone(gone)]);
    close(rig);
}

/// The number of receives may depend on the peer.
#[test]
fn a_machine_that_wants_more_receives_than_fit_is_notified() {
    let mut rig = open(Config { receives: 3, ..CONFIG });
    rig.run_until(|rig| !rig.initiator.above.is_empty() && !rig.target.above.is_empty());
    let gone = "receives cannot be posted: queue is full".to_string();
    assert_eq!(rig.initiator.above, [Reported::Gone(gone)]);
    assert!(matches!(rig.target.above[..], [Reported::Gone(_)]), "{:?}", rig.target.above);
    close(rig);
}
