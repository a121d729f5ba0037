//! Groups of bars, for positions without an order or too few for a line.

use super::lines::{Area, axes, figure_text, whisker};
use super::scale::compact;
use super::svg::Anchor;
use super::{Frame, SERIES_STYLES, Series, SeriesStyle, Svg, WIDTH};

const HEIGHT: f64 = 270.0;

/// One bar for each series in each group, labelled with its figure if there is room.
pub(crate) fn bars(frame: &Frame<'_>, series: &[Series]) -> String {
    let area = Area::of(HEIGHT);
    let mut svg = Svg::new(WIDTH, HEIGHT, frame.title);
    let scale = axes(&mut svg, &area, frame);
    let groups = frame.x_labels.len().max(1) as f64;
    let group = area.width / groups;
    let bar = (group * 0.84 / series.len().max(1) as f64).min(64.0);
    for (place, one) in series.iter().enumerate() {
        for (index, point) in one.points.iter().enumerate() {
            let Some(point) = point else { continue };
            let middle = area.x(frame.x_places[index]);
            let left = middle + (place as f64 - series.len() as f64 / 2.0) * bar;
            let top = area.y(scale.place(point.mean));
            let hint = format!(
                "{}, {}: {}",
                one.name,
                frame.x_labels[index],
                figure_text(point.mean, point.confidence)
            );
            svg.hint(&hint, |svg| {
                let size = (bar * 0.88, (area.bottom() - top).max(0.8));
                self::bar(svg, one.style, (left + bar * 0.06, top), size);
                whisker(svg, &area, &scale, left + bar / 2.0, point.interval(), "plain");
            });
            if bar >= 26.0 {
                let above = area.y(scale.place(point.interval().1)) - 4.0;
                svg.text(left + bar / 2.0, above.max(9.0), Anchor::Middle, "value", &compact(point.mean));
            }
        }
    }
    svg.finish()
}

/// A coloured bar, with stripes that distinguish it without colour.
pub(super) fn bar(svg: &mut Svg, style: SeriesStyle, corner: (f64, f64), size: (f64, f64)) {
    svg.rectangle(corner, size, &format!("bar {}", style.class()));
    svg.rectangle(corner, size, &format!("hatch h{}", style.0 % SERIES_STYLES));
}
