//! What the object of gateways says, which initiators do not see: whose orders and conflicts count.

use crate::groups::Views;
use cluster::{By, Record};
use proto::time::Time;
use std::time::Duration;

/// Since when each gateway is the one that the object names.
#[derive(Debug)]
pub(crate) struct Truth {
    holds: Vec<Option<Time>>,
    epoch: u64,
    /// Since when each is active, by its own account.
    active: Vec<Option<Time>>,
    /// Since when each has turns, and reaches the cluster.
    works_from: Vec<Time>,
    /// Until when each last stood still.
    paused: Vec<Time>,
    /// Until when each last was.
    held: Vec<Time>,
    /// When the unit was last claimed, and how long it stays then, whatever initiators want; `None`: it may be left for other reasons.
    claimed: Time,
    stays: Option<Duration>,
    /// Which of them do not know that they have lost the unit, and when they last found that out.
    unaware: Vec<(bool, Time)>,
    /// Gateways with requests in the object.
    asking: Vec<bool>,
    /// Some gateway has yet to apply a change, or to be fenced, or OSDs have yet to learn of that.
    is_changing: bool,
    /// The object's version.
    pub(crate) version: u64,
    /// What gateways know of each other's groups.
    pub(crate) views: Views,
}

impl Truth {
    /// `is_alone`: one of them is active at a time.
    pub(crate) fn new(gateways: usize, is_alone: bool, stays: Option<Duration>) -> Truth {
        let views = Views::new(gateways, is_alone);
        let (holds, asking) = (vec![None; gateways], vec![false; gateways]);
        Truth {
            holds,
            active: vec![None; gateways],
            works_from: vec![Time(0); gateways],
            paused: vec![Time(0); gateways],
            held: vec![Time(0); gateways],
            claimed: Time(0),
            stays,
            epoch: 0,
            unaware: vec![(false, Time(0)); gateways],
            is_changing: false,
            asking,
            version: 0,
            views,
        }
    }

    /// Whether a gateway has been the one that the object names since then.
    pub(crate) fn holds(&self, gateway: usize, began: Time) -> bool {
        self.holds[gateway].is_some_and(|since| since < began)
    }

    /// Since when a gateway has been active, by its own account.
    pub(crate) fn active_since(&self, gateway: usize) -> Option<Time> {
        self.active[gateway]
    }

    /// Whether a gateway has also been active since then: it knows all that has happened.
    pub(crate) fn knows(&self, gateway: usize, began: Time) -> bool {
        self.holds(gateway, began) && self.active[gateway].is_some_and(|since| since < began)
    }

    /// A gateway, or with `None` the cluster, works from then on.
    pub(crate) fn works_from(&mut self, gateway: Option<usize>, from: Time) {
        match gateway {
            Some(gateway) => self.works_from[gateway] = from,
            None => self.works_from.fill(from),
        }
    }

    /// A gateway stands still until then.
    pub(crate) fn pauses(&mut self, gateway: usize, until: Time) {
        self.paused[gateway] = until;
    }

    /// Since when a gateway has turns, and reaches the cluster.
    pub(crate) fn has_worked_from(&self, gateway: usize) -> Time {
        self.works_from[gateway]
    }

    /// Whether other gateways had so much time to fence this one since then. One that has begun to serve late enough has made sure
    /// that nothing hangs in those that do not stand still.
    pub(crate) fn is_over(&self, gateway: usize, since: Time, now: Time, within: Duration) -> bool {
        let late = since.after(within / 2);
        let is_over = |other: usize| {
            let Some(active) = self.active[other] else { return false };
            let from = active.max(self.works_from[other]).max(since);
            let has_joined =
                active > late && self.works_from[other] <= active && self.paused[gateway] < since;
            now >= if has_joined { since } else { from }.after(within)
        };
        (0..self.active.len()).any(|other| other != gateway && is_over(other))
    }

    /// What a gateway says of itself.
    pub(crate) fn is_active(&mut self, now: Time, gateway: usize, is_active: bool) {
        self.active[gateway] = self.active[gateway].or(Some(now)).filter(|_| is_active);
    }

    /// Whether a gateway has been the one that the object names at any time since then.
    pub(crate) fn held(&self, gateway: usize, began: Time) -> bool {
        self.holds[gateway].is_some() || self.held[gateway] >= began
    }

    /// Whether a gateway may not have known since then that it has lost the unit: until it finds that out, it answers from what it
    /// knew before.
    pub(crate) fn was_unaware(&self, gateway: usize, began: Time) -> bool {
        let (is_unaware, until) = self.unaware[gateway];
        is_unaware || until >= began
    }

    /// A gateway reads the object, or is started.
    pub(crate) fn finds_out(&mut self, now: Time, gateway: usize) {
        if self.unaware[gateway].0 {
            self.unaware[gateway] = (false, now);
        }
    }

    /// Whether the object has a request of any gateway, or a change that is not complete.
    pub(crate) fn has_requests(&self) -> bool {
        self.asking.contains(&true) || self.is_changing
    }

    /// The object was replaced; gateways are called so.
    ///
    /// # Errors
    /// When initiators make the unit bounce.
    pub(crate) fn changes(
        &mut self,
        now: Time,
        version: u64,
        record: &Record,
        name: impl Fn(usize) -> String,
    ) -> Result<(), String> {
        self.version = version;
        self.views.changes(version, record, &name);
        let is_behind = record.serving.values().any(|one| one.applied < record.change);
        self.is_changing = is_behind || !record.fence.is_empty() || !record.fading.is_empty();
        let is_new = record.epoch != self.epoch;
        self.epoch = record.epoch;
        if is_new {
            self.claimed = now;
        }
        let is_left = record.active.is_none() && self.holds.iter().any(Option::is_some);
        let is_for_initiator = record.next.as_ref().is_some_and(|next| next.by == By::Initiator);
        let age = now.since(self.claimed);
        if is_left && is_for_initiator && self.stays.is_some_and(|stays| age < stays) {
            return Err(format!("an initiator has moved the unit {age:?} after the last move"));
        }
        for gateway in 0..self.holds.len() {
            let name = name(gateway);
            let is_holder = record.active.as_ref().is_some_and(|holder| holder.gateway == name);
            let is_serving = record.serving.contains_key(&name);
            let is_holder = is_holder || is_serving;
            // Who serves knows what whoever claims the unit decides.
            let since = self.holds[gateway].filter(|_| !is_new || is_serving).unwrap_or(now);
            // It may have given the unit up itself, and not have the answer yet.
            let is_left = record.active.is_some() || self.active[gateway].is_some();
            self.unaware[gateway].0 |= self.holds[gateway].is_some() && !is_holder && is_left;
            if self.holds[gateway].is_some() && !is_holder {
                self.held[gateway] = now;
            }
            self.holds[gateway] = is_holder.then_some(since);
            self.asking[gateway] = record.requests.contains_key(&name);
        }
        Ok(())
    }
}
