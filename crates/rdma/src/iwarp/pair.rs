//! The queue pair of [`proto::iwarp`] as a provider.

use crate::provider::{Capabilities, Event, Provider, Refused};
use proto::iwarp::memory::Access;
use proto::iwarp::{self, HEADER_BYTES_MAX, QueuePair};
use proto::stream::StreamMachine;
use proto::time::Time;
use reactor::memory::Arena;
use wire::{Places, Span};

/// Memory operations go through the stream, which lends the memory.
impl Provider for QueuePair {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            inline_bytes: HEADER_BYTES_MAX as u32,
            send_with_invalidate: true,
            fast_registration: true,
            shared_receives: false,
        }
    }

    fn is_established(&self) -> bool {
        self.agreed().is_some()
    }

    fn accept(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused> {
        QueuePair::accept(self, now, private_data)
    }

    fn reject(&mut self, now: Time, private_data: &[u8]) -> Result<(), Refused> {
        QueuePair::reject(self, now, private_data)
    }

    fn post_receive(&mut self, place: Span, _arena: &mut Arena) -> Result<(), Refused> {
        QueuePair::post_receive(self, place.offset, Places::one(place))
    }

    fn copied(&self, header: &[u8], _payload: &Places) -> usize {
        header.len().min(HEADER_BYTES_MAX)
    }

    fn send(
        &mut self,
        id: u64,
        header: &[u8],
        from: Places,
        solicited: bool,
        invalidate: Option<u32>,
        _arena: &mut Arena,
    ) -> Result<(), Refused> {
        QueuePair::send(self, id, header, from, solicited, invalidate)
    }

    fn write(
        &mut self,
        id: u64,
        from: Places,
        stag: u32,
        offset: u64,
        _arena: &mut Arena,
    ) -> Result<(), Refused> {
        QueuePair::write(self, id, from, stag, offset)
    }

    fn read(
        &mut self,
        id: u64,
        into: Places,
        stag: u32,
        offset: u64,
        _arena: &mut Arena,
    ) -> Result<(), Refused> {
        QueuePair::read(self, id, into, stag, offset)
    }

    fn register(&mut self, places: Places, access: Access) -> Result<u32, Refused> {
        QueuePair::register(self, places, access)
    }

    fn moved(&self, stag: u32) -> u32 {
        QueuePair::moved(self, stag)
    }

    fn invalidate(&mut self, stag: u32) -> bool {
        // The peer may already have invalidated it.
        QueuePair::invalidate(self, stag);
        !self.is_leaving(stag)
    }

    /// The stream takes the batch, in one send.
    fn submit(&mut self) {}

    fn poll(&mut self, _arena: &mut Arena) -> Option<Event> {
        Some(match StreamMachine::poll(self)? {
            iwarp::Event::Request { private_data, .. } => Event::Request { private_data },
            iwarp::Event::Established { private_data, .. } => Event::Established { private_data },
            iwarp::Event::Rejected { private_data, .. } => Event::Rejected { private_data },
            iwarp::Event::Received { id, len, invalidated, .. } => Event::Received { id, len, invalidated },
            iwarp::Event::Sent { id } => Event::Sent { id },
            iwarp::Event::Written { id } => Event::Written { id },
            iwarp::Event::Read { id } => Event::Read { id },
            iwarp::Event::Freed { stag } => Event::Freed { stag },
            iwarp::Event::Gone { reason } => Event::Gone { reason },
        })
    }

    fn close(&mut self, now: Time) {
        QueuePair::close(self, now);
    }

    fn deadline(&self) -> Option<Time> {
        StreamMachine::deadline(self)
    }

    fn tick(&mut self, now: Time) {
        StreamMachine::tick(self, now);
    }

    /// The stream is quiet.
    fn release(&mut self, _arena: &mut Arena) {}
}
