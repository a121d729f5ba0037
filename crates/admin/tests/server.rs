//! The server, as good and bad clients meet it on both kinds of place.

use admin::{CONNECTIONS_MAX, Desk, Listener, Refused, Server, Sessions};
use config::AdminAddress;
use reactor::cpu::{self, Snapshot, Times};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tempfile::TempDir;

/// How a client asks for the counters.
const GET: &str = "GET /v1/cpu HTTP/1.1\r\nHost: x\r\n\r\n";

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// No sessions.
struct Nobody;

impl Sessions for Nobody {
    fn list(&self) -> Result<Vec<Value>, Refused> {
        Ok(Vec::new())
    }

    fn end(&self, _: u64, _: bool, _: &str) -> Result<Vec<String>, Refused> {
        Ok(Vec::new())
    }
}

/// A server of this process.
struct Served {
    server: Server,
    desk: Desk,
    _folder: TempDir,
}

impl Served {
    /// One on a socket in the file system, and one on an address.
    fn both() -> [Served; 2] {
        let start = |address: &dyn Fn(&TempDir) -> AdminAddress| {
            let folder = tempfile::tempdir().expect("a temporary directory");
            let listener = Listener::bind(&address(&folder)).expect("a free place");
            let desk = Desk::new(|_| false, Arc::new(Nobody));
            Served { server: Server::start(listener, desk.clone()).expect("a thread"), desk, _folder: folder }
        };
        [
            start(&|folder| AdminAddress::Unix(folder.path().join("admin.sock"))),
            start(&|_| AdminAddress::Tcp("127.0.0.1:0".parse().expect("an address"))),
        ]
    }

    fn connect(&self) -> Box<dyn Stream> {
        match self.server.place().strip_prefix("http://") {
            Some(address) => Box::new(TcpStream::connect(address).expect("it listens")),
            None => Box::new(UnixStream::connect(self.server.place()).expect("it listens")),
        }
    }

    /// All that comes back for these bytes; a connection that is cut short ends it, too.
    fn answer(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may have seen enough before all is written.
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
fn only_the_counters_are_there_and_only_to_be_read() {
    for served in Served::both() {
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("GET /v1/cpu/ HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("GET /../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
            ("POST /v1/cpu HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", "405"),
            ("DELETE /v1/cpu HTTP/1.1\r\nHost: x\r\n\r\n", "405"),
        ] {
            let answer = served.answer(request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
        }
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
        // An end, or a reset: not a wait for ever.
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn who_follows_events_and_does_not_read_them_is_dropped_with_a_word() {
    for served in Served::both() {
        let follow = || {
            let mut stream = served.connect();
            stream.write_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is taken");
            let mut begin = [0; 4096];
            let mut head = String::new();
            while !head.contains("retry: 2000") {
                let read = stream.read(&mut begin).expect("an answer");
                head += std::str::from_utf8(&begin[..read]).expect("text");
            }
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            stream
        };
        let mut slow = follow();
        let large: Value = "x".repeat(64 << 10).into();
        // Far more than what is kept for it, and what the kernel holds.
        for _ in 0..1000 {
            served.desk.tell("large", &large);
        }
        let mut all = Vec::new();
        slow.read_to_end(&mut all).expect("it ends");
        let text = String::from_utf8(all).expect("text");
        assert!(text.contains("event: large") && text.contains("event: dropped\ndata: {\"why\":"));
        assert!(text.matches("event: large").count() < 1000);
        served.snapshot();
        // Others get in when those that followed have gone.
        (0..40).for_each(|_| drop(follow()));
    }
}
