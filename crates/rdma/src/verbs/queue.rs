//! Work requests of one queue pair: a batch that is collected and posted, and those that are outstanding.

use super::device::{Calls, Registered};
use super::sink::Sink;
use super::sys::*;
use reactor::memory::{Arena, Loan};
use std::collections::VecDeque;
use std::ptr;
use wire::{Places, Span};

/// What a work request does, and what is reported when it has finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Send { solicited: bool, invalidate: Option<u32> },
    Write { stag: u32, offset: u64 },
    Read { stag: u32, offset: u64 },
}

/// An outstanding work request. Its places are lent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    /// The device's number for it.
    number: u64,
    pub id: u64,
    pub operation: Operation,
    /// The last request of its operation.
    pub is_last: bool,
    places: Places,
    /// Data that is read arrives here first.
    sink: Option<Span>,
}

/// How the places of a request are lent: the device writes those of a read, unless it reads into a sink.
fn loan(operation: Operation, has_sink: bool) -> Loan {
    match operation {
        Operation::Read { .. } if !has_sink => Loan::Write,
        Operation::Read { .. } | Operation::Send { .. } | Operation::Write { .. } => Loan::Read,
    }
}

/// Sends, writes and reads.
#[derive(Default)]
pub(super) struct SendQueue {
    requests: Vec<IbvSendWr>,
    places: Vec<[IbvSge; Places::MAX]>,
    /// Bytes of inline messages; their requests hold offsets into it until they are posted.
    inline: Vec<u8>,
    unfinished: VecDeque<Unfinished>,
    /// The next request's number.
    number: u64,
    /// Where the device reads into; `None`: the arena.
    sink: Option<Sink>,
}

impl SendQueue {
    /// An empty one.
    pub(super) fn new(sink: Option<Sink>) -> SendQueue {
        SendQueue { sink, ..SendQueue::default() }
    }

    /// Whether the sink has places for this many read requests.
    pub(super) fn can_read(&self, requests: usize) -> bool {
        self.sink.as_ref().is_none_or(|sink| requests <= sink.free())
    }

    /// Outstanding requests, those of the batch included.
    pub(super) fn len(&self) -> usize {
        self.unfinished.len()
    }

    /// Adds an inline message.
    pub(super) fn add_inline(&mut self, id: u64, bytes: &[u8], operation: Operation) {
        let place = IbvSge { addr: self.inline.len() as u64, length: bytes.len() as u32, lkey: 0 };
        self.inline.extend_from_slice(bytes);
        let number = self.next_number();
        let mut request = request(number, operation, 0);
        request.send_flags |= IBV_SEND_INLINE;
        self.add_request(request, [place].into_iter());
        self.unfinished.push_back(Unfinished {
            number,
            id,
            operation,
            is_last: true,
            places: Places::EMPTY,
            sink: None,
        });
    }

    /// Adds an operation with these places, in as many requests as it takes with `most` places each: one
    /// place each for reads into a sink.
    pub(super) fn add(
        &mut self,
        id: u64,
        places: &Places,
        most: usize,
        operation: Operation,
        memory: &Registered,
        arena: &mut Arena,
    ) {
        assert!(!places.is_empty(), "an operation moves bytes");
        let mut spans = [Span::default(); Places::MAX];
        let count = spans.iter_mut().zip(places.iter()).map(|(entry, span)| *entry = span).count();
        let mut before = 0;
        let last = requests_of(places, most) - 1;
        let loan = loan(operation, self.sink.is_some());
        for (index, spans) in spans[..count].chunks(most).enumerate() {
            let mut own = Places::EMPTY;
            for span in spans {
                arena.lend(*span, loan);
                own.push(*span);
            }
            let number = self.next_number();
            let request = request(number, operation, before);
            let sink = match (&mut self.sink, operation) {
                (Some(sink), Operation::Read { .. }) => {
                    let span = sink.take(own.len());
                    let place = sink.place(span);
                    self.add_request(request, [place].into_iter());
                    Some(span)
                }
                (None, _) | (_, Operation::Send { .. } | Operation::Write { .. }) => {
                    self.add_request(request, spans.iter().map(|span| memory.place(*span)));
                    None
                }
            };
            before += u64::from(own.len());
            self.unfinished.push_back(Unfinished {
                number,
                id,
                operation,
                is_last: index == last,
                places: own,
                sink,
            });
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number = (self.number + 1) & !RECEIVE;
        self.number
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

    /// Posts the batch; an error is a system error number.
    pub(super) fn submit(&mut self, calls: &Calls, pair: *mut IbvQp) -> Result<(), i32> {
        let Some(last) = self.requests.len().checked_sub(1) else { return Ok(()) };
        let base = self.inline.as_ptr().expose_provenance() as u64;
        for (request, places) in self.requests.iter_mut().zip(&mut self.places) {
            if request.send_flags & IBV_SEND_INLINE != 0 {
                places[0].addr += base;
            }
            request.sg_list = places.as_mut_ptr();
        }
        let first = self.requests.as_mut_ptr();
        for index in 0..last {
            // SAFETY: both are elements of the vector, which is not modified until the call below returns.
            unsafe { (*first.add(index)).next = first.add(index + 1) };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; requests, places and inline bytes are in vectors that do not
        // change during the call, which copies them. The memory that the places name is lent until the
        // request has finished.
        let result = unsafe { (calls.post_send)(pair, first, &raw mut bad) };
        self.requests.clear();
        self.places.clear();
        self.inline.clear();
        if result == 0 { Ok(()) } else { Err(result.abs()) }
    }

    /// The request with this number has finished: its places are free, and the data read is there if it
    /// `is_done`. It need not be the oldest: siw completes Sends while an earlier Read is still running.
    pub(super) fn finished(&mut self, number: u64, is_done: bool, arena: &mut Arena) -> Option<Unfinished> {
        let index = self.unfinished.iter().position(|unfinished| unfinished.number == number)?;
        let finished = self.unfinished.remove(index)?;
        if let (Some(sink), Some(span)) = (&mut self.sink, finished.sink) {
            if is_done {
                arena.copy(span, &finished.places);
            }
            sink.give(span);
        }
        let loan = loan(finished.operation, finished.sink.is_some());
        for span in finished.places.iter() {
            arena.unlend(span, loan);
        }
        Some(finished)
    }

    /// The queue pair is destroyed: all places are free.
    pub(super) fn clear(&mut self, arena: &mut Arena) {
        while let Some(oldest) = self.unfinished.front() {
            self.finished(oldest.number, false, arena);
        }
        self.requests.clear();
        self.places.clear();
        self.inline.clear();
    }
}

/// How many requests an operation with these places takes.
pub(super) fn requests_of(places: &Places, most: usize) -> usize {
    places.iter().count().div_ceil(most)
}

/// A request of an operation whose first `before` bytes other requests transfer.
fn request(number: u64, operation: Operation, before: u64) -> IbvSendWr {
    let mut request = IbvSendWr {
        wr_id: number,
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
                // Where libsiw expects it.
                request.rkey = stag;
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

/// Marks the number of a receive, which is otherwise its offset in the arena.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Receives.
#[derive(Default)]
pub(super) struct ReceiveQueue {
    requests: Vec<IbvRecvWr>,
    places: Vec<IbvSge>,
    /// Places that are posted or about to be, and lent for writing.
    posted: VecDeque<Span>,
}

impl ReceiveQueue {
    /// Receives that are posted or about to be.
    pub(super) fn len(&self) -> usize {
        self.posted.len()
    }

    /// Adds one.
    pub(super) fn add(&mut self, place: Span, memory: &Registered, arena: &mut Arena) {
        let wr_id = RECEIVE | place.offset;
        self.requests.push(IbvRecvWr { wr_id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 });
        self.places.push(memory.place(place));
        arena.lend(place, Loan::Write);
        self.posted.push_back(place);
    }

    /// Posts the batch; an error is a system error number.
    pub(super) fn submit(&mut self, calls: &Calls, pair: *mut IbvQp) -> Result<(), i32> {
        let Some(last) = self.requests.len().checked_sub(1) else { return Ok(()) };
        for (request, place) in self.requests.iter_mut().zip(&mut self.places) {
            request.sg_list = place;
        }
        let first = self.requests.as_mut_ptr();
        for index in 0..last {
            // SAFETY: both are elements of the vector, which is not modified until the call below returns.
            unsafe { (*first.add(index)).next = first.add(index + 1) };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; requests and places are in vectors that do not change during the
        // call, which copies them. The memory that the places name is lent until it is filled, or the queue
        // pair is destroyed.
        let result = unsafe { (calls.post_recv)(pair, first, &raw mut bad) };
        self.requests.clear();
        self.places.clear();
        if result == 0 { Ok(()) } else { Err(result.abs()) }
    }

    /// The receive with this number has been filled, or never will be.
    pub(super) fn filled(&mut self, number: u64, arena: &mut Arena) {
        let index = self.posted.iter().position(|place| RECEIVE | place.offset == number);
        if let Some(place) = index.and_then(|index| self.posted.remove(index)) {
            arena.unlend(place, Loan::Write);
        }
    }

    /// The queue pair is destroyed: all places are free.
    pub(super) fn clear(&mut self, arena: &mut Arena) {
        self.posted.drain(..).for_each(|place| arena.unlend(place, Loan::Write));
        self.requests.clear();
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::memory::SMALL_BYTES;
    use std::cell::RefCell;

    /// What a device is passed: opcode, flags, remote address and key, key to invalidate, and its places or
    /// bytes.
    #[derive(Clone, PartialEq, Eq, Debug)]
    struct Posted {
        opcode: i32,
        flags: u32,
        remote: (u64, u32),
        invalidate: u32,
        places: Vec<(u64, u32, u32)>,
        inline: Vec<u8>,
    }

    thread_local! {
        static POSTED: RefCell<Vec<Posted>> = const { RefCell::new(Vec::new()) };
        static RECEIVES: RefCell<Vec<(u64, u64, u32)>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn post_send(_: *mut IbvQp, mut next: *mut IbvSendWr, _: *mut *mut IbvSendWr) -> i32 {
        // SAFETY: a list of requests, each with a list of places, as the queue makes them.
        while let Some(request) = unsafe { next.as_ref() } {
            let count = usize::try_from(request.num_sge).expect("a number of places");
            // SAFETY: as above.
            let places = unsafe { std::slice::from_raw_parts(request.sg_list, count) };
            let is_inline = request.send_flags & IBV_SEND_INLINE != 0;
            let inline = places.iter().filter(|_| is_inline).flat_map(|place| {
                let bytes = ptr::with_exposed_provenance::<u8>(place.addr as usize);
                // SAFETY: the bytes of an inline message are valid during this call.
                unsafe { std::slice::from_raw_parts(bytes, place.length as usize) }.to_vec()
            });
            let posted = Posted {
                opcode: request.opcode,
                flags: request.send_flags,
                remote: (request.remote_addr, request.rkey),
                invalidate: request.invalidate_rkey,
                inline: inline.collect(),
                places: places
                    .iter()
                    .filter(|_| !is_inline)
                    .map(|place| (place.addr, place.length, place.lkey))
                    .collect(),
            };
            POSTED.with_borrow_mut(|all| all.push(posted));
            next = request.next;
        }
        0
    }

    unsafe extern "C" fn post_recv(_: *mut IbvQp, mut next: *mut IbvRecvWr, _: *mut *mut IbvRecvWr) -> i32 {
        // SAFETY: a list of requests, each with one place, as the queue makes them.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            let place = unsafe { &*request.sg_list };
            RECEIVES.with_borrow_mut(|all| all.push((request.wr_id, place.addr, place.length)));
            next = request.next;
        }
        12
    }

    unsafe extern "C" fn poll_cq(_: *mut IbvCq, _: i32, _: *mut IbvWc) -> i32 {
        0
    }

    unsafe extern "C" fn req_notify_cq(_: *mut IbvCq, _: i32) -> i32 {
        0
    }

    const CALLS: Calls = Calls { poll_cq, req_notify_cq, post_send, post_recv };
    const BASE: u64 = 0x7000_0000;
    const SIGNALED: u32 = IBV_SEND_SIGNALED;

    fn arena() -> (Arena, Registered) {
        let arena = Arena::new(1 << 20).expect("memory");
        let memory = Registered { arena: arena.id(), base: BASE, lkey: 9 };
        (arena, memory)
    }

    #[test]
    fn a_batch_goes_out_in_one_call_and_in_order() {
        let (mut arena, memory) = arena();
        let data = arena.take(SMALL_BYTES).expect("memory");
        let span = data.iter().next().expect("a place");
        let mut queue = SendQueue::default();
        let write = Operation::Write { stag: 7, offset: 100 };
        queue.add(1, &data, 4, write, &memory, &mut arena);
        let plain = Operation::Send { solicited: true, invalidate: None };
        queue.add_inline(2, b"first", plain);
        let invalidating = Operation::Send { solicited: false, invalidate: Some(5) };
        queue.add_inline(3, b"second", invalidating);
        assert_eq!(queue.len(), 3);
        queue.submit(&CALLS, ptr::null_mut()).expect("room");
        let posted = POSTED.take();
        assert_eq!(posted.len(), 3);
        assert_eq!(
            (posted[0].opcode, posted[0].remote, posted[0].flags),
            (IBV_WR_RDMA_WRITE, (100, 7), SIGNALED)
        );
        assert_eq!(posted[0].places, [(BASE + span.offset, SMALL_BYTES, 9)]);
        let flags = SIGNALED | IBV_SEND_INLINE;
        assert_eq!((posted[1].opcode, posted[1].flags), (IBV_WR_SEND, flags | IBV_SEND_SOLICITED));
        assert_eq!((posted[2].opcode, posted[2].flags), (IBV_WR_SEND_WITH_INV, flags));
        assert_eq!(
            (posted[1].inline.as_slice(), posted[2].inline.as_slice()),
            (&b"first"[..], &b"second"[..])
        );
        assert_eq!((posted[1].invalidate, posted[2].invalidate), (0, 5));
        // Nothing is posted twice.
        queue.submit(&CALLS, ptr::null_mut()).expect("nothing to post");
        assert!(POSTED.take().is_empty());
        let ids = [1, 3, 2].map(|number| queue.finished(number, true, &mut arena).expect("it was posted").id);
        // As siw does when the first is a Read.
        assert_eq!(ids, [1, 3, 2]);
        assert!(queue.finished(2, true, &mut arena).is_none());
        arena.give(&data);
        assert_eq!(arena.in_use(), 0);
    }

    #[test]
    fn a_device_that_reads_to_few_places_gets_several_requests() {
        let (mut arena, memory) = arena();
        let into = arena.take(3 * 65_536).expect("memory");
        let mut queue = SendQueue::default();
        queue.add(4, &into, 2, Operation::Read { stag: 1, offset: 0 }, &memory, &mut arena);
        assert_eq!((requests_of(&into, 2), requests_of(&into, 1), requests_of(&into, 4)), (2, 3, 1));
        queue.submit(&CALLS, ptr::null_mut()).expect("room");
        let posted = POSTED.take();
        let remotes: Vec<_> =
            posted.iter().map(|read| (read.opcode, read.remote, read.places.len())).collect();
        assert_eq!(remotes, [(IBV_WR_RDMA_READ, (0, 1), 2), (IBV_WR_RDMA_READ, (131_072, 1), 1)]);
        // The buffer is released before the device is done, and stays unused until it is.
        arena.give(&into);
        assert_eq!(arena.in_use(), 3 * 65_536);
        assert!(queue.finished(1, true, &mut arena).is_some_and(|done| !done.is_last));
        assert_eq!(arena.in_use(), 65_536);
        queue.clear(&mut arena);
        assert_eq!((queue.len(), arena.in_use()), (0, 0));
    }

    #[test]
    fn what_is_read_to_a_sink_is_copied_when_it_has_come() {
        let (mut arena, memory) = arena();
        let (into, other) = (arena.take(65_536 + 100).expect("memory"), arena.take(8).expect("memory"));
        let mut queue = SendQueue::new(Some(Sink::unregistered(BASE * 2, 7)));
        assert!(queue.can_read(16) && !queue.can_read(17));
        queue.add(4, &into, 1, Operation::Read { stag: 1, offset: 5 }, &memory, &mut arena);
        queue.add(5, &other, 1, Operation::Read { stag: 1, offset: 0 }, &memory, &mut arena);
        assert!(queue.can_read(13) && !queue.can_read(14));
        queue.submit(&CALLS, ptr::null_mut()).expect("room");
        let posted: Vec<_> = POSTED.take().into_iter().map(|read| (read.remote, read.places)).collect();
        let place = |at: u64, len| vec![(BASE * 2 + at, len, 7)];
        let expected =
            [((5, 1), place(0, 65_536)), ((65_541, 1), place(65_536, 100)), ((0, 1), place(131_072, 8))];
        assert_eq!(posted, expected);
        let last = into.iter().last().expect("two places");
        let from = queue.unfinished[1].sink.expect("a place of the sink");
        let sent = arena.take(100).expect("memory");
        let span = sent.iter().next().expect("a place");
        arena.bytes_mut(span).fill(0xab);
        // As the device would.
        arena.copy(span, &Places::one(from));
        assert!(queue.finished(1, true, &mut arena).is_some_and(|done| !done.is_last));
        assert_eq!(arena.bytes(last), [0; 100]);
        assert!(queue.finished(2, true, &mut arena).is_some_and(|done| done.is_last));
        assert_eq!(arena.bytes(last), [0xab; 100]);
        queue.clear(&mut arena);
        assert!(queue.can_read(16));
        [into, other, sent].iter().for_each(|places| arena.give(places));
        assert_eq!(arena.in_use(), 0);
    }

    #[test]
    fn receives_are_posted_with_their_offset_and_a_refusal_is_reported() {
        let (mut arena, memory) = arena();
        let block = arena.take(SMALL_BYTES).expect("memory");
        let span = block.iter().next().expect("a place");
        let mut queue = ReceiveQueue::default();
        queue.add(span.slice(0, 64), &memory, &mut arena);
        queue.add(span.slice(64, 64), &memory, &mut arena);
        assert_eq!(queue.submit(&CALLS, ptr::null_mut()), Err(12));
        let at = |from: u64| (RECEIVE | (span.offset + from), BASE + span.offset + from, 64);
        assert_eq!(RECEIVES.take(), [at(0), at(64)]);
        queue.filled(RECEIVE | span.offset, &mut arena);
        assert_eq!(queue.len(), 1);
        arena.give(&block);
        assert_eq!(arena.in_use(), u64::from(SMALL_BYTES), "the device may still write there");
        queue.clear(&mut arena);
        assert_eq!((queue.len(), arena.in_use()), (0, 0));
    }
}
