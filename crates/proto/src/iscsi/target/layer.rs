//! The iSCSI layer of a target: whatever is the same whether PDUs and data move as bytes of a stream, or as
//! messages and by RDMA. RFC 7145 section 1.2 draws the same line; it calls the other side the datamover.
//!
//! A datamover passes in headers ([`Layer::header`]) and text ([`Layer::request`]), calls [`Layer::incoming`]
//! to find out where a data segment goes, reports when that is done ([`Layer::data_done`]), and sends what is
//! in `out`.

use super::TargetConfig;
use super::queue::{Control, Out};
use super::request::{PendingFunction, TextExchange};
use super::session::Session;
use super::task::{READY_TO_TRANSFER_MAX, SLOTS_AT_START, TaskTable};
use super::violation::Violation;
use crate::iscsi::login::{Access, Negotiated, Rdma, TargetLogin};
use crate::services::{Down, FAULT, FunctionId, FunctionResponse, TaskId, Up, Withdrawal};
use crate::time::Time;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use wire::Places;
use wire::iscsi::{AsyncEvent, BHS_BYTES, LoginResponse, LoginStatus};
use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U16;

/// The most unanswered task management requests.
const FUNCTIONS_MAX: usize = 16;
/// The most answers that are not about SCSI tasks and wait to be sent; nothing more is accepted while there
/// are this many.
const CONTROL_MAX: usize = 32;
/// The same in bytes of data.
const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// Text of one Login Request: MaxRecvDataSegmentLength before it was declared (section 13.12).
const LOGIN_TEXT_MAX: u32 = 8192;

/// The iSCSI layer of one connection.
/// Its fields are RFC 7143's state of a session and of its one connection, which all types of PDUs read and advance.
/// State with its own rules (transfers, functions, immediate data) is in values of its own.
pub(crate) struct Layer {
    pub config: TargetConfig,
    pub(super) access: Arc<dyn Access>,
    pub(super) from: SocketAddr,
    pub(super) portal: SocketAddr,
    pub phase: Phase,
    /// The login was granted, and has not been answered yet.
    pub(super) granted: Option<Box<Granted>>,
    /// The status with which a login was refused.
    pub(crate) refusal: Option<LoginStatus>,
    pub(super) negotiated: Option<Box<Negotiated>>,
    pub link: Link,
    /// What was negotiated over RDMA.
    pub rdma: Option<Rdma>,
    pub session: Session,
    /// Commands that the initiator may have in flight.
    pub(crate) depth_max: u16,
    pub(super) connection_id: u16,
    pub(super) stat_sn: u32,
    /// Where the data segment of the current PDU goes.
    pub incoming: Incoming,
    /// Nothing more is accepted until answers have been sent.
    pub paused: bool,
    pub tasks: TaskTable,
    pub(super) immediate_in_flight: u16,
    /// Counts R2Ts, for their tags.
    pub(super) transfers: u32,
    /// Task tags remembered after their task was aborted, so that data still in transit is silently
    /// discarded.
    pub(super) forgotten: VecDeque<u32>,
    /// The header of the last Data-Out, with data digests.
    pub(super) data_head: Vec<u8>,
    pub(super) functions: Vec<PendingFunction>,
    pub(super) functions_seen: u32,
    pub(super) text: Option<TextExchange>,
    pub up: VecDeque<Up>,
    /// What is to be sent, in order.
    pub out: VecDeque<Out>,
    /// The PDUs of `Out::Control`, in order.
    pub(super) control: VecDeque<Control>,
    pub(super) control_bytes: usize,
    pub(super) last_heard: Time,
    /// When the initiator was sent a ping.
    pub(super) pinged: Option<Time>,
    /// When it must have logged out.
    pub(super) logout_by: Option<Time>,
}

/// The state of the connection.
pub(crate) enum Phase {
    Login {
        login: Box<TargetLogin>,
        deadline: Time,
    },
    Full,
    /// Its tasks have ended. This PDU is sent when the engine knows that none of them can take effect any
    /// more, and then the connection ends for this reason.
    Ending {
        last: [u8; BHS_BYTES],
        reason: String,
    },
    /// The last answer is being sent; then the connection ends for this reason.
    Closing(String),
    Over,
}

/// A login that was granted.
pub(super) struct Granted {
    pub response: LoginResponse,
    pub text: Vec<u8>,
    pub negotiated: Box<Negotiated>,
}

/// What was negotiated, as the datapath needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub header_digest: bool,
    pub data_digest: bool,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    /// The longest data segment accepted.
    pub max_recv: u32,
    /// The longest data segment sent.
    pub max_send: u32,
    pub first_burst: u32,
    pub max_burst: u32,
    pub max_outstanding_r2t: u8,
    pub discovery: bool,
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

    /// The longest data segment of a Data-In.
    pub(super) fn data_in_max(&self) -> u32 {
        self.max_send & !3
    }
}

/// Where a data segment goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Incoming {
    /// There is none.
    Nothing,
    /// Text or ping data, for [`Layer::request`].
    Text { len: u32 },
    /// It has no buffer yet.
    Unplaced(Data),
    /// It goes to these places.
    Body { data: Data, place: Places },
    /// It is discarded.
    Skip { len: u32, data: Option<Data> },
}

/// A data segment of a task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    pub task: TaskId,
    pub len: u32,
    /// The F bit of a Data-Out.
    pub last: bool,
    /// It came with the command.
    pub immediate: bool,
}

impl Layer {
    pub(crate) fn new(
        config: TargetConfig,
        access: Arc<dyn Access>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> Layer {
        let login = Box::new(TargetLogin::new(Arc::clone(&access), from, portal, config.offers));
        Layer {
            config,
            access,
            from,
            portal,
            phase: Phase::Login { login, deadline: now.after(config.login_within) },
            granted: None,
            refusal: None,
            negotiated: None,
            link: Link::LOGIN,
            rdma: None,
            session: Session::new(0, u32::from(config.queue_depth)),
            depth_max: u16::MAX,
            connection_id: 0,
            stat_sn: 1,
            incoming: Incoming::Nothing,
            paused: false,
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
            logout_by: None,
        }
    }

    /// Handles a call from the engine. One about a task that has ended is ignored.
    pub(crate) fn down(&mut self, now: Time, down: Down) {
        match (&self.phase, down) {
            (Phase::Over, _) => {}
            (Phase::Login { .. }, Down::Admit) => self.admit(),
            (Phase::Login { .. }, Down::Refuse(why)) => self.withdraw(why),
            (Phase::Full, Down::Close) => self.close_session(),
            (Phase::Ending { .. }, Down::Close) => self.say_last(),
            (Phase::Login { .. }, Down::Close) => self.over("closed by this side"),
            (Phase::Login { .. }, Down::RequestLogout { .. }) => {
                self.over("closed before login by this side")
            }
            (Phase::Full, Down::Fetch { task, at, into }) => self.fetch(task, at, into),
            (Phase::Full, Down::Push { task, at, from, end }) => self.push(task, at, from, end),
            (Phase::Full, Down::End { task, ending }) => self.end(task, ending),
            (Phase::Full, Down::Abort { task }) => self.abort(task),
            (Phase::Full, Down::FunctionDone { id, response }) => self.function_done(id, response),
            (Phase::Full, Down::RequestLogout { within_seconds }) => self.request_logout(now, within_seconds),
            (Phase::Full, Down::Admit | Down::Refuse(_)) => {}
            (Phase::Login { .. } | Phase::Ending { .. } | Phase::Closing(_), _) => {}
        }
    }

    /// The connection has ended.
    pub(crate) fn over(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.out.clear();
        self.control.clear();
        self.up.push_back(Up::Gone { reason: reason.to_string() });
    }

    /// Drops the connection because of a bug that is private to it.
    pub(crate) fn fault(&mut self, what: &'static str) {
        self.up.push_back(Up::Fault { what });
        self.over(FAULT);
    }

    /// Drops the connection for a violation.
    pub(crate) fn drop_for(&mut self, violation: Violation) {
        self.over(&violation.to_string());
    }

    /// The connection ended (`None`: the peer closed it in an orderly way) or failed for this reason.
    pub(crate) fn closed(&mut self, error: Option<&str>) {
        if !self.close() {
            self.over(error.unwrap_or("closed by the initiator"));
        }
    }

    /// Ends a connection whose last answer has been sent; `false`: it is not closing.
    pub(crate) fn close(&mut self) -> bool {
        let Phase::Closing(reason) = &self.phase else { return false };
        let reason = reason.clone();
        self.over(&reason);
        true
    }

    /// The peer was heard from.
    pub(crate) fn note_peer_activity(&mut self, now: Time) {
        self.last_heard = now;
        self.pinged = None;
    }

    /// Stops accepting requests while too many answers wait, so that they stay bounded. Only between PDUs:
    /// what was requested has to be accepted.
    pub(crate) fn pace(&mut self) {
        self.paused = self.control.len() >= CONTROL_MAX
            || self.control_bytes >= CONTROL_BYTES_MAX
            || self.functions.len() >= FUNCTIONS_MAX;
    }

    /// Answers a login that was granted.
    fn admit(&mut self) {
        let Some(granted) = self.granted.take() else { return };
        let Granted { response, text, negotiated } = *granted;
        self.queue(response.as_bytes(), text, true);
        self.begin(negotiated);
    }

    /// Refuses a login that was granted (section 11.13.5): the response has nothing of what was negotiated.
    fn withdraw(&mut self, why: Withdrawal) {
        let Some(granted) = self.granted.take() else { return };
        let (status, reason) = match why {
            Withdrawal::NoRoom => (LoginStatus::OUT_OF_RESOURCES, "login refused: no free slot"),
            Withdrawal::Unavailable => {
                (LoginStatus::SERVICE_UNAVAILABLE, "login refused: the target is ending all sessions")
            }
        };
        let response = LoginResponse { flags: 0, tsih: U16::new(0), status, ..granted.response };
        self.queue(response.as_bytes(), Vec::new(), true);
        self.refusal = Some(status);
        self.phase = Phase::Closing(reason.to_string());
    }

    /// The full feature phase begins.
    pub(crate) fn begin(&mut self, negotiated: Box<Negotiated>) {
        self.link = Link::new(&negotiated);
        self.rdma = negotiated.rdma;
        self.phase = Phase::Full;
        self.make_room();
        self.negotiated = Some(negotiated);
    }

    /// Limits the commands that the initiator may have in flight, however many slots there are. Its window
    /// has not been opened for more, unless it began to log in before it named itself: what was announced
    /// then stays valid until it is used up.
    pub(crate) fn limit_depth(&mut self, depth: u16) {
        self.depth_max = depth.max(1);
        self.session.set_depth(self.config.queue_depth.min(self.depth_max).into());
    }

    /// Allows this many commands in flight from now on. The full feature phase has just begun, with none so
    /// far.
    pub(crate) fn widen(&mut self, depth: u16) {
        self.config.queue_depth = depth;
        self.session.set_depth(depth.min(self.depth_max).into());
        self.make_room();
    }

    /// Allows as many commands in flight as there may be slots; these, and the queue of answers, grow as
    /// needed.
    fn make_room(&mut self) {
        if !self.link.discovery {
            self.tasks = TaskTable::new(self.config.slots());
            self.out.reserve_exact(usize::from(self.config.slots().min(SLOTS_AT_START)));
        }
    }

    /// There is room for this many more commands, if all their data is unsolicited; where unsolicited data is
    /// not allowed, for as many as there are slots. Returns whether the window is closed until there is more
    /// room.
    #[inline(always)]
    pub(crate) fn limit_window(&mut self, commands: u32) -> bool {
        let is_negotiated = matches!(self.phase, Phase::Full);
        let is_asked = is_negotiated && self.link.initial_r2t && !self.link.immediate_data;
        self.session.limit(if is_asked { u32::MAX } else { commands });
        if !self.is_full_feature() || !self.out.is_empty() {
            return false;
        }
        if self.session.is_closed_for_nothing() {
            self.announce_window();
        }
        self.session.wants_room()
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Login { deadline, .. } => Some(*deadline),
            Phase::Full => {
                let silent = self.pinged.unwrap_or(self.last_heard).after(self.config.idle);
                Some(self.logout_by.map_or(silent, |by| by.min(silent)))
            }
            Phase::Ending { .. } | Phase::Closing(_) => Some(self.last_heard.after(self.config.idle)),
            Phase::Over => None,
        }
    }

    pub(crate) fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &self.phase {
            Phase::Login { .. } => self.over("login took too long"),
            Phase::Ending { reason, .. } | Phase::Closing(reason) => {
                let reason = reason.clone();
                self.over(&reason);
            }
            Phase::Full if self.logout_by.is_some_and(|by| now >= by) => {
                self.last_heard = now;
                let last = self.dropping(AsyncEvent::CONNECTION_DROP);
                self.leave(&last, "did not log out when requested");
            }
            Phase::Full if self.waits_for_above() => self.last_heard = now,
            // Such a session is sent nothing unsolicited (section 7.4.3).
            Phase::Full if self.link.discovery => self.over("idle discovery session"),
            Phase::Full if self.pinged.is_some() => self.over("no answer to keep-alive"),
            Phase::Full => self.ping(now),
            Phase::Over => {}
        }
    }

    /// Whether a login has begun with a valid request.
    pub(crate) fn has_begun(&self) -> bool {
        match &self.phase {
            Phase::Login { login, .. } => login.begun().is_some(),
            Phase::Full | Phase::Ending { .. } | Phase::Closing(_) => true,
            Phase::Over => false,
        }
    }

    pub(crate) fn is_full_feature(&self) -> bool {
        matches!(self.phase, Phase::Full) && !self.link.discovery
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Whether nothing more is accepted from the initiator.
    pub(crate) fn ignores_input(&self) -> bool {
        match self.phase {
            Phase::Login { .. } => self.granted.is_some(),
            Phase::Full => false,
            Phase::Ending { .. } | Phase::Closing(_) | Phase::Over => true,
        }
    }

    /// Whether there is nothing to do before more comes from the initiator or the engine: all events were
    /// taken, nothing is owed, and the initiator may send commands.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_empty = self.up.is_empty() && self.out.is_empty();
        is_empty && self.is_full_feature() && !self.paused && self.session.window() > 0
    }

    /// The silence is ours: nothing is accepted until the engine does something.
    fn waits_for_above(&self) -> bool {
        matches!(self.incoming, Incoming::Unplaced(_)) || (self.paused && self.out.is_empty())
    }

    fn function_done(&mut self, id: FunctionId, response: FunctionResponse) {
        self.answer_function(id, response);
        if self.paused {
            self.pace();
        }
    }
}
