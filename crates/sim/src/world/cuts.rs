//! What is left out of a seed's choices, to shorten a failure.

use super::chain::Chain;
use super::{Habits, Plan};
use crate::ata;
use crate::disk::Faults;
use crate::ethernet::Hazards;
use crate::net::Odds;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What can be left out.
const FLAGS: [&str; 23] = [
    "limits",
    "thin",
    "chain",
    "quarrel",
    "back",
    "rogue",
    "guest",
    "aoe",
    "frames",
    "crashes",
    "moves",
    "breaks",
    "network",
    "disks",
    "directory",
    "orders",
    "others",
    "aborts",
    "resets",
    "logouts",
    "returns",
    "flushes",
    "wants",
];
/// What can be reduced.
const NUMBERS: [&str; 5] = ["initiators", "cores", "units", "depth", "micros"];

/// What is left out, and what is limited to a number; as text: `rogue,orders,initiators=2`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Cuts(BTreeMap<&'static str, Option<u64>>);

impl FromStr for Cuts {
    type Err = String;

    fn from_str(text: &str) -> Result<Cuts, String> {
        let mut cuts = Cuts::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            let (name, number) = match word.split_once('=') {
                Some((name, number)) => {
                    (name, Some(number.parse().map_err(|_| format!("{number}: no number"))?))
                }
                None => (word, None),
            };
            let names: &[&'static str] = if number.is_some() { &NUMBERS } else { &FLAGS };
            let known = names.iter().find(|known| **known == name);
            let known = known.ok_or_else(|| format!("`{word}` cannot be cut, but {}", names.join(", ")))?;
            cuts.0.insert(known, number);
        }
        Ok(cuts)
    }
}

impl fmt::Display for Cuts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |(name, number): (&&str, &Option<u64>)| match number {
            Some(number) => format!("{name}={number}"),
            None => (*name).to_owned(),
        };
        out.write_str(&self.0.iter().map(word).collect::<Vec<_>>().join(","))
    }
}

impl Cuts {
    /// The same with one more cut, for each to be tried, the most effective first.
    pub fn further(&self) -> Vec<Cuts> {
        let with = |name, number| {
            let mut cuts = self.clone();
            cuts.0.insert(name, number);
            cuts
        };
        let flags = FLAGS.into_iter().filter(|name| !self.0.contains_key(name)).map(|name| with(name, None));
        let fewer = |name| {
            let number = self.0.get(name).copied().flatten();
            let tries: Vec<u64> = match (name, number) {
                ("micros", None) => vec![1_000_000, 100_000],
                ("micros", Some(number)) => vec![number / 4, number / 2, number / 10 * 9],
                ("depth", None) => vec![1, 4, 16],
                (_, None) => vec![1, 2, 3],
                (_, Some(number)) => vec![number / 2, number - 1],
            };
            let is_less = move |tried: &u64| *tried > 0 && number.is_none_or(|number| *tried < number);
            tries.into_iter().filter(is_less).map(move |number| with(name, Some(number)))
        };
        NUMBERS.into_iter().flat_map(fewer).chain(flags).collect()
    }

    /// Whether this is left out.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Limits a number to what is left.
    pub(crate) fn most(&self, name: &str, number: usize) -> usize {
        let limit = self.0.get(name).copied().flatten();
        limit.map_or(number, |limit| number.min(limit.max(1) as usize))
    }

    pub(super) fn of_plan(&self, plan: &mut Plan) {
        let off = |name, number: &mut u32| {
            if self.has(name) {
                *number = 0;
            }
        };
        off("crashes", &mut plan.crashes);
        off("moves", &mut plan.moves);
        off("directory", &mut plan.directory_fails);
        off("orders", &mut plan.orders);
        off("others", &mut plan.others);
        if self.has("chain") {
            plan.chain = None;
        }
        if self.has("limits") {
            plan.limited = None;
        }
        if self.has("thin") {
            plan.thin = None;
        }
        if self.has("quarrel") {
            plan.quarrel = None;
        }
        if self.has("back") {
            plan.chain.iter_mut().for_each(Chain::goes_on);
        }
        if self.has("rogue") {
            plan.rogue = None;
        }
        if self.has("guest") {
            plan.guest = None;
        }
        if self.has("aoe") {
            plan.ethernet = None;
        }
        if self.has("frames") {
            plan.ethernet.iter_mut().for_each(|segment| segment.hazards = Hazards::NONE);
        }
        if self.has("breaks") {
            plan.fault_micros = None;
        }
        if self.has("network") {
            plan.odds = Odds { cut: 0, late: 0, slow: 0, short: 0, pause: 0 };
        }
        if self.has("disks") {
            plan.faults = Faults::NONE;
        }
        plan.cores = self.most("cores", plan.cores);
        plan.initiators.truncate(self.most("initiators", plan.initiators.len()));
        plan.kinds.truncate(self.most("units", plan.kinds.len()));
        plan.limited = plan.limited.filter(|limited| limited.unit < plan.kinds.len());
        plan.thin = plan.thin.filter(|thin| thin.unit < plan.kinds.len());
        let micros = self.most("micros", plan.work.as_micros() as usize);
        plan.work = Duration::from_micros(micros as u64);
    }

    pub(super) fn of_ata(&self, habits: &mut ata::Habits) {
        habits.depth = self.most("depth", habits.depth);
        if self.has("flushes") {
            habits.flushes = 0;
        }
    }

    pub(crate) fn of_habits(&self, habits: &mut Habits) {
        habits.depth = self.most("depth", habits.depth.into()) as u16;
        let numbers = [
            ("aborts", &mut habits.aborts),
            ("resets", &mut habits.resets),
            ("logouts", &mut habits.logouts),
            ("returns", &mut habits.returns),
            ("flushes", &mut habits.flushes),
        ];
        for (name, number) in numbers {
            if self.has(name) {
                *number = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_text_and_become_more_until_nothing_is_left() {
        let text = "initiators=2,orders,rogue";
        let cuts: Cuts = text.parse().unwrap();
        assert_eq!(cuts.to_string(), text);
        assert!("initiators".parse::<Cuts>().is_err() && "rogue=1".parse::<Cuts>().is_err());
        let (mut last, mut steps) = (cuts, 0);
        while let Some(next) = last.further().into_iter().next() {
            assert_ne!(next, last);
            (last, steps) = (next, steps + 1);
        }
        assert!(last.to_string().contains("initiators=1") && steps < 200, "{last} after {steps}");
    }
}
