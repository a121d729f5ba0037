//! Task management while a store is slow.

use crate::testing::initiator::{Initiator, Login, write_cdb};
use crate::testing::{HeldStore, serve};
use config::Group;
use wire::scsi::command::{ModeSelect6, ModeSense6, SynchronizeCache10};
use wire::scsi::mode;
use wire::scsi::status::CHECK_CONDITION;

const BLOCK: u32 = 512;
const ABORT_TASK: u8 = 1;
const COMPLETE: u8 = 0;
const NO_TASK: u8 = 1;
const SYNCHRONIZE_CACHE: SynchronizeCache10 = SynchronizeCache10::new(0, 0);

#[test]
fn abort_task_waits_for_its_task_whatever_lun_it_names() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("aborts")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    stores[0].hold();
    let write = initiator.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    let abort = initiator.ask_to_manage(ABORT_TASK, 1, write).expect("it is sent");
    // The first has already aborted it.
    let again = initiator.ask_to_manage(ABORT_TASK, 1, write).expect("it is sent");
    initiator.ready(1).expect("the other unit is ready");
    assert!(!initiator.has_ended(abort) && !initiator.has_ended(again), "the task may still write");
    stores[0].release();
    assert_eq!(initiator.complete(abort).expect("an answer").status, COMPLETE);
    assert_eq!(initiator.complete(again).expect("an answer").status, NO_TASK);
    assert!(!initiator.has_ended(write));
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

/// Sets QERR to 01b: an error aborts the whole task set (SPC-4 section 7.5.8).
fn end_task_set_by_errors(initiator: &mut Initiator) {
    let mut page =
        initiator.read(0, ModeSense6::page_only(mode::page::CONTROL, 255), 255).expect("an answer").data;
    (page[0], page[4], page[4 + 3]) = (0, page[4] & 0x3f, page[4 + 3] | 0x02);
    let select = ModeSelect6::new(page.len() as u8);
    assert_eq!(initiator.write(0, select, &page).expect("an answer").status, COMPLETE);
}

#[test]
fn a_loss_is_reported_again_when_the_flush_that_reports_it_is_aborted() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("flushes")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    end_task_set_by_errors(&mut initiator);
    stores[0].hold();
    initiator.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    stores[0].lose();
    let flush = initiator.issue(0, SYNCHRONIZE_CACHE, 0, Vec::new()).expect("it is sent");
    // Its error aborts the WRITE, and is reported when that can no longer take effect.
    stores[0].wait_for_cancel(1);
    let abort = initiator.ask_to_manage(ABORT_TASK, 0, flush).expect("it is sent");
    initiator.ready(1).expect("the other unit is ready");
    stores[0].release();
    assert_eq!(initiator.complete(abort).expect("an answer").status, COMPLETE);
    assert!(!initiator.has_ended(flush));
    for status in [CHECK_CONDITION, COMPLETE] {
        let flush = initiator.issue(0, SYNCHRONIZE_CACHE, 0, Vec::new()).expect("it is sent");
        assert_eq!(initiator.complete(flush).expect("an answer").status, status);
    }
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn errors_of_read_only_initiators_end_no_commands_of_others() {
    let stores = [HeldStore::new()];
    let group = |name: &str, read_only| Group {
        name: name.into(),
        initiators: vec![format!("*:{name}")],
        networks: Vec::new(),
        deny: false,
        read_only,
        luns: None,
        chap: None,
        queue_depth: None,
        limits: config::Limits::default(),
    };
    let (daemon, url) = serve(1, &stores, |config| {
        config.targets[0].groups = vec![group("reads", true), group("owns", false)];
    });
    let [mut owns, mut reads] = ["owns", "reads"].map(|name| {
        let mut initiator = Initiator::login(&url, &Login::named(name)).expect("a session");
        initiator.ready(0).expect("the unit is ready");
        initiator
    });
    end_task_set_by_errors(&mut owns);
    // Consumes the unit attention for the changed mode.
    reads.ready(0).expect("the unit is ready");
    stores[0].hold();
    let write = owns.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    let refused = reads.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![2; 512]).expect("it is sent");
    assert_eq!(reads.complete(refused).expect("an answer").status, CHECK_CONDITION);
    assert_eq!(stores[0].cancelled(), 0, "the WRITE of the owner continues");
    stores[0].release();
    assert_eq!(owns.complete(write).expect("an answer").status, COMPLETE);
    for initiator in [owns, reads] {
        initiator.logout().expect("an answer");
    }
    daemon.stop().expect("every core ends in order");
}
