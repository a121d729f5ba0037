//! Commands that are aborted, or ended early, at every stage. The peer reuses its buffers when it gets the
//! end of a command, so that later RDMA breaks the connection.

use super::rig::Rig;
use super::scripted::{ScriptedPeer, Shape, cdb, command, function};
use crate::support::{DISK, HOST};
use proto::message::Access;
use proto::services::{Down, Ending, Function, FunctionResponse, TaskId, Termination, Up};
use wire::scsi::status::TASK_ABORTED;
use wire::srp::{Direct, LoginRequest, Response, ResponseCode, TaskFunction};
use wire::{Places, Span};
use zerocopy::IntoBytes;

const LEN: u32 = 6000;
const COMMAND: u64 = 1;
const ABORT: u64 = 2;
/// SRP_I_LOGOUT.
const LOGOUT: [u8; 16] = [3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];

/// How the command's data is described.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Data-out by one descriptor.
    Direct,
    /// Data-out by a table that has to be read.
    Table,
    /// Data-out inside the command.
    Immediate,
    /// Data-in by a table, whose push carries the ending.
    Push,
    /// Data-in in two pushes, and then the ending.
    Pushes,
}

const KINDS: [Kind; 5] = [Kind::Direct, Kind::Table, Kind::Immediate, Kind::Push, Kind::Pushes];

/// An engine that moves data, and counts what the machine reports.
#[derive(Default)]
struct Above {
    /// The task, and its progress.
    task: Option<(TaskId, u32)>,
    /// A fetch or push is in progress.
    in_flight: bool,
    /// The end of the task was reported, and its places have to be released.
    awaits: bool,
    /// It has ended for us.
    over: bool,
    functions: usize,
    /// Commands that were aborted before they were passed up.
    terminated: usize,
    /// The session ends.
    leaves: bool,
}

const GOOD: Ending = Ending { status: 0, sense: None, read_bytes: 0, write_bytes: 0 };

fn place(at: u32, len: u32) -> Places {
    Places::one(Span { buffer: DISK, offset: u64::from(at), len })
}

impl Above {
    fn take(&mut self, rig: &mut Rig<ScriptedPeer>, kind: Kind) {
        for up in std::mem::take(&mut rig.ups) {
            match up {
                Up::Command(command) => {
                    self.task = Some((command.task, 0));
                    self.go_on(rig, kind);
                }
                Up::Fetched(task) | Up::Pushed(task) if self.over => {
                    assert_eq!(self.task.map(|(id, _)| id), Some(task));
                    assert!(std::mem::take(&mut self.awaits), "places come back once");
                    assert_eq!(rig.target.port.reading(), 0, "and nothing is read into them any more");
                }
                Up::Fetched(_) | Up::Pushed(_) => {
                    self.in_flight = false;
                    self.go_on(rig, kind);
                }
                Up::Function { id, function, .. } => {
                    self.functions += 1;
                    if let Function::AbortTask(Some(task)) = function {
                        self.end(rig, Down::Abort { task });
                    }
                    if function == Function::LogicalUnitReset {
                        rig.target.machine.forget_unread(|lun| lun == 0);
                        if let Some((task, _)) = self.task {
                            self.end(rig, Down::Abort { task });
                        }
                    }
                    rig.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
                }
                Up::Terminated { how: Termination::Aborted, .. } => self.terminated += 1,
                Up::Leaving => {
                    self.leaves = true;
                    match self.task {
                        Some((task, _)) if self.over && self.awaits => rig.down(Down::Abort { task }),
                        Some((task, _)) => self.end(rig, Down::Abort { task }),
                        None => {}
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Ends the task unless it has ended.
    fn end(&mut self, rig: &mut Rig<ScriptedPeer>, down: Down) {
        if !std::mem::replace(&mut self.over, true) {
            self.awaits = std::mem::take(&mut self.in_flight);
            rig.down(down);
        }
    }

    fn go_on(&mut self, rig: &mut Rig<ScriptedPeer>, kind: Kind) {
        let Some((task, at)) = &mut self.task else { return };
        let (task, from) = (*task, *at);
        let writes = matches!(kind, Kind::Direct | Kind::Table | Kind::Immediate);
        if from == LEN {
            return self.end(rig, Down::End { task, ending: GOOD });
        }
        let piece = if kind == Kind::Push { LEN } else { LEN / 2 };
        *at += piece;
        self.in_flight = true;
        let end = (kind == Kind::Push).then_some(GOOD);
        if writes {
            rig.down(Down::Fetch { task, at: from, into: place(from, piece) });
        } else {
            rig.down(Down::Push { task, at: from, from: place(from, piece), end });
        }
        if end.is_some() {
            (self.over, self.awaits, self.in_flight) = (true, true, false);
        }
    }
}

/// The command of a kind, and the keys to its buffers.
fn prepare(rig: &mut Rig<ScriptedPeer>, kind: Kind) -> (Vec<u8>, Vec<u32>) {
    let is_write = matches!(kind, Kind::Direct | Kind::Table);
    let access = if is_write { Access::Read } else { Access::Write };
    let pieces = if kind == Kind::Direct { 1 } else { 5 };
    let mut keys = Vec::new();
    let list: Vec<Direct> = (0..pieces)
        .map(|n| {
            let len = LEN / pieces;
            let span = Span { buffer: HOST, offset: u64::from(n * 10_000), len };
            let at = rig.advertise(Places::one(span), access);
            keys.push(at.stag);
            Direct::new(at.offset, at.stag, len)
        })
        .collect();
    let none = Shape::None;
    let unit = match kind {
        Kind::Direct => command(COMMAND, &cdb(0, 0, LEN), &Shape::Direct(list[0]), &none),
        Kind::Immediate => command(COMMAND, &cdb(0, 0, LEN), &Shape::Immediate(vec![9; LEN as usize]), &none),
        Kind::Table | Kind::Push | Kind::Pushes => {
            let span = Span { buffer: HOST, offset: 1 << 20, len: 16 * pieces };
            rig.memory.at(span).copy_from_slice(list.as_bytes());
            let at = rig.advertise(Places::one(span), Access::Read);
            keys.push(at.stag);
            let shape = Shape::Table { list, listed: 1, at, len: LEN };
            let (data_out, data_in) = if is_write { (&shape, &none) } else { (&none, &shape) };
            command(COMMAND, &cdb(0, 0, LEN), data_out, data_in)
        }
    };
    (unit, keys)
}

/// Handles received responses; buffers are reclaimed with the first that ends the command.
fn responses(rig: &mut Rig<ScriptedPeer>, keys: &mut Vec<u32>, seen: &mut Vec<Response>) {
    while let Some(unit) = rig.peer.machine.inbox.pop_front() {
        if unit[0] == 0x81 {
            let tag = &unit[8..16];
            let answer = [&[0x41, 0, 0, 0, 0, 0, 0, 0], tag].concat();
            rig.send(&answer);
            continue;
        }
        let (response, data, _) = Response::split(&unit).unwrap();
        if response.tag.get() == ABORT {
            assert_eq!(Response::code(data), Some(ResponseCode::COMPLETE));
        }
        seen.push(*response);
        for key in std::mem::take(keys) {
            rig.peer.port.invalidate(key);
        }
    }
}

/// What ends the command, after this many steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    AbortTask,
    Reset,
    /// The engine, with a status.
    End,
}

fn abort_after(steps: usize, kind: Kind, by: By, seed: u64) {
    let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, seed);
    let (unit, mut keys) = prepare(&mut rig, kind);
    rig.send(&unit);
    let (mut above, mut seen) = (Above::default(), Vec::new());
    for _ in 0..steps {
        rig.step();
        above.take(&mut rig, kind);
        responses(&mut rig, &mut keys, &mut seen);
    }
    match by {
        By::AbortTask => rig.send(&function(ABORT, TaskFunction::ABORT_TASK, COMMAND)),
        By::Reset => rig.send(&function(ABORT, TaskFunction::LOGICAL_UNIT_RESET, 0)),
        By::End => {
            if let Some((task, _)) = above.task {
                above.end(&mut rig, Down::End { task, ending: Ending { status: TASK_ABORTED, ..GOOD } });
            }
        }
    }
    while rig.step() {
        let credits = rig.peer.machine.limit as usize;
        assert!(credits <= rig.target.port.ready(), "credits never exceed receives");
        above.take(&mut rig, kind);
        responses(&mut rig, &mut keys, &mut seen);
    }
    let what = format!("{kind:?} {by:?} after {steps} steps: {seen:?}");
    assert_eq!((rig.broken, &rig.target_gone), (None, &None), "{what}");
    assert!(!above.awaits, "places come back: {what}");
    assert_eq!(usize::from(above.task.is_some()) + above.terminated, 1, "it is reported once: {what}");
    let tags: Vec<u64> = seen.iter().map(|response| response.tag.get()).collect();
    match by {
        By::End => assert_eq!(tags, [COMMAND], "{what}"),
        By::AbortTask | By::Reset => {
            assert!(tags == [ABORT] || tags == [COMMAND, ABORT], "{what}");
            assert!(above.over || above.task.is_none(), "{what}");
        }
    }
    assert_eq!(rig.peer.machine.limit, 8, "all credits are back: {what}");
    assert!(rig.is_quiet());
}

#[test]
fn aborts_at_every_stage() {
    for kind in KINDS {
        for by in [By::AbortTask, By::Reset, By::End] {
            for steps in 0..32 {
                for seed in 0..2 {
                    abort_after(steps, kind, by, seed);
                }
            }
        }
    }
}

/// A command that is aborted without a request takes its credit with it, and a credit request returns it.
#[test]
fn credits_of_silent_aborts_are_returned() {
    let mut rig = Rig::scripted(LoginRequest::CREDIT_SOLICITED, 1);
    rig.send(&command(COMMAND, &cdb(0, 0, 0), &Shape::None, &Shape::None));
    rig.run();
    let task = rig.given().task;
    rig.down(Down::Abort { task });
    rig.run();
    let unit = rig.peer.machine.inbox.pop_front().unwrap();
    assert_eq!((unit[..8].to_vec(), rig.solicited), (vec![0x81, 1, 0, 0, 0, 0, 0, 1], true));
    assert_eq!(rig.peer.machine.limit, 8);
    // There is one at a time.
    rig.send(&command(COMMAND, &cdb(0, 0, 0), &Shape::None, &Shape::None));
    rig.run();
    let task = rig.given().task;
    rig.down(Down::Abort { task });
    rig.run();
    assert!(rig.peer.machine.inbox.is_empty() && rig.peer.machine.limit == 7);
    rig.send(&[0x41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    rig.run();
    assert_eq!((rig.peer.machine.inbox.len(), rig.peer.machine.limit), (1, 8));
}

/// Calls about a task that has ended are ignored.
#[test]
fn late_verbs_are_ignored() {
    let mut rig = Rig::scripted(0, 1);
    rig.send(&command(COMMAND, &cdb(0, 0, 0), &Shape::None, &Shape::None));
    rig.run();
    let task = rig.given().task;
    rig.down(Down::End { task, ending: GOOD });
    rig.run();
    for down in [Down::Abort { task }, Down::End { task, ending: GOOD }] {
        rig.down(down);
    }
    rig.run();
    assert_eq!((rig.peer.machine.inbox.len(), rig.ups.len()), (1, 0));
}

/// Places are released while the session ends, too: others of its nexus may wait for them.
#[test]
fn buffers_that_rdma_has_released_are_returned_while_the_session_ends() {
    for kind in KINDS {
        for steps in 0..32 {
            let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, steps);
            rig.waits = true;
            let (unit, _) = prepare(&mut rig, kind);
            rig.send(&unit);
            let mut above = Above::default();
            for _ in 0..steps {
                rig.step();
                above.take(&mut rig, kind);
            }
            rig.send(&LOGOUT);
            while rig.step() {
                above.take(&mut rig, kind);
            }
            above.take(&mut rig, kind);
            let what = format!("{kind:?} after {steps} steps");
            assert!(above.leaves && !above.awaits && !above.in_flight, "places come back: {what}");
            assert_eq!((rig.broken, &rig.target_gone), (None, &None), "{what}");
            rig.down(Down::Close);
            rig.run();
            assert_eq!(rig.target_gone.as_deref(), Some("logged out"), "{what}");
        }
    }
}

/// The engine violates its contract: the initiator is logged out, and the daemon continues.
#[test]
fn a_transfer_that_cannot_be_ends_its_connection_alone() {
    let fetch = |at, len| move |task| Down::Fetch { task, at, into: place(at, len) };
    let push = |at, len| move |task| Down::Push { task, at, from: place(at, len), end: None };
    type Verb = Box<dyn Fn(TaskId) -> Down>;
    let wrong: [(Kind, Verb, &str); 4] = [
        (Kind::Direct, Box::new(fetch(4, 100)), "continue where the last one ended"),
        (Kind::Immediate, Box::new(fetch(0, LEN + 1)), "past the command's data-out"),
        (Kind::Direct, Box::new(push(0, 1)), "past the command's data-in"),
        (Kind::Push, Box::new(push(1, LEN)), "past the command's data-in"),
    ];
    for (kind, verb, text) in wrong {
        let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, 1);
        rig.waits = true;
        let (unit, _) = prepare(&mut rig, kind);
        rig.send(&unit);
        rig.run();
        let task = rig.given().task;
        rig.down(verb(task));
        rig.run();
        let ups = std::mem::take(&mut rig.ups);
        assert!(matches!(&ups[..], [Up::Fault { what }, Up::Leaving] if what.contains(text)), "{ups:?}");
        rig.down(Down::Abort { task });
        rig.run();
        let ups = std::mem::take(&mut rig.ups);
        assert!(matches!(&ups[..], [Up::Pushed(id)] if *id == task), "its places come back once: {ups:?}");
        rig.down(Down::Close);
        rig.run();
        assert_eq!(rig.target_gone.as_deref(), Some("a bug in Lunette"), "{text}");
    }
}
