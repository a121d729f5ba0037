//! The threshold of used space at which the nexuses of a thin unit are notified (SBC-4 section 4.7.3.7).

use crate::state::attention::UnitAttention;
use crate::state::home::{Draft, HomeReply, Who};
use crate::state::policy::Policy;
use crate::state::space::{SET_BYTES, Space, sets};
use crate::state::unit::{Unit, View};
use crate::vocabulary::modes::Modes;

impl Policy {
    fn space<'a>(&self, unit: &'a Unit) -> Option<&'a Space> {
        unit.space.as_deref().filter(|_| unit.thin && self.traits.discards)
    }
}

impl View {
    /// The space that the store takes, if the unit has thresholds: it is thin, and that space can be
    /// measured.
    pub(crate) fn space(&self) -> Option<&Space> {
        self.policy.space(&self.unit)
    }

    /// THRESHOLD EXPONENT: a threshold set has two to the power of this many blocks; 0: there are no thresholds.
    pub(crate) fn threshold_exponent(&self) -> u8 {
        let blocks = SET_BYTES.checked_div(u64::from(self.policy.block_bytes)).and_then(u64::checked_ilog2);
        blocks.filter(|_| self.space().is_some()).map_or(0, |exponent| u8::try_from(exponent).unwrap_or(0))
    }

    /// THRESHOLD COUNT with these modes.
    pub(crate) fn threshold_sets(&self, modes: &Modes) -> u32 {
        threshold_sets(&self.unit, &self.policy, modes)
    }
}

/// The value set last; before that, the percentage at which to warn.
fn threshold_sets(unit: &Unit, policy: &Policy, modes: &Modes) -> u32 {
    let of_size = |percent: u8| {
        let size = policy.traits.size_bytes.checked_div(SET_BYTES).unwrap_or(0);
        sets(size.saturating_mul(percent.into()).checked_div(100).unwrap_or(0))
    };
    modes.threshold_sets.unwrap_or_else(|| unit.warn_at.map_or(0, of_size))
}

impl Draft {
    /// Every nexus is notified once when the threshold is reached, and again only after usage has fallen by
    /// half a threshold set, which is the lower end of its range (SBC-4 figure 8).
    pub(crate) fn update_threshold(&mut self, unit: &Unit) -> HomeReply {
        let Some(used) = self.policy.space(unit).and_then(Space::used_bytes) else { return HomeReply::Done };
        let modes = self.policy.modes;
        let at = u64::from(threshold_sets(unit, &self.policy, &modes)).saturating_mul(SET_BYTES);
        let half = SET_BYTES.checked_div(2).unwrap_or(0);
        let lowest = if self.policy.threshold_reached { at.saturating_sub(half) } else { at };
        let is_reached = modes.threshold && modes.provisioning_errors && used >= lowest;
        if is_reached == self.policy.threshold_reached {
            return HomeReply::Done;
        }
        self.policy.threshold_reached = is_reached;
        if is_reached {
            self.attentions.push((Who::Everyone, UnitAttention::ThinThreshold));
        }
        self.changed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::home::HomeRequest;
    use crate::testing::{Bench, Outcome, unit};
    use std::sync::Arc;
    use wire::scsi::command::{Inquiry, LogSense, ModeSelect6, ModeSense6, TestUnitReady};
    use wire::scsi::{code, mode};

    const MIB: u64 = 1 << 20;
    const READY: TestUnitReady = TestUnitReady {};
    const THRESHOLD: u16 = code::THIN_PROVISIONING_THRESHOLD_REACHED;

    /// A unit of 64 MiB that warns at 80 %, 51 MiB.
    fn bench() -> (Bench, Arc<Space>) {
        let (space, mut unit) = (Arc::<Space>::default(), unit());
        (unit.space, unit.warn_at) = (Some(space.clone()), Some(80));
        (Bench::of(unit, 64 << 20), space)
    }

    fn take(bench: &mut Bench, space: &Space, used: u64) {
        space.set(used, 64 * MIB - used);
        bench.ask(HomeRequest::SpaceChanged);
    }

    fn page(bench: &mut Bench, control: u8) -> Vec<u8> {
        let page = ModeSense6::page_only(mode::page::INFORMATIONAL_EXCEPTIONS, 255);
        let subpage = mode::page::LOGICAL_BLOCK_PROVISIONING;
        bench.read(ModeSense6 { control, subpage, ..page }).assert_good().data[4..].to_vec()
    }

    fn select(bench: &mut Bench, page: &[u8]) -> Outcome {
        let list = [&[0; 4], page].concat();
        bench.write(ModeSelect6::new(list.len() as u8), &list)
    }

    #[test]
    fn every_nexus_is_notified_once_for_each_crossing() {
        let (mut bench, space) = bench();
        let mut notified = |used: u64| {
            take(&mut bench, &space, used);
            [0, 1].map(|nexus| {
                let outcome = bench.run(nexus, READY, &[], 0);
                let sense = outcome.ending.sense.map(|_| outcome.sense());
                assert!(sense.is_none_or(|sense| sense == (0x6, THRESHOLD)), "{sense:?}");
                bench.run(nexus, READY, &[], 0).assert_good();
                sense.is_some()
            })
        };
        assert_eq!(notified(50 * MIB), [false; 2]);
        assert_eq!(notified(51 * MIB), [true; 2]);
        assert_eq!(notified(64 * MIB), [false; 2]);
        assert_eq!(notified(51 * MIB - MIB / 4), [false; 2], "it is still in the range of the threshold");
        assert_eq!(notified(52 * MIB), [false; 2]);
        assert_eq!(notified(40 * MIB), [false; 2]);
        assert_eq!(notified(51 * MIB), [true; 2]);
    }

    #[test]
    fn the_attention_names_the_threshold_that_was_reached() {
        let (mut bench, space) = bench();
        take(&mut bench, &space, 60 * MIB);
        let outcome = bench.run(0, READY, &[], 0);
        let information = outcome.ending.sense.and_then(|sense| sense.information());
        assert_eq!(information, Some(16), "the offset of its descriptor in the mode page");
    }

    #[test]
    fn pages_report_what_is_taken_and_the_threshold() {
        let (mut bench, space) = bench();
        assert_eq!(bench.read(Inquiry::page(0xb2, 255)).data[4], 11, "sets of 2048 blocks");
        let log = LogSense { control: 1, page: 0x0c, allocation: 255, ..LogSense::default() };
        assert_eq!(bench.read(log).assert_good().data, [0x8c, 0, 0, 0], "nothing is known yet");
        take(&mut bench, &space, 20 * MIB + 1);
        let available = [0, 1, 3, 8, 0, 0, 0, 43, 2, 0, 0, 0];
        let used = [0, 2, 3, 8, 0, 0, 0, 21, 1, 0, 0, 0];
        let data = bench.read(log).assert_good().data.clone();
        assert_eq!(data, [&[0x8c, 0, 0, 24][..], &available, &used].concat());
        let mut expected = vec![0x5c, 2, 0, 20];
        expected.resize(16, 0);
        expected.extend([0x81, 2, 0, 0, 0, 0, 0, 51]);
        assert_eq!(page(&mut bench, 0), expected);
        assert_eq!(page(&mut bench, 2), expected);
        assert_eq!(page(&mut bench, 1)[16..], [0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let recovery = bench.read(ModeSense6::page_only(0x01, 255)).assert_good().data[4..].to_vec();
        assert_eq!(recovery[7], 0x80, "LBPERE");
        bench
            .read(ModeSense6 { no_descriptors: true, subpage: 1, ..ModeSense6::new(0x1c, 255) })
            .assert_invalid_field(3);
        let all = bench
            .read(ModeSense6 { no_descriptors: true, subpage: 255, ..ModeSense6::new(0x3f, 255) })
            .assert_good()
            .data
            .clone();
        assert!(all.windows(4).any(|part| part == [0x5c, 2, 0, 20]));
    }

    #[test]
    fn mode_select_moves_the_threshold_and_turns_it_off() {
        let (mut bench, space) = bench();
        take(&mut bench, &space, 30 * MIB);
        let mut lower = page(&mut bench, 0);
        lower[23] = 25;
        select(&mut bench, &lower).assert_good();
        bench.run(1, READY, &[], 0).assert_check(0x6, 0x2a01);
        for nexus in [0, 1] {
            bench.run(nexus, READY, &[], 0).assert_check(0x6, THRESHOLD);
        }
        assert_eq!(page(&mut bench, 0)[23], 25);
        let mut off = lower.clone();
        off[16] = 0x01;
        select(&mut bench, &off).assert_good();
        take(&mut bench, &space, 60 * MIB);
        bench.read(READY).assert_good();
        let mut recovery = bench.read(ModeSense6::page_only(0x01, 255)).assert_good().data[4..].to_vec();
        recovery[7] = 0;
        select(&mut bench, &[&recovery[..], &lower].concat()).assert_good();
        take(&mut bench, &space, 61 * MIB);
        bench.read(READY).assert_good();
        lower[17] = 1;
        select(&mut bench, &lower).assert_check(0x5, 0x2600);
    }

    #[test]
    fn another_part_of_the_size_takes_effect_when_it_is_configured() {
        let (mut bench, space) = bench();
        take(&mut bench, &space, 30 * MIB);
        let unit = Unit { warn_at: Some(25), ..Unit::clone(&bench.view.unit) };
        bench.ask(HomeRequest::Configure(Arc::new(unit)));
        bench.read(READY).assert_check(0x6, 0x2a01);
        bench.read(READY).assert_check(0x6, THRESHOLD);
        assert_eq!(page(&mut bench, 0)[23], 16);
    }

    #[test]
    fn a_unit_whose_store_does_not_say_what_it_takes_has_no_threshold() {
        let mut bench = Bench::new();
        bench.ask(HomeRequest::SpaceChanged);
        assert!(bench.published.is_none());
        assert_eq!(bench.read(Inquiry::page(0xb2, 255)).data[4], 0);
        bench
            .read(ModeSense6 { no_descriptors: true, subpage: 2, ..ModeSense6::new(0x1c, 255) })
            .assert_invalid_field(3);
        let recovery = bench
            .read(ModeSense6 { no_descriptors: true, control: 1, ..ModeSense6::new(0x01, 255) })
            .assert_good()
            .data[4..]
            .to_vec();
        assert_eq!(recovery[2..], [0; 10]);
    }
}
