//! What a service manager receives from the daemon (sd_notify(3)): here the test is the manager.

use crate::support::daemon::Daemon;
use crate::support::thread::Still;
use crate::support::tools::{run, tool};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a message may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A manager that starts one daemon.
struct Manager {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        Self { socket, directory }
    }

    fn start(&self, command: &mut Command) -> Daemon {
        Daemon::start(command.env("NOTIFY_SOCKET", self.directory.path().join("notify")))
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("lunette.toml")
    }

    /// Writes a configuration file with this many LUNs.
    fn write(&self, luns: usize) {
        let names: Vec<String> = (0..luns).map(|number| format!("\"lun{number}\"")).collect();
        let lun = |name| format!("[[lun]]\nname = {name}\nram = \"1M\"\n");
        let text = format!(
            "portal = [{{ listen = \"127.0.0.1:0\" }}]\n{}[[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\nluns = [{}]\n",
            names.iter().map(lun).collect::<String>(),
            names.join(", ")
        );
        fs::write(self.file(), text).expect("a file");
    }

    /// The next message that is not for the watchdog, line by line.
    fn next(&self) -> Vec<String> {
        loop {
            let message = self.any().expect("a message");
            if message != ["WATCHDOG=1"] {
                return message;
            }
        }
    }

    /// The next message with this line; all before it are only status.
    fn find(&self, line: &str) -> Vec<String> {
        loop {
            let message = self.next();
            if message.iter().any(|found| found == line) {
                return message;
            }
            assert!(message.iter().all(|line| line.starts_with("STATUS=")), "{message:?} before {line}");
        }
    }

    fn any(&self) -> Option<Vec<String>> {
        let mut message = [0; 4096];
        let length = self.socket.recv(&mut message).ok()?;
        let text = String::from_utf8(message[..length].to_vec()).expect("text");
        Some(text.lines().map(str::to_owned).collect())
    }
}

fn serving(arguments: &[&str]) -> Command {
    let mut command = Daemon::command();
    command.arg("serve").args(arguments);
    command
}

fn status(message: &[String]) -> &str {
    message.iter().find_map(|line| line.strip_prefix("STATUS=")).expect("a status")
}

#[test]
fn a_service_manager_sees_start_reload_and_end() {
    let manager = Manager::new();
    manager.write(1);
    let file = manager.file().display().to_string();
    let daemon = manager.start(&mut serving(&["--config", &file, "--cores", "0"]));
    let ready = manager.find("READY=1");
    assert_eq!(status(&ready), "serving 1 LUN of 1 target at 1 portal on 1 core");

    let before = monotonic_us();
    manager.write(2);
    daemon.signal("HUP");
    let reloading = manager.find("RELOADING=1");
    let since = reloading.iter().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("its time");
    assert!(since.parse::<u128>().expect("a number") >= before, "{reloading:?}");
    assert_eq!(status(&manager.find("READY=1")), "serving 2 LUNs of 1 target at 1 portal on 1 core");

    fs::write(manager.file(), "nonsense = true").expect("a file");
    daemon.signal("HUP");
    manager.find("RELOADING=1");
    let refused = manager.find("READY=1");
    assert!(status(&refused).starts_with("serving 2 LUNs"), "{refused:?}");
    assert!(status(&refused).ends_with("the last reload was refused, see the log"), "{refused:?}");

    daemon.stop();
    manager.find("STOPPING=1");
}

#[test]
fn the_packaged_unit_reloads_a_daemon_whose_admin_interface_is_elsewhere() {
    let unit = include_str!("../../debian/lunette.service");
    let script =
        unit.lines().find_map(|line| line.strip_prefix("ExecReload=/bin/sh -c '")?.strip_suffix('\''));
    let program = Daemon::command().get_program().to_string_lossy().into_owned();
    let script = script.expect("a script").replace("$$", "$").replace("/usr/bin/lunette", &program);
    let manager = Manager::new();
    manager.write(1);
    let file = manager.file().display().to_string();
    let daemon = manager.start(&mut serving(&["--config", &file, "--cores", "0", "--admin", "127.0.0.1:0"]));
    manager.find("READY=1");
    manager.write(2);
    let reload = |admin: &str, tokens: &str| {
        let mut reload = tool("sh");
        reload.args(["-c", &script]).env("MAINPID", daemon.pid().to_string());
        run(reload.env("LUNETTE_ADMIN", admin).env("LUNETTE_ADMIN_TOKEN_FILE", tokens), PATIENCE)
    };
    // The outcome of a known address is checked: here nothing answers.
    let tokens = manager.directory.path().join("tokens");
    fs::write(&tokens, "root 0123456789abcdef0123456789abcdef").expect("a file");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).expect("its mode");
    let asked = reload("http://127.0.0.1:1", &tokens.display().to_string());
    assert!(asked.text.contains("http://127.0.0.1:1"), "{}", asked.text);
    assert_ne!(asked.status.and_then(|ended| ended.code()), Some(0), "{}", asked.text);
    for admin in ["/nowhere/lunette.sock", "http://192.0.2.1:1"] {
        reload(admin, "").expect_success("it gets a signal");
        manager.find("RELOADING=1");
        assert!(status(&manager.find("READY=1")).starts_with("serving 2 LUNs"));
    }
    daemon.stop();
}

#[test]
fn a_reload_without_a_file_is_answered() {
    let manager = Manager::new();
    let daemon = manager.start(&mut serving(&["--listen", "127.0.0.1:0", "--cores", "0"]));
    manager.find("READY=1");
    daemon.signal("HUP");
    manager.find("RELOADING=1");
    manager.find("READY=1");
}

#[test]
fn the_watchdog_is_fed_only_while_all_cores_turn() {
    let manager = Manager::new();
    let mut command = serving(&["--listen", "127.0.0.1:0", "--cores", "0,1"]);
    let daemon = manager.start(command.env("WATCHDOG_USEC", "40000"));
    manager.find("READY=1");
    let is_fed = || manager.any().is_some_and(|message| message == ["WATCHDOG=1"]);
    assert!(is_fed() && is_fed());

    let still = Still::new(&daemon, "core-1");
    // What was sent before, and once for a turn that it had taken: after that there is silence.
    manager.socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a limit");
    assert!((0..50).any(|_| manager.any().is_none()), "a core hangs");
    drop(still);
    manager.socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    assert!(is_fed(), "all cores turn again");
    daemon.stop();
}

fn monotonic_us() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u128::try_from(now.tv_sec).expect("since the boot") * 1_000_000
        + u128::try_from(now.tv_nsec).expect("a part") / 1000
}
