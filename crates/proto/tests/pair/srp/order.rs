//! Commands enter the task set in order of arrival, however late their descriptor tables are read (SAM-5
//! section 8.9.3).

use super::rig::Rig;
use super::scripted::{ScriptedPeer, Shape, cdb, command, function};
use super::shapes::{buffers, table};
use crate::support::Random;
use proto::message::{Access, MessageMachine};
use proto::services::{Down, FunctionId, FunctionResponse, Termination, Up};
use wire::scsi::command::Read12;
use wire::srp::{LoginRequest, TaskFunction};

const RESET: u64 = 99;
/// Where the LUN is in SRP_CMD.
const LUN: std::ops::Range<usize> = 20..28;

/// A channel, and data-out whose descriptors have to be read.
fn rig(seed: u64) -> (Rig<ScriptedPeer>, Shape) {
    let mut rig = Rig::scripted(LoginRequest::IMMEDIATE, seed);
    let (list, _) = buffers(&mut rig, &[40; 100], Access::Read, &mut Random::new(seed));
    let shape = table(&mut rig, list, 0, 4000);
    (rig, shape)
}

/// The command with this number, for that LUN.
fn numbered(number: u32, lun: u8, data_out: &Shape) -> Vec<u8> {
    let mut unit = command(number.into(), &cdb(0, number, 0), data_out, &Shape::None);
    unit[LUN.start + 1] = lun;
    unit
}

/// The numbers of commands that were passed up; functions are answered, and are number [`RESET`].
fn numbers(rig: &mut Rig<ScriptedPeer>) -> Vec<u64> {
    numbers_and_aborted(rig).0
}

/// The same, and those of commands that were aborted before they were passed up.
fn numbers_and_aborted(rig: &mut Rig<ScriptedPeer>) -> (Vec<u64>, Vec<u64>) {
    let (mut numbers, mut aborted) = (Vec::new(), Vec::new());
    for up in std::mem::take(&mut rig.ups) {
        match up {
            Up::Command(command) => numbers.push(u64::from(command.cdb.get(Read12::LBA))),
            Up::Terminated { command, how: Termination::Aborted } => {
                aborted.push(u64::from(command.cdb.get(Read12::LBA)));
            }
            Up::Function { id, .. } => {
                numbers.push(RESET);
                rig.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
            }
            // A table of an aborted command was being read.
            Up::Pushed(_) | Up::Leaving => {}
            other => panic!("{other:?}"),
        }
    }
    (numbers, aborted)
}

#[test]
fn commands_go_up_in_the_order_in_which_they_came() {
    for seed in 0..50 {
        let (mut rig, tabled) = rig(seed);
        let shapes = [Shape::None, Shape::Immediate(vec![1; 600]), tabled];
        let mut random = Random::new(seed ^ 0x77);
        for number in 0..8 {
            let shape = &shapes[random.below(3)];
            rig.send(&numbered(number, 0, shape));
        }
        rig.run();
        assert_eq!(numbers(&mut rig), [0, 1, 2, 3, 4, 5, 6, 7], "seed {seed}");
        assert_eq!((rig.broken, &rig.target_gone), (None, &None));
    }
}

#[test]
fn a_command_that_is_aborted_holds_up_none_behind_it() {
    for seed in 0..60 {
        let (mut rig, tabled) = rig(seed);
        rig.send(&numbered(1, 0, &tabled));
        rig.send(&numbered(2, 0, &tabled));
        rig.send(&numbered(3, 0, &Shape::None));
        let aborted = 1 + seed % 3;
        rig.send(&function(RESET, TaskFunction::ABORT_TASK, aborted));
        rig.run();
        let (mut seen, silent) = numbers_and_aborted(&mut rig);
        seen.retain(|number| *number != RESET);
        let left: Vec<u64> = (1..4).filter(|number| *number != aborted).collect();
        let is_silent = seen == left && silent == [aborted];
        assert!(
            is_silent || seen == [1, 2, 3] && silent.is_empty(),
            "seed {seed}: {seen:?} without {aborted}"
        );
        rig.run();
        assert!(!rig.peer.machine.inbox.is_empty(), "seed {seed}: the abort is answered");
        assert_eq!((rig.broken, &rig.target_gone), (None, &None));
    }
}

/// Commands for two LUNs, and a reset of the first, which has just been passed up.
fn reset(seed: u64) -> (Rig<ScriptedPeer>, FunctionId) {
    let (mut rig, tabled) = rig(seed);
    rig.send(&numbered(1, 0, &tabled));
    rig.send(&numbered(2, 0, &Shape::None));
    rig.send(&numbered(3, 1, &Shape::None));
    rig.send(&numbered(4, 0, &tabled));
    rig.send(&numbered(5, 1, &tabled));
    rig.send(&function(RESET, TaskFunction::LOGICAL_UNIT_RESET, 0));
    loop {
        assert!(rig.step(), "seed {seed}: the reset goes up");
        if let Some(Up::Function { id, .. }) = rig.ups.last() {
            let id = *id;
            rig.ups.pop();
            return (rig, id);
        }
    }
}

#[test]
fn what_a_reset_ends_does_not_go_up_behind_it() {
    for seed in 0..60 {
        let (mut rig, id) = reset(seed);
        let before = numbers(&mut rig);
        rig.target.machine.forget_unread(|lun| lun == 0);
        rig.down(Down::FunctionDone { id, response: FunctionResponse::Complete });
        rig.run();
        let (behind, aborted) = numbers_and_aborted(&mut rig);
        assert!(behind.iter().all(|number| [3, 5].contains(number)), "seed {seed}: {before:?} {behind:?}");
        assert!(before.is_sorted() && behind.is_sorted(), "seed {seed}: {before:?} {behind:?}");
        let seen = [before, behind].concat();
        assert!(seen.contains(&3) && seen.contains(&5), "seed {seed}: {seen:?}");
        let mut all = [seen, aborted].concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5], "seed {seed}: each is reported once");
        assert_eq!((rig.broken, &rig.target_gone), (None, &None));
    }
}

#[test]
fn a_reset_that_is_refused_ends_nothing() {
    for seed in 0..60 {
        let (mut rig, id) = reset(seed);
        rig.down(Down::FunctionDone { id, response: FunctionResponse::NotAuthorized });
        rig.run();
        assert_eq!(numbers(&mut rig), [1, 2, 3, 4, 5], "seed {seed}");
        assert_eq!((rig.broken, &rig.target_gone), (None, &None));
    }
}

#[test]
fn nothing_goes_up_behind_a_logout() {
    for seed in 0..40 {
        let (mut rig, tabled) = rig(seed);
        rig.send(&numbered(1, 0, &tabled));
        rig.send(&numbered(2, 1, &Shape::None));
        rig.send(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
        while rig.target_gone.is_none() && rig.step() {}
        assert_eq!(rig.target_gone.as_deref(), Some("logged out"), "seed {seed}");
        rig.target.machine.forget_unread(|lun| lun == 0);
        let up = rig.target.machine.poll();
        assert!(up.is_none(), "seed {seed}: {up:?}");
        let (seen, aborted) = numbers_and_aborted(&mut rig);
        assert_eq!([seen, aborted].concat(), [1, 2], "seed {seed}: each is reported once");
    }
}
