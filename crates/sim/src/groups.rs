//! Target port groups of gateways (SPC-4 section 5.15): every gateway reports those of all, as the object has them, and a path that
//! is in standby now says so by a unit attention before a command finds that.

use cluster::Record;
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

/// What a host knows of its own path: the state that was reported, and since when.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Path {
    reported: Option<(AccessState, Time)>,
}

impl Path {
    /// Nothing is known any more: it has another session, or a unit attention says that the state has changed.
    pub(crate) fn forget(&mut self) {
        self.reported = None;
    }

    /// Its state was reported just now.
    pub(crate) fn is(&mut self, now: Time, state: AccessState) {
        self.reported = Some((state, now));
    }

    /// A medium command that began then was not executed, because the port is in standby.
    ///
    /// # Errors
    /// When another state was reported, without a unit attention since.
    pub(crate) fn finds_standby(&self, began: Time) -> Result<(), String> {
        match self.reported {
            Some((state, at)) if at < began && state.is_active() => {
                let text =
                    "was reported, and no unit attention since, but a command has found its port in standby";
                Err(format!("{} {text}", state.name()))
            }
            Some(_) | None => Ok(()),
        }
    }
}
