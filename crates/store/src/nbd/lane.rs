//! One core's lane into an export: calls, and a share in the work of the connections that have them.

use super::NbdStore;
use super::connection::Watched;
use super::connections::Set;
use super::socket::Socket;
use crate::calls::{Call, CallLane, Medium, Shared};
use crate::lane::{Lane, Op, OpId, Outcome, Submitted};
use reactor::io::{Completion, Handle, Io, Tag};
use scsi::storage::{CHUNK_BYTES, Found};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use wire::Span;

/// The most bytes that one request clears.
const CLEAR_BYTES: u64 = 64 << 20;

/// What is awaited of a connection: each has its tag, after that of the calls' mailbox.
const KINDS: u64 = 2;
/// Something has arrived.
const INPUT: u64 = 0;
/// There is room to send.
const ROOM: u64 = 1;

pub(super) struct NbdLane {
    calls: CallLane<Seat>,
    tags: Tag,
    /// The sockets that are watched, by connection.
    watches: Vec<[Option<Arc<Socket>>; KINDS as usize]>,
    /// The moves of calls that it has followed.
    moves: u64,
    is_closing: bool,
}

/// A lane's access to an export.
pub(super) struct Seat {
    store: Arc<NbdStore>,
    /// The connection that it uses while that is open, chosen with its first call: the lanes of other cores
    /// may never have any.
    home: OnceLock<usize>,
    /// The connections that may have calls of it: a [`Set`].
    used: AtomicU32,
}

impl NbdLane {
    pub(super) fn new(store: Arc<NbdStore>, tags: Tag) -> NbdLane {
        let watches = store.connections.iter().map(|_| [None, None]).collect();
        let seat = Arc::new(Seat { store, home: OnceLock::new(), used: AtomicU32::new(0) });
        NbdLane { calls: CallLane::new(seat, tags), tags, watches, moves: 0, is_closing: false }
    }

    fn tag(&self, connection: usize, kind: u64) -> Tag {
        Tag(self.tags.0 + 1 + connection as u64 * KINDS + kind)
    }

    fn store(&self) -> &NbdStore {
        &self.calls.store.store
    }

    /// Has the core woken when there is something to do for a connection. A socket that was replaced reports
    /// that soon.
    fn watch<I: Io>(&mut self, io: &mut I, connection: usize, watched: Option<Watched>) {
        let Some(Watched { socket, wants_room }) = watched.filter(|_| !self.is_closing) else { return };
        let handle = Handle(socket.as_raw_fd());
        let [input, room] = [INPUT, ROOM].map(|kind| self.tag(connection, kind));
        let watches = &mut self.watches[connection];
        if watches[INPUT as usize].is_none() {
            io.watch(handle, input);
            watches[INPUT as usize] = Some(socket.clone());
        }
        if watches[ROOM as usize].is_none() && wants_room {
            io.watch_room(handle, room);
            watches[ROOM as usize] = Some(socket);
        }
    }

    /// Receives and sends for all lanes, and takes what is for this one.
    fn drive_connections<I: Io>(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        for connection in self.calls.store.used().iter() {
            self.store().connections.pump(connection);
        }
        self.calls.receive(io, done);
        self.follow();
        // An answer may have been followed by the next call of its operation.
        self.calls.has_started = false;
        self.send(io);
    }

    fn send<I: Io>(&mut self, io: &mut I) {
        for connection in self.calls.store.used().iter() {
            let watched = self.store().connections.send(connection);
            self.watch(io, connection, watched);
        }
    }

    /// Finds which connections have its calls.
    fn follow(&mut self) {
        let moves = self.store().connections.common.moves();
        let have_moved = std::mem::replace(&mut self.moves, moves) != moves;
        let used = self.calls.store.used();
        let now_used = match self.calls.mailbox().filter(|_| self.calls.awaits_answers()) {
            None => Set::default(),
            Some(mail) if have_moved || used.has_several() => self.store().connections.with_calls_of(mail),
            Some(_) => used,
        };
        self.calls.store.set_used(now_used);
    }
}

impl<I: Io> Lane<I> for NbdLane {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        self.calls.submit(io, id, op)
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        match completion.tag.0 - self.tags.0 {
            0 => self.calls.completed(io, completion, done),
            number => {
                let (connection, kind) = ((number - 1) / KINDS, (number - 1) % KINDS);
                self.watches[connection as usize][kind as usize] = None;
                let mut used = self.calls.store.used();
                used.add(connection as usize);
                self.calls.store.set_used(used);
            }
        }
        self.drive_connections(io, done);
    }

    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.calls.flush(io, done);
        if std::mem::take(&mut self.calls.has_started) {
            self.send(io);
        }
        false
    }

    fn tick(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        self.calls.tick(io, done);
        self.store().connections.tick();
        self.drive_connections(io, done);
    }

    fn wants_ticks(&self) -> bool {
        Lane::<I>::wants_ticks(&self.calls) || self.store().connections.needs_ticks()
    }

    fn losses(&mut self) -> u64 {
        self.store().connections.common.options.losses.load(Ordering::SeqCst)
    }

    fn cancel(&mut self, io: &mut I, id: OpId) {
        self.calls.cancel(io, id);
    }

    fn is_dirty(&mut self) -> bool {
        self.store().connections.common.is_dirty()
    }

    fn in_flight(&self) -> usize {
        Lane::<I>::in_flight(&self.calls)
    }

    fn close(&mut self, io: &mut I) -> bool {
        self.is_closing = true;
        let mut is_closed = self.calls.close(io);
        for connection in 0..self.watches.len() {
            for kind in [INPUT, ROOM] {
                if self.watches[connection][kind as usize].is_some() {
                    io.unwatch(self.tag(connection, kind));
                    is_closed = false;
                }
            }
        }
        is_closed
    }
}

impl Seat {
    fn used(&self) -> Set {
        Set(self.used.load(Ordering::Relaxed))
    }

    fn set_used(&self, used: Set) {
        self.used.store(used.0, Ordering::Relaxed);
    }
}

impl Medium for Seat {
    fn shared(&self) -> &Arc<Shared> {
        &self.store.connections.common.shared
    }

    fn size(&self) -> u64 {
        self.store.connections.common.size()
    }

    fn is_read_only(&self) -> bool {
        self.store.connections.common.is_read_only()
    }

    fn is_lost(&self) -> bool {
        self.store.connections.common.is_lost()
    }

    fn give_up_after(&self) -> Duration {
        self.store.connections.common.options.give_up_after
    }

    /// Where the server cannot clear, zeros are written.
    fn clear_bytes(&self) -> u64 {
        if self.store.connections.common.clears() { CLEAR_BYTES } else { CHUNK_BYTES.into() }
    }

    fn extent(&self, offset: u64) -> Option<Found> {
        let is_known = !self.store.connections.common.allocates();
        is_known.then(|| Found::Extent { mapped: true, len: self.size() - offset })
    }

    fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        let connections = &self.store.connections;
        let home = *self.home.get_or_init(|| connections.take_home());
        let used = connections.start(call, connections.of(home));
        self.set_used(Set(self.used().0 | used.0));
        Ok(())
    }

    fn withdraw(&self, number: u64) {
        self.store.connections.withdraw(number);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.home.get().iter().for_each(|home| self.store.connections.give_home(**home));
    }
}
