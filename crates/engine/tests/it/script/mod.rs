//! The device server is independent of the transport: the same commands end in the same way over each.

mod peer;
use crate::remote::support::{TARGET, serve_on, serve_toml, target_of, two_cores};
use engine::Daemon;
use peer::{Answer, Command, Function, Login, Nexus, connect};
use proto::iscsi::initiator::{Completion, Outcome, Residual};
use proto::services::{Attribute, TaskId};
use std::time::{Duration, Instant};
use wire::Cdb;
use wire::scsi::command::{
    CompareAndWrite, Inquiry, ModeSelect6, ModeSense6, PersistentReserveIn, PersistentReserveOut,
    PreventAllowMediumRemoval, Read10, ReadCapacity16, Release6, ReportLuns, RequestSense, Reserve6,
    StartStopUnit, TestUnitReady, Write10,
};
use wire::scsi::opcode::service_action::{persistent_reserve_in, persistent_reserve_out};
use wire::scsi::parameters::ReserveOutList;
use wire::scsi::{mode, vpd};

const SCHEMES: [&str; 3] = ["iscsi", "iser", "srp"];
/// The outcome of each command, as [`script`] reports it.
const OUTCOME: &str = include_str!("outcome.txt");
const PATIENCE: Duration = Duration::from_secs(120);
const BLOCK: usize = 512;
/// More than any transport sends unsolicited.
const AWAITED: u16 = 1024;
/// LUN 1 is write-protected, and there is no LUN 9.
const LUNS: [&str; 2] = ["ram:16M", "ram:1M,ro"];
/// A CDB that is not a command.
const UNKNOWN: &[u8; 6] = &[0xc1, 0, 0, 0, 0, 0];

#[test]
fn the_same_script_has_the_same_outcome_over_every_transport() {
    let stories = SCHEMES.map(script);
    for (scheme, transcript) in SCHEMES.iter().zip(&stories) {
        let expected: Vec<&str> = OUTCOME.lines().collect();
        let differs = transcript.lines.iter().zip(&expected).find(|(line, expected)| line != *expected);
        let all = transcript.lines.join("\n");
        assert!(differs.is_none(), "over {scheme}: {differs:#?}\n{all}");
        assert_eq!(transcript.lines.len(), expected.len(), "over {scheme}:\n{all}");
        for (line, (one, other)) in transcript.lines.iter().zip(transcript.data.iter().zip(&stories[0].data))
        {
            assert!(one == other, "{line}: other data or sense over {scheme}:\n{one:02x?}\n{other:02x?}");
        }
    }
}

/// What happened.
#[derive(Default)]
struct Transcript {
    lines: Vec<String>,
    /// For each line, the data that was read and sense data.
    data: Vec<Vec<u8>>,
}

impl Transcript {
    fn ended(&mut self, what: &str, (completion, data): (Completion, Vec<u8>)) {
        self.lines.push(format!("{what}: {}", describe(&completion)));
        let sense = match completion.outcome {
            Outcome::Status { sense: Some(sense), .. } => sense.as_bytes().to_vec(),
            _ => Vec::new(),
        };
        self.data.push([data, sense].concat());
    }

    fn answered(&mut self, what: &str, answer: Answer) {
        self.lines.push(format!("{what}: {answer:?}"));
        self.data.push(Vec::new());
    }

    /// Executes a command.
    fn does(&mut self, nexus: &mut Box<dyn Nexus>, what: &str, command: &Command) {
        let task = nexus.submit(command);
        self.ended(what, nexus.end(task));
    }

    /// Requests a task management function.
    fn manages(&mut self, nexus: &mut Box<dyn Nexus>, what: &str, function: Function) {
        let id = nexus.manage(0, function);
        let answer = nexus.answer(id);
        self.answered(what, answer);
    }
}

fn describe(completion: &Completion) -> String {
    let status = match &completion.outcome {
        Outcome::Status { status: 0x00, sense: None } => "GOOD".to_string(),
        Outcome::Status { status: 0x02, sense: Some(sense) } => {
            let key = sense.key().map_or("no key".to_string(), |key| format!("{key:?}"));
            format!("{key} {:04x}", sense.code())
        }
        Outcome::Status { status: 0x18, sense: None } => "RESERVATION CONFLICT".to_string(),
        Outcome::Status { status: 0x40, sense: None } => "TASK ABORTED".to_string(),
        other => format!("{other:?}"),
    };
    let residual = |residual: Residual, of: &str| match residual {
        Residual::None => String::new(),
        Residual::Overflow(bytes) => format!(", {bytes} over{of}"),
        Residual::Underflow(bytes) => format!(", {bytes} under{of}"),
    };
    let read =
        if completion.read_bytes == 0 { String::new() } else { format!(", {} read", completion.read_bytes) };
    let (main, other) =
        (residual(completion.residual, ""), residual(completion.read_residual, " of the read"));
    format!("{status}{read}{main}{other}")
}

fn command(cdb: impl Into<Cdb>) -> Command {
    let cdb = cdb.into().as_bytes().to_vec();
    Command { lun: 0, attribute: Attribute::Simple, cdb, read_bytes: 0, write: Vec::new() }
}

fn reading(cdb: impl Into<Cdb>, read_bytes: u32) -> Command {
    Command { read_bytes, ..command(cdb) }
}

fn writing(cdb: impl Into<Cdb>, write: Vec<u8>) -> Command {
    Command { write, ..command(cdb) }
}

fn read(lba: u32, blocks: u16) -> Command {
    reading(Read10::new(lba, blocks), u32::from(blocks) * BLOCK as u32)
}

fn write(lba: u32, blocks: u16) -> Command {
    writing(Write10::new(lba, blocks), pattern(blocks.into(), usize::from(blocks) * BLOCK))
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n * 7 + n / 251 + seed) as u8).collect()
}

fn login(daemon: &Daemon, scheme: &str, number: u8) -> Login<'static> {
    Login { at: daemon.addresses()[0], target: target_of(scheme), number, is_beside: false }
}

/// A session that has consumed the unit attention of a new nexus.
fn session(daemon: &Daemon, scheme: &str, number: u8) -> Box<dyn Nexus> {
    let mut nexus = connect(scheme, &login(daemon, scheme, number)).expect("a session");
    for lun in [0, 1] {
        let task = nexus.submit(&Command { lun, ..command(TestUnitReady {}) });
        let outcome = describe(&nexus.end(task).0);
        assert_eq!(outcome, "UnitAttention 2900", "a new nexus");
    }
    nexus
}

/// A write whose data the target has requested, and does not get until the session continues.
fn awaited(nexus: &mut Box<dyn Nexus>, attribute: Attribute) -> TaskId {
    // Nothing is left of earlier commands.
    let task = nexus.submit(&command(TestUnitReady {}));
    nexus.end(task);
    let task = nexus.submit(&Command { attribute, ..write(4096, AWAITED) });
    nexus.wait_for_data();
    task
}

fn script(scheme: &str) -> Transcript {
    let daemon = serve_on(two_cores(), "127.0.0.1:0", &LUNS);
    let (mut a, mut b) = (session(&daemon, scheme, 1), session(&daemon, scheme, 2));
    let mut transcript = Transcript::default();
    sizes(&mut transcript, &mut a);
    residuals(&mut transcript, &mut a);
    errors(&mut transcript, &mut a);
    aborts(&mut transcript, &mut a, &mut b);
    sets(&mut transcript, &mut a, &mut b);
    reservations(&mut transcript, &mut a, &mut b);
    // A reservation ends with its nexus, as soon as the unit's home is notified.
    transcript.does(&mut a, "RESERVE", &command(Reserve6::ZERO));
    a.leave();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let task = b.submit(&write(0, 1));
        if describe(&b.end(task).0) == "GOOD" {
            break;
        }
        assert!(Instant::now() < deadline, "the reservation outlives its nexus");
    }
    b.leave();
    daemon.stop().expect("every core ends in order");
    transcript
}

/// Inside the command, unsolicited, requested once and several times.
fn sizes(transcript: &mut Transcript, nexus: &mut Box<dyn Nexus>) {
    for blocks in [1, 8, 16, 17, 128, 129, 512, 513, 2049, 2560] {
        let data = write(7, blocks);
        transcript.does(nexus, &format!("WRITE of {blocks} blocks"), &data);
        transcript.does(nexus, &format!("READ of {blocks} blocks"), &read(7, blocks));
        assert!(transcript.data.last() == Some(&data.write), "{blocks} blocks come back");
    }
}

fn residuals(transcript: &mut Transcript, nexus: &mut Box<dyn Nexus>) {
    let (one, eight) = (Read10::new(7, 1), Read10::new(7, 8));
    let (one_out, eight_out) = (Write10::new(7, 1), Write10::new(7, 8));
    for (what, command) in [
        ("READ of 1 block into 4096 bytes", reading(one, 4096)),
        ("READ of 8 blocks into 512 bytes", reading(eight, 512)),
        ("READ of 8 blocks into 1000 bytes", reading(eight, 1000)),
        ("READ of 8 blocks into nothing", reading(eight, 0)),
        ("READ of 8 blocks from 4096 bytes", writing(eight, pattern(1, 4096))),
        ("WRITE of 1 block from 4096 bytes", writing(one_out, pattern(2, 4096))),
        ("WRITE of 1 block from 20000 bytes", writing(one_out, pattern(3, 20_000))),
        ("WRITE of 8 blocks from 512 bytes", writing(eight_out, pattern(4, 512))),
        ("WRITE of 8 blocks from 1000 bytes", writing(eight_out, pattern(5, 1000))),
        ("WRITE of 8 blocks from nothing", writing(eight_out, Vec::new())),
        ("WRITE of 8 blocks into 4096 bytes", reading(eight_out, 4096)),
        ("TEST UNIT READY into 512 bytes", reading(TestUnitReady {}, 512)),
        ("TEST UNIT READY from 512 bytes", writing(TestUnitReady {}, pattern(6, 512))),
        ("INQUIRY of the pages that there are", reading(Inquiry::page(vpd::page::SUPPORTED, 255), 255)),
        ("INQUIRY of the serial number", reading(Inquiry::page(vpd::page::SERIAL_NUMBER, 255), 255)),
        ("MODE SENSE of all pages", reading(ModeSense6::new(mode::page::ALL, 255), 255)),
        ("READ CAPACITY(16)", reading(ReadCapacity16::new(32), 32)),
        ("INQUIRY of 5 bytes into 255", reading(Inquiry::new(5), 255)),
        ("INQUIRY of 96 bytes into 5", reading(Inquiry::new(96), 5)),
        ("READ of what is there", read(7, 8)),
    ] {
        transcript.does(nexus, what, &command);
    }
}

fn errors(transcript: &mut Transcript, nexus: &mut Box<dyn Nexus>) {
    let on = |lun, command| Command { lun, ..command };
    let both = |cdb: Cdb| Command { read_bytes: 512, ..writing(cdb, pattern(7, 1024)) };
    // The byte at offset 3 differs.
    let compare = |bytes: usize| {
        let mut data = pattern(513, bytes);
        data[3] ^= 1;
        data
    };
    let compare_and_write = CompareAndWrite::new(40, 1);
    for (what, command) in [
        ("READ beyond the end", read(32_768, 1)),
        ("READ across the end", read(32_760, 16)),
        ("WRITE beyond the end", write(32_768, 1)),
        ("WRITE beyond the end of data to be asked for", write(32_768, AWAITED)),
        ("no command", command(UNKNOWN)),
        ("no command, with data to be read", reading(UNKNOWN, 512)),
        ("no command, with data inside", writing(UNKNOWN, pattern(8, 512))),
        ("no command, with data to be asked for", writing(UNKNOWN, pattern(9, 1 << 19))),
        ("no command, with data both ways", both(UNKNOWN.into())),
        ("TEST UNIT READY with a reserved field", command(&[0, 1, 0, 0, 0, 0])),
        (
            "INQUIRY of no page",
            reading(Inquiry { page: vpd::page::IDENTIFICATION, ..Inquiry::new(255) }, 255),
        ),
        ("COMPARE AND WRITE of other data", writing(compare_and_write, compare(1024))),
        ("WRITE to what is protected", on(1, write(0, 1))),
        ("WRITE to what is protected of data to be asked for", on(1, write(0, AWAITED))),
        ("READ of what is protected", on(1, read(0, 8))),
        ("READ of no unit", on(9, read(0, 1))),
        ("WRITE to no unit", on(9, write(0, AWAITED))),
        ("TEST UNIT READY of no unit", on(9, command(TestUnitReady {}))),
        ("INQUIRY of no unit", on(9, reading(Inquiry::new(96), 96))),
        ("REPORT LUNS", reading(ReportLuns::new(256), 256)),
        ("REQUEST SENSE", reading(RequestSense::new(252), 252)),
    ] {
        transcript.does(nexus, what, &command);
    }
    let id = nexus.manage(9, Function::LogicalUnitReset);
    let answer = nexus.answer(id);
    transcript.answered("LOGICAL UNIT RESET of no unit", answer);
}

/// An abort at every stage of a task.
fn aborts(transcript: &mut Transcript, a: &mut Box<dyn Nexus>, b: &mut Box<dyn Nexus>) {
    transcript.does(a, "WRITE of what stays", &write(4096, AWAITED));

    let task = a.submit(&write(4096, 2048));
    let abort = a.manage(0, Function::AbortTask(task));
    transcript.ended("WRITE aborted before its data is asked for", a.end(task));
    transcript.answered("ABORT TASK", a.answer(abort));

    let task = awaited(a, Attribute::Simple);
    let abort = a.manage(0, Function::AbortTask(task));
    transcript.ended("WRITE aborted while its data is awaited", a.end(task));
    transcript.answered("ABORT TASK", a.answer(abort));

    let ordered = awaited(b, Attribute::Ordered);
    let queued = a.submit(&writing(Write10::new(4096, 1), vec![0; BLOCK]));
    let abort = a.manage(0, Function::AbortTask(queued));
    transcript.ended("WRITE aborted behind an ordered task", a.end(queued));
    transcript.answered("ABORT TASK", a.answer(abort));
    let queued = a.submit(&command(TestUnitReady {}));
    transcript.ended("the ordered WRITE of another", b.end(ordered));
    transcript.ended("TEST UNIT READY behind it", a.end(queued));

    let task = a.submit(&command(TestUnitReady {}));
    a.wait_for_data();
    let abort = a.manage(0, Function::AbortTask(task));
    transcript.ended("TEST UNIT READY aborted after its end", a.end(task));
    transcript.answered("ABORT TASK", a.answer(abort));

    transcript.does(a, "READ of what stayed", &read(4096, AWAITED));
    assert!(transcript.data.last() == Some(&write(4096, AWAITED).write), "nothing else landed");
}

/// Functions that end several tasks.
fn sets(transcript: &mut Transcript, a: &mut Box<dyn Nexus>, b: &mut Box<dyn Nexus>) {
    let (mine, other) = (awaited(a, Attribute::Simple), awaited(b, Attribute::Simple));
    let set = a.manage(0, Function::AbortTaskSet);
    transcript.ended("WRITE of the task set", a.end(mine));
    transcript.answered("ABORT TASK SET", a.answer(set));
    transcript.ended("the WRITE of another", b.end(other));

    for (what, function) in
        [("CLEAR TASK SET", Function::ClearTaskSet), ("LOGICAL UNIT RESET", Function::LogicalUnitReset)]
    {
        let other = awaited(a, Attribute::Simple);
        transcript.manages(b, what, function);
        // The target does not report that it has ended, except by the unit attention.
        transcript.manages(a, "ABORT TASK of what has ended", Function::AbortTask(other));
        transcript.ended("the WRITE of another", a.end(other));
        for (who, nexus) in [("another", &mut *a), ("who asked", &mut *b)] {
            transcript.does(nexus, &format!("TEST UNIT READY of {who}"), &command(TestUnitReady {}));
            transcript.does(nexus, "TEST UNIT READY again", &command(TestUnitReady {}));
        }
    }

    // Sets TAS, so that tasks end with TASK ABORTED (control mode page, SPC-4 section 7.5.8).
    let sense = a.submit(&reading(ModeSense6::page_only(mode::page::CONTROL, 255), 255));
    let (_, mut page) = a.end(sense);
    (page[0], page[4 + 5]) = (0, page[4 + 5] | 0x40);
    page[4] &= 0x3f;
    let select = writing(ModeSelect6::new(page.len() as u8), page);
    transcript.does(a, "MODE SELECT", &select);
    transcript.does(b, "TEST UNIT READY of another", &command(TestUnitReady {}));
    let other = awaited(a, Attribute::Simple);
    transcript.manages(b, "CLEAR TASK SET", Function::ClearTaskSet);
    transcript.ended("the WRITE of another", a.end(other));
    transcript.does(a, "TEST UNIT READY of another", &command(TestUnitReady {}));
}

/// PERSISTENT RESERVE OUT with a service action, a type and both keys.
fn reserve_out(action: u8, kind: u8, key: u64, action_key: u64) -> Command {
    let list = ReserveOutList { key, action_key, ..ReserveOutList::ZERO }.to_bytes().to_vec();
    writing(PersistentReserveOut::new(action, kind, 24), list)
}

/// PERSISTENT RESERVE IN with a service action.
fn reserve_in(action: u8) -> Command {
    reading(PersistentReserveIn::new(action, 512), 512)
}

fn reservations(transcript: &mut Transcript, a: &mut Box<dyn Nexus>, b: &mut Box<dyn Nexus>) {
    let unit = command(TestUnitReady {});
    let inquiry = reading(Inquiry::new(36), 36);
    for (who, what, command) in [
        (true, "RESERVE", command(Reserve6::ZERO)),
        (false, "RESERVE", command(Reserve6::ZERO)),
        (false, "TEST UNIT READY", unit.clone()),
        (false, "WRITE", write(0, AWAITED)),
        (false, "INQUIRY", inquiry.clone()),
        (true, "WRITE", write(0, 8)),
        (true, "RELEASE", command(Release6::ZERO)),
        (false, "WRITE", write(0, 8)),
        (true, "REGISTER", reserve_out(persistent_reserve_out::REGISTER, 0, 0, 0xa)),
        (true, "REGISTER with a wrong key", reserve_out(persistent_reserve_out::REGISTER, 0, 0xb, 0xc)),
        (
            false,
            "RESERVE (persistent) of whoever is not registered",
            reserve_out(persistent_reserve_out::RESERVE, 1, 0, 0),
        ),
        (
            true,
            "RESERVE (persistent), write exclusive",
            reserve_out(persistent_reserve_out::RESERVE, 1, 0xa, 0),
        ),
        (false, "WRITE", write(0, 8)),
        (false, "WRITE of data to be asked for", write(0, AWAITED)),
        (false, "READ", read(0, 8)),
        (false, "REGISTER", reserve_out(persistent_reserve_out::REGISTER, 0, 0, 0xb)),
        (false, "READ KEYS", reserve_in(persistent_reserve_in::READ_KEYS)),
        (false, "READ RESERVATION", reserve_in(persistent_reserve_in::READ_RESERVATION)),
        (false, "PREEMPT", reserve_out(persistent_reserve_out::PREEMPT, 3, 0xb, 0xa)),
        (true, "TEST UNIT READY", unit.clone()),
        (true, "TEST UNIT READY", unit.clone()),
        (true, "READ", read(0, 8)),
        (true, "REGISTER", reserve_out(persistent_reserve_out::REGISTER, 0, 0, 0xa)),
        (false, "CLEAR", reserve_out(persistent_reserve_out::CLEAR, 0, 0xb, 0)),
        (true, "TEST UNIT READY", unit.clone()),
        (true, "WRITE", write(0, 8)),
        (true, "READ KEYS", reserve_in(persistent_reserve_in::READ_KEYS)),
    ] {
        let (name, nexus) = if who { ("a", &mut *a) } else { ("b", &mut *b) };
        transcript.does(nexus, &format!("{name}: {what}"), &command);
    }
}

/// A session over every transport.
fn one_of_each() -> (Daemon, [Box<dyn Nexus>; 3]) {
    let daemon = serve_on(two_cores(), "127.0.0.1:0", &LUNS);
    let all = [0, 1, 2].map(|n| session(&daemon, SCHEMES[n], 1 + n as u8));
    (daemon, all)
}

/// Executes a command.
fn outcome(nexus: &mut Box<dyn Nexus>, command: &Command) -> String {
    let task = nexus.submit(command);
    describe(&nexus.end(task).0)
}

#[test]
fn reservations_hold_between_transports() {
    let (daemon, mut all) = one_of_each();
    let (conflict, unit) = ("RESERVATION CONFLICT, 4096 under", command(TestUnitReady {}));
    for holder in 0..all.len() {
        assert_eq!(outcome(&mut all[holder], &command(Reserve6::ZERO)), "GOOD");
        for other in (0..all.len()).filter(|other| *other != holder) {
            assert_eq!(outcome(&mut all[other], &write(0, 8)), conflict);
        }
        assert_eq!(outcome(&mut all[holder], &write(0, AWAITED)), "GOOD");
        assert_eq!(outcome(&mut all[holder], &command(Release6::ZERO)), "GOOD");
    }
    // A write on each session, awaiting its data, is aborted by the session that preempts it.
    for nexus in &mut all {
        assert_eq!(
            outcome(nexus, &reserve_out(persistent_reserve_out::REGISTER, 0, 0, 0xa)),
            "GOOD",
            "REGISTER"
        );
    }
    for (holder, heir) in [(0, 1), (1, 2), (2, 0)] {
        let key = |nexus: usize| 0x10 + nexus as u64;
        for (n, nexus) in all.iter_mut().enumerate() {
            assert_eq!(
                outcome(
                    nexus,
                    &reserve_out(persistent_reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY, 0, 0, key(n))
                ),
                "GOOD",
                "REGISTER AND IGNORE"
            );
        }
        assert_eq!(
            outcome(&mut all[holder], &reserve_out(persistent_reserve_out::RESERVE, 1, key(holder), 0)),
            "GOOD",
            "RESERVE"
        );
        let doomed = awaited(&mut all[holder], Attribute::Simple);
        assert_eq!(
            outcome(
                &mut all[heir],
                &reserve_out(persistent_reserve_out::PREEMPT_AND_ABORT, 1, key(heir), key(holder))
            ),
            "GOOD",
            "PREEMPT AND ABORT"
        );
        let abort = all[holder].manage(0, Function::AbortTask(doomed));
        assert_eq!(describe(&all[holder].end(doomed).0), "Aborted");
        assert_eq!(all[holder].answer(abort), Answer::Complete);
        assert_eq!(outcome(&mut all[holder], &unit), "UnitAttention 2a05", "registrations preempted");
        assert_eq!(outcome(&mut all[holder], &write(0, 8)), conflict);
        assert_eq!(outcome(&mut all[heir], &write(0, 8)), "GOOD");
        assert_eq!(
            outcome(&mut all[heir], &reserve_out(persistent_reserve_out::RELEASE, 1, key(heir), 0)),
            "GOOD",
            "RELEASE"
        );
        for nexus in &mut all {
            let _ = outcome(nexus, &unit);
        }
    }
    all.into_iter().for_each(|nexus| nexus.leave());
    daemon.stop().expect("every core ends in order");
}

/// Protocol and relative identifier of the target port that a session uses, as VPD page 83h reports them.
fn target_port(nexus: &mut Box<dyn Nexus>) -> (u8, [u8; 2]) {
    let task = nexus.submit(&reading(Inquiry::page(vpd::page::IDENTIFICATION, 255), 255));
    let (_, data) = nexus.end(task);
    let mut rest = &data[4..];
    while let [code_set, kind, _, len, others @ ..] = rest {
        let (designator, next) = others.split_at((*len).into());
        if *kind == 0x94 {
            return (code_set >> 4, [designator[2], designator[3]]);
        }
        rest = next;
    }
    panic!("no relative target port identifier in {data:x?}")
}

/// A registration: its key, whether it holds the reservation, its target port, and its TransportID.
type Registration = (u64, bool, [u8; 2], Vec<u8>);

/// What READ FULL STATUS reports (SPC-4 section 6.15.5), sorted.
fn full_status(nexus: &mut Box<dyn Nexus>) -> Vec<Registration> {
    let task = nexus.submit(&reserve_in(persistent_reserve_in::READ_FULL_STATUS));
    let (_, data) = nexus.end(task);
    let mut rest = &data[8..];
    let mut found = Vec::new();
    while let Some((head, tail)) = rest.split_at_checked(24) {
        let len = u32::from_be_bytes(*head[20..].first_chunk().expect("4 bytes"));
        let (id, next) = tail.split_at(len as usize);
        let key = u64::from_be_bytes(*head.first_chunk().expect("8 bytes"));
        found.push((key, head[12] & 1 != 0, [head[18], head[19]], id.to_vec()));
        rest = next;
    }
    found.sort();
    found
}

#[test]
fn registrations_name_initiators_of_every_transport() {
    for registrar in 0..SCHEMES.len() {
        let (daemon, mut all) = one_of_each();
        let ids = all.each_ref().map(|nexus| nexus.transport_id());
        assert_eq!(ids.each_ref().map(|id| id[0] & 0x0f), [5, 5, 4], "protocols: iSCSI, iSCSI, SRP");
        let [(iscsi, port), (iser, same), (srp, other)] = all.each_mut().map(target_port);
        assert!((iscsi, iser, srp) == (5, 5, 4) && port == same && port != other);
        let ports = [port, port, other];
        // REGISTER with SPEC_I_PT and ALL_TG_PT: the two others as well, and through both ports.
        let others: Vec<u8> =
            (0..ids.len()).filter(|n| *n != registrar).flat_map(|n| ids[n].clone()).collect();
        let mut register = reserve_out(persistent_reserve_out::REGISTER, 0, 0, 0x77);
        register.write[20] = 0x0c;
        register.write.extend((others.len() as u32).to_be_bytes());
        register.write.extend(&others);
        register.cdb[8] = register.write.len() as u8;
        assert_eq!(outcome(&mut all[registrar], &register), "GOOD");
        assert_eq!(
            outcome(&mut all[registrar], &reserve_out(persistent_reserve_out::RESERVE, 6, 0x77, 0)),
            "GOOD",
            "RESERVE"
        );
        let registrations = |key: fn(bool) -> u64, holder: usize| {
            let by = |n: usize, port| {
                let holds = n == holder && port == ports[n];
                (key(holds), holds, port, ids[n].clone())
            };
            let mut all: Vec<Registration> =
                (0..ids.len()).flat_map(|n| [by(n, port), by(n, other)]).collect();
            all.sort();
            all
        };
        for nexus in &mut all {
            assert_eq!(full_status(nexus), registrations(|_| 0x77, registrar));
            assert_eq!(outcome(nexus, &write(0, 8)), "GOOD", "it is registered");
        }
        let mut outsider = session(&daemon, SCHEMES[registrar], 9);
        assert_eq!(outcome(&mut outsider, &write(0, 8)), "RESERVATION CONFLICT, 4096 under");
        // REGISTER AND MOVE to the next.
        let next = (registrar + 1) % ids.len();
        let [high, low] = ports[next];
        let mut to = [&0x77_u64.to_be_bytes()[..], &0x88_u64.to_be_bytes(), &[0, 0, high, low]].concat();
        to.extend((ids[next].len() as u32).to_be_bytes());
        to.extend(&ids[next]);
        let relocate = writing(
            PersistentReserveOut::new(persistent_reserve_out::REGISTER_AND_MOVE, 0, to.len() as u32),
            to,
        );
        assert_eq!(outcome(&mut all[registrar], &relocate), "GOOD", "REGISTER AND MOVE");
        let key = |holds| if holds { 0x88 } else { 0x77 };
        assert_eq!(full_status(&mut all[next]), registrations(key, next));
        all.into_iter().for_each(|nexus| nexus.leave());
        outsider.leave();
        daemon.stop().expect("every core ends in order");
    }
}

#[test]
fn groups_admit_and_show_the_same_over_every_transport() {
    let port = |number: &str| format!("0x{}", number.repeat(16));
    let daemon = serve_toml(&format!(
        "[[lun]]\nname = \"a\"\nram = \"1M\"\n[[lun]]\nname = \"b\"\nram = \"1M\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n\
         [[target.group]]\nname = \"denied\"\ndeny = true\ninitiators = [\"*:peer1\", \"{}\"]\n\
         [[target.group]]\nname = \"readers\"\nread_only = true\nluns = [{{ number = 5, lun = \"b\" }}]\n\
         initiators = [\"*:peer2\", \"{}\"]\n\
         [[target.group]]\nname = \"writers\"\ninitiators = [\"*:peer3\", \"{}\"]\n",
        port("01"),
        port("02"),
        port("03"),
    ));
    let units = |nexus: &mut Box<dyn Nexus>| {
        let task = nexus.submit(&reading(ReportLuns::new(256), 256));
        nexus.end(task).1[8..].chunks(8).map(|lun| lun[1]).collect::<Vec<u8>>()
    };
    let on = |lun, command| Command { lun, ..command };
    for scheme in SCHEMES {
        let login = |number| connect(scheme, &login(&daemon, scheme, number));
        for stranger in [1, 4] {
            let reason = login(stranger).err().expect("no session");
            assert!(reason.contains("0x00010000") || reason.contains("status 0202"), "{reason}");
        }
        let (mut reader, mut writer) = (login(2).expect("a session"), login(3).expect("a session"));
        assert_eq!((units(&mut reader), units(&mut writer)), (vec![5], vec![0]));
        assert_eq!(outcome(&mut reader, &on(5, write(0, 1))), "UnitAttention 2900, 512 under");
        assert_eq!(outcome(&mut reader, &on(5, write(0, 1))), "DataProtect 2700, 512 under");
        assert_eq!(outcome(&mut reader, &write(0, 1)), "IllegalRequest 2500, 512 under");
        for changes in [
            Cdb::from(Reserve6::ZERO),
            StartStopUnit::ZERO.into(),
            PreventAllowMediumRemoval { prevent: 1 }.into(),
        ] {
            assert_eq!(outcome(&mut reader, &on(5, command(changes))), "DataProtect 2700");
        }
        for (function, answer) in [
            (Function::AbortTaskSet, Answer::Complete),
            (Function::ClearTaskSet, Answer::Refused),
            (Function::LogicalUnitReset, Answer::Refused),
        ] {
            let id = reader.manage(5, function);
            assert_eq!(reader.answer(id), answer, "{function:?} over {scheme}");
        }
        assert_eq!(outcome(&mut reader, &on(5, read(0, 1))), "GOOD, 512 read", "nothing was reset");
        assert_eq!(outcome(&mut writer, &write(0, 1)), "UnitAttention 2900, 512 under");
        assert_eq!(outcome(&mut writer, &write(0, 1)), "GOOD");
        assert_eq!(outcome(&mut writer, &on(5, read(0, 1))), "IllegalRequest 2500, 512 under");
        reader.leave();
        writer.leave();
    }
    daemon.stop().expect("every core ends in order");
}

#[test]
fn ports_are_reported_to_initiators_that_their_targets_admit() {
    let daemon = serve_toml(&format!(
        "[[lun]]\nname = \"a\"\nram = \"1M\"\n[[target]]\nname = \"{TARGET}\"\nluns = [\"a\"]\n\
         [[target]]\nname = \"iqn.2026-11.example:hidden\"\nluns = [\"a\"]\n\
         [[target.group]]\nname = \"friends\"\ninitiators = [\"*:peer2\"]\n",
    ));
    let is_shown_to = |number| {
        let mut nexus = connect("iscsi", &login(&daemon, "iscsi", number)).expect("a session");
        let task = nexus.submit(&reading(Inquiry::page(vpd::page::PORTS, 1024), 1024));
        let page = nexus.end(task).1;
        nexus.leave();
        page.windows(7).any(|part| part == b":hidden")
    };
    assert!(!is_shown_to(1) && is_shown_to(2));
    daemon.stop().expect("every core ends in order");
}

/// Data inside SRP's commands is written from where it was received, while the kernel is still using the
/// memory beside it.
#[test]
fn many_writes_to_a_file_at_once_keep_their_data_apart() {
    // On a disk: files in memory are written at once.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let file = format!("file:{},size=1M", directory.path().join("medium").display());
    let daemon = serve_on(two_cores(), "127.0.0.1:0", &[&file, LUNS[1]]);
    for scheme in SCHEMES {
        let mut nexus = session(&daemon, scheme, 1);
        let data = |n: u32| pattern(n as usize, 8 * BLOCK);
        let writes: Vec<TaskId> =
            (0..12).map(|n| nexus.submit(&writing(Write10::new(8 * n, 8), data(n)))).collect();
        for task in writes {
            assert_eq!(describe(&nexus.end(task).0), "GOOD", "over {scheme}");
        }
        for n in 0..12 {
            let task = nexus.submit(&read(8 * n, 8));
            assert!(nexus.end(task).1 == data(n), "{n} over {scheme}");
        }
        nexus.leave();
    }
    daemon.stop().expect("every core ends in order");
}

#[test]
fn channels_of_srp_are_one_nexus_to_its_task_set() {
    let daemon = serve_on(two_cores(), "127.0.0.1:0", &LUNS);
    let mut first = session(&daemon, "srp", 1);
    let beside = Login { is_beside: true, ..login(&daemon, "srp", 1) };
    let mut second = connect("srp", &beside).expect("a channel");
    let unit = command(TestUnitReady {});
    assert_eq!(outcome(&mut second, &unit), "GOOD", "the nexus has had the attention of its beginning");
    let is_aborted = |first: &mut Box<dyn Nexus>, second: &mut Box<dyn Nexus>| {
        let doomed = awaited(first, Attribute::Ordered);
        let set = second.manage(0, Function::AbortTaskSet);
        // The answer waits for what the target reads on other channels.
        let deadline = Instant::now() + PATIENCE;
        let answer = loop {
            second.go_on();
            first.go_on();
            if let Some(answer) = second.answered(set) {
                break answer;
            }
            assert!(Instant::now() < deadline, "the function is not answered");
            std::thread::yield_now();
        };
        assert_eq!(answer, Answer::Complete);
        assert_eq!(outcome(second, &unit), "GOOD", "nobody holds the unit");
        // Nothing reports that it was aborted; its response may have arrived before that of the function.
        let abort = (!first.has_ended(doomed)).then(|| first.manage(0, Function::AbortTask(doomed)));
        let ended = describe(&first.end(doomed).0);
        if let Some(abort) = abort {
            first.answer(abort);
        }
        assert!(ended == "Aborted" || ended == "GOOD", "{ended}");
        ended == "Aborted"
    };
    // The data may reach the task before the function does, but not every time.
    assert!((0..100).any(|_| is_aborted(&mut first, &mut second)), "the function spares other channels");
    first.leave();
    second.leave();
    daemon.stop().expect("every core ends in order");
}
