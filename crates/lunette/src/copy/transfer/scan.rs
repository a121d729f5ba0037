//! Scans the source from start to end: which piece is next, and whether it holds data.

/// A mapped range is assumed to be at least this long: querying costs more than reading.
const MAPPED_BYTES_MIN: u64 = 1 << 20;
/// The longest range that is cleared by one operation, so that progress is visible.
const HOLE_BYTES_MAX: u64 = 64 << 20;

/// The next piece.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// Bytes to be read.
    Data { at: u64, len: u32 },
    /// Bytes that are known to be zeros.
    Hole { at: u64, len: u64 },
    /// The source must be queried whether this byte is mapped.
    Ask { at: u64 },
    /// The query is outstanding.
    Wait,
    /// No more pieces.
    End,
}

pub(super) struct Scan {
    at: u64,
    end: u64,
    /// Ranges begin at multiples of this: the larger block size.
    unit: u64,
    piece_bytes: u32,
    /// Up to here it is known ...
    known_to: u64,
    /// ... that there is data, or none.
    is_mapped: bool,
    is_asking: bool,
}

impl Scan {
    /// `asks`: the source is queried for mapped ranges.
    pub(super) fn new(end: u64, unit: u32, piece_bytes: u32, asks: bool) -> Scan {
        let known_to = if asks { 0 } else { end };
        Scan { at: 0, end, unit: unit.into(), piece_bytes, known_to, is_mapped: true, is_asking: false }
    }

    pub(super) fn next(&mut self) -> Piece {
        let at = self.at;
        if at >= self.end {
            return Piece::End;
        }
        if self.is_asking {
            return Piece::Wait;
        }
        if at >= self.known_to {
            self.is_asking = true;
            return Piece::Ask { at };
        }
        let known = self.known_to - at;
        if self.is_mapped {
            let len = known.min(u64::from(self.piece_bytes));
            self.at += len;
            Piece::Data { at, len: len as u32 }
        } else {
            let len = known.min(HOLE_BYTES_MAX);
            self.at += len;
            Piece::Hole { at, len }
        }
    }

    /// The answer: from the queried byte on, `len` bytes are mapped or not.
    pub(super) fn record(&mut self, is_mapped: bool, len: u64) {
        let end = self.at.saturating_add(len).min(self.end);
        let hole_to = end - end % self.unit;
        self.is_asking = false;
        self.is_mapped = is_mapped || hole_to <= self.at;
        self.known_to = if self.is_mapped {
            let end = end.max(self.at.saturating_add(MAPPED_BYTES_MIN));
            end.checked_next_multiple_of(self.unit).unwrap_or(self.end).min(self.end)
        } else {
            hole_to
        };
    }

    /// The source does not know: the rest is read.
    pub(super) fn without_extents(&mut self) {
        self.is_asking = false;
        self.is_mapped = true;
        self.known_to = self.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn without_questions_all_is_data() {
        let mut scan = Scan::new(1000, 512, 512, false);
        assert_eq!(scan.next(), Piece::Data { at: 0, len: 512 });
        assert_eq!(scan.next(), Piece::Data { at: 512, len: 488 });
        assert_eq!(scan.next(), Piece::End);
    }

    #[test]
    fn holes_are_cut_to_whole_blocks_and_data_is_widened() {
        let mut scan = Scan::new(200 * MIB + 100, 4096, 1 << 18, true);
        assert_eq!(scan.next(), Piece::Ask { at: 0 });
        assert_eq!(scan.next(), Piece::Wait);
        scan.record(false, 4096 + 512);
        assert_eq!(scan.next(), Piece::Hole { at: 0, len: 4096 });
        assert_eq!(scan.next(), Piece::Ask { at: 4096 });
        // Less than a block without data is read.
        scan.record(false, 512);
        for n in 0..4 {
            assert_eq!(scan.next(), Piece::Data { at: 4096 + n * (1 << 18), len: 1 << 18 });
        }
        assert_eq!(scan.next(), Piece::Ask { at: MIB + 4096 });
        scan.record(false, 1 << 40);
        assert_eq!(scan.next(), Piece::Hole { at: MIB + 4096, len: 64 * MIB });
        for _ in 0..3 {
            assert!(matches!(scan.next(), Piece::Hole { .. }));
        }
        // The last bytes are not a whole block.
        assert_eq!(scan.next(), Piece::Ask { at: 200 * MIB });
        scan.record(false, 100);
        assert_eq!(scan.next(), Piece::Data { at: 200 * MIB, len: 100 });
        assert_eq!(scan.next(), Piece::End);
    }

    #[test]
    fn a_source_without_extents_is_read() {
        let mut scan = Scan::new(512, 512, 512, true);
        assert_eq!(scan.next(), Piece::Ask { at: 0 });
        scan.without_extents();
        assert_eq!(scan.next(), Piece::Data { at: 0, len: 512 });
        assert_eq!(scan.next(), Piece::End);
    }
}
