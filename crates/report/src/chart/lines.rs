//! Lines over ordered positions, with error bars.

use super::scale::{Linear, compact};
use super::svg::Anchor;
use super::{Frame, Series, Svg, WIDTH};

const HEIGHT: f64 = 270.0;
/// Left, top, right, bottom.
pub(super) const MARGIN: (f64, f64, f64, f64) = (58.0, 12.0, 20.0, 48.0);

/// Approximate width of a letter in axis labels, and the minimum gap between two labels; if they do not fit,
/// every other one is placed lower.
const LETTER: f64 = 6.3;
const GAP: f64 = 8.0;

/// The plot area.
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    pub(super) fn of(height: f64) -> Area {
        let (left, top, right, bottom) = MARGIN;
        Area { left, top, width: WIDTH - left - right, height: height - top - bottom }
    }

    pub(super) fn bottom(&self) -> f64 {
        self.top + self.height
    }

    pub(super) fn y(&self, share: f64) -> f64 {
        self.bottom() - share * self.height
    }

    pub(super) fn x(&self, share: f64) -> f64 {
        self.left + share * self.width
    }
}

/// One line per series.
pub(crate) fn lines(frame: &Frame<'_>, series: &[Series]) -> String {
    let area = Area::of(HEIGHT);
    let mut svg = Svg::new(WIDTH, HEIGHT, frame.title);
    let scale = axes(&mut svg, &area, frame);
    let place = |index: usize| area.x(frame.x_places[index]);
    for one in series {
        let class = one.style.class();
        let measured = one.points.iter().enumerate().filter_map(|(index, point)| Some((index, (*point)?)));
        let measured: Vec<_> = measured.collect();
        let corners: Vec<(f64, f64)> =
            measured.iter().map(|(index, point)| (place(*index), area.y(scale.place(point.mean)))).collect();
        svg.polyline(&corners, &format!("line {class}"));
        for ((index, point), (x, y)) in measured.iter().zip(&corners) {
            let hint = format!(
                "{}, {}: {}",
                one.name,
                frame.x_labels[*index],
                figure_text(point.mean, point.confidence)
            );
            svg.hint(&hint, |svg| {
                whisker(svg, &area, &scale, *x, point.interval(), &class);
                one.style.mark(svg, *x, *y);
            });
        }
    }
    svg.finish()
}

/// The axes with ticks and titles.
pub(super) fn axes(svg: &mut Svg, area: &Area, frame: &Frame<'_>) -> Linear {
    let scale = Linear::up_to(frame.most);
    for (tick, label) in scale.ticks() {
        let y = area.y(scale.place(tick));
        svg.line((area.left, y), (area.x(1.0), y), if tick == 0.0 { "base" } else { "grid" });
        svg.text(area.left - 7.0, y + 4.0, Anchor::End, "tick", &label);
    }
    let longest = frame.x_labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let is_tight = (longest as f64 * LETTER + GAP) * frame.x_labels.len() as f64 > area.width;
    for (index, (label, place)) in frame.x_labels.iter().zip(frame.x_places).enumerate() {
        let below = match (is_tight, index % 2) {
            (false, _) => 18.0,
            (true, 0) => 14.0,
            (true, _) => 26.0,
        };
        svg.text(area.x(*place), area.bottom() + below, Anchor::Middle, "tick", label);
    }
    svg.text(area.x(0.5), area.bottom() + 39.0, Anchor::Middle, "axis", frame.x_title);
    svg.upright(14.0, area.top + area.height / 2.0, frame.y_title);
    scale
}

/// The confidence interval. An end outside the chart has no cap.
pub(super) fn whisker(svg: &mut Svg, area: &Area, scale: &Linear, x: f64, ends: (f64, f64), class: &str) {
    let (low, high) = (area.y(scale.place(ends.0.max(0.0))), area.y(scale.place(ends.1)));
    let class = format!("error {class}");
    svg.line((x, low), (x, high), &class);
    for (end, y) in [(ends.0, low), (ends.1, high)] {
        if (0.0..=scale.top).contains(&end) {
            svg.line((x - 4.0, y), (x + 4.0, y), &class);
        }
    }
}

/// A figure and its confidence interval.
pub(super) fn figure_text(mean: f64, confidence: Option<f64>) -> String {
    match confidence {
        Some(half) => format!("{} ± {}", compact(mean), compact(half)),
        None => compact(mean),
    }
}
