//! Each block is a register: an acknowledged write is read, an unanswered one may be there or not, and
//! nothing takes effect after its end was reported. A write is a number, encoded by all of its bytes. It
//! takes effect at some point between its beginning and its end, if it was acknowledged; otherwise at some
//! point then, or never. So a read may find it, unless it ended before another write began that surely took
//! effect before the read.

use crate::disk::Loss;
use proto::services::Attribute;
use proto::time::Time;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u32 = 512;
/// Bytes that identify their write: its number, and the block.
pub(crate) const STAMP_BYTES: usize = 16;
const NOBODY: usize = usize::MAX;
/// Marks numbers of writes whose blocks all have the same bytes.
const SAME: u64 = 1 << 63;
/// Marks numbers of writes that may take effect repeatedly until they end.
const REPEATED: u64 = 1 << 62;
const NEVER: Time = Time(u64::MAX);

/// Identifies a write; 0: the zeros that were there at the beginning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct WriteId(pub(crate) u64);

impl WriteId {
    /// Whether it may take effect repeatedly.
    fn is_repeated(self) -> bool {
        self.0 & REPEATED != 0
    }
}

/// A range of blocks of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub(crate) unit: usize,
    pub(crate) first: u32,
    pub(crate) blocks: u32,
}

impl Range {
    pub(crate) fn bytes(self) -> u32 {
        self.blocks * BLOCK_BYTES
    }

    /// Whether they have blocks in common.
    pub(crate) fn overlaps(self, other: Range) -> bool {
        let (one, two) = (self.indices(), other.indices());
        self.unit == other.unit && one.start < two.end && two.start < one.end
    }

    fn indices(self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.blocks) as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: WriteId,
    /// What reads find of it: itself, or zeros.
    shows: WriteId,
    /// Its initiator.
    by: usize,
    start: Time,
    /// It does not take effect after this.
    end: Time,
    /// Reads that begin after this do not find it: another one has replaced it.
    until: Time,
    place: Attribute,
    /// It surely took effect.
    is_sure: bool,
    /// By when, if so.
    sure_by: Time,
    /// If it took effect, a power failure does not undo it.
    is_durable: bool,
    /// A power failure has left this or another one.
    is_left: bool,
    /// Its bytes will not become durable: a flush implies nothing about it.
    is_lost: bool,
    /// It ended when its initiator was preempted; anything still in flight then is refused while reservations
    /// refuse it.
    is_fenced: bool,
}

impl Candidate {
    /// One that surely took effect by this time.
    fn settled(id: WriteId, at: Time) -> Candidate {
        let one = Candidate::new(id, NOBODY, at);
        Candidate { end: at, is_sure: true, sure_by: at, is_durable: true, ..one }
    }

    /// It has taken effect by now.
    fn has_landed(&mut self, now: Time) {
        (self.is_sure, self.sure_by) = (true, self.sure_by.min(self.end).min(now));
    }

    /// Whether a read begun at `began` may find it, given that a write begun at `surely` took effect before.
    fn is_possible(&self, began: Time, surely: Time) -> bool {
        self.end >= surely && self.until >= began
    }

    /// Another one has taken effect by now, after this one or instead of it.
    fn is_replaced(&mut self, now: Time) {
        self.until = self.until.min(now);
    }

    /// Whether it may still take effect, whatever happens to the target.
    fn goes_on(&self) -> bool {
        self.id.is_repeated() && self.end == NEVER
    }

    /// One that may take effect from now on.
    fn new(id: WriteId, by: usize, start: Time) -> Candidate {
        let (end, until, sure_by) = (NEVER, NEVER, NEVER);
        let (shows, place) = (id, Attribute::Simple);
        let (is_sure, is_durable, is_left, is_lost, is_fenced) = (false, false, false, false, false);
        Candidate {
            id,
            shows,
            by,
            start,
            end,
            until,
            place,
            is_sure,
            sure_by,
            is_durable,
            is_left,
            is_lost,
            is_fenced,
        }
    }
}

/// How a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// With GOOD status.
    Done,
    /// The same, and durably.
    Durable,
    /// It took effect or did not.
    Unsure,
    /// It was not executed.
    Refused,
}

/// The blocks of all units.
#[derive(Debug)]
pub(crate) struct Registers {
    units: Vec<Vec<Vec<Candidate>>>,
    next: u64,
    /// Total blocks of all writes begun.
    pub(crate) begun_blocks: u64,
    /// What is not durable may be lost.
    may_lose: bool,
    /// An intermediary may repeat any write until it has ended.
    may_repeat: bool,
    crashed: Time,
    /// Start times of reads that have not ended.
    reads: Vec<Time>,
    /// For each initiator and unit, when the earliest lost write was acknowledged that a flush must report to
    /// it.
    owed: Vec<Vec<Option<Time>>>,
    /// Initiators that have had a session since the target was started.
    known: Vec<bool>,
    /// For each unit, block and write replaced by COMPARE AND WRITE, when that began.
    swapped: HashMap<(usize, u32, u64), Time>,
    /// When a disk last lost a write that may have been replaced.
    gone: Time,
    /// Units with fenced writes.
    has_fenced: Vec<bool>,
    /// Outstanding ORWRITEs of zeros.
    rewrites: Vec<(Range, WriteId)>,
    /// Since when each write that has not ended is known to have reached its target.
    arrived: HashMap<u64, Time>,
}

impl Registers {
    pub(crate) fn new(initiators: usize, units: usize, blocks: u32, may_lose: bool) -> Registers {
        let zeros = Candidate::settled(WriteId(0), Time(0));
        let (owed, known) = (vec![vec![None; units]; initiators], vec![false; initiators]);
        let has_fenced = vec![false; units];
        let units = vec![vec![vec![zeros]; blocks as usize]; units];
        Registers {
            units,
            next: 0,
            begun_blocks: 0,
            may_lose,
            may_repeat: false,
            crashed: Time(0),
            reads: Vec::new(),
            owed,
            known,
            swapped: HashMap::new(),
            gone: Time(0),
            has_fenced,
            rewrites: Vec::new(),
            arrived: HashMap::new(),
        }
    }

    /// The same when the target may repeat any write to another target until it has ended.
    pub(crate) fn of_chain(self) -> Registers {
        Registers { may_repeat: true, ..self }
    }

    fn number(&mut self, kind: u64, range: Range) -> WriteId {
        self.next += 1;
        self.begun_blocks += u64::from(range.blocks);
        WriteId(self.next | kind | if self.may_repeat { REPEATED } else { 0 })
    }

    /// An initiator has a session requested at `asked`: losses from now on must be reported to it, unless the
    /// session is with a target that has been killed meanwhile.
    pub(crate) fn knows(&mut self, initiator: usize, asked: Time) {
        self.known[initiator] |= asked >= self.crashed;
    }

    /// An initiator's write begins; returns its bytes.
    pub(crate) fn begin_write(&mut self, now: Time, by: usize, range: Range) -> (WriteId, Vec<u8>) {
        self.begin_stamped(now, by, range, 0)
    }

    /// The same for one that may take effect repeatedly until it ends.
    pub(crate) fn begin_repeated(&mut self, now: Time, by: usize, range: Range) -> (WriteId, Vec<u8>) {
        self.begin_stamped(now, by, range, REPEATED)
    }

    fn begin_stamped(&mut self, now: Time, by: usize, range: Range, kind: u64) -> (WriteId, Vec<u8>) {
        let id = self.begin(now, by, range, kind);
        let mut bytes = vec![0; range.bytes() as usize];
        fill(id, range, &mut bytes);
        (id, bytes)
    }

    /// An initiator's write with this task attribute begins; [`fill`] makes its bytes.
    pub(crate) fn begin_placed(&mut self, now: Time, by: usize, range: Range, place: Attribute) -> WriteId {
        let id = self.begin(now, by, range, 0);
        let begun = self.units[range.unit][range.indices()].iter_mut();
        begun.filter_map(|candidates| candidates.last_mut()).for_each(|one| one.place = place);
        id
    }

    /// An initiator's WRITE SAME begins; returns the bytes of each block.
    pub(crate) fn begin_same(&mut self, now: Time, by: usize, range: Range) -> (WriteId, Vec<u8>) {
        let id = self.begin(now, by, range, SAME);
        (id, stamp(id, range.unit, 0).repeat(BLOCK_BYTES as usize / STAMP_BYTES))
    }

    fn begin(&mut self, now: Time, by: usize, range: Range, kind: u64) -> WriteId {
        let id = self.number(kind, range);
        self.add(now, range, Candidate::new(id, by, now));
        id
    }

    /// Adds a candidate to each of these blocks; if there is no room, first drops those that no read can find
    /// any more.
    fn add(&mut self, now: Time, range: Range, one: Candidate) {
        let mut since = None;
        for candidates in &mut self.units[range.unit][range.indices()] {
            if candidates.len() == candidates.capacity() {
                let since = *since.get_or_insert_with(|| self.reads.iter().copied().min().unwrap_or(now));
                prune(candidates, since, self.may_lose);
            }
            candidates.push(one);
        }
    }

    /// Retries a write that has ended without an answer, if it has.
    pub(crate) fn begin_retry(&mut self, now: Time, by: usize, range: Range, id: WriteId) {
        let candidates = &self.units[range.unit][range.first as usize];
        if !candidates.iter().any(|one| one.id == id && one.end == NEVER) {
            self.add(now, range, Candidate::new(id, by, now));
        }
    }

    /// An initiator's UNMAP begins, after which zeros are read.
    pub(crate) fn begin_zeros(&mut self, now: Time, by: usize, range: Range) -> WriteId {
        let id = self.number(0, range);
        self.add(now, range, Candidate { shows: WriteId(0), ..Candidate::new(id, by, now) });
        id
    }

    /// An initiator's ORWRITE of zeros begins, which writes back what it has read.
    pub(crate) fn begin_rewrite(&mut self, range: Range) -> WriteId {
        let id = self.number(0, range);
        self.rewrites.push((range, id));
        id
    }

    /// A write that a block may hold, with its bytes: the latest that surely took effect.
    pub(crate) fn guess(&self, range: Range) -> (WriteId, Vec<u8>) {
        let block = range.first as usize;
        let sure = self.units[range.unit][block].iter().filter(|one| one.is_sure);
        let id = sure.max_by_key(|one| one.start).map_or(WriteId(0), |one| one.shows);
        (id, stamp(id, range.unit, block).repeat(BLOCK_BYTES as usize / STAMP_BYTES))
    }

    /// COMPARE AND WRITE of a block, which also began as a read, has found what it compared with, and
    /// written.
    ///
    /// # Errors
    /// When it cannot have found that, or another one has already replaced it.
    pub(crate) fn swapped(
        &mut self,
        now: Time,
        began: Time,
        range: Range,
        compared: WriteId,
    ) -> Result<(), String> {
        let bytes = stamp(compared, range.unit, range.first as usize);
        self.found(now, began, range, &bytes.repeat(BLOCK_BYTES as usize / STAMP_BYTES))?;
        // Zeros recur, and so may writes that have not ended.
        let candidates = &self.units[range.unit][range.first as usize];
        let may_repeat_it = candidates.iter().any(|one| one.id == compared && one.end >= began);
        if compared == WriteId(0) || compared.is_repeated() && may_repeat_it {
            return Ok(());
        }
        let before = self.swapped.insert((range.unit, range.first, compared.0), began);
        // So may lost ones, whichever of the two ended first.
        if before.is_none_or(|before| before.min(began) <= self.gone) {
            return Ok(());
        }
        Err(format!("write {} of {range:?} was compared and replaced twice", compared.0))
    }

    /// A write has ended, so it no longer takes effect.
    ///
    /// # Errors
    /// When it was refused, but has been read.
    pub(crate) fn end_write(
        &mut self,
        now: Time,
        range: Range,
        id: WriteId,
        fate: Fate,
    ) -> Result<(), String> {
        self.arrived.remove(&id.0);
        let is_rewrite = self.rewrites.iter().position(|(_, one)| *one == id);
        is_rewrite.map(|at| self.rewrites.swap_remove(at));
        // It need not have undone a loss.
        let fate = if is_rewrite.is_some() && fate != Fate::Refused { Fate::Unsure } else { fate };
        for candidates in &mut self.units[range.unit][range.indices()] {
            let Some(at) = candidates.iter().rposition(|one| one.id == id) else { continue };
            let one = &mut candidates[at];
            if fate == Fate::Refused {
                if one.is_sure {
                    return Err(format!("write {} of unit {} was refused, and was read", id.0, range.unit));
                }
                candidates.retain(|one| one.id != id);
                continue;
            }
            one.end = one.end.min(now);
            one.is_fenced = false;
            one.is_durable |= fate == Fate::Durable;
            if matches!(fate, Fate::Done | Fate::Durable) {
                // What was answered before a power failure, and reaches its initiator after it, may be lost.
                if !one.is_left {
                    one.has_landed(now);
                }
                replace_earlier_ordered(candidates, at, now);
            }
        }
        Ok(())
    }

    /// A write was answered with success, but copies of it may take effect until it ends.
    pub(crate) fn has_landed(&mut self, now: Time, range: Range, id: WriteId, is_durable: bool) {
        for candidates in &mut self.units[range.unit][range.indices()] {
            if let Some(one) = candidates.iter_mut().rfind(|one| one.id == id) {
                one.has_landed(now);
                one.is_durable |= is_durable;
            }
        }
    }

    /// An initiator was preempted: all writes to a unit that it had begun by then have ended, as long as
    /// reservations keep it from writing. Returns how many blocks that concerns.
    pub(crate) fn fence(&mut self, now: Time, by: usize, unit: usize, until: Time) -> usize {
        let mut count = 0;
        for one in self.units[unit].iter_mut().flatten() {
            if one.by == by && one.start < until && one.end == NEVER {
                // What had arrived was in the task set: it never takes effect, whoever is let in.
                let was_there = self.arrived.get(&one.id.0).is_some_and(|arrived| *arrived < until);
                (one.end, one.is_fenced) = (now, !one.is_sure && !was_there);
                self.has_fenced[unit] |= one.is_fenced;
                count += 1;
            }
        }
        count
    }

    /// Reservations of a unit may have changed. Only what is in the task set is aborted (SPC-4 section
    /// 5.13.11.2.7): anything in flight from an initiator that may write again takes effect when it arrives.
    pub(crate) fn let_in(&mut self, unit: usize, may_write: impl Fn(usize) -> bool) {
        if !self.has_fenced[unit] {
            return;
        }
        let is_let_in = |one: &&mut Candidate| one.is_fenced && may_write(one.by);
        for one in self.units[unit].iter_mut().flatten().filter(is_let_in) {
            one.is_fenced = false;
            if !one.is_sure {
                (one.end, one.until) = (NEVER, NEVER);
            }
        }
        self.has_fenced[unit] = self.units[unit].iter().flatten().any(|one| one.is_fenced);
    }

    /// A write has reached its target.
    pub(crate) fn arrives(&mut self, now: Time, id: WriteId) {
        self.arrived.entry(id.0).or_insert(now);
    }

    /// A reset of a unit, or a function that ends commands of these, begun at `began`, is complete: whatever had reached its target by
    /// then has ended (SAM-5 sections 6.3.3, 7.3 and 7.5).
    pub(crate) fn clear(&mut self, now: Time, began: Time, unit: usize, is_of: impl Fn(usize) -> bool) {
        let arrived = &self.arrived;
        let is_ended = |one: &&mut Candidate| {
            let is_open = one.end > now || one.is_fenced;
            is_open && is_of(one.by) && arrived.get(&one.id.0).is_some_and(|arrived| *arrived < began)
        };
        for one in self.units[unit].iter_mut().flatten().filter(is_ended) {
            (one.end, one.is_fenced) = (one.end.min(now), false);
        }
    }

    /// What these have begun before these times takes no effect any more in these blocks.
    pub(crate) fn cut_off(
        &mut self,
        now: Time,
        blocks: impl Fn(usize) -> bool,
        is_cut: impl Fn(usize, Time) -> bool,
    ) {
        for (block, candidates) in self.units.iter_mut().flat_map(|unit| unit.iter_mut().enumerate()) {
            if blocks(block) {
                let open = candidates.iter_mut().filter(|one| one.end == NEVER && is_cut(one.by, one.start));
                open.for_each(|one| one.end = now);
            }
        }
    }

    /// An initiator's flush of a unit, begun at `began`, has ended with GOOD status: what was acknowledged
    /// before that is durable.
    ///
    /// # Errors
    /// When some of it is lost without having been reported to the initiator.
    pub(crate) fn flushed(&mut self, initiator: usize, unit: usize, began: Time) -> Result<(), String> {
        if !self.may_lose {
            return Ok(());
        }
        if let Some(since) = self.owed[initiator][unit]
            && since < began
        {
            let at = (since.0, began.0);
            return Err(format!(
                "a write to unit {unit} ended at {} ns and is lost, a flush of initiator {initiator} from {} ns is GOOD",
                at.0, at.1
            ));
        }
        let all = self.units[unit].iter_mut().flatten();
        all.filter(|one| one.is_sure && !one.is_lost && one.end < began)
            .for_each(|one| one.is_durable = true);
        Ok(())
    }

    /// An initiator's flush has failed: it knows that everything not durable may be lost.
    pub(crate) fn flush_failed(&mut self, initiator: usize, unit: usize) {
        self.owed[initiator][unit] = None;
    }

    /// Losses of a unit up to now need not be reported any more.
    pub(crate) fn forget_losses(&mut self, unit: usize) {
        self.owed.iter_mut().for_each(|units| units[unit] = None);
    }

    /// A disk loses a block's content.
    ///
    /// # Errors
    /// When it was durable.
    pub(crate) fn lose(&mut self, now: Time, loss: &Loss) -> Result<(), String> {
        let Loss { unit, block, ref lost, ref left, is_gone } = *loss;
        let (lost, left) = (read_stamp(lost, unit, block), read_stamp(left, unit, block));
        let (Some(lost), Some(left)) = (lost, left) else { return Ok(()) };
        if lost == left {
            return Ok(());
        }
        let candidates = &mut self.units[unit][block];
        // A write begun later was to replace what is left. If that is not remembered, it did so long ago.
        let left_ends = candidates.iter().filter(|one| one.shows == left).map(|one| one.end);
        let before = left_ends.max().unwrap_or(Time(0));
        for one in candidates.iter_mut().filter(|one| one.shows != left) {
            if one.start > before && one.is_durable {
                return Err(format!(
                    "write {} of unit {unit} block {block} was durable, and is lost",
                    one.id.0
                ));
            }
            if one.start > before && one.is_sure && !one.is_lost {
                let owed = self.owed.iter_mut().zip(&self.known).filter(|(_, known)| **known);
                for owed in owed.map(|(units, _)| &mut units[unit]) {
                    *owed = Some(owed.map_or(one.end, |before| before.min(one.end)));
                }
            }
            one.is_lost = true;
            if is_gone && one.shows == lost && one.end != NEVER {
                one.end = now;
            }
        }
        if is_gone {
            self.gone = now;
            // Reads that begin after this find what is left, unless an outstanding write takes effect again.
            let at = now.after(Duration::from_nanos(1));
            candidates.retain(|one| one.id != left || one.end == NEVER);
            candidates.push(Candidate::settled(left, at));
            // One that has read the lost content writes it back.
            let here = |range: &Range| range.unit == unit && range.indices().contains(&block);
            for (_, id) in self.rewrites.iter().filter(|(range, _)| here(range)) {
                candidates.push(Candidate { shows: lost, ..Candidate::new(*id, NOBODY, at) });
            }
        }
        Ok(())
    }

    /// The target is killed; with `loses`, by a power failure, which may undo everything not durable. In a
    /// chain, operations in progress may be executed later: after the restart it does not know what it had
    /// sent.
    pub(crate) fn crash(&mut self, now: Time, loses: bool) {
        self.crashed = now;
        self.known.fill(false);
        self.owed.iter_mut().for_each(|units| units.fill(None));
        self.has_fenced.fill(false);
        if loses {
            self.gone = now;
        }
        for candidates in self.units.iter_mut().flatten() {
            candidates.iter_mut().for_each(|one| one.is_fenced = false);
            let open = candidates.iter().filter(|one| one.goes_on());
            let again: Vec<Candidate> = open
                .map(|one| Candidate { shows: one.shows, ..Candidate::new(one.id, one.by, now) })
                .collect();
            if loses {
                let latest = candidates.iter().filter(|one| one.is_durable).map(|one| one.start).max();
                candidates.retain(|one| Some(one.end) >= latest);
                for one in candidates.iter_mut() {
                    (one.start, one.end, one.sure_by, one.until) = (now, now, now, NEVER);
                    (one.is_sure, one.is_durable, one.is_left) = (false, true, true);
                }
                candidates.extend(again);
            } else {
                let ends = candidates.iter_mut().filter(|one| !one.goes_on());
                ends.for_each(|one| one.end = one.end.min(now).max(one.start));
            }
        }
    }

    /// A read begins.
    pub(crate) fn begin_read(&mut self, now: Time) {
        self.reads.push(now);
    }

    /// A read begun at `began` has ended, without data to check.
    pub(crate) fn end_read(&mut self, began: Time) {
        if let Some(at) = self.reads.iter().position(|read| *read == began) {
            self.reads.swap_remove(at);
        }
    }

    /// Checks what a read found that has ended.
    ///
    /// # Errors
    /// When it could not have found that, as text.
    pub(crate) fn found(&mut self, now: Time, began: Time, range: Range, bytes: &[u8]) -> Result<(), String> {
        self.end_read(began);
        self.finds(now, began, range, bytes)
    }

    /// Checks what a part of a read found, which [`Registers::end_read`] has ended.
    ///
    /// # Errors
    /// When it could not have found that, as text.
    pub(crate) fn finds(&mut self, now: Time, began: Time, range: Range, bytes: &[u8]) -> Result<(), String> {
        if began <= self.crashed {
            // What it found may be undone.
            return Ok(());
        }
        for (block, bytes) in range.indices().zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let candidates = &mut self.units[range.unit][block];
            let surely = latest_before(candidates, began);
            let of_all =
                if is_repeated(bytes) { read_stamp(&bytes[..STAMP_BYTES], range.unit, block) } else { None };
            if of_all.is_some_and(|id| has_shown(candidates, id, [surely, began, now])) {
                continue;
            }
            let mut seen: Option<WriteId> = None;
            let mut is_whole = true;
            // The stamps of all writes that may be found, once a piece does not match a single one.
            let mut stamps = None;
            for found in bytes.chunks(STAMP_BYTES) {
                let id = read_stamp(found, range.unit, block);
                if id.is_some() && seen == id {
                    continue;
                }
                is_whole &= seen.is_none();
                seen = id;
                if id.is_some_and(|id| {
                    candidates.iter().any(|one| one.shows == id && one.is_possible(began, surely))
                }) {
                    continue;
                }
                is_whole = false;
                let stamps = stamps.get_or_insert_with(|| {
                    let legal = candidates.iter().filter(|one| one.is_possible(began, surely));
                    legal.map(|one| stamp(one.shows, range.unit, block)).collect::<Vec<_>>()
                });
                if !is_torn(stamps, found) {
                    let what = format!("unit {} block {block}: {} found", range.unit, when(began, now));
                    return Err(match id {
                        Some(id) => format!("{what} write {}, {}", id.0, listed(candidates)),
                        None => format!("{what} what nobody wrote, {found:02x?}, {}", listed(candidates)),
                    });
                }
            }
            if let (true, Some(id)) = (is_whole, seen) {
                has_shown(candidates, id, [surely, began, now]);
            }
        }
        Ok(())
    }

    /// The same for a command that did not read, but would have found zeros.
    ///
    /// # Errors
    /// When it could not have found that, as text.
    pub(crate) fn finds_zeros(&mut self, now: Time, began: Time, range: Range) -> Result<(), String> {
        if began <= self.crashed {
            return Ok(());
        }
        for block in range.indices() {
            let candidates = &mut self.units[range.unit][block];
            let surely = latest_before(candidates, began);
            if !has_shown(candidates, WriteId(0), [surely, began, now]) {
                let (when, listed) = (when(began, now), listed(candidates));
                return Err(format!(
                    "unit {} block {block}: {when} found it not allocated, {listed}",
                    range.unit
                ));
            }
        }
        Ok(())
    }
}

/// A read has found this, and nothing else; false: it cannot have been there.
fn has_shown(candidates: &mut Vec<Candidate>, id: WriteId, [surely, began, now]: [Time; 3]) -> bool {
    let (mut shown, mut is_alone) = (None, true);
    for (at, one) in candidates.iter_mut().enumerate() {
        if one.shows != id {
            if one.end < began {
                one.is_replaced(now);
            }
        } else if one.is_possible(began, surely) {
            is_alone = shown.is_none();
            shown.get_or_insert(at);
        }
    }
    let Some(at) = shown else { return false };
    // All of it has taken effect by now, and only once; if zeros may be from several writes, nobody knows
    // which.
    if is_alone {
        let one = &mut candidates[at];
        if !one.id.is_repeated() {
            one.end = one.end.min(now);
        }
        one.has_landed(now);
        if std::mem::take(&mut one.is_left) {
            candidates.retain(|one| !one.is_left);
        }
    }
    true
}

/// A write was executed: so was what its initiator had ordered before it, at an earlier time (SAM-5 section
/// 8.9.3).
fn replace_earlier_ordered(candidates: &mut [Candidate], at: usize, now: Time) {
    let (by, place) = (candidates[at].by, candidates[at].place);
    let is_ordered = |one: &Candidate| one.by == by && one.place == Attribute::Ordered && one.is_sure;
    let ordered = candidates[..=at].iter().rposition(is_ordered);
    if let (Some(ordered), false) = (ordered, place == Attribute::HeadOfQueue) {
        let before = candidates[..at].iter_mut().take(ordered + 1).filter(|one| one.by == by);
        before.for_each(|one| one.is_replaced(now));
    }
}

/// Whether it is a single stamp repeated, as it nearly always is.
fn is_repeated(bytes: &[u8]) -> bool {
    let (stamps, rest) = bytes.as_chunks::<STAMP_BYTES>();
    let Some((first, others)) = stamps.split_first() else { return false };
    let first = u128::from_ne_bytes(*first);
    rest.is_empty() && others.iter().fold(0, |sum, one| sum | (u128::from_ne_bytes(*one) ^ first)) == 0
}

/// Drops those that no read begun at `since` or later can find.
fn prune(candidates: &mut Vec<Candidate>, since: Time, may_lose: bool) {
    let stays = |one: &&Candidate| one.is_sure && (one.is_durable || !may_lose) && one.sure_by < since;
    let latest = candidates.iter().filter(stays).map(|one| one.start).max();
    if let Some(latest) = latest {
        candidates.retain(|one| one.end >= latest || one.is_fenced);
    }
}

/// When the latest write began that surely took effect before a read: writes that had ended by then are not
/// found.
fn latest_before(candidates: &[Candidate], read: Time) -> Time {
    let mut latest = Time(0);
    // They are ordered by their beginnings, except what a disk has left at the same time.
    for one in candidates.iter().rev() {
        if one.start < latest {
            break;
        }
        if one.is_sure && one.sure_by < read {
            latest = one.start;
        }
    }
    latest
}

/// Whether these bytes are a mixture of several writes that may be found: a READ from memory is sent piece by
/// piece, while others write.
fn is_torn(stamps: &[[u8; STAMP_BYTES]], found: &[u8]) -> bool {
    let is_of_one = |(at, byte): (usize, &u8)| stamps.iter().any(|stamp| stamp[at] == *byte);
    stamps.len() > 1 && found.iter().enumerate().all(is_of_one)
}

/// The bytes of a write, starting with the first block of the range.
pub(crate) fn fill(id: WriteId, range: Range, bytes: &mut [u8]) {
    for (block, bytes) in range.indices().zip(bytes.as_chunks_mut::<{ BLOCK_BYTES as usize }>().0) {
        bytes.as_chunks_mut().0.fill(stamp(id, range.unit, block));
    }
}

/// Any byte of it is unlikely to equal that of another stamp.
fn stamp(id: WriteId, unit: usize, block: usize) -> [u8; STAMP_BYTES] {
    if id.0 == 0 {
        return [0; STAMP_BYTES];
    }
    let block = if id.0 & SAME == 0 { block as u64 } else { 0 };
    let place = (unit as u64) << 32 | block;
    let sum = (id.0 ^ place.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = (sum ^ sum >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&id.0.to_le_bytes());
    stamp[8..].copy_from_slice(&(sum ^ sum >> 32).to_le_bytes());
    stamp
}

fn read_stamp(found: &[u8], unit: usize, block: usize) -> Option<WriteId> {
    let id = WriteId(u64::from_le_bytes(*found.first_chunk()?));
    (found == stamp(id, unit, block)).then_some(id)
}

fn when(began: Time, now: Time) -> String {
    format!("a read from {} to {} ns", began.0, now.0)
}

fn listed(candidates: &[Candidate]) -> String {
    let mut text = String::from("which it could not find; it may find");
    for one in candidates {
        let end = if one.end == NEVER { "open".to_owned() } else { one.end.0.to_string() };
        let sure = if one.is_sure { "sure" } else { "unsure" };
        let _ = write!(text, "\n  write {} from {} to {end}, {sure}", one.id.0, one.start.0);
    }
    text
}

#[cfg(test)]
mod tests;
