//! An administrator's queries about sessions, and requests to end them.

use super::Core;
use super::connection::{Connection, Phase};
use crate::counters::Counts;
use crate::message::{DisconnectRefusal, Inspection, SessionEntry, SessionPage, Way, Which};
use crate::slots::Key;
use crate::transport::Transport;
use proto::time::Time;
use reactor::io::Io;
use std::sync::mpsc;

/// Connection slots checked per message, so that thousands of sessions do not stall a core.
const SLOTS_AT_ONCE: u32 = 64;

/// Why a session ends that an administrator has disconnected.
const DISCONNECTED: &str = "an administrator disconnected it";

/// What was counted of a session.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Its number.
    pub session: u64,
    /// Commands that have arrived.
    pub commands: u64,
    /// Some of them may be retransmissions, which are neither answered nor counted (AoE).
    pub has_copies: bool,
    /// Those of them that are in flight.
    pub in_flight: usize,
    /// Those that have ended, or were aborted.
    pub counts: Counts,
}

impl<I: Io> Core<I> {
    /// Reports sessions that are here.
    pub(super) fn inspect(&self, inspection: &Inspection) {
        let now = self.io.now();
        let (keys, next): (Vec<Key>, _) = match inspection.which {
            Which::From(first) => {
                let end = first.saturating_add(SLOTS_AT_ONCE);
                let next = (end < self.connections.slots()).then_some(end);
                ((first..end).filter_map(|slot| self.connections.key_at(slot)).collect(), next)
            }
            Which::Serial(serial) => (self.keys_where(|conn| conn.facts.serial == serial), None),
        };
        let sessions = keys.into_iter().filter_map(|key| self.seen(key, now)).collect();
        let _ = inspection.reply.send(SessionPage { sessions, next });
    }

    /// What was counted of each session that is here.
    pub(crate) fn counted(&self) -> impl Iterator<Item = Counted> + '_ {
        let of = |conn: &Connection| Counted {
            session: conn.facts.serial,
            commands: conn.facts.tally.commands,
            has_copies: matches!(conn.machine, Transport::Aoe(_)),
            in_flight: conn.in_flight_commands(),
            counts: conn.facts.counters.read(),
        };
        self.connections.iter().filter(|(_, conn)| conn.facts.is_admitted).map(move |(_, conn)| of(conn))
    }

    /// Whether this core knows that a unit has reached its threshold of used space.
    pub(crate) fn threshold_reached(&self, unit: u32) -> bool {
        self.units.get(unit).is_some_and(|unit| unit.view.policy.threshold_reached)
    }

    fn seen(&self, key: Key, now: Time) -> Option<SessionEntry> {
        let conn = self.connections.get(key).filter(|conn| conn.facts.is_admitted)?;
        let interface = match conn.facts.way {
            Way::Portal { .. } => None,
            Way::Interface { opening_number, .. } => self.ethernet.place_of(opening_number, key),
        };
        Some(SessionEntry {
            serial: conn.facts.serial,
            way: conn.facts.way,
            interface,
            session: conn.facts.session.clone()?,
            target: conn.facts.target.clone(),
            tally: conn.facts.tally,
            counters: conn.facts.counters.clone(),
            age: now.since(conn.facts.tally.since),
            transport: conn.machine.name(),
            core: self.shared.config.cores[self.me],
            state: state(conn),
            in_flight: conn.in_flight_commands(),
        })
    }

    /// Ends a session for an administrator, who gets the answer when nothing of it is left.
    pub(super) fn disconnect(&mut self, serial: u64, done: mpsc::Sender<Option<DisconnectRefusal>>) {
        let is_it = |conn: &Connection| conn.facts.serial == serial && conn.facts.is_admitted;
        let Some(key) = self.keys_where(is_it).pop() else {
            let _ = done.send(Some(DisconnectRefusal::NotHere));
            return;
        };
        if self.connections.get(key).is_some_and(|conn| matches!(conn.machine, Transport::Aoe(_))) {
            let _ = done.send(Some(DisconnectRefusal::Sessionless));
            return;
        }
        self.endings.disconnections.begin(serial, done);
        self.disconnect_with_notice(key, DISCONNECTED);
    }
}

fn state(conn: &Connection) -> &'static str {
    match conn.phase {
        // A discovery session; others have moved on when their login is answered.
        Phase::Login | Phase::Serving => "serving",
        Phase::AwaitingReinstatement | Phase::Leaving(_) | Phase::Arriving | Phase::Draining => "moving",
        Phase::Ending | Phase::Parting | Phase::Closing => "ending",
    }
}
