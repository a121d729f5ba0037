//! Writes to one unit from several addresses, on the loopback interface, while its store is slow.

use crate::Wants;
use crate::daemon::ChangeError;
use crate::testing::initiator::{Initiator, Login};
use crate::testing::{HeldStore, serve};
use config::{AoeInterface, Config, Limits, Rate, diff};
use reactor::io::{Io, Wait};
use reactor::memory::Arena;
use reactor::packet::aoe;
use reactor::packet::{Packets, Setup, open};
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::collections::BTreeSet;
use std::time::Duration;
use wire::aoe::{Address, ETHERTYPE, MTU_MIN, Mac};

const LOOPBACK: &str = "lo";
/// Addresses that no machine has.
const ONE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 2]);
const SECTOR: usize = 512;
const BLOCK: u32 = SECTOR as u32;
/// Commands of AoE, and ATA commands with a 48-bit LBA.
const ATA: u8 = 0;
const CONFIG: u8 = 1;
const READ_SECTORS_EXT: u8 = 0x24;
const WRITE_SECTORS_EXT: u8 = 0x34;
/// AFlags: EXTEND, and WRITE.
const EXTEND: u8 = 0x40;
const WRITE: u8 = 0x01;
/// Version 1, and the response flag.
const VERSION: u8 = 0x10;
const RESPONSE: u8 = 0x08;

/// A host that sends from any address, and receives what is sent to the interface's own.
struct AoeHost {
    packets: Packets,
    io: Uring,
    unit: Address,
    tag: u32,
}

impl AoeHost {
    fn new(unit: Address) -> AoeHost {
        let setup = Setup {
            interface: LOOPBACK,
            protocol: ETHERTYPE,
            filter: &[],
            spread: &[],
            mtu_min: MTU_MIN,
            header: aoe::HEADERS_BYTES,
            frames: 64,
            slots: 64,
        };
        let socket = open(&setup, 1).expect("packet sockets need root").remove(0);
        let arena = Arena::new(16 << 20).expect("memory");
        let mut io = Uring::new(arena, Waker::new().expect("a waker")).expect("an io_uring");
        let packets = Packets::new(socket, io.arena()).expect("memory");
        AoeHost { packets, io, unit, tag: 0 }
    }

    fn send(&mut self, from: Mac, command: u8, argument: &[u8]) {
        self.tag += 1;
        let mut frame = [self.packets.mac(), from.0].concat();
        frame.extend(ETHERTYPE.to_be_bytes());
        frame.extend([VERSION, 0]);
        frame.extend(self.unit.shelf.to_be_bytes());
        frame.extend([self.unit.slot, command]);
        frame.extend(self.tag.to_be_bytes());
        frame.extend(argument);
        let slot = self.packets.slot().expect("there are some").slice(0, frame.len() as u32);
        self.io.arena().bytes_mut(slot).copy_from_slice(&frame);
        self.packets.queue(slot, frame.len() as u32);
        self.packets.flush(self.io.arena()).expect("the loopback interface is up");
    }

    fn write(&mut self, from: Mac, lba: u8, byte: u8) {
        let argument = [EXTEND | WRITE, 0, 1, WRITE_SECTORS_EXT, lba, 0, 0, 0, 0, 0, 0, 0];
        self.send(from, ATA, &[&argument[..], &[byte; SECTOR]].concat());
    }

    /// The answer to the last request, which was sent from the interface's own address.
    fn answer(&mut self) -> Vec<u8> {
        let mut completions = Vec::new();
        loop {
            self.packets.receive(self.io.arena());
            while let Some(frame) = self.packets.frame() {
                let bytes = self.io.arena().bytes(frame).to_vec();
                self.packets.release(frame);
                if bytes[14] & RESPONSE != 0 && bytes[20..24] == self.tag.to_be_bytes() {
                    return bytes;
                }
            }
            self.io.turn(Wait::AtMost(Duration::from_millis(1)), &mut completions);
        }
    }

    /// Waits until the only core has handled everything sent, in order.
    fn settle(&mut self) {
        for _ in 0..2 {
            self.send(Mac(self.packets.mac()), CONFIG, &[0, 0, 0, 0, 0, VERSION, 0, 0]);
            self.answer();
        }
    }

    /// The first byte of a sector.
    fn read(&mut self, lba: u8) -> u8 {
        let argument = [EXTEND, 0, 1, READ_SECTORS_EXT, lba, 0, 0, 0, 0, 0, 0, 0];
        self.send(Mac(self.packets.mac()), ATA, &argument);
        self.answer()[aoe::HEADERS_BYTES as usize]
    }
}

/// An address that nothing else on this machine has.
fn own(slot: u8) -> Address {
    Address { shelf: (std::process::id() % 0xf000) as u16 + 1, slot }
}

#[test]
fn while_a_write_is_in_the_store_no_other_address_writes_its_sectors() {
    let unit = own(1);
    let store = HeldStore::new();
    let (daemon, _) = serve(1, std::slice::from_ref(&store), |config| {
        config.luns[0].aoe = Some(unit);
        let (allow, deny) = (BTreeSet::new(), BTreeSet::new());
        config.aoe = vec![AoeInterface { name: LOOPBACK.into(), cores: vec![0], allow, deny }];
    });
    let mut host = AoeHost::new(unit);
    store.hold();
    for (from, lba, byte) in [(ONE, 7, 1), (OTHER, 7, 2), (OTHER, 8, 3)] {
        host.write(from, lba, byte);
    }
    host.settle();
    assert_eq!(store.held(), 2, "two of them are of one sector");
    store.release();
    while host.read(7) != 2 {}
    assert_eq!(host.read(8), 3);
    daemon.stop().expect("its store is flushed");
}

#[test]
fn writes_that_wait_for_a_limit_leave_frames_for_others() {
    let [limited, other] = [2, 3].map(own);
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, _) = serve(1, &stores, |config| {
        (config.luns[0].aoe, config.luns[1].aoe) = (Some(limited), Some(other));
        config.luns[0].limits = Limits { iops: Some(Rate { per_second: 1, burst: 0 }), bytes: None };
        let (allow, deny) = (BTreeSet::new(), BTreeSet::new());
        config.aoe = vec![AoeInterface { name: LOOPBACK.into(), cores: vec![0], allow, deny }];
    });
    let mut host = AoeHost::new(limited);
    for sender in 0..8 {
        for lba in 0..60 {
            host.write(Mac([2, 0, 0, 0, 1, sender]), lba, sender);
        }
        host.settle();
    }
    host.unit = other;
    let own = Mac(host.packets.mac());
    host.write(own, 0, 9);
    assert_eq!(host.answer()[15], 0, "no error");
    assert_eq!(host.read(0), 9);
    daemon.stop().expect("the core ends in order");
}

#[test]
fn aoe_is_removed_once_none_of_its_writes_can_land_and_others_lose_nothing() {
    type Change = fn(&mut Config);
    let renames: Change = |config| config.luns[0].aoe = Some(own(5));
    let takes_unit: Change = |config| config.luns[0].aoe = None;
    let takes_interface: Change = |config| config.aoe.clear();
    for takes in [renames, takes_unit, takes_interface] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (mut daemon, url) = serve(1, &stores, |config| {
            config.luns[0].aoe = Some(own(4));
            let (allow, deny) = (BTreeSet::new(), BTreeSet::new());
            config.aoe = vec![AoeInterface { name: LOOPBACK.into(), cores: vec![0], allow, deny }];
        });
        let mut neighbour = Initiator::login(&url, &Login::named("one")).expect("a session");
        (0..2).for_each(|lun| neighbour.ready(lun).expect("the unit is ready"));
        let mut host = AoeHost::new(own(4));
        stores[0].hold();
        host.write(ONE, 7, 1);
        host.settle();
        assert_eq!(stores[0].held(), 1);
        let mut to = daemon.config().clone();
        takes(&mut to);
        let [step] = &diff(daemon.config(), &to)[..] else { panic!("one step") };
        daemon.wait_at_most(Duration::ZERO);
        let unended = daemon.take_step(step, &to, Wants::Store);
        assert!(
            matches!(&unended, Err(ChangeError::StillEnding(what)) if what.contains("on LUN lun0 ")),
            "it may still be written: {unended:?}"
        );
        neighbour.write_blocks(1, 0, BLOCK, &[2; SECTOR], false).expect("GOOD");
        assert_eq!(neighbour.read_blocks(1, 0, 1, BLOCK).expect("GOOD"), [2; SECTOR]);
        stores[0].release();
        while neighbour.read_blocks(0, 7, 1, BLOCK).expect("GOOD") != [1; SECTOR] {}
        neighbour.logout().expect("nothing was said to it");
        daemon.stop().expect("its store is flushed");
    }
}
