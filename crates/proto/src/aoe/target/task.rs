//! Requests in flight, and their answers.

use super::Config;
use super::written::Write;
use crate::services::{Ending, TaskId};
use crate::time::Stamp;
use std::ops::Range;
use wire::aoe::{
    ATA_BYTES, Command, ConfigArgument, ErrorCode, Header, MaskArgument, MaskError, OrderKind, Refusal,
    ReserveArgument, ReserveCommand,
};
use wire::ata::{Action, Command as AtaCommand, Section, StatusReturn, error, status};
use wire::iwarp::Layout;
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT};
use wire::{Places, Span};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

/// Retransmissions of one write under other tags that are answered together.
const TAGS_MAX: usize = 4;

/// What a list of ranges may cover.
const ALL_SECTORS: Range<u64> = 0..u64::MAX;
/// LBAs have 48 bits.
pub(super) const BEHIND_SECTORS: u64 = 1 << 48;

/// What a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Ata(Section),
    Order(OrderKind),
}

impl Default for Kind {
    fn default() -> Kind {
        Kind::Ata(Section::default())
    }
}

/// The variable part of an answer: an error, and the argument before its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Answer {
    pub error: ErrorCode,
    /// As much of it as the command has.
    pub argument: [u8; ATA_BYTES],
    /// Data follows.
    pub has_data: bool,
}

impl Kind {
    /// The AoE command, and how long its argument is.
    pub(super) fn shape(self) -> (Command, usize) {
        match self {
            Kind::Ata(_) => (Command::ATA, ATA_BYTES),
            Kind::Order(kind) => match kind.codes() {
                (Command::CONFIG, _) => (Command::CONFIG, ConfigArgument::BYTES),
                (Command::MASK, _) => (Command::MASK, MaskArgument::BYTES),
                (command, _) => (command, ReserveArgument::BYTES),
            },
        }
    }

    /// Whether a duplicate gets this answer as well. Initiators that use one tag for everything may flush
    /// again after each write: only a failed flush is reported again.
    pub(super) fn stays(self, answer: &Answer) -> bool {
        let is_bad = |end: &Section| end.command & (status::ERR | status::DF) != 0;
        !self.is_flush()
            || answer.error == ErrorCode::NONE && Section::view(&answer.argument).is_some_and(is_bad)
    }

    /// A flush of the cache. A store reports only once that it has lost cached data.
    pub(super) fn is_flush(self) -> bool {
        use AtaCommand::{FlushCache, FlushCacheExt, Standby, StandbyImmediate};
        let Kind::Ata(section) = self else { return false };
        matches!(
            AtaCommand::from_code(section.command),
            Some(FlushCache | FlushCacheExt | Standby | StandbyImmediate)
        )
    }

    /// The answer to a request that ended like this, with this many bytes after the argument; `None`: none,
    /// so that the initiator retransmits.
    pub(super) fn answer(self, config: &Config, ending: &Ending, bytes: u32) -> Option<Answer> {
        match (ending.status, self) {
            (GOOD, Kind::Ata(section)) => Some(returned(section, &StatusReturn::good(&section.registers()))),
            (GOOD, Kind::Order(kind)) => Some(followed(config, kind, bytes, ErrorCode::NONE)),
            (CHECK_CONDITION, Kind::Ata(section)) => {
                let registers = ending.sense.as_ref().and_then(StatusReturn::from_sense);
                let failed = || StatusReturn::failed(&section.registers(), error::ABRT);
                Some(returned(section, &registers.unwrap_or_else(failed)))
            }
            (CHECK_CONDITION, Kind::Order(kind)) => {
                match ending.sense.as_ref().and_then(Refusal::from_sense) {
                    Some(Refusal::Error(error)) => Some(followed(config, kind, bytes, error)),
                    Some(Refusal::Mask { error, done }) => Some(unfollowed(kind, error, done)),
                    None => Some(followed(config, kind, bytes, ErrorCode::DEVICE_UNAVAILABLE)),
                }
            }
            (RESERVATION_CONFLICT, Kind::Ata(section)) => {
                Some(Answer::new(ErrorCode::TARGET_IS_RESERVED, section.as_bytes()))
            }
            (RESERVATION_CONFLICT, Kind::Order(kind)) => {
                Some(followed(config, kind, bytes, ErrorCode::TARGET_IS_RESERVED))
            }
            _ => None,
        }
    }
}

impl Answer {
    pub(super) fn new(error: ErrorCode, bytes: &[u8]) -> Answer {
        let mut answer = Answer { error, ..Answer::default() };
        if let Some(argument) = answer.argument.get_mut(..bytes.len()) {
            argument.copy_from_slice(bytes);
        }
        answer
    }
}

/// The registers of an ATA command's end.
fn returned(section: Section, end: &StatusReturn) -> Answer {
    Answer::new(ErrorCode::NONE, Section::response(section.flags, end).as_bytes())
}

/// The answer to an order, with this many bytes of its list or string.
fn followed(config: &Config, kind: OrderKind, bytes: u32, error: ErrorCode) -> Answer {
    let (command, subcommand) = kind.codes();
    let entries = usize::try_from(bytes).unwrap_or(0).checked_div(kind.entry_bytes()).unwrap_or(0);
    let count = u8::try_from(entries).unwrap_or(u8::MAX);
    match command {
        Command::CONFIG => {
            let argument = ConfigArgument {
                buffer_count: U16::new(config.buffers),
                firmware: U16::new(config.firmware),
                sector_count: config.sectors_max,
                version_command: (Header::VERSION << 4) | subcommand,
                len: U16::new(u16::try_from(entries).unwrap_or(u16::MAX)),
            };
            Answer::new(error, argument.as_bytes())
        }
        Command::MASK => {
            let argument = MaskArgument {
                command: wire::aoe::MaskCommand(subcommand),
                count,
                ..MaskArgument::default()
            };
            Answer::new(error, argument.as_bytes())
        }
        _ => {
            let argument = ReserveArgument { command: ReserveCommand(subcommand), count };
            Answer::new(error, argument.as_bytes())
        }
    }
}

/// The answer to an edit of the mask list that failed at a directive (section 3.3).
fn unfollowed(kind: OrderKind, error: MaskError, done: u8) -> Answer {
    let (_, subcommand) = kind.codes();
    let command = wire::aoe::MaskCommand(subcommand);
    Answer::new(ErrorCode::NONE, MaskArgument { reserved: 0, command, error, count: done }.as_bytes())
}

/// The state of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Stage {
    /// The engine has it.
    #[default]
    Given,
    /// Its answer is to be sent.
    Ended,
    /// It has ended; only its frame may still be borrowed.
    Over,
}

/// The tags of a request and of its duplicates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tags {
    tags: [u32; TAGS_MAX],
    count: usize,
    sent: usize,
    /// There were more.
    is_cut: bool,
}

impl Tags {
    pub(super) fn one(tag: u32) -> Tags {
        let mut tags = Tags::default();
        tags.join(tag);
        tags
    }

    /// Adds a tag. When there are too many, the newest replaces another, which is returned: initiators that
    /// use a new tag have abandoned the older ones.
    fn join(&mut self, tag: u32) -> Option<u32> {
        if let Some(place) = self.tags.get_mut(self.count) {
            *place = tag;
            self.count = self.count.saturating_add(1);
            return None;
        }
        self.is_cut = true;
        let last = self.tags.last_mut()?;
        Some(std::mem::replace(last, tag))
    }

    /// Removes a tag.
    fn leave(&mut self, tag: u32) {
        let Some(at) = self.iter().position(|own| own == tag) else { return };
        if let Some(rest) = self.tags.get_mut(at..) {
            rest.rotate_left(1);
        }
        self.count = self.count.saturating_sub(1);
        self.sent = self.sent.saturating_sub(usize::from(at < self.sent));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.tags.iter().take(self.count).copied()
    }

    /// The next one to answer.
    pub(super) fn next(&mut self) -> Option<u32> {
        let tag = self.tags.get(self.sent).filter(|_| !self.is_done())?;
        self.sent = self.sent.saturating_add(1);
        Some(*tag)
    }

    pub(super) fn is_done(&self) -> bool {
        self.sent >= self.count
    }
}

/// A slot's content: a request from its frame to its answer, and for 5 s after that, what identifies a duplicate.
/// Its fields belong to one request, from its frame to its answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Task {
    pub generation: u16,
    pub used: bool,
    pub stage: Stage,
    pub kind: Kind,
    pub tags: Tags,
    /// When its frame was received.
    pub received_at: Stamp,
    pub read_bytes: u32,
    /// Its frame, as long as that is needed, and the offset of the data-out in it.
    pub frame: Option<Span>,
    pub data: Span,
    /// CRC32C of its data-out.
    pub sum: u32,
    /// An earlier request with its tag was answered: it may be a duplicate, whose answer nothing waits for.
    pub is_possible_duplicate: bool,
    /// A newer write overwrites it: an initiator that repeats the older one after that means it to be the
    /// last.
    pub is_overtaken: bool,
    /// Data-out bytes that were fetched.
    pub fetched: u32,
    pub fetch: Option<Places>,
    /// The engine uses its data where it is.
    pub borrowed: bool,
    /// Data-in, borrowed until it is sent.
    pub payload: Places,
    pub answer: Answer,
}

impl Task {
    /// Where its data-out is, if none of it was fetched.
    pub(super) fn immediate(&self) -> Option<Span> {
        let is_whole = self.stage == Stage::Given && self.fetched == 0 && self.fetch.is_none();
        (is_whole && self.data.len > 0 && self.frame.is_some()).then_some(self.data)
    }

    /// The sectors that it writes: all, if it trims.
    fn sectors(&self) -> Range<u64> {
        let Kind::Ata(section) = self.kind else { return 0..0 };
        let registers = section.registers();
        match registers.command().map(AtaCommand::action) {
            _ if self.data.len == 0 => 0..0,
            Some(Action::Write { .. }) => {
                registers.lba..registers.lba.saturating_add(u64::from(registers.sectors()))
            }
            Some(Action::Read | Action::Verify | Action::Flush | Action::Other) | None => ALL_SECTORS,
        }
    }

    /// The sectors that it changes without its unit's home, which has its own order. For TRIM, the number of
    /// its list stands for them, which orders its duplicates: the ranges of a list may be anywhere.
    pub(super) fn changes(&self) -> Option<Range<u64>> {
        match self.sectors() {
            ALL_SECTORS => {
                let number = BEHIND_SECTORS.saturating_add(self.sum.into());
                Some(number..number.saturating_add(1))
            }
            sectors => Some(sectors).filter(|sectors| !sectors.is_empty()),
        }
    }

    /// What a duplicate of it must not do again, under all its tags: writes, changes, or making durable what
    /// was written before.
    pub(super) fn writes(&self) -> impl Iterator<Item = Write> + '_ {
        let changes = match self.kind {
            Kind::Ata(section) => {
                let is_set = section.command == AtaCommand::SetFeatures.code();
                self.is_write() || is_set || self.kind.is_flush()
            }
            Kind::Order(OrderKind::ReadMask | OrderKind::ReadReserve) => false,
            Kind::Order(_) => true,
        };
        let (kind, sum) = (self.kind, self.sum);
        self.tags.iter().filter(move |_| changes).map(move |tag| Write { tag, kind, sum })
    }

    /// Whether it writes to the medium.
    fn is_write(&self) -> bool {
        matches!(self.kind, Kind::Ata(_)) && self.data.len > 0
    }

    /// Whether this request is the same one, apart from its tag.
    fn is(&self, other: &Task) -> bool {
        let sizes = |task: &Task| (task.data.len, task.read_bytes);
        self.kind == other.kind && self.sum == other.sum && sizes(self) == sizes(other)
    }
}

/// Whether a request is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Match {
    /// It is, under this tag.
    Same,
    /// The same write is in flight under another tag, and will also be answered under this one; or has ended
    /// with this answer.
    Joined(Option<Answer>),
    /// No.
    New,
}

/// The slots of one session.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    slots: Vec<Task>,
    free: Vec<u16>,
    /// Tags of the tasks that have not ended: few and close together, so that a scan is cheap.
    tags: Vec<Tagged>,
}

/// A tag of a task, and what identifies its write.
#[derive(Clone, Debug)]
struct Tagged {
    tag: u32,
    slot: u16,
    sum: u32,
    sectors: Range<u64>,
}

impl TaskTable {
    pub(super) fn new(slots: u16) -> TaskTable {
        TaskTable {
            slots: vec![Task::default(); usize::from(slots)],
            free: (0..slots).rev().collect(),
            tags: Vec::with_capacity(usize::from(slots)),
        }
    }

    /// Takes a slot; `None` when all are taken.
    pub(super) fn take(&mut self, new: Task) -> Option<TaskId> {
        let slot = self.free.pop()?;
        let task = self.slots.get_mut(usize::from(slot))?;
        let generation = task.generation.wrapping_add(1);
        *task = Task { generation, used: true, ..new };
        let sectors = new.sectors();
        for older in &self.tags {
            if older.sectors.start < sectors.end && sectors.start < older.sectors.end {
                self.slots
                    .get_mut(usize::from(older.slot))
                    .into_iter()
                    .for_each(|task| task.is_overtaken = true);
            }
        }
        let tagged = |tag| Tagged { tag, slot, sum: new.sum, sectors: sectors.clone() };
        self.tags.extend(new.tags.iter().map(tagged));
        Some(TaskId { slot, generation })
    }

    /// Whether this request, which arrived now, is already in flight. If its tag is in use by another
    /// request, that one was abandoned, and is not answered under it: its answer would be taken for that of
    /// the new one. (Linux's driver uses no tag twice while it waits; vblade would answer both.)
    pub(super) fn match_earlier(&mut self, new: &Task, tag: u32) -> Match {
        let is_write = new.is_write();
        let (mut original, mut is_reused) = (None, false);
        for other in &self.tags {
            let is_its_tag = other.tag == tag;
            if !(is_its_tag || is_write && other.sum == new.sum) {
                continue;
            }
            let Some(task) = self.slots.get(usize::from(other.slot)) else { continue };
            match (is_its_tag, task.is(new)) {
                (true, true) => return Match::Same,
                (true, false) => is_reused = true,
                // Once an answer has been sent, a newer write may have come between the two.
                (false, true) if task.tags.sent == 0 && !task.is_overtaken => original = Some(other.slot),
                (false, true | false) => {}
            }
        }
        if is_reused {
            self.take_away(tag);
        }
        let Some(slot) = original else { return Match::New };
        let Some(task) = self.slots.get_mut(usize::from(slot)) else { return Match::New };
        let answer = (task.stage == Stage::Ended).then_some(task.answer);
        let abandoned = task.tags.join(tag);
        let is_abandoned = |entry: &&mut Tagged| entry.slot == slot && Some(entry.tag) == abandoned;
        match self.tags.iter_mut().find(is_abandoned) {
            Some(entry) => entry.tag = tag,
            None => self.tags.push(Tagged { tag, slot, sum: new.sum, sectors: new.sectors() }),
        }
        Match::Joined(answer)
    }

    fn take_away(&mut self, tag: u32) {
        let slots = &mut self.slots;
        self.tags.retain(|other| {
            if other.tag == tag
                && let Some(task) = slots.get_mut(usize::from(other.slot))
            {
                task.tags.leave(tag);
            }
            other.tag != tag
        });
    }

    /// Whether a request with this tag may be in flight.
    pub(super) fn may_have(&self, tag: u32) -> bool {
        let is_cut = |slot: u16| self.slots.get(usize::from(slot)).is_some_and(|task| task.tags.is_cut);
        self.tags.iter().any(|one| one.tag == tag || is_cut(one.slot))
    }

    /// The task, if it still is the one with this id.
    pub(super) fn get(&mut self, id: TaskId) -> Option<&mut Task> {
        self.slots.get_mut(usize::from(id.slot)).filter(|task| task.used && task.generation == id.generation)
    }

    /// The task has ended: its tags may be used by other requests from now on.
    pub(super) fn forget(&mut self, id: TaskId) {
        self.tags.retain(|tagged| tagged.slot != id.slot);
    }

    /// Releases the slot.
    pub(super) fn release(&mut self, id: TaskId) {
        let Some(task) = self.get(id) else { return };
        task.used = false;
        self.free.push(id.slot);
    }

    /// Whether no slot is taken.
    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// The tasks of all slots in use.
    pub(super) fn ids(&self) -> impl Iterator<Item = TaskId> {
        let used = (0u16..).zip(&self.slots).filter(|(_, task)| task.used);
        used.map(|(slot, task)| TaskId { slot, generation: task.generation })
    }
}
