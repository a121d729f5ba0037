//! The configuration of a serving daemon: reloaded, applied in full or not at all, without affecting sessions
//! that it does not concern.

mod aoe;
mod load;

use crate::support::daemon::Daemon;
use crate::support::fuse::Fuse;
use crate::support::initiator::{Initiator, Login};
use crate::support::tools::{Outcome, run, tool};
use crate::support::wait_until;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use wire::scsi::command::ReportLuns;

/// REPORTED LUNS DATA HAS CHANGED (SPC-4 annex D).
const LUNS_CHANGED: [u8; 2] = [0x3f, 0x0e];
const NO_SUCH_UNIT: [u8; 2] = [0x25, 0];

/// A daemon with its own configuration file and admin socket.
pub(crate) struct Served {
    pub(crate) daemon: Daemon,
    pub(crate) directory: TempDir,
}

impl Served {
    /// LUN 0, `kept`, and what these lines add.
    pub(crate) fn with(luns: &str, list: &str) -> Served {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("lunette.toml");
        fs::write(&file, text(luns, list)).expect("a file");
        Served { daemon: Daemon::serve_file(&file), directory }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("lunette.toml")
    }

    fn write(&self, luns: &str, list: &str) {
        fs::write(self.file(), text(luns, list)).expect("a file");
    }

    /// A command for this daemon.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Outcome {
        ask(&self.directory.path().join("admin.sock"), arguments)
    }

    /// The same, which succeeds.
    pub(crate) fn must(&self, arguments: &[&str]) -> String {
        self.ask(arguments).expect_success(&format!("{arguments:?}"))
    }

    pub(crate) fn session(&self, name: &str) -> Initiator {
        let mut session = Initiator::login(&self.daemon.lun(0), &Login::named(name)).expect("login");
        session.ready(0).expect("the unit is ready");
        session
    }
}

/// A command for the daemon with this socket.
pub(crate) fn ask(socket: &Path, arguments: &[&str]) -> Outcome {
    let mut command = Daemon::command();
    command.args(arguments).env("LUNETTE_ADMIN", socket).env_remove("RUST_LOG");
    run(&mut command, Duration::from_secs(60))
}

fn text(luns: &str, list: &str) -> String {
    format!(
        "# Of the test.\nadmin = \"./admin.sock\"\nportal = [{{ listen = \"127.0.0.1:0\" }}]\n\n\
         [[lun]]\nname = \"kept\" # it stays\nram = \"16M\"\n{luns}\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\nluns = [\"kept\"{list}]\n"
    )
}

/// A separate LUN.
fn lun(name: &str) -> String {
    format!("[[lun]]\nname = \"{name}\"\nram = \"1M\"\n")
}

fn code(outcome: &Outcome) -> Option<i32> {
    outcome.status.and_then(|status| status.code())
}

/// The numbers in a REPORT LUNS.
pub(crate) fn numbers(session: &mut Initiator) -> Vec<u8> {
    let response = session.read(0, ReportLuns::new(0xff00), 0xff00).expect("an answer");
    assert_eq!(response.status, 0, "{response:?}");
    response.data[8..].chunks(8).map(|lun| lun[1]).collect()
}

/// Additional sense code and qualifier of fixed sense data.
fn sense(session: &mut Initiator, lun: u16) -> Option<[u8; 2]> {
    let response = session.read(lun, &[0; 6], 0).expect("an answer");
    (response.status != 0).then(|| [response.sense[12], response.sense[13]])
}

#[test]
fn a_lun_that_comes_is_seen_by_a_session_that_was_there_and_one_that_goes_is_not() {
    let served = Served::with("", "");
    let mut session = served.session("early");
    assert_eq!(numbers(&mut session), [0]);
    served.write(&lun("more"), ", \"more\"");
    let dry = served.must(&["reload", "--dry-run"]);
    let steps = "add LUN more (ram:1048576)\ntarget iqn.2026-11.io.lunette:disk: LUN 1 is more\n2 steps";
    assert!(dry.contains(&format!("{steps}; nothing was changed")), "{dry}");
    assert_eq!(sense(&mut session, 1), Some(NO_SUCH_UNIT), "nothing was done");

    let done = served.must(&["reload"]);
    assert!(done.contains(&format!("{steps} applied.")), "{done}");
    assert_eq!(sense(&mut session, 0), Some(LUNS_CHANGED));
    assert_eq!(sense(&mut session, 0), None, "once");
    assert_eq!(numbers(&mut session), [0, 1]);
    session.ready(1).expect("the new unit is ready");
    assert!(served.must(&["reload"]).contains("Nothing to change."));

    served.write("", "");
    let done = served.must(&["reload"]);
    assert!(done.contains("remove LUN more (ram:1048576)") && done.contains("are lost"), "{done}");
    assert_eq!(sense(&mut session, 1), Some(NO_SUCH_UNIT));
    session.ready(0).expect("the other continues");
    assert_eq!(numbers(&mut session), [0]);
    let log = served.daemon.stop();
    assert!(log.contains("admin: reload: done who=\"uid 0, pid "), "{log}");
    assert!(log.contains("admin: reload (dry run): done"), "{log}");
}

#[test]
fn a_wrong_file_changes_nothing_and_is_refused_as_at_the_start() {
    let served = Served::with(&lun("more"), ", \"more\"");
    let mut session = served.session("stayer");
    session.ready(1).expect("the other unit is ready");
    let config = served.must(&["config", "show"]);
    for (wrong, status, named) in [
        (
            text(&lun("other"), ", \"othr\""),
            2,
            "lunette.toml:14:17: target[0].luns[1]: there is no LUN `othr`; did you mean",
        ),
        ("lun = 7".into(), 2, "lunette.toml:1:7: lun: this is an integer; write tables"),
        ("[[".into(), 2, "lunette.toml:1:"),
        (
            "cores = \"0\"\npoll = \"never\"\n".to_owned() + &text("", ""),
            1,
            "this takes effect only at the next start; restart",
        ),
        (
            text("", "").replace("16M", "32M"),
            1,
            "LUN kept: it is in memory, and its replacement would be empty",
        ),
        (
            text("[[lun]]\nname = \"file\"\nfile = \"/nonexistent/a\"\n", ", \"file\""),
            1,
            "a LUN cannot be opened; nothing was changed",
        ),
    ] {
        fs::write(served.file(), wrong).expect("a file");
        for arguments in [&["reload", "--dry-run"][..], &["reload"]] {
            let outcome = served.ask(arguments);
            assert_eq!(code(&outcome), Some(status), "{}", outcome.text);
            assert!(outcome.text.contains(named), "{named}:\n{}", outcome.text);
        }
        assert_eq!(numbers(&mut session), [0, 1]);
        assert_eq!(served.must(&["config", "show"]), config);
    }
    assert_eq!(sense(&mut session, 1), None, "nobody was bothered");
    fs::remove_file(served.file()).expect("it is there");
    assert!(served.ask(&["reload"]).text.contains("cannot be read"));
    let log = served.daemon.stop();
    assert!(log.contains("admin: reload: the configuration is wrong; nothing was changed who="), "{log}");
}

#[test]
fn sighup_does_what_reload_does() {
    let served = Served::with("", "");
    let mut session = served.session("early");
    served.write(&lun("more"), ", \"more\"");
    served.daemon.signal("HUP");
    wait_until("the file is read again", || {
        served.daemon.log().contains("admin: reload: done who=\"SIGHUP\"")
    });
    assert_eq!(numbers(&mut session), [0, 1]);
    fs::write(served.file(), "lun = 7").expect("a file");
    served.daemon.signal("HUP");
    wait_until("the fault is logged", || {
        served.daemon.log().contains("lunette.toml:1:7: lun: this is an integer")
    });
    session.ready(1).expect("everything continues");
    served.daemon.stop();
}

#[test]
fn a_change_that_waits_for_a_hung_disk_holds_up_neither_the_end_nor_what_is_said_of_it() {
    let fuse = Fuse::mount(1 << 20);
    let hung = format!("[[lun]]\nname = \"hung\"\nfile = \"{}\"\n", fuse.path().display());
    let mut served = Served::with(&hung, ", \"hung\"");
    let mut session = served.session("writer");
    session.ready(1).expect("the unit is ready");
    fuse.hold();
    session.write_blocks(1, 0, 512, &[1; 512], false).expect("it is in the page cache");
    session.issue(1, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, Vec::new()).expect("it is sent");
    fuse.wait_until_held();
    let socket = served.directory.path().join("admin.sock");
    let removed = std::thread::spawn(move || ask(&socket, &["lun", "remove", "hung"]));
    wait_until("it is hidden", || served.daemon.log().contains("configuration: remove LUN hung"));
    served.daemon.signal("TERM");
    wait_until("the end begins", || served.daemon.log().contains("stopping: "));
    let outcome = removed.join().expect("it ends");
    fuse.release();
    served.daemon.wait();
    assert_eq!(code(&outcome), Some(1), "{}", outcome.text);
    for text in
        ["the daemon is stopping before the change is complete", "commands are still in flight on LUN hung"]
    {
        assert!(outcome.text.contains(text), "{}", outcome.text);
    }
    assert!(fs::read_to_string(served.file()).expect("a file").contains("hung"), "the next start has it");
}

#[test]
fn a_target_is_removed_while_its_disk_hangs_and_whoever_requested_it_is_warned() {
    let fuse = Fuse::mount(1 << 20);
    let luns = format!(
        "[[lun]]\nname = \"hung\"\nfile = \"{}\"\n[[target]]\nname = \"iqn.2026-11.io.lunette:goes\"\n\
         luns = [\"kept\", \"hung\"]\n",
        fuse.path().display()
    );
    let mut served = Served::with(&luns, ", \"hung\"");
    let mut session = served.session("writer");
    session.ready(1).expect("the unit is ready");
    fuse.hold();
    session.write_blocks(1, 0, 512, &[1; 512], false).expect("it is in the page cache");
    session.issue(1, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, Vec::new()).expect("it is sent");
    fuse.wait_until_held();
    let socket = served.directory.path().join("admin.sock");
    let removed =
        std::thread::spawn(move || ask(&socket, &["target", "remove", "iqn.2026-11.io.lunette:goes"]));
    wait_until("it is removed", || served.daemon.log().contains("configuration: remove target"));
    // The change does not wait any more.
    served.daemon.signal("TERM");
    let outcome = removed.join().expect("it ends");
    fuse.release();
    served.daemon.wait();
    let log = served.daemon.log();
    assert_eq!(code(&outcome), Some(0), "{}", outcome.text);
    for text in ["warning: remove target", "this was done, but has not ended completely", "1 step applied."] {
        assert!(outcome.text.contains(text), "{text}: {}", outcome.text);
    }
    assert!(log.contains("admin: remove target iqn.2026-11.io.lunette:goes: done"), "{log}");
    assert!(!fs::read_to_string(served.file()).expect("a file").contains(":goes"), "so does the next start");
}

#[test]
fn the_usual_socket_is_found_by_commands_and_one_that_is_taken_costs_only_the_interface() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("lunette.toml");
    let mut text = text("", "").replace("admin = \"./admin.sock\"\n", "");
    text.insert_str(0, "cores = \"0\"\n");
    fs::write(&file, &text).expect("a file");
    let serve = |command: &mut Command| {
        Daemon::start(command.args(["serve", "--config"]).arg(&file).env_remove("LUNETTE_ADMIN"))
    };
    // A mount namespace with its own /run.
    let mut command = tool("unshare");
    command
        .args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"])
        .arg(Daemon::program());
    let first = serve(&mut command);
    assert!(first.banner().contains("\nAdmin /run/lunette/lunette.sock\n"), "{}", first.banner());
    let within = || {
        let mut command = tool("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", first.pid())).arg(Daemon::program());
        command
    };
    let show = |command: &mut Command| {
        let command = command.args(["config", "show"]).env_remove("LUNETTE_ADMIN");
        run(command, Duration::from_secs(60)).expect_success("it is found")
    };
    assert!(show(&mut within()).contains("name = \"kept\""));

    let second = serve(&mut within());
    assert!(!second.banner().contains("Admin "), "{}", second.banner());
    let log = second.stop();
    assert!(
        log.contains("serves without its admin interface: admin socket /run/lunette/lunette.sock: another"),
        "{log}"
    );
    assert!(show(&mut within()).contains("name = \"kept\""), "the first one still has it");
    first.stop();
}

#[test]
fn a_disk_that_is_larger_than_its_size_says_is_made_writable_as_it_is() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = directory.path().join("disk");
    fs::write(&disk, vec![7; 2 << 20]).expect("a file");
    let lun = format!(
        "[[lun]]\nname = \"disk\"\nfile = {disk:?}\nsize = \"1M\"\nserial = \"S\"\nread_only = true\n"
    );
    let served = Served::with(&lun, ", \"disk\"");
    let capacity = || {
        let luns = served.must(&["luns", "--json"]);
        let luns: serde_json::Value = serde_json::from_str(&luns).expect("JSON");
        let luns = luns.as_array().cloned().unwrap_or_default();
        luns.iter()
            .find(|lun| lun["name"] == "disk")
            .map(|lun| (lun["size"].clone(), lun["read_only"].clone()))
    };
    let before = capacity().expect("it is served");
    served.must(&["lun", "set", "disk", "read_only=false"]);
    let after = capacity().expect("it is served");
    assert_eq!((before.0, serde_json::json!(false)), after);
    assert_eq!(disk.metadata().expect("a file").len(), 2 << 20);
    served.daemon.stop();
}

#[test]
fn a_daemon_without_a_file_shows_what_runs_and_has_nothing_to_read_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("admin.sock");
    let daemon = Daemon::serve(["--admin", socket.to_str().expect("a plain path"), "--lun", "ram:1M,ro"]);
    let shown = ask(&socket, &["config", "show"]).expect_success("it is shown");
    let copy = directory.path().join("copy.toml");
    fs::write(&copy, &shown).expect("a file");
    Daemon::command().arg("check").arg(&copy).status().expect("it runs");
    assert!(shown.contains("ram = \"1M\"\nread_only = true\n"), "{shown}");
    let outcome = ask(&socket, &["reload"]);
    assert!(
        outcome.text.contains("without a configuration file; start the daemon with --config"),
        "{}",
        outcome.text
    );
    let lost = ask(&directory.path().join("other.sock"), &["reload"]);
    assert!(lost.text.contains("is a daemon running (lunette serve)? name its socket"), "{}", lost.text);
    daemon.stop();
}
