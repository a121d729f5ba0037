//! Idle sessions cost little.

use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use crate::support::limits::raise_descriptor_limit;
use std::io::Write;
use std::process::Command;

/// Other files that a process has open.
const OTHER_FILES: u64 = 256;
/// What one of them may cost the daemon.
const SESSION_BYTES_MAX: u64 = 16 << 10;

/// How many sessions a child process opens: the limit of open files is per process, and other tests need
/// theirs.
const COUNTS: &str = "LUNETTE_TEST_IDLE";

#[test]
fn an_idle_session_costs_less_than_16_kib() {
    cost_little("idle::an_idle_session_costs_less_than_16_kib", 1000);
}

/// Takes half a minute: `cargo xtask soak` runs it.
mod soak {
    #[test]
    fn so_it_does_among_ten_thousand() {
        super::cost_little("idle::soak::so_it_does_among_ten_thousand", 10_000);
    }
}

fn cost_little(test: &str, sessions: u64) {
    if std::env::var_os(COUNTS).is_some() {
        return count(sessions);
    }
    let mut counts = Command::new(std::env::current_exe().expect("this program"));
    let output = counts.args(["--exact", test]).env(COUNTS, "").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    print(String::from_utf8_lossy(&output.stderr).trim_end());
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Sessions of one unit, as many as open files allow.
fn count(wanted: u64) {
    let sessions = raise_descriptor_limit(wanted + OTHER_FILES).saturating_sub(OTHER_FILES);
    if sessions < wanted {
        print(&format!("the limit of open files allows {sessions} sessions instead of {wanted}"));
    }
    assert!(sessions >= 500, "the limit of open files allows too few sessions to count what one costs");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = directory.path().join("lunette.toml");
    let text = format!(
        "keep_alive = \"1h\"\n[[lun]]\nname = \"a\"\nram = \"16M\"\n[[target]]\nname = \"iqn.2026-11.io.lunette:idle\"\n\
         sessions_max = {wanted}\n"
    );
    std::fs::write(&config, text).expect("a file can be written");
    let daemon = Daemon::serve([std::ffi::OsStr::new("--config"), config.as_os_str()]);
    let url = daemon.lun(0);
    let login = |number: u64| {
        let mut initiator = Initiator::login(&url, &Login::named(&format!("idle{number}"))).expect("login");
        let block = initiator.read_blocks(0, number % 1024, 1, 512).expect("READ");
        assert_eq!(block.len(), 512);
        initiator
    };
    // Other memory that the first of them take is the daemon's.
    let mut idle: Vec<Initiator> = (0..16).map(login).collect();
    let before = daemon.resident_bytes();
    idle.extend((16..sessions).map(login));
    let bytes = daemon.resident_bytes().saturating_sub(before) / (sessions - 16);
    print(&format!("{sessions} idle sessions: {bytes} bytes of the daemon's memory each"));
    assert!(bytes < SESSION_BYTES_MAX, "an idle session costs {bytes} bytes");
    for initiator in [0, sessions / 2, sessions - 1] {
        let initiator = &mut idle[usize::try_from(initiator).expect("few")];
        initiator.ready(0).expect("they are served on");
    }
    drop(idle);
    daemon.stop();
}

/// Bypassing libtest's capture: this is also printed on success.
fn print(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
