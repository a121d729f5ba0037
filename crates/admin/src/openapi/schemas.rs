//! The schemas of answers.

use serde_json::{Map, Value, json};

/// A field, its type, and its description.
type Field = (&'static str, &'static [&'static str], &'static str);

const TEXT: &[&str] = &["string"];
const TEXT_OR_NONE: &[&str] = &["string", "null"];
const NUMBER: &[&str] = &["integer"];
const NUMBER_OR_NONE: &[&str] = &["integer", "null"];
const SECONDS: &[&str] = &["number"];
const SECONDS_OR_NONE: &[&str] = &["number", "null"];
const SWITCH: &[&str] = &["boolean"];
const LIST: &[&str] = &["array"];
const LIST_OR_NONE: &[&str] = &["array", "null"];
const OBJECT: &[&str] = &["object"];
const OBJECT_OR_NONE: &[&str] = &["object", "null"];

const CPU: &[Field] = &[
    ("pid", NUMBER, "The process"),
    ("version", TEXT, "Lunette's version"),
    ("machine", TEXT, "The kernel's boot id"),
    ("uptime_seconds", SECONDS, "How long it has been serving"),
    ("user_seconds", SECONDS, "CPU time of the process"),
    ("system_seconds", SECONDS, "CPU time of the process in the kernel"),
    ("threads", LIST, "The same for each thread"),
    ("cores", LIST, "The same for each core of the machine, all processes together"),
];

const STATS: &str = "Commands that have ended since it was first served: `read` and `write` with `commands`, `bytes` \
and `latency` \
                     (`sum_us`; `counts` of those that took up to `le_us` each, of which the last is null), `other`, \
                     and `errors` by reason: a sense key, a status, or `aborted`";

const CORE: &[Field] = &[
    ("core", NUMBER, "Its number"),
    ("busy_s", SECONDS, "Time spent working, or waiting for a processor"),
    ("polling_s", SECONDS, "Time spent polling without finding work"),
    ("asleep_s", SECONDS, "Time spent asleep"),
    ("sessions", NUMBER, "Sessions of targets that it serves"),
    ("tasks", NUMBER, "Commands in flight, except those answered directly from memory"),
    ("buffers_bytes", NUMBER, "Its I/O buffers in use"),
    ("buffers_max_bytes", NUMBER, "Its I/O buffers in total"),
];

const LUN: &[Field] = &[
    ("name", TEXT, "Its name"),
    ("store", TEXT, "Where its data is, in the format of --lun"),
    ("size_bytes", NUMBER_OR_NONE, "Its size; null: its store has not been opened yet"),
    ("block_bytes", NUMBER, "Its logical block size"),
    ("physical_block_bytes", NUMBER, "Its physical block size"),
    ("serial", TEXT, "Unit serial number"),
    ("serial_lasts", SWITCH, "Whether it stays the same at the next start"),
    ("product", TEXT, "Product identification"),
    ("read_only", SWITCH, "It cannot be written"),
    ("write_cache", SWITCH, "Write cache enabled at start"),
    ("thin", SWITCH, "Thin provisioned"),
    ("warn_at", TEXT_OR_NONE, "The share of its size at which its initiators are notified, such as \"80%\""),
    ("removable", SWITCH, "A removable medium"),
    ("huge_pages", TEXT_OR_NONE, "Of memory: auto, always or never"),
    ("aoe", TEXT_OR_NONE, "Its address on interfaces that serve AoE"),
    ("not_opened", TEXT_OR_NONE, "Why its store could not be opened"),
    ("iops_max", NUMBER_OR_NONE, "Commands a second at most"),
    ("iops_burst", NUMBER_OR_NONE, "How many of them may come at once; null: 20 ms' worth"),
    ("bytes_per_second_max", NUMBER_OR_NONE, "Bytes a second at most"),
    ("bytes_burst", NUMBER_OR_NONE, "How many of them may come at once; null: 20 ms' worth"),
    ("stats", OBJECT, STATS),
    ("state", TEXT, "Its store now: open, late (not opened yet) or failed"),
    ("last_error", TEXT_OR_NONE, "Why its store was last not open"),
    ("used_bytes", NUMBER_OR_NONE, "The space that its store uses, if it is thin and that is known"),
    ("connections", NUMBER_OR_NONE, "Open connections to its NBD server, if that is where it is stored"),
    ("write_cache_enabled", SWITCH, "WCE, which initiators may change"),
    ("threshold_reached", &["boolean", "null"], "It uses as much as its `warn_at`; null: not configured"),
    ("reservation", OBJECT_OR_NONE, "`type` and `holders` of the reservation, if there is one"),
    (
        "registrations",
        LIST,
        "Who is registered: `initiator`, `target_port`, `key`, and whether it `holds` the reservation",
    ),
    ("port_groups", LIST, "Its target port groups, each with `group` and its `state`"),
    (
        "gateway",
        OBJECT_OR_NONE,
        "Where several gateways share it: the `name` and `role` of this one, which is `active`, those that access \
         the medium (`serving`: the active one, or with `access = \"all\"` others as well, for which that one executes \
         what changes the unit), all `gateways`, \
         clients that this one has fenced (`shut_out`), each with `client` and `age_seconds`, and the `fault` that \
         keeps it from being active",
    ),
];

const TARGET: &[Field] = &[
    ("name", TEXT, "Its iSCSI name"),
    ("alias", TEXT_OR_NONE, "Its alias"),
    ("sessions_max", NUMBER, "Sessions at most"),
    ("queue_depth", NUMBER_OR_NONE, "Commands that a session may have in flight"),
    ("portals", LIST, "Names of the portals through which it is reached"),
    ("luns", LIST, "The LUNs that it shows, each with `number` and `lun`"),
    ("groups", LIST, "Its groups, in their order"),
];

const GROUP: &[Field] = &[
    ("name", TEXT, "Its name"),
    ("initiators", LIST, "Patterns of names; none: any name"),
    ("networks", LIST, "Networks that initiators come from; none: any"),
    ("deny", SWITCH, "Its members are refused"),
    ("read_only", SWITCH, "All LUNs are read-only for them"),
    ("queue_depth", NUMBER_OR_NONE, "Commands that a session may have in flight; null: the target's"),
    ("luns", LIST_OR_NONE, "The LUNs that they see, each with `number` and `lun`; null: the target's"),
    ("chap", OBJECT_OR_NONE, "CHAP: `user`, `mutual_user`, `algorithms` (none: all)"),
    ("iops_max", NUMBER_OR_NONE, "Commands a second at most, for all members together"),
    ("iops_burst", NUMBER_OR_NONE, "How many of them may come at once; null: 20 ms' worth"),
    ("bytes_per_second_max", NUMBER_OR_NONE, "Bytes a second at most, for all members together"),
    ("bytes_burst", NUMBER_OR_NONE, "How many of them may come at once; null: 20 ms' worth"),
];

const PORTAL: &[Field] = &[
    ("name", TEXT, "Its name in the file, or the address and port there"),
    ("listen", TEXT, "The address and port in the file"),
    ("address", TEXT, "The address and port that are bound"),
    ("group", NUMBER, "Target portal group tag"),
    ("cores", TEXT, "Cores that serve its connections"),
    ("transports", LIST, "iscsi, iser, srp"),
    ("rdma", &["boolean", "string"], "Whether RDMA devices listen; \"only\": TCP does not"),
    ("drain_s", SECONDS_OR_NONE, "It is drained: how long sessions have to log out"),
    ("redirect", TEXT_OR_NONE, "Where logins are sent"),
];

const PORTAL_GROUP: &[Field] = &[
    ("name", TEXT, "Its tag, for paths"),
    ("group", NUMBER, "Its tag"),
    ("state", TEXT, "The configured asymmetric access state; the current one is shown for each LUN"),
    ("preferred", SWITCH, "Initiators should prefer it"),
    ("explicit", SWITCH, "Initiators may set its state, separately for each LUN"),
    ("port_ids", TEXT_OR_NONE, "Range of the relative identifiers of its ports; null: any"),
    ("portals", LIST, "Names of its portals"),
];

const SESSION: &[Field] = &[
    ("id", NUMBER, "Its number in the log, which the daemon never reuses"),
    ("initiator", TEXT, "The initiator's name; for AoE its address"),
    ("alias", TEXT_OR_NONE, "The alias that the initiator gave"),
    ("transport", TEXT, "iSCSI, iSER, SRP or AoE"),
    ("address", TEXT, "The initiator's address and port; for AoE its Ethernet address"),
    ("portal", TEXT_OR_NONE, "The address that it connected to; null: AoE"),
    ("interface", TEXT_OR_NONE, "AoE: the network interface"),
    ("aoe", TEXT_OR_NONE, "AoE: the address of the unit"),
    ("target", TEXT_OR_NONE, "The target's name; null: a discovery session, or AoE"),
    ("isid", TEXT_OR_NONE, "iSCSI and iSER: the initiator's session ID (ISID), in hexadecimal"),
    ("tsih", NUMBER_OR_NONE, "iSCSI and iSER: the target session identifying handle (TSIH)"),
    ("core", NUMBER, "The core that serves it"),
    ("state", TEXT, "serving, moving (to another core) or ending"),
    ("age_seconds", SECONDS, "How long ago its connection was accepted"),
    (
        "in_flight",
        NUMBER,
        "Commands in flight; one that is answered immediately counts only until its answer was sent",
    ),
    ("commands", NUMBER, "Commands that have come"),
    ("read_bytes", NUMBER, "Bytes that they requested to read"),
    ("write_bytes", NUMBER, "Bytes that they requested to write"),
    ("stats", OBJECT, STATS),
    ("keys", OBJECT, "What was negotiated"),
];

const STEPS: &[Field] = &[
    ("applied", SWITCH, "False: only shown (dry_run)"),
    ("steps", LIST, "The steps that were taken, in order"),
    ("warnings", LIST, "Warnings about it"),
];

const PROBLEM: &[Field] = &[
    ("title", TEXT, "What is wrong, in one line"),
    ("status", NUMBER, "The status of the answer"),
    ("problems", LIST, "Each thing that is wrong: `place`, `what`, `fix`"),
];

/// All named schemas.
pub(super) fn all() -> Value {
    let named = [
        ("Cpu", CPU),
        ("Core", CORE),
        ("Lun", LUN),
        ("Target", TARGET),
        ("Group", GROUP),
        ("Portal", PORTAL),
        ("PortalGroup", PORTAL_GROUP),
        ("Session", SESSION),
        ("Steps", STEPS),
        ("Problem", PROBLEM),
    ];
    let mut all: Map<String, Value> =
        named.into_iter().map(|(name, fields)| (name.to_owned(), object(fields))).collect();
    all.insert("Document".into(), json!({ "type": "object" }));
    all.into()
}

/// A page of a list.
pub(super) fn list(item: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {
            "items": { "type": "array", "items": item },
            "next": { "type": ["string", "integer", "null"], "description": "`after` of the next page; 409 if that \
             item is gone" },
        },
    })
}

fn object(fields: &[Field]) -> Value {
    let describe = |(name, kinds, text): &Field| {
        let kind = match kinds {
            [kind] => json!(kind),
            kinds => json!(kinds),
        };
        ((*name).to_owned(), json!({ "type": kind, "description": text }))
    };
    let properties: Map<String, Value> = fields.iter().map(describe).collect();
    let required: Vec<&str> = fields.iter().map(|(name, ..)| *name).collect();
    json!({ "type": "object", "properties": properties, "required": required })
}
