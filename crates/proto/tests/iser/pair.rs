//! Both machines, the fabric between them, and a SCSI side that does what the CDB says.

use super::fabric::End;
use crate::support::{Device, IDLE, Memory, Random, Setup, Transport, crc32c};
use proto::iscsi::initiator::{Completion, Event, InitiatorConfig, Request};
use proto::iscsi::target::TargetConfig;
use proto::iser::initiator::Initiator;
use proto::iser::target::Target;
use proto::message::{Answer, MessageMachine};
use proto::time::Time;
use proto::verbs::{Down, Up};
use std::sync::Arc;
use std::time::Duration;

impl Transport for Target {
    fn down(&mut self, now: Time, down: Down) {
        Target::down(self, now, down);
    }
}

/// Both machines and what lies between them.
pub(crate) struct Pair {
    pub initiator: End<Initiator>,
    pub target: End<Target>,
    pub memory: Memory,
    pub device: Device,
    pub now: Time,
    random: Random,
    pub events: Vec<Event>,
    pub target_gone: Option<String>,
    /// Nothing comes through.
    pub cut: bool,
}

/// A target's machine.
pub(crate) fn target(setup: &mut Setup, now: Time) -> Target {
    let config = TargetConfig {
        queue_depth: setup.queue_depth,
        login_within: Duration::from_secs(10),
        idle: IDLE,
        crc32c,
        offers: setup.offers,
    };
    let door = Arc::new(std::mem::take(&mut setup.door));
    let (from, portal) = ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap());
    Target::new(config, door, from, portal, now)
}

impl Pair {
    pub(crate) fn new(mut setup: Setup) -> Pair {
        let now = Time(1_000_000);
        let mut random = Random::new(setup.seed);
        let memory = Memory::new(&mut random);
        let mut target = target(&mut setup, now);
        let config = InitiatorConfig {
            plan: setup.plan,
            queue_depth: setup.initiator_depth,
            login_within: Duration::from_secs(10),
            idle: IDLE,
            crc32c,
        };
        let mut initiator = Initiator::new(config, now);
        let Answer::Accept(private_data) = target.asked(now, &initiator.request()) else {
            panic!("the target does not want it");
        };
        initiator.established(now, &private_data);
        target.established(now, &[]);
        Pair {
            initiator: End::new(initiator),
            target: End::new(target),
            memory,
            device: Device::default(),
            now,
            random,
            events: Vec::new(),
            target_gone: None,
            cut: false,
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

    /// Lets both post and does one of what is to be done; `false` when nothing happened.
    pub(crate) fn step(&mut self) -> bool {
        let mut busy = self.initiator.post(self.now, &mut self.memory, &mut self.random);
        busy |= self.target.post(self.now, &mut self.memory, &mut self.random);
        self.drain();
        let first = self.random.below(6);
        busy |= (first..first + 6).any(|which| self.one(which % 6));
        self.drain();
        busy | self.hang_up()
    }

    fn one(&mut self, which: usize) -> bool {
        let (now, memory) = (self.now, &mut self.memory);
        match which {
            0 => self.initiator.tell(now),
            1 => self.target.tell(now),
            _ if self.cut => false,
            2 => self.initiator.work(now, &mut self.target, memory),
            3 => self.target.work(now, &mut self.initiator, memory),
            4 => self.initiator.read(now, &mut self.target, memory),
            _ => self.target.read(now, &mut self.initiator, memory),
        }
    }

    fn drain(&mut self) {
        while let Some(up) = self.target.machine.poll() {
            assert_eq!(self.target_gone, None, "{up:?}");
            match up {
                Up::Gone { reason } => self.target_gone = Some(reason),
                up => self.device.up(up, &mut self.target.machine, self.now),
            }
        }
        while let Some(event) = self.initiator.machine.poll() {
            self.events.push(event);
        }
    }

    /// A machine that is over closes the connection once all has left.
    fn hang_up(&mut self) -> bool {
        let target = self.target.machine.is_over() && self.target.queues.posted.is_empty();
        let initiator = self.initiator.machine.is_over() && self.initiator.queues.posted.is_empty();
        let reason = "connection closed by the peer";
        if target && !initiator && !self.cut {
            self.initiator.machine.closed(self.now, reason);
        } else if initiator && !target && !self.cut {
            self.target.machine.closed(self.now, reason);
        } else {
            return false;
        }
        self.drain();
        true
    }

    /// Lets time pass, with all deadlines in between.
    pub(crate) fn pass(&mut self, by: Duration) {
        let end = self.now.after(by);
        loop {
            self.run();
            let next = [self.initiator.machine.deadline(), self.target.machine.deadline()];
            let Some(next) = next.into_iter().flatten().min().filter(|next| *next <= end) else { break };
            self.now = next;
            self.initiator.machine.tick(next);
            self.target.machine.tick(next);
            self.drain();
        }
        self.now = end;
    }

    pub(crate) fn down(&mut self, down: Down) {
        self.target.machine.down(self.now, down);
        self.drain();
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
    pub(crate) fn same(&self, host: u32, disk: u32, len: u32) -> bool {
        let (host, disk, len) = (host as usize, disk as usize, len as usize);
        let [a, b] = &self.memory.regions;
        a[host..host + len] == b[disk..disk + len]
    }

    /// Nothing is lent, advertised or under way any more.
    pub(crate) fn is_at_rest(&self) -> bool {
        let held = self.initiator.queues.held() + self.target.queues.held();
        held + self.initiator.queues.advertised() + self.target.queues.reading.len() == 0
    }

    /// Why the initiator's end is no more.
    pub(crate) fn gone(&self) -> &str {
        match self.events.last() {
            Some(Event::Gone { reason }) => reason,
            other => panic!("{other:?}, {:?}", self.target_gone),
        }
    }
}
