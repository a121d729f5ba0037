//! The connection to a server, which is reopened when it is lost, and the calls that it carries.
//!
//! All lanes of a store share it: whichever has something to send, or finds that something has arrived,
//! handles that for all, and never waits for the socket.

mod link;

use super::Options;
use super::open;
use super::socket::Socket;
use super::stream::Stream;
use crate::calls::{Call, Guard, Shared, Work};
use crate::error::OpenError;
use config::NbdUrl;
use link::{Link, Received, Sent};
use proto::nbd::{Answer, Export};
use rustix::io::Errno;
use scsi::storage::{CHUNK_BYTES, Found};
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::nbd::error::{EIO, ENOMEM, ENOSPC, EPERM, ESHUTDOWN};
use wire::nbd::transmission::{READ_ONLY, SEND_WRITE_ZEROES};

/// The pause between two attempts to connect, growing from the minimum to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A connection that ends sooner, without any answer, counts as part of the outage before it.
const LASTS_MIN: Duration = PAUSE_MAX;

/// Bytes received in one turn: others wait for their core meanwhile. A receive counts as at least a page.
const TURN_BYTES: usize = 2 << 20;
const RECEIVE_BYTES_MIN: usize = 4096;

/// What lanes watch of it.
pub(super) struct Watched {
    pub(super) socket: Arc<Socket>,
    /// There is more to send than the socket has accepted.
    pub(super) wants_room: bool,
}

/// A connection that survives restarts of its server.
pub(super) struct Connection {
    url: NbdUrl,
    pub(super) options: Options,
    pub(super) shared: Arc<Shared>,
    /// The size of the export when it was last opened.
    size: AtomicU64,
    flags: AtomicU16,
    allocates: AtomicBool,
    block_preferred: u32,
    block_minimum: u32,
    /// There has been no connection for too long.
    is_down: AtomicBool,
    state: Mutex<State>,
}

struct State {
    link: Option<Link>,
    /// Calls that have not been sent.
    waiting: VecDeque<Box<Call>>,
    /// What is held by writes that the server may still carry out, though their connection has failed.
    unsettled: Vec<Guard>,
    outage: Outage,
    writes: Writes,
}

/// While there is no connection.
struct Outage {
    /// When it began: the last one, while there is a connection.
    since: Instant,
    reason: String,
    next_try: Instant,
    pause: Duration,
    is_connecting: bool,
}

/// Acknowledged writes, and how many of them a flush has made durable.
#[derive(Default)]
struct Writes {
    acknowledged: u64,
    durable: u64,
}

impl Connection {
    /// An export that is open. What an earlier process has written to it may not be durable.
    ///
    /// # Errors
    /// When there is no memory for locks.
    pub(super) fn new(
        url: NbdUrl,
        options: Options,
        stream: Stream,
        export: Export,
    ) -> io::Result<Arc<Connection>> {
        let is_cached = export.flushes() && !export.is_read_only() && !options.read_only;
        Ok(Arc::new(Connection {
            url,
            options,
            shared: Shared::new()?,
            size: AtomicU64::new(export.size),
            flags: AtomicU16::new(export.flags),
            allocates: AtomicBool::new(export.allocation.is_some()),
            block_preferred: export.block_preferred,
            block_minimum: export.block_minimum,
            is_down: AtomicBool::new(false),
            state: Mutex::new(State {
                link: Some(Link::new(stream, export)),
                waiting: VecDeque::new(),
                unsettled: Vec::new(),
                outage: Outage {
                    since: Instant::now(),
                    reason: String::new(),
                    next_try: Instant::now(),
                    pause: PAUSE_MIN,
                    is_connecting: false,
                },
                writes: Writes { acknowledged: u64::from(is_cached), durable: 0 },
            }),
        }))
    }

    pub(super) fn url(&self) -> &NbdUrl {
        &self.url
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    pub(super) fn flags(&self) -> u16 {
        self.flags.load(Ordering::Relaxed)
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.options.read_only || self.flags() & READ_ONLY != 0
    }

    pub(super) fn clears(&self) -> bool {
        self.flags() & SEND_WRITE_ZEROES != 0
    }

    /// Whether the server reports allocation.
    pub(super) fn allocates(&self) -> bool {
        self.allocates.load(Ordering::Relaxed)
    }

    pub(super) fn block_preferred(&self) -> u32 {
        self.block_preferred
    }

    pub(super) fn block_minimum(&self) -> u32 {
        self.block_minimum
    }

    pub(super) fn is_lost(&self) -> bool {
        self.shared.has_abandoned() || self.is_down.load(Ordering::Relaxed)
    }

    /// Whether acknowledged writes are not durable yet.
    pub(super) fn is_dirty(&self) -> bool {
        self.state().writes.is_dirty()
    }

    /// Whether the server may still carry out something that changes the export.
    pub(super) fn may_change(&self) -> bool {
        let state = self.state();
        !state.unsettled.is_empty() || state.link.as_ref().is_some_and(Link::may_change)
    }

    /// Whether some of that was sent on a connection that has failed, so that it will never be known when it
    /// has ended.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.state().unsettled.is_empty()
    }

    /// Whether there is work to do even without operations.
    pub(super) fn wants_ticks(&self) -> bool {
        self.state().link.is_none()
    }

    /// Takes a call, which is sent by the next [`Connection::pump`].
    pub(super) fn start(&self, call: Box<Call>) {
        self.state().waiting.push_back(call);
    }

    /// This call is no longer waited for: it is not sent, nor resent.
    pub(super) fn withdraw(&self, number: u64) {
        let mut state = self.state();
        let is_it = |call: &Call| call.guard.as_ref().is_some_and(|guard| guard.number() == number);
        if let Some(at) = state.waiting.iter().position(|call| is_it(call)) {
            return state.waiting.remove(at).into_iter().for_each(|call| fail(call, Errno::CANCELED));
        }
        if let Some(sent) = state.link.iter_mut().flat_map(Link::sent_mut).find(|sent| is_it(&sent.call)) {
            sent.is_withdrawn = true;
        }
    }

    /// Receives what has arrived, and sends what is owed.
    pub(super) fn pump(&self) -> Option<Watched> {
        self.state().receive(self);
        self.send()
    }

    /// Sends what is owed.
    pub(super) fn send(&self) -> Option<Watched> {
        let mut state = self.state();
        state.send(self);
        let link = state.link.as_ref()?;
        Some(Watched { socket: link.socket.clone(), wants_room: link.owes() })
    }

    /// Checks deadlines, and tries to connect where there is no connection; to be called several times a second.
    pub(super) fn tick(self: &Arc<Self>) {
        let (mut state, now) = (self.state(), Instant::now());
        state.receive(self);
        let patience = self.options.give_up_after;
        // One that may still change something is kept until it has.
        if let Some(reason) = state.link.as_ref().and_then(|link| link.outlived(now, patience)) {
            state.link.iter_mut().for_each(Link::disconnect);
            state.lost(self, reason, true);
        }
        state.send(self);
        if state.link.is_some() {
            return;
        }
        let outage = &mut state.outage;
        let lasts = now.saturating_duration_since(outage.since);
        self.is_down.store(lasts >= patience, Ordering::Relaxed);
        if outage.is_connecting || now < outage.next_try {
            return;
        }
        outage.is_connecting = true;
        let connection = self.clone();
        let thread = std::thread::Builder::new().name("nbd-connect".into());
        let started = thread.spawn(move || {
            let opened = open::connect(&connection.url, &connection.options);
            connection.opened(opened);
        });
        if let Err(error) = started {
            outage.failed(format!("cannot start a thread to connect: {error}"));
        }
    }

    /// Why the export is unreachable, if it has been for long.
    pub(super) fn problem(&self) -> Option<String> {
        if self.is_down.load(Ordering::Relaxed) {
            return Some(self.state().outage.reason.clone());
        }
        self.shared.has_abandoned().then(|| "the server does not answer".to_owned())
    }

    /// An attempt to connect has ended.
    fn opened(&self, opened: Result<(Stream, Export), OpenError>) {
        let mut state = self.state();
        let (stream, export) = match opened {
            Ok(opened) => opened,
            Err(error) => return state.outage.failed(error.problem),
        };
        self.size.store(export.size, Ordering::Relaxed);
        self.flags.store(export.flags, Ordering::Relaxed);
        self.allocates.store(export.allocation.is_some(), Ordering::Relaxed);
        self.is_down.store(false, Ordering::Relaxed);
        state.link = Some(Link::new(stream, export));
        state.outage.is_connecting = false;
        reactor::limited!(
            "connections to NBD servers that are back",
            tracing::Level::INFO,
            store = %self.url,
            "the connection to the NBD server is back"
        );
        // Their lanes watch the new socket.
        state.waiting.iter().for_each(|call| call.wake());
        state.send(self);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An idle connection is ended in an orderly way.
impl Drop for Connection {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.link.iter_mut().for_each(Link::disconnect);
    }
}

impl Outage {
    fn failed(&mut self, reason: String) {
        (self.reason, self.is_connecting) = (reason, false);
        self.wait();
    }

    /// The next attempt has to wait, longer each time.
    fn wait(&mut self) {
        self.next_try = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl Writes {
    fn is_dirty(&self) -> bool {
        self.acknowledged > self.durable
    }
}

impl State {
    fn receive(&mut self, of: &Connection) {
        let mut left = TURN_BYTES;
        while let Some(link) = &mut self.link {
            if left == 0 && !link.stream.holds_bytes() {
                return;
            }
            match link.receive() {
                Received::Nothing => return,
                Received::Something(bytes) => left = left.saturating_sub(bytes.max(RECEIVE_BYTES_MIN)),
                Received::Violation(violation) => {
                    reactor::limited!(
                        "violations of NBD",
                        tracing::Level::ERROR,
                        store = %of.url,
                        "the server violates the NBD protocol, and is disconnected: {violation}"
                    );
                }
                Received::End { reason, is_settled } => return self.lost(of, &reason, is_settled),
            }
            let mut finished = std::mem::take(&mut link.finished);
            finished.drain(..).for_each(|(sent, outcome)| self.finished(of, sent, outcome));
            if let Some(link) = &mut self.link {
                link.finished = finished;
            }
        }
    }

    /// A request has been answered.
    fn finished(&mut self, of: &Connection, sent: Sent, outcome: Result<Answer, u32>) {
        let Sent { mut call, flushes, written, is_through, is_withdrawn, .. } = sent;
        let answer = match outcome {
            // It was not carried out; it is retried on the next server.
            Err(ESHUTDOWN) if !is_withdrawn => {
                self.link.iter_mut().for_each(|link| link.is_ending = true);
                return self.waiting.push_front(call);
            }
            Err(number) => {
                self.link.iter_mut().for_each(|link| link.has_answered = true);
                // It may have been for what others have written, and no flush reports it again.
                if flushes || is_through && matches!(number, EIO | ENOSPC) {
                    self.lose(of, "the server failed to flush acknowledged writes: they may be lost");
                }
                let error = known(number, call.work);
                return fail(call, error);
            }
            Ok(answer) => answer,
        };
        self.link.iter_mut().for_each(|link| link.has_answered = true);
        if flushes {
            self.writes.durable = self.writes.durable.max(written);
        } else if changes(call.work) && !is_through {
            self.writes.acknowledged += 1;
            if is_durable(call.work) {
                if is_withdrawn {
                    return fail(call, Errno::CANCELED);
                }
                // The server cannot do both in one request.
                return self.request(of, call, true).unwrap_or_else(|call| self.waiting.push_front(call));
            }
        }
        call.answer = match call.work {
            Work::Read { .. } => i64::try_from(call.data.len()).unwrap_or(i64::MAX),
            Work::Write { .. }
            | Work::Zero { .. }
            | Work::Extent { .. }
            | Work::CompareAndWrite { .. }
            | Work::Flush => 0,
        };
        call.found = match answer {
            Answer::Done => Found::Nothing,
            Answer::Extent { len, is_hole } => Found::Extent { mapped: !is_hole, len: len.into() },
        };
        Call::answered(call);
    }

    /// Requests what a call has to do, or, once it has been done, that it is made durable; returns the call
    /// if the connection accepts no more.
    fn request(&mut self, of: &Connection, mut call: Box<Call>, flushes: bool) -> Result<(), Box<Call>> {
        let Some(link) = &mut self.link else { return Err(call) };
        match call.work {
            Work::CompareAndWrite { .. } => fail(call, Errno::INVAL),
            // All writes were durable.
            Work::Flush if !link.export.flushes() => Call::answered(call),
            // The previous server could do more: what is longer than this one accepts is retried in shorter
            // parts.
            Work::Zero { len, .. } if !link.export.clears() && len > CHUNK_BYTES.into() => {
                fail(call, Errno::AGAIN);
            }
            Work::Extent { len, .. } if link.export.allocation.is_none() => {
                call.found = Found::Extent { mapped: true, len };
                Call::answered(call);
            }
            _ => return link.request(call, flushes, self.writes.acknowledged, of.block_minimum),
        }
        Ok(())
    }

    /// Sends what is owed, as far as the socket accepts it.
    fn send(&mut self, of: &Connection) {
        loop {
            while self.link.as_ref().is_some_and(Link::has_room) {
                let Some(call) = self.waiting.pop_front() else { break };
                if let Err(call) = self.request(of, call, false) {
                    self.waiting.push_front(call);
                    break;
                }
            }
            let Some(link) = self.link.as_mut().filter(|link| link.owes()) else { return };
            match link.send() {
                Received::Something(_) => {}
                Received::Nothing | Received::Violation(_) => return,
                Received::End { reason, is_settled } => return self.lost(of, &reason, is_settled),
            }
        }
    }

    /// The connection has ended. `is_settled`: the server has ended it, and will carry out nothing more of
    /// what was sent.
    fn lost(&mut self, of: &Connection, reason: &str, is_settled: bool) {
        let Some(mut link) = self.link.take() else { return };
        // Wakes lanes that watch it.
        link.socket.shutdown(Shutdown::Both);
        let reason = link.fault.take().unwrap_or_else(|| reason.to_owned());
        let mut count = 0;
        for Sent { mut call, is_withdrawn, .. } in link.take_sent() {
            if changes(call.work) && !is_settled {
                // It may still be carried out, after newer writes: nothing is written there any more.
                self.unsettled.extend(call.guard.as_mut().map(Guard::part));
                count += 1;
                fail(call, Errno::TIMEDOUT);
            } else if is_withdrawn {
                fail(call, Errno::CANCELED);
            } else {
                self.waiting.push_front(call);
            }
        }
        if count > 0 {
            tracing::error!(
                store = %of.url,
                count,
                "the server may still carry out writes of a connection that has failed: their blocks stay not ready until this \
                 daemon is restarted"
            );
        }
        self.lose(
            of,
            "writes that were acknowledged and not flushed may be lost: the server may have restarted",
        );
        self.writes.durable = self.writes.acknowledged;
        reactor::limited!(
            "connections to NBD servers that are lost",
            tracing::Level::WARN,
            store = %of.url,
            reason,
            "the connection to the NBD server is lost"
        );
        self.outage.reason = reason;
        if link.has_answered || link.since.elapsed() >= LASTS_MIN {
            let now = Instant::now();
            (self.outage.since, self.outage.next_try, self.outage.pause) = (now, now, PAUSE_MIN);
        } else {
            self.outage.wait();
        }
    }

    /// Acknowledged writes that were not flushed may be lost, if there are any.
    fn lose(&self, of: &Connection, why: &str) {
        if self.writes.is_dirty() {
            of.options.losses.fetch_add(1, Ordering::Relaxed);
            reactor::limited!("losses of NBD exports", tracing::Level::ERROR, store = %of.url, "{why}");
        }
    }
}

/// Whether it changes the medium.
fn changes(work: Work) -> bool {
    match work {
        Work::Write { .. } | Work::Zero { .. } | Work::CompareAndWrite { .. } => true,
        Work::Read { .. } | Work::Extent { .. } | Work::Flush => false,
    }
}

/// Whether what it changes is durable before it ends.
fn is_durable(work: Work) -> bool {
    match work {
        Work::Write { durable, .. } | Work::Zero { durable, .. } => durable,
        Work::Read { .. } | Work::Extent { .. } | Work::CompareAndWrite { .. } | Work::Flush => false,
    }
}

/// An error of the server. Numbers that the protocol does not define count as EINVAL (section "Error
/// values").
fn known(number: u32, work: Work) -> Errno {
    match number {
        EPERM if changes(work) => Errno::ROFS,
        EPERM => Errno::PERM,
        EIO => Errno::IO,
        ENOMEM => Errno::NOMEM,
        ENOSPC => Errno::NOSPC,
        ESHUTDOWN => Errno::SHUTDOWN,
        _ => Errno::INVAL,
    }
}

fn fail(mut call: Box<Call>, error: Errno) {
    call.answer = -i64::from(error.raw_os_error());
    Call::answered(call);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Mailbox;
    use crate::nbd::NbdStore;
    use crate::stripes::{Hold, Mode};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use wire::nbd::transmission::{HAS_FLAGS, SEND_FLUSH};
    use wire::nbd::{Layout as _, Request, SIMPLE_REPLY_MAGIC};

    const LEN: u64 = 4096;

    /// A connection, and its server's end.
    fn connection() -> (Arc<Connection>, UnixStream) {
        connection_to("disk")
    }

    /// The same to an export of this name.
    fn connection_to(export: &str) -> (Arc<Connection>, UnixStream) {
        let url = NbdUrl::parse(&format!("nbd+unix:///{export}?socket=/nonexistent")).unwrap();
        let (stream, export, theirs) = plain(1 << 20);
        (Connection::new(url, Options::new(Some(512), false), stream, export).unwrap(), theirs)
    }

    /// One end of a connection, an export of this size with minimal features, and the server's end.
    pub(super) fn plain(size: u64) -> (Stream, Export, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let export = Export {
            size,
            flags: HAS_FLAGS | SEND_FLUSH,
            block_minimum: 1,
            block_preferred: 4096,
            payload_maximum: 1 << 25,
            structured: false,
            allocation: None,
        };
        let socket = Socket::Unix(ours);
        socket.never_block().unwrap();
        (Stream::plain(socket), export, theirs)
    }

    fn guard(of: &Connection) -> Guard {
        Guard::new(&of.shared, Hold::new(Mode::Exclusive, 0, LEN))
    }

    fn write(to: &Arc<Mailbox>, offset: u64, durable: bool) -> Box<Call> {
        let mut call = Call::new(to);
        call.work = Work::Write { offset, durable };
        call.data = vec![1; LEN as usize];
        call
    }

    #[test]
    fn after_a_violation_the_end_is_the_servers_and_not_that_of_our_own_half() {
        let (connection, mut server) = connection();
        let mail = Mailbox::new().unwrap();
        connection.start(write(&mail, 0, true));
        connection.start(write(&mail, LEN, false));
        connection.send();
        let mut request = [0; Request::BYTES + LEN as usize];
        server.read_exact(&mut request).unwrap();
        let cookie: [u8; 8] = *request[8..].first_chunk().unwrap();
        let reply = [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &cookie, b"this is no reply"].concat();
        server.write_all(&reply).unwrap();
        // The flush for what has to be durable is owed, and can no longer be sent.
        connection.pump();
        assert!(connection.state().link.is_some(), "the server may still write what it has");
        drop(server);
        connection.pump();
        let state = connection.state();
        assert!(state.link.is_none() && state.waiting.len() == 2, "now it is sent again");
    }

    #[test]
    fn a_server_that_ends_each_connection_at_once_is_away_and_left_alone_for_longer_each_time() {
        for has_answered in [false, true] {
            let (connection, _server) = connection();
            let mut state = connection.state();
            let since = state.outage.since;
            state.link.as_mut().unwrap().has_answered = has_answered;
            state.lost(&connection, "the server has closed it", true);
            assert_eq!(state.outage.since == since, !has_answered);
            assert_eq!(state.outage.pause == PAUSE_MIN, has_answered);
        }
    }

    #[test]
    fn after_a_failure_that_proves_nothing_writes_are_not_sent_again_and_their_blocks_stay_locked() {
        for is_settled in [false, true] {
            let (connection, _server) = connection();
            let mail = Mailbox::new().unwrap();
            let mut call = write(&mail, 0, false);
            let mut held = guard(&connection);
            assert!(held.try_lock(None));
            call.guard = Some(held);
            connection.start(call);
            connection.send();
            connection.state().lost(&connection, "connection timed out", is_settled);
            let (mut answered, mut newer) = (Vec::new(), guard(&connection));
            mail.take(&mut answered);
            if is_settled {
                assert!(answered.is_empty() && connection.state().waiting.len() == 1, "it is sent again");
            } else {
                assert_eq!(answered[0].answer, -i64::from(Errno::TIMEDOUT.raw_os_error()));
                assert!(connection.state().waiting.is_empty());
            }
            drop(answered);
            assert!(!newer.try_lock(None), "nothing newer is written there");
            assert!(!connection.shared.has_abandoned(), "other blocks are used as before");
        }
    }

    #[test]
    fn an_export_is_not_opened_again_after_a_failure_that_proves_nothing() {
        for fails_first in [true, false] {
            let (connection, _server) = connection_to(if fails_first { "failed" } else { "fails-later" });
            let url = connection.url().clone();
            let mail = Mailbox::new().unwrap();
            let mut call = write(&mail, 0, false);
            call.guard = Some(guard(&connection));
            connection.start(call);
            connection.send();
            let store = NbdStore::new(connection.clone());
            let fail = || connection.state().lost(&connection, "connection timed out", false);
            if fails_first {
                fail();
                drop(store);
            } else {
                drop(store);
                let error = open::open(&url, Options::new(None, false)).err().unwrap().to_string();
                assert!(error.contains("wait until it does"), "{error}");
                fail();
            }
            while Arc::strong_count(&connection) > 1 {
                std::thread::yield_now();
            }
            let open = |read_only| open::open(&url, Options::new(None, read_only)).err().unwrap().to_string();
            let error = open(false);
            assert!(error.contains("restart this daemon"), "{error}");
            assert!(open(true).contains("cannot reach the server"), "nothing is overwritten by reading");
        }
    }
}
