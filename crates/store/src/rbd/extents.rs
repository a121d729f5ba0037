//! Finds what is allocated; librbd uses the calling thread for that.

use super::sys::Image;
use crate::calls::{Call, Work};
use rustix::io::Errno;
use scsi::storage::Found;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// The most bytes of one query: an OSD is queried for each object that may exist.
const WINDOW_BYTES: u64 = 256 << 20;

/// The most queries that wait; more are refused as busy. Each takes about as long as the OSDs take to answer for the
/// objects of a window, and all of them should end long before they are given up.
const QUERIES_MAX: usize = 32;

/// What the queries are for: an image. It is closed when it is dropped, which may take long.
pub(super) trait Allocation: Send + Sync + 'static {
    /// Finds whether anything is allocated from there on, and how far that applies, within this many bytes.
    /// Blocks.
    fn extent(&self, offset: u64, len: u64) -> Result<(bool, u64), i32>;
}

/// Queries of one client, handled one at a time on a thread that is started with the first of them.
pub(super) struct Extents<I: Allocation = Image> {
    queue: Arc<Queue<I>>,
    has_thread: OnceLock<bool>,
}

/// What the thread has to find.
struct Queue<I> {
    state: Mutex<State<I>>,
    changed: Condvar,
}

struct State<I> {
    waiting: VecDeque<(Arc<I>, Box<Call>)>,
    is_closed: bool,
}

impl Allocation for Image {
    fn extent(&self, offset: u64, len: u64) -> Result<(bool, u64), i32> {
        Image::extent(self, offset, len)
    }
}

impl<I: Allocation> Default for Extents<I> {
    fn default() -> Extents<I> {
        let state = Mutex::new(State { waiting: VecDeque::new(), is_closed: false });
        Extents { queue: Arc::new(Queue { state, changed: Condvar::new() }), has_thread: OnceLock::new() }
    }
}

impl<I: Allocation> Extents<I> {
    /// Finds what a call requests.
    ///
    /// # Errors
    /// The call, if too many are waiting, or there is no thread for it.
    pub(super) fn start(&self, image: Arc<I>, call: Box<Call>) -> Result<(), Box<Call>> {
        let has_thread = *self.has_thread.get_or_init(|| start_thread(&self.queue));
        let mut state = self.queue.state();
        if !has_thread || state.waiting.len() >= QUERIES_MAX {
            return Err(call);
        }
        state.waiting.push_back((image, call));
        self.queue.changed.notify_one();
        Ok(())
    }

    /// The call with this guard is not begun if it still waits.
    pub(super) fn withdraw(&self, number: u64) {
        let mut state = self.queue.state();
        let at = state.waiting.iter().position(|(_, call)| call.is_numbered(number));
        let withdrawn = at.and_then(|at| state.waiting.remove(at));
        drop(state);
        if let Some((_, call)) = withdrawn {
            cancel(call);
        }
    }
}

/// The rest is not begun. What has begun is not waited for.
impl<I: Allocation> Drop for Extents<I> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.is_closed = true;
        let rest = std::mem::take(&mut state.waiting);
        drop(state);
        self.queue.changed.notify_one();
        for (image, call) in rest {
            drop(image);
            cancel(call);
        }
    }
}

impl<I> Queue<I> {
    fn state(&self) -> MutexGuard<'_, State<I>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next one; `None`: there will be none.
    fn next(&self) -> Option<(Arc<I>, Box<Call>)> {
        let is_idle = |state: &mut State<I>| state.waiting.is_empty() && !state.is_closed;
        let mut state =
            self.changed.wait_while(self.state(), is_idle).unwrap_or_else(PoisonError::into_inner);
        state.waiting.pop_front()
    }
}

fn start_thread<I: Allocation>(queue: &Arc<Queue<I>>) -> bool {
    let queue = queue.clone();
    let thread = std::thread::Builder::new().name("rbd-extents".into());
    let started = thread.spawn(move || {
        while let Some((image, mut call)) = queue.next() {
            answer(&*image, &mut call);
            // The client may have been replaced meanwhile.
            super::close(Arc::into_inner(image));
            Call::answered(call);
        }
    });
    started.is_ok()
}

fn cancel(mut call: Box<Call>) {
    call.answer = -i64::from(Errno::CANCELED.raw_os_error());
    Call::answered(call);
}

fn answer(image: &impl Allocation, call: &mut Call) {
    let Work::Extent { offset, len } = call.work else { unreachable!("only extents come here") };
    match image.extent(offset, len.min(WINDOW_BYTES)) {
        Ok((mapped, len)) => (call.answer, call.found) = (0, Found::Extent { mapped, len }),
        Err(error) => call.answer = -i64::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::{Guard, Mailbox, Shared};
    use crate::stripes::{Hold, Mode};
    use std::sync::mpsc;

    /// Reports each query, and answers it when the test wants that.
    struct Slow {
        begun: mpsc::Sender<u64>,
        answers: Mutex<mpsc::Receiver<()>>,
    }

    impl Allocation for Slow {
        fn extent(&self, offset: u64, len: u64) -> Result<(bool, u64), i32> {
            let _ = self.begun.send(offset);
            let _ = self.answers.lock().unwrap().recv();
            Ok((true, len))
        }
    }

    /// An image with queries, each at the offset of its number, of which the first one hangs.
    struct Rig {
        extents: Extents<Slow>,
        image: Arc<Slow>,
        mail: Arc<Mailbox>,
        shared: Arc<Shared>,
        begun: mpsc::Receiver<u64>,
        answer: mpsc::Sender<()>,
    }

    impl Rig {
        fn new() -> Rig {
            let ((begin, begun), (answer, answers)) = (mpsc::channel(), mpsc::channel());
            let image = Arc::new(Slow { begun: begin, answers: Mutex::new(answers) });
            let (mail, shared) = (Mailbox::new().unwrap(), Shared::new().unwrap());
            let rig = Rig { extents: Extents::default(), image, mail, shared, begun, answer };
            let first = rig.start().unwrap();
            assert_eq!(rig.begun.recv(), Ok(first));
            rig
        }

        fn start(&self) -> Option<u64> {
            let guard = Guard::new(&self.shared, Hold::new(Mode::Shared, 0, 0));
            let (number, mut call) = (guard.number(), Call::new(&self.mail));
            call.guard = Some(guard);
            call.work = Work::Extent { offset: number, len: 1 };
            self.extents.start(self.image.clone(), call).ok().map(|()| number)
        }
    }

    #[test]
    fn only_so_many_queries_wait() {
        let rig = Rig::new();
        (0..QUERIES_MAX).for_each(|_| assert!(rig.start().is_some()));
        assert!(rig.start().is_none());
        rig.answer.send(()).unwrap();
        rig.begun.recv().unwrap();
        assert!(rig.start().is_some(), "one has ended");
    }

    #[test]
    fn what_hangs_of_a_client_that_was_replaced_delays_no_query_of_its_successor() {
        let mut rig = Rig::new();
        let waiting = rig.start().unwrap();
        let old = std::mem::take(&mut rig.extents);
        rig.image = {
            let (begin, answers) = (rig.image.begun.clone(), mpsc::channel::<()>().1);
            Arc::new(Slow { begun: begin, answers: Mutex::new(answers) })
        };
        drop(old);
        let mut arrived = Vec::new();
        rig.mail.take(&mut arrived);
        assert_eq!(arrived.len(), 1, "what had not begun");
        assert!(arrived[0].is_numbered(waiting));
        let newer = rig.start().unwrap();
        assert_eq!(rig.begun.recv(), Ok(newer));
    }

    #[test]
    fn a_query_that_nobody_waits_for_is_not_begun() {
        let rig = Rig::new();
        let [withdrawn, waited_for] = [(); 2].map(|()| rig.start().unwrap());
        rig.extents.withdraw(withdrawn);
        let mut arrived = Vec::new();
        rig.mail.take(&mut arrived);
        let canceled = -i64::from(Errno::CANCELED.raw_os_error());
        assert_eq!(arrived.iter().map(|call| call.answer).collect::<Vec<_>>(), [canceled]);
        rig.answer.send(()).unwrap();
        assert_eq!(rig.begun.recv(), Ok(waited_for));
        rig.answer.send(()).unwrap();
    }
}
