//! Recent events, and the clients that follow them.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Events kept for clients that reconnect.
pub const EVENTS_KEPT: usize = 1024;
/// How many events a client may fall behind.
pub(crate) const BEHIND_MAX: usize = 256;
/// Most clients following at the same time.
pub(crate) const FOLLOWERS_MAX: usize = 16;

/// The last events, and the clients that follow.
pub(crate) struct Ring {
    /// Identifies this process, as event numbers restart with each.
    start: u64,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// Of the last event.
    number: u64,
    events: VecDeque<(u64, Arc<str>)>,
    followers: Vec<Follower>,
}

struct Follower {
    queue: Sender<Arc<str>>,
    is_behind: Arc<AtomicBool>,
}

/// What a following client gets.
pub(crate) struct Following {
    /// First an event with the number of missed events that are no longer kept, if any; then the kept ones
    /// after the last that it has seen.
    pub(crate) before: VecDeque<Arc<str>>,
    /// Events from now on.
    pub(crate) queue: Receiver<Arc<str>>,
    /// Whether it has fallen behind, and gets nothing more.
    pub(crate) is_behind: Arc<AtomicBool>,
}

impl Ring {
    pub(crate) fn new(start: u64) -> Ring {
        Ring { start, inside: Mutex::default() }
    }

    /// Adds an event, without waiting for any client.
    pub(crate) fn push(&self, kind: &str, data: &Value) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.number += 1;
        let number = inside.number;
        let text: Arc<str> = format!("id: {:x}-{number}\nevent: {kind}\ndata: {data}\n\n", self.start).into();
        if inside.events.len() == EVENTS_KEPT {
            inside.events.pop_front();
        }
        inside.events.push_back((number, text.clone()));
        inside.followers.retain(|follower| match follower.queue.try_send(text.clone()) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                follower.is_behind.store(true, Ordering::Relaxed);
                false
            }
            Err(TrySendError::Closed(_)) => false,
        });
    }

    /// Follows events after the last one that the client has seen; if that is unknown, from the oldest kept.
    /// `None`: too many clients follow.
    pub(crate) fn follow(&self, last: Option<&str>) -> Option<Following> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.followers.retain(|follower| !follower.queue.is_closed());
        if inside.followers.len() >= FOLLOWERS_MAX {
            return None;
        }
        let seen = last.map(|last| self.number(last, inside.number));
        let mut before = VecDeque::new();
        if let Some(seen) = seen {
            let oldest = inside.events.front().map_or(inside.number + 1, |(number, _)| *number);
            match seen {
                Some(seen) if seen + 1 < oldest => {
                    before.push_back(missed(Some(oldest - seen - 1)));
                }
                None if last != Some("0") => before.push_back(missed(None)),
                Some(_) | None => {}
            }
            let behind = inside.events.iter().filter(|(number, _)| *number > seen.unwrap_or(0));
            before.extend(behind.map(|(_, text)| text.clone()));
        }
        let (sender, queue) = channel(BEHIND_MAX);
        let is_behind = Arc::<AtomicBool>::default();
        inside.followers.push(Follower { queue: sender, is_behind: is_behind.clone() });
        Some(Following { before, queue, is_behind })
    }

    /// The number in an event's identifier, if it is from this process.
    fn number(&self, id: &str, highest: u64) -> Option<u64> {
        let (start, number) = id.split_once('-')?;
        let is_ours = u64::from_str_radix(start, 16).is_ok_and(|start| start == self.start);
        number.parse().ok().filter(|number| is_ours && *number <= highest)
    }
}

/// It has no identifier: for a client that reconnects, the last event seen is still the one before it.
fn missed(events: Option<u64>) -> Arc<str> {
    let events = events.map_or_else(|| "null".to_owned(), |events| events.to_string());
    format!("event: missed\ndata: {{\"events\":{events}}}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn numbers(texts: &VecDeque<Arc<str>>) -> Vec<String> {
        texts.iter().map(|text| text.lines().next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_returning_follower_gets_the_kept_events_and_the_number_missed() {
        let ring = Ring::new(0xab);
        (0..EVENTS_KEPT + 10).for_each(|number| ring.push("x", &json!(number)));
        let last = EVENTS_KEPT + 10;
        let before = |id: Option<&str>| numbers(&ring.follow(id).expect("room").before);
        assert!(before(None).is_empty());
        assert_eq!(
            before(Some(&format!("ab-{}", last - 2))),
            [format!("id: ab-{}", last - 1), format!("id: ab-{last}")]
        );
        let all = before(Some("ab-4"));
        assert_eq!(
            (all.len(), all[0].as_str(), all[1].as_str()),
            (EVENTS_KEPT + 1, "event: missed", "id: ab-11")
        );
        assert!(ring.follow(Some("ab-4")).expect("room").before[0].contains("{\"events\":6}"));
        for unknown in ["cd-5", "ab-99999", "ab", "", "-", "ab--1"] {
            let all = ring.follow(Some(unknown)).expect("room").before;
            assert!(all.len() == EVENTS_KEPT + 1 && all[0].contains("{\"events\":null}"), "{unknown}");
        }
        assert_eq!(before(Some("0")).len(), EVENTS_KEPT);
    }

    #[test]
    fn a_follower_that_does_not_read_is_dropped_and_others_are_not() {
        let ring = Ring::new(1);
        let slow = ring.follow(None).expect("room");
        let mut quick = ring.follow(None).expect("room");
        for number in 0..=BEHIND_MAX {
            ring.push("x", &json!(number));
            assert!(quick.queue.try_recv().is_ok());
        }
        assert!(slow.is_behind.load(Ordering::Relaxed) && !quick.is_behind.load(Ordering::Relaxed));
        let more: Vec<Following> = std::iter::from_fn(|| ring.follow(None)).collect();
        assert_eq!(more.len(), FOLLOWERS_MAX - 1, "one has the place of the slow one");
        drop(more);
        assert!(ring.follow(None).is_some(), "they have gone");
    }
}
