//! What carries an AoE session: a packet socket that receives the answers to its own requests, and a timer,
//! since what the network loses must be retransmitted within milliseconds.

use proto::aoe::discover::{self, Discovery, Target};
use proto::aoe::initiator::{Initiator, Outgoing, Source};
use proto::time::Time;
use reactor::io::{Handle, Io, Tag, Wait};
use reactor::memory::Arena;
use reactor::packet::aoe::{self, FLAGS, HEADERS_BYTES, LANE};
use reactor::packet::{self, Condition, Packets, Setup, Socket};
use reactor::uring::Uring;
use reactor::wake::Waker;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;
use wire::Places;
use wire::aoe::{Address, ETHERTYPE, Header, Mac};

/// Frame slots in each direction: the most that the machine has in flight.
const SLOTS: u32 = proto::aoe::initiator::PIECES_MAX as u32 + 1;
/// Sessions of this host on one interface: each has its own first byte of tags.
const LANES: u16 = 256;

/// How long a discovery waits for answers, and how often it checks for them.
const DISCOVERY_WITHIN: Duration = Duration::from_millis(500);
const DISCOVERY_TURN: Duration = Duration::from_millis(20);
/// Buffers of a discovery.
const DISCOVERY_BYTES: u64 = 16 << 20;

/// A session's access to an interface.
pub(crate) struct Frames {
    packets: Packets,
    lane: Arc<Lane>,
    clock: Clock,
    tags: Tags,
    /// The socket is watched.
    is_watched: bool,
    /// Frames have not been sent yet.
    owes: bool,
    is_woken: bool,
    is_ending: bool,
}

/// The tags of its watches.
#[derive(Clone, Copy)]
pub(crate) struct Tags {
    pub(crate) frames: Tag,
    pub(crate) clock: Tag,
}

impl Frames {
    /// Opens the interface, in the lane of an earlier session if there was one.
    ///
    /// # Errors
    /// A message with the fix.
    pub(crate) fn open<I: Io>(
        io: &mut I,
        interface: &str,
        tags: Tags,
        lane: Option<Arc<Lane>>,
    ) -> io::Result<Frames> {
        let lane = lane.map_or_else(|| Lane::claim(interface, I::random()).map(Arc::new), Ok)?;
        let socket = lane.open(interface)?;
        let clock = Clock::new()?;
        let packets = Packets::new(socket, io.arena())?;
        let (is_watched, owes, is_woken, is_ending) = (false, false, false, false);
        Ok(Frames { packets, lane, clock, tags, is_watched, owes, is_woken, is_ending })
    }

    /// The interface's address.
    pub(crate) fn mac(&self) -> Mac {
        Mac(self.packets.mac())
    }

    /// The interface's MTU.
    pub(crate) fn mtu(&self) -> u32 {
        self.packets.mtu()
    }

    /// The highest byte of all tags.
    pub(crate) fn lane(&self) -> u8 {
        self.lane.number
    }

    /// The watch of the socket has ended.
    pub(crate) fn watch_ended(&mut self) {
        self.is_watched = false;
        self.is_woken = true;
    }

    /// The watch of the timer has ended.
    pub(crate) fn timer_expired(&mut self) {
        self.clock.expires_at = None;
    }

    /// Gives the machine what has arrived. Returns whether there was any.
    pub(crate) fn feed<I: Io>(&mut self, io: &mut I, machine: &mut Initiator) -> bool {
        let now = io.now();
        self.packets.receive(io.arena());
        let mut any = false;
        while let Some(frame) = self.packets.frame() {
            any = true;
            let arena = io.arena();
            if let Some(put) = machine.receive(now, arena.bytes(frame), frame) {
                match put.from {
                    Source::Frame(from) => arena.copy(from, &put.to),
                    Source::Made(bytes) => write(arena, &put.to, bytes),
                }
            }
            self.packets.release(frame);
        }
        if std::mem::take(&mut self.is_woken)
            && !any
            && let Err(error) = self.packets.take_error()
        {
            machine.closed(&error.to_string());
        }
        any
    }

    /// Sends what is owed.
    pub(crate) fn flush<I: Io>(&mut self, io: &mut I, machine: &mut Initiator) {
        let now = io.now();
        if machine.deadline().is_some_and(|deadline| now >= deadline) {
            machine.tick(now);
        }
        while let Some(places) = machine.wants() {
            machine.bring(&io.arena().to_vec(&places));
        }
        aoe::queue(&mut self.packets, io.arena(), |arena, slot| {
            machine.transmit(now).map(|Outgoing { frame, made }| aoe::copy_frame(arena, &frame, made, slot))
        });
        match self.packets.flush(io.arena()) {
            Ok(is_left) => self.owes = is_left,
            Err(error) => machine.closed(&error.to_string()),
        }
        self.watch(io, machine);
    }

    /// Whether frames wait for room.
    pub(crate) fn wants_more(&self) -> bool {
        self.owes
    }

    /// Whether nothing is watched.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_watched && self.clock.expires_at.is_none()
    }

    /// The watches end soon.
    pub(crate) fn shut_down<I: Io>(&mut self, io: &mut I) {
        if std::mem::replace(&mut self.is_ending, true) {
            return;
        }
        if self.is_watched {
            io.unwatch(self.tags.frames);
        }
        if self.clock.expires_at.is_some() {
            io.unwatch(self.tags.clock);
        }
    }

    /// Closes the socket; it is quiet. The machine keeps the unanswered writes, and its lane is still
    /// claimed.
    pub(crate) fn close(self, arena: &mut Arena, machine: &mut Initiator) -> Arc<Lane> {
        machine.keep(|places| arena.to_vec(places));
        self.packets.close(arena);
        self.lane
    }

    fn watch<I: Io>(&mut self, io: &mut I, machine: &Initiator) {
        if self.is_ending {
            return;
        }
        if !std::mem::replace(&mut self.is_watched, true) {
            io.watch_peers(self.packets.handle(), self.tags.frames);
        }
        if let Some(deadline) = machine.deadline()
            && self.clock.set(io.now(), deadline)
        {
            io.watch(Handle(self.clock.timer.as_raw_fd()), self.tags.clock);
        }
    }
}

/// Expires when the next answer may be overdue.
struct Clock {
    timer: OwnedFd,
    /// It is watched, and expires then.
    expires_at: Option<Time>,
}

impl Clock {
    fn new() -> io::Result<Clock> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Clock { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, expires_at: None })
    }

    /// Has it expire at this time, or earlier: set once for the next answer that may be overdue, it expires
    /// without effect if that arrives. One that waits for the end of a long silence is set again when there
    /// is something to wait for. Returns whether it has to be watched now.
    fn set(&mut self, now: Time, deadline: Time) -> bool {
        if self.expires_at.is_some_and(|at| at <= deadline) {
            return false;
        }
        let nanoseconds = deadline.since(now).as_nanos().max(1) as i64;
        let it_value = Timespec { tv_sec: nanoseconds / 1_000_000_000, tv_nsec: nanoseconds % 1_000_000_000 };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval, it_value };
        // Without it, what is lost waits for the next tick.
        let is_set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time).is_ok();
        is_set && self.expires_at.replace(deadline).is_none()
    }
}

/// The targets that answer a broadcast query on an interface. Blocks.
///
/// # Errors
/// A message with the fix.
pub(super) fn discover(interface: &str) -> io::Result<Vec<Target>> {
    let mut io = Arena::new(DISCOVERY_BYTES).and_then(|arena| Uring::new(arena, Waker::new()?))?;
    let lane = Lane::claim(interface, Uring::random())?;
    let mut packets = Packets::new(lane.open(interface)?, io.arena())?;
    let slot = packets.slot().ok_or(io::ErrorKind::OutOfMemory)?;
    let tag = u32::from(lane.number) << 24;
    let query = discover::query(Mac(packets.mac()), Mac::BROADCAST, Address::BROADCAST, tag);
    let len = aoe::copy_frame(io.arena(), &query, &[], slot);
    packets.queue(slot, len);
    packets.flush(io.arena())?;
    let mut discovery = Discovery::default();
    let until = io.now().after(DISCOVERY_WITHIN);
    let mut completions = Vec::new();
    while io.now() < until {
        io.turn(Wait::AtMost(DISCOVERY_TURN), &mut completions);
        packets.receive(io.arena());
        while let Some(frame) = packets.frame() {
            discovery.take(io.arena().bytes(frame));
            packets.release(frame);
        }
    }
    packets.close(io.arena());
    Ok(discovery.targets().to_vec())
}

/// A first byte of tags that no other session of this host uses on the interface, in whatever process: an
/// answer that reaches the wrong one could be taken for its own. The kernel reserves it, as the name of a
/// socket, until that is closed.
pub(crate) struct Lane {
    number: u8,
    _claim: UnixDatagram,
}

impl Lane {
    fn claim(interface: &str, first: u32) -> io::Result<Lane> {
        for lane in 0..LANES {
            let number = (first.wrapping_add(u32::from(lane))) as u8;
            let name = format!("lunette-aoe-{interface}-{number}");
            match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?) {
                Ok(claim) => return Ok(Lane { number, _claim: claim }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        let text =
            format!("{interface}: this machine already has {LANES} sessions on it, which is the limit");
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }

    /// A socket that receives its answers.
    fn open(&self, interface: &str) -> io::Result<Socket> {
        let is_answer = u32::from(Header::RESPONSE);
        let answers = [
            Condition { field: FLAGS, mask: is_answer, value: is_answer },
            Condition { field: LANE, mask: 0xff, value: u32::from(self.number) },
        ];
        let setup = Setup {
            interface,
            protocol: ETHERTYPE,
            filter: &answers,
            spread: &[],
            mtu_min: 0,
            header: HEADERS_BYTES,
            frames: SLOTS,
            slots: SLOTS,
        };
        packet::open(&setup, 1)?.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn write(arena: &mut Arena, to: &Places, bytes: &[u8]) {
    let mut rest = bytes;
    for span in to.iter() {
        let (part, behind) = rest.split_at(rest.len().min(span.len as usize));
        arena.bytes_mut(span.slice(0, part.len() as u32)).copy_from_slice(part);
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::time::timerfd_gettime;

    #[test]
    fn a_timer_is_moved_only_to_earlier_deadlines() {
        let mut clock = Clock::new().unwrap();
        let (now, hour) = (Time(1), Duration::from_secs(3600));
        let rest = |clock: &Clock| timerfd_gettime(&clock.timer).unwrap().it_value.tv_sec;
        assert!(clock.set(now, now.after(hour * 9)), "it is to be watched");
        assert!(rest(&clock) > 8 * 3600);
        assert!(!clock.set(now, now.after(hour)), "it is watched already");
        assert!(rest(&clock) <= 3600);
        assert!(!clock.set(now, now.after(hour * 2)), "it rings before that");
        assert!(rest(&clock) <= 3600);
        clock.expires_at = None;
        assert!(clock.set(now, now.after(hour * 2)), "it has rung");
        assert!(rest(&clock) > 3600);
    }
}
