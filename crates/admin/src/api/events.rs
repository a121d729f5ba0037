//! Events as they happen (server-sent events, HTML section 9.2).

use super::{Context, problem};
use crate::ring::Following;
use crate::server::Deadline;
use axum::Extension;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{RawQuery, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{self, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// A comment shows that the connection is alive when there are no events.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// How long a client may go without reading.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long a client should wait before it reconnects.
const RETRY: &str = "retry: 2000\n\n";
const ALIVE: &str = ":\n\n";
const DROPPED: &str = "event: dropped\ndata: {\"why\":\"this client does not read events fast enough\"}\n\n";

pub(super) async fn follow(
    Shared(context): Shared<Context>,
    Extension(deadline): Extension<Deadline>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    // A browser cannot set the field before it has received an event.
    let last = match headers.get("last-event-id") {
        Some(id) => Some(id.to_str().unwrap_or_default()),
        None => query.strip_prefix("after="),
    };
    let Some(following) = context.hub.follow(last) else {
        let title = "too many clients are following events";
        return problem(StatusCode::SERVICE_UNAVAILABLE, title, &[]);
    };
    deadline.extend(PATIENCE);
    let mut alive = interval(ALIVE_EVERY);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stream = Stream { following, alive, deadline, has_begun: false, is_over: false };
    let fields = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    (fields, Body::new(stream)).into_response()
}

/// The body of an answer that ends when its client disconnects or has fallen behind.
struct Stream {
    following: Following,
    alive: Interval,
    deadline: Deadline,
    has_begun: bool,
    is_over: bool,
}

impl Stream {
    /// The next event; `None` at the end.
    fn next(&mut self, context: &mut task::Context<'_>) -> Poll<Option<Bytes>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            return Poll::Ready(Some(RETRY.into()));
        }
        if let Some(text) = self.following.before.pop_front() {
            return Poll::Ready(Some(text.as_bytes().to_vec().into()));
        }
        match self.following.queue.poll_recv(context) {
            Poll::Ready(Some(text)) => Poll::Ready(Some(text.as_bytes().to_vec().into())),
            Poll::Ready(None) => {
                self.is_over = true;
                let is_behind = self.following.is_behind.load(Ordering::Relaxed);
                Poll::Ready(is_behind.then(|| DROPPED.into()))
            }
            Poll::Pending => {
                ready!(self.alive.poll_tick(context));
                Poll::Ready(Some(ALIVE.into()))
            }
        }
    }
}

impl HttpBody for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = ready!(self.next(context));
        // Polled only while the client reads.
        self.deadline.extend(PATIENCE);
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }
}
