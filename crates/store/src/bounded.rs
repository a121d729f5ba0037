//! Work that may hang as long as its cluster does, with a timeout.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Runs work that may hang on threads, a limited number at a time.
pub(crate) struct Bounded {
    patience: Duration,
    threads_max: usize,
    running: Arc<AtomicUsize>,
}

impl Bounded {
    pub(crate) fn new(patience: Duration, threads_max: usize) -> Bounded {
        Bounded { patience, threads_max, running: Arc::default() }
    }

    /// The result; `None` when it takes too long, or is not begun because too much already hangs. What was
    /// begun continues.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        self.begin(work)?.recv_timeout(self.patience).ok()
    }

    /// Begins it without waiting for the result; `None`: not begun, since too much hangs already.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<mpsc::Receiver<T>> {
        if self.running.fetch_add(1, Ordering::Relaxed) >= self.threads_max {
            self.running.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let ended = OnDrop(self.running.clone());
        let (done, result) = mpsc::channel();
        let thread = std::thread::Builder::new().name("ceph".into());
        // If no thread can be started, this drops the work, and the sender with it.
        let _ = thread.spawn(move || {
            let result = work();
            drop(ended);
            let _ = done.send(result);
        });
        Some(result)
    }
}

struct OnDrop(Arc<AtomicUsize>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_does_not_wait_for_the_call() {
        let bounded = Bounded::new(Duration::from_secs(60), 1);
        let (release, hangs) = mpsc::channel::<()>();
        let begun = bounded.begin(move || hangs.recv().is_ok()).expect("it is begun");
        assert!(bounded.begin(|| ()).is_none(), "one at a time");
        release.send(()).expect("it runs");
        assert_eq!(begun.recv(), Ok(true));
    }

    #[test]
    fn hung_calls_are_not_waited_for_and_do_not_pile_up() {
        let bounded = Bounded::new(Duration::from_millis(1), 1);
        let (release, hangs) = mpsc::channel::<()>();
        let (ended, end) = mpsc::channel::<()>();
        let hung = bounded.run(move || {
            let _ = hangs.recv();
            ended
        });
        assert!(hung.is_none());
        assert_eq!(bounded.run(|| 7), None);
        drop(release);
        // It is dropped, unsent, after its thread has decremented the count.
        assert!(end.recv().is_err());
        let patient = Bounded { patience: Duration::from_secs(60), ..bounded };
        assert_eq!(patient.run(|| 7), Some(7));
    }
}
