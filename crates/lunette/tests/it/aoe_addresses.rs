//! A host that writes from two of its addresses, as Linux's driver does when it gets no answer: what was
//! delayed, at a stalled core or in a store, must not reach the medium after what was written since.

use crate::support::aoe::{ATA, AoeInitiator, SECTOR, ata, write};
use crate::support::daemon::Daemon;
use crate::support::net::{INITIATOR, Network};
use crate::support::segment::serve;
use crate::support::thread::Still;
use crate::support::wait_until;

/// DATA SET MANAGEMENT, and its feature TRIM.
const DATA_SET_MANAGEMENT: u8 = 0x06;
const TRIM: u8 = 0x01;
/// The sector used in all tests.
const LBA: u64 = 8;

/// An address whose frames arrive at this core.
fn address(daemon: &Daemon, guest: &mut AoeInitiator, core: usize) -> [u8; 6] {
    for last in 1..=u8::MAX {
        guest.mac = [2, 0, 0, 0, 9, last];
        guest.read(0, 1).expect("READ SECTORS");
        let text = guest.mac.map(|byte| format!("{byte:02x}")).join(":");
        let mut begun = None;
        wait_until("its session begins", || {
            let is_it = |line: &&str| line.contains(&text) && line.contains("has begun");
            begun = daemon.log().lines().find(is_it).map(str::to_owned);
            begun.is_some()
        });
        if begun.is_some_and(|line| line.contains(&format!("core={core} "))) {
            return guest.mac;
        }
    }
    panic!("no address comes to core {core}:\n{}", daemon.log());
}

#[test]
fn a_write_that_waited_for_a_core_does_not_overwrite_a_later_one() {
    let network = Network::new(1500, 41);
    let daemon = serve(&network, &["ram:1M,aoe=1.1"], &["--cores", "0,1"]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let [one, other] = [0, 1].map(|core| address(&daemon, &mut guest, core));
    let list = [&LBA.to_le_bytes()[..6], &[1, 0], &[0; SECTOR - 8]].concat();
    let mut trim = ata(DATA_SET_MANAGEMENT, 0, 1, &list);
    trim[1] = TRIM;
    for (argument, newer) in [(write(LBA, &[0x11; SECTOR]), 0x22), (trim, 0x33)] {
        let still = Still::new(&daemon, "core-1");
        guest.mac = other;
        let late = guest.frame(ATA, &argument);
        guest.send(&late);
        guest.mac = one;
        assert_eq!(guest.ask(ATA, &argument).error, None, "its copy is answered");
        guest.write(LBA, &[newer; SECTOR]).expect("WRITE SECTORS");
        drop(still);
        // Frames from one address arrive in order.
        guest.mac = other;
        guest.read(0, 1).expect("READ SECTORS");
        assert_eq!(guest.read(LBA, 1), Ok(vec![newer; SECTOR]));
    }
    daemon.stop();
}

#[test]
fn writes_of_the_same_sectors_wait_for_one_another_whoever_sends_them() {
    let network = Network::new(1500, 42);
    let behind = ["--listen", &format!("{INITIATOR}:0"), "--lun", "ram:1M"];
    let behind = Daemon::serve_within(&network.initiator, behind);
    let slow = format!("{},aoe=1.1", behind.lun(0));
    let daemon = serve(&network, &[&slow], &["--cores", "0,1"]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let [one, other] = [0, 1].map(|core| address(&daemon, &mut guest, core));
    behind.freeze();
    for round in 1..=10 {
        // Each shares one sector with the one before and the one after; all are sent before one is answered.
        guest.mac = if round % 2 == 0 { one } else { other };
        let frame = guest.frame(ATA, &write(LBA + round % 3, &[round as u8; 2 * SECTOR]));
        guest.send(&frame);
    }
    guest.mac = one;
    guest.config_is_answered();
    behind.signal("CONT");
    for mac in [one, other, one] {
        guest.mac = mac;
        guest.write(LBA, &[0x44; 4 * SECTOR][..2 * SECTOR]).expect("WRITE SECTORS");
        guest.write(LBA + 1, &[mac[5]; 2 * SECTOR]).expect("WRITE SECTORS");
        assert_eq!(guest.read(LBA, 1), Ok(vec![0x44; SECTOR]));
        assert_eq!(guest.read(LBA + 1, 2), Ok(vec![mac[5]; 2 * SECTOR]));
    }
    daemon.stop();
    behind.stop();
}
