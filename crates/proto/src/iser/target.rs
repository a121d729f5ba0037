//! The target's end of an iSER connection: the datamover under `crate::iscsi::target::layer`.
//!
//! An R2T becomes an RDMA Read, whose completion stands for Data-Out; Data-In becomes an RDMA Write, followed
//! by the status in a separate SCSI Response (RFC 7145 sections 3.3, 7.3.5, 7.3.6).
//!
//! Aborts: RDMA that was posted cannot be recalled. So an aborted task keeps its slot until everything posted
//! for it has finished, and only then are its places released ([`Up::Pushed`]). Messages to the initiator
//! wait as well: once it knows that a task has ended it reuses its buffers, and a read of a buffer that is no
//! longer advertised would end the connection. So neither a response nor the answer to a task management
//! function nor any other PDU overtakes an RDMA Read of a task that it concerns. RDMA Writes need no such
//! care: what is sent after them arrives after them.

mod receive;
mod send;
mod work;

use crate::iscsi::login::{Access, UNEXPECTED_MAX};
use crate::iscsi::target::TargetConfig;
use crate::iscsi::target::layer::{Layer, Phase};
use crate::message::{Advertised, Answer, Message, MessageMachine, Post, Receives, WorkId};
use crate::services::{Down, TaskId, Up};
use crate::time::Time;
use send::Unsent;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::Span;
use wire::iscsi::LoginStatus;
use work::Work;

/// Answers to our pings, which are expected but not numbered, and one login request.
const OTHERS: u32 = 2;

/// The target's end of one iSER connection.
pub struct Target {
    layer: Layer,
    /// Commands that an initiator may have in flight, when there are receives for everything that comes with
    /// them.
    queue_depth: u16,
    /// Receives, at most.
    receives_max: u16,
    /// STags of the initiator are invalidated by the message that ends their use.
    invalidates: bool,
    /// What each task may read and write, by slot.
    remote: Vec<Remote>,
    /// Data segments that were received and have not been copied to their place.
    held: VecDeque<Held>,
    /// Buffers of messages that are to be returned.
    free: Vec<Span>,
    /// Those of messages that the window does not bound: they are kept while many answers wait.
    unnumbered: Vec<Span>,
    /// The next message to send, kept to reuse the allocation.
    message: Vec<u8>,
    /// It was offered, and not accepted.
    unsent: Option<Unsent>,
    /// StatSNs of PDUs that the initiator did not expect and has not acknowledged.
    unexpected: VecDeque<u32>,
    /// Posted work is void.
    is_closed: bool,
}

/// What the initiator has advertised with a command.
#[derive(Clone, Copy, Debug, Default)]
struct Remote {
    /// Its data-out, from offset 0.
    write: Option<Advertised>,
    /// Its data-in, from offset 0.
    read: Option<Advertised>,
}

/// A data segment that is still in its message.
#[derive(Clone, Copy, Debug)]
struct Held {
    task: TaskId,
    /// Offset in the task's data-out.
    at: u32,
    data: Span,
    /// The buffer of the message.
    message: Span,
}

impl Target {
    /// A machine for a connection that is being requested, from `from` at this `portal`. It never needs more
    /// than `receives_max` receives: fewer commands may be in flight when an initiator insists on short data
    /// segments.
    pub fn new(
        config: TargetConfig,
        receives_max: u16,
        access: Arc<dyn Access>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> Target {
        let queue_depth = config.queue_depth;
        // What was announced at login stays valid: MaxCmdSN does not decrease (RFC 7143 section 4.2.2.1).
        let config = TargetConfig { queue_depth: 1, offers: config.offers.over_rdma(), ..config };
        Target {
            layer: Layer::new(config, access, from, portal, now),
            queue_depth,
            receives_max: receives_max.min(super::RECEIVES_MAX),
            invalidates: false,
            remote: Vec::new(),
            held: VecDeque::new(),
            free: Vec::new(),
            unnumbered: Vec::new(),
            message: Vec::new(),
            unsent: None,
            unexpected: VecDeque::new(),
            is_closed: false,
        }
    }

    /// Like that of iSCSI's target.
    pub fn limit_window(&mut self, commands: u32) -> bool {
        self.layer.limit_window(commands)
    }

    /// Whether the initiator has begun a login with a valid request.
    pub fn has_begun(&self) -> bool {
        self.layer.has_begun()
    }

    /// The status with which a login was refused.
    pub fn refusal(&self) -> Option<LoginStatus> {
        self.layer.refusal
    }

    /// Handles a call from the engine. One about a task that has ended is ignored.
    pub fn down(&mut self, now: Time, down: Down) {
        let logs_in = matches!(self.layer.phase, Phase::Login { .. });
        self.layer.down(now, down);
        if logs_in && self.layer.is_full_feature() {
            self.open_window();
        }
        if let Down::End { task, .. } | Down::Abort { task } = down {
            self.layer.settle(task);
        }
    }

    /// Messages that may arrive at a time: one for each command of the window and for each unsolicited
    /// Data-Out that may follow it, and those that are not numbered. A message keeps its receive until it was
    /// copied, but its command occupies the window that long, too: so the window never exceeds the receives
    /// (RFC 7145 section 8.1.1).
    fn messages(&self) -> u32 {
        let numbered = u32::from(self.layer.config.queue_depth).saturating_mul(self.messages_each());
        numbered.saturating_add(UNEXPECTED_MAX.into()).saturating_add(OTHERS)
    }

    /// Messages of one command.
    fn messages_each(&self) -> u32 {
        let link = &self.layer.link;
        let following = if link.initial_r2t { 0 } else { link.first_burst.div_ceil(link.max_recv.max(1)) };
        following.saturating_add(1)
    }

    /// The number of commands for which this many receives are enough: it depends on what was negotiated.
    fn fitting(&self, receives: u16) -> u16 {
        let numbered = u32::from(receives).saturating_sub(OTHERS.saturating_add(UNEXPECTED_MAX.into()));
        let fitting = numbered.checked_div(self.messages_each()).unwrap_or(0);
        u16::try_from(fitting).unwrap_or(u16::MAX)
    }

    /// Opens the window for as many commands as there may be receives for. For discovery one is enough.
    fn open_window(&mut self) {
        let fitting = self.fitting(self.receives_max).max(1);
        self.layer.widen(self.queue_depth.min(fitting));
    }
}

impl MessageMachine for Target {
    type Event = Up;

    /// Targets do not request connections.
    fn request(&mut self) -> Vec<u8> {
        super::private_data(true)
    }

    fn asked(&mut self, now: Time, private_data: &[u8]) -> Answer {
        self.layer.note_peer_activity(now);
        self.invalidates = super::invalidates(private_data);
        Answer::Accept(super::private_data(self.invalidates))
    }

    fn established(&mut self, now: Time, _private_data: &[u8]) {
        self.layer.note_peer_activity(now);
    }

    fn receives(&self) -> Receives {
        let held = [self.held.len(), self.free.len(), self.unnumbered.len()].into_iter().sum();
        super::receives(self.messages(), held)
    }

    fn accept_fewer_receives(&mut self, receives: u16) -> Answer {
        let fitting = self.fitting(receives);
        let depth = self.layer.config.queue_depth.min(self.layer.depth_max);
        self.layer.session.set_depth(depth.min(fitting).max(1).into());
        match fitting {
            0 => Answer::Reject(Vec::new()),
            _ => Answer::Accept(super::private_data(self.invalidates)),
        }
    }

    fn received(&mut self, now: Time, message: Message<'_>) {
        self.layer.note_peer_activity(now);
        if matches!(self.layer.phase, Phase::Ending { .. } | Phase::Closing(_) | Phase::Over) {
            return self.free.push(message.place);
        }
        if let Err(violation) = self.take(message) {
            self.free.push(message.place);
            self.layer.over(&violation.to_string());
        }
        self.layer.pace();
    }

    fn finished(&mut self, now: Time, work: WorkId) {
        if self.layer.is_over() {
            return;
        }
        match Work::of(work) {
            Some(Work::Response { task }) => self.work_done(task, false),
            Some(Work::Write { task }) => {
                self.written(task);
                self.work_done(task, false);
            }
            Some(Work::Read { task, len }) => {
                self.layer.note_peer_activity(now);
                self.layer.solicited_done(task, len);
                self.work_done(task, true);
            }
            Some(Work::Control) | None => {}
        }
    }

    fn closed(&mut self, _now: Time, reason: &str) {
        self.is_closed = true;
        self.layer.closed(Some(reason));
        self.held.clear();
        self.free.clear();
        self.unnumbered.clear();
        self.unsent = None;
    }

    /// The end comes last, once posted work no longer accesses the places of tasks.
    fn poll(&mut self) -> Option<Up> {
        self.layer.up.pop_front_if(|up| self.is_closed || !matches!(up, Up::Gone { .. }))
    }

    fn owes(&self) -> bool {
        self.unsent.is_some()
            || !self.layer.out.is_empty()
            || !self.free.is_empty()
            || (!self.unnumbered.is_empty() && !self.layer.paused)
            || self.held.iter().any(|held| self.is_placeable(held))
    }

    fn post(&mut self, _now: Time, to: &mut dyn Post) {
        self.layer.tasks.batch_begins();
        self.place(to);
        self.release_free(to);
        // What comes next waits for room, or for an RDMA Read; everything posted is in order.
        let _ = self.send(to);
        if self.layer.paused {
            self.layer.pace();
        }
        if self.layer.out.is_empty() && self.unsent.is_none() {
            self.layer.close();
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
