//! The log: whether or not it is read, and whatever peers put into it, the daemon keeps serving.

use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login, Pdu, write_cdb};
use crate::support::tools::{must, read_text, run, tool, wait};
use crate::support::{Noise, wait_until};
use std::fs::File;
use std::io::{Read as _, Write as _, pipe};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;
use wire::scsi::command::{Inquiry, Read10};

const SERVE: [&str; 5] = ["serve", "--lun", "ram:1M", "--listen", "127.0.0.1:0"];

/// A pipe without room, and its reading end.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (reads, mut writes) = pipe().expect("a pipe");
    let blocking = rustix::fs::fcntl_getfl(&writes).expect("flags");
    rustix::fs::fcntl_setfl(&writes, blocking | rustix::fs::OFlags::NONBLOCK).expect("flags");
    while writes.write(b"-").is_ok() {}
    rustix::fs::fcntl_setfl(&writes, blocking).expect("flags");
    (reads, writes)
}

/// A peer that is not an initiator; it is disconnected.
fn send_garbage(portal: SocketAddr, seed: u64) {
    let mut stream = TcpStream::connect(portal).expect("connect");
    let _ = stream.write_all(&Noise(seed).bytes(96));
    let _ = stream.read_to_end(&mut Vec::new());
}

/// Peers, sessions and an orderly shutdown are not affected by what happens to the log.
fn serves_with_log_to(stderr: impl Into<Stdio>) {
    let mut daemon = Daemon::start_logging_to(stderr, Daemon::command().args(SERVE));
    let url = daemon.lun(0);
    (0..20).for_each(|seed| send_garbage(url.portal, seed));
    let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
    let block = Noise(1).bytes(512);
    guest.write_blocks(url.lun, 3, 512, &block, false).expect("WRITE");
    assert_eq!(guest.read_blocks(url.lun, 3, 1, 512).expect("READ"), block);
    guest.logout().expect("logout");
    daemon.signal("INT");
    assert!(daemon.wait().success());
}

#[test]
fn a_log_on_a_full_file_system_ends_nothing() {
    serves_with_log_to(File::options().write(true).open("/dev/full").expect("a device"));
}

#[test]
fn a_log_whose_reader_went_away_ends_nothing() {
    let (reads, writes) = pipe().expect("a pipe");
    drop(reads);
    serves_with_log_to(writes);
}

#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let (_reads, writes) = full_pipe();
    serves_with_log_to(writes);
}

#[test]
fn a_banner_that_nobody_reads_holds_up_no_end() {
    let (_reads, writes) = full_pipe();
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("log");
    let mut command = Daemon::command();
    let mut child = command
        .args(SERVE)
        .stdout(writes)
        .stderr(File::create(&log).expect("a file"))
        .spawn()
        .expect("the daemon can be run");
    // Until SIGINT is caught it would end the process at once.
    let caught = || {
        let status = read_text(format!("/proc/{}/status", child.id()).as_ref());
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        u64::from_str_radix(mask.expect("a mask").trim(), 16).expect("a mask") & 1 << 1 != 0
    };
    wait_until("SIGINT is caught", caught);
    must(tool("kill").args(["-INT", &child.id().to_string()]));
    let status = wait(&mut child, Duration::from_secs(120));
    assert!(status.expect("it ends").success(), "{}", read_text(&log));
}

#[test]
fn text_from_unauthenticated_peers_is_truncated_and_harms_no_terminal() {
    let daemon = Daemon::start(Daemon::command().args(SERVE).env("NO_COLOR", "1"));
    let url = daemon.lun(0);
    let evil = "\u{1b}[2J\u{202e}\u{200b}x";
    let text = format!(
        "InitiatorName=iqn.2026-11.io.lunette.test:evil\0TargetName={}\0AuthMethod={evil}{}\0",
        url.target,
        "y".repeat(4000)
    );
    let login = Pdu::new(0x43, 0x81).data(text.as_bytes());
    let mut stream = TcpStream::connect(url.portal).expect("connect");
    let mut bytes = login.header.to_vec();
    bytes[5..8].copy_from_slice(&(text.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&login.data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    stream.write_all(&bytes).expect("sent");
    stream.read_to_end(&mut Vec::new()).expect("an end");
    let log = daemon.stop();
    let line = log.lines().find(|line| line.contains("no AuthMethod of ")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("\\x1b[2J\\xe2\\x80\\xae\\xe2\\x80\\x8bx"), "{line}");
    assert!(line.len() < 700, "{} bytes", line.len());
    assert!(log.chars().all(|c| c == '\n' || (c.is_ascii() && !c.is_ascii_control())), "{log:?}");
}

/// The log at this level of a login, a few commands, a reset and a logout.
fn log_of_a_session(level: &str) -> String {
    let daemon = Daemon::start(Daemon::command().args(SERVE).args(["--log-level", level]));
    let url = daemon.lun(0);
    let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
    guest.ready(url.lun).expect("it is ready");
    guest.write_blocks(url.lun, 0, 512, &[7; 512], false).expect("WRITE");
    guest.read_blocks(url.lun, 0, 1, 512).expect("READ");
    guest.read(url.lun, Inquiry::new(36), 36).expect("INQUIRY");
    let refused = guest.read(url.lun, &[0xdf, 1, 2, 3, 4, 5, 6, 7, 8, 9], 0).expect("an answer");
    assert_eq!(refused.sense_key(), Some(5));
    assert_eq!(guest.manage(5, url.lun, u32::MAX).expect("an answer"), 0);
    guest.logout().expect("logout");
    daemon.stop()
}

fn count(log: &str, parts: &[&str]) -> usize {
    log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

const REFUSED: [&str; 5] = [
    "DEBUG CHECK CONDITION: ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE (20h/00h)",
    "initiator=\"iqn.2026-11.io.lunette.test:guest\"",
    "lun=0",
    "cdb=df010203040506070809",
    "sense=70",
];

#[test]
fn at_info_a_session_has_two_lines() {
    let log = log_of_a_session("info");
    assert_eq!((count(&log, &[" DEBUG "]), count(&log, &[" TRACE "])), (0, 0), "{log}");
    assert_eq!(count(&log, &["guest"]), 2, "{log}");
}

#[test]
fn at_debug_the_log_has_negotiation_task_management_and_check_conditions() {
    let log = log_of_a_session("debug");
    assert_eq!(count(&log, &[" TRACE "]), 0, "{log}");
    for says in ["the initiator says", "the target says"] {
        assert!(count(&log, &["DEBUG login: ", says, "MaxBurstLength=262144"]) >= 1, "{log}");
    }
    assert_eq!(count(&log, &REFUSED), 1, "{log}");
    assert_eq!(count(&log, &["DEBUG LOGICAL UNIT RESET", "guest", "lun=0"]), 1, "{log}");
    assert_eq!(count(&log, &["DEBUG task management answered", "Complete"]), 1, "{log}");
    assert_eq!(count(&log, &["DEBUG the session is to end"]), 1, "{log}");
}

#[test]
fn at_trace_the_log_has_every_command_and_its_end() {
    let log = log_of_a_session("trace");
    // READ (16), WRITE (16) and INQUIRY; and the one that was refused.
    for cdb in ["cdb=88", "cdb=8a", "cdb=12", "cdb=df"] {
        assert_eq!(count(&log, &["TRACE command ", cdb, "guest"]), 1, "{cdb} in {log}");
    }
    let commands = count(&log, &["TRACE command "]) - count(&log, &["TRACE command ended "]);
    let ends = count(&log, &["TRACE command ended "]) + count(&log, &["DEBUG CHECK CONDITION: "]);
    assert_eq!(commands, ends, "{log}");
    assert_eq!(count(&log, &["TRACE command ended ", "Good", "read_bytes=512"]), 1, "{log}");
    assert_eq!(count(&log, &["TRACE command ended ", "Good", "write_bytes=512"]), 1, "{log}");
    assert_eq!(count(&log, &REFUSED), 1, "{log}");
}

#[test]
fn at_debug_the_log_has_the_check_condition_of_data_that_broke_the_standard() {
    let daemon = Daemon::start(Daemon::command().args(SERVE).args(["--log-level", "debug"]));
    let url = daemon.lun(0);
    // The second time there is more immediate data than the command allows.
    for (expected, flags) in [(8192, 0x21), (512, 0xa1)] {
        let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
        guest.ready(url.lun).expect("it is ready");
        let mut command = Pdu::new(0x01, flags).lun(url.lun).word(16, 5).word(20, expected).data(&[7; 4096]);
        command = command.word(24, guest.next_cmd_sn());
        command.set_cdb(write_cdb(16, expected as usize, 512, false));
        // Its offset leaves a gap.
        let beyond =
            Pdu::new(0x05, 0x80).lun(url.lun).word(16, 5).word(20, u32::MAX).word(40, 5000).data(&[8; 512]);
        guest.send(&command).expect("sent");
        if expected == 8192 {
            guest.send(&beyond).expect("sent");
        }
        let response = guest.receive().expect("a response");
        assert_eq!((response.opcode(), response.header[3]), (0x21, 2));
    }
    let log = daemon.stop();
    let whose = ["DEBUG CHECK CONDITION: ABORTED COMMAND", "guest", "lun=0", "cdb=8a", "sense=70000b"];
    for (cause, code) in [("(0Ch/0Dh)", "0c0d"), ("(0Ch/0Ch)", "0c0c")] {
        assert_eq!(count(&log, &[&whose[..], &[cause, code]].concat()), 1, "{cause} in {log}");
    }
}

#[test]
fn a_read_ends_in_the_log_when_its_data_has_left() {
    const READS: usize = 100;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("disk");
    File::create(&file).and_then(|file| file.set_len(1 << 20)).expect("a disk");
    // From borrowed memory, and from a buffer.
    for lun in ["ram:1M", &format!("file:{}", file.display())] {
        let serve = ["serve", "--lun", lun, "--listen", "127.0.0.1:0", "--log-level", "trace"];
        let daemon = Daemon::start(Daemon::command().args(serve));
        let url = daemon.lun(0);
        let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
        guest.ready(url.lun).expect("it is ready");
        // More than sockets can hold, and none of it is received before all of them are aborted.
        for _ in 0..READS {
            guest.issue(url.lun, Read10::new(0, 512), 512 * 512, Vec::new()).expect("sent");
        }
        assert_eq!(guest.manage(2, url.lun, u32::MAX).expect("an answer"), 0);
        let log = daemon.stop();
        let ended = count(&log, &["TRACE command ended ", "read_bytes=262144"]);
        let aborted = count(&log, &["TRACE command aborted "]);
        assert_eq!(count(&log, &["TRACE command ", "cdb=28"]), READS, "{log}");
        assert_eq!(ended + aborted, READS, "{ended} ended and {aborted} were aborted: {log}");
    }
}

#[test]
fn an_initiator_without_an_accepted_chap_algorithm_is_refused_and_the_log_says_why() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let text = "[[portal]]\nlisten = \"127.0.0.1:0\"\n[[lun]]\nram = \"1M\"\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:chap\"\n[[target.group]]\nname = \"all\"\n\
         [target.group.chap]\nuser = \"somebody\"\nsecret = \"a-long-secret-9\"\n\
         algorithms = [\"sha3-256\", \"sha256\"]\n";
    std::fs::write(&file, text).expect("written");
    let daemon = Daemon::start(Daemon::command().args(["serve", "--config"]).arg(&file));
    let inquire = |option: &str| {
        let url = daemon.lun(0).with("somebody%a-long-secret-9@", option);
        run(Daemon::command().args(["inquiry", &url]), Duration::from_secs(120))
    };
    for option in ["", "?chap=sha256", "?chap=sha3-256"] {
        inquire(option).expect_success(option);
    }
    let refused = inquire("?chap=md5");
    assert_eq!(refused.status.and_then(|status| status.code()), Some(1), "{}", refused.text);
    assert!(refused.text.contains("status 0201"), "{}", refused.text);
    let log = daemon.stop();
    let cause = "no CHAP algorithm in common: CHAP_A=5 is offered, accepted is sha3-256, sha256";
    assert!(log.contains(cause), "{log}");
}

#[test]
fn credentials_are_not_logged() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let secret = "a-long-secret-9";
    let text = format!(
        "[[portal]]\nlisten = \"127.0.0.1:0\"\n[[lun]]\nname = \"disk\"\nram = \"1M\"\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:chap\"\nluns = [\"disk\"]\n\
         [[target.group]]\nname = \"all\"\nchap = {{ user = \"somebody\", secret = \"{secret}\" }}\n"
    );
    std::fs::write(&file, text).expect("written");
    let daemon =
        Daemon::start(Daemon::command().args(["serve", "--log-level", "trace", "--config"]).arg(&file));
    let url = daemon.lun(0).with(&format!("somebody%{secret}@"), "");
    run(Daemon::command().args(["inquiry", &url]), Duration::from_secs(120)).expect_success("inquiry");
    let log = daemon.stop();
    assert!(count(&log, &["the target says", "CHAP_A=", "CHAP_C=(not logged)"]) == 1, "{log}");
    assert!(count(&log, &["the initiator says", "CHAP_N=somebody", "CHAP_R=(not logged)"]) == 1, "{log}");
    assert!(!log.contains(secret) && !log.contains("=0x"), "{log}");
}
