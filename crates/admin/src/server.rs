//! The server: one thread, one request for each connection, everything bounded.

use crate::listener::{Listener, Socket};
use axum::Router;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use reactor::cpu;
use std::collections::VecDeque;
use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle as Task};

/// Connections at once. One more ends the oldest of them, so that idle ones lock nobody out.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take for its request and the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
/// Between two connections: clients in a loop get no more than a small share of a core.
const PACE: Duration = Duration::from_millis(5);
/// After a connection could not be accepted, as when no descriptor is free.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// Bytes of a request's head.
const HEAD_MAX: usize = 8 << 10;
/// Header fields of a request.
const FIELDS_MAX: usize = 64;

/// A served admin interface. Dropping it ends its connections, and removes its socket's file.
pub struct Server {
    /// The thread ends when this is gone.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    listener: String,
}

impl Server {
    /// Answers at a bound place from now on.
    ///
    /// # Errors
    /// When the thread, or what it needs, cannot be had from the kernel.
    pub fn start(listener: Listener) -> io::Result<Server> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let shown = listener.to_string();
        let (running, until) = oneshot::channel();
        let serving = serve(&runtime, &listener.socket)?;
        let body = move || {
            let _ = runtime.block_on(until);
            serving.abort();
            drop(runtime);
            drop(listener);
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn(body)?;
        Ok(Server { running: Some(running), thread: Some(thread), listener: shown })
    }

    /// Where it is: a path, or a URL with the port that was really bound.
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

/// Puts the listening task on the runtime.
fn serve(runtime: &Runtime, socket: &Socket) -> io::Result<Task<()>> {
    let _context = runtime.enter();
    let router = router(Instant::now());
    Ok(match socket {
        Socket::Unix(listener) => {
            let listener = UnixListener::from_std(listener.try_clone()?)?;
            runtime.spawn(async move {
                accept(router, || async { Ok(listener.accept().await?.0) }).await;
            })
        }
        Socket::Tcp(listener) => {
            let listener = TcpListener::from_std(listener.try_clone()?)?;
            runtime.spawn(async move {
                accept(router, || async { Ok(listener.accept().await?.0) }).await;
            })
        }
    })
}

fn router(start: Instant) -> Router {
    Router::new().route("/v1/cpu", get(move || async move { report(start) })).fallback(nothing_here)
}

fn report(start: Instant) -> Response {
    match serde_json::to_vec(&cpu::snapshot(start.elapsed())) {
        Ok(json) => {
            let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
            (headers, Body::from(json)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn nothing_here() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "not found; there is /v1/cpu\n")
}

/// Accepts connections for ever.
async fn accept<S, F>(router: Router, next: impl Fn() -> F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>>,
{
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTIONS_MAX);
    loop {
        match next().await {
            Ok(stream) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= CONNECTIONS_MAX
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(tokio::spawn(connection(stream, router.clone())).abort_handle());
                tokio::time::sleep(PACE).await;
            }
            Err(error) => {
                tracing::debug!(%error, "an admin connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

/// Answers one request.
async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, router: Router) {
    let answered = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .max_headers(FIELDS_MAX)
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION_TIME, answered).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "an admin connection ended"),
        Err(_) => tracing::debug!("an admin connection took too long"),
    }
}
