//! A running daemon whose configuration changes: requests of the admin interface's clients and SIGHUP are
//! carried out here, one change after another, on the thread that owns the daemon.

mod change;
pub(crate) mod events;
mod file;
mod metrics;
mod plan;
pub(crate) mod readings;
pub(crate) mod sessions;
mod state;
pub(crate) mod tally;

use crate::notify;
use admin::{Access, Answer, ChangeRequest, Done, Fault, Hub, Job, Refusal, Refused, State};
use change::{AppliedSteps, promptly};
use config::{Action, Checked, Config, Edit, EditError, Problems, ServeOptions, StoreSpec, Subject};
use engine::daemon::NotSaved;
use engine::{Daemon, Moving, Patience};
use file::Replacement;
use plan::Planned;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tally::Tally;

/// A daemon, and what it serves.
pub(crate) struct Live {
    daemon: Daemon,
    options: ServeOptions,
    shown: String,
    /// The text that is edited: that of the file, or of an equivalent one.
    text: String,
    /// Makes versions unique among processes and among the changes of this one.
    start: u64,
    changes: u64,
    hub: Hub,
    tally: Arc<Tally>,
    /// The user whose privileges it has, if it has dropped root's.
    user: Option<String>,
}

impl Live {
    /// A daemon that serves this configuration, with these options.
    pub(crate) fn new(
        daemon: Daemon,
        options: ServeOptions,
        checked: Checked,
        hub: Hub,
        tally: Arc<Tally>,
    ) -> Live {
        let Checked { shown, text, .. } = checked;
        let start = RandomState::new().hash_one(std::process::id());
        let live = Live { daemon, options, shown, text, start, changes: 0, hub, tally, user: None };
        live.publish();
        live
    }

    /// It has dropped root's privileges, and has those of this user.
    pub(crate) fn with_rights_of(self, user: Option<String>) -> Live {
        Live { user, ..self }
    }

    /// Handles a client's request.
    pub(crate) fn take(&mut self, job: Job) {
        let answer = match self.hub.access().admits(job.token.as_ref()) {
            true => match &job.change {
                ChangeRequest::Activate { lun } if !job.dry_run => {
                    match self.move_here(lun, job.expected.as_deref()) {
                        Ok(moving) => return self.await_move(job, moving),
                        Err(refused) => Err(refused),
                    }
                }
                _ => self.handle(&job.change, job.dry_run, job.expected.as_deref()),
            },
            false => Err(revoked()),
        };
        audit(&self.hub, &self.tally, &job.who, &job.change, job.dry_run, &answer);
        job.answer(answer);
    }

    /// Answers once the LUN has moved, or failed to. Neither other changes nor signals wait for that.
    fn await_move(&self, job: Job, moving: Moving) {
        let (hub, tally, version) = (self.hub.clone(), self.tally.clone(), self.version());
        let wait = move || {
            let ChangeRequest::Activate { lun } = &job.change else { return };
            let answer = moved(lun, moving.wait(), version);
            audit(&hub, &tally, &job.who, &job.change, job.dry_run, &answer);
            job.answer(answer);
        };
        // Without a thread, the client is disconnected.
        if let Err(error) = std::thread::Builder::new().name("move".into()).spawn(wait) {
            tracing::error!("cannot start a thread: {error}");
        }
    }

    /// SIGHUP was received.
    pub(crate) fn hang_up(&mut self) {
        if !self.options.name_files() {
            tracing::warn!("SIGHUP is ignored: the daemon was started without a configuration file");
            // The service manager still waits for it.
            notify::reloading();
            notify::reloaded(self.config(), true);
            return;
        }
        let answer = self.handle(&ChangeRequest::Reload, false, None);
        audit(&self.hub, &self.tally, "SIGHUP", &ChangeRequest::Reload, false, &answer);
        if let Err(refused) = answer {
            for Fault { place, what, fix } in &refused.faults {
                tracing::error!("{place}: {what}; {fix}");
            }
        }
    }

    /// What is served.
    pub(crate) fn config(&self) -> &Config {
        self.daemon.config()
    }

    /// How long changes wait.
    pub(crate) fn patience(&self) -> &Patience {
        self.daemon.patience()
    }

    /// Whether something that was removed has yet to end, and has to be checked.
    pub(crate) fn has_leaving(&mut self) -> bool {
        self.daemon.has_leaving()
    }

    /// Shuts it down.
    pub(crate) fn stop(self) -> Result<(), NotSaved> {
        self.daemon.stop()
    }

    fn version(&self) -> String {
        format!("{:016x}-{}", self.start, self.changes)
    }

    fn publish(&self) {
        notify::changed(self.config());
        self.hub.publish(State {
            version: self.version(),
            file: self.shown.clone(),
            luns: state::luns(self.daemon.config(), self.daemon.units()),
            targets: state::targets(self.daemon.config()),
            portals: state::portals(self.daemon.config(), self.daemon.addresses()),
            portal_groups: state::portal_groups(self.daemon.config()),
        });
    }

    fn handle(&mut self, change: &ChangeRequest, dry_run: bool, expected: Option<&str>) -> Answer {
        let answer = self.carry_out(change, dry_run, expected);
        let Some(user) = &self.user else { return answer };
        answer.map_err(|mut refused| {
            // Root's files, which were opened at start, cannot be opened again.
            let denied = |fault: &&mut Fault| fault.what.contains("denied") || fault.what.contains("not permitted");
            for fault in refused.faults.iter_mut().filter(denied) {
                fault.fix = format!(
                    "{}; the daemon runs with the rights of {user} (--user): give {user} access, or restart the daemon",
                    fault.fix
                );
            }
            refused
        })
    }

    /// Refuses the change if the configuration is not the one that the client expects.
    fn check_version(&self, expected: Option<&str>) -> Result<(), Refused> {
        if expected.is_none_or(|expected| expected == self.version()) {
            return Ok(());
        }
        let fix = "get it again, and repeat the change if it still applies";
        let fault = fault("If-Match", "the configuration has changed since it was read", fix);
        Err(refused(Refusal::Stale, "someone else has changed the configuration", vec![fault]))
    }

    fn carry_out(&mut self, change: &ChangeRequest, dry_run: bool, expected: Option<&str>) -> Answer {
        self.check_version(expected)?;
        match change {
            ChangeRequest::Reload if dry_run => self.reload(dry_run),
            ChangeRequest::Reload => {
                notify::reloading();
                let answer = self.reload(dry_run);
                notify::reloaded(self.config(), answer.is_ok());
                answer
            }
            ChangeRequest::Edit(edit) => self.edit(edit, dry_run, None),
            ChangeRequest::Resize { lun, size, may_lose_data } => {
                let edit = self.resizing(lun, size)?;
                self.edit(&edit, dry_run, may_lose_data.then_some(lun))
            }
            ChangeRequest::Activate { lun } => {
                self.shared(lun)?;
                moved(lun, Ok(()), self.version())
            }
        }
    }

    fn reload(&mut self, dry_run: bool) -> Answer {
        if !self.options.name_files() {
            let fix = "start the daemon with --config FILE";
            let fault = fault("--config", "the daemon was started without a configuration file", fix);
            return Err(refused(Refusal::Conflict, "there is no file to reload", vec![fault]));
        }
        let running = self.hub.access();
        let read = match &self.options.config {
            Some(_) => Checked::from_options(&self.options),
            None => Checked::from_text(&self.options, &self.text, None),
        };
        let (checked, access) =
            read.and_then(|checked| with_access(checked, &running)).map_err(|problems| invalid(&problems))?;
        let text = checked.text.clone();
        let mut made = self.change(checked, access, dry_run, None)?;
        if !dry_run {
            self.text = text;
        }
        if self.options.config.is_none() {
            let warning = "the daemon was started without a configuration file: only the admin interface's tokens, certificate and \
                           key were read again";
            made.done.warnings.push(warning.into());
        }
        Ok(made.done)
    }

    /// Changes one LUN, target or group; the file, if there is one, is replaced once the change was made.
    fn edit(&mut self, edit: &Edit, dry_run: bool, may_lose_data: Option<&str>) -> Answer {
        let text = edit.apply(&self.text).map_err(|error| uneditable(&edit.subject, error))?;
        let path = self.options.config.clone();
        if let Some(path) = &path {
            self.check_unchanged(path)?;
        }
        let access = self.hub.access();
        let checked = Checked::from_text(&self.options, &text, Some(access.rights().clone()))
            .map_err(|problems| invalid(&problems))?;
        let new = match path.filter(|_| !dry_run && text != self.text) {
            Some(path) => {
                Some(Replacement::prepare(&path, &text).map_err(|error| unwritable(&path, &error))?)
            }
            None => None,
        };
        let shown = self.shown.clone();
        let mut made = self.change(checked, access, dry_run, may_lose_data)?;
        if dry_run {
            return Ok(made.done);
        }
        if let (Some(new), Some(path)) = (new, &self.options.config)
            && let Err(error) = new.commit(&self.text)
        {
            let mut refused = unwritable(path, &error);
            refused.faults.extend(change::roll_back(&mut self.daemon, &made.before, &made.applied));
            refused.title = match refused.faults.len() {
                1 => "the configuration file cannot be written; the change was undone",
                _ => {
                    "the configuration file cannot be written, and the change could not be undone completely"
                }
            }
            .into();
            self.shown = shown;
            self.changes += 1;
            self.publish();
            return Err(refused);
        }
        if self.options.config.is_none() {
            let warning =
                "the daemon was started without a configuration file: this change is lost when it ends";
            made.done.warnings.push(warning.into());
        }
        self.text = text;
        Ok(made.done)
    }

    /// Refuses the change if the file was edited by hand and not reloaded.
    fn check_unchanged(&self, path: &Path) -> Result<(), Refused> {
        let now = std::fs::read_to_string(path).map_err(|error| unwritable(path, &error))?;
        if now == self.text {
            return Ok(());
        }
        let what = "the file has changed since the daemon read it";
        let fault = fault(&path.display().to_string(), what, "run lunette reload first");
        Err(refused(Refusal::Conflict, "someone else has changed the configuration file", vec![fault]))
    }

    /// Makes this gateway the active one for a LUN.
    fn move_here(&self, name: &str, expected: Option<&str>) -> Result<Moving, Refused> {
        self.check_version(expected)?;
        self.shared(name)?;
        self.daemon.activate(name).map_err(|why| not_moved(name, &why))
    }

    /// Refuses the request unless one gateway at a time is active for the LUN.
    fn shared(&self, name: &str) -> Result<(), Refused> {
        let luns = &self.daemon.config().luns;
        let Some(lun) = luns.iter().find(|lun| lun.name == name) else {
            let known = luns.iter().map(|lun| lun.name.clone()).collect();
            let missing = EditError::NotFound { what: format!("LUN {name}"), known };
            return Err(uneditable(&Subject::Lun(name.into()), missing));
        };
        let (title, what, fix) = match lun.access {
            Some(config::Access::One) => return Ok(()),
            Some(config::Access::All) => (
                "this LUN does not move",
                "all its gateways are active at the same time",
                "lunette luns shows if one of them is not, and why",
            ),
            None => (
                "this LUN has no other gateway",
                "it is not shared between gateways",
                "see `access` in docs/cluster.md",
            ),
        };
        Err(refused(Refusal::Conflict, title, vec![fault(&format!("LUN {name}"), what, fix)]))
    }

    fn resizing(&self, name: &str, size: &str) -> Result<Edit, Refused> {
        let found = self.daemon.config().luns.iter().find(|lun| lun.name == name);
        let key = match found.map(|lun| &lun.store) {
            Some(StoreSpec::File { .. }) => "size",
            Some(StoreSpec::Ram { .. }) => "ram",
            Some(StoreSpec::Null { .. }) => "null",
            Some(
                StoreSpec::Block { .. }
                | StoreSpec::Remote { .. }
                | StoreSpec::Nbd { .. }
                | StoreSpec::Rbd { .. },
            ) => {
                let what = "its size is that of its device, or of the remote unit, export or image";
                let fault = fault(&format!("LUN {name}"), what, "resize that");
                return Err(refused(Refusal::Conflict, "this LUN cannot be resized here", vec![fault]));
            }
            None => {
                let known = self.daemon.config().luns.iter().map(|lun| lun.name.clone()).collect();
                let missing = EditError::NotFound { what: format!("LUN {name}"), known };
                return Err(uneditable(&Subject::Lun(name.into()), missing));
            }
        };
        let settings = [(key.to_owned(), size.into())].into_iter().collect();
        Ok(Edit { subject: Subject::Lun(name.into()), action: Action::Set(settings) })
    }

    /// Changes to this configuration, in full or not at all. Only the LUN that may lose data may shrink.
    fn change(
        &mut self,
        checked: Checked,
        access: Access,
        dry_run: bool,
        may_lose_data: Option<&str>,
    ) -> Result<AppliedChange, Refused> {
        let Checked { config, shown, warnings, .. } = checked;
        if let Some((lun, clash)) = self.daemon.clash(&config) {
            let (what, fix) = clash.split_once("; ").unwrap_or((&clash, "give each gateway its own"));
            let title = "another gateway has these target ports; nothing has changed";
            return Err(refused(Refusal::Conflict, title, vec![fault(&format!("LUN {lun}"), what, fix)]));
        }
        let before = self.daemon.config().clone();
        let patience = self.daemon.patience();
        let planned = {
            let (before, config) = (before.clone(), config.clone());
            let may_lose_data = may_lose_data.map(str::to_owned);
            let plan = move || Planned::of(before, config, may_lose_data.as_deref());
            promptly(patience, plan).unwrap_or_else(|what| {
                let fault = fault("files of LUNs", &what, "check their file systems, and try again");
                Err(refused(Refusal::Failed, "nothing was changed", vec![fault]))
            })?
        };
        let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        let mut applied = AppliedSteps::default();
        if !dry_run {
            // A removed token is invalid at once, however long the steps take.
            let admitted = self.hub.access();
            self.hub.admit(access);
            if let Err(failed) = change::make(&mut self.daemon, &planned, &config, &mut applied) {
                let refused = self.fail(failed, &before, &applied);
                self.hub.admit(admitted);
                return Err(refused);
            }
            warnings.extend(applied.notices());
            self.changes += u64::from(self.shown != shown || !applied.steps.is_empty());
            self.shown = shown;
            self.publish();
        }
        let done = Done { steps: planned.texts(), warnings, version: self.version() };
        Ok(AppliedChange { done, before, applied })
    }

    /// A step has failed: rolls the change back.
    fn fail(&mut self, failed: Fault, before: &Config, applied: &AppliedSteps) -> Refused {
        if applied.is_empty() {
            return refused(Refusal::Failed, "a step failed; nothing has changed", vec![failed]);
        }
        let mut faults = vec![failed];
        let title = match self.daemon.patience().has_ended() {
            true => {
                faults.extend(applied.faults());
                "the daemon is stopping before the change is complete; the next start uses the file"
            }
            false => {
                faults.extend(change::roll_back(&mut self.daemon, before, applied));
                match faults.len() {
                    1 => "a step failed; the steps before it were undone",
                    _ => "a step failed; the steps before it were undone, but not completely",
                }
            }
        };
        self.changes += 1;
        self.publish();
        refused(Refusal::Failed, title, faults)
    }
}

/// Reports a change, its author and its outcome in the log and as an event.
fn audit(hub: &Hub, tally: &Tally, who: &str, change: &ChangeRequest, dry_run: bool, answer: &Answer) {
    let dry = if dry_run { " (dry run)" } else { "" };
    let outcome = match answer {
        Ok(Done { steps, .. }) => {
            tracing::info!(who, steps = steps.len(), "admin: {change}{dry}: done");
            "done"
        }
        Err(Refused { title, faults, .. }) => {
            tracing::warn!(who, problems = faults.len(), "admin: {change}{dry}: {title}");
            title
        }
    };
    if !dry_run && *change == ChangeRequest::Reload {
        tally.reloaded(answer.is_ok());
    }
    if !dry_run {
        let steps = answer.as_ref().map_or(&[][..], |done| &done.steps);
        let data = events::change(who, &change.to_string(), outcome, steps);
        hub.report("change", &events::timed(data));
    }
}

/// The outcome of moving a LUN to this gateway.
fn moved(name: &str, outcome: Result<(), String>, version: String) -> Answer {
    outcome.map_err(|why| not_moved(name, &why))?;
    Ok(Done { steps: vec![format!("this gateway is active for LUN {name}")], warnings: Vec::new(), version })
}

fn not_moved(name: &str, why: &str) -> Refused {
    let fix = "fix that, or see the log of that gateway, and try again";
    let fault = fault(&format!("LUN {name}"), why, fix);
    refused(Refusal::Failed, "this gateway did not become active", vec![fault])
}

/// A configuration with its access to the admin interface, if the certificate is usable.
pub(crate) fn with_access(checked: Checked, running: &Access) -> Result<(Checked, Access), Problems> {
    let access = checked.access(|rights| running.with(rights))?;
    Ok((checked, access))
}

/// The refusal of a change whose token was revoked.
fn revoked() -> Refused {
    let fix = "use a token of the daemon's admin_token_file";
    let fault = fault("Authorization", "the token is no longer valid", fix);
    refused(Refusal::Revoked, "the token was revoked; nothing was changed", vec![fault])
}

/// A change that was made.
struct AppliedChange {
    done: Done,
    /// What was served before.
    before: Config,
    applied: AppliedSteps,
}

fn fault(place: &str, what: &str, fix: &str) -> Fault {
    Fault { place: place.into(), what: what.into(), fix: fix.into() }
}

fn refused(refusal: Refusal, title: &str, faults: Vec<Fault>) -> Refused {
    Refused { refusal, title: title.into(), faults }
}

/// The refusal of an invalid configuration.
fn invalid(problems: &Problems) -> Refused {
    let faults = problems.iter().map(|problem| {
        // As displayed, without what follows the place.
        let shown = problem.to_string();
        let rest = format!("{}; {}", problem.what, problem.fix);
        let place = shown.strip_suffix(&rest).unwrap_or_default().trim_end_matches(": ");
        fault(place, &problem.what, &problem.fix)
    });
    refused(Refusal::Invalid, "the configuration is wrong; nothing was changed", faults.collect())
}

/// The refusal of an edit that the text does not allow.
fn uneditable(subject: &Subject, error: EditError) -> Refused {
    match error {
        EditError::NotFound { what, known } => {
            let fix = match known.as_slice() {
                [] => "there are none".to_owned(),
                known => config::suggest(&subject_name(subject), known.iter().map(String::as_str)),
            };
            let fault = fault(&what, "there is none with that name", &fix);
            refused(Refusal::NotFound, "not found; nothing was changed", vec![fault])
        }
        EditError::Exists(what) => {
            let fault = fault(&what, "it already exists", "choose another name, or change that one");
            refused(Refusal::Conflict, "it already exists; nothing was changed", vec![fault])
        }
        EditError::Wrong(what, fix) => {
            let fault = fault(&subject.to_string(), &what, &fix);
            refused(Refusal::Invalid, "this cannot be changed; nothing was changed", vec![fault])
        }
    }
}

fn subject_name(subject: &Subject) -> String {
    match subject {
        Subject::Lun(name) | Subject::Target(name) | Subject::Portal(name) | Subject::Group { name, .. } => {
            name.clone()
        }
        Subject::PortalGroup(tag) => tag.to_string(),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Refused {
    let fix = "let the daemon's user write to the file and its directory";
    let fault = fault(&path.display().to_string(), &format!("it cannot be replaced: {error}"), fix);
    refused(Refusal::Conflict, "the configuration file cannot be written; nothing was changed", vec![fault])
}
