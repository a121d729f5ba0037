//! Sessions over real sockets that are constantly moved between cores.

use crate::message::Message;
use crate::registry::Registry;
use crate::testing::daemon::Url;
use crate::testing::initiator::{Initiator, Login, Pdu, Response, write_cdb};
use crate::{Daemon, SessionError};
use config::{Config, ServeOptions};
use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{JoinHandle, scope};
use std::time::Duration;
use wire::Cdb;
use wire::scsi::command::{Read16, TestUnitReady};

const BLOCK: usize = 512;
const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const LOGICAL_UNIT_RESET: u8 = 5;
const TARGET_COLD_RESET: u8 = 7;
const COMPLETE: u8 = 0;
const NO_TASK: u8 = 1;

/// The homes of both units are on other cores than the last: messages from a third core arrive in any order.
const CORES: usize = 3;

/// Two units of 64 MiB, on all cores, whether or not the machine has as many.
fn serve() -> (Daemon, Url) {
    let options = ServeOptions {
        listen: vec!["127.0.0.1:0".into()],
        lun: vec!["ram:64M".into(), "ram:64M".into()],
        cores: Some("0".into()),
        // The same tests pass in every polling mode.
        poll: Some(std::env::var("LUNETTE_TEST_POLL").unwrap_or_else(|_| "adaptive".into())),
        ..ServeOptions::default()
    };
    let mut config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    config.cores = (0..CORES).collect();
    config.portals[0].cores = config.cores.clone();
    let target = config.targets[0].name.clone();
    let daemon = Daemon::start(config).expect("the daemon starts");
    let portal = daemon.addresses()[0];
    (daemon, Url { portal, target })
}

/// Moves whatever session can be moved, until stopped; counts how often one was found on another core than
/// before.
struct Mover {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Mover {
    fn start(daemon: &Daemon) -> Self {
        let (registry, mail) = daemon.insides();
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let run = move || {
            let mut seen = BTreeMap::new();
            let mut moves = 0;
            while !until.load(Ordering::Relaxed) {
                for place in registry.places() {
                    let before = seen.insert(place.serial, place.core);
                    moves += usize::from(before.is_some_and(|core| core != place.core));
                    mail[place.core].post(Message::Move {
                        serial: place.serial,
                        to: (place.core + 1 + moves % 2) % CORES,
                    });
                }
                // A pace at which some drains end and others are cut short.
                std::thread::sleep(Duration::from_micros(300));
            }
            moves
        };
        Mover { is_over, thread: std::thread::spawn(run) }
    }

    fn stop(self) -> usize {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the mover ends well")
    }
}

/// SplitMix64.
struct Noise(u64);

impl Noise {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }
}

fn login(url: &Url, name: &str) -> Initiator {
    Initiator::login(url, &Login::named(name)).expect("a session")
}

fn read_cdb(lba: u64, bytes: usize) -> Cdb {
    Read16::new(lba, (bytes / BLOCK) as u32).into()
}

/// What a slot of the medium holds after this many writes.
fn contents(session: usize, slot: u64, version: u64) -> Vec<u8> {
    let seed = (session as u64) << 32 | slot << 16 | version;
    let bytes = SIZES[slot as usize % SIZES.len()];
    (0..bytes as u64 / 8).flat_map(|word| (seed.wrapping_mul(0x9E37_79B9) ^ word).to_le_bytes()).collect()
}

/// From one block to what takes several R2Ts.
const SIZES: [usize; 5] = [512, 4096, 65536, 131_072, 524_288];
const SLOTS: u64 = 10;
const SLOT_BYTES: u64 = 524_288;
const DEPTH: usize = 6;

/// Sessions with a verified load, and the commands of each.
const LOADS: usize = 4;
const LOADS_COMMANDS: usize = 600;
/// Sessions that read once and log out.
const LOGOUTS: usize = 60;

enum Op {
    Write(u64),
    Read(u64),
}

/// Writes and reads at depth, one command at a time per slot; reads must return what was written last.
fn verified_load(url: &Url, session: usize, commands: usize) {
    let named = Login::named(&format!("load-{session}"));
    let named = if session < 2 { named } else { named.with_digests() };
    let mut initiator = Initiator::login(url, &named).expect("a session");
    initiator.ready(0).expect("the unit is ready");
    let mut noise = Noise(session as u64);
    let mut versions = [0u64; SLOTS as usize];
    let mut in_flight: BTreeMap<u32, Op> = BTreeMap::new();
    let mut issued = 0;
    while issued < commands || !in_flight.is_empty() {
        let slot = noise.below(SLOTS);
        let is_taken = in_flight.values().any(|op| matches!(op, Op::Write(s) | Op::Read(s) if *s == slot));
        if issued < commands && in_flight.len() < DEPTH && !is_taken {
            let lba = (session as u64 * SLOTS + slot) * SLOT_BYTES / BLOCK as u64;
            let version = &mut versions[slot as usize];
            let is_write = *version == 0 || noise.below(2) == 0;
            *version += u64::from(is_write);
            let data = contents(session, slot, *version);
            let (cdb, op) = if is_write {
                (write_cdb(lba, data.len(), BLOCK as u32, false), Op::Write(slot))
            } else {
                (read_cdb(lba, data.len()), Op::Read(slot))
            };
            let (len, out) = if is_write { (0, data) } else { (data.len(), Vec::new()) };
            in_flight.insert(initiator.issue(0, cdb, len, out).expect("it is sent"), op);
            issued += 1;
        } else if !in_flight.is_empty() {
            let (tag, response) = initiator.complete_any().expect("an end");
            assert_eq!(response.status, 0, "{:02x?}", response.sense);
            match in_flight.remove(&tag).expect("it ends once") {
                Op::Write(_) => {}
                Op::Read(slot) => {
                    assert!(
                        response.data == contents(session, slot, versions[slot as usize]),
                        "session {session}, slot {slot}"
                    );
                }
            }
        }
    }
    initiator.logout().expect("an answer");
}

/// Aborts its own commands, one or all, and continues with the same session.
fn aborts(url: &Url, rounds: usize) {
    let mut initiator = login(url, "aborts");
    initiator.ready(1).expect("the unit is ready");
    for round in 0..rounds {
        let data = vec![round as u8; 131_072];
        let lba = (round as u64 % 64) * 256;
        let tags: Vec<u32> = (0..4)
            .map(|_| {
                let cdb = write_cdb(lba, data.len(), BLOCK as u32, false);
                initiator.issue(1, cdb, 0, data.clone()).expect("it is sent")
            })
            .collect();
        let (function, tag) = if round % 2 == 0 { (ABORT_TASK, tags[3]) } else { (ABORT_TASK_SET, u32::MAX) };
        let answer = initiator.manage(function, 1, tag).expect("an answer");
        assert!(matches!(answer, COMPLETE | NO_TASK), "{answer}");
        if function == ABORT_TASK {
            tags[..3].iter().for_each(|tag| assert_eq!(initiator.complete(*tag).expect("an end").status, 0));
        }
        initiator.ready(1).expect("the session continues");
    }
    initiator.logout().expect("an answer");
}

/// Logs in repeatedly as the same initiator port, with commands of the previous session in flight.
fn reinstatements(url: &Url, rounds: usize) {
    let mut before: Option<Initiator> = None;
    for round in 0..rounds {
        let mut initiator = login(url, "again");
        let data = vec![round as u8; 65536];
        initiator.write_blocks(1, 65536, BLOCK as u32, &data, false).expect("it is written");
        assert_eq!(initiator.read_blocks(1, 65536, 128, BLOCK as u32).expect("it is read"), data);
        for slot in 0..4 {
            let cdb = write_cdb(70000 + slot * 1024, 262_144, BLOCK as u32, false);
            initiator.issue(1, cdb, 0, vec![1; 262_144]).expect("it is sent");
        }
        before = Some(initiator);
    }
    before.expect("the last one").logout().expect("an answer");
}

fn logouts(url: &Url, rounds: usize) {
    for _ in 0..rounds {
        let mut initiator = login(url, "short");
        initiator.ready(0).expect("the unit is ready");
        initiator.read_blocks(0, 0, 8, BLOCK as u32).expect("it is read");
        initiator.logout().expect("an answer");
    }
}

fn wait_until_empty(registry: &Registry) {
    while !registry.places().is_empty() {
        std::thread::yield_now();
    }
}

#[test]
fn sessions_lose_nothing_while_they_move() {
    let (daemon, url) = serve();
    let mover = Mover::start(&daemon);
    scope(|scope| {
        for session in 0..LOADS {
            let url = &url;
            scope.spawn(move || verified_load(url, session, LOADS_COMMANDS));
        }
        scope.spawn(|| aborts(&url, 60));
        scope.spawn(|| reinstatements(&url, 30));
        scope.spawn(|| logouts(&url, LOGOUTS));
    });
    let moves = mover.stop();
    assert!(moves > 20, "only {moves} moves");
    wait_until_empty(&daemon.insides().0);
    // Of the others, only those that log out use the first unit, once in each session.
    let counts = daemon.meters().units()[0].counts;
    let (reads, writes) = (counts.read.commands(), counts.write.commands());
    assert_eq!(
        reads + writes,
        (LOADS * LOADS_COMMANDS + LOGOUTS) as u64,
        "each command is counted once: {counts:?}"
    );
    daemon.stop().expect("every core ends in order");
}

#[test]
fn sessions_are_listed_once_and_ended_wherever_they_have_moved() {
    let (daemon, url) = serve();
    let mover = Mover::start(&daemon);
    let sessions = daemon.sessions();
    let numbers =
        || sessions.list().expect("cores answer").iter().map(|session| session.id).collect::<Vec<u64>>();
    let (mut listed, mut ended) = (Vec::new(), Vec::new());
    let count = 4;
    scope(|scope| {
        for number in 0..count {
            let mut initiator = login(&url, &format!("listed-{number}"));
            initiator.ready(0).expect("the unit is ready");
            // Until it is disconnected.
            scope.spawn(move || while initiator.read_blocks(0, 0, 8, BLOCK as u32).is_ok() {});
        }
        listed.extend((0..300).map(|_| numbers()));
        for id in 1..=count {
            ended.push(sessions.end(id, Duration::from_secs(60)));
            listed.push(numbers());
        }
    });
    let all: Vec<u64> = (1..=count).collect();
    let left = (0..=count as usize).map(|ended| &all[ended..]);
    let expected: Vec<&[u64]> = std::iter::repeat_n(&all[..], 299).chain(left).collect();
    assert_eq!(listed, expected);
    assert_eq!(ended, [Ok(()); 4]);
    assert_eq!(sessions.end(1, Duration::from_secs(60)), Err(SessionError::NotFound));
    assert!(mover.stop() > 20, "they moved");
    daemon.stop().expect("every core ends in order");
}

/// Writes at depth like Linux's initiator: it sends a new command before data that was already requested, so
/// that the target never has all the data that it waits for.
struct EagerWriter {
    initiator: Initiator,
    cmd_sn: u32,
    exp_stat_sn: u32,
    /// R2Ts that have not been answered.
    asked: VecDeque<Pdu>,
    in_flight: usize,
    ended: u32,
}

impl EagerWriter {
    const BYTES: usize = 262_144;
    const SEGMENT_BYTES: usize = 8192;

    fn issue(&mut self) {
        let lba = u64::from(self.cmd_sn % 64) * 512;
        let mut command = Pdu::new(0x01, 0xa1)
            .word(16, self.cmd_sn)
            .word(20, Self::BYTES as u32)
            .word(24, self.cmd_sn)
            .word(28, self.exp_stat_sn);
        command.set_cdb(write_cdb(lba, Self::BYTES, BLOCK as u32, false));
        self.initiator.send(&command).expect("it is sent");
        self.cmd_sn += 1;
        self.in_flight += 1;
    }

    /// Handles what has arrived; if nothing has, sends the data of one R2T.
    fn turn(&mut self) {
        let stream = self.initiator.stream();
        stream.set_nonblocking(true).expect("a socket");
        let is_quiet = stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        stream.set_nonblocking(false).expect("a socket");
        if let Some(asked) = self.asked.pop_front_if(|_| is_quiet) {
            return self.answer(&asked);
        }
        let pdu = self.initiator.receive().expect("a PDU");
        match pdu.opcode() {
            0x31 => self.asked.push_back(pdu),
            0x21 => {
                assert_eq!((pdu.header[3], pdu.word_at(24)), (0, self.exp_stat_sn), "status and StatSN");
                self.exp_stat_sn += 1;
                self.in_flight -= 1;
                self.ended += 1;
            }
            other => panic!("opcode {other:#x}"),
        }
    }

    fn answer(&mut self, asked: &Pdu) {
        let (from, len) = (asked.word_at(40) as usize, asked.word_at(44) as usize);
        for (number, at) in (0..).zip((from..from + len).step_by(Self::SEGMENT_BYTES)) {
            let bytes = Self::SEGMENT_BYTES.min(from + len - at);
            let is_last = at + bytes == from + len;
            let data = Pdu::new(0x05, u8::from(is_last) << 7)
                .word(16, asked.word_at(16))
                .word(20, asked.word_at(20))
                .word(28, self.exp_stat_sn)
                .word(36, number)
                .word(40, at as u32)
                .data(&vec![0xa5; bytes]);
            self.initiator.send(&data).expect("it is sent");
        }
    }
}

#[test]
fn a_session_moves_while_data_that_was_requested_never_ceases_to_come() {
    let (daemon, url) = serve();
    let (registry, _) = daemon.insides();
    let mut initiator = login(&url, "writer");
    initiator.ready(0).expect("the unit is ready");
    let mover = Mover::start(&daemon);
    let (cmd_sn, exp_stat_sn) = (initiator.next_cmd_sn(), initiator.next_stat_sn());
    let mut writer =
        EagerWriter { initiator, cmd_sn, exp_stat_sn, asked: VecDeque::new(), in_flight: 0, ended: 0 };
    let (mut core, mut moves) = (registry.places()[0].core, 0);
    while moves < 10 && writer.ended < 3_000 {
        while writer.in_flight < 16 {
            writer.issue();
        }
        writer.turn();
        let now = registry.places()[0].core;
        moves += u32::from(std::mem::replace(&mut core, now) != now);
    }
    assert_eq!(moves, 10, "in {} commands", writer.ended);
    drop(writer);
    mover.stop();
    daemon.stop().expect("every core ends in order");
}

/// Whether a response with a unit attention reports the reset, in the order of the rounds.
fn is_reset_reported(response: &Response) -> bool {
    match response.status {
        0 => false,
        _ => {
            assert_eq!(response.sense.get(12..14), Some(&[0x29, 0x03][..]), "{:02x?}", response.sense);
            true
        }
    }
}

#[test]
fn a_session_that_moves_gets_every_reset_once() {
    const WATCHERS: usize = 3;
    const ROUNDS: usize = 2000;
    let (daemon, url) = serve();
    let mover = Mover::start(&daemon);
    let watch = |watcher: usize, answered: Receiver<()>, seen: Sender<()>| {
        let mut initiator = login(&url, &format!("watcher-{watcher}"));
        initiator.ready(0).expect("the unit is ready");
        seen.send(()).expect("the resetter waits");
        for round in 1..=ROUNDS {
            let (mut reports, mut is_answered) = (0, false);
            loop {
                let is_reported = is_reset_reported(&initiator.read(0, TestUnitReady {}, 0).expect("an end"));
                reports += usize::from(is_reported);
                if is_answered && !is_reported {
                    break;
                }
                is_answered |= match answered.try_recv() {
                    Ok(()) => true,
                    Err(TryRecvError::Empty) => false,
                    Err(TryRecvError::Disconnected) => panic!("the resetter ended before its time"),
                };
            }
            assert_eq!(reports, 1, "round {round}");
            seen.send(()).expect("the resetter waits");
        }
        initiator.logout().expect("an answer");
    };
    scope(|scope| {
        let mut watchers = Vec::new();
        for watcher in 0..WATCHERS {
            let watch = &watch;
            let (answered, reports) = channel();
            let (seen, sees) = channel();
            scope.spawn(move || watch(watcher, reports, seen));
            watchers.push((answered, sees));
        }
        let mut resetter = login(&url, "resetter");
        resetter.ready(0).expect("the unit is ready");
        let wait_for_all = |watchers: &[(Sender<()>, Receiver<()>)]| {
            watchers.iter().for_each(|(_, sees)| sees.recv().expect("a watcher continues"));
        };
        wait_for_all(&watchers);
        for _ in 0..ROUNDS {
            assert_eq!(resetter.manage(LOGICAL_UNIT_RESET, 0, u32::MAX).expect("an answer"), COMPLETE);
            watchers.iter().for_each(|(answered, _)| answered.send(()).expect("a watcher continues"));
            wait_for_all(&watchers);
        }
        resetter.logout().expect("an answer");
    });
    let moves = mover.stop();
    assert!(moves > 20, "only {moves} moves");
    wait_until_empty(&daemon.insides().0);
    daemon.stop().expect("every core ends in order");
}

#[test]
fn target_cold_reset_and_the_end_find_sessions_that_move() {
    let (daemon, url) = serve();
    let mover = Mover::start(&daemon);
    let (registry, _) = daemon.insides();
    let use_until_ended = |name: &str| {
        let mut initiator = login(&url, name);
        let is_over = (0..1_000_000).any(|_| initiator.read(0, TestUnitReady {}, 0).is_err());
        assert!(is_over, "{name} was not ended");
    };
    let mut daemon = Some(daemon);
    for round in 0..30 {
        scope(|scope| {
            for user in 0..3 {
                let use_until_ended = &use_until_ended;
                scope.spawn(move || use_until_ended(&format!("user-{user}")));
            }
            while registry.places().len() < 3 {
                std::thread::yield_now();
            }
            match daemon.take_if(|_| round == 29) {
                Some(daemon) => daemon.stop().expect("every core ends in order"),
                None => {
                    let mut resetter = login(&url, "resetter");
                    assert_eq!(resetter.manage(TARGET_COLD_RESET, 0, u32::MAX).expect("an answer"), COMPLETE);
                }
            }
        });
        wait_until_empty(&registry);
    }
    mover.stop();
}
