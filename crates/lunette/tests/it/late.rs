//! AoE while a store is slow: no write that reaches the medium late overwrites a newer one, and nobody is
//! blocked.

use crate::support::aoe::{ATA, AoeInitiator, SECTOR, write};
use crate::support::daemon::Daemon;
use crate::support::disk::Disk;
use crate::support::initiator::{Initiator, Login, write_cdb};
use crate::support::net::{INITIATOR, INTERFACE, Network};
use crate::support::wait_until;
use std::time::Duration;

const LOGICAL_UNIT_RESET: u8 = 5;
const UNIT_ATTENTION: u8 = 6;
/// What is written first, and later in the same place.
const OLD: u8 = 1;
const NEW: u8 = 2;
const LBA: u64 = 8;

/// A daemon on the initiator's host, whose unit is the disk 7.7 on the target's, served over AoE and iSCSI;
/// besides it has memory, 1.2.
fn front(network: &Network, unit: &str) -> Daemon {
    let listen = format!("{INITIATOR}:0");
    let unit = format!("aoe://{INTERFACE}/7.7{unit}");
    let units = ["--lun", &unit, "--lun", "ram:1M,aoe=1.2"];
    let arguments = ["--listen", &listen, "--aoe", INTERFACE, "--cores", "0"];
    Daemon::serve_within(&network.initiator, arguments.iter().chain(&units))
}

/// A session over iSCSI from the target's host, whose unit attentions have been reported.
fn session(network: &Network, daemon: &Daemon, name: &str) -> Initiator {
    let url = daemon.lun(0);
    let session = network.target.inside(|| Initiator::login(&url, &Login::named(name)));
    let mut session = session.expect("login");
    session.ready(0).expect("the unit is ready");
    session
}

#[test]
fn a_write_aborted_in_a_slow_store_does_not_overwrite_a_newer_one() {
    let network = Network::new(1500, 21);
    let disk = Disk::start(&network.target, 7, 7);
    let daemon = front(&network, ",aoe=1.1");
    let mut guest = AoeInitiator::find(&network.target, 1, 1);
    let (mut resetter, mut witness) =
        (session(&network, &daemon, "resetter"), session(&network, &daemon, "witness"));
    guest.write(LBA, &[9; SECTOR]).expect("WRITE SECTORS");

    disk.keep_from(LBA);
    let first = guest.frame(ATA, &write(LBA, &[OLD; SECTOR]));
    guest.send(&first);
    wait_until("the disk has the write", || {
        disk.received_writes().last().is_some_and(|write| write.byte == OLD)
    });
    let reset = std::thread::spawn(move || resetter.manage(LOGICAL_UNIT_RESET, 0, u32::MAX));
    // Reporting it to everybody also aborts.
    wait_until("the reset is reported", || {
        let reported = witness.read(0, &[0; 6], 0).expect("an answer");
        reported.sense_key() == Some(UNIT_ATTENTION)
    });
    // Linux's driver has lost patience and retransmits it, then writes again.
    for byte in [OLD, NEW] {
        let frame = guest.frame(ATA, &write(LBA, &[byte; SECTOR]));
        guest.send(&frame);
    }
    // Whatever the core did about that reached the disk before this.
    guest.config_is_answered();
    witness.read_blocks(0, 0, 1, 512).expect("READ");
    assert_eq!(
        disk.received_writes().len(),
        2,
        "nothing of the initiator is taken: {:?}",
        disk.received_writes()
    );
    assert!(!reset.is_finished(), "it promises that the write has ended");

    disk.go_on();
    assert_eq!(reset.join().expect("no panic").expect("an answer"), 0);
    guest.write(LBA, &[NEW; SECTOR]).expect("WRITE SECTORS");
    assert_eq!(guest.read(LBA, 1), Ok(vec![NEW; SECTOR]));
    assert_eq!(disk.sector(8), vec![NEW; SECTOR]);
    let log = daemon.stop();
    assert!(log.contains("requests were dropped"), "what was dropped is logged:\n{log}");
}

#[test]
fn a_write_abandoned_with_its_session_does_not_overwrite_a_newer_one() {
    /// Longer than logging in again takes, and less than the limit for retransmissions.
    const LATE: Duration = Duration::from_secs(3);
    let network = Network::new(1500, 22);
    let disk = Disk::start(&network.target, 7, 7);
    let daemon = front(&network, "");
    let mut writer = session(&network, &daemon, "writer");
    disk.keep_from(LBA);
    let cdb = write_cdb(LBA, SECTOR, 512, false);
    let old = writer.issue(0, cdb, 0, vec![OLD; SECTOR]).expect("it is sent");
    wait_until("the disk has the write", || disk.received_writes().len() == 1);
    disk.delay_writes(LATE);
    wait_until("the session is lost", || daemon.log().contains("no session with the target"));
    disk.recover();
    assert_eq!(writer.complete(old).expect("it is sent again").status, 0);
    writer.write_blocks(0, LBA, 512, &[NEW; SECTOR], false).expect("WRITE");
    let mut writes: Vec<u8> = disk.received_writes().iter().map(|write| write.byte).collect();
    assert!(writes.starts_with(&[OLD, OLD]), "it is sent again: {writes:?}");
    // How often depends on how soon the disk is back.
    writes.dedup();
    assert_eq!(writes, [OLD, NEW]);
    wait_until("the first one has landed", || !disk.is_keeping());
    assert_eq!(writer.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    daemon.stop();
}

#[test]
fn sessions_whose_store_is_stuck_leave_room_for_others_and_are_logged() {
    /// More than any of them was granted, and in total more than there are slots.
    const WRITES: u64 = 200;
    let network = Network::new(1500, 23);
    let disk = Disk::start(&network.target, 7, 7);
    let daemon = front(&network, "?give_up_after=600,aoe=1.1");
    let mut loud = AoeInitiator::find(&network.target, 1, 1);
    disk.keep_from(LBA);
    for number in 0..4 {
        loud.mac = [2, 0, 0, 0, 1, number];
        for lba in LBA..LBA + WRITES {
            let frame = loud.frame(ATA, &write(lba, &[OLD; SECTOR]));
            loud.send(&frame);
        }
        loud.config_is_answered();
    }
    let mut quiet = AoeInitiator::find(&network.target, 1, 2);
    quiet.write(0, &[NEW; SECTOR]).expect("WRITE SECTORS");
    assert_eq!(quiet.read(0, 1), Ok(vec![NEW; SECTOR]));
    wait_until("it is logged", || daemon.log().contains("requests were dropped"));
    disk.go_on();
    daemon.stop();
}
