//! The target machine of one AoE session: requests of one initiator to one target.
//!
//! Requests before there is a session are in `query`. Received frames are validated in `receive`, calls from
//! the engine about tasks are in `data`, sending is in `send`. Answers to tasks are in `task`, and `written`
//! remembers the writes that were already answered.
//!
//! The protocol relies on initiators to retransmit what gets no answer: a request is dropped if there is no
//! room for it, or if its task was aborted or found the unit busy. A duplicate of a request in flight is
//! dropped, since its answer is on its way; with another tag, as Linux retransmits, it is answered together
//! with the original if it is a write. Repeating reads is cheap.

mod data;
mod query;
mod receive;
mod send;
mod task;
#[cfg(test)]
mod tests;
pub mod violation;
mod written;

pub use query::{Export, Kind, RequestInfo, announce, answer_query, classify};
pub use written::{COPIES_WITHIN, Written};

use super::Frame;
use crate::services::{Down, Ending, FAULT, TaskId, Up};
use crate::time::{Stamp, Time};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use task::TaskTable;
use wire::Span;
use wire::aoe::{Address, Mac};

/// Answers to requests that became no task; more requests of that kind are dropped while they wait to be
/// sent.
const REPLIES_MAX: usize = 64;
/// The interval between reports of invalid frames.
const REFUSED_EVERY: Duration = Duration::from_secs(1);

/// The configuration of a target machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The target.
    pub address: Address,
    /// The interface's Ethernet address.
    pub ours: Mac,
    /// The initiator's Ethernet address.
    pub peer: Mac,
    /// Requests that the initiator may have in flight (buffer count).
    pub buffers: u16,
    /// Sectors in a frame ([`wire::aoe::sectors_per_frame`]).
    pub sectors_max: u8,
    /// Firmware version that is reported.
    pub firmware: u16,
    /// CRC32C.
    pub crc32c: fn(&[u8]) -> u32,
}

impl Config {
    /// How many slots there are: every [`TaskId::slot`] is below. There are more than buffers, since a slot
    /// is in use until its answer has been sent and its frame is returned, and initiators do not always count
    /// retransmissions.
    pub fn slots(&self) -> u16 {
        self.buffers.saturating_mul(2)
    }
}

/// Frames that did not become a task of their own. Unanswered requests are retransmitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// They were invalid.
    pub refused: u64,
    /// Duplicates of requests in flight, or of writes that were answered.
    pub copies: u64,
    /// There was no room for them, or for their answers.
    pub crowded: u64,
}

/// What a task changes, and when it arrived: for the order of all tasks, of any session, that change the same
/// blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Sectors; for a list of ranges its number, beyond all sectors.
    pub blocks: Range<u64>,
    /// When its frame was received.
    pub received_at: Stamp,
}

impl Change {
    /// Whether it is a list, whose sectors may be anywhere.
    pub fn is_list(&self) -> bool {
        self.blocks.start >= task::BEHIND_SECTORS
    }
}

/// The target's end of one AoE session.
pub struct Target {
    config: Config,
    phase: Phase,
    tasks: TaskTable,
    written: Written,
    /// The failure of a flush whose answer may not have been received.
    unreported: Option<Ending>,
    counts: Counts,
    up: VecDeque<Up>,
    /// When invalid frames were last reported.
    refused: Option<Time>,
    /// Tasks whose answers have to be sent.
    out: VecDeque<TaskId>,
    /// Answers to requests that became no task.
    replies: VecDeque<Frame>,
    /// Tasks whose data has to be copied.
    copies: VecDeque<TaskId>,
    /// Frames that are no longer needed.
    freed: Vec<Span>,
    /// Frames that are, and how many of them there may be.
    held: u16,
    held_max: u16,
}

/// The state of the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// It ends when nothing is in flight, or at this time.
    Leaving(Time),
    Over,
}

impl Target {
    /// A machine for a session that begins.
    pub fn new(config: Config) -> Target {
        Target {
            config,
            phase: Phase::Open,
            tasks: TaskTable::new(config.slots()),
            written: Written::default(),
            unreported: None,
            counts: Counts::default(),
            up: VecDeque::new(),
            refused: None,
            out: VecDeque::new(),
            replies: VecDeque::new(),
            copies: VecDeque::new(),
            freed: Vec::new(),
            held: 0,
            held_max: config.slots(),
        }
    }

    /// Takes what it remembers of answered writes, when it ends while duplicates of them may still arrive:
    /// for the next session of the same initiator.
    pub fn take_written(&mut self) -> Written {
        std::mem::take(&mut self.written)
    }

    /// Adds the writes that an earlier session answered.
    pub fn recall(&mut self, written: Written) {
        self.written = written;
    }

    /// Limits the received frames that it holds: requests that would need one more are dropped.
    pub fn limit_frames(&mut self, most: u16) {
        self.held_max = most;
    }

    /// Handles a call from the engine. One about a task that has ended is ignored.
    pub fn down(&mut self, now: Time, down: Down) {
        if self.phase == Phase::Over {
            return;
        }
        match down {
            Down::Fetch { task, at, into } => self.fetch(task, at, into),
            Down::Push { task, at, from, end } => self.push(now, task, at, from, end),
            Down::End { task, ending } => self.end(now, task, ending),
            Down::Abort { task } => self.abort(task),
            // AoE has no task management requests to answer.
            Down::FunctionDone { .. } => {}
            Down::RequestLogout { within_seconds } => {
                self.phase = Phase::Leaving(now.after(Duration::from_secs(u64::from(within_seconds))));
            }
            // There is no login.
            Down::Admit | Down::Refuse(_) => {}
            Down::Close => self.close("closed by this side"),
        }
        self.leave_if_idle();
    }

    /// The oldest event.
    pub fn poll(&mut self) -> Option<Up> {
        self.up.pop_front()
    }

    /// Whether there is something to be sent, copied or freed.
    pub fn owes(&self) -> bool {
        let is_sending = !self.out.is_empty() || !self.replies.is_empty();
        is_sending || !self.copies.is_empty() || !self.freed.is_empty()
    }

    /// Whether nothing is in flight, and no frame is held.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && !self.owes()
    }

    /// Whether the session has ended. Frames may still be borrowed until [`Target::is_idle`].
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Frames that did not become a task of their own, since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// A task was aborted, since a newer one has changed the same blocks: usually its own retransmission.
    pub fn count_late(&mut self) {
        self.counts.copies = self.counts.copies.saturating_add(1);
    }

    /// A request was dropped before it arrived here, as an earlier session has not ended.
    pub fn count_crowded(&mut self) {
        self.counts.crowded = self.counts.crowded.saturating_add(1);
    }

    /// When to call [`Target::tick`].
    pub fn deadline(&self) -> Option<Time> {
        match self.phase {
            Phase::Open | Phase::Over => None,
            Phase::Leaving(by) => Some(by),
        }
    }

    /// The deadline has passed.
    pub fn tick(&mut self, now: Time) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.close("ended by this side");
        }
    }

    fn leave_if_idle(&mut self) {
        if matches!(self.phase, Phase::Leaving(_)) && self.tasks.is_empty() && self.replies.is_empty() {
            self.close("ended by this side");
        }
    }

    /// A bug that is private to the session ends it.
    fn fault(&mut self, what: &'static str) {
        self.up.push_back(Up::Fault { what });
        self.close(FAULT);
    }

    /// Nothing more is sent. Frames are still returned: they belong to the interface.
    fn close(&mut self, reason: &str) {
        self.phase = Phase::Over;
        self.out.clear();
        self.replies.clear();
        self.copies.clear();
        let tasks: Vec<TaskId> = self.tasks.ids().collect();
        tasks.into_iter().for_each(|id| self.drop_task(id));
        self.up.push_back(Up::Gone { reason: reason.to_string() });
    }
}
