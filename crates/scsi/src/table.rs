//! The one table of commands: how each is decoded, guarded and described.

use crate::admit::Admission;
use crate::exec::Program;
use crate::sense::Failure;

/// How reservations of other nexuses bear on a command (SPC-4 table 64, SBC-3 table 13; for RESERVE: SPC-2 table 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationClass {
    /// No reservation stops it (INQUIRY, REPORT LUNS, REQUEST SENSE, READ CAPACITY; and the reservation commands,
    /// which judge for themselves).
    Always,
    /// Only a reservation by RESERVE stops it (TEST UNIT READY, START STOP UNIT to start).
    Ready,
    /// Reads the medium: an exclusive access reservation stops it.
    Read,
    /// Writes the medium or changes the unit: any reservation stops it.
    Write,
}

/// One command.
#[derive(Debug)]
pub(crate) struct Command {
    /// Operation code.
    pub(crate) opcode: u8,
    /// Service action, where the operation code has them.
    pub(crate) action: Option<u16>,
    /// CDB usage data (SPC-4 section 6.27.3): as long as the CDB, the operation code first, a one for each bit that
    /// is evaluated.
    pub(crate) usage: &'static [u8],
    /// Reservation class.
    pub(crate) reservation: ReservationClass,
    /// Makes the program.
    pub(crate) begin: fn(&Admission<'_>) -> Result<Program, Failure>,
}
