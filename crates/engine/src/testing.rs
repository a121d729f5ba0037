//! What tests of sessions share: a small initiator, and units whose writes wait until the test lets them go on.

/// What [`initiator`] has of the tests that it was written for.
pub(crate) mod daemon {
    /// Where to log in.
    pub struct Url {
        /// Where the target listens.
        pub portal: std::net::SocketAddr,
        /// The target's name.
        pub target: String,
    }
}
#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../../lunette/tests/support/initiator.rs"]
pub(crate) mod initiator;
#[allow(dead_code, reason = "other tests use the rest of it")]
#[path = "../tests/script/peer.rs"]
pub(crate) mod peer;

use crate::Daemon;
use crate::config::{Config, ServeOptions};
use crate::opening::Opened;
use daemon::Url;
use reactor::io::{Completion, Tag};
use reactor::uring::Uring;
use scsi::storage::Traits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use store::ram::RamStore;
use wire::Places;

/// A daemon on so many cores, whether or not the machine has them, whose unit on LUN n is `stores[n]`.
pub(crate) fn serve(
    cores: usize,
    stores: &[Arc<HeldStore>],
    change: impl FnOnce(&mut Config),
) -> (Daemon, Url) {
    let options = ServeOptions {
        listen: vec!["127.0.0.1:0".into()],
        lun: stores.iter().map(|store| format!("ram:{}", store.traits().size_bytes)).collect(),
        cores: Some("0".into()),
        ..ServeOptions::default()
    };
    let mut config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    config.cores = (0..cores).collect();
    config.portals[0].cores = config.cores.clone();
    change(&mut config);
    let target = config.targets[0].name.clone();
    let opened =
        |store: &Arc<HeldStore>| Opened { store: store.clone(), failed: None, losses: Arc::default() };
    let daemon =
        Daemon::start_with(config, |_| stores.iter().map(opened).collect()).expect("the daemon starts");
    let portal = daemon.addresses()[0];
    (daemon, Url { portal, target })
}

/// A unit in memory whose writes can be held, as those of a device that is slow.
pub(crate) struct HeldStore {
    ram: Arc<RamStore>,
    holds: AtomicBool,
    held: AtomicUsize,
    cancelled: AtomicUsize,
}

impl HeldStore {
    /// A unit of 1 MiB.
    pub(crate) fn new() -> Arc<HeldStore> {
        let ram = store::open_ram(1 << 20).expect("memory");
        Arc::new(HeldStore {
            ram,
            holds: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
        })
    }

    /// Writes wait from now on.
    pub(crate) fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    /// Whether so many writes wait.
    pub(crate) fn has_held(&self, writes: usize) -> bool {
        self.held.load(Ordering::SeqCst) == writes
    }

    /// Returns when so many writes wait.
    pub(crate) fn wait_for(&self, writes: usize) {
        while !self.has_held(writes) {
            std::thread::yield_now();
        }
    }

    /// How many writes wait.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Returns when so many operations were cancelled.
    pub(crate) fn wait_for_cancel(&self, operations: usize) {
        while self.cancelled() != operations {
            std::thread::yield_now();
        }
    }

    /// How many operations were cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Lets all of them go on.
    pub(crate) fn release(&self) {
        self.holds.store(false, Ordering::SeqCst);
    }
}

impl Store for HeldStore {
    fn traits(&self) -> Traits {
        self.ram.traits()
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "held".into()
    }
}

impl Backend<Uring> for HeldStore {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<Uring>> {
        let ram = self.ram.clone().lane(tags);
        Box::new(HeldLane { store: self, ram, held: Vec::new() })
    }
}

struct HeldLane {
    store: Arc<HeldStore>,
    ram: Box<dyn Lane<Uring>>,
    held: Vec<(OpId, Op)>,
}

impl Lane<Uring> for HeldLane {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Places> {
        self.ram.borrow(offset, len)
    }

    fn submit(&mut self, io: &mut Uring, id: OpId, op: &Op) -> Submitted {
        if matches!(op, Op::Write { .. }) && self.store.holds.load(Ordering::SeqCst) {
            self.held.push((id, *op));
            self.store.held.fetch_add(1, Ordering::SeqCst);
            return Submitted::Later;
        }
        self.ram.submit(io, id, op)
    }

    fn completed(&mut self, io: &mut Uring, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.ram.completed(io, completion, done);
    }

    fn flush(&mut self, io: &mut Uring, done: &mut Vec<(OpId, Outcome)>) -> bool {
        if !self.store.holds.load(Ordering::SeqCst) {
            for (id, op) in std::mem::take(&mut self.held) {
                self.store.held.fetch_sub(1, Ordering::SeqCst);
                match self.ram.submit(io, id, &op) {
                    Submitted::Done(outcome) => done.push((id, outcome)),
                    Submitted::Later => {}
                }
            }
        }
        self.ram.flush(io, done) || !self.held.is_empty()
    }

    fn work(&mut self, io: &mut Uring, bytes: u64, done: &mut Vec<(OpId, Outcome)>) -> u64 {
        self.ram.work(io, bytes, done)
    }

    /// What is held is under way: it is done all the same.
    fn cancel(&mut self, _io: &mut Uring, _id: OpId) {
        self.store.cancelled.fetch_add(1, Ordering::SeqCst);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.ram.in_flight()
    }
}
