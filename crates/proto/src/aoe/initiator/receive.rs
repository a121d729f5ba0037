//! What comes in: answers.

use super::piece::{Kind, Piece};
use super::task::Failure;
use super::translate::{self, Plan, SECTOR_BYTES, check, check_at, code, status};
use super::{Initiator, Phase, Put, Source};
use crate::aoe::HEADER_BYTES_MAX;
use crate::aoe::discover;
use crate::iscsi::initiator::Event;
use crate::time::Time;
use crate::verbs::TaskId;
use wire::aoe::{Command as AoeCommand, ErrorCode, Header, SECTOR_BYTES as FRAME_SECTOR_BYTES};
use wire::ata::{Identity, Section, StatusReturn, error as ata_error, status as ata_status};
use wire::iwarp::Layout;
use wire::{SenseKey, Span};

/// Where the data of an ATA command lies in its frame.
const DATA_AT: u32 = 36;
const _: () = assert!(HEADER_BYTES_MAX == 36 && SECTOR_BYTES == FRAME_SECTOR_BYTES);

/// Additional sense codes with their qualifiers.
const NOT_READY: u16 = 0x0400;
const WRITE_ERROR: u16 = 0x0c00;
const READ_ERROR: u16 = 0x1100;
const TARGET_FAILURE: u16 = 0x4400;

impl Initiator {
    /// Takes a frame.
    pub(super) fn answered(&mut self, now: Time, frame: &[u8], place: Span) -> Option<Put<'_>> {
        let header = discover::response(frame).filter(|header| header.address() == self.config.target)?;
        let tag = header.tag.get();
        let kind = self.pieces.find(tag)?.kind;
        let command = if kind == Kind::Query { AoeCommand::CONFIG } else { AoeCommand::ATA };
        if header.command != command {
            return None;
        }
        if kind == Kind::Query {
            let found = discover::found(frame)?;
            let is_login = matches!(self.phase, Phase::Login { .. });
            if !is_login && found.mac != self.peer.mac {
                return None;
            }
            self.settle(now, tag);
            return self.found(&found, is_login);
        }
        if header.source != self.peer.mac {
            return None;
        }
        let answer = Answer::of(header, frame)?;
        if let (Some(Fault::Refused(ErrorCode::BAD_ARGUMENT)), Kind::Move { sectors: 2.., .. }) =
            (&answer.error, kind)
        {
            // Its interface may have another MTU now. A new login tells what fits.
            self.over("the target does not take frames of the size that it told");
            return None;
        }
        if let (None, Kind::Move { task, sectors, .. }) = (&answer.error, kind) {
            // A read is answered with all its data.
            let is_write = matches!(self.tasks.get(task)?.plan, Plan::Move { is_write: true, .. });
            let len = u32::from(sectors).saturating_mul(SECTOR_BYTES);
            if !is_write && u32::try_from(answer.data.len()).is_ok_and(|have| have < len) {
                return None;
            }
        }
        self.settle(now, tag);
        match kind {
            Kind::Query => None,
            Kind::Identify(None) => self.identified(&answer),
            Kind::Identify(Some(id)) => self.asked(id, &answer),
            Kind::Flush(id) => {
                self.piece_done(id, answer.error.map(|error| failure(error, true, 0..0)));
                None
            }
            Kind::Move { task, at, sectors } => self.moved(task, at, sectors, answer.error, place),
        }
    }

    /// A request was answered.
    fn settle(&mut self, now: Time, tag: u32) {
        let Some(Piece { kind, sent_at, timeout, retries, .. }) = self.pieces.release(tag) else { return };
        (self.last_heard, self.quiet_since) = (now, now);
        // Queries are not answered by the device, and tell nothing of what it has to do.
        if !matches!(kind, Kind::Query) {
            self.pace.answered(sent_at, now);
        }
        match (kind, retries) {
            (Kind::Flush(_), _) => {}
            (Kind::Query | Kind::Identify(_) | Kind::Move { .. }, 0) => {
                self.pace.measured(now.since(sent_at))
            }
            (Kind::Query | Kind::Identify(_) | Kind::Move { .. }, _) => self.pace.ambiguous(timeout),
        }
    }

    /// The target told how it is.
    fn found(&mut self, found: &discover::Found<'_>, is_login: bool) -> Option<Put<'_>> {
        let sectors = wire::aoe::sectors_per_frame(self.config.mtu).min(found.sectors);
        if sectors == 0 {
            self.over("not even one sector fits into a frame of the interface");
            return None;
        }
        if !is_login && sectors < self.peer.sectors {
            // What is in flight may never fit.
            self.over("the target takes smaller frames than before");
            return None;
        }
        self.is_asking = false;
        (self.peer.mac, self.peer.buffer_count) = (found.mac, found.buffer_count);
        (self.peer.firmware, self.peer.sectors) = (found.firmware, sectors);
        self.pace.limit(found.buffer_count.min(super::PIECES_MAX));
        if is_login {
            self.errand = Some(Kind::Identify(None));
        }
        None
    }

    /// The login is over.
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

    /// What a command asked for was answered: it goes on with that.
    fn asked(&mut self, id: TaskId, answer: &Answer<'_>) -> Option<Put<'_>> {
        let task = self.tasks.get(id)?;
        match (&answer.error, identity(answer)) {
            (Some(error), _) => self.end(id, Some(failure(*error, false, 0..0))),
            (None, Err(_)) => self.end(id, Some(check(SenseKey::HardwareError, TARGET_FAILURE))),
            (None, Ok(identity)) => {
                self.identity = Some(identity);
                let plan = translate::plan(&task.request, &identity, true, &mut self.made);
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
        error: Option<Fault>,
        place: Span,
    ) -> Option<Put<'_>> {
        let task = self.tasks.get(id)?;
        let Plan::Move { is_write, lba, .. } = task.plan else { return None };
        let first = lba.saturating_add(u64::from(at));
        let lbas = first..first.saturating_add(u64::from(sectors));
        let bytes = u32::from(sectors).saturating_mul(SECTOR_BYTES);
        let to = task.request.read.slice(at.saturating_mul(SECTOR_BYTES), bytes);
        let has_data = !is_write && error.is_none();
        self.piece_done(id, error.map(|error| failure(error, is_write, lbas)));
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
            Plan::Move { sectors, .. } if task.handed < sectors => {}
            Plan::Move { flush: true, .. } if !task.has_asked => self.work.push_front(id),
            Plan::Move { .. } | Plan::Flush | Plan::Ask | Plan::Made | Plan::Fail(_) => self.end(id, None),
        }
    }
}

/// Why a request failed.
#[derive(Clone, Copy)]
enum Fault {
    /// In AoE's words.
    Refused(ErrorCode),
    /// In ATA's.
    Ata(StatusReturn),
}

/// The answer to an ATA command.
struct Answer<'a> {
    error: Option<Fault>,
    data: &'a [u8],
}

impl Answer<'_> {
    fn of<'a>(header: &Header, frame: &'a [u8]) -> Option<Answer<'a>> {
        if let Some(error) = header.refusal() {
            return Some(Answer { error: Some(Fault::Refused(error)), data: &[] });
        }
        let (_, rest) = frame.split_at_checked(Header::BYTES)?;
        let end = Section::view(rest)?.status_return();
        let is_bad = end.status & (ata_status::ERR | ata_status::DF) != 0;
        let data = rest.get(Section::BYTES..)?;
        Some(Answer { error: is_bad.then_some(Fault::Ata(end)), data })
    }
}

/// The device of an answer to IDENTIFY DEVICE, or why it is none for us.
fn identity(answer: &Answer<'_>) -> Result<Identity, String> {
    match answer.error {
        None => {}
        Some(Fault::Refused(ErrorCode::TARGET_IS_RESERVED)) => return Err("is reserved".into()),
        Some(Fault::Refused(ErrorCode(error))) => {
            return Err(format!("refuses IDENTIFY DEVICE with AoE error {error}"));
        }
        Some(Fault::Ata(end)) => {
            return Err(format!("fails IDENTIFY DEVICE with ATA error {:#04x}", end.error));
        }
    }
    let identity = Identity::decode(answer.data).ok_or("has no valid IDENTIFY DEVICE data")?;
    if identity.sector_bytes != SECTOR_BYTES {
        return Err(format!("has sectors of {} bytes, not {SECTOR_BYTES}", identity.sector_bytes));
    }
    Ok(identity)
}

/// What an error is in SCSI (SAT-3 table 121 for ATA's); `lbas` were to be read or written.
fn failure(error: Fault, is_write: bool, lbas: std::ops::Range<u64>) -> Failure {
    let end = match error {
        Fault::Refused(ErrorCode::TARGET_IS_RESERVED) => {
            return Failure { status: status::RESERVATION_CONFLICT, sense: None };
        }
        Fault::Refused(ErrorCode::DEVICE_UNAVAILABLE) => return check(SenseKey::NotReady, NOT_READY),
        Fault::Refused(ErrorCode::UNRECOGNIZED_COMMAND) => {
            return check(SenseKey::IllegalRequest, code::INVALID_OPCODE);
        }
        Fault::Refused(_) => return check(SenseKey::IllegalRequest, code::INVALID_FIELD),
        Fault::Ata(end) => end,
    };
    if end.status & ata_status::DF != 0 {
        return check(SenseKey::HardwareError, TARGET_FAILURE);
    }
    if end.error & ata_error::UNC != 0 {
        let at = if lbas.contains(&end.lba) { end.lba } else { lbas.start };
        let code = if is_write { WRITE_ERROR } else { READ_ERROR };
        return if lbas.is_empty() {
            check(SenseKey::MediumError, code)
        } else {
            check_at(SenseKey::MediumError, code, at)
        };
    }
    if end.error & ata_error::IDNF != 0 {
        return check(SenseKey::IllegalRequest, code::LBA_OUT_OF_RANGE);
    }
    check(SenseKey::AbortedCommand, 0)
}
