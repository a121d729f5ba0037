//! What a gateway that is not active writes into the object: who it is, and claims.

use super::{Machine, Stage};
use crate::action::{Access, Action};
use crate::record::{By, Holder, Member, Next, Record};
use std::time::Duration;

impl Machine {
    /// The record to write, if any.
    pub(super) fn decide(&mut self, now: Duration) -> Option<Record> {
        let before = self.seen.as_ref()?.record.clone();
        let mut record = before.clone();
        if self.should_leave() {
            record.shut_out_client(&self.me.client);
            return Some(record);
        }
        let Record { active, next, .. } = &before;
        let (gateway, member) = (&self.me.gateway, &self.me.member);
        let clash = self.clash().or_else(|| self.namesake());
        let other_disk = before.other_disk(gateway, &member.disk);
        self.is_clashing = clash.is_some() || other_disk.is_some();
        if clash.is_none() {
            record.members.insert(gateway.clone(), member.clone());
        }
        if self.is_clashing {
            self.fault = clash.or(other_disk);
            self.enter(now, &mut record, false);
            // Its entry shows others when they have the same disk.
            return (record != before).then_some(record);
        }
        let is_retracted = self.request(now, &mut record);
        let me = &self.me;
        record.gateways.insert(me.gateway.clone(), me.ports.clone());
        if self.may_claim(now) {
            self.claim(&mut record);
            return Some(record);
        }
        if active.is_some() {
            let is_mine = next.as_ref().is_some_and(|next| next.gateway == me.gateway);
            let other = next.as_ref().filter(|_| !is_mine);
            let yields = (self.is_next && !is_mine) || other.is_some_and(|next| next.by == By::Person);
            // The holder has declined an initiator's request, or a person has requested something else.
            self.wanted = self.wanted.filter(|by| *by == By::Person || !yields);
            let wanted = self.wanted.map(|by| Next { gateway: me.gateway.clone(), by });
            record.next = wanted.or(other.cloned());
        }
        if matches!(self.stage, Stage::CatchingUp | Stage::Serving) {
            self.complete(now, &mut record);
        }
        let is_new = record != before || is_retracted;
        self.enter(now, &mut record, is_new);
        (record != before || is_retracted).then_some(record)
    }

    /// Whether nobody holds the unit, or whoever does is dead.
    fn may_claim(&self, now: Duration) -> bool {
        let Record { epoch, active, next, .. } = self.record();
        let has_lapsed = self.has_lapsed();
        let is_ours = next.as_ref().is_none_or(|next| next.gateway == self.me.gateway);
        let is_free = active.is_none() && (is_ours || has_lapsed);
        let is_left = active.as_ref().is_some_and(|holder| Some(&holder.client) == self.left.as_ref());
        let is_returned = self.has_left && active.is_none() && *epoch > self.epoch;
        let is_able =
            !self.withdrawn && matches!(self.stage, Stage::Standby | Stage::CatchingUp | Stage::Serving);
        is_able && (now >= self.not_before || is_returned) && (is_free || has_lapsed || is_left)
    }

    fn claim(&self, record: &mut Record) {
        let me = &self.me;
        record.epoch = record.epoch.saturating_add(1);
        record.beat = record.beat.wrapping_add(1);
        if let Some(holder) = record.active.clone() {
            record.shut_out_client(&holder.client);
        }
        match self.access {
            // Those that serve have been configured to do so together.
            Access::One => record.serving.clone().keys().for_each(|name| record.shut_out(name)),
            Access::All => {
                record.fence.append(&mut record.fading);
                self.shut_out_dead(record);
                if self.stage == Stage::Standby {
                    // An earlier process of this gateway may have requests on their way.
                    record.shut_out(&me.gateway);
                }
            }
        }
        record.active = Some(Holder { gateway: me.gateway.clone(), client: me.client.clone() });
        record.next = None;
        record.disk = Some(me.member.disk.clone());
        record.requests.clear();
    }

    /// What its ports have in common with another gateway's.
    pub(super) fn clash(&self) -> Option<String> {
        self.record().clash(&self.me.gateway, &self.me.ports)
    }

    /// Another daemon with this gateway's name, which has overwritten the entry of this process.
    pub(super) fn namesake(&self) -> Option<String> {
        let name = &self.me.gateway;
        let member = self.record().members.get(name);
        let is_other = self.is_listed && member.is_some() && !self.is_own(member);
        is_other.then(|| {
            format!(
                "another daemon is gateway {name}, too; give each a different name (`gateway` in \
        [cluster])"
            )
        })
    }

    pub(super) fn is_own(&self, member: Option<&Member>) -> bool {
        member.is_some_and(|member| member.process == self.me.member.process)
    }

    /// Passes the state saved by another gateway to the home.
    pub(super) fn adopt(&mut self) {
        let saved = &self.record().saved;
        if self.adopted.as_ref() != Some(saved) {
            let saved = saved.clone();
            self.adopted = Some(saved.clone());
            self.apply(Action::Adopt { saved });
        }
    }
}
