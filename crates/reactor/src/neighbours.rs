//! Whether a core serves only one busy socket.

use crate::io::Handle;
use proto::time::Time;
use std::time::Duration;

/// How long a socket counts after it has received. Longer than the pauses of a session in use, and so short
/// that an initiator's pings every few seconds cost the others little.
const LATELY: Duration = Duration::from_millis(100);

/// Tracks whether several sockets have received recently.
#[derive(Debug, Default)]
pub struct Neighbours {
    last: Option<Handle>,
    shared_until: Time,
}

impl Neighbours {
    /// A socket has received.
    pub fn received(&mut self, socket: Handle, now: Time) {
        if self.last.is_some_and(|last| last != socket) {
            self.shared_until = now.after(LATELY);
        }
        self.last = Some(socket);
    }

    /// See [`crate::io::Io::is_shared`].
    pub fn are_there(&self, now: Time) -> bool {
        now < self.shared_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_alone_until_another_receives_and_again_when_that_is_long_ago() {
        let mut neighbours = Neighbours::default();
        let at = |millis| Time(0).after(Duration::from_millis(millis));
        neighbours.received(Handle(3), at(1));
        neighbours.received(Handle(3), at(2));
        assert!(!neighbours.are_there(at(2)));
        neighbours.received(Handle(4), at(3));
        neighbours.received(Handle(3), at(4));
        neighbours.received(Handle(3), at(100));
        assert!(neighbours.are_there(at(103)));
        assert!(!neighbours.are_there(at(104)));
    }
}
