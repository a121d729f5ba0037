//! The load of every core over time, one strip each: a saturated core among idle ones stands out.

use super::scale::Linear;
use super::svg::Anchor;
use super::{Svg, WIDTH};
use bench::result::{CoreLoad, Sample};

const STRIP: f64 = 46.0;
const GAP: f64 = 12.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 44.0;
/// Strips per chart; for a larger machine, those of its busiest cores.
pub(crate) const STRIPS_MAX: usize = 16;

/// One strip per core: user space below, kernel above it.
pub(crate) fn cores(title: &str, series: &[Sample]) -> String {
    let samples: Vec<&Sample> = series.iter().filter(|sample| sample.at >= 0.0).collect();
    let shown = busiest(&samples);
    let height = TOP + BOTTOM + shown.len() as f64 * (STRIP + GAP) - GAP;
    let mut svg = Svg::new(WIDTH, height.max(TOP + BOTTOM), title);
    let end = samples.last().map_or(1.0, |sample| sample.at).max(0.001);
    let width = WIDTH - LEFT - RIGHT;
    let x = |at: f64| LEFT + (at / end).clamp(0.0, 1.0) * width;
    for (place, core) in shown.iter().enumerate() {
        let top = TOP + place as f64 * (STRIP + GAP);
        let y = |share: f64| top + STRIP - share.clamp(0.0, 1.0) * STRIP;
        svg.text(10.0, top + STRIP / 2.0 + 4.0, Anchor::Start, "tick", &format!("core {core}"));
        for (share, label) in [(0.0, "0"), (1.0, "100")] {
            svg.line((LEFT, y(share)), (LEFT + width, y(share)), if share == 0.0 { "base" } else { "grid" });
            svg.text(LEFT - 5.0, y(share) + 4.0, Anchor::End, "small", label);
        }
        let loads: Vec<(f64, CoreLoad)> =
            samples.iter().filter_map(|sample| Some((sample.at, load(sample, *core)?))).collect();
        let zero = |_: &CoreLoad| 0.0;
        strip(&mut svg, &loads, x, y, (zero, |load| load.user), "user");
        strip(&mut svg, &loads, x, y, (|load| load.user, |load| load.user + load.system), "system");
    }
    let scale = Linear::up_to(end);
    let bottom = height - BOTTOM;
    for (tick, label) in scale.ticks().into_iter().filter(|(tick, _)| *tick <= end * 1.001) {
        svg.text(x(tick), bottom + 17.0, Anchor::Middle, "tick", &label);
    }
    svg.text(LEFT + width / 2.0, bottom + 36.0, Anchor::Middle, "axis", "Time (s); load of each core (%)");
    svg.finish()
}

type Bounds = (fn(&CoreLoad) -> f64, fn(&CoreLoad) -> f64);

/// The area between two bounds; each sample covers the time before it.
fn strip(
    svg: &mut Svg,
    loads: &[(f64, CoreLoad)],
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
    bounds: Bounds,
    class: &str,
) {
    let mut steps: Vec<(f64, f64, f64)> = Vec::new();
    let mut since = 0.0;
    for (at, load) in loads {
        let (low, high) = (y(bounds.0(load)), y(bounds.1(load)));
        steps.push((x(since), low, high));
        steps.push((x(*at), low, high));
        since = *at;
    }
    let upper = steps.iter().map(|(x, _, high)| (*x, *high));
    let lower = steps.iter().rev().map(|(x, low, _)| (*x, *low));
    let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
    svg.polygon(&outline, &format!("load {class}"));
}

fn load(sample: &Sample, core: usize) -> Option<CoreLoad> {
    sample.cores.iter().find(|load| load.core == core).copied()
}

/// The cores shown, in order.
fn busiest(samples: &[&Sample]) -> Vec<usize> {
    let Some(first) = samples.first() else { return Vec::new() };
    let busy = |core: usize| -> f64 {
        samples.iter().filter_map(|sample| load(sample, core)).map(|load| load.user + load.system).sum()
    };
    let mut cores: Vec<(f64, usize)> = first.cores.iter().map(|load| (busy(load.core), load.core)).collect();
    cores.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut shown: Vec<usize> = cores.into_iter().take(STRIPS_MAX).map(|(_, core)| core).collect();
    shown.sort_unstable();
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_machine_shows_its_busiest_cores() {
        let load = |core: usize| CoreLoad { core, user: core as f64 / 100.0, system: 0.0, idle: 0.5 };
        let sample = Sample {
            at: 0.1,
            iops: 0.0,
            bytes_per_second: 0.0,
            p50: 0.0,
            p99: 0.0,
            cores: (0..64).map(load).collect(),
            target_cores: None,
            initiator_cores: 0.0,
            core_use: Vec::new(),
            link: None,
        };
        assert_eq!(busiest(&[&sample]), (48..64).collect::<Vec<_>>());
        let text = cores("load", &[sample]);
        assert!(text.contains("core 63") && !text.contains("core 12<"), "{text}");
        assert!(cores("nothing", &[]).ends_with("</svg>"));
    }
}
