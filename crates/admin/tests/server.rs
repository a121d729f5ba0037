//! The server with well-behaved and misbehaving clients, on both kinds of listener.

use admin::{CONNECTIONS_MAX, Format, Hub, Listener, Readings, Refused, Server, Sessions, State};
use config::AdminAddress;
use reactor::cpu::{self, Snapshot, Times};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A request for the counters.
const GET: &str = "GET /v1/cpu HTTP/1.1\r\nHost: x\r\n\r\n";

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// No sessions.
struct Nobody;

impl Sessions for Nobody {
    fn list(&self) -> Result<Vec<Value>, Refused> {
        Ok(Vec::new())
    }

    fn end(&self, _: u64, _: bool, _: &str, _: &Hub) -> Result<Vec<String>, Refused> {
        Ok(Vec::new())
    }
}

impl Readings for Nobody {
    fn luns(&self, _: &BTreeSet<&str>) -> BTreeMap<String, Map<String, Value>> {
        BTreeMap::new()
    }

    fn cores(&self) -> Value {
        Value::Null
    }

    fn metrics(&self, _: Format, _: bool) -> Result<String, Refused> {
        Ok(String::new())
    }
}

/// Which LUNs each request read.
#[derive(Default)]
struct Asked(Mutex<Vec<Vec<String>>>);

impl Readings for Asked {
    fn luns(&self, names: &BTreeSet<&str>) -> BTreeMap<String, Map<String, Value>> {
        let names = names.iter().map(|name| name.to_string()).collect();
        self.0.lock().expect("nobody panics with it").push(names);
        BTreeMap::new()
    }

    fn cores(&self) -> Value {
        Value::Null
    }

    fn metrics(&self, _: Format, _: bool) -> Result<String, Refused> {
        Ok(String::new())
    }
}

/// Sessions whose list does not finish until allowed.
struct Held {
    begun: Sender<()>,
    may_end: Mutex<Receiver<()>>,
}

impl Sessions for Held {
    fn list(&self) -> Result<Vec<Value>, Refused> {
        self.begun.send(()).expect("the test counts them");
        let _ = self.may_end.lock().expect("one list at a time").recv();
        Ok(vec![serde_json::json!({ "id": 7 })])
    }

    fn end(&self, _: u64, _: bool, _: &str, _: &Hub) -> Result<Vec<String>, Refused> {
        Ok(Vec::new())
    }
}

/// A server in this process.
struct Served {
    server: Server,
    hub: Hub,
    _directory: TempDir,
}

impl Served {
    /// One on a socket in the file system, and one on an address.
    fn both() -> [Served; 2] {
        [
            Self::with(Arc::new(Nobody)),
            Self::at(Arc::new(Nobody), |_| AdminAddress::Tcp("127.0.0.1:0".parse().expect("an address"))),
        ]
    }

    /// One on a socket in the file system.
    fn with(sessions: Arc<dyn Sessions>) -> Served {
        Self::at(sessions, |directory| AdminAddress::Unix(directory.path().join("admin.sock")))
    }

    fn at(sessions: Arc<dyn Sessions>, address: impl Fn(&TempDir) -> AdminAddress) -> Served {
        Self::reading(sessions, Arc::new(Nobody), address)
    }

    fn reading(
        sessions: Arc<dyn Sessions>,
        readings: Arc<dyn Readings>,
        address: impl Fn(&TempDir) -> AdminAddress,
    ) -> Served {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let listener = Listener::bind(&address(&directory)).expect("a free place");
        let hub = Hub::new(|_| false, sessions, readings);
        Served { server: Server::start(listener, hub.clone()).expect("a thread"), hub, _directory: directory }
    }

    /// A client that follows events, after it has received the first.
    fn follow(&self) -> Box<dyn Stream> {
        let mut stream = self.connect();
        stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is taken");
        let mut begin = [0; 4096];
        let mut head = String::new();
        while !head.contains("retry: 2000") {
            let read = stream.read(&mut begin).expect("an answer");
            head += std::str::from_utf8(&begin[..read]).expect("text");
        }
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        stream
    }

    fn connect(&self) -> Box<dyn Stream> {
        match self.server.place().strip_prefix("http://") {
            Some(address) => Box::new(TcpStream::connect(address).expect("it listens")),
            None => Box::new(UnixStream::connect(self.server.place()).expect("it listens")),
        }
    }

    /// Everything returned for these bytes; ends also when the connection is cut off.
    fn answer(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may have closed the connection before all is written.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    fn snapshot(&self) -> Snapshot {
        let answer = self.answer(GET.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

#[test]
fn counters_are_those_of_the_kernel_and_only_grow() {
    for served in Served::both() {
        let own = || cpu::process(std::process::id()).expect("this process");
        let is_within = |low: Times, high: Times| low.user <= high.user && low.system <= high.system;
        let before = own();
        let (first, second) = (served.snapshot(), served.snapshot());
        let after = own();
        assert_eq!((first.pid, first.version.as_str()), (std::process::id(), env!("CARGO_PKG_VERSION")));
        assert!(is_within(before, first.times) && is_within(second.times, after), "{first:?}");
        assert!(is_within(first.times, second.times) && first.uptime_seconds <= second.uptime_seconds);
        assert!(first.threads.iter().any(|thread| thread.name == "admin" && thread.times.sum() >= 0.0));
        assert!(!first.cores.is_empty());
    }
}

#[test]
fn the_counters_are_there_only_to_be_read() {
    for (served, change) in Served::both().into_iter().zip(["405", "403"]) {
        for (request, status) in [
            ("GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("GET /v1/cpu/ HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("GET /../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("POST /v1/cpu HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", change),
            ("DELETE /v1/cpu HTTP/1.1\r\nHost: x\r\n\r\n", change),
        ] {
            let answer = served.answer(request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
    }
}

#[test]
fn only_luns_that_are_answered_are_read() {
    let asked = Arc::new(Asked::default());
    let socket = |directory: &TempDir| AdminAddress::Unix(directory.path().join("admin.sock"));
    let served = Served::reading(Arc::new(Nobody), asked.clone(), socket);
    let luns = ["a", "b", "c"].map(|name| serde_json::json!({ "name": name })).into();
    served.hub.publish(State { luns, ..State::default() });
    for (path, names) in
        [("/v1/luns?limit=1", &["a"][..]), ("/v1/luns/b", &["b"]), ("/v1/luns", &["a", "b", "c"])]
    {
        let answer = served.answer(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let read = std::mem::take(&mut *asked.0.lock().expect("nobody panics with it"));
        assert_eq!(read, [names], "{path}");
    }
}

#[test]
fn garbage_is_not_answered_and_harms_nobody() {
    for served in Served::both() {
        let fields = "X: y\r\n".repeat(1000);
        for garbage in [
            vec![0; 100],
            vec![0xff; 1 << 20],
            format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000)).into(),
            format!("GET /v1/cpu HTTP/1.1\r\n{fields}\r\n").into(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
        ] {
            let answer = served.answer(&garbage);
            assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
            served.snapshot();
        }
    }
}

#[test]
fn connections_that_say_nothing_lock_nobody_out_and_are_ended() {
    let both = Served::both();
    let mut idle = Vec::new();
    for served in &both {
        idle.extend((0..2 * CONNECTIONS_MAX).map(|_| served.connect()));
        let half = &GET.as_bytes()[..GET.len() / 2];
        idle.last_mut().expect("some").write_all(half).expect("half of a request");
        served.snapshot();
    }
    for mut stream in idle {
        let mut answer = Vec::new();
        // An end or a reset, but not an endless wait.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn a_client_that_does_not_read_its_events_is_dropped_with_a_message() {
    for served in Served::both() {
        let mut slow = served.follow();
        let large: Value = "x".repeat(64 << 10).into();
        // Far more than is kept for it, and than the kernel buffers.
        for _ in 0..1000 {
            served.hub.report("large", &large);
        }
        let mut all = Vec::new();
        slow.read_to_end(&mut all).expect("it ends");
        let text = String::from_utf8(all).expect("text");
        assert!(text.contains("event: large") && text.contains("event: dropped\ndata: {\"why\":"));
        assert!(text.matches("event: large").count() < 1000);
        served.snapshot();
        // Others can follow once those before have gone.
        (0..40).for_each(|_| drop(served.follow()));
    }
}

#[test]
fn connections_that_say_nothing_do_not_end_one_that_follows_events() {
    let served = Served::with(Arc::new(Nobody));
    let mut follower = served.follow();
    let _idle: Vec<_> = (0..2 * CONNECTIONS_MAX).map(|_| served.connect()).collect();
    // All of them have been accepted.
    served.snapshot();
    served.hub.report("happened", &"x".into());
    let mut read = String::new();
    let mut part = [0; 4096];
    while !read.contains("event: happened") {
        let count = follower.read(&mut part).expect("it is still there");
        assert_ne!(count, 0, "the stream was ended: {read}");
        read += std::str::from_utf8(&part[..count]).expect("text");
    }
}

#[test]
fn many_clients_that_ask_for_sessions_share_a_list_and_all_get_it() {
    const CLIENTS: usize = 30;
    let (begun, begins) = channel();
    let (release, may_end) = channel();
    let served = Served::with(Arc::new(Held { begun, may_end: Mutex::new(may_end) }));
    let ask = |path: &str| {
        let mut stream = served.connect();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("it is taken");
        stream
    };
    let mut clients = vec![ask("/v1/sessions")];
    begins.recv().expect("the first list begins");
    clients.extend((1..CLIENTS).map(|_| ask("/v1/sessions/7")));
    // They have been accepted: they wait for the first list to end.
    served.snapshot();
    drop(release);
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\"id\":7"), "{answer}");
    }
    let more = begins.try_iter().count();
    assert!(more < CLIENTS / 2, "{more} more lists for {CLIENTS} clients");
}
