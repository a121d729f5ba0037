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
    /// The configuration of the start, of which cores and state directory stay.
    pub(crate) config: Config,
    /// Sessions.
    pub(crate) registry: Arc<Registry>,
    /// Connections that log in, discovery sessions, and connections that part.
    pub(crate) logins: Logins,
    /// Connections on each core, for placement.
    pub(crate) loads: Vec<AtomicUsize>,
    /// How busy each core is.
    pub(crate) board: Board,
    /// What each core says of itself.
    pub(crate) meters: Arc<[CoreMeter]>,
    /// Descriptors from here on are kept for what the daemon needs itself.
    pub(crate) sockets_end: i32,
    /// Where what happens is reported.
    pub(crate) events: Events,
    /// Jobs that block, for the housekeeper.
    pub(crate) housekeeper: mpsc::Sender<Job<L>>,
}
