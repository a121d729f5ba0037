//! Future events, ordered by time; those for the same time in the order in which they were scheduled.

use crate::net::Event;
use proto::time::Time;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// Future events.
#[derive(Debug)]
pub(crate) struct Queue {
    later: BinaryHeap<Later>,
    /// Those for the current moment, which is most of them.
    now: VecDeque<(u64, Event)>,
    /// When each host has its next turn, which is often moved to an earlier time.
    turns: Vec<Place>,
    /// The host whose turn is the earliest.
    soonest: usize,
    next: u64,
}

/// The time of an event, then its position among those for the same time: lower is sooner.
type Place = u128;

const NEVER: Place = Place::MAX;

fn place(at: Time, number: u64) -> Place {
    Place::from(at.0) << 64 | Place::from(number)
}

#[derive(Debug)]
struct Later {
    place: Place,
    event: Event,
}

impl Queue {
    /// For this many hosts.
    pub(crate) fn new(hosts: usize) -> Queue {
        let (later, now) = (BinaryHeap::new(), VecDeque::new());
        Queue { later, now, turns: vec![NEVER; hosts], soonest: 0, next: 0 }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Schedules an event for this time, or for now.
    pub(crate) fn push(&mut self, at: Time, now: Time, event: Event) {
        let number = self.number();
        if at <= now {
            self.now.push_back((number, event));
        } else {
            self.later.push(Later { place: place(at, number), event });
        }
    }

    /// Schedules a host's next turn for this time, unless it already has an earlier one.
    pub(crate) fn turn(&mut self, at: Time, host: usize) {
        if self.turns[host] < place(at, u64::MAX) {
            return;
        }
        let turn = place(at, self.number());
        self.turns[host] = turn;
        if turn < self.turns[self.soonest] {
            self.soonest = host;
        }
    }

    /// The next event up to `until`, and its time.
    pub(crate) fn pop(&mut self, now: Time, until: Time) -> Option<(Time, Event)> {
        let turn = self.turns.get(self.soonest).copied().unwrap_or(NEVER);
        let at_once = self.now.front().map_or(NEVER, |(number, _)| place(now, *number));
        let later = self.later.peek().map_or(NEVER, |later| later.place);
        let first = turn.min(at_once).min(later);
        let at = Time((first >> 64) as u64);
        if first == NEVER || at > until {
            return None;
        }
        let event = if first == turn {
            let host = self.soonest;
            self.turns[host] = NEVER;
            let mut first = NEVER;
            for (host, turn) in self.turns.iter().enumerate() {
                if *turn < first {
                    (self.soonest, first) = (host, *turn);
                }
            }
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
        other.place.cmp(&self.place)
    }
}

impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Later) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Later {
    fn eq(&self, other: &Later) -> bool {
        self.place == other.place
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
