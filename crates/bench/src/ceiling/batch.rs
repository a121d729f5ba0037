//! Answers to the initiator, sent in one call.

use std::io::{self, IoSlice, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

/// The largest payload: the most that Lunette puts into one Data-In.
pub(super) const PAYLOAD_BYTES: u32 = 262_144;
/// Bytes of a batch.
const BATCH_BYTES: usize = 1 << 20;
/// Payloads in a batch: the kernel takes 1024 pieces per call, and each payload is preceded by a header.
const PAYLOADS_MAX: usize = 512;
/// Padding of a payload to a multiple of four bytes.
const PADDING_BYTES: usize = 3;

/// A batch about to be sent to a socket.
pub(super) struct Batch<'a> {
    socket: &'a TcpStream,
    /// Headers, and small data that is not payload.
    heads: Vec<u8>,
    /// For each piece, the bytes of `heads`, and the bytes of payload after them.
    pieces: Vec<(usize, usize)>,
    bytes: usize,
    payload: Payload,
    /// Where the next payload begins.
    next: usize,
}

/// The memory from which payloads are sent.
pub(super) type Payload = Arc<[u8]>;

/// Memory for payloads: at least one of the largest. Not zeros: memory that was never written would map to a
/// single page.
pub(super) fn payload(bytes_min: usize) -> Payload {
    vec![0x5a; bytes_min.max(bytes(PAYLOAD_BYTES) + PADDING_BYTES)].into()
}

impl<'a> Batch<'a> {
    pub(super) fn new(socket: &'a TcpStream, payload: Payload) -> Batch<'a> {
        Batch { socket, heads: Vec::new(), pieces: Vec::new(), bytes: 0, payload, next: 0 }
    }

    /// Adds some bytes, followed by `payload` bytes of the payload: at most [`PAYLOAD_BYTES`] and padding.
    pub(super) fn add(&mut self, heads: &[&[u8]], payload: u32) -> io::Result<()> {
        let payload = bytes(payload);
        let inline: usize = heads.iter().map(|head| head.len()).sum();
        if self.bytes + inline + payload > BATCH_BYTES || self.pieces.len() == PAYLOADS_MAX {
            self.send()?;
        }
        heads.iter().for_each(|head| self.heads.extend_from_slice(head));
        self.bytes += inline + payload;
        match self.pieces.last_mut() {
            Some((before, none @ 0)) => (*before, *none) = (*before + inline, payload),
            Some(_) | None => self.pieces.push((inline, payload)),
        }
        Ok(())
    }

    /// Sends the batch.
    pub(super) fn send(&mut self) -> io::Result<()> {
        let mut heads = self.heads.as_slice();
        let mut slices = Vec::with_capacity(2 * self.pieces.len());
        for &(inline, payload) in &self.pieces {
            let (head, rest) = heads.split_at(inline);
            heads = rest;
            slices.push(IoSlice::new(head));
            if payload > 0 {
                if self.next + payload > self.payload.len() {
                    self.next = 0;
                }
                slices.push(IoSlice::new(&self.payload[self.next..self.next + payload]));
                // If it fits only once, it is a single buffer, which stays in the processor's cache.
                self.next += payload * usize::from(self.payload.len() > 2 * bytes(PAYLOAD_BYTES));
            }
        }
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            match self.socket.write_vectored(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut left, count),
                Err(error) => retry_or_fail(error)?,
            }
        }
        self.heads.clear();
        self.pieces.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// Whether to retry a call: a non-blocking socket spins.
pub(super) fn retry_or_fail(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock => std::hint::spin_loop(),
        io::ErrorKind::Interrupted => {}
        _ => return Err(error),
    }
    Ok(())
}

/// A length from the wire as a `usize`.
pub(super) fn bytes(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
