//! Bytes identified by buffer, offset and length. A [`Span`] contains no pointer: only `reactor` can turn one
//! into memory.

/// Identifies a registered memory region (a buffer arena, a RAM store).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BufferId(pub u32);

/// `len` bytes from byte `offset` of region `buffer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The region.
    pub buffer: BufferId,
    /// Length in bytes.
    pub len: u32,
    /// First byte within the region.
    pub offset: u64,
}

impl Span {
    /// The part of this span that starts at `from` and is at most `len` bytes long.
    pub fn slice(self, from: u32, len: u32) -> Span {
        let from = from.min(self.len);
        let rest = self.len.saturating_sub(from);
        Span { buffer: self.buffer, len: len.min(rest), offset: self.offset.saturating_add(u64::from(from)) }
    }
}

/// Up to [`Places::MAX`] spans, in order: where a piece of payload is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Places {
    spans: [Span; Places::MAX],
    count: u8,
}

impl Places {
    /// Spans per operation (four of 64 KiB make one 256 KiB burst).
    pub const MAX: usize = 4;

    /// No spans.
    pub const EMPTY: Places =
        Places { spans: [Span { buffer: BufferId(0), len: 0, offset: 0 }; Places::MAX], count: 0 };

    /// One span.
    pub fn one(span: Span) -> Places {
        let mut places = Places::EMPTY;
        places.push(span);
        places
    }

    /// Appends a span; false when there is no room for it. Empty spans are skipped.
    pub fn push(&mut self, span: Span) -> bool {
        if span.len == 0 {
            return true;
        }
        match self.spans.get_mut(usize::from(self.count)) {
            Some(slot) => {
                *slot = span;
                self.count = self.count.saturating_add(1);
                true
            }
            None => false,
        }
    }

    /// The spans in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Span> + '_ {
        self.spans.get(..usize::from(self.count)).unwrap_or_default().iter().copied()
    }

    /// Removes all spans.
    #[inline]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Total length of all spans, in bytes.
    pub fn len(&self) -> u32 {
        self.iter().fold(0u32, |sum, span| sum.saturating_add(span.len))
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The part that starts at `from` and is at most `len` bytes long.
    pub fn slice(&self, from: u32, len: u32) -> Places {
        if from == 0 && len >= self.len() {
            return *self;
        }
        let mut skip = from;
        let mut left = len;
        let mut out = Places::EMPTY;
        for span in self.iter() {
            let part = span.slice(skip, left);
            skip = skip.saturating_sub(span.len);
            left = left.saturating_sub(part.len);
            out.push(part);
        }
        out
    }
}

impl PartialEq for Places {
    fn eq(&self, other: &Places) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Places {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_crosses_spans() {
        let mut places = Places::EMPTY;
        for n in 0..4 {
            assert!(places.push(Span { buffer: BufferId(n), len: 10, offset: 100 }));
        }
        assert!(!places.push(Span { buffer: BufferId(9), len: 1, offset: 0 }));
        let part = places.slice(15, 10);
        let spans: Vec<Span> = part.iter().collect();
        assert_eq!(spans[0], Span { buffer: BufferId(1), len: 5, offset: 105 });
        assert_eq!(spans[1], Span { buffer: BufferId(2), len: 5, offset: 100 });
        assert_eq!(places.slice(39, 10).len(), 1);
        assert_eq!(places.slice(40, 10).len(), 0);
    }
}
