//! One connection, from its handshake to its end.

use super::{changes, is_durable};
use crate::calls::{Call, Work};
use crate::nbd::socket::Socket;
use crate::nbd::stream::Stream;
use proto::nbd::{Answer, Event, Export, Transmission, Violation};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::nbd::{Command, Request, command_flag};

/// The most bytes of one receive.
const STAGING_BYTES: usize = 256 << 10;

/// With this many bytes to send, further requests wait.
const OUT_BYTES_MAX: usize = 1 << 20;

/// The longest range whose allocation is queried in one request.
const EXTENT_BYTES_MAX: u64 = 1 << 30;

/// How many times longer than for other answers those of flushes are waited for, as long as the server answers
/// on other connections.
const FLUSH_PATIENCE: u32 = 15;

/// The result of using the socket.
pub(super) enum Received {
    /// Nothing more at present.
    Nothing,
    /// So many bytes.
    Something(usize),
    /// The server's data is not understood any more.
    Violation(Violation),
    /// The connection has ended.
    End { reason: String, is_settled: bool },
}

/// Writes when a request was sent.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    /// Those that had been acknowledged on this connection.
    pub(super) acknowledged: u64,
    /// Those that were durable, on all connections, if it makes anything durable.
    pub(super) durable_of_all: u64,
}

/// An outstanding request.
pub(super) struct Sent {
    pub(super) call: Box<Call>,
    /// Counts requests, in the order in which they were sent.
    order: u64,
    /// It is a flush.
    pub(super) flushes: bool,
    pub(super) mark: Mark,
    /// What it changes is durable once it is acknowledged.
    pub(super) is_through: bool,
    /// It is no longer waited for.
    pub(super) is_withdrawn: bool,
}

/// Its fields are the two directions of one socket, and the requests between them.
pub(super) struct Link {
    pub(super) socket: Arc<Socket>,
    pub(super) stream: Stream,
    pub(super) export: Export,
    machine: Transmission,
    sent: Vec<Option<Sent>>,
    count: u64,
    out: Vec<u8>,
    /// How many of these bytes have been sent.
    out_sent: usize,
    staging: Box<[u8]>,
    /// The end of its unread bytes, which start at 0.
    end: usize,
    /// Requests that were answered; empty between two receives.
    pub(super) finished: Vec<(Sent, Result<Answer, u32>)>,
    /// How the server has violated the protocol: what it sends is discarded until it has ended the
    /// connection.
    pub(super) fault: Option<String>,
    /// The server is about to end it.
    pub(super) is_ending: bool,
    /// It is left since another one was lost, and has been sent the flush for that.
    pub(super) is_retiring: bool,
    pub(super) has_flushed: bool,
    /// A request was carried out, or refused for a reason specific to it.
    pub(super) has_answered: bool,
    pub(super) since: Instant,
    /// When something was last received, or requested while nothing was outstanding.
    pub(super) last_received: Instant,
}

impl Link {
    pub(super) fn new(stream: Stream, export: Export) -> Link {
        Link {
            socket: stream.socket.clone(),
            stream,
            export,
            machine: Transmission::new(&export),
            sent: Vec::new(),
            count: 0,
            out: Vec::new(),
            out_sent: 0,
            staging: vec![0; STAGING_BYTES].into(),
            end: 0,
            finished: Vec::new(),
            fault: None,
            is_ending: false,
            is_retiring: false,
            has_flushed: false,
            has_answered: false,
            since: Instant::now(),
            last_received: Instant::now(),
        }
    }

    /// Whether it accepts requests.
    pub(super) fn has_room(&self) -> bool {
        self.fault.is_none() && !self.is_ending && self.out.len() - self.out_sent < OUT_BYTES_MAX
    }

    /// Whether there is something to send. Our half of the connection has ended where the server has violated
    /// the protocol: a send error would be taken for the server's end.
    pub(super) fn owes(&self) -> bool {
        self.fault.is_none() && (self.out_sent < self.out.len() || self.stream.owes())
    }

    pub(super) fn sent_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.sent.iter_mut().flatten()
    }

    /// Outstanding requests, the last one first.
    pub(super) fn take_sent(&mut self) -> Vec<Sent> {
        let mut sent: Vec<Sent> = std::mem::take(&mut self.sent).into_iter().flatten().collect();
        sent.sort_by_key(|sent| std::cmp::Reverse(sent.order));
        sent
    }

    /// Whether a request that changes the medium is outstanding.
    pub(super) fn may_change(&self) -> bool {
        self.sent.iter().flatten().any(|sent| changes(sent.call.work))
    }

    /// Whether no request is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.machine.open() == 0
    }

    /// Why another connection would be better, if no request that could change the medium is outstanding on
    /// this one.
    pub(super) fn outlived(
        &self,
        now: Instant,
        patience: Duration,
        hears_others: bool,
    ) -> Option<&'static str> {
        if self.may_change() {
            return None;
        }
        let is_idle = self.is_idle();
        // A flush may take long, and nothing else shows here whether the server is still there.
        let only_flushes = self.sent.iter().flatten().all(|sent| sent.flushes);
        let patience = if only_flushes && hears_others { patience * FLUSH_PATIENCE } else { patience };
        let is_silent = now.saturating_duration_since(self.last_received) >= patience;
        match self.fault {
            Some(_) => Some("the server violates the NBD protocol"),
            None if is_idle && self.is_retiring => {
                Some("another one was lost, so that the server may have been restarted")
            }
            None if is_idle && self.is_ending => Some("the server is being shut down"),
            None if !is_idle && is_silent => Some("the server does not answer"),
            None => None,
        }
    }

    /// Requests what a call has to do, or that what it did is made durable; returns the call if there are too
    /// many requests.
    pub(super) fn request(
        &mut self,
        call: Box<Call>,
        flushes: bool,
        mark: Mark,
        block: u32,
    ) -> Result<(), Box<Call>> {
        let flushes = flushes || call.work == Work::Flush;
        let is_through = changes(call.work)
            && self.export.writes_through()
            && (is_durable(call.work) || !self.export.flushes());
        let fua = if is_through { command_flag::FUA } else { 0 };
        let data_len = u32::try_from(call.data.len()).unwrap_or(u32::MAX);
        let length = |len: u64| u32::try_from(len).unwrap_or(u32::MAX);
        let (command, flags, range, zeros) = match call.work {
            _ if flushes => (Command::Flush, 0, (0, 0), 0),
            Work::Read { offset } => (Command::Read, 0, (offset, data_len), 0),
            Work::Write { offset, .. } => (Command::Write, fua, (offset, data_len), 0),
            Work::Zero { offset, len, stays, .. } if self.export.clears() => {
                let no_hole = if stays { command_flag::NO_HOLE } else { 0 };
                (Command::WriteZeroes, fua | no_hole, (offset, length(len)), 0)
            }
            Work::Zero { offset, len, .. } => (Command::Write, fua, (offset, length(len)), len as usize),
            Work::Extent { offset, len } => {
                let len = length(len.min(EXTENT_BYTES_MAX)).max(block) / block * block;
                (Command::BlockStatus, 0, (offset, len), 0)
            }
            Work::CompareAndWrite { .. } | Work::Flush => return Err(call),
        };
        if self.machine.open() == 0 {
            self.last_received = Instant::now();
        }
        let Some(slot) = self.machine.begin(command, flags, range, &mut self.out) else { return Err(call) };
        match command {
            Command::Write if zeros > 0 => self.out.resize(self.out.len() + zeros, 0),
            Command::Write => self.out.extend_from_slice(&call.data),
            Command::Read
            | Command::Disconnect
            | Command::Flush
            | Command::WriteZeroes
            | Command::BlockStatus => {}
        }
        if self.sent.len() <= slot {
            self.sent.resize_with(slot + 1, || None);
        }
        let order = self.count;
        self.count += 1;
        self.sent[slot] = Some(Sent { call, order, flushes, mark, is_through, is_withdrawn: false });
        Ok(())
    }

    /// Sends what the socket accepts.
    pub(super) fn send(&mut self) -> Received {
        match self.stream.write(&self.out[self.out_sent..]) {
            Ok(bytes) => {
                self.out_sent += bytes;
                // It may never be empty while there is much to write.
                if self.out_sent >= self.out.len() / 2 {
                    self.out.drain(..self.out_sent);
                    self.out_sent = 0;
                }
                Received::Something(bytes)
            }
            Err(error) => failed(&error),
        }
    }

    /// Receives once: data goes to its call, and requests that were answered are in `finished`.
    pub(super) fn receive(&mut self) -> Received {
        match self.stream.read(&mut self.staging[self.end..]) {
            Ok(0) => Received::End { reason: "the server has closed it".to_owned(), is_settled: true },
            Ok(bytes) => {
                (self.last_received, self.end) = (Instant::now(), self.end + bytes);
                self.take(bytes)
            }
            Err(error) => failed(&error),
        }
    }

    /// Handles the staging buffer, to which this many bytes have just been added.
    fn take(&mut self, bytes: usize) -> Received {
        if self.fault.is_some() {
            self.end = 0;
            return Received::Something(bytes);
        }
        let mut unread = &self.staging[..self.end];
        let taken = loop {
            match self.machine.next(&mut unread) {
                Ok(Some(Event::Data { slot, at, bytes })) => {
                    place(&mut self.sent, slot, at, bytes.len()).copy_from_slice(bytes);
                }
                Ok(Some(Event::Zeros { slot, at, len })) => {
                    place(&mut self.sent, slot, at, len as usize).fill(0);
                }
                Ok(Some(Event::Ended { slot, outcome })) => {
                    let sent = self.sent[slot].take().expect("a request ends once");
                    self.finished.push((sent, outcome));
                }
                Ok(None) => break Ok(()),
                Err(violation) => break Err(violation),
            }
        };
        // What remains is shorter than the head of a reply.
        let (start, end) = (self.end - unread.len(), self.end);
        self.staging.copy_within(start..end, 0);
        self.end = end - start;
        match taken {
            Ok(()) => Received::Something(bytes),
            Err(violation) => {
                // A server that ends a connection has finished with its requests: that is waited for.
                self.fault = Some(format!("the server violates the NBD protocol: {violation}"));
                self.socket.shutdown(Shutdown::Write);
                Received::Violation(violation)
            }
        }
    }

    /// Announces the end of the connection, with nothing in progress on it.
    pub(super) fn disconnect(&mut self) {
        if self.machine.open() == 0 && !self.owes() && self.fault.is_none() {
            let _ = self.stream.write(&Request::disconnect());
        }
    }
}

/// Where bytes that were read go; the machine has validated that.
fn place(sent: &mut [Option<Sent>], slot: usize, at: u32, len: usize) -> &mut [u8] {
    let sent = sent[slot].as_mut().expect("data comes for requests that were sent");
    &mut sent.call.data[at as usize..][..len]
}

fn failed(error: &io::Error) -> Received {
    match error.kind() {
        ErrorKind::WouldBlock => Received::Nothing,
        ErrorKind::Interrupted => Received::Something(0),
        // The server has closed its end.
        kind => Received::End {
            reason: error.to_string(),
            is_settled: matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::Mailbox;
    use crate::nbd::connection::tests::plain;

    #[test]
    fn a_flush_may_take_longer_as_long_as_the_server_answers_on_other_connections() {
        const PATIENCE: Duration = Duration::from_secs(20);
        for (work, longest) in
            [(Work::Flush, PATIENCE * FLUSH_PATIENCE), (Work::Read { offset: 0 }, PATIENCE)]
        {
            let (stream, export, _server) = plain(1 << 20);
            let mut link = Link::new(stream, export);
            let mut call = Call::new(&Mailbox::new().unwrap());
            call.work = work;
            assert!(link.request(call, false, Mark { acknowledged: 0, durable_of_all: 0 }, 1).is_ok());
            let outlived = |after, hears_others| {
                link.outlived(link.last_received + after, PATIENCE, hears_others).is_some()
            };
            let before = longest - Duration::from_secs(1);
            assert_eq!([before, longest].map(|after| outlived(after, true)), [false, true]);
            assert!(outlived(PATIENCE, false));
        }
    }

    #[test]
    fn what_waits_to_be_sent_is_bounded_however_long_the_server_lags_behind() {
        let (stream, export, mut server) = plain(1 << 30);
        let mut link = Link::new(stream, export);
        let mail = Mailbox::new().unwrap();
        let (mut taken, mut bytes) = (0, vec![0; STAGING_BYTES]);
        while taken < 32 << 20 {
            while link.has_room() {
                let mut call = Call::new(&mail);
                call.work = Work::Write { offset: 0, durable: false };
                call.data = vec![1; STAGING_BYTES];
                assert!(link.request(call, false, Mark { acknowledged: 0, durable_of_all: 0 }, 1).is_ok());
            }
            link.send();
            taken += server.read(&mut bytes).unwrap();
            assert!(link.owes(), "it is never empty");
            assert!(link.out.len() < 4 * OUT_BYTES_MAX, "after {taken} bytes");
        }
    }
}
