//! A running daemon whose configuration changes: what clients of the admin interface and SIGHUP ask for is done here, one
//! order after the other, on the thread that owns the daemon.

mod plan;

use admin::{Answer, Desk, Done, Fault, Job, Order, Refusal, Refused, State};
use config::{Checked, Config, Problems, ServeOptions};
use engine::Daemon;
use engine::daemon::{ChangeError, NotKept};
use plan::{Plan, Step};
use std::hash::{BuildHasher as _, RandomState};

/// A daemon, and what it serves.
pub(crate) struct Live {
    daemon: Daemon,
    options: ServeOptions,
    /// What runs.
    config: Config,
    shown: String,
    /// Names the state of this process among those of others, and of this one before.
    start: u64,
    changes: u64,
    desk: Desk,
}

impl Live {
    /// A daemon that serves this, as these options said.
    pub(crate) fn new(daemon: Daemon, options: ServeOptions, checked: Checked, desk: Desk) -> Live {
        let Checked { config, shown, .. } = checked;
        let start = RandomState::new().hash_one(std::process::id());
        let live = Live { daemon, options, config, shown, start, changes: 0, desk };
        live.publish();
        live
    }

    /// Does what a client asks for.
    pub(crate) fn take(&mut self, job: Job) {
        let answer = self.obey(&job.order, job.dry_run, job.expected.as_deref());
        audit(&job.who, &job.order, job.dry_run, &answer);
        job.answer(answer);
    }

    /// SIGHUP.
    pub(crate) fn hang_up(&mut self) {
        if self.options.config.is_none() {
            tracing::warn!("SIGHUP is ignored: the daemon was started without a configuration file");
            return;
        }
        let answer = self.obey(&Order::Reload, false, None);
        audit("SIGHUP", &Order::Reload, false, &answer);
        if let Err(refused) = answer {
            for Fault { place, what, fix } in &refused.faults {
                tracing::error!("{place}: {what}; {fix}");
            }
        }
    }

    /// Ends it in order.
    pub(crate) fn stop(self) -> Result<(), NotKept> {
        self.daemon.stop()
    }

    fn version(&self) -> String {
        format!("{:016x}-{}", self.start, self.changes)
    }

    fn publish(&self) {
        self.desk.publish(State { version: self.version(), file: self.shown.clone() });
    }

    fn obey(&mut self, order: &Order, dry_run: bool, expected: Option<&str>) -> Answer {
        if expected.is_some_and(|expected| expected != self.version()) {
            let fix = "read it again, and repeat the change if it is still wanted";
            let fault = fault("If-Match", "the configuration has changed since it was read", fix);
            return Err(refused(Refusal::Stale, "somebody else has changed the configuration", vec![fault]));
        }
        match order {
            Order::Reload => self.reload(dry_run),
        }
    }

    fn reload(&mut self, dry_run: bool) -> Answer {
        if self.options.config.is_none() {
            let fix = "start the daemon with --config FILE";
            let fault = fault("--config", "the daemon was started without a configuration file", fix);
            return Err(refused(Refusal::Conflict, "there is no file to read again", vec![fault]));
        }
        let checked = Checked::from_options(&self.options).map_err(|problems| invalid(&problems))?;
        self.change(checked, dry_run)
    }

    /// Goes from what runs to this, in full or not at all.
    fn change(&mut self, checked: Checked, dry_run: bool) -> Answer {
        let Plan { steps } = plan::plan(&self.config, &checked.config).map_err(|faults| {
            refused(Refusal::Conflict, "this needs a restart; nothing was changed", faults)
        })?;
        let missing = plan::missing(&self.config, &steps, &engine::Host);
        if !missing.is_empty() {
            return Err(refused(Refusal::Conflict, "a LUN cannot be opened; nothing was changed", missing));
        }
        let mut warnings: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
        if !dry_run {
            self.apply(&steps, &mut warnings)?;
            let is_new = self.shown != checked.shown || !steps.is_empty();
            (self.config, self.shown) = (checked.config, checked.shown);
            self.changes += u64::from(is_new);
            self.publish();
        }
        let steps = steps.into_iter().map(|step| step.text).collect();
        Ok(Done { steps, warnings, version: self.version() })
    }

    /// Makes all steps, or takes back those before the one that fails.
    fn apply(&mut self, steps: &[Step], warnings: &mut Vec<String>) -> Result<(), Refused> {
        for (index, step) in steps.iter().enumerate() {
            tracing::info!("configuration: {}", step.text);
            let Err(why) = self.make(step, warnings) else { continue };
            tracing::error!("configuration: this failed: {}: {why}", step.text);
            let mut faults = vec![fault(&step.text, &why, "fix this, and try again")];
            faults.extend(self.take_back(&steps[..index]));
            let title = match faults.len() {
                1 => "a step failed; those before it were taken back, and nothing has changed",
                _ => "a step failed, and not all before it could be taken back",
            };
            return Err(refused(Refusal::Failed, title, faults));
        }
        Ok(())
    }

    /// Makes a step. After an error it is as if it had not been tried.
    fn make(&mut self, step: &Step, warnings: &mut Vec<String>) -> Result<(), String> {
        match self.daemon.apply(step.change.clone()) {
            Ok(()) => {}
            Err(ChangeError::Refused(why)) => return Err(why),
            Err(ChangeError::NotKept(what)) => {
                tracing::error!("configuration: {}: {what}", step.text);
                warnings.push(format!("{}: {what}", step.text));
            }
        }
        plan::advance(&mut self.config, &step.change);
        let unit = self.daemon.units().iter().find(|unit| Some(&unit.name) == step.opens.as_ref());
        let Some(why) = unit.and_then(|unit| unit.failed.clone()) else { return Ok(()) };
        match self.undo(step) {
            None => Err(why),
            Some(Fault { what, .. }) => Err(format!("{why}; and this could not be taken back: {what}")),
        }
    }

    /// Takes steps back, the last one first; those that could not be.
    fn take_back(&mut self, steps: &[Step]) -> Vec<Fault> {
        steps.iter().rev().filter_map(|step| self.undo(step)).collect()
    }

    fn undo(&mut self, step: &Step) -> Option<Fault> {
        tracing::warn!("configuration: taken back: {}", step.text);
        match self.daemon.apply(step.undo.clone()) {
            Ok(()) | Err(ChangeError::NotKept(_)) => {
                plan::advance(&mut self.config, &step.undo);
                None
            }
            Err(ChangeError::Refused(why)) => {
                tracing::error!("configuration: it could not be taken back: {}: {why}", step.text);
                self.changes += 1;
                self.publish();
                Some(fault(&step.text, &format!("it could not be taken back: {why}"), "restart the daemon"))
            }
        }
    }
}

/// Who changed what, and the outcome.
fn audit(who: &str, order: &Order, dry_run: bool, answer: &Answer) {
    let what = match order {
        Order::Reload => "reload",
    };
    let dry = if dry_run { " (dry run)" } else { "" };
    match answer {
        Ok(Done { steps, .. }) => {
            tracing::info!(who, steps = steps.len(), "admin: {what}{dry}: done");
        }
        Err(Refused { title, faults, .. }) => {
            tracing::warn!(who, problems = faults.len(), "admin: {what}{dry}: {title}");
        }
    }
}

fn fault(place: &str, what: &str, fix: &str) -> Fault {
    Fault { place: place.into(), what: what.into(), fix: fix.into() }
}

fn refused(refusal: Refusal, title: &str, faults: Vec<Fault>) -> Refused {
    Refused { refusal, title: title.into(), faults }
}

/// A configuration that is wrong in itself.
fn invalid(problems: &Problems) -> Refused {
    let faults = problems.iter().map(|problem| {
        // As it is shown, without what follows the place.
        let shown = problem.to_string();
        let rest = format!("{}; {}", problem.what, problem.fix);
        let place = shown.strip_suffix(&rest).unwrap_or_default().trim_end_matches(": ");
        fault(place, &problem.what, &problem.fix)
    });
    refused(Refusal::Invalid, "the configuration is wrong; nothing was changed", faults.collect())
}
