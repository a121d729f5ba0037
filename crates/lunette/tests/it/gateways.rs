//! Gateways that share an image on Ceph: two daemons, one of which is active, and what becomes of a unit when that one dies, hangs or
//! is stopped.

use crate::support::ceph::{Ceph, POOL};
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login, Response, reserve_out, write_cdb};
use crate::support::wait_until;
use std::fs;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wire::scsi::command::{PersistentReserveIn, Read16, TestUnitReady};
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT};

const BLOCK: u32 = 512;
const BYTES: usize = 4096;
/// What the files say.
const TAKEOVER: Duration = Duration::from_secs(5);
const UNIT_ATTENTION: u8 = 6;
const IN_STANDBY: [u8; 2] = [0x04, 0x0b];

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const WRITE_EXCLUSIVE: u8 = 1;
const KEY: u64 = 0x1234;

/// A gateway of this name, whose portal has this group.
fn gateway(ceph: &Ceph, folder: &TempDir, name: &str, group: u16) -> Daemon {
    let conf = ceph.conf();
    let text = format!(
        "admin = \"none\"\n[cluster]\nname = \"c\"\ngateway = \"{name}\"\npool = \"{POOL}\"\nconf = \"{conf}\"\ntakeover = \"{}s\"\n\
         [[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = {group}\n\
         [[lun]]\nname = \"disk\"\nrbd = \"{POOL}/disk\"\nconf = \"{conf}\"\naccess = \"one\"\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\n",
        TAKEOVER.as_secs()
    );
    let file = folder.path().join(format!("{name}.toml"));
    fs::write(&file, text).expect("a file");
    Daemon::serve_file(&file)
}

fn login(daemon: &Daemon) -> Initiator {
    Initiator::login(&daemon.lun(0), &Login::named("host")).expect("login")
}

/// The outcome of a command once unit attentions are out of its way.
fn settled(mut run: impl FnMut() -> Response) -> Response {
    loop {
        let response = run();
        if response.sense_key() != Some(UNIT_ATTENTION) {
            return response;
        }
    }
}

fn code(response: &Response) -> Option<[u8; 2]> {
    (!response.sense.is_empty()).then(|| [response.sense[12], response.sense[13]])
}

fn readiness(host: &mut Initiator) -> Option<[u8; 2]> {
    code(&settled(|| host.read(0, TestUnitReady {}, 0).expect("an answer")))
}

fn write(host: &mut Initiator, lba: u64, byte: u8) -> Response {
    settled(|| host.write(0, write_cdb(lba, BYTES, BLOCK, false), &[byte; BYTES]).expect("an answer"))
}

fn read(host: &mut Initiator, lba: u64) -> Vec<u8> {
    settled(|| host.read(0, Read16::new(lba, BYTES as u32 / BLOCK), BYTES).expect("an answer")).data
}

/// Data of PERSISTENT RESERVE IN.
fn reserved(host: &mut Initiator, action: u8) -> Vec<u8> {
    settled(|| host.read(0, PersistentReserveIn::new(action, 255), 255).expect("an answer")).data
}

/// Waits until a write by this path is done, as a host does whose other path has failed. Returns how long that took.
fn take_over(host: &mut Initiator, lba: u64, byte: u8) -> Duration {
    let begin = Instant::now();
    wait_until("another gateway is active", || {
        let response = write(host, lba, byte);
        assert!(response.status == GOOD || code(&response) == Some(IN_STANDBY), "{response:?}");
        response.status == GOOD
    });
    begin.elapsed()
}

#[test]
fn a_unit_is_served_by_another_gateway_when_its_own_dies_hangs_or_is_stopped() {
    let ceph = Ceph::start();
    ceph.create("disk", 64 << 20);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let first = gateway(&ceph, &folder, "a", 1);
    let mut by_first = login(&first);
    wait_until("the first one is active", || readiness(&mut by_first).is_none());
    let second = gateway(&ceph, &folder, "b", 2);
    let mut by_second = login(&second);
    assert_eq!(readiness(&mut by_second), Some(IN_STANDBY));

    // It dies: nothing that was acknowledged is lost, nor is what initiators have reserved, without APTPL.
    assert_eq!(reserve_out(&mut by_first, 0, REGISTER, 0, 0, KEY), GOOD);
    for lba in 0..64 {
        assert_eq!(write(&mut by_first, 8 * lba, lba as u8 + 1).status, GOOD);
    }
    wait_until("the path in standby shows it", || reserved(&mut by_second, 0).len() > 8);
    first.kill9();
    let stall = take_over(&mut by_second, 1024, 7);
    eprintln!("kill -9: another gateway wrote after {stall:?}");
    (0..64).for_each(|lba| assert_eq!(read(&mut by_second, 8 * lba), [lba as u8 + 1; BYTES]));
    assert_eq!(reserved(&mut by_second, 0)[8..], KEY.to_be_bytes());
    let first = gateway(&ceph, &folder, "a", 1);
    let mut by_first = login(&first);
    assert_eq!(readiness(&mut by_first), Some(IN_STANDBY));

    // It hangs with writes in hand, and gets more; when it continues they do not land on what is newer.
    assert_eq!(reserve_out(&mut by_second, 0, REGISTER, 0, 0, KEY + 1), GOOD);
    assert_eq!(reserve_out(&mut by_second, 0, RESERVE, WRITE_EXCLUSIVE, KEY + 1, 0), GOOD);
    assert_eq!(write(&mut by_first, 0, 0).status, CHECK_CONDITION, "it is in standby");
    let old = |host: &mut Initiator| {
        for lba in 0..16 {
            let cdb = write_cdb(8 * lba, BYTES, BLOCK, false);
            host.issue(0, cdb, 0, vec![0xee; BYTES]).expect("it is sent");
        }
    };
    old(&mut by_second);
    second.freeze();
    old(&mut by_second);
    let begin = Instant::now();
    wait_until("another gateway is active", || readiness(&mut by_first).is_none());
    eprintln!("SIGSTOP: another gateway was active after {:?}", begin.elapsed());
    assert_eq!(write(&mut by_first, 0, 1).status, RESERVATION_CONFLICT, "the reservation is there");
    assert_eq!(reserve_out(&mut by_first, 0, CLEAR, 0, KEY, 0), GOOD, "so is what it had registered first");
    for lba in 0..32 {
        assert_eq!(write(&mut by_first, 8 * lba, lba as u8 + 101).status, GOOD);
    }
    second.signal("CONT");
    wait_until("its sessions have ended", || by_second.complete_any().is_err());
    wait_until("it is back as another client", || second.log().contains("in standby"));
    let mut by_second = login(&second);
    assert_eq!(readiness(&mut by_second), Some(IN_STANDBY));
    for lba in 0..32 {
        assert_eq!(read(&mut by_first, 8 * lba), [lba as u8 + 101; BYTES], "block {lba}");
    }

    // It is stopped: the other one does not wait.
    first.stop();
    let stall = take_over(&mut by_second, 1024, 9);
    assert_eq!(
        second.log().matches("is shut out").count(),
        1,
        "only the one that was killed: {}",
        second.log()
    );
    eprintln!("SIGTERM: another gateway wrote after {stall:?}");
    assert_eq!(read(&mut by_second, 248), [132; BYTES]);
    second.stop();
}
