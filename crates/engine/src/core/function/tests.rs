//! Task management while a store is slow.

use crate::testing::initiator::{Initiator, Login, write_cdb};
use crate::testing::{HeldStore, serve};

const BLOCK: u32 = 512;
const ABORT_TASK: u8 = 1;
const COMPLETE: u8 = 0;

#[test]
fn abort_task_waits_for_its_task_whatever_lun_it_names() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("aborts")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    stores[0].hold();
    let write = initiator.issue(0, &write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    let abort = initiator.ask_to_manage(ABORT_TASK, 1, write).expect("it is sent");
    initiator.ready(1).expect("the other unit is ready");
    assert!(!initiator.has_ended(abort), "the task may still write");
    stores[0].release();
    assert_eq!(initiator.complete(abort).expect("an answer").status, COMPLETE);
    assert!(!initiator.has_ended(write));
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}
