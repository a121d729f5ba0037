//! From one configuration to another while initiators are connected.

use crate::Wants;
use crate::daemon::{ChangeError, Daemon};
use crate::testing::daemon::Url;
use crate::testing::initiator::{Initiator, Login, Response, write_cdb};
use config::{Config, StepOfChange, diff};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::scsi::code;
use wire::scsi::command::{Inquiry, Read16, TestUnitReady};
use wire::scsi::status::{CHECK_CONDITION, GOOD};
use wire::scsi::vpd;

const BLOCK: u32 = 512;
const CAPACITY_CHANGED: u16 = code::CAPACITY_DATA_CHANGED;
const MODE_CHANGED: u16 = code::MODE_PARAMETERS_CHANGED;
const INQUIRY_CHANGED: u16 = code::INQUIRY_DATA_CHANGED;
const NOTHING: [u16; 0] = [];
const LUNS_CHANGED: u16 = code::REPORTED_LUNS_DATA_CHANGED;
const POWER_ON: u16 = code::POWER_ON_OR_RESET;
const NOT_SUPPORTED: u16 = code::LOGICAL_UNIT_NOT_SUPPORTED;
const WRITE_PROTECTED: u16 = code::WRITE_PROTECTED;

pub(super) const BASE: &str = "
portal = [{ listen = '127.0.0.1:0' }, { listen = '127.0.0.2:0' }]
lun = [{ name = 'a', ram = '1M', serial = 'A' }, { name = 'b', ram = '2M', serial = 'B' }]
[[target]]
name = 'iqn.2026-11.a:x'
luns = ['a', 'b']
[[target]]
name = 'iqn.2026-11.a:y'
luns = ['b']
";

/// For two cores, whether or not the machine has them.
fn config(text: &str) -> Config {
    let config = Config::from_toml(text, Path::new("lunette.toml"));
    let mut config = config.unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    config.cores = vec![0, 1];
    config.portals.iter_mut().for_each(|portal| portal.cores = vec![0, 1]);
    config
}

pub(super) fn start(text: &str) -> Daemon {
    Daemon::start(config(text)).expect("the daemon starts")
}

/// Takes all steps to another configuration.
pub(super) fn change(daemon: &mut Daemon, text: &str) -> Result<(), ChangeError> {
    let to = config(text);
    for step in diff(daemon.config(), &to) {
        daemon.take_step(&step, &to, Wants::Store)?;
    }
    assert_eq!(diff(daemon.config(), &to), []);
    Ok(())
}

fn url(portal: SocketAddr, target: &str) -> Url {
    Url { portal, target: format!("iqn.2026-11.a:{target}") }
}

pub(super) fn login(portal: SocketAddr, target: &str, name: &str) -> std::io::Result<Initiator> {
    Initiator::login(&url(portal, target), &Login::named(name))
}

/// A session that has consumed the unit attentions of a new nexus.
pub(super) fn session(portal: SocketAddr, target: &str, luns: u16) -> Initiator {
    let mut initiator = login(portal, target, "host").expect("a session");
    (0..luns).for_each(|lun| initiator.ready(lun).expect("the unit is ready"));
    initiator
}

/// What TEST UNIT READY reports, until it reports nothing.
fn reports(initiator: &mut Initiator, lun: u16) -> Vec<u16> {
    let mut all = Vec::new();
    while let Some(code) = code(&initiator.read(lun, TestUnitReady {}, 0).expect("an answer")) {
        all.push(code);
    }
    all
}

fn code(response: &Response) -> Option<u16> {
    (response.status == CHECK_CONDITION).then(|| u16::from_be_bytes([response.sense[12], response.sense[13]]))
}

/// Whether the target has ended the session.
fn has_ended(initiator: &mut Initiator) -> bool {
    initiator.read(0, TestUnitReady {}, 0).is_err()
}

#[test]
fn targets_come_and_go_and_sessions_with_others_notice_nothing() {
    let mut daemon = start(BASE);
    let portal = daemon.addresses()[0];
    let (mut x, mut y) = (session(portal, "x", 2), session(portal, "y", 1));
    assert!(login(portal, "z", "host").is_err());
    change(&mut daemon, &BASE.replace("a:y", "a:z")).expect("it changes");
    assert!(has_ended(&mut y));
    assert!(login(portal, "y", "host").is_err());
    assert_eq!(reports(&mut x, 0), NOTHING);
    let mut z = session(portal, "z", 1);
    z.write_blocks(0, 0, BLOCK, &[1; 512], false).expect("GOOD");
    assert_eq!(x.read_blocks(1, 0, 1, BLOCK).expect("GOOD"), [1; 512]);
    // One that is added again has forgotten its sessions.
    change(&mut daemon, BASE).expect("it changes");
    assert!(has_ended(&mut z));
    session(portal, "y", 1).logout().expect("an answer");
    assert_eq!(reports(&mut x, 0), NOTHING);
    x.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn sessions_that_lose_access_are_ended_and_those_that_become_read_only_are_notified() {
    let with = |group: &str| BASE.replace("luns = ['a', 'b']", &format!("luns = ['a', 'b']\n{group}"));
    let host = "[[target.group]]\nname = 'g'\ninitiators = ['*:host']\n";
    let mut daemon = start(&with(host));
    let portal = daemon.addresses()[0];
    let mut x = session(portal, "x", 2);
    change(&mut daemon, &with(&format!("{host}read_only = true"))).expect("it changes");
    assert_eq!(reports(&mut x, 0), [MODE_CHANGED]);
    let write = x.write(0, write_cdb(0, 512, BLOCK, false), &[1; 512]).expect("an answer");
    assert_eq!(code(&write), Some(WRITE_PROTECTED));
    change(&mut daemon, &with(&format!("{host}luns = ['b']"))).expect("it changes");
    assert_eq!(reports(&mut x, 0), [POWER_ON, LUNS_CHANGED], "b is LUN 0");
    assert_eq!(code(&x.read(1, TestUnitReady {}, 0).expect("an answer")), Some(NOT_SUPPORTED));
    // A new secret applies to later logins.
    let chap = "chap = { user = 'u', secret = '0123456789abcdef' }";
    change(&mut daemon, &with(&format!("{host}luns = ['b']\n{chap}"))).expect("it changes");
    assert_eq!(reports(&mut x, 0), NOTHING);
    assert!(login(portal, "x", "other").is_err() && login(portal, "x", "host").is_err());
    change(&mut daemon, &with(&format!("{host}deny = true"))).expect("it changes");
    assert!(has_ended(&mut x));
    let stranger = "[[target.group]]\nname = 'g'\ninitiators = ['*:stranger']\n";
    change(&mut daemon, BASE).expect("it changes");
    let mut x = session(portal, "x", 2);
    change(&mut daemon, &with(stranger)).expect("it changes");
    assert!(has_ended(&mut x));
    daemon.stop().expect("every core ends in order");
}

#[test]
fn portals_are_added_and_removed_with_their_sessions() {
    let mut daemon = start(BASE);
    let [first, second] = daemon.addresses()[..] else { panic!("two portals") };
    let (mut one, mut two) = (session(first, "x", 2), session(second, "y", 1));
    change(&mut daemon, &BASE.replace(", { listen = '127.0.0.2:0' }", "")).expect("it changes");
    assert!(has_ended(&mut two));
    assert!(std::net::TcpStream::connect(second).is_err(), "nobody listens");
    assert_eq!(daemon.addresses(), [first]);
    // Its address is free at once.
    let again = BASE.replace("127.0.0.2:0", &second.to_string());
    change(&mut daemon, &again).expect("it changes");
    assert_eq!(daemon.addresses(), [first, second]);
    let mut two = session(second, "y", 1);
    // A portal of another group is another target port: reservations and PREEMPT AND ABORT know a session by its port.
    change(&mut daemon, &again.replace(&format!("{second}' }}"), &format!("{second}', group = 2 }}")))
        .expect("it changes");
    assert_eq!(reports(&mut one, 0), [INQUIRY_CHANGED], "the unit has more than one port now");
    assert!(has_ended(&mut two));
    session(second, "x", 2).logout().expect("an answer");
    let taken =
        change(&mut daemon, &again.replace("127.0.0.1:0", &format!("{first}' }}, {{ listen = '127.0.0.1:0")));
    let why = taken.expect_err("the daemon itself has the port").to_string();
    assert!(why.contains("choose another port"), "{why}");
    one.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_target_that_is_not_reached_through_a_portal_any_more_ends_its_sessions_there() {
    let mut daemon = start(BASE);
    let [first, second] = daemon.addresses()[..] else { panic!("two portals") };
    let (mut one, mut two) = (session(first, "x", 2), session(second, "x", 2));
    let text = BASE.replace("luns = ['a', 'b']", "luns = ['a', 'b']\nportals = ['127.0.0.2:0']");
    change(&mut daemon, &text).expect("it changes");
    assert!(has_ended(&mut one));
    assert_eq!(reports(&mut two, 0), NOTHING);
    two.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn properties_of_a_lun_change_under_its_sessions_each_reported_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("disk");
    let with = |rest: &str| {
        let lun = format!("file = '{}', {rest}serial = 'A'", file.display());
        BASE.replace("ram = '1M', serial = 'A'", &lun)
    };
    let mut daemon = start(&with("size = '1M', "));
    let portal = daemon.addresses()[0];
    let mut x = session(portal, "x", 2);
    let mut changes = |rest: &str| {
        change(&mut daemon, &with(rest)).expect("it changes");
        assert_eq!(reports(&mut x, 1), NOTHING, "the other LUN is the same");
        reports(&mut x, 0)
    };
    assert_eq!(changes("size = '2M', "), [CAPACITY_CHANGED]);
    assert_eq!(std::fs::metadata(&file).expect("a file").len(), 2 << 20);
    assert_eq!(changes("size = '2M', product = 'Other', "), [INQUIRY_CHANGED]);
    assert_eq!(changes("size = '2M', write_cache = false, product = 'Other', "), [MODE_CHANGED]);
    assert_eq!(
        changes("size = '2M', read_only = true, write_cache = false, product = 'Other', "),
        [MODE_CHANGED]
    );
    let write = x.write(0, write_cdb(0, 512, BLOCK, false), &[1; 512]).expect("an answer");
    assert_eq!(code(&write), Some(WRITE_PROTECTED));
    // A smaller file would lose data.
    let refused = change(&mut daemon, &with("size = '1M', read_only = true, "));
    assert!(matches!(refused, Err(ChangeError::Refused(why)) if why.contains("would lose data")));
    assert_eq!(reports(&mut x, 0), NOTHING);
    x.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_lun_has_the_ports_by_which_it_is_shown() {
    let mut daemon = start(BASE);
    let portal = daemon.addresses()[0];
    let mut x = session(portal, "x", 2);
    let ports = |initiator: &mut Initiator, lun: u16| {
        let page = initiator.read(lun, Inquiry::page(vpd::page::PORTS, 255), 255).expect("an answer").data;
        page.windows(6).filter(|bytes| bytes == b",t,0x0").count()
    };
    assert_eq!([0, 1].map(|lun| ports(&mut x, lun)), [1, 2]);
    change(&mut daemon, &BASE.replace("luns = ['b']", "luns = ['b', 'a']")).expect("it changes");
    let mut y = session(portal, "y", 2);
    assert_eq!(ports(&mut y, 1), 2);
    x.logout().expect("an answer");
    y.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_failed_step_changes_nothing_and_earlier_steps_can_be_rolled_back() {
    let mut daemon = start(BASE);
    let portal = daemon.addresses()[0];
    let mut x = session(portal, "x", 2);
    let before = daemon.config().clone();
    let to = BASE.replace("luns = ['b']", "luns = ['b', 'c']");
    let to = config(&to.replace("serial = 'B' }", "serial = 'B' }, { name = 'c', file = '/nowhere/disk' }"));
    let steps = diff(&before, &to);
    let refused = steps.iter().map(|step| (step, daemon.take_step(step, &to, Wants::Store)));
    let (failed, why) =
        refused.filter_map(|(step, done)| Some((step, done.err()?))).next().expect("one fails");
    assert_eq!(*failed, StepOfChange::AddLun("c".into()));
    assert!(why.to_string().contains("/nowhere/disk"), "{why}");
    assert_eq!(diff(daemon.config(), &before), []);
    assert_eq!(reports(&mut x, 0), NOTHING);
    let restart = daemon.take_step(&StepOfChange::Restart("cores"), &to, Wants::Store);
    assert!(restart.expect_err("it needs one").to_string().contains("next start"));
    x.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_portal_that_loses_a_transport_loses_its_sessions() {
    let with = |transports: &str| {
        BASE.replace("'127.0.0.1:0' }", &format!("'127.0.0.1:0', transports = [{transports}] }}"))
    };
    let mut daemon = start(&with("'iscsi', 'iser'"));
    let mut one = session(daemon.addresses()[0], "x", 2);
    let mut two = login(daemon.addresses()[1], "x", "other").expect("a session");
    two.ready(0).expect("the unit is ready");
    change(&mut daemon, &with("'iscsi'")).expect("it changes");
    assert_eq!(reports(&mut one, 0), NOTHING);
    change(&mut daemon, &with("'iser'")).expect("it changes");
    assert!(has_ended(&mut one));
    assert_eq!(reports(&mut two, 0), NOTHING);
    two.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn an_initiator_that_no_longer_sees_a_lun_loses_its_reservation() {
    const RESERVE: [u8; 6] = [0x16, 0, 0, 0, 0, 0];
    const CONFLICT: u8 = 0x18;
    let mut daemon = start(BASE);
    let portal = daemon.addresses()[0];
    let (mut x, mut y) = (session(portal, "x", 2), session(portal, "y", 1));
    assert_eq!(x.read(1, &RESERVE, 0).expect("an answer").status, GOOD);
    assert_eq!(y.read(0, TestUnitReady {}, 0).expect("an answer").status, CONFLICT);
    change(&mut daemon, &BASE.replace("luns = ['a', 'b']", "luns = ['a']")).expect("it changes");
    while y.read(0, TestUnitReady {}, 0).expect("an answer").status == CONFLICT {
        std::thread::yield_now();
    }
    y.ready(0).expect("nobody has it reserved");
    x.logout().expect("an answer");
    y.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn a_lun_that_is_not_ready_has_the_size_that_the_configuration_has_by_now() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [file, aside] = ["disk", "aside"].map(|name| directory.path().join(name));
    std::fs::write(&file, vec![0; 2 << 20]).expect("a file");
    let with = |size: &str| {
        let lun = format!("file = '{}', size = '{size}', serial = 'A'", file.display());
        BASE.replace("ram = '1M', serial = 'A'", &lun)
    };
    // It has more than the file has; or there is no file, but a directory.
    for (before, size, is_there) in [("3M", "2M", true), ("2M", "3M", false)] {
        if !is_there {
            std::fs::rename(&file, &aside).expect("a file");
            std::fs::create_dir(&file).expect("a directory");
        }
        let mut daemon = start(&with(before));
        let portal = daemon.addresses()[0];
        let mut x = login(portal, "x", "host").expect("a session");
        x.ready(0).expect_err("it is not ready");
        change(&mut daemon, &with(size)).expect("it changes");
        if !is_there {
            // Atomically: if nothing were there, the daemon would create a file.
            let (here, exchange) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
            rustix::fs::renameat_with(here, &aside, here, &file, exchange).expect("they change places");
        }
        while x.ready(0).is_err() {
            std::thread::yield_now();
        }
        let bytes = config::parse_size(size).expect("a size");
        assert_eq!(std::fs::metadata(&file).expect("a file").len(), bytes);
        x.logout().expect("an answer");
        daemon.stop().expect("every core ends in order");
    }
}

#[test]
fn a_file_larger_than_its_configured_size_is_served_whole() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("disk");
    std::fs::write(&file, vec![7; 2 << 20]).expect("a file");
    let with = |size: &str| {
        let lun = format!("file = '{}', size = '{size}', serial = 'A'", file.display());
        BASE.replace("ram = '1M', serial = 'A'", &lun)
    };
    let mut daemon = start(&with("1M"));
    let mut x = session(daemon.addresses()[0], "x", 1);
    assert_eq!(daemon.units()[0].size_bytes, 2 << 20);
    assert_eq!(x.read_blocks(0, 4095, 1, BLOCK).expect("GOOD"), [7; 512], "its last block");
    change(&mut daemon, &with("2M")).expect("it is so already");
    assert_eq!(reports(&mut x, 0), NOTHING);
    change(&mut daemon, &with("3M")).expect("it grows");
    assert_eq!(reports(&mut x, 0), [CAPACITY_CHANGED]);
    assert_eq!(x.read_blocks(0, 4095, 1, BLOCK).expect("GOOD"), [7; 512]);
    // Nobody has seen the file of a new LUN.
    let other = directory.path().join("other");
    std::fs::write(&other, vec![7; 2 << 20]).expect("a file");
    let lun = format!("lun = [{{ file = '{}', size = '1M', serial = 'C' }}, ", other.display());
    let refused = change(&mut daemon, &with("3M").replace("lun = [", &lun));
    assert!(matches!(refused, Err(ChangeError::Refused(why)) if why.contains("2097152 bytes, not 1048576")));
    x.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

#[test]
fn what_a_lun_takes_is_known_from_when_it_is_thin_and_to_be_warned_of() {
    let with = |rest: &str| BASE.replace("serial = 'A'", &format!("serial = 'A'{rest}"));
    let mut daemon = start(&with(", thin = false"));
    let mut x = session(daemon.addresses()[0], "x", 2);
    assert!(!daemon.units()[0].thin);
    change(&mut daemon, &with(", thin = true, warn_at = '80%'")).expect("it changes");
    assert!(daemon.units()[0].thin);
    reports(&mut x, 0);
    // THRESHOLD EXPONENT of the Logical Block Provisioning page (SBC-3 section 6.6.4).
    let page = x.read(0, Inquiry::page(vpd::page::PROVISIONING, 255), 255).expect("an answer").data;
    assert_eq!(page[4], 11, "a threshold set has a megabyte");
    // Log page 0Ch: its parameters appear when the values are known.
    while x.read(0, &[0x4d, 0, 0x4c, 0, 0, 0, 0, 0, 255, 0], 255).expect("an answer").data.len() <= 4 {
        std::thread::yield_now();
    }
    x.logout().expect("an answer");
    daemon.stop().expect("every core ends in order");
}

/// Keeps 32 commands in flight on its own LUN until `ends` is set; each must succeed.
fn load(portal: SocketAddr, ends: &AtomicBool) -> u64 {
    const DEPTH: usize = 32;
    let mut initiator = login(portal, "kept", "load").expect("a session");
    initiator.ready(0).expect("the unit is ready");
    let mut written = [0u8; DEPTH];
    let mut slots = std::collections::BTreeMap::new();
    let mut commands = 0;
    let mut next = |initiator: &mut Initiator, slot: usize, written: &mut [u8; DEPTH]| {
        commands += 1;
        let is_write = (commands / DEPTH as u64).is_multiple_of(2);
        let tag = if is_write {
            written[slot] = (commands % 251) as u8;
            initiator.issue(0, write_cdb(slot as u64, 512, BLOCK, false), 0, vec![written[slot]; 512])
        } else {
            initiator.issue(0, Read16::new(slot as u64, 1), 512, Vec::new())
        };
        (tag.expect("it is sent"), slot, is_write)
    };
    for slot in 0..DEPTH {
        let (tag, slot, is_write) = next(&mut initiator, slot, &mut written);
        slots.insert(tag, (slot, is_write));
    }
    while let Some((tag, response)) =
        (!slots.is_empty()).then(|| initiator.complete_any().expect("the session lives"))
    {
        let (slot, is_write) = slots.remove(&tag).expect("it was sent");
        assert_eq!((response.status, code(&response)), (GOOD, None), "of what nobody has changed");
        assert!(is_write || response.data == [written[slot]; 512], "block {slot}");
        if !ends.load(Ordering::Relaxed) {
            let (tag, slot, is_write) = next(&mut initiator, slot, &mut written);
            slots.insert(tag, (slot, is_write));
        }
    }
    initiator.logout().expect("an answer");
    commands
}

/// Logs in where it can, and does what it can there, until `ends` is set.
fn visit(portal: SocketAddr, seed: u64, ends: &AtomicBool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    while !ends.load(Ordering::Relaxed) {
        let Ok(mut initiator) = login(portal, ["t0", "t1"][rng.usize(..2)], "visitor") else { continue };
        for _ in 0..rng.u32(..40) {
            let (lun, lba) = (rng.u16(..3), rng.u64(..64));
            let outcome = match rng.bool() {
                true => initiator.write_blocks(lun, lba, BLOCK, &[seed as u8; 512], false),
                false => initiator.read_blocks(lun, lba, 1, BLOCK).map(drop),
            };
            if outcome.is_err() && has_ended(&mut initiator) {
                break;
            }
        }
    }
}

/// Random settings for everything but the target `kept`.
fn variant(rng: &mut fastrand::Rng) -> String {
    let mut text = String::from("portal = [{ listen = '127.0.0.1:0' }, { listen = '127.0.0.2:0' }");
    let has_third = rng.bool();
    text += if has_third {
        [", { listen = '127.0.0.3:0' }]\n", ", { listen = '127.0.0.3:0', group = 2 }]\n"][rng.usize(..2)]
    } else {
        "]\n"
    };
    text = format!(
        "poll = '{}'\nlogins_max = {}\n{text}",
        ["adaptive", "never"][rng.usize(..2)],
        20 + rng.u32(..9)
    );
    text += "[[lun]]\nname = 'kept'\nram = '1M'\nserial = 'kept'\n";
    let there: Vec<usize> = (0..3).filter(|_| rng.u32(..4) > 0).collect();
    for lun in &there {
        let (size, product) = (1 + rng.u32(..2), rng.u32(..2));
        text += &format!(
            "[[lun]]\nname = 'l{lun}'\nram = '{size}M'\nserial = 'l{lun}'\nproduct = 'p{product}'\n"
        );
        text += &format!("read_only = {}\nwrite_cache = {}\n", rng.u32(..4) == 0, rng.bool());
    }
    text += "[[target]]\nname = 'iqn.2026-11.a:kept'\nluns = ['kept']\nportals = ['127.0.0.1:0']\n";
    for target in 0..2 {
        if rng.u32(..5) == 0 {
            continue;
        }
        let shown = there.iter().filter(|_| rng.bool()).map(|lun| format!("'l{lun}',"));
        text += &format!(
            "[[target]]\nname = 'iqn.2026-11.a:t{target}'\nluns = [{}]\n",
            shown.collect::<String>()
        );
        text += ["", "portals = ['127.0.0.2:0']\n"][rng.usize(..2)];
        text += match rng.u32(..4) {
            0 => "group = [{ name = 'g', initiators = ['*:visitor'], read_only = true }]\n",
            1 => "group = [{ name = 'g', initiators = ['*:nobody'] }]\n",
            _ => "",
        };
    }
    text
}

#[test]
fn hundreds_of_changes_disturb_no_unrelated_session() {
    const CHANGES: u32 = 300;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut daemon = start(&variant(&mut rng));
    let portals = daemon.addresses().to_vec();
    let ends = Arc::new(AtomicBool::new(false));
    let loaded = {
        let (ends, portal) = (ends.clone(), portals[0]);
        std::thread::spawn(move || load(portal, &ends))
    };
    let visitors: Vec<_> = (0..2)
        .map(|index| {
            let (ends, portal, seed) = (ends.clone(), portals[index], rng.u64(..));
            std::thread::spawn(move || visit(portal, seed, &ends))
        })
        .collect();
    for _ in 0..CHANGES {
        change(&mut daemon, &variant(&mut rng)).expect("it changes");
        assert_eq!(daemon.addresses()[..2], portals[..2]);
    }
    ends.store(true, Ordering::Relaxed);
    assert!(loaded.join().expect("no error, and no wrong byte") > 0);
    visitors.into_iter().for_each(|visitor| visitor.join().expect("it ends"));
    daemon.stop().expect("every core ends in order");
}
