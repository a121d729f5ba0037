//! What is counted of commands that end with errors.

use crate::counters::{Counts, Failure};
use crate::testing::initiator::{Initiator, Login, write_cdb};
use crate::testing::{HeldStore, daemon::Url, serve};
use wire::SenseKey;
use wire::aoe::Address;
use wire::ata::{Command, PassThrough, Registers};
use wire::scsi::command::{Read16, Reserve6};
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT};

const BLOCK: u32 = 512;
const ABORT_TASK: u8 = 1;
const COMPLETE: u8 = 0;
const RECOVERED_ERROR: u8 = 1;

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
fn ata_commands_that_are_to_return_registers_succeed() {
    let stores = [HeldStore::new()];
    // Only units exported over AoE accept ATA commands.
    let (daemon, url) = serve(1, &stores, |config| config.luns[0].aoe = Some(Address { shelf: 1, slot: 0 }));
    let mut initiator = login(&url, "ata");
    for (command, out) in [(Command::WriteDmaExt, vec![7; 512]), (Command::ReadDmaExt, Vec::new())] {
        let pass = PassThrough { check_condition: true, ..PassThrough::new(Registers::new(command, 0, 1)) };
        let tag =
            initiator.issue(0, pass.to_cdb().expect("a CDB"), 512 - out.len(), out).expect("it is sent");
        let response = initiator.complete(tag).expect("an answer");
        assert_eq!((response.status, response.sense_key()), (CHECK_CONDITION, Some(RECOVERED_ERROR)));
    }
    let counts = daemon.meters().units()[0].counts;
    for moved in [counts.read, counts.write] {
        assert_eq!((moved.succeeded(), moved.failed, moved.bytes), (1, 0, 512));
    }
    let is_met = Failure::Sense(SenseKey::UnitAttention);
    assert!(counts.errors().all(|(failure, commands)| failure == is_met || commands == 0), "{counts:?}");
    drop(initiator);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn reads_whose_data_has_not_left_when_their_session_ends_are_aborted() {
    /// This many are answered together.
    const BATCH: usize = 2;
    const BYTES: usize = 1 << 16;
    let stores = [HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |_| {});
    let mut initiator = login(&url, "deaf");
    let session = || {
        let sessions = daemon.sessions().list().expect("the core answers");
        (sessions[0].commands, sessions[0].in_flight)
    };
    // Until the sockets' buffers are full, each batch is sent before the next arrives.
    let (mut commands, mut in_flight) = session();
    while in_flight == 0 {
        assert!(initiator.window() >= BATCH, "nothing is to be received meanwhile");
        initiator.gather();
        for _ in 0..BATCH {
            initiator.issue(0, Read16::new(0, BYTES as u32 / BLOCK), BYTES, Vec::new()).expect("it is kept");
        }
        initiator.release().expect("both are sent");
        commands += BATCH as u64;
        while session().0 != commands {}
        // What has not been sent by then stays unsent.
        for _ in 0..5000 {
            in_flight = session().1;
            if in_flight == 0 {
                break;
            }
        }
    }
    assert_eq!(in_flight, BATCH);
    drop(initiator);
    let registry = &daemon.insides().0;
    while !registry.places().is_empty() {
        std::thread::yield_now();
    }
    let counts = daemon.meters().units()[0].counts;
    let (read, aborted) = (counts.read, failed(&counts, Failure::Aborted));
    assert_eq!(aborted, in_flight as u64, "{counts:?}");
    assert_eq!(read.succeeded(), commands - counts.other - aborted, "{counts:?}");
    assert_eq!(read.bytes, read.succeeded() * BYTES as u64);
    daemon.stop().expect("every core ends in order");
}
