//! Passes clients' requests to the owner of the daemon, and the answers back.

use crate::ring::{Following, Ring};
use crate::server::Peer;
use crate::tls::Access;
use config::{Action, Edit, Token};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

/// Most pending changes, including the one in progress.
pub(crate) const JOBS_MAX: usize = 8;

/// A change that a client requests.
#[derive(Clone, PartialEq, Debug)]
pub enum ChangeRequest {
    /// Read the configuration file again, and apply the differences.
    Reload,
    /// Change one thing, in the file if there is one.
    Edit(Edit),
    /// Make a LUN larger, or smaller.
    Resize {
        /// Its name.
        lun: String,
        /// Its new size, as in the file.
        size: String,
        /// Whether it may become smaller.
        may_lose_data: bool,
    },
    /// Have this gateway become the active one for a LUN.
    Activate {
        /// Its name.
        lun: String,
    },
}

impl fmt::Display for ChangeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeRequest::Reload => f.write_str("reload"),
            ChangeRequest::Edit(Edit { subject, action: Action::Add { .. } }) => write!(f, "add {subject}"),
            ChangeRequest::Edit(Edit { subject, action: Action::Remove }) => write!(f, "remove {subject}"),
            ChangeRequest::Edit(Edit { subject, action: Action::Set(settings) }) => {
                let keys = settings.keys().map(String::as_str).collect::<Vec<_>>();
                write!(f, "set {} of {subject}", keys.join(", "))
            }
            ChangeRequest::Resize { lun, size, .. } => write!(f, "resize LUN {lun} to {size}"),
            ChangeRequest::Activate { lun } => write!(f, "activate this gateway for LUN {lun}"),
        }
    }
}

/// A change that was requested, and the client that waits for its outcome.
pub struct Job {
    /// The change.
    pub change: ChangeRequest,
    /// Only report what would be done.
    pub dry_run: bool,
    /// The version of the configuration that the client expects ([`State::version`]); `None`: any.
    pub expected: Option<String>,
    /// The client, for the log.
    pub who: String,
    /// The token that authorizes it, if it needs one. It may be revoked while the change waits.
    pub token: Option<Token>,
    reply: oneshot::Sender<Answer>,
    _permit: OwnedSemaphorePermit,
}

impl Job {
    /// Answers the client, which may have disconnected.
    pub fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}

/// The outcome of a change.
pub type Answer = Result<Done, Refused>;

/// The change was made, or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// The steps that were taken, in order.
    pub steps: Vec<String>,
    /// What is questionable about the configuration.
    pub warnings: Vec<String>,
    /// The version of the running configuration.
    pub version: String,
}

/// The change was not made, and nothing has changed except what the faults name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The kind of refusal.
    pub refusal: Refusal,
    /// A summary in one line.
    pub title: String,
    /// Everything that is wrong.
    pub faults: Vec<Fault>,
}

/// Why a change was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request is invalid in itself.
    Invalid,
    /// It cannot be made while the daemon runs, or in the present state.
    Conflict,
    /// The client last saw another version of the configuration.
    Stale,
    /// The client's token has since been revoked.
    Revoked,
    /// There is nothing with that name.
    NotFound,
    /// It failed, and was undone.
    Failed,
    /// It is in progress, and takes longer than a client waits.
    UnderWay,
    /// The daemon does not answer.
    Silent,
}

/// A single fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where: file, line, column and option, or the name of what could not be changed.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

/// The published state of the daemon, which clients read without waiting for changes in progress.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The version of this configuration, which changes with each change.
    pub version: String,
    /// The running configuration as a file, without secrets.
    pub file: String,
    /// LUNs.
    pub luns: Vec<Value>,
    /// Targets with their groups.
    pub targets: Vec<Value>,
    /// Portals.
    pub portals: Vec<Value>,
    /// Their groups.
    pub portal_groups: Vec<Value>,
}

/// The daemon's sessions. These functions wait for cores, and are called on threads that may block.
pub trait Sessions: Send + Sync {
    /// All of them, ascending by `id`.
    ///
    /// # Errors
    /// When a core does not answer.
    fn list(&self) -> Result<Vec<Value>, Refused>;

    /// Ends one on behalf of a client, publishes an event on the hub, and returns the steps taken once it has ended completely.
    ///
    /// # Errors
    /// When there is no such session, or it does not end.
    fn end(&self, id: u64, dry_run: bool, who: &str, hub: &Hub) -> Result<Vec<String>, Refused>;
}

/// The daemon's counters, which are read without waiting for cores.
pub trait Readings: Send + Sync {
    /// The counters and present state of these LUNs, by name.
    fn luns(&self, names: &BTreeSet<&str>) -> BTreeMap<String, Map<String, Value>>;

    /// The cores.
    fn cores(&self) -> Value;

    /// All counters for Prometheus. With those of each session, this waits for the cores' lists.
    ///
    /// # Errors
    /// When a core does not answer.
    fn metrics(&self, format: Format, with_sessions: bool) -> Result<String, Refused>;
}

/// How metrics are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, 0.0.4.
    Prometheus,
}

/// Where changes are submitted, and state is published.
#[derive(Clone)]
pub struct Hub {
    submit: Arc<dyn Fn(Job) -> bool + Send + Sync>,
    permits: Arc<Semaphore>,
    state: Arc<Mutex<Arc<State>>>,
    access: Arc<Mutex<Access>>,
    sessions: Arc<dyn Sessions>,
    readings: Arc<dyn Readings>,
    listed: Arc<tokio::sync::Mutex<Option<Listed>>>,
    ring: Arc<Ring>,
}

/// The most recent list of sessions.
struct Listed {
    /// When it was requested: clients that have waited since before then may use it.
    begin: Instant,
    /// When the next one may be requested from the cores.
    next: Instant,
    /// `None`: it was for metrics.
    sessions: Option<Result<Arc<Vec<Value>>, Refused>>,
}

/// Cores spend at most one part in this many on lists of sessions.
const SHARE: u32 = 20;
/// The longest pause between two lists.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Hub {
    /// A hub whose changes go to `submit`, which does not wait, and returns false when the daemon no longer takes any.
    pub fn new(
        submit: impl Fn(Job) -> bool + Send + Sync + 'static,
        sessions: Arc<dyn Sessions>,
        readings: Arc<dyn Readings>,
    ) -> Hub {
        Hub {
            submit: Arc::new(submit),
            permits: Arc::new(Semaphore::new(JOBS_MAX)),
            state: Arc::default(),
            access: Arc::default(),
            sessions,
            readings,
            listed: Arc::default(),
            ring: Arc::new(Ring::new(RandomState::new().hash_one(std::process::id()))),
        }
    }

    /// Publishes the new state.
    pub fn publish(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    /// Sets who may make changes over TCP from now on, and how new connections are encrypted.
    pub fn admit(&self, access: Access) {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = access;
    }

    /// Who may make changes over TCP.
    pub fn access(&self) -> Access {
        self.access.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends an event to the following clients, without waiting for them.
    pub fn report(&self, kind: &str, data: &Value) {
        self.ring.push(kind, data);
    }

    /// Follows events, starting after the last one that the client has seen; `None`: too many clients follow.
    pub(crate) fn follow(&self, last: Option<&str>) -> Option<Following> {
        self.ring.follow(last)
    }

    /// The state published last.
    pub(crate) fn state(&self) -> Arc<State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// These LUNs with their counters and present state.
    pub(crate) fn luns(&self, luns: &[Value]) -> Vec<Value> {
        let mut readings = self.readings.luns(&luns.iter().filter_map(|lun| lun["name"].as_str()).collect());
        let mut read = |mut lun: Value| {
            let reading = lun["name"].as_str().and_then(|name| readings.remove(name));
            if let (Value::Object(lun), Some(reading)) = (&mut lun, reading) {
                lun.extend(reading);
            }
            lun
        };
        luns.iter().cloned().map(&mut read).collect()
    }

    /// The cores.
    pub(crate) fn cores(&self) -> Value {
        self.readings.cores()
    }

    /// The sessions or, for the next pages of a list, the sessions as they were a moment ago. Lists take a
    /// bounded share of the cores' time: all clients that wait meanwhile get the same one.
    pub(crate) async fn sessions(&self, reads_on: bool) -> Result<Arc<Vec<Value>>, Refused> {
        let asked = Instant::now();
        let mut last = self.listed.clone().lock_owned().await;
        if let Some(last) = &*last {
            let is_new = last.begin >= asked || (reads_on && Instant::now() < last.next);
            if let Some(sessions) = last.sessions.as_ref().filter(|_| is_new) {
                return sessions.clone();
            }
            sleep_until(last.next).await;
        }
        let sessions = self.sessions.clone();
        let listed = spawn_blocking(move || {
            let begin = Instant::now();
            let sessions = sessions.list().map(Arc::new);
            // Even if the client has disconnected meanwhile.
            *last = Some(Listed { begin, next: next(begin), sessions: Some(sessions.clone()) });
            sessions
        });
        listed.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Metrics; with those of each session, no more often than lists of sessions.
    pub(crate) async fn metrics(&self, format: Format, with_sessions: bool) -> Result<String, Refused> {
        if !with_sessions {
            return self.readings.metrics(format, false);
        }
        let mut last = self.listed.clone().lock_owned().await;
        if let Some(last) = &*last {
            sleep_until(last.next).await;
        }
        let readings = self.readings.clone();
        let read = spawn_blocking(move || {
            let begin = Instant::now();
            let metrics = readings.metrics(format, true);
            *last = Some(Listed { begin, next: next(begin), sessions: None });
            metrics
        });
        read.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Ends a session; `None`: too many changes are waiting.
    pub(crate) async fn end_session(&self, id: u64, dry_run: bool, who: String) -> Option<Answer> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let hub = self.clone();
        let ended = spawn_blocking(move || {
            let _permit = permit;
            hub.sessions.end(id, dry_run, &who, &hub)
        });
        let steps = ended.await.unwrap_or_else(|_| Err(ending()));
        let version = self.state().version.clone();
        Some(steps.map(|steps| Done { steps, warnings: Vec::new(), version }))
    }

    /// Submits a change; `None`: too many are pending, or the daemon no longer takes any.
    pub(crate) fn submit(
        &self,
        change: ChangeRequest,
        dry_run: bool,
        expected: Option<String>,
        peer: &Peer,
    ) -> Option<oneshot::Receiver<Answer>> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let (reply, answer) = oneshot::channel();
        let (who, token) = (peer.to_string(), peer.token().cloned());
        (self.submit)(Job { change, dry_run, expected, who, token, reply, _permit: permit }).then_some(answer)
    }
}

/// When the next list may be requested, if the last was requested at `begin`.
fn next(begin: Instant) -> Instant {
    Instant::now() + (begin.elapsed() * SHARE).min(PAUSE_MAX)
}

fn ending() -> Refused {
    Refused { refusal: Refusal::Silent, title: "the daemon is ending".into(), faults: Vec::new() }
}
