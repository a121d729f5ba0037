//! Status codes (SAM-5 section 5.3).

/// GOOD.
pub const GOOD: u8 = 0x00;
/// CHECK CONDITION.
pub const CHECK_CONDITION: u8 = 0x02;
/// CONDITION MET.
pub const CONDITION_MET: u8 = 0x04;
/// BUSY.
pub const BUSY: u8 = 0x08;
/// RESERVATION CONFLICT.
pub const RESERVATION_CONFLICT: u8 = 0x18;
/// TASK SET FULL.
pub const TASK_SET_FULL: u8 = 0x28;
/// ACA ACTIVE.
pub const ACA_ACTIVE: u8 = 0x30;
/// TASK ABORTED.
pub const TASK_ABORTED: u8 = 0x40;

/// A status with which our device servers complete a command; an initiator may receive any code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// GOOD.
    Good = GOOD,
    /// CHECK CONDITION.
    CheckCondition = CHECK_CONDITION,
    /// CONDITION MET.
    ConditionMet = CONDITION_MET,
    /// BUSY.
    Busy = BUSY,
    /// RESERVATION CONFLICT.
    ReservationConflict = RESERVATION_CONFLICT,
    /// TASK SET FULL.
    TaskSetFull = TASK_SET_FULL,
    /// TASK ABORTED.
    TaskAborted = TASK_ABORTED,
}

impl Status {
    /// Its code.
    pub const fn code(self) -> u8 {
        match self {
            Status::Good => GOOD,
            Status::CheckCondition => CHECK_CONDITION,
            Status::ConditionMet => CONDITION_MET,
            Status::Busy => BUSY,
            Status::ReservationConflict => RESERVATION_CONFLICT,
            Status::TaskSetFull => TASK_SET_FULL,
            Status::TaskAborted => TASK_ABORTED,
        }
    }
}
