//! One connection of an initiator.

use super::carrier::Carrier;
use crate::kernel::Kernel;
use proto::iscsi::initiator::Event;
use proto::services::TaskId;
use proto::time::Time;
use reactor::io::{Errno, Handle, Tag};
use reactor::memory::Region;
use reactor::stream::Stream;
use std::sync::Arc;

const RECEIVE: u64 = 1;
const SEND: u64 = 2;

pub(crate) struct Link {
    /// Its number among the initiator's connections, which its completions have in their tags.
    pub(crate) number: u64,
    pub(crate) machine: Carrier,
    pub(crate) is_ready: bool,
    /// Memory of commands longer than buffers.
    pub(crate) longer: Vec<Arc<Region>>,
    stream: Stream,
    pushed: Vec<TaskId>,
}

impl Link {
    pub(crate) fn new(machine: Carrier, number: u64, socket: Handle) -> Link {
        let tag = |kind| Tag(number << 2 | kind);
        Link {
            number,
            machine,
            is_ready: false,
            longer: Vec::new(),
            stream: Stream::new(socket, tag(RECEIVE), tag(SEND), Vec::new()),
            pushed: Vec::new(),
        }
    }

    pub(crate) fn completed(&mut self, kernel: &mut Kernel, kind: u64, result: Result<u32, Errno>) {
        if kind == RECEIVE {
            return self.stream.received(kernel, result);
        }
        self.machine.sent(&mut self.stream, kernel, result, &mut self.pushed);
    }

    /// Whether there may be events, and more to feed.
    pub(crate) fn feed(&mut self, kernel: &mut Kernel) -> bool {
        self.machine.feed(&mut self.stream, kernel)
    }

    pub(crate) fn poll(&mut self) -> Option<Event> {
        self.machine.poll()
    }

    pub(crate) fn tick(&mut self, now: Time) {
        self.machine.tick(now);
    }

    pub(crate) fn flush(&mut self, kernel: &mut Kernel) {
        self.stream.end_turn();
        self.machine.flush(&mut self.stream, kernel);
    }

    pub(crate) fn shut_down(&mut self, kernel: &mut Kernel) {
        self.stream.shutdown(kernel);
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.stream.quiet()
    }

    pub(crate) fn close(self, kernel: &mut Kernel) {
        self.stream.close(kernel);
        self.machine.close(kernel);
    }
}
