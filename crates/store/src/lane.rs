//! The interface between the engine and every store.

use reactor::io::{Completion, Io, Tag};
use scsi::storage::{Found, StoreError, Traits};
use std::io;
use std::sync::Arc;
use wire::{Places, Span};

/// An operation with its places. Like [`scsi::MediaOp`], but spans name the data.
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
        /// Durable before it completes.
        durable: bool,
        /// All or nothing, with respect to other operations and power loss.
        atomic: bool,
    },
    /// All writes that completed before become durable.
    Flush,
    /// The range reads as zeros.
    Zero {
        /// First byte on the medium.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Deallocate the space where possible.
        unmap: bool,
        /// Durable before it completes.
        durable: bool,
    },
    /// The range is no longer needed: it reads as zeros, or is unchanged on a store that cannot deallocate
    /// space.
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
        /// Durable before it completes.
        durable: bool,
    },
    /// Medium becomes medium OR places; atomic.
    OrWrite {
        /// First byte on the medium.
        offset: u64,
        /// The operand.
        from: Places,
        /// Durable before it completes.
        durable: bool,
    },
    /// Compare the medium with the places.
    Compare {
        /// First byte on the medium.
        offset: u64,
        /// The operand.
        with: Places,
    },
    /// Mapped or not, and for how many bytes that applies.
    Extent {
        /// First byte on the medium.
        offset: u64,
    },
}

/// Identifies an operation of one lane until it is complete; chosen by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OpId(pub u32);

/// A finished operation.
pub type Outcome = Result<Found, StoreError>;

/// The result of submitting an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// It is already complete.
    Done(Outcome),
    /// It will be reported by [`Lane::completed`] or [`Lane::flush`]; its places stay borrowed until then.
    Later,
}

/// A backing store, shared by cores.
pub trait Store: Send + Sync {
    /// The store's present properties (its size may change: see [`Store::refresh`]).
    fn traits(&self) -> Traits;

    /// Checks whether the size has changed; returns the new traits if so. Called about once a second, off the
    /// datapath; may block.
    ///
    /// # Errors
    /// Why the store is unreachable, if it is. It may come back: call again.
    fn refresh(&self) -> Result<Option<Traits>, String>;

    /// Why the path that the store was opened by no longer leads to it, with the fix. Called as often as
    /// [`Store::refresh`]; may block.
    ///
    /// # Errors
    /// When the system does not answer that.
    fn misplaced(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// Bytes that the store takes of the storage below, and how many more it can take, if it knows. Called as
    /// often as [`Store::refresh`] for thin units; may block and be slow.
    fn space(&self) -> Option<(u64, u64)> {
        None
    }

    /// How often the device below was reset (powered on, restarted), as far as the store knows.
    fn resets(&self) -> u64 {
        0
    }

    /// How many connections to its server are open; `None`: it has none, or has not counted them.
    fn open_connections(&self) -> Option<usize> {
        None
    }

    /// Grows it to this size, if it is smaller; [`Store::refresh`] reports that. May block.
    ///
    /// # Errors
    /// When it is larger, or cannot grow.
    fn grow(&self, _size_bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// One line for the log and for `serve`'s banner: kind, path, size.
    fn describe(&self) -> String;
}

/// A store that daemons share: one of them accesses it at a time, or all do. What returns a result blocks, for
/// a bounded time.
///
/// If all access it, an operation that changes it is reported only once its call has ended, or with
/// [`Failover::abandon`]: whoever is notified of its end may write something newer through another gateway,
/// which the call must not overwrite.
pub trait Failover: Store {
    /// The address of its client in the cluster, as in a blocklist; `None`: unknown.
    fn client(&self) -> Option<String>;

    /// Has the cluster fence the clients at these addresses, and takes the lock, even from one of these; then
    /// operations are accepted, and the traits are updated. Nothing that these clients have sent can
    /// overwrite what is written from then on. If all gateways access it, there is no lock.
    ///
    /// # Errors
    /// When another client has the lock, alive or not, or the cluster does not answer.
    fn promote(&self, fence: &[String]) -> Result<(), String>;

    /// Waits until this client's operations carry what the cluster has fenced so far; then operations are
    /// accepted, and the traits are updated. If all gateways access it.
    ///
    /// # Errors
    /// When the cluster does not answer.
    fn catch_up(&self) -> Result<(), String>;

    /// Has the cluster fence the clients at these addresses, and waits until this client's operations carry
    /// that.
    ///
    /// # Errors
    /// When the cluster does not answer.
    fn fence(&self, clients: &[String]) -> Result<(), String>;

    /// Whether operations have made no progress for too long. If all gateways access it, others then have to fence this
    /// client, as what it has begun may only end with its call; if only this one does, another one should try.
    fn is_stuck(&self) -> bool;

    /// Whether it gives its medium no new calls, at once, and until further notice. Calls that were begun end as they do;
    /// an operation that needs another one fails. Its home may wait for these before it goes to standby.
    fn suspend(&self, is_suspended: bool);

    /// This client's fence is complete: nothing that it has sent can overwrite anything that other gateways
    /// write. It accepts no operations any more, and reports those in flight.
    fn abandon(&self);

    /// Stops accepting operations, and releases the lock once those in flight have ended.
    ///
    /// # Errors
    /// When the lock could not be released: no operations are accepted all the same.
    fn demote(&self) -> Result<(), String>;

    /// Whether the cluster has fenced this client. Then none of its operations is reported as complete any
    /// more.
    fn is_fenced(&self) -> bool;

    /// Reopens it as another client, without the lock.
    ///
    /// # Errors
    /// Why it does not open.
    fn reopen(&self) -> Result<(), String>;
}

/// Opens lanes into a store for cores whose kernel is `I`.
pub trait Backend<I: Io>: Store {
    /// A core's lane into the store. `tags`: the first of [`LANE_TAGS`] consecutive completion tags that
    /// belong to this lane.
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>>;
}

/// Tags per lane: a lane may use `tags.0 .. tags.0 + LANE_TAGS`.
pub const LANE_TAGS: u64 = 1 << 32;

/// How much to request of [`Lane::work`] at a time where nothing else waits for the thread.
pub const WORK_BYTES: u64 = 2 << 20;

/// One core's private lane into a store.
pub trait Lane<I: Io> {
    /// The medium's own memory for a range, if this store is memory and the range may be sent from there.
    fn borrow(&mut self, offset: u64, len: u32) -> Option<Span>;

    /// Reads into places at once, if this store is memory: such a read needs no operation. False: the content
    /// of the places is undefined, and an operation has to read it, and report errors.
    fn read_now(&mut self, _io: &mut I, _offset: u64, _into: &Places) -> bool {
        false
    }

    /// Writes what is at `from` at once, if this store is memory: such a write needs no operation. Unless it
    /// `may_clear`, only where the system does not have to clear memory first. Returns how many bytes it
    /// cleared; `None`: an operation has to write it.
    fn write_now(&mut self, _io: &mut I, _offset: u64, _from: Places, _may_clear: bool) -> Option<u64> {
        None
    }

    /// Whether operations are done on submission, by the core's own thread: the caller should let others in
    /// between if it submits many.
    fn works_at_once(&self) -> bool {
        false
    }

    /// Whether threads of this process carry out its operations: a core that spins would keep the processor
    /// from them.
    fn waits_for_threads(&self) -> bool {
        false
    }

    /// Bytes of memory that the system clears for this operation before the store writes to them: the caller
    /// waits for that as well.
    fn fresh_bytes(&self, _op: &Op) -> u64 {
        0
    }

    /// Starts an operation.
    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted;

    /// A completion with a tag of this lane's range arrived. Finished operations are appended to `done`.
    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>);

    /// The end of a turn: submits what was gathered, retries what waited for another core. Returns whether
    /// anything still waits for another core (the core must not sleep long then).
    fn flush(&mut self, io: &mut I, done: &mut Vec<(OpId, Outcome)>) -> bool;

    /// Continues long operations that are done by the core's own thread, for about this many bytes. Returns
    /// how many bytes it was; 0: there is nothing to continue now. Nothing else continues them,
    /// [`Lane::flush`] included.
    fn work(&mut self, _io: &mut I, _bytes: u64, _done: &mut Vec<(OpId, Outcome)>) -> u64 {
        0
    }

    /// Checks deadlines, for retries and timeouts of stores that can be unreachable. Called four times a
    /// second while the core has connections, also for lanes that are not in use at the moment.
    fn tick(&mut self, _io: &mut I, _done: &mut Vec<(OpId, Outcome)>) {}

    /// Whether [`Lane::tick`] has work to do even without connections.
    fn wants_ticks(&self) -> bool {
        false
    }

    /// How often the store has lost, or may have lost, acknowledged writes that no flush had made durable. A
    /// successful flush says nothing about these: everyone who relied on one must get an error, once each.
    fn losses(&mut self) -> u64 {
        0
    }

    /// Cancels an operation that is no longer waited for. It is still reported, but what has not begun of it
    /// is not begun: it must not change the medium long after its initiator has gone.
    fn cancel(&mut self, _io: &mut I, _id: OpId) {}

    /// Whether acknowledged writes are not durable yet, as far as the store keeps track of them.
    fn is_dirty(&mut self) -> bool {
        false
    }

    /// Operations not yet reported.
    fn in_flight(&self) -> usize;

    /// Ends, with nothing in flight, before it is dropped while its core continues. False: completions are
    /// outstanding, and it has to be called again in later turns.
    fn close(&mut self, _io: &mut I) -> bool {
        true
    }
}
