//! The initiator's end of an iSER connection: the datamover under `crate::iscsi::initiator::layer`.
//!
//! A command advertises its buffers, and the target reads and writes them. They are not returned as soon as
//! the response arrives: an STag that the message invalidated is invalid already, every other is invalidated
//! here, and only after that, and once what the target has read has been sent, is the command reported (RFC
//! 7145 section 7.3.2).

mod receive;
mod send;

use crate::iscsi::initiator::layer::{CONTROL_MAX, Layer};
use crate::iscsi::initiator::{Event, FUNCTIONS_MAX, InitiatorConfig, Request};
use crate::iscsi::login::{Negotiated, UNEXPECTED_MAX};
use crate::message::{Advertised, Answer, Message, MessageMachine, Post, Receives, WorkId};
use crate::services::{FunctionId, TaskId};
use crate::time::Time;
use send::Unsent;
use std::collections::VecDeque;
use wire::Span;
use wire::iscsi::TaskFunction;

/// The deepest queue: each response must find a receive.
pub const QUEUE_DEPTH_MAX: u16 = 4000;
/// Answers to a text, a ping and a logout request.
const OTHERS: u32 = 3;

/// The initiator's end of one iSER connection.
pub struct Initiator {
    layer: Layer,
    is_connected: bool,
    /// Posted work is void, and nothing is advertised any more.
    is_closed: bool,
    /// The buffers that each command has advertised, by slot.
    advertised: Vec<AdvertisedBuffers>,
    /// Commands that have ended, and whose buffers are to be reclaimed.
    ended: VecDeque<TaskId>,
    /// Buffers of messages that are to be returned.
    free: Vec<Span>,
    /// The next message to send, kept to reuse the allocation.
    message: Vec<u8>,
    /// It was offered, and not accepted.
    unsent: Option<Unsent>,
}

/// The buffers that a command has advertised.
#[derive(Clone, Copy, Debug, Default)]
struct AdvertisedBuffers {
    write: Option<Advertised>,
    read: Option<Advertised>,
    /// Its task is not reported before these are free.
    is_advertised: bool,
}

impl AdvertisedBuffers {
    /// Both buffers.
    fn both(&mut self) -> [&mut Option<Advertised>; 2] {
        [&mut self.write, &mut self.read]
    }
}

impl Initiator {
    /// A machine for a connection that is about to be established.
    pub fn new(mut config: InitiatorConfig, now: Time) -> Initiator {
        config.queue_depth = config.queue_depth.min(QUEUE_DEPTH_MAX);
        config.plan.offers = config.plan.offers.over_rdma();
        Initiator {
            layer: Layer::new(config, now),
            is_connected: false,
            is_closed: false,
            advertised: Vec::new(),
            ended: VecDeque::new(),
            free: Vec::new(),
            message: Vec::new(),
            unsent: None,
        }
    }

    /// What was negotiated, once logged in.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.layer.negotiated.as_deref()
    }

    /// Sends a command; `None` when the queue is full or the session is not logged in. Its buffers stay
    /// borrowed until [`Event::Completed`].
    pub fn submit(&mut self, request: Request) -> Option<TaskId> {
        self.layer.submit(request)
    }

    /// Whether the target has acknowledged a command that has not ended.
    pub fn has_arrived(&mut self, id: TaskId) -> bool {
        self.layer.has_arrived(id)
    }

    /// Sends a task management request; `referenced` is the task of an ABORT TASK. `None` when too many are
    /// unanswered, the session is not logged in, or the task has ended. Commands that it ends may be reported
    /// after it.
    pub fn function(
        &mut self,
        lun: u64,
        function: TaskFunction,
        referenced: Option<TaskId>,
    ) -> Option<FunctionId> {
        // Beside these, a ping, a text and a logout request may be outstanding that the target does not
        // expect.
        let limit = self.layer.rdma.map_or(0, |rdma| rdma.unexpected_max);
        let room = if limit == 0 { u32::MAX } else { limit.saturating_sub(OTHERS).max(1) };
        if u32::try_from(self.layer.functions.len()).is_ok_and(|waiting| waiting >= room) {
            return None;
        }
        let id = self.layer.function(lun, function, referenced);
        self.retire_all();
        id
    }

    /// Sends a text request, no longer than the target accepts in one PDU; `false` when one is outstanding.
    pub fn text(&mut self, text: &[u8]) -> bool {
        self.layer.text(text)
    }

    /// Sends a ping; `false` when one is outstanding.
    pub fn ping(&mut self, data: &[u8]) -> bool {
        self.layer.ping(data)
    }

    /// Logs out: the session is closed, and [`Event::Gone`] follows, whatever the target sends instead of an answer.
    pub fn logout(&mut self, now: Time) {
        self.layer.logout(now);
    }
}

impl MessageMachine for Initiator {
    type Event = Event;

    fn request(&mut self) -> Vec<u8> {
        super::private_data(true)
    }

    /// Initiators do not get connection requests.
    fn asked(&mut self, _now: Time, _private_data: &[u8]) -> Answer {
        Answer::Reject(Vec::new())
    }

    fn established(&mut self, now: Time, _private_data: &[u8]) {
        self.layer.note_peer_activity(now);
        self.is_connected = true;
    }

    /// One for each answer, and for what the target may send unsolicited (RFC 7145 section 8.1.2).
    fn receives(&self) -> Receives {
        let functions = u32::try_from(FUNCTIONS_MAX).unwrap_or(u32::MAX);
        let depth = u32::from(self.layer.config.queue_depth);
        super::receives(
            depth.saturating_add(functions).saturating_add(OTHERS).saturating_add(UNEXPECTED_MAX.into()),
            self.free.len(),
        )
    }

    fn received(&mut self, now: Time, message: Message<'_>) {
        self.layer.note_peer_activity(now);
        self.free.push(message.place);
        if !self.layer.is_over()
            && let Err(reason) = self.take(message)
        {
            self.layer.over(&reason);
        }
    }

    fn finished(&mut self, _now: Time, work: WorkId) {
        if let Some(task) = send::payload_task(work)
            && !self.layer.is_over()
        {
            self.layer.pushed(task);
        }
    }

    fn freed(&mut self, _now: Time, stag: u32) {
        if !self.layer.is_over() {
            self.has_left(stag);
        }
    }

    fn closed(&mut self, _now: Time, reason: &str) {
        self.is_closed = true;
        self.layer.over(reason);
        self.ended.clear();
        self.free.clear();
        self.unsent = None;
    }

    /// The end comes last, once the target no longer accesses the buffers of commands.
    fn poll(&mut self) -> Option<Event> {
        self.layer.events.pop_front_if(|event| self.is_closed || !matches!(event, Event::Gone { .. }))
    }

    fn owes(&self) -> bool {
        let sends = self.unsent.is_some() || self.layer.owes();
        (self.is_connected && sends && !self.layer.is_over())
            || !self.ended.is_empty()
            || (!self.free.is_empty() && self.takes_more())
    }

    fn post(&mut self, _now: Time, to: &mut dyn Post) {
        self.reclaim(to);
        if self.takes_more() {
            for place in self.free.drain(..) {
                to.release(place);
            }
        }
        if self.is_connected && !self.layer.is_over() {
            // What is not accepted waits for room.
            let _ = self.send(to);
        }
    }

    fn is_over(&self) -> bool {
        self.layer.is_over()
    }

    fn deadline(&self) -> Option<Time> {
        self.layer.deadline()
    }

    fn tick(&mut self, now: Time) {
        self.layer.tick(now);
    }
}

impl Initiator {
    /// Messages are returned while not too many answers to the target wait.
    fn takes_more(&self) -> bool {
        self.layer.control.len() < CONTROL_MAX
    }
}
