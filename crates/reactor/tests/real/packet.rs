//! Packet sockets on cables between network namespaces.

use crate::common::{TAG, complete_one, ring};
use crate::net::{Cable, End, INTERFACE};
use reactor::io::{Io, Wait};
use reactor::memory::{Arena, Loan};
use reactor::packet::{Condition, Field, Line as _, Packets, Setup, Socket, Width, now, open};
use reactor::uring::Uring;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;
use wire::Span;

const PROTOCOL: u16 = 0x88a2;
const SETUP: Setup<'_> = Setup {
    interface: INTERFACE,
    protocol: PROTOCOL,
    filter: &[],
    spread: &[],
    mtu_min: 1000,
    header: 36,
    frames: 64,
    slots: 64,
};
const BROADCAST: [u8; 6] = [0xff; 6];

/// The packets of one end, and the ring used to wait for them.
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

    /// A frame of this protocol: addresses, EtherType, and payload.
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

    /// What has arrived by now.
    fn here(&mut self) -> Vec<Span> {
        while self.packets.receive(self.ring.arena()) {}
        std::iter::from_fn(|| self.packets.frame()).collect()
    }

    /// Sleeps until something has arrived.
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
}

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
    // More than one system call handles.
    let frames: Vec<Vec<u8>> = (0..64).map(|n| a.frame(BROADCAST, &payload(1000, n))).collect();
    frames.iter().for_each(|frame| a.queue(frame));
    assert!(a.packets.slot().is_none());
    assert!(!a.packets.flush(a.ring.arena()).unwrap());
    let got: Vec<Vec<u8>> = b.wait().into_iter().map(|frame| b.bytes(frame)).collect();
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

#[test]
fn a_frame_has_the_time_when_it_came_in() {
    let cable = Cable::new(1500);
    let [mut a, mut b] = cable.ends.each_ref().map(|end| Host::new(end, &SETUP));
    let mut last = now();
    for n in 0..3 {
        let frame = a.frame(b.packets.mac(), &payload(46, n));
        a.send(&frame);
        b.ring.watch(b.packets.handle(), TAG);
        complete_one(&mut b.ring).result.unwrap();
        let before_it_is_taken = now();
        b.packets.receive(b.ring.arena());
        let (_, came) = b.packets.stamped_frame().expect("a frame");
        assert!(last <= came && came <= before_it_is_taken, "{last:?} {came:?} {before_it_is_taken:?}");
        last = before_it_is_taken;
    }
}

/// The first byte of the payload, and the second and third.
const KIND: Field = Field { at: 14, width: Width::Byte };
const NUMBER: Field = Field { at: 15, width: Width::Half };
const SOURCE: [Field; 2] = [Field { at: 6, width: Width::Word }, Field { at: 10, width: Width::Half }];

#[test]
fn a_filter_keeps_other_frames_away() {
    let cable = Cable::new(1500);
    let filter = [
        Condition { field: KIND, mask: 0xf0, value: 0x30 },
        Condition { field: NUMBER, mask: 0xffff, value: 0x1234 },
    ];
    let [a, b] = &cable.ends;
    let mut a = Host::new(a, &SETUP);
    let mut b = Host::new(b, &Setup { filter: &filter, ..SETUP });
    let us = b.packets.mac();
    let other_machine = [0x02, 0, 0, 0, 0, 0x77];
    for (to, start) in [
        (us, [0x3f, 0x12, 0x34, 1]),
        (us, [0x2f, 0x12, 0x34, 2]),
        (us, [0x3f, 0x12, 0x35, 3]),
        (other_machine, [0x3f, 0x12, 0x34, 4]),
        (BROADCAST, [0x30, 0x12, 0x34, 5]),
    ] {
        let frame = a.frame(to, &[&start[..], &[0; 60]].concat());
        a.send(&frame);
    }
    let mut of_another_protocol = a.frame(us, &[&[0x3f, 0x12, 0x34, 6][..], &[0; 60]].concat());
    of_another_protocol[13] = 0xb5;
    a.send(&of_another_protocol);
    // Too short for the field that the filter checks.
    a.send(&[&us[..], &a.packets.mac(), &PROTOCOL.to_be_bytes(), &[0x3f]].concat());
    let last = a.frame(us, &[&[0x3f, 0x12, 0x34, 0xff][..], &[0; 60]].concat());
    a.send(&last);
    let mut seen = Vec::new();
    while seen.last() != Some(&0xff) {
        for frame in b.wait() {
            seen.push(b.bytes(frame)[17]);
        }
    }
    assert_eq!(seen, [1, 5, 0xff]);
    assert_eq!(b.packets.dropped(), 0);
}

#[test]
fn frames_of_one_sender_and_number_come_to_one_socket_and_none_comes_twice() {
    const NUMBERS: u16 = 64;
    let cable = Cable::new(9000);
    let [a, b] = &cable.ends;
    let spread = [SOURCE[0], SOURCE[1], NUMBER];
    let mut a = Host::new(a, &SETUP);
    let sockets = sockets(b, &Setup { spread: &spread, frames: 256, ..SETUP }, 3);
    let mut cores: Vec<Host> = sockets.into_iter().map(Host::of).collect();
    let to = cores[0].packets.mac();
    for round in 0..3u8 {
        for number in 0..NUMBERS {
            let [high, low] = number.to_be_bytes();
            // The kernel has long frames in pieces.
            let len = if round == 2 { 8000 } else { 60 };
            let frame = a.frame(to, &[&[round, high, low], &payload(len, 1)[..]].concat());
            a.send(&frame);
        }
    }
    let mut seen: BTreeMap<[u8; 3], usize> = BTreeMap::new();
    while seen.len() < 3 * usize::from(NUMBERS) {
        for (core, host) in cores.iter_mut().enumerate() {
            for frame in host.here() {
                let bytes = host.bytes(frame);
                let key = [bytes[14], bytes[15], bytes[16]];
                assert_eq!(seen.insert(key, core), None, "{key:?} came twice");
                host.packets.release(frame);
            }
        }
    }
    for ([_, high, low], core) in &seen {
        assert_eq!(seen[&[0, *high, *low]], *core);
    }
    let busy = BTreeSet::from_iter(seen.into_values());
    assert_eq!(busy.len(), 3, "{NUMBERS} numbers are more than enough for three sockets");
}

#[test]
fn groups_of_several_openings_do_not_mix() {
    let cable = Cable::new(1500);
    let [a, b] = &cable.ends;
    let mut a = Host::new(a, &SETUP);
    let mut groups = [2, 2].map(|count| Vec::from_iter(sockets(b, &SETUP, count).into_iter().map(Host::of)));
    let frame = a.frame(BROADCAST, &payload(100, 1));
    a.send(&frame);
    for group in &mut groups {
        // Without fields all frames arrive at the first socket.
        let frames = group[0].wait();
        assert_eq!(group[0].bytes(frames[0]), frame);
        assert!(group[1].here().is_empty());
    }
}

#[test]
fn what_there_is_no_room_for_is_dropped_and_counted_and_receiving_continues() {
    let cable = Cable::new(1500);
    let [a, b] = &cable.ends;
    let mut a = Host::new(a, &SETUP);
    let mut b = Host::new(b, &Setup { frames: 8, ..SETUP });
    let to = b.packets.mac();
    let send = |a: &mut Host, from: u32, count: u32| {
        for n in from..from + count {
            let frame = a.frame(to, &payload(200, n + 1));
            a.send(&frame);
        }
    };
    send(&mut a, 0, 500);
    let mut held = Vec::new();
    while b.packets.has_room() {
        held.extend(b.wait());
    }
    assert_eq!(held.len(), 8);
    assert!(!b.packets.receive(b.ring.arena()));
    for (n, frame) in held.iter().enumerate() {
        assert_eq!(b.bytes(*frame)[14..], payload(200, n as u32 + 1));
    }
    // What waits in the kernel's ring is received as slots become free, whichever they are.
    let mut got = held.len() as u64;
    for frame in [3, 0, 7, 5, 1, 6, 2, 4].map(|n: usize| held[n]) {
        b.packets.release(frame);
        assert!(b.packets.has_room());
    }
    while got + b.packets.dropped() < 500 {
        let frames = b.here();
        got += frames.len() as u64;
        frames.into_iter().for_each(|frame| b.packets.release(frame));
    }
    let dropped = b.packets.dropped();
    assert!(dropped > 0 && got + dropped == 500, "{got} and {dropped}");
    assert_eq!(b.packets.dropped(), dropped);
    send(&mut a, 500, 4);
    let mut frames = Vec::new();
    while frames.len() < 4 {
        frames.extend(b.wait());
    }
    for (n, frame) in frames.into_iter().enumerate() {
        assert_eq!(b.bytes(frame)[14..], payload(200, 500 + n as u32 + 1));
    }
}

#[test]
fn a_frame_stays_as_it_is_until_it_is_released() {
    let cable = Cable::new(1500);
    let [a, b] = &cable.ends;
    let mut a = Host::new(a, &SETUP);
    let mut b = Host::new(b, &Setup { frames: 4, ..SETUP });
    let to = b.packets.mac();
    let first = a.frame(to, &payload(1000, 9));
    a.send(&first);
    let held = b.wait()[0];
    // The ring wraps many times while a device reads the frame that is held.
    b.ring.arena().lend(held, Loan::Read);
    for n in 0..200 {
        let frame = a.frame(to, &payload(1000, n));
        a.send(&frame);
        let came = b.wait();
        assert_eq!(b.bytes(came[0]), frame);
        b.packets.release(came[0]);
    }
    assert_eq!(b.bytes(held), first);
    b.ring.arena().unlend(held, Loan::Read);
    b.packets.release(held);
    assert_eq!(b.packets.dropped(), 0);
}

#[test]
fn slots_to_send_from_come_back_used_or_not() {
    let cable = Cable::new(1500);
    let [mut a, mut b] = cable.ends.each_ref().map(|end| Host::new(end, &Setup { slots: 4, ..SETUP }));
    let to = b.packets.mac();
    for round in 0..10 {
        let slots: Vec<Span> = std::iter::from_fn(|| a.packets.slot()).collect();
        assert_eq!(slots.len(), 4);
        let frame = a.frame(to, &payload(300, round));
        a.ring.arena().bytes_mut(slots[2].slice(0, frame.len() as u32)).copy_from_slice(&frame);
        a.packets.queue(slots[0], 0);
        a.packets.queue(slots[2], frame.len() as u32);
        a.packets.queue(slots[1], 0);
        a.packets.queue(slots[3], 0);
        assert!(!a.packets.flush(a.ring.arena()).unwrap());
        let came = b.wait();
        assert_eq!((came.len(), b.bytes(came[0])), (1, frame));
        b.packets.release(came[0]);
    }
}

#[test]
fn closing_releases_memory_that_is_no_longer_lent() {
    let cable = Cable::new(9000);
    let mut arena = Arena::new(4 << 20).unwrap();
    for count in [1, 2] {
        for socket in sockets(&cable.ends[0], &SETUP, count) {
            let mut packets = Packets::new(socket, &mut arena).unwrap();
            assert!(arena.in_use() > 64 * 2 * 9014);
            let slot = packets.slot().unwrap();
            arena.lend(slot, Loan::Read);
            packets.close(&mut arena);
            assert_eq!(arena.in_use(), 65_536);
            arena.unlend(slot, Loan::Read);
            assert_eq!(arena.in_use(), 0);
        }
    }
    let mut small = Arena::new(65_536).unwrap();
    let refused = Packets::new(sockets(&cable.ends[0], &SETUP, 1).remove(0), &mut small).err().unwrap();
    assert_eq!((std::io::Error::from(refused).kind(), small.in_use()), (ErrorKind::OutOfMemory, 0));
}

#[test]
fn an_interface_that_does_not_suit_is_refused_with_the_reason() {
    let cable = Cable::new(1500);
    let end = &cable.ends[0];
    let refused = |interface: &str| {
        let setup = Setup { interface, ..SETUP };
        end.inside(|| open(&setup, 1)).err().unwrap().to_string()
    };
    let long = "a".repeat(40);
    for name in ["none7", "", &long] {
        assert!(refused(name).contains("no such network interface"), "{}", refused(name));
    }
    end.ip(&format!("link set {INTERFACE} down"));
    assert!(refused(INTERFACE).contains(&format!("ip link set {INTERFACE} up")), "{}", refused(INTERFACE));
    assert!(refused("lo").contains("ip link set lo up"), "{}", refused("lo"));
    end.ip(&format!("link set {INTERFACE} mtu 999 up"));
    assert!(
        refused(INTERFACE).contains("its MTU is 999, but at least 1000 is needed"),
        "{}",
        refused(INTERFACE)
    );
}

#[test]
fn without_the_capability_it_is_named() {
    let cable = Cable::new(1500);
    let refused = cable.ends[0].inside(|| {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, sets).unwrap();
        open(&SETUP, 1).err().unwrap()
    });
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(refused.to_string().contains("CAP_NET_RAW"), "{refused}");
}

#[test]
fn an_interface_that_goes_down_is_reported_once_and_works_when_it_is_up_again() {
    let cable = Cable::new(1500);
    let [mut a, mut b] = cable.ends.each_ref().map(|end| Host::new(end, &SETUP));
    b.ring.watch(b.packets.handle(), TAG);
    cable.ends[1].ip(&format!("link set {INTERFACE} down"));
    complete_one(&mut b.ring).result.unwrap();
    assert!(b.here().is_empty());
    let error = b.packets.take_error().unwrap_err().to_string();
    assert!(error.contains(&format!("ip link set {INTERFACE} up")), "{error}");
    b.packets.take_error().unwrap();
    let frame = b.frame(BROADCAST, &payload(100, 4));
    b.queue(&frame);
    let error = b.packets.flush(b.ring.arena()).unwrap_err().to_string();
    assert!(error.contains("down"), "{error}");

    b.ring.watch(b.packets.handle(), TAG);
    let mut completions = Vec::new();
    b.ring.turn(Wait::No, &mut completions);
    assert!(completions.is_empty(), "the next watch waits");
    cable.ends[1].ip(&format!("link set {INTERFACE} up"));
    let frame = a.frame(BROADCAST, &payload(100, 5));
    // The other end notices a little later, and until then loses what is sent.
    while completions.is_empty() {
        a.send(&frame);
        b.ring.turn(Wait::AtMost(Duration::from_millis(20)), &mut completions);
    }
    let came = b.here();
    assert_eq!(b.bytes(came[0]), frame);
}

#[test]
fn an_interface_that_was_removed_is_reported_and_the_socket_rests() {
    let cable = Cable::new(1500);
    let mut host = Host::new(&cable.ends[1], &SETUP);
    host.ring.watch(host.packets.handle(), TAG);
    cable.ends[0].ip(&format!("link delete {INTERFACE}"));
    complete_one(&mut host.ring).result.unwrap();
    let error = host.packets.take_error().unwrap_err().to_string();
    assert!(error.contains("removed"), "{error}");
    assert!(host.packets.outdated().is_some_and(|why| why.contains("no such network interface")));
    let frame = host.frame(BROADCAST, &payload(100, 4));
    host.queue(&frame);
    let error = host.packets.flush(host.ring.arena()).unwrap_err().to_string();
    assert!(error.contains("removed"), "{error}");
}

#[test]
fn a_socket_is_outdated_when_its_interface_is_another() {
    let cable = Cable::new(1500);
    let end = &cable.ends[1];
    let ip = |words: &str| end.ip(&format!("link {words}"));
    let socket = || sockets(end, &SETUP, 1).remove(0);
    // The interface is looked up where the socket was opened.
    let first = socket();
    ip(&format!("set {INTERFACE} down"));
    ip(&format!("set {INTERFACE} up"));
    assert_eq!(first.outdated(), None, "it is the same again");
    for (change, word) in [("mtu 2000", "2000"), ("address 02:00:00:00:00:77", "address")] {
        let socket = socket();
        ip(&format!("set {INTERFACE} {change}"));
        assert!(socket.outdated().is_some_and(|why| why.contains(word)), "{:?}", socket.outdated());
    }
    let socket = socket();
    ip(&format!("delete {INTERFACE}"));
    assert!(socket.outdated().is_some_and(|why| why.contains("no such")));
    ip(&format!("add {INTERFACE} type bridge"));
    assert!(socket.outdated().is_some_and(|why| why.contains("another")));
}

#[test]
fn what_has_no_room_is_sent_when_there_is_some() {
    let cable = Cable::new(1500);
    let [mut a, mut b] = cable.ends.each_ref().map(|end| Host::new(end, &SETUP));
    cable.ends[0].tc(&format!("qdisc add dev {INTERFACE} root tbf rate 100mbit burst 3000 latency 10s"));
    let frame = a.frame(b.packets.mac(), &payload(1400, 1));
    // What waits at the interface is beyond our control, but counts.
    let mut sent = 0;
    let mut is_left = false;
    while !is_left {
        while a.packets.has_slot() {
            a.queue(&frame);
            sent += 1;
        }
        is_left = a.packets.flush(a.ring.arena()).unwrap();
    }
    let mut turns = 0;
    while is_left {
        a.ring.watch_room(a.packets.handle(), TAG);
        complete_one(&mut a.ring).result.unwrap();
        is_left = a.packets.flush(a.ring.arena()).unwrap();
        turns += 1;
    }
    assert!(turns < 10, "it wakes only once much fits: {turns}");
    let mut got = 0;
    while got + b.packets.dropped() < sent {
        for frame in b.here() {
            got += 1;
            b.packets.release(frame);
        }
    }
}
