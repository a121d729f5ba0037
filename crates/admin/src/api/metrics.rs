//! Metrics for Prometheus.

use super::{Context, fault, refused, wrong_query};
use crate::hub::Format;
use crate::server::Deadline;
use axum::Extension;
use axum::extract::{RawQuery, State as Shared};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use std::time::Duration;

/// How long a client waits for the cores' lists of sessions.
const LIST_TIME: Duration = Duration::from_secs(30);

pub(super) async fn all(
    Shared(context): Shared<Context>,
    Extension(deadline): Extension<Deadline>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    let with_sessions = match query.as_deref().unwrap_or_default() {
        "" | "sessions=0" => false,
        "sessions=1" => true,
        _ => {
            let fix = "write ?sessions=1 for metrics of each session, or leave it out";
            return wrong_query(&fault("query", "it cannot be parsed", fix));
        }
    };
    let accepts = |field: &header::HeaderValue| {
        field.to_str().is_ok_and(|accepted| accepted.contains("application/openmetrics-text"))
    };
    let is_open = headers.get_all(header::ACCEPT).iter().any(accepts);
    let (format, kind) = if is_open {
        (Format::OpenMetrics, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    } else {
        (Format::Prometheus, "text/plain; version=0.0.4; charset=utf-8")
    };
    deadline.extend(LIST_TIME);
    match context.hub.metrics(format, with_sessions).await {
        Ok(text) => {
            ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-store")], text).into_response()
        }
        Err(why) => refused(&why),
    }
}
