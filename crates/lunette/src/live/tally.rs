//! Counters of the whole daemon: sessions, refused logins, and reloads. Cores count here as well, without
//! waiting.

use engine::{Event, Refusal};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The transports of sessions, as in [`Event::SessionBegun`].
const TRANSPORTS: [&str; 4] = ["iSCSI", "iSER", "SRP", "AoE"];

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    begun: [AtomicU64; TRANSPORTS.len()],
    ended: [AtomicU64; TRANSPORTS.len()],
    refused: [AtomicU64; Refusal::ALL.len()],
    reloads_done: AtomicU64,
    reloads_refused: AtomicU64,
    last_reload_refused: AtomicBool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Reading {
    /// Present sessions, by transport.
    pub(super) sessions: Vec<(&'static str, u64)>,
    /// Refused logins, by reason.
    pub(super) refused: Vec<(&'static str, u64)>,
    /// Reloads, by outcome.
    pub(super) reloads: Vec<(&'static str, u64)>,
    /// Whether the last one succeeded, or there was none.
    pub(super) last_reload_done: bool,
}

fn place(transport: &str) -> Option<usize> {
    // "iSER, device" is iSER.
    TRANSPORTS.iter().position(|other| transport.split(',').next() == Some(*other))
}

fn count(counts: &[AtomicU64], place: Option<usize>) {
    if let Some(count) = place.and_then(|place| counts.get(place)) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Tally {
    /// Counts an event. Returns whether it is only counted.
    pub(crate) fn take(&self, event: &Event) -> bool {
        match event {
            Event::SessionBegun { transport, .. } => count(&self.begun, place(transport)),
            Event::SessionEnded { transport, .. } => count(&self.ended, place(transport)),
            Event::LoginRefused { why } => {
                count(&self.refused, Refusal::ALL.iter().position(|other| other == why));
                return true;
            }
            Event::StoreLost { .. }
            | Event::StoreBack { .. }
            | Event::NotSaved { .. }
            | Event::Preempted { .. }
            | Event::ThresholdReached { .. }
            | Event::Errors { .. } => {}
        }
        false
    }

    /// Counts a reload.
    pub(super) fn reloaded(&self, is_done: bool) {
        let count = if is_done { &self.reloads_done } else { &self.reloads_refused };
        count.fetch_add(1, Ordering::Relaxed);
        self.last_reload_refused.store(!is_done, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Reading {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        // Ends first, so that a session that begins and ends meanwhile is not missing.
        let ended = self.ended.each_ref().map(get);
        let sessions = self.begun.iter().zip(ended).map(|(begun, ended)| get(begun).saturating_sub(ended));
        let refused = Refusal::ALL.iter().zip(&self.refused).map(|(why, count)| (why.name(), get(count)));
        Reading {
            sessions: TRANSPORTS.into_iter().zip(sessions).collect(),
            refused: refused.collect(),
            reloads: vec![("done", get(&self.reloads_done)), ("refused", get(&self.reloads_refused))],
            last_reload_done: !self.last_reload_refused.load(Ordering::Relaxed),
        }
    }
}
