//! Random bits for the datapath, many at a time from the system.

use std::cell::RefCell;

/// Bytes requested at a time.
const BYTES: usize = 256;

struct Pool {
    bytes: [u8; BYTES],
    used: usize,
}

/// Unpredictable bits.
///
/// # Panics
/// When the system has none.
pub fn bits() -> u32 {
    thread_local! {
        static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; BYTES], used: BYTES }) };
    }
    POOL.with_borrow_mut(Pool::take)
}

impl Pool {
    fn take(&mut self) -> u32 {
        if self.used == BYTES {
            getrandom::fill(&mut self.bytes).expect("the system gives random bytes");
            self.used = 0;
        }
        let next = self.bytes[self.used..].first_chunk().expect("a whole number of words");
        self.used += next.len();
        u32::from_ne_bytes(*next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bits_come_twice() {
        let words: std::collections::HashSet<u32> = (0..BYTES).map(|_| bits()).collect();
        assert!(words.len() > BYTES - 4, "{}", words.len());
    }
}
