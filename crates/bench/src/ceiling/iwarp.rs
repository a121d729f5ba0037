//! iWARP, just enough for our own initiator: long FPDUs, without CRCs and markers. Peers that require more
//! are rejected. The frames on the wire are the same as Lunette's.

use super::batch::{Batch, bytes};
use super::breach;
use super::connection::{Ends, Input, Responder};
use super::iser::Iser;
use super::session::Data;
use super::srp::Srp;
use std::collections::VecDeque;
use std::io;
use wire::iwarp::ddp::{TAGGED_HEADER_BYTES, UNTAGGED_HEADER_BYTES};
use wire::iwarp::mpa::{CRC_BYTES, ULPDU_LENGTH_BYTES, pad};
use wire::iwarp::{Head, Layout as _, Opcode, Queue, ReadDepths, ReadRequest, StartFrame, Tagged, Untagged};
use wire::srp::LoginRequestRdma;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// The MPA revision that negotiates RDMA Read depths (RFC 6581).
const REVISION: u8 = 2;
/// The longest ULPDU, as two Lunettes agree on it.
const ULPDU_BYTES: u32 = 65_530;
/// The CRC field, which is never verified.
const CRC: [u8; 4] = [0; CRC_BYTES as usize];
/// Zeros for padding.
const PADDING: [u8; 3] = [0; 3];

/// A buffer of the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Remote {
    pub(super) stag: u32,
    pub(super) offset: u64,
}

/// The protocol over iWARP.
pub(super) trait Messages {
    /// Answers a message.
    fn message(&mut self, message: &[u8], queues: &mut WorkQueues<'_, '_>) -> io::Result<()>;

    /// All data of the RDMA Read for this place was received and discarded.
    fn read(&mut self, place: u32, queues: &mut WorkQueues<'_, '_>) -> io::Result<()>;

    /// Whether nothing more will be answered.
    fn is_over(&self) -> bool;
}

/// One end of a connection.
pub(super) struct Iwarp {
    ends: Ends,
    /// `None`: the connection is not established yet.
    upper: Option<Box<dyn Messages>>,
    queues: Queues,
    /// The place whose RDMA Read completes once the payload being discarded has been received.
    arriving: Option<u32>,
    is_rejected: bool,
}

/// What was sent, and what may be sent.
#[derive(Default)]
struct Queues {
    sends: u32,
    read_requests: u32,
    /// RDMA Reads in progress, and how many there may be.
    reading: u16,
    reading_max: u16,
    waiting: VecDeque<ReadRequest>,
}

/// The verbs available to an upper layer.
pub(super) struct WorkQueues<'a, 'b> {
    batch: &'a mut Batch<'b>,
    queues: &'a mut Queues,
}

impl Iwarp {
    pub(super) fn new(ends: Ends) -> Iwarp {
        Iwarp { ends, upper: None, queues: Queues::default(), arriving: None, is_rejected: false }
    }

    /// Answers the connection request (RFC 5044 section 7.1.1, RFC 6581 section 9); `false`: it is
    /// incomplete.
    fn start(&mut self, input: &mut Input, batch: &mut Batch<'_>) -> io::Result<bool> {
        let received_at = input.received_at();
        let Some(frame) = StartFrame::view(received_at).copied() else { return Ok(false) };
        let end = StartFrame::BYTES + usize::from(frame.private_data_length.get());
        let Some(private_data) = received_at.get(StartFrame::BYTES..end) else { return Ok(false) };
        let asked = ReadDepths::view(private_data).copied().filter(|_| frame.has(StartFrame::ENHANCED));
        let asked = asked.ok_or_else(|| breach("MPA without depths of RDMA Reads"))?;
        let private_data = private_data.get(ReadDepths::BYTES..).unwrap_or_default();
        let is_peer = asked.ird.get() & ReadDepths::PEER_TO_PEER != 0;
        let is_served = frame.revision == REVISION
            && frame.has(StartFrame::LONG_FPDUS)
            && frame.flags & (StartFrame::CRC | StartFrame::MARKERS) == 0
            && (!is_peer || asked.ord.get() & ReadDepths::READY_BY_WRITE != 0);
        let mut flags = StartFrame::ENHANCED | StartFrame::LONG_FPDUS;
        let mut answer = Vec::new();
        if is_served {
            let (upper, private_data) = self.upper(private_data)?;
            (self.upper, answer) = (Some(upper), private_data);
        } else {
            flags |= StartFrame::REJECTED;
            self.is_rejected = true;
            tracing::warn!("turned away: no long FPDUs, or CRCs, or markers");
        }
        self.queues.reading_max = asked.inbound();
        let (peer, ready) =
            if is_peer { (ReadDepths::PEER_TO_PEER, ReadDepths::READY_BY_WRITE) } else { (0, 0) };
        let depths = ReadDepths { ird: U16::new(peer), ord: U16::new(asked.inbound() | ready) };
        let len = u16::try_from(ReadDepths::BYTES + answer.len()).unwrap_or(u16::MAX);
        let private_data_length = U16::new(len);
        let reply = StartFrame { key: StartFrame::REPLY, flags, revision: REVISION, private_data_length };
        batch.add(&[reply.as_bytes(), depths.as_bytes(), &answer], 0)?;
        input.pass(end, 0);
        Ok(true)
    }

    /// The protocol to speak, according to the private data: SRP's is a whole login.
    fn upper(&self, private_data: &[u8]) -> io::Result<(Box<dyn Messages>, Vec<u8>)> {
        if private_data.len() < LoginRequestRdma::BYTES {
            let (iser, answer) = Iser::accept(self.ends, private_data);
            return Ok((Box::new(iser), answer));
        }
        let (srp, answer) = Srp::accept(self.ends, private_data)?;
        Ok((Box::new(srp), answer))
    }

    /// Processes an FPDU; `false`: it is incomplete.
    fn fpdu(&mut self, input: &mut Input, batch: &mut Batch<'_>) -> io::Result<bool> {
        let Some(upper) = &mut self.upper else { return Ok(false) };
        let mut queues = WorkQueues { batch, queues: &mut self.queues };
        if let Some(place) = self.arriving.take() {
            queues.arrived()?;
            upper.read(place, &mut queues)?;
            return Ok(true);
        }
        let Some(head) = Head::view(input.received_at()).copied() else { return Ok(false) };
        let ulpdu = u32::from(head.ulpdu_length.get());
        let end = bytes(ulpdu + ULPDU_LENGTH_BYTES);
        let whole = bytes(ulpdu + ULPDU_LENGTH_BYTES + pad(ulpdu) + CRC_BYTES);
        if head.is_tagged() {
            let Some(tagged) = Tagged::view(input.received_at()).copied() else { return Ok(false) };
            let rest = whole.checked_sub(Tagged::BYTES).ok_or_else(|| breach("an FPDU that is cut short"))?;
            // An RDMA Write has no data: it signals that the initiator is ready to receive.
            if tagged.head.opcode() == Opcode::READ_RESPONSE && head.is_last() {
                self.arriving = Some(tagged.stag.get());
            }
            input.pass(Tagged::BYTES, rest);
            return Ok(true);
        }
        let Some(fpdu) = input.received_at().get(..whole) else { return Ok(false) };
        let message = fpdu.get(Untagged::BYTES..end).ok_or_else(|| breach("an FPDU that is cut short"))?;
        if !(head.opcode().is_send() && head.is_last()) {
            return Err(breach("a Terminate, an RDMA Read, or a message in several FPDUs"));
        }
        upper.message(message, &mut queues)?;
        input.pass(whole, 0);
        Ok(true)
    }
}

impl Responder for Iwarp {
    fn answer(&mut self, input: &mut Input, batch: &mut Batch<'_>) -> io::Result<()> {
        while !self.is_over() && input.skip() {
            let is_done = match self.upper {
                Some(_) => self.fpdu(input, batch)?,
                None => self.start(input, batch)?,
            };
            if !is_done {
                break;
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_rejected || self.upper.as_ref().is_some_and(|upper| upper.is_over())
    }
}

impl WorkQueues<'_, '_> {
    /// Sends a message of a few bytes; with `invalidate`, the initiator's STag is invalid once it has
    /// arrived.
    pub(super) fn send(
        &mut self,
        message: &[&[u8]],
        solicited: bool,
        invalidate: Option<u32>,
    ) -> io::Result<()> {
        self.queues.sends = self.queues.sends.wrapping_add(1);
        let opcode = Opcode::send(solicited, invalidate.is_some());
        let header = Untagged {
            invalidate_stag: U32::new(invalidate.unwrap_or(0)),
            queue: Queue::SEND,
            msn: U32::new(self.queues.sends),
            ..untagged(opcode, message.iter().map(|part| part.len()).sum())
        };
        self.batch.add(&[header.as_bytes()], 0)?;
        self.batch.add(message, 0)?;
        self.batch.add(&[padding(header.head), &CRC], 0)
    }

    /// RDMA Write.
    pub(super) fn write(&mut self, to: Remote, data: Data<'_>) -> io::Result<()> {
        let mut at = 0;
        while at < data.len() {
            let len = (data.len() - at).min(ULPDU_BYTES - TAGGED_HEADER_BYTES);
            let ulpdu = len + TAGGED_HEADER_BYTES;
            let last = at + len == data.len();
            let head = Head::new(u16::try_from(ulpdu).unwrap_or(u16::MAX), true, last, Opcode::WRITE);
            let offset = U64::new(to.offset.wrapping_add(at.into()));
            let header = Tagged { head, stag: U32::new(to.stag), offset };
            match data {
                Data::Payload(_) => self.batch.add(&[header.as_bytes()], len)?,
                // The unit's own answers are short.
                Data::Own(data) => self.batch.add(&[header.as_bytes(), data], 0)?,
            }
            self.batch.add(&[padding(head), &CRC], 0)?;
            at += len;
        }
        Ok(())
    }

    /// RDMA Read; [`Messages::read`] gets `place` once it completes.
    pub(super) fn read(&mut self, place: u32, from: Remote, len: u32) -> io::Result<()> {
        let request = ReadRequest {
            sink_stag: U32::new(place),
            sink_offset: U64::new(0),
            size: U32::new(len),
            source_stag: U32::new(from.stag),
            source_offset: U64::new(from.offset),
        };
        self.queues.waiting.push_back(request);
        self.ask()
    }

    /// The oldest RDMA Read has completed.
    fn arrived(&mut self) -> io::Result<()> {
        self.queues.reading = self.queues.reading.saturating_sub(1);
        self.ask()
    }

    fn ask(&mut self) -> io::Result<()> {
        while self.queues.reading < self.queues.reading_max
            && let Some(request) = self.queues.waiting.pop_front()
        {
            self.queues.reading += 1;
            self.queues.read_requests = self.queues.read_requests.wrapping_add(1);
            let header = Untagged {
                queue: Queue::READ_REQUEST,
                msn: U32::new(self.queues.read_requests),
                ..untagged(Opcode::READ_REQUEST, ReadRequest::BYTES)
            };
            self.batch.add(&[header.as_bytes(), request.as_bytes(), padding(header.head), &CRC], 0)?;
        }
        Ok(())
    }
}

/// The header of a message of this many bytes in one FPDU.
fn untagged(opcode: Opcode, len: usize) -> Untagged {
    let ulpdu = u16::try_from(len + bytes(UNTAGGED_HEADER_BYTES)).unwrap_or(u16::MAX);
    Untagged { head: Head::new(ulpdu, false, true, opcode), ..Untagged::default() }
}

/// The padding of an FPDU.
fn padding(head: Head) -> &'static [u8] {
    &PADDING[..bytes(pad(head.ulpdu_length.get().into()))]
}
