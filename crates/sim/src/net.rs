//! The clock, future events, and the network: byte streams between pairs of sockets, which arrive late, in
//! pieces, or never.

use crate::disk::{Disk, Faults, Loss, disk_of};
use crate::ethernet::Ethernet;
use crate::pipe::Pipe;
use crate::queue::Queue;
use crate::trace::Trace;
use fastrand::Rng;
use proto::time::Time;
use reactor::io::Handle;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// Bytes that one direction of a connection holds, in flight or not yet received.
const PIPE_BYTES: usize = 192 << 10;

/// How much longer a host's data may stay in flight after it loses power.
const LINGERS_NANOS: u64 = 50_000_000;
/// The first handle of a socket; those of files are the system's, and small.
const FIRST_HANDLE: i32 = 1 << 20;

/// What everybody shares.
pub(crate) type Shared = Rc<RefCell<Net>>;

/// A future event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A host has a turn.
    Turn { host: usize },
    /// A request of a host continues, unless it has ended.
    Go { host: usize, request: Request },
    /// Something arrives at a socket.
    Arrive { socket: Socket },
    /// A frame arrives.
    Land { flight: u64 },
    /// A connection breaks, which may recur.
    Fault,
    /// The second daemon is killed, or restarted.
    Back,
    /// Something of what gateways have to do with, by its number.
    Step { number: u64 },
}

/// A request of a host: its slot, and a serial number to distinguish it from others in that slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Request {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
}

/// A socket with this handle, while it is this one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Socket {
    pub(crate) handle: i32,
    pub(crate) serial: u64,
}

/// How a direction ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// All bytes have arrived, and there are no more.
    Closed,
    /// Bytes were lost.
    Reset,
}

/// A waiter: a host, with a request.
pub(crate) type Waits = (usize, Request);

/// One end of a connection.
#[derive(Debug)]
struct Side {
    serial: u64,
    /// The other end, while it exists.
    peer: Option<Socket>,
    local: SocketAddr,
    remote: SocketAddr,
    /// Sent to here and not yet received.
    bytes: Pipe,
    /// How many of them have arrived.
    arrived: usize,
    /// When the others arrive, and how many; `None`: the end.
    flights: VecDeque<(Time, Option<usize>)>,
    end: Option<End>,
    /// Nothing arrives before this.
    stalled_until: Time,
    /// Nothing arrives any more, without notice.
    is_dead: bool,
    reader: Option<Waits>,
    /// Who waits for room to send to here.
    writer: Option<Waits>,
}

/// A listening socket.
#[derive(Debug)]
struct Listening {
    address: SocketAddr,
    backlog: VecDeque<i32>,
    accepts: Option<Waits>,
}

#[derive(Debug)]
enum Open {
    Side(Side),
    Listening(Listening),
}

/// How likely events are: each in 1000.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Odds {
    /// A send is split into pieces.
    pub(crate) cut: u32,
    /// A piece is delayed.
    pub(crate) late: u32,
    /// A disk is slow.
    pub(crate) slow: u32,
    /// A disk does less than requested.
    pub(crate) short: u32,
    /// A host pauses after a turn.
    pub(crate) pause: u32,
}

/// The clock, and the network.
#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) odds: Odds,
    /// In the order of their units.
    pub(crate) disks: Vec<(Handle, Disk)>,
    pub(crate) faults: Faults,
    /// Since when all disks are slow.
    pub(crate) slow_since: Option<Time>,
    /// Disks' losses that nobody has examined.
    pub(crate) losses: Vec<Loss>,
    /// Units whose process was killed after it had been notified of a loss, but before it could save that.
    pub(crate) forgotten: Vec<usize>,
    pub(crate) ethernet: Option<Ethernet>,
    events: Queue,
    next_serial: u64,
    open: Vec<Option<Open>>,
    /// Until when each host's turn lasts.
    busy_until: Vec<Time>,
    /// Nobody reaches these addresses until then.
    cut: Vec<(SocketAddr, Time)>,
}

impl Net {
    pub(crate) fn new(rng: Rng, trace: Trace, odds: Odds, hosts: usize) -> Shared {
        Rc::new(RefCell::new(Net {
            now: Time(1_000_000_000),
            rng,
            trace,
            odds,
            disks: Vec::new(),
            faults: Faults::NONE,
            slow_since: None,
            losses: Vec::new(),
            forgotten: Vec::new(),
            ethernet: None,
            events: Queue::new(hosts),
            next_serial: 1,
            open: Vec::new(),
            busy_until: vec![Time(0); hosts],
            cut: Vec::new(),
        }))
    }

    pub(crate) fn disk(&mut self, file: Handle) -> &mut Disk {
        disk_of(&mut self.disks, file)
    }

    /// Whether an event of this likelihood happens.
    pub(crate) fn happens(&mut self, in_1000: u32) -> bool {
        in_1000 > 0 && self.rng.u32(0..1000) < in_1000
    }

    /// A duration between these, in nanoseconds.
    pub(crate) fn nanos(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_nanos(self.rng.u64(from..to))
    }

    pub(crate) fn at(&mut self, time: Time, event: Event) {
        self.events.push(time, self.now, event);
    }

    /// The next event; advances time to it.
    pub(crate) fn next(&mut self, until: Time) -> Option<Event> {
        let (time, event) = self.events.pop(self.now, until)?;
        self.now = time;
        Some(event)
    }

    /// Schedules a turn of a host for this time, or as soon as it is free; an earlier one stays.
    pub(crate) fn wake(&mut self, host: usize, at: Time) {
        let Some(busy_until) = self.busy_until.get(host) else { return };
        self.events.turn(at.max(*busy_until).max(self.now), host);
    }

    /// The same, a short while from now.
    pub(crate) fn wake_soon(&mut self, host: usize) {
        let after = self.nanos(200, 3000);
        self.wake(host, self.now.after(after));
    }

    /// Whether this turn begins, or is postponed.
    pub(crate) fn begins(&mut self, host: usize) -> bool {
        // What it began in its last turn may have ended before that turn did.
        let is_free = self.busy_until[host] <= self.now;
        if !is_free {
            self.wake(host, self.now);
        }
        is_free
    }

    /// A turn has ended; returns how long it took.
    pub(crate) fn turned(&mut self, host: usize, slowness: u32) -> Duration {
        let is_pausing = self.happens(self.odds.pause);
        let took =
            if is_pausing { self.nanos(100_000, 40_000_000) } else { self.nanos(500, 12_000) * slowness };
        self.busy_until[host] = self.now.after(took);
        took
    }

    fn place(&mut self, open: Open) -> i32 {
        let free = self.open.iter().position(Option::is_none);
        let handle = free.unwrap_or(self.open.len());
        if handle == self.open.len() {
            self.open.push(None);
        }
        self.open[handle] = Some(open);
        handle as i32 + FIRST_HANDLE
    }

    /// Listens at an address.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Handle {
        let listening = Listening { address, backlog: VecDeque::new(), accepts: None };
        Handle(self.place(Open::Listening(listening)))
    }

    fn slot(&mut self, handle: i32) -> Option<&mut Option<Open>> {
        let index = usize::try_from(handle - FIRST_HANDLE).ok()?;
        self.open.get_mut(index)
    }

    fn side(&mut self, handle: i32) -> Option<&mut Side> {
        match self.slot(handle)? {
            Some(Open::Side(side)) => Some(side),
            Some(Open::Listening(_)) | None => None,
        }
    }

    fn is(&mut self, socket: Socket) -> Option<&mut Side> {
        self.side(socket.handle).filter(|side| side.serial == socket.serial)
    }

    fn socket(&mut self, handle: i32) -> Option<Socket> {
        self.side(handle).map(|side| Socket { handle, serial: side.serial })
    }

    pub(crate) fn addresses(&self, handle: Handle) -> Option<(SocketAddr, SocketAddr)> {
        match self.open.get((handle.0 - FIRST_HANDLE) as usize)? {
            Some(Open::Side(side)) => Some((side.local, side.remote)),
            Some(Open::Listening(_)) | None => None,
        }
    }

    /// Connects to an address; returns our end, if there is a listener.
    pub(crate) fn connect(&mut self, host: usize, to: SocketAddr) -> Option<Handle> {
        let listens = |open: &Option<Open>| matches!(open, Some(Open::Listening(one)) if one.address == to);
        let listener = self.open.iter().position(listens)?;
        if self.cut.iter().any(|(address, until)| *address == to && *until > self.now) {
            return None;
        }
        let from = SocketAddr::new(address(host), 20_000 + (self.next_serial % 40_000) as u16);
        let ours = self.open_side(from, to);
        let theirs = self.open_side(to, from);
        for (one, other) in [(ours, theirs), (theirs, ours)] {
            if let Some(side) = self.is(one) {
                side.peer = Some(other);
            }
        }
        if let Some(Some(Open::Listening(one))) = self.open.get_mut(listener) {
            one.backlog.push_back(theirs.handle);
            if let Some((host, request)) = one.accepts.take() {
                self.at(self.now, Event::Go { host, request });
            }
        }
        Some(Handle(ours.handle))
    }

    fn open_side(&mut self, local: SocketAddr, remote: SocketAddr) -> Socket {
        self.next_serial += 1;
        let serial = self.next_serial;
        let handle = self.place(Open::Side(Side {
            serial,
            peer: None,
            local,
            remote,
            bytes: Pipe::new(),
            arrived: 0,
            flights: VecDeque::new(),
            end: None,
            stalled_until: Time(0),
            is_dead: false,
            reader: None,
            writer: None,
        }));
        Socket { handle, serial }
    }

    /// Accepts a connection, or registers to wait for one.
    pub(crate) fn accept(&mut self, listener: Handle, waits: Waits) -> Option<Handle> {
        let Some(Some(Open::Listening(one))) = self.slot(listener.0) else {
            panic!("{listener:?} does not listen");
        };
        let came = one.backlog.pop_front().map(Handle);
        if came.is_none() {
            one.accepts = Some(waits);
        }
        came
    }

    /// Room for bytes sent by this socket, or why there is none. A waiter is notified when there is some.
    pub(crate) fn room(&mut self, socket: Handle, waits: Option<Waits>) -> Result<usize, End> {
        let side = self.side(socket.0).expect("a socket that is open");
        if side.end == Some(End::Reset) {
            return Err(End::Reset);
        }
        let peer = side.peer.and_then(|peer| self.is(peer)).ok_or(End::Closed)?;
        let room = PIPE_BYTES.saturating_sub(peer.bytes.len());
        if room == 0 && waits.is_some() {
            peer.writer = waits;
        }
        Ok(room)
    }

    /// Sends bytes appended by `write`, for which there is room.
    pub(crate) fn send(&mut self, socket: Handle, write: impl FnOnce(&mut Vec<u8>)) {
        let late = if self.happens(self.odds.late) { 3_000_000 } else { 30_000 };
        let latency = self.nanos(2_000, late);
        let to = self.side(socket.0).and_then(|side| side.peer);
        let mut pipe = to.and_then(|to| self.is(to)).map(|peer| std::mem::take(&mut peer.bytes));
        let bytes = pipe.get_or_insert_default().add(write);
        let (now, sum, count) = (self.now, self.trace.sum_of(bytes), bytes.len());
        self.trace.note(now, &[socket.0 as u64, sum], || {
            format!("socket {} sends {count} bytes, {sum:016x}", socket.0)
        });
        let Some(to) = to else { return };
        if let (Some(peer), Some(pipe)) = (self.is(to), pipe) {
            peer.bytes = pipe;
            self.fly(to, Some(count), latency);
        }
    }

    fn fly(&mut self, to: Socket, bytes: Option<usize>, latency: Duration) {
        let now = self.now;
        let Some(peer) = self.is(to) else { return };
        let last = peer.flights.back().map_or(Time(0), |(at, _)| *at);
        let at = now.after(latency).max(last).max(peer.stalled_until);
        peer.flights.push_back((at, bytes));
        if !peer.is_dead {
            self.at(at, Event::Arrive { socket: to });
        }
    }

    /// Something arrives; returns who was waiting for it.
    pub(crate) fn arrive(&mut self, socket: Socket) -> Option<Waits> {
        let now = self.now;
        let side = self.is(socket)?;
        if side.is_dead {
            return None;
        }
        while side.flights.front().is_some_and(|(at, _)| *at <= now) {
            match side.flights.pop_front() {
                Some((_, Some(bytes))) => side.arrived += bytes,
                Some((_, None)) => side.end = side.end.or(Some(End::Closed)),
                None => {}
            }
        }
        if side.arrived > 0 || side.end.is_some() { side.reader.take() } else { None }
    }

    /// Bytes that have arrived, at most this many; or how the stream ended. `None`: neither; registers to
    /// wait.
    pub(crate) fn receive(
        &mut self,
        socket: Handle,
        most: usize,
        waits: Waits,
        take: impl FnOnce(&[u8]),
    ) -> Option<Result<usize, End>> {
        let side = self.side(socket.0).expect("a socket that is open");
        if side.end == Some(End::Reset) {
            return Some(Err(End::Reset));
        }
        let count = side.arrived.min(most);
        if count == 0 {
            if side.end.is_some() {
                return Some(Ok(0));
            }
            side.reader = Some(waits);
            return None;
        }
        side.bytes.take(count, take);
        side.arrived -= count;
        if let Some((host, request)) = side.writer.take() {
            self.at(self.now, Event::Go { host, request });
        }
        Some(Ok(count))
    }

    fn wake_waiting(&mut self, socket: Socket) {
        let Some(side) = self.is(socket) else { return };
        let waits = [side.reader.take(), side.writer.take()];
        let writes = side.peer.and_then(|peer| self.is(peer)).and_then(|peer| peer.writer.take());
        for (host, request) in waits.into_iter().chain([writes]).flatten() {
            self.at(self.now, Event::Go { host, request });
        }
    }

    /// Ends both directions.
    pub(crate) fn shutdown(&mut self, socket: Handle) {
        let Some(ours) = self.socket(socket.0) else { return };
        let Some(side) = self.is(ours) else { return };
        side.end = side.end.or(Some(End::Closed));
        let peer = side.peer;
        self.wake_waiting(ours);
        if let Some(side) = self.is(ours) {
            (side.peer, side.arrived) = (None, 0);
        }
        if let Some(peer) = peer {
            let latency = self.nanos(2_000, 30_000);
            self.fly(peer, None, latency);
        }
    }

    /// Closes a socket without outstanding requests.
    pub(crate) fn close(&mut self, socket: Handle) {
        if let Some(Some(Open::Side(side))) = self.slot(socket.0) {
            assert!(side.reader.is_none(), "{socket:?} is closed while it is received from");
            let (peer, is_unread, writer) = (side.peer, side.arrived > 0, side.writer);
            if let Some((host, request)) = writer {
                self.at(self.now, Event::Go { host, request });
            }
            match peer {
                // RFC 9293 section 3.10.4: data that is no longer read is answered with a reset.
                Some(peer) if is_unread => self.reset(peer),
                Some(peer) => self.fly(peer, None, Duration::from_micros(5)),
                None => {}
            }
        }
        let slot = self.slot(socket.0).expect("a socket that is open");
        assert!(slot.take().is_some(), "{socket:?} is closed twice");
    }

    /// Notifies a socket that bytes were lost.
    fn reset(&mut self, socket: Socket) {
        let Some(side) = self.is(socket) else { return };
        side.end = Some(End::Reset);
        side.bytes.clear();
        side.arrived = 0;
        side.flights.clear();
        self.wake_waiting(socket);
        if let Some(side) = self.is(socket) {
            side.peer = None;
        }
    }

    /// Closes everything that the process listening there had, as when it is killed.
    pub(crate) fn kill(&mut self, portal: SocketAddr) {
        self.kill_all(|local| local == portal, true);
    }

    /// The same for the connections made by these hosts. Unless the other ends are reset, they do not notice:
    /// data in flight to them arrives.
    pub(crate) fn kill_callers(&mut self, hosts: std::ops::Range<usize>, resets: bool) {
        self.kill_all(|local| hosts.clone().any(|host| local.ip() == address(host)), resets);
    }

    fn kill_all(&mut self, is_its: impl Fn(SocketAddr) -> bool, resets: bool) {
        for index in 0..self.open.len() {
            let (peer, writer) = match &mut self.open[index] {
                Some(Open::Side(side)) if is_its(side.local) && !resets => {
                    // The other end's send may wait for room there, until that end is shut down.
                    (side.is_dead, side.reader) = (true, None);
                    let peer = side.peer;
                    peer.into_iter().for_each(|peer| self.linger(peer));
                    continue;
                }
                Some(Open::Side(side)) if is_its(side.local) => (side.peer, side.writer),
                Some(Open::Listening(one)) if is_its(one.address) => (None, None),
                Some(Open::Side(_) | Open::Listening(_)) | None => continue,
            };
            self.open[index] = None;
            if let Some((host, request)) = writer {
                self.at(self.now, Event::Go { host, request });
            }
            if let Some(peer) = peer {
                self.reset(peer);
            }
        }
    }

    /// A host has no turn before this.
    pub(crate) fn pause(&mut self, host: usize, until: Time) {
        self.busy_until[host] = self.busy_until[host].max(until);
    }

    /// It may have turns again.
    pub(crate) fn free(&mut self, host: usize) {
        self.busy_until[host] = self.busy_until[host].min(self.now);
    }

    /// Nothing that is sent from or to this address from now on arrives before then.
    pub(crate) fn cut_off(&mut self, portal: SocketAddr, until: Time) {
        self.cut.retain(|(address, _)| *address != portal);
        self.cut.push((portal, until));
        for open in self.open.iter_mut().flatten() {
            if let Open::Side(side) = open
                && (side.local == portal || side.remote == portal)
            {
                side.stalled_until = side.stalled_until.max(until);
            }
        }
    }

    /// Delays data in flight to a socket, as if a switch held it.
    fn linger(&mut self, socket: Socket) {
        let pause = self.nanos(0, LINGERS_NANOS);
        let Some(side) = self.is(socket) else { return };
        side.flights.iter_mut().for_each(|(at, _)| *at = at.after(pause));
        let arrivals: Vec<Time> = side.flights.iter().map(|(at, _)| *at).collect();
        arrivals.into_iter().for_each(|at| self.at(at, Event::Arrive { socket }));
    }

    /// Breaks, stalls or silently kills one of the connections.
    pub(crate) fn fault(&mut self) {
        let sides: Vec<(i32, Option<Socket>)> = (FIRST_HANDLE..FIRST_HANDLE + self.open.len() as i32)
            .filter_map(|handle| self.side(handle).map(|side| (handle, side.peer)))
            .collect();
        if sides.is_empty() {
            return;
        }
        let (handle, peer) = sides[self.rng.usize(0..sides.len())];
        let Some(ours) = self.socket(handle) else { return };
        let what = self.rng.u32(0..8);
        let now = self.now;
        self.trace.note(now, &[handle as u64, u64::from(what)], || match what {
            0..3 => format!("the connection of socket {handle} is reset"),
            3..7 => format!("what comes to socket {handle} stalls"),
            _ => format!("the connection of socket {handle} is dead"),
        });
        match what {
            0..3 => {
                self.reset(ours);
                peer.into_iter().for_each(|peer| self.reset(peer));
            }
            3..7 => {
                let pause = self.nanos(1_000_000, 400_000_000);
                if let Some(side) = self.is(ours) {
                    side.stalled_until = now.after(pause);
                }
            }
            _ => {
                for socket in [Some(ours), peer].into_iter().flatten() {
                    if let Some(side) = self.is(socket) {
                        side.is_dead = true;
                    }
                }
            }
        }
    }
}

fn address(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 1, host as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_to_a_host_without_power_ends_when_its_socket_is_shut_down() {
        let odds = Odds { cut: 0, late: 0, slow: 0, short: 0, pause: 0 };
        let net = Net::new(Rng::with_seed(1), Trace::default(), odds, 2);
        let mut net = net.borrow_mut();
        let portal = SocketAddr::new(address(1), 3260);
        let listener = net.listen(portal);
        net.connect(0, portal).expect("somebody listens there");
        let request = Request { slot: 0, serial: 1 };
        let accepted = net.accept(listener, (1, request)).expect("it has come");
        net.send(accepted, |bytes| bytes.resize(PIPE_BYTES, 0));
        assert_eq!(net.room(accepted, Some((1, request))), Ok(0));
        net.kill_callers(0..1, false);
        net.shutdown(accepted);
        let until = net.now.after(Duration::from_secs(1));
        let mut goes = false;
        while let Some(event) = net.next(until) {
            goes |= matches!(event, Event::Go { host: 1, .. });
        }
        assert!(goes, "whoever waits for room is woken");
        assert_eq!(net.room(accepted, None), Err(End::Closed));
    }
}
