//! A daemon that serves another daemon's unit, while that one is killed, frozen and restarted.

use crate::support::Noise;
use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login};
use crate::support::load::Load;
use crate::support::wait_until;
use initiator::client::Reply;
use initiator::{Client, Options};
use std::sync::mpsc;
use std::time::Duration;
use wire::scsi::command::{Read10, TestUnitReady, Write10};

const BLOCK_BYTES: usize = 512;
/// Blocks per write.
const BLOCKS: u16 = 16;
const NOT_READY: u8 = 2;

/// The back daemon, on this address, with a file.
fn back(listen: &str, disk: &std::path::Path) -> Daemon {
    back_with(listen, &format!("file:{},size=16M", disk.display()))
}

/// The same with this store.
fn back_with(listen: &str, spec: &str) -> Daemon {
    // The kernel closes the ring of a killed daemon, and its listening socket with it, some time later.
    while std::net::TcpListener::bind(listen).is_err() {
        std::thread::yield_now();
    }
    Daemon::start(Daemon::command().args(["serve", "--listen", listen, "--lun", spec]))
}

/// The front daemon.
fn front(behind: &Url, give_up_after: u32) -> Daemon {
    Daemon::serve(["--lun", &behind.with("", &format!("?give_up_after={give_up_after}"))])
}

/// A client that is more patient than the front.
fn client(url: &Url) -> Client {
    let url = url.to_string().parse().expect("a URL");
    let options = Options { give_up_after: Duration::from_secs(120), ..Options::default() };
    Client::connect(&url, &options).unwrap_or_else(|error| panic!("{error}"))
}

fn write(client: &mut Client, lba: u32, data: &[u8]) -> Reply {
    let write = Write10 { fua: true, ..Write10::new(lba, BLOCKS) };
    client.command(write, 0, data).unwrap_or_else(|error| panic!("{error}"))
}

fn read(client: &mut Client, lba: u32) -> Reply {
    let bytes = u32::from(BLOCKS) * BLOCK_BYTES as u32;
    client.command(Read10::new(lba, BLOCKS), bytes, &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn data(seed: u64) -> Vec<u8> {
    Noise(seed).bytes(usize::from(BLOCKS) * BLOCK_BYTES)
}

fn assert_not_ready(reply: &Reply) {
    let key = reply.sense.and_then(|sense| sense.key()).map(|key| key.bits());
    assert_eq!((reply.status, key), (2, Some(NOT_READY)), "{reply:?}");
}

#[test]
fn an_outage_is_one_line_however_many_cores_have_sessions() {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = directory.path().join("disk");
    let behind = back("127.0.0.1:0", &disk);
    let there = behind.lun(0);
    let front = front(&there, 60);
    let mut clients: Vec<Client> = (0..8).map(|_| client(&front.lun(0))).collect();
    // Opening the unit takes a session as well.
    wait_until("two cores have sessions", || {
        clients.iter_mut().for_each(|client| assert_eq!(read(client, 0).status, 0));
        behind.log().matches(" logged in ").count() > 2
    });
    behind.kill9();
    wait_until("the loss is logged", || front.log().contains("no session with the target"));
    let behind = back(&there.portal.to_string(), &disk);
    wait_until("all are back", || front.log().contains("the session with the target is back"));
    clients.iter_mut().for_each(|client| {
        client.command(TestUnitReady {}, 0, &[]).unwrap_or_else(|error| panic!("{error}"));
    });
    drop(clients);
    let log = front.stop();
    behind.stop();
    for line in ["no session with the target", "the session with the target is back"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn no_acknowledged_write_is_lost_when_the_back_end_is_killed() {
    const ROUNDS: u32 = 600;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = directory.path().join("disk");
    let mut behind = back("127.0.0.1:0", &disk);
    let there = behind.lun(0);
    let front = front(&there, 60);
    let url = front.lun(0);
    let (sender, done) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        let mut client = client(&url);
        for round in 0..ROUNDS {
            let reply = write(&mut client, round * u32::from(BLOCKS), &data(round.into()));
            assert_eq!((reply.status, reply.sense), (0, None), "round {round}");
            let _ = sender.send(round);
        }
    });
    for kill_at in [ROUNDS / 6, ROUNDS / 3, ROUNDS / 2] {
        done.iter().find(|round| *round >= kill_at).expect("the writer continues");
        behind.kill9();
        behind = back(&there.portal.to_string(), &disk);
    }
    writer.join().expect("every write was acknowledged in the end");
    for url in [&there, &front.lun(0)] {
        let mut client = client(url);
        for round in 0..ROUNDS {
            let reply = read(&mut client, round * u32::from(BLOCKS));
            assert!(reply.status == 0 && reply.data == data(round.into()), "round {round} through {url}");
        }
    }
    front.stop();
    behind.stop();
}

#[test]
fn verified_load_sees_nothing_of_a_back_end_that_is_killed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = directory.path().join("disk");
    let mut behind = back("127.0.0.1:0", &disk);
    let there = behind.lun(0);
    let front = front(&there, 60);
    // As in `no_acknowledged_write_is_lost`: a killed process takes nothing along that is already in its
    // file.
    let mut load = Load::on(&front.lun(0).to_string(), &["--bs", "8K", "--iodepth", "16", "--numjobs", "2"]);
    for _ in 0..3 {
        load.wait_for_progress();
        behind.kill9();
        behind = back(&there.portal.to_string(), &disk);
    }
    load.wait_for_progress();
    load.stop();
    front.stop();
    behind.stop();
}

#[test]
fn a_dead_back_end_is_reported_and_failed_writes_never_land() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = directory.path().join("disk");
    let behind = back("127.0.0.1:0", &disk);
    let there = behind.lun(0);
    let front = front(&there, 5);
    let mut client = client(&front.lun(0));
    wait_until("the unit is ready", || read(&mut client, 0).status == 0);
    assert_eq!(write(&mut client, 0, &data(1)).status, 0);
    behind.kill9();
    assert_not_ready(&read(&mut client, 0));
    assert_not_ready(&write(&mut client, 16, &data(2)));
    let behind = back(&there.portal.to_string(), &disk);
    let reply = loop {
        let reply = read(&mut client, 0);
        if reply.status == 0 {
            break reply;
        }
        assert_not_ready(&reply);
    };
    assert!(reply.data == data(1));
    assert!(read(&mut client, 16).data == vec![0; data(2).len()], "what failed was not written later");
    front.stop();
    behind.stop();
}

#[test]
fn initiators_are_notified_that_the_back_end_lost_its_memory() {
    let behind = back_with("127.0.0.1:0", "ram:16M,serial=LOST");
    let there = behind.lun(0);
    let front = front(&there, 2);
    let mut initiator =
        Initiator::login(&front.lun(0), &Login::named("iqn.2026-11.org.example:a")).expect("a session");
    initiator.ready(0).expect("the unit is ready");
    initiator.read_blocks(0, 0, 8, 512).expect("data");
    behind.kill9();
    let behind = back_with(&there.portal.to_string(), "ram:16M,serial=LOST");
    // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED.
    loop {
        let reply = initiator.read(0, &[0; 6], 0).expect("a reply");
        if reply.status != 0 {
            assert_eq!((reply.sense_key(), &reply.sense[12..14]), (Some(6), &[0x29, 0][..]), "{reply:?}");
            break;
        }
    }
    front.stop();
    behind.stop();
}

#[test]
fn a_silent_back_end_times_out_and_is_reconnected() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let behind = back("127.0.0.1:0", &directory.path().join("disk"));
    let front = front(&behind.lun(0), 2);
    let mut client = client(&front.lun(0));
    assert_eq!(write(&mut client, 0, &data(1)).status, 0);
    behind.freeze();
    assert_not_ready(&read(&mut client, 0));
    behind.signal("CONT");
    while read(&mut client, 0).status != 0 {}
    assert!(read(&mut client, 0).data == data(1));
    front.stop();
    behind.stop();
}

#[test]
fn a_front_that_starts_ends_the_sessions_of_the_one_before() {
    let back = Daemon::serve(["--lun", "ram:16M"]);
    let state = tempfile::tempdir().expect("a temporary directory");
    let kept = state.path().join("initiator-ports-53");
    let name = "iqn.2026-11.io.lunette.test:earlier";
    std::fs::write(&kept, format!("8000000000aa {name}\n")).expect("written");
    let login = Login { isid: [0x80, 0, 0, 0, 0, 0xaa], ..Login::named("earlier") };
    let mut earlier = Initiator::login(&back.lun(0), &login).expect("login");
    earlier.ready(0).expect("the unit is ready");
    let lun = format!("{},serial=S", back.lun(0));
    let serve = || Daemon::serve(["--state-dir", state.path().to_str().expect("UTF-8"), "--lun", &lun]);
    let front = serve();
    earlier.ready(0).expect_err("its session has ended");
    client(&front.lun(0));
    let ports = std::fs::read_to_string(&kept).expect("kept");
    assert!(!ports.contains(name) && ports.contains(" iqn."), "{ports}");
    front.kill9();
    let front = serve();
    assert_eq!(std::fs::read_to_string(&kept).expect("kept"), ports, "its ports are used again");
    std::fs::write(&kept, "damaged").expect("written");
    front.stop();
    let front = serve();
    let wants = "initiator-ports-53: the saved initiator ports are damaged";
    wait_until("the unit is not served", || front.log().contains(wants));
}
