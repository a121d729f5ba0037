//! What is counted of commands that do not end well.

use crate::counters::{Counts, Failure};
use crate::testing::initiator::{Initiator, Login, write_cdb};
use crate::testing::{HeldStore, daemon::Url, serve};
use wire::scsi::command::{Read16, Reserve6};
use wire::scsi::status::{GOOD, RESERVATION_CONFLICT};

const BLOCK: u32 = 512;
const ABORT_TASK: u8 = 1;
const COMPLETE: u8 = 0;

fn login(url: &Url, name: &str) -> Initiator {
    let mut initiator = Initiator::login(url, &Login::named(name)).expect("a session");
    initiator.ready(0).expect("the unit is ready");
    initiator
}

fn failed(counts: &Counts, reason: Failure) -> u64 {
    counts.errors().find(|(failure, _)| *failure == reason).map_or(0, |(_, commands)| commands)
}

#[test]
fn commands_that_fail_are_counted_by_reason_and_have_no_latency() {
    let stores = [HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let [mut holder, mut other] = ["holder", "other"].map(|name| login(&url, name));
    let counts = || daemon.meters().units()[0].counts;
    let write = write_cdb(0, 512, BLOCK, false);

    stores[0].hold();
    let aborted = holder.issue(0, write, 0, vec![1; 512]).expect("it is sent");
    stores[0].wait_for(1);
    let abort = holder.ask_to_manage(ABORT_TASK, 0, aborted).expect("it is sent");
    stores[0].wait_for_cancel(1);
    stores[0].release();
    assert_eq!(holder.complete(abort).expect("an answer").status, COMPLETE);
    assert_eq!(failed(&counts(), Failure::Aborted), 1);
    assert_eq!(counts().write.commands(), 0, "it has not ended");

    assert_eq!(holder.read(0, Reserve6::ZERO, 0).expect("an answer").status, GOOD);
    let refused = other.write(0, write, &[2; 512]).expect("an answer");
    assert_eq!(refused.status, RESERVATION_CONFLICT);
    assert_eq!(holder.write(0, write, &[3; 512]).expect("an answer").status, GOOD);
    let counts = counts();
    assert_eq!(failed(&counts, Failure::ReservationConflict), 1);
    let written = counts.write;
    assert_eq!((written.commands(), written.succeeded(), written.bytes), (2, 1, 512));
    drop([holder, other]);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn reads_whose_data_has_not_left_when_their_session_ends_are_aborted() {
    const READS: u64 = 100;
    const BYTES: usize = 1 << 18;
    let stores = [HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut initiator = login(&url, "deaf");
    assert!(initiator.window() as u64 >= READS, "nothing is to be received meanwhile");
    for _ in 0..READS {
        initiator.issue(0, Read16::new(0, BYTES as u32 / BLOCK), BYTES, Vec::new()).expect("it is sent");
    }
    // It is more than the sockets' buffers hold: what does not fit stays in flight.
    let (mut before, mut same) = (None, 0);
    while same < 100 {
        let sessions = daemon.sessions().list().expect("the core answers");
        let now = sessions.first().map(|session| (session.commands, session.in_flight));
        let is_same = now == before && now.is_some_and(|(_, in_flight)| in_flight > 0);
        same = if is_same { same + 1 } else { 0 };
        before = now;
    }
    drop(initiator);
    let registry = &daemon.insides().0;
    while !registry.places().is_empty() {
        std::thread::yield_now();
    }
    let counts = daemon.meters().units()[0].counts;
    let (read, aborted) = (counts.read, failed(&counts, Failure::Aborted));
    assert!(aborted > 0, "{counts:?}");
    assert!(read.commands() + aborted <= READS, "{counts:?}");
    assert_eq!(read.bytes, read.succeeded() * BYTES as u64);
    daemon.stop().expect("every core ends in order");
}
