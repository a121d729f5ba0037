//! The stream driver with the iWARP machine at both ends of a loopback connection.

use crate::common::*;
use proto::iwarp::memory::Access;
use proto::iwarp::setup::Depths;
use proto::iwarp::{Config, Event, QueuePair};
use proto::stream::StreamMachine;
use reactor::crc::crc32c;
use reactor::io::{Handle, Io, Tag, Wait};
use reactor::stream::Stream;
use reactor::uring::Uring;
use std::net::TcpStream;
use std::os::fd::IntoRawFd;
use wire::Places;

const CONFIG: Config = Config {
    enhanced: true,
    crc: true,
    long_fpdus: true,
    depths: Depths { ird: 4, ord: 4 },
    ready: None,
    segment_bytes: 1448,
    work: 8,
    receives: 8,
    registrations: 8,
    crc32c,
    random: || 0x1234_5678,
};

struct End {
    tags: [Tag; 2],
    stream: Stream,
    machine: QueuePair,
    events: Vec<Event>,
}

impl End {
    fn new(socket: TcpStream, machine: QueuePair, tags: [Tag; 2]) -> End {
        let stream = Stream::new(Handle(socket.into_raw_fd()), tags[0], tags[1], Vec::new());
        End { tags, stream, machine, events: Vec::new() }
    }

    fn work(&mut self, ring: &mut Uring) {
        while self.stream.feed(ring, &mut self.machine) {
            while let Some(event) = self.machine.poll() {
                if let Event::Request { .. } = event {
                    self.machine.accept(ring.now(), b"").unwrap();
                } else {
                    self.events.push(event);
                }
            }
        }
        self.stream.end_turn();
        self.stream.flush(ring, &mut self.machine);
        self.events.extend(std::iter::from_fn(|| self.machine.poll()));
    }
}

/// Both ends on one ring.
struct Rig {
    ring: Uring,
    ends: [End; 2],
}

impl Rig {
    fn new(initiator: Config, responder: Config) -> Rig {
        let ring = ring();
        let (ours, theirs) = tcp_pair();
        let one = QueuePair::initiator(initiator, b"", ring.now()).unwrap();
        let other = QueuePair::responder(responder, ring.now());
        let ends = [End::new(ours, one, [Tag(1), Tag(2)]), End::new(theirs, other, [Tag(3), Tag(4)])];
        let mut rig = Rig { ring, ends };
        rig.run_until(|rig| rig.ends.iter().all(|end| end.machine.agreed().is_some()));
        rig.ends.iter_mut().for_each(|end| end.events.clear());
        rig
    }

    fn run_until(&mut self, done: impl Fn(&Rig) -> bool) {
        loop {
            self.ends.iter_mut().for_each(|end| end.work(&mut self.ring));
            if done(self) {
                return;
            }
            let wants_more = self.ends.iter().any(|end| end.stream.wants_more());
            let mut completions = Vec::new();
            self.ring.turn(if wants_more { Wait::No } else { Wait::Forever }, &mut completions);
            for completion in completions {
                let end = self.ends.iter_mut().find(|end| end.tags.contains(&completion.tag)).unwrap();
                if completion.tag == end.tags[0] {
                    end.stream.received(&mut self.ring, completion.result);
                    continue;
                }
                let mut pushed = Vec::new();
                end.stream.sent(&mut self.ring, &mut end.machine, completion.result, &mut pushed);
                pushed.into_iter().for_each(|task| end.machine.pushed(task));
                end.events.extend(std::iter::from_fn(|| end.machine.poll()));
            }
        }
    }

    fn place(&mut self, len: u32, seed: u32) -> Places {
        filled(&mut self.ring, &pattern(len as usize, seed))
    }
}

/// A Send, a Write and a Read of this length; checks that the bytes are the same.
fn moves(rig: &mut Rig, len: u32) {
    let sources = [1, 2, 3].map(|seed| rig.place(len, seed));
    let sinks = [4, 5, 6].map(|seed| rig.place(len, seed));
    let [initiator, responder] = &mut rig.ends;
    let both = Access { remote_read: true, remote_write: true };
    let write_to = responder.machine.register(sinks[1], both).unwrap();
    let read_from = responder.machine.register(sources[2], both).unwrap();
    responder.machine.post_receive(1, sinks[0]).unwrap();
    initiator.machine.write(2, sources[1], write_to, 0).unwrap();
    initiator.machine.read(3, sinks[2], read_from, 0).unwrap();
    initiator.machine.send(4, &[], sources[0], false, Some(write_to)).unwrap();
    rig.run_until(|rig| {
        let [initiator, responder] = &rig.ends;
        let have_come = initiator.events.len() == 3 && responder.events.len() == 1;
        have_come && !responder.machine.is_leaving(read_from)
    });
    let received = Event::Received { id: 1, len, solicited: false, invalidated: Some(write_to) };
    assert_eq!(rig.ends[1].events, [received]);
    assert!(rig.ends[0].events.contains(&Event::Read { id: 3 }));
    for (source, sink) in sources.iter().zip(&sinks) {
        assert!(content(&mut rig.ring, source) == content(&mut rig.ring, sink), "{len}");
    }
    for end in &mut rig.ends {
        end.events.clear();
    }
    assert!(rig.ends[1].machine.invalidate(read_from));
    for places in sources.iter().chain(&sinks) {
        rig.ring.arena().give(places);
    }
}

#[test]
fn payload_reaches_its_place() {
    for (crc, long_fpdus) in [(false, false), (false, true), (true, false), (true, true)] {
        let config = Config { crc, long_fpdus, ..CONFIG };
        let mut rig = Rig::new(config, config);
        assert_eq!(rig.ends[0].machine.agreed().unwrap().ulpdu_max > 1442, long_fpdus);
        for len in [1, 4096, 9000, 65_536, 262_144] {
            moves(&mut rig, len);
        }
    }
}

/// A wrong sum ends the connection on both sides, with its cause.
#[test]
fn a_wrong_sum_is_reported() {
    let wrong = Config { crc32c: |bytes| crc32c(bytes) ^ 1, ..CONFIG };
    let mut rig = Rig::new(CONFIG, wrong);
    rig.ends[1].machine.post_receive(1, Places::EMPTY).unwrap();
    rig.ends[0].machine.send(1, &[], Places::EMPTY, false, None).unwrap();
    rig.run_until(|rig| rig.ends[1].machine.finished());
    let Some(Event::Gone { reason }) = rig.ends[1].events.pop() else { panic!() };
    assert!(reason.contains("CRC"), "{reason}");
    rig.run_until(|rig| rig.ends[0].machine.finished());
    let gone = rig.ends[0].events.pop();
    let Some(Event::Gone { reason }) = gone else { panic!("{gone:?}") };
    assert!(reason.contains("terminated by the peer: CRC mismatch"), "{reason}");
}
