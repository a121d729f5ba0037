//! Target port groups of gateways (SPC-4 section 5.15): every gateway reports those of all, as the object has them, and a path whose
//! state has changed says so by a unit attention before a command finds that.

use cluster::Record;
use proto::services::TaskId;
use proto::time::Time;
use std::collections::BTreeMap;
use std::time::Duration;
use wire::scsi::AccessState;

/// How long it may take from what a gateway knows to what its cores report, if they have turns.
const SPREADS_WITHIN: Duration = Duration::from_millis(500);
/// So many versions of the object are remembered: gateways read later ones.
const VERSIONS: usize = 1000;

/// Groups, and the state of each.
pub(crate) type Groups = BTreeMap<u16, AccessState>;

/// What the object has said, and what each gateway knows of that.
#[derive(Debug)]
pub(crate) struct Views {
    /// One gateway is active at a time.
    is_alone: bool,
    /// By version: the groups of each gateway.
    versions: BTreeMap<u64, Vec<Groups>>,
    /// Since when each gateway has known what; its own groups are not among them.
    known: Vec<Vec<(Time, Groups)>>,
    /// When nothing was under way for which a gateway's cores make such news wait.
    calm_at: Time,
}

impl Views {
    pub(crate) fn new(gateways: usize, is_alone: bool) -> Views {
        Views { is_alone, versions: BTreeMap::new(), known: vec![Vec::new(); gateways], calm_at: Time(0) }
    }

    /// Nothing is under way for which news must wait.
    pub(crate) fn is_calm(&mut self, now: Time) {
        self.calm_at = now;
    }

    /// The object has this version; gateways are called so.
    pub(crate) fn changes(&mut self, version: u64, record: &Record, name: impl Fn(usize) -> String) {
        let is_beginning = self.is_alone && !record.fence.is_empty();
        let groups = |gateway: usize| -> Groups {
            let name = name(gateway);
            let is_active = record.active.as_ref().is_some_and(|holder| holder.gateway == name);
            let serves = is_active || record.serving.contains_key(&name);
            let state = |code: u8| match serves {
                true if is_beginning => AccessState::Transitioning,
                true => AccessState::of_code(code).unwrap_or_default(),
                false => AccessState::Standby,
            };
            let ports = record.gateways.get(&name).into_iter().flatten();
            ports.map(|port| (port.group, state(port.state))).collect()
        };
        self.versions.insert(version, (0..self.known.len()).map(groups).collect());
        if self.versions.len() > VERSIONS {
            self.versions.pop_first();
        }
    }

    /// A gateway knows this version; with `None`, it has just been started.
    pub(crate) fn learns(&mut self, now: Time, gateway: usize, version: Option<u64>) {
        let known = &mut self.known[gateway];
        let of_others = |groups: &Vec<Groups>| -> Groups {
            let others = groups.iter().enumerate().filter(|(other, _)| *other != gateway);
            others.flat_map(|(_, groups)| groups.clone()).collect()
        };
        match version {
            None => *known = vec![(now, Groups::new())],
            Some(version) => {
                let Some(groups) = self.versions.get(&version).map(of_others) else { return };
                if known.last().is_none_or(|(_, last)| *last != groups) {
                    known.push((now, groups));
                }
            }
        }
    }

    /// A gateway has reported these groups, asked at `began`; it had neither all of its turns nor the
    /// cluster before `from`.
    ///
    /// # Errors
    /// When it has known other ones since.
    pub(crate) fn reports(
        &self,
        gateway: usize,
        [began, from]: [Time; 2],
        groups: &Groups,
    ) -> Result<(), String> {
        let since =
            Time(began.min(from).min(self.calm_at).0.saturating_sub(SPREADS_WITHIN.as_nanos() as u64));
        let known = &self.known[gateway];
        let first = known.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
        // Its second portal is in group 10 or 20 and its number.
        let is_own = |group: u16| usize::from(group % 10) == if group < 10 { gateway + 1 } else { gateway };
        let mut others = groups.clone();
        others.retain(|group, _| !is_own(*group));
        if !groups.contains_key(&(gateway as u16 + 1)) {
            return Err(format!("gateway {gateway} reports {groups:?}, and not its own group"));
        }
        if known.is_empty() || known[first..].iter().any(|(_, groups)| *groups == others) {
            return Ok(());
        }
        Err(format!("gateway {gateway} reports {groups:?}, and knows of others {:?}", &known[first..]))
    }
}

/// What a host knows of its own path: the state that was reported, and which of its commands may have the unit attention that says that
/// this has changed.
#[derive(Clone, Default, Debug)]
pub(crate) struct Path {
    reported: Option<(AccessState, Time)>,
    /// When it was last known that the state may have changed: a report that was requested before may be older.
    forgotten: Time,
    /// Commands in flight in the order in which they were sent, and whether each is HEAD OF QUEUE.
    in_flight: Vec<(TaskId, bool)>,
    doubt: Option<Doubt>,
}

/// A command has found another state than was reported, and one of these had the unit attention before, although its response takes
/// longer: that to a WRITE comes after its data.
#[derive(Clone, Debug)]
struct Doubt {
    what: String,
    any_of: Vec<TaskId>,
}

impl Path {
    /// A command is sent.
    pub(crate) fn begins(&mut self, id: TaskId, is_head: bool) {
        self.in_flight.push((id, is_head));
    }

    /// A unit attention says that the state has changed, or may have been lost.
    pub(crate) fn forget(&mut self, now: Time) {
        (self.reported, self.doubt, self.forgotten) = (None, None, now);
    }

    /// Its state has been reported, as requested at `began`.
    pub(crate) fn is(&mut self, now: Time, began: Time, state: AccessState) {
        if began > self.forgotten {
            self.reported = Some((state, now));
        }
    }

    /// A medium command that began then was executed, or not because of the port's state.
    ///
    /// # Errors
    /// When another state was reported, and no command has had a unit attention since.
    pub(crate) fn finds(&mut self, id: TaskId, began: Time, is_active: bool) -> Result<(), String> {
        let is_other = |state: AccessState| match is_active {
            true => state == AccessState::Standby,
            false => state.is_active(),
        };
        let reported = self.reported.filter(|(state, at)| *at < began && is_other(*state));
        let Some((state, _)) = reported.filter(|_| self.doubt.is_none()) else { return Ok(()) };
        let what = format!(
            "{} was reported, and no unit attention since, but a command has found its port {}",
            state.name(),
            if is_active { "active" } else { "not active" }
        );
        let at = self.in_flight.iter().position(|(other, _)| *other == id).unwrap_or(0);
        let (earlier, later) = self.in_flight.split_at(at);
        let later = later.iter().filter(|(other, is_head)| *is_head && *other != id);
        let any_of: Vec<TaskId> = earlier.iter().chain(later).map(|(other, _)| *other).collect();
        if any_of.is_empty() {
            return Err(what);
        }
        self.doubt = Some(Doubt { what, any_of });
        Ok(())
    }

    /// A command has ended, after what it says was noted.
    ///
    /// # Errors
    /// When it is the last that could have had a unit attention which must have been there.
    pub(crate) fn ends(&mut self, id: TaskId) -> Result<(), String> {
        self.in_flight.retain(|(other, _)| *other != id);
        let Some(doubt) = &mut self.doubt else { return Ok(()) };
        doubt.any_of.retain(|other| *other != id);
        match &mut self.doubt {
            Some(doubt) if doubt.any_of.is_empty() => Err(std::mem::take(&mut doubt.what)),
            Some(_) | None => Ok(()),
        }
    }
}
