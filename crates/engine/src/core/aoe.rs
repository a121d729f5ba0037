//! ATA over Ethernet: a frame arrives on the core that the interface's fanout selects, and goes to the
//! session of its initiator with the unit. There is no login: the first frame opens the session.

mod changes;
mod counts;
mod frames;
mod order;
mod reopen;

use super::kind;
use crate::served::{Segment, Served};
use crate::slots::Key;
use config::AoeInterface;
use proto::aoe::target::{Export, Written};
use proto::time::Time;
use reactor::io::{Io, Tag};
use reactor::packet::aoe::{FLAGS, HEADERS_BYTES, SHELF, SLOT, SOURCE};
use reactor::packet::{Condition, Field, Line, Packets, Setup};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wire::aoe::{Address, ETHERTYPE, Header, MTU_MIN, Mac, sectors_per_frame};

pub(super) use crate::ledger::Claim;

/// This core's part of an interface, from its opening until its socket no longer works.
struct Interface<L: Line> {
    segment: Arc<Segment>,
    /// The number of this opening, unique on this core.
    opening_number: u32,
    packets: Packets<L>,
    sessions: BTreeMap<(Mac, Address), Key>,
    /// The kernel reports when a frame has arrived.
    is_watched: bool,
    /// It has done so in this turn.
    is_woken: bool,
    /// Frames are to be sent at the end of the turn.
    owes: bool,
    /// The kernel reports when it can take more of what is queued.
    awaits_room: bool,
    /// Sessions that found no free slot to send from.
    crowded: Vec<Key>,
    /// WRITEs waiting for a limit, each in its frame.
    throttled: usize,
    /// When its counters were last logged, and how many frames the kernel had dropped by then.
    reported_at: Time,
    dropped: u64,
}

impl<L: Line> Interface<L> {
    /// Its name.
    fn name(&self) -> &str {
        &self.segment.interface.name
    }

    /// A unit as exported on this interface.
    fn export<'a>(&self, address: Address, config: &'a [u8]) -> Export<'a> {
        Export {
            address,
            ours: Mac(self.packets.mac()),
            config,
            buffers: BUFFERS,
            sectors_max: sectors_per_frame(self.packets.mtu()),
            firmware: FIRMWARE,
        }
    }

    /// How many frames each session may hold: the fewer, the more others hold, so that a new session finds a
    /// free one while a store is slow. Some are reserved for what is answered at once.
    fn room(&self) -> u16 {
        self.packets.free().saturating_sub(FRAMES_FOR_ALL) as u16
    }

    /// How many sessions there are.
    fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Frames that were received and not returned yet.
    fn held(&self) -> u32 {
        SLOTS_OF_INTERFACE - self.packets.free()
    }

    /// The tag of a watch on it.
    fn tag(&self, kind: u64) -> Tag {
        Tag(kind << kind::SHIFT | u64::from(self.opening_number) << 32)
    }
}

/// A core's part in serving AoE.
pub(super) struct Ethernet<L: Line> {
    /// Interfaces that serve AoE.
    interfaces: Vec<Interface<L>>,
    /// Earlier openings of interfaces, kept until nothing of their sessions is left.
    retired: Vec<Interface<L>>,
    /// How many interfaces were opened so far.
    opened_count: u32,
    /// Interfaces that this core checks on behalf of all.
    interface_watches: Vec<InterfaceWatch>,
    /// Interfaces, by number, whose first core has yet to be notified that this core has released them.
    releasing: Vec<usize>,
    /// What was answered there recently.
    answered: VecDeque<Answered>,
    /// Sockets of interfaces for which there was not enough memory: retried at the next tick.
    waiting_for_slots: Vec<(usize, L)>,
    /// Tasks that wait until others have finished changing the same blocks, oldest first.
    overlapping: Vec<Key>,
}

/// What the first core of an interface keeps about it.
struct InterfaceWatch {
    /// Its number.
    number: usize,
    state: State,
    check_at: Time,
    /// Why it is not served, once that was reported.
    reason: Option<String>,
}

enum State {
    Served,
    /// How many cores have yet to release it.
    Closing(usize),
    Closed,
    /// The housekeeper is opening it, or its sockets are on their way.
    Opening,
}

/// Writes that a session answered before it ended: late duplicates may still arrive.
struct Answered {
    /// Of the interface.
    segment: Arc<Segment>,
    from: Mac,
    to: Address,
    written: Written,
    until: Time,
}

impl<L: Line> Ethernet<L> {
    /// For this core.
    pub(super) fn new(served: &Served, core: usize) -> Ethernet<L> {
        Ethernet {
            interfaces: Vec::new(),
            retired: Vec::new(),
            opened_count: 0,
            interface_watches: changes::watches(served, core, |_| State::Served),
            releasing: Vec::new(),
            answered: VecDeque::new(),
            waiting_for_slots: Vec::new(),
            overlapping: Vec::new(),
        }
    }

    /// The number of sessions, and of frames that were received and not returned.
    pub(super) fn in_use(&self) -> (usize, u32) {
        let interfaces = || self.interfaces.iter().chain(&self.retired);
        (interfaces().map(Interface::sessions).sum(), interfaces().map(Interface::held).sum())
    }

    /// Whether it serves any interface.
    pub(super) fn has_interfaces(&self) -> bool {
        !self.interfaces.is_empty()
    }

    /// Serves an interface.
    fn add(&mut self, segment: Arc<Segment>, packets: Packets<L>) {
        self.opened_count = (self.opened_count + 1) % kind::NUMBERS;
        self.interfaces.push(Interface {
            segment,
            opening_number: self.opened_count,
            packets,
            sessions: BTreeMap::new(),
            is_watched: false,
            is_woken: false,
            owes: false,
            awaits_room: false,
            crowded: Vec::new(),
            throttled: 0,
            reported_at: Time(0),
            dropped: 0,
        });
    }

    /// Asks the kernel to wake this core when a frame arrives; call it before sleeping.
    pub(super) fn watch<I: Io<Line = L>>(&mut self, io: &mut I) {
        for interface in &mut self.interfaces {
            if interface.packets.has_room() && !std::mem::replace(&mut interface.is_watched, true) {
                io.watch_peers(interface.packets.handle(), interface.tag(kind::FRAMES));
            }
        }
    }

    /// The name of a session's interface, and the address of its unit.
    pub(super) fn place_of(&self, opening_number: u32, session: Key) -> Option<(String, Address)> {
        let mut all = self.interfaces.iter().chain(&self.retired);
        let interface = all.find(|interface| interface.opening_number == opening_number)?;
        let mut sessions = interface.sessions.iter();
        sessions
            .find(|(_, key)| **key == session)
            .map(|((_, address), _)| (interface.name().to_owned(), *address))
    }

    /// An opening of an interface, by its number.
    fn interface_by_opening(&mut self, number: u32) -> Option<&mut Interface<L>> {
        let mut all = self.interfaces.iter_mut().chain(&mut self.retired);
        all.find(|interface| interface.opening_number == number)
    }
}

/// Commands that an initiator may have in flight: the buffer count of AoEr11.
const BUFFERS: u16 = 64;
/// Frame slots that a core has on one interface, in each direction.
const SLOTS_OF_INTERFACE: u32 = 256;
/// Those of them that no session may hold.
const FRAMES_FOR_ALL: u32 = 32;
/// Those in which WRITEs may wait for the limit of their LUN, besides one for each session: the rest are for
/// LUNs without a limit, or below it.
const THROTTLED_FRAMES_MAX: usize = 64;
/// The firmware version in answers to config queries.
const FIRMWARE: u16 = 1;

/// Sessions on one interface of a core. Beyond that, the one that has been silent longest is ended, unless
/// its writes may still be retransmitted: initiators with ever new addresses do not evict the names of
/// others.
const SESSIONS_MAX: usize = 256;

/// What to open of an interface: one socket for each core that serves it.
pub(crate) fn setup(interface: &AoeInterface) -> Setup<'_> {
    Setup {
        interface: &interface.name,
        protocol: ETHERTYPE,
        filter: &[REQUEST],
        spread: &SESSION,
        mtu_min: MTU_MIN,
        header: HEADERS_BYTES,
        frames: SLOTS_OF_INTERFACE,
        slots: SLOTS_OF_INTERFACE,
    }
}

/// The frames that targets accept: requests, not responses.
const REQUEST: Condition = Condition { field: FLAGS, mask: Header::RESPONSE as u32, value: 0 };
/// What identifies a session.
const SESSION: [Field; 4] = [SOURCE[0], SOURCE[1], SHELF, SLOT];
#[cfg(test)]
mod tests;
