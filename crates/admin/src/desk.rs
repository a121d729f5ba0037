//! What clients ask for, on its way to the owner of the daemon and back.

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

/// Changes that wait to be made, with the one that is being made.
pub(crate) const JOBS_MAX: usize = 8;

/// A change that a client asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum ChangeRequest {
    /// Read the configuration file again, and apply what is different in it.
    Reload,
    /// Change one thing, in the file if there is one.
    Edit(Edit),
    /// Make a LUN larger, or smaller.
    Resize {
        /// Its name.
        lun: String,
        /// Its new size, as in the file.
        size: String,
        /// It may be smaller than before.
        may_lose_data: bool,
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
        }
    }
}

/// A change, and who waits for what becomes of it.
pub struct Job {
    /// What is to be done.
    pub change: ChangeRequest,
    /// Only say what would be done.
    pub dry_run: bool,
    /// The configuration that the client has seen last, as [`State`] names it; `None`: whatever it is.
    pub expected: Option<String>,
    /// Who asks, in words.
    pub who: String,
    /// The token that lets them, if they need one. It may be revoked until their turn comes.
    pub token: Option<Token>,
    reply: oneshot::Sender<Answer>,
    _permit: OwnedSemaphorePermit,
}

impl Job {
    /// Lets the client know. It may have gone.
    pub fn answer(self, answer: Answer) {
        let _ = self.reply.send(answer);
    }
}

/// What became of a change.
pub type Answer = Result<Done, Refused>;

/// It was done, or would be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Done {
    /// What was done to whom, in this order.
    pub steps: Vec<String>,
    /// What is questionable about it.
    pub warnings: Vec<String>,
    /// What names the configuration that runs now.
    pub version: String,
}

/// It was not done, and nothing has changed but for what the faults name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Of which kind.
    pub refusal: Refusal,
    /// In one line.
    pub title: String,
    /// All that is wrong.
    pub faults: Vec<Fault>,
}

/// Why something is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// What was asked for is wrong in itself.
    Invalid,
    /// It cannot be done while the daemon runs, or as things are now.
    Conflict,
    /// The client has seen another configuration last.
    Stale,
    /// The token that the client has asked with is none any more.
    Revoked,
    /// There is nothing of that name.
    NotFound,
    /// It was tried, failed, and was undone.
    Failed,
    /// It is under way, and takes longer than a client waits.
    UnderWay,
    /// The daemon does not answer.
    Silent,
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where: file, line, column and option, or the name of what could not be changed.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// How to fix it.
    pub fix: String,
}

/// What is published of the daemon: clients read it without waiting for whoever changes it.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// Names this configuration: another one has another.
    pub version: String,
    /// What runs, as a file without secrets.
    pub file: String,
    /// LUNs.
    pub luns: Vec<Value>,
    /// Targets with their groups.
    pub targets: Vec<Value>,
    /// Portals.
    pub portals: Vec<Value>,
}

/// The daemon's sessions. Cores are asked, so these functions may wait, and are called on threads that may.
pub trait Sessions: Send + Sync {
    /// All of them, ascending by `id`.
    ///
    /// # Errors
    /// When a core does not answer.
    fn list(&self) -> Result<Vec<Value>, Refused>;

    /// Ends one for somebody, reports that on the desk, and returns what was done when nothing of it is left.
    ///
    /// # Errors
    /// When there is none, or it does not end.
    fn end(&self, id: u64, dry_run: bool, who: &str, desk: &Desk) -> Result<Vec<String>, Refused>;
}

/// What the daemon counts: it is read without waiting for whoever serves.
pub trait Readings: Send + Sync {
    /// What there is to be read of these LUNs, besides what is published of them, by their names.
    fn luns(&self, names: &BTreeSet<&str>) -> BTreeMap<String, Map<String, Value>>;

    /// Cores.
    fn cores(&self) -> Value;

    /// All of it for Prometheus; with what each session did cores are asked for their sessions, and the answer waits for them.
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

/// Where changes are submitted, and what is published.
#[derive(Clone)]
pub struct Desk {
    submit: Arc<dyn Fn(Job) -> bool + Send + Sync>,
    permits: Arc<Semaphore>,
    state: Arc<Mutex<Arc<State>>>,
    access: Arc<Mutex<Access>>,
    sessions: Arc<dyn Sessions>,
    readings: Arc<dyn Readings>,
    listed: Arc<tokio::sync::Mutex<Option<Listed>>>,
    ring: Arc<Ring>,
}

/// The last list of sessions.
struct Listed {
    /// When it was begun: all who came before then may have it.
    begin: Instant,
    /// When cores may be asked for the next one.
    next: Instant,
    /// `None`: they were asked for metrics.
    sessions: Option<Result<Arc<Vec<Value>>, Refused>>,
}

/// Cores spend no more than one part of so many on what clients want to see of their sessions.
const SHARE: u32 = 20;
/// Between two questions at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Desk {
    /// A desk whose changes go to `submit`, which returns false when nobody takes them any more, and does not wait.
    pub fn new(
        submit: impl Fn(Job) -> bool + Send + Sync + 'static,
        sessions: Arc<dyn Sessions>,
        readings: Arc<dyn Readings>,
    ) -> Desk {
        Desk {
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

    /// Publishes what runs now.
    pub fn publish(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }

    /// Who may change it over TCP from now on, and what encrypts connections to come.
    pub fn admit(&self, access: Access) {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = access;
    }

    /// Who may change it over TCP.
    pub fn access(&self) -> Access {
        self.access.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Something happened: whoever follows events gets it, and nobody is waited for.
    pub fn report(&self, kind: &str, data: &Value) {
        self.ring.push(kind, data);
    }

    /// Follows events, behind the one that a client has seen last; `None`: too many do.
    pub(crate) fn follow(&self, last: Option<&str>) -> Option<Following> {
        self.ring.follow(last)
    }

    /// What was published last.
    pub(crate) fn state(&self) -> Arc<State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// These LUNs, with what there is to be read of them now.
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

    /// Cores.
    pub(crate) fn cores(&self) -> Value {
        self.readings.cores()
    }

    /// Sessions as they are now, or, for whoever reads on in a list, as they were a moment ago. Cores are not asked so often that
    /// they would have much to do with it: all clients that wait meanwhile get the same list.
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
            // Also for a client that has gone meanwhile.
            *last = Some(Listed { begin, next: next(begin), sessions: Some(sessions.clone()) });
            sessions
        });
        listed.await.unwrap_or_else(|_| Err(ending()))
    }

    /// Metrics; those of single sessions no more often than lists of sessions.
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

    /// Ends a session; `None`: too many other changes wait.
    pub(crate) async fn end_session(&self, id: u64, dry_run: bool, who: String) -> Option<Answer> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        let desk = self.clone();
        let ended = spawn_blocking(move || {
            let _permit = permit;
            desk.sessions.end(id, dry_run, &who, &desk)
        });
        let steps = ended.await.unwrap_or_else(|_| Err(ending()));
        let version = self.state().version.clone();
        Some(steps.map(|steps| Done { steps, warnings: Vec::new(), version }))
    }

    /// Submits a change; `None`: too many are waiting, or the daemon takes none any more.
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

/// When cores may be asked again that have answered since then.
fn next(begin: Instant) -> Instant {
    Instant::now() + (begin.elapsed() * SHARE).min(PAUSE_MAX)
}

fn ending() -> Refused {
    Refused { refusal: Refusal::Silent, title: "the daemon is ending".into(), faults: Vec::new() }
}
