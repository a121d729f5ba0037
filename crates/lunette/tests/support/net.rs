//! Two hosts on a simulated Ethernet segment: network namespaces, and between them a bridge that loses,
//! duplicates and delays AoE frames on request. Needs root.
//!
//! The namespaces have no names: the kernel removes them, and all devices in them, with the last process inside, however
//! a test ends.

use super::Noise;
use super::tools::{must, tool};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{LinkAddr, bind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, PipeWriter};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd as _;
use std::panic::resume_unwind;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The device of each host on the segment.
pub const INTERFACE: &str = "aoe0";
/// The hosts' addresses on a cable beside it, for TCP.
pub const TARGET: &str = "192.0.2.1";
/// The other one.
pub const INITIATOR: &str = "192.0.2.2";

/// The EtherType of AoE.
const ETHER_TYPE: u16 = 0x88A2;
/// More than any device allows.
const FRAME_BYTES_MAX: usize = 1 << 16;
/// The socket buffer of the bridge while it is busy elsewhere.
const SOCKET_BYTES: usize = 16 << 20;
/// How much later than others a delayed frame arrives: many of them overtake it.
const DELAY: Duration = Duration::from_millis(2);
/// How much a bridge with a rate queues before it drops.
const HELD_MAX: Duration = Duration::from_millis(50);
/// Preamble, checksum and gap (IEEE 802.3).
const BYTES_AROUND: usize = 24;

/// The hosts and what joins them.
pub struct Network {
    /// For the target.
    pub target: Namespace,
    /// For the initiator.
    pub initiator: Namespace,
    segment: Arc<Mutex<Segment>>,
    /// The bridge ends when this is closed.
    lifeline: Option<PipeWriter>,
    bridge: Option<JoinHandle<()>>,
}

/// What happens to AoE frames, in both directions. Shares are per thousand.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// The share that is lost.
    pub lost: u64,
    /// The share that arrives twice.
    pub repeated: u64,
    /// The share that is overtaken by others.
    pub delayed: u64,
    /// Bits per second of each direction.
    pub rate: Option<u64>,
}

impl Faults {
    /// A good segment.
    pub const NONE: Self = Self { lost: 0, repeated: 0, delayed: 0, rate: None };
    /// One that is cut.
    pub const CUT: Self = Self { lost: 1000, ..Self::NONE };
}

/// Frames since the segment was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passed {
    /// All that were sent into it.
    pub sent: u64,
    /// Those that were lost, including for lack of room where there is a rate.
    pub lost: u64,
    /// Those that arrived twice.
    pub repeated: u64,
    /// Those that were delayed.
    pub delayed: u64,
}

#[derive(Default)]
struct Segment {
    faults: Faults,
    passed: Passed,
}

impl Network {
    /// A good segment with this MTU. Later random decisions follow from the seed and the frames' order.
    pub fn new(mtu: u32, seed: u64) -> Self {
        let [target, initiator, middle] = [(); 3].map(|()| Namespace::new());
        for (host, peer) in [(&target, "target"), (&initiator, "initiator")] {
            join([(host, INTERFACE), (&middle, peer)], mtu);
        }
        join([(&target, "ip0"), (&initiator, "ip0")], 1500);
        for (host, address) in [(&target, TARGET), (&initiator, INITIATOR)] {
            let prefix = format!("{address}/24");
            must(&mut host.within(tool("ip").args(["address", "add", &prefix, "dev", "ip0"])));
        }
        let ports = middle.inside(|| ["target", "initiator"].map(Port::open));
        let segment = Arc::new(Mutex::new(Segment::default()));
        let (end, lifeline) = std::io::pipe().expect("a pipe");
        let mut bridge = Bridge::new(ports, Arc::clone(&segment), Noise(seed));
        let bridge = std::thread::spawn(move || {
            // Its ports are in there.
            let _middle = middle;
            bridge.run(end.as_fd());
        });
        Self { target, initiator, segment, lifeline: Some(lifeline), bridge: Some(bridge) }
    }

    /// From now on these faults occur.
    pub fn set(&self, faults: Faults) {
        lock(&self.segment).faults = faults;
    }

    /// What happened so far.
    pub fn passed(&self) -> Passed {
        lock(&self.segment).passed
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let ended = self.bridge.take().map_or(Ok(()), JoinHandle::join);
        if let Err(panic) = ended
            && !std::thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

fn lock(segment: &Mutex<Segment>) -> MutexGuard<'_, Segment> {
    segment.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects devices of two namespaces by a cable.
fn join(ends: [(&Namespace, &str); 2], mtu: u32) {
    let [(one, name), (other, peer)] = ends;
    let [mtu, one_pid, other_pid] = [mtu, one.pid(), other.pid()].map(|number| number.to_string());
    let mut add = tool("ip");
    add.args(["link", "add", "name", name, "mtu", &mtu, "netns", &one_pid, "type", "veth"]);
    must(add.args(["peer", "name", peer, "mtu", &mtu, "netns", &other_pid]));
    for (namespace, name) in ends {
        must(&mut namespace.within(tool("ip").args(["link", "set", name, "up"])));
    }
}

/// A host: a network namespace, with its own view of /sys.
pub struct Namespace {
    /// Keeps it alive, and ends when we do.
    holder: Child,
}

impl Namespace {
    fn new() -> Self {
        let mut unshare = tool("unshare");
        unshare.args(["--net", "--mount", "sh", "-ec"]);
        unshare.arg("mount -t sysfs sysfs /sys; ip link set lo up; echo; exec cat");
        let holder = unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut holder = holder.unwrap_or_else(|error| panic!("cannot run {unshare:?}: {error}"));
        let mut line = String::new();
        let mut output = BufReader::new(holder.stdout.take().expect("stdout is piped"));
        let said = output.read_line(&mut line);
        assert!(matches!(said, Ok(1)), "a network namespace cannot be made; it needs root: {unshare:?}");
        Self { holder }
    }

    /// The same command in this namespace. What it starts has its process id, and ends with the thread that
    /// starts it.
    pub fn within(&self, command: &Command) -> Command {
        self.entering(&["--net", "--mount"], command)
    }

    /// The same, but /sys shows the interfaces of the host that the tests run on.
    pub fn on_network(&self, command: &Command) -> Command {
        self.entering(&["--net"], command)
    }

    fn entering(&self, namespaces: &[&str], command: &Command) -> Command {
        let mut inside = tool("setpriv");
        inside.args(["--pdeathsig", "KILL", "nsenter"]).args(namespaces).args(["--wd", "--target"]);
        inside.arg(self.pid().to_string()).arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Runs something in this namespace: sockets opened there belong to it. Processes are started by
    /// `within`.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.pid())).expect("a network namespace");
        let enter = || move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
        let act = || enter().map(|()| act()).expect("a namespace can be entered");
        let done = std::thread::scope(|scope| scope.spawn(act).join());
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn pid(&self) -> u32 {
        self.holder.id()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Sends and receives whole AoE frames with any content.
pub struct Port {
    socket: OwnedFd,
    address: LinkAddr,
}

impl Port {
    /// On this device of the thread's namespace.
    pub fn open(interface: &str) -> Self {
        let protocol = NonZeroU32::new(ETHER_TYPE.to_be().into()).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, protocol);
        let socket = socket.expect("a packet socket needs root");
        let of_it = |device: nix::ifaddrs::InterfaceAddress| {
            device.address.filter(|_| device.interface_name == interface)?.as_link_addr().copied()
        };
        let address = getifaddrs().expect("a list of devices").find_map(of_it);
        let address = address.unwrap_or_else(|| panic!("no device {interface}"));
        bind(socket.as_raw_fd(), &address).unwrap_or_else(|error| panic!("{interface}: {error}"));
        set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES).expect("room for frames");
        set_socket_send_buffer_size_force(&socket, SOCKET_BYTES).expect("room for frames");
        Self { socket, address }
    }

    /// The device's address.
    pub fn mac(&self) -> [u8; 6] {
        self.address.addr().expect("an Ethernet device")
    }

    /// Sends a frame, from its Ethernet header on.
    pub fn send(&self, frame: &[u8]) -> Result<(), Errno> {
        send(&self.socket, frame, SendFlags::empty()).map(drop)
    }

    /// The next frame for any address, if one arrives in time.
    pub fn receive(&self, patience: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(frame) = self.next() {
                return Some(frame);
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return None;
            }
            wait(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(rest));
        }
    }

    /// The next frame that has already arrived.
    fn next(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; FRAME_BYTES_MAX];
        match recv(&self.socket, &mut frame, RecvFlags::empty()) {
            Ok((bytes, _)) => {
                frame.truncate(bytes);
                Some(frame)
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::NETDOWN) => None,
            Err(error) => panic!("a packet socket: {error}"),
        }
    }
}

fn wait(sockets: &mut [PollFd<'_>], limit: Option<Duration>) {
    let limit = limit.map(|limit| Timespec::try_from(limit).expect("less than ages"));
    match poll(sockets, limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => panic!("poll: {error}"),
    }
}

/// Carries frames from one port to the other.
struct Bridge {
    ports: [Port; 2],
    /// What waits before it is sent by the port with the same index.
    lanes: [Lane; 2],
    segment: Arc<Mutex<Segment>>,
    noise: Noise,
}

struct Lane {
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// How many have waited.
    count: u64,
    /// When the last byte of what has a rate will have been sent.
    free: Instant,
}

/// A frame, ordered by when it is due and, among those due together, by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: Instant,
    number: u64,
    frame: Vec<u8>,
}

impl Bridge {
    fn new(ports: [Port; 2], segment: Arc<Mutex<Segment>>, noise: Noise) -> Self {
        let lane = || Lane { waiting: BinaryHeap::new(), count: 0, free: Instant::now() };
        Self { ports, lanes: [lane(), lane()], segment, noise }
    }

    /// Carries frames until the other end of the pipe is closed.
    fn run(&mut self, lifeline: rustix::fd::BorrowedFd<'_>) {
        loop {
            let due = self.lanes.iter().filter_map(|lane| lane.waiting.peek()).map(|first| first.0.due).min();
            let [one, other] = &self.ports;
            let mut sockets =
                [&one.socket, &other.socket].map(|socket| PollFd::new(socket, PollFlags::IN)).to_vec();
            sockets.push(PollFd::from_borrowed_fd(lifeline, PollFlags::IN));
            wait(&mut sockets, due.map(|due| due.saturating_duration_since(Instant::now())));
            if sockets.last().is_some_and(|lifeline| !lifeline.revents().is_empty()) {
                return;
            }
            let mut segment = lock(&self.segment);
            for (from, to) in [(0, 1), (1, 0)] {
                while let Some(frame) = self.ports[from].next() {
                    self.lanes[to].take(frame, &mut segment, &mut self.noise);
                }
            }
            drop(segment);
            for (lane, port) in self.lanes.iter_mut().zip(&self.ports) {
                lane.send(port);
            }
        }
    }
}

impl Lane {
    /// Decides about a frame that has arrived.
    fn take(&mut self, frame: Vec<u8>, segment: &mut Segment, noise: &mut Noise) {
        let Segment { faults, passed } = segment;
        let [lost, repeated, delayed] =
            [faults.lost, faults.repeated, faults.delayed].map(|share| noise.below(1000) < share);
        let mut due = Instant::now();
        passed.sent += 1;
        if let Some(rate) = faults.rate {
            let bits = u64::try_from((frame.len() + BYTES_AROUND) * 8).expect("a frame");
            let begin = self.free.max(due);
            if begin - due > HELD_MAX {
                passed.lost += 1;
                return;
            }
            due = begin + Duration::from_nanos(bits * 1_000_000_000 / rate);
            self.free = due;
        }
        if lost {
            passed.lost += 1;
            return;
        }
        if repeated {
            passed.repeated += 1;
            self.hold(due, frame.clone());
        }
        if delayed {
            passed.delayed += 1;
            due += DELAY;
        }
        self.hold(due, frame);
    }

    fn hold(&mut self, due: Instant, frame: Vec<u8>) {
        self.count += 1;
        self.waiting.push(Reverse(Waiting { due, number: self.count, frame }));
    }

    /// Sends what is due. What the device does not accept is lost, as on any other.
    fn send(&mut self, port: &Port) {
        let now = Instant::now();
        while self.waiting.peek().is_some_and(|first| first.0.due <= now) {
            let Some(Reverse(first)) = self.waiting.pop() else { return };
            let _ = port.send(&first.frame);
        }
    }
}
