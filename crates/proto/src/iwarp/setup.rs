//! MPA start-up: the request, the reply, and what results from both (RFC 5044 section 7.1, RFC 6581).

use super::violation::Violation;
use super::{Agreed, Config, READS_MAX};
use wire::iwarp::mpa::{PRIVATE_DATA_MAX, longest_ulpdu};
use wire::iwarp::{Layout as _, ReadDepths, StartFrame};
use zerocopy::IntoBytes as _;
use zerocopy::byteorder::big_endian::U16;

/// The revision of RFC 5044.
pub(super) const REVISION_PLAIN: u8 = 1;
/// The revision of RFC 6581.
pub(super) const REVISION_ENHANCED: u8 = 2;

/// The longest ULPDU for a peer that accepts long FPDUs: with length and CRC it is 64 KiB.
const LONG_ULPDU: u32 = 65_530;

/// How the initiator may signal that it is ready to receive, in a peer-to-peer connection (RFC 6581 section
/// 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToReceive {
    /// By a zero-length Send.
    pub by_send: bool,
    /// By a zero-length RDMA Write.
    pub by_write: bool,
    /// By a zero-length RDMA Read.
    pub by_read: bool,
}

impl ReadyToReceive {
    /// Any of the three.
    pub const ANY: ReadyToReceive = ReadyToReceive { by_send: true, by_write: true, by_read: true };

    fn both(self, other: ReadyToReceive) -> ReadyToReceive {
        ReadyToReceive {
            by_send: self.by_send && other.by_send,
            by_write: self.by_write && other.by_write,
            by_read: self.by_read && other.by_read,
        }
    }

    fn is_any(self) -> bool {
        self.by_send || self.by_write || self.by_read
    }
}

/// How many RDMA Reads an end serves and issues at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depths {
    /// Inbound.
    pub ird: u16,
    /// Outbound.
    pub ord: u16,
}

/// The content of the peer's frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Offer {
    flags: u8,
    pub(super) revision: u8,
    /// Its depths, if enhanced.
    pub(super) depths: Option<Depths>,
    /// Control flag A with its B, C and D.
    ready: Option<ReadyToReceive>,
    pub(super) private_data: Vec<u8>,
}

/// The result of both frames.
pub(super) struct Setup {
    pub(super) agreed: Agreed,
    /// The connection is peer-to-peer, and both support these ways of signalling readiness.
    pub(super) ready: Option<ReadyToReceive>,
}

/// The length of the private data, if the frame has this key.
pub(super) fn check_frame(bytes: &[u8], key: [u8; 16]) -> Result<u16, &'static str> {
    let Some(frame) = StartFrame::view(bytes) else { return Err("MPA start-up frame too short") };
    let len = frame.private_data_length.get();
    match frame.key {
        found if found == key => {}
        StartFrame::REQUEST => return Err("both ends are MPA initiators (RFC 5044 section 7.1.2)"),
        _ => return Err("no MPA start-up frame: wrong key (RFC 5044 section 7.1.1)"),
    }
    if !(REVISION_PLAIN..=REVISION_ENHANCED).contains(&frame.revision) {
        return Err("unknown MPA revision (RFC 5044 section 7.1.1)");
    }
    if usize::from(len) > PRIVATE_DATA_MAX {
        return Err("MPA private data longer than 512 bytes (RFC 5044 section 7.1.1)");
    }
    if is_enhanced(frame) && usize::from(len) < ReadDepths::BYTES {
        return Err("MPA private data too short for IRD and ORD (RFC 6581 section 6)");
    }
    Ok(len)
}

/// The whole frame, which was validated.
pub(super) fn read_frame(bytes: &[u8]) -> Option<Offer> {
    let frame = StartFrame::view(bytes)?;
    let rest = bytes.get(StartFrame::BYTES..)?;
    let mut offer = Offer {
        flags: frame.flags,
        revision: frame.revision,
        depths: None,
        ready: None,
        private_data: Vec::new(),
    };
    if !is_enhanced(frame) {
        offer.private_data = rest.to_vec();
        return Some(offer);
    }
    let depths = ReadDepths::view(rest)?;
    let (ird, ord) = (depths.ird.get(), depths.ord.get());
    offer.depths = Some(Depths { ird: depths.inbound(), ord: depths.outbound() });
    offer.ready = (ird & ReadDepths::PEER_TO_PEER != 0).then_some(ReadyToReceive {
        by_send: ird & ReadDepths::READY_BY_SEND != 0,
        by_write: ord & ReadDepths::READY_BY_WRITE != 0,
        by_read: ord & ReadDepths::READY_BY_READ != 0,
    });
    offer.private_data = rest.get(ReadDepths::BYTES..)?.to_vec();
    Some(offer)
}

/// The S bit, which revision 1 neither has nor checks.
fn is_enhanced(frame: &StartFrame) -> bool {
    frame.revision == REVISION_ENHANCED && frame.has(StartFrame::ENHANCED)
}

impl Offer {
    pub(super) fn is_rejection(&self) -> bool {
        self.flags & StartFrame::REJECTED != 0
    }

    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Whether this much private data fits beside what this end has to send itself.
pub(super) fn fits(private_data: &[u8], enhanced: bool) -> bool {
    let own = if enhanced { ReadDepths::BYTES } else { 0 };
    private_data.len().saturating_add(own) <= PRIVATE_DATA_MAX
}

/// The initiator's frame.
pub(super) fn request(config: &Config, private_data: &[u8]) -> Vec<u8> {
    let mut flags = 0;
    if config.crc {
        flags |= StartFrame::CRC;
    }
    if config.long_fpdus {
        flags |= StartFrame::LONG_FPDUS;
    }
    let depths = config.enhanced.then_some(own_depths(config));
    let revision = if config.enhanced { REVISION_ENHANCED } else { REVISION_PLAIN };
    frame(StartFrame::REQUEST, flags, revision, depths, config.ready, private_data)
}

/// The responder's answer to the initiator's frame, and what it settles.
pub(super) fn accept(config: &Config, offer: &Offer, private_data: &[u8]) -> (Vec<u8>, Setup) {
    let own = own_depths(config);
    let known = ReadyToReceive { by_read: own.ird > 0, ..ReadyToReceive::ANY };
    let mut depths = own;
    let mut announced = own;
    if let Some(theirs) = offer.depths {
        let least = if offer.ready.is_some_and(|ready| ready.both(known).by_read) { 1 } else { 0 };
        (depths.ird, announced.ird) = match theirs.ord {
            ReadDepths::UNSPECIFIED => (own.ird, ReadDepths::UNSPECIFIED),
            ord => (own.ird.min(ord.max(least)), own.ird.min(ord.max(least))),
        };
        (depths.ord, announced.ord) = match theirs.ird {
            ReadDepths::UNSPECIFIED => (own.ord, ReadDepths::UNSPECIFIED),
            ird => (own.ord.min(ird), own.ord.min(ird)),
        };
    }
    let mut flags = 0;
    if config.crc || offer.has(StartFrame::CRC) {
        flags |= StartFrame::CRC;
    }
    // Only to peers that know the flag, so that the reserved bit stays zero for all others.
    if config.long_fpdus && offer.has(StartFrame::LONG_FPDUS) {
        flags |= StartFrame::LONG_FPDUS;
    }
    let announced = offer.depths.map(|_| announced);
    let bytes =
        frame(StartFrame::REPLY, flags, offer.revision, announced, offer.ready.map(|_| known), private_data);
    let agreed = agree(config, flags & StartFrame::CRC != 0, offer, depths);
    (bytes, Setup { agreed, ready: offer.ready.map(|ready| ready.both(known)) })
}

/// The responder's frame that rejects the initiator.
pub(super) fn reject(config: &Config, offer: &Offer, private_data: &[u8]) -> Vec<u8> {
    let depths = offer.depths.map(|_| own_depths(config));
    let ready = offer.ready.map(|_| ReadyToReceive::ANY);
    frame(StartFrame::REPLY, StartFrame::REJECTED, offer.revision, depths, ready, private_data)
}

/// What the responder's frame settles for the initiator.
pub(super) fn conclude(config: &Config, offer: &Offer) -> Result<Setup, Violation> {
    let own = own_depths(config);
    let mut depths = own;
    if let Some(theirs) = offer.depths {
        if theirs.ird != ReadDepths::UNSPECIFIED {
            depths.ord = own.ord.min(theirs.ird);
        }
        if theirs.ord != ReadDepths::UNSPECIFIED && theirs.ord > own.ird {
            return Err(Violation::InsufficientIrd);
        }
    }
    let crc = config.crc || offer.has(StartFrame::CRC);
    let ready = match (config.ready, offer.ready) {
        (Some(ours), Some(theirs)) => Some(ours.both(theirs)),
        (Some(_), None) => return Err(Violation::ReadyToReceive),
        (None, _) => None,
    };
    if ready.is_some_and(|ready| !ready.is_any()) {
        return Err(Violation::ReadyToReceive);
    }
    Ok(Setup { agreed: agree(config, crc, offer, depths), ready })
}

/// The settings for the message that ends a connection whose negotiation failed.
pub(super) fn plain(config: &Config, offer: &Offer) -> Agreed {
    agree(config, config.crc || offer.has(StartFrame::CRC), offer, Depths { ird: 0, ord: 0 })
}

fn agree(config: &Config, crc: bool, offer: &Offer, depths: Depths) -> Agreed {
    let markers = offer.has(StartFrame::MARKERS);
    // A marker cannot point back further than 64 KiB.
    let segment = config.segment_bytes.min(u32::from(u16::MAX));
    let long = config.long_fpdus && offer.has(StartFrame::LONG_FPDUS) && !markers;
    let ulpdu_max = if long { LONG_ULPDU } else { longest_ulpdu(segment, markers) };
    Agreed { crc, markers, ulpdu_max, depths }
}

fn own_depths(config: &Config) -> Depths {
    Depths { ird: config.depths.ird.min(READS_MAX), ord: config.depths.ord.min(READS_MAX) }
}

fn frame(
    key: [u8; 16],
    flags: u8,
    revision: u8,
    depths: Option<Depths>,
    ready: Option<ReadyToReceive>,
    private_data: &[u8],
) -> Vec<u8> {
    let depths = depths.map(|depths| read_depths(depths, ready));
    let depth_bytes = depths.as_ref().map_or(&[][..], |depths| depths.as_bytes());
    let len = private_data.len().saturating_add(depth_bytes.len());
    let enhanced = if depths.is_some() { StartFrame::ENHANCED } else { 0 };
    let head = StartFrame {
        key,
        flags: flags | enhanced,
        revision,
        private_data_length: U16::new(u16::try_from(len).unwrap_or(0)),
    };
    [head.as_bytes(), depth_bytes, private_data].concat()
}

fn read_depths(depths: Depths, ready: Option<ReadyToReceive>) -> ReadDepths {
    let (mut ird, mut ord) = (depths.ird, depths.ord);
    if let Some(ready) = ready {
        ird |= ReadDepths::PEER_TO_PEER;
        ird |= if ready.by_send { ReadDepths::READY_BY_SEND } else { 0 };
        ord |= if ready.by_write { ReadDepths::READY_BY_WRITE } else { 0 };
        ord |= if ready.by_read { ReadDepths::READY_BY_READ } else { 0 };
    }
    ReadDepths { ird: U16::new(ird), ord: U16::new(ord) }
}
