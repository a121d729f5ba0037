//! Buffers for unsolicited data: commands that wait for an ordered task to end take none of what that task
//! needs.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Pdu, write_cdb};
use std::path::Path;
use wire::scsi::command::Read16;
use wire::scsi::status::{CHECK_CONDITION, GOOD, TASK_SET_FULL};

const ORDERED: u8 = 2;
/// ABORT TASK, and its answer when there is no such task (RFC 7143 sections 11.5.1 and 11.6.1).
const ABORT_TASK: u8 = 1;
const NO_TASK: u8 = 1;
const BLOCK_BYTES: u32 = 512;
const PIECE: usize = 256 << 10;
/// Commands of a window.
const WINDOW: usize = 128;

/// One core that serves a file.
fn serve(directory: &Path) -> (Daemon, Url) {
    let spec = format!("file:{},size=64M", directory.join("disk").display());
    let daemon = Daemon::serve(["--cores", "0", "--lun", &spec]);
    let url = daemon.lun(0);
    (daemon, url)
}

fn session(url: &Url, name: &str) -> Initiator {
    let mut initiator = Initiator::login(url, &Login::named(name)).expect("login");
    initiator.ready(url.lun).expect("TEST UNIT READY");
    initiator
}

/// READ(16) of one piece.
fn read_cdb() -> Read16 {
    Read16::new(0, PIECE as u32 / BLOCK_BYTES)
}

/// A WRITE that runs for as long as its data is withheld.
struct Held {
    initiator: Initiator,
    lun: u16,
    transfer_tag: u32,
}

impl Held {
    const TAG: u32 = 0x7000_0001;
    const BYTES: usize = 2048;

    /// The WRITE, and the window behind it.
    fn begin(url: &Url, name: &str) -> (Held, u32) {
        let mut initiator = session(url, name);
        let cdb = write_cdb(8, Held::BYTES, BLOCK_BYTES, false);
        let mut command = Pdu::new(0x01, 0x80 | 0x20 | 1)
            .lun(url.lun)
            .word(16, Held::TAG)
            .word(20, Held::BYTES as u32)
            .word(24, initiator.next_cmd_sn());
        command.set_cdb(cdb);
        initiator.send(&command).expect("sent");
        let asked = initiator.receive().expect("an R2T");
        assert_eq!((asked.opcode(), asked.word_at(16)), (0x31, Held::TAG));
        (Held { initiator, lun: url.lun, transfer_tag: asked.word_at(20) }, window(&asked))
    }

    fn end(mut self) {
        let data = Pdu::new(0x05, 0x80)
            .lun(self.lun)
            .word(16, Held::TAG)
            .word(20, self.transfer_tag)
            .data(&[1; Held::BYTES]);
        self.initiator.send(&data).expect("sent");
        let response = self.initiator.receive().expect("a response");
        assert_eq!((response.opcode(), response.header[3]), (0x21, GOOD));
    }
}

/// How many commands may be sent after a PDU of the target (ExpCmdSN and MaxCmdSN).
fn window(pdu: &Pdu) -> u32 {
    pdu.word_at(32).wrapping_sub(pdu.word_at(28)).wrapping_add(1)
}

/// Waits until the target has all commands that were sent: they arrive before a request that it answers at
/// once.
fn arrived(initiator: &mut Initiator, lun: u16) {
    assert_eq!(initiator.manage(ABORT_TASK, lun, u32::MAX - 1).expect("an answer"), NO_TASK);
}

/// An ORDERED READ, which the target has received when this returns.
fn read_ordered(initiator: &mut Initiator, lun: u16) -> u32 {
    let tag = initiator.issue_as(ORDERED, lun, read_cdb(), PIECE, Vec::new()).expect("sent");
    arrived(initiator, lun);
    tag
}

/// This many WRITEs with their unsolicited data, which the target has received when this returns.
fn write_many(initiator: &mut Initiator, lun: u16, count: usize, bytes: usize) -> Vec<u32> {
    let cdb = write_cdb(0, bytes, BLOCK_BYTES, false);
    let tags = (0..count).map(|_| initiator.issue(lun, cdb, 0, vec![2; bytes]).expect("sent")).collect();
    arrived(initiator, lun);
    tags
}

fn statuses(initiator: &mut Initiator, tags: &[u32]) -> Vec<u8> {
    tags.iter().map(|tag| initiator.complete(*tag).expect("an answer").status).collect()
}

#[test]
fn an_ordered_task_ends_however_much_data_waits_behind_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (daemon, url) = serve(directory.path());
    let (mut one, mut other) = (session(&url, "one"), session(&url, "other"));
    let (held, _) = Held::begin(&url, "held");
    let ordered = read_ordered(&mut one, url.lun);
    let writes = write_many(&mut one, url.lun, 90, 192 << 10);
    let read = other.issue(url.lun, read_cdb(), PIECE, Vec::new()).expect("sent");
    held.end();
    assert_eq!(other.complete(read).expect("another initiator is served").status, GOOD);
    assert_eq!(one.complete(ordered).expect("the ordered task ends").status, GOOD);
    assert_eq!(statuses(&mut one, &writes), [GOOD; 90]);
    daemon.stop();
}

#[test]
fn an_ordered_task_ends_when_the_data_of_others_takes_all_room() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (daemon, url) = serve(directory.path());
    let mut writers: Vec<Initiator> = (0..9).map(|n| session(&url, &format!("writer{n}"))).collect();
    let mut one = session(&url, "one");
    let (held, _) = Held::begin(&url, "held");
    let ordered = read_ordered(&mut one, url.lun);
    let behind = writers.iter_mut().map(|writer| write_many(writer, url.lun, 70, PIECE));
    let behind: Vec<Vec<u32>> = behind.collect();
    held.end();
    assert_eq!(one.complete(ordered).expect("the ordered task ends").status, GOOD);
    let ends = writers.iter_mut().zip(&behind).flat_map(|(writer, tags)| statuses(writer, tags));
    let ends: Vec<u8> = ends.collect();
    assert!(ends.iter().all(|status| [GOOD, TASK_SET_FULL].contains(status)), "{ends:02x?}");
    assert_eq!(writers[0].read_blocks(url.lun, 0, 1, BLOCK_BYTES).expect("served on"), [2; 512]);
    daemon.stop();
}

#[test]
fn there_is_room_for_the_unsolicited_data_of_a_window() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (daemon, url) = serve(directory.path());
    let mut one = session(&url, "one");
    let (held, _) = Held::begin(&url, "held");
    let ordered = read_ordered(&mut one, url.lun);
    let writes = write_many(&mut one, url.lun, WINDOW - 1, PIECE);
    held.end();
    assert_eq!(one.complete(ordered).expect("the ordered task ends").status, GOOD);
    assert_eq!(statuses(&mut one, &writes), [GOOD; WINDOW - 1]);
    daemon.stop();
}

#[test]
fn a_window_is_what_there_is_room_for() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let spec = format!("file:{},size=64M", directory.path().join("disk").display());
    let daemon = Daemon::serve(["--cores", "0", "--lun", &spec, "--lun", "ram:1M"]);
    let (url, beside) = (daemon.lun(0), daemon.lun(1));
    let mut writers: Vec<Initiator> = (0..2).map(|n| session(&url, &format!("writer{n}"))).collect();
    let mut one = session(&url, "one");
    let (held, _) = Held::begin(&url, "held");
    let ordered = read_ordered(&mut one, url.lun);
    let behind: Vec<Vec<u32>> =
        writers.iter_mut().map(|writer| write_many(writer, url.lun, 100, PIECE)).collect();
    let come_late = |n| {
        let mut initiator = session(&beside, &format!("late{n}"));
        let room = initiator.window();
        assert!((1..WINDOW).contains(&room), "{room}");
        let writes = write_many(&mut initiator, url.lun, room, PIECE);
        (initiator, writes)
    };
    let mut late: Vec<(Initiator, Vec<u32>)> = (0..20).map(come_late).collect();
    assert!(late[0].1.len() > late[1].1.len() && late[1].1.len() > 1);
    // There is no room for more, except the one command that every session may send.
    let (mut narrow, left) = Held::begin(&beside, "narrow");
    assert_eq!(left, 0);
    held.end();
    let ping = narrow.initiator.receive().expect("a NOP-In");
    assert_eq!((ping.opcode(), ping.word_at(16)), (0x20, u32::MAX));
    assert!(window(&ping) > 0, "the window opens when there is room again");
    narrow.end();
    assert_eq!(one.complete(ordered).expect("the ordered task ends").status, GOOD);
    for (writer, tags) in writers.iter_mut().zip(&behind) {
        assert_eq!(statuses(writer, tags), [GOOD; 100]);
    }
    for (initiator, tags) in &mut late {
        let ends = statuses(initiator, tags);
        // Its first command to this unit reports the unit attention of a new nexus.
        assert_eq!((ends[0], &ends[1..]), (CHECK_CONDITION, &vec![GOOD; tags.len() - 1][..]));
    }
    daemon.stop();
}

/// Sends this many WRITEs without data, and answers no R2T. When this returns, the target has requested all
/// that it has buffers for.
fn write_without_data(initiator: &mut Initiator, url: &Url, commands: u32) {
    begin_writes(initiator, url, commands, 0x80);
    while initiator.receive().expect("an R2T or an answer").opcode() != 0x22 {}
}

/// The same with WRITEs whose unsolicited data is not sent, as many of these as the window allows.
fn send_writes_without_data(initiator: &mut Initiator, url: &Url, commands: u32) {
    let window = u32::try_from(initiator.window()).expect("few");
    begin_writes(initiator, url, commands.min(window), 0);
    while initiator.receive().expect("an answer").opcode() != 0x22 {}
}

/// Sends the commands of WRITEs, and a request whose answer arrives when the target has them all.
fn begin_writes(initiator: &mut Initiator, url: &Url, commands: u32, is_final: u8) {
    for tag in 0..commands {
        let mut command = Pdu::new(0x01, is_final | 0x20 | 1)
            .lun(url.lun)
            .word(16, Held::TAG + tag)
            .word(20, PIECE as u32)
            .word(24, initiator.next_cmd_sn());
        command.set_cdb(write_cdb(0, PIECE, BLOCK_BYTES, false));
        initiator.send(&command).expect("sent");
        initiator.skip_cmd_sn();
    }
    initiator.ask_to_manage(ABORT_TASK, url.lun, u32::MAX - 1).expect("sent");
}

/// So many that the first piece of each is more than a core has for all.
#[test]
fn as_many_sessions_as_there_may_be_keep_nobody_from_a_unit_that_is_not_theirs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let spec = format!("file:{},size=64M", directory.path().join("disk").display());
    // With digests, RAM too is written through buffers.
    let daemon = Daemon::serve(["--cores", "0", "--lun", "ram:1M", "--lun", &spec, "--lun", "ram:64M"]);
    let own = daemon.lun(0);
    let others_are_served = |round: u32| {
        for lun in [1, 2] {
            let login = Login::named(&format!("other{round}{lun}")).with_digests();
            let mut other = Initiator::login(&daemon.lun(lun), &login).expect("a session");
            other.ready(own.lun).expect("TEST UNIT READY");
            // What waits for theirs delays nothing else, not even on the same connection.
            let waits =
                (round == 0).then(|| other.issue(own.lun, read_cdb(), PIECE, Vec::new()).expect("sent"));
            for bytes in [512, PIECE, 4 * PIECE] {
                let blocks = bytes as u32 / BLOCK_BYTES;
                other.write_blocks(lun, 0, BLOCK_BYTES, &vec![3; bytes], false).expect("WRITE");
                assert!(other.read_blocks(lun, 0, blocks, BLOCK_BYTES).expect("READ") == vec![3; bytes]);
            }
            assert!(waits.is_none_or(|tag| !other.has_ended(tag)), "there was room on their unit");
        }
    };
    let asked = |n: u32| {
        let mut initiator = session(&own, &format!("mute{n}"));
        write_without_data(&mut initiator, &own, 3);
        initiator
    };
    let asking: Vec<Initiator> = (0..180).map(asked).collect();
    others_are_served(0);
    let unsolicited = |n: u32| {
        let mut initiator = session(&own, &format!("tardy{n}"));
        send_writes_without_data(&mut initiator, &own, 8);
        initiator
    };
    let announcing: Vec<Initiator> = (0..60).map(unsolicited).collect();
    others_are_served(1);
    drop((asking, announcing));
    daemon.stop();
}

#[test]
fn an_initiator_that_withholds_data_on_one_unit_starves_nobody_on_another() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let spec = format!("file:{},size=64M", directory.path().join("disk").display());
    let daemon = Daemon::serve(["--cores", "0", "--lun", "ram:1M", "--lun", &spec]);
    let (own, file) = (daemon.lun(0), daemon.lun(1));
    let mut mute: Vec<Initiator> = (0..24).map(|n| session(&own, &format!("mute{n}"))).collect();
    mute.iter_mut().for_each(|initiator| write_without_data(initiator, &own, 64));
    let mut other = session(&file, "other");
    for (lun, bytes) in [(file.lun, PIECE), (file.lun, 2 * PIECE), (own.lun, PIECE), (own.lun, 2 * PIECE)] {
        let blocks = bytes as u32 / BLOCK_BYTES;
        other.write_blocks(lun, 0, BLOCK_BYTES, &vec![3; bytes], false).expect("WRITE");
        assert!(other.read_blocks(lun, 0, blocks, BLOCK_BYTES).expect("READ") == vec![3; bytes]);
    }
    // None of them was ended for that.
    for initiator in &mut mute {
        initiator.ask_to_manage(ABORT_TASK, own.lun, u32::MAX - 1).expect("sent");
        assert_eq!(initiator.receive().expect("an answer").opcode(), 0x22);
    }
    daemon.stop();
}
