//! Ends of sessions, and logins that reinstate others, while a store is slow.

use super::*;
use crate::Daemon;
use crate::access::QUEUE_DEPTH;
use crate::testing::daemon::Url;
use crate::testing::initiator::{Initiator, Login, Pdu, write_cdb};
use crate::testing::peer::{self, Command, Nexus};
use crate::testing::{HeldStore, serve};
use config::{Group, Transports};
use proto::services::Attribute;
use std::io::ErrorKind;
use std::sync::atomic::AtomicBool;
use std::thread::scope;
use wire::Cdb;
use wire::scsi::command::{ExtendedCopyLid4, Inquiry, Reserve6, SanitizeBlockErase, TestUnitReady};
use wire::scsi::copy::{BlockSegment, CopyListLid4, IdentificationCscd};
use wire::scsi::vpd;

const BLOCK: u32 = 512;
const ABORT_TASK: u8 = 1;
const CLEAR_TASK_SET: u8 = 4;
const LOGICAL_UNIT_RESET: u8 = 5;
const TARGET_COLD_RESET: u8 = 7;
const NO_TAG: u32 = u32::MAX;
const COMPLETE: u8 = 0;
const NO_TASK: u8 = 1;
const LOGOUT_RESPONSE: u8 = 0x26;
const ASYNC_MESSAGE: u8 = 0x32;
const LOGOUT_REQUEST: u8 = 1;
const CONNECTION_DROP: u8 = 2;
const RESERVE: Reserve6 = Reserve6::ZERO;
const SANITIZE_BLOCK_ERASE: SanitizeBlockErase = SanitizeBlockErase::ZERO;

fn login(url: &Url, name: &str) -> Initiator {
    Initiator::login(url, &Login::named(name)).expect("a session")
}

/// Whether the target has sent anything.
fn has_received(initiator: &Initiator) -> bool {
    let stream = initiator.stream();
    stream.set_nonblocking(true).expect("a socket");
    let heard = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("a socket");
    match heard {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

/// A session with a WRITE that the store holds.
fn writing(url: &Url, store: &HeldStore, name: &str) -> Initiator {
    let mut initiator = login(url, name);
    initiator.ready(0).expect("the unit is ready");
    store.hold();
    initiator.issue(0, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
    store.wait_for(1);
    initiator
}

/// Waits until the core has done everything requested before this.
fn is_served(initiator: &mut Initiator, lun: u16) {
    initiator.ready(lun).expect("the unit is ready");
}

fn stop(daemon: Daemon) {
    daemon.stop().expect("every core ends in order");
}

fn unit_with_losses() -> LunState {
    let nexus = NexusUnit::new(scsi::NexusId(1), vec![5, 1], 1, false);
    LunState {
        number: 0,
        hidden: None,
        unit: 0,
        nexus,
        losses: 0,
        received: 0,
        reported_at: None,
        throttle: None,
    }
}

#[test]
fn a_report_that_waits_to_be_sent_is_not_received_however_many_commands_come() {
    let mut lun = unit_with_losses();
    assert!(lun.report(1, 10));
    assert_eq!(lun.received_by(1000), 0, "it may never be sent");
    lun.has_reported(1, 1000);
    assert_eq!(lun.received_by(1000 + u64::from(QUEUE_DEPTH)), 0, "the window had room for as many");
    assert_eq!(lun.received_by(1001 + u64::from(QUEUE_DEPTH)), 1);
}

#[test]
fn a_flush_is_not_good_while_another_has_yet_to_report_the_loss() {
    let mut lun = unit_with_losses();
    assert!(lun.report(1, 10));
    assert!(lun.report(1, 10), "the first may be aborted");
    lun.has_reported(1, 11);
    assert!(!lun.report(1, 12));
    lun.unreport();
    assert!(lun.report(1, 13) && lun.report(2, 14));
    lun.has_reported(1, 15);
    assert!(lun.report(2, 16), "the second loss has yet to be reported");
}

/// RFC 7143 sections 4.6.3.3 and 11.14.
#[test]
fn a_logout_is_answered_when_no_task_can_write_any_more() {
    // Of the session, and of the connection.
    for reason in [0, 1] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(1, &stores, |_| {});
        let mut other = login(&url, "other");
        let mut leaves = writing(&url, &stores[0], "leaves");
        let logout = Pdu::new(0x46, 0x80 | reason)
            .word(16, 0x77)
            .word(24, leaves.next_cmd_sn())
            .word(28, leaves.next_stat_sn());
        leaves.send(&logout).expect("it is sent");
        stores[0].wait_for_cancel(1);
        is_served(&mut other, 1);
        assert!(!has_received(&leaves), "the WRITE may still land");
        stores[0].release();
        let answer = leaves.receive().expect("an answer");
        assert_eq!((answer.opcode(), answer.header[2]), (LOGOUT_RESPONSE, 0));
        stores[0].wait_for(0);
        other.logout().expect("an answer");
        stop(daemon);
    }
}

/// EXTENDED COPY(LID4) with IMMED of 1 MiB, from the first unit to the second.
fn copy_immediately(initiator: &mut Initiator) {
    let mut cscds = Vec::new();
    for lun in 0..2 {
        let page =
            initiator.read(lun, Inquiry::page(vpd::page::IDENTIFICATION, 255), 255).expect("an answer").data;
        // The NAA designator is the first.
        cscds.push(IdentificationCscd::of_naa(&page[8..8 + usize::from(page[7])]));
    }
    let header = CopyListLid4 { immediate: true, list_id: 7, ..CopyListLid4::ZERO };
    let list = header.with(&cscds, &[BlockSegment::new((0, 0), (1, 0), 2048)]);
    let copy = ExtendedCopyLid4::new(list.len() as u32);
    assert_eq!(initiator.write(0, copy, &list).expect("an answer").status, 0);
}

/// A session with a copy in the background, of which the store holds a write; and another session.
fn copying(url: &Url, stores: &[Arc<HeldStore>]) -> (Initiator, Initiator) {
    let (mut copies, mut other) = (login(url, "copies"), login(url, "other"));
    for lun in 0..2 {
        copies.ready(lun).expect("the unit is ready");
        other.ready(lun).expect("the unit is ready");
    }
    for lba in [0, 1024] {
        other.write_blocks(0, lba, BLOCK, &[7; 1 << 18], false).expect("it is written");
    }
    stores[1].hold();
    copy_immediately(&mut copies);
    stores[1].wait_for(1);
    (copies, other)
}

/// Of the two pieces of a copy, the one in progress was written, and the other was not.
fn is_half_copied(other: &mut Initiator) {
    let copied = [0, 1024].map(|lba| other.read_blocks(1, lba, 1, BLOCK).expect("it is read")[0]);
    assert_eq!(copied, [7, 0], "what was under way is done, and no more");
}

#[test]
fn a_copy_in_the_background_ends_with_its_session() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let (mut leaves, mut other) = copying(&url, &stores);
    let logout =
        Pdu::new(0x46, 0x80).word(16, 0x77).word(24, leaves.next_cmd_sn()).word(28, leaves.next_stat_sn());
    leaves.send(&logout).expect("it is sent");
    stores[1].wait_for_cancel(1);
    is_served(&mut other, 0);
    assert!(!has_received(&leaves), "the copy may still write");
    stores[1].release();
    assert_eq!(leaves.receive().expect("an answer").opcode(), LOGOUT_RESPONSE);
    is_half_copied(&mut other);
    other.logout().expect("an answer");
    stop(daemon);
}

/// Also when the connection of the old session was lost before.
#[test]
fn a_login_in_place_of_a_session_is_answered_when_its_copy_in_the_background_is_over() {
    for is_lost in [false, true] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(1, &stores, |_| {});
        let (before, mut other) = copying(&url, &stores);
        if is_lost {
            before.stream().shutdown(std::net::Shutdown::Both).expect("a connection");
            stores[1].wait_for_cancel(1);
        }
        let is_released = AtomicBool::new(false);
        scope(|scope| {
            let again = scope.spawn(|| {
                let initiator = login(&url, "copies");
                assert!(is_released.load(Ordering::SeqCst), "the old session may still write");
                initiator
            });
            stores[1].wait_for_cancel(1);
            is_served(&mut other, 0);
            assert!(!again.is_finished());
            is_released.store(true, Ordering::SeqCst);
            stores[1].release();
            again.join().expect("a session").logout().expect("an answer");
        });
        is_half_copied(&mut other);
        other.logout().expect("an answer");
        stop(daemon);
    }
}

#[test]
fn target_cold_reset_is_answered_when_a_copy_in_the_background_is_over() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let (_copies, mut other) = copying(&url, &stores);
    let reset = other.ask_to_manage(TARGET_COLD_RESET, 0, NO_TAG).expect("it is sent");
    stores[1].wait_for_cancel(1);
    assert!(!has_received(&other), "the copy may still write");
    stores[1].release();
    assert_eq!(other.complete(reset).expect("an answer").status, COMPLETE);
    let mut after = login(&url, "after");
    (0..2).for_each(|lun| is_served(&mut after, lun));
    is_half_copied(&mut after);
    after.logout().expect("an answer");
    stop(daemon);
}

/// An Asynchronous Message with this event (RFC 7143 section 11.9.1).
fn expect_event(initiator: &mut Initiator, event: u8) {
    let message = initiator.receive().expect("a message");
    assert_eq!((message.opcode(), message.header[36]), (ASYNC_MESSAGE, event));
}

#[test]
fn at_shutdown_sessions_are_dropped_with_a_message_once_no_task_can_write() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut idle = login(&url, "idle");
    let mut writes = writing(&url, &stores[0], "writes");
    let stops = std::thread::spawn(|| daemon.stop());
    for initiator in [&mut idle, &mut writes] {
        expect_event(initiator, LOGOUT_REQUEST);
    }
    expect_event(&mut idle, CONNECTION_DROP);
    assert!(idle.receive().is_err(), "the connection has ended");
    stores[0].wait_for_cancel(1);
    assert!(!has_received(&writes), "the WRITE may still land");
    stores[0].release();
    expect_event(&mut writes, CONNECTION_DROP);
    assert_eq!(stores[0].held(), 0);
    assert!(writes.receive().is_err(), "the connection has ended");
    stops.join().expect("it ends").expect("every core ends in order");
}

/// RFC 7143 section 6.3.5.
#[test]
fn a_login_that_takes_the_place_of_a_session_is_answered_when_that_can_write_no_more() {
    for cores in [1, 3] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(cores, &stores, |_| {});
        let mut other = login(&url, "other");
        let _before = writing(&url, &stores[0], "again");
        let is_released = AtomicBool::new(false);
        scope(|scope| {
            let again = scope.spawn(|| {
                let initiator = login(&url, "again");
                assert!(is_released.load(Ordering::SeqCst), "the old session may still write");
                initiator
            });
            stores[0].wait_for_cancel(1);
            is_served(&mut other, 1);
            assert!(!again.is_finished());
            is_released.store(true, Ordering::SeqCst);
            stores[0].release();
            let mut again = again.join().expect("a session");
            assert_eq!(again.read_blocks(0, 0, 1, BLOCK).expect("it is read"), [1; 512]);
            again.logout().expect("an answer");
        });
        other.logout().expect("an answer");
        stop(daemon);
    }
}

const GUID: u64 = 0x024c_7500_0000_0001;

/// Two units, over every transport.
fn serve_all(stores: &[Arc<HeldStore>]) -> (Daemon, Url) {
    serve(2, stores, |config| {
        config.srp_guid = Some(GUID);
        config.portals[0].transports = Transports { iscsi: true, iser: true, srp: true };
    })
}

/// A session over this scheme, with a WRITE that the store holds.
fn writing_over(scheme: &str, url: &Url, store: &HeldStore) -> Box<dyn Nexus> {
    let mut nexus = connect_over(scheme, url);
    let command = |cdb: Cdb, write: Vec<u8>| Command {
        lun: 0,
        attribute: Attribute::Simple,
        cdb: cdb.as_bytes().to_vec(),
        read_bytes: 0,
        write,
    };
    let ready = nexus.submit(&command(TestUnitReady {}.into(), Vec::new()));
    nexus.end(ready);
    store.hold();
    nexus.submit(&command(write_cdb(0, 512, BLOCK, false), vec![1; 512]));
    while !store.has_held(1) {
        // Data is read by RDMA only while its initiator runs.
        nexus.go_on();
    }
    nexus
}

fn connect_over(scheme: &str, url: &Url) -> Box<dyn Nexus> {
    try_to_connect_over(scheme, url).expect("a session")
}

fn try_to_connect_over(scheme: &str, url: &Url) -> Result<Box<dyn Nexus>, String> {
    let guid = format!("{GUID:016x}");
    let target = if scheme == "srp" { &guid } else { &url.target };
    let login = peer::Login { at: url.portal, target, number: 1, is_beside: false };
    peer::connect(scheme, &login)
}

#[test]
fn of_logins_that_wait_for_the_same_session_only_the_newest_does() {
    for (scheme, refusal) in [("iscsi", "0302"), ("iser", "0302"), ("srp", "0x00010001")] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve_all(&stores);
        let (registry, _) = daemon.insides();
        let newest = || registry.places().iter().map(|place| place.serial).max();
        let before = writing_over(scheme, &url, &stores[0]);
        let log_in = || try_to_connect_over(scheme, &url).map(Nexus::leave);
        scope(|scope| {
            let mut waits: Option<std::thread::ScopedJoinHandle<'_, Result<(), String>>> = None;
            for _ in 0..4 {
                let known = newest();
                let newer = scope.spawn(log_in);
                while newest() == known {
                    std::thread::yield_now();
                }
                if let Some(older) = waits.replace(newer) {
                    let words = older.join().expect("it ends").expect_err("a newer one waits in its place");
                    assert!(words.contains(refusal), "{scheme}: {words}");
                }
            }
            stores[0].release();
            waits.expect("the last").join().expect("it ends").expect("a session");
        });
        drop(before);
        stop(daemon);
    }
}

#[test]
fn over_every_transport_a_login_waits_for_the_session_that_it_takes_the_place_of() {
    for scheme in ["iscsi", "iser", "srp"] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve_all(&stores);
        let mut other = login(&url, "other");
        let before = writing_over(scheme, &url, &stores[0]);
        let is_released = AtomicBool::new(false);
        scope(|scope| {
            let again = scope.spawn(|| {
                let nexus = connect_over(scheme, &url);
                assert!(is_released.load(Ordering::SeqCst), "the old session may still write");
                nexus.leave();
            });
            stores[0].wait_for_cancel(1);
            is_served(&mut other, 1);
            assert!(!again.is_finished());
            is_released.store(true, Ordering::SeqCst);
            stores[0].release();
            again.join().expect("a session");
        });
        drop(before);
        other.logout().expect("an answer");
        stop(daemon);
    }
}

/// With SRP it is the initiator that closes the channel.
#[test]
fn over_iser_a_logout_waits_as_well() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve_all(&stores);
    let mut other = login(&url, "other");
    let is_released = AtomicBool::new(false);
    scope(|scope| {
        let leaves = scope.spawn(|| {
            writing_over("iser", &url, &stores[0]).leave();
            assert!(is_released.load(Ordering::SeqCst), "the WRITE may still land");
        });
        stores[0].wait_for_cancel(1);
        is_served(&mut other, 1);
        assert!(!leaves.is_finished());
        is_released.store(true, Ordering::SeqCst);
        stores[0].release();
        leaves.join().expect("an answer");
    });
    other.logout().expect("an answer");
    stop(daemon);
}

#[test]
fn a_login_that_has_waited_too_long_leaves_nothing_behind() {
    let stores = [HeldStore::new()];
    let (daemon, url) = serve(3, &stores, |config| config.login_timeout = Duration::from_secs(1));
    let (registry, _) = daemon.insides();
    let _before = writing(&url, &stores[0], "again");
    for _ in 0..2 {
        assert!(Initiator::login(&url, &Login::named("again")).is_err(), "the old session may still write");
        while !registry.places().is_empty() {
            std::thread::yield_now();
        }
    }
    stores[0].release();
    let mut again = login(&url, "again");
    assert_eq!(again.read_blocks(0, 0, 1, BLOCK).expect("it is read"), [1; 512]);
    again.logout().expect("an answer");
    stop(daemon);
}

fn group(name: &str, luns: &[(u16, usize)]) -> Group {
    Group {
        name: name.into(),
        initiators: vec![format!("*:{name}")],
        networks: Vec::new(),
        deny: false,
        read_only: false,
        luns: Some(luns.to_vec()),
        chap: None,
        queue_depth: None,
        limits: config::Limits::default(),
    }
}

/// Also those with units that the requester does not see.
#[test]
fn target_cold_reset_is_answered_when_no_session_of_the_target_can_write() {
    for cores in [1, 3] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let groups = vec![group("asks", &[(0, 1)]), group("writes", &[(0, 0)]), group("late", &[(0, 1)])];
        let (daemon, url) = serve(cores, &stores, |config| config.targets[0].groups = groups);
        let mut asks = login(&url, "asks");
        asks.ready(0).expect("the unit is ready");
        let _writes = writing(&url, &stores[0], "writes");
        let reset = asks.ask_to_manage(TARGET_COLD_RESET, 0, NO_TAG).expect("it is sent");
        stores[0].wait_for_cancel(1);
        let mut late = login(&url, "late");
        is_served(&mut late, 0);
        assert!(!has_received(&asks), "the other session may still write");
        stores[0].release();
        assert_eq!(asks.complete(reset).expect("an answer").status, COMPLETE);
        assert!(asks.receive().is_err(), "its session has ended, too");
        late.logout().expect("an answer");
        stop(daemon);
    }
}

/// RFC 7143 section 11.13.5: a login that waits for the tasks of its session counts as one of the target's,
/// too.
#[test]
fn target_cold_reset_refuses_logins_that_wait() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let groups = vec![group("asks", &[(0, 1)]), group("writes", &[(0, 0)])];
    let (daemon, url) = serve(1, &stores, |config| config.targets[0].groups = groups);
    let mut asks = login(&url, "asks");
    asks.ready(0).expect("the unit is ready");
    let _writes = writing(&url, &stores[0], "writes");
    scope(|scope| {
        let waits = scope.spawn(|| Initiator::login(&url, &Login::named("writes")).map(drop));
        stores[0].wait_for_cancel(1);
        let reset = asks.ask_to_manage(TARGET_COLD_RESET, 0, NO_TAG).expect("it is sent");
        let refused = waits.join().expect("it ends").expect_err("its target ends all sessions").to_string();
        assert!(refused.contains("status class 3, detail 1"), "{refused}");
        stores[0].release();
        assert_eq!(asks.complete(reset).expect("an answer").status, COMPLETE);
    });
    stop(daemon);
}

/// What the sessions held of units that the requester does not see is released before the response.
#[test]
fn target_cold_reset_waits_for_the_homes_of_all_units() {
    for cores in [1, 3] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let mut elsewhere = String::new();
        let (daemon, url) = serve(cores, &stores, |config| {
            let mut other = config.targets[0].clone();
            other.name.push_str("-elsewhere");
            elsewhere = other.name.clone();
            config.targets[0].groups = vec![group("asks", &[(0, 0)]), group("holds", &[(0, 1)])];
            other.luns = [(0, 1)].into();
            config.targets.push(other);
        });
        let elsewhere = Url { portal: url.portal, target: elsewhere };
        let mut asks = login(&url, "asks");
        asks.ready(0).expect("the unit is ready");
        let mut writes = writing(&elsewhere, &stores[1], "writes");
        let mut holds = login(&url, "holds");
        holds.ready(0).expect("the unit is ready");
        assert_eq!(holds.read(0, RESERVE, 0).expect("an answer").status, 0);
        let clear = writes.ask_to_manage(CLEAR_TASK_SET, 0, NO_TAG).expect("it is sent");
        stores[1].wait_for_cancel(1);
        let reset = asks.ask_to_manage(TARGET_COLD_RESET, 0, NO_TAG).expect("it is sent");
        assert!(holds.receive().is_err(), "its session has ended");
        login(&elsewhere, "another").logout().expect("an answer");
        assert!(!has_received(&asks), "the unit is still reserved");
        stores[1].release();
        assert_eq!(asks.complete(reset).expect("an answer").status, COMPLETE);
        assert_eq!(writes.complete(clear).expect("an answer").status, COMPLETE);
        writes.ready(0).expect("nobody has reserved the unit");
        writes.logout().expect("an answer");
        stop(daemon);
    }
}

#[test]
fn what_was_aborted_while_it_waited_at_its_units_home_is_not_done() {
    for cores in [1, 3] {
        let stores = [HeldStore::new()];
        let (daemon, url) = serve(cores, &stores, |_| {});
        let mut other = login(&url, "other");
        other.ready(0).expect("the unit is ready");
        let mut reserves = login(&url, "reserves");
        reserves.ready(0).expect("the unit is ready");
        let mut writes = writing(&url, &stores[0], "writes");
        let reset = reserves.ask_to_manage(LOGICAL_UNIT_RESET, 0, NO_TAG).expect("it is sent");
        stores[0].wait_for_cancel(1);
        let reserve = reserves.issue(0, RESERVE, 0, Vec::new()).expect("it is sent");
        let abort = reserves.manage(ABORT_TASK, 0, reserve).expect("an answer");
        assert!(matches!(abort, COMPLETE | NO_TASK), "{abort}");
        assert!(!reserves.has_ended(reset), "the WRITE may still land");
        stores[0].release();
        assert_eq!(reserves.complete(reset).expect("an answer").status, COMPLETE);
        // A reservation would cause a conflict.
        other.ready(0).expect("nobody has reserved the unit");
        for initiator in [other, reserves] {
            initiator.logout().expect("an answer");
        }
        writes.ready(0).expect("nobody has reserved the unit");
        writes.logout().expect("an answer");
        stop(daemon);
    }
}

/// RESERVE (SPC-2 section 7.20) ends with the nexus.
#[test]
fn a_logout_is_answered_when_its_reservation_is_gone() {
    for cores in [1, 3] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(cores, &stores, |_| {});
        let [mut other, mut clears, mut reserves] = ["other", "clears", "reserves"].map(|name| {
            let mut initiator = login(&url, name);
            initiator.ready(0).expect("the unit is ready");
            initiator
        });
        let writes = writing(&url, &stores[0], "writes");
        reserves.write(0, RESERVE, &[]).expect("an answer");
        // The unit's home is busy with it.
        let clear = clears.ask_to_manage(CLEAR_TASK_SET, 0, NO_TAG).expect("it is sent");
        stores[0].wait_for_cancel(1);
        let logout = Pdu::new(0x46, 0x80)
            .word(16, 0x77)
            .word(24, reserves.next_cmd_sn())
            .word(28, reserves.next_stat_sn());
        reserves.send(&logout).expect("it is sent");
        is_served(&mut other, 1);
        assert!(!has_received(&reserves), "the unit is still reserved");
        stores[0].release();
        assert_eq!(reserves.receive().expect("an answer").opcode(), LOGOUT_RESPONSE);
        other.ready(0).expect("nobody has reserved the unit");
        assert_eq!(clears.complete(clear).expect("an answer").status, COMPLETE);
        drop(writes);
        for initiator in [other, clears] {
            initiator.logout().expect("an answer");
        }
        stop(daemon);
    }
}

/// A session that ends waits for what it has requested, not for a unit that others hold up.
#[test]
fn a_logout_behind_a_reset_waits_for_its_unit_alone() {
    for cores in [1, 3] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(cores, &stores, |_| {});
        let [mut other, mut clears, mut resets] = ["other", "clears", "resets"].map(|name| {
            let mut initiator = login(&url, name);
            for lun in [0, 1] {
                initiator.ready(lun).expect("the unit is ready");
            }
            initiator
        });
        let _writes = writing(&url, &stores[0], "writes");
        stores[1].hold();
        other.issue(1, write_cdb(0, 512, BLOCK, false), 0, vec![1; 512]).expect("it is sent");
        stores[1].wait_for(1);
        let clear = clears.ask_to_manage(CLEAR_TASK_SET, 1, NO_TAG).expect("it is sent");
        stores[1].wait_for_cancel(1);
        resets.ask_to_manage(LOGICAL_UNIT_RESET, 0, NO_TAG).expect("it is sent");
        stores[0].wait_for_cancel(1);
        let logout = Pdu::new(0x46, 0x80)
            .word(16, 0x77)
            .word(24, resets.next_cmd_sn())
            .word(28, resets.next_stat_sn());
        resets.send(&logout).expect("it is sent");
        let mut quick = login(&url, "quick");
        is_served(&mut quick, 0);
        assert!(!has_received(&resets), "the unit is still to be reset");
        stores[0].release();
        while resets.receive().expect("an answer").opcode() != LOGOUT_RESPONSE {}
        assert!(!clears.has_ended(clear), "the other unit is still held up");
        stores[1].release();
        assert_eq!(clears.complete(clear).expect("an answer").status, COMPLETE);
        for initiator in [quick, clears] {
            initiator.logout().expect("an answer");
        }
        drop(other);
        stop(daemon);
    }
}

/// Also while other channels of the nexus exist.
#[test]
fn data_requested_by_a_channel_does_not_reach_its_successor() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve_all(&stores);
    let guid = format!("{GUID:016x}");
    let srp = |is_beside| {
        let login = peer::Login { at: url.portal, target: &guid, number: 1, is_beside };
        peer::connect("srp", &login).expect("a channel")
    };
    let mut other = login(&url, "other");
    let first = srp(false);
    let mut second = srp(true);
    let _writes = writing(&url, &stores[0], "writes");
    second.manage(0, peer::Function::LogicalUnitReset);
    stores[0].wait_for_cancel(1);
    let (registry, _) = daemon.insides();
    let newest = |places: Vec<Place>| places.iter().map(|place| place.serial).max();
    let serving = || registry.places().iter().filter(|place| !place.is_over).count();
    let (before, sessions) = (newest(registry.places()), serving());
    drop(second);
    while serving() == sessions {
        std::thread::yield_now();
    }
    let is_released = AtomicBool::new(false);
    scope(|scope| {
        let again = scope.spawn(|| {
            let channel = srp(false);
            assert!(is_released.load(Ordering::SeqCst), "the unit may still be reset");
            channel.leave();
        });
        while newest(registry.places()) == before {
            std::thread::yield_now();
        }
        is_served(&mut other, 1);
        assert!(!again.is_finished());
        is_released.store(true, Ordering::SeqCst);
        stores[0].release();
        again.join().expect("a session");
    });
    drop(first);
    other.logout().expect("an answer");
    stop(daemon);
}

/// Its abort, or a function that names it, waits until it has begun or never will.
#[test]
fn a_sanitize_that_is_aborted_while_its_home_begins_it_is_waited_for() {
    for is_logout in [false, true] {
        let stores = [HeldStore::new(), HeldStore::new()];
        let (daemon, url) = serve(1, &stores, |_| {});
        let mut other = login(&url, "other");
        let mut erases = login(&url, "erases");
        (0..2).for_each(|lun| erases.ready(lun).expect("the unit is ready"));
        let writes = writing(&url, &stores[0], "writes");
        let sanitize = erases.issue(0, SANITIZE_BLOCK_ERASE, 0, Vec::new()).expect("it is sent");
        // The home first aborts what is in progress.
        stores[0].wait_for_cancel(1);
        if is_logout {
            let logout = Pdu::new(0x46, 0x80)
                .word(16, 0x77)
                .word(24, erases.next_cmd_sn())
                .word(28, erases.next_stat_sn());
            erases.send(&logout).expect("it is sent");
            is_served(&mut other, 1);
            assert!(!has_received(&erases), "the SANITIZE may still begin");
            stores[0].release();
            assert_eq!(erases.receive().expect("an answer").opcode(), LOGOUT_RESPONSE);
        } else {
            let abort = erases.ask_to_manage(ABORT_TASK, 0, sanitize).expect("it is sent");
            is_served(&mut erases, 1);
            assert!(!erases.has_ended(abort), "the SANITIZE may still begin");
            stores[0].release();
            assert_eq!(erases.complete(abort).expect("an answer").status, COMPLETE);
            assert!(!erases.has_ended(sanitize));
            erases.logout().expect("an answer");
        }
        // It had begun, and cannot be aborted any more.
        while other.ready(0).is_err() {}
        assert_eq!(other.read_blocks(0, 0, 1, BLOCK).expect("it is read"), [0; 512]);
        drop(writes);
        other.logout().expect("an answer");
        stop(daemon);
    }
}

impl<I: Io> Core<I> {
    /// Sends data for each task of a session to an initiator that is ready for none.
    pub(in crate::core) fn misuse(&mut self, serial: u64) {
        let key = self.connections.iter().find(|(_, conn)| conn.facts.serial == serial).map(|(key, _)| key);
        let ours = self.tasks.iter().filter(|(_, task)| task.connection == key);
        let pushes: Vec<Down> = ours
            .map(|(_, task)| Down::Push { task: task.wire, at: 0, from: task.buffer, end: None })
            .collect();
        pushes.into_iter().for_each(|push| self.down(key, push));
    }
}

/// An invariant that fails on one connection does not affect others.
#[test]
fn a_fault_of_this_program_ends_one_session_alone() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut other = login(&url, "other");
    let mut writer = writing(&url, &stores[0], "writer");
    let (registry, mail) = daemon.insides();
    let newest = registry.places().iter().map(|place| place.serial).max().expect("two sessions");
    mail[0].post(Message::Misuse { serial: newest });
    assert!(writer.receive().is_err(), "the connection ends");
    is_served(&mut other, 1);
    stores[0].release();
    stores[0].wait_for(0);
    is_served(&mut other, 0);
    is_served(&mut login(&url, "writer"), 0);
    stop(daemon);
}
