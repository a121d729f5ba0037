//! Impossible answers of a target are not passed on.

use super::chain::{client, flush, good, pattern, read, sense, write};
use super::fake::Fake;
use super::lanes::Core;
use super::support::{serve, wait_until_open};
use engine::Daemon;
use initiator::remote::{self, RemoteOptions};
use scsi::storage::StoreError;
use wire::SenseKey;
use wire::scsi::command::{CompareAndWrite, Inquiry};
use wire::scsi::vpd;

const FAILED: (Option<SenseKey>, u16) = (Some(SenseKey::MediumError), 0x0c00);
const LOST: (Option<SenseKey>, u16) = (Some(SenseKey::HardwareError), 0x0c00);

fn front_of(fake: &Fake) -> Daemon {
    let front = serve(&[&fake.url()]);
    wait_until_open(&front, 0);
    front
}

#[test]
fn a_write_whose_data_nobody_took_is_an_error_for_the_next_flush_too() {
    let fake = Fake::start();
    let front = front_of(&fake);
    let mut client = client(&front);
    let data = pattern(1, 4096);
    good(&mut client, write(0, 8), 0, &data);
    good(&mut client, flush(), 0, &[]);
    for (takes, reports_residual) in [(0, false), (0, true), (512, false), (512, true)] {
        fake.with(|state| (state.takes, state.reports_residual) = (takes, reports_residual));
        assert_eq!(sense(&mut client, write(8, 8), 0, &data), FAILED, "{takes} {reports_residual}");
        assert_eq!(sense(&mut client, flush(), 0, &[]), LOST, "{takes} {reports_residual}");
        good(&mut client, flush(), 0, &[]);
        fake.with(|state| state.takes = usize::MAX);
        good(&mut client, write(8, 8), 0, &data);
        good(&mut client, flush(), 0, &[]);
    }
    assert!(fake.with(|state| state.medium[4096..8192] == data));
}

#[test]
fn a_lane_fails_a_write_whose_data_nobody_took() {
    let fake = Fake::start();
    let url = fake.url().parse().expect("a URL");
    let mut core = Core::of(&remote::open(&url, &RemoteOptions::default()).expect("a unit"));
    fake.with(|state| (state.takes, state.reports_residual) = (0, false));
    assert_eq!(core.write(0, &pattern(1, 4096)), Err(StoreError::WriteFailed));
}

#[test]
fn blocks_that_change_their_size_without_a_word_are_not_served() {
    let fake = Fake::start();
    let front = front_of(&fake);
    let mut client = client(&front);
    let data = pattern(2, 4096);
    good(&mut client, write(8, 8), 0, &data);
    fake.with(|state| state.block_bytes = 4096);
    let refused = sense(&mut client, read(8, 8), 4096, &[]);
    assert!(matches!(refused.0, Some(SenseKey::MediumError | SenseKey::NotReady)), "{refused:?}");
    while sense(&mut client, read(8, 8), 4096, &[]).0 != Some(SenseKey::NotReady) {}
    fake.with(|state| state.block_bytes = 512);
    while client.command(read(8, 8), 4096, &[]).expect("a reply").status != 0 {}
    assert!(good(&mut client, read(8, 8), 4096, &[]) == data);
}

#[test]
fn after_a_unit_attention_nothing_is_sent_to_blocks_of_another_size() {
    for (code, cdb, read_bytes) in [
        (0x2a09, write(8, 8), 0),
        (0x2a09, read(8, 8), 4096),
        (0x2a01, write(8, 8), 0),
        (0x3f01, read(8, 8), 4096),
    ] {
        let fake = Fake::start();
        let front = front_of(&fake);
        let mut client = client(&front);
        good(&mut client, read(0, 8), 4096, &[]);
        fake.with(|state| {
            (state.block_bytes, state.attention, state.executed) = (4096, Some(code), 0);
        });
        let data = if read_bytes == 0 { pattern(3, 4096) } else { Vec::new() };
        assert_eq!(sense(&mut client, cdb, read_bytes, &data).0, Some(SenseKey::NotReady));
        fake.with(|state| {
            assert_eq!(state.executed, 0, "{code:04x}");
            assert!(state.medium.iter().all(|byte| *byte == 0), "{code:04x}");
        });
    }
}

#[test]
fn what_was_read_while_a_unit_attention_was_on_its_way_is_read_again() {
    let fake = Fake::start();
    let url = fake.url().parse().expect("a URL");
    let mut core = Core::of(&remote::open(&url, &RemoteOptions::default()).expect("a unit"));
    fake.with(|state| (state.attention, state.executed) = (Some(0x2a09), 0));
    // The first one of these gets it, the second one is executed at once.
    core.read_together([0, 1 << 20]);
    assert_eq!(fake.with(|state| state.executed), 3);
}

#[test]
fn compare_and_write_is_offered_as_far_as_the_target_has_it() {
    for (blocks, refusal) in [(3, 0x2400), (0, 0x2000)] {
        let fake = Fake::start();
        fake.with(|state| state.compare_blocks_max = blocks);
        let front = front_of(&fake);
        let mut client = client(&front);
        assert_eq!(good(&mut client, Inquiry::page(vpd::page::BLOCK_LIMITS, 64), 64, &[])[5], blocks);
        let refused = sense(&mut client, CompareAndWrite::new(0, 4), 0, &[0; 4096]);
        assert_eq!(refused, (Some(SenseKey::IllegalRequest), refusal));
    }
}
