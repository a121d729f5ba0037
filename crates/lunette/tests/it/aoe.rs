//! ATA over Ethernet between two hosts: our target, our initiator, and vblade.

use crate::support::Noise;
use crate::support::aoe::{
    ATA, AoeInitiator, BAD_ARGUMENT, CONFIG, CONFIG_STRING_PRESENT, IDENTIFY, MASK, RESERVE, SECTOR,
    TARGET_IS_RESERVED, UNRECOGNIZED_COMMAND, UNSUPPORTED_VERSION, ata, config, mask, reserve,
    wait_for_announcement, write,
};
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, reserve_out};
use crate::support::load::Load;
use crate::support::net::{Faults, INITIATOR, INTERFACE, Network, Port};
use crate::support::segment::{lunette, serve, session};
use crate::support::tools::{Outcome, must, run, tool};
use crate::support::vblade::Vblade;
use crate::support::wait_until;
use std::path::Path;
use std::time::Duration;
use wire::Cdb;
use wire::scsi::command::{Inquiry, Read10, TestUnitReady};
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT};

/// The unit that most tests serve.
const URL: &str = "aoe://aoe0/1.1";
/// The same for what has much in flight, and on a busy machine for long.
const PATIENT_URL: &str = "aoe://aoe0/1.1?give_up_after=120";
/// Addresses that no host has.
const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 0x51];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 0x52];
/// A segment where something happens to every tenth frame.
const BAD: Faults = Faults { lost: 30, repeated: 40, delayed: 40, rate: None };

/// SCSI status, and additional sense of the unit attention RESERVATIONS PREEMPTED.
const RESERVATIONS_PREEMPTED: [u8; 2] = [0x2A, 3];

/// A file of noise.
fn file(path: &Path, bytes: usize) -> &str {
    std::fs::write(path, Noise(11).bytes(bytes)).expect("a file");
    path.to_str().expect("UTF-8")
}

/// Requests of the load in flight.
const DEPTH: u64 = 16;

/// Verified load continues while frames are lost, duplicated and delayed, and after the line was cut.
fn continues(network: &Network, load: &mut Load) {
    load.wait_for_progress();
    network.set(BAD);
    wait_until("every fault happens", || {
        let passed = network.passed();
        passed.lost > 0 && passed.repeated > 0 && passed.delayed > 0
    });
    load.wait_for_progress();
    let passed = network.passed();
    network.set(Faults::CUT);
    // More frames than the load has commands in flight: some were retransmitted unnecessarily.
    wait_until("frames are lost", || network.passed().lost > passed.lost + 2 * DEPTH);
    load.assert_running();
    network.set(Faults::NONE);
    load.wait_for_progress();
}

#[test]
fn verified_load_sees_nothing_of_a_bad_line() {
    let network = Network::new(1500, 1);
    let daemon = serve(&network, &["ram:32M,aoe=1.1"], &[]);
    let mut load = Load::within(&network.initiator, PATIENT_URL, &["--bs", "4K", "--iodepth", "16"]);
    continues(&network, &mut load);
    load.stop();
    daemon.stop();
}

#[test]
fn verified_load_with_jumbo_frames_sees_nothing_of_a_bad_line_and_of_a_killed_daemon() {
    let network = Network::new(9000, 2);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let unit = format!("file:{},size=32M,aoe=1.1", directory.path().join("disk").display());
    let mut daemon = serve(&network, &[&unit], &[]);
    let mut load = Load::within(&network.initiator, PATIENT_URL, &["--bs", "16K", "--iodepth", "16"]);
    continues(&network, &mut load);
    network.set(BAD);
    for _ in 0..2 {
        // A killed process takes nothing along that is already in its file.
        daemon.kill9();
        daemon = serve(&network, &[&unit], &[]);
        load.wait_for_progress();
    }
    load.stop();
    daemon.stop();
}

#[test]
fn what_one_protocol_writes_and_reserves_holds_for_the_other() {
    let network = Network::new(1500, 3);
    let daemon = serve(&network, &["ram:4M,aoe=1.1"], &[]);
    let mut scsi = session(&network, &daemon);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let (one, two) = (vec![1; 2 * SECTOR], vec![2; 2 * SECTOR]);

    scsi.write_blocks(0, 7, 512, &one, false).expect("WRITE");
    assert_eq!(guest.read(7, 2), Ok(one.clone()));
    guest.write(8, &two).expect("WRITE SECTORS");
    assert_eq!(scsi.read_blocks(0, 7, 3, 512).expect("READ"), [&one[..SECTOR], &two].concat());

    scsi_reserves(&mut scsi, &mut guest);
    aoe_reserves(&mut scsi, &mut guest);
    daemon.stop();
}

/// Persistent reservations of each relevant kind, as AoE sees them.
fn scsi_reserves(scsi: &mut Initiator, guest: &mut AoeInitiator) {
    let [write_exclusive, exclusive_access] = [1, 3];
    let block = vec![3; SECTOR];
    assert_eq!(reserve_out(scsi, 0, 0, 0, 0, 0xA), GOOD, "REGISTER");
    guest.write(0, &block).expect("a registration alone blocks nobody");
    for kind in [write_exclusive, exclusive_access] {
        assert_eq!(reserve_out(scsi, 0, 1, kind, 0xA, 0), GOOD, "RESERVE");
        let read = if kind == write_exclusive { Ok(block.clone()) } else { Err(TARGET_IS_RESERVED) };
        assert_eq!(guest.read(0, 1), read);
        assert_eq!(guest.write(0, &[4; SECTOR]), Err(TARGET_IS_RESERVED));
        assert_eq!(guest.reserve(1, &[guest.mac]), Err(TARGET_IS_RESERVED));
        assert_eq!(guest.config(4, b"mine"), Err(TARGET_IS_RESERVED));
        assert_eq!(guest.mask(&[(1, guest.mac)]), Err(TARGET_IS_RESERVED));
        assert_eq!(guest.identify().map(|data| data.len()), Ok(SECTOR));
        assert_eq!(guest.config(0, b""), Ok(Vec::new()));
        assert_eq!(guest.reserve(0, &[]), Ok(Vec::new()));
        assert_eq!(scsi.read_blocks(0, 0, 1, 512).expect("the holder reads"), block);
        assert_eq!(reserve_out(scsi, 0, 2, kind, 0xA, 0), GOOD, "RELEASE");
        guest.write(0, &block).expect("nobody is kept out any more");
    }
    assert_eq!(reserve_out(scsi, 0, 1, exclusive_access, 0xA, 0), GOOD, "RESERVE");
}

/// A reserve list set by force, as SCSI, which holds the reservation, and other initiators of AoE see it.
fn aoe_reserves(scsi: &mut Initiator, guest: &mut AoeInitiator) {
    let status = |scsi: &mut Initiator, cdb: Cdb| scsi.read(0, cdb, SECTOR).expect("an answer").status;
    let read = Cdb::from(Read10::new(0, 1));
    let inquiry = Cdb::from(Inquiry::new(96));
    let own = guest.mac;
    assert_eq!(guest.reserve(2, &[own]), Ok(vec![own]));
    let reported = scsi.read(0, TestUnitReady {}, 0).expect("an answer");
    assert_eq!((reported.status, reported.sense_key()), (CHECK_CONDITION, Some(6)));
    assert!(reported.sense.windows(2).any(|code| code == RESERVATIONS_PREEMPTED), "{reported:?}");
    assert_eq!(status(scsi, read), RESERVATION_CONFLICT);
    let out = scsi.write(0, crate::support::initiator::write_cdb(0, SECTOR, 512, false), &[9; SECTOR]);
    assert_eq!(out.expect("an answer").status, RESERVATION_CONFLICT);
    assert_eq!((status(scsi, inquiry), status(scsi, TestUnitReady {}.into())), (GOOD, GOOD));
    assert_eq!(reserve_out(scsi, 0, 1, 3, 0xA, 0), RESERVATION_CONFLICT, "RESERVE");

    guest.write(0, &[5; SECTOR]).expect("who is on the list writes");
    guest.mac = STRANGER;
    assert_eq!(guest.read(0, 1), Err(TARGET_IS_RESERVED));
    assert_eq!(guest.write(0, &[6; SECTOR]), Err(TARGET_IS_RESERVED));
    assert_eq!(guest.reserve(1, &[STRANGER]), Err(TARGET_IS_RESERVED));
    assert_eq!(guest.reserve(0, &[]), Ok(vec![own]));
    guest.mac = own;
    assert_eq!(guest.reserve(1, &[own, STRANGER]), Ok(vec![own, STRANGER]));
    guest.mac = STRANGER;
    assert_eq!(guest.read(0, 1), Ok(vec![5; SECTOR]));
    assert_eq!(guest.reserve(1, &[]), Ok(Vec::new()), "who is on it releases");
    assert_eq!(status(scsi, read), GOOD);

    assert_eq!(guest.reserve(1, &[STRANGER]), Ok(vec![STRANGER]));
    assert_eq!(status(scsi, read), RESERVATION_CONFLICT);
    assert_eq!(reserve_out(scsi, 0, 3, 0, 0xA, 0), GOOD, "CLEAR gives the unit back");
    assert_eq!(guest.reserve(0, &[]), Ok(Vec::new()));
    assert_eq!(status(scsi, read), GOOD);
    guest.mac = own;
    assert_eq!(guest.read(0, 1), Ok(vec![5; SECTOR]));
}

#[test]
fn config_string_and_mask_list_are_the_units_and_outlive_the_daemon() {
    let network = Network::new(1500, 4);
    let state = tempfile::tempdir().expect("a temporary directory");
    let options = ["--cores", "0", "--state-dir", state.path().to_str().expect("UTF-8")];
    let units = ["ram:1M,aoe=1.1,serial=S", "ram:1M,aoe=1.2,serial=T"];
    let daemon = serve(&network, &units, &options);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let mut witness = AoeInitiator::find(&network.initiator, 1, 2);
    let (own, text) = (guest.mac, b"the first disk");

    assert_eq!(guest.config(0, b""), Ok(Vec::new()));
    assert_eq!(guest.config(3, text), Ok(text.to_vec()));
    assert_eq!(guest.config(3, text), Ok(text.to_vec()), "a copy of the same");
    assert_eq!(guest.config(3, b"another"), Err(CONFIG_STRING_PRESENT));
    assert_eq!(guest.config(1, text), Ok(text.to_vec()));
    assert_eq!(guest.config(2, b"the f"), Ok(text.to_vec()));
    for (command, string) in [(1, &b"the first"[..]), (2, b"the s"), (2, b"the first disk and more")] {
        let frame = guest.frame(CONFIG, &config(command, string));
        witness.assert_unanswered(&frame);
    }
    assert_eq!(guest.config(4, b"a disk"), Ok(b"a disk".to_vec()));
    assert_eq!(guest.config(4, &[b'x'; 1024]), Ok(vec![b'x'; 1024]), "the longest");
    let answer = guest.ask(CONFIG, &config(4, &[b'x'; 1025]));
    assert_eq!(answer.error, Some(BAD_ARGUMENT));
    assert_eq!(guest.config(4, text), Ok(text.to_vec()));
    assert_eq!(witness.config(0, b""), Ok(Vec::new()), "the other unit has its own");

    assert_eq!(guest.mask(&[]), Ok(Vec::new()));
    assert_eq!(guest.mask(&[(1, own), (1, OTHER), (0, STRANGER)]), Ok(vec![own, OTHER]));
    assert_eq!(guest.mask(&[(2, own), (9, STRANGER)]), Err(0x82), "an unknown directive: nothing is done");
    assert_eq!(guest.mask(&[]), Ok(vec![own, OTHER]));
    assert_eq!(guest.reserve(1, &[own]), Ok(vec![own]));
    daemon.stop();

    let daemon = serve(&network, &units, &options);
    assert_eq!(witness.config(0, b""), Ok(Vec::new()));
    assert_eq!((guest.config(0, b""), guest.mask(&[])), (Ok(text.to_vec()), Ok(vec![own, OTHER])));
    assert_eq!(guest.reserve(0, &[]), Ok(Vec::new()), "that was for as long as the daemon ran");
    guest.mac = STRANGER;
    for (command, argument) in [
        (CONFIG, config(0, b"")),
        (ATA, ata(IDENTIFY, 0, 1, &[])),
        (MASK, mask(&[])),
        (RESERVE, reserve(0, &[])),
    ] {
        let frame = guest.frame(command, &argument);
        witness.assert_unanswered(&frame);
    }
    guest.mac = OTHER;
    assert_eq!(guest.mask(&[(2, own), (2, OTHER)]), Ok(Vec::new()));
    guest.mac = STRANGER;
    assert_eq!(guest.config(0, b""), Ok(text.to_vec()), "an empty list shuts nobody out");
    daemon.stop();
}

#[test]
fn the_file_says_which_addresses_are_served() {
    let network = Network::new(1500, 5);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("lunette.toml");
    let own = network.initiator.inside(|| Port::open(INTERFACE)).mac();
    let [own, other] = [own, OTHER].map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
    let text = format!(
        "cores = '0'\n[[aoe]]\ninterface = '{INTERFACE}'\nallow = ['{own}', '{other}']\ndeny = ['{other}']\n\
         [[lun]]\nram = '1M'\naoe = '1.1'\n"
    );
    std::fs::write(&file, text).expect("a file");
    let daemon = Daemon::serve_within(&network.target, ["--config".as_ref(), file.as_os_str()]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    guest.write(0, &[7; SECTOR]).expect("who is allowed writes");
    let mut forger = AoeInitiator::find(&network.initiator, 1, 1);
    for mac in [STRANGER, OTHER] {
        forger.mac = mac;
        for (command, argument) in [(CONFIG, config(0, b"")), (ATA, write(0, &[8; SECTOR]))] {
            let frame = forger.frame(command, &argument);
            guest.assert_unanswered(&frame);
        }
    }
    assert_eq!(guest.read(0, 1), Ok(vec![7; SECTOR]));
    daemon.stop();
}

#[test]
fn units_announce_themselves_and_are_found() {
    let network = Network::new(1500, 6);
    let listener = network.initiator.inside(|| Port::open(INTERFACE));
    let daemon = serve(&network, &["ram:3M,aoe=1.1,serial=FIRST", "ram:1M,aoe=300.4"], &[]);
    assert!(daemon.banner().contains(&format!("URL {URL}")), "{}", daemon.banner());
    let target = network.target.inside(|| Port::open(INTERFACE)).mac();
    wait_for_announcement(&listener, target, 1, 1);
    wait_for_announcement(&listener, target, 300, 4);

    let medium = tempfile::NamedTempFile::new().expect("a temporary file");
    medium.as_file().set_len(1 << 20).expect("a larger file");
    let neighbour = Vblade::start(&network.target, 7, 3, medium.path());
    // Answers may take longer than it waits.
    wait_until("both targets are discovered", || {
        let found = lunette(&network.initiator, &["discover", &format!("aoe://{INTERFACE}")]);
        let lines = found.text.lines().filter(|line| !line.starts_with(' '));
        lines.eq(["1.1", "7.3", "300.4"])
    });
    let reported = lunette(&network.initiator, &["inquiry", URL]).expect_success("inquiry");
    assert!(reported.contains("FIRST") && reported.contains("LUNETTE"), "{reported}");
    drop(neighbour);
    daemon.stop();
    let found = lunette(&network.initiator, &["discover", &format!("aoe://{INTERFACE}")]);
    assert!(!found.text.contains("1.1"), "{}", found.text);
}

/// A daemon with two units, the first of which must not be affected.
struct Scene {
    network: Network,
    daemon: Daemon,
    witness: AoeInitiator,
    block: Vec<u8>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let network = Network::new(1500, seed);
        let daemon = serve(&network, &["ram:1M,aoe=1.1", "ram:1M,aoe=1.2"], &["--cores", "0"]);
        let mut witness = AoeInitiator::find(&network.initiator, 1, 1);
        let block = Noise(seed).bytes(2 * SECTOR);
        witness.write(9, &block).expect("WRITE SECTORS");
        Self { network, daemon, witness, block }
    }

    fn is_well(&mut self) {
        assert_eq!(self.witness.read(9, 2), Ok(self.block.clone()));
        assert_eq!(self.witness.config(0, b""), Ok(Vec::new()));
        assert_eq!((self.witness.reserve(0, &[]), self.witness.mask(&[])), (Ok(Vec::new()), Ok(Vec::new())));
    }

    fn end(mut self) {
        self.is_well();
        let log = self.daemon.stop();
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[test]
fn wrong_frames_are_refused_or_ignored_and_do_nothing() {
    let mut scene = Scene::new(7);
    let guest = &mut scene.witness;
    let own = guest.mac;
    let harm = [
        (ATA, write(9, &[0xBB; 2 * SECTOR])),
        (CONFIG, config(3, b"wrong")),
        (MASK, mask(&[(1, STRANGER)])),
        (RESERVE, reserve(1, &[STRANGER])),
    ];
    for (command, argument) in &harm {
        let good = guest.frame(*command, argument);
        // Each shorter length of it: truncated frames, and less.
        for len in 0..good.len() {
            guest.send(&good[..len]);
        }
        let changed = |at: usize, bytes: &[u8]| {
            let mut frame = good.clone();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        let ignored = [
            ("to another host", changed(0, &STRANGER)),
            ("an answer", changed(14, &[0x18])),
            ("to a shelf that there is not", changed(16, &[0, 2])),
            ("to a slot that there is not", changed(18, &[3])),
            ("to all shelves", changed(16, &[0xFF, 0xFF])),
            ("from a group", changed(6, &[1])),
        ];
        for (what, frame) in ignored {
            println!("{what}, command {command}");
            guest.assert_unanswered(&frame);
        }
        let version = guest.ask_frame(&changed(14, &[0x20])).error;
        assert_eq!(version, Some(UNSUPPORTED_VERSION));
        assert_eq!(guest.ask_frame(&changed(19, &[4])).error, Some(UNRECOGNIZED_COMMAND));
    }
    assert_eq!(guest.ask(CONFIG, &config(9, b"")).error, Some(BAD_ARGUMENT));
    assert_eq!(guest.ask(MASK, &[0, 9, 0, 0]).error, Some(BAD_ARGUMENT));
    assert_eq!(guest.ask(RESERVE, &[9, 0]).error, Some(BAD_ARGUMENT));
    assert_eq!(guest.ask(RESERVE, &reserve(1, &[own])[..7]).error, Some(BAD_ARGUMENT), "a list that is cut");
    assert_eq!(guest.reserve(0, &[]), Ok(Vec::new()));
    scene.end();
}

#[test]
fn floods_cost_bounded_memory_and_block_nobody() {
    const FRAMES: usize = 100_000;
    /// How many are sent before an answer is awaited.
    const BURST: usize = 100;
    const GROWTH_BYTES_MAX: u64 = 32 << 20;
    let mut scene = Scene::new(8);
    let before = scene.daemon.resident_bytes();
    // What gets through is for the other unit.
    let mut flooder = AoeInitiator::find(&scene.network.initiator, 1, 2);
    let mut noise = Noise(88);
    for _ in 0..FRAMES / BURST {
        for _ in 0..BURST {
            let kind = noise.below(8);
            let len = usize::try_from(noise.below(if kind == 0 { 1400 } else { 64 })).expect("few");
            let mut bytes = noise.bytes(len);
            flooder.mac = [2, 0, 0, 0, noise.bytes(1)[0], noise.bytes(1)[0]];
            let frame = match kind {
                0 | 1 => [&flooder.frame(ATA, &[])[..14], &bytes].concat(),
                2 => flooder.frame(MASK, &mask(&[])),
                3 => flooder.frame(RESERVE, &bytes),
                4 => flooder.frame(CONFIG, &bytes),
                5 => flooder.frame(ATA, &ata(IDENTIFY, 0, 1, &[])),
                6 => flooder.frame(ATA, &bytes),
                _ => {
                    bytes.resize(SECTOR, 0);
                    flooder.frame(ATA, &write(noise.below(2048), &bytes))
                }
            };
            flooder.send(&frame);
        }
        scene.witness.config(0, b"").expect("the witness is answered");
    }
    scene.is_well();
    let grown = scene.daemon.resident_bytes().saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "memory grew by {grown} bytes");
    scene.end();
}

#[test]
fn it_needs_one_capability_and_says_so() {
    let network = Network::new(1500, 9);
    // Another user may not have access to the build directory.
    let directory = tempfile::tempdir().expect("a temporary directory");
    let program = directory.path().join("lunette");
    std::fs::copy(Daemon::command().get_program(), &program).expect("a copy");
    must(tool("chmod").args(["755"]).arg(directory.path()).arg(&program));
    let with = |capabilities: &str, arguments: &[&str]| {
        let mut command = tool("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--pdeathsig", "KILL"]);
        for set in ["inh-caps", "ambient-caps", "bounding-set"] {
            command.arg(format!("--{set}={capabilities}"));
        }
        network.target.within(command.arg(&program).args(arguments))
    };
    let serve = ["serve", "--listen", "127.0.0.1:0", "--aoe", INTERFACE, "--lun", "ram:1M,aoe=1.1"];
    let daemon = Daemon::start(&mut with("-all,+net_raw", &serve));
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    guest.write(5, &[1; SECTOR]).expect("WRITE SECTORS");
    assert_eq!(guest.read(5, 1), Ok(vec![1; SECTOR]));
    daemon.stop();

    let refused = |outcome: Outcome, word: &str| {
        let failed = outcome.status.is_some_and(|status| !status.success());
        assert!(failed && outcome.text.contains(word), "{word}: {}", outcome.text);
    };
    for arguments in [&serve[..], &["inquiry", URL], &["discover", "aoe://aoe0"]] {
        refused(run(&mut with("-all", arguments), Duration::from_secs(60)), "CAP_NET_RAW");
    }
    let serve = ["serve", "--aoe", "nosuch0", "--lun", "ram:1M,aoe=1.1"];
    for arguments in [&serve[..], &["inquiry", "aoe://nosuch0/1.1"], &["discover", "aoe://nosuch0"]] {
        refused(lunette(&network.target, arguments), "nosuch0: there is no such network interface");
    }
}

#[test]
fn a_unit_is_a_source_a_destination_and_a_store() {
    let network = Network::new(9000, 10);
    let daemon = serve(&network, &["ram:8M,aoe=1.1"], &[]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    copies(&network, directory.path());

    // Another daemon serves it over iSCSI.
    let front = ["--listen", &format!("{INITIATOR}:0"), "--lun", URL];
    let front = Daemon::serve_within(&network.initiator, front);
    let mut session = session(&network, &front);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    session.write_blocks(0, 100, 512, &[6; 2 * SECTOR], true).expect("WRITE");
    assert_eq!(guest.read(100, 2), Ok(vec![6; 2 * SECTOR]));
    drop(session);
    let mut load =
        Load::within(&network.initiator, &front.lun(0).to_string(), &["--bs", "64K", "--iodepth", "4"]);
    load.wait_for_progress();
    load.stop();
    front.stop();
    daemon.stop();
}

/// A file is copied to the unit and back.
fn copies(network: &Network, directory: &Path) {
    let (source, back) = (directory.join("source"), directory.join("back"));
    let (source, back) = (file(&source, 8 << 20), back.to_str().expect("UTF-8"));
    for (from, to) in [(source, PATIENT_URL), (PATIENT_URL, back)] {
        let said =
            lunette(&network.initiator, &["copy", from, to, "--verify", "--yes"]).expect_success("copy");
        assert!(said.contains("no byte differs"), "{said}");
    }
    assert!(std::fs::read(source).expect("a file") == std::fs::read(back).expect("a file"));
}

#[test]
fn a_target_of_others_serves_verified_load_and_copies() {
    for mtu in [1500, 9000] {
        let network = Network::new(mtu, 11);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let medium = directory.path().join("disk");
        file(&medium, 8 << 20);
        let vblade = Vblade::start(&network.target, 1, 1, &medium);
        copies(&network, directory.path());
        let mut load = Load::within(&network.initiator, PATIENT_URL, &["--bs", "8K", "--iodepth", "16"]);
        load.wait_for_progress();
        load.stop();
        drop(vblade);
    }
}
