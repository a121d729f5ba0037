//! Peers that violate rules, stall or flood: others are still served, memory stays bounded, the daemon ends
//! in order.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Pdu};
use crate::support::peer::{PATIENCE, assert_hung_up, connect};
use crate::support::{Noise, wait_until};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::Cdb;
use wire::scsi::command::{Inquiry, Read10, Read16, StartStopUnit, SynchronizeCache10, Write16};

/// A unit that fits in memory with room to spare.
const UNIT: &str = "ram:16M";
/// The memory that a flood may cost.
const GROWTH_BYTES_MAX: u64 = 192 << 20;
/// Connections of a flood.
const FLOOD: usize = 400;
/// A daemon, and a well-behaved session that must not be affected.
struct Scene {
    daemon: Daemon,
    url: Url,
    witness: Initiator,
    resident_bytes: u64,
    block: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let daemon = Daemon::serve(["--lun", UNIT]);
        let url = daemon.lun(0);
        let mut witness = Initiator::login(&url, &Login::named("witness")).expect("login");
        let block = Noise(7).bytes(512);
        witness.write_blocks(url.lun, 9, 512, &block, false).expect("WRITE");
        let resident_bytes = daemon.resident_bytes();
        Self { daemon, url, witness, resident_bytes, block }
    }

    fn portal(&self) -> SocketAddr {
        self.url.portal
    }

    /// The witness still reads what it wrote, a new connection gets in, and memory is bounded.
    fn is_well(&mut self) {
        let found = self.witness.read_blocks(self.url.lun, 9, 1, 512).expect("the witness is served");
        assert_eq!(found, self.block);
        let mut newcomer = login_when_there_is_room(&self.url);
        newcomer.ready(self.url.lun).expect("the new connection is served");
        newcomer.logout().expect("logout");
        let grown = self.daemon.resident_bytes().saturating_sub(self.resident_bytes);
        assert!(grown < GROWTH_BYTES_MAX, "memory grew by {grown} bytes");
    }

    fn end(mut self) -> String {
        self.is_well();
        self.witness.logout().expect("logout");
        self.daemon.stop()
    }
}

#[test]
fn garbage_before_login_ends_only_its_own_connection() {
    let mut scene = Scene::new();
    for seed in 0..64 {
        let mut stream = connect(scene.portal());
        let mut noise = Noise(seed);
        let len = 1 + usize::try_from(noise.below(4096)).expect("small");
        // The daemon may have hung up before everything was sent.
        let _ = stream.write_all(&noise.bytes(len));
        drop(stream);
    }
    scene.is_well();
    scene.end();
}

#[test]
fn huge_lengths_are_refused_without_memory() {
    let mut scene = Scene::new();
    let opcodes = [0x43, 0x03, 0x01, 0x41, 0x05, 0x04, 0x44, 0x00, 0x40, 0x02, 0x06, 0x10, 0x1f, 0x3f, 0x7f];
    let mut streams = Vec::new();
    for opcode in opcodes {
        for additional in [0, 0xff] {
            let mut stream = connect(scene.portal());
            let mut header = Pdu::new(opcode, 0x87).header;
            // The longest segments that the header allows. The target waits for them for a limited time.
            header[4..8].copy_from_slice(&[additional, 0xff, 0xff, 0xff]);
            let _ = stream.write_all(&header);
            streams.push(stream);
        }
    }
    streams.iter_mut().for_each(assert_hung_up);
    scene.is_well();
    scene.end();
}

#[test]
fn broken_pdus_after_login_end_only_their_own_session() {
    let scene = Scene::new();
    for seed in 0..48 {
        let mut noise = Noise(1000 + seed);
        let name = format!("breaker{seed}");
        let initiator = Initiator::login(&scene.url, &Login::named(&name)).expect("login");
        let mut bytes = noise.bytes(48 * 4);
        // Sometimes something that resembles a command, so that more than the opcode is checked.
        if seed % 2 == 0 {
            bytes[..2].copy_from_slice(&[0x01, 0xa1]);
            bytes[4..8].copy_from_slice(&[0, 0, 0, 96]);
        }
        let _ = initiator.stream().write_all(&bytes);
    }
    scene.end();
}

#[test]
fn a_flood_of_silent_connections_starves_nobody() {
    let mut scene = Scene::new();
    let flood: Vec<TcpStream> = (0..FLOOD).filter_map(|_| TcpStream::connect(scene.portal()).ok()).collect();
    let found = scene.witness.read_blocks(scene.url.lun, 9, 1, 512).expect("the witness is served");
    assert_eq!(found, scene.block);
    scene.is_well();
    drop(flood);
    scene.end();
}

#[test]
fn half_open_logins_starve_nobody() {
    let mut scene = Scene::new();
    let stalled: Vec<TcpStream> = (0..FLOOD)
        .filter_map(|_| {
            let mut stream = TcpStream::connect(scene.portal()).ok()?;
            // A login that announces a text and never sends all of it.
            let mut header = Pdu::new(0x43, 0x87).header;
            header[7] = 200;
            stream.write_all(&header).ok()?;
            stream.write_all(b"InitiatorName=iqn.").ok()?;
            Some(stream)
        })
        .collect();
    let found = scene.witness.read_blocks(scene.url.lun, 9, 1, 512).expect("the witness is served");
    assert_eq!(found, scene.block);
    scene.is_well();
    drop(stalled);
    scene.end();
}

#[test]
fn a_reader_that_never_reads_costs_bounded_memory() {
    let mut scene = Scene::new();
    let mut slow: Vec<Initiator> = Vec::new();
    for number in 0..4 {
        let mut initiator =
            Initiator::login(&scene.url, &Login::named(&format!("slow{number}"))).expect("login");
        initiator.ready(scene.url.lun).expect("the unit is ready");
        read_without_receiving(&initiator, scene.url.lun);
        slow.push(initiator);
    }
    scene.is_well();
    drop(slow);
    scene.end();
}

#[test]
fn sessions_that_vanish_leave_nothing_behind() {
    let mut scene = Scene::new();
    for round in 0..100 {
        let mut initiator =
            Initiator::login(&scene.url, &Login::named(&format!("ghost{}", round % 7))).expect("login");
        initiator.ready(scene.url.lun).expect("the unit is ready");
        // A write that waits for data that never arrives.
        let cdb = crate::support::initiator::write_cdb(u64::from(round * 7_u32), 1 << 20, 512, false);
        let command = Pdu::new(0x01, 0xa1).lun(scene.url.lun).word(16, 77).word(20, 1 << 20);
        let mut command = command.word(24, initiator.next_cmd_sn());
        command.set_cdb(cdb);
        initiator.send(&command).expect("send");
    }
    scene.is_well();
    scene.end();
}

#[test]
fn refusals_that_leave_a_session_open_are_logged_at_a_limited_rate() {
    const SNACKS: usize = 4000;
    let scene = Scene::new();
    let mut rude = Initiator::login(&scene.url, &Login::named("rude")).expect("login");
    rude.ready(scene.url.lun).expect("the unit is ready");
    for _ in 0..SNACKS {
        rude.send(&Pdu::new(0x10, 0x80)).expect("send");
        assert_eq!(rude.receive().expect("a Reject").opcode(), 0x3f);
    }
    let ping = Pdu::new(0x40, 0x80).word(16, 1).word(20, u32::MAX).word(24, rude.next_cmd_sn());
    rude.send(&ping).expect("send");
    assert_eq!(rude.receive().expect("the session continues").opcode(), 0x20);
    drop(rude);
    // Each is logged, or counted soon although no other follows.
    let left_out = |log: &str| -> usize {
        let counts = log
            .lines()
            .filter_map(|line| line.split_once("refusals of sessions suppressed=")?.1.parse::<usize>().ok());
        counts.sum::<usize>()
    };
    let is_reported =
        |log: &str| log.matches("SNACK at error recovery level 0").count() + left_out(log) == SNACKS;
    wait_until("all refusals are logged or counted", || is_reported(&scene.daemon.log()));
    let log = scene.end();
    let reported: Vec<&str> =
        log.lines().filter(|line| line.contains("SNACK at error recovery level 0")).collect();
    assert!(!reported.is_empty() && reported.len() < SNACKS / 2, "{} lines", reported.len());
    assert!(reported[0].contains("rude") && reported[0].contains("RFC 7143"), "{}", reported[0]);
}

/// A command with 64 KiB of immediate data, only a part of which is sent.
fn send_half(initiator: &Initiator, lun: u16, flags: u8, cdb: Cdb) {
    let cdb = cdb.as_bytes();
    const ANNOUNCED: u32 = 64 << 10;
    let mut command = Pdu::new(0x01, flags).lun(lun).word(16, 0x77).word(20, ANNOUNCED);
    command = command.word(24, initiator.next_cmd_sn());
    command.header[5..8].copy_from_slice(&ANNOUNCED.to_be_bytes()[1..]);
    command.header[32..][..cdb.len()].copy_from_slice(cdb);
    let mut bytes = command.header.to_vec();
    if flags & 0x60 == 0x60 {
        // The expected length of the data-in, without which there are no two directions.
        bytes[4] = 2;
        bytes.extend([0, 5, 2, 0]);
        bytes.extend(4096_u32.to_be_bytes());
    }
    bytes.resize(bytes.len() + 20_000, 0xda);
    initiator.stream().write_all(&bytes).expect("send");
}

#[test]
fn peers_that_vanish_in_the_middle_of_data_leave_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file:{},size=16M", directory.path().join("unit").display());
    let daemon = Daemon::serve(["--lun", UNIT, "--lun", &file]);
    let commands: [(Cdb, u8); 5] = [
        (Write16::new(0, 128).into(), 0xa1),
        // SYNCHRONIZE CACHE, INQUIRY and START STOP UNIT have no data-out; READ(10) none either.
        (SynchronizeCache10::new(0, 0).into(), 0xa1),
        (Inquiry::new(96).into(), 0xe1),
        (StartStopUnit { start: true, ..StartStopUnit::ZERO }.into(), 0xa1),
        (Read10::new(0, 8).into(), 0xe1),
    ];
    for lun in [0, 1, 7] {
        let url = daemon.lun(0);
        for round in 0..4 {
            for (number, (cdb, flags)) in commands.iter().enumerate() {
                let name = format!("half{round}{number}");
                let mut initiator = Initiator::login(&url, &Login::named(&name)).expect("login");
                if lun < 2 {
                    initiator.ready(lun).expect("ready");
                }
                send_half(&initiator, lun, *flags, *cdb);
                let mut witness = Initiator::login(&url, &Login::named("witness")).expect("login");
                witness.ready(0).expect("served");
                witness.logout().expect("logout");
            }
        }
    }
    // On every core, since connections are spread over them.
    let mut newcomers: Vec<Initiator> = (0..8)
        .map(|n| Initiator::login(&daemon.lun(0), &Login::named(&format!("new{n}"))).expect("login"))
        .collect();
    for newcomer in &mut newcomers {
        newcomer.ready(0).expect("served");
        newcomer.ready(1).expect("served");
    }
    drop(newcomers);
    let log = daemon.stop();
    assert!(!log.contains("panicked"), "{log}");
}

/// A configuration of a file and a RAM unit that ends sessions without progress after one second.
fn short_timeouts(directory: &std::path::Path) -> String {
    let config = directory.join("lunette.toml");
    let unit = directory.join("unit");
    let text = format!(
        "stall_timeout = \"1s\"\n\
         [[portal]]\nlisten = \"127.0.0.1:0\"\n\
         [[lun]]\nname = \"file\"\nfile = \"{}\"\nsize = \"64M\"\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette.test:stall\"\nluns = [\"file\"]\n",
        unit.display()
    );
    std::fs::write(&config, text).expect("a file");
    config.display().to_string()
}

#[test]
fn data_that_never_comes_holds_nobody_up_forever() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::serve(["--config", &short_timeouts(directory.path())]);
    let url = daemon.lun(0);
    let mut stuck = Initiator::login(&url, &Login::named("stuck")).expect("login");
    stuck.ready(url.lun).expect("ready");
    let mut command = Pdu::new(0x01, 0xa1).lun(url.lun).word(16, 7).word(20, 4096);
    command = command.word(24, stuck.next_cmd_sn());
    command.set_cdb(Write16::new(0, 8));
    stuck.send(&command).expect("send");
    assert_eq!(stuck.receive().expect("an R2T").opcode(), 0x31);
    // An ordered task waits for everything older on the unit.
    let mut other = Initiator::login(&url, &Login::named("other")).expect("login");
    other.ready(url.lun).expect("ready");
    let out = vec![3; 512];
    let ordered = crate::support::initiator::write_cdb(9, 512, 512, false);
    let tag = other.issue_as(2, url.lun, ordered, 0, out).expect("sent");
    assert_eq!(other.complete(tag).expect("an answer").status, 0);
    assert!(stuck.receive().is_err(), "the session without progress was ended");
    let log = daemon.stop();
    assert!(log.contains("stall_timeout"), "{log}");
}

#[test]
fn readers_that_never_read_leave_buffers_for_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = Daemon::serve(["--config", &short_timeouts(directory.path())]);
    let url = daemon.lun(0);
    let slow: Vec<Initiator> = (0..12)
        .map(|n| {
            let mut initiator = Initiator::login(&url, &Login::named(&format!("slow{n}"))).expect("login");
            initiator.ready(url.lun).expect("ready");
            read_without_receiving(&initiator, url.lun);
            initiator
        })
        .collect();
    let mut other = Initiator::login(&url, &Login::named("other")).expect("login");
    other.ready(url.lun).expect("ready");
    for lba in 0..64 {
        other.write_blocks(url.lun, lba * 512, 512, &vec![5; 512 * 512], false).expect("WRITE");
        let read = other.read_blocks(url.lun, lba * 512, 512, 512).expect("READ");
        assert_eq!(read, vec![5; 512 * 512]);
    }
    drop(slow);
    daemon.stop();
}

/// READs of 256 KiB, as many as the target's window and the socket allow; their answers are never read.
fn read_without_receiving(initiator: &Initiator, lun: u16) {
    let mut stream = initiator.stream();
    stream.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    for number in 0..4096 {
        let mut command = Pdu::new(0x01, 0xc1)
            .lun(lun)
            .word(16, 0x1000 + number)
            .word(20, 512 * 512)
            .word(24, initiator.next_cmd_sn().wrapping_add(number));
        command.set_cdb(Read16::new(0, 512));
        if stream.write_all(&command.header).is_err() {
            return;
        }
    }
}

/// While the connections of a flood are being closed, logins may be refused.
fn login_when_there_is_room(url: &Url) -> Initiator {
    let start = Instant::now();
    loop {
        match Initiator::login(url, &Login::named("newcomer")) {
            Ok(initiator) => return initiator,
            Err(error) if start.elapsed() > PATIENCE => panic!("the new connection is kept out: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
