//! The target machine of one connection: login, then the full feature phase at error recovery level 0.
//!
//! What came in is judged in `receive` (headers), `data` (Data-Out) and `request` (everything that is not a SCSI
//! command); what goes out waits in one queue and is cut into PDUs by `send`. Numbers that belong to the session and
//! not to this connection are in `session`.

mod data;
mod receive;
mod request;
mod send;
mod session;
mod task;
#[cfg(test)]
mod tests;
pub mod violation;

use crate::iscsi::login::{Access, Negotiated, Offers, TargetLogin};
use crate::stream::{HEADER_BYTES_MAX, StreamMachine, Transmit, Want};
use crate::time::Time;
use crate::verbs::{Down, FunctionId, FunctionResponse, TaskId, Up};
use request::{PendingFunction, TextExchange};
use send::{Control, Out};
use session::Session;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use task::{READY_TO_TRANSFER_MAX, TaskTable};
use violation::Violation;
use wire::Places;
use wire::iscsi::{AsyncEvent, BHS_BYTES, DIGEST_BYTES, pad};

/// Immediate commands in flight, beside those that CmdSN numbers.
pub const IMMEDIATE_MAX: u16 = 16;
/// Task management requests without an answer yet.
const FUNCTIONS_MAX: usize = 16;
/// Answers that are not about SCSI tasks, waiting to be sent; reading stops while there are so many.
const CONTROL_MAX: usize = 32;
/// The same in bytes of data.
const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Text of one Login Request: MaxRecvDataSegmentLength before it was declared (section 13.12).
const LOGIN_TEXT_MAX: u32 = 8192;

/// What is given to a target machine.
#[derive(Clone, Copy, Debug)]
pub struct TargetConfig {
    /// Commands that an initiator may have in flight.
    pub queue_depth: u16,
    /// How long a login may take.
    pub login_within: Duration,
    /// How long a connection may be silent before it is asked for a sign of life, and how long the answer may take.
    pub idle: Duration,
    /// CRC32C.
    pub crc32c: fn(&[u8]) -> u32,
    /// What to negotiate.
    pub offers: Offers,
}

impl TargetConfig {
    /// How many slots there are: every [`TaskId::slot`] is below. A slot is not taken again before its last task's
    /// final batch has left, so whoever keeps state by slot may keep it until [`Up::Pushed`].
    pub fn slots(&self) -> u16 {
        self.queue_depth.saturating_add(IMMEDIATE_MAX).saturating_mul(2)
    }
}

/// The target's end of one iSCSI connection.
pub struct Target {
    config: TargetConfig,
    access: Arc<dyn Access>,
    from: SocketAddr,
    portal: SocketAddr,
    phase: Phase,
    negotiated: Option<Box<Negotiated>>,
    link: Link,
    session: Session,
    connection_id: u16,
    stat_sn: u32,
    receiving: Receiving,
    /// Nothing more is read until answers have left.
    paused: bool,
    /// The header whose segments or text are still to come.
    head: Vec<u8>,
    /// Text or ping data with its padding and digest, as far as it came.
    gathered: Vec<u8>,
    tasks: TaskTable,
    immediate_in_flight: u16,
    /// Counts R2Ts, for their tags.
    transfers: u32,
    /// Task tags remembered after their task was aborted, so that data still on its way is thrown away in silence.
    forgotten: VecDeque<u32>,
    /// The header of the last Data-Out, with data digests.
    data_head: Vec<u8>,
    functions: Vec<PendingFunction>,
    functions_seen: u32,
    text: Option<TextExchange>,
    up: VecDeque<Up>,
    out: VecDeque<Out>,
    control: VecDeque<Control>,
    control_bytes: usize,
    last_heard: Time,
    /// When the initiator was asked for a sign of life.
    pinged: Option<Time>,
    /// When it must have logged out.
    goodbye: Option<Time>,
}

/// Where the connection stands.
enum Phase {
    Login {
        login: Box<TargetLogin>,
        deadline: Time,
    },
    Full,
    /// The last answer is on its way; then the connection is over for this reason.
    Closing(String),
    Over,
}

/// What was negotiated, as the datapath needs it.
#[derive(Clone, Copy, Debug)]
struct Link {
    header_digest: bool,
    data_digest: bool,
    initial_r2t: bool,
    immediate_data: bool,
    /// The longest data segment taken.
    max_recv: u32,
    /// The longest data segment sent.
    max_send: u32,
    first_burst: u32,
    max_burst: u32,
    max_outstanding_r2t: u8,
    discovery: bool,
}

impl Link {
    /// Before anything was negotiated.
    const LOGIN: Link = Link {
        header_digest: false,
        data_digest: false,
        initial_r2t: true,
        immediate_data: false,
        max_recv: LOGIN_TEXT_MAX,
        max_send: LOGIN_TEXT_MAX,
        first_burst: 0,
        max_burst: 0,
        max_outstanding_r2t: 1,
        discovery: false,
    };

    fn new(negotiated: &Negotiated) -> Link {
        let outstanding = usize::from(negotiated.max_outstanding_r2t).clamp(1, READY_TO_TRANSFER_MAX);
        Link {
            header_digest: negotiated.header_digest,
            data_digest: negotiated.data_digest,
            initial_r2t: negotiated.initial_r2t,
            immediate_data: negotiated.immediate_data,
            max_recv: negotiated.max_recv_target,
            max_send: negotiated.max_recv_initiator,
            first_burst: negotiated.first_burst,
            max_burst: negotiated.max_burst,
            max_outstanding_r2t: u8::try_from(outstanding).unwrap_or(1),
            discovery: negotiated.discovery,
        }
    }
}

/// What is being received.
#[derive(Clone, Copy, Debug)]
enum Receiving {
    /// A basic header segment, with its digest when there is one.
    Header,
    /// The rest of a header with additional segments.
    Segments { len: u32 },
    /// Text or ping data: `total` bytes with padding and digest.
    Text { total: u32 },
    /// A data segment that has no place yet.
    Unplaced(Data),
    /// A data segment on its way to its place.
    Body { data: Data, place: Places },
    /// A data segment that is thrown away.
    Skip { len: u32, data: Option<Data> },
}

/// A data segment of a task.
#[derive(Clone, Copy, Debug)]
struct Data {
    task: TaskId,
    len: u32,
    /// The F bit of a Data-Out.
    last: bool,
    /// It came with the command.
    immediate: bool,
}

impl Target {
    /// A machine for a connection that was accepted now, `from` there on this `portal`.
    pub fn new(
        config: TargetConfig,
        access: Arc<dyn Access>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> Target {
        let login = Box::new(TargetLogin::new(Arc::clone(&access), from, portal, config.offers));
        Target {
            config,
            access,
            from,
            portal,
            phase: Phase::Login { login, deadline: now.after(config.login_within) },
            negotiated: None,
            link: Link::LOGIN,
            session: Session::new(0, u32::from(config.queue_depth)),
            connection_id: 0,
            stat_sn: 1,
            receiving: Receiving::Header,
            paused: false,
            head: Vec::new(),
            gathered: Vec::new(),
            tasks: TaskTable::new(0),
            immediate_in_flight: 0,
            transfers: 0,
            forgotten: VecDeque::new(),
            data_head: Vec::new(),
            functions: Vec::new(),
            functions_seen: 0,
            text: None,
            up: VecDeque::new(),
            out: VecDeque::new(),
            control: VecDeque::new(),
            control_bytes: 0,
            last_heard: now,
            pinged: None,
            goodbye: None,
        }
    }

    /// Whether payload comes and goes with a data digest: what goes out may not change between being summed and being
    /// sent, and what came in is not to be used before it was checked.
    pub fn sums_payload(&self) -> bool {
        self.link.data_digest
    }

    /// Data of this task that comes next in the stream, has no place yet, and is the last that the initiator has
    /// announced, in bytes.
    pub fn unplaced(&mut self, task: TaskId) -> u32 {
        match self.receiving {
            Receiving::Unplaced(data) if data.task == task => {
                let is_last = self.tasks.get(task).is_some_and(|task| !task.owed_data());
                if is_last { data.len } else { 0 }
            }
            Receiving::Header
            | Receiving::Segments { .. }
            | Receiving::Text { .. }
            | Receiving::Unplaced(_)
            | Receiving::Body { .. }
            | Receiving::Skip { .. } => 0,
        }
    }

    /// Takes a verb from above. One about a task that is no more is ignored.
    pub fn down(&mut self, now: Time, down: Down) {
        match (&self.phase, down) {
            (Phase::Over, _) => {}
            (Phase::Full, Down::Close) => self.leave(AsyncEvent::SESSION_DROP, "closed by this side"),
            (_, Down::Close) => self.over("closed by this side"),
            (Phase::Login { .. }, Down::Goodbye { .. }) => self.over("closed before login by this side"),
            (Phase::Full, Down::Fetch { task, at, into }) => self.fetch(task, at, into),
            (Phase::Full, Down::Push { task, at, from, end }) => self.push(task, at, from, end),
            (Phase::Full, Down::End { task, ending }) => self.end(task, ending),
            (Phase::Full, Down::Abort { task }) => self.abort(task),
            (Phase::Full, Down::FunctionDone { id, response }) => self.function_done(id, response),
            (Phase::Full, Down::Goodbye { within_seconds }) => self.ask_for_logout(now, within_seconds),
            (Phase::Login { .. } | Phase::Closing(_), _) => {}
        }
    }

    /// The connection is no more.
    fn over(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.out.clear();
        self.control.clear();
        self.up.push_back(Up::Gone { reason: reason.to_string() });
    }

    /// Drops the connection for a violation.
    fn drop_for(&mut self, violation: Violation) {
        self.over(&violation.to_string());
    }

    /// Stops reading while too many answers wait, so that they stay bounded. Only between PDUs: what was asked for
    /// stands.
    fn pace(&mut self) {
        self.paused = self.control.len() >= CONTROL_MAX
            || self.control_bytes >= CONTROL_BYTES_MAX
            || self.functions.len() >= FUNCTIONS_MAX;
    }

    /// The full feature phase begins.
    fn begin(&mut self, negotiated: Box<Negotiated>) {
        self.link = Link::new(&negotiated);
        self.phase = Phase::Full;
        if !self.link.discovery {
            self.tasks = TaskTable::new(self.config.slots());
        }
        self.up.push_back(Up::Ready(Box::new(negotiated.session.clone())));
        self.negotiated = Some(negotiated);
    }
}

impl StreamMachine for Target {
    type Event = Up;

    fn want(&self) -> Want {
        if matches!(self.phase, Phase::Closing(_) | Phase::Over) {
            return Want::Nothing;
        }
        let digest = self.link.data_digest.then_some(0);
        match self.receiving {
            Receiving::Header if self.paused => Want::Nothing,
            Receiving::Header => Want::Header { len: self.header_bytes() },
            Receiving::Segments { len } => Want::Header { len },
            Receiving::Text { total } => {
                let have = u32::try_from(self.gathered.len()).unwrap_or(u32::MAX);
                Want::Header { len: total.saturating_sub(have).min(HEADER_BYTES_MAX) }
            }
            Receiving::Unplaced(_) => Want::Nothing,
            Receiving::Body { data, place } => Want::Body { place, pad: pad(data.len), digest },
            Receiving::Skip { len, .. } => Want::Skip { len, pad: pad(len), digest },
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        self.last_heard = now;
        self.pinged = None;
        self.received(bytes);
        self.pace();
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        self.last_heard = now;
        self.pinged = None;
        let data = match self.receiving {
            Receiving::Body { data, .. } => Some(data),
            Receiving::Skip { data, .. } => data,
            Receiving::Header
            | Receiving::Segments { .. }
            | Receiving::Text { .. }
            | Receiving::Unplaced(_) => return,
        };
        self.receiving = Receiving::Header;
        if let Some(data) = data {
            self.data_done(data, digest_ok);
        }
        self.pace();
    }

    fn closed(&mut self, _now: Time, error: Option<&str>) {
        match &self.phase {
            Phase::Closing(reason) => {
                let reason = reason.clone();
                self.over(&reason);
            }
            Phase::Login { .. } | Phase::Full | Phase::Over => {
                self.over(error.unwrap_or("closed by the initiator"));
            }
        }
    }

    fn poll(&mut self) -> Option<Up> {
        self.up.pop_front()
    }

    fn owes(&self) -> bool {
        !self.out.is_empty()
    }

    fn transmit(&mut self, _now: Time, batch: &mut Transmit) {
        self.tasks.batch_begins();
        self.send(batch);
        if self.paused {
            self.pace();
        }
        if let (Phase::Closing(reason), true) = (&self.phase, self.out.is_empty()) {
            let reason = reason.clone();
            self.over(&reason);
        }
    }

    fn finished(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login { deadline, .. } => Some(*deadline),
            Phase::Full => {
                let silent = self.pinged.unwrap_or(self.last_heard).after(self.config.idle);
                Some(self.goodbye.map_or(silent, |goodbye| goodbye.min(silent)))
            }
            Phase::Closing(_) => Some(self.last_heard.after(self.config.idle)),
            Phase::Over => None,
        }
    }

    fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &self.phase {
            Phase::Login { .. } => self.over("login took too long"),
            Phase::Closing(reason) => {
                let reason = reason.clone();
                self.over(&reason);
            }
            Phase::Full if self.goodbye.is_some_and(|goodbye| now >= goodbye) => {
                self.leave(AsyncEvent::CONNECTION_DROP, "did not log out when asked to");
            }
            Phase::Full if self.waits_for_above() => self.last_heard = now,
            // Such a session is not sent anything unasked (section 7.4.3).
            Phase::Full if self.link.discovery => self.over("idle discovery session"),
            Phase::Full if self.pinged.is_some() => self.over("no answer to keep-alive"),
            Phase::Full => self.ping(now),
            Phase::Over => {}
        }
    }
}

impl Target {
    /// Length of a basic header segment with its digest. With additional segments, the four bytes after it are the
    /// first of those, and the digest comes with the rest.
    fn header_bytes(&self) -> u32 {
        let len = if self.link.header_digest { BHS_BYTES.saturating_add(DIGEST_BYTES) } else { BHS_BYTES };
        u32::try_from(len).unwrap_or(HEADER_BYTES_MAX)
    }

    pub(super) fn is_full_feature(&self) -> bool {
        matches!(self.phase, Phase::Full) && !self.link.discovery
    }

    /// The silence is ours: nothing is read until the layer above does something.
    fn waits_for_above(&self) -> bool {
        matches!(self.receiving, Receiving::Unplaced(_)) || (self.paused && self.out.is_empty())
    }

    fn function_done(&mut self, id: FunctionId, response: FunctionResponse) {
        self.answer_function(id, response);
        if self.paused {
            self.pace();
        }
    }
}
