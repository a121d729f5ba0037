//! The addresses of a host, which a thread finds: the system's resolver blocks, and a core must not wait for it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver, TryRecvError};

/// A name that is being resolved.
#[derive(Debug)]
pub(super) struct Resolving(Receiver<io::Result<Vec<SocketAddr>>>);

impl Resolving {
    /// Has a thread resolve it.
    pub(super) fn begin(host: String, port: u16) -> Resolving {
        let (found, result) = mpsc::channel();
        let thread = std::thread::Builder::new().name("resolve".into());
        let unstarted = found.clone();
        let started = thread.spawn(move || {
            let addresses = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // Nobody may be waiting for it any more.
            let _ = found.send(addresses);
        });
        if let Err(error) = started {
            let _ = unstarted.send(Err(error));
        }
        Resolving(result)
    }

    /// Its addresses, or why there are none; `None`: not yet. They are returned once.
    pub(super) fn addresses(&mut self) -> Option<io::Result<Vec<SocketAddr>>> {
        match self.0.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the name was not resolved"))),
        }
    }
}
