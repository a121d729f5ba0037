//! How a command runs: through the steps of its program to its status.

use super::{Detached, State, Task, to_wire};
use crate::core::Core;
use crate::core::budget::Rest;
use crate::core::buffer::Purpose;
use crate::core::connection::Occupant;
use crate::core::connection::{Connection, note_command};
use crate::core::lun::NO_UNIT;
use crate::core::lun::find_lun;
use crate::core::unit::Unit;
use crate::message::{Message, Origin, Waiter};
use crate::slots::Key;
use proto::services::{self, Command, Down, TaskId};
use reactor::io::Io;
use scsi::attention::UnitAttention;
use scsi::command::Status;
use scsi::home::Aborted;
use scsi::nexus::Reach;
use scsi::storage::CHUNK_BYTES;
use scsi::{Attribute, Ending, Env, Event, Exec, HomeReply, HomeRequest, NexusUnit, Request, Step, View};
use store::lane::OpId;
use wire::Sense;
use wire::scsi::opcode;

/// Steps of one task before others have their turn.
const STEPS_MAX: usize = 16;

fn admit(
    view: &View,
    nexus: &mut NexusUnit,
    command: &Command,
    attribute: Attribute,
) -> Result<Exec, Ending> {
    let Command { cdb, read_bytes, write_bytes, .. } = command;
    view.admit(nexus, &Request { cdb, attribute, read_bytes: *read_bytes, write_bytes: *write_bytes })
}

impl<I: Io> Core<I> {
    /// A command arrived.
    pub(in crate::core) fn command(&mut self, connection: Key, command: Command) {
        self.trace_command(connection, &command);
        // A machine that sends its last may still pass up what it had: nobody would wait for it.
        let serving = |conn: &&mut Connection| !conn.has_ended();
        let Some(conn) = self.connections.get_mut(connection).filter(serving) else { return };
        let attribute = match command.attribute {
            services::Attribute::Simple | services::Attribute::Unknown(_) => Attribute::Simple,
            services::Attribute::Ordered => Attribute::Ordered,
            services::Attribute::HeadOfQueue => Attribute::HeadOfQueue,
            services::Attribute::Aca => Attribute::Aca,
        };
        note_command(&mut conn.facts, &mut conn.load.work, command.read_bytes, command.write_bytes);
        let Some(lun) = find_lun(&conn.luns, command.lun) else {
            return self.no_unit(connection, &command, attribute);
        };
        let unit = conn.luns[lun].unit;
        if let Some(throttle) = &mut conn.luns[lun].throttle
            && let Some(wait) = throttle.bars(&self.units[unit].view, &command, attribute, self.io.now())
        {
            let task = Task { lun, ..Task::new(connection, &command, attribute, unit) };
            return self.throttle_task(task, lun, wait);
        }
        if self.units[unit].gate.must_wait(attribute) {
            let key = self.insert(Task { lun, ..Task::new(connection, &command, attribute, unit) });
            self.units[unit].gate.wait(key);
            self.set_state(key, State::Waiting);
            self.take_unsolicited(key);
            return self.open_gate(unit);
        }
        self.units[unit].gate.begin();
        let admitted = admit(&self.units[unit].view, &mut conn.luns[lun].nexus, &command, attribute);
        let change = conn.machine.aoe_mut().and_then(|target| target.change(command.task));
        let change = change.filter(|_| admitted.is_ok());
        let claim = change.as_ref().and_then(|change| self.begin_change(unit, change).ok());
        if let Ok(exec) = &admitted
            && change.is_some() == claim.is_some()
            && (self.read_immediate(connection, unit, &command, exec)
                || self.write_immediate(connection, unit, &command, exec))
        {
            claim.iter().for_each(|claim| self.end_change(unit, claim));
            return;
        }
        if let Some(conn) = self.connections.get_mut(connection) {
            conn.answers.expect(false);
        }
        let task = Task::new(connection, &command, attribute, unit);
        let key = self.insert(Task { lun, gated: true, claim, ..task });
        self.admitted(key, admitted);
    }

    pub(in crate::core) fn insert(&mut self, task: Task) -> Key {
        let (origin, wire) = (task.origin, task.wire);
        let key = self.tasks.insert(Task { begun: self.io.now(), patience_nanos: self.stall_nanos, ..task });
        if let Some(conn) = self.connections.get_mut(origin) {
            conn.occupy(wire, Occupant::Task(key));
        }
        key
    }

    /// Admits a task that waited, and runs its program as far as possible.
    pub(in crate::core) fn start(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(conn) = task.connection.and_then(|connection| self.connections.get_mut(connection)) else {
            return;
        };
        task.gated = true;
        self.units[task.unit].gate.begin();
        task.state = State::Running;
        let (view, nexus) = (&self.units[task.unit].view, &mut conn.luns[task.lun].nexus);
        let admitted = admit(view, nexus, &task.command, task.attribute);
        self.admitted(key, admitted);
    }

    fn admitted(&mut self, key: Key, admitted: Result<Exec, Ending>) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (connection, is_report) = (task.origin, task.command.cdb.opcode() == opcode::REPORT_LUNS);
        match admitted {
            Err(ending) => {
                if ending.sense.is_some_and(|sense| sense.code() == UnitAttention::LunsChanged.code()) {
                    self.luns_reported(connection);
                }
                self.end(key, ending);
            }
            Ok(exec) => {
                task.exec = Some(exec);
                if is_report {
                    self.luns_reported(connection);
                }
                self.begin_admitted(key);
            }
        }
    }

    /// Begins a task that was admitted, unless something prevents it.
    pub(in crate::core) fn begin_admitted(&mut self, key: Key) {
        if !self.is_in_order(key) {
            return;
        }
        let Some(task) = self.tasks.get(key) else { return };
        let buffer_bytes =
            task.exec.as_ref().map_or(0, Exec::buffer_bytes).max(task.command.unsolicited_bytes);
        if self.borrow(key, buffer_bytes) {
            return self.begin(key);
        }
        let Some(task) = self.tasks.get(key) else { return };
        if task.buffer.len() >= buffer_bytes {
            return self.begin(key);
        }
        if !task.buffer.is_empty() {
            // It waited at the gate with a buffer only for its unsolicited data; the wait has ended, and the
            // initiator may retry.
            return self.end(key, refusal(Status::Busy));
        }
        if task.command.unsolicited_bytes == 0 {
            if self.take_or_wait(key, buffer_bytes, None) {
                self.begin(key);
            }
        } else if self.take_buffer(key, buffer_bytes, Purpose::Unsolicited).is_ok() {
            self.begin(key);
        } else {
            self.end(key, refusal(Status::TaskSetFull));
        }
    }

    /// Runs the program from its start. No program may access a buffer that unsolicited data is arriving in:
    /// only a WRITE begins before all of it is there, since its first step requests just that data.
    fn begin(&mut self, key: Key) {
        let is_write = self.tasks.get(key).and_then(|task| task.exec.as_ref()).is_some_and(Exec::is_write);
        if is_write {
            self.run_task(key, Event::Start);
        }
        self.take_unsolicited(key);
        match self.tasks.get_mut(key) {
            Some(task) if !is_write && task.missing.is_some() => task.state = State::Unsolicited,
            Some(_) if !is_write => self.run_task(key, Event::Start),
            Some(_) | None => {}
        }
    }

    /// The transport must know at once where unsolicited data belongs, even if the program has not requested
    /// it.
    pub(in crate::core) fn take_unsolicited(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if task.command.unsolicited_bytes == 0 || task.asked_bytes > 0 {
            return;
        }
        if task.buffer.is_empty() {
            let wanted = task.command.write_bytes.min(CHUNK_BYTES).max(task.command.unsolicited_bytes);
            if self.take_buffer(key, wanted, Purpose::Unsolicited).is_err() {
                return self.end(key, refusal(Status::TaskSetFull));
            }
        }
        let Some(task) = self.tasks.get(key) else { return };
        let len = task.command.unsolicited_bytes;
        self.ask(key, 0, len);
    }

    fn ask(&mut self, key: Key, at: u32, len: u32) {
        let moving = self.begin_moving(key, len);
        let Some(task) = self.tasks.get_mut(key) else { return };
        let from = task.asked_bytes;
        let into = task.buffer.slice(from - at, len);
        task.asked_bytes += len;
        task.missing = moving;
        let (connection, down) = (task.connection, Down::Fetch { task: task.wire, at: from, into });
        self.down(connection, down);
    }

    /// Runs the program until it has to wait, or has had its share of this turn.
    pub(in crate::core) fn run_task(&mut self, key: Key, event: Event) {
        let mut event = event;
        let before = self.budget.left();
        for _ in 0..STEPS_MAX {
            let Some(step) = self.next_step(key, event) else { return };
            match self.perform(key, step) {
                Some(next) => event = next,
                None => return,
            }
            if self.budget.has_shared(before) {
                break;
            }
        }
        self.defer(key, Rest::Event(event));
    }

    fn next_step(&mut self, key: Key, event: Event) -> Option<Step> {
        let task = self.tasks.get_mut(key)?;
        task.state = State::Running;
        let conn = task.connection.and_then(|connection| self.connections.get_mut(connection));
        let (nexus, luns, reach): (&mut NexusUnit, &[u64], &[(u32, Reach)]) = match (&mut task.detached, conn)
        {
            (Some(detached), _) => (&mut detached.nexus, &[], &detached.reach),
            (None, Some(conn)) => (&mut conn.luns[task.lun].nexus, &conn.lun_list, &conn.reach),
            (None, None) => return None,
        };
        let buffer = match task.buffer.iter().next() {
            // Borrowed data is for a WRITE, which does not access it; and the memory beside it may be lent to
            // a store.
            Some(span) if task.missing.is_none() && !task.borrowed => self.io.arena().bytes_mut(span),
            Some(_) | None => &mut [],
        };
        let mut env =
            Env { view: &self.units[task.unit].view, nexus, units: &self.units, reach, luns, buffer };
        task.exec.as_mut().map(|exec| exec.next(&mut env, event))
    }

    /// Performs one step; returns the event that follows, if it follows at once.
    pub(in crate::core) fn perform(&mut self, key: Key, step: Step) -> Option<Event> {
        match step {
            Step::Fetch { at, len } => self.fetch(key, at, len),
            Step::ReadPush { offset, len, at, end } => self.read_push(key, offset, len, at, end),
            Step::Media { unit, op } => self.media(key, unit, op),
            Step::Push { buffer, len, at, end } => {
                let from = self.tasks.get(key)?.buffer.slice(buffer, len);
                self.push(key, from, at, end)
            }
            Step::Home(request) => {
                let unit = self.tasks.get(key)?.unit;
                if matches!(*request, HomeRequest::EraseBegin { .. }) {
                    // Once the home has begun, the task continues whatever happens to its initiator: the unit
                    // must not be left marked as being erased with nothing erasing it.
                    self.keep_nexus(key);
                }
                self.set_state(key, State::AtHome);
                self.ask_home(unit, Waiter::Task(key), *request);
                None
            }
            Step::Detach(ending) => {
                self.detach(key, ending);
                Some(Event::Detached)
            }
            Step::End(ending) => {
                self.end(key, ending);
                None
            }
        }
    }

    fn fetch(&mut self, key: Key, at: u32, len: u32) -> Option<Event> {
        let task = self.tasks.get_mut(key)?;
        let upto = at + len;
        task.state = State::Fetching { at, upto };
        if task.missing.is_some() {
            // The unsolicited part is still arriving; the rest is requested after it.
            return None;
        }
        if task.asked_bytes >= upto {
            return Some(Event::Fetched);
        }
        let all = if task.asked_bytes == 0 { upto.max(task.command.unsolicited_bytes) } else { upto };
        let more = all - task.asked_bytes;
        self.ask(key, at, more);
        None
    }

    /// The data of the last `Fetch` is in place.
    pub(in crate::core) fn fetched(&mut self, key: Key) {
        self.has_moved(key);
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.missing = None;
        if task.state == State::Unsolicited {
            return self.run_task(key, Event::Start);
        }
        let State::Fetching { at, upto } = task.state else { return };
        if task.asked_bytes < upto {
            let more = upto - task.asked_bytes;
            return self.ask(key, at, more);
        }
        self.run_task(key, Event::Fetched);
    }

    /// The initiator violated the standard in the task's data; the transport ends the task.
    pub(in crate::core) fn fetch_failed(&mut self, key: Key, sense: &Sense) {
        self.trace_fetch_failed(key, sense);
        let ending = Ending { sense: Some(*sense), ..Ending::of(Status::CheckCondition) };
        self.count_task(key, Some(&ending));
        self.stop_moving(key);
        if let Some(task) = self.tasks.get_mut(key) {
            task.missing = None;
        }
        self.abort(key, None);
    }

    /// The unit's home answered.
    pub(in crate::core) fn home_answered(&mut self, origin: Origin, reply: HomeReply) {
        match origin.who {
            Waiter::Nobody => {}
            Waiter::Function(requester) => self.function_answered(requester, &reply),
            Waiter::Connection(key) => self.home_released(key),
            Waiter::Configuration(change) => self.configured(change),
            Waiter::Gateway(unit) => self.role_applied(unit, &reply),
            Waiter::OtherGateway(unit) => self.executed_for_other(unit, &reply),
            Waiter::Task(key) => self.task_answered(key, reply),
        }
    }

    fn task_answered(&mut self, key: Key, reply: HomeReply) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Some(detached) = &mut task.detached {
            detached.is_begun = true;
        }
        if task.aborted && !task.is_unstoppable() {
            return self.free_task(key);
        }
        let (was_aborted, held) = (std::mem::take(&mut task.aborted), task.held.take());
        if was_aborted {
            // It had begun before it was recalled.
            self.settled(key);
        }
        match held {
            Some(ending) => self.report_end(key, *ending),
            None => self.run_task(key, Event::Home(reply)),
        }
    }

    /// The task was aborted, and its request to the unit's home was dropped.
    pub(in crate::core) fn recalled(&mut self, key: Key) {
        if self.tasks.get(key).is_some() {
            self.free_task(key);
        }
    }

    /// Sends a request to the unit's home.
    pub(in crate::core) fn ask_home(&mut self, unit: u32, who: Waiter, request: HomeRequest) {
        let origin = Origin { core: self.me, who };
        self.post(self.units[unit].home_core, Message::Home { unit, origin, request });
    }

    /// The task outlives its session: it keeps what it needs of it.
    fn keep_nexus(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(conn) = task.connection.and_then(|connection| self.connections.get(connection)) else {
            return;
        };
        let nexus = conn.luns[task.lun].nexus.clone();
        let is_begun = task.detached.as_ref().is_some_and(|detached| detached.is_begun);
        let losses = self.units[task.unit].lane.losses();
        let reach = conn.reach.clone();
        task.detached = Some(Box::new(Detached { nexus, reach, is_begun, losses }));
    }

    fn detach(&mut self, key: Key, ending: Option<Ending>) {
        self.keep_nexus(key);
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (connection, wire, unit) = (task.connection, task.wire, task.unit);
        if std::mem::take(&mut task.gated) {
            self.leave_gate(unit, Some(key));
        }
        if let Some(ending) = ending {
            self.trace_task_end(key, &ending);
            self.count_task(key, Some(&ending));
            self.forget_connection(key);
            self.down(connection, Down::End { task: wire, ending: to_wire(ending) });
        }
    }

    /// Nothing more is sent for the task.
    fn forget_connection(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Some(conn) = task.connection.take().and_then(|connection| self.connections.get_mut(connection))
        {
            conn.vacate(task.wire);
        }
    }

    /// The command has ended.
    pub(super) fn end(&mut self, key: Key, ending: Ending) {
        let Some(task) = self.tasks.get(key) else { return };
        let (connection, unit) = (task.connection, task.unit);
        if let (Status::CheckCondition, Some(conn)) = (ending.status, connection)
            && ending.is_error()
            && self.units.get(unit).is_some_and(|unit| unit.view.policy.modes.queue_error != 0)
            && let Some(conn) = self.connections.get(conn)
        {
            let (from, read_only) = (conn.nexus, conn.luns[task.lun].nexus.read_only);
            // The status is sent only when no other command is left to be aborted, so that none the initiator
            // sends in response is.
            self.set_state(key, State::AtHome);
            if let Some(task) = self.tasks.get_mut(key) {
                task.held = Some(Box::new(ending));
            }
            return self.ask_home(unit, Waiter::Task(key), HomeRequest::QueueError { from, read_only });
        }
        self.report_end(key, ending);
    }

    fn report_end(&mut self, key: Key, ending: Ending) {
        let Some(task) = self.tasks.get(key) else { return };
        let (connection, wire) = (task.connection, task.wire);
        if ending.status == Status::CheckCondition {
            self.note_error(task.unit, &ending);
        }
        let Some(task) = self.tasks.get(key) else { return };
        // Nothing behind its data can be read before it is known where the data belongs.
        let is_unplaced = task.command.unsolicited_bytes > 0 && task.asked_bytes == 0;
        self.trace_task_end(key, &ending);
        self.count_task(key, Some(&ending));
        self.send_report(key);
        if is_unplaced || !self.holds_back(connection, wire, ending) {
            self.down(connection, Down::End { task: wire, ending: to_wire(ending) });
        }
        self.free_task(key);
    }

    /// Ends a task that waits at a LUN which is hidden from its session.
    pub(in crate::core) fn refuse_hidden_unit(&mut self, key: Key) {
        self.leave_throttle(key);
        self.report_end(key, scsi::hidden_unit());
    }

    /// Aborts a task; true when nothing of it is left that could still touch the medium. Without a `how`, the
    /// transport has already forgotten it.
    pub(in crate::core) fn abort(&mut self, key: Key, how: Option<Aborted>) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return true };
        if task.aborted {
            return !task.may_still_write();
        }
        let (connection, wire, is_unstoppable) = (task.connection, task.wire, task.is_unstoppable());
        let unit = task.unit;
        if let Some(how) = how {
            self.report_aborted(connection, wire, how);
            // A task without a connection was answered, and continues.
            if connection.is_some() {
                self.count_aborted(connection, unit);
            }
        }
        self.withdraw_report(key);
        self.forget_connection(key);
        self.recall_request(key);
        if is_unstoppable {
            return true;
        }
        let Some(task) = self.tasks.get_mut(key) else { return true };
        if let (State::Pushing { .. }, Task { unit, origin, .. }) = (task.state, task) {
            let (unit, origin) = (*unit, *origin);
            self.note_unsent(unit, origin);
        }
        let Some(task) = self.tasks.get_mut(key) else { return true };
        match task.state {
            State::Storing | State::Reading { .. } => {
                task.aborted = true;
                self.outlive(key);
                self.cancel_op(key);
                false
            }
            State::AtHome => {
                task.aborted = true;
                self.outlive(key);
                true
            }
            State::Throttled
            | State::Waiting
            | State::Overlapping
            | State::Starved
            | State::Unsolicited
            | State::Fetching { .. }
            | State::Pushing { .. }
            | State::Running => {
                self.forget(key);
                self.forget_starving(key);
                self.leave_throttle(key);
                self.free_task(key);
                true
            }
        }
    }

    /// Cancels the task's storage operation, on whichever of its units it runs.
    fn cancel_op(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key) else { return };
        let touched: Vec<u32> =
            self.units.iter().map(Unit::number).filter(|unit| task.touches(*unit)).collect();
        for unit in touched {
            self.units.lane(unit).cancel(&mut self.io, OpId(key.index));
        }
    }

    pub(in crate::core) fn report_aborted(&mut self, connection: Option<Key>, task: TaskId, how: Aborted) {
        self.trace_abort(connection, task, how);
        let down = match how {
            Aborted::WithStatus => Down::End { task, ending: to_wire(refusal(Status::TaskAborted)) },
            Aborted::Silently => Down::Abort { task },
        };
        self.down(connection, down);
    }

    pub(super) fn free_task(&mut self, key: Key) {
        self.quiesce_buffer(key);
        self.stop_moving(key);
        self.forget_connection(key);
        self.release_buffer(key);
        let Some(Task { gated, aborted, unit, claim, .. }) = self.tasks.get(key) else { return };
        let (gated, aborted, unit, claim) = (*gated, *aborted, *unit, *claim);
        self.tasks.free(key);
        if !self.changes.under_way.is_empty() {
            self.acknowledge_changes();
        }
        claim.iter().for_each(|claim| self.end_change(unit, claim));
        if gated {
            self.leave_gate(unit, Some(key));
        }
        if aborted {
            self.settled(key);
        }
    }

    pub(in crate::core) fn set_state(&mut self, key: Key, state: State) {
        if let Some(task) = self.tasks.get_mut(key) {
            task.state = state;
        }
    }

    /// A command to a LUN that does not exist.
    fn no_unit(&mut self, connection: Key, command: &Command, attribute: Attribute) {
        let Some(conn) = self.connections.get_mut(connection) else { return };
        let request = Request {
            cdb: &command.cdb,
            attribute,
            read_bytes: command.read_bytes,
            write_bytes: command.write_bytes,
        };
        let mut answer = Vec::new();
        let ending = scsi::no_unit(&request, &conn.lun_list, &mut answer);
        let len = u32::try_from(answer.len()).unwrap_or(u32::MAX).min(command.read_bytes);
        let key = self.insert(Task::new(connection, command, attribute, NO_UNIT));
        if len == 0 {
            return self.end(key, ending);
        }
        if self.take_buffer(key, len, Purpose::Step).is_err() {
            return self.end(key, refusal(Status::Busy));
        }
        let Some(buffer) = self.tasks.get(key).map(|task| task.buffer) else { return };
        let mut rest = answer.as_slice();
        for span in buffer.iter() {
            let (part, behind) = rest.split_at(span.len as usize);
            self.io.arena().bytes_mut(span).copy_from_slice(part);
            rest = behind;
        }
        self.push(key, buffer, 0, Some(ending));
    }
}

fn refusal(status: Status) -> Ending {
    Ending { status, sense: None, read_bytes: 0, write_bytes: 0 }
}
