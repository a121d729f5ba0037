//! Whether limits are as configured, over all cores, and shared: `cargo bench --package lunette --bench
//! limits`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::daemon::{Daemon, Url};
use support::initiator::{Initiator, Login};
use wire::scsi::command::Read10;

/// Commands that each session keeps in flight.
const DEPTHS: [usize; 4] = [8, 32, 32, 120];
/// How long each limit is measured.
const SECONDS: u64 = 3;
/// How far a second may be from the limit, and a session from its share of it.
const OFF_MAX: f64 = 0.05;

/// A limit as an option of a LUN, what it allows per second, and the bytes of each READ.
const CASES: [(&str, u64, usize); 5] = [
    ("iops_max=200", 200, 4096),
    ("iops_max=5000", 5000, 4096),
    ("iops_max=20000", 20_000, 512),
    ("bytes_per_second_max=20M", (20 << 20) / 65536, 65536),
    ("bytes_per_second_max=100M", (100 << 20) / 4096, 4096),
];

fn main() -> ExitCode {
    let mut are_kept = true;
    for (limit, rate, bytes) in CASES {
        let daemon = Daemon::serve(["--lun", &format!("ram:64M,{limit}")]);
        let sessions = measure(&daemon.lun(0), bytes);
        daemon.stop();
        let seconds: Vec<u64> = (0..SECONDS as usize)
            .map(|second| sessions.iter().map(|session| session[second]).sum())
            .collect();
        let each: Vec<u64> = sessions.iter().map(|session| session.iter().sum()).collect();
        let share = each.iter().sum::<u64>() as f64 / DEPTHS.len() as f64;
        let off = |value: f64, of: f64| (value - of).abs() / of;
        let worst = seconds.iter().map(|second| off(*second as f64, rate as f64)).fold(0.0, f64::max);
        let unfair = each.iter().map(|one| off(*one as f64, share)).fold(0.0, f64::max);
        println!("{limit}: {rate}/s allowed, {seconds:?} done; sessions with {DEPTHS:?} in flight {each:?}");
        println!("  worst second {:.1} % off, worst share {:.1} %", worst * 100.0, unfair * 100.0);
        are_kept &= worst <= OFF_MAX && unfair <= OFF_MAX;
    }
    if are_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What each session does in each second, after one second that uses up the burst.
fn measure(url: &Url, bytes: usize) -> Vec<Vec<u64>> {
    let together = Barrier::new(DEPTHS.len());
    std::thread::scope(|scope| {
        let run = |number: usize| {
            let together = &together;
            scope.spawn(move || {
                let name = format!("limited{number}");
                let mut session = Initiator::login(url, &Login::named(&name)).expect("login");
                session.ready(0).expect("TEST UNIT READY");
                let cdb = Read10::new(0, u16::try_from(bytes / 512).expect("it fits"));
                let issue = |session: &mut Initiator| {
                    session.issue(0, cdb, bytes, Vec::new()).expect("a command");
                };
                (0..DEPTHS[number]).for_each(|_| issue(&mut session));
                together.wait();
                let start = Instant::now() + Duration::from_secs(1);
                let mut seconds = vec![0; SECONDS as usize];
                loop {
                    assert_eq!(session.complete_any().expect("an answer").1.status, 0);
                    issue(&mut session);
                    let Some(since) = Instant::now().checked_duration_since(start) else { continue };
                    match seconds.get_mut(since.as_secs() as usize) {
                        Some(second) => *second += 1,
                        None => return seconds,
                    }
                }
            })
        };
        let sessions: Vec<_> = (0..DEPTHS.len()).map(run).collect();
        sessions.into_iter().map(|session| session.join().expect("a session ends well")).collect()
    })
}
