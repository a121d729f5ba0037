//! Units that come and go while their neighbours serve.

mod drained;
mod port_groups;
mod while_serving;

use crate::core::Core;
use crate::core::connection::{Connection, Phase};
use crate::daemon::{ChangeError, NotSaved, share};
use crate::message::{Facts, Message, Origin, Waiter, Way};
use crate::served::{Endpoint, Parts, Served};
use crate::slots::Key;
use crate::state::files::System;
use crate::stores::Opened;
use crate::testing::daemon::Url;
use crate::testing::initiator::{Initiator, Login, Response, write_cdb};
use crate::testing::{HeldStore, everyone, serve, serve_reporting};
use crate::transport::Transport;
use crate::units::NewUnit;
use crate::{Change, Daemon, Event, Events, Shown, Wants};
use config::{ByDevice, Config, Lun, Portal, ServeOptions, StepOfChange};
use proto::aoe::target as aoe;
use proto::services::Session;
use reactor::io::{Io, Wait};
use reactor::mailbox::{self, Mailbox};
use reactor::memory::Arena;
use reactor::uring::Uring;
use scsi::HomeRequest;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use store::lane::Store;
use wire::aoe::{Address, Mac};
use wire::scsi::code;
use wire::scsi::command::{ReportLuns, TestUnitReady};
use wire::scsi::status::{CHECK_CONDITION, GOOD};

const BLOCK: u32 = 512;
const REPORT_LUNS: ReportLuns = ReportLuns::new(256);
/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: u16 = code::REPORTED_LUNS_DATA_CHANGED;
const POWER_ON: u16 = code::POWER_ON_OR_RESET;
const NOT_SUPPORTED: u16 = code::LOGICAL_UNIT_NOT_SUPPORTED;
const MODE_CHANGED: u16 = code::MODE_PARAMETERS_CHANGED;
const WRITE_PROTECTED: u16 = code::WRITE_PROTECTED;

fn lun(name: &str, store: &HeldStore) -> Box<Lun> {
    let spec = format!("ram:{}", store.traits().size_bytes);
    let options = ServeOptions { lun: vec![spec], ..ServeOptions::default() };
    let mut config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    let lun = config.luns.remove(0);
    Box::new(Lun { name: name.into(), serial: format!("SERIAL-{name}"), ..lun })
}

/// Makes a change, with this store for the LUN that is added.
fn apply(daemon: &mut Daemon, change: Change, store: &Arc<HeldStore>) -> Result<(), ChangeError> {
    let store = store.clone();
    daemon.apply_with(change, |_| {
        Some(Opened { store, failed: None, losses: Arc::default(), space: Arc::default(), gateway: None })
    })
}

fn add(daemon: &mut Daemon, target: &str, number: u16, store: &Arc<HeldStore>) -> Result<(), ChangeError> {
    let shown = vec![Shown { target: target.into(), group: None, number }];
    let lun = lun(&format!("come{number}"), store);
    apply(daemon, Change::Add { lun, shown }, store)
}

/// What TEST UNIT READY reports.
fn report(initiator: &mut Initiator, lun: u16) -> Option<u16> {
    code(&initiator.read(lun, TestUnitReady {}, 0).expect("an answer"))
}

fn code(response: &Response) -> Option<u16> {
    (response.status == CHECK_CONDITION).then(|| u16::from_be_bytes([response.sense[12], response.sense[13]]))
}

fn luns(initiator: &mut Initiator) -> Vec<u8> {
    let list = initiator.read(0, REPORT_LUNS, 256).expect("an answer").data;
    list[8..].chunks(8).map(|lun| lun[1]).collect()
}

#[test]
fn an_added_lun_is_served_and_each_nexus_is_notified_once() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |_| {});
    let mut initiators = ["one", "two", "three"].map(|name| {
        let mut initiator = Initiator::login(&url, &Login::named(name)).expect("a session");
        (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
        assert_eq!(report(&mut initiator, 7), Some(NOT_SUPPORTED));
        initiator
    });
    let third = HeldStore::new();
    add(&mut daemon, &url.target, 7, &third).expect("it comes");
    for (lun, initiator) in [0, 1, 0].into_iter().zip(&mut initiators) {
        assert_eq!(report(initiator, lun), Some(LUNS_CHANGED));
        assert_eq!([0, 1].map(|lun| report(initiator, lun)), [None, None], "by one LUN, once");
        assert_eq!(luns(initiator), [0, 1, 7]);
        assert_eq!([report(initiator, 7), report(initiator, 7)], [Some(POWER_ON), None]);
        initiator.write_blocks(7, 1, BLOCK, &[lun as u8; 512], false).expect("GOOD");
        assert_eq!(initiator.read_blocks(7, 1, 1, BLOCK).expect("GOOD"), [lun as u8; 512]);
    }
    assert_eq!(
        daemon.units().iter().map(|unit| &unit.name[..]).collect::<Vec<_>>(),
        ["lun0", "lun1", "come7"]
    );
    let [mut one, two, three] = initiators;
    // The session that has read the list gets no unit attention.
    add(&mut daemon, &url.target, 3, &HeldStore::new()).expect("it comes");
    assert_eq!((luns(&mut one), report(&mut one, 0), report(&mut one, 1)), (vec![0, 1, 3, 7], None, None));
    for initiator in [one, two, three] {
        initiator.logout().expect("an answer");
    }
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_removed_lun_accepts_nothing_new_and_finishes_what_has_begun() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |_| {});
    let third = HeldStore::new();
    add(&mut daemon, &url.target, 2, &third).expect("it comes");
    let mut initiators = ["one", "two", "three"].map(|name| {
        let mut initiator = Initiator::login(&url, &Login::named(name)).expect("a session");
        (0..3).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
        initiator
    });
    third.hold();
    let write = |initiator: &mut Initiator| {
        initiator.issue(2, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent")
    };
    let writes: Vec<u32> = initiators.iter_mut().map(write).collect();
    third.wait_for(3);
    let (done, is_done) = mpsc::channel();
    let remover = std::thread::spawn(move || {
        let outcome = daemon.apply(Change::Remove { name: "come2".into() });
        done.send(()).expect("somebody waits");
        (daemon, outcome)
    });
    for initiator in &mut initiators {
        while report(initiator, 2) != Some(NOT_SUPPORTED) {
            std::thread::yield_now();
        }
        assert_eq!([0, 1].map(|lun| report(initiator, lun)), [Some(LUNS_CHANGED), None]);
        assert_eq!(luns(initiator), [0, 1]);
        initiator.write_blocks(1, 0, BLOCK, &[5; 512], false).expect("its neighbours serve");
    }
    assert!(is_done.try_recv().is_err(), "what was begun may still write");
    third.release();
    for (initiator, write) in initiators.iter_mut().zip(writes) {
        assert_eq!(initiator.complete(write).expect("an answer").status, GOOD);
    }
    let (mut daemon, outcome) = remover.join().expect("it ends");
    outcome.expect("all is durable");
    assert_eq!(Arc::strong_count(&third), 1, "nobody has the store any more");
    // The slot is free for another, of which a session from before sees nothing.
    let next = HeldStore::new();
    add(&mut daemon, &url.target, 2, &next).expect("it comes");
    for initiator in &mut initiators {
        assert_eq!([report(initiator, 2), report(initiator, 2)], [Some(POWER_ON), Some(LUNS_CHANGED)]);
        assert_eq!(report(initiator, 2), None);
        initiator.write_blocks(2, 0, BLOCK, &[6; 512], false).expect("GOOD");
    }
    for initiator in initiators {
        initiator.logout().expect("an answer");
    }
    daemon.stop().expect("every core ends in order");
}

/// Why a change that was made is not complete.
pub(super) fn unended(outcome: Result<(), ChangeError>) -> String {
    match outcome {
        Err(ChangeError::StillEnding(what)) => what,
        other => panic!("it waits for a store: {other:?}"),
    }
}

#[test]
fn a_lun_that_hangs_is_removed_and_holds_up_no_change_behind_it() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    stores[1].hold();
    let write = initiator.issue(1, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[1].wait_for(1);
    let gone = daemon.config().luns[1].clone();
    daemon.wait_at_most(Duration::ZERO);
    let what = unended(daemon.apply(Change::Remove { name: "lun1".into() }));
    assert!(what.contains("longer than 0 s") && what.contains("on LUN lun1 "), "{what}");
    assert_eq!(report(&mut initiator, 1), Some(NOT_SUPPORTED));

    daemon.wait_at_most(Duration::from_secs(60));
    add(&mut daemon, &url.target, 2, &HeldStore::new()).expect("it comes");
    assert_eq!([report(&mut initiator, 2), report(&mut initiator, 2)], [Some(POWER_ON), Some(LUNS_CHANGED)]);
    initiator.write_blocks(2, 0, BLOCK, &[2; 512], false).expect("GOOD");
    // Its file may still be in use, and what is saved under its serial number.
    let again = || Change::Add { lun: Box::new(gone.clone()), shown: Vec::new() };
    let refused = apply(&mut daemon, again(), &stores[1]);
    assert!(matches!(refused, Err(ChangeError::Refused(why)) if why.contains("have not ended yet")));

    stores[1].release();
    assert_eq!(initiator.complete(write).expect("an answer").status, GOOD);
    while daemon.has_leaving() {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&stores[1]), 1, "nobody has the store any more");
    apply(&mut daemon, again(), &stores[1]).expect("it comes again");
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_lun_whose_last_flush_hangs_does_not_hold_up_the_next_that_goes() {
    let stores = [HeldStore::new(), HeldStore::new(), HeldStore::new()];
    let (mut daemon, _) = serve(1, &stores, |_| {});
    // Its flush waits.
    stores[1].delay_close(true);
    stores[1].hold();
    daemon.wait_at_most(Duration::ZERO);
    let what = unended(daemon.apply(Change::Remove { name: "lun1".into() }));
    assert!(what.contains("LUN lun1 "), "{what}");
    stores[1].wait_for(1);
    daemon.wait_at_most(Duration::from_secs(60));
    daemon.apply(Change::Remove { name: "lun2".into() }).expect("it goes");
    assert_eq!(Arc::strong_count(&stores[2]), 1, "nobody has the store any more");
    stores[1].delay_close(false);
    stores[1].release();
    while daemon.has_leaving() {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&stores[1]), 1);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn losses_of_a_removed_lun_are_reported_and_remembered_until_shutdown() {
    for is_looked_at in [true, false] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (reports, happened) = mpsc::channel();
        let events = Events::to(move |event| reports.send(event).expect("somebody reads them"));
        let (mut daemon, _) = serve_reporting(2, &stores, events, |_| {});
        // Its flush waits, and fails.
        stores[1].delay_close(true);
        stores[1].hold();
        stores[1].fail_flushes();
        daemon.wait_at_most(Duration::ZERO);
        unended(daemon.apply(Change::Remove { name: "lun1".into() }));
        stores[1].wait_for(1);
        stores[1].delay_close(false);
        stores[1].release();
        while Arc::strong_count(&stores[1]) > 1 || (is_looked_at && daemon.has_leaving()) {
            std::thread::yield_now();
        }
        let why = NotSaved::NotFlushed;
        let event = Event::NotSaved { lun: "lun1".into(), why: why.to_string() };
        assert_eq!(happened.try_recv().ok(), is_looked_at.then(|| event.clone()));
        assert_eq!(daemon.stop(), Err(why));
        assert_eq!(happened.try_recv().ok(), (!is_looked_at).then_some(event));
    }
}

#[test]
fn what_a_core_takes_late_continues_without_another_change() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(1, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    stores[0].stall(true);
    let write = initiator.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for_stall();
    daemon.patience().end();
    let what = unended(daemon.apply(Change::Remove { name: "lun1".into() }));
    assert!(what.contains("a core that does not answer"), "{what}");
    assert!(daemon.has_leaving());
    assert!(Arc::strong_count(&stores[1]) > 1, "its commands may be under way on the core");
    stores[0].stall(false);
    assert_eq!(initiator.complete(write).expect("an answer").status, GOOD);
    while daemon.has_leaving() {
        std::thread::yield_now();
    }
    assert_eq!(Arc::strong_count(&stores[1]), 1, "nobody has the store any more");
    assert_eq!(report(&mut initiator, 1), Some(NOT_SUPPORTED));
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_target_whose_session_hangs_is_removed_and_whoever_ends_the_daemon_waits_for_nothing() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    stores[1].hold();
    initiator.issue(1, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    stores[1].wait_for(1);
    let mut config = daemon.config().clone();
    config.targets.clear();
    let patience = daemon.patience().clone();
    let remover = std::thread::spawn(move || {
        let step = StepOfChange::RemoveTarget(url.target);
        let outcome = daemon.take_step(&step, &config, Wants::Store);
        (daemon, outcome)
    });
    stores[1].wait_for_cancel(1);
    assert!(!remover.is_finished(), "the write may still take effect");
    patience.end();
    let (daemon, outcome) = remover.join().expect("it ends");
    // The other core may not have answered yet either.
    let what = unended(outcome);
    assert!(what.contains("the daemon ends") && what.contains("LUN lun1"), "{what}");
    assert_eq!(daemon.config().targets.len(), 0, "it was made");
    stores[1].release();
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_lun_is_hidden_once_no_write_of_the_session_can_land() {
    const ORDERED: u8 = 2;
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(2, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    stores[1].hold();
    let write = write_cdb(0, 512, BLOCK, false);
    let begun = initiator.issue(1, write, 0, vec![1; 512]).expect("it is sent");
    stores[1].wait_for(1);
    let waits = initiator.issue_as(ORDERED, 1, write, 0, vec![2; 512]).expect("it is sent");
    let mut config = daemon.config().clone();
    config.targets[0].luns.pop();
    let hider = change(daemon, config);
    let refused = initiator.complete(waits).expect("an answer");
    assert_eq!(code(&refused), Some(NOT_SUPPORTED), "it has not begun");
    for _ in 0..32 {
        assert_eq!(report(&mut initiator, 1), Some(NOT_SUPPORTED));
    }
    assert!(!hider.is_finished(), "the first write may still take effect");
    stores[1].release();
    assert_eq!(initiator.complete(begun).expect("an answer").status, GOOD);
    let (daemon, outcomes) = hider.join().expect("it ends");
    assert!(!outcomes.is_empty() && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

/// Takes all steps to another configuration, on a thread.
fn change(mut daemon: Daemon, to: Config) -> JoinHandle<(Daemon, Vec<Result<(), ChangeError>>)> {
    std::thread::spawn(move || {
        let steps = config::diff(daemon.config(), &to);
        let outcomes = steps.iter().map(|step| daemon.take_step(step, &to, Wants::Store)).collect();
        (daemon, outcomes)
    })
}

#[test]
fn write_access_is_revoked_once_no_earlier_write_can_land() {
    const ORDERED: u8 = 2;
    const HEAD_OF_QUEUE: u8 = 3;
    type Change = fn(&mut Config);
    let of_group: Change = |config| config.targets[0].groups[0].read_only = true;
    let of_lun: Change = |config| config.luns[1].read_only = true;
    for takes in [of_group, of_lun] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(2, &stores, |config| config.targets[0].groups = vec![everyone()]);
        let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
        (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
        stores[1].hold();
        let write = write_cdb(0, 512, BLOCK, false);
        let begun = initiator.issue(1, write, 0, vec![1; 512]).expect("it is sent");
        stores[1].wait_for(1);
        let waits = initiator.issue_as(ORDERED, 1, write, 0, vec![2; 512]).expect("it is sent");
        let mut to = daemon.config().clone();
        takes(&mut to);
        let taker = change(daemon, to);
        let mut report = || {
            let asked = initiator.issue_as(HEAD_OF_QUEUE, 1, TestUnitReady {}, 0, Vec::new());
            code(&initiator.complete(asked.expect("it is sent")).expect("an answer"))
        };
        while report() != Some(MODE_CHANGED) {
            std::thread::yield_now();
        }
        for _ in 0..32 {
            assert_eq!(report(), None);
        }
        assert!(!taker.is_finished(), "the first write may still take effect");
        stores[1].release();
        assert_eq!(initiator.complete(begun).expect("an answer").status, GOOD);
        let refused = initiator.complete(waits).expect("an answer");
        assert_eq!(code(&refused), Some(WRITE_PROTECTED), "it had not begun");
        let (daemon, outcomes) = taker.join().expect("it ends");
        assert!(!outcomes.is_empty() && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert_eq!(initiator.read_blocks(1, 0, 1, BLOCK).expect("GOOD"), [1; 512]);
        initiator.logout().expect("an answer");
        daemon.stop().expect("every core ends in order");
    }
}

#[test]
fn a_portal_is_removed_once_no_write_of_its_sessions_can_land_and_others_lose_nothing() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(2, &stores, |config| {
        let listen = "127.0.0.2:0".parse().expect("an address");
        config.portals.push(Portal { listen, ..config.portals[0].clone() });
        config.targets[0].portals.push(1);
    });
    let other = Url { portal: daemon.addresses()[1], target: url.target.clone() };
    let mut stays = Initiator::login(&url, &Login::named("one")).expect("a session");
    let mut goes = Initiator::login(&other, &Login::named("two")).expect("a session");
    for session in [&mut stays, &mut goes] {
        (0..2).for_each(|lun| session.ready(lun).expect("the unit is ready"));
    }
    let write = write_cdb(0, 512, BLOCK, false);
    stores[1].hold();
    goes.issue(1, write, 0, vec![1; 512]).expect("it is sent");
    stores[1].wait_for(1);
    let mut to = daemon.config().clone();
    to.portals.pop();
    to.targets[0].portals.pop();
    let remover = change(daemon, to);
    stores[1].wait_for_cancel(1);
    for round in 0..32 {
        let begun = stays.issue(0, write, 0, vec![round; 512]).expect("it is sent");
        assert_eq!(stays.complete(begun).expect("an answer").status, GOOD);
        assert_eq!(stays.read_blocks(0, 0, 1, BLOCK).expect("GOOD"), [round; 512]);
    }
    assert!(!remover.is_finished(), "the write may still take effect");
    stores[1].release();
    let (daemon, outcomes) = remover.join().expect("it ends");
    assert!(!outcomes.is_empty() && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    while goes.receive().is_ok() {}
    stays.logout().expect("nothing was said to it");
    daemon.stop().expect("every core ends in order");
}

const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const LOGICAL_UNIT_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;
const NO_TAG: u32 = u32::MAX;

#[test]
fn functions_reach_what_was_begun_on_a_lun_that_goes() {
    for function in [ABORT_TASK, ABORT_TASK_SET, LOGICAL_UNIT_RESET, TARGET_WARM_RESET] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (mut daemon, url) = serve(2, &stores, |_| {});
        let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
        (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
        stores[1].hold();
        let write = write_cdb(0, 512, BLOCK, false);
        let write = initiator.issue(1, write, 0, vec![1; 512]).expect("it is sent");
        stores[1].wait_for(1);
        let remover = std::thread::spawn(move || {
            daemon.apply(Change::Remove { name: "lun1".into() }).expect("it goes");
            daemon
        });
        while report(&mut initiator, 1) != Some(NOT_SUPPORTED) {
            std::thread::yield_now();
        }
        let task = if function == ABORT_TASK { write } else { NO_TAG };
        let asked = initiator.ask_to_manage(function, 1, task).expect("it is sent");
        // The other unit answers after it.
        report(&mut initiator, 0);
        assert!(!initiator.has_ended(asked), "function {function} is done, and the task may still write");
        // What is under way is still executed, but not reported.
        stores[1].wait_for_cancel(1);
        stores[1].release();
        assert_eq!(initiator.complete(asked).expect("an answer").status, GOOD);
        assert!(!initiator.has_ended(write), "it was aborted");
        drop(initiator);
        let daemon = remover.join().expect("it ends");
        daemon.stop().expect("every core ends in order");
    }
}

#[test]
fn what_cannot_be_changed_opens_no_store() {
    let stores = [HeldStore::new()];
    let (mut daemon, url) = serve(1, &stores, |_| {});
    let shown = |target: &str, number| vec![Shown { target: target.into(), group: None, number }];
    for change in [
        Change::Add { lun: lun("lun0", &stores[0]), shown: shown(&url.target, 1) },
        Change::Add { lun: lun("new", &stores[0]), shown: shown(&url.target, 0) },
        Change::Add { lun: lun("new", &stores[0]), shown: shown("iqn.2026-11.a:none", 1) },
        Change::Replace { name: "none".into(), lun: lun("new", &stores[0]) },
    ] {
        let refused = daemon.apply_with(change, |_| panic!("a store was opened"));
        assert!(matches!(refused, Err(ChangeError::Refused(_))));
    }
    daemon.stop().expect("every core ends in order");
}

#[test]
fn what_keeps_reservations_by_one_serial_number_is_not_replaced_in_one_go() {
    let stores = [HeldStore::new()];
    let (mut daemon, _) = serve(1, &stores, |_| {});
    let serial = daemon.config().luns[0].serial.clone();
    let same = Box::new(Lun { serial, ..*lun("new", &stores[0]) });
    let replaced = apply(&mut daemon, Change::Replace { name: "lun0".into(), lun: same }, &stores[0]);
    assert!(matches!(replaced, Err(ChangeError::Refused(why)) if why.contains("remove lun0 first")));
    daemon.stop().expect("every core ends in order");
}

#[test]
fn requests_to_the_home_of_a_removed_lun_reach_no_core() {
    const UNIT: u32 = 1;
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |_| {});
    let (_, mail) = daemon.insides();
    stores[1].delay_close(true);
    let remover = std::thread::spawn(move || {
        daemon.apply(Change::Remove { name: "lun1".into() }).expect("it goes");
        daemon
    });
    // The other core has released it; the home's core has not.
    stores[1].wait_for_close(1);
    let origin = Origin { core: 0, who: Waiter::Nobody };
    mail[UNIT as usize].post(Message::Home { unit: UNIT, origin, request: HomeRequest::StoreReset });
    for name in ["one", "two"] {
        let mut initiator = Initiator::login(&url, &Login::named(name)).expect("a session");
        initiator.ready(0).expect("its neighbour serves");
        initiator.logout().expect("an answer");
    }
    stores[1].delay_close(false);
    let daemon = remover.join().expect("it ends");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn another_lun_takes_the_place_of_one_that_goes() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (mut daemon, url) = serve(2, &stores, |_| {});
    let mut initiator = Initiator::login(&url, &Login::named("one")).expect("a session");
    (0..2).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    initiator.write_blocks(1, 0, BLOCK, &[1; 512], false).expect("GOOD");
    let other = HeldStore::new();
    let replace = |lun| Change::Replace { name: "lun1".into(), lun };
    apply(&mut daemon, replace(lun("other", &other)), &other).expect("it is replaced");
    assert_eq!([report(&mut initiator, 1), report(&mut initiator, 1)], [Some(POWER_ON), Some(LUNS_CHANGED)]);
    assert_eq!(initiator.read_blocks(1, 0, 1, BLOCK).expect("GOOD"), [0; 512]);
    // A unit that is gone stays gone, and one whose names are taken is refused.
    for change in [replace(lun("third", &other)), Change::Remove { name: "lun1".into() }] {
        let refused = apply(&mut daemon, change, &other).expect_err("there is none");
        assert_eq!(refused, ChangeError::Refused("there is no LUN lun1".into()));
    }
    for (number, name) in [(5, "other"), (1, "fourth")] {
        let shown = vec![Shown { target: url.target.clone(), group: None, number }];
        let change = Change::Add { lun: lun(name, &other), shown };
        assert!(matches!(apply(&mut daemon, change, &other), Err(ChangeError::Refused(_))), "{name}");
    }
    initiator.ready(1).expect("nothing has changed");
    initiator.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

/// A portal that listens on this socket.
fn endpoint(address: SocketAddr, socket: Option<&Arc<TcpListener>>) -> Endpoint {
    let handle = socket.map(|socket| reactor::net::handle(socket));
    Endpoint { number: 0, address, handle, socket: socket.cloned(), by_device: None }
}

/// The first of two cores, with the home of a unit, and the mailbox of the other.
fn first_of_two(store: &Arc<HeldStore>) -> (Core<Uring>, Mailbox<Message>) {
    let spec = format!("ram:{}", store.traits().size_bytes);
    let options = ServeOptions { lun: vec![spec], cores: Some("0".into()), ..ServeOptions::default() };
    let mut config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    config.cores = vec![0, 1];
    let opened = [Opened {
        store: store.clone(),
        failed: None,
        losses: Arc::default(),
        space: Arc::default(),
        gateway: None,
    }];
    let (mut units, _) = NewUnit::all(&config, &opened, &System);
    let address = config.portals[0].listen;
    let endpoint = endpoint(address, None);
    let (shared, served) = share(config, vec![endpoint], i32::MAX, mpsc::channel().0, Events::default());
    let [first, other] = mailbox::mesh(2).expect("mailboxes").try_into().ok().expect("two");
    let io = Uring::new(Arena::new(1 << 24).expect("memory"), first.waker()).expect("an io_uring");
    (Core::new(0, io, shared, served, first, units.iter_mut().map(|unit| unit.on(0)).collect()), other)
}

/// Runs the core until it comes to rest. Returns its messages to the other core.
fn turns(core: &mut Core<Uring>, other: &mut Mailbox<Message>) -> Vec<Message> {
    let (mut completions, mut messages, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..4 {
        core.io.turn(Wait::No, &mut completions);
        core.turn(&mut completions, &mut messages);
    }
    other.drain(&mut said);
    said
}

/// Has the core serve this; the receivers report when that is done.
fn serve_next(
    core: &mut Core<Uring>,
    other: &mut Mailbox<Message>,
    config: Config,
    endpoints: Vec<Arc<Endpoint>>,
) -> mpsc::Receiver<bool> {
    let Served { units, targets, segments, .. } = &*core.served;
    let (units, targets, segments) = (units.clone(), targets.clone(), segments.clone());
    let parts = Parts { config, units, targets, endpoints, segments, ledgers: Vec::new() };
    let served = Arc::new(core.served.next(parts));
    let ((taken, _), (done, is_done)) = (mpsc::channel(), mpsc::channel());
    other.post(0, Message::Serve { served, taken, done });
    turns(core, other);
    is_done
}

#[test]
fn a_home_that_is_asked_while_its_store_is_flushed_answers_before_it_goes() {
    const UNIT: u32 = 0;
    let store = HeldStore::new();
    let (mut core, mut other) = first_of_two(&store);
    store.delay_close(true);
    store.hold();
    let (done, is_done) = mpsc::channel();
    other.post(0, Message::RemoveUnit { unit: UNIT, done });
    other.post(0, Message::UnitQuiesced { unit: UNIT });
    assert!(turns(&mut core, &mut other).is_empty());
    assert!(store.has_held(1), "it is being flushed");
    let who = Waiter::Connection(Key { index: 0, generation: 1 });
    let origin = Origin { core: 1, who };
    other.post(0, Message::Home { unit: UNIT, origin, request: HomeRequest::StoreReset });
    assert!(matches!(turns(&mut core, &mut other)[..], [Message::Publish { unit: UNIT, .. }]));
    store.delay_close(false);
    store.release();
    assert!(turns(&mut core, &mut other).is_empty(), "somebody waits for it");
    assert!(store.has_held(0), "it was flushed");
    other.post(0, Message::Applied { unit: UNIT });
    let said = turns(&mut core, &mut other);
    assert!(matches!(said[..], [Message::Answer { .. }, Message::DropUnit { unit: UNIT, is_flushed: true }]));
    assert!(is_done.try_recv().expect("it was released"));
}

#[test]
fn a_unit_that_loses_something_while_it_is_flushed_at_last_was_not_flushed() {
    const UNIT: u32 = 0;
    for loses in [false, true] {
        let store = HeldStore::new();
        // What it lost earlier was reported.
        store.lose();
        let (mut core, mut other) = first_of_two(&store);
        store.delay_close(true);
        store.hold();
        other.post(0, Message::RemoveUnit { unit: UNIT, done: mpsc::channel().0 });
        other.post(0, Message::UnitQuiesced { unit: UNIT });
        turns(&mut core, &mut other);
        assert!(store.has_held(1), "it is being flushed");
        if loses {
            store.lose();
        }
        store.delay_close(false);
        store.release();
        let said = turns(&mut core, &mut other);
        let [Message::DropUnit { is_flushed, .. }] = said[..] else { panic!("it is dropped") };
        assert_eq!(is_flushed, !loses);
    }
}

/// A session of a target, which does nothing.
fn idle(core: &mut Core<Uring>, serial: u64) {
    let address = core.served.config.portals[0].listen;
    let way = Way::Portal { number: 0, from: address, local: address };
    let mut facts = Facts::new(serial, way, &core.served, core.io.now());
    facts.target = Some(core.served.targets[0].clone());
    facts.session = Some(Arc::new(Session {
        initiator: format!("iqn.2026-11.a:{serial}"),
        alias: None,
        target: None,
        isid: [0; 6],
        tsih: 0,
        cid: 0,
        keeps_others: false,
        negotiated: Vec::new(),
        transport_id: Vec::new(),
    }));
    let machine = Transport::Aoe(Box::new(aoe::Target::new(aoe::Config {
        address: Address { shelf: 1, slot: 1 },
        ours: Mac([0; 6]),
        peer: Mac([0; 6]),
        buffers: 1,
        sectors_max: 1,
        firmware: 1,
        crc32c: reactor::crc::crc32c,
    })));
    let key = core.connections.insert(Connection::new(machine, facts, Phase::Serving, None));
    core.assign_luns(key);
}

#[test]
fn sessions_that_a_change_does_not_concern_are_left_alone() {
    const SESSIONS: u64 = 50;
    let (mut core, mut other) = first_of_two(&HeldStore::new());
    (0..SESSIONS).for_each(|serial| idle(&mut core, serial));
    let mut reached = |change: fn(&mut Config)| {
        let mut config = Config::clone(&core.served.config);
        change(&mut config);
        let endpoints = core.served.endpoints.clone();
        serve_next(&mut core, &mut other, config, endpoints);
        let epoch = Some(core.served.epoch);
        core.connections.iter().filter(|(_, conn)| conn.served == epoch).count() as u64
    };
    assert_eq!(reached(|config| config.logins_max += 1), 0);
    assert_eq!(reached(|config| config.luns[0].product = "Other".into()), 0);
    assert_eq!(reached(|config| config.targets[0].groups = vec![everyone()]), SESSIONS);
    assert_eq!(reached(|config| config.logins_max += 1), 0);
}

#[test]
fn a_portal_listens_by_what_it_has_now_and_by_nothing_that_it_had() {
    let (mut core, mut other) = first_of_two(&HeldStore::new());
    let sockets = [(); 2].map(|()| Arc::new(TcpListener::bind("127.0.0.1:0").expect("a port")));
    let mut serve = |socket: Option<&Arc<TcpListener>>, rdma| {
        let mut config = Config::clone(&core.served.config);
        config.portals[0].rdma = rdma;
        let endpoints = vec![Arc::new(endpoint(config.portals[0].listen, socket))];
        let is_done = serve_next(&mut core, &mut other, config, endpoints);
        assert_eq!(is_done.try_recv(), Ok(true), "it listens where it is to, and nowhere else");
        let connect =
            |socket: &Arc<TcpListener>| TcpStream::connect(socket.local_addr().expect("an address"));
        let _streams: Vec<_> = sockets.iter().map(|socket| connect(socket).expect("a backlog")).collect();
        turns(&mut core, &mut other);
        // Connections that are still in the backlog have not been accepted.
        let is_taken = |socket: &Arc<TcpListener>| {
            socket.set_nonblocking(true).expect("a socket");
            match socket.accept() {
                Err(error) => error.kind() == ErrorKind::WouldBlock,
                Ok(_) => false,
            }
        };
        sockets.each_ref().map(is_taken)
    };
    assert_eq!(serve(Some(&sockets[0]), ByDevice::Too), [true, false]);
    assert_eq!(serve(None, ByDevice::Only), [false, false]);
    assert_eq!(serve(Some(&sockets[1]), ByDevice::Too), [false, true]);
    assert_eq!(serve(Some(&sockets[0]), ByDevice::No), [true, false]);
}
