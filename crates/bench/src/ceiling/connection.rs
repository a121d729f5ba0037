//! The loop of a connection: receive, answer everything received, send.

use super::batch::{Batch, Payload, retry_or_fail};
use super::iscsi::Iscsi;
use super::iwarp::Iwarp;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use wire::iwarp::StartFrame;

/// Most bytes received in one call.
const RECEIVE_BYTES: usize = 1 << 20;

/// Input that was received but not processed.
pub(super) struct Input {
    room: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Bytes to discard, including bytes not yet received.
    skip: usize,
}

/// The protocol on a connection.
pub(super) trait Responder {
    /// Answers every complete request.
    fn answer(&mut self, input: &mut Input, batch: &mut Batch<'_>) -> io::Result<()>;

    /// Whether nothing more will be answered.
    fn is_over(&self) -> bool;
}

/// The two ends of a connection, and its parameters.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) from: SocketAddr,
    pub(super) portal: SocketAddr,
    /// Blocks per unit.
    pub(super) blocks: u64,
}

/// Serves a connection until it ends.
pub(super) fn serve(socket: &TcpStream, ends: Ends, payload: Payload) -> io::Result<()> {
    let room = vec![0; RECEIVE_BYTES].into_boxed_slice();
    let mut input = Input { room, begin: 0, end: 0, skip: 0 };
    while input.received_at().len() < StartFrame::REQUEST.len() {
        if !input.receive(socket)? {
            return Ok(());
        }
    }
    match input.received_at().starts_with(&StartFrame::REQUEST) {
        true => respond(socket, input, payload, Iwarp::new(ends)),
        false => respond(socket, input, payload, Iscsi::new(ends)),
    }
}

fn respond(
    socket: &TcpStream,
    mut input: Input,
    payload: Payload,
    mut responder: impl Responder,
) -> io::Result<()> {
    let mut batch = Batch::new(socket, payload);
    loop {
        let answered = responder.answer(&mut input, &mut batch);
        batch.send()?;
        answered?;
        if responder.is_over() || !input.receive(socket)? {
            return Ok(());
        }
    }
}

impl Input {
    /// Receives once; `false` at the end of the connection.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        self.room.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        loop {
            match socket.read(&mut self.room[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
                Err(error) => retry_or_fail(error)?,
            }
        }
    }

    /// The bytes received.
    pub(super) fn received_at(&self) -> &[u8] {
        &self.room[self.begin..self.end]
    }

    /// Consumes `count` bytes that are present, and then discards `skip` bytes.
    pub(super) fn pass(&mut self, count: usize, skip: usize) {
        self.begin += count;
        self.skip = skip;
    }

    /// Discards what is to be discarded; `false` when more of it is still to arrive.
    pub(super) fn skip(&mut self) -> bool {
        let step = self.skip.min(self.end - self.begin);
        self.begin += step;
        self.skip -= step;
        self.skip == 0
    }
}
