//! Making a change step by step, and rolling it back.

use super::fault;
use super::plan::{Cut, Planned, Step};
use admin::Fault;
use config::{Config, Lun, StepOfChange, StoreSpec, diff};
use engine::{ChangeError, Daemon, Patience, Wants};
use std::fs::{File, OpenOptions};
use std::io;
use std::sync::mpsc;
use std::thread;

/// The steps of a change that were made.
#[derive(Default)]
pub(super) struct AppliedSteps {
    pub(super) steps: Vec<StepOfChange>,
    /// Files that were truncated.
    cuts: Vec<Fault>,
    /// What may not be durable.
    pub(super) warnings: Vec<String>,
    /// What has to end, and has not yet.
    pub(super) unended: Vec<Fault>,
}

impl AppliedSteps {
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.cuts.is_empty()
    }

    /// Warnings about a change that was made.
    pub(super) fn notices(&self) -> Vec<String> {
        let unended = self.unended.iter().map(|Fault { place, what, fix }| {
            format!("{place}: this was done, but has not ended completely: {what}; {fix}")
        });
        self.warnings.iter().cloned().chain(unended).collect()
    }

    /// Faults of a change that was made in part.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let fix = "restore it from elsewhere";
        let unkept = self.warnings.iter().map(|what| fault("what was written", what, fix));
        self.cuts.iter().chain(&self.unended).cloned().chain(unkept).collect()
    }
}

/// Makes all steps, or those before the first that fails.
///
/// # Errors
/// Why that fails.
pub(super) fn make(
    daemon: &mut Daemon,
    planned: &Planned,
    to: &Config,
    applied: &mut AppliedSteps,
) -> Result<(), Fault> {
    let before = daemon.config().clone();
    planned
        .leaving
        .iter()
        .try_for_each(|step| take(daemon, step, &planned.between, Wants::Store, applied))?;
    planned.cuts.iter().try_for_each(|cut| cut_off(daemon.patience(), cut, applied))?;
    planned.coming.iter().try_for_each(|step| take(daemon, step, to, wants(&step.step, &before, to), applied))
}

/// A LUN that is removed and added by one change, such as one that becomes writable, keeps its store.
fn wants(step: &StepOfChange, before: &Config, to: &Config) -> Wants {
    let StepOfChange::AddLun(name) = step else { return Wants::Store };
    let comes = to.luns.iter().find(|lun| lun.name == *name);
    let is_known = comes.is_some_and(|comes| before.luns.iter().any(|lun| lun.store == comes.store));
    if is_known { Wants::KnownStore } else { Wants::Store }
}

fn take(
    daemon: &mut Daemon,
    step: &Step,
    to: &Config,
    wants: Wants,
    applied: &mut AppliedSteps,
) -> Result<(), Fault> {
    let Step { step, text } = step;
    if daemon.patience().has_ended() {
        return Err(fault(text, "the daemon ends", "start it again"));
    }
    tracing::info!("configuration: {text}");
    match daemon.take_step(step, to, wants) {
        Ok(()) => {}
        Err(ChangeError::NotSaved(what)) => {
            tracing::error!("configuration: {text}: {what}");
            applied.warnings.push(format!("{text}: {what}"));
        }
        Err(ChangeError::StillEnding(what)) => {
            tracing::error!("configuration: {text}: {what}");
            let fix = "check what hangs; the log reports when a LUN is gone, and other changes can be made until then";
            applied.unended.push(fault(text, &what, fix));
        }
        Err(ChangeError::Refused(why)) => {
            tracing::error!("configuration: this failed: {text}: {why}");
            return Err(fault(text, &why, "fix this, and try again"));
        }
    }
    applied.steps.push(step.clone());
    Ok(())
}

/// Truncates the file of a LUN that was removed for that.
fn cut_off(patience: &Patience, cut: &Cut, applied: &mut AppliedSteps) -> Result<(), Fault> {
    tracing::info!("configuration: {cut}");
    let (path, size_bytes) = (cut.path.clone(), cut.size_bytes);
    let cut_off = move || {
        let file: File = OpenOptions::new().write(true).open(&path)?;
        // Other users of the file have it locked.
        file.try_lock()?;
        file.set_len(size_bytes)?;
        file.sync_all()
    };
    let done: Result<io::Result<()>, String> = promptly(patience, cut_off);
    let done = done.map(|done| done.map_err(|error| error.to_string()));
    // Part of it may have been done once it was begun.
    let what = "data beyond its new end is lost, if it was cut off".to_owned();
    applied.cuts.push(fault(&cut.to_string(), &what, "restore it from elsewhere"));
    done.unwrap_or_else(Err).map_err(|error| {
        tracing::error!("configuration: this failed: {cut}: {error}");
        fault(&cut.to_string(), &error, "fix this, and try again")
    })
}

/// Rolls a change back. Returns what is not as it was before.
pub(super) fn roll_back(daemon: &mut Daemon, to: &Config, applied: &AppliedSteps) -> Vec<Fault> {
    let mut faults = applied.faults();
    faults.extend(applied.steps.iter().filter_map(|step| lost(step, to, daemon.config())));
    for step in diff(daemon.config(), to) {
        tracing::warn!("configuration: undone: {step:?}");
        match daemon.take_step(&step, to, Wants::Lun) {
            Ok(()) => {}
            Err(ChangeError::NotSaved(what)) => {
                faults.push(fault(&format!("{step:?}"), &what.to_string(), "see the log"));
            }
            Err(ChangeError::StillEnding(what)) => {
                faults.push(fault(&format!("{step:?}"), &what, "see the log"))
            }
            Err(ChangeError::Refused(why)) => {
                tracing::error!("configuration: {step:?} could not be undone: {why}");
                let what = format!("it could not be undone: {why}");
                faults.push(fault(&format!("{step:?}"), &what, "restart the daemon"));
            }
        }
    }
    faults
}

/// What cannot be rolled back of a step.
fn lost(step: &StepOfChange, before: &Config, now: &Config) -> Option<Fault> {
    let find = |config: &Config, name: &str| config.luns.iter().find(|lun| lun.name == name).cloned();
    match step {
        StepOfChange::RemoveLun(name) => {
            find(before, name).filter(|lun| matches!(lun.store, StoreSpec::Ram { .. }))?;
            let what = "it was in memory, and comes back empty";
            Some(fault(&format!("LUN {name}"), what, "restore its contents from elsewhere"))
        }
        StepOfChange::ChangeLun(name) => {
            let size = |lun: Lun| match lun.store {
                StoreSpec::File { size, .. } => size,
                _ => None,
            };
            let (before, now) = (find(before, name).map(size)?, find(now, name).and_then(size)?);
            if before == Some(now) {
                return None;
            }
            let what = format!("its file was extended to {now} bytes, and keeps that size");
            let fix = format!("set size = {now} in the configuration: the next start checks it");
            Some(fault(&format!("LUN {name}"), &what, &fix))
        }
        _ => None,
    }
}

/// Does work that may block forever, as when a file system hangs, but waits no longer than `patience`.
///
/// # Errors
/// When it has not ended by then, and may end later.
pub(super) fn promptly<T: Send + 'static>(
    patience: &Patience,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (done, is_done) = mpsc::channel();
    let begun = thread::Builder::new().name("files".into()).spawn(move || _ = done.send(work()));
    begun.map_err(|error| format!("cannot start a thread: {error}"))?;
    patience.wait(&is_done).map_err(|_| "a file system does not answer".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_cannot_be_rolled_back_is_named() {
        let config = |size: &str| {
            let text = format!(
                "lun = [{{ name = 'a', file = '/srv/a', size = '{size}', serial = 'S' }}, {{ name = 'b', ram = '1M' }}]\n\
                 [[target]]\nname = 'iqn.2026-11.a:x'\n"
            );
            Config::from_toml(&text, Path::new("lunette.toml"))
                .unwrap_or_else(|problems| panic!("{problems}"))
        };
        let (before, now) = (config("1M"), config("2M"));
        let lost = |step: StepOfChange| lost(&step, &before, &now).map(|fault| fault.what);
        assert_eq!(
            lost(StepOfChange::ChangeLun("a".into())).as_deref(),
            Some("its file was extended to 2097152 bytes, and keeps that size")
        );
        assert!(
            lost(StepOfChange::RemoveLun("b".into())).is_some_and(|what| what.contains("comes back empty"))
        );
        assert_eq!(
            [StepOfChange::RemoveLun("a".into()), StepOfChange::ChangeLun("b".into())].map(lost),
            [None, None]
        );
    }

    #[test]
    fn a_change_that_was_made_names_what_was_lost_and_what_has_not_ended() {
        let unended = vec![fault("remove LUN b", "it has taken longer than 30 s", "check what hangs")];
        let warnings = vec!["remove LUN a: a store could not be flushed".to_owned()];
        let applied = AppliedSteps { warnings, unended, ..AppliedSteps::default() };
        assert_eq!(
            applied.notices(),
            [
                "remove LUN a: a store could not be flushed",
                "remove LUN b: this was done, but has not ended completely: it has taken longer than 30 s; check what hangs",
            ]
        );
        let faults: Vec<_> =
            applied.faults().into_iter().map(|Fault { place, what, .. }| (place, what)).collect();
        assert_eq!(
            faults,
            [("remove LUN b", "it has taken longer than 30 s"), ("what was written", &applied.warnings[0])]
                .map(|(place, what)| (place.to_owned(), what.to_owned()))
        );
    }

    #[test]
    fn a_stream_with_a_deadline_does_not_wait_for_a_write_that_blocks() {
        let (release, held) = mpsc::channel::<()>();
        let patience = Patience::default();
        assert_eq!(promptly(&patience, || 7), Ok(7));
        patience.end();
        let hangs = promptly(&patience, move || _ = held.recv());
        assert_eq!(hangs, Err("a file system does not answer".into()));
        drop(release);
    }
}
