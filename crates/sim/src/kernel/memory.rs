//! A host's buffers, which those of later hosts reuse.

use reactor::memory::{Arena, LARGE_BYTES};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// Those of hosts that are gone.
    static SPARE: RefCell<Vec<Arena>> = const { RefCell::new(Vec::new()) };
}

/// The buffers of a host: as if they were new, since a bug that reads what was there before must do the same whichever worlds ran
/// before. Memory that the process has costs a world far less than the system's.
pub(super) struct Memory(Option<Arena>);

impl Memory {
    /// Of this size.
    pub(super) fn new(bytes: u64) -> Memory {
        let bytes = bytes.next_multiple_of(LARGE_BYTES.into());
        let spare = SPARE.with_borrow_mut(|spare| {
            let at = spare.iter().rposition(|arena| arena.extent().1 as u64 == bytes)?;
            Some(spare.swap_remove(at))
        });
        let arena = match spare {
            Some(mut arena) => {
                arena.renew();
                arena
            }
            None => Arena::new(bytes).expect("memory"),
        };
        Memory(Some(arena))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Not while the thread ends, and with it this list.
        let _ = SPARE.try_with(|spare| spare.borrow_mut().extend(self.0.take()));
    }
}

impl Deref for Memory {
    type Target = Arena;

    fn deref(&self) -> &Arena {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut Arena {
        self.0.as_mut().expect("it is there until it is dropped")
    }
}
