//! The image as one daemon has it: a store whose calls the world carries out, and whose role changes as that of an image on Ceph.
#![expect(clippy::vec_box, reason = "a call stays where it is as it moves between lanes and the cluster")]

use super::rados::{Client, ESHUTDOWN, OBJECT_BYTES};
use crate::kernel::Kernel;
use crate::register::BLOCK_BYTES;
use config::Access;
use reactor::io::Tag;
use scsi::storage::{Found, Traits};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::calls::{Call, CallLane, Medium, Range, Shared};
use store::lane::{Backend, Failover, Lane, Store};
use store::rbd::roles::{Exclusive, Roles};

/// What has no answer yet.
const UNANSWERED: i32 = 62;

/// An image.
pub(super) struct Image {
    pub(super) roles: Roles,
    shared: Arc<Shared>,
    size_bytes: u64,
    give_up_after: Duration,
    stuck_after: Duration,
    /// Its present client, and how many there were in this process before.
    client: Mutex<(Client, u64)>,
    /// The claim under which it is active, counted over all gateways.
    pub(super) claim: AtomicU64,
    /// Calls that the world has yet to take.
    calls: Mutex<Vec<Box<Call>>>,
    /// How often lanes were woken by answers, and in all when this was last looked at.
    answers: AtomicU64,
    wakes_seen: AtomicU64,
}

impl Image {
    pub(super) fn new(client: Client, access: Access, size_bytes: u64, takeover: Duration) -> Arc<Image> {
        Arc::new(Image {
            roles: Roles::new(Some(access)),
            shared: Shared::new().expect("descriptors"),
            size_bytes,
            give_up_after: takeover.min(Duration::from_secs(20)),
            stuck_after: takeover * 3 / 5,
            client: Mutex::new((client, 0)),
            claim: AtomicU64::new(0),
            calls: Mutex::default(),
            answers: AtomicU64::new(0),
            wakes_seen: AtomicU64::new(0),
        })
    }

    fn present(&self) -> MutexGuard<'_, (Client, u64)> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its present client.
    pub(super) fn now(&self) -> Client {
        self.present().0
    }

    /// It is another client.
    pub(super) fn becomes(&self, client: Client) {
        let mut present = self.present();
        *present = (client, present.1 + 1);
        self.roles.renew();
    }

    /// Takes the calls that were begun.
    pub(super) fn take(&self) -> Vec<Box<Call>> {
        std::mem::take(&mut *self.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A call has ended.
    pub(super) fn answered(&self, call: Box<Call>) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        Call::answered(call);
    }

    /// Whether lanes were woken since this was last asked.
    pub(super) fn has_woken(&self) -> bool {
        let wakes = self.answers.load(Ordering::Relaxed) + self.shared.releases();
        self.wakes_seen.swap(wakes, Ordering::Relaxed) != wakes
    }

    fn notice_fence(&self, call: &Call) {
        if call.answer == -i64::from(ESHUTDOWN) {
            self.roles.notice_fence();
        }
    }
}

impl Medium for Image {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn size(&self) -> u64 {
        self.size_bytes
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn is_lost(&self) -> bool {
        self.roles.are_lost(&self.shared)
    }

    fn give_up_after(&self) -> Duration {
        self.give_up_after
    }

    fn has_other_writers(&self) -> bool {
        self.roles.are_for_all()
    }

    fn client(&self) -> u64 {
        self.roles.client()
    }

    fn has_abandoned(&self, client: u64) -> bool {
        self.roles.have_abandoned(client)
    }

    fn stuck_after(&self) -> Duration {
        self.stuck_after
    }

    fn clear_bytes(&self) -> u64 {
        2 * OBJECT_BYTES
    }

    fn extent(&self, _offset: u64) -> Option<Found> {
        None
    }

    fn swaps(&self, range: Range) -> bool {
        range.offset / OBJECT_BYTES == range.end().saturating_sub(1) / OBJECT_BYTES
    }

    fn accepts(&self, call: &Call) -> bool {
        let number = self.present().1;
        if call.client == number {
            self.notice_fence(call);
        }
        call.client == number && !self.roles.is_fenced()
    }

    fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        if !self.roles.accepts() || call.client != self.present().1 {
            return Err(call);
        }
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        Ok(())
    }
}

impl Store for Image {
    fn traits(&self) -> Traits {
        // A sector, if what takes a read and a write is not atomic.
        let compare_write_bytes_max = if self.roles.are_for_all() { BLOCK_BYTES } else { u32::MAX };
        let traits = Traits { compare_write_bytes_max, ..Traits::NONE };
        Traits { size_bytes: self.size_bytes, discards: true, solid_state: true, ..traits }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "an image of the simulated cluster".into()
    }
}

impl Backend<Kernel> for Image {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<Kernel>> {
        Box::new(CallLane::new(self, tags))
    }
}

/// What changes its role takes its time, and is done by [`super::change`].
impl Failover for Image {
    fn client(&self) -> Option<String> {
        Some(self.now().address())
    }

    fn promote(&self, _fence: &[String]) -> Result<(), String> {
        unreachable!("the world does it")
    }

    fn catch_up(&self) -> Result<(), String> {
        unreachable!("the world does it")
    }

    fn fence(&self, _clients: &[String]) -> Result<(), String> {
        unreachable!("the world does it")
    }

    fn is_stuck(&self) -> bool {
        self.roles.are_stuck(&self.shared, false)
    }

    fn suspend(&self, is_suspended: bool) {
        self.roles.suspend(is_suspended);
    }

    fn abandon(&self) {
        self.roles.abandon_client();
    }

    fn demote(&self) -> Result<(), String> {
        unreachable!("the world does it")
    }

    fn is_fenced(&self) -> bool {
        self.roles.is_fenced()
    }

    fn reopen(&self) -> Result<(), String> {
        unreachable!("the world does it")
    }
}

/// One of the calls that a change of role makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ask {
    ShutOut(String),
    LatestMap,
    OwnsLock,
    LockOwner,
    BreakLock(String),
    Lock,
    Unlock,
    Flush,
    Size,
    /// A new client, behind a change of role.
    Open,
}

/// The answer to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Said {
    Done(Result<(), i32>),
    Is(Result<bool, i32>),
    Owner(Result<Option<String>, i32>),
    Bytes(Result<u64, i32>),
}

/// An image that repeats what was answered, and notes what is asked next: a change of role runs from its beginning again with each
/// answer, until nothing is left to ask.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) said: Vec<Said>,
    at: RefCell<(usize, Option<Ask>)>,
}

impl Replay {
    /// What is asked next, if that was not answered; from the beginning again.
    pub(super) fn asks(&self) -> Option<Ask> {
        std::mem::take(&mut *self.at.borrow_mut()).1
    }

    fn next(&self, ask: Ask) -> Option<&Said> {
        let mut at = self.at.borrow_mut();
        if at.1.is_some() {
            return None;
        }
        let said = self.said.get(at.0);
        at.0 += 1;
        if said.is_none() {
            at.1 = Some(ask);
        }
        said
    }

    fn done(&self, ask: Ask) -> Result<(), i32> {
        match self.next(ask) {
            Some(Said::Done(result)) => *result,
            Some(other) => unreachable!("{other:?} is no answer"),
            None => Err(UNANSWERED),
        }
    }
}

impl Exclusive for Replay {
    fn blocklist(&self, client: &str) -> Result<(), i32> {
        self.done(Ask::ShutOut(client.to_owned()))
    }

    fn wait_for_latest_map(&self) -> Result<(), i32> {
        self.done(Ask::LatestMap)
    }

    fn owns_lock(&self) -> Result<bool, i32> {
        match self.next(Ask::OwnsLock) {
            Some(Said::Is(result)) => *result,
            Some(other) => unreachable!("{other:?} is no answer"),
            None => Err(UNANSWERED),
        }
    }

    fn lock_owner(&self) -> Result<Option<String>, i32> {
        match self.next(Ask::LockOwner) {
            Some(Said::Owner(result)) => result.clone(),
            Some(other) => unreachable!("{other:?} is no answer"),
            None => Err(UNANSWERED),
        }
    }

    fn break_lock(&self, owner: &str) -> Result<(), i32> {
        self.done(Ask::BreakLock(owner.to_owned()))
    }

    fn lock(&self) -> Result<(), i32> {
        self.done(Ask::Lock)
    }

    fn unlock(&self) -> Result<(), i32> {
        self.done(Ask::Unlock)
    }

    fn flush(&self) -> Result<(), i32> {
        self.done(Ask::Flush)
    }

    fn size(&self) -> Result<u64, i32> {
        match self.next(Ask::Size) {
            Some(Said::Bytes(result)) => *result,
            Some(other) => unreachable!("{other:?} is no answer"),
            None => Err(UNANSWERED),
        }
    }
}

impl Image {
    /// Whether calls are counted under this claim from now on.
    pub(super) fn claims(&self, claim: u64) {
        self.claim.store(claim, Ordering::Relaxed);
    }
}
