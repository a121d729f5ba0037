//! `lunette bench`: generates load on targets, shows the progress, and reports what was measured.

mod output;

use crate::client::{AdminArguments, Answer};
use crate::{Failure, INTERRUPTED, catch_interrupts};
use bench::contents::content;
use bench::job::{Job, Poll, Rw, Style};
use bench::output::display::{LiveDisplay, View};
use bench::result::RunResult;
use bench::run::{Admin, AdminClient, CpuSource, Watch, check, run as measure, writes};
use bench::target::{Opened, TargetOptions, open};
use clap::{ArgGroup, Args, ValueEnum};
use config::Url;
use config::{format_size, parse_cores, parse_duration, parse_size};
use output::Outputs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    group(ArgGroup::new("style").multiple(false).args(["sgp", "bidirectional"])),
    after_help = "Example: lunette bench iscsi://storage1/iqn.2026-11.io.lunette:disk/0 --rw randread --bs 4K --iodepth 32"
)]
// Its fields are the options of the command line, one for each.
pub(crate) struct BenchArguments {
    /// What to measure, one or several at once: an iSCSI or NBD URL, a file, a block device, rbd:POOL/IMAGE, ram:SIZE or null:SIZE
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// Order and direction
    #[arg(long, value_enum, default_value = "randread")]
    rw: RwWord,
    /// Reads among the operations of randrw, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    rwmixread: u8,
    /// Bytes per operation
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = parse_block)]
    bs: u32,
    /// Operations kept in flight by each job
    #[arg(long, value_name = "NUMBER", default_value_t = 32)]
    iodepth: u32,
    /// Jobs per target: each is a thread and, over iSCSI, a session
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    numjobs: u32,
    /// How long to measure: seconds, or with a unit, such as 30s or 2m
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = parse_duration)]
    runtime: Duration,
    /// How long to run before anything is counted
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_duration)]
    ramp: Duration,
    /// Bytes per second of each job [default: as many as possible]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rate: Option<u64>,
    /// Operations per second of each job [default: as many as possible]
    #[arg(long, value_name = "NUMBER", conflicts_with = "rate")]
    rate_iops: Option<u64>,
    /// Size of the range to work on; creates a file that does not exist [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Start of that range
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    offset: u64,
    /// Write blocks that hold their address, version and checksum, check what is read, and read all of them at the end
    #[arg(long)]
    verify: bool,
    /// Seed of everything random
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// How much of each written block compresses away
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    buffer_compress: u8,
    /// Like testy: keep this many reads outstanding, independently of the writes; --rw sets only the order
    #[arg(long, value_name = "NUMBER", conflicts_with = "style")]
    reads: Option<u32>,
    /// Like testy: keep this many writes outstanding, beside the reads
    #[arg(long, value_name = "NUMBER", conflicts_with = "style")]
    writes: Option<u32>,
    /// Like sgp_dd: --numjobs threads share one sequential range, one operation each
    #[arg(long)]
    sgp: bool,
    /// Reads and writes as two streams of --iodepth each; --rw sets only the order
    #[arg(long)]
    bidirectional: bool,
    /// Cores that job threads are pinned to, in turn, such as 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST|all")]
    cores: Option<String>,
    /// How job threads wait: adaptive (spin a little, then sleep), always (spin), never (sleep)
    #[arg(long, value_enum, default_value = "adaptive")]
    poll: PollWord,
    /// Request header digests from iSCSI targets
    #[arg(long)]
    header_digest: bool,
    /// Request data digests from iSCSI targets
    #[arg(long)]
    data_digest: bool,
    /// Send data of writes to iSCSI targets only when they request it
    #[arg(long)]
    no_immediate_data: bool,
    /// The target's process on this machine, whose CPU time is reported beside ours
    #[arg(long, value_name = "PID")]
    target_pid: Option<u32>,
    /// The admin interface of a Lunette target (its --admin), to read its CPU time from any machine: the path of its
    /// socket, or http://HOST:PORT, or https://HOST:PORT
    #[arg(long, value_name = "PATH|URL", conflicts_with = "target_pid")]
    target_admin: Option<String>,
    /// Certificates (PEM) of the authorities that are trusted to certify the https host of --target-admin [default: the
    /// system's]
    #[arg(long, value_name = "FILE", requires = "target_admin")]
    admin_ca: Option<PathBuf>,
    /// JSON with fio's field names, to standard output instead of the table, or to a file
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Comma-separated values, a line for each stream; like --json
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    csv: Option<PathBuf>,
    /// Interval between progress lines where standard error is not a terminal
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = parse_interval)]
    status_interval: Duration,
    /// Write even to targets that hold data, destroying it
    #[arg(long)]
    yes: bool,
}

/// A time not shorter than the one between two samples.
fn parse_interval(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(100);
    match parse_duration(text)? {
        interval if interval < LEAST => Err(format!("`{text}` is too short; choose at least 100ms")),
        interval => Ok(interval),
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "lower")]
enum RwWord {
    Read,
    Write,
    RandRead,
    RandWrite,
    RandRw,
    Trim,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PollWord {
    Adaptive,
    Always,
    Never,
}

/// Runs, and reports what was measured.
pub(crate) fn run(arguments: &BenchArguments) -> Result<String, Failure> {
    let job = arguments.job()?;
    arguments.check(&job)?;
    // Before measuring, as the results would be lost otherwise.
    let outputs = Outputs::open(arguments.json.as_deref(), arguments.csv.as_deref())?;
    let guard = writes(&job) && !arguments.yes;
    let targets = arguments
        .targets
        .iter()
        .map(|text| opened(text, &job, guard))
        .collect::<Result<Vec<Opened>, Failure>>()?;
    let names: Vec<String> = targets.iter().map(|target| target.name.clone()).collect();
    let backends: Vec<_> = targets.iter().map(|target| target.backend.clone()).collect();
    let stop =
        catch_interrupts().map_err(|error| Failure::failed(format!("cannot handle signals: {error}")))?;
    let target_cpu = arguments.cpu_source()?;
    let watch = Watch { stop: stop.clone(), target_cpu, portal: arguments.portal() };
    let is_elsewhere = match &watch.target_cpu {
        Some(CpuSource::Admin(client)) => client.is_elsewhere(),
        Some(CpuSource::Process(_)) | None => false,
    };
    let mut live = LiveDisplay::new(
        View::new(&job, &names).with_target_elsewhere(is_elsewhere),
        arguments.status_interval,
    );
    let measured = measure(&job, &backends, &names, &watch, &mut |sample| live.observe(sample));
    live.clear();
    let result = measured.map_err(Failure::wrong_input)?;
    let verdict = verdict(&result, stop.load(Ordering::Relaxed));
    match (outputs.write(&result), verdict) {
        (Ok(()), verdict) => verdict,
        (Err(unwritten), Ok(_)) => Err(unwritten),
        (Err(unwritten), Err(verdict)) => {
            Err(Failure { text: format!("{}; {}", verdict.text, unwritten.text), ..verdict })
        }
    }
}

impl BenchArguments {
    fn job(&self) -> Result<Job, Failure> {
        let style = match (self.reads, self.writes) {
            (None, None) if self.sgp => Style::Shared,
            (None, None) if self.bidirectional => Style::Bidirectional,
            (None, None) => Style::Depth,
            (reads, writes) => Style::Outstanding { reads: reads.unwrap_or(0), writes: writes.unwrap_or(0) },
        };
        let cores = self.cores.as_deref().map(parse_cores).transpose();
        Ok(Job {
            rw: match self.rw {
                RwWord::Read => Rw::Read,
                RwWord::Write => Rw::Write,
                RwWord::RandRead => Rw::RandRead,
                RwWord::RandWrite => Rw::RandWrite,
                RwWord::RandRw => Rw::RandRw,
                RwWord::Trim => Rw::Trim,
            },
            rwmixread: self.rwmixread,
            bs: self.bs,
            iodepth: self.iodepth,
            numjobs: self.numjobs,
            runtime: self.runtime,
            ramp: self.ramp,
            rate: self.rate,
            rate_iops: self.rate_iops,
            offset: self.offset,
            size: self.size,
            verify: self.verify,
            seed: self.seed,
            buffer_compress: self.buffer_compress,
            style,
            cores: cores
                .map_err(|error| Failure::wrong_input(format!("--cores: {error}")))?
                .unwrap_or_default(),
            poll: match self.poll {
                PollWord::Adaptive => Poll::Adaptive,
                PollWord::Always => Poll::Always,
                PollWord::Never => Poll::Never,
            },
            digests: (self.header_digest, self.data_digest),
            immediate_data: !self.no_immediate_data,
        })
    }

    /// Checks for errors that can be found before any target is touched.
    fn check(&self, job: &Job) -> Result<(), Failure> {
        check(job, self.targets.len()).map_err(Failure::wrong_input)?;
        let of_iscsi = [
            (self.header_digest, "--header-digest"),
            (self.data_digest, "--data-digest"),
            (self.no_immediate_data, "--no-immediate-data"),
        ];
        let has_url = self.targets.iter().any(|text| Url::is_meant(text));
        if let Some((_, option)) = of_iscsi.iter().find(|(is_given, _)| *is_given && !has_url) {
            let text =
                format!("{option} applies to iSCSI targets, and no target is an iSCSI URL; leave it out");
            return Err(Failure::wrong_input(text));
        }
        match self.target_pid {
            Some(pid) if !Path::new(&format!("/proc/{pid}")).exists() => {
                let text =
                    format!("--target-pid: there is no process {pid}; find the target's ID with pidof");
                Err(Failure::wrong_input(text))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The network path to the first target that has one.
    fn portal(&self) -> Option<SocketAddr> {
        let url = self.targets.iter().find_map(|text| Url::given(text).ok())?;
        initiator::resolve(&url).ok()?.first()?.address()
    }

    fn cpu_source(&self) -> Result<Option<CpuSource>, Failure> {
        let Some(name) = &self.target_admin else { return Ok(self.target_pid.map(CpuSource::Process)) };
        let admin = AdminArguments::of_target(name, self.admin_ca.clone());
        Ok(Some(CpuSource::Admin(AdminClient::open(admin).map_err(Failure::wrong_input)?)))
    }
}

impl Admin for AdminArguments {
    fn get(&self, path: &str) -> Result<String, String> {
        AdminArguments::get(self, path).and_then(Answer::text).map_err(|failure| failure.text)
    }
}

/// Opens a target. With `guard` one that contains data is refused.
fn opened(text: &str, job: &Job, guard: bool) -> Result<Opened, Failure> {
    let is_new = !Url::is_meant(text) && !text.contains(':') && !Path::new(text).exists();
    let create = job.size.filter(|_| is_new && writes(job)).and_then(|size| size.checked_add(job.offset));
    let target = open(text, &TargetOptions { create, ..TargetOptions::of(job) }).map_err(|error| {
        let hint =
            if is_new && writes(job) && create.is_none() { " (--size creates a new file)" } else { "" };
        Failure::wrong_input(format!("{error}{hint}"))
    })?;
    if guard && let Some(content) = content(&target).map_err(Failure::failed)? {
        let text = format!(
            "{}: it holds {content}, which writing would destroy; add --yes to overwrite it, or name another target",
            target.name
        );
        return Err(Failure::wrong_input(text));
    }
    Ok(target)
}

/// Whether the run succeeded: scripts check the exit status.
fn verdict(result: &RunResult, is_interrupted: bool) -> Result<String, Failure> {
    let errors: u64 = result.streams().map(|stream| stream.errors).sum();
    let bad = result.verify.map_or(0, |counts| counts.bad());
    match (bad, errors) {
        (1.., _) => Err(Failure::failed(format!("{bad} blocks differ from what was written"))),
        (0, 1..) => Err(Failure::failed(format!("{errors} operations failed"))),
        (0, 0) if is_interrupted => {
            let text = format!("interrupted after {:.1} s of measurement", result.seconds);
            Err(Failure { text, status: INTERRUPTED as u8 })
        }
        (0, 0) if result.verify.is_some_and(|counts| counts.checked == 0) => Err(Failure::failed(
            "nothing was verified: no block was written and read back; choose a longer --runtime",
        )),
        (0, 0) => Ok(String::new()),
    }
}

fn parse_block(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text)?;
    u32::try_from(bytes)
        .map_err(|_| format!("{} is too much for one operation; choose a smaller block", format_size(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArguments,
    }

    fn job(arguments: &str) -> Job {
        let words = ["bench", "ram:1G"].into_iter().chain(arguments.split_whitespace());
        Line::try_parse_from(words).unwrap().bench.job().unwrap_or_else(|failure| panic!("{}", failure.text))
    }

    #[test]
    fn without_options_the_job_is_the_default() {
        assert_eq!(job(""), Job::default());
    }

    #[test]
    fn options_are_named_as_in_fio() {
        let wanted = Job {
            rw: Rw::RandRw,
            rwmixread: 70,
            bs: 65_536,
            iodepth: 8,
            numjobs: 2,
            runtime: Duration::from_secs(120),
            ramp: Duration::from_millis(500),
            rate: Some(100 << 20),
            offset: 1 << 20,
            size: Some(1 << 30),
            verify: true,
            seed: 7,
            buffer_compress: 30,
            cores: vec![0],
            poll: Poll::Always,
            digests: (true, true),
            immediate_data: false,
            ..Job::default()
        };
        let line = "--rw randrw --rwmixread 70 --bs 64K --iodepth 8 --numjobs 2 --runtime 2m --ramp 500ms --rate 100M \
                    --offset 1M --size 1G --verify --seed 7 --buffer-compress 30 --cores 0 --poll always \
                    --header-digest --data-digest --no-immediate-data";
        assert_eq!(job(line), wanted);
        assert_eq!(job("--rate-iops 1000").rate_iops, Some(1000));
    }

    #[test]
    fn styles_are_chosen_by_their_own_options() {
        assert_eq!(job("--reads 4 --writes 2").style, Style::Outstanding { reads: 4, writes: 2 });
        assert_eq!(job("--writes 2").style, Style::Outstanding { reads: 0, writes: 2 });
        assert_eq!(job("--sgp --rw read").style, Style::Shared);
        assert_eq!(job("--bidirectional").style, Style::Bidirectional);
    }
}
