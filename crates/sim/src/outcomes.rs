//! The same script has the same SCSI outcome over every transport.

use crate::ata;
use crate::directory::Directory;
use crate::disk::Faults;
use crate::ethernet::{Ethernet, Hazards, Queue, Segment};
use crate::initiator::carrier::Carrier;
use crate::initiator::link::Link;
use crate::initiator::{Protocol, SRP_GUID};
use crate::kernel::{Kernel, seed_random};
use crate::net::{Event, Net, Odds, Shared};
use crate::trace::Trace;
use config::Config;
use engine::world::Cores;
use fastrand::Rng;
use proto::aoe::initiator::{self as aoe, Outgoing, Put, Source};
use proto::iscsi::initiator::{self as iscsi, InitiatorConfig, Outcome, Request, Residual};
use proto::iscsi::login::{Offers, Plan};
use proto::services::{Attribute, TaskId};
use reactor::crc::crc32c;
use reactor::io::{Handle, Io as _, Tag, Wait};
use reactor::packet::Setup;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::lane::Backend;
use wire::aoe::{Address, Mac};
use wire::scsi::capacity::unmap_list;
use wire::scsi::command::{
    CompareAndWrite, GetLbaStatus, Inquiry, ModeSelect6, ModeSense6, ModeSense10, OrWrite16,
    PersistentReserveIn, PersistentReserveOut, Read10, Read16, ReadCapacity10, ReadCapacity16, ReportLuns,
    ReportSupportedOperationCodes, RequestSense, SynchronizeCache10, TestUnitReady, Unmap, Verify10, Write10,
    WriteAndVerify10, WriteSame16,
};
use wire::scsi::parameters::ReserveOutList;
use wire::scsi::{Command, opcode};
use wire::{Cdb, Places};

const CONFIG: &str = r#"
    poll = "never"
    srp_guid = "024c750000000001"
    portal = [{ listen = "10.0.0.1:3260", transports = ["iscsi", "iser", "srp"] }]
    aoe = [{ interface = "eth0" }]
    lun = [{ name = "unit", ram = "1M", serial = "SIM", aoe = "1.0" }]
    target = [{ name = "iqn.2026-11.io.lunette:sim", luns = ["unit"] }]
"#;
const CORE: usize = 0;
const HOST: usize = 1;
const CONNECT: u64 = 3;
const BLOCK_BYTES: u32 = 512;
const MTU: u32 = 9000;
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Most time for a step.
const PATIENCE: Duration = Duration::from_secs(10);

/// A command of the script.
struct Step {
    lun: u16,
    cdb: Cdb,
    read_bytes: u32,
    write: Vec<u8>,
}

/// Its outcome.
#[derive(PartialEq, Eq, Debug)]
struct Answer {
    status: u8,
    sense: Vec<u8>,
    data: Vec<u8>,
    /// Of all of the command's data, in either direction.
    residual: Residual,
}

fn none(cdb: impl Into<Cdb>) -> Step {
    Step { lun: 0, cdb: cdb.into(), read_bytes: 0, write: Vec::new() }
}

fn reads(cdb: impl Into<Cdb>, read_bytes: u32) -> Step {
    Step { read_bytes, ..none(cdb) }
}

fn writes(cdb: impl Into<Cdb>, write: Vec<u8>) -> Step {
    Step { write, ..none(cdb) }
}

fn pattern(blocks: u32, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK_BYTES).map(|at| (at as u8).wrapping_mul(7) ^ (at >> 9) as u8 ^ seed).collect()
}

fn script() -> Vec<Step> {
    let mut steps = questions();
    steps.extend(data());
    steps.extend(changes());
    steps
}

/// Queries to a unit, except those that identify ports, which differ between protocols.
fn questions() -> Vec<Step> {
    let mut steps = vec![none(TestUnitReady {}), none(TestUnitReady {}), reads(Inquiry::new(36), 36)];
    for page in [0x00, 0x80, 0xb0, 0xb1, 0xb2, 0x77] {
        steps.push(reads(Inquiry::page(page, 255), 255));
    }
    for page in [0x01, 0x08, 0x0a, 0x1c, 0x2a] {
        steps.push(reads(ModeSense6::new(page, 252), 252));
        steps.push(reads(ModeSense10::new(page, 256), 256));
    }
    steps.push(reads(ReadCapacity16::new(32), 32));
    steps.push(reads(&[opcode::SERVICE_ACTION_IN_16, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32));
    steps.extend([reads(ReadCapacity10::new(), 8), reads(RequestSense::new(252), 252)]);
    steps.push(reads(ReportLuns::new(256), 256));
    steps.push(reads(
        ReportSupportedOperationCodes { allocation: 4096, ..ReportSupportedOperationCodes::ZERO },
        4096,
    ));
    // No such opcode, no such unit.
    steps.extend([none(&[0xff; 16]), none(&[opcode::VERIFY_10; 6])]);
    steps.push(Step { lun: 9, ..none(TestUnitReady {}) });
    steps.push(Step { lun: 9, ..reads(Inquiry::new(36), 36) });
    steps
}

/// Data of many lengths, and lengths that do not match.
fn data() -> Vec<Step> {
    let mut steps = Vec::new();
    for blocks in [1, 7, 16, 17, 128, 512] {
        steps.push(writes(Write10::new(3, blocks), pattern(blocks.into(), blocks as u8)));
        steps.push(reads(Read10::new(3, blocks), u32::from(blocks) * BLOCK_BYTES));
        steps.push(writes(
            WriteAndVerify10 { byte_check: 1, ..WriteAndVerify10::new(3, blocks) },
            pattern(blocks.into(), 1),
        ));
        steps.push(reads(Read16 { fua: true, ..Read16::new(0, 9) }, 9 * BLOCK_BYTES));
    }
    // More, or less, is expected than the command transfers.
    steps.extend([reads(Read10::new(0, 2), 4096), reads(Read10::new(0, 8), 1024)]);
    steps.extend([writes(Write10::new(0, 2), pattern(8, 2)), writes(Write10::new(0, 8), pattern(2, 3))]);
    steps.extend([writes(Write10::new(0, 8), vec![9; 200]), reads(Read10::new(0, 2), 0)]);
    steps.extend([none(Read10::new(0, 0)), none(Write10::new(0, 0)), none(SynchronizeCache10::new(0, 0))]);
    // Past the end.
    steps.push(reads(Read10::new(2047, 2), 1024));
    steps.push(writes(Write10::new(2048, 1), pattern(1, 0)));
    steps.push(reads(Read16::new(u64::MAX, 1), 512));
    // Reserved bits, and an unknown service action.
    steps.extend([
        reads(Read10 { protect: 7, ..Read10::new(0, 1) }, 512),
        reads(&[opcode::SERVICE_ACTION_IN_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], 8),
    ]);
    steps
}

/// Commands that do more than write.
fn changes() -> Vec<Step> {
    let (one, other) = (pattern(1, 4), pattern(1, 5));
    let both = [&one[..], &other[..]].concat();
    let compare = CompareAndWrite::new(40, 1);
    let mut steps = vec![writes(Write10::new(40, 1), one.clone())];
    steps.extend([writes(compare, both.clone()), writes(compare, both)]);
    let verify = Verify10 { byte_check: 1, ..Verify10::new(40, 1) };
    steps.extend([writes(verify, other.clone()), writes(verify, one.clone())]);
    steps.extend([none(Verify10::new(0, 100)), writes(OrWrite16::new(40, 1), one.clone())]);
    steps.extend([writes(WriteSame16::new(100, 50), one), reads(Read10::new(90, 70), 70 * BLOCK_BYTES)]);
    let unmap = unmap_list(100, 8);
    steps.push(writes(Unmap::new(24), unmap.to_vec()));
    steps.push(writes(Unmap::new(20), unmap[..20].to_vec()));
    steps.extend([reads(GetLbaStatus::new(0, 64), 64), reads(Read10::new(99, 10), 5120)]);
    let list = |action_key| ReserveOutList { action_key, ..ReserveOutList::ZERO }.to_bytes().to_vec();
    let out = |action: u8, kind: u8| PersistentReserveOut::new(action, kind, 24);
    steps.extend([writes(out(0, 0), list(1)), writes(out(1, 1), list(0)), writes(out(1, 9), list(0))]);
    steps.extend((0..3).map(|action| reads(PersistentReserveIn::new(action, 64), 64)));
    steps.push(writes(out(9, 0), list(7)));
    steps.push(writes(ModeSelect6::new(3), vec![0, 0, 0]));
    steps.push(writes(ModeSelect6::new(16), [&[0, 0, 0, 0, 0x0a, 10][..], &[0xff; 10]].concat()));
    steps
}

/// A target and an initiator.
struct Stage {
    net: Shared,
    cores: Cores<Kernel>,
    wait: Option<Wait>,
    kernel: Kernel,
    end: End,
    events: Vec<iscsi::Event>,
}

/// The initiator's end, for its protocol.
enum End {
    /// Its connection, once it exists.
    Stream(Protocol, Option<Box<Link>>),
    Frames(Box<aoe::Initiator>, Queue),
}

/// For AoE, with SCSI/ATA translation.
fn frames(net: &Shared) -> End {
    let (now, ours) = (net.borrow().now, ata::macs(HOST)[0]);
    let config = aoe::InitiatorConfig {
        target: Address { shelf: ata::SHELF, slot: 0 },
        ours,
        mtu: MTU,
        lane: 1,
        first_tag: 1,
        queue_depth: 8,
        login_within: PATIENCE,
        idle: PATIENCE,
        lost_after: PATIENCE,
    };
    let queue = net.borrow_mut().ethernet.as_mut().map(|ethernet| ethernet.join(ours, HOST));
    End::Frames(Box::new(aoe::Initiator::new(config, now)), queue.expect("there is one"))
}

impl Stage {
    fn new(protocol: Option<Protocol>) -> Stage {
        assert_eq!(SRP_GUID, 0x024c_7500_0000_0001, "as the configuration has it");
        seed_random(1);
        let odds = Odds { cut: 0, late: 0, slow: 0, short: 0, pause: 0 };
        let net = Net::new(Rng::with_seed(1), Trace::new(false), odds, 2);
        net.borrow_mut().faults = Faults::NONE;
        let segment = Segment { mtu: MTU, hazards: Hazards::SOME, initiators: 1, seed: 1, wanders: false };
        net.borrow_mut().ethernet = Some(Ethernet::new(&segment));
        let mut config = Config::from_toml(CONFIG, Path::new("sim.toml")).unwrap();
        config.cores = vec![0];
        config.portals[0].cores = vec![0];
        config.aoe[0].cores = vec![0];
        let listener = net.borrow_mut().listen(config.portals[0].listen);
        let kernel = |core, waker| Kernel::new(core, net.clone(), 128 << 20, Some(waker), 0);
        let store: Arc<dyn Backend<Kernel>> = store::open_ram(1 << 20).unwrap();
        let directory = Directory::new(Rng::with_seed(0), 0);
        let stores = vec![(store, Arc::default())];
        let lines = |setup: &Setup<'_>, cores| {
            let opened = net.borrow_mut().ethernet.as_mut().map(|ethernet| ethernet.open(MAC, setup, cores));
            Ok(opened.unwrap_or_default())
        };
        let cores = Cores::new(config, stores, vec![listener], Box::new(directory), lines, kernel).unwrap();
        let kernel = Kernel::new(HOST, net.clone(), 64 << 20, None, 0);
        let wait = Some(Wait::No);
        let end = match protocol {
            Some(protocol) => End::Stream(protocol, None),
            None => frames(&net),
        };
        let mut stage = Stage { net, cores, wait, kernel, end, events: Vec::new() };
        let portal: SocketAddr = "10.0.0.1:3260".parse().unwrap();
        stage.kernel.connect(portal, Tag(CONNECT));
        let now = stage.net.borrow().now;
        (0..2).for_each(|host| stage.net.borrow_mut().wake(host, now));
        stage.until(|event| matches!(event, iscsi::Event::Ready(_)));
        stage
    }

    /// Runs until such an event.
    fn until(&mut self, is_it: impl Fn(&iscsi::Event) -> bool) -> iscsi::Event {
        let until = self.net.borrow().now.after(PATIENCE);
        loop {
            if let Some(at) = self.events.iter().position(&is_it) {
                return self.events.swap_remove(at);
            }
            let event = self.net.borrow_mut().next(until);
            match event.unwrap_or_else(|| panic!("nothing comes, but {:?}", self.events)) {
                Event::Turn { host } => {
                    let begins = self.net.borrow_mut().begins(host);
                    if begins {
                        self.turn(host);
                    }
                }
                Event::Go { host, request } => self.host(host).go(request),
                Event::Arrive { socket } => {
                    let waits = self.net.borrow_mut().arrive(socket);
                    if let Some((host, request)) = waits {
                        self.host(host).go(request);
                    }
                }
                Event::Land { flight } => {
                    let waits = self.net.borrow_mut().land(flight);
                    if let Some((host, request)) = waits {
                        self.host(host).go(request);
                    }
                }
                Event::Fault | Event::Back | Event::Step { .. } => {}
            }
        }
    }

    fn host(&mut self, host: usize) -> &mut Kernel {
        if host == CORE { self.cores.io(CORE) } else { &mut self.kernel }
    }

    fn turn(&mut self, host: usize) {
        if host == CORE {
            let Some(wait) = self.wait else { return };
            self.cores.turn(CORE, wait);
            while self.cores.has_work() {
                self.cores.work();
            }
            self.wait = self.cores.rest(CORE);
        } else {
            self.act();
        }
        let now = self.net.borrow().now;
        self.net.borrow_mut().carry(host);
        self.net.borrow_mut().wake(host, now.after(Duration::from_micros(50)));
    }

    fn act(&mut self) {
        let mut completions = Vec::new();
        self.kernel.turn(Wait::No, &mut completions);
        let (protocol, link) = match &mut self.end {
            End::Stream(protocol, link) => (*protocol, link),
            End::Frames(machine, queue) => {
                return exchange(&mut self.kernel, machine, queue, &mut self.events);
            }
        };
        for completion in completions {
            if completion.tag == Tag(CONNECT) {
                let socket = Handle(completion.result.unwrap() as i32);
                let machine = Carrier::new(protocol, config(), HOST, socket, &mut self.kernel);
                *link = Some(Box::new(Link::new(machine, 1, socket)));
            } else if let Some(link) = link {
                link.completed(&mut self.kernel, completion.tag.0 & 3, completion.result);
            }
        }
        let Some(link) = link else { return };
        let mut feed = |link: &mut Link, kernel: &mut Kernel| {
            loop {
                let is_more = link.feed(kernel);
                self.events.extend(std::iter::from_fn(|| link.poll()));
                if !is_more {
                    break;
                }
            }
        };
        feed(link, &mut self.kernel);
        link.flush(&mut self.kernel);
        feed(link, &mut self.kernel);
    }

    fn submit(&mut self, request: Request) -> Option<TaskId> {
        match &mut self.end {
            End::Stream(_, link) => link.as_mut().unwrap().machine.submit(request),
            End::Frames(machine, _) => machine.submit(request),
        }
    }

    fn play(&mut self, step: &Step) -> Answer {
        let arena = self.kernel.arena();
        let mut take = |len| if len == 0 { Places::EMPTY } else { arena.take(len).unwrap() };
        let (read, write) = (take(step.read_bytes), take(step.write.len() as u32));
        copy_to(&mut self.kernel, &write, &step.write);
        let (lun, cdb) = (u64::from(step.lun) << 48, step.cdb);
        let request = Request { lun, attribute: Attribute::Simple, cdb, read, write };
        let taken = self.submit(request);
        let task = taken
            .unwrap_or_else(|| panic!("{:02x?} is not sent, but {:?}", step.cdb.as_bytes(), self.events));
        let ended = self
            .until(|event| matches!(event, iscsi::Event::Completed(completion) if completion.task == task));
        let iscsi::Event::Completed(completion) = ended else { unreachable!("it was looked for") };
        let Outcome::Status { status, sense } = completion.outcome else { panic!("{completion:?}") };
        let arena = self.kernel.arena();
        let data = arena.to_vec(&read.slice(0, completion.read_bytes));
        [read, write].iter().for_each(|places| arena.give(places));
        let sense = sense.map_or_else(Vec::new, |sense| sense.as_bytes().to_vec());
        Answer { status, sense, data, residual: completion.residual }
    }
}

/// Takes received frames, and sends what is due.
fn exchange(
    kernel: &mut Kernel,
    machine: &mut aoe::Initiator,
    queue: &Queue,
    events: &mut Vec<iscsi::Event>,
) {
    let now = kernel.now();
    while let Some(bytes) = queue.take() {
        let place = kernel.arena().take(bytes.len() as u32).unwrap();
        let span = place.iter().next().unwrap();
        kernel.arena().bytes_mut(span).copy_from_slice(&bytes);
        match machine.receive(now, &bytes, span) {
            Some(Put { from: Source::Frame(from), to }) => kernel.arena().copy(from, &to),
            Some(Put { from: Source::Made(made), to }) => copy_to(kernel, &to, made),
            None => {}
        }
        kernel.arena().give(&place);
    }
    if machine.deadline().is_some_and(|deadline| now >= deadline) {
        machine.tick(now);
    }
    while let Some(places) = machine.wants() {
        machine.bring(&kernel.arena().to_vec(&places));
    }
    while let Some(Outgoing { frame, made }) = machine.transmit(now) {
        let mut bytes = [frame.header(), &kernel.arena().to_vec(&frame.payload), made].concat();
        bytes.resize(bytes.len().max(ata::FRAME_BYTES_MIN), 0);
        queue.send(&bytes);
    }
    events.extend(std::iter::from_fn(|| machine.poll()));
}

fn copy_to(kernel: &mut Kernel, to: &Places, bytes: &[u8]) {
    let mut rest = bytes;
    for span in to.iter() {
        let (part, behind) = rest.split_at(span.len as usize);
        kernel.arena().bytes_mut(span).copy_from_slice(part);
        rest = behind;
    }
}

fn config() -> InitiatorConfig {
    let plan = Plan {
        initiator: "iqn.2026-11.io.lunette:initiator".into(),
        alias: None,
        target: Some("iqn.2026-11.io.lunette:sim".into()),
        isid: [0x80, 0, 0, 0, 0, 1],
        chap: None,
        offers: Offers::default(),
        text_bytes: 8192,
    };
    let (login_within, idle) = (Duration::from_secs(5), Duration::from_secs(30));
    InitiatorConfig { plan, queue_depth: 8, login_within, idle, crc32c }
}

fn play(protocol: Option<Protocol>, script: &[Step]) -> Vec<Answer> {
    let mut stage = Stage::new(protocol);
    script.iter().map(|step| stage.play(step)).collect()
}

#[test]
fn every_transport_has_the_same_outcome() {
    let script = script();
    let of_iscsi = play(Some(Protocol::Iscsi), &script);
    let good = of_iscsi.iter().filter(|answer| answer.status == 0).count();
    assert!(good > script.len() / 2 && good < script.len(), "{good} of {}", script.len());
    for protocol in [Protocol::Iser, Protocol::Srp] {
        for ((step, iscsi), other) in script.iter().zip(&of_iscsi).zip(play(Some(protocol), &script)) {
            assert_eq!(*iscsi, other, "{protocol:?}: {:02x?}, {}", step.cdb.as_bytes(), step.write.len());
        }
    }
}

/// Through SCSI/ATA translation, which emulates what is reported about the unit itself, and refuses commands
/// without an ATA equivalent.
#[test]
fn data_has_the_same_outcome_over_aoe() {
    let script: Vec<Step> = script().into_iter().filter_map(of_ata).collect();
    let of_iscsi = play(Some(Protocol::Iscsi), &script);
    let bad = of_iscsi.iter().filter(|answer| answer.status != 0).count();
    assert!(script.len() > 35 && bad > 5, "{bad} of {}", script.len());
    // SCSI sessions begin with a unit attention.
    for ((step, iscsi), aoe) in script.iter().zip(&of_iscsi).zip(play(None, &script)).skip(2) {
        assert_eq!(*iscsi, aoe, "{:02x?}, {}", step.cdb.as_bytes(), step.write.len());
    }
}

/// The ATA equivalent of a step, if any. It does not transfer data in part.
fn of_ata(mut step: Step) -> Option<Step> {
    if let Some(WriteAndVerify10 { lba, blocks, .. }) = WriteAndVerify10::from_cdb(&step.cdb) {
        // Durable as well.
        step.cdb = Write10 { fua: true, ..Write10::new(lba, blocks) }.into();
    }
    let is_there = match step.cdb.opcode() {
        opcode::READ_10 | opcode::WRITE_10 => {
            let blocks = u32::from(step.cdb.get(Read10::BLOCKS));
            blocks * BLOCK_BYTES <= step.read_bytes.max(step.write.len() as u32)
        }
        opcode::VERIFY_10 => step.cdb.get(Verify10::BYTE_CHECK) == 0,
        opcode::SERVICE_ACTION_IN_16 => GetLbaStatus::from_cdb(&step.cdb).is_none(),
        opcode::TEST_UNIT_READY
        | opcode::REQUEST_SENSE
        | opcode::READ_CAPACITY_10
        | opcode::SYNCHRONIZE_CACHE_10
        | opcode::UNMAP
        | opcode::READ_16
        | opcode::REPORT_LUNS
        | 0xff => true,
        _ => false,
    };
    is_there.then_some(step)
}
