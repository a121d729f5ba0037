//! ATA PASS-THROUGH (12) and (16) of SCSI initiators (SAT-3 section 12.2). Units that are exported by ATA
//! over Ethernet support them, so that tools for ATA disks work over either.

use super::begin;
use crate::commands::admission::Admission;
use crate::commands::ata::with_registers;
use crate::commands::step::{Env, Event, Step};
use crate::server::exec::{Exec, Program};
use crate::vocabulary::command::{Ending, Status};
use crate::vocabulary::sense::{Check, Failure};
use wire::ata::{self, Protocol, Registers, SECTOR_BYTES, StatusReturn, Transfer};

/// ATA PASS-THROUGH (12).
pub(crate) fn begin12(admission: &Admission<'_>) -> Result<Program, Failure> {
    translate(admission, ata::PassThrough::short_registers(admission.cdb()))
}

/// ATA PASS-THROUGH (16).
pub(crate) fn begin16(admission: &Admission<'_>) -> Result<Program, Failure> {
    translate(admission, ata::PassThrough::registers(admission.cdb()))
}

fn translate(admission: &Admission<'_>, registers: Registers) -> Result<Program, Failure> {
    check_transfer(admission, &registers)?;
    let program = begin(admission, &registers)
        .unwrap_or_else(|failure| Program::End(failure.ending(&admission.view.policy.modes)));
    let check_condition = admission.cdb().get(ata::PassThrough::CHECK_CONDITION);
    let exec = Exec::new(program);
    Ok(Program::PassThrough(Box::new(PassThrough { exec, registers, check_condition, ending: None })))
}

/// The transfer fields of the CDB must be consistent, cover the command's data, and request all of it.
fn check_transfer(admission: &Admission<'_>, registers: &Registers) -> Result<(), Check> {
    let (cdb, request) = (admission.cdb(), admission.request);
    let length = cdb.get(ata::PassThrough::LENGTH);
    let (is_moved, is_in) = (length != ata::PassThrough::NO_LENGTH, cdb.get(ata::PassThrough::FROM_DEVICE));
    let fits = match Protocol::of(cdb).ok_or_else(|| Check::cdb_field(ata::PassThrough::PROTOCOL))? {
        Protocol::NonData => !is_moved,
        Protocol::PioIn => is_moved && is_in,
        Protocol::PioOut => is_moved && !is_in,
    };
    if !fits {
        return Err(Check::cdb_field(ata::PassThrough::FROM_DEVICE));
    }
    let ready = if is_in { request.read_bytes } else { request.write_bytes };
    let one = if cdb.get(ata::PassThrough::IN_BLOCKS) { SECTOR_BYTES } else { 1 };
    let bytes_of = |length: u16| u32::from(length).saturating_mul(one);
    let said = match length {
        ata::PassThrough::NO_LENGTH => 0,
        ata::PassThrough::LENGTH_IN_FEATURE => bytes_of(registers.feature),
        ata::PassThrough::LENGTH_IN_COUNT => bytes_of(registers.count),
        // The length is the transport's.
        _ => ready,
    };
    // The device aborts unknown commands, whatever they would transfer.
    let fits = registers.command().is_none()
        || match registers.transfer() {
            Transfer::Nothing => !is_moved,
            transfer @ Transfer::In(_) => is_in && transfer.bytes() <= said.min(ready),
            transfer @ Transfer::Out(_) => !is_in && transfer.bytes() <= said.min(ready),
        };
    if fits { Ok(()) } else { Err(Check::cdb_field(ata::PassThrough::LENGTH)) }
}

/// A command that was passed through: its end is reported as CK_COND requests.
#[derive(Debug)]
pub(crate) struct PassThrough {
    exec: Exec,
    registers: Registers,
    check_condition: bool,
    /// What follows the data that is being sent.
    ending: Option<Ending>,
}

impl PassThrough {
    /// What was passed through.
    pub(crate) fn exec(&self) -> &Exec {
        &self.exec
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.exec.buffer_bytes()
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        if let (Some(ending), Event::Pushed) = (self.ending.take(), &event) {
            return Step::End(self.wrapped(ending));
        }
        let step = self.exec.next(env, event);
        match step {
            // The data is followed by registers instead of GOOD.
            Step::ReadPush { offset, len, at, end } if self.check_condition => {
                self.ending = end;
                Step::ReadPush { offset, len, at, end: None }
            }
            Step::Push { buffer, len, at, end } if self.check_condition => {
                self.ending = end;
                Step::Push { buffer, len, at, end: None }
            }
            Step::End(ending) => Step::End(self.wrapped(ending)),
            step => step,
        }
    }

    /// Registers are returned after a failure, or on request. Always in descriptor format, which is what
    /// tools understand.
    fn wrapped(&self, ending: Ending) -> Ending {
        let is_available = ending.sense.is_some_and(|sense| sense.code() == StatusReturn::AVAILABLE);
        if is_available && !self.check_condition {
            Ending { status: Status::Good, sense: None, ..ending }
        } else if ending.status == Status::Good && self.check_condition {
            let sense = StatusReturn::good(&self.registers).available();
            Ending { status: Status::CheckCondition, sense: Some(sense), ..ending }
        } else {
            with_registers(ending, &self.registers)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::home::HomeRequest;
    use crate::testing::raw;
    use crate::testing::{BLOCK, Bench, Outcome, unit};
    use crate::vocabulary::modes::EraseKind;
    use crate::vocabulary::storage::{MediaOp, StoreError};
    use proptest::prelude::*;
    use std::sync::Arc;
    use wire::Cdb;
    use wire::ata::{Command, IdentifyData, error, smart, status};
    use wire::scsi::command::Inquiry;

    /// The first nexus that uses ATA.
    const ATA: usize = 2;
    const ABORTED: (u8, u8) = (error::ABRT, status::DRDY | status::ERR);
    // Bits of byte 2.
    const CK_COND: u8 = 0x20;
    const T_DIR: u8 = 0x08;
    const BYT_BLOK: u8 = 0x04;
    const IN_COUNT: u8 = ata::PassThrough::LENGTH_IN_COUNT;
    // In byte 1: PROTOCOL is in bits 1 to 4 (SAT-3 table 104).
    const EXTEND: u8 = 0x01;
    const NON_DATA: u8 = 3;
    const PIO_IN: u8 = 4;
    const PIO_OUT: u8 = 5;
    const DMA: u8 = 6;
    const UDMA_IN: u8 = 10;
    const UDMA_OUT: u8 = 11;

    /// ATA PASS-THROUGH (16), to which these bits are added.
    fn cdb(registers: Registers, flags: u8) -> Vec<u8> {
        let mut cdb = ata::PassThrough::new(registers).to_cdb().unwrap().as_bytes().to_vec();
        cdb[2] |= flags;
        cdb
    }

    fn pass(bench: &mut Bench, registers: Registers, flags: u8, out: &[u8]) -> Outcome {
        let ready = match registers.transfer() {
            Transfer::In(sectors) => sectors * SECTOR_BYTES,
            Transfer::Out(_) | Transfer::Nothing => 0,
        };
        bench.run(0, raw(&cdb(registers, flags)), out, ready)
    }

    fn status_of_smart() -> Registers {
        Registers { feature: 0xda, ..Registers::new(Command::Smart, u64::from(smart::SIGNATURE) << 8, 0) }
    }

    fn returned_by(outcome: &Outcome) -> StatusReturn {
        assert_eq!(outcome.sense(), (0x1, StatusReturn::AVAILABLE));
        StatusReturn::from_sense(&outcome.ending.sense.unwrap()).unwrap()
    }

    #[test]
    fn scsi_initiators_send_what_ata_initiators_send() {
        let mut bench = Bench::with_ata();
        let blocks: Vec<u8> = (0..2 * BLOCK).map(|at| at as u8).collect();
        pass(&mut bench, Registers::new(Command::WriteDmaExt, 5, 2), 0, &blocks).assert_good();
        assert_eq!(bench.medium[5 * BLOCK..7 * BLOCK], blocks);
        let read = bench.ata(ATA, Registers::new(Command::ReadDma, 5, 2), &[]);
        assert_eq!(read.assert_good().data, blocks);
        // READ DMA by ATA PASS-THROUGH (12), DMA; its LBA has 28 bits.
        let short = [0xa1, 0x0c, 0x0e, 0, 2, 5, 0, 0, 0x40, 0xc8, 0, 0];
        assert_eq!(bench.run(0, &short, &[], 1024).assert_good().data, blocks);
        let high = [0xa1, 0x0c, 0x0e, 0, 2, 5, 0, 0, 0x41, 0xc8, 0, 0];
        assert_eq!(bench.run(0, raw(&high), &[], 1024).registers().0, error::IDNF);
        // The high bytes of a 28-bit command are ignored.
        let mut long = cdb(Registers::new(Command::ReadDma, 5, 2), 0);
        [long[3], long[5], long[7], long[9], long[11]] = [0xff; 5];
        assert_eq!(bench.run(0, raw(&long), &[], 1024).assert_good().data, blocks);
        let ours = pass(&mut bench, Registers::new(Command::IdentifyDevice, 0, 1), 0, &[]);
        let theirs = bench.ata(ATA, Registers::new(Command::IdentifyDevice, 0, 1), &[]);
        assert_eq!(ours.assert_good().data, theirs.data);
    }

    #[test]
    fn units_that_are_not_exported_have_none_of_it() {
        let mut bench = Bench::new();
        bench.read(raw(&cdb(status_of_smart(), 0))).assert_check(0x5, 0x2000);
        bench.read(&[0xa1, 0x06, 0, 0, 0, 0, 0, 0, 0, 0xe5, 0, 0]).assert_check(0x5, 0x2000);
        let report = |opcode| [0xa3, 0x0c, 1, opcode, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
        for opcode in [0x85, 0xa1] {
            assert_eq!(bench.read(&report(opcode)).assert_good().data[1], 1);
        }
        bench.add_ata();
        for (opcode, len) in [(0x85, 16), (0xa1, 12)] {
            assert_eq!(bench.read(&report(opcode)).assert_good().data[1..5], [3, 0, len, opcode]);
        }
        bench.read(&[0xc0; 16]).assert_check(0x5, 0x2000);
    }

    #[test]
    fn registers_come_back_when_they_are_asked_for() {
        let mut bench = Bench::with_ata();
        let end = returned_by(&pass(&mut bench, status_of_smart(), CK_COND, &[]));
        assert_eq!((end.lba >> 8, end.status), (smart::SIGNATURE.into(), status::DRDY));
        pass(&mut bench, status_of_smart(), 0, &[]).assert_good();
        let power = Registers::new(Command::CheckPowerMode, 0, 0);
        assert_eq!(returned_by(&pass(&mut bench, power, CK_COND, &[])).count, 0xff);
        pass(&mut bench, Registers::new(Command::FlushCache, 0, 0), CK_COND, &[]).sense();
        let identify = pass(&mut bench, Registers::new(Command::IdentifyDevice, 0, 1), CK_COND, &[]);
        returned_by(&identify);
        assert!(IdentifyData::decode(&identify.data).is_some() && identify.ending.read_bytes == 512);
        let registers = Registers::new(Command::ReadDmaExt, 3, 600);
        let read = pass(&mut bench, registers, CK_COND, &[]);
        assert_eq!(returned_by(&read), StatusReturn::good(&registers));
        assert_eq!((read.data.len(), read.ending.read_bytes), (600 * BLOCK, 600 * BLOCK as u64));
    }

    #[test]
    fn what_was_cached_is_durable_before_registers_come_back() {
        let mut bench = Bench::with_ata();
        bench.after = Some((1, |view| Arc::make_mut(&mut view.policy).modes.write_cache = false));
        let write = Registers::new(Command::WriteDmaExt, 0, 1);
        returned_by(&pass(&mut bench, write, CK_COND, &[1; BLOCK]));
        assert!(matches!(bench.operations[..], [MediaOp::Write { durable: false, .. }, MediaOp::Flush]));
        bench.failure = Some(StoreError::WriteFailed);
        let outcome = pass(&mut bench, write, CK_COND, &[1; BLOCK]);
        assert_eq!((outcome.registers().1 & status::DF, outcome.sense()), (status::DF, (0x3, 0x0c00)));
    }

    #[test]
    fn transfers_that_do_not_fit_are_refused() {
        let mut bench = Bench::with_ata();
        let read = cdb(Registers::new(Command::ReadDmaExt, 0, 2), 0);
        let mut with = |at: usize, byte: u8, ready: u32| {
            let mut cdb = read.clone();
            cdb[at] = byte;
            bench.run(0, raw(&cdb), &[], ready)
        };
        with(2, 0x0e, 1023).assert_invalid_field(2);
        with(2, 0x0e, 1025).assert_good();
        with(2, 0x0f, 1024).assert_good();
        with(2, 0x0f, 1023).assert_invalid_field(2);
        with(2, 0x0a, 1024).assert_invalid_field(2);
        with(2, 0x0d, 1024).assert_invalid_field(2);
        with(2, 0x06, 1024).assert_invalid_field(2);
        with(2, 0x08, 1024).assert_invalid_field(2);
        for (protocol, is_good) in [(PIO_IN, true), (DMA, true), (UDMA_IN, true)] {
            assert_eq!(with(1, protocol << 1 | EXTEND, 1024).ending.status == Status::Good, is_good);
        }
        for protocol in [NON_DATA, PIO_OUT, UDMA_OUT] {
            with(1, protocol << 1 | EXTEND, 1024).assert_invalid_field(2);
        }
        for protocol in [0, 1, 2, 7, 8, 9, 12, 13, 14, 15] {
            with(1, protocol << 1 | EXTEND, 1024).assert_invalid_field(1);
        }
        let write = Registers::new(Command::WriteDmaExt, 0, 2);
        pass(&mut bench, write, 0, &[1; 1023]).assert_invalid_field(2);
        pass(&mut bench, write, T_DIR, &[1; 1024]).assert_invalid_field(2);
        assert!(bench.operations.is_empty());
    }

    #[test]
    fn what_the_device_does_not_do_it_aborts() {
        let mut bench = Bench::with_ata();
        let unknown = Registers { command: 0x47, ..Registers::new(Command::ReadDmaExt, 0, 1) };
        let mut cdb = cdb(unknown, T_DIR | BYT_BLOK | IN_COUNT);
        cdb[1] = PIO_IN << 1 | EXTEND;
        let outcome = bench.run(0, raw(&cdb), &[], 512);
        assert_eq!((outcome.registers(), outcome.sense()), (ABORTED, (0xb, 0x0000)));
        let disable = Registers { feature: 0xd9, ..status_of_smart() };
        assert_eq!(pass(&mut bench, disable, 0, &[]).registers(), ABORTED);
        let far = pass(&mut bench, Registers::new(Command::ReadDmaExt, 1 << 40, 1), 0, &[]);
        assert_eq!((far.registers().0, far.sense()), (error::IDNF, (0x5, 0x2100)));
        bench.failure = Some(StoreError::ReadFailed { at: 6 * 512 });
        let bad = pass(&mut bench, Registers::new(Command::ReadDmaExt, 4, 8), 0, &[]);
        assert_eq!((bad.registers().0, bad.sense()), (error::UNC, (0x3, 0x1100)));
        assert_eq!(StatusReturn::from_sense(&bad.ending.sense.unwrap()).unwrap().lba, 6);
    }

    #[test]
    fn a_pass_through_command_is_checked_like_any_other() {
        let mut bench = Bench::with_ata();
        let write = Registers::new(Command::WriteDmaExt, 0, 1);
        bench.ask(HomeRequest::Reset { from: None });
        pass(&mut bench, write, 0, &[1; BLOCK]).assert_check(0x6, 0x2903);
        let mut cdb = cdb(write, 0);
        cdb[15] = 0x04;
        bench.write(raw(&cdb), &[1; BLOCK]).assert_invalid_field(15);
        bench.nexuses[0].read_only = true;
        let outcome = pass(&mut bench, write, 0, &[1; BLOCK]);
        assert_eq!((outcome.registers(), outcome.sense()), (ABORTED, (0x7, 0x2700)));
        bench.nexuses[0].read_only = false;
        bench.order(ATA, wire::aoe::OrderKind::SetReserve, &crate::testing::MACS[0].0).assert_good();
        let conflict =
            |bench: &mut Bench, registers| pass(bench, registers, CK_COND, &[1; BLOCK]).ending.status;
        assert_eq!(conflict(&mut bench, write), Status::ReservationConflict);
        assert_eq!(conflict(&mut bench, status_of_smart()), Status::ReservationConflict);
        pass(&mut bench, Registers::new(Command::IdentifyDevice, 0, 1), 0, &[]).assert_good();
        assert!(bench.operations.is_empty());
        let mut bench = Bench::with_ata();
        let from = bench.nexuses[0].identity();
        bench.ask(HomeRequest::EraseBegin { from, kind: EraseKind::Sanitize { unrestricted: true } });
        pass(&mut bench, Registers::new(Command::IdentifyDevice, 0, 1), 0, &[]).assert_check(0x2, 0x041b);
    }

    #[test]
    fn the_vital_product_data_has_what_identify_device_says() {
        let mut bench = Bench::with_ata();
        let list = bench.read(Inquiry { vital: true, ..Inquiry::new(255) }).data;
        assert_eq!(list[4..], [0x00, 0x80, 0x83, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8f, 0xb0, 0xb1, 0xb2]);
        let page = bench.read(Inquiry::page(0x89, 1024)).assert_good().data.clone();
        assert_eq!((page.len(), &page[..4]), (572, &[0, 0x89, 2, 0x38][..]));
        assert_eq!((&page[8..36], page[36], page[56]), (&b"LUNETTE RAM             0001"[..], 0x34, 0xec));
        let identify = pass(&mut bench, Registers::new(Command::IdentifyDevice, 0, 1), 0, &[]);
        assert_eq!(page[60..], identify.data);
    }

    proptest! {
        /// Whatever the CDB and the data, a program ends, and stays within its buffer and the data-out (which
        /// the bench checks).
        #[test]
        fn every_command_ends(
            is_long in any::<bool>(),
            mut tail in prop::collection::vec(any::<u8>(), 15),
            known in any::<prop::sample::Index>(),
            protocol in prop::sample::select(vec![NON_DATA, PIO_IN, PIO_OUT, DMA]),
            small in any::<bool>(),
            read_bytes in 0u32..4096,
            out in prop::collection::vec(any::<u8>(), 0..2600),
        ) {
            let codes: Vec<u8> = (0..=u8::MAX).filter(|code| Command::from_code(*code).is_some()).collect();
            if small {
                tail[2..].iter_mut().for_each(|byte| *byte &= 0x03);
                tail[0] = protocol << 1 | tail[0] & EXTEND;
                tail[if is_long { 13 } else { 8 }] = *known.get(&codes);
                tail[if is_long { 14 } else { 10 }] = 0;
            }
            let cdb = if is_long { [&[0x85], &tail[..]].concat() } else { [&[0xa1], &tail[..11]].concat() };
            let mut bench = Bench::of(unit(), 1 << 20);
            bench.add_ata();
            let asks = Cdb::from_bytes(&cdb).unwrap().get(ata::PassThrough::CHECK_CONDITION);
            let ending = bench.run(0, raw(&cdb), &out, read_bytes).ending;
            prop_assert_eq!(ending.status == Status::CheckCondition, ending.sense.is_some());
            prop_assert!(!asks || ending.status != Status::Good);
        }
    }
}
