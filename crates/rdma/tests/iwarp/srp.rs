//! SRP over iWARP: logins, data both ways, and ends at any moment.

use crate::common::*;
use crate::disk::{Disk, READ, WRITE};
use crate::rig::{CONFIG, Rig, configs};
use proto::iscsi::initiator::{Outcome, Request};
use proto::iwarp::Config;
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::login::{Access, Applicant};
use proto::srp::target::{Target, TargetConfig};
use proto::verbs::{Attribute, Down, TaskId};
use rdma::iwarp::Channel;
use reactor::io::Io;
use reactor::memory::Region;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::sync::Arc;
use std::time::Duration;
use wire::srp::RejectReason;
use wire::{Cdb, Places};

const GUID: [u8; 16] = [2; 16];
const IDLE: Duration = Duration::from_secs(30);
const TARGET: TargetConfig =
    TargetConfig { queue_depth: 16, max_it_iu_bytes: 80 + 8192, target_port: GUID, idle: IDLE };
pub(crate) const INITIATOR: InitiatorConfig = InitiatorConfig {
    initiator_port: [1; 16],
    target_port: GUID,
    queue_depth: 16,
    it_iu_bytes: 68 + 8192,
    keeps_others: false,
    login_within: IDLE,
};
const DISK_BYTES: u64 = 8 << 20;
const GOOD: Outcome = Outcome::Status { status: 0, sense: None };

struct Door(Option<RejectReason>);

impl Access for Door {
    fn admit(&self, _: &Applicant) -> Result<bool, RejectReason> {
        self.0.map_or(Ok(false), Err)
    }
}

pub(crate) type Srp = Rig<Initiator, Vec<Event>, Target, Disk>;

/// An initiator that asks for a login.
fn asking(ring: Uring, config: Config, initiator: InitiatorConfig, refusal: Option<RejectReason>) -> Srp {
    let (from, portal) = ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap());
    let target = Target::new(TARGET, Arc::new(Door(refusal)), from, portal, ring.now());
    let initiator = Initiator::new(initiator, ring.now());
    let ours = Channel::initiator(config, initiator, ring.now()).unwrap();
    let theirs = Channel::responder(config, target, ring.now());
    let disk = Disk::new(Region::map(DISK_BYTES).unwrap());
    Rig::new(ring, (ours, Vec::new()), (theirs, disk))
}

/// Two ends that may log in.
pub(crate) fn open(ring: Uring, config: Config) -> Srp {
    asking(ring, config, INITIATOR, None)
}

/// Two ends that are logged in.
fn ready(ring: Uring, config: Config) -> Srp {
    let mut rig = open(ring, config);
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.sessions == 1);
    assert!(matches!(rig.initiator.above.pop(), Some(Event::Ready(_))), "{:?}", rig.target.above.gone);
    rig
}

/// Closes the rig, which the caller's places were taken off, and nothing is left.
pub(crate) fn close(rig: Srp) -> (Uring, Vec<Event>, Disk) {
    let (mut ring, events, disk) = rig.close();
    assert_eq!(ring.arena().in_use(), 0, "all buffers came back");
    (ring, events, disk)
}

/// A command to the disk.
fn command(opcode: u8, disk: u32, places: Places) -> Request {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&disk.to_be_bytes());
    cdb[6..10].copy_from_slice(&places.len().to_be_bytes());
    let cdb = Cdb::from_bytes(&cdb).unwrap();
    let (read, write) = if opcode == READ { (places, Places::EMPTY) } else { (Places::EMPTY, places) };
    Request { lun: 0, attribute: Attribute::Simple, cdb, read, write }
}

impl Srp {
    fn submit(&mut self, opcode: u8, disk: u32, places: Places) -> TaskId {
        self.initiator.machine().submit(command(opcode, disk, places)).unwrap()
    }

    /// Runs until so many commands were reported, which all went well.
    fn complete(&mut self, count: usize) -> Vec<TaskId> {
        self.run_until(|rig| rig.initiator.above.len() >= count || rig.target.above.gone.is_some());
        let events = std::mem::take(&mut self.initiator.above);
        assert_eq!(events.len(), count, "{:?}", self.target.above.gone);
        let tasks = events.into_iter().map(|event| match event {
            Event::Completed(completion) => {
                assert_eq!(completion.outcome, GOOD);
                completion.task
            }
            other => panic!("{other:?}"),
        });
        tasks.collect()
    }

    /// What is on the disk.
    fn disk(&mut self, at: u32, len: u32) -> Vec<u8> {
        let places = self.ring.arena().take(len).unwrap();
        self.target.above.region.copy_out(at.into(), self.ring.arena(), &places);
        self.take(&places)
    }

    /// The content of places, which are given back.
    fn take(&mut self, places: &Places) -> Vec<u8> {
        let bytes = content(&mut self.ring, places);
        self.ring.arena().give(places);
        bytes
    }
}

/// Data in the command, data that is read from the initiator, and data that is written to it.
#[test]
fn data_moves_both_ways() {
    for config in configs() {
        let mut rig = ready(ring(), config);
        assert_eq!(rig.initiator.channel.agreed().unwrap().crc, config.crc);
        for len in [1, 511, 4096, 8192, 8193, 65_536, 100_001, 262_144] {
            let data = pattern(len as usize, len);
            let source = filled(&mut rig.ring, &data);
            let written = rig.submit(WRITE, 77, source);
            assert_eq!(rig.complete(1), [written]);
            assert!(rig.disk(77, len) == data, "{len} bytes were written");
            let sink = rig.ring.arena().take(len).unwrap();
            let read = rig.submit(READ, 77, sink);
            assert_eq!(rig.complete(1), [read]);
            assert!(rig.take(&sink) == data, "{len} bytes were read");
            rig.ring.arena().give(&source);
        }
        close(rig);
    }
}

/// A full queue of every kind of command, over queues that are shorter than what is to be done.
#[test]
fn many_commands_at_once_keep_their_data_apart() {
    for config in configs() {
        let narrow = Config { work: 3, registrations: 8, ..config };
        let mut rig = ready(ring(), narrow);
        let lens = [512, 4096, 8192, 30_000, 65_536, 200_000, 100, 9000];
        for round in 0..3u32 {
            let area = |n: usize| n as u32 * 262_144;
            let mut all = Vec::new();
            for (n, len) in lens.into_iter().enumerate() {
                let data = pattern(len, round * 100 + n as u32);
                let places = filled(&mut rig.ring, &data);
                rig.submit(WRITE, area(n), places);
                all.push((places, data));
            }
            rig.complete(lens.len());
            let mut sinks = Vec::new();
            for (n, (source, data)) in all.iter().enumerate() {
                let sink = rig.ring.arena().take(data.len() as u32).unwrap();
                rig.submit(READ, area(n), sink);
                // Beside them, what is written there again.
                rig.submit(WRITE, area(n), *source);
                sinks.push(sink);
            }
            rig.complete(2 * lens.len());
            for (sink, (source, data)) in sinks.iter().zip(&all) {
                assert!(rig.take(sink) == *data);
                rig.ring.arena().give(source);
            }
        }
        close(rig);
    }
}

#[test]
fn logouts_reach_the_other_side() {
    let mut rig = ready(ring(), CONFIG);
    rig.initiator.machine().logout();
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.gone.is_some());
    let (ring, events, disk) = close(rig);
    assert_eq!(events, [Event::Gone { reason: "logged out".to_string() }]);
    assert_eq!(disk.gone.as_deref(), Some("logged out"));

    // The target may send only after the initiator has (RFC 5044 section 7.1.2).
    let mut rig = ready(ring, CONFIG);
    rig.submit(WRITE, 0, Places::EMPTY);
    rig.complete(1);
    let now = rig.ring.now();
    rig.target.machine().down(now, Down::Close);
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.gone.is_some());
    let (_, events, disk) = close(rig);
    assert_eq!(events, [Event::Gone { reason: "logged out by the target with reason 0".to_string() }]);
    assert_eq!(disk.gone.as_deref(), Some("closed by this side"));
}

#[test]
fn a_login_that_is_rejected_is_told_why() {
    let mut rig = asking(ring(), CONFIG, INITIATOR, Some(RejectReason::UNABLE_TO_ASSOCIATE));
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.gone.is_some());
    let (_, events, disk) = close(rig);
    let [Event::Gone { reason }] = &events[..] else { panic!("{events:?}") };
    assert!(reason.contains("login rejected with reason 0x0001"), "{reason}");
    assert!(disk.gone.unwrap().contains("login rejected"));
}

/// Cut after any number of turns, at either end: both learn it, and whatever was under way, all buffers come back.
#[test]
fn a_connection_that_breaks_at_any_moment_leaves_nothing() {
    let mut ring = ring_with(32 << 20, Waker::new().unwrap());
    let is_gone = |event: &Event| matches!(event, Event::Gone { .. });
    // How often it was cut while commands were under way.
    let mut hits = 0;
    for config in configs() {
        for turns in (0..24).chain([30, 40, 50]) {
            let mut rig = open(ring, config);
            let mut places = Vec::new();
            for turn in 0..turns {
                rig.turn();
                if turn >= 4 && places.is_empty() && !rig.initiator.above.is_empty() {
                    for n in 0..8u32 {
                        let len = [150_000, 9000, 4096, 262_144][n as usize % 4];
                        let place = filled(&mut rig.ring, &pattern(len, n));
                        rig.submit(if n % 3 == 0 { READ } else { WRITE }, n * 262_144, place);
                        places.push(place);
                    }
                }
            }
            let cut = if turns % 2 == 0 { &mut rig.initiator.stream } else { &mut rig.target.stream };
            cut.shutdown(&mut rig.ring);
            rig.run_until(|rig| rig.initiator.above.iter().any(is_gone) && rig.target.above.gone.is_some());
            // As the engine does it: the buffers of commands go back as soon as the connection is said to be gone.
            for place in &places {
                rig.ring.arena().give(place);
            }
            let (left, events, _) = close(rig);
            assert!(events.last().is_some_and(is_gone), "the end is the last event: {events:?}");
            // All but the login and the end.
            hits += usize::from(events.len() < 2 + places.len());
            ring = left;
        }
    }
    assert!(hits > 20, "{hits}");
}

#[test]
fn commands_with_headers_longer_than_the_queue_copies_arrive() {
    let mut rig = ready(ring(), CONFIG);
    // Four buffers make a header of 132 bytes, and a CDB of 64 bytes one of 180.
    let data = pattern(262_144, 5);
    let source = filled(&mut rig.ring, &data);
    assert_eq!(source.iter().count(), 4);
    for n in 0..16 {
        let request = command(WRITE, n * 262_144, source);
        let mut cdb = [0; 64];
        cdb[..16].copy_from_slice(request.cdb.as_bytes());
        let cdb = if n % 2 == 0 { request.cdb } else { Cdb::from_bytes(&cdb).unwrap() };
        rig.initiator.machine().submit(Request { cdb, ..request }).unwrap();
    }
    rig.complete(16);
    for n in 0..16 {
        assert!(rig.disk(n * 262_144, 262_144) == data, "{n}");
    }
    rig.ring.arena().give(&source);
    close(rig);
}
