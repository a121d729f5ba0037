//! Two machines that exchange messages over RDMA, the fabric between them, and a SCSI side.

use super::fabric::{Done, Node, Port};
use super::{Device, Memory, Random, Transport};
use proto::iscsi::initiator::{Completion, Request};
use proto::message::{Access, Advertised, Answer, MessageMachine};
use proto::services::{Down, TaskId, Up};
use proto::time::Time;
use std::fmt::Debug;
use std::time::Duration;
use wire::{BufferId, Places};

pub(crate) const START: Time = Time(1_000_000);

/// An initiator's machine.
pub(crate) trait Client: MessageMachine<Event: Debug> {
    fn submit(&mut self, request: Request) -> Option<TaskId>;
    /// Whether a command has ended.
    fn completion(event: &Self::Event) -> Option<&Completion>;
    /// Whether the connection has ended, and why.
    fn reason(event: &Self::Event) -> Option<&str>;
}

/// Both machines and the fabric between them.
pub(crate) struct Rig<M: MessageMachine, T> {
    pub peer: Node<M>,
    pub target: Node<T>,
    pub memory: Memory,
    pub now: Time,
    pub random: Random,
    /// The SCSI side; without one, events are kept in `ups`.
    pub device: Option<Device>,
    pub ups: Vec<Up>,
    /// A session that ends is not closed automatically: that, too, is in `ups`.
    pub waits: bool,
    pub events: Vec<M::Event>,
    pub target_gone: Option<String>,
    pub rejected: Option<Vec<u8>>,
    /// Why the connection has ended.
    pub broken: Option<&'static str>,
    /// Nothing gets through.
    pub silent: bool,
    /// Whether the last message of the target was solicited.
    pub solicited: bool,
}

impl<M: MessageMachine, T: MessageMachine<Event = Up> + Transport> Rig<M, T> {
    pub(crate) fn new(peer: M, target: T, seed: u64) -> Rig<M, T> {
        let mut random = Random::new(seed);
        Rig {
            peer: Node::new(peer, BufferId(2)),
            target: Node::new(target, BufferId(3)),
            memory: Memory::new(&mut random),
            now: START,
            random,
            device: None,
            ups: Vec::new(),
            waits: false,
            events: Vec::new(),
            target_gone: None,
            rejected: None,
            broken: None,
            silent: false,
            solicited: false,
        }
    }

    /// Establishes the connection.
    pub(crate) fn connect(&mut self) {
        let request = self.peer.machine.request();
        match self.target.machine.asked(self.now, &request) {
            Answer::Accept(answer) => {
                if !self.target.machine.may_accept() {
                    self.drain();
                    self.down(Down::Admit);
                    assert!(self.target.machine.may_accept());
                }
                self.target.machine.established(self.now, &[]);
                self.target.post(self.now, &mut self.memory, &mut self.random);
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
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    /// Lets both sides post, and does one piece of work of each; `false` when nothing happened.
    pub(crate) fn step(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        let mut busy = self.post();
        if !self.silent {
            busy |= !self.peer.port.is_idle() || !self.target.port.is_idle();
            self.work();
        }
        busy |= self.drain();
        busy | self.hang_up()
    }

    /// Lets both sides post, into queues of varying room.
    pub(crate) fn post(&mut self) -> bool {
        for port in [&mut self.peer.port, &mut self.target.port] {
            port.room = if self.random.below(4) == 0 { usize::MAX } else { 1 + self.random.below(6) };
        }
        let mut busy = self.peer.post(self.now, &mut self.memory, &mut self.random);
        busy |= self.target.post(self.now, &mut self.memory, &mut self.random);
        busy | self.drain()
    }

    /// Does one piece of work of each side, and may report one.
    fn work(&mut self) {
        let done = self.peer.port.execute(&mut self.target.port, &mut self.memory, &mut self.random);
        match done {
            Done::Quiet => {}
            Done::Message { place, bytes, invalidated, .. } => {
                self.target.received(self.now, place, &bytes, invalidated);
            }
            Done::Broken(reason) => return self.cut(reason),
        }
        let done = self.target.port.execute(&mut self.peer.port, &mut self.memory, &mut self.random);
        match done {
            Done::Quiet => {}
            Done::Message { place, bytes, solicited, invalidated } => {
                self.solicited = solicited;
                self.peer.received(self.now, place, &bytes, invalidated);
            }
            Done::Broken(reason) => return self.cut(reason),
        }
        if self.random.below(3) > 0 {
            self.peer.report(self.now);
        }
        if self.random.below(3) > 0 {
            self.target.report(self.now);
        }
        // So rarely that an answer often arrives before.
        if self.random.below(8) == 0 {
            self.peer.leave(self.now);
        }
    }

    /// The connection has ended.
    pub(crate) fn cut(&mut self, reason: &'static str) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(reason);
        self.peer.close(self.now, reason);
        self.target.close(self.now, reason);
        self.drain();
    }

    /// A machine that has ended closes the connection once everything has been sent; its peer notices when
    /// anything gets through.
    fn hang_up(&mut self) -> bool {
        if self.silent {
            let reason = "closed by this side";
            let mut any = self.peer.machine.is_over() && self.peer.close(self.now, reason);
            any |= self.target.machine.is_over() && self.target.close(self.now, reason);
            return any | self.drain();
        }
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
            assert_eq!(self.target_gone, None, "{up:?} after the end");
            any = true;
            match (&mut self.device, up) {
                (_, Up::Gone { reason }) => self.target_gone = Some(reason),
                (Some(device), up) => device.up(up, &mut self.target.machine, self.now),
                (None, Up::Leaving) if !self.waits => self.target.machine.down(self.now, Down::Close),
                (None, up) => self.ups.push(up),
            }
        }
        while let Some(event) = self.peer.machine.poll() {
            any = true;
            self.events.push(event);
        }
        any
    }

    pub(crate) fn down(&mut self, down: Down) {
        self.target.machine.down(self.now, down);
    }

    /// Lets time pass, with all deadlines in between.
    pub(crate) fn pass(&mut self, by: Duration) {
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

    /// The SCSI side.
    pub(crate) fn device(&self) -> &Device {
        self.device.as_ref().unwrap()
    }

    /// The peer gives the target access to a buffer.
    pub(crate) fn advertise(&mut self, places: Places, access: Access) -> Advertised {
        self.peer.port.advertise(places, access, &mut self.random)
    }

    /// All receives are posted, nothing is in progress, and the SCSI side's places are free.
    pub(crate) fn is_quiet(&self) -> bool {
        let idle = |port: &Port| port.is_idle() && port.held() == 0;
        let back = self.device.as_ref().is_none_or(Device::ended_tasks_hold_nothing);
        idle(&self.peer.port) && idle(&self.target.port) && !self.target.machine.owes() && back
    }
}

impl<M: Client, T: MessageMachine<Event = Up> + Transport> Rig<M, T> {
    /// Nothing is borrowed, advertised or in progress any more.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.is_quiet() && self.peer.port.advertised() == 0
    }

    pub(crate) fn submit(&mut self, request: Request) -> TaskId {
        self.peer.machine.submit(request).unwrap()
    }

    /// Submits a command and runs it to its end.
    pub(crate) fn execute(&mut self, request: Request) -> Completion {
        let task = self.submit(request);
        while self.events.is_empty() && self.step() {}
        assert_eq!(self.peer.port.leaving(), 0, "what was read of it has left");
        self.run();
        assert!(self.events.len() <= 1, "{:?}", self.events);
        let completion = self.events.pop().and_then(|event| M::completion(&event).copied());
        let completion = completion.unwrap_or_else(|| panic!("{:?} {:?}", self.target_gone, self.broken));
        assert_eq!(completion.task, task);
        assert_eq!(self.peer.port.advertised(), 0, "what was advertised is so no more");
        completion
    }

    /// Why the initiator's end has ended.
    pub(crate) fn gone(&self) -> &str {
        match self.events.last().and_then(M::reason) {
            Some(reason) => reason,
            None => panic!("{:?}, {:?}", self.events, self.target_gone),
        }
    }
}
