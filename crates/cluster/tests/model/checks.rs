//! What must hold at any time.

use super::*;

impl World {
    /// Whoever is active knows everything acknowledged.
    pub(super) fn check_promises(&mut self, index: usize) {
        let newest = self.object.as_ref().map_or(0, |(_, record)| record.epoch);
        let gateway = &self.gateways[index];
        let is_current = gateway.is_active && gateway.epoch == newest;
        let saved: BTreeSet<u16> = gateway.saved.iter().copied().collect();
        if is_current && let Some(lost) = self.promised.difference(&saved).next().copied() {
            self.find(|| format!("{lost} was acknowledged, and g{index} does not know it"));
        }
    }

    /// Nothing was executed twice, or although its initiator knows otherwise.
    pub(super) fn check_once(&mut self, index: usize) {
        let mut seen = BTreeSet::new();
        let saved = self.gateways[index].saved.clone();
        let twice = saved.into_iter().find(|id| !seen.insert(*id) || self.declined.contains(id));
        if let Some(id) = twice {
            self.find(|| format!("{id} was executed twice, or after it was declined, as g{index} finds"));
        }
    }

    /// A change that was acknowledged is in force at whoever can affect the medium.
    pub(super) fn check_force(&mut self, id: u16) {
        if self.access == Access::One {
            return self.check_ended(id);
        }
        let saved = self.object.as_ref().map(|(_, record)| ids(&record.saved)).unwrap_or_default();
        let Some(place) = saved.iter().position(|other| *other == id) else {
            return self.find(|| format!("{id} was acknowledged, and the object does not have it"));
        };
        self.acked = self.acked.max(place + 1);
        let least = self.servers.iter().map(|server| server.map).min().unwrap_or(0).max(self.spread());
        let is_out =
            |client: &String| self.shut_out.get(client).is_some_and(|since| self.lags || *since <= least);
        let lags = |gateway: &&Gateway| {
            gateway.is_alive && gateway.serves && !is_out(&gateway.client) && !gateway.saved.contains(&id)
        };
        let lagging = self.gateways.iter().find(lags).map(|gateway| gateway.client.clone());
        let mut outstanding = self.outstanding.values();
        let lagging = lagging.or_else(|| {
            let late = outstanding.find(|one| one.state <= place && !is_out(&one.client));
            late.map(|one| format!("a request of {}", one.client))
        });
        if let Some(lagging) = lagging {
            self.find(|| format!("{id} was acknowledged, and {lagging} works without it"));
        }
    }

    /// A change that ends what others have begun is acknowledged when nothing of earlier holders can take effect any more.
    fn check_ended(&mut self, id: u16) {
        let saved = self.object.as_ref().map(|(_, record)| ids(&record.saved)).unwrap_or_default();
        let place = saved.iter().position(|other| *other == id);
        let (Some(executor), Some(place), true) = (self.executed_by.get(&id), place, ends(id)) else {
            return;
        };
        let least =
            self.servers.iter().map(|server| server.map).min().unwrap_or(0).max(self.spread_by_themselves());
        let is_out = |client: &String| self.shut_out.get(client).is_some_and(|since| *since <= least);
        let late = |one: &&Outstanding| one.client != *executor && one.state <= place && !is_out(&one.client);
        if let Some(late) = self.outstanding.values().find(late).map(|one| one.client.clone()) {
            self.find(|| format!("{id} was acknowledged, and a request of {late} may yet take effect"));
        }
    }

    /// Nothing takes effect after something that forbids it, or that its initiator has sent since.
    pub(super) fn check_order(&mut self, request: &Request, released: Option<u64>) {
        let server = self.servers[request.block].clone();
        let Request { epoch, state, acked, issued, .. } = *request;
        let now = &mut self.servers[request.block];
        now.epoch = server.epoch.max(epoch);
        let counts = !(self.lags && request.is_out);
        if counts {
            now.acked = server.acked.max(acked);
        }
        if request.is_write && counts {
            let newest = now.issued.entry(request.client.clone()).or_default();
            *newest = issued.max(*newest);
        }
        let newest = |(_, issued): (&String, &u64)| *issued;
        let others = |(client, _): &(&String, &u64)| **client != request.client;
        let elsewhere = server.issued.iter().filter(others).map(newest).max().unwrap_or(0);
        let anywhere = server.issued.iter().map(newest).max().unwrap_or(0);
        if state < server.acked {
            self.find(|| format!("{request:?} took effect after one that knew of {} changes", server.acked));
        }
        if request.is_write && released.is_some_and(|over| over < anywhere) {
            self.find(|| format!("{request:?}, over since {released:?}, overwrites one of {anywhere}"));
        }
        if request.is_write && issued.saturating_add(self.patience) < elsewhere {
            self.find(|| format!("{request:?} overwrites one of {elsewhere} at another gateway"));
        }
        if self.access == Access::One {
            if epoch < server.epoch {
                self.find(|| format!("{request:?} took effect after one of epoch {}", server.epoch));
            }
            let holder = self.holders.entry(epoch).or_insert_with(|| request.client.clone()).clone();
            if holder != request.client {
                self.find(|| format!("{request:?}: {holder} has used the medium in that epoch"));
            }
        }
    }
}
