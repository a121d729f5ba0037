//! Target port groups of a unit, and their asymmetric access states (SPC-4 section 5.15).

use crate::vocabulary::sense::Check;
use std::collections::BTreeMap;
use wire::scsi::AccessState;
use wire::scsi::access_state::status_code;
use wire::scsi::parameters::SetPortGroup;

/// A target port group as configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortGroup {
    /// TARGET PORT GROUP.
    pub tag: u16,
    /// Its initial state.
    pub state: AccessState,
    /// PREF.
    pub preferred: bool,
    /// Whether SET TARGET PORT GROUPS may change its state.
    pub explicit: bool,
}

impl PortGroup {
    /// A group without configuration.
    pub const fn new(tag: u16) -> PortGroup {
        PortGroup { tag, state: AccessState::Optimized, preferred: false, explicit: false }
    }
}

/// In which asymmetric access states a command is accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Accepted {
    /// In those that are active: it may access the medium.
    WhileActive,
    /// Also in standby (SPC-4 section 5.15.2.4.4).
    InStandby,
    /// In all but transitioning: SET TARGET PORT GROUPS.
    Settled,
    /// In all.
    Always,
}

impl Accepted {
    /// Why a command is not accepted in this state, if it is not.
    fn refusal(self, state: AccessState) -> Option<Check> {
        let is_accepted = match self {
            Accepted::WhileActive => state.is_active(),
            Accepted::InStandby => state.is_active() || state == AccessState::Standby,
            Accepted::Settled => state != AccessState::Transitioning,
            Accepted::Always => true,
        };
        let check = match state {
            AccessState::Standby => Check::PORT_IN_STANDBY,
            AccessState::Unavailable => Check::PORT_UNAVAILABLE,
            AccessState::Optimized | AccessState::NonOptimized | AccessState::Transitioning => {
                Check::ACCESS_STATE_TRANSITION
            }
        };
        (!is_accepted).then_some(check)
    }
}

/// A target port group of a unit, with its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Current {
    /// As it is configured.
    pub(crate) configured: PortGroup,
    /// The state that it is in.
    pub(crate) state: AccessState,
    /// STATUS CODE: what caused that state.
    pub(crate) status: u8,
    /// Its ports, by their relative identifiers.
    ports: Vec<u16>,
}

/// A gateway's role for a unit that gateways share.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Role {
    /// It does not access the medium, and decides nothing.
    Standby,
    /// It accesses the medium, as others do at the same time. The active one decides what all must know.
    Serving,
    /// It accesses the medium, and decides. Also if the unit is not shared.
    #[default]
    Active,
}

/// The target port groups of a unit. States last until their configuration changes or the daemon ends; resets
/// do not affect them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PortGroups {
    /// By tag.
    all: BTreeMap<u16, Current>,
    /// Their gateway's: none of them is active while it is in standby.
    role: Role,
}

impl PortGroups {
    /// The groups of these ports, each with the tag of its group, as configured.
    pub(crate) fn of(ports: impl Iterator<Item = (u16, u16)>, groups: &[PortGroup]) -> PortGroups {
        let mut all = BTreeMap::<u16, Current>::new();
        for (tag, port) in ports {
            let is_it = |group: &&PortGroup| group.tag == tag;
            let configured = groups.iter().find(is_it).copied().unwrap_or(PortGroup::new(tag));
            let new = || Current {
                configured,
                state: configured.state,
                status: status_code::NONE,
                ports: Vec::new(),
            };
            all.entry(tag).or_insert_with(new).ports.push(port);
        }
        PortGroups { all, role: Role::Active }
    }

    /// These groups while their gateway has this role.
    pub(crate) fn in_role(&self, role: Role) -> PortGroups {
        let mut after = PortGroups { role, ..self.clone() };
        for group in after.all.values_mut() {
            let state = group.configured.state;
            let is_barred = role == Role::Standby && state.is_active();
            let state = if is_barred { AccessState::Standby } else { state };
            if group.state != state {
                (group.state, group.status) = (state, status_code::IMPLICIT);
            }
        }
        after
    }

    /// These groups in standby, as initiators see them until their gateway knows that nothing of an earlier
    /// process of it is left: in standby they would go to another gateway at once.
    pub(crate) fn settling(mut self) -> PortGroups {
        let barred = self.all.values_mut().filter(|group| group.configured.state.is_active());
        barred.for_each(|group| group.state = AccessState::Transitioning);
        self
    }

    /// Their gateway's role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// These groups with a new configuration: those whose configuration is unchanged keep their state.
    pub(crate) fn configured(&self, after: PortGroups) -> PortGroups {
        let mut after = after.in_role(self.role);
        for (tag, group) in &mut after.all {
            let Some(before) = self.all.get(tag) else { continue };
            (group.state, group.status) = if before.configured.state == group.configured.state {
                (before.state, before.status)
            } else {
                (group.state, status_code::IMPLICIT)
            };
        }
        after
    }

    /// The same with these states (SPC-4 section 6.45).
    pub(crate) fn set(&self, states: &[(u16, AccessState)]) -> Result<PortGroups, Check> {
        self.check_set(states, |_, _| false, |_, state| state != AccessState::Transitioning)?;
        let mut after = self.clone();
        for (tag, state) in states {
            if let Some(group) = after.all.get_mut(tag) {
                (group.state, group.status) = (*state, status_code::EXPLICIT);
            }
        }
        Ok(after)
    }

    /// Whether SET TARGET PORT GROUPS with these states may make their gateway active: nothing else may be
    /// set where gateways share a unit.
    ///
    /// If it makes a group here active, the list may include others here as they are, and the groups of other
    /// gateways in their resulting state, standby: sg_stpg sends all groups reported.
    pub(crate) fn activates(
        &self,
        states: &[(u16, AccessState)],
        is_others: impl Fn(u16) -> bool,
    ) -> Result<(), Check> {
        let becomes_active =
            |group: &Current, state: AccessState| group.configured.state.is_active() && state.is_active();
        let is_one = |(tag, state): &(u16, AccessState)| {
            self.all.get(tag).is_some_and(|group| becomes_active(group, *state))
        };
        let has_one = states.iter().any(is_one);
        let is_implied = |tag: u16, state| is_others(tag) && state == AccessState::Standby;
        self.check_set(
            states,
            |tag, state| has_one && is_implied(tag, state),
            |group, state| becomes_active(group, state) || (has_one && group.state == state),
        )
    }

    /// Whether SET TARGET PORT GROUPS with these states changes nothing: it must not where gateways serve a
    /// unit at the same time. `others`: the states of other gateways' groups.
    pub(crate) fn confirms(
        &self,
        states: &[(u16, AccessState)],
        others: impl Fn(u16) -> Option<AccessState>,
    ) -> Result<(), Check> {
        let is_theirs = |tag: u16, state| others(tag) == Some(state);
        self.check_set(states, is_theirs, |group, state| group.state == state)
    }

    fn check_set(
        &self,
        states: &[(u16, AccessState)],
        is_implied: impl Fn(u16, AccessState) -> bool,
        may_be: impl Fn(&Current, AccessState) -> bool,
    ) -> Result<(), Check> {
        // After the header, which is as long as a descriptor.
        let step = SetPortGroup::BYTES;
        let mut at = step;
        for (tag, state) in states {
            let byte = |field: u16| {
                Check::parameter_byte(u16::try_from(at).unwrap_or(u16::MAX).saturating_add(field))
            };
            match self.all.get(tag) {
                Some(group) if !group.configured.explicit || !may_be(group, *state) => {
                    return Err(byte(SetPortGroup::STATE.byte()));
                }
                None if !is_implied(*tag, *state) => return Err(byte(SetPortGroup::GROUP.byte())),
                Some(_) | None => {}
            }
            at = at.saturating_add(step);
        }
        Ok(())
    }

    /// A group, by tag.
    pub(crate) fn get(&self, tag: u16) -> Option<&Current> {
        self.all.get(&tag)
    }

    /// The tags of the groups, and their states.
    pub fn states(&self) -> impl Iterator<Item = (u16, AccessState)> {
        self.all.iter().map(|(tag, group)| (*tag, group.state))
    }

    /// The state of a port's group. ATA over Ethernet has no port, so it is in no group and may access the
    /// unit at any time.
    pub(crate) fn state_of(&self, port: u16) -> AccessState {
        let group = self.all.values().find(|group| group.ports.contains(&port));
        group.map_or(AccessState::Optimized, |group| group.state)
    }

    /// Why a command that comes through this port is not accepted, if so.
    pub(crate) fn refusal(&self, port: u16, accepted: Accepted) -> Option<Check> {
        accepted.refusal(self.state_of(port))
    }

    /// Ports through which the medium may be accessed now, but not after the change.
    pub(crate) fn deactivated(&self, after: &PortGroups) -> Vec<u16> {
        let ports = self.all.values().filter(|group| group.state.is_active()).flat_map(|group| &group.ports);
        ports.copied().filter(|port| !after.state_of(*port).is_active()).collect()
    }

    /// Whether the groups differ to initiators, in their states or preference.
    pub(crate) fn differ(&self, after: &PortGroups) -> bool {
        let of = |group: &Current| (group.state, group.configured.preferred);
        after.all.iter().any(|(tag, group)| self.all.get(tag).is_some_and(|before| of(before) != of(group)))
    }
}
