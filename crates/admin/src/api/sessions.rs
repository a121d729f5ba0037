//! Sessions: listing and ending them.

use super::{Change, Context, Page, answered, crowded, fault, outcome, problem, refused, wrong_query};
use crate::hub::{Refusal, Refused};
use crate::server::Deadline;
use axum::Extension;
use axum::extract::{Path, RawQuery, State as Shared};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use std::time::Duration;

/// How long a client waits for a list: for the one in progress, a pause, and the next one.
const LIST_TIME: Duration = Duration::from_secs(30);

pub(super) async fn all(
    Shared(context): Shared<Context>,
    Extension(deadline): Extension<Deadline>,
    RawQuery(query): RawQuery,
) -> Response {
    let page = match Page::of(query.as_deref()) {
        Ok(page) => page,
        Err(fault) => return wrong_query(&fault),
    };
    let after = match page.after.as_deref().map(str::parse::<u64>) {
        None => None,
        Some(Ok(id)) => Some(id),
        Some(Err(_)) => {
            let fix = "use the `next` of the previous page";
            return wrong_query(&fault("query", "`after` is not a session number", fix));
        }
    };
    deadline.extend(LIST_TIME);
    match context.hub.sessions(after.is_some()).await {
        Ok(sessions) => {
            let begin = sessions.partition_point(|session| session["id"].as_u64() <= after);
            page.of_list(&sessions, begin, "id", |items| items)
        }
        Err(why) => refused(&why),
    }
}

pub(super) async fn one(
    Shared(context): Shared<Context>,
    Extension(deadline): Extension<Deadline>,
    Path(id): Path<String>,
) -> Response {
    deadline.extend(LIST_TIME);
    let sessions = match context.hub.sessions(false).await {
        Ok(sessions) => sessions,
        Err(why) => return refused(&why),
    };
    let is_it = |session: &&Value| session["id"].as_u64().is_some_and(|other| other.to_string() == id);
    sessions.iter().find(is_it).map_or_else(|| not_found(&id), answered)
}

pub(super) async fn end(
    Shared(context): Shared<Context>,
    Path(id): Path<String>,
    request: Change,
) -> Response {
    let dry_run = match request.admit() {
        Ok(dry_run) => dry_run,
        Err(response) => return *response,
    };
    if request.expected.is_some() {
        let fault = fault("If-Match", "sessions have no entity tag", "leave it out");
        let title = "a session has no version";
        return refused(&Refused { refusal: Refusal::Stale, title: title.into(), faults: vec![fault] });
    }
    let Ok(number) = id.parse::<u64>() else { return not_found(&id) };
    match context.hub.end_session(number, dry_run, request.peer.to_string()).await {
        Some(answer) => outcome(answer, dry_run),
        None => crowded(),
    }
}

fn not_found(id: &str) -> Response {
    let fault =
        fault(&format!("session {id}"), "there is none with that number", "list them: lunette sessions");
    problem(StatusCode::NOT_FOUND, "not found", &[fault])
}
