//! Events of the daemon for clients of the admin interface, rate-limited.

use super::tally::Tally;
use admin::Hub;
use engine::{Event, Events, Peer};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

/// Events that may wait to be published. Cores do not wait: further ones are counted.
const QUEUE: usize = 4096;
/// Sessions that may begin or end in a burst, and then per second, before they are only counted.
const SESSIONS_AT_ONCE: u32 = 200;
const SESSIONS_PER_SECOND: u32 = 20;
/// The pause between two events about errors of one LUN, and between two about omitted events.
const APART: Duration = Duration::from_secs(1);
/// The most steps of a change listed in its event, and characters of each, since a thousand events are kept.
const STEPS_NAMED: usize = 100;
const STEP_CHARS: usize = 300;
/// LUNs whose errors are counted at the same time.
const LUNS_MAX: usize = 16_384;

/// Events that have not been published yet.
pub(crate) struct PendingEvents {
    queue: Receiver<Box<Event>>,
    lost: Arc<AtomicU64>,
}

/// The two ends of the queue of events.
pub(crate) fn channel(tally: &Arc<Tally>) -> (Events, PendingEvents) {
    // Boxed, since the queue allocates memory for everything that may wait at the start.
    let (sender, queue): (SyncSender<Box<Event>>, _) = sync_channel(QUEUE);
    let lost = Arc::<AtomicU64>::default();
    let count = lost.clone();
    let tally = tally.clone();
    let events = Events::to(move |event| {
        if tally.take(&event) {
            return;
        }
        if sender.try_send(Box::new(event)).is_err() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (events, PendingEvents { queue, lost })
}

impl PendingEvents {
    /// Publishes all events until the daemon has ended.
    pub(crate) fn publish(self, hub: &Hub) {
        let mut filter = Filter::new(Instant::now());
        loop {
            let now = Instant::now();
            let event = match filter.due() {
                Some(due) => self.queue.recv_timeout(due.saturating_duration_since(now)),
                None => self.queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let now = Instant::now();
            let mut report = |kind: &str, data: Value| hub.report(kind, &timed(data));
            match event {
                Ok(event) => filter.take(*event, now, &mut report),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            filter.left_out += self.lost.swap(0, Ordering::Relaxed);
            filter.flush(now, &mut report);
        }
    }
}

/// Errors of a LUN.
struct Counted {
    count: u64,
    last: String,
    /// When they may be published.
    due: Instant,
}

/// Omits events that are too frequent, and counts them.
struct Filter {
    errors: BTreeMap<String, Counted>,
    /// Sessions that may begin or end now, and since when.
    sessions: u32,
    since: Instant,
    left_out: u64,
    /// When that may be published.
    due: Instant,
}

impl Filter {
    fn new(now: Instant) -> Filter {
        Filter { errors: BTreeMap::new(), sessions: SESSIONS_AT_ONCE, since: now, left_out: 0, due: now }
    }

    /// When something is due.
    fn due(&self) -> Option<Instant> {
        let errors = self.errors.values().map(|counted| counted.due);
        errors.chain((self.left_out > 0).then_some(self.due)).min()
    }

    fn take(&mut self, event: Event, now: Instant, report: &mut impl FnMut(&str, Value)) {
        match event {
            Event::Errors { lun, count, last } => return self.count(lun, count, last, now),
            Event::SessionBegun { .. } | Event::SessionEnded { .. } if !self.admits(now) => {
                self.left_out += 1;
                return;
            }
            _ => {}
        }
        let (kind, data) = json(&event);
        report(kind, data);
    }

    fn count(&mut self, lun: String, count: u64, last: String, now: Instant) {
        if self.errors.len() >= LUNS_MAX && !self.errors.contains_key(&lun) {
            self.left_out += count;
            return;
        }
        let counted =
            self.errors.entry(lun).or_insert_with(|| Counted { count: 0, last: String::new(), due: now });
        counted.count += count;
        counted.last = last;
    }

    /// Whether another session may begin or end.
    fn admits(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        let more = (passed.as_secs_f64() * f64::from(SESSIONS_PER_SECOND)) as u32;
        if more > 0 {
            self.sessions = self.sessions.saturating_add(more).min(SESSIONS_AT_ONCE);
            self.since = now;
        }
        let is_admitted = self.sessions > 0;
        self.sessions = self.sessions.saturating_sub(1);
        is_admitted
    }

    /// Publishes what is due. A LUN is remembered for as long as its next errors have to wait.
    fn flush(&mut self, now: Instant, report: &mut impl FnMut(&str, Value)) {
        self.errors.retain(|lun, counted| {
            if counted.due > now {
                return true;
            }
            let is_one = counted.count > 0;
            if is_one {
                report("errors", json!({ "lun": lun, "count": counted.count, "last": counted.last }));
                (counted.count, counted.due) = (0, now + APART);
            }
            is_one
        });
        if self.left_out > 0 && self.due <= now {
            report("missed", json!({ "events": self.left_out }));
            (self.left_out, self.due) = (0, now + APART);
        }
    }
}

/// An event with its time.
pub(super) fn timed(mut data: Value) -> Value {
    data["time"] = humantime::format_rfc3339_millis(SystemTime::now()).to_string().into();
    data
}

/// The event of a change, without the details of a large one.
pub(super) fn change(who: &str, what: &str, outcome: &str, steps: &[String]) -> Value {
    let named: Vec<String> = steps.iter().take(STEPS_NAMED).map(|step| shortened(step)).collect();
    let more = steps.len() - named.len();
    json!({ "who": who, "what": shortened(what), "outcome": outcome, "steps": named, "more_steps": more })
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(STEP_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

fn json(event: &Event) -> (&'static str, Value) {
    let session = |Peer { id, initiator, from, target }: &Peer| json!({ "session": id, "initiator": initiator, "address": from, "target": target });
    match event {
        Event::SessionBegun { session: peer, transport, core } => {
            let mut data = session(peer);
            data["transport"] = (*transport).into();
            data["core"] = (*core).into();
            ("session_begun", data)
        }
        Event::SessionEnded {
            session: peer,
            transport: _,
            reason,
            age,
            commands,
            read_bytes,
            write_bytes,
        } => {
            let mut data = session(peer);
            data["reason"] = reason.as_str().into();
            data["age_seconds"] = (age.as_millis() as f64 / 1e3).into();
            data["commands"] = (*commands).into();
            data["read_bytes"] = (*read_bytes).into();
            data["write_bytes"] = (*write_bytes).into();
            ("session_ended", data)
        }
        // Only counted: anyone who can reach the daemon can cause them.
        Event::LoginRefused { why } => ("login_refused", json!({ "why": why.name() })),
        Event::StoreLost { lun, why } => ("store_lost", json!({ "lun": lun, "why": why })),
        Event::StoreBack { lun } => ("store_back", json!({ "lun": lun })),
        Event::NotSaved { lun, why } => ("not_saved", json!({ "lun": lun, "why": why })),
        Event::Preempted { lun, by } => ("preempted", json!({ "lun": lun, "by": by })),
        Event::ThresholdReached { lun, used_bytes, size_bytes, percent } => {
            let data = json!({
                "lun": lun, "used_bytes": used_bytes, "size_bytes": size_bytes, "warn_at": format!("{percent}%"),
            });
            ("threshold_reached", data)
        }
        Event::Errors { lun, count, last } => ("errors", json!({ "lun": lun, "count": count, "last": last })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(id: u64) -> Event {
        let session = Peer { id, initiator: "iqn.a:b".into(), from: "192.0.2.1:5".into(), target: None };
        Event::SessionBegun { session, transport: "iSCSI", core: 0 }
    }

    fn error(lun: &str, count: u64) -> Event {
        Event::Errors { lun: lun.into(), count, last: format!("error {count}") }
    }

    #[test]
    fn errors_are_counted_and_published_once_a_second_for_each_lun() {
        let start = Instant::now();
        let mut filter = Filter::new(start);
        let mut reported = Vec::new();
        for millis in 0..2500u64 {
            let now = start + Duration::from_millis(millis);
            let mut report = |kind: &str, data: Value| reported.push((millis, kind.to_owned(), data));
            if millis % 10 == 0 && millis < 2000 {
                filter.take(error("a", 1), now, &mut report);
            }
            if millis == 500 {
                filter.take(error("b", 7), now, &mut report);
            }
            filter.flush(now, &mut report);
        }
        let found: Vec<_> = reported
            .iter()
            .map(|(at, kind, data)| (*at, kind.as_str(), data["lun"].as_str(), data["count"].as_u64()))
            .collect();
        let a = Some("a");
        assert_eq!(
            found,
            [
                (0, "errors", a, Some(1)),
                (500, "errors", Some("b"), Some(7)),
                (1000, "errors", a, Some(100)),
                (2000, "errors", a, Some(99)),
            ]
        );
        let later = start + Duration::from_secs(4);
        filter.flush(later, &mut |_, _| panic!("nothing happened"));
        assert!(filter.errors.is_empty() && filter.due().is_none(), "nothing is waited for");
    }

    #[test]
    fn a_flood_of_session_events_does_not_crowd_out_other_events() {
        let start = Instant::now();
        let mut filter = Filter::new(start);
        let mut reported = Vec::new();
        let mut report = |kind: &str, data: Value| reported.push((kind.to_owned(), data));
        for id in 0..10_000 {
            filter.take(begun(id), start, &mut report);
            filter.flush(start, &mut report);
        }
        filter.take(Event::StoreBack { lun: "a".into() }, start, &mut report);
        filter.flush(start + APART, &mut report);
        filter.take(begun(10_000), start + APART, &mut report);
        let count = |kind: &str| reported.iter().filter(|(other, _)| other == kind).count();
        assert_eq!((count("session_begun"), count("store_back")), (SESSIONS_AT_ONCE as usize + 1, 1));
        let left_out: u64 = reported
            .iter()
            .filter(|(kind, _)| kind == "missed")
            .filter_map(|(_, data)| data["events"].as_u64())
            .sum();
        assert_eq!((left_out, count("missed")), (10_000 - u64::from(SESSIONS_AT_ONCE), 2));
    }

    #[test]
    fn a_change_of_many_luns_makes_a_small_event() {
        let mut steps: Vec<String> = (0..16_000).map(|lun| format!("add LUN {lun}")).collect();
        steps[7] = "ä".repeat(STEP_CHARS + 1);
        let data = change("uid 0", "reload", "done", &steps);
        let named = data["steps"].as_array().expect("a list");
        assert_eq!((named.len(), &data["more_steps"]), (STEPS_NAMED, &json!(16_000 - STEPS_NAMED)));
        assert_eq!(named[7], format!("{}...", "ä".repeat(STEP_CHARS)));
        assert_eq!((&named[99], &data["outcome"]), (&json!("add LUN 99"), &json!("done")));
        let data = change("uid 0", "reload", "done", &steps[..2]);
        assert_eq!((&data["steps"], &data["more_steps"]), (&json!(["add LUN 0", "add LUN 1"]), &json!(0)));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_nobody_waits() {
        let (events, happened) = channel(&Arc::default());
        (0..QUEUE as u64 + 5).for_each(|id| events.report(|| begun(id)));
        assert_eq!(happened.lost.load(Ordering::Relaxed), 5);
    }
}
