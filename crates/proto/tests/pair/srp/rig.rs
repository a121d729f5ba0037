//! The target machine against a peer, over the fabric.

use super::wild::Wild;
use crate::support::fabric::{Done, Node, Posting};
use crate::support::{DISK, Device, HOST, IDLE, Memory, Random, Transport};
use proto::iscsi::initiator::{Completion, Request};
use proto::message::{Answer, MessageMachine};
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::login::{Access, Applicant};
use proto::srp::target::{Target, TargetConfig};
use proto::time::Time;
use proto::verbs::{Down, Up};
use std::sync::Arc;
use std::time::Duration;
use wire::srp::RejectReason;

pub(super) const GUID: [u8; 16] = *b"\x02\x11\x22\xff\xfe\x33\x44\x55\x02\x11\x22\xff\xfe\x33\x44\x55";
pub(super) const PORT: [u8; 16] = *b"\0\0\0\0\0\0\0\0\x02\x11\x22\xff\xfe\x33\x44\x66";
pub(super) const CONFIG: TargetConfig =
    TargetConfig { queue_depth: 8, max_it_iu_bytes: 80 + 4 + 8192, target_port: GUID, idle: IDLE };
pub(super) const INITIATOR: InitiatorConfig = InitiatorConfig {
    initiator_port: PORT,
    target_port: GUID,
    queue_depth: 16,
    it_iu_bytes: 68 + 8192,
    keeps_others: false,
    login_within: IDLE,
};

/// Lets everybody in, or nobody.
#[derive(Default)]
pub(super) struct Door {
    pub refusal: Option<RejectReason>,
    pub others: bool,
}

impl Access for Door {
    fn admit(&self, applicant: &Applicant) -> Result<bool, RejectReason> {
        assert_eq!((applicant.target_port, applicant.from.port()), (GUID, 50_000));
        self.refusal.map_or(Ok(self.others), Err)
    }
}

pub(super) fn target(config: TargetConfig, door: Door) -> Target {
    let (from, portal) = ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap());
    Target::new(config, Arc::new(door), from, portal, Time(1_000_000))
}

impl Transport for Target {
    fn down(&mut self, now: Time, down: Down) {
        Target::down(self, now, down);
    }
}

/// Both machines and what lies between them.
pub(super) struct Rig<M: MessageMachine> {
    pub peer: Node<M>,
    pub target: Node<Target>,
    pub memory: Memory,
    pub now: Time,
    pub random: Random,
    /// The SCSI side; without one, what goes up is kept in `ups`.
    pub device: Option<Device>,
    pub ups: Vec<Up>,
    pub events: Vec<M::Event>,
    pub target_gone: Option<String>,
    pub rejected: Option<Vec<u8>>,
    /// Why the connection is no more.
    pub broken: Option<&'static str>,
    /// Whether the last message of the target was solicited.
    pub solicited: bool,
}

impl<M: MessageMachine> Rig<M> {
    pub(super) fn new(peer: M, target: Target, seed: u64) -> Rig<M> {
        let mut random = Random::new(seed);
        Rig {
            peer: Node::new(peer, HOST),
            target: Node::new(target, DISK),
            memory: Memory::new(&mut random),
            now: Time(1_000_000),
            random,
            device: None,
            ups: Vec::new(),
            events: Vec::new(),
            target_gone: None,
            rejected: None,
            broken: None,
            solicited: false,
        }
    }

    /// Makes the connection.
    pub(super) fn connect(&mut self) {
        let request = self.peer.machine.request();
        match self.target.machine.asked(self.now, &request) {
            Answer::Accept(answer) => {
                self.target.machine.established(self.now, &[]);
                self.target.post(self.now, &mut self.memory);
                self.peer.machine.established(self.now, &answer);
            }
            Answer::Reject(answer) => {
                self.peer.machine.rejected(self.now, &answer);
                self.rejected = Some(answer);
                self.broken = Some("rejected");
            }
        }
        self.drain();
    }

    /// Runs until nothing moves any more.
    pub(super) fn run(&mut self) {
        while self.step() {}
    }

    /// Lets both sides post, and does one piece of work of each; `false` when nothing happened.
    pub(super) fn step(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let mut busy = false;
        for port in [&mut self.peer.port, &mut self.target.port] {
            port.room = 1 + self.random.below(6);
        }
        busy |= self.peer.post(self.now, &mut self.memory);
        busy |= self.target.post(self.now, &mut self.memory);
        busy |= self.drain();
        let done = self.peer.port.execute(&mut self.target.port, &mut self.memory, &mut self.random);
        busy |= !matches!(done, Done::Nothing) || self.peer.port.reading() > 0;
        self.peer_did(done);
        let done = self.target.port.execute(&mut self.peer.port, &mut self.memory, &mut self.random);
        busy |= !matches!(done, Done::Nothing) || self.target.port.reading() > 0;
        self.target_did(done);
        busy |= self.drain();
        busy | self.hang_up()
    }

    fn peer_did(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Work(work) => self.peer.machine.finished(self.now, work),
            Done::Message { work, place, bytes, .. } => {
                self.target.received(self.now, place, &bytes);
                self.peer.machine.finished(self.now, work);
            }
            Done::Broken(reason) => self.cut(reason),
        }
    }

    fn target_did(&mut self, done: Done) {
        match done {
            Done::Nothing => {}
            Done::Work(work) => self.target.machine.finished(self.now, work),
            Done::Message { work, place, bytes, solicited } => {
                self.solicited = solicited;
                self.peer.received(self.now, place, &bytes);
                self.target.machine.finished(self.now, work);
            }
            Done::Broken(reason) => self.cut(reason),
        }
    }

    /// The connection is no more.
    pub(super) fn cut(&mut self, reason: &'static str) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(reason);
        self.peer.close(self.now, reason);
        self.target.close(self.now, reason);
        self.drain();
    }

    /// A machine that is over closes the connection once all has left.
    fn hang_up(&mut self) -> bool {
        let peer = self.peer.machine.is_over() && self.peer.port.is_idle();
        let target = self.target.machine.is_over() && self.target.port.is_idle();
        if peer || target {
            self.cut("closed");
        }
        false
    }

    fn drain(&mut self) -> bool {
        let mut any = false;
        while let Some(up) = self.target.machine.poll() {
            any = true;
            match (&mut self.device, up) {
                (_, Up::Gone { reason }) => {
                    assert!(self.target_gone.replace(reason).is_none(), "it goes once");
                }
                (Some(device), up) => {
                    device.up(up, &mut self.target.machine, self.now);
                }
                (None, up) => self.ups.push(up),
            }
        }
        while let Some(event) = self.peer.machine.poll() {
            any = true;
            self.events.push(event);
        }
        any
    }

    pub(super) fn down(&mut self, down: Down) {
        self.target.machine.down(self.now, down);
    }

    /// Lets time pass, with all deadlines in between.
    pub(super) fn pass(&mut self, by: Duration) {
        let end = self.now.after(by);
        loop {
            self.run();
            let next = [self.peer.machine.deadline(), self.target.machine.deadline()];
            match next.into_iter().flatten().min().filter(|next| *next <= end && self.broken.is_none()) {
                Some(next) => {
                    self.now = next;
                    self.peer.machine.tick(next);
                    self.target.machine.tick(next);
                }
                None => break,
            }
        }
        self.now = end;
    }

    /// At rest all receives stand ready and nothing is under way.
    pub(super) fn assert_at_rest(&mut self) {
        assert!(self.target.port.is_idle() && !self.target.machine.owes());
        let extra = 2;
        assert_eq!(self.target.port.ready(), usize::from(CONFIG.queue_depth) + extra);
    }
}

impl Rig<Initiator> {
    /// Two machines of ours that are logged in, with a device.
    pub(super) fn ours(initiator: InitiatorConfig, config: TargetConfig, seed: u64) -> Rig<Initiator> {
        let machine = Initiator::new(initiator, Time(1_000_000));
        let mut rig = Rig::new(machine, target(config, Door::default()), seed);
        rig.device = Some(Device::default());
        rig.connect();
        match rig.events.pop() {
            Some(Event::Ready(session)) => {
                let seen = rig.device.as_ref().and_then(|device| device.session.as_ref()).unwrap();
                assert_eq!((&session.initiator, &session.target), (&seen.initiator, &seen.target));
                assert_eq!(session.transport_id, seen.transport_id);
            }
            other => panic!("{other:?}, {:?}", rig.target_gone),
        }
        rig
    }

    /// Submits a command and runs it to its end.
    pub(super) fn execute(&mut self, request: Request) -> Completion {
        let task = self.peer.machine.submit(request).unwrap();
        self.run();
        match self.events.pop() {
            Some(Event::Completed(completion)) => {
                assert_eq!((completion.task, self.events.len()), (task, 0));
                assert_eq!(self.peer.port.advertised(), 0, "what was advertised is so no more");
                completion
            }
            other => panic!("{other:?}, {:?} {:?}", self.target_gone, self.broken),
        }
    }

    pub(super) fn gone(&self) -> &str {
        match self.events.last() {
            Some(Event::Gone { reason }) => reason,
            other => panic!("{other:?}, {:?}", self.target_gone),
        }
    }
}

impl Rig<Wild> {
    /// A peer that does what the test says, logged in with these flags; no device.
    pub(super) fn wild(flags: u8, seed: u64) -> Rig<Wild> {
        let mut rig = Rig::new(Wild::new(flags), target(CONFIG, Door::default()), seed);
        rig.connect();
        assert!(matches!(rig.ups.pop(), Some(Up::Ready(_))));
        rig
    }

    /// Sends an information unit.
    pub(super) fn send(&mut self, unit: &[u8]) {
        self.peer.machine.outbox.push_back(unit.to_vec());
    }

    /// The task of the command that went up last.
    pub(super) fn given(&mut self) -> proto::verbs::Command {
        match self.ups.pop() {
            Some(Up::Command(command)) => command,
            other => panic!("{other:?}, {:?} {:?}", self.target_gone, self.broken),
        }
    }

    /// The peer's port, to advertise what it has.
    pub(super) fn posting(&mut self) -> Posting<'_> {
        Posting { port: &mut self.peer.port, memory: &mut self.memory }
    }
}
