//! A write that an AoE disk executes long after it was abandoned never overwrites a newer one: no login ends
//! it, and its blocks are inaccessible until the disk has answered it. It is not retransmitted: newer data
//! may have been written on another path.

use crate::support::aoe::SECTOR;
use crate::support::daemon::Daemon;
use crate::support::disk::Disk;
use crate::support::initiator::{Initiator, Login, write_cdb};
use crate::support::net::{Faults, INITIATOR, INTERFACE, Network, TARGET};
use crate::support::vblade::Vblade;
use crate::support::{segment, wait_until};
use std::os::unix::fs::FileExt as _;
use wire::scsi::command::WriteSame16;
use wire::scsi::status::BUSY;

const NOT_READY: u8 = 2;
const UNIT_ATTENTION: u8 = 6;
/// What is written first, and later in the same place.
const OLD: u8 = 1;
const NEW: u8 = 2;
const LBA: u64 = 8;
/// Other blocks.
const ELSEWHERE: u64 = 512;

/// A daemon on the initiator's host, whose unit is the disk 7.7 on the target's.
fn front(network: &Network, options: &str) -> Daemon {
    let (listen, unit) = (format!("{INITIATOR}:0"), format!("aoe://{INTERFACE}/7.7{options}"));
    Daemon::serve_within(&network.initiator, ["--listen", &listen, "--cores", "0", "--lun", &unit])
}

fn session(network: &Network, daemon: &Daemon, name: &str) -> Initiator {
    let url = daemon.lun(0);
    let session = network.target.inside(|| Initiator::login(&url, &Login::named(name)));
    let mut session = session.expect("login");
    session.wait_until_ready(0);
    session.read_blocks(0, 0, 1, 512).expect("READ");
    session
}

/// Abandons a write that is stuck in the disk.
fn abandon_write(disk: &Disk, session: &mut Initiator) {
    disk.keep_from(LBA);
    let cdb = write_cdb(LBA, SECTOR, 512, false);
    let old = session.issue(0, cdb, 0, vec![OLD; SECTOR]).expect("it is sent");
    wait_until("the disk has the write", || disk.is_keeping());
    disk.withhold_no_more();
    assert_eq!(session.complete(old).expect("an answer").sense_key(), Some(NOT_READY));
}

/// Whether sectors could be written, after unit attentions: a possible loss is reported once it is noticed.
fn is_written(session: &mut Initiator, lba: u64) -> bool {
    let cdb = write_cdb(lba, SECTOR, 512, false);
    let mut write = || session.write(0, cdb, &[NEW; SECTOR]).expect("an answer");
    let mut response = write();
    while response.sense_key() == Some(UNIT_ATTENTION) {
        response = write();
    }
    let is_held_off = response.status == BUSY || response.sense_key() == Some(NOT_READY);
    assert!(response.status == 0 || is_held_off, "{response:?}");
    response.status == 0
}

#[test]
fn an_abandoned_write_holds_its_blocks_until_the_disk_answers_it() {
    let network = Network::new(1500, 31);
    let disk = Disk::start(&network.target, 7, 7);
    let daemon = front(&network, "?give_up_after=1");
    let mut writer = session(&network, &daemon, "writer");
    abandon_write(&disk, &mut writer);
    wait_until("the session is back", || is_written(&mut writer, ELSEWHERE));
    for _ in 0..20 {
        assert!(!is_written(&mut writer, LBA), "the disk may write over it");
        writer.read_blocks(0, LBA, 1, 512).expect_err("what is read must not change later");
        writer.read_blocks(0, ELSEWHERE, 1, 512).expect("READ");
    }
    disk.go_on();
    wait_until("the blocks are free", || is_written(&mut writer, LBA));
    assert_eq!(writer.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    assert!(!disk.is_keeping());
    assert_eq!(disk.sector(8), vec![NEW; SECTOR]);
    let writes: Vec<u8> = disk.received_writes().iter().map(|write| write.byte).collect();
    assert_eq!(writes.iter().filter(|byte| **byte == OLD).count(), 1, "{writes:?}");
    daemon.stop();
}

/// Abandons a write that the target does not receive.
fn lose(session: &mut Initiator) {
    let cdb = write_cdb(LBA, SECTOR, 512, false);
    let response = session.write(0, cdb, &[OLD; SECTOR]).expect("an answer");
    assert_eq!(response.sense_key(), Some(NOT_READY));
}

#[test]
fn an_abandoned_write_is_not_sent_after_a_newer_one_of_another_path() {
    let network = Network::new(1500, 34);
    let disk = Disk::start(&network.target, 7, 7);
    let (daemon, other) = (front(&network, "?give_up_after=1"), front(&network, ""));
    let (mut writer, mut elsewhere) =
        (session(&network, &daemon, "writer"), session(&network, &other, "elsewhere"));
    disk.drop_frames();
    lose(&mut writer);
    disk.miss_writes();
    // Retransmissions of the write still in transit arrive before what this reads.
    wait_until("the session is back", || writer.read_blocks(0, ELSEWHERE, 1, 512).is_ok());
    disk.recover();
    wait_until("the other path is there", || is_written(&mut elsewhere, LBA));
    assert!(is_written(&mut writer, ELSEWHERE));
    for _ in 0..20 {
        assert!(!is_written(&mut writer, LBA), "nothing shows that the disk does not have it");
        writer.read_blocks(0, ELSEWHERE, 1, 512).expect("READ");
    }
    assert!(disk.received_writes().iter().all(|write| write.byte == NEW), "{:?}", disk.received_writes());
    assert_eq!(elsewhere.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    let log = daemon.stop();
    assert!(log.contains("restart this daemon once the target is known to be idle"), "{log}");
    other.stop();
}

#[test]
fn a_write_whose_session_has_ended_is_not_sent_after_a_newer_one_of_another_path() {
    let network = Network::new(1500, 37);
    let disk = Disk::start(&network.target, 7, 7);
    let (daemon, other) = (front(&network, "?give_up_after=3"), front(&network, ""));
    let (mut writer, mut elsewhere) =
        (session(&network, &daemon, "writer"), session(&network, &other, "elsewhere"));
    disk.miss_writes();
    let cdb = write_cdb(LBA, SECTOR, 512, false);
    writer.issue(0, cdb, 0, vec![OLD; SECTOR]).expect("it is sent");
    wait_until("the write was lost", || disk.has_missed());
    drop(writer);
    wait_until("its session has ended", || daemon.log().contains("ended: "));
    // What was sent until then arrives before what this reads.
    let mut next = session(&network, &daemon, "next");
    disk.recover();
    assert!(is_written(&mut elsewhere, LBA));
    for _ in 0..20 {
        assert!(!is_written(&mut next, LBA), "nothing shows that the disk does not have it");
        next.read_blocks(0, ELSEWHERE, 1, 512).expect("READ");
    }
    assert!(disk.received_writes().iter().all(|write| write.byte == NEW), "{:?}", disk.received_writes());
    wait_until("nobody waits any more", || daemon.log().contains("writes were abandoned"));
    assert!(!is_written(&mut next, LBA), "nothing shows it now either");
    assert_eq!(elsewhere.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    let log = daemon.stop();
    assert!(!log.contains("no session with the target"), "the others go on: {log}");
    other.stop();
}

#[test]
fn a_lunette_proves_that_it_never_got_a_write() {
    let network = Network::new(1500, 35);
    let target = segment::serve(&network, &["ram:1M,aoe=7.7"], &[]);
    let daemon = front(&network, "?give_up_after=1");
    let mut writer = session(&network, &daemon, "writer");
    let mut elsewhere = segment::session(&network, &target);
    network.set(Faults::CUT);
    lose(&mut writer);
    assert!(is_written(&mut elsewhere, LBA));
    network.set(Faults::NONE);
    wait_until("the blocks are free", || writer.read_blocks(0, LBA, 1, 512).is_ok());
    for session in [&mut writer, &mut elsewhere] {
        assert_eq!(session.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    }
    let log = daemon.stop();
    assert!(log.contains("waiting for the target to prove that they have ended"), "{log}");
    assert_eq!(log.matches("all abandoned writes have ended").count(), 1, "{log}");
    target.stop();
}

#[test]
fn vblade_proves_that_it_never_got_a_write() {
    let network = Network::new(1500, 36);
    let medium = tempfile::NamedTempFile::new().expect("a temporary file");
    medium.as_file().set_len(1 << 20).expect("its length");
    let vblade = Vblade::start(&network.target, 7, 7, medium.path());
    let daemon = front(&network, "?give_up_after=1");
    let mut writer = session(&network, &daemon, "writer");
    network.set(Faults::CUT);
    lose(&mut writer);
    medium.as_file().write_all_at(&[NEW; SECTOR], LBA * 512).expect("it is written");
    network.set(Faults::NONE);
    wait_until("the blocks are free", || writer.read_blocks(0, LBA, 1, 512).is_ok());
    assert_eq!(writer.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    assert!(is_written(&mut writer, LBA));
    daemon.stop();
    drop(vblade);
}

#[test]
fn a_session_that_is_lost_while_zeros_are_on_their_way_comes_back() {
    let network = Network::new(1500, 33);
    let disk = Disk::start(&network.target, 7, 7);
    let daemon = front(&network, "?give_up_after=1");
    let mut writer = session(&network, &daemon, "writer");
    assert!(is_written(&mut writer, LBA));
    // WRITE SAME(16) with NDOB, which AoE has only as writes of zeros.
    let same = WriteSame16 { no_data: true, ..WriteSame16::new(LBA, 1) };
    disk.keep_from(LBA);
    let zeros = writer.issue(0, same, 0, Vec::new()).expect("it is sent");
    wait_until("the disk has the zeros", || disk.is_keeping());
    disk.withhold_no_more();
    assert_eq!(writer.complete(zeros).expect("an answer").sense_key(), Some(NOT_READY));
    wait_until("the session is back", || is_written(&mut writer, ELSEWHERE));
    disk.go_on();
    wait_until("the blocks are free", || writer.read_blocks(0, LBA, 1, 512).is_ok());
    assert_eq!(writer.read_blocks(0, LBA, 1, 512).expect("READ"), vec![0; SECTOR]);
    daemon.stop();
}

#[test]
fn a_login_at_a_lunette_with_a_slow_disk_does_not_free_blocks_on_other_cores() {
    let network = Network::new(1500, 32);
    let disk = Disk::start(&network.target, 7, 7);
    let slow = front(&network, "?give_up_after=600");
    let (listen, unit) = (format!("{TARGET}:0"), slow.lun(0).with("", "?give_up_after=1"));
    let daemon =
        Daemon::serve_within(&network.target, ["--listen", &listen, "--cores", "0,1", "--lun", &unit]);
    let (mut one, mut two) = (session(&network, &daemon, "one"), session(&network, &daemon, "two"));
    abandon_write(&disk, &mut one);
    wait_until("it logs in again", || slow.log().contains("reinstates session"));
    for _ in 0..50 {
        assert!(!is_written(&mut two, LBA), "the disk may write over it");
    }
    disk.go_on();
    wait_until("the blocks are free", || is_written(&mut two, LBA));
    for session in [&mut one, &mut two] {
        wait_until("the unit is ready", || session.read_blocks(0, ELSEWHERE, 1, 512).is_ok());
        assert_eq!(session.read_blocks(0, LBA, 1, 512).expect("READ"), vec![NEW; SECTOR]);
    }
    assert_eq!(disk.sector(8), vec![NEW; SECTOR]);
    daemon.stop();
    slow.stop();
}
