//! What a change waits for until it is complete.

use crate::record::Record;

/// Gateways that have yet to apply a change, or to be fenced, as seen by the active gateway. Whoever begins to serve
/// later does so with the change: a gateway that starts and crashes again and again delays it once at most.
#[derive(Debug, Default)]
pub(super) struct Await {
    /// Whoever has applied this has the change.
    change: u64,
    /// All that serve have to apply this: the change, and the fences of those that did not have it.
    all: u64,
    /// Clients that do not have the change, and have yet to be fenced.
    fences: Vec<String>,
}

impl Await {
    /// For whatever the object contains.
    pub(super) fn new(record: &Record) -> Await {
        Await { change: record.change, all: record.change, fences: record.fence.clone() }
    }

    /// The object was that, and is this.
    pub(super) fn look(&mut self, before: &Record, after: &Record) {
        let serves = |client: &String| after.serving.values().any(|one| one.client == *client);
        let lacking = before.serving.values().filter(|one| one.applied < self.change).map(|one| &one.client);
        let gone: Vec<&String> = lacking.filter(|client| !serves(client)).collect();
        let waiting = self.fences.len();
        self.fences.retain(|client| after.fence.contains(client));
        let has_missed = !gone.is_empty() && after.fences > before.fences;
        if self.fences.len() < waiting || has_missed {
            // All have to catch up with that fence.
            self.all = after.change;
        }
        self.fences.extend(gone.into_iter().filter(|client| after.fence.contains(client)).cloned());
    }

    /// Whether nobody can affect the medium any more without the change.
    pub(super) fn is_over(&self, record: &Record) -> bool {
        self.fences.is_empty() && record.serving.values().all(|one| one.applied >= self.all)
    }
}
