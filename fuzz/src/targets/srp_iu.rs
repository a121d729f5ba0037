//! Information units for an SRP machine. The first byte selects its role and what was agreed on; each byte
//! after that what happens next: a message, completed work, an action of the layer above, time.

use crate::{Input, address};
use proto::iscsi::initiator::Request;
use proto::message::{Access as Reach, Advertised, Answer, Full, Message, MessageMachine, Post, WorkId};
use proto::services::{Attribute, Command, Down, Ending, FunctionResponse, TaskId, Up};
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::login::{Access, Applicant};
use proto::srp::target::{Target, TargetConfig};
use proto::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use wire::srp::{Layout, LoginRequest, LoginRequestRdma, LoginResponse, Opcode, RejectReason, TaskFunction};
use wire::{BufferId, Cdb, Places, Sense, Span};

const DEPTH: u16 = 4;
/// Receives of a target that holds no message.
const RECEIVES: usize = DEPTH as usize + 2;
const GUID: [u8; 16] = [7; 16];
const IU_BYTES: u32 = 68 + 512;
/// The memory that tables are read into.
const RECEIVE: BufferId = BufferId(1);
const RECEIVE_BYTES: u32 = 1024;

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let options = input.byte();
    if options & 1 == 0 {
        let machine = target(&mut input, options);
        Driver::new(machine, Above::default()).run(&mut input);
    } else {
        let machine = initiator(&mut input, options);
        Driver::new(machine, Below::default()).run(&mut input);
    }
}

/// Admits everyone except one.
struct Door;

impl Access for Door {
    fn admit(&self, applicant: &Applicant) -> Result<bool, (RejectReason, String)> {
        match applicant.initiator_port.first() {
            Some(0xff) => Err((RejectReason::CHANNEL_LIMIT, "refused".into())),
            _ => Ok(applicant.keeps_others),
        }
    }
}

/// A target: after a successful login, or one that the input determines.
fn target(input: &mut Input<'_>, options: u8) -> Target {
    let config = TargetConfig {
        queue_depth: DEPTH,
        max_it_iu_bytes: IU_BYTES,
        target_port: GUID,
        login_within: Duration::from_secs(1),
        idle: Duration::from_secs(1),
    };
    let mut machine = Target::new(config, Arc::new(Door), address(), address(), Time(1));
    let mut login = LoginRequestRdma {
        opcode: Opcode::LOGIN_REQUEST,
        target_port_id: GUID,
        req_flags: if options & 2 == 0 { 0xf0 } else { 0 },
        ..LoginRequestRdma::default()
    };
    login.req_it_iu_len.set(IU_BYTES);
    login.imm_data_offset.set(68);
    let login = bytes(&login);
    let private_data = if options & 4 == 0 { &login } else { input.take(64).unwrap_or(&[]) };
    match machine.asked(Time(1), private_data) {
        Answer::Accept(answer) => {
            assert_eq!(answer.len(), LoginResponse::BYTES);
            assert!(LoginRequest::from_private_data(private_data).is_some());
            assert!(!machine.may_accept());
            machine.down(Time(1), Down::Admit);
            assert!(machine.may_accept());
            machine.established(Time(1), &[]);
        }
        Answer::Reject(answer) => {
            assert_eq!(answer.len(), 32);
            assert!(options & 4 != 0, "a right login succeeds");
        }
    }
    machine
}

fn initiator(input: &mut Input<'_>, options: u8) -> Initiator {
    let config = InitiatorConfig {
        initiator_port: [1; 16],
        target_port: GUID,
        queue_depth: DEPTH,
        it_iu_bytes: IU_BYTES,
        immediate: true,
        keeps_others: false,
        login_within: Duration::from_secs(1),
        idle: Duration::from_secs(1),
    };
    let mut machine = Initiator::new(config, Time(1));
    assert_eq!(machine.request().len(), 56);
    let mut answer = LoginResponse { opcode: Opcode::LOGIN_RESPONSE, ..LoginResponse::default() };
    answer.req_lim_delta.set(u32::from(DEPTH));
    answer.max_it_iu_len.set(IU_BYTES);
    answer.rsp_flags = if options & 2 == 0 { LoginResponse::IMMEDIATE } else { 0 };
    match options & 12 {
        0 => machine.established(Time(1), &bytes(&answer)),
        4 => machine.established(Time(1), input.take(52).unwrap_or(&[])),
        8 => machine.rejected(Time(1), input.take(32).unwrap_or(&[])),
        _ => {}
    }
    machine
}

fn bytes<L: Layout>(layout: &L) -> Vec<u8> {
    layout.as_bytes().to_vec()
}

/// A layer above.
trait Layer<M: MessageMachine> {
    fn event(&mut self, event: M::Event);
    fn act(&mut self, machine: &mut M, now: Time, what: u8);
    /// Whether the connection has ended.
    fn is_gone(&self) -> bool;
    /// How many receives are posted while this many messages are held.
    fn receives(&self, held: usize) -> Option<usize>;
}

/// Above a target.
#[derive(Default)]
struct Above {
    commands: Vec<(Command, u32)>,
    functions: Vec<proto::services::FunctionId>,
    /// Tasks whose places are in use.
    in_flight: Vec<TaskId>,
    /// The session is ending, which was not reported yet.
    leaves: bool,
    gone: bool,
}

fn place(len: u32) -> Places {
    Places::one(Span { buffer: BufferId(2), len, offset: 0 })
}

impl Layer<Target> for Above {
    fn event(&mut self, event: Up) {
        assert!(!self.gone, "nothing comes after the end");
        match event {
            Up::Command(command) => {
                assert!(command.task.slot < DEPTH * 2 && command.unsolicited_bytes == 0);
                let is_in_use = self.in_flight.iter().any(|task| task.slot == command.task.slot);
                assert!(!is_in_use, "a slot is kept as long as its places");
                self.commands.push((command, 0));
            }
            Up::Function { id, .. } => self.functions.push(id),
            Up::Gone { .. } => self.gone = true,
            Up::Fetched(task) | Up::Pushed(task) => {
                let at = self.in_flight.iter().position(|other| *other == task);
                self.in_flight.swap_remove(at.expect("places come back once"));
            }
            Up::Leaving => self.leaves = true,
            Up::Ready(_) | Up::Refused { .. } | Up::Terminated { .. } => {}
            Up::FetchFailed { .. } => unreachable!("RDMA does not fail for one task"),
            Up::Fault { what } => panic!("{what}"),
        }
    }

    fn act(&mut self, machine: &mut Target, now: Time, what: u8) {
        let ending = Ending {
            status: what & 2,
            sense: (what & 2 != 0).then(|| Sense::from_bytes(&[0x70; 18])),
            read_bytes: u64::from(what),
            write_bytes: 9,
        };
        if std::mem::take(&mut self.leaves) {
            return machine.down(now, Down::Close);
        }
        if let Some(id) = self.functions.pop() {
            return machine.down(now, Down::FunctionDone { id, response: FunctionResponse::Complete });
        }
        if what == 0xff {
            return machine.down(now, Down::RequestLogout { within_seconds: 1 });
        }
        if what == 0xfe {
            machine.notify_event(3, Sense::from_bytes(&[0x72; 8]));
        }
        let Some((command, moved)) = self.commands.pop() else { return };
        let task: TaskId = command.task;
        // The first transfer of a task is its only one: then there is nothing to wait for.
        match what & 0x0c {
            0 if moved == 0 => {
                let len = command.write_bytes.min(300);
                machine.down(now, Down::Fetch { task, at: 0, into: place(len) });
                self.in_flight.push(task);
                self.commands.insert(0, (command, 1));
            }
            4 if moved == 0 => {
                let from = place(command.read_bytes.min(300));
                let end = (what & 0x10 != 0).then_some(ending);
                machine.down(now, Down::Push { task, at: 0, from, end });
                self.in_flight.push(task);
                self.commands.insert(0, (command, 1));
            }
            8 => machine.down(now, Down::Abort { task }),
            _ => machine.down(now, Down::End { task, ending }),
        }
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn receives(&self, held: usize) -> Option<usize> {
        (!self.gone).then(|| RECEIVES - held)
    }
}

/// Above an initiator.
#[derive(Default)]
struct Below {
    tasks: Vec<TaskId>,
    gone: bool,
}

impl Layer<Initiator> for Below {
    fn event(&mut self, event: Event) {
        assert!(!self.gone, "nothing comes after the end");
        match event {
            Event::Completed(completion) => {
                let at = self.tasks.iter().position(|task| *task == completion.task);
                self.tasks.swap_remove(at.expect("a command ends once"));
            }
            Event::Gone { .. } => self.gone = true,
            Event::Ready(_) | Event::FunctionDone { .. } | Event::Async { .. } => {}
        }
    }

    fn act(&mut self, machine: &mut Initiator, _now: Time, what: u8) {
        match what & 7 {
            6 => drop(machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None)),
            7 if what == 0xff => machine.logout(),
            7 => drop(machine.function(0, TaskFunction::ABORT_TASK, self.tasks.first().copied())),
            _ => {
                let cdb = Cdb::from_bytes(&[0; 64][..16 + usize::from(what & 0x30)]).expect("it fits");
                let read = place(if what & 1 == 0 { 0 } else { 600 });
                let write = place(if what & 2 == 0 { 0 } else { u32::from(what) * 4 });
                let request = Request { lun: 0, attribute: Attribute::Simple, cdb, read, write };
                self.tasks.extend(machine.submit(request));
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn receives(&self, _held: usize) -> Option<usize> {
        None
    }
}

/// A queue pair without a peer.
struct Wire {
    room: usize,
    works: VecDeque<WorkId>,
    /// Messages that the machine has not returned.
    held: Vec<Span>,
    stags: Vec<u32>,
    /// For every third invalidated buffer some data is still in flight.
    leaving: VecDeque<u32>,
    made: u32,
    /// The content of tables read.
    memory: Vec<u8>,
}

impl Wire {
    fn post(&mut self, work: WorkId) -> Result<(), Full> {
        if self.works.len() >= self.room {
            return Err(Full);
        }
        self.works.push_back(work);
        Ok(())
    }
}

impl Post for Wire {
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        _payload: Places,
        _solicited: bool,
        _invalidate: Option<u32>,
    ) -> Result<(), Full> {
        assert!((16..=264).contains(&header.len()));
        self.post(work)
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        assert!(to.offset.checked_add(from.len().into()).is_some() && !from.is_empty());
        self.post(work)
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        assert!(from.offset.checked_add(into.len().into()).is_some() && !into.is_empty());
        self.post(work)
    }

    fn advertise(&mut self, _places: Places, _access: Reach) -> Result<Advertised, Full> {
        self.made += 1;
        self.stags.push(self.made);
        Ok(Advertised { stag: self.made, offset: 0 })
    }

    fn moved(&self, stag: u32) -> u32 {
        stag % 5 * 512
    }

    fn invalidate(&mut self, stag: u32) -> bool {
        let at = self.stags.iter().position(|other| *other == stag);
        self.stags.swap_remove(at.expect("it is advertised"));
        let is_free = !stag.is_multiple_of(3);
        if !is_free {
            self.leaving.push_back(stag);
        }
        is_free
    }

    fn copy(&mut self, from: Span, to: Places) {
        assert_eq!((from.buffer, from.len), (RECEIVE, to.len()));
    }

    fn bytes(&self, place: Span) -> &[u8] {
        &self.memory[..place.len as usize]
    }

    fn release(&mut self, place: Span) {
        let at = self.held.iter().position(|other| *other == place);
        self.held.swap_remove(at.expect("it was not returned before"));
    }
}

struct Driver<M: MessageMachine, L: Layer<M>> {
    machine: M,
    layer: L,
    wire: Wire,
    now: Time,
    messages: u64,
}

impl<M: MessageMachine, L: Layer<M>> Driver<M, L> {
    fn new(machine: M, layer: L) -> Self {
        let wire = Wire {
            room: 4,
            works: VecDeque::new(),
            held: Vec::new(),
            stags: Vec::new(),
            leaving: VecDeque::new(),
            made: 0,
            memory: vec![0; RECEIVE_BYTES as usize],
        };
        Self { machine, layer, wire, now: Time(2), messages: 0 }
    }

    fn run(&mut self, input: &mut Input<'_>) {
        self.settle();
        while !input.is_empty() && !self.machine.is_over() {
            let what = input.byte();
            match what & 7 {
                0..=2 => self.message(input),
                3 if what & 8 != 0 => {
                    if let Some(stag) = self.wire.leaving.pop_front() {
                        self.machine.freed(self.now, stag);
                    }
                }
                3 | 4 => {
                    if let Some(work) = self.wire.works.pop_front() {
                        self.machine.finished(self.now, work);
                    }
                }
                5 => self.layer.act(&mut self.machine, self.now, input.byte()),
                6 => self.wire.room = usize::from(input.byte() & 7),
                _ => {
                    self.now = self.now.after(Duration::from_millis(u64::from(what) * 4));
                    if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
                        self.machine.tick(self.now);
                    }
                }
            }
            self.settle();
        }
        self.machine.closed(self.now, "closed");
        self.settle();
        assert!(self.layer.is_gone() && self.machine.is_over(), "a closed connection has ended");
    }

    /// A message, if a receive is posted for it.
    fn message(&mut self, input: &mut Input<'_>) {
        let len = usize::from(input.short() & 0x03ff).min(input.0.len());
        let bytes = input.take(len).unwrap_or(&[]);
        if self.machine.receives().count == 0 {
            return;
        }
        for (n, byte) in self.wire.memory.iter_mut().enumerate() {
            *byte = bytes.get(n % 64).copied().unwrap_or(0);
        }
        self.messages += 1;
        let offset = self.messages * u64::from(RECEIVE_BYTES);
        let place = Span { buffer: RECEIVE, len: RECEIVE_BYTES, offset };
        self.wire.held.push(place);
        self.machine.received(self.now, Message { place, bytes, invalidated: None });
    }

    /// Takes events, and posts what is pending.
    fn settle(&mut self) {
        loop {
            while let Some(event) = self.machine.poll() {
                self.layer.event(event);
            }
            let before = (self.wire.works.len(), self.wire.held.len());
            if self.machine.owes() && !self.layer.is_gone() {
                self.machine.post(self.now, &mut self.wire);
            }
            if let Some(receives) = self.layer.receives(self.wire.held.len()) {
                assert_eq!(usize::from(self.machine.receives().count), receives);
            }
            if before == (self.wire.works.len(), self.wire.held.len()) {
                break;
            }
        }
        while let Some(event) = self.machine.poll() {
            self.layer.event(event);
        }
    }
}
