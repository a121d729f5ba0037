//! What is to be done before a turn ends.

use crate::slots::Key;
use proto::services::TaskId;
use store::lane::{OpId, Outcome};

/// What a turn still has to do, and what it has found out so far.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Connections whose machines are to be fed.
    pub(super) to_serve: Vec<Key>,
    /// Connections that may owe something at the end of the turn.
    pub(super) to_flush: Vec<Key>,
    /// Scratch list of operations that have finished.
    pub(super) done: Vec<(OpId, Outcome)>,
    /// Scratch list of tasks whose data has been sent.
    pub(super) pushed: Vec<TaskId>,
    /// Sends begun in this turn have ended in it.
    pub(super) has_sent: bool,
    /// Sends at the end of the last turn have made something ready to run: the core does not sleep before its
    /// next turn.
    pub(super) is_unsettled: bool,
    /// Commands have ended with errors to report.
    pub(super) has_errors: bool,
}

impl Agenda {
    /// An empty agenda, with room for the usual amount.
    pub(super) fn new() -> Agenda {
        Agenda {
            to_serve: Vec::with_capacity(64),
            to_flush: Vec::with_capacity(64),
            done: Vec::with_capacity(64),
            pushed: Vec::with_capacity(256),
            has_sent: false,
            is_unsettled: false,
            has_errors: false,
        }
    }
}
