//! The command line, as used by a person.

use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use crate::support::tools::{Outcome, run};
use std::ffi::OsStr;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::time::Duration;
use wire::scsi::command::ReadCapacity10;

#[test]
fn without_options_a_disk_in_memory_is_served() {
    // The default port may be in use on this machine; everything else is as without options.
    let daemon = Daemon::serve(std::iter::empty::<&str>());
    assert!(daemon.banner().contains("iqn.2026-11.io.lunette:disk"), "{}", daemon.banner());
    let lines = ["iscsiadm", "qemu", "New-IscsiTargetPortal"];
    assert!(lines.iter().all(|line| daemon.banner().contains(line)), "{}", daemon.banner());
    let url = daemon.lun(0);
    let mut initiator = Initiator::login(&url, &Login::named("first")).expect("login");
    initiator.ready(url.lun).expect("the unit is ready");
    let capacity = initiator.read(url.lun, ReadCapacity10::new(), 8).expect("READ CAPACITY").data;
    assert_eq!(capacity, [0x00, 0x1f, 0xff, 0xff, 0, 0, 2, 0], "1 GiB in blocks of 512 bytes");
    initiator.logout().expect("logout");
    daemon.stop();
}

#[test]
fn sessions_are_logged_as_they_come_and_go() {
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let initiator = Initiator::login(&daemon.lun(0), &Login::named("visitor").with_digests()).expect("login");
    initiator.logout().expect("logout");
    let log = daemon.stop();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("iqn.2026-11.io.lunette.test:visitor")).collect();
    assert!(lines.len() >= 2, "login and end are logged:\n{log}");
    assert!(
        lines.iter().any(|line| line.contains("127.0.0.1") && line.contains("HeaderDigest=CRC32C")),
        "{log}"
    );
}

#[test]
fn a_running_session_is_asked_to_log_out_when_the_daemon_stops() {
    let mut daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    let mut initiator = Initiator::login(&url, &Login::named("guest")).expect("login");
    initiator.ready(url.lun).expect("the unit is ready");
    daemon.signal("TERM");
    let message = initiator.receive().expect("a message before the end");
    assert_eq!(
        (message.opcode(), message.header[36]),
        (0x32, 1),
        "asynchronous message: logout is requested"
    );
    initiator.logout().expect("logout");
    assert!(daemon.wait().success());
}

#[test]
fn interrupts_end_the_daemon_in_order() {
    let mut daemon = Daemon::serve(["--lun", "ram:1M"]);
    daemon.signal("INT");
    assert!(daemon.wait().success());
}

#[test]
fn several_portals_are_served_together() {
    let daemon = Daemon::serve(["--listen", "127.0.0.1:0", "--lun", "ram:1M"]);
    let portals = daemon.banner().lines().filter_map(|line| line.trim().strip_prefix("portal "));
    let portals: Vec<SocketAddr> = portals.map(|address| address.parse().expect("an address")).collect();
    assert_eq!(portals.len(), 2, "{}", daemon.banner());
    for portal in portals {
        let url = crate::support::daemon::Url { portal, ..daemon.lun(0) };
        Initiator::login(&url, &Login::named("walker")).expect("login").logout().expect("logout");
    }
    daemon.stop();
}

#[test]
fn wrong_options_are_answered_with_one_line() {
    let wrong: [(&[&str], &str); 10] = [
        (&["serve", "--nonsense"], "--nonsense"),
        (&["nonsense"], "nonsense"),
        (&["serve", "--lun", "tape:1G"], "tape"),
        (&["serve", "--lun", "ram:"], "size"),
        (&["serve", "--lun", "ram:1X"], "1X"),
        (&["serve", "--lun", "ram:1G,bs=513"], "513"),
        (&["serve", "--lun", "ram:1G,colour=red"], "colour"),
        (&["serve", "--listen", "nowhere"], "nowhere"),
        (&["serve", "--target", "disk"], "disk"),
        (&["serve", "--cores", "x"], "x"),
    ];
    for (arguments, named) in wrong {
        let outcome = lunette(arguments);
        assert_eq!(code(&outcome), Some(2), "{arguments:?}:\n{}", outcome.text);
        let lines: Vec<&str> = outcome.text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 1, "{arguments:?}:\n{}", outcome.text);
        assert!(lines[0].contains(named), "{arguments:?}: {}", lines[0]);
    }
}

#[test]
fn arguments_that_are_not_utf8_are_answered_with_one_line() {
    let file = OsStr::from_bytes(b"/nonexistent/\xff.toml");
    for arguments in [[OsStr::new("check"), file], [OsStr::new("copy"), file]] {
        let outcome = run(Daemon::command().args(arguments), Duration::from_secs(120));
        assert_eq!(code(&outcome), Some(2), "{arguments:?}:\n{}", outcome.text);
        assert_eq!(outcome.text.lines().count(), 1, "{arguments:?}:\n{}", outcome.text);
    }
}

#[test]
fn warnings_that_cannot_be_printed_change_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let text =
        "[[portal]]\nlisten = '127.0.0.1:0'\n[[lun]]\nram = '64T'\n[[target]]\nname = 'iqn.2026-11.a:x'\n";
    std::fs::write(&file, text).expect("written");
    let full = File::options().write(true).open("/dev/full").expect("a device that is full");
    let output = Daemon::command().arg("check").arg(&file).stderr(full).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("OK but for 1 warning"), "{said}");
}

#[test]
fn ports_in_use_and_missing_rdma_devices_are_warned_of() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let name = file.to_str().expect("its name");
    let taken = TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, _listener) = taken.expect("a port");
    let disk = "[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n";
    let check = |text: String| {
        std::fs::write(&file, text + disk).expect("written");
        lunette(&["check", name])
    };
    let outcome = check(format!("admin = '{address}'\n[[portal]]\nlisten = '{address}'\n"));
    assert_eq!(code(&outcome), Some(0), "{}", outcome.text);
    assert!(outcome.text.contains("OK but for 2 warnings"), "{}", outcome.text);
    let in_use = format!("port {} is in use now, by a running daemon?", address.port());
    assert_eq!(outcome.text.matches(&in_use).count(), 2, "{}", outcome.text);
    let outcome = check("[[portal]]\nlisten = '127.0.0.1:0'\n".into());
    assert!(outcome.text.contains(": OK: "), "{}", outcome.text);
    let mut devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    if devices.next().is_none() {
        let outcome = check("[[portal]]\nlisten = '127.0.0.1:0'\nrdma = true\n".into());
        assert_eq!(code(&outcome), Some(0), "{}", outcome.text);
        assert!(
            outcome.text.contains("portal[0].rdma: ") && outcome.text.contains("`lunette rdma`"),
            "{}",
            outcome.text
        );
    }
}

/// Whatever is wrong with a URL, and whatever reports it.
#[test]
fn no_message_shows_a_secret() {
    const SECRET: &str = "Geheimnis";
    let urls = [
        "iscsi://user%SECRET%@127.0.0.1/iqn.2026-11.a:x/0",
        "iscsi:/user%SECRET@127.0.0.1/iqn.2026-11.a:x/0",
        "isci://user%SECRET@127.0.0.1/iqn.2026-11.a:x/0",
        "user%SECRET@127.0.0.1/iqn.2026-11.a:x/0",
        "iscsi://user%a/SECRET@127.0.0.1/iqn.2026-11.a:x/0",
        "iscsi://user%a?SECRET@127.0.0.1/iqn.2026-11.a:x/0",
        "iscsi://user:SECRET@127.0.0.1/iqn.2026-11.a:x/0",
        "iscsi://127.0.0.1/iqn.2026-11.a:x/0?target_password=SECRET",
        "iscsi://127.0.0.1/iqn.2026-11.a:x/0?target_password=a&bSECRET",
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    for url in urls.map(|url| url.replace("SECRET", SECRET)) {
        let url = url.as_str();
        std::fs::write(&file, format!("[[lun]]\nurl = \"{url}\"\n")).expect("a file");
        for arguments in [
            &["serve", "--listen", "127.0.0.1:0", "--lun", url][..],
            &["serve", "--listen", url],
            &["serve", "--listen", "127.0.0.1:0", "--cores", url],
            &["serve", "--listen", "127.0.0.1:0", "--poll", url],
            &["serve", "--listen", "127.0.0.1:0", "--admin", url],
            &["serve", "--listen", "127.0.0.1:0", "--srp", url],
            &["serve", "--listen", "127.0.0.1:0", "--srp-guid", url],
            &["inquiry", url],
            &["discover", url],
            &["discover", "ram:1G", url],
            &["copy", url, "null:1M"],
            &["copy", "null:1M", url],
            &["bench", url],
            &["aoe", "config", url],
            &["report", "p", "-o", "/nonexistent/o", "--peer", url],
            &[url],
            &["check", file.to_str().expect("its name")],
        ] {
            let outcome = lunette(arguments);
            assert!(matches!(code(&outcome), Some(1 | 2)), "{arguments:?}: {}", outcome.text);
            assert!(!outcome.text.contains(SECRET), "{arguments:?}: {}", outcome.text);
        }
    }
}

#[test]
fn a_url_in_the_place_of_a_path_is_refused_without_its_secret() {
    const URL: &str = "iscsi://user%Geheimnis@127.0.0.1/iqn.2026-11.a:x/0";
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    for kind in ["file", "block"] {
        let spec = format!("{kind}:{URL}");
        let target = "[[target]]\nname = \"iqn.2026-11.a:y\"\n";
        std::fs::write(&file, format!("[[lun]]\n{kind} = \"{URL}\"\nserial = \"1\"\n{target}"))
            .expect("a file");
        let name = file.to_str().expect("its name");
        for arguments in [
            &["serve", "--listen", "127.0.0.1:0", "--lun", &spec][..],
            &["serve", "--config", name],
            &["check", name],
        ] {
            let outcome = lunette(arguments);
            assert_eq!(code(&outcome), Some(2), "{arguments:?}: {}", outcome.text);
            assert!(outcome.text.contains("this is a URL, not a path"), "{}", outcome.text);
            assert!(!outcome.text.contains("Geheimnis"), "{arguments:?}: {}", outcome.text);
        }
    }
}

#[test]
fn a_url_in_the_place_of_a_directory_or_a_secret_is_refused_without_its_secret() {
    const URL: &str = "iscsi://user%Geheimnis@127.0.0.1/iqn.2026-11.a:x/0";
    const DISK: &str = "[[lun]]\nram = \"1M\"\n[[target]]\nname = \"iqn.2026-11.a:y\"\n";
    const GROUP: &str = "[[target.group]]\nname = \"g\"\n[target.group.chap]\nuser = \"u\"\n";
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let name = file.to_str().expect("its name");
    for text in [
        format!("state_dir = \"{URL}\"\n{DISK}"),
        format!("{DISK}{GROUP}secret_file = \"{URL}\"\n"),
        format!(
            "{DISK}{GROUP}secret = \"0123456789ab\"\nmutual_user = \"t\"\nmutual_secret_file = \"{URL}\"\n"
        ),
    ] {
        std::fs::write(&file, text).expect("a file");
        for arguments in [&["serve", "--config", name][..], &["check", name]] {
            assert_is_no_path(arguments);
        }
    }
    assert_is_no_path(&["serve", "--listen", "127.0.0.1:0", "--state-dir", URL]);
    assert_is_no_path(&[
        "inquiry",
        "iscsi://u@127.0.0.1/iqn.2026-11.a:x/0?secret_file=iscsi%3A%2F%2Fuser%25Geheimnis%40h",
    ]);
}

fn assert_is_no_path(arguments: &[&str]) {
    let outcome = lunette(arguments);
    assert_eq!(code(&outcome), Some(2), "{arguments:?}: {}", outcome.text);
    assert!(outcome.text.contains("this is a URL, not a path"), "{arguments:?}: {}", outcome.text);
    assert!(!outcome.text.contains("Geheimnis"), "{arguments:?}: {}", outcome.text);
}

/// In files with a missing quote, key or equals sign.
#[test]
fn no_fault_of_a_files_syntax_shows_a_secret() {
    const URL: &str = "iscsi://user%Geheimnis@127.0.0.1/iqn.2026-11.a:x/0";
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("lunette.toml");
    let name = file.to_str().expect("its name");
    let output = directory.path().join("report");
    let output = output.to_str().expect("its name");
    for line in [
        format!("url = {URL}"),
        format!("url = \"{URL}"),
        format!("url = '{URL}\""),
        format!("url \"{URL}\""),
        format!("\"{URL}\""),
        format!("\"{URL}\" = 1"),
        "'user%Ge heimnis, Geheimnis@127.0.0.1' = 1".to_string(),
        format!("\"{URL}\" = 1\n\"{URL}\" = 1"),
        format!("\"{URL}\".url = 1\n\"{URL}\" = 1"),
        format!("url = {{ \"{URL}\" }}"),
    ] {
        for (table, arguments) in [
            ("lun", &["check", name][..]),
            ("lun", &["serve", "--config", name]),
            ("target", &["report", name, "-o", output]),
        ] {
            std::fs::write(&file, format!("[[{table}]]\n{line}\n")).expect("a file");
            let outcome = lunette(arguments);
            assert_eq!(code(&outcome), Some(2), "{arguments:?} {line}: {}", outcome.text);
            assert!(!outcome.text.contains("Geheimnis"), "{arguments:?} {line}: {}", outcome.text);
        }
    }
}

#[test]
fn help_names_every_option() {
    let help = lunette(&["serve", "--help"]).expect_success("help");
    for option in ["--config", "--listen", "--target", "--lun", "--cores", "--poll", "--state-dir"] {
        assert!(help.contains(option), "{option}:\n{help}");
    }
}

#[test]
fn the_version_names_the_commit() {
    let shown = lunette(&["--version"]).expect_success("the version");
    let version = format!("lunette {}", env!("CARGO_PKG_VERSION"));
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = git
        .ok()
        .filter(|git| git.status.success())
        .map(|git| String::from_utf8_lossy(&git.stdout).into_owned());
    // A release archive has no commit.
    let wanted = commit.map_or_else(|| version.clone(), |commit| format!("{version} ({})", commit.trim()));
    assert_eq!(shown.trim_end(), wanted);
}

#[test]
fn what_cannot_be_printed_is_a_failure() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("lunette.toml");
    std::fs::write(&file, "[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n").expect("written");
    let check = ["check".as_ref(), file.as_os_str()];
    for arguments in
        [&check[..], &["--version".as_ref()], &["copy".as_ref(), "ram:1M".as_ref(), "ram:1M".as_ref()]]
    {
        let full = File::options().write(true).open("/dev/full").expect("a device that is full");
        let output = Daemon::command().args(arguments).stdout(full).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space"), "{arguments:?}: {said}");
    }
}

fn lunette(arguments: &[&str]) -> Outcome {
    run(Daemon::command().args(arguments), Duration::from_secs(120))
}

fn code(outcome: &Outcome) -> Option<i32> {
    outcome.status.and_then(|status| status.code())
}
