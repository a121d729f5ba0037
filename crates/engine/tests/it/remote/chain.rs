//! A target whose unit is another target's: A serves to us what B serves to A.

use super::support::{TARGET, serve, serve_at, short_timeouts, sums, url, url_with, wait_until_open};
use config::Config;
use engine::{Daemon, Wants};
use initiator::client::Reply;
use initiator::{Client, Options};
use std::path::{Path, PathBuf};
use wire::scsi::capacity::{Capacity16, LbaStatus, LbaStatusHeader, provisioning, unmap_list};
use wire::scsi::command::{
    CompareAndWrite, GetLbaStatus, Inquiry, OrWrite16, PersistentReserveOut, Read16, ReadCapacity16,
    SynchronizeCache16, Unmap, Verify16, Write16, WriteSame16,
};
use wire::scsi::opcode::service_action::persistent_reserve_out;
use wire::scsi::parameters::ReserveOutList;
use wire::scsi::{opcode, vpd};
use wire::{Cdb, SenseKey};

pub fn client(daemon: &Daemon) -> Client {
    Client::connect(&url(daemon, 0), &Options::default()).expect("a session")
}

/// A front whose unit is ready.
fn front(back: &Daemon, options: &str) -> Daemon {
    let front = serve(&[&format!("{}{options}", url(back, 0))]);
    wait_until_open(&front, 0);
    front
}

#[track_caller]
pub fn good(client: &mut Client, cdb: impl Into<Cdb>, read_bytes: u32, write: &[u8]) -> Vec<u8> {
    let cdb = cdb.into();
    let Reply { status, sense, data } = client.command(cdb, read_bytes, write).expect("a reply");
    assert_eq!((status, sense), (0, None), "{cdb:02x?}");
    data
}

#[track_caller]
pub fn sense(
    client: &mut Client,
    cdb: impl Into<Cdb>,
    read_bytes: u32,
    write: &[u8],
) -> (Option<SenseKey>, u16) {
    let cdb = cdb.into();
    let reply = client.command(cdb, read_bytes, write).expect("a reply");
    let sense = reply.sense.unwrap_or_else(|| panic!("{cdb:02x?}: {reply:?}"));
    (sense.key(), sense.code())
}

pub fn read(lba: u64, blocks: u32) -> Cdb {
    Read16::new(lba, blocks).into()
}

pub fn write(lba: u64, blocks: u32) -> Cdb {
    Write16::new(lba, blocks).into()
}

pub fn flush() -> Cdb {
    SynchronizeCache16::ZERO.into()
}

pub fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 13 + n / 509 + seed) as u8).collect()
}

#[test]
fn what_is_written_through_the_front_is_in_the_back() {
    let back = serve(&["ram:64M,bs=4096"]);
    let a = front(&back, "");
    let (mut front, mut behind) = (client(&a), client(&back));
    let capacity = Capacity16::read(&good(&mut front, ReadCapacity16::new(32), 32, &[]));
    assert_eq!((capacity.block_bytes, capacity.last_lba), (4096, 16383));
    for (seed, (lba, blocks)) in [(0, 1), (1, 16), (100, 64), (16320, 64)].into_iter().enumerate() {
        let data = pattern(seed, blocks as usize * 4096);
        good(&mut front, write(lba, blocks), 0, &data);
        assert!(good(&mut behind, read(lba, blocks), blocks * 4096, &[]) == data);
        assert!(good(&mut front, read(lba, blocks), blocks * 4096, &[]) == data);
    }
    // FUA, SYNCHRONIZE CACHE.
    good(&mut front, Write16 { fua: true, ..Write16::new(7, 1) }, 0, &pattern(9, 4096));
    good(&mut front, flush(), 0, &[]);
    drop((front, behind));
    a.stop().expect("every core ends in order");
    back.stop().expect("every core ends in order");
}

#[test]
fn every_operation_goes_through() {
    let back = serve(&["ram:64M"]);
    let a = front(&back, sums());
    let mut client = client(&a);
    let (one, two) = (pattern(1, 1024), pattern(2, 1024));
    good(&mut client, write(8, 2), 0, &one);
    // VERIFY with data.
    let verify = Verify16 { byte_check: 1, ..Verify16::new(8, 2) };
    good(&mut client, verify, 0, &one);
    assert_eq!(sense(&mut client, verify, 0, &two).0, Some(SenseKey::Miscompare));
    // COMPARE AND WRITE.
    let both = [&one[..], &two[..]].concat();
    good(&mut client, CompareAndWrite::new(8, 2), 0, &both);
    assert!(good(&mut client, read(8, 2), 1024, &[]) == two);
    assert_eq!(sense(&mut client, CompareAndWrite::new(8, 2), 0, &both).0, Some(SenseKey::Miscompare));
    // ORWRITE.
    good(&mut client, OrWrite16::new(8, 2), 0, &one);
    let ored: Vec<u8> = one.iter().zip(&two).map(|(a, b)| a | b).collect();
    assert!(good(&mut client, read(8, 2), 1024, &[]) == ored);
    // WRITE SAME.
    good(&mut client, WriteSame16::new(64, 1000), 0, &pattern(3, 512));
    assert!(good(&mut client, read(1063, 1), 512, &[]) == pattern(3, 512));
    good(&mut client, WriteSame16 { unmap: true, ..WriteSame16::new(64, 1000) }, 0, &[0; 512]);
    assert!(good(&mut client, read(64, 400), 400 * 512, &[]).iter().all(|byte| *byte == 0));
    // UNMAP, GET LBA STATUS.
    good(&mut client, write(0, 16), 0, &pattern(4, 8192));
    good(&mut client, Unmap::new(24), 0, &unmap_list(0, 16));
    assert!(good(&mut client, read(0, 16), 8192, &[]).iter().all(|byte| *byte == 0));
    let status = good(&mut client, GetLbaStatus::new(0, 32), 32, &[]);
    let first = LbaStatus::read(&status[LbaStatusHeader::BYTES..]);
    assert_eq!(first.lba, 0);
    assert_ne!(first.status, provisioning::MAPPED, "{status:?}");
    // Beyond the end.
    let beyond = sense(&mut client, read(1 << 40, 1), 512, &[]);
    assert_eq!(beyond, (Some(SenseKey::IllegalRequest), 0x2100));
}

#[test]
fn the_longest_compare_and_write_goes_through() {
    for (lun, block_bytes) in [("ram:16M", 512), ("ram:16M,bs=4096", 4096)] {
        let back = serve(&[lun]);
        let a = front(&back, "");
        let mut client = client(&a);
        let blocks = good(&mut client, Inquiry::page(vpd::page::BLOCK_LIMITS, 64), 64, &[])[5];
        let new = pattern(1, usize::from(blocks) * block_bytes);
        good(&mut client, CompareAndWrite::new(8, blocks), 0, &[vec![0; new.len()], new.clone()].concat());
        let bytes = new.len() as u32;
        assert!(good(&mut client, read(8, blocks.into()), bytes, &[]) == new, "{lun}");
    }
}

#[test]
fn three_chained_daemons_pass_reads_and_writes_through() {
    let c = serve(&["ram:16M"]);
    let b = front(&c, "");
    let a = front(&b, "");
    let data = pattern(5, 65536);
    let mut front = client(&a);
    good(&mut front, write(3, 128), 0, &data);
    assert!(good(&mut client(&c), read(3, 128), 65536, &[]) == data);
    assert!(good(&mut front, read(3, 128), 65536, &[]) == data);
}

#[test]
fn write_protection_and_reservations_pass_through() {
    let back = serve(&["ram:16M,ro"]);
    let a = front(&back, "");
    let mut protected = client(&a);
    assert_eq!(sense(&mut protected, write(0, 1), 0, &[0; 512]), (Some(SenseKey::DataProtect), 0x2700));

    let back = serve(&["ram:16M"]);
    let a = front(&back, "");
    let mut front = client(&a);
    good(&mut front, read(0, 1), 512, &[]);
    // Another initiator reserves the back end: REGISTER, then RESERVE (write exclusive).
    let mut other = client(&back);
    let parameters = ReserveOutList { action_key: 1, ..ReserveOutList::ZERO }.to_bytes();
    good(&mut other, PersistentReserveOut::new(persistent_reserve_out::REGISTER, 0, 24), 0, &parameters);
    let parameters = ReserveOutList { key: 1, ..ReserveOutList::ZERO }.to_bytes();
    good(&mut other, PersistentReserveOut::new(persistent_reserve_out::RESERVE, 1, 24), 0, &parameters);
    let reply = front.command(write(0, 1), 0, &[0; 512]).expect("a reply");
    assert_eq!(reply.status, 0x18, "RESERVATION CONFLICT");
    good(&mut front, read(0, 1), 512, &[]);
}

#[test]
fn a_unit_that_grows_is_seen_to_grow() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let back = serve(&[&format!("file:{},size=16M", path.display())]);
    let a = front(&back, "");
    let mut front = client(&a);
    let mut last_block = || {
        let data = good(&mut front, ReadCapacity16::new(32), 32, &[]);
        Capacity16::read(&data).last_lba
    };
    assert_eq!(last_block(), (16 << 11) - 1);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the disk");
    file.set_len(32 << 20).expect("grown");
    let mut other = client(&a);
    while last_block() != (32 << 11) - 1 {
        good(&mut other, read(0, 1), 512, &[]);
    }
    good(&mut front, write((32 << 11) - 8, 8), 0, &pattern(7, 4096));
    assert!(good(&mut client(&back), read((32 << 11) - 8, 8), 4096, &[]) == pattern(7, 4096));
}

#[test]
fn a_unit_that_cannot_be_served_says_why() {
    let back = serve(&["ram:16M"]);
    let failed = |daemon: &Daemon| daemon.units()[0].failed.clone().unwrap_or_default();
    // A daemon starts without a reason if it gets none within seconds.
    let serve = |url: &str| {
        let daemons = std::iter::repeat_with(|| serve(&[url]));
        let mut known = daemons.filter(|daemon| !failed(daemon).contains("could not be opened within"));
        known.next().expect("one of them gets it")
    };
    let other_blocks = serve(&format!("{},bs=4096", url(&back, 0)));
    assert!(failed(&other_blocks).contains("512 bytes, not 4096"), "{}", failed(&other_blocks));
    let no_unit = serve(&url_with(&back, "", 9, "").to_string());
    assert!(failed(&no_unit).contains("no such unit"), "{}", failed(&no_unit));
    let mut client = client(&no_unit);
    assert_eq!(sense(&mut client, read(0, 1), 512, &[]).0, Some(SenseKey::NotReady));
    let there = url(&back, 0).to_string();
    back.stop().expect("every core ends in order");
    let gone = serve(&there);
    assert!(failed(&gone).contains("refused"), "{}", failed(&gone));
}

#[test]
fn a_lost_back_end_is_reported_within_the_bound_and_found_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = format!("file:{},size=16M", dir.path().join("disk").display());
    let back = serve(&[&disk]);
    let address = back.addresses()[0].to_string();
    let a = front(&back, "?give_up_after=5");
    let mut front = client(&a);
    let data = pattern(6, 4096);
    good(&mut front, write(0, 8), 0, &data);
    good(&mut front, flush(), 0, &[]);
    back.stop().expect("every core ends in order");
    // Bounded: the client itself would wait for longer, and then not get a reply.
    for cdb in [read(0, 8), write(8, 8)] {
        let (reads, writes) = if cdb.opcode() == opcode::READ_16 { (4096, &[][..]) } else { (0, &data[..]) };
        assert_eq!(sense(&mut front, cdb, reads, writes).0, Some(SenseKey::NotReady));
    }
    let back = serve_at(&address, &[&disk]);
    let there = loop {
        let reply = front.command(read(0, 8), 4096, &[]).expect("a reply");
        if reply.status == 0 {
            break reply.data;
        }
    };
    assert!(there == data);
    good(&mut front, write(8, 8), 0, &data);
    drop(front);
    a.stop().expect("every core ends in order");
    back.stop().expect("every core ends in order");
}

#[test]
fn io_continues_over_a_restart_of_the_back_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = format!("file:{},size=16M", dir.path().join("disk").display());
    let back = serve(&[&disk]);
    let address = back.addresses()[0].to_string();
    let a = front(&back, "");
    let there = url(&a, 0);
    let (written, rounds) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut front = Client::connect(&there, &long_timeouts()).expect("a session");
        for round in 0..400u64 {
            good(&mut front, write(round * 8, 8), 0, &pattern(round as usize, 4096));
            let _ = written.send(round);
        }
    });
    let reached = |least| rounds.iter().find(|round| *round >= least).expect("the writer continues");
    reached(20);
    back.stop().expect("every core ends in order");
    let back = serve_at(&address, &[&disk]);
    reached(200);
    writer.join().expect("no write failed");
    let mut behind = client(&back);
    for round in 0..400u64 {
        assert!(good(&mut behind, read(round * 8, 8), 4096, &[]) == pattern(round as usize, 4096), "{round}");
    }
}

/// As patient as a host that has mounted the disk.
fn long_timeouts() -> Options {
    Options { give_up_after: std::time::Duration::from_secs(60), ..short_timeouts() }
}

#[test]
fn a_remote_unit_that_comes_back_takes_over_what_its_sessions_were() {
    let behind = serve(&["ram:1M"]);
    let dir = tempfile::tempdir().expect("a directory");
    let config = |is_there: bool| {
        let url = format!("iscsi://{}/{TARGET}/0", behind.addresses()[0]);
        let (lun, shown) = match is_there {
            true => (format!(", {{ name = 'there', url = '{url}', serial = 's' }}"), ", 'there'"),
            false => (String::new(), ""),
        };
        let text = format!(
            "cores = '0'\nstate_dir = '{}'\nportal = [{{ listen = '127.0.0.1:0' }}]\n\
             lun = [{{ name = 'here', ram = '1M', serial = 'h' }}{lun}]\n\
             [[target]]\nname = '{TARGET}'\nluns = ['here'{shown}]\n",
            dir.path().display()
        );
        Config::from_toml(&text, Path::new("test.toml")).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let ports = || {
        let files =
            std::fs::read_dir(dir.path()).expect("a directory").map(|file| file.expect("a file").path());
        let kept = |path: &PathBuf| path.display().to_string().contains("initiator-ports");
        let kept = files.filter(kept).map(|path| std::fs::read_to_string(path).expect("text"));
        kept.collect::<String>().lines().count()
    };
    let mut daemon = Daemon::start(config(true)).expect("the daemon starts");
    wait_until_open(&daemon, 1);
    assert_eq!(ports(), 1, "that of the only core");
    for is_there in [false, true] {
        let to = config(is_there);
        for step in config::diff(daemon.config(), &to) {
            daemon.take_step(&step, &to, Wants::Lun).expect("it changes");
        }
    }
    wait_until_open(&daemon, 1);
    assert_eq!(ports(), 1, "it is the same again");
    daemon.stop().expect("every core ends in order");
    behind.stop().expect("every core ends in order");
}
