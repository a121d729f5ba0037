//! NBD exports as disks: qemu-nbd, qemu-storage-daemon and nbdkit, served by daemons, used by our
//! own initiators.

use super::reload::ask;
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login, write_cdb};
use crate::support::load::Load;
use crate::support::nbd::NbdServer;
use crate::support::tools::{must, run, tool};
use crate::support::{Noise, wait_until};
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use wire::scsi::command::{ReadCapacity16, TestUnitReady};

const BLOCK: u32 = 512;
const NOT_READY: u8 = 2;
const DATA_PROTECT: u8 = 7;
const CAPACITY_CHANGED: [u8; 2] = [0x2a, 0x09];
const SPACE_ALLOCATION_FAILED: [u8; 2] = [0x27, 0x07];
const LOAD: [&str; 6] = ["--bs", "4K", "--iodepth", "16", "--size", "16M"];

fn image(bytes: u64) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("disk.img");
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("an image");
    (directory, path)
}

fn login(daemon: &Daemon) -> Initiator {
    Initiator::login(&daemon.lun(0), &Login::named("guest")).expect("login")
}

/// The sense key of TEST UNIT READY; `None`: it is ready.
fn readiness(initiator: &mut Initiator) -> Option<u8> {
    initiator.read(0, TestUnitReady {}, 0).expect("an answer").sense_key()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn an_export_is_a_disk_over_tcp_and_over_a_unix_socket() {
    for is_tcp in [true, false] {
        let (_directory, path) = image(64 << 20);
        let server = if is_tcp { NbdServer::qemu_tcp(&path, &[]) } else { NbdServer::qemu(&path, &[]) };
        let daemon = Daemon::serve(["--lun", &server.text()]);
        assert!(daemon.banner().contains(&server.text()), "{}", daemon.banner());
        let mut guest = login(&daemon);
        let data = Noise(3).bytes(256 << 10);
        guest.write_blocks(0, 1000, BLOCK, &data, true).expect("WRITE");
        assert_eq!(guest.read_blocks(0, 1000, 512, BLOCK).expect("READ"), data);
        guest.synchronize(0).expect("SYNCHRONIZE CACHE");
        let stored = std::fs::read(&path).expect("the image");
        assert!(stored[1000 * BLOCK as usize..][..data.len()] == data);
        guest.logout().expect("logout");
        daemon.stop();
    }
}

#[test]
fn an_export_that_is_read_only_is_a_read_only_unit_and_one_that_has_grown_is_noticed() {
    let (_directory, path) = image(64 << 20);
    let mut server = NbdServer::qemu(&path, &["--read-only"]);
    let daemon = Daemon::serve(["--lun", &server.text()]);
    let mut guest = login(&daemon);
    wait_until("its attentions are reported", || readiness(&mut guest).is_none());
    let refused = guest.write(0, write_cdb(8, 4096, BLOCK, false), &[3; 4096]).expect("an answer");
    assert_eq!(refused.sense_key(), Some(DATA_PROTECT));
    server.kill();
    File::options().write(true).open(&path).and_then(|file| file.set_len(96 << 20)).expect("it grows");
    server.restart();
    let mut attention = None;
    wait_until("the growth is reported", || {
        let sense = guest.read(0, TestUnitReady {}, 0).expect("an answer").sense;
        attention = sense.get(12..14).map(<[u8]>::to_vec);
        attention.as_deref() == Some(&CAPACITY_CHANGED[..])
    });
    let data = guest.read(0, ReadCapacity16::new(32), 32).expect("an answer").data;
    let last = data.first_chunk().map(|last| u64::from_be_bytes(*last));
    assert_eq!(last, Some((96 << 20) / u64::from(BLOCK) - 1));
    daemon.stop();
}

#[test]
fn the_connections_of_an_export_are_shown() {
    let (directory, path) = image(64 << 20);
    let mut server = NbdServer::qemu(&path, &[]);
    let socket = directory.path().join("admin.sock");
    let daemon = Daemon::serve(["--lun", &server.text(), "--admin", text(&socket)]);
    let shows = |count: &str| ask(&socket, &["luns"]).expect_success("LUNs are listed").contains(count);
    wait_until("the connection is counted", || shows(", 1 connection,"));
    server.kill();
    wait_until("its loss is noticed", || shows(", 0 connections,"));
    server.restart();
    wait_until("it is open again", || shows(", 1 connection,"));
    daemon.stop();
}

/// Verified load of so many sessions on the unit of a server that is killed meanwhile. Returns the daemon's log.
fn costs_time_only(mut server: NbdServer, sessions: &str) -> String {
    let daemon = Daemon::serve(["--lun", &server.text()]);
    let mut load = Load::on(&daemon.lun(0).to_string(), &[&LOAD[..], &["--numjobs", sessions]].concat());
    load.wait_for_progress();
    for _ in 0..3 {
        server.kill();
        server.restart();
        load.wait_for_progress();
    }
    load.stop();
    let log = daemon.log();
    assert!(log.contains("the connection to the NBD server is lost"), "{log}");
    daemon.stop();
    log
}

#[test]
fn qemu_nbd_killed_under_load_costs_time_only() {
    let (_directory, path) = image(64 << 20);
    let log = costs_time_only(NbdServer::qemu_tcp(&path, &[]), "1");
    assert!(!log.contains("one more connection"), "{log}");
}

#[test]
fn qemu_storage_daemon_killed_under_load_costs_time_only() {
    let (_directory, path) = image(64 << 20);
    costs_time_only(NbdServer::storage_daemon(&path), "1");
}

#[test]
fn nbdkit_killed_under_load_costs_time_only() {
    let (_directory, path) = image(64 << 20);
    costs_time_only(NbdServer::nbdkit(&["file", text(&path)]), "1");
}

#[test]
fn a_server_killed_under_load_by_several_connections_costs_time_only() {
    let (_directory, path) = image(64 << 20);
    for server in [NbdServer::qemu_tcp(&path, &["--shared=8"]), NbdServer::nbdkit(&["file", text(&path)])] {
        let log = costs_time_only(server, "4");
        assert!(log.contains("one more connection to the NBD server is open"), "{log}");
    }
}

/// A server with these options, which is stopped under the load of so many sessions.
fn a_hang_costs_time_only(options: &[&str], sessions: &str) {
    let (_directory, path) = image(64 << 20);
    let server = NbdServer::qemu(&path, options);
    let daemon = Daemon::serve(["--lun", &server.text()]);
    let mut guest = login(&daemon);
    guest.ready(0).expect("its attentions are reported");
    let mut load = Load::on(&daemon.lun(0).to_string(), &[&LOAD[..], &["--numjobs", sessions]].concat());
    load.wait_for_progress();
    server.signal("STOP");
    load.wait_until_stalled();
    // After the load's part of the disk, which has 16 MiB.
    let data = Noise(9).bytes(4096);
    let tag =
        guest.issue(0, write_cdb(65_536, data.len(), BLOCK, true), 0, data.clone()).expect("it is sent");
    server.signal("CONT");
    assert_eq!(guest.complete(tag).expect("an answer").sense_key(), None);
    assert_eq!(guest.read_blocks(0, 65_536, 8, BLOCK).expect("READ"), data);
    load.wait_for_progress();
    load.stop();
    daemon.stop();
}

#[test]
fn a_server_that_hangs_under_load_costs_time_only() {
    a_hang_costs_time_only(&[], "1");
    a_hang_costs_time_only(&["--shared=8"], "4");
}

#[test]
fn a_daemon_that_is_killed_under_load_costs_time_only() {
    let (_directory, path) = image(64 << 20);
    let server = NbdServer::qemu(&path, &[]);
    let serve = |listen: &str| {
        // The kernel closes the ring of a killed daemon, and its listening socket with it, some time later.
        wait_until("its address is free", || TcpListener::bind(listen).is_ok());
        Daemon::start(Daemon::command().args(["serve", "--listen", listen, "--lun", &server.text()]))
    };
    let mut daemon = serve("127.0.0.1:0");
    let unit = daemon.lun(0);
    let mut load = Load::on(&unit.to_string(), &LOAD);
    for _ in 0..3 {
        load.wait_for_progress();
        daemon.kill9();
        daemon = serve(&unit.portal.to_string());
    }
    load.wait_for_progress();
    load.stop();
    daemon.stop();
}

/// nbdkit, which fails writes with this error while a file exists.
fn failing(error: &str) -> (TempDir, PathBuf, NbdServer) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trigger = directory.path().join("fails");
    let server = NbdServer::nbdkit(&[
        "--filter=error",
        "memory",
        "64M",
        &format!("error={error}"),
        "error-pwrite-rate=100%",
        &format!("error-file={}", text(&trigger)),
    ]);
    (directory, trigger, server)
}

#[test]
fn a_server_that_is_full_says_so_and_takes_writes_again_once_it_has_space() {
    let (_directory, full, server) = failing("ENOSPC");
    let daemon = Daemon::serve(["--lun", &server.text()]);
    let mut guest = login(&daemon);
    guest.write_blocks(0, 8, BLOCK, &[1; 4096], false).expect("WRITE");
    File::create(&full).expect("a file");
    let refused = guest.write(0, write_cdb(8, 4096, BLOCK, false), &[2; 4096]).expect("an answer");
    assert_eq!(refused.sense_key(), Some(DATA_PROTECT));
    assert_eq!(refused.sense.get(12..14), Some(&SPACE_ALLOCATION_FAILED[..]));
    assert_eq!(guest.read_blocks(0, 8, 8, BLOCK).expect("READ"), [1; 4096]);
    guest.synchronize(0).expect("what was acknowledged is not lost by that");
    std::fs::remove_file(&full).expect("the file");
    guest.write_blocks(0, 8, BLOCK, &[3; 4096], false).expect("WRITE");
    daemon.stop();
}

#[test]
fn a_server_that_is_shut_down_is_left_and_waited_for() {
    let (_directory, ends, server) = failing("ESHUTDOWN");
    let daemon = Daemon::serve(["--lun", &server.text()]);
    let mut load = Load::on(&daemon.lun(0).to_string(), &LOAD);
    load.wait_for_progress();
    File::create(&ends).expect("a file");
    wait_until("it is left", || daemon.log().contains("the server is being shut down"));
    std::fs::remove_file(&ends).expect("the file");
    load.wait_for_progress();
    load.stop();
    daemon.stop();
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let (_directory, path) = image(64 << 20);
    let mut server = NbdServer::qemu(&path, &[]);
    server.kill();
    let daemon = Daemon::serve(["--lun", &server.text()]);
    assert!(daemon.log().contains("cannot reach the server"), "{}", daemon.log());
    let mut guest = login(&daemon);
    wait_until("it is not ready", || readiness(&mut guest) == Some(NOT_READY));
    server.restart();
    wait_until("it is ready", || readiness(&mut guest).is_none());
    guest.write_blocks(0, 0, BLOCK, &[1; 4096], false).expect("WRITE");
    daemon.stop();
}

#[test]
fn inquiry_shows_what_a_server_says_about_an_export() {
    let (_directory, path) = image(32 << 20);
    let server = NbdServer::qemu(&path, &["--shared=2", "--read-only"]);
    let inquiry = |more: &[&str]| {
        run(Daemon::command().args(["inquiry", &server.text()]).args(more), Duration::from_secs(60))
    };
    let said = inquiry(&[]).expect_success("inquiry");
    let lines: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in ["capacity 32 MiB (33554432 bytes)", "read-only yes", "block status yes"] {
        assert!(lines.iter().any(|line| line.join(" ") == expected), "{expected} is missing in:\n{said}");
    }
    let document = inquiry(&["--json"]).expect_success("inquiry --json");
    let document: serde_json::Value = serde_json::from_str(&document).expect("JSON");
    assert_eq!((&document["size_bytes"], &document["read_only"]), (&(32 << 20).into(), &true.into()));
    let refused = inquiry(&["--raw"]);
    assert!(refused.text.contains("leave it out for an NBD export"), "{}", refused.text);
}

#[test]
fn exports_are_copied_and_measured() {
    let (directory, path) = image(32 << 20);
    let server = NbdServer::qemu(&path, &["--shared=2"]);
    let (source, back) = (directory.path().join("source"), directory.path().join("back"));
    let mut data = vec![0; 32 << 20];
    data[5 << 20..6 << 20].copy_from_slice(&Noise(5).bytes(1 << 20));
    std::fs::write(&source, &data).expect("a file");
    let lunette = |arguments: &[&str]| run(Daemon::command().args(arguments), Duration::from_secs(120));
    let url = server.text();
    let said = lunette(&["copy", text(&source), &url, "--verify"]).expect_success("copy to the export");
    assert!(said.contains("no byte differs"), "{said}");
    must(tool("qemu-img").args(["compare", "-f", "raw", "-F", "raw", text(&source), text(&path)]));
    lunette(&["copy", &url, text(&back)]).expect_success("copy from the export");
    assert!(std::fs::read(&back).expect("a file") == data);
    lunette(&["bench", &url, "--rw", "randread", "--runtime", "1s", "--iodepth", "8", "--numjobs", "2"])
        .expect_success("bench");
    let refused = lunette(&["copy", &url.replace("/disk?", "/other?"), text(&back)]);
    assert!(refused.text.contains("the server has no such export"), "{}", refused.text);
    let same = lunette(&["copy", &url, &url]);
    assert!(same.text.contains("source and destination are the same"), "{}", same.text);
}
