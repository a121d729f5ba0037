//! REPORT and SET TARGET PORT GROUPS, and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 sections 6.37, 6.45 and 6.36).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::media::{failed, refused, taken, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::port_groups::PortGroups;
use crate::state::unit::{OtherPort, Port};
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::AccessState;
use wire::scsi::command::{ReportSupportedFunctions, ReportTargetPortGroups, SetTargetPortGroups};
use wire::scsi::parameters::{GroupPort, PortGroup, PortGroupsHeader, SetPortGroup, TaskFunctions};

const FUNCTIONS: TaskFunctions = TaskFunctions {
    abort_task: true,
    abort_task_set: true,
    clear_task_set: true,
    unit_reset: true,
    target_reset: true,
    ..TaskFunctions::ZERO
};

/// PARAMETER DATA FORMAT: with an extended header.
const EXTENDED: u8 = 1;

/// REPORT TARGET PORT GROUPS.
pub(crate) fn groups<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(ReportTargetPortGroups::FORMAT) > EXTENDED {
        return Err(Check::cdb_field(ReportTargetPortGroups::FORMAT).into());
    }
    Ok(P::from(Answer::new(*cdb, cdb.get(ReportTargetPortGroups::ALLOCATION), build_groups)))
}

fn build_groups(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let mut body = Vec::new();
    let mut ports: Vec<&Port> = env.nexus.ports(&env.view.unit).collect();
    ports.sort_by_key(|port| port.group);
    for members in ports.chunk_by(|one, other| one.group == other.group) {
        let tag = members.first().map_or(0, |port| port.group);
        let ports = u8::try_from(members.len()).unwrap_or(u8::MAX);
        let group = descriptor(&env.view.policy.groups, tag, ports);
        push_group(&mut body, group, members.iter().map(|port| port.relative_id));
    }
    push_other_groups(env, &mut body);
    let header = PortGroupsHeader { format: EXTENDED, ..PortGroupsHeader::ZERO }.to_bytes();
    let extended: &[u8] = if cdb.get(ReportTargetPortGroups::FORMAT) == EXTENDED { &header } else { &[] };
    let len = body.len().saturating_add(extended.len());
    data.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    data.extend_from_slice(extended);
    data.extend_from_slice(&body);
    Ok(())
}

/// The groups of other gateways, whose tags no group here has.
fn push_other_groups(env: &Env<'_>, body: &mut Vec<u8>) {
    let mut others: Vec<&OtherPort> = env.nexus.other_ports(env.view).collect();
    others.sort_by_key(|port| port.group);
    for members in others.chunk_by(|one, other| one.group == other.group) {
        let Some(first) = members.first() else { continue };
        let ports = u8::try_from(members.len()).unwrap_or(u8::MAX);
        let group = PortGroup {
            supported: AccessState::SUPPORTED,
            group: first.group,
            ports,
            state: first.state.code(),
            ..PortGroup::ZERO
        };
        push_group(body, group, members.iter().map(|port| port.relative_id));
    }
}

/// A group with its ports.
fn push_group(body: &mut Vec<u8>, group: PortGroup, ports: impl Iterator<Item = u16>) {
    body.extend_from_slice(&group.to_bytes());
    for relative_id in ports.take(usize::from(group.ports)) {
        body.extend_from_slice(&GroupPort { relative_id }.to_bytes());
    }
}

fn descriptor(groups: &PortGroups, tag: u16, ports: u8) -> PortGroup {
    let group = PortGroup { supported: AccessState::SUPPORTED, group: tag, ports, ..PortGroup::ZERO };
    match groups.get(tag) {
        Some(current) => PortGroup {
            preferred: current.configured.preferred,
            state: current.state.code(),
            status: current.status,
            ..group
        },
        None => group,
    }
}

/// SET TARGET PORT GROUPS.
pub(crate) fn set_groups<P: From<SetPortGroups>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let len = admission.cdb().get(SetTargetPortGroups::LIST_BYTES);
    let is_whole = usize::try_from(len).is_ok_and(|len| len.checked_rem(SetPortGroup::BYTES) == Some(0));
    if !is_whole || len > SetPortGroups::LIST_BYTES_MAX || admission.request.write_bytes < len {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    Ok(P::from(SetPortGroups { len }))
}

/// The program of SET TARGET PORT GROUPS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetPortGroups {
    len: u32,
}

impl SetPortGroups {
    /// More descriptors than a unit can have groups with ports of their own.
    const LIST_BYTES_MAX: u32 = 4096;

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.len
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            // No groups; that is not an error (SPC-4 section 6.45).
            Event::Start if self.len == 0 => taken(0),
            Event::Start => Step::Fetch { at: 0, len: self.len },
            Event::Fetched => {
                let list = usize::try_from(self.len).ok().and_then(|len| env.buffer.get(..len));
                match states(env, list.unwrap_or_default()) {
                    Ok(states) => {
                        let from = env.nexus.identity();
                        Step::Home(Box::new(HomeRequest::SetAccessStates { from, states }))
                    }
                    Err(check) => refused(env, check),
                }
            }
            Event::Home(HomeReply::Done) => taken(self.len),
            Event::Home(HomeReply::Conflict) => refused(env, Failure::CONFLICT),
            Event::Home(HomeReply::Check(check)) => refused(env, check),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Stored(Ok(_)) | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}

/// The groups and states in a parameter list; they must be groups that are reported to the initiator.
fn states(env: &Env<'_>, list: &[u8]) -> Result<Vec<(u16, AccessState)>, Check> {
    let mut states = Vec::new();
    for (at, bytes) in (0u16..).step_by(SetPortGroup::BYTES).zip(list.chunks(SetPortGroup::BYTES)).skip(1) {
        let SetPortGroup { state, group } = SetPortGroup::read(bytes);
        let byte = |field: u16| Check::parameter_byte(at.saturating_add(field));
        let state = AccessState::of_code(state).ok_or_else(|| byte(SetPortGroup::STATE.byte()))?;
        let is_elsewhere = || env.nexus.other_ports(env.view).any(|port| port.group == group);
        if !env.nexus.ports(&env.view.unit).any(|port| port.group == group) && !is_elsewhere() {
            return Err(byte(SetPortGroup::GROUP.byte()));
        }
        states.push((group, state));
    }
    Ok(states)
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub(crate) fn functions<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let allocation = cdb.get(ReportSupportedFunctions::ALLOCATION);
    if allocation < 4 {
        return Err(Check::cdb_field(ReportSupportedFunctions::ALLOCATION).into());
    }
    Ok(P::from(Answer::new(*cdb, allocation, build_functions)))
}

/// REPD requests the extended form, without timeouts.
fn build_functions(_: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    if cdb.get(ReportSupportedFunctions::EXTENDED) {
        let following = TaskFunctions::EXTENDED_BYTES.saturating_sub(TaskFunctions::BYTES);
        let following_bytes = u8::try_from(following).unwrap_or(u8::MAX);
        data.extend_from_slice(&TaskFunctions { following_bytes, ..FUNCTIONS }.to_bytes());
        data.extend(std::iter::repeat_n(0, following));
    } else {
        data.extend_from_slice(&FUNCTIONS.to_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
