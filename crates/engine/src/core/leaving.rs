//! How far the removal of a unit has come, on each core and at its home; and how far a core has come with a
//! change of what is served.

use crate::message::Done;
use crate::slots::Key;

/// A unit that is no longer shown.
pub(super) struct Leaving {
    /// Notified when it is released here.
    pub(super) done: Done,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// What was begun continues.
    Ending,
    /// The home knows that everything has ended here.
    Quiesced,
    /// Everything has ended everywhere; whether the store was flushed.
    Closing(bool),
}

/// A change of what is served, as it proceeds on this core.
pub(super) struct ChangeHere {
    /// Notified when it is complete here.
    pub(super) done: Done,
    /// The number that homes quote in their answers.
    pub(super) number: u64,
    /// Units that are being reconfigured.
    pub(super) units: usize,
    /// Sessions that it ends.
    pub(super) sessions: Vec<Key>,
    /// Tasks that may still change what their initiators may no longer change.
    pub(super) tasks: Vec<Key>,
}

/// Changes in progress on this core, oldest first: one that waits for something that hangs does not block the
/// next.
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

    /// A unit was reconfigured for one of them.
    pub(super) fn configured(&mut self, number: u64) {
        let mut all = self.under_way.iter_mut();
        all.find(|change| change.number == number).expect("it waits for its units").units -= 1;
    }
}

/// What the home of a unit keeps about its removal.
#[derive(Default)]
pub(super) struct RemovalState {
    /// Cores that are quiet.
    pub(super) quiesced_cores: usize,
    pub(super) flush: Flush,
}

/// How far a unit that is being removed is with flushing its store.
#[derive(Clone, Copy, Default)]
pub(super) enum Flush {
    /// It is still written to.
    #[default]
    Due,
    /// It is being flushed; the losses before that.
    Begun(u64),
    /// Whether it was flushed.
    Over(bool),
}
