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
    ("threads", LIST, "The same of each thread"),
    ("cores", LIST, "The same of each core of the machine, all processes together"),
];

const STATS: &str = "Commands that have ended since it began to be served: `read` and `write` with `commands`, `bytes` and `latency` \
                     (`sum_us`; `counts` of all that took up to `le_us` each, the last of which is null), `other`, and `errors` by reason: a sense key, a status, or `aborted`";

const CORE: &[Field] = &[
    ("core", NUMBER, "Its number"),
    ("busy_s", SECONDS, "How long it has worked, or waited for a processor"),
    ("polling_s", SECONDS, "How long it has looked for work, and found none"),
    ("asleep_s", SECONDS, "How long it has slept"),
    ("sessions", NUMBER, "Sessions of targets that it serves"),
    ("tasks", NUMBER, "Commands in flight that are more than an answer from memory"),
    ("buffers_bytes", NUMBER, "What is in use of its I/O buffers"),
    ("buffers_max_bytes", NUMBER, "How large those are"),
];

const LUN: &[Field] = &[
    ("name", TEXT, "Its name"),
    ("store", TEXT, "Where its data is, as --lun has it"),
    ("size_bytes", NUMBER_OR_NONE, "Its size; null: its store has not been opened yet"),
    ("block_bytes", NUMBER, "Its logical block size"),
    ("physical_block_bytes", NUMBER, "Its physical block size"),
    ("serial", TEXT, "Unit serial number"),
    ("serial_lasts", SWITCH, "Whether that is the same at the next start"),
    ("product", TEXT, "Product identification"),
    ("read_only", SWITCH, "It cannot be written"),
    ("write_cache", SWITCH, "Write cache enabled at start"),
    ("thin", SWITCH, "Thin provisioned"),
    ("warn_at", TEXT_OR_NONE, "The part of its size at which its initiators are notified, such as \"80%\""),
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
    ("last_error", TEXT_OR_NONE, "Why its store was not open when that was last so"),
    ("used_bytes", NUMBER_OR_NONE, "What its store takes, where it is thin and that is known"),
    ("write_cache_enabled", SWITCH, "WCE, which initiators may change"),
    (
        "threshold_reached",
        &["boolean", "null"],
        "It takes as much as `warn_at` says; null: that is not configured",
    ),
    ("reservation", OBJECT_OR_NONE, "`type` and `holders` of the reservation, if there is one"),
    (
        "registrations",
        LIST,
        "Who is registered: `initiator`, `target_port`, `key`, and whether it `holds` the reservation",
    ),
    ("port_groups", LIST, "Its target port groups, each with `group` and the `state` that it is in"),
    (
        "gateway",
        OBJECT_OR_NONE,
        "Where several gateways share it: the `name` and `role` of this one, which is `active`, all `gateways`, clients that this one has \
         `shut_out`, each with `client` and `age_seconds`, and the `fault` that keeps it from being active",
    ),
];

const TARGET: &[Field] = &[
    ("name", TEXT, "Its iSCSI name"),
    ("alias", TEXT_OR_NONE, "Its alias"),
    ("sessions_max", NUMBER, "Sessions at most"),
    ("queue_depth", NUMBER_OR_NONE, "Commands that a session may have in flight"),
    ("portals", LIST, "Names of the portals that it is reached through"),
    ("luns", LIST, "The LUNs that it shows, each with `number` and `lun`"),
    ("groups", LIST, "Its groups, in their order"),
];

const GROUP: &[Field] = &[
    ("name", TEXT, "Its name"),
    ("initiators", LIST, "Patterns of names; none: any name"),
    ("networks", LIST, "Networks that initiators come from; none: any"),
    ("deny", SWITCH, "Its members are refused"),
    ("read_only", SWITCH, "All LUNs are read-only for them"),
    ("queue_depth", NUMBER_OR_NONE, "Commands that a session may have in flight; null: as the target says"),
    ("luns", LIST_OR_NONE, "LUNs of their own, each with `number` and `lun`; null: the target's"),
    ("chap", OBJECT_OR_NONE, "CHAP: `user`, `mutual_user`, `algorithms` (none: all)"),
    ("iops_max", NUMBER_OR_NONE, "Commands a second at most, of all members together"),
    ("iops_burst", NUMBER_OR_NONE, "How many of them may come at once; null: 20 ms' worth"),
    ("bytes_per_second_max", NUMBER_OR_NONE, "Bytes a second at most, of all members together"),
    ("bytes_burst", NUMBER_OR_NONE, "How many of them may come at once; null: 20 ms' worth"),
];

const PORTAL: &[Field] = &[
    ("name", TEXT, "Its name in the file, or the address and port there"),
    ("listen", TEXT, "The address and port in the file"),
    ("address", TEXT, "The address and port that are bound"),
    ("group", NUMBER, "Target portal group tag"),
    ("cores", TEXT, "Cores that take its connections"),
    ("transports", LIST, "iscsi, iser, srp"),
    ("rdma", &["boolean", "string"], "Whether RDMA devices listen; \"only\": TCP does not"),
    ("drain_s", SECONDS_OR_NONE, "It is drained: how long sessions have to log out"),
    ("redirect", TEXT_OR_NONE, "Where logins are sent"),
];

const PORTAL_GROUP: &[Field] = &[
    ("name", TEXT, "Its tag, for paths"),
    ("group", NUMBER, "Its tag"),
    ("state", TEXT, "The asymmetric access state that is configured; each LUN has the one that it is in"),
    ("preferred", SWITCH, "Initiators should prefer it"),
    ("explicit", SWITCH, "Initiators may set its state, each for a LUN"),
    ("port_ids", TEXT_OR_NONE, "What its ports are numbered by; null: all numbers"),
    ("portals", LIST, "Names of its portals"),
];

const SESSION: &[Field] = &[
    ("id", NUMBER, "Its number in the log; no other session of the daemon has it, or had it before"),
    ("initiator", TEXT, "The initiator's name; of AoE its address"),
    ("alias", TEXT_OR_NONE, "The alias that the initiator gave"),
    ("transport", TEXT, "iSCSI, iSER, SRP or AoE"),
    ("address", TEXT, "The initiator's address and port; of AoE its Ethernet address"),
    ("portal", TEXT_OR_NONE, "The address that it has connected to; null: AoE"),
    ("interface", TEXT_OR_NONE, "Of AoE: the network interface"),
    ("aoe", TEXT_OR_NONE, "Of AoE: the address of the unit"),
    ("target", TEXT_OR_NONE, "The target's name; null: a discovery session, or AoE"),
    ("isid", TEXT_OR_NONE, "Of iSCSI and iSER: the initiator's session id, in hexadecimal"),
    ("tsih", NUMBER_OR_NONE, "Of iSCSI and iSER: the target's session handle"),
    ("core", NUMBER, "The core that serves it"),
    ("state", TEXT, "serving, moving (to another core) or ending"),
    ("age_seconds", SECONDS, "How long ago its connection was accepted"),
    (
        "in_flight",
        NUMBER,
        "Commands that have come and not ended; one that is answered as it comes counts only until that has left",
    ),
    ("commands", NUMBER, "Commands that have come"),
    ("read_bytes", NUMBER, "Bytes that they were to read"),
    ("write_bytes", NUMBER, "Bytes that they were to write"),
    ("stats", OBJECT, STATS),
    ("keys", OBJECT, "What was negotiated"),
];

const STEPS: &[Field] = &[
    ("applied", SWITCH, "False: only shown (dry_run)"),
    ("steps", LIST, "What was done to whom, in this order"),
    ("warnings", LIST, "What is questionable about it"),
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
            "next": { "type": ["string", "integer", "null"], "description": "`after` of the next page; 409 if that has gone" },
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
