//! A table of slots with generations: a key to an earlier occupant finds nothing.

use std::convert::Infallible;

/// Names one occupant of a [`Slots`] table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    /// Slot number.
    pub(crate) index: u32,
    /// Counts the slot's occupants.
    pub(crate) generation: u32,
}

/// Slots that are reused, last freed first.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    /// An empty table with capacity for this many occupants.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Slots { entries: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    /// Takes a free slot.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    /// Takes a free slot for a value that knows its key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        match self.try_insert_with(|key| Ok::<T, Infallible>(make(key))) {
            Ok(key) => key,
        }
    }

    /// The same, unless constructing the value fails.
    pub(crate) fn try_insert_with<E>(&mut self, make: impl FnOnce(Key) -> Result<T, E>) -> Result<Key, E> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 1, value: None });
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 slots")
        });
        let entry = &mut self.entries[index as usize];
        let key = Key { index, generation: entry.generation };
        match make(key) {
            Ok(value) => {
                entry.value = Some(value);
                Ok(key)
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    /// The occupant, if it still is the one named.
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        entry.value.as_ref().filter(|_| entry.generation == key.generation)
    }

    /// The occupant, if it still is the one named.
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        entry.value.as_mut().filter(|_| entry.generation == key.generation)
    }

    /// The key of the slot's present occupant.
    pub(crate) fn key_at(&self, index: u32) -> Option<Key> {
        let entry = self.entries.get(index as usize)?;
        entry.value.as_ref().map(|_| Key { index, generation: entry.generation })
    }

    /// Frees the slot. Unlike [`Slots::remove`], it does not move the occupant.
    pub(crate) fn free(&mut self, key: Key) {
        if let Some(entry) = self.entries.get_mut(key.index as usize)
            && entry.generation == key.generation
            && entry.value.is_some()
        {
            entry.value = None;
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(key.index);
        }
    }

    /// Frees the slot and returns the occupant.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize).filter(|e| e.generation == key.generation)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    /// How many there are, free ones too.
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// All occupants.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let key = Key { index: index as u32, generation: entry.generation };
            entry.value.as_ref().map(|value| (key, value))
        })
    }

    /// All occupants.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, entry)| {
            let key = Key { index: index as u32, generation: entry.generation };
            entry.value.as_mut().map(|value| (key, value))
        })
    }

    /// Number of occupants.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_cannot_be_made_takes_no_slot() {
        let mut slots = Slots::with_capacity(2);
        assert_eq!(slots.try_insert_with(|_| Err::<char, _>("no")), Err("no"));
        assert_eq!((slots.len(), slots.iter().count()), (0, 0));
        assert_eq!(slots.insert('a').index, 0);
    }

    #[test]
    fn a_late_key_finds_nothing() {
        let mut slots = Slots::with_capacity(2);
        let a = slots.insert('a');
        assert_eq!(slots.remove(a), Some('a'));
        let b = slots.insert('b');
        assert_eq!(b.index, a.index);
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.get(b), Some(&'b'));
        assert_eq!(slots.len(), 1);
    }
}
