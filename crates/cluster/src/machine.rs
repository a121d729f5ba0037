//! One gateway's view of a unit that it shares with others: events in, actions out. The time is an argument, since any start.
//!
//! What makes it safe is not the time: a gateway becomes active only after the earlier holder's client is shut out, and after it
//! has written the object once more since, as the same claim. Time decides only when a holder is taken for dead.

use crate::record::{Holder, Port, Record};
use std::collections::VecDeque;
use std::time::Duration;

/// A holder that does not change the object for so many of its intervals is taken for dead.
const BEATS_MISSED: u32 = 3;
/// Intervals of the time within which another gateway is to be active: the last is for shutting out and taking over.
const BEATS: u32 = 5;

/// Who a gateway is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Me {
    /// Its name.
    pub gateway: String,
    /// The client by which it has the medium.
    pub client: String,
    /// Its target ports of the unit.
    pub ports: Vec<Port>,
}

/// Something to be done. A call (`Read`, `Replace`, `Promote`, `Demote`, `Reopen`) is answered by the method of its name, and the next
/// one comes only then; what the unit's home is asked (`Adopt`, `Activate`, `Deactivate`) by [`Machine::applied`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read the object.
    Read,
    /// Replace the object's version, or create it where there is none.
    Replace {
        /// The version that it must have.
        expected: Option<u64>,
        /// The new content.
        record: Box<Record>,
    },
    /// Shut these clients out, wait until this gateway's requests carry that, and get the right to write.
    Promote {
        /// Clients.
        fence: Vec<String>,
    },
    /// Make durable what was written, and return the right to write.
    Demote,
    /// Use the medium as a new client.
    Reopen,
    /// The unit is still another gateway's, with this state of the unit by now.
    Adopt {
        /// As it was last kept.
        saved: Vec<u8>,
    },
    /// The unit's ports become active, with this state of the unit.
    Activate {
        /// As it was last kept.
        saved: Vec<u8>,
    },
    /// They go to standby; applied when nothing that came by them can reach the medium.
    Deactivate {
        /// The unit is another gateway's already: its sessions have nothing to wait for.
        lost: bool,
    },
    /// The answer to [`Machine::save`]: whether it is durable.
    Saved(bool),
}

/// Why the object was not replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplaceError {
    /// It has another version.
    Conflict,
    /// Nobody knows whether it was.
    Failed(String),
}

/// What a gateway is for a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another one is active, or none.
    Standby,
    /// It is becoming active, or ceases to be.
    Transitioning,
    /// It serves the medium.
    Active,
}

/// What people are shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// This gateway's role.
    pub role: Role,
    /// The object as it was last seen.
    pub record: Record,
    /// Why this gateway cannot become or stay active, if it cannot.
    pub fault: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Standby,
    /// The object names this gateway; others have yet to be shut out.
    Promoting,
    /// They are; the claim must still hold.
    Confirming,
    Activating,
    Active,
    /// On its way to standby, still the one whose changes count.
    Leaving,
    Demoting,
    /// To be written: the unit is nobody's.
    Releasing,
    /// Another one has claimed the unit, or this gateway was shut out.
    Lost,
    Reopening,
}

/// The object as it was read or written last.
#[derive(Clone, Debug)]
struct Seen {
    /// `None`: there is none.
    version: Option<u64>,
    record: Record,
    /// How many looks, an interval apart, its holder has not changed it for, and when the last of them was. Time alone would count
    /// one during which nobody could change or read it.
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
    /// Under which this gateway claimed the unit.
    epoch: u64,
    seen: Option<Seen>,
    /// The object must be read before anything else is done with it.
    is_stale: bool,
    /// When the object is read or written next if nothing happens.
    due: Duration,
    /// No call before: the last one failed.
    pause: Duration,
    /// A call has yet to return, and what it writes, if it does.
    is_calling: bool,
    writing: Option<Record>,
    /// What the home has yet to apply.
    applying: u32,
    out: VecDeque<Action>,
    /// What is to be written, whatever the stage.
    plan: Option<Record>,
    save: Option<Vec<u8>>,
    /// What the home in standby knows.
    adopted: Option<Vec<u8>>,
    /// It is to be no candidate, as its daemon ends or is drained.
    withdrawn: bool,
    /// It is to become active although another one lives.
    wanted: bool,
    /// It does not claim before.
    not_before: Duration,
    /// Its client was shut out.
    is_fenced: bool,
    /// When the object was written last.
    written: Duration,
    /// The client by which it left the unit because it could not write the object. It may claim the unit at once where nobody else has.
    left: Option<String>,
    fault: Option<String>,
    /// Why the last attempt to become active failed, until one succeeds: reads and writes of the object go well meanwhile.
    refused: Option<String>,
}

impl Machine {
    /// A gateway in standby. Another one is to be active within `takeover` of the last sign of one that dies.
    pub fn new(me: Me, takeover: Duration) -> Machine {
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
            applying: 0,
            out: VecDeque::new(),
            plan: None,
            save: None,
            adopted: None,
            withdrawn: false,
            wanted: false,
            not_before: Duration::ZERO,
            is_fenced: false,
            written: Duration::ZERO,
            left: None,
            fault: None,
            refused: None,
        }
    }

    /// What is to be done now, if anything.
    pub fn next(&mut self, now: Duration) -> Option<Action> {
        if let Some(action) = self.out.pop_front() {
            return Some(action);
        }
        if self.save.is_some() && !self.stage.is_holder() {
            self.save = None;
            return Some(Action::Saved(false));
        }
        if self.is_calling {
            return None;
        }
        if self.is_serving() && now.saturating_sub(self.written) >= self.interval.saturating_mul(BEATS) {
            // It is shut out by now if another one could do that; its initiators must look for that one.
            self.left = Some(self.me.client.clone());
            self.lose();
            return self.next(now);
        }
        if now < self.pause {
            return None;
        }
        if self.withdrawn && matches!(self.stage, Stage::Promoting | Stage::Confirming) {
            // Its home is about to end; it may have the lock.
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
                let confirmed = Record { fence: Vec::new(), ..self.record().clone() };
                self.replace_as_holder(confirmed)
            }
            Stage::Activating | Stage::Active | Stage::Leaving => self.hold(now),
            Stage::Demoting => self.call(Action::Demote),
            Stage::Releasing => {
                let next = self.record().next.clone().filter(|next| *next != self.me.gateway);
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

    /// [`Action::Read`] has returned: version and content, `None`: there is no object.
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
                // A claim of which nobody knew whether it was written.
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
        self.fault = None;
        self.written = now;
        let Some(record) = written else { return };
        if self.save.as_ref().is_some_and(|save| self.stage.is_holder() && *save == record.saved) {
            self.save = None;
            self.out.push_back(Action::Saved(true));
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
                self.wanted = false;
                (self.refused, self.adopted) = (None, None);
                self.apply(Action::Activate { saved: self.record().saved.clone() });
            }
            Stage::Releasing => {
                self.stage = Stage::Standby;
                self.not_before = now.saturating_add(self.interval.saturating_mul(BEATS));
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
                self.is_stale = true;
            }
        }
    }

    /// [`Action::Demote`] has returned. Where it fails only a new client is known to write nothing more.
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
            Stage::Activating => Stage::Active,
            Stage::Leaving => Stage::Demoting,
            Stage::Lost => Stage::Reopening,
            stage => stage,
        };
    }

    /// The active unit's state has changed to this, which has to survive this gateway. [`Action::Saved`] answers.
    pub fn save(&mut self, state: Vec<u8>) {
        if self.stage.is_holder() {
            self.save = Some(state);
        } else {
            self.out.push_back(Action::Saved(false));
        }
    }

    /// The object may have changed.
    pub fn noticed(&mut self) {
        self.is_stale = true;
    }

    /// The cluster has shut this gateway's client out.
    pub fn fenced(&mut self) {
        self.is_fenced = true;
        if self.stage.is_holder() {
            self.lose();
        }
    }

    /// The gateway becomes active as soon as the one that is agrees, or is taken for dead.
    pub fn want(&mut self) {
        (self.wanted, self.withdrawn, self.is_stale) = (true, false, true);
        self.not_before = Duration::ZERO;
    }

    /// The gateway leaves the unit to others, and does not claim it again.
    pub fn withdraw(&mut self) {
        (self.withdrawn, self.wanted) = (true, false);
    }

    /// Whether, after [`Machine::withdraw`], nothing is left of its claim.
    pub fn has_withdrawn(&self) -> bool {
        self.withdrawn && self.stage == Stage::Standby && !self.is_calling
    }

    /// What people are shown.
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
        Status { role, record, fault: self.fault.clone().or_else(|| self.refused.clone()) }
    }

    /// In standby: what was planned, or a look at the object.
    fn write_or_read(&mut self, now: Duration) -> Option<Action> {
        match self.plan.take() {
            Some(plan) if !self.is_stale => self.replace(plan),
            _ if self.is_stale || now >= self.due => self.call(Action::Read),
            _ => None,
        }
    }

    /// As the holder: what is to survive, and that it lives.
    fn hold(&mut self, now: Duration) -> Option<Action> {
        let other = self.record().next.as_ref().is_some_and(|next| *next != self.me.gateway);
        if self.stage == Stage::Active && (other || self.withdrawn) {
            self.stage = Stage::Leaving;
            self.apply(Action::Deactivate { lost: false });
            return self.out.pop_front();
        }
        let is_due = self.is_stale || self.save.is_some() || now >= self.due;
        if is_due { self.replace_as_holder(self.record().clone()) } else { None }
    }

    /// Replaces the object while it is this gateway's, with what is to be kept.
    fn replace_as_holder(&mut self, mut record: Record) -> Option<Action> {
        if self.is_stale {
            return self.call(Action::Read);
        }
        record.beat = record.beat.wrapping_add(1);
        if let Some(save) = &self.save {
            record.saved.clone_from(save);
        }
        self.replace(record)
    }

    fn replace(&mut self, record: Record) -> Option<Action> {
        let expected = self.seen.as_ref().and_then(|seen| seen.version);
        self.writing = Some(record.clone());
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

    /// In standby: what is to be written, if anything.
    fn decide(&mut self, now: Duration) -> Option<Record> {
        let seen = self.seen.as_ref()?;
        let Record { epoch, active, next, gateways, .. } = &seen.record;
        let me = &self.me;
        self.fault = seen.record.clash(&me.gateway, &me.ports);
        if self.fault.is_some() {
            return None;
        }
        let mut record = seen.record.clone();
        record.gateways.insert(me.gateway.clone(), me.ports.clone());
        let has_lapsed = seen.quiet >= BEATS_MISSED;
        let is_ours = next.as_ref().is_none_or(|next| *next == me.gateway);
        let is_free = active.is_none() && (is_ours || has_lapsed);
        let is_left = active.as_ref().is_some_and(|holder| Some(&holder.client) == self.left.as_ref());
        let may_claim = !self.withdrawn && now >= self.not_before;
        if may_claim && (is_free || has_lapsed || is_left) {
            record.epoch = epoch.saturating_add(1);
            record.beat = record.beat.wrapping_add(1);
            record.fence.extend(active.iter().map(|holder| holder.client.clone()));
            record.active = Some(Holder { gateway: me.gateway.clone(), client: me.client.clone() });
            record.next = None;
            return Some(record);
        }
        if self.wanted && active.is_some() {
            record.next = Some(me.gateway.clone());
        }
        let is_new = record.next != *next || record.gateways != *gateways;
        is_new.then_some(record)
    }

    /// Has the home know what another gateway has kept.
    fn adopt(&mut self) {
        let saved = &self.record().saved;
        if self.adopted.as_ref() != Some(saved) {
            let saved = saved.clone();
            self.adopted = Some(saved.clone());
            self.apply(Action::Adopt { saved });
        }
    }

    fn see(&mut self, now: Duration, version: Option<u64>, record: Record) {
        let sign = |record: &Record| (record.epoch, record.beat, record.active.is_some());
        let (quiet, looked) = match &self.seen {
            Some(seen) if sign(&seen.record) != sign(&record) => (0, now),
            Some(seen) if now.saturating_sub(seen.looked) >= self.interval => {
                (seen.quiet.saturating_add(1), now)
            }
            Some(seen) => (seen.quiet, seen.looked),
            None => (0, now),
        };
        self.seen = Some(Seen { version, record, quiet, looked });
        self.is_stale = false;
    }

    /// Whether the object, as it was seen last, is this gateway's, by its present claim.
    fn is_holder(&self) -> bool {
        let claimed = self.stage == Stage::Standby || self.record().epoch == self.epoch;
        let is_me = |holder: &Holder| holder.gateway == self.me.gateway && holder.client == self.me.client;
        claimed && self.record().active.as_ref().is_some_and(is_me)
    }

    /// Whether its home is active, or about to be.
    fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Activating | Stage::Active | Stage::Leaving)
    }

    /// The unit is another gateway's, or this one was shut out.
    fn lose(&mut self) {
        if self.save.take().is_some() {
            self.out.push_back(Action::Saved(false));
        }
        match self.stage {
            Stage::Activating | Stage::Active | Stage::Leaving => {
                self.stage = Stage::Lost;
                self.apply(Action::Deactivate { lost: true });
            }
            // Whoever claimed it meanwhile shuts this client out, as that may have the right to write.
            Stage::Promoting | Stage::Confirming | Stage::Demoting | Stage::Releasing => {
                self.stage = Stage::Reopening;
            }
            Stage::Standby | Stage::Lost | Stage::Reopening => {}
        }
    }

    /// A call failed: another attempt follows.
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
            gateways: std::collections::BTreeMap::new(),
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
