//! Lines of styled text, and bars.

use crate::result::CoreLoad;
use console::Style;

/// What a piece of text means; glyphs differ as well, so that nothing is conveyed by colour alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paint {
    /// Plain text.
    Plain,
    /// Most important.
    Strong,
    /// Least important.
    Faint,
    /// Time in user space.
    User,
    /// Time in the kernel.
    System,
    /// At a limit.
    Alarm,
}

impl Paint {
    /// Blue, orange and vermilion from the Okabe-Ito palette, which are distinguishable with every kind of
    /// colour vision.
    fn style(self) -> Style {
        let style = Style::new().for_stderr();
        match self {
            Paint::Plain => style,
            Paint::Strong => style.bold(),
            Paint::Faint => style.dim(),
            Paint::User => style.color256(32),
            Paint::System => style.color256(214),
            Paint::Alarm => style.color256(202).bold(),
        }
    }
}

/// A line of the frame.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Line(Vec<(Paint, String)>);

impl Line {
    pub(super) fn new(paint: Paint, text: impl Into<String>) -> Line {
        Line(vec![(paint, text.into())])
    }

    pub(super) fn with(mut self, paint: Paint, text: impl Into<String>) -> Line {
        self.push(paint, text);
        self
    }

    pub(super) fn push(&mut self, paint: Paint, text: impl Into<String>) {
        self.0.push((paint, text.into()));
    }

    pub(super) fn append(&mut self, other: Line) {
        self.0.extend(other.0);
    }

    /// Without colours.
    pub fn plain(&self) -> String {
        self.0.iter().map(|(_, text)| text.as_str()).collect()
    }

    /// With colours, if standard error supports them and the variable NO_COLOR does not forbid them.
    pub fn coloured(&self) -> String {
        self.0.iter().map(|(paint, text)| paint.style().apply_to(text).to_string()).collect()
    }

    /// Its width in columns.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(_, text)| text.chars().count()).sum()
    }

    /// Truncated to this width.
    pub(super) fn cut(mut self, width: usize) -> Line {
        let mut left = width;
        for (_, text) in &mut self.0 {
            *text = text.chars().filter(|c| !c.is_control()).take(left).collect();
            left -= text.chars().count();
        }
        self
    }
}

/// A progress bar.
pub(super) fn progress(share: f64, width: usize) -> Line {
    let done = cells(share, width);
    Line::new(Paint::User, "━".repeat(done)).with(Paint::Faint, "─".repeat(width - done))
}

/// A core's time: user, system, idle.
pub(super) fn core_bar(load: &CoreLoad, width: usize) -> Line {
    let user = cells(load.user, width);
    let busy = cells(load.user + load.system, width).max(user);
    Line::new(Paint::User, "█".repeat(user))
        .with(Paint::System, "▒".repeat(busy - user))
        .with(Paint::Faint, "·".repeat(width - busy))
}

/// The legend of `core_bar`.
pub(super) fn legend() -> Line {
    Line::new(Paint::User, "█")
        .with(Paint::Plain, " user  ")
        .with(Paint::System, "▒")
        .with(Paint::Plain, " system  ")
        .with(Paint::Faint, "·")
        .with(Paint::Plain, " idle")
}

fn cells(share: f64, width: usize) -> usize {
    ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_their_width_exactly() {
        for (user, system, bar) in [
            (0.0, 0.0, "··········"),
            (0.3, 0.5, "███▒▒▒▒▒··"),
            (0.25, 0.75, "███▒▒▒▒▒▒▒"),
            (1.0, 0.5, "██████████"),
            (-1.0, f64::NAN, "··········"),
        ] {
            let load = CoreLoad { core: 0, user, system, idle: 0.0 };
            assert_eq!(core_bar(&load, 10).plain(), bar);
        }
        assert_eq!(progress(0.5, 4).plain(), "━━──");
        assert_eq!(progress(7.0, 4).plain(), "━━━━");
    }

    #[test]
    fn lines_are_cut_at_the_edge_and_hold_no_control_characters() {
        let line = Line::new(Paint::Plain, "a\x1b[2Jb").with(Paint::Strong, "cdef").cut(6);
        assert_eq!((line.plain().as_str(), line.width()), ("a[2Jbc", 6));
    }
}
