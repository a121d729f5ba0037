//! Sessions that an administrator has disconnected.

use crate::message::Unended;
use std::sync::mpsc;

/// By their serial numbers, and who waits until they have ended.
#[derive(Debug, Default)]
pub(super) struct Disconnections(Vec<(u64, mpsc::Sender<Option<Unended>>)>);

impl Disconnections {
    /// The session is to end.
    pub(super) fn begin(&mut self, serial: u64, done: mpsc::Sender<Option<Unended>>) {
        self.0.push((serial, done));
    }

    /// It has.
    pub(super) fn ended(&mut self, serial: u64) {
        for (_, done) in self.0.extract_if(.., |(other, _)| *other == serial) {
            let _ = done.send(None);
        }
    }
}
