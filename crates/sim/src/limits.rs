//! A unit limited to a rate of commands: checks that no more of them end.

use fastrand::Rng;
use proto::time::Time;

const SALT: u64 = 0x6c69_6d69_7473_0000;

/// A unit's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limited {
    pub(crate) unit: usize,
    pub(crate) iops: u64,
}

/// The smallest burst that may be admitted at once, plus what may be admitted early for fairness:
/// milliseconds of the rate.
const BURST_MILLIS: u64 = 20 + 10;

/// The limited unit in this seed's world, if any.
pub(crate) fn draw(seed: u64, units: usize) -> Option<Limited> {
    let mut rng = Rng::with_seed(seed ^ SALT);
    (rng.u32(0..8) == 0)
        .then(|| Limited { unit: rng.usize(0..units), iops: [300, 1000, 3000][rng.usize(0..3)] })
}

/// Counts completed commands.
#[derive(Debug)]
pub(crate) struct Meter {
    limited: Option<Limited>,
    /// How often the target may be started: each time the limit starts afresh.
    lives: u64,
    /// When the first of them began.
    since: Option<Time>,
    ended: u64,
}

impl Meter {
    pub(crate) fn new(limited: Option<Limited>, lives: u64) -> Meter {
        Meter { limited, lives, since: None, ended: 0 }
    }

    /// A command that reads or writes blocks begins.
    pub(crate) fn begins(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// It has succeeded.
    pub(crate) fn ends(&mut self, now: Time, unit: usize) -> Result<(), String> {
        let (Some(Limited { iops, .. }), Some(since)) =
            (self.limited.filter(|limited| limited.unit == unit), self.since)
        else {
            return Ok(());
        };
        self.ended += 1;
        let nanos = u128::from(now.0.saturating_sub(since.0));
        let by_rate = u64::try_from(nanos * u128::from(iops) / 1_000_000_000).unwrap_or(u64::MAX);
        let most = by_rate + self.lives * (iops * BURST_MILLIS / 1000 + 1);
        if self.ended > most {
            let after = nanos / 1000;
            return Err(format!(
                "unit {unit} has done {} commands in {after} us, and may do {most}",
                self.ended
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_does_more_than_its_rate_and_its_burst_is_found() {
        let mut meter = Meter::new(Some(Limited { unit: 1, iops: 1000 }), 1);
        meter.begins(Time(5_000_000_000));
        let mut end = |millis: u64, unit| meter.ends(Time(5_000_000_000 + millis * 1_000_000), unit);
        assert!((0..31).all(|_| end(0, 1) == Ok(())));
        assert!((0..100).all(|_| end(0, 0) == Ok(())), "others are not limited");
        assert!((1..100).all(|millis| end(millis, 1) == Ok(())));
        assert!(end(99, 1).is_err());
    }
}
