//! The protocol of a connection: iSCSI, or iSER or SRP over our iWARP. Its first bytes show which.
//! Connections over an RDMA device are in `device`; frames carry AoE.

mod device;

pub(crate) use device::{DEPTHS, DeviceChannel};

use crate::access::ConfiguredAccess;
use crate::events::Refusal;
use config::Transports;
use proto::aoe::target::Target as AoeTarget;
use proto::iscsi::target::{Target as IscsiTarget, TargetConfig};
use proto::iser::target::Target as IserTarget;
use proto::iwarp;
use proto::iwarp::setup::Depths;
use proto::message::MessageMachine;
use proto::services::{Down, TaskId, Up};
use proto::srp::target::Target as SrpTarget;
use proto::stream::{StreamMachine, Transmit, Want};
use proto::time::Time;
use rdma::iwarp::Channel;
use reactor::io::{Errno, Handle, Io};
use reactor::memory::Arena;
use reactor::stream::Stream;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::iwarp::{Layout as _, ReadDepths, StartFrame};
use wire::srp::LoginRequestRdma;
use wire::{Sense, Span};

/// Bytes that identify the protocol: an MPA request without its private data. A login request of iSCSI is
/// longer.
pub(crate) const OPENING_BYTES: u32 = StartFrame::BYTES as u32;

/// RDMA Reads that a connection has outstanding at a time; it serves none.
const READS: Depths = Depths { ird: 0, ord: 128 };
/// The most receives of a connection: an initiator that declares shorter data segments needs more of them,
/// and may have fewer commands in flight when these are not enough.
const RECEIVES_MAX: u16 = 1024;

/// The machine of one connection.
pub(crate) enum Transport {
    /// Nothing is known of it yet.
    Opening(Opening),
    /// iSCSI over TCP.
    Iscsi(Box<IscsiTarget>),
    /// iSER over our iWARP.
    Iser(Box<Channel<IserTarget>>),
    /// SRP over our iWARP.
    Srp(Box<Channel<SrpTarget>>),
    /// iSER or SRP over an RDMA device.
    Device(DeviceChannel),
    /// ATA over Ethernet.
    Aoe(Box<AoeTarget>),
}

/// A connection whose protocol is not known yet.
pub(crate) struct Opening {
    access: Arc<ConfiguredAccess>,
    from: SocketAddr,
    portal: SocketAddr,
    offered: Transports,
    deadline: Time,
    /// It is on its final core, if its protocol cannot move later.
    is_placed: bool,
    state: State,
}

/// What is known so far.
#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Found(StreamProtocol),
    Failed(String),
    Over,
}

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamProtocol {
    /// iSCSI.
    Iscsi,
    /// iSER over iWARP.
    Iser,
    /// SRP over iWARP.
    Srp,
}

/// The result of sending.
pub(crate) struct Flushed {
    /// An event for the layer above.
    pub(crate) event: Option<Up>,
    /// The result of a send that has already ended.
    pub(crate) sent: Option<Result<u32, Errno>>,
}

impl Transport {
    /// A newly accepted connection, whose peer is `from` at this `portal`.
    pub(crate) fn accepted(
        access: Arc<ConfiguredAccess>,
        from: SocketAddr,
        portal: SocketAddr,
        offered: Transports,
        now: Time,
    ) -> Transport {
        let deadline = now.after(access.iscsi_config().login_within);
        let state = State::Waiting;
        let is_placed = false;
        Transport::Opening(Opening { access, from, portal, offered, deadline, is_placed, state })
    }

    /// The protocol that it was found to use, if its machine does not exist yet.
    pub(crate) fn found(&self) -> Option<StreamProtocol> {
        match self {
            Transport::Opening(Opening { state: State::Found(protocol), .. }) => Some(*protocol),
            Transport::Opening(_)
            | Transport::Iscsi(_)
            | Transport::Iser(_)
            | Transport::Srp(_)
            | Transport::Device(_)
            | Transport::Aoe(_) => None,
        }
    }

    /// It moves to another core, where its first bytes are checked again.
    pub(crate) fn place(&mut self) {
        if let Transport::Opening(opening) = self {
            opening.is_placed = true;
            opening.state = State::Waiting;
        }
    }

    /// Whether it may move to another core: memory that a peer has been given access to does not move.
    pub(crate) fn is_movable(&self) -> bool {
        match self {
            Transport::Opening(opening) => !opening.is_placed,
            Transport::Iscsi(_) => true,
            Transport::Iser(_) | Transport::Srp(_) | Transport::Device(_) | Transport::Aoe(_) => false,
        }
    }

    /// The machine of the protocol found takes over, and gets the first bytes again.
    pub(crate) fn open<I: Io>(&mut self, socket: Handle, io: &I) {
        let Transport::Opening(opening) = self else { return };
        let State::Found(protocol) = opening.state else { return };
        let now = io.now();
        let (access, from, portal) = (opening.access.clone(), opening.from, opening.portal);
        let srp = access.srp_config();
        let config = TargetConfig { login_within: opening.deadline.since(now), ..access.iscsi_config() };
        *self = match protocol {
            StreamProtocol::Iscsi => {
                Transport::Iscsi(Box::new(IscsiTarget::new(config, access, from, portal, now)))
            }
            StreamProtocol::Iser => {
                let target = IserTarget::new(config, RECEIVES_MAX, access, from, portal, now);
                Transport::Iser(channel(socket, target, io))
            }
            StreamProtocol::Srp => {
                Transport::Srp(channel(socket, SrpTarget::new(srp, access, from, portal, now), io))
            }
        };
    }

    /// Passes a call down from the engine.
    pub(crate) fn down(&mut self, now: Time, down: Down) {
        match self {
            Transport::Opening(opening) => {
                if matches!(down, Down::Close | Down::RequestLogout { .. }) {
                    opening.state = State::Failed("closed before login by this side".into());
                }
            }
            Transport::Iscsi(target) => target.down(now, down),
            Transport::Iser(channel) => channel.machine_mut().down(now, down),
            Transport::Srp(channel) => channel.machine_mut().down(now, down),
            Transport::Device(channel) => channel.down(now, down),
            Transport::Aoe(target) => target.down(now, down),
        }
    }

    /// Limits the window to this many more commands, all of whose data may be unsolicited. Returns whether
    /// the window is closed until there is more room. SRP's data inside commands has its receives, which the
    /// request limit counts; AoE's has frames, and a frame that finds none is retransmitted.
    pub(crate) fn limit_window(&mut self, commands: u32) -> bool {
        match self {
            Transport::Iscsi(target) => target.limit_window(commands),
            Transport::Iser(channel) => channel.machine_mut().limit_window(commands),
            Transport::Device(channel) => channel.limit_window(commands),
            Transport::Opening(_) | Transport::Srp(_) | Transport::Aoe(_) => false,
        }
    }

    /// Feeds the machine until it has an event for the engine. `None`: it has none, and cannot get more input
    /// now. A connection over an RDMA device has no stream.
    pub(crate) fn next<I: Io>(&mut self, stream: Option<&mut Stream>, io: &mut I) -> Option<Up> {
        let Some(stream) = stream else { return self.poll(io) };
        match self {
            Transport::Iscsi(target) => next(&mut **target, stream, io),
            Transport::Opening(opening) => next(opening, stream, io),
            Transport::Iser(channel) => next_of_channel(channel, stream, io),
            Transport::Srp(channel) => next_of_channel(channel, stream, io),
            Transport::Device(_) | Transport::Aoe(_) => self.poll(io),
        }
    }

    /// Like [`Stream::flush`] or [`Stream::gather`]. It may produce an event.
    pub(crate) fn flush<I: Io>(&mut self, stream: Option<&mut Stream>, io: &mut I) -> Flushed {
        let Some(stream) = stream else { return Flushed { event: self.poll(io), sent: None } };
        let event = match self {
            Transport::Iscsi(target) => {
                let sent = stream.gather(io, &mut **target);
                return Flushed { event: target.poll(), sent };
            }
            Transport::Opening(opening) => opening.poll(),
            Transport::Iser(channel) => flush_channel(channel, stream, io),
            Transport::Srp(channel) => flush_channel(channel, stream, io),
            Transport::Device(_) | Transport::Aoe(_) => self.poll(io),
        };
        Flushed { event, sent: None }
    }

    /// Like [`Stream::sent`]. RDMA devices and frames have no stream.
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
            Transport::Iser(channel) => sent_by_channel(channel, stream, io, result, pushed),
            Transport::Srp(channel) => sent_by_channel(channel, stream, io, result, pushed),
            Transport::Device(_) | Transport::Aoe(_) => {}
        }
    }

    /// The oldest event for the engine.
    pub(crate) fn poll<I: Io>(&mut self, io: &mut I) -> Option<Up> {
        match self {
            Transport::Iscsi(target) => target.poll(),
            Transport::Opening(opening) => opening.poll(),
            Transport::Iser(channel) => poll_channel(channel, io),
            Transport::Srp(channel) => poll_channel(channel, io),
            Transport::Device(channel) => channel.poll(io),
            Transport::Aoe(target) => poll_frames(target, io),
        }
    }

    /// As [`StreamMachine::owes`].
    pub(crate) fn owes(&self) -> bool {
        match self {
            Transport::Iscsi(target) => target.owes(),
            Transport::Opening(opening) => opening.owes(),
            Transport::Iser(channel) => channel.owes(),
            Transport::Srp(channel) => channel.owes(),
            // Whatever it owes is posted whenever it is polled.
            Transport::Device(_) => false,
            Transport::Aoe(target) => target.owes(),
        }
    }

    /// Whether there is nothing to do before more comes from the initiator or the engine; `false` where that
    /// is not known.
    pub(crate) fn is_at_rest(&self) -> bool {
        match self {
            Transport::Iscsi(target) => target.is_at_rest(),
            Transport::Opening(_)
            | Transport::Iser(_)
            | Transport::Srp(_)
            | Transport::Device(_)
            | Transport::Aoe(_) => false,
        }
    }

    /// Whether it waits for memory: it is to be polled again in the next turn.
    pub(crate) fn wants_more(&self) -> bool {
        match self {
            Transport::Iscsi(_) | Transport::Opening(_) => false,
            Transport::Iser(channel) => channel.wants_more(),
            Transport::Srp(channel) => channel.wants_more(),
            Transport::Device(channel) => channel.wants_more(),
            // The ring had no room for all that it owes.
            Transport::Aoe(target) => target.owes(),
        }
    }

    /// As [`StreamMachine::deadline`].
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self {
            Transport::Iscsi(target) => target.deadline(),
            Transport::Opening(opening) => opening.deadline(),
            Transport::Iser(channel) => channel.deadline(),
            Transport::Srp(channel) => channel.deadline(),
            Transport::Device(channel) => channel.deadline(),
            Transport::Aoe(target) => target.deadline(),
        }
    }

    /// As [`StreamMachine::tick`].
    pub(crate) fn tick(&mut self, now: Time) {
        match self {
            Transport::Iscsi(target) => target.tick(now),
            Transport::Opening(opening) => opening.tick(now),
            Transport::Iser(channel) => channel.tick(now),
            Transport::Srp(channel) => channel.tick(now),
            Transport::Device(channel) => channel.tick(now),
            Transport::Aoe(target) => target.tick(now),
        }
    }

    /// Releases its memory; the stream is quiet.
    pub(crate) fn close(self, arena: &mut Arena) {
        match self {
            Transport::Opening(_) | Transport::Iscsi(_) | Transport::Aoe(_) => {}
            Transport::Iser(channel) => channel.close(arena),
            Transport::Srp(channel) => channel.close(arena),
            Transport::Device(channel) => channel.close(arena),
        }
    }

    /// Whether buffers of a task that has ended stay in use until [`Up::Pushed`].
    pub(crate) fn is_rdma(&self) -> bool {
        matches!(self, Transport::Iser(_) | Transport::Srp(_) | Transport::Device(_))
    }

    /// Whether it speaks SRP.
    pub(crate) fn is_srp(&self) -> bool {
        match self {
            Transport::Opening(_) | Transport::Iscsi(_) | Transport::Iser(_) | Transport::Aoe(_) => false,
            Transport::Srp(_) => true,
            Transport::Device(channel) => channel.is_srp(),
        }
    }

    /// The machine of SRP.
    fn srp_mut(&mut self) -> Option<&mut SrpTarget> {
        match self {
            Transport::Opening(_) | Transport::Iscsi(_) | Transport::Iser(_) | Transport::Aoe(_) => None,
            Transport::Srp(channel) => Some(channel.machine_mut()),
            Transport::Device(channel) => channel.srp_mut(),
        }
    }

    /// The channel of an RDMA device.
    pub(crate) fn device_mut(&mut self) -> Option<&mut DeviceChannel> {
        match self {
            Transport::Opening(_)
            | Transport::Iscsi(_)
            | Transport::Iser(_)
            | Transport::Srp(_)
            | Transport::Aoe(_) => None,
            Transport::Device(channel) => Some(channel),
        }
    }

    /// The machine of AoE.
    pub(crate) fn aoe_mut(&mut self) -> Option<&mut AoeTarget> {
        match self {
            Transport::Opening(_)
            | Transport::Iscsi(_)
            | Transport::Iser(_)
            | Transport::Srp(_)
            | Transport::Device(_) => None,
            Transport::Aoe(target) => Some(target),
        }
    }

    /// Ends the connection; what is in flight ends soon.
    pub(crate) fn shut_down<I: Io>(&mut self, stream: Option<&mut Stream>, io: &mut I) {
        match (self, stream) {
            (_, Some(stream)) => stream.shutdown(io),
            (Transport::Device(channel), None) => channel.shut_down(io.now()),
            (_, None) => {}
        }
    }

    /// Whether a device moves the data; it has access only to the core's own memory.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self, Transport::Device(_))
    }

    /// Whether payload has a digest: what is sent must not change between being summed and being sent, and
    /// what was received must not be used before it was verified.
    pub(crate) fn sums_payload(&self) -> bool {
        match self {
            Transport::Opening(_) | Transport::Device(_) | Transport::Aoe(_) => false,
            Transport::Iscsi(target) => target.sums_payload(),
            Transport::Iser(channel) => channel.agreed().is_some_and(|agreed| agreed.crc),
            Transport::Srp(channel) => channel.agreed().is_some_and(|agreed| agreed.crc),
        }
    }

    /// Aborts commands that have not been passed up yet; returns those with RDMA in progress.
    pub(crate) fn forget_unread(&mut self, of: impl Fn(u64) -> bool) -> Vec<TaskId> {
        self.srp_mut().map_or_else(Vec::new, |target| target.forget_unread(of))
    }

    /// The length of data of this task that comes next in the stream, has no buffer yet, and is the last that
    /// the initiator has announced.
    pub(crate) fn unplaced(&mut self, task: TaskId) -> u32 {
        match self {
            Transport::Iscsi(target) => target.unplaced(task),
            Transport::Opening(_)
            | Transport::Iser(_)
            | Transport::Srp(_)
            | Transport::Device(_)
            | Transport::Aoe(_) => 0,
        }
    }

    /// Where the data of this task is, if all of it came inside its command: valid until the next call of the
    /// machine.
    pub(crate) fn immediate(&mut self, task: TaskId) -> Option<Span> {
        match self.aoe_mut() {
            Some(target) => target.immediate(task),
            None => self.srp_mut()?.immediate(task),
        }
    }

    /// The same, but it stays there until [`Transport::end_borrow`].
    pub(crate) fn borrow(&mut self, task: TaskId) -> Option<Span> {
        match self.aoe_mut() {
            Some(target) => target.borrow(task),
            None => self.srp_mut()?.borrow(task),
        }
    }

    /// What was borrowed is not used any more.
    pub(crate) fn end_borrow(&mut self, task: TaskId) {
        if let Some(target) = self.aoe_mut() {
            target.end_borrow(task);
        } else if let Some(target) = self.srp_mut() {
            target.end_borrow(task);
        }
    }

    /// Reports to the initiator at once what a unit attention would report with the next command, if the
    /// transport has a message for that which initiators understand.
    pub(crate) fn notify_event(&mut self, lun: u64, sense: Sense) {
        if let Some(target) = self.srp_mut() {
            // While another is in transit, the unit attention has to do.
            target.notify_event(lun, sense);
        }
    }

    /// Whether the initiator has begun a login that is well-formed.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            Transport::Opening(_) => false,
            Transport::Iscsi(target) => target.has_begun(),
            Transport::Iser(channel) => channel.machine().has_begun(),
            Transport::Srp(channel) => channel.machine().has_begun(),
            Transport::Device(channel) => channel.has_begun(),
            Transport::Aoe(_) => true,
        }
    }

    /// Why it refused a login.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self {
            Transport::Iscsi(target) => target.refusal().map(Refusal::from),
            Transport::Iser(channel) => channel.machine().refusal().map(Refusal::from),
            Transport::Srp(channel) => channel.machine().refusal().map(Refusal::from),
            Transport::Device(channel) => channel.refusal(),
            Transport::Opening(_) | Transport::Aoe(_) => None,
        }
    }

    /// For the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Transport::Opening(_) | Transport::Iscsi(_) => "iSCSI",
            Transport::Iser(_) => "iSER",
            Transport::Srp(_) => "SRP",
            Transport::Device(channel) => channel.name(),
            Transport::Aoe(_) => "AoE",
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

fn next_of_channel<M: MessageMachine<Event = Up>, I: Io>(
    channel: &mut Channel<M>,
    stream: &mut Stream,
    io: &mut I,
) -> Option<Up> {
    loop {
        channel.take_in(io.now(), io.arena());
        if let Some(up) = channel.poll() {
            return Some(up);
        }
        if stream.feed(io, channel) {
            continue;
        }
        // More may be received after this has been posted.
        if let Some(up) = poll_channel(channel, io) {
            return Some(up);
        }
        if !stream.feed(io, channel) {
            return None;
        }
    }
}

fn poll_channel<M: MessageMachine<Event = Up>, I: Io>(channel: &mut Channel<M>, io: &mut I) -> Option<Up> {
    channel.run(io.now(), io.arena());
    channel.poll()
}

/// Requested data is in frames, and is copied from there.
fn poll_frames<I: Io>(target: &mut AoeTarget, io: &mut I) -> Option<Up> {
    while let Some((from, to)) = target.copy() {
        io.arena().copy(from, &to);
    }
    target.poll()
}

/// The stream's tasks are work requests of the queue pair.
fn sent_by_channel<M: MessageMachine<Event = Up>, I: Io>(
    channel: &mut Channel<M>,
    stream: &mut Stream,
    io: &mut I,
    result: Result<u32, Errno>,
    pushed: &mut Vec<TaskId>,
) {
    stream.sent(io, channel, result, pushed);
    channel.pushed(pushed);
    pushed.clear();
}

fn flush_channel<M: MessageMachine<Event = Up>, I: Io>(
    channel: &mut Channel<M>,
    stream: &mut Stream,
    io: &mut I,
) -> Option<Up> {
    channel.run(io.now(), io.arena());
    stream.flush(io, channel);
    poll_channel(channel, io)
}

fn channel<M: MessageMachine, I: Io>(socket: Handle, machine: M, io: &I) -> Box<Channel<M>> {
    Box::new(Channel::responder(iwarp_config(io, socket), machine, io.now()))
}

fn iwarp_config<I: Io>(io: &I, socket: Handle) -> iwarp::Config {
    iwarp::Config {
        enhanced: true,
        crc: false,
        long_fpdus: true,
        depths: READS,
        ready: None,
        segment_bytes: io.segment_bytes(socket),
        work: iwarp::WORK_MAX,
        receives: RECEIVES_MAX,
        registrations: 0,
        crc32c: reactor::crc::crc32c,
        random: I::random,
    }
}

impl StreamMachine for Opening {
    type Event = Up;

    fn want(&self) -> Want {
        if self.state == State::Waiting { Want::Header { len: OPENING_BYTES } } else { Want::Nothing }
    }

    fn header(&mut self, _now: Time, bytes: &[u8]) {
        self.state = self.spoken_protocol(bytes);
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
    fn spoken_protocol(&self, bytes: &[u8]) -> State {
        let request = StartFrame::view(bytes).filter(|frame| frame.key == StartFrame::REQUEST);
        let (protocol, is_offered, name) = match request {
            None => (StreamProtocol::Iscsi, self.offered.iscsi, "iSCSI"),
            Some(frame) if has_srp_login(frame) => (StreamProtocol::Srp, self.offered.srp, "SRP"),
            Some(_) => (StreamProtocol::Iser, self.offered.iser, "iSER"),
        };
        match is_offered {
            true => State::Found(protocol),
            false => State::Failed(format!("it speaks {name}, which this portal does not offer")),
        }
    }
}

/// iSER's private data has 4 bytes or none (RFC 7145 section 5.1), that of SRP is a whole login.
fn has_srp_login(frame: &StartFrame) -> bool {
    let depths = if frame.has(StartFrame::ENHANCED) { ReadDepths::BYTES } else { 0 };
    usize::from(frame.private_data_length.get()) >= depths + LoginRequestRdma::BYTES
}
