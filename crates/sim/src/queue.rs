//! What is to happen, in its order: by time, and what is for the same time as it was planned.

use crate::net::Event;
use proto::time::Time;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// Events that are to come.
#[derive(Debug)]
pub(crate) struct Queue {
    later: BinaryHeap<Later>,
    /// Those for this very moment, which most go on from.
    now: VecDeque<(u64, Event)>,
    /// When each host has its next turn: that is put earlier again and again.
    turns: Vec<Option<(Time, u64)>>,
    /// Whose is the first of those.
    soonest: Option<usize>,
    next: u64,
}

#[derive(Debug)]
struct Later {
    at: Time,
    number: u64,
    event: Event,
}

impl Queue {
    /// One for so many hosts.
    pub(crate) fn new(hosts: usize) -> Queue {
        let (later, now) = (BinaryHeap::new(), VecDeque::new());
        Queue { later, now, turns: vec![None; hosts], soonest: None, next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Something is to happen at this time, or at once.
    pub(crate) fn push(&mut self, at: Time, now: Time, event: Event) {
        let number = self.number();
        if at <= now {
            self.now.push_back((number, event));
        } else {
            self.later.push(Later { at, number, event });
        }
    }

    /// A host has its next turn at this time, unless it has it earlier.
    pub(crate) fn turn(&mut self, at: Time, host: usize) {
        if self.turns[host].is_some_and(|(before, _)| before <= at) {
            return;
        }
        let turn = Some((at, self.number()));
        self.turns[host] = turn;
        if self.soonest.is_none_or(|other| turn < self.turns[other]) {
            self.soonest = Some(host);
        }
    }

    /// What happens next, not after `until`, and when.
    pub(crate) fn pop(&mut self, now: Time, until: Time) -> Option<(Time, Event)> {
        let turn = self.soonest.and_then(|host| self.turns[host]);
        let at_once = self.now.front().map(|(number, _)| (now, *number));
        let later = self.later.peek().map(|later| (later.at, later.number));
        let first = [turn, at_once, later].into_iter().flatten().min();
        let (at, _) = first.filter(|(at, _)| *at <= until)?;
        let event = if first == turn {
            let host = self.soonest?;
            self.turns[host] = None;
            let waits = self.turns.iter().enumerate().filter(|(_, turn)| turn.is_some());
            self.soonest = waits.min_by_key(|(_, turn)| **turn).map(|(host, _)| host);
            Event::Turn { host }
        } else if first == at_once {
            self.now.pop_front()?.1
        } else {
            self.later.pop()?.event
        };
        Some((at, event))
    }
}

impl Ord for Later {
    /// The first is the greatest.
    fn cmp(&self, other: &Later) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Later) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Later {
    fn eq(&self, other: &Later) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Later {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_the_same_time_happens_as_it_was_planned() {
        let mut queue = Queue::new(2);
        let event = |flight| Event::Land { flight };
        for (at, flight) in [(20, 0), (10, 1), (10, 2), (5, 3)] {
            queue.push(Time(at), Time(5), event(flight));
        }
        queue.turn(Time(10), 0);
        queue.turn(Time(30), 1);
        queue.turn(Time(15), 1);
        queue.turn(Time(16), 1);
        let (mut now, mut order) = (Time(5), Vec::new());
        while let Some((at, event)) = queue.pop(now, Time(15)) {
            now = at;
            order.push(event);
            if order.len() == 2 {
                queue.push(Time(0), now, Event::Fault);
            }
        }
        let (first, second) = (Event::Turn { host: 0 }, Event::Turn { host: 1 });
        assert_eq!(order, [event(3), event(1), event(2), first, Event::Fault, second]);
        assert_eq!(queue.pop(now, Time(19)), None);
        assert_eq!(queue.pop(now, Time(20)), Some((Time(20), event(0))));
    }
}
