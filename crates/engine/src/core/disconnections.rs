//! Sessions that an administrator has disconnected.

use crate::message::DisconnectRefusal;
use std::sync::mpsc;

/// How many may wait for the end of one session: more than the changes that the admin interface lets wait at
/// once. Earlier ones have gone.
const WAITING_MAX: usize = 16;

/// By serial number, with the channel that waits for the end.
#[derive(Debug, Default)]
pub(super) struct Disconnections(Vec<(u64, mpsc::Sender<Option<DisconnectRefusal>>)>);

impl Disconnections {
    /// The session is to end.
    pub(super) fn begin(&mut self, serial: u64, done: mpsc::Sender<Option<DisconnectRefusal>>) {
        let mut waiting = self.0.iter().enumerate().filter(|(_, (other, _))| *other == serial);
        if let Some((first, _)) = waiting.next()
            && waiting.count() + 1 >= WAITING_MAX
        {
            self.0.remove(first);
        }
        self.0.push((serial, done));
    }

    /// It has.
    pub(super) fn ended(&mut self, serial: u64) {
        for (_, done) in self.0.extract_if(.., |(other, _)| *other == serial) {
            let _ = done.send(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_requests_to_end_a_hung_session_take_no_memory() {
        let mut disconnections = Disconnections::default();
        let mut begin = |serial| {
            let (done, ended) = mpsc::channel();
            disconnections.begin(serial, done);
            ended
        };
        let other = begin(2);
        let asked: Vec<_> = (0..1000).map(|_| begin(1)).collect();
        assert_eq!(disconnections.0.len(), WAITING_MAX + 1);
        disconnections.ended(1);
        let answers: Vec<_> = asked.iter().map(mpsc::Receiver::try_recv).collect();
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), WAITING_MAX);
        assert!(answers[1000 - WAITING_MAX..].iter().all(|answer| matches!(answer, Ok(None))));
        assert_eq!(other.try_recv().err(), Some(mpsc::TryRecvError::Empty), "that session continues");
        disconnections.ended(2);
        assert!(matches!(other.try_recv(), Ok(None)));
        assert!(disconnections.0.is_empty());
    }
}
