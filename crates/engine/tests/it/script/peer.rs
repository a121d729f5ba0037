//! An initiator's session over any transport, which runs only when the test says so: what the target has sent
//! can be left unread.

use proto::iscsi::initiator::{self as iscsi, Completion, Initiator as Iscsi, Request};
use proto::iscsi::login::{Offers, Plan};
use proto::iser::initiator::Initiator as Iser;
use proto::iwarp;
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::message::MessageMachine;
use proto::services::{Attribute, FunctionId, TaskId};
use proto::srp::initiator::{self as srp, Initiator as Srp};
use proto::stream::{Segment, StreamMachine, Transmit, Want};
use proto::time::Time;
use rdma::iwarp::Channel;
use reactor::crc::crc32c;
use reactor::memory::Arena;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::iscsi::{FunctionResponse, TaskFunction};
use wire::srp::{ResponseCode, TaskFunction as SrpFunction};
use wire::{BufferId, Cdb, Places, Span};

/// Nothing here takes this long.
const PATIENCE: Duration = Duration::from_secs(120);
const IDLE: Duration = Duration::from_secs(60);
const QUEUE_DEPTH: u16 = 16;
/// The memory for the data of a session's commands, which is not in an arena.
const HOST: BufferId = BufferId(u32::MAX);
const HOST_BYTES: usize = 8 << 20;

/// What to log in to, and as whom.
#[derive(Clone, Copy, Debug)]
pub struct Login<'a> {
    pub at: SocketAddr,
    /// The target's name, or its GUID.
    pub target: &'a str,
    /// The initiator's number.
    pub number: u8,
    /// With SRP: other channels continue beside this one.
    pub is_beside: bool,
}

/// A command.
#[derive(Clone, Debug)]
pub struct Command {
    pub lun: u16,
    pub attribute: Attribute,
    pub cdb: Vec<u8>,
    pub read_bytes: u32,
    pub write: Vec<u8>,
}

/// Task management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    AbortTask(TaskId),
    AbortTaskSet,
    ClearTaskSet,
    LogicalUnitReset,
}

/// The response to it. SRP does not distinguish a task that has already ended from success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    Complete,
    Refused,
}

/// What a machine has reported.
pub enum Report {
    Ready(Vec<u8>),
    Ended(Completion),
    Managed(FunctionId, Answer),
    Gone(String),
    Other,
}

/// A session over any transport.
pub trait Nexus {
    /// Sends a command.
    fn submit(&mut self, command: &Command) -> TaskId;
    /// Requests task management.
    fn manage(&mut self, lun: u16, function: Function) -> FunctionId;
    /// Waits until the target has sent something, and leaves it unread.
    fn wait_for_data(&mut self);
    /// Continues with what the target has sent so far.
    fn go_on(&mut self);
    /// Whether the command has ended.
    fn has_ended(&self, task: TaskId) -> bool;
    /// Continues until the command has ended; returns what was read.
    fn end(&mut self, task: TaskId) -> (Completion, Vec<u8>);
    /// The response to the function, if it has arrived.
    fn answered(&mut self, id: FunctionId) -> Option<Answer>;
    /// Continues until the function is answered.
    fn answer(&mut self, id: FunctionId) -> Answer;
    /// Continues until the session is logged out.
    fn leave(self: Box<Self>);
    /// As the target names it in reservations.
    fn transport_id(&self) -> Vec<u8>;
}

/// A machine of an initiator.
pub trait Spoken: StreamMachine + Sized {
    fn new(login: &Login<'_>, now: Time) -> Self;
    fn submit(&mut self, request: Request) -> Option<TaskId>;
    fn function(&mut self, lun: u64, function: Function) -> Option<FunctionId>;
    fn logout(&mut self, now: Time);
    fn sent(&mut self, done: &[TaskId]);
    fn run(&mut self, now: Time, arena: &mut Arena);
    fn report(event: Self::Event) -> Report;
}

/// Logs in with the transport of this URL scheme; `Err`: why there is no session.
pub fn connect(scheme: &str, login: &Login<'_>) -> Result<Box<dyn Nexus>, String> {
    Ok(match scheme {
        "iscsi" => Box::new(Peer::<Iscsi>::connect(login)?),
        "iser" => Box::new(Peer::<Channel<Iser>>::connect(login)?),
        "srp" => Box::new(Peer::<Channel<Srp>>::connect(login)?),
        other => panic!("{other} is not spoken here"),
    })
}

/// A session.
struct Peer<M: Spoken> {
    socket: TcpStream,
    machine: M,
    arena: Arena,
    host: Vec<u8>,
    /// Bytes of it that were allocated to commands.
    used: usize,
    reads: Vec<(TaskId, Places)>,
    begin: Instant,
    transport_id: Option<Vec<u8>>,
    ended: Vec<Completion>,
    managed: Vec<(FunctionId, Answer)>,
    gone: Option<String>,
}

impl<M: Spoken> Peer<M> {
    fn connect(login: &Login<'_>) -> Result<Peer<M>, String> {
        let socket = TcpStream::connect(login.at).expect("a connection");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut peer = Peer {
            socket,
            machine: M::new(login, Time(0)),
            arena: Arena::new(1 << 20).expect("memory"),
            host: vec![0; HOST_BYTES],
            used: 0,
            reads: Vec::new(),
            begin: Instant::now(),
            transport_id: None,
            ended: Vec::new(),
            managed: Vec::new(),
            gone: None,
        };
        peer.go_on_until(|peer| peer.transport_id.is_some() || peer.gone.is_some());
        peer.gone.take().map_or(Ok(peer), Err)
    }

    fn now(&self) -> Time {
        Time(0).after(self.begin.elapsed())
    }

    fn go_on_until(&mut self, done: impl Fn(&Self) -> bool) {
        loop {
            self.send();
            if done(self) {
                return;
            }
            assert!(self.gone.is_none(), "{:?}", self.gone);
            self.receive();
        }
    }

    /// Sends all that is owed.
    fn send(&mut self) {
        let mut batch = Transmit::default();
        loop {
            self.collect_events();
            if !self.machine.owes() {
                return;
            }
            batch.clear();
            self.machine.transmit(self.now(), &mut batch);
            let mut headers = &batch.bytes[..];
            let mut all = Vec::new();
            for segment in &batch.segments {
                match *segment {
                    Segment::Bytes { len } => {
                        let (bytes, rest) = headers.split_at(len as usize);
                        all.extend_from_slice(bytes);
                        headers = rest;
                    }
                    Segment::Payload(span) => all.extend_from_slice(self.bytes(span)),
                    Segment::Sum | Segment::SumStart => panic!("no sums were asked for"),
                }
            }
            self.socket.write_all(&all).expect("the target is there");
            self.machine.sent(&batch.done);
        }
    }

    /// Collects the machine's events.
    fn collect_events(&mut self) {
        loop {
            self.machine.run(self.now(), &mut self.arena);
            let Some(event) = self.machine.poll() else { return };
            match M::report(event) {
                Report::Ready(transport_id) => self.transport_id = Some(transport_id),
                Report::Ended(completion) => self.ended.push(completion),
                Report::Managed(id, answer) => self.managed.push((id, answer)),
                Report::Gone(reason) => self.gone = Some(reason),
                Report::Other => {}
            }
        }
    }

    /// Receives what the machine wants next.
    fn receive(&mut self) {
        match self.machine.want() {
            Want::Header { len } => match self.read(len) {
                Some(bytes) => self.machine.header(self.now(), &bytes),
                None => self.machine.closed(self.now(), None),
            },
            Want::Body { place, pad, .. } => {
                for span in place.iter() {
                    let bytes = self.read(span.len).expect("payload");
                    match span.buffer {
                        HOST => self.host[range(span)].copy_from_slice(&bytes),
                        _ => self.arena.bytes_mut(span).copy_from_slice(&bytes),
                    }
                }
                self.read(pad).expect("padding");
                self.machine.body(self.now(), true);
            }
            Want::Skip { len, pad, .. } => {
                self.read(len + pad).expect("payload");
                self.machine.body(self.now(), true);
            }
            Want::Nothing => panic!("the machine waits for nothing"),
        }
    }

    /// Whether there is anything to receive.
    fn has_received(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket");
        let heard = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false).expect("a socket");
        match heard {
            Ok(bytes) => bytes > 0,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("the target is gone: {error}"),
        }
    }

    /// The next bytes; `None`: there are no more.
    fn read(&mut self, len: u32) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        match self.socket.read_exact(&mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
            Err(error) => panic!("the target says nothing: {error}"),
        }
    }

    fn bytes(&self, span: Span) -> &[u8] {
        if span.buffer == HOST { &self.host[range(span)] } else { self.arena.bytes(span) }
    }

    fn places(&mut self, len: usize) -> Places {
        if len == 0 {
            return Places::EMPTY;
        }
        if self.used + len > HOST_BYTES {
            self.used = 0;
        }
        let span = Span { buffer: HOST, offset: self.used as u64, len: len as u32 };
        self.used += len;
        self.host[range(span)].fill(0xee);
        Places::one(span)
    }
}

fn range(span: Span) -> std::ops::Range<usize> {
    span.offset as usize..span.offset as usize + span.len as usize
}

impl<M: Spoken> Nexus for Peer<M> {
    fn submit(&mut self, command: &Command) -> TaskId {
        let read = self.places(command.read_bytes as usize);
        let write = self.places(command.write.len());
        write.iter().for_each(|span| self.host[range(span)].copy_from_slice(&command.write));
        let cdb = Cdb::from_bytes(&command.cdb).expect("a CDB");
        let request = Request { lun: lun_bytes(command.lun), attribute: command.attribute, cdb, read, write };
        let task = self.machine.submit(request).expect("room for a command");
        self.reads.push((task, read));
        self.send();
        task
    }

    fn manage(&mut self, lun: u16, function: Function) -> FunctionId {
        let id = self.machine.function(lun_bytes(lun), function).expect("room for a function");
        self.send();
        id
    }

    fn wait_for_data(&mut self) {
        assert_eq!(self.socket.peek(&mut [0]).expect("the target says something"), 1);
    }

    fn go_on(&mut self) {
        self.send();
        while self.has_received() {
            self.receive();
            self.send();
        }
    }

    fn has_ended(&self, task: TaskId) -> bool {
        self.ended.iter().any(|ended| ended.task == task)
    }

    fn end(&mut self, task: TaskId) -> (Completion, Vec<u8>) {
        self.go_on_until(|peer| peer.has_ended(task));
        let at = self.ended.iter().position(|ended| ended.task == task).expect("it has ended");
        let completion = self.ended.remove(at);
        let at = self.reads.iter().position(|(other, _)| *other == task).expect("it was sent");
        let (_, places) = self.reads.remove(at);
        let read = places.slice(0, completion.read_bytes);
        (completion, read.iter().flat_map(|span| self.bytes(span).to_vec()).collect())
    }

    fn answer(&mut self, id: FunctionId) -> Answer {
        self.go_on_until(|peer| peer.managed.iter().any(|(other, _)| *other == id));
        self.answered(id).expect("it was answered")
    }

    fn answered(&mut self, id: FunctionId) -> Option<Answer> {
        let at = self.managed.iter().position(|(other, _)| *other == id)?;
        Some(self.managed.remove(at).1)
    }

    fn leave(mut self: Box<Self>) {
        self.machine.logout(self.now());
        loop {
            self.send();
            if self.gone.is_some() {
                return;
            }
            // Whatever follows our last PDU.
            if self.machine.finished() {
                let _ = self.socket.shutdown(std::net::Shutdown::Write);
            }
            self.receive();
        }
    }

    fn transport_id(&self) -> Vec<u8> {
        self.transport_id.clone().expect("it is logged in")
    }
}

/// Peripheral device addressing (SAM-5 section 4.7.7.2).
fn lun_bytes(lun: u16) -> u64 {
    u64::from(lun) << 48
}

fn iscsi_config(login: &Login<'_>) -> iscsi::InitiatorConfig {
    let plan = Plan {
        initiator: format!("iqn.2026-11.org.example:peer{}", login.number),
        alias: None,
        target: Some(login.target.into()),
        isid: [0x80, 0, 0, 0, 0, login.number],
        chap: None,
        offers: Offers::default(),
        text_bytes: 8192,
    };
    iscsi::InitiatorConfig { plan, queue_depth: QUEUE_DEPTH, login_within: PATIENCE, idle: IDLE, crc32c }
}

fn channel<M: MessageMachine>(machine: M, now: Time) -> Channel<M> {
    let receives = machine.receives().count;
    let config = iwarp::Config {
        enhanced: true,
        crc: false,
        long_fpdus: true,
        depths: Depths { ird: 16, ord: 1 },
        ready: Some(ReadyToReceive::ANY),
        segment_bytes: 1448,
        work: receives,
        receives,
        registrations: 2 * QUEUE_DEPTH,
        crc32c,
        random: || 0x2345_6789,
    };
    Channel::initiator(config, machine, now).expect("a connection can be asked for")
}

fn report_of_iscsi(event: iscsi::Event) -> Report {
    match event {
        iscsi::Event::Ready(session) => Report::Ready(session.transport_id.clone()),
        iscsi::Event::Completed(completion) => Report::Ended(completion),
        iscsi::Event::FunctionDone { id, response } => Report::Managed(
            id,
            match response {
                FunctionResponse::COMPLETE | FunctionResponse::NO_TASK => Answer::Complete,
                _ => Answer::Refused,
            },
        ),
        iscsi::Event::Gone { reason } => Report::Gone(reason),
        iscsi::Event::Text(_)
        | iscsi::Event::Pong(_)
        | iscsi::Event::Async { .. }
        | iscsi::Event::Rejected { .. }
        | iscsi::Event::Moved { .. } => Report::Other,
    }
}

fn iscsi_function(function: Function) -> (TaskFunction, Option<TaskId>) {
    match function {
        Function::AbortTask(task) => (TaskFunction::ABORT_TASK, Some(task)),
        Function::AbortTaskSet => (TaskFunction::ABORT_TASK_SET, None),
        Function::ClearTaskSet => (TaskFunction::CLEAR_TASK_SET, None),
        Function::LogicalUnitReset => (TaskFunction::LOGICAL_UNIT_RESET, None),
    }
}

impl Spoken for Iscsi {
    fn new(login: &Login<'_>, now: Time) -> Self {
        Iscsi::new(iscsi_config(login), now)
    }

    fn submit(&mut self, request: Request) -> Option<TaskId> {
        Iscsi::submit(self, request)
    }

    fn function(&mut self, lun: u64, function: Function) -> Option<FunctionId> {
        let (function, task) = iscsi_function(function);
        Iscsi::function(self, lun, function, task)
    }

    fn logout(&mut self, now: Time) {
        Iscsi::logout(self, now);
    }

    fn sent(&mut self, done: &[TaskId]) {
        done.iter().for_each(|task| self.pushed(*task));
    }

    fn run(&mut self, _: Time, _: &mut Arena) {}

    fn report(event: iscsi::Event) -> Report {
        report_of_iscsi(event)
    }
}

impl Spoken for Channel<Iser> {
    fn new(login: &Login<'_>, now: Time) -> Self {
        channel(Iser::new(iscsi_config(login), now), now)
    }

    fn submit(&mut self, request: Request) -> Option<TaskId> {
        self.machine_mut().submit(request)
    }

    fn function(&mut self, lun: u64, function: Function) -> Option<FunctionId> {
        let (function, task) = iscsi_function(function);
        self.machine_mut().function(lun, function, task)
    }

    fn logout(&mut self, now: Time) {
        self.machine_mut().logout(now);
    }

    fn sent(&mut self, done: &[TaskId]) {
        self.pushed(done);
    }

    fn run(&mut self, now: Time, arena: &mut Arena) {
        Channel::run(self, now, arena);
    }

    fn report(event: iscsi::Event) -> Report {
        report_of_iscsi(event)
    }
}

impl Spoken for Channel<Srp> {
    fn new(login: &Login<'_>, now: Time) -> Self {
        let guid = u64::from_str_radix(login.target, 16).expect("a GUID").to_be_bytes();
        let mut target_port = [0; 16];
        target_port[..8].copy_from_slice(&guid);
        target_port[8..].copy_from_slice(&guid);
        let config = srp::InitiatorConfig {
            initiator_port: [login.number; 16],
            target_port,
            queue_depth: QUEUE_DEPTH,
            it_iu_bytes: u32::from(srp::IMMEDIATE_OFFSET) + 8192,
            immediate: true,
            keeps_others: login.is_beside,
            login_within: PATIENCE,
            idle: IDLE,
        };
        channel(Srp::new(config, now), now)
    }

    fn submit(&mut self, request: Request) -> Option<TaskId> {
        self.machine_mut().submit(request)
    }

    fn function(&mut self, lun: u64, function: Function) -> Option<FunctionId> {
        let (function, task) = match function {
            Function::AbortTask(task) => (SrpFunction::ABORT_TASK, Some(task)),
            Function::AbortTaskSet => (SrpFunction::ABORT_TASK_SET, None),
            Function::ClearTaskSet => (SrpFunction::CLEAR_TASK_SET, None),
            Function::LogicalUnitReset => (SrpFunction::LOGICAL_UNIT_RESET, None),
        };
        self.machine_mut().function(lun, function, task)
    }

    fn logout(&mut self, _: Time) {
        self.machine_mut().logout();
    }

    fn sent(&mut self, done: &[TaskId]) {
        self.pushed(done);
    }

    fn run(&mut self, now: Time, arena: &mut Arena) {
        Channel::run(self, now, arena);
    }

    fn report(event: srp::Event) -> Report {
        match event {
            srp::Event::Ready(session) => Report::Ready(session.transport_id.clone()),
            srp::Event::Completed(completion) => Report::Ended(completion),
            srp::Event::FunctionDone { id, response } => Report::Managed(
                id,
                if response == ResponseCode::COMPLETE { Answer::Complete } else { Answer::Refused },
            ),
            srp::Event::Gone { reason } => Report::Gone(reason),
            srp::Event::Async { .. } => Report::Other,
        }
    }
}
