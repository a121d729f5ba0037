//! Received data: start-up frames, then the headers and payload of FPDUs.

use super::setup::{self, ReadyToReceive};
use super::violation::{Code, Violation};
use super::{Event, QueuePair};
use crate::stream::Want;
use crate::time::Time;
use std::collections::VecDeque;
use wire::Places;
use wire::iwarp::ddp::{TAGGED_HEADER_BYTES, UNTAGGED_HEADER_BYTES};
use wire::iwarp::mpa::{CRC_BYTES, pad};
use wire::iwarp::{
    Head, Layout as _, Opcode, Queue, ReadRequest, StartFrame, Tagged, TerminateControl, Untagged,
};

/// The longest start-up frame.
pub(super) const HEAD_BYTES_MAX: usize = 20 + 512;
/// The longest payload of a Terminate: control, length, DDP header, Read Request Header, and some reserve.
const TERMINATE_BYTES_MAX: u32 = 128;
/// The shortest FPDU is longer than this, so this is read first: a tagged header, or most of an untagged one.
const FIRST_BYTES: u32 = 16;
/// The rest of an untagged header.
const REST_OF_UNTAGGED_BYTES: u32 = 4;
const READ_REQUEST_BYTES: u32 = 28;

/// What is being received.
#[derive(Clone, Copy, Debug)]
pub(super) enum Receiving {
    /// A start-up frame.
    Frame,
    /// Its private data.
    PrivateData { len: u16 },
    /// The beginning of an FPDU.
    Head,
    /// The rest of an untagged header.
    RestOfUntagged,
    /// An RDMAP header of this many bytes, with padding and CRC.
    RdmapHeader { len: u32 },
    /// Payload.
    Body(Body),
}

/// Payload of one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    segment: Segment,
    /// Where it goes; `None` if its buffer was invalidated meanwhile.
    place: Option<Places>,
    len: u32,
    last: bool,
    /// The sum of the headers, with CRCs.
    sum: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Segment {
    Send(Opcode),
    /// The zero-length Send that signals that the peer is ready to receive.
    Ready,
    Write {
        stag: u32,
    },
    ReadResponse,
}

/// Posted receives, oldest first.
pub(super) struct ReceiveQueue {
    queue: VecDeque<Receive>,
    limit: usize,
}

#[derive(Clone, Copy)]
struct Receive {
    id: u64,
    places: Places,
}

impl ReceiveQueue {
    pub(super) fn new(limit: u16) -> ReceiveQueue {
        ReceiveQueue { queue: VecDeque::new(), limit: limit.into() }
    }

    /// `false`: there is no room.
    pub(super) fn post(&mut self, id: u64, places: Places) -> bool {
        let has_room = self.queue.len() < self.limit;
        if has_room {
            self.queue.push_back(Receive { id, places });
        }
        has_room
    }
}

/// What must come next.
#[derive(Default)]
pub(super) struct Expected {
    /// Messages that were received on the queues of Sends and of Read Requests.
    sends: u32,
    read_requests: u32,
    /// The Send in progress: its opcode, the STag it invalidates, and how much of it was received.
    send: Option<(Opcode, u32)>,
    send_bytes: u32,
    /// The first message must signal, in one of these ways and by this time, that the peer is ready to
    /// receive.
    pub(super) ready: Option<(ReadyToReceive, Time)>,
}

impl QueuePair {
    pub(super) fn wanted(&self) -> Want {
        match self.receiving {
            Receiving::Frame => Want::Header { len: u32::try_from(StartFrame::BYTES).unwrap_or(0) },
            Receiving::PrivateData { len } => Want::Header { len: len.into() },
            Receiving::Head => Want::Header { len: FIRST_BYTES },
            Receiving::RestOfUntagged => Want::Header { len: REST_OF_UNTAGGED_BYTES },
            Receiving::RdmapHeader { len } => {
                let padding = pad(len.saturating_add(UNTAGGED_HEADER_BYTES));
                Want::Header { len: len.saturating_add(padding).saturating_add(CRC_BYTES) }
            }
            Receiving::Body(Body { segment, place, len, sum, .. }) => {
                let header = match segment {
                    Segment::Send(_) | Segment::Ready => UNTAGGED_HEADER_BYTES,
                    Segment::Write { .. } | Segment::ReadResponse => TAGGED_HEADER_BYTES,
                };
                let padding = pad(len.saturating_add(header));
                let pad = if sum.is_some() { padding } else { padding.saturating_add(CRC_BYTES) };
                match place {
                    Some(place) => Want::Body { place, pad, digest: sum },
                    None => Want::Skip { len, pad, digest: sum },
                }
            }
        }
    }

    /// Whether the headers of an FPDU were received in part.
    pub(super) fn is_in_headers(&self) -> bool {
        matches!(self.receiving, Receiving::RestOfUntagged | Receiving::RdmapHeader { .. })
    }

    /// Bytes of the peer's start-up frame.
    pub(super) fn start_up(&mut self, now: Time, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
        if matches!(self.receiving, Receiving::Frame) {
            let key = if self.is_initiator { StartFrame::REPLY } else { StartFrame::REQUEST };
            match setup::check_frame(bytes, key) {
                Ok(0) => {}
                Ok(len) => {
                    self.receiving = Receiving::PrivateData { len };
                    return;
                }
                Err(reason) => return self.over(reason),
            }
        }
        self.started(now);
    }

    /// Headers of an FPDU.
    pub(super) fn validate(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        match self.receiving {
            Receiving::Head => {
                self.head.clear();
                self.head.extend_from_slice(bytes);
                self.first_bytes()
            }
            Receiving::RestOfUntagged => {
                self.head.extend_from_slice(bytes);
                self.untagged()
            }
            Receiving::RdmapHeader { .. } => {
                self.head.extend_from_slice(bytes);
                self.rdmap_header()
            }
            Receiving::Frame | Receiving::PrivateData { .. } | Receiving::Body(_) => Ok(()),
        }
    }

    fn first_bytes(&mut self) -> Result<(), Violation> {
        let Some(head) = Head::view(&self.head).copied() else { return Err(Violation::FpduLength) };
        let least = if head.is_tagged() { TAGGED_HEADER_BYTES } else { UNTAGGED_HEADER_BYTES };
        let len = u32::from(head.ulpdu_length.get()).checked_sub(least).ok_or(Violation::FpduLength)?;
        if !head.is_tagged() {
            self.receiving = Receiving::RestOfUntagged;
            return Ok(());
        }
        self.tagged(len)
    }

    fn tagged(&mut self, len: u32) -> Result<(), Violation> {
        let Some(pdu) = Tagged::view(&self.head).copied() else { return Err(Violation::FpduLength) };
        check_versions(&pdu.head)?;
        let last = pdu.head.is_last();
        let (stag, offset) = (pdu.stag.get(), pdu.offset.get());
        let (segment, place) = match pdu.head.opcode() {
            Opcode::WRITE => {
                self.is_first_right(|ready| ready.by_write && last && len == 0)?;
                // Nothing is checked of a segment without payload (RFC 5041 section 5.2).
                let place = match len {
                    0 => Places::EMPTY,
                    _ => self.memory.for_write(stag, offset, len).map_err(|fault| fault.of_write())?,
                };
                (Segment::Write { stag }, place)
            }
            Opcode::READ_RESPONSE => {
                self.is_first_right(|_| false)?;
                (Segment::ReadResponse, self.sending.read_place(stag, offset, len, last)?)
            }
            _ => return Err(Violation::UnexpectedOpcode),
        };
        self.expect_body(segment, place, len, last);
        Ok(())
    }

    fn untagged(&mut self) -> Result<(), Violation> {
        let Some(pdu) = Untagged::view(&self.head).copied() else { return Err(Violation::FpduLength) };
        check_versions(&pdu.head)?;
        let len = u32::from(pdu.head.ulpdu_length.get()).saturating_sub(UNTAGGED_HEADER_BYTES);
        match pdu.queue {
            Queue::SEND => self.send_segment(&pdu, len),
            Queue::READ_REQUEST => {
                self.is_first_right(|ready| ready.by_read)?;
                self.expect_header(&pdu, Opcode::READ_REQUEST, self.expected.read_requests)?;
                self.sending.may_ask_for_read(self.agreed.depths.ird)?;
                match len.cmp(&READ_REQUEST_BYTES) {
                    std::cmp::Ordering::Less => return Err(Violation::MalformedHeader),
                    std::cmp::Ordering::Equal => {}
                    std::cmp::Ordering::Greater => return Err(Violation::MessageTooLong),
                }
                self.receiving = Receiving::RdmapHeader { len };
                Ok(())
            }
            Queue::TERMINATE => {
                self.expect_header(&pdu, Opcode::TERMINATE, 0)?;
                if len < u32::try_from(TerminateControl::BYTES).unwrap_or(len) {
                    return Err(Violation::MalformedHeader);
                }
                if len > TERMINATE_BYTES_MAX {
                    return Err(Violation::MessageTooLong);
                }
                self.receiving = Receiving::RdmapHeader { len };
                Ok(())
            }
            _ => Err(Violation::InvalidQueue),
        }
    }

    /// A segment that is a whole message of RDMAP, after `count` others on its queue.
    fn expect_header(&self, pdu: &Untagged, opcode: Opcode, count: u32) -> Result<(), Violation> {
        if pdu.head.opcode() != opcode {
            return Err(Violation::UnexpectedOpcode);
        }
        if pdu.msn.get() != count.wrapping_add(1) {
            return Err(Violation::InvalidMsn);
        }
        if pdu.offset.get() != 0 {
            return Err(Violation::InvalidOffset);
        }
        if pdu.head.is_last() { Ok(()) } else { Err(Violation::MalformedHeader) }
    }

    fn send_segment(&mut self, pdu: &Untagged, len: u32) -> Result<(), Violation> {
        let (opcode, last, stag) = (pdu.head.opcode(), pdu.head.is_last(), pdu.invalidate_stag.get());
        if !opcode.is_send() {
            return Err(Violation::UnexpectedOpcode);
        }
        let is_ready = self.expected.ready.is_some();
        self.is_first_right(|ready| ready.by_send && last && len == 0)?;
        if pdu.msn.get() != self.expected.sends.wrapping_add(1) {
            return Err(Violation::InvalidMsn);
        }
        if pdu.offset.get() != self.expected.send_bytes {
            return Err(Violation::InvalidOffset);
        }
        if is_ready {
            self.expect_body(Segment::Ready, Places::EMPTY, len, last);
            return Ok(());
        }
        let receive = self.receives.queue.front().ok_or(Violation::NoBuffer)?;
        let end = self.expected.send_bytes.checked_add(len).ok_or(Violation::MessageTooLong)?;
        if end > receive.places.len() {
            return Err(Violation::MessageTooLong);
        }
        let place = receive.places.slice(self.expected.send_bytes, len);
        if *self.expected.send.get_or_insert((opcode, stag)) != (opcode, stag) {
            return Err(Violation::UnexpectedOpcode);
        }
        self.expect_body(Segment::Send(opcode), place, len, last);
        Ok(())
    }

    /// In a peer-to-peer connection, the first message that the responder receives must signal that the
    /// initiator is ready to receive.
    fn is_first_right(&self, is_right: impl Fn(ReadyToReceive) -> bool) -> Result<(), Violation> {
        match self.expected.ready {
            Some((ready, _)) if !is_right(ready) => Err(Violation::ReadyToReceive),
            Some(_) | None => Ok(()),
        }
    }

    fn expect_body(&mut self, segment: Segment, place: Places, len: u32, last: bool) {
        let sum = self.agreed.crc.then(|| (self.config.crc32c)(&self.head));
        self.receiving = Receiving::Body(Body { segment, place: Some(place), len, last, sum });
    }

    /// Payload for this STag is discarded from now on.
    pub(super) fn drop_body_of(&mut self, gone: u32) {
        if let Receiving::Body(Body { segment: Segment::Write { stag }, place, len, .. }) =
            &mut self.receiving
            && *stag == gone
            && *len > 0
        {
            *place = None;
        }
    }

    /// All of a segment's payload was received.
    pub(super) fn arrived(&mut self, digest_ok: bool) -> Result<(), Violation> {
        let Receiving::Body(body) = self.receiving else { return Ok(()) };
        self.receiving = Receiving::Head;
        if !digest_ok {
            return Err(Violation::Crc);
        }
        if body.place.is_none() {
            return Err(Violation::InvalidStag);
        }
        self.first_has_come();
        match body.segment {
            Segment::Write { stag } => {
                self.memory.moves(stag, body.len);
                Ok(())
            }
            Segment::Ready => {
                self.expected.sends = self.expected.sends.wrapping_add(1);
                Ok(())
            }
            Segment::ReadResponse => {
                self.events.extend(self.sending.read_arrived(body.len, body.last));
                Ok(())
            }
            Segment::Send(opcode) => self.send_arrived(opcode, body.len, body.last),
        }
    }

    fn send_arrived(&mut self, opcode: Opcode, len: u32, last: bool) -> Result<(), Violation> {
        self.expected.send_bytes = self.expected.send_bytes.saturating_add(len);
        if !last {
            return Ok(());
        }
        let len = std::mem::take(&mut self.expected.send_bytes);
        let (_, stag) = self.expected.send.take().unwrap_or((opcode, 0));
        let invalidated = opcode.invalidates().then_some(stag);
        if let Some(stag) = invalidated
            && !self.invalidate(stag)
        {
            return Err(Violation::CannotInvalidate);
        }
        self.expected.sends = self.expected.sends.wrapping_add(1);
        let Some(Receive { id, .. }) = self.receives.queue.pop_front() else { return Ok(()) };
        self.events.push_back(Event::Received { id, len, solicited: opcode.is_solicited(), invalidated });
        Ok(())
    }

    /// A Read Request or Terminate with padding and CRC, after its headers.
    fn rdmap_header(&mut self) -> Result<(), Violation> {
        self.receiving = Receiving::Head;
        let end = self.head.len().saturating_sub(usize::try_from(CRC_BYTES).unwrap_or(0));
        let (summed, crc) = self.head.split_at_checked(end).ok_or(Violation::FpduLength)?;
        if self.agreed.crc && crc != (self.config.crc32c)(summed).to_le_bytes() {
            return Err(Violation::Crc);
        }
        let Some(pdu) = Untagged::view(summed).copied() else { return Err(Violation::FpduLength) };
        let header = summed.get(Untagged::BYTES..).unwrap_or_default();
        if pdu.head.opcode() == Opcode::TERMINATE {
            let control = TerminateControl::view(header).copied().unwrap_or_default();
            let (layer, error_type) = (control.layer(), control.error_type());
            let code = Code { layer, error_type, code: control.code };
            self.over(&format!("terminated by the peer: {code}"));
            return Ok(());
        }
        let request = ReadRequest::view(header).copied().ok_or(Violation::MalformedHeader)?;
        let size = request.size.get();
        self.is_first_right(|ready| ready.by_read && size == 0)?;
        if size > 0 {
            let (stag, offset) = (request.source_stag.get(), request.source_offset.get());
            self.memory.for_read(stag, offset, size).map_err(|fault| fault.of_read())?;
        }
        self.first_has_come();
        self.expected.read_requests = pdu.msn.get();
        self.sending.respond(request, pdu.msn.get());
        Ok(())
    }

    /// The peer is ready to receive (RFC 5044 section 7.1.2, rule 4).
    fn first_has_come(&mut self) {
        self.sending.is_fenced = false;
        self.expected.ready = None;
    }
}

fn check_versions(head: &Head) -> Result<(), Violation> {
    if head.ddp_control & Head::DDP_VERSION_MASK != Head::DDP_VERSION {
        let tagged = head.is_tagged();
        return Err(if tagged { Violation::TaggedVersion } else { Violation::UntaggedVersion });
    }
    match head.rdmap_control & Head::RDMAP_VERSION_MASK {
        Head::RDMAP_VERSION | Head::RDMAP_VERSION_CONSORTIUM => Ok(()),
        _ => Err(Violation::RdmapVersion),
    }
}
