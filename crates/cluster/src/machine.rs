//! One gateway's view of a unit that it shares with others: events in, actions out. Times are arguments,
//! relative to an arbitrary start.
//!
//! Safety does not depend on time: a gateway becomes active only after the previous holder's client is
//! fenced, and after it has since written the object once more under the same claim. Time only decides when a
//! holder is considered dead.

mod requests;

use crate::action::{Access, Action, Me, ReplaceError, Role, Status};
use crate::record::{By, Holder, Member, Next, Port, Record, Reply, Request};
use requests::Ask;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A holder that does not change the object for this many of its intervals is considered dead.
const BEATS_MISSED: u32 = 3;
/// Intervals within which another gateway must become active: the last is for fencing and taking over.
const BEATS: u32 = 5;
/// Intervals for which a unit stays where it is, whatever initiators request.
const STAYS: u32 = 6 * BEATS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Standby,
    /// The object names this gateway; others have yet to be fenced.
    Promoting,
    /// They are fenced; the claim must still hold.
    Confirming,
    Activating,
    Active,
    /// Going to standby, but still the one whose changes count.
    Leaving,
    Demoting,
    /// About to write that the unit has no holder.
    Releasing,
    /// Another gateway has claimed the unit, or this one was fenced.
    Lost,
    Reopening,
}

/// State that must survive this gateway.
#[derive(Debug)]
struct Save {
    state: Vec<u8>,
    /// The reply to the request being executed, if this state results from it.
    outcome: Option<Vec<u8>>,
}

/// A request of another gateway that the home is executing.
#[derive(Debug)]
struct Executing {
    gateway: String,
    id: u64,
    /// The reply, once all cores have applied the change.
    applied: Option<Vec<u8>>,
}

/// The object as last read or written.
#[derive(Clone, Debug)]
struct Seen {
    /// `None`: it does not exist.
    version: Option<u64>,
    record: Record,
    /// How many looks, an interval apart, found it unchanged by its holder, and when the last of them was.
    /// Time alone would count periods during which nobody could change or read it.
    quiet: u32,
    looked: Duration,
}

/// The machine.
/// Its fields are what one decision, made at each event, is made of.
#[derive(Debug)]
pub struct Machine {
    me: Me,
    interval: Duration,
    stage: Stage,
    /// The epoch under which this gateway claimed the unit.
    epoch: u64,
    seen: Option<Seen>,
    /// The object must be read before anything else is done with it.
    is_stale: bool,
    /// When the object is next read or written if nothing happens.
    due: Duration,
    /// No call before this: the last one failed.
    pause: Duration,
    /// A call is outstanding; with what it writes, if anything.
    is_calling: bool,
    writing: Option<Record>,
    /// Whether that includes state to be saved, and what was applied.
    carries: (bool, bool),
    /// How many actions the home has yet to apply.
    applying: u32,
    out: VecDeque<Action>,
    /// A record to be written, whatever the stage.
    plan: Option<Record>,
    save: Option<Save>,
    executing: Option<Executing>,
    asks: VecDeque<Ask>,
    /// The state that the home has in standby.
    adopted: Option<Vec<u8>>,
    /// It must not become active, since its daemon is stopping or draining.
    withdrawn: bool,
    /// It is to become active although another gateway is alive.
    wanted: Option<By>,
    /// The object named it as the next one.
    is_next: bool,
    /// This process has written its own entry.
    is_listed: bool,
    /// When it became active.
    active_since: Duration,
    leaving_since: Duration,
    /// It does not claim the unit before this, so that others can; unless one that did has released the unit
    /// again, if it was active itself.
    not_before: Duration,
    has_left: bool,
    /// Its client was fenced.
    is_fenced: bool,
    /// When the object was last written.
    written: Duration,
    /// The client with which it left the unit because it could not write the object. It may claim the unit at
    /// once if nobody else has.
    left: Option<String>,
    fault: Option<String>,
    /// It shares a group, a port identifier or a name with another gateway, or has a different disk.
    is_clashing: bool,
    /// Why the last attempt to become active failed, until one succeeds: meanwhile the object can be read and
    /// written.
    refused: Option<String>,
}

impl Machine {
    /// A gateway in standby. Another one must become active within `takeover` of the last sign of one that
    /// dies.
    pub fn new(me: Me, takeover: Duration, _access: Access) -> Machine {
        Machine {
            me,
            interval: takeover.checked_div(BEATS).unwrap_or(takeover),
            stage: Stage::Standby,
            epoch: 0,
            seen: None,
            is_stale: true,
            due: Duration::ZERO,
            pause: Duration::ZERO,
            is_calling: false,
            writing: None,
            carries: (false, false),
            applying: 0,
            out: VecDeque::new(),
            plan: None,
            save: None,
            executing: None,
            asks: VecDeque::new(),
            adopted: None,
            withdrawn: false,
            wanted: None,
            is_next: false,
            is_listed: false,
            active_since: Duration::ZERO,
            leaving_since: Duration::ZERO,
            not_before: Duration::ZERO,
            has_left: false,
            is_fenced: false,
            written: Duration::ZERO,
            left: None,
            fault: None,
            is_clashing: false,
            refused: None,
        }
    }

    /// The next action, if any.
    pub fn next(&mut self, now: Duration) -> Option<Action> {
        if let Some(action) = self.out.pop_front() {
            return Some(action);
        }
        if self.save.is_some() && !self.stage.is_holder() {
            self.save = None;
            return Some(Action::Saved(false));
        }
        if let Some(outcome) = self.asks.front().and_then(|ask| self.outcome(now, ask)) {
            let ask = self.asks.pop_front()?;
            // The object must get the next request.
            self.is_stale |= !self.asks.is_empty();
            return Some(Action::Answer { id: ask.id, outcome });
        }
        if self.is_calling {
            return None;
        }
        if self.is_serving() && now.saturating_sub(self.written) >= self.takeover() {
            // If another gateway could fence it, it is fenced by now; its initiators must look for that one.
            self.left = Some(self.me.client.clone());
            self.lose();
            return self.next(now);
        }
        if self.stage == Stage::Leaving && now.saturating_sub(self.leaving_since) >= self.takeover() {
            // One of its operations hangs. Whoever claims the unit fences it, and thus ends the operation.
            self.not_before = now.saturating_add(self.takeover());
            self.lose();
            return self.next(now);
        }
        if now < self.pause {
            return None;
        }
        if self.withdrawn && matches!(self.stage, Stage::Promoting | Stage::Confirming) {
            // Its home is about to stop; it may hold the lock.
            self.stage = Stage::Demoting;
        }
        match self.stage {
            Stage::Standby => {
                if self.is_fenced {
                    self.stage = Stage::Reopening;
                    return self.next(now);
                }
                self.write_or_read(now)
            }
            Stage::Promoting => {
                let fence = self.record().fence.clone();
                self.call(Action::Promote { fence })
            }
            Stage::Confirming => {
                let mut confirmed = Record { fence: Vec::new(), ..self.record().clone() };
                // Whoever executed what was not applied can no longer affect the medium.
                confirmed.replies.values_mut().for_each(|reply| reply.is_applied = true);
                self.replace_as_holder(confirmed)
            }
            Stage::Activating | Stage::Active | Stage::Leaving => self.hold(now),
            Stage::Demoting => self.call(Action::Demote),
            Stage::Releasing => {
                let next = self.record().next.clone().filter(|next| next.gateway != self.me.gateway);
                let free = Record { active: None, next, ..self.record().clone() };
                self.replace_as_holder(free)
            }
            Stage::Lost => None,
            Stage::Reopening => self.call(Action::Reopen),
        }
    }

    /// When [`Machine::next`] has something to do if nothing happens until then.
    pub fn wake_at(&self) -> Duration {
        self.due.max(self.pause)
    }

    /// [`Action::Read`] has returned: version and content; `None`: the object does not exist.
    pub fn read(&mut self, now: Duration, found: Result<Option<(u64, Record)>, String>) {
        self.is_calling = false;
        let found = match found {
            Ok(found) => found,
            Err(why) => return self.failed(now, why),
        };
        self.fault = None;
        let (version, record) = match found {
            Some((version, record)) => (Some(version), record),
            None => (None, Record::default()),
        };
        self.see(now, version, record);
        if self.stage == Stage::Standby {
            self.due = now.saturating_add(self.interval);
            if self.is_holder() {
                // A claim of which it was unknown whether it was written.
                (self.epoch, self.stage) = (self.record().epoch, Stage::Promoting);
            } else if self.record().fence.contains(&self.me.client) {
                self.is_fenced = true;
            } else {
                self.adopt();
                self.plan = self.decide(now);
            }
        } else if !self.is_holder() {
            self.lose();
        }
    }

    /// [`Action::Replace`] has returned: the new version.
    pub fn replaced(&mut self, now: Duration, outcome: Result<u64, ReplaceError>) {
        self.is_calling = false;
        let written = self.writing.take();
        let version = match outcome {
            Ok(version) => version,
            Err(ReplaceError::Conflict) => {
                self.is_stale = true;
                return;
            }
            Err(ReplaceError::Failed(why)) => return self.failed(now, why),
        };
        self.fault = self.fault.take().filter(|_| self.is_clashing);
        self.written = now;
        let Some(record) = written else { return };
        let (save, applied) = self.carries;
        if save && self.save.take().is_some() {
            self.out.push_back(Action::Saved(true));
        }
        if applied {
            self.executing = None;
        }
        self.is_listed |= self.is_own(record.members.get(&self.me.gateway));
        self.is_next |= record.next.as_ref().is_some_and(|next| next.gateway == self.me.gateway);
        if let Some(ask) = self.asks.front_mut() {
            ask.is_sent = record.has(&self.me.gateway, ask.id);
        }
        self.see(now, Some(version), record);
        self.due = now.saturating_add(self.interval);
        match self.stage {
            Stage::Standby if self.is_holder() => {
                self.epoch = self.record().epoch;
                self.stage = Stage::Promoting;
            }
            Stage::Confirming => {
                self.stage = Stage::Activating;
                self.wanted = None;
                self.active_since = now;
                (self.refused, self.adopted) = (None, None);
                self.has_left = true;
                self.apply(Action::Activate { saved: self.record().saved.clone() });
            }
            Stage::Releasing => {
                self.stage = Stage::Standby;
                self.not_before = now.saturating_add(self.takeover());
            }
            _ => {}
        }
    }

    /// [`Action::Promote`] has returned.
    pub fn promoted(&mut self, outcome: Result<(), String>) {
        self.is_calling = false;
        if self.is_fenced {
            self.stage = Stage::Reopening;
            return;
        }
        match outcome {
            Ok(()) => self.stage = Stage::Confirming,
            Err(why) => {
                self.stage = Stage::Releasing;
                self.refused = Some(why);
                (self.wanted, self.has_left, self.is_stale) = (None, false, true);
            }
        }
    }

    /// [`Action::Demote`] has returned. If it failed, only a new client is known not to write any more.
    pub fn demoted(&mut self, now: Duration, outcome: Result<(), String>) {
        self.is_calling = false;
        match outcome {
            Ok(()) if !self.is_fenced => self.stage = Stage::Releasing,
            Ok(()) => self.stage = Stage::Reopening,
            Err(why) => {
                self.stage = Stage::Reopening;
                self.failed(now, why);
            }
        }
    }

    /// [`Action::Reopen`] has returned: the new client.
    pub fn reopened(&mut self, now: Duration, outcome: Result<String, String>) {
        self.is_calling = false;
        match outcome {
            Ok(client) => {
                self.me.client = client;
                self.is_fenced = false;
                self.stage = Stage::Standby;
                self.is_stale = true;
                self.due = now;
            }
            Err(why) => self.failed(now, why),
        }
    }

    /// The home has applied [`Action::Adopt`], [`Action::Activate`] or [`Action::Deactivate`], on all cores.
    pub fn applied(&mut self) {
        self.applying = self.applying.saturating_sub(1);
        if self.applying > 0 {
            return;
        }
        self.stage = match self.stage {
            Stage::Activating => {
                self.wanted = None;
                Stage::Active
            }
            Stage::Leaving => Stage::Demoting,
            Stage::Lost => Stage::Reopening,
            stage => stage,
        };
    }

    /// [`Action::CatchUp`] has returned.
    pub fn caught_up(&mut self, _now: Duration, _outcome: Result<(), String>) {}

    /// [`Action::Fence`] has returned.
    pub fn fenced_others(&mut self, _now: Duration, _outcome: Result<(), String>) {}

    /// Whether what this gateway has sent to the medium makes no progress. It may be called at any time.
    pub fn medium_stuck(&mut self, _is_stuck: bool) {}

    /// The active unit's state has changed to this, which must survive this gateway; with an outcome, as a
    /// result of the request that it executes for another one. [`Action::Saved`] answers.
    pub fn save(&mut self, state: Vec<u8>, outcome: Option<Vec<u8>>) {
        if self.stage.is_holder() {
            self.save = Some(Save { state, outcome });
        } else {
            self.out.push_back(Action::Saved(false));
        }
    }

    /// The home has executed [`Action::Execute`], and all cores have applied the change.
    pub fn executed(&mut self, outcome: Vec<u8>) {
        if let Some(executing) = &mut self.executing {
            executing.applied = Some(outcome);
        }
    }

    /// Sets the target ports of this gateway.
    pub fn set_ports(&mut self, ports: Vec<Port>) {
        self.is_stale |= self.me.ports != ports;
        self.me.ports = ports;
    }

    /// The object may have changed.
    pub fn noticed(&mut self) {
        self.is_stale = true;
    }

    /// The cluster has fenced this gateway's client.
    pub fn fenced(&mut self) {
        self.is_fenced = true;
        if self.stage.is_holder() {
            self.lose();
        }
    }

    /// The gateway is to become active as soon as the active one agrees, or is considered dead.
    pub fn want(&mut self, by: By) {
        if self.withdrawn || (self.wanted == Some(By::Person) && by == By::Initiator) {
            return;
        }
        (self.wanted, self.is_next, self.is_stale) = (Some(by), false, true);
        self.not_before = Duration::ZERO;
    }

    /// Nobody wants that any more.
    pub fn unwant(&mut self) {
        (self.wanted, self.is_stale) = (None, true);
    }

    /// Whether it is still to become active because of [`Machine::want`], or about to.
    pub fn is_wanted(&self) -> bool {
        self.wanted.is_some() || self.status().role == Role::Transitioning
    }

    /// The gateway leaves the unit to others, and does not claim it again.
    pub fn withdraw(&mut self) {
        (self.withdrawn, self.wanted) = (true, None);
        self.is_stale |= !self.asks.is_empty();
    }

    /// Whether, after [`Machine::withdraw`], nothing of its claim is left.
    pub fn has_withdrawn(&self) -> bool {
        self.withdrawn && self.stage == Stage::Standby && !self.is_calling && self.asks.is_empty()
    }

    /// The status shown to people.
    pub fn status(&self) -> Status {
        let role = match self.stage {
            Stage::Standby | Stage::Reopening | Stage::Lost => Role::Standby,
            Stage::Active => Role::Active,
            Stage::Promoting
            | Stage::Confirming
            | Stage::Activating
            | Stage::Leaving
            | Stage::Demoting
            | Stage::Releasing => Role::Transitioning,
        };
        let record = self.seen.as_ref().map(|seen| seen.record.clone()).unwrap_or_default();
        Status {
            role,
            record,
            fault: self
                .fault
                .clone()
                .or_else(|| self.refused.clone())
                .or_else(|| self.namesake())
                .or_else(|| self.clash()),
        }
    }

    /// In standby: writes what was planned, or reads the object.
    fn write_or_read(&mut self, now: Duration) -> Option<Action> {
        match self.plan.take() {
            Some(plan) if !self.is_stale => self.replace(plan),
            _ if self.is_stale || now >= self.due => self.call(Action::Read),
            _ => None,
        }
    }

    /// As the holder: writes state to be saved, and a sign of life.
    fn hold(&mut self, now: Duration) -> Option<Action> {
        let other = self.record().next.as_ref().filter(|next| next.gateway != self.me.gateway);
        let stays = now.saturating_sub(self.active_since) < self.interval.saturating_mul(STAYS);
        let (refuses, leaves) = match other.map(|next| next.by) {
            Some(By::Initiator) if stays => (true, false),
            Some(_) => (false, true),
            None => (false, false),
        };
        if self.stage == Stage::Active && (leaves || self.withdrawn) {
            (self.stage, self.leaving_since) = (Stage::Leaving, now);
            self.apply(Action::Deactivate { lost: false });
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
        let is_due =
            self.is_stale || self.save.is_some() || is_applied || refuses || is_new || now >= self.due;
        let mut record = self.record().clone();
        record.next = record.next.filter(|_| !refuses);
        if is_new {
            record.gateways.insert(gateway.clone(), ports.clone());
        }
        if is_due { self.replace_as_holder(record) } else { None }
    }

    /// Replaces the object while it is this gateway's, with state to be saved.
    fn replace_as_holder(&mut self, mut record: Record) -> Option<Action> {
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
        if let Some(save) = &self.save {
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

    fn replace(&mut self, record: Record) -> Option<Action> {
        let expected = self.seen.as_ref().and_then(|seen| seen.version);
        self.writing = Some(record.clone());
        self.carries = (false, false);
        self.call(Action::Replace { expected, record: Box::new(record) })
    }

    fn call(&mut self, action: Action) -> Option<Action> {
        self.is_calling = true;
        Some(action)
    }

    fn apply(&mut self, action: Action) {
        self.applying = self.applying.saturating_add(1);
        self.out.push_back(action);
    }

    /// In standby: the record to write, if any.
    fn decide(&mut self, now: Duration) -> Option<Record> {
        let seen = self.seen.as_ref()?;
        let (before, has_lapsed) = (seen.record.clone(), seen.quiet >= BEATS_MISSED);
        let Record { epoch, active, next, gateways, members, requests, .. } = &before;
        let Me { gateway, member, .. } = &self.me;
        let mut record = before.clone();
        let clash = self.clash().or_else(|| self.namesake());
        let other_disk = before.other_disk(gateway, &member.disk);
        self.is_clashing = clash.is_some() || other_disk.is_some();
        if clash.is_none() {
            record.members.insert(gateway.clone(), member.clone());
        }
        if self.is_clashing {
            self.fault = clash.or(other_disk);
            // Its entry shows others when they have the same disk.
            return (record != before).then_some(record);
        }
        let is_retracted = self.request(now, &mut record);
        let me = &self.me;
        record.gateways.insert(me.gateway.clone(), me.ports.clone());
        let is_ours = next.as_ref().is_none_or(|next| next.gateway == me.gateway);
        let is_free = active.is_none() && (is_ours || has_lapsed);
        let is_left = active.as_ref().is_some_and(|holder| Some(&holder.client) == self.left.as_ref());
        let is_returned = self.has_left && active.is_none() && *epoch > self.epoch;
        let may_claim = !self.withdrawn && (now >= self.not_before || is_returned);
        if may_claim && (is_free || has_lapsed || is_left) {
            record.epoch = epoch.saturating_add(1);
            record.beat = record.beat.wrapping_add(1);
            record.fence.extend(active.iter().map(|holder| holder.client.clone()));
            record.active = Some(Holder { gateway: me.gateway.clone(), client: me.client.clone() });
            record.next = None;
            record.disk = Some(me.member.disk.clone());
            record.requests.clear();
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
        let is_known = record.gateways == *gateways && record.members == *members;
        let is_new = !is_known || record.next != *next || record.requests != *requests;
        (is_new || is_retracted).then_some(record)
    }

    fn takeover(&self) -> Duration {
        self.interval.saturating_mul(BEATS)
    }

    /// What its ports have in common with another gateway's.
    fn clash(&self) -> Option<String> {
        self.record().clash(&self.me.gateway, &self.me.ports)
    }

    /// Another daemon with this gateway's name, which has overwritten the entry of this process.
    fn namesake(&self) -> Option<String> {
        let name = &self.me.gateway;
        let is_other = self.is_listed && !self.is_own(self.record().members.get(name));
        is_other.then(|| {
            format!(
                "another daemon is gateway {name}, too; give each a different name (`gateway` in \
        [cluster])"
            )
        })
    }

    fn is_own(&self, member: Option<&Member>) -> bool {
        member.is_some_and(|member| member.process == self.me.member.process)
    }

    /// Passes the state saved by another gateway to the home.
    fn adopt(&mut self) {
        let saved = &self.record().saved;
        if self.adopted.as_ref() != Some(saved) {
            let saved = saved.clone();
            self.adopted = Some(saved.clone());
            self.apply(Action::Adopt { saved });
        }
    }

    fn see(&mut self, now: Duration, version: Option<u64>, record: Record) {
        // The holder gives signs of life at its own interval.
        let holders_interval = record.takeover_of_holder().and_then(|takeover| takeover.checked_div(BEATS));
        let holders_interval = holders_interval.unwrap_or_default();
        let sign = |record: &Record| (record.epoch, record.beat, record.active.is_some());
        let (quiet, looked) = match &self.seen {
            Some(seen) if sign(&seen.record) != sign(&record) => (0, now),
            Some(seen) if now.saturating_sub(seen.looked) >= self.interval.max(holders_interval) => {
                (seen.quiet.saturating_add(1), now)
            }
            Some(seen) => (seen.quiet, seen.looked),
            None => (0, now),
        };
        self.seen = Some(Seen { version, record, quiet, looked });
        self.is_stale = false;
    }

    /// Whether the object, as last seen, is this gateway's, under its present claim.
    fn is_holder(&self) -> bool {
        let claimed = self.stage == Stage::Standby || self.record().epoch == self.epoch;
        let is_me = |holder: &Holder| holder.gateway == self.me.gateway && holder.client == self.me.client;
        claimed && self.record().active.as_ref().is_some_and(is_me)
    }

    /// Whether its home is active, or about to be.
    fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Activating | Stage::Active | Stage::Leaving)
    }

    /// The unit belongs to another gateway, or this one was fenced.
    fn lose(&mut self) {
        if self.save.take().is_some() {
            self.out.push_back(Action::Saved(false));
        }
        self.executing = None;
        match self.stage {
            Stage::Activating | Stage::Active | Stage::Leaving => {
                self.stage = Stage::Lost;
                self.apply(Action::Deactivate { lost: true });
            }
            // Whoever has claimed it meanwhile fences this client, which may have the right to write.
            Stage::Promoting | Stage::Confirming | Stage::Demoting | Stage::Releasing => {
                self.stage = Stage::Reopening;
            }
            Stage::Standby | Stage::Lost | Stage::Reopening => {}
        }
    }

    /// A call failed: it will be retried.
    fn failed(&mut self, now: Duration, why: String) {
        self.fault = Some(why);
        self.is_stale = true;
        self.pause = now.saturating_add(self.interval);
    }

    fn record(&self) -> &Record {
        static NONE: Record = Record {
            epoch: 0,
            active: None,
            beat: 0,
            fence: Vec::new(),
            next: None,
            gateways: BTreeMap::new(),
            members: BTreeMap::new(),
            disk: None,
            requests: BTreeMap::new(),
            replies: BTreeMap::new(),
            saved: Vec::new(),
        };
        self.seen.as_ref().map_or(&NONE, |seen| &seen.record)
    }
}

impl Stage {
    /// Whether the object names this gateway, as far as it knows.
    fn is_holder(self) -> bool {
        match self {
            Stage::Promoting
            | Stage::Confirming
            | Stage::Activating
            | Stage::Active
            | Stage::Leaving
            | Stage::Demoting
            | Stage::Releasing => true,
            Stage::Standby | Stage::Lost | Stage::Reopening => false,
        }
    }
}
