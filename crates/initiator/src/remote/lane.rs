//! One core's session with a remote unit: operations become commands, in pieces that the unit accepts.

use super::RemoteStore;
use super::abandoned_writes::overlap;
use super::backoff::Backoff;
use super::request::{self, LBA_STATUS_BYTES, Transfer, UNMAP_BYTES};
use super::revalidation::{Asked, Revalidation};
use super::write_history::WriteHistory;
use crate::session::{Command, Ending, Finished, Moved, Refused, Session};
use proto::iscsi::initiator::Residual;
use proto::time::Time;
use reactor::io::{Completion, Io};
use scsi::storage::{Found, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::lane::{Lane, Op, OpId, Outcome, Submitted};
use wire::scsi::capacity::unmap_list;
use wire::{Cdb, Places, Span};

/// The longest piece with data.
pub(super) const PIECE_BYTES_MAX: u32 = 256 << 10;
/// The longest piece without data: what a unit completes quickly.
const RANGE_BYTES_MAX: u64 = 64 << 20;

/// The cookie of commands that belong to no operation.
pub(super) const QUESTION: u32 = u32::MAX;

/// A lane: a session, its outstanding operations, and what must be learned about the unit before the next one.
/// Its fields are what each operation goes through, from the session to the outcome.
pub(super) struct RemoteLane {
    pub(super) store: Arc<RemoteStore>,
    pub(super) id: u64,
    pub(super) session: Session,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// Cancelled writes for which nothing is sent, and that the target may still execute.
    lingering: Vec<u32>,
    /// It was logged that the target has to prove the end of what was abandoned.
    awaits_proofs: bool,
    pub(super) finished: Vec<Finished>,
    pub(super) asked: Option<Asked>,
    /// The session is new, or the unit may have changed.
    pub(super) revalidation: Option<Revalidation>,
    /// The era in which the session began, or that it began.
    pub(super) era: u64,
    /// The last write that was acknowledged from a volatile cache.
    cached: Arc<AtomicU64>,
    /// Where it has written.
    history: Arc<WriteHistory>,
    /// The session is counted as open.
    pub(super) is_counted: bool,
    /// The unit reported that its mode pages changed, but not how yet: it may have a volatile cache.
    pub(super) modes_changed: bool,
    /// Nothing has proven yet that what earlier sessions have sent has ended, and a proof is being requested.
    pub(super) backoff: Option<Backoff>,
}

/// An outstanding operation.
/// Its fields are copied as a whole, with the slot.
#[derive(Clone, Copy)]
struct Flight {
    id: OpId,
    op: Op,
    is_over: bool,
    /// When it was submitted.
    since: Time,
    /// The most bytes that were done, and since when: a setback is no progress.
    furthest: u64,
    progress_at: Time,
    /// It blocks other lanes on its blocks.
    is_held: bool,
    /// An earlier session has sent it, and the target may execute that even when it has ended.
    may_land: bool,
    /// Nothing more is to be sent for it; its outcome if it is not answered.
    verdict: Option<StoreError>,
    /// All its bytes, bytes done, and bytes of the current piece.
    len: u64,
    done: u64,
    piece: u64,
    /// Bytes of data-in and data-out of the current command.
    data: (u32, u32),
    /// Everything is done except making it durable.
    is_syncing: bool,
    /// When it began: the era, and the point in the order of events.
    era: u64,
    point: u64,
    /// Its own buffer.
    buffer: Places,
}

impl RemoteLane {
    pub(super) fn new(store: Arc<RemoteStore>, id: u64, session: Session) -> RemoteLane {
        RemoteLane {
            id,
            cached: store.continuity.join(),
            history: store.histories.join(),
            store,
            session,
            flights: Vec::new(),
            free: Vec::new(),
            lingering: Vec::new(),
            awaits_proofs: false,
            finished: Vec::new(),
            asked: None,
            revalidation: None,
            era: 0,
            is_counted: false,
            modes_changed: false,
            backoff: None,
        }
    }

    fn begin(&mut self, flight: Flight) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.flights[index as usize] = flight;
                index
            }
            None => {
                self.flights.push(flight);
                (self.flights.len() - 1) as u32
            }
        }
    }

    fn end<I: Io>(&mut self, io: &mut I, index: u32) -> OpId {
        let Flight { op, is_held, may_land, .. } = &self.flights[index as usize];
        let may_land = *may_land || *is_held && self.session.may_change(place_of(op));
        if may_land {
            let place = place_of(op);
            self.hold(index, io.now());
            self.abandon_write(io.now(), place);
        }
        let flight = &mut self.flights[index as usize];
        let buffer = std::mem::take(&mut flight.buffer);
        flight.is_over = true;
        match (flight.is_held, may_land) {
            (true, true) => self.store.abandoned.abandon(self.id, index),
            (true, false) => self.store.abandoned.release(self.id, index),
            (false, _) => {}
        }
        self.free.push(index);
        if !buffer.is_empty() {
            io.arena().give(&buffer);
        }
        flight.id
    }

    /// An operation has ended that the target may still execute: over AoE it is not retransmitted.
    fn abandon_write(&mut self, now: Time, place: (u64, u64)) {
        if !self.session.ends_by_answers() {
            return;
        }
        self.session.abandon(now, place);
        self.report_abandoned(place);
    }

    /// Logs that blocks are not ready, once, and what frees them; again when that changes.
    pub(super) fn report_abandoned(&mut self, place: (u64, u64)) {
        let has_proofs = self.session.can_be_proven(place);
        if self.store.abandoned.has_abandoned(self.id) && (has_proofs || !self.awaits_proofs) {
            return;
        }
        self.awaits_proofs = has_proofs;
        let next = if has_proofs {
            "waiting for the target to prove that they have ended"
        } else {
            "if it never got them, restart this daemon once the target is known to be idle"
        };
        tracing::warn!(
            store = %self.store.url,
            "unanswered writes were abandoned: until the target answers them, their blocks are not ready; {next}"
        );
    }

    /// Over AoE, some of what was abandoned has ended.
    pub(super) fn release_proven(&mut self) {
        let had_any = self.store.abandoned.has_abandoned(self.id);
        self.store.abandoned.keep(self.id, |range| self.session.may_change(range));
        if had_any && !self.store.abandoned.has_abandoned(self.id) {
            tracing::info!(store = %self.store.url, "all abandoned writes have ended: their blocks are ready");
        }
    }

    /// Sends the next piece of an operation.
    fn advance<I: Io>(&mut self, io: &mut I, index: u32) -> Result<(), StoreError> {
        let since = self.flights[index as usize].progress_at;
        if io.now().since(since) >= self.store.give_up_after() {
            return Err(StoreError::Unavailable);
        }
        let mut command = self.next(io, index)?;
        (command.cookie, command.since) = (index, since);
        self.flights[index as usize].data = (command.request.read.len(), command.request.write.len());
        self.session.submit(io.now(), &command).map_err(|refused| match refused {
            Refused::Full => StoreError::Busy,
            Refused::Lost => StoreError::Unavailable,
        })
    }

    /// The next command of an operation, except its cookie and its time.
    fn next<I: Io>(&mut self, io: &mut I, index: u32) -> Result<Command, StoreError> {
        let geometry = &self.store.geometry;
        let flight = &self.flights[index as usize];
        if flight.is_syncing {
            return Ok(self.sync());
        }
        let most = geometry.transfer_blocks_max.map_or(PIECE_BYTES_MAX, |blocks| {
            blocks.saturating_mul(geometry.block_bytes).min(PIECE_BYTES_MAX)
        });
        let atomic_most = geometry.traits.atomic_write_bytes_max;
        let (transfer, durable, offset, places): (Transfer, _, _, _) = match &flight.op {
            Op::Read { offset, into } => (request::read, false, *offset, into),
            Op::Write { offset, from, durable, atomic: false } => (request::write, *durable, *offset, from),
            // These two cannot be split into pieces.
            Op::Write { from, atomic: true, .. } if from.len() > atomic_most => {
                return Err(StoreError::Unsupported);
            }
            Op::OrWrite { from, .. } if from.len() > most => return Err(StoreError::Unsupported),
            Op::Write { offset, from, durable, atomic: true } => {
                (request::write_atomic, *durable, *offset, from)
            }
            Op::OrWrite { offset, from, durable } => (request::or_write, *durable, *offset, from),
            Op::Compare { offset, with } => (request::compare, false, *offset, with),
            Op::CompareAndWrite { .. } => return self.compare_and_write(index),
            &Op::Extent { offset } => return self.lba_status(io, index, offset),
            Op::Flush => return Ok(self.sync()),
            Op::Discard { offset, len } if geometry.unmap_zeros => {
                let (offset, len) = (*offset, *len);
                return self.unmap(io, index, offset, len);
            }
            Op::Discard { offset, len } => {
                let (offset, len) = (*offset, *len);
                return self.zero(index, offset, len, true, true);
            }
            Op::Zero { offset, len, unmap, .. } => {
                let (offset, len, unmap) = (*offset, *len, *unmap);
                let same = self.store.write_same.load(Ordering::Relaxed);
                return self.zero(index, offset, len, unmap, same);
            }
        };
        let block = u64::from(geometry.block_bytes);
        let (is_read, is_whole) =
            (matches!(flight.op, Op::Read { .. }), matches!(flight.op, Op::Write { atomic: true, .. }));
        let piece = places.slice(flight.done as u32, if is_whole { u32::MAX } else { most });
        let len = u64::from(piece.len());
        let (lba, blocks) = ((offset + flight.done) / block, (len / block) as u32);
        let cdb = transfer(lba, blocks, durable && geometry.fua);
        let (read, write) = if is_read { (piece, Places::EMPTY) } else { (Places::EMPTY, piece) };
        self.flights[index as usize].piece = len;
        Ok(self.command(cdb, read, write))
    }

    /// A command that may be resent.
    fn command(&self, cdb: Cdb, read: Places, write: Places) -> Command {
        let request = request::request(self.session.lun_bytes(), cdb, read, write);
        Command { cookie: 0, request, repeatable: true, patient: true, since: Time(0) }
    }

    fn sync(&self) -> Command {
        self.command(request::synchronize_cache(), Places::EMPTY, Places::EMPTY)
    }

    fn compare_and_write(&mut self, index: u32) -> Result<Command, StoreError> {
        let geometry = &self.store.geometry;
        let flight = &mut self.flights[index as usize];
        let Op::CompareAndWrite { offset, compare, write, durable } = flight.op else {
            return Err(StoreError::Unsupported);
        };
        let most = geometry.traits.compare_write_bytes_max;
        let both = request::join(&compare, &write).filter(|_| compare.len() <= most);
        let both = both.ok_or(StoreError::Unsupported)?;
        flight.piece = u64::from(compare.len());
        let block = u64::from(geometry.block_bytes);
        let (lba, blocks) = (offset / block, (flight.piece / block) as u32);
        let cdb = request::compare_and_write(lba, blocks, durable && geometry.fua);
        Ok(Command { repeatable: false, ..self.command(cdb, Places::EMPTY, both) })
    }

    fn lba_status<I: Io>(&mut self, io: &mut I, index: u32, offset: u64) -> Result<Command, StoreError> {
        let flight = &mut self.flights[index as usize];
        if flight.buffer.is_empty() {
            flight.buffer = io.arena().take(LBA_STATUS_BYTES).ok_or(StoreError::Busy)?;
        }
        let buffer = flight.buffer;
        let lba = offset / u64::from(self.store.geometry.block_bytes);
        Ok(self.command(request::lba_status(lba), buffer, Places::EMPTY))
    }

    /// A piece of a range that has to read as zeros; `same`: by WRITE SAME.
    fn zero(
        &mut self,
        index: u32,
        offset: u64,
        len: u64,
        unmap: bool,
        same: bool,
    ) -> Result<Command, StoreError> {
        let geometry = &self.store.geometry;
        let flight = &mut self.flights[index as usize];
        let block = u64::from(geometry.block_bytes);
        let rest = len - flight.done;
        let lba = (offset + flight.done) / block;
        let (piece, data) = if same {
            let most =
                geometry.same_blocks_max.map_or(RANGE_BYTES_MAX, |blocks| blocks.saturating_mul(block));
            (rest.min(most).min(RANGE_BYTES_MAX), geometry.block_bytes)
        } else {
            let blocks = geometry.transfer_blocks_max.map_or(u64::MAX, u64::from);
            let piece = rest.min(blocks.saturating_mul(block)).min(u64::from(PIECE_BYTES_MAX));
            (piece, piece as u32)
        };
        flight.piece = piece;
        let blocks = (piece / block) as u32;
        let cdb = match same {
            true => request::write_same(lba, blocks, unmap && geometry.write_same_unmaps),
            false => request::write(lba, blocks, false),
        };
        let zeros = self.store.zeros.span(0, data).ok_or(StoreError::Unsupported)?;
        Ok(self.command(cdb, Places::EMPTY, Places::one(zeros)))
    }

    /// A piece of a range to unmap.
    fn unmap<I: Io>(&mut self, io: &mut I, index: u32, offset: u64, len: u64) -> Result<Command, StoreError> {
        let geometry = &self.store.geometry;
        let flight = &mut self.flights[index as usize];
        let block = u64::from(geometry.block_bytes);
        if flight.buffer.is_empty() {
            flight.buffer = io.arena().take(UNMAP_BYTES).ok_or(StoreError::Busy)?;
        }
        let blocks = ((len - flight.done) / block).min(u64::from(geometry.unmap_blocks_max));
        flight.piece = blocks * block;
        let list = unmap_list((offset + flight.done) / block, blocks as u32);
        flight.buffer.iter().for_each(|span| io.arena().bytes_mut(span).copy_from_slice(&list));
        let buffer = flight.buffer;
        Ok(self.command(request::unmap(), Places::EMPTY, buffer))
    }

    /// Checks that an operation may begin: no write that has not ended blocks it. Other lanes then see it.
    fn enter(&self, op: &Op, place: (u64, u64), now: Time) -> Result<(), StoreError> {
        let look = || match self.store.abandoned.blocked_since(self.id, place) {
            Some(since) if now.since(since) < self.store.give_up_after() => Err(StoreError::Busy),
            Some(_) => Err(StoreError::Unavailable),
            None => Ok(()),
        };
        look()?;
        if !changes(op) {
            return Ok(());
        }
        self.store.continuity.writes();
        self.history.note(place, now);
        look()
    }

    /// A write that may have been executed and is resent, or that was cancelled while in transit: until it
    /// has ended, its blocks are locked.
    fn hold(&mut self, index: u32, now: Time) {
        let flight = &mut self.flights[index as usize];
        if !flight.is_over && !flight.is_held && changes(&flight.op) {
            flight.is_held = true;
            self.store.abandoned.add(self.id, index, place_of(&flight.op), now);
        }
    }

    /// The session is no longer open: what is in flight waits.
    pub(super) fn hold_all(&mut self, now: Time) {
        (0..self.flights.len() as u32).for_each(|index| self.hold(index, now));
    }

    /// The commands of earlier sessions can no longer be executed.
    pub(super) fn proven(&mut self, now: Time) {
        self.backoff = None;
        if self.session.ends_by_answers() {
            return;
        }
        self.session.proven();
        self.store.abandoned.keep(self.id, |_| false);
        self.flights.iter_mut().for_each(|flight| flight.may_land = false);
        self.end_settled(now);
    }

    /// Whether the target may still execute a write that an earlier session has sent.
    pub(super) fn has_unsettled(&self) -> bool {
        let may_land = |flight: &Flight| !flight.is_over && flight.may_land;
        let is_unsettled = |cookie: u32| changes(&self.flights[cookie as usize].op);
        self.store.abandoned.has_abandoned(self.id)
            || self.flights.iter().any(may_land)
            || self.session.unsettled().any(is_unsettled)
    }

    /// They can still be executed, although they are resent.
    pub(super) fn mark_unsettled(&mut self) {
        for cookie in self.session.unsettled() {
            let flight = &mut self.flights[cookie as usize];
            flight.may_land |= changes(&flight.op);
        }
    }

    /// Cancels writes that were overtaken while they waited, as their initiators know best what has to be
    /// there; and all operations on blocks that a write which was abandoned since they were submitted may
    /// still change.
    pub(super) fn cancel_overtaken(&mut self, now: Time) {
        let abandoned = self.store.abandoned.ranges();
        for (index, flight) in self.flights.iter_mut().enumerate().filter(|(_, flight)| !flight.is_over) {
            let place = place_of(&flight.op);
            let is_overtaken = || self.store.histories.crosses(&self.history, place, flight.since);
            if abandoned.iter().any(|range| overlap(*range, place)) || flight.is_held && is_overtaken() {
                flight.verdict.get_or_insert(StoreError::Busy);
                self.session.cancel(now, index as u32, &mut self.finished);
            }
        }
    }

    /// Handles what the session has finished, sends what follows, and checks the session.
    fn settle<I: Io>(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        loop {
            self.handle_attentions(io);
            let mut next = 0;
            while let Some(Finished { cookie, ending }) = self.finished.get(next).copied() {
                next += 1;
                if cookie == QUESTION {
                    self.take_answer(io, ending);
                } else {
                    self.proceed(io, cookie, ending, done);
                }
            }
            self.finished.clear();
            self.watch(io);
            if self.finished.is_empty() {
                return;
            }
        }
    }

    fn proceed<I: Io>(&mut self, io: &mut I, index: u32, ending: Ending, done: &mut Vec<(OpId, Outcome)>) {
        let checked = self.check(io, index, ending);
        let flight = &self.flights[index as usize];
        let verdict = flight.verdict;
        if self.lingers(io.now(), index) {
            match self.session.ends_by_answers() {
                true => self.session.abandon(io.now(), place_of(&flight.op)),
                false => self.store.abandoned.abandon(self.id, index),
            }
            return self.lingering.push(index);
        }
        let step = match (checked, verdict) {
            (Ok(None), Some(error)) => Err(error),
            (Ok(None), None) => self.advance(io, index).map(|()| None),
            (other, _) => other,
        };
        let outcome = match step {
            Ok(None) => return,
            Ok(Some(found)) => Ok(found),
            Err(error) => Err(error),
        };
        done.push((self.end(io, index), outcome));
    }

    /// Whether a write that is no longer sent has to wait for its end, as whatever cancelled it promises.
    fn lingers(&self, now: Time, index: u32) -> bool {
        let flight = &self.flights[index as usize];
        let is_cancelled = flight.verdict == Some(StoreError::Cancelled) && changes(&flight.op);
        let is_due = now.since(flight.progress_at) >= self.store.give_up_after();
        is_cancelled && !is_due && self.may_land(flight)
    }

    /// Whether the target may still execute what was sent for an operation that is not sent any more.
    fn may_land(&self, flight: &Flight) -> bool {
        match self.session.ends_by_answers() {
            true => self.session.may_change(place_of(&flight.op)),
            false => flight.may_land,
        }
    }

    /// Ends those that need not wait any more.
    pub(super) fn end_settled(&mut self, now: Time) {
        let all = std::mem::take(&mut self.lingering);
        let (lingering, over): (Vec<u32>, Vec<u32>) =
            all.into_iter().partition(|index| self.lingers(now, *index));
        self.lingering = lingering;
        for cookie in over {
            let may_land = self.may_land(&self.flights[cookie as usize]);
            self.flights[cookie as usize].may_land = may_land;
            self.finished.push(Finished { cookie, ending: Ending::Lost { may_land: false } });
        }
    }

    /// A command of an operation has ended: `None` means that there is more to do.
    fn check<I: Io>(&mut self, io: &mut I, index: u32, ending: Ending) -> Result<Option<Found>, StoreError> {
        let store = &self.store;
        let flight = &self.flights[index as usize];
        match ending {
            Ending::Good(moved) => self.answered(io, index, moved),
            Ending::Lost { may_land } => {
                let (op, verdict) = (flight.op, flight.verdict);
                let is_unproven =
                    || !self.session.ends_by_answers() || self.session.may_change(place_of(&op));
                let may_land = may_land && changes(&op) && is_unproven();
                self.flights[index as usize].may_land |= may_land;
                Err(verdict.unwrap_or(StoreError::Unavailable))
            }
            Ending::Status { status, sense, moved } => {
                let is_flush = flight.is_syncing || matches!(flight.op, Op::Flush);
                let is_write = is_flush || changes(&flight.op);
                let at = place_of(&flight.op).0 + flight.done;
                let error =
                    request::failure(status, sense.as_ref(), is_write, at, store.geometry.block_bytes);
                if is_flush && error == Some(StoreError::WriteFailed)
                    || sense.is_some_and(|sense| sense.is_deferred())
                {
                    // The unit will not report it again.
                    store.losing(|continuity| continuity.flush_failed(flight.point));
                }
                match error {
                    None => self.answered(io, index, moved),
                    Some(StoreError::Unsupported) if matches!(flight.op, Op::Discard { .. }) => {
                        store.discards.store(false, Ordering::Relaxed);
                        Ok(Some(Found::Nothing))
                    }
                    Some(StoreError::Unsupported) if needs_no_same(&flight.op, store) => {
                        store.write_same.store(false, Ordering::Relaxed);
                        Ok(None)
                    }
                    Some(StoreError::Miscompare { at }) => {
                        Err(StoreError::Miscompare { at: at.saturating_add(flight.done as u32) })
                    }
                    Some(error) => Err(error),
                }
            }
        }
    }

    /// A command of an operation succeeded, if it transferred what it had to.
    fn answered<I: Io>(&mut self, io: &mut I, index: u32, moved: Moved) -> Result<Option<Found>, StoreError> {
        if self.store.is_another.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable);
        }
        if !is_possible(&self.flights[index as usize], &moved) {
            return Err(self.impossible_success(index, &moved));
        }
        let store = &self.store;
        let flight = &mut self.flights[index as usize];
        if self.revalidation.is_some() && !changes(&flight.op) && !matches!(flight.op, Op::Flush) {
            // What was read may be of another unit, or of blocks of another size: it is read again.
            return Ok(None);
        }
        let volatile_cache = store.volatile_cache.load(Ordering::Relaxed) || self.modes_changed;
        let is_cached = volatile_cache && is_cached(&flight.op, store.geometry.fua);
        if is_cached && !flight.is_syncing {
            store.continuity.note(&self.cached);
        }
        let era = store.continuity.era();
        if changes(&flight.op) && flight.era != era {
            // The target may have restarted since it received the first piece: all has to be rewritten.
            if matches!(flight.op, Op::CompareAndWrite { .. }) {
                return Err(StoreError::Unavailable);
            }
            *flight = Flight { era, done: 0, is_syncing: false, ..*flight };
            return Ok(None);
        }
        if flight.is_syncing {
            return Ok(Some(Found::Nothing));
        }
        match flight.op {
            Op::Flush => store.continuity.flushed(flight.point),
            Op::Extent { offset } => {
                let span = flight.buffer.iter().next().filter(|span| span.len <= moved.read_bytes);
                let data = span.map_or(&[][..], |span| io.arena().bytes(span));
                return request::extent(data, offset, u64::from(store.geometry.block_bytes)).map(Some);
            }
            Op::Read { .. }
            | Op::Compare { .. }
            | Op::Write { .. }
            | Op::OrWrite { .. }
            | Op::CompareAndWrite { .. }
            | Op::Zero { .. }
            | Op::Discard { .. } => {}
        }
        flight.done += flight.piece;
        if flight.done > flight.furthest {
            (flight.furthest, flight.progress_at) = (flight.done, io.now());
        }
        if flight.done < flight.len {
            return Ok(None);
        }
        flight.is_syncing = is_cached && is_durable(&flight.op);
        Ok((!flight.is_syncing).then_some(Found::Nothing))
    }
}

impl RemoteLane {
    /// GOOD for a command whose data was not transferred, or cannot have been, is an error. The unit is
    /// revalidated before it is relied on again, and whether what it has acknowledged was written is unknown.
    fn impossible_success(&mut self, index: u32, moved: &Moved) -> StoreError {
        let flight = &self.flights[index as usize];
        let (at, point) = (place_of(&flight.op).0 + flight.done, flight.point);
        let is_write = flight.is_syncing || matches!(flight.op, Op::Flush) || changes(&flight.op);
        let ((data_in, data_out), Moved { read_bytes, write_bytes, residual }) = (flight.data, moved);
        reactor::limited!(
            "impossible answers of remote units",
            tracing::Level::ERROR,
            store = %self.store.url, at, data_in, read_bytes, data_out, write_bytes, %residual,
            "the target answered GOOD to a command whose data it did not transfer completely"
        );
        self.doubt();
        if is_write {
            self.store.losing(|continuity| continuity.flush_failed(point));
            return StoreError::WriteFailed;
        }
        StoreError::ReadFailed { at }
    }
}

impl<I: Io> Lane<I> for RemoteLane {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        if self.store.is_another.load(Ordering::Relaxed) {
            return Submitted::Done(Err(StoreError::Unavailable));
        }
        if let Op::Extent { offset } = *op
            && !self.store.geometry.thin
        {
            let len = self.store.size.load(Ordering::Relaxed).saturating_sub(offset);
            return Submitted::Done(Ok(Found::Extent { mapped: true, len }));
        }
        if matches!(op, Op::Discard { .. }) && !self.store.discards.load(Ordering::Relaxed) {
            return Submitted::Done(Ok(Found::Nothing));
        }
        let (now, place) = (io.now(), place_of(op));
        if let Err(error) = self.enter(op, place, now) {
            return Submitted::Done(Err(error));
        }
        let continuity = &self.store.continuity;
        let flight = Flight {
            id,
            op: *op,
            is_over: false,
            since: now,
            furthest: 0,
            progress_at: now,
            is_held: false,
            may_land: false,
            verdict: None,
            len: place.1,
            done: 0,
            piece: 0,
            data: (0, 0),
            is_syncing: false,
            era: continuity.era(),
            point: if matches!(op, Op::Flush) { continuity.point() } else { 0 },
            buffer: Places::EMPTY,
        };
        let is_empty = !matches!(op, Op::Flush | Op::Extent { .. }) && place.1 == 0;
        if is_empty {
            return Submitted::Done(Ok(Found::Nothing));
        }
        let index = self.begin(flight);
        if !self.session.is_open() {
            self.hold(index, now);
        }
        match self.advance(io, index) {
            Ok(()) => Submitted::Later,
            Err(error) => {
                self.end(io, index);
                Submitted::Done(Err(error))
            }
        }
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.session.completed(io, completion, &mut self.finished);
        self.settle(io, done);
    }

    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        loop {
            let waits = self.session.flush(io, &mut self.finished);
            let is_eventful = !self.finished.is_empty() || self.session.has_attentions();
            if !is_eventful && self.is_counted == self.session.is_open() {
                return waits;
            }
            self.settle(io, done);
        }
    }

    fn tick(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        let now = io.now();
        self.session.tick(io, &mut self.finished);
        self.end_settled(now);
        self.settle(io, done);
        self.probe(io, now);
        self.flush(io, done);
    }

    fn cancel(&mut self, io: &mut I, id: OpId) {
        let is_it = |flight: &Flight| !flight.is_over && flight.id == id;
        let Some(index) = self.flights.iter().position(is_it) else { return };
        self.flights[index].verdict = Some(StoreError::Cancelled);
        let now = io.now();
        self.hold(index as u32, now);
        self.store.abandoned.cancel(self.id, index as u32);
        self.session.cancel(now, index as u32, &mut self.finished);
    }

    fn wants_ticks(&self) -> bool {
        Lane::<I>::in_flight(self) > 0 || self.session.is_in_use()
    }

    fn losses(&mut self) -> u64 {
        self.store.continuity.losses()
    }

    fn is_dirty(&mut self) -> bool {
        self.store.continuity.is_dirty()
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    fn close(&mut self, io: &mut I) -> bool {
        if !self.session.is_closing() {
            self.session.close(io, &mut self.finished);
        }
        self.session.is_closed()
    }
}

/// The session ends with its lane.
impl Drop for RemoteLane {
    fn drop(&mut self) {
        if self.is_counted {
            self.store.continuity.count(false);
        }
        self.session.close_socket();
    }
}

/// Whether a successful command can have moved this much data: its length, except GET LBA STATUS.
fn is_possible(flight: &Flight, moved: &Moved) -> bool {
    let (data_in, data_out) = flight.data;
    let is_answer = matches!(flight.op, Op::Extent { .. });
    is_answer
        || moved.residual == Residual::None && moved.read_bytes == data_in && moved.write_bytes == data_out
}

/// Where an operation begins on the medium, and its length.
fn place_of(op: &Op) -> (u64, u64) {
    match *op {
        Op::Read { offset, into } => (offset, into.len().into()),
        Op::Write { offset, from, .. } | Op::OrWrite { offset, from, .. } => (offset, from.len().into()),
        Op::Compare { offset, with } => (offset, with.len().into()),
        Op::CompareAndWrite { offset, compare, .. } => (offset, compare.len().into()),
        Op::Zero { offset, len, .. } | Op::Discard { offset, len } => (offset, len),
        Op::Extent { offset } => (offset, 0),
        Op::Flush => (0, 0),
    }
}

/// Whether an operation changes the medium.
fn changes(op: &Op) -> bool {
    match op {
        Op::Write { .. }
        | Op::OrWrite { .. }
        | Op::CompareAndWrite { .. }
        | Op::Zero { .. }
        | Op::Discard { .. } => true,
        Op::Read { .. } | Op::Flush | Op::Compare { .. } | Op::Extent { .. } => false,
    }
}

/// Whether what an operation changes has to be durable when it ends.
fn is_durable(op: &Op) -> bool {
    match *op {
        Op::Write { durable, .. }
        | Op::OrWrite { durable, .. }
        | Op::CompareAndWrite { durable, .. }
        | Op::Zero { durable, .. } => durable,
        Op::Read { .. } | Op::Flush | Op::Discard { .. } | Op::Compare { .. } | Op::Extent { .. } => false,
    }
}

/// Whether an operation's changes may be in a volatile cache: WRITE SAME and UNMAP have no FUA.
fn is_cached(op: &Op, fua: bool) -> bool {
    match *op {
        Op::Write { durable, .. } | Op::OrWrite { durable, .. } | Op::CompareAndWrite { durable, .. } => {
            !(durable && fua)
        }
        Op::Zero { .. } | Op::Discard { .. } => true,
        Op::Read { .. } | Op::Flush | Op::Compare { .. } | Op::Extent { .. } => false,
    }
}

/// Whether an operation that the unit does not support can be done without WRITE SAME.
fn needs_no_same(op: &Op, store: &RemoteStore) -> bool {
    matches!(op, Op::Zero { .. }) && store.write_same.load(Ordering::Relaxed)
}
