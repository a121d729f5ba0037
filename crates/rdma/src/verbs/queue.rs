//! Work requests of one queue pair: a batch that is collected and posted, and those that are not finished.

use super::device::{Calls, Device};
use super::sys::*;
use reactor::memory::{Arena, Loan};
use std::collections::VecDeque;
use std::ptr;
use wire::{Places, Span};

/// What a work request does, and what is told when it is finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Send { solicited: bool, invalidate: Option<u32> },
    Write { stag: u32, offset: u64 },
    Read { stag: u32, offset: u64 },
}

impl Operation {
    /// What the device does with the places.
    fn loan(self) -> Loan {
        match self {
            Operation::Send { .. } | Operation::Write { .. } => Loan::Read,
            Operation::Read { .. } => Loan::Write,
        }
    }
}

/// A work request that is not finished; they finish in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    pub id: u64,
    pub operation: Operation,
    /// The last of those that make one operation.
    pub is_last: bool,
    places: Places,
}

/// Sends, writes and reads.
#[derive(Default)]
pub(super) struct SendQueue {
    requests: Vec<IbvSendWr>,
    places: Vec<[IbvSge; Places::MAX]>,
    /// Bytes of messages that are copied; their requests name the offset in here until they are posted.
    inline: Vec<u8>,
    unfinished: VecDeque<Unfinished>,
}

impl SendQueue {
    /// Requests that are not finished, those of the batch among them.
    pub(super) fn len(&self) -> usize {
        self.unfinished.len()
    }

    /// Adds a message that is copied.
    pub(super) fn add_inline(&mut self, id: u64, bytes: &[u8], operation: Operation) {
        let place = IbvSge { addr: self.inline.len() as u64, length: bytes.len() as u32, lkey: 0 };
        self.inline.extend_from_slice(bytes);
        let mut request = request(id, operation, 0);
        request.send_flags |= IBV_SEND_INLINE;
        self.add_request(request, [place].into_iter());
        self.unfinished.push_back(Unfinished { id, operation, is_last: true, places: Places::EMPTY });
    }

    /// Adds an operation with these places, in as many requests as there are when each has `most` places.
    pub(super) fn add(
        &mut self,
        id: u64,
        places: &Places,
        most: usize,
        operation: Operation,
        device: &Device,
        arena: &mut Arena,
    ) {
        assert!(!places.is_empty(), "an operation moves bytes");
        let mut spans = [Span::default(); Places::MAX];
        let count = spans.iter_mut().zip(places.iter()).map(|(entry, span)| *entry = span).count();
        let mut before = 0;
        let last = requests_of(places, most) - 1;
        for (index, spans) in spans[..count].chunks(most).enumerate() {
            let mut own = Places::EMPTY;
            for span in spans {
                arena.lend(*span, operation.loan());
                own.push(*span);
            }
            self.add_request(request(id, operation, before), spans.iter().map(|span| device.place(*span)));
            before += u64::from(own.len());
            self.unfinished.push_back(Unfinished { id, operation, is_last: index == last, places: own });
        }
    }

    fn add_request(&mut self, mut request: IbvSendWr, places: impl Iterator<Item = IbvSge>) {
        let mut list = [IbvSge { addr: 0, length: 0, lkey: 0 }; Places::MAX];
        let mut count = 0;
        for (entry, place) in list.iter_mut().zip(places) {
            *entry = place;
            count += 1;
        }
        request.num_sge = count;
        self.requests.push(request);
        self.places.push(list);
    }

    /// Posts the batch; an error is the number of one of the system.
    pub(super) fn submit(&mut self, calls: &Calls, pair: *mut IbvQp) -> Result<(), i32> {
        let Some(last) = self.requests.len().checked_sub(1) else { return Ok(()) };
        let base = self.inline.as_ptr().addr() as u64;
        for (request, places) in self.requests.iter_mut().zip(&mut self.places) {
            if request.send_flags & IBV_SEND_INLINE != 0 {
                places[0].addr += base;
            }
            request.sg_list = places.as_mut_ptr();
        }
        let first = self.requests.as_mut_ptr();
        for index in 0..last {
            // SAFETY: both are elements of the vector, which is not touched until the call below is over.
            unsafe { (*first.add(index)).next = first.add(index + 1) };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; requests, places and inline bytes are in vectors that stay as they are during the
        // call, which copies them. What the places name is lent until the request is finished.
        let result = unsafe { (calls.post_send)(pair, first, &raw mut bad) };
        self.requests.clear();
        self.places.clear();
        self.inline.clear();
        if result == 0 { Ok(()) } else { Err(result.abs()) }
    }

    /// The oldest is finished: its places are free.
    pub(super) fn finished(&mut self, arena: &mut Arena) -> Option<Unfinished> {
        let finished = self.unfinished.pop_front()?;
        for span in finished.places.iter() {
            arena.unlend(span, finished.operation.loan());
        }
        Some(finished)
    }

    /// The queue pair is gone: all places are free.
    pub(super) fn clear(&mut self, arena: &mut Arena) {
        while self.finished(arena).is_some() {}
        self.requests.clear();
        self.places.clear();
        self.inline.clear();
    }
}

/// How many requests an operation with these places makes.
pub(super) fn requests_of(places: &Places, most: usize) -> usize {
    places.iter().count().div_ceil(most)
}

/// One of an operation whose first `before` bytes other requests move.
fn request(id: u64, operation: Operation, before: u64) -> IbvSendWr {
    let mut request = IbvSendWr {
        wr_id: id & !RECEIVE,
        next: ptr::null_mut(),
        sg_list: ptr::null_mut(),
        num_sge: 0,
        opcode: IBV_WR_SEND,
        send_flags: IBV_SEND_SIGNALED,
        invalidate_rkey: 0,
        remote_addr: 0,
        rkey: 0,
        unused: [0; 9],
    };
    match operation {
        Operation::Send { solicited, invalidate } => {
            if solicited {
                request.send_flags |= IBV_SEND_SOLICITED;
            }
            if let Some(stag) = invalidate {
                (request.opcode, request.invalidate_rkey) = (IBV_WR_SEND_WITH_INV, stag);
            }
        }
        Operation::Write { stag, offset } => {
            request.opcode = IBV_WR_RDMA_WRITE;
            (request.rkey, request.remote_addr) = (stag, offset.wrapping_add(before));
        }
        Operation::Read { stag, offset } => {
            request.opcode = IBV_WR_RDMA_READ;
            (request.rkey, request.remote_addr) = (stag, offset.wrapping_add(before));
        }
    }
    request
}

/// In the number of a receive, which is otherwise where it begins in the arena.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Receives.
#[derive(Default)]
pub(super) struct ReceiveQueue {
    requests: Vec<IbvRecvWr>,
    places: Vec<IbvSge>,
    posted: usize,
}

impl ReceiveQueue {
    /// Receives that are posted, or are about to be.
    pub(super) fn len(&self) -> usize {
        self.posted
    }

    /// Adds one.
    pub(super) fn add(&mut self, place: Span, device: &Device) {
        let wr_id = RECEIVE | place.offset;
        self.requests.push(IbvRecvWr { wr_id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 });
        self.places.push(device.place(place));
        self.posted += 1;
    }

    /// Posts the batch; an error is the number of one of the system.
    pub(super) fn submit(&mut self, calls: &Calls, pair: *mut IbvQp) -> Result<(), i32> {
        let Some(last) = self.requests.len().checked_sub(1) else { return Ok(()) };
        for (request, place) in self.requests.iter_mut().zip(&mut self.places) {
            request.sg_list = place;
        }
        let first = self.requests.as_mut_ptr();
        for index in 0..last {
            // SAFETY: both are elements of the vector, which is not touched until the call below is over.
            unsafe { (*first.add(index)).next = first.add(index + 1) };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair lives; requests and places are in vectors that stay as they are during the call, which
        // copies them. What the places name is the connection's until the queue pair is gone.
        let result = unsafe { (calls.post_recv)(pair, first, &raw mut bad) };
        self.requests.clear();
        self.places.clear();
        if result == 0 { Ok(()) } else { Err(result.abs()) }
    }

    /// One has been filled.
    pub(super) fn filled(&mut self) {
        self.posted = self.posted.saturating_sub(1);
    }
}
