//! Frames that one system call sends.

use super::BATCH;
use crate::io::Handle;
use crate::memory::{Arena, Loan};
use rustix::io::Errno;
use std::io;
use std::ptr;
use wire::Span;

/// The kernel's structures for the frames of one system call.
pub struct Batch {
    spans: Vec<Span>,
    vectors: [libc::iovec; BATCH],
    messages: [libc::mmsghdr; BATCH],
}

impl Default for Batch {
    fn default() -> Batch {
        // SAFETY: a mmsghdr of zeros is a valid, empty one.
        let message = unsafe { std::mem::zeroed() };
        let vector = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Batch { spans: Vec::with_capacity(BATCH), vectors: [vector; BATCH], messages: [message; BATCH] }
    }
}

impl Batch {
    /// Lends the first spans, and builds messages from them.
    pub(super) fn lend(&mut self, arena: &mut Arena, spans: impl Iterator<Item = Span>) {
        let entries = self.vectors.iter_mut().zip(&mut self.messages);
        for (span, (vector, message)) in spans.zip(entries) {
            *vector =
                libc::iovec { iov_base: arena.lend(span, Loan::Read).cast(), iov_len: span.len as usize };
            message.msg_hdr.msg_iov = vector;
            message.msg_hdr.msg_iovlen = 1;
            self.spans.push(span);
        }
    }

    /// Ends the loans.
    pub(super) fn unlend(&mut self, arena: &mut Arena) {
        self.spans.drain(..).for_each(|span| arena.unlend(span, Loan::Read));
    }

    /// Sends what is lent; returns the number of frames.
    pub(super) fn send(&mut self, socket: Handle) -> Result<usize, Errno> {
        let (messages, count) = (self.messages.as_mut_ptr(), self.spans.len() as u32);
        loop {
            // SAFETY: the first `count` messages each have one vector of ours, whose bytes are lent for reading.
            match counted(unsafe { libc::sendmmsg(socket.0, messages, count, libc::MSG_DONTWAIT) }) {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }
}

fn counted(result: i32) -> Result<usize, Errno> {
    let errno = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(result).map_err(|_| errno())
}
