//! iSER (RFC 7145): iSCSI whose PDUs are messages and whose data moves by RDMA.
//!
//! The iSCSI layer is the one of `crate::iscsi`; the machines here are its other datamover. They follow
//! Linux's dialect: headers of 28 bytes with base offsets, logins and discovery over messages, no Hello, no
//! digests.

pub mod initiator;
pub mod target;
mod violation;

pub use violation::Violation;

use crate::message::Receives;
use wire::iscsi::{BHS_BYTES, BasicHeader, pad};
use wire::iser::{Header, Layout, Opcode, PrivateData};

/// Bytes before the data of most messages: iSER's header and the basic header segment.
pub const HEADERS_BYTES: u32 = 28 + 48;
/// Receives of one connection, at most.
const RECEIVES_MAX: u16 = 4096;
/// Additional header segments of a PDU: the default of MaxAHSLength (RFC 7145 section 6.8).
const AHS_BYTES: u32 = 256;
/// Bytes of a receive: a message with the maximum of everything, in whole words.
const RECEIVE_BYTES: u32 = HEADERS_BYTES + AHS_BYTES + crate::iscsi::keys::RDMA_SEGMENT_MAX + 4;

/// Receives for this many messages, `held` of which have been received and not returned.
fn receives(messages: u32, held: usize) -> Receives {
    let most = u16::try_from(messages).unwrap_or(RECEIVES_MAX).min(RECEIVES_MAX);
    let count = most.saturating_sub(u16::try_from(held).unwrap_or(RECEIVES_MAX));
    Receives { count, bytes: RECEIVE_BYTES, aligned_at: HEADERS_BYTES }
}

/// The peer's abilities, from its private data. A peer that sends none has none.
fn invalidates(private_data: &[u8]) -> bool {
    PrivateData::view(private_data).is_some_and(|data| data.flags & PrivateData::NO_INVALIDATE == 0)
}

/// Our private data. Base offsets are always used; STags are invalidated by messages if both ends support it.
fn private_data(invalidate: bool) -> Vec<u8> {
    let cannot = if invalidate { 0 } else { PrivateData::NO_INVALIDATE };
    vec![PrivateData::NO_ZERO_BASED | cannot, 0, 0, 0]
}

/// A parsed message.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    header: &'a Header,
    /// The header of the PDU with its additional segments.
    pdu: &'a [u8],
    /// The data segment without padding.
    data: &'a [u8],
    /// The offset of that in the message.
    data_at: u32,
}

impl<'a> Parts<'a> {
    /// Parses a message. What follows the headers is the data segment, with or without its padding: Linux
    /// sends it without.
    fn of(message: &'a [u8]) -> Result<Parts<'a>, Violation> {
        let header = Header::view(message).ok_or(Violation::Short)?;
        match header.opcode() {
            Opcode::CONTROL => {}
            Opcode::HELLO | Opcode::HELLO_REPLY => return Err(Violation::Hello),
            _ => return Err(Violation::UnknownOpcode),
        }
        let rest = message.get(Header::BYTES..).ok_or(Violation::Short)?;
        let basic = BasicHeader::view(rest).ok_or(Violation::Short)?;
        let ahs = usize::try_from(basic.ahs_bytes()).unwrap_or(usize::MAX);
        let (pdu, segment) = rest.split_at_checked(BHS_BYTES.saturating_add(ahs)).ok_or(Violation::Short)?;
        let len = basic.data_segment_length.get();
        let has = u32::try_from(segment.len()).unwrap_or(u32::MAX);
        if has != len && has != len.saturating_add(pad(len)) {
            return Err(Violation::Length);
        }
        let data = segment.get(..usize::try_from(len).unwrap_or(usize::MAX)).ok_or(Violation::Length)?;
        let data_at = u32::try_from(Header::BYTES.saturating_add(pdu.len())).unwrap_or(u32::MAX);
        Ok(Parts { header, pdu, data, data_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: u8, data: usize) -> Vec<u8> {
        let mut message = vec![0; 76 + data];
        message[0] = 0x10;
        message[28 + 7] = len;
        message
    }

    #[test]
    fn a_message_is_taken_apart_with_and_without_padding() {
        for data in [5, 8] {
            let message = message(5, data);
            let parts = Parts::of(&message).unwrap();
            assert_eq!((parts.pdu.len(), parts.data.len(), parts.data_at), (48, 5, 76));
        }
        let mut with_segments = message(4, 16);
        with_segments[28 + 4] = 3;
        let parts = Parts::of(&with_segments).unwrap();
        assert_eq!((parts.pdu.len(), parts.data.len(), parts.data_at), (60, 4, 88));
    }

    #[test]
    fn inconsistent_lengths_are_refused() {
        for data in [0, 4, 6, 7, 9, 12] {
            assert_eq!(Parts::of(&message(5, data)).err(), Some(Violation::Length), "{data}");
        }
        let mut segments = message(0, 0);
        segments[28 + 4] = 1;
        assert_eq!(Parts::of(&segments).err(), Some(Violation::Short));
        for len in 0..76 {
            assert_eq!(Parts::of(&message(0, 0)[..len]).err(), Some(Violation::Short), "{len}");
        }
        let mut hello = message(0, 0);
        hello[0] = 0x20;
        assert_eq!(Parts::of(&hello).err(), Some(Violation::Hello));
        hello[0] = 0x70;
        assert_eq!(Parts::of(&hello).err(), Some(Violation::UnknownOpcode));
    }

    #[test]
    fn a_peer_without_private_data_invalidates_nothing() {
        assert!(invalidates(&[0x80, 0, 0, 0]) && invalidates(&[0, 0, 0, 0, 9]));
        assert!(!invalidates(&[]) && !invalidates(&[0x80, 0, 0]) && !invalidates(&[0xc0, 0, 0, 0]));
        assert!(invalidates(&private_data(true)) && !invalidates(&private_data(false)));
    }
}
