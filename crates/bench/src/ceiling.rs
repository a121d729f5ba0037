//! A responder that does nothing, as the ceiling for any real target: one thread per connection, one receive
//! into a large buffer, an answer to each command in it, one send for all answers. Its throughput is what
//! kernel TCP allows with one core on each side, for iSCSI and for iSER and SRP over iWARP, which are told
//! apart by a connection's first bytes.
//!
//! It accepts every login to [`TARGET`] (with SRP, for any port) and knows the few commands with which a unit
//! is opened. Every other command ends with GOOD: data-in comes from one fixed buffer, or from all over a
//! memory as large as a disk ([`CeilingOptions::payload_bytes`]); data-out is discarded.

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
/// The target's id_ext and ioc_guid in its URLs; with SRP it accepts any.
pub const GUID: u64 = 1;
/// The default size of its units.
pub const SIZE_BYTES: u64 = 64 << 30;
/// Bytes of a logical block.
pub const BLOCK_BYTES: u32 = 512;
/// Most connections at a time: as many as there may be job threads.
pub const CONNECTIONS_MAX: usize = crate::run::THREADS_MAX;

/// How long to wait when no connection can be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// How the responder runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CeilingOptions {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Spin on the socket instead of sleeping in the kernel.
    pub spin: bool,
    /// Cores to pin the connections' threads to, in turn; empty: not pinned.
    pub cores: Vec<usize>,
    /// The size of every unit, in bytes, rounded down to whole blocks.
    pub size_bytes: u64,
    /// READs return data from this many bytes of memory, piece by piece, just as a disk's data comes from all
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

/// A running responder; ends when dropped.
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

    /// The URLs of a unit, for iSCSI, iSER and SRP; every LUN exists.
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
        // Ends the pending accept.
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

/// Accepts connections until stopped; then closes them all.
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
        // The other handle of the socket stays open until the next connection arrives.
        let _ = stream.shutdown(Shutdown::Both);
    };
    let thread = thread::Builder::new().name(format!("from {peer}")).spawn(body)?;
    Ok(Served { socket, thread })
}

/// Ends a connection whose initiator does something this responder does not support.
fn breach(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("protocol violation by the initiator: {what}"))
}
