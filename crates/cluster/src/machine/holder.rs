//! What the gateway that has claimed the unit writes into the object.

use super::{BEATS, Executing, Machine, STAYS, Stage};
use crate::action::{Access, Action, Me};
use crate::record::{By, Record, Reply, Request};
use std::time::Duration;

/// Intervals for which the medium may not answer the only gateway that has access to it: by then the cluster should have
/// noticed OSDs that are down, on which others would have to wait as well.
const HANGS: u32 = 2 * BEATS;

/// How often the time doubles for which it keeps a unit whose medium does not answer it.
const YIELDED_MAX: u32 = 6;

impl Machine {
    /// As the holder: writes state to be saved, and a sign of life.
    pub(super) fn hold(&mut self, now: Duration) -> Option<Action> {
        let hangs = self.hangs(now);
        let other = self.record().next.as_ref().filter(|next| next.gateway != self.me.gateway);
        let stays = now.saturating_sub(self.active_since) < self.interval.saturating_mul(STAYS);
        let (refuses, leaves) = match other.map(|next| next.by) {
            Some(By::Initiator) if stays => (true, false),
            Some(_) => (false, true),
            None => (false, false),
        };
        if self.stage == Stage::Active && (leaves || self.withdrawn) {
            return self.leave(now);
        }
        if self.stage == Stage::Settling && !self.is_stale && self.is_settled() && self.is_safe() {
            self.activate();
            return self.out.pop_front();
        }
        if self.stage == Stage::Active && self.executing.is_none() && !self.is_stale {
            let mut requests = self.record().requests.iter();
            let request = requests.find(|(gateway, _)| **gateway != self.me.gateway);
            if let Some((gateway, Request { id, body })) = request {
                let (gateway, id, body) = (gateway.clone(), *id, body.clone());
                self.executing = Some(Executing { gateway, id, applied: None });
                return Some(Action::Execute { body });
            }
        }
        let is_applied = self.executing.as_ref().is_some_and(|executing| executing.applied.is_some());
        let Me { gateway, ports, .. } = &self.me;
        let is_new = self.record().gateways.get(gateway) != Some(ports) && self.clash().is_none();
        let saves = self.save.as_ref().is_some_and(|save| save.written.is_none());
        let waits = self.has_waited(now);
        let is_news = waits != self.record().is_waiting;
        let is_due = self.is_stale || saves || is_applied || refuses || is_new || is_news || now >= self.due;
        let mut record = self.record().clone();
        record.is_waiting = waits;
        record.next = record.next.filter(|_| !refuses);
        if is_new {
            record.gateways.insert(gateway.clone(), ports.clone());
        }
        if self.access == Access::All && now >= self.due && !self.is_stale && !self.share.has_read {
            // Others have most probably replaced it since.
            self.share.has_read = true;
            return self.call(Action::Read);
        }
        if !self.is_stale && (hangs || self.should_leave() || self.is_left_behind(now)) {
            if hangs {
                self.yields = true;
                self.not_before = now.saturating_add(self.takeover());
            }
            record.shut_out_client(&self.me.client);
            return self.replace(record);
        }
        match self.access {
            Access::All if self.govern(now, &mut record) || is_due => self.replace_as_holder(record),
            Access::All => self.oversee(now),
            Access::One if self.fades(now, &mut record) || is_due => self.replace_as_holder(record),
            Access::One => None,
        }
    }

    /// As the only gateway with access to the medium: shows that all OSDs have the maps with fences. True: since now.
    fn fades(&self, now: Duration, record: &mut Record) -> bool {
        let serves = matches!(self.stage, Stage::Active | Stage::Leaving);
        if !serves || self.share.left_change {
            return false;
        }
        let (complete, shown) = (self.complete_fences(now), record.fading.len());
        record.fading.retain(|client| !complete.contains(client));
        let is_over = record.fading.is_empty() && self.share.has_only_fenced(&complete);
        is_over && (self.apply_replies(record) || shown > 0)
    }

    /// Whatever earlier holders have executed is in force, as they can no longer affect the medium. True: it was not shown.
    pub(super) fn apply_replies(&self, record: &mut Record) -> bool {
        let own = self.executing.as_ref().map(|executing| (&executing.gateway, executing.id));
        let is_open = |(name, one): &(&String, &mut Reply)| !one.is_applied && own != Some((*name, one.id));
        record.replies.iter_mut().filter(is_open).map(|(_, reply)| reply.is_applied = true).count() > 0
    }

    /// Whether it alone has access to the medium, which has not answered for so long that another gateway should try.
    fn hangs(&mut self, now: Duration) -> bool {
        let hangs = self.share.is_stuck && self.stage == Stage::Active && self.access == Access::One;
        if !hangs {
            self.share.stuck_since = None;
            return false;
        }
        let since = *self.share.stuck_since.get_or_insert(now);
        // While nobody takes it over, each attempt is worth less.
        let stays = self.interval.saturating_mul(STAYS << self.yielded.min(YIELDED_MAX));
        let is_other = |name: &String| *name != self.me.gateway;
        now.saturating_sub(self.active_since) >= stays
            && now.saturating_sub(since) >= self.interval.saturating_mul(HANGS)
            && self.record().members.keys().any(is_other)
    }

    /// It has claimed the unit, and acquires the right to write. Meanwhile it shows that it is alive, but no longer
    /// than another one may take to take over: that one may reach the monitors.
    pub(super) fn promote(&mut self, now: Duration) -> Option<Action> {
        if self.working.is_none() {
            let fence = self.record().fence.clone();
            self.share.fencing.clone_from(&fence);
            self.share.catching = self.record().fences;
            return self.work(now, Action::Promote { fence });
        }
        if now.saturating_sub(self.claimed_at) < self.takeover() {
            return self.hold(now);
        }
        match self.access {
            // It may be about to get the lock: whoever claims the unit fences it.
            Access::One if !self.withdrawn => None,
            Access::One | Access::All => {
                self.stage = Stage::Releasing;
                self.next(now)
            }
        }
    }

    /// It is withdrawn before it has become active.
    pub(super) fn abandon_claim(&mut self) {
        match self.access {
            Access::All if self.share.serves => self.stage = Stage::Releasing,
            // Its call may get the lock, which is to be released then.
            Access::One if self.working.is_some() => {}
            Access::One | Access::All => self.demote(),
        }
    }

    /// Nothing of its home can reach the medium any more. What a call that is outstanding would still get is of no use
    /// without a claim, unless it is the lock.
    pub(super) fn demote(&mut self) {
        let is_unlocked = self.access == Access::All && self.working.is_some();
        self.stage = if is_unlocked { Stage::Releasing } else { Stage::Demoting };
    }

    /// Whether, with several gateways, others should fence in its place.
    fn has_waited(&self, now: Duration) -> bool {
        let long = self.interval.saturating_mul(2);
        self.access == Access::All && self.unmet.is_some_and(|since| now.saturating_sub(since) >= long)
    }

    pub(super) fn leave(&mut self, now: Duration) -> Option<Action> {
        (self.stage, self.leaving_since) = (Stage::Leaving, now);
        self.apply(Action::Deactivate { lost: false });
        self.out.pop_front()
    }

    /// Going to standby, which the home does after the change that it is about to make: if that ends others' commands, it
    /// would wait until all OSDs have the maps with fences. The next holder waits for them, and answers.
    pub(super) fn leaves_change_behind(&mut self) -> bool {
        let would_wait = self.stage == Stage::Leaving && self.access == Access::One;
        if !would_wait || self.share.has_completed_fences() || self.save.take_if(|save| save.ends).is_none() {
            return false;
        }
        (self.executing, self.share.left_change) = (None, true);
        self.out.push_back(Action::Saved(false));
        true
    }

    /// Replaces the object while it is this gateway's, with state to be saved.
    pub(super) fn replace_as_holder(&mut self, mut record: Record) -> Option<Action> {
        if self.is_stale {
            return self.call(Action::Read);
        }
        let is_withdrawn = |executing: &Executing| !record.has(&executing.gateway, executing.id);
        if self.executing.as_ref().is_some_and(is_withdrawn) {
            self.executing = self.executing.take().filter(|executing| executing.applied.is_none());
            if self.save.as_ref().is_some_and(|save| save.outcome.is_some()) {
                self.save = None;
                return Some(Action::Saved(false));
            }
        }
        record.beat = record.beat.wrapping_add(1);
        let (mut saved, mut applied) = (false, false);
        if let Some(save) = self.save.as_ref().filter(|save| save.written.is_none()) {
            let is_new = self.access == Access::All && record.saved != save.state;
            record.change = record.change.saturating_add(u64::from(is_new));
            record.saved.clone_from(&save.state);
            saved = true;
        }
        if let Some(Executing { gateway, id, applied: outcome }) = &self.executing {
            applied = outcome.is_some();
            let saved = self.save.as_ref().and_then(|save| save.outcome.as_ref());
            if let Some(outcome) = outcome.as_ref().or(saved) {
                record.reply(gateway, Reply { id: *id, outcome: outcome.clone(), is_applied: applied });
            }
        }
        let action = self.replace(record);
        self.carries = (saved, applied);
        action
    }

    /// Others are fenced: it still is the same claim, or there is a later one.
    pub(super) fn confirm(&mut self) -> Option<Action> {
        let mut confirmed = self.record().clone();
        if self.access == Access::One {
            if confirmed.fence.iter().any(|client| !self.share.fencing.contains(client)) {
                // Somebody has asked for another one to be fenced since.
                self.stage = Stage::Promoting;
                return None;
            }
            let fenced = std::mem::take(&mut confirmed.fence);
            confirmed.fading.retain(|client| !fenced.contains(client));
            confirmed.fading.extend(fenced);
            if confirmed.fading.is_empty() {
                self.apply_replies(&mut confirmed);
            }
        } else {
            self.leave_those_that_serve(&mut confirmed);
        }
        let action = self.replace_as_holder(confirmed);
        self.completes = Some(Stage::Confirming);
        action
    }

    /// It has left, or could not become active.
    pub(super) fn release(&mut self) -> Option<Action> {
        let mut free = self.record().clone();
        free.next = free.next.filter(|next| next.gateway != self.me.gateway);
        self.release_entry(&mut free);
        let action = if self.is_holder() {
            if self.access == Access::One && self.working.is_some() {
                // Its call may yet get the lock, after this process has ended.
                free.shut_out_client(&self.me.client);
            }
            free.active = None;
            self.replace_as_holder(free)
        } else if self.is_stale {
            self.call(Action::Read)
        } else {
            // A claim whose outcome was unknown may have been written since.
            free.active.take_if(|holder| holder.client == self.me.client);
            self.replace(free)
        };
        self.completes = Some(Stage::Releasing);
        action
    }
}
