//! Our two ends of an SRP channel against each other, and the target against arbitrary input.

mod aborts;
mod hostile;
mod logins;
mod order;
mod rig;
mod scripted;
mod shapes;

use crate::support::rig::START;
use crate::support::{
    BROKEN, GOOD, HANG, HOST, IDLE, INCONSISTENT, READ, TEST_UNIT_READY, WRITE, command, host,
};
use proptest::prelude::*;
use proto::iscsi::initiator::{Completion, Outcome, Request, Residual};
use proto::services::{Attribute, Down};
use proto::srp::initiator::{Event, Initiator, InitiatorConfig};
use proto::srp::target::TargetConfig;
use rig::{CONFIG, INITIATOR, Rig};
use std::time::Duration;
use wire::srp::{ResponseCode, TaskFunction};
use wire::{Cdb, Places, Sense, Span};

fn ours(seed: u64) -> Rig<Initiator> {
    Rig::ours(INITIATOR, CONFIG, seed)
}

/// `len` bytes at `at` in the initiator's memory, in one span.
fn one(at: u32, len: u32) -> Places {
    Places::one(Span { buffer: HOST, offset: at.into(), len })
}

#[test]
fn data_of_every_length_arrives() {
    let mut rig = ours(1);
    for len in [1, 511, 512, 4096, 8192, 8193, 65_536, 262_144, 262_145, 600_000] {
        let done = rig.execute(command(WRITE, 1 << 20, len, Places::EMPTY, host(7, len)));
        assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, len));
        assert!(rig.memory.same(7, 1 << 20, len), "{len}");
        let done = rig.execute(command(READ, 99, len, host(1 << 20, len), Places::EMPTY));
        assert_eq!((done.outcome, done.read_bytes), (GOOD, len));
        assert!(rig.memory.same(1 << 20, 99, len), "{len}");
    }
    assert_eq!(rig.execute(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY)).outcome, GOOD);
    assert!(rig.is_at_rest());
}

/// What fits is sent inside the command: nothing is read from the initiator.
#[test]
fn small_writes_need_no_rdma_read() {
    for (len, reads) in [(1, 0), (4096, 0), (8192, 0), (8193, 1), (262_144, 1), (262_145, 2)] {
        let mut rig = ours(2);
        rig.execute(command(WRITE, 0, len, Places::EMPTY, one(9, len)));
        assert_eq!(rig.target.port.counts.reads, reads, "{len}");
    }
    // Nothing is where that was not requested.
    let mut rig = Rig::ours(InitiatorConfig { immediate: false, ..INITIATOR }, CONFIG, 2);
    rig.execute(command(WRITE, 0, 512, Places::EMPTY, one(9, 512)));
    assert_eq!(rig.target.port.counts.reads, 1);
    // A target that accepts only short messages still grants it, for what fits.
    let short = InitiatorConfig { it_iu_bytes: 68 + 512, ..INITIATOR };
    let mut rig = Rig::ours(short, CONFIG, 2);
    rig.execute(command(WRITE, 0, 512, Places::EMPTY, host(9, 512)));
    assert_eq!(rig.target.port.counts.reads, 0);
    rig.execute(command(WRITE, 0, 513, Places::EMPTY, one(9, 513)));
    assert_eq!(rig.target.port.counts.reads, 1);
    // Places that are apart are one buffer.
    let apart = host(9, 513);
    assert!(apart.iter().count() > 1);
    rig.execute(command(WRITE, 0, 513, Places::EMPTY, apart));
    assert_eq!(rig.target.port.counts.reads, 2);
}

/// The longest command: two buffers with the most places, and a long CDB.
#[test]
fn the_longest_command_arrives() {
    let mut rig = ours(12);
    let four = |at: u64| {
        let mut places = Places::EMPTY;
        (0..4).for_each(|n| assert!(places.push(Span { buffer: HOST, offset: at + n * 1000, len: 500 })));
        places
    };
    let mut bytes = [0; 64];
    bytes[..16].copy_from_slice(command(READ, 77, 2000, Places::EMPTY, Places::EMPTY).cdb.as_bytes());
    let cdb = Cdb::from_bytes(&bytes).unwrap();
    let (attribute, read, write) = (Attribute::Simple, four(0), four(10_000));
    let done = rig.execute(Request { lun: 0, attribute, cdb, read, write });
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::Underflow(2000)));
    for n in 0..4 {
        assert!(rig.memory.same(n * 1000, 77 + n * 500, 500));
    }
}

#[test]
fn data_that_did_not_move_is_not_counted_whatever_the_target_says() {
    let mut rig = Rig::ours(InitiatorConfig { immediate: false, ..INITIATOR }, CONFIG, 5);
    for len in [512, 40_000, 300_000] {
        let done = rig.execute(command(INCONSISTENT, 0, 0, Places::EMPTY, host(0, len)));
        assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, 0));
        let done = rig.execute(command(INCONSISTENT, 0, 0, host(0, len), Places::EMPTY));
        assert_eq!((done.outcome, done.residual, done.read_bytes), (GOOD, Residual::None, 0));
        let done = rig.execute(command(WRITE, 0, len, Places::EMPTY, host(0, len)));
        assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, len));
        let done = rig.execute(command(WRITE, 0, 512, Places::EMPTY, host(0, len)));
        assert_eq!((done.outcome, done.write_bytes), (GOOD, 512));
    }
}

#[test]
fn residuals_of_both_ways() {
    let mut rig = ours(3);
    for (expected, device, residual) in [
        (4096, 4096, Residual::None),
        (4096, 512, Residual::Underflow(3584)),
        (512, 4096, Residual::Overflow(3584)),
        (0, 512, Residual::Overflow(512)),
        (20_000, 100, Residual::Underflow(19_900)),
    ] {
        let done = rig.execute(command(READ, 0, device, host(0, expected), Places::EMPTY));
        assert_eq!((done.residual, done.read_bytes), (residual, expected.min(device)));
        let done = rig.execute(command(WRITE, 0, device, Places::EMPTY, host(0, expected)));
        assert_eq!((done.residual, done.read_residual), (residual, Residual::None));
    }
    let done = rig.execute(command(READ, 0, 100, host(0, 512), host(1024, 300)));
    assert_eq!((done.residual, done.read_residual), (Residual::Underflow(300), Residual::Underflow(412)));
}

#[test]
fn sense_data_comes_with_its_command() {
    let mut rig = ours(4);
    let done = rig.execute(command(BROKEN, 0, 0, host(0, 512), Places::EMPTY));
    let Outcome::Status { status: 2, sense: Some(sense) } = done.outcome else { panic!("{done:?}") };
    assert_eq!((sense.code(), done.residual), (0x2000, Residual::Underflow(512)));
}

#[test]
fn long_cdbs_arrive_whole() {
    let mut rig = ours(5);
    for (len, immediate) in [(16, true), (20, true), (32, true), (36, false), (64, false)] {
        let mut bytes: Vec<u8> = (0..len).collect();
        bytes[..16].copy_from_slice(command(WRITE, 64, 512, Places::EMPTY, Places::EMPTY).cdb.as_bytes());
        let cdb = Cdb::from_bytes(&bytes).unwrap();
        let before = rig.target.port.counts.reads;
        let write = host(0, 512);
        let attribute = Attribute::Ordered;
        let done = rig.execute(Request { lun: 0, attribute, cdb, read: Places::EMPTY, write });
        assert_eq!(done.outcome, GOOD);
        assert_eq!(rig.target.port.counts.reads == before, immediate, "{len}");
        assert!(rig.memory.same(0, 64, 512));
    }
}

#[test]
fn hanging_commands_are_aborted() {
    let mut rig = ours(6);
    let mut hang = || {
        let request = command(HANG, 0, 0, host(0, 512), Places::EMPTY);
        let task = rig.submit(request);
        rig.run();
        task
    };
    let tasks = [hang(), hang(), hang()];
    let function = rig.peer.machine.function(0, TaskFunction::ABORT_TASK, Some(tasks[1])).unwrap();
    rig.run();
    let aborted = |task| Completion {
        task,
        outcome: Outcome::Aborted,
        read_bytes: 0,
        write_bytes: 0,
        residual: Residual::None,
        read_residual: Residual::None,
    };
    let done = Event::FunctionDone { id: function, response: ResponseCode::COMPLETE };
    assert_eq!(std::mem::take(&mut rig.events), [Event::Completed(aborted(tasks[1])), done]);
    let function = rig.peer.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None).unwrap();
    rig.run();
    let done = Event::FunctionDone { id: function, response: ResponseCode::COMPLETE };
    let ended = [aborted(tasks[0]), aborted(tasks[2])].map(Event::Completed);
    assert_eq!(rig.events[..2], ended);
    assert_eq!(std::mem::take(&mut rig.events)[2..], [done]);
    assert_eq!(rig.device().aborted, 3);
    let function = rig.peer.machine.function(0, TaskFunction::CLEAR_ACA, None).unwrap();
    rig.run();
    let done = Event::FunctionDone { id: function, response: ResponseCode::NOT_SUPPORTED };
    assert_eq!(std::mem::take(&mut rig.events), [done]);
    assert!(rig.is_at_rest());
}

/// A function overtakes the commands that wait, and does not end them.
#[test]
fn a_function_ends_only_what_was_sent_before_it() {
    for function in
        [TaskFunction::ABORT_TASK_SET, TaskFunction::CLEAR_TASK_SET, TaskFunction::LOGICAL_UNIT_RESET]
    {
        let mut rig = ours(13);
        let hangs = rig.submit(command(HANG, 0, 0, Places::EMPTY, Places::EMPTY));
        rig.run();
        let writes = [0, 512].map(|at| rig.submit(command(WRITE, at, 512, Places::EMPTY, one(at, 512))));
        rig.peer.machine.function(0, function, None).unwrap();
        rig.run();
        let outcome = |task| {
            rig.events.iter().find_map(|event| match event {
                Event::Completed(completion) if completion.task == task => Some(completion.outcome),
                _ => None,
            })
        };
        assert_eq!(outcome(hangs), Some(Outcome::Aborted));
        assert_eq!(writes.map(outcome), [Some(GOOD), Some(GOOD)]);
        assert!(rig.is_at_rest());
    }
}

/// More commands than there are credits wait for their turn, and one credit is left for an abort.
#[test]
fn commands_wait_for_credits() {
    let mut rig = ours(7);
    let tasks: Vec<_> =
        (0..16).map(|_| rig.submit(command(HANG, 0, 0, Places::EMPTY, Places::EMPTY))).collect();
    assert_eq!(rig.peer.machine.submit(command(HANG, 0, 0, Places::EMPTY, Places::EMPTY)), None);
    rig.run();
    assert_eq!(rig.device().running(), 7);
    rig.peer.machine.function(0, TaskFunction::ABORT_TASK, Some(tasks[0])).unwrap();
    rig.run();
    assert_eq!((rig.device().running(), rig.events.len()), (7, 2));
    // A command that was not sent cannot be aborted.
    rig.peer.machine.function(0, TaskFunction::ABORT_TASK, Some(tasks[15])).unwrap();
    rig.run();
    assert_eq!(rig.events.len(), 4);
}

#[test]
fn asynchronous_events_are_reported() {
    let mut rig = ours(8);
    let sense = Sense::from_bytes(&[0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 0x0e, 0, 0, 0, 0]);
    for _ in 0..3 {
        assert!(rig.target.machine.notify_event(5 << 48, sense));
        assert!(!rig.target.machine.notify_event(5 << 48, sense), "one at a time");
        rig.run();
        assert_eq!(rig.events.pop(), Some(Event::Async { lun: 5 << 48, sense }));
    }
    assert!(rig.is_at_rest());
}

#[test]
fn both_sides_log_out() {
    let mut rig = ours(9);
    rig.peer.machine.logout();
    rig.run();
    assert_eq!((rig.gone(), rig.target_gone.as_deref()), ("logged out", Some("logged out")));

    let mut rig = ours(9);
    rig.down(Down::Close);
    rig.run();
    assert_eq!(rig.gone(), "logged out by the target with reason 0");
    assert_eq!(rig.target_gone.as_deref(), Some("closed by this side"));

    // A requested logout waits a limited time for what is in progress.
    let mut rig = ours(9);
    let task = rig.submit(command(HANG, 0, 0, Places::EMPTY, Places::EMPTY));
    rig.run();
    rig.down(Down::RequestLogout { within_seconds: 60 });
    rig.run();
    assert_eq!(rig.target_gone, None);
    rig.peer.machine.function(0, TaskFunction::ABORT_TASK, Some(task)).unwrap();
    rig.run();
    assert_eq!(rig.target_gone.as_deref(), Some("logged out by this side"));
    assert!(
        matches!(rig.events[0], Event::Completed(_)) && matches!(rig.events[1], Event::FunctionDone { .. })
    );

    let mut rig = ours(9);
    rig.submit(command(HANG, 0, 0, Places::EMPTY, Places::EMPTY));
    rig.run();
    rig.down(Down::RequestLogout { within_seconds: 3 });
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.target_gone, None);
    rig.pass(Duration::from_secs(2));
    assert_eq!(rig.target_gone.as_deref(), Some("logged out by this side"));
}

/// A silent peer is sent a ping, which a live one answers.
#[test]
fn both_ends_keep_the_connection_alive() {
    let mut rig = ours(10);
    rig.pass(IDLE * 20);
    assert_eq!((rig.broken, rig.events.len()), (None, 0));
    assert_eq!(rig.execute(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY)).outcome, GOOD);
    assert!(rig.is_at_rest());
    rig.silent = true;
    rig.pass(IDLE * 3);
    assert_eq!(rig.gone(), "no answer to keep-alive");
}

/// A side without credits cannot send a ping, and waits.
#[test]
fn a_target_that_is_busy_for_long_is_not_abandoned() {
    let mut rig = Rig::ours(INITIATOR, TargetConfig { queue_depth: 1, ..CONFIG }, 10);
    rig.submit(command(HANG, 0, 0, Places::EMPTY, Places::EMPTY));
    rig.pass(IDLE * 20);
    assert_eq!((rig.broken, rig.events.len()), (None, 0));
}

#[test]
fn a_login_does_not_take_for_ever() {
    let machine = Initiator::new(INITIATOR, START);
    let mut rig = Rig::new(machine, rig::target(CONFIG, rig::TestAccess::default()), 1);
    rig.pass(IDLE * 2);
    assert_eq!(rig.gone(), "login took too long");
}

#[test]
fn a_depth_of_one_is_enough() {
    let config = TargetConfig { queue_depth: 1, ..CONFIG };
    let mut rig = Rig::ours(INITIATOR, config, 11);
    for _ in 0..10 {
        rig.submit(command(WRITE, 0, 9000, Places::EMPTY, host(5, 9000)));
    }
    rig.run();
    assert_eq!(rig.events.len(), 10);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is requested in whatever order it moves: every command ends once, and every byte is where it
    /// belongs.
    #[test]
    fn all_commands_end_and_all_bytes_arrive(
        seed in any::<u64>(),
        depth in 1..12u16,
        works in proptest::collection::vec((0..4u8, 0..40_000u32, 0..40_000u32), 1..30),
    ) {
        let mut rig = Rig::ours(
            InitiatorConfig { queue_depth: 64, ..INITIATOR },
            TargetConfig { queue_depth: depth, ..CONFIG },
            seed,
        );
        let mut areas = Vec::new();
        for (n, (kind, len, device)) in (0u32..).zip(works) {
            let at = n * 40_000;
            let request = match kind {
                0 => command(READ, at, device, host(at, len), Places::EMPTY),
                1 => command(WRITE, at, device, Places::EMPTY, host(at, len)),
                2 => command(WRITE, at, device % 4096, Places::EMPTY, host(at, len % 4096)),
                _ => command(BROKEN, at, 0, Places::EMPTY, host(at, len)),
            };
            let moved = match kind {
                0 | 1 => len.min(device),
                2 => (len % 4096).min(device % 4096),
                _ => 0,
            };
            areas.push((rig.submit(request), at, moved));
        }
        rig.run();
        let mut ended: Vec<_> = rig.events.iter().map(|event| match event {
            Event::Completed(completion) => completion.task,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(ended.len(), areas.len(), "{:?} {:?}", rig.broken, rig.target_gone);
        ended.sort();
        ended.dedup();
        prop_assert_eq!(ended.len(), areas.len());
        for (_, at, moved) in areas {
            prop_assert!(rig.memory.same(at, at, moved));
        }
        prop_assert_eq!(rig.peer.port.advertised(), 0);
        prop_assert_eq!(rig.target.port.ready(), usize::from(depth) + 2);
    }
}
