//! Which outcomes of a command are valid, and what they imply about its effect.

use super::{ATTENTION_WORD, BUSY_WORD, CONFLICT_WORD, FAILED_WORD, GOOD_WORD, ILLEGAL_WORD};
use super::{Initiator, Kind, MISCOMPARE_WORD, STANDBY_WORD, Task, orders};
use crate::register::Fate;
use proto::iscsi::initiator::{Completion, Outcome, Residual};
use wire::SenseKey;
use wire::scsi::code;
use wire::scsi::status::{BUSY, CHECK_CONDITION, GOOD, RESERVATION_CONFLICT, TASK_SET_FULL};

const NOT_READY: u8 = SenseKey::NotReady as u8;
const MEDIUM_ERROR: u8 = SenseKey::MediumError as u8;
const HARDWARE_ERROR: u8 = SenseKey::HardwareError as u8;
const ILLEGAL_REQUEST: u8 = SenseKey::IllegalRequest as u8;
const UNIT_ATTENTION: u8 = SenseKey::UnitAttention as u8;
const DATA_PROTECT: u8 = SenseKey::DataProtect as u8;
const ABORTED_COMMAND: u8 = SenseKey::AbortedCommand as u8;
const MISCOMPARE: u8 = SenseKey::Miscompare as u8;

impl Initiator {
    /// Checks the outcome of a command; returns what it implies about its effect.
    pub(super) fn verdict(
        &self,
        task: &Task,
        completion: &Completion,
    ) -> Result<(&'static str, Fate), String> {
        let (status, sense) = match completion.outcome {
            Outcome::Status { status, sense } => (status, sense),
            Outcome::Aborted => return Ok(("aborted", Fate::Unsure)),
            Outcome::TargetFailure(code) => return Err(format!("a command ended with response {code}")),
            Outcome::Rejected(reason) => return Err(format!("a command was rejected: {reason}")),
        };
        let sense = sense.as_ref().map_or(&[][..], |sense| sense.as_bytes());
        let key = sense.get(2).map_or(0, |byte| byte & 0xf);
        match status {
            GOOD => {
                let bytes = task.places.len();
                if let Kind::Allocation(_) | Kind::Groups = task.kind {
                    // Its data shows how much that is.
                    return Ok((GOOD_WORD, Fate::Done));
                }
                let moved = moved(task, completion);
                if moved != bytes || completion.residual != Residual::None {
                    return Err(format!("GOOD for {moved} of {bytes} bytes, {}", completion.residual));
                }
                Ok((GOOD_WORD, Fate::Done))
            }
            // The system may run out of something in the middle of a command.
            BUSY if self.place.fragile[task.unit] => Ok((BUSY_WORD, Fate::Unsure)),
            RESERVATION_CONFLICT => Ok((CONFLICT_WORD, Fate::Refused)),
            CHECK_CONDITION if key == NOT_READY && self.has_paths() => {
                match orders::additional_code(completion) {
                    code::PORT_IN_STANDBY => Ok((STANDBY_WORD, Fate::Refused)),
                    // What the port was doing may have been done in part.
                    code::ACCESS_STATE_TRANSITION => Ok((STANDBY_WORD, Fate::Unsure)),
                    _ => Ok((FAILED_WORD, Fate::Unsure)),
                }
            }
            CHECK_CONDITION
                if key != UNIT_ATTENTION && matches!(task.kind, Kind::Modes | Kind::Move | Kind::Groups) =>
            {
                Ok((FAILED_WORD, Fate::Refused))
            }
            CHECK_CONDITION if key == ILLEGAL_REQUEST && matches!(task.kind, Kind::Order(_)) => {
                Ok((ILLEGAL_WORD, Fate::Refused))
            }
            CHECK_CONDITION if key != UNIT_ATTENTION && matches!(task.kind, Kind::Order(_)) => {
                Ok((FAILED_WORD, Fate::Unsure))
            }
            BUSY | TASK_SET_FULL => Ok((BUSY_WORD, Fate::Refused)),
            CHECK_CONDITION if key == MISCOMPARE && task.compares.is_some() => {
                // WRITE AND VERIFY has written first.
                let is_written = matches!(task.kind, Kind::Durable(..));
                Ok((MISCOMPARE_WORD, if is_written { Fate::Unsure } else { Fate::Refused }))
            }
            CHECK_CONDITION if key == UNIT_ATTENTION => Ok((ATTENTION_WORD, Fate::Refused)),
            CHECK_CONDITION if key == ABORTED_COMMAND => Ok(("aborted command", Fate::Unsure)),
            CHECK_CONDITION
                if matches!(key, NOT_READY | MEDIUM_ERROR | HARDWARE_ERROR | DATA_PROTECT)
                    && self.place.fragile[task.unit] =>
            {
                Ok((FAILED_WORD, Fate::Unsure))
            }
            _ => Err(format!("command {} ended with status {status:#04x}, sense {sense:02x?}", task.id.slot)),
        }
    }
}

/// How many bytes a command has moved that ended with GOOD status.
fn moved(task: &Task, completion: &Completion) -> u32 {
    match task.kind {
        Kind::Read(_) if task.compares.is_none() => completion.read_bytes,
        // VERIFY sends the data that it compares.
        Kind::Read(_) => completion.write_bytes,
        Kind::Write(..) | Kind::Durable(..) | Kind::Order(_) | Kind::Move => completion.write_bytes,
        Kind::Modes | Kind::Groups => completion.read_bytes,
        Kind::Flush | Kind::Allocation(_) => task.places.len(),
    }
}
