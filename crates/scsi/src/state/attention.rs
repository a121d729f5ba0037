//! Unit attention conditions (SAM-5 section 5.14).

use crate::vocabulary::sense::Check;
use wire::SenseKey;
use wire::scsi::code;

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
    /// ASYMMETRIC ACCESS STATE CHANGED.
    AccessStateChanged,
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

/// Where the threshold descriptor is in the Logical Block Provisioning mode page (SBC-4 section 4.7.3.7.6).
const THRESHOLD_DESCRIPTOR_AT: u64 = 16;

impl UnitAttention {
    /// Additional sense code (high byte) and qualifier.
    pub fn code(self) -> u16 {
        match self {
            UnitAttention::PowerOn => code::POWER_ON_OR_RESET,
            UnitAttention::Reset => code::RESET_FUNCTION_OCCURRED,
            UnitAttention::NexusLoss => code::NEXUS_LOSS_OCCURRED,
            UnitAttention::CommandsCleared => code::COMMANDS_CLEARED,
            UnitAttention::MediumChanged => code::MEDIUM_MAY_HAVE_CHANGED,
            UnitAttention::CapacityChanged => code::CAPACITY_DATA_CHANGED,
            UnitAttention::ModeChanged => code::MODE_PARAMETERS_CHANGED,
            UnitAttention::AccessStateChanged => code::ASYMMETRIC_ACCESS_STATE_CHANGED,
            UnitAttention::ReservationsPreempted => code::RESERVATIONS_PREEMPTED,
            UnitAttention::ReservationsReleased => code::RESERVATIONS_RELEASED,
            UnitAttention::RegistrationsPreempted => code::REGISTRATIONS_PREEMPTED,
            UnitAttention::InquiryChanged => code::INQUIRY_DATA_CHANGED,
            UnitAttention::LunsChanged => code::REPORTED_LUNS_DATA_CHANGED,
            UnitAttention::ThinThreshold => code::THIN_PROVISIONING_THRESHOLD_REACHED,
        }
    }

    /// The check condition that reports it.
    pub fn check(self) -> Check {
        let check = Check::new(SenseKey::UnitAttention, self.code());
        match self {
            UnitAttention::ThinThreshold => Check { information: Some(THRESHOLD_DESCRIPTOR_AT), ..check },
            _ => check,
        }
    }

    /// Whether it reports a change of the unit, rather than an event of a nexus or the effect of a command.
    pub fn is_of_unit(self) -> bool {
        use UnitAttention::*;
        match self {
            CapacityChanged | InquiryChanged | LunsChanged | ThinThreshold | AccessStateChanged => true,
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
            | UnitAttention::AccessStateChanged
            | UnitAttention::ReservationsPreempted
            | UnitAttention::ReservationsReleased
            | UnitAttention::RegistrationsPreempted
            | UnitAttention::InquiryChanged
            | UnitAttention::LunsChanged
            | UnitAttention::ThinThreshold => 4,
        }
    }
}
