//! When to spin and when to sleep.

use crate::io::Wait;
use proto::time::Time;
use std::time::Duration;

/// How an idle core waits for work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poll {
    /// Spins for a bounded time that adapts to arrivals, then sleeps.
    Adaptive,
    /// Spins.
    Always,
    /// Sleeps.
    Never,
}

/// Spins only while work is expected sooner than a sleep and its wake-up would cost.
#[derive(Debug)]
pub struct Poller {
    mode: Poll,
    /// When a turn last had work.
    busy_at: Time,
    /// Smoothed time between turns with work.
    gap_nanos: u64,
    /// The longest gap that spinning pays for, given what arrived last.
    patience: Duration,
    hurry: bool,
    /// The last turn, and whether it was not allowed to sleep.
    turned_at: Time,
    spins: bool,
    spun: Duration,
}

/// What a turn found to do; if several, the last of these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Work {
    /// Nothing.
    None,
    /// The completion of something the core itself had begun.
    Own,
    /// Frames.
    Frames,
    /// Something from elsewhere.
    Other,
}

/// The longest that `adaptive` spins, and the longest expected gap for which it spins at all: roughly the
/// cost of sleeping and being woken on another core.
const SPIN: Duration = Duration::from_micros(50);
/// The same for frames. At 44 us a frame (100 Mbit/s) spinning takes 42 us of the processor a command, sleeping 15 to 24.
const SPIN_FOR_FRAMES: Duration = Duration::from_micros(25);

impl Poller {
    /// Changes the mode.
    pub fn set_mode(&mut self, mode: Poll) {
        self.mode = mode;
    }

    /// A poller without history.
    pub fn new(mode: Poll) -> Self {
        Poller {
            mode,
            busy_at: Time(0),
            gap_nanos: 1_000_000_000,
            patience: SPIN,
            hurry: false,
            turned_at: Time(0),
            spins: false,
            spun: Duration::ZERO,
        }
    }

    /// How the next turn may wait. `timers`: the time until the next deadline, if there is one.
    pub fn wait(&mut self, now: Time, timers: Option<Duration>) -> Wait {
        let wait = self.choose(now, timers);
        self.spins = wait == Wait::No;
        wait
    }

    /// The same where spinning would keep the processor from threads that the core waits for.
    pub fn wait_for_threads(&mut self, now: Time, timers: Option<Duration>) -> Wait {
        if self.mode == Poll::Adaptive && !self.hurry {
            self.spins = false;
            return timers.map_or(Wait::Forever, Wait::AtMost);
        }
        self.wait(now, timers)
    }

    fn choose(&self, now: Time, timers: Option<Duration>) -> Wait {
        if self.hurry {
            return Wait::AtMost(Duration::from_micros(100));
        }
        let sleep = timers.map_or(Wait::Forever, Wait::AtMost);
        match self.mode {
            Poll::Always => Wait::No,
            Poll::Never => sleep,
            Poll::Adaptive if self.is_worth_spinning(now) => Wait::No,
            Poll::Adaptive => sleep,
        }
    }

    fn is_worth_spinning(&self, now: Time) -> bool {
        Duration::from_nanos(self.gap_nanos) < self.patience && now.since(self.busy_at) < self.patience
    }

    /// A turn has ended, which found this work.
    #[inline]
    pub fn turned(&mut self, now: Time, work: Work) {
        match work {
            Work::Frames => self.on_work(now, SPIN_FOR_FRAMES),
            Work::Other => self.on_work(now, SPIN),
            // No indication of when the next frame arrives, whose sender waits for the answer. On streams,
            // commands arrive meanwhile.
            Work::Own if self.patience == SPIN_FOR_FRAMES => self.busy_at = now,
            Work::Own => self.on_work(now, SPIN),
            // The clock does not advance in most turns of a spin; the turn that ends one took time itself,
            // and is not counted.
            Work::None if self.spins && self.busy_at != self.turned_at => {
                self.spun += now.since(self.turned_at);
            }
            Work::None => {}
        }
        self.turned_at = now;
    }

    /// Like another turn at the same time in which the end of a send arrived.
    #[inline]
    pub fn sent(&mut self, now: Time) {
        self.on_work(now, SPIN);
    }

    #[inline]
    fn on_work(&mut self, now: Time, patience: Duration) {
        let gap_nanos = now.0.saturating_sub(self.busy_at.0).min(1_000_000);
        self.gap_nanos = (self.gap_nanos * 7 + gap_nanos) / 8;
        (self.busy_at, self.patience) = (now, patience);
    }

    /// Time spent in successive turns that found nothing.
    pub fn spun(&self) -> Duration {
        self.spun
    }

    /// Whether something waits for more than an event.
    pub fn hurries(&self) -> bool {
        self.hurry
    }

    /// Something waits for another core without a message to come: poll soon.
    pub fn hurry(&mut self, hurry: bool) {
        self.hurry = hurry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adaptive_spins_under_load_and_sleeps_when_idle() {
        let mut poller = Poller::new(Poll::Adaptive);
        assert_eq!(poller.wait(Time(0), None), Wait::Forever);
        let mut now = Time(0);
        for _ in 0..100 {
            now = now.after(Duration::from_micros(10));
            poller.turned(now, Work::Other);
        }
        assert_eq!(poller.wait(now, None), Wait::No);
        assert_eq!(poller.wait_for_threads(now, None), Wait::Forever);
        let later = now.after(Duration::from_millis(1));
        let timer = Duration::from_millis(250);
        assert_eq!(poller.wait(later, Some(timer)), Wait::AtMost(timer));
    }

    #[test]
    fn frames_are_slept_for_sooner_than_streams_and_what_they_cause_is_none() {
        let wait_after = |work, gap: Duration| {
            let mut poller = Poller::new(Poll::Adaptive);
            let mut now = Time(0);
            for _ in 0..100 {
                now = now.after(gap);
                poller.turned(now, work);
                poller.turned(now, Work::Own);
            }
            poller.wait(now, None)
        };
        let (line, short) = (Duration::from_micros(44), Duration::from_micros(15));
        assert_eq!(wait_after(Work::Frames, line), Wait::Forever);
        assert_eq!(wait_after(Work::Frames, short), Wait::No);
        assert_eq!(wait_after(Work::Other, line), Wait::No);
    }

    #[test]
    fn spinning_without_effect_is_no_work() {
        let mut poller = Poller::new(Poll::Always);
        let mut now = Time(0);
        for turn in 0..100u32 {
            poller.wait(now, None);
            now = now.after(Duration::from_micros(10));
            poller.turned(now, if turn < 50 { Work::Other } else { Work::None });
        }
        // The first turn without work shows how long the last one with work took.
        assert_eq!(poller.spun(), Duration::from_micros(490));
        let mut poller = Poller::new(Poll::Never);
        poller.wait(now, None);
        poller.turned(now.after(Duration::from_secs(1)), Work::None);
        assert_eq!(poller.spun(), Duration::ZERO);
    }

    #[test]
    fn a_spin_is_counted_up_to_the_last_reading_of_the_clock() {
        let mut poller = Poller::new(Poll::Always);
        let us = |us: u64| Time(us * 1000);
        // Work that takes 5 us; a spin in which the clock does not advance and is read once; a receive that
        // copies for 20 us.
        for (now, work) in [
            (0, Work::Other),
            (5, Work::None),
            (5, Work::None),
            (8, Work::None),
            (8, Work::None),
            (28, Work::Other),
        ] {
            poller.wait(us(now), None);
            poller.turned(us(now), work);
        }
        assert_eq!(poller.spun(), Duration::from_micros(3));
    }

    #[test]
    fn never_sleeps_and_always_spins() {
        assert_eq!(Poller::new(Poll::Never).wait(Time(0), None), Wait::Forever);
        assert_eq!(Poller::new(Poll::Always).wait(Time(0), None), Wait::No);
        assert_eq!(Poller::new(Poll::Always).wait_for_threads(Time(0), None), Wait::No);
    }
}
