//! Traffic of connections: each one that something happened to in a turn is fed, polled and flushed.

use super::Core;
use super::connection::Occupant;
use super::connection::{Connection, Phase};
use super::counting::count_answers;
use crate::slots::Key;
use crate::transport::{Flushed, OPENING_BYTES, StreamProtocol, Transport};
use proto::services::{Down, TaskId, Up};
use reactor::io::{Errno, Io};

impl<I: Io> Core<I> {
    /// Something happened to the connection: it is fed, and then may owe something.
    pub(super) fn mark_dirty(&mut self, key: Key) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.mark_dirty(key, &mut self.agenda);
        }
    }

    pub(super) fn received(&mut self, key: Key, result: Result<u32, Errno>) {
        if let Some(conn) = self.connections.get_mut(key) {
            if let Some(stream) = &mut conn.stream {
                stream.received(&mut self.io, result);
            }
            conn.mark_dirty(key, &mut self.agenda);
        }
    }

    /// A send has ended. Returns whether the connection is at rest then: there is nothing to feed, and
    /// nothing to flush.
    pub(super) fn sent(&mut self, key: Key, result: Result<u32, Errno>) -> bool {
        let (mut rests, mut left, is_sent) = (false, None, result.is_ok());
        if let Some(conn) = self.connections.get_mut(key) {
            if let Some(stream) = &mut conn.stream {
                conn.machine.sent(stream, &mut self.io, result, &mut self.agenda.pushed);
                // What answers have borrowed is sent in one batch. After a send that failed, the session
                // ends.
                let reads =
                    if is_sent && stream.has_sent() { conn.answers.leave(&mut conn.pace) } else { None };
                left = reads.map(|reads| (reads, conn.answers.have_left()));
                if let Some((reads, _)) = &left {
                    count_answers(&conn.facts.counters, reads, self.io.now());
                }
            }
            // Most sends end while waiting for the next command.
            rests = conn.is_at_rest();
            if !rests {
                conn.mark_dirty(key, &mut self.agenda);
            }
        }
        if !self.agenda.pushed.is_empty() {
            let mut pushed = std::mem::take(&mut self.agenda.pushed);
            for wire in pushed.drain(..) {
                self.has_pushed(key, wire);
            }
            self.agenda.pushed = pushed;
        }
        if let Some((reads, is_all)) = left {
            self.end_answered(reads);
            if !is_all {
                self.end_answers(key);
            }
        }
        rests
    }

    /// The data that a task pushed has been sent.
    fn has_pushed(&mut self, key: Key, wire: TaskId) {
        match self.connections.get_mut(key).and_then(|conn| conn.pushed(wire)) {
            Some(Occupant::Task(task)) => self.pushed(task),
            Some(Occupant::ImmediateRead { unit, begun, moving, buffer }) => {
                self.trace_immediate_read_end(key, wire, moving);
                self.count_immediate_read(key, unit, begun, moving);
                self.end_immediate_read(key, unit, buffer);
            }
            None => self.release_quiesced(key, wire),
        }
    }

    /// Passes a call down to a task's transport.
    pub(super) fn down(&mut self, connection: Option<Key>, down: Down) {
        let now = self.io.now();
        if let Some(key) = connection
            && let Some(conn) = self.connections.get_mut(key)
        {
            conn.machine.down(now, down);
            conn.mark_dirty(key, &mut self.agenda);
        }
    }

    /// Feeds the machines of all connections that something happened to.
    pub(super) fn serve_all(&mut self) {
        while let Some(key) = self.agenda.to_serve.pop() {
            self.serve(key);
        }
    }

    /// It stays listed until its machine has nothing more, so whatever happens to it meanwhile is handled at
    /// once.
    fn serve(&mut self, key: Key) {
        loop {
            let Some(conn) = self.connections.get_mut(key) else { return };
            let is_fed = match conn.phase {
                Phase::Login | Phase::Serving | Phase::Ending | Phase::Parting => true,
                Phase::Draining => conn.awaits_data(&self.tasks),
                Phase::AwaitingReinstatement | Phase::Leaving(_) | Phase::Arriving | Phase::Closing => false,
            };
            if let Some(channel) = conn.machine.device_mut() {
                channel.hold(!is_fed && conn.phase != Phase::Closing);
            }
            if !is_fed {
                return self.pause(key);
            }
            let is_all = conn.answers.are_expected() && self.answer(key);
            let Some(conn) = self.connections.get_mut(key) else { return };
            if is_all {
                conn.listed.to_serve = false;
                return;
            }
            if let Some(up) = conn.machine.next(conn.stream.as_mut(), &mut self.io) {
                self.up(key, up);
                continue;
            }
            conn.listed.to_serve = false;
            if conn.phase != Phase::Login {
                return;
            }
            match conn.machine.found() {
                Some(protocol) => self.open(key, protocol),
                None => return self.note_login(key),
            }
        }
    }

    /// The machine gets no input for now.
    #[inline(never)]
    fn pause(&mut self, key: Key) {
        if let Some(conn) = self.connections.get_mut(key) {
            conn.listed.to_serve = false;
            if let Some(stream) = &mut conn.stream {
                stream.pause();
            }
        }
        self.poll_machine(key);
    }

    /// The protocol of the connection is known. A connection over RDMA stays on the core where it begins, so
    /// it is placed now; all others are placed when they have logged in.
    #[inline(never)]
    fn open(&mut self, key: Key, protocol: StreamProtocol) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let Some(stream) = &mut conn.stream else { return };
        stream.rewind(OPENING_BYTES);
        if protocol != StreamProtocol::Iscsi && conn.machine.is_movable() {
            conn.machine.place();
            let core = conn.facts.portal().map_or(self.me, |portal| self.place(portal));
            if core != self.me && !self.stop.has_begun() {
                return self.set_phase(key, Phase::Leaving(core));
            }
        }
        if let Some(conn) = self.connections.get_mut(key)
            && let Some(stream) = &conn.stream
        {
            conn.machine.open(stream.socket(), &self.io);
        }
    }

    pub(super) fn poll_machine(&mut self, key: Key) {
        while let Some(conn) = self.connections.get_mut(key) {
            let Some(up) = conn.machine.poll(&mut self.io) else { return };
            self.up(key, up);
        }
    }

    #[inline(never)]
    fn up(&mut self, key: Key, up: Up) {
        match up {
            Up::Command(command) => self.command(key, command),
            Up::Fetched(wire) => {
                match self.connections.get(key).and_then(|conn| conn.task(wire)) {
                    Some(task) => self.fetched(task),
                    // It was ended while this was on its way up.
                    None => self.release_quiesced(key, wire),
                }
            }
            Up::FetchFailed { task, sense } => {
                if let Some(task) = self.connections.get(key).and_then(|conn| conn.task(task)) {
                    self.fetch_failed(task, &sense);
                }
            }
            Up::Terminated { command, how } => {
                self.trace_command(key, &command);
                self.trace_terminated(key, &command, &how);
                self.count_terminated(key, &command, &how);
            }
            Up::Pushed(wire) => self.has_pushed(key, wire),
            Up::Function { id, lun, function } => {
                self.trace_function(key, lun, function);
                self.stay(key);
                self.function(key, id, lun, function);
            }
            Up::Ready(session) => self.ready(key, *session),
            Up::Leaving => self.leaving(key),
            Up::Refused { reason } => self.refused(key, &reason),
            Up::Fault { what } => self.faulty(key, what),
            Up::Gone { reason } => self.gone(key, &reason),
        }
    }

    /// At the end of a turn: sends what is owed, and moves or closes the connections that are due.
    pub(super) fn flush_all(&mut self) {
        let mut index = 0;
        while let Some(key) = self.agenda.to_flush.get(index).copied() {
            index += 1;
            if let Some(conn) = self.connections.get_mut(key) {
                conn.listed.to_flush = false;
                self.active.note(key, conn);
                self.finish_turn(key);
            }
        }
        self.agenda.to_flush.clear();
        // A connection with more to do than its share of one turn continues in the next, without a further
        // event.
        for index in 0..self.agenda.to_serve.len() {
            let key = self.agenda.to_serve[index];
            if let Some(conn) = self.connections.get_mut(key)
                && !std::mem::replace(&mut conn.listed.to_flush, true)
            {
                self.agenda.to_flush.push(key);
            }
        }
    }

    fn finish_turn(&mut self, key: Key) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if let Some(stream) = &mut conn.stream {
            stream.end_turn();
        }
        let waits_for_room = matches!(conn.machine, Transport::Aoe(_)) && self.send_frames(key);
        let whole_bytes = self.io.arena().whole_bytes();
        let Some(conn) = self.connections.get_mut(key) else { return };
        if !conn.answers.were_all() {
            conn.limit_window(key, whole_bytes, &mut self.buffers);
        }
        let Flushed { event, sent } = conn.machine.flush(conn.stream.as_mut(), &mut self.io);
        if let Some(result) = sent {
            self.agenda.has_sent = true;
            if self.sent(key, result) && event.is_none() {
                return;
            }
        }
        self.finish_flush(key, event, waits_for_room);
    }

    /// The connection was flushed, and there is more to do than wait for input.
    #[inline(never)]
    fn finish_flush(&mut self, key: Key, event: Option<Up>, waits_for_room: bool) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        let wants_more = conn.stream.as_ref().is_some_and(|stream| stream.wants_more());
        if (wants_more || conn.machine.wants_more() && !waits_for_room)
            && !std::mem::replace(&mut conn.listed.to_serve, true)
        {
            self.agenda.to_serve.push(key);
        }
        if let Some(channel) = conn.machine.device_mut() {
            channel.end_turn();
        }
        if let Some(up) = event {
            self.up(key, up);
            self.poll_machine(key);
        }
        let Some(conn) = self.connections.get_mut(key) else { return };
        let is_movable = |conn: &Connection| conn.stream.as_ref().is_some_and(|stream| stream.is_movable());
        match conn.phase {
            Phase::Leaving(core) if conn.has_sent() && is_movable(conn) => self.leave(key, core),
            Phase::Draining => self.drain_on(key),
            Phase::Closing => {
                if conn.has_sent() {
                    conn.shut_down(&mut self.io);
                }
                self.close_when_quiet(key);
            }
            Phase::Ending if conn.is_settled() => self.part(key),
            Phase::Login
            | Phase::AwaitingReinstatement
            | Phase::Leaving(_)
            | Phase::Arriving
            | Phase::Serving
            | Phase::Ending
            | Phase::Parting => {}
        }
    }
}
