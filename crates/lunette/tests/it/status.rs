//! The status of a daemon and the load of its LUNs: shown once, and repeatedly.

use super::reload::Served;
use crate::support::daemon::Daemon;
use crate::support::initiator::reserve_out;
use crate::support::tools::{Outcome, must, tool, wait};
use crate::support::wait_until;
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use wire::scsi::status::GOOD;

const FILE: &str = "[[lun]]\nname = \"f\"\nfile = \"./f.img\"\nsize = \"1M\"\n";

fn code(outcome: &Outcome) -> Option<i32> {
    outcome.status.and_then(|status| status.code())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_daemon_s_status_says_whether_all_is_well_to_people_and_to_scripts() {
    let served = Served::with(FILE, ", \"f\"");
    let session = served.session("one");
    let mut well = String::new();
    wait_until("the session is an event", || {
        well = served.must(&["status"]);
        well.contains("session_begun")
    });
    let portal = format!("Portals   {} (iscsi", served.daemon.lun(0).portal);
    for part in [&portal, "LUNs      2, all well\n", "Sessions  1: 1 iSCSI\n"] {
        assert!(well.contains(part), "{part}: {well}");
    }
    drop(session);

    // Its directory belongs to another user for a moment: it is not opened at the next start.
    served.daemon.stop();
    let file = served.directory.path().join("lunette.toml");
    let image = served.directory.path().join("f.img");
    fs::remove_file(&image).expect("it was there");
    fs::create_dir(&image).expect("a directory in its place");
    let served = Served { daemon: Daemon::serve_file(&file), directory: served.directory };
    let ill = served.ask(&["status"]);
    assert_eq!(code(&ill), Some(3), "{}", ill.text);
    for part in ["LUNs      2, of which 1 not well\n          f: late: ", "lunette: not well: LUN f\n"] {
        assert!(ill.text.contains(part), "{part}: {}", ill.text);
    }
    // `| head` has read enough.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = Daemon::command();
    command.arg("status").env("LUNETTE_ADMIN", served.directory.path().join("admin.sock"));
    let unread = command.stdout(writer).output().expect("it runs");
    assert_eq!(unread.status.code(), Some(141));
    assert_eq!(String::from_utf8_lossy(&unread.stderr), "");
    let document = served.ask(&["status", "--json"]).text;
    let document = json(document.split("lunette: ").next().expect("the document"));
    assert_eq!(
        (&document["luns"]["count"], &document["luns"]["not_well"][0]["name"]),
        (&2.into(), &"f".into())
    );
    assert_eq!(document["pid"], served.daemon.pid());
    let luns = served.must(&["luns"]);
    assert!(luns.contains("f.img, late: "), "{luns}");
    let luns = json(&served.must(&["luns", "--json"]));
    let late = luns.as_array().expect("a list").iter().find(|lun| lun["name"] == "f").expect("the LUN");
    assert_eq!((&late["state"], &late["size_bytes"]), (&"late".into(), &Value::Null), "{late}");
    served.daemon.stop();
    let gone = super::reload::ask(&served.directory.path().join("admin.sock"), &["status"]);
    assert_eq!(code(&gone), Some(1), "{}", gone.text);
}

#[test]
fn people_see_who_holds_a_lun_and_what_a_session_has_negotiated() {
    let served = Served::with("", "");
    let mut holder = served.session("holder");
    assert_eq!(reserve_out(&mut holder, 0, 0, 0, 0, 0xaa), GOOD, "REGISTER");
    assert_eq!(reserve_out(&mut holder, 0, 1, 1, 0xaa, 0), GOOD, "RESERVE, write exclusive");
    let luns = served.must(&["luns"]);
    for part in ["write cache on", "write exclusive reservation of iqn.", "registered: iqn."] {
        assert!(luns.contains(part), "{part}: {luns}");
    }
    assert!(luns.contains("holder,i,0x") && luns.contains(" (key 0x00000000000000aa)"), "{luns}");
    let sessions = served.must(&["sessions"]);
    let portal = format!("portal {}", served.daemon.lun(0).portal);
    for part in [&*portal, "DataDigest=None", "MaxBurstLength=", "ImmediateData="] {
        assert!(sessions.contains(part), "{part}: {sessions}");
    }
    served.daemon.stop();
}

/// The size of a terminal: narrower than tables need.
const COLUMNS: usize = 64;

/// A command that keeps running.
struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn start(served: &Served, arguments: &[&str]) -> Watching {
        let mut command = Daemon::command();
        command.args(arguments);
        Watching::run(served, &mut command)
    }

    /// The same on a separate terminal.
    fn on_terminal(served: &Served, arguments: &str) -> Watching {
        let mut command = tool("script");
        command.args([
            "-q",
            "-c",
            &format!("stty rows 24 cols {COLUMNS}; exec \"$LUNETTE\" {arguments}"),
            "/dev/null",
        ]);
        command.env("SHELL", "/bin/sh").env("LUNETTE", Daemon::command().get_program());
        Watching::run(served, &mut command)
    }

    fn run(served: &Served, command: &mut Command) -> Watching {
        command.env("LUNETTE_ADMIN", served.directory.path().join("admin.sock"));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Watching { child, lines }
    }

    /// What a screen of that terminal shows, from a line on that begins with this.
    fn screen(&mut self, title: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().replace("\u{1b}[K", "").replace("\u{1b}[2J", "");
            let line = line.trim_end_matches(['\r', '\n']);
            // The cursor goes back to the first line of the next one.
            let next = line.find("\u{1b}[1;1H");
            if next.is_some() && !lines.is_empty() {
                return lines;
            }
            let line = next.map_or(line, |_| line.rsplit('H').next().unwrap_or_default());
            if line.starts_with(title) || !lines.is_empty() {
                lines.push(line.to_owned());
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.lines.read_line(&mut line).expect("a line") > 0, "it has ended");
        line
    }

    fn interrupt(mut self) {
        must(tool("kill").arg("-INT").arg(self.child.id().to_string()));
        let status = wait(&mut self.child, Duration::from_secs(120)).expect("it ends");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn what_is_watched_fits_on_a_narrow_terminal_and_nothing_of_it_is_lost() {
    let served = Served::with(FILE, ", \"f\"");
    let _session = served.session("a-name-that-is-longer-than-its-column");
    let luns = ["LUN", "STATE", "READ/S", "R P99", "WRITE/S", "W P99"];
    let cases: [(&str, &[&str], &[&str]); 3] = [
        ("luns", &luns, &["SIZE 1.00 MiB", "STORE file", "f.img", "write cache on"]),
        (
            "sessions",
            &["SESSION", "INITIATOR", "READ/S", "R P99"],
            &["ADDRESS 127.0.0.1:", "a-name-that-is-longer-than-its-column", "MaxBurstLength="],
        ),
        ("status", &["Lunette"], &["CORE", "session_begun"]),
    ];
    for (command, titles, parts) in cases {
        let mut watching = Watching::on_terminal(&served, &format!("{command} --watch=100ms"));
        let screen = watching.screen(titles[0]);
        watching.interrupt();
        let all = screen.join("\n");
        assert!(screen.iter().all(|line| line.chars().count() <= COLUMNS), "{all}");
        assert!(titles.iter().all(|title| screen[0].contains(title)), "{all}");
        // Wherever it was wrapped, even inside a long word.
        let text = |of: &str| of.split_whitespace().collect::<String>();
        assert!(parts.iter().all(|part| text(&all).contains(&text(part))), "{all}");
    }
    served.daemon.stop();
}

#[test]
fn what_is_watched_is_printed_again_and_again_until_an_interrupt() {
    let served = Served::with("", "");
    let session = served.session("one");
    for (command, title) in [("luns", "LUN "), ("sessions", "SESSION "), ("status", "Lunette ")] {
        let mut watching = Watching::start(&served, &[command, "--watch", "100ms"]);
        let blocks = std::iter::repeat_with(|| watching.line()).filter(|line| line.starts_with(title));
        assert_eq!(blocks.take(3).count(), 3);
        watching.interrupt();
        let mut watching = Watching::start(&served, &[command, "--watch=100ms", "--json"]);
        let documents: Vec<Value> = (0..2).map(|_| json(&watching.line())).collect();
        let first = if command == "status" { &documents[1] } else { &documents[1][0] };
        assert!(first.is_object() && documents[0].get(0).is_none_or(|one| one["rates"].is_null()), "{first}");
        watching.interrupt();
    }
    let mut watching = Watching::on_terminal(&served, "luns --watch=100ms --json");
    for _ in 0..2 {
        assert_eq!(json(&watching.line())[0]["name"], "kept", "it is not painted");
    }
    // Its terminal hangs up.
    watching.child.kill().expect("it is still there");
    watching.child.wait().expect("a killed child ends");
    drop(session);
    served.daemon.stop();
}

#[test]
fn a_daemon_that_hangs_is_noticed_while_it_is_watched() {
    let served = Served::with("", "");
    let signal = |name: &str| must(tool("kill").arg(name).arg(served.daemon.pid().to_string()));
    let mut watching = Watching::start(&served, &["luns", "--watch", "100ms"]);
    let until = |watching: &mut Watching, part: &str| while !watching.line().contains(part) {};
    until(&mut watching, "kept");
    signal("-STOP");
    until(&mut watching, "no answer within 5 seconds: the daemon is stopped or overloaded");
    signal("-CONT");
    until(&mut watching, "kept");
    watching.interrupt();
    served.daemon.stop();
}
