//! Text from a peer, made safe to display in a log, an error message or a terminal: it stays on its line,
//! contains no control characters, looks like what it is, and is not long.

use std::fmt::{self, Display, Formatter, Write};

/// Bytes of a peer's text that are shown: enough for a whole iSCSI name, of up to 223 (RFC 7143 section
/// 4.2.7.1).
pub const SHOWN_BYTES_MAX: usize = 256;
/// Marks truncated text.
const CUT: &str = "...";

/// Shows a peer's text, which may be any bytes: unprintable ones as `\xHH`, and no more than
/// [`SHOWN_BYTES_MAX`].
pub fn shown(text: &(impl AsRef<[u8]> + ?Sized)) -> Shown<'_> {
    Shown(text.as_ref())
}

/// A peer's text; see [`shown`].
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a [u8]);

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut to = Printable::new(f, SHOWN_BYTES_MAX);
        self.0.utf8_chunks().try_for_each(|chunk| {
            to.write_str(chunk.valid())?;
            chunk.invalid().iter().try_for_each(|byte| to.byte(*byte))
        })
    }
}

/// Writes printable text as is, the rest as `\xHH`: at most this many bytes, followed by `...` if there were
/// more.
#[derive(Debug)]
pub struct Printable<'a, W> {
    to: &'a mut W,
    room: usize,
    is_cut: bool,
}

impl<'a, W: Write> Printable<'a, W> {
    /// Writes at most `room` bytes to `to`, and `...` instead of more.
    pub fn new(to: &'a mut W, room: usize) -> Self {
        Printable { to, room, is_cut: false }
    }

    fn byte(&mut self, byte: u8) -> fmt::Result {
        if !self.takes(4) {
            return Ok(());
        }
        write!(self.to, "\\x{byte:02x}")
    }

    /// Whether this many more bytes fit, and nothing was truncated before.
    fn takes(&mut self, bytes: usize) -> bool {
        if self.is_cut {
            return false;
        }
        if let Some(room) = self.room.checked_sub(bytes) {
            self.room = room;
            return true;
        }
        self.is_cut = true;
        // The writer could do nothing about an error.
        let _ = self.to.write_str(CUT);
        false
    }
}

impl<W: Write> Write for Printable<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.is_cut {
                break;
            }
            if !is_printable(c) {
                c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| self.byte(byte))?;
            } else if self.takes(c.len_utf8()) {
                self.to.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Whether a terminal shows it as is, without affecting what surrounds it: no control or format characters
/// (such as those that change the text direction), none of zero width except marks, no unusual spaces.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Whatever `escape_debug` leaves alone is printable; marks are escaped only at the start.
    let text: String = ['a', c].into_iter().collect();
    text.escape_debug().eq(text.chars()) && !is_ignorable(c)
}

/// Invisible characters (Default_Ignorable_Code_Point, and the blank pattern of Braille) that Rust's escapes
/// let pass.
fn is_ignorable(c: char) -> bool {
    matches!(c,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_harm_is_escaped() {
        let show = |bytes: &[u8]| shown(bytes).to_string();
        assert_eq!(show(b"a\\b\x1b[2J\n\r\xff\xc3\xbc"), "a\\b\\x1b[2J\\x0a\\x0d\\xff\u{fc}");
        assert_eq!(show("\u{85}\u{202e}".as_bytes()), "\\xc2\\x85\\xe2\\x80\\xae");
        let odd = "\u{202e}\u{2066}\u{200b}\u{200d}\u{feff}\u{2028}\u{e0041}\u{ad}\u{e000}\u{fe0f}\u{e0100}\u{3164}\u{7f}";
        for c in odd.chars() {
            assert!(!is_printable(c), "{c:?}");
            assert!(show(c.to_string().as_bytes()).starts_with("\\x"), "{c:?}");
        }
        for plain in ["\u{fc}'\"\\ ~", "e\u{301}", "\u{65e5}\u{672c}"] {
            assert_eq!(show(plain.as_bytes()), plain);
        }
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(shown(&"a".repeat(256)).to_string(), "a".repeat(256));
        assert_eq!(shown(&"a".repeat(257)).to_string(), "a".repeat(256) + "...");
        assert_eq!(shown(&"\x1b".repeat(70)).to_string(), "\\x1b".repeat(64) + "...");
        assert_eq!(shown(&"\u{fc}".repeat(1 << 20)).to_string(), "\u{fc}".repeat(128) + "...");
        let mut text = String::new();
        let mut to = Printable::new(&mut text, 5);
        write!(to, "abc-").and_then(|()| write!(to, "defg")).unwrap();
        write!(to, "more").unwrap();
        assert_eq!(text, "abc-d...");
    }
}
