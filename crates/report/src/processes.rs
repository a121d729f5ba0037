//! The real bed: it starts targets as separate processes, measures them, and stops them again.

mod ceiling;
mod files;

use super::matrix::Row;
use super::plan::{Kind, Link, Store, Transport, show_poll};
use super::testbed::{Fact, Measured, Testbed};
use bench::job::{Job, Rw, Style};
use bench::result::Sample;
use bench::run::{CpuSource, Watch, run, writes};
use bench::target::{Opened, TargetOptions, open};
use config::{Url, redact_all, show_cores};
use files::Files;
use lab::vblade::{self, Address};
use lab::{Daemon, IN_ORDER, Packages, Place, Spdk, Tgt, Vblade};
use reactor::topology::usable_cores;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Starts `lunette serve`, or a peer, and measures it.
#[derive(Debug)]
pub struct ProcessTestbed {
    program: PathBuf,
    files: Files,
    packages: Packages,
    stop: Arc<AtomicBool>,
}

/// The targets started for one row; they are stopped when this is dropped.
struct Started {
    /// One for each LUN, as opened by the initiator.
    targets: Vec<String>,
    /// The target's process, for its CPU time.
    pid: Option<u32>,
    commands: Vec<String>,
    /// Stopped in list order: the front one first.
    daemons: Vec<Daemon>,
    /// Stopped after the daemons.
    peer: Option<Tgt>,
    vblade: Option<Vblade>,
    spdk: Option<Spdk>,
    /// Removed last.
    place: Place,
}

impl ProcessTestbed {
    /// `program`: this program, which is also the target. LUN files are kept in `directory` while the report
    /// is made. Setting `stop` ends the run in progress.
    pub fn new(program: &Path, directory: &Path, stop: Arc<AtomicBool>) -> ProcessTestbed {
        let (files, packages) = (Files::new(directory), Packages::new(directory));
        ProcessTestbed { program: program.into(), files, packages, stop }
    }

    fn start(&mut self, row: &Row) -> Result<Started, String> {
        let place = Place::new(self.packages.tools(), row.target.link)?;
        let (targets, commands, daemons) = (Vec::new(), Vec::new(), Vec::new());
        let mut started =
            Started { targets, pid: None, commands, daemons, peer: None, vblade: None, spdk: None, place };
        match (&row.target.kind, row.target.transport) {
            (Kind::Url(url), _) => started.targets.push(url.clone()),
            (Kind::Lunette, Transport::Local) => {
                for lun in 0..row.luns {
                    started.targets.push(self.files.local(&row.target.store, lun)?);
                }
            }
            (Kind::Lunette, transport) => {
                for lun in 0..row.luns {
                    started.targets.push(self.files.lun(&row.target.store, lun)?);
                }
                let is_front = row.target.hops == 0;
                self.start_lunette(row, if is_front { transport } else { Transport::Iscsi }, &mut started)?;
                self.stand_before(row, &mut started)?;
            }
            (Kind::Tgt, _) => {
                self.start_tgt(row, &mut started)?;
                self.stand_before(row, &mut started)?;
            }
            (Kind::Vblade, _) => self.start_vblade(row, &mut started)?,
            (Kind::Spdk(program), _) => {
                let mut cores = row.scheduling.target_cores.clone();
                if cores.is_empty() {
                    cores = usable_cores().map_err(|error| format!("cores: {error}"))?;
                }
                let spdk = Spdk::start(&started.place, program, &cores, &sizes(row))?;
                started.commands.extend_from_slice(spdk.commands());
                started.targets = spdk.units(row.luns);
                started.pid = Some(spdk.pid());
                started.spdk = Some(spdk);
            }
            (Kind::Ceiling, _) => ceiling::start(&self.program, row, &mut started)?,
        }
        started.commands.splice(0..0, started.place.commands().to_vec());
        let made = started.place.commands().len();
        if is_fresh(row) && row.target.transport != Transport::Local {
            for target in &started.targets {
                let opened = open(target, &TargetOptions::default()).map_err(|error| error.to_string())?;
                started.commands.push(self.fill(&opened, target)?);
            }
        }
        started.place.slow_down()?;
        started.commands.extend_from_slice(&started.place.commands()[made..]);
        Ok(started)
    }

    /// Starts the targets between the initiator and the target. The row's transport leads to the front one.
    fn stand_before(&self, row: &Row, started: &mut Started) -> Result<(), String> {
        (1..=row.target.hops).try_for_each(|hop| {
            let is_front = hop == row.target.hops;
            self.start_lunette(row, if is_front { row.target.transport } else { Transport::Iscsi }, started)
        })
    }

    /// Starts a Lunette whose units are those started so far, reached by this transport.
    fn start_lunette(&self, row: &Row, transport: Transport, started: &mut Started) -> Result<(), String> {
        let (scheduling, place) = (&row.scheduling, &started.place);
        let mut arguments = vec!["serve".to_string(), "--listen".into(), format!("{}:0", place.address())];
        if transport == Transport::Srp {
            arguments.extend(["--srp".into(), format!("{}:0", place.address())]);
        }
        let addresses = match transport {
            Transport::Aoe => vblade::addresses(place, row.luns)?,
            Transport::Iscsi | Transport::Iser | Transport::Srp | Transport::Local => Vec::new(),
        };
        if let Some(address) = addresses.first() {
            arguments.extend(["--aoe".into(), address.inside.into()]);
        }
        for (number, lun) in started.targets.iter().enumerate() {
            let also =
                addresses.get(number).map_or_else(String::new, |address| format!(",aoe={}", address.unit));
            arguments.extend(["--lun".into(), format!("{lun}{also}")]);
        }
        arguments.extend(["--poll".into(), show_poll(scheduling.target_poll).into()]);
        if !scheduling.target_cores.is_empty() {
            arguments.extend(["--cores".into(), show_cores(&scheduling.target_cores)]);
        }
        arguments.extend(["--log-level".into(), "warn".into()]);
        let line = [place.prefix(&[]), vec!["lunette".into()], arguments.clone()].concat().join(" ");
        let daemon = Daemon::start(place.command(&self.program, &[], IN_ORDER).args(arguments), &line)?;
        started.commands.push(line);
        started.targets = match transport {
            Transport::Aoe => addresses.iter().map(Address::url).collect(),
            Transport::Iscsi | Transport::Iser | Transport::Srp | Transport::Local => {
                daemon.units(row.luns, transport.scheme().ok_or("it needs a transport")?)?
            }
        };
        started.pid = Some(daemon.pid());
        started.daemons.insert(0, daemon);
        Ok(())
    }

    fn start_tgt(&mut self, row: &Row, started: &mut Started) -> Result<(), String> {
        let mut units = Vec::new();
        for lun in 0..row.luns {
            units.push(self.files.path(&row.target.store, lun)?);
        }
        // If other targets are in front of it, the initiator's digests end there.
        let digests = if row.target.hops == 0 { row.job.digests } else { (false, false) };
        let tgt = Tgt::start(&started.place, &row.scheduling.target_cores, &units, digests)?;
        started.commands.extend_from_slice(tgt.commands());
        started.targets = tgt.units(row.luns);
        started.pid = Some(tgt.pid());
        started.peer = Some(tgt);
        Ok(())
    }

    fn start_vblade(&mut self, row: &Row, started: &mut Started) -> Result<(), String> {
        let path = self.files.path(&row.target.store, 0)?.ok_or("vblade serves only files")?;
        let [address] = &*vblade::addresses(&started.place, 1)? else { return Err("it has one LUN".into()) };
        let vblade = Vblade::start(&started.place, &row.scheduling.target_cores, address, &path)?;
        started.commands.push(vblade.line().into());
        started.targets = vec![address.url()];
        started.pid = Some(vblade.pid());
        started.vblade = Some(vblade);
        Ok(())
    }

    /// Writes everything once, and returns an equivalent command.
    fn fill(&self, target: &Opened, text: &str) -> Result<String, String> {
        let job = Job {
            rw: Rw::Write,
            bs: 1 << 18,
            iodepth: 8,
            runtime: Duration::from_secs(600),
            ramp: Duration::ZERO,
            ..Job::default()
        };
        let whole = Watch { stop: Arc::new(AtomicBool::new(false)), ..Watch::default() };
        let (size, mut bytes, mut at) = (target.size as f64, 0.0, 0.0);
        let end = Arc::clone(&whole.stop);
        let (backends, names) = ([target.backend.clone()], [target.name.clone()]);
        let result = run(&job, &backends, &names, &whole, &mut |sample| {
            bytes += sample.bytes_per_second * (sample.at - at);
            at = sample.at;
            end.store(bytes >= size || self.stop.load(Ordering::Relaxed), Ordering::Relaxed);
        });
        match result.map_err(|error| error.to_string())?.first_errors.first() {
            Some(error) => Err(format!("{text}: it cannot be filled: {error}")),
            None => Ok(format!("{} # ended once everything was written", command(&[text.into()], &job))),
        }
    }
}

/// Whether what a row measures must be written first: memory that was never written is not really read.
fn is_fresh(row: &Row) -> bool {
    matches!(row.target.kind, Kind::Lunette | Kind::Spdk(_)) && matches!(row.target.store, Store::Ram(_))
}

/// Bytes of each LUN.
fn sizes(row: &Row) -> Vec<u64> {
    (0..row.luns).filter_map(|_| row.target.store.size()).collect()
}

impl ProcessTestbed {
    /// Starts a row's target, measures it, and stops it.
    fn measure_started(
        &mut self,
        row: &Row,
        job: &Job,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<Measured, String> {
        let started = self.start(row)?;
        let options = TargetOptions::of(job);
        let name = &options.initiator.initiator_name;
        let targets: Vec<String> = (0..row.initiators)
            .flat_map(|initiator| started.targets.iter().map(move |target| (initiator, target)))
            .map(|(initiator, target)| summed(as_initiator(target, initiator, name), row))
            .collect();
        // With iWARP the URL requests CRCs.
        let digests = if row.target.transport.is_iwarp() { (false, false) } else { job.digests };
        let options = TargetOptions { digests, ..options };
        let opened = targets.iter().map(|target| open(target, &options).map_err(|error| error.to_string()));
        let opened = opened.collect::<Result<Vec<Opened>, String>>()?;
        let is_local = row.target.transport == Transport::Local;
        if is_fresh(row) && is_local {
            // Memory of this process, which is what is being measured.
            opened
                .iter()
                .zip(&targets)
                .try_for_each(|(opened, target)| self.fill(opened, target).map(drop))?;
        }
        let names: Vec<String> = opened.iter().map(|target| target.name.clone()).collect();
        let backends: Vec<_> = opened.into_iter().map(|target| target.backend).collect();
        let target_cpu = started.pid.map(CpuSource::Process);
        let watch = Watch { stop: Arc::clone(&self.stop), target_cpu, ..Watch::default() };
        let result = run(job, &backends, &names, &watch, observe).map_err(|error| error.to_string())?;
        drop(backends);
        if result.iops() == 0.0 {
            let reason = result.first_errors.first().map_or("no operation finished", String::as_str);
            return Err(reason.to_string());
        }
        let mut commands = started.commands;
        let after = if is_fresh(row) && is_local { " # in memory that was written once before" } else { "" };
        commands.push(command(&targets, job) + after);
        for mut daemon in started.daemons {
            daemon.stop()?;
        }
        if let Some(mut tgt) = started.peer {
            tgt.stop()?;
        }
        if let Some(mut vblade) = started.vblade {
            vblade.stop()?;
        }
        if let Some(mut spdk) = started.spdk {
            spdk.stop()?;
        }
        Ok(Measured { result, commands: commands.iter().map(|command| redact_all(command)).collect() })
    }

    fn prepare_tgt(&mut self) -> Result<Fact, String> {
        self.packages.need("tgt", &["tgtd", "tgtadm"])?;
        let version = Tgt::version(self.packages.tools())?;
        let units = "null LUNs of 1T, RAM as files in /dev/shm, files through the page cache";
        Ok(Fact::new("tgt", format!("{version}; it never spins; {units}")))
    }

    /// With the largest size that any row needs.
    fn prepare_spdk(&self, program: &Path, rows: &[Row]) -> Result<Fact, String> {
        let theirs = rows.iter().filter(|row| row.target.kind == Kind::Spdk(program.into()));
        let most = theirs.map(sizes).max_by_key(|sizes| sizes.iter().sum::<u64>()).unwrap_or_default();
        let version = Spdk::prepare(&Place::new(self.packages.tools(), None)?, program, &most)?;
        let units = "RAM as Malloc bdevs on huge pages, which are filled before";
        Ok(Fact::new(
            "SPDK",
            format!("{version}; it spins on each of its cores in every scheduling; {units}"),
        ))
    }

    fn prepare_vblade(&mut self) -> Result<Fact, String> {
        self.packages.need("vblade", &["vblade"])?;
        let units = "RAM as files in /dev/shm, files through the page cache";
        Ok(Fact::new("vblade", format!("one process with one thread; it never spins; {units}")))
    }

    /// Creates a link to see whether that works.
    fn prepare_link(&self, link: Link) -> Result<Fact, String> {
        let mut place = Place::new(self.packages.tools(), Some(link))?;
        place.slow_down()?;
        Ok(match link {
            Link::Plain => Fact::new("Link", "a veth pair without a limit"),
            Link::Rate(_) => {
                let ends = "both ends of a veth pair";
                Fact::new(format!("Link of {link}"), format!("{ends}: {}", place.discipline()?))
            }
        })
    }
}

impl Testbed for ProcessTestbed {
    fn prepare(&mut self, rows: &[Row]) -> Result<Vec<Fact>, Vec<String>> {
        let mut faults = faults_of_cores(rows);
        let mut facts = Vec::new();
        let has_peer = rows.iter().any(|row| row.target.kind == Kind::Tgt);
        let mut links: Vec<Link> = rows.iter().filter_map(|row| row.target.link).collect();
        links.sort_unstable();
        links.dedup();
        let starts =
            |row: &Row| !matches!(row.target.kind, Kind::Url(_)) && row.target.transport != Transport::Local;
        if rows.iter().any(starts) {
            faults.extend(self.packages.need("util-linux", &["setpriv", "taskset"]).err());
        }
        let own = rows.iter().filter(|row| row.target.kind == Kind::Lunette);
        match self.files.facts(&own.map(|row| &row.target.store).collect::<Vec<_>>()) {
            Ok(held) => facts.extend(held),
            Err(fault) => faults.push(fault),
        }
        if has_peer {
            match self.prepare_tgt() {
                Ok(fact) => facts.push(fact),
                Err(fault) => faults.push(fault),
            }
        }
        if rows.iter().any(|row| row.target.kind == Kind::Vblade) {
            match self.prepare_vblade() {
                Ok(fact) => facts.push(fact),
                Err(fault) => faults.push(fault),
            }
        }
        let mut programs: Vec<&PathBuf> = Vec::new();
        for row in rows {
            if let Kind::Spdk(program) = &row.target.kind
                && !programs.contains(&program)
            {
                programs.push(program);
            }
        }
        for program in programs {
            match self.prepare_spdk(program, rows) {
                Ok(fact) => facts.push(fact),
                Err(fault) => faults.push(fault),
            }
        }
        if !links.is_empty() {
            match self.packages.need("iproute2", &["ip", "tc"]) {
                Ok(()) => links.into_iter().for_each(|link| match self.prepare_link(link) {
                    Ok(fact) => facts.push(fact),
                    Err(fault) => faults.push(fault),
                }),
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() { Ok(facts) } else { Err(faults) }
    }

    fn measure(
        &mut self,
        row: &Row,
        job: &Job,
        observe: &mut dyn FnMut(&Sample),
    ) -> Result<Measured, String> {
        let measured = self.measure_started(row, job, observe);
        // By now the target has been stopped, even if it failed.
        let settled = self.files.settle(&row.target.store);
        measured.and_then(|measured| settled.map(|()| measured))
    }
}

/// A target's name for one of the initiators, counted from 0: all but the first have their own initiator
/// names.
fn as_initiator(target: &str, initiator: u32, name: &str) -> String {
    if initiator == 0 || !Url::is_meant(target) {
        return target.into();
    }
    with_option(target, &format!("initiator_name={name}:{initiator}"))
}

/// The URL of a row's target, with iWARP CRCs if the row has digests. The ceiling has neither.
fn summed(target: String, row: &Row) -> String {
    let is_asked = row.target.transport.is_iwarp() && row.job.digests != (false, false);
    match is_asked && row.target.kind != Kind::Ceiling {
        true => with_option(&target, "crc=on"),
        false => target,
    }
}

fn with_option(url: &str, option: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{option}")
}

/// A word of a command, quoted for a shell.
fn quoted(word: &String) -> String {
    if word.contains([' ', '?', '&', ';', '*']) { format!("'{word}'") } else { word.clone() }
}

/// The command for the same measurement.
fn command(targets: &[String], job: &Job) -> String {
    let Job { rwmixread, bs, iodepth, numjobs, seed, .. } = job;
    let rw = serde_json::to_value(job.rw).ok().and_then(|word| word.as_str().map(String::from));
    let rw = rw.unwrap_or_default();
    let seconds = |time: Duration| format!("{}ms", time.as_millis());
    let (runtime, ramp) = (seconds(job.runtime), seconds(job.ramp));
    let mut command = format!(
        "lunette bench {} --rw {rw} --bs {bs} --iodepth {iodepth} --numjobs {numjobs} --runtime {runtime} --ramp {ramp} \
         --seed {seed} --poll {}",
        targets.iter().map(quoted).collect::<Vec<_>>().join(" "),
        show_poll(job.poll)
    );
    if job.rw == Rw::RandRw {
        command.push_str(&format!(" --rwmixread {rwmixread}"));
    }
    if !job.cores.is_empty() {
        command.push_str(&format!(" --cores {}", show_cores(&job.cores)));
    }
    let is_remote = targets.iter().any(|target| Url::is_meant(target));
    let is_iscsi = targets.iter().any(|target| target.starts_with("iscsi://"));
    let switches = [
        (job.style == Style::Shared, " --sgp"),
        (job.style == Style::Bidirectional, " --bidirectional"),
        (is_iscsi && job.digests.0, " --header-digest"),
        (is_iscsi && job.digests.1, " --data-digest"),
        (is_remote && !job.immediate_data, " --no-immediate-data"),
        (writes(job), " --yes"),
    ];
    switches.iter().filter(|(on, _)| *on).for_each(|(_, switch)| command.push_str(switch));
    command
}

/// Cores used by a row that this process may not use.
fn faults_of_cores(rows: &[Row]) -> Vec<String> {
    let mut faults = Vec::new();
    let usable = usable_cores().unwrap_or_default();
    for row in rows {
        let cores = row.scheduling.cores.iter().chain(&row.scheduling.target_cores);
        for core in cores.filter(|core| !usable.contains(core)) {
            let fault = format!(
                "scheduling `{}`: core {core} may not be used; choose from the available cores: {}",
                row.scheduling.name,
                show_cores(&usable)
            );
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_shows_all_that_is_not_the_default() {
        let base = Job { rw: Rw::RandWrite, ..Job::default() };
        let job = Job { digests: (true, true), immediate_data: false, cores: vec![1], ..base };
        let url = "iscsi://127.0.0.1:4000/iqn.2026-11.io.lunette:disk/0";
        let targets = [0, 1].map(|initiator| as_initiator(url, initiator, "iqn.2026-11.io.lunette:me"));
        let line = command(&targets, &job);
        let start =
            format!("lunette bench {url} '{url}?initiator_name=iqn.2026-11.io.lunette:me:1' --rw randwrite ");
        assert!(line.starts_with(&start), "{line}");
        let end = " --cores 1 --header-digest --data-digest --no-immediate-data --yes";
        assert!(line.ends_with(end), "{line}");
        let [iser, srp] = ["iser://h/iqn.x:y/0?crc=on", "srp://h/0000000000000001/0"].map(String::from);
        let iwarp = command(&[iser, srp], &job);
        assert!(iwarp.contains(" 'iser://h/iqn.x:y/0?crc=on' srp://h/"), "{iwarp}");
        assert!(iwarp.ends_with(" --cores 1 --no-immediate-data --yes"), "the URL asks for sums: {iwarp}");
        let local = command(&["ram:1G".into()], &job);
        assert!(local.ends_with(" --cores 1 --yes"), "what is not behind a transport has neither: {local}");
        assert_eq!(
            as_initiator("iscsi://h/iqn.x:y/0?a=b", 2, "me"),
            "iscsi://h/iqn.x:y/0?a=b&initiator_name=me:2"
        );
    }
}
