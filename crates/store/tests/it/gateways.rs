//! What gateways that share an image require of its store and of a pool, on a Ceph of one monitor and one
//! OSD.

use crate::support::ceph::{Ceph, POOL};
use crate::support::rig::Rig;
use crate::support::{Kernel, tool};
use config::{Access, RbdImage};
use reactor::uring::Uring;
use scsi::storage::{Found, StoreError};
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::lane::{Failover, Op, Store};
use store::rados::{Pool, PoolError};
use store::rbd::{self, Options, RbdStore};

const IMAGE: &str = "disk";
const BLOCK: usize = 4096;
/// Blocks written, over all objects of the image.
const BLOCKS: u64 = 1024;
const STRIDE: u64 = 64 << 10;
/// Writes in flight of a gateway that is about to hang.
const FLIGHTS: usize = 256;
/// Long enough for a hint on any machine.
const LONG: Duration = Duration::from_secs(60);
/// The most lines of a process that are skipped.
const LINES_MAX: usize = 1000;
/// How a test's process finds the cluster.
const CONF: &str = "LUNETTE_TEST_CEPH_CONF";

fn place(conf: &str) -> RbdImage {
    let image = RbdImage::parse(&format!("{POOL}/{IMAGE}")).expect("an image");
    RbdImage { conf: Some(conf.into()), ..image }
}

fn standby(conf: &str) -> Arc<RbdStore> {
    let options = Options { access: Some(Access::One), names_unit: true, ..Options::new(512, false) };
    rbd::open(&place(conf), options).expect("it opens")
}

fn rig(store: &Arc<RbdStore>) -> Rig<Uring> {
    Rig::new(Uring::start(), store)
}

fn write_all(rig: &mut Rig<Uring>, byte: u8) {
    for block in 0..BLOCKS {
        rig.write(block * STRIDE, &[byte; BLOCK]).expect("a write");
    }
}

fn check_all(rig: &mut Rig<Uring>, byte: u8) {
    for block in 0..BLOCKS {
        assert_eq!(rig.read(block * STRIDE, BLOCK), Ok(vec![byte; BLOCK]), "block {block}");
    }
}

/// Another process, which runs an ignored test of this file. It is killed when this is dropped.
struct Process {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(test: &str, conf: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", &format!("gateways::{test}"), "--ignored", "--nocapture"])
            .env(CONF, conf)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Process { child, output }
    }

    /// The rest of its next line that begins with this word.
    fn says(&mut self, word: &str) -> String {
        let mut said = Vec::new();
        for line in self.output.by_ref() {
            let line = line.expect("UTF-8");
            match line.split_once(word) {
                Some((_, rest)) => return rest.trim().to_owned(),
                None => said.push(line),
            }
            if said.len() > LINES_MAX {
                break;
            }
        }
        panic!("it does not say {word:?} but {:?} and so on", &said[..said.len().min(20)]);
    }

    fn signal(&self, signal: &str) {
        tool("kill", &[&format!("-{signal}"), &self.child.id().to_string()]);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn conf_of_process() -> String {
    std::env::var(CONF).expect("it is a process of another test")
}

#[test]
#[ignore = "a process of another test"]
fn writer() {
    let store = standby(&conf_of_process());
    store.promote(&[]).expect("nobody has it");
    println!("client {}", Failover::client(&*store).expect("it is open"));
    let mut rig = rig(&store);
    let from = rig.room(0, BLOCK);
    rig.fill(&from, &[1; BLOCK]);
    let (mut started, mut done) = (0, 0);
    while !store.is_fenced() {
        while rig.lane.in_flight() < FLIGHTS && !store.is_fenced() {
            let offset = started % BLOCKS * STRIDE;
            rig.start(&Op::Write { offset, from, durable: false, atomic: false });
            started += 1;
        }
        rig.turn();
        done += rig.finished.drain(..).filter(|(_, outcome)| outcome.is_ok()).count();
        if done > FLIGHTS {
            println!("writing");
            done = 0;
        }
    }
    // No operation of this client is reported as complete any more.
    let unavailable = Err(StoreError::Unavailable);
    assert!(rig.settle().iter().all(|(_, outcome)| *outcome == unavailable));
    assert_eq!(rig.write(0, &[1; BLOCK]), unavailable);
    println!("fenced");
    assert!(store.demote().is_ok() && store.refresh().is_ok(), "there is nothing to release");
    store.reopen().expect("it is another client");
    assert!(!store.is_fenced());
    assert_eq!(rig.write(0, &[1; BLOCK]), unavailable, "it is in standby");
    println!("client {}", Failover::client(&*store).expect("it is open"));
    let refused = store.promote(&[]).expect_err("the other one has the lock");
    println!("refused {refused}");
}

#[test]
fn what_a_hung_gateway_has_in_hand_never_lands_over_what_the_next_one_wrote() {
    let ceph = Ceph::start();
    ceph.create_shared(IMAGE, BLOCKS * STRIDE);
    let mut hung = Process::start("writer", &ceph.conf());
    let old = hung.says("client");
    let store = standby(&ceph.conf());
    let refused = store.promote(&[]).expect_err("the other one is alive");
    assert!(refused.contains(&old) && refused.contains("rbd status"), "{refused}");
    let mut rig = rig(&store);
    assert_eq!(rig.write(0, &[2; BLOCK]), Err(StoreError::Unavailable), "it is in standby");
    hung.says("writing");
    let size = 2 * BLOCKS * STRIDE;
    ceph.rbd(&["resize", "--size", &format!("{size}B"), &format!("{POOL}/{IMAGE}")]);
    hung.signal("STOP");

    store.promote(std::slice::from_ref(&old)).expect("the lock is broken");
    assert_eq!(store.traits().size_bytes, size, "it was resized meanwhile");
    write_all(&mut rig, 2);
    hung.signal("CONT");
    hung.says("fenced");
    let new = hung.says("client");
    let owner = hung.says("refused");
    assert_ne!(new, old);
    assert!(owner.contains(&Failover::client(&*store).expect("it is open")), "{owner}");
    check_all(&mut rig, 2);

    // An hour later it is still fenced.
    let year: u32 = tool("date", &["-u", "+%Y"]).parse().expect("a year");
    let list = ceph.ceph(&["osd", "blocklist", "ls"]);
    let entry = list.lines().find(|line| line.contains(&old)).expect("it is listed");
    assert!(entry.contains(&format!(" {}-", year + 1)), "{entry}");
}

/// The file that exists once the next gateway has written.
fn written(conf: &str) -> PathBuf {
    format!("{conf}.written").into()
}

#[test]
#[ignore = "a process of another test"]
fn reader() {
    let conf = conf_of_process();
    let store = standby(&conf);
    store.promote(&[]).expect("nobody has it");
    println!("client {}", Failover::client(&*store).expect("it is open"));
    let (mut rig, mut reads) = (rig(&store), 0);
    while !store.is_fenced() {
        let is_old = written(&conf).exists();
        let found = rig.read(reads % BLOCKS * STRIDE, BLOCK);
        reads += 1;
        if reads == BLOCKS {
            println!("reading");
        }
        if is_old && found == Ok(vec![0; BLOCK]) {
            return println!("result stale");
        }
    }
    println!("result fenced");
}

#[test]
fn an_image_with_an_object_map_is_not_shared() {
    create_and_prepare(&Ceph::start(), Access::One);
}

#[test]
fn a_gateway_that_was_superseded_while_it_was_paused_reads_nothing_older_than_what_the_next_one_wrote() {
    let ceph = Ceph::start();
    ceph.create_shared(IMAGE, BLOCKS * STRIDE);
    let mut paused = Process::start("reader", &ceph.conf());
    let old = paused.says("client");
    paused.says("reading");
    paused.signal("STOP");
    let store = standby(&ceph.conf());
    store.promote(&[old]).expect("the lock is broken");
    write_all(&mut rig(&store), 2);
    std::fs::write(written(&ceph.conf()), "").expect("written");
    paused.signal("CONT");
    assert_eq!(paused.says("result"), "fenced");
}

/// An image with the features that new ones have, and that gateways refuse, is refused, and what the error says to
/// do is enough.
fn create_and_prepare(ceph: &Ceph, access: Access) {
    ceph.create(IMAGE, BLOCKS * STRIDE);
    let options = Options { access: Some(access), ..Options::new(512, false) };
    let open = || rbd::open(&place(&ceph.conf()), options).map(drop);
    let refused = open().expect_err("librbd has a map of its own").to_string();
    let (_, command) = refused.split_once("(rbd ").expect("a command");
    let (command, _) = command.split_once(',').expect("its end");
    ceph.rbd(&command.replace("POOL/IMAGE", &format!("{POOL}/{IMAGE}")).split(' ').collect::<Vec<_>>());
    open().expect("it opens");
}

fn open_for_all(conf: &str, block_bytes: u32) -> Arc<RbdStore> {
    let options = Options { access: Some(Access::All), names_unit: true, ..Options::new(block_bytes, false) };
    rbd::open(&place(conf), options).expect("it opens")
}

#[test]
fn all_gateways_write_an_image_until_one_is_fenced() {
    let ceph = Ceph::start();
    create_and_prepare(&ceph, Access::All);
    let (one, two) = (open_for_all(&ceph.conf(), 512), open_for_all(&ceph.conf(), 512));
    let client = |store: &RbdStore| Failover::client(store).expect("it is open");
    let (mut first, mut second) = (rig(&one), rig(&two));
    assert_eq!(first.write(0, &[1; BLOCK]), Err(StoreError::Unavailable), "it has not joined");
    one.promote(&[]).expect("nobody has to be fenced");
    two.catch_up().expect("it joins");
    for round in 1..8 {
        first.write(0, &[round; BLOCK]).expect("a write");
        assert_eq!(second.read(0, BLOCK), Ok(vec![round; BLOCK]));
        second.write(4096, &[round; BLOCK]).expect("a write");
        assert_eq!(first.read(4096, BLOCK), Ok(vec![round; BLOCK]));
    }
    // One of them is first, each time.
    assert_eq!(one.traits().compare_write_bytes_max, 512);
    for turn in 1..=8 {
        let outcomes =
            [&mut first, &mut second].map(|rig| rig.compare_and_write(8192, &[turn - 1; 512], &[turn; 512]));
        assert_eq!(outcomes, [Ok(Found::Nothing), Err(StoreError::Miscompare { at: 0 })]);
    }
    let refused = first.compare_and_write(8192, &[8; 1024], &[9; 1024]);
    assert_eq!(refused, Err(StoreError::Unsupported), "not in one step");
    let large = open_for_all(&ceph.conf(), 4096).traits().compare_write_bytes_max;
    assert!([0, 4096].contains(&large), "{large}");

    let (old, other) = (client(&two), client(&one));
    // A unit's object accepts nothing else.
    let (socket, nonce) = old.rsplit_once('/').expect("IP:PORT/NONCE");
    assert!(socket.parse::<SocketAddr>().is_ok() && nonce.parse::<u32>().is_ok(), "{old}");
    one.fence(std::slice::from_ref(&old)).expect("it is fenced");
    assert_eq!(second.write(4096, &[9; BLOCK]), Err(StoreError::Unavailable));
    assert!(two.is_fenced() && !one.is_fenced());
    two.abandon();
    assert!(two.catch_up().is_err(), "it stays out");
    two.reopen().expect("it is another client");
    assert_ne!(client(&two), old);
    two.catch_up().expect("it joins again");
    assert_eq!(second.read(4096, BLOCK), Ok(vec![7; BLOCK]));
    second.write(0, &[10; BLOCK]).expect("a write");
    assert_eq!(first.read(0, BLOCK), Ok(vec![10; BLOCK]));

    // If nobody else is left, a gateway has its own client fenced.
    one.fence(std::slice::from_ref(&other)).expect("it is fenced");
    assert!(ceph.ceph(&["osd", "blocklist", "ls"]).contains(&other));
    one.abandon();
    one.reopen().expect("it is another client");
    one.catch_up().expect("it joins again");
    assert_eq!(first.read(0, BLOCK), Ok(vec![10; BLOCK]));
    two.demote().expect("it leaves");
    assert_eq!(second.read(0, BLOCK), Err(StoreError::Unavailable));
}

/// A pool, and the hints from its watch of an object.
fn watching(conf: &str, object: &str) -> (Pool, store::rados::Watch, mpsc::Receiver<()>) {
    let pool = Pool::open(&place(conf)).expect("it opens");
    let (hint, hints) = mpsc::channel();
    let hint = move || {
        let _ = hint.send(());
    };
    let watch = pool.watch(object, Box::new(hint)).expect("it is watched");
    (pool, watch, hints)
}

#[test]
#[ignore = "a process of another test"]
fn watcher() {
    let (_pool, _watch, hints) = watching(&conf_of_process(), "state");
    println!("watching");
    for () in hints {
        println!("hint");
    }
}

mod soak {
    use super::*;

    #[test]
    fn an_image_is_handed_over_and_back_and_nothing_of_it_is_lost() {
        let ceph = Ceph::start();
        ceph.create_shared(IMAGE, BLOCKS * STRIDE);
        let (one, two) = (standby(&ceph.conf()), standby(&ceph.conf()));
        assert!(one.traits().identity.is_some_and(|identity| Some(identity) == two.traits().identity));
        let (mut first, mut second) = (rig(&one), rig(&two));
        for round in 1..4 {
            one.promote(&[]).expect("nobody has it");
            one.promote(&[]).expect("it has it");
            assert!(two.promote(&[]).is_err() && second.read(0, BLOCK).is_err());
            write_all(&mut first, round);
            one.demote().expect("it has it");
            one.demote().expect("nobody has it");
            assert_eq!(first.write(0, &[9; BLOCK]), Err(StoreError::Unavailable));
            assert!(one.refresh().is_ok() && !one.is_fenced(), "it is in standby");
            two.promote(&[]).expect("nobody has it");
            check_all(&mut second, round);
            two.reopen().expect("it lets go");
            assert!(!two.is_fenced());
        }
    }

    #[test]
    fn an_image_without_a_lock_is_not_shared() {
        let ceph = Ceph::start();
        ceph.rbd(&["create", "--size", "8M", "--image-feature", "layering", &format!("{POOL}/{IMAGE}")]);
        let options = Options { access: Some(Access::One), ..Options::new(512, false) };
        let refused =
            rbd::open(&place(&ceph.conf()), options).map(drop).expect_err("it has no lock").to_string();
        assert!(refused.contains("rbd feature enable"), "{refused}");
    }

    #[test]
    fn an_object_is_changed_only_with_its_version_and_its_watchers_are_notified() {
        let ceph = Ceph::start();
        let pool = Pool::open(&place(&ceph.conf())).expect("it opens");
        assert_eq!(pool.read("state"), Ok(None));
        assert_eq!(pool.replace("state", Some(1), b"x"), Err(PoolError::Conflict), "there is none");
        let first = pool.replace("state", None, b"first").expect("it is new");
        assert_eq!(pool.replace("state", None, b"x"), Err(PoolError::Conflict), "there is one");
        let (other, watch, hints) = watching(&ceph.conf(), "state");
        assert_eq!(other.read("state"), Ok(Some((first, b"first".to_vec()))));
        let second = other.replace("state", Some(first), b"2").expect("it is that version");
        for wrong in [first, second + 1] {
            assert_eq!(pool.replace("state", Some(wrong), b"x"), Err(PoolError::Conflict));
        }
        assert_eq!(pool.read("state"), Ok(Some((second, b"2".to_vec()))), "all of it is replaced");

        // Of two watchers, one hangs, and is killed.
        let mut killed = Process::start("watcher", &ceph.conf());
        killed.says("watching");
        pool.notify("state").expect("it is sent").wait();
        killed.says("hint");
        hints.recv_timeout(LONG).expect("a hint");
        killed.signal("STOP");
        pool.notify("state").expect("it is sent, although one does not notice");
        hints.recv_timeout(LONG).expect("a hint");
        drop(killed);
        pool.notify("state").expect("it is sent, although one does not notice");
        hints.recv_timeout(LONG).expect("a hint");

        // A client that was fenced finds that out, and so does whoever queries it.
        ceph.ceph(&["osd", "blocklist", "add", other.client()]);
        assert_eq!(other.replace("state", Some(second), b"x"), Err(PoolError::Fenced));
        assert_eq!(other.read("state"), Err(PoolError::Fenced));
        hints.recv_timeout(LONG).expect("its watch is lost");
        drop(watch);
        assert_eq!(pool.read("state"), Ok(Some((second, b"2".to_vec()))));
    }
}
