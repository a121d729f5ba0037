//! Several sessions on one unit, over all cores: reservations, resets, aborts, ordered tasks, atomic commands,
//! reinstatement.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Pdu, Response, crc32c, reserve_out, write_cdb};
use crate::support::load::Load;
use crate::support::wait_until;
use std::io::Write as _;
use std::time::{Duration, Instant};
use wire::scsi::command::{CompareAndWrite, PersistentReserveOut, Read16};
use wire::scsi::opcode::service_action::persistent_reserve_out;
use wire::scsi::parameters::ReserveOutList;
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT};

const BLOCK: usize = 512;

/// Task management functions (RFC 7143 section 11.5.1).
const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_TASK_SET: u8 = 4;
const LOGICAL_UNIT_RESET: u8 = 5;
const TARGET_WARM_RESET: u8 = 6;
const TARGET_COLD_RESET: u8 = 7;
/// Responses to them.
const COMPLETE: u8 = 0;
const NO_TASK: u8 = 1;
const NO_UNIT: u8 = 2;

/// A move takes three successive seconds in which cores differ, which may take long to occur on a loaded
/// machine.
const MOVES_WITHIN: Duration = Duration::from_secs(120);

fn daemon() -> (Daemon, Url) {
    let daemon = Daemon::serve(["--lun", "ram:16M"]);
    let url = daemon.lun(0);
    (daemon, url)
}

/// A session that has consumed its power-on unit attentions.
fn session(url: &Url, name: &str) -> Initiator {
    let mut initiator = Initiator::login(url, &Login::named(name)).expect("login");
    initiator.ready(url.lun).expect("TEST UNIT READY");
    initiator
}

fn test_unit_ready(initiator: &mut Initiator, lun: u16) -> Response {
    initiator.read(lun, &[0; 6], 0).expect("an answer")
}

fn write_status(initiator: &mut Initiator, lun: u16) -> u8 {
    initiator.write(lun, write_cdb(0, BLOCK, 512, false), &[1; BLOCK]).expect("an answer").status
}

#[test]
fn a_reservation_holds_on_every_core() {
    let (daemon, url) = daemon();
    let mut holder = session(&url, "holder");
    let mut others: Vec<Initiator> = (0..6).map(|n| session(&url, &format!("other{n}"))).collect();
    assert_eq!(reserve_out(&mut holder, url.lun, 0, 0, 0, 0xaa), GOOD, "REGISTER");
    assert_eq!(reserve_out(&mut holder, url.lun, 1, 1, 0xaa, 0), GOOD, "RESERVE, write exclusive");
    for other in &mut others {
        assert_eq!(write_status(other, url.lun), RESERVATION_CONFLICT);
        assert_eq!(other.read_blocks(url.lun, 0, 1, 512).expect("reads are allowed").len(), BLOCK);
    }
    assert_eq!(write_status(&mut holder, url.lun), GOOD);
    assert_eq!(reserve_out(&mut others[0], url.lun, 0, 0, 0, 0xbb), GOOD, "REGISTER");
    assert_eq!(reserve_out(&mut others[0], url.lun, 5, 1, 0xbb, 0xaa), GOOD, "PREEMPT AND ABORT");
    let reported = test_unit_ready(&mut holder, url.lun);
    assert_eq!(
        (reported.status, reported.sense_key()),
        (CHECK_CONDITION, Some(6)),
        "registrations preempted"
    );
    assert_eq!(write_status(&mut holder, url.lun), RESERVATION_CONFLICT);
    assert_eq!(write_status(&mut others[0], url.lun), GOOD);
    daemon.stop();
}

#[test]
fn a_reset_is_reported_to_every_session_once() {
    let (daemon, url) = daemon();
    let mut sessions: Vec<Initiator> = (0..5).map(|n| session(&url, &format!("n{n}"))).collect();
    assert_eq!(sessions[0].manage(LOGICAL_UNIT_RESET, url.lun, u32::MAX).expect("an answer"), COMPLETE);
    for initiator in &mut sessions {
        let reported = test_unit_ready(initiator, url.lun);
        assert_eq!((reported.status, reported.sense_key()), (CHECK_CONDITION, Some(6)));
        assert_eq!(reported.sense.get(12), Some(&0x29));
        assert_eq!(test_unit_ready(initiator, url.lun).status, GOOD);
    }
    assert_eq!(sessions[0].manage(LOGICAL_UNIT_RESET, 77, u32::MAX).expect("an answer"), NO_UNIT);
    daemon.stop();
}

/// A WRITE whose data is requested but never sent; returns its tag.
fn stalled_write(initiator: &mut Initiator, lun: u16) -> u32 {
    stalled_write_as(initiator, lun, 1)
}

/// The same with this task attribute.
fn stalled_write_as(initiator: &mut Initiator, lun: u16, attribute: u8) -> u32 {
    const TAG: u32 = 0x7000_0001;
    let cdb = write_cdb(8, 4 * BLOCK, 512, false);
    let mut command = Pdu::new(0x01, 0x80 | 0x20 | attribute)
        .lun(lun)
        .word(16, TAG)
        .word(20, 4 * BLOCK as u32)
        .word(24, initiator.next_cmd_sn());
    command.set_cdb(cdb);
    initiator.send(&command).expect("sent");
    let asked = initiator.receive().expect("an R2T");
    assert_eq!((asked.opcode(), asked.word_at(16)), (0x31, TAG));
    TAG
}

#[test]
fn a_write_that_waits_for_its_data_can_be_aborted() {
    let (daemon, url) = daemon();
    let mut initiator = session(&url, "aborter");
    let tag = stalled_write(&mut initiator, url.lun);
    initiator.skip_cmd_sn();
    assert_eq!(initiator.manage(ABORT_TASK, url.lun, tag).expect("an answer"), COMPLETE);
    assert_eq!(initiator.manage(ABORT_TASK, url.lun, tag).expect("an answer"), NO_TASK);
    assert_eq!(initiator.read_blocks(url.lun, 8, 4, 512).expect("served on"), vec![0; 4 * BLOCK]);
    daemon.stop();
}

#[test]
fn a_reset_by_another_session_ends_a_write_that_waits_for_its_data() {
    let (daemon, url) = daemon();
    let mut stalled = session(&url, "stalled");
    let mut resetter = session(&url, "resetter");
    stalled_write(&mut stalled, url.lun);
    stalled.skip_cmd_sn();
    assert_eq!(resetter.manage(LOGICAL_UNIT_RESET, url.lun, u32::MAX).expect("an answer"), COMPLETE);
    let reported = test_unit_ready(&mut stalled, url.lun);
    assert_eq!(reported.sense_key(), Some(6));
    daemon.stop();
}

/// Several sessions, over all cores, each with a write in flight, after one of them has sent this function:
/// whether the write was still there, and the additional sense code that the session got; first that of the
/// sender.
fn tasks_after(function: u8) -> Vec<(bool, Option<u8>)> {
    let (daemon, url) = daemon();
    let mut sessions: Vec<Initiator> = (0..4).map(|n| session(&url, &format!("busy{n}"))).collect();
    let tags: Vec<u32> = sessions.iter_mut().map(|busy| stalled_write(busy, url.lun)).collect();
    sessions.iter_mut().for_each(Initiator::skip_cmd_sn);
    assert_eq!(sessions[0].manage(function, url.lun, u32::MAX).expect("an answer"), COMPLETE);
    let outcome = |(busy, tag): (&mut Initiator, &u32)| {
        let was_there = busy.manage(ABORT_TASK, url.lun, *tag).expect("an answer") == COMPLETE;
        let reported = test_unit_ready(busy, url.lun);
        busy.ready(url.lun).expect("reported at most once");
        (was_there, reported.sense.get(12).copied())
    };
    let outcomes = sessions.iter_mut().zip(&tags).map(outcome).collect();
    sessions[1].write_blocks(url.lun, 8, 512, &[5; BLOCK], false).expect("no task holds the unit up");
    drop(sessions);
    daemon.stop();
    outcomes
}

#[test]
fn abort_task_set_ends_the_tasks_of_its_sender_only() {
    assert_eq!(tasks_after(ABORT_TASK_SET), [(false, None), (true, None), (true, None), (true, None)]);
}

#[test]
fn clear_task_set_ends_the_tasks_of_all_and_notifies_the_others() {
    const CLEARED: Option<u8> = Some(0x2f);
    assert_eq!(
        tasks_after(CLEAR_TASK_SET),
        [(false, None), (false, CLEARED), (false, CLEARED), (false, CLEARED)]
    );
}

#[test]
fn a_warm_reset_ends_the_tasks_of_all_and_notifies_everybody() {
    assert_eq!(tasks_after(TARGET_WARM_RESET), [(false, Some(0x29)); 4]);
}

/// COMPARE AND WRITE of one block.
fn compare_and_write(initiator: &mut Initiator, lun: u16, old: u64, new: u64) -> bool {
    let mut out = vec![0; 2 * BLOCK];
    out[..8].copy_from_slice(&old.to_be_bytes());
    out[BLOCK..BLOCK + 8].copy_from_slice(&new.to_be_bytes());
    let response = initiator.write(lun, CompareAndWrite::new(0, 1), &out).expect("an answer");
    assert!(response.status == GOOD || response.sense_key() == Some(0x0e), "MISCOMPARE is the only failure");
    response.status == GOOD
}

fn count_by_compare_and_write(spec: &str) {
    const SESSIONS: u64 = 4;
    const EACH: u64 = 100;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let spec = spec.replace("DIR", &directory.path().display().to_string());
    let daemon = Daemon::serve(["--lun", &spec]);
    let url = daemon.lun(0);
    std::thread::scope(|scope| {
        for n in 0..SESSIONS {
            let url = url.clone();
            scope.spawn(move || {
                let mut initiator = session(&url, &format!("counter{n}"));
                let mut counted = 0;
                while counted < EACH {
                    let block = initiator.read_blocks(url.lun, 0, 1, 512).expect("READ");
                    let value = u64::from_be_bytes(block[..8].try_into().expect("eight bytes"));
                    counted += u64::from(compare_and_write(&mut initiator, url.lun, value, value + 1));
                }
            });
        }
    });
    let block = session(&url, "reader").read_blocks(url.lun, 0, 1, 512).expect("READ");
    assert_eq!(block[..8], (SESSIONS * EACH).to_be_bytes());
    daemon.stop();
}

#[test]
fn compare_and_write_counts_over_sessions_in_ram() {
    count_by_compare_and_write("ram:1M");
}

#[test]
fn compare_and_write_counts_over_sessions_in_a_file() {
    count_by_compare_and_write("file:DIR/disk,size=1M");
}

#[test]
fn ordered_and_simple_tasks_of_many_sessions_all_end() {
    let (daemon, url) = daemon();
    std::thread::scope(|scope| {
        for n in 0..4u64 {
            let url = url.clone();
            scope.spawn(move || {
                let mut initiator = session(&url, &format!("orderly{n}"));
                let mut tags = Vec::new();
                for round in 0..50u64 {
                    // Simple, simple, ordered, head of queue, cyclically.
                    let attribute = [1, 1, 2, 3][(round % 4) as usize];
                    let lba = n * 1000 + round;
                    let cdb = write_cdb(lba, BLOCK, 512, false);
                    let out = vec![round as u8 + 1; BLOCK];
                    tags.push(initiator.issue_as(attribute, url.lun, cdb, 0, out).expect("sent"));
                }
                for tag in tags {
                    assert_eq!(initiator.complete(tag).expect("an answer").status, GOOD);
                }
                for round in 0..50u64 {
                    let block = initiator.read_blocks(url.lun, n * 1000 + round, 1, 512).expect("READ");
                    assert_eq!(block, vec![round as u8 + 1; BLOCK]);
                }
            });
        }
    });
    daemon.stop();
}

/// A session that has requested more than sockets can hold, and has not read any of it. The target has all
/// the commands: they arrived together, and the first is being answered.
fn reads(url: &Url, name: &str) -> (Initiator, Vec<u32>) {
    let mut reader = session(url, name);
    let cdb = Read16::new(0, 512);
    reader.gather();
    let tags = (0..64).map(|_| reader.issue(url.lun, cdb, 512 * 512, Vec::new()).expect("sent")).collect();
    reader.release().expect("sent");
    reader.stream().peek(&mut [0]).expect("the first answer");
    (reader, tags)
}

#[test]
fn a_reset_frees_a_unit_from_reads_that_nobody_takes() {
    let (daemon, url) = daemon();
    let (stuck, _) = reads(&url, "stuck");
    let (mut waiting, mut other) = (session(&url, "waiting"), session(&url, "other"));
    let cdb = write_cdb(9, BLOCK, 512, false);
    waiting.issue_as(2, url.lun, cdb, 0, vec![9; BLOCK]).expect("sent");
    assert_eq!(other.manage(5, url.lun, u32::MAX).expect("an answer"), 0, "LOGICAL UNIT RESET");
    other.write_blocks(url.lun, 9, 512, &vec![7; BLOCK], false).expect("WRITE");
    let ordered = other.issue_as(2, url.lun, cdb, 0, vec![8; BLOCK]).expect("sent");
    assert_eq!(other.complete(ordered).expect("an answer").status, GOOD);
    drop((stuck, waiting));
    daemon.stop();
}

#[test]
fn reads_on_their_way_hold_ordered_commands_up_until_they_left_or_nobody_takes_them() {
    let (daemon, url) = daemon();
    let (gone, _) = reads(&url, "gone");
    let (mut reader, tags) = reads(&url, "reader");
    let mut orderly = session(&url, "orderly");
    let cdb = write_cdb(9, BLOCK, 512, false);
    let ordered = orderly.issue_as(2, url.lun, cdb, 0, vec![9; BLOCK]).expect("sent");
    drop(gone);
    for tag in &tags[..63] {
        let response = reader.complete(*tag).expect("an answer");
        assert!(response.status == GOOD && response.data == vec![0; 512 * 512], "older than the write");
    }
    // ABORT TASK: it may have ended, and then does not exist any more.
    assert!(reader.manage(1, url.lun, tags[63]).expect("an answer") <= 1);
    assert_eq!(orderly.complete(ordered).expect("an answer").status, GOOD);
    assert_eq!(orderly.read_blocks(url.lun, 9, 1, 512).expect("READ"), vec![9; BLOCK]);
    daemon.stop();
}

#[test]
fn a_write_whose_data_comes_while_it_waits_for_an_ordered_task_is_whole() {
    const HALF: usize = 20_000;
    const ALL: usize = 65_536;
    let (daemon, url) = daemon();
    let mut ordered = session(&url, "ordered");
    let mut simple = session(&url, "simple");
    let mut watcher = session(&url, "watcher");
    let tag = stalled_write_as(&mut ordered, url.lun, 2);
    ordered.skip_cmd_sn();
    // All cores hold now. A write arrives with the first part of its data.
    let mut command = Pdu::new(0x01, 0xa1).lun(url.lun).word(16, 5).word(20, ALL as u32);
    command = command.word(24, simple.next_cmd_sn());
    command.header[5..8].copy_from_slice(&[1, 0, 0]);
    command.set_cdb(write_cdb(1024, ALL, 512, false));
    let mut stream = simple.stream();
    stream.write_all(&command.header).expect("sent");
    stream.write_all(&[7; HALF]).expect("sent");
    // An answer on the same core comes behind what was read before it.
    assert_eq!(watcher.manage(ABORT_TASK, url.lun, 1).expect("an answer"), NO_TASK);
    assert_eq!(ordered.manage(ABORT_TASK, url.lun, tag).expect("an answer"), COMPLETE);
    watcher.ready(url.lun).expect("released");
    stream.write_all(&[7; ALL - HALF]).expect("sent");
    let response = simple.receive().expect("a response");
    assert_eq!((response.opcode(), response.header[3]), (0x21, GOOD));
    assert_eq!(watcher.read_blocks(url.lun, 1024, 128, 512).expect("READ"), vec![7; ALL]);
    daemon.stop();
}

/// A WRITE of 8 KiB of this session, with the first of its data.
fn write_pdu(initiator: &Initiator, lun: u16, flags: u8, data: &[u8]) -> Pdu {
    let mut command = Pdu::new(0x01, flags).lun(lun).word(16, 5).word(20, 8192).data(data);
    command = command.word(24, initiator.next_cmd_sn());
    command.set_cdb(write_cdb(16, 8192, 512, false));
    command
}

#[test]
fn data_that_arrives_in_two_pdus_at_once_is_complete() {
    let (daemon, url) = daemon();
    let mut halves = session(&url, "halves");
    let command = write_pdu(&halves, url.lun, 0x21, &[7; 4096]);
    let rest =
        Pdu::new(0x05, 0x80).lun(url.lun).word(16, 5).word(20, u32::MAX).word(40, 4096).data(&[8; 4096]);
    halves.gather();
    halves.send(&command).expect("kept");
    halves.send(&rest).expect("kept");
    halves.release().expect("sent");
    let response = halves.receive().expect("a response");
    assert_eq!((response.opcode(), response.header[3]), (0x21, GOOD));
    let read = session(&url, "other").read_blocks(url.lun, 16, 16, 512).expect("READ");
    assert!(read[..4096] == [7; 4096] && read[4096..] == [8; 4096]);
    daemon.stop();
}

#[test]
fn data_after_all_that_was_announced_fails_the_write() {
    let (daemon, url) = daemon();
    let mut more = session(&url, "more");
    // All of it is in the command, but the F bit announces more.
    let command = write_pdu(&more, url.lun, 0x21, &[7; 8192]);
    let beyond =
        Pdu::new(0x05, 0x80).lun(url.lun).word(16, 5).word(20, u32::MAX).word(40, 8192).data(&[8; 512]);
    more.gather();
    more.send(&command).expect("kept");
    more.send(&beyond).expect("kept");
    more.release().expect("sent");
    let response = more.receive().expect("a response");
    assert_eq!((response.opcode(), response.header[3]), (0x21, CHECK_CONDITION));
    let read = session(&url, "other").read_blocks(url.lun, 16, 16, 512).expect("READ");
    assert_eq!(read, [0; 8192]);
    daemon.stop();
}

#[test]
fn data_with_a_wrong_digest_is_not_written() {
    let (daemon, url) = daemon();
    let mut wrong = Initiator::login(&url, &Login::named("wrong").with_digests()).expect("login");
    wrong.ready(url.lun).expect("TEST UNIT READY");
    let mut command = write_pdu(&wrong, url.lun, 0xa1, &[]);
    command.header[5..8].copy_from_slice(&[0, 0x20, 0]);
    let digests = [crc32c(&command.header), !crc32c(&[7; 8192])].map(u32::to_le_bytes);
    let bytes = [&command.header[..], &digests[0], &[7; 8192], &digests[1]].concat();
    wrong.stream().write_all(&bytes).expect("sent");
    assert!(wrong.receive().is_err(), "the connection was closed");
    let read = session(&url, "other").read_blocks(url.lun, 16, 16, 512).expect("READ");
    assert_eq!(read, [0; 8192]);
    daemon.stop();
}

#[test]
fn every_home_answers_until_all_sessions_are_gone() {
    let daemon = Daemon::serve(["--lun", "ram:1M", "--lun", "ram:1M", "--lun", "ram:1M", "--lun", "ram:1M"]);
    let mut initiator = session(&daemon.lun(0), "last");
    for lun in 1..4 {
        initiator.ready(lun).expect("ready");
    }
    daemon.signal("TERM");
    let asked = initiator.complete_any().expect_err("an asynchronous message");
    assert!(asked.to_string().contains("asynchronous event 1"), "a request to log out, not {asked}");
    for lun in 0..4 {
        assert_eq!(reserve_out(&mut initiator, lun, 0, 0, 0, 0xaa), GOOD, "REGISTER on LUN {lun}");
    }
    drop(initiator);
    let mut daemon = daemon;
    assert!(daemon.wait().success());
}

#[test]
fn a_second_login_with_the_same_name_ends_the_first_session() {
    let (daemon, url) = daemon();
    let mut first = session(&url, "twin");
    let mut second = session(&url, "twin");
    assert!(first.read(url.lun, &[0; 6], 0).is_err(), "the first connection was closed");
    second.ready(url.lun).expect("the second is served");
    wait_until("it is logged", || daemon.log().contains("reinstates session"));
    daemon.stop();
}

/// The cores on which at least this many sessions were placed, according to the log, which is written a
/// moment later.
fn cores_of(daemon: &Daemon, sessions: usize) -> Vec<usize> {
    wait_until("the logins are logged", || daemon.log().matches(" logged in ").count() >= sessions);
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains("logged in"));
    let core = |line: &str| line.split("core=").nth(1)?.split_whitespace().next()?.parse().ok();
    lines.map(|line| core(line).unwrap_or_else(|| panic!("no core in {line}"))).collect()
}

#[test]
fn sessions_of_one_unit_are_spread_over_the_cores_that_may_be_used() {
    let all = Daemon::serve(["--lun", "ram:1M"]);
    let sessions: Vec<Initiator> = (0..8).map(|n| session(&all.lun(0), &format!("spread{n}"))).collect();
    let cores = cores_of(&all, sessions.len());
    let used: std::collections::BTreeMap<usize, usize> =
        cores.iter().fold(Default::default(), |mut map, core| {
            *map.entry(*core).or_default() += 1;
            map
        });
    let (least, most) = (used.values().min().expect("sessions"), used.values().max().expect("sessions"));
    assert!(used.len() == allowed_cores().min(8) && most - least <= 1, "{used:?}");
    drop(sessions);
    all.stop();
    let one = Daemon::serve(["--lun", "ram:1M", "--cores", "0"]);
    let sessions: Vec<Initiator> = (0..4).map(|n| session(&one.lun(0), &format!("narrow{n}"))).collect();
    assert_eq!(cores_of(&one, sessions.len()), [0; 4]);
    drop(sessions);
    one.stop();
}

#[test]
fn of_two_busy_sessions_on_one_core_one_moves_to_a_core_that_idles() {
    let usable = reactor::topology::usable_cores().expect("cores");
    let [one, other, ..] = usable[..] else {
        return eprintln!("this machine has one core: there is none to move to");
    };
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let text = format!(
        "cores = '{one},{other}'\n[[portal]]\nlisten = '127.0.0.1:0'\n\
         [[portal]]\nlisten = '127.0.0.1:0'\ncores = '{other}'\n\
         [[lun]]\nram = '16M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n"
    );
    std::fs::write(&file, text).expect("a file");
    let daemon = Daemon::serve_file(&file);
    let [url, pinned, ..] = &daemon.urls()[..] else { panic!("{}", daemon.banner()) };
    // Idle sessions that must be on one core: all others are then placed on the other one, which has fewer
    // connections.
    let idlers: Vec<Initiator> = (0..8).map(|n| session(pinned, &format!("idle{n}"))).collect();
    let jobs = ["--bs", "4K", "--iodepth", "8", "--numjobs", "2", "--poll", "never"];
    let mut load = Load::on(&url.to_string(), &jobs);
    load.wait_for_progress();
    let (placed, rest) =
        cores_of(&daemon, idlers.len() + 2).into_iter().partition::<Vec<usize>, _>(|core| *core == other);
    assert!(placed.len() == idlers.len() && rest.len() >= 2, "{}", daemon.log());
    let moved = format!(" moved from core {one} to core {other}");
    let start = Instant::now();
    while !daemon.log().contains(&moved) {
        load.assert_running();
        assert!(start.elapsed() < MOVES_WITHIN, "no session moves:\n{}", daemon.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    load.wait_for_progress();
    load.stop();
    drop(idlers);
    daemon.stop();
}

fn allowed_cores() -> usize {
    std::thread::available_parallelism().expect("cores").get()
}

/// REGISTER with APTPL.
fn register_persistently(initiator: &mut Initiator) -> u8 {
    let parameters = ReserveOutList { action_key: 0xaa, persist: true, ..ReserveOutList::ZERO }.to_bytes();
    let register = PersistentReserveOut::new(persistent_reserve_out::REGISTER, 0, 24);
    initiator.write(0, register, &parameters).expect("an answer").status
}

/// Gives a session an exclusive access reservation that is saved.
fn reserve_persistently(holder: &mut Initiator) {
    assert_eq!(register_persistently(holder), GOOD, "REGISTER, APTPL");
    assert_eq!(reserve_out(holder, 0, 1, 3, 0xaa, 0), GOOD, "RESERVE, exclusive access");
}

#[test]
fn a_unit_whose_kept_reservations_are_damaged_is_not_served() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state").display().to_string();
    let serve = || Daemon::serve(["--state-dir", &state, "--lun", "ram:1M,serial=S"]);
    let daemon = serve();
    reserve_persistently(&mut session(&daemon.lun(0), "holder"));
    daemon.stop();
    let file = directory.path().join("state/reservations-53");
    let kept = std::fs::read(&file).expect("kept");
    let mut flipped = kept.clone();
    flipped[kept.len() / 2] ^= 1;
    for damaged in [&flipped[..], b"garbage", b""] {
        std::fs::write(&file, damaged).expect("written");
        let daemon = serve();
        let mut other = Initiator::login(&daemon.lun(0), &Login::named("other")).expect("login");
        assert_eq!(test_unit_ready(&mut other, 0).sense_key(), Some(6), "power on");
        assert_eq!(test_unit_ready(&mut other, 0).sense_key(), Some(2));
        assert_eq!(write_status(&mut other, 0), CHECK_CONDITION);
        assert_eq!(register_persistently(&mut other), CHECK_CONDITION);
        let log = daemon.stop();
        assert_eq!(std::fs::read(&file).expect("still there"), damaged);
        assert!(log.contains("reservations-53: saved reservations are damaged; restore the file"), "{log}");
    }
    std::fs::write(&file, kept).expect("written");
    let daemon = serve();
    assert_eq!(write_status(&mut session(&daemon.lun(0), "other"), 0), RESERVATION_CONFLICT);
    daemon.stop();
}

#[test]
fn reservations_with_aptpl_outlive_the_daemon() {
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state").display().to_string();
    let file = format!("file:{},size=1M", directory.path().join("unit").display());
    let serve = || Daemon::serve(["--state-dir", &state, "--lun", &file]);
    let daemon = serve();
    let mut holder = session(&daemon.lun(0), "holder");
    reserve_persistently(&mut holder);
    drop(holder);
    daemon.kill9();
    let daemon = serve();
    let mut other = session(&daemon.lun(0), "other");
    assert_eq!(write_status(&mut other, 0), RESERVATION_CONFLICT);
    let mut holder = session(&daemon.lun(0), "holder");
    assert_eq!(write_status(&mut holder, 0), GOOD);
    drop((other, holder));
    daemon.stop();
}

#[test]
fn a_kept_reservation_is_its_holder_s_whatever_targets_come_before() {
    const KEPT: &str = "[[target]]\nname = 'iqn.2026-11.a:kept'\nluns = ['disk']\n";
    const OTHER: &str = "[[target]]\nname = 'iqn.2026-11.a:another'\nluns = ['disk']\n";
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let serve = |targets: &[&str]| {
        let text = format!(
            "state_dir = 'state'\n[[lun]]\nname = 'disk'\nram = '1M'\nserial = 'S'\n{}",
            targets.concat()
        );
        std::fs::write(&file, text).expect("written");
        Daemon::serve(["--config".as_ref(), file.as_os_str()])
    };
    let kept = |daemon: &Daemon| Url { target: "iqn.2026-11.a:kept".into(), ..daemon.lun(0) };
    let daemon = serve(&[KEPT]);
    reserve_persistently(&mut session(&kept(&daemon), "holder"));
    daemon.stop();
    let daemon = serve(&[OTHER, KEPT]);
    assert_eq!(write_status(&mut session(&kept(&daemon), "holder"), 0), GOOD);
    assert_eq!(write_status(&mut session(&kept(&daemon), "other"), 0), RESERVATION_CONFLICT);
    assert_eq!(write_status(&mut session(&daemon.lun(0), "holder"), 0), RESERVATION_CONFLICT);
    daemon.stop();
    let daemon = serve(&[OTHER]);
    assert_eq!(write_status(&mut session(&daemon.lun(0), "holder"), 0), RESERVATION_CONFLICT);
    let log = daemon.stop();
    assert!(log.contains("iqn.2026-11.a:kept,t,0x0001"), "{log}");
}

#[test]
fn names_do_not_depend_on_case() {
    let (daemon, url) = daemon();
    let loud = Url { target: url.target.to_uppercase(), ..url.clone() };
    let mut first = session(&loud, "twin");
    let mut second = session(&url, "TWIN");
    assert!(first.read(url.lun, &[0; 6], 0).is_err(), "the first connection was closed");
    second.ready(url.lun).expect("the second is served");
    daemon.stop();
}

#[test]
fn many_sessions_come_and_go() {
    let (daemon, url) = daemon();
    let mut sessions: Vec<Initiator> = (0..100).map(|n| session(&url, &format!("crowd{n}"))).collect();
    for (n, initiator) in sessions.iter_mut().enumerate() {
        initiator.write_blocks(url.lun, n as u64, 512, &[n as u8; BLOCK], false).expect("WRITE");
    }
    for (n, initiator) in sessions.iter_mut().rev().enumerate() {
        let at = 99 - n;
        assert_eq!(initiator.read_blocks(url.lun, at as u64, 1, 512).expect("READ"), [at as u8; BLOCK]);
    }
    for initiator in sessions {
        initiator.logout().expect("logout");
    }
    daemon.stop();
}

#[test]
fn what_one_writes_the_others_read() {
    let (daemon, url) = daemon();
    let mut sessions: Vec<Initiator> = (0..6).map(|number| session(&url, &format!("peer{number}"))).collect();
    for round in 0..60_usize {
        let data = crate::support::Noise(round as u64).bytes((round % 9 + 1) * 16 * BLOCK);
        let (writer, reader, lba) = (round % 6, (round * 5 + 1) % 6, (round * 97 % 1024) as u64);
        sessions[writer].write_blocks(url.lun, lba, 512, &data, false).expect("WRITE");
        let blocks = (data.len() / BLOCK) as u32;
        let found = sessions[reader].read_blocks(url.lun, lba, blocks, 512).expect("READ");
        assert!(found == data, "round {round}");
    }
    daemon.stop();
}

#[test]
fn a_cold_reset_is_answered_before_sessions_end() {
    let (daemon, url) = daemon();
    let mut asker = session(&url, "asker");
    let mut other = session(&url, "other");
    assert_eq!(asker.manage(TARGET_COLD_RESET, url.lun, u32::MAX).expect("an answer"), COMPLETE);
    assert!(asker.read(url.lun, &[0; 6], 0).is_err(), "the session that asked has ended");
    assert!(other.read(url.lun, &[0; 6], 0).is_err(), "and so is every other");
    session(&url, "asker").ready(url.lun).expect("a new session is served");
    daemon.stop();
}
