//! Logical unit numbers (SAM-5 section 4.7), as the eight bytes that transports carry.

/// The highest number that flat space addressing can express (SAM-5 section 4.7.7.3).
pub const NUMBER_MAX: u16 = 0x3fff;

/// Flat space addressing, in the first two bytes.
const FLAT: u16 = 0x4000;
/// The highest number encoded with peripheral device addressing.
const PERIPHERAL_MAX: u16 = 0xff;

/// Eight LUN bytes: peripheral device addressing up to 255, flat space addressing above (as Linux and ESXi
/// expect).
pub fn of_number(number: u16) -> u64 {
    let first = if number > PERIPHERAL_MAX { FLAT | number } else { number };
    u64::from(first) << 48
}

/// The number in eight LUN bytes: single level, peripheral device (bus 0) or flat space addressing.
#[inline]
pub fn number(lun: u64) -> Option<u16> {
    let [high, low, rest @ ..] = lun.to_be_bytes();
    let first = u16::from_be_bytes([high, low]);
    match first >> 14 {
        _ if rest != [0; 6] => None,
        0b00 if first <= PERIPHERAL_MAX => Some(first),
        0b01 => Some(first & NUMBER_MAX),
        _ => None,
    }
}

/// The header of REPORT LUNS data with this many LUNs (SPC-4 section 6.33).
pub fn list_header(count: usize) -> [u8; 8] {
    let bytes = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(8);
    let [a, b, c, d] = bytes.to_be_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// The LUNs in REPORT LUNS data, except an incomplete one; `None`: the header is incomplete.
pub fn list(data: &[u8]) -> Option<impl Iterator<Item = u64>> {
    let (bytes, rest) = data.split_first_chunk()?;
    let rest = rest.get(4..).unwrap_or_default();
    let bytes = usize::try_from(u32::from_be_bytes(*bytes)).unwrap_or(usize::MAX);
    let (luns, _) = rest.get(..bytes).unwrap_or(rest).as_chunks();
    Some(luns.iter().map(|lun| u64::from_be_bytes(*lun)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        for number_of_unit in [0, 1, 255, 256, NUMBER_MAX] {
            assert_eq!(number(of_number(number_of_unit)), Some(number_of_unit));
        }
        assert_eq!((of_number(7), of_number(256)), (7 << 48, 0x4100 << 48));
        assert_eq!(number(0x4005 << 48), Some(5));
        for other in [0x8000 << 48, 0x0100 << 48, 0x0000_0001_0000_0000, 1] {
            assert_eq!(number(other), None);
        }
    }

    #[test]
    fn lists_come_back_and_are_cut_off_anywhere() {
        let data = [&list_header(2)[..], &of_number(3).to_be_bytes(), &of_number(300).to_be_bytes()].concat();
        assert_eq!(list(&data).unwrap().collect::<Vec<_>>(), [of_number(3), of_number(300)]);
        assert_eq!(list(&data[..20]).unwrap().count(), 1);
        assert_eq!(list(&data[..8]).unwrap().count(), 0);
        assert!(list(&data[..3]).is_none());
    }
}
