//! Requests that arrive.

use super::query::{head, needs_session};
use super::task::{Answer, Kind, Match, Tags, Task};
use super::violation::{Reaction, Violation};
use super::{Frame, Phase, REFUSED_EVERY, REPLIES_MAX, Target};
use crate::services::{Attribute, Command as UpCommand, TaskId, Up};
use crate::time::{Stamp, Time};
use wire::aoe::{
    ATA_BYTES, Command, ConfigArgument, ErrorCode, Header, MaskArgument, Order, OrderKind, ReserveArgument,
};
use wire::ata::{PassThrough, Section, Transfer};
use wire::iwarp::Layout;
use wire::{Cdb, Places, Span};
use zerocopy::IntoBytes;

/// A request that can be executed.
#[derive(Clone, Copy)]
struct Request {
    tag: u32,
    kind: Kind,
    cdb: Cdb,
    read_bytes: u32,
    write_bytes: u32,
}

impl Target {
    /// Handles a frame that [`super::look`] found to be for this session: when it arrived, all of its bytes,
    /// and where they are. `false`: it is not needed any more. Otherwise [`Target::freed`] returns it later.
    pub fn receive(&mut self, now: Time, received_at: Stamp, frame: &[u8], place: Span) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        if usize::try_from(place.len) != Ok(frame.len()) {
            self.fault("a frame of two lengths");
            return false;
        }
        match self.validate(frame) {
            Ok(request) => self.request(now, received_at, &request, frame, place),
            Err(violation) => {
                self.react(now, violation, frame);
                false
            }
        }
    }

    fn validate(&self, frame: &[u8]) -> Result<Request, Violation> {
        let header = head(frame)?;
        if header.source != self.config.peer || !header.address().covers(self.config.address) {
            return Err(Violation::Stranger);
        }
        if header.address().is_broadcast() {
            return Err(Violation::Broadcast);
        }
        if header.version() != Header::VERSION {
            return Err(Violation::Version);
        }
        let argument = frame.get(Header::BYTES..).unwrap_or_default();
        let request = match header.command {
            Command::ATA => self.validate_ata(header, argument)?,
            Command::CONFIG | Command::MASK | Command::RESERVE if needs_session(header, frame)? => {
                validate_order(header, argument)?
            }
            Command::CONFIG => return Err(Violation::Sessionless),
            _ => return Err(Violation::Command),
        };
        let (_, argument_bytes) = request.kind.shape();
        let data = argument.get(argument_bytes..).unwrap_or_default();
        if usize::try_from(request.write_bytes).is_ok_and(|bytes| bytes <= data.len()) {
            Ok(request)
        } else {
            Err(Violation::DataLength)
        }
    }

    fn validate_ata(&self, header: &Header, argument: &[u8]) -> Result<Request, Violation> {
        let section = Section::view(argument).ok_or(Violation::Truncated)?;
        let registers = section.registers();
        let transfer = registers.transfer();
        let (read_bytes, write_bytes) = match transfer {
            Transfer::Nothing => (0, 0),
            Transfer::In(_) => (transfer.bytes(), 0),
            Transfer::Out(_) => (0, transfer.bytes()),
        };
        if transfer.bytes() > u32::from(self.config.sectors_max).saturating_mul(wire::aoe::SECTOR_BYTES) {
            return Err(Violation::TooMuch);
        }
        let cdb = PassThrough::new(registers).to_cdb().ok_or(Violation::Command)?;
        Ok(Request { tag: header.tag.get(), kind: Kind::Ata(*section), cdb, read_bytes, write_bytes })
    }

    /// Turns a request into a task, unless it is a duplicate or there is no room. `true`: the task needs its
    /// frame.
    fn request(
        &mut self,
        now: Time,
        received_at: Stamp,
        request: &Request,
        frame: &[u8],
        place: Span,
    ) -> bool {
        if let Kind::Ata(section) = request.kind
            && let Some(earlier) = section.nop_tag()
            && self.tasks.may_have(earlier)
        {
            // It is retransmitted.
            return false;
        }
        let mut request = *request;
        let mut task = Task { received_at, ..self.task(&request, frame, place) };
        match self.tasks.match_earlier(&task, request.tag) {
            Match::New => {}
            Match::Same | Match::Joined(None) => return self.copied(),
            Match::Joined(Some(answer)) => {
                for write in task.writes() {
                    self.written.remember(now, write, answer);
                }
                return self.copied();
            }
        }
        let write = task.writes().next();
        let answered = write.and_then(|write| self.written.find(now, &write));
        match answered {
            Some(answer) if !task.kind.stays(&answer) => task.is_possible_duplicate = true,
            Some(answer) if !answer.has_data => {
                self.reply(request.tag, task.kind, answer);
                return self.copied();
            }
            Some(_) => request = question(request),
            None => {}
        }
        let keeps = request.write_bytes > 0;
        task.frame = keeps.then_some(place);
        let has_room = !keeps || self.held < self.held_max;
        let Some(id) = has_room.then(|| self.tasks.take(task)).flatten() else {
            self.counts.crowded = self.counts.crowded.saturating_add(1);
            return false;
        };
        self.held = self.held.saturating_add(u16::from(keeps));
        if answered.is_none() {
            self.written.forget(request.tag);
        }
        self.up.push_back(Up::Command(command(id, &request)));
        keeps
    }

    /// A duplicate needs neither task nor frame.
    fn copied(&mut self) -> bool {
        self.counts.copies = self.counts.copies.saturating_add(1);
        false
    }

    fn task(&self, request: &Request, frame: &[u8], place: Span) -> Task {
        let (_, argument_bytes) = request.kind.shape();
        let at = Header::BYTES.saturating_add(argument_bytes);
        let data = place.slice(u32::try_from(at).unwrap_or(u32::MAX), request.write_bytes);
        let bytes = usize::try_from(request.write_bytes).unwrap_or(usize::MAX);
        let sum = match frame.get(at..at.saturating_add(bytes)) {
            Some(bytes) if !bytes.is_empty() => (self.config.crc32c)(bytes),
            Some(_) | None => 0,
        };
        Task {
            kind: request.kind,
            tags: Tags::one(request.tag),
            read_bytes: request.read_bytes,
            data,
            sum,
            ..Task::default()
        }
    }

    fn react(&mut self, now: Time, violation: Violation, frame: &[u8]) {
        self.counts.refused = self.counts.refused.saturating_add(1);
        if self.refused.is_none_or(|last| now.since(last) >= REFUSED_EVERY) {
            self.refused = Some(now);
            self.up.push_back(Up::Refused { reason: violation.to_string() });
        }
        match violation.reaction() {
            Reaction::Drop => {}
            Reaction::Refuse(error) => self.refuse(error, frame),
        }
    }

    /// Answers a request that is not executed, with its own argument.
    fn refuse(&mut self, error: ErrorCode, frame: &[u8]) {
        let Some(header) = Header::view(frame) else { return };
        let argument = frame.get(Header::BYTES..).unwrap_or_default();
        let len = match header.command {
            Command::ATA => ATA_BYTES,
            Command::CONFIG => ConfigArgument::BYTES,
            Command::MASK => MaskArgument::BYTES,
            Command::RESERVE => ReserveArgument::BYTES,
            _ => 0,
        };
        let header = header.answer(self.config.ours, self.config.address, error);
        let argument = argument.get(..len).unwrap_or_default();
        self.push_reply(Frame::new([header.as_bytes(), argument], Places::EMPTY, None));
    }

    fn reply(&mut self, tag: u32, kind: Kind, answer: Answer) {
        let frame = self.frame(tag, kind, &answer, Places::EMPTY, None);
        self.push_reply(frame);
    }

    fn push_reply(&mut self, frame: Frame) {
        if self.replies.len() < REPLIES_MAX {
            self.replies.push_back(frame);
        } else {
            self.counts.crowded = self.counts.crowded.saturating_add(1);
        }
    }
}

fn validate_order(header: &Header, argument: &[u8]) -> Result<Request, Violation> {
    let (subcommand, entries) = match header.command {
        Command::CONFIG => {
            let config = ConfigArgument::view(argument).ok_or(Violation::Truncated)?;
            (config.command().0, config.len.get())
        }
        Command::MASK => {
            let mask = MaskArgument::view(argument).ok_or(Violation::Truncated)?;
            (mask.command.0, u16::from(mask.count))
        }
        _ => {
            let reserve = ReserveArgument::view(argument).ok_or(Violation::Truncated)?;
            (reserve.command.0, u16::from(reserve.count))
        }
    };
    let kind = OrderKind::from_codes(header.command, subcommand).ok_or(Violation::Subcommand)?;
    let (entries, most) = match kind {
        // Whatever the count says, nothing follows.
        OrderKind::ReadMask | OrderKind::ReadReserve => (0, 0),
        // There may be more directives than entries in the list.
        OrderKind::EditMask => (entries, u16::from(u8::MAX)),
        OrderKind::SetConfig | OrderKind::ForceConfig | OrderKind::SetReserve | OrderKind::ForceReserve => {
            (entries, kind.entries_max())
        }
    };
    if entries > most {
        return Err(Violation::TooMuch);
    }
    let entry_bytes = u32::try_from(kind.entry_bytes()).unwrap_or(u32::MAX);
    let argument_bytes = u32::from(entries).saturating_mul(entry_bytes);
    Ok(Request {
        tag: header.tag.get(),
        kind: Kind::Order(kind),
        cdb: Order { kind, argument_bytes }.cdb(),
        read_bytes: u32::from(kind.entries_max()).saturating_mul(entry_bytes),
        write_bytes: argument_bytes,
    })
}

/// What a late duplicate of an order that was executed and answered with a list or string requests: its
/// present state.
fn question(request: Request) -> Request {
    let (kind, argument_bytes) = match request.kind {
        Kind::Ata(_) => return request,
        // It is already set; or another one is, and stays.
        Kind::Order(OrderKind::SetConfig | OrderKind::ForceConfig) => {
            (OrderKind::SetConfig, request.write_bytes)
        }
        Kind::Order(OrderKind::ReadMask | OrderKind::EditMask) => (OrderKind::ReadMask, 0),
        Kind::Order(OrderKind::ReadReserve | OrderKind::SetReserve | OrderKind::ForceReserve) => {
            (OrderKind::ReadReserve, 0)
        }
    };
    Request { cdb: Order { kind, argument_bytes }.cdb(), write_bytes: argument_bytes, ..request }
}

fn command(task: TaskId, request: &Request) -> UpCommand {
    UpCommand {
        task,
        lun: 0,
        attribute: Attribute::Simple,
        cdb: request.cdb,
        read_bytes: request.read_bytes,
        write_bytes: request.write_bytes,
        // The data is in a frame that nothing else waits for.
        unsolicited_bytes: 0,
    }
}
