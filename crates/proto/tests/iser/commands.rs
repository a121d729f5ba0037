//! Commands, their data and their ends.

use super::pair::Pair;
use crate::support::{BROKEN, HANG, READ, Setup, TEST_UNIT_READY, WRITE, command, host};
use proptest::prelude::*;
use proto::iscsi::initiator::{Event, Outcome, Residual};
use proto::iscsi::login::Offers;
use wire::iscsi::{FunctionResponse, TaskFunction};
use wire::{Cdb, Places};

const GOOD: Outcome = Outcome::Status { status: 0, sense: None };
/// Lengths of every kind: none, less than a word, one message, more than a first burst, more than a burst.
const LENGTHS: [u32; 9] = [0, 1, 512, 4096, 8192, 8193, 65_536, 262_148, 1 << 20];

fn with(offers: Offers, change: impl FnOnce(&mut Setup)) -> Setup {
    let mut setup = Setup::default();
    setup.plan.offers = offers;
    change(&mut setup);
    setup
}

#[test]
fn data_of_every_length_arrives() {
    for (initial_r2t, immediate_data) in [(false, false), (false, true), (true, false), (true, true)] {
        let offers = Offers { initial_r2t, immediate_data, ..Offers::default() };
        let mut pair = Pair::logged_in(with(offers, |setup| setup.seed = 3));
        for (n, len) in (0u32..).zip(LENGTHS) {
            let done = pair.execute(command(WRITE, n, len, Places::EMPTY, host(77, len)));
            assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
            assert!(pair.same(77, n, len), "{len}");
            let done = pair.execute(command(READ, n + 5, len, host(2 << 20, len), Places::EMPTY));
            assert_eq!((done.outcome, done.residual, done.read_bytes), (GOOD, Residual::None, len));
            assert!(pair.same(2 << 20, n + 5, len), "{len}");
            assert!(pair.is_at_rest(), "{len}");
        }
    }
}

/// A small write needs one message each way, and no RDMA; a read is one RDMA Write.
#[test]
fn small_writes_are_inside_the_command() {
    let mut pair = Pair::logged_in(Setup::default());
    pair.execute(command(WRITE, 0, 8192, Places::EMPTY, host(0, 8192)));
    let queues = &pair.target.queues;
    assert_eq!((queues.reads, queues.writes, queues.copied, queues.invalidations), (0, 0, 8192, 0));
    pair.execute(command(WRITE, 0, 12_288, Places::EMPTY, host(0, 12_288)));
    let queues = &pair.target.queues;
    assert_eq!((queues.reads, queues.writes, queues.copied, queues.invalidations), (1, 0, 16_384, 1));
    pair.execute(command(READ, 0, 8192, host(0, 8192), Places::EMPTY));
    let queues = &pair.target.queues;
    assert_eq!((queues.reads, queues.writes, queues.copied, queues.invalidations), (1, 1, 16_384, 2));
}

#[test]
fn residuals_are_counted() {
    let mut pair = Pair::logged_in(Setup::default());
    for (expected, device, residual) in [
        (8192, 512, Residual::Underflow(7680)),
        (512, 8192, Residual::Overflow(7680)),
        (512, 0, Residual::Underflow(512)),
        (65_536, 40_000, Residual::Underflow(25_536)),
    ] {
        let done = pair.execute(command(READ, 0, device, host(0, expected), Places::EMPTY));
        assert_eq!((done.residual, done.read_bytes), (residual, expected.min(device)));
        let done = pair.execute(command(WRITE, 0, device, Places::EMPTY, host(0, expected)));
        assert_eq!((done.outcome, done.residual), (GOOD, residual));
    }
    let done = pair.execute(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY));
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
    assert!(pair.is_at_rest());
}

#[test]
fn sense_data_comes_with_check_condition() {
    let mut pair = Pair::logged_in(Setup::default());
    for (read, write) in [(0, 0), (0, 512), (0, 100_000), (4096, 0)] {
        let done = pair.execute(command(BROKEN, 0, 0, host(0, read), host(0, write)));
        let Outcome::Status { status: 2, sense: Some(sense) } = done.outcome else { panic!("{done:?}") };
        assert_eq!((sense.as_bytes()[2], sense.as_bytes()[12], done.read_bytes), (5, 0x20, 0));
        assert!(pair.is_at_rest());
    }
}

/// A command is aborted after each number of steps of its life; what is advertised and lent comes home.
#[test]
fn a_command_can_be_aborted_at_any_moment() {
    for (opcode, len) in [(WRITE, 8000), (WRITE, 300_000), (READ, 300_000), (HANG, 30_000)] {
        for seed in 0..120 {
            let (steps, room) = (seed / 4, if seed % 2 == 0 { 1 << 20 } else { 1 });
            let offers = Offers { immediate_data: seed % 3 != 0, ..Offers::default() };
            let mut pair = Pair::logged_in(with(offers, |setup| setup.seed = seed));
            (pair.initiator.queues.room, pair.target.queues.room) = (room, room);
            let data = host(0, len);
            let (read, write) = if opcode == READ { (data, Places::EMPTY) } else { (Places::EMPTY, data) };
            let task = pair.initiator.machine.submit(command(opcode, 0, len, read, write)).unwrap();
            for _ in 0..steps {
                pair.step();
            }
            let done_before = pair.events.iter().any(|event| matches!(event, Event::Completed(_)));
            let asked = pair.initiator.machine.function(0, TaskFunction::ABORT_TASK, Some(task));
            assert!(asked.is_some() || done_before, "{opcode} {seed} {:?}", pair.events);
            pair.run();
            let ended = pair.events.iter().filter(|event| matches!(event, Event::Completed(_))).count();
            let answered =
                pair.events.iter().filter(|event| matches!(event, Event::FunctionDone { .. })).count();
            let counts = (ended, answered, pair.device.running());
            assert_eq!(counts, (1, usize::from(asked.is_some()), 0), "{opcode} {seed} {:?}", pair.events);
            assert!(pair.is_at_rest(), "{opcode} {seed}");
            pair.events.clear();
            let done = pair.execute(command(WRITE, 0, 9999, Places::EMPTY, host(5, 9999)));
            assert_eq!(done.outcome, GOOD);
            assert!(pair.same(5, 0, 9999));
        }
    }
}

#[test]
fn a_reset_ends_what_is_before_it() {
    let mut pair = Pair::logged_in(Setup::default());
    for write in [0, 512, 100_000] {
        assert!(pair.initiator.machine.submit(command(HANG, 0, 0, Places::EMPTY, host(0, write))).is_some());
    }
    pair.run();
    assert_eq!((pair.events.len(), pair.device.running()), (0, 3));
    let id = pair.initiator.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None).unwrap();
    let after = pair.initiator.machine.submit(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY));
    pair.run();
    let aborted = pair.events.iter().filter(
        |event| matches!(event, Event::Completed(completion) if completion.outcome == Outcome::Aborted),
    );
    assert_eq!((aborted.count(), pair.device.aborted), (3, 3));
    assert!(pair.events.contains(&Event::FunctionDone { id, response: FunctionResponse::COMPLETE }));
    let finished = |event: &Event| matches!(event, Event::Completed(done) if Some(done.task) == after && done.outcome == GOOD);
    assert!(pair.events.iter().any(finished));
    assert!(pair.is_at_rest());
}

/// A long CDB comes in additional header segments; of two STags one comes back, and the other is seen to.
#[test]
fn long_and_bidirectional_commands_leave_nothing_behind() {
    let mut pair = Pair::logged_in(Setup::default());
    for (read, write) in [(0, 0), (0, 9000), (9000, 0), (4096, 512), (512, 100_000)] {
        let mut request = command(TEST_UNIT_READY, 0, 0, host(0, read), host(1 << 20, write));
        let mut cdb = [0; 32];
        cdb[0] = 0x7f;
        request.cdb = Cdb::from_bytes(&cdb).unwrap();
        let done = pair.execute(request);
        assert_eq!((done.outcome, done.read_bytes), (GOOD, 0), "{read} {write}");
        assert!(pair.is_at_rest(), "{read} {write}");
    }
}

/// The fabric panics when a message finds no receive.
#[test]
fn more_commands_than_the_window_wait_for_it() {
    for (queue_depth, room, immediate_data) in
        [(2, 1 << 20, true), (2, 1, false), (30, 3, true), (64, 1, true)]
    {
        let offers = Offers { immediate_data, ..Offers::default() };
        let mut pair = Pair::logged_in(with(offers, |setup| {
            setup.queue_depth = queue_depth;
            setup.initiator_depth = 64;
        }));
        (pair.initiator.queues.room, pair.target.queues.room) = (room, room);
        for n in 0..64 {
            let (read, write) = (host(n * 9000, 9000), Places::EMPTY);
            let (read, write) = if n % 2 == 0 { (read, write) } else { (write, read) };
            let opcode = if n % 2 == 0 { READ } else { WRITE };
            let request = command(opcode, n * 9000, 9000, read, write);
            assert!(pair.initiator.machine.submit(request).is_some());
        }
        let one = command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY);
        assert!(pair.initiator.machine.submit(one).is_none(), "the queue is full");
        pair.run();
        assert_eq!(pair.events.len(), 64, "{:?}", pair.target_gone);
        let good = |event: &Event| matches!(event, Event::Completed(done) if done.outcome == GOOD);
        assert!(pair.events.iter().all(good));
        assert!(pair.same(0, 0, 64 * 9000) && pair.is_at_rest());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was negotiated and in whichever order things happen, all that is written is read back.
    #[test]
    fn what_is_written_is_read_back(
        seed in any::<u64>(),
        flags in any::<[bool; 2]>(),
        lengths in (512..100_000u32, 512..100_000u32),
        segments in (512..8192u32, 512..8192u32),
        outstanding in 1..6u16,
        rooms in (1..6usize, 1..6usize),
        commands in proptest::collection::vec((any::<bool>(), 0..40_000u32), 1..24),
    ) {
        let offers = Offers {
            initial_r2t: flags[0],
            immediate_data: flags[1],
            first_burst: lengths.0,
            max_burst: lengths.1,
            max_outstanding_r2t: outstanding,
            max_recv: segments.0,
            ..Offers::default()
        };
        let mut pair = Pair::logged_in(with(offers, |setup| {
            setup.seed = seed;
            setup.queue_depth = 5;
            setup.initiator_depth = 32;
            setup.offers.max_recv = segments.1;
        }));
        (pair.initiator.queues.room, pair.target.queues.room) = rooms;
        let mut areas = Vec::new();
        for (n, (reads, len)) in (0u32..).zip(commands) {
            let at = n * 40_000;
            let request = if reads {
                command(READ, at, len, host(at, len), Places::EMPTY)
            } else {
                command(WRITE, at, len, Places::EMPTY, host(at, len))
            };
            pair.initiator.machine.submit(request).unwrap();
            areas.push((at, len));
        }
        pair.run();
        prop_assert_eq!(pair.events.len(), areas.len(), "{:?}", pair.target_gone);
        for event in &pair.events {
            let good = matches!(event, Event::Completed(done)
                if done.outcome == GOOD && done.residual == Residual::None);
            prop_assert!(good, "{event:?}");
        }
        for (at, len) in areas {
            prop_assert!(pair.same(at, at, len));
        }
        prop_assert!(pair.is_at_rest());
        pair.initiator.machine.logout(pair.now);
        pair.run();
        prop_assert_eq!(pair.gone(), "logged out");
    }

    /// Whatever is aborted when, each command ends once, and all that was lent and advertised comes home.
    #[test]
    fn aborts_at_any_time_leave_nothing_behind(
        seed in any::<u64>(),
        flags in any::<[bool; 2]>(),
        rooms in (1..6usize, 1..6usize),
        commands in proptest::collection::vec((0..4usize, 0..300_000u32, 0..20u8), 1..30),
    ) {
        let offers = Offers { initial_r2t: flags[0], immediate_data: flags[1], ..Offers::default() };
        let mut pair = Pair::logged_in(with(offers, |setup| {
            setup.seed = seed;
            setup.queue_depth = 6;
            setup.initiator_depth = 32;
        }));
        (pair.initiator.queues.room, pair.target.queues.room) = rooms;
        let (mut tasks, mut functions) = (Vec::new(), 0);
        for (kind, len, steps) in commands {
            let (read, write) = if kind == 0 { (len, 0) } else { (0, len) };
            let opcode = [READ, WRITE, HANG, BROKEN][kind];
            let request = command(opcode, 0, len, host(0, read), host(0, write));
            tasks.push(pair.initiator.machine.submit(request).unwrap());
            for _ in 0..steps {
                pair.step();
            }
            let task = tasks[(seed as usize + tasks.len() * 7) % tasks.len()];
            let asked = match steps {
                0..10 => None,
                10..19 => pair.initiator.machine.function(0, TaskFunction::ABORT_TASK, Some(task)),
                _ => pair.initiator.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None),
            };
            functions += usize::from(asked.is_some());
        }
        // What waited for the window hangs only after a reset.
        for _ in 0..8 {
            pair.run();
            let asked = pair.initiator.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None);
            functions += usize::from(asked.is_some());
        }
        pair.run();
        let mut ended: Vec<_> = pair.events.iter().filter_map(|event| match event {
            Event::Completed(done) => Some(done.task),
            _ => None,
        }).collect();
        ended.sort();
        tasks.sort();
        prop_assert_eq!(ended, tasks, "{:?}", pair.target_gone);
        let answered = pair.events.iter().filter(|event| matches!(event, Event::FunctionDone { .. }));
        prop_assert_eq!((answered.count(), pair.device.running()), (functions, 0));
        prop_assert!(pair.is_at_rest());
        pair.events.clear();
        let done = pair.execute(command(WRITE, 0, 70_000, Places::EMPTY, host(5, 70_000)));
        prop_assert_eq!(done.outcome, GOOD);
        prop_assert!(pair.same(5, 0, 70_000));
    }
}
