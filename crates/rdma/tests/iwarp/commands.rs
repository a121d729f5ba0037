//! Commands over iWARP: data in both directions, and connections that end at any moment.

use crate::common::*;
use crate::disk::{Disk, READ, Target, WRITE};
use crate::rig::{CONFIG, Rig, configs};
use proto::iscsi::initiator::{Completion, Outcome, Request};
use proto::iwarp::Config;
use proto::message::MessageMachine;
use proto::services::{Attribute, TaskId};
use proto::time::Time;
use rdma::iwarp::Channel;
use reactor::io::Io;
use reactor::memory::Region;
use reactor::uring::Uring;
use reactor::wake::Waker;
use wire::scsi::command::Read12;
use wire::{Cdb, Places};

const DISK_BYTES: u64 = 8 << 20;
const GOOD: Outcome = Outcome::Status { status: 0, sense: None };

/// An initiator's machine.
pub(crate) trait Initiator: MessageMachine<Event: std::fmt::Debug> {
    /// The target's machine.
    type Target: Target;
    /// Both, before login.
    fn pair(now: Time) -> (Self, Self::Target)
    where
        Self: Sized;
    fn submit(&mut self, request: Request) -> Option<TaskId>;
    fn logout(&mut self, now: Time);
    fn completion(event: &Self::Event) -> Option<&Completion>;
    fn reason(event: &Self::Event) -> Option<&str>;
}

pub(crate) type Pair<M> = Rig<M, Vec<<M as MessageMachine>::Event>, <M as Initiator>::Target, Disk>;

/// Two ends before login.
pub(crate) fn open<M: Initiator>(ring: Uring, config: Config, (ours, theirs): (M, M::Target)) -> Pair<M> {
    let ours = Channel::initiator(config, ours, ring.now()).unwrap();
    let theirs = Channel::responder(config, theirs, ring.now());
    let disk = Disk::new(Region::map(DISK_BYTES).unwrap());
    Rig::new(ring, (ours, Vec::new()), (theirs, disk))
}

/// Two ends, logged in.
pub(crate) fn ready<M: Initiator>(ring: Uring, config: Config) -> Pair<M> {
    let pair = M::pair(ring.now());
    let mut rig = open(ring, config, pair);
    rig.run_until(|rig| !rig.initiator.above.is_empty() && rig.target.above.sessions == 1);
    assert!(rig.reason().is_none(), "{:?}", rig.target.above.gone);
    rig.initiator.above.clear();
    rig
}

/// Closes a rig whose places the caller has all released; nothing is left over.
pub(crate) fn close<M: Initiator>(rig: Pair<M>) -> (Uring, Vec<M::Event>, Disk) {
    let (mut ring, events, disk) = rig.close();
    assert_eq!(ring.arena().in_use(), 0, "all buffers came back");
    (ring, events, disk)
}

/// A command to the disk.
pub(crate) fn command(opcode: u8, disk: u32, places: Places) -> Request {
    // The operation code is the device's; the fields are where READ(12) has them.
    let mut cdb = [0; 16];
    Read12::new(disk, places.len()).write(&mut cdb);
    cdb[0] = opcode;
    let cdb = Cdb::from(&cdb);
    let (read, write) = if opcode == READ { (places, Places::EMPTY) } else { (Places::EMPTY, places) };
    Request { lun: 0, attribute: Attribute::Simple, cdb, read, write }
}

impl<M: Initiator> Pair<M> {
    pub(crate) fn submit(&mut self, opcode: u8, disk: u32, places: Places) -> TaskId {
        self.initiator.machine().submit(command(opcode, disk, places)).unwrap()
    }

    /// Runs until this many commands have completed, all successfully.
    pub(crate) fn complete(&mut self, count: usize) -> Vec<TaskId> {
        self.run_until(|rig| rig.initiator.above.len() >= count || rig.reason().is_some());
        let events = std::mem::take(&mut self.initiator.above);
        assert_eq!(events.len(), count, "{events:?} {:?}", self.target.above.gone);
        let completions = events.iter().map(|event| M::completion(event).expect("a command that has ended"));
        completions.inspect(|completion| assert_eq!(completion.outcome, GOOD)).map(|it| it.task).collect()
    }

    /// Why the initiator's end is closed: nothing follows.
    pub(crate) fn reason(&self) -> Option<&str> {
        let events = &self.initiator.above;
        let gone = events.iter().position(|event| M::reason(event).is_some())?;
        assert_eq!(gone + 1, events.len(), "{events:?}");
        M::reason(&events[gone])
    }

    /// Whether both ends have noticed that the connection is closed.
    pub(crate) fn is_gone(&self) -> bool {
        self.reason().is_some() && self.target.above.gone.is_some()
    }

    /// The content of the disk.
    pub(crate) fn disk(&mut self, at: u32, len: u32) -> Vec<u8> {
        let places = self.ring.arena().take(len).unwrap();
        self.target.above.region.copy_out(at.into(), self.ring.arena(), &places);
        self.take(&places)
    }

    /// The content of places, which are then released.
    pub(crate) fn take(&mut self, places: &Places) -> Vec<u8> {
        let bytes = content(&mut self.ring, places);
        self.ring.arena().give(places);
        bytes
    }
}

/// Data in the command, data read from the initiator, and data written to it.
pub(crate) fn data_moves_both_ways<M: Initiator>() {
    for config in configs() {
        let mut rig = ready::<M>(ring(), config);
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

/// A full queue of every kind of command, over work queues that are shorter.
pub(crate) fn many_commands_at_once_keep_their_data_apart<M: Initiator>() {
    for config in configs() {
        let narrow = Config { work: 3, registrations: 8, ..config };
        let mut rig = ready::<M>(ring(), narrow);
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
                // Concurrently, a write of the same data there.
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

/// The target answers when it has the data, possibly before this end gets the completion of the send.
pub(crate) fn what_the_target_reads_is_lent_until_it_has_left<M: Initiator>() {
    for config in configs() {
        let mut rig = ready::<M>(ring(), config);
        rig.run_until(|rig| rig.initiator.stream.has_sent() && rig.target.stream.has_sent());
        let data = pattern(65_536, 3);
        let source = filled(&mut rig.ring, &data);
        // That of the command, not of the data read.
        rig.initiator.completions_left = 1;
        rig.submit(WRITE, 0, source);
        rig.run_until(|rig| {
            let end = &rig.target;
            rig.target.above.ended == 1 && end.stream.has_sent() && end.sent == rig.initiator.received
        });
        assert!(rig.disk(0, 65_536) == data);
        assert!(
            !rig.initiator.stream.has_sent() && rig.initiator.above.is_empty(),
            "its bytes are being sent"
        );
        rig.initiator.complete_all(&mut rig.ring);
        rig.complete(1);
        rig.ring.arena().give(&source);
        close(rig);
    }
}

pub(crate) fn a_logout_reaches_the_other_side<M: Initiator>() {
    let mut rig = ready::<M>(ring(), CONFIG);
    let now = rig.ring.now();
    rig.initiator.machine().logout(now);
    rig.run_until(|rig| rig.is_gone());
    assert_eq!(rig.reason(), Some("logged out"));
    let (_, _, disk) = close(rig);
    assert_eq!(disk.gone.as_deref(), Some("logged out"));
}

/// Cut after any number of turns, at either end: both notice, and whatever was in flight, all buffers are
/// released.
pub(crate) fn a_connection_that_breaks_at_any_moment_leaves_nothing<M: Initiator>() {
    let mut ring = ring_with(32 << 20, Waker::new().unwrap());
    // How often it was cut while commands were outstanding.
    let mut hits = 0;
    for config in configs() {
        for turns in (0..24).chain([30, 40, 50]) {
            let pair = M::pair(ring.now());
            let mut rig = open(ring, config, pair);
            let mut places = Vec::new();
            for _ in 0..turns {
                rig.turn();
                if places.is_empty() && !rig.initiator.above.is_empty() {
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
            rig.run_until(|rig| rig.is_gone());
            // Like the engine: the buffers of commands are released as soon as the end of the connection is
            // reported.
            for place in &places {
                rig.ring.arena().give(place);
            }
            let (left, events, _) = close(rig);
            // Everything except the login and the end.
            hits += usize::from(events.len() < 2 + places.len());
            ring = left;
        }
    }
    assert!(hits > 20, "{hits}");
}

/// The tests shared by all protocols over iWARP.
macro_rules! tests {
    ($initiator:ty) => {
        $crate::commands::tests!($initiator:
            data_moves_both_ways,
            many_commands_at_once_keep_their_data_apart,
            what_the_target_reads_is_lent_until_it_has_left,
            a_connection_that_breaks_at_any_moment_leaves_nothing,
        );
    };
    ($initiator:ty: $( $test:ident, )*) => { $(
        #[test]
        fn $test() {
            $crate::commands::$test::<$initiator>();
        }
    )* };
}
pub(crate) use tests;
