//! What happens to data whose file or device loses it, or is itself lost.

use crate::support::daemon::Daemon;
use crate::support::fuse::Fuse;
use crate::support::initiator::{Initiator, Login};
use crate::support::wait_until;
use std::path::Path;
use tempfile::TempDir;
use wire::scsi::command::{FormatUnit, Inquiry, SynchronizeCache10};

/// A file of blocks of `byte` that a daemon serves with these options, and an initiator.
fn served(byte: u8, options: &str) -> (TempDir, Daemon, Initiator) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("disk");
    std::fs::write(&path, vec![byte; 1 << 20]).expect("written");
    let daemon = Daemon::serve(["--lun", "ram:1M", "--lun", &format!("file:{}{options}", path.display())]);
    let mut initiator = Initiator::login(&daemon.lun(0), &Login::named("guest")).expect("login");
    initiator.ready(1).expect("the unit is ready");
    (directory, daemon, initiator)
}

/// Stops the daemon; returns its status and log.
fn end(mut daemon: Daemon, initiator: Initiator) -> (Option<i32>, String) {
    initiator.logout().expect("logout");
    daemon.signal("TERM");
    let code = daemon.wait().code();
    (code, daemon.log())
}

/// Lines of the log that report an error of the unit.
fn errors(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("ERROR") && line.contains("lun1")).collect()
}

#[test]
fn a_served_file_that_is_deleted_is_logged_and_the_daemon_does_not_end_well() {
    let (directory, daemon, mut initiator) = served(1, "");
    let path = directory.path().join("disk");
    std::fs::remove_file(&path).expect("deleted");
    wait_until("it is logged", || errors(&daemon.log()).len() == 1);
    let log = daemon.log();
    for words in [path.to_str().expect("UTF-8"), "was deleted", "copy it through an initiator"] {
        assert!(errors(&log)[0].contains(words), "{words}:\n{log}");
    }

    std::fs::write(&path, vec![2; 1 << 20]).expect("a new file");
    initiator.write_blocks(1, 1, 512, &[3; 512], true).expect("WRITE");
    assert_eq!(initiator.read_blocks(1, 0, 1, 512).expect("READ"), vec![1; 512], "the old one is served");
    let (code, log) = end(daemon, initiator);
    assert_eq!(code, Some(1), "{log}");
    assert_eq!(errors(&log).len(), 1, "it is logged once:\n{log}");
    assert!(std::fs::read(&path).expect("read").iter().all(|byte| *byte == 2), "the new one is not touched");
}

#[test]
fn a_file_that_is_moved_right_before_the_end_is_noticed() {
    let (directory, daemon, initiator) = served(1, "");
    std::fs::rename(directory.path().join("disk"), directory.path().join("elsewhere")).expect("renamed");
    let (code, log) = end(daemon, initiator);
    assert_eq!(code, Some(1), "{log}");
    assert!(errors(&log)[0].contains("move it back"), "{log}");
}

#[test]
fn a_file_that_is_back_does_no_harm() {
    let (directory, daemon, initiator) = served(1, "");
    let (path, elsewhere) = (directory.path().join("disk"), directory.path().join("elsewhere"));
    let rename = |from: &Path, to: &Path| std::fs::rename(from, to).expect("renamed");
    rename(&path, &elsewhere);
    wait_until("it is logged", || errors(&daemon.log()).len() == 1);
    rename(&elsewhere, &path);
    wait_until("its return is logged", || daemon.log().contains("is at its path again"));
    let (code, log) = end(daemon, initiator);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn a_file_that_is_only_read_may_be_replaced() {
    let (directory, daemon, initiator) = served(1, ",ro");
    std::fs::remove_file(directory.path().join("disk")).expect("deleted");
    wait_until("it is logged", || daemon.log().contains("was deleted"));
    let (code, log) = end(daemon, initiator);
    assert_eq!(code, Some(0), "{log}");
}

const EIO: i32 = 5;
const HARDWARE_ERROR: u8 = 4;
/// Commands that an initiator may send without an answer.
const WINDOW: usize = 128;
const SYNCHRONIZE_CACHE: SynchronizeCache10 = SynchronizeCache10::new(0, 0);

/// The sense key of a flush.
fn flush(initiator: &mut Initiator) -> Option<u8> {
    let response = initiator.read(0, SYNCHRONIZE_CACHE, 0).expect("an answer");
    assert_eq!(response.status == 0, response.sense_key().is_none());
    response.sense_key()
}

#[test]
fn every_initiator_is_notified_once_of_what_a_flush_has_lost() {
    let (fuse, daemon) = fallible();
    let login = |name: &str| login(&daemon, name);
    let (mut one, mut two, mut away) = (login("one"), login("two"), login("away"));
    fuse.hold();
    for (initiator, lba) in [(&mut one, 0), (&mut two, 8), (&mut away, 16)] {
        initiator.write_blocks(0, lba, 512, &[lba as u8 + 1; 4096], false).expect("WRITE");
    }
    away.logout().expect("logout");
    let first = one.issue(0, SYNCHRONIZE_CACHE, 0, Vec::new()).expect("it is sent");
    fuse.wait_until_held();
    let second = two.issue(0, SYNCHRONIZE_CACHE, 0, Vec::new()).expect("it is sent");
    fuse.fail_writes(Some(EIO));
    fuse.release();
    assert_eq!(one.complete(first).expect("an answer").sense_key(), Some(HARDWARE_ERROR));
    fuse.fail_writes(None);
    assert_eq!(two.complete(second).expect("an answer").sense_key(), Some(HARDWARE_ERROR));
    let mut away = login("away");
    assert_eq!(flush(&mut away), Some(HARDWARE_ERROR), "it may have come back to flush what it wrote");
    let mut new = login("new");
    for initiator in [&mut one, &mut two, &mut away, &mut new] {
        assert_eq!(flush(initiator), None);
        initiator.write_blocks(0, 0, 512, &[9; 4096], true).expect("WRITE");
    }
    assert_eq!(fuse.byte(0), 9);
    let log = daemon.stop();
    assert!(log.contains("not yet durable may be lost") && log.contains("the next flush of each"), "{log}");
}

#[test]
fn a_durable_write_that_failed_fails_one_flush_of_each_initiator_and_needs_no_restart() {
    let (fuse, daemon) = fallible();
    let (mut one, mut two) = (login(&daemon, "one"), login(&daemon, "two"));
    for round in 1..=3 {
        two.write_blocks(0, 16, 512, &[round; 4096], false).expect("WRITE");
        fuse.fail_writes(Some(EIO));
        one.write_blocks(0, 0, 512, &[round; 4096], true).expect_err("the medium fails");
        fuse.fail_writes(None);
        for initiator in [&mut one, &mut two] {
            let flushes = [flush(initiator), flush(initiator), flush(initiator)];
            assert_eq!(flushes, [Some(HARDWARE_ERROR), None, None], "round {round}");
            initiator.write_blocks(0, 32, 512, &[round + 8; 4096], true).expect("WRITE");
        }
        assert_eq!(fuse.byte(32 * 512), round + 8);
    }
    assert_eq!(flush(&mut login(&daemon, "three")), None);
    let log = daemon.stop();
    assert_eq!(log.matches("the next flush of each initiator fails").count(), 3, "{log}");
}

/// Logs in, and checks that the unit is ready.
fn login(daemon: &Daemon, name: &str) -> Initiator {
    let mut initiator = Initiator::login(&daemon.lun(0), &Login::named(name)).expect("login");
    initiator.ready(0).expect("the unit is ready");
    initiator
}

/// A file whose write-back fails on demand, and a daemon that serves it.
fn fallible() -> (Fuse, Daemon) {
    let fuse = Fuse::mount(1 << 20);
    let daemon = Daemon::serve(["--lun", &format!("file:{}", fuse.path().display())]);
    (fuse, daemon)
}

/// Loses what was written: this initiator's flush gets the error.
fn lose(fuse: &Fuse, taker: &mut Initiator) {
    fuse.fail_writes(Some(EIO));
    assert_eq!(flush(taker), Some(HARDWARE_ERROR));
    fuse.fail_writes(None);
}

/// The incarnation of the store's cache in INQUIRY data.
fn incarnation(initiator: &mut Initiator) -> Vec<u8> {
    let response = initiator.read(0, Inquiry::new(96), 96).expect("an answer");
    response.data[36..52].to_vec()
}

#[test]
fn a_front_that_comes_with_a_new_session_after_a_loss_reports_it() {
    let (fuse, back) = fallible();
    let front = Daemon::serve(["--cores", "0,1", "--lun", &back.lun(0).to_string()]);
    // One on each core, each of which logs in at the back end when it has something to do.
    let (mut one, mut two) = (login(&front, "one"), login(&front, "two"));
    let mut other = login(&back, "other");
    let before = incarnation(&mut other);
    assert_eq!(incarnation(&mut other), before);
    one.write_blocks(0, 0, 512, &[1; 4096], false).expect("WRITE");
    lose(&fuse, &mut other);
    assert_ne!(incarnation(&mut other), before);
    assert_eq!(flush(&mut two), Some(HARDWARE_ERROR), "the WRITE of the other core is lost");
    assert_eq!(flush(&mut one), Some(HARDWARE_ERROR));
    // The front may have noticed it on both of its sessions, and again when the first of them is back, and
    // then reports it as often.
    let mut flushes = (0..4).map(|_| (flush(&mut one), flush(&mut two)));
    assert!(flushes.any(|both| both == (None, None)), "it is reported without end");
    front.stop();
    back.stop();
}

#[test]
fn a_back_that_is_killed_after_a_loss_is_not_the_same_again() {
    let fuse = Fuse::mount(1 << 20);
    let state = tempfile::tempdir().expect("a temporary directory");
    let lun = format!("file:{},serial=S", fuse.path().display());
    let serve = || Daemon::serve(["--state-dir", state.path().to_str().expect("UTF-8"), "--lun", &lun]);
    let back = serve();
    let mut one = login(&back, "one");
    let before = incarnation(&mut one);
    back.kill9();
    let back = serve();
    let mut one = login(&back, "one");
    assert_eq!(incarnation(&mut one), before, "the system has what was written");
    one.write_blocks(0, 0, 512, &[1; 4096], false).expect("WRITE");
    lose(&fuse, &mut one);
    wait_until("it is kept", || state.path().join("losses-53").exists());
    back.kill9();
    let back = serve();
    assert_ne!(incarnation(&mut login(&back, "one")), before);
    back.stop();
}

#[test]
fn a_loss_is_reported_again_until_the_initiator_continues() {
    let (fuse, daemon) = fallible();
    let mut one = login(&daemon, "one");
    one.write_blocks(0, 0, 512, &[1; 4096], false).expect("WRITE");
    lose(&fuse, &mut one);
    for _ in 0..2 {
        // Whether the status has arrived is unknown.
        drop(one);
        one = login(&daemon, "one");
        assert_eq!(flush(&mut one), Some(HARDWARE_ERROR));
    }
    // This one may have been sent before the report arrived.
    assert_eq!(flush(&mut one), None);
    drop(one);
    one = login(&daemon, "one");
    assert_eq!(flush(&mut one), Some(HARDWARE_ERROR));
    for _ in 0..WINDOW {
        one.ready(0).expect("the unit is ready");
    }
    assert_eq!(flush(&mut one), None);
    drop(one);
    one = login(&daemon, "one");
    assert_eq!(flush(&mut one), None, "it went on after the report");
    daemon.stop();
}

#[test]
fn what_was_lost_before_fails_no_format() {
    let (fuse, daemon) = fallible();
    let (mut one, mut other) = (login(&daemon, "one"), login(&daemon, "other"));
    one.write_blocks(0, 0, 512, &[1; 4096], false).expect("WRITE");
    lose(&fuse, &mut other);
    // Without IMMED.
    let format = one.write(0, FormatUnit::default(), &[]).expect("an answer");
    assert_eq!((format.status, format.sense_key()), (0, None));
    one.ready(0).expect("the unit is ready");
    assert_eq!(one.read_blocks(0, 0, 8, 512).expect("READ"), [0; 4096]);
    daemon.stop();
}
