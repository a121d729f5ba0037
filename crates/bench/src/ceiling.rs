//! A responder that does nothing, as the mark for everything that does something: one thread per connection,
//! one receive into a large buffer, an answer for each command found in it, one send for all of them. What it
//! reaches is what kernel TCP allows with one core on each side, for iSCSI and for iSER and SRP over iWARP:
//! the first bytes of a connection show which.
//!
//! It accepts every login to [`TARGET`] (by SRP, for any port) and knows the few commands with which a unit
//! is opened. Every other command ends with GOOD: data that is asked for comes from one fixed buffer, or from all over a
//! memory as large as a disk ([`CeilingOptions::payload_bytes`]); data that comes is forgotten.

mod batch;
mod connection;
mod iscsi;
mod iser;
mod iwarp;
mod login;
mod session;
mod srp;
mod unit;

use batch::Payload;
use connection::Ends;
use reactor::{net, topology};
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The target's name.
pub const TARGET: &str = "iqn.2026-11.io.lunette:ceiling";
/// The target's id_ext and ioc_guid, of those that SRP may ask for: it answers to all.
pub const GUID: u64 = 1;
/// The size of its units when nothing else is said.
pub const SIZE_BYTES: u64 = 64 << 30;
/// Bytes of a logical block.
pub const BLOCK_BYTES: u32 = 512;
/// Connections at the same time: as many as there may be job threads.
pub const CONNECTIONS_MAX: usize = crate::run::THREADS_MAX;

/// How long to wait when no connection can be accepted, as without file descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// How the responder runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CeilingOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Spin on the socket, or sleep in the kernel.
    pub spin: bool,
    /// Cores that the threads of connections are pinned to, one after the other; none: not pinned.
    pub cores: Vec<usize>,
    /// The size of every unit, in bytes; what is no whole block is left out.
    pub size_bytes: u64,
    /// What READs return comes from so many bytes of memory, one piece after the other, as that of a disk comes from all
    /// over its medium. 0: from one buffer, which stays in the processor's cache.
    pub payload_bytes: usize,
}

impl Default for CeilingOptions {
    fn default() -> CeilingOptions {
        CeilingOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            spin: false,
            cores: Vec::new(),
            size_bytes: SIZE_BYTES,
            payload_bytes: 0,
        }
    }
}

/// A running responder; dropped, it ends.
#[derive(Debug)]
pub struct Ceiling {
    listener: Arc<TcpListener>,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Ceiling {
    /// Listens and serves.
    ///
    /// # Errors
    /// When the address cannot be listened on, a core may not be used, or there is no block to serve.
    pub fn start(options: CeilingOptions) -> io::Result<Ceiling> {
        if options.size_bytes < BLOCK_BYTES.into() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a unit has at least one block of 512 bytes",
            ));
        }
        let usable = topology::usable_cores()?;
        if let Some(core) = options.cores.iter().find(|core| !usable.contains(core)) {
            let problem = format!("core {core} may not be used");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let listener = Arc::new(net::listen(options.listen)?);
        let address = listener.local_addr()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let (socket, stop) = (Arc::clone(&listener), Arc::clone(&stopping));
        let acceptor =
            thread::Builder::new().name("accept".into()).spawn(move || accept(&socket, &options, &stop))?;
        Ok(Ceiling { listener, address, stopping, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URLs of a unit, by iSCSI, iSER and SRP; there is one behind every number.
    pub fn urls(&self, lun: u16) -> [String; 3] {
        let address = self.address;
        [
            format!("iscsi://{address}/{TARGET}/{lun}"),
            format!("iser://{address}/{TARGET}/{lun}"),
            format!("srp://{address}/{GUID:016x}/{lun}"),
        ]
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Ends the accept that is waiting.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// A connection and its thread.
struct Served {
    socket: Arc<TcpStream>,
    thread: JoinHandle<()>,
}

/// Accepts until it is to stop; then ends all connections.
fn accept(listener: &TcpListener, options: &CeilingOptions, stop: &AtomicBool) {
    let mut connections: Vec<Served> = Vec::new();
    let mut cores = options.cores.iter().copied().cycle();
    let payload = batch::payload(options.payload_bytes);
    while !stop.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((socket, peer)) => {
                connections.retain(|served| !served.thread.is_finished());
                if connections.len() >= CONNECTIONS_MAX {
                    tracing::warn!(%peer, "not accepted: there are {CONNECTIONS_MAX} connections");
                    continue;
                }
                match serve(socket, peer, cores.next(), options, Payload::clone(&payload)) {
                    Ok(served) => connections.push(served),
                    Err(error) => tracing::warn!(%peer, %error, "not accepted"),
                }
            }
            Err(_) if stop.load(Ordering::SeqCst) => {}
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                thread::sleep(PAUSE);
            }
        }
    }
    for served in &connections {
        let _ = served.socket.shutdown(Shutdown::Both);
    }
    for served in connections {
        let _ = served.thread.join();
    }
}

/// Starts the thread of a connection.
fn serve(
    socket: TcpStream,
    peer: SocketAddr,
    core: Option<usize>,
    options: &CeilingOptions,
    payload: Payload,
) -> io::Result<Served> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(options.spin)?;
    let portal = socket.local_addr()?;
    let socket = Arc::new(socket);
    let (stream, blocks) = (Arc::clone(&socket), options.size_bytes / u64::from(BLOCK_BYTES));
    let body = move || {
        let served = core
            .map_or(Ok(()), topology::pin_to)
            .and_then(|()| connection::serve(&stream, Ends { from: peer, portal, blocks }, payload));
        if let Err(error) = served {
            tracing::warn!(%peer, %error, "a connection ended");
        }
        // The other handle of it lives until the next connection comes.
        let _ = stream.shutdown(Shutdown::Both);
    };
    let thread = thread::Builder::new().name(format!("from {peer}")).spawn(body)?;
    Ok(Served { socket, thread })
}

/// The end of a connection whose initiator does what this responder does not know.
fn breach(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("breach by the initiator: {what}"))
}
