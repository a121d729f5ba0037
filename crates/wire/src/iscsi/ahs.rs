//! Additional header segments (RFC 7143 section 11.2.2).

use crate::Cdb;

/// Type code of the extended CDB.
pub const EXTENDED_CDB: u8 = 1;

/// Type code of the bidirectional read expected data transfer length.
pub const BIDIRECTIONAL_READ_LENGTH: u8 = 2;

/// The contents of a SCSI Command's additional header segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ahs {
    /// The whole CDB, when it is longer than 16 bytes.
    pub cdb: Option<Cdb>,
    /// Bidirectional read expected data transfer length.
    pub bidirectional_read_length: Option<u32>,
}

/// An error in additional header segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AhsError {
    /// A segment extends past the end, or has a length that is invalid for its type.
    Length,
    /// An unknown type.
    Type(u8),
    /// The same type appears twice.
    Twice,
    /// An extended CDB longer than [`Cdb::MAX`].
    CdbTooLong,
}

impl Ahs {
    /// Parses the segments of a SCSI Command whose header carries the first 16 bytes of the CDB.
    pub fn parse(mut segments: &[u8], cdb: &[u8; 16]) -> Result<Ahs, AhsError> {
        let mut ahs = Ahs::default();
        while let Some(([high, low, kind], rest)) = segments.split_first_chunk::<3>() {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            let body = rest.get(..len).ok_or(AhsError::Length)?;
            match *kind & 0x3f {
                EXTENDED_CDB if ahs.cdb.is_some() => return Err(AhsError::Twice),
                EXTENDED_CDB => ahs.cdb = Some(extended(cdb, body)?),
                BIDIRECTIONAL_READ_LENGTH if ahs.bidirectional_read_length.is_some() => {
                    return Err(AhsError::Twice);
                }
                BIDIRECTIONAL_READ_LENGTH => match body {
                    [_, a, b, c, d] => {
                        ahs.bidirectional_read_length = Some(u32::from_be_bytes([*a, *b, *c, *d]));
                    }
                    _ => return Err(AhsError::Length),
                },
                unknown => return Err(AhsError::Type(unknown)),
            }
            let padded = len.saturating_add(3).next_multiple_of(4).saturating_sub(3);
            segments = rest.get(padded..).ok_or(AhsError::Length)?;
        }
        if segments.is_empty() { Ok(ahs) } else { Err(AhsError::Length) }
    }

    /// Appends the segments for a CDB of more than 16 bytes and for a bidirectional read length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(rest) = self.cdb.as_ref().and_then(|cdb| cdb.as_bytes().get(16..)) {
            let len = u16::try_from(rest.len()).unwrap_or(0).saturating_add(1);
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(&[EXTENDED_CDB, 0]);
            out.extend_from_slice(rest);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        if let Some(length) = self.bidirectional_read_length {
            out.extend_from_slice(&[0, 5, BIDIRECTIONAL_READ_LENGTH, 0]);
            out.extend_from_slice(&length.to_be_bytes());
        }
    }
}

/// The CDB that begins in the header and continues after the reserved first byte of `body`. An extended CDB
/// of fewer than 17 bytes is forbidden (section 11.2.2.3).
fn extended(cdb: &[u8; 16], body: &[u8]) -> Result<Cdb, AhsError> {
    let rest = match body {
        [_, rest @ ..] if !rest.is_empty() => rest,
        _ => return Err(AhsError::Length),
    };
    let mut whole = [0; Cdb::MAX];
    let len = cdb.len().saturating_add(rest.len());
    let (head, tail) = whole.split_at_mut(cdb.len());
    head.copy_from_slice(cdb);
    tail.get_mut(..rest.len()).ok_or(AhsError::CdbTooLong)?.copy_from_slice(rest);
    whole.get(..len).and_then(Cdb::from_bytes).ok_or(AhsError::CdbTooLong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: [u8; 16] = [0x7f, 0, 0, 0, 0, 0, 0, 24, 8, 9, 10, 11, 12, 13, 14, 15];

    /// A 32-byte CDB and a bidirectional read length of 512, and their encoding.
    fn both() -> (Ahs, Vec<u8>) {
        let mut cdb = HEAD.to_vec();
        cdb.extend(16..32);
        let mut bytes = vec![0, 17, 1, 0];
        bytes.extend(16..32);
        bytes.extend([0, 5, 2, 0, 0, 0, 2, 0]);
        (Ahs { cdb: Cdb::from_bytes(&cdb), bidirectional_read_length: Some(512) }, bytes)
    }

    #[test]
    fn segments_go_both_ways() {
        let (ahs, bytes) = both();
        assert_eq!(Ahs::parse(&bytes, &HEAD), Ok(ahs));
        let mut out = Vec::new();
        ahs.encode(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Ahs::parse(&[], &HEAD), Ok(Ahs::default()));
    }

    #[test]
    fn an_odd_cdb_is_padded() {
        let mut cdb = HEAD.to_vec();
        cdb.push(16);
        let ahs = Ahs { cdb: Cdb::from_bytes(&cdb), bidirectional_read_length: None };
        let mut out = Vec::new();
        ahs.encode(&mut out);
        assert_eq!(out, [0, 2, 1, 0, 16, 0, 0, 0]);
        assert_eq!(Ahs::parse(&out, &HEAD), Ok(ahs));
    }

    #[test]
    fn truncated_segments_are_refused() {
        let (_, bytes) = both();
        for len in (1..bytes.len()).filter(|len| *len != 20) {
            assert_eq!(Ahs::parse(&bytes[..len], &HEAD), Err(AhsError::Length), "{len}");
        }
    }

    #[test]
    fn bad_segments_are_refused() {
        assert_eq!(Ahs::parse(&[0, 1, 3, 0], &HEAD), Err(AhsError::Type(3)));
        assert_eq!(Ahs::parse(&[0, 1, 1, 0], &HEAD), Err(AhsError::Length));
        assert_eq!(Ahs::parse(&[0, 4, 2, 0, 0, 0, 0, 0], &HEAD), Err(AhsError::Length));
        let twice = [0, 5, 2, 0, 0, 0, 0, 1, 0, 5, 2, 0, 0, 0, 0, 1];
        assert_eq!(Ahs::parse(&twice, &HEAD), Err(AhsError::Twice));
        let mut long = vec![0, 50, 1, 0];
        long.resize(56, 7);
        assert_eq!(Ahs::parse(&long, &HEAD), Err(AhsError::CdbTooLong));
        assert_eq!(Ahs::parse(&[0xff, 0xff, 1, 0], &HEAD), Err(AhsError::Length));
    }
}
