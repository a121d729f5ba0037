//! Hand-written SVG charts: every colour is a variable of the page, so that dark mode and print need no
//! second set.

mod bars;
mod cores;
mod latency;
mod lines;
mod scale;
mod svg;

pub(super) use bars::bars;
pub(super) use cores::cores;
pub(super) use latency::{Curves, latency};
pub(super) use lines::lines;
use svg::Svg;
pub(super) use svg::escape;

use super::statistics::Summary;

/// Width of every chart in its own units; the page scales it. Small, so that text stays readable on a phone.
pub(super) const WIDTH: f64 = 400.0;

/// The style of a series, the same everywhere in a report: a colour, and a marker and a dash pattern that work
/// without colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SeriesStyle(pub(super) usize);

/// Number of distinct looks.
pub(super) const SERIES_STYLES: usize = 8;

impl SeriesStyle {
    /// The class for colour and dash pattern.
    pub(super) fn class(self) -> String {
        format!("s{}", self.0 % SERIES_STYLES)
    }

    /// Draws the marker.
    fn mark(self, svg: &mut Svg, x: f64, y: f64) {
        let points: &[(f64, f64)] = match self.0 % SERIES_STYLES {
            0 => return svg.circle(x, y, 4.0, &format!("mark {}", self.class())),
            1 => &[(-3.8, -3.8), (3.8, -3.8), (3.8, 3.8), (-3.8, 3.8)],
            2 => &[(0.0, -5.0), (4.6, 3.6), (-4.6, 3.6)],
            3 => &[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)],
            4 => &[(0.0, 5.0), (4.6, -3.6), (-4.6, -3.6)],
            5 => &[
                (-1.6, -4.8),
                (1.6, -4.8),
                (1.6, -1.6),
                (4.8, -1.6),
                (4.8, 1.6),
                (1.6, 1.6),
                (1.6, 4.8),
                (-1.6, 4.8),
                (-1.6, 1.6),
                (-4.8, 1.6),
                (-4.8, -1.6),
                (-1.6, -1.6),
            ],
            6 => &[(-5.0, 0.0), (-2.5, -4.4), (2.5, -4.4), (5.0, 0.0), (2.5, 4.4), (-2.5, 4.4)],
            _ => &[(-4.6, -1.8), (4.6, -1.8), (4.6, 1.8), (-4.6, 1.8)],
        };
        let moved: Vec<(f64, f64)> = points.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        svg.polygon(&moved, &format!("mark {}", self.class()));
    }
}

/// One series of a chart.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) style: SeriesStyle,
    /// A figure for each position on the x axis; `None`: not measured.
    pub(super) points: Vec<Option<Summary>>,
}

/// A chart with positions on the x axis and figures on the y axis.
pub(super) struct Frame<'a> {
    /// For screen readers.
    pub(super) title: &'a str,
    pub(super) x_title: &'a str,
    pub(super) x_labels: &'a [String],
    /// Position of each label, as a fraction of the width.
    pub(super) x_places: &'a [f64],
    pub(super) y_title: &'a str,
    /// The largest figure of this chart and of those it is compared with.
    pub(super) most: f64,
}

/// The symbol beside the name in a legend of bars.
pub(super) fn bar_swatch(style: SeriesStyle) -> String {
    let mut svg = Svg::new(34.0, 14.0, "");
    bars::bar(&mut svg, style, (6.0, 1.0), (22.0, 12.0));
    svg.finish()
}

/// The symbol beside the name in a legend of lines.
pub(super) fn line_swatch(style: SeriesStyle) -> String {
    let mut svg = Svg::new(34.0, 14.0, "");
    svg.polyline(&[(1.0, 7.0), (33.0, 7.0)], &format!("line {}", style.class()));
    style.mark(&mut svg, 17.0, 7.0);
    svg.finish()
}
