//! Progress: a bar on a terminal, otherwise an occasional line.

use super::transfer::Progress;
use config::format_size;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A progress report, which is removed when dropped.
pub(super) struct Bar {
    what: String,
    /// `None`: no terminal.
    bar: Option<ProgressBar>,
    last: Instant,
}

impl Bar {
    pub(super) fn new(what: &str) -> Bar {
        let style = "{msg} {wide_bar} {percent} % {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} eta {eta}";
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template(style).expect("the template is sound");
            ProgressBar::new(0).with_style(style).with_message(what.to_owned())
        });
        Bar { what: what.to_owned(), bar, last: Instant::now() }
    }

    pub(super) fn show(&mut self, progress: Progress) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(progress.total);
                bar.set_position(progress.done);
            }
            None if self.last.elapsed() >= LINE_EVERY => {
                self.last = Instant::now();
                let (done, total) = (format_size(progress.done), format_size(progress.total));
                let percent = u128::from(progress.done) * 100 / u128::from(progress.total.max(1));
                crate::print_error(format_args!("{}: {percent} %, {done} of {total}", self.what));
            }
            None => {}
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
