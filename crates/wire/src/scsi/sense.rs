//! Sense data (SPC-4 section 4.5), built in fixed or descriptor format.

pub mod code;
mod text;

/// Sense keys (SPC-4 table 54).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SenseKey {
    /// NO SENSE.
    NoSense = 0x0,
    /// RECOVERED ERROR.
    RecoveredError = 0x1,
    /// NOT READY.
    NotReady = 0x2,
    /// MEDIUM ERROR.
    MediumError = 0x3,
    /// HARDWARE ERROR.
    HardwareError = 0x4,
    /// ILLEGAL REQUEST.
    IllegalRequest = 0x5,
    /// UNIT ATTENTION.
    UnitAttention = 0x6,
    /// DATA PROTECT.
    DataProtect = 0x7,
    /// BLANK CHECK.
    BlankCheck = 0x8,
    /// COPY ABORTED.
    CopyAborted = 0xa,
    /// ABORTED COMMAND.
    AbortedCommand = 0xb,
    /// VOLUME OVERFLOW.
    VolumeOverflow = 0xd,
    /// MISCOMPARE.
    Miscompare = 0xe,
    /// COMPLETED.
    Completed = 0xf,
}

impl SenseKey {
    /// The key's four bits.
    pub fn bits(self) -> u8 {
        match self {
            SenseKey::NoSense => 0x0,
            SenseKey::RecoveredError => 0x1,
            SenseKey::NotReady => 0x2,
            SenseKey::MediumError => 0x3,
            SenseKey::HardwareError => 0x4,
            SenseKey::IllegalRequest => 0x5,
            SenseKey::UnitAttention => 0x6,
            SenseKey::DataProtect => 0x7,
            SenseKey::BlankCheck => 0x8,
            SenseKey::CopyAborted => 0xa,
            SenseKey::AbortedCommand => 0xb,
            SenseKey::VolumeOverflow => 0xd,
            SenseKey::Miscompare => 0xe,
            SenseKey::Completed => 0xf,
        }
    }
}

impl SenseKey {
    /// All keys.
    pub const ALL: [SenseKey; 14] = [
        SenseKey::NoSense,
        SenseKey::RecoveredError,
        SenseKey::NotReady,
        SenseKey::MediumError,
        SenseKey::HardwareError,
        SenseKey::IllegalRequest,
        SenseKey::UnitAttention,
        SenseKey::DataProtect,
        SenseKey::BlankCheck,
        SenseKey::CopyAborted,
        SenseKey::AbortedCommand,
        SenseKey::VolumeOverflow,
        SenseKey::Miscompare,
        SenseKey::Completed,
    ];

    /// The key for these four bits, unless reserved.
    pub fn from_bits(bits: u8) -> Option<SenseKey> {
        SenseKey::ALL.into_iter().find(|key| key.bits() == bits)
    }
}

/// Sense-key-specific bytes (SPC-4 section 4.5.2.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Specific {
    /// Which field of the CDB or of the parameter data is invalid (ILLEGAL REQUEST).
    Field {
        /// It is in the CDB; otherwise in the parameter data.
        in_cdb: bool,
        /// The field's first byte.
        byte: u16,
        /// The field's most significant bit, when the field does not begin at bit 7.
        bit: Option<u8>,
    },
    /// Progress out of 65536 (NO SENSE and NOT READY).
    Progress(u16),
    /// Which field of a copy segment is invalid (COPY ABORTED).
    Segment {
        /// Counted from the start of the segment descriptor; otherwise of the parameter data.
        in_descriptor: bool,
        /// The field's first byte.
        byte: u16,
        /// The field's most significant bit.
        bit: Option<u8>,
    },
}

impl Specific {
    fn bytes(self) -> [u8; 3] {
        let (flags, value) = match self {
            Specific::Field { in_cdb, byte, bit } => (if in_cdb { 0x40 } else { 0 } | bit_pointer(bit), byte),
            Specific::Progress(done) => (0, done),
            Specific::Segment { in_descriptor, byte, bit } => {
                (if in_descriptor { 0x20 } else { 0 } | bit_pointer(bit), byte)
            }
        };
        let [high, low] = value.to_be_bytes();
        [0x80 | flags, high, low]
    }
}

fn bit_pointer(bit: Option<u8>) -> u8 {
    bit.map_or(0, |bit| 0x08 | (bit & 0x07))
}

/// Sense data before it is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenseData {
    /// Sense key.
    pub key: SenseKey,
    /// Additional sense code (high byte) and qualifier (low byte).
    pub code: u16,
    /// INFORMATION field.
    pub information: Option<u64>,
    /// COMMAND-SPECIFIC INFORMATION field.
    pub command_specific: Option<u64>,
    /// Sense-key-specific field.
    pub specific: Option<Specific>,
}

impl SenseData {
    /// Just a sense key with its code.
    pub const fn new(key: SenseKey, code: u16) -> SenseData {
        SenseData { key, code, information: None, command_specific: None, specific: None }
    }
}

/// Encoded sense data as it goes to the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sense {
    bytes: [u8; Sense::MAX],
    len: u8,
}

impl Sense {
    /// The longest sense data that Lunette builds, in bytes.
    pub const MAX: usize = 64;

    /// Copies encoded sense data, truncated to [`Sense::MAX`] bytes.
    pub fn from_bytes(encoded: &[u8]) -> Sense {
        let mut sense = Sense::EMPTY;
        sense.extend(encoded);
        sense
    }

    /// Fixed format (SPC-4 section 4.5.3), 18 bytes. An information value of more than 32 bits leaves VALID
    /// zero.
    pub fn fixed(data: &SenseData) -> Sense {
        let [code, qualifier] = data.code.to_be_bytes();
        let information = data.information.and_then(|value| u32::try_from(value).ok());
        let command_specific = data.command_specific.and_then(|value| u32::try_from(value).ok());
        let mut sense = Sense::EMPTY;
        sense.extend(&[0x70 | if information.is_some() { 0x80 } else { 0 }, 0, data.key.bits()]);
        sense.extend(&information.unwrap_or(0).to_be_bytes());
        sense.extend(&[Sense::FIXED_ADDITIONAL]);
        sense.extend(&command_specific.unwrap_or(0).to_be_bytes());
        sense.extend(&[code, qualifier, 0]);
        sense.extend(&data.specific.map_or([0; 3], Specific::bytes));
        sense
    }

    /// Descriptor format (SPC-4 section 4.5.2).
    pub fn descriptor(data: &SenseData) -> Sense {
        let [code, qualifier] = data.code.to_be_bytes();
        let mut sense = Sense::EMPTY;
        sense.extend(&[0x72, data.key.bits(), code, qualifier, 0, 0, 0, 0]);
        if let Some(information) = data.information {
            sense.extend(&[0x00, 0x0a, 0x80, 0x00]);
            sense.extend(&information.to_be_bytes());
        }
        if let Some(value) = data.command_specific {
            sense.extend(&[0x01, 0x0a, 0x00, 0x00]);
            sense.extend(&value.to_be_bytes());
        }
        if let Some(specific) = data.specific {
            sense.extend(&[0x02, 0x06, 0x00, 0x00]);
            sense.extend(&specific.bytes());
            sense.extend(&[0]);
        }
        let additional = sense.len.saturating_sub(Sense::DESCRIPTOR_HEADER);
        if let Some(slot) = sense.bytes.get_mut(7) {
            *slot = additional;
        }
        sense
    }

    /// Whether it reports a deferred error (SPC-4 section 4.5.5): an earlier write failed after it had been
    /// acknowledged, and this command was not executed.
    pub fn is_deferred(&self) -> bool {
        matches!(self.u8(0) & 0x7f, 0x71 | 0x73)
    }

    /// The sense key of a current error; `None` when the error is deferred, or the format unknown.
    pub fn key(&self) -> Option<SenseKey> {
        match self.u8(0) & 0x7f {
            0x70 => SenseKey::from_bits(self.u8(2) & 0x0f),
            0x72 => SenseKey::from_bits(self.u8(1) & 0x0f),
            _ => None,
        }
    }

    /// Additional sense code (high byte) and qualifier (low byte).
    pub fn code(&self) -> u16 {
        match self.u8(0) & 0x7e {
            0x70 => u16::from_be_bytes([self.u8(12), self.u8(13)]),
            0x72 => u16::from_be_bytes([self.u8(2), self.u8(3)]),
            _ => 0,
        }
    }

    /// The INFORMATION field, when valid.
    pub fn information(&self) -> Option<u64> {
        let field = |from: usize, len: usize| {
            let bytes = self.as_bytes().iter().skip(from).take(len);
            bytes.fold(0u64, |value, byte| (value << 8) | u64::from(*byte))
        };
        match self.u8(0) & 0x7e {
            0x70 => (self.u8(0) & 0x80 != 0).then(|| field(3, 4)),
            // Only as the first descriptor, where every target that has one puts it.
            0x72 => (self.u8(8) == 0 && self.u8(9) == 0x0a && self.u8(10) & 0x80 != 0).then(|| field(12, 8)),
            _ => None,
        }
    }

    fn u8(&self, at: usize) -> u8 {
        self.as_bytes().get(at).copied().unwrap_or(0)
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    const EMPTY: Sense = Sense { bytes: [0; Sense::MAX], len: 0 };
    /// ADDITIONAL SENSE LENGTH of fixed format.
    const FIXED_ADDITIONAL: u8 = 10;
    const DESCRIPTOR_HEADER: u8 = 8;

    fn extend(&mut self, piece: &[u8]) {
        for (slot, byte) in self.bytes.iter_mut().skip(usize::from(self.len)).zip(piece) {
            *slot = *byte;
            self.len = self.len.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELD: SenseData = SenseData {
        key: SenseKey::IllegalRequest,
        code: code::INVALID_FIELD_IN_CDB,
        information: None,
        command_specific: None,
        specific: Some(Specific::Field { in_cdb: true, byte: 2, bit: Some(5) }),
    };

    #[test]
    fn fixed_format_carries_the_field_pointer() {
        let sense = Sense::fixed(&FIELD);
        assert_eq!(sense.as_bytes(), [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcd, 0, 2],);
    }

    #[test]
    fn fixed_format_drops_information_that_does_not_fit() {
        let sense = Sense::fixed(&SenseData { information: Some(0x1_0000_0000), ..FIELD });
        assert_eq!(sense.as_bytes()[..7], [0x70, 0, 5, 0, 0, 0, 0]);
        let sense = Sense::fixed(&SenseData { information: Some(0x0102_0304), ..FIELD });
        assert_eq!(sense.as_bytes()[..7], [0xf0, 0, 5, 1, 2, 3, 4]);
    }

    #[test]
    fn descriptor_format_lists_what_there_is() {
        let sense = Sense::descriptor(&SenseData { information: Some(7), ..FIELD });
        assert_eq!(
            sense.as_bytes(),
            [
                0x72, 5, 0x24, 0, 0, 0, 0, 20, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7, 2, 6, 0, 0, 0xcd, 0,
                2, 0
            ],
        );
        let bare = Sense::descriptor(&SenseData { specific: None, ..FIELD });
        assert_eq!(bare.as_bytes(), [0x72, 5, 0x24, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn both_formats_are_read_back() {
        let data = SenseData { information: Some(7), ..FIELD };
        for sense in [Sense::fixed(&data), Sense::descriptor(&data)] {
            assert_eq!((sense.key(), sense.code()), (Some(SenseKey::IllegalRequest), 0x2400));
            assert_eq!(sense.information(), Some(7));
        }
        for sense in [Sense::fixed(&FIELD), Sense::descriptor(&FIELD)] {
            assert_eq!(sense.information(), None);
        }
        let deferred = Sense::from_bytes(&[0x71, 0, 6]);
        assert!(deferred.is_deferred() && !Sense::fixed(&FIELD).is_deferred());
        assert_eq!(deferred.key(), None);
        assert_eq!(Sense::from_bytes(&[]).key(), None);
    }

    #[test]
    fn all_parts_together_fit() {
        let all = SenseData { information: Some(u64::MAX), command_specific: Some(u64::MAX), ..FIELD };
        assert_eq!(Sense::descriptor(&all).as_bytes().len(), 8 + 12 + 12 + 8);
    }
}
