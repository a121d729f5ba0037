//! Answers that arrive.

use super::failure::{Failure, check, check_data, truncated};
use super::order::Answered;
use super::piece::{Kind, PIECES_MAX, Piece};
use super::plan::{AtaTransfer, Plan, SECTOR_BYTES};
use super::translate;
use super::{Initiator, Phase, Put, Source, trim};
use crate::aoe::HEADER_BYTES_MAX;
use crate::aoe::discover;
use crate::iscsi::initiator::Event;
use crate::services::TaskId;
use crate::time::Time;
use wire::aoe::{Command as AoeCommand, ErrorCode, Header, SECTOR_BYTES as FRAME_SECTOR_BYTES};
use wire::ata::{IdentifyData, Section, StatusReturn, Transfer, error as ata_error, status as ata_status};
use wire::iwarp::Layout;
use wire::scsi::{code, status};
use wire::{SenseData, SenseKey, Span};

/// Where the data of an ATA command is in its frame.
const DATA_AT: u32 = 36;
const _: () = assert!(HEADER_BYTES_MAX == 36 && SECTOR_BYTES == FRAME_SECTOR_BYTES);

impl Initiator {
    /// Handles a frame.
    pub(super) fn answered(&mut self, now: Time, frame: &[u8], place: Span) -> Option<Put<'_>> {
        let header = discover::response(frame).filter(|header| header.address() == self.config.target)?;
        let tag = header.tag.get();
        if self.abandoned.has(tag) {
            self.proven(now, header, frame);
            return None;
        }
        let kind = self.pieces.find(tag)?.kind;
        let is_login = matches!(self.phase, Phase::Login { .. });
        if !is_login && header.source != self.peer.mac {
            return None;
        }
        match kind {
            Kind::Query => {
                let found = discover::found(frame)?;
                self.request_answered(now, tag);
                self.found(&found, is_login)
            }
            Kind::Order { task, .. } => self.ordered(now, task, header, frame, place),
            Kind::Identify(_) | Kind::Move { .. } | Kind::Flush(_) | Kind::Trim { .. } | Kind::Ata(_) => {
                self.ata_answered(now, kind, header, frame, place)
            }
        }
    }

    /// Handles the answer to an abandoned write, or to its NOP.
    fn proven(&mut self, now: Time, header: &Header, frame: &[u8]) {
        let is_ours = self.phase == Phase::Full && header.source == self.peer.mac;
        if !is_ours || header.command != AoeCommand::ATA {
            return;
        }
        let Some(answer) = Answer::of(header, frame) else { return };
        (self.last_heard, self.quiet_since) = (now, now);
        let tag = header.tag.get();
        if answer.is_refusal() && self.may_have_another(self.abandoned.is_copied(tag)) {
            return;
        }
        self.abandoned.answered(tag);
        self.unpark();
    }

    /// Whether a target that has refused one copy of a write may still execute another. A target that orders
    /// NOP has finished with the first when it answers the second, whatever that answer is.
    fn may_have_another(&self, is_copied: bool) -> bool {
        is_copied && !self.orders_nop()
    }

    /// Handles the answer to an ATA command.
    fn ata_answered(
        &mut self,
        now: Time,
        kind: Kind,
        header: &Header,
        frame: &[u8],
        place: Span,
    ) -> Option<Put<'_>> {
        if header.command != AoeCommand::ATA || header.source != self.peer.mac {
            return None;
        }
        let answer = Answer::of(header, frame)?;
        if matches!(answer.result, Err(Fault::Refused(ErrorCode::BAD_ARGUMENT))) && self.may_be_too_long(kind)
        {
            // Its interface may have another MTU now. A new login will find out.
            self.over("the target does not accept frames of the size that it reported");
            return None;
        }
        let is_copied = self.pieces.find(header.tag.get()).is_some_and(Piece::is_copied);
        if answer.is_refusal() && self.may_have_another(is_copied) && self.changed(kind).is_some() {
            // It is retransmitted until the target reports the outcome of the write, or nothing waits any
            // more.
            (self.last_heard, self.quiet_since) = (now, now);
            return None;
        }
        // The answer to a read has all its data.
        let data = u32::try_from(answer.data.len()).unwrap_or(u32::MAX);
        let is_cut = answer.result.is_ok() && self.reads(kind) > data;
        if is_cut && matches!(kind, Kind::Move { .. }) {
            return None;
        }
        self.request_answered(now, header.tag.get());
        match kind {
            // A retry would give the same answer: only the target knows how much data there is.
            Kind::Ata(id) if is_cut => {
                self.end(id, Some(truncated()));
                None
            }
            Kind::Identify(None) => self.identified(&answer),
            Kind::Identify(Some(id)) => self.asked(id, &answer),
            Kind::Flush(id) | Kind::Trim { task: id, .. } => {
                self.piece_done(id, answer.result.err().map(|fault| failure(fault, true, 0..0)));
                None
            }
            Kind::Move { task, at, sectors } => self.moved(task, at, sectors, answer.result.err(), place),
            Kind::Ata(id) => self.ata_done(id, answer.result, place),
            Kind::Query | Kind::Order { .. } => None,
        }
    }

    /// Whether a request, or its answer, is a longer frame than all targets accept.
    fn may_be_too_long(&mut self, kind: Kind) -> bool {
        let mut plan = |task| self.tasks.get(task).map(|task| task.plan);
        match kind {
            Kind::Move { task, sectors, .. } => {
                let has_data = matches!(
                    plan(task),
                    Some(Plan::Move { way: AtaTransfer::Read | AtaTransfer::Write, .. })
                );
                has_data && sectors > 1
            }
            Kind::Trim { ranges, .. } => ranges > trim::RANGES_PER_SECTOR,
            Kind::Ata(task) => {
                matches!(plan(task), Some(Plan::Ata(pass)) if pass.transfer().bytes() > SECTOR_BYTES)
            }
            Kind::Query | Kind::Identify(_) | Kind::Flush(_) | Kind::Order { .. } => false,
        }
    }

    /// Bytes of data that a good answer must have.
    fn reads(&mut self, kind: Kind) -> u32 {
        let mut plan = |id| self.tasks.get(id).map(|task| task.plan);
        match kind {
            Kind::Move { task, sectors, .. } => {
                let reads = matches!(plan(task), Some(Plan::Move { way: AtaTransfer::Read, .. }));
                if reads { u32::from(sectors).saturating_mul(SECTOR_BYTES) } else { 0 }
            }
            Kind::Ata(task) => match plan(task) {
                Some(Plan::Ata(pass)) if matches!(pass.transfer(), Transfer::In(_)) => {
                    pass.transfer().bytes()
                }
                Some(_) | None => 0,
            },
            Kind::Query | Kind::Identify(_) | Kind::Flush(_) | Kind::Trim { .. } | Kind::Order { .. } => 0,
        }
    }

    /// A request was answered.
    fn request_answered(&mut self, now: Time, tag: u32) {
        let Some(Piece { kind, sent_at, timeout, retries, .. }) = self.pieces.release(tag) else { return };
        (self.last_heard, self.quiet_since) = (now, now);
        // The device does not answer queries, so they say nothing about its load.
        if !matches!(kind, Kind::Query) {
            self.pace.answered(sent_at, now);
        }
        match (kind.is_prompt(), retries) {
            (false, _) => {}
            (true, 0) => self.pace.measured(now.since(sent_at)),
            (true, _) => self.pace.ambiguous(timeout),
        }
    }

    /// The target reported its state.
    fn found(&mut self, found: &discover::Found<'_>, is_login: bool) -> Option<Put<'_>> {
        let sectors = wire::aoe::sectors_per_frame(self.config.mtu).min(found.sectors);
        if sectors == 0 {
            self.over("not even one sector fits into a frame of the interface");
            return None;
        }
        if !is_login && sectors < self.peer.sectors {
            // What is in flight may never fit.
            self.over("the target accepts only smaller frames than before");
            return None;
        }
        self.is_asking = false;
        (self.peer.mac, self.peer.buffer_count) = (found.mac, found.buffer_count);
        (self.peer.firmware, self.peer.sectors) = (found.firmware, sectors);
        self.pace.limit(found.buffer_count.min(PIECES_MAX));
        if is_login {
            self.own_request = Some(Kind::Identify(None));
        }
        None
    }

    /// The login has ended.
    fn identified(&mut self, answer: &Answer<'_>) -> Option<Put<'_>> {
        match identity(answer) {
            Ok(identity) => {
                self.identity = Some(identity);
                self.phase = Phase::Full;
                self.events.push_back(Event::Ready(Box::new(self.session())));
            }
            Err(reason) => self.over(&format!("the AoE target {} {reason}", self.config.target)),
        }
        None
    }

    /// The IDENTIFY DEVICE of a command was answered: it continues with that.
    fn asked(&mut self, id: TaskId, answer: &Answer<'_>) -> Option<Put<'_>> {
        let room = self.room();
        let task = self.tasks.get(id)?;
        match (answer.result, identity(answer)) {
            (Err(fault), _) => self.end(id, Some(failure(fault, false, 0..0))),
            (Ok(_), Err(_)) => self.end(id, Some(truncated())),
            (Ok(_), Ok(identity)) => {
                self.identity = Some(identity);
                let plan = translate::plan(&task.request, &identity, room, true, &mut self.made);
                task.replan(plan);
                let to = task.request.read;
                self.begin(id, plan);
                let made = self.made.bytes();
                let len = u32::try_from(made.len()).unwrap_or(u32::MAX).min(to.len());
                if plan == Plan::Made && len > 0 {
                    let from = made.get(..usize::try_from(len).ok()?)?;
                    return Some(Put { from: Source::Made(from), to: to.slice(0, len) });
                }
            }
        }
        None
    }

    /// A piece of a transfer was answered.
    fn moved(
        &mut self,
        id: TaskId,
        at: u32,
        sectors: u8,
        fault: Option<Fault>,
        place: Span,
    ) -> Option<Put<'_>> {
        let task = self.tasks.get(id)?;
        let Plan::Move { way, lba, .. } = task.plan else { return None };
        let first = lba.saturating_add(u64::from(at));
        let lbas = first..first.saturating_add(u64::from(sectors));
        let bytes = u32::from(sectors).saturating_mul(SECTOR_BYTES);
        let to = task.request.read.slice(at.saturating_mul(SECTOR_BYTES), bytes);
        let has_data = way == AtaTransfer::Read && fault.is_none();
        self.piece_done(id, fault.map(|fault| failure(fault, way == AtaTransfer::Write, lbas)));
        has_data.then(|| Put { from: Source::Frame(place.slice(DATA_AT, bytes)), to })
    }

    /// One of a command's requests was answered.
    fn piece_done(&mut self, id: TaskId, failure: Option<Failure>) {
        let Some(task) = self.tasks.get(id) else { return };
        task.unanswered = task.unanswered.saturating_sub(1);
        task.failure = task.failure.or(failure);
        if task.unanswered > 0 {
            return;
        }
        if task.failure.is_some() {
            let failure = task.failure;
            return self.end(id, failure);
        }
        match task.plan {
            Plan::Move { sectors: all, .. } | Plan::Trim { ranges: all, .. } if task.handed < all => {}
            Plan::Move { flush: true, .. } if !task.has_asked => self.work.push_front(id),
            Plan::Move { .. }
            | Plan::Trim { .. }
            | Plan::Flush
            | Plan::Ask
            | Plan::Interpret { .. }
            | Plan::Feature(_)
            | Plan::Ata(_)
            | Plan::Order(_)
            | Plan::Made
            | Plan::Fail(_) => self.end(id, None),
        }
    }

    /// An ATA command that was passed through, or SET FEATURES, was answered.
    fn ata_done(&mut self, id: TaskId, result: Result<StatusReturn, Fault>, place: Span) -> Option<Put<'_>> {
        let task = self.tasks.get(id)?;
        let Plan::Ata(pass) = task.plan else {
            self.end(id, result.err().map(|fault| failure(fault, true, 0..0)));
            return None;
        };
        let (end, to) = match result {
            Ok(end) => (end, task.request.read),
            Err(fault) => {
                self.end(id, Some(with_registers(fault)));
                return None;
            }
        };
        let (written, read) = match pass.transfer() {
            Transfer::Nothing => (0, 0),
            data @ Transfer::In(_) => (0, data.bytes()),
            data @ Transfer::Out(_) => (data.bytes(), 0),
        };
        // On success registers are reported only if requested (SAT-3 section 12.2.5).
        let failure = Failure { status: status::CHECK_CONDITION, sense: Some(end.available()) };
        self.complete(id, pass.check_condition.then_some(failure), written, read);
        (read > 0).then(|| Put { from: Source::Frame(place.slice(DATA_AT, read)), to: to.slice(0, read) })
    }

    /// A command that is not ATA was answered.
    fn ordered(
        &mut self,
        now: Time,
        id: TaskId,
        header: &Header,
        frame: &[u8],
        place: Span,
    ) -> Option<Put<'_>> {
        let task = self.tasks.get(id)?;
        let Plan::Order(asked) = task.plan else { return None };
        if header.command != asked.command() {
            return None;
        }
        let (answer, to) = (asked.answer(header, frame), task.request.read);
        self.request_answered(now, header.tag.get());
        match answer {
            Answered::Failed(failure) => {
                self.end(id, Some(failure));
                None
            }
            Answered::Data { at, len } => {
                self.complete(id, None, asked.bytes(), len);
                let len = len.min(to.len());
                (len > 0).then(|| Put { from: Source::Frame(place.slice(at, len)), to: to.slice(0, len) })
            }
        }
    }
}

/// Why a request failed.
#[derive(Clone, Copy)]
enum Fault {
    /// An AoE error.
    Refused(ErrorCode),
    /// An ATA error.
    Ata(StatusReturn),
}

/// The answer to an ATA command.
struct Answer<'a> {
    result: Result<StatusReturn, Fault>,
    data: &'a [u8],
}

impl Answer<'_> {
    /// Whether it is an AoE error: the device has not seen this copy of the request.
    fn is_refusal(&self) -> bool {
        matches!(self.result, Err(Fault::Refused(_)))
    }

    fn of<'a>(header: &Header, frame: &'a [u8]) -> Option<Answer<'a>> {
        if let Some(error) = header.refusal() {
            return Some(Answer { result: Err(Fault::Refused(error)), data: &[] });
        }
        let (_, rest) = frame.split_at_checked(Header::BYTES)?;
        let end = Section::view(rest)?.status_return();
        let is_bad = end.status & (ata_status::ERR | ata_status::DF) != 0;
        let data = rest.get(Section::BYTES..)?;
        Some(Answer { result: if is_bad { Err(Fault::Ata(end)) } else { Ok(end) }, data })
    }
}

/// The device in an answer to IDENTIFY DEVICE, or why it is unusable.
fn identity(answer: &Answer<'_>) -> Result<IdentifyData, String> {
    match answer.result {
        Ok(_) => {}
        Err(Fault::Refused(ErrorCode::TARGET_IS_RESERVED)) => return Err("is reserved".into()),
        Err(Fault::Refused(ErrorCode(error))) => {
            return Err(format!("refuses IDENTIFY DEVICE with AoE error {error}"));
        }
        Err(Fault::Ata(end)) => {
            return Err(format!("fails IDENTIFY DEVICE with ATA error {:#04x}", end.error));
        }
    }
    let identity = IdentifyData::decode(answer.data).ok_or("has no valid IDENTIFY DEVICE data")?;
    if identity.sector_bytes != SECTOR_BYTES {
        return Err(format!("has sectors of {} bytes, not {SECTOR_BYTES}", identity.sector_bytes));
    }
    Ok(identity)
}

/// The SCSI failure of an error; `lbas` were to be read or written.
fn failure(fault: Fault, is_write: bool, lbas: std::ops::Range<u64>) -> Failure {
    match fault {
        Fault::Refused(error) => refused(error),
        Fault::Ata(end) => {
            let data = sense_specific(&end, is_write);
            let is_medium = data.key == SenseKey::MediumError && !lbas.is_empty();
            let at = if lbas.contains(&end.lba) { end.lba } else { lbas.start };
            check_data(&SenseData { information: is_medium.then_some(at), ..data })
        }
    }
}

/// The same, with the registers (SAT-3 section 12.2.6).
fn with_registers(fault: Fault) -> Failure {
    match fault {
        Fault::Refused(error) => refused(error),
        Fault::Ata(end) => {
            let sense = end.sense(&sense_specific(&end, false));
            Failure { status: status::CHECK_CONDITION, sense: Some(sense) }
        }
    }
}

/// The SCSI failures of AoE's own errors.
fn refused(error: ErrorCode) -> Failure {
    match error {
        ErrorCode::TARGET_IS_RESERVED => Failure { status: status::RESERVATION_CONFLICT, sense: None },
        ErrorCode::DEVICE_UNAVAILABLE => check(SenseKey::NotReady, code::NOT_READY),
        ErrorCode::UNRECOGNIZED_COMMAND => check(SenseKey::IllegalRequest, code::INVALID_OPERATION_CODE),
        _ => check(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_CDB),
    }
}

/// The sense data of ATA errors (SAT-3 table 121).
fn sense_specific(end: &StatusReturn, is_write: bool) -> SenseData {
    let (key, additional) = if end.status & ata_status::DF != 0 {
        (SenseKey::HardwareError, code::INTERNAL_TARGET_FAILURE)
    } else if end.error & ata_error::UNC != 0 {
        (SenseKey::MediumError, if is_write { code::WRITE_ERROR } else { code::UNRECOVERED_READ_ERROR })
    } else if end.error & ata_error::IDNF != 0 {
        (SenseKey::IllegalRequest, code::LBA_OUT_OF_RANGE)
    } else {
        (SenseKey::AbortedCommand, code::NO_ADDITIONAL_SENSE)
    };
    SenseData::new(key, additional)
}
