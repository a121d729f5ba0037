//! Commands that have begun and hang delay the change that removes their right.

use crate::core::changes::tests::unended;
use crate::testing::initiator::{Initiator, Login, Pdu, write_cdb};
use crate::testing::{HeldStore, everyone, serve};
use crate::{Daemon, Wants};
use config::Config;
use std::time::Duration;
use wire::scsi::command::{ModeSelect6, SanitizeOverwrite};

const BLOCK: u32 = 512;

#[test]
fn an_erasure_that_has_outlived_its_session_holds_up_what_protects_the_medium() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(1, &stores, |_| {});
    let [mut erases, mut other] =
        ["one", "two"].map(|name| Initiator::login(&url, &Login::named(name)).expect("a session"));
    (0..2).for_each(|lun| erases.ready(lun).expect("the unit is ready"));
    other.ready(0).expect("the unit is ready");
    stores[1].hold();
    // One pass (SBC-4 section 5.31), with a pattern of four bytes.
    let pattern = vec![1, 0, 0, 4, 1, 2, 3, 4];
    erases.issue(1, SanitizeOverwrite::new(8), 0, pattern).expect("it is sent");
    stores[1].wait_for(1);
    erases.logout().expect("an answer");
    other.read_blocks(0, 0, 1, BLOCK).expect("GOOD");
    daemon.wait_at_most(Duration::ZERO);
    let mut to = daemon.config().clone();
    to.luns[1].read_only = true;
    let step = config::diff(daemon.config(), &to).remove(0);
    let what = unended(daemon.take_step(&step, &to, Wants::Store));
    assert!(what.contains("LUN lun1 "), "{what}");
    stores[1].release();
    daemon.wait_at_most(Duration::from_secs(60));
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_write_that_hangs_holds_up_each_change_that_takes_a_right_to_it_and_no_other() {
    type Change = fn(&mut Config);
    let protects: Change = |config| config.targets[0].groups[0].read_only = true;
    let hides: Change = |config| _ = config.targets[0].luns.pop();
    let another: Change = |config| config.logins_max += 1;
    let protects_lun: Change = |config| config.luns[1].read_only = true;
    let removes: Change = |config| config.targets.clear();
    let removes_portal: Change = |config| {
        config.portals.clear();
        config.targets[0].portals.clear();
    };
    let all = [[protects, protects_lun], [protects_lun, hides], [hides, removes], [protects, removes_portal]];
    for takes in all {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (mut daemon, url) = serve(2, &stores, |config| config.targets[0].groups = vec![everyone()]);
        let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
        (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
        stores[1].hold();
        let write = write_cdb(0, 512, BLOCK, false);
        initiator.issue(1, write, 0, vec![1; 512]).expect("it is sent");
        stores[1].wait_for(1);
        // Its session ends; the task continues.
        drop(initiator);
        stores[1].wait_for_cancel(1);
        let step = |daemon: &mut Daemon, change: Change| {
            let mut to = daemon.config().clone();
            change(&mut to);
            let steps = config::diff(daemon.config(), &to);
            steps.iter().try_for_each(|step| daemon.take_step(step, &to, Wants::Store))
        };
        step(&mut daemon, another).expect("it waits for no write");
        daemon.wait_at_most(Duration::ZERO);
        for takes in takes {
            let what = unended(step(&mut daemon, takes));
            assert!(what.contains("LUN lun1 "), "{what}");
        }
        daemon.wait_at_most(Duration::from_secs(60));
        step(&mut daemon, another).expect("it waits for no write either");
        stores[1].release();
        daemon.stop().expect("every core ends in order");
    }
}

#[test]
fn an_order_that_hangs_holds_up_what_takes_the_right_to_it_and_not_what_protects_the_medium() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |config| config.targets[0].groups = vec![everyone()]);
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    let command = Pdu::new(0x01, 0x80 | 0x20 | 1).lun(1).word(16, 0x7000_0000).word(20, 24);
    let mut command = command.word(24, initiator.next_cmd_sn());
    command.set_cdb(ModeSelect6::new(24));
    initiator.send(&command).expect("it is sent");
    initiator.skip_cmd_sn();
    // Its parameters are never sent.
    while initiator.receive().expect("an R2T").opcode() != 0x31 {}
    let mut to = daemon.config().clone();
    to.luns[1].read_only = true;
    let step = config::diff(daemon.config(), &to).remove(0);
    daemon.take_step(&step, &to, Wants::Store).expect("a LUN that is read-only takes orders");
    daemon.wait_at_most(Duration::ZERO);
    to.targets[0].groups[0].read_only = true;
    let step = config::diff(daemon.config(), &to).remove(0);
    let what = unended(daemon.take_step(&step, &to, Wants::Store));
    assert!(what.contains("LUN lun1 "), "{what}");
    daemon.wait_at_most(Duration::from_secs(60));
    drop(initiator);
    daemon.stop().expect("every core ends in order");
}
