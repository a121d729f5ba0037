//! The description of the API (OpenAPI 3.1), generated from the list of operations.

mod schemas;

use serde_json::{Map, Value, json};

/// An operation at a path.
pub(crate) struct Operation {
    /// The method, in lower case.
    pub(crate) method: &'static str,
    /// The path, with parameters in braces.
    pub(crate) path: &'static str,
    /// Its operation ID.
    pub(crate) id: &'static str,
    /// What it does.
    pub(crate) summary: &'static str,
    /// The body of the request, if it has one.
    pub(crate) body: Option<&'static str>,
    /// The answer.
    pub(crate) answer: Answers,
}

/// The body of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// An object of this schema.
    One(&'static str),
    /// All objects of this schema.
    All(&'static str),
    /// A page of objects of this schema.
    List(&'static str),
    /// The outcome of a change.
    Steps,
    /// Metrics as text.
    Metrics,
    /// TOML.
    File,
    /// Endless server-sent events.
    Events,
}

const fn read(path: &'static str, id: &'static str, summary: &'static str, answer: Answers) -> Operation {
    Operation { method: "get", path, id, summary, body: None, answer }
}

const fn change(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    body: Option<&'static str>,
) -> Operation {
    Operation { method, path, id, summary, body, answer: Answers::Steps }
}

/// The security scheme for changes.
const TOKEN: &str = "token";
const KEYS: &str = "Keys and values of the configuration file";

/// All operations.
pub(crate) const OPERATIONS: [Operation; 32] = [
    read("/v1/cpu", "cpu", "CPU times of the daemon and its machine", Answers::One("Cpu")),
    read(
        "/metrics",
        "metrics",
        "Counters for Prometheus; with ?sessions=1 also those of each session",
        Answers::Metrics,
    ),
    read("/v1/cores", "cores", "The cores, and how busy they are", Answers::All("Core")),
    read("/v1/openapi.json", "openapi", "This document", Answers::One("Document")),
    read("/v1/config", "config", "The running configuration as a file, without secrets", Answers::File),
    change(
        "post",
        "/v1/reload",
        "reload",
        "Read the configuration file again and apply the differences",
        None,
    ),
    read("/v1/luns", "luns", "All LUNs", Answers::List("Lun")),
    change(
        "post",
        "/v1/luns",
        "add_lun",
        "Add a LUN",
        Some(
            "Keys and values of [[lun]] in the configuration file; `shown` lists where it is shown, each with `target`, `group` and \
         `number`, all of which may be left out",
        ),
    ),
    read("/v1/luns/{lun}", "lun", "A LUN", Answers::One("Lun")),
    change(
        "patch",
        "/v1/luns/{lun}",
        "set_lun",
        "Change keys of a LUN; those that are null are removed",
        Some(KEYS),
    ),
    change("delete", "/v1/luns/{lun}", "remove_lun", "Remove a LUN from all lists", None),
    change(
        "post",
        "/v1/luns/{lun}/resize",
        "resize_lun",
        "Make a LUN larger",
        Some("`size`; a smaller one needs `yes_lose_data` true"),
    ),
    change(
        "post",
        "/v1/luns/{lun}/activate",
        "activate_lun",
        "Make this gateway the active one for a LUN that several share",
        None,
    ),
    read("/v1/targets", "targets", "All targets with their groups", Answers::List("Target")),
    change("post", "/v1/targets", "add_target", "Add a target", Some(KEYS)),
    read("/v1/targets/{target}", "target", "A target", Answers::One("Target")),
    change("patch", "/v1/targets/{target}", "set_target", "Change keys of a target", Some(KEYS)),
    change("delete", "/v1/targets/{target}", "remove_target", "Remove a target", None),
    read(
        "/v1/targets/{target}/groups",
        "groups",
        "The groups of a target, in their order",
        Answers::List("Group"),
    ),
    change("post", "/v1/targets/{target}/groups", "add_group", "Add a group after the others", Some(KEYS)),
    read("/v1/targets/{target}/groups/{group}", "group", "A group", Answers::One("Group")),
    change("patch", "/v1/targets/{target}/groups/{group}", "set_group", "Change keys of a group", Some(KEYS)),
    change("delete", "/v1/targets/{target}/groups/{group}", "remove_group", "Remove a group", None),
    read("/v1/portals", "portals", "All portals with the addresses that are bound", Answers::List("Portal")),
    change(
        "patch",
        "/v1/portals/{portal}",
        "set_portal",
        "Change keys of a portal, by its name or address: `drain` makes its sessions log out",
        Some(KEYS),
    ),
    read(
        "/v1/portal-groups",
        "portal_groups",
        "Groups of portals, which are target port groups of units",
        Answers::List("PortalGroup"),
    ),
    read("/v1/portal-groups/{group}", "portal_group", "A group of portals", Answers::One("PortalGroup")),
    change(
        "patch",
        "/v1/portal-groups/{group}",
        "set_portal_group",
        "Change the asymmetric access state of a portal group, or other keys of its [[portal_group]]",
        Some(KEYS),
    ),
    read(
        "/v1/sessions",
        "sessions",
        "All sessions, and initiators of AoE, by their numbers",
        Answers::List("Session"),
    ),
    read("/v1/sessions/{session}", "session", "A session", Answers::One("Session")),
    read("/v1/events", "events", "Events, as they happen", Answers::Events),
    change(
        "delete",
        "/v1/sessions/{session}",
        "disconnect",
        "End a session, whose initiator may log in again; answered once all of its commands have ended",
        None,
    ),
];

/// The document.
pub(crate) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = describe(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Lunette",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Reads and changes what a running daemon serves. Changes are verified as a whole first, \
             and made completely or not at all.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "securitySchemes": {
                TOKEN: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the daemon's admin_token_file. Only changes over TCP need one.",
                },
            },
        },
    })
}

fn describe(operation: &Operation) -> Value {
    let mut parameters: Vec<Value> = operation
        .path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    let query = |name: &str, kind: &str| json!({ "name": name, "in": "query", "schema": { "type": kind } });
    match operation.answer {
        Answers::List(_) => parameters.extend([query("limit", "integer"), query("after", "string")]),
        Answers::Steps => {
            parameters.push(query("dry_run", "boolean"));
            parameters.push(json!({ "name": "If-Match", "in": "header", "schema": { "type": "string" } }));
        }
        Answers::Events => {
            parameters
                .push(json!({ "name": "Last-Event-ID", "in": "header", "schema": { "type": "string" } }));
            parameters.push(query("after", "string"));
        }
        Answers::Metrics => parameters.push(query("sessions", "integer")),
        Answers::One(_) | Answers::All(_) | Answers::File => {}
    }
    let schema = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let (kind, schema) = match operation.answer {
        Answers::One(name) => ("application/json", schema(name)),
        Answers::All(name) => ("application/json", json!({ "type": "array", "items": schema(name) })),
        Answers::List(name) => ("application/json", schemas::list(&schema(name))),
        Answers::Steps => ("application/json", schema("Steps")),
        Answers::Events => ("text/event-stream", json!({ "type": "string" })),
        Answers::Metrics => ("text/plain", json!({ "type": "string" })),
        Answers::File => ("application/toml", json!({ "type": "string" })),
    };
    let problem = json!({
        "description": "What is wrong, where, and how to fix it",
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    });
    let mut description = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": { "description": "Success", "content": { kind: { "schema": schema } } },
            "default": problem,
        },
    });
    if operation.answer == Answers::Steps {
        description["security"] = json!([{}, { TOKEN: [] }]);
    }
    if let Some(body) = operation.body {
        description["requestBody"] = json!({
            "required": true,
            "description": body,
            "content": { "application/json": { "schema": { "type": "object" } } },
        });
    }
    description
}
