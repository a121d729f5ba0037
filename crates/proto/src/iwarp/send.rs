//! What is sent: messages, cut into FPDUs while a batch has room, with markers where the peer requires them.

use super::memory::Registrations;
use super::setup::ReadyToReceive;
use super::violation::{Code, Violation};
use super::{Agreed, Config, Event, WORK_MAX};
use crate::message::WorkId;
use crate::services::TaskId;
use crate::stream::Transmit;
use std::collections::VecDeque;
use wire::Places;
use wire::iwarp::ddp::{TAGGED_HEADER_BYTES, UNTAGGED_HEADER_BYTES};
use wire::iwarp::mpa::{CRC_BYTES, MARKER_BYTES, MARKER_INTERVAL, pad};
use wire::iwarp::{
    Head, Layout as _, Marker, Opcode, Queue, ReadRequest, Tagged, TerminateControl, Untagged,
};
use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// The most bytes at the beginning of a Send that are copied when it is posted.
pub(super) const HEADER_BYTES_MAX: usize = 128;
/// Bytes of an FPDU that are not payload, without markers: headers, the beginning of a Send, padding, CRC.
const FPDU_BYTES: usize = 20 + HEADER_BYTES_MAX + 3 + 4;
/// At most this many bytes of headers are kept after they were sent, so that the others need not be moved for
/// each.
const SENT_HEADERS_MAX: usize = 16 * 1024;
/// A message in progress is not interrupted by the end of a batch when it is no longer than this: neither is
/// a burst of iSCSI, and the other half would cost its own send and receives.
const WHOLE_BYTES_MAX: u32 = 256 * 1024;
/// Segments of an FPDU without markers: start of sum, headers, payload, padding, sum.
const FPDU_SEGMENTS: usize = 4 + Places::MAX;

/// Everything to be sent.
/// Its fields advance together, with each segment: the queue, the current FPDU, the sequence numbers of DDP.
pub(super) struct Sending {
    /// The start-up frame.
    pub(super) frame: Option<Vec<u8>>,
    /// Nothing may be sent before the peer's first FPDU was received (RFC 5044 section 7.1.2, rule 4).
    pub(super) is_fenced: bool,
    /// The ready-to-receive message to the responder is owed, in one of these ways.
    pub(super) ready: Option<ReadyToReceive>,
    /// The payload of the Terminate that is owed; nothing comes after it.
    terminate: Option<Vec<u8>>,
    is_terminated: bool,
    /// Work requests that have not been sent in full.
    queue: VecDeque<Work>,
    headers: Headers,
    /// What is in batches that have not been sent.
    leaving: VecDeque<Leaving>,
    /// How many of these are work requests.
    work_leaving: usize,
    /// Our outstanding reads.
    reads: VecDeque<Read>,
    /// Reads that the peer has requested.
    responses: VecDeque<Response>,
    /// The message in progress: messages do not interleave.
    current: Option<Source>,
    /// The offset in the message.
    at: u32,
    /// Which one is next when both have something to send.
    next: Source,
    sends: u32,
    read_requests: u32,
    /// Bytes until the next marker.
    until_marker: u32,
    work_limit: usize,
    random: fn() -> u32,
}

/// A work request.
pub(super) struct Work {
    id: u64,
    operation: Operation,
    /// For a Send: the length of the copied part, which comes first.
    header_bytes: u32,
    places: Places,
    total: u32,
}

#[derive(Clone, Copy)]
pub(super) enum Operation {
    Send { solicited: bool, invalidate: Option<u32> },
    Write { stag: u32, offset: u64 },
    Read { stag: u32, offset: u64 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    Sent(u64),
    Written(u64),
    /// Bytes of the buffer with this STag, which the peer reads.
    Response(u32),
}

/// An outstanding read.
struct Read {
    /// `None`: it only signals that this end is ready to receive.
    id: Option<u64>,
    sink_stag: u32,
    places: Places,
    arrived: u32,
}

/// A read that the peer has requested.
#[derive(Clone, Copy)]
struct Response {
    request: ReadRequest,
    msn: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Work,
    Response,
}

impl Work {
    /// `None`: it is too long.
    pub(super) fn new(id: u64, header: &[u8], places: Places, operation: Operation) -> Option<Work> {
        let header_bytes = u32::try_from(header.len()).ok().filter(|_| header.len() <= HEADER_BYTES_MAX)?;
        let total = places.iter().try_fold(header_bytes, |sum, span| sum.checked_add(span.len))?;
        Some(Work { id, operation, header_bytes, places, total })
    }
}

/// The copied beginnings of Sends, in the order of the queue.
#[derive(Default)]
struct Headers {
    bytes: Vec<u8>,
    /// How many of these belong to work that was sent.
    sent: usize,
}

impl Headers {
    fn push(&mut self, header: &[u8]) {
        if self.sent >= SENT_HEADERS_MAX || self.sent == self.bytes.len() {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        self.bytes.extend_from_slice(header);
    }

    /// The part at `at .. at + len` of the first header.
    fn first(&self, header_bytes: u32, at: u32, len: u32) -> &[u8] {
        let end = at.saturating_add(len).min(header_bytes);
        let index = |at: u32| self.sent.saturating_add(usize::try_from(at).unwrap_or(usize::MAX));
        self.bytes.get(index(at)..index(end)).unwrap_or_default()
    }

    fn pop(&mut self, header_bytes: u32) {
        self.sent = self.sent.saturating_add(usize::try_from(header_bytes).unwrap_or(usize::MAX));
    }
}

impl Sending {
    pub(super) fn new(config: &Config) -> Sending {
        let work_limit = usize::from(config.work.min(WORK_MAX));
        Sending {
            frame: None,
            is_fenced: false,
            ready: None,
            terminate: None,
            is_terminated: false,
            // They grow once, to what is needed, so that they stay in the nearest cache.
            queue: VecDeque::new(),
            headers: Headers::default(),
            leaving: VecDeque::new(),
            work_leaving: 0,
            reads: VecDeque::new(),
            responses: VecDeque::new(),
            current: None,
            at: 0,
            next: Source::Work,
            sends: 0,
            read_requests: 0,
            until_marker: 0,
            work_limit,
            random: config.random,
        }
    }

    /// `false`: there is no room.
    pub(super) fn post(&mut self, work: Work, header: &[u8]) -> bool {
        let incomplete = self.queue.len().saturating_add(self.work_leaving).saturating_add(self.reads.len());
        let has_room = incomplete < self.work_limit;
        if has_room {
            self.headers.push(header);
            self.queue.push_back(work);
        }
        has_room
    }

    /// A batch with the end of a Send or Write, or with bytes that the peer reads, has been sent.
    pub(super) fn left(&mut self, memory: &mut Registrations) -> Option<Event> {
        let event = match self.leaving.pop_front()? {
            Leaving::Sent(id) => Event::Sent { id },
            Leaving::Written(id) => Event::Written { id },
            Leaving::Response(stag) => return memory.left(stag).then_some(Event::Freed { stag }),
        };
        self.work_leaving = self.work_leaving.saturating_sub(1);
        Some(event)
    }

    /// Posted work is sent before the end, except RDMA Reads, whose data would not be used.
    pub(super) fn forget_reads(&mut self) {
        self.queue.retain(|work| !matches!(work.operation, Operation::Read { .. }));
    }

    /// Whether one more Read Request of the peer is within IRD.
    pub(super) fn may_ask_for_read(&self, ird: u16) -> Result<(), Violation> {
        if self.responses.len() < usize::from(ird) { Ok(()) } else { Err(Violation::NoBuffer) }
    }

    /// The peer's Read Request, which was validated.
    pub(super) fn respond(&mut self, request: ReadRequest, msn: u32) {
        self.responses.push_back(Response { request, msn });
    }

    /// Where a segment of a Read Response goes: the responses arrive in the order of the requests, without
    /// gaps.
    pub(super) fn read_place(
        &self,
        stag: u32,
        offset: u64,
        len: u32,
        last: bool,
    ) -> Result<Places, Violation> {
        let read = self.reads.front().ok_or(Violation::UnexpectedOpcode)?;
        let missing = read.places.len().saturating_sub(read.arrived);
        if len > 0 && stag != read.sink_stag {
            return Err(Violation::InvalidStag);
        }
        let is_whole = len == missing;
        if len > missing || is_whole != last || (len > 0 && offset != u64::from(read.arrived)) {
            return Err(Violation::Bounds);
        }
        Ok(read.places.slice(read.arrived, len))
    }

    pub(super) fn read_arrived(&mut self, len: u32, last: bool) -> Option<Event> {
        let read = self.reads.front_mut()?;
        read.arrived = read.arrived.saturating_add(len);
        if !last {
            return None;
        }
        self.reads.pop_front()?.id.map(|id| Event::Read { id })
    }

    /// Nothing more is sent except a Terminate with this code about the FPDU that begins with `head`. Only
    /// the first error is reported (RFC 5040 section 7.1).
    pub(super) fn terminate(&mut self, code: Code, head: &[u8]) {
        if self.is_terminated || self.terminate.is_some() {
            return;
        }
        self.terminate = Some(terminate_header(code, head));
    }

    pub(super) fn owes(&self, ord: u16) -> bool {
        if self.frame.is_some() || self.terminate.is_some() {
            return true;
        }
        !self.is_terminated && !self.is_fenced && (self.ready.is_some() || self.source(ord).is_some())
    }

    /// Appends what is owed, as much as fits. An error in a message being sent ends the stream; the Terminate
    /// for it is in the batch.
    pub(super) fn fill(
        &mut self,
        agreed: &Agreed,
        memory: &mut Registrations,
        batch: &mut Transmit,
    ) -> Result<(), Violation> {
        if let Some(frame) = self.frame.take() {
            batch.push_bytes(&frame);
        }
        let markers = match agreed.markers {
            true => {
                usize::try_from(agreed.ulpdu_max.div_ceil(MARKER_INTERVAL)).unwrap_or(0).saturating_add(2)
            }
            false => 0,
        };
        let bytes = FPDU_BYTES.saturating_add(markers.saturating_mul(4));
        let segments = FPDU_SEGMENTS.saturating_add(markers.saturating_mul(2));
        let mut result = Ok(());
        while !self.is_terminated
            && (batch.has_room(bytes, segments)
                || (self.fits_full_batch() && batch.has_room_without_payload(bytes, segments)))
        {
            if let Some(payload) = self.terminate.take() {
                self.is_terminated = true;
                self.push_terminate(&payload, agreed, batch);
                break;
            }
            if self.is_fenced {
                break;
            }
            if let Some(ready) = self.ready.take() {
                self.push_ready(ready, agreed, batch);
                continue;
            }
            let Some(source) = self.source(agreed.depths.ord) else { break };
            self.current = Some(source);
            match source {
                Source::Work => self.push_work(agreed, batch),
                Source::Response => {
                    if let Err((violation, request)) = self.push_response(agreed, memory, batch) {
                        self.terminate(violation.code(), &request);
                        result = Err(violation);
                    }
                }
            }
        }
        result
    }

    /// Whether what comes next is sent with a batch that is full: messages without payload, such as an answer
    /// together with its data, and the rest of a message in progress that is not too long.
    fn fits_full_batch(&self) -> bool {
        let work = self.queue.front();
        match self.current {
            Some(Source::Work) => work.is_some_and(|work| work.total <= WHOLE_BYTES_MAX),
            Some(Source::Response) => {
                self.responses.front().is_some_and(|response| response.request.size.get() <= WHOLE_BYTES_MAX)
            }
            None => self.responses.is_empty() && work.is_some_and(|work| work.places.is_empty()),
        }
    }

    /// The message that continues, or begins.
    fn source(&self, ord: u16) -> Option<Source> {
        if self.current.is_some() {
            return self.current;
        }
        let work = match self.queue.front() {
            Some(Work { operation: Operation::Read { .. }, .. }) => self.reads.len() < usize::from(ord),
            Some(_) => true,
            None => false,
        };
        match (work, !self.responses.is_empty()) {
            (true, true) => Some(self.next),
            (true, false) => Some(Source::Work),
            (false, true) => Some(Source::Response),
            (false, false) => None,
        }
    }

    /// The next segment of the oldest work request.
    fn push_work(&mut self, agreed: &Agreed, batch: &mut Transmit) {
        let Some(work) = self.queue.front() else { return };
        let at = self.at;
        let missing = work.total.saturating_sub(at);
        match work.operation {
            Operation::Send { solicited, invalidate } => {
                let len = missing.min(agreed.ulpdu_max.saturating_sub(UNTAGGED_HEADER_BYTES));
                let last = len == missing;
                let opcode = Opcode::send(solicited, invalidate.is_some());
                let msn = self.sends.wrapping_add(1);
                let header = untagged(opcode, len, last, invalidate.unwrap_or(0), Queue::SEND, msn, at);
                let copied = self.headers.first(work.header_bytes, at, len);
                let placed = len.saturating_sub(u32::try_from(copied.len()).unwrap_or(0));
                let places = work.places.slice(at.saturating_sub(work.header_bytes), placed);
                let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
                fpdu.bytes(header.as_bytes());
                fpdu.bytes(copied);
                fpdu.payload(&places);
                fpdu.end(len.saturating_add(UNTAGGED_HEADER_BYTES));
                self.go_on(len, last, batch);
            }
            Operation::Write { stag, offset } => {
                let len = missing.min(agreed.ulpdu_max.saturating_sub(TAGGED_HEADER_BYTES));
                let last = len == missing;
                let header = tagged(Opcode::WRITE, len, last, stag, offset.wrapping_add(at.into()));
                let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
                fpdu.bytes(header.as_bytes());
                fpdu.payload(&work.places.slice(at, len));
                fpdu.end(len.saturating_add(TAGGED_HEADER_BYTES));
                self.go_on(len, last, batch);
            }
            Operation::Read { stag, offset } => {
                let (id, places, size) = (work.id, work.places, work.total);
                self.queue.pop_front();
                self.current = None;
                self.next = Source::Response;
                self.ask(Some(id), places, size, (stag, offset), agreed, batch);
            }
        }
    }

    /// A segment of a Send or Write was appended.
    fn go_on(&mut self, len: u32, last: bool, batch: &mut Transmit) {
        self.at = self.at.saturating_add(len);
        if !last {
            return;
        }
        self.at = 0;
        self.current = None;
        self.next = Source::Response;
        let Some(work) = self.queue.pop_front() else { return };
        self.headers.pop(work.header_bytes);
        let leaving = match work.operation {
            Operation::Send { .. } => {
                self.sends = self.sends.wrapping_add(1);
                Leaving::Sent(work.id)
            }
            Operation::Write { .. } if work.id == WorkId::UNSIGNALED.0 => return,
            Operation::Write { .. } | Operation::Read { .. } => Leaving::Written(work.id),
        };
        self.work_leaving = self.work_leaving.saturating_add(1);
        self.leaves(leaving, batch);
    }

    fn leaves(&mut self, what: Leaving, batch: &mut Transmit) {
        self.leaving.push_back(what);
        batch.done.push(TaskId::default());
    }

    /// Appends a Read Request.
    fn ask(
        &mut self,
        id: Option<u64>,
        places: Places,
        size: u32,
        source: (u32, u64),
        agreed: &Agreed,
        batch: &mut Transmit,
    ) {
        self.read_requests = self.read_requests.wrapping_add(1);
        let sink_stag = (self.random)();
        let request = ReadRequest {
            sink_stag: U32::new(sink_stag),
            sink_offset: U64::new(0),
            size: U32::new(size),
            source_stag: U32::new(source.0),
            source_offset: U64::new(source.1),
        };
        self.reads.push_back(Read { id, sink_stag, places, arrived: 0 });
        let header = untagged(
            Opcode::READ_REQUEST,
            READ_REQUEST_BYTES,
            true,
            0,
            Queue::READ_REQUEST,
            self.read_requests,
            0,
        );
        let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
        fpdu.bytes(header.as_bytes());
        fpdu.bytes(request.as_bytes());
        fpdu.end(READ_REQUEST_BYTES.saturating_add(UNTAGGED_HEADER_BYTES));
    }

    /// The next segment of the oldest Read Response. Its memory may have been invalidated meanwhile: then the
    /// result is the headers of the request, as far as it is not served.
    fn push_response(
        &mut self,
        agreed: &Agreed,
        memory: &mut Registrations,
        batch: &mut Transmit,
    ) -> Result<(), (Violation, [u8; 48])> {
        let Some(Response { request, msn }) = self.responses.front().copied() else { return Ok(()) };
        let at = self.at;
        let missing = request.size.get().saturating_sub(at);
        let len = missing.min(agreed.ulpdu_max.saturating_sub(TAGGED_HEADER_BYTES));
        let source = request.source_offset.get().wrapping_add(at.into());
        let sink = request.sink_offset.get().wrapping_add(at.into());
        let places = match len {
            0 => Places::EMPTY,
            _ => match memory.for_read(request.source_stag.get(), source, len) {
                Ok(places) => places,
                Err(fault) => return Err((fault.of_read(), unserved(request, msn, at))),
            },
        };
        // One entry for everything in a batch from one buffer: if there is one, the last belongs to this
        // batch.
        let leaving = Leaving::Response(request.source_stag.get());
        if len > 0 && (batch.done.is_empty() || self.leaving.back() != Some(&leaving)) {
            memory.leaves(request.source_stag.get());
            self.leaves(leaving, batch);
        }
        memory.moves(request.source_stag.get(), len);
        let last = len == missing;
        let header = tagged(Opcode::READ_RESPONSE, len, last, request.sink_stag.get(), sink);
        let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
        fpdu.bytes(header.as_bytes());
        fpdu.payload(&places);
        fpdu.end(len.saturating_add(TAGGED_HEADER_BYTES));
        self.at = at.saturating_add(len);
        if last {
            self.at = 0;
            self.current = None;
            self.next = Source::Work;
            self.responses.pop_front();
        }
        Ok(())
    }

    /// Signals that this end is ready to receive; the initiator chooses one of the negotiated ways.
    fn push_ready(&mut self, ready: ReadyToReceive, agreed: &Agreed, batch: &mut Transmit) {
        if ready.by_write {
            let header = tagged(Opcode::WRITE, 0, true, 0, 0);
            let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
            fpdu.bytes(header.as_bytes());
            fpdu.end(TAGGED_HEADER_BYTES);
        } else if ready.by_send {
            self.sends = self.sends.wrapping_add(1);
            let header = untagged(Opcode::SEND, 0, true, 0, Queue::SEND, self.sends, 0);
            let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
            fpdu.bytes(header.as_bytes());
            fpdu.end(UNTAGGED_HEADER_BYTES);
        } else {
            self.ask(None, Places::EMPTY, 0, (0, 0), agreed, batch);
        }
    }

    fn push_terminate(&mut self, payload: &[u8], agreed: &Agreed, batch: &mut Transmit) {
        let len = u32::try_from(payload.len()).unwrap_or(0);
        let header = untagged(Opcode::TERMINATE, len, true, 0, Queue::TERMINATE, 1, 0);
        let mut fpdu = Fpdu::begin(agreed, &mut self.until_marker, batch);
        fpdu.bytes(header.as_bytes());
        fpdu.bytes(payload);
        fpdu.end(len.saturating_add(UNTAGGED_HEADER_BYTES));
    }
}

const READ_REQUEST_BYTES: u32 = 28;

fn tagged(opcode: Opcode, len: u32, last: bool, stag: u32, offset: u64) -> Tagged {
    let ulpdu = len.saturating_add(TAGGED_HEADER_BYTES);
    Tagged {
        head: Head::new(u16::try_from(ulpdu).unwrap_or(u16::MAX), true, last, opcode),
        stag: U32::new(stag),
        offset: U64::new(offset),
    }
}

fn untagged(
    opcode: Opcode,
    len: u32,
    last: bool,
    invalidate_stag: u32,
    queue: Queue,
    msn: u32,
    offset: u32,
) -> Untagged {
    let ulpdu = len.saturating_add(UNTAGGED_HEADER_BYTES);
    Untagged {
        head: Head::new(u16::try_from(ulpdu).unwrap_or(u16::MAX), false, last, opcode),
        invalidate_stag: U32::new(invalidate_stag),
        queue,
        msn: U32::new(msn),
        offset: U32::new(offset),
    }
}

/// The headers of a Read Request, `at` bytes of which were served (RFC 5040 section 4.8, Terminated RDMA
/// Header).
fn unserved(request: ReadRequest, msn: u32, at: u32) -> [u8; 48] {
    let header = untagged(Opcode::READ_REQUEST, READ_REQUEST_BYTES, true, 0, Queue::READ_REQUEST, msn, 0);
    let rest = ReadRequest {
        sink_offset: U64::new(request.sink_offset.get().wrapping_add(at.into())),
        source_offset: U64::new(request.source_offset.get().wrapping_add(at.into())),
        size: U32::new(request.size.get().saturating_sub(at)),
        ..request
    };
    let mut bytes = [0; 48];
    for (place, byte) in bytes.iter_mut().zip(header.as_bytes().iter().chain(rest.as_bytes())) {
        *place = *byte;
    }
    bytes
}

/// The Terminate Header about an FPDU that begins with `head`, as far as it was received (RFC 5040 section 4.8).
fn terminate_header(code: Code, head: &[u8]) -> Vec<u8> {
    let (ddp, is_request) = match Head::view(head) {
        Some(first) if first.is_tagged() => (Tagged::BYTES, false),
        Some(first) => (Untagged::BYTES, first.opcode() == Opcode::READ_REQUEST),
        None => (usize::MAX, false),
    };
    let mut headers = code.header_control();
    let rdmap = ddp.saturating_add(ReadRequest::BYTES);
    if !is_request || head.len() < rdmap {
        headers &= !TerminateControl::RDMAP_HEADER;
    }
    if head.len() < ddp {
        headers = 0;
    }
    let end = match headers {
        0 => 0,
        headers if headers & TerminateControl::RDMAP_HEADER != 0 => rdmap,
        _ => ddp,
    };
    let control = TerminateControl::new(code.layer, code.error_type, code.code, headers);
    // The length of the DDP segment precedes it in the FPDU.
    [control.as_bytes(), head.get(..end).unwrap_or_default()].concat()
}

/// One FPDU being appended to a batch.
struct Fpdu<'a> {
    batch: &'a mut Transmit,
    /// Bytes until the next marker, when there are any.
    until_marker: Option<&'a mut u32>,
    /// Bytes since the ULPDU length field.
    since_start: u32,
    crc: bool,
}

impl<'a> Fpdu<'a> {
    fn begin(agreed: &Agreed, until_marker: &'a mut u32, batch: &'a mut Transmit) -> Fpdu<'a> {
        if agreed.crc {
            batch.start_sum();
        }
        let until_marker = agreed.markers.then_some(until_marker);
        Fpdu { batch, until_marker, since_start: 0, crc: agreed.crc }
    }

    fn bytes(&mut self, mut bytes: &[u8]) {
        if self.until_marker.is_none() {
            return self.batch.push_bytes(bytes);
        }
        while !bytes.is_empty() {
            let room = usize::try_from(self.room()).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
            self.batch.push_bytes(now);
            self.passed(u32::try_from(now.len()).unwrap_or(0));
            bytes = later;
        }
    }

    fn payload(&mut self, places: &Places) {
        if self.until_marker.is_none() {
            return places.iter().for_each(|span| self.batch.push_payload(span));
        }
        for mut span in places.iter() {
            while span.len > 0 {
                let now = span.slice(0, self.room());
                self.batch.push_payload(now);
                self.passed(now.len);
                span = span.slice(now.len, span.len);
            }
        }
    }

    /// Padding and CRC.
    fn end(mut self, ulpdu_length: u32) {
        let padding = usize::try_from(pad(ulpdu_length)).unwrap_or(0);
        if !self.crc && self.until_marker.is_none() {
            return self.bytes([0; 7].get(..padding.saturating_add(4)).unwrap_or_default());
        }
        self.bytes([0; 3].get(..padding).unwrap_or_default());
        // A marker right before the CRC is summed, too (RFC 5044 section 4.4). The CRC itself is never split:
        // FPDUs and markers are whole words.
        self.room();
        if self.crc {
            self.batch.push_sum();
        } else {
            self.batch.push_bytes(&[0; 4]);
        }
        self.passed(CRC_BYTES);
    }

    /// How many bytes may follow before the next marker, which is inserted here when it is due.
    fn room(&mut self) -> u32 {
        let Some(until) = &mut self.until_marker else { return u32::MAX };
        if **until == 0 {
            let pointer = u16::try_from(self.since_start).unwrap_or(0);
            let marker = Marker { reserved: U16::new(0), fpdu_pointer: U16::new(pointer) };
            self.batch.push_bytes(marker.as_bytes());
            **until = MARKER_INTERVAL.saturating_sub(MARKER_BYTES);
            if self.since_start > 0 {
                self.since_start = self.since_start.saturating_add(MARKER_BYTES);
            }
        }
        **until
    }

    fn passed(&mut self, len: u32) {
        self.since_start = self.since_start.saturating_add(len);
        if let Some(until) = &mut self.until_marker {
            **until = until.saturating_sub(len);
        }
    }
}
