//! Messages for the iSER target. The first byte selects whether they begin after a login, and how the fabric
//! behaves; the second how the layer above answers. Each message is preceded by its length in two bytes.

use crate::above::Above;
use crate::{Door, Input, address, login};
use proto::iscsi::login::Offers;
use proto::iscsi::target::TargetConfig;
use proto::iser::target::Target;
use proto::message::{Access, Advertised, Full, Message, MessageMachine, Post, WorkId};
use proto::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use wire::{BufferId, Places, Span};

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, manners) = (input.byte(), input.byte());
    let mut driver = Driver::new(options, manners);
    if options & 1 == 1 {
        let mut message = vec![0; 28];
        message[0] = 0x10;
        message.extend(login("RDMAExtensions=Yes\0FirstBurstLength=8192\0"));
        driver.receive(&message);
        driver.post();
        assert!(driver.above.ready, "the login succeeds");
    }
    while !driver.machine.is_over() && !input.is_empty() {
        let len = usize::from(input.short());
        let Some(message) = input.take(len) else { break };
        driver.turn(message);
    }
    driver.machine.closed(driver.now, "cut");
    driver.above.answer(&mut driver.machine, driver.now);
    assert!(driver.above.gone && driver.machine.is_over(), "a closed connection has ended");
}

/// A driver without a fabric.
struct Driver {
    machine: Target,
    now: Time,
    above: Above,
    fabric: Fabric,
}

/// What was posted.
#[derive(Default)]
struct Fabric {
    /// Outstanding work.
    posted: VecDeque<WorkId>,
    /// How much work it accepts at a time.
    room: usize,
    /// Places of messages that the machine holds.
    held: Vec<Span>,
    places: u64,
    posts: usize,
}

impl Fabric {
    fn push(&mut self, work: WorkId) -> Result<(), Full> {
        if self.posted.len() >= self.room {
            return Err(Full);
        }
        self.posts += 1;
        self.posted.push_back(work);
        Ok(())
    }
}

impl Post for Fabric {
    fn send(&mut self, work: WorkId, _: &[u8], _: Places, _: bool, _: Option<u32>) -> Result<(), Full> {
        self.push(work)
    }

    fn write(&mut self, work: WorkId, from: Places, _: Advertised) -> Result<(), Full> {
        assert!(!from.is_empty());
        self.push(work)
    }

    fn read(&mut self, work: WorkId, into: Places, _: Advertised) -> Result<(), Full> {
        assert!(!into.is_empty());
        self.push(work)
    }

    fn advertise(&mut self, _: Places, _: Access) -> Result<Advertised, Full> {
        unreachable!("targets advertise nothing");
    }

    fn moved(&self, _: u32) -> u32 {
        unreachable!("targets advertise nothing");
    }

    fn invalidate(&mut self, _: u32) -> bool {
        unreachable!("targets advertise nothing");
    }

    fn copy(&mut self, from: Span, to: Places) {
        assert_eq!(from.len, to.len(), "a copy has one length");
        assert!(self.held.iter().any(|place| {
            place.offset <= from.offset
                && from.offset + u64::from(from.len) <= place.offset + u64::from(place.len)
        }));
    }

    fn bytes(&self, _: Span) -> &[u8] {
        unreachable!("iSER reads nothing into messages");
    }

    fn release(&mut self, place: Span) {
        let at = self.held.iter().position(|held| *held == place).expect("released once");
        self.held.swap_remove(at);
        self.posts += 1;
    }
}

impl Driver {
    fn new(options: u8, manners: u8) -> Self {
        let config = TargetConfig {
            offers: Offers::default(),
            queue_depth: 8,
            login_within: Duration::from_secs(15),
            idle: Duration::from_secs(30),
            crc32c: |_| 0,
        };
        let now = Time(1);
        let mut machine = Target::new(config, 1024, Arc::new(Door::default()), address(), address(), now);
        machine.asked(now, &[0x80, 0, 0, 0]);
        machine.established(now, &[]);
        let room = if options & 2 == 2 { 2 } else { 4096 };
        Self { machine, now, above: Above::new(manners), fabric: Fabric { room, ..Fabric::default() } }
    }

    /// Delivers one message, and runs what it causes for a while.
    fn turn(&mut self, message: &[u8]) {
        let receives = self.machine.receives();
        if receives.count == 0 || message.len() > receives.bytes as usize {
            return self.machine.closed(self.now, "no receive stands ready");
        }
        self.receive(message);
        self.post();
        if self.above.manners & 8 == 0 && !self.above.commands.is_empty() {
            self.above.end_oldest(&mut self.machine, self.now);
            self.above.answer(&mut self.machine, self.now);
            self.post();
        }
        self.now = self.now.after(Duration::from_millis(u64::from(self.above.manners)));
        if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.machine.tick(self.now);
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.fabric.places += 1;
        let place = Span { buffer: BufferId(2), len: bytes.len() as u32, offset: self.fabric.places << 20 };
        self.fabric.held.push(place);
        self.machine.received(self.now, Message { place, bytes, invalidated: None });
        self.above.answer(&mut self.machine, self.now);
    }

    /// Posts and completes work, except the last of it when work is slow.
    fn post(&mut self) {
        loop {
            let before = self.fabric.posts;
            if self.machine.owes() {
                self.machine.post(self.now, &mut self.fabric);
                self.above.answer(&mut self.machine, self.now);
            }
            let slow = usize::from(self.above.manners & 16 != 0);
            let ready = self.fabric.posted.len() > slow;
            if ready && let Some(work) = self.fabric.posted.pop_front() {
                self.machine.finished(self.now, work);
                self.above.answer(&mut self.machine, self.now);
            } else if self.fabric.posts == before {
                let is_idle = self.fabric.posted.is_empty();
                assert!(!is_idle || self.machine.is_over() || self.above.ended_tasks_hold_nothing());
                return;
            }
        }
    }
}
