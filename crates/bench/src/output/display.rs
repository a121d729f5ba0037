//! The live display of a run: on a terminal a frame that is redrawn in place, elsewhere a line each second.
//! Both go to standard error, so that a result on standard output stays clean.
//!
//! The terminal is left in its own mode, cursor included: whatever ends the process, nothing needs to be restored.

mod frame;
mod view;

pub use frame::{Line, Paint};
pub use view::View;

use crate::result::Sample;
use console::Term;
use std::io;

/// Seconds between two drawings of the frame, a little less than two samples.
const REDRAW: f64 = 0.19;

/// Rows and columns of a terminal that does not report them.
const SIZE: (u16, u16) = (24, 80);

/// Shows a run on standard error.
pub struct LiveDisplay {
    view: View,
    term: Term,
    /// Width of each line of the frame that is on the terminal.
    shown: Vec<usize>,
    /// When something was shown last, in seconds since measuring began.
    last: f64,
}

impl LiveDisplay {
    /// A display that has not shown anything yet.
    pub fn new(view: View) -> LiveDisplay {
        LiveDisplay { view, term: Term::buffered_stderr(), shown: Vec::new(), last: f64::NEG_INFINITY }
    }

    /// Takes a sample, and shows it if it is time. A terminal that is gone is no reason to end a run.
    pub fn observe(&mut self, sample: &Sample) {
        self.view.add(sample);
        let is_due = match self.term.is_term() {
            true => sample.at - self.last >= REDRAW,
            false => sample.at.floor() > self.last.floor(),
        };
        if !is_due {
            return;
        }
        // The first sample comes too early to be a line of a second.
        let is_first = self.last == f64::NEG_INFINITY;
        self.last = sample.at;
        let _ = match self.term.is_term() {
            true => self.draw(),
            false if is_first => Ok(()),
            false => self.term.write_line(&self.view.line()).and_then(|()| self.term.flush()),
        };
    }

    /// Takes the frame away, for the result to stand in its place.
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

    /// Goes back to the frame's first line. A terminal that has become narrower has broken lines into several.
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
