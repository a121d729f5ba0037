//! The commands of a session: which wait, which are in flight, and what happens to each when it ends.

use super::{Attentions, Command, Ending, Finished, Moved};
use crate::carrier::Carrier;
use proto::iscsi::initiator::{Completion, Ended, Outcome, Residual};
use proto::services::TaskId;
use proto::time::Time;
use std::collections::VecDeque;
use std::time::Duration;
use wire::SenseKey;
use wire::scsi::{code, status};

/// The most commands of a session, sent or not.
pub const COMMANDS_MAX: usize = 8192;
/// How often one command is resent for a transient reason, such as a unit attention: the first time at once,
/// then after a pause, unless it is another unit attention than the last.
const RETRIES_MAX: u8 = 16;
/// The last of these retries that may be without a pause.
const PROMPT_MAX: u8 = 4;
/// How long a command waits that the target was too busy for, or refuses again: the first time, and at most.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_secs(1);

pub(super) struct Queue {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots to be sent, the next one first.
    waiting: VecDeque<u32>,
    /// Slots that wait for a certain time.
    delayed: Vec<u32>,
    /// The slot of each task of the connection.
    by_task: Vec<u32>,
    /// Commands so far.
    count: u64,
    /// What the unit has reported.
    pub(super) attentions: Attentions,
    /// A command after the revalidation has succeeded on this connection.
    has_answered: bool,
}

#[derive(Clone, Copy)]
struct Slot {
    command: Command,
    state: State,
    /// It belongs to the revalidation that precedes everything else; it ends with its connection.
    is_question: bool,
    /// It was sent, has not been answered, and nothing has proven that its session has ended: the target may
    /// still execute it.
    may_land: bool,
    /// Its number in the order of arrival.
    number: u64,
    retries: u8,
    /// The last unit attention that it ended with; initially 0, which is none.
    attention: u16,
    /// How often it has waited before it was resent.
    pauses: u8,
    /// It is cancelled: it is not resent.
    is_cancelled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Waiting,
    Delayed(Time),
    Sent(TaskId),
}

/// What to do with a command that has ended on the wire.
enum Verdict {
    Report(Ending),
    Retry,
    Delay,
}

impl Slot {
    fn new(command: &Command, is_question: bool, number: u64) -> Slot {
        Slot {
            command: *command,
            state: State::Waiting,
            is_question,
            may_land: false,
            number,
            retries: 0,
            attention: 0,
            pauses: 0,
            is_cancelled: false,
        }
    }

    /// The same in place: a command is large.
    fn begin(&mut self, command: &Command, is_question: bool, number: u64) {
        self.command = *command;
        (self.state, self.number) = (State::Waiting, number);
        (self.is_question, self.may_land, self.is_cancelled) = (is_question, false, false);
        (self.retries, self.attention, self.pauses) = (0, 0, 0);
    }
}

impl Queue {
    pub(super) fn new(depth: u16) -> Queue {
        let depth = usize::from(depth);
        Queue {
            slots: Vec::with_capacity(depth),
            free: Vec::with_capacity(depth),
            waiting: VecDeque::with_capacity(depth),
            delayed: Vec::with_capacity(depth),
            by_task: vec![0; depth],
            count: 0,
            attentions: Attentions::default(),
            has_answered: false,
        }
    }

    /// Commands that have not ended.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds a command; false when there are too many. A query precedes all others.
    pub(super) fn push(&mut self, command: &Command, is_question: bool) -> bool {
        let number = self.count;
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize].begin(command, is_question, number);
                index
            }
            None if self.slots.len() >= COMMANDS_MAX => return false,
            None => {
                self.slots.push(Slot::new(command, is_question, number));
                (self.slots.len() - 1) as u32
            }
        };
        self.count += 1;
        match is_question {
            true => self.waiting.push_front(index),
            false => self.waiting.push_back(index),
        }
        true
    }

    /// A session has begun.
    pub(super) fn begun(&mut self) {
        self.has_answered = false;
    }

    /// Whether a command after the revalidation has succeeded on this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// What earlier sessions have sent can no longer be executed.
    pub(super) fn proven(&mut self) {
        let is_old = |slot: &&mut Slot| !matches!(slot.state, State::Sent(_));
        self.slots.iter_mut().filter(is_old).for_each(|slot| slot.may_land = false);
    }

    /// The commands with data-out that the target may still execute.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = u32> {
        let is_unsettled = |slot: &&Slot| slot.may_land && !slot.command.request.write.is_empty();
        let slots = self.slots.iter().filter(|slot| slot.state != State::Free && !slot.is_question);
        slots.filter(is_unsettled).map(|slot| slot.command.cookie)
    }

    /// Gives the machine as many commands as it accepts; unless `is_open`, only queries.
    pub(super) fn send(&mut self, machine: &mut Carrier, is_open: bool) {
        while let Some(index) = self.waiting.front().copied() {
            let slot = &mut self.slots[index as usize];
            if !is_open && !slot.is_question {
                return;
            }
            let Some(task) = machine.submit(slot.command.request) else { return };
            (slot.state, slot.may_land) = (State::Sent(task), true);
            self.by_task[usize::from(task.slot)] = index;
            self.waiting.pop_front();
        }
    }

    /// The slot of a command that was sent as this task. If a machine has ended the task at once, its number
    /// may belong to a later one by now.
    fn find(&self, task: TaskId) -> Option<u32> {
        let is_it = |slot: &Slot| slot.state == State::Sent(task);
        let last = self.by_task[usize::from(task.slot)];
        match self.slots.get(last as usize).is_some_and(is_it) {
            true => Some(last),
            false => self.slots.iter().position(is_it).map(|index| index as u32),
        }
    }

    /// A command has ended with GOOD status.
    pub(super) fn ended(&mut self, ended: &Ended, finished: &mut Vec<Finished>) {
        let Some(index) = self.find(ended.task) else { return };
        let slot = &mut self.slots[index as usize];
        slot.may_land = false;
        self.has_answered |= !slot.is_question;
        let Ended { read_bytes, write_bytes, .. } = *ended;
        let moved = Moved { read_bytes, write_bytes, residual: Residual::None };
        self.finish(index, Ending::Good(moved), finished);
    }

    /// A command has ended on the wire.
    pub(super) fn completed(&mut self, completion: &Completion, now: Time, finished: &mut Vec<Finished>) {
        let Some(index) = self.find(completion.task) else { return };
        self.slots[index as usize].may_land = false;
        let verdict = match self.verdict_of(index, completion) {
            Verdict::Retry | Verdict::Delay if self.slots[index as usize].is_cancelled => {
                Verdict::Report(Ending::Lost { may_land: false })
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Report(ending) => self.finish(index, ending, finished),
            Verdict::Retry => {
                self.slots[index as usize].state = State::Waiting;
                self.waiting.push_front(index);
            }
            Verdict::Delay => {
                let slot = &mut self.slots[index as usize];
                let delay = DELAY_MIN.saturating_mul(1 << slot.pauses.min(16)).min(DELAY_MAX);
                slot.pauses = slot.pauses.saturating_add(1);
                slot.state = State::Delayed(now.after(delay));
                self.delayed.push(index);
            }
        }
    }

    fn verdict_of(&mut self, index: u32, completion: &Completion) -> Verdict {
        let slot = &mut self.slots[index as usize];
        let safe = slot.command.repeatable;
        let Completion { read_bytes, write_bytes, residual, .. } = *completion;
        let moved = Moved { read_bytes, write_bytes, residual };
        let mut is_news = slot.retries == 0;
        let (verdict, ending) = match completion.outcome {
            Outcome::Status { status: status::GOOD, .. } => {
                self.has_answered |= !slot.is_question;
                return Verdict::Report(Ending::Good(moved));
            }
            Outcome::Status { status: status @ (status::BUSY | status::TASK_SET_FULL), .. } => {
                (Verdict::Delay, Ending::Status { status, sense: None, moved })
            }
            Outcome::Status { status, sense } => {
                let ending = Ending::Status { status, sense, moved };
                let (key, additional) = sense.as_ref().map_or((None, 0), |sense| (sense.key(), sense.code()));
                match (status, key) {
                    (status::CHECK_CONDITION, Some(SenseKey::UnitAttention)) => {
                        // A new nexus gets unit attentions for resets that did not happen (SAM-5 section
                        // 5.14.1).
                        self.attentions.note(additional, self.has_answered);
                        // A new nexus gets one for each event (SAM-5 section 5.14).
                        is_news |= additional != slot.attention && slot.retries < PROMPT_MAX;
                        slot.attention = additional;
                        (Verdict::Retry, ending)
                    }
                    (status::CHECK_CONDITION, Some(SenseKey::NotReady))
                        if additional == code::BECOMING_READY =>
                    {
                        (Verdict::Delay, ending)
                    }
                    (status::CHECK_CONDITION, Some(SenseKey::AbortedCommand)) if safe => {
                        (Verdict::Retry, ending)
                    }
                    (status::TASK_ABORTED, _) if safe => (Verdict::Retry, ending),
                    _ => return Verdict::Report(ending),
                }
            }
            Outcome::TargetFailure(_) | Outcome::Rejected(_) | Outcome::Aborted if safe => {
                (Verdict::Retry, Ending::Lost { may_land: false })
            }
            Outcome::TargetFailure(_) | Outcome::Rejected(_) | Outcome::Aborted => {
                return Verdict::Report(Ending::Lost { may_land: false });
            }
        };
        match verdict {
            Verdict::Retry if slot.retries >= RETRIES_MAX => Verdict::Report(ending),
            Verdict::Retry => {
                slot.retries += 1;
                if is_news { Verdict::Retry } else { Verdict::Delay }
            }
            Verdict::Delay if !slot.command.patient => Verdict::Report(ending),
            Verdict::Delay | Verdict::Report(_) => verdict,
        }
    }

    /// A command is not to be sent any more. It ends now, unless the target has it, as this task.
    pub(super) fn cancel(&mut self, cookie: u32, finished: &mut Vec<Finished>) -> Option<TaskId> {
        let is_it =
            |slot: &Slot| slot.state != State::Free && !slot.is_question && slot.command.cookie == cookie;
        let index = self.slots.iter().position(is_it)?;
        self.drop_slot(index, finished)
    }

    /// The machine has forgotten the task of a cancelled command: it ends now.
    pub(super) fn forgotten(&mut self, task: TaskId, finished: &mut Vec<Finished>) {
        if let Some(index) = self.find(task) {
            self.lose(index, finished);
        }
    }

    /// The query is not to be sent any more. It ends now, unless the target has it, as this task.
    pub(super) fn withdraw(&mut self, finished: &mut Vec<Finished>) -> Option<TaskId> {
        let index = self.slots.iter().position(|slot| slot.state != State::Free && slot.is_question)?;
        self.drop_slot(index, finished)
    }

    fn drop_slot(&mut self, index: usize, finished: &mut Vec<Finished>) -> Option<TaskId> {
        match self.slots[index].state {
            State::Sent(task) => {
                self.slots[index].is_cancelled = true;
                Some(task)
            }
            State::Free => None,
            State::Waiting | State::Delayed(_) => {
                self.drop_waiting(index as u32, finished);
                None
            }
        }
    }

    /// The connection has ended: what was sent is resent on the next one, if that does no harm.
    pub(super) fn lost(&mut self, finished: &mut Vec<Finished>) {
        let mut retries = Vec::new();
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            match slot.state {
                State::Free => {}
                State::Waiting | State::Delayed(_) | State::Sent(_) if slot.is_question => {
                    self.drop_waiting(index as u32, finished);
                }
                State::Waiting | State::Delayed(_) => {}
                State::Sent(_) if slot.command.repeatable && !slot.is_cancelled => {
                    slot.state = State::Waiting;
                    retries.push(index as u32);
                }
                State::Sent(_) => self.lose(index as u32, finished),
            }
        }
        retries.sort_by_key(|index| self.slots[*index as usize].number);
        retries.into_iter().rev().for_each(|index| self.waiting.push_front(index));
    }

    /// Moves commands whose time has come to those waiting to be sent.
    pub(super) fn wake(&mut self, now: Time) {
        let (slots, waiting) = (&mut self.slots, &mut self.waiting);
        self.delayed.retain(|index| {
            let slot = &mut slots[*index as usize];
            match slot.state {
                State::Delayed(until) if now < until => true,
                State::Delayed(_) => {
                    slot.state = State::Waiting;
                    match slot.is_question {
                        true => waiting.push_front(*index),
                        false => waiting.push_back(*index),
                    }
                    false
                }
                State::Free | State::Waiting | State::Sent(_) => false,
            }
        });
    }

    /// Ends what has waited for `at_most` and is not at the target. True: something that is at the target has
    /// waited as long.
    pub(super) fn expire(&mut self, now: Time, at_most: Duration, finished: &mut Vec<Finished>) -> bool {
        let mut overdue = false;
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            if slot.state == State::Free || now.since(slot.command.since) < at_most {
                continue;
            }
            match slot.state {
                State::Sent(_) => overdue = true,
                State::Free => {}
                State::Waiting | State::Delayed(_) => self.drop_waiting(index as u32, finished),
            }
        }
        overdue
    }

    fn drop_waiting(&mut self, index: u32, finished: &mut Vec<Finished>) {
        self.waiting.retain(|other| *other != index);
        self.delayed.retain(|other| *other != index);
        self.lose(index, finished);
    }

    fn lose(&mut self, index: u32, finished: &mut Vec<Finished>) {
        let may_land = self.slots[index as usize].may_land;
        self.finish(index, Ending::Lost { may_land }, finished);
    }

    fn finish(&mut self, index: u32, ending: Ending, finished: &mut Vec<Finished>) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Free;
        self.free.push(index);
        finished.push(Finished { cookie: slot.command.cookie, ending });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::COMMANDS_MAX as MAX;
    use proto::iscsi::initiator::Request;
    use proto::services::Attribute;
    use wire::{Cdb, Places, Sense, SenseData};

    const SECOND: Duration = Duration::from_secs(1);

    /// A queue whose commands are "sent" as task slots 0, 1, ...
    struct Bench {
        queue: Queue,
        finished: Vec<Finished>,
        now: Time,
    }

    impl Bench {
        fn new(repeatable: &[bool]) -> Bench {
            let mut bench = Bench { queue: Queue::new(8), finished: Vec::new(), now: Time(0) };
            for (cookie, repeatable) in repeatable.iter().enumerate() {
                assert!(bench.queue.push(&command(cookie as u32, *repeatable), false));
            }
            bench.send();
            bench
        }

        /// Sends what waits, like [`Queue::send`] with a machine that accepts it; returns the cookies.
        fn send(&mut self) -> Vec<u32> {
            let mut cookies = Vec::new();
            while let Some(index) = self.queue.waiting.pop_front() {
                let slot = &mut self.queue.slots[index as usize];
                let task = TaskId { slot: slot.command.cookie as u16, generation: 1 };
                (slot.state, slot.may_land) = (State::Sent(task), true);
                self.queue.by_task[usize::from(task.slot)] = index;
                cookies.push(slot.command.cookie);
            }
            cookies
        }

        fn end(&mut self, cookie: u32, outcome: Outcome) {
            let completion = Completion {
                task: TaskId { slot: cookie as u16, generation: 1 },
                outcome,
                read_bytes: 0,
                write_bytes: 0,
                residual: Residual::None,
                read_residual: Residual::None,
            };
            self.queue.completed(&completion, self.now, &mut self.finished);
        }

        fn cookies(&mut self) -> Vec<u32> {
            self.finished.drain(..).map(|finished| finished.cookie).collect()
        }
    }

    fn command(cookie: u32, repeatable: bool) -> Command {
        let cdb = Cdb::from_bytes(&[0; 6]).expect("a CDB");
        let (attribute, read, write) = (Attribute::Simple, Places::EMPTY, Places::EMPTY);
        let request = Request { lun: 0, attribute, cdb, read, write };
        Command { cookie, request, repeatable, patient: true, since: Time(0) }
    }

    fn status(status: u8) -> Outcome {
        Outcome::Status { status, sense: None }
    }

    fn check(key: SenseKey, code: u16) -> Outcome {
        let data = SenseData::new(key, code);
        Outcome::Status { status: status::CHECK_CONDITION, sense: Some(Sense::fixed(&data)) }
    }

    #[test]
    fn an_end_is_that_of_its_own_task_although_a_later_one_has_its_number() {
        let mut bench = Bench::new(&[true, true]);
        let later = TaskId { slot: 0, generation: 2 };
        bench.queue.slots[1].state = State::Sent(later);
        bench.queue.by_task[0] = 1;
        bench.end(0, check(SenseKey::IllegalRequest, 0x2400));
        assert_eq!(bench.cookies(), [0]);
        assert_eq!(bench.queue.slots[1].state, State::Sent(later), "the later one has not ended");
        bench.end(0, status(status::GOOD));
        assert!(bench.cookies().is_empty(), "nothing is called that any more");
    }

    #[test]
    fn unit_attentions_are_answered_by_sending_again() {
        let mut bench = Bench::new(&[true, false]);
        for cookie in [0, 1] {
            bench.end(cookie, check(SenseKey::UnitAttention, 0x2900));
        }
        let any = Attentions { any: true, ..Attentions::default() };
        assert!(bench.finished.is_empty() && bench.queue.attentions == any);
        assert_eq!(bench.send().len(), 2, "a unit attention means that nothing was executed");
        bench.end(0, check(SenseKey::UnitAttention, 0x2a01));
        assert!(bench.queue.attentions.modes);
        bench.now = bench.now.after(DELAY_MIN);
        bench.queue.wake(bench.now);
        bench.send();
        bench.end(0, status(status::GOOD));
        assert_eq!(bench.cookies(), [0]);
    }

    /// The first time it is resent at once, then after pauses that double.
    #[test]
    fn a_command_that_is_refused_again_and_again_waits_longer_each_time_and_is_given_up() {
        for refusal in [
            check(SenseKey::UnitAttention, 0x2900),
            check(SenseKey::AbortedCommand, 0x4400),
            status(status::TASK_ABORTED),
            Outcome::Rejected(wire::iscsi::RejectReason::PROTOCOL_ERROR),
            Outcome::TargetFailure(1),
        ] {
            let mut bench = Bench::new(&[true]);
            bench.end(0, refusal);
            assert_eq!(bench.send(), [0]);
            for retry in 1..u32::from(RETRIES_MAX) {
                bench.end(0, refusal);
                let pause = DELAY_MIN.saturating_mul(1 << (retry - 1)).min(DELAY_MAX);
                bench.now = bench.now.after(pause - Duration::from_nanos(1));
                bench.queue.wake(bench.now);
                assert!(bench.send().is_empty(), "retry {retry} waits for {pause:?}");
                bench.now = bench.now.after(Duration::from_nanos(1));
                bench.queue.wake(bench.now);
                assert_eq!(bench.send(), [0]);
            }
            bench.end(0, refusal);
            assert_eq!(bench.cookies(), [0]);
        }
    }

    #[test]
    fn unit_attentions_that_differ_cost_no_pause_a_few_times() {
        let mut bench = Bench::new(&[true]);
        for code in [0x2900, 0x2a01, 0x3f0e, 0x2a09] {
            bench.end(0, check(SenseKey::UnitAttention, code));
            assert_eq!(bench.send(), [0], "{code:04x}");
        }
        bench.end(0, check(SenseKey::UnitAttention, 0x3f03));
        assert!(bench.send().is_empty(), "there is an end to it");
    }

    #[test]
    fn busy_is_retried_later_and_not_forever() {
        let mut bench = Bench::new(&[true]);
        bench.end(0, status(status::BUSY));
        bench.queue.wake(bench.now);
        assert!(bench.send().is_empty(), "not at once");
        bench.now = bench.now.after(DELAY_MIN);
        bench.queue.wake(bench.now);
        assert_eq!(bench.send(), [0]);
        bench.end(0, status(status::TASK_SET_FULL));
        bench.now = bench.now.after(SECOND * 10);
        assert!(!bench.queue.expire(bench.now, SECOND * 10, &mut bench.finished));
        assert_eq!(bench.finished, [Finished { cookie: 0, ending: Ending::Lost { may_land: false } }]);
        assert_eq!(bench.queue.len(), 0);
        bench.queue.wake(bench.now);
        assert!(bench.send().is_empty());
    }

    #[test]
    fn a_command_without_retries_ends_with_the_first_refusal() {
        for outcome in [status(status::BUSY), check(SenseKey::NotReady, code::BECOMING_READY)] {
            let mut bench = Bench::new(&[true]);
            bench.queue.slots[0].command.patient = false;
            bench.end(0, outcome);
            let endings: Vec<Ending> = bench.finished.iter().map(|finished| finished.ending).collect();
            assert!(matches!(endings[..], [Ending::Status { .. }]), "{endings:?}");
        }
    }

    #[test]
    fn what_may_be_repeated_survives_the_connection_in_order() {
        let mut bench = Bench::new(&[true, false, true]);
        assert!(bench.queue.push(&command(3, true), false));
        bench.queue.lost(&mut bench.finished);
        assert_eq!(bench.cookies(), [1]);
        assert_eq!(bench.send(), [0, 2, 3]);
    }

    #[test]
    fn what_was_sent_may_land_until_its_session_is_proven_to_be_over() {
        let mut bench = Bench::new(&[true, true, false]);
        bench.end(1, status(status::BUSY));
        bench.queue.lost(&mut bench.finished);
        assert_eq!(bench.finished, [Finished { cookie: 2, ending: Ending::Lost { may_land: true } }]);
        bench.finished.clear();
        let later = bench.now.after(SECOND);
        assert!(!bench.queue.expire(later, SECOND, &mut bench.finished));
        let lost = |cookie, may_land| Finished { cookie, ending: Ending::Lost { may_land } };
        assert_eq!(bench.finished, [lost(0, true), lost(1, false)]);

        let mut bench = Bench::new(&[true, true]);
        bench.queue.lost(&mut bench.finished);
        bench.queue.begun();
        bench.queue.expire(later, SECOND, &mut bench.finished);
        assert_eq!(bench.finished, [lost(0, true), lost(1, true)], "a login proves nothing");

        let mut bench = Bench::new(&[true]);
        bench.queue.lost(&mut bench.finished);
        bench.queue.begun();
        bench.queue.proven();
        bench.queue.expire(later, SECOND, &mut bench.finished);
        assert_eq!(bench.finished, [lost(0, false)]);
    }

    #[test]
    fn questions_go_first_and_end_with_their_connection() {
        let mut bench = Bench::new(&[true]);
        bench.queue.lost(&mut bench.finished);
        assert!(bench.queue.push(&command(1, false), true));
        assert_eq!(bench.send(), [1, 0]);
        bench.end(1, check(SenseKey::UnitAttention, 0x2900));
        bench.queue.lost(&mut bench.finished);
        assert_eq!(bench.cookies(), [1]);
        assert_eq!(bench.send(), [0]);
    }

    #[test]
    fn resets_are_news_only_to_a_nexus_that_was_served() {
        let mut bench = Bench::new(&[true, true]);
        bench.end(0, check(SenseKey::UnitAttention, 0x2900));
        assert!(!bench.queue.attentions.power_on);
        bench.send();
        bench.end(0, status(status::GOOD));
        bench.end(1, check(SenseKey::UnitAttention, 0x2900));
        assert!(bench.queue.attentions.power_on);
    }

    #[test]
    fn what_was_cancelled_is_never_sent_again() {
        let mut bench = Bench::new(&[true, true, true, true]);
        bench.end(1, status(status::BUSY));
        for cookie in [0, 1, 2] {
            bench.queue.cancel(cookie, &mut bench.finished);
        }
        assert_eq!(bench.cookies(), [1], "the target has the others");
        bench.end(2, check(SenseKey::UnitAttention, 0x2900));
        bench.queue.lost(&mut bench.finished);
        let lost = |cookie, may_land| Finished { cookie, ending: Ending::Lost { may_land } };
        assert_eq!(bench.finished, [lost(2, false), lost(0, true)]);
        bench.finished.clear();
        bench.queue.cancel(3, &mut bench.finished);
        assert_eq!(bench.finished, [lost(3, true)]);
        assert!(bench.send().is_empty() && bench.queue.len() == 0);
    }

    #[test]
    fn only_writes_without_an_answer_are_unsettled() {
        let mut bench = Bench::new(&[true, true]);
        let unsettled = |bench: &Bench| bench.queue.unsettled().collect::<Vec<_>>();
        assert!(unsettled(&bench).is_empty(), "they move no data");
        let span = wire::Span { buffer: wire::BufferId(0), len: 512, offset: 0 };
        bench.queue.slots[1].command.request.write = Places::one(span);
        assert_eq!(unsettled(&bench), [1]);
        bench.queue.lost(&mut bench.finished);
        assert_eq!(unsettled(&bench), [1], "it is to be sent again, and may have been executed");
        bench.queue.proven();
        assert!(unsettled(&bench).is_empty());
        bench.send();
        bench.queue.proven();
        assert_eq!(unsettled(&bench), [1], "it was sent since");
        bench.end(1, status(status::GOOD));
        assert!(unsettled(&bench).is_empty());
    }

    #[test]
    fn aborted_commands_are_repeated_only_where_that_does_no_harm() {
        let mut bench = Bench::new(&[true, false]);
        bench.end(0, check(SenseKey::AbortedCommand, 0x4400));
        bench.end(1, check(SenseKey::AbortedCommand, 0x4400));
        assert_eq!(bench.cookies(), [1]);
        assert_eq!(bench.send(), [0]);
    }

    #[test]
    fn what_the_target_has_is_reported_instead_of_abandoned() {
        let mut bench = Bench::new(&[true]);
        let later = bench.now.after(SECOND);
        assert!(bench.queue.expire(later, SECOND, &mut bench.finished));
        assert!(bench.finished.is_empty());
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut queue = Queue::new(1);
        for cookie in 0..MAX as u32 {
            assert!(queue.push(&command(cookie, true), false));
        }
        assert!(!queue.push(&command(0, true), false));
    }
}
