//! What 100 quiet sessions notice of a loud one on the same core: `cargo bench --package lunette --bench fairness`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::daemon::{Daemon, Url};
use support::initiator::{Initiator, Login};

/// Quiet sessions, and the threads that they are divided among.
const SESSIONS: usize = 100;
const THREADS: usize = 4;
/// READs of 4 KiB of each quiet session in one measurement, one after the other.
const READS: usize = 100;
/// Between two READs of a thread.
const PAUSE: Duration = Duration::from_micros(500);
/// READs of 64 KiB that the loud session keeps in flight.
const DEPTH: usize = 128;
const LOUD_BLOCKS: u32 = 128;
/// Measurements of each kind, in turn.
const ROUNDS: usize = 5;
/// How much worse their p99 may become.
const RATIO_MAX: f64 = 3.0;

fn main() -> ExitCode {
    let daemon = Daemon::serve(["--cores", "0", "--lun", "ram:64M"]);
    keep_off_core_0();
    let url = daemon.lun(0);
    let login = |n: usize| Initiator::login(&url, &Login::named(&format!("quiet{n}"))).expect("login");
    let mut quiet: Vec<Initiator> = (0..SESSIONS).map(login).collect();
    measure(&mut quiet);
    let mut ratios = Vec::with_capacity(ROUNDS);
    for round in 1..=ROUNDS {
        let alone = measure(&mut quiet);
        let (beside, loud) = beside_a_loud_session(&url, || measure(&mut quiet));
        let ratio = beside.p99.as_secs_f64() / alone.p99.as_secs_f64();
        println!(
            "round {round}: alone p50 {:?} p99 {:?}; beside {loud:.0} MB/s p50 {:?} p99 {:?}; p99 ratio {ratio:.2}",
            alone.p50, alone.p99, beside.p50, beside.p99
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ROUNDS / 2];
    println!("p99 beside a loud session / alone, median of {ROUNDS}: {ratio:.2}");
    drop(quiet);
    daemon.stop();
    if ratio <= RATIO_MAX { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The daemon has its core to itself.
fn keep_off_core_0() {
    let mut cores = rustix::thread::sched_getaffinity(None).expect("this thread has cores");
    cores.unset(0);
    if cores.count() > 0 {
        rustix::thread::sched_setaffinity(None, &cores).expect("they are ours");
    }
}

struct Latency {
    p50: Duration,
    p99: Duration,
}

/// Reads on all quiet sessions.
fn measure(quiet: &mut [Initiator]) -> Latency {
    let threads = quiet.chunks_mut(SESSIONS.div_ceil(THREADS));
    let mut all: Vec<Duration> = std::thread::scope(|scope| {
        let read = |session: &mut Initiator, lba: usize| {
            let start = Instant::now();
            session.read_blocks(0, lba as u64 * 8, 8, 512).expect("READ");
            start.elapsed()
        };
        let threads: Vec<_> = threads
            .map(|sessions| {
                scope.spawn(move || {
                    let mut latencies = Vec::with_capacity(READS * sessions.len());
                    for lba in 0..READS {
                        for session in &mut *sessions {
                            latencies.push(read(session, lba));
                            std::thread::sleep(PAUSE);
                        }
                    }
                    latencies
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a quiet thread ends well")).collect()
    });
    all.sort();
    Latency { p50: all[all.len() / 2], p99: all[all.len() * 99 / 100] }
}

/// Runs this while another session reads as much as it can; also returns how much that was, in MB/s.
fn beside_a_loud_session<T>(url: &Url, run: impl FnOnce() -> T) -> (T, f64) {
    let (is_over, commands, together) = (AtomicBool::new(false), AtomicU64::new(0), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // What is measured is the daemon: the loud initiator leaves its own core to the quiet ones.
            rustix::process::setpriority_process(None, 19).expect("any thread may be nice");
            let mut loud = Initiator::login(url, &Login::named("loud")).expect("login");
            loud.ready(0).expect("TEST UNIT READY");
            let mut cdb = [0; 10];
            cdb[0] = 0x28;
            cdb[7..9].copy_from_slice(&(LOUD_BLOCKS as u16).to_be_bytes());
            let issue = |loud: &mut Initiator| loud.issue(0, &cdb, LOUD_BLOCKS as usize * 512, Vec::new());
            for _ in 0..DEPTH {
                issue(&mut loud).expect("a command");
            }
            together.wait();
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(loud.complete_any().expect("an answer").1.status, 0);
                issue(&mut loud).expect("a command");
                commands.fetch_add(1, Ordering::Relaxed);
            }
        });
        together.wait();
        let (start, before) = (Instant::now(), commands.load(Ordering::Relaxed));
        let result = run();
        let bytes = (commands.load(Ordering::Relaxed) - before) * u64::from(LOUD_BLOCKS) * 512;
        let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e6;
        is_over.store(true, Ordering::Relaxed);
        (result, rate)
    })
}
