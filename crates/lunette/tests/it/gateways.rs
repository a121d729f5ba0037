//! Gateways that share a Ceph image: two daemons, one of which is active, and what happens to a unit when
//! that one dies, hangs or is stopped.

mod all;
mod hosts;
mod many;

use super::reload::ask;
use crate::support::ceph::{Ceph, POOL};
use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Response, reserve_out, write_cdb};
use crate::support::wait_until;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wire::scsi::command::{
    ModeSelect6, ModeSense6, PersistentReserveIn, PersistentReserveOut, Read16, ReportTargetPortGroups,
    SetTargetPortGroups, TestUnitReady,
};
use wire::scsi::parameters::ReserveOutList;
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT};

const BLOCK: u32 = 512;
const BYTES: usize = 4096;
/// As configured in the files.
const TAKEOVER: Duration = Duration::from_secs(5);
const UNIT_ATTENTION: u8 = 6;
const IN_STANDBY: [u8; 2] = [0x04, 0x0b];
const REGISTRATIONS_PREEMPTED: [u8; 2] = [0x2a, 0x05];

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE_EXISTING_KEY: u8 = 6;
const WRITE_EXCLUSIVE: u8 = 1;
const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 5;
const KEY: u64 = 0x1234;

/// The admin socket of a gateway.
fn socket(directory: &TempDir, name: &str) -> PathBuf {
    directory.path().join(format!("{name}.sock"))
}

/// A gateway with this name, whose portal is in this group.
fn gateway(ceph: &Ceph, directory: &TempDir, name: &str, group: u16) -> Daemon {
    gateway_within(TAKEOVER, ceph, directory, name, group)
}

/// The same with a different takeover time.
fn gateway_within(takeover: Duration, ceph: &Ceph, directory: &TempDir, name: &str, group: u16) -> Daemon {
    gateway_with("one", takeover, ceph, directory, name, group)
}

/// The same with a way to share the disk.
fn gateway_with(
    access: &str,
    takeover: Duration,
    ceph: &Ceph,
    directory: &TempDir,
    name: &str,
    group: u16,
) -> Daemon {
    let conf = ceph.conf();
    let admin = socket(directory, name);
    let admin = admin.display();
    let text = format!(
        "admin = \"{admin}\"\n[cluster]\nname = \"c\"\ngateway = \"{name}\"\npool = \"{POOL}\"\nconf = \"{conf}\"\ntakeover = \"{}s\"\nosd_map_delay = \"7s\"\n\
         [[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = {group}\n\
         [[portal_group]]\ngroup = {group}\nexplicit = true\n\
         [[lun]]\nname = \"disk\"\nrbd = \"{POOL}/disk\"\nconf = \"{conf}\"\naccess = \"{access}\"\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\n",
        takeover.as_secs()
    );
    let file = directory.path().join(format!("{name}.toml"));
    fs::write(&file, text).expect("a file");
    Daemon::serve_file(&file)
}

fn login(daemon: &Daemon) -> Initiator {
    login_as(daemon, "host")
}

/// An active gateway and one in standby, with a session to each.
fn two(ceph: &Ceph, directory: &TempDir) -> [(Daemon, Initiator); 2] {
    two_within(TAKEOVER, ceph, directory)
}

/// The same with a different takeover time.
fn two_within(takeover: Duration, ceph: &Ceph, directory: &TempDir) -> [(Daemon, Initiator); 2] {
    let first = gateway_within(takeover, ceph, directory, "a", 1);
    let mut by_first = login(&first);
    wait_until("the first one is active", || readiness(&mut by_first).is_none());
    let second = gateway_within(takeover, ceph, directory, "b", 2);
    let mut by_second = login(&second);
    assert_eq!(readiness(&mut by_second), Some(IN_STANDBY));
    wait_until_it_knows_the_state(&mut by_second);
    [(first, by_first), (second, by_second)]
}

fn login_as(daemon: &Daemon, name: &str) -> Initiator {
    Initiator::login(&daemon.lun(0), &Login::named(name)).expect("login")
}

/// A gateway in standby accepts PERSISTENT RESERVE OUT once it has read the unit's state.
fn wait_until_it_knows_the_state(host: &mut Initiator) {
    const RELEASE: u8 = 2;
    const IN_TRANSITION: [u8; 2] = [0x04, 0x0a];
    wait_until("it knows the unit's state", || code(&reserve(host, RELEASE, 1, 0, 0)) != Some(IN_TRANSITION));
}

/// PERSISTENT RESERVE OUT, after unit attentions.
fn reserve(host: &mut Initiator, action: u8, kind: u8, key: u64, action_key: u64) -> Response {
    let list = ReserveOutList { key, action_key, ..ReserveOutList::ZERO }.to_bytes();
    settled(|| host.write(0, PersistentReserveOut::new(action, kind, 24), &list).expect("an answer"))
}

/// Registered keys.
fn keys(host: &mut Initiator) -> Vec<u64> {
    let data = reserved(host, 0);
    data[8..].chunks(8).map(|key| u64::from_be_bytes(key.try_into().expect("eight bytes"))).collect()
}

/// Target port groups and their states.
fn groups(host: &mut Initiator) -> Vec<(u8, u8)> {
    let data = settled(|| host.read(0, ReportTargetPortGroups::new(255), 255).expect("an answer")).data;
    let mut groups: Vec<_> = data[4..].chunks(12).map(|group| (group[3], group[0] & 0x0f)).collect();
    groups.sort_unstable();
    groups
}

/// The control mode page.
fn control(host: &mut Initiator) -> Vec<u8> {
    let cdb = ModeSense6::page_only(0x0a, 255);
    settled(|| host.read(0, cdb, 255).expect("an answer")).data
}

/// The outcome of a command after unit attentions.
fn settled(mut run: impl FnMut() -> Response) -> Response {
    loop {
        let response = run();
        if response.sense_key() != Some(UNIT_ATTENTION) {
            return response;
        }
    }
}

fn code(response: &Response) -> Option<[u8; 2]> {
    (!response.sense.is_empty()).then(|| [response.sense[12], response.sense[13]])
}

/// The unit attentions that a host gets.
fn attentions(host: &mut Initiator) -> Vec<[u8; 2]> {
    let mut all = Vec::new();
    loop {
        let response = host.read(0, TestUnitReady {}, 0).expect("an answer");
        if response.sense_key() != Some(UNIT_ATTENTION) {
            return all;
        }
        all.extend(code(&response));
    }
}

fn readiness(host: &mut Initiator) -> Option<[u8; 2]> {
    code(&settled(|| host.read(0, TestUnitReady {}, 0).expect("an answer")))
}

fn write(host: &mut Initiator, lba: u64, byte: u8) -> Response {
    settled(|| host.write(0, write_cdb(lba, BYTES, BLOCK, false), &[byte; BYTES]).expect("an answer"))
}

fn read(host: &mut Initiator, lba: u64) -> Vec<u8> {
    settled(|| host.read(0, Read16::new(lba, BYTES as u32 / BLOCK), BYTES).expect("an answer")).data
}

/// Data of PERSISTENT RESERVE IN.
fn reserved(host: &mut Initiator, action: u8) -> Vec<u8> {
    settled(|| host.read(0, PersistentReserveIn::new(action, 255), 255).expect("an answer")).data
}

/// Waits until a write on this path succeeds, like a host whose other path has failed. Returns how long that
/// took.
fn take_over(host: &mut Initiator, lba: u64, byte: u8) -> Duration {
    let begin = Instant::now();
    wait_until("another gateway is active", || {
        let response = write(host, lba, byte);
        assert!(response.status == GOOD || code(&response) == Some(IN_STANDBY), "{response:?}");
        response.status == GOOD
    });
    begin.elapsed()
}

#[test]
fn a_unit_is_served_by_another_gateway_when_its_own_dies_hangs_or_is_stopped() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, mut by_first), (second, mut by_second)] = two(&ceph, &directory);

    // It dies: nothing acknowledged is lost, nor are reservations, even without APTPL.
    assert_eq!(reserve_out(&mut by_first, 0, REGISTER, 0, 0, KEY), GOOD);
    for lba in 0..64 {
        assert_eq!(write(&mut by_first, 8 * lba, lba as u8 + 1).status, GOOD);
    }
    wait_until("the path in standby shows it", || reserved(&mut by_second, 0).len() > 8);
    first.kill9();
    let stall = take_over(&mut by_second, 1024, 7);
    eprintln!("kill -9: another gateway wrote after {stall:?}");
    (0..64).for_each(|lba| assert_eq!(read(&mut by_second, 8 * lba), [lba as u8 + 1; BYTES]));
    assert_eq!(reserved(&mut by_second, 0)[8..], KEY.to_be_bytes());
    let first = gateway(&ceph, &directory, "a", 1);
    let mut by_first = login(&first);
    assert_eq!(readiness(&mut by_first), Some(IN_STANDBY));

    // It hangs with writes in progress, and gets more; when it continues they do not overwrite newer data.
    assert_eq!(reserve_out(&mut by_second, 0, REGISTER, 0, 0, KEY + 1), GOOD);
    assert_eq!(reserve_out(&mut by_second, 0, RESERVE, WRITE_EXCLUSIVE, KEY + 1, 0), GOOD);
    assert_eq!(write(&mut by_first, 0, 0).status, CHECK_CONDITION, "it is in standby");
    let old = |host: &mut Initiator| {
        for lba in 0..16 {
            let cdb = write_cdb(8 * lba, BYTES, BLOCK, false);
            host.issue(0, cdb, 0, vec![0xee; BYTES]).expect("it is sent");
        }
    };
    old(&mut by_second);
    second.freeze();
    old(&mut by_second);
    let begin = Instant::now();
    wait_until("another gateway is active", || readiness(&mut by_first).is_none());
    eprintln!("SIGSTOP: another gateway was active after {:?}", begin.elapsed());
    assert_eq!(write(&mut by_first, 0, 1).status, RESERVATION_CONFLICT, "the reservation is there");
    assert_eq!(reserve_out(&mut by_first, 0, CLEAR, 0, KEY, 0), GOOD, "so is what it had registered first");
    for lba in 0..32 {
        assert_eq!(write(&mut by_first, 8 * lba, lba as u8 + 101).status, GOOD);
    }
    second.signal("CONT");
    wait_until("its sessions have ended", || by_second.complete_any().is_err());
    wait_until("it is back as another client", || second.log().contains("in standby"));
    let mut by_second = login(&second);
    assert_eq!(readiness(&mut by_second), Some(IN_STANDBY));
    for lba in 0..32 {
        assert_eq!(read(&mut by_first, 8 * lba), [lba as u8 + 101; BYTES], "block {lba}");
    }

    // It is stopped gracefully: the other one does not wait.
    first.stop();
    let stall = take_over(&mut by_second, 1024, 9);
    assert_eq!(
        second.log().matches("was fenced").count(),
        1,
        "only the one that was killed: {}",
        second.log()
    );
    eprintln!("SIGTERM: another gateway wrote after {stall:?}");
    assert_eq!(read(&mut by_second, 248), [132; BYTES]);
    second.stop();
}

#[test]
fn what_a_host_reserves_by_its_path_in_standby_holds_everywhere_and_survives_a_takeover() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, mut by_first), (second, mut by_second)] = two(&ceph, &directory);
    let (active, standby) = (0, 2);
    for host in [&mut by_first, &mut by_second] {
        wait_until("both know both groups", || groups(host) == [(1, active), (2, standby)]);
    }

    // The host registers both paths; so does another host.
    let (mut other_by_first, mut other_by_second) = (login_as(&first, "other"), login_as(&second, "other"));
    let (other, new) = (KEY + 1, KEY + 2);
    for (host, key) in [
        (&mut by_first, KEY),
        (&mut by_second, KEY),
        (&mut other_by_first, other),
        (&mut other_by_second, other),
    ] {
        assert_eq!(reserve(host, REGISTER, 0, 0, key).status, GOOD);
    }
    assert_eq!(reserve(&mut by_second, REGISTER, 0, 0, KEY).status, RESERVATION_CONFLICT, "it is registered");
    for host in [&mut by_first, &mut by_second] {
        assert_eq!(keys(host), [KEY, KEY, other, other]);
    }
    let kind = WRITE_EXCLUSIVE_REGISTRANTS_ONLY;
    assert_eq!(reserve(&mut by_second, RESERVE, kind, KEY, 0).status, GOOD);
    assert_eq!(write(&mut other_by_first, 0, 1).status, GOOD, "it is registered");
    let mut stranger = login_as(&first, "stranger");
    assert_eq!(write(&mut stranger, 0, 2).status, RESERVATION_CONFLICT);

    // Mode parameters, too, are changed through the path in standby.
    let mut page = control(&mut by_second);
    (page[0], page[2], page[4]) = (0, 0, page[4] & 0x7f);
    page[4 + 3] |= 0x06;
    let select = ModeSelect6 { page_format: true, save: false, list_bytes: page.len() as u8 };
    assert_eq!(settled(|| by_second.write(0, select, &page).expect("an answer")).status, GOOD);
    for host in [&mut by_first, &mut by_second] {
        assert_eq!(control(host)[4 + 3] & 0x06, 0x06, "QERR");
    }

    // A host that is preempted through the path in standby is fenced off by the active one, and both of its
    // paths are notified.
    assert_eq!(write(&mut other_by_second, 0, 3).status, CHECK_CONDITION, "it is in standby");
    assert_eq!(reserve(&mut by_second, PREEMPT_AND_ABORT, kind, KEY, other).status, GOOD);
    for host in [&mut other_by_first, &mut other_by_second] {
        let attentions = attentions(host);
        assert!(attentions.contains(&REGISTRATIONS_PREEMPTED), "{attentions:02x?}");
    }
    assert_eq!(write(&mut other_by_first, 0, 4).status, RESERVATION_CONFLICT);
    assert_eq!(write(&mut by_first, 0, 5).status, GOOD);

    // The active one dies. Requests made meanwhile are executed by the next one, through which the host
    // writes without registering again.
    first.kill9();
    let response = reserve(&mut by_second, REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, new);
    assert_eq!(response.status, GOOD, "{response:?}");
    assert_eq!(read(&mut by_second, 0), [5; BYTES]);
    assert_eq!(write(&mut by_second, 0, 6).status, GOOD);
    assert_eq!(write(&mut other_by_second, 0, 7).status, RESERVATION_CONFLICT);
    assert_eq!(keys(&mut by_second), [KEY, new]);
    assert_eq!(control(&mut by_second)[4 + 3] & 0x06, 0x06, "QERR");
    second.stop();
}

/// SET TARGET PORT GROUPS: makes this group active/optimized.
fn activate(host: &mut Initiator, group: u8) -> Response {
    let list = [0, 0, 0, 0, 0, 0, 0, group];
    settled(|| host.write(0, SetTargetPortGroups::new(8), &list).expect("an answer"))
}

#[test]
fn a_unit_is_moved_by_a_command_and_not_to_and_fro_by_initiators() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let first = gateway(&ceph, &directory, "a", 1);
    let mut by_first = login(&first);
    wait_until("the first one is active", || readiness(&mut by_first).is_none());
    assert_eq!(write(&mut by_first, 0, 1).status, GOOD);
    let second = gateway(&ceph, &directory, "b", 2);
    let mut by_second = login(&second);
    let failed = Some([0x67, 0x0a]);
    assert_eq!(code(&activate(&mut by_second, 2)), failed, "it has just become active there");
    assert_eq!(activate(&mut by_first, 1).status, GOOD, "it is active");
    assert_eq!(write(&mut by_first, 8, 2).status, GOOD);

    let outcome = ask(&socket(&directory, "b"), &["lun", "activate", "disk"]).expect_success("it is moved");
    assert!(outcome.contains("this gateway is active for LUN disk"), "{outcome}");
    assert_eq!(write(&mut by_second, 16, 3).status, GOOD);
    assert_eq!(readiness(&mut by_first), Some(IN_STANDBY));
    for lba in 0..3 {
        assert_eq!(read(&mut by_second, 8 * lba), [lba as u8 + 1; BYTES]);
    }
    assert_eq!(code(&activate(&mut by_first, 1)), failed, "it has just been moved");
    assert!(!second.log().contains("was fenced"), "it was handed over: {}", second.log());
    first.stop();
    second.stop();
}

/// Adds a portal to a gateway, in this group.
fn add_portal(directory: &TempDir, name: &str, group: u16) -> SocketAddr {
    let listen = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let file = directory.path().join(format!("{name}.toml"));
    let text = fs::read_to_string(&file).expect("a file");
    fs::write(&file, format!("{text}[[portal]]\nlisten = \"{listen}\"\ngroup = {group}\n")).expect("a file");
    ask(&socket(directory, name), &["reload"]).expect_success("it is reloaded");
    listen
}

#[test]
fn a_portal_that_a_reload_adds_to_a_gateway_is_known_to_the_others_at_once() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, mut by_first), (second, mut by_second)] = two(&ceph, &directory);
    let (active, standby) = (0, 2);

    // Another portal of the gateway in standby, through which a host registers.
    let portal = add_portal(&directory, "b", 3);
    wait_until("the active one knows it", || {
        groups(&mut by_first) == [(1, active), (2, standby), (3, standby)]
    });
    let url = Url { portal, ..second.lun(0) };
    let mut by_new = Initiator::login(&url, &Login::named("host")).expect("login");
    assert_eq!(reserve(&mut by_new, REGISTER, 0, 0, KEY).status, GOOD);
    assert_eq!(keys(&mut by_first), [KEY]);

    // And one of the active one, which the other one reports as well.
    add_portal(&directory, "a", 4);
    wait_until("the one in standby knows it", || {
        groups(&mut by_second) == [(1, active), (2, standby), (3, standby), (4, active)]
    });
    first.stop();
    second.stop();
}

#[test]
fn a_reload_that_gives_a_gateway_a_group_or_an_identifier_of_another_one_is_refused() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, mut by_first), (second, mut by_second)] = two(&ceph, &directory);
    let both = [(1, 0), (2, 2)];
    let file = directory.path().join("a.toml");
    let text = fs::read_to_string(&file).expect("a file");
    let data = settled(|| by_first.read(0, ReportTargetPortGroups::new(255), 255).expect("an answer")).data;
    let its = data[4..].chunks(12).find(|group| group[3] == 2).expect("a group");
    let id = u16::from_be_bytes([its[10], its[11]]);
    let portal = format!("{text}[[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = ");
    for (changed, what) in [
        (format!("{portal}2\n"), "target port group 2 is gateway b's as well".to_owned()),
        (
            format!("{portal}3\n[[portal_group]]\ngroup = 3\nport_ids = \"{id}-{id}\"\n"),
            format!("relative target port identifier {id} is gateway b's as well"),
        ),
    ] {
        fs::write(&file, changed).expect("a file");
        let outcome = ask(&socket(&directory, "a"), &["reload"]);
        assert!(!outcome.status.is_some_and(|status| status.success()));
        let said = outcome.text;
        assert!(said.contains("LUN disk") && said.contains(&what), "{said}");
        assert_eq!(groups(&mut by_first), both);
        assert_eq!(groups(&mut by_second), both);
    }
    fs::write(&file, text).expect("a file");
    ask(&socket(&directory, "a"), &["reload"]).expect_success("it is reloaded");
    first.stop();
    second.stop();
}

#[test]
fn a_daemon_takes_other_changes_while_a_unit_moves_and_warns_once_of_an_osd_that_is_away_for_a_moment() {
    let ceph = Ceph::start();
    ceph.create_shared("disk", 64 << 20);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [(first, _), (second, mut by_second)] = two_within(6 * TAKEOVER, &ceph, &directory);
    let admin = socket(&directory, "b");
    ceph.signal_osd("STOP");
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| ask(&admin, &["lun", "activate", "disk"]));
        wait_until("the OSD is missed", || second.log().contains("the cluster does not answer"));
        ask(&admin, &["reload"]).expect_success("it is reloaded");
        assert!(!moving.is_finished(), "it waits for the OSD");
        ceph.signal_osd("CONT");
        moving.join().expect("it ends").expect_success("it has moved");
    });
    assert_eq!(write(&mut by_second, 0, 1).status, GOOD);
    wait_until("the OSD is back", || second.log().contains("the cluster answers again"));
    let log = second.log();
    assert_eq!(log.matches("the cluster does not answer; retrying").count(), 1, "{log}");
    assert!(!log.contains("ERROR"), "{log}");
    first.stop();
    second.stop();
}
