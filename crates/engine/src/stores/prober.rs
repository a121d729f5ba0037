//! Probes stores: whether their size changed, whether they are gone or back, or no longer at their path.
//! Each has its own thread, so that one that hangs delays no other.

use super::space::SpaceMeter;
use crate::events::{Event, Events};
use crate::message::{Message, Origin, Waiter};
use crate::patience::Patience;
use reactor::mailbox::Sender;
use scsi::storage::Traits;
use scsi::{HomeRequest, Space};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use store::lane::Store;

/// How often a store is checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// The minimum time between log lines about a failure when only the reason changes.
const QUIET: Duration = Duration::from_secs(10);

/// How long shutdown waits for a last check of where stores are: one may hang.
const LAST_CHECK: Duration = Duration::from_secs(5);

/// A unit's store.
pub(crate) struct ProbedStore {
    /// The unit's name, for the log.
    pub(crate) name: String,
    /// The unit's number.
    pub(crate) unit: u32,
    /// Home core of the unit.
    pub(crate) home: usize,
    pub(crate) store: Arc<dyn Store>,
    /// Why its store has failed, as last logged; `None`: it works.
    pub(crate) failed: Option<String>,
    /// When that was logged, if it was logged here.
    pub(crate) logged: Option<Instant>,
    /// Resets of its store ([`Store::resets`]) that the unit was notified of.
    pub(crate) resets: u64,
    /// Why its path did not lead to it at the last check.
    pub(crate) misplaced: Option<String>,
    /// Where losing it and getting it back are reported.
    pub(crate) events: Events,
    /// Measures the space that it takes, if the unit is thin and that can be measured.
    pub(crate) space_meter: Option<SpaceMeter>,
}

/// A probed store, from [`StoreProber::begin`] on. When this is dropped its thread ends, at the latest when the
/// store returns.
pub(crate) struct StoreProber {
    begun: mpsc::Sender<()>,
    until: mpsc::Sender<ProberRequest>,
    checked_at: mpsc::Receiver<bool>,
}

/// What to do with a store besides checking it.
enum ProberRequest {
    Grow(Growth),
    /// Measure the space that it takes from now on.
    MeasureSpace(SpaceMeter),
}

/// A store that is to grow to this size, and the channel that waits for the outcome.
struct Growth {
    size_bytes: u64,
    /// Whichever side sets it first decides whether the store grows.
    is_decided: Arc<AtomicBool>,
    done: mpsc::Sender<Result<(), String>>,
}

impl StoreProber {
    /// Grows the store to this size, if it is smaller, and returns when the unit's home was notified.
    ///
    /// # Errors
    /// Why it has not grown; if the store hangs, it may still grow later.
    pub(crate) fn grow(&self, size_bytes: u64, patience: &Patience) -> Result<(), String> {
        let (done, is_done) = mpsc::channel();
        let is_decided = Arc::new(AtomicBool::new(false));
        let _ =
            self.until.send(ProberRequest::Grow(Growth { size_bytes, is_decided: is_decided.clone(), done }));
        patience.wait(&is_done).unwrap_or_else(|error| match error {
            RecvTimeoutError::Disconnected => Err("the store has no thread".into()),
            RecvTimeoutError::Timeout if is_decided.swap(true, Ordering::SeqCst) => {
                Err("its store does not answer; it may still be extended when it does".into())
            }
            RecvTimeoutError::Timeout => Err("its store does not answer".into()),
        })
    }

    /// Measures the space that the store takes from now on.
    pub(crate) fn measure_space(&self, space: Arc<Space>) {
        let _ = self.until.send(ProberRequest::MeasureSpace(SpaceMeter::new(space)));
    }

    /// The unit is served from now on.
    pub(crate) fn begin(&self) {
        let _ = self.begun.send(());
    }
}

/// Checks all stores once more. Returns whether each that was written is where it can be found again, as far
/// as is known.
pub(crate) fn end(probers: Vec<StoreProber>) -> bool {
    let (untils, last_looks): (Vec<_>, Vec<_>) =
        probers.into_iter().map(|prober| ((prober.begun, prober.until), prober.checked_at)).unzip();
    drop(untils);
    let deadline = Instant::now() + LAST_CHECK;
    let left = || deadline.saturating_duration_since(Instant::now());
    // All are checked, so that the log names each.
    last_looks.iter().filter(|checked_at| checked_at.recv_timeout(left()) == Ok(false)).count() == 0
}

/// Monitors a store from [`StoreProber::begin`] on, and notifies `home`, the home core of its unit.
pub(crate) fn start(mut probed: ProbedStore, home: Sender<Message>) -> io::Result<StoreProber> {
    let (begun, has_begun) = mpsc::channel();
    let (until, ended) = mpsc::channel::<ProberRequest>();
    let (last, checked_at) = mpsc::channel();
    let thread = std::thread::Builder::new().name(format!("store-{}", probed.unit));
    thread.spawn(move || {
        if has_begun.recv().is_err() {
            return;
        }
        loop {
            let growth = match ended.recv_timeout(INTERVAL) {
                Ok(ProberRequest::Grow(growth)) => Some(growth),
                Ok(ProberRequest::MeasureSpace(space_meter)) => {
                    probed.space_meter.get_or_insert(space_meter);
                    None
                }
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let growth = growth.filter(|growth| !growth.is_decided.swap(true, Ordering::SeqCst));
            let grown = growth.as_ref().map(|growth| probed.store.grow(growth.size_bytes));
            let now = Instant::now();
            let state = probed.reset().into_iter().chain(probed.check(now));
            for request in state.chain(probed.space(now)).collect::<Vec<_>>() {
                let origin = Origin { core: probed.home, who: Waiter::Nobody };
                home.post(Message::Home { unit: probed.unit, origin, request });
            }
            probed.is_in_place();
            if let (Some(Growth { done, .. }), Some(grown)) = (growth, grown) {
                let _ = done.send(grown.map_err(|error| format!("{}: {error}", probed.store.describe())));
            }
        }
        let is_in_place = probed.is_in_place();
        // It may hold the last reference to the store.
        drop(probed);
        let _ = last.send(is_in_place);
    })?;
    Ok(StoreProber { begun, until, checked_at })
}

impl ProbedStore {
    /// What to report to the unit's home about the store's state, if anything.
    fn check(&mut self, now: Instant) -> Option<HomeRequest> {
        let (store, lun) = (&self.store, &self.name);
        match store.refresh() {
            Ok(changed) => {
                self.logged = None;
                if self.failed.take().is_some() {
                    tracing::warn!(%lun, "the store is back: {}", store.describe());
                    self.events.report(|| Event::StoreBack { lun: lun.clone() });
                    return Some(HomeRequest::StoreChanged(store.traits()));
                }
                let traits = changed?;
                let Traits { size_bytes, discards, read_only, .. } = traits;
                tracing::info!(%lun, size_bytes, discards, read_only, "the store changed");
                Some(HomeRequest::StoreChanged(traits))
            }
            Err(error) => match &self.failed {
                None => {
                    tracing::error!(%lun, "the store failed, its LUNs are not ready: {error}");
                    self.events.report(|| Event::StoreLost { lun: lun.clone(), why: error.clone() });
                    (self.failed, self.logged) = (Some(error.clone()), Some(now));
                    Some(HomeRequest::StoreFailed(error.into()))
                }
                Some(last) => {
                    let is_quiet = self.logged.is_some_and(|at| now.saturating_duration_since(at) < QUIET);
                    if *last != error && !is_quiet {
                        tracing::error!(%lun, "its LUNs are still not ready: {error}");
                        (self.failed, self.logged) = (Some(error), Some(now));
                    }
                    None
                }
            },
        }
    }

    /// The same for the space that it takes.
    fn space(&mut self, now: Instant) -> Option<HomeRequest> {
        let space_meter = self.space_meter.as_mut().filter(|_| self.failed.is_none())?;
        space_meter.measure(&self.name, &*self.store, now, &self.events)
    }

    /// The same for resets.
    fn reset(&mut self) -> Option<HomeRequest> {
        let resets = self.store.resets();
        (std::mem::replace(&mut self.resets, resets) != resets).then_some(HomeRequest::StoreReset)
    }

    /// Whether what was written will be found by the store's path; each change of that is logged.
    fn is_in_place(&mut self) -> bool {
        let lun = &self.name;
        // While the system does not answer, its last answer stands.
        let misplaced = self.store.misplaced().unwrap_or_else(|_| self.misplaced.clone());
        let is_read_only = self.store.traits().read_only;
        if misplaced != self.misplaced {
            match &misplaced {
                None => {
                    tracing::warn!(%lun, "the store is at its path again: {}", self.store.describe())
                }
                Some(problem) if is_read_only => tracing::warn!(%lun, "{problem}"),
                Some(problem) => tracing::error!(%lun, "{problem}"),
            }
            self.misplaced = misplaced;
        }
        is_read_only || self.misplaced.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    /// Answers with a preset value.
    struct PresetStore(Mutex<Result<Option<Traits>, String>>, AtomicU64);

    impl Store for PresetStore {
        fn traits(&self) -> Traits {
            Traits { size_bytes: 7, ..Traits::NONE }
        }

        fn refresh(&self) -> Result<Option<Traits>, String> {
            self.0.lock().unwrap().clone()
        }

        fn resets(&self) -> u64 {
            self.1.load(Ordering::Relaxed)
        }

        fn describe(&self) -> String {
            "moody".into()
        }
    }

    fn probed_store(name: &str, store: Arc<dyn Store>) -> ProbedStore {
        ProbedStore {
            name: name.into(),
            unit: 0,
            home: 0,
            store,
            failed: None,
            logged: None,
            resets: 0,
            misplaced: None,
            events: Events::default(),
            space_meter: None,
        }
    }

    fn probed() -> (Arc<PresetStore>, ProbedStore) {
        let store = Arc::new(PresetStore(Mutex::new(Ok(None)), AtomicU64::new(0)));
        (store.clone(), probed_store("db", store))
    }

    #[test]
    fn resets_are_reported_once_each() {
        let (store, mut probed) = probed();
        assert!(probed.reset().is_none());
        store.1.store(2, Ordering::Relaxed);
        assert!(matches!(probed.reset(), Some(HomeRequest::StoreReset)));
        assert!(probed.reset().is_none());
    }

    #[test]
    fn a_store_that_goes_and_comes_back_is_reported_once_each() {
        let (store, mut probed) = probed();
        assert!(probed.check(Instant::now()).is_none());
        *store.0.lock().unwrap() = Err("unplugged".into());
        assert!(
            matches!(probed.check(Instant::now()), Some(HomeRequest::StoreFailed(why)) if &*why == "unplugged")
        );
        assert!(probed.check(Instant::now()).is_none());
        *store.0.lock().unwrap() = Ok(None);
        assert!(
            matches!(probed.check(Instant::now()), Some(HomeRequest::StoreChanged(traits)) if traits.size_bytes == 7)
        );
        assert!(probed.check(Instant::now()).is_none());
    }

    #[test]
    fn another_reason_is_logged_at_once_after_the_start_and_then_now_and_then() {
        let (store, mut probed) = probed();
        probed.failed = Some("it could not be opened within 2 seconds".into());
        let start = Instant::now();
        let mut logs = |reason: &str, after: Duration| {
            *store.0.lock().unwrap() = Err(reason.into());
            assert!(probed.check(start + after).is_none(), "the unit knows");
            probed.logged == Some(start + after) && probed.failed.as_deref() == Some(reason)
        };
        let second = Duration::from_secs(1);
        assert!(!logs("it could not be opened within 2 seconds", second));
        assert!(logs("wrong secret", second * 2));
        assert!(!logs("wrong secret", second * 3));
        assert!(!logs("refused", second * 3));
        assert!(logs("refused", second * 2 + QUIET));
        assert!(!logs("refused", second * 2 + QUIET * 2), "it is known");
    }

    /// Reports when it is checked, and then hangs on request.
    struct Hanging {
        checks: mpsc::Sender<&'static str>,
        name: &'static str,
        until: Option<Mutex<mpsc::Receiver<()>>>,
    }

    impl Store for Hanging {
        fn traits(&self) -> Traits {
            Traits::NONE
        }

        fn refresh(&self) -> Result<Option<Traits>, String> {
            let _ = self.checks.send(self.name);
            if let Some(until) = &self.until {
                let _ = until.lock().unwrap().recv();
            }
            Ok(None)
        }

        fn describe(&self) -> String {
            self.name.into()
        }
    }

    #[test]
    fn a_hung_store_does_not_keep_another_from_being_watched() {
        let (checks, looked) = mpsc::channel();
        let (release, until) = mpsc::channel::<()>();
        let home = reactor::mailbox::mesh::<Message>(1).unwrap();
        let prober = |name: &'static str, until| {
            let store = Arc::new(Hanging { checks: checks.clone(), name, until });
            let probed = probed_store(name, store);
            let prober = start(probed, home[0].sender(0)).unwrap();
            prober.begin();
            prober
        };
        let _hangs = prober("hangs", Some(Mutex::new(until)));
        assert_eq!(looked.recv(), Ok("hangs"));
        let lives = prober("lives", None);
        assert_eq!(looked.recv(), Ok("lives"));
        assert_eq!(looked.recv(), Ok("lives"));
        // Nothing waits for the one that hangs.
        drop((lives, _hangs));
        drop(release);
    }

    #[test]
    fn a_hung_store_is_not_grown_after_its_caller_has_timed_out() {
        /// Hangs while it is checked, and counts how often it grows.
        struct Slow(Hanging, AtomicU64);

        impl Store for Slow {
            fn traits(&self) -> Traits {
                Traits::NONE
            }

            fn refresh(&self) -> Result<Option<Traits>, String> {
                self.0.refresh()
            }

            fn grow(&self, _: u64) -> io::Result<()> {
                self.1.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }

            fn describe(&self) -> String {
                self.0.describe()
            }
        }

        let (checks, looked) = mpsc::channel();
        let (release, until) = mpsc::channel::<()>();
        let home = reactor::mailbox::mesh::<Message>(1).unwrap();
        let store = Arc::new(Slow(
            Hanging { checks, name: "slow", until: Some(Mutex::new(until)) },
            AtomicU64::new(0),
        ));
        let (_, probed) = probed();
        let prober = start(ProbedStore { store: store.clone(), ..probed }, home[0].sender(0)).unwrap();
        prober.begin();
        assert_eq!(looked.recv(), Ok("slow"));
        let patience = Patience::default();
        patience.end();
        assert_eq!(prober.grow(1 << 20, &patience), Err("its store does not answer".into()));
        drop(release);
        assert_eq!(looked.recv(), Ok("slow"));
        assert_eq!(store.1.load(Ordering::Relaxed), 0);
        prober.grow(1 << 20, &Patience::default()).unwrap();
        assert_eq!(store.1.load(Ordering::Relaxed), 1);
    }
}
