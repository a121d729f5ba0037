//! Deadlines, by key.

use proto::time::Time;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// One alarm per key.
///
/// Deadlines that only move later, as keep-alive ones do with every PDU, cost next to nothing: an alarm that
/// is set to a later time still goes off at the earlier one. The caller then checks its own deadline and sets
/// the alarm again.
#[derive(Debug, Default)]
pub struct Timers<K: Copy + Ord> {
    alarms: BTreeMap<K, Time>,
    /// May contain alarms that were cleared or moved earlier: those that `alarms` does not confirm.
    queue: BinaryHeap<Reverse<(Time, K)>>,
}

impl<K: Copy + Ord> Timers<K> {
    /// No alarms.
    pub fn new() -> Timers<K> {
        Timers { alarms: BTreeMap::new(), queue: BinaryHeap::new() }
    }

    /// The key's alarm goes off at `at`, or at the earlier time for which it was already set.
    pub fn set(&mut self, key: K, at: Time) {
        let alarm = self.alarms.entry(key).or_insert(Time(u64::MAX));
        if at < *alarm {
            *alarm = at;
            self.queue.push(Reverse((at, key)));
        }
    }

    /// Removes the key's alarm.
    pub fn clear(&mut self, key: K) {
        self.alarms.remove(&key);
    }

    /// Takes one alarm that is due.
    pub fn pop_due(&mut self, now: Time) -> Option<K> {
        let at = self.next_due()?;
        if at > now {
            return None;
        }
        let Reverse((_, key)) = self.queue.pop()?;
        self.alarms.remove(&key);
        Some(key)
    }

    /// When the next alarm goes off.
    pub fn next_due(&mut self) -> Option<Time> {
        while let Some(Reverse((at, key))) = self.queue.peek() {
            if self.alarms.get(key) == Some(at) {
                return Some(*at);
            }
            self.queue.pop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_go_off_in_order_and_once() {
        let mut timers = Timers::new();
        timers.set('a', Time(30));
        timers.set('b', Time(10));
        timers.set('c', Time(20));
        timers.clear('c');
        assert_eq!(timers.next_due(), Some(Time(10)));
        assert_eq!(timers.pop_due(Time(9)), None);
        assert_eq!(timers.pop_due(Time(100)), Some('b'));
        assert_eq!(timers.pop_due(Time(100)), Some('a'));
        assert_eq!(timers.pop_due(Time(100)), None);
        assert_eq!(timers.next_due(), None);
    }

    #[test]
    fn the_earliest_setting_holds() {
        let mut timers = Timers::new();
        timers.set(1, Time(30));
        timers.set(1, Time(50));
        assert_eq!(timers.next_due(), Some(Time(30)));
        timers.set(1, Time(5));
        assert_eq!(timers.pop_due(Time(5)), Some(1));
        timers.set(1, Time(40));
        assert_eq!(timers.next_due(), Some(Time(40)));
    }
}
