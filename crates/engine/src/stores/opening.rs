//! Opening the stores of LUNs: all at once, so that a slow one delays no other.

use super::late::LateStore;
use super::saved_ports::SavedPorts;
use crate::gateway_handle::GatewayHandle;
use crate::state::files::System;
use crate::this_machine::{IMAGE_REMEDY, image_problem};
use config::memory::Room;
use config::{Config, HugePages, Lun, Protocol, StoreSpec, Url};
use initiator::remote::{self, RemoteOptions};
use initiator::{InitiatorPort, Options};
use reactor::io::Io;
use reactor::memory::Pages;
use reactor::uring::Uring;
use scsi::Space;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};
use store::file::Asked;
use store::lane::{Backend, Store};
use store::{Claim, OpenError, nbd, rbd};

/// How long startup waits for stores. The others are served while the rest are still opening.
const PATIENCE: Duration = Duration::from_secs(2);

/// The store of a LUN, for cores whose kernel is `I`.
pub(crate) struct Opened<I: Io = Uring> {
    pub(crate) store: Arc<dyn Backend<I>>,
    /// Why it has not opened yet.
    pub(crate) failed: Option<String>,
    /// How often it lost data that was not flushed.
    pub(crate) losses: Arc<AtomicU64>,
    /// The space that it takes.
    pub(crate) space: Arc<Space>,
    /// What connects it with its thread, if gateways share its unit.
    pub(crate) gateway: Option<Arc<GatewayHandle>>,
}

impl<I: Io> Clone for Opened<I> {
    fn clone(&self) -> Opened<I> {
        let (store, failed) = (self.store.clone(), self.failed.clone());
        let (losses, space, gateway) = (self.losses.clone(), self.space.clone(), self.gateway.clone());
        Opened { store, failed, losses, space, gateway }
    }
}

/// What stores need to know about the daemon.
#[derive(Clone)]
pub(crate) struct About {
    state_dir: Option<PathBuf>,
    cores: usize,
    /// Serial numbers of remote units that this process has opened: nothing sent by an earlier process is
    /// under way there.
    opened: Arc<Mutex<BTreeSet<String>>>,
    /// Files may be larger than the configured size.
    takes_larger: bool,
    /// The time within which another gateway takes over, if there are any.
    takeover: Option<Duration>,
}

impl About {
    /// For a daemon of this configuration.
    pub(crate) fn of(config: &Config) -> About {
        let (state_dir, cores) = (config.state_dir.clone(), config.cores.len());
        let takeover = config.cluster.as_ref().map(|cluster| cluster.takeover);
        About { state_dir, cores, opened: Arc::default(), takes_larger: true, takeover }
    }

    /// For a LUN that was not served before: nobody has seen its file yet, so its size has to be as
    /// configured.
    pub(crate) fn of_new(&self) -> About {
        About { takes_larger: false, ..self.clone() }
    }

    fn opened(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store of a unit has closed: its next one takes over what its sessions sent, as the next process
    /// would.
    pub(crate) fn closed(&self, serial: &str) {
        self.opened().remove(serial);
    }

    fn has_opened(&self, serial: &str) -> bool {
        self.opened().contains(serial)
    }
}

type Attempt = Result<Arc<dyn Backend<Uring>>, OpenError>;

/// An attempt in progress, which yields the completed LUN.
type Pending = mpsc::Receiver<(Lun, Attempt)>;

/// Opens the stores of LUNs, and fills in what only the stores know. One that does not open takes down only
/// its own LUNs, and is retried.
pub(crate) fn open_all(luns: &mut [Lun], about: &About) -> Vec<Opened> {
    let losses: Arc<[Arc<AtomicU64>]> = luns.iter().map(|_| Arc::default()).collect();
    let gateways: Arc<[Option<Arc<GatewayHandle>>]> = luns.iter().map(GatewayHandle::of).collect();
    let (counted, joined) = (losses.clone(), gateways.clone());
    choose_pages(luns, config::memory::room());
    let own = about.clone();
    let attempts = attempt_all(luns, PATIENCE, move |index, lun| {
        open_store(&own, lun, &counted[index], joined[index].as_deref())
    });
    let each = luns.iter().zip(attempts).zip(losses.iter().zip(&*gateways));
    let opened = each.map(|((lun, (attempt, pending)), (losses, gateway))| {
        opened(about, lun, attempt, pending, losses.clone(), gateway.clone())
    });
    opened.collect()
}

/// Chooses huge pages for disks in memory that leave the choice to us, if all of them fit even when full:
/// with huge pages, a disk written here and there takes up to 512 times what is written.
fn choose_pages(luns: &mut [Lun], room: Option<Room>) {
    let mut disks: Vec<(u64, &mut HugePages)> = Vec::new();
    for lun in luns {
        match &mut lun.store {
            StoreSpec::Ram { size, huge_pages } => disks.push((*size, huge_pages)),
            StoreSpec::Null { .. }
            | StoreSpec::File { .. }
            | StoreSpec::Block { .. }
            | StoreSpec::Remote { .. }
            | StoreSpec::Nbd { .. }
            | StoreSpec::Rbd { .. } => {}
        }
    }
    let all = disks.iter().fold(0, |all: u64, (size, _)| all.saturating_add(*size));
    let fits = room.is_some_and(|room| all <= room.bytes);
    for (_, choice) in disks {
        if *choice == HugePages::Auto {
            *choice = if fits { HugePages::Always } else { HugePages::Never };
        }
    }
}

/// Opens each LUN on its own thread. Returns those that are no longer waited for.
fn attempt_all(
    luns: &mut [Lun],
    patience: Duration,
    open: impl Fn(usize, &mut Lun) -> Attempt + Clone + Send + 'static,
) -> Vec<(Attempt, Option<Pending>)> {
    let start = |(index, lun): (usize, &Lun)| {
        let (done, pending) = mpsc::channel();
        let (mut lun, open) = (lun.clone(), open.clone());
        let thread = std::thread::Builder::new().name(format!("open-{index}"));
        let started = thread.spawn(move || {
            let attempt = open(index, &mut lun);
            let _ = done.send((lun, attempt));
        });
        started.is_ok().then_some(pending)
    };
    let all: Vec<Option<Pending>> = luns.iter().enumerate().map(start).collect();
    let deadline = Instant::now() + patience;
    let wait = |(lun, pending): (&mut Lun, Option<Pending>)| {
        let fault =
            |problem, remedy: &str| OpenError { what: lun.name.clone(), problem, remedy: remedy.into() };
        let Some(pending) = pending else {
            let remedy = "raise the limit of tasks (TasksMax, ulimit -u)";
            return (Err(fault("no thread could be started for it".into(), remedy)), None);
        };
        match pending.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((found, attempt)) => {
                *lun = found;
                (attempt, None)
            }
            Err(_) => {
                let problem = format!("it could not be opened within {} seconds", patience.as_secs());
                (Err(fault(problem, "its device or server does not answer; waiting for it")), Some(pending))
            }
        }
    };
    luns.iter_mut().zip(all).map(wait).collect()
}

fn opened(
    about: &About,
    lun: &Lun,
    attempt: Attempt,
    pending: Option<Pending>,
    losses: Arc<AtomicU64>,
    gateway: Option<Arc<GatewayHandle>>,
) -> Opened {
    match attempt {
        Ok(store) => Opened { store, failed: None, losses, space: Arc::default(), gateway },
        Err(error) => {
            tracing::error!(lun = %lun.name, "the store cannot be opened, its LUNs are not ready: {error}");
            let (config, counted, pending) = (lun.clone(), losses.clone(), Mutex::new(pending));
            let (about, joined) = (about.clone(), gateway.clone());
            let opener = move |size_bytes: Option<u64>| {
                let first = pending.lock().unwrap_or_else(PoisonError::into_inner).take();
                // Nothing was reported to initiators yet, but AoE's part was already decided.
                let is_fit = |found: &Lun| config.aoe.is_none() || found.block_bytes == config.block_bytes;
                if let Some((found, attempt)) = first.and_then(|first| first.recv().ok())
                    && (attempt.is_err() || is_fit(&found))
                {
                    return attempt;
                }
                let mut lun = config.clone();
                if let (StoreSpec::File { size, .. }, Some(_)) = (&mut lun.store, size_bytes) {
                    *size = size_bytes;
                }
                if let StoreSpec::Remote { block_bytes, .. } = &mut lun.store
                    && config.aoe.is_some()
                {
                    *block_bytes = Some(config.block_bytes);
                }
                open_store(&about, &mut lun, &counted, joined.as_deref())
            };
            let store = LateStore::new(lun.store.to_string(), Box::new(opener));
            let (failed, space) = (Some(error.to_string()), Arc::default());
            Opened { store: Arc::new(store), failed, losses, space, gateway }
        }
    }
}

/// How large the file of a LUN should be. It is larger than configured if the daemon was killed between
/// growing it and recording the new size: initiators may have seen that, and rely on all of it.
fn asked(about: &About, size: Option<u64>) -> Asked {
    match size {
        None => Asked::Any,
        Some(size) if about.takes_larger => Asked::AtLeast(size),
        Some(size) => Asked::Exactly(size),
    }
}

fn warn_if_larger(name: &str, path: &Path, size: Option<u64>, found: u64) {
    let path = path.display();
    if let Some(size) = size.filter(|size| *size < found) {
        tracing::warn!(
            lun = %name,
            "{path}: it has {found} bytes instead of size = {size}, perhaps because the daemon was killed while \
             extending it; it is served as it is: set size = {found} in the configuration"
        );
    }
}

fn open_store(
    about: &About,
    lun: &mut Lun,
    losses: &Arc<AtomicU64>,
    gateway: Option<&GatewayHandle>,
) -> Attempt {
    let claim = Claim::to_serve(lun.read_only);
    Ok(match &lun.store {
        StoreSpec::Null { size } => store::open_null(*size),
        StoreSpec::Ram { size, huge_pages } => {
            let pages = match huge_pages {
                HugePages::Always => Pages::Huge,
                HugePages::Auto | HugePages::Never => Pages::Small,
            };
            store::open_ram_on(*size, pages)?
        }
        StoreSpec::File { path, size } => {
            let asked = asked(about, *size);
            let store = store::file::open_counted(path, asked, lun.block_bytes, claim, losses.clone())?;
            warn_if_larger(&lun.name, path, *size, store.traits().size_bytes);
            if let Ok(Some(format)) = store::image::format(path) {
                tracing::warn!(lun = %lun.name, "{}; {IMAGE_REMEDY}", image_problem(path, format));
            }
            store
        }
        StoreSpec::Block { path } => {
            store::file::open_block_counted(path, lun.block_bytes, claim, losses.clone())?
        }
        StoreSpec::Remote { url, block_bytes } => {
            let initiator = Options::default();
            let options = RemoteOptions {
                ports: ports(about, url, &lun.serial, &initiator)?,
                initiator,
                block_bytes: *block_bytes,
                read_only: lun.read_only,
                inherits: true,
                losses: losses.clone(),
            };
            let store = remote::open(url, &options)?;
            about.opened().insert(lun.serial.clone());
            let geometry = store.geometry();
            lun.block_bytes = geometry.block_bytes;
            lun.physical_block_bytes = geometry.physical_block_bytes.max(geometry.block_bytes);
            store
        }
        StoreSpec::Nbd { url } => {
            let losses = losses.clone();
            nbd::open(
                url,
                nbd::Options { losses, ..nbd::Options::new(Some(lun.block_bytes), lun.read_only) },
            )?
        }
        StoreSpec::Rbd { image, names_unit } => {
            let store = rbd::open(image, image_options(about, lun, *names_unit))?;
            if let Some(gateway) = gateway {
                gateway.open(store.clone());
            }
            store
        }
    })
}

fn image_options(about: &About, lun: &Lun, names_unit: bool) -> rbd::Options {
    let usual = rbd::Options::new(lun.block_bytes, lun.read_only);
    // If it takes longer, another gateway takes over, and hosts must find its paths.
    let patience = about.takeover.filter(|_| lun.is_shared()).unwrap_or(usual.give_up_after);
    rbd::Options {
        names_unit,
        access: lun.access,
        give_up_after: usual.give_up_after.min(patience),
        stuck_after: patience * 3 / 5,
        ..usual
    }
}

/// The initiator ports of a remote unit's lanes, once nothing is under way there that was sent before this
/// start. Without a state directory it is unknown which ports sent it, and over AoE no login ends it.
fn ports(about: &About, url: &Url, serial: &str, options: &Options) -> Result<Vec<InitiatorPort>, OpenError> {
    if url.protocol == Protocol::Aoe {
        return Ok(Vec::new());
    }
    let Some(dir) = &about.state_dir else {
        tracing::info!(target = %url, "without --state-dir, the target may still execute commands of a daemon that \
        was killed");
        return Ok(Vec::new());
    };
    let file = SavedPorts::new(dir, serial);
    let fault = |problem, remedy: &str| OpenError {
        what: file.path().display().to_string(),
        problem,
        remedy: remedy.into(),
    };
    let earlier = file.read(&System).map_err(|problem| {
        fault(problem, "restore the file, or remove it once the target is known to be idle")
    })?;
    let name = options.name_for(url);
    let (ports, all) = if about.has_opened(serial) {
        // Another store of this process may be using the saved ones.
        let ports = SavedPorts::choose::<Uring>(&[], name, about.cores);
        (ports.clone(), [earlier, ports].concat())
    } else {
        remote::take_over(url, options, earlier.clone())?;
        let ports = SavedPorts::choose::<Uring>(&earlier, name, about.cores);
        (ports.clone(), ports)
    };
    file.replace(Box::new(System), &all).map_err(|error| {
        let problem = format!("the initiator ports cannot be saved: {error}");
        fault(problem, "is the state directory writable?")
    })?;
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::ServeOptions;
    use std::sync::Barrier;
    use std::sync::atomic::Ordering;

    fn luns(count: usize) -> Vec<Lun> {
        let options = ServeOptions { lun: vec!["null:1M".into(); count], ..ServeOptions::default() };
        Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}")).luns
    }

    #[test]
    fn disks_in_memory_have_huge_pages_when_all_fit_and_where_it_is_asked() {
        let specs = ["ram:1G", "null:1T", "ram:1G,huge=always", "ram:2G,huge=never"];
        let options = ServeOptions { lun: specs.map(String::from).into(), ..ServeOptions::default() };
        let luns = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}")).luns;
        let chosen = |room: Option<u64>| {
            let mut luns = luns.clone();
            choose_pages(&mut luns, room.map(|bytes| Room { bytes, said_by: "/a".into() }));
            let pages = |lun: &Lun| {
                if let StoreSpec::Ram { huge_pages, .. } = lun.store { Some(huge_pages) } else { None }
            };
            luns.iter().filter_map(pages).collect::<Vec<_>>()
        };
        let (always, never) = (HugePages::Always, HugePages::Never);
        assert_eq!(chosen(Some(4 << 30)), [always, always, never]);
        assert_eq!(chosen(Some((4 << 30) - 1)), [never, always, never]);
        assert_eq!(chosen(None), [never, always, never]);
    }

    /// Long enough on any machine.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn stores_open_at_the_same_time_and_come_back_in_order() {
        let mut luns = luns(3);
        let all_are_here = Arc::new(Barrier::new(3));
        let attempts = attempt_all(&mut luns, LONG, move |_, lun| {
            all_are_here.wait();
            let number: u64 = lun.name.trim_start_matches("lun").parse().unwrap();
            lun.product = format!("product of {}", lun.name);
            Ok(store::open_null((number + 1) << 20))
        });
        let sizes: Vec<u64> =
            attempts.into_iter().map(|(store, _)| store.unwrap().traits().size_bytes).collect();
        assert_eq!(sizes, [1 << 20, 2 << 20, 3 << 20]);
        assert_eq!(luns[2].product, "product of lun2");
    }

    #[test]
    fn a_store_that_hangs_is_not_waited_for_and_served_when_it_opens() {
        let (release, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(Some(hangs)));
        let count = Arc::new(AtomicU64::new(0));
        let mut luns = luns(2);
        let counted = count.clone();
        let mut attempts = attempt_all(&mut luns, Duration::ZERO, move |index, lun| {
            if index == 1 {
                counted.fetch_add(1, Ordering::Relaxed);
                let hangs = hangs.lock().unwrap().take().expect("it opens once");
                let _ = hangs.recv();
                lun.block_bytes = 4096;
            }
            Ok(store::open_null(2 << 20))
        });
        let (attempt, pending) = attempts.pop().expect("two LUNs");
        let about =
            About { state_dir: None, cores: 1, opened: Arc::default(), takes_larger: true, takeover: None };
        let opened = opened(&about, &luns[1], attempt, pending, Arc::default(), None);
        let error = opened.failed.expect("it hangs");
        assert!(error.contains("lun1: it could not be opened within 0 seconds"), "{error}");
        drop(release);
        let traits = opened.store.refresh().expect("it opens").expect("it has changed");
        assert_eq!((traits.size_bytes, count.load(Ordering::Relaxed)), (2 << 20, 1), "whatever its blocks");
    }
}
