//! Task management functions that have not been answered.

mod manage;

use crate::message::{Quiets, Requester};
use crate::slots::Key;
use proto::services::FunctionResponse;

/// A task management function that has not been answered yet.
#[derive(Debug)]
struct Function {
    requester: Requester,
    /// Aborted tasks that linger on this core.
    tasks: Vec<Key>,
    /// Outstanding answers of homes.
    homes: usize,
    /// Its connection has ended, and waits for these answers.
    is_awaited: bool,
    /// How many cores have yet to report it quiet; `None`: they were not asked.
    unquiesced_cores: Option<usize>,
    /// What has to be quiet.
    quiets: Quiets,
    /// The response to give then.
    response: FunctionResponse,
    /// Number of the target whose sessions end before the response, and the requester's with it (TARGET COLD
    /// RESET).
    cold: Option<usize>,
    /// How many cores have yet to report that its sessions have ended; `None`: they were not asked.
    unclosed: Option<usize>,
}

/// Functions that have not been answered yet.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Those that arrived on this core.
    open: Vec<Function>,
    /// Those, of any core, that wait until nothing of what they have ended is under way here.
    pub(super) requesters: Vec<(Requester, Quiets)>,
}

impl Functions {
    /// Whether any of them arrived on this connection.
    pub(super) fn are_of(&self, connection: Key) -> bool {
        self.open.iter().any(|function| function.is_of(connection))
    }
}

impl Function {
    /// Whether it arrived on this connection.
    fn is_of(&self, connection: Key) -> bool {
        self.requester.connection == connection
    }
}
