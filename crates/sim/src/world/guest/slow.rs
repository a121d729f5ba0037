//! The store of the guest's LUN.

use super::{BLOCK_BYTES, BLOCKS, Guest, number};
use crate::kernel::Kernel;
use config::StepOfChange;
use fastrand::Rng;
use proto::time::Time;
use reactor::io::{self, Io as _, Tag};
use scsi::storage::Traits;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::lane::{Backend, Lane, Op, OpId, Outcome as Done, Store, Submitted};
use store::ram::RamStore;
use wire::Span;

/// How long disks are slow before an interface is removed.
const SLOW_BEFORE: Duration = Duration::from_micros(500);

/// A store in memory, whose operations take several turns of their core.
pub(super) struct Slow {
    ram: Arc<RamStore>,
    slowness: u32,
    seed: u64,
    rights: Mutex<Rights>,
}

/// Writes that must no longer be executed.
#[derive(Default)]
struct Rights {
    barred: BTreeSet<u64>,
    /// One of them that was executed.
    broken: Option<u64>,
}

impl Slow {
    pub(super) fn new(slowness: u32, seed: u64) -> Arc<Slow> {
        let ram = store::open_ram(u64::from(BLOCKS * BLOCK_BYTES)).expect("memory");
        Arc::new(Slow { ram, slowness, seed, rights: Mutex::default() })
    }

    fn rights(&self) -> MutexGuard<'_, Rights> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever is in flight may be executed again.
    pub(super) fn admit_all(&self) {
        self.rights().barred.clear();
    }

    /// This write must no longer be executed.
    pub(super) fn bar(&self, number: u64) {
        self.rights().barred.insert(number);
    }

    /// A write that was executed nevertheless.
    pub(super) fn broken(&self) -> Option<u64> {
        self.rights().broken
    }
}

impl Guest {
    /// Whether the next step is to remove an interface, and waits: in half of such changes disks become slow before, so that what the
    /// interface has received is still in progress.
    pub(super) fn slows_disks(&self, now: Time) -> bool {
        let is_removal = matches!(self.steps.front(), Some(StepOfChange::RemoveInterface(_)));
        is_removal && self.changes.is_multiple_of(2) && {
            let since = *self.net.borrow_mut().slow_since.get_or_insert(now);
            now < since.after(SLOW_BEFORE)
        }
    }
}

impl Store for Slow {
    fn traits(&self) -> Traits {
        self.ram.traits()
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "a guest".into()
    }
}

impl Backend<Kernel> for Slow {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<Kernel>> {
        let (ram, rng) = (self.ram.clone().lane(tags), Rng::with_seed(self.seed));
        Box::new(SlowLane { store: self, ram, rng, waiting: Vec::new() })
    }
}

struct SlowLane {
    store: Arc<Slow>,
    ram: Box<dyn Lane<Kernel>>,
    rng: Rng,
    /// Each with its remaining turns.
    waiting: Vec<(u32, OpId, Op)>,
}

impl Lane<Kernel> for SlowLane {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span> {
        // Half of all stores lend.
        (self.store.seed & 1 == 0).then(|| self.ram.borrow(offset, len)).flatten()
    }

    fn submit(&mut self, _io: &mut Kernel, id: OpId, op: &Op) -> Submitted {
        self.waiting.push((self.rng.u32(0..=self.store.slowness), id, *op));
        Submitted::Later
    }

    fn completed(&mut self, io: &mut Kernel, completion: io::Completion, done: &mut Vec<(OpId, Done)>) {
        self.ram.completed(io, completion, done);
    }

    fn flush(&mut self, io: &mut Kernel, done: &mut Vec<(OpId, Done)>) -> bool {
        self.waiting.iter_mut().for_each(|(turns, ..)| *turns = turns.saturating_sub(1));
        for (_, id, op) in self.waiting.extract_if(.., |(turns, ..)| *turns == 0) {
            if let Op::Write { from, .. } = &op
                && let Some(written) = number(io.arena(), from)
            {
                let mut rights = self.store.rights();
                if rights.barred.contains(&written) {
                    rights.broken = Some(written);
                }
            }
            match self.ram.submit(io, id, &op) {
                Submitted::Done(outcome) => done.push((id, outcome)),
                Submitted::Later => {}
            }
        }
        self.ram.flush(io, done) || !self.waiting.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.ram.in_flight()
    }

    fn close(&mut self, io: &mut Kernel) -> bool {
        self.ram.close(io)
    }
}
