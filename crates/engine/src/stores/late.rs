//! A store that did not open at start: its units are not ready, and it is tried again until it opens.

use super::failed::FailedLane;
use reactor::io::{Completion, Io, Tag};
use scsi::storage::Traits;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use store::OpenError;
use store::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use wire::Places;

/// Opens the store, of this size if it is another than before; blocks.
type Opener<I> = Box<dyn Fn(Option<u64>) -> Result<Arc<dyn Backend<I>>, OpenError> + Send + Sync>;

/// A store that may open later.
pub(super) struct LateStore<I: Io> {
    open: Opener<I>,
    opened: OnceLock<Arc<dyn Backend<I>>>,
    /// The size that it is to have since the configuration was changed.
    size_bytes: Mutex<Option<u64>>,
    name: String,
}

impl<I: Io> LateStore<I> {
    /// A store called `name` that did not open yet. Each [`Store::refresh`] tries again.
    pub(super) fn new(name: String, open: Opener<I>) -> Self {
        LateStore { open, opened: OnceLock::new(), size_bytes: Mutex::default(), name }
    }

    /// Opens it as the configuration has it by now: its file may have the size already, or have yet to grow to it.
    fn open(&self) -> Result<Arc<dyn Backend<I>>, String> {
        let size_bytes = *self.size_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |error: OpenError| error.to_string();
        let Some(size_bytes) = size_bytes else { return (self.open)(None).map_err(text) };
        let store = (self.open)(Some(size_bytes)).or_else(|error| (self.open)(None).map_err(|_| error));
        let store = store.map_err(text)?;
        store.grow(size_bytes).map_err(|error| format!("{}: {error}", store.describe()))?;
        Ok(store)
    }
}

impl<I: Io + 'static> Store for LateStore<I> {
    fn traits(&self) -> Traits {
        self.opened.get().map_or(Traits::NONE, |store| store.traits())
    }

    fn grow(&self, size_bytes: u64) -> io::Result<()> {
        match self.opened.get() {
            Some(store) => store.grow(size_bytes),
            None => {
                *self.size_bytes.lock().unwrap_or_else(PoisonError::into_inner) = Some(size_bytes);
                Ok(())
            }
        }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        if let Some(store) = self.opened.get() {
            return store.refresh();
        }
        let store = self.open()?;
        Ok(Some(self.opened.get_or_init(|| store).traits()))
    }

    fn space(&self) -> Option<(u64, u64)> {
        self.opened.get()?.space()
    }

    fn misplaced(&self) -> io::Result<Option<String>> {
        self.opened.get().map_or(Ok(None), |store| store.misplaced())
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

/// A core's way into the store, which it takes when there is one.
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
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Places> {
        self.lane().borrow(offset, len)
    }

    fn get(&mut self, io: &mut I, offset: u64, into: &Places) -> bool {
        self.lane().get(io, offset, into)
    }

    fn put(&mut self, io: &mut I, offset: u64, from: Places, may_clear: bool) -> Option<u64> {
        self.lane().put(io, offset, from, may_clear)
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
