//! The server: one thread with tokio and a few for blocking calls, one request per connection, everything
//! bounded.

use crate::api;
use crate::hub::{Hub, JOBS_MAX};
use crate::listener::{Listener, Socket};
use axum::{Extension, Router};
use config::Token;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle as Task};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// Most concurrent connections. Another one closes the one with the earliest deadline, so that idle clients
/// lock nobody out, and event streams are not closed for them.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take for its request and answer.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// The pause between two connections, so that clients in a loop take only a small share of a core.
const PACE: Duration = Duration::from_millis(5);
/// The pause after a connection could not be accepted, for example for lack of descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);
/// Maximum size of a request's head in bytes.
const HEAD_MAX: usize = 8 << 10;
/// Header fields of a request.
const FIELDS_MAX: usize = 64;

/// A served admin interface. Dropping it ends its connections, and removes its socket's file.
pub struct Server {
    /// When this is dropped, the thread ends.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    listener: String,
}

impl Server {
    /// Starts answering requests.
    ///
    /// # Errors
    /// When the kernel refuses the thread or resources for it.
    pub fn start(listener: Listener, hub: Hub) -> io::Result<Server> {
        // For every session that may be ended at once, and a list of them.
        let threads = JOBS_MAX + 1;
        let runtime =
            Builder::new_current_thread().enable_io().enable_time().max_blocking_threads(threads).build()?;
        let shown = listener.shown(hub.access().tls.is_some());
        let (running, until) = oneshot::channel();
        let serving = serve(&runtime, &listener.socket, hub)?;
        let body = move || {
            let _ = runtime.block_on(until);
            serving.abort();
            // A thread waiting for a core is not joined.
            runtime.shutdown_background();
            drop(listener);
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(body)?;
        Ok(Server { running: Some(running), thread: Some(thread), listener: shown })
    }

    /// Where it is: a path, or a URL with the port that was bound.
    pub fn place(&self) -> &str {
        &self.listener
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Spawns the listening task on the runtime.
fn serve(runtime: &Runtime, socket: &Socket, hub: Hub) -> io::Result<Task<()>> {
    let _context = runtime.enter();
    let router = api::router(hub.clone());
    Ok(match socket {
        Socket::Unix(listener) => {
            let listener = UnixListener::from_std(listener.try_clone()?)?;
            runtime.spawn(async move {
                let next = || async {
                    let (stream, _) = listener.accept().await?;
                    let peer = Peer::of(&stream)?;
                    Ok((stream, peer))
                };
                accept(next, |stream, peer, deadline| connection(stream, peer, deadline, router.clone()))
                    .await;
            })
        }
        Socket::Tcp(listener) => {
            let listener = TcpListener::from_std(listener.try_clone()?)?;
            runtime.spawn(async move {
                let next = || async {
                    let (stream, from) = listener.accept().await?;
                    Ok((stream, Peer::Remote(from)))
                };
                let answer =
                    |stream, peer, deadline| remote(stream, peer, deadline, hub.access().tls, router.clone());
                accept(next, answer).await;
            })
        }
    })
}

/// The peer of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// A process on this machine that the socket's mode admits.
    Local {
        /// Its user ID.
        uid: u32,
        /// Its process ID, if the kernel knows it.
        pid: Option<i32>,
    },
    /// Anybody who can reach the address.
    Remote(SocketAddr),
    /// A holder of a token.
    Holder {
        /// The token.
        token: Token,
        /// The address it connects from.
        address: SocketAddr,
    },
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Peer> {
        let credentials = stream.peer_cred()?;
        Ok(Peer::Local { uid: credentials.uid(), pid: credentials.pid() })
    }

    /// The token that authorizes it to make changes, if it needs one.
    pub(crate) fn token(&self) -> Option<&Token> {
        match self {
            Peer::Holder { token, .. } => Some(token),
            Peer::Local { .. } | Peer::Remote(_) => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Local { uid, pid: Some(pid) } => write!(f, "uid {uid}, pid {pid}"),
            Peer::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Peer::Remote(address) => address.fmt(f),
            Peer::Holder { token, address } => write!(f, "token {}, {address}", token.name),
        }
    }
}

/// The deadline of a connection, which the handler of its request may extend.
#[derive(Clone, Debug)]
pub(crate) struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    fn within(time: Duration) -> Deadline {
        Deadline(Arc::new(Mutex::new(Instant::now() + time)))
    }

    fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Extends it to this time from now.
    pub(crate) fn extend(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + time;
    }
}

/// Accepts connections forever.
async fn accept<S, F, A>(next: impl Fn() -> F, answer: impl Fn(S, Peer, Deadline) -> A)
where
    F: Future<Output = io::Result<(S, Peer)>>,
    A: Future<Output = ()> + Send + 'static,
{
    let mut open: Vec<(Deadline, AbortHandle)> = Vec::with_capacity(CONNECTIONS_MAX);
    loop {
        match next().await {
            Ok((stream, peer)) => {
                open.retain(|(_, connection)| !connection.is_finished());
                let first = (0..open.len()).min_by_key(|index| open[*index].0.get());
                if let Some(first) = first.filter(|_| open.len() >= CONNECTIONS_MAX) {
                    open.swap_remove(first).1.abort();
                }
                let deadline = Deadline::within(CONNECTION_TIME);
                let answering = answer(stream, peer, deadline.clone());
                open.push((deadline, tokio::spawn(answering).abort_handle()));
                tokio::time::sleep(PACE).await;
            }
            Err(error) => {
                tracing::debug!(%error, "an admin connection could not be accepted");
                tokio::time::sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

/// Answers one request over TCP, encrypted if there is a certificate. The handshake counts towards the request's deadline.
async fn remote(
    stream: TcpStream,
    peer: Peer,
    deadline: Deadline,
    tls: Option<Arc<ServerConfig>>,
    router: Router,
) {
    let Some(tls) = tls else { return connection(stream, peer, deadline, router).await };
    match timeout_at(deadline.get(), TlsAcceptor::from(tls).accept(stream)).await {
        Ok(Ok(stream)) => connection(stream, peer, deadline, router).await,
        Ok(Err(error)) => tracing::debug!(%error, %peer, "TLS failed on an admin connection"),
        Err(_) => tracing::debug!(%peer, "an admin connection timed out"),
    }
}

/// Answers one request.
async fn connection<S>(stream: S, peer: Peer, deadline: Deadline, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = router.layer(Extension(peer)).layer(Extension(deadline.clone()));
    let answered = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .max_headers(FIELDS_MAX)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut answered = pin!(answered);
    loop {
        match timeout_at(deadline.get(), answered.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "an admin connection ended"),
            Err(_) if deadline.get() > Instant::now() => {}
            Err(_) => return tracing::debug!("an admin connection timed out"),
        }
    }
}
