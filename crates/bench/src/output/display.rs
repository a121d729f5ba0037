//! The live display of a run: on a terminal a frame redrawn in place, otherwise a line per second, or as often as asked. Both
//! go to standard error, so that standard output holds only the result.
//!
//! The terminal's mode and cursor are not changed: whatever ends the process, nothing needs to be restored.

mod frame;
mod view;

pub use frame::{Line, Paint};
pub use view::View;

use crate::result::Sample;
use console::Term;
use std::io;
use std::time::Duration;

/// Seconds between redraws, slightly less than two samples.
const REDRAW: f64 = 0.19;

/// Rows and columns assumed for a terminal that does not report them.
const SIZE: (u16, u16) = (24, 80);

/// Shows a run on standard error.
pub struct LiveDisplay {
    view: View,
    term: Term,
    /// Width of each line of the frame on the terminal.
    shown: Vec<usize>,
    /// When something was last shown, in seconds since measuring began.
    last: f64,
    /// Seconds between two lines.
    interval: f64,
}

impl LiveDisplay {
    /// A display that has not shown anything yet. Where there is no terminal, it prints a line for each interval, with the means of it.
    pub fn new(view: View, interval: Duration) -> LiveDisplay {
        let term = Term::buffered_stderr();
        let interval = interval.as_secs_f64();
        let view = if term.is_term() { view } else { view.with_window(interval) };
        LiveDisplay { view, term, shown: Vec::new(), last: f64::NEG_INFINITY, interval }
    }

    /// Receives a sample, and shows it if it is time. The loss of the terminal must not end a run.
    pub fn observe(&mut self, sample: &Sample) {
        self.view.add(sample);
        let is_due = match self.term.is_term() {
            true => sample.at - self.last >= REDRAW,
            false => (sample.at / self.interval).floor() > (self.last / self.interval).floor(),
        };
        if !is_due {
            return;
        }
        // The first sample comes too early for a line of its interval.
        let is_first = self.last == f64::NEG_INFINITY;
        self.last = sample.at;
        let _ = match self.term.is_term() {
            true => self.draw(),
            false if is_first => Ok(()),
            false => self.term.write_line(&self.view.line()).and_then(|()| self.term.flush()),
        };
    }

    /// Removes the frame, to make way for the result.
    pub fn clear(&mut self) {
        let _ = self.erase().and_then(|()| self.term.flush());
    }

    fn draw(&mut self) -> io::Result<()> {
        let (height, width) = self.term.size_checked().unwrap_or(SIZE);
        let frame = self.view.frame(usize::from(width), usize::from(height));
        self.erase()?;
        for line in &frame {
            self.term.write_line(&line.coloured())?;
        }
        self.shown = frame.iter().map(Line::width).collect();
        self.term.flush()
    }

    /// Moves to the frame's first line. A terminal that became narrower has wrapped lines.
    fn erase(&mut self) -> io::Result<()> {
        let (_, width) = self.term.size_checked().unwrap_or(SIZE);
        let rows: usize =
            self.shown.drain(..).map(|shown| shown.div_ceil(usize::from(width).max(1)).max(1)).sum();
        if rows > 0 {
            self.term.move_cursor_up(rows)?;
            self.term.write_str("\r")?;
            self.term.clear_to_end_of_screen()?;
        }
        Ok(())
    }
}
