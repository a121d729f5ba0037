//! iWARP over a byte stream: MPA, DDP and RDMAP (RFC 5044, 6581, 5041, 5040), both roles in one machine.
//!
//! The upper side is a queue pair as in RDMA verbs: receives and work requests are posted, their completions
//! are events. `setup` is the exchange of start-up frames, `receive` validates what is received, `send` cuts
//! messages into FPDUs while a batch has room, `memory` is what a peer may access, and `violation` what it
//! may not do.

pub mod memory;
mod receive;
mod send;
pub mod setup;
pub mod violation;

use crate::services::TaskId;
use crate::stream::{StreamMachine, Transmit, Want};
use crate::time::Time;
use memory::{Access, Registrations};
use receive::{Expected, ReceiveQueue, Receiving};
use send::{Operation, Sending, Work};
use setup::{Depths, Offer, ReadyToReceive};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;
use violation::Violation;
use wire::Places;

/// The most RDMA Reads in flight in one direction.
pub const READS_MAX: u16 = 256;
/// The most incomplete work requests of one connection.
pub const WORK_MAX: u16 = 4096;
/// The most posted receives of one connection.
pub const RECEIVES_MAX: u16 = 4096;
/// The most bytes at the beginning of a Send that are copied when it is posted.
pub const HEADER_BYTES_MAX: usize = send::HEADER_BYTES_MAX;

/// How long an initiator waits for the reply (as siw does).
const REPLY_WITHIN: Duration = Duration::from_secs(10);
/// How long a responder waits for the request (as siw does).
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// How long a responder waits for the ready-to-receive message of a peer-to-peer initiator.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long the last messages may take to be sent.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// The configuration of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// As initiator: negotiate IRD and ORD in the frames of MPA revision 2. A responder follows its peer.
    pub enhanced: bool,
    /// CRCs are requested. They are used if either end requests them.
    pub crc: bool,
    /// Accept FPDUs that are longer than a TCP segment, and send them to a peer that accepts them.
    pub long_fpdus: bool,
    /// RDMA Reads that this end serves and issues at a time (up to [`READS_MAX`]).
    pub depths: Depths,
    /// As enhanced initiator: the connection is peer-to-peer, and this end can signal readiness in these
    /// ways.
    pub ready: Option<ReadyToReceive>,
    /// What fits into one TCP segment of the path (EMSS), for peers that do not accept long FPDUs.
    pub segment_bytes: u32,
    /// The most incomplete work requests (up to [`WORK_MAX`]).
    pub work: u16,
    /// The most posted receives (up to [`RECEIVES_MAX`]).
    pub receives: u16,
    /// The most registered buffers (up to [`memory::REGISTRATIONS_MAX`]).
    pub registrations: u16,
    /// CRC32C.
    pub crc32c: fn(&[u8]) -> u32,
    /// Unpredictable bits for STags (RFC 5042 section 6.3.5).
    pub random: fn() -> u32,
}

/// What both ends have negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// FPDUs have CRCs.
    pub crc: bool,
    /// Markers are sent.
    pub markers: bool,
    /// The longest ULPDU that is sent.
    pub ulpdu_max: u32,
    /// RDMA Reads at a time.
    pub depths: Depths,
}

/// Events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// As responder: a peer requests a connection. Answer by [`QueuePair::accept`] or [`QueuePair::reject`].
    Request {
        /// Revision of MPA.
        revision: u8,
        /// How many RDMA Reads it wants to serve and issue, if it says.
        depths: Option<Depths>,
        /// Private data.
        private_data: Vec<u8>,
    },
    /// The connection is established.
    Established {
        /// What was negotiated.
        agreed: Agreed,
        /// How many RDMA Reads the peer serves and issues, if it said so (RFC 6581 section 9.1).
        depths: Option<Depths>,
        /// As initiator: the private data of the reply.
        private_data: Vec<u8>,
    },
    /// As initiator: the peer rejected the connection. `Gone` follows.
    Rejected {
        /// How many RDMA Reads the peer would serve and issue, if it says.
        depths: Option<Depths>,
        /// Private data.
        private_data: Vec<u8>,
    },
    /// A Send has arrived in the oldest of the posted receives.
    Received {
        /// The receive.
        id: u64,
        /// Length in bytes.
        len: u32,
        /// The peer requested an event.
        solicited: bool,
        /// The STag that the peer has invalidated: it is no longer registered.
        invalidated: Option<u32>,
    },
    /// A Send has been sent; its places are free.
    Sent {
        /// The work request.
        id: u64,
    },
    /// An RDMA Write has been sent; its places are free.
    Written {
        /// The work request.
        id: u64,
    },
    /// The data of an RDMA Read is in its places.
    Read {
        /// The work request.
        id: u64,
    },
    /// Bytes of a buffer that the peer read were still being sent when its STag was invalidated, and have
    /// been sent now: its places are free.
    Freed {
        /// The STag.
        stag: u32,
    },
    /// The connection has ended, and all posted work is void. Always the last event.
    Gone {
        /// Why.
        reason: String,
    },
}

/// Why something cannot be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The queue is full.
    Full,
    /// The connection is not established, has ended, or is in the wrong state for the call.
    State,
    /// The message, its header or the private data is too long.
    TooLong,
    /// The peer serves no RDMA Reads.
    NoReads,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Full => "queue is full",
            Refused::State => "not in this state of the connection",
            Refused::TooLong => "too long",
            Refused::NoReads => "the peer serves no RDMA Reads",
        })
    }
}

impl std::error::Error for Refused {}

/// One end of an iWARP connection.
pub struct QueuePair {
    config: Config,
    is_initiator: bool,
    phase: Phase,
    agreed: Agreed,
    receiving: Receiving,
    /// The start-up frame or the headers received so far.
    head: Vec<u8>,
    receives: ReceiveQueue,
    expected: Expected,
    memory: Registrations,
    sending: Sending,
    events: VecDeque<Event>,
}

/// The state of the connection.
enum Phase {
    /// Waits for the peer's start-up frame.
    Starting {
        deadline: Time,
    },
    /// The caller is deciding about the peer's request.
    Requested(Box<Offer>),
    /// Established: messages go both ways.
    Full,
    /// The last messages are being sent; then it ends for this reason.
    Closing {
        deadline: Time,
        reason: String,
    },
    Over,
}

impl QueuePair {
    /// The end that opened the TCP connection, which sends the MPA request.
    pub fn initiator(mut config: Config, private_data: &[u8], now: Time) -> Result<QueuePair, Refused> {
        config.ready = config.ready.filter(|_| config.enhanced);
        if !setup::fits(private_data, config.enhanced) {
            return Err(Refused::TooLong);
        }
        let mut pair = QueuePair::new(config, true, now.after(REPLY_WITHIN));
        pair.sending.frame = Some(setup::request(&config, private_data));
        Ok(pair)
    }

    /// The end that accepted the TCP connection, which waits for the MPA request.
    pub fn responder(config: Config, now: Time) -> QueuePair {
        QueuePair::new(config, false, now.after(REQUEST_WITHIN))
    }

    fn new(config: Config, is_initiator: bool, deadline: Time) -> QueuePair {
        let none = Depths { ird: 0, ord: 0 };
        QueuePair {
            config,
            is_initiator,
            phase: Phase::Starting { deadline },
            agreed: Agreed { crc: false, markers: false, ulpdu_max: 0, depths: none },
            receiving: Receiving::Frame,
            head: Vec::with_capacity(receive::HEAD_BYTES_MAX),
            receives: ReceiveQueue::new(config.receives.min(RECEIVES_MAX)),
            expected: Expected::default(),
            memory: Registrations::new(config.registrations, config.random),
            sending: Sending::new(&config),
            events: VecDeque::new(),
        }
    }

    /// As responder, in answer to [`Event::Request`]: accepts the connection.
    pub fn accept(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused> {
        let Phase::Requested(offer) = &self.phase else { return Err(Refused::State) };
        if !setup::fits(private_data, offer.depths.is_some()) {
            return Err(Refused::TooLong);
        }
        let (frame, setup) = setup::accept(&self.config, offer, private_data);
        self.sending.frame = Some(frame);
        self.sending.is_fenced = true;
        self.expected.ready = setup.ready.map(|ready| (ready, now.after(READY_WITHIN)));
        let depths = offer.depths;
        self.establish(setup.agreed, depths, Vec::new());
        Ok(())
    }

    /// As responder, in answer to [`Event::Request`]: rejects the connection.
    pub fn reject(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused> {
        let Phase::Requested(offer) = &self.phase else { return Err(Refused::State) };
        if !setup::fits(private_data, offer.depths.is_some()) {
            return Err(Refused::TooLong);
        }
        self.sending.frame = Some(setup::reject(&self.config, offer, private_data));
        self.close_for(now, "rejected by this side".to_string());
        Ok(())
    }

    /// Posts a buffer for one Send of the peer. They are used in the order of posting, which may begin before
    /// the connection is established.
    pub fn post_receive(&mut self, id: u64, places: Places) -> Result<(), Refused> {
        if matches!(self.phase, Phase::Closing { .. } | Phase::Over) {
            return Err(Refused::State);
        }
        if self.receives.post(id, places) { Ok(()) } else { Err(Refused::Full) }
    }

    /// Sends `header` and then the bytes at `from`, as one message. With `invalidate`, the peer's STag is invalid
    /// once it has arrived.
    pub fn send(
        &mut self,
        id: u64,
        header: &[u8],
        from: Places,
        solicited: bool,
        invalidate: Option<u32>,
    ) -> Result<(), Refused> {
        self.post(id, header, from, Operation::Send { solicited, invalidate })
    }

    /// Writes the bytes at `from` to `offset` in the peer's buffer `stag`. With the id
    /// [`crate::message::WorkId::UNSIGNALED`], there is no event for it.
    pub fn write(&mut self, id: u64, from: Places, stag: u32, offset: u64) -> Result<(), Refused> {
        self.post(id, &[], from, Operation::Write { stag, offset })
    }

    /// Fills `into` with the bytes at `offset` in the peer's buffer `stag`. Reads are issued in order; what
    /// was posted after one that waits for ORD waits, too.
    pub fn read(&mut self, id: u64, into: Places, stag: u32, offset: u64) -> Result<(), Refused> {
        if matches!(self.phase, Phase::Full) && self.agreed.depths.ord == 0 {
            return Err(Refused::NoReads);
        }
        self.post(id, &[], into, Operation::Read { stag, offset })
    }

    fn post(&mut self, id: u64, header: &[u8], places: Places, operation: Operation) -> Result<(), Refused> {
        if !matches!(self.phase, Phase::Full) {
            return Err(Refused::State);
        }
        let work = Work::new(id, header, places, operation).ok_or(Refused::TooLong)?;
        if self.sending.post(work, header) { Ok(()) } else { Err(Refused::Full) }
    }

    /// Lets the peer read or write `places`, from offset 0 on, by the returned STag, until that is
    /// invalidated.
    pub fn register(&mut self, places: Places, access: Access) -> Result<u32, Refused> {
        self.memory.register(places, access).ok_or(Refused::Full)
    }

    /// Invalidates the STag; `false` when it was not valid. A peer that still uses it has violated the
    /// protocol. Bytes of its places may still be on their way to a peer that has read them
    /// ([`QueuePair::is_leaving`]), and a receive into them may be in flight, until that has finished.
    pub fn invalidate(&mut self, stag: u32) -> bool {
        self.drop_body_of(stag);
        self.memory.invalidate(stag)
    }

    /// Bytes that the peer has written to the buffer with this STag, or the last one that had it, or that it
    /// has read.
    pub fn moved(&self, stag: u32) -> u32 {
        self.memory.moved(stag)
    }

    /// Whether bytes of the buffer with this STag, even if it is invalid now, are in a batch that has not
    /// been sent. Once it has, and the STag is invalid, [`Event::Freed`] reports that.
    pub fn is_leaving(&self, stag: u32) -> bool {
        self.memory.is_leaving(stag)
    }

    /// The batch that names this task in [`Transmit::done`] has been sent.
    pub fn pushed(&mut self, _task: TaskId) {
        if let Some(event) = self.sending.left(&mut self.memory)
            && !matches!(self.phase, Phase::Over)
        {
            self.events.push_back(event);
        }
    }

    /// Closes the connection, once posted work has been sent. Reads are neither waited for nor issued any
    /// more.
    pub fn close(&mut self, now: Time) {
        if !matches!(self.phase, Phase::Closing { .. } | Phase::Over) {
            self.close_for(now, "closed by this side".to_string());
        }
    }

    /// What was negotiated; `None` until then.
    pub fn agreed(&self) -> Option<Agreed> {
        matches!(self.phase, Phase::Full).then_some(self.agreed)
    }

    fn establish(&mut self, agreed: Agreed, depths: Option<Depths>, private_data: Vec<u8>) {
        self.agreed = agreed;
        self.phase = Phase::Full;
        self.receiving = Receiving::Head;
        self.events.push_back(Event::Established { agreed, depths, private_data });
    }

    /// A start-up frame of the peer.
    fn started(&mut self, now: Time) {
        let Some(offer) = setup::read_frame(&self.head) else { return };
        if !self.is_initiator {
            self.events.push_back(Event::Request {
                revision: offer.revision,
                depths: offer.depths,
                private_data: offer.private_data.clone(),
            });
            self.phase = Phase::Requested(Box::new(offer));
            return;
        }
        if offer.is_rejection() {
            self.events.push_back(Event::Rejected { depths: offer.depths, private_data: offer.private_data });
            return self.over("rejected by the peer");
        }
        let asked = if self.config.enhanced { setup::REVISION_ENHANCED } else { setup::REVISION_PLAIN };
        if offer.revision != asked || offer.depths.is_some() != self.config.enhanced {
            let cure = match self.config.enhanced {
                true => {
                    ": it does not support enhanced connections (RFC 6581), so it must be reached without RDMA"
                }
                false => "",
            };
            let answer = offer.revision;
            return self
                .over(&format!("asked for MPA revision {asked}, the peer answered with {answer}{cure}"));
        }
        match setup::conclude(&self.config, &offer) {
            Ok(setup) => {
                self.sending.ready = setup.ready;
                self.establish(setup.agreed, offer.depths, offer.private_data);
            }
            Err(violation) => {
                // The peer is already connected, and is notified by a message (RFC 6581 section 9).
                self.agreed = setup::plain(&self.config, &offer);
                self.phase = Phase::Full;
                self.head.clear();
                self.violate(now, violation);
            }
        }
    }

    /// The peer has violated the protocol.
    fn violate(&mut self, now: Time, violation: Violation) {
        match self.phase {
            Phase::Full => {
                self.sending.terminate(violation.code(), &self.head);
                self.phase =
                    Phase::Closing { deadline: now.after(CLOSE_WITHIN), reason: violation.to_string() };
            }
            Phase::Starting { .. } | Phase::Requested(_) => self.over(&violation.to_string()),
            Phase::Closing { .. } | Phase::Over => {}
        }
    }

    fn close_for(&mut self, now: Time, reason: String) {
        self.sending.forget_reads();
        self.phase = Phase::Closing { deadline: now.after(CLOSE_WITHIN), reason };
        self.end_when_sent();
    }

    fn end_when_sent(&mut self) {
        if let (Phase::Closing { reason, .. }, false) = (&self.phase, self.owes()) {
            let reason = reason.clone();
            self.over(&reason);
        }
    }

    fn over(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        self.phase = Phase::Over;
        self.events.push_back(Event::Gone { reason: reason.to_string() });
    }
}

impl StreamMachine for QueuePair {
    type Event = Event;

    fn want(&self) -> Want {
        match self.phase {
            Phase::Starting { .. } | Phase::Full => self.wanted(),
            Phase::Requested(_) | Phase::Closing { .. } | Phase::Over => Want::Nothing,
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        match self.phase {
            Phase::Starting { .. } => self.start_up(now, bytes),
            Phase::Full => {
                if let Err(violation) = self.validate(bytes) {
                    self.violate(now, violation);
                }
            }
            Phase::Requested(_) | Phase::Closing { .. } | Phase::Over => {}
        }
    }

    fn header_and(&mut self, now: Time, bytes: &[u8], behind: &[u8]) -> u32 {
        self.header(now, bytes);
        let mut rest = behind;
        while self.is_in_headers()
            && let Want::Header { len } = self.want()
            && let Some((more, after)) = rest.split_at_checked(usize::try_from(len).unwrap_or(usize::MAX))
        {
            self.header(now, more);
            rest = after;
        }
        u32::try_from(behind.len().saturating_sub(rest.len())).unwrap_or(0)
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        if matches!(self.phase, Phase::Full)
            && let Err(violation) = self.arrived(digest_ok)
        {
            self.violate(now, violation);
        }
    }

    fn closed(&mut self, _now: Time, error: Option<&str>) {
        let reason = match &self.phase {
            Phase::Closing { reason, .. } => reason.clone(),
            // A peer that does not know the revision closes as well (RFC 6581 section 10).
            Phase::Starting { .. } if error.is_none() && self.is_initiator && self.config.enhanced => {
                "closed by the peer in MPA start-up: it speaks no iWARP there, or not MPA revision 2"
                    .to_string()
            }
            Phase::Starting { .. } if error.is_none() => "closed by the peer in MPA start-up".to_string(),
            Phase::Starting { .. } | Phase::Requested(_) | Phase::Full | Phase::Over => {
                error.unwrap_or("closed by the peer").to_string()
            }
        };
        self.over(&reason);
    }

    fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn owes(&self) -> bool {
        match self.phase {
            Phase::Starting { .. } | Phase::Requested(_) => self.sending.frame.is_some(),
            Phase::Full | Phase::Closing { .. } => self.sending.owes(self.agreed.depths.ord),
            Phase::Over => false,
        }
    }

    fn transmit(&mut self, now: Time, batch: &mut Transmit) {
        if self.owes()
            && let Err(violation) = self.sending.fill(&self.agreed, &mut self.memory, batch)
        {
            // The Terminate is already in the batch.
            self.violate(now, violation);
        }
        self.end_when_sent();
    }

    fn finished(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Starting { deadline } | Phase::Closing { deadline, .. } => Some(*deadline),
            Phase::Full => self.expected.ready.map(|(_, deadline)| deadline),
            Phase::Requested(_) | Phase::Over => None,
        }
    }

    fn tick(&mut self, now: Time) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match &self.phase {
            Phase::Starting { .. } if self.is_initiator => self.over("no MPA reply in time"),
            Phase::Starting { .. } => self.over("no MPA request in time"),
            Phase::Full => self.over("the peer sent no ready-to-receive message in time"),
            Phase::Closing { reason, .. } => {
                let reason = reason.clone();
                self.over(&reason);
            }
            Phase::Requested(_) | Phase::Over => {}
        }
    }
}
