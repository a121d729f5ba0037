//! A target's machine on our iWARP, to which a capture is replayed.

use super::capture::{Line, Message, frames, messages, sides};
use crate::support::link::CONFIG;
use crate::support::rig::START;
use crate::support::{DISK, End, MEMORY_BYTES, Memory, Random, Transport};
use proto::iwarp::setup::Depths;
use proto::iwarp::{Config, Event, HEADER_BYTES_MAX, QueuePair, READS_MAX, Refused};
use proto::message::{self, Access, Advertised, Answer, Full, MessageMachine, Post, WorkId};
use proto::services::{Command, Down, Ending, Session, TaskId, Up};
use proto::stream::StreamMachine;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use wire::scsi::command::Read10;
use wire::{BufferId, Places, Span};

/// Messages too long for the queue pair, and receives.
const STAGING: BufferId = BufferId(2);
const RECEIVES: BufferId = BufferId(3);

/// READ(10) and WRITE(10) (SBC-3).
pub(super) use wire::scsi::opcode::{READ_10 as READ, WRITE_10 as WRITE};

thread_local! {
    /// The STags that the daemon drew, for whose buffers siw has the data.
    static DRAWN: RefCell<VecDeque<u32>> = const { RefCell::new(VecDeque::new()) };
}

fn drawn() -> u32 {
    DRAWN.with_borrow_mut(|drawn| drawn.pop_front().expect("as many RDMA Reads as there were"))
}

pub(super) struct Replay<M> {
    end: End<QueuePair>,
    machine: M,
    memory: Memory,
    /// Receives by their number.
    receives: BTreeMap<u64, Span>,
    posted: usize,
    running: BTreeMap<TaskId, Command>,
    sent: Vec<u8>,
    pub session: Option<Session>,
    /// Why it has ended, as reported to the engine.
    pub gone: Option<String>,
}

impl<M: MessageMachine<Event = Up> + Transport> Replay<M> {
    /// Replays a capture to the machine, at most `chunk` bytes at a time.
    pub(super) fn play(machine: M, capture: &str, chunk: usize) -> Replay<M> {
        let (siw, daemon) = sides(capture);
        let mut replay = Replay::new(machine, &daemon);
        for line in siw {
            match line {
                Line::Frame(frame) => frame.chunks(chunk).for_each(|piece| replay.take(piece)),
                Line::End => {
                    replay.end.machine.closed(START, None);
                    replay.settle();
                }
            }
        }
        replay
    }

    pub(super) fn new(machine: M, daemon: &[Line]) -> Replay<M> {
        let recorded = daemon.iter().filter_map(Line::frame);
        let sinks = messages(recorded).into_iter().filter_map(|message| match message {
            Message::ReadRequest { sink, .. } => Some(sink),
            _ => None,
        });
        DRAWN.set(sinks.collect());
        let depths = Depths { ird: 0, ord: READS_MAX };
        let (work, receives) = (1024, 1024);
        let config = Config { crc: false, long_fpdus: true, depths, work, receives, random: drawn, ..CONFIG };
        Replay {
            end: End::new(QueuePair::responder(config, START)),
            machine,
            memory: Memory::new(&mut Random::new(1)),
            receives: BTreeMap::new(),
            posted: 0,
            running: BTreeMap::new(),
            sent: Vec::new(),
            session: None,
            gone: None,
        }
    }

    /// Bytes arrive, and everything that follows from them is done.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.end.inject(bytes);
        self.settle();
    }

    /// What the machine has sent.
    pub(super) fn answers(&self) -> Vec<Message> {
        messages(frames(&self.sent))
    }

    /// The content of the disk from this block on.
    pub(super) fn disk(&self, lba: u32, len: u32) -> &[u8] {
        self.memory.look(place(lba, len))
    }

    fn settle(&mut self) {
        loop {
            let mut busy = self.end.feed(START, &mut self.memory);
            while let Some(event) = self.end.machine.poll() {
                self.happened(event);
                busy = true;
            }
            while let Some(up) = self.machine.poll() {
                self.up(up);
                busy = true;
            }
            self.post();
            busy |= self.end.fill(START, &mut self.memory);
            self.sent.extend(self.end.take_outgoing());
            for task in self.end.left() {
                self.end.machine.pushed(task);
            }
            if !busy {
                return;
            }
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Request { private_data, .. } => match self.machine.asked(START, &private_data) {
                Answer::Accept(answer) => {
                    self.provide();
                    if !self.machine.may_accept() {
                        self.machine.down(START, Down::Admit);
                    }
                    self.end.machine.accept(START, &answer).unwrap();
                }
                Answer::Reject(answer) => self.end.machine.reject(START, &answer).unwrap(),
            },
            Event::Established { private_data, .. } => self.machine.established(START, &private_data),
            Event::Received { id, len, invalidated, .. } => {
                self.posted -= 1;
                let place = self.receives[&id];
                let bytes = self.memory.look(place.slice(0, len));
                self.machine.received(START, message::Message { place, bytes, invalidated });
            }
            Event::Sent { id } | Event::Written { id } | Event::Read { id } => {
                self.machine.finished(START, WorkId(id));
            }
            Event::Gone { reason } => self.machine.closed(START, &reason),
            Event::Rejected { .. } => panic!("this end asks for no connection"),
            Event::Freed { .. } => panic!("this end advertises nothing"),
        }
    }

    /// Lets the machine post, and closes the connection after its last work.
    fn post(&mut self) {
        if self.end.machine.agreed().is_none() {
            return;
        }
        self.provide();
        let Replay { end, machine, memory, posted, .. } = self;
        if machine.owes() {
            machine.post(START, &mut Posting { pair: &mut end.machine, memory, posted });
        }
        self.provide();
        if self.machine.is_over() {
            self.end.machine.close(START);
        }
    }

    fn provide(&mut self) {
        let wanted = self.machine.receives();
        while self.posted < usize::from(wanted.count) {
            let place = self.memory.grow(RECEIVES, wanted.bytes);
            self.receives.insert(place.offset, place);
            self.posted += 1;
            self.end.machine.post_receive(place.offset, Places::one(place)).unwrap();
        }
    }

    fn up(&mut self, up: Up) {
        match up {
            Up::Ready(session) => {
                self.session = Some(*session);
                self.machine.down(START, Down::Admit);
            }
            Up::Leaving => self.machine.down(START, Down::Close),
            Up::Command(command) => self.begin(command),
            Up::Fetched(task) => self.end(task),
            Up::Pushed(_) => {}
            Up::Gone { reason } => self.gone = Some(reason),
            Up::FetchFailed { .. }
            | Up::Terminated { .. }
            | Up::Function { .. }
            | Up::Refused { .. }
            | Up::Fault { .. } => {
                panic!("{up:?}")
            }
        }
    }

    /// Reads and writes; everything else succeeds without data.
    fn begin(&mut self, command: Command) {
        let (task, len) = (command.task, u32::from(command.cdb.get(Read10::BLOCKS)) * 512);
        let at = Places::one(place(command.cdb.get(Read10::LBA), len));
        self.running.insert(task, command);
        match command.cdb.opcode() {
            READ => {
                self.running.remove(&task);
                let end = Some(Ending { status: 0, sense: None, read_bytes: len.into(), write_bytes: 0 });
                self.machine.down(START, Down::Push { task, at: 0, from: at, end });
            }
            WRITE => self.machine.down(START, Down::Fetch { task, at: 0, into: at }),
            _ => self.end(task),
        }
    }

    fn end(&mut self, task: TaskId) {
        let write_bytes = self.running.remove(&task).map_or(0, |command| command.write_bytes).into();
        let ending = Ending { status: 0, sense: None, read_bytes: 0, write_bytes };
        self.machine.down(START, Down::End { task, ending });
    }
}

impl Line {
    pub(super) fn frame(&self) -> Option<&[u8]> {
        if let Line::Frame(frame) = self { Some(frame) } else { None }
    }
}

/// The disk is shorter than the one in the capture, and repeats itself.
fn place(lba: u32, len: u32) -> Span {
    Span { buffer: DISK, offset: u64::from(lba) * 512 % MEMORY_BYTES as u64, len }
}

struct Posting<'a> {
    pair: &'a mut QueuePair,
    memory: &'a mut Memory,
    posted: &'a mut usize,
}

fn accepted<T>(result: Result<T, Refused>) -> Result<T, Full> {
    result.map_err(|refused| match refused {
        Refused::Full | Refused::State => Full,
        Refused::TooLong | Refused::NoReads => panic!("{refused}"),
    })
}

impl Post for Posting<'_> {
    fn send(
        &mut self,
        work: WorkId,
        header: &[u8],
        payload: Places,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Full> {
        let (head, rest) = header.split_at(header.len().min(HEADER_BYTES_MAX));
        let mut places = Places::EMPTY;
        if !rest.is_empty() {
            let staged = self.memory.grow(STAGING, rest.len() as u32);
            self.memory.at(staged).copy_from_slice(rest);
            places.push(staged);
        }
        assert!(payload.iter().all(|span| places.push(span)));
        accepted(self.pair.send(work.0, head, places, solicited, invalidate))
    }

    fn write(&mut self, work: WorkId, from: Places, to: Advertised) -> Result<(), Full> {
        accepted(self.pair.write(work.0, from, to.stag, to.offset))
    }

    fn read(&mut self, work: WorkId, into: Places, from: Advertised) -> Result<(), Full> {
        accepted(self.pair.read(work.0, into, from.stag, from.offset))
    }

    fn advertise(&mut self, _: Places, _: Access) -> Result<Advertised, Full> {
        panic!("a target advertises nothing");
    }

    fn moved(&self, stag: u32) -> u32 {
        panic!("a target has advertised nothing: {stag:#x}");
    }

    fn invalidate(&mut self, stag: u32) -> bool {
        panic!("a target has advertised nothing: {stag:#x}");
    }

    fn copy(&mut self, from: Span, to: Places) {
        self.memory.copy(Places::one(from), to);
    }

    fn bytes(&self, place: Span) -> &[u8] {
        self.memory.look(place)
    }

    fn release(&mut self, place: Span) {
        *self.posted += 1;
        accepted(self.pair.post_receive(place.offset, Places::one(place))).unwrap_or(());
    }
}
