//! Ends what earlier processes have in progress at a target, before its unit is used.
//!
//! A daemon that was killed may have sent writes that the target does not execute before the next daemon
//! serves the unit: they would overwrite what is written then. So whatever opens the unit logs in once as
//! each initiator port that earlier processes used, and the target ends what the session of that port has in
//! progress (RFC 7143 section 6.3.5; SRP: the channels of that port). As in [`super::revalidation`], the login
//! alone does not prove that this has ended: a Lunette promises to withhold its answer until then, and others
//! end an ORDERED command with GOOD. One that was refused, such as with a unit attention or BUSY, was ordered
//! behind nothing, and is resent. GOOD from a target without support for ORDERED commands is trusted: the
//! login is all that such a target offers.

use super::geometry::{PAGE_BYTES, inquiry};
use super::identity::withholds_logins;
use super::request;
use crate::session::{Command, Ending, Finished, Session};
use crate::{Destination, InitiatorPort, Options};
use config::Url;
use proto::services::Attribute;
use proto::time::Time;
use reactor::io::{Completion, Io, Tag, Wait};
use reactor::memory::Arena;
use reactor::uring::Uring;
use reactor::wake::Waker;
use std::time::Duration;
use store::lane::LANE_TAGS;
use wire::Places;
use wire::scsi::Command as _;
use wire::scsi::command::TestUnitReady;

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(20);
/// How long the end of an ORDERED command is waited for: meanwhile it delays all later ones.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
/// How long the answer to a logout is waited for.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
/// Buffers for its only command; over iWARP, also for receives.
const ARENA_BYTES: u64 = 16 << 20;

/// Logs in as one port after another.
pub struct Takeover {
    url: Url,
    addresses: Vec<Destination>,
    options: Options,
    /// The remaining ports.
    ports: Vec<InitiatorPort>,
    active: Option<PortSession>,
    /// Logins so far.
    opened: u64,
    finished: Vec<Finished>,
}

/// A session of one port.
struct PortSession {
    session: Session,
    /// The first of its tags.
    tags: u64,
    /// Addresses that have not been tried.
    untried: usize,
    step: Step,
}

enum Step {
    LogIn,
    /// INQUIRY is outstanding, with its data going there.
    Ask(Places),
    /// ORDERED commands are sent, since then, until one succeeds; and whether one is outstanding.
    OrderedProbe {
        since: Time,
        is_under_way: bool,
    },
    /// The session is ending; the deadline.
    Leave(Time),
}

impl Takeover {
    /// For these ports at this URL's target.
    pub fn new(
        url: &Url,
        addresses: Vec<Destination>,
        options: &Options,
        ports: Vec<InitiatorPort>,
    ) -> Takeover {
        let (url, options) = (url.clone(), Options { queue_depth: 1, ..options.clone() });
        Takeover { url, addresses, options, ports, active: None, opened: 0, finished: Vec::new() }
    }

    /// A completion of one of its sessions.
    pub fn completed<I: Io>(&mut self, io: &mut I, completion: Completion) {
        let is_of = |active: &&mut PortSession| completion.tag.0 / LANE_TAGS == active.tags / LANE_TAGS;
        if let Some(active) = self.active.as_mut().filter(is_of) {
            active.session.completed(io, completion, &mut self.finished);
        }
    }

    /// Continues; to be called after completions, and many times a second. Returns whether it is complete:
    /// nothing that was sent from these ports is executed any more.
    ///
    /// # Errors
    /// When the target is unreachable, or gives no proof. It may be retried from the beginning.
    pub fn turn<I: Io>(&mut self, io: &mut I) -> Result<bool, String> {
        loop {
            if self.active.is_none() {
                let Some(port) = self.ports.pop() else { return Ok(true) };
                self.active = Some(self.call(io, port));
            }
            let Some(active) = &mut self.active else { return Ok(true) };
            active.session.tick(io, &mut self.finished);
            let ended = active.go_on(io, &mut self.finished);
            active.session.flush(io, &mut self.finished);
            match ended {
                Ok(true) => self.active = None,
                Ok(false) => return Ok(false),
                Err(problem) => {
                    active.session.close_socket();
                    self.active = None;
                    return Err(problem);
                }
            }
        }
    }

    fn call<I: Io>(&mut self, io: &mut I, port: InitiatorPort) -> PortSession {
        let tags = self.opened * LANE_TAGS;
        self.opened += 1;
        let (url, options) = (self.url.clone(), self.options.clone());
        let session = Session::new::<I>(url, self.addresses.clone(), options, Tag(tags));
        let mut session = session.of_port(port).unlogged();
        session.start(io);
        PortSession { session, tags, untried: self.addresses.len().saturating_sub(1), step: Step::LogIn }
    }

    /// The same on the caller's thread. Blocks until it is complete.
    ///
    /// # Errors
    /// Like [`Takeover::turn`], or when the system has no ring.
    pub(super) fn run(mut self) -> Result<(), String> {
        let io = Arena::new(ARENA_BYTES).and_then(|arena| Uring::new(arena, Waker::new()?));
        let mut io = io.map_err(|error| format!("cannot open an io_uring: {error}"))?;
        let mut completions = Vec::new();
        while !self.turn(&mut io)? {
            io.turn(Wait::AtMost(TICK), &mut completions);
            completions.drain(..).for_each(|completion| self.completed(&mut io, completion));
        }
        Ok(())
    }
}

impl PortSession {
    /// Whether the port's earlier session has ended, and this one as well.
    fn go_on<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) -> Result<bool, String> {
        let now = io.now();
        let ended = finished.pop().map(|one| one.ending);
        match (&self.step, ended) {
            (Step::LogIn, _) if self.session.is_ready() => self.ask(io),
            (Step::LogIn, _) => self.try_next_address(io),
            (Step::Ask(places), Some(ending)) => {
                let places = *places;
                let data = match ending {
                    Ending::Good(moved) => {
                        let part = places.slice(0, moved.read_bytes);
                        part.iter().flat_map(|span| io.arena().bytes(span).to_vec()).collect()
                    }
                    Ending::Status { .. } | Ending::Lost { .. } => Vec::new(),
                };
                io.arena().give(&places);
                match ending {
                    Ending::Lost { .. } => self.lost(),
                    _ if withholds_logins(&data) => self.leave(io, finished),
                    _ => self.probe_ordered(now, now),
                }
            }
            (Step::OrderedProbe { .. }, Some(Ending::Lost { .. })) => self.lost(),
            (Step::OrderedProbe { .. }, Some(Ending::Good(_))) => self.leave(io, finished),
            (Step::OrderedProbe { since, .. }, Some(Ending::Status { .. })) => {
                self.step = Step::OrderedProbe { since: *since, is_under_way: false };
                Ok(false)
            }
            (Step::OrderedProbe { since, .. }, None) if now.since(*since) >= PROBE_WITHIN => {
                Err("it does not prove that commands from before this start have ended".into())
            }
            // The caller sets the pace.
            (Step::OrderedProbe { since, is_under_way: false }, None) => self.probe_ordered(*since, now),
            (Step::Leave(until), _) => {
                if self.session.is_closed() {
                    return Ok(true);
                }
                if now >= *until {
                    self.session.close_socket();
                    return Ok(true);
                }
                Ok(false)
            }
            (Step::Ask(_) | Step::OrderedProbe { .. }, None) => Ok(false),
        }
    }

    /// Whether there is a session, at one of the addresses.
    fn try_next_address<I: Io>(&mut self, io: &mut I) -> Result<bool, String> {
        if self.session.failure().is_none() || !self.session.is_closed() {
            return Ok(false);
        }
        let Some(untried) = self.untried.checked_sub(1) else { return self.lost() };
        self.untried = untried;
        self.session.start(io);
        Ok(false)
    }

    fn lost(&self) -> Result<bool, String> {
        Err(self.session.failure().unwrap_or("the target was lost").to_owned())
    }

    fn ask<I: Io>(&mut self, io: &mut I) -> Result<bool, String> {
        let places = io.arena().take(PAGE_BYTES.into()).ok_or("no memory is available for a command")?;
        self.step = Step::Ask(places);
        let request = request::request(self.session.lun_bytes(), inquiry(), places, Places::EMPTY);
        self.submit(io.now(), request)
    }

    fn probe_ordered(&mut self, since: Time, now: Time) -> Result<bool, String> {
        self.step = Step::OrderedProbe { since, is_under_way: true };
        let lun = self.session.lun_bytes();
        let mut request = request::request(lun, TestUnitReady {}.to_cdb(), Places::EMPTY, Places::EMPTY);
        request.attribute = Attribute::Ordered;
        self.submit(now, request)
    }

    fn submit(&mut self, now: Time, request: proto::iscsi::initiator::Request) -> Result<bool, String> {
        let command = Command { cookie: 0, request, repeatable: false, patient: true, since: now };
        match self.session.submit(now, &command) {
            Ok(()) => Ok(false),
            Err(_) => self.lost(),
        }
    }

    fn leave<I: Io>(&mut self, io: &mut I, finished: &mut Vec<Finished>) -> Result<bool, String> {
        self.session.close(io, finished);
        self.step = Step::Leave(io.now().after(LEAVE_WITHIN));
        Ok(false)
    }
}
