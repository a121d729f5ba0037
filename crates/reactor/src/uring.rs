//! The real [`Io`]: one io_uring per core.

mod at_once;
mod hot;
mod requests;
mod setup;
#[cfg(test)]
mod tests;

use crate::cpu;
use crate::io::{Allocate, Completion, Errno, Handle, Io, Tag, Wait};
use crate::memory::Arena;
use crate::neighbours::Neighbours;
use crate::net;
use crate::packet;
use crate::wake::Waker;
use hot::{Direct, Hot};
use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use proto::stream::Segment;
use proto::time::{Stamp, Time};
use requests::{Kind, Request, Requests};
use rustix::net::{AddressFamily, Shutdown, SocketAddrAny, SocketFlags, SocketType, ipproto};
use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::sync::OnceLock;
use std::time::Duration;
use wire::{Places, Span};

/// Completions that belong to no request.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

/// Successive turns without work per reading of the clock, which takes about a microsecond. Turns that try
/// receives take longer than the reading.
const SPINS_PER_CLOCK: u32 = 8;

/// This many reads are submitted together, without waiting for the end of the turn: the device works on them
/// while later ones are prepared.
const READS_AT_ONCE: usize = 4;

/// Receives and reads in one turn for which memory is allocated from the start.
const FILLS_AT_START: usize = 256;

/// One core's ring and its buffers, with the counts and times of a turn of the loop. It stays on the thread
/// that opened it.
///
/// Sockets and files must not be in nonblocking mode: their requests would fail with EAGAIN instead of waiting. (Descriptors
/// that are only watched may be.)
/// Its fields are what one turn of the loop uses, counts and measures.
pub struct Uring {
    // Dropped first; `drop` has drained it, so the kernel holds no address of what follows.
    ring: IoUring,
    requests: Requests,
    /// Requests that were queued and have not completed.
    in_flight: usize,
    arena: Arena,
    /// Where the wake-up's eventfd is read to.
    wake_count: Box<[u8; 8]>,
    wake_is_armed: bool,
    waker: Waker,
    /// Requests that ended without the ring, and those reaped to make room.
    ready: Vec<Completion>,
    now: Time,
    /// Successive turns that found nothing to do, up to [`SPINS_PER_CLOCK`].
    spins: u32,
    /// Reads that have not been queued.
    reads: Vec<squeue::Entry>,
    is_closing: bool,
    /// What has to be queued after everything else: receives, and the rest of partial sends.
    fills: Vec<u32>,
    hot: Hot,
    direct: Direct,
    neighbours: Neighbours,
    _stays_on_its_thread: PhantomData<*mut ()>,
}

impl Uring {
    /// Opens a ring for the current thread. `waker` wakes it.
    pub fn new(arena: Arena, waker: Waker) -> io::Result<Uring> {
        Ok(Uring {
            ring: setup::open()?,
            requests: Requests::new(),
            in_flight: 0,
            arena,
            wake_count: Box::new([0; 8]),
            wake_is_armed: false,
            waker,
            ready: Vec::with_capacity(FILLS_AT_START),
            now: clock(),
            spins: 0,
            reads: Vec::with_capacity(READS_AT_ONCE),
            is_closing: false,
            fills: Vec::with_capacity(FILLS_AT_START),
            hot: Hot::new(),
            direct: Direct::new(),
            neighbours: Neighbours::default(),
            _stays_on_its_thread: PhantomData,
        })
    }

    /// Starts a request, and queues the entry that `entry` makes for it.
    fn start(
        &mut self,
        tag: Tag,
        kind: Kind,
        entry: impl FnOnce(&mut Requests, u32, &mut Arena) -> squeue::Entry,
    ) {
        let Some(index) = self.begin(tag, kind) else { return };
        let entry = entry(&mut self.requests, index, &mut self.arena).user_data(u64::from(index));
        self.in_flight += 1;
        match kind {
            Kind::Fill => self.reads.push(entry),
            Kind::Accept
            | Kind::Connect { .. }
            | Kind::Receive { .. }
            | Kind::Send { .. }
            | Kind::Peers { .. }
            | Kind::Drain
            | Kind::Bare => self.push(&entry),
        }
    }

    /// A request, which is in flight once everything that it needs is lent. `None`: there are too many, and
    /// it has failed.
    #[inline(always)]
    fn begin(&mut self, tag: Tag, kind: Kind) -> Option<u32> {
        let index = self.requests.start(tag, kind);
        if index.is_none() {
            if let Kind::Connect { socket } = kind {
                close(socket);
            }
            self.fail(tag, rustix::io::Errno::NOBUFS);
        }
        index
    }

    fn poll(&mut self, descriptor: Handle, what: i16, tag: Tag, kind: Kind) {
        self.start(tag, kind, |_, _, _| opcode::PollAdd::new(Fd(descriptor.0), what as u32).build());
    }

    fn fail(&mut self, tag: Tag, errno: rustix::io::Errno) {
        self.ready.push(Completion { tag, result: Err(Errno(errno.raw_os_error())) });
    }

    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: what the entry points to belongs to a request (or is `wake_count`) and stays in place and lent
            // until its completion; `drop` waits for all of these.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            self.enter(Wait::No);
        }
    }

    #[inline(always)]
    fn queue_reads(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let mut reads = std::mem::take(&mut self.reads);
        reads.drain(..).for_each(|entry| self.push(&entry));
        self.reads = reads;
    }

    /// Queues receives and reads after everything else: a peer gets its answer before we wait for what it
    /// sends next.
    fn queue_fills(&mut self) {
        self.queue_reads();
        // Making room for them may add the rest of a send.
        let mut next = 0;
        while let Some(index) = self.fills.get(next).copied() {
            let entry = self.requests.get(index).entry().user_data(u64::from(index));
            self.push(&entry);
            next += 1;
        }
        self.fills.clear();
    }

    /// Submits what is queued, and waits. Returns whether there was anything to submit or to wait for.
    fn enter(&mut self, wait: Wait) -> bool {
        let submitted = match wait {
            Wait::No => {
                let queue = self.ring.submission();
                if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                    return false;
                }
                drop(queue);
                self.ring.submit()
            }
            Wait::AtMost(time) => {
                let time = Timespec::from(time);
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
            Wait::Forever => self.ring.submit_and_wait(1),
        };
        use rustix::io::Errno as E;
        match submitted.map_err(|error| E::from_io_error(&error)) {
            Ok(_) | Err(Some(E::TIME | E::INTR)) => {}
            // The kernel holds back completions that had no room, or is temporarily short of memory.
            Err(Some(E::BUSY | E::AGAIN | E::NOMEM)) => self.make_room(),
            Err(error) => panic!("io_uring_enter failed: {error:?}"),
        }
        true
    }

    /// Takes completions off the ring. Never called from `reap`, whose completions it would replace.
    fn make_room(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        self.reap(&mut ready);
        self.ready = ready;
    }

    /// Collects completions. It queues nothing, since a full queue would have to be emptied by reaping.
    fn reap(&mut self, completions: &mut Vec<Completion>) {
        if !self.ready.is_empty() {
            completions.append(&mut self.ready);
        }
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            match entry.user_data() {
                WAKE => self.wake_is_armed = false,
                CANCEL => {}
                index => self.finish(index as u32, entry.result(), completions),
            }
        }
    }

    fn finish(&mut self, index: u32, result: i32, completions: &mut Vec<Completion>) {
        let request = self.requests.get(index);
        let mut result = match u32::try_from(result) {
            Ok(value) => Ok(value),
            Err(_) => Err(Errno(-result)),
        };
        match request.kind {
            Kind::Accept => {
                if let Ok(socket) = result {
                    set_no_delay(socket as i32);
                }
            }
            Kind::Connect { socket } => match result {
                Ok(_) => {
                    set_no_delay(socket);
                    result = Ok(socket as u32);
                }
                Err(_) => close(socket),
            },
            Kind::Send { .. } => {
                if let Ok(bytes) = result {
                    if bytes > 0 && request.advance(bytes) && !self.is_closing {
                        return self.fills.push(index);
                    }
                    result = Ok(request.sent);
                }
            }
            Kind::Receive { socket } => {
                self.hot.received(socket, request.since, self.now);
                self.neighbours.received(Handle(socket), self.now);
            }
            Kind::Peers { descriptor } => self.neighbours.received(Handle(descriptor), self.now),
            Kind::Fill | Kind::Drain | Kind::Bare => {}
        }
        completions.push(Completion { tag: request.tag, result });
        if self.is_closing && matches!(request.kind, Kind::Accept | Kind::Connect { .. }) {
            // Nobody will use the new socket.
            if let Ok(socket) = result {
                close(socket as i32);
            }
        }
        self.requests.finish(index, &mut self.arena);
        self.in_flight -= 1;
    }

    /// Tries each receive of a hot connection once.
    fn receive_hot(&mut self, completions: &mut Vec<Completion>) {
        let mut next = 0;
        while let Some(index) = self.hot.receives.get(next).copied() {
            let request = self.requests.get(index);
            let Kind::Receive { socket } = request.kind else { unreachable!("only receives are listed") };
            match hot::receive(socket, request) {
                Some(result) => {
                    self.hot.receives.swap_remove(next);
                    self.finish(index, result, completions);
                }
                None if hot::is_over(request.since, self.now) => {
                    self.hot.receives.swap_remove(next);
                    self.fills.push(index);
                }
                None => next += 1,
            }
        }
    }

    /// Moves all receives to the ring.
    fn cool_down(&mut self) {
        self.fills.append(&mut self.hot.receives);
    }

    fn arm_wake(&mut self) {
        if !self.wake_is_armed {
            let event = Fd(self.waker.event());
            let entry = opcode::Read::new(event, self.wake_count.as_mut_ptr(), 8).build();
            self.push(&entry.user_data(WAKE));
            self.wake_is_armed = true;
        }
    }
}

impl Io for Uring {
    type Line = packet::Socket;

    fn now(&self) -> Time {
        self.now
    }

    fn stamp(&self) -> Stamp {
        packet::now()
    }

    fn processor_time(&self) -> Duration {
        Duration::from_nanos(nanos(libc::CLOCK_THREAD_CPUTIME_ID)) + cpu::this_thread_waited()
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn is_shared(&self) -> bool {
        self.neighbours.are_there(self.now)
    }

    fn is_hot(&self, socket: Handle) -> bool {
        self.hot.is_hot(socket.0)
    }

    fn random() -> u32 {
        crate::random::bits()
    }

    fn addresses(&self, socket: Handle) -> Option<(SocketAddr, SocketAddr)> {
        net::addresses(socket).ok()
    }

    fn segment_bytes(&self, socket: Handle) -> u32 {
        net::segment_bytes(socket)
    }

    fn duplicate(&mut self, socket: Handle) -> Option<Handle> {
        net::duplicate(socket).ok()
    }

    fn accept(&mut self, listener: Handle, tag: Tag) {
        self.start(tag, Kind::Accept, |_, _, _| {
            let no_address = std::ptr::null_mut();
            let accept = opcode::Accept::new(Fd(listener.0), no_address, std::ptr::null_mut());
            accept.flags(libc::SOCK_CLOEXEC).build()
        });
    }

    fn connect(&mut self, to: SocketAddr, tag: Tag) {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let kind = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = match rustix::net::socket_with(family, kind.0, kind.1, Some(ipproto::TCP)) {
            Ok(socket) => socket.into_raw_fd(),
            Err(errno) => return self.fail(tag, errno),
        };
        self.start(tag, Kind::Connect { socket }, |requests, index, _| {
            let address = requests.get(index).address.insert(Box::new(SocketAddrAny::from(to)));
            opcode::Connect::new(Fd(socket), address.as_ptr().cast(), address.addr_len()).build()
        });
    }

    fn recv(&mut self, socket: Handle, into: &Places, tag: Tag) {
        assert!(!into.is_empty(), "a recv needs room, or its 0 bytes would mean the end of the stream");
        let Some(index) = self.begin(tag, Kind::Receive { socket: socket.0 }) else { return };
        let request = self.requests.get(index);
        request.lend(&mut self.arena, into);
        request.since = self.now;
        self.in_flight += 1;
        if self.hot.takes_receive(socket.0) {
            self.hot.receives.push(index);
        } else {
            self.fills.push(index);
        }
    }

    fn send(&mut self, socket: Handle, from: &[Span], tag: Tag) {
        assert!(from.iter().any(|span| span.len > 0), "a send needs bytes");
        let Some(index) = self.begin(tag, Kind::Send { socket: socket.0 }) else { return };
        self.requests.lend_all(index, &mut self.arena, from);
        self.in_flight += 1;
        let request = self.requests.get(index);
        if self.hot.takes_send(socket.0)
            && let Some(result) = hot::send(socket.0, request)
        {
            let mut ready = std::mem::take(&mut self.ready);
            self.finish(index, result, &mut ready);
            self.ready = ready;
        } else {
            let entry = request.entry();
            self.push(&entry.user_data(u64::from(index)));
        }
    }

    fn send_now(&mut self, socket: Handle, bytes: &[u8], segments: &[Segment]) -> Option<Result<u32, Errno>> {
        if !self.hot.takes_send_now() {
            return None;
        }
        let sent = self.direct.send(socket.0, &self.arena, bytes, segments);
        if sent.is_none() {
            self.hot.has_not_sent();
        }
        sent
    }

    fn watch(&mut self, descriptor: Handle, tag: Tag) {
        self.poll(descriptor, libc::POLLIN, tag, Kind::Bare);
    }

    fn watch_peers(&mut self, descriptor: Handle, tag: Tag) {
        self.poll(descriptor, libc::POLLIN, tag, Kind::Peers { descriptor: descriptor.0 });
    }

    fn watch_room(&mut self, socket: Handle, tag: Tag) {
        self.poll(socket, libc::POLLOUT, tag, Kind::Bare);
    }

    fn unwatch(&mut self, tag: Tag) {
        if let Some(index) = self.requests.find(tag) {
            self.push(&opcode::AsyncCancel::new(u64::from(index)).build().user_data(CANCEL));
        }
    }

    fn shutdown(&mut self, socket: Handle) {
        // Fails only for a socket that is not, or no longer, connected.
        let _ = rustix::net::shutdown(borrow(&socket), Shutdown::Both);
    }

    fn close(&mut self, handle: Handle) {
        close(handle.0);
    }

    fn read(&mut self, file: Handle, at: u64, into: &Places, tag: Tag) {
        self.start(tag, Kind::Fill, |requests, index, arena| {
            let vectors = requests.get(index).lend(arena, into);
            match vectors {
                [one] => {
                    let read = opcode::Read::new(Fd(file.0), one.iov_base.cast(), one.iov_len as u32);
                    read.offset(at).build()
                }
                _ => {
                    let read = opcode::Readv::new(Fd(file.0), vectors.as_ptr(), vectors.len() as u32);
                    read.offset(at).build()
                }
            }
        });
        if self.reads.len() == READS_AT_ONCE {
            self.queue_reads();
            self.enter(Wait::No);
        }
    }

    fn write(&mut self, file: Handle, at: u64, from: &Places, durable: bool, tag: Tag) {
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        self.start(tag, Kind::Drain, |requests, index, arena| {
            let vectors = requests.get(index).lend(arena, from);
            match vectors {
                [one] => {
                    let write = opcode::Write::new(Fd(file.0), one.iov_base.cast(), one.iov_len as u32);
                    write.offset(at).rw_flags(flags).build()
                }
                _ => {
                    let write = opcode::Writev::new(Fd(file.0), vectors.as_ptr(), vectors.len() as u32);
                    write.offset(at).rw_flags(flags).build()
                }
            }
        });
    }

    fn read_now(&mut self, file: Handle, at: u64, into: &Places) -> Option<Result<u32, Errno>> {
        Some(at_once::read(&mut self.arena, file.0, at, into))
    }

    fn write_now(
        &mut self,
        file: Handle,
        at: u64,
        from: &Places,
        durable: bool,
    ) -> Option<Result<u32, Errno>> {
        Some(at_once::write(&mut self.arena, file.0, at, from, durable))
    }

    fn sync(&mut self, file: Handle, tag: Tag) {
        self.start(tag, Kind::Bare, |_, _, _| {
            opcode::Fsync::new(Fd(file.0)).flags(FsyncFlags::DATASYNC).build()
        });
    }

    fn allocate(&mut self, file: Handle, how: Allocate, at: u64, len: u64, tag: Tag) {
        let mode = libc::FALLOC_FL_KEEP_SIZE
            | match how {
                Allocate::PunchHole => libc::FALLOC_FL_PUNCH_HOLE,
                Allocate::Zero => libc::FALLOC_FL_ZERO_RANGE,
            };
        self.start(tag, Kind::Bare, |_, _, _| {
            opcode::Fallocate::new(Fd(file.0), len).offset(at).mode(mode).build()
        });
    }

    fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn turn(&mut self, wait: Wait, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.reap(completions);
        if !self.hot.turn(wait, self.now) {
            self.cool_down();
        }
        self.queue_fills();
        // After the last check for completions: that of a late wake-up would leave nothing armed to sleep on.
        self.arm_wake();
        let is_idle = completions.len() == before && self.ready.is_empty() && self.fills.is_empty();
        let may_wait = wait != Wait::No && is_idle && self.waker.fall_asleep();
        let has_entered = self.enter(if may_wait { wait } else { Wait::No });
        self.waker.get_up();
        self.receive_hot(completions);
        let has_tried = !self.hot.receives.is_empty();
        let is_spin =
            !has_entered && !has_tried && completions.len() == before && self.ring.completion().is_empty();
        self.spins = if is_spin { self.spins % SPINS_PER_CLOCK + 1 } else { 0 };
        // The first spin shows how long the work before it took.
        if self.spins <= 1 {
            self.now = clock();
        }
        self.reap(completions);
    }

    fn worked(&mut self) {
        self.spins = 0;
    }
}

impl Drop for Uring {
    /// Cancels everything in flight and waits until the kernel holds no address of ours.
    fn drop(&mut self) {
        self.is_closing = true;
        self.cool_down();
        self.queue_fills();
        let mut abandoned = Vec::new();
        while self.in_flight > 0 || self.wake_is_armed {
            let cancel = opcode::AsyncCancel2::new(CancelBuilder::any()).build();
            self.push(&cancel.user_data(CANCEL));
            self.enter(Wait::AtMost(Duration::from_millis(100)));
            self.reap(&mut abandoned);
        }
    }
}

impl Request {
    /// The entry of a receive, or of the rest of a send.
    fn entry(&mut self) -> squeue::Entry {
        match self.kind {
            Kind::Receive { socket } => match self.vectors() {
                [one] => opcode::Recv::new(Fd(socket), one.iov_base.cast(), one.iov_len as u32).build(),
                _ => opcode::RecvMsg::new(Fd(socket), self.message()).build(),
            },
            // It waits until everything is sent; a dead peer is an error, not a signal.
            Kind::Send { socket } => {
                let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
                opcode::SendMsg::new(Fd(socket), self.message()).flags(flags as u32).build()
            }
            Kind::Accept
            | Kind::Connect { .. }
            | Kind::Peers { .. }
            | Kind::Fill
            | Kind::Drain
            | Kind::Bare => unreachable!("only what moves bytes of a stream is put off"),
        }
    }
}

/// Nanoseconds of CLOCK_MONOTONIC since this process first asked.
fn clock() -> Time {
    static START: OnceLock<u64> = OnceLock::new();
    let start = *START.get_or_init(|| nanos(libc::CLOCK_MONOTONIC));
    Time(nanos(libc::CLOCK_MONOTONIC) - start)
}

pub(crate) fn nanos(clock: libc::clockid_t) -> u64 {
    // Not with rustix: what it looks up in the vDSO for a thread's time is not there under valgrind.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours, which the call fills in or leaves alone.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn set_no_delay(socket: i32) {
    // Fails for a socket that is not TCP, and then there is no delay to switch off.
    let _ = rustix::net::sockopt::set_tcp_nodelay(borrow(&Handle(socket)), true);
}

fn borrow(handle: &Handle) -> BorrowedFd<'_> {
    // SAFETY: handles are open until `close`, after which they are not used.
    unsafe { BorrowedFd::borrow_raw(handle.0) }
}

fn close(fd: i32) {
    // SAFETY: a handle is closed once, by its owner, when no request is in flight on it.
    unsafe { rustix::io::close(fd) }
}
