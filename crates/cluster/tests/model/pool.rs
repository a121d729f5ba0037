//! The pool, the image, and the monitors.

use super::*;

impl World {
    /// How long the monitors have yet to answer a call of this gateway, which waits for that.
    pub(super) fn is_deaf(&self, index: usize, action: &Action) -> u64 {
        let asks = matches!(
            action,
            Action::Promote { .. } | Action::CatchUp | Action::Fence { .. } | Action::Reopen
        );
        let until = self.deaf_until.max(self.gateways[index].deaf_until);
        if asks { until.saturating_sub(self.now) } else { 0 }
    }

    pub(super) fn effect(&mut self, index: usize, action: Action) {
        let client = self.gateways[index].client.clone();
        let returned = match action {
            Action::Read => Returned::Read(Box::new(self.object.clone())),
            Action::Replace { expected, record } => self.replace(index, expected, *record),
            Action::Promote { fence } => {
                self.blocklist(index, fence);
                Returned::Fenced
            }
            Action::Fence { clients } => {
                self.blocklist(index, clients);
                Returned::FencedOthers
            }
            Action::CatchUp => Returned::CaughtUp(if self.shut_out.contains_key(&client) {
                self.gateways[index].machine.fenced();
                Err("shut out".into())
            } else {
                if self.mutant != Mutant::NotCaughtUp {
                    self.gateways[index].map = self.map;
                }
                Ok(())
            }),
            Action::Demote => {
                if self.lock.as_ref() == Some(&client) {
                    self.lock = None;
                }
                Returned::Demoted
            }
            Action::Reopen => {
                self.reopen(index);
                Returned::Reopened
            }
            Action::Join { .. }
            | Action::Adopt { .. }
            | Action::Activate { .. }
            | Action::Deactivate { .. }
            | Action::Saved(_)
            | Action::Execute { .. }
            | Action::Answer { .. } => {
                unreachable!("no calls to the cluster")
            }
        };
        let returned = match returned {
            Returned::Fenced => {
                // Then it takes the lock, if its owner is certainly gone.
                let is_free = self
                    .lock
                    .as_ref()
                    .is_none_or(|owner| self.shut_out.contains_key(owner) || *owner == client);
                Returned::Promoted(if self.shut_out.contains_key(&client) {
                    self.gateways[index].machine.fenced();
                    Err("shut out".into())
                } else if self.access == Access::All {
                    Ok(())
                } else if is_free {
                    self.lock = Some(client);
                    Ok(())
                } else {
                    Err("another client lives".into())
                })
            }
            other => other,
        };
        let delay = self.delay();
        self.post(index, delay, Event::Return(returned));
    }

    /// What its old client has in flight ends on its own.
    fn reopen(&mut self, index: usize) {
        let gateway = &mut self.gateways[index];
        gateway.clients += 1;
        gateway.client = format!("g{index}.{}.{}", gateway.life, gateway.clients);
    }

    /// A call that the cluster does not answer in time takes effect once it can, mostly.
    pub(super) fn strays(&mut self, index: usize, rest: u64, action: &Action) {
        if self.rng.u32(..4) > 0 {
            let gateway = &mut self.gateways[index];
            gateway.hanging += u32::from(is_of_image(action));
            let stray = Event::Stray(action.clone(), gateway.client.clone(), gateway.life);
            let delay = self.delay();
            self.post(index, rest + delay, stray);
        }
    }

    /// A call takes effect that nobody waits for.
    pub(super) fn stray(&mut self, index: usize, action: Action, client: &str, life: u64) {
        let gateway = &mut self.gateways[index];
        if gateway.life == life {
            gateway.hanging -= u32::from(is_of_image(&action));
        }
        let lives = gateway.life == life && gateway.is_alive;
        let is_its = lives && gateway.client == client;
        match action {
            Action::Replace { expected, record } => _ = self.replace(index, expected, *record),
            Action::Promote { fence: clients } | Action::Fence { clients } => {
                let map = gateway.map;
                self.blocklist(index, clients);
                if !is_its {
                    self.gateways[index].map = map;
                }
            }
            Action::CatchUp if is_its => self.gateways[index].map = self.map,
            Action::Demote if self.lock.as_deref() == Some(client) => self.lock = None,
            Action::Reopen if lives => self.reopen(index),
            _ => {}
        }
    }

    fn replace(&mut self, index: usize, expected: Option<u64>, record: Record) -> Returned {
        if self.object.as_ref().map(|(version, _)| *version) == expected {
            let version = expected.unwrap_or(0) + 1;
            self.claims += u64::from(self.object.as_ref().map_or(0, |(_, now)| now.epoch) != record.epoch);
            self.notify(index, &record);
            self.object = Some((version, record));
            let gateway = &mut self.gateways[index];
            self.longest = self.longest.max(self.now - gateway.wrote);
            gateway.wrote = self.now;
            gateway.is_promoted = false;
            Returned::Replaced(Ok(version))
        } else if self.mutant == Mutant::Unconfirmed && self.gateways[index].is_promoted {
            Returned::Replaced(Ok(expected.unwrap_or(0)))
        } else {
            Returned::Replaced(Err(ReplaceError::Conflict))
        }
    }

    /// Gateways notify each other of what is more than a sign of life; a few notices are lost.
    fn notify(&mut self, index: usize, record: &Record) {
        let quiet = |record: &Record| {
            let mut record = Record { beat: 0, ..record.clone() };
            record.serving.values_mut().for_each(|one| one.beat = 0);
            record
        };
        let is_news = self.object.as_ref().is_none_or(|(_, before)| quiet(before) != quiet(record));
        if self.access == Access::One || !is_news {
            return;
        }
        for other in (0..self.gateways.len()).filter(|other| *other != index) {
            if self.gateways[other].cut_until <= self.now && self.rng.u32(..20) > 0 {
                let delay = self.delay();
                self.post(other, delay, Event::Noticed);
            }
        }
    }

    fn blocklist(&mut self, index: usize, clients: Vec<String>) {
        for other in clients {
            self.map += 1;
            self.maps.push(self.now);
            self.shut_out.entry(other).or_insert(self.map);
        }
        if self.mutant != Mutant::FenceWithoutEpoch {
            self.gateways[index].map = self.map;
        }
    }

    pub(super) fn returned(&mut self, index: usize, returned: Returned) {
        let now = Duration::from_millis(self.now);
        let gateway = &mut self.gateways[index];
        match returned {
            Returned::Read(found) => gateway.machine.read(now, Ok(*found)),
            Returned::Replaced(outcome) => gateway.machine.replaced(now, outcome),
            Returned::Promoted(outcome) => {
                gateway.is_promoted = outcome.is_ok();
                gateway.machine.promoted(outcome);
            }
            Returned::FencedOthers => gateway.machine.fenced_others(now, Ok(())),
            Returned::CaughtUp(outcome) => gateway.machine.caught_up(now, outcome),
            Returned::Demoted => gateway.machine.demoted(now, Ok(())),
            Returned::Reopened => {
                gateway.map = gateway.map.max(self.map);
                gateway.machine.reopened(now, Ok(gateway.client.clone()));
            }
            Returned::Cut(action) => {
                let why = String::from("the cluster does not answer");
                match action {
                    Action::Read => gateway.machine.read(now, Err(why)),
                    Action::Replace { .. } => gateway.machine.replaced(now, Err(ReplaceError::Failed(why))),
                    Action::Promote { .. } => gateway.machine.promoted(Err(why)),
                    Action::CatchUp => gateway.machine.caught_up(now, Err(why)),
                    Action::Fence { .. } => gateway.machine.fenced_others(now, Err(why)),
                    Action::Demote => gateway.machine.demoted(now, Err(why)),
                    _ => gateway.machine.reopened(now, Err(why)),
                }
            }
            Returned::Fenced => unreachable!("it is a step of promoting"),
        }
    }

    /// The map that all servers have got from each other, if they do that in time.
    pub(super) fn spread_by_themselves(&self) -> u64 {
        1 + self.maps.partition_point(|at| at + SPREADS <= self.now) as u64
    }

    /// The map that all servers have.
    pub(super) fn spread(&self) -> u64 {
        match self.access {
            _ if self.lags => 0,
            Access::One => 0,
            Access::All => self.spread_by_themselves(),
        }
    }

    /// At the server of a block.
    pub(super) fn arrive(&mut self, index: usize, request: Request) {
        let stuck = self.servers[request.block].stuck_until;
        if stuck > self.now {
            let delay = stuck - self.now + self.delay();
            return self.post(index, delay, Event::Arrive(request));
        }
        let Some(outstanding) = self.outstanding.remove(&request.id) else { return };
        // Servers learn of a new map from whoever has it, or in their own time.
        let gossip = if self.rng.u32(..200) == 0 { self.map } else { self.spread() };
        let server = &mut self.servers[request.block];
        server.map = server.map.max(request.map).max(gossip);
        let is_out = self.shut_out.get(&request.client).is_some_and(|since| *since <= server.map);
        if is_out {
            self.refused += 1;
        } else {
            self.landed += u64::from(request.is_write);
            self.check_order(&request, outstanding.released);
        }
        if self.gateways[index].life == request.life {
            let delay = self.delay();
            self.post(index, delay, Event::Ended(request.id, !is_out));
        }
    }
}
