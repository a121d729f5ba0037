//! How 100 quiet sessions are affected by a loud one on the same core, and by hostile peers: `cargo bench
//! --package lunette --bench fairness`.

#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::daemon::{Daemon, Url};
use support::initiator::{Initiator, Login};
use wire::scsi::command::Read10;

/// Quiet sessions, and the threads that they are divided among.
const SESSIONS: usize = 100;
const THREADS: usize = 4;
/// READs of 4 KiB of each quiet session in one measurement, one after another.
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
/// Peers that have connected and send nothing.
const SILENT: usize = 100;
/// READs of 64 KiB whose data a peer never receives.
const UNREAD: usize = 64;

fn main() -> ExitCode {
    let daemon = Daemon::serve(["--cores", "0", "--lun", "ram:64M"]);
    keep_off_core_0();
    let url = daemon.lun(0);
    let login = |n: usize| Initiator::login(&url, &Login::named(&format!("quiet{n}"))).expect("login");
    let mut quiet: Vec<Initiator> = (0..SESSIONS).map(login).collect();
    measure(&mut quiet);
    let [mut loud_ratios, mut hostile_ratios] = [const { Vec::new() }; 2];
    for round in 1..=ROUNDS {
        let alone = measure(&mut quiet);
        let (beside, rate) = beside_a_loud_session(&url, || measure(&mut quiet));
        println!("round {round}: alone {alone}; beside {rate:.0} MB/s {beside}");
        loud_ratios.push(beside.p99.as_secs_f64() / alone.p99.as_secs_f64());
        let alone = measure(&mut quiet);
        let (beside, rate) = beside_hostile_peers(&url, || measure(&mut quiet));
        println!("round {round}: alone {alone}; beside {rate:.0} hostile connections/s {beside}");
        hostile_ratios.push(beside.p99.as_secs_f64() / alone.p99.as_secs_f64());
    }
    let [ratio, hostile] = [loud_ratios, hostile_ratios].map(median);
    println!("p99 beside a loud session / alone, median of {ROUNDS}: {ratio:.2}");
    println!("p99 beside hostile peers / alone, median of {ROUNDS}: {hostile:.2}");
    drop(quiet);
    daemon.stop();
    if ratio.max(hostile) <= RATIO_MAX { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Leaves core 0 to the daemon.
fn keep_off_core_0() {
    let mut cores = rustix::thread::sched_getaffinity(None).expect("this thread has cores");
    cores.unset(0);
    if cores.count() > 0 {
        rustix::thread::sched_setaffinity(None, &cores).expect("they are ours");
    }
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

struct Latency {
    p50: Duration,
    p99: Duration,
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:?} p99 {:?}", self.p50, self.p99)
    }
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
            // The daemon is what is measured: the loud initiator leaves its own core to the quiet ones.
            rustix::process::setpriority_process(None, 19).expect("any thread may be nice");
            let mut loud = Initiator::login(url, &Login::named("loud")).expect("login");
            loud.ready(0).expect("TEST UNIT READY");
            let cdb = Read10::new(0, LOUD_BLOCKS as u16);
            let issue = |loud: &mut Initiator| loud.issue(0, cdb, LOUD_BLOCKS as usize * 512, Vec::new());
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

/// Runs this while some peers keep connecting, sending garbage and being refused, others send nothing, and
/// one requests data that it never receives; also returns how many connections were refused per second.
fn beside_hostile_peers<T>(url: &Url, run: impl FnOnce() -> T) -> (T, f64) {
    let (is_over, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    let silent: Vec<TcpStream> = (0..SILENT).filter_map(|_| TcpStream::connect(url.portal).ok()).collect();
    let greedy = Initiator::login(url, &Login::named("greedy")).expect("login");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rustix::process::setpriority_process(None, 19).expect("any thread may be nice");
            while !is_over.load(Ordering::Relaxed) {
                refused.fetch_add(u64::from(is_refused(url.portal)), Ordering::Relaxed);
            }
        });
        let mut greedy = greedy;
        let cdb = Read10::new(0, LOUD_BLOCKS as u16);
        for _ in 0..UNREAD {
            greedy.issue(0, cdb, LOUD_BLOCKS as usize * 512, Vec::new()).expect("a command");
        }
        let (start, before) = (Instant::now(), refused.load(Ordering::Relaxed));
        let result = run();
        let count = refused.load(Ordering::Relaxed) - before;
        let rate = count as f64 / start.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        drop(silent);
        (result, rate)
    })
}

/// Sends garbage instead of a login, and waits until the connection is closed for it.
fn is_refused(portal: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect(portal) else { return false };
    let is_sent = stream.write_all(&[0xa5; 512]).is_ok();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    is_sent
}
