//! Reading untrusted bytes: a missing field is `None`; never a panic, and never zero.

/// One byte.
pub(super) fn u8_at(data: &[u8], at: usize) -> Option<u8> {
    data.get(at).copied()
}

/// Two bytes, big-endian.
pub(super) fn u16_at(data: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// Four bytes, big-endian.
pub(super) fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// At most `len` bytes from `at` on, as far as they exist.
pub(super) fn part(data: &[u8], at: usize, len: usize) -> &[u8] {
    let rest = data.get(at..).unwrap_or_default();
    rest.get(..len).unwrap_or(rest)
}

/// Text without padding, with characters that could harm a terminal escaped.
pub(crate) fn printable(bytes: &[u8]) -> String {
    wire::shown(bytes.trim_ascii()).to_string()
}

/// Text that ends at its first null byte.
pub(super) fn text(bytes: &[u8]) -> String {
    printable(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
}

/// `0a1b2c`.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_none() {
        let data = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!((u8_at(&data, 8), u8_at(&data, 9)), (Some(9), None));
        assert_eq!((u16_at(&data, 7), u16_at(&data, 8)), (Some(0x0809), None));
        assert_eq!((u32_at(&data, 5), u32_at(&data, 6)), (Some(0x0607_0809), None));
        assert_eq!(u32_at(&data, usize::MAX), None);
        assert_eq!((part(&data, 7, 5), part(&data, 10, 1)), (&[8, 9][..], &[][..]));
    }

    #[test]
    fn a_terminal_is_not_controlled_by_a_target() {
        assert_eq!(printable(b"  a\x1b[2Jb \xff "), "a\\x1b[2Jb \\xff");
        assert_eq!(text(b"name\0\0\0padding"), "name");
        assert_eq!(hex(&[0, 0xab]), "00ab");
    }
}
