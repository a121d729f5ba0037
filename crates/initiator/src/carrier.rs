//! What carries a session's commands: iSCSI directly on the stream, iSER or SRP on our iWARP, or AoE in
//! frames.

use super::frames::Frames;
use config::names::identity;
use config::{Protocol, Url};
use proto::aoe::initiator::{self as aoe, Initiator as AoeInitiator};
use proto::iscsi::initiator::{self as iscsi, Event, Initiator as IscsiInitiator, InitiatorConfig, Request};
use proto::iscsi::login::Negotiated;
use proto::iser::initiator::Initiator as IserInitiator;
use proto::iwarp;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::message::MessageMachine;
use proto::services::TaskId;
use proto::srp::initiator::{self as srp, Initiator as SrpInitiator};
use proto::stream::{StreamMachine, Transmit, Want};
use proto::time::Time;
use rdma::iwarp::Channel;
use reactor::crc::crc32c;
use reactor::io::{Handle, Io};
use reactor::memory::Arena;
use std::time::Duration;

/// The deepest queue over iWARP: a receive of several kilobytes is posted for the answer to each command.
const IWARP_QUEUE_DEPTH_MAX: u16 = 256;
/// Buffers of a command over iWARP: what it reads, and what it writes.
const REGISTRATIONS: u16 = 2;
/// The deepest queue in frames.
const AOE_QUEUE_DEPTH_MAX: u16 = 256;
/// RDMA Reads that the target may have outstanding; an initiator issues none except to signal that it is
/// ready.
const READS: Depths = Depths { ird: 128, ord: 1 };

/// The most data of a write that SRP sends inside the command; as in Linux.
const SRP_IMMEDIATE_BYTES_MAX: u32 = 8192;

/// The initiator's machine of one connection.
pub(crate) enum Carrier {
    /// iSCSI over TCP.
    Iscsi(Box<IscsiInitiator>),
    /// iSER over iWARP.
    Iser(Box<Channel<IserInitiator>>),
    /// SRP over iWARP.
    Srp(Box<Channel<SrpInitiator>>),
    /// AoE, which has no stream.
    Aoe(Box<AoeInitiator>),
}

impl Carrier {
    /// The deepest queue over this URL's transport.
    pub(crate) fn queue_depth_max(url: &Url) -> u16 {
        match url.protocol {
            Protocol::Iscsi => iscsi::QUEUE_DEPTH_MAX,
            Protocol::Iser | Protocol::Srp => IWARP_QUEUE_DEPTH_MAX,
            Protocol::Aoe => AOE_QUEUE_DEPTH_MAX,
        }
    }

    /// A machine for a new connection to this URL's target.
    ///
    /// # Errors
    /// When the connection request is impossible.
    pub(crate) fn new<I: Io>(
        url: &Url,
        config: InitiatorConfig,
        socket: Handle,
        io: &I,
    ) -> Result<Carrier, iwarp::Refused> {
        let now = io.now();
        match url.protocol {
            Protocol::Iscsi => Ok(Carrier::Iscsi(Box::new(IscsiInitiator::new(config, now)))),
            Protocol::Iser => {
                let registrations = REGISTRATIONS * config.queue_depth;
                let machine = IserInitiator::new(config, now);
                Ok(Carrier::Iser(channel(machine, registrations, url.crc, socket, io)?))
            }
            Protocol::Srp => {
                let registrations = REGISTRATIONS * config.queue_depth;
                let machine = SrpInitiator::new(srp_config(url, &config), now);
                Ok(Carrier::Srp(channel(machine, registrations, url.crc, socket, io)?))
            }
            Protocol::Aoe => unreachable!("AoE has no socket that is connected"),
        }
    }

    /// A machine for frames to and from this URL's target, replacing an earlier one that has ended.
    ///
    /// # Errors
    /// When the URL names no unit.
    pub(crate) fn aoe<I: Io>(
        url: &Url,
        asked: &InitiatorConfig,
        frames: &Frames,
        lost_after: Duration,
        earlier: Option<AoeInitiator>,
        io: &I,
    ) -> std::io::Result<Carrier> {
        let target = url.shelf_slot().ok_or_else(|| std::io::Error::other("the URL does not name a unit"))?;
        let config = aoe::InitiatorConfig {
            target,
            ours: frames.mac(),
            mtu: frames.mtu(),
            lane: frames.lane(),
            first_tag: I::random() as u16,
            queue_depth: asked.queue_depth,
            login_within: asked.login_within,
            idle: asked.idle,
            lost_after,
        };
        let machine = match earlier {
            Some(earlier) => earlier.relogin(config, io.now()),
            None => AoeInitiator::new(config, io.now()),
        };
        Ok(Carrier::Aoe(Box::new(machine)))
    }

    /// The machine of AoE.
    pub(crate) fn aoe_machine(&self) -> Option<&AoeInitiator> {
        match self {
            Carrier::Aoe(machine) => Some(machine),
            Carrier::Iscsi(_) | Carrier::Iser(_) | Carrier::Srp(_) => None,
        }
    }

    /// The same, mutable.
    pub(crate) fn aoe_machine_mut(&mut self) -> Option<&mut AoeInitiator> {
        match self {
            Carrier::Aoe(machine) => Some(machine),
            Carrier::Iscsi(_) | Carrier::Iser(_) | Carrier::Srp(_) => None,
        }
    }

    /// What was negotiated, once logged in; `None` with SRP.
    pub(crate) fn negotiated(&self) -> Option<&Negotiated> {
        match self {
            Carrier::Iscsi(machine) => machine.negotiated(),
            Carrier::Iser(channel) => channel.machine().negotiated(),
            Carrier::Srp(_) | Carrier::Aoe(_) => None,
        }
    }

    /// Sends a command; `None` when the queue is full or the session is not logged in. Its buffers stay
    /// borrowed until [`Event::Completed`].
    pub(crate) fn submit(&mut self, request: Request) -> Option<TaskId> {
        match self {
            Carrier::Iscsi(machine) => machine.submit(request),
            Carrier::Iser(channel) => channel.machine_mut().submit(request),
            Carrier::Srp(channel) => channel.machine_mut().submit(request),
            Carrier::Aoe(machine) => machine.submit(request),
        }
    }

    /// Has the target abort a command, if it can; [`Event::Completed`] follows then.
    pub(crate) fn abort(&mut self, lun: u64, task: TaskId) {
        match self {
            Carrier::Iscsi(machine) => {
                machine.function(lun, wire::iscsi::TaskFunction::ABORT_TASK, Some(task));
            }
            Carrier::Iser(channel) => {
                let function = wire::iscsi::TaskFunction::ABORT_TASK;
                channel.machine_mut().function(lun, function, Some(task));
            }
            Carrier::Srp(channel) => {
                let function = wire::srp::TaskFunction::ABORT_TASK;
                channel.machine_mut().function(lun, function, Some(task));
            }
            Carrier::Aoe(_) => {}
        }
    }

    /// Sends a text request; `false` when one is outstanding, or where there are none, as in SRP and AoE.
    pub(crate) fn text(&mut self, text: &[u8]) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.text(text),
            Carrier::Iser(channel) => channel.machine_mut().text(text),
            Carrier::Srp(_) | Carrier::Aoe(_) => false,
        }
    }

    /// Logs out; [`Event::Gone`] follows.
    pub(crate) fn logout(&mut self, now: Time) {
        match self {
            Carrier::Iscsi(machine) => machine.logout(now),
            Carrier::Iser(channel) => channel.machine_mut().logout(now),
            Carrier::Srp(channel) => channel.machine_mut().logout(),
            Carrier::Aoe(machine) => machine.logout(),
        }
    }

    /// The batch with these `done` tasks has been sent.
    pub(crate) fn pushed(&mut self, done: &[TaskId]) {
        match self {
            Carrier::Iscsi(machine) => done.iter().for_each(|task| machine.pushed(*task)),
            Carrier::Iser(channel) => channel.pushed(done),
            Carrier::Srp(channel) => channel.pushed(done),
            Carrier::Aoe(_) => {}
        }
    }

    /// Does memory operations before anything is sent. There may be more events after that.
    pub(crate) fn run(&mut self, now: Time, arena: &mut Arena) {
        match self {
            Carrier::Iscsi(_) | Carrier::Aoe(_) => {}
            Carrier::Iser(channel) => channel.run(now, arena),
            Carrier::Srp(channel) => channel.run(now, arena),
        }
    }

    /// The oldest event of what was received.
    pub(crate) fn event(&mut self, now: Time, arena: &mut Arena) -> Option<Event> {
        match self {
            Carrier::Iscsi(_) | Carrier::Aoe(_) => {}
            Carrier::Iser(channel) => channel.take_in(now, arena),
            Carrier::Srp(channel) => channel.take_in(now, arena),
        }
        self.poll()
    }

    /// Whether it waits for memory: call [`Carrier::run`] again in the next turn.
    pub(crate) fn wants_more(&self) -> bool {
        match self {
            Carrier::Iscsi(_) | Carrier::Aoe(_) => false,
            Carrier::Iser(channel) => channel.wants_more(),
            Carrier::Srp(channel) => channel.wants_more(),
        }
    }

    /// Releases its memory; the stream is quiet.
    pub(crate) fn close(self, arena: &mut Arena) {
        match self {
            Carrier::Iscsi(_) | Carrier::Aoe(_) => {}
            Carrier::Iser(channel) => channel.close(arena),
            Carrier::Srp(channel) => channel.close(arena),
        }
    }
}

fn channel<M: MessageMachine, I: Io>(
    machine: M,
    registrations: u16,
    crc: bool,
    socket: Handle,
    io: &I,
) -> Result<Box<Channel<M>>, iwarp::Refused> {
    let receives = machine.receives().count;
    let config = iwarp::Config {
        enhanced: true,
        crc,
        long_fpdus: true,
        depths: READS,
        ready: Some(ReadyToReceive::ANY),
        segment_bytes: io.segment_bytes(socket),
        // No more requests at a time than can be answered.
        work: receives,
        receives,
        registrations,
        crc32c,
        random: I::random,
    };
    Ok(Box::new(Channel::initiator(config, machine, io.now())?))
}

/// The SRP equivalent of this configuration. Our port identifier begins with a hash of our name, so that a
/// target's groups can match it, and ends with what identifies the session (RFC 7143 section 11.12.5: ISID).
fn srp_config(url: &Url, asked: &InitiatorConfig) -> srp::InitiatorConfig {
    let immediate = url.immediate && asked.plan.offers.immediate_data;
    let whole = u32::from(srp::IMMEDIATE_OFFSET) + SRP_IMMEDIATE_BYTES_MAX;
    srp::InitiatorConfig {
        initiator_port: initiator_port(&asked.plan.initiator, asked.plan.isid),
        target_port: url.srp_port(),
        queue_depth: asked.queue_depth,
        it_iu_bytes: if immediate { whole } else { srp::IU_BYTES_MIN },
        immediate,
        keeps_others: false,
        login_within: asked.login_within,
        idle: asked.idle,
    }
}

fn initiator_port(name: &str, isid: [u8; 6]) -> [u8; 16] {
    let mut port = [0; 16];
    port[..8].copy_from_slice(&identity(name).eui);
    port[10..].copy_from_slice(&isid);
    port
}

/// An event in iSCSI's terms.
fn event_of(event: srp::Event) -> Option<Event> {
    match event {
        srp::Event::Ready(session) => Some(Event::Ready(session)),
        srp::Event::Completed(completion) => Some(Event::Completed(completion)),
        srp::Event::Gone { reason } => Some(Event::Gone { reason }),
        // No functions are requested, and what units report also arrives as unit attentions.
        srp::Event::FunctionDone { .. } | srp::Event::Async { .. } => None,
    }
}

impl StreamMachine for Carrier {
    type Event = Event;

    fn want(&self) -> Want {
        match self {
            Carrier::Iscsi(machine) => machine.want(),
            Carrier::Iser(channel) => channel.want(),
            Carrier::Srp(channel) => channel.want(),
            Carrier::Aoe(_) => Want::Nothing,
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        match self {
            Carrier::Iscsi(machine) => machine.header(now, bytes),
            Carrier::Iser(channel) => channel.header(now, bytes),
            Carrier::Srp(channel) => channel.header(now, bytes),
            Carrier::Aoe(_) => {}
        }
    }

    fn header_and(&mut self, now: Time, bytes: &[u8], behind: &[u8]) -> u32 {
        match self {
            Carrier::Iscsi(machine) => machine.header_and(now, bytes, behind),
            Carrier::Iser(channel) => channel.header_and(now, bytes, behind),
            Carrier::Srp(channel) => channel.header_and(now, bytes, behind),
            Carrier::Aoe(_) => 0,
        }
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        match self {
            Carrier::Iscsi(machine) => machine.body(now, digest_ok),
            Carrier::Iser(channel) => channel.body(now, digest_ok),
            Carrier::Srp(channel) => channel.body(now, digest_ok),
            Carrier::Aoe(_) => {}
        }
    }

    fn closed(&mut self, now: Time, error: Option<&str>) {
        match self {
            Carrier::Iscsi(machine) => machine.closed(now, error),
            Carrier::Iser(channel) => channel.closed(now, error),
            Carrier::Srp(channel) => channel.closed(now, error),
            Carrier::Aoe(machine) => machine.closed(error.unwrap_or("closed")),
        }
    }

    fn poll(&mut self) -> Option<Event> {
        match self {
            Carrier::Iscsi(machine) => machine.poll(),
            Carrier::Iser(channel) => channel.poll(),
            Carrier::Srp(channel) => std::iter::from_fn(|| channel.poll()).find_map(event_of),
            Carrier::Aoe(machine) => machine.poll(),
        }
    }

    fn owes(&self) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.owes(),
            Carrier::Iser(channel) => channel.owes(),
            Carrier::Srp(channel) => channel.owes(),
            Carrier::Aoe(machine) => machine.owes(),
        }
    }

    fn transmit(&mut self, now: Time, batch: &mut Transmit) {
        match self {
            Carrier::Iscsi(machine) => machine.transmit(now, batch),
            Carrier::Iser(channel) => channel.transmit(now, batch),
            Carrier::Srp(channel) => channel.transmit(now, batch),
            Carrier::Aoe(_) => {}
        }
    }

    fn finished(&self) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.finished(),
            Carrier::Iser(channel) => channel.finished(),
            Carrier::Srp(channel) => channel.finished(),
            Carrier::Aoe(machine) => machine.is_over(),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Carrier::Iscsi(machine) => machine.deadline(),
            Carrier::Iser(channel) => channel.deadline(),
            Carrier::Srp(channel) => channel.deadline(),
            Carrier::Aoe(machine) => machine.deadline(),
        }
    }

    fn tick(&mut self, now: Time) {
        match self {
            Carrier::Iscsi(machine) => machine.tick(now),
            Carrier::Iser(channel) => channel.tick(now),
            Carrier::Srp(channel) => channel.tick(now),
            Carrier::Aoe(machine) => machine.tick(now),
        }
    }
}
