//! Several sessions at a time on one unit.

mod support;

use std::io::ErrorKind;
use support::daemon::{Daemon, Url};
use support::initiator::{Initiator, Login, Pdu, write_cdb};

const BLOCK_BYTES: u32 = 512;
/// SCSI status CHECK CONDITION.
const CHECK_CONDITION: u8 = 2;
const MISCOMPARE: u8 = 0x0e;
const UNIT_ATTENTION: u8 = 6;
/// Task management functions and their answer (RFC 7143 sections 11.5.1 and 11.6.1).
const ABORT_TASK: u8 = 1;
const LOGICAL_UNIT_RESET: u8 = 5;
const FUNCTION_COMPLETE: u8 = 0;

#[test]
fn compare_and_write_counts_right_over_many_initiators() {
    const INITIATORS: u64 = 4;
    const STEPS: u64 = 100;
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    std::thread::scope(|scope| {
        for number in 0..INITIATORS {
            let (mut initiator, lun) = (ready(&url, &format!("counter{number}")), url.lun);
            scope.spawn(move || (0..STEPS).for_each(|_| increment(&mut initiator, lun)));
        }
    });
    let found = ready(&url, "reader").read_blocks(url.lun, 3, 1, BLOCK_BYTES).expect("READ");
    assert_eq!(counter(&found), INITIATORS * STEPS);
    daemon.stop();
}

#[test]
fn what_one_writes_the_others_read() {
    let daemon = Daemon::serve(["--lun", "ram:8M"]);
    let url = daemon.lun(0);
    let mut sessions: Vec<Initiator> = (0..6).map(|number| ready(&url, &format!("peer{number}"))).collect();
    for round in 0..60_usize {
        let data = support::Noise(round as u64).bytes(((round % 9) + 1) * 16 * 512);
        let (writer, reader) = (round % 6, (round * 5 + 1) % 6);
        let lba = (round * 97 % 1024) as u64;
        sessions[writer].write_blocks(url.lun, lba, BLOCK_BYTES, &data, false).expect("WRITE");
        let blocks = u32::try_from(data.len()).expect("small") / BLOCK_BYTES;
        let found = sessions[reader].read_blocks(url.lun, lba, blocks, BLOCK_BYTES).expect("READ");
        assert!(found == data, "round {round}");
    }
    daemon.stop();
}

#[test]
fn a_session_that_logs_in_again_replaces_the_old_one() {
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    let mut old = ready(&url, "same");
    let mut bystander = ready(&url, "other");
    let mut new = ready(&url, "same");
    let error = old.read(url.lun, &[0; 6], 0).expect_err("the old connection is closed");
    let closed = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    assert!(closed.contains(&error.kind()), "{error}");
    new.ready(url.lun).expect("the new session is served");
    bystander.ready(url.lun).expect("the other session is served");
    daemon.stop();
}

#[test]
fn a_write_that_waits_for_its_data_can_be_aborted() {
    let daemon = Daemon::serve(["--lun", "ram:8M"]);
    let url = daemon.lun(0);
    let mut initiator = ready(&url, "waverer");
    let written = vec![0x11; 1 << 20];
    initiator.write_blocks(url.lun, 0, BLOCK_BYTES, &written, false).expect("WRITE");

    let tag = 0x7777;
    let mut command = Pdu::new(0x01, 0xa1).lun(url.lun).word(16, tag).word(20, 1 << 20);
    command = command.word(24, initiator.take_cmd_sn());
    command.header[32..48].copy_from_slice(&write_cdb(0, 1 << 20, BLOCK_BYTES, false));
    initiator.send(&command).expect("send");
    while initiator.receive().expect("an R2T").opcode() != 0x31 {}

    assert_eq!(initiator.manage(ABORT_TASK, url.lun, tag).expect("an answer"), FUNCTION_COMPLETE);
    let found = initiator.read_blocks(url.lun, 0, 2048, BLOCK_BYTES).expect("READ");
    assert!(found == written, "nothing was written");
    initiator.logout().expect("logout");
    daemon.stop();
}

#[test]
fn a_reset_is_told_to_the_others() {
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    let (mut resetter, mut other) = (ready(&url, "resetter"), ready(&url, "other"));
    assert_eq!(resetter.manage(LOGICAL_UNIT_RESET, url.lun, 0).expect("an answer"), FUNCTION_COMPLETE);
    let response = other.read(url.lun, &[0; 6], 0).expect("TEST UNIT READY");
    assert_eq!((response.status, response.sense_key()), (CHECK_CONDITION, Some(UNIT_ATTENTION)));
    other.ready(url.lun).expect("told once");
    daemon.stop();
}

fn ready(url: &Url, name: &str) -> Initiator {
    let mut initiator = Initiator::login(url, &Login::named(name)).expect("login");
    initiator.ready(url.lun).expect("the unit is ready");
    initiator
}

/// One step of a counter in block 3, by COMPARE AND WRITE, repeated until nobody came between.
fn increment(initiator: &mut Initiator, lun: u16) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x89, 3, 1);
    loop {
        let old = initiator.read_blocks(lun, 3, 1, BLOCK_BYTES).expect("READ");
        let mut new = old.clone();
        new[..8].copy_from_slice(&(counter(&old) + 1).to_be_bytes());
        let response = initiator.write(lun, &cdb, &[old, new].concat()).expect("COMPARE AND WRITE");
        if response.status == 0 {
            return;
        }
        assert_eq!(response.sense_key(), Some(MISCOMPARE), "{response:02x?}");
    }
}

fn counter(block: &[u8]) -> u64 {
    u64::from_be_bytes(block[..8].try_into().expect("eight bytes"))
}
