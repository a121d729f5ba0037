//! The admin interface of a running daemon, and `lunette bench` asking it for the target's CPU time.

use crate::support::daemon::Daemon;
use crate::support::tools::run;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A core that always polls uses CPU time however short the run is.
const BUSY: [&str; 6] = ["--lun", "ram:16M", "--cores", "0", "--poll", "always"];

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("admin.sock");
    (directory, path)
}

fn daemon(admin: &str) -> Daemon {
    Daemon::serve([&BUSY[..], &["--admin", admin]].concat())
}

/// Where the banner says that the admin interface is.
fn place(daemon: &Daemon) -> &str {
    let line = daemon.banner().lines().find_map(|line| line.strip_prefix("Admin "));
    line.unwrap_or_else(|| panic!("no place in:\n{}", daemon.banner()))
}

/// What a short run with the admin interface reports: its JSON.
fn measured(target: &str, admin: &str) -> Value {
    let output = Daemon::command()
        .args(["bench", target, "--target-admin", admin, "--runtime", "1s", "--ramp", "0", "--json"])
        .env_remove("RUST_LOG")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["lunette"]["result"].clone()
}

#[test]
fn a_run_reports_the_target_s_cpu_and_threads_over_both_kinds_of_place() {
    let (_directory, path) = directory();
    for admin in [path.to_str().expect("a plain path"), "127.0.0.1:0"] {
        let daemon = daemon(admin);
        let place = place(&daemon);
        assert_eq!(place.starts_with("http://127.0.0.1:"), !admin.contains('/'), "{place}");
        let result = measured(&daemon.lun(0).to_string(), place);
        let seconds = |part: &str| result["target_cpu"][part].as_f64().expect("seconds");
        assert!(seconds("user_seconds") + seconds("system_seconds") > 0.0, "{result}");
        assert!(seconds("us_per_op") > 0.0 && result["target_cpu_lost"].is_null(), "{result}");
        let threads = result["threads"].as_array().expect("threads").iter();
        let mut names = threads.filter(|thread| thread["side"] == "target").map(|thread| &thread["name"]);
        assert!(names.any(|name| name == "core-0"), "{result}");
        let samples = result["series"].as_array().expect("samples");
        assert!(samples.iter().any(|sample| sample["target_cores"].is_number()), "{result}");
        daemon.stop();
    }
}

#[test]
fn a_target_that_stops_answering_costs_only_its_cpu() {
    let (_directory, path) = directory();
    let daemon = daemon(path.to_str().expect("a plain path"));
    let (_other, front) = directory();
    let listener = UnixListener::bind(&front).expect("a free place");
    let relay = std::thread::spawn({
        let path = path.clone();
        move || {
            for _ in 0..3 {
                relay(listener.accept().expect("bench asks").0, &path);
            }
        }
    });
    let result = measured(&daemon.lun(0).to_string(), front.to_str().expect("a plain path"));
    relay.join().expect("it answered as often as it should");
    assert!(result["target_cpu"].is_null(), "{result}");
    let reason = result["target_cpu_lost"].as_str().expect("a reason");
    assert!(reason.contains("refused"), "{reason}");
    assert!(result["read"]["operations"].as_u64().expect("a number") > 0, "{result}");
}

/// Passes one request and its answer on.
fn relay(mut client: UnixStream, path: &Path) {
    let mut request = [0; 1024];
    let count = client.read(&mut request).expect("a request");
    let mut target = UnixStream::connect(path).expect("it listens");
    target.write_all(&request[..count]).expect("the request is taken");
    std::io::copy(&mut target, &mut client).expect("the answer is taken");
}

#[test]
fn a_socket_goes_at_an_orderly_end_and_a_dead_one_is_replaced() {
    let (_directory, path) = directory();
    let admin = path.to_str().expect("a plain path");
    daemon(admin).kill9();
    assert!(path.exists(), "nobody could remove it");
    let second = daemon(admin);
    let mut third = Daemon::command();
    let third =
        run(third.args(["serve", "--listen", "127.0.0.1:0", "--admin", admin]), Duration::from_secs(120));
    assert_eq!(third.status.and_then(|status| status.code()), Some(1), "{}", third.text);
    assert!(third.text.contains("another process serves it"), "{}", third.text);
    UnixStream::connect(&path).expect("the second one is still there");
    second.stop();
    assert!(!path.exists());
}

#[test]
fn clients_that_are_idle_or_write_garbage_do_not_stop_a_run() {
    let daemon = daemon("127.0.0.1:0");
    let place = place(&daemon).trim_start_matches("http://");
    let mut noise = crate::support::Noise(7);
    let _idle: Vec<TcpStream> = (0..100)
        .map(|index| {
            let mut stream = TcpStream::connect(place).expect("it listens");
            if index % 2 == 0 {
                // It may have been ended for one that came later.
                let _ = stream.write_all(&noise.bytes(100));
            }
            stream
        })
        .collect();
    // Connections are taken in their order: once this one has its answer, none of the others waits any more.
    let mut patient = TcpStream::connect(place).expect("it listens");
    patient.write_all(b"GET /v1/cpu HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request is taken");
    let mut answer = String::new();
    patient.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let result = measured(&daemon.lun(0).to_string(), place);
    assert!(result["target_cpu"]["us_per_op"].as_f64().expect("it is known") > 0.0, "{result}");
    daemon.stop();
}

#[test]
fn a_wrong_place_is_refused_before_anything_is_served() {
    for (admin, status, named) in [
        (
            "admin.sock",
            2,
            "--admin: `admin.sock` is neither a path nor an address with a port; write a path with a slash",
        ),
        (
            "/nonexistent/admin.sock",
            1,
            "admin socket /nonexistent/admin.sock: /nonexistent/admin.sock.lock: ",
        ),
        ("192.0.2.1:1", 1, "admin interface on 192.0.2.1:1: "),
    ] {
        let mut command = Daemon::command();
        let outcome = run(
            command.args(["serve", "--listen", "127.0.0.1:0", "--admin", admin]),
            Duration::from_secs(120),
        );
        assert_eq!(outcome.status.and_then(|ended| ended.code()), Some(status), "{admin}:\n{}", outcome.text);
        assert!(outcome.text.contains(named), "{admin}:\n{}", outcome.text);
    }
}
