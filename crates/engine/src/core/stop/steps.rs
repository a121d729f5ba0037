//! The steps of stopping a core.

use crate::core::unit::Units;
use crate::core::{Core, LOGOUT_SECONDS, LOGOUT_WITHIN, TICK, kind};
use crate::message::Message;
use reactor::io::{Completion, Io, Wait};
use scsi::storage::StoreError;
use store::lane::{Op, Submitted};

impl<I: Io> Core<I> {
    pub(in crate::core) fn stop(&mut self) {
        self.stop.deadline = Some(self.io.now().after(LOGOUT_WITHIN));
        self.cancel_move();
        self.listeners.close(&mut self.io);
        self.request_all_logouts(LOGOUT_SECONDS);
    }

    /// Whether this core may end. It notifies the others when it has nothing left, and then waits for them.
    pub(in crate::core) fn is_over(&mut self) -> bool {
        let has_nothing = self.stop.has_begun()
            && self.connections.len() == 0
            && self.tasks.iter().all(|(_, task)| !task.holds_up_the_end());
        if has_nothing && !std::mem::replace(&mut self.stop.is_drained, true) {
            for core in 0..self.cores() {
                self.post(core, Message::Drained);
            }
        }
        has_nothing && self.stop.drained == self.cores()
    }

    /// Last of all, makes everything acknowledged durable in the stores of units whose home is here. Returns
    /// whether that succeeded.
    pub(in crate::core) fn flush_stores(&mut self, completions: &mut Vec<Completion>) -> bool {
        flush_stores(&mut self.units, self.me, &mut self.io, completions)
    }
}

fn flush_stores<I: Io>(
    units: &mut Units<I>,
    me: usize,
    io: &mut I,
    completions: &mut Vec<Completion>,
) -> bool {
    let (mut open, mut is_flushed) = (0usize, true);
    let losses: Vec<u64> = units.iter_mut().map(|unit| unit.lane.losses()).collect();
    for unit in units.iter_mut().filter(|unit| unit.home_core == me) {
        if !unit.takes_flush() {
            if unit.lane.is_dirty() {
                is_flushed &= unit.report_flush(Err(StoreError::Unavailable));
            }
        } else {
            match unit.lane.submit(io, kind::FINAL_FLUSH, &Op::Flush) {
                Submitted::Later => open += 1,
                Submitted::Done(outcome) => is_flushed &= unit.report_flush(outcome),
            }
        }
    }
    let mut done = Vec::new();
    while open > 0 {
        for unit in units.iter_mut() {
            unit.lane.tick(io, &mut done);
            unit.lane.flush(io, &mut done);
            open -= unit.report_flushes(&mut done, &mut is_flushed);
        }
        io.turn(Wait::AtMost(TICK), completions);
        for completion in completions.drain(..) {
            let number = (completion.tag.0 >> 32) as u32 & 0x0fff_ffff;
            if completion.tag.0 >> kind::SHIFT == kind::LANE
                && let Some(unit) = units.get_mut(number)
            {
                unit.lane.completed(io, completion, &mut done);
                open -= unit.report_flushes(&mut done, &mut is_flushed);
            }
        }
    }
    for (unit, before) in units.iter_mut().zip(losses) {
        if unit.lane.losses() != before {
            is_flushed &= unit.report_flush(Err(StoreError::WriteFailed));
        }
    }
    is_flushed
}
