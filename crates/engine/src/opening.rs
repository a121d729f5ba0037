//! Opening the stores of LUNs: all at once, so that one that takes its time holds up nothing else.

use crate::config::{Lun, StoreSpec};
use crate::initiator::Options;
use crate::remote::{self, RemoteOptions};
use reactor::uring::Uring;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use store::lane::Backend;
use store::{Claim, LateStore, OpenError};

/// How long the start waits for stores. What has not opened by then is tried again while others are served.
const PATIENCE: Duration = Duration::from_secs(10);

/// The store of a LUN.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Backend<Uring>>,
    /// Why it did not open yet.
    pub(crate) failed: Option<String>,
    /// How often it lost what was not flushed.
    pub(crate) losses: Arc<AtomicU64>,
}

type Attempt = Result<Arc<dyn Backend<Uring>>, OpenError>;

/// Opens the stores of LUNs, which learn what only their stores know. One that does not open takes down only its own
/// LUNs, and is tried again.
pub(crate) fn open_all(luns: &mut [Lun]) -> Vec<Opened> {
    let losses: Arc<[Arc<AtomicU64>]> = luns.iter().map(|_| Arc::default()).collect();
    let counted = losses.clone();
    let attempts = attempt_all(luns, PATIENCE, move |index, lun| open_store(lun, &counted[index]));
    let opened =
        |((lun, attempt), losses): ((&Lun, Attempt), &Arc<AtomicU64>)| opened(lun, attempt, losses.clone());
    luns.iter().zip(attempts).zip(&*losses).map(opened).collect()
}

/// One thread for each LUN; one that nobody waits for any longer drops its store when that has opened after all.
fn attempt_all(
    luns: &mut [Lun],
    patience: Duration,
    open: impl Fn(usize, &mut Lun) -> Attempt + Clone + Send + 'static,
) -> Vec<Attempt> {
    let (done, results) = mpsc::channel();
    let start = |(index, lun): (usize, &Lun)| -> Attempt {
        let (mut lun, open, done) = (lun.clone(), open.clone(), done.clone());
        let error =
            |problem, remedy: &str| OpenError { what: lun.name.clone(), problem, remedy: remedy.into() };
        let late = error(
            format!("it has not opened in {} seconds", patience.as_secs()),
            "its device or server does not answer; it is tried again",
        );
        let refused =
            error("there is no thread for it".into(), "raise the limit of tasks (TasksMax, ulimit -u)");
        let thread = std::thread::Builder::new().name(format!("open-{index}"));
        let started = thread.spawn(move || {
            let attempt = open(index, &mut lun);
            let _ = done.send((index, lun, attempt));
        });
        Err(if started.is_ok() { late } else { refused })
    };
    let mut attempts: Vec<Attempt> = luns.iter().enumerate().map(start).collect();
    drop(done);
    let deadline = Instant::now() + patience;
    while let Ok((index, lun, attempt)) =
        results.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        luns[index] = lun;
        attempts[index] = attempt;
    }
    attempts
}

fn opened(lun: &Lun, attempt: Attempt, losses: Arc<AtomicU64>) -> Opened {
    match attempt {
        Ok(store) => Opened { store, failed: None, losses },
        Err(error) => {
            tracing::error!(lun = %lun.name, "the store does not open, its LUNs are not ready: {error}");
            if let StoreSpec::Remote { block_bytes: None, .. } = &lun.store {
                tracing::warn!(
                    lun = %lun.name,
                    "its blocks are taken to have {} bytes; if they have others, say so with bs= (block_size in a file), or start again when it is there",
                    lun.block_bytes
                );
            }
            let (again, counted) = (lun.clone(), losses.clone());
            let opener = move || {
                let mut lun = again.clone();
                if let StoreSpec::Remote { block_bytes, .. } = &mut lun.store {
                    // What initiators were told by now.
                    *block_bytes = Some(again.block_bytes);
                }
                open_store(&mut lun, &counted)
            };
            let store = LateStore::new(lun.store.to_string(), Box::new(opener));
            Opened { store: Arc::new(store), failed: Some(error.to_string()), losses }
        }
    }
}

fn open_store(lun: &mut Lun, losses: &Arc<AtomicU64>) -> Attempt {
    let claim = Claim::to_serve(lun.read_only);
    Ok(match &lun.store {
        StoreSpec::Null { size } => store::open_null(*size),
        StoreSpec::Ram { size } => store::open_ram(*size)?,
        StoreSpec::File { path, size } => {
            store::file::open_counted(path, *size, lun.block_bytes, claim, losses.clone())?
        }
        StoreSpec::Block { path } => {
            store::file::open_block_counted(path, lun.block_bytes, claim, losses.clone())?
        }
        StoreSpec::Remote { url, block_bytes } => {
            let options = RemoteOptions {
                initiator: Options::default(),
                block_bytes: *block_bytes,
                read_only: lun.read_only,
                losses: losses.clone(),
            };
            let store = remote::open(url, &options)?;
            let geometry = store.geometry();
            lun.block_bytes = geometry.block_bytes;
            lun.physical_block_bytes = geometry.physical_block_bytes.max(geometry.block_bytes);
            store
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ServeOptions};
    use std::sync::{Barrier, Mutex};

    fn luns(count: usize) -> Vec<Lun> {
        let options = ServeOptions { lun: vec!["null:1M".into(); count], ..ServeOptions::default() };
        Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}")).luns
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
        let sizes: Vec<u64> = attempts.into_iter().map(|store| store.unwrap().traits().size_bytes).collect();
        assert_eq!(sizes, [1 << 20, 2 << 20, 3 << 20]);
        assert_eq!(luns[2].product, "product of lun2");
    }

    #[test]
    fn a_store_that_hangs_is_not_waited_for() {
        let (release, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let attempts = attempt_all(&mut luns(1), Duration::ZERO, move |_, _| {
            let _ = hangs.lock().unwrap().recv();
            Ok(store::open_null(1 << 20))
        });
        let error = attempts[0].as_ref().map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("lun0: it has not opened in 0 seconds"), "{error}");
        drop(release);
    }
}
