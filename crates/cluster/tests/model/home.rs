//! The home of a gateway's unit, and its initiators.

use super::*;

impl World {
    /// Initiators read and write through whatever is active, and change state that must survive.
    pub(super) fn load(&mut self, index: usize) {
        let pause = self.rng.u64(20..200);
        self.post(index, pause, Event::Load);
        if !self.gateways[index].is_active {
            self.request(index);
        }
        if !self.gateways[index].serves {
            return;
        }
        let (block, is_write) = (self.rng.usize(..BLOCKS), self.rng.bool());
        let delay = self.delay();
        self.requests += 1;
        let gateway = &mut self.gateways[index];
        let (id, state, client) = (self.requests, gateway.saved.len(), gateway.client.clone());
        let is_out = self.shut_out.contains_key(&client);
        gateway.in_flight.insert(id, (state, self.now));
        self.outstanding.insert(id, Outstanding { client, state, released: None });
        let request = Request {
            id,
            client: gateway.client.clone(),
            life: gateway.life,
            epoch: gateway.epoch,
            block,
            is_write,
            map: 0,
            state,
            acked: self.acked,
            issued: self.now,
            is_out,
        };
        self.post(index, delay, Event::Send(request));
        let gateway = &mut self.gateways[index];
        if gateway.is_active && gateway.asked.len() < 3 && self.rng.u32(..5) == 0 {
            let id = self.next_id();
            self.ask(index, Ask::Change(Change { id, is_forwarded: false }));
        }
    }

    fn next_id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    /// An initiator at a gateway in standby requests a change.
    fn request(&mut self, index: usize) {
        if self.gateways[index].asking.len() < 3 && self.rng.u32(..10) == 0 {
            let (id, now) = (self.next_id(), Duration::from_millis(self.now));
            let gateway = &mut self.gateways[index];
            gateway.asking.insert(id, false);
            gateway.machine.ask(now, id.into(), id.to_be_bytes().into());
            self.turn(index);
        }
        if self.rng.u32(..20) == 0 {
            self.recall(index);
        }
    }

    /// An initiator aborts its request to a gateway in standby.
    fn recall(&mut self, index: usize) {
        let nth = self.rng.usize(..3);
        let now = Duration::from_millis(self.now);
        let gateway = &mut self.gateways[index];
        let Some((id, is_recalled)) = gateway.asking.iter_mut().nth(nth) else { return };
        let id = *id;
        *is_recalled = true;
        self.recalled += 1;
        if gateway.machine.recall(now, id.into()) {
            gateway.asking.remove(&id);
            self.declined.insert(id);
        }
        self.turn(index);
    }

    /// The answer to an initiator of a gateway in standby.
    pub(super) fn answered(&mut self, index: usize, id: u16, outcome: &Outcome) {
        let is_recalled = self.gateways[index].asking.remove(&id).expect("it is answered once");
        match outcome {
            Outcome::Executed(reply) if reply.is_empty() => {}
            Outcome::Executed(_) => {
                self.forwarded += 1;
                let newest = self.object.as_ref().map_or(0, |(_, record)| record.epoch);
                let is_applied = self.applied.contains(&id);
                if is_recalled && self.access == Access::All {
                    // Nobody waits for its effect.
                    return;
                }
                // If it is not yet applied where it was executed, that gateway is fenced.
                self.promised.insert(id);
                self.check_force(id);
                if !is_applied && self.executed_in.get(&id).is_none_or(|epoch| *epoch == newest) {
                    self.find(|| format!("g{index} answers {id}, which is not done"));
                }
            }
            Outcome::NotExecuted if self.gateways[index].is_active && !is_recalled => {
                self.ask(index, Ask::Change(Change { id, is_forwarded: false }));
            }
            Outcome::NotExecuted => {
                self.declined.insert(id);
            }
            Outcome::Unknown => {}
        }
    }

    pub(super) fn ask(&mut self, index: usize, ask: Ask) {
        self.gateways[index].asked.push_back(ask);
        let delay = self.delay();
        self.post(index, delay, Event::Home);
    }

    pub(super) fn home(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        if gateway.leaves || gateway.adopting || gateway.keeping.is_some() || gateway.publishing {
            return;
        }
        match gateway.asked.pop_front() {
            None => return,
            Some(Ask::Change(change)) => return self.change(index, change),
            Some(Ask::Deactivate) => {
                (gateway.is_active, gateway.serves, gateway.leaves) = (false, false, true);
            }
            Some(Ask::Adopt(saved)) if self.mutant == Mutant::AppliedEarly && gateway.serves => {
                let delay = self.delay();
                self.post(index, delay, Event::Takes(ids(&saved)));
                self.post(index, 0, Event::Applied);
            }
            Some(Ask::Adopt(saved)) => {
                (gateway.saved, gateway.adopting) = (ids(&saved), true);
                gateway.serves |= self.mutant == Mutant::ServesUnlisted;
                self.check_once(index);
            }
            Some(Ask::Join(saved)) => {
                (gateway.serves, gateway.saved, gateway.adopting) = (true, ids(&saved), true);
                self.check_once(index);
            }
            Some(Ask::Activate(saved, epoch)) => {
                (gateway.is_active, gateway.saved, gateway.epoch) = (true, ids(&saved), epoch);
                (gateway.serves, gateway.adopting) = (true, true);
                self.check_once(index);
                self.check_promises(index);
            }
        }
        self.settle(index);
    }

    /// A home that goes to standby has applied that when nothing is in flight, one that changes its state when all
    /// has ended that was admitted before; then it continues.
    pub(super) fn settle(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        let newest = gateway.saved.len();
        let is_old = |(state, _): &(usize, u64)| self.access == Access::All && *state < newest;
        let has_old = gateway.in_flight.values().any(is_old);
        let changes = gateway.keeping.is_some() || gateway.publishing;
        let has_left = gateway.leaves && gateway.in_flight.is_empty() && !changes;
        let begun = if has_left { std::mem::take(&mut gateway.begun) } else { 0 };
        let has_adopted = gateway.adopting && !has_old;
        gateway.leaves &= !has_left;
        gateway.adopting &= !has_adopted;
        let published = gateway.published.take_if(|(_, ok)| !*ok || !has_old);
        if has_left || has_adopted {
            let applied = usize::from(has_left) + usize::from(has_adopted) + begun;
            (0..applied).for_each(|_| self.post(index, 0, Event::Applied));
            self.post(index, 0, Event::Home);
        }
        if let Some((change, ok)) = published {
            self.published(index, change, ok);
        }
    }

    /// A request has been executed or refused.
    pub(super) fn ended(&mut self, index: usize, id: u64, ok: bool) {
        let gateway = &mut self.gateways[index];
        if !gateway.in_flight.contains_key(&id) {
            return;
        }
        if !ok {
            gateway.machine.fenced();
        }
        if ok || self.access == Access::One {
            gateway.in_flight.remove(&id);
        } else if self.mutant == Mutant::EndsEarly {
            self.release(index);
        }
        self.settle(index);
        self.turn(index);
    }

    /// Initiators know, or believe, that whatever they have sent to a gateway is over.
    pub(super) fn release(&mut self, index: usize) {
        for id in std::mem::take(&mut self.gateways[index].in_flight).into_keys() {
            if let Some(outstanding) = self.outstanding.get_mut(&id) {
                outstanding.released = Some(self.now);
            }
        }
    }

    /// The home takes nothing more.
    pub(super) fn withdraw(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        (gateway.is_active, gateway.serves, gateway.leaves) = (false, false, true);
        gateway.asked.retain(|ask| {
            let is_change = matches!(ask, Ask::Change(_));
            gateway.begun += usize::from(!is_change);
            is_change
        });
        self.settle(index);
    }

    /// The home ends everything, since its client is fenced.
    pub(super) fn abandon(&mut self, index: usize) {
        self.release(index);
        let gateway = &mut self.gateways[index];
        (gateway.is_active, gateway.serves) = (false, false);
        let leaves = usize::from(std::mem::take(&mut gateway.leaves));
        let adopting = usize::from(std::mem::take(&mut gateway.adopting));
        let begun = 1 + std::mem::take(&mut gateway.begun) + leaves + adopting;
        (0..begun).for_each(|_| self.post(index, 0, Event::Applied));
        self.settle(index);
        self.post(index, 0, Event::Home);
    }

    /// The home makes a change.
    fn change(&mut self, index: usize, change: Change) {
        let gateway = &mut self.gateways[index];
        if !gateway.is_active {
            // It was requested by an initiator of this gateway: the home would forward it.
            return self.post(index, 0, Event::Home);
        }
        let all = gateway.saved.iter().copied().chain([change.id]).flat_map(u16::to_be_bytes).collect();
        gateway.keeping = Some(change);
        self.executed_in.insert(change.id, gateway.epoch);
        self.executed_by.insert(change.id, gateway.client.clone());
        let outcome = change.is_forwarded && self.mutant != Mutant::ReplyApart;
        let outcome = outcome.then(|| change.id.to_be_bytes().into());
        let ends = ends(change.id) && self.mutant != Mutant::EndsUnannounced;
        gateway.machine.save(all, outcome, ends);
        if self.mutant == Mutant::AcknowledgedEarly {
            self.promised.insert(change.id);
        }
        self.turn(index);
    }

    /// All cores have applied a change, or it was not saved.
    fn published(&mut self, index: usize, change: Change, ok: bool) {
        if ok {
            self.applied.insert(change.id);
        }
        let gateway = &mut self.gateways[index];
        gateway.publishing = false;
        if ok {
            self.check_force(change.id);
        }
        let gateway = &mut self.gateways[index];
        if change.is_forwarded {
            gateway.machine.executed(if ok { change.id.to_be_bytes().into() } else { Vec::new() });
        }
        self.post(index, 0, Event::Home);
        self.settle(index);
        self.turn(index);
    }
}
