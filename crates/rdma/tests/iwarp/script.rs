//! A machine that posts what the test scripts.

use proto::message::{Answer, Full, Message, MessageMachine, Post, Receives, WorkId};
use proto::time::Time;
use std::collections::VecDeque;
use wire::Span;

pub(crate) const RECEIVES: Receives = Receives { count: 4, bytes: 12_000, aligned_at: 80 };

type Step = Box<dyn FnMut(&mut dyn Post) -> Result<(), Full>>;

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reported {
    Ready(Vec<u8>),
    Message { place: Span, bytes: Vec<u8>, invalidated: Option<u32> },
    Finished(u64),
    Gone(String),
}

#[derive(Default)]
pub(crate) struct Script {
    steps: VecDeque<Step>,
    reported: VecDeque<Reported>,
    /// Messages whose places were not released.
    held: u16,
    freed: Vec<Span>,
}

impl Script {
    /// Posts this, again whenever the queue was full.
    pub(crate) fn post(&mut self, step: impl FnMut(&mut dyn Post) -> Result<(), Full> + 'static) {
        self.steps.push_back(Box::new(step));
    }

    /// Releases the place of a message.
    pub(crate) fn release(&mut self, place: Span) {
        self.freed.push(place);
    }
}

impl MessageMachine for Script {
    type Event = Reported;

    fn request(&mut self) -> Vec<u8> {
        b"may I?".to_vec()
    }

    fn asked(&mut self, _: Time, private_data: &[u8]) -> Answer {
        assert_eq!(private_data, b"may I?");
        Answer::Accept(b"you may".to_vec())
    }

    fn established(&mut self, _: Time, private_data: &[u8]) {
        self.reported.push_back(Reported::Ready(private_data.to_vec()));
    }

    fn receives(&self) -> Receives {
        Receives { count: RECEIVES.count - self.held, ..RECEIVES }
    }

    fn received(&mut self, _: Time, message: Message<'_>) {
        let Message { place, bytes, invalidated } = message;
        self.held += 1;
        self.reported.push_back(Reported::Message { place, bytes: bytes.to_vec(), invalidated });
    }

    fn finished(&mut self, _: Time, work: WorkId) {
        self.reported.push_back(Reported::Finished(work.0));
    }

    fn closed(&mut self, _: Time, reason: &str) {
        self.steps.clear();
        self.reported.push_back(Reported::Gone(reason.to_string()));
    }

    fn poll(&mut self) -> Option<Reported> {
        self.reported.pop_front()
    }

    fn owes(&self) -> bool {
        !self.steps.is_empty() || !self.freed.is_empty()
    }

    fn post(&mut self, _: Time, to: &mut dyn Post) {
        for place in self.freed.drain(..) {
            to.release(place);
            self.held -= 1;
        }
        while self.steps.front_mut().is_some_and(|step| step(to).is_ok()) {
            self.steps.pop_front();
        }
    }

    fn is_over(&self) -> bool {
        false
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn tick(&mut self, _: Time) {}
}
