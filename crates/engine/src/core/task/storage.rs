//! Steps that move data: to and from the unit's store, and to the initiator.

use super::{State, Task, to_wire};
use crate::core::Core;
use crate::core::budget::{Rest, bytes};
use crate::core::trace::is_traced;
use crate::slots::Key;
use proto::services::Down;
use reactor::io::Io;
use scsi::storage::StoreError;
use scsi::{Ending, Event, MediaOp, Step};
use store::lane::{Op, OpId, Outcome, Submitted};
use wire::Places;

impl<I: Io> Core<I> {
    pub(super) fn read_push(
        &mut self,
        key: Key,
        offset: u64,
        len: u32,
        at: u32,
        end: Option<Ending>,
    ) -> Option<Event> {
        if self.is_deactivated(key) {
            return Some(Event::Stored(Err(StoreError::Deactivated)));
        }
        let task = self.tasks.get_mut(key)?;
        let sendable = task.command.read_bytes.saturating_sub(at).min(len);
        let conn = task.connection.and_then(|connection| self.connections.get(connection))?;
        let unit = task.unit;
        if !conn.copies_reads()
            && let Some(from) = self.units[unit].lane.borrow(offset, len)
        {
            return self.push(key, Places::one(from.slice(0, sendable)), at, end);
        }
        if self.is_spent(unit) {
            self.defer(key, Rest::Step(Step::ReadPush { offset, len, at, end }));
            return None;
        }
        let task = self.tasks.get_mut(key)?;
        if task.buffer.len() < len
            && !self.take_or_wait(key, len, Some(Step::ReadPush { offset, len, at, end }))
        {
            return None;
        }
        let task = self.tasks.get_mut(key)?;
        task.state = State::Reading { len: sendable, at, end };
        let op = Op::Read { offset, into: task.buffer.slice(0, len) };
        match self.submit(unit, key, &op) {
            Submitted::Done(outcome) => self.read_done(key, outcome),
            Submitted::Later => None,
        }
    }

    fn is_deactivated(&self, key: Key) -> bool {
        self.tasks.get(key).is_some_and(|task| task.deactivated)
    }

    fn submit(&mut self, unit: u32, key: Key, op: &Op) -> Submitted {
        let lane = self.units.lane(unit);
        let cost = bytes(op) + lane.fresh_bytes(op);
        let submitted = lane.submit(&mut self.io, OpId(key.index), op);
        match submitted {
            Submitted::Done(_) => self.budget.charge(cost),
            Submitted::Later if lane.works_at_once() => {
                self.budget.has_begun();
                self.budget.charge(cost);
            }
            Submitted::Later => {}
        }
        submitted
    }

    fn read_done(&mut self, key: Key, outcome: Outcome) -> Option<Event> {
        let task = self.tasks.get(key)?;
        let State::Reading { len, at, end } = task.state else { return Some(Event::Stored(outcome)) };
        match outcome {
            Err(_) => Some(Event::Stored(outcome)),
            Ok(_) => {
                let from = task.buffer.slice(0, len);
                self.push(key, from, at, end)
            }
        }
    }

    pub(super) fn push(&mut self, key: Key, from: Places, at: u32, end: Option<Ending>) -> Option<Event> {
        let task = self.tasks.get(key)?;
        let from = from.slice(0, task.command.read_bytes.saturating_sub(at));
        if from.is_empty() {
            return match end {
                Some(ending) => {
                    self.end(key, ending);
                    None
                }
                None => Some(Event::Pushed),
            };
        }
        let moving = self.begin_moving(key, from.len())?;
        let task = self.tasks.get_mut(key)?;
        task.state = State::Pushing { last: end.is_some(), moving };
        let (connection, unit) = (task.connection, task.unit);
        let down = Down::Push { task: task.wire, at, from, end: end.map(to_wire) };
        if let Some(ending) = end
            && is_traced()
        {
            task.held = Some(Box::new(ending));
        }
        if let Some(sense) = end.filter(Ending::is_error).and_then(|ending| ending.sense) {
            self.count_sense(connection, unit, &sense);
        }
        self.down(connection, down);
        None
    }

    /// The bytes of the last `Push` have been sent.
    pub(in crate::core) fn pushed(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key) else { return };
        let State::Pushing { last, moving } = task.state else { return };
        self.has_moved(key);
        if let Some(task) = self.tasks.get_mut(key) {
            task.state = State::Running;
            task.pushed_bytes += u64::from(moving.bytes());
        }
        if last {
            self.count_task(key, None);
            if let Some(ending) = self.tasks.get_mut(key).and_then(|task| task.held.take()) {
                self.trace_task_end(key, &ending);
            }
            self.free_task(key);
        } else {
            self.run_task(key, Event::Pushed);
        }
    }

    pub(super) fn media(&mut self, key: Key, unit: Option<u32>, op: MediaOp) -> Option<Event> {
        if self.is_deactivated(key) {
            return Some(Event::Stored(Err(StoreError::Deactivated)));
        }
        let task = self.tasks.get_mut(key)?;
        let on = unit.unwrap_or(task.unit);
        if self.is_spent(on) {
            self.defer(key, Rest::Step(Step::Media { unit, op }));
            return None;
        }
        let task = self.tasks.get_mut(key)?;
        task.state = State::Storing;
        let buffer = &task.buffer;
        let op = match op {
            MediaOp::Read { offset, len, buffer: at } => Op::Read { offset, into: buffer.slice(at, len) },
            MediaOp::Write { offset, len, buffer: at, durable, atomic } => {
                Op::Write { offset, from: buffer.slice(at, len), durable, atomic }
            }
            MediaOp::Flush => Op::Flush,
            MediaOp::Zero { offset, len, unmap, durable } => Op::Zero { offset, len, unmap, durable },
            MediaOp::Discard { offset, len } => Op::Discard { offset, len },
            MediaOp::CompareAndWrite { offset, len, buffer: at, durable } => Op::CompareAndWrite {
                offset,
                compare: buffer.slice(at, len),
                write: buffer.slice(at + len, len),
                durable,
            },
            MediaOp::OrWrite { offset, len, buffer: at, durable } => {
                Op::OrWrite { offset, from: buffer.slice(at, len), durable }
            }
            MediaOp::Compare { offset, len, buffer: at } => {
                Op::Compare { offset, with: buffer.slice(at, len) }
            }
            MediaOp::Extent { offset } => Op::Extent { offset },
        };
        task.flushes = matches!(op, Op::Flush).then_some(on);
        match self.submit(on, key, &op) {
            Submitted::Done(outcome) => Some(Event::Stored(self.flushed(key, outcome))),
            Submitted::Later => None,
        }
    }

    /// What a flush reports to the nexus: once to each, that acknowledged writes were lost before it.
    fn flushed(&mut self, key: Key, outcome: Outcome) -> Outcome {
        let Some(task) = self.tasks.get_mut(key) else { return outcome };
        let Some(unit) = task.flushes.take() else { return outcome };
        let losses = self.units[unit].lane.losses();
        if let Some(before) = task.losses_before_erasing() {
            // What was lost before has been erased.
            return if losses == before { outcome } else { outcome.and(Err(StoreError::Lost)) };
        }
        let Some(conn) = task.connection.and_then(|connection| self.connections.get_mut(connection)) else {
            return outcome;
        };
        let commands = conn.facts.tally.commands;
        let Some(lun) = conn.luns.iter_mut().find(|lun| lun.unit == unit) else { return outcome };
        match outcome {
            Ok(_) | Err(StoreError::WriteFailed) if lun.report(losses, commands) => {
                task.reports = Some((unit, losses));
                Err(StoreError::Lost)
            }
            Ok(_) | Err(_) => outcome,
        }
    }

    /// A task ends: the losses that it reports reach its initiator with its status.
    pub(super) fn send_report(&mut self, key: Key) {
        let Some(Task { reports: Some((unit, losses)), connection: Some(connection), .. }) =
            self.tasks.get(key)
        else {
            return;
        };
        let (unit, losses) = (*unit, *losses);
        let Some(conn) = self.connections.get_mut(*connection) else { return };
        let commands = conn.facts.tally.commands;
        if let Some(lun) = conn.luns.iter_mut().find(|lun| lun.unit == unit) {
            lun.has_reported(losses, commands);
        }
    }

    /// A task is aborted: the losses that it was to report do not reach its initiator.
    pub(super) fn withdraw_report(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some((unit, _)) = task.reports.take() else { return };
        let conn = task.connection.and_then(|connection| self.connections.get_mut(connection));
        if let Some(lun) = conn.and_then(|conn| conn.luns.iter_mut().find(|lun| lun.unit == unit)) {
            lun.unreport();
        }
    }

    /// A storage operation of a task finished.
    pub(in crate::core) fn op_finished(&mut self, id: OpId, outcome: Outcome) {
        let Some(key) = self.tasks.key_at(id.0) else { return };
        let Some(task) = self.tasks.get(key) else { return };
        if task.aborted {
            return self.free_task(key);
        }
        if task.deactivated {
            self.release_publications(key);
        }
        let outcome = self.flushed(key, outcome);
        if let Some(event) = self.read_done(key, outcome) {
            self.run_task(key, event);
        }
    }
}
