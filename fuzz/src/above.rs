//! A layer above a target machine, without a unit.

use proto::services::{Command, Down, Ending, FunctionResponse, TaskId, Up};
use proto::time::Time;
use wire::{BufferId, Places, Span};

/// Bytes that the layer above fetches at a time.
const FETCH_BYTES_MAX: u32 = 256 * 1024;

/// A target machine, whatever its transport.
pub trait Machine {
    /// Whether data moves by RDMA: places of ended tasks are returned by `Up::Pushed`.
    const RDMA: bool;

    /// Takes a verb from above.
    fn down(&mut self, now: Time, down: Down);
    /// Its oldest event.
    fn poll(&mut self) -> Option<Up>;
}

impl Machine for proto::iscsi::target::Target {
    const RDMA: bool = false;

    fn down(&mut self, now: Time, down: Down) {
        proto::iscsi::target::Target::down(self, now, down);
    }

    fn poll(&mut self) -> Option<Up> {
        proto::stream::StreamMachine::poll(self)
    }
}

impl Machine for proto::iser::target::Target {
    const RDMA: bool = true;

    fn down(&mut self, now: Time, down: Down) {
        proto::iser::target::Target::down(self, now, down);
    }

    fn poll(&mut self) -> Option<Up> {
        proto::message::MessageMachine::poll(self)
    }
}

impl Machine for proto::aoe::target::Target {
    const RDMA: bool = false;

    fn down(&mut self, now: Time, down: Down) {
        proto::aoe::target::Target::down(self, now, down);
    }

    fn poll(&mut self) -> Option<Up> {
        proto::aoe::target::Target::poll(self)
    }
}

/// The layer above.
#[derive(Default)]
pub struct Above {
    /// Bits that decide how it answers.
    pub manners: u8,
    /// The login is over.
    pub ready: bool,
    /// The connection has ended.
    pub gone: bool,
    /// Commands in flight.
    pub commands: Vec<Command>,
    /// Data-out that has arrived.
    fetched: Vec<(TaskId, u32)>,
    /// Tasks whose places are in use, where data moves by RDMA.
    in_flight: Vec<TaskId>,
}

impl Above {
    /// With these manners.
    pub fn new(manners: u8) -> Self {
        Self { manners, ..Self::default() }
    }

    /// The layer above takes every event and answers it.
    pub fn answer<M: Machine>(&mut self, machine: &mut M, now: Time) {
        while let Some(event) = machine.poll() {
            assert!(!self.gone, "nothing comes after the end");
            match event {
                Up::Ready(_) => {
                    self.ready = true;
                    machine.down(now, Down::Admit);
                }
                Up::Leaving => machine.down(now, Down::Close),
                Up::Command(command) => self.begin(&command, machine, now),
                Up::Fetched(task) => {
                    self.comes_back::<M>(task);
                    self.fetched(task, machine, now);
                }
                Up::FetchFailed { task, .. } => {
                    self.in_flight.retain(|other| *other != task);
                    self.commands.retain(|command| command.task != task);
                }
                Up::Pushed(task) => {
                    self.comes_back::<M>(task);
                    self.commands.retain(|command| command.task != task);
                }
                Up::Function { id, .. } => {
                    for command in std::mem::take(&mut self.commands) {
                        machine.down(now, Down::Abort { task: command.task });
                    }
                    let response = FunctionResponse::Complete;
                    machine.down(now, Down::FunctionDone { id, response });
                }
                Up::Refused { .. } | Up::Terminated { .. } => {}
                Up::Fault { what } => panic!("{what}"),
                Up::Gone { .. } => self.gone = true,
            }
        }
    }

    /// The places of a task are free.
    fn comes_back<M: Machine>(&mut self, task: TaskId) {
        if M::RDMA {
            let at = self.in_flight.iter().position(|other| *other == task);
            self.in_flight.swap_remove(at.expect("places come back once"));
        }
    }

    /// Whether only unfinished tasks have places in use.
    pub fn ended_tasks_hold_nothing(&self) -> bool {
        self.in_flight.iter().all(|task| self.commands.iter().any(|command| command.task == *task))
    }

    fn begin<M: Machine>(&mut self, command: &Command, machine: &mut M, now: Time) {
        assert!(self.ready, "commands follow the login");
        assert!(command.unsolicited_bytes <= command.write_bytes);
        self.commands.push(*command);
        let refuses = self.manners & 3 == 3;
        if command.write_bytes > 0 && !refuses {
            self.fetch(command, 0, machine, now);
        } else if command.read_bytes > 0 && !refuses {
            let len = command.read_bytes.min(FETCH_BYTES_MAX);
            let end = Some(ending(command));
            self.in_flight.extend(M::RDMA.then_some(command.task));
            machine.down(now, Down::Push { task: command.task, at: 0, from: place(len), end });
        } else if command.unsolicited_bytes > 0 || self.manners & 4 == 0 {
            self.end(command, machine, now);
        }
    }

    fn fetch<M: Machine>(&mut self, command: &Command, at: u32, machine: &mut M, now: Time) {
        let left = command.write_bytes - at;
        let least = command.unsolicited_bytes.saturating_sub(at);
        let into = place(left.min(FETCH_BYTES_MAX).max(least));
        self.fetched.retain(|(task, _)| *task != command.task);
        self.fetched.push((command.task, at + into.len()));
        self.in_flight.extend(M::RDMA.then_some(command.task));
        machine.down(now, Down::Fetch { task: command.task, at, into });
    }

    fn fetched(&mut self, task: TaskId, machine: &mut impl Machine, now: Time) {
        let command = self.commands.iter().find(|command| command.task == task).copied();
        let command = command.expect("only data of live tasks is reported");
        let at = self.fetched.iter().find(|(other, _)| *other == task).expect("it was fetched").1;
        if at < command.write_bytes {
            self.fetch(&command, at, machine, now)
        } else {
            self.end(&command, machine, now)
        }
    }

    /// Ends the oldest command, at its own pace.
    pub fn end_oldest(&mut self, machine: &mut impl Machine, now: Time) {
        let command = self.commands[0];
        self.end(&command, machine, now);
    }

    fn end(&mut self, command: &Command, machine: &mut impl Machine, now: Time) {
        self.commands.retain(|other| other.task != command.task);
        machine.down(now, Down::End { task: command.task, ending: ending(command) });
    }
}

fn place(len: u32) -> Places {
    Places::one(Span { buffer: BufferId(1), len, offset: 0 })
}

fn ending(command: &Command) -> Ending {
    Ending {
        status: 0,
        sense: None,
        read_bytes: u64::from(command.read_bytes),
        write_bytes: u64::from(command.write_bytes),
    }
}
