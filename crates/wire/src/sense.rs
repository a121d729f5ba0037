//! Sense data (SPC-4 section 4.5), built in fixed or descriptor format.

/// Encoded sense data as it goes to the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    bytes: [u8; Sense::MAX],
    len: u8,
}

impl Sense {
    /// The longest sense data that Lunette builds, in bytes.
    pub const MAX: usize = 64;

    /// Takes encoded sense data, cut to [`Sense::MAX`] bytes.
    pub fn from_bytes(encoded: &[u8]) -> Sense {
        let mut bytes = [0; Sense::MAX];
        let mut len = 0u8;
        for (slot, byte) in bytes.iter_mut().zip(encoded) {
            *slot = *byte;
            len = len.saturating_add(1);
        }
        Sense { bytes, len }
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}
