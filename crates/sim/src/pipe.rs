//! Bytes in flight, in one piece.

use std::cell::RefCell;

/// Consumed bytes whose space is reclaimed once there are this many.
const SPENT_BYTES_MAX: usize = 256 << 10;

/// So many buffers are kept for later pipes: as many as most worlds have connections.
const SPARE_MAX: usize = 32;

thread_local! {
    /// Empty buffers of pipes that are gone: each had to grow again and again.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A FIFO of bytes.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    bytes: Vec<u8>,
    /// Bytes before this are consumed.
    from: usize,
}

impl Pipe {
    /// One that is to be used.
    pub(crate) fn new() -> Pipe {
        let bytes = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        Pipe { bytes, from: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.from
    }

    /// Appends bytes by `write`; returns them.
    pub(crate) fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        let before = self.bytes.len();
        write(&mut self.bytes);
        &self.bytes[before..]
    }

    /// Consumes bytes, which must be present.
    pub(crate) fn take(&mut self, count: usize, take: impl FnOnce(&[u8])) {
        take(&self.bytes[self.from..][..count]);
        self.from += count;
        if self.from == self.bytes.len() {
            self.clear();
        } else if self.from > SPENT_BYTES_MAX {
            self.bytes.drain(..self.from);
            self.from = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.from = 0;
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.bytes.capacity() == 0 {
            return;
        }
        self.clear();
        // Not while the thread ends, and with it this list.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push(std::mem::take(&mut self.bytes));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_taken_in_order_also_where_room_is_used_again() {
        let (mut pipe, mut added, mut taken) = (Pipe::default(), 0u32, 0u32);
        while added < 400_000 {
            let more = added..added + 3000;
            added = more.end;
            pipe.add(|bytes| more.for_each(|number| bytes.extend(number.to_le_bytes())));
            pipe.take(pipe.len() / 8 * 4, |bytes| {
                for number in bytes.as_chunks().0 {
                    assert_eq!(u32::from_le_bytes(*number), taken);
                    taken += 1;
                }
            });
        }
        assert_eq!(pipe.len(), 4 * (added - taken) as usize);
        pipe.take(pipe.len(), |_| {});
        assert_eq!(pipe.len(), 0);
    }
}
