//! Unit attentions of its commands.

use super::{ATTENTION_WORD, BUSY_WORD, CONFLICT_WORD, FAILED_WORD, GOOD_WORD, ILLEGAL_WORD};
use super::{Initiator, Kind, MISCOMPARE_WORD, STANDBY_WORD, Task, orders};
use crate::attention::Act;
use proto::iscsi::initiator::Completion;
use proto::time::Time;

impl Initiator {
    /// Checks the unit attentions that a command has reported, or should have.
    pub(super) fn check_attentions(
        &self,
        now: Time,
        task: &Task,
        completion: &Completion,
        outcome: &str,
    ) -> Result<(), String> {
        // Other outstanding commands may report what is owed, or an abort may have prevented it.
        let is_last = !self.tasks.iter().any(|other| other.unit == task.unit);
        let mut attentions = self.attentions.borrow_mut();
        match outcome {
            GOOD_WORD if is_last => {
                let knows = self.is_served_since(task.began);
                // A gateway that is not active may have yet to find out.
                if knows || matches!(task.kind, Kind::Order(_)) {
                    attentions.done(task.began, self.index, task.unit, knows)?;
                }
            }
            GOOD_WORD | BUSY_WORD | FAILED_WORD | CONFLICT_WORD | ILLEGAL_WORD | MISCOMPARE_WORD
            | STANDBY_WORD => {}
            ATTENTION_WORD => {
                let code = orders::additional_code(completion);
                self.note(&[9, u64::from(code)], || {
                    format!("has unit attention {code:04x} of unit {}", task.unit)
                });
                attentions.reported(now, task.began, self.index, task.unit, code)?;
            }
            _ => attentions.may_be_reported(now, self.index, task.unit),
        }
        if matches!(task.kind, Kind::Order(_)) {
            attentions.over(now, self.index, Act::Command(task.id));
        }
        Ok(())
    }
}
