//! The guarantees of NBD exports that are used over several connections, with a server controlled by each
//! test, and with others.

use crate::nbd::{
    Asked, BLOCK, CACHED, Core, DISCONNECT, DONE, FLUSH, Peer, SHORT, SIZE, Server, WRITE, options,
};
use crate::support::nbd::NbdServer;
use crate::support::{Random, directory, sparse};
use config::NbdUrl;
use scsi::storage::StoreError;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::lane::{Op, OpId, Store as _};
use store::nbd::{self, NbdStore, Options};
use wire::nbd::transmission::CAN_MULTI_CONN;

const SHARED: u16 = CACHED | CAN_MULTI_CONN;

/// An export with two connections, each of which is that of one core; nothing is dirty.
struct Pair {
    server: Server,
    store: Arc<NbdStore>,
    peers: [Peer; 2],
    cores: [Core; 2],
}

impl Pair {
    fn new(options: Options) -> Pair {
        let server = Server::new();
        let (store, mut first) = server.open(SHARED, options);
        let mut cores = [Core::on(&store), Core::on(&store)];
        // Until the second one is open, the other is used.
        for core in &mut cores {
            let flush = core.begin(&Op::Flush);
            acknowledge(&mut first, FLUSH);
            assert_eq!(core.outcome(flush), DONE);
        }
        let second = cores[1].during(|| server.accept(SHARED, SIZE));
        cores[1].until(|_| store.connections() == 2);
        Pair { server, store, peers: [first, second], cores }
    }

    /// Writes a block on the connection with this number, which the server acknowledges.
    fn write(&mut self, number: usize, block: u64) {
        let id = self.cores[number].write(block, 1, false);
        let asked = acknowledge(&mut self.peers[number], WRITE);
        assert_eq!(asked.offset, block * BLOCK as u64);
        assert_eq!(self.cores[number].outcome(id), DONE);
    }

    fn losses(&mut self) -> [u64; 2] {
        self.cores.each_mut().map(|core| core.0.lane.losses())
    }
}

/// Takes the next request, which has this command, and reports its success.
fn acknowledge(peer: &mut Peer, command: u16) -> Asked {
    let asked = peer.asked();
    assert_eq!(asked.command, command);
    peer.reply(&asked, 0, &[]);
    asked
}

/// Has it check its connections; it must not have ended.
fn is_open(core: &mut Core, id: OpId) {
    for _ in 0..10 {
        core.look();
    }
    assert!(!core.has_ended(id));
}

#[test]
fn a_flush_is_complete_when_each_connection_has_flushed_what_was_written_on_it() {
    let mut pair = Pair::new(options());
    pair.write(0, 1);
    pair.write(1, 2);
    let flush = pair.cores[0].begin(&Op::Flush);
    acknowledge(&mut pair.peers[0], FLUSH);
    is_open(&mut pair.cores[0], flush);
    acknowledge(&mut pair.peers[1], FLUSH);
    assert_eq!(pair.cores[0].outcome(flush), DONE);
    // What is durable is not flushed again.
    pair.write(0, 1);
    let flush = pair.cores[0].begin(&Op::Flush);
    acknowledge(&mut pair.peers[0], FLUSH);
    assert_eq!(pair.cores[0].outcome(flush), DONE);
    pair.peers[1].has_nothing();
    // Whichever core begins it.
    pair.write(0, 1);
    let flush = pair.cores[1].begin(&Op::Flush);
    acknowledge(&mut pair.peers[0], FLUSH);
    assert_eq!(pair.cores[1].outcome(flush), DONE);
    pair.peers[1].has_nothing();
    assert_eq!(pair.losses(), [0, 0]);
}

#[test]
fn a_flush_fails_that_one_of_the_connections_fails() {
    for failing in [0, 1] {
        let mut pair = Pair::new(options());
        pair.write(0, 1);
        pair.write(1, 2);
        let flush = pair.cores[0].begin(&Op::Flush);
        let asked = pair.peers.each_mut().map(Peer::asked);
        pair.peers[failing].reply(&asked[failing], 5, &[]);
        is_open(&mut pair.cores[0], flush);
        pair.peers[1 - failing].reply(&asked[1 - failing], 0, &[]);
        assert_eq!(pair.cores[0].outcome(flush), Err(StoreError::WriteFailed));
        assert_eq!(pair.losses(), [1, 1]);
    }
}

/// One connection of a pair was lost, and is opened again: a server has accepted that. Returns its end.
fn reopened(server: &Server, store: &NbdStore, core: &mut Core, size: u64) -> Peer {
    core.until(|_| store.connections() == 1);
    let mut peer = core.during(|| server.accept(SHARED, size));
    assert_eq!(core.during(|| peer.asked()).command, DISCONNECT);
    core.look();
    peer
}

#[test]
fn nothing_is_sent_to_what_may_be_another_server_before_older_connections_have_ended_and_are_flushed() {
    let mut pair = Pair::new(options());
    pair.write(0, 1);
    let Pair { server, store, peers: [mut old, ended], cores: [mut one, mut other] } = pair;
    let slow = one.write(2, 1, false);
    let asked = old.asked();
    drop(ended);
    reopened(&server, &store, &mut other, SIZE);
    let newer = other.write(3, 1, false);
    is_open(&mut other, newer);
    old.has_nothing();
    old.reply(&asked, 0, &[]);
    assert_eq!(one.outcome(slow), DONE);
    let flush = other.during(|| old.asked());
    assert_eq!(flush.command, FLUSH);
    is_open(&mut other, newer);
    old.has_nothing();
    old.reply(&flush, 0, &[]);
    assert_eq!(other.during(|| old.asked()).command, DISCONNECT);
    let mut new = other.during(|| server.accept(SHARED, SIZE));
    let asked = other.during(|| new.asked());
    assert_eq!((asked.command, asked.offset), (WRITE, 3 * BLOCK as u64));
    new.reply(&asked, 0, &[]);
    assert_eq!(other.outcome(newer), DONE);
    assert_eq!(other.0.lane.losses(), 0);
    let _second = other.during(|| server.accept(SHARED, SIZE));
    other.until(|_| store.connections() == 2);
}

#[test]
fn a_flush_by_a_restarted_server_does_not_cover_a_connection_whose_loss_was_not_noticed() {
    let mut pair = Pair::new(options());
    pair.write(0, 1);
    // The server restarts. Only the other connection ends, and is opened again.
    let Pair { server, store, peers: [mut old, ended], cores: [mut one, mut other] } = pair;
    drop(ended);
    reopened(&server, &store, &mut other, SIZE);
    assert_eq!((one.0.lane.losses(), other.0.lane.losses()), (0, 0), "nothing was written on it");
    let flush = other.begin(&Op::Flush);
    assert_eq!(old.asked().command, FLUSH);
    is_open(&mut other, flush);
    assert!(one.0.lane.is_dirty());
    drop(old);
    // What was lost is reported to all before the flush is.
    other.until(|rig| rig.lane.losses() == 1);
    let mut new = other.during(|| server.accept(SHARED, SIZE));
    assert!(!other.has_ended(flush));
    let asked = other.during(|| new.asked());
    assert_eq!(asked.command, FLUSH);
    new.reply(&asked, 0, &[]);
    assert_eq!((other.outcome(flush), one.0.lane.losses()), (DONE, 1));
    new.has_nothing();
}

#[test]
fn a_flush_that_was_cancelled_is_not_sent_on_another_connection() {
    let mut pair = Pair::new(options());
    pair.write(0, 1);
    pair.write(1, 2);
    let flush = pair.cores[0].begin(&Op::Flush);
    let Pair { server: _server, store, mut peers, cores: [mut one, _other] } = pair;
    let asked = peers.each_mut().map(Peer::asked);
    one.0.lane.cancel(&mut one.0.io, flush);
    let [mut kept, ended] = peers;
    drop(ended);
    one.until(|_| store.connections() == 1);
    kept.has_nothing();
    kept.reply(&asked[0], 0, &[]);
    assert_eq!(one.outcome(flush), Err(StoreError::Cancelled));
}

#[test]
fn a_flush_that_a_server_does_not_begin_before_it_shuts_down_ends_after_the_loss_was_counted() {
    let mut pair = Pair::new(options());
    pair.write(0, 1);
    let Pair { server: _server, store, peers: [mut ending, mut kept], cores: [mut one, mut other] } = pair;
    let keeps_it_open = one.write(2, 1, false);
    let write = ending.asked();
    let flush = other.begin(&Op::Flush);
    let asked = ending.asked();
    ending.reply(&asked, 108, &[]);
    is_open(&mut other, flush);
    // Another connection could not flush what was written on this one.
    kept.has_nothing();
    ending.reply(&write, 0, &[]);
    assert_eq!(one.outcome(keeps_it_open), DONE);
    other.until(|_| store.connections() == 1);
    assert!(!other.has_ended(flush));
    assert_eq!(other.0.lane.losses(), 1);
    acknowledge(&mut kept, FLUSH);
    assert_eq!(other.outcome(flush), DONE);
}

#[test]
fn what_a_failed_flush_may_have_been_for_is_lost_though_another_one_has_succeeded_since() {
    let mut pair = Pair::new(options());
    let fails = pair.cores[0].begin(&Op::Flush);
    let failing = pair.peers[0].asked();
    pair.write(1, 1);
    let succeeds = pair.cores[1].begin(&Op::Flush);
    acknowledge(&mut pair.peers[1], FLUSH);
    assert_eq!(pair.cores[1].outcome(succeeds), DONE);
    pair.peers[0].reply(&failing, 5, &[]);
    assert_eq!(pair.cores[0].outcome(fails), Err(StoreError::WriteFailed));
    assert_eq!(pair.losses(), [1, 1]);
}

#[test]
fn what_a_lost_connection_had_is_sent_on_another_one_with_its_blocks_still_locked() {
    let pair = Pair::new(options());
    let Pair { server: _server, store, peers: [mut kept, mut ended], cores: [mut one, mut other] } = pair;
    let old = other.write(5, 1, false);
    let sent = ended.asked();
    let newer = one.write(5, 2, false);
    drop(ended);
    // Whichever core notices.
    one.until(|_| store.connections() == 1);
    let again = kept.asked();
    assert_eq!((again.offset, &again.data), (sent.offset, &sent.data));
    one.look();
    assert!(!one.has_ended(newer));
    kept.has_nothing();
    kept.reply(&again, 0, &[]);
    assert_eq!(other.outcome(old), DONE);
    one.look();
    let next = acknowledge(&mut kept, WRITE);
    assert_eq!((next.offset, next.data[0]), (sent.offset, 2));
    assert_eq!(one.outcome(newer), DONE);
    assert_eq!(one.0.lane.losses(), 0, "nothing had been acknowledged");
}

#[test]
fn what_the_server_has_not_ended_stays_with_its_connection_while_others_are_used() {
    let mut pair = Pair::new(options());
    let hangs = pair.cores[1].write(5, 1, false);
    let sent = pair.peers[1].asked();
    pair.write(0, 6);
    is_open(&mut pair.cores[1], hangs);
    pair.peers[0].has_nothing();
    pair.peers[1].reply(&sent, 0, &[]);
    assert_eq!(pair.cores[1].outcome(hangs), DONE);
}

#[test]
fn what_was_cancelled_is_not_sent_on_another_connection() {
    let Pair { store, peers: [mut kept, mut ended], cores: [_one, mut other], .. } = Pair::new(options());
    let sent = other.write(5, 1, false);
    ended.asked();
    other.0.lane.cancel(&mut other.0.io, sent);
    drop(ended);
    other.until(|_| store.connections() == 1);
    assert_eq!(other.outcome(sent), Err(StoreError::Cancelled));
    kept.has_nothing();
}

#[test]
fn an_export_that_has_another_size_on_one_connection_is_not_used_there_while_others_are_open() {
    let server = Server::new();
    let (store, mut first) = server.open(SHARED, options());
    let mut cores = [Core::on(&store), Core::on(&store)];
    for core in &mut cores {
        let flush = core.begin(&Op::Flush);
        acknowledge(&mut first, FLUSH);
        assert_eq!(core.outcome(flush), DONE);
    }
    let core = &mut cores[1];
    for _ in 0..2 {
        let mut refused = core.during(|| server.accept(SHARED, 2 * SIZE));
        assert_eq!(core.during(|| refused.asked()).command, DISCONNECT);
        assert_eq!((store.connections(), store.traits().size_bytes), (1, SIZE));
    }
    drop(first);
    let _new = core.during(|| server.accept(SHARED, 2 * SIZE));
    core.until(|_| store.traits().size_bytes == 2 * SIZE);
}

#[test]
fn a_size_that_a_restart_has_changed_is_noticed_though_another_connection_stays() {
    let Pair { server, store, peers: [mut kept, ended], cores: [_one, mut other] } = Pair::new(options());
    drop(ended);
    reopened(&server, &store, &mut other, 2 * SIZE);
    assert_eq!(other.during(|| kept.asked()).command, DISCONNECT);
    let _new = other.during(|| server.accept(SHARED, 2 * SIZE));
    other.until(|_| store.traits().size_bytes == 2 * SIZE);
}

#[test]
fn a_core_that_never_calls_takes_no_connection_from_those_that_do() {
    let server = Server::new();
    let (store, mut first) = server.open_by(&two(&server), SHARED, options());
    let mut cores = [Core::on(&store), Core::on(&store), Core::on(&store)];
    let [one, _idle, other] = &mut cores;
    for core in [&mut *one, &mut *other] {
        let flush = core.begin(&Op::Flush);
        acknowledge(&mut first, FLUSH);
        assert_eq!(core.outcome(flush), DONE);
    }
    let mut second = other.during(|| server.accept(SHARED, SIZE));
    other.until(|_| store.connections() == 2);
    for (core, peer) in [(one, &mut first), (other, &mut second)] {
        let write = core.write(1, 1, false);
        acknowledge(peer, WRITE);
        assert_eq!(core.outcome(write), DONE);
    }
}

/// The export's URL, for two connections.
fn two(server: &Server) -> NbdUrl {
    NbdUrl::parse(&format!("nbd+unix:///disk?socket={}&connections=2", server.path.display())).expect("a URL")
}

#[test]
fn without_the_permission_of_the_server_or_of_the_user_there_is_one_connection() {
    for (flags, options_of_url) in [(CACHED, ""), (SHARED, "&connections=1")] {
        let server = Server::new();
        let url =
            NbdUrl::parse(&format!("nbd+unix:///disk?socket={}{options_of_url}", server.path.display()));
        let (store, mut peer) = server.open_by(&url.expect("a URL"), flags, options());
        let mut cores = [Core::on(&store), Core::on(&store)];
        for core in &mut cores {
            let flush = core.begin(&Op::Flush);
            acknowledge(&mut peer, FLUSH);
            assert_eq!(core.outcome(flush), DONE);
            for _ in 0..10 {
                core.look();
            }
        }
        server.listener.set_nonblocking(true).expect("a mode");
        assert!(server.listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    }
}

#[test]
fn a_server_that_comes_back_without_the_permission_gets_one_connection() {
    let Pair { server, store, peers, cores: [mut one, mut other] } = Pair::new(options());
    drop(peers);
    let mut only = other.during(|| server.accept(CACHED, SIZE));
    other.until(|_| store.connections() == 1);
    for core in [&mut one, &mut other] {
        let write = core.write(1, 1, false);
        acknowledge(&mut only, WRITE);
        assert_eq!(core.outcome(write), DONE);
        core.look();
    }
    server.listener.set_nonblocking(true).expect("a mode");
    assert!(server.listener.accept().is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
}

#[test]
fn a_connection_that_hangs_is_no_reason_to_open_the_export_again_before_it_has_ended() {
    let pair = Pair::new(Options { give_up_after: SHORT, ..options() });
    let Pair { server, store, peers: [first, mut hangs], cores: [one, mut other] } = pair;
    let old = other.write(5, 1, false);
    hangs.asked();
    assert_eq!(other.outcome(old), Err(StoreError::Unavailable));
    drop((one, other, store, first));
    let url = server.url();
    let is_refused =
        || nbd::open(&url, options()).is_err_and(|error| error.to_string().contains("has not answered"));
    assert!(is_refused());
    std::thread::scope(|scope| {
        scope.spawn(|| while is_refused() {});
        drop(hangs);
        server.accept(SHARED, SIZE);
    });
}

/// Writes of several cores, which are read back by the others, while this happens to the server.
fn all_cores_see_what_each_has_written(mut server: NbdServer, meanwhile: impl FnOnce(&mut NbdServer)) {
    const CORES: u64 = 3;
    const ROUNDS: u64 = 60;
    let store = nbd::open(&server.url(), options()).expect("it opens");
    let (barrier, most) = (std::sync::Barrier::new(CORES as usize), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..CORES {
            let (store, barrier, most) = (&store, &barrier, &most);
            scope.spawn(move || {
                let (mut core, mut random) = (Core::on(store), Random::new(number + 1));
                for round in 0..ROUNDS {
                    let shape = |of: u64| {
                        let mut random = Random::new(1000 * round + of);
                        let len = 1 + random.below(100_000) as usize;
                        (of * SIZE + random.below(SIZE - len as u64), random.bytes(len))
                    };
                    let (at, data) = shape(number);
                    let from = core.0.room(1, data.len());
                    core.0.fill(&from, &data);
                    let write = core.begin(&Op::Write { offset: at, from, durable: false, atomic: false });
                    assert_eq!(core.outcome(write), DONE);
                    if random.below(4) == 0 {
                        let flush = core.begin(&Op::Flush);
                        assert_eq!(core.outcome(flush), DONE);
                    }
                    barrier.wait();
                    let (at, data) = shape((number + 1) % CORES);
                    let into = core.0.room(0, data.len());
                    let read = core.begin(&Op::Read { offset: at, into });
                    assert_eq!(core.outcome(read), DONE);
                    assert!(core.0.bytes(&into) == data, "round {round}: {} bytes at {at}", data.len());
                    most.fetch_max(store.connections(), Ordering::Relaxed);
                    barrier.wait();
                }
                // They may not have been open before.
                core.until(|_| store.connections() == CORES as usize);
            });
        }
        meanwhile(&mut server);
    });
}

fn kill_twice(server: &mut NbdServer) {
    for _ in 0..2 {
        server.kill();
        server.restart();
    }
}

#[test]
fn writes_are_seen_on_all_connections_to_qemu_nbd() {
    let images = directory();
    let image = sparse(&images, 16 << 20);
    all_cores_see_what_each_has_written(NbdServer::qemu(&image, &["--shared=4"]), |_| {});
    all_cores_see_what_each_has_written(NbdServer::qemu_tcp(&image, &["--shared=4"]), kill_twice);
}

#[test]
fn writes_are_seen_on_all_connections_to_nbdkit() {
    let images = directory();
    let image = sparse(&images, 16 << 20);
    let image = image.to_str().expect("UTF-8");
    all_cores_see_what_each_has_written(NbdServer::nbdkit(&["file", image]), kill_twice);
    all_cores_see_what_each_has_written(
        NbdServer::nbdkit(&["--filter=multi-conn", "memory", "16M", "multi-conn-mode=emulate"]),
        |_| {},
    );
}

#[test]
fn a_server_that_admits_one_client_is_used_by_all_cores_all_the_same() {
    let images = directory();
    // It permits several connections to what is read only, and lets the second one wait.
    let server = NbdServer::qemu(&sparse(&images, 16 << 20), &["--read-only", "--shared=1"]);
    let options = Options { give_up_after: Duration::from_secs(60), ..Options::new(Some(512), true) };
    let store = nbd::open(&server.url(), options).expect("it opens");
    let mut cores = [Core::on(&store), Core::on(&store)];
    for _ in 0..3 {
        for core in &mut cores {
            let into = core.0.room(0, BLOCK);
            let read = core.begin(&Op::Read { offset: 0, into });
            assert_eq!(core.outcome(read), DONE);
            assert!(core.0.bytes(&into).iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(store.connections(), 1);
}
