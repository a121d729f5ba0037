//! Unit attention conditions (SAM-5 section 5.14).

use crate::vocabulary::sense::Check;
use wire::SenseKey;

/// Something to report to a nexus before its next command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UnitAttention {
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED: the first command of a new nexus.
    PowerOn,
    /// BUS DEVICE RESET FUNCTION OCCURRED: LOGICAL UNIT RESET or a target reset.
    Reset,
    /// I_T NEXUS LOSS OCCURRED.
    NexusLoss,
    /// COMMANDS CLEARED BY ANOTHER INITIATOR.
    CommandsCleared,
    /// NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED.
    MediumChanged,
    /// CAPACITY DATA HAS CHANGED.
    CapacityChanged,
    /// MODE PARAMETERS CHANGED.
    ModeChanged,
    /// RESERVATIONS PREEMPTED.
    ReservationsPreempted,
    /// RESERVATIONS RELEASED.
    ReservationsReleased,
    /// REGISTRATIONS PREEMPTED.
    RegistrationsPreempted,
    /// INQUIRY DATA HAS CHANGED.
    InquiryChanged,
    /// REPORTED LUNS DATA HAS CHANGED.
    LunsChanged,
    /// THIN PROVISIONING SOFT THRESHOLD REACHED.
    ThinThreshold,
}

impl UnitAttention {
    /// Additional sense code (high byte) and qualifier.
    pub fn code(self) -> u16 {
        match self {
            UnitAttention::PowerOn => 0x2900,
            UnitAttention::Reset => 0x2903,
            UnitAttention::NexusLoss => 0x2907,
            UnitAttention::CommandsCleared => 0x2f00,
            UnitAttention::MediumChanged => 0x2800,
            UnitAttention::CapacityChanged => 0x2a09,
            UnitAttention::ModeChanged => 0x2a01,
            UnitAttention::ReservationsPreempted => 0x2a03,
            UnitAttention::ReservationsReleased => 0x2a04,
            UnitAttention::RegistrationsPreempted => 0x2a05,
            UnitAttention::InquiryChanged => 0x3f03,
            UnitAttention::LunsChanged => 0x3f0e,
            UnitAttention::ThinThreshold => 0x3807,
        }
    }

    /// The check condition that reports it.
    pub fn check(self) -> Check {
        Check::new(SenseKey::UnitAttention, self.code())
    }

    /// Whether it reports a change of the unit, not what happened to a nexus or by a command.
    pub fn is_of_unit(self) -> bool {
        use UnitAttention::*;
        match self {
            CapacityChanged | InquiryChanged | LunsChanged | ThinThreshold => true,
            PowerOn | Reset | NexusLoss | CommandsCleared | MediumChanged | ModeChanged => false,
            ReservationsPreempted | ReservationsReleased | RegistrationsPreempted => false,
        }
    }

    /// Precedence (SAM-5 table 46): 0 is reported first, and clears those of the reset family below it.
    pub fn precedence(self) -> u8 {
        match self {
            UnitAttention::PowerOn => 0,
            UnitAttention::Reset => 1,
            UnitAttention::NexusLoss => 2,
            UnitAttention::CommandsCleared => 3,
            UnitAttention::MediumChanged
            | UnitAttention::CapacityChanged
            | UnitAttention::ModeChanged
            | UnitAttention::ReservationsPreempted
            | UnitAttention::ReservationsReleased
            | UnitAttention::RegistrationsPreempted
            | UnitAttention::InquiryChanged
            | UnitAttention::LunsChanged
            | UnitAttention::ThinThreshold => 4,
        }
    }
}
