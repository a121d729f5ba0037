//! Key=value text (RFC 7143 section 6.1): pairs, numbers, binary values. Everything is bounded, and malformed
//! text is distinguished from unknown keys.

use std::fmt::{self, Display, Write};

/// The most bytes of text of one negotiation step, over all the PDUs that carry it: section 6.1 requires 64
/// KiB.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;
/// Pairs in one text.
pub const PAIRS_MAX: usize = 256;
/// Bytes of a key (standard-label).
pub const KEY_BYTES_MAX: usize = 63;
/// Bytes of a value: the longest is a CHAP challenge of 1024 bytes in hexadecimal.
pub const VALUE_BYTES_MAX: usize = 4096;

/// An error in a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TextError {
    /// Longer than [`TEXT_BYTES_MAX`].
    TooLong,
    /// More than [`PAIRS_MAX`] pairs.
    TooManyPairs,
    /// The last pair does not end with a null.
    Unterminated,
    /// A pair without "=".
    NoEquals,
    /// A key that is not a standard-label.
    BadKey,
    /// A value that is longer than [`VALUE_BYTES_MAX`], or not UTF-8.
    BadValue,
}

impl Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TextError::TooLong => "text longer than 64 KiB",
            TextError::TooManyPairs => "too many keys",
            TextError::Unterminated => "text without a null at its end",
            TextError::NoEquals => "text without \"=\"",
            TextError::BadKey => "malformed key",
            TextError::BadValue => "malformed value",
        })?;
        f.write_str(" (RFC 7143 section 6.1)")
    }
}

/// The pairs of a text, in order.
pub fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, TextError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(TextError::TooLong);
    }
    let Some(text) = text.strip_suffix(&[0]) else {
        return if text.is_empty() { Ok(Vec::new()) } else { Err(TextError::Unterminated) };
    };
    let mut found = Vec::new();
    for piece in text.split(|byte| *byte == 0) {
        if found.len() >= PAIRS_MAX {
            return Err(TextError::TooManyPairs);
        }
        found.push(pair(piece)?);
    }
    Ok(found)
}

/// Appends a pair.
pub fn append(out: &mut Vec<u8>, key: &str, value: impl Display) {
    let mut pair = String::with_capacity(key.len().saturating_add(32));
    // Writing into a String cannot fail.
    let _ = write!(pair, "{key}={value}");
    out.extend_from_slice(pair.as_bytes());
    out.push(0);
}

/// A numerical-value: decimal without leading zeros, or hexadecimal with "0x".
pub fn number(value: &str) -> Option<u64> {
    if let Some(digits) = hexadecimal(value) {
        let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        return plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten();
    }
    let plain =
        value.bytes().all(|digit| digit.is_ascii_digit()) && (value == "0" || !value.starts_with('0'));
    plain.then(|| value.parse().ok()).flatten()
}

/// A boolean-value.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// A binary value of at most `max` bytes, as hexadecimal ("0x") or base64 ("0b"). Its length is known before any of
/// it is decoded.
pub fn binary(value: &str, max: usize) -> Option<Vec<u8>> {
    if let Some(digits) = hexadecimal(value) {
        let len = digits.len().div_ceil(2);
        return (1..=max).contains(&len).then(|| from_hexadecimal(digits)).flatten();
    }
    let digits = value.strip_prefix("0b").or_else(|| value.strip_prefix("0B"))?;
    let data = digits.trim_end_matches('=');
    let padding = digits.len().saturating_sub(data.len());
    if !digits.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    // Four digits are three bytes.
    let len = (digits.len() / 4).saturating_mul(3).saturating_sub(padding);
    (1..=max).contains(&len).then(|| from_base64(data)).flatten()
}

/// Shows bytes as a hex-constant.
#[derive(Clone, Copy, Debug)]
pub struct Hexadecimal<'a>(pub &'a [u8]);

impl Display for Hexadecimal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn pair(piece: &[u8]) -> Result<(&str, &str), TextError> {
    let at = piece.iter().position(|byte| *byte == b'=').ok_or(TextError::NoEquals)?;
    let (key, rest) = piece.split_at_checked(at).ok_or(TextError::NoEquals)?;
    let value = rest.get(1..).unwrap_or_default();
    let [first, ..] = key else { return Err(TextError::BadKey) };
    // A standard-label begins with a capital letter and has no "#", but some keys of the standards do not:
    // iSCSIProtocolLevel (RFC 7144) and X#NodeArchitecture (section 13.26).
    let label = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+@_#".contains(byte);
    if key.len() > KEY_BYTES_MAX || !first.is_ascii_alphabetic() || !key.iter().all(label) {
        return Err(TextError::BadKey);
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(TextError::BadValue);
    }
    let key = str::from_utf8(key).map_err(|_| TextError::BadKey)?;
    Ok((key, str::from_utf8(value).map_err(|_| TextError::BadValue)?))
}

fn hexadecimal(value: &str) -> Option<&str> {
    value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"))
}

/// An odd number of digits begins with half a byte.
fn from_hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    let mut high = (digits.len() % 2 == 1).then_some(0);
    for digit in digits.chars() {
        let digit = u8::try_from(digit.to_digit(16)?).ok()?;
        high = match high {
            None => Some(digit << 4),
            Some(high) => {
                bytes.push(high | digit);
                None
            }
        };
    }
    Some(bytes)
}

/// RFC 4648 section 4, without padding. Bits that are left over must be zero.
fn from_base64(digits: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(digits.len());
    let (mut bits, mut count) = (0u32, 0u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit.wrapping_sub(b'A'),
            b'a'..=b'z' => digit.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => digit.wrapping_sub(b'0').wrapping_add(52),
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count = count.saturating_add(6);
        if count >= 8 {
            count = count.saturating_sub(8);
            bytes.push(u8::try_from((bits >> count) & 0xff).ok()?);
            bits &= (1u32 << count).wrapping_sub(1);
        }
    }
    (bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pairs_come_in_order() {
        assert_eq!(pairs(b""), Ok(vec![]));
        assert_eq!(pairs(b"A=1\0Bc.d-+@_=x=y\0E=\0"), Ok(vec![("A", "1"), ("Bc.d-+@_", "x=y"), ("E", "")]));
        let odd = b"X#NodeArchitecture=a,b\0iSCSIProtocolLevel=1\0";
        assert_eq!(pairs(odd), Ok(vec![("X#NodeArchitecture", "a,b"), ("iSCSIProtocolLevel", "1")]));
        let mut out = Vec::new();
        append(&mut out, "A", 1);
        append(&mut out, "Bc", "No");
        assert_eq!(out, b"A=1\0Bc=No\0");
    }

    #[test]
    fn malformed_text_is_reported() {
        for (text, error) in [
            (&b"A=1"[..], TextError::Unterminated),
            (b"\0", TextError::NoEquals),
            (b"A=1\0\0", TextError::NoEquals),
            (b"A\0", TextError::NoEquals),
            (b"=1\0", TextError::BadKey),
            (b"1=1\0", TextError::BadKey),
            (b"A b=1\0", TextError::BadKey),
            (b"A=\xff\0", TextError::BadValue),
        ] {
            assert_eq!(pairs(text), Err(error), "{text:?}");
        }
        assert_eq!(pairs(format!("{}=\0", "K".repeat(64)).as_bytes()), Err(TextError::BadKey));
        assert!(pairs(format!("{}=\0", "K".repeat(63)).as_bytes()).is_ok());
        assert_eq!(pairs(format!("K={}\0", "v".repeat(4097)).as_bytes()), Err(TextError::BadValue));
        assert_eq!(pairs("K=\0".repeat(257).as_bytes()), Err(TextError::TooManyPairs));
        assert_eq!(pairs(&vec![0; TEXT_BYTES_MAX + 1]), Err(TextError::TooLong));
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        for (text, value) in
            [("0", 0), ("7", 7), ("0x0010", 16), ("0XaF", 175), ("18446744073709551615", u64::MAX)]
        {
            assert_eq!(number(text), Some(value));
        }
        for text in ["", "-1", "+1", "01", "1 ", "0x", "0x+1", "0xg", "18446744073709551616", "Yes"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn binary_values_have_two_forms() {
        assert_eq!(binary("0x0102ff", 3), Some(vec![1, 2, 255]));
        assert_eq!(binary("0X1ff", 2), Some(vec![1, 255]));
        assert_eq!(binary("0bAQL/", 3), Some(vec![1, 2, 255]));
        assert_eq!(binary("0BAQI=", 2), Some(vec![1, 2]));
        assert_eq!(binary("0bAQ==", 1), Some(vec![1]));
        for text in ["", "0x", "0b", "0102", "0xfg", "0bAQ", "0bAQ=", "0b====", "0bAR==", "0bA=Q=", "0b*AAA"]
        {
            assert_eq!(binary(text, 1024), None, "{text}");
        }
        assert_eq!(binary("0x010203", 2), None);
        assert_eq!(binary("0bAQL/", 2), None);
        assert_eq!(Hexadecimal(&[0, 171]).to_string(), "0x00ab");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..64), value in "0[xXbB].{0,16}") {
            let _ = pairs(&text);
            let _ = number(&value);
            let _ = binary(&value, 8);
        }

        #[test]
        fn bytes_survive_hexadecimal(bytes in proptest::collection::vec(any::<u8>(), 1..40)) {
            prop_assert_eq!(binary(&Hexadecimal(&bytes).to_string(), 40), Some(bytes));
        }
    }
}
