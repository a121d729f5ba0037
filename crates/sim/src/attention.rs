//! Unit attentions (SAM-5 section 5.14): those for a new session and for another initiator's reset must not
//! be lost, and none may be reported without a cause, or twice.

use proto::services::{FunctionId, TaskId};
use proto::time::Time;
use wire::scsi::code;

/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED.
pub(crate) const POWER_ON: u16 = code::POWER_ON_OR_RESET;
/// BUS DEVICE RESET FUNCTION OCCURRED.
pub(crate) const RESET: u16 = code::RESET_FUNCTION_OCCURRED;
/// COMMANDS CLEARED BY ANOTHER INITIATOR.
pub(crate) const COMMANDS_CLEARED: u16 = code::COMMANDS_CLEARED;
/// REPORTED LUNS DATA HAS CHANGED.
pub(crate) const LUNS_CHANGED: u16 = code::REPORTED_LUNS_DATA_CHANGED;
/// Those caused by other initiators' reservations.
pub(crate) const RESERVATIONS: [u16; 3] =
    [code::RESERVATIONS_PREEMPTED, code::RESERVATIONS_RELEASED, code::REGISTRATIONS_PREEMPTED];

/// THIN PROVISIONING SOFT THRESHOLD REACHED.
const THRESHOLD: u16 = code::THIN_PROVISIONING_THRESHOLD_REACHED;
/// Causes what no initiator does.
const NOBODY: usize = usize::MAX;

/// For each initiator, since when it is logged in, and for each unit, since when it is owed a unit attention.
#[derive(Debug)]
pub(crate) struct Attentions {
    sessions: Vec<Session>,
    /// When each change of the LUNs of all initiators began and ended.
    changes: Vec<(Time, Option<Time>)>,
    /// Gateways cause some themselves, and report what others did later.
    has_gateways: bool,
    /// Resets of which it is unknown whether they were done, or yet will be.
    lost: u64,
    open: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Session {
    since: Option<Time>,
    owed: Vec<Option<Time>>,
    /// When each unit last reported one.
    reported: Vec<Time>,
    causes: Vec<Vec<Cause>>,
    /// LUN changes of which it may be notified: each once, by any unit.
    changes: usize,
}

/// An action of an initiator that may establish a unit attention for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Login,
    Function(FunctionId),
    Command(TaskId),
    /// A reset whose outcome nobody knows, by a number.
    Lost(u64),
    /// The used space of a thin unit is measured.
    Measurement,
}

/// Something that may establish a unit attention, at most once.
#[derive(Clone, Copy, Debug)]
struct Cause {
    code: u16,
    /// The initiator of the command or function.
    by: usize,
    act: Act,
    /// When it had established it; `None`: it still may.
    end: Option<Time>,
}

impl Attentions {
    pub(crate) fn new(initiators: usize, units: usize) -> Attentions {
        let (owed, reported) = (vec![None; units], vec![Time(0); units]);
        let session = Session { since: None, owed, reported, causes: vec![Vec::new(); units], changes: 0 };
        let (changes, open) = (Vec::new(), Vec::new());
        Attentions { sessions: vec![session; initiators], changes, has_gateways: false, lost: 0, open }
    }

    /// The same where gateways change what units are like.
    pub(crate) fn of_gateways(self) -> Attentions {
        Attentions { has_gateways: true, ..self }
    }

    /// Takes the resets whose outcome became unknown since the last time; [`Attentions::close`] follows for each.
    pub(crate) fn take_open(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.open)
    }

    /// Such a reset was done, or no longer can be.
    pub(crate) fn close(&mut self, now: Time, lost: u64) {
        let causes = self.sessions.iter_mut().flat_map(|session| session.causes.iter_mut().flatten());
        causes.filter(|cause| cause.act == Act::Lost(lost)).for_each(|cause| cause.end = Some(now));
    }

    /// Nobody knows whether this reset was done.
    pub(crate) fn loses(&mut self, by: usize, act: Act) {
        if !self.has_gateways {
            return;
        }
        self.lost += 1;
        let lost = self.lost;
        let mut is_any = false;
        for cause in self.open_causes(by).filter(|cause| cause.act == act && cause.code == RESET) {
            (cause.act, is_any) = (Act::Lost(lost), true);
        }
        self.open.extend(is_any.then_some(lost));
    }

    /// An initiator has a new session, which it requested at `asked`: each unit owes it one.
    pub(crate) fn begins(&mut self, now: Time, asked: Time, initiator: usize) {
        // What it began in its last session has ended.
        self.all_over(now, initiator);
        let may_be_news = |(_, end): &&(Time, Option<Time>)| end.is_none_or(|end| end >= asked);
        let changes = self.changes.iter().filter(may_be_news).count();
        let is_late = self.has_gateways;
        let session = &mut self.sessions[initiator];
        session.changes = changes;
        session.since = Some(now);
        session.owed.fill(Some(now));
        for causes in &mut session.causes {
            // Its gateway may have yet to find out about a reset.
            let may_come = |cause: &Cause| is_late && cause.code == RESET;
            causes.retain(|cause| cause.end.is_none_or(|end| end >= asked) || may_come(cause));
            causes.push(Cause { code: POWER_ON, by: initiator, act: Act::Login, end: Some(now) });
        }
    }

    /// A change of the LUNs of all initiators begins.
    pub(crate) fn luns_change(&mut self, now: Time) {
        self.changes.push((now, None));
        self.sessions.iter_mut().for_each(|session| session.changes += 1);
    }

    /// The change has ended.
    pub(crate) fn luns_have_changed(&mut self, now: Time) {
        self.changes.iter_mut().filter(|(_, end)| end.is_none()).for_each(|(_, end)| *end = Some(now));
    }

    /// An initiator's session has ended.
    pub(crate) fn ends(&mut self, initiator: usize) {
        let session = &mut self.sessions[initiator];
        session.since = None;
        session.owed.fill(None);
    }

    /// An initiator begins something that may establish this for all others; a reset (SAM-5 section 6.3.3)
    /// does so for the initiator, too.
    pub(crate) fn may_cause(&mut self, by: usize, act: Act, unit: usize, code: u16) {
        for (index, session) in self.sessions.iter_mut().enumerate() {
            if index != by || code == RESET {
                session.causes[unit].push(Cause { code, by, act, end: None });
            }
        }
    }

    /// An initiator's action has established all that it will.
    pub(crate) fn over(&mut self, now: Time, by: usize, act: Act) {
        self.open_causes(by).filter(|cause| cause.act == act).for_each(|cause| cause.end = Some(now));
    }

    /// The same for all its actions.
    fn all_over(&mut self, now: Time, by: usize) {
        self.open_causes(by).for_each(|cause| cause.end = Some(now));
    }

    fn open_causes(&mut self, by: usize) -> impl Iterator<Item = &mut Cause> {
        let causes = self.sessions.iter_mut().flat_map(|session| session.causes.iter_mut().flatten());
        let is_lost = |act: Act| matches!(act, Act::Lost(_));
        causes.filter(move |cause| cause.by == by && cause.end.is_none() && !is_lost(cause.act))
    }

    /// An initiator's reset of a unit that began at `began` has ended: every other initiator logged in then
    /// is owed one.
    pub(crate) fn reset(&mut self, now: Time, began: Time, initiator: usize, unit: usize) {
        for (index, session) in self.sessions.iter_mut().enumerate() {
            // One reported meanwhile may have been this one.
            let was_reported = session.reported[unit] >= began;
            if index != initiator && !was_reported && session.since.is_some_and(|since| since < began) {
                session.owed[unit] = session.owed[unit].or(Some(now));
            }
        }
    }

    /// A thin unit may reach its threshold from now on.
    pub(crate) fn may_reach_threshold(&mut self, unit: usize) {
        self.may_cause(NOBODY, Act::Measurement, unit, THRESHOLD);
    }

    /// What was measured has established all that it will.
    pub(crate) fn space_is_measured(&mut self, now: Time) {
        self.over(now, NOBODY, Act::Measurement);
    }

    /// A thin unit has reached its threshold, as all cores know, measured at `began`: every initiator logged in then is owed one.
    pub(crate) fn threshold_is_reached(&mut self, now: Time, began: Time, unit: usize) {
        self.reset(now, began, NOBODY, unit);
    }

    /// A unit has reported one to an initiator, by a command that began at `began`.
    ///
    /// # Errors
    /// When it has no cause, or was reported before.
    pub(crate) fn reported(
        &mut self,
        now: Time,
        began: Time,
        initiator: usize,
        unit: usize,
        code: u16,
    ) -> Result<(), String> {
        let session = &mut self.sessions[initiator];
        if code == LUNS_CHANGED {
            let left = session.changes.checked_sub(1);
            session.changes = left.ok_or("a change of LUNs was reported more than once".to_owned())?;
            return Ok(());
        }
        session.reported[unit] = now;
        session.owed[unit] = None;
        let causes = &mut session.causes[unit];
        // Those from before the command are a single unit attention.
        let is_spent = |cause: &Cause| cause.code == code && cause.end.is_some_and(|end| end < began);
        if self.has_gateways {
            // Its gateway may have yet to find out about the later ones.
            let first = causes.iter().position(is_spent);
            if let Some(first) = first {
                causes.remove(first);
                return Ok(());
            }
        }
        let before = causes.len();
        causes.retain(|cause| !is_spent(cause));
        if causes.len() < before {
            return Ok(());
        }
        if causes.iter().any(|cause| cause.code == code && cause.end.is_none()) {
            // It may be due to one that has yet to end, which then establishes another.
            return Ok(());
        }
        let of_code = causes.iter().enumerate().filter(|(_, cause)| cause.code == code);
        let first = of_code.min_by_key(|(_, cause)| cause.end);
        let Some((first, _)) = first else {
            if self.has_gateways && code != RESET {
                return Ok(());
            }
            return Err(format!(
                "unit {unit} reports unit attention {code:04x} to initiator {initiator} that nothing has caused, or twice"
            ));
        };
        causes.swap_remove(first);
        Ok(())
    }

    /// A command was aborted; its report of a unit attention may be lost with it.
    pub(crate) fn may_be_reported(&mut self, now: Time, initiator: usize, unit: usize) {
        let session = &mut self.sessions[initiator];
        session.reported[unit] = now;
        session.owed[unit] = None;
    }

    /// A unit has executed a command that began at `began`, and the initiator has no others outstanding. `knows`: its gateway knew
    /// then of all that had happened.
    ///
    /// # Errors
    /// When it first owed a unit attention.
    pub(crate) fn done(
        &mut self,
        began: Time,
        initiator: usize,
        unit: usize,
        knows: bool,
    ) -> Result<(), String> {
        let session = &mut self.sessions[initiator];
        session.causes[unit].retain(|cause| !knows || cause.end.is_none_or(|end| end >= began));
        match session.owed[unit] {
            Some(since) if since < began => Err(format!(
                "unit {unit} owes the initiator a unit attention since {} ns, and did a command from {} ns",
                since.0, began.0
            )),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_one_cause_is_reported_once() {
        let mut attentions = Attentions::new(2, 1);
        attentions.begins(Time(10), Time(9), 0);
        assert!(attentions.done(Time(11), 0, 0, true).is_err(), "it was forgotten");
        attentions.begins(Time(10), Time(9), 0);
        attentions.reported(Time(13), Time(12), 0, 0, POWER_ON).unwrap();
        assert!(attentions.reported(Time(15), Time(14), 0, 0, POWER_ON).is_err());
        let [one, other, abort] = [1, 2, 3].map(|id| Act::Function(FunctionId(id)));
        attentions.may_cause(1, one, 0, RESET);
        attentions.may_cause(1, other, 0, RESET);
        // Requested at the same time as they were.
        attentions.over(Time(20), 1, abort);
        attentions.over(Time(30), 1, one);
        attentions.over(Time(31), 1, other);
        attentions.reported(Time(41), Time(40), 0, 0, RESET).unwrap();
        assert!(attentions.reported(Time(43), Time(42), 0, 0, RESET).is_err(), "two resets at once are one");
    }
}
