//! An AoE initiator: it discovers units, keeps several requests in flight, and retransmits each, with its tag
//! or, as Linux does, with a new one and from another address, until there is an answer.

use crate::ethernet::{LATE, Queue};
use crate::initiator::Aim;
use crate::net::Shared;
use crate::register::{Fate, Range, Registers, WriteId};
use crate::reservations::Reservations;
use fastrand::Rng;
use proto::time::Time;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use wire::aoe::{Address, Command, ConfigArgument, ConfigCommand, ErrorCode, Header, Mac};
use wire::ata::{self, Registers as Fields, Section, status};
use wire::iwarp::Layout as _;
use zerocopy::IntoBytes as _;

/// The shelf of all units; their slots are their unit numbers.
pub(crate) const SHELF: u16 = 1;
/// Time until the first retransmission of a request; each further one takes twice as long.
const PATIENCE: Duration = Duration::from_millis(3);
const DOUBLINGS_MAX: u32 = 6;
/// Most tags per request.
const TAGS_MAX: usize = 4;
/// Offsets of a request's argument and of its data.
const ARGUMENT: usize = 24;
const DATA: usize = 36;
/// IEEE 802.3 section 3.2.8.
pub(crate) const FRAME_BYTES_MIN: usize = 60;
/// Words 100 to 103 of IDENTIFY DEVICE data (ACS-3 section 7.12.7).
const SECTORS_AT: usize = 200;

/// Its behaviour: odds in 1000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    pub(crate) depth: usize,
    pub(crate) reads: u32,
    pub(crate) flushes: u32,
    durable: u32,
    queries: u32,
    pause_micros: u64,
}

impl Habits {
    pub(crate) fn draw(rng: &mut Rng) -> Habits {
        Habits {
            // Targets remember 1024 answered writes; no more may be answered while a copy is in flight.
            depth: [1, 4, 16][rng.usize(0..3)],
            reads: [300, 500, 800][rng.usize(0..3)],
            flushes: [0, 20, 200][rng.usize(0..3)],
            durable: [0, 125, 500][rng.usize(0..3)],
            queries: [0, 20][rng.usize(0..2)],
            pause_micros: [100, 1000][rng.usize(0..2)],
        }
    }
}

/// The segment as an initiator sees it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// The initiator's addresses.
    pub(crate) stations: Vec<(Mac, Queue)>,
    pub(crate) target: Mac,
    pub(crate) units: usize,
    pub(crate) blocks: u32,
    /// Blocks per frame.
    pub(crate) frame_blocks: u32,
    /// Units whose disks may fail.
    pub(crate) fragile: Rc<[bool]>,
}

/// What is checked against its findings; `index` is its own among all initiators.
pub(crate) struct Checks {
    pub(crate) index: usize,
    pub(crate) registers: Rc<RefCell<Registers>>,
    pub(crate) reservations: Rc<RefCell<Vec<Reservations>>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Query,
    Identify,
    Read(Range),
    Write(Range, WriteId),
    /// The same with FUA.
    Durable(Range, WriteId),
    Flush,
}

/// A request's tag, and the address that it was sent from.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tag {
    number: u32,
    station: usize,
}

/// A write that was answered, although not all of its copies were: a copy still to come may be taken for a
/// new write, but must not be executed after a later one.
struct Lingering {
    tags: Vec<Tag>,
    range: Range,
    id: WriteId,
    until: Time,
}

/// A request without an answer.
struct Asked {
    /// The first is that of `frame`, which is sent from the first address.
    tags: Vec<Tag>,
    unit: usize,
    kind: Kind,
    frame: Vec<u8>,
    began: Time,
    sent: Time,
    copies: u32,
    /// The target has left the segment since: an answer may only mean that it was executed before.
    is_old: bool,
    /// Its number in the reservations model.
    access: u64,
}

impl Asked {
    fn writes(&self) -> Option<(Range, WriteId)> {
        match self.kind {
            Kind::Write(range, id) | Kind::Durable(range, id) => Some((range, id)),
            Kind::Query | Kind::Identify | Kind::Read(_) | Kind::Flush => None,
        }
    }
}

/// The initiator.
pub(crate) struct Ata {
    pub(crate) host: usize,
    pub(crate) aim: Aim,
    pub(crate) commands: u64,
    /// Total blocks of its writes and reads.
    pub(crate) blocks: u64,
    net: Shared,
    checks: Checks,
    segment: Segment,
    habits: Habits,
    rng: Rng,
    asked: Vec<Asked>,
    lingering: Vec<Lingering>,
    tag: u32,
}

impl Ata {
    pub(crate) fn new(
        host: usize,
        net: Shared,
        checks: Checks,
        segment: Segment,
        habits: Habits,
        rng: Rng,
    ) -> Ata {
        let (asked, lingering, tag) = (Vec::new(), Vec::new(), host as u32 * 0x0123_4567);
        Ata {
            host,
            aim: Aim::Work,
            commands: 0,
            blocks: 0,
            net,
            checks,
            segment,
            habits,
            rng,
            asked,
            lingering,
            tag,
        }
    }

    /// Whether all its requests were answered.
    pub(crate) fn is_settled(&self) -> bool {
        self.asked.is_empty()
    }

    /// Its state as text.
    pub(crate) fn status(&self) -> String {
        let began = self.asked.iter().map(|asked| asked.began.0).min().unwrap_or(0);
        let (host, count) = (self.host, self.asked.len());
        format!(
            "initiator {host} over AoE has {count} requests without an answer, the oldest from {began} ns"
        )
    }

    /// The target was restarted, and nothing sent before reaches it.
    pub(crate) fn restarted(&mut self, now: Time) {
        self.checks.registers.borrow_mut().knows(self.checks.index, now);
        self.settle(now, |one| one.until = now).expect("they were not refused");
    }

    /// The target has left the segment, and has acknowledged that: nothing sent to it before takes effect any
    /// more.
    ///
    /// # Errors
    /// Never: what is written was not refused.
    pub(crate) fn target_left(&mut self) -> Result<(), String> {
        let now = self.net.borrow().now;
        self.settle(now, |one| one.until = now)?;
        self.asked.iter_mut().for_each(|asked| asked.is_old = true);
        if let Some(ethernet) = &mut self.net.borrow_mut().ethernet {
            ethernet.ended.extend(self.asked.iter().filter_map(Asked::writes).map(|(_, id)| id.0));
        }
        let mut registers = self.checks.registers.borrow_mut();
        let mut writes = self.asked.iter().filter_map(Asked::writes);
        writes.try_for_each(|(range, id)| registers.end_write(now, range, id, Fate::Unsure))
    }

    /// The target has joined the segment again: what is retransmitted to it takes effect.
    pub(crate) fn target_joined(&mut self) {
        let (now, by) = (self.net.borrow().now, self.checks.index);
        self.net.borrow_mut().ethernet.iter_mut().for_each(|ethernet| ethernet.ended.clear());
        let mut registers = self.checks.registers.borrow_mut();
        let writes = self.asked.iter().filter_map(Asked::writes);
        writes.for_each(|(range, id)| registers.begin_retry(now, by, range, id));
    }

    /// Its turn.
    ///
    /// # Errors
    /// What the target must not do.
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        for station in 0..self.segment.stations.len() {
            while let Some(frame) = self.segment.stations[station].1.take() {
                self.receive(station, &frame)?;
            }
        }
        let now = self.net.borrow().now;
        self.settle(now, |_| {})?;
        for at in 0..self.asked.len() {
            let Asked { sent, copies, .. } = self.asked[at];
            if now.since(sent) > PATIENCE * (1 << copies.min(DOUBLINGS_MAX)) {
                self.retransmit(now, at);
            }
        }
        if self.aim == Aim::Work {
            let room = self.habits.depth.saturating_sub(self.asked.len());
            (0..self.rng.usize(0..=room)).for_each(|_| self.begin(now));
        }
        let pause = match self.aim {
            Aim::Work => self.rng.u64(1_000..self.habits.pause_micros * 1000),
            Aim::Settle | Aim::Leave => 20_000_000,
        };
        let mut net = self.net.borrow_mut();
        let at = now.after(Duration::from_nanos(pause));
        net.wake(self.host, at);
        Ok(())
    }

    /// Retransmits a request.
    fn retransmit(&mut self, now: Time, at: usize) {
        let (asked, segment) = (&mut self.asked[at], &self.segment);
        (asked.sent, asked.copies) = (now, asked.copies + 1);
        let moves = matches!(asked.kind, Kind::Read(_) | Kind::Write(..) | Kind::Durable(..));
        if !moves || segment.stations.len() == 1 || asked.tags.len() == TAGS_MAX || self.rng.bool() {
            return segment.stations[0].1.send(&asked.frame);
        }
        self.tag = self.tag.wrapping_add(1);
        let tag = Tag { number: self.tag, station: self.rng.usize(0..segment.stations.len()) };
        asked.tags.push(tag);
        let (mac, queue) = &segment.stations[tag.station];
        let address = Address { shelf: SHELF, slot: asked.unit as u8 };
        let header = Header::request(*mac, segment.target, address, Command::ATA, tag.number);
        let mut frame = asked.frame.clone();
        frame[..ARGUMENT].copy_from_slice(header.as_bytes());
        queue.send(&frame);
        let first = asked.tags[0].number;
        self.note(&[3, u64::from(tag.number), tag.station as u64], || {
            format!("request {first:x} is made again as {:x} from address {}", tag.number, tag.station)
        });
    }

    /// Ends writes whose copies were all answered, or can no longer take effect.
    fn settle(&mut self, now: Time, mut look: impl FnMut(&mut Lingering)) -> Result<(), String> {
        self.lingering.iter_mut().for_each(&mut look);
        let is_over = |one: &mut Lingering| one.tags.is_empty() || one.until <= now;
        for one in self.lingering.extract_if(.., is_over) {
            self.checks.registers.borrow_mut().end_write(now, one.range, one.id, Fate::Unsure)?;
        }
        Ok(())
    }

    fn happens(&mut self, in_1000: u32) -> bool {
        self.rng.u32(0..1000) < in_1000
    }

    /// Begins a request.
    fn begin(&mut self, now: Time) {
        let Habits { reads, flushes, durable, queries, .. } = self.habits;
        let (is_query, is_flush) = (self.happens(queries), self.happens(flushes));
        let (is_read, is_durable) = (self.happens(reads), self.happens(durable));
        let unit = self.rng.usize(0..self.segment.units);
        let blocks = self.rng.u32(1..=self.segment.frame_blocks.min(self.segment.blocks));
        let first = self.rng.u32(0..=self.segment.blocks - blocks);
        let range = Range { unit, first, blocks };
        if is_query {
            let is_identify = self.rng.bool();
            let kind = if is_identify { Kind::Identify } else { Kind::Query };
            return self.ask(now, unit, kind, &[]);
        }
        if is_flush {
            let mut others = self.asked.iter().filter(|asked| asked.unit == unit);
            if others.any(|asked| matches!(asked.kind, Kind::Flush)) {
                // One of the two reports a loss, and its answer may come later.
                return;
            }
            return self.ask(now, unit, Kind::Flush, &[]);
        }
        if is_read {
            self.checks.registers.borrow_mut().begin_read(now);
            return self.ask(now, unit, Kind::Read(range), &[]);
        }
        if self.segment.stations.len() > 1 && self.is_written(range) {
            return;
        }
        let by = self.checks.index;
        let (id, bytes) = self.checks.registers.borrow_mut().begin_repeated(now, by, range);
        let kind = if is_durable { Kind::Durable(range, id) } else { Kind::Write(range, id) };
        self.ask(now, unit, kind, &bytes);
    }

    /// Whether any of these blocks are being written, or a copy may still arrive that would look like a newer
    /// write to them.
    fn is_written(&self, range: Range) -> bool {
        let asked = self.asked.iter().filter_map(|asked| Some(asked.writes()?.0));
        asked.chain(self.lingering.iter().map(|one| one.range)).any(|other| other.overlaps(range))
    }

    fn ask(&mut self, now: Time, unit: usize, kind: Kind, data: &[u8]) {
        self.tag = self.tag.wrapping_add(1);
        let mut address = Address { shelf: SHELF, slot: unit as u8 };
        let mut to = self.segment.target;
        if matches!(kind, Kind::Query) && self.rng.bool() {
            (to, address.shelf) = (Mac::BROADCAST, Address::ALL_SHELVES);
        }
        let command = if matches!(kind, Kind::Query) { Command::CONFIG } else { Command::ATA };
        let (mac, queue) = &self.segment.stations[0];
        let mut frame = Header::request(*mac, to, address, command, self.tag).as_bytes().to_vec();
        match fields(kind) {
            Some(fields) => frame.extend(Section::request(&fields, !data.is_empty()).as_bytes()),
            None => {
                let version_command = Header::VERSION << 4 | ConfigCommand::READ.0;
                frame.extend(ConfigArgument { version_command, ..ConfigArgument::default() }.as_bytes());
            }
        }
        frame.extend(data);
        frame.resize(frame.len().max(FRAME_BYTES_MIN), 0);
        let tag = self.tag;
        queue.send(&frame);
        self.note(&[1, u64::from(tag), unit as u64], || format!("request {tag:x}: {}", describe(unit, kind)));
        let access = match kind {
            Kind::Query | Kind::Identify => 0,
            Kind::Read(_) => self.checks.reservations.borrow_mut()[unit].access(self.checks.index, false),
            Kind::Write(..) | Kind::Durable(..) | Kind::Flush => {
                self.checks.reservations.borrow_mut()[unit].access(self.checks.index, true)
            }
        };
        let tags = vec![Tag { number: tag, station: 0 }];
        let (sent, copies, is_old) = (now, 0, false);
        self.asked.push(Asked { tags, unit, kind, frame, began: now, sent, copies, is_old, access });
    }

    fn receive(&mut self, station: usize, frame: &[u8]) -> Result<(), String> {
        let Some(header) = Header::view(frame).filter(|header| header.is_response()) else {
            // A broadcast of another initiator.
            return Ok(());
        };
        let tag = Tag { number: header.tag.get(), station };
        self.lingering.iter_mut().for_each(|one| one.tags.retain(|other| *other != tag));
        let Some(at) = self.asked.iter().position(|asked| asked.tags.contains(&tag)) else {
            // A copy of an answer, an answer to a copy, or a target's announcement.
            return Ok(());
        };
        let of = Address { shelf: SHELF, slot: self.asked[at].unit as u8 };
        let mac = self.segment.stations[station].0;
        if header.address() != of || header.source != self.segment.target || header.destination != mac {
            return Err(format!("an answer of {of} has the header {header:02x?}"));
        }
        let mut asked = self.asked.swap_remove(at);
        asked.tags.retain(|other| *other != tag);
        self.commands += 1;
        self.answered(&asked, header, frame)
            .map_err(|what| format!("{}: {what}", describe(asked.unit, asked.kind)))
    }

    fn answered(&mut self, asked: &Asked, header: &Header, frame: &[u8]) -> Result<(), String> {
        let now = self.net.borrow().now;
        let short = || format!("an answer of {} bytes", frame.len());
        if let Kind::Query = asked.kind {
            return self.check_query(header, ConfigArgument::view(&frame[ARGUMENT..]).ok_or_else(short)?);
        }
        let end = Section::view(&frame[ARGUMENT..]).ok_or_else(short)?.status_return();
        let is_conflict = header.refusal() == Some(ErrorCode::TARGET_IS_RESERVED);
        let is_bad = !is_conflict && end.status & (status::ERR | status::DF) != 0;
        let tag = header.tag.get();
        self.note(&[2, u64::from(tag), u64::from(is_conflict), u64::from(end.status)], || {
            let how = if is_conflict { "reserved" } else { "status" };
            format!("request {tag:x} is answered: {how} {:02x}", end.status)
        });
        if header.refusal().is_some() && !is_conflict || is_bad && !self.segment.fragile[asked.unit] {
            return Err(format!("it is answered with {:?}, {end:?}", header.refusal()));
        }
        if !matches!(asked.kind, Kind::Identify) {
            let mut reservations = self.checks.reservations.borrow_mut();
            reservations[asked.unit].accessed(asked.access, Some(is_conflict))?;
        }
        let mut registers = self.checks.registers.borrow_mut();
        let (index, is_good) = (self.checks.index, !is_bad && !is_conflict);
        match asked.kind {
            Kind::Read(range) if is_good => {
                let bytes = frame.get(DATA..DATA + range.bytes() as usize).ok_or_else(short)?;
                self.blocks += u64::from(range.blocks);
                registers.found(now, asked.began, range, bytes)
            }
            Kind::Read(_) => {
                registers.end_read(asked.began);
                Ok(())
            }
            Kind::Write(range, id) | Kind::Durable(range, id) => {
                self.blocks += u64::from(range.blocks);
                let fate = match asked.kind {
                    Kind::Durable(..) if is_good && !asked.is_old => Fate::Durable,
                    _ if is_good && !asked.is_old => Fate::Done,
                    // An earlier copy may have been executed.
                    _ => Fate::Unsure,
                };
                if asked.tags.is_empty() {
                    return registers.end_write(now, range, id, fate);
                }
                if fate != Fate::Unsure {
                    registers.has_landed(now, range, id, fate == Fate::Durable);
                }
                // A refusal waits for nobody: an earlier copy may be held back until it is admitted after
                // all.
                let until = if is_conflict { Time(u64::MAX) } else { now.after(LATE) };
                let tags = asked.tags.clone();
                self.lingering.push(Lingering { tags, range, id, until });
                Ok(())
            }
            Kind::Flush if is_good => registers.flushed(index, asked.unit, asked.began),
            Kind::Flush if is_bad => {
                registers.flush_failed(index, asked.unit);
                Ok(())
            }
            Kind::Identify if is_good => {
                let sectors =
                    frame.get(DATA + SECTORS_AT..).and_then(|bytes| bytes.first_chunk()).ok_or_else(short)?;
                match u64::from_le_bytes(*sectors) {
                    sectors if sectors == u64::from(self.segment.blocks) => Ok(()),
                    sectors => Err(format!("it has {sectors} sectors")),
                }
            }
            Kind::Flush | Kind::Identify | Kind::Query => Ok(()),
        }
    }

    fn check_query(&self, header: &Header, argument: &ConfigArgument) -> Result<(), String> {
        let sectors = u32::from(argument.sector_count);
        let is_it = header.refusal().is_none() && sectors == self.segment.frame_blocks;
        if is_it { Ok(()) } else { Err(format!("it is answered with {argument:?}")) }
    }

    fn note(&self, words: &[u64], text: impl FnOnce() -> String) {
        let net = &mut *self.net.borrow_mut();
        let now = net.now;
        let sum = words.iter().fold(self.host as u64, |sum, word| sum.wrapping_mul(31) ^ word);
        net.trace.note(now, &[sum], || format!("initiator {} {}", self.host, text()));
    }
}

/// The addresses of a host.
pub(crate) fn macs(host: usize) -> [Mac; 2] {
    [1, 2].map(|interface| Mac([2, 0, 0, 0, interface, host as u8]))
}

fn fields(kind: Kind) -> Option<Fields> {
    let of = |command, range: Range| Fields::new(command, range.first.into(), range.blocks as u16);
    Some(match kind {
        Kind::Query => return None,
        Kind::Identify => Fields::new(ata::Command::IdentifyDevice, 0, 0),
        Kind::Read(range) => of(ata::Command::ReadSectorsExt, range),
        Kind::Write(range, _) => of(ata::Command::WriteSectorsExt, range),
        Kind::Durable(range, _) => of(ata::Command::WriteDmaFuaExt, range),
        Kind::Flush => Fields::new(ata::Command::FlushCacheExt, 0, 0),
    })
}

fn describe(unit: usize, kind: Kind) -> String {
    match kind {
        Kind::Query => format!("a query to unit {unit}"),
        Kind::Identify => format!("IDENTIFY DEVICE to unit {unit}"),
        Kind::Read(range) => format!("a read of {range:?}"),
        Kind::Write(range, id) => format!("write {} of {range:?}", id.0),
        Kind::Durable(range, id) => format!("write {} of {range:?} with FUA", id.0),
        Kind::Flush => format!("a flush of unit {unit}"),
    }
}
