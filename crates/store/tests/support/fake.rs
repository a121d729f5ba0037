//! A kernel for tests: carries out requests with plain system calls, one after another, unless a fault is
//! injected.

use proto::time::{Stamp, Time};
use reactor::io::{Allocate, Completion, Errno, Handle, Io, Tag, Wait};
use reactor::memory::{Arena, Region};
use reactor::packet::Socket;
use reactor::uring::Uring;
use reactor::wake::Waker;
use rustix::fs::FallocateFlags;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use wire::{Places, Span};

/// A request for a file.
#[derive(Clone, Copy, Debug)]
pub enum Request {
    Read { at: u64, into: Places },
    Write { at: u64, from: Places, durable: bool },
    Sync,
    Allocate { how: Allocate, at: u64, len: u64 },
}

/// What happens to a request.
pub enum Fate {
    Succeeds,
    /// At most this many bytes are transferred.
    Short(u32),
    Fails(rustix::io::Errno),
}

pub type Decide = Box<dyn FnMut(&Request) -> Fate>;

pub struct FakeIo {
    arena: Arena,
    queue: Vec<(Handle, Request, Tag)>,
    /// For watches only: those go to a ring.
    watches: Uring,
    scratch: Span,
    shared: Arc<Region>,
    decide: Decide,
}

const SCRATCH_BYTES: u32 = 64 << 10;

impl FakeIo {
    pub fn healthy() -> FakeIo {
        FakeIo::with(Box::new(|_| Fate::Succeeds))
    }

    pub fn with(decide: Decide) -> FakeIo {
        let mut arena = Arena::new(4 << 20).unwrap();
        let scratch = arena.take(SCRATCH_BYTES).unwrap().iter().next().unwrap();
        let shared = Region::map(u64::from(SCRATCH_BYTES)).unwrap();
        let watches = Uring::new(Arena::new(64 << 10).unwrap(), Waker::new().unwrap()).unwrap();
        FakeIo { arena, queue: Vec::new(), watches, scratch, shared, decide }
    }

    fn result(&mut self, handle: Handle, request: &Request) -> Result<u32, Errno> {
        self.perform(handle, request).map_err(|error| Errno(error.raw_os_error().unwrap_or(5)))
    }

    fn perform(&mut self, handle: Handle, request: &Request) -> std::io::Result<u32> {
        let limit = match (self.decide)(request) {
            Fate::Succeeds => u32::MAX,
            Fate::Short(limit) => limit,
            Fate::Fails(errno) => return Err(errno.into()),
        };
        let path = format!("/proc/self/fd/{}", handle.0);
        match *request {
            Request::Read { at, into } => self.read(&File::open(path)?, at, &into.slice(0, limit)),
            Request::Write { at, from, durable } => {
                let file = File::options().write(true).open(path)?;
                let moved = self.write(&file, at, &from.slice(0, limit))?;
                if durable {
                    file.sync_data()?;
                }
                Ok(moved)
            }
            Request::Sync => File::open(path)?.sync_data().map(|()| 0),
            Request::Allocate { how, at, len } => {
                let file = File::options().write(true).open(path)?;
                let how = match how {
                    Allocate::PunchHole => FallocateFlags::PUNCH_HOLE,
                    Allocate::Zero => FallocateFlags::ZERO_RANGE,
                };
                rustix::fs::fallocate(&file, how | FallocateFlags::KEEP_SIZE, at, len)?;
                Ok(0)
            }
        }
    }

    fn read(&mut self, file: &File, at: u64, into: &Places) -> std::io::Result<u32> {
        let mut moved = 0;
        while moved < into.len() {
            let part = into.slice(moved, SCRATCH_BYTES);
            let scratch = self.scratch.slice(0, part.len());
            let count = file.read_at(self.arena.bytes_mut(scratch), at + u64::from(moved))? as u32;
            if count == 0 {
                break;
            }
            let part = part.slice(0, count);
            self.shared.copy_in(0, &self.arena, &Places::one(scratch.slice(0, count)));
            self.shared.copy_out(0, &mut self.arena, &part);
            moved += count;
        }
        Ok(moved)
    }

    fn write(&mut self, file: &File, at: u64, from: &Places) -> std::io::Result<u32> {
        let mut moved = 0;
        while moved < from.len() {
            let part = from.slice(moved, SCRATCH_BYTES);
            let scratch = self.scratch.slice(0, part.len());
            self.shared.copy_in(0, &self.arena, &part);
            self.shared.copy_out(0, &mut self.arena, &Places::one(scratch));
            file.write_all_at(self.arena.bytes(scratch), at + u64::from(moved))?;
            moved += part.len();
        }
        Ok(moved)
    }
}

impl Io for FakeIo {
    type Line = Socket;

    fn now(&self) -> Time {
        unreachable!("stores have no clock")
    }

    fn stamp(&self) -> Stamp {
        unreachable!("stores have no clock")
    }

    fn processor_time(&self) -> Duration {
        unreachable!("stores have no clock")
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn is_shared(&self) -> bool {
        unreachable!("stores have no sockets")
    }

    fn random() -> u32 {
        unreachable!("stores guess nothing")
    }

    fn addresses(&self, _socket: Handle) -> Option<(SocketAddr, SocketAddr)> {
        unreachable!("stores have no sockets")
    }

    fn segment_bytes(&self, _socket: Handle) -> u32 {
        unreachable!("stores have no sockets")
    }

    fn duplicate(&mut self, _socket: Handle) -> Option<Handle> {
        unreachable!("stores have no sockets")
    }

    fn accept(&mut self, _listener: Handle, _tag: Tag) {
        unreachable!("stores have no sockets")
    }

    fn connect(&mut self, _to: SocketAddr, _tag: Tag) {
        unreachable!("stores have no sockets")
    }

    fn recv(&mut self, _socket: Handle, _into: &Places, _tag: Tag) {
        unreachable!("stores have no sockets")
    }

    fn send(&mut self, _socket: Handle, _from: &[Span], _tag: Tag) {
        unreachable!("stores have no sockets")
    }

    fn watch(&mut self, descriptor: Handle, tag: Tag) {
        self.watches.watch(descriptor, tag);
    }

    fn watch_room(&mut self, _socket: Handle, _tag: Tag) {
        unreachable!("stores have no sockets")
    }

    fn unwatch(&mut self, _tag: Tag) {
        unreachable!("stores go on watching")
    }

    fn shutdown(&mut self, _socket: Handle) {
        unreachable!("stores have no sockets")
    }

    fn close(&mut self, _handle: Handle) {
        unreachable!("stores close their files")
    }

    fn read(&mut self, file: Handle, at: u64, into: &Places, tag: Tag) {
        self.queue.push((file, Request::Read { at, into: *into }, tag));
    }

    fn write(&mut self, file: Handle, at: u64, from: &Places, durable: bool, tag: Tag) {
        self.queue.push((file, Request::Write { at, from: *from, durable }, tag));
    }

    fn read_now(&mut self, file: Handle, at: u64, into: &Places) -> Option<Result<u32, Errno>> {
        Some(self.result(file, &Request::Read { at, into: *into }))
    }

    fn write_now(
        &mut self,
        file: Handle,
        at: u64,
        from: &Places,
        durable: bool,
    ) -> Option<Result<u32, Errno>> {
        Some(self.result(file, &Request::Write { at, from: *from, durable }))
    }

    fn sync(&mut self, file: Handle, tag: Tag) {
        self.queue.push((file, Request::Sync, tag));
    }

    fn allocate(&mut self, file: Handle, how: Allocate, at: u64, len: u64, tag: Tag) {
        self.queue.push((file, Request::Allocate { how, at, len }, tag));
    }

    fn is_ready(&self) -> bool {
        unreachable!("stores take no turns")
    }

    fn turn(&mut self, wait: Wait, completions: &mut Vec<Completion>) {
        for (handle, request, tag) in std::mem::take(&mut self.queue) {
            let result = self.result(handle, &request);
            completions.push(Completion { tag, result });
        }
        let wait = if completions.is_empty() { wait } else { Wait::No };
        self.watches.turn(wait, completions);
    }
}
