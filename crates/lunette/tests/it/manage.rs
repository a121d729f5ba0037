//! What a daemon serves, changed by commands and over its API: also in its file, if it has one.

use super::reload::{Served, ask, numbers};
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use wire::scsi::command::ReadCapacity16;

/// An answer of the API.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn tag(&self) -> String {
        let line = self.head.lines().find_map(|line| line.strip_prefix("etag: "));
        line.unwrap_or_else(|| panic!("no entity tag: {}", self.head)).to_owned()
    }
}

pub(crate) fn request(socket: &Path, method: &str, path: &str, fields: &str, body: &str) -> Answer {
    converse(UnixStream::connect(socket).expect("it listens"), method, path, fields, body)
}

/// A request and its answer over a connection.
pub(crate) fn converse(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    fields: &str,
    body: &str,
) -> Answer {
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{fields}\r\n{body}");
    stream.write_all(request.as_bytes()).expect("a request is taken");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
    let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.into(), body: body.into() }
}

fn text(served: &Served) -> String {
    fs::read_to_string(served.file()).expect("the file is there")
}

#[test]
fn a_lun_is_added_and_removed_in_the_file_and_for_a_session_that_was_there() {
    let served = Served::with("", "");
    let mut session = served.session("early");
    let before = text(&served);
    let spec = format!("file:{}/b.img,size=1M,name=b,serial=B", served.directory.path().display());
    let dry = served.must(&["lun", "add", &spec, "--dry-run"]);
    assert!(dry.contains("LUN 1 is b\n2 steps; nothing was changed"), "{dry}");
    assert_eq!(text(&served), before);

    served.must(&["lun", "add", &spec]);
    assert_eq!(numbers(&mut session), [0, 1]);
    session.ready(1).expect("the new unit is ready");
    let with = text(&served);
    assert!(with.starts_with("# Of the test.\n") && with.contains("name = \"kept\" # it stays\n"), "{with}");
    assert!(
        with.contains("serial = \"B\"\nsize = \"1M\"\n") && with.contains("luns = [\"kept\", \"b\"]"),
        "{with}"
    );
    let listed = served.must(&["lun", "list"]);
    assert!(listed.contains("b: file:") && listed.contains(", 1 MiB, serial B\n"), "{listed}");
    assert!(served.must(&["reload"]).contains("Nothing to change."), "the file says what runs");

    served.must(&["lun", "remove", "b"]);
    assert_eq!(numbers(&mut session), [0]);
    assert_eq!(text(&served), before, "the file is what it was");
    assert!(served.directory.path().join("b.img").exists(), "the disk stays");
    let log = served.daemon.stop();
    assert!(
        log.contains("admin: add LUN b: done who=\"uid 0, pid ") && log.contains("admin: remove LUN b: done"),
        "{log}"
    );
}

#[test]
fn what_is_refused_leaves_file_and_daemon_as_they_were() {
    let served = Served::with("", "");
    let mut session = served.session("stayer");
    let before = text(&served);
    let shown = served.must(&["config", "show"]);
    for (arguments, status, named) in [
        (&["lun", "add", "ram:1M,name=kept"][..], 1, "LUN kept: it already exists"),
        (&["lun", "add", "file:/nonexistent/a,name=b"], 1, "a LUN cannot be opened; nothing was changed"),
        (&["lun", "add", "ram:1000"], 2, "bytes are not a whole number of 512-byte blocks"),
        (
            &["lun", "set", "kept", "blocksize=512"],
            2,
            "lun[0].blocksize: unknown key; did you mean `block_size`?",
        ),
        (
            &["lun", "set", "kep", "thin=off"],
            2,
            "LUN kep: there is none with that name; did you mean `kept`?",
        ),
        (&["lun", "set", "kept", "ram=1M"], 1, "it is in memory, and its replacement would be empty"),
        (&["lun", "remove", "kept"], 2, "lun: there are none, so nothing would be served"),
        (
            &["group", "add", "iqn.2026-11.a:x", "g"],
            2,
            "target iqn.2026-11.a:x: there is none with that name",
        ),
    ] {
        let outcome = served.ask(arguments);
        assert_eq!(
            outcome.status.and_then(|ended| ended.code()),
            Some(status),
            "{arguments:?}: {}",
            outcome.text
        );
        assert!(outcome.text.contains(named), "{arguments:?}: {}", outcome.text);
        assert_eq!(text(&served), before);
    }
    assert_eq!(served.must(&["config", "show"]), shown);
    assert_eq!(numbers(&mut session), [0]);
    let left: Vec<_> = fs::read_dir(served.directory.path()).expect("it is there").collect();
    assert_eq!(left.len(), 3, "file, socket and its lock: {left:?}");
    served.daemon.stop();
}

#[test]
fn two_editors_do_not_overwrite_each_other() {
    let served = Served::with("", "");
    let socket = served.directory.path().join("admin.sock");
    let seen = request(&socket, "GET", "/v1/luns/kept", "", "").tag();
    let add = |name: &str, tag: &str| {
        let body = format!("{{\"name\": \"{name}\", \"ram\": \"1M\"}}");
        request(&socket, "POST", "/v1/luns", &format!("If-Match: {tag}\r\n"), &body)
    };
    let first = add("b", &seen);
    assert_eq!(first.status, 200, "{}", first.body);
    let second = add("c", &seen);
    assert_eq!(second.status, 412, "{}", second.body);
    assert!(second.head.contains("application/problem+json"), "{}", second.head);
    assert_eq!(second.json()["problems"][0]["place"], "If-Match");
    assert_eq!(add("c", &first.tag()).status, 200);

    let by_hand = text(&served).replace("# Of the test.", "# Of the test, and of somebody's.");
    fs::write(served.file(), &by_hand).expect("a file");
    let outcome = served.ask(&["lun", "remove", "c"]);
    assert!(
        outcome.text.contains("has changed since the daemon read it; run lunette reload first"),
        "{}",
        outcome.text
    );
    assert_eq!(text(&served), by_hand);
    served.must(&["reload"]);
    served.must(&["lun", "remove", "c"]);
    assert!(text(&served).starts_with("# Of the test, and of somebody's."));
    served.daemon.stop();
}

#[test]
fn a_daemon_without_a_file_is_changed_as_long_as_it_runs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("admin.sock");
    let daemon = Daemon::serve(["--admin", socket.to_str().expect("a plain path"), "--lun", "ram:1M"]);
    let mut session = Initiator::login(&daemon.lun(0), &Login::named("early")).expect("login");
    session.ready(0).expect("the unit is ready");
    let done = ask(&socket, &["lun", "add", "ram:2M", "--number", "5"]).expect_success("it is added");
    assert!(
        done.contains("warning: the daemon was started without a configuration file: this change is lost"),
        "{done}"
    );
    assert_eq!(numbers(&mut session), [0, 5]);
    let shown = ask(&socket, &["config", "show"]).expect_success("it is shown");
    assert!(shown.contains("luns = [\"lun0\", { lun = \"lun1\", number = 5 }]"), "{shown}");
    ask(&socket, &["lun", "remove", "lun0"]).expect_success("it is removed");
    assert_eq!(numbers(&mut session), [5]);
    daemon.stop();
}

#[test]
fn the_api_is_what_its_document_says() {
    let served = Served::with("", "");
    let socket = served.directory.path().join("admin.sock");
    served.must(&["group", "add", "iqn.2026-11.io.lunette:disk", "g"]);
    let session = served.session("one");
    let id = request(&socket, "GET", "/v1/sessions", "", "").json()["items"][0]["id"].to_string();
    let document = request(&socket, "GET", "/v1/openapi.json", "", "").json();
    let paths = document["paths"].as_object().expect("paths");
    for (path, operations) in paths {
        let real = path
            .replace("/v1/portal-groups/{group}", "/v1/portal-groups/1")
            .replace("{target}", "iqn.2026-11.io.lunette:disk")
            .replace("{lun}", "kept")
            .replace("{group}", "g")
            .replace("{session}", &id);
        for method in ["GET", "POST", "PATCH", "PUT", "DELETE"] {
            let described = !operations[method.to_lowercase()].is_null();
            if path == "/v1/events" && method == "GET" {
                // Its answer never ends.
                assert!(described);
                continue;
            }
            // Without effect: the body is empty, or the configuration has changed.
            let answer = request(&socket, method, &format!("{real}?dry_run"), "If-Match: \"none\"\r\n", "");
            assert_eq!(answer.status != 405, described, "{method} {path}: {}", answer.body);
            assert!(answer.status != 404, "{method} {path}: {}", answer.body);
        }
        let schema = &operations["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        if schema.is_object() {
            has_schema(&document, schema, &request(&socket, "GET", &real, "", "").json(), path);
        }
    }
    assert_eq!(request(&socket, "GET", "/v1/nothing", "", "").status, 404);
    let page = request(&socket, "GET", "/v1/luns?limit=1", "", "").json();
    assert_eq!(page["items"][0]["name"], "kept", "{page}");
    assert!(page["next"].is_null(), "{page}");
    assert_eq!(request(&socket, "GET", "/v1/luns?limit=0", "", "").status, 400);
    drop(session);
    served.daemon.stop();
}

/// An answer has the documented fields, each of its type, and no others.
fn has_schema(document: &Value, schema: &Value, answer: &Value, path: &str) {
    let name = |schema: &Value| schema["$ref"].as_str().map(|name| name.trim_start_matches('#').to_owned());
    let schema = name(schema).map_or(schema, |name| document.pointer(&name).expect("it is described"));
    let kinds = |schema: &Value| match &schema["type"] {
        Value::String(kind) => vec![kind.clone()],
        Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().expect("a type").to_owned()).collect(),
        other => panic!("{path}: {other}"),
    };
    let kind = match answer {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = kinds(schema);
    let is_number = kind == "integer" && allowed.iter().any(|allowed| allowed == "number");
    assert!(is_number || allowed.iter().any(|allowed| allowed == kind), "{path}: {answer} is no {allowed:?}");
    for item in answer.as_array().into_iter().flatten().filter(|_| schema["items"].is_object()) {
        has_schema(document, &schema["items"], item, path);
    }
    let Some(fields) = schema["properties"].as_object() else { return };
    let answered: Vec<&String> = answer.as_object().into_iter().flatten().map(|(name, _)| name).collect();
    assert_eq!(answered, fields.keys().collect::<Vec<_>>(), "{path}");
    fields.iter().for_each(|(field, schema)| {
        has_schema(document, schema, &answer[field], &format!("{path}: {field}"));
    });
}

#[test]
fn all_that_was_set_is_shown() {
    let served = Served::with("", "");
    served.must(&[
        "lun",
        "set",
        "kept",
        "iops_max=500",
        "bytes_per_second_max=10M",
        "bytes_burst=1M",
        "warn_at=80%",
    ]);
    served.must(&["target", "set", "iqn.2026-11.io.lunette:disk", "queue_depth=16"]);
    let group =
        ["group", "add", "iqn.2026-11.io.lunette:disk", "g", "queue_depth=8", "iops_max=7", "iops_burst=9"];
    served.must(&group);
    let listed = served.must(&["lun", "list"]);
    let limits = "at most 500 commands a second, at most 10 MiB a second (1 MiB at once), warns at 80%\n";
    assert!(listed.contains(limits), "{listed}");
    let socket = served.directory.path().join("admin.sock");
    let lun = request(&socket, "GET", "/v1/luns/kept", "", "").json();
    let shown = json!([lun["iops_max"], lun["iops_burst"], lun["bytes_burst"], lun["warn_at"]]);
    assert_eq!(shown, json!([500, null, 1 << 20, "80%"]), "{lun}");
    let target = request(&socket, "GET", "/v1/targets/iqn.2026-11.io.lunette:disk", "", "").json();
    let group = &target["groups"][0];
    let shown = json!([target["queue_depth"], group["queue_depth"], group["iops_max"], group["iops_burst"]]);
    assert_eq!(shown, json!([16, 8, 7, 9]), "{target}");
    served.daemon.stop();
}

#[test]
fn a_queue_depth_limits_the_sessions_that_begin_from_then_on() {
    const TARGET: &str = "iqn.2026-11.io.lunette:disk";
    let served = Served::with("", "");
    let mut early = served.session("early");
    let window = early.window();
    assert!(window > 16, "{window}");
    served.must(&["target", "set", TARGET, "queue_depth=16"]);
    assert_eq!(served.session("late").window(), 16);
    served.must(&["group", "add", TARGET, "g", "queue_depth=8"]);
    assert_eq!(served.session("later").window(), 8);
    served.must(&["group", "set", TARGET, "g", "queue_depth=4"]);
    let mut last = served.session("last");
    assert_eq!(last.window(), 4);
    for session in [&mut early, &mut last] {
        let before = session.window();
        session.ready(0).expect("it continues");
        assert_eq!(session.window(), before);
    }
    served.daemon.stop();
}

#[test]
fn over_tcp_the_daemon_is_only_read() {
    let daemon = Daemon::serve(["--admin", "127.0.0.1:0", "--lun", "ram:1M"]);
    let place =
        daemon.banner().lines().find_map(|line| line.strip_prefix("Admin ")).expect("a place").to_owned();
    let shown = ask(Path::new(&place), &["config", "show"]).expect_success("it is shown");
    assert!(shown.contains("ram = \"1M\""), "{shown}");
    let refused = ask(Path::new(&place), &["lun", "add", "ram:1M"]);
    assert!(refused.text.contains("over TCP the daemon is read-only"), "{}", refused.text);
    let mut session = Initiator::login(&daemon.lun(0), &Login::named("stayer")).expect("login");
    let listed = ask(Path::new(&place), &["sessions"]).expect_success("it is shown");
    let id = listed.lines().nth(1).and_then(|line| line.split_whitespace().next()).expect("a number");
    let refused = ask(Path::new(&place), &["disconnect", id]);
    assert!(refused.text.contains("over TCP the daemon is read-only"), "{}", refused.text);
    session.ready(0).expect("it is still there");
    daemon.stop();
}

/// READ CAPACITY(16) (SBC-4 section 5.20), in bytes, after unit attentions.
fn capacity(session: &mut Initiator, lun: u16) -> u64 {
    let response = session.read(lun, ReadCapacity16::new(32), 32).expect("an answer");
    assert_eq!(response.status, 0, "{response:?}");
    let last = u64::from_be_bytes(response.data[..8].try_into().expect("eight bytes"));
    let block = u32::from_be_bytes(response.data[8..12].try_into().expect("four bytes"));
    (last + 1) * u64::from(block)
}

/// Additional sense code and qualifier of the next unit attention.
fn attention(session: &mut Initiator, lun: u16) -> Option<[u8; 2]> {
    let response = session.read(lun, &[0; 6], 0).expect("an answer");
    (response.status != 0).then(|| [response.sense[12], response.sense[13]])
}

#[test]
fn a_disk_comes_with_chap_for_one_initiator_grows_is_limited_and_goes() {
    const TARGET: &str = "iqn.2026-11.io.lunette:db";
    let served = Served::with("", "");
    let (directory, portal) = (served.directory.path(), served.daemon.lun(0).portal);
    let secret = directory.join("secret");
    fs::write(&secret, "0123456789abcdef\n").expect("a file");
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its owner");
    served.must(&["target", "add", TARGET, "luns="]);
    let spec = format!("file:{}/db.img,size=1M,name=db,serial=DB", directory.display());
    served.must(&["lun", "add", &spec, "--target", TARGET]);
    let file = format!("chap.secret_file={}", secret.display());
    served.must(&["group", "add", TARGET, "hosts", "initiators=iqn.2026-11.a:host", "chap.user=db", &file]);

    let inquiry = |login: &str, name: &str| {
        let url = format!("iscsi://{login}{portal}/{TARGET}/0?initiator_name={name}");
        ask(Path::new("none"), &["inquiry", &url])
    };
    let allowed = || inquiry("db%0123456789abcdef@", "iqn.2026-11.a:host");
    let has_size = |size: &str| {
        let text = allowed().expect_success("it is let in");
        let line = text.lines().find(|line| line.trim_start().starts_with("capacity"));
        assert!(line.is_some_and(|line| line.contains(size)), "{text}");
    };
    has_size("1 MiB");
    for (login, name) in [
        ("", "iqn.2026-11.a:host"),
        ("db%another-secret-1@", "iqn.2026-11.a:host"),
        ("db%0123456789abcdef@", "iqn.2026-11.a:guest"),
    ] {
        let refused = inquiry(login, name);
        assert!(!refused.status.expect("it ends").success(), "{}", refused.text);
    }
    served.must(&["lun", "resize", "db", "3M"]);
    has_size("3 MiB");
    assert_eq!(directory.join("db.img").metadata().expect("it is there").len(), 3 << 20);
    served.must(&["lun", "set", "db", "iops_max=1000", "bytes_per_second_max=10M"]);
    assert!(text(&served).contains("iops_max = 1000\n"), "{}", text(&served));
    served.must(&["target", "remove", TARGET]);
    served.must(&["lun", "remove", "db"]);
    assert!(!allowed().status.expect("it ends").success());
    assert!(served.must(&["reload"]).contains("Nothing to change."));
    served.daemon.stop();
}

#[test]
fn a_disk_that_grows_or_becomes_read_only_notifies_each_session_once() {
    let served = Served::with("", "");
    let spec = format!("file:{}/b.img,size=1M,name=b,serial=B", served.directory.path().display());
    served.must(&["lun", "add", &spec]);
    let mut session = served.session("early");
    session.ready(1).expect("the unit is ready");
    let dry = served.must(&["lun", "resize", "b", "2M", "--dry-run"]);
    assert!(dry.contains("change size of LUN b\n1 step; nothing was changed"), "{dry}");
    served.must(&["lun", "resize", "b", "2M"]);
    // CAPACITY DATA HAS CHANGED, MODE PARAMETERS CHANGED (SPC-4 annex D).
    assert_eq!(attention(&mut session, 1), Some([0x2a, 0x09]));
    assert_eq!(attention(&mut session, 1), None);
    assert_eq!(capacity(&mut session, 1), 2 << 20);
    assert!(served.must(&["lun", "list"]).contains("b.img, 2 MiB, serial B"), "it is listed so");
    served.must(&["lun", "set", "b", "read_only=true"]);
    assert_eq!(attention(&mut session, 1), Some([0x2a, 0x01]));
    assert_eq!(attention(&mut session, 0), None, "the other has nothing to report");
    let refused = served.ask(&["lun", "resize", "b", "1M"]);
    assert!(
        refused.text.contains("it would become smaller") && refused.text.contains("--yes-lose-data"),
        "{}",
        refused.text
    );
    assert_eq!(capacity(&mut session, 1), 2 << 20);
    let done = served.must(&["lun", "resize", "b", "1M", "--yes-lose-data"]);
    assert!(done.contains("b.img to 1048576 bytes\nadd LUN b (file:"), "{done}");
    session.ready(1).expect("it is back");
    assert_eq!(capacity(&mut session, 1), 1 << 20);
    assert_eq!(served.directory.path().join("b.img").metadata().expect("it is there").len(), 1 << 20);
    served.daemon.stop();
}

#[test]
fn no_other_disk_is_cut_off_and_none_is_replaced_by_a_new_one_because_its_file_is_elsewhere() {
    let served = Served::with("", "");
    let file = |name: &str| served.directory.path().join(format!("{name}.img"));
    for name in ["a", "b"] {
        let spec = format!("file:{},size=2M,name={name},serial={name}", file(name).display());
        served.must(&["lun", "add", &spec]);
    }
    let grown = fs::OpenOptions::new().write(true).open(file("a")).expect("it is there");
    grown.set_len(4 << 20).expect("it grows");
    served.must(&["lun", "resize", "b", "1M", "--yes-lose-data"]);
    let length = |name: &str| file(name).metadata().expect("it is there").len();
    assert_eq!((length("a"), length("b")), (4 << 20, 1 << 20));

    fs::rename(file("a"), file("moved")).expect("it moves");
    for other in [false, true] {
        if other {
            fs::write(file("a"), [0; 512]).expect("another file");
        }
        let refused = served.ask(&["lun", "set", "a", "block_size=4096"]);
        assert!(refused.text.contains("data would be lost; nothing was changed"), "{}", refused.text);
    }
    assert_eq!((length("a"), length("moved")), (512, 4 << 20));
    fs::rename(file("moved"), file("a")).expect("it moves back");
    served.daemon.stop();
}
