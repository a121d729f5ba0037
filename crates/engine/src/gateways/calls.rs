//! Blocking calls of a shared unit's thread to the pool and the image.

use crate::gateway_handle::GatewayEvent;
use cluster::ReplaceError;
use config::RbdImage;
use std::sync::{Arc, mpsc};
use store::lane::Failover;
use store::rados::{Notification, Pool, PoolError, Watch};

/// A call for the unit's object, which keeps the gateway from anything else until it has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectCall {
    /// Read the object, and watch it.
    Read,
    /// Replace the object's version, or create the object.
    Replace {
        /// The version that it must have; `None`: it must not exist.
        expected: Option<u64>,
        /// The new content.
        bytes: Vec<u8>,
    },
    /// Notify the watchers of the object.
    Notify,
}

/// A call that concerns the image and the monitors, and takes its time: meanwhile the gateway goes on to read and write
/// the object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageCall {
    /// See [`Failover::promote`].
    Promote {
        /// Clients to be fenced.
        fence: Vec<String>,
    },
    /// See [`Failover::catch_up`].
    CatchUp,
    /// See [`Failover::fence`].
    Fence {
        /// Clients to be fenced.
        clients: Vec<String>,
    },
    /// See [`Failover::demote`].
    Demote,
    /// See [`Failover::reopen`].
    Reopen,
}

/// The outcome of an [`ObjectCall`] or [`ImageCall`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The object's version and content, if there is one.
    Read(Result<Option<(u64, Vec<u8>)>, String>),
    /// Its new version.
    Replaced(Result<u64, ReplaceError>),
    /// The watchers were notified, or not.
    Notified,
    /// This gateway may write, and no other.
    Promoted(Result<(), String>),
    /// Its requests carry what was fenced, and it may write.
    CaughtUp(Result<(), String>),
    /// These clients can no longer write.
    Fenced(Result<(), String>),
    /// It no longer writes.
    Demoted(Result<(), String>),
    /// The image's new client.
    Reopened(Result<String, String>),
}

impl ImageCall {
    fn make(&self, store: &dyn Failover) -> Answer {
        match self {
            ImageCall::Promote { fence } => Answer::Promoted(store.promote(fence)),
            ImageCall::CatchUp => Answer::CaughtUp(store.catch_up()),
            ImageCall::Fence { clients } => Answer::Fenced(store.fence(clients)),
            ImageCall::Demote => Answer::Demoted(store.demote()),
            ImageCall::Reopen => {
                let client = || store.client().ok_or_else(|| "it has no client".to_owned());
                Answer::Reopened(store.reopen().and_then(|()| client()))
            }
        }
    }

    /// Its answer if it could not be made.
    fn failed(&self, why: String) -> Answer {
        match self {
            ImageCall::Promote { .. } => Answer::Promoted(Err(why)),
            ImageCall::CatchUp => Answer::CaughtUp(Err(why)),
            ImageCall::Fence { .. } => Answer::Fenced(Err(why)),
            ImageCall::Demote => Answer::Demoted(Err(why)),
            ImageCall::Reopen => Answer::Reopened(Err(why)),
        }
    }
}

/// A call that was begun. It is answered when this is dropped, whatever has become of its thread: otherwise the gateway
/// would wait for it forever.
struct Begun {
    call: ImageCall,
    answer: Option<Answer>,
    done: mpsc::Sender<Answer>,
    inbox: mpsc::Sender<GatewayEvent>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let answer = self.answer.take().unwrap_or_else(|| {
            self.call
                .failed("the call has ended without an answer, because of a bug or a lack of threads".into())
        });
        // The unit's thread may have ended.
        let _ = self.done.send(answer);
        let _ = self.inbox.send(GatewayEvent::CallEnded);
    }
}

/// Makes calls: at any time one that concerns the object, and one that concerns the image.
pub(super) struct Calls {
    object: String,
    place: RbdImage,
    /// The channel to the unit's thread.
    inbox: mpsc::Sender<GatewayEvent>,
    pool: Option<Arc<Pool>>,
    watch: Option<Watch>,
    /// The last one sent, if any.
    notification: Option<Notification>,
    /// The answers to what was begun.
    done: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
}

impl Calls {
    pub(super) fn new(object: String, place: RbdImage, inbox: mpsc::Sender<GatewayEvent>) -> Calls {
        let (done, answers) = mpsc::channel();
        Calls { object, place, inbox, pool: None, watch: None, notification: None, done, answers }
    }

    /// Begins one that concerns the image.
    pub(super) fn begin(&self, store: Arc<dyn Failover>, call: ImageCall) {
        let (done, inbox) = (self.done.clone(), self.inbox.clone());
        let mut begun = Begun { call, answer: None, done, inbox };
        let work = move || begun.answer = Some(begun.call.make(&*store));
        if let Err(error) = std::thread::Builder::new().name("gateway-call".into()).spawn(work) {
            tracing::error!("a thread for a call to the cluster of {}: {error}", self.object);
        }
    }

    /// The answer to one of those, if it has ended.
    pub(super) fn ended(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }

    pub(super) fn make(&mut self, call: ObjectCall) -> Answer {
        match call {
            ObjectCall::Read => Answer::Read(self.read()),
            ObjectCall::Replace { expected, bytes } => Answer::Replaced(self.replace(expected, &bytes)),
            ObjectCall::Notify => {
                // If it is not sent, they find out at their own pace.
                self.notification = self.pool.as_ref().and_then(|pool| pool.notify(&self.object));
                Answer::Notified
            }
        }
    }

    /// Waits until others know what was last written: this process may end.
    pub(super) fn end(self) {
        self.notification.into_iter().for_each(Notification::wait);
    }

    fn read(&mut self) -> Result<Option<(u64, Vec<u8>)>, String> {
        let found = self.pool()?.read(&self.object);
        let found = found.map_err(|error| self.failed(&error))?;
        if found.is_some() && self.watch.is_none() {
            self.watch();
        }
        Ok(found)
    }

    fn replace(&mut self, expected: Option<u64>, bytes: &[u8]) -> Result<u64, ReplaceError> {
        let pool = self.pool().map_err(ReplaceError::Failed)?;
        match pool.replace(&self.object, expected, bytes) {
            Ok(version) => Ok(version),
            Err(PoolError::Conflict) => Err(ReplaceError::Conflict),
            Err(error) => Err(ReplaceError::Failed(self.failed(&error))),
        }
    }

    /// The pool, opened if necessary.
    fn pool(&mut self) -> Result<Arc<Pool>, String> {
        if let Some(pool) = &self.pool {
            return Ok(pool.clone());
        }
        let pool = Arc::new(Pool::open(&self.place).map_err(|error| error.to_string())?);
        Ok(self.pool.insert(pool).clone())
    }

    /// Watches for changes that others report; otherwise it polls.
    fn watch(&mut self) {
        let inbox = self.inbox.clone();
        let hint = Box::new(move || _ = inbox.send(GatewayEvent::ObjectChanged));
        let watch = self.pool.as_ref().map(|pool| pool.watch(&self.object, hint));
        self.watch = watch.and_then(Result::ok);
    }

    /// A fenced client is replaced by another one.
    fn failed(&mut self, error: &PoolError) -> String {
        match error {
            PoolError::Fenced => (self.watch, self.pool) = (None, None),
            PoolError::Conflict | PoolError::Failed(_) => {}
        }
        format!("object {} of pool {}: {error}", self.object, self.place.pool)
    }
}
