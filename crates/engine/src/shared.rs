//! What all cores share.

use crate::balance::Board;
use crate::events::Events;
use crate::housekeeper::Job;
use crate::logins::Logins;
use crate::meters::CoreMeter;
use crate::registry::Registry;
use config::Config;
use reactor::packet::{Line, Socket};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

/// What all cores share: fixed at start, or touched at login only.
pub(crate) struct Shared<L: Line = Socket> {
    /// The configuration at start; cores and state directory do not change.
    pub(crate) config: Config,
    /// Sessions.
    pub(crate) registry: Arc<Registry>,
    /// Connections that are logging in, discovery sessions, and connections that are parting.
    pub(crate) logins: Logins,
    /// Connections on each core, for placement.
    pub(crate) loads: Vec<AtomicUsize>,
    /// How busy each core is.
    pub(crate) board: Board,
    /// Readings of each core.
    pub(crate) meters: Arc<[CoreMeter]>,
    /// Descriptors from this one on are reserved for the daemon itself.
    pub(crate) sockets_end: i32,
    /// Where events are reported.
    pub(crate) events: Events,
    /// Blocking jobs, for the housekeeper.
    pub(crate) housekeeper: mpsc::Sender<Job<L>>,
}
