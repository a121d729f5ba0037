//! Commands whose duration depends on the length of a range: they end when they are aborted, lose no writes
//! under them, and report their progress.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Response, write_cdb};
use tempfile::TempDir;
use wire::scsi::command::{FormatUnit, Unmap};
use wire::scsi::status::{CHECK_CONDITION, GOOD};

/// ABORT TASK and its answer (RFC 7143 sections 11.5.1 and 11.6.1).
const ABORT_TASK: u8 = 1;
const COMPLETE: u8 = 0;
const BLOCK: usize = 512;
/// As much as one UNMAP allows (VPD page B0h).
const BLOCKS: u32 = 1 << 20;
const LAST: u64 = BLOCKS as u64 - 1;

fn session(url: &Url) -> Initiator {
    let mut initiator = Initiator::login(url, &Login::named("long")).expect("login");
    initiator.ready(url.lun).expect("TEST UNIT READY");
    initiator
}

/// Checks that must hold for memory and for files.
fn each(check: fn(Initiator, u16)) {
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = format!("file:{},size=1G", directory.path().join("disk").display());
    for lun in ["ram:1G", &file] {
        let daemon = Daemon::serve(["--cores", "0", "--lun", lun]);
        let url = daemon.lun(0);
        check(session(&url), url.lun);
        daemon.stop();
    }
}

/// Sends an UNMAP of the longest range from block 0 on.
fn unmap(initiator: &mut Initiator, lun: u16) -> u32 {
    let mut list = vec![0; 24];
    (list[1], list[3]) = (22, 16);
    list[16..20].copy_from_slice(&BLOCKS.to_be_bytes());
    initiator.issue(lun, Unmap::new(24), 0, list).expect("sent")
}

#[test]
fn an_aborted_unmap_ends_between_two_parts() {
    each(|mut initiator, lun| {
        initiator.write_blocks(lun, LAST, 512, &[1; BLOCK], false).expect("written");
        initiator.gather();
        let tag = unmap(&mut initiator, lun);
        let abort = initiator.ask_to_manage(ABORT_TASK, lun, tag).expect("sent");
        initiator.release().expect("sent");
        assert_eq!(initiator.complete(abort).expect("an answer").status, COMPLETE);
        assert_eq!(initiator.read_blocks(lun, LAST, 1, 512).expect("read"), [1; BLOCK]);
    });
}

#[test]
fn a_write_that_is_acknowledged_during_an_unmap_is_not_lost() {
    each(|mut initiator, lun| {
        initiator.gather();
        let unmap = unmap(&mut initiator, lun);
        let cdb = write_cdb(LAST, BLOCK, 512, false);
        let write = initiator.issue(lun, cdb, 0, vec![2; BLOCK]).expect("sent");
        initiator.release().expect("sent");
        assert_eq!(initiator.complete(write).expect("an answer").status, GOOD);
        assert_eq!(initiator.complete(unmap).expect("an answer").status, GOOD);
        assert_eq!(initiator.read_blocks(lun, LAST, 1, 512).expect("read"), [2; BLOCK]);
    });
}

/// LOGICAL UNIT NOT READY, FORMAT IN PROGRESS with a progress indication.
fn is_formatting(response: &Response) -> bool {
    let code = [response.sense[12], response.sense[13]];
    assert_eq!((response.status, response.sense_key(), code), (CHECK_CONDITION, Some(2), [4, 4]));
    response.sense[15] & 0x80 != 0
}

#[test]
fn a_unit_is_formatted_in_the_background() {
    each(|mut initiator, lun| {
        initiator.write_blocks(lun, LAST, 512, &[3; BLOCK], false).expect("written");
        initiator.gather();
        let format = initiator
            .issue(lun, FormatUnit { has_data: true, ..FormatUnit::default() }, 0, vec![0, 0x02, 0, 0])
            .expect("sent");
        initiator.release().expect("sent");
        assert_eq!(initiator.complete(format).expect("an answer").status, GOOD);
        loop {
            let ready = initiator.read(lun, &[0; 6], 0).expect("an answer");
            if ready.status == GOOD {
                break;
            }
            assert!(is_formatting(&ready));
        }
        assert_eq!(initiator.read_blocks(lun, LAST, 1, 512).expect("read"), [0; BLOCK]);
        let failed = initiator
            .write(lun, FormatUnit { has_data: true, ..FormatUnit::default() }, &[0, 0, 0, 8])
            .expect("an answer");
        assert_eq!((failed.status, failed.sense_key()), (CHECK_CONDITION, Some(5)));
    });
}
