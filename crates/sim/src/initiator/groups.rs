//! REPORT TARGET PORT GROUPS (SPC-4 section 6.37), and whether its own path is in the state that was reported.

use super::{ATTENTION_WORD, BUSY_WORD, GOOD_WORD, Initiator, Kind, STANDBY_WORD, Task, orders};
use crate::groups::Groups;
use proto::iscsi::initiator::Completion;
use proto::time::Time;
use reactor::io::Io;
use wire::Places;
use wire::scsi::command::ReportTargetPortGroups;
use wire::scsi::parameters::PortGroup;
use wire::scsi::{AccessState, Command as _, code};

/// Bytes of its data, at most.
const BYTES: u32 = 512;

impl Initiator {
    /// Asks for the groups of all gateways.
    pub(super) fn report_groups(&mut self, now: Time, unit: usize) {
        let Some(place) = self.take(BYTES) else { return };
        let cdb = ReportTargetPortGroups::new(BYTES).to_cdb();
        let Some(id) = self.start(unit, cdb, place, Places::EMPTY) else { return self.give(&place) };
        self.note(&[13, u64::from(id.slot)], || format!("command {} queries port groups", id.slot));
        self.sent(Task::new(id, unit, Kind::Groups, place, now), false);
    }

    /// A command was sent, with the attribute HEAD OF QUEUE or another one.
    pub(super) fn sent(&mut self, task: Task, is_head: bool) {
        if self.has_paths() {
            self.paths.path.begins(task.id, is_head);
        }
        self.tasks.push(task);
    }

    /// Checks what a command says of groups, or has found of its own.
    pub(super) fn look_at_groups(
        &mut self,
        now: Time,
        task: &Task,
        completion: &Completion,
        outcome: &str,
    ) -> Result<(), String> {
        let Some(truth) = self.place.truth.clone() else { return Ok(()) };
        let path = &mut self.paths.path;
        match (outcome, task.kind) {
            (GOOD_WORD, Kind::Groups) => {
                let data = self.kernel.arena().to_vec(&task.places);
                let groups = reported(&data[..completion.read_bytes as usize])?;
                let (gateway, truth) = (self.paths.at, truth.borrow());
                let from = truth.has_worked_from(gateway);
                truth.views.reports(gateway, [task.began, from], &groups)?;
                path.is(now, task.began, groups[&(gateway as u16 + 1)]);
            }
            (GOOD_WORD, Kind::Read(_) | Kind::Write(..) | Kind::Durable(..)) => {
                path.finds(task.id, task.began, true)?;
            }
            // While it changes, there is none yet.
            (STANDBY_WORD, Kind::Read(_) | Kind::Write(..) | Kind::Durable(..))
                if orders::additional_code(completion) == code::PORT_IN_STANDBY =>
            {
                path.finds(task.id, task.began, false)?;
            }
            // It says that the state has changed, or that much else may have.
            (ATTENTION_WORD, _) => {
                let what = orders::additional_code(completion);
                if what == code::ASYMMETRIC_ACCESS_STATE_CHANGED || what >> 8 == code::POWER_ON_OR_RESET >> 8
                {
                    path.forget(now);
                }
            }
            (GOOD_WORD | STANDBY_WORD | BUSY_WORD, _) => {}
            // A command that was aborted may have had the unit attention.
            _ => path.forget(now),
        }
        path.ends(task.id)
    }
}

/// The groups in the data.
fn reported(data: &[u8]) -> Result<Groups, String> {
    let len = data.first_chunk().map_or(0, |len| u32::from_be_bytes(*len) as usize);
    let mut rest = data.get(4..4 + len).ok_or_else(|| format!("{len} bytes of groups in {}", data.len()))?;
    let mut groups = Groups::new();
    while rest.len() >= PortGroup::BYTES {
        let group = PortGroup::read(rest);
        let state = AccessState::of_code(group.state).ok_or_else(|| format!("no state: {}", group.state))?;
        if group.ports == 0 || groups.insert(group.group, state).is_some() {
            return Err(format!("group {} has {} ports, or is reported twice", group.group, group.ports));
        }
        rest = rest.get(PortGroup::BYTES + 4 * usize::from(group.ports)..).unwrap_or_default();
    }
    Ok(groups)
}
