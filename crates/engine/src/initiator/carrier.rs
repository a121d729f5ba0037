//! What carries a session's commands: iSCSI on the stream itself, or iSER on our iWARP.

use super::Url;
use super::url::Protocol;
use proto::iscsi::initiator::{self as iscsi, Event, Initiator as IscsiInitiator, InitiatorConfig, Request};
use proto::iscsi::login::Negotiated;
use proto::iser::initiator::Initiator as IserInitiator;
use proto::iwarp;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::message::MessageMachine as _;
use proto::stream::{StreamMachine, Transmit, Want};
use proto::time::Time;
use proto::verbs::TaskId;
use rdma::iwarp::Channel;
use reactor::crc::crc32c;
use reactor::io::Handle;
use reactor::memory::Arena;

/// The deepest queue over iWARP: a receive of several kilobytes stands ready for the answer to each command.
const IWARP_QUEUE_DEPTH_MAX: u16 = 256;
/// RDMA Reads that the target may make at a time; an initiator of iSER makes none but to say that it is ready.
const READS: Depths = Depths { ird: 128, ord: 1 };

/// The initiator's machine of one connection.
pub(crate) enum Carrier {
    /// iSCSI over TCP.
    Iscsi(Box<IscsiInitiator>),
    /// iSER over iWARP.
    Iser(Box<Channel<IserInitiator>>),
}

impl Carrier {
    /// The deepest queue over what this URL names.
    pub(crate) fn queue_depth_max(url: &Url) -> u16 {
        match url.protocol {
            Protocol::Iscsi => iscsi::QUEUE_DEPTH_MAX,
            Protocol::Iser => IWARP_QUEUE_DEPTH_MAX,
        }
    }

    /// A machine for a connection to what this URL names, made now.
    ///
    /// # Errors
    /// When the connection cannot be asked for.
    pub(crate) fn new(
        url: &Url,
        config: InitiatorConfig,
        socket: Handle,
        now: Time,
    ) -> Result<Carrier, iwarp::Refused> {
        match url.protocol {
            Protocol::Iscsi => Ok(Carrier::Iscsi(Box::new(IscsiInitiator::new(config, now)))),
            Protocol::Iser => {
                let depth = config.queue_depth;
                let machine = IserInitiator::new(config, now);
                let iwarp = iwarp_config(machine.receives().count, depth, url.crc, socket);
                Ok(Carrier::Iser(Box::new(Channel::initiator(iwarp, machine, now)?)))
            }
        }
    }

    /// What was negotiated, once logged in.
    pub(crate) fn negotiated(&self) -> Option<&Negotiated> {
        match self {
            Carrier::Iscsi(machine) => machine.negotiated(),
            Carrier::Iser(channel) => channel.machine().negotiated(),
        }
    }

    /// Sends a command; `None` when the queue is full or nobody is logged in. Its places stay lent until
    /// [`Event::Completed`].
    pub(crate) fn submit(&mut self, request: Request) -> Option<TaskId> {
        match self {
            Carrier::Iscsi(machine) => machine.submit(request),
            Carrier::Iser(channel) => channel.machine_mut().submit(request),
        }
    }

    /// Sends a text request; `false` when one is under way.
    pub(crate) fn text(&mut self, text: &[u8]) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.text(text),
            Carrier::Iser(channel) => channel.machine_mut().text(text),
        }
    }

    /// Logs out; [`Event::Gone`] follows.
    pub(crate) fn logout(&mut self, now: Time) {
        match self {
            Carrier::Iscsi(machine) => machine.logout(now),
            Carrier::Iser(channel) => channel.machine_mut().logout(now),
        }
    }

    /// The batch that had these `done`, in the words of the stream, has left.
    pub(crate) fn pushed(&mut self, done: &[TaskId]) {
        match self {
            Carrier::Iscsi(machine) => done.iter().for_each(|task| machine.pushed(*task)),
            Carrier::Iser(channel) => channel.pushed(done),
        }
    }

    /// Does what memory has to do with, before anything is sent. There may be more events then.
    pub(crate) fn run(&mut self, now: Time, arena: &mut Arena) {
        match self {
            Carrier::Iscsi(_) => {}
            Carrier::Iser(channel) => channel.run(now, arena),
        }
    }

    /// The oldest event of what has come in.
    pub(crate) fn event(&mut self, now: Time, arena: &mut Arena) -> Option<Event> {
        if let Carrier::Iser(channel) = self {
            channel.take_in(now, arena);
        }
        self.poll()
    }

    /// Whether it waits for memory: [`Carrier::run`] is to be called again in the next turn.
    pub(crate) fn wants_more(&self) -> bool {
        match self {
            Carrier::Iscsi(_) => false,
            Carrier::Iser(channel) => channel.wants_more(),
        }
    }

    /// Gives its memory back; the stream is quiet.
    pub(crate) fn close(self, arena: &mut Arena) {
        match self {
            Carrier::Iscsi(_) => {}
            Carrier::Iser(channel) => channel.close(arena),
        }
    }
}

fn iwarp_config(receives: u16, queue_depth: u16, crc: bool, socket: Handle) -> iwarp::Config {
    iwarp::Config {
        enhanced: true,
        crc,
        long_fpdus: true,
        depths: READS,
        ready: Some(ReadyToReceive::ANY),
        segment_bytes: reactor::net::segment_bytes(socket),
        // No more is asked at a time than may be answered.
        work: receives,
        receives,
        // What a command reads, and what it writes.
        registrations: 2 * queue_depth,
        crc32c,
        random: crate::random::bits,
    }
}

impl StreamMachine for Carrier {
    type Event = Event;

    fn want(&self) -> Want {
        match self {
            Carrier::Iscsi(machine) => machine.want(),
            Carrier::Iser(channel) => channel.want(),
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        match self {
            Carrier::Iscsi(machine) => machine.header(now, bytes),
            Carrier::Iser(channel) => channel.header(now, bytes),
        }
    }

    fn header_and(&mut self, now: Time, bytes: &[u8], behind: &[u8]) -> u32 {
        match self {
            Carrier::Iscsi(machine) => machine.header_and(now, bytes, behind),
            Carrier::Iser(channel) => channel.header_and(now, bytes, behind),
        }
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        match self {
            Carrier::Iscsi(machine) => machine.body(now, digest_ok),
            Carrier::Iser(channel) => channel.body(now, digest_ok),
        }
    }

    fn closed(&mut self, now: Time, error: Option<&str>) {
        match self {
            Carrier::Iscsi(machine) => machine.closed(now, error),
            Carrier::Iser(channel) => channel.closed(now, error),
        }
    }

    fn poll(&mut self) -> Option<Event> {
        match self {
            Carrier::Iscsi(machine) => machine.poll(),
            Carrier::Iser(channel) => channel.poll(),
        }
    }

    fn owes(&self) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.owes(),
            Carrier::Iser(channel) => channel.owes(),
        }
    }

    fn transmit(&mut self, now: Time, batch: &mut Transmit) {
        match self {
            Carrier::Iscsi(machine) => machine.transmit(now, batch),
            Carrier::Iser(channel) => channel.transmit(now, batch),
        }
    }

    fn finished(&self) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.finished(),
            Carrier::Iser(channel) => channel.finished(),
        }
    }

    fn deadline(&self) -> Option<Time> {
        match self {
            Carrier::Iscsi(machine) => machine.deadline(),
            Carrier::Iser(channel) => channel.deadline(),
        }
    }

    fn tick(&mut self, now: Time) {
        match self {
            Carrier::Iscsi(machine) => machine.tick(now),
            Carrier::Iser(channel) => channel.tick(now),
        }
    }
}
