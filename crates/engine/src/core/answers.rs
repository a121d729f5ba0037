//! READs and WRITEs of stores in memory, answered on arrival where nothing prevents it: they need neither a
//! task nor a slot of the transport. Whatever prevents it is found before anything has changed; such a
//! command then takes the usual path ([`super::task`]).

mod at_once;

use super::stall::{Moving, Pace};
use proto::time::Time;

/// What a connection has answered without tasks.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Its last command needed no task, so the next one may need no slot.
    are_expected: bool,
    /// Nothing else has arrived since the end of its last turn.
    were_all: bool,
    /// READs whose data, borrowed from the store, has not been sent yet, by unit. All of it is sent in one
    /// batch.
    reads: Vec<UnsentReads>,
    /// That data.
    moving: Option<Moving>,
}

/// READs of one unit whose data is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsentReads {
    pub(super) unit: u32,
    pub(super) commands: u32,
    pub(super) bytes: u64,
    /// When the first of them arrived.
    pub(super) begun: Time,
}

impl Answers {
    pub(super) fn are_expected(&self) -> bool {
        self.are_expected
    }

    /// Sets whether the next command is worth a try, given the outcome of the last one.
    pub(super) fn expect(&mut self, are_expected: bool) {
        self.are_expected = are_expected;
    }

    /// Whether no data borrowed from a store is being sent.
    pub(super) fn have_left(&self) -> bool {
        self.reads.is_empty()
    }

    /// How many READs have data that is being sent.
    pub(super) fn unsent(&self) -> usize {
        self.reads.iter().map(|reads| reads.commands as usize).sum()
    }

    /// The data that is being sent.
    pub(super) fn moving(&self) -> Option<Moving> {
        self.moving
    }

    /// Whether nothing else has arrived in the turn that now ends, so that the room for more commands is
    /// unchanged.
    pub(super) fn were_all(&mut self) -> bool {
        std::mem::take(&mut self.were_all)
    }

    /// The data has been sent. Returns the commands of one unit, which have ended; call it until it returns
    /// `None`.
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
