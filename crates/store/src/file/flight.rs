//! One operation in flight: which request comes next, and what its completion means. An operation consists of
//! phases, a phase of pieces, and a piece is transferred by one request, or by as many as the kernel needs.

use super::syncs::{SyncTicket, Turn};
use super::{FileStore, Grain, Kind};
use crate::lane::{Op, OpId, Outcome};
use crate::pool::{BUFFER_BYTES, Buffer};
use crate::range::{Range, writes};
use crate::stripes::{Hold, Mode};
use crate::zeros;
use reactor::io::{Allocate, Errno, Io, Tag};
use rustix::io::Errno as Os;
use scsi::storage::{Found, StoreError};
use std::sync::atomic::Ordering;
use wire::Places;

/// Bytes of a clearing operation that are locked at a time, and the most that the kernel clears in one
/// request.
const CLEAR_BYTES: u64 = 16 << 20;

const DONE: Outcome = Ok(Found::Nothing);

/// How often an interrupted request is retried before the operation fails as busy.
const RETRIES_MAX: u8 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Read,
    Compare,
    Put,
    Clear,
    Sync,
}

/// How a piece is transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// Between the operation's places and the medium.
    Straight,
    /// Zeros to the medium.
    Zeros,
    /// Medium to buffer.
    Load,
    /// Buffer to medium.
    Store,
    /// Cleared by the file system or device.
    Clear(Allocate),
    /// Made durable.
    Sync,
}

/// A part of the operation, and the request that moves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    how: How,
    /// The request's range: with a buffer, the aligned range around the part.
    at: u64,
    len: u64,
    /// Where the operation's own bytes start in that range, and their number.
    skip: u32,
    own: u64,
    /// Bytes of the range that earlier requests transferred.
    moved: u32,
}

/// What to do next.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// [`Flight::issue`].
    Issue,
    /// Lock the next part ([`Flight::relock`]), then issue.
    Relock,
    /// Wait for a turn to sync ([`Flight::turn`]), then issue.
    Sync,
    /// Report it.
    Done(Outcome),
}

/// The state of an operation's sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Syncing {
    No,
    Wants(SyncTicket),
    Runs,
}

/// An operation in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) id: OpId,
    pub(super) hold: Hold,
    pub(super) buffer: Option<Buffer>,
    /// Nobody waits for it: nothing more of it is begun.
    pub(super) is_cancelled: bool,
    /// It occupies its range as a whole.
    occupies: bool,
    op: Op,
    range: Range,
    phase: Phase,
    /// Bytes of this phase that are finished.
    done: u64,
    piece: Piece,
    locked_to: u64,
    syncing: Syncing,
    /// Losses of the store when it began.
    losses: u64,
    /// Bytes of the range that [`Flight::note`] has seen.
    noted: u64,
    retries: u8,
}

impl Flight {
    pub(super) fn new(store: &FileStore, id: OpId, op: &Op, range: Range) -> Flight {
        let phase = match op {
            Op::Read { .. } | Op::Extent { .. } => Phase::Read,
            Op::Compare { .. } | Op::CompareAndWrite { .. } => Phase::Compare,
            Op::Write { .. } | Op::OrWrite { .. } => Phase::Put,
            Op::Zero { .. } | Op::Discard { .. } => Phase::Clear,
            Op::Flush => Phase::Sync,
        };
        let piece = Piece { how: How::Sync, at: 0, len: 0, skip: 0, own: 0, moved: 0 };
        let hold = Hold::new(Mode::Shared, 0, 0);
        let mut flight = Flight {
            id,
            hold,
            buffer: None,
            is_cancelled: false,
            occupies: false,
            op: *op,
            range,
            phase,
            done: 0,
            piece,
            locked_to: 0,
            syncing: Syncing::No,
            losses: store.syncs.losses(),
            noted: 0,
            retries: 0,
        };
        flight.relock(store);
        if flight.phase == Phase::Sync {
            flight.syncing = Syncing::Wants(store.syncs.ticket());
        }
        flight
    }

    /// Whether it is this operation's turn, which is always so until it wants to sync.
    pub(super) fn turn(&mut self, store: &FileStore) -> Turn {
        let Syncing::Wants(ticket) = self.syncing else { return Turn::Begin };
        let turn = store.syncs.turn(ticket);
        if turn == Turn::Begin {
            self.syncing = Syncing::Runs;
        }
        turn
    }

    /// The outcome once a sync that began after its last write has succeeded. Another sync may have consumed
    /// the error of what it wrote before.
    pub(super) fn synced(&self, store: &FileStore) -> Outcome {
        if store.syncs.losses() == self.losses { DONE } else { Err(StoreError::WriteFailed) }
    }

    /// Whether it only lacks its turn to sync.
    pub(super) fn wants_sync(&self) -> bool {
        matches!(self.syncing, Syncing::Wants(_))
    }

    /// Whether it runs the file's sync.
    pub(super) fn syncs(&self) -> bool {
        self.syncing == Syncing::Runs
    }

    /// The outcome of the sync that it runs will not be known: it may have lost data.
    pub(super) fn abandon_sync(&self, store: &FileStore) {
        if self.syncs() {
            store.syncs.lost();
            store.syncs.end();
        }
    }

    /// Records what was discarded and written so far, while it is still locked. `all`: the whole range is
    /// finished.
    pub(super) fn note(&mut self, store: &FileStore, all: bool) {
        if store.shape.kind != Kind::Block || !writes(&self.op) {
            return;
        }
        let gives_back = matches!(self.op, Op::Discard { .. } | Op::Zero { unmap: true, .. });
        let start = self.range.offset + self.noted;
        // A write that failed may have changed all of its range.
        self.noted = if all || !gives_back { self.range.len } else { self.done };
        let end = self.range.offset + self.noted;
        if gives_back && store.can_punch.load(Ordering::Relaxed) {
            let hole = u64::from(store.shape.hole_bytes);
            store.unmapped.add(start.next_multiple_of(hole), end - end % hole);
        } else {
            store.unmapped.remove(start, end);
        }
    }

    /// Whether the operation cannot begin without a buffer.
    fn wants_buffer(&self, store: &FileStore) -> bool {
        let grain = u64::from(store.shape.grain.offset);
        self.buffer.is_none()
            && match self.phase {
                Phase::Read | Phase::Put => !self.is_straight(store.shape.grain),
                Phase::Compare => true,
                Phase::Clear => {
                    !self.range.offset.is_multiple_of(grain) || !self.range.len.is_multiple_of(grain)
                }
                Phase::Sync => false,
            }
    }

    /// Takes the buffer and the range that the next request needs; false: it has to wait.
    pub(super) fn takes_its_range(&mut self, store: &FileStore) -> bool {
        if self.wants_buffer(store) {
            self.buffer = store.pool.take();
            if self.buffer.is_none() {
                return false;
            }
        }
        if !self.occupy(store) || !store.stripes.try_lock(&mut self.hold) {
            return false;
        }
        if self.is_held_off(store) {
            store.stripes.unlock(&mut self.hold);
            return false;
        }
        true
    }

    /// Occupies the whole range of a clear that is done in several parts; false: it has to wait for another
    /// one.
    fn occupy(&mut self, store: &FileStore) -> bool {
        if !self.occupies && self.phase == Phase::Clear && self.locked_to < self.range.end() {
            self.occupies = store.occupied.take(self.range);
            return self.occupies;
        }
        true
    }

    /// Lets others write to the range again.
    pub(super) fn leave(&mut self, store: &FileStore) {
        if std::mem::take(&mut self.occupies) {
            store.occupied.give(self.range);
        }
    }

    /// Whether it has to wait for a long clear, although its stripes are locked.
    fn is_held_off(&self, store: &FileStore) -> bool {
        !self.occupies && writes(&self.op) && store.occupied.overlaps(self.range)
    }

    /// Replaces the hold, which must be unlocked, with one on the next part of the range, and plans its first
    /// piece.
    pub(super) fn relock(&mut self, store: &FileStore) {
        let grain = u64::from(store.shape.grain.offset);
        let end = self.range.offset + self.range.len;
        let start = self.range.offset + self.done;
        self.locked_to = match self.phase {
            Phase::Clear => end.min((start - start % CLEAR_BYTES).saturating_add(CLEAR_BYTES)),
            Phase::Read | Phase::Compare | Phase::Put | Phase::Sync => end,
        };
        let mode = if writes(&self.op) { Mode::Exclusive } else { Mode::Shared };
        let low = start - start % grain;
        let high = self.locked_to.next_multiple_of(grain);
        self.hold = match self.phase {
            Phase::Sync => Hold::new(mode, 0, 0),
            _ => Hold::new(mode, low, high - low),
        };
        self.piece = self.plan(store);
    }

    /// Issues the request for the rest of the piece; returns the outcome, if it has already ended.
    pub(super) fn issue<I: Io>(&self, io: &mut I, store: &FileStore, tag: Tag) -> Option<Result<u32, Errno>> {
        let piece = &self.piece;
        let file = store.handle();
        let at = piece.at + u64::from(piece.moved);
        match piece.how {
            How::Straight => return self.issue_straight(io, store, tag),
            How::Zeros => io.write(file, at, &self.zeros(store), false, tag),
            How::Load => io.read(file, at, &self.buffered(store), tag),
            How::Store => {
                if piece.moved == 0 {
                    self.fill(io, store);
                }
                io.write(file, at, &self.buffered(store), self.syncs_itself(store), tag);
            }
            How::Clear(how) => io.allocate(file, how, piece.at, piece.len, tag),
            How::Sync => io.sync(file, tag),
        }
        None
    }

    fn issue_straight<I: Io>(&self, io: &mut I, store: &FileStore, tag: Tag) -> Option<Result<u32, Errno>> {
        let (file, at) = (store.handle(), self.piece.at + u64::from(self.piece.moved));
        let own = self.own_places().slice(self.done as u32, self.piece.len as u32);
        let rest = own.slice(self.piece.moved, u32::MAX);
        if self.phase == Phase::Read {
            let now = if store.shape.in_memory { io.read_now(file, at, &rest) } else { None };
            if now.is_none() {
                io.read(file, at, &rest, tag);
            }
            return now;
        }
        let durable = self.syncs_itself(store);
        let now = if store.shape.in_memory { io.write_now(file, at, &rest, durable) } else { None };
        if now.is_none() {
            io.write(file, at, &rest, durable, tag);
        }
        now
    }

    /// Handles the completion of the last request, which is final if nobody waits any more.
    pub(super) fn completed<I: Io>(
        &mut self,
        io: &mut I,
        store: &FileStore,
        result: Result<u32, Errno>,
    ) -> Step {
        match self.take(io, store, result) {
            Step::Issue | Step::Relock | Step::Sync if self.is_cancelled && !self.syncs() => {
                Step::Done(Err(StoreError::Cancelled))
            }
            step => step,
        }
    }

    fn take<I: Io>(&mut self, io: &mut I, store: &FileStore, result: Result<u32, Errno>) -> Step {
        let moved = match result {
            Ok(moved) => moved,
            Err(errno) => return self.fault(store, errno),
        };
        self.retries = 0;
        match self.piece.how {
            How::Sync => {
                store.losses_in_a_row.store(0, Ordering::Relaxed);
                store.syncs.end();
                self.syncing = Syncing::No;
                Step::Done(self.synced(store))
            }
            How::Clear(_) => self.advance(store),
            How::Straight | How::Zeros | How::Load | How::Store => {
                // Continuing within a block would break the alignment: its beginning is transferred again.
                let sum = u64::from(self.piece.moved) + u64::from(moved);
                let whole = sum - sum % u64::from(store.shape.grain.offset);
                if sum >= self.piece.len {
                    return self.moved(io, store);
                }
                if whole <= u64::from(self.piece.moved) {
                    return Step::Done(Err(self.failed(sum)));
                }
                self.piece.moved = whole as u32;
                Step::Issue
            }
        }
    }

    /// The piece's range was transferred as a whole.
    fn moved<I: Io>(&mut self, io: &mut I, store: &FileStore) -> Step {
        if self.piece.how != How::Load {
            return self.advance(store);
        }
        let places = self.own_places().slice(self.done as u32, self.piece.own as u32);
        let (region, own) = store.pool.place(self.buffer(), self.piece.skip);
        match self.phase {
            Phase::Read => region.copy_out(own, io.arena(), &places),
            Phase::Compare => {
                if let Some(at) = region.compare(own, io.arena(), &places) {
                    return Step::Done(Err(StoreError::Miscompare { at: self.done as u32 + at }));
                }
            }
            Phase::Put | Phase::Clear | Phase::Sync => {
                self.piece = Piece { how: How::Store, moved: 0, ..self.piece };
                return Step::Issue;
            }
        }
        self.advance(store)
    }

    /// Puts the operation's bytes into the buffer.
    fn fill<I: Io>(&self, io: &mut I, store: &FileStore) {
        let (region, own) = store.pool.place(self.buffer(), self.piece.skip);
        let places = self.own_places().slice(self.done as u32, self.piece.own as u32);
        match (self.phase, &self.op) {
            (Phase::Clear, _) => region.fill_zero(own, self.piece.own),
            (_, Op::OrWrite { .. }) => region.or_in(own, io.arena(), &places),
            _ => region.copy_in(own, io.arena(), &places),
        }
    }

    /// Continues with the next piece, part or phase, or ends.
    fn advance(&mut self, store: &FileStore) -> Step {
        self.done += self.piece.own;
        if self.done < self.range.len {
            if self.range.offset + self.done >= self.locked_to {
                return Step::Relock;
            }
            self.piece = self.plan(store);
            return Step::Issue;
        }
        self.phase = match (self.phase, &self.op) {
            (Phase::Compare, Op::CompareAndWrite { .. }) => Phase::Put,
            (Phase::Clear, Op::Zero { durable: true, .. }) => Phase::Sync,
            (Phase::Put, _) if self.is_durable() && store.syncs_apart() => Phase::Sync,
            _ => return Step::Done(DONE),
        };
        self.done = 0;
        self.piece = self.plan(store);
        if self.phase == Phase::Sync {
            self.syncing = Syncing::Wants(store.syncs.ticket());
            return Step::Sync;
        }
        Step::Issue
    }

    fn plan(&self, store: &FileStore) -> Piece {
        let at = self.range.offset + self.done;
        let left = self.locked_to - at.min(self.locked_to);
        let straight = |how, len| Piece { how, at, len, skip: 0, own: len, moved: 0 };
        match self.phase {
            Phase::Sync => straight(How::Sync, 0),
            Phase::Read | Phase::Put if self.is_straight(store.shape.grain) => straight(How::Straight, left),
            Phase::Read | Phase::Put | Phase::Compare => self.through_buffer(store.shape.grain, at, left),
            Phase::Clear => self.plan_clear(store, at, left),
        }
    }

    /// The kernel clears whole units where it can; the edges are written.
    fn plan_clear(&self, store: &FileStore, at: u64, left: u64) -> Piece {
        let straight = |how, len| Piece { how, at, len, skip: 0, own: len, moved: 0 };
        let mut left = left;
        if let Some(how) = self.clears_by(store) {
            let unit = u64::from(store.shape.hole_bytes);
            if at.is_multiple_of(unit) && left >= unit {
                return straight(How::Clear(how), left - left % unit);
            }
            left = left.min(unit - at % unit);
        }
        let grain = u64::from(store.shape.grain.offset);
        if at.is_multiple_of(grain) && left >= grain {
            return straight(How::Zeros, (left - left % grain).min(u64::from(zeros::ZEROS_BYTES)));
        }
        self.through_buffer(store.shape.grain, at, left.min(grain - at % grain))
    }

    fn clears_by(&self, store: &FileStore) -> Option<Allocate> {
        let unmap = matches!(self.op, Op::Discard { .. } | Op::Zero { unmap: true, .. });
        if unmap && store.can_punch.load(Ordering::Relaxed) {
            return Some(Allocate::PunchHole);
        }
        store.can_zero.load(Ordering::Relaxed).then_some(Allocate::Zero)
    }

    /// A piece of at most one buffer, widened to the alignment.
    fn through_buffer(&self, grain: Grain, at: u64, left: u64) -> Piece {
        let grain = u64::from(grain.offset);
        let low = at - at % grain;
        let high = (at + left).next_multiple_of(grain).min(low + u64::from(BUFFER_BYTES));
        let own = left.min(high - at);
        let overwritten = low == at && high == at + own && !matches!(self.op, Op::OrWrite { .. });
        let how = match self.phase {
            Phase::Put if overwritten => How::Store,
            _ => How::Load,
        };
        Piece { how, at: low, len: high - low, skip: (at - low) as u32, own, moved: 0 }
    }

    /// Whether the operation's places may be passed to the kernel as they are.
    fn is_straight(&self, grain: Grain) -> bool {
        let whole = |bytes: u64, grain: u32| bytes.is_multiple_of(u64::from(grain));
        !matches!(self.op, Op::OrWrite { .. })
            && whole(self.range.offset, grain.offset)
            && self
                .own_places()
                .iter()
                .all(|span| whole(span.offset, grain.memory) && whole(span.len.into(), grain.offset))
    }

    /// The places of the operation that the current phase uses.
    fn own_places(&self) -> Places {
        match self.op {
            Op::Read { into, .. } => into,
            Op::Write { from, .. } | Op::OrWrite { from, .. } => from,
            Op::Compare { with, .. } => with,
            Op::CompareAndWrite { compare, write, .. } => match self.phase {
                Phase::Compare => compare,
                _ => write,
            },
            Op::Flush | Op::Zero { .. } | Op::Discard { .. } | Op::Extent { .. } => Places::EMPTY,
        }
    }

    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("an operation begins with the buffer that it wants")
    }

    /// The rest of the piece's range in the buffer.
    fn buffered(&self, store: &FileStore) -> Places {
        Places::one(store.pool.span(self.buffer(), self.piece.moved, self.piece.len as u32))
    }

    fn zeros(&self, store: &FileStore) -> Places {
        store.zeros.span(self.piece.len as u32 - self.piece.moved).map(Places::one).unwrap_or_default()
    }

    fn is_durable(&self) -> bool {
        match self.op {
            Op::Write { durable, .. } | Op::CompareAndWrite { durable, .. } | Op::OrWrite { durable, .. } => {
                durable
            }
            Op::Read { .. }
            | Op::Flush
            | Op::Zero { .. }
            | Op::Discard { .. }
            | Op::Compare { .. }
            | Op::Extent { .. } => false,
        }
    }

    /// Whether what it wrote may not be durable when it succeeds.
    pub(super) fn leaves_dirty(&self, store: &FileStore) -> bool {
        let is_durable = self.is_durable() || matches!(self.op, Op::Zero { durable: true, .. });
        !store.shape.in_memory && writes(&self.op) && !is_durable
    }

    /// Whether its writes are durable when they end.
    fn syncs_itself(&self, store: &FileStore) -> bool {
        self.is_durable() && !store.syncs_apart()
    }

    fn is_reading(&self) -> bool {
        match self.piece.how {
            How::Load => true,
            How::Straight => self.phase == Phase::Read,
            How::Zeros | How::Store | How::Clear(_) | How::Sync => false,
        }
    }

    /// The failure of this piece, `moved` bytes into its range.
    fn failed(&self, moved: u64) -> StoreError {
        if self.is_reading() {
            let own = self.piece.at + u64::from(self.piece.skip);
            StoreError::ReadFailed { at: (self.piece.at + moved).max(own) }
        } else {
            StoreError::WriteFailed
        }
    }

    /// Whether this error of a write may come from the sync in it, for data of others. In memory nothing is
    /// written back.
    fn may_have_lost(&self, store: &FileStore, os: Os, error: StoreError) -> bool {
        let is_of_the_medium = error == StoreError::WriteFailed
            || matches!(os, Os::NOSPC | Os::DQUOT | Os::STALE | Os::NXIO | Os::NODEV | Os::NOMEDIUM);
        self.syncs_itself(store) && !self.is_reading() && !store.shape.in_memory && is_of_the_medium
    }

    fn fault(&mut self, store: &FileStore, errno: Errno) -> Step {
        let os = Os::from_raw_os_error(errno.0);
        if matches!(os, Os::INTR | Os::AGAIN) && self.retries < RETRIES_MAX {
            self.retries += 1;
            return Step::Issue;
        }
        if let How::Clear(how) = self.piece.how
            && matches!(os, Os::OPNOTSUPP | Os::NOSYS | Os::REMOTEIO)
        {
            let can = match how {
                Allocate::PunchHole => &store.can_punch,
                Allocate::Zero => &store.can_zero,
            };
            can.store(false, Ordering::Relaxed);
            if matches!(self.op, Op::Discard { .. }) {
                // It is a hint (SBC-3 section 4.7.3.3): writing zeros would take time and space.
                return Step::Done(Ok(Found::Nothing));
            }
            self.piece = self.plan(store);
            return Step::Issue;
        }
        let error = match os {
            Os::NOSPC | Os::DQUOT | Os::FBIG => StoreError::NoSpace,
            Os::ROFS | Os::PERM | Os::ACCESS => StoreError::ReadOnly,
            Os::NOMEM | Os::NOBUFS | Os::AGAIN | Os::INTR => StoreError::Busy,
            Os::CANCELED => StoreError::Cancelled,
            Os::NXIO | Os::NODEV | Os::NOMEDIUM | Os::STALE => StoreError::Unavailable,
            _ => self.failed(self.piece.moved.into()),
        };
        if self.syncs() || self.may_have_lost(store, os, error) {
            store.report_loss(os);
        }
        if self.syncs() {
            store.syncs.end();
            self.syncing = Syncing::No;
        }
        store.report(os);
        Step::Done(Err(error))
    }
}

impl FileStore {
    /// Logs a failure. A dying disk fails every request: only the 1st, 2nd, 4th, 8th... failure is logged.
    fn report(&self, os: Os) {
        let count = self.faults.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_power_of_two() {
            tracing::error!(path = %self.path.display(), failures = count, "store failed: {os}");
        }
    }

    /// Counts a loss, and logs it in the same way: the first after a successful sync is logged.
    fn report_loss(&self, os: Os) {
        let losses = self.syncs.lost();
        if (self.losses_in_a_row.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            tracing::error!(
                path = %self.path.display(), losses,
                "writes that were not yet durable may be lost, and the next flush of each initiator fails: {os}"
            );
        }
    }
}
