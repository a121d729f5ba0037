//! What happened, in order.

use proto::time::Time;
use std::fmt;

/// A line for each event, if anyone is to read it, and a checksum of all of them.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    lines: Option<String>,
    sum: u64,
}

impl Trace {
    /// With or without lines.
    pub(crate) fn new(keeps: bool) -> Trace {
        Trace { lines: keeps.then(String::new), sum: 0 }
    }

    /// Records an event: `words` are checksummed, `text` is for people.
    pub(crate) fn note(&mut self, now: Time, words: &[u64], text: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        for word in [now.0].iter().chain(words) {
            self.sum = (self.sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        let Time(nanos) = now;
        let (micros, rest) = (nanos / 1000, nanos % 1000);
        fmt::Write::write_fmt(lines, format_args!("{micros:>9}.{rest:03} us  {}\n", text()))
            .expect("a string takes all");
    }

    /// A checksum of bytes, for [`Trace::note`].
    pub(crate) fn sum_of(&self, bytes: &[u8]) -> u64 {
        const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
        if self.lines.is_none() {
            return 0;
        }
        let (words, rest) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
        all.fold(bytes.len() as u64, |sum, word| (sum ^ word).wrapping_mul(PRIME).rotate_left(31))
    }

    /// The checksum, and all lines.
    pub(crate) fn end(&mut self) -> (u64, String) {
        (self.sum, self.lines.take().unwrap_or_default())
    }
}
