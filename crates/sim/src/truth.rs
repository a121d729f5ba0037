//! What the object of gateways says, which initiators do not see: whose orders and conflicts count.

use cluster::Record;
use proto::time::Time;

/// Since when each gateway is the one that the object names.
#[derive(Debug)]
pub(crate) struct Truth {
    holds: Vec<Option<Time>>,
    epoch: u64,
    /// Which of them do not know that another one has claimed the unit, and when they last found that out.
    unaware: Vec<(bool, Time)>,
    /// Gateways with requests in the object.
    asking: Vec<bool>,
    /// The object's version.
    pub(crate) version: u64,
}

impl Truth {
    pub(crate) fn new(gateways: usize) -> Truth {
        let (holds, asking) = (vec![None; gateways], vec![false; gateways]);
        Truth { holds, epoch: 0, unaware: vec![(false, Time(0)); gateways], asking, version: 0 }
    }

    /// Whether a gateway has been the one that the object names since then.
    pub(crate) fn holds(&self, gateway: usize, began: Time) -> bool {
        self.holds[gateway].is_some_and(|since| since < began)
    }

    /// Whether a gateway may not have known since then that another one has claimed the unit: until it finds that out, it answers
    /// from what it knew before.
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

    /// Whether the object has a request of any gateway.
    pub(crate) fn has_requests(&self) -> bool {
        self.asking.contains(&true)
    }

    /// The object was replaced; gateways are called so.
    pub(crate) fn changes(
        &mut self,
        now: Time,
        version: u64,
        record: &Record,
        name: impl Fn(usize) -> String,
    ) {
        self.version = version;
        let is_new = record.epoch != self.epoch;
        self.epoch = record.epoch;
        for gateway in 0..self.holds.len() {
            let name = name(gateway);
            let is_holder = record.active.as_ref().is_some_and(|holder| holder.gateway == name);
            let since = self.holds[gateway].filter(|_| !is_new).unwrap_or(now);
            self.unaware[gateway].0 |= self.holds[gateway].is_some() && !is_holder && record.active.is_some();
            self.holds[gateway] = is_holder.then_some(since);
            self.asking[gateway] = record.requests.contains_key(&name);
        }
    }
}
