//! Ceph images as disks: a cluster of one monitor and one OSD, served by daemons, used by initiators of our own.

use crate::support::ceph::{Ceph, POOL};
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login, write_cdb};
use crate::support::load::Load;
use crate::support::wait_until;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use wire::scsi::command::{Inquiry, ReadCapacity16, TestUnitReady};
use wire::scsi::vpd::page;

const BLOCK: u32 = 512;
const NOT_READY: u8 = 2;
const DATA_PROTECT: u8 = 7;
const CAPACITY_CHANGED: [u8; 2] = [0x2a, 0x09];

/// Long enough to be noticed, and too short for any timeout.
const MOMENT: Duration = Duration::from_secs(2);

fn serve(ceph: &Ceph, images: &[&str]) -> Daemon {
    let specs = images.iter().map(|image| format!("rbd:{POOL}/{image},conf={}", ceph.conf()));
    Daemon::serve(specs.flat_map(|spec| ["--lun".to_owned(), spec]))
}

fn login(daemon: &Daemon, name: &str) -> Initiator {
    Initiator::login(&daemon.lun(0), &Login::named(name)).expect("login")
}

fn serial(initiator: &mut Initiator, lun: u16) -> Vec<u8> {
    let inquiry = Inquiry::page(page::SERIAL_NUMBER, 255);
    initiator.read(lun, inquiry, 255).expect("INQUIRY").data[4..].to_vec()
}

fn write(initiator: &mut Initiator, lba: u64, byte: u8) {
    initiator.write_blocks(0, lba, BLOCK, &[byte; 4096], false).expect("WRITE");
}

fn read(initiator: &mut Initiator, lun: u16, lba: u64) -> Vec<u8> {
    initiator.read_blocks(lun, lba, 8, BLOCK).expect("READ")
}

/// The sense key of TEST UNIT READY; `None`: it is ready.
fn readiness(initiator: &mut Initiator, lun: u16) -> Option<u8> {
    initiator.read(lun, TestUnitReady {}, 0).expect("an answer").sense_key()
}

fn capacity_bytes(initiator: &mut Initiator, lun: u16) -> u64 {
    let data = initiator.read(lun, ReadCapacity16::new(32), 32).expect("an answer").data;
    data.first_chunk().map_or(0, |last| (u64::from_be_bytes(*last) + 1) * u64::from(BLOCK))
}

#[test]
fn an_image_is_a_disk_that_one_daemon_at_a_time_writes_to_and_that_grows() {
    let ceph = Ceph::start();
    ceph.create("disk", 64 << 20);
    let mut first = serve(&ceph, &["disk"]);
    let mut guest = login(&first, "guest");
    guest.wait_until_ready(0);
    write(&mut guest, 8, 1);
    ceph.rbd(&["snap", "create", &format!("{POOL}/disk@before")]);
    write(&mut guest, 8, 2);
    let name = serial(&mut guest, 0);

    // The snapshot is another disk, and read-only; the image is not ready for others.
    let second = serve(&ceph, &["disk", "disk@before"]);
    wait_until("the lock is noticed", || second.log().contains("another client has locked it"));
    let mut other = login(&second, "guest");
    wait_until("the attentions are reported", || readiness(&mut other, 1).is_none());
    assert_eq!(read(&mut other, 1, 8), [1; 4096]);
    assert_ne!(serial(&mut other, 1), name);
    let refused = other.write(1, write_cdb(8, 4096, BLOCK, false), &[3; 4096]).expect("an answer");
    assert_eq!(refused.sense_key(), Some(DATA_PROTECT));
    wait_until("the image is not ready", || readiness(&mut other, 0) == Some(NOT_READY));

    // An OSD that hangs for a moment only costs time.
    let options = ["--bs", "4K", "--iodepth", "16", "--size", "8M", "--offset", "16M"];
    let mut load = Load::on(&first.lun(0).to_string(), &options);
    load.wait_for_progress();
    ceph.signal_osd("STOP");
    std::thread::sleep(MOMENT);
    ceph.signal_osd("CONT");
    load.wait_for_progress();
    load.stop();

    ceph.rbd(&["resize", "--size", "96M", &format!("{POOL}/disk")]);
    let mut attention = None;
    wait_until("the growth is reported", || {
        let sense = guest.read(0, TestUnitReady {}, 0).expect("an answer").sense;
        attention = sense.get(12..14).map(<[u8]>::to_vec);
        attention.is_some()
    });
    assert_eq!(attention.as_deref(), Some(&CAPACITY_CHANGED[..]));
    assert_eq!(capacity_bytes(&mut guest, 0), 96 << 20);

    // Once the image is closed, the other daemon serves it under the same name.
    guest.logout().expect("logout");
    first.signal("TERM");
    assert!(first.wait().success(), "{}", first.log());
    wait_until("the other daemon has opened it", || readiness(&mut other, 0).is_none());
    assert_eq!(serial(&mut other, 0), name);
    assert_eq!(read(&mut other, 0, 8), [2; 4096]);
    write(&mut other, 8, 4);
    second.stop();
}

/// What is written to an encrypted image, and found nowhere in the image itself.
const PLAIN: [u8; 4096] = *include_bytes!("ceph.rs").first_chunk().expect("this file is long enough");

#[test]
fn an_image_encrypted_by_luks_is_decrypted_for_initiators_only_and_not_with_another_passphrase() {
    let (ceph, directory) = (Ceph::start(), tempfile::tempdir().expect("a temporary directory"));
    let path = |name: &str| directory.path().join(name).display().to_string();
    let passphrase = |name: &str, text: &str| {
        fs::write(path(name), text).expect("a file");
        fs::set_permissions(path(name), Permissions::from_mode(0o600)).expect("its mode");
        path(name)
    };
    let image = format!("{POOL}/disk");
    ceph.rbd(&["create", "--size", "64M", &image]);
    let right = passphrase("right", "correct horse");
    ceph.rbd(&["encryption", "format", &image, "luks2", &right]);
    let spec =
        |passphrase: &str| format!("rbd:{image},conf={},luks_passphrase_file={passphrase}", ceph.conf());

    let first = Daemon::serve(["--lun", &spec(&right)]);
    let mut guest = login(&first, "guest");
    wait_until("it is open", || readiness(&mut guest, 0).is_none());
    guest.write_blocks(0, 8, BLOCK, &PLAIN, false).expect("WRITE");
    assert_eq!(read(&mut guest, 0, 8), PLAIN);
    guest.logout().expect("logout");
    first.stop();
    ceph.rbd(&["export", "--no-progress", &image, &path("raw")]);
    let raw = fs::read(path("raw")).expect("it was exported");
    assert!(!raw.windows(64).any(|part| part == &PLAIN[..64]), "it is not encrypted");

    let wrong = passphrase("wrong", "incorrect horse");
    let second = Daemon::serve(["--lun", &spec(&wrong)]);
    let mut guest = login(&second, "guest");
    // Trying a passphrase takes seconds.
    wait_until("it is refused", || second.log().contains("opens none of its LUKS key slots; correct"));
    assert!(!second.log().contains("incorrect"), "{}", second.log());
    wait_until("the attentions are reported", || readiness(&mut guest, 0) == Some(NOT_READY));
    assert!(guest.read_blocks(0, 8, 8, BLOCK).is_err());
    passphrase("wrong", "correct horse");
    wait_until("the file is corrected", || readiness(&mut guest, 0).is_none());
    assert_eq!(read(&mut guest, 0, 8), PLAIN);
    second.stop();
}

mod soak {
    use super::*;

    #[test]
    fn a_cluster_that_is_lost_makes_the_unit_not_ready_and_what_lands_late_lands_before_what_is_newer() {
        let ceph = Ceph::start();
        ceph.create("disk", 64 << 20);
        let daemon = serve(&ceph, &["disk"]);
        let (mut guest, mut witness) = (login(&daemon, "guest"), login(&daemon, "witness"));
        write(&mut guest, 0, 1);
        ceph.signal_osd("STOP");
        let old = guest.write(0, write_cdb(0, 4096, BLOCK, false), &[2; 4096]).expect("an answer");
        assert_eq!(old.sense_key(), Some(NOT_READY));
        wait_until("the log has it", || daemon.log().contains("the cluster does not answer"));
        assert_eq!(readiness(&mut guest, 0), Some(NOT_READY));
        ceph.signal_osd("CONT");
        wait_until("it comes back on its own", || readiness(&mut guest, 0).is_none());
        write(&mut guest, 0, 3);
        wait_until("its attentions are reported", || readiness(&mut witness, 0).is_none());
        assert_eq!(read(&mut witness, 0, 0), [3; 4096], "what was given up came later");
        assert!(daemon.log().contains("the store is back"), "{}", daemon.log());
        daemon.stop();
    }

    #[test]
    fn an_osd_that_is_killed_under_load_costs_time_only() {
        let mut ceph = Ceph::persistent();
        ceph.create("disk", 64 << 20);
        let daemon = serve(&ceph, &["disk"]);
        let mut load =
            Load::on(&daemon.lun(0).to_string(), &["--bs", "4K", "--iodepth", "16", "--size", "16M"]);
        load.wait_for_progress();
        for _ in 0..3 {
            ceph.kill_osd();
            ceph.start_osd();
            load.wait_for_progress();
        }
        load.stop();
        daemon.stop();
    }

    #[test]
    fn what_a_daemon_acknowledged_before_it_was_killed_is_there_and_the_next_one_serves_it() {
        let ceph = Ceph::start();
        ceph.create("disk", 64 << 20);
        let first = serve(&ceph, &["disk"]);
        let mut guest = login(&first, "guest");
        for lba in 0..64 {
            write(&mut guest, 8 * lba, lba as u8 + 1);
        }
        first.kill9();
        let second = serve(&ceph, &["disk"]);
        let mut guest = login(&second, "guest");
        wait_until("the lock of the one that was killed is broken", || readiness(&mut guest, 0).is_none());
        for lba in 0..64 {
            assert_eq!(read(&mut guest, 0, 8 * lba), [lba as u8 + 1; 4096]);
        }
        second.stop();
    }
}
