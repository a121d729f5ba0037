//! Admission: every check that can be made before data moves, in the standard's order.

use crate::commands::admission::Admission;
use crate::server::exec::{Exec, Program, Transfer};
use crate::server::table::{self, Command};
use crate::state::nexus::NexusUnit;
use crate::state::policy::Policy;
use crate::state::readiness::Precondition;
use crate::state::unit::View;
use crate::vocabulary::command::{Attribute, Ending, Request};
use crate::vocabulary::sense::{Check, Failure};
use wire::scsi::command::naca;
use wire::scsi::opcode;

impl View {
    /// Decides whether a command may run, and creates its program. The checks are in the order of SAM-5
    /// section 5.3.3 and SPC-4 section 4.2.5: the command itself, unit attention, reservation, readiness,
    /// write protection, and only then the CDB's fields.
    pub fn admit(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Result<Exec, Ending> {
        nexus.sync(&self.policy);
        if nexus.mac.is_some() {
            return self.admit_ata(nexus, request);
        }
        self.program(nexus, request).map(Exec::new).map_err(|failure| failure.ending(&self.policy.modes))
    }

    /// What a command transfers, if it is admitted and only reads or writes exactly what its initiator
    /// transfers, in one step. `None`: [`View::admit`] decides, and nothing has been changed.
    pub fn transfer(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Option<Transfer> {
        nexus.sync(&self.policy);
        // Only for these is it known that creating their program changes nothing: COPY OPERATION ABORT takes
        // effect there.
        let is_plain = matches!(
            request.cdb.opcode(),
            opcode::READ_6
                | opcode::WRITE_6
                | opcode::READ_10
                | opcode::WRITE_10
                | opcode::READ_12
                | opcode::WRITE_12
                | opcode::READ_16
                | opcode::WRITE_16
        );
        if !is_plain || nexus.takes_turns || !nexus.attentions.is_empty() {
            return None;
        }
        match &self.program(nexus, request) {
            Ok(program) => program.transfer(request),
            Err(_) => None,
        }
    }

    #[inline]
    fn program(&self, nexus: &mut NexusUnit, request: &Request<'_>) -> Result<Program, Failure> {
        let command = table::lookup(self, request.cdb)?;
        check_aca(request, command)?;
        if command.gate != Precondition::Open
            && let Some(attention) = nexus.take_attention()
        {
            return Err(attention.check().into());
        }
        if nexus.access.conflicts(command.reservation) {
            self.check_access(nexus, command)?;
        }
        self.check_precondition(nexus, command.gate)?;
        (command.begin)(&Admission { view: self, nexus, request })
    }
}

impl View {
    /// The state of the target port group, then reservations.
    #[cold]
    fn check_access(&self, nexus: &NexusUnit, command: &Command) -> Result<(), Failure> {
        let Policy { groups, reservations, .. } = &*self.policy;
        if let Some(check) = groups.refusal(nexus.target_port, command.accepted) {
            return Err(check.into());
        }
        let access = reservations.access(nexus.id, &nexus.transport_id, nexus.target_port);
        if access.conflicts(command.reservation) { Err(Failure::CONFLICT) } else { Ok(()) }
    }
}

/// NormACA is zero: the NACA bit and the ACA attribute are refused (SAM-5 section 5.2.3).
fn check_aca(request: &Request<'_>, command: &Command) -> Result<(), Check> {
    let naca = naca(command.usage.len());
    if request.cdb.get(naca) {
        return Err(Check::cdb_field(naca));
    }
    if request.attribute == Attribute::Aca {
        return Err(Check::INVALID_MESSAGE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::server::exec::Transfer;
    use crate::state::attention::UnitAttention;
    use crate::state::copies::Progress;
    use crate::state::home::HomeRequest;
    use crate::state::nexus::{NexusId, Reach};
    use crate::testing::raw;
    use crate::testing::{BLOCK, Bench, unit};
    use crate::vocabulary::command::{Attribute, Request, Status};
    use crate::vocabulary::modes::ModesChange;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use wire::Cdb;
    use wire::scsi::command::{
        CopyOperationAbort, Inquiry, ModeSelect6, ModeSense6, PersistentReserveOut,
        PreventAllowMediumRemoval, Read10, ReadCapacity10, Release6, ReportLuns, Reserve6, Reserve10,
        StartStopUnit, SynchronizeCache10, TestUnitReady, Unmap, Write10, WriteAndVerify10, WriteAtomic16,
        WriteSame10,
    };
    use wire::scsi::mode::{Control, Header6, UNRESTRICTED_REORDERING};
    use wire::scsi::transport_id::iscsi_port;

    const READY: TestUnitReady = TestUnitReady {};
    const READ: Read10 = Read10::new(0, 1);
    const WRITE: Write10 = Write10::new(0, 1);

    #[test]
    fn the_command_is_judged_before_the_unit() {
        let mut bench = Bench::new();
        bench.nexuses[0].establish(UnitAttention::Reset);
        bench.read(&[0xc1; 16]).assert_check(0x5, 0x2000);
        bench.read(&[0, 0, 0, 0, 0, 0x04]).assert_invalid_field(5);
        bench.read(&[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).assert_invalid_field(1);
        bench.read(Read10::new(0xffff_ffff, 1)).assert_check(0x6, 0x2903);
        bench.read(Read10::new(0xffff_ffff, 1)).assert_check(0x5, 0x2100);
    }

    #[test]
    fn unit_attentions_are_reported_once_and_not_by_inquiry() {
        let mut bench = Bench::new();
        bench.nexuses[0].establish(UnitAttention::LunsChanged);
        bench.nexuses[0].establish(UnitAttention::ModeChanged);
        bench.nexuses[0].establish(UnitAttention::ModeChanged);
        bench.read(Inquiry::new(96)).assert_good();
        bench.read(ReportLuns::new(256)).assert_good();
        bench.read(READY).assert_check(0x6, 0x2a01);
        bench.read(READY).assert_good();
    }

    #[test]
    fn a_medium_that_is_away_stops_what_needs_it() {
        let mut unit = unit();
        unit.removable = true;
        let mut bench = Bench::of(unit, 1 << 20);
        bench.read(StartStopUnit { load_eject: true, ..StartStopUnit::default() }).assert_good();
        for cdb in [
            Cdb::from(READY),
            Cdb::from(READ),
            Cdb::from(ReadCapacity10::new()),
            Cdb::from(SynchronizeCache10::new(0, 0)),
        ] {
            bench.read(cdb).assert_check(0x2, 0x3a00);
        }
        bench.write(WRITE, &[0; BLOCK]).assert_check(0x2, 0x3a00);
        bench.write(Unmap::new(24), &[0; 24]).assert_check(0x2, 0x3a00);
        bench.read(Inquiry::new(96)).assert_good();
        bench.ask(HomeRequest::StoreFailed("gone".into()));
        bench.read(StartStopUnit { load_eject: true, start: true, ..StartStopUnit::default() }).assert_good();
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
        bench.read(WriteSame10 { unmap: true, ..WriteSame10::new(0, 1) }).assert_check(0x7, 0x2700);
        bench.read(READ).assert_good();
        let mut bench = Bench::new();
        bench.nexuses[0].read_only = true;
        bench.write(WRITE, &[0; BLOCK]).assert_check(0x7, 0x2700);
        bench.run(1, WRITE, &[0; BLOCK], 0).assert_good();
        assert_eq!(bench.read(ModeSense6::page_only(0x3f, 255)).data[2], 0x90);
    }

    /// What a command transfers, if it is admitted and does nothing else.
    fn transfer(
        bench: &mut Bench,
        cdb: impl Into<Cdb>,
        read_bytes: u32,
        write_bytes: u32,
    ) -> Option<Transfer> {
        let request = Request { cdb: &cdb.into(), attribute: Attribute::Simple, read_bytes, write_bytes };
        bench.view.transfer(&mut bench.nexuses[0], &request)
    }

    #[test]
    fn a_transfer_is_what_the_initiator_moves_in_one_step() {
        let mut bench = Bench::new();
        let (len, block) = (BLOCK as u32, BLOCK as u64);
        let read_at_3 = Read10::new(3, 1);
        let read = Some(Transfer::Read { offset: 3 * block, len });
        assert_eq!(transfer(&mut bench, read_at_3, len, 0), read);
        assert_eq!(transfer(&mut bench, WRITE, 0, len), Some(Transfer::Write { offset: 0, len }));
        for moved in [0, len - 1, len + 1] {
            assert_eq!(transfer(&mut bench, read_at_3, moved, 0), None, "READ of {moved} bytes");
            assert_eq!(transfer(&mut bench, WRITE, 0, moved), None, "WRITE of {moved} bytes");
        }
        assert_eq!(transfer(&mut bench, READY, 0, 0), None);
        let long = Read10::new(0, 1024);
        assert_eq!(transfer(&mut bench, long, 1024 * len, 0), None, "more than one step");
        let verified = WriteAndVerify10::new(0, 1);
        assert_eq!(transfer(&mut bench, verified, 0, len), None);
        let atomic = WriteAtomic16::new(0, 1);
        assert_eq!(transfer(&mut bench, atomic, 0, len), None);
    }

    #[test]
    fn commands_that_are_not_transfers_take_the_general_path() {
        let mut bench = Bench::new();
        let len = BLOCK as u32;
        bench.nexuses[0].establish(UnitAttention::Reset);
        assert_eq!(transfer(&mut bench, READ, len, 0), None);
        bench.read(READ).assert_check(0x6, 0x2903);
        assert!(transfer(&mut bench, READ, len, 0).is_some());
        let beyond = Read10::new(u32::MAX, 1);
        assert_eq!(transfer(&mut bench, beyond, len, 0), None);
        bench.nexuses[0].read_only = true;
        assert_eq!(transfer(&mut bench, WRITE, 0, len), None);
        bench.run(1, Reserve6::default(), &[], 0).assert_good();
        assert_eq!(transfer(&mut bench, READ, len, 0), None, "another nexus has reserved the unit");
        assert_eq!(bench.read(READ).ending.status, Status::ReservationConflict);
    }

    #[test]
    fn a_command_that_is_only_checked_has_no_effect() {
        let mut bench = Bench::new();
        let progress: Arc<Progress> = Arc::default();
        bench.nexuses[0].copies.begin(1, &progress).unwrap();
        let copy_operation_abort = CopyOperationAbort::new(1);
        assert_eq!(transfer(&mut bench, copy_operation_abort, 0, 0), None);
        assert!(!progress.is_aborted.load(Ordering::Relaxed));
    }

    /// A removable unit whose first nexus is read-only, and whose second may do everything.
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
    fn a_read_only_initiator_changes_nothing_for_others() {
        let mut bench = with_reader();
        for reserve in [Cdb::from(Reserve6::default()), Cdb::from(Reserve10::default())] {
            bench.read(reserve).assert_check(0x7, 0x2700);
        }
        let id = iscsi_port("iqn.2026-11.example:a", 1);
        let list = [&[0; 15][..], &[1], &[0; 8]].concat();
        let relocate = [&list[..23], &[id.len() as u8], &id].concat();
        for (action, list) in (0..=6).map(|action| (action, &list)).chain([(7, &relocate)]) {
            let order = PersistentReserveOut::new(action, 5, list.len() as u32);
            bench.write(order, list).assert_check(0x7, 0x2700);
        }
        bench.write(ModeSelect6::new(16), &mode_list(0x06)).assert_check(0x7, 0x2700);
        bench.read(StartStopUnit { load_eject: true, ..StartStopUnit::default() }).assert_check(0x7, 0x2700);
        bench.read(PreventAllowMediumRemoval { prevent: 1 }).assert_check(0x7, 0x2700);
        assert!(bench.published.is_none());
        // Setting the present value succeeds.
        bench.write(ModeSelect6::new(16), &mode_list(0x02)).assert_good();
        for harmless in [
            Cdb::from(Release6::ZERO),
            StartStopUnit { start: true, ..StartStopUnit::ZERO }.into(),
            StartStopUnit { start: true, load_eject: true, ..StartStopUnit::ZERO }.into(),
            PreventAllowMediumRemoval { prevent: 0 }.into(),
        ] {
            bench.read(harmless).assert_good();
        }
        bench.run(1, Reserve6::default(), &[], 0).assert_good();
        assert_eq!(bench.read(READ).ending.status, Status::ReservationConflict);
    }

    /// MODE SELECT(6) of the Control page with these bits in its third byte.
    fn mode_list(flags: u8) -> Vec<u8> {
        let mut page = Control { reordering: UNRESTRICTED_REORDERING, ..Control::ZERO }.to_page();
        page[2] = flags;
        [&[0; Header6::BYTES][..], &page].concat()
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
        let pending: Vec<UnitAttention> = nexus.attentions.iter().copied().collect();
        let expected = [
            UnitAttention::Reset,
            UnitAttention::CommandsCleared,
            UnitAttention::CapacityChanged,
            UnitAttention::ModeChanged,
        ];
        assert_eq!(pending, expected);
    }

    #[test]
    fn a_reset_is_reported_to_all_and_undoes_mode_select() {
        let mut bench = Bench::new();
        let modes = crate::vocabulary::modes::Modes { descriptor_sense: true, ..bench.view.policy.modes };
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
        /// Whatever the CDB and the data, a program ends, stays within its buffer and the data-out (which the
        /// bench checks), and a refusal has sense data.
        #[test]
        fn every_command_ends(
            pick in any::<prop::sample::Index>(),
            mut tail in prop::collection::vec(any::<u8>(), 15),
            small in any::<bool>(),
            out in prop::collection::vec(any::<u8>(), 0..1600),
        ) {
            let command = pick.get(crate::server::table::COMMANDS);
            if small {
                tail[1..].iter_mut().for_each(|byte| *byte &= 0x03);
            }
            let mut cdb = vec![command.opcode()];
            cdb.extend(&tail);
            cdb.truncate(command.usage.len());
            if let Some(action) = command.action {
                cdb[1] = action;
            }
            let mut unit = unit();
            unit.removable = true;
            let outcome = Bench::of(unit, 1 << 20).run(0, raw(&cdb), &out, 4096);
            prop_assert_eq!(outcome.ending.status == Status::CheckCondition, outcome.ending.sense.is_some());
            let mut bench = with_reader();
            bench.medium.fill(0xa5);
            bench.run(0, raw(&cdb), &out, 4096);
            prop_assert!(bench.published.is_none() && bench.medium.iter().all(|byte| *byte == 0xa5));
        }
    }
}
