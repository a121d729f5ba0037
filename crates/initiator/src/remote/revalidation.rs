//! What a lane queries of its unit: after each login and each unit attention, before anything else is sent,
//! which unit it is, how large its blocks are, whether it has kept running, and whether what earlier sessions
//! have sent can still be executed; and from time to time, how large it is.
//!
//! A target may answer a login that reinstates a session (RFC 7143 section 6.3.5) before the commands of the
//! old session have ended. So while writes of the lane are unanswered, one of these must prove that they have
//! ended:
//!
//! - It is a Lunette whose INQUIRY data promises that it answers on a new session only after that, and it has
//!   answered.
//! - An ORDERED command has ended on the new session: it is not executed before the older commands of the
//!   task set have ended (SAM-5 section 8.9.3). It delays all later commands, so it is aborted when it takes
//!   long; a [`Backoff`] repeats it.
//!
//! Over AoE only answers prove anything: to the writes themselves, or to what the target orders behind them
//! ([`crate::session::Session::may_change`]). What is not proven keeps its blocks locked for everyone
//! ([`super::abandoned_writes`]).

use super::backoff::Backoff;
use super::continuity::Arrival;
use super::geometry::{
    CAPACITY_BYTES, ModeSenseData, PAGE_BYTES, capacity_of, inquiry, inquiry_page, is_disk, mode_sense,
    read_capacity,
};
use super::identity::{incarnation, withholds_logins};
use super::lane::{QUESTION, RemoteLane};
use super::{PROBE, request};
use crate::session::{Command, Ending, Refused};
use proto::services::Attribute;
use proto::time::Time;
use reactor::io::Io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::Places;
use wire::scsi::Command as _;
use wire::scsi::command::TestUnitReady;

/// How long a witness for a target's continuity is waited for: lanes check four times a second whether one is
/// needed, and a busy target may answer late.
const WITNESS_WITHIN: Duration = Duration::from_secs(5);

/// How long an ORDERED probe is waited for: while it waits for a write that is stuck, it delays all later
/// commands of the task set, including those of other lanes and of other initiators.
const PROBE_WITHIN: Duration = Duration::from_secs(1);

/// A revalidation.
pub(super) struct Revalidation {
    step: Step,
    /// It comes after a login.
    is_arrival: bool,
    /// Something changed while a query was outstanding: its answer may be older.
    is_stale: bool,
    /// When it began, in the order of [`super::continuity`].
    point: u64,
    inquiry: Vec<u8>,
    /// What earlier sessions have sent can no longer be executed.
    is_proven: bool,
}

enum Step {
    Ask(Question),
    /// Another lane has until this time to prove that the target has not restarted.
    Witness(Time),
}

/// A query of the unit. Unit attentions arrive with the first two; INQUIRY is answered whatever the unit's
/// state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Capacity,
    Modes,
    Inquiry,
    /// The page with the unit's identity.
    UnitIdentity(u8),
    /// Whether what was sent before has ended: TEST UNIT READY, sent as ORDERED.
    OrderedProbe,
}

/// An outstanding query.
pub(super) struct Asked {
    question: Question,
    places: Places,
    /// When it was sent, in the order of [`super::continuity`].
    point: u64,
    since: Time,
    /// It is ORDERED, took too long, and is being aborted.
    is_withdrawn: bool,
}

impl Revalidation {
    fn new(is_arrival: bool, is_stale: bool, is_proven: bool, point: u64) -> Revalidation {
        let step = Step::Ask(Question::Capacity);
        Revalidation { step, is_arrival, is_stale, point, inquiry: Vec::new(), is_proven }
    }
}

impl RemoteLane {
    /// Handles the unit attentions of the unit, before anything that came with them is trusted.
    pub(super) fn handle_attentions<I: Io>(&mut self, io: &mut I) {
        let attentions = self.session.take_attentions();
        if !attentions.any {
            return;
        }
        self.modes_changed |= attentions.modes;
        if attentions.power_on || attentions.reset {
            self.store.losing(|continuity| continuity.reset(attentions.power_on));
        }
        if attentions.identity && self.session.is_open() {
            return self.renew(io, "the unit may have been replaced");
        }
        self.doubt();
    }

    /// What is known of the unit may be outdated: it is revalidated (again) before anything else is sent.
    pub(super) fn doubt(&mut self) {
        let is_stale = self.asked.is_some();
        match &mut self.revalidation {
            Some(revalidation) => {
                (revalidation.step, revalidation.is_stale) = (Step::Ask(Question::Capacity), is_stale);
            }
            None if self.session.is_open() => {
                // What waits is sent once, as on a slow network: it need not be held against other lanes.
                self.session.pause();
                let point = self.store.continuity.point();
                self.revalidation = Some(Revalidation::new(false, is_stale, true, point));
            }
            // The next session's unit is revalidated anyway.
            None => {}
        }
    }

    /// Checks the session: whether it is new, and whether it can still be relied on.
    pub(super) fn watch<I: Io>(&mut self, io: &mut I) {
        if self.session.take_arrival() {
            self.era = self.store.continuity.era();
            let point = self.store.continuity.point();
            self.revalidation = Some(Revalidation::new(true, false, !self.is_in_doubt(), point));
        }
        if self.session.take_proven() {
            self.release_proven();
            self.end_settled(io.now());
        }
        self.withdraw(io);
        self.revalidate(io);
        let is_open = self.session.is_open();
        if is_open && self.store.is_another.load(Ordering::Relaxed) {
            self.renew(io, "the unit may have been replaced");
        } else if (is_open || self.revalidation.is_some()) && self.era != self.store.continuity.era() {
            self.renew(io, "the target may have restarted");
        }
        self.count(io);
    }

    /// Queries the capacity from time to time, when the unit has reported a change, and when another lane
    /// needs to know that the target is alive.
    pub(super) fn probe<I: Io>(&mut self, io: &mut I, now: Time) {
        if self.revalidation.is_some() || self.asked.is_some() {
            return;
        }
        if self.session.is_open() && self.store.continuity.wants_witness() {
            return self.ask(io, Question::Capacity);
        }
        if self.session.is_open() && self.modes_changed {
            return self.ask(io, Question::Modes);
        }
        if self.session.is_open() && self.backoff.as_mut().is_some_and(|backoff| backoff.is_due(now)) {
            return self.ask(io, Question::OrderedProbe);
        }
        let due = self.store.probe_at.load(Ordering::Relaxed);
        if now.0 < due {
            return;
        }
        let next = now.after(PROBE).0;
        if self.store.probe_at.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        match self.session.is_open() {
            true => self.ask(io, Question::Capacity),
            // The revalidation queries it, too.
            false => self.session.begin(io),
        }
    }

    /// The answer to the outstanding query.
    pub(super) fn take_answer<I: Io>(&mut self, io: &mut I, ending: Ending) {
        let Some(Asked { question, places, point, is_withdrawn, .. }) = self.asked.take() else { return };
        let data = match ending {
            Ending::Good(moved) => {
                let part = places.slice(0, moved.read_bytes);
                Some(part.iter().flat_map(|span| io.arena().bytes(span).to_vec()).collect::<Vec<_>>())
            }
            Ending::Status { .. } | Ending::Lost { .. } => None,
        };
        io.arena().give(&places);
        if is_withdrawn {
            return self.answered_late(io.now(), data.is_some());
        }
        if matches!(ending, Ending::Lost { .. }) {
            return self.renew(io, "the unit does not answer");
        }
        match (question, &data) {
            (Question::Capacity, Some(data)) => {
                let block_bytes = self.store.geometry.block_bytes;
                match capacity_of(data) {
                    Some((blocks, found)) if found == block_bytes => self.store.capacity_seen(blocks),
                    Some((_, found)) => {
                        return self.refuse(io, &format!(
                            "the blocks of {} now have {found} bytes instead of {block_bytes}: restore its block \
                             size, or restart to serve it as it is",
                            self.store.url
                        ));
                    }
                    None => {}
                }
                if self.session.is_open() && self.era == self.store.continuity.era() {
                    self.store.continuity.witness(point);
                }
            }
            (Question::Modes, Some(data)) => {
                self.modes_changed = false;
                self.store.modes_seen(&ModeSenseData::of(data));
            }
            (Question::OrderedProbe, Some(_)) if self.revalidation.is_none() => self.proven(io.now()),
            (Question::Capacity | Question::Modes, None)
            | (Question::Inquiry | Question::UnitIdentity(_) | Question::OrderedProbe, Some(_) | None) => {}
        }
        let Some(revalidation) = &mut self.revalidation else { return };
        if std::mem::take(&mut revalidation.is_stale) {
            revalidation.step = Step::Ask(Question::Capacity);
            return;
        }
        if question == Question::Capacity && data.as_deref().and_then(capacity_of).is_none() {
            return self.renew(io, "the unit does not report its block size");
        }
        let next = match question {
            Question::Capacity => Question::Modes,
            Question::Modes => Question::Inquiry,
            Question::Inquiry => {
                revalidation.inquiry = data.unwrap_or_default();
                match self.store.geometry.identity.page() {
                    Some(page) => Question::UnitIdentity(page),
                    None => return self.identify(io, &[]),
                }
            }
            Question::UnitIdentity(_) => return self.identify(io, &data.unwrap_or_default()),
            Question::OrderedProbe => {
                revalidation.is_proven = data.is_some();
                return self.arrive(io);
            }
        };
        revalidation.step = Step::Ask(next);
    }

    /// The outcome of a query that was aborted. An answer that came nevertheless is a proof.
    fn answered_late(&mut self, now: Time, is_answered: bool) {
        match &mut self.revalidation {
            Some(revalidation) => {
                revalidation.is_proven |= is_answered;
                revalidation.is_stale = false;
            }
            None if is_answered => self.proven(now),
            None => {}
        }
    }

    /// Continues without a proof that does not arrive.
    fn withdraw<I: Io>(&mut self, io: &mut I) {
        let within = PROBE_WITHIN.min(self.store.give_up_after() / 2);
        let is_late = |asked: &&mut Asked| {
            asked.question == Question::OrderedProbe
                && !asked.is_withdrawn
                && io.now().since(asked.since) >= within
        };
        let Some(asked) = self.asked.as_mut().filter(is_late) else { return };
        asked.is_withdrawn = true;
        self.session.withdraw(&mut self.finished);
        if matches!(self.revalidation, Some(Revalidation { step: Step::Ask(Question::OrderedProbe), .. })) {
            self.arrive(io);
        }
    }

    fn revalidate<I: Io>(&mut self, io: &mut I) {
        let Some(Revalidation { step, point, .. }) = &self.revalidation else { return };
        match *step {
            Step::Ask(question) if self.asked.is_none() => self.ask(io, question),
            Step::Ask(_) => {}
            Step::Witness(_) if self.store.continuity.is_proven(*point) => self.admit(io),
            Step::Witness(until) if io.now() >= until || !self.store.continuity.has_witnesses() => {
                self.store.losing(|continuity| continuity.unproven());
                self.era += 1;
                self.admit(io);
            }
            Step::Witness(_) => {}
        }
    }

    /// The unit's identity is known, if it is the right one.
    fn identify<I: Io>(&mut self, io: &mut I, page: &[u8]) {
        let Some(Revalidation { inquiry, is_proven, .. }) = &mut self.revalidation else { return };
        let identity = &self.store.geometry.identity;
        let another = match is_disk(inquiry) {
            Err(reason) => Some(reason),
            Ok(()) if identity.is_of(inquiry, page) => None,
            Ok(()) => Some(format!("it is now {}, no longer {identity}", identity.found(inquiry, page))),
        };
        if let Some(reason) = another {
            return self.refuse(io, &format!("the unit at {} was replaced: {reason}", self.store.url));
        }
        self.store.identified(Ok(()));
        *is_proven |= withholds_logins(inquiry);
        if !*is_proven && self.store.geometry.ordered && self.backoff.is_none() {
            if let Some(revalidation) = &mut self.revalidation {
                revalidation.step = Step::Ask(Question::OrderedProbe);
            }
            return;
        }
        self.arrive(io);
    }

    /// All answers have arrived.
    fn arrive<I: Io>(&mut self, io: &mut I) {
        let Some(Revalidation { point, inquiry, is_arrival, .. }) = &self.revalidation else { return };
        let arrival = match (*is_arrival, incarnation(inquiry)) {
            // The session continues, and no restart was reported.
            (false, None) => Arrival::Fine,
            (_, incarnation) => self.store.losing(|continuity| continuity.arrived(*point, incarnation)),
        };
        match arrival {
            Arrival::Fine => self.admit(io),
            Arrival::Restarted => {
                self.era += 1;
                self.admit(io);
            }
            Arrival::Doubtful => {
                if let Some(revalidation) = &mut self.revalidation {
                    revalidation.step = Step::Witness(io.now().after(WITNESS_WITHIN));
                }
            }
        }
    }

    fn admit<I: Io>(&mut self, io: &mut I) {
        let Some(Revalidation { is_arrival, is_proven, .. }) = self.revalidation.take() else { return };
        match (is_arrival, is_proven) {
            (true, true) => self.proven(io.now()),
            (true, false) => self.unproven(io.now()),
            (false, _) => {}
        }
        self.cancel_overtaken(io.now());
        self.session.open(io.now());
        if is_arrival && self.session.ends_by_answers() && self.store.abandoned.has_abandoned(self.id) {
            self.report_abandoned((0, u64::MAX));
        }
        self.count(io);
    }

    /// Whether writes of earlier sessions are unanswered, and their end can be proven.
    fn is_in_doubt(&self) -> bool {
        self.has_unsettled() && !self.session.ends_by_answers()
    }

    /// There is no proof that the target cannot execute any more what earlier sessions have sent.
    fn unproven(&mut self, now: Time) {
        self.mark_unsettled();
        if self.backoff.is_some() {
            return;
        }
        self.backoff = self.store.geometry.ordered.then(|| Backoff::new(now));
        let next = if self.backoff.is_some() {
            "the check is repeated"
        } else {
            "restart the target and then this daemon, or only this daemon once the target is known to be idle"
        };
        tracing::warn!(
            store = %self.store.url,
            "the target does not prove that unanswered writes have ended: their blocks are not ready; {next}"
        );
    }

    /// It is not the unit that was opened: nothing is sent to it.
    fn refuse<I: Io>(&mut self, io: &mut I, reason: &str) {
        self.renew(io, reason);
        self.store.identified(Err(reason.to_string()));
    }

    fn renew<I: Io>(&mut self, io: &mut I, reason: &str) {
        self.revalidation = None;
        self.session.renew(io, reason, &mut self.finished);
    }

    /// Keeps count of open sessions.
    fn count<I: Io>(&mut self, io: &mut I) {
        let is_open = self.session.is_open();
        if std::mem::replace(&mut self.is_counted, is_open) == is_open {
            return;
        }
        self.store.continuity.count(is_open);
        if !is_open {
            self.hold_all(io.now());
        }
    }

    /// Sends a query, if there is room; otherwise it is retried.
    fn ask<I: Io>(&mut self, io: &mut I, question: Question) {
        let (cdb, bytes) = match question {
            Question::Capacity => (read_capacity(), CAPACITY_BYTES),
            Question::Modes => (mode_sense(), PAGE_BYTES.into()),
            Question::Inquiry => (inquiry(), PAGE_BYTES.into()),
            Question::UnitIdentity(page) => (inquiry_page(page), PAGE_BYTES.into()),
            Question::OrderedProbe => (TestUnitReady {}.to_cdb(), 0),
        };
        let places = if bytes == 0 { Some(Places::EMPTY) } else { io.arena().take(bytes) };
        let Some(places) = places else { return };
        let mut request = request::request(self.session.lun_bytes(), cdb, places, Places::EMPTY);
        if question == Question::OrderedProbe {
            request.attribute = Attribute::Ordered;
        }
        let (point, since) = (self.store.continuity.point(), io.now());
        let command = Command { cookie: QUESTION, request, repeatable: false, patient: true, since };
        match self.session.ask(&command) {
            Ok(()) => self.asked = Some(Asked { question, places, point, since, is_withdrawn: false }),
            Err(Refused::Full | Refused::Lost) => io.arena().give(&places),
        }
    }
}
