//! The few SVG elements that charts consist of.

use std::fmt::Write as _;

/// A picture being drawn.
pub(crate) struct Svg {
    text: String,
}

/// The alignment of a text relative to its point.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty picture. Without a title it is decorative, and screen readers skip it.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Svg {
        let mut text = format!("<svg viewBox=\"0 0 {} {}\"", number(width), number(height));
        match title {
            "" => text.push_str(" class=\"swatch\" aria-hidden=\"true\">"),
            _ => {
                let title = escape(title);
                let _ = write!(text, " class=\"chart\" role=\"img\" aria-label=\"{title}\">");
            }
        }
        Svg { text }
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
        self.add(format_args!("<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" class=\"{class}\"/>"));
    }

    pub(super) fn polyline(&mut self, points: &[(f64, f64)], class: &str) {
        let points = list(points);
        self.add(format_args!("<polyline points=\"{points}\" class=\"{class}\"/>"));
    }

    pub(super) fn polygon(&mut self, points: &[(f64, f64)], class: &str) {
        let points = list(points);
        self.add(format_args!("<polygon points=\"{points}\" class=\"{class}\"/>"));
    }

    pub(super) fn circle(&mut self, x: f64, y: f64, radius: f64, class: &str) {
        let (x, y, radius) = (number(x), number(y), number(radius));
        self.add(format_args!("<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" class=\"{class}\"/>"));
    }

    pub(super) fn rectangle(&mut self, corner: (f64, f64), size: (f64, f64), class: &str) {
        let (x, y, width, height) = (number(corner.0), number(corner.1), number(size.0), number(size.1));
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" class=\"{class}\"/>"
        ));
    }

    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y, text) = (number(x), number(y), escape(text));
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// A vertical axis title.
    pub(super) fn upright(&mut self, x: f64, y: f64, text: &str) {
        let (x, y, text) = (number(x), number(y), escape(text));
        self.add(format_args!(
            "<text transform=\"translate({x} {y}) rotate(-90)\" text-anchor=\"middle\" class=\"axis\">{text}</text>"
        ));
    }

    /// Shows this text as a tooltip on what is drawn inside.
    pub(super) fn hint(&mut self, text: &str, draw: impl FnOnce(&mut Svg)) {
        let text = escape(text);
        self.add(format_args!("<g><title>{text}</title>"));
        draw(self);
        self.text.push_str("</g>");
    }

    /// The finished picture.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>");
        self.text
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(element);
    }
}

/// Text escaped for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && !c.is_whitespace() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn list(points: &[(f64, f64)]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{},{}", number(*x), number(*y))).collect();
    points.join(" ")
}

/// A tenth is finer than any screen's resolution.
fn number(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out() {
        let mut svg = Svg::new(10.0, 20.5, "a \"b\"");
        svg.text(1.0, 2.0, Anchor::End, "tick", "<script>&\u{1}");
        let text = svg.finish();
        assert!(text.starts_with("<svg viewBox=\"0 0 10 20.5\""), "{text}");
        assert!(text.contains("a &quot;b&quot;") && text.contains("&lt;script&gt;&amp;\u{fffd}"), "{text}");
    }
}
