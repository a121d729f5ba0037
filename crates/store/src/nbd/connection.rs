//! A connection to a server, which is reopened when it is lost, and the calls that it carries.
//!
//! Lanes share it: whichever has something to send, or finds that something has arrived, handles that for
//! all, and never waits for the socket.

mod link;

use super::common::{Common, Writes};
use super::open;
use super::socket::Socket;
use super::stream::Stream;
use crate::calls::{Call, Guard, Mailbox, Work};
use crate::error::OpenError;
use config::NbdUrl;
use link::{Link, Mark, Received, Sent};
use proto::nbd::{Answer, Export};
use rustix::io::Errno;
use scsi::storage::{CHUNK_BYTES, Found};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::nbd::error::{EIO, ENOMEM, ENOSPC, EPERM, ESHUTDOWN};

/// The pause between two attempts to connect, growing from the minimum to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The same where the server may admit no more: other clients wait in the same queue.
const PAUSE_OF_MORE_MAX: Duration = Duration::from_secs(60);

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
    common: Arc<Common>,
    /// Among those of its export.
    number: usize,
    /// It is open, and of use. Changed under the lock.
    is_open: AtomicBool,
    /// A lane wants to use it.
    is_wanted: AtomicBool,
    state: Mutex<State>,
}

struct State {
    link: Option<Link>,
    /// Calls that have not been sent; none without a link.
    waiting: VecDeque<Box<Call>>,
    /// What is held by writes that the server may still carry out, though their connection has failed.
    unsettled: Vec<Guard>,
    outage: Outage,
}

/// While it is closed.
struct Outage {
    reason: String,
    next_try: Instant,
    pause: Duration,
    is_connecting: bool,
}

impl Connection {
    /// One that is open, or is opened when it is wanted.
    pub(super) fn new(common: &Arc<Common>, number: usize, opened: Option<(Stream, Export)>) -> Arc<Self> {
        let outage = Outage {
            reason: String::new(),
            next_try: Instant::now(),
            pause: PAUSE_MIN,
            is_connecting: false,
        };
        Arc::new(Connection {
            common: common.clone(),
            number,
            is_open: AtomicBool::new(opened.is_some()),
            is_wanted: AtomicBool::new(false),
            state: Mutex::new(State {
                link: opened.map(|(stream, export)| Link::new(stream, export)),
                waiting: VecDeque::new(),
                unsettled: Vec::new(),
                outage,
            }),
        })
    }

    pub(super) fn url(&self) -> &NbdUrl {
        &self.common.url
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Has it opened, if the server permits that.
    pub(super) fn want(&self) {
        if !self.is_wanted.load(Ordering::Relaxed) {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
    }

    fn writes(&self) -> &Writes {
        self.common.writes(self.number)
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

    /// Takes a call, which is sent by the next [`Connection::pump`]; `Err`: the connection is closed.
    pub(super) fn start(&self, call: Box<Call>) -> Result<(), Box<Call>> {
        let mut state = self.state();
        if state.link.is_none() {
            return Err(call);
        }
        state.waiting.push_back(call);
        Ok(())
    }

    /// Takes the calls that wait for any connection, unless it is closed.
    pub(super) fn adopt(&self) {
        let mut state = self.state();
        if self.is_open() {
            state.adopt(self);
            state.send(self);
        }
    }

    /// Whether it has a call of this lane.
    pub(super) fn has_calls_of(&self, lane: &Arc<Mailbox>) -> bool {
        let mut state = self.state();
        state.waiting.iter().any(|call| call.is_of(lane))
            || state.link.iter_mut().flat_map(Link::sent_mut).any(|sent| sent.call.is_of(lane))
    }

    /// The call with this guard is no longer waited for, nor are its parts: they are not sent, nor resent.
    pub(super) fn withdraw(&self, number: u64) {
        let is_abandoned = self.common.shared.is_abandoned(number);
        let mut state = self.state();
        while let Some(at) = state.waiting.iter().position(|call| call.is_numbered(number)) {
            state.waiting.remove(at).into_iter().for_each(|call| fail(call, Errno::CANCELED));
        }
        let sent = state.link.iter_mut().flat_map(Link::sent_mut);
        for sent in sent.filter(|sent| sent.call.is_numbered(number)) {
            sent.is_withdrawn = true;
            // It changes nothing, so nothing has to wait for it.
            if is_abandoned && sent.call.work == Work::Flush {
                sent.call.let_go();
            }
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

    /// Checks deadlines, and tries to connect if it is closed; to be called several times a second.
    pub(super) fn tick(self: &Arc<Self>) {
        let (mut state, now) = (self.state(), Instant::now());
        state.receive(self);
        if self.common.is_retiring() {
            state.retire(self);
        }
        let patience = self.common.options.give_up_after;
        let hears_others = self.common.hears_others(self.number, now);
        // One that may still change something is kept until it has.
        if let Some(reason) = state.link.as_ref().and_then(|link| link.outlived(now, patience, hears_others))
        {
            state.link.iter_mut().for_each(Link::disconnect);
            state.lost(self, reason, true);
        }
        state.send(self);
        let outage = &mut state.outage;
        if outage.pause > PAUSE_MAX && self.common.open() == 0 {
            // It has waited as one of several.
            (outage.next_try, outage.pause) = (now, PAUSE_MIN);
        }
        let is_due = !outage.is_connecting && now >= outage.next_try;
        let is_wanted = self.is_wanted.load(Ordering::Relaxed);
        if state.link.is_some() || !is_due || !self.common.lacks(self.number, is_wanted) {
            return;
        }
        state.outage.is_connecting = true;
        let connection = self.clone();
        let thread = std::thread::Builder::new().name("nbd-connect".into());
        let started = thread.spawn(move || {
            let opened = open::connect(&connection.common.url, &connection.common.options);
            connection.opened(opened);
        });
        if let Err(error) = started {
            state.outage.failed(format!("cannot start a thread to connect: {error}"), self.common.open());
        }
    }

    /// Why it could not be opened.
    pub(super) fn problem(&self) -> String {
        self.state().outage.reason.clone()
    }

    /// An attempt to connect has ended.
    fn opened(&self, opened: Result<(Stream, Export), OpenError>) {
        let mut state = self.state();
        let joined = opened.map_err(|error| error.problem).and_then(|(stream, export)| {
            let mut link = Link::new(stream, export);
            match self.common.joins(&export) {
                Ok(open) => Ok((link, open)),
                Err(problem) => {
                    link.disconnect();
                    Err(problem)
                }
            }
        });
        let (link, open) = match joined {
            Ok(joined) => joined,
            Err(problem) if self.common.is_retiring() => {
                // It is opened again as soon as these have been left.
                (state.outage.reason, state.outage.is_connecting) = (problem, false);
                return;
            }
            Err(problem) => {
                if self.common.open() > 0 && state.outage.pause == PAUSE_MIN {
                    reactor::limited!(
                        "connections to NBD servers that others do without",
                        tracing::Level::WARN,
                        store = %self.url(),
                        "cannot open one more connection to the NBD server, and use the others: {problem}"
                    );
                }
                return state.outage.failed(problem, self.common.open());
            }
        };
        state.link = Some(link);
        state.outage.is_connecting = false;
        self.is_open.store(true, Ordering::SeqCst);
        if open == 1 {
            reactor::limited!(
                "connections to NBD servers that are back",
                tracing::Level::INFO,
                store = %self.url(),
                "the connection to the NBD server is back"
            );
        } else {
            reactor::limited!(
                "more connections to NBD servers",
                tracing::Level::INFO,
                store = %self.url(),
                connections = open,
                "one more connection to the NBD server is open"
            );
        }
        state.adopt(self);
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
    /// An attempt has failed while so many others are open.
    fn failed(&mut self, reason: String, others: usize) {
        (self.reason, self.is_connecting) = (reason, false);
        self.wait(others);
    }

    /// The next attempt has to wait, longer each time.
    fn wait(&mut self, others: usize) {
        let pause_max = if others == 0 { PAUSE_MAX } else { PAUSE_OF_MORE_MAX };
        self.next_try = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(pause_max);
    }
}

impl State {
    /// Takes the calls that wait for any connection.
    fn adopt(&mut self, of: &Connection) {
        of.common.adopt(&mut self.waiting);
        // Their lanes watch its socket.
        self.waiting.iter().for_each(|call| call.wake());
    }

    fn receive(&mut self, of: &Connection) {
        let mut left = TURN_BYTES;
        while let Some(link) = &mut self.link {
            if left == 0 && !link.stream.holds_bytes() {
                return;
            }
            match link.receive() {
                Received::Nothing => return,
                Received::Something(bytes) => {
                    left = left.saturating_sub(bytes.max(RECEIVE_BYTES_MIN));
                    if bytes > 0 {
                        of.common.hear(of.number, link.last_received);
                    }
                }
                Received::Violation(violation) => {
                    reactor::limited!(
                        "violations of NBD",
                        tracing::Level::ERROR,
                        store = %of.url(),
                        "the server violates the NBD protocol, and is disconnected: {violation}"
                    );
                    of.is_open.store(false, Ordering::SeqCst);
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
        let Sent { mut call, flushes, mark, is_through, is_withdrawn, .. } = sent;
        let answer = match outcome {
            // It was not carried out; it is retried on the next server.
            Err(ESHUTDOWN) if !is_withdrawn => {
                self.link.iter_mut().for_each(|link| link.is_ending = true);
                of.is_open.store(false, Ordering::SeqCst);
                return self.waiting.push_front(call);
            }
            Err(number) => {
                self.link.iter_mut().for_each(|link| link.has_answered = true);
                // It may have been for what others have written, on any connection, and no flush reports it again:
                // another one may even have succeeded since this one failed.
                let may_flush = flushes || is_through && matches!(number, EIO | ENOSPC);
                if may_flush && of.common.acknowledged() > mark.durable_of_all {
                    lose(of, "the server failed to flush acknowledged writes: they may be lost");
                }
                let error = known(number, call.work);
                return fail(call, error);
            }
            Ok(answer) => answer,
        };
        self.link.iter_mut().for_each(|link| link.has_answered = true);
        if flushes {
            of.writes().keep(mark.acknowledged);
        } else if changes(call.work) && !is_through {
            of.writes().acknowledge();
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
            _ => {
                let is_through = is_durable(call.work) || !link.export.flushes();
                let may_flush = flushes || call.work == Work::Flush || is_through;
                let mark = Mark {
                    acknowledged: of.writes().acknowledged(),
                    durable_of_all: if may_flush { of.common.durable() } else { 0 },
                };
                return link.request(call, flushes, mark, of.common.block_minimum);
            }
        }
        Ok(())
    }

    /// Begins to leave it, or continues: nothing new is sent, and what was written is flushed. Then
    /// [`Link::outlived`] finds it of no more use.
    fn retire(&mut self, of: &Connection) {
        let Some(link) = &mut self.link else { return };
        of.is_open.store(false, Ordering::SeqCst);
        (link.is_ending, link.is_retiring) = (true, true);
        if !link.is_idle() || link.has_flushed || !of.writes().is_dirty() {
            return;
        }
        link.has_flushed = true;
        // Where there is no memory for this, it counts as lost.
        let Ok(nobody) = Mailbox::new() else { return };
        nobody.close();
        let _ = self.request(of, Call::new(&nobody), true);
        // It is of no use on another connection.
        self.link.iter_mut().flat_map(Link::sent_mut).for_each(|sent| sent.is_withdrawn = true);
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
        of.is_open.store(false, Ordering::SeqCst);
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
                store = %of.url(),
                count,
                "the server may still carry out writes of a connection that has failed: their blocks stay not ready until this \
                 daemon is restarted"
            );
        }
        if of.writes().is_dirty() {
            lose(
                of,
                "writes that were acknowledged and not flushed may be lost: the server may have restarted",
            );
        }
        of.writes().keep(of.writes().acknowledged());
        reactor::limited!(
            "connections to NBD servers that are lost",
            tracing::Level::WARN,
            store = %of.url(),
            reason,
            "the connection to the NBD server is lost"
        );
        self.outage.reason = reason;
        let has_worked = link.has_answered || link.since.elapsed() >= LASTS_MIN;
        if has_worked {
            (self.outage.next_try, self.outage.pause) = (Instant::now(), PAUSE_MIN);
        } else {
            self.outage.wait(of.common.open() - 1);
        }
        of.common.leaves(has_worked);
        of.common.strand(&mut self.waiting);
    }
}

/// Acknowledged writes that were not flushed may be lost.
fn lose(of: &Connection, why: &str) {
    of.common.options.losses.fetch_add(1, Ordering::SeqCst);
    reactor::limited!("losses of NBD exports", tracing::Level::ERROR, store = %of.url(), "{why}");
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
    use crate::nbd::connections::Connections;
    use crate::nbd::{NbdStore, Options};
    use crate::stripes::{Hold, Mode};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use wire::nbd::transmission::{HAS_FLAGS, SEND_FLUSH};
    use wire::nbd::{Layout as _, Request, SIMPLE_REPLY_MAGIC};

    const LEN: u64 = 4096;

    /// A connection, and its server's end.
    fn connection() -> (Arc<Connection>, UnixStream) {
        let (connections, theirs) = connections_to("disk");
        (connections.iter().next().unwrap().clone(), theirs)
    }

    /// The connections to an export of this name, and the server's end of the first one.
    fn connections_to(export: &str) -> (Connections, UnixStream) {
        let url = NbdUrl::parse(&format!("nbd+unix:///{export}?socket=/nonexistent")).unwrap();
        let (stream, export, theirs) = plain(1 << 20);
        (Connections::new(url, Options::new(Some(512), false), stream, export).unwrap(), theirs)
    }

    fn start(connection: &Connection, call: Box<Call>) {
        assert!(connection.start(call).is_ok());
    }

    /// How many calls wait for any connection.
    fn stranded(connection: &Connection) -> usize {
        let mut calls = VecDeque::new();
        connection.common.adopt(&mut calls);
        calls.len()
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
        Guard::new(&of.common.shared, Hold::new(Mode::Exclusive, 0, LEN))
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
        start(&connection, write(&mail, 0, true));
        start(&connection, write(&mail, LEN, false));
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
        assert!(connection.state().link.is_none());
        assert_eq!(stranded(&connection), 2, "now it is sent again");
    }

    #[test]
    fn a_server_that_ends_each_connection_at_once_is_away_and_left_alone_for_longer_each_time() {
        for has_answered in [false, true] {
            let (connection, _server) = connection();
            let (mut state, begin) = (connection.state(), Instant::now());
            state.link.as_mut().unwrap().has_answered = has_answered;
            while Instant::now() == begin {}
            state.lost(&connection, "the server has closed it", true);
            connection.common.tick(begin + connection.common.options.give_up_after);
            assert_eq!(connection.common.is_down(), !has_answered);
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
            start(&connection, call);
            connection.send();
            connection.state().lost(&connection, "connection timed out", is_settled);
            let (mut answered, mut newer) = (Vec::new(), guard(&connection));
            mail.take(&mut answered);
            if is_settled {
                assert!(answered.is_empty() && connection.common.has_stranded(), "it is sent again");
            } else {
                assert_eq!(answered[0].answer, -i64::from(Errno::TIMEDOUT.raw_os_error()));
                assert!(!connection.common.has_stranded());
            }
            drop(answered);
            assert!(!newer.try_lock(None), "nothing newer is written there");
            assert!(!connection.common.shared.has_abandoned(), "other blocks are used as before");
        }
    }

    #[test]
    fn a_flush_that_is_not_waited_for_any_more_does_not_make_the_store_unavailable() {
        for parts in [1, 2] {
            let (connection, _server) = connection();
            let (mail, guard) = (Mailbox::new().unwrap(), guard(&connection));
            let (number, mut call) = (guard.number(), Call::new(&mail));
            call.guard = Some(guard);
            if parts == 1 {
                start(&connection, call);
            } else {
                crate::calls::split(call, parts).for_each(|part| start(&connection, part));
            }
            connection.send();
            connection.common.shared.abandon(number, 0);
            assert!(connection.common.is_lost());
            connection.withdraw(number);
            assert!(!connection.common.is_lost(), "{parts} parts");
        }
    }

    #[test]
    fn a_connection_is_tried_less_often_only_while_others_are_open() {
        for others in [0, 1] {
            let (connection, _server) = connection();
            let outage = &mut connection.state().outage;
            (0..20).for_each(|_| outage.failed(String::new(), others));
            assert_eq!(outage.pause, [PAUSE_MAX, PAUSE_OF_MORE_MAX][others]);
        }
        let (connection, _server) = connection();
        let mut state = connection.state();
        (0..20).for_each(|_| state.outage.failed(String::new(), 1));
        state.lost(&connection, "the server has closed it", true);
        (0..20).for_each(|_| state.outage.failed(String::new(), 1));
        drop(state);
        connection.tick();
        let state = connection.state();
        assert!(state.outage.is_connecting || state.outage.pause <= 2 * PAUSE_MIN, "it is the only one");
    }

    #[test]
    fn lanes_whose_connection_is_closed_do_not_all_use_the_same() {
        let (connections, _server) = connections_to("disk");
        let is_open = |number: usize| &connections.iter().nth(number).unwrap().is_open;
        assert_eq!([0, 1, 2, 3].map(|home| connections.of(home)), [0; 4]);
        is_open(1).store(true, Ordering::SeqCst);
        assert_eq!([0, 1, 2, 3].map(|home| connections.of(home)), [0, 1, 0, 1]);
        connections.iter().take(2).for_each(|one| one.is_open.store(false, Ordering::SeqCst));
        assert_eq!(connections.of(2), 2);
    }

    #[test]
    fn an_export_is_not_opened_again_after_a_failure_that_proves_nothing() {
        for fails_first in [true, false] {
            let (connections, _server) = connections_to(if fails_first { "failed" } else { "fails-later" });
            let connection = connections.iter().next().unwrap().clone();
            let url = connection.url().clone();
            let mail = Mailbox::new().unwrap();
            let mut call = write(&mail, 0, false);
            call.guard = Some(guard(&connection));
            start(&connection, call);
            connection.send();
            let store = NbdStore::new(connections);
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
