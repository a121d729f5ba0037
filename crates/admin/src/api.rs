//! The resources of the API.

mod access;
mod events;
mod metrics;
mod page;
mod sessions;

use crate::hub::{Answer, ChangeRequest, Fault, Hub, Refusal, Refused};
use crate::openapi;
use crate::server::{Deadline, Peer};
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequestParts, Path, RawQuery, State as Shared};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use axum::{Extension, Router};
use config::{Action, Edit, ShownIn, Subject};
use reactor::cpu;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::slice;
use std::time::{Duration, Instant};

/// How long a client waits for a change, since commands in flight may take long to end.
const CHANGE_TIME: Duration = Duration::from_secs(120);
/// Bytes of a request's body.
const BODY_MAX: usize = 256 << 10;
/// Entries of a page: the default, and the maximum for `limit`.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1000;

/// State shared by handlers.
#[derive(Clone)]
struct Context {
    hub: Hub,
    start: Instant,
}

/// All resources that [`openapi::OPERATIONS`] lists, and the page for people.
pub(crate) fn router(hub: Hub) -> Router {
    let context = Context { hub, start: Instant::now() };
    Router::new()
        .route("/", get(page::shown))
        .route("/v1/cpu", get(cpu_times))
        .route("/metrics", get(metrics::all))
        .route("/v1/cores", get(cores))
        .route("/v1/openapi.json", get(async || answered(&openapi::document())))
        .route("/v1/config", get(config))
        .route("/v1/reload", post(reload))
        .route("/v1/luns", get(luns).post(add_lun))
        .route("/v1/luns/{lun}", get(lun).patch(set_lun).delete(remove_lun))
        .route("/v1/luns/{lun}/resize", post(resize_lun))
        .route("/v1/luns/{lun}/activate", post(activate_lun))
        .route("/v1/targets", get(targets).post(add_target))
        .route("/v1/targets/{target}", get(target).patch(set_target).delete(remove_target))
        .route("/v1/targets/{target}/groups", get(groups).post(add_group))
        .route("/v1/targets/{target}/groups/{group}", get(group).patch(set_group).delete(remove_group))
        .route("/v1/portals", get(portals))
        .route("/v1/portals/{portal}", patch(set_portal))
        .route("/v1/portal-groups", get(portal_groups))
        .route("/v1/portal-groups/{group}", get(portal_group).patch(set_portal_group))
        .route("/v1/events", get(events::follow))
        .route("/v1/sessions", get(sessions::all))
        .route("/v1/sessions/{session}", get(sessions::one).delete(sessions::end))
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_that_way)
        .layer(from_fn_with_state(context.clone(), access::admit))
        .with_state(context)
}

async fn cpu_times(Shared(context): Shared<Context>) -> Response {
    match serde_json::to_value(cpu::snapshot(context.start.elapsed())) {
        Ok(json) => answered(&json),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[]),
    }
}

async fn cores(Shared(context): Shared<Context>) -> Response {
    answered(&context.hub.cores())
}

/// The running configuration as a file.
async fn config(Shared(context): Shared<Context>) -> Response {
    let state = context.hub.state();
    let mut response = Body::from(state.file.clone()).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/toml"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    tag(headers, &state.version);
    response
}

async fn luns(Shared(context): Shared<Context>, RawQuery(query): RawQuery) -> Response {
    let state = context.hub.state();
    let read = |luns: &[Value]| context.hub.luns(luns);
    page_of(&state.luns, "name", query.as_deref(), &state.version, read)
}

async fn lun(Shared(context): Shared<Context>, Path(name): Path<String>) -> Response {
    let state = context.hub.state();
    let found = find(&state.luns, &name).map(|lun| context.hub.luns(slice::from_ref(lun)));
    one(found.as_deref().and_then(<[Value]>::first), &format!("LUN {name}"), &state.version)
}

async fn targets(Shared(context): Shared<Context>, RawQuery(query): RawQuery) -> Response {
    let state = context.hub.state();
    page(&state.targets, "name", query.as_deref(), &state.version)
}

async fn target(Shared(context): Shared<Context>, Path(name): Path<String>) -> Response {
    let state = context.hub.state();
    one(find(&state.targets, &name), &format!("target {name}"), &state.version)
}

async fn groups(
    Shared(context): Shared<Context>,
    Path(target): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let state = context.hub.state();
    match find(&state.targets, &target).and_then(|target| target["groups"].as_array()) {
        Some(groups) => page(groups, "name", query.as_deref(), &state.version),
        None => one(None, &format!("target {target}"), &state.version),
    }
}

async fn group(Shared(context): Shared<Context>, Path((target, name)): Path<(String, String)>) -> Response {
    let state = context.hub.state();
    let groups = find(&state.targets, &target).and_then(|target| target["groups"].as_array());
    let found = groups.and_then(|groups| find(groups, &name));
    one(found, &format!("group {name} of target {target}"), &state.version)
}

async fn portals(Shared(context): Shared<Context>, RawQuery(query): RawQuery) -> Response {
    let state = context.hub.state();
    // Several may have the same name, 127.0.0.1:0.
    page(&state.portals, "address", query.as_deref(), &state.version)
}

async fn set_portal(
    Shared(context): Shared<Context>,
    Path(name): Path<String>,
    request: Change,
    body: Body,
) -> Response {
    set(&context, Subject::Portal(name), request, body).await
}

async fn portal_groups(Shared(context): Shared<Context>, RawQuery(query): RawQuery) -> Response {
    let state = context.hub.state();
    page(&state.portal_groups, "name", query.as_deref(), &state.version)
}

async fn portal_group(Shared(context): Shared<Context>, Path(tag): Path<String>) -> Response {
    let state = context.hub.state();
    one(find(&state.portal_groups, &tag), &format!("portal group {tag}"), &state.version)
}

async fn set_portal_group(
    Shared(context): Shared<Context>,
    Path(tag): Path<String>,
    request: Change,
    body: Body,
) -> Response {
    let state = context.hub.state();
    let found = find(&state.portal_groups, &tag).and_then(|_| tag.parse().ok());
    let Some(number) = found else { return one(None, &format!("portal group {tag}"), &state.version) };
    set(&context, Subject::PortalGroup(number), request, body).await
}

async fn reload(Shared(context): Shared<Context>, request: Change) -> Response {
    change(&context.hub, ChangeRequest::Reload, request).await
}

async fn add_lun(Shared(context): Shared<Context>, request: Change, body: Body) -> Response {
    let mut settings = match settings(body).await {
        Ok(settings) => settings,
        Err(response) => return response,
    };
    let shown = match shown(settings.remove("shown")) {
        Ok(shown) => shown,
        Err(fault) => return problem(StatusCode::BAD_REQUEST, "the body is invalid", &[fault]),
    };
    let state = context.hub.state();
    let name =
        settings.remove("name").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_else(|| {
            let is_free = |name: &String| find(&state.luns, name).is_none();
            (0..).map(|number| format!("lun{number}")).find(is_free).unwrap_or_default()
        });
    let edit = Edit { subject: Subject::Lun(name), action: Action::Add { settings, shown } };
    change(&context.hub, ChangeRequest::Edit(edit), request).await
}

async fn set_lun(
    Shared(context): Shared<Context>,
    Path(name): Path<String>,
    request: Change,
    body: Body,
) -> Response {
    set(&context, Subject::Lun(name), request, body).await
}

async fn remove_lun(Shared(context): Shared<Context>, Path(name): Path<String>, request: Change) -> Response {
    remove(&context, Subject::Lun(name), request).await
}

async fn resize_lun(
    Shared(context): Shared<Context>,
    Path(name): Path<String>,
    request: Change,
    body: Body,
) -> Response {
    let settings = match settings(body).await {
        Ok(settings) => settings,
        Err(response) => return response,
    };
    let size = match &settings.get("size") {
        Some(Value::String(size)) => size.clone(),
        Some(Value::Number(size)) => size.to_string(),
        _ => {
            let fault = fault("size", "this is missing", "write bytes, or text such as \"20G\"");
            return problem(StatusCode::BAD_REQUEST, "the body is invalid", &[fault]);
        }
    };
    let may_lose_data = settings.get("yes_lose_data").and_then(Value::as_bool).unwrap_or(false);
    change(&context.hub, ChangeRequest::Resize { lun: name, size, may_lose_data }, request).await
}

async fn activate_lun(
    Shared(context): Shared<Context>,
    Path(name): Path<String>,
    request: Change,
) -> Response {
    change(&context.hub, ChangeRequest::Activate { lun: name }, request).await
}

async fn add_target(Shared(context): Shared<Context>, request: Change, body: Body) -> Response {
    add(&context, Subject::Target, request, body).await
}

async fn set_target(
    Shared(context): Shared<Context>,
    Path(name): Path<String>,
    request: Change,
    body: Body,
) -> Response {
    set(&context, Subject::Target(name), request, body).await
}

async fn remove_target(
    Shared(context): Shared<Context>,
    Path(name): Path<String>,
    request: Change,
) -> Response {
    remove(&context, Subject::Target(name), request).await
}

async fn add_group(
    Shared(context): Shared<Context>,
    Path(target): Path<String>,
    request: Change,
    body: Body,
) -> Response {
    add(&context, |name| Subject::Group { target, name }, request, body).await
}

async fn set_group(
    Shared(context): Shared<Context>,
    Path((target, name)): Path<(String, String)>,
    request: Change,
    body: Body,
) -> Response {
    set(&context, Subject::Group { target, name }, request, body).await
}

async fn remove_group(
    Shared(context): Shared<Context>,
    Path((target, name)): Path<(String, String)>,
    request: Change,
) -> Response {
    remove(&context, Subject::Group { target, name }, request).await
}

async fn add(
    context: &Context,
    subject: impl FnOnce(String) -> Subject,
    request: Change,
    body: Body,
) -> Response {
    let mut settings = match settings(body).await {
        Ok(settings) => settings,
        Err(response) => return response,
    };
    let Some(Value::String(name)) = settings.remove("name") else {
        let fault = fault("name", "this is missing", "write \"name\": \"...\"");
        return problem(StatusCode::BAD_REQUEST, "the body is invalid", &[fault]);
    };
    let action = Action::Add { settings, shown: Vec::new() };
    change(&context.hub, ChangeRequest::Edit(Edit { subject: subject(name), action }), request).await
}

async fn set(context: &Context, subject: Subject, request: Change, body: Body) -> Response {
    match settings(body).await {
        Ok(settings) => {
            let edit = Edit { subject, action: Action::Set(settings) };
            change(&context.hub, ChangeRequest::Edit(edit), request).await
        }
        Err(response) => response,
    }
}

async fn remove(context: &Context, subject: Subject, request: Change) -> Response {
    change(&context.hub, ChangeRequest::Edit(Edit { subject, action: Action::Remove }), request).await
}

/// The object in a body.
async fn settings(body: Body) -> Result<Map<String, Value>, Response> {
    let wrong = |what: &str| {
        let fault = fault("body", what, "write a JSON object");
        problem(StatusCode::BAD_REQUEST, "the body is invalid", &[fault])
    };
    let bytes = to_bytes(body, BODY_MAX).await.map_err(|_| wrong("it is too long or truncated"))?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(settings)) => Ok(settings),
        Ok(_) => Err(wrong("it is not an object")),
        Err(error) => Err(wrong(&error.to_string())),
    }
}

/// Where a new LUN is exposed: target and number.
fn shown(json: Option<Value>) -> Result<Vec<ShownIn>, Fault> {
    let wrong = || {
        let fix = "write [{\"target\": \"iqn...\", \"group\": null, \"number\": 3}]";
        fault("shown", "it is not a list of places that show the LUN", fix)
    };
    let text = |json: &Value| match json {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(wrong()),
    };
    let one = |json: &Value| {
        let number = match &json["number"] {
            Value::Null => None,
            number => Some(number.as_u64().and_then(|number| u16::try_from(number).ok()).ok_or_else(wrong)?),
        };
        Ok(ShownIn { target: text(&json["target"])?, group: text(&json["group"])?, number })
    };
    match json {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) if list.iter().all(Value::is_object) => list.iter().map(one).collect(),
        Some(_) => Err(wrong()),
    }
}

/// The parameters of every change request.
struct Change {
    peer: Peer,
    deadline: Deadline,
    dry_run: Result<bool, Fault>,
    expected: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Change {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Change, Response> {
        let missing = |_| problem(StatusCode::INTERNAL_SERVER_ERROR, "the connection is unknown", &[]);
        let Extension(peer) = Extension::from_request_parts(parts, state).await.map_err(missing)?;
        let Extension(deadline) = Extension::from_request_parts(parts, state).await.map_err(missing)?;
        let dry_run = dry_run(parts.uri.query().unwrap_or_default());
        Ok(Change { peer, deadline, dry_run, expected: expected(&parts.headers) })
    }
}

/// `?dry_run=true`.
fn dry_run(query: &str) -> Result<bool, Fault> {
    match query {
        "" | "dry_run=false" => Ok(false),
        "dry_run" | "dry_run=true" => Ok(true),
        _ => Err(fault("query", "it cannot be parsed", "write ?dry_run=true, or leave it out")),
    }
}

/// The entity tag of If-Match (RFC 9110 section 13.1.1), if present.
fn expected(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::IF_MATCH)?.to_str().unwrap_or_default().trim();
    (given != "*").then(|| given.trim_matches('"').to_owned())
}

impl Change {
    /// Whether it is a dry run. Its connection gets the time that a change needs.
    fn admit(&self) -> Result<bool, Box<Response>> {
        let dry_run = *self.dry_run.as_ref().map_err(|fault| Box::new(wrong_query(fault)))?;
        self.deadline.extend(CHANGE_TIME + Duration::from_secs(5));
        Ok(dry_run)
    }
}

fn wrong_query(fault: &Fault) -> Response {
    problem(StatusCode::BAD_REQUEST, "the query is wrong", std::slice::from_ref(fault))
}

fn crowded() -> Response {
    problem(StatusCode::SERVICE_UNAVAILABLE, "too many changes wait, or the daemon is ending", &[])
}

fn under_way() -> Response {
    let json = json!({ "status": "under way", "see": "the log, and the ETag of /v1/config" });
    (StatusCode::ACCEPTED, answered(&json)).into_response()
}

async fn change(hub: &Hub, change: ChangeRequest, request: Change) -> Response {
    let dry_run = match request.admit() {
        Ok(dry_run) => dry_run,
        Err(response) => return *response,
    };
    let Some(answer) = hub.submit(change, dry_run, request.expected, &request.peer) else {
        return crowded();
    };
    match tokio::time::timeout(CHANGE_TIME, answer).await {
        Ok(Ok(answer)) => outcome(answer, dry_run),
        Ok(Err(_)) => problem(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending", &[]),
        Err(_) => under_way(),
    }
}

fn refused(why: &Refused) -> Response {
    let response = problem(status(why.refusal), &why.title, &why.faults);
    if why.refusal == Refusal::Revoked { access::challenge(access::INVALID, response) } else { response }
}

fn outcome(answer: Answer, dry_run: bool) -> Response {
    match answer {
        Ok(done) => {
            let json = json!({ "applied": !dry_run, "steps": done.steps, "warnings": done.warnings });
            let mut response = answered(&json);
            tag(response.headers_mut(), &done.version);
            response
        }
        Err(Refused { refusal: Refusal::UnderWay, .. }) => under_way(),
        Err(why) => refused(&why),
    }
}

fn status(refusal: Refusal) -> StatusCode {
    match refusal {
        Refusal::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        Refusal::Conflict => StatusCode::CONFLICT,
        Refusal::Stale => StatusCode::PRECONDITION_FAILED,
        Refusal::Revoked => StatusCode::UNAUTHORIZED,
        Refusal::NotFound => StatusCode::NOT_FOUND,
        Refusal::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        Refusal::UnderWay => StatusCode::ACCEPTED,
        Refusal::Silent => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn find<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
    all.iter().find(|one| one["name"].as_str().is_some_and(|other| other.eq_ignore_ascii_case(name)))
}

fn one(found: Option<&Value>, what: &str, version: &str) -> Response {
    let Some(json) = found else {
        let fault = fault(what, "there is none with that name", "list those that there are");
        return problem(StatusCode::NOT_FOUND, "not found", &[fault]);
    };
    let mut response = answered(json);
    tag(response.headers_mut(), version);
    response
}

/// A page of a list.
#[derive(Serialize)]
struct List<'a, T> {
    items: T,
    next: Option<&'a Value>,
}

/// The page of a list that a client requests.
struct Page {
    limit: usize,
    after: Option<String>,
}

impl Page {
    /// From a query.
    fn of(query: Option<&str>) -> Result<Page, Fault> {
        let mut page = Page { limit: PAGE, after: None };
        for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("after", name)) => page.after = Some(decoded(name)),
                Some(("limit", text)) if text.parse().is_ok_and(|limit| (1..=PAGE_MAX).contains(&limit)) => {
                    page.limit = text.parse().unwrap_or(PAGE);
                }
                _ => {
                    let fix = "write ?limit=1 to 1000, &after=NAME";
                    return Err(fault("query", "it cannot be parsed", fix));
                }
            }
        }
        Ok(page)
    }

    /// The page of a list from this index on; the next page starts after its last `key`.
    fn of_list<'a, T: Serialize>(
        &self,
        all: &'a [Value],
        begin: usize,
        key: &str,
        show: impl FnOnce(&'a [Value]) -> T,
    ) -> Response {
        let items = &all[begin..(begin + self.limit).min(all.len())];
        let next = items.last().filter(|_| begin + items.len() < all.len()).map(|last| &last[key]);
        answered(&List { items: show(items), next })
    }
}

/// The entries after the one whose `key` is `after`, at most `limit` of them.
fn page(all: &[Value], key: &str, query: Option<&str>, version: &str) -> Response {
    page_of(all, key, query, version, |items| items)
}

/// The same for entries that are read only if they are on the page.
fn page_of<'a, T: Serialize>(
    all: &'a [Value],
    key: &str,
    query: Option<&str>,
    version: &str,
    read: impl FnOnce(&'a [Value]) -> T,
) -> Response {
    let page = match Page::of(query) {
        Ok(page) => page,
        Err(fault) => return wrong_query(&fault),
    };
    let begin = match &page.after {
        None => 0,
        Some(after) => match all.iter().position(|one| one[key] == **after) {
            Some(index) => index + 1,
            None => {
                let fault = fault(
                    "after",
                    &format!("{after} is not in the list any more"),
                    "read it from its beginning",
                );
                return problem(StatusCode::CONFLICT, "the list has changed since its last page", &[fault]);
            }
        },
    };
    let mut response = page.of_list(all, begin, key, read);
    tag(response.headers_mut(), version);
    response
}

/// Decodes percent encoding (RFC 3986 section 2.1).
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn tag(headers: &mut HeaderMap, version: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        headers.insert(header::ETAG, value);
    }
}

/// Serialised directly: an intermediate [`Value`] of a list is many times the size of its text.
fn answered(json: &impl Serialize) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    match serde_json::to_string(json) {
        Ok(text) => (headers, Body::from(text)).into_response(),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[]),
    }
}

async fn nothing_here() -> Response {
    problem(StatusCode::NOT_FOUND, "there is nothing at this path; see /v1/openapi.json", &[])
}

async fn not_that_way() -> Response {
    problem(StatusCode::METHOD_NOT_ALLOWED, "this path does not support this method", &[])
}

fn fault(place: &str, what: &str, fix: &str) -> Fault {
    Fault { place: place.into(), what: what.into(), fix: fix.into() }
}

/// A problem document (RFC 9457).
fn problem(status: StatusCode, title: &str, faults: &[Fault]) -> Response {
    let faults: Vec<Value> = faults
        .iter()
        .map(|fault| json!({ "place": fault.place, "what": fault.what, "fix": fault.fix }))
        .collect();
    let json = json!({ "title": title, "status": status.as_u16(), "problems": faults });
    let headers = [(header::CONTENT_TYPE, "application/problem+json"), (header::CACHE_CONTROL, "no-store")];
    (status, headers, Body::from(json.to_string())).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_out_of_queries() {
        for (text, expected) in [("a%3Ab", "a:b"), ("%", "%"), ("%4", "%4"), ("%zz%41", "%zzA"), ("", "")] {
            assert_eq!(decoded(text), expected);
        }
    }

    fn paged(all: &[Value], key: &str, query: &str) -> (StatusCode, Value) {
        let response = page(all, key, Some(query), "1");
        let status = response.status();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let bytes = runtime.block_on(to_bytes(response.into_body(), BODY_MAX)).expect("a body");
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }

    #[test]
    fn a_list_is_read_to_its_end_by_pages_or_reports_that_it_has_changed() {
        let portal = |port: u16| json!({ "name": "127.0.0.1:0", "address": format!("127.0.0.1:{port}") });
        let all: Vec<Value> = (1..=4).map(portal).collect();
        let (mut read, mut query) = (Vec::new(), String::from("limit=1"));
        while read.len() < all.len() {
            let (status, json) = paged(&all, "address", &query);
            assert_eq!(status, StatusCode::OK);
            read.extend(json["items"].as_array().expect("a list").clone());
            let Some(next) = json["next"].as_str() else { break };
            query = format!("limit=1&after={next}");
        }
        assert_eq!(read, all);
        let (status, json) = paged(&all[..2], "address", "limit=1&after=127.0.0.1:3");
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(json["problems"][0]["what"].as_str().is_some_and(|what| what.contains("127.0.0.1:3 is not")));
    }

    #[test]
    fn nothing_is_read_of_what_is_on_other_pages() {
        let all: Vec<Value> = ["a", "b", "c"].map(|name| json!({ "name": name })).into();
        let mut read = Vec::new();
        let response = page_of(&all, "name", Some("limit=1&after=a"), "1", |items| {
            read = items.to_vec();
            items.to_vec()
        });
        assert_eq!((response.status(), &read[..]), (StatusCode::OK, &all[1..2]));
    }
}
