//! A command as the device server sees it, and how it ends.

pub use wire::scsi::Status;
use wire::{Cdb, Sense, SenseKey};

/// Task attribute (SAM-5 section 8.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attribute {
    /// Simple or untagged.
    #[default]
    Simple,
    /// Ordered.
    Ordered,
    /// Head of queue.
    HeadOfQueue,
    /// ACA: refused, Lunette has no auto contingent allegiance (NormACA is zero in INQUIRY).
    Aca,
}

/// A command to admit.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The command descriptor block.
    pub cdb: &'a Cdb,
    /// Task attribute.
    pub attribute: Attribute,
    /// Bytes that the initiator is ready to receive.
    pub read_bytes: u32,
    /// Bytes that the initiator is ready to send.
    pub write_bytes: u32,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// SCSI status (SAM-5 section 5.3).
    pub status: Status,
    /// Sense data with [`Status::CheckCondition`].
    pub sense: Option<Sense>,
    /// Bytes that the command had to send, whether or not the initiator accepted as many.
    pub read_bytes: u64,
    /// Bytes that the command had to receive.
    pub write_bytes: u64,
}

impl Ending {
    /// GOOD, nothing moved.
    pub const GOOD: Ending = Ending::of(Status::Good);

    /// A status without sense data, nothing moved.
    pub const fn of(status: Status) -> Ending {
        Ending { status, sense: None, read_bytes: 0, write_bytes: 0 }
    }

    /// GOOD for a command that sends this many bytes of data-in.
    pub const fn sent(bytes: u64) -> Ending {
        Ending { read_bytes: bytes, ..Ending::GOOD }
    }

    /// GOOD for a command that consumes this many bytes of data-out.
    pub const fn taken(bytes: u64) -> Ending {
        Ending { write_bytes: bytes, ..Ending::GOOD }
    }

    /// Whether the command failed.
    pub fn is_error(&self) -> bool {
        match self.status {
            Status::Good | Status::ConditionMet => false,
            // Registers that ATA commands return are also in sense data (SAT-3 section 12.2.6).
            Status::CheckCondition => {
                self.sense.and_then(|sense| sense.key()) != Some(SenseKey::RecoveredError)
            }
            Status::Busy | Status::ReservationConflict | Status::TaskSetFull | Status::TaskAborted => true,
        }
    }
}

/// How reservations of other nexuses affect a command (SPC-4 table 64, SBC-3 table 13; for RESERVE: SPC-2
/// table 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationClass {
    /// No reservation prevents it (INQUIRY, REPORT LUNS, REQUEST SENSE, READ CAPACITY; and the reservation
    /// commands, which check for themselves).
    Always,
    /// Only a reservation by RESERVE prevents it (TEST UNIT READY, START STOP UNIT to start).
    Ready,
    /// Reads the medium: an exclusive access reservation prevents it.
    Read,
    /// Writes the medium or changes the unit: any reservation prevents it.
    Write,
}
