//! The seam between the engine and every store.

use reactor::io::{Completion, Io, Tag};
use scsi::storage::{Found, StoreError, Traits};
use std::io;
use std::sync::Arc;
use wire::{Places, Span};

/// An operation with its places. As [`scsi::MediaOp`], but the data is named by spans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Medium to places.
    Read {
        /// First byte on the medium.
        offset: u64,
        /// Where it goes.
        into: Places,
    },
    /// Places to medium.
    Write {
        /// First byte on the medium.
        offset: u64,
        /// What is written.
        from: Places,
        /// Durable before it finishes.
        durable: bool,
        /// All or nothing towards other operations and power loss.
        atomic: bool,
    },
    /// All writes that finished before become durable.
    Flush,
    /// The range reads as zeros.
    Zero {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Give the space back where possible.
        unmap: bool,
        /// Durable before it finishes.
        durable: bool,
    },
    /// The range is not needed any more: it reads as zeros, or is left as it is by a store that cannot give space back.
    Discard {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Compare, and write if equal; atomic.
    CompareAndWrite {
        /// First byte on the medium.
        offset: u64,
        /// The compared bytes.
        compare: Places,
        /// The written bytes, as many.
        write: Places,
        /// Durable before it finishes.
        durable: bool,
    },
    /// Medium becomes medium OR places; atomic.
    OrWrite {
        /// First byte on the medium.
        offset: u64,
        /// The operand.
        from: Places,
        /// Durable before it finishes.
        durable: bool,
    },
    /// Compare the medium with the places.
    Compare {
        /// First byte on the medium.
        offset: u64,
        /// The operand.
        with: Places,
    },
    /// Mapped or not, and how far.
    Extent {
        /// First byte on the medium.
        offset: u64,
    },
}

/// Names an operation of one lane until it is done; chosen by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub u32);

/// A finished operation.
pub type Outcome = Result<Found, StoreError>;

/// What became of a submitted operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// It is done already.
    Done(Outcome),
    /// It will be reported by [`Lane::completed`] or [`Lane::flush`]; its places stay lent until then.
    Later,
}

/// A backing store, shared by cores.
pub trait Store: Send + Sync {
    /// What the store can do, at present (its size may change: see [`Store::refresh`]).
    fn traits(&self) -> Traits;

    /// Checks whether the size changed; returns the new traits if so. Called about once a second, off the datapath; may
    /// block.
    ///
    /// # Errors
    /// Why the store cannot be reached, if so. It may come back: call again.
    fn refresh(&self) -> Result<Option<Traits>, String>;

    /// Why the path that the store was opened by no longer leads to it, and how to fix that. Called as often
    /// as [`Store::refresh`]; may block.
    ///
    /// # Errors
    /// When the system does not say whether it does.
    fn misplaced(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// Bytes that the store takes of what it lies on, and that it can take more, if it knows. Called as often as
    /// [`Store::refresh`] of thin units; may block, and take time.
    fn space(&self) -> Option<(u64, u64)> {
        None
    }

    /// How often the device below was reset (powered on, restarted), as far as the store knows.
    fn resets(&self) -> u64 {
        0
    }

    /// Makes it so large, if it is smaller; [`Store::refresh`] finds that. May block.
    ///
    /// # Errors
    /// When it is larger, or cannot be made larger.
    fn grow(&self, _size_bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// One line for the log and for `serve`'s banner: kind, path, size.
    fn describe(&self) -> String;
}

/// A store that daemons share, of which one at a time writes to it. Everything blocks, for a bounded time.
pub trait Failover: Store {
    /// The address of the client that it is to its cluster, as a blocklist has it; `None`: not known.
    fn client(&self) -> Option<String>;

    /// Has the cluster refuse what the clients at these addresses send, and takes the lock, also of one of these; then operations are
    /// accepted, and the traits are those that it has by then. What any of the clients has sent cannot land over what is written from
    /// then on.
    ///
    /// # Errors
    /// When somebody else has the lock, alive or not, or the cluster does not answer.
    fn promote(&self, fence: &[String]) -> Result<(), String>;

    /// Accepts no more operations, and releases the lock once those under way have ended.
    ///
    /// # Errors
    /// When the lock could not be released: it is accepting none all the same.
    fn demote(&self) -> Result<(), String>;

    /// Whether the cluster refuses what this client sends. Then no operation of it is reported as done any more.
    fn is_fenced(&self) -> bool;

    /// Opens it again as another client, without the lock.
    ///
    /// # Errors
    /// Why it does not open.
    fn reopen(&self) -> Result<(), String>;
}

/// Opens lanes of a store for cores whose kernel is `I`.
pub trait Backend<I: Io>: Store {
    /// A core's way into the store. `tags`: the first of [`LANE_TAGS`] consecutive completion tags that belong to
    /// this lane.
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>>;
}

/// Tags per lane: a lane may use `tags.0 .. tags.0 + LANE_TAGS`.
pub const LANE_TAGS: u64 = 1 << 32;

/// What to ask of [`Lane::work`] at a time where nobody else waits for the thread.
pub const WORK_BYTES: u64 = 2 << 20;

/// One core's private way into a store.
pub trait Lane<I: Io> {
    /// The medium's own memory for a range, if this store is memory and the range may be sent from where it lies.
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span>;

    /// Reads into places at once, if this store is memory: such a read needs no operation. False: what the places hold is
    /// undefined, and an operation has to read it, and to report what is wrong.
    fn read_now(&mut self, _io: &mut I, _offset: u64, _into: &Places) -> bool {
        false
    }

    /// Writes what is at `from` at once, if this store is memory: such a write needs no operation. Unless it
    /// `may_clear`, not where the system has to clear memory first. Returns how many bytes it cleared;
    /// `None`: an operation has to write it.
    fn write_now(&mut self, _io: &mut I, _offset: u64, _from: Places, _may_clear: bool) -> Option<u64> {
        None
    }

    /// Whether operations are done where they are submitted, by the core's own thread: who submits many lets others in
    /// between.
    fn works_at_once(&self) -> bool {
        false
    }

    /// Whether threads of this process do what it has under way: a core that spins would keep the processor from them.
    fn waits_for_threads(&self) -> bool {
        false
    }

    /// Bytes of memory that the system clears for this operation before the store writes to them: who submits it waits for
    /// that as well.
    fn fresh_bytes(&self, _op: &Op) -> u64 {
        0
    }

    /// Starts an operation.
    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted;

    /// A completion whose tag is in this lane's range arrived. Finished operations are appended to `done`.
    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>);

    /// The end of a turn: submits what was gathered, retries what waited for another core. Returns whether
    /// something still waits for another core (the core must then not sleep long).
    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool;

    /// Continues, for about so many bytes, with what is long and done by the core's own thread. Returns how
    /// many bytes it was; 0: there is nothing to continue now. Nothing else continues it: [`Lane::flush`]
    /// does not.
    fn work(&mut self, _io: &mut I, _bytes: u64, _done: &mut Vec<(OpId, Outcome)>) -> u64 {
        0
    }

    /// Checks deadlines: stores that can be out of reach retry and time out by it. Called four times a second
    /// while the core has connections, also for lanes that nobody uses at the moment.
    fn tick(&mut self, _io: &mut I, _done: &mut Vec<(OpId, Outcome)>) {}

    /// Whether [`Lane::tick`] has something to do that is due to nobody who is connected.
    fn wants_ticks(&self) -> bool {
        false
    }

    /// How often the store lost writes that it had acknowledged and that no flush had made durable, or must
    /// fear so. A flush that succeeds says nothing of them: everyone who relied on one must get an error,
    /// once for each.
    fn losses(&mut self) -> u64 {
        0
    }

    /// Nobody waits for an operation any more. It is reported all the same, but what of it is not under way
    /// already is not begun: it must not change the medium long after its initiator has gone.
    fn cancel(&mut self, _io: &mut I, _id: OpId) {}

    /// Whether writes were acknowledged that nothing has made durable, as far as the store keeps count of them.
    fn is_dirty(&mut self) -> bool {
        false
    }

    /// Operations not yet reported.
    fn in_flight(&self) -> usize;

    /// Ends, with nothing in flight, before it is dropped while its core continues. False: it has completions to come, and is to
    /// be called again in later turns.
    fn close(&mut self, _io: &mut I) -> bool {
        true
    }
}
