//! One session with a target, with one connection at a time. A lost connection is reopened, and what was in
//! flight is resent where that does no harm. Nothing waits forever: see [`Options::give_up_after`].
//!
//! The new session has the ISID of the lost one, so the target reinstates it (RFC 7143 section 6.3.5). A
//! successful login does not prove that no command of the old one can touch the medium any more: the user of
//! the session finds that out, and reports it ([`Session::proven`]). Over AoE no login ends them: while their
//! commands wait they are retransmitted until they are answered, and after that the target may execute them
//! until something proves that they have ended ([`Session::may_change`]).

mod abandoned;
mod link;
mod login;
mod outage;
mod queue;
mod resolving;
mod route;

pub use queue::COMMANDS_MAX;

use super::Destination;
use super::Options;
use super::carrier::Carrier;
use super::port::InitiatorPort;
use config::{Protocol, Url};
use link::{Left, Link};
use outage::Outage;
pub use outage::OutageLog;
use proto::iscsi::initiator::{Event, Request, Residual};
use proto::iscsi::login::Negotiated;
use proto::stream::StreamMachine as _;
use proto::time::Time;
use queue::Queue;
use reactor::io::{Completion, Handle, Io, Tag};
use resolving::Resolving;
use route::Route;
use std::time::Duration;
use wire::Sense;
use wire::aoe::Mac;
use wire::iscsi::{AsyncEvent, Opcode};
use wire::scsi::code;

/// How long the target may take to receive the last data of a connection that has ended.
const CUT_AFTER: Duration = Duration::from_secs(1);

/// Kinds of completions: a tag's lowest bits; the next [`ATTEMPT_BITS`] are the connection's number.
const CONNECT: u64 = 0;
const RECV: u64 = 1;
const SEND: u64 = 2;
const KIND_BITS: u32 = 2;
const ATTEMPT_BITS: u32 = 30;

/// A command for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Returned with its outcome.
    pub cookie: u32,
    /// The command.
    pub request: Request,
    /// Whether it may be executed twice: it is resent when the connection was lost before its answer arrived.
    pub repeatable: bool,
    /// Whether it is resent while the target is busy or the unit is becoming ready; otherwise it ends with
    /// that status.
    pub patient: bool,
    /// Since when it has waited: [`Options::give_up_after`] counts from here.
    pub since: Time,
}

/// A command that has ended; its places are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finished {
    /// The command's.
    pub cookie: u32,
    /// How it ended.
    pub ending: Ending,
}

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// With GOOD status.
    Good(Moved),
    /// With another status.
    Status {
        /// Status (SAM-5 section 5.3).
        status: u8,
        /// Sense data.
        sense: Option<Sense>,
        /// The data that it transferred.
        moved: Moved,
    },
    /// Whether it was executed is unknown: the target was lost, or did not answer in time.
    Lost {
        /// It may even be executed later, until [`Session::proven`].
        may_land: bool,
    },
}

/// The data that a command has transferred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Bytes of data-in received.
    pub read_bytes: u32,
    /// Bytes of data-out that the target received.
    pub write_bytes: u32,
    /// The residual of the expected length.
    pub residual: Residual,
}

/// What a unit has reported by unit attentions (SPC-4 table 45).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Attentions {
    /// Any of them: what was known of the unit may be outdated.
    pub any: bool,
    /// PARAMETERS CHANGED, MODE PARAMETERS CHANGED.
    pub modes: bool,
    /// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED, POWER ON OCCURRED, DEVICE INTERNAL RESET: the content
    /// of a volatile cache may be lost.
    pub power_on: bool,
    /// SCSI BUS RESET OCCURRED, BUS DEVICE RESET FUNCTION OCCURRED: no data is lost.
    pub reset: bool,
    /// MEDIUM MAY HAVE CHANGED, INQUIRY DATA HAS CHANGED, DEVICE IDENTIFIER CHANGED, REPORTED LUNS DATA HAS CHANGED:
    /// it may be another unit.
    pub identity: bool,
}

impl Attentions {
    fn note(&mut self, code: u16, was_served: bool) {
        self.any = true;
        match code {
            code::PARAMETERS_CHANGED | code::MODE_PARAMETERS_CHANGED => self.modes = true,
            code::POWER_ON_OR_RESET | code::POWER_ON_OCCURRED | code::DEVICE_INTERNAL_RESET => {
                self.power_on |= was_served;
            }
            code::BUS_RESET_OCCURRED | code::RESET_FUNCTION_OCCURRED => self.reset |= was_served,
            code::MEDIUM_MAY_HAVE_CHANGED
            | code::INQUIRY_DATA_CHANGED
            | code::DEVICE_IDENTIFIER_CHANGED
            | code::REPORTED_LUNS_DATA_CHANGED => self.identity = true,
            _ => {}
        }
    }
}

/// Why a command was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// There are [`COMMANDS_MAX`] already.
    Full,
    /// The target has been lost for longer than a command waits.
    Lost,
}

/// A session, and its commands.
/// Its fields are what outlives connections (the target, the name, the queue), and the current connection.
pub struct Session {
    url: Url,
    options: Options,
    route: Route,
    /// Its initiator port.
    port: InitiatorPort,
    /// The portal group of the first login: a login through another group would not reinstate the session
    /// (RFC 7143 section 3.4.3).
    portal_group: Option<u32>,
    /// Its user revalidates the unit after each login and unit attention, see [`Session::guarded`].
    is_guarded: bool,
    has_arrived: bool,
    tags: Tag,
    /// Counts connections.
    attempt: u64,
    /// Connections being established, including those that are no longer waited for.
    attempts_open: u32,
    state: State,
    queue: Queue,
    outage: Outage,
    /// Addresses of a name, from the thread that resolves it.
    resolving: Option<Resolving>,
    /// What the last session over AoE left.
    left: Option<Left>,
    /// The answer to a text request, or why there is none.
    text: Option<Result<Vec<u8>, String>>,
    is_closing: bool,
    /// [`Io::abandon`] of its kernel.
    socket_closer: fn(Handle),
}

enum State {
    /// No connection, and none is needed yet.
    Idle,
    /// The next attempt is due at this time.
    Resting(Time),
    /// The name to which the target has redirected the login is being resolved, until then.
    Resolving(Time),
    Connecting(Time),
    Connected(Box<Link>),
    /// Ended by us, permanently.
    Closed,
}

impl Session {
    /// A session that connects when it is first used. Its completions have tags from `tags` on, less than
    /// [`store::lane::LANE_TAGS`] of them.
    pub fn new<I: Io>(url: Url, addresses: Vec<Destination>, options: Options, tags: Tag) -> Session {
        let depth = options.queue_depth.clamp(1, Carrier::queue_depth_max(&url));
        let give_up_after = url.give_up_after.unwrap_or(options.give_up_after);
        let port = InitiatorPort::fresh::<I>(options.name_for(&url).to_owned());
        Session {
            url,
            options: Options { queue_depth: depth, give_up_after, ..options },
            route: Route::new(addresses),
            port,
            portal_group: None,
            is_guarded: false,
            has_arrived: false,
            tags,
            attempt: 0,
            attempts_open: 0,
            state: State::Idle,
            resolving: None,
            queue: Queue::new(depth),
            outage: Outage::new(OutageLog::default()),
            left: None,
            text: None,
            is_closing: false,
            socket_closer: I::abandon,
        }
    }

    /// The same, but after each login ([`Session::take_arrival`]) and each unit attention
    /// ([`Session::take_attentions`]) nothing is sent except queries ([`Session::ask`]) until
    /// [`Session::open`].
    pub fn guarded(self) -> Session {
        Session { is_guarded: true, ..self }
    }

    /// The same, with this initiator port.
    pub fn of_port(self, port: InitiatorPort) -> Session {
        Session { port, ..self }
    }

    /// The same, as one of several with its target, which are logged as one.
    pub fn among(self, log: &OutageLog) -> Session {
        Session { outage: Outage::new(log.clone()), ..self }
    }

    /// The same, but the caller reports failures: they are not logged.
    pub fn unlogged(mut self) -> Session {
        self.outage.silence();
        self
    }

    /// Submits a command, which is sent by the next [`Session::flush`].
    ///
    /// # Errors
    /// When there are too many, or the target has been lost for too long.
    pub fn submit(&mut self, now: Time, command: &Command) -> Result<(), Refused> {
        if matches!(self.state, State::Closed) || self.outage.has_lasted(now, self.options.give_up_after) {
            return Err(Refused::Lost);
        }
        if self.queue.push(command, false) { Ok(()) } else { Err(Refused::Full) }
    }

    /// Submits a command that precedes all others, and is not resent on another connection.
    ///
    /// # Errors
    /// When there are too many commands, or the session is not logged in.
    pub fn ask(&mut self, command: &Command) -> Result<(), Refused> {
        match &self.state {
            State::Connected(link) if link.is_ready && link.gone.is_none() => {}
            State::Connected(_)
            | State::Idle
            | State::Resting(_)
            | State::Resolving(_)
            | State::Connecting(_)
            | State::Closed => {
                return Err(Refused::Lost);
            }
        }
        if self.queue.push(command, true) { Ok(()) } else { Err(Refused::Full) }
    }

    /// A command is not to be sent any more. It ends as soon as the target cannot execute it, or no longer
    /// has it. Over AoE it ends now, and the target may still execute it ([`Session::may_change`]): no
    /// function would end it.
    pub fn cancel(&mut self, now: Time, cookie: u32, finished: &mut Vec<Finished>) {
        if let Some(task) = self.queue.cancel(cookie, finished)
            && let State::Connected(link) = &mut self.state
            && let Some(machine) = link.machine.aoe_machine_mut()
            && machine.abandon_task(now, task)
        {
            self.queue.forgotten(task, finished);
        }
    }

    /// The outstanding query is not waited for any more: the target has to abort it. It ends when it has been
    /// answered, or its abort has.
    pub fn withdraw(&mut self, finished: &mut Vec<Finished>) {
        if let Some(task) = self.queue.withdraw(finished)
            && let State::Connected(link) = &mut self.state
        {
            link.machine.abort(self.url.lun_bytes(), task);
        }
    }

    /// Whether it has logged in since the last call. What was sent before may still be executed.
    pub fn take_arrival(&mut self) -> bool {
        std::mem::take(&mut self.has_arrived)
    }

    /// What earlier connections have sent can no longer be executed.
    pub fn proven(&mut self) {
        self.queue.proven();
    }

    /// The commands with data-out, by cookie, that the target may execute although they will be resent.
    pub fn unsettled(&self) -> impl Iterator<Item = u32> {
        self.queue.unsettled()
    }

    /// Whether a login never ends what was sent before: over AoE, where answers do ([`Session::may_change`]).
    pub fn ends_by_answers(&self) -> bool {
        self.url.protocol == Protocol::Aoe
    }

    /// Sends no commands except queries, until [`Session::open`]. The session continues.
    pub fn pause(&mut self) {
        if let State::Connected(link) = &mut self.state {
            link.is_paused = true;
        }
    }

    /// Allows all commands to be sent, until the connection is lost.
    pub fn open(&mut self, now: Time) {
        let State::Connected(link) = &mut self.state else { return };
        (link.is_open, link.is_paused) = (true, false);
        if let Some(machine) = link.machine.aoe_machine_mut() {
            machine.resume(now);
        }
        self.outage.is_over();
    }

    /// Whether commands are sent, or would be except for a pause.
    pub fn is_open(&self) -> bool {
        match &self.state {
            State::Connected(link) => link.is_open && link.gone.is_none(),
            State::Idle | State::Resting(_) | State::Resolving(_) | State::Connecting(_) | State::Closed => {
                false
            }
        }
    }

    /// Whether a connection is or was needed: it is reopened, kept alive and answers the target even without
    /// commands.
    pub fn is_in_use(&self) -> bool {
        match &self.state {
            State::Idle | State::Closed => false,
            State::Resting(_) | State::Resolving(_) | State::Connecting(_) | State::Connected(_) => true,
        }
    }

    /// Ends the connection, for a reason that is logged, and reconnects.
    pub fn renew<I: Io>(&mut self, io: &mut I, reason: &str, finished: &mut Vec<Finished>) {
        self.drop_connection(io, reason, finished);
    }

    /// Commands that have not ended.
    pub fn in_flight(&self) -> usize {
        self.queue.len()
    }

    /// Whether it is logged in.
    pub fn is_ready(&self) -> bool {
        match &self.state {
            State::Connected(link) => link.is_ready,
            State::Idle | State::Resting(_) | State::Resolving(_) | State::Connecting(_) | State::Closed => {
                false
            }
        }
    }

    /// Over AoE, our address, while there is a connection.
    pub fn mac(&self) -> Option<Mac> {
        match &self.state {
            State::Connected(link) => link.mac(),
            State::Idle | State::Resting(_) | State::Resolving(_) | State::Connecting(_) | State::Closed => {
                None
            }
        }
    }

    /// What was negotiated, while logged in; with SRP, nothing.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        match &self.state {
            State::Connected(link) if link.is_ready => link.machine.negotiated(),
            State::Connected(_)
            | State::Idle
            | State::Resting(_)
            | State::Resolving(_)
            | State::Connecting(_)
            | State::Closed => None,
        }
    }

    /// Why there was last no connection, until there is one again.
    pub fn failure(&self) -> Option<&str> {
        self.outage.failure()
    }

    /// How long commands wait for the target.
    pub fn give_up_after(&self) -> Duration {
        self.options.give_up_after
    }

    /// The eight LUN bytes of its unit.
    pub fn lun_bytes(&self) -> u64 {
        self.url.lun_bytes()
    }

    /// Connects now, if there is no connection; the last failure is forgotten.
    pub fn start<I: Io>(&mut self, io: &mut I) {
        if matches!(self.state, State::Idle | State::Resting(_)) {
            self.outage.forget_failure();
            self.connect(io);
        }
    }

    /// Connects if it has never been connected.
    pub fn begin<I: Io>(&mut self, io: &mut I) {
        if matches!(self.state, State::Idle) {
            self.connect(io);
        }
    }

    /// Whether the unit has reported a unit attention since.
    pub fn has_attentions(&self) -> bool {
        self.queue.attentions.any
    }

    /// What the unit has reported since the last call.
    pub fn take_attentions(&mut self) -> Attentions {
        std::mem::take(&mut self.queue.attentions)
    }

    /// Sends a text request; get its answer by [`Session::take_text`]. False: not now.
    pub fn send_text(&mut self, text: &[u8]) -> bool {
        match &mut self.state {
            State::Connected(link) if link.is_ready => {
                self.text = None;
                link.machine.text(text)
            }
            State::Connected(_)
            | State::Idle
            | State::Resting(_)
            | State::Resolving(_)
            | State::Connecting(_)
            | State::Closed => false,
        }
    }

    /// The answer to a text request, or why there will be none.
    pub fn take_text(&mut self) -> Option<Result<Vec<u8>, String>> {
        self.text.take()
    }

    /// Closes the connection's socket, for a caller that ends without the kernel that the session was created
    /// for.
    pub(crate) fn close_socket(&self) {
        if let State::Connected(link) = &self.state {
            link.socket().into_iter().for_each(self.socket_closer);
        }
    }

    /// A completion of this session.
    pub fn completed<I: Io>(&mut self, io: &mut I, completion: Completion, finished: &mut Vec<Finished>) {
        let tag = completion.tag.0 - self.tags.0;
        let is_current = tag >> KIND_BITS == self.attempt;
        match (tag & ((1 << KIND_BITS) - 1), &mut self.state) {
            (CONNECT, State::Connecting(_)) if is_current => {
                self.attempts_open -= 1;
                self.connected(io, completion.result);
            }
            (CONNECT, _) => {
                self.attempts_open -= 1;
                // This one took too long, and is not waited for any more.
                if let Ok(socket) = completion.result {
                    io.close(Handle(socket as i32));
                }
            }
            (RECV, State::Connected(link)) => {
                link.received(io, completion.result);
                self.pump(io, finished);
            }
            (_, State::Connected(link)) => {
                link.sent(io, completion.result);
                self.drain_events(io, finished);
                self.settle(io, finished);
            }
            // It is harmless: what the session had in flight has ended with its connection.
            (kind, _) => {
                tracing::error!(kind, "a completion of a connection that has ended: please report this bug")
            }
        }
    }

    /// The end of a turn: everything owed is sent in one send. Returns whether memory was short, so that this
    /// must be called again soon.
    pub fn flush<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) -> bool {
        match &self.state {
            State::Idle if self.queue.len() > 0 => self.connect(io),
            State::Connected(link) if link.wants_more() => self.pump(io, finished),
            State::Idle
            | State::Connected(_)
            | State::Resting(_)
            | State::Resolving(_)
            | State::Connecting(_)
            | State::Closed => {}
        }
        // What is sent may end commands, and that makes room for others.
        while let State::Connected(link) = &mut self.state {
            if link.is_ready {
                self.queue.send(&mut link.machine, link.is_open && !link.is_paused);
            }
            if !self.drain_events(io, finished) {
                break;
            }
        }
        if let State::Connected(link) = &mut self.state {
            link.flush(io);
            self.drain_events(io, finished);
            self.settle(io, finished);
        }
        let State::Connected(link) = &self.state else { return false };
        link.wants_more() || link.machine.wants_more()
    }

    /// Checks deadlines; to be called several times a second.
    pub fn tick<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) {
        let now = io.now();
        match &mut self.state {
            State::Resting(until) if now >= *until => self.connect(io),
            State::Resolving(until) => {
                let is_late = now >= *until;
                self.look_for_address(io, is_late);
            }
            State::Connecting(until) if now >= *until => {
                io.unwatch(self.tag(CONNECT));
                self.failed(now, "no answer to the connection request")
            }
            State::Connected(link) => {
                if link.machine.deadline().is_some_and(|deadline| now >= deadline) {
                    link.machine.tick(now);
                }
                self.drain_events(io, finished);
                self.settle(io, finished);
            }
            State::Idle | State::Resting(_) | State::Connecting(_) | State::Closed => {}
        }
        if self.is_open() {
            self.outage.is_open(&self.url, now);
        }
        self.queue.wake(now);
        if self.queue.expire(now, self.options.give_up_after, finished) {
            let seconds = self.options.give_up_after.as_secs();
            self.drop_connection(io, &format!("a command was not answered within {seconds} s"), finished);
        }
        self.abandon_unguarded(now, finished);
        self.flush(io, finished);
    }

    /// Begins an orderly end; complete when [`Session::is_closed`]. Commands that have not ended are lost.
    pub fn close<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) {
        self.is_closing = true;
        match &mut self.state {
            State::Connected(link) if link.is_ready && link.gone.is_none() => {
                link.machine.logout(io.now());
                self.flush(io, finished);
            }
            State::Connected(_) => self.drop_connection(io, "closed", finished),
            State::Connecting(_) => {
                io.unwatch(self.tag(CONNECT));
                self.state = State::Closed;
            }
            State::Idle | State::Resting(_) | State::Resolving(_) | State::Closed => {
                self.state = State::Closed;
            }
        }
    }

    /// Whether it is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Whether there is no connection, nor one being established that would have to be closed.
    pub fn is_closed(&self) -> bool {
        !matches!(self.state, State::Connected(_) | State::Connecting(_)) && self.attempts_open == 0
    }
}

impl Session {
    /// Feeds the machine what was received.
    fn pump<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) {
        loop {
            let mut has_fed = false;
            if let State::Connected(link) = &mut self.state {
                // There are no others to share a turn with.
                link.end_turn();
            }
            while let State::Connected(link) = &mut self.state
                && link.take_ended(io, &mut self.queue, finished) | link.feed(io)
            {
                has_fed = true;
                self.take_events(io, finished);
            }
            match &self.state {
                State::Connected(link) if has_fed && link.wants_more() => {}
                _ => break,
            }
        }
        self.drain_events(io, finished);
        self.settle(io, finished);
    }

    /// Handles all resulting events; `false`: there are none.
    fn drain_events<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) -> bool {
        let mut is_eventful = self.take_events(io, finished);
        if let State::Connected(link) = &mut self.state {
            link.machine.run(io.now(), io.arena());
            is_eventful |= self.take_events(io, finished);
        }
        is_eventful
    }

    /// Handles what was received; `false`: nothing was.
    fn take_events<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) -> bool {
        let now = io.now();
        let State::Connected(link) = &mut self.state else { return false };
        let mut is_eventful = false;
        while let Some(event) = link.event(now, io.arena()) {
            is_eventful = true;
            match event {
                Event::Completed(completion) => self.queue.completed(&completion, now, finished),
                Event::Ready(_) => {
                    let group = link.machine.negotiated().and_then(|negotiated| negotiated.portal_group);
                    if self.portal_group.is_some() && group != self.portal_group {
                        link.closed(now, "the address belongs to another portal group");
                        continue;
                    }
                    self.portal_group = group;
                    if self.url.protocol == Protocol::Srp {
                        // It is unknown whether another address would lead to the same port of the same
                        // target.
                        self.route.stay();
                    }
                    self.route.arrived();
                    link.is_ready = true;
                    self.queue.begun();
                    self.has_arrived = true;
                }
                Event::Text(text) => self.text = Some(Ok(text)),
                Event::Async { event: AsyncEvent::LOGOUT_REQUEST, .. } => link.machine.logout(now),
                Event::Rejected { reason, opcode } => {
                    reactor::limited!(
                        "PDUs that a target rejected",
                        tracing::Level::WARN,
                        target = %self.url, %reason, opcode = format_args!("{:02x}h", opcode.0), "the target rejected a PDU"
                    );
                    if opcode == Opcode::TEXT_REQUEST {
                        self.text = Some(Err(format!("the target rejected the text request: {reason}")));
                    }
                }
                Event::Moved { to } => self.route.redirected(to),
                Event::Gone { reason } => link.gone = Some((reason, now.after(CUT_AFTER))),
                Event::Async { .. } | Event::Pong(_) | Event::FunctionDone { .. } => {}
            }
        }
        link.is_paused |= self.is_guarded && self.queue.attentions.any;
        if !self.is_guarded {
            self.open_unguarded(now);
        }
        is_eventful
    }

    /// Ends a faulty connection.
    fn drop_connection<I: Io>(&mut self, io: &mut I, reason: &str, finished: &mut Vec<Finished>) {
        let State::Connected(link) = &mut self.state else { return };
        link.closed(io.now(), reason);
        self.drain_events(io, finished);
        if let State::Connected(link) = &mut self.state
            && let Some((_, cut_at)) = &mut link.gone
        {
            *cut_at = io.now();
        }
        self.settle(io, finished);
    }

    /// Closes a connection that has ended once the kernel has finished with its buffers.
    fn settle<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) {
        let State::Connected(link) = &mut self.state else { return };
        let Some((_, cut_at)) = link.gone else { return };
        if !link.is_quiet() {
            // The last message may give the target the reason.
            if link.has_sent() || io.now() >= cut_at {
                link.shut_down(io);
            }
            return;
        }
        let State::Connected(mut link) = std::mem::replace(&mut self.state, State::Idle) else { return };
        let gone = link.gone.take();
        self.left = link.close(io);
        let now = io.now();
        self.outage.lost(now, self.queue.has_answered());
        self.queue.lost(finished);
        self.abandon_unguarded(now, finished);
        if self.is_closing {
            self.state = State::Closed;
        } else if let Some(to) = self.route.follow() {
            self.follow(io, to);
        } else {
            self.failed(now, gone.as_ref().map_or("", |(reason, _)| reason));
        }
    }
}

#[cfg(test)]
mod tests;
