//! The bed that is real: it starts targets as processes of their own, measures them, and ends them again.

mod ceiling;
mod daemon;
mod files;

use super::bed::{Bed, Fact, Measured};
use super::matrix::Row;
use super::plan::{Kind, Store, Transport, redact, show_poll};
use crate::job::{Job, Rw, Style};
use crate::result::Sample;
use crate::run::{Watch, run};
use crate::target::{Opened, TargetOptions, open};
use daemon::Daemon;
use engine::config::show_cores;
use files::Files;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Starts `lunette serve` and measures it.
#[derive(Debug)]
pub struct LiveBed {
    program: PathBuf,
    files: Files,
    stop: Arc<AtomicBool>,
}

/// What was started for one row; it ends when this is dropped.
struct Started {
    /// One for each LUN: what the initiator opens.
    targets: Vec<String>,
    /// The process whose CPU time is the target's.
    pid: Option<u32>,
    commands: Vec<String>,
    /// Ended in the order of the list: the front first.
    daemons: Vec<Daemon>,
}

impl LiveBed {
    /// `program`: this one, which also serves. Files of LUNs are kept in `directory` while the report is made. Setting
    /// `stop` ends the run in progress.
    pub fn new(program: &Path, directory: &Path, stop: Arc<AtomicBool>) -> LiveBed {
        LiveBed { program: program.into(), files: Files::new(directory), stop }
    }

    fn start(&mut self, row: &Row) -> Result<Started, String> {
        let mut started =
            Started { targets: Vec::new(), pid: None, commands: Vec::new(), daemons: Vec::new() };
        match (&row.target.kind, row.target.transport) {
            (Kind::Url(url), _) => started.targets.push(url.clone()),
            (Kind::Lunette, Transport::Local) => {
                for lun in 0..row.luns {
                    started.targets.push(self.files.local(&row.target.store, lun)?);
                }
            }
            (Kind::Lunette, Transport::Iscsi) => self.start_lunette(row, &mut started)?,
            (Kind::Ceiling, _) => ceiling::start(&self.program, row, &mut started)?,
            (Kind::Tgt, _) => return Err("not yet".into()),
        }
        Ok(started)
    }

    /// The target, and those that stand before it.
    fn start_lunette(&mut self, row: &Row, started: &mut Started) -> Result<(), String> {
        let mut luns = Vec::new();
        for lun in 0..row.luns {
            luns.push(self.files.lun(&row.target.store, lun)?);
        }
        for _ in 0..=row.target.hops {
            let scheduling = &row.scheduling;
            let mut arguments = vec!["serve".to_string(), "--listen".into(), "127.0.0.1:0".into()];
            luns.iter().for_each(|lun| arguments.extend(["--lun".into(), lun.clone()]));
            arguments.extend(["--poll".into(), show_poll(scheduling.target_poll).into()]);
            if !scheduling.target_cores.is_empty() {
                arguments.extend(["--cores".into(), show_cores(&scheduling.target_cores)]);
            }
            arguments.extend(["--log-level".into(), "warn".into()]);
            let daemon = Daemon::start(&self.program, &arguments)?;
            started.commands.push(format!("lunette {}", arguments.join(" ")));
            luns = daemon.units(row.luns)?;
            started.pid = Some(daemon.pid());
            started.daemons.insert(0, daemon);
        }
        started.targets = luns;
        Ok(())
    }

    /// Writes everything once: memory that was never written is not really read.
    fn fill(&self, row: &Row, targets: &[String]) -> Result<(), String> {
        let fresh = row.target.kind == Kind::Lunette && matches!(row.target.store, Store::Ram(_));
        if !fresh {
            return Ok(());
        }
        for name in targets {
            let job = Job {
                rw: Rw::Write,
                bs: 1 << 18,
                iodepth: 8,
                runtime: Duration::from_secs(600),
                ramp: Duration::ZERO,
                ..Job::default()
            };
            let opened = open(name, &TargetOptions::of(&job)).map_err(|error| error.to_string())?;
            let whole = Watch { stop: Arc::new(AtomicBool::new(false)), target_pid: None };
            let (size, mut bytes, mut at) = (opened.size as f64, 0.0, 0.0);
            let end = Arc::clone(&whole.stop);
            let result = run(&job, &[opened.backend], &[opened.name], &whole, &mut |sample| {
                bytes += sample.bytes_per_second * (sample.at - at);
                at = sample.at;
                end.store(bytes >= size || self.stop.load(Ordering::Relaxed), Ordering::Relaxed);
            });
            if let Some(error) = result.map_err(|error| error.to_string())?.first_errors.first() {
                return Err(format!("{name}: it cannot be filled: {error}"));
            }
        }
        Ok(())
    }
}

impl Bed for LiveBed {
    fn prepare(&mut self, rows: &[Row]) -> Result<Vec<Fact>, Vec<String>> {
        let mut faults = Vec::new();
        let usable = usable_cores();
        for row in rows {
            let cores = row.scheduling.cores.iter().chain(&row.scheduling.target_cores);
            for core in cores.filter(|core| !usable.contains(core)) {
                let fault = format!(
                    "scheduling `{}`: core {core} may not be used; cores that may be used here: {}",
                    row.scheduling.name,
                    show_cores(&usable)
                );
                if !faults.contains(&fault) {
                    faults.push(fault);
                }
            }
        }
        if faults.is_empty() { Ok(Vec::new()) } else { Err(faults) }
    }

    fn measure(
        &mut self,
        row: &Row,
        job: &Job,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<Measured, String> {
        let started = self.start(row)?;
        self.fill(row, &started.targets)?;
        let mut opened: Vec<Opened> = Vec::new();
        for initiator in 0..row.initiators {
            let options = options(row, job, initiator);
            for target in &started.targets {
                opened.push(open(target, &options).map_err(|error| error.to_string())?);
            }
        }
        let names: Vec<String> = opened.iter().map(|target| target.name.clone()).collect();
        let backends: Vec<_> = opened.into_iter().map(|target| target.backend).collect();
        let watch = Watch { stop: Arc::clone(&self.stop), target_pid: started.pid };
        let result = run(job, &backends, &names, &watch, observe).map_err(|error| error.to_string())?;
        drop(backends);
        if result.iops() == 0.0 {
            let reason = result.first_errors.first().map_or("no operation finished", String::as_str);
            return Err(reason.to_string());
        }
        let mut commands = started.commands;
        commands.push(command(&names, job));
        for mut daemon in started.daemons {
            daemon.stop()?;
        }
        Ok(Measured { result, commands: commands.iter().map(|command| redact(command)).collect() })
    }
}

/// How one of the initiators opens the targets.
fn options(row: &Row, job: &Job, initiator: u32) -> TargetOptions {
    let mut options = TargetOptions::of(job);
    options.initiator.unsolicited_data = row.immediate_data;
    if initiator > 0 {
        options.initiator.initiator_name = format!("{}:{initiator}", options.initiator.initiator_name);
    }
    options
}

/// The command that measures the same.
fn command(targets: &[String], job: &Job) -> String {
    let Job { rwmixread, bs, iodepth, numjobs, seed, .. } = job;
    let rw = serde_json::to_value(job.rw).ok().and_then(|word| word.as_str().map(String::from));
    let rw = rw.unwrap_or_default();
    let seconds = |time: Duration| format!("{}ms", time.as_millis());
    let (runtime, ramp) = (seconds(job.runtime), seconds(job.ramp));
    let mut command = format!(
        "lunette bench {} --rw {rw} --bs {bs} --iodepth {iodepth} --numjobs {numjobs} --runtime {runtime} --ramp {ramp} \
         --seed {seed} --poll {}",
        targets.join(" "),
        show_poll(job.poll)
    );
    if job.rw == Rw::RandRw {
        command.push_str(&format!(" --rwmixread {rwmixread}"));
    }
    if !job.cores.is_empty() {
        command.push_str(&format!(" --cores {}", show_cores(&job.cores)));
    }
    let switches = [
        (job.style == Style::Shared, " --sgp"),
        (job.style == Style::Bidirectional, " --bidirectional"),
        (job.digests.0, " --header-digest"),
        (job.digests.1, " --data-digest"),
        (job.rw != Rw::Read && job.rw != Rw::RandRead || job.style == Style::Bidirectional, " --yes"),
    ];
    switches.iter().filter(|(on, _)| *on).for_each(|(_, switch)| command.push_str(switch));
    command
}

/// Cores that this process may use.
fn usable_cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or_else(
        |_| Vec::new(),
        |set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect(),
    )
}
