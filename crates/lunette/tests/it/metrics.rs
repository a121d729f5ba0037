//! Metrics, as Prometheus reads them, and the dashboards and alerts in contrib/.

use super::manage::request;
use super::reload::Served;
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use crate::support::tools::{must, tool};
use crate::support::wait_until;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use tempfile::TempDir;
use wire::scsi::command::Read16;

const OPEN_METRICS: &str =
    "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n";

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

/// The complaints of `promtool check metrics` about a text; empty if there are none.
fn lint(text: &str) -> String {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("it is written");
    file.rewind().expect("a file has a beginning");
    must(tool("promtool").args(["check", "metrics"]).stdin(file))
}

/// The value of the only sample that begins with this.
fn sample(text: &str, series: &str) -> f64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let value = lines.next().unwrap_or_else(|| panic!("no {series} in:\n{text}"));
    assert_eq!(lines.next(), None, "{series} is there twice");
    value.parse().unwrap_or_else(|error| panic!("{series} {value}: {error}"))
}

#[test]
fn metrics_are_as_prometheus_wants_them_and_count_what_was_done() {
    let served = Served::with("", "");
    let socket = served.directory.path().join("admin.sock");
    let get = |path: &str, fields: &str| request(&socket, "GET", path, fields, "");
    let mut session = served.session("one");
    for lba in 0..5 {
        session.read_blocks(0, lba, 8, 512).expect("READ");
    }
    session.write_blocks(0, 0, 512, &[1; 1024], false).expect("WRITE");
    session.read(0, Read16::new(1 << 40, 8), 4096).expect("an answer");

    let answer = get("/metrics", "");
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{}", answer.head);
    let text = &answer.body;
    assert_eq!(lint(text), "");
    let kept = |name: &str, labels: &str| sample(text, &format!("lunette_{name}{{lun=\"kept\",{labels}}}"));
    assert_eq!(kept("commands_total", "direction=\"read\""), 6.0);
    assert_eq!(kept("bytes_total", "direction=\"read\""), 5.0 * 4096.0);
    assert_eq!(kept("bytes_total", "direction=\"write\""), 1024.0);
    assert_eq!(kept("command_duration_seconds_count", "direction=\"read\""), 5.0, "one failed");
    assert_eq!(kept("command_duration_seconds_bucket", "direction=\"read\",le=\"+Inf\""), 5.0);
    assert_eq!(kept("errors_total", "reason=\"illegal_request\""), 1.0);
    assert_eq!(kept("errors_total", "reason=\"medium_error\""), 0.0, "a rule sees the first one only so");
    assert_eq!(sample(text, "lunette_store_up{lun=\"kept\"}"), 1.0);
    assert_eq!(sample(text, "lunette_sessions{transport=\"iSCSI\"}"), 1.0);
    assert!(!text.contains("lunette_session_"), "sessions are shown where they are asked for");

    let url = served.daemon.lun(0);
    let nowhere = crate::support::daemon::Url { target: "iqn.2026-11.x:none".into(), ..url };
    assert!(Initiator::login(&nowhere, &Login::named("lost")).is_err());
    served.must(&["reload"]);
    let mut answer = get("/metrics?sessions=1", OPEN_METRICS);
    wait_until("the refused login is counted", || {
        answer = get("/metrics?sessions=1", OPEN_METRICS);
        answer.body.contains("lunette_logins_refused_total{reason=\"not_found\"} 1")
    });
    assert!(
        answer.head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{}",
        answer.head
    );
    let text = &answer.body;
    assert!(text.ends_with("# EOF\n"), "{text}");
    assert!(text.contains("# TYPE lunette_session_commands counter\n"), "{text}");
    let mut lines = text.lines().filter(|line| line.starts_with("lunette_session_commands_total{session="));
    assert!(lines.any(|line| line.contains("one\"") && line.ends_with("direction=\"read\"} 6.0")), "{text}");
    assert_eq!(sample(text, "lunette_logins_refused_total{reason=\"not_found\"}"), 1.0);
    assert_eq!(sample(text, "lunette_reloads_total{outcome=\"done\"}"), 1.0);
    assert_eq!(sample(text, "lunette_reload_last_successful"), 1.0);
    assert_eq!(lint(&get("/metrics?sessions=1", "").body), "");
    assert_eq!(get("/metrics?all", "").status, 400);
    session.logout().expect("an answer");
    wait_until("the session ends", || {
        sample(&get("/metrics", "").body, "lunette_sessions{transport=\"iSCSI\"}") == 0.0
    });
    served.daemon.stop();
}

#[test]
fn the_alerts_go_off_when_they_are_to() {
    let directory = contrib("prometheus");
    must(tool("promtool").args(["check", "rules"]).arg(directory.join("lunette.rules.yml")));
    must(tool("promtool").args(["test", "rules", "lunette.test.yml"]).current_dir(directory));
}

/// A separate Prometheus, which scrapes one target. It is killed when dropped.
struct Prometheus {
    child: Child,
    address: String,
    _directory: TempDir,
}

impl Prometheus {
    fn scraping(target: &str) -> Prometheus {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\nscrape_configs:\n- job_name: lunette\n  static_configs: [{{ targets: [\"{target}\"] }}]\n",
            contrib("prometheus/lunette.rules.yml").display()
        );
        fs::write(directory.path().join("prometheus.yml"), config).expect("a file");
        let log = directory.path().join("log");
        let mut command = tool("prometheus");
        command.current_dir(directory.path()).args([
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ]);
        let child = command.stderr(File::create(&log).expect("a log file")).spawn().expect("it starts");
        let mut prometheus = Prometheus { child, address: String::new(), _directory: directory };
        wait_until("Prometheus listens", || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            assert_eq!(prometheus.child.try_wait().expect("a child"), None, "{text}");
            let line = text.lines().find(|line| line.contains("msg=\"Listening on\""));
            let address = line.and_then(|line| line.split("address=").nth(1));
            prometheus.address = address.unwrap_or_default().to_owned();
            address.is_some()
        });
        prometheus
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").expect("a request is taken");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (_, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
        serde_json::from_str(body).unwrap_or(Value::Null)
    }

    /// The present result of a query, which must be valid.
    fn query(&self, query: &str) -> Vec<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={encoded}"));
        // Before it is ready, its answer is different.
        assert_ne!(answer["status"], "error", "{query}: {answer}");
        answer["data"]["result"].as_array().cloned().unwrap_or_default()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All queries of the dashboard, for all LUNs.
fn queries() -> Vec<String> {
    let text = fs::read_to_string(contrib("grafana/lunette.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
    let filled = |query: String| {
        query.replace("$__rate_interval", "30s").replace("$instance", ".*").replace("$lun", ".*")
    };
    queries.map(filled).collect()
}

#[test]
fn every_query_of_the_dashboard_finds_something_in_what_prometheus_scraped_under_load() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let thin = format!("file:{}/thin.img,size=4M,name=thin,warn_at=80%", directory.path().display());
    let daemon = Daemon::serve(["--admin", "127.0.0.1:0", "--lun", "ram:1M,name=db", "--lun", &thin]);
    let place = daemon.banner().lines().find_map(|line| line.strip_prefix("Admin http://"));
    let prometheus = Prometheus::scraping(place.expect("a place").trim_end_matches('/'));
    let queries = queries();
    assert!(queries.len() > 15, "{queries:?}");
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let mut session = Initiator::login(&daemon.lun(0), &Login::named("load")).expect("login");
            session.ready(0).expect("the first unit is ready");
            session.ready(1).expect("the second unit is ready");
            while !is_over.load(Ordering::Relaxed) {
                session.read_blocks(0, 0, 8, 512).expect("READ");
                session.write_blocks(1, 0, 512, &[1; 4096], false).expect("WRITE");
                session.read(0, Read16::new(1 << 40, 8), 4096).expect("an answer");
            }
        });
        let over = Over(&is_over);
        for query in &queries {
            wait_until(query, || !prometheus.query(query).is_empty());
        }
        let p99 =
            "histogram_quantile(0.99, sum by (lun, le) (rate(lunette_command_duration_seconds_bucket[30s])))";
        wait_until("latencies are numbers", || {
            let found = prometheus.query(p99);
            let number = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
            found.len() == 2 && found.iter().all(|one| number(one).is_some_and(f64::is_finite))
        });
        drop(over);
    });
    wait_until("all rules can be evaluated, and none goes off", || {
        let rules = prometheus.get("/api/v1/rules");
        let rules = rules["data"]["groups"][0]["rules"].as_array().cloned().unwrap_or_default();
        assert!(rules.iter().all(|rule| rule["state"] != "firing" && rule["health"] != "err"), "{rules:?}");
        rules.len() > 5 && rules.iter().all(|rule| rule["health"] == "ok")
    });
    daemon.stop();
}

/// Ends the load even when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
