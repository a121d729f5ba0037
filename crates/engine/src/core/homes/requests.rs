//! How requests to a home are carried out: published to every core, and answered when all have applied them.

use super::{Current, Publication};
use crate::core::Core;
use crate::core::connection::Connection;
use crate::core::lun::{LunState, NO_LUN};
use crate::core::task::{State, Task};
use crate::core::unit::Unit;
use crate::events::Event;
use crate::gateway_handle::{Forward, GatewayEvent, Requester};
use crate::housekeeper::Job;
use crate::message::{Message, Origin, Waiter};
use crate::slots::Key;
use reactor::io::Io;
use reactor::limited;
use scsi::attention::UnitAttention;
use scsi::sense::Check;
use scsi::{HomeReply, HomeRequest, NexusId, PortGroups, Publish, Who};
use std::sync::Arc;
use tracing::Level;
use wire::scsi::{AccessState, lun};

impl<I: Io> Core<I> {
    pub(in crate::core) fn home_request(&mut self, unit: u32, origin: Origin, request: HomeRequest) {
        match self.units.home_mut(unit) {
            Some(home) if home.current.is_some() => home.queue.push_back((origin, request)),
            // The queue is empty while no request is in progress, and has no memory until one has had to
            // wait.
            Some(_) => self.home_decide(unit, origin, request),
            // The unit has gone, and with it all that it knew of a nexus.
            None => self.post(origin.core, Message::Answer { origin, reply: HomeReply::Done }),
        }
    }

    fn home_next(&mut self, unit: u32) {
        while let Some(home) = self.units.home_mut(unit).filter(|home| home.current.is_none()) {
            let Some((origin, request)) = home.queue.pop_front() else { return };
            self.home_decide(unit, origin, request);
        }
    }

    /// Decides a request while no other is in progress, and answers it if it changes nothing.
    fn home_decide(&mut self, unit: u32, origin: Origin, request: HomeRequest) {
        let Some(home) = self.units.home_mut(unit) else { return };
        if let Some(body) = home.home.forwards(&request) {
            let forward = GatewayEvent::Forward(Box::new(Forward { origin, request, body }));
            return self.ask_gateway(unit, origin, forward, Check::PORT_IN_STANDBY);
        }
        if home.home.is_wanted(&request) {
            let activate = GatewayEvent::Activate(Requester::Initiator(origin));
            return self.ask_gateway(unit, origin, activate, Check::SET_GROUPS_FAILED);
        }
        let by = reserver(&request);
        let (reply, publish) = home.home.handle(request);
        let is_final = !home.home.can_undo();
        let Some(publish) = publish else {
            return self.post(origin.core, Message::Answer { origin, reply });
        };
        let persist = publish.persist.clone();
        home.current = Some(Current { origin, reply, publish: Arc::new(publish), by, awaited: 0 });
        match persist {
            Some(state) => self.persist(unit, state, is_final),
            None => self.publish(unit),
        }
    }

    /// A task was aborted: its request to its unit's home is dropped, unless it has begun.
    pub(in crate::core) fn recall_request(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key).filter(|task| task.state == State::AtHome) else { return };
        let (unit, origin) = (task.unit, Origin { core: self.me, who: Waiter::Task(key) });
        // Ahead of this core's answer to the publication that aborts it, if that is the reason.
        self.post(self.units[unit].home_core, Message::Recall { unit, origin });
    }

    pub(in crate::core) fn home_recall(&mut self, unit: u32, origin: Origin) {
        let Some(home) = self.units.home_mut(unit) else { return };
        // The outcome of what was done must be known.
        let is_meant = |(other, request): &(Origin, HomeRequest)| {
            *other == origin && !matches!(request, HomeRequest::EraseEnd { .. })
        };
        if let Some(index) = home.queue.iter().position(is_meant) {
            home.queue.remove(index);
            self.post(origin.core, Message::recalled(origin));
        } else if let Some(gateway) = &self.units[unit].gateway {
            // It may be for the active gateway to execute. That thread may have ended, and has answered in
            // that case.
            let _ = gateway.send(GatewayEvent::Recall(origin));
        }
    }

    /// Leaves a request to the unit's gateway thread, which does not block the home for others meanwhile.
    /// `otherwise`: the outcome if there is no such thread any more.
    fn ask_gateway(&mut self, unit: u32, origin: Origin, event: GatewayEvent, otherwise: Check) {
        let sent = self.units[unit].gateway.as_ref().map(|gateway| gateway.send(event));
        if !matches!(sent, Some(Ok(()))) {
            self.post(origin.core, Message::Answer { origin, reply: HomeReply::Check(otherwise) });
        }
    }

    /// All cores have applied what a request of another gateway changed.
    pub(in crate::core) fn executed_for_other(&mut self, unit: u32, reply: &HomeReply) {
        if let Some(gateway) = self.units.get(unit).and_then(|unit| unit.gateway.as_ref()) {
            // The thread may have ended.
            let _ = gateway.send(GatewayEvent::Executed(reply.encode()));
        }
    }

    /// All cores have applied the role of a unit that gateways share.
    pub(in crate::core) fn role_applied(&mut self, unit: u32, reply: &HomeReply) {
        if let Some(gateway) = self.units.get(unit).and_then(|unit| unit.gateway.as_ref()) {
            // The thread may have ended.
            let _ = gateway.send(GatewayEvent::Applied(*reply == HomeReply::Done));
        }
    }

    fn persist(&mut self, unit: u32, state: Vec<u8>, is_final: bool) {
        let current = self.units.home_mut(unit).and_then(|home| home.current.as_ref());
        let is_other = |current: &&Current| matches!(current.origin.who, Waiter::OtherGateway(_));
        let outcome = current.filter(is_other).map(|current| current.reply.encode());
        let ends = current.is_some_and(|current| !current.publish.aborts.is_empty());
        if let Some(gateway) = &self.units[unit].gateway {
            if gateway.send(GatewayEvent::Save { state, outcome, ends }).is_err() {
                self.home_persisted(unit, false);
            }
            return;
        }
        let serial = self.units[unit].view.unit.serial.clone();
        let job = Job::Persist { unit, serial, state, is_final, core: self.me };
        if self.shared.housekeeper.send(job).is_err() {
            self.home_persisted(unit, false);
        }
    }

    /// The state directory has saved, or could not save, what must survive before the request is answered.
    pub(in crate::core) fn home_persisted(&mut self, unit: u32, ok: bool) {
        let Some(home) = self.units.home_mut(unit) else { return };
        if ok || !home.home.undo() {
            return self.publish(unit);
        }
        if let Some(Current { origin, .. }) = home.current.take() {
            let reply = HomeReply::Check(Check::INTERNAL);
            self.post(origin.core, Message::Answer { origin, reply });
        }
        self.home_next(unit);
    }

    fn publish(&mut self, unit: u32) {
        let cores = self.cores();
        let Some(home) = self.units.home_mut(unit) else { return };
        let Some(current) = &mut home.current else { return };
        current.awaited = cores;
        let (origin, publish) = (current.origin, current.publish.clone());
        for core in 0..cores {
            let message = Message::Publish { unit, publish: publish.clone(), origin, home: self.me };
            self.post(core, message);
        }
    }

    /// One more core has applied the current publication.
    pub(in crate::core) fn home_applied(&mut self, unit: u32) {
        let Some(home) = self.units.home_mut(unit) else { return };
        let Some(current) = &mut home.current else { return };
        current.awaited -= 1;
        if current.awaited > 0 {
            return;
        }
        if let Some(Current { origin, reply, publish, by, .. }) = home.current.take() {
            self.report_preempted(unit, &publish, by);
            self.post(origin.core, Message::Answer { origin, reply });
        }
        self.home_next(unit);
    }

    /// Reports that reservations or registrations of others were removed, on all cores.
    fn report_preempted(&self, unit: u32, publish: &Publish, by: Option<NexusId>) {
        let is_one = |attention: UnitAttention| {
            matches!(attention, UnitAttention::ReservationsPreempted | UnitAttention::RegistrationsPreempted)
        };
        if publish.attentions.iter().any(|(_, attention)| is_one(*attention)) {
            self.shared.events.report(|| Event::Preempted {
                lun: self.units[unit].name.clone(),
                by: by.and_then(|by| self.shared.registry.initiator(by.0)),
            });
        }
    }

    /// Applies what a unit's home published.
    pub(in crate::core) fn apply(&mut self, unit: u32, publish: &Arc<Publish>, origin: Origin, home: usize) {
        if self.units[unit].home.is_some() {
            self.report_states(unit, &publish.policy.groups);
        }
        self.units[unit].view.policy = publish.policy.clone();
        if let Some(new) = &publish.unit {
            self.units[unit].view.unit = new.clone();
            if let (Some(_), Some(gateway)) = (&self.units[unit].home, &self.units[unit].gateway) {
                let _ = gateway.send(GatewayEvent::Configured(new.clone()));
            }
        }
        self.units[unit].published = Some(publish.clone());
        if self.units[unit].home.is_some() {
            self.units[unit].meter.publish(self.units[unit].view.clone());
        }
        let requester = match origin {
            Origin { core, who: Waiter::Task(key) } if core == self.me => Some(key),
            _ => None,
        };
        match origin.who {
            Waiter::Function(requester) if !publish.aborts.is_empty() => {
                self.forget_unread(unit, Some(requester.nexus));
            }
            // Another gateway has reset the unit, maybe for a nexus here.
            Waiter::Gateway(_) if publish.aborts.iter().any(|(who, _)| *who == Who::Everyone) => {
                self.forget_unread(unit, None);
            }
            _ => {}
        }
        let (mut left, cleared) = self.abort_published(unit, publish, requester);
        self.notify_published(unit, publish, &cleared);
        if !publish.aborts.is_empty() || !publish.deactivated.is_empty() {
            // Tasks aborted earlier may still be on their way to the medium as well.
            let lingering = |task: &Task| task.touches(unit) && task.may_still_write();
            let before = self.tasks.iter().filter(|(_, task)| lingering(task)).map(|(key, _)| key);
            left.extend(before.filter(|key| !left.contains(key)).collect::<Vec<_>>());
        }
        let publication = Publication { unit, home, tasks: left };
        if publication.tasks.is_empty() {
            self.post(home, Message::Applied { unit });
        } else {
            self.units.publications.push(publication);
        }
        self.serve_arrivals();
        self.open_gate(unit);
    }

    /// Aborts what this publication aborts, except the requesting task. Returns the tasks that have yet to
    /// end, and the nexuses that had any.
    fn abort_published(
        &mut self,
        unit: u32,
        publish: &Publish,
        requester: Option<Key>,
    ) -> (Vec<Key>, Vec<NexusId>) {
        let mut left = Vec::new();
        let mut cleared = Vec::new();
        for (who, how) in &publish.aborts {
            let ours = |key: Key, task: &Task| {
                let nexus = self.nexus_of(task).filter(|nexus| task.touches(unit) && who.includes(nexus))?;
                (Some(key) != requester).then_some((key, nexus.id))
            };
            let victims: Vec<_> = self.tasks.iter().filter_map(|(key, task)| ours(key, task)).collect();
            let lending = self.lending(unit, |nexus| who.includes(nexus));
            for (connection, nexus) in lending {
                cleared.push(nexus);
                self.abort_immediate_reads(connection, Some(unit), *how);
            }
            for (key, nexus) in victims {
                cleared.push(nexus);
                if !self.abort(key, Some(*how)) {
                    left.push(key);
                }
            }
        }
        if !publish.deactivated.is_empty() {
            left.extend(self.deactivate(unit, &publish.deactivated));
        }
        (left, cleared)
    }

    /// Establishes the unit attentions of this publication; COMMANDS CLEARED only for nexuses that had
    /// commands.
    fn notify_published(&mut self, unit: u32, publish: &Publish, cleared: &[NexusId]) {
        let mut notified = Vec::new();
        for (key, conn) in self.connections.iter_mut() {
            // A session that has moved here from a core that was ahead has been notified already.
            let is_news = |lun: &LunState| lun.unit == unit && lun.nexus.access_epoch < publish.policy.epoch;
            for lun in conn.luns.iter_mut().filter(|lun| is_news(lun)) {
                lun.nexus.sync(&publish.policy);
                for (who, attention) in &publish.attentions {
                    // Only a nexus that had commands gets COMMANDS CLEARED (SAM-5 section 5.14.1).
                    let concerns =
                        *attention != UnitAttention::CommandsCleared || cleared.contains(&lun.nexus.id);
                    if who.includes(&lun.nexus) && concerns {
                        lun.nexus.establish(*attention);
                        if attention.is_of_unit() && lun.number != NO_LUN {
                            let sense = attention.check().encode(&publish.policy.modes);
                            conn.machine.notify_event(lun::of_number(lun.number), sense);
                            notified.push(key);
                        }
                    }
                }
            }
        }
        notified.into_iter().for_each(|key| self.mark_dirty(key));
    }

    /// Commands of this nexus, or of all, that have arrived, but are not tasks yet as their descriptors are still
    /// being read, are aborted too: to their initiator there is no difference.
    fn forget_unread(&mut self, unit: u32, nexus: Option<NexusId>) {
        let is_meant = |conn: &Connection| nexus.is_none_or(|nexus| conn.nexus == nexus);
        for key in self.keys_where(|conn| is_meant(conn) && conn.machine.is_rdma()) {
            let Some(conn) = self.connections.get_mut(key) else { continue };
            let Connection { machine, luns, .. } = conn;
            let is_here =
                |lun| luns.iter().any(|state| state.unit == unit && lun::number(lun) == Some(state.number));
            for wire in machine.forget_unread(is_here) {
                self.quiesce_transfer(key, wire, unit, None);
            }
            self.mark_dirty(key);
        }
    }

    /// An aborted task has really ended.
    pub(in crate::core) fn settled(&mut self, task: Key) {
        self.release_publications(task);
        self.function_settled(task);
        self.report_quiesced();
        self.connection_settled(task);
    }

    /// Publications no longer have to wait for this task.
    pub(in crate::core) fn release_publications(&mut self, task: Key) {
        for publication in &mut self.units.publications {
            publication.tasks.retain(|key| *key != task);
        }
        let mut applied = Vec::new();
        self.units.publications.retain(|publication| {
            let over = publication.tasks.is_empty();
            if over {
                applied.push((publication.home, publication.unit));
            }
            !over
        });
        for (home, unit) in applied {
            self.post(home, Message::Applied { unit });
        }
    }

    /// Keeps tasks that came through these ports from doing anything more to the medium of a unit. Returns
    /// those whose storage operation has not returned yet. A task that waits for something else ends when it
    /// is about to access the medium; its initiator gets no response before that is certain, as it may then
    /// retry through another port.
    fn deactivate(&mut self, unit: u32, ports: &[u16]) -> Vec<Key> {
        let is_meant = |task: &Task| {
            let nexus = self.nexus_of(task).filter(|_| task.touches(unit));
            nexus.is_some_and(|nexus| ports.contains(&nexus.target_port))
        };
        let meant = self.tasks.iter().filter(|(_, task)| is_meant(task)).map(|(key, _)| key);
        let mut meant: Vec<Key> = meant.collect();
        meant.retain(|key| self.tasks.get_mut(*key).is_some_and(Task::deactivate));
        meant
    }

    /// Logs which target port groups of a unit have changed their state.
    fn report_states(&self, unit: u32, after: &PortGroups) {
        let Unit { name, view, .. } = &self.units[unit];
        let before: Vec<(u16, AccessState)> = view.policy.groups.states().collect();
        for (group, state) in after.states().filter(|now| !before.contains(now)) {
            limited!(
                "asymmetric access states that changed", 200 at once, Level::INFO,
                lun = %name, group, "the target port group is now {}", state.name()
            );
        }
    }
}

/// The nexus that requests a change of reservations.
fn reserver(request: &HomeRequest) -> Option<NexusId> {
    match request {
        HomeRequest::PersistentReserveOut { from, .. } | HomeRequest::Export { from, .. } => Some(from.nexus),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
