//! `lunette top` on a terminal.

use super::reload::Served;
use crate::support::daemon::Daemon;
use crate::support::tools::{spawn, tool, wait};
use crate::support::wait_until;
use std::fs;
use std::io::Write as _;
use std::process::{ChildStdin, Stdio};
use std::time::Duration;

/// Its process and its status, and the terminal's settings before and after it.
const SESSION: &str = "stty rows 24 cols 80; stty -g >before
    sh -c 'echo $$ >pid; exec \"$LUNETTE\" top'
    echo $? >status; stty -g >after";

/// Shows it on a separate terminal and ends it, given the pipe that it reads keys from and its process id. It
/// must leave the terminal as it was.
fn ends(served: &Served, end: impl FnOnce(&mut ChildStdin, &str)) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let text = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    let screen = fs::File::create(directory.path().join("screen")).expect("a file");
    let mut command = tool("script");
    command.args(["-q", "-c", SESSION, "/dev/null"]).current_dir(directory.path()).stdin(Stdio::piped());
    command.env("SHELL", "/bin/sh").env("TERM", "xterm").env("LUNETTE", Daemon::command().get_program());
    command.env("LUNETTE_ADMIN", served.directory.path().join("admin.sock"));
    let mut script = spawn(&mut command, &screen);
    let mut keys = script.stdin.take().expect("a pipe");
    wait_until("it is drawn", || {
        assert_eq!(text("status"), "", "{}", text("screen"));
        text("screen").contains("Lunette")
    });
    assert_ne!(text("before"), "");
    end(&mut keys, text("pid").trim());
    let ended = wait(&mut script, Duration::from_secs(60));
    if ended.is_none() {
        script.kill().expect("a child can be killed");
        script.wait().expect("a killed child ends");
    }
    assert_eq!(text("status"), "0\n", "{}", text("screen"));
    assert_eq!(text("before"), text("after"));
}

#[test]
fn top_leaves_the_terminal_as_it_was_when_it_is_quit_and_when_signals_end_it() {
    let served = Served::with("", "");
    ends(&served, |keys, _| keys.write_all(b"q").expect("a key is read"));
    ends(&served, |_, process| {
        // Two of one kind may count as one. The second one may come too late.
        let _ = ["-TERM", "-INT"].map(|signal| tool("kill").args([signal, process]).status());
    });
    served.daemon.stop();
}
