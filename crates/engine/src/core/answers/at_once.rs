//! How commands are answered on arrival.

use crate::core::Core;
use crate::core::budget::Budget;
use crate::core::connection::{Connection, Phase, note_command};
use crate::core::counting::count_answers;
use crate::core::immediate_write::write_immediately;
use crate::core::lun::{LunState, find_lun};
use crate::core::unit::Units;
use crate::slots::Key;
use crate::transport::Transport;
use proto::iscsi::target::{Plain, Target};
use reactor::io::Io;
use scsi::{Attribute, Request, Transfer};
use tracing::Level;

/// Why answering stops.
enum Stop {
    /// No complete command is here before this many bytes are.
    Awaits(u32),
    /// The next command has to take the usual path.
    Other,
}

impl<I: Io> Core<I> {
    /// Answers commands of a connection as long as nothing prevents it. Returns whether everything received
    /// was answered.
    pub(in crate::core) fn answer(&mut self, key: Key) -> bool {
        let whole_bytes = self.io.arena().whole_bytes();
        let Some(conn) = self.connections.get_mut(key) else { return false };
        let (Transport::Iscsi(target), Some(stream)) = (&mut conn.machine, &conn.stream) else {
            return false;
        };
        // At trace level each command is logged as a task.
        let is_logged = tracing::enabled!(Level::TRACE);
        if is_logged || conn.phase != Phase::Serving || !stream.may_answer() || !target.answers_at_once() {
            return false;
        }
        // Each answer carries the window.
        conn.limit_window(key, whole_bytes, &mut self.buffers);
        match answer_all(conn, &mut self.units, &mut self.io, &mut self.budget, self.stall_nanos) {
            Stop::Awaits(bytes) => {
                let stream = conn.stream.as_mut();
                conn.answers.were_all = stream.is_some_and(|stream| stream.await_bytes(&mut self.io, bytes));
                conn.answers.were_all
            }
            Stop::Other => false,
        }
    }

    /// The session ends: the answers it was given need not be sent.
    pub(in crate::core) fn forget_answers(&mut self, key: Key) {
        while let Some(conn) = self.connections.get_mut(key)
            && let Some(reads) = conn.answers.leave(&mut conn.pace)
        {
            self.note_unsent(reads.unit, key);
            self.end_unsent(key, reads);
        }
    }

    /// The commands of a connection that were answered have ended.
    pub(in crate::core) fn end_answers(&mut self, key: Key) {
        while let Some(conn) = self.connections.get_mut(key)
            && let Some(reads) = conn.answers.leave(&mut conn.pace)
        {
            count_answers(&conn.facts.counters, &reads, self.io.now());
            self.end_answered(reads);
        }
    }
}

/// Answers one command after the other.
fn answer_all<I: Io>(
    conn: &mut Connection,
    units: &mut Units<I>,
    io: &mut I,
    budget: &mut Budget,
    stall_nanos: u64,
) -> Stop {
    let now = io.now();
    let Connection {
        machine: Transport::Iscsi(target),
        stream: Some(stream),
        luns,
        answers,
        pace,
        facts,
        load,
        ..
    } = conn
    else {
        return Stop::Other;
    };
    loop {
        // One check covers all READs in a row: nothing is received meanwhile.
        let mut exchange = stream.exchange(io);
        let (plain, number, offset, data) = loop {
            let Some(header) = exchange.header(Target::HEADER_BYTES) else {
                return Stop::Awaits(Target::HEADER_BYTES);
            };
            let Some((plain, number, transfer)) = transfer_of(target, luns, units, header) else {
                return Stop::Other;
            };
            let unit = &mut units[number];
            if unit.gate.must_wait(Attribute::Simple) || !exchange.answered().is_none_or(Target::has_room) {
                return Stop::Other;
            }
            let (offset, len) = match transfer {
                Transfer::Read { offset, len } => (offset, len),
                Transfer::Write { offset, len } => {
                    let bytes = Target::HEADER_BYTES + len;
                    let Some(data) = exchange.ahead(bytes) else { return Stop::Awaits(bytes) };
                    break (plain, number, offset, data.slice(Target::HEADER_BYTES, len));
                }
            };
            let Some(from) = unit.lane.borrow(offset, len) else { return Stop::Other };
            unit.gate.begin();
            answers.lend(number, len, now);
            match &mut answers.moving {
                Some(moving) => pace.join(moving, len),
                moving @ None => *moving = Some(pace.begin(now, stall_nanos, len)),
            }
            target.answer_read(now, &plain, from, exchange.answers());
            note_command(facts, &mut load.work, len, 0);
            if !exchange.used(Target::HEADER_BYTES) {
                return Stop::Other;
            }
        };
        if !write_immediately(units.lane(number), io, budget, offset, data) {
            return Stop::Other;
        }
        target.answer_write(now, &plain, stream.answers(io));
        note_command(facts, &mut load.work, 0, data.len);
        facts.counters.write.add(1, data.len.into(), 0);
        units[number].counters.write.add(1, data.len.into(), 0);
        if !stream.used(Target::HEADER_BYTES, data.len) {
            return Stop::Other;
        }
    }
}

/// What the command with this header transfers, and of which unit, if it may be answered on arrival.
#[inline]
fn transfer_of<I: Io>(
    target: &Target,
    luns: &mut [LunState],
    units: &Units<I>,
    header: &[u8],
) -> Option<(Plain, u32, Transfer)> {
    let plain = target.plain(header)?;
    let lun = find_lun(luns, plain.lun)?;
    let LunState { unit, nexus, .. } = luns.get_mut(lun)?;
    let Plain { cdb, read_bytes, write_bytes, .. } = &plain;
    let (read_bytes, write_bytes) = (*read_bytes, *write_bytes);
    let request = Request { cdb, attribute: Attribute::Simple, read_bytes, write_bytes };
    let transfer = units[*unit].view.transfer(nexus, &request)?;
    Some((plain, *unit, transfer))
}
