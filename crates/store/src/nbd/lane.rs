//! One core's lane into an export: calls, and a share in the work of their connection.

use super::NbdStore;
use super::connection::Watched;
use super::socket::Socket;
use crate::calls::CallLane;
use crate::lane::{Lane, Op, OpId, Outcome, Submitted};
use reactor::io::{Completion, Handle, Io, Tag};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::Span;

/// Tags after that of the calls' mailbox: something has arrived, and there is room to send.
const INPUT: u64 = 1;
const ROOM: u64 = 2;

pub(super) struct NbdLane {
    calls: CallLane<NbdStore>,
    tags: Tag,
    /// The socket that is watched for input.
    watched_input: Option<Arc<Socket>>,
    /// The same for room to send.
    room: Option<Arc<Socket>>,
    is_closing: bool,
}

impl NbdLane {
    pub(super) fn new(store: Arc<NbdStore>, tags: Tag) -> NbdLane {
        NbdLane {
            calls: CallLane::new(store, tags),
            tags,
            watched_input: None,
            room: None,
            is_closing: false,
        }
    }

    fn tag(&self, kind: u64) -> Tag {
        Tag(self.tags.0 + kind)
    }

    /// Has the core woken when there is something to do for the connection. A socket that was replaced
    /// reports that soon.
    fn watch<I: Io>(&mut self, io: &mut I, watched: Option<Watched>) {
        let Some(Watched { socket, wants_room }) = watched.filter(|_| !self.is_closing) else { return };
        if self.watched_input.is_none() && self.calls.awaits_answers() {
            io.watch(Handle(socket.as_raw_fd()), self.tag(INPUT));
            self.watched_input = Some(socket.clone());
        }
        if self.room.is_none() && wants_room {
            io.watch_room(Handle(socket.as_raw_fd()), self.tag(ROOM));
            self.room = Some(socket);
        }
    }

    /// Receives and sends for all lanes, and takes what is for this one.
    fn drive_connection<I: Io>(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        self.calls.store.connection.pump();
        self.calls.receive(io, done);
        // An answer may have been followed by the next call of its operation.
        self.calls.has_started = false;
        let watched = self.calls.store.connection.send();
        self.watch(io, watched);
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
            INPUT => self.watched_input = None,
            ROOM => self.room = None,
            _ => self.calls.completed(io, completion, done),
        }
        self.drive_connection(io, done);
    }

    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.calls.flush(io, done);
        if std::mem::take(&mut self.calls.has_started) {
            let watched = self.calls.store.connection.send();
            self.watch(io, watched);
        }
        false
    }

    fn tick(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        self.calls.tick(io, done);
        self.calls.store.connection.tick();
        self.drive_connection(io, done);
    }

    fn wants_ticks(&self) -> bool {
        Lane::<I>::wants_ticks(&self.calls) || self.calls.store.connection.wants_ticks()
    }

    fn losses(&mut self) -> u64 {
        self.calls.store.connection.options.losses.load(Ordering::Relaxed)
    }

    fn cancel(&mut self, io: &mut I, id: OpId) {
        self.calls.cancel(io, id);
    }

    fn is_dirty(&mut self) -> bool {
        self.calls.store.connection.is_dirty()
    }

    fn in_flight(&self) -> usize {
        Lane::<I>::in_flight(&self.calls)
    }

    fn close(&mut self, io: &mut I) -> bool {
        self.is_closing = true;
        for (watched, kind) in [(&self.watched_input, INPUT), (&self.room, ROOM)] {
            if watched.is_some() {
                io.unwatch(self.tag(kind));
            }
        }
        self.calls.close(io) && self.watched_input.is_none() && self.room.is_none()
    }
}
