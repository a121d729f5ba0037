//! Latency by percentile: the further right, the rarer; both axes are logarithmic.

use super::lines::Area;
use super::scale::{Logarithmic, compact};
use super::svg::Anchor;
use super::{SeriesStyle, Svg, WIDTH};

const HEIGHT: f64 = 290.0;
/// Anything rarer is the maximum, which is in the table.
const PERCENTILE_MAX: f64 = 99.99;
const TICKS: [(f64, &str); 6] =
    [(0.0, "0"), (50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9"), (99.99, "99.99")];

/// The curves of one series, one for each repetition.
pub(crate) struct Curves<'a> {
    pub(crate) name: String,
    pub(crate) style: SeriesStyle,
    pub(crate) curves: Vec<&'a [(f64, f64)]>,
}

/// The mean of all repetitions as a line, their minimum and maximum as a band.
pub(crate) fn latency(title: &str, series: &[Curves<'_>]) -> String {
    let area = Area::of(HEIGHT);
    let mut svg = Svg::new(WIDTH, HEIGHT, title);
    let bands: Vec<Vec<Band>> = series.iter().map(|one| bands(&one.curves)).collect();
    let scale = Logarithmic::over(bands.iter().flatten().flat_map(|band| [band.low, band.high]));
    for tick in scale.ticks() {
        let y = area.y(scale.place(tick));
        svg.line((area.left, y), (area.x(1.0), y), "grid");
        svg.text(area.left - 7.0, y + 4.0, Anchor::End, "tick", &compact(tick));
    }
    for (percentile, label) in TICKS {
        let x = area.x(rarity(percentile));
        svg.line((x, area.top), (x, area.bottom()), "grid");
        svg.text(x, area.bottom() + 18.0, Anchor::Middle, "tick", label);
    }
    svg.line((area.left, area.bottom()), (area.x(1.0), area.bottom()), "base");
    svg.text(area.x(0.5), area.bottom() + 39.0, Anchor::Middle, "axis", "Percentile of commands");
    svg.upright(14.0, area.top + area.height / 2.0, "Latency (µs)");
    let place = |percentile: f64, value: f64| (area.x(rarity(percentile)), area.y(scale.place(value)));
    for (one, bands) in series.iter().zip(&bands) {
        let class = one.style.class();
        let upper = bands.iter().map(|band| place(band.percentile, band.high));
        let lower = bands.iter().rev().map(|band| place(band.percentile, band.low));
        let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
        let mean: Vec<(f64, f64)> = bands.iter().map(|band| place(band.percentile, band.mean)).collect();
        svg.hint(&one.name, |svg| {
            svg.polygon(&outline, &format!("band {class}"));
            svg.polyline(&mean, &format!("line {class}"));
        });
        let marks = TICKS.iter().filter_map(|(at, _)| bands.iter().find(|band| band.percentile == *at));
        for band in marks {
            let (x, y) = place(band.percentile, band.mean);
            let hint = format!("{}, p{}: {} µs", one.name, band.percentile, compact(band.mean));
            svg.hint(&hint, |svg| one.style.mark(svg, x, y));
        }
    }
    svg.finish()
}

/// One percentile over all repetitions.
struct Band {
    percentile: f64,
    low: f64,
    mean: f64,
    high: f64,
}

fn bands(curves: &[&[(f64, f64)]]) -> Vec<Band> {
    let Some(first) = curves.first() else { return Vec::new() };
    let drawn = first.iter().map(|(percentile, _)| *percentile).filter(|at| *at <= PERCENTILE_MAX);
    let band = |percentile: f64| {
        let at = |curve: &&[(f64, f64)]| {
            curve.iter().find(|(other, _)| *other == percentile).map(|(_, value)| *value)
        };
        let summary = super::Summary::of(curves.iter().filter_map(at))?;
        Some(Band { percentile, low: summary.min, mean: summary.mean, high: summary.max })
    };
    drawn.filter_map(band).collect()
}

/// Position of a percentile: every nine is an equally wide step.
fn rarity(percentile: f64) -> f64 {
    let nines = |percentile: f64| -((100.0 - percentile.min(PERCENTILE_MAX)) / 100.0).log10();
    nines(percentile) / nines(PERCENTILE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nine_is_a_step() {
        let places: Vec<f64> = [0.0, 90.0, 99.0, 99.9, 99.99, 100.0].into_iter().map(rarity).collect();
        for (place, expected) in places.iter().zip([0.0, 0.25, 0.5, 0.75, 1.0, 1.0]) {
            assert!((place - expected).abs() < 1e-9, "{places:?}");
        }
    }

    #[test]
    fn repetitions_become_a_band() {
        let (a, b) = ([(0.0, 5.0), (99.0, 10.0), (100.0, 50.0)], [(0.0, 7.0), (99.0, 30.0), (100.0, 60.0)]);
        let bands = bands(&[&a, &b]);
        assert_eq!(bands.len(), 2, "the maximum is left out");
        assert_eq!((bands[1].low, bands[1].mean, bands[1].high), (10.0, 20.0, 30.0));
    }
}
