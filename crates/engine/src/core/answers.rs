//! READs and WRITEs of stores in memory that are answered as they come, where nothing is in their way: they need neither a
//! task here nor a slot of the transport. What is in their way is found before anything has changed; such a command comes the
//! usual way then ([`super::task`]).

mod at_once;

use super::stall::{Moving, Pace};
use proto::time::Time;

/// What a connection has answered without tasks.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Its last command needed no task: the next one may need no slot.
    are_expected: bool,
    /// Nothing else has come since its last turn ended.
    were_all: bool,
    /// READs whose data, which the store has lent, has not left yet, by unit. All of it leaves with one batch.
    reads: Vec<UnsentReads>,
    /// That data.
    moving: Option<Moving>,
}

/// READs of one unit whose data is on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsentReads {
    pub(super) unit: u32,
    pub(super) commands: u32,
    pub(super) bytes: u64,
    /// When the first of them came.
    pub(super) begun: Time,
}

impl Answers {
    pub(super) fn are_expected(&self) -> bool {
        self.are_expected
    }

    /// Sets whether the next command is worth a try, by the outcome of the last one.
    pub(super) fn expect(&mut self, are_expected: bool) {
        self.are_expected = are_expected;
    }

    /// Whether nothing that a store has lent is on its way.
    pub(super) fn have_left(&self) -> bool {
        self.reads.is_empty()
    }

    /// How many READs that is.
    pub(super) fn unsent(&self) -> usize {
        self.reads.iter().map(|reads| reads.commands as usize).sum()
    }

    /// What is on its way.
    pub(super) fn moving(&self) -> Option<Moving> {
        self.moving
    }

    /// Whether nothing else has come in this turn, which ends: the room for more commands is what it was.
    pub(super) fn were_all(&mut self) -> bool {
        std::mem::take(&mut self.were_all)
    }

    /// The data has left. Returns the commands of one unit, which have ended; called until there are none, it returns those of all.
    #[inline(always)]
    pub(super) fn leave(&mut self, pace: &mut Pace) -> Option<UnsentReads> {
        if let Some(moving) = self.moving.take() {
            pace.end(moving);
        }
        self.reads.pop()
    }

    fn lend(&mut self, unit: u32, bytes: u32, now: Time) {
        match self.reads.last_mut() {
            Some(last) if last.unit == unit => {
                last.commands += 1;
                last.bytes += u64::from(bytes);
            }
            Some(_) | None => {
                self.reads.push(UnsentReads { unit, commands: 1, bytes: bytes.into(), begun: now })
            }
        }
    }
}
