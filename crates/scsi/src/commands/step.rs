//! The steps that a command's program consists of, and what it sees while it decides the next.

use crate::state::home::{HomeReply, HomeRequest};
use crate::state::nexus::{NexusUnit, Reach};
use crate::state::unit::View;
use crate::vocabulary::command::Ending;
use crate::vocabulary::storage::{Found, MediaOp, StoreError};

/// What the core is to do next for a task.
#[derive(Debug)]
pub enum Step {
    /// Bring `len` bytes (at most [`CHUNK_BYTES`]) from offset `at` of the data-out to the start of the task's
    /// buffer. Then [`Event::Fetched`].
    Fetch {
        /// Offset in the data-out.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// Read `len` bytes of the medium and send them as data-in at offset `at`, from the store's own memory
    /// where possible. `end`: with GOOD status behind it, if successful; the task is then gone. Otherwise
    /// [`Event::Stored`] with the error, or [`Event::Pushed`].
    ReadPush {
        /// First byte on the medium.
        offset: u64,
        /// Bytes, at most [`CHUNK_BYTES`].
        len: u32,
        /// Offset in the data-in.
        at: u32,
        /// The ending, when this is the last data.
        end: Option<Ending>,
    },
    /// Run an operation on the medium of the unit with this number in [`Env::units`]; `None`: the task's own
    /// unit. Then [`Event::Stored`].
    Media {
        /// Which unit.
        unit: Option<u32>,
        /// What to do.
        op: MediaOp,
    },
    /// Send `len` bytes of the task's buffer from `buffer` on as data-in at offset `at`, followed by the
    /// ending if there is one (the task is then gone). The caller that runs the step truncates it to what the
    /// initiator accepts. Then [`Event::Pushed`].
    Push {
        /// Offset in the buffer.
        buffer: u32,
        /// Bytes.
        len: u32,
        /// Offset in the data-in.
        at: u32,
        /// The ending, when this is the last data.
        end: Option<Ending>,
    },
    /// Ask the unit's home. When every core has applied what it published: [`Event::Home`].
    Home(Box<HomeRequest>),
    /// Send the ending now but continue the program, which cannot be aborted from here on (SANITIZE, FORMAT
    /// UNIT). Its later `End` is not sent. Without an ending nothing is sent yet. Then [`Event::Detached`].
    Detach(Option<Ending>),
    /// The command has ended.
    End(Ending),
}

/// The result of the last step.
#[derive(Debug)]
pub enum Event {
    /// The first call.
    Start,
    /// The data-out is in the buffer.
    Fetched,
    /// A storage operation finished.
    Stored(Result<Found, StoreError>),
    /// The data-in has been sent; the buffer is free again.
    Pushed,
    /// The home's answer.
    Home(HomeReply),
    /// After [`Step::Detach`].
    Detached,
}

/// All units of the daemon as this core sees them.
pub trait Units {
    /// The one with this number ([`Unit::index`]).
    fn view(&self, number: u32) -> Option<&View>;

    /// A unit that `is_it` accepts.
    fn find(&self, is_it: &dyn Fn(&View) -> bool) -> Option<&View>;
}

/// What a program may read and change while it decides the next step.
pub struct Env<'a> {
    /// The unit as this core sees it.
    pub view: &'a View,
    /// The nexus's own state on this unit.
    pub nexus: &'a mut NexusUnit,
    /// Every unit of the daemon, for EXTENDED COPY; unit `n` of [`Step::Media`].
    pub units: &'a dyn Units,
    /// How this nexus reaches units, by number: copies must respect the access rules. Units that are missing
    /// here are not accessible.
    pub reach: &'a [(u32, Reach)],
    /// LUNs that this nexus sees, for REPORT LUNS, in their eight-byte form, ascending.
    pub luns: &'a [u64],
    /// The task's buffer: up to 64 KiB of it, contiguous. Empty when [`Exec::buffer_bytes`] requested none.
    pub buffer: &'a mut [u8],
}
