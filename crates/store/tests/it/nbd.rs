//! The guarantees of NBD exports when these fail, with a server controlled by each test.

use crate::support::nbd::NbdServer;
use crate::support::rig::Rig;
use crate::support::{Kernel as _, Random, directory, sparse};
use config::NbdUrl;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use reactor::uring::Uring;
use scsi::storage::{Found, StoreError};
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use store::lane::{Op, OpId, Store as _};
use store::nbd::{self, NbdStore, Options};
use tempfile::TempDir;
use wire::nbd::transmission::{HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_WRITE_ZEROES};
use wire::nbd::{Layout as _, Request};

pub(crate) const SIZE: u64 = 1 << 20;
pub(crate) const BLOCK: usize = 4096;
pub(crate) const CACHED: u16 = HAS_FLAGS | SEND_FLUSH | SEND_WRITE_ZEROES;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
const WRITE_ZEROES: u16 = 6;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;

pub(crate) const DONE: Result<Found, StoreError> = Ok(Found::Nothing);

/// Longer than anything takes here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long operations wait in tests of those that time out.
pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// A socket on which a test accepts connections.
pub(crate) struct Server {
    pub(crate) listener: UnixListener,
    _directory: TempDir,
    pub(crate) path: PathBuf,
}

/// A connection, as its server sees it.
pub(crate) struct Peer(pub(crate) UnixStream);

/// A request, and the data of a write.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) command: u16,
    pub(crate) flags: u16,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) cookie: u64,
    pub(crate) data: Vec<u8>,
}

impl Server {
    pub(crate) fn new() -> Server {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("socket");
        Server { listener: UnixListener::bind(&path).expect("a socket"), _directory: directory, path }
    }

    pub(crate) fn url(&self) -> NbdUrl {
        NbdUrl::parse(&format!("nbd+unix:///disk?socket={}", self.path.display())).expect("a URL")
    }

    /// Opens its export, which has these flags.
    pub(crate) fn open(&self, flags: u16, options: Options) -> (Arc<NbdStore>, Peer) {
        self.open_by(&self.url(), flags, options)
    }

    /// The same by another URL.
    pub(crate) fn open_by(&self, url: &NbdUrl, flags: u16, options: Options) -> (Arc<NbdStore>, Peer) {
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| nbd::open(url, options).expect("it opens"));
            let peer = self.accept(flags, SIZE);
            (opening.join().expect("no panic"), peer)
        })
    }

    /// Accepts a connection, and negotiates: simple replies, and this export.
    pub(crate) fn accept(&self, flags: u16, size: u64) -> Peer {
        let (stream, _) = self.listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut peer = Peer(stream);
        peer.send(b"NBDMAGICIHAVEOPT\0\x03");
        assert_eq!(peer.take(4), [0, 0, 0, 3]);
        assert_eq!(peer.option(), 8);
        peer.answer(8, 1 << 31 | 1, &[]);
        assert_eq!(peer.option(), 7);
        let mut info = vec![0, 0];
        info.extend(size.to_be_bytes());
        info.extend(flags.to_be_bytes());
        peer.answer(7, 3, &info);
        peer.answer(7, 1, &[]);
        peer
    }
}

impl Peer {
    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("it is sent");
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).expect("it comes");
        bytes
    }

    fn option(&mut self) -> u32 {
        let head = self.take(16);
        let [option, len] = [8, 12].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()));
        self.take(len as usize);
        option
    }

    fn answer(&mut self, option: u32, kind: u32, data: &[u8]) {
        let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        [option, kind, data.len() as u32].iter().for_each(|word| reply.extend(word.to_be_bytes()));
        reply.extend(data);
        self.send(&reply);
    }

    /// The next request.
    pub(crate) fn asked(&mut self) -> Asked {
        let bytes = self.take(Request::BYTES);
        let request = Request::view(&bytes).expect("a request");
        assert_eq!(request.magic.get(), wire::nbd::REQUEST_MAGIC);
        let (command, len) = (request.command.get(), request.len.get());
        let data = if command == WRITE { self.take(len as usize) } else { Vec::new() };
        let (flags, offset, cookie) = (request.flags.get(), request.offset.get(), request.cookie.get());
        Asked { command, flags, offset, len, cookie, data }
    }

    pub(crate) fn reply(&mut self, asked: &Asked, error: u32, data: &[u8]) {
        let mut reply = wire::nbd::SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend(error.to_be_bytes());
        reply.extend(asked.cookie.to_be_bytes());
        reply.extend(data);
        self.send(&reply);
    }

    /// Asserts that nothing more has arrived.
    pub(crate) fn has_nothing(&mut self) {
        self.0.set_nonblocking(true).expect("a mode");
        let come = self.0.read(&mut [0; 1]);
        assert!(come.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
        self.0.set_nonblocking(false).expect("a mode");
    }
}

/// A core with one lane.
pub(crate) struct Core(pub(crate) Rig<Uring>);

impl Core {
    pub(crate) fn on(store: &Arc<NbdStore>) -> Core {
        Core(Rig::new(Uring::start(), store))
    }

    /// Begins a write of a block filled with this byte, which is sent.
    pub(crate) fn write(&mut self, block: u64, byte: u8, durable: bool) -> OpId {
        let from = self.0.room((byte % 2).into(), BLOCK);
        self.0.fill(&from, &[byte; BLOCK]);
        self.begin(&Op::Write { offset: block * BLOCK as u64, from, durable, atomic: false })
    }

    pub(crate) fn begin(&mut self, op: &Op) -> OpId {
        let id = self.0.start(op);
        self.0.poll();
        id
    }

    /// Has the lane check deadlines until the condition holds.
    pub(crate) fn until(&mut self, mut holds: impl FnMut(&mut Rig<Uring>) -> bool) {
        let begin = Instant::now();
        while !holds(&mut self.0) {
            assert!(begin.elapsed() < PATIENCE, "it does not happen");
            self.look();
            std::thread::yield_now();
        }
    }

    /// Runs this on another thread meanwhile.
    pub(crate) fn during<T: Send>(&mut self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let acting = scope.spawn(act);
            self.until(|_| acting.is_finished());
            acting.join().expect("no panic")
        })
    }

    /// Has it check deadlines, and what has arrived.
    pub(crate) fn look(&mut self) {
        let Rig { io, lane, finished, .. } = &mut self.0;
        lane.tick(io, finished);
        self.0.poll();
    }

    /// How an operation ends.
    pub(crate) fn outcome(&mut self, id: OpId) -> Result<Found, StoreError> {
        self.until(|rig| rig.finished.iter().any(|(done, _)| *done == id));
        let at = self.0.finished.iter().position(|(done, _)| *done == id).expect("it has ended");
        self.0.finished.swap_remove(at).1
    }

    pub(crate) fn has_ended(&self, id: OpId) -> bool {
        self.0.finished.iter().any(|(done, _)| *done == id)
    }
}

pub(crate) fn options() -> Options {
    Options { give_up_after: PATIENCE, ..Options::new(Some(512), false) }
}

#[test]
fn what_is_acknowledged_was_acknowledged_by_the_server_and_durable_is_what_it_says() {
    for (flags, server_flags) in
        [("flush", CACHED), ("both", CACHED | SEND_FUA), ("FUA", HAS_FLAGS | SEND_FUA)]
    {
        let server = Server::new();
        let (store, mut peer) = server.open(server_flags, options());
        assert_eq!(store.traits().volatile_cache, flags != "FUA");
        let mut core = Core::on(&store);
        let plain = core.write(3, 1, false);
        let asked = peer.asked();
        assert_eq!(
            (asked.command, asked.offset, &asked.data[..]),
            (WRITE, 3 * BLOCK as u64, &[1; BLOCK][..])
        );
        // Without a flush to come, every write is durable.
        assert_eq!(asked.flags & FUA != 0, flags == "FUA");
        core.0.poll();
        assert!(!core.has_ended(plain), "the server has not answered");
        peer.reply(&asked, 0, &[]);
        assert_eq!(core.outcome(plain), DONE);

        let durable = core.write(4, 2, true);
        let asked = peer.asked();
        assert_eq!(asked.flags & FUA != 0, flags != "flush");
        peer.reply(&asked, 0, &[]);
        if flags == "flush" {
            core.look();
            let flush = peer.asked();
            assert_eq!((flush.command, flush.offset, flush.len), (FLUSH, 0, 0));
            assert!(!core.has_ended(durable));
            peer.reply(&flush, 0, &[]);
        }
        assert_eq!(core.outcome(durable), DONE);

        let flush = core.begin(&Op::Flush);
        if flags != "FUA" {
            let asked = peer.asked();
            assert_eq!(asked.command, FLUSH);
            peer.reply(&asked, 5, &[]);
            assert_eq!(core.outcome(flush), Err(StoreError::WriteFailed));
        } else {
            assert_eq!(core.outcome(flush), DONE);
            peer.has_nothing();
        }
    }
}

#[test]
fn ranges_are_cleared_by_the_server_or_by_zeros_that_are_written() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let mut core = Core::on(&store);
    let ops = [
        (Op::Zero { offset: 0, len: SIZE, unmap: false, durable: false }, NO_HOLE),
        (Op::Zero { offset: 0, len: SIZE, unmap: true, durable: false }, 0),
        (Op::Discard { offset: 0, len: SIZE }, 0),
    ];
    for (op, flags) in ops {
        let id = core.begin(&op);
        let asked = peer.asked();
        assert_eq!((asked.command, asked.flags, asked.len), (WRITE_ZEROES, flags, SIZE as u32));
        peer.reply(&asked, 0, &[]);
        assert_eq!(core.outcome(id), DONE);
    }
    assert!(store.traits().discards);

    let server = Server::new();
    let (store, mut peer) = server.open(HAS_FLAGS | SEND_FLUSH, options());
    assert!(!store.traits().discards);
    let mut core = Core::on(&store);
    let id = core.begin(&Op::Zero { offset: 512, len: 600 << 10, unmap: true, durable: false });
    let mut end = 512;
    for len in [256 << 10, 256 << 10, 88 << 10] {
        // More than the socket can hold.
        let asked = core.during(|| peer.asked());
        assert_eq!((asked.command, asked.offset, asked.data.len()), (WRITE, end, len));
        assert!(asked.data.iter().all(|byte| *byte == 0));
        end += len as u64;
        peer.reply(&asked, 0, &[]);
        core.look();
    }
    assert_eq!(core.outcome(id), DONE);
}

#[test]
fn errors_of_the_server_are_reported_as_what_they_are() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let mut core = Core::on(&store);
    let errors = [
        (1, StoreError::ReadOnly),
        (5, StoreError::WriteFailed),
        // Linux's EAGAIN and ECANCELED, which the protocol does not define.
        (11, StoreError::WriteFailed),
        (125, StoreError::WriteFailed),
        (12, StoreError::Busy),
        (22, StoreError::WriteFailed),
        (28, StoreError::NoSpace),
        (77_777, StoreError::WriteFailed),
    ];
    for (number, error) in errors {
        let id = core.write(0, 1, false);
        let asked = peer.asked();
        peer.reply(&asked, number, &[]);
        assert_eq!(core.outcome(id), Err(error));
    }
    let into = core.0.room(0, BLOCK);
    let id = core.begin(&Op::Read { offset: BLOCK as u64, into });
    let asked = peer.asked();
    peer.reply(&asked, 5, &[]);
    assert_eq!(core.outcome(id), Err(StoreError::ReadFailed { at: BLOCK as u64 }));

    let (store, _peer) = Server::new().open(CACHED | READ_ONLY, options());
    assert!(store.traits().read_only);
    let mut core = Core::on(&store);
    let id = core.write(0, 1, false);
    assert_eq!(core.outcome(id), Err(StoreError::ReadOnly));
}

#[test]
fn a_write_whose_connection_is_lost_is_sent_again_before_anything_newer_and_what_was_not_flushed_counts_as_lost()
 {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let (mut core, mut other) = (Core::on(&store), Core::on(&store));
    let losses = |core: &mut Core| core.0.lane.losses();
    let kept = core.write(9, 9, false);
    let asked = peer.asked();
    peer.reply(&asked, 0, &[]);
    assert_eq!((core.outcome(kept), losses(&mut core)), (DONE, 0));

    let old = core.write(5, 1, false);
    let into = core.0.room(1, BLOCK);
    let read = core.begin(&Op::Read { offset: 0, into });
    let sent = [peer.asked(), peer.asked()];
    assert_eq!(sent.each_ref().map(|asked| asked.command), [WRITE, READ]);
    let new = other.write(5, 2, false);
    drop(peer);
    core.until(|rig| rig.lane.losses() == 1);
    assert!(!core.has_ended(old) && !core.has_ended(read));
    let mut peer = core.during(|| server.accept(CACHED, SIZE));
    for before in &sent {
        let again = peer.asked();
        assert_eq!((again.command, again.offset, &again.data), (before.command, before.offset, &before.data));
        let data = if again.command == READ { &[7; BLOCK][..] } else { &[] };
        other.look();
        assert!(!other.has_ended(new));
        peer.reply(&again, 0, data);
    }
    assert_eq!((core.outcome(old), core.outcome(read)), (DONE, DONE));
    assert!(core.0.bytes(&into).iter().all(|byte| *byte == 7));
    other.look();
    let newer = peer.asked();
    assert_eq!((newer.offset, newer.data[0]), (sent[0].offset, 2));
    peer.reply(&newer, 0, &[]);
    assert_eq!((other.outcome(new), losses(&mut other)), (DONE, 1));
    // What is durable is not lost a second time.
    let flush = core.begin(&Op::Flush);
    let asked = peer.asked();
    peer.reply(&asked, 0, &[]);
    assert_eq!(core.outcome(flush), DONE);
    drop(peer);
    core.until(|rig| rig.lane.wants_ticks());
    assert_eq!(losses(&mut core), 1);
}

#[test]
fn a_server_that_hangs_keeps_the_blocks_of_what_it_was_sent_until_it_answers() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, Options { give_up_after: SHORT, ..options() });
    let (mut core, mut other) = (Core::on(&store), Core::on(&store));
    let old = core.write(5, 1, false);
    let asked = peer.asked();
    assert_eq!(core.outcome(old), Err(StoreError::Unavailable));
    assert!(store.refresh().is_err_and(|problem| problem.contains("does not answer")));
    let refused = other.write(6, 2, false);
    assert_eq!(other.outcome(refused), Err(StoreError::Unavailable), "it gets nothing more to do");
    peer.reply(&asked, 0, &[]);
    core.until(|_| store.refresh().is_ok());
    let new = other.write(5, 3, false);
    let newer = peer.asked();
    assert_eq!((newer.offset, newer.data[0]), (5 * BLOCK as u64, 3));
    peer.reply(&newer, 0, &[]);
    assert_eq!(other.outcome(new), DONE);
    assert_eq!(core.0.lane.in_flight(), 0);
}

#[test]
fn an_export_is_not_opened_again_while_its_server_may_still_write_what_it_was_sent_before() {
    for answers in [true, false] {
        let server = Server::new();
        let (store, mut peer) = server.open(CACHED, Options { give_up_after: SHORT, ..options() });
        let mut core = Core::on(&store);
        let old = core.write(5, 1, false);
        let asked = peer.asked();
        assert_eq!(core.outcome(old), Err(StoreError::Unavailable));
        drop((core, store));
        let url = server.url();
        let is_waited_for = || match nbd::open(&url, options()) {
            Ok(_) => false,
            Err(error) if error.to_string().contains("has not answered writes of an earlier use") => true,
            Err(error) => panic!("{error}"),
        };
        assert!(is_waited_for());
        std::thread::scope(|scope| {
            scope.spawn(|| while is_waited_for() {});
            if answers {
                peer.reply(&asked, 0, &[]);
            } else {
                drop(peer);
            }
            server.accept(CACHED, SIZE);
        });
    }
}

#[test]
fn what_was_cancelled_or_given_up_is_not_sent_when_the_server_is_back() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let mut core = Core::on(&store);
    let sent = core.write(1, 1, false);
    peer.asked();
    drop(peer);
    core.until(|rig| rig.lane.wants_ticks());
    let waits = core.write(2, 2, false);
    for id in [sent, waits] {
        core.0.lane.cancel(&mut core.0.io, id);
        assert_eq!(core.outcome(id), Err(StoreError::Cancelled));
    }
    let wanted = core.write(3, 3, false);
    let mut peer = core.during(|| server.accept(CACHED, SIZE));
    let asked = peer.asked();
    assert_eq!(asked.offset, 3 * BLOCK as u64);
    peer.reply(&asked, 0, &[]);
    assert_eq!(core.outcome(wanted), DONE);
    peer.has_nothing();
}

#[test]
fn a_server_that_breaks_the_protocol_is_left_and_nothing_is_lost_by_it() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let mut core = Core::on(&store);
    let done = core.write(1, 1, false);
    let pending = core.write(2, 2, false);
    let asked = [peer.asked(), peer.asked()];
    peer.reply(&asked[0], 0, &[]);
    peer.send(b"this is no reply");
    assert_eq!(core.outcome(done), DONE, "it was answered before");
    // Our half of the connection has ended; what it has sent may still be carried out until the server has
    // ended its own.
    assert_eq!(peer.0.read(&mut [0; 1]).expect("an end"), 0);
    core.0.poll();
    assert!(!core.has_ended(pending));
    drop(peer);
    let mut peer = core.during(|| server.accept(CACHED, SIZE));
    let again = peer.asked();
    assert_eq!((again.offset, &again.data), (asked[1].offset, &asked[1].data));
    peer.reply(&again, 0, &[]);
    assert_eq!(core.outcome(pending), DONE);
}

#[test]
fn a_connection_that_is_of_no_more_use_is_left_though_the_server_keeps_it() {
    let server = Server::new();
    let (store, mut idle) = server.open(CACHED, options());
    let mut core = Core::on(&store);
    idle.send(b"this is no reply");
    let mut peer = core.during(|| server.accept(CACHED, SIZE));
    // A server that is shut down has not carried it out.
    let id = core.write(1, 1, false);
    let asked = peer.asked();
    peer.reply(&asked, 108, &[]);
    let mut next = core.during(|| server.accept(CACHED, SIZE));
    assert_eq!(peer.asked().command, DISCONNECT);
    let again = next.asked();
    assert_eq!((again.offset, &again.data), (asked.offset, &asked.data));
    next.reply(&again, 0, &[]);
    assert_eq!(core.outcome(id), DONE);
}

#[test]
fn what_the_server_has_failed_to_make_durable_is_lost_to_every_lane() {
    for (durable, error) in [(false, 5), (true, 28)] {
        let server = Server::new();
        let (store, mut peer) = server.open(CACHED | SEND_FUA, options());
        let (mut core, mut other) = (Core::on(&store), Core::on(&store));
        let kept = core.write(1, 1, false);
        let asked = peer.asked();
        peer.reply(&asked, 0, &[]);
        assert_eq!(core.outcome(kept), DONE);
        let fails = if durable { other.write(2, 2, true) } else { other.begin(&Op::Flush) };
        let asked = peer.asked();
        peer.reply(&asked, error, &[]);
        assert!(other.outcome(fails).is_err());
        assert_eq!((core.0.lane.losses(), other.0.lane.losses()), (1, 1));
    }
}

#[test]
fn all_of_a_range_is_cleared_though_the_next_server_clears_more_at_a_time_or_less() {
    let zeros = |len| Op::Zero { offset: 0, len, unmap: true, durable: false };
    let server = Server::new();
    let (store, mut peer) = server.open(HAS_FLAGS | SEND_FLUSH, options());
    let mut core = Core::on(&store);
    let id = core.begin(&zeros(SIZE));
    core.during(|| peer.asked());
    drop(peer);
    let mut peer = core.during(|| server.accept(CACHED, SIZE));
    let mut end = 0;
    while end < SIZE {
        let asked = core.during(|| peer.asked());
        assert_eq!((asked.command, asked.offset), (WRITE_ZEROES, end));
        end += u64::from(asked.len);
        peer.reply(&asked, 0, &[]);
    }
    assert_eq!(core.outcome(id), DONE);

    let id = core.begin(&zeros(SIZE));
    assert_eq!(u64::from(peer.asked().len), SIZE);
    drop(peer);
    let mut peer = core.during(|| server.accept(HAS_FLAGS | SEND_FLUSH, SIZE));
    assert_eq!(core.outcome(id), Err(StoreError::Busy), "more than it takes at once");
    peer.has_nothing();
}

#[test]
fn a_durable_write_that_was_cancelled_is_not_flushed() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let mut core = Core::on(&store);
    let id = core.write(1, 1, true);
    let asked = peer.asked();
    core.0.lane.cancel(&mut core.0.io, id);
    peer.reply(&asked, 0, &[]);
    assert_eq!(core.outcome(id), Err(StoreError::Cancelled));
    peer.has_nothing();
}

#[test]
fn a_server_that_takes_forever_to_open_its_export_is_left() {
    let refused = |url: &NbdUrl| match nbd::open(url, options()) {
        Ok(_) => panic!("it opens"),
        Err(error) => error.to_string(),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let server = Server::new();
            let url = server.url();
            let opening = scope.spawn(move || refused(&url));
            let (mut stream, _) = server.listener.accept().expect("a connection");
            stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").expect("it is sent");
            // The head of a reply of 4096 bytes, and these one by one.
            let head =
                [&[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9][..], &[0, 0, 0, 8, 128, 0, 0, 1, 0, 0, 16, 0]];
            stream.write_all(&head.concat()).expect("it is sent");
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
            let error = opening.join().expect("no panic");
            assert!(error.contains("did not answer within"), "{error}");
        });
        scope.spawn(|| {
            let server = Server::new();
            rustix::net::listen(&server.listener, 0).expect("a queue of one");
            let _waits = UnixStream::connect(&server.path).expect("it has room");
            let error = refused(&server.url());
            assert!(error.contains("does not accept connections"), "{error}");
        });
    });
}

#[test]
fn a_size_that_has_changed_is_noticed_with_the_next_connection() {
    let server = Server::new();
    let (store, peer) = server.open(CACHED, options());
    assert_eq!(store.refresh(), Ok(None));
    drop(peer);
    let _peer = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| server.accept(CACHED, 2 * SIZE));
        let begin = Instant::now();
        let changed = loop {
            assert!(begin.elapsed() < PATIENCE, "it is not noticed");
            if let Some(traits) = store.refresh().expect("it has not been away for long") {
                break traits;
            }
            std::thread::yield_now();
        };
        assert_eq!(changed.size_bytes, 2 * SIZE);
        accepting.join().expect("no panic")
    });
    assert_eq!(store.refresh(), Ok(None));
}

#[test]
fn a_server_that_stays_away_makes_the_store_lost_and_its_return_brings_it_back() {
    let server = Server::new();
    let (store, peer) = server.open(CACHED, Options { give_up_after: SHORT, ..options() });
    let mut core = Core::on(&store);
    let Server { listener, _directory, path } = server;
    drop((listener, peer));
    let waits = core.write(1, 1, false);
    assert_eq!(core.outcome(waits), Err(StoreError::Unavailable));
    // The first attempt to reconnect may not have ended by then.
    core.until(|_| store.refresh().is_err_and(|problem| problem.contains("cannot reach the server")));
    std::fs::remove_file(&path).expect("the socket");
    let server = Server { listener: UnixListener::bind(&path).expect("a socket"), _directory, path };
    let _peer = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| server.accept(CACHED, SIZE));
        core.until(|_| store.refresh().is_ok());
        accepting.join().expect("no panic")
    });
    assert_eq!(store.traits().size_bytes, SIZE);
    assert_eq!(Options::new(None, false).losses.load(Ordering::Relaxed), 0);
}

#[test]
fn many_operations_of_two_cores_share_one_connection() {
    let server = Server::new();
    let (store, mut peer) = server.open(CACHED, options());
    let serving = std::thread::spawn(move || {
        let mut medium = vec![0u8; SIZE as usize];
        let mut head = [0; 1];
        while peer.0.peek_one(&mut head) {
            let asked = peer.asked();
            let range = asked.offset as usize..asked.offset as usize + asked.len as usize;
            match asked.command {
                WRITE => medium[range].copy_from_slice(&asked.data),
                READ => {
                    let data = medium[range].to_vec();
                    peer.reply(&asked, 0, &data);
                    continue;
                }
                2 => break,
                _ => {}
            }
            peer.reply(&asked, 0, &[]);
        }
    });
    std::thread::scope(|scope| {
        for number in 0..2u64 {
            let store = &store;
            scope.spawn(move || {
                let (mut core, mut random) = (Core::on(store), Random::new(number + 1));
                // Each has its own half.
                let base = number * SIZE / 2;
                for _ in 0..200 {
                    let len = 1 + random.below(100_000) as usize;
                    let at = base + random.below(SIZE / 2 - len as u64);
                    let data = random.bytes(len);
                    assert_eq!(core.0.write(at, &data), DONE);
                    assert!(core.0.read(at, len).expect("a read") == data, "{len} bytes at {at}");
                }
            });
        }
    });
    drop(store);
    serving.join().expect("no panic");
}

/// A directory with a CA certificate, and a server certificate for 127.0.0.1.
fn certificates() -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let authority = {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate")
    };
    let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).expect("a name");
    params.is_ca = IsCa::ExplicitNoCa;
    let key = KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, &authority).expect("a certificate");
    let files = [
        ("ca-cert.pem", authority.pem()),
        ("server-cert.pem", certificate.pem()),
        ("server-key.pem", key.serialize_pem()),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(directory.path().join(name), text).expect("written"));
    directory
}

#[test]
fn an_export_is_read_and_written_by_tls_and_not_without_it() {
    let (images, trusted, other) = (directory(), certificates(), certificates());
    let place = trusted.path().display();
    let object = format!("tls-creds-x509,id=tls0,endpoint=server,verify-peer=no,dir={place}");
    let options = ["--object", &object, "--tls-creds=tls0", "--shared=4"];
    let server = NbdServer::qemu_tcp(&sparse(&images, 16 << 20), &options);
    let by_tls = |directory: &TempDir| {
        let url = server.text().replace("nbd://", "nbds://");
        NbdUrl::parse(&format!("{url}?tls-certificates={}", directory.path().display())).expect("a URL")
    };
    let refused = |url: &NbdUrl| match nbd::open(url, crate::nbd::options()) {
        Ok(_) => panic!("it opens"),
        Err(error) => error.to_string(),
    };
    assert!(refused(&server.url()).contains("the server requires TLS; write nbds://"));
    assert!(refused(&by_tls(&other)).contains("TLS with the server failed"));
    let store = nbd::open(&by_tls(&trusted), crate::nbd::options()).expect("it opens");
    let (mut core, mut random) = (Core::on(&store), Random::new(3));
    for at in [0, 12_345, 1 << 20, 5 << 20] {
        let data = random.bytes(200_000);
        assert_eq!(core.0.write(at, &data), DONE);
        assert!(core.0.read(at, data.len()).expect("a read") == data);
    }
    assert_eq!(core.0.run(Op::Flush), DONE);
}

/// Whether there is more to come.
trait PeekOne {
    fn peek_one(&self, byte: &mut [u8; 1]) -> bool;
}

impl PeekOne for UnixStream {
    fn peek_one(&self, byte: &mut [u8; 1]) -> bool {
        let peeked = rustix::net::recv(self, &mut byte[..], rustix::net::RecvFlags::PEEK);
        peeked.is_ok_and(|(bytes, _)| bytes > 0)
    }
}
