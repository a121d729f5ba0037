//! The simulated kernel of a host.

mod files;
mod memory;

use crate::disk::Blocks;
use crate::ethernet::{self, Line};
use crate::net::{End, Event, Request, Shared};
use crate::rogue;
use fastrand::Rng;
use memory::Memory;
use proto::stream::Segment;
use proto::time::{Stamp, Time};
use reactor::io::{Allocate, Completion, Errno, Handle, Io, Tag, Wait};
use reactor::memory::{Arena, LARGE_BYTES, Loan, Region};
use reactor::neighbours::Neighbours;
use reactor::wake::Waker;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use wire::{Places, Span};

/// The coarsest alignment of a disk.
pub(crate) const GRAIN_BYTES_MAX: u32 = 4096;

const ECANCELED: Errno = Errno(125);
const ECONNREFUSED: Errno = Errno(111);
const ECONNRESET: Errno = Errno(104);
const EPIPE: Errno = Errno(32);

thread_local! {
    /// Random numbers that hosts believe to be unpredictable.
    static RANDOM: RefCell<Rng> = const { RefCell::new(Rng::with_seed(0)) };
}

/// Begins a world on this thread.
pub(crate) fn seed_random(seed: u64) {
    RANDOM.set(Rng::with_seed(seed));
}

/// A host's kernel.
pub struct Kernel {
    host: usize,
    net: Shared,
    now: Time,
    used: Duration,
    arena: Memory,
    /// The serial number of a slot's first request: one that no earlier kernel of the host had.
    first_serial: u32,
    requests: Vec<Slot>,
    free: Vec<u32>,
    /// Those that watch a descriptor, and what the system says of each.
    watched: Vec<Request>,
    infos: BTreeMap<i32, File>,
    ready: Vec<Completion>,
    waker: Option<Waker>,
    /// Corrupts this many in 1000 of the pieces it sends.
    pub(crate) lies: u32,
    /// Who watches is woken by what the watched descriptor gets, and not from time to time.
    pub(crate) is_exact: bool,
    neighbours: Neighbours,
}

struct Slot {
    serial: u32,
    tag: Tag,
    job: Job,
}

enum Job {
    None,
    Accept {
        listener: Handle,
    },
    Connect {
        to: SocketAddr,
    },
    Receive {
        socket: Handle,
        into: Places,
    },
    Send {
        socket: Handle,
        from: Vec<Span>,
        sent: u32,
    },
    Watch,
    /// Until it is readable.
    Readable {
        descriptor: Handle,
    },
    /// Frames on a line.
    Frames {
        line: Handle,
    },
    /// Room on a line.
    Room,
    Unwatched,
    Read {
        file: Handle,
        at: u64,
        into: Places,
    },
    Write {
        file: Handle,
        at: u64,
        from: Places,
        durable: bool,
    },
    /// The blocks that were not durable when it began.
    Sync {
        file: Handle,
        dirty: Blocks,
    },
    Clear {
        file: Handle,
        at: u64,
        len: u64,
        how: Allocate,
    },
}

impl Kernel {
    pub(crate) fn new(
        host: usize,
        net: Shared,
        arena_bytes: u64,
        waker: Option<Waker>,
        lives: u32,
    ) -> Kernel {
        let arena = Memory::new(arena_bytes);
        let now = net.borrow().now;
        Kernel {
            host,
            net,
            now,
            used: Duration::ZERO,
            arena,
            first_serial: lives << 20,
            requests: Vec::new(),
            free: Vec::new(),
            watched: Vec::new(),
            infos: BTreeMap::new(),
            ready: Vec::new(),
            waker,
            lies: 0,
            is_exact: false,
            neighbours: Neighbours::default(),
        }
    }

    /// The last turn took this long.
    pub(crate) fn took(&mut self, time: Duration) {
        self.used += time;
    }

    fn enter(&mut self, tag: Tag, job: Job) -> Request {
        let slot = self.free.pop().unwrap_or(self.requests.len() as u32);
        if slot as usize == self.requests.len() {
            self.requests.push(Slot { serial: self.first_serial, tag, job: Job::None });
        }
        let entry = &mut self.requests[slot as usize];
        (entry.tag, entry.job) = (tag, job);
        Request { slot, serial: entry.serial }
    }

    /// Wakes who watches a descriptor that is readable by now.
    pub(crate) fn look_at_watched(&mut self) {
        let (requests, infos, host) = (&self.requests, &mut self.infos, self.host);
        let net = &mut *self.net.borrow_mut();
        self.watched.retain(|request| {
            let entry = &requests[request.slot as usize];
            let Job::Readable { descriptor } = entry.job else { return false };
            if entry.serial != request.serial {
                return false;
            }
            let is_ready = is_readable(infos.entry(descriptor.0).or_insert_with(|| info_of(descriptor)));
            if is_ready {
                let at = net.now.after(net.nanos(1_000, 20_000));
                net.at(at, Event::Go { host, request: *request });
            }
            !is_ready
        });
    }

    fn begin(&mut self, tag: Tag, job: Job, after: Duration) {
        let request = self.enter(tag, job);
        if after.is_zero() {
            return self.go(request);
        }
        let mut net = self.net.borrow_mut();
        let at = net.now.after(after);
        net.at(at, Event::Go { host: self.host, request });
    }

    /// Continues a request that has not ended.
    pub(crate) fn go(&mut self, request: Request) {
        let entry = self.requests.get_mut(request.slot as usize);
        let Some(entry) = entry.filter(|entry| entry.serial == request.serial) else { return };
        let result = match std::mem::replace(&mut entry.job, Job::None) {
            Job::None => return,
            Job::Accept { listener } => self.accept_now(listener, request),
            Job::Connect { to } => {
                let handle = self.net.borrow_mut().connect(self.host, to);
                Some(handle.map(|handle| handle.0 as u32).ok_or(ECONNREFUSED))
            }
            Job::Receive { socket, into } => self.receive_now(socket, into, request),
            Job::Send { socket, from, sent } => self.send_on(socket, from, sent, request),
            Job::Watch | Job::Room | Job::Readable { .. } => Some(Ok(0)),
            Job::Frames { line } => self.frames_now(line, request),
            Job::Unwatched => Some(Err(ECANCELED)),
            Job::Read { file, at, into } => Some(self.read_now_from(file, at, into)),
            Job::Write { file, at, from, durable } => Some(self.write_now_to(file, at, from, durable)),
            Job::Sync { file, dirty } => Some(self.sync_now(file, &dirty)),
            Job::Clear { file, at, len, how } => Some(self.clear_now(file, at, len, how)),
        };
        if let Some(result) = result {
            let entry = &mut self.requests[request.slot as usize];
            entry.serial += 1;
            self.ready.push(Completion { tag: entry.tag, result });
            self.free.push(request.slot);
            self.net.borrow_mut().wake_soon(self.host);
        }
    }

    fn wait(&mut self, request: Request, job: Job) -> Option<Result<u32, Errno>> {
        self.requests[request.slot as usize].job = job;
        None
    }

    fn accept_now(&mut self, listener: Handle, request: Request) -> Option<Result<u32, Errno>> {
        let came = self.net.borrow_mut().accept(listener, (self.host, request));
        match came {
            Some(handle) => Some(Ok(handle.0 as u32)),
            None => self.wait(request, Job::Accept { listener }),
        }
    }

    fn frames_now(&mut self, line: Handle, request: Request) -> Option<Result<u32, Errno>> {
        let has_frames = self.net.borrow_mut().has_frames(line, (self.host, request));
        if has_frames { Some(Ok(0)) } else { self.wait(request, Job::Frames { line }) }
    }

    fn receive_now(&mut self, socket: Handle, into: Places, request: Request) -> Option<Result<u32, Errno>> {
        // At most as much as a real socket delivers at a time.
        let most = into.len().min(LARGE_BYTES) as usize;
        let arena = &mut self.arena;
        let take = |bytes: &[u8]| arena.copy_in(bytes, &into.slice(0, bytes.len() as u32));
        let received = self.net.borrow_mut().receive(socket, most, (self.host, request), take);
        let Some(received) = received else {
            return self.wait(request, Job::Receive { socket, into });
        };
        let count = received.map(|count| count as u32);
        self.unlend(into.iter(), Loan::Write);
        self.neighbours.received(socket, self.now);
        Some(count.map_err(|end| if end == End::Reset { ECONNRESET } else { EPIPE }))
    }

    fn send_on(
        &mut self,
        socket: Handle,
        from: Vec<Span>,
        sent: u32,
        request: Request,
    ) -> Option<Result<u32, Errno>> {
        let total: u32 = from.iter().map(|span| span.len).sum();
        let room = self.net.borrow_mut().room(socket, Some((self.host, request)));
        let count = match room {
            Err(end) => {
                self.unlend(from.iter().copied(), Loan::Read);
                return Some(Err(if end == End::Reset { ECONNRESET } else { EPIPE }));
            }
            Ok(0) => return self.wait(request, Job::Send { socket, from, sent }),
            Ok(room) => (total - sent).min(room as u32),
        };
        let mut net = self.net.borrow_mut();
        let cut = net.odds.cut;
        let is_cut = count > 1 && net.happens(cut);
        let count = if is_cut { net.rng.u32(1..=count) } else { count };
        drop(net);
        self.send_bytes(socket, |arena, bytes| gather(arena, &from, sent, count, bytes));
        let mut net = self.net.borrow_mut();
        if sent + count < total {
            let at = net.now.after(net.nanos(300, 20_000));
            net.at(at, Event::Go { host: self.host, request });
            drop(net);
            return self.wait(request, Job::Send { socket, from, sent: sent + count });
        }
        drop(net);
        self.unlend(from.iter().copied(), Loan::Read);
        Some(Ok(total))
    }

    /// Sends bytes, for which there is room, written directly into place.
    fn send_bytes(&self, socket: Handle, append: impl FnOnce(&Arena, &mut Vec<u8>)) {
        let mut net = self.net.borrow_mut();
        if !net.happens(self.lies) {
            return net.send(socket, |bytes| append(&self.arena, bytes));
        }
        let mut garbled = Vec::new();
        append(&self.arena, &mut garbled);
        rogue::garble(&mut net.rng, &mut garbled);
        net.send(socket, |bytes| bytes.append(&mut garbled));
    }

    fn lend(&mut self, spans: impl Iterator<Item = Span>, loan: Loan) {
        let own = self.arena.id();
        for span in spans.filter(|span| span.buffer == own) {
            self.arena.lend(span, loan);
        }
    }

    fn unlend(&mut self, spans: impl Iterator<Item = Span>, loan: Loan) {
        let own = self.arena.id();
        for span in spans.filter(|span| span.buffer == own) {
            self.arena.unlend(span, loan);
        }
    }
}

/// Whether an event is readable, by what the system says of its descriptor (eventfd(2)).
fn is_readable(info: &File) -> bool {
    let mut text = [0; 256];
    let len = info.read_at(&mut text, 0).expect("a descriptor that is open");
    let text = str::from_utf8(&text[..len]).unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:"));
    count.is_some_and(|count| count.trim() != "0")
}

fn info_of(descriptor: Handle) -> File {
    File::open(format!("/proc/self/fdinfo/{}", descriptor.0)).expect("a descriptor that is open")
}

/// Appends the current bytes of spans, starting at `skip`.
fn gather(arena: &Arena, spans: &[Span], mut skip: u32, count: u32, bytes: &mut Vec<u8>) {
    let count = bytes.len() as u32 + count;
    for span in spans {
        let part = span.slice(skip, count - bytes.len() as u32);
        skip = skip.saturating_sub(span.len);
        if part.len == 0 {
            continue;
        }
        if part.buffer == arena.id() {
            bytes.extend_from_slice(arena.bytes(part));
        } else {
            let at = bytes.len();
            bytes.resize(at + part.len as usize, 0);
            arena.copy_out(&Places::one(part), &mut bytes[at..]);
        }
    }
}

/// Appends this much of what is to be sent: plain bytes, consecutive in `plain`, and payload.
fn gather_segments(
    arena: &Arena,
    mut plain: &[u8],
    segments: &[Segment],
    mut count: usize,
    bytes: &mut Vec<u8>,
) {
    for segment in segments {
        let part = bytes_of(segment).min(count);
        match *segment {
            Segment::Bytes { len } => {
                bytes.extend_from_slice(&plain[..part]);
                plain = &plain[len as usize..];
            }
            Segment::Payload(span) => gather(arena, &[span], 0, part as u32, bytes),
            Segment::Sum | Segment::SumStart => {}
        }
        count -= part;
    }
}

/// The length of a segment to be sent.
fn bytes_of(segment: &Segment) -> usize {
    match *segment {
        Segment::Bytes { len } => len as usize,
        Segment::Payload(span) => span.len as usize,
        Segment::Sum | Segment::SumStart => 0,
    }
}

impl Io for Kernel {
    type Line = Line;

    fn now(&self) -> Time {
        self.now
    }

    fn stamp(&self) -> Stamp {
        Stamp(self.net.borrow().now.0)
    }

    fn processor_time(&self) -> Duration {
        self.used
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn is_shared(&self) -> bool {
        self.neighbours.are_there(self.now)
    }

    fn random() -> u32 {
        RANDOM.with_borrow_mut(|rng| rng.u32(..))
    }

    fn addresses(&self, socket: Handle) -> Option<(SocketAddr, SocketAddr)> {
        self.net.borrow().addresses(socket)
    }

    fn segment_bytes(&self, _socket: Handle) -> u32 {
        1448
    }

    fn duplicate(&mut self, _socket: Handle) -> Option<Handle> {
        None
    }

    fn accept(&mut self, listener: Handle, tag: Tag) {
        self.begin(tag, Job::Accept { listener }, Duration::ZERO);
    }

    fn connect(&mut self, to: SocketAddr, tag: Tag) {
        let after = self.net.borrow_mut().nanos(20_000, 200_000);
        self.begin(tag, Job::Connect { to }, after);
    }

    fn recv(&mut self, socket: Handle, into: &Places, tag: Tag) {
        assert!(!into.is_empty(), "a recv needs room, or its 0 bytes would mean the end of the stream");
        self.lend(into.iter(), Loan::Write);
        self.begin(tag, Job::Receive { socket, into: *into }, Duration::ZERO);
    }

    fn send(&mut self, socket: Handle, from: &[Span], tag: Tag) {
        assert!(from.iter().any(|span| span.len > 0), "a send needs bytes");
        self.lend(from.iter().copied(), Loan::Read);
        let after = self.net.borrow_mut().nanos(100, 2_000);
        self.begin(tag, Job::Send { socket, from: from.to_vec(), sent: 0 }, after);
    }

    /// Half of what is not checksummed is sent at once, as far as there is room; half of that, only in part.
    fn send_now(&mut self, socket: Handle, bytes: &[u8], segments: &[Segment]) -> Option<Result<u32, Errno>> {
        let mut net = self.net.borrow_mut();
        if !net.happens(500) {
            return None;
        }
        let room = match net.room(socket, None) {
            Ok(room) => room,
            Err(End::Reset) => return Some(Err(ECONNRESET)),
            Err(End::Closed) => return Some(Err(EPIPE)),
        };
        if segments.iter().any(|segment| matches!(segment, Segment::Sum | Segment::SumStart)) {
            return None;
        }
        let most = segments.iter().map(bytes_of).sum::<usize>().min(room);
        let count = if net.happens(500) { net.rng.usize(0..=most) } else { most };
        drop(net);
        if count > 0 {
            self.send_bytes(socket, |arena, all| gather_segments(arena, bytes, segments, count, all));
        }
        Some(Ok(count as u32))
    }

    /// Readable or not: the watcher checks for itself, and watches again; but a line is really watched.
    fn watch(&mut self, descriptor: Handle, tag: Tag) {
        if ethernet::is_line(descriptor) {
            return self.begin(tag, Job::Frames { line: descriptor }, Duration::ZERO);
        }
        let after = self.net.borrow_mut().nanos(10_000, 100_000);
        if self.is_exact {
            let slot = self.enter(tag, Job::Readable { descriptor });
            self.watched.push(slot);
            return self.look_at_watched();
        }
        self.begin(tag, Job::Watch, after);
    }

    /// Frames queued on a line are sent after the turn.
    fn watch_room(&mut self, _socket: Handle, tag: Tag) {
        let after = self.net.borrow_mut().nanos(1_000, 50_000);
        self.begin(tag, Job::Room, after);
    }

    fn unwatch(&mut self, tag: Tag) {
        let is_it = |entry: &Slot| {
            let ends = matches!(
                entry.job,
                Job::Watch | Job::Readable { .. } | Job::Frames { .. } | Job::Room | Job::Accept { .. }
            );
            entry.tag == tag && ends
        };
        let Some(slot) = self.requests.iter().position(is_it) else { return };
        let entry = &mut self.requests[slot];
        entry.job = Job::Unwatched;
        let request = Request { slot: slot as u32, serial: entry.serial };
        let mut net = self.net.borrow_mut();
        let now = net.now;
        net.at(now, Event::Go { host: self.host, request });
    }

    fn shutdown(&mut self, socket: Handle) {
        self.net.borrow_mut().shutdown(socket);
    }

    fn close(&mut self, handle: Handle) {
        self.net.borrow_mut().close(handle);
    }

    /// A process that ends is killed, and [`crate::net::Net::kill`] closes what it had.
    fn abandon(_socket: Handle) {}

    fn read(&mut self, file: Handle, at: u64, into: &Places, tag: Tag) {
        self.lend(into.iter(), Loan::Write);
        self.ask_disk(tag, Job::Read { file, at, into: *into });
    }

    fn write(&mut self, file: Handle, at: u64, from: &Places, durable: bool, tag: Tag) {
        self.lend(from.iter(), Loan::Read);
        self.ask_disk(tag, Job::Write { file, at, from: *from, durable });
    }

    fn sync(&mut self, file: Handle, tag: Tag) {
        let dirty = self.net.borrow_mut().disk(file).dirty();
        self.ask_disk(tag, Job::Sync { file, dirty });
    }

    fn allocate(&mut self, file: Handle, how: Allocate, at: u64, len: u64, tag: Tag) {
        self.ask_disk(tag, Job::Clear { file, at, len, how });
    }

    fn extent_now(&mut self, file: Handle, at: u64) -> Option<Result<(bool, u64), Errno>> {
        Some(self.find_extent(file, at))
    }

    /// Memory is the process's own: allocated is what was written since it was last released.
    fn memory_extent_now(&mut self, memory: &Region, at: u64) -> Option<(bool, u64)> {
        Some(memory.extent(at))
    }

    fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    fn turn(&mut self, _wait: Wait, completions: &mut Vec<Completion>) {
        if let Some(waker) = &self.waker {
            waker.get_up();
        }
        self.now = self.net.borrow().now;
        completions.append(&mut self.ready);
    }
}
