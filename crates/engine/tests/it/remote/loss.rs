//! What the front reports when its back end loses data, is replaced, or executes a command late.

use super::cable::Cable;
use super::chain::{client, flush, good, pattern, read, sense, write};
use super::support::{serve, serve_at, serve_on, short_timeouts, two_cores, url, url_at, wait_until_open};
use engine::Daemon;
use initiator::Client;
use initiator::client::Reply;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use wire::SenseKey;
use wire::scsi::command::{ModeSelect6, ModeSense6, Write16};
use wire::scsi::mode;

/// HARDWARE ERROR, WRITE ERROR.
const LOST: (Option<SenseKey>, u16) = (Some(SenseKey::HardwareError), 0x0c00);
/// Commands that an initiator may send without an answer.
const WINDOW: usize = 128;

fn front_of(address: SocketAddr) -> Daemon {
    front_on("0", address, "?give_up_after=5")
}

fn front_on(cores: &str, address: SocketAddr, options: &str) -> Daemon {
    let front = serve_on(cores, "127.0.0.1:0", &[&url_at(address, options)]);
    wait_until_open(&front, 0);
    front
}

/// A write that is acknowledged from a volatile cache.
fn write_cached(client: &mut Client) {
    good(client, write(0, 8), 0, &pattern(1, 4096));
}

/// The same, durable.
fn write_durable(client: &mut Client) {
    good(client, Write16 { fua: true, ..Write16::new(0, 8) }, 0, &pattern(1, 4096));
}

/// A write that is held up in transit until the front abandons it.
fn abandon_write(cable: &Cable, client: &mut Client, data: &[u8]) {
    cable.hold(&data[..512]);
    let reply = client.command(write(0, 8), 0, data).expect("a reply");
    cable.wait_until_held();
    assert_eq!(reply.sense.and_then(|sense| sense.key()), Some(SenseKey::NotReady), "{reply:?}");
}

/// Until the back end is connected again.
fn wait_until_ready(client: &mut Client) {
    while client.command(read(0, 8), 4096, &[]).expect("a reply").status != 0 {}
}

#[test]
fn what_a_restart_lost_is_reported_to_every_initiator_once() {
    let back = serve(&["ram:16M"]);
    let address = back.addresses()[0];
    let a = front_of(address);
    let (mut one, mut two) = (client(&a), client(&a));
    write_cached(&mut one);
    back.stop().expect("every core ends in order");
    let back = serve_at(&address.to_string(), &["ram:16M"]);
    for client in [&mut one, &mut two] {
        wait_until_ready(client);
        assert_eq!(sense(client, flush(), 0, &[]), LOST);
        good(client, flush(), 0, &[]);
    }
    good(&mut client(&a), flush(), 0, &[]);
    write_cached(&mut one);
    good(&mut one, flush(), 0, &[]);
    drop((one, two));
    a.stop().expect("every core ends in order");
    back.stop().expect("every core ends in order");
}

#[test]
fn a_session_that_was_broken_off_meanwhile_is_notified_when_it_is_back() {
    let back = serve(&["ram:16M"]);
    let address = back.addresses()[0];
    let a = front_of(address);
    let cable = Cable::to(a.addresses()[0]);
    let through_cable = url_at(cable.address(), "").parse().expect("a URL");
    let mut broken = Client::connect(&through_cable, &short_timeouts()).expect("a session");
    write_cached(&mut broken);
    back.stop().expect("every core ends in order");
    let back = serve_at(&address.to_string(), &["ram:16M"]);
    wait_until_ready(&mut client(&a));
    cable.cut();
    wait_until_ready(&mut broken);
    assert_eq!(sense(&mut broken, flush(), 0, &[]), LOST);
    // As far as the target knows, this one was sent before the report arrived.
    good(&mut broken, flush(), 0, &[]);
    cable.cut();
    wait_until_ready(&mut broken);
    assert_eq!(sense(&mut broken, flush(), 0, &[]), LOST);
    for _ in 0..=WINDOW {
        good(&mut broken, flush(), 0, &[]);
    }
    cable.cut();
    wait_until_ready(&mut broken);
    good(&mut broken, flush(), 0, &[]);
    drop(broken);
    a.stop().expect("every core ends in order");
    back.stop().expect("every core ends in order");
}

#[test]
fn what_was_made_durable_raises_no_alarm() {
    let back = serve(&["ram:16M"]);
    let address = back.addresses()[0];
    let a = front_of(address);
    let mut client = client(&a);
    write_cached(&mut client);
    good(&mut client, flush(), 0, &[]);
    write_durable(&mut client);
    back.stop().expect("every core ends in order");
    let _back = serve_at(&address.to_string(), &["ram:16M"]);
    wait_until_ready(&mut client);
    good(&mut client, flush(), 0, &[]);
}

#[test]
fn a_lunette_that_kept_everything_over_its_restart_raises_no_alarm() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = format!("file:{},size=16M", dir.path().join("disk").display());
    let back = serve(&[&disk]);
    let address = back.addresses()[0];
    let a = front_of(address);
    let mut front = client(&a);
    write_cached(&mut front);
    back.stop().expect("every core ends in order");
    let back = serve_at(&address.to_string(), &[&disk]);
    wait_until_ready(&mut front);
    good(&mut front, flush(), 0, &[]);
    assert!(good(&mut client(&back), read(0, 8), 4096, &[]) == pattern(1, 4096));
}

#[test]
fn a_cut_connection_to_a_lunette_raises_no_alarm() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to(back.addresses()[0]);
    let a = front_of(cable.address());
    let mut client = client(&a);
    write_cached(&mut client);
    cable.cut();
    good(&mut client, flush(), 0, &[]);
    assert!(good(&mut client, read(0, 8), 4096, &[]) == pattern(1, 4096));
}

#[test]
fn a_target_that_cannot_prove_that_it_went_on_is_doubted_only_when_something_is_at_stake() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to_foreign(back.addresses()[0]);
    let a = front_of(cable.address());
    let mut front = client(&a);
    write_cached(&mut front);
    cable.cut();
    assert_eq!(sense(&mut front, flush(), 0, &[]), LOST);
    good(&mut front, flush(), 0, &[]);
    write_durable(&mut front);
    cable.cut();
    good(&mut front, flush(), 0, &[]);

    let back = serve(&["ram:16M,wcache=off"]);
    let cable = Cable::to_foreign(back.addresses()[0]);
    let a = front_of(cable.address());
    let mut front = client(&a);
    write_cached(&mut front);
    cable.cut();
    good(&mut front, flush(), 0, &[]);
}

#[test]
fn a_unit_that_becomes_write_protected_is_seen_to_be() {
    let back = serve(&["ram:16M"]);
    let a = front_of(back.addresses()[0]);
    let (mut front, mut behind) = (client(&a), client(&back));
    let control = ModeSense6::page_only(mode::page::CONTROL, 252);
    good(&mut front, read(0, 8), 4096, &[]);
    let mut page = good(&mut behind, control, 252, &[]);
    // SWP; fields reserved in MODE SELECT are zero.
    page[8] |= 0x08;
    (page[0], page[2], page[4]) = (0, 0, page[4] & 0x3f);
    good(&mut behind, ModeSelect6::new(page.len() as u8), 0, &page);
    while good(&mut front, control, 252, &[])[2] & 0x80 == 0 {
        good(&mut front, read(0, 8), 4096, &[]);
    }
}

#[test]
fn a_session_that_continues_is_a_witness_for_one_that_begins() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to_foreign(back.addresses()[0]);
    let a = front_on(two_cores(), cable.address(), "");
    let mut one = client(&a);
    write_cached(&mut one);
    // On another core: a lane that logs in only now.
    let mut two = client(&a);
    good(&mut two, flush(), 0, &[]);
    good(&mut one, flush(), 0, &[]);
}

#[test]
fn a_session_whose_core_has_no_connections_is_a_witness_too() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to_foreign(back.addresses()[0]);
    let a = front_on(two_cores(), cable.address(), "");
    let mut one = client(&a);
    // On another core, whose lane has not been used yet.
    let mut two = client(&a);
    write_cached(&mut one);
    drop(one);
    good(&mut two, flush(), 0, &[]);
}

#[test]
fn an_abandoned_write_never_overwrites_a_later_one() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to(back.addresses()[0]);
    let a = front_on(two_cores(), cable.address(), "?give_up_after=5");
    let (early, late) = (pattern(1, 4096), pattern(2, 4096));
    let (mut one, mut two) = (client(&a), client(&a));
    for client in [&mut one, &mut two] {
        good(client, read(0, 8), 4096, &[]);
    }
    let mut behind = client(&back);
    abandon_write(&cable, &mut one, &early);
    // The write may still be executed: these blocks are not served.
    let mut short_timeouts = Client::connect(&url(&a, 0), &short_timeouts()).expect("a session");
    for client in [&mut two, &mut short_timeouts] {
        for (cdb, read_bytes, data) in [(write(0, 8), 0, &late[..]), (read(7, 8), 4096, &[][..])] {
            let reply = client.command(cdb, read_bytes, data);
            assert!(!matches!(reply, Ok(Reply { status: 0, .. })), "{reply:?}");
        }
    }
    // It arrives.
    cable.let_go();
    while good(&mut behind, read(0, 8), 4096, &[]) != early {}
    cable.reopen();
    while two.command(write(0, 8), 0, &late).map_or(true, |reply| reply.status != 0) {}
    assert!(good(&mut behind, read(0, 8), 4096, &[]) == late);
}

#[test]
fn what_the_last_of_three_lost_is_reported_by_the_first() {
    let c = serve(&["ram:16M"]);
    let address = c.addresses()[0];
    let b = front_of(address);
    let cable = Cable::to(b.addresses()[0]);
    let a = front_of(cable.address());
    let mut front = client(&a);
    write_cached(&mut front);
    // Before the loss, which is not reported to later sessions.
    let mut middle = client(&b);
    cable.part();
    c.stop().expect("every core ends in order");
    let _c = serve_at(&address.to_string(), &["ram:16M"]);
    wait_until_ready(&mut middle);
    assert_eq!(sense(&mut middle, flush(), 0, &[]), LOST);
    cable.reopen();
    wait_until_ready(&mut front);
    assert_eq!(sense(&mut front, flush(), 0, &[]), LOST);
    good(&mut front, flush(), 0, &[]);
}

#[test]
fn an_end_without_the_unit_that_has_unflushed_writes_is_no_success() {
    let back = serve(&["ram:16M,serial=RIGHT"]);
    let address = back.addresses()[0];
    let a = front_of(address);
    let mut front = client(&a);
    write_cached(&mut front);
    back.stop().expect("every core ends in order");
    let _wrong = serve_at(&address.to_string(), &["ram:16M,serial=WRONG"]);
    // Until the front knows that its unit is gone: TEST UNIT READY queries only the front.
    while front.command(&[0; 6], 0, &[]).expect("a reply").status == 0 {}
    drop(front);
    a.stop().expect_err("nobody can flush it");
}

#[test]
fn an_abandoned_write_is_not_written_when_the_back_end_returns() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to(back.addresses()[0]);
    let a = front_on("0", cable.address(), "?give_up_after=60");
    let mut hasty = Client::connect(&url(&a, 0), &short_timeouts()).expect("a session");
    good(&mut hasty, read(0, 8), 4096, &[]);
    cable.part();
    hasty.command(write(0, 8), 0, &pattern(1, 4096)).expect_err("it waits no longer");
    drop(hasty);
    // Its connection has ended before this one begins.
    let mut next = client(&a);
    cable.reopen();
    assert!(good(&mut next, read(0, 8), 4096, &[]).iter().all(|byte| *byte == 0));
    assert!(good(&mut client(&back), read(0, 8), 4096, &[]).iter().all(|byte| *byte == 0));
}

#[test]
fn a_core_without_sessions_continues_with_what_it_owes() {
    let back = serve(&["ram:16M"]);
    let cable = Cable::to(back.addresses()[0]);
    let a = front_on(two_cores(), cable.address(), "?give_up_after=5");
    let (early, late) = (pattern(1, 4096), pattern(2, 4096));
    let (mut one, mut two) = (client(&a), client(&a));
    for client in [&mut one, &mut two] {
        good(client, read(0, 8), 4096, &[]);
    }
    abandon_write(&cable, &mut one, &early);
    drop(one);
    cable.let_go();
    cable.reopen();
    let deadline = Instant::now() + Duration::from_secs(120);
    while two.command(write(0, 8), 0, &late).map_or(true, |reply| reply.status != 0) {
        assert!(Instant::now() < deadline, "the blocks of the write that was given up are never free again");
    }
}

#[test]
fn another_disk_behind_the_url_is_not_touched() {
    let dir = tempfile::tempdir().expect("a directory");
    let right = format!("file:{},size=16M,serial=RIGHT", dir.path().join("disk").display());
    let mut back = serve(&[&right]);
    let address = back.addresses()[0];
    let a = front_of(address);
    let mut front = client(&a);
    write_durable(&mut front);
    for (other, block_bytes) in [("ram:16M,serial=WRONG", 512), ("ram:16M,serial=RIGHT,bs=4096", 4096)] {
        back.stop().expect("every core ends in order");
        let wrong = serve_at(&address.to_string(), &[other]);
        assert_eq!(sense(&mut front, read(0, 8), 4096, &[]).0, Some(SenseKey::NotReady));
        assert_eq!(sense(&mut front, write(0, 8), 0, &pattern(2, 4096)).0, Some(SenseKey::NotReady));
        let there = good(&mut client(&wrong), read(0, 4096 / block_bytes), 4096, &[]);
        assert!(there.iter().all(|byte| *byte == 0), "{other}");
        wrong.stop().expect("every core ends in order");
        back = serve_at(&address.to_string(), &[&right]);
        wait_until_ready(&mut front);
        assert!(good(&mut front, read(0, 8), 4096, &[]) == pattern(1, 4096));
    }
}
