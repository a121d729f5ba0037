//! What is logged of frames that did not become commands.

use super::BUFFERS;
use crate::core::Core;
use proto::aoe::target::{Counts, RequestInfo, Target};
use proto::time::Time;
use reactor::io::Io;
use reactor::limited;
use std::time::Duration;
use tracing::Level;
use wire::aoe::{Address, Mac};

/// How often that is logged.
const COUNTS_EVERY: Duration = Duration::from_secs(10);

impl<I: Io> Core<I> {
    /// Logs, when it is time, frames that did not become commands.
    pub(in crate::core) fn report_counts(&mut self, now: Time) {
        for interface in &mut self.ethernet.interfaces {
            if now.since(interface.reported_at) < COUNTS_EVERY {
                continue;
            }
            interface.reported_at = now;
            let name = &interface.segment.interface.name;
            let dropped = interface.packets.dropped();
            let frames = dropped.saturating_sub(std::mem::replace(&mut interface.dropped, dropped));
            if frames > 0 {
                limited!(
                    "dropped frames", Level::WARN, interface = %name, frames,
                    "AoE: frames were dropped unread: the core is overloaded, or all its slots wait for slow stores"
                );
            }
            for ((from, address), key) in &interface.sessions {
                let session = self.connections.get_mut(*key).and_then(|conn| conn.machine.aoe_mut());
                report(session.map(Target::take_counts).unwrap_or_default(), *from, *address, name);
            }
        }
    }

    /// A request was dropped because commands of an earlier session of its initiator with the unit, or of
    /// this one, have not ended: the earlier session counts it.
    pub(super) fn count_dropped(&mut self, index: usize, info: &RequestInfo) {
        let name = self.ethernet.interfaces[index].name();
        let interfaces = self
            .ethernet
            .interfaces
            .iter()
            .chain(&self.ethernet.retired)
            .filter(|interface| interface.name() == name);
        let key = interfaces.filter_map(|interface| interface.sessions.get(&(info.from, info.to))).next();
        let conn = key.and_then(|key| self.connections.get_mut(*key));
        if let Some(target) = conn.and_then(|conn| conn.machine.aoe_mut()) {
            target.count_crowded();
        }
    }
}

/// Logs what happened to an initiator's requests that did not become commands.
pub(super) fn report(counts: Counts, from: Mac, address: Address, interface: &str) {
    let Counts { refused, copies, crowded } = counts;
    if crowded > 0 {
        limited!(
            "dropped requests", Level::WARN, initiator = %from, interface, %address, requests = crowded,
            "AoE: requests were dropped, and must be retransmitted: the unit's store is slow (or still has aborted requests), \
             or the initiator has more in flight than the buffer count of {BUFFERS}"
        );
    }
    if refused > 0 {
        limited!(
            "invalid requests", Level::WARN, initiator = %from, interface, %address, requests = refused,
            "AoE: invalid requests; the lines `refused` of its session say why"
        );
    }
    if copies > 0 {
        limited!(
            "duplicate requests", Level::INFO, initiator = %from, interface, %address, requests = copies,
            "AoE: duplicate requests: frames were lost, or answers took longer than the initiator waits"
        );
    }
}
