//! How many may be logging in at once: unauthenticated peers that fill the places block nobody.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Pdu};
use crate::support::peer::{assert_hung_up, connect_from};
use crate::support::wait_until;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::catch_unwind;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::scsi::command::PersistentReserveOut;
use wire::scsi::opcode::service_action::persistent_reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY;

/// Connections of a flood from one address.
const FLOOD: usize = 32;
/// Addresses of the flooding peers.
const STRANGERS: [&str; 2] = ["127.0.0.9:0", "127.0.0.10:0"];
const OTHER: &str = "127.0.0.1:0";
const LOGIN_RESPONSE: u8 = 0x23;

/// A configuration that allows eight connections to log in at once.
fn few_logins(directory: &Path) -> String {
    let config = directory.join("lunette.toml");
    let text = "logins_max = 8\n[[portal]]\nlisten = \"127.0.0.1:0\"\n[[lun]]\nram = \"1M\"\n\
                [[target]]\nname = \"iqn.2026-11.io.lunette.test:t\"\n";
    std::fs::write(&config, text).expect("a file");
    config.display().to_string()
}

/// Logs in at the first attempt from this address, and is served.
fn logs_in_and_is_served(source: &str, url: &Url) {
    let stream = connect_from(source, url.portal);
    let mut initiator = Initiator::login_over(stream, url, &Login::named("newcomer")).expect("a session");
    initiator.ready(url.lun).expect("the unit is ready");
    initiator.logout().expect("logout");
}

fn flood(url: &Url) -> Vec<TcpStream> {
    let one =
        |source: &str| -> Vec<TcpStream> { (0..FLOOD).map(|_| connect_from(source, url.portal)).collect() };
    STRANGERS.into_iter().flat_map(one).collect()
}

/// Sends a login request with these flags and this text; returns the status of the response.
fn ask_to_log_in(stream: &mut TcpStream, flags: u8, text: &str) -> [u8; 2] {
    let mut bytes = Pdu::new(0x43, flags).header.to_vec();
    bytes[7] = u8::try_from(text.len()).expect("short");
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    stream.write_all(&bytes).expect("it is sent");
    let mut header = [0; 48];
    stream.read_exact(&mut header).expect("a login response");
    assert_eq!(header[0], LOGIN_RESPONSE);
    let len = usize::from(u16::from_be_bytes([header[6], header[7]])).next_multiple_of(4);
    stream.read_exact(&mut vec![0; len]).expect("its text");
    [header[36], header[37]]
}

/// Begins a login and stops: the text would continue in the next request.
fn begin_to_log_in(source: &str, portal: SocketAddr) -> TcpStream {
    let mut stream = connect_from(source, portal);
    let name = "InitiatorName=iqn.2026-11.io.lunette.test:hangs\0";
    assert_eq!(ask_to_log_in(&mut stream, 0x44, name), [0, 0]);
    stream
}

#[test]
fn silent_connections_block_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::serve(["--config", &few_logins(directory.path())]);
    let url = daemon.lun(0);
    let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
    let mut silent = flood(&url);
    for source in [OTHER, STRANGERS[0], STRANGERS[1]] {
        logs_in_and_is_served(source, &url);
    }
    assert_hung_up(&mut silent[0]);
    guest.ready(url.lun).expect("who is in is served");
    guest.logout().expect("logout");
    let log = daemon.stop();
    assert!(log.contains("login ended: its slot was needed for other logins"), "{log}");
}

#[test]
fn logins_that_hang_block_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::serve(["--config", &few_logins(directory.path())]);
    let url = daemon.lun(0);
    let begin = |source: &'static str| (0..FLOOD).map(move |_| begin_to_log_in(source, url.portal));
    let hanging: Vec<TcpStream> = STRANGERS.into_iter().flat_map(begin).collect();
    let url = daemon.lun(0);
    for source in [OTHER, STRANGERS[0], STRANGERS[1]] {
        logs_in_and_is_served(source, &url);
    }
    drop(hanging);
    daemon.stop();
}

#[test]
fn connections_that_have_begun_to_log_in_have_priority_over_silent_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::serve(["--config", &few_logins(directory.path())]);
    let url = daemon.lun(0);
    let mut begun = begin_to_log_in(STRANGERS[0], url.portal);
    let silent = flood(&url);
    logs_in_and_is_served(OTHER, &url);
    let rest = format!("TargetName={}\0SessionType=Normal\0", url.target);
    assert_eq!(ask_to_log_in(&mut begun, 0x87, &rest), [0, 0], "it continues with its login");
    drop(silent);
    daemon.stop();
}

/// PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY, with APTPL: its status.
fn register_persistently(initiator: &mut Initiator, lun: u16) -> u8 {
    let mut list = [0; 24];
    (list[15], list[20]) = (7, 1);
    let register = PersistentReserveOut::new(REGISTER_AND_IGNORE_EXISTING_KEY, 0, 24);
    initiator.write(lun, register, &list).expect("an answer").status
}

/// A daemon that may open so few files that connections use them up.
fn with_few_descriptors(directory: &Path) -> Daemon {
    let state = directory.join("state").display().to_string();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--lun", "ram:1M,serial=few", "--state-dir", &state];
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 128 && exec \"$0\" \"$@\""]).arg(Daemon::program()).args(arguments);
    Daemon::start(&mut command)
}

#[test]
fn connections_leave_descriptors_for_what_has_to_be_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = with_few_descriptors(directory.path());
    let url = daemon.lun(0);
    let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
    guest.ready(url.lun).expect("the unit is ready");
    let strangers: Vec<TcpStream> = (0..200).map(|_| connect_from(STRANGERS[0], url.portal)).collect();
    wait_until("connections use up the descriptors", || {
        let log = daemon.log();
        log.contains("its slot was needed for other logins") || log.contains("could not be accepted")
    });
    assert_eq!(register_persistently(&mut guest, url.lun), 0, "{}", daemon.log());
    logs_in_and_is_served(OTHER, &url);
    drop(strangers);
    guest.logout().expect("logout");
    daemon.stop();
}

/// Keeps more connections open than the daemon has descriptors for, and opens another for each that it ends,
/// until stopped.
fn flood_on(url: &Url, is_over: &AtomicBool) {
    let mut open: VecDeque<TcpStream> = (0..128).map(|_| connect_from(STRANGERS[0], url.portal)).collect();
    while let Some(mut oldest) = open.pop_front().filter(|_| !is_over.load(Ordering::Relaxed)) {
        assert_hung_up(&mut oldest);
        open.push_back(connect_from(STRANGERS[0], url.portal));
    }
}

#[test]
fn a_flood_that_continues_while_descriptors_are_used_up_blocks_nobody() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = with_few_descriptors(directory.path());
    let (url, is_over) = (daemon.lun(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| flood_on(&url, &is_over));
        wait_until("connections use up the descriptors", || {
            let log = daemon.log();
            log.contains("its slot was needed for other logins") || log.contains("refused")
        });
        let entered = catch_unwind(|| (0..64).for_each(|_| logs_in_and_is_served(OTHER, &url)));
        is_over.store(true, Ordering::Relaxed);
        assert!(entered.is_ok(), "{}", daemon.log());
    });
    let log = daemon.stop();
    assert!(!log.contains("refused"), "{log}");
}

/// Others end before their login times out.
#[test]
fn new_connections_are_accepted_when_no_descriptor_is_left() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = few_logins(directory.path());
    let text = std::fs::read_to_string(&file).expect("a file").replace("= 8", "= 256");
    std::fs::write(&file, format!("login_timeout = \"10m\"\n{text}")).expect("a file");
    let daemon = Daemon::serve(["--config", &file]);
    let url = daemon.lun(0);
    let strangers: Vec<TcpStream> = (0..64).map(|_| begin_to_log_in(STRANGERS[0], url.portal)).collect();
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    let few = Rlimit { current: Some(48), maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(pid, Resource::Nofile, few).expect("a limit below what is open");
    // The daemon has begun to accept the first while it had more.
    (0..2).for_each(|_| logs_in_and_is_served(OTHER, &url));
    drop(strangers);
    let log = daemon.stop();
    assert!(log.contains("a connection could not be accepted: Too many open files"), "{log}");
}

#[test]
fn sessions_leave_descriptors_for_what_has_to_be_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = with_few_descriptors(directory.path());
    let url = daemon.lun(0);
    let mut guests: Vec<Initiator> = (0..128)
        .map_while(|n| {
            let stream = connect_from(OTHER, url.portal);
            Initiator::login_over(stream, &url, &Login::named(&format!("guest{n}"))).ok()
        })
        .collect();
    assert!(guests.len() >= 32, "{} sessions", guests.len());
    guests[0].ready(url.lun).expect("the unit is ready");
    assert_eq!(register_persistently(&mut guests[0], url.lun), 0, "{}", daemon.log());
    drop(guests);
    let log = daemon.stop();
    assert!(log.contains("the limit of open files is reached"), "{log}");
}

/// RFC 7143 section 11.13.5: of two that were granted their login for the last place, one is refused.
#[test]
fn a_login_beyond_the_limit_is_refused_with_a_message() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = few_logins(directory.path());
    let text = std::fs::read_to_string(&file).expect("a file");
    std::fs::write(&file, text + "sessions_max = 1\n").expect("a file");
    let daemon = Daemon::serve(["--config", &file]);
    let url = daemon.lun(0);
    let mut both = ["one", "other"].map(|name| {
        let mut stream = connect_from(OTHER, url.portal);
        let name = format!("InitiatorName=iqn.2026-11.io.lunette.test:{name}\0");
        let names = format!("{name}TargetName={}\0SessionType=Normal\0", url.target);
        assert_eq!(ask_to_log_in(&mut stream, 0x04, &names), [0, 0], "there is room");
        stream
    });
    assert_eq!(ask_to_log_in(&mut both[0], 0x87, ""), [0, 0]);
    assert_eq!(ask_to_log_in(&mut both[1], 0x87, ""), [3, 2]);
    assert_hung_up(&mut both[1]);
    let log = daemon.stop();
    assert_eq!(log.matches("logged in").count(), 1, "{log}");
    assert!(
        log.contains("login ended: the target has no free slot for another session (sessions_max)"),
        "{log}"
    );
}

#[test]
fn a_logout_frees_its_slot_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = few_logins(directory.path());
    let text = std::fs::read_to_string(&file).expect("a file");
    std::fs::write(&file, text + "sessions_max = 1\n").expect("a file");
    let daemon = Daemon::serve(["--config", &file]);
    let url = daemon.lun(0);
    for n in 0..256 {
        let name = format!("guest{n}");
        let initiator = Initiator::login(&url, &Login::named(&name)).expect("the one before has logged out");
        initiator.logout().expect("logout");
    }
    daemon.stop();
}

/// Logs in to a discovery session.
fn discover(source: &str, portal: SocketAddr) -> TcpStream {
    let mut stream = connect_from(source, portal);
    let text = "InitiatorName=iqn.2026-11.io.lunette.test:finder\0SessionType=Discovery\0";
    assert_eq!(ask_to_log_in(&mut stream, 0x87, text), [0, 0]);
    stream
}

#[test]
fn idle_discovery_sessions_make_room_for_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::serve(["--config", &few_logins(directory.path())]);
    let url = daemon.lun(0);
    let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
    let idle = |source: &'static str| (0..FLOOD).map(move |_| discover(source, url.portal));
    let mut idle: Vec<TcpStream> = STRANGERS.into_iter().flat_map(idle).collect();
    let url = daemon.lun(0);
    assert_hung_up(&mut idle[0]);
    let mut newest = discover(OTHER, url.portal);
    logs_in_and_is_served(OTHER, &url);
    guest.ready(url.lun).expect("who is in is served");
    guest.logout().expect("logout");
    let text = "SendTargets=All\0";
    let mut request = Pdu::new(0x04, 0x80).word(16, 7).word(20, u32::MAX).word(24, 0).header.to_vec();
    request[7] = u8::try_from(text.len()).expect("short");
    request.extend_from_slice(text.as_bytes());
    newest.write_all(&request).expect("it is sent");
    let mut header = [0; 48];
    newest.read_exact(&mut header).expect("targets");
    assert_eq!(header[0], 0x24);
    daemon.stop();
}
