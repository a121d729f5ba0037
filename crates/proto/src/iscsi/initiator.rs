//! The initiator machine of one connection: login, then the full feature phase at error recovery level 0.
//!
//! It mirrors the services of the target: commands with their buffers go in, [`Event`]s come out. When a
//! batch has been sent, [`Initiator::pushed`] has to be called for each task in it. Any violation of the
//! standard by the target ends the connection (section 7.1.4: this level has only session recovery). Nothing
//! is allocated per command once logged in.
//!
//! `layer` is the iSCSI layer, which is independent of how PDUs and data move: `answer` interprets the
//! target's PDUs, `queue` holds what is sent. iSER (`crate::iser`) moves everything by messages and RDMA; the
//! machine in this file moves it over a byte stream, with `receive` and `send`, and in the common case by a
//! shortcut, `plain`.

mod answer;
pub(crate) mod layer;
mod plain;
pub(crate) mod queue;
mod receive;
mod send;
pub(crate) mod task;

use crate::iscsi::login::{Elsewhere, Negotiated, Plan};
use crate::services::{Attribute, FunctionId, Session, TaskId};
use crate::stream::{HEADER_BYTES_MAX, StreamMachine, Transmit, Want};
use crate::time::Time;
use layer::{CONTROL_MAX, Layer};
pub use plain::Ended;
use std::fmt;
use std::time::Duration;
use wire::iscsi::{
    AsyncEvent, BHS_BYTES, DIGEST_BYTES, FunctionResponse, Opcode, RejectReason, TaskFunction, pad,
};
use wire::{Cdb, Places, Sense};

/// The most unanswered task management requests.
pub const FUNCTIONS_MAX: usize = 16;
/// Bytes of ping data.
pub const PING_BYTES_MAX: usize = 4096;
/// The most bytes of all the responses to one text request.
pub const TEXT_RESPONSE_MAX: usize = 1024 * 1024;
/// The most responses to one text request: each but the last costs another request, even when it is empty.
pub const TEXT_PARTS_MAX: u32 = 1024;
/// The deepest queue: slots are below the tags of everything else.
pub const QUEUE_DEPTH_MAX: u16 = 0x7fff;
/// The configuration of an initiator machine.
#[derive(Clone, Debug)]
pub struct InitiatorConfig {
    /// How to log in.
    pub plan: Plan,
    /// Commands in flight, at most [`QUEUE_DEPTH_MAX`].
    pub queue_depth: u16,
    /// How long the login may take.
    pub login_within: Duration,
    /// How long the target may be silent before it is sent a ping, and how long the answer may take.
    pub idle: Duration,
    /// CRC32C.
    pub crc32c: fn(&[u8]) -> u32,
}

/// A SCSI command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The eight LUN bytes.
    pub lun: u64,
    /// Task attribute.
    pub attribute: Attribute,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Where data-in goes.
    pub read: Places,
    /// Where data-out comes from.
    pub write: Places,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Which.
    pub task: TaskId,
    /// How.
    pub outcome: Outcome,
    /// Bytes of data-in received.
    pub read_bytes: u32,
    /// Bytes of data-out that the target received: unsolicited data, and what it requested and was sent.
    pub write_bytes: u32,
    /// The residual of the expected length: of the data-out, when the command has both directions.
    pub residual: Residual,
    /// The residual of the data-in of a command with both directions.
    pub read_residual: Residual,
}

/// Ways for a command to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// With a SCSI status.
    Status {
        /// Status (SAM-5 section 5.3).
        status: u8,
        /// Sense data.
        sense: Option<Sense>,
    },
    /// The target could not execute it: the response code (section 11.4.3).
    TargetFailure(u8),
    /// It was rejected.
    Rejected(RejectReason),
    /// A task management function ended it.
    Aborted,
}

/// Residual count (section 11.4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residual {
    /// None.
    None,
    /// The target had this many bytes more.
    Overflow(u32),
    /// The target had this many bytes less.
    Underflow(u32),
}

impl fmt::Display for Residual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Residual::None => f.write_str("none"),
            Residual::Overflow(bytes) => write!(f, "overflow of {bytes} bytes"),
            Residual::Underflow(bytes) => write!(f, "underflow of {bytes} bytes"),
        }
    }
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Logged in.
    Ready(Box<Session>),
    /// A command has ended; its places may be used again.
    Completed(Completion),
    /// A task management function was answered. Commands that it ended were reported before.
    FunctionDone {
        /// Which.
        id: FunctionId,
        /// The answer.
        response: FunctionResponse,
    },
    /// The whole answer to a text request.
    Text(Vec<u8>),
    /// The answer to a ping.
    Pong(Vec<u8>),
    /// An asynchronous message (section 11.9): with [`AsyncEvent::LOGOUT_REQUEST`], log out.
    Async {
        /// What.
        event: AsyncEvent,
        /// Its three parameters.
        parameters: [u16; 3],
    },
    /// The target rejected a PDU.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The opcode of the PDU.
        opcode: Opcode,
    },
    /// The target refuses the login, since it has moved (section 11.13.5); [`Event::Gone`] follows.
    Moved {
        /// Where it accepts logins.
        to: Elsewhere,
    },
    /// The connection has ended, and with it every command, function and text request.
    Gone {
        /// Why.
        reason: String,
    },
}

/// The initiator's end of one iSCSI connection over a byte stream.
pub struct Initiator {
    layer: Layer,
    receiving: Receiving,
    /// The header whose data has not been received yet.
    head: [u8; BHS_BYTES],
    /// Data that does not go to a buffer, with padding and digest, as far as received.
    gathered: Vec<u8>,
}

/// What is being received.
#[derive(Clone, Copy, Debug)]
enum Receiving {
    Header,
    /// Data that does not go to a buffer: `total` bytes with padding and digest.
    Gather {
        total: u32,
    },
    /// Data-In.
    Body {
        task: TaskId,
        place: Places,
    },
}

impl Initiator {
    /// A machine for a connection that has just been established.
    pub fn new(config: InitiatorConfig, now: Time) -> Initiator {
        Initiator {
            layer: Layer::new(config, now),
            receiving: Receiving::Header,
            head: [0; BHS_BYTES],
            gathered: Vec::new(),
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

    /// Payload of this task that was in [`Transmit::done`] has been sent.
    pub fn pushed(&mut self, id: TaskId) {
        self.layer.pushed(id);
    }

    /// Sends a task management request; `referenced` is the task of an ABORT TASK. `None` when too many are
    /// unanswered, the session is not logged in, or the task has ended.
    pub fn function(
        &mut self,
        lun: u64,
        function: TaskFunction,
        referenced: Option<TaskId>,
    ) -> Option<FunctionId> {
        self.layer.function(lun, function, referenced)
    }

    /// Sends a text request, no longer than the target accepts in one PDU; `false` when one is outstanding.
    pub fn text(&mut self, text: &[u8]) -> bool {
        self.layer.text(text)
    }

    /// Sends a ping with up to [`PING_BYTES_MAX`] bytes of data; `false` when one is outstanding.
    pub fn ping(&mut self, data: &[u8]) -> bool {
        self.layer.ping(data)
    }

    /// Logs out: the session is closed, and [`Event::Gone`] follows, whatever the target sends instead of an answer.
    pub fn logout(&mut self, now: Time) {
        self.layer.logout(now);
    }

    fn header_bytes(&self) -> u32 {
        let digest = self.layer.link.header_digest;
        let len = if digest { BHS_BYTES.saturating_add(DIGEST_BYTES) } else { BHS_BYTES };
        u32::try_from(len).unwrap_or(HEADER_BYTES_MAX)
    }
}

impl StreamMachine for Initiator {
    type Event = Event;

    fn want(&self) -> Want {
        if self.layer.is_over() {
            return Want::Nothing;
        }
        match self.receiving {
            Receiving::Header if self.layer.control.len() >= CONTROL_MAX => Want::Nothing,
            Receiving::Header => Want::Header { len: self.header_bytes() },
            Receiving::Gather { total } => {
                let have = u32::try_from(self.gathered.len()).unwrap_or(u32::MAX);
                Want::Header { len: total.saturating_sub(have).min(HEADER_BYTES_MAX) }
            }
            Receiving::Body { place, .. } => {
                Want::Body { place, pad: pad(place.len()), digest: self.layer.link.data_digest.then_some(0) }
            }
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        self.layer.note_peer_activity(now);
        if let Err(reason) = self.received(bytes) {
            self.layer.over(&reason);
        }
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        self.layer.note_peer_activity(now);
        let Receiving::Body { task, place } = self.receiving else { return };
        self.receiving = Receiving::Header;
        if !digest_ok {
            return self.layer.over("data digest mismatch (RFC 7143 section 7.8)");
        }
        if let Err(reason) = self.data_in_done(task, place.len()) {
            self.layer.over(&reason);
        }
    }

    fn closed(&mut self, _now: Time, error: Option<&str>) {
        self.layer.over(error.unwrap_or("closed by the target"));
    }

    fn poll(&mut self) -> Option<Event> {
        self.layer.events.pop_front()
    }

    fn owes(&self) -> bool {
        self.layer.owes()
    }

    fn transmit(&mut self, _now: Time, batch: &mut Transmit) {
        self.send(batch);
    }

    fn finished(&self) -> bool {
        self.layer.is_over()
    }

    fn deadline(&self) -> Option<Time> {
        self.layer.deadline()
    }

    fn tick(&mut self, now: Time) {
        self.layer.tick(now);
    }
}
