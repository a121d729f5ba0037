//! Gateways that all serve the medium, [`Access::All`]: what one of them does beside deciding who is active.
//!
//! A gateway is in the object, as the active one or among those that serve, before it accesses the medium, and until
//! nothing that it has sent there can take effect any more: it has ended, or the gateway's client is fenced, and all
//! others have caught up with that. A change of state is complete when it is in force at all that are in the object.

use super::awaits::Await;
use super::watch::Watch;
use super::{BEATS, Machine, Stage};
use crate::action::{Access, Action, Role};
use crate::record::{Record, Serving};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// No gateway can be configured to wait for OSDs longer than that, whatever the object says.
const MAPS_MAX: Duration = Duration::from_secs(120);

/// What a gateway knows of the others, and they of it.
/// Its fields are what begins anew, together, with a new client.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// Its home may have access to the medium, or requests of it on their way there.
    pub(super) serves: bool,
    /// The change that is in force here, and how many fences its requests carry.
    applied: u64,
    pub(super) fences: u64,
    /// The change that the home is applying, and the fences that the client is catching up with.
    pub(super) applying: Option<u64>,
    pub(super) catching: u64,
    /// How many fences its client has caught up with since it is in the object.
    carried: Option<u64>,
    /// The clients in the last call that fences, and those that were fenced, and when, while the object does not show
    /// that.
    pub(super) fencing: Vec<String>,
    fenced: BTreeMap<String, Duration>,
    /// The object may list this gateway, although that is not known.
    pub(super) may_be_among: bool,
    /// The object was read since this gateway's sign of life became due.
    pub(super) has_read: bool,
    peers: BTreeMap<String, Peer>,
    holder: Option<Watch<(u64, u64)>>,
    /// When the last call began.
    pub(super) called: Duration,
    pub(super) is_stuck: bool,
    /// Since when, if it is active, and alone with the medium.
    pub(super) stuck_since: Option<Duration>,
    /// How many fences there were when the object first showed that this client is fenced.
    gone: Option<u64>,
    /// The object has shown that this client is to be fenced.
    pub(super) was_to_be_fenced: bool,
    /// As the holder: what earlier ones have decided.
    pub(super) inherited: Await,
    /// The object may have a change that its home has undone, since it goes to standby: it saves nothing over that, and
    /// does not show it as applied.
    pub(super) left_change: bool,
    /// When the object was last seen.
    looked: Option<Duration>,
    /// Before it serves: clients whose gateways have yet to show that they are alive, or to be fenced.
    doubtful: BTreeSet<String>,
    /// What is being written removes this gateway from the object, with nothing on its way.
    retires: bool,
}

/// Another gateway that serves: its signs of life, and what it has applied while it has not applied everything.
#[derive(Debug)]
struct Peer {
    beat: Watch<(String, u64)>,
    debt: Watch<Option<(u64, u64)>>,
    /// The monitors have answered since this debt was overdue.
    is_inexcusable: bool,
}

impl Share {
    /// Another gateway will complete them.
    pub(super) fn give_up_fences(&mut self) {
        self.fenced.clear();
    }

    /// Whether the object shows that those of this gateway are complete.
    pub(super) fn has_completed_fences(&self) -> bool {
        self.fenced.is_empty()
    }

    pub(super) fn has_only_fenced(&self, clients: &[String]) -> bool {
        self.fenced.keys().all(|client| clients.contains(client))
    }
}

impl Machine {
    /// [`Action::CatchUp`] has returned.
    pub fn caught_up(&mut self, now: Duration, outcome: Result<(), String>) {
        self.working = None;
        match outcome {
            Ok(()) => {
                self.share.fences = self.share.fences.max(self.share.catching);
                self.share.carried = Some(self.share.catching);
                (self.refused, self.unmet) = (None, None);
                for peer in self.share.peers.values_mut().filter(|peer| peer.debt.has_lapsed()) {
                    peer.is_inexcusable = true;
                    peer.debt.look_again(now);
                }
                self.settle();
            }
            Err(why) => self.work_failed(now, why),
        }
    }

    /// The monitors or the medium do not answer: it is tried again, while the object is read and written.
    fn work_failed(&mut self, now: Duration, why: String) {
        self.refused = Some(why);
        self.work_pause = now.saturating_add(self.interval);
    }

    /// [`Action::Fence`] has returned.
    pub fn fenced_others(&mut self, now: Duration, outcome: Result<(), String>) {
        self.working = None;
        match outcome {
            Ok(()) => {
                (self.refused, self.unmet) = (None, None);
                self.has_fenced(now);
            }
            Err(why) => self.work_failed(now, why),
        }
    }

    pub(super) fn has_fenced(&mut self, now: Duration) {
        let fencing = std::mem::take(&mut self.share.fencing);
        fencing.into_iter().for_each(|client| _ = self.share.fenced.entry(client).or_insert(now));
    }

    /// When a fence is complete that is not.
    pub(super) fn completes_at(&self) -> Option<Duration> {
        let maps = self.maps();
        self.share.fenced.values().min().map(|fenced| fenced.saturating_add(maps))
    }

    /// By then every OSD has the map with a fence, as far as any gateway knows. Until then another client that is fenced,
    /// and does not know it, could write there, and be overwritten by the first.
    pub(super) fn maps(&self) -> Duration {
        let theirs = self.record().members.values().map(|member| member.osd_map_ms);
        let longest = theirs.fold(self.me.member.osd_map_ms, u64::max);
        Duration::from_millis(longest).min(MAPS_MAX)
    }

    /// Shows fences that are complete.
    pub(super) fn complete(&self, now: Duration, record: &mut Record) {
        record.fenced(&self.complete_fences(now));
    }

    /// The clients whose fences are complete.
    pub(super) fn complete_fences(&self, now: Duration) -> Vec<String> {
        let maps = self.maps();
        let is_complete = |(_, fenced): &(&String, &Duration)| fenced.saturating_add(maps) <= now;
        self.share.fenced.iter().filter(is_complete).map(|(client, _)| client.clone()).collect()
    }

    /// Whether requests of this gateway to the medium make no progress. It may be called at any time.
    ///
    /// The only gateway with access to it lets another one try if that lasts. Where all have access, initiators may not
    /// know of their end before they have ended or this gateway is fenced: they could write newer data by another one.
    /// So if there is another one, it leaves the unit to that, in order to be fenced.
    pub fn medium_stuck(&mut self, is_stuck: bool) {
        self.is_stale |= self.access == Access::All && is_stuck != self.share.is_stuck;
        self.share.is_stuck = is_stuck;
    }

    /// It should, and can, be fenced by others.
    pub(super) fn should_leave(&self) -> bool {
        let record = self.record();
        let is_other = |name: &str| name != self.me.gateway;
        let holder = record.active.as_ref().is_some_and(|holder| is_other(&holder.gateway));
        let holds = holder && self.seen.as_ref().is_some_and(|seen| seen.watch.is_lively());
        let mut peers = self.share.peers.iter();
        let serves = peers.any(|(name, peer)| is_other(name) && peer.beat.is_lively());
        let serves_now = matches!(
            self.stage,
            Stage::Serving | Stage::Promoting | Stage::Settling | Stage::Active | Stage::Leaving
        );
        self.share.is_stuck && serves_now && self.share.serves && (holds || serves)
    }

    /// As the holder: its client has not caught up with a fence in time, and another one's has. Until that one
    /// decides, no change is complete.
    pub(super) fn is_left_behind(&self, now: Duration) -> bool {
        let (record, own) = (self.record(), &self.me.gateway);
        let holds = matches!(self.stage, Stage::Settling | Stage::Active) && self.access == Access::All;
        let waits = self.unmet.is_some_and(|since| now.saturating_sub(since) >= self.takeover());
        let carries = |(name, peer): (&String, &Peer)| {
            let carries = record.serving.get(name).is_some_and(|one| one.fences >= record.fences);
            name != own && peer.beat.is_lively() && carries
        };
        holds && waits && !self.carries_fences() && self.share.peers.iter().any(carries)
    }

    /// Whether this gateway is among those that serve, as last seen.
    pub(super) fn is_among(&self) -> bool {
        self.record().serving.get(&self.me.gateway).is_some_and(|one| one.client == self.me.client)
    }

    /// Whether nothing that an earlier process of this gateway has sent can take effect any more. Before that
    /// initiators, which log in here again, must not go to another gateway.
    pub(super) fn is_all_that_is_left(&self) -> bool {
        let (record, gateway) = (self.record(), &self.me.gateway);
        let is_active = record.active.as_ref().is_some_and(|holder| holder.gateway == *gateway);
        record.fence.is_empty() && !is_active && !record.serving.contains_key(gateway)
    }

    /// It is in the object, but has no access to the medium yet.
    pub(super) fn enlisted(&mut self, now: Duration) {
        if let Some(&Serving { applied, fences, .. }) = self.record().serving.get(&self.me.gateway) {
            let share = std::mem::take(&mut self.share);
            self.share = Share { applied, fences, carried: None, ..share };
            self.stage = Stage::CatchingUp;
            self.watch_anew(now);
            self.due = now.saturating_add(self.interval);
        }
    }

    /// Sets this gateway's entry among those that serve.
    pub(super) fn enter(&mut self, now: Duration, record: &mut Record, is_new: bool) {
        let (gateway, client) = (&self.me.gateway, &self.me.client);
        let is_own = |one: &Serving| one.client == *client;
        match self.stage {
            Stage::Standby if self.access == Access::All && !self.is_clashing => {
                match record.serving.get(gateway).map(is_own) {
                    // It was written by a call that had failed.
                    Some(true) => _ = record.serving.remove(gateway),
                    // An earlier process of this gateway may have requests on their way.
                    Some(false) => record.shut_out(gateway),
                    None => {}
                }
                let is_served = record.epoch > 0 && record.disk.as_ref() == Some(&self.me.member.disk);
                if is_served && !self.withdrawn {
                    let (applied, fences) = (record.change, record.fences);
                    let one = Serving { client: client.clone(), beat: 0, applied, fences };
                    record.serving.insert(gateway.clone(), one);
                    self.share.may_be_among = true;
                }
            }
            Stage::CatchingUp | Stage::Joining | Stage::Serving | Stage::Leaving => {
                let Some(one) = record.serving.get_mut(gateway).filter(|one| is_own(one)) else { return };
                let Share { applied, fences, .. } = self.share;
                // Each time it writes is a sign of life.
                if is_new || now >= self.due || (one.applied, one.fences) != (applied, fences) {
                    one.beat = one.beat.wrapping_add(1);
                    (one.applied, one.fences) = (applied, fences);
                }
                record.set_stuck(client, self.share.is_stuck && self.share.serves);
            }
            _ => {}
        }
    }

    /// As one that serves: writes a sign of life, and applies changes.
    pub(super) fn serve(&mut self, now: Duration) -> Option<Action> {
        if self.stage == Stage::Serving && self.withdrawn && !self.is_stale {
            return self.leave(now);
        }
        if let Some(action) = self.write_or_read(now) {
            return Some(action);
        }
        let Record { change, fences, .. } = *self.record();
        match self.stage {
            Stage::CatchingUp if change > self.share.applied || fences > self.share.fences => {
                // It has access only after it has caught up, and with the latest state.
                (self.share.applied, self.share.fences) = (change, fences);
                self.is_stale = true;
                self.next(now)
            }
            Stage::CatchingUp if !self.is_safe() => self.fence_for_holder(now),
            Stage::CatchingUp if self.share.carried == Some(fences) => self.join(),
            Stage::CatchingUp => self.catch_up(now),
            Stage::Serving if self.share.applying.is_some() || change <= self.share.applied => {
                self.fence_for_holder(now)
            }
            Stage::Serving if fences > self.share.fences => self.catch_up(now),
            Stage::Serving => {
                self.share.applying = Some(change);
                self.adopt();
                self.acknowledge();
                self.next(now)
            }
            _ => None,
        }
    }

    /// It has caught up, and is safe: its home serves.
    fn join(&mut self) -> Option<Action> {
        let Record { change, saved, .. } = self.record();
        let (change, saved) = (*change, saved.clone());
        self.stage = Stage::Joining;
        self.share.serves = true;
        self.share.applying = Some(change);
        self.adopted = Some(saved.clone());
        self.apply(Action::Join { saved });
        self.out.pop_front()
    }

    /// Whether no other gateway can have requests on their way of which initiators believe that they are over: it was
    /// alive a moment ago, or is fenced. If this one serves already, it had them fenced in time.
    pub(super) fn is_safe(&self) -> bool {
        let record = self.record();
        let is_stuck = record.stuck.iter().any(|client| *client != self.me.client);
        self.share.serves || (self.share.doubtful.is_empty() && !is_stuck)
    }

    /// It is about to serve, or decide: nothing is known of the others.
    pub(super) fn watch_anew(&mut self, now: Duration) {
        if !self.share.serves {
            self.share.looked = None;
            self.look_at_peers(now);
        }
    }

    fn catch_up(&mut self, now: Duration) -> Option<Action> {
        let action = self.work(now, Action::CatchUp)?;
        self.share.catching = self.record().fences;
        Some(action)
    }

    /// Whether all that this gateway sends carries every fence.
    pub(super) fn carries_fences(&self) -> bool {
        self.share.fences >= self.record().fences
    }

    /// As the active gateway: calls that it has to make.
    pub(super) fn oversee(&mut self, now: Duration) -> Option<Action> {
        if !self.is_stale && !self.carries_fences() {
            return self.catch_up(now);
        }
        let action = self.fence(now).or_else(|| self.examine_debtors(now));
        if action.is_none() && !self.is_stale && self.working.is_none() && now >= self.work_pause {
            // What failed is not needed any more.
            self.unmet = None;
        }
        action
    }

    /// As the active gateway, before it has others fenced that have yet to catch up with a fence: while the monitors do
    /// not answer, none of them can.
    fn examine_debtors(&mut self, now: Duration) -> Option<Action> {
        let record = self.record();
        let excusable = |(name, peer): (&String, &Peer)| {
            let lags = record.serving.get(name).is_some_and(|one| one.fences < record.fences);
            lags && peer.debt.has_lapsed() && !peer.is_inexcusable
        };
        let examines = !self.is_stale && self.share.peers.iter().any(excusable);
        if examines { self.catch_up(now) } else { None }
    }

    /// The object was read. Whoever replaces it makes others that have read it do so again. So if another one is late
    /// with its sign of life, those that are not let it go first, by the time of a read and a write.
    pub(super) fn let_others_write(&mut self, now: Duration) {
        let is_member =
            matches!(self.stage, Stage::CatchingUp | Stage::Joining | Stage::Serving | Stage::Active);
        let is_late = now.saturating_sub(self.written) > self.interval;
        if self.access == Access::One || !is_member || is_late {
            return;
        }
        let own = &self.me.gateway;
        let mut peers = self.share.peers.iter().filter(|(name, _)| *name != own);
        let holder =
            self.stage != Stage::Active && self.seen.as_ref().is_some_and(|seen| seen.watch.is_late());
        if holder || peers.any(|(_, peer)| peer.beat.is_late()) {
            let most = self.interval.checked_div(4).unwrap_or_default();
            let pause = now.saturating_sub(self.share.called).saturating_mul(2).min(most);
            self.pause = self.pause.max(now.saturating_add(pause));
        }
    }

    /// Once the home has applied a change, the others get to know.
    pub(super) fn acknowledge(&mut self) {
        if self.applying == 0
            && let Some(applied) = self.share.applying.take()
        {
            self.share.applied = self.share.applied.max(applied);
            self.is_stale = true;
        }
    }

    /// Has the clients of gateways fenced that show no signs of life, or do not apply a change.
    pub(super) fn shut_out_dead(&self, record: &mut Record) {
        for (name, one) in &self.record().serving {
            let is_dead = self.share.peers.get(name).is_some_and(|peer| {
                let owes = one.applied < self.record().change;
                let is_excusable = one.fences < self.record().fences && !peer.is_inexcusable;
                peer.beat.has_lapsed() || (owes && peer.debt.has_lapsed() && !is_excusable)
            });
            if is_dead && one.client != self.me.client {
                record.shut_out(name);
            }
        }
    }

    /// Updates what is known of the others, after the object was seen.
    pub(super) fn look_at_peers(&mut self, now: Duration) {
        let complete = self.complete_fences(now);
        let Some(seen) = &self.seen else { return };
        let (share, record) = (&mut self.share, &seen.record);
        let was_blind = share.looked.replace(now).is_none_or(|looked| {
            // Nobody may have been able to fence another one.
            now.saturating_sub(looked) > self.interval.saturating_mul(2)
        });
        if !share.serves && was_blind {
            share.peers.clear();
            share.holder = None;
            share.doubtful =
                record.clients().into_iter().filter(|client| *client != self.me.client).collect();
        }
        share.peers.retain(|name, _| record.serving.contains_key(name));
        for (name, one) in &record.serving {
            let theirs = record.takeover_of(Some(name)).checked_div(BEATS).unwrap_or_default();
            let interval = self.interval.max(theirs);
            let beat = (one.client.clone(), one.beat);
            let debt = (one.applied < record.change).then_some((one.applied, one.fences));
            let watches = || (Watch::new(now, beat.clone()), Watch::new(now, debt));
            let new = |(beat, debt)| Peer { beat, debt, is_inexcusable: false };
            let peer = share.peers.entry(name.clone()).or_insert_with(|| new(watches()));
            peer.is_inexcusable &= *peer.debt.sign() == debt;
            peer.beat.look(now, beat, interval);
            peer.debt.look(now, debt, interval);
        }
        let sign = (record.epoch, record.beat);
        share.holder.get_or_insert_with(|| Watch::new(now, sign)).look(now, sign, self.interval);
        // A version that does not know those that fade does not keep them in the object.
        let fades = |client: &String| self.access == Access::One && !complete.contains(client);
        let is_shown = |client: &String| record.fence.contains(client) || record.fading.contains(client);
        share.fenced.retain(|client, _| is_shown(client) || fades(client));
        if !share.doubtful.is_empty() {
            let known = record.clients();
            let serves = record.serving.iter();
            let alive = serves
                .filter(|(name, _)| share.peers.get(*name).is_some_and(|peer| peer.beat.has_changed()))
                .map(|(_, one)| &one.client)
                .chain(
                    record
                        .active
                        .iter()
                        .map(|holder| &holder.client)
                        .filter(|_| share.holder.as_ref().is_some_and(|watch| watch.has_changed())),
                );
            let alive: Vec<&String> = alive.collect();
            share.doubtful.retain(|client| known.contains(client) && !alive.contains(&client));
        }
    }

    /// As the active gateway: has those fenced that are dead, and shows what is complete. True: it has.
    pub(super) fn govern(&self, now: Duration, record: &mut Record) -> bool {
        let (waiting, fences, stuck) = (record.fence.len(), record.fences, record.stuck.len());
        record.set_stuck(&self.me.client, self.share.is_stuck);
        let mut has_applied = false;
        if self.stage == Stage::Active {
            // What earlier holders have decided is in force everywhere by now.
            has_applied = self.apply_replies(record);
        }
        self.complete(now, record);
        self.shut_out_dead(record);
        has_applied || (waiting, fences, stuck) != (record.fence.len(), record.fences, record.stuck.len())
    }

    /// Has the clients fenced that are to be.
    pub(super) fn fence(&mut self, now: Duration) -> Option<Action> {
        let is_new = |client: &&String| !self.share.fenced.contains_key(*client);
        let clients: Vec<String> = self.record().fence.iter().filter(is_new).cloned().collect();
        if self.is_stale || clients.is_empty() {
            return None;
        }
        let action = self.work(now, Action::Fence { clients: clients.clone() })?;
        self.share.fencing = clients;
        Some(action)
    }

    /// The same in place of the holder, if that one waits for the monitors.
    fn fence_for_holder(&mut self, now: Duration) -> Option<Action> {
        if self.record().is_waiting { self.fence(now) } else { None }
    }

    /// The claim is confirmed: it no longer is one of those that serve, unless it has to remain in the object.
    pub(super) fn leave_those_that_serve(&self, record: &mut Record) {
        if self.is_among() {
            record.serving.remove(&self.me.gateway);
        }
    }

    /// The object after this gateway has released its claim, or left.
    pub(super) fn release_entry(&self, record: &mut Record) {
        let Share { serves, applied, fences, .. } = self.share;
        let (gateway, client) = (&self.me.gateway, &self.me.client);
        let beat = record.serving.get(gateway).map_or(0, |one| one.beat.wrapping_add(1));
        if serves {
            record.serving.insert(gateway.clone(), Serving { client: client.clone(), beat, applied, fences });
        } else if self.is_among() {
            record.serving.remove(gateway);
        }
    }

    /// It does not serve any more, but requests of its client may be on their way: initiators must not know of the end
    /// of those until all other gateways have caught up with the fence.
    pub(super) fn fall_silent(&mut self) {
        if self.stage != Stage::Leaving {
            self.apply(Action::Deactivate { lost: false });
        }
        self.stage = Stage::Silent;
        (self.share.gone, self.plan) = (None, None);
    }

    /// The object was replaced.
    pub(super) fn was_silent(&mut self) {
        if self.share.retires && !self.is_fenced {
            self.stage = Stage::Standby;
        }
    }

    pub(super) fn be_silent(&mut self, now: Duration) -> Option<Action> {
        if self.is_stale || now >= self.due {
            return self.call(Action::Read);
        }
        let (mut record, client) = (self.record().clone(), &self.me.client);
        let is_in = self.is_among() || record.active.as_ref().is_some_and(|holder| holder.client == *client);
        self.share.retires = !self.share.serves && !self.is_fenced && is_in;
        if self.share.retires {
            record.serving.retain(|_, one| one.client != *client);
            record.active.take_if(|holder| holder.client == *client);
            return self.replace(record);
        }
        record.shut_out_client(client);
        let is_known = self.is_fenced || self.share.was_to_be_fenced || record.fence.contains(client);
        if self.share.serves && !is_known {
            // The object was removed or replaced: nobody has fenced this client.
            record.fence.push(client.clone());
        }
        self.complete(now, &mut record);
        if record != *self.record() {
            return self.replace(record);
        }
        if !record.fence.contains(client) {
            let gone = *self.share.gone.get_or_insert(record.fences);
            // Without requests on their way, others do not matter.
            if !self.share.serves || record.serving.values().all(|one| one.fences >= gone) {
                self.stage = Stage::Lost;
                self.apply(Action::Deactivate { lost: true });
                return self.out.pop_front();
            }
        }
        if !self.has_lapsed() {
            return self.fence_for_holder(now);
        }
        // Nobody is left to do it.
        if let Some(holder) = &self.record().active {
            record.shut_out_client(&holder.client);
        }
        self.shut_out_dead(&mut record);
        if record != *self.record() { self.replace(record) } else { self.fence(now) }
    }

    /// The role of a gateway that has not got, or does not keep, the claim.
    pub(super) fn role_beside(&self) -> Role {
        if self.share.serves { Role::Serving } else { Role::Transitioning }
    }
}
