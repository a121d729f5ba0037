//! Interfaces that are added, removed, or export other units, while AoE is served.
//!
//! A new interface is known to all cores before its first core gets the sockets, which it hands out as it
//! does for one that is reopened ([`super::reopen`]). A removed one is dropped by each core as it takes the
//! new snapshot; messages about it that are still in transit have no effect, as its number is never reused.

use super::{Ethernet, Interface, InterfaceWatch, State};
use crate::core::Core;
use crate::served::{Segment, Served};
use crate::slots::Key;
use proto::time::Time;
use reactor::io::Io;
use reactor::packet::Line;
use std::sync::Arc;

/// Watches on the interfaces whose first core this is.
pub(super) fn watches(
    served: &Served,
    core: usize,
    state: impl Fn(&Segment) -> State,
) -> Vec<InterfaceWatch> {
    let here = served.segments.iter().filter(|segment| segment.interface.cores.first() == Some(&core));
    let watch = |segment: &Arc<Segment>| InterfaceWatch {
        number: segment.number,
        state: state(segment),
        check_at: Time(0),
        reason: None,
    };
    here.map(watch).collect()
}

impl<L: Line> Ethernet<L> {
    /// Whether the new snapshot still exports the unit of a session on this opening.
    pub(in crate::core) fn still_exports(
        &self,
        served: &Served,
        opening_number: u32,
        session: Key,
        unit: u32,
    ) -> bool {
        let mut all = self.interfaces.iter().chain(&self.retired);
        let Some(interface) = all.find(|interface| interface.opening_number == opening_number) else {
            return false;
        };
        let segment = served.segment(interface.segment.number);
        let mut sessions = interface.sessions.iter();
        let place = sessions.find(|(_, key)| **key == session).map(|(place, _)| place);
        segment.zip(place).is_some_and(|(segment, (from, address))| {
            segment.interface.admits(*from) && served.exports.get(address) == Some(&unit)
        })
    }

    /// Watches exactly the interfaces that are served now.
    fn watch_served(&mut self, served: &Served, core: usize) {
        let mut before = std::mem::take(&mut self.interface_watches);
        for watch in watches(served, core, |_| State::Opening) {
            let known = before.iter().position(|known| known.number == watch.number);
            self.interface_watches.push(known.map_or(watch, |known| before.swap_remove(known)));
        }
    }
}

impl<I: Io> Core<I> {
    /// Interfaces were changed. Returns the sessions that have to end for that.
    pub(in crate::core) fn change_interfaces(&mut self) -> Vec<Key> {
        let served = self.served.clone();
        self.ethernet.watch_served(&served, self.shared.config.cores[self.me]);
        let number = |interface: &Interface<I::Line>| interface.segment.number;
        let waiting = self.ethernet.waiting_for_slots.iter().map(|(number, _)| *number);
        let all = self.ethernet.interfaces.iter().map(number).chain(waiting);
        let gone: Vec<usize> = all.filter(|number| served.segment(*number).is_none()).collect();
        let mut ended = Vec::new();
        for number in gone {
            ended.extend(self.retire_interface(number, "AoE is no longer served on its network interface"));
        }
        for interface in &mut self.ethernet.interfaces {
            if let Some(segment) = served.segment(number(interface)) {
                interface.segment = segment.clone();
            }
        }
        let sessions = |interface: &Interface<I::Line>| {
            let who = interface.sessions.iter();
            let out = who.filter(|((from, _), _)| !interface.segment.interface.admits(*from));
            out.map(|(_, key)| *key).collect::<Vec<_>>()
        };
        for key in self.ethernet.interfaces.iter().flat_map(sessions).collect::<Vec<_>>() {
            self.end_session(key, "its address is no longer served on its network interface");
            ended.push(key);
        }
        self.settle_retired();
        ended
    }
}
