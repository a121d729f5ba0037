//! Which of the gateways that share an image access it. With [`Access::One`] it is the one with the exclusive
//! lock; the others have it open, in standby. With [`Access::All`] there is no lock: gateways access it once
//! they are registered, and until they are fenced.
//!
//! What a client has sent and the cluster has not executed yet must never overwrite what is written after its
//! lock was broken. The monitors agree that the OSDs refuse what it sends (the blocklist), which creates a
//! new map of the OSDs. A client that has this map sends its number with each operation, and an OSD that does
//! not have it yet gets it before it executes the operation; from then on it refuses the old client. So
//! operations are accepted once the image's own client has the map. If several gateways access the image, a
//! fence is complete when each of them has it.

use super::open::{BLOCKLIST_SECONDS, SEE_CEPH, fault, name, open_client, text};
use super::sys::{Image, c_text};
use super::{Client, RbdStore, close};
use crate::calls::Shared;
use crate::lane::Failover;
use crate::rados::SILENCE;
use config::Access;
use rustix::io::Errno;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a change of role waits for the cluster.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The operations on an image and its cluster that a change of role needs. All block; errors are system error
/// numbers.
pub trait Exclusive {
    /// Fences a client, by the monitors.
    ///
    /// # Errors
    /// When they do not.
    fn blocklist(&self, client: &str) -> Result<(), i32>;

    /// Waits until this client has the monitors' current OSD map.
    ///
    /// # Errors
    /// When it does not get it.
    fn wait_for_latest_map(&self) -> Result<(), i32>;

    /// Whether this client has the image's lock.
    ///
    /// # Errors
    /// When there is no answer.
    fn owns_lock(&self) -> Result<bool, i32>;

    /// The client that has the lock.
    ///
    /// # Errors
    /// When there is no answer.
    fn lock_owner(&self) -> Result<Option<String>, i32>;

    /// Breaks that client's lock.
    ///
    /// # Errors
    /// When there is no answer, or that client does not have the lock.
    fn break_lock(&self, owner: &str) -> Result<(), i32>;

    /// Takes the lock, if nobody has it.
    ///
    /// # Errors
    /// When there is no answer, or somebody has it.
    fn lock(&self) -> Result<(), i32>;

    /// Releases the lock.
    ///
    /// # Errors
    /// When there is no answer.
    fn unlock(&self) -> Result<(), i32>;

    /// Waits until everything begun has ended.
    ///
    /// # Errors
    /// When something failed.
    fn flush(&self) -> Result<(), i32>;

    /// The image's size.
    ///
    /// # Errors
    /// When there is no answer.
    fn size(&self) -> Result<u64, i32>;
}

/// What this client may do.
pub struct Roles {
    access: Option<Access>,
    /// The number of the client: how many there were before.
    client: AtomicU64,
    is_active: AtomicBool,
    /// Its gateway begins nothing new, whatever the client may do.
    is_suspended: AtomicBool,
    is_fenced: AtomicBool,
    /// Its lock is gone, although nobody has fenced it.
    has_lost_lock: AtomicBool,
    /// Its fence is complete.
    is_abandoned: AtomicBool,
    /// Changes so far: one that has timed out must not make it active.
    change: Mutex<u64>,
}

/// An attempt to become active.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    number: u64,
    was_active: bool,
}

/// An image, and its name for messages.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    /// The image.
    pub image: &'a dyn Exclusive,
    /// Its name.
    pub name: &'a str,
    /// It is read-only.
    pub read_only: bool,
}

impl Roles {
    /// Creates the roles of a gateway's client, in standby. `None`: no gateways share the image, and the
    /// client is active.
    pub fn new(access: Option<Access>) -> Roles {
        Roles {
            access,
            client: AtomicU64::new(0),
            is_active: access.is_none().into(),
            is_suspended: false.into(),
            is_fenced: false.into(),
            has_lost_lock: false.into(),
            is_abandoned: false.into(),
            change: Mutex::default(),
        }
    }

    /// Whether all gateways access the image.
    pub fn are_for_all(&self) -> bool {
        self.access == Some(Access::All)
    }

    /// The number of the present client.
    pub fn client(&self) -> u64 {
        self.client.load(Ordering::Acquire)
    }

    /// Whether the fence of the client with this number is complete.
    pub fn have_abandoned(&self, client: u64) -> bool {
        self.are_for_all() && (client != self.client() || self.is_abandoned.load(Ordering::Acquire))
    }

    /// Whether operations are accepted.
    pub fn accepts(&self) -> bool {
        self.may_access() && !self.is_suspended.load(Ordering::Acquire)
    }

    /// Whether operations are not accepted, or would only wait with others. Those of an earlier client do not count:
    /// it was fenced, or they have ended at the medium.
    pub fn are_lost(&self, shared: &Shared) -> bool {
        let client = self.client();
        !self.accepts() || shared.has_abandoned_of(client) || shared.is_stuck(client)
    }

    fn may_access(&self) -> bool {
        self.is_active.load(Ordering::Acquire) && !self.is_fenced()
    }

    /// Whether no calls are begun until further notice, also of operations in flight; those that were begun go on.
    pub fn suspend(&self, is_suspended: bool) {
        self.is_suspended.store(is_suspended, Ordering::Release);
    }

    /// Whether the cluster refuses this client.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Acquire)
    }

    /// The cluster has fenced this client.
    pub fn notice_fence(&self) {
        self.is_fenced.store(true, Ordering::Release);
    }

    /// What it writes is refused because it lacks the lock, or is not.
    pub fn notice_lock(&self, is_lost: bool) {
        if self.has_lost_lock.load(Ordering::Relaxed) != is_lost {
            self.has_lost_lock.store(is_lost, Ordering::Relaxed);
        }
    }

    /// Whether what this client has begun makes no progress for so long that another gateway should take over. If it is
    /// the only one, `is_lost`: the medium has not answered, as far as is known otherwise.
    pub fn are_stuck(&self, shared: &Shared, is_lost: bool) -> bool {
        let client = self.client();
        if self.are_for_all() {
            return shared.is_stuck(client) && !self.have_abandoned(client);
        }
        let lacks_lock = self.has_lost_lock.load(Ordering::Relaxed);
        self.accepts() && (is_lost || lacks_lock || shared.has_abandoned_of(client))
    }

    fn change(&self) -> MutexGuard<'_, u64> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fence of this client is complete. It accepts no operations any more.
    pub fn abandon_client(&self) {
        self.deactivate();
        self.is_abandoned.store(true, Ordering::Release);
    }

    /// Accepts operations, if this is still the last change.
    fn activate(&self, number: u64) -> bool {
        let change = self.change();
        let is_last = *change == number && !self.is_fenced() && !self.have_abandoned(self.client());
        if is_last {
            self.notice_lock(false);
            self.is_active.store(true, Ordering::Release);
        }
        is_last
    }

    /// Accepts no operations until the next change.
    pub fn deactivate(&self) {
        *self.change() += 1;
        self.is_active.store(false, Ordering::Release);
    }

    /// It is another client, in standby.
    pub fn renew(&self) {
        self.is_active.store(false, Ordering::Release);
        self.client.fetch_add(1, Ordering::AcqRel);
        self.is_fenced.store(false, Ordering::Release);
        self.notice_lock(false);
        self.is_abandoned.store(false, Ordering::Release);
    }

    /// Begins to become active.
    pub fn attempt(&self) -> Attempt {
        let mut change = self.change();
        *change += 1;
        Attempt { number: *change, was_active: self.may_access() }
    }

    /// Nobody waits for an attempt any more; returns whether it has succeeded after all.
    pub fn abandon(&self, attempt: Attempt) -> bool {
        let mut change = self.change();
        *change += 1;
        !attempt.was_active && self.may_access()
    }

    /// Fences others, takes the lock, and accepts operations. `resized`: gets the image's size, since in
    /// standby nobody checks whether it was resized.
    ///
    /// # Errors
    /// When somebody else has the lock, or the cluster does not answer.
    pub fn promote(
        &self,
        named: Named<'_>,
        attempt: Attempt,
        fence: &[String],
        resized: impl FnOnce(u64),
    ) -> Result<(), String> {
        let Attempt { number, was_active } = attempt;
        let taken = self.take(named, fence).map(resized);
        if taken.is_ok() && (was_active || self.activate(number)) {
            return Ok(());
        }
        if !was_active && self.locks(named) {
            let _ = named.image.unlock();
        }
        let shut_out = || self.failed(named.name, "it cannot be used", Errno::SHUTDOWN.raw_os_error());
        taken.and_then(|()| Err(if self.is_fenced() { shut_out() } else { named.name.to_owned() }))
    }

    /// Accepts operations once they carry what was fenced so far.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub fn catch_up(
        &self,
        named: Named<'_>,
        attempt: Attempt,
        resized: impl FnOnce(u64),
    ) -> Result<(), String> {
        assert!(self.are_for_all(), "only one gateway accesses it, and needs the lock");
        self.promote(named, attempt, &[], resized)
    }

    /// Fences clients; the operations of this one, whose address is `own`, carry that. It may be one of them.
    ///
    /// # Errors
    /// When the cluster does not answer.
    pub fn fence(&self, named: Named<'_>, clients: &[String], own: &str) -> Result<(), String> {
        let failed = |what: &'static str| move |error| self.failed(named.name, what, error);
        for client in clients {
            named.image.blocklist(client).map_err(failed("shutting a client out"))?;
        }
        if clients.iter().any(|client| client == own) {
            // It has no operations any more that would have to carry it.
            self.notice_fence();
            return Ok(());
        }
        named.image.wait_for_latest_map().map_err(failed("the map of its OSDs"))
    }

    /// Whether this client needs the image's lock.
    fn locks(&self, named: Named<'_>) -> bool {
        !named.read_only && !self.are_for_all()
    }

    /// Whether the client may be about to write what another one has to have it fenced for.
    fn may_write_late(&self, shared: &Shared) -> bool {
        self.has_lost_lock.load(Ordering::Relaxed) || shared.has_abandoned_of(self.client())
    }

    /// Releases the lock, once everything started has ended.
    ///
    /// # Errors
    /// When it could not be released, or something may end later than that.
    pub fn release(&self, named: Named<'_>, shared: &Shared) -> Result<(), String> {
        let failed = |what: &'static str| move |error| self.failed(named.name, what, error);
        let image = named.image;
        if self.are_for_all() {
            // What was fenced may never end.
            let is_over = self.is_fenced() || self.have_abandoned(self.client());
            return if is_over { Ok(()) } else { image.flush().map_err(failed("flushing it")) };
        }
        if !self.locks(named) || self.is_fenced() {
            return Ok(());
        }
        if self.may_write_late(shared) {
            return Err(format!("{}: what this client has written may still be on its way", named.name));
        }
        if image.owns_lock().map_err(failed("its lock"))? {
            image.flush().map_err(failed("flushing it"))?;
            image.unlock().map_err(failed("its lock cannot be released"))?;
        }
        Ok(())
    }

    /// The same before another client replaces this one. If it does not let go of the image, which is not waited for,
    /// whoever uses that next has it fenced: the gateways still know it as one that has access. `is_lost`: the medium
    /// has not answered.
    ///
    /// # Errors
    /// When it could not be released, and nothing shows that it hangs.
    pub fn retire(&self, named: Named<'_>, shared: &Shared, is_lost: bool) -> Result<(), String> {
        if !self.are_for_all() && (is_lost || self.may_write_late(shared)) {
            return Ok(());
        }
        let released = self.release(named, shared);
        // A fenced client has nothing to release.
        if self.is_fenced() { Ok(()) } else { released }
    }

    fn failed(&self, name: &str, what: &str, error: i32) -> String {
        if error == Errno::SHUTDOWN.raw_os_error() {
            self.notice_fence();
        }
        format!("{name}: {what}: {}", text(error))
    }

    /// Fences others, and takes the lock; returns the image's size.
    fn take(&self, named: Named<'_>, fence: &[String]) -> Result<u64, String> {
        let failed = |what: &'static str| move |error| self.failed(named.name, what, error);
        let image = named.image;
        for client in fence {
            image.blocklist(client).map_err(failed("shutting a client out"))?;
        }
        if self.locks(named) && !image.owns_lock().map_err(failed("its lock"))? {
            self.break_lock(named, fence)?;
            image.lock().map_err(failed("it cannot be locked"))?;
        }
        image.wait_for_latest_map().map_err(failed("the map of its OSDs"))?;
        image.size().map_err(failed("its size"))
    }

    /// Breaks the lock of one of these clients.
    fn break_lock(&self, named: Named<'_>, fence: &[String]) -> Result<(), String> {
        let Named { image, name, .. } = named;
        let failed = |what: &'static str| move |error| self.failed(name, what, error);
        let Some(owner) = image.lock_owner().map_err(failed("its lock"))? else { return Ok(()) };
        if !fence.contains(&owner) {
            // librbd would break the lock of one that has died, whichever it is.
            return Err(format!(
                "{name}: client {owner} has locked it; stop that client (rbd status and rbd lock ls show it), or, if \
                 it has died, remove its lock (rbd lock rm)"
            ));
        }
        match image.break_lock(&owner) {
            // It was released meanwhile.
            Err(error) if error == Errno::NOENT.raw_os_error() => Ok(()),
            result => result.map_err(failed("its lock cannot be broken")),
        }
    }
}

impl Exclusive for Image {
    fn blocklist(&self, client: &str) -> Result<(), i32> {
        self.cluster().blocklist(&c_text(client)?, BLOCKLIST_SECONDS)
    }

    fn wait_for_latest_map(&self) -> Result<(), i32> {
        self.cluster().wait_for_latest_map()
    }

    fn owns_lock(&self) -> Result<bool, i32> {
        Image::owns_lock(self)
    }

    fn lock_owner(&self) -> Result<Option<String>, i32> {
        Ok(Image::lock_owner(self)?.map(|owner| owner.to_string_lossy().into_owned()))
    }

    fn break_lock(&self, owner: &str) -> Result<(), i32> {
        Image::break_lock(self, &c_text(owner)?)
    }

    fn lock(&self) -> Result<(), i32> {
        Image::lock(self)
    }

    fn unlock(&self) -> Result<(), i32> {
        Image::unlock(self)
    }

    fn flush(&self) -> Result<(), i32> {
        Image::flush(self)
    }

    fn size(&self) -> Result<u64, i32> {
        Image::size(self)
    }
}

impl Failover for RbdStore {
    fn client(&self) -> Option<String> {
        Some(self.open().address.clone())
    }

    fn promote(&self, fence: &[String]) -> Result<(), String> {
        let (attempt, fence) = (self.roles.attempt(), fence.to_vec());
        let promoted = self.change(move |store| {
            let image = store.image();
            let resized = |size| store.size.store(size, Ordering::Relaxed);
            store.roles.promote(store.named(&image), attempt, &fence, resized)
        });
        // It may have become active after all.
        promoted.unwrap_or_else(|| if self.roles.abandon(attempt) { Ok(()) } else { self.unanswered() })
    }

    fn catch_up(&self) -> Result<(), String> {
        let attempt = self.roles.attempt();
        let caught_up = self.change(move |store| {
            let image = store.image();
            let resized = |size| store.size.store(size, Ordering::Relaxed);
            store.roles.catch_up(store.named(&image), attempt, resized)
        });
        caught_up.unwrap_or_else(|| if self.roles.abandon(attempt) { Ok(()) } else { self.unanswered() })
    }

    fn fence(&self, clients: &[String]) -> Result<(), String> {
        let clients = clients.to_vec();
        let fenced = self.change(move |store| {
            let image = store.image();
            let own = store.open().address.clone();
            store.roles.fence(store.named(&image), &clients, &own)
        });
        fenced.unwrap_or_else(|| self.unanswered())
    }

    fn is_stuck(&self) -> bool {
        self.roles.are_stuck(&self.shared, self.is_lost.load(Ordering::Relaxed))
    }

    fn suspend(&self, is_suspended: bool) {
        self.roles.suspend(is_suspended);
    }

    fn abandon(&self) {
        if self.roles.are_for_all() {
            self.roles.abandon_client();
        }
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
            let is_lost = store.is_lost.load(Ordering::Relaxed);
            store.roles.retire(store.named(&store.image()), &store.shared, is_lost)?;
            store.replace_client()
        })
        .unwrap_or_else(|| self.unanswered())
    }
}

impl RbdStore {
    /// Does work that may hang, unless such work already hangs. `None`: it has not ended in time.
    fn change(
        &self,
        work: impl FnOnce(&RbdStore) -> Result<(), String> + Send + 'static,
    ) -> Option<Result<(), String>> {
        let store = self.itself.upgrade()?;
        self.changes.run(move || work(&store))
    }

    fn unanswered(&self) -> Result<(), String> {
        Err(format!("{}: {SILENCE}", self.name))
    }

    fn deactivate(&self) {
        self.roles.deactivate();
        // Whatever was being started has been started.
        drop(self.open_mut());
    }

    fn named<'a>(&'a self, image: &'a Image) -> Named<'a> {
        Named { image, name: &self.name, read_only: self.read_only }
    }

    fn release(&self) -> Result<(), String> {
        self.roles.release(self.named(&self.image()), &self.shared)
    }

    /// Becomes a new client. The calls of the old one end, and no longer count.
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
        let old = replace(&mut *open, Client::new(image, number, address));
        self.roles.renew();
        drop(open);
        drop(old.extents);
        close(old.image);
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        (probe.asked, probe.failed, probe.next) = (None, None, Instant::now());
        self.is_lost.store(false, Ordering::Relaxed);
        Ok(())
    }
}
