//! What the daemon inherits, and what it gives up: sockets that a service manager has opened, and root's
//! privileges.

use crate::reload::ask;
use crate::support::aoe::AoeInitiator;
use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login};
use crate::support::net::Network;
use crate::support::segment;
use crate::support::tools::run;
use crate::support::wait_until;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A user that every machine has.
const NOBODY: &str = "nobody";
/// CAP_NET_RAW (capabilities(7)), as a mask.
const NET_RAW: u64 = 1 << 13;

/// `lunette serve` as started by a manager that listens on this socket for it.
fn activated(socket: TcpListener, arguments: &[&str]) -> Command {
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=front exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(Daemon::program()).arg("serve").args(arguments);
    command.env("LUNETTE_ADMIN", "none").stdin(Stdio::from(OwnedFd::from(socket)));
    command
}

fn listening() -> (TcpListener, SocketAddr) {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("its address");
    (socket, address)
}

#[test]
fn a_portal_listens_on_the_socket_that_a_manager_has_opened() {
    let (socket, address) = listening();
    // A connection is made before anything could accept it.
    let early = std::net::TcpStream::connect(address).expect("the kernel takes it");
    let daemon = Daemon::start(&mut activated(socket, &["--listen", &address.to_string(), "--cores", "0"]));
    assert!(daemon.banner().contains(&address.to_string()), "{}", daemon.banner());
    let mut session = Initiator::login(&daemon.lun(0), &Login::named("iqn.2026-11.test:a")).expect("login");
    session.ready(0).expect("the unit is ready");
    drop(early);
    drop(session);
    daemon.stop();
}

#[test]
fn a_socket_that_is_at_no_portal_is_an_error() {
    let (socket, address) = listening();
    let outcome = run(&mut activated(socket, &["--listen", "127.0.0.1:0"]), Duration::from_secs(60));
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(1));
    assert!(outcome.text.contains(&format!("front of the service manager listens on {address}")));
}

/// A value from /proc/PID/status of each thread of a daemon.
fn of_threads(daemon: &Daemon, key: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("its threads");
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).expect("its status");
    let value = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.expect("a line").trim().to_owned()
    };
    let texts = tasks.map(|task| status(task.expect("a thread")));
    texts.map(|status| (value(&status, "Name"), value(&status, key))).collect()
}

fn id_of_nobody() -> u32 {
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let line = users.lines().find(|line| line.starts_with("nobody:")).expect("nobody");
    line.split(':').nth(2).and_then(|id| id.parse().ok()).expect("a number")
}

/// Whether all threads run as the user, with no more than these capabilities, and none can get more.
fn assert_rights(daemon: &Daemon, most: u64) {
    let id = id_of_nobody();
    for (name, ids) in of_threads(daemon, "Uid") {
        assert!(ids.split_whitespace().all(|found| found == id.to_string()), "{name}: {ids}");
    }
    for key in ["CapEff", "CapPrm"] {
        for (name, mask) in of_threads(daemon, key) {
            let mask = u64::from_str_radix(&mask, 16).expect("a mask");
            assert_eq!(mask & !most, 0, "{name}: {key} {mask:x}");
        }
    }
    for (name, is_set) in of_threads(daemon, "NoNewPrivs") {
        assert_eq!(is_set, "1", "{name}");
    }
}

/// Whether other processes of its user can neither read its memory nor access its open files.
fn assert_closed_to_nobody(daemon: &Daemon) {
    // It may read its own, or this would prove nothing.
    let script = "cat /proc/self/maps >/dev/null && ls /proc/self/fd >/dev/null && echo own && cat /proc/$0/maps; ls /proc/$0/fd";
    let mut command = Command::new("sh");
    command.args(["-c", script, &daemon.pid().to_string()]).uid(id_of_nobody()).gid(id_of_nobody());
    let outcome = command.output().expect("a shell");
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "own\n");
}

fn write(directory: &Path, more: &str, list: &str) {
    let text = format!(
        "admin = \"./admin.sock\"\nstate_dir = \"./state\"\nportal = [{{ listen = \"127.0.0.1:0\" }}]\n\n\
         [[lun]]\nname = \"disk\"\nfile = \"disk.img\"\nsize = \"1M\"\nserial = \"one\"\n{more}\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\nluns = [\"disk\"{list}]\n"
    );
    fs::write(directory.join("lunette.toml"), text).expect("a file");
}

#[test]
fn a_daemon_that_root_has_started_becomes_a_user() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("others may look");
    write(directory.path(), "[[lun]]\nname = \"memory\"\nram = \"64M\"\nwarn_at = \"50%\"\n", ", \"memory\"");
    let mut command = Daemon::command();
    command.args(["serve", "--user", NOBODY, "--config"]).arg(directory.path().join("lunette.toml"));
    if !rustix::process::geteuid().is_root() {
        let outcome = run(&mut command, Duration::from_secs(60));
        assert!(outcome.text.contains("only root may become another user"), "{}", outcome.text);
        return;
    }
    chown(directory.path(), Some(id_of_nobody()), None).expect("it may remove its socket there");
    let daemon = Daemon::start(&mut command);
    assert_rights(&daemon, 0);
    assert_closed_to_nobody(&daemon);
    let admin = directory.path().join("admin.sock");
    let found = fs::metadata(&admin).expect("it listens there");
    assert_eq!((found.uid(), found.mode() & 0o777), (id_of_nobody(), 0o600), "the user's alone");
    assert_eq!(fs::metadata(directory.path().join("state")).expect("it was made").uid(), id_of_nobody());

    // It may still see how much of it is in use.
    let used = || {
        let luns: Value = serde_json::from_str(&ask(&admin, &["luns", "--json"]).text).expect("JSON");
        let memory = luns.as_array().and_then(|luns| luns.iter().find(|lun| lun["name"] == "memory"));
        memory.expect("it is served")["used_bytes"].as_u64()
    };
    wait_until("its use is known", || used().is_some());
    assert_eq!(used(), Some(0), "nothing was written");

    // What only root may open is refused now, with the reason.
    let secret = directory.path().join("secret.img");
    fs::write(&secret, [0; 4096]).expect("a file");
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("nobody may");
    write(
        directory.path(),
        "[[lun]]\nname = \"secret\"\nfile = \"secret.img\"\nserial = \"two\"\n",
        ", \"secret\"",
    );
    let outcome = ask(&admin, &["reload"]);
    assert!(outcome.text.contains("runs with the rights of nobody (--user)"), "{}", outcome.text);

    let url = Url { lun: 0, ..daemon.lun(0) };
    let mut session = Initiator::login(&url, &Login::named("iqn.2026-11.test:a")).expect("login");
    session.ready(0).expect("the unit is ready");
    drop(session);
    let log = daemon.stop();
    assert!(!admin.exists(), "it was removed: {log}");
}

#[test]
fn a_user_keeps_what_aoe_needs_and_no_more() {
    let network = Network::new(1500, 53);
    let daemon = segment::serve(&network, &["ram:1M,aoe=1.1"], &["--user", NOBODY]);
    AoeInitiator::find(&network.initiator, 1, 1).read(0, 1).expect("READ SECTORS");
    assert_rights(&daemon, NET_RAW);
    let threads = of_threads(&daemon, "CapEff");
    let keeps = |name: &str| threads.iter().any(|(found, mask)| found == name && mask.ends_with("2000"));
    assert!(keeps("housekeeper"), "it opens interfaces that come back: {threads:?}");
}

#[test]
fn a_user_that_does_not_exist_is_an_error() {
    let mut command = Daemon::command();
    command.args(["serve", "--user", "no-such-user", "--listen", "127.0.0.1:0"]);
    let outcome = run(&mut command, Duration::from_secs(60));
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(2));
    assert!(outcome.text.starts_with("lunette: --user no-such-user: "), "{}", outcome.text);
}
