//! Our initiator machine against our target machine: memory for spans, a pipe that splits bytes anywhere, a
//! virtual clock, and a SCSI side that executes the CDB.

mod device;
mod end;
pub(crate) mod fabric;
pub(crate) mod link;
mod memory;
pub(crate) mod rig;

pub(crate) use device::{BROKEN, Device, HANG, INCONSISTENT, READ, TEST_UNIT_READY, Transport, WRITE};
pub(crate) use end::End;
pub(crate) use memory::{MEMORY_BYTES, Memory, Random, crc32c};

use proto::iscsi::chap::{Algorithm, Challenge, Credentials};
use proto::iscsi::initiator::{
    Completion, Ended, Event, Initiator, InitiatorConfig, Outcome, Request, Residual,
};
use proto::iscsi::login::{
    Access, ChapCredentials, Grant, InitiatorChap, Offers, Plan, Refusal, SendTargets, TargetRecord,
};
use proto::iscsi::target::{Target, TargetConfig};
use proto::services::{Attribute, Down, Up};
use proto::stream::StreamMachine;
use proto::time::Time;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use wire::scsi::command::Read12;
use wire::{BufferId, Cdb, Places, Span};

pub(crate) const TARGET: &str = "iqn.2026-11.io.lunette:disk";
pub(crate) const INITIATOR: &str = "iqn.2026-11.io.lunette:test";
/// The initiator's memory and the disk.
pub(crate) const HOST: BufferId = BufferId(0);
pub(crate) const DISK: BufferId = BufferId(1);
pub(crate) const IDLE: Duration = Duration::from_secs(5);
pub(crate) const GOOD: Outcome = Outcome::Status { status: 0, sense: None };

/// Which logins are granted.
#[derive(Default)]
pub(crate) struct TestAccess {
    pub chap: Option<ChapCredentials>,
    pub refusal: Option<Refusal>,
    pub alias: Option<String>,
    pub targets: usize,
    pub drawn: AtomicU64,
}

impl Access for TestAccess {
    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        _: SocketAddr,
        _: SocketAddr,
        _: [u8; 6],
    ) -> Result<Grant, Refusal> {
        assert_eq!(initiator, INITIATOR);
        match (&self.refusal, target) {
            (Some(refusal), _) => Err(refusal.clone()),
            (None, Some(name)) if name != TARGET => Err(Refusal::NotFound),
            (None, _) => {
                Ok(Grant { chap: self.chap.clone(), group: 7, alias: self.alias.clone(), ..Grant::default() })
            }
        }
    }

    fn send_targets(
        &self,
        _: &str,
        _: SocketAddr,
        portal: SocketAddr,
        which: SendTargets<'_>,
    ) -> Vec<TargetRecord> {
        let all =
            (0..self.targets.max(1)).map(|n| if n == 0 { TARGET.into() } else { format!("{TARGET}{n}") });
        let wanted = |name: &String| match which {
            SendTargets::All => true,
            SendTargets::One(one) => name == one,
        };
        let six = "[fe80::1%3]:3261".parse().unwrap();
        all.filter(wanted).map(|name| TargetRecord { name, portals: vec![(portal, 7), (six, 8)] }).collect()
    }

    fn random(&self, bytes: &mut [u8]) {
        let mut random = Random::new(self.drawn.fetch_add(1, Ordering::Relaxed) + 99);
        bytes.fill_with(|| (random.next() >> 9) as u8);
    }

    fn new_tsih(&self) -> u16 {
        1
    }
}

/// What a pair is made from.
pub(crate) struct Setup {
    pub seed: u64,
    /// The most bytes moved at once.
    pub chunk: usize,
    pub plan: Plan,
    pub access: TestAccess,
    pub offers: Offers,
    pub queue_depth: u16,
    pub initiator_depth: u16,
}

impl Default for Setup {
    fn default() -> Setup {
        let plan = Plan {
            initiator: INITIATOR.into(),
            alias: Some("a test".into()),
            target: Some(TARGET.into()),
            isid: [0x80, 1, 2, 3, 4, 5],
            chap: None,
            offers: Offers::default(),
            text_bytes: 8192,
        };
        Setup {
            seed: 1,
            chunk: 16 << 10,
            plan,
            access: TestAccess::default(),
            offers: Offers::default(),
            queue_depth: 8,
            initiator_depth: 16,
        }
    }
}

impl Setup {
    /// A setup whose initiator offers this, with further changes.
    pub(crate) fn with(offers: Offers, change: impl FnOnce(&mut Setup)) -> Setup {
        let mut setup = Setup::default();
        setup.plan.offers = offers;
        change(&mut setup);
        setup
    }

    pub(crate) fn initiator(&self) -> InitiatorConfig {
        InitiatorConfig {
            plan: self.plan.clone(),
            queue_depth: self.initiator_depth,
            login_within: Duration::from_secs(10),
            idle: IDLE,
            crc32c,
        }
    }

    pub(crate) fn target(&self) -> TargetConfig {
        TargetConfig {
            queue_depth: self.queue_depth,
            login_within: Duration::from_secs(10),
            idle: IDLE,
            crc32c,
            offers: self.offers,
        }
    }
}

/// The address of initiators, and that of the portal.
pub(crate) fn addresses() -> (SocketAddr, SocketAddr) {
    ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap())
}

/// CHAP as both sides see it.
pub(crate) fn chap(algorithms: &[Algorithm], mutual: bool) -> (ChapCredentials, InitiatorChap) {
    let ours = Credentials { name: "disk".into(), secret: b"what the target knows".to_vec() };
    let credentials = ChapCredentials {
        user: "alice".into(),
        secret: b"what the initiator knows".to_vec(),
        mutual: Some((ours.name.clone(), ours.secret.clone())),
        algorithms: Vec::new(),
    };
    let own = Credentials { name: credentials.user.clone(), secret: credentials.secret.clone() };
    let target = mutual.then_some(ours);
    let random = [42; Challenge::RANDOM_BYTES];
    (credentials, InitiatorChap { own, target, algorithms: algorithms.to_vec(), is_required: false, random })
}

/// Both machines and the pipe between them.
pub(crate) struct Pair {
    pub initiator: End<Initiator>,
    pub target: End<Target>,
    pub memory: Memory,
    pub device: Device,
    pub now: Time,
    pub random: Random,
    pub chunk: usize,
    /// The events of the initiator.
    pub events: Vec<Event>,
    /// Why the target's end has ended.
    pub target_gone: Option<String>,
    /// Nothing gets through.
    pub cut: bool,
    /// Whether the shortcut was tried last.
    tried_shortcut: bool,
    /// Commands that ended by it.
    pub ended_shortly: u32,
}

impl Pair {
    pub(crate) fn new(setup: Setup) -> Pair {
        let now = rig::START;
        let (initiator, target) = (setup.initiator(), setup.target());
        let (from, portal) = addresses();
        let mut random = Random::new(setup.seed);
        let memory = Memory::new(&mut random);
        Pair {
            initiator: End::new(Initiator::new(initiator, now)),
            target: End::new(Target::new(target, Arc::new(setup.access), from, portal, now)),
            memory,
            device: Device::default(),
            now,
            random,
            chunk: setup.chunk,
            events: Vec::new(),
            target_gone: None,
            cut: false,
            tried_shortcut: false,
            ended_shortly: 0,
        }
    }

    /// A pair that is logged in.
    pub(crate) fn logged_in(setup: Setup) -> Pair {
        let mut pair = Pair::new(setup);
        pair.run();
        match pair.events.pop() {
            Some(Event::Ready(session)) => assert_eq!(Some(*session), pair.device.session),
            other => panic!("{other:?}, {:?}", pair.target_gone),
        }
        pair
    }

    /// Runs until nothing moves any more.
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    /// Moves one piece in each direction and lets both sides react; `false` when nothing happened.
    pub(crate) fn step(&mut self) -> bool {
        let mut busy = self.initiator.fill(self.now, &mut self.memory);
        busy |= self.target.fill(self.now, &mut self.memory);
        if !self.cut {
            let (to_target, to_initiator) = (self.piece(), self.piece());
            busy |= self.initiator.carry(to_target, &mut self.target);
            busy |= self.target.carry(to_initiator, &mut self.initiator);
        }
        for task in self.initiator.left() {
            self.initiator.machine.pushed(task);
        }
        for task in self.target.left() {
            self.device.pushed(task, &mut self.target.machine, self.now);
        }
        loop {
            let ate = self.target.feed(self.now, &mut self.memory);
            let up = self.drain_target();
            let fed = self.end_shortly() || self.initiator.feed(self.now, &mut self.memory);
            let event = self.drain_initiator();
            if !(ate || up || fed || event) {
                break;
            }
            busy = true;
        }
        busy | self.hang_up()
    }

    /// Every second command that may ends by the shortcut.
    fn end_shortly(&mut self) -> bool {
        self.tried_shortcut = !self.tried_shortcut;
        if !self.tried_shortcut {
            return false;
        }
        let Some(ended) = self.initiator.ended(self.now, &mut self.memory) else { return false };
        let Ended { task, read_bytes, write_bytes, .. } = ended;
        let (residual, read_residual) = (Residual::None, Residual::None);
        let completion = Completion { task, outcome: GOOD, read_bytes, write_bytes, residual, read_residual };
        self.events.push(Event::Completed(completion));
        self.ended_shortly += 1;
        true
    }

    fn piece(&mut self) -> usize {
        let scale = self.random.below(self.chunk.ilog2() as usize + 1);
        1 + self.random.below(1 << scale)
    }

    fn drain_target(&mut self) -> bool {
        let mut any = false;
        while let Some(up) = self.target.machine.poll() {
            any = true;
            match up {
                Up::Gone { reason } => self.target_gone = Some(reason),
                up => self.device.up(up, &mut self.target.machine, self.now),
            }
        }
        any
    }

    fn drain_initiator(&mut self) -> bool {
        let before = self.events.len();
        while let Some(event) = self.initiator.machine.poll() {
            self.events.push(event);
        }
        self.events.len() > before
    }

    /// A machine that is finished closes its end once everything has been sent.
    fn hang_up(&mut self) -> bool {
        let (initiator, target) = (self.initiator.hung_up(), self.target.hung_up());
        if target && !initiator && self.initiator.is_drained() && !self.cut {
            self.initiator.machine.closed(self.now, None);
            return self.drain_initiator();
        }
        if initiator && !target && self.target.is_drained() && !self.cut {
            self.target.machine.closed(self.now, None);
            return self.drain_target();
        }
        false
    }

    /// Lets time pass, with all deadlines in between.
    pub(crate) fn pass(&mut self, by: Duration) {
        let end = self.now.after(by);
        loop {
            self.run();
            let next = [self.initiator.machine.deadline(), self.target.machine.deadline()];
            match next.into_iter().flatten().min().filter(|next| *next <= end) {
                Some(next) => {
                    self.now = next;
                    self.initiator.machine.tick(next);
                    self.target.machine.tick(next);
                    self.drain_target();
                    self.drain_initiator();
                }
                None => break,
            }
        }
        self.now = end;
    }

    pub(crate) fn down(&mut self, down: Down) {
        self.target.machine.down(self.now, down);
    }

    /// Submits a command and runs it to its end.
    pub(crate) fn execute(&mut self, request: Request) -> Completion {
        let task = self.initiator.machine.submit(request).unwrap();
        self.run();
        match self.events.pop() {
            Some(Event::Completed(completion)) => {
                assert_eq!(completion.task, task);
                assert!(self.events.is_empty(), "{:?}", self.events);
                completion
            }
            other => panic!("{other:?}, {:?}", self.target_gone),
        }
    }

    /// Whether `len` bytes at `host` in the initiator's memory and at `disk` are the same.
    pub(crate) fn same(&mut self, host: u32, disk: u32, len: u32) -> bool {
        self.memory.same(host, disk, len)
    }

    /// Why the initiator's end has ended.
    pub(crate) fn gone(&self) -> &str {
        match self.events.last() {
            Some(Event::Gone { reason }) => reason,
            other => panic!("{other:?}, {:?}", self.target_gone),
        }
    }
}

/// `len` bytes at `at` in the initiator's memory, in several spans.
pub(crate) fn host(at: u32, len: u32) -> Places {
    let mut places = Places::EMPTY;
    let cut = (len / 3) | 1;
    for (from, len) in [(0, cut.min(len)), (cut, len.saturating_sub(cut))] {
        places.push(Span { buffer: HOST, offset: u64::from(at + from), len });
    }
    places
}

/// A command to the device: what to do, where on the disk, how many bytes the device has for it.
pub(crate) fn command(opcode: u8, disk: u32, len: u32, read: Places, write: Places) -> Request {
    // The operation code is the device's own; the fields are those of READ(12).
    let mut cdb = [0; 16];
    Read12::new(disk, len).write(&mut cdb);
    cdb[0] = opcode;
    Request { lun: 0, attribute: Attribute::Simple, cdb: Cdb::from(&cdb), read, write }
}
