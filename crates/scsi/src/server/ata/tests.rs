//! Tests of ATA commands, one by one.

use super::*;
use crate::state::home::HomeRequest;
use crate::state::unit::Unit;
use crate::testing::{BLOCK, Bench, Outcome, unit};
use crate::vocabulary::modes::{Modes, ModesChange};
use crate::vocabulary::storage::{MediaOp, StoreError, Traits};
use proptest::prelude::*;
use wire::Cdb;
use wire::ata::smart::{Function, is_whole};
use wire::ata::{Feature, IdentifyData, set_features, smart};
use wire::ata::{error, status};
use wire::scsi::command::Inquiry;
use wire::scsi::command::Read10;
use wire::scsi::command::TestUnitReady;

/// The first nexus that uses ATA.
const ATA: usize = 2;

const READS: [(Command, bool); 6] = [
    (Command::ReadSectors, false),
    (Command::ReadDma, false),
    (Command::ReadMultiple, false),
    (Command::ReadSectorsExt, true),
    (Command::ReadDmaExt, true),
    (Command::ReadMultipleExt, true),
];
const WRITES: [Command; 8] = [
    Command::WriteSectors,
    Command::WriteDma,
    Command::WriteMultiple,
    Command::WriteSectorsExt,
    Command::WriteDmaExt,
    Command::WriteMultipleExt,
    Command::WriteDmaFuaExt,
    Command::WriteMultipleFuaExt,
];

const FAILED: u8 = status::DRDY | status::ERR;
const ABORTED: (u8, u8) = (error::ABRT, FAILED);
const NOT_FOUND: (u8, u8) = (error::IDNF, FAILED);

fn send(bench: &mut Bench, command: Command, lba: u64, count: u16) -> Outcome {
    bench.ata(ATA, Registers::new(command, lba, count), &[])
}

fn ask_smart(bench: &mut Bench, feature: u16, log: u8, count: u16) -> Outcome {
    let lba = u64::from(smart::SIGNATURE) << 8 | u64::from(log);
    bench.ata(ATA, Registers { feature, ..Registers::new(Command::Smart, lba, count) }, &[])
}

fn set(bench: &mut Bench, feature: u8) -> Outcome {
    let registers = Registers { feature: feature.into(), ..Registers::new(Command::SetFeatures, 0, 0) };
    bench.ata(ATA, registers, &[])
}

fn returned_by(outcome: &Outcome) -> StatusReturn {
    assert_eq!(outcome.sense(), (0x1, StatusReturn::AVAILABLE));
    StatusReturn::from_sense(&outcome.ending.sense.unwrap()).unwrap()
}

fn identify(bench: &mut Bench) -> IdentifyData {
    let outcome = send(bench, Command::IdentifyDevice, 0, 1);
    IdentifyData::decode(&outcome.assert_good().data).unwrap()
}

#[test]
fn what_any_write_writes_any_read_reads() {
    let mut bench = Bench::with_ata();
    for (round, command) in (1u8..).zip(WRITES) {
        let blocks = vec![round; 3 * BLOCK];
        bench.operations.clear();
        bench.ata(ATA, Registers::new(command, 5, 3), &blocks).assert_good();
        assert_eq!(bench.medium[5 * BLOCK..8 * BLOCK], blocks);
        let fua = matches!(command, Command::WriteDmaFuaExt | Command::WriteMultipleFuaExt);
        assert!(matches!(bench.operations[..], [MediaOp::Write { durable, .. }] if durable == fua));
        for (command, _) in READS {
            assert_eq!(send(&mut bench, command, 5, 3).assert_good().data, blocks);
        }
        let scsi = Read10::new(5, 3);
        assert_eq!(bench.read(scsi).assert_good().data, blocks, "over SCSI as well");
    }
}

#[test]
fn a_count_of_zero_is_the_most() {
    let mut bench = Bench::with_ata();
    for (command, extended) in READS {
        let sectors = if extended { 65_536 } else { 256 };
        assert_eq!(send(&mut bench, command, 0, 0).assert_good().data.len(), sectors * BLOCK);
    }
    bench.ata(ATA, Registers::new(Command::WriteDma, 0, 0), &vec![7; 256 * BLOCK]).assert_good();
    assert!(bench.medium[..256 * BLOCK].iter().all(|byte| *byte == 7));
}

#[test]
fn what_lies_outside_of_the_medium_is_not_found() {
    let mut bench = Bench::with_ata();
    let last = 131_071;
    for (command, _) in READS {
        send(&mut bench, command, last, 1).assert_good();
        let outcome = send(&mut bench, command, last, 2);
        assert_eq!((outcome.registers(), outcome.sense()), (NOT_FOUND, (0x5, 0x2100)));
        let end = StatusReturn::from_sense(&outcome.ending.sense.unwrap()).unwrap();
        assert_eq!((end.lba, end.count), (last, 2));
    }
    for command in WRITES {
        let registers = Registers::new(command, last + 1, 1);
        assert_eq!(bench.ata(ATA, registers, &[1; BLOCK]).registers(), NOT_FOUND);
    }
    assert_eq!(send(&mut bench, Command::ReadSectorsExt, (1 << 48) - 1, 1).registers(), NOT_FOUND);
    assert_eq!(send(&mut bench, Command::ReadVerifySectorsExt, last, 2).registers(), NOT_FOUND);
    assert!(bench.operations.is_empty());
}

#[test]
fn data_that_does_not_all_move_is_refused() {
    let mut bench = Bench::with_ata();
    let read = PassThrough::new(Registers::new(Command::ReadDmaExt, 0, 2)).to_cdb().unwrap();
    assert_eq!(bench.run(ATA, read, &[], 1023).registers(), ABORTED);
    assert_eq!(bench.run(ATA, read, &[], 1025).assert_good().data.len(), 1024);
    let write = Registers::new(Command::WriteDmaExt, 0, 2);
    assert_eq!(bench.ata(ATA, write, &[1; 1023]).registers(), ABORTED);
    assert!(bench.medium.iter().all(|byte| *byte == 0));
    let identify = PassThrough::new(Registers::new(Command::IdentifyDevice, 0, 1)).to_cdb().unwrap();
    assert_eq!(bench.run(ATA, identify, &[], 511).registers(), ABORTED);
}

#[test]
fn nexuses_that_speak_ata_may_send_nothing_else() {
    let mut bench = Bench::with_ata();
    for scsi in [
        Cdb::from(TestUnitReady {}),
        Cdb::from(Read10::new(0, 1)),
        Cdb::from(Inquiry::new(96)),
        Cdb::from(&[0x85; 16]),
    ] {
        assert_eq!(bench.run(ATA, scsi, &[], 1024).registers(), ABORTED);
    }
}

#[test]
fn blocks_of_another_size_are_not_served() {
    let mut unit = unit();
    unit.block_bytes = 4096;
    let mut bench = Bench::of(unit, 1 << 20);
    bench.add_ata();
    assert_eq!(send(&mut bench, Command::ReadDmaExt, 0, 8).registers(), ABORTED);
    assert_eq!(send(&mut bench, Command::ReadVerifySectors, 0, 8).registers(), ABORTED);
}

#[test]
fn the_device_is_the_unit_that_inquiry_shows() {
    let mut bench = Bench::with_ata();
    let identity = identify(&mut bench);
    assert_eq!(&identity.model[..12], b"LUNETTE RAM ");
    assert_eq!(&identity.serial, b"L0001               ");
    assert_eq!(&identity.firmware, b"0001    ");
    assert_eq!((identity.sectors, identity.sector_bytes, identity.physical_exponent), (131_072, 512, 3));
    assert_eq!((identity.write_cache, identity.smart), (Feature::ON, Feature::ON));
    assert_eq!((identity.rotation_rate, identity.world_wide_name), (1, Some(0x3301_0203_0405_0607)));
    assert!(identity.lba48 && identity.fua && identity.flush_cache && identity.flush_cache_ext);
}

#[test]
fn flushes_flush_and_report_failure() {
    let mut bench = Bench::with_ata();
    for command in [Command::FlushCache, Command::FlushCacheExt, Command::Standby, Command::StandbyImmediate]
    {
        bench.operations.clear();
        send(&mut bench, command, 0, 0).assert_good();
        assert_eq!(bench.operations, [MediaOp::Flush]);
        bench.failure = Some(StoreError::WriteFailed);
        assert_eq!(send(&mut bench, command, 0, 0).registers(), (error::ABRT, FAILED | status::DF));
    }
}

#[test]
fn failures_of_the_medium_are_reported_where_they_are() {
    let mut bench = Bench::with_ata();
    bench.failure = Some(StoreError::ReadFailed { at: 6 * 512 });
    let outcome = send(&mut bench, Command::ReadDmaExt, 4, 8);
    assert_eq!((outcome.registers(), outcome.sense()), ((error::UNC, FAILED), (0x3, 0x1100)));
    assert_eq!(StatusReturn::from_sense(&outcome.ending.sense.unwrap()).unwrap().lba, 6);
    bench.failure = Some(StoreError::WriteFailed);
    let write = Registers::new(Command::WriteDmaExt, 0, 1);
    assert_eq!(bench.ata(ATA, write, &[1; BLOCK]).registers(), (error::ABRT, FAILED | status::DF));
    bench.failure = Some(StoreError::Reserved);
    assert_eq!(bench.ata(ATA, write, &[1; BLOCK]).ending.status, Status::ReservationConflict);
    bench.failure = Some(StoreError::Busy);
    assert_eq!(bench.ata(ATA, write, &[1; BLOCK]).ending.status, Status::Busy);
    bench.failure = Some(StoreError::ReadFailed { at: 0 });
    assert_eq!(send(&mut bench, Command::ReadVerifySectors, 0, 1).registers(), (error::UNC, FAILED));
}

#[test]
fn verify_reads_and_moves_nothing() {
    let mut bench = Bench::with_ata();
    for command in [Command::ReadVerifySectors, Command::ReadVerifySectorsExt] {
        bench.operations.clear();
        assert!(send(&mut bench, command, 1, 2).assert_good().data.is_empty());
        assert_eq!(bench.operations, [MediaOp::Read { offset: 512, len: 1024, buffer: 0 }]);
    }
}

#[test]
fn the_write_cache_is_switched_for_all() {
    let mut bench = Bench::with_ata();
    set(&mut bench, set_features::WRITE_CACHE_OFF).assert_good();
    assert_eq!(bench.operations, [MediaOp::Flush]);
    assert!(!bench.view.policy.modes.write_cache && !identify(&mut bench).write_cache.enabled);
    bench.read(TestUnitReady {}).assert_check(0x6, 0x2a01);
    bench.ata(ATA, Registers::new(Command::WriteDmaExt, 0, 1), &[1; BLOCK]).assert_good();
    assert!(matches!(bench.operations[1], MediaOp::Write { durable: true, .. }));
    bench.published = None;
    bench.operations.clear();
    set(&mut bench, set_features::WRITE_CACHE_OFF).assert_good();
    assert!(bench.published.is_none());
    assert_eq!(bench.operations, [MediaOp::Flush], "who switched it off before may have failed to flush");
    set(&mut bench, set_features::WRITE_CACHE_ON).assert_good();
    assert!(bench.view.policy.modes.write_cache);
    assert!(bench.nexuses[ATA].attentions.is_empty());
    set(&mut bench, set_features::TRANSFER_MODE).assert_good();
    for unknown in [0x00, set_features::LOOK_AHEAD_ON, 0x05, 0xff] {
        assert_eq!(set(&mut bench, unknown).registers(), ABORTED);
    }
    set(&mut bench, set_features::WRITE_CACHE_OFF).assert_good();
    set(&mut bench, set_features::WRITE_CACHE_ON).assert_good();
    for _ in 0..2 {
        bench.failure = Some(StoreError::WriteFailed);
        assert_eq!(set(&mut bench, set_features::WRITE_CACHE_OFF).registers().0, error::ABRT);
        assert!(!bench.view.policy.modes.write_cache);
    }
}

#[test]
fn power_commands_find_it_awake() {
    let mut bench = Bench::with_ata();
    assert_eq!(returned_by(&send(&mut bench, Command::CheckPowerMode, 0, 0)).count, 0xff);
    for command in [Command::Idle, Command::IdleImmediate] {
        send(&mut bench, command, 0, 0).assert_good();
    }
    for (count, is_good) in [(0, true), (16, true), (3, false)] {
        let outcome = send(&mut bench, Command::SetMultipleMode, 0, count);
        assert_eq!(outcome.ending.status == Status::Good, is_good);
    }
}

#[test]
fn smart_says_that_all_is_well() {
    let mut bench = Bench::with_ata();
    for feature in [0xd0, 0xd1] {
        let data = ask_smart(&mut bench, feature, 0, 1).assert_good().data.clone();
        assert!(is_whole(data.as_slice().try_into().unwrap()));
    }
    let status = returned_by(&ask_smart(&mut bench, 0xda, 0, 0));
    assert_eq!((status.lba >> 8, status.error), (smart::SIGNATURE.into(), 0));
    assert_eq!(ask_smart(&mut bench, 0xd5, 0, 1).assert_good().data[..4], [1, 0, 1, 0]);
    for log in [smart::log::SUMMARY_ERRORS, smart::log::SELF_TESTS] {
        assert_eq!(ask_smart(&mut bench, 0xd5, log, 1).assert_good().data.len(), 512);
        assert_eq!(ask_smart(&mut bench, 0xd5, log, 2).registers(), ABORTED);
    }
    assert_eq!(ask_smart(&mut bench, 0xd5, 0xe0, 1).registers(), ABORTED);
    for feature in [0xd8, 0xd2] {
        ask_smart(&mut bench, feature, 0, 0).assert_good();
    }
    for feature in [0xd4, 0xd9, 0xdb, 0xff] {
        assert_eq!(ask_smart(&mut bench, feature, 0, 0).registers(), ABORTED);
    }
    let unsigned = Registers { feature: 0xd0, ..Registers::new(Command::Smart, 0, 1) };
    assert_eq!((Function::of(&unsigned), bench.ata(ATA, unsigned, &[]).registers()), (None, ABORTED));
}

#[test]
fn general_purpose_logs_are_empty() {
    let mut bench = Bench::with_ata();
    let mut read = |lba, count| send(&mut bench, Command::ReadLogExt, lba, count);
    let directory = read(0, 1).assert_good().data.clone();
    let listed: Vec<usize> = (0..256).filter(|at| directory[2 * at..2 * at + 2] == [1, 0]).collect();
    assert_eq!(listed, [0, 3, 7]);
    for log in [smart::log::ERRORS_EXT, smart::log::SELF_TESTS_EXT] {
        let page = read(log.into(), 1).assert_good().data.clone();
        assert!(is_whole(page.as_slice().try_into().unwrap()) && page[..4] == [1, 0, 0, 0]);
    }
    for (lba, count) in [(3, 0), (3, 2), (0x103, 1), (0x0001_0000_0003, 1), (1, 1), (6, 1), (0x30, 1)] {
        assert_eq!(read(lba, count).registers(), ABORTED);
    }
}

fn trim(bench: &mut Bench, ranges: &[(u64, u16)]) -> Outcome {
    let sectors = (ranges.len() as u16).div_ceil(64).max(1);
    let mut list: Vec<u8> =
        ranges.iter().flat_map(|(lba, n)| (lba | u64::from(*n) << 48).to_le_bytes()).collect();
    list.resize(usize::from(sectors) * BLOCK, 0);
    let registers = Registers { feature: TRIM, ..Registers::new(Command::DataSetManagement, 0, sectors) };
    bench.ata(ATA, registers, &list)
}

#[test]
fn what_is_trimmed_reads_as_zeros() {
    let mut bench = Bench::with_ata();
    assert_eq!(identify(&mut bench).trim_sectors, TRIM_SECTORS_MAX);
    bench.medium.fill(1);
    trim(&mut bench, &[(1, 2), (7, 0), (9, 1)]).assert_good();
    let zeros: Vec<usize> = (0..12).filter(|block| bench.medium[block * BLOCK] == 0).collect();
    assert_eq!(zeros, [1, 2, 9]);
    trim(&mut bench, &[(3, 1); 256]).assert_good();
    assert_eq!(trim(&mut bench, &[(4, 1), (131_071, 2)]).registers(), NOT_FOUND);
    assert_eq!(bench.medium[4 * BLOCK], 1, "nothing is trimmed when a range is wrong");
    assert_eq!(trim(&mut bench, &[(4, 1); 257]).registers(), ABORTED);
    let other = Registers::new(Command::DataSetManagement, 0, 1);
    assert_eq!(bench.ata(ATA, other, &[0; BLOCK]).registers(), ABORTED);
    let short = Registers { feature: TRIM, ..other };
    assert_eq!(bench.ata(ATA, short, &[0; BLOCK - 1]).registers(), ABORTED);
    let mut unit = unit();
    unit.thin = false;
    let mut bench = Bench::of(unit, 1 << 20);
    bench.add_ata();
    assert_eq!(trim(&mut bench, &[(1, 1)]).registers(), ABORTED);
    assert_eq!(identify(&mut bench).trim_sectors, 0);
}

#[test]
fn the_native_size_is_the_size() {
    let mut bench = Bench::with_ata();
    for command in [Command::ReadNativeMaxAddress, Command::ReadNativeMaxAddressExt] {
        assert_eq!(returned_by(&send(&mut bench, command, 0, 0)).lba, 131_071);
    }
    let traits = bench.view.policy.traits;
    bench.ask(HomeRequest::StoreChanged(Traits { size_bytes: 1 << 40, ..traits }));
    let long = |command, bench: &mut Bench| returned_by(&send(bench, command, 0, 0)).lba;
    assert_eq!(long(Command::ReadNativeMaxAddress, &mut bench), 0x0fff_ffff);
    assert_eq!(long(Command::ReadNativeMaxAddressExt, &mut bench), (1 << 31) - 1);
}

proptest! {
    /// Whatever the registers and the data, a program ends, stays within its buffer and the data-out (which
    /// the bench checks), and what fails has registers.
    #[test]
    fn every_command_ends(
        command in any::<u8>(),
        known in any::<prop::sample::Index>(),
        fields in any::<(bool, u16, u16, u64)>(),
        small in any::<bool>(),
        read_bytes in 0u32..4096,
        out in prop::collection::vec(any::<u8>(), 0..2600),
    ) {
        let (extend, feature, count, lba) = fields;
        let codes: Vec<u8> = (0..=u8::MAX).filter(|code| Command::from_code(*code).is_some()).collect();
        let registers = if small {
            Registers { extend, feature: feature & 1, count: count % 6, lba: lba % 2048, device: 0, command: *known.get(&codes) }
        } else {
            Registers { extend, feature, count, lba: lba >> 16, device: 0, command }
        };
        let mut bench = Bench::of(unit(), 1 << 20);
        bench.add_ata();
        let cdb = PassThrough::new(registers).to_cdb().unwrap();
        let ending = bench.run(ATA, cdb, &out, read_bytes).ending;
        prop_assert_eq!(ending.status == Status::CheckCondition, ending.sense.is_some());
        prop_assert!(ending.sense.is_none_or(|sense| StatusReturn::from_sense(&sense).is_some()));
    }
}

#[test]
fn unknown_commands_are_aborted() {
    let mut bench = Bench::with_ata();
    for command in [0x00, 0x08, 0x10, 0x47, 0x60, 0x90, 0xa1, 0xe4, 0xf6, 0xff] {
        let registers = Registers { command, ..Registers::new(Command::Idle, 7, 1) };
        assert_eq!(bench.ata(ATA, registers, &[]).registers(), ABORTED);
    }
}

#[test]
fn write_protection_and_readiness_are_the_units() {
    let write = Registers::new(Command::WriteDmaExt, 0, 1);
    let mut bench = Bench::with_ata();
    bench.nexuses[ATA].read_only = true;
    let outcome = bench.ata(ATA, write, &[1; BLOCK]);
    assert_eq!((outcome.registers(), outcome.sense()), (ABORTED, (0x7, 0x2700)));
    bench.ata(ATA + 1, write, &[1; BLOCK]).assert_good();
    send(&mut bench, Command::ReadDmaExt, 0, 1).assert_good();
    let modes = Modes { software_write_protect: true, ..bench.view.policy.modes };
    let from = bench.nexuses[0].identity();
    bench.ask(HomeRequest::SetModes { from, change: ModesChange::all(modes) });
    assert_eq!(bench.ata(ATA + 1, write, &[1; BLOCK]).registers(), ABORTED);
    bench.ask(HomeRequest::StoreFailed("gone".into()));
    for command in [Command::ReadDmaExt, Command::FlushCacheExt] {
        assert_eq!(send(&mut bench, command, 0, 1).registers(), ABORTED);
    }
    identify(&mut bench);
}

#[test]
fn unit_attentions_are_not_for_ata() {
    let mut bench = Bench::with_ata();
    bench.ask(HomeRequest::Reset { from: None });
    bench.ask(HomeRequest::StoreReset);
    send(&mut bench, Command::ReadDmaExt, 0, 1).assert_good();
    bench.read(TestUnitReady {}).assert_check(0x6, 0x2900);
}

/// After a restart in the middle of a chain, a write of the previous process may still be waiting behind it.
#[test]
fn a_unit_whose_store_is_elsewhere_proves_nothing_by_nop() {
    for remote in [false, true] {
        let bench = Bench::of(Unit { remote, ..unit() }, 1 << 20);
        let identity = IdentifyData::decode(&crate::commands::ata::identify::identify_data(&bench.view))
            .expect("IDENTIFY DEVICE data");
        assert_eq!(identity.proves_by_nop(), !remote);
    }
}
