//! How both roles append PDUs to a batch.

use crate::stream::Transmit;
use wire::Places;
use wire::iscsi::pad;

/// The most header bytes of one PDU, with header segments, both digests, padding and sense data.
pub(super) const PDU_BYTES: usize = 192;
/// The most segments of one PDU: header, start of sum, payload, padding, sum.
pub(super) const PDU_SEGMENTS: usize = 4 + Places::MAX;

/// Appends a header, with its digest where agreed.
#[inline]
pub(super) fn push_header(header: &[u8], digest: Option<fn(&[u8]) -> u32>, batch: &mut Transmit) {
    batch.push_bytes(header);
    if let Some(crc32c) = digest {
        batch.push_bytes(&crc32c(header).to_le_bytes());
    }
}

/// Appends a payload with its padding and digest.
pub(super) fn push_payload(from: Places, len: u32, digest: bool, batch: &mut Transmit) {
    if digest {
        batch.start_sum();
    }
    for span in from.iter() {
        batch.push_payload(span);
    }
    push_end(len, digest, batch);
}

/// Appends a short data segment with its padding and digest.
pub(super) fn push_bytes(data: &[u8], digest: bool, batch: &mut Transmit) {
    if digest {
        batch.start_sum();
    }
    batch.push_bytes(data);
    push_end(u32::try_from(data.len()).unwrap_or(0), digest, batch);
}

/// Appends what follows a data segment: its padding and digest.
#[inline]
pub(super) fn push_end(len: u32, digest: bool, batch: &mut Transmit) {
    let padding = usize::try_from(pad(len)).unwrap_or(0);
    batch.push_bytes([0; 3].get(..padding).unwrap_or_default());
    if digest {
        batch.push_sum();
    }
}
