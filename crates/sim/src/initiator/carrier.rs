//! Transports of an initiator's commands: iSCSI directly on the stream, or iSER or SRP on our iWARP.

use super::super::kernel::Kernel;
use super::tables::Tabled;
use proto::iscsi::initiator::{Event, Initiator as IscsiInitiator, InitiatorConfig, Request};
use proto::iscsi::login::Digests;
use proto::iser::initiator::Initiator as IserInitiator;
use proto::iwarp;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::message::MessageMachine;
use proto::services::{FunctionId, TaskId};
use proto::srp::initiator::{self as srp, Initiator as SrpInitiator};
use proto::stream::StreamMachine as _;
use proto::time::Time;
use rdma::iwarp::Channel;
use reactor::crc::crc32c;
use reactor::io::{Errno, Handle, Io as _};
use reactor::stream::Stream;
use wire::iscsi::{FunctionResponse, TaskFunction};
use wire::srp::{ResponseCode, TaskFunction as SrpFunction};

/// The target's GUID for SRP.
pub(crate) const SRP_GUID: u64 = 0x024c_7500_0000_0001;
/// RDMA Reads that the target may have outstanding.
const READS: Depths = Depths { ird: 16, ord: 1 };
/// Most data of a write that SRP sends inside the command.
const IMMEDIATE_BYTES_MAX: u32 = 8192;

/// An initiator's protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Iscsi,
    Iser,
    Srp,
}

pub(crate) enum Carrier {
    Iscsi(Box<IscsiInitiator>),
    Iser(Box<Channel<IserInitiator>>),
    Srp(Box<Channel<Tabled>>),
}

impl Carrier {
    pub(crate) fn new(
        protocol: Protocol,
        config: InitiatorConfig,
        host: usize,
        socket: Handle,
        io: &mut Kernel,
    ) -> Carrier {
        let now = io.now();
        // Both buffers of a command, and their tables.
        let registrations = if protocol == Protocol::Srp { 4 } else { 2 } * config.queue_depth;
        let crc = matches!(config.plan.offers.data_digest, Digests::Required);
        match protocol {
            Protocol::Iscsi => Carrier::Iscsi(Box::new(IscsiInitiator::new(config, now))),
            Protocol::Iser => {
                let machine = IserInitiator::new(config, now);
                Carrier::Iser(channel(machine, registrations, crc, socket, io))
            }
            Protocol::Srp => {
                // A parameter that SRP does not negotiate decides it.
                let makes_tables = config.plan.offers.initial_r2t;
                let machine = SrpInitiator::new(srp_config(&config, host), now);
                let machine = Tabled::new(machine, makes_tables, io);
                Carrier::Srp(channel(machine, registrations, crc, socket, io))
            }
        }
    }

    pub(crate) fn submit(&mut self, request: Request) -> Option<TaskId> {
        match self {
            Carrier::Iscsi(machine) => machine.submit(request),
            Carrier::Iser(channel) => channel.machine_mut().submit(request),
            Carrier::Srp(channel) => channel.machine_mut().machine.submit(request),
        }
    }

    /// Whether the target is known to have received a command that has not ended.
    pub(crate) fn has_arrived(&mut self, id: TaskId) -> bool {
        match self {
            Carrier::Iscsi(machine) => machine.has_arrived(id),
            Carrier::Iser(channel) => channel.machine_mut().has_arrived(id),
            Carrier::Srp(_) => false,
        }
    }

    /// This function, or its closest equivalent in the protocol.
    pub(crate) fn nearest(&self, function: TaskFunction) -> TaskFunction {
        match self {
            Carrier::Srp(_) if function == TaskFunction::TARGET_WARM_RESET => {
                TaskFunction::LOGICAL_UNIT_RESET
            }
            Carrier::Iscsi(_) | Carrier::Iser(_) | Carrier::Srp(_) => function,
        }
    }

    pub(crate) fn function(
        &mut self,
        lun: u64,
        function: TaskFunction,
        of: Option<TaskId>,
    ) -> Option<FunctionId> {
        match self {
            Carrier::Iscsi(machine) => machine.function(lun, function, of),
            Carrier::Iser(channel) => channel.machine_mut().function(lun, function, of),
            Carrier::Srp(channel) => channel.machine_mut().machine.function(lun, of_srp(function)?, of),
        }
    }

    pub(crate) fn logout(&mut self, now: Time) {
        match self {
            Carrier::Iscsi(machine) => machine.logout(now),
            Carrier::Iser(channel) => channel.machine_mut().logout(now),
            Carrier::Srp(channel) => channel.machine_mut().machine.logout(),
        }
    }

    /// Whether a logout has a response, before which all commands have ended.
    pub(crate) fn answers_logouts(&self) -> bool {
        match self {
            Carrier::Iscsi(_) | Carrier::Iser(_) => true,
            Carrier::Srp(_) => false,
        }
    }

    pub(crate) fn sent(
        &mut self,
        stream: &mut Stream,
        kernel: &mut Kernel,
        result: Result<u32, Errno>,
        pushed: &mut Vec<TaskId>,
    ) {
        match self {
            Carrier::Iscsi(machine) => {
                stream.sent(kernel, &mut **machine, result, pushed);
                pushed.iter().for_each(|task| machine.pushed(*task));
            }
            Carrier::Iser(channel) => {
                stream.sent(kernel, &mut **channel, result, pushed);
                channel.pushed(pushed);
            }
            Carrier::Srp(channel) => {
                stream.sent(kernel, &mut **channel, result, pushed);
                channel.pushed(pushed);
            }
        }
        pushed.clear();
    }

    /// Processes input. Returns whether there may be events, and more to feed.
    pub(crate) fn feed(&mut self, stream: &mut Stream, kernel: &mut Kernel) -> bool {
        match self {
            Carrier::Iscsi(machine) => stream.feed(kernel, &mut **machine),
            Carrier::Iser(channel) => feed(channel, stream, kernel),
            Carrier::Srp(channel) => {
                let is_more = feed(channel, stream, kernel);
                channel.machine_mut().write(kernel);
                is_more
            }
        }
    }

    pub(crate) fn poll(&mut self) -> Option<Event> {
        match self {
            Carrier::Iscsi(machine) => machine.poll(),
            Carrier::Iser(channel) => channel.poll(),
            Carrier::Srp(channel) => std::iter::from_fn(|| channel.poll()).find_map(event_of),
        }
    }

    pub(crate) fn tick(&mut self, now: Time) {
        match self {
            Carrier::Iscsi(machine) => machine.tick(now),
            Carrier::Iser(channel) => tick(channel, now),
            Carrier::Srp(channel) => tick(channel, now),
        }
    }

    pub(crate) fn flush(&mut self, stream: &mut Stream, kernel: &mut Kernel) {
        match self {
            Carrier::Iscsi(machine) => stream.flush(kernel, &mut **machine),
            Carrier::Iser(channel) => flush(channel, stream, kernel),
            Carrier::Srp(channel) => {
                flush(channel, stream, kernel);
                channel.machine_mut().write(kernel);
            }
        }
    }

    /// Releases its memory; the stream is quiet.
    pub(crate) fn close(self, kernel: &mut Kernel) {
        match self {
            Carrier::Iscsi(_) => {}
            Carrier::Iser(channel) => channel.close(kernel.arena()),
            Carrier::Srp(mut channel) => {
                let tables = channel.machine_mut().memory();
                channel.close(kernel.arena());
                kernel.arena().give(&tables);
            }
        }
    }
}

fn channel<M: MessageMachine>(
    machine: M,
    registrations: u16,
    crc: bool,
    socket: Handle,
    io: &Kernel,
) -> Box<Channel<M>> {
    let receives = machine.receives().count;
    let config = iwarp::Config {
        enhanced: true,
        crc,
        long_fpdus: true,
        depths: READS,
        ready: Some(ReadyToReceive::ANY),
        segment_bytes: io.segment_bytes(socket),
        work: receives,
        receives,
        registrations,
        crc32c,
        random: Kernel::random,
    };
    Box::new(Channel::initiator(config, machine, io.now()).expect("what can be asked for"))
}

fn srp_config(asked: &InitiatorConfig, host: usize) -> srp::InitiatorConfig {
    let immediate = asked.plan.offers.immediate_data;
    let whole = u32::from(srp::IMMEDIATE_OFFSET) + IMMEDIATE_BYTES_MAX;
    srp::InitiatorConfig {
        initiator_port: (host as u128).to_be_bytes(),
        target_port: (u128::from(SRP_GUID) << 64 | u128::from(SRP_GUID)).to_be_bytes(),
        queue_depth: asked.queue_depth,
        it_iu_bytes: if immediate { whole } else { srp::IU_BYTES_MIN },
        immediate,
        keeps_others: false,
        login_within: asked.login_within,
        idle: asked.idle,
    }
}

fn feed<M: MessageMachine>(channel: &mut Channel<M>, stream: &mut Stream, kernel: &mut Kernel) -> bool {
    let is_more = stream.feed(kernel, channel);
    if is_more {
        channel.take_in(kernel.now(), kernel.arena());
    } else {
        channel.run(kernel.now(), kernel.arena());
    }
    is_more
}

fn tick<M: MessageMachine>(channel: &mut Channel<M>, now: Time) {
    if channel.deadline().is_some_and(|deadline| now >= deadline) {
        channel.tick(now);
    }
}

fn flush<M: MessageMachine>(channel: &mut Channel<M>, stream: &mut Stream, kernel: &mut Kernel) {
    channel.run(kernel.now(), kernel.arena());
    stream.flush(kernel, channel);
    channel.run(kernel.now(), kernel.arena());
}

fn of_srp(function: TaskFunction) -> Option<SrpFunction> {
    Some(match function {
        TaskFunction::ABORT_TASK => SrpFunction::ABORT_TASK,
        TaskFunction::ABORT_TASK_SET => SrpFunction::ABORT_TASK_SET,
        TaskFunction::CLEAR_TASK_SET => SrpFunction::CLEAR_TASK_SET,
        TaskFunction::LOGICAL_UNIT_RESET => SrpFunction::LOGICAL_UNIT_RESET,
        _ => return None,
    })
}

/// The event in iSCSI's terms.
fn event_of(event: srp::Event) -> Option<Event> {
    match event {
        srp::Event::Ready(session) => Some(Event::Ready(session)),
        srp::Event::Completed(completion) => Some(Event::Completed(completion)),
        srp::Event::Gone { reason } => Some(Event::Gone { reason }),
        srp::Event::FunctionDone { id, response } => {
            let is_done = response == ResponseCode::COMPLETE;
            let response = if is_done { FunctionResponse::COMPLETE } else { FunctionResponse::NOT_SUPPORTED };
            Some(Event::FunctionDone { id, response })
        }
        // The unit attention that it announces is reported anyway.
        srp::Event::Async { .. } => None,
    }
}
