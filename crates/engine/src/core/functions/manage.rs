//! Task management functions (SAM-5 section 7): each is answered, and only when no task that it covers can
//! touch the medium any more. Over SRP, whose channels share a nexus, RDMA of such tasks on other channels
//! must also have ended: what is sent on one channel does not wait for another, and after the response the
//! initiator reuses its buffers.

use super::Function;
use crate::core::Core;
use crate::core::connection::COLD_RESET;
use crate::core::lun::{LunState, NO_UNIT};
use crate::core::session::group;
use crate::core::task::Task;
use crate::message::{Message, Origin, Quiets, Requester, Waiter};
use crate::slots::Key;
use proto::services::Function as Asked;
use proto::services::{Down, FunctionId, FunctionResponse};
use reactor::io::Io;
use scsi::home::Aborted;
use scsi::{HomeReply, HomeRequest};
use std::sync::Arc;

impl<I: Io> Core<I> {
    /// A task management request arrived.
    pub(in crate::core) fn function(&mut self, connection: Key, id: FunctionId, lun: u64, asked: Asked) {
        let Some(conn) = self.connections.get(connection) else { return };
        let unit = |state: &LunState| state.unit;
        // Including LUNs that are being removed: what was begun there continues.
        let named = |number: u16| conn.luns.iter().filter(move |state| state.is_or_was(number)).map(unit);
        let units: Vec<u32> = wire::scsi::lun::number(lun).into_iter().flat_map(named).collect();
        let from = conn.nexus;
        if reaches_others(asked) && group(&self.served, &conn.facts).is_some_and(|group| group.read_only) {
            return self.function_done(connection, id, FunctionResponse::NotAuthorized);
        }
        // A single task belongs to this channel, whose machine does the waiting itself.
        let is_of_channels = conn.machine.is_srp() && !matches!(asked, Asked::AbortTask(_));
        let requester = Requester { core: self.me, connection, id, nexus: from };
        let mut function = Function {
            requester,
            tasks: Vec::new(),
            homes: 0,
            is_awaited: false,
            unquiesced_cores: (!is_of_channels).then_some(0),
            quiets: Quiets { units: Arc::default(), of_all: reaches_others(asked) },
            response: FunctionResponse::Complete,
            cold: None,
            unclosed: Some(0),
        };
        let all = |units: Vec<u32>, request: HomeRequest| -> Vec<(u32, HomeRequest)> {
            units.into_iter().map(|unit| (unit, request.clone())).collect()
        };
        let unit_wide = |request| (!units.is_empty()).then(|| all(units.clone(), request));
        let requests = match asked {
            Asked::AbortTask(task) => {
                let task = task.and_then(|task| conn.task(task));
                if task.is_none() {
                    function.response = FunctionResponse::NoTask;
                }
                (!units.is_empty()).then(|| {
                    self.abort_for(&mut function, &units, task);
                    Vec::new()
                })
            }
            Asked::AbortTaskSet => unit_wide(HomeRequest::AbortTaskSet { from }),
            Asked::ClearTaskSet => unit_wide(HomeRequest::ClearTaskSet { from }),
            Asked::LogicalUnitReset => unit_wide(HomeRequest::Reset { from: Some(from) }),
            Asked::TargetWarmReset | Asked::TargetColdReset => {
                function.cold = conn.facts.target_number().filter(|_| asked == Asked::TargetColdReset);
                function.unclosed = function.cold.is_none().then_some(0);
                let mut units: Vec<u32> =
                    conn.luns.iter().map(unit).filter(|unit| *unit != NO_UNIT).collect();
                units.sort_unstable();
                units.dedup();
                Some(all(units, HomeRequest::Reset { from: Some(from) }))
            }
            Asked::ClearAca => return self.function_done(connection, id, FunctionResponse::NotSupported),
        };
        let Some(requests) = requests else {
            return self.function_done(connection, id, FunctionResponse::NoUnit);
        };
        function.homes = requests.len();
        let shared = |(unit, _): &(u32, _)| self.is_shared(*unit).then_some(*unit);
        function.quiets.units = requests.iter().filter_map(shared).collect();
        if !function.quiets.units.is_empty() {
            function.unquiesced_cores = None;
        }
        for (unit, request) in requests {
            self.ask_home(unit, Waiter::Function(requester), request);
        }
        self.functions.open.push(function);
        self.answer_functions();
    }

    /// Aborts tasks, and has the function wait for the task that it names, whatever its LUN, and for whatever
    /// else of this initiator's was aborted on the unit before and may still take effect; on any unit, if the
    /// named task no longer exists, as it may have been one of those.
    fn abort_for(&mut self, function: &mut Function, units: &[u32], victim: Option<Key>) {
        if let Some(key) = victim {
            self.abort(key, Some(Aborted::Silently));
        }
        let origin = function.requester.connection;
        let ours = |key: Key, task: &Task| {
            task.aborted
                && task.origin == origin
                && (units.contains(&task.unit) || victim.is_none_or(|one| one == key))
        };
        let awaited = self.tasks.iter().filter(|(key, task)| ours(*key, task)).map(|(key, _)| key);
        function.tasks.extend(awaited);
    }

    /// A connection that ends waits for what its functions have requested of homes. Returns the number of
    /// outstanding answers. What another gateway has yet to do is recalled: a login that reinstates the session
    /// waits for it, too.
    pub(in crate::core) fn await_functions(&mut self, connection: Key) -> usize {
        self.recall_functions(connection);
        let functions = self.functions.open.iter_mut().filter(|function| function.is_of(connection));
        functions
            .map(|function| {
                function.is_awaited = true;
                function.homes
            })
            .sum()
    }

    fn recall_functions(&mut self, connection: Key) {
        let Some(conn) = self.connections.get(connection) else { return };
        let units = conn.luns.iter().map(|state| state.unit);
        let mut units: Vec<u32> = units.filter(|unit| self.is_shared(*unit)).collect();
        units.sort_unstable();
        units.dedup();
        let functions = self.functions.open.iter().filter(|one| one.is_of(connection) && one.homes > 0);
        let requesters: Vec<Requester> = functions.map(|function| function.requester).collect();
        for requester in requesters {
            let origin = Origin { core: self.me, who: Waiter::Function(requester) };
            for unit in &units {
                self.post(self.units[*unit].home_core, Message::Recall { unit: *unit, origin });
            }
        }
    }

    fn is_shared(&self, unit: u32) -> bool {
        self.units.get(unit).is_some_and(|unit| unit.view.unit.is_shared())
    }

    /// A home has answered one of the function's requests.
    pub(in crate::core) fn function_answered(&mut self, requester: Requester, reply: &HomeReply) {
        if let Some(function) =
            self.functions.open.iter_mut().find(|function| function.requester == requester)
        {
            if *reply != HomeReply::Done {
                function.response = FunctionResponse::Failed;
                (function.cold, function.unclosed) = (None, Some(0));
            }
            function.homes -= 1;
            let is_awaited = function.is_awaited;
            self.answer_functions();
            if is_awaited {
                self.home_released(requester.connection);
            }
        }
    }

    /// A core has no RDMA of the function's nexus under way.
    pub(in crate::core) fn nexus_quiesced(&mut self, requester: Requester) {
        let function = self.functions.open.iter_mut().find(|function| function.requester == requester);
        if let Some(unquiesced_cores) = function.and_then(|function| function.unquiesced_cores.as_mut()) {
            *unquiesced_cores -= 1;
            self.answer_functions();
        }
    }

    /// The sessions of a function's target have ended on a core.
    pub(in crate::core) fn function_closed(&mut self, requester: Requester) {
        let function = self.functions.open.iter_mut().find(|function| function.requester == requester);
        if let Some(unclosed) = function.and_then(|function| function.unclosed.as_mut()) {
            *unclosed -= 1;
            self.answer_functions();
        }
    }

    /// An aborted task has really ended.
    pub(in crate::core) fn function_settled(&mut self, task: Key) {
        for function in &mut self.functions.open {
            function.tasks.retain(|key| *key != task);
        }
        self.answer_functions();
    }

    fn answer_functions(&mut self) {
        let mut index = 0;
        while let Some(function) = self.functions.open.get(index) {
            let is_decided = function.homes == 0 && function.tasks.is_empty();
            if is_decided && function.unquiesced_cores.is_none() {
                self.quiesce_everywhere(index);
            }
            let is_quiet = is_decided && self.functions.open[index].unquiesced_cores == Some(0);
            if is_quiet && self.functions.open[index].unclosed.is_none() {
                self.close_target_everywhere(index);
            }
            if !is_quiet || self.functions.open[index].unclosed != Some(0) {
                index += 1;
                continue;
            }
            let function = self.functions.open.swap_remove(index);
            self.function_done(function.requester.connection, function.requester.id, function.response);
            if function.cold.is_some() {
                // What is owed, above all the response, is still sent.
                self.gone(function.requester.connection, COLD_RESET);
            }
        }
    }

    /// TARGET COLD RESET ends the sessions of all initiators, including those of units that the requester
    /// does not see.
    fn close_target_everywhere(&mut self, index: usize) {
        let cores = self.cores();
        let function = &mut self.functions.open[index];
        function.unclosed = Some(cores);
        let (Some(target), requester) = (function.cold, function.requester) else { return };
        for core in 0..cores {
            self.post(core, Message::CloseTarget { target, requester });
        }
    }

    fn quiesce_everywhere(&mut self, index: usize) {
        let cores = self.cores();
        let function = &mut self.functions.open[index];
        function.unquiesced_cores = Some(cores);
        let (requester, quiets) = (function.requester, function.quiets.clone());
        for core in 0..cores {
            self.post(core, Message::QuiesceNexus(requester, quiets.clone()));
        }
    }

    fn function_done(&mut self, connection: Key, id: FunctionId, response: FunctionResponse) {
        self.trace_response(connection, response);
        self.down(Some(connection), Down::FunctionDone { id, response });
    }
}

/// Whether it affects commands of other initiators, or more; members of a `read_only` group may not request
/// it.
fn reaches_others(asked: Asked) -> bool {
    match asked {
        Asked::ClearTaskSet | Asked::LogicalUnitReset | Asked::TargetWarmReset | Asked::TargetColdReset => {
            true
        }
        Asked::AbortTask(_) | Asked::AbortTaskSet | Asked::ClearAca => false,
    }
}

#[cfg(test)]
mod tests;
