//! The space that thin stores take, measured off the datapath.

use crate::events::{Event, Events};
use scsi::{HomeRequest, Space};
use std::sync::Arc;
use std::time::Instant;
use store::lane::Store;

/// Measuring takes at most one in this many parts of a processor's time.
const PART: u32 = 1000;

/// How far usage must fall below the threshold before another warning, in bytes: half a threshold set of the
/// unit.
const SLACK_BYTES: u64 = 512 << 10;

/// The space that a unit's store takes.
pub(crate) struct SpaceMeter {
    space: Arc<Space>,
    has_warned: bool,
    /// When it is measured next.
    next: Option<Instant>,
}

impl SpaceMeter {
    pub(crate) fn new(space: Arc<Space>) -> SpaceMeter {
        SpaceMeter { space, has_warned: false, next: None }
    }

    /// Measures what the store takes, and warns once when that is too much. Returns what to report to the
    /// unit's home, if it is news.
    pub(super) fn measure(
        &mut self,
        lun: &str,
        store: &dyn Store,
        now: Instant,
        events: &Events,
    ) -> Option<HomeRequest> {
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        let begun = Instant::now();
        let (used, available) = store.space()?;
        self.next = Some(now + begun.elapsed() * PART);
        let size = store.traits().size_bytes;
        if let Some(percent) = self.space.warn_at() {
            let at = size / 100 * u64::from(percent);
            let is_reached = used >= if self.has_warned { at.saturating_sub(SLACK_BYTES) } else { at };
            if is_reached && !self.has_warned {
                tracing::warn!(%lun, used, available, size, "{percent} % of its size is in use (warn_at)");
                events.report(|| Event::ThresholdReached {
                    lun: lun.to_owned(),
                    used_bytes: used,
                    size_bytes: size,
                    percent,
                });
            }
            self.has_warned = is_reached;
        }
        self.space.set(used, available).then_some(HomeRequest::SpaceChanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::storage::Traits;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// A store of 100 MiB that takes this much.
    struct Filling(AtomicU64);

    impl Store for Filling {
        fn traits(&self) -> Traits {
            Traits { size_bytes: 100 << 20, ..Traits::NONE }
        }

        fn refresh(&self) -> Result<Option<Traits>, String> {
            Ok(None)
        }

        fn space(&self) -> Option<(u64, u64)> {
            let used = self.0.load(Ordering::Relaxed);
            Some((used, (100 << 20) - used))
        }

        fn describe(&self) -> String {
            "filling".into()
        }
    }

    #[test]
    fn what_a_store_takes_is_reported_when_it_changes_and_warned_of_once_for_each_crossing() {
        let store = Filling(AtomicU64::new(0));
        let space = Arc::<Space>::default();
        space.set_warn_at(Some(80));
        let mut space_meter = SpaceMeter::new(space);
        let warnings = Arc::new(AtomicU64::new(0));
        let warned = warnings.clone();
        let events = Events::to(move |event| {
            assert!(matches!(event, Event::ThresholdReached { percent: 80, .. }), "{event:?}");
            warned.fetch_add(1, Ordering::Relaxed);
        });
        let mut now = Instant::now();
        let mut measure = |mebibytes: u64| {
            now += Duration::from_secs(60);
            store.0.store(mebibytes << 20, Ordering::Relaxed);
            (space_meter.measure("thin", &store, now, &events).is_some(), space_meter.has_warned)
        };
        assert_eq!([measure(0), measure(0), measure(79)], [(true, false), (false, false), (true, false)]);
        assert_eq!([measure(80), measure(90), measure(80)], [(true, true); 3]);
        assert_eq!([measure(79), measure(80)], [(true, false), (true, true)]);
        assert_eq!(warnings.load(Ordering::Relaxed), 2);
    }
}
