//! What a lane asks its unit: after each login, before anything else is sent, which unit it is and whether it has been
//! the same all the time; and from time to time, how large it is.

use super::continuity::Arrival;
use super::geometry::{
    CAPACITY_BYTES, INQUIRY, MODE_SENSE, Modes, PAGE_BYTES, capacity_of, inquiry_page, is_disk, read_capacity,
};
use super::identity::incarnation;
use super::lane::{QUESTION, RemoteLane};
use super::{PROBE, request};
use crate::initiator::session::{Command, Ending, Refused};
use proto::time::Time;
use reactor::io::Io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::Places;

/// How long a witness for a target's continuity is waited for: lanes look for what is wanted four times a second, and a
/// busy target takes its time to answer.
const WITNESS_WITHIN: Duration = Duration::from_secs(5);

/// An examination after a login.
pub(super) struct Examination {
    step: Step,
    /// When it began, in the order of [`super::continuity`].
    point: u64,
    inquiry: Vec<u8>,
}

enum Step {
    Ask(Question),
    /// Another lane is to tell, until this time, that the target has not restarted.
    Witness(Time),
}

/// What a unit is asked. Unit attentions come with the first two; INQUIRY is answered whatever the unit's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Question {
    Capacity,
    Modes,
    Inquiry,
    /// The page that tells which unit it is.
    Identity(u8),
}

/// A question under way.
pub(super) struct Asked {
    question: Question,
    places: Places,
    /// When it was asked, in the order of [`super::continuity`].
    point: u64,
}

impl RemoteLane {
    /// Looks after the session: whether it is new, what the unit told, and whether it can still be relied on.
    pub(super) fn watch<I: Io>(&mut self, io: &mut I) {
        if self.session.take_arrival() {
            self.store.loose.reinstated(self.id);
            self.era = self.store.continuity.era();
            let point = self.store.continuity.point();
            let step = Step::Ask(Question::Capacity);
            self.examination = Some(Examination { step, point, inquiry: Vec::new() });
        }
        let told = self.session.take_attentions();
        if told.capacity {
            self.store.probe_at.store(0, Ordering::Relaxed);
        }
        self.modes_changed |= told.modes;
        if told.power_on || told.reset {
            self.store.losing(|continuity| continuity.reset(told.power_on));
        }
        self.examine(io);
        let is_open = self.session.is_open();
        let is_another = self.store.is_another.load(Ordering::Relaxed);
        if is_open && (told.identity || is_another) {
            self.renew(io, "the unit may be another one now");
        } else if (is_open || self.examination.is_some()) && self.era != self.store.continuity.era() {
            self.renew(io, "the target may have restarted");
        }
        self.count(io);
    }

    /// Asks now and then for the capacity, when it was told that something changed, and when another lane needs to
    /// know that the target is there.
    pub(super) fn probe<I: Io>(&mut self, io: &mut I, now: Time) {
        if self.examination.is_some() || self.asked.is_some() {
            return;
        }
        if self.session.is_open() && self.store.continuity.wants_witness() {
            return self.ask(io, Question::Capacity);
        }
        if self.session.is_open() && self.modes_changed {
            return self.ask(io, Question::Modes);
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
            // The examination asks, too.
            false => self.session.begin(io),
        }
    }

    /// The answer to the question under way.
    pub(super) fn told<I: Io>(&mut self, io: &mut I, ending: Ending) {
        let Some(Asked { question, places, point }) = self.asked.take() else { return };
        let data = match ending {
            Ending::Good { read_bytes, .. } => {
                let part = places.slice(0, read_bytes);
                Some(part.iter().flat_map(|span| io.arena().bytes(span).to_vec()).collect::<Vec<_>>())
            }
            Ending::Status { .. } | Ending::Lost { .. } => None,
        };
        io.arena().give(&places);
        if matches!(ending, Ending::Lost { .. }) {
            return self.renew(io, "the unit answers no questions");
        }
        match (question, &data) {
            (Question::Capacity, Some(data)) => {
                let block_bytes = self.store.geometry.block_bytes;
                match capacity_of(data) {
                    Some((blocks, found)) if found == block_bytes => self.store.capacity_seen(blocks),
                    Some((_, found)) => {
                        let reason = format!("its blocks have {found} bytes, no longer {block_bytes}");
                        return self.refuse(io, &reason);
                    }
                    None => {}
                }
                if self.session.is_open() && self.era == self.store.continuity.era() {
                    self.store.continuity.witness(point);
                }
            }
            (Question::Modes, Some(data)) => {
                self.modes_changed = false;
                self.store.modes_seen(&Modes::of(data));
            }
            (Question::Capacity | Question::Modes, None)
            | (Question::Inquiry | Question::Identity(_), Some(_) | None) => {}
        }
        let Some(examination) = &mut self.examination else { return };
        let next = match question {
            Question::Capacity => Question::Modes,
            Question::Modes => Question::Inquiry,
            Question::Inquiry => {
                examination.inquiry = data.unwrap_or_default();
                match self.store.geometry.identity.page() {
                    Some(page) => Question::Identity(page),
                    None => return self.identify(io, &[]),
                }
            }
            Question::Identity(_) => return self.identify(io, &data.unwrap_or_default()),
        };
        examination.step = Step::Ask(next);
    }

    fn examine<I: Io>(&mut self, io: &mut I) {
        let Some(Examination { step, point, .. }) = &self.examination else { return };
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

    /// All answers are there.
    fn identify<I: Io>(&mut self, io: &mut I, page: &[u8]) {
        let Some(Examination { point, inquiry, .. }) = &self.examination else { return };
        let identity = &self.store.geometry.identity;
        if let Err(reason) = is_disk(inquiry) {
            return self.refuse(io, &reason);
        }
        if !identity.is_of(inquiry, page) {
            let found = identity.found(inquiry, page);
            return self.refuse(io, &format!("it is {found} now, no longer {identity}"));
        }
        self.store.identified(Ok(()));
        let (point, incarnation) = (*point, incarnation(inquiry));
        match self.store.losing(|continuity| continuity.arrived(point, incarnation)) {
            Arrival::Fine => self.admit(io),
            Arrival::Restarted => {
                self.era += 1;
                self.admit(io);
            }
            Arrival::Doubtful => {
                if let Some(examination) = &mut self.examination {
                    examination.step = Step::Witness(io.now().after(WITNESS_WITHIN));
                }
            }
        }
    }

    fn admit<I: Io>(&mut self, io: &mut I) {
        self.examination = None;
        self.give_back_overtaken();
        self.session.open();
        self.count(io);
    }

    /// It is not the unit that was opened: nothing is sent to it.
    fn refuse<I: Io>(&mut self, io: &mut I, reason: &str) {
        let reason = format!("the unit behind {} is another one: {reason}", self.store.url);
        self.renew(io, &reason);
        self.store.identified(Err(reason));
    }

    fn renew<I: Io>(&mut self, io: &mut I, reason: &str) {
        self.examination = None;
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

    /// Asks, if there is room; otherwise somebody tries again.
    fn ask<I: Io>(&mut self, io: &mut I, question: Question) {
        let mut cdb = [0; 16];
        let (cdb, bytes) = match question {
            Question::Capacity => {
                cdb = read_capacity();
                (&cdb[..], CAPACITY_BYTES)
            }
            Question::Modes => (&MODE_SENSE[..], PAGE_BYTES.into()),
            Question::Inquiry => (&INQUIRY[..], PAGE_BYTES.into()),
            Question::Identity(page) => {
                cdb[..6].copy_from_slice(&inquiry_page(page));
                (&cdb[..6], PAGE_BYTES.into())
            }
        };
        let Some(places) = io.arena().take(bytes) else { return };
        let request = request::request(self.session.lun_bytes(), cdb, places, Places::EMPTY);
        let point = self.store.continuity.point();
        let command = Command { cookie: QUESTION, request, repeatable: false, since: io.now() };
        match self.session.ask(&command) {
            Ok(()) => self.asked = Some(Asked { question, places, point }),
            Err(Refused::Full | Refused::Lost) => io.arena().give(&places),
        }
    }
}
