//! Events of a daemon, as a client of its API follows them.

use super::reload::Served;
use crate::support::initiator::{Initiator, reserve_out, write_cdb};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const LUNS: &str = "[[lun]]\nname = \"f\"\nfile = \"./f.img\"\nsize = \"1M\"\n\
    [[lun]]\nname = \"ro\"\nram = \"1M\"\nread_only = true\n\
    [[lun]]\nname = \"thin\"\nram = \"4M\"\nwarn_at = \"50%\"\n";
const LIST: &str = ", \"f\", \"ro\", \"thin\"";

/// A client that follows events.
struct Follower(BufReader<UnixStream>);

struct Event {
    id: String,
    kind: String,
    data: Value,
}

impl Follower {
    fn start(socket: &Path, fields: &str) -> Follower {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let request = format!("GET /v1/events HTTP/1.1\r\nHost: x\r\n{fields}\r\n");
        stream.write_all(request.as_bytes()).expect("a request is taken");
        let mut follower = Follower(BufReader::new(stream));
        assert_eq!(follower.line(), "HTTP/1.1 200 OK");
        let head: Vec<String> =
            std::iter::repeat_with(|| follower.line()).take_while(|line| !line.is_empty()).collect();
        assert!(head.iter().any(|field| field == "content-type: text/event-stream"), "{head:?}");
        follower
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line comes");
        assert!(!line.is_empty(), "the stream has ended");
        line.trim_end().to_owned()
    }

    /// The next event; the framing is skipped.
    fn next(&mut self) -> Event {
        let (mut id, mut kind) = (String::new(), String::new());
        loop {
            let line = self.line();
            match line.split_once(": ") {
                Some(("id", text)) => id = text.to_owned(),
                Some(("event", text)) => kind = text.to_owned(),
                Some(("data", text)) => {
                    let data = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
                    return Event { id, kind, data };
                }
                _ => {}
            }
        }
    }

    /// The next of a kind.
    fn until(&mut self, kind: &str) -> Event {
        std::iter::repeat_with(|| self.next()).find(|event| event.kind == kind).expect("it comes")
    }
}

/// A LUN reaches its threshold; the file of another is truncated and comes back.
fn fill_and_lose_stores(served: &Served, one: &mut Initiator, follower: &mut Follower) {
    one.ready(3).expect("the unit is ready");
    for lba in (0..4096).step_by(128) {
        one.write_blocks(3, lba, 512, &[1; 65536], false).expect("WRITE");
    }
    let reached = follower.until("threshold_reached").data;
    assert!(reached["lun"] == "thin" && reached["warn_at"] == "50%", "{reached}");

    let file =
        OpenOptions::new().write(true).open(served.directory.path().join("f.img")).expect("it is there");
    file.set_len(0).expect("it is cut off");
    let lost = follower.until("store_lost").data;
    assert!(
        lost["lun"] == "f" && lost["why"].as_str().is_some_and(|why| why.contains("it is empty now")),
        "{lost}"
    );
    file.set_len(1 << 20).expect("it is back");
    assert_eq!(follower.until("store_back").data["lun"], "f");
}

/// An administrator's changes: one that is made, a reload, and one that is refused.
fn change(served: &Served, follower: &mut Follower) {
    served.must(&["lun", "set", "kept", "iops_max=1000"]);
    let set = follower.until("change").data;
    assert!(set["what"] == "set iops_max of LUN kept" && set["outcome"] == "done", "{set}");
    assert!(set["who"].as_str().is_some_and(|who| who.starts_with("uid 0, pid ")), "{set}");
    served.must(&["reload"]);
    assert_eq!(follower.until("change").data["what"], "reload");
    served.ask(&["lun", "remove", "none"]);
    let refused = follower.until("change").data;
    assert_eq!(refused["outcome"], "not found; nothing was changed", "{refused}");
}

#[test]
fn what_happens_is_followed_as_it_happens_and_who_comes_back_misses_nothing() {
    let served = Served::with(LUNS, LIST);
    let socket = served.directory.path().join("admin.sock");
    let mut follower = Follower::start(&socket, "");
    let ends_with = |value: &Value, end: &str| value.as_str().is_some_and(|text| text.ends_with(end));

    let mut one = served.session("one");
    let begun = follower.until("session_begun");
    assert!(
        ends_with(&begun.data["initiator"], ":one") && begun.data["transport"] == "iSCSI",
        "{}",
        begun.data
    );
    assert!(ends_with(&begun.data["time"], "Z"), "{}", begun.data);

    let mut two = served.session("two");
    let registered = [reserve_out(&mut one, 0, 0, 0, 0, 0xA), reserve_out(&mut two, 0, 0, 0, 0, 0xB)];
    let preempted = [reserve_out(&mut one, 0, 1, 1, 0xA, 0), reserve_out(&mut two, 0, 4, 1, 0xB, 0xA)];
    assert_eq!((registered, preempted), ([0; 2], [0; 2]), "REGISTER, RESERVE, PREEMPT");
    let preempted = follower.until("preempted").data;
    assert!(preempted["lun"] == "kept" && ends_with(&preempted["by"], ":two"), "{preempted}");

    one.ready(2).expect("the unit is ready");
    for _ in 0..5 {
        let refused = one.write(2, write_cdb(0, 512, 512, false), &[0; 512]).expect("an answer");
        assert_eq!(refused.sense_key(), Some(7), "DATA PROTECT");
    }
    let mut count = 0;
    while count < 5 {
        let errors = follower.until("errors").data;
        assert!(errors["lun"] == "ro" && errors["last"].is_string(), "{errors}");
        count += errors["count"].as_u64().expect("a number");
    }
    assert_eq!(count, 5);

    fill_and_lose_stores(&served, &mut one, &mut follower);
    change(&served, &mut follower);

    two.logout().expect("an answer");
    assert_eq!(follower.until("session_ended").data["reason"], "logged out");
    served.must(&["disconnect", &begun.data["session"].to_string()]);
    // Cores and the administrator's thread report them, in either order.
    let mut last = Vec::new();
    while last.len() < 2 {
        last.extend(
            Some(follower.next()).filter(|event| ["session_ended", "change"].contains(&&*event.kind)),
        );
    }
    let of = |kind: &str| last.iter().find(|event| event.kind == kind).expect("one of each");
    let (ended, changed) = (of("session_ended"), &of("change").data);
    assert_eq!(ended.data["reason"], "an administrator disconnected it");
    let what = format!("disconnect session {}", begun.data["session"]);
    assert!(changed["what"] == what.as_str() && changed["outcome"] == "done", "{changed}");
    assert!(changed["who"].as_str().is_some_and(|who| who.starts_with("uid 0, pid ")), "{changed}");
    assert!(changed["steps"][0].as_str().is_some_and(|step| step.starts_with(&what)), "{changed}");
    assert!(ended.data["write_bytes"].as_u64().is_some_and(|bytes| bytes >= 2 << 20), "{}", ended.data);

    let mut resumed = Follower::start(&socket, &format!("Last-Event-ID: {}\r\n", begun.id));
    let mut kinds = Vec::new();
    loop {
        let event = resumed.next();
        kinds.push(event.kind);
        if event.id == ended.id {
            break;
        }
    }
    assert_eq!((kinds[0].as_str(), kinds[1].as_str()), ("session_begun", "preempted"), "{kinds:?}");
    assert!(kinds.iter().all(|kind| kind != "missed"), "{kinds:?}");
    served.daemon.stop();
}
