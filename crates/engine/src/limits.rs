//! How much may be done per second, by all cores together: see [`crate::core`]'s `throttle`, where commands wait
//! for it.
//!
//! A limit is one number that cores share: the time at which everything admitted so far would be through at
//! the limit's rate (the theoretical arrival time of the generic cell rate algorithm, ITU-T I.371). A command
//! adds its cost, and is due as soon as that time is no further ahead than the allowed burst. So one atomic
//! operation takes a place, whether for now or for later, and the places of all cores follow one another.
//!
//! In that order a session has a share for each command that it has waiting: one with few in flight, or on a
//! core that wakes late, would get less than others. So each [`Share`] also has a pace, the rate divided by
//! the number of active shares, and a command is due as soon as either says so. A command that goes ahead of
//! its place has been counted, and others wait for it.

use config::{Config, Group, Rate};
use proto::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A limit of a LUN or a group: on commands, bytes, or both.
#[derive(Debug)]
pub(crate) struct Limit {
    of: config::Limits,
    commands: Option<Bucket>,
    bytes: Option<Bucket>,
    shares: Shares,
    /// Shares with commands waiting: with a slow limit these are more than the ones that used it lately.
    waiting: AtomicU32,
}

/// A session's share of a limit. Its LUNs have one share of their group's limit, so that a session with more
/// LUNs gets no more of it.
#[derive(Debug)]
pub(crate) struct Share {
    limit: Arc<Limit>,
    pace: Pace,
    /// How many of its LUNs have a command waiting for its place.
    waiting: AtomicU32,
}

impl Share {
    pub(crate) fn of(limit: Arc<Limit>) -> Arc<Share> {
        Arc::new(Share { limit, pace: Pace::default(), waiting: AtomicU32::new(0) })
    }

    pub(crate) fn is_of(&self, limit: &Arc<Limit>) -> bool {
        Arc::ptr_eq(&self.limit, limit)
    }

    /// Takes the next place, for a command that moves this many bytes; returns when it is due.
    pub(crate) fn take(&self, now: Time, bytes: u32) -> Time {
        self.limit.take(now, bytes, &self.pace)
    }

    /// Releases a place that is not used.
    pub(crate) fn release(&self, bytes: u32) {
        self.limit.release(bytes);
    }

    /// Whether a command waits for its place.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// A command waits for its place.
#[derive(Debug)]
pub(crate) struct Waits(Arc<Share>);

impl Waits {
    pub(crate) fn at(share: &Arc<Share>) -> Waits {
        if share.waiting.fetch_add(1, Ordering::Relaxed) == 0 {
            share.limit.waiting.fetch_add(1, Ordering::Relaxed);
        }
        Waits(share.clone())
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.limit.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A limit of one kind.
#[derive(Debug)]
struct Bucket {
    per_second: u64,
    /// How far ahead of the clock it may run.
    burst: Ticks,
    /// When everything admitted will be through, in ticks.
    through_at: AtomicU64,
    /// Roughly the largest recent cost of one command, in ticks.
    largest: AtomicU64,
}

/// Fractions of a nanosecond: a block of 512 bytes at 10 GB/s takes 51.2 ns. They last for 36 years.
type Ticks = u64;
const TICKS_PER_NANO: Ticks = 16;
const TICKS_PER_SECOND: Ticks = 1_000_000_000 * TICKS_PER_NANO;

/// How far a throttle may fall behind its pace and still make up for it, and how far ahead of its place a command
/// may go, if it is no smaller than those before it. A burst of this length is tolerable in any second.
const SLACK: Duration = Duration::from_millis(10);

/// How many shares used a limit in this period or in the one before, whichever is more.
#[derive(Default, Debug)]
struct Shares(AtomicU64);

/// Bits of a count, below those of the period's number.
const COUNT_BITS: u32 = 16;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
const PERIOD: Duration = Duration::from_millis(100);

/// A session's progress in its share of a limit. One core at a time uses it.
#[derive(Default, Debug)]
struct Pace {
    /// When its next command is due by its share, as [`Time`].
    next: AtomicU64,
    /// The last period in which it used the limit.
    period: AtomicU64,
}

/// The place of a command in a limit.
#[derive(Clone, Copy, Default)]
struct Place {
    due: Time,
    takes: Duration,
    largest: Duration,
}

impl Limit {
    pub(crate) fn new(of: config::Limits) -> Limit {
        let (commands, bytes) = (of.iops.map(Bucket::new), of.bytes.map(Bucket::new));
        Limit { of, commands, bytes, shares: Shares::default(), waiting: AtomicU32::new(0) }
    }

    /// Takes the next place at this pace, for a command that moves this many bytes; returns when it is due.
    fn take(&self, now: Time, bytes: u32, pace: &Pace) -> Time {
        let commands = self.commands.as_ref().map(|bucket| bucket.take(now, 1));
        let bytes = self.bytes.as_ref().filter(|_| bytes > 0).map(|bucket| bucket.take(now, bytes.into()));
        let Some(place) = commands.into_iter().chain(bytes).reduce(Place::and) else { return now };
        let shares = self.shares.count(now, pace).max(self.waiting.load(Ordering::Relaxed).saturating_add(1));
        let slack =
            SLACK.saturating_add(place.largest.saturating_sub(place.takes).saturating_mul(shares - 1));
        let by_share = Time(pace.next.load(Ordering::Relaxed)).max(before(now, SLACK));
        let next = by_share.min(now.after(SLACK)).after(place.takes.saturating_mul(shares));
        pace.next.store(next.0, Ordering::Relaxed);
        place.due.min(by_share.max(before(place.due, slack))).max(now)
    }

    /// Releases a place that is not used.
    fn release(&self, bytes: u32) {
        self.commands.iter().for_each(|bucket| bucket.release(1));
        self.bytes.iter().for_each(|bucket| bucket.release(bytes.into()));
    }
}

fn before(time: Time, by: Duration) -> Time {
    Time(time.0.saturating_sub(by.as_nanos() as u64))
}

impl Shares {
    /// Counts the share that has this pace, once in a period.
    fn count(&self, now: Time, pace: &Pace) -> u32 {
        let period = now.0 / PERIOD.as_nanos() as u64;
        let counts =
            |state: u64| (state >> (2 * COUNT_BITS), state >> COUNT_BITS & COUNT_MAX, state & COUNT_MAX);
        let mut state = self.0.load(Ordering::Relaxed);
        if pace.period.swap(period, Ordering::Relaxed) != period {
            let join = |state| {
                let (of, last, this) = counts(state);
                let (last, this) = match period.saturating_sub(of) {
                    0 => (last, (this + 1).min(COUNT_MAX)),
                    1 => (this, 1),
                    _ => (0, 1),
                };
                Some(period.max(of) << (2 * COUNT_BITS) | last << COUNT_BITS | this)
            };
            let (Ok(before) | Err(before)) = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join);
            state = join(before).unwrap_or(before);
        }
        let (_, last, this) = counts(state);
        last.max(this).max(1) as u32
    }
}

impl Place {
    /// The place of a command that is subject to both.
    fn and(self, other: Place) -> Place {
        Place {
            due: self.due.max(other.due),
            takes: self.takes.max(other.takes),
            largest: self.largest.max(other.largest),
        }
    }
}

impl Bucket {
    fn new(rate: Rate) -> Bucket {
        let Rate { per_second, burst } = rate;
        let least = TICKS_PER_SECOND / 1000 * Rate::BURST_MILLIS;
        let burst = least.max(ticks(burst, per_second));
        let [through_at, largest] = [0; 2].map(AtomicU64::new);
        Bucket { per_second, burst, through_at, largest }
    }

    fn take(&self, now: Time, units: u64) -> Place {
        let takes = ticks(units, self.per_second);
        let now = now.0.saturating_mul(TICKS_PER_NANO);
        let next = |through_at: Ticks| Some(through_at.max(now).saturating_add(takes));
        let (Ok(before) | Err(before)) =
            self.through_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let due = before.max(now).saturating_sub(self.burst).div_ceil(TICKS_PER_NANO);
        // It need not be exact, so losing what another core writes at the same time is harmless.
        let largest = self.largest.load(Ordering::Relaxed);
        let largest = takes.max(largest - largest / 256);
        self.largest.store(largest, Ordering::Relaxed);
        let nanos = |ticks: Ticks| Duration::from_nanos(ticks / TICKS_PER_NANO);
        Place { due: Time(due), takes: nanos(takes), largest: nanos(largest) }
    }

    fn release(&self, units: u64) {
        self.through_at.fetch_sub(ticks(units, self.per_second), Ordering::Relaxed);
    }
}

/// How long this much takes at a rate.
fn ticks(units: u64, per_second: u64) -> Ticks {
    let ticks = u128::from(units) * u128::from(TICKS_PER_SECOND) / u128::from(per_second.max(1));
    Ticks::try_from(ticks).unwrap_or(Ticks::MAX / 4).min(Ticks::MAX / 4)
}

/// The limits of a configuration.
#[derive(Clone, Default)]
pub(crate) struct Limits {
    luns: Vec<Option<Arc<Limit>>>,
    groups: Vec<Vec<Option<Arc<Limit>>>>,
}

impl Limits {
    /// The limits of this configuration. A limit that is unchanged since `before` keeps its count of what it
    /// has admitted.
    pub(crate) fn of(config: &Config, before: Option<(&Config, &Limits)>) -> Limits {
        let unchanged_or_new = |of: config::Limits, find: &dyn Fn(&Config, &Limits) -> Option<Arc<Limit>>| {
            let same = before.and_then(|(config, limits)| find(config, limits));
            of.any().then(|| same.filter(|limit| limit.of == of).unwrap_or_else(|| Arc::new(Limit::new(of))))
        };
        let luns = config.luns.iter().map(|lun| {
            unchanged_or_new(lun.limits, &|config, limits| {
                let index = config.luns.iter().position(|other| other.name == lun.name)?;
                limits.luns.get(index)?.clone()
            })
        });
        let groups = config.targets.iter().map(|target| {
            let of_group = |group: &config::Group| {
                unchanged_or_new(group.limits, &|config, limits| {
                    let at = config.targets.iter().position(|other| other.name == target.name)?;
                    let groups = &config.targets.get(at)?.groups;
                    let index = groups.iter().position(|other| other.name == group.name)?;
                    limits.groups.get(at)?.get(index)?.clone()
                })
            };
            target.groups.iter().map(of_group).collect()
        });
        Limits { luns: luns.collect(), groups: groups.collect() }
    }

    /// The limit of a LUN, by index.
    pub(crate) fn of_lun(&self, lun: usize) -> Option<Arc<Limit>> {
        self.luns.get(lun)?.clone()
    }

    /// The limit of a target's group.
    pub(crate) fn of_group(&self, config: &Config, target: usize, group: &Group) -> Option<Arc<Limit>> {
        let groups = &config.targets.get(target)?.groups;
        let index = groups.iter().position(|other| other.name == group.name)?;
        self.groups.get(target)?.get(index)?.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limit(iops: Option<(u64, u64)>, bytes: Option<(u64, u64)>) -> Limit {
        let rate = |(per_second, burst)| Rate { per_second, burst };
        Limit::new(config::Limits { iops: iops.map(rate), bytes: bytes.map(rate) })
    }

    /// How many commands of this many bytes are admitted within one second and then within another, when each
    /// takes the next place once the last one was used, at most `late` nanoseconds after it was due.
    fn two_seconds(limit: &Limit, bytes: u32, late: u64) -> [u64; 2] {
        let (mut seconds, mut now, pace) = ([0; 2], Time(SECOND), Pace::default());
        loop {
            let due = limit.take(now, bytes, &pace);
            if due > now {
                now = Time(due.0 + if late == 0 { 0 } else { due.0 % late });
            }
            match now.0 / SECOND {
                1 => seconds[0] += 1,
                2 => seconds[1] += 1,
                _ => return seconds,
            }
        }
    }

    #[test]
    fn a_second_has_what_was_requested_within_5_percent_however_late_cores_wake() {
        for late in [0, 70_000, 2_000_000, 15_000_000] {
            for rate in [100, 1000, 33_333, 1_000_000] {
                for second in two_seconds(&limit(Some((rate, 0)), None), 4096, late) {
                    assert!(second.abs_diff(rate) * 20 <= rate, "{second} of {rate}, {late} ns late");
                }
                let of_bytes = limit(None, Some((rate * 4096, 0)));
                for second in two_seconds(&of_bytes, 4096, late) {
                    assert!(second.abs_diff(rate) * 20 <= rate, "{second} of {rate} pages, {late} ns late");
                }
            }
        }
    }

    #[test]
    fn slow_rates_are_kept_to_the_command() {
        for rate in [1, 3, 10] {
            let [first, second] = two_seconds(&limit(Some((rate, 0)), None), 4096, 0);
            assert!(
                first <= rate + 1 && second <= rate + 1 && first + second >= 2 * rate,
                "{first} {second}"
            );
        }
    }

    #[test]
    fn both_limits_hold() {
        let [_, second] = two_seconds(&limit(Some((1000, 0)), Some((1 << 20, 0))), 4096, 0);
        assert!((243..=269).contains(&second), "bytes: {second}");
        let [_, second] = two_seconds(&limit(Some((1000, 0)), Some((1 << 20, 0))), 512, 0);
        assert!((950..=1050).contains(&second), "commands: {second}");
        let limit = limit(Some((1000, 0)), Some((4096, 0)));
        limit.take(Time(SECOND), 1 << 20, &Pace::default());
        assert!(
            limit.take(Time(SECOND), 0, &Pace::default()) <= Time(SECOND),
            "what moves nothing takes no bytes"
        );
    }

    #[test]
    fn a_burst_is_let_in_at_once_after_a_pause_and_the_rate_from_then_on() {
        let limit = limit(Some((1000, 500)), None);
        let pace = Pace::default();
        let at_once = |now: Time| (0..).take_while(|_| limit.take(now, 0, &pace) <= now).count();
        assert_eq!(at_once(Time(SECOND)), 501);
        limit.release(0);
        assert_eq!(at_once(Time(SECOND + SECOND / 10)), 100);
        limit.release(0);
        assert_eq!(at_once(Time(100 * SECOND)), 501, "a longer pause is worth no more");
    }

    #[test]
    fn a_place_that_is_released_is_for_others() {
        let limit = limit(Some((10, 0)), None);
        let now = Time(SECOND);
        let take = || limit.take(now, 0, &Pace::default());
        let dues: Vec<Time> = (0..10).map(|_| take()).collect();
        (0..5).for_each(|_| limit.release(0));
        assert_eq!(take(), dues[5]);
    }

    /// Bytes that each throttle moves in this many seconds, when each always has another command of the same
    /// size.
    fn shares(limit: &Arc<Limit>, sizes: &[u32], seconds: u64) -> Vec<u64> {
        let mut shares = vec![0; sizes.len()];
        let begin = |bytes: &u32| {
            let share = Share::of(limit.clone());
            (share.take(Time(SECOND), *bytes), Some(Waits::at(&share)), share)
        };
        let mut throttles: Vec<_> = sizes.iter().map(begin).collect();
        loop {
            let first = (0..throttles.len())
                .min_by_key(|throttle| throttles[*throttle].0)
                .expect("there are throttles");
            let (due, waits, share) = &mut throttles[first];
            if *due >= Time((1 + seconds) * SECOND) {
                return shares;
            }
            shares[first] += u64::from(sizes[first]);
            *waits = None;
            *due = share.take(*due, sizes[first]);
            *waits = Some(Waits::at(share));
        }
    }

    #[test]
    fn throttles_that_seldom_have_their_turn_have_equal_shares_beside_one_with_large_commands() {
        const MIB: u64 = 1 << 20;
        let limit = Arc::new(limit(None, Some((MIB, 0))));
        let shares = shares(&limit, &[&[1 << 20][..], &[4096; 99]].concat(), 30);
        let (least, most) = (shares[1..].iter().min(), shares[1..].iter().max());
        let (least, most) = least.zip(most).expect("there are throttles");
        assert!(most <= &(2 * least), "{least} to {most}");
        let all: u64 = shares.iter().sum();
        // A large command is admitted whole, and does not delay small ones meanwhile.
        assert!((27 * MIB..=36 * MIB).contains(&all), "{all}");
        assert_eq!(limit.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn cores_share_one_limit() {
        let limit = limit(Some((1000, 0)), None);
        let dues: Vec<Time> = std::thread::scope(|scope| {
            let core = || {
                scope.spawn(|| {
                    (0..500)
                        .map(|_| limit.commands.as_ref().expect("a limit").take(Time(SECOND), 1).due)
                        .collect::<Vec<_>>()
                })
            };
            let cores: Vec<_> = (0..4).map(|_| core()).collect();
            cores.into_iter().flat_map(|core| core.join().expect("it ends")).collect()
        });
        let last = dues.iter().max().expect("there are some");
        assert_eq!(last.0, SECOND + 1999 * SECOND / 1000 - SECOND / 50);
    }

    #[test]
    fn an_unchanged_limit_keeps_its_count() {
        let config = |limits: &str| {
            let text = format!(
                "lun = [{{ name = 'a', ram = '1M', {limits} }}, {{ name = 'b', ram = '1M', iops_max = 5 }}]\n\
                 [[target]]\nname = 'iqn.2026-11.a:x'\ngroup = [{{ name = 'g', iops_max = 7 }}]"
            );
            let config = Config::from_toml(&text, std::path::Path::new("lunette.toml"));
            config.unwrap_or_else(|problems| panic!("{problems}"))
        };
        let before = config("iops_max = 10");
        let old = Limits::of(&before, None);
        let after = config("iops_max = 20");
        let new = Limits::of(&after, Some((&before, &old)));
        let is_same =
            |lun| Arc::ptr_eq(&old.of_lun(lun).expect("a limit"), &new.of_lun(lun).expect("a limit"));
        assert_eq!([is_same(0), is_same(1)], [false, true]);
        let of_group = |limits: &Limits| limits.groups[0][0].clone().expect("a limit");
        assert!(Arc::ptr_eq(&of_group(&old), &of_group(&new)));
        assert!(Limits::of(&config("thin = true"), Some((&after, &new))).of_lun(0).is_none());
    }
}
