//! A pool of objects, in which daemons that share an image store what they have to agree on: an object is
//! replaced only by a client that knows its version, and its watchers are notified.
//!
//! Everything blocks, for [`PATIENCE`] at most. What was not answered until then may still happen, but never
//! to an object that was replaced meanwhile.

use crate::bounded::Bounded;
use crate::error::OpenError;
use crate::rbd::open::{connect, error_text, find_pool};
use crate::rbd::sys::{self, c_text};
use config::RbdImage;
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How long an operation waits for the cluster.
pub const PATIENCE: Duration = Duration::from_secs(12);

/// How many operations may hang. Further ones fail at once.
const HANGING_MAX: usize = 16;

/// Options of librados: operations time out after this many seconds.
const OPTIONS: [(&CStr, &CStr); 2] = [(c"rados_osd_op_timeout", c"10"), (c"rados_mon_op_timeout", c"10")];

/// Maximum size of an object, in bytes.
const OBJECT_BYTES_MAX: usize = 1 << 20;

/// The cluster drops the watch of a client that has been silent this long.
const WATCH_SECONDS: u32 = 30;

/// How long a notification waits for the watchers.
const NOTIFY_MS: u64 = 1_000;

/// Most outstanding notifications: a watcher that hangs delays each by [`NOTIFY_MS`].
const NOTIFICATIONS_MAX: usize = 32;

/// How often a lost watch is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A pool, with its own client. Dropping it closes it, on a thread.
pub struct Pool {
    /// `None` when it is closed.
    pool: Option<Arc<sys::Pool>>,
    client: String,
    bounded: Arc<Bounded>,
    notifications: Bounded,
}

/// Why an operation failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// The object has another version than expected, or exists already.
    Conflict,
    /// The cluster has fenced this client.
    Fenced,
    /// Any other error; the operation may still take effect.
    Failed(String),
}

/// The end of the message for operations without an answer, which may be a passing problem.
pub const SILENCE: &str = "the cluster does not answer";

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolError::Conflict => "it has another version",
            PoolError::Fenced => "the cluster has put this client on its blocklist",
            PoolError::Failed(problem) => problem,
        })
    }
}

impl std::error::Error for PoolError {}

impl Pool {
    /// Connects to the pool of an image, with the same configuration and the same rights; blocks.
    ///
    /// # Errors
    /// When the libraries are missing, the cluster is unreachable or refuses, or there is no such pool.
    pub fn open(place: &RbdImage) -> Result<Pool, OpenError> {
        let pool = find_pool(place, connect(place, &OPTIONS)?)?;
        let client = pool.cluster().address().map_err(|error| {
            OpenError::new(place, format!("its client's address: {}", text(error)), "see ceph -s")
        })?;
        let bounded = Arc::new(Bounded::new(PATIENCE, HANGING_MAX));
        let notifications = Bounded::new(PATIENCE, NOTIFICATIONS_MAX);
        Ok(Pool { pool: Some(Arc::new(pool)), client, bounded, notifications })
    }

    /// The address of its client, as in a blocklist.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Reads an object, and its version; `None`: there is none.
    ///
    /// # Errors
    /// When the cluster refuses, or does not answer.
    pub fn read(&self, object: &str) -> Result<Option<(u64, Vec<u8>)>, PoolError> {
        match self.run(object, |pool, object| pool.read(object, OBJECT_BYTES_MAX + 1)) {
            Err(error) if error == Errno::NOENT.raw_os_error() => Ok(None),
            Ok((_, bytes)) if bytes.len() > OBJECT_BYTES_MAX => {
                Err(PoolError::Failed(format!("{object}: it is larger than {OBJECT_BYTES_MAX} bytes")))
            }
            result => result.map(Some).map_err(|error| failed(object, error)),
        }
    }

    /// Replaces an object that has the expected version, or creates it; returns its new version.
    ///
    /// # Errors
    /// [`PoolError::Conflict`] when it has another version, or exists already; when the cluster refuses, or
    /// does not answer.
    pub fn replace(&self, object: &str, expected: Option<u64>, bytes: &[u8]) -> Result<u64, PoolError> {
        if bytes.len() > OBJECT_BYTES_MAX {
            let problem = format!("{object}: {} bytes are more than {OBJECT_BYTES_MAX}", bytes.len());
            return Err(PoolError::Failed(problem));
        }
        let bytes = bytes.to_vec();
        let replaced = self.run(object, move |pool, object| pool.replace(object, expected, &bytes));
        replaced.map_err(|error| match Errno::from_raw_os_error(error) {
            // The version is larger or smaller, or the object does not exist, or it exists.
            Errno::RANGE | Errno::OVERFLOW | Errno::NOENT | Errno::EXIST => PoolError::Conflict,
            _ => failed(object, error),
        })
    }

    /// Notifies the watchers of an object, without waiting until they have acknowledged that. `None`: it was not sent, as
    /// too many notifications wait for a watcher that hangs.
    pub fn notify(&self, object: &str) -> Option<Notification> {
        let (pool, object) = (self.pool().clone(), c_name(object).ok()?);
        let ended = self.notifications.begin(move || _ = pool.notify(&object, NOTIFY_MS))?;
        Some(Notification { ended })
    }

    /// Watches an object, which must exist: `hint` is called on a notification, and when one may have been
    /// missed. It is called on a thread of librados, and must not block. A lost watch is replaced, as long as
    /// this client is not fenced.
    ///
    /// # Errors
    /// When the cluster refuses, or does not answer.
    pub fn watch(&self, object: &str, hint: Box<dyn Fn() + Send + Sync>) -> Result<Watch, PoolError> {
        let (events, inbox) = mpsc::channel();
        let (pool, name) = (self.pool().clone(), c_name(object).map_err(|error| failed(object, error))?);
        let watcher = Watcher { pool, object: name, hint: hint.into(), events: events.clone() };
        let begun = self.bounded.run(move || {
            let watch = watcher.watch()?;
            // Without the thread, the watch is ended by the caller.
            let thread = std::thread::Builder::new().name("ceph-watch".into());
            thread
                .spawn(move || watcher.keep(watch, &inbox))
                .map(drop)
                .map_err(|_| Errno::AGAIN.raw_os_error())
        });
        begun.unwrap_or(Err(NO_ANSWER)).map_err(|error| failed(object, error))?;
        Ok(Watch { events })
    }

    fn pool(&self) -> &Arc<sys::Pool> {
        self.pool.as_ref().expect("it is closed when it is dropped")
    }

    fn run<T: Send + 'static>(
        &self,
        object: &str,
        work: impl FnOnce(&sys::Pool, &CStr) -> Result<T, i32> + Send + 'static,
    ) -> Result<T, i32> {
        let (pool, object) = (self.pool().clone(), c_name(object)?);
        self.bounded.run(move || work(&pool, &object)).unwrap_or(Err(NO_ANSWER))
    }
}

/// Closing may wait for the cluster.
impl Drop for Pool {
    fn drop(&mut self) {
        let pool = self.pool.take();
        let _ = std::thread::Builder::new().name("ceph-close".into()).spawn(move || drop(pool));
    }
}

/// The error of an operation that timed out.
const NO_ANSWER: i32 = Errno::TIME.raw_os_error();

fn c_name(object: &str) -> Result<CString, i32> {
    c_text(object)
}

fn failed(object: &str, error: i32) -> PoolError {
    match Errno::from_raw_os_error(error) {
        Errno::SHUTDOWN => PoolError::Fenced,
        Errno::TIME | Errno::TIMEDOUT => PoolError::Failed(format!("{object}: {SILENCE}")),
        _ => PoolError::Failed(format!("{object}: {}", text(error))),
    }
}

fn text(error: i32) -> String {
    error_text(error.unsigned_abs())
}

/// A notification that was sent, or is about to be.
pub struct Notification {
    ended: mpsc::Receiver<()>,
}

impl Notification {
    /// Waits until all watchers have acknowledged it, or have had enough time.
    pub fn wait(self) {
        let _ = self.ended.recv_timeout(Duration::from_millis(2 * NOTIFY_MS));
    }
}

/// A watch of an object. Dropping it ends the watch, on its thread.
pub struct Watch {
    events: mpsc::Sender<Event>,
}

enum Event {
    Lost(i32),
    End,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Its thread may have ended, if nothing was left to watch.
        let _ = self.events.send(Event::End);
    }
}

/// Keeps an object watched.
struct Watcher {
    pool: Arc<sys::Pool>,
    object: CString,
    hint: Arc<dyn Fn() + Send + Sync>,
    events: mpsc::Sender<Event>,
}

impl Watcher {
    fn watch(&self) -> Result<sys::Watch, i32> {
        let (hint, events) = (self.hint.clone(), self.events.clone());
        let lose = move |error| {
            let _ = events.send(Event::Lost(error));
        };
        sys::Watch::new(&self.pool, &self.object, WATCH_SECONDS, Box::new(move || hint()), Box::new(lose))
    }

    fn keep(self, first: sys::Watch, inbox: &mpsc::Receiver<Event>) {
        let mut watch = Some(first);
        loop {
            let event = match watch {
                Some(_) => inbox.recv().unwrap_or(Event::End),
                None => match inbox.recv_timeout(RETRY_INTERVAL) {
                    Err(mpsc::RecvTimeoutError::Timeout) => Event::Lost(0),
                    event => event.unwrap_or(Event::End),
                },
            };
            let Event::Lost(error) = event else { return };
            drop(watch.take());
            let is_fenced = |error: i32| error == Errno::SHUTDOWN.raw_os_error();
            let next = if is_fenced(error) { Err(error) } else { self.watch() };
            if let Err(error) = next
                && is_fenced(error)
            {
                return (self.hint)();
            }
            watch = next.ok();
            // A notification may have been missed.
            (self.hint)();
        }
    }
}
