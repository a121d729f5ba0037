//! The asymmetric access state of the second portal's group on the guest's LUN: it is set by the
//! configuration, and by the guest if allowed; and every path reports the same (SPC-4 section 5.15).

use super::{INACTIVE, LUN, NOT_SUPPORTED, OTHER, SECOND_GROUP, WRITE_PROTECTED, name};
use config::{Config, PortalGroup};
use reactor::memory::Arena;
use wire::scsi::command::{ReportTargetPortGroups, SetTargetPortGroups};
use wire::scsi::parameters::{PortGroup, SetPortGroup};
use wire::scsi::status::{BUSY, CHECK_CONDITION, GOOD, TASK_SET_FULL};
use wire::scsi::{AccessState, Command as _, code};
use wire::{Cdb, Places, SenseKey};

/// The group of the portal that always exists, and is active.
const FIRST_GROUP: u16 = 1;
/// Length of a list that sets one group, and of the data read for groups.
pub(super) const LIST_BYTES: u32 = 8;
pub(super) const REPORT_BYTES: u32 = 64;

/// A command of the guest that concerns states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GroupCommand {
    /// SET TARGET PORT GROUPS.
    Set(AccessState),
    /// REPORT TARGET PORT GROUPS.
    Report,
}

impl GroupCommand {
    pub(super) fn cdb(self) -> Cdb {
        match self {
            GroupCommand::Set(_) => SetTargetPortGroups::new(LIST_BYTES).to_cdb(),
            GroupCommand::Report => ReportTargetPortGroups::new(REPORT_BYTES).to_cdb(),
        }
    }
}

/// The parameter list that sets the group's state.
pub(super) fn list(state: AccessState) -> Vec<u8> {
    let group = SetPortGroup { state: state.code(), group: SECOND_GROUP };
    [&[0; 4][..], &group.to_bytes()].concat()
}

/// What is known about the group.
#[derive(Default)]
pub(super) struct States {
    /// The number of the change that added the LUN.
    lun: u64,
    /// The group, if the LUN has it.
    group: Option<PortalGroup>,
    /// The guest can see it through any path.
    is_shown: bool,
    /// Its state; `None`: unknown, after a command to set it whose outcome is unknown.
    state: Option<AccessState>,
    is_being_set: bool,
    /// How many commands that set it have begun or ended.
    pub(super) era: u64,
}

impl States {
    /// A change is done. Unchanged settings leave the state as it is.
    pub(super) fn configured(&mut self, config: &Config, lun: u64, is_shown: bool) {
        let index = config.luns.iter().position(|other| other.name == name(lun));
        let other = config.targets.iter().find(|target| target.name == OTHER);
        let shows = |index| other.is_some_and(|target| target.luns.contains(&(LUN, index)));
        let group = index.is_some_and(shows).then(|| config.portal_group(SECOND_GROUP));
        let stays = self.group.zip(group).is_some_and(|(before, now)| before.state == now.state);
        if self.lun != lun || !stays && self.state.is_some() {
            self.state = Some(group.map_or(AccessState::default(), |group| group.state));
        }
        (self.lun, self.group, self.is_shown) = (lun, group, is_shown);
    }

    /// Whether the portal is active, as far as is known.
    pub(super) fn is_active(&self) -> Option<bool> {
        self.state.filter(|_| !self.is_being_set).map(AccessState::is_active)
    }

    /// Whether a command that sets the state is outstanding.
    pub(super) fn is_being_set(&self) -> bool {
        self.is_being_set
    }

    pub(super) fn begin(&mut self) {
        (self.is_being_set, self.era) = (true, self.era + 1);
    }

    /// A command that sets the state has ended: this is the state now, or it is unknown.
    fn end(&mut self, state: Option<AccessState>) {
        (self.is_being_set, self.state, self.era) = (false, state, self.era + 1);
    }

    /// The outcome of an outstanding command will not be known.
    pub(super) fn lose(&mut self) {
        self.end(None);
    }

    /// A command concerning states has ended, with this sense data, while no configuration change was in
    /// progress.
    pub(super) fn ended(
        &mut self,
        order: GroupCommand,
        status: u8,
        key: Option<SenseKey>,
        code: u16,
    ) -> Result<(), String> {
        let is_refused = status == CHECK_CONDITION && key != Some(SenseKey::AbortedCommand);
        let is_undone = is_refused || matches!(status, BUSY | TASK_SET_FULL);
        let before = self.state;
        if let GroupCommand::Set(state) = order {
            match status {
                GOOD => self.end(before.map(|_| state)),
                _ if is_undone => self.end(before),
                _ => self.lose(),
            }
        }
        let may_be_set = |state| {
            let is_explicit = self.group.is_some_and(|group| group.explicit);
            is_explicit && self.is_shown && state != AccessState::Transitioning
        };
        let unsettable = [code::INVALID_FIELD_IN_PARAMETER_LIST, code::INVALID_FIELD_IN_CDB];
        match (status, order) {
            (GOOD, GroupCommand::Set(state)) if !may_be_set(state) => {
                Err("a state is set that may not be".into())
            }
            (GOOD | BUSY | TASK_SET_FULL, _) => Ok(()),
            (CHECK_CONDITION, GroupCommand::Set(state)) if unsettable.contains(&code) => {
                match may_be_set(state) {
                    true => Err("a state is not set that may be".into()),
                    false => Ok(()),
                }
            }
            (CHECK_CONDITION, GroupCommand::Set(_)) if code == WRITE_PROTECTED => Ok(()),
            (CHECK_CONDITION, GroupCommand::Set(_)) if INACTIVE.contains(&code) => match before {
                Some(AccessState::Transitioning) | None => Ok(()),
                Some(state) => Err(format!("a port that is {} does not set a state", state.name())),
            },
            (CHECK_CONDITION, _) if code == NOT_SUPPORTED => Ok(()),
            (CHECK_CONDITION, _)
                if matches!(key, Some(SenseKey::UnitAttention | SenseKey::AbortedCommand)) =>
            {
                Ok(())
            }
            _ => Err(format!("{order:?} of the guest ended with status {status:#04x}, {code:04x}")),
        }
    }

    /// Checks the states reported for groups, when nothing has changed them meanwhile.
    pub(super) fn check(&self, reported: &[(u16, Option<AccessState>)]) -> Result<(), String> {
        let state = self.group.filter(|_| self.is_shown).and(self.state);
        let is_known = self.state.is_some() || !self.is_shown || self.group.is_none();
        let first = (FIRST_GROUP, Some(AccessState::Optimized));
        let expected: Vec<_> =
            [first].into_iter().chain(state.map(|state| (SECOND_GROUP, Some(state)))).collect();
        match !is_known || reported == expected {
            true => Ok(()),
            false => Err(format!("groups are reported to be {reported:?}, and are {expected:?}")),
        }
    }
}

/// The data read by REPORT TARGET PORT GROUPS: groups and their states.
pub(super) fn reported(arena: &Arena, place: &Places) -> Vec<(u16, Option<AccessState>)> {
    let data: Vec<u8> = place.iter().flat_map(|span| arena.bytes(span).to_vec()).collect();
    let len = data.first_chunk().map_or(0, |len| u32::from_be_bytes(*len) as usize);
    let mut rest = data.get(4..4 + len).unwrap_or_default();
    let mut groups = Vec::new();
    while rest.len() >= PortGroup::BYTES {
        let group = PortGroup::read(rest);
        groups.push((group.group, AccessState::of_code(group.state)));
        rest = rest.get(PortGroup::BYTES + 4 * usize::from(group.ports)..).unwrap_or_default();
    }
    groups
}
