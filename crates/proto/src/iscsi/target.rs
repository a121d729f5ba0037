//! The target machine of one connection: login, then the full feature phase at error recovery level 0.
//!
//! `layer` is the iSCSI layer, which is independent of how PDUs and data move: `validate` checks headers,
//! `data` keeps track of data-out and of the engine's calls, `request` handles everything that is not a SCSI
//! command, `queue` holds what is sent. Numbers that belong to the session rather than to this connection are
//! in `session`. iSER (`crate::iser`) moves everything by messages and RDMA; the machine in this file moves
//! it over a byte stream: `receive` parses PDUs, and `send` builds them. Commands that `plain` accepts bypass
//! all of this: they are answered on arrival.

mod data;
pub(crate) mod layer;
mod plain;
pub(crate) mod queue;
mod receive;
mod request;
mod send;
mod session;
pub(crate) mod task;
#[cfg(test)]
mod tests;
mod validate;
pub mod violation;

use crate::iscsi::login::{Access, Offers};
use crate::services::{Down, TaskId, Up};
use crate::stream::{HEADER_BYTES_MAX, StreamMachine, Transmit, Want};
use crate::time::Time;
use layer::{Incoming, Layer};
pub use plain::Plain;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::iscsi::{BHS_BYTES, DIGEST_BYTES, LoginStatus, pad};

/// The most immediate commands in flight, beside those numbered by CmdSN.
pub const IMMEDIATE_MAX: u16 = 16;
/// The configuration of a target machine.
#[derive(Clone, Copy, Debug)]
pub struct TargetConfig {
    /// Commands that an initiator may have in flight.
    pub queue_depth: u16,
    /// How long a login may take.
    pub login_within: Duration,
    /// How long a connection may be silent before it is sent a ping, and how long the answer may take.
    pub idle: Duration,
    /// CRC32C.
    pub crc32c: fn(&[u8]) -> u32,
    /// What to negotiate.
    pub offers: Offers,
}

impl TargetConfig {
    /// How many slots there are: every [`slot`](crate::services::TaskId::slot) is below. A slot is not reused
    /// before the final batch of its last task has been sent, so a caller that keeps state by slot may keep
    /// it until [`Up::Pushed`].
    pub fn slots(&self) -> u16 {
        self.queue_depth.saturating_add(IMMEDIATE_MAX).saturating_mul(2)
    }
}

/// The target's end of one iSCSI connection over a byte stream.
pub struct Target {
    layer: Layer,
    /// Bytes of additional header segments of `head` that have not been received.
    segments: u32,
    /// The header whose segments or text have not been received.
    head: Vec<u8>,
    /// Text or ping data with its padding and digest, as far as received.
    gathered: Vec<u8>,
}

impl Target {
    /// A machine for a newly accepted connection from `from` to this `portal`.
    pub fn new(
        config: TargetConfig,
        access: Arc<dyn Access>,
        from: SocketAddr,
        portal: SocketAddr,
        now: Time,
    ) -> Target {
        Target {
            layer: Layer::new(config, access, from, portal, now),
            segments: 0,
            head: Vec::new(),
            gathered: Vec::new(),
        }
    }

    /// Whether payload has a data digest: what is sent must not change between being summed and being sent,
    /// and what was received must not be used before it was verified.
    pub fn sums_payload(&self) -> bool {
        self.layer.link.data_digest
    }

    /// The length of data of this task that comes next in the stream, has no buffer yet, and is the last that
    /// the initiator has announced.
    pub fn unplaced(&mut self, task: TaskId) -> u32 {
        let Incoming::Unplaced(data) = self.layer.incoming else { return 0 };
        let owes = self.layer.tasks.get(task).is_some_and(|task| task.owed_data());
        if data.task == task && !owes { data.len } else { 0 }
    }

    /// There is room for this many more commands, if all their data is unsolicited: the window gets no wider
    /// (MaxCmdSN, RFC 7143 section 4.2.2.1). Returns whether it is closed until there is more room: then call
    /// this again.
    pub fn limit_window(&mut self, commands: u32) -> bool {
        self.layer.limit_window(commands)
    }

    /// Whether there is nothing to do before more comes from the initiator or the engine.
    pub fn is_at_rest(&self) -> bool {
        self.layer.is_at_rest()
    }

    /// Whether the initiator has begun a login with a valid request.
    pub fn has_begun(&self) -> bool {
        self.layer.has_begun()
    }

    /// The status with which a login was refused.
    pub fn refusal(&self) -> Option<LoginStatus> {
        self.layer.refusal
    }

    /// Handles a call from the engine. One about a task that has ended is ignored.
    pub fn down(&mut self, now: Time, down: Down) {
        self.layer.down(now, down);
    }

    /// Length of a basic header segment with its digest. With additional segments, the four bytes after it
    /// are the first of those, and the digest follows the rest.
    fn header_bytes(&self) -> u32 {
        let digest = self.layer.link.header_digest;
        let len = if digest { BHS_BYTES.saturating_add(DIGEST_BYTES) } else { BHS_BYTES };
        u32::try_from(len).unwrap_or(HEADER_BYTES_MAX)
    }

    /// Bytes of text with padding and digest.
    fn text_bytes(&self, len: u32) -> u32 {
        let digest = if self.layer.link.data_digest { 4 } else { 0 };
        len.saturating_add(pad(len)).saturating_add(digest)
    }
}

impl StreamMachine for Target {
    type Event = Up;

    fn want(&self) -> Want {
        if self.layer.ignores_input() {
            return Want::Nothing;
        }
        let digest = self.layer.link.data_digest.then_some(0);
        match self.layer.incoming {
            Incoming::Nothing if self.segments > 0 => Want::Header { len: self.segments },
            Incoming::Nothing if self.layer.paused => Want::Nothing,
            Incoming::Nothing => Want::Header { len: self.header_bytes() },
            Incoming::Text { len } => {
                let have = u32::try_from(self.gathered.len()).unwrap_or(u32::MAX);
                Want::Header { len: self.text_bytes(len).saturating_sub(have).min(HEADER_BYTES_MAX) }
            }
            Incoming::Unplaced(_) => Want::Nothing,
            Incoming::Body { data, place } => Want::Body { place, pad: pad(data.len), digest },
            Incoming::Skip { len, .. } => Want::Skip { len, pad: pad(len), digest },
        }
    }

    fn header(&mut self, now: Time, bytes: &[u8]) {
        self.layer.note_peer_activity(now);
        self.received(bytes);
        self.layer.pace();
    }

    fn body(&mut self, now: Time, digest_ok: bool) {
        self.layer.note_peer_activity(now);
        let data = match self.layer.incoming {
            Incoming::Body { data, .. } => Some(data),
            Incoming::Skip { data, .. } => data,
            Incoming::Nothing | Incoming::Text { .. } | Incoming::Unplaced(_) => return,
        };
        self.layer.incoming = Incoming::Nothing;
        if let Some(data) = data {
            self.layer.data_done(data, digest_ok);
        }
        self.layer.pace();
    }

    fn closed(&mut self, _now: Time, error: Option<&str>) {
        self.layer.closed(error);
    }

    fn poll(&mut self) -> Option<Up> {
        self.layer.up.pop_front()
    }

    fn owes(&self) -> bool {
        !self.layer.out.is_empty()
    }

    fn transmit(&mut self, _now: Time, batch: &mut Transmit) {
        self.layer.tasks.batch_begins();
        self.send(batch);
        if self.layer.paused {
            self.layer.pace();
        }
        if self.layer.out.is_empty() {
            self.layer.close();
        }
    }

    fn finished(&self) -> bool {
        self.layer.is_over()
    }

    fn deadline(&self) -> Option<Time> {
        self.layer.deadline()
    }

    fn tick(&mut self, now: Time) {
        self.layer.tick(now);
    }
}
