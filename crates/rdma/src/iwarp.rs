//! iWARP over TCP beneath a message machine.
//!
//! To the stream driver a [`Channel`] is a stream machine like any other. When called by it, it has no access
//! to memory, so the engine calls [`Channel::run`] after everything that may have changed it:
//!
//! ```text
//! loop {
//!     channel.take_in(now, io.arena())
//!     hand every event of channel.poll() to the layer above; its answers go to channel.machine_mut()
//!     if !stream.feed(io, channel) { break }
//! }
//! channel.run(now, io.arena()), and its events; the answers to them, and run again
//! stream.end_turn()
//! stream.flush(io, channel)
//! channel.run(now, io.arena()), and its events
//! if stream.wants_more() || channel.wants_more() { do all this again in the next turn }
//! ```
//!
//! and after [`Channel::pushed`] and a tick, too. After the last event the stream is shut down; once it is
//! quiet it is closed, and so is the channel.

mod pair;
mod post;

use crate::provider::{Event, Provider, Refused};
use crate::receives::ReceiveBuffers;
use post::{Posting, Staging};
use proto::iwarp::{Agreed, Config, QueuePair};
use proto::message::{Answer, Message, MessageMachine, WorkId};
use proto::services::TaskId;
use proto::stream::{StreamMachine, Transmit, Want};
use proto::time::Time;
use reactor::memory::Arena;
use std::time::Duration;

/// How long a connection waits for memory for its receives: less than its peer waits for an answer.
const MEMORY_WITHIN: Duration = Duration::from_secs(5);

/// Why a connection ends when it finds no memory for its receives.
const NO_MEMORY: &str = "there was no memory for receives";

/// One end of an RDMA connection, over iWARP in user space by default, with the machine whose messages it
/// carries.
///
/// Its receives are allocated from the arena's large buffers before a message can promise them to the peer. A
/// responder takes no more than half of the arena: its machine accepts fewer, or the connection is rejected.
/// Otherwise nothing is sent while a receive is missing.
pub struct Channel<M, P = QueuePair> {
    pair: P,
    machine: M,
    phase: Phase,
    receives: ReceiveBuffers,
    staging: Staging,
    /// When the memory missing for receives must have been found.
    missing_until: Option<Time>,
    /// The machine makes do with fewer receives than it wants.
    has_fewer_receives: bool,
    /// Something happened that may have given the machine work.
    may_have_work: bool,
    /// The queue pair has been asked to close.
    is_closing: bool,
    /// The reason, when this side ended the connection.
    reason: Option<String>,
}

/// Where the connection stands.
enum Phase {
    /// No connection has been requested.
    Listening,
    /// This side requests a connection.
    Asking,
    /// The peer requests a connection, and gets this answer once the receives are posted.
    Answering(Answer),
    /// Established.
    Full,
    /// The connection has ended, and the machine was notified.
    Over,
}

impl<M: MessageMachine> Channel<M> {
    /// The end that opened the TCP connection, and requests an RDMA connection with the machine's private
    /// data. `config` has room for as many receives as the machine ever wants.
    pub fn initiator(config: Config, mut machine: M, now: Time) -> Result<Channel<M>, Refused> {
        let pair = QueuePair::initiator(config, &machine.request(), now)?;
        Ok(Channel::new(pair, machine, Phase::Asking, ReceiveBuffers::new(false)))
    }

    /// The end that accepted the TCP connection; the machine decides whether it accepts it.
    pub fn responder(config: Config, machine: M, now: Time) -> Channel<M> {
        Channel::accepting(QueuePair::responder(config, now), machine)
    }

    /// The parameters agreed on by both ends, while connected.
    pub fn agreed(&self) -> Option<Agreed> {
        self.pair.agreed()
    }

    /// What [`reactor::stream::Stream::sent`] reports.
    pub fn pushed(&mut self, tasks: &[TaskId]) {
        tasks.iter().for_each(|task| self.pair.pushed(*task));
    }
}

impl<M: MessageMachine, P: Provider> Channel<M, P> {
    /// The end from which a peer requests a connection; the machine decides whether to accept it.
    pub fn accepting(pair: P, machine: M) -> Channel<M, P> {
        Channel::new(pair, machine, Phase::Listening, ReceiveBuffers::new(true))
    }

    fn new(pair: P, machine: M, phase: Phase, receives: ReceiveBuffers) -> Channel<M, P> {
        Channel {
            pair,
            machine,
            phase,
            receives,
            staging: Staging::default(),
            missing_until: None,
            has_fewer_receives: false,
            may_have_work: true,
            is_closing: false,
            reason: None,
        }
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for answers from the layer above.
    pub fn machine_mut(&mut self) -> &mut M {
        self.may_have_work = true;
        &mut self.machine
    }

    /// The provider.
    pub fn pair_mut(&mut self) -> &mut P {
        &mut self.pair
    }

    /// Notifies the machine of what happened. While there is more to come, this suffices before
    /// [`Channel::poll`].
    pub fn take_in(&mut self, now: Time, arena: &mut Arena) {
        while let Some(event) = self.pair.poll(arena) {
            self.may_have_work = true;
            self.happened(now, event, arena);
        }
    }

    /// Notifies the machine of what happened, keeps its receives posted, and posts its work.
    pub fn run(&mut self, now: Time, arena: &mut Arena) {
        self.take_in(now, arena);
        while std::mem::take(&mut self.may_have_work) {
            // What is posted may promise more receives than there were before.
            let has_ended = self.provide(now, arena) || self.post(now, arena) || self.provide(now, arena);
            self.may_have_work = has_ended;
            self.take_in(now, arena);
        }
        self.may_have_work = self.wants_more();
    }

    /// Whether it waits for memory: call [`Channel::run`] again in the next turn.
    pub fn wants_more(&self) -> bool {
        let is_short = self.missing_until.is_some() || self.staging.is_short();
        is_short && !self.is_closing && !matches!(self.phase, Phase::Over)
    }

    /// Releases all buffers. The stream must be quiet, so that nothing receives into them or sends from them
    /// any more.
    pub fn close(mut self, arena: &mut Arena) {
        self.pair.release(arena);
        self.receives.close(arena);
        self.staging.close(arena);
    }

    fn happened(&mut self, now: Time, event: Event, arena: &mut Arena) {
        match event {
            Event::Request { private_data, .. } => self.asked(now, &private_data),
            Event::Established { private_data, .. } => {
                self.phase = Phase::Full;
                self.machine.established(now, &private_data);
            }
            Event::Rejected { private_data, .. } => self.machine.rejected(now, &private_data),
            Event::Received { id, len, invalidated, .. } => {
                let place = self.receives.hand_out(arena, id);
                let bytes = arena.bytes(place.slice(0, len));
                self.machine.received(now, Message { place, bytes, invalidated });
            }
            Event::Sent { id } => {
                self.staging.sent(arena);
                self.machine.finished(now, WorkId(id));
            }
            Event::Written { id } | Event::Read { id } => self.machine.finished(now, WorkId(id)),
            Event::Freed { stag } => self.machine.freed(now, stag),
            Event::Gone { reason } => {
                self.phase = Phase::Over;
                self.machine.closed(now, self.reason.as_deref().unwrap_or(&reason));
            }
        }
    }

    fn asked(&mut self, now: Time, private_data: &[u8]) {
        match self.machine.asked(now, private_data) {
            Answer::Reject(answer) => self.reject(now, &answer),
            answer @ Answer::Accept(_) => self.phase = Phase::Answering(answer),
        }
    }

    fn reject(&mut self, now: Time, answer: &[u8]) {
        if let Err(refused) = self.pair.reject(now, answer) {
            self.end(now, format!("rejecting the connection failed: {refused}"));
        }
    }

    /// Posts the missing receives. When none is missing any more, or the machine accepts those that exist,
    /// the peer's connection request is answered: then, or when there is to be no connection, the result is
    /// `true`.
    fn provide(&mut self, now: Time, arena: &mut Arena) -> bool {
        if self.is_closing || matches!(self.phase, Phase::Listening | Phase::Over) {
            return false;
        }
        match self.post_receives(arena) {
            Ok(true) => self.missing_until = None,
            Ok(false) => return self.lacks_memory(now),
            Err(refused) => {
                self.end(now, format!("receives cannot be posted: {refused}"));
                return true;
            }
        }
        let Phase::Answering(Answer::Accept(answer)) = &self.phase else { return false };
        if let Some(rejection) = self.machine.rejection() {
            self.is_closing = true;
            self.reject(now, &rejection);
            return true;
        }
        if !self.machine.may_accept() {
            return false;
        }
        let accepted = self.pair.accept(now, answer);
        self.phase = Phase::Full;
        if let Err(refused) = accepted {
            self.end(now, format!("accepting the connection failed: {refused}"));
        }
        true
    }

    /// Posts the missing receives; `false`: out of memory.
    fn post_receives(&mut self, arena: &mut Arena) -> Result<bool, Refused> {
        if !self.staging.reserve(arena) {
            return Ok(false);
        }
        let wanted = self.machine.receives();
        while self.receives.ready() < wanted.count {
            let Some(span) = self.receives.make(&wanted, arena) else { break };
            match self.pair.post_receive(span, arena) {
                // In any other state the connection ends soon.
                Ok(()) | Err(Refused::State) => {}
                Err(refused) => return Err(refused),
            }
        }
        self.pair.submit();
        let are_all = self.receives.ready() >= wanted.count;
        if !are_all || self.has_fewer_receives {
            self.has_fewer_receives = !are_all;
            return Ok(self.accepts_receives() || are_all);
        }
        Ok(true)
    }

    /// Whether the machine accepts the existing number of receives.
    fn accepts_receives(&mut self) -> bool {
        let answer = self.machine.accept_fewer_receives(self.receives.made());
        let accepts_receives = matches!(answer, Answer::Accept(_));
        if let Phase::Answering(last) = &mut self.phase {
            *last = answer;
        }
        accepts_receives
    }

    /// Waits for memory, or rejects a peer for whose receives there is not enough: then the result is `true`.
    fn lacks_memory(&mut self, now: Time) -> bool {
        if let Phase::Answering(Answer::Reject(answer)) = &mut self.phase {
            let answer = std::mem::take(answer);
            self.reason.get_or_insert(NO_MEMORY.to_string());
            self.is_closing = true;
            self.reject(now, &answer);
        } else {
            self.missing_until.get_or_insert(now.after(MEMORY_WITHIN));
        }
        self.is_closing
    }

    /// Lets the machine post, and closes the connection after its last post; then the result is `true`.
    fn post(&mut self, now: Time, arena: &mut Arena) -> bool {
        let mut fault = None;
        self.staging.begin();
        if self.pair.is_established() && self.machine.owes() {
            let (pair, receives, staging) = (&mut self.pair, &mut self.receives, &mut self.staging);
            self.machine.post(now, &mut Posting { pair, arena, receives, staging, fault: &mut fault });
            self.pair.submit();
        }
        if self.is_closing {
            return false;
        }
        match fault {
            Some(refused) => self.end(now, format!("work cannot be posted: {refused}")),
            None if self.machine.is_over() => self.close_pair(now),
            None => {}
        }
        self.is_closing
    }

    fn end(&mut self, now: Time, reason: String) {
        self.reason.get_or_insert(reason);
        self.close_pair(now);
    }

    fn close_pair(&mut self, now: Time) {
        self.is_closing = true;
        self.missing_until = None;
        self.pair.close(now);
    }

    /// The oldest event of the machine.
    pub fn event(&mut self) -> Option<M::Event> {
        self.machine.poll()
    }

    /// Ends the connection; the machine is notified when it has ended.
    pub fn shut_down(&mut self, now: Time, reason: &str) {
        if !matches!(self.phase, Phase::Over) {
            self.end(now, reason.to_string());
        }
    }

    /// Whether the connection has ended, and the machine was notified.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// When [`Channel::tick`] is to be called next.
    pub fn deadline(&self) -> Option<Time> {
        if self.is_over() {
            return None;
        }
        let deadlines = [self.pair.deadline(), self.machine.deadline(), self.missing_until];
        deadlines.into_iter().flatten().min()
    }

    /// Time has reached the deadline.
    pub fn tick(&mut self, now: Time) {
        if self.missing_until.is_some_and(|until| now >= until) {
            self.end(now, NO_MEMORY.to_string());
        }
        self.may_have_work = true;
        self.pair.tick(now);
        if self.machine.deadline().is_some_and(|deadline| now >= deadline) {
            self.machine.tick(now);
        }
    }

    /// Whether sends are held back, because they might promise receives that are missing.
    fn is_held_back(&self) -> bool {
        let is_sent = matches!(self.phase, Phase::Asking) || self.pair.is_established();
        self.missing_until.is_some() && is_sent
    }
}

impl<M: MessageMachine> StreamMachine for Channel<M> {
    type Event = M::Event;

    fn want(&self) -> Want {
        self.pair.want()
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        self.pair.header(now, bytes);
    }

    fn header_and(&mut self, now: Time, bytes: &[u8], behind: &[u8]) -> u32 {
        self.pair.header_and(now, bytes, behind)
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        self.pair.body(now, digest_ok);
    }

    fn closed(&mut self, now: Time, error: Option<&str>) {
        self.pair.closed(now, error);
    }

    fn poll(&mut self) -> Option<M::Event> {
        self.machine.poll()
    }

    fn owes(&self) -> bool {
        !self.is_held_back() && self.pair.owes()
    }

    fn transmit(&mut self, now: Time, batch: &mut Transmit) {
        self.pair.transmit(now, batch);
    }

    fn finished(&self) -> bool {
        self.pair.finished()
    }

    fn deadline(&self) -> Option<Time> {
        Channel::deadline(self)
    }

    fn tick(&mut self, now: Time) {
        Channel::tick(self, now);
    }
}
