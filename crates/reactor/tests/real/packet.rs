//! Packet sockets on cables between network namespaces.

use crate::common::{TAG, complete_one, ring};
use crate::net::{Cable, End, INTERFACE};
use reactor::io::{Io, Wait};
use reactor::memory::{Arena, Loan};
use reactor::packet::{Condition, Field, Packets, Setup, Socket, Width, open};
use reactor::uring::Uring;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use wire::Span;

const PROTOCOL: u16 = 0x88a2;
const SETUP: Setup<'_> = Setup {
    interface: INTERFACE,
    protocol: PROTOCOL,
    filter: &[],
    spread: &[],
    header: 36,
    frames: 64,
    slots: 64,
};
const BROADCAST: [u8; 6] = [0xff; 6];

/// The packets of one end, and the ring that they are waited for with.
struct Host {
    packets: Packets,
    ring: Uring,
}

impl Host {
    fn new(end: &End, setup: &Setup<'_>) -> Host {
        Host::of(sockets(end, setup, 1).remove(0))
    }

    fn of(socket: Socket) -> Host {
        let mut ring = ring();
        Host { packets: Packets::new(socket, ring.arena()).unwrap(), ring }
    }

    /// A frame of this protocol: addresses, EtherType, and what follows.
    fn frame(&self, to: [u8; 6], payload: &[u8]) -> Vec<u8> {
        [&to[..], &self.packets.mac(), &PROTOCOL.to_be_bytes(), payload].concat()
    }

    fn queue(&mut self, frame: &[u8]) {
        let slot = self.packets.slot().expect("a slot is free");
        self.ring.arena().bytes_mut(slot.slice(0, frame.len() as u32)).copy_from_slice(frame);
        self.packets.queue(slot, frame.len() as u32);
    }

    fn send(&mut self, frame: &[u8]) {
        self.queue(frame);
        assert!(!self.packets.flush(self.ring.arena()).unwrap());
    }

    /// What has come by now.
    fn here(&mut self) -> Vec<Span> {
        while self.packets.receive(self.ring.arena()) {}
        std::iter::from_fn(|| self.packets.next()).collect()
    }

    /// Sleeps until something has come.
    fn wait(&mut self) -> Vec<Span> {
        loop {
            self.ring.watch(self.packets.handle(), TAG);
            complete_one(&mut self.ring).result.unwrap();
            let frames = self.here();
            if !frames.is_empty() {
                return frames;
            }
        }
    }

    fn bytes(&mut self, frame: Span) -> Vec<u8> {
        self.ring.arena().bytes(frame).to_vec()
    }

    /// What has come, up to a frame of the payload `END`, without which it is returned.
    fn until_end(&mut self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            for frame in self.wait() {
                let bytes = self.bytes(frame);
                self.packets.release(frame);
                if bytes[14..].starts_with(END) {
                    return all;
                }
                all.push(bytes);
            }
        }
    }
}

const END: &[u8] = b"the end of it, longer than what Ethernet fills up to its least length";

fn sockets(end: &End, setup: &Setup<'_>, count: usize) -> Vec<Socket> {
    end.inside(|| open(setup, count)).unwrap()
}

fn payload(len: usize, seed: u32) -> Vec<u8> {
    crate::common::pattern(len, seed)
}

fn frames_come_and_go(mtu: u32) {
    let cable = Cable::new(mtu);
    let [mut a, mut b] = cable.ends.each_ref().map(|end| Host::new(end, &SETUP));
    assert_eq!(a.packets.mtu(), mtu);
    for len in [46, 500, 1034, mtu as usize - 1, mtu as usize] {
        let there = a.frame(b.packets.mac(), &payload(len, 3));
        a.send(&there);
        let frames = b.wait();
        assert_eq!(frames.len(), 1);
        assert_eq!(b.bytes(frames[0]), there);
        assert_eq!((frames[0].offset + u64::from(SETUP.header)) % 512, 0);
        let back = b.frame(a.packets.mac(), &payload(len, 7));
        b.send(&back);
        let frames = a.wait();
        assert_eq!(frames.len(), 1);
        assert_eq!(a.bytes(frames[0]), back);
        a.packets.release(frames[0]);
    }
    // More than one system call takes.
    let frames: Vec<Vec<u8>> = (0..64).map(|n| a.frame(BROADCAST, &payload(1000, n))).collect();
    frames.iter().for_each(|frame| a.queue(frame));
    assert!(a.packets.slot().is_none());
    assert!(!a.packets.flush(a.ring.arena()).unwrap());
    let got: Vec<Vec<u8>> = b.here().into_iter().map(|frame| b.bytes(frame)).collect();
    assert!(!got.is_empty() && frames.starts_with(&got));
    assert!(a.here().is_empty(), "its own frames are not received");
}

#[test]
fn frames_come_and_go_at_the_usual_mtu() {
    frames_come_and_go(1500);
}

#[test]
fn frames_come_and_go_at_a_jumbo_mtu() {
    frames_come_and_go(9000);
}
