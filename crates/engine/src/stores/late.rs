//! A store that did not open at start: its units are not ready, and it is retried until it opens.

use super::failed::FailedLane;
use reactor::io::{Completion, Io, Tag};
use scsi::storage::Traits;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use store::OpenError;
use store::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use wire::{Places, Span};

/// Opens the store, with this size if that has changed; blocks.
type Opener<I> = Box<dyn Fn(Option<u64>) -> Result<Arc<dyn Backend<I>>, OpenError> + Send + Sync>;

/// A store that may open later.
pub(super) struct LateStore<I: Io> {
    open: Opener<I>,
    opened: OnceLock<Arc<dyn Backend<I>>>,
    /// Its size, if the configuration was changed.
    size_bytes: Mutex<Option<u64>>,
    name: String,
}

impl<I: Io> LateStore<I> {
    /// A store called `name` that has not opened yet. Each [`Store::refresh`] retries.
    pub(super) fn new(name: String, open: Opener<I>) -> Self {
        LateStore { open, opened: OnceLock::new(), size_bytes: Mutex::default(), name }
    }

    /// Opens it as configured now: its file may already have the size, or have yet to grow to it. Opening
    /// takes time, during which the configuration may change.
    fn open(&self) -> Result<Traits, String> {
        let text = |error: OpenError| error.to_string();
        let mut wanted = *self.wanted();
        let as_before = |error| match wanted {
            Some(_) => (self.open)(None).map_err(|_| error),
            None => Err(error),
        };
        let store = (self.open)(wanted).or_else(as_before).map_err(text)?;
        loop {
            if let Some(size_bytes) = wanted {
                store.grow(size_bytes).map_err(|error| format!("{}: {error}", store.describe()))?;
            }
            let now = self.wanted();
            if *now == wanted {
                return Ok(self.opened.get_or_init(|| store).traits());
            }
            wanted = *now;
        }
    }

    fn wanted(&self) -> MutexGuard<'_, Option<u64>> {
        self.size_bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Io + 'static> Store for LateStore<I> {
    fn traits(&self) -> Traits {
        self.opened.get().map_or(Traits::NONE, |store| store.traits())
    }

    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        let mut wanted = self.wanted();
        match self.opened.get() {
            Some(store) => {
                drop(wanted);
                store.grow(size_bytes)
            }
            None => {
                *wanted = Some(size_bytes);
                Ok(())
            }
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        if let Some(store) = self.opened.get() {
            return store.refresh();
        }
        self.open().map(Some)
    }

    fn space(&self) -> Option<(u64, u64)> {
        self.opened.get()?.space()
    }

    fn misplaced(&self) -> io::Result<Option<String>> {
        self.opened.get().map_or(Ok(None), |store| store.misplaced())
    }

    fn open_connections(&self) -> Option<usize> {
        self.opened.get()?.open_connections()
    }

    fn resets(&self) -> u64 {
        self.opened.get().map_or(0, |store| store.resets())
    }

    fn describe(&self) -> String {
        self.opened.get().map_or_else(|| self.name.clone(), |store| store.describe())
    }
}

impl<I: Io + 'static> Backend<I> for LateStore<I> {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(LateLane { store: self, tags, lane: None, failed: FailedLane })
    }
}

/// A core's way into the store, which becomes usable when the store has opened.
struct LateLane<I: Io> {
    store: Arc<LateStore<I>>,
    tags: Tag,
    lane: Option<Box<dyn Lane<I>>>,
    failed: FailedLane,
}

impl<I: Io> LateLane<I> {
    fn lane(&mut self) -> &mut dyn Lane<I> {
        if self.lane.is_none()
            && let Some(store) = self.store.opened.get()
        {
            self.lane = Some(store.clone().lane(self.tags));
        }
        match &mut self.lane {
            Some(lane) => &mut **lane,
            None => &mut self.failed,
        }
    }
}

impl<I: Io> Lane<I> for LateLane<I> {
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span> {
        self.lane().borrow(offset, len)
    }

    fn read_now(&mut self, io: &mut I, offset: u64, into: &Places) -> bool {
        self.lane().read_now(io, offset, into)
    }

    fn write_now(&mut self, io: &mut I, offset: u64, from: Places, may_clear: bool) -> Option<u64> {
        self.lane().write_now(io, offset, from, may_clear)
    }

    fn works_at_once(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.works_at_once())
    }

    fn fresh_bytes(&self, op: &Op) -> u64 {
        self.lane.as_ref().map_or(0, |lane| lane.fresh_bytes(op))
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        self.lane().submit(io, id, op)
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        self.lane().completed(io, completion, done);
    }

    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool {
        self.lane().flush(io, done)
    }

    fn work(&mut self, io: &mut I, bytes: u64, done: &mut Vec<(OpId, Outcome)>) -> u64 {
        self.lane().work(io, bytes, done)
    }

    fn tick(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) {
        self.lane().tick(io, done);
    }

    fn cancel(&mut self, io: &mut I, id: OpId) {
        self.lane().cancel(io, id);
    }

    fn waits_for_threads(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.waits_for_threads())
    }

    fn wants_ticks(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.wants_ticks())
    }

    fn losses(&mut self) -> u64 {
        self.lane().losses()
    }

    fn is_dirty(&mut self) -> bool {
        self.lane().is_dirty()
    }

    fn in_flight(&self) -> usize {
        self.lane.as_ref().map_or(0, |lane| lane.in_flight())
    }

    fn close(&mut self, io: &mut I) -> bool {
        self.lane.as_mut().is_none_or(|lane| lane.close(io))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::uring::Uring;
    use std::sync::Weak;
    use store::file::Claim;

    #[test]
    fn a_size_that_is_changed_while_the_store_opens_holds() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(1 << 20).expect("it grows");
        let late: Arc<OnceLock<Weak<LateStore<Uring>>>> = Arc::default();
        let (path, of_opener) = (file.path().to_owned(), late.clone());
        let opener = move |size: Option<u64>| {
            let claim = Claim::to_serve(false);
            let store = store::file::open(&path, size, 512, claim)?;
            let late = of_opener.get().and_then(Weak::upgrade).expect("it is there");
            late.grow(2 << 20).expect("it is noted");
            Ok(store as Arc<dyn Backend<Uring>>)
        };
        let store = Arc::new(LateStore::new("disk".into(), Box::new(opener)));
        late.set(Arc::downgrade(&store)).expect("once");
        store.refresh().expect("it opens");
        assert_eq!(file.as_file().metadata().expect("a file").len(), 2 << 20);
        store.refresh().expect("it is checked again");
        assert_eq!(store.traits().size_bytes, 2 << 20);
    }
}
