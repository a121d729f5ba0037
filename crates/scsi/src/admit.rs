//! Admission: every check that can be made before data moves, in the standard's order.

use crate::command::{Attribute, Ending, Request};
use crate::exec::{Exec, Program};
use crate::limits::{Range, TRANSFER_BYTES_MAX};
use crate::nexus::NexusUnit;
use crate::policy::{EraseKind, Erasure};
use crate::sense::{Check, Failure};
use crate::table::{self, Command, Gate};
use crate::unit::View;
use std::sync::atomic::Ordering;
use wire::Cdb;

impl View {
    /// Decides whether a command may run, and makes its program. The checks are in the order of SAM-5 section 5.3.3
    /// and SPC-4 section 4.2.5: the command itself, unit attention, reservation, readiness, write protection, and
    /// only then the CDB's fields.
    pub fn admit(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Result<Exec, Ending> {
        nexus.sync(&self.policy);
        if nexus.mac.is_some() {
            return self.admit_ata(nexus, request);
        }
        self.program(nexus, request).map(Exec::new).map_err(|failure| failure.ending(&self.policy.modes))
    }

    fn program(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Result<Program, Failure> {
        let command = table::lookup(self, request.cdb)?;
        check_aca(request, command)?;
        if command.gate != Gate::Open
            && let Some(attention) = nexus.take_attention()
        {
            return Err(attention.check().into());
        }
        if nexus.access.conflicts(command.reservation) {
            return Err(Failure::CONFLICT);
        }
        self.check_gate(nexus, command.gate)?;
        (command.begin)(&Admission { view: self, nexus, request })
    }

    pub(crate) fn check_gate(&self, nexus: &NexusUnit, gate: Gate) -> Result<(), Check> {
        match gate {
            Gate::Open => Ok(()),
            Gate::Control => self.check_erased(),
            Gate::Ready => self.check_accessible(),
            Gate::Write => {
                self.check_accessible()?;
                self.check_writable(nexus)
            }
            Gate::Sanitize => {
                self.check_erasing()?;
                self.check_ready()?;
                self.check_writable(nexus)
            }
            Gate::Format => {
                self.check_erased()?;
                self.check_ready()?;
                self.check_writable(nexus)
            }
        }
    }

    /// Why the unit is not ready, if it is not: what TEST UNIT READY and REQUEST SENSE report.
    pub(crate) fn not_ready(&self) -> Option<Check> {
        self.check_accessible().err()
    }

    /// MEDIUM FORMAT CORRUPTED is for commands that access the medium (SBC-3 section 4.10): the others are what a
    /// format tool sends before the FORMAT UNIT that repairs it.
    fn check_accessible(&self) -> Result<(), Check> {
        self.check_erased()?;
        match self.policy.erasure {
            Some(Erasure::Failed { kind: EraseKind::Format }) => Err(Check::FORMAT_CORRUPTED),
            Some(Erasure::Running { .. } | Erasure::Failed { kind: EraseKind::Sanitize { .. } }) | None => {
                self.check_ready()
            }
        }
    }

    fn check_erased(&self) -> Result<(), Check> {
        self.check_erasing()?;
        match self.policy.erasure {
            Some(Erasure::Failed { kind: EraseKind::Sanitize { .. } }) => Err(Check::SANITIZE_FAILED),
            Some(Erasure::Running { .. } | Erasure::Failed { kind: EraseKind::Format }) | None => Ok(()),
        }
    }

    fn check_erasing(&self) -> Result<(), Check> {
        match &self.policy.erasure {
            Some(Erasure::Running { progress, kind }) => {
                let done = u16::try_from(progress.load(Ordering::Relaxed)).unwrap_or(u16::MAX);
                Err(Check::erasing(*kind).with_progress(done))
            }
            Some(Erasure::Failed { .. }) | None => Ok(()),
        }
    }

    fn check_ready(&self) -> Result<(), Check> {
        if self.policy.ejected {
            Err(Check::NO_MEDIUM)
        } else if self.policy.failed.is_some() {
            Err(Check::NOT_READY)
        } else if !self.policy.started {
            Err(Check::STOPPED)
        } else {
            Ok(())
        }
    }

    /// Whether nobody, or this nexus, may not write.
    pub(crate) fn is_write_protected(&self, nexus: &NexusUnit) -> bool {
        self.check_writable(nexus).is_err()
    }

    fn check_writable(&self, nexus: &NexusUnit) -> Result<(), Check> {
        if self.unit.read_only || self.policy.traits.read_only || nexus.read_only {
            Err(Check::WRITE_PROTECTED)
        } else if self.policy.modes.software_write_protect {
            Err(Check::SOFTWARE_WRITE_PROTECTED)
        } else {
            Ok(())
        }
    }
}

/// NormACA is zero: the NACA bit and the ACA attribute are refused (SAM-5 section 5.2.3).
fn check_aca(request: &Request<'_>, command: &Command) -> Result<(), Check> {
    let control = command.usage.len().saturating_sub(1);
    if request.cdb.u8(control) & 0x04 != 0 {
        return Err(Check::cdb_bit(u16::try_from(control).unwrap_or(0), 2));
    }
    if request.attribute == Attribute::Aca {
        return Err(Check::INVALID_MESSAGE);
    }
    Ok(())
}

/// What a command may look at while its program is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    /// The unit.
    pub(crate) view: &'a View,
    /// The nexus.
    pub(crate) nexus: &'a NexusUnit,
    /// The command.
    pub(crate) request: &'a Request<'a>,
}

impl Admission<'_> {
    /// The CDB.
    pub(crate) fn cdb(&self) -> &Cdb {
        self.request.cdb
    }

    /// The unit's block size.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.view.policy.block_bytes
    }

    /// RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT must be zero: the medium is not formatted with protection
    /// information (SBC-3 section 4.22).
    pub(crate) fn check_protect(&self) -> Result<(), Check> {
        if self.cdb().u8(1) & 0xe0 == 0 { Ok(()) } else { Err(Check::cdb_bit(1, 7)) }
    }

    /// The range of a transfer and its length in bytes; `length_byte` is where the CDB has the length.
    pub(crate) fn transfer(&self, lba: u64, blocks: u32, length_byte: u16) -> Result<(Range, u32), Failure> {
        let range = self.view.range(lba, u64::from(blocks))?;
        match u32::try_from(range.len) {
            Ok(len) if len <= TRANSFER_BYTES_MAX => Ok((range, len)),
            _ => Err(Check::cdb_byte(length_byte).into()),
        }
    }

    /// How much of `total` bytes of data-out comes: less when the initiator offers less, but whole blocks.
    pub(crate) fn blocks_out(&self, total: u32) -> Result<u32, Failure> {
        let coming = total.min(self.request.write_bytes);
        match coming.checked_rem(self.block_bytes()) {
            Some(0) => Ok(coming),
            _ => Err(Failure::DataOut { taken: total }),
        }
    }

    /// FUA of a write: durable before it ends, whatever the write cache.
    pub(crate) fn is_forced(&self) -> bool {
        self.cdb().u8(1) & 0x08 != 0
    }
}

#[cfg(test)]
mod tests {
    use crate::attention::UnitAttention;
    use crate::command::Status;
    use crate::home::HomeRequest;
    use crate::nexus::{NexusId, Reach};
    use crate::policy::ModesChange;
    use crate::testing::{BLOCK, Bench, unit};
    use proptest::prelude::*;
    use wire::scsi::transport_id::iscsi_port;

    const READY: &[u8] = &[0; 6];
    const READ: &[u8] = &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const WRITE: &[u8] = &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];

    #[test]
    fn the_command_is_judged_before_the_unit() {
        let mut bench = Bench::new();
        bench.nexuses[0].establish(UnitAttention::Reset);
        bench.read(&[0xc1; 16]).assert_check(0x5, 0x2000);
        bench.read(&[0, 0, 0, 0, 0, 0x04]).assert_invalid_field(5);
        bench.read(&[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).assert_invalid_field(1);
        bench.read(&[0x28, 0, 255, 255, 255, 255, 0, 0, 1, 0]).assert_check(0x6, 0x2903);
        bench.read(&[0x28, 0, 255, 255, 255, 255, 0, 0, 1, 0]).assert_check(0x5, 0x2100);
    }

    #[test]
    fn unit_attentions_are_told_once_and_not_to_inquiry() {
        let mut bench = Bench::new();
        bench.nexuses[0].establish(UnitAttention::LunsChanged);
        bench.nexuses[0].establish(UnitAttention::ModeChanged);
        bench.nexuses[0].establish(UnitAttention::ModeChanged);
        bench.read(&[0x12, 0, 0, 0, 96, 0]).assert_good();
        bench.read(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]).assert_good();
        bench.read(READY).assert_check(0x6, 0x2a01);
        bench.read(READY).assert_good();
    }

    #[test]
    fn a_medium_that_is_away_stops_what_needs_it() {
        let mut unit = unit();
        unit.removable = true;
        let mut bench = Bench::of(unit, 1 << 20);
        bench.read(&[0x1b, 0, 0, 0, 2, 0]).assert_good();
        for cdb in [READY, READ, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            bench.read(cdb).assert_check(0x2, 0x3a00);
        }
        bench.write(WRITE, &[0; BLOCK]).assert_check(0x2, 0x3a00);
        bench.write(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &[0; 24]).assert_check(0x2, 0x3a00);
        bench.read(&[0x12, 0, 0, 0, 96, 0]).assert_good();
        bench.ask(HomeRequest::StoreFailed("gone".into()));
        bench.read(&[0x1b, 0, 0, 0, 3, 0]).assert_good();
        bench.read(READY).assert_check(0x2, 0x0400);
        let traits = bench.view.policy.traits;
        bench.ask(HomeRequest::StoreChanged(traits));
        bench.read(READY).assert_check(0x6, 0x2800);
        bench.read(READY).assert_good();
    }

    #[test]
    fn write_protection_stops_every_write() {
        let mut unit = unit();
        unit.read_only = true;
        let mut bench = Bench::of(unit, 1 << 20);
        let wide = |opcode: u8| [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        for opcode in [0x8a, 0x8b, 0x89, 0x8e, 0x93] {
            bench.write(&wide(opcode), &[0; BLOCK]).assert_check(0x7, 0x2700);
        }
        bench.read(&[0x41, 0x08, 0, 0, 0, 0, 0, 0, 1, 0]).assert_check(0x7, 0x2700);
        bench.read(READ).assert_good();
        let mut bench = Bench::new();
        bench.nexuses[0].read_only = true;
        bench.write(WRITE, &[0; BLOCK]).assert_check(0x7, 0x2700);
        bench.run(1, WRITE, &[0; BLOCK], 0).assert_good();
        assert_eq!(bench.read(&[0x1a, 8, 0x3f, 0, 255, 0]).data[2], 0x90);
    }

    /// A removable unit whose first nexus may only read, and whose second may do everything.
    fn with_reader() -> Bench {
        let mut unit = unit();
        unit.removable = true;
        let mut bench = Bench::of(unit, 1 << 20);
        bench.add_ata();
        bench.nexuses[0].read_only = true;
        bench.reach = [Reach::ReadOnly; 2];
        bench
    }

    #[test]
    fn who_may_only_read_changes_nothing_for_others() {
        let mut bench = with_reader();
        for reserve in [&[0x16, 0, 0, 0, 0, 0][..], &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]] {
            bench.read(reserve).assert_check(0x7, 0x2700);
        }
        let id = iscsi_port("iqn.2026-11.example:a", 1);
        let list = [&[0; 15][..], &[1], &[0; 8]].concat();
        let relocate = [&list[..23], &[id.len() as u8], &id].concat();
        for (action, list) in (0..=6).map(|action| (action, &list)).chain([(7, &relocate)]) {
            let order = [0x5f, action, 5, 0, 0, 0, 0, 0, list.len() as u8, 0];
            bench.write(&order, list).assert_check(0x7, 0x2700);
        }
        bench.write(&[0x15, 0x10, 0, 0, 16, 0], &mode_list(0x06)).assert_check(0x7, 0x2700);
        bench.read(&[0x1b, 0, 0, 0, 2, 0]).assert_check(0x7, 0x2700);
        bench.read(&[0x1e, 0, 0, 0, 1, 0]).assert_check(0x7, 0x2700);
        assert!(bench.published.is_none());
        // What it leaves as it is ends well.
        bench.write(&[0x15, 0x10, 0, 0, 16, 0], &mode_list(0x02)).assert_good();
        for harmless in
            [[0x17, 0, 0, 0, 0, 0], [0x1b, 0, 0, 0, 1, 0], [0x1b, 0, 0, 0, 3, 0], [0x1e, 0, 0, 0, 0, 0]]
        {
            bench.read(&harmless).assert_good();
        }
        bench.run(1, &[0x16, 0, 0, 0, 0, 0], &[], 0).assert_good();
        assert_eq!(bench.read(READ).ending.status, Status::ReservationConflict);
    }

    /// MODE SELECT(6) of the Control page with these bits in its third byte.
    fn mode_list(flags: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0x0a, 10, flags, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]
    }

    #[test]
    fn precedence_of_unit_attentions() {
        let mut bench = Bench::new();
        let nexus = &mut bench.nexuses[0];
        for attention in [
            UnitAttention::CapacityChanged,
            UnitAttention::NexusLoss,
            UnitAttention::CommandsCleared,
            UnitAttention::Reset,
            UnitAttention::NexusLoss,
            UnitAttention::ModeChanged,
        ] {
            nexus.establish(attention);
        }
        let told: Vec<UnitAttention> = nexus.attentions.iter().copied().collect();
        let expected = [
            UnitAttention::Reset,
            UnitAttention::CommandsCleared,
            UnitAttention::CapacityChanged,
            UnitAttention::ModeChanged,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_reset_is_told_to_all_and_undoes_mode_select() {
        let mut bench = Bench::new();
        let modes = crate::policy::Modes { descriptor_sense: true, ..bench.view.policy.modes };
        bench.ask(HomeRequest::SetModes {
            from: bench.nexuses[1].identity(),
            change: ModesChange::all(modes),
        });
        bench.read(READY).assert_check(0x6, 0x2a01);
        let outcome = bench.read(&[0xc1; 6]);
        assert_eq!(outcome.ending.sense.unwrap().as_bytes()[0], 0x72);
        bench.ask(HomeRequest::Reset { from: Some(NexusId(1)) });
        for nexus in [0, 1] {
            bench.run(nexus, READY, &[], 0).assert_check(0x6, 0x2903);
            bench.run(nexus, READY, &[], 0).assert_good();
        }
        assert!(!bench.view.policy.modes.descriptor_sense);
    }

    proptest! {
        /// Whatever the CDB and the data, a program ends, keeps to its buffer and to the data-out (which the bench
        /// checks), and a refusal has sense data.
        #[test]
        fn every_command_ends(
            pick in any::<prop::sample::Index>(),
            mut tail in prop::collection::vec(any::<u8>(), 15),
            small in any::<bool>(),
            out in prop::collection::vec(any::<u8>(), 0..1600),
        ) {
            let command = pick.get(crate::table::COMMANDS);
            if small {
                tail[1..].iter_mut().for_each(|byte| *byte &= 0x03);
            }
            let mut cdb = vec![command.opcode()];
            cdb.extend(&tail);
            cdb.truncate(command.usage.len());
            if let Some(action) = command.action {
                cdb[1] = action as u8;
            }
            let mut unit = unit();
            unit.removable = true;
            let outcome = Bench::of(unit, 1 << 20).run(0, &cdb, &out, 4096);
            prop_assert_eq!(outcome.ending.status == Status::CheckCondition, outcome.ending.sense.is_some());
            let mut bench = with_reader();
            bench.medium.fill(0xa5);
            bench.run(0, &cdb, &out, 4096);
            prop_assert!(bench.published.is_none() && bench.medium.iter().all(|byte| *byte == 0xa5));
        }
    }
}
