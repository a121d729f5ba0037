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
    /// What was begun continues.
    Ending,
    /// The home knows that all has ended here.
    Quiet,
    /// All has ended everywhere; whether the store was flushed.
    Closing(bool),
}

/// A change of what is served that is being made on this core.
pub(super) struct ChangeHere {
    /// Who waits until it is made here.
    pub(super) done: Done,
    /// What homes answer with.
    pub(super) number: u64,
    /// Units that are being configured anew.
    pub(super) units: usize,
    /// Sessions that end for it.
    pub(super) sessions: Vec<Key>,
    /// Tasks that may still change what their initiators may not change any more.
    pub(super) tasks: Vec<Key>,
}

/// Changes that are being made on this core, oldest first: one that waits for what hangs does not hold up the next.
#[derive(Default)]
pub(super) struct ChangesHere {
    pub(super) under_way: Vec<ChangeHere>,
    next: u64,
}

impl ChangesHere {
    /// A change begins.
    pub(super) fn begin(&mut self, done: Done, units: usize, sessions: Vec<Key>, tasks: Vec<Key>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.under_way.push(ChangeHere { done, number, units, sessions, tasks });
        number
    }

    /// A unit was configured anew for one.
    pub(super) fn configured(&mut self, number: u64) {
        let mut all = self.under_way.iter_mut();
        all.find(|change| change.number == number).expect("it waits for its units").units -= 1;
    }
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
