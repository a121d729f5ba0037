//! What sessions that do nothing cost in CPU time: `cargo bench --package lunette --bench idle`.

#[path = "../tests/support/mod.rs"]
mod support;

use reactor::cpu;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::daemon::Daemon;
use support::initiator::{Initiator, Login};
use support::limits::raise_descriptor_limit;

const SESSIONS: [u64; 2] = [100, 10_000];
/// What else a process has open.
const OTHER_FILES: u64 = 256;
/// How long the daemon is left alone before it is watched, and how long it is watched.
const REST: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_secs(10);
/// Of a core.
const PERCENT_MAX: f64 = 0.2;

fn main() -> ExitCode {
    let costs = SESSIONS.map(|sessions| {
        let possible = raise_descriptor_limit(sessions + OTHER_FILES) - OTHER_FILES;
        let percent = percent_of_a_core(sessions.min(possible));
        println!("{} idle sessions, % of a core: {percent:.2}", sessions.min(possible));
        percent
    });
    if costs.into_iter().all(|percent| percent <= PERCENT_MAX) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// While none of so many sessions does anything; they are not pinged meanwhile.
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
