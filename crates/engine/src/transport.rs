//! What a connection speaks: iSCSI, or RDMA over our iWARP. Its first bytes tell.

use crate::config::Transports;
use proto::iscsi::login::Access;
use proto::iscsi::target::{Target as IscsiTarget, TargetConfig};
use proto::iser::target::Target as IserTarget;
use proto::iwarp;
use proto::iwarp::setup::Depths;
use proto::stream::{StreamMachine, Transmit, Want};
use proto::time::Time;
use proto::verbs::{Down, TaskId, Up};
use rdma::iwarp::Channel;
use reactor::io::{Errno, Handle, Io};
use reactor::memory::Arena;
use reactor::stream::Stream;
use std::net::SocketAddr;
use std::sync::Arc;

/// How a connection over MPA begins (RFC 5044 section 7.1); a login request of iSCSI begins with its opcode.
const MPA_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
/// Bytes that tell.
pub(crate) const OPENING_BYTES: u32 = MPA_REQUEST.len() as u32;

/// RDMA Reads that a connection makes at a time; it serves none.
const READS: Depths = Depths { ird: 0, ord: 128 };
/// Receives of a connection, at most: an initiator that asks for shorter data segments needs more of them.
const RECEIVES_MAX: u16 = 1024;

/// The machine of one connection.
pub(crate) enum Transport {
    /// Nothing is known of it yet.
    Opening(Opening),
    /// iSCSI over TCP.
    Iscsi(Box<IscsiTarget>),
    /// iSER over our iWARP.
    Iser(Box<Channel<IserTarget>>),
}

/// A connection that has not said yet what it speaks.
pub(crate) struct Opening {
    config: TargetConfig,
    access: Arc<dyn Access>,
    from: SocketAddr,
    portal: SocketAddr,
    offered: Transports,
    deadline: Time,
    /// It is on the core where it stays, if it cannot move later.
    pub(crate) is_placed: bool,
    state: State,
}

/// What is known.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Found(Spoken),
    Failed(String),
    Over,
}

/// What it speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Spoken {
    /// iSCSI.
    Iscsi,
    /// Something over iWARP.
    Iwarp,
}

impl Transport {
    /// A connection that was accepted now, `from` there on this `portal`.
    pub(crate) fn accepted(
        config: TargetConfig,
        access: Arc<dyn Access>,
        from: SocketAddr,
        portal: SocketAddr,
        offered: Transports,
        now: Time,
    ) -> Transport {
        let deadline = now.after(config.login_within);
        let state = State::Waiting;
        let is_placed = false;
        Transport::Opening(Opening { config, access, from, portal, offered, deadline, is_placed, state })
    }

    /// What it was found to speak, of which there is no machine yet.
    pub(crate) fn found(&self) -> Option<Spoken> {
        match self {
            Transport::Opening(Opening { state: State::Found(spoken), .. }) => Some(*spoken),
            Transport::Opening(_) | Transport::Iscsi(_) | Transport::Iser(_) => None,
        }
    }

    /// It moves to another core, where its first bytes are looked at again.
    pub(crate) fn place(&mut self) {
        if let Transport::Opening(opening) = self {
            opening.is_placed = true;
            opening.state = State::Waiting;
        }
    }

    /// Whether it may move to another core: memory that a peer knows of does not.
    pub(crate) fn is_movable(&self) -> bool {
        match self {
            Transport::Opening(opening) => !opening.is_placed,
            Transport::Iscsi(_) => true,
            Transport::Iser(_) => false,
        }
    }

    /// The machine of what was found takes over, and gets the first bytes again.
    pub(crate) fn open(&mut self, socket: Handle, now: Time) {
        let Transport::Opening(opening) = self else { return };
        let State::Found(spoken) = opening.state else { return };
        let config = TargetConfig { login_within: opening.deadline.since(now), ..opening.config };
        let (access, from, portal) = (opening.access.clone(), opening.from, opening.portal);
        *self = match spoken {
            Spoken::Iscsi => Transport::Iscsi(Box::new(IscsiTarget::new(config, access, from, portal, now))),
            Spoken::Iwarp => {
                let target = IserTarget::new(config, access, from, portal, now);
                Transport::Iser(Box::new(Channel::responder(iwarp_config(socket), target, now)))
            }
        };
    }

    /// Takes a verb from above.
    pub(crate) fn down(&mut self, now: Time, down: Down) {
        match self {
            Transport::Opening(opening) => {
                if matches!(down, Down::Close | Down::Goodbye { .. }) {
                    opening.state = State::Failed("closed before login by this side".into());
                }
            }
            Transport::Iscsi(target) => target.down(now, down),
            Transport::Iser(channel) => channel.machine_mut().down(now, down),
        }
    }

    /// Feeds the machine until it has an event for the layer above. `None`: it has none, and nothing more can be given
    /// to it now.
    pub(crate) fn next<I: Io>(&mut self, stream: &mut Stream, io: &mut I) -> Option<Up> {
        match self {
            Transport::Iscsi(target) => next(&mut **target, stream, io),
            Transport::Opening(opening) => next(opening, stream, io),
            Transport::Iser(channel) => loop {
                channel.run(io.now(), io.arena());
                if let Some(up) = channel.poll() {
                    return Some(up);
                }
                if !stream.feed(io, &mut **channel) {
                    channel.run(io.now(), io.arena());
                    return channel.poll();
                }
            },
        }
    }

    /// As [`Stream::flush`]. An event may come of it.
    pub(crate) fn flush<I: Io>(&mut self, stream: &mut Stream, io: &mut I) -> Option<Up> {
        match self {
            Transport::Iscsi(target) => {
                stream.flush(io, &mut **target);
                target.poll()
            }
            Transport::Opening(opening) => opening.poll(),
            Transport::Iser(channel) => {
                channel.run(io.now(), io.arena());
                stream.flush(io, &mut **channel);
                channel.run(io.now(), io.arena());
                channel.poll()
            }
        }
    }

    /// As [`Stream::sent`].
    pub(crate) fn sent<I: Io>(
        &mut self,
        stream: &mut Stream,
        io: &mut I,
        result: Result<u32, Errno>,
        pushed: &mut Vec<TaskId>,
    ) {
        match self {
            Transport::Iscsi(target) => stream.sent(io, &mut **target, result, pushed),
            Transport::Opening(opening) => stream.sent(io, opening, result, pushed),
            Transport::Iser(channel) => {
                stream.sent(io, &mut **channel, result, pushed);
                channel.pushed(pushed);
                pushed.clear();
            }
        }
    }

    /// Takes the oldest event for the layer above.
    pub(crate) fn poll<I: Io>(&mut self, io: &mut I) -> Option<Up> {
        match self {
            Transport::Iscsi(target) => target.poll(),
            Transport::Opening(opening) => opening.poll(),
            Transport::Iser(channel) => {
                channel.run(io.now(), io.arena());
                channel.poll()
            }
        }
    }

    /// As [`StreamMachine::owes`].
    pub(crate) fn owes(&self) -> bool {
        match self {
            Transport::Iscsi(target) => target.owes(),
            Transport::Opening(opening) => opening.owes(),
            Transport::Iser(channel) => channel.owes(),
        }
    }

    /// Whether it waits for memory: it is to be polled again in the next turn.
    pub(crate) fn wants_more(&self) -> bool {
        match self {
            Transport::Iscsi(_) | Transport::Opening(_) => false,
            Transport::Iser(channel) => channel.wants_more(),
        }
    }

    /// As [`StreamMachine::deadline`].
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Transport::Iscsi(target) => target.deadline(),
            Transport::Opening(opening) => opening.deadline(),
            Transport::Iser(channel) => channel.deadline(),
        }
    }

    /// As [`StreamMachine::tick`].
    pub(crate) fn tick(&mut self, now: Time) {
        match self {
            Transport::Iscsi(target) => target.tick(now),
            Transport::Opening(opening) => opening.tick(now),
            Transport::Iser(channel) => channel.tick(now),
        }
    }

    /// Gives its memory back; the stream is quiet.
    pub(crate) fn close(self, arena: &mut Arena) {
        match self {
            Transport::Opening(_) | Transport::Iscsi(_) => {}
            Transport::Iser(channel) => channel.close(arena),
        }
    }

    /// Whether places of a task that is over stay lent until [`Up::Pushed`].
    pub(crate) fn is_rdma(&self) -> bool {
        matches!(self, Transport::Iser(_))
    }

    /// Whether payload is summed on its way: what goes out may not change between being summed and being sent, and what
    /// came in is not to be used before it was checked.
    pub(crate) fn sums_payload(&self) -> bool {
        match self {
            Transport::Opening(_) => false,
            Transport::Iscsi(target) => target.sums_payload(),
            Transport::Iser(channel) => channel.agreed().is_some_and(|agreed| agreed.crc),
        }
    }

    /// Data of this task that comes next in the stream, has no place yet, and is the last that the initiator has
    /// announced, in bytes.
    pub(crate) fn unplaced(&mut self, task: TaskId) -> u32 {
        match self {
            Transport::Iscsi(target) => target.unplaced(task),
            Transport::Opening(_) | Transport::Iser(_) => 0,
        }
    }

    /// For the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Transport::Opening(_) | Transport::Iscsi(_) => "iSCSI",
            Transport::Iser(_) => "iSER",
        }
    }
}

fn next<M: StreamMachine<Event = Up>, I: Io>(machine: &mut M, stream: &mut Stream, io: &mut I) -> Option<Up> {
    loop {
        if let Some(up) = machine.poll() {
            return Some(up);
        }
        if !stream.feed(io, machine) {
            return machine.poll();
        }
    }
}

fn iwarp_config(socket: Handle) -> iwarp::Config {
    iwarp::Config {
        enhanced: true,
        crc: false,
        long_fpdus: true,
        depths: READS,
        ready: None,
        segment_bytes: reactor::net::segment_bytes(socket),
        work: iwarp::WORK_MAX,
        receives: RECEIVES_MAX,
        registrations: 0,
        crc32c: reactor::crc::crc32c,
        random: crate::random::bits,
    }
}

impl StreamMachine for Opening {
    type Event = Up;

    fn want(&self) -> Want {
        if self.state == State::Waiting { Want::Header { len: OPENING_BYTES } } else { Want::Nothing }
    }

    fn header(&mut self, _now: Time, bytes: &[u8]) {
        self.state = self.look(bytes);
    }

    fn body(&mut self, _now: Time, _digest_ok: bool) {}

    fn closed(&mut self, _now: Time, error: Option<&str>) {
        self.state = State::Failed(error.unwrap_or("closed by the initiator").to_owned());
    }

    fn poll(&mut self) -> Option<Up> {
        if !matches!(self.state, State::Failed(_)) {
            return None;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Failed(reason) => Some(Up::Gone { reason }),
            State::Waiting | State::Found(_) | State::Over => None,
        }
    }

    fn owes(&self) -> bool {
        false
    }

    fn transmit(&mut self, _now: Time, _batch: &mut Transmit) {}

    fn finished(&self) -> bool {
        self.state == State::Over
    }

    fn deadline(&self) -> Option<Time> {
        (self.state != State::Over).then_some(self.deadline)
    }

    fn tick(&mut self, now: Time) {
        if now >= self.deadline {
            self.state = State::Failed("login took too long".into());
        }
    }
}

impl Opening {
    fn look(&self, bytes: &[u8]) -> State {
        if bytes == MPA_REQUEST {
            match self.offered.iser {
                true => State::Found(Spoken::Iwarp),
                false => State::Failed("it asks for RDMA, which this portal does not offer".into()),
            }
        } else if self.offered.iscsi {
            State::Found(Spoken::Iscsi)
        } else {
            State::Failed("it does not ask for RDMA, and this portal offers nothing else".into())
        }
    }
}
