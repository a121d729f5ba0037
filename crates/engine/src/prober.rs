//! The thread that looks after stores: whether their size changed, whether they are gone or back. A store that hangs
//! hangs this thread and nothing else.

use crate::message::{Message, Origin, Waiter};
use reactor::mailbox::Sender;
use scsi::HomeRequest;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::lane::Store;

/// How often stores are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the prober looks after.
pub(crate) struct Prober {
    /// One for each unit.
    pub(crate) watched: Vec<Watched>,
    /// To the cores.
    pub(crate) cores: Vec<Sender<Message>>,
}

/// A unit's store.
pub(crate) struct Watched {
    /// The unit's name, for the log.
    pub(crate) name: String,
    /// Home core of the unit.
    pub(crate) home: usize,
    /// `None`: the unit is not to be served whatever its store says.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// Whether the unit was told last that its store has failed.
    pub(crate) has_failed: bool,
    /// Resets of its store ([`Store::resets`]) that the unit was told of.
    pub(crate) resets: u64,
}

impl Prober {
    /// Works until the other end of `until` is gone.
    pub(crate) fn run(mut self, until: &mpsc::Receiver<()>) {
        while until.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            for (unit, watched) in self.watched.iter_mut().enumerate() {
                for request in watched.reset().into_iter().chain(watched.look()) {
                    let origin = Origin { core: watched.home, who: Waiter::Nobody };
                    let message = Message::Home { unit: unit as u32, origin, request };
                    self.cores[watched.home].post(message);
                }
            }
        }
    }
}

impl Watched {
    /// What the unit's home is to be told, if anything, of the store's state.
    fn look(&mut self) -> Option<HomeRequest> {
        let store = self.store.as_ref()?;
        let lun = &self.name;
        match store.refresh() {
            Ok(changed) => {
                if std::mem::take(&mut self.has_failed) {
                    tracing::warn!(%lun, "the store is back: {}", store.describe());
                    return Some(HomeRequest::StoreChanged(store.traits()));
                }
                let traits = changed?;
                tracing::info!(%lun, size_bytes = traits.size_bytes, "the store changed its size");
                Some(HomeRequest::StoreChanged(traits))
            }
            Err(_) if self.has_failed => None,
            Err(error) => {
                self.has_failed = true;
                tracing::error!(%lun, "the store failed, its LUNs are not ready: {error}");
                Some(HomeRequest::StoreFailed(error.into()))
            }
        }
    }

    /// The same of resets.
    fn reset(&mut self) -> Option<HomeRequest> {
        let resets = self.store.as_ref()?.resets();
        (std::mem::replace(&mut self.resets, resets) != resets).then_some(HomeRequest::StoreReset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::storage::Traits;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Answers what was put in.
    struct Moody(Mutex<Result<Option<Traits>, String>>, AtomicU64);

    impl Store for Moody {
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

    fn watched() -> (Arc<Moody>, Watched) {
        let store = Arc::new(Moody(Mutex::new(Ok(None)), AtomicU64::new(0)));
        let name = "db".into();
        (store.clone(), Watched { name, home: 0, store: Some(store), has_failed: false, resets: 0 })
    }

    #[test]
    fn resets_are_told_once_each() {
        let (store, mut watched) = watched();
        assert!(watched.reset().is_none());
        store.1.store(2, Ordering::Relaxed);
        assert!(matches!(watched.reset(), Some(HomeRequest::StoreReset)));
        assert!(watched.reset().is_none());
    }

    #[test]
    fn a_store_that_goes_and_comes_back_is_told_once_each() {
        let (store, mut watched) = watched();
        assert!(watched.look().is_none());
        *store.0.lock().unwrap() = Err("unplugged".into());
        assert!(matches!(watched.look(), Some(HomeRequest::StoreFailed(why)) if &*why == "unplugged"));
        assert!(watched.look().is_none());
        *store.0.lock().unwrap() = Ok(None);
        assert!(matches!(watched.look(), Some(HomeRequest::StoreChanged(traits)) if traits.size_bytes == 7));
        assert!(watched.look().is_none());
    }
}
