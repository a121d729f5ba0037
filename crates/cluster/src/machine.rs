//! One gateway's view of a unit that it shares with others: events in, actions out. Times are arguments,
//! relative to an arbitrary start.
//!
//! Safety does not depend on time: a gateway becomes active only after the previous holder's client is
//! fenced, and after it has since written the object once more under the same claim. Time only decides when a
//! holder is considered dead.

mod awaits;
mod holder;
mod requests;
mod serving;
mod standby;
mod watch;

use crate::action::{Access, Action, Me, ReplaceError, Role, Status};
use crate::record::{By, Holder, Port, Record};
use awaits::Await;
use requests::Ask;
use serving::Share;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use watch::Watch;

/// Intervals within which another gateway must become active: the last is for fencing and taking over.
const BEATS: u32 = 5;
/// Intervals for which a unit stays where it is, whatever initiators request.
const STAYS: u32 = 6 * BEATS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Standby,
    /// It is among those that serve the medium, and its client has yet to catch up with fences.
    CatchingUp,
    /// Its home has yet to serve.
    Joining,
    Serving,
    /// The object names this gateway; others have yet to be fenced.
    Promoting,
    /// They are fenced; the claim must still hold.
    Confirming,
    /// Others that serve have yet to apply what earlier holders have decided.
    Settling,
    Activating,
    Active,
    /// Going to standby, but still the one whose changes count, or one of those that serve.
    Leaving,
    Demoting,
    /// About to write that the unit has no holder.
    Releasing,
    /// It is to be fenced, and waits until it is.
    Silent,
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
    /// It ends what others have begun.
    ends: bool,
    /// The object has it, and others have yet to apply it: those to wait for.
    written: Option<Await>,
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
    /// What its holder changes.
    watch: Watch<(u64, u64, bool)>,
}

/// The machine.
/// Its fields are what one decision, made at each event, is made of.
#[derive(Debug)]
pub struct Machine {
    me: Me,
    access: Access,
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
    /// A call to the object is outstanding; with what it writes, if anything.
    is_calling: bool,
    writing: Option<Record>,
    /// A call to the monitors or the medium is outstanding, since then; and none before this, as the last one failed.
    working: Option<Duration>,
    work_pause: Duration,
    /// Since when such calls have been needed, and have not succeeded.
    unmet: Option<Duration>,
    /// Whether that includes state to be saved, and what was applied.
    carries: (bool, bool),
    /// The stage that ends when it is written.
    completes: Option<Stage>,
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
    /// When it claimed the unit, and when it became active.
    claimed_at: Duration,
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
    /// It has itself fenced, as the medium does not answer; and how often in succession it has without that another
    /// gateway took the unit over.
    yields: bool,
    yielded: u32,
    fault: Option<String>,
    /// It shares a group, a port identifier or a name with another gateway, or has a different disk.
    is_clashing: bool,
    /// Why the last attempt to become active failed, until one succeeds: meanwhile the object can be read and
    /// written.
    refused: Option<String>,
    share: Share,
}

impl Machine {
    /// A gateway in standby. Another one must become active within `takeover` of the last sign of one that
    /// dies.
    pub fn new(me: Me, takeover: Duration, access: Access) -> Machine {
        Machine {
            me,
            access,
            interval: takeover.checked_div(BEATS).unwrap_or(takeover),
            stage: Stage::Standby,
            epoch: 0,
            seen: None,
            is_stale: true,
            due: Duration::ZERO,
            pause: Duration::ZERO,
            is_calling: false,
            writing: None,
            working: None,
            work_pause: Duration::ZERO,
            unmet: None,
            carries: (false, false),
            completes: None,
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
            claimed_at: Duration::ZERO,
            active_since: Duration::ZERO,
            leaving_since: Duration::ZERO,
            not_before: Duration::ZERO,
            has_left: false,
            is_fenced: false,
            written: Duration::ZERO,
            left: None,
            yields: false,
            yielded: 0,
            fault: None,
            is_clashing: false,
            refused: None,
            share: Share::default(),
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
        self.share.called = now;
        if self.is_serving() && now.saturating_sub(self.written) >= self.takeover() {
            // If another gateway could fence it, it is fenced by now; its initiators must look for that one.
            self.left = Some(self.me.client.clone());
            self.lose();
            return self.next(now);
        }
        if self.leaves_change_behind() {
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
            self.abandon_claim();
        }
        match self.stage {
            Stage::Standby => {
                if self.is_fenced {
                    self.stage = Stage::Reopening;
                    return self.next(now);
                }
                self.write_or_read(now)
            }
            Stage::CatchingUp if self.is_fenced || self.withdrawn => {
                self.stage = if self.is_fenced { Stage::Reopening } else { Stage::Releasing };
                self.next(now)
            }
            Stage::CatchingUp | Stage::Joining | Stage::Serving => self.serve(now),
            Stage::Leaving if !self.is_holder() => self.serve(now),
            Stage::Promoting => self.promote(now),
            Stage::Confirming => self.confirm(),
            Stage::Settling | Stage::Activating | Stage::Active | Stage::Leaving => self.hold(now),
            Stage::Demoting => self.work(now, Action::Demote),
            Stage::Releasing => self.release(),
            Stage::Silent => self.be_silent(now),
            Stage::Lost => None,
            Stage::Reopening => self.work(now, Action::Reopen),
        }
    }

    /// When [`Machine::next`] may have something to do if nothing happens until then: after `now`, unless it only
    /// waits for something to happen.
    pub fn wake_at(&self, now: Duration) -> Duration {
        let retry = self.working.is_none().then_some(self.work_pause);
        let times = [Some(self.due), self.completes_at(), retry].into_iter().flatten();
        let times = times.map(|at| at.max(self.pause));
        times.filter(|at| *at > now).min().unwrap_or(now)
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
            // Somebody has removed it. That ends nobody's access to the medium.
            None => (None, Record { fence: self.record().clients(), ..Record::default() }),
        };
        self.see(now, version, record);
        self.share.has_read |= now >= self.due;
        let is_holder = self.is_holder();
        match self.stage {
            // A claim of which it was unknown whether it was written.
            Stage::Standby | Stage::CatchingUp | Stage::Serving if is_holder => {
                self.due = now.saturating_add(self.interval);
                self.claimed(now);
            }
            Stage::Standby => {
                self.due = self.next_look(now);
                if self.record().fence.contains(&self.me.client) {
                    self.is_fenced = true;
                } else if self.is_among() && !self.withdrawn {
                    self.enlisted(now);
                } else {
                    self.share.may_be_among = self.is_among();
                    if self.access == Access::One || self.is_all_that_is_left() {
                        self.adopt();
                    }
                    self.plan = self.decide(now);
                }
            }
            Stage::CatchingUp | Stage::Joining | Stage::Serving | Stage::Leaving if self.is_among() => {
                self.plan = self.decide(now);
            }
            Stage::Demoting | Stage::Releasing if self.is_among() => {}
            Stage::Silent => self.due = now.saturating_add(self.interval),
            _ if is_holder => self.settle(),
            _ => self.lose(),
        }
        self.let_others_write(now);
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
        if save && let Some(save) = &mut self.save {
            save.written = Some(Await::new(&record));
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
        self.share.has_read = false;
        match self.stage {
            Stage::Standby | Stage::CatchingUp | Stage::Serving if self.is_holder() => self.claimed(now),
            Stage::Standby if self.is_among() => self.enlisted(now),
            Stage::Confirming if self.completes == Some(Stage::Confirming) => {
                self.wanted = None;
                self.active_since = now;
                self.refused = None;
                self.has_left = true;
                match self.access {
                    Access::One => {
                        self.share.fencing = self.record().fading.clone();
                        self.has_fenced(now);
                        self.activate();
                    }
                    Access::All => {
                        self.stage = Stage::Settling;
                        self.share.inherited = Await::new(self.record());
                        self.has_fenced(now);
                    }
                }
            }
            Stage::Releasing if self.completes == Some(Stage::Releasing) => {
                self.stage = if self.share.serves { Stage::Serving } else { Stage::Standby };
                self.share.may_be_among = false;
                self.share.give_up_fences();
                self.not_before = now.saturating_add(self.takeover());
            }
            Stage::Silent => self.was_silent(),
            Stage::Standby | Stage::Lost | Stage::Reopening => {}
            _ if self.is_holder() || self.is_among() => self.settle(),
            // It has left, to be fenced.
            _ => self.lose(),
        }
    }

    fn claimed(&mut self, now: Duration) {
        let again = std::mem::take(&mut self.yields) && self.record().epoch == self.epoch.saturating_add(1);
        self.yielded = if again { self.yielded.saturating_add(1) } else { 0 };
        (self.epoch, self.stage, self.claimed_at) = (self.record().epoch, Stage::Promoting, now);
        self.watch_anew(now);
    }

    fn activate(&mut self) {
        self.stage = Stage::Activating;
        (self.adopted, self.share.serves, self.share.left_change) = (None, true, false);
        self.apply(Action::Activate { saved: self.record().saved.clone() });
    }

    /// The state to be saved survives this gateway, and is in force at all others.
    fn settle(&mut self) {
        let is_one = self.access == Access::One;
        let may_be = is_one || (self.is_holder() && self.carries_fences());
        let record = self.seen.as_ref().map(|seen| &seen.record);
        let is_settled = |awaited: &Await| is_one || record.is_some_and(|record| awaited.is_over(record));
        // What was sent before some of them were fenced may not have ended yet.
        let may_end = !is_one || self.share.has_completed_fences();
        let is_over =
            |save: &mut Save| (may_end || !save.ends) && save.written.as_ref().is_some_and(is_settled);
        if may_be && self.save.take_if(is_over).is_some() {
            self.out.push_back(Action::Saved(true));
        }
    }

    /// Whether what earlier holders have decided is in force at all that serve, and whoever lacks it cannot affect the
    /// medium.
    fn is_settled(&self) -> bool {
        self.share.inherited.is_over(self.record()) && self.carries_fences()
    }

    /// [`Action::Promote`] has returned.
    pub fn promoted(&mut self, outcome: Result<(), String>) {
        (self.working, self.unmet) = (None, None);
        if self.stage != Stage::Promoting {
            // It has lost the claim, or given it up.
            return;
        }
        if self.is_fenced {
            self.stage = Stage::Reopening;
            return;
        }
        match outcome {
            Ok(()) => {
                self.stage = Stage::Confirming;
                // An earlier claim may have begun the call, and the gateway not have caught up since.
                self.share.fences = self.share.catching;
            }
            Err(why) => {
                self.stage = match self.access {
                    // What is late may still get the lock, which nobody may break unless the object names this client.
                    Access::One => Stage::Demoting,
                    Access::All => Stage::Releasing,
                };
                self.refused = Some(why);
                (self.wanted, self.has_left, self.is_stale) = (None, false, true);
            }
        }
    }

    /// [`Action::Demote`] has returned. If it failed, only a new client is known not to write any more.
    pub fn demoted(&mut self, now: Duration, outcome: Result<(), String>) {
        (self.working, self.unmet) = (None, None);
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
        (self.working, self.unmet) = (None, None);
        match outcome {
            Ok(client) => {
                self.me.client = client;
                self.share = Share::default();
                self.is_fenced = false;
                self.stage = Stage::Standby;
                self.is_stale = true;
                self.due = now;
            }
            Err(why) => self.failed(now, why),
        }
    }

    /// The home has applied [`Action::Adopt`], [`Action::Join`], [`Action::Activate`] or [`Action::Deactivate`], on
    /// all cores.
    pub fn applied(&mut self) {
        self.applying = self.applying.saturating_sub(1);
        if self.applying > 0 {
            return;
        }
        match self.stage {
            Stage::Joining => self.stage = Stage::Serving,
            Stage::Activating => {
                self.wanted = None;
                self.stage = Stage::Active;
            }
            Stage::Leaving => {
                self.share.serves = false;
                self.demote();
            }
            Stage::Lost => (self.stage, self.share.serves) = (Stage::Reopening, false),
            // Nothing is on its way any more.
            Stage::Silent => self.share.serves = false,
            _ => {}
        }
        self.acknowledge();
    }

    /// The home could not apply one of those: the state is damaged. The change is not in force here, so the gateway
    /// leaves, and whoever waits for it waits until it has left.
    pub fn not_applied(&mut self) {
        self.share.applying = None;
        self.withdraw();
        self.applied();
    }

    /// The active unit's state has changed to this, which must survive this gateway; with an outcome, as a
    /// result of the request that it executes for another one; `ends`: what others have begun is over with that.
    /// [`Action::Saved`] answers.
    pub fn save(&mut self, state: Vec<u8>, outcome: Option<Vec<u8>>, ends: bool) {
        if self.stage.is_holder() && !self.share.left_change {
            self.save = Some(Save { state, outcome, ends, written: None });
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
        if self.stage.is_holder() || self.share.serves {
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

    /// Whether, after [`Machine::withdraw`], nothing of its claim is left. A call that concerns the image may be
    /// outstanding: without a claim it gives its client no access, or others have that client fenced.
    pub fn has_withdrawn(&self) -> bool {
        let is_out = matches!(self.stage, Stage::Standby | Stage::Reopening)
            && !self.is_calling
            && !self.share.may_be_among;
        self.withdrawn && is_out && self.asks.is_empty()
    }

    /// The status shown to people.
    pub fn status(&self) -> Status {
        let role = match self.stage {
            Stage::Standby | Stage::Reopening | Stage::Lost => Role::Standby,
            Stage::Serving => Role::Serving,
            Stage::Active => Role::Active,
            Stage::Promoting | Stage::Confirming | Stage::Settling | Stage::Releasing => self.role_beside(),
            Stage::CatchingUp
            | Stage::Joining
            | Stage::Activating
            | Stage::Leaving
            | Stage::Demoting
            | Stage::Silent => Role::Transitioning,
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

    fn replace(&mut self, mut record: Record) -> Option<Action> {
        let clients = record.clients();
        record.stuck.retain(|client| clients.contains(client) && !record.fence.contains(client));
        let expected = self.seen.as_ref().and_then(|seen| seen.version);
        self.writing = Some(record.clone());
        (self.carries, self.completes) = ((false, false), None);
        self.call(Action::Replace { expected, record: Box::new(record) })
    }

    fn call(&mut self, action: Action) -> Option<Action> {
        self.is_calling = true;
        Some(action)
    }

    /// A call that may take long, meanwhile the object is read and written; one at a time.
    fn work(&mut self, now: Duration, action: Action) -> Option<Action> {
        if self.working.is_some() || now < self.work_pause {
            return None;
        }
        self.working = Some(now);
        self.unmet.get_or_insert(now);
        Some(action)
    }

    fn apply(&mut self, action: Action) {
        self.applying = self.applying.saturating_add(1);
        self.out.push_back(action);
    }

    fn takeover(&self) -> Duration {
        self.interval.saturating_mul(BEATS)
    }

    fn see(&mut self, now: Duration, version: Option<u64>, record: Record) {
        // The holder gives signs of life at its own interval.
        let holder = record.active.as_ref().map(|holder| holder.gateway.as_str());
        let theirs = record.takeover_of(holder).checked_div(BEATS).unwrap_or_default();
        let sign = (record.epoch, record.beat, record.active.is_some());
        let watch = match self.seen.take() {
            Some(Seen { mut watch, record: before, .. }) => {
                self.share.inherited.look(&before, &record);
                let awaited = self.save.as_mut().and_then(|save| save.written.as_mut());
                awaited.into_iter().for_each(|awaited| awaited.look(&before, &record));
                watch.look(now, sign, self.interval.max(theirs));
                watch
            }
            None => Watch::new(now, sign),
        };
        self.seen = Some(Seen { version, record, watch });
        // What was planned would undo what others have written since.
        (self.plan, self.is_stale) = (None, false);
        self.share.was_to_be_fenced |= version.is_some() && self.record().fence.contains(&self.me.client);
        self.look_at_peers(now);
    }

    /// When the object is to be looked at again: what was read in between does not delay that.
    fn next_look(&self, now: Duration) -> Duration {
        let looked = self.seen.as_ref().map_or(now, |seen| seen.watch.looked());
        let next = looked.saturating_add(self.interval);
        if next > now { next } else { now.saturating_add(self.interval) }
    }

    /// Whether the holder is dead.
    fn has_lapsed(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.watch.has_lapsed())
    }

    /// Whether the object, as last seen, is this gateway's, under its present claim.
    fn is_holder(&self) -> bool {
        let claims = matches!(self.stage, Stage::Standby | Stage::CatchingUp | Stage::Serving);
        let claimed = claims || self.record().epoch == self.epoch;
        let is_me = |holder: &Holder| holder.gateway == self.me.gateway && holder.client == self.me.client;
        claimed && self.record().active.as_ref().is_some_and(is_me)
    }

    /// Whether its home is active, or about to be.
    fn is_serving(&self) -> bool {
        match self.stage {
            Stage::Activating | Stage::Active | Stage::Leaving => true,
            Stage::Serving | Stage::Promoting | Stage::Confirming | Stage::Settling | Stage::Releasing => {
                self.share.serves
            }
            _ => false,
        }
    }

    /// The unit belongs to another gateway, or this one was fenced.
    fn lose(&mut self) {
        if self.save.take().is_some() {
            self.out.push_back(Action::Saved(false));
        }
        self.executing = None;
        if self.access == Access::All && self.share.serves {
            if !matches!(self.stage, Stage::Silent | Stage::Lost | Stage::Reopening) {
                self.fall_silent();
            }
            return;
        }
        match self.stage {
            Stage::Activating | Stage::Active | Stage::Leaving => {
                self.stage = Stage::Lost;
                self.apply(Action::Deactivate { lost: true });
            }
            // Whoever has claimed it meanwhile fences this client, which may have the right to write.
            Stage::CatchingUp
            | Stage::Joining
            | Stage::Serving
            | Stage::Promoting
            | Stage::Confirming
            | Stage::Settling
            | Stage::Demoting
            | Stage::Releasing => self.stage = Stage::Reopening,
            Stage::Standby | Stage::Silent | Stage::Lost | Stage::Reopening => {}
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
            fading: Vec::new(),
            next: None,
            gateways: BTreeMap::new(),
            members: BTreeMap::new(),
            disk: None,
            requests: BTreeMap::new(),
            replies: BTreeMap::new(),
            saved: Vec::new(),
            serving: BTreeMap::new(),
            stuck: Vec::new(),
            change: 0,
            fences: 0,
            is_waiting: false,
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
            | Stage::Settling
            | Stage::Activating
            | Stage::Active
            | Stage::Leaving
            | Stage::Demoting
            | Stage::Releasing => true,
            Stage::Standby
            | Stage::CatchingUp
            | Stage::Joining
            | Stage::Serving
            | Stage::Silent
            | Stage::Lost
            | Stage::Reopening => false,
        }
    }
}
