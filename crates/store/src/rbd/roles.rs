//! Which of the gateways that share an image writes to it: the one that has the exclusive lock. Others have it open, in standby.
//!
//! What a client has sent and the cluster has not done yet must never land over what is written after its lock was broken. The
//! monitors agree that the OSDs refuse what it sends (the blocklist), which makes a new map of the OSDs. A client that has this map
//! sends its number with each operation, and an OSD that does not have it yet gets it before it executes the operation; from then on
//! it refuses the old client. So operations are accepted once the image's own client has the map.

use super::open::{BLOCKLIST_SECONDS, SEE_CEPH, fault, name, open_client, text};
use super::sys::{Image, c_text};
use super::{Client, RbdStore, close};
use crate::bounded::Bounded;
use crate::lane::Failover;
use rustix::io::Errno;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a change of role waits for the cluster.
const PATIENCE: Duration = Duration::from_secs(30);

/// What this client may do.
pub(super) struct Roles {
    is_active: AtomicBool,
    is_fenced: AtomicBool,
    /// Changes so far: one that nobody waits for any more must not make it active.
    change: Mutex<u64>,
    /// One change at a time.
    bounded: Bounded,
}

impl Roles {
    pub(super) fn new(is_active: bool) -> Roles {
        Roles {
            is_active: is_active.into(),
            is_fenced: false.into(),
            change: Mutex::default(),
            bounded: Bounded::new(PATIENCE, 1),
        }
    }

    /// Whether operations are accepted.
    pub(super) fn accepts(&self) -> bool {
        self.is_active.load(Ordering::Acquire) && !self.is_fenced()
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    /// The cluster refuses this client.
    pub(super) fn fence(&self) {
        self.is_fenced.store(true, Ordering::Release);
    }

    fn change(&self) -> MutexGuard<'_, u64> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts operations as long as this is the last change.
    fn activate(&self, number: u64) -> bool {
        let change = self.change();
        let is_last = *change == number && !self.is_fenced();
        if is_last {
            self.is_active.store(true, Ordering::Release);
        }
        is_last
    }

    /// Accepts no operations until the next change.
    fn deactivate(&self) {
        *self.change() += 1;
        self.is_active.store(false, Ordering::Release);
    }
}

impl Failover for RbdStore {
    fn client(&self) -> Option<String> {
        Some(self.open().address.clone())
    }

    fn promote(&self, fence: &[String]) -> Result<(), String> {
        let number = {
            let mut change = self.roles.change();
            *change += 1;
            *change
        };
        let (was_active, fence) = (self.roles.accepts(), fence.to_vec());
        let promoted = self.change(move |store| {
            let image = store.image();
            let taken = store.take(&image, &fence);
            if taken.is_ok() && (was_active || store.roles.activate(number)) {
                return Ok(());
            }
            if !was_active {
                let _ = image.unlock();
            }
            let shut_out = || store.failed("it cannot be used", Errno::SHUTDOWN.raw_os_error());
            taken.and_then(|()| Err(if store.roles.is_fenced() { shut_out() } else { store.name.clone() }))
        });
        promoted.unwrap_or_else(|| {
            let mut change = self.roles.change();
            *change += 1;
            // It may have become active after all.
            if !was_active && self.roles.accepts() { Ok(()) } else { self.unanswered() }
        })
    }

    fn demote(&self) -> Result<(), String> {
        self.deactivate();
        self.change(RbdStore::release).unwrap_or_else(|| self.unanswered())
    }

    fn is_fenced(&self) -> bool {
        self.roles.is_fenced()
    }

    fn reopen(&self) -> Result<(), String> {
        self.deactivate();
        self.change(|store| {
            let released = store.release();
            // Of one that was shut out there is nothing to release.
            if !store.is_fenced() {
                released?;
            }
            store.replace_client()
        })
        .unwrap_or_else(|| self.unanswered())
    }
}

impl RbdStore {
    /// Does what may hang, unless something of that kind hangs already. `None`: it has not ended in time.
    fn change(
        &self,
        work: impl FnOnce(&RbdStore) -> Result<(), String> + Send + 'static,
    ) -> Option<Result<(), String>> {
        let store = self.itself.upgrade()?;
        self.roles.bounded.run(move || work(&store))
    }

    fn unanswered(&self) -> Result<(), String> {
        Err(format!("{}: the cluster does not answer", self.name))
    }

    fn deactivate(&self) {
        self.roles.deactivate();
        // What was being started has been started.
        drop(self.open_mut());
    }

    /// Releases the lock, once what was started has ended.
    fn release(&self) -> Result<(), String> {
        let failed = |what: &'static str| move |error| self.failed(what, error);
        let image = self.image();
        if !self.read_only && !self.is_fenced() && image.owns_lock().map_err(failed("its lock"))? {
            image.flush().map_err(failed("flushing it"))?;
            image.unlock().map_err(failed("its lock cannot be released"))?;
        }
        Ok(())
    }

    /// Becomes another client. The calls of the old one end, and no longer count.
    fn replace_client(&self) -> Result<(), String> {
        let opened = open_client(&self.place, self.options).and_then(|(image, address)| {
            let error = |error| fault(&self.place, format!("its identifier: {}", text(error)), SEE_CEPH);
            if self.id != Some(name(&self.place, &image).map_err(error)?) {
                return Err(fault(&self.place, "another image has its name", "rename that one (rbd rename)"));
            }
            Ok((image, address))
        });
        let (image, address) = opened.map_err(|error| error.to_string())?;
        let mut open = self.open_mut();
        let number = open.number + 1;
        let old = replace(&mut *open, Client { image: Some(Arc::new(image)), number, address });
        self.roles.is_active.store(false, Ordering::Release);
        self.roles.is_fenced.store(false, Ordering::Release);
        drop(open);
        close(old.image);
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        (probe.asked, probe.failed, probe.next) = (None, None, Instant::now());
        self.is_lost.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn failed(&self, what: &str, error: i32) -> String {
        if error == Errno::SHUTDOWN.raw_os_error() {
            self.roles.fence();
        }
        format!("{}: {what}: {}", self.name, text(error))
    }

    /// Shuts others out, and takes the lock.
    fn take(&self, image: &Image, fence: &[String]) -> Result<(), String> {
        let failed = |what: &'static str| move |error| self.failed(what, error);
        for client in fence {
            let client = c_text(client.as_str()).map_err(failed("an address"))?;
            image.cluster().blocklist(&client, BLOCKLIST_SECONDS).map_err(failed("shutting a client out"))?;
        }
        if !self.read_only && !image.owns_lock().map_err(failed("its lock"))? {
            self.break_lock(image, fence)?;
            image.lock().map_err(failed("it cannot be locked"))?;
        }
        image.cluster().wait_for_latest_map().map_err(failed("the map of its OSDs"))?;
        // In standby nobody looked whether it was resized.
        self.size.store(image.size().map_err(failed("its size"))?, Ordering::Relaxed);
        Ok(())
    }

    /// Breaks the lock of one of these.
    fn break_lock(&self, image: &Image, fence: &[String]) -> Result<(), String> {
        let failed = |what: &'static str| move |error| self.failed(what, error);
        let Some(owner) = image.lock_owner().map_err(failed("its lock"))? else { return Ok(()) };
        let address = owner.to_string_lossy();
        if !fence.iter().any(|client| *client == address) {
            // librbd would break the lock of one that has died, whoever it is.
            return Err(format!(
                "{}: the client {address} has locked it; end that one (rbd status and rbd lock ls show it), or, if it has died, remove \
                 its lock (rbd lock rm)",
                self.name
            ));
        }
        match image.break_lock(&owner) {
            // It has let go meanwhile.
            Err(error) if error == Errno::NOENT.raw_os_error() => Ok(()),
            result => result.map_err(failed("its lock cannot be broken")),
        }
    }
}
