//! What idle sessions cost in CPU time, and in memory beside the arenas: `cargo bench --package lunette
//! --bench idle`.

#[path = "../tests/support/mod.rs"]
mod support;

use reactor::cpu;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::daemon::Daemon;
use support::initiator::{Initiator, Login};
use support::limits::raise_descriptor_limit;

const SESSIONS: [u64; 2] = [100, 10_000];
/// Other files that a process has open.
const OTHER_FILES: u64 = 256;
/// How long the daemon settles before it is watched, and how long it is watched.
const REST: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_secs(10);
/// Of a core.
const PERCENT_MAX: f64 = 0.2;
/// The LUNs of a small installation, and the memory that it may take.
const LUNS: u16 = 100;
const SMALL_BYTES_MAX: u64 = 24_000_000;
/// Among anonymous mappings, an arena is one, larger than any other.
const ARENA_BYTES_MIN: u64 = 16 << 20;

fn main() -> ExitCode {
    let costs = SESSIONS.map(|sessions| {
        let possible = raise_descriptor_limit(sessions + OTHER_FILES) - OTHER_FILES;
        let percent = percent_of_a_core(sessions.min(possible));
        println!("{} idle sessions, % of a core: {percent:.2}", sessions.min(possible));
        percent
    });
    let bytes = small_bytes();
    println!("{LUNS} LUNs and {} sessions, bytes: {bytes}", SESSIONS[0]);
    if costs.into_iter().all(|percent| percent <= PERCENT_MAX) && bytes <= SMALL_BYTES_MAX {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// While none of this many sessions does anything; they are not pinged meanwhile.
fn percent_of_a_core(sessions: u64) -> f64 {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = directory.path().join("lunette.toml");
    let text = format!(
        "keep_alive = '1h'\npoll = 'adaptive'\n[[portal]]\nlisten = '127.0.0.1:0'\n[[lun]]\nram = '64M'\n\
         [[target]]\nname = 'iqn.2026-11.io.lunette:idle'\nsessions_max = {sessions}\n"
    );
    std::fs::write(&config, text).expect("a file can be written");
    let daemon = Daemon::serve_file(&config);
    let url = daemon.lun(0);
    let login = |number: u64| {
        let mut initiator = Initiator::login(&url, &Login::named(&format!("idle{number}"))).expect("login");
        initiator.read_blocks(0, number, 1, 512).expect("READ");
        initiator
    };
    let idle: Vec<Initiator> = (0..sessions).map(login).collect();
    let used = || cpu::process(daemon.pid()).expect("the daemon runs");
    std::thread::sleep(REST);
    let (start, before) = (Instant::now(), used());
    std::thread::sleep(WATCH);
    let percent = used().since(before).sum() / start.elapsed().as_secs_f64() * 100.0;
    drop(idle);
    daemon.stop();
    percent
}

/// Memory beside the arenas, once each session has read from each LUN, and everything has been reported.
fn small_bytes() -> u64 {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let config = directory.path().join("lunette.toml");
    let socket = directory.path().join("admin.sock");
    let head =
        "admin = './admin.sock'\nkeep_alive = '1h'\npoll = 'never'\n[[portal]]\nlisten = '127.0.0.1:0'\n";
    let luns = "[[lun]]\nram = '1M'\n".repeat(LUNS.into());
    let target =
        format!("[[target]]\nname = 'iqn.2026-11.io.lunette:small'\nsessions_max = {}\n", SESSIONS[0]);
    std::fs::write(&config, format!("{head}{luns}{target}")).expect("a file can be written");
    let daemon = Daemon::serve_file(&config);
    let login = |number: u64| {
        let name = Login::named(&format!("small{number}"));
        let mut initiator = Initiator::login(&daemon.lun(0), &name).expect("login");
        for lun in 0..LUNS {
            initiator.read_blocks(lun, number, 1, 512).expect("READ");
        }
        initiator
    };
    let sessions: Vec<Initiator> = (0..SESSIONS[0]).map(login).collect();
    for report in ["luns", "sessions", "status"] {
        let mut command = Daemon::command();
        let output =
            command.args([report, "--json"]).env("LUNETTE_ADMIN", &socket).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    std::thread::sleep(REST);
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", daemon.pid())).expect("its memory");
    drop(sessions);
    daemon.stop();
    bytes_beside_arenas(&smaps)
}

/// This process's share of the memory of its mappings (proc_pid_smaps(5)).
fn bytes_beside_arenas(smaps: &str) -> u64 {
    let (mut is_file, mut size_bytes, mut all) = (false, 0, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (key, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let bytes = || value.parse::<u64>().map_or(0, |kib| kib * 1024);
        match key {
            "Size:" => size_bytes = bytes(),
            "Pss:" if is_file || size_bytes < ARENA_BYTES_MIN => all += bytes(),
            // A mapping's first line: its addresses, and five words later its file.
            _ if !key.ends_with(':') => is_file = words.nth(3).is_some(),
            _ => {}
        }
    }
    all
}
