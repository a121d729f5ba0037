//! Task management functions (SAM-5 section 7): every one is answered, and only when no task that it covers can touch
//! the medium any more.

use super::Core;
use crate::message::{Message, Waiter};
use crate::slots::Key;
use proto::verbs::Function as Asked;
use proto::verbs::{Down, FunctionId, FunctionResponse};
use reactor::io::Io;
use scsi::HomeRequest;
use scsi::home::Aborted;

/// A task management function that has not been answered yet.
#[derive(Debug)]
pub(super) struct Function {
    connection: Key,
    id: FunctionId,
    /// Aborted tasks that linger on this core.
    tasks: Vec<Key>,
    /// Answers of homes still to come.
    homes: usize,
    /// The answer then.
    response: FunctionResponse,
    /// Target whose sessions end with the answer (TARGET COLD RESET).
    cold: Option<usize>,
}

impl Function {
    /// Whether it came on this connection.
    pub(super) fn is_of(&self, connection: Key) -> bool {
        self.connection == connection
    }
}

impl<I: Io> Core<I> {
    /// A task management request arrived.
    pub(super) fn function(&mut self, connection: Key, id: FunctionId, lun: u64, asked: Asked) {
        let Some(conn) = self.connections.get(connection) else { return };
        let unit = conn.find_lun(lun).map(|index| conn.luns[index].unit);
        let from = conn.nexus;
        let response = FunctionResponse::Complete;
        let mut function = Function { connection, id, tasks: Vec::new(), homes: 0, response, cold: None };
        let unit_wide = |request: HomeRequest| unit.map(|unit| vec![(unit, request)]);
        let requests = match asked {
            Asked::AbortTask(task) => {
                let task = task.and_then(|task| conn.task(task));
                if task.is_none() {
                    function.response = FunctionResponse::NoTask;
                }
                unit.map(|unit| {
                    self.abort_for(&mut function, unit, task.into_iter().collect());
                    Vec::new()
                })
            }
            // Other channels of the nexus may be on other cores.
            Asked::AbortTaskSet if self.shared.registry.has_beside(conn.nexus.0, conn.facts.serial) => {
                unit_wide(HomeRequest::AbortTaskSet { from })
            }
            Asked::AbortTaskSet => unit.map(|unit| {
                self.abort_lent(connection, Some(unit), Aborted::Silently);
                let victims = self.tasks_of(connection, unit);
                self.abort_for(&mut function, unit, victims);
                Vec::new()
            }),
            Asked::ClearTaskSet => unit_wide(HomeRequest::ClearTaskSet { from }),
            Asked::LogicalUnitReset => unit_wide(HomeRequest::Reset { from: Some(from) }),
            Asked::TargetWarmReset | Asked::TargetColdReset => {
                function.cold = conn.facts.target.filter(|_| asked == Asked::TargetColdReset);
                let mut units: Vec<u32> = conn.luns.iter().map(|lun| lun.unit).collect();
                units.sort_unstable();
                units.dedup();
                Some(units.into_iter().map(|unit| (unit, HomeRequest::Reset { from: Some(from) })).collect())
            }
            Asked::ClearAca => return self.function_done(connection, id, FunctionResponse::NotSupported),
        };
        let Some(requests) = requests else {
            return self.function_done(connection, id, FunctionResponse::NoUnit);
        };
        function.homes = requests.len();
        for (unit, request) in requests {
            self.ask_home(unit, Waiter::Function(connection, id), request);
        }
        self.functions.push(function);
        self.answer_functions();
    }

    /// Aborts, and has the function wait for whatever of this initiator's was aborted on the unit, now or before, and
    /// may still take effect.
    fn abort_for(&mut self, function: &mut Function, unit: u32, victims: Vec<Key>) {
        for key in victims {
            self.abort(key, Some(Aborted::Silently));
        }
        let origin = function.connection;
        let ours = |task: &super::Task| task.aborted && task.origin == origin && task.unit == unit;
        function.tasks.extend(self.tasks.iter().filter(|(_, task)| ours(task)).map(|(key, _)| key));
    }

    fn tasks_of(&self, connection: Key, unit: u32) -> Vec<Key> {
        let ours = |task: &super::Task| task.connection == Some(connection) && task.unit == unit;
        self.tasks.iter().filter(|(_, task)| ours(task)).map(|(key, _)| key).collect()
    }

    /// A home has answered one of the function's requests.
    pub(super) fn function_answered(&mut self, connection: Key, id: FunctionId) {
        let ours = |function: &&mut Function| function.connection == connection && function.id == id;
        if let Some(function) = self.functions.iter_mut().find(ours) {
            function.homes -= 1;
            self.answer_functions();
        }
    }

    /// An aborted task is really gone.
    pub(super) fn function_settled(&mut self, task: Key) {
        for function in &mut self.functions {
            function.tasks.retain(|key| *key != task);
        }
        self.answer_functions();
    }

    fn answer_functions(&mut self) {
        let mut index = 0;
        while let Some(function) = self.functions.get(index) {
            if function.homes > 0 || !function.tasks.is_empty() {
                index += 1;
                continue;
            }
            let function = self.functions.swap_remove(index);
            self.function_done(function.connection, function.id, function.response);
            if let Some(target) = function.cold {
                for core in 0..self.cores() {
                    self.post(core, Message::CloseTarget { target });
                }
            }
        }
    }

    fn function_done(&mut self, connection: Key, id: FunctionId, response: FunctionResponse) {
        self.down(Some(connection), Down::FunctionDone { id, response });
    }
}
