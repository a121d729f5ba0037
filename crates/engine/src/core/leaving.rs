//! How far a unit is that leaves: on each core, and at its home; and how far a core is with a change of what is served.

use crate::message::Done;
use crate::slots::Key;

/// A unit that nobody is shown any more.
pub(super) struct Leaving {
    /// Who waits until it is released here.
    pub(super) done: Done,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// What was begun goes on.
    Ending,
    /// The home knows that all has ended here.
    Quiet,
    /// All has ended everywhere; whether the store was flushed.
    Closing(bool),
}

/// A change of what is served that is being made on this core.
#[derive(Default)]
pub(super) struct ChangeHere {
    /// Who waits until it is made here.
    pub(super) done: Option<Done>,
    /// Units that are being configured anew.
    pub(super) units: usize,
    /// Sessions that end for it.
    pub(super) sessions: Vec<Key>,
}

/// What the home of a unit that goes knows.
#[derive(Default)]
pub(super) struct Farewell {
    /// Cores that are quiet.
    pub(super) quiet: usize,
    pub(super) flush: Flush,
}

/// How far the store of a unit that leaves is.
#[derive(Clone, Copy, Default)]
pub(super) enum Flush {
    /// It is still written to.
    #[default]
    Due,
    /// It is being flushed.
    Begun,
    /// Whether it was flushed.
    Over(bool),
}
