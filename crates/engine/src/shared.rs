//! What all cores share.

use crate::access::Directory;
use crate::balance::Board;
use crate::housekeeper::Job;
use crate::logins::Logins;
use crate::registry::Registry;
use crate::served::Served;
use config::Config;
use rdma::verbs::Listener;
use reactor::io::Handle;
use reactor::packet::{Line, Socket};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

/// What all cores share: fixed at start, or touched at login only.
pub(crate) struct Shared<L: Line = Socket> {
    /// The configuration.
    pub(crate) config: Config,
    /// Who may log in.
    pub(crate) access: Arc<Directory>,
    /// Sessions.
    pub(crate) registry: Arc<Registry>,
    /// Connections that log in, discovery sessions, and connections that part.
    pub(crate) logins: Logins,
    /// Connections on each core, for placement.
    pub(crate) loads: Vec<AtomicUsize>,
    /// How busy each core is.
    pub(crate) board: Board,
    /// The listening socket of each portal, if it has one: open as long as there is a core that accepts from it.
    pub(crate) listeners: Vec<Option<Handle>>,
    /// What keeps them open.
    pub(crate) _sockets: Vec<TcpListener>,
    /// Descriptors from here on are kept for what the daemon needs itself.
    pub(crate) sockets_end: i32,
    /// What listens at each with RDMA devices.
    pub(crate) rdma_listeners: Vec<Option<Listener>>,
    /// What was served at the start.
    pub(crate) first: Arc<Served>,
    /// Jobs that block, for the housekeeper.
    pub(crate) housekeeper: mpsc::Sender<Job<L>>,
}
