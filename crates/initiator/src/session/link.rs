//! One connection of a session: a machine, and the stream or the frames that carry its output.

use super::Finished;
use super::queue::Queue;
use crate::carrier::Carrier;
use crate::frames::{Frames, Lane};
use proto::aoe::initiator::Initiator as AoeInitiator;
use proto::iscsi::initiator::Ended;
use proto::services::TaskId;
use proto::stream::StreamMachine as _;
use proto::time::Time;
use reactor::io::{Errno, Handle, Io, Tag};
use reactor::memory::Arena;
use reactor::stream::Stream;
use std::sync::Arc;
use wire::aoe::Mac;
use wire::iscsi::BHS_BYTES;

/// A connection.
pub(super) struct Link {
    medium: Medium,
    pub(super) machine: Carrier,
    pub(super) is_ready: bool,
    /// All commands may be sent.
    pub(super) is_open: bool,
    /// The unit is revalidated again before any are sent.
    pub(super) is_paused: bool,
    /// It has ended, for this reason; what is in flight is waited for, and what is being sent until that
    /// time.
    pub(super) gone: Option<(String, Time)>,
    /// Payload that was sent; kept to reuse the allocation.
    pushed: Vec<TaskId>,
}

/// What an AoE session leaves to the next: the machine, with the unanswered writes, and the lane of their
/// tags.
pub(super) struct Left {
    pub(super) machine: Box<AoeInitiator>,
    pub(super) lane: Arc<Lane>,
}

/// What carries it.
enum Medium {
    Stream { stream: Stream, socket: Handle },
    Frames(Frames),
}

impl Link {
    /// On a connected socket.
    pub(super) fn on_stream(machine: Carrier, socket: Handle, recv: Tag, send: Tag) -> Link {
        let stream = Stream::new(socket, recv, send, Vec::new());
        Link::new(machine, Medium::Stream { stream, socket })
    }

    /// On an interface.
    pub(super) fn on_interface(machine: Carrier, frames: Frames) -> Link {
        Link::new(machine, Medium::Frames(frames))
    }

    fn new(machine: Carrier, medium: Medium) -> Link {
        Link {
            medium,
            machine,
            is_ready: false,
            is_open: false,
            is_paused: false,
            gone: None,
            pushed: Vec::new(),
        }
    }

    /// The socket of a stream.
    pub(super) fn socket(&self) -> Option<Handle> {
        match &self.medium {
            Medium::Stream { socket, .. } => Some(*socket),
            Medium::Frames(_) => None,
        }
    }

    /// The address of an interface.
    pub(super) fn mac(&self) -> Option<Mac> {
        match &self.medium {
            Medium::Stream { .. } => None,
            Medium::Frames(frames) => Some(frames.mac()),
        }
    }

    /// Something was received, or may be.
    pub(super) fn received<I: Io>(&mut self, io: &mut I, result: Result<u32, Errno>) {
        match &mut self.medium {
            Medium::Stream { stream, .. } => stream.received(io, result),
            Medium::Frames(frames) => frames.watch_ended(),
        }
    }

    /// Something was sent; or the timer of frames expired.
    pub(super) fn sent<I: Io>(&mut self, io: &mut I, result: Result<u32, Errno>) {
        match &mut self.medium {
            Medium::Stream { stream, .. } => {
                stream.sent(io, &mut self.machine, result, &mut self.pushed);
                self.machine.pushed(&self.pushed);
                self.pushed.clear();
            }
            Medium::Frames(frames) => frames.timer_expired(),
        }
    }

    /// Ends the commands whose answers have arrived over iSCSI, up to the first that is not GOOD; `false`:
    /// there is none.
    pub(super) fn take_ended<I: Io>(
        &mut self,
        io: &mut I,
        queue: &mut Queue,
        finished: &mut Vec<Finished>,
    ) -> bool {
        let mut any = false;
        while let Some(ended) = self.ended(io) {
            queue.ended(&ended, finished);
            any = true;
        }
        any
    }

    /// The next received command that has ended with GOOD; its data is in its place.
    #[inline]
    fn ended<I: Io>(&mut self, io: &mut I) -> Option<Ended> {
        let (Medium::Stream { stream, .. }, Carrier::Iscsi(machine)) = (&mut self.medium, &mut self.machine)
        else {
            return None;
        };
        let (unread, now) = (stream.unread()?, io.now());
        let (header, behind) = io.arena().bytes(unread).split_first_chunk::<BHS_BYTES>()?;
        let ended = machine.ended(now, header, behind.len() as u32)?;
        stream.place(io, BHS_BYTES as u32, &ended.place, ended.padding);
        Some(ended)
    }

    /// Gives the machine what was received, as far as it accepts it before it has something to report.
    /// Returns whether there was any.
    pub(super) fn feed<I: Io>(&mut self, io: &mut I) -> bool {
        match (&mut self.medium, &mut self.machine) {
            (Medium::Stream { stream, .. }, machine) => stream.feed(io, machine),
            (Medium::Frames(frames), Carrier::Aoe(machine)) => frames.feed(io, machine),
            (Medium::Frames(_), _) => false,
        }
    }

    /// It may take its share of a turn again.
    pub(super) fn end_turn(&mut self) {
        if let Medium::Stream { stream, .. } = &mut self.medium {
            stream.end_turn();
        }
    }

    /// Whether more can be done without a further event.
    pub(super) fn wants_more(&self) -> bool {
        match &self.medium {
            Medium::Stream { stream, .. } => stream.wants_more(),
            Medium::Frames(frames) => frames.wants_more(),
        }
    }

    /// Sends what is owed.
    pub(super) fn flush<I: Io>(&mut self, io: &mut I) {
        match (&mut self.medium, &mut self.machine) {
            (Medium::Stream { stream, .. }, machine) => {
                // What was sent at once has no completion: what did not fit is sent with the next.
                while let Some(result) = stream.flush_now(io, machine) {
                    stream.sent(io, machine, result, &mut self.pushed);
                    machine.pushed(&self.pushed);
                    self.pushed.clear();
                }
            }
            (Medium::Frames(frames), Carrier::Aoe(machine)) => frames.flush(io, machine),
            (Medium::Frames(_), _) => {}
        }
    }

    /// Whether the kernel has finished with it.
    pub(super) fn is_quiet(&mut self) -> bool {
        match &mut self.medium {
            Medium::Stream { stream, .. } => stream.quiet(),
            Medium::Frames(frames) => frames.is_quiet(),
        }
    }

    /// Whether everything has been sent.
    pub(super) fn has_sent(&self) -> bool {
        match &self.medium {
            Medium::Stream { stream, .. } => stream.has_sent(),
            Medium::Frames(_) => true,
        }
    }

    /// What is in flight ends soon.
    pub(super) fn shut_down<I: Io>(&mut self, io: &mut I) {
        match &mut self.medium {
            Medium::Stream { stream, .. } => stream.shutdown(io),
            Medium::Frames(frames) => frames.shut_down(io),
        }
    }

    /// Closes it; it is quiet.
    pub(super) fn close<I: Io>(self, io: &mut I) -> Option<Left> {
        match (self.medium, self.machine) {
            (Medium::Frames(frames), Carrier::Aoe(mut machine)) => {
                let lane = frames.close(io.arena(), &mut machine);
                Some(Left { machine, lane })
            }
            (Medium::Frames(_), _) => unreachable!("only AoE is in frames"),
            (Medium::Stream { stream, .. }, machine) => {
                stream.close(io);
                machine.close(io.arena());
                None
            }
        }
    }

    /// The oldest event of what was received.
    pub(super) fn event(&mut self, now: Time, arena: &mut Arena) -> Option<proto::iscsi::initiator::Event> {
        self.machine.event(now, arena)
    }

    /// The connection is lost.
    pub(super) fn closed(&mut self, now: Time, reason: &str) {
        self.machine.closed(now, Some(reason));
    }
}
