//! Copies between two small units.

use super::*;
use crate::state::copies::{COPIES_MAX, COPIES_OF_ONE_MAX, Outcome, Place, Progress, Results};
use crate::state::nexus::Reach;
use crate::testing::{BLOCK, Bench, Outcome as Ended, unit};
use crate::vocabulary::command::Status;
use crate::vocabulary::storage::{MediaOp, StoreError};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::scsi::Command;
use wire::scsi::command::{
    CopyOperationAbort, ExtendedCopyLid1, ExtendedCopyLid4, Inquiry, ReceiveCopyResults,
    ReceiveCopyStatusLid4, Release6, Reserve6,
};
use wire::scsi::copy::{BlockSegment, CopyListLid1, CopyListLid4, IdentificationCscd, copy_list_format};
use wire::scsi::opcode::service_action::extended_copy;
use wire::scsi::transport_id::iscsi_port;

const BYTES: usize = 1 << 20;
const BLOCKS: u64 = (BYTES / BLOCK) as u64;

/// Two units whose bytes encode their position.
fn bench() -> Bench {
    let mut bench = Bench::of(unit(), BYTES);
    let mut second = unit();
    (second.index, second.naa[7], second.eui[7]) = (1, 8, 2);
    bench.second = Some((Bench::of(second, BYTES).view, vec![0; BYTES]));
    for (at, byte) in bench.medium.iter_mut().enumerate() {
        *byte = (at / BLOCK) as u8 ^ at as u8;
    }
    bench
}

/// The identification descriptor CSCD descriptor of a unit, with its NAA name.
fn cscd(bench: &Bench, index: usize) -> Vec<u8> {
    let views = [&bench.view, &bench.second.as_ref().unwrap().0];
    IdentificationCscd::of_naa(&views[index].unit.naa[..8]).with_block_bytes(512).to_bytes().to_vec()
}

fn segment(flags: u8, from: u16, to: u16, blocks: u16, source: u64, destination: u64) -> Vec<u8> {
    let mut segment = BlockSegment::new((from, source), (to, destination), blocks).to_bytes().to_vec();
    segment[1] |= flags;
    segment
}

fn short_list(id: u8, usage: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let header = CopyListLid1 {
        list_id: id,
        usage,
        cscd_bytes: cscds.len() as u16,
        segment_bytes: segments.len() as u32,
        inline_bytes: 0,
    };
    [header.to_bytes().to_vec(), cscds, segments].concat()
}

fn long_list(id: u32, flags: u8, options: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let header = CopyListLid4 {
        format: copy_list_format::FORMAT,
        header_cscd_bytes: copy_list_format::HEADER_CSCD_BYTES,
        header_cscd_type: copy_list_format::HEADER_CSCD_TYPE,
        list_id: id,
        cscd_bytes: cscds.len() as u16,
        segment_bytes: segments.len() as u16,
        ..CopyListLid4::ZERO
    };
    let mut header = header.to_bytes().to_vec();
    (header[1], header[15]) = (flags, options);
    [header, cscds, segments].concat()
}

fn copy_with(bench: &mut Bench, action: u8, list: &[u8]) -> Ended {
    let len = list.len() as u32;
    let is_short = action == extended_copy::LID1;
    let cdb =
        if is_short { ExtendedCopyLid1::new(len).to_cdb() } else { ExtendedCopyLid4::new(len).to_cdb() };
    bench.write(cdb, list)
}

fn copy(bench: &mut Bench, list: &[u8]) -> Ended {
    copy_with(bench, 0, list)
}

fn results(bench: &mut Bench, action: u8, id: u8) -> Ended {
    bench.read(ReceiveCopyResults::new(action, id, 1024))
}

#[test]
fn blocks_go_to_another_unit() {
    let mut bench = bench();
    let cscds = [cscd(&bench, 0), cscd(&bench, 1)];
    let segments = [segment(0, 0, 1, 1000, 3, 900), segment(2, 1, 0, 2, 900, 0), segment(0, 0, 0, 0, 0, 0)];
    let before = bench.medium.clone();
    copy(&mut bench, &short_list(7, 0, &cscds, &segments)).assert_good();
    let copied = &bench.second.as_ref().unwrap().1;
    assert_eq!(copied[900 * BLOCK..1900 * BLOCK], before[3 * BLOCK..1003 * BLOCK]);
    assert!(copied[..900 * BLOCK].iter().all(|byte| *byte == 0));
    assert_eq!(bench.medium[..2 * BLOCK], before[3 * BLOCK..5 * BLOCK]);
    let status = results(&mut bench, 0, 7).assert_good().data.clone();
    assert_eq!(status, [0, 0, 0, 8, 1, 0, 3, 0, 0, 7, 0xd4, 0]);
    results(&mut bench, 0, 7).assert_invalid_field(2);
}

#[test]
fn overlapping_places_do_not_disturb_each_other() {
    for (from, to) in [(0, 100), (100, 0), (5, 5)] {
        let mut bench = bench();
        let before = bench.medium.clone();
        let list = short_list(0, 3, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1500, from, to)]);
        copy(&mut bench, &list).assert_good();
        let place = |lba: u64| lba as usize * BLOCK..(lba as usize + 1500) * BLOCK;
        assert_eq!(bench.medium[place(to)], before[place(from)]);
    }
}

#[test]
fn lists_have_their_lengths() {
    let mut bench = bench();
    let list = short_list(1, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    copy(&mut bench, &[]).assert_good();
    for len in 1..list.len() {
        copy(&mut bench, &list[..len]).assert_check(0x5, 0x1a00);
    }
    let list = long_list(1, 0, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    for len in 1..list.len() {
        copy_with(&mut bench, 1, &list[..len]).assert_check(0x5, 0x1a00);
    }
    bench.run(0, ExtendedCopyLid1::new(0x0002_0000), &[0; 64], 0).assert_check(0x5, 0x1a00);
    assert!(bench.operations.is_empty());
}

#[test]
fn descriptors_are_counted_and_known() {
    let mut bench = bench();
    let (target, piece) = (cscd(&bench, 0), segment(0, 0, 0, 1, 0, 9));
    let many = |descriptor: &Vec<u8>, count: u16| vec![descriptor.clone(); count.into()];
    let check = |bench: &mut Bench, cscds: &[Vec<u8>], segments: &[Vec<u8>], code| {
        copy(bench, &short_list(1, 0, cscds, segments)).assert_check(0x5, code);
    };
    check(&mut bench, &many(&target, CSCDS_MAX + 1), &many(&piece, 1), 0x2606);
    check(&mut bench, &many(&target, 1), &many(&piece, SEGMENTS_MAX + 1), 0x2608);
    check(&mut bench, &many(&target, CSCDS_MAX + 1), &many(&piece, SEGMENTS_MAX + 1), 0x1a00);
    check(&mut bench, &[vec![0xe0; 32]], &many(&piece, 1), 0x2607);
    for kind in [0x03, 0x0a] {
        check(&mut bench, &many(&target, 1), &[vec![kind; 20]], 0x2609);
    }
    let mut inline = short_list(1, 0, &many(&target, 1), &many(&piece, 1));
    inline[15] = 1;
    copy(&mut bench, &inline).assert_check(0x5, 0x260b);
    for (id, usage) in [(0, 1), (1, 3)] {
        copy(&mut bench, &short_list(id, usage, &many(&target, 1), &many(&piece, 1)))
            .assert_check(0x5, 0x2600);
    }
    let full = short_list(1, 0, &many(&target, CSCDS_MAX), &many(&piece, SEGMENTS_MAX));
    copy(&mut bench, &full).assert_good();
}

#[test]
fn segments_that_cannot_be_copied() {
    let mut bench = bench();
    let mut stranger = cscd(&bench, 0);
    stranger[8] ^= 0x0f;
    let mut tape = cscd(&bench, 0);
    tape[1] = 0x01;
    let mut coarse = cscd(&bench, 0);
    coarse[30] = 8;
    let cscds = [cscd(&bench, 0), stranger, tape, coarse];
    for (number, (piece, code)) in [
        (segment(0, 0, 4, 1, 0, 9), 0x0d02),
        (segment(0, 1, 0, 1, 0, 9), 0x0d02),
        (segment(0, 0, 2, 1, 0, 9), 0x0d03),
        (segment(0, 3, 0, 1, 0, 9), 0x0d03),
        (segment(0, 0, 0, 2, 0, BLOCKS - 1), 0x0000),
        (segment(0, 0, 0, 2, BLOCKS - 1, 0), 0x0000),
        (segment(0, 0, 0, 1, u64::MAX, 0), 0x0000),
        (segment(0, 0, 0, 1, 0, u64::MAX / BLOCK as u64), 0x0000),
    ]
    .into_iter()
    .enumerate()
    {
        let mut pieces = vec![segment(0, 0, 0, 1, 0, 9); number];
        pieces.push(piece);
        let outcome = copy(&mut bench, &short_list(1, 0, &cscds, &pieces));
        outcome.assert_check(0xa, code);
        assert_eq!(outcome.ending.sense.unwrap().as_bytes()[8..12], (number as u32).to_be_bytes());
    }
    assert!(bench.operations.is_empty());
    let mut field = cscd(&bench, 0);
    field[7] = 21;
    copy(&mut bench, &short_list(1, 0, &[field], &[])).assert_check(0x5, 0x2600);
}

#[test]
fn nothing_is_copied_past_what_the_nexus_may_do() {
    let cases: [fn(&mut Bench); 4] = [
        |bench| bench.reach[1] = Reach::ReadOnly,
        |bench| {
            let (view, _) = bench.second.as_mut().unwrap();
            Arc::make_mut(&mut view.policy).modes.software_write_protect = true;
        },
        |bench| {
            let (view, _) = bench.second.as_mut().unwrap();
            Arc::make_mut(&mut view.policy).failed = Some("gone".into());
        },
        |bench| {
            bench.run(1, Reserve6::default(), &[], 0).assert_good();
            let reserved = Arc::clone(&bench.view.policy.reservations);
            bench.run(1, Release6::default(), &[], 0).assert_good();
            let (view, _) = bench.second.as_mut().unwrap();
            Arc::make_mut(&mut view.policy).reservations = reserved;
        },
    ];
    for spoil in cases {
        let mut bench = bench();
        let list = short_list(1, 0, &[cscd(&bench, 0), cscd(&bench, 1)], &[segment(0, 0, 1, 1, 0, 0)]);
        copy(&mut bench, &list).assert_good();
        spoil(&mut bench);
        copy(&mut bench, &list).assert_check(0xa, 0x0d01);
    }
    let mut bench = bench();
    bench.reach[1] = Reach::No;
    let list = short_list(1, 0, &[cscd(&bench, 0), cscd(&bench, 1)], &[segment(0, 1, 0, 1, 0, 0)]);
    copy(&mut bench, &list).assert_check(0xa, 0x0d02);
}

#[test]
fn units_with_other_block_sizes_exchange_whole_blocks() {
    let mut bench = bench();
    let (view, _) = bench.second.as_mut().unwrap();
    Arc::make_mut(&mut view.policy).block_bytes = 4096;
    let mut coarse = cscd(&bench, 1);
    coarse[30] = 0x10;
    let cscds = [cscd(&bench, 0), coarse];
    copy(&mut bench, &short_list(1, 0, &cscds, &[segment(0, 0, 1, 7, 0, 0)])).assert_check(0xa, 0x260a);
    copy(&mut bench, &short_list(1, 0, &cscds, &[segment(2, 0, 1, 2, 8, 1)])).assert_good();
    let copied = &bench.second.as_ref().unwrap().1;
    assert_eq!(copied[4096..3 * 4096], bench.medium[4096..3 * 4096]);
}

#[test]
fn results_are_held_as_the_list_says() {
    let mut bench = bench();
    let pieces = [segment(0, 0, 0, 1, 0, 9)];
    let cscds = [cscd(&bench, 0)];
    results(&mut bench, 0, 1).assert_invalid_field(2);
    copy(&mut bench, &short_list(1, 2, &cscds, &pieces)).assert_good();
    results(&mut bench, 0, 1).assert_invalid_field(2);
    copy(&mut bench, &short_list(1, 0, &cscds, &pieces)).assert_good();
    assert_eq!(results(&mut bench, 1, 1).assert_good().data, [0; 4]);
    assert_eq!(results(&mut bench, 4, 1).assert_good().data, [0; 4]);
    copy(&mut bench, &short_list(1, 0, &cscds, &[segment(0, 0, 9, 1, 0, 9)])).assert_check(0xa, 0x0d02);
    results(&mut bench, 0, 1).assert_invalid_field(2);
    for id in 0..=Results::RECORDS_MAX as u8 {
        copy(&mut bench, &short_list(id, 0, &cscds, &pieces)).assert_good();
    }
    results(&mut bench, 0, 0).assert_invalid_field(2);
    results(&mut bench, 0, 1).assert_good();
}

#[test]
fn a_failed_operation_reports_its_segment() {
    let mut bench = bench();
    let list = short_list(1, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    bench.failure = Some(StoreError::ReadFailed { at: 0 });
    copy(&mut bench, &list).assert_check(0xa, 0x0d01);
    assert_eq!(results(&mut bench, 0, 1).assert_good().data[4..7], [2, 0, 0]);
    let details = results(&mut bench, 4, 1).assert_good().data.clone();
    assert_eq!((details[56], details[60] & 0x7f, details[62]), (2, 0x70, 0x0a));
    assert_eq!(usize::from(details[3]) + 4, details.len());
    results(&mut bench, 4, 1).assert_invalid_field(2);
}

#[test]
fn operating_parameters_are_the_limits() {
    let mut bench = bench();
    let data = results(&mut bench, 3, 0).assert_good().data.clone();
    assert_eq!(usize::from(data[3]) + 4, data.len());
    assert_eq!(data[8..16], [0, 16, 1, 0, 0, 0, 0x1e, 0]);
    assert_eq!(data[32..], [0, 0, 0, 64, 16, 0, 0, 0, 0, 0, 0, 2, 0x02, 0xe4]);
    let page = bench.read(Inquiry::page(0x8f, 255)).assert_good().data.clone();
    assert_eq!(usize::from(page[3]) + 4, page.len());
    let mut rest = &page[4..];
    let mut kinds = Vec::new();
    while let [high, low, _, len, ..] = *rest {
        kinds.push(u16::from_be_bytes([high, low]));
        rest = &rest[usize::from(len) + 4..];
        assert_eq!(len % 4, 0);
    }
    assert_eq!(kinds, [0x0001, 0x0004, 0x0008, 0x000c, 0x8001]);
}

#[test]
fn the_long_format() {
    let mut bench = bench();
    let (cscds, pieces) = ([cscd(&bench, 0)], [segment(0, 0, 0, 1, 0, 9)]);
    let status = |bench: &mut Bench| bench.read(ReceiveCopyStatusLid4::new(0x0102_0304, 1024));
    status(&mut bench).assert_invalid_field(2);
    for options in [0, 1] {
        copy_with(&mut bench, 1, &long_list(0x0102_0304, 0, options, &cscds, &pieces)).assert_good();
        let data = status(&mut bench).assert_good().data.clone();
        assert_eq!((data.len(), data[3], data[4], data[5]), (32, 28, 1, 1));
        assert_eq!(data[16..26], [0, 0, 0, 0, 0, 0, 2, 0, 0, 1]);
    }
    for at in [0, 3, 16] {
        let mut list = long_list(1, 0, 0, &cscds, &pieces);
        list[at] ^= 1;
        copy_with(&mut bench, 1, &list).assert_check(0x5, 0x2600);
    }
}

/// The engine gives a detached program its own nexus: the outcome must reach the session's all the same.
#[test]
fn an_immediate_copy_reports_its_end_and_needs_a_list_identifier() {
    let mut bench = bench();
    let (cscds, pieces) = ([cscd(&bench, 0)], [segment(0, 0, 0, 1, 0, 9)]);
    copy_with(&mut bench, 1, &long_list(0, 3 << 3, 1, &cscds, &pieces)).assert_check(0x5, 0x2600);
    copy_with(&mut bench, 1, &long_list(0, 3 << 3, 0, &cscds, &pieces)).assert_good();
    let progress: Arc<Progress> = Arc::default();
    bench.nexuses[0].copies.begin(0x0102_0304, &progress).unwrap();
    let _detached = bench.nexuses[0].clone();
    progress.outcome.set(Outcome::Good).unwrap();
    let status = bench.read(ReceiveCopyStatusLid4::new(0x0102_0304, 1024));
    assert_eq!(status.assert_good().data[5], 1);
}

#[test]
fn copies_of_a_unit_are_counted() {
    let mut bench = bench();
    let list = short_list(1, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    let take = |bench: &Bench, host: u16| bench.view.unit.copies.take(&host.to_be_bytes()).unwrap();
    let others: Vec<Place> = (1..COPIES_MAX).map(|host| take(&bench, host)).collect();
    copy(&mut bench, &list).assert_good();
    let last = take(&bench, 0);
    copy(&mut bench, &list).assert_check(0x5, 0x5503);
    drop((others, last));
    copy(&mut bench, &list).assert_good();
}

/// However many sessions it has (RFC 7143 section 4.4.7: they differ in the ISID).
#[test]
fn one_initiator_leaves_places_for_copies_to_others() {
    let mut bench = bench();
    let session = |isid: u64| iscsi_port("iqn.2026-11.example:greedy", isid);
    let copies = Arc::clone(&bench.view.unit.copies);
    let greedy: Vec<Place> =
        (0..u64::from(COPIES_OF_ONE_MAX)).map(|isid| copies.take(&session(isid)).unwrap()).collect();
    assert!(copies.take(&session(99)).is_err());
    let list = short_list(1, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    copy(&mut bench, &list).assert_good();
    drop(greedy);
    assert!(copies.take(&session(99)).is_ok() && copies.is_empty());
}

/// An operation in progress, as its program would record it.
#[test]
fn an_operation_under_way_is_known_and_can_be_stopped() {
    let mut bench = bench();
    let progress: Arc<Progress> = Arc::default();
    bench.nexuses[0].copies.begin(1, &progress).unwrap();
    assert_eq!(results(&mut bench, 0, 1).assert_good().data[4], 0);
    results(&mut bench, 1, 1).assert_invalid_field(2);
    let list = short_list(1, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    copy(&mut bench, &list).assert_check(0x5, 0x0016);
    let abort = CopyOperationAbort::new;
    bench.read(abort(2)).assert_invalid_field(2);
    bench.read(abort(1)).assert_good();
    assert!(progress.is_aborted.load(Ordering::Relaxed));
    let others: Vec<Arc<Progress>> = (2..17).map(|_| Arc::default()).collect();
    for (id, other) in (2..).zip(&others) {
        bench.nexuses[0].copies.begin(id, other).unwrap();
    }
    let another = short_list(99, 0, &[cscd(&bench, 0)], &[]);
    copy(&mut bench, &another).assert_check(0x5, 0x5503);
    progress.outcome.set(Outcome::Aborted).unwrap();
    assert_eq!(results(&mut bench, 0, 1).assert_good().data[4], 2);
    bench.read(abort(1)).assert_invalid_field(2);
    copy(&mut bench, &list).assert_good();
}

#[test]
fn what_is_written_is_durable_without_a_write_cache() {
    let mut bench = bench();
    let list = short_list(1, 0, &[cscd(&bench, 0)], &[segment(0, 0, 0, 1, 0, 9)]);
    for write_cache in [true, false] {
        Arc::make_mut(&mut bench.view.policy).modes.write_cache = write_cache;
        copy(&mut bench, &list).assert_good();
        let last = bench.operations.last().unwrap();
        assert!(matches!(last, MediaOp::Write { durable, .. } if *durable != write_cache));
    }
}

proptest! {
    #[test]
    fn any_list_ends(
        long in any::<bool>(),
        mut cscds in prop::collection::vec(any::<u8>(), 0..80),
        segments in prop::collection::vec(any::<u8>(), 0..80),
        known in any::<bool>(),
    ) {
        let mut bench = bench();
        if known {
            cscds = cscd(&bench, 1);
        }
        let (cscds, segments) = ([cscds], [segment(0, 0, 0, 9, 9, 9), segments]);
        let list = if long { long_list(1, 0, 0, &cscds, &segments) } else { short_list(1, 0, &cscds, &segments) };
        let outcome = copy_with(&mut bench, u8::from(long), &list);
        prop_assert!([Status::Good, Status::CheckCondition].contains(&outcome.ending.status));
    }
}
