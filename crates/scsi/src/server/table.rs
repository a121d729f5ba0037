//! The one table of commands: how each is decoded, guarded and described.

mod commands;

use crate::commands::admission::Admission;
use crate::server::exec::Program;
use crate::state::port_groups::Accepted;
use crate::state::readiness::Precondition;
use crate::state::unit::View;
use crate::vocabulary::command::ReservationClass;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::cdb::SERVICE_ACTION;

pub(crate) use commands::COMMANDS;

/// The condition on which a command exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// Always.
    Always,
    /// Unless several gateways serve the unit at the same time: it needs one that sees all commands.
    Alone,
    /// On units that are currently thin.
    Thin,
    /// When the store can write all-or-nothing.
    Atomic,
    /// When the store can compare and write atomically.
    Compare,
    /// When the store can erase by deallocating.
    BlockErase,
    /// When the store can erase cryptographically.
    Cryptographic,
    /// On units that are exported by ATA over Ethernet.
    Exported,
    /// On units with target port groups whose states initiators may change.
    Explicit,
}

/// Creates the program of one command from its CDB.
pub(crate) type Begin = fn(&Admission<'_>) -> Result<Program, Failure>;

/// One command.
#[derive(Debug)]
pub(crate) struct Command {
    /// CDB usage data (SPC-4 section 6.27.3): as long as the CDB, the operation code first, a one for each bit that
    /// is evaluated.
    pub(crate) usage: &'static [u8],
    /// Service action, where the operation code has them.
    pub(crate) action: Option<u8>,
    /// Reservation class.
    pub(crate) reservation: ReservationClass,
    /// Its preconditions.
    pub(crate) gate: Precondition,
    /// The states of the target port group in which it is accepted.
    pub(crate) accepted: Accepted,
    /// The condition on which it exists.
    pub(crate) offer: Offer,
    /// Recommended command timeout in seconds.
    pub(crate) seconds: u16,
    /// Creates the program.
    pub(crate) begin: Begin,
}

impl Command {
    /// The operation code.
    pub(crate) fn opcode(&self) -> u8 {
        self.usage.first().copied().unwrap_or(0)
    }

    /// Whether the unit has this command.
    pub(crate) fn is_offered(&self, view: &View) -> bool {
        match self.offer {
            Offer::Always => true,
            Offer::Alone => view.sees_all(),
            Offer::Thin => view.is_thin(),
            Offer::Atomic => view.atomic_blocks_max() > 0,
            Offer::Compare => view.compare_blocks_max() > 0,
            Offer::Exported => view.unit.exported,
            Offer::Explicit => view.unit.has_explicit_groups(),
            Offer::BlockErase => view.erases_blocks(),
            Offer::Cryptographic => view.erases_cryptographically(),
        }
    }
}

/// The entry for a CDB. An unknown operation code is 20h, an unknown service action 24h at byte 1 (SPC-4
/// section 4.2.5.2).
#[inline]
pub(crate) fn lookup(view: &View, cdb: &Cdb) -> Result<&'static Command, Check> {
    let mut refusal = Check::OPCODE;
    for command in COMMANDS.iter().filter(|command| command.opcode() == cdb.opcode()) {
        let Some(action) = command.action else {
            return if command.is_offered(view) { Ok(command) } else { Err(Check::OPCODE) };
        };
        if action == cdb.service_action() && command.is_offered(view) {
            return Ok(command);
        }
        refusal = Check::cdb_field(SERVICE_ACTION);
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::scsi::opcode;

    #[test]
    fn every_entry_is_as_long_as_its_operation_code_says_and_there_once() {
        for (at, command) in COMMANDS.iter().enumerate() {
            assert_eq!(
                Some(command.usage.len()),
                opcode::cdb_bytes(command.opcode()),
                "{:02x}",
                command.opcode()
            );
            let key = |command: &Command| (command.opcode(), command.action);
            assert!(COMMANDS[..at].iter().all(|other| key(other) != key(command)));
        }
    }
}
