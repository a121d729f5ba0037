//! What there is to be read and changed, as resources.

use crate::desk::{Answer, Desk, Fault, Order, Refusal, Refused};
use crate::server::{Deadline, Peer};
use axum::body::Body;
use axum::extract::{RawQuery, State as Shared};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use reactor::cpu;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long a client waits for a change: commands in flight may take long to end.
const CHANGE_TIME: Duration = Duration::from_secs(120);

/// What handlers share.
#[derive(Clone)]
struct Context {
    desk: Desk,
    start: Instant,
}

/// All resources.
pub(crate) fn router(desk: Desk) -> Router {
    Router::new()
        .route("/v1/cpu", get(cpu_times))
        .route("/v1/config", get(config))
        .route("/v1/reload", post(reload))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_that_way)
        .with_state(Context { desk, start: Instant::now() })
}

async fn cpu_times(Shared(context): Shared<Context>) -> Response {
    match serde_json::to_value(cpu::snapshot(context.start.elapsed())) {
        Ok(json) => answered(&json),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[]),
    }
}

/// What runs, as a file.
async fn config(Shared(context): Shared<Context>) -> Response {
    let state = context.desk.state();
    let mut response = Body::from(state.file.clone()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/toml"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    tag(headers, &state.version);
    response
}

async fn reload(Shared(context): Shared<Context>, request: Change) -> Response {
    change(&context.desk, Order::Reload, request).await
}

/// What every change comes with.
struct Change {
    peer: Peer,
    deadline: Deadline,
    dry_run: Result<bool, Fault>,
    expected: Option<String>,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Change {
    type Rejection = Response;

    async fn from_request_parts(
        parts: &mut axum::http::request::Parts,
        state: &S,
    ) -> Result<Change, Response> {
        let missing = |_| problem(StatusCode::INTERNAL_SERVER_ERROR, "the connection is not known", &[]);
        let Extension(peer) = Extension::from_request_parts(parts, state).await.map_err(missing)?;
        let Extension(deadline) = Extension::from_request_parts(parts, state).await.map_err(missing)?;
        let Ok(RawQuery(query)) = RawQuery::from_request_parts(parts, state).await;
        let dry_run = dry_run(query.as_deref().unwrap_or_default());
        Ok(Change { peer, deadline, dry_run, expected: expected(&parts.headers) })
    }
}

/// `?dry_run=true`.
fn dry_run(query: &str) -> Result<bool, Fault> {
    match query {
        "" | "dry_run=false" => Ok(false),
        "dry_run" | "dry_run=true" => Ok(true),
        _ => Err(Fault {
            place: "query".into(),
            what: "it is not understood".into(),
            fix: "write ?dry_run=true, or leave it out".into(),
        }),
    }
}

/// The entity tag of If-Match (RFC 9110 section 13.1.1), if it names one.
fn expected(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::IF_MATCH)?.to_str().unwrap_or_default().trim();
    (given != "*").then(|| given.trim_matches('"').to_owned())
}

async fn change(desk: &Desk, order: Order, request: Change) -> Response {
    let Change { peer, deadline, dry_run, expected } = request;
    if !peer.may_change() {
        let fault = Fault {
            place: "connection".into(),
            what: "over TCP the daemon can be read only".into(),
            fix: "use the admin interface's socket on its machine".into(),
        };
        return problem(StatusCode::FORBIDDEN, "this connection may not change anything", &[fault]);
    }
    let dry_run = match dry_run {
        Ok(dry_run) => dry_run,
        Err(fault) => return problem(StatusCode::BAD_REQUEST, "the query is wrong", &[fault]),
    };
    deadline.extend(CHANGE_TIME + Duration::from_secs(5));
    let Some(answer) = desk.put(order, dry_run, expected, peer.to_string()) else {
        return problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many changes wait, or the daemon is ending",
            &[],
        );
    };
    match tokio::time::timeout(CHANGE_TIME, answer).await {
        Ok(Ok(answer)) => outcome(answer, dry_run),
        Ok(Err(_)) => problem(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending", &[]),
        Err(_) => {
            let json = json!({ "status": "under way", "see": "the log, and the ETag of /v1/config" });
            (StatusCode::ACCEPTED, answered(&json)).into_response()
        }
    }
}

fn outcome(answer: Answer, dry_run: bool) -> Response {
    match answer {
        Ok(done) => {
            let json = json!({ "applied": !dry_run, "steps": done.steps, "warnings": done.warnings });
            let mut response = answered(&json);
            tag(response.headers_mut(), &done.version);
            response
        }
        Err(Refused { refusal, title, faults }) => problem(status(refusal), &title, &faults),
    }
}

fn status(refusal: Refusal) -> StatusCode {
    match refusal {
        Refusal::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        Refusal::Conflict => StatusCode::CONFLICT,
        Refusal::Stale => StatusCode::PRECONDITION_FAILED,
        Refusal::NotFound => StatusCode::NOT_FOUND,
        Refusal::Failed => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn tag(headers: &mut HeaderMap, version: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        headers.insert(header::ETAG, value);
    }
}

fn answered(json: &Value) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from(json.to_string())).into_response()
}

async fn nothing_here() -> Response {
    problem(StatusCode::NOT_FOUND, "there is nothing at this path", &[])
}

async fn not_that_way() -> Response {
    problem(StatusCode::METHOD_NOT_ALLOWED, "that cannot be done with what is at this path", &[])
}

/// What is wrong (RFC 9457).
fn problem(status: StatusCode, title: &str, faults: &[Fault]) -> Response {
    let faults: Vec<Value> = faults
        .iter()
        .map(|fault| json!({ "place": fault.place, "what": fault.what, "fix": fault.fix }))
        .collect();
    let json = json!({ "title": title, "status": status.as_u16(), "problems": faults });
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, Body::from(json.to_string())).into_response()
}
