//! What 100 sessions that do nothing cost in CPU time: `cargo bench --package lunette --bench idle`.

#[path = "../tests/support/mod.rs"]
mod support;

use reactor::cpu;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::daemon::Daemon;
use support::initiator::{Initiator, Login};

const SESSIONS: u64 = 100;
/// How long the daemon is left alone before it is watched, and how long it is watched.
const REST: Duration = Duration::from_secs(1);
const WATCH: Duration = Duration::from_secs(10);
/// Of a core.
const PERCENT_MAX: f64 = 1.0;

fn main() -> ExitCode {
    let daemon = Daemon::serve(["--poll", "adaptive", "--lun", "ram:64M"]);
    let url = daemon.lun(0);
    let login = |number: u64| {
        let mut initiator = Initiator::login(&url, &Login::named(&format!("idle{number}"))).expect("login");
        initiator.read_blocks(0, number, 1, 512).expect("READ");
        initiator
    };
    let idle: Vec<Initiator> = (0..SESSIONS).map(login).collect();
    let used = || cpu::process(daemon.pid()).expect("the daemon runs");
    std::thread::sleep(REST);
    let (start, before) = (Instant::now(), used());
    std::thread::sleep(WATCH);
    let percent = used().since(before).sum() / start.elapsed().as_secs_f64() * 100.0;
    println!("{SESSIONS} idle sessions, % of a core: {percent:.2}");
    drop(idle);
    daemon.stop();
    if percent <= PERCENT_MAX { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
