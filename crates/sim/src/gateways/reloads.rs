//! Reloads: a gateway gets another portal, in a group of its own, which moves to another group and goes again.

use super::Scene;
use super::member::{Course, Member, name};
use config::{Config, StepOfChange};
use std::collections::{BTreeSet, VecDeque};

/// A reload under way.
pub(super) struct Reload {
    to: Config,
    steps: VecDeque<StepOfChange>,
    /// A step has begun.
    is_changing: bool,
}

impl Member {
    /// The groups of its portals.
    fn groups(&self) -> BTreeSet<u16> {
        [self.number as u16 + 1].into_iter().chain(self.extra).collect()
    }
}

impl Scene {
    /// A gateway's configuration changes.
    pub(super) fn reload(&mut self, member: usize) {
        let group = self.net.borrow_mut().rng.u16(1..3) * 10 + member as u16;
        let one = &mut self.members[member];
        let (None, Course::Serves, Some(daemon)) = (&one.reload, one.course, &one.daemon) else { return };
        let extra = if one.extra == Some(group) { None } else { Some(group) };
        let from = daemon.cores.config().clone();
        one.extra = extra;
        let to = one.config(&self.plan);
        let steps = config::diff(&from, &to).into();
        one.reload = Some(Reload { to, steps, is_changing: false });
        self.note(&[41, member as u64], || format!("gateway {member} gets groups {extra:?} besides its own"));
        self.look_around(member);
    }

    /// A reload continues.
    ///
    /// # Errors
    /// When a step is impossible.
    pub(super) fn go_on_reloading(&mut self, member: usize) -> Result<(), String> {
        let one = &mut self.members[member];
        let (Some(reload), Some(daemon)) = (&mut one.reload, &mut one.daemon) else { return Ok(()) };
        loop {
            if reload.is_changing && daemon.cores.go_on_changing().is_none() {
                return Ok(());
            }
            let Some(step) = reload.steps.pop_front() else { break };
            reload.is_changing = true;
            let (net, door) = (&self.net, &mut one.door);
            let listen = |address| *door.insert(net.borrow_mut().listen(address));
            daemon.cores.begin_step(&step, &reload.to, listen, |_, _| Ok(Vec::new()))?;
            daemon.look_around(&self.net, usize::MAX);
        }
        one.reload = None;
        if one.extra.is_none()
            && let Some(door) = one.door.take()
        {
            self.net.borrow_mut().close(door);
        }
        Ok(())
    }

    /// Whether no reload is under way, and the object has the groups of all gateways as they are.
    pub(super) fn knows_groups(&self) -> bool {
        let Some(record) = &self.record else { return false };
        let groups = |number| -> BTreeSet<u16> {
            record.gateways.get(&name(number)).into_iter().flatten().map(|port| port.group).collect()
        };
        self.members.iter().all(|one| one.reload.is_none() && groups(one.number) == one.groups())
    }
}
