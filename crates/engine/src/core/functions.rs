//! Task management functions that have not been answered.

mod manage;

use crate::message::Requester;
use crate::slots::Key;
use proto::services::FunctionResponse;

/// A task management function that has not been answered yet.
#[derive(Debug)]
struct Function {
    requester: Requester,
    /// Aborted tasks that linger on this core.
    tasks: Vec<Key>,
    /// Answers of homes still to come.
    homes: usize,
    /// Its connection has ended, and waits for these answers.
    is_awaited: bool,
    /// Cores that have not said that its nexus is quiet; `None`: they were not asked.
    unquiet: Option<usize>,
    /// The answer then.
    response: FunctionResponse,
    /// Number of the target whose sessions end before the answer, and the asker's with it (TARGET COLD RESET).
    cold: Option<usize>,
    /// Cores that have not said that its sessions have ended; `None`: they were not asked.
    unclosed: Option<usize>,
}

/// Functions that have not been answered yet.
#[derive(Debug, Default)]
pub(super) struct Functions {
    /// Those that came here.
    open: Vec<Function>,
    /// Those, of whatever core, that wait until no RDMA of their nexus's tasks is under way here.
    pub(super) requesters: Vec<Requester>,
}

impl Functions {
    /// Whether one came on this connection.
    pub(super) fn are_of(&self, connection: Key) -> bool {
        self.open.iter().any(|function| function.is_of(connection))
    }
}

impl Function {
    /// Whether it came on this connection.
    fn is_of(&self, connection: Key) -> bool {
        self.requester.connection == connection
    }
}
