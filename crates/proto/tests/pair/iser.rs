//! Our two ends of an iSER connection against each other, and each of them against a hostile peer.

mod aborts;
mod hostile;
mod logins;
mod raw;
mod rig;
mod violating_target;

use crate::support::fabric::Counts;
use crate::support::{BROKEN, GOOD, HANG, INCONSISTENT, READ, Setup, TEST_UNIT_READY, WRITE, command, host};
use proptest::prelude::*;
use proto::iscsi::initiator::{Event, Outcome, Residual};
use proto::iscsi::login::Offers;
use rig::Rig;
use wire::iscsi::{FunctionResponse, TaskFunction};
use wire::{Cdb, Places};

/// Lengths of every kind: none, less than a word, one message, more than a first burst, more than a burst.
const LENGTHS: [u32; 9] = [0, 1, 512, 4096, 8192, 8193, 65_536, 262_148, 1 << 20];

#[test]
fn data_of_every_length_arrives() {
    for (initial_r2t, immediate_data) in [(false, false), (false, true), (true, false), (true, true)] {
        let offers = Offers { initial_r2t, immediate_data, ..Offers::default() };
        let mut rig = Rig::logged_in(Setup::with(offers, |setup| setup.seed = 3));
        for (n, len) in (0u32..).zip(LENGTHS) {
            let done = rig.execute(command(WRITE, n, len, Places::EMPTY, host(77, len)));
            assert_eq!((done.outcome, done.residual, done.write_bytes), (GOOD, Residual::None, len));
            assert!(rig.memory.same(77, n, len), "{len}");
            let done = rig.execute(command(READ, n + 5, len, host(2 << 20, len), Places::EMPTY));
            assert_eq!((done.outcome, done.residual, done.read_bytes), (GOOD, Residual::None, len));
            assert!(rig.memory.same(2 << 20, n + 5, len), "{len}");
            assert!(rig.is_at_rest(), "{len}");
        }
    }
}

/// A small write needs one message each way, and no RDMA; a read is one RDMA Write.
#[test]
fn small_writes_are_inside_the_command() {
    let mut rig = Rig::logged_in(Setup::default());
    rig.execute(command(WRITE, 0, 8192, Places::EMPTY, host(0, 8192)));
    let mut counts = Counts { copied: 8192, ..Counts::default() };
    assert_eq!(rig.target.port.counts, counts);
    rig.execute(command(WRITE, 0, 12_288, Places::EMPTY, host(0, 12_288)));
    counts = Counts { reads: 1, copied: 16_384, invalidations: 1, ..counts };
    assert_eq!(rig.target.port.counts, counts);
    rig.execute(command(READ, 0, 8192, host(0, 8192), Places::EMPTY));
    assert_eq!(rig.target.port.counts, Counts { writes: 1, invalidations: 2, ..counts });
}

#[test]
fn data_that_did_not_move_is_not_counted_whatever_the_target_says() {
    let offers = Offers { initial_r2t: true, immediate_data: false, ..Offers::default() };
    let mut rig = Rig::logged_in(Setup::with(offers, |_| ()));
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
fn residuals_are_counted() {
    let mut rig = Rig::logged_in(Setup::default());
    for (expected, device, residual) in [
        (8192, 512, Residual::Underflow(7680)),
        (512, 8192, Residual::Overflow(7680)),
        (512, 0, Residual::Underflow(512)),
        (65_536, 40_000, Residual::Underflow(25_536)),
    ] {
        let done = rig.execute(command(READ, 0, device, host(0, expected), Places::EMPTY));
        assert_eq!((done.residual, done.read_bytes), (residual, expected.min(device)));
        let done = rig.execute(command(WRITE, 0, device, Places::EMPTY, host(0, expected)));
        assert_eq!((done.outcome, done.residual), (GOOD, residual));
    }
    let done = rig.execute(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY));
    assert_eq!((done.outcome, done.residual), (GOOD, Residual::None));
    assert!(rig.is_at_rest());
}

#[test]
fn sense_data_comes_with_check_condition() {
    let mut rig = Rig::logged_in(Setup::default());
    for (read, write) in [(0, 0), (0, 512), (0, 100_000), (4096, 0)] {
        let done = rig.execute(command(BROKEN, 0, 0, host(0, read), host(0, write)));
        let Outcome::Status { status: 2, sense: Some(sense) } = done.outcome else { panic!("{done:?}") };
        assert_eq!((sense.as_bytes()[2], sense.as_bytes()[12], done.read_bytes), (5, 0x20, 0));
        assert!(rig.is_at_rest());
    }
}

/// A command is aborted after any number of steps of its life; everything advertised and borrowed is
/// released.
#[test]
fn a_command_can_be_aborted_at_any_moment() {
    for (opcode, len) in [(WRITE, 8000), (WRITE, 300_000), (READ, 300_000), (HANG, 30_000)] {
        for seed in 0..120 {
            let offers = Offers { immediate_data: seed % 3 != 0, ..Offers::default() };
            let mut rig = Rig::logged_in(Setup::with(offers, |setup| setup.seed = seed));
            let data = host(0, len);
            let (read, write) = if opcode == READ { (data, Places::EMPTY) } else { (Places::EMPTY, data) };
            let task = rig.submit(command(opcode, 0, len, read, write));
            for _ in 0..seed / 4 {
                rig.step();
            }
            let done_before = rig.events.iter().any(|event| matches!(event, Event::Completed(_)));
            let asked = rig.peer.machine.function(0, TaskFunction::ABORT_TASK, Some(task));
            assert!(asked.is_some() || done_before, "{opcode} {seed} {:?}", rig.events);
            rig.run();
            let ended = rig.events.iter().filter(|event| matches!(event, Event::Completed(_))).count();
            let answered =
                rig.events.iter().filter(|event| matches!(event, Event::FunctionDone { .. })).count();
            let counts = (ended, answered, rig.device().running());
            assert_eq!(counts, (1, usize::from(asked.is_some()), 0), "{opcode} {seed} {:?}", rig.events);
            assert!(rig.is_at_rest(), "{opcode} {seed}");
            rig.events.clear();
            let done = rig.execute(command(WRITE, 0, 9999, Places::EMPTY, host(5, 9999)));
            assert_eq!(done.outcome, GOOD);
            assert!(rig.memory.same(5, 0, 9999));
        }
    }
}

#[test]
fn a_reset_ends_what_is_before_it() {
    let mut rig = Rig::logged_in(Setup::default());
    for write in [0, 512, 100_000] {
        assert!(rig.peer.machine.submit(command(HANG, 0, 0, Places::EMPTY, host(0, write))).is_some());
    }
    rig.run();
    assert_eq!((rig.events.len(), rig.device().running()), (0, 3));
    let id = rig.peer.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None).unwrap();
    let after = rig.peer.machine.submit(command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY));
    rig.run();
    let aborted = rig.events.iter().filter(
        |event| matches!(event, Event::Completed(completion) if completion.outcome == Outcome::Aborted),
    );
    assert_eq!((aborted.count(), rig.device().aborted), (3, 3));
    assert!(rig.events.contains(&Event::FunctionDone { id, response: FunctionResponse::COMPLETE }));
    let finished = |event: &Event| matches!(event, Event::Completed(done) if Some(done.task) == after && done.outcome == GOOD);
    assert!(rig.events.iter().any(finished));
    assert!(rig.is_at_rest());
}

/// A long CDB arrives in additional header segments; of two STags one is invalidated remotely, the other
/// locally.
#[test]
fn long_and_bidirectional_commands_leave_nothing_behind() {
    let mut rig = Rig::logged_in(Setup::default());
    for (read, write) in [(0, 0), (0, 9000), (9000, 0), (4096, 512), (512, 100_000)] {
        let mut request = command(TEST_UNIT_READY, 0, 0, host(0, read), host(1 << 20, write));
        let mut cdb = [0; 32];
        cdb[0] = 0x7f;
        request.cdb = Cdb::from_bytes(&cdb).unwrap();
        let done = rig.execute(request);
        assert_eq!((done.outcome, done.read_bytes), (GOOD, 0), "{read} {write}");
        assert!(rig.is_at_rest(), "{read} {write}");
    }
}

/// The fabric panics when a message finds no receive.
#[test]
fn more_commands_than_the_window_wait_for_it() {
    for (queue_depth, immediate_data) in [(2, true), (2, false), (30, true), (64, true)] {
        let offers = Offers { immediate_data, ..Offers::default() };
        let mut rig = Rig::logged_in(Setup::with(offers, |setup| {
            setup.queue_depth = queue_depth;
            setup.initiator_depth = 64;
        }));
        for n in 0..64 {
            let (read, write) = (host(n * 9000, 9000), Places::EMPTY);
            let (read, write) = if n % 2 == 0 { (read, write) } else { (write, read) };
            let opcode = if n % 2 == 0 { READ } else { WRITE };
            let request = command(opcode, n * 9000, 9000, read, write);
            assert!(rig.peer.machine.submit(request).is_some());
        }
        let one = command(TEST_UNIT_READY, 0, 0, Places::EMPTY, Places::EMPTY);
        assert!(rig.peer.machine.submit(one).is_none(), "the queue is full");
        rig.run();
        assert_eq!(rig.events.len(), 64, "{:?}", rig.target_gone);
        let good = |event: &Event| matches!(event, Event::Completed(done) if done.outcome == GOOD);
        assert!(rig.events.iter().all(good));
        assert!(rig.memory.same(0, 0, 64 * 9000) && rig.is_at_rest());
    }
}

/// Short data segments need many receives: then fewer commands are admitted, and all find a receive.
#[test]
fn the_window_is_what_there_are_receives_for() {
    for (segment, initial_r2t, depth) in
        [(8192, false, 128), (1024, false, 111), (512, false, 59), (512, true, 128)]
    {
        let offers = Offers {
            initial_r2t,
            immediate_data: true,
            first_burst: 8192,
            max_recv: segment,
            ..Offers::default()
        };
        let mut rig = Rig::logged_in(Setup::with(offers, |setup| {
            setup.queue_depth = 128;
            setup.initiator_depth = 200;
            setup.offers.max_recv = segment;
        }));
        assert!(rig.target.port.ready() <= usize::from(rig::RECEIVES_MAX), "{}", rig.target.port.ready());
        for n in 0..200 {
            rig.submit(command(HANG, n, 0, Places::EMPTY, Places::EMPTY));
        }
        rig.run();
        assert_eq!((rig.device().running(), &rig.target_gone), (depth, &None), "{segment} {initial_r2t}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever was negotiated and in whichever order things happen, reads return what was written.
    #[test]
    fn what_is_written_is_read_back(
        seed in any::<u64>(),
        flags in any::<[bool; 2]>(),
        lengths in (512..100_000u32, 512..100_000u32),
        segments in (512..8192u32, 512..8192u32),
        outstanding in 1..6u16,
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
        let mut rig = Rig::logged_in(Setup::with(offers, |setup| {
            setup.seed = seed;
            setup.queue_depth = 5;
            setup.initiator_depth = 32;
            setup.offers.max_recv = segments.1;
        }));
        let mut areas = Vec::new();
        for (n, (reads, len)) in (0u32..).zip(commands) {
            let at = n * 40_000;
            let request = if reads {
                command(READ, at, len, host(at, len), Places::EMPTY)
            } else {
                command(WRITE, at, len, Places::EMPTY, host(at, len))
            };
            rig.submit(request);
            areas.push((at, len));
        }
        rig.run();
        prop_assert_eq!(rig.events.len(), areas.len(), "{:?}", rig.target_gone);
        for event in &rig.events {
            let good = matches!(event, Event::Completed(done)
                if done.outcome == GOOD && done.residual == Residual::None);
            prop_assert!(good, "{event:?}");
        }
        for (at, len) in areas {
            prop_assert!(rig.memory.same(at, at, len));
        }
        prop_assert!(rig.is_at_rest());
        rig.peer.machine.logout(rig.now);
        rig.run();
        prop_assert_eq!(rig.gone(), "logged out");
    }

    /// Whatever is aborted when, each command ends once, and everything borrowed and advertised is released.
    #[test]
    fn aborts_at_any_time_leave_nothing_behind(
        seed in any::<u64>(),
        flags in any::<[bool; 2]>(),
        commands in proptest::collection::vec((0..4usize, 0..300_000u32, 0..20u8), 1..30),
    ) {
        let offers = Offers { initial_r2t: flags[0], immediate_data: flags[1], ..Offers::default() };
        let mut rig = Rig::logged_in(Setup::with(offers, |setup| {
            setup.seed = seed;
            setup.queue_depth = 6;
            setup.initiator_depth = 32;
        }));
        let (mut tasks, mut functions) = (Vec::new(), 0);
        for (kind, len, steps) in commands {
            let (read, write) = if kind == 0 { (len, 0) } else { (0, len) };
            let opcode = [READ, WRITE, HANG, BROKEN][kind];
            let request = command(opcode, 0, len, host(0, read), host(0, write));
            tasks.push(rig.submit(request));
            for _ in 0..steps {
                rig.step();
            }
            let task = tasks[(seed as usize + tasks.len() * 7) % tasks.len()];
            let asked = match steps {
                0..10 => None,
                10..19 => rig.peer.machine.function(0, TaskFunction::ABORT_TASK, Some(task)),
                _ => rig.peer.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None),
            };
            functions += usize::from(asked.is_some());
        }
        // Commands that waited for the window hang only after a reset.
        for _ in 0..8 {
            rig.run();
            let asked = rig.peer.machine.function(0, TaskFunction::LOGICAL_UNIT_RESET, None);
            functions += usize::from(asked.is_some());
        }
        rig.run();
        let mut ended: Vec<_> = rig.events.iter().filter_map(|event| match event {
            Event::Completed(done) => Some(done.task),
            _ => None,
        }).collect();
        ended.sort();
        tasks.sort();
        prop_assert_eq!(ended, tasks, "{:?}", rig.target_gone);
        let answered = rig.events.iter().filter(|event| matches!(event, Event::FunctionDone { .. }));
        prop_assert_eq!((answered.count(), rig.device().running()), (functions, 0));
        prop_assert!(rig.is_at_rest());
        rig.events.clear();
        let done = rig.execute(command(WRITE, 0, 70_000, Places::EMPTY, host(5, 70_000)));
        prop_assert_eq!(done.outcome, GOOD);
        prop_assert!(rig.memory.same(5, 0, 70_000));
    }
}
