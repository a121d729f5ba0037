//! `lunette aoe config`: the config string, which may have any bytes.

use super::UnitArguments;
use super::unit::Unit;
use crate::Failure;
use clap::Args;
use serde::Serialize;
use std::fmt::Write as _;
use wire::aoe::{CONFIG_BYTES_MAX, OrderKind, QueryKind};
use wire::is_printable;

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette aoe config aoe://eth0/1.1 --set 'backup of storage1'")]
pub(super) struct ConfigArguments {
    #[command(flatten)]
    asked: UnitArguments,
    /// Fail unless it is equal to this; \xHH is a byte, \\ a backslash
    #[arg(long, value_name = "STRING", value_parser = bytes_of, conflicts_with_all = ["prefix", "set"])]
    test: Option<Text>,
    /// Fail unless it begins with this
    #[arg(long, value_name = "STRING", value_parser = bytes_of, conflicts_with = "set")]
    prefix: Option<Text>,
    /// Set it, if there is none yet
    #[arg(long, value_name = "STRING", value_parser = bytes_of)]
    set: Option<Text>,
    /// Set it even if there is one
    #[arg(long, requires = "set")]
    force: bool,
}

/// Bytes that a user wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Text(Vec<u8>);

#[derive(Serialize)]
struct Output {
    url: String,
    /// With what is not printable as \xHH, and \\ for a backslash.
    config: String,
}

pub(super) fn run(arguments: &ConfigArguments) -> Result<String, Failure> {
    let ConfigArguments { asked, test, prefix, set, force } = arguments;
    let mut unit = Unit::connect(&asked.url)?;
    let config = match (test, prefix, set) {
        (Some(Text(text)), _, _) => {
            let found = unit.query(QueryKind::Test, text)?;
            found.ok_or_else(|| unit.failed(format!("its config string is not `{}`", escaped(text))))?
        }
        (None, Some(Text(text)), _) => {
            let found = unit.query(QueryKind::TestPrefix, text)?;
            let problem = || format!("its config string does not begin with `{}`", escaped(text));
            found.ok_or_else(|| unit.failed(problem()))?
        }
        (None, None, Some(Text(text))) => {
            let kind = if *force { OrderKind::ForceConfig } else { OrderKind::SetConfig };
            unit.order(kind, text)?
        }
        (None, None, None) => unit.query(QueryKind::Read, &[])?.unwrap_or_default(),
    };
    let output = Output { url: unit.url(), config: escaped(&config) };
    Ok(asked.render(&output, |rows| rows.text("config string", &output.config)))
}

/// A string of any bytes as text that is safe on a terminal.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_printable(c) => text.push(c),
                c => c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| escape(&mut text, byte)),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(&mut text, *byte));
    }
    text
}

fn escape(text: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
}

/// The reverse.
fn bytes_of(text: &str) -> Result<Text, String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, behind)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        rest = if let Some(behind) = behind.strip_prefix('\\') {
            bytes.push(b'\\');
            behind
        } else {
            let digits = behind.strip_prefix('x').and_then(|behind| behind.split_at_checked(2));
            let byte = digits.filter(|(digits, _)| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
            let wrong = "a backslash is written \\\\, and a byte \\xHH with two hexadecimal digits";
            let (digits, behind) = byte.ok_or(wrong)?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| wrong)?);
            behind
        };
    }
    bytes.extend_from_slice(rest.as_bytes());
    match bytes.len() {
        len if len > usize::from(CONFIG_BYTES_MAX) => {
            Err(format!("it has {len} bytes; config strings have {CONFIG_BYTES_MAX} at most"))
        }
        _ => Ok(Text(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        assert_eq!(escaped(b"a\\b\x1b[2J\xff\xc3\xbc"), "a\\\\b\\x1b[2J\\xff\u{fc}");
        assert_eq!(escaped("\u{85}".as_bytes()), "\\xc2\\x85");
        assert_eq!(escaped("a\u{202e}b\u{2066}".as_bytes()), "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6");
    }

    #[test]
    fn wrong_escapes_and_long_strings_are_named() {
        for wrong in ["\\", "\\x", "\\x1", "\\n", "\\x+1", "\\xg0", "a\\x1\u{fc}"] {
            assert!(bytes_of(wrong).unwrap_err().contains("\\xHH"), "{wrong}");
        }
        assert!(bytes_of(&"a".repeat(1024)).is_ok());
        assert!(bytes_of(&"a".repeat(1025)).unwrap_err().contains("1025 bytes"));
    }

    proptest! {
        #[test]
        fn what_is_printed_can_be_parsed_again(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = escaped(&bytes);
            prop_assert!(text.chars().all(is_printable));
            prop_assert_eq!(bytes_of(&text), Ok(Text(bytes)));
        }
    }
}
