//! Two channels at the ends of a loopback connection, on one ring.

use crate::common::*;
use proto::iwarp::Config;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::message::MessageMachine;
use proto::stream::StreamMachine;
use proto::time::Time;
use rdma::iwarp::Channel;
use reactor::crc::crc32c;
use reactor::io::{Completion, Handle, Io, Tag, Wait};
use reactor::stream::Stream;
use reactor::uring::Uring;
use std::net::TcpStream;
use std::os::fd::IntoRawFd;
use std::time::Duration;

pub(crate) const CONFIG: Config = Config {
    enhanced: true,
    crc: true,
    long_fpdus: true,
    depths: Depths { ird: 4, ord: 4 },
    ready: Some(ReadyToReceive::ANY),
    segment_bytes: 1448,
    work: 64,
    receives: 64,
    registrations: 64,
    crc32c,
    random: || 0x1234_5678,
};

/// CRCs on and off, short and long FPDUs.
pub(crate) fn configs() -> impl Iterator<Item = Config> {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    kinds.into_iter().map(|(crc, long_fpdus)| Config { crc, long_fpdus, ..CONFIG })
}

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The layer above a machine.
pub(crate) trait Above<M: MessageMachine> {
    fn event(&mut self, machine: &mut M, now: Time, event: M::Event);
}

/// Records the events it receives.
impl<M: MessageMachine> Above<M> for Vec<M::Event> {
    fn event(&mut self, _: &mut M, _: Time, event: M::Event) {
        self.push(event);
    }
}

/// One end.
pub(crate) struct End<M: MessageMachine, A> {
    tags: [Tag; 2],
    pub stream: Stream,
    pub channel: Channel<M>,
    pub above: A,
    /// Bytes sent and received.
    pub sent: u64,
    pub received: u64,
    /// How many more sends complete; the one after that is held.
    pub completions_left: usize,
    held: Option<Completion>,
}

impl<M: MessageMachine, A: Above<M>> End<M, A> {
    fn new(socket: TcpStream, channel: Channel<M>, above: A, tags: [Tag; 2]) -> End<M, A> {
        let stream = Stream::new(Handle(socket.into_raw_fd()), tags[0], tags[1], Vec::new());
        let (sent, received, completions_left, held) = (0, 0, usize::MAX, None);
        End { tags, stream, channel, above, sent, received, completions_left, held }
    }

    pub(crate) fn machine(&mut self) -> &mut M {
        self.channel.machine_mut()
    }

    fn work(&mut self, ring: &mut Uring) {
        if self.channel.deadline().is_some_and(|deadline| deadline <= ring.now()) {
            self.channel.tick(ring.now());
        }
        loop {
            self.run(ring);
            if !self.stream.feed(ring, &mut self.channel) {
                break;
            }
        }
        self.stream.end_turn();
        self.stream.flush(ring, &mut self.channel);
        self.run(ring);
        if self.channel.finished() && self.stream.has_sent() {
            self.stream.shutdown(ring);
        }
    }

    /// Passes events to the layer above; each verb may cause more.
    pub(crate) fn run(&mut self, ring: &mut Uring) {
        loop {
            self.channel.run(ring.now(), ring.arena());
            let Some(event) = self.channel.poll() else { return };
            self.above.event(self.channel.machine_mut(), ring.now(), event);
        }
    }

    fn complete(&mut self, ring: &mut Uring, completion: Completion) {
        let bytes = u64::from(*completion.result.as_ref().unwrap_or(&0));
        if completion.tag == self.tags[0] {
            self.received += bytes;
            return self.stream.received(ring, completion.result);
        }
        self.sent += bytes;
        if self.completions_left == 0 {
            self.held = Some(completion);
            return;
        }
        self.completions_left -= 1;
        self.sent(ring, completion);
    }

    fn sent(&mut self, ring: &mut Uring, completion: Completion) {
        let mut pushed = Vec::new();
        self.stream.sent(ring, &mut self.channel, completion.result, &mut pushed);
        self.channel.pushed(&pushed);
    }

    /// Completes the send that was held, and all others.
    pub(crate) fn complete_all(&mut self, ring: &mut Uring) {
        self.completions_left = usize::MAX;
        if let Some(completion) = self.held.take() {
            self.sent(ring, completion);
        }
    }

    fn wants_more(&self) -> bool {
        self.stream.wants_more() || self.channel.wants_more() || self.channel.owes() && self.stream.has_sent()
    }
}

/// Both ends.
pub(crate) struct Rig<M: MessageMachine, A, N: MessageMachine, B> {
    pub ring: Uring,
    pub initiator: End<M, A>,
    pub target: End<N, B>,
}

impl<M: MessageMachine, A: Above<M>, N: MessageMachine, B: Above<N>> Rig<M, A, N, B> {
    pub(crate) fn new(ring: Uring, initiator: (Channel<M>, A), target: (Channel<N>, B)) -> Rig<M, A, N, B> {
        let (ours, theirs) = tcp_pair();
        Rig {
            ring,
            initiator: End::new(ours, initiator.0, initiator.1, [Tag(1), Tag(2)]),
            target: End::new(theirs, target.0, target.1, [Tag(3), Tag(4)]),
        }
    }

    /// One turn, in which possibly nothing happens.
    pub(crate) fn turn(&mut self) {
        self.work();
        self.wait(Duration::from_millis(1));
    }

    pub(crate) fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        self.work();
        while !done(self) {
            assert!(self.wait(PATIENCE), "nothing happens any more");
            self.work();
        }
    }

    fn work(&mut self) {
        self.initiator.work(&mut self.ring);
        self.target.work(&mut self.ring);
    }

    /// Waits for something to happen; `false` when nothing did.
    fn wait(&mut self, patience: Duration) -> bool {
        let is_busy = self.initiator.wants_more() || self.target.wants_more();
        let mut completions = Vec::new();
        self.ring.turn(if is_busy { Wait::No } else { Wait::AtMost(patience) }, &mut completions);
        let is_eventful = is_busy || !completions.is_empty();
        for completion in completions {
            if self.initiator.tags.contains(&completion.tag) {
                self.initiator.complete(&mut self.ring, completion);
            } else {
                self.target.complete(&mut self.ring, completion);
            }
        }
        is_eventful
    }

    /// Ends what is left of the connection, and closes everything that belongs to it.
    pub(crate) fn close(mut self) -> (Uring, A, B) {
        self.initiator.stream.shutdown(&mut self.ring);
        self.target.stream.shutdown(&mut self.ring);
        self.run_until(|rig| rig.initiator.stream.quiet() && rig.target.stream.quiet());
        self.initiator.stream.close(&mut self.ring);
        self.target.stream.close(&mut self.ring);
        self.initiator.channel.close(self.ring.arena());
        self.target.channel.close(self.ring.arena());
        (self.ring, self.initiator.above, self.target.above)
    }
}
