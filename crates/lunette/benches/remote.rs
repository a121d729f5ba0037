//! Ceph images and NBD exports through the daemon, compared with fio's own engines for them and
//! Debian's tgt-rbd, 4K with 32 in flight: `cargo bench --package lunette --bench remote`. All measurements
//! of a round run right after each other, and ratios are those of a round: other load on the machine affects
//! each of them. Needs fio and tgt-rbd.

#[path = "../tests/support/mod.rs"]
mod support;

use reactor::cpu;
use serde_json::Value;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;
use support::ceph::{Ceph, POOL};
use support::daemon::Daemon;
use support::nbd::NbdServer;
use support::tools::{must, run, spawn, tool};
use support::wait_until;
use tempfile::TempDir;

const ROUNDS: usize = 5;
const SECONDS: &str = "3";
const BYTES: u64 = 160 << 20;
const PATTERNS: [&str; 2] = ["randread", "randwrite"];
/// Relative to fio's engine on the same machine, and to tgt-rbd.
const FIO_MIN: f64 = 0.9;
const TGT_MIN: f64 = 2.0;
const TGT_TARGET: &str = "iqn.2026-11.io.lunette:tgt";

/// The result of one way for a pattern in one round.
#[derive(Clone, Copy)]
struct Sample {
    iops: f64,
    /// Processor time per operation of the process with the store: fio, our own load generator, or the
    /// target.
    us: f64,
}

/// A way to access the store, and its name.
type Way<'a> = (&'a str, Box<dyn Fn(&str) -> Sample + 'a>);

fn main() -> ExitCode {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let images = images(&directory);
    let exports = exports(&directory);
    if images && exports { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether the goals for Ceph images are reached.
fn images(directory: &TempDir) -> bool {
    let ceph = Ceph::start();
    let conf = ceph.conf();
    // As with the daemon, whatever else is configured for librbd.
    let text = fs::read_to_string(&conf).expect("its configuration") + "[client]\nrbd cache = false\n";
    fs::write(&conf, text).expect("written");
    let size = format!("{BYTES}B");
    ceph.rbd(&["create", "--size", &size, "--image-feature", "layering", &format!("{POOL}/shared")]);
    ["local", "a", "b", "tgt", "alone"].iter().for_each(|image| ceph.create_shared(image, BYTES));
    for image in ["local", "a", "b", "tgt", "alone", "shared"] {
        fill(&["--ioengine=rbd", "--clientname=admin", &pool(), &format!("--rbdname={image}")], &conf);
    }
    let [one, other] =
        [("a", 1), ("b", 2)].map(|(name, group)| gateway(&conf, directory, name, group, (name, "one")));
    let both =
        [("c", 3), ("d", 4)].map(|(name, group)| gateway(&conf, directory, name, group, ("shared", "all")));
    let [urls, shared] = [[&one, &other], [&both[0], &both[1]]]
        .map(|gateways| gateways.map(|gateway| gateway.lun(0).to_string()));
    let (shared, of_both) = ([&*shared[0], &shared[1]], both.each_ref().map(Daemon::pid));
    let tgt = Tgt::start(directory, &conf);
    let alone = Daemon::serve(["--lun", &format!("rbd:{POOL}/alone,conf={conf}")]);
    let lun = alone.lun(0).to_string();
    let fio = ["--ioengine=rbd", "--clientname=admin", &pool(), "--rbdname=local"];
    let two = ["--rbdname=shared", "--numjobs=2", "--group_reporting"];
    let two = [&fio[..3], &two].concat();
    let local = format!("rbd:{POOL}/local,conf={conf}");
    let ways: [Way<'_>; 10] = [
        ("fio's rbd engine", Box::new(|pattern| by_fio(pattern, &fio, "32", &conf))),
        ("our load, without a target", Box::new(|pattern| by_us(pattern, &[&local], "32", &[]))),
        ("one gateway", Box::new(|pattern| by_us(pattern, &[&urls[0]], "32", &[one.pid()]))),
        (
            "two gateways, an image each",
            Box::new(|pattern| by_us(pattern, &[&urls[0], &urls[1]], "16", &[one.pid(), other.pid()])),
        ),
        ("tgt-rbd", Box::new(|pattern| by_us(pattern, &[&tgt.url], "32", &[tgt.child.id()]))),
        ("fio, two processes, 16 each", Box::new(|pattern| by_fio(pattern, &two, "16", &conf))),
        ("fio, two processes, 32 each", Box::new(|pattern| by_fio(pattern, &two, "32", &conf))),
        ("two gateways of an image, 16 each", Box::new(|pattern| by_us(pattern, &shared, "16", &of_both))),
        ("two gateways of an image, 32 each", Box::new(|pattern| by_us(pattern, &shared, "32", &of_both))),
        ("the daemon, without [cluster]", Box::new(|pattern| by_us(pattern, &[&lun], "32", &[alone.pid()]))),
    ];
    let are_reached = PATTERNS.map(|pattern| {
        let samples = measure(pattern, &ways);
        let gateway = ratio(&samples[2], &samples[4]);
        println!("{pattern}: one gateway: {gateway:.2} of tgt-rbd");
        let cluster = ratio(&samples[2], &samples[9]);
        println!("{pattern}: one gateway: {cluster:.2} of the daemon without [cluster]");
        for (of, name) in [(7, "16"), (8, "32")] {
            let (one, fio) = (ratio(&samples[of], &samples[2]), ratio(&samples[of], &samples[of - 2]));
            println!(
                "{pattern}: two gateways of an image, {name} each: {one:.2} of one gateway, {fio:.2} of two fio"
            );
        }
        ratio(&samples[2], &samples[0]) >= FIO_MIN && gateway >= TGT_MIN
    });
    are_reached == [true; 2]
}

/// Whether the goal for NBD exports is reached.
fn exports(directory: &TempDir) -> bool {
    let image = directory.path().join("image");
    File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an image");
    // fio, our own load and the daemons use it in turn, some by several connections.
    let server = NbdServer::qemu(&image, &["--shared=16"]);
    let url = server.text();
    let fio = ["--ioengine=nbd", &format!("--uri={url}")];
    fill(&fio, "");
    let daemon = Daemon::serve(["--lun", &url]);
    let lun = daemon.lun(0).to_string();
    let single = Daemon::serve(["--lun", &format!("{url}&connections=1")]);
    let lun_by_one = single.lun(0).to_string();
    let ways: [Way<'_>; 5] = [
        ("fio's nbd engine", Box::new(|pattern| by_fio(pattern, &fio, "32", ""))),
        ("our load, without a target", Box::new(|pattern| by_us(pattern, &[&url], "32", &[]))),
        ("the daemon", Box::new(|pattern| by_us(pattern, &[&lun], "32", &[daemon.pid()]))),
        (
            "the daemon, two sessions",
            Box::new(|pattern| by_us(pattern, &[&lun, "--numjobs=2"], "16", &[daemon.pid()])),
        ),
        (
            "the same with one connection",
            Box::new(|pattern| by_us(pattern, &[&lun_by_one, "--numjobs=2"], "16", &[single.pid()])),
        ),
    ];
    let are_reached = PATTERNS.map(|pattern| {
        let samples = measure(pattern, &ways);
        let gain = ratio(&samples[3], &samples[4]);
        println!("{pattern}: two sessions: {gain:.2} of the rate with one connection");
        ratio(&samples[2], &samples[0]) >= FIO_MIN
    });
    are_reached == [true; 2]
}

/// Each way in turn, round by round; prints and returns the results for a pattern.
fn measure(pattern: &str, ways: &[Way<'_>]) -> Vec<Vec<Sample>> {
    let mut samples = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((_, way), samples) in ways.iter().zip(&mut samples) {
            samples.push(way(pattern));
        }
    }
    for ((name, _), of_it) in ways.iter().zip(&samples) {
        let iops = median(of_it.iter().map(|sample| sample.iops));
        let us = median(of_it.iter().map(|sample| sample.us));
        let of_fio = ratio(of_it, &samples[0]);
        println!("{pattern}: {name}: {iops:.0} IOPS, {of_fio:.2} of fio; {us:.1} us of processor time each");
    }
    samples
}

/// The median ratio of one way to another over the rounds.
fn ratio(samples: &[Sample], others: &[Sample]) -> f64 {
    median(samples.iter().zip(others).map(|(sample, other)| sample.iops / other.iops))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn pool() -> String {
    format!("--pool={POOL}")
}

/// fio with an engine, on a cluster of this configuration.
fn fio(engine: &[&str], conf: &str) -> Command {
    let mut fio = tool("fio");
    fio.args(["--name=remote", &format!("--size={BYTES}")]).args(engine).env("CEPH_CONF", conf);
    fio
}

/// Writes all of it: reads of unwritten ranges cost less.
fn fill(engine: &[&str], conf: &str) {
    must(fio(engine, conf).args(["--rw=write", "--bs=1m", "--iodepth=4"]));
}

fn by_fio(pattern: &str, engine: &[&str], depth: &str, conf: &str) -> Sample {
    let mut fio = fio(engine, conf);
    fio.args(["--bs=4k", "--iodepth", depth, "--time_based", "--output-format=json"]);
    let before = seconds_of_children();
    let text = must(fio.args([format!("--rw={pattern}"), format!("--runtime={SECONDS}")]));
    let used = seconds_of_children() - before;
    let result: Value = serde_json::from_str(&text[text.find('{').expect("JSON")..]).expect("JSON");
    let job = &result["jobs"][0];
    let sum = |key: &str| number(&job["read"][key]) + number(&job["write"][key]);
    Sample { iops: sum("iops"), us: used * 1e6 / sum("total_ios") }
}

/// Our own load, with any options after its targets; the processor time is that of these targets, or its own
/// where there are none.
fn by_us(pattern: &str, targets: &[&str], depth: &str, pids: &[u32]) -> Sample {
    let of_targets = || pids.iter().map(|pid| cpu::process(*pid).expect("it runs").sum()).sum::<f64>();
    let used = || if pids.is_empty() { seconds_of_children() } else { of_targets() };
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("result");
    let mut load = Daemon::command();
    load.arg("bench").args(targets).args(["--rw", pattern, "--iodepth", depth, "--runtime", SECONDS]);
    load.args(["--bs", "4K", "--ramp", "0", "--yes"]).arg(format!("--json={}", file.display()));
    let before = used();
    must(&mut load);
    let used = used() - before;
    let text = fs::read_to_string(&file).expect("a result");
    let result: Value = serde_json::from_str(&text).expect("JSON");
    let result = &result["lunette"]["result"];
    let stream = &result[pattern.trim_start_matches("rand")];
    Sample { iops: number(&stream["iops"]), us: used * 1e6 / number(&stream["operations"]) }
}

/// The processor time of child processes that this one has waited for, with their threads.
fn seconds_of_children() -> f64 {
    // The kernel counts in hundredths of a second here, whatever its own clock is (proc_pid_stat(5)).
    let stat = fs::read_to_string("/proc/self/stat").expect("proc");
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(13).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A gateway of an image with this access.
fn gateway(conf: &str, directory: &TempDir, name: &str, group: u16, (image, access): (&str, &str)) -> Daemon {
    let text = format!(
        "admin = \"none\"\n[cluster]\nname = \"c\"\ngateway = \"{name}\"\npool = \"{POOL}\"\nconf = \"{conf}\"\n\
         [[portal]]\nlisten = \"127.0.0.1:0\"\ngroup = {group}\n\
         [[lun]]\nname = \"{image}\"\nrbd = \"{POOL}/{image}\"\nconf = \"{conf}\"\naccess = \"{access}\"\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:{image}\"\n"
    );
    let file = directory.path().join(format!("{name}.toml"));
    fs::write(&file, text).expect("a file");
    let daemon = Daemon::serve_file(&file);
    wait_until("it is active", || daemon.log().contains("this gateway is active"));
    daemon
}

/// tgtd with an image.
struct Tgt {
    child: Child,
    url: String,
}

impl Tgt {
    fn start(directory: &TempDir, conf: &str) -> Tgt {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let portal = listener.local_addr().expect("its address");
        drop(listener);
        let socket = directory.path().join("tgt");
        let log = File::create(directory.path().join("tgt.log")).expect("a file");
        let mut tgtd = tool("tgtd");
        tgtd.args(["-f", "--iscsi", &format!("portal={portal}")]).env("TGT_IPC_SOCKET", &socket);
        let tgt = Tgt { child: spawn(&mut tgtd, &log), url: format!("iscsi://{portal}/{TGT_TARGET}/1") };
        wait_until("tgtd answers", || {
            let outcome = run(&mut tgtadm(&socket, &["sys", "--op", "show"]), Duration::from_secs(10));
            outcome.status.is_some_and(|status| status.success())
        });
        let (image, options) = (format!("{POOL}/tgt"), format!("conf={conf};id=admin"));
        let unit = ["logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "--bstype", "rbd"];
        must(&mut tgtadm(&socket, &["target", "--op", "new", "--tid", "1", "-T", TGT_TARGET]));
        must(tgtadm(&socket, &unit).args(["--backing-store", &image, "--bsopts", &options]));
        must(&mut tgtadm(&socket, &["target", "--op", "bind", "--tid", "1", "-I", "ALL"]));
        tgt
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tgtadm(socket: &Path, arguments: &[&str]) -> Command {
    let mut tgtadm = tool("tgtadm");
    tgtadm.env("TGT_IPC_SOCKET", socket).args(["--lld", "iscsi", "--mode"]).args(arguments);
    tgtadm
}
