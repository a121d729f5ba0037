//! What tests of sessions share: a small initiator, and units whose writes wait until the test releases them.

/// What [`initiator`] uses of the tests that it was written for.
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
#[path = "../tests/it/script/peer.rs"]
pub(crate) mod peer;

use crate::stores::Opened;
use crate::{Daemon, Events};
use config::{Config, Group, Limits, ServeOptions};
use daemon::Url;
use reactor::io::{Completion, Tag};
use reactor::uring::Uring;
use scsi::storage::{StoreError, Traits};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use store::ram::RamStore;
use wire::Span;

/// A daemon on this many cores, whether or not the machine has them, whose unit on LUN n is `stores[n]`.
pub(crate) fn serve(
    cores: usize,
    stores: &[Arc<HeldStore>],
    change: impl FnOnce(&mut Config),
) -> (Daemon, Url) {
    serve_reporting(cores, stores, Events::default(), change)
}

/// The same, with a receiver of events.
pub(crate) fn serve_reporting(
    cores: usize,
    stores: &[Arc<HeldStore>],
    events: Events,
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
    let opened = |store: &Arc<HeldStore>| Opened {
        store: store.clone(),
        failed: None,
        losses: Arc::default(),
        space: Arc::default(),
        gateway: None,
    };
    let daemon = Daemon::start_with(config, events, |_, _| stores.iter().map(opened).collect())
        .expect("the daemon starts");
    let portal = daemon.addresses()[0];
    (daemon, Url { portal, target })
}

/// A group of all initiators.
pub(crate) fn everyone() -> Group {
    Group {
        name: "all".into(),
        initiators: Vec::new(),
        networks: Vec::new(),
        deny: false,
        read_only: false,
        luns: None,
        chap: None,
        queue_depth: None,
        limits: Limits::default(),
    }
}

/// A session whose WRITEs carry no data, and that sends requested data only when the test says so.
pub(crate) struct Slow {
    pub(crate) initiator: initiator::Initiator,
    /// R2Ts, in order of arrival, and how many commands have ended.
    asked: VecDeque<initiator::Pdu>,
    pub(crate) ended: usize,
}

impl Slow {
    const BLOCK_BYTES: u32 = 512;
    const SEGMENT_BYTES: usize = 8192;
    const NO_TASK: u32 = u32::MAX - 1;

    pub(crate) fn login(url: &Url, name: &str) -> Slow {
        let login = initiator::Login::named(name);
        let mut initiator = initiator::Initiator::login(url, &login).expect("a session");
        initiator.ready(0).expect("the unit is ready");
        Slow { initiator, asked: VecDeque::new(), ended: 0 }
    }

    /// Sends this many WRITEs of this many bytes to LUN 0. When this returns, the target has requested all
    /// data that it has buffers for.
    pub(crate) fn write(&mut self, commands: usize, bytes: usize) {
        for _ in 0..commands {
            let cmd_sn = self.initiator.next_cmd_sn();
            let len = u32::try_from(bytes).expect("it fits");
            let mut command = initiator::Pdu::new(0x01, 0x80 | 0x20 | 1).lun(0);
            command = command.word(16, 0x7000_0000 | cmd_sn).word(20, len).word(24, cmd_sn);
            command.set_cdb(initiator::write_cdb(0, bytes, Slow::BLOCK_BYTES, false));
            self.initiator.send(&command).expect("it is sent");
            self.initiator.skip_cmd_sn();
        }
        // The response comes behind all of them.
        self.initiator.ask_to_manage(1, 0, Slow::NO_TASK).expect("it is sent");
        while self.receive().expect("an answer") != 0x22 {}
    }

    /// Receives a PDU of the target; returns its opcode.
    pub(crate) fn receive(&mut self) -> std::io::Result<u8> {
        let pdu = self.initiator.receive()?;
        let opcode = pdu.opcode();
        match opcode {
            0x31 => self.asked.push_back(pdu),
            0x21 => {
                assert_eq!(pdu.header[3], 0, "GOOD");
                self.ended += 1;
            }
            _ => {}
        }
        Ok(opcode)
    }

    /// How many R2Ts it has not answered.
    pub(crate) fn asked(&self) -> usize {
        self.asked.len()
    }

    /// Answers the oldest R2T.
    pub(crate) fn answer(&mut self) -> std::io::Result<()> {
        let asked = self.asked.pop_front().expect("an R2T");
        let (from, bytes) = (asked.word_at(40), vec![7; asked.word_at(44) as usize]);
        let pieces = bytes.len().div_ceil(Slow::SEGMENT_BYTES);
        for (number, piece) in (0..).zip(bytes.chunks(Slow::SEGMENT_BYTES)) {
            let last = if number as usize + 1 == pieces { 0x80 } else { 0 };
            let at = from + number * Slow::SEGMENT_BYTES as u32;
            let data = initiator::Pdu::new(0x05, last).lun(0).word(16, asked.word_at(16));
            let data = data.word(20, asked.word_at(20)).word(36, number).word(40, at).data(piece);
            self.initiator.send(&data)?;
        }
        Ok(())
    }
}

/// A unit in memory whose writes can be held, like those of a slow device.
pub(crate) struct HeldStore {
    ram: Arc<RamStore>,
    holds: AtomicBool,
    held: AtomicUsize,
    cancelled: AtomicUsize,
    losses: AtomicUsize,
    delays_close: AtomicBool,
    closed: AtomicUsize,
    fails: AtomicBool,
    stalls: AtomicBool,
    stalled: AtomicBool,
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
            losses: AtomicUsize::new(0),
            delays_close: AtomicBool::new(false),
            closed: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            stalled: AtomicBool::new(false),
        })
    }

    /// Writes wait from now on.
    pub(crate) fn hold(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    /// Whether this many writes wait.
    pub(crate) fn has_held(&self, writes: usize) -> bool {
        self.held.load(Ordering::SeqCst) == writes
    }

    /// Returns when this many writes wait.
    pub(crate) fn wait_for(&self, writes: usize) {
        while !self.has_held(writes) {
            std::thread::yield_now();
        }
    }

    /// How many writes wait.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }

    /// Returns when this many operations were cancelled.
    pub(crate) fn wait_for_cancel(&self, operations: usize) {
        while self.cancelled() != operations {
            std::thread::yield_now();
        }
    }

    /// How many operations were cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// It has lost what was written and not flushed.
    pub(crate) fn lose(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }

    /// Flushes fail from now on.
    pub(crate) fn fail_flushes(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    /// Whether cores that submit operations hang from now on.
    pub(crate) fn stall(&self, stalls: bool) {
        self.stalls.store(stalls, Ordering::SeqCst);
    }

    /// Returns when a core hangs.
    pub(crate) fn wait_for_stall(&self) {
        while !self.stalled.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Whether its home's lane waits before closing when the unit is removed; flushes are held like writes.
    pub(crate) fn delay_close(&self, delays_close: bool) {
        self.delays_close.store(delays_close, Ordering::SeqCst);
    }

    /// Returns when this many lanes have closed.
    pub(crate) fn wait_for_close(&self, lanes: usize) {
        while self.closed.load(Ordering::SeqCst) != lanes {
            std::thread::yield_now();
        }
    }

    /// Lets all of them continue.
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
        Box::new(HeldLane { store: self, ram, held: Vec::new(), has_flushed: false })
    }
}

struct HeldLane {
    store: Arc<HeldStore>,
    ram: Box<dyn Lane<Uring>>,
    held: Vec<(OpId, Op)>,
    /// It was flushed, as the home's lane is when the unit is removed.
    has_flushed: bool,
}

impl HeldLane {
    fn begin(&mut self, io: &mut Uring, id: OpId, op: &Op) -> Submitted {
        match op {
            Op::Flush if self.store.fails.load(Ordering::SeqCst) => {
                Submitted::Done(Err(StoreError::WriteFailed))
            }
            _ => self.ram.submit(io, id, op),
        }
    }
}

impl Lane<Uring> for HeldLane {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span> {
        self.ram.borrow(offset, len)
    }

    fn submit(&mut self, io: &mut Uring, id: OpId, op: &Op) -> Submitted {
        while self.store.stalls.load(Ordering::SeqCst) {
            self.store.stalled.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        self.has_flushed |= matches!(op, Op::Flush);
        let may_wait = match op {
            Op::Write { .. } => true,
            Op::Flush => self.store.delays_close.load(Ordering::SeqCst),
            _ => false,
        };
        if may_wait && self.store.holds.load(Ordering::SeqCst) {
            self.held.push((id, *op));
            self.store.held.fetch_add(1, Ordering::SeqCst);
            return Submitted::Later;
        }
        self.begin(io, id, op)
    }

    fn completed(&mut self, io: &mut Uring, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.ram.completed(io, completion, done);
    }

    fn flush(&mut self, io: &mut Uring, done: &mut Vec<(OpId, Outcome)>) -> bool {
        if !self.store.holds.load(Ordering::SeqCst) {
            for (id, op) in std::mem::take(&mut self.held) {
                self.store.held.fetch_sub(1, Ordering::SeqCst);
                match self.begin(io, id, &op) {
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

    fn losses(&mut self) -> u64 {
        self.store.losses.load(Ordering::SeqCst) as u64
    }

    /// A held operation is under way: it completes all the same.
    fn cancel(&mut self, _io: &mut Uring, _id: OpId) {
        self.store.cancelled.fetch_add(1, Ordering::SeqCst);
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.ram.in_flight()
    }

    fn close(&mut self, io: &mut Uring) -> bool {
        let is_over =
            !(self.has_flushed && self.store.delays_close.load(Ordering::SeqCst)) && self.ram.close(io);
        self.store.closed.fetch_add(usize::from(is_over), Ordering::SeqCst);
        is_over
    }
}
