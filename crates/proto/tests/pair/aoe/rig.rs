//! Both ends of an AoE session, a segment that loses, duplicates and delays frames, a clock, and a slow
//! device.

use crate::support::{DISK, HOST, Random, crc32c};
use proto::aoe::initiator::{Initiator, InitiatorConfig, Outgoing, Put, Source};
use proto::aoe::target::{Config, Export, Kind, Target, answer_query, classify};
use proto::iscsi::initiator::Event;
use proto::services::{Command, Down, Ending, TaskId, Up};
use proto::time::{Stamp, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use wire::aoe::{Address, Header, Mac, Order, OrderKind, sectors_per_frame};
use wire::ata::{self, Action, Feature, IdentifyData, PassThrough, Registers, identify};
use wire::iwarp::Layout;
use wire::scsi::status::BUSY;
use wire::{BufferId, Places, Span};

pub(crate) const SECTOR: usize = 512;
const TRIM_SECTORS: u16 = 1;
pub(crate) const ADDRESS: Address = Address { shelf: 3, slot: 4 };
pub(crate) const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// Frames in transit, one buffer each, from this one on.
const SCRATCH: BufferId = BufferId(2);
const FRAMES: u32 = 16;
const SCRATCH_BYTES: usize = 1 << 14;

pub(crate) const INITIATOR: InitiatorConfig = InitiatorConfig {
    target: ADDRESS,
    ours: OURS,
    mtu: 1500,
    lane: 1,
    first_tag: 7,
    queue_depth: 8,
    login_within: Duration::from_secs(60),
    idle: Duration::from_secs(5),
    lost_after: Duration::from_secs(60),
};

/// Failures, out of 1000 frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub lost: usize,
    pub doubled: usize,
    /// How long a frame may be in transit.
    pub delay: Duration,
    /// Commands that the device does not answer.
    pub unanswered: usize,
}

enum Scheduled {
    ToTarget(Vec<u8>),
    ToInitiator(Vec<u8>),
    Done(TaskId),
}

struct Running {
    what: What,
    command: Command,
    /// Its data was fetched, or is borrowed from its frame.
    has: Has,
}

#[derive(Clone, Copy)]
enum What {
    Ata(PassThrough),
    Order(OrderKind),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Has {
    Nothing,
    Fetched,
    Borrowed(Span),
}

/// Both ends and the network between them, with what the tests count.
/// Its fields are both ends, the network between them, its odds, and what the tests count.
pub(crate) struct Rig {
    pub now: Time,
    pub faults: Faults,
    /// No frame arrives.
    pub is_cut: bool,
    /// The transmission time of a byte: frames queue behind those before them.
    pub byte: Duration,
    /// How long each direction is busy with what was sent.
    busy: [Time; 2],
    pub initiator: Initiator,
    pub target: Target,
    pub events: Vec<Event>,
    pub random: Random,
    buffers: u16,
    mtu: usize,
    host: Vec<u8>,
    pub disk: Vec<u8>,
    scratch: Vec<u8>,
    frames: BTreeMap<u32, Vec<u8>>,
    next_frame: u32,
    schedule: BTreeMap<(Time, u64), Scheduled>,
    count: u64,
    running: BTreeMap<TaskId, Running>,
    /// Tags of unanswered requests.
    tags: BTreeSet<u32>,
    /// The most there were.
    pub tags_most: usize,
    pub flushes: usize,
    pub verified: usize,
    pub sent: usize,
    /// The config string.
    pub config: Vec<u8>,
}

impl Rig {
    pub(crate) fn new(config: InitiatorConfig, buffers: u16, sectors: usize, seed: u64) -> Rig {
        let target = Target::new(Config {
            address: ADDRESS,
            ours: THEIRS,
            peer: OURS,
            buffers,
            sectors_max: sectors_per_frame(config.mtu),
            firmware: 1,
            crc32c,
        });
        Rig {
            now: Time(0),
            faults: Faults::default(),
            is_cut: false,
            byte: Duration::ZERO,
            busy: [Time(0); 2],
            initiator: Initiator::new(config, Time(0)),
            target,
            events: Vec::new(),
            random: Random::new(seed),
            buffers,
            mtu: config.mtu as usize,
            host: vec![0; 1 << 20],
            disk: vec![0; sectors * SECTOR],
            scratch: vec![0; SCRATCH_BYTES * usize::from(buffers) * 2],
            frames: BTreeMap::new(),
            next_frame: FRAMES,
            schedule: BTreeMap::new(),
            count: 0,
            running: BTreeMap::new(),
            tags: BTreeSet::new(),
            tags_most: 0,
            flushes: 0,
            verified: 0,
            sent: 0,
            config: b"pair".to_vec(),
        }
    }

    /// Another session of the same initiator.
    pub(crate) fn reopen(&mut self, config: InitiatorConfig) {
        self.initiator = Initiator::new(config, self.now);
        self.tags.clear();
        self.events.clear();
    }

    pub(crate) fn host(&mut self, at: usize, len: usize) -> &mut [u8] {
        &mut self.host[at..at + len]
    }

    fn at(&mut self, span: Span) -> &mut [u8] {
        let region = match span.buffer {
            HOST => &mut self.host,
            DISK => &mut self.disk,
            SCRATCH => &mut self.scratch,
            BufferId(frame) => self.frames.get_mut(&frame).expect("the frame is not free"),
        };
        &mut region[span.offset as usize..][..span.len as usize]
    }

    fn gather(&mut self, places: &Places) -> Vec<u8> {
        places.iter().flat_map(|span| self.at(span).to_vec()).collect()
    }

    fn scatter(&mut self, mut bytes: &[u8], places: &Places) {
        assert_eq!(bytes.len(), places.len() as usize);
        for span in places.iter() {
            let (head, rest) = bytes.split_at(span.len as usize);
            self.at(span).copy_from_slice(head);
            bytes = rest;
        }
    }

    fn schedule_in(&mut self, within: Duration, what: Scheduled) {
        let nanos = 20_000 + self.random.below(within.as_nanos() as usize + 1);
        let way = match &what {
            Scheduled::ToTarget(bytes) => Some((0, bytes.len())),
            Scheduled::ToInitiator(bytes) => Some((1, bytes.len())),
            Scheduled::Done(_) => None,
        };
        let mut from = self.now;
        if let Some((way, len)) = way {
            from = from.max(self.busy[way]).after(self.byte * len as u32);
            self.busy[way] = from;
        }
        let at = from.after(Duration::from_nanos(nanos as u64));
        self.count += 1;
        self.schedule.insert((at, self.count), what);
    }

    fn send(&mut self, bytes: Vec<u8>, wrap: fn(Vec<u8>) -> Scheduled) {
        assert!(bytes.len() <= self.mtu + 14, "{} bytes in a frame", bytes.len());
        self.sent += 1;
        let Faults { lost, doubled, delay, .. } = self.faults;
        if self.is_cut || self.random.below(1000) < lost {
            return;
        }
        if self.random.below(1000) < doubled {
            // Late enough to find that newer data has been written.
            self.schedule_in(delay * 10, wrap(bytes.clone()));
        }
        self.schedule_in(delay, wrap(bytes));
    }

    /// Runs the next event, unless that is later than `end`; `false`: it is.
    pub(crate) fn step(&mut self, end: Time) -> bool {
        self.settle();
        let scheduled = self.schedule.first_key_value().map(|((at, _), _)| *at);
        let due = [scheduled, self.initiator.deadline(), self.target.deadline()];
        let Some(next) = due.into_iter().flatten().min().filter(|next| *next <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(next);
        if scheduled == Some(next) {
            let (_, what) = self.schedule.pop_first().expect("it is there");
            match what {
                Scheduled::ToTarget(bytes) => self.target_hears(bytes),
                Scheduled::ToInitiator(bytes) => self.initiator_hears(bytes),
                Scheduled::Done(task) => self.done(task),
            }
        } else {
            self.initiator.tick(self.now);
            self.target.tick(self.now);
        }
        self.settle();
        true
    }

    fn settle(&mut self) {
        while let Some(event) = self.initiator.poll() {
            self.events.push(event);
        }
        while let Some(places) = self.initiator.wants() {
            let list = self.gather(&places);
            self.initiator.bring(&list);
        }
        while let Some(Outgoing { frame, made }) = self.initiator.transmit(self.now) {
            let made = made.to_vec();
            let bytes = [frame.header().to_vec(), self.gather(&frame.payload), made].concat();
            let header = Header::view(&bytes).unwrap();
            if header.command == wire::aoe::Command::ATA {
                self.tags.insert(header.tag.get());
            }
            assert!(self.tags.len() <= usize::from(self.buffers), "more than the target has room for");
            self.tags_most = self.tags_most.max(self.tags.len());
            self.send(bytes, Scheduled::ToTarget);
        }
        loop {
            while let Some(up) = self.target.poll() {
                self.up(up);
            }
            let Some((from, to)) = self.target.copy() else { break };
            let bytes = self.at(from).to_vec();
            self.scatter(&bytes, &to);
        }
        while let Some(frame) = self.target.transmit() {
            let bytes = [frame.header().to_vec(), self.gather(&frame.payload)].concat();
            self.send(bytes, Scheduled::ToInitiator);
        }
        while let Some(Span { buffer: BufferId(frame), .. }) = self.target.freed() {
            assert!(self.frames.remove(&frame).is_some(), "freed once");
        }
        assert!(self.frames.len() <= usize::from(self.buffers) * 2);
    }

    fn keep(&mut self, bytes: Vec<u8>) -> Span {
        let buffer = BufferId(self.next_frame);
        self.next_frame += 1;
        let span = Span { buffer, offset: 0, len: bytes.len() as u32 };
        self.frames.insert(buffer.0, bytes);
        span
    }

    fn initiator_hears(&mut self, bytes: Vec<u8>) {
        self.tags.remove(&Header::view(&bytes).unwrap().tag.get());
        let place = self.keep(bytes.clone());
        let write = self.initiator.receive(self.now, &bytes, place).map(|Put { from, to }| match from {
            Source::Frame(span) => (bytes[span.offset as usize..][..span.len as usize].to_vec(), to),
            Source::Made(made) => (made.to_vec(), to),
        });
        if let Some((bytes, to)) = write {
            self.scatter(&bytes, &to);
        }
        self.frames.remove(&place.buffer.0);
    }

    fn target_hears(&mut self, bytes: Vec<u8>) {
        let info = classify(&bytes).expect("a request");
        assert_eq!((info.from, info.to), (OURS, ADDRESS));
        if info.kind == Kind::Query {
            let export = Export {
                address: ADDRESS,
                ours: THEIRS,
                config: &self.config,
                buffers: self.buffers,
                sectors_max: sectors_per_frame(self.mtu as u32),
                firmware: 1,
            };
            let mut out = vec![0; 2048];
            // A test that does not match gets no answer.
            if let Some(len) = answer_query(&bytes, &export, &mut out) {
                out.truncate(len);
                self.send(out, Scheduled::ToInitiator);
            }
            return;
        }
        let place = self.keep(bytes.clone());
        if !self.target.receive(self.now, Stamp(self.now.0), &bytes, place) {
            self.frames.remove(&place.buffer.0);
        }
    }

    fn up(&mut self, up: Up) {
        match up {
            Up::Command(command) => {
                let id = command.task;
                let what = match Order::from_cdb(&command.cdb) {
                    Some(order) => What::Order(order.kind),
                    None => What::Ata(PassThrough::from_cdb(&command.cdb).expect("ATA")),
                };
                let has = match (command.write_bytes, self.random.below(2)) {
                    (1.., 0) => Has::Borrowed(self.target.borrow(id).expect("its data is in its frame")),
                    _ => Has::Nothing,
                };
                self.running.insert(id, Running { what, command, has });
                if command.write_bytes > 0 && has == Has::Nothing {
                    let into = Places::one(scratch(id, command.write_bytes));
                    self.target.down(self.now, Down::Fetch { task: id, at: 0, into });
                }
                self.schedule_in(Duration::from_millis(2), Scheduled::Done(id));
            }
            Up::Fetched(id) => self.running.get_mut(&id).expect("it runs").has = Has::Fetched,
            Up::Pushed(_) => {}
            other => panic!("{other:?}"),
        }
    }

    /// The device has done a command.
    fn done(&mut self, task: TaskId) {
        let Running { what, command, has } = self.running.remove(&task).expect("it runs");
        let is_unanswered = self.random.below(1000) < self.faults.unanswered;
        let status = if is_unanswered { BUSY } else { 0 };
        let data_out = match has {
            _ if is_unanswered => Vec::new(),
            Has::Nothing => {
                assert_eq!(command.write_bytes, 0, "its data is missing");
                Vec::new()
            }
            Has::Fetched => self.at(scratch(task, command.write_bytes)).to_vec(),
            Has::Borrowed(span) => self.at(span).to_vec(),
        };
        let data = match what {
            _ if is_unanswered => None,
            What::Ata(pass) => self.execute_ata(task, &pass.registers, &data_out),
            What::Order(kind) => self.follow(task, kind, data_out),
        };
        let read_bytes = data.map_or(0, |data| data.len).into();
        let ending = Ending { status, sense: None, read_bytes, write_bytes: command.write_bytes.into() };
        let down = match data {
            Some(from) => Down::Push { task, at: 0, from: Places::one(from), end: Some(ending) },
            None => Down::End { task, ending },
        };
        self.target.down(self.now, down);
        if let Has::Borrowed(_) = has {
            self.target.end_borrow(task);
        }
    }

    /// Executes an ATA command; returns where its data-in is.
    fn execute_ata(&mut self, task: TaskId, registers: &Registers, data_out: &[u8]) -> Option<Span> {
        let len = registers.sectors() * SECTOR as u32;
        let medium = Span { buffer: DISK, offset: registers.lba * SECTOR as u64, len };
        let command = registers.command().expect("a command");
        match command.action() {
            Action::Read => return Some(medium),
            Action::Write { .. } => self.at(medium).copy_from_slice(data_out),
            Action::Verify => self.verified += registers.sectors() as usize,
            Action::Flush => self.flushes += 1,
            Action::Other if command == ata::Command::DataSetManagement => {
                assert!(data_out.len() <= usize::from(TRIM_SECTORS) * SECTOR);
                for range in data_out.chunks(8) {
                    let range = u64::from_le_bytes(range.try_into().expect("eight bytes"));
                    let (lba, sectors) = ((range & 0xffff_ffff_ffff) as usize, (range >> 48) as usize);
                    self.disk[lba * SECTOR..(lba + sectors) * SECTOR].fill(0);
                }
            }
            Action::Other => {
                let identity = identity(self.disk.len() / SECTOR).encode();
                let place = scratch(task, SECTOR as u32);
                self.at(place).copy_from_slice(&identity);
                return Some(place);
            }
        }
        None
    }

    /// Executes an order about the config string; returns where its data-in is.
    fn follow(&mut self, task: TaskId, kind: OrderKind, data_out: Vec<u8>) -> Option<Span> {
        if kind == OrderKind::ForceConfig {
            self.config = data_out;
        }
        let config = self.config.clone();
        let place = scratch(task, config.len() as u32);
        self.at(place).copy_from_slice(&config);
        Some(place)
    }

    /// Whether nothing is left in progress.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.target.is_idle() && self.running.is_empty() && self.frames.is_empty()
    }
}

/// Where the data of a task is fetched to.
fn scratch(task: TaskId, len: u32) -> Span {
    Span { buffer: SCRATCH, offset: u64::from(task.slot) * SCRATCH_BYTES as u64, len }
}

fn identity(sectors: usize) -> IdentifyData {
    IdentifyData {
        serial: identify::text("PAIR1"),
        firmware: identify::text("1"),
        model: identify::text("LUNETTE pair"),
        sectors: sectors as u64,
        lba48: true,
        flush_cache: true,
        flush_cache_ext: true,
        fua: false,
        write_cache: Feature::ON,
        look_ahead: Feature::ON,
        smart: Feature::default(),
        smart_logs: false,
        sector_bytes: ata::SECTOR_BYTES,
        physical_exponent: 0,
        rotation_rate: 1,
        trim_sectors: TRIM_SECTORS,
        trim_zeros: true,
        world_wide_name: None,
        nop_waits: true,
    }
}
