//! The standby gateway's side of requests that the active gateway executes.

use super::{Machine, Stage};
use crate::action::Outcome;
use crate::record::{Record, Request};
use std::time::Duration;

/// To fence a gateway, and catch up with that, beyond what it takes to miss it and until all OSDs know of it.
const FENCES: Duration = Duration::from_secs(3);

/// A request of this gateway.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) id: u64,
    body: Vec<u8>,
    /// It is withdrawn then.
    until: Duration,
    /// The object may contain it, or may yet get it.
    pub(super) is_sent: bool,
    /// Nobody waits for its reply, only for its end.
    is_recalled: bool,
}

impl Machine {
    /// The home, in standby, requests that the active gateway execute this. [`Action::Answer`] answers,
    /// within three times the takeover time, or twice the time until a change is complete that waits for a fence. Request
    /// numbers are never reused.
    pub fn ask(&mut self, now: Duration, id: u64, body: Vec<u8>) {
        // The active gateway may be waiting for another one to be fenced, or for OSDs to learn of that.
        let fences = self.takeover().saturating_add(self.maps()).saturating_add(FENCES);
        let until = now.saturating_add(fences.max(self.takeover().saturating_mul(2)));
        self.asks.push_back(Ask { id, body, until, is_sent: false, is_recalled: false });
        self.is_stale = true;
    }

    /// Nobody waits for this request any more: it is not executed unless that may already have begun. True: it is
    /// not, and there is no answer; otherwise [`Action::Answer`] comes within the takeover time.
    pub fn recall(&mut self, now: Duration, id: u64) -> bool {
        let before = self.asks.len();
        self.asks.retain(|ask| ask.id != id || ask.is_sent);
        if let Some(ask) = self.asks.iter_mut().find(|ask| ask.id == id) {
            (ask.until, ask.is_recalled) = (ask.until.min(now), true);
            self.is_stale = true;
        }
        self.asks.len() < before
    }

    /// In standby: puts the first request of this gateway into the object, and removes one that nobody waits
    /// for. True: one is withdrawn, which has to be confirmed, as the call that sent it may yet end.
    pub(super) fn request(&mut self, now: Duration, record: &mut Record) -> bool {
        let gateway = &self.me.gateway;
        let Some(ask) = self.asks.front_mut() else {
            record.requests.remove(gateway);
            return false;
        };
        if record.has_reply(gateway, ask.id) {
            return false;
        }
        if now >= ask.until || self.withdrawn {
            record.requests.remove(gateway);
            return ask.is_sent;
        }
        ask.is_sent = true;
        record.requests.insert(gateway.clone(), Request { id: ask.id, body: ask.body.clone() });
        false
    }

    /// The outcome of a request of this gateway, once it is known, or once nobody may wait for it any longer.
    pub(super) fn outcome(&self, now: Duration, ask: &Ask) -> Option<Outcome> {
        let reply = self.record().replies.get(&self.me.gateway).filter(|reply| reply.id == ask.id);
        // One that serves has applied whatever counts as applied.
        let is_serving = self.stage == Stage::Serving;
        let is_settled =
            is_serving || (matches!(self.stage, Stage::Standby | Stage::Active) && self.applying == 0);
        // It may be executed just before it is withdrawn.
        let applies = if ask.is_recalled { self.takeover() } else { self.takeover().max(self.maps()) };
        let is_over = now >= ask.until || self.withdrawn || self.is_clashing;
        match reply {
            // The home may be waiting for the end of a recalled one before it applies anything else.
            Some(reply) if reply.is_applied && (is_settled || ask.is_recalled) => {
                Some(Outcome::Executed(reply.outcome.clone()))
            }
            // For the same reason its change may not be in force here, and so not count as applied.
            Some(reply) if is_serving && ask.is_recalled => Some(Outcome::Executed(reply.outcome.clone())),
            // This gateway's claim dropped it.
            None if self.stage == Stage::Active => Some(Outcome::NotExecuted),
            None if !ask.is_sent && is_over => Some(Outcome::NotExecuted),
            _ if now >= ask.until.saturating_add(applies) => Some(Outcome::Unknown),
            _ => None,
        }
    }
}
