//! What happened, in order.

use proto::time::Time;
use std::fmt;

/// A line for each thing that happens, and a sum of all lines.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// All lines, when they are kept.
    lines: Option<String>,
    sum: u64,
}

impl Trace {
    /// One whose lines are kept, or not.
    pub(crate) fn new(keeps: bool) -> Trace {
        Trace { lines: keeps.then(String::new), sum: 0 }
    }

    /// Something happened: `words` are summed, `text` is for people.
    pub(crate) fn note(&mut self, now: Time, words: &[u64], text: impl FnOnce() -> String) {
        for word in [now.0].iter().chain(words) {
            self.sum = (self.sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        if let Some(lines) = &mut self.lines {
            let Time(nanos) = now;
            let (micros, rest) = (nanos / 1000, nanos % 1000);
            fmt::Write::write_fmt(lines, format_args!("{micros:>9}.{rest:03} us  {}\n", text()))
                .expect("a string takes all");
        }
    }

    /// The same of bytes.
    pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
        const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
        // Four sums side by side: one alone waits for each of its multiplications.
        let mut sums = [bytes.len() as u64, 1, 2, 3];
        let (blocks, rest) = bytes.as_chunks::<32>();
        for block in blocks {
            for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
                *sum = (*sum ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME).rotate_left(31);
            }
        }
        let sum = sums.iter().fold(0_u64, |sum, one| (sum ^ one).wrapping_mul(PRIME).rotate_left(31));
        rest.iter().fold(sum, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    }

    /// The sum, and all lines.
    pub(crate) fn end(&mut self) -> (u64, String) {
        (self.sum, self.lines.take().unwrap_or_default())
    }
}
