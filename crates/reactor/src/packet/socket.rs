//! Opening raw packet sockets, and explaining what is missing where that fails.

use super::batch::Batch;
use super::filter::{self, CONDITIONS_MAX, Condition, Field, Program};
use super::line::{Arrival, Line, Shape, Unsent};
use super::ring::Ring;
use crate::io::Handle;
use crate::memory::{Arena, Loan};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use wire::Span;

/// Bytes of an Ethernet header.
pub const HEADER_BYTES: u32 = 14;
/// The largest payload that slots are allocated for; loopback would have 64 KiB.
const MTU_MAX: u32 = 9216;
/// The most slots of either direction.
const SLOTS_MAX: u32 = 4096;
/// Roughly what the kernel accounts for a frame besides its bytes.
const OVERHEAD_BYTES: u32 = 1024;

/// What to open.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The network interface.
    pub interface: &'a str,
    /// The EtherType.
    pub protocol: u16,
    /// Conditions on received frames: all of them must hold.
    pub filter: &'a [Condition],
    /// Frames with equal values in these fields arrive at the same socket.
    pub spread: &'a [Field],
    /// The smallest usable MTU.
    pub mtu_min: u32,
    /// Bytes before the part of a frame that should be block-aligned, from the Ethernet header on.
    pub header: u32,
    /// Frames that can be received and not yet released, per socket; at most 4096.
    pub frames: u32,
    /// Frames that can be queued, per socket; at most 4096.
    pub slots: u32,
}

/// A packet socket that is already receiving. Frames wait in its ring until a core has it.
#[derive(Debug)]
pub struct Socket {
    ring: Ring,
    fd: OwnedFd,
    interface: Interface,
    shape: Shape,
}

#[derive(Clone, Debug)]
struct Interface {
    name: String,
    index: i32,
    mac: [u8; 6],
    mtu: u32,
    is_up: bool,
}

/// Opens this many sockets, one for each core; each frame arrives at one of them.
///
/// # Errors
/// A message with the fix.
pub fn open(setup: &Setup<'_>, count: usize) -> io::Result<Vec<Socket>> {
    assert!(setup.filter.len() <= CONDITIONS_MAX && setup.spread.len() <= CONDITIONS_MAX);
    let mut sockets = Vec::with_capacity(count);
    let mut group = None;
    for _ in 0..count {
        let socket = Socket::unbound(setup)?;
        match count {
            1 => socket.bind(setup)?,
            _ => group = Some(socket.join(setup, group)?),
        }
        sockets.push(socket);
    }
    // Only when all have joined: the kernel divides by how many there are.
    sockets.iter().try_for_each(|socket| socket.admit(setup))?;
    Ok(sockets)
}

impl Socket {
    /// Without a protocol yet, so nothing is received.
    fn unbound(setup: &Setup<'_>) -> io::Result<Socket> {
        let raw =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let fd = raw.map_err(|errno| explain(errno, setup.interface))?;
        let interface = Interface::find(&fd, setup.interface)?;
        if !interface.is_up {
            return Err(explain(Errno::NETDOWN, setup.interface));
        }
        if interface.mtu < setup.mtu_min {
            return Err(io::Error::other(format!(
                "{name}: its MTU is {mtu}, but at least {min} is needed (ip link set {name} mtu 1500)",
                name = setup.interface,
                mtu = interface.mtu,
                min = setup.mtu_min
            )));
        }
        let options = Options { fd: &fd, interface: &interface.name };
        let [frames, slots] = [setup.frames, setup.slots].map(|count| count.min(SLOTS_MAX));
        let ring = Ring::new(&fd, &options, HEADER_BYTES + interface.mtu, frames)?;
        // As much as the system allows; beyond that, what is queued is sent bit by bit.
        let room = (slots * (HEADER_BYTES + interface.mtu + OVERHEAD_BYTES)) as usize;
        let _ = sockopt::set_socket_send_buffer_size(&fd, room);
        let shape = Shape { header: setup.header, frames, slots };
        Ok(Socket { ring, fd, interface, shape })
    }

    /// Starts receiving, but rejects everything.
    fn bind(&self, setup: &Setup<'_>) -> io::Result<()> {
        self.options().attach(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter::nothing())?;
        self.receive_from(setup.protocol)
    }

    /// The same as a member of a group, whose number is returned. Only a receiving socket can join one.
    fn join(&self, setup: &Setup<'_>, group: Option<u16>) -> io::Result<u16> {
        self.bind(setup)?;
        let new = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
        let fanout = (libc::PACKET_FANOUT_CBPF | new) << 16 | u32::from(group.unwrap_or(0));
        self.options().set(libc::SOL_PACKET, libc::PACKET_FANOUT, &fanout)?;
        self.options().attach(libc::SOL_PACKET, libc::PACKET_FANOUT_DATA, &filter::spread(setup.spread))?;
        let fanout: u32 = self.options().get(libc::SOL_PACKET, libc::PACKET_FANOUT)?;
        Ok(fanout as u16)
    }

    /// From now on frames that pass the filter are received.
    fn admit(&self, setup: &Setup<'_>) -> io::Result<()> {
        self.options().attach(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter::frames(setup.filter))
    }

    fn receive_from(&self, protocol: u16) -> io::Result<()> {
        // SAFETY: an address of zeros is a valid one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = self.interface.index;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel reads `len` bytes of an address of ours.
        checked(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) })
            .map_err(|errno| self.explain(errno))
    }

    /// Whether the interface was removed: one that gets its name later is a different one.
    fn is_orphan(&self) -> bool {
        // SAFETY: an address of zeros is a valid one.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to an address of ours, and how many to `len`.
        let got = unsafe { libc::getsockname(self.fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
        got == 0 && address.sll_ifindex != self.interface.index
    }

    fn explain(&self, errno: Errno) -> io::Error {
        explain(errno, &self.interface.name)
    }

    fn options(&self) -> Options<'_> {
        Options { fd: &self.fd, interface: &self.interface.name }
    }
}

impl Line for Socket {
    type Batch = Batch;

    fn open(setup: &Setup<'_>, count: usize) -> io::Result<Vec<Socket>> {
        open(setup, count)
    }

    fn handle(&self) -> Handle {
        Handle(self.fd.as_raw_fd())
    }

    fn mac(&self) -> [u8; 6] {
        self.interface.mac
    }

    fn mtu(&self) -> u32 {
        self.interface.mtu
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn receive(&mut self, arena: &mut Arena, slot: Span) -> Arrival {
        let Some(frame) = self.ring.first() else { return Arrival::Nothing };
        let (len, stamp) = (frame.len, frame.stamp);
        // Longer than the interface's frames were when the slots were allocated, or truncated.
        let fits = len <= slot.len && frame.is_whole();
        if fits {
            let slot = slot.slice(0, len);
            let to = arena.lend(slot, Loan::Write);
            // SAFETY: the slot is the caller's, nobody else has this part of its buffer, and it has room for the frame,
            // which is returned below.
            unsafe { frame.copy(to) };
            arena.unlend(slot, Loan::Write);
        }
        self.ring.advance();
        if fits { Arrival::Frame { len, stamp } } else { Arrival::Cut }
    }

    fn send(
        &mut self,
        batch: &mut Batch,
        arena: &mut Arena,
        frames: impl Iterator<Item = Span>,
    ) -> Result<usize, Unsent> {
        batch.lend(arena, frames);
        let sent = batch.send(self.handle());
        batch.unlend(arena);
        sent.map_err(|errno| match errno {
            Errno::AGAIN => Unsent::Full,
            // A queue of the interface is full.
            Errno::NOBUFS => Unsent::Lost(None),
            errno => Unsent::Lost(Some(self.explain(errno))),
        })
    }

    /// An interface that is down may come up again unchanged.
    fn outdated(&self) -> Option<String> {
        let was = &self.interface;
        let now = match Interface::find(&self.fd, &was.name) {
            Ok(now) => now,
            Err(error) => return Some(error.to_string()),
        };
        let change = if now.index != was.index || self.is_orphan() {
            "the network interface was replaced by another one with the same name".to_owned()
        } else if now.mtu != was.mtu {
            format!("its MTU changed from {} to {}", was.mtu, now.mtu)
        } else if now.mac != was.mac {
            "its Ethernet address changed".to_owned()
        } else {
            return None;
        };
        Some(format!("{}: {change}", was.name))
    }

    fn drops(&self) -> u32 {
        /// Linux, linux/if_packet.h: frames that passed the filter, and those of them that were dropped.
        type TpacketStats = [u32; 2];
        self.options()
            .get::<TpacketStats>(libc::SOL_PACKET, libc::PACKET_STATISTICS)
            .map_or(0, |[_, drops]| drops)
    }

    fn take_error(&self) -> io::Result<()> {
        match self.options().get::<i32>(libc::SOL_SOCKET, libc::SO_ERROR)? {
            0 => Ok(()),
            _ if self.is_orphan() => Err(self.explain(Errno::NXIO)),
            errno => Err(self.explain(Errno::from_raw_os_error(errno))),
        }
    }
}

/// Socket options that only C has.
pub(super) struct Options<'a> {
    fd: &'a OwnedFd,
    interface: &'a str,
}

impl Options<'_> {
    /// Passes a program to the kernel.
    fn attach(&self, level: i32, option: i32, program: &Program) -> io::Result<()> {
        let filter = program.as_ptr().cast_mut();
        self.set(level, option, &libc::sock_fprog { len: program.len() as u16, filter })
    }

    /// Sets an option with a C value.
    pub(super) fn set<T>(&self, level: i32, option: i32, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        let value: *const T = value;
        // SAFETY: the kernel reads `len` bytes of the value, and of a program what its length says.
        checked(unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, value.cast(), len) })
            .map_err(|errno| explain(errno, self.interface))
    }

    /// An option whose value is a number or numbers.
    fn get<T: Default>(&self, level: i32, option: i32) -> io::Result<T> {
        let mut value = T::default();
        let mut len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to the value, and how many to `len`.
        let got = unsafe {
            let (value, len) = ((&raw mut value).cast(), &raw mut len);
            libc::getsockopt(self.fd.as_raw_fd(), level, option, value, len)
        };
        checked(got).map_err(|errno| explain(errno, self.interface))?;
        Ok(value)
    }
}

impl Interface {
    fn find(socket: &OwnedFd, name: &str) -> io::Result<Interface> {
        let fault = |errno| explain(errno, name);
        // SAFETY: a request of zeros is a valid one.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Err(fault(Errno::NODEV));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let ask = |what: libc::Ioctl| {
            let mut answer = request;
            // SAFETY: these requests read the name in an ifreq of ours, and write the rest of it.
            checked(unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut answer) }).map_err(fault)?;
            Ok::<_, io::Error>(answer.ifr_ifru)
        };
        // SAFETY: this request writes an int.
        let index = unsafe { ask(libc::SIOCGIFINDEX)?.ifru_ifindex };
        // SAFETY: this request writes a short.
        let flags = unsafe { ask(libc::SIOCGIFFLAGS)?.ifru_flags };
        // SAFETY: this request writes an int.
        let mtu = unsafe { ask(libc::SIOCGIFMTU)?.ifru_mtu };
        // SAFETY: this request writes a socket address.
        let address = unsafe { ask(libc::SIOCGIFHWADDR)?.ifru_hwaddr };
        if !matches!(address.sa_family, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            let text = format!("{name} is not an Ethernet interface");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        let mtu = u32::try_from(mtu).unwrap_or(0).min(MTU_MAX);
        let is_up = i32::from(flags) & libc::IFF_UP != 0;
        Ok(Interface { name: name.to_owned(), index, mac, mtu, is_up })
    }
}

fn checked(result: i32) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

fn explain(errno: Errno, interface: &str) -> io::Error {
    let error = io::Error::from(errno);
    let advice = match errno {
        Errno::NODEV => "there is no such network interface here (ip link shows them)".to_owned(),
        Errno::NXIO => "the network interface was removed".to_owned(),
        Errno::NETDOWN => format!("the network interface is down (ip link set {interface} up)"),
        Errno::PERM | Errno::ACCESS => {
            "raw Ethernet frames need the capability CAP_NET_RAW: run as root, or grant it (setcap cap_net_raw+ep, or \
             AmbientCapabilities=CAP_NET_RAW in the systemd unit)"
                .to_owned()
        }
        Errno::AFNOSUPPORT => "this kernel has no packet sockets (CONFIG_PACKET)".to_owned(),
        Errno::MSGSIZE => "a frame is too long for the interface: its MTU was lowered".to_owned(),
        Errno::MFILE | Errno::NFILE => {
            "too many open files: raise the limit (ulimit -n, LimitNOFILE=)".to_owned()
        }
        _ => return io::Error::new(error.kind(), format!("{interface}: {error}")),
    };
    io::Error::new(error.kind(), format!("{interface}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let says = |errno: Errno, what: &str| {
            let text = explain(errno, "eth9").to_string();
            assert!(text.contains("eth9") && text.contains(what), "{text}");
        };
        says(Errno::NODEV, "ip link");
        says(Errno::NXIO, "removed");
        says(Errno::NETDOWN, "ip link set eth9 up");
        says(Errno::PERM, "CAP_NET_RAW");
        says(Errno::MSGSIZE, "MTU");
        says(Errno::AFNOSUPPORT, "CONFIG_PACKET");
        says(Errno::MFILE, "LimitNOFILE");
    }
}
