//! Which parts of a store are allocated. A thread of each store finds that out: lseek may take arbitrarily
//! long, and reading a page map takes milliseconds, so no core does it. A simulated kernel answers at once.

use crate::lane::{OpId, Outcome, Submitted};
use reactor::io::{Handle, Io, Tag};
use rustix::event::{EventfdFlags, eventfd};
use scsi::storage::StoreError;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Queries to one store that may wait for their turn; more are refused as busy.
const QUESTIONS_MAX: usize = 1024;

/// What can be queried, by a thread that may block.
pub(crate) trait Ask: Send + Sync {
    /// Whether the range that starts at `offset`, inside the store, is mapped, and how far the same holds.
    fn extent(&self, offset: u64) -> Outcome;
}

/// The channel to a store's thread, which ends when the store is dropped.
pub(crate) struct Extents {
    questions: Sender<Question>,
    /// How many wait: a bounded channel would allocate memory for all of them in advance.
    waiting: Arc<AtomicUsize>,
}

struct Question {
    store: Arc<dyn Ask>,
    offset: u64,
    number: u64,
    asker: Arc<Asker>,
}

impl Extents {
    pub(crate) fn start() -> io::Result<Extents> {
        let (questions, asked) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        let left = waiting.clone();
        std::thread::Builder::new().name("extents".into()).spawn(move || answer(&asked, &left))?;
        Ok(Extents { questions, waiting })
    }

    /// Whether the query was accepted.
    fn ask(&self, question: Question) -> bool {
        let is_room = self.waiting.fetch_add(1, Ordering::Relaxed) < QUESTIONS_MAX;
        let is_sent = is_room && self.questions.send(question).is_ok();
        if !is_sent {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        is_sent
    }
}

fn answer(asked: &Receiver<Question>, waiting: &AtomicUsize) {
    while let Ok(Question { store, offset, number, asker }) = asked.recv() {
        waiting.fetch_sub(1, Ordering::Relaxed);
        if asker.waits_for(number) {
            asker.answer(number, store.extent(offset));
        }
    }
}

/// A lane's end: its queries and their answers.
struct Asker {
    /// Readable when there is an answer.
    event: OwnedFd,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: Vec<(u64, OpId)>,
    answered: Vec<(OpId, Outcome)>,
}

impl Asker {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits_for(&self, number: u64) -> bool {
        self.state().asked.iter().any(|(asked, _)| *asked == number)
    }

    fn answer(&self, number: u64, outcome: Outcome) {
        let mut state = self.state();
        if let Some(at) = state.asked.iter().position(|(asked, _)| *asked == number) {
            let (_, id) = state.asked.swap_remove(at);
            state.answered.push((id, outcome));
            self.wake();
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// The queries of one lane.
#[derive(Default)]
pub(crate) struct Questions {
    asker: Option<Arc<Asker>>,
    next: u64,
    open: usize,
    is_watching: bool,
    cancelled: Vec<OpId>,
}

impl Questions {
    /// Sends a query; the answer wakes the core by a completion with this tag.
    pub(crate) fn ask<I: Io>(
        &mut self,
        io: &mut I,
        tag: Tag,
        id: OpId,
        extents: &Extents,
        store: Arc<dyn Ask>,
        offset: u64,
    ) -> Submitted {
        let Some(asker) = self.asker() else { return Submitted::Done(Err(StoreError::Busy)) };
        let number = self.next;
        self.next += 1;
        asker.state().asked.push((number, id));
        let question = Question { store, offset, number, asker: asker.clone() };
        if !extents.ask(question) {
            asker.state().asked.retain(|(asked, _)| *asked != number);
            return Submitted::Done(Err(StoreError::Busy));
        }
        self.waits(io, tag, &asker)
    }

    /// An answer that the kernel has given at once; the core is woken for it like for any other.
    pub(crate) fn known<I: Io>(&mut self, io: &mut I, tag: Tag, id: OpId, outcome: Outcome) -> Submitted {
        let Some(asker) = self.asker() else { return Submitted::Done(Err(StoreError::Busy)) };
        asker.state().answered.push((id, outcome));
        asker.wake();
        self.waits(io, tag, &asker)
    }

    fn waits<I: Io>(&mut self, io: &mut I, tag: Tag, asker: &Asker) -> Submitted {
        self.open += 1;
        if !self.is_watching {
            self.is_watching = true;
            io.watch(Handle(asker.event.as_raw_fd()), tag);
        }
        Submitted::Later
    }

    fn asker(&mut self) -> Option<Arc<Asker>> {
        if self.asker.is_none() {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            self.asker = Some(Arc::new(Asker { event, state: Mutex::default() }));
        }
        self.asker.clone()
    }

    /// There may be answers.
    pub(crate) fn completed<I: Io>(&mut self, io: &mut I, tag: Tag, done: &mut Vec<(OpId, Outcome)>) {
        self.is_watching = false;
        let Some(asker) = &self.asker else { return };
        // Before the answers are checked: a later one makes it readable again.
        let _ = rustix::io::read(&asker.event, &mut [0; 8]);
        let before = done.len();
        done.append(&mut asker.state().answered);
        self.open -= done.len() - before;
        if self.open > self.cancelled.len() {
            self.is_watching = true;
            io.watch(Handle(asker.event.as_raw_fd()), tag);
        }
    }

    /// Its lane ends: answers are not waited for. Returns whether no completion is outstanding.
    pub(crate) fn close<I: Io>(&mut self, io: &mut I, tag: Tag) -> bool {
        if self.is_watching {
            io.unwatch(tag);
        }
        !self.is_watching
    }

    /// Nobody waits for this answer any more, nor for the thread, which may be stuck in the file system.
    pub(crate) fn cancel(&mut self, id: OpId) {
        let Some(asker) = &self.asker else { return };
        let mut state = asker.state();
        if let Some(at) = state.asked.iter().position(|(_, asked)| *asked == id) {
            state.asked.swap_remove(at);
            self.cancelled.push(id);
        }
    }

    /// Reports cancelled queries.
    pub(crate) fn flush(&mut self, done: &mut Vec<(OpId, Outcome)>) {
        if !self.cancelled.is_empty() {
            self.open -= self.cancelled.len();
            done.extend(self.cancelled.drain(..).map(|id| (id, Err(StoreError::Cancelled))));
        }
    }

    /// Queries not yet reported.
    pub(crate) fn open(&self) -> usize {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::io::Wait;
    use reactor::memory::Arena;
    use reactor::uring::Uring;
    use reactor::wake::Waker;
    use scsi::storage::Found;

    const TAG: Tag = Tag(7);

    /// A file system that answers when the test lets it, and records the queries.
    struct Slow {
        asked: Sender<u64>,
        until: Mutex<Receiver<()>>,
    }

    impl Ask for Slow {
        fn extent(&self, offset: u64) -> Outcome {
            self.asked.send(offset).unwrap();
            let _ = self.until.lock().unwrap().recv();
            Ok(Found::Extent { mapped: true, len: offset })
        }
    }

    struct Rig {
        io: Uring,
        extents: Extents,
        store: Arc<Slow>,
        questions: Questions,
        asked: Receiver<u64>,
        release: Sender<()>,
    }

    impl Rig {
        fn new() -> Rig {
            let (ask, asked) = channel();
            let (release, until) = channel();
            Rig {
                io: Uring::new(Arena::new(1 << 20).unwrap(), Waker::new().unwrap()).unwrap(),
                extents: Extents::start().unwrap(),
                store: Arc::new(Slow { asked: ask, until: Mutex::new(until) }),
                questions: Questions::default(),
                asked,
                release,
            }
        }

        fn ask(&mut self, id: u32) -> Submitted {
            let (store, offset) = (self.store.clone(), u64::from(id));
            self.questions.ask(&mut self.io, TAG, OpId(id), &self.extents, store, offset)
        }

        /// Waits for the next answers.
        fn answers(&mut self) -> Vec<(OpId, Outcome)> {
            let (mut completions, mut done) = (Vec::new(), Vec::new());
            while done.is_empty() {
                self.io.turn(Wait::Forever, &mut completions);
                for completion in completions.drain(..) {
                    assert_eq!((completion.tag, completion.result.is_ok()), (TAG, true));
                    self.questions.completed(&mut self.io, TAG, &mut done);
                }
            }
            done
        }
    }

    fn found(id: u32) -> (OpId, Outcome) {
        (OpId(id), Ok(Found::Extent { mapped: true, len: u64::from(id) }))
    }

    #[test]
    fn a_store_that_hangs_holds_up_nobody_and_what_was_aborted_is_not_asked() {
        let mut rig = Rig::new();
        for id in 1..=3 {
            assert_eq!(rig.ask(id), Submitted::Later);
        }
        assert_eq!(rig.asked.recv(), Ok(1));
        rig.questions.cancel(OpId(1));
        rig.questions.cancel(OpId(2));
        let mut done = Vec::new();
        rig.questions.flush(&mut done);
        let cancelled = |id| (OpId(id), Err(StoreError::Cancelled));
        assert_eq!(done, [cancelled(1), cancelled(2)]);
        assert_eq!(rig.questions.open(), 1);
        // Its id is free again, and the late answer is not taken for the new query's.
        assert_eq!(rig.ask(1), Submitted::Later);
        (0..2).for_each(|_| rig.release.send(()).unwrap());
        assert_eq!(rig.answers(), [found(3)]);
        rig.release.send(()).unwrap();
        assert_eq!(rig.answers(), [found(1)]);
        assert_eq!(rig.asked.try_iter().collect::<Vec<_>>(), [3, 1]);
        assert_eq!(rig.questions.open(), 0);
    }

    #[test]
    fn questions_are_bounded() {
        let mut rig = Rig::new();
        assert_eq!(rig.ask(0), Submitted::Later);
        assert_eq!(rig.asked.recv(), Ok(0));
        let most = QUESTIONS_MAX as u32;
        for id in 1..=most {
            assert_eq!(rig.ask(id), Submitted::Later);
        }
        assert_eq!(rig.ask(most + 1), Submitted::Done(Err(StoreError::Busy)));
        assert_eq!(rig.questions.open(), QUESTIONS_MAX + 1);
        // A query that has had its turn makes room, even if nobody waits for it any more.
        rig.questions.cancel(OpId(1));
        rig.release.send(()).unwrap();
        assert_eq!(rig.asked.recv(), Ok(2));
        assert_eq!([most + 1, most + 2].map(|id| rig.ask(id)), [Submitted::Later; 2]);
        assert_eq!(rig.ask(most + 3), Submitted::Done(Err(StoreError::Busy)));
    }

    #[test]
    fn the_thread_ends_with_the_store() {
        let mut rig = Rig::new();
        assert_eq!(rig.ask(5), Submitted::Later);
        rig.release.send(()).unwrap();
        assert_eq!(rig.answers(), [found(5)]);
        let Rig { extents, store, asked, .. } = rig;
        drop((extents, store));
        // Its last query is dropped with it.
        assert_eq!(asked.iter().collect::<Vec<_>>(), [5]);
    }
}
