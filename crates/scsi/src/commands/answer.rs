//! Commands whose data-in is built from the view: INQUIRY, MODE SENSE, REPORT ... and the like.

use crate::commands::step::{Env, Event, Step};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::Failure;
use wire::Cdb;

/// Builds the data-in of one command in full; it is later truncated to the allocation length.
pub(crate) type Build = fn(&mut Env<'_>, &Cdb, &mut Vec<u8>) -> Result<(), Failure>;

/// A command that answers with data that it builds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    cdb: Cdb,
    allocation: u32,
    build: Build,
}

impl Answer {
    /// The longest answer, in bytes: longer ones are truncated.
    pub(crate) const BYTES_MAX: u32 = 64 * 1024;

    /// `allocation`: the CDB's allocation length.
    pub(crate) fn new(cdb: Cdb, allocation: u32, build: Build) -> Answer {
        Answer { cdb, allocation: allocation.min(Answer::BYTES_MAX), build }
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.allocation
    }

    /// Builds the data and sends it with the status.
    pub(crate) fn next(&mut self, env: &mut Env<'_>, _event: Event) -> Step {
        let mut data = Vec::new();
        if let Err(failure) = (self.build)(env, &self.cdb, &mut data) {
            return Step::End(failure.ending(&env.view.policy.modes));
        }
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX).min(self.allocation);
        for (slot, byte) in env.buffer.iter_mut().zip(data.iter()) {
            *slot = *byte;
        }
        let ending = Ending::sent(u64::from(len));
        if len == 0 { Step::End(ending) } else { Step::Push { buffer: 0, len, at: 0, end: Some(ending) } }
    }
}
