//! An Ethernet segment that loses, duplicates, delays and reorders frames, as decided by a seed of its own.

use crate::initiator::Habits;
use crate::net::{Event, Net, Shared, Waits};
use crate::register::BLOCK_BYTES;
use fastrand::Rng;
use proto::time::{Stamp, Time};
use reactor::io::Handle;
use reactor::memory::Arena;
use reactor::packet::{self, Arrival, Condition, Field, Setup, Shape, Unsent, Width};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use wire::aoe::Mac;
use wire::{Places, Span};

/// Separates its choices from others made from the same seed.
const SALT: u64 = 0x6574_6865_726e_6574;
/// The longest delay of a frame: targets rely on it when they recognise writes they have answered, of which
/// they remember a limited number.
pub(crate) const LATE: Duration = Duration::from_millis(2);
const EVER: Duration = Duration::from_secs(1_000_000);
/// The first handle of a line; those of sockets and files are different.
const FIRST_HANDLE: i32 = 1 << 24;
/// Bytes of the two addresses.
const MAC_BYTES: usize = 6;

thread_local! {
    /// The world running on this thread, for reopening an interface that was unplugged.
    static WORLD: RefCell<Weak<RefCell<Net>>> = const { RefCell::new(Weak::new()) };
}

/// Begins a world on this thread.
pub(crate) fn begin(net: &Shared) {
    WORLD.set(Rc::downgrade(net));
}

/// What happens to the frames of a segment: odds in 1000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazards {
    lost: u32,
    twice: u32,
    late: u32,
    /// For a while all are lost.
    breaks: u32,
    /// The target's interface is unplugged, and plugged in again some time later.
    pulls: u32,
    /// Frames that a line holds between two turns of its core.
    room: usize,
}

impl Hazards {
    pub(crate) const NONE: Hazards =
        Hazards { lost: 0, twice: 0, late: 0, breaks: 0, pulls: 0, room: usize::MAX };
    #[cfg(test)]
    pub(crate) const SOME: Hazards = Hazards { lost: 20, twice: 100, late: 100, ..Hazards::NONE };
}

/// The segment for a seed.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) mtu: u32,
    pub(crate) hazards: Hazards,
    /// The initiators that use the units there.
    pub(crate) initiators: usize,
    pub(crate) seed: u64,
    /// They have two addresses each, and retransmit requests from either.
    pub(crate) wanders: bool,
}

impl Segment {
    /// Adapts other initiators' behaviour: their writes are not ordered with late copies.
    pub(crate) fn shape(&self, habits: &mut Habits) {
        if self.wanders {
            habits.calm = EVER;
        }
    }
}

/// The segment in this seed's world, if any.
pub(crate) fn draw(seed: u64) -> Option<Segment> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    (rng.u32(0..4) == 0).then(|| {
        let mut segment = Segment {
            mtu: [1500, 9000][rng.usize(0..2)],
            hazards: Hazards {
                lost: [0, 5, 50][rng.usize(0..3)],
                twice: [0, 50, 500][rng.usize(0..3)],
                late: [0, 50, 500][rng.usize(0..3)],
                breaks: [0, 0, 1][rng.usize(0..3)],
                pulls: 0,
                room: [usize::MAX, 64, 2][rng.usize(0..3)],
            },
            initiators: rng.usize(1..=3),
            seed: rng.u64(..),
            wanders: rng.u32(0..3) == 0,
        };
        segment.hazards.pulls = [0, 0, 1][rng.usize(0..3)];
        segment
    })
}

/// All stations, and frames in flight between them.
#[derive(Debug)]
pub(crate) struct Ethernet {
    rng: Rng,
    pub(crate) hazards: Hazards,
    mtu: u32,
    stations: Vec<Station>,
    flights: BTreeMap<u64, Flight>,
    flown: u64,
    broken_until: Time,
    /// The interface that is unplugged, and until when.
    pulled: Option<(Mac, Time)>,
    /// Writes that have ended, as the interface has left, until it joins again; and one of them that was executed later.
    pub(crate) ended: BTreeSet<u64>,
    pub(crate) late: Option<u64>,
}

#[derive(Debug)]
struct Flight {
    to: usize,
    frame: Vec<u8>,
}

/// A station's interface.
#[derive(Debug)]
struct Station {
    mac: Mac,
    filter: Vec<Condition>,
    spread: Vec<Field>,
    ports: Vec<Port>,
}

#[derive(Debug)]
struct Port {
    host: usize,
    queue: Queue,
    watcher: Option<Waits>,
}

/// Frames that have arrived at a port and were not taken, and those to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Queue(Arc<Mutex<Frames>>);

#[derive(Default, Debug)]
struct Frames {
    stamp: VecDeque<(Stamp, Vec<u8>)>,
    /// Most frames that have arrived.
    came_max: usize,
    drops: u32,
    leave: Vec<Vec<u8>>,
    leave_max: usize,
    /// The interface is unplugged.
    is_out: bool,
    /// The target has acknowledged that it no longer serves the interface.
    is_left: bool,
}

/// A core's end of an interface.
#[derive(Debug)]
pub struct Line {
    handle: Handle,
    mac: Mac,
    mtu: u32,
    shape: Shape,
    queue: Queue,
}

impl Queue {
    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for the target that serves the interface.
    fn served(&self) -> MutexGuard<'_, Frames> {
        let frames = self.frames();
        assert!(!frames.is_left, "an interface is used that is not served any more");
        frames
    }

    /// Takes the oldest frame received.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.frames().stamp.pop_front().map(|(_, frame)| frame)
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) {
        self.frames().leave.push(frame.to_vec());
    }
}

impl packet::Line for Line {
    type Batch = ();

    fn open(setup: &Setup<'_>, count: usize) -> io::Result<Vec<Line>> {
        let net = WORLD.with_borrow(Weak::upgrade).expect("a world runs on this thread");
        let net = &mut *net.borrow_mut();
        let ethernet = net.ethernet.as_mut().expect("an interface was opened before");
        match ethernet.pulled {
            Some((mac, until)) if until <= net.now => Ok(ethernet.open(mac, setup, count)),
            _ => Err(io::Error::other("there is no such network interface")),
        }
    }

    fn handle(&self) -> Handle {
        self.handle
    }

    fn mac(&self) -> [u8; MAC_BYTES] {
        self.mac.0
    }

    fn mtu(&self) -> u32 {
        self.mtu
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn receive(&mut self, arena: &mut Arena, slot: Span) -> Arrival {
        let Some((stamp, frame)) = self.queue.served().stamp.pop_front() else { return Arrival::Nothing };
        let len = frame.len() as u32;
        if len > slot.len {
            return Arrival::Cut;
        }
        // Other slots of the slot's buffer may be lent.
        let Some(scratch) = arena.take(len) else { return Arrival::Cut };
        for span in scratch.iter() {
            arena.bytes_mut(span).copy_from_slice(&frame);
            arena.copy(span, &Places::one(slot.slice(0, len)));
        }
        arena.give(&scratch);
        Arrival::Frame { len, stamp }
    }

    fn send(
        &mut self,
        _batch: &mut (),
        arena: &mut Arena,
        frames: impl Iterator<Item = Span>,
    ) -> Result<usize, Unsent> {
        let queue = &mut *self.queue.served();
        if queue.is_out {
            return Ok(frames.count());
        }
        let room = queue.leave_max - queue.leave.len();
        let before = queue.leave.len();
        queue.leave.extend(frames.take(room).map(|frame| arena.bytes(frame).to_vec()));
        match queue.leave.len() - before {
            0 => Err(Unsent::Full),
            sent => Ok(sent),
        }
    }

    fn outdated(&self) -> Option<String> {
        self.queue.frames().is_out.then(|| "the network interface was removed".to_owned())
    }

    fn drops(&self) -> u32 {
        std::mem::take(&mut self.queue.frames().drops)
    }

    fn take_error(&self) -> io::Result<()> {
        self.outdated().map_or(Ok(()), |reason| Err(io::Error::other(reason)))
    }
}

impl Ethernet {
    pub(crate) fn new(segment: &Segment) -> Ethernet {
        Ethernet {
            rng: Rng::with_seed(segment.seed),
            hazards: segment.hazards,
            mtu: segment.mtu,
            stations: Vec::new(),
            flights: BTreeMap::new(),
            flown: 0,
            broken_until: Time(0),
            pulled: None,
            ended: BTreeSet::new(),
            late: None,
        }
    }

    /// A disk executes a write now. What the blocks have already may be written back together with other bytes.
    pub(crate) fn look_at_write(&mut self, written: &[u8], before: &[u8]) {
        let numbers = |bytes: &[u8]| -> Vec<u64> {
            let blocks = bytes.as_chunks::<{ BLOCK_BYTES as usize }>().0.iter();
            blocks.map(|block| block.first_chunk().map_or(0, |number| u64::from_le_bytes(*number))).collect()
        };
        let each = numbers(written).into_iter().zip(numbers(before));
        let mut late = each.filter(|(number, before)| number != before && self.ended.contains(number));
        self.late = self.late.or(late.next().map(|(number, _)| number));
    }

    /// Opens an interface, perhaps again, for each of these cores, numbered like their hosts.
    pub(crate) fn open(&mut self, mac: Mac, setup: &Setup<'_>, cores: usize) -> Vec<Line> {
        self.pulled = None;
        let known = self.stations.iter().position(|station| station.mac == mac);
        let (station, room) = (known.unwrap_or(self.stations.len()), self.hazards.room);
        let line = |core: usize| {
            let handle = Handle(FIRST_HANDLE + ((station as i32) << 8) + core as i32);
            let queue = Queue::new(setup.frames as usize, room);
            let shape = Shape { header: setup.header, frames: setup.frames, slots: setup.slots };
            Line { handle, mac, mtu: self.mtu, shape, queue }
        };
        let lines: Vec<Line> = (0..cores).map(line).collect();
        let port = |(host, line): (usize, &Line)| Port { host, queue: line.queue.clone(), watcher: None };
        let ports = lines.iter().enumerate().map(port).collect();
        let (filter, spread) = (setup.filter.to_vec(), setup.spread.to_vec());
        let new = Station { mac, filter, spread, ports };
        match self.stations.get_mut(station) {
            Some(station) => *station = new,
            None => self.stations.push(new),
        }
        lines
    }

    /// Adds a host that takes all frames sent to it.
    pub(crate) fn join(&mut self, mac: Mac, host: usize) -> Queue {
        let queue = Queue::new(usize::MAX, usize::MAX);
        let ports = vec![Port { host, queue: queue.clone(), watcher: None }];
        self.stations.push(Station { mac, filter: Vec::new(), spread: Vec::new(), ports });
        queue
    }

    /// Removes an interface; by the time there is another, nothing is in flight any more.
    pub(crate) fn kill(&mut self, mac: Mac) {
        self.flights.clear();
        for station in self.stations.iter_mut().filter(|station| station.mac == mac) {
            station.ports.clear();
        }
        for port in self.stations.iter().flat_map(|station| &station.ports) {
            port.queue.frames().stamp.clear();
        }
    }

    /// The same after the target has acknowledged it, and must no longer use the interface.
    pub(crate) fn leave(&mut self, mac: Mac) {
        let stations = self.stations.iter().filter(|station| station.mac == mac);
        stations.flat_map(|station| &station.ports).for_each(|port| port.queue.frames().is_left = true);
        self.kill(mac);
    }

    /// Unplugs a target's interface now and then, and notifies those that watch it.
    fn pull(&mut self, now: Time, station: usize) -> Vec<Waits> {
        let Hazards { pulls, .. } = self.hazards;
        let Station { mac, ports, filter, .. } = &mut self.stations[station];
        if filter.is_empty() || ports.is_empty() || pulls == 0 || self.rng.u32(0..1000) >= pulls {
            return Vec::new();
        }
        let away = Duration::from_micros(self.rng.u64(100..20_000));
        self.pulled = Some((*mac, now.after(away)));
        let watchers = std::mem::take(ports).into_iter().filter_map(|port| {
            let mut frames = port.queue.frames();
            frames.is_out = true;
            frames.stamp.clear();
            port.watcher
        });
        watchers.collect()
    }

    fn port(&mut self, line: Handle) -> Option<&mut Port> {
        let number = line.0.checked_sub(FIRST_HANDLE).filter(|number| *number >= 0)?;
        self.stations.get_mut((number >> 8) as usize)?.ports.get_mut((number & 0xff) as usize)
    }

    /// When a frame sent now arrives, and when its duplicate does: `None`: never.
    fn fates(&mut self, now: Time) -> [Option<Duration>; 2] {
        let mut happens = |in_1000: u32| in_1000 > 0 && self.rng.u32(0..1000) < in_1000;
        let Hazards { lost, twice, late, breaks, .. } = self.hazards;
        let (is_lost, is_twice) = (happens(lost), happens(twice));
        let is_late = [happens(late), happens(late)];
        if happens(breaks) {
            self.broken_until = now.after(Duration::from_micros(self.rng.u64(100..20_000)));
        }
        let latency = is_late.map(|is_late| {
            let most = if is_late { LATE } else { Duration::from_micros(30) };
            Duration::from_nanos(self.rng.u64(2_000..most.as_nanos() as u64))
        });
        let comes = !is_lost && now >= self.broken_until;
        [comes.then_some(latency[0]), (comes && is_twice).then_some(latency[1])]
    }
}

impl Station {
    /// The port at which a frame arrives, if any.
    fn port(&mut self, frame: &[u8]) -> Option<&mut Port> {
        let is_so = |condition: &Condition| {
            value(frame, condition.field).is_some_and(|value| value & condition.mask == condition.value)
        };
        if !self.filter.iter().all(is_so) {
            return None;
        }
        let mix = |sum: u32, field: &Field| {
            sum.wrapping_add(value(frame, *field).unwrap_or(0)).wrapping_mul(0x9e37_79b1)
        };
        let sum = self.spread.iter().fold(0, mix) >> 16;
        let count = self.ports.len();
        self.ports.get_mut((sum as usize).checked_rem(count)?)
    }
}

impl Queue {
    fn new(came_max: usize, leave_max: usize) -> Queue {
        Queue(Arc::new(Mutex::new(Frames { came_max, leave_max, ..Frames::default() })))
    }
}

/// Whether this is the handle of a line.
pub(crate) fn is_line(handle: Handle) -> bool {
    handle.0 >= FIRST_HANDLE
}

fn value(frame: &[u8], field: Field) -> Option<u32> {
    let bytes = match field.width {
        Width::Byte => 1,
        Width::Half => 2,
        Width::Word => 4,
    };
    let at = usize::from(field.at);
    Some(frame.get(at..at + bytes)?.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}

impl Net {
    /// Sends what a host has queued in its turn.
    pub(crate) fn carry(&mut self, host: usize) {
        let now = self.now;
        let Some(ethernet) = &mut self.ethernet else { return };
        let ports = ethernet.stations.iter().flat_map(|station| &station.ports);
        let own = ports.filter(|port| port.host == host);
        let sent: Vec<Vec<u8>> =
            own.flat_map(|port| std::mem::take(&mut port.queue.frames().leave)).collect();
        for frame in sent {
            let sum = self.trace.sum_of(&frame);
            self.trace.note(now, &[host as u64, sum], || {
                format!("host {host} sends a frame of {} bytes, {sum:016x}", frame.len())
            });
            self.spread(&frame);
        }
    }

    /// Delivers a frame, or not, to every station that it is addressed to.
    fn spread(&mut self, frame: &[u8]) {
        let now = self.now;
        let Some(ethernet) = &mut self.ethernet else { return };
        let [to, from] = [0, MAC_BYTES].map(|at| frame[at..].first_chunk().copied().map(Mac));
        let (Some(to), Some(from)) = (to, from) else { return };
        let mut events = Vec::new();
        for station in 0..ethernet.stations.len() {
            let mac = ethernet.stations[station].mac;
            if mac == from || mac != to && !to.is_group() {
                continue;
            }
            for latency in ethernet.fates(now).into_iter().flatten() {
                ethernet.flown += 1;
                ethernet.flights.insert(ethernet.flown, Flight { to: station, frame: frame.to_vec() });
                events.push((now.after(latency), Event::Land { flight: ethernet.flown }));
            }
            let watchers = ethernet.pull(now, station).into_iter();
            events.extend(watchers.map(|(host, request)| (now, Event::Go { host, request })));
        }
        events.into_iter().for_each(|(at, event)| self.at(at, event));
    }

    /// A frame arrives; returns who was waiting for it.
    pub(crate) fn land(&mut self, flight: u64) -> Option<Waits> {
        let now = self.now;
        let ethernet = self.ethernet.as_mut()?;
        let Flight { to, frame } = ethernet.flights.remove(&flight)?;
        let port = ethernet.stations[to].port(&frame)?;
        let queue = &mut *port.queue.frames();
        if queue.stamp.len() >= queue.came_max {
            queue.drops += 1;
            return None;
        }
        queue.stamp.push_back((Stamp(now.0), frame));
        port.watcher.take()
    }

    /// Whether a frame has arrived; otherwise registers to wait for one.
    pub(crate) fn has_frames(&mut self, line: Handle, waits: Waits) -> bool {
        let Some(port) = self.ethernet.as_mut().and_then(|ethernet| ethernet.port(line)) else { return true };
        let has_frames = !port.queue.frames().stamp.is_empty();
        port.watcher = (!has_frames).then_some(waits);
        has_frames
    }
}
