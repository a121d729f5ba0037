//! How a lane handles a medium that other clients write to as well: nothing that may still be changing it is
//! reported before that is over, and nothing is done in two steps.
#![expect(clippy::vec_box, reason = "calls stay where they are")]

use crate::support::Kernel;
use crate::support::rig::Rig;
use config::Access;
use reactor::io::{Io as _, Tag};
use reactor::uring::Uring;
use rustix::io::Errno;
use scsi::storage::{Found, StoreError, Traits};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::calls::{Call, CallLane, Medium, Range, Shared, Work};
use store::lane::{Backend, Lane, Op, Store};
use store::rbd::roles::{Exclusive, Named, Roles};

const SECTOR: u64 = 512;
const SIZE: u64 = 1 << 20;
const UNAVAILABLE: Result<Found, StoreError> = Err(StoreError::Unavailable);
const UNSUPPORTED: Result<Found, StoreError> = Err(StoreError::Unsupported);

/// A medium that answers when the test wants it. Everything takes too long at once, unless the test says when.
struct Slow {
    roles: Roles,
    patience: Mutex<Duration>,
    shared: Arc<Shared>,
    calls: Mutex<Vec<Box<Call>>>,
}

impl Slow {
    fn new(access: Access) -> Arc<Slow> {
        let roles = Roles::new(Some(access));
        roles.promote(named(&Cluster::default()), roles.attempt(), &[], |_| {}).expect("it is active");
        let shared = Shared::new().expect("descriptors");
        Arc::new(Slow { roles, patience: Mutex::default(), shared, calls: Mutex::default() })
    }

    /// The work of the calls that it has.
    fn has(&self) -> Vec<Work> {
        self.calls.lock().unwrap().iter().map(|call| call.work).collect()
    }

    /// Answers the first of them.
    fn answer(&self, answer: i64) {
        let mut call = self.calls.lock().unwrap().remove(0);
        call.answer = answer;
        Call::answered(call);
    }

    fn fails(&self, error: Errno) {
        self.answer(-i64::from(error.raw_os_error()));
    }

    fn is_stuck(&self) -> bool {
        self.roles.are_stuck(&self.shared, false)
    }
}

impl Medium for Slow {
    fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn size(&self) -> u64 {
        SIZE
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn is_lost(&self) -> bool {
        self.roles.are_lost(&self.shared)
    }

    fn give_up_after(&self) -> Duration {
        *self.patience.lock().unwrap()
    }

    fn clear_bytes(&self) -> u64 {
        SIZE / 4
    }

    fn extent(&self, _offset: u64) -> Option<Found> {
        None
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
        *self.patience.lock().unwrap()
    }

    fn swaps(&self, range: Range) -> bool {
        range.len <= SECTOR
    }

    fn accepts(&self, call: &Call) -> bool {
        if call.answer == -i64::from(Errno::SHUTDOWN.raw_os_error()) {
            self.roles.notice_fence();
        }
        call.client == self.roles.client() && !self.roles.is_fenced()
    }

    fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        if !self.roles.accepts() || call.client != self.roles.client() {
            return Err(call);
        }
        self.calls.lock().unwrap().push(call);
        Ok(())
    }
}

impl Store for Slow {
    fn traits(&self) -> Traits {
        Traits { size_bytes: SIZE, ..Traits::NONE }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "slow".into()
    }
}

impl Backend<Uring> for Slow {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<Uring>> {
        Box::new(CallLane::new(self, tags))
    }
}

/// A cluster that notes what is requested of it.
#[derive(Default)]
struct Cluster {
    asked: Mutex<Vec<String>>,
    /// The client has the lock.
    owns: bool,
    /// A flush would wait for something that does not end.
    hangs: bool,
}

impl Cluster {
    fn ask(&self, what: &str) -> Result<(), i32> {
        self.asked.lock().unwrap().push(what.into());
        Ok(())
    }

    fn was_asked(&self) -> String {
        std::mem::take(&mut *self.asked.lock().unwrap()).join(", ")
    }
}

impl Exclusive for Cluster {
    fn blocklist(&self, client: &str) -> Result<(), i32> {
        self.ask(&format!("fence {client}"))
    }

    fn wait_for_latest_map(&self) -> Result<(), i32> {
        self.ask("map")
    }

    fn owns_lock(&self) -> Result<bool, i32> {
        self.ask("owns").map(|()| self.owns)
    }

    fn lock_owner(&self) -> Result<Option<String>, i32> {
        self.ask("owner").map(|()| None)
    }

    fn break_lock(&self, owner: &str) -> Result<(), i32> {
        self.ask(&format!("break {owner}"))
    }

    fn lock(&self) -> Result<(), i32> {
        self.ask("lock")
    }

    fn unlock(&self) -> Result<(), i32> {
        self.ask("unlock")
    }

    fn flush(&self) -> Result<(), i32> {
        assert!(!self.hangs, "nothing is to wait for this");
        self.ask("flush")
    }

    fn size(&self) -> Result<u64, i32> {
        self.ask("size").map(|()| SIZE)
    }
}

fn named(cluster: &Cluster) -> Named<'_> {
    Named { image: cluster, name: "p/disk", read_only: false }
}

fn rig(store: &Arc<Slow>) -> Rig<Uring> {
    Rig::new(Uring::start(), store)
}

impl Rig<Uring> {
    /// The outcomes reported by now.
    fn reports(&mut self) -> Vec<Result<Found, StoreError>> {
        self.poll();
        self.lane.tick(&mut self.io, &mut self.finished);
        self.finished.drain(..).map(|(_, outcome)| outcome).collect()
    }

    fn begin(&mut self, op: Op) {
        self.start(&op);
    }

    fn write_op(&self, offset: u64) -> Op {
        Op::Write { offset, from: self.room(0, SECTOR as usize), durable: false, atomic: false }
    }

    fn swap_op(&self, len: u64) -> Op {
        let (compare, write) = (self.room(0, len as usize), self.room(1, len as usize));
        Op::CompareAndWrite { offset: 0, compare, write, durable: false }
    }
}

/// Everything that changes the medium.
fn changes(rig: &Rig<Uring>) -> [Op; 4] {
    let offset = 8 * SECTOR;
    let zero = Op::Zero { offset, len: SECTOR, unmap: false, durable: false };
    [rig.write_op(offset), zero, Op::Discard { offset, len: SECTOR }, rig.swap_op(SECTOR)]
}

#[test]
fn what_only_one_gateway_writes_is_not_waited_for_but_another_one_should_take_over() {
    let store = Slow::new(Access::One);
    let mut rig = rig(&store);
    for change in changes(&rig) {
        rig.begin(change);
        assert!(!store.is_stuck());
        assert_eq!(rig.reports(), [UNAVAILABLE], "{change:?}");
        assert!(store.is_stuck());
        store.answer(0);
        assert_eq!(rig.reports(), []);
        assert!(!store.is_stuck());
    }
}

#[test]
fn another_one_should_take_over_from_a_gateway_that_has_lost_its_lock() {
    let store = Slow::new(Access::One);
    for is_lost in [true, false, true] {
        store.roles.notice_lock(is_lost);
        assert_eq!(store.is_stuck(), is_lost);
    }
    // With its new client it takes the lock anew.
    store.roles.renew();
    store
        .roles
        .promote(named(&Cluster::default()), store.roles.attempt(), &[], |_| {})
        .expect("it is active");
    assert!(!store.is_stuck());
}

#[test]
fn a_client_whose_write_hangs_is_replaced_without_waiting_for_it_also_once_it_is_fenced() {
    let store = Slow::new(Access::One);
    let mut rig = rig(&store);
    rig.begin(rig.write_op(0));
    assert_eq!((rig.reports(), store.is_stuck()), (vec![UNAVAILABLE], true));
    store.roles.deactivate();
    let cluster = Cluster { owns: true, hangs: true, ..Cluster::default() };
    let retire = |is_lost| store.roles.retire(named(&cluster), &store.shared, is_lost);
    retire(false).expect("the gateways know that it has access");
    store.roles.notice_fence();
    retire(false).expect("it is fenced");
    store.roles.renew();
    retire(true).expect("its medium does not answer");
    assert_eq!(cluster.was_asked(), "");
}

#[test]
fn a_client_that_is_replaced_while_nothing_hangs_releases_its_lock() {
    let store = Slow::new(Access::One);
    store.roles.deactivate();
    let cluster = Cluster { owns: true, ..Cluster::default() };
    store.roles.retire(named(&cluster), &store.shared, false).expect("it answers");
    assert_eq!(cluster.was_asked(), "owns, flush, unlock");
}

#[test]
fn what_may_still_reach_the_medium_is_not_handed_over() {
    let cluster = Cluster { owns: true, ..Cluster::default() };
    let store = Slow::new(Access::One);
    let release = |cluster: &Cluster| store.roles.release(named(cluster), &store.shared);
    let mut rig = rig(&store);
    rig.begin(rig.write_op(0));
    assert_eq!(rig.reports(), [UNAVAILABLE]);
    let why = release(&cluster).expect_err("another one would not have it fenced");
    assert!(why.contains("on its way"), "{why}");
    store.answer(0);
    rig.reports();
    release(&cluster).expect("it has ended");
    // Somebody has removed its lock, and it did not find out before a write.
    store.roles.notice_lock(true);
    assert!(release(&Cluster::default()).is_err());
    store.roles.notice_fence();
    release(&Cluster::default()).expect("it is fenced");
    assert_eq!(cluster.was_asked(), "owns, flush, unlock");
}

#[test]
fn a_change_is_reported_with_the_end_of_its_call_and_not_before() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    for change in changes(&rig) {
        rig.begin(change);
        assert_eq!(rig.reports(), [], "{change:?}");
        assert!(store.is_stuck());
        store.answer(0);
        assert_eq!(rig.reports(), [Ok(Found::Nothing)], "{change:?}");
        assert!(!store.is_stuck());
        rig.begin(change);
        assert_eq!(rig.reports(), []);
        store.fails(Errno::IO);
        assert_eq!(rig.reports(), [Err(StoreError::WriteFailed)], "{change:?}");
    }
    rig.begin(Op::Read { offset: 0, into: rig.room(0, 512) });
    assert_eq!(rig.reports(), [UNAVAILABLE], "a read changes nothing");
    assert!(!store.is_stuck());
}

#[test]
fn a_read_that_hangs_is_not_waited_for_when_it_is_aborted() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    *store.patience.lock().unwrap() = Duration::from_millis(60);
    let read = Op::Read { offset: 0, into: rig.room(0, 512) };
    let ids = [read, rig.write_op(8 * SECTOR)].map(|op| rig.start(&op));
    ids.into_iter().for_each(|id| rig.lane.cancel(&mut rig.io, id));
    let reports = loop {
        let reports = rig.reports();
        if !reports.is_empty() {
            break reports;
        }
    };
    assert_eq!(reports, [Err(StoreError::Cancelled)], "what is written may still be on its way");
    assert_eq!((rig.lane.in_flight(), store.has().len()), (1, 2));
    // Its buffer is the call's own, and stays with it.
    store.answer(512);
    store.answer(0);
    while rig.lane.in_flight() > 0 {
        rig.reports();
    }
    rig.begin(rig.write_op(0));
    assert_eq!(store.has().len(), 1, "what it had occupied is free");
}

#[test]
fn a_query_for_what_is_allocated_that_hangs_affects_no_other_command() {
    for access in [Access::One, Access::All] {
        let store = Slow::new(access);
        let mut rig = rig(&store);
        rig.begin(Op::Extent { offset: 0 });
        assert_eq!(rig.reports(), [UNAVAILABLE]);
        assert!(!store.shared.has_abandoned() && !store.is_stuck());
        rig.begin(rig.write_op(0));
        assert_eq!(store.has().len(), 2, "not even one in its range");
        store.answer(0);
        store.answer(0);
        assert_eq!(rig.reports(), [Ok(Found::Nothing)]);
    }
}

#[test]
fn one_that_is_suspended_begins_nothing_and_ends_what_it_has_begun() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    *store.patience.lock().unwrap() = Duration::MAX;
    rig.begin(rig.write_op(0));
    store.roles.suspend(true);
    rig.begin(rig.write_op(8 * SECTOR));
    assert_eq!((rig.reports(), store.has().len()), (vec![UNAVAILABLE], 1));
    store.roles.catch_up(named(&Cluster::default()), store.roles.attempt(), |_| {}).expect("it is admitted");
    assert!(!store.roles.accepts(), "that is for its gateway to decide");
    store.answer(0);
    assert_eq!(rig.reports(), [Ok(Found::Nothing)]);
    store.roles.suspend(false);
    rig.begin(rig.write_op(8 * SECTOR));
    assert_eq!((rig.reports(), store.has().len()), (vec![], 1));
}

#[test]
fn a_change_that_waited_for_its_blocks_is_not_stuck_when_it_begins() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    let wait = Duration::from_millis(100);
    *store.patience.lock().unwrap() = Duration::MAX;
    rig.begin(rig.write_op(0));
    rig.begin(rig.write_op(0));
    let begun = rig.io.now();
    while rig.io.now().since(begun) <= wait {
        rig.poll();
    }
    store.answer(0);
    let started = rig.io.now();
    assert_eq!((rig.reports(), store.has().len()), (vec![Ok(Found::Nothing)], 1));
    *store.patience.lock().unwrap() = wait;
    assert_eq!(rig.reports(), []);
    assert!(!store.is_stuck() || rig.io.now().since(started) >= wait);
}

#[test]
fn the_first_refusal_of_a_fenced_client_ends_nothing_but_its_own_operation() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    for nth in 0..3 {
        rig.begin(rig.write_op(nth * SECTOR * 8));
    }
    store.fails(Errno::SHUTDOWN);
    assert_eq!(rig.reports(), [UNAVAILABLE]);
    assert!(store.roles.is_fenced() && store.is_stuck());
    assert_eq!(rig.reports(), [], "other OSDs may not know of the fence");
    rig.begin(rig.write_op(0));
    assert_eq!(rig.reports(), [UNAVAILABLE], "it is not begun");
    store.answer(0);
    assert_eq!(rig.reports(), [UNAVAILABLE], "what a fenced client has done is not reported as done");
    store.roles.abandon_client();
    assert_eq!(rig.reports(), [UNAVAILABLE]);
    assert_eq!(rig.lane.in_flight(), 0);
}

#[test]
fn an_abandoned_client_waits_for_nothing_and_a_new_one_is_not_stuck_with_its_calls() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    rig.begin(rig.write_op(0));
    rig.begin(rig.write_op(0));
    assert_eq!((rig.reports(), store.has().len()), (vec![UNAVAILABLE], 1), "the other one was not begun");
    store.roles.abandon_client();
    assert_eq!(rig.reports(), [UNAVAILABLE]);
    let cluster = Cluster::default();
    let late = store.roles.catch_up(named(&cluster), store.roles.attempt(), |_| {});
    assert!(late.is_err() && !store.roles.accepts(), "it is not used any more");
    store.roles.release(named(&cluster), &store.shared).expect("nothing of it is waited for");
    assert_eq!(cluster.was_asked(), "map, size");

    store.roles.renew();
    store.roles.catch_up(named(&cluster), store.roles.attempt(), |_| {}).expect("it is new");
    assert!(store.roles.accepts() && !store.is_stuck());
    rig.begin(rig.write_op(8 * SECTOR));
    store.answer(0);
    assert_eq!(rig.reports(), [], "the old call has ended");
    store.answer(0);
    assert_eq!(rig.reports(), [Ok(Found::Nothing)]);
}

#[test]
fn what_hangs_of_an_earlier_client_keeps_a_new_one_from_its_own_blocks_only() {
    for access in [Access::One, Access::All] {
        let store = Slow::new(access);
        let mut rig = rig(&store);
        rig.begin(rig.write_op(0));
        rig.reports();
        rig.begin(rig.write_op(8 * SECTOR));
        assert_eq!(
            (rig.reports(), store.has().len()),
            (vec![UNAVAILABLE], 1),
            "its own client begins no more"
        );
        store.roles.abandon_client();
        rig.reports();
        store.roles.renew();
        store
            .roles
            .promote(named(&Cluster::default()), store.roles.attempt(), &[], |_| {})
            .expect("it is new");
        *store.patience.lock().unwrap() = Duration::MAX;
        [8 * SECTOR, 0].into_iter().for_each(|offset| rig.begin(rig.write_op(offset)));
        assert_eq!(store.has().len(), 2);
        store.answer(0);
        assert_eq!((rig.reports(), store.has().len()), (vec![], 2), "the old call has ended");
    }
}

#[test]
fn nothing_is_read_and_then_written_where_others_may_write_in_between() {
    let store = Slow::new(Access::All);
    let mut rig = rig(&store);
    rig.begin(rig.swap_op(2 * SECTOR));
    rig.begin(Op::OrWrite { offset: 0, from: rig.room(0, 512), durable: false });
    assert_eq!((rig.reports(), store.has()), (vec![UNSUPPORTED, UNSUPPORTED], vec![]));
    rig.begin(rig.swap_op(SECTOR));
    store.fails(Errno::INVAL);
    assert_eq!((rig.reports(), store.has()), (vec![UNSUPPORTED], vec![]), "not even if librbd cannot do it");
    // A difference is located by a read, and compared again if there is none any more.
    rig.begin(rig.swap_op(SECTOR));
    store.fails(Errno::ILSEQ);
    rig.poll();
    assert_eq!(store.has(), [Work::Read { offset: 0 }]);
    store.answer(SECTOR as i64);
    rig.poll();
    assert_eq!(store.has(), [Work::CompareAndWrite { offset: 0 }]);
    store.answer(0);
    assert_eq!(rig.reports(), [Ok(Found::Nothing)]);
}

#[test]
fn gateways_that_all_write_take_no_lock() {
    let (roles, cluster) = (Roles::new(Some(Access::All)), Cluster::default());
    assert!(!roles.accepts());
    roles.catch_up(named(&cluster), roles.attempt(), |size| assert_eq!(size, SIZE)).expect("it joins");
    assert_eq!((roles.accepts(), cluster.was_asked().as_str()), (true, "map, size"));
    roles.fence(named(&cluster), &["a".into(), "b".into()], "me").expect("it has them fenced");
    assert_eq!(cluster.was_asked(), "fence a, fence b, map");
    roles.promote(named(&cluster), roles.attempt(), &["c".into()], |_| {}).expect("it takes over");
    assert_eq!((roles.accepts(), cluster.was_asked().as_str()), (true, "fence c, map, size"));
    roles.deactivate();
    roles.release(named(&cluster), &Shared::new().expect("descriptors")).expect("it leaves");
    assert_eq!((roles.accepts(), cluster.was_asked().as_str()), (false, "flush"));
    roles.fence(named(&cluster), &["me".into()], "me").expect("it has itself fenced");
    assert_eq!((roles.is_fenced(), cluster.was_asked().as_str()), (true, "fence me"));
}
