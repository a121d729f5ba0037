//! Configuration files and signals, as used by a person.

use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, write_cdb};
use crate::support::tools::{Outcome, must, run, tool, wait};
use crate::support::wait_until;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use wire::scsi::command::{ReadCapacity10, ReadCapacity16, ReportLuns};

fn check(directory: &Path, text: &str) -> Outcome {
    std::fs::write(directory.join("lunette.toml"), text).expect("written");
    run(Daemon::command().current_dir(directory).args(["check", "lunette.toml"]), Duration::from_secs(120))
}

#[test]
fn a_good_file_is_summed_up_in_one_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let outcome = check(
        directory.path(),
        "cores = 'all'\n[[portal]]\nlisten = '127.0.0.1:0'\n[[lun]]\nram = '1M'\n[[target]]\nname = 'iqn.2026-11.a:x'\n",
    );
    let text = outcome.expect_success("check");
    assert!(text.starts_with("lunette.toml: OK: 1 target, 1 LUN, 1 portal, "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn all_errors_of_a_bad_file_are_reported_with_their_places() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let outcome = check(directory.path(), "pool = 1\n[[lun]]\nram = '1'\n[[target]]\nname = 'x'\n");
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(2), "{}", outcome.text);
    let places =
        ["lunette.toml:1:1: pool: ", "lunette.toml:3:7: lun[0].ram: ", "lunette.toml:5:8: target[0].name: "];
    for (line, place) in outcome.text.lines().zip(places) {
        assert!(line.starts_with(&format!("lunette: {place}")), "{}", outcome.text);
    }
    assert_eq!(outcome.text.lines().count(), places.len(), "{}", outcome.text);
}

/// Warnings about a file that is valid in itself.
fn warnings(directory: &Path, text: &str) -> Vec<String> {
    let portal = if text.contains("[[portal]]") { "" } else { "[[portal]]\nlisten = '127.0.0.1:0'\n" };
    let said = check(directory, &format!("{text}{portal}")).expect_success("check");
    let warnings: Vec<String> =
        said.lines().filter_map(|line| line.strip_prefix("lunette: warning: ")).map(str::to_owned).collect();
    let but = match warnings.len() {
        0 => "OK: ".to_owned(),
        1 => "OK but for 1 warning: ".to_owned(),
        found => format!("OK but for {found} warnings: "),
    };
    assert!(said.contains(&but), "{said}");
    warnings
}

const TARGET: &str = "[[target]]\nname = 'iqn.2026-11.a:x'\n";

#[test]
fn what_is_not_on_this_machine_is_a_warning_with_its_place() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("short.img"), vec![1; 512]).expect("written");
    std::fs::write(directory.path().join("disk.qcow2"), [&b"QFI\xfb"[..], &[0; 1020]].concat())
        .expect("written");
    let text = format!(
        "state_dir = 'short.img/state'\nadmin = 'none/socket'\n\
         [[portal]]\nlisten = '192.0.2.1'\n\
         [[portal]]\nlisten = '127.0.0.1:0'\n\
         [[aoe]]\ninterface = 'none7'\n\
         [[lun]]\nfile = 'none.img'\n\
         [[lun]]\nfile = 'new.img'\nsize = '1M'\naoe = '1.1'\n\
         [[lun]]\nfile = 'none/new.img'\nsize = '1M'\n\
         [[lun]]\nfile = 'short.img'\nblock_size = '4K'\n\
         [[lun]]\nblock = '/dev/none'\n\
         [[lun]]\nblock = '/dev/null'\n\
         [[lun]]\nfile = 'disk.qcow2'\n\
         {TARGET}"
    );
    let found = warnings(directory.path(), &text);
    let wanted = [
        ("lunette.toml:1:", "state_dir"),
        ("lunette.toml:2:", "none"),
        ("lunette.toml:4:", "does not have the address 192.0.2.1"),
        ("lunette.toml:7:", "no network interface `none7`"),
        ("lunette.toml:10:", "none.img: No such file"),
        ("lunette.toml:16:", "mkdir -p"),
        ("lunette.toml:19:", "512 more than whole blocks of 4096"),
        ("lunette.toml:22:", "/dev/none: No such file"),
        ("lunette.toml:24:", "/dev/null: is not a block device"),
        ("lunette.toml:26:", "a qcow2 image"),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (line, (place, words)) in found.iter().zip(wanted) {
        assert!(line.starts_with(place) && line.contains(words), "{place} {words}: {line}");
    }
}

#[test]
fn secrets_that_others_may_read_are_a_warning() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let text = format!(
        "[[lun]]\nurl = 'iscsi://me%sesame-open-1@127.0.0.1/iqn.2026-11.a:y/0'\n{TARGET}\
         [[target.group]]\nname = 'g'\n[target.group.chap]\nuser = 'me'\nsecret = 'open-sesame-1'\n"
    );
    let found = warnings(directory.path(), &text);
    assert_eq!(found.len(), 2, "{found:#?}");
    for (line, place) in found.iter().zip(["lunette.toml:2:", "lunette.toml:9:"]) {
        assert!(line.starts_with(place) && line.contains("chmod 600"), "{line}");
        assert!(!line.contains("sesame"), "{line}");
    }
    let file = directory.path().join("lunette.toml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    assert!(warnings(directory.path(), &text).is_empty());
}

#[test]
fn a_group_that_nobody_reaches_is_a_warning() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let groups = |groups: &[&str]| {
        let table =
            |(index, group): (usize, &&str)| format!("[[target.group]]\nname = 'g{index}'\n{group}\n");
        let groups: String = groups.iter().enumerate().map(table).collect();
        warnings(directory.path(), &format!("[[lun]]\nram = '1M'\n{TARGET}{groups}"))
    };
    let one = "initiators = ['iqn.2026-11.b:one']";
    for (first, second) in [
        ("", one),
        ("deny = true", one),
        ("initiators = ['*']", one),
        ("initiators = ['iqn.2026-11.b:*']", "initiators = ['iqn.2026-11.b:o?e', 'iqn.2026-11.b:t*']"),
        ("networks = ['0.0.0.0/0', '::/0']", one),
        ("networks = ['10.0.0.0/8']", "networks = ['10.1.0.0/16']"),
    ] {
        let found = groups(&[first, second]);
        assert_eq!(found.len(), 1, "{first} {second}: {found:?}");
        assert!(found[0].contains("never reached") && found[0].contains("`g0`"), "{found:?}");
    }
    for (first, second) in [
        (one, ""),
        ("initiators = ['iqn.2026-11.b:?']", "initiators = ['iqn.2026-11.b:*']"),
        ("networks = ['0.0.0.0/0']", one),
        ("networks = ['10.1.0.0/16']", "networks = ['10.0.0.0/8']"),
        ("networks = ['10.0.0.0/8']\ninitiators = ['iqn.2026-11.b:two']", one),
    ] {
        assert!(groups(&[first, second]).is_empty(), "{first} {second}");
    }
}

#[test]
fn disks_that_memory_does_not_hold_are_a_warning_also_at_start() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let found = warnings(directory.path(), &format!("[[lun]]\nram = '1M'\n[[lun]]\nram = '64T'\n{TARGET}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("lunette.toml:4:") && found[0].contains("disks in memory have"),
        "{found:?}"
    );
    let log = Daemon::serve(["--lun", "ram:1T"]).stop();
    assert!(log.contains("disks in memory have 1 TiB together, and this process may use"), "{log}");
    let log = Daemon::serve(["--lun", "ram:1M"]).stop();
    assert!(!log.contains("disks in memory"), "{log}");
}

#[test]
fn a_file_is_served_with_the_options_before_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("lunette.toml");
    let text = "[[portal]]\nlisten = '192.0.2.1:1'\n[[lun]]\nfile = 'disk.img'\nsize = '8M'\n\
                [[target]]\nname = 'iqn.2026-11.a:x'\nluns = [{ lun = 'lun0', number = 3 }]\n";
    std::fs::write(&file, text).expect("written");
    let daemon = Daemon::serve(["--config".as_ref(), file.as_os_str()]);
    let url = daemon.lun(0);
    assert_eq!((url.target.as_str(), url.lun), ("iqn.2026-11.a:x", 3));
    let mut initiator = Initiator::login(&url, &Login::named("reader")).expect("login");
    initiator.ready(url.lun).expect("the unit is ready");
    initiator.logout().expect("logout");
    assert_eq!(std::fs::metadata(directory.path().join("disk.img")).expect("made").len(), 8 << 20);
    daemon.stop();
}

#[test]
fn a_second_signal_ends_the_daemon_at_once() {
    let mut daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
    guest.ready(url.lun).expect("the unit is ready");
    daemon.signal("TERM");
    // The daemon is stopping: it has asked this initiator to log out, which does not.
    guest.receive().expect("a request to log out");
    daemon.signal("INT");
    assert_eq!(daemon.wait().code(), Some(130));
}

#[test]
fn only_signals_that_ask_for_the_end_end_the_daemon() {
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    let mut initiator = Initiator::login(&url, &Login::named("stayer")).expect("login");
    initiator.ready(url.lun).expect("the unit is ready");
    let others =
        ["HUP", "USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "PWR", "STKFLT", "XCPU", "XFSZ", "34", "64"];
    for (count, name) in (1..).zip(others) {
        daemon.signal(name);
        wait_until("a signal is logged", || daemon.log().matches(" is ignored: ").count() == count);
    }
    assert!(daemon.log().contains("SIGHUP is ignored: the daemon was started without a configuration file"));
    initiator.ready(url.lun).expect("the session continues");
    initiator.logout().expect("logout");
    daemon.stop();
    for name in ["INT", "QUIT"] {
        let mut daemon = Daemon::serve(["--lun", "ram:1M"]);
        daemon.signal(name);
        assert!(daemon.wait().success(), "{}", daemon.log());
    }
}

#[test]
fn a_log_that_nobody_takes_ends_nothing() {
    let mut command = Daemon::command();
    command.args(["serve", "--listen", "127.0.0.1:0", "--lun", "ram:1M"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the daemon can be run");
    // From here on logging hits a broken pipe.
    drop(child.stderr.take());
    let banner = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let banner: Vec<String> = banner.take_while(|line| !line.starts_with("Ready.")).collect();
    assert!(banner.iter().any(|line| line.contains("iscsi://")), "{banner:?}");
    for signal in ["HUP", "USR1", "TERM"] {
        must(tool("kill").arg(format!("-{signal}")).arg(child.id().to_string()));
    }
    assert!(wait(&mut child, Duration::from_secs(120)).expect("it ends").success());
}

#[test]
fn a_killed_daemon_is_started_again_at_once() {
    let mut daemon = Daemon::serve(["--lun", "ram:1M"]);
    for _ in 0..5 {
        let url = daemon.lun(0);
        let mut initiator = Initiator::login(&url, &Login::named("client")).expect("login");
        initiator.ready(url.lun).expect("the unit is ready");
        daemon.kill9();
        let again = ["serve", "--lun", "ram:1M", "--listen", &url.portal.to_string()];
        daemon = Daemon::start(Daemon::command().args(again));
    }
    daemon.stop();
}

/// The sense key of TEST UNIT READY; `None`: it is ready.
fn sense_key(initiator: &mut Initiator, lun: u16) -> Option<u8> {
    initiator.read(lun, &[0; 6], 0).expect("an answer").sense_key()
}

const NOT_READY: u8 = 2;

#[test]
fn a_store_that_is_not_there_takes_down_its_lun_until_it_comes() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("late.img");
    let late = format!("file:{}", path.display());
    let daemon = Daemon::serve(["--lun", "ram:1M", "--lun", &late]);
    let url = daemon.lun(0);
    let mut initiator = Initiator::login(&url, &Login::named("guest")).expect("login");
    initiator.ready(0).expect("the other unit is served");
    // The first command reports the power-on, the next one the store.
    sense_key(&mut initiator, 1);
    assert_eq!(sense_key(&mut initiator, 1), Some(NOT_READY));
    assert!(initiator.read_blocks(1, 0, 1, 512).is_err());
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    wait_until("the store is back", || sense_key(&mut initiator, 1) != Some(NOT_READY));
    initiator.ready(1).expect("after the unit attentions");
    assert_eq!(initiator.read_blocks(1, 2047, 1, 512).expect("READ"), vec![7; 512]);
    initiator.write_blocks(1, 0, 512, &[8; 512], true).expect("WRITE");
    let log = daemon.stop();
    assert!(log.contains("cannot be opened") && log.contains("is back"), "{log}");
    assert_eq!(std::fs::read(&path).expect("read")[..512], [8; 512]);
}

/// Whether a LUN is ready, checked by a separate initiator.
fn is_ready(daemon: &Daemon, lun: u16) -> bool {
    let mut guest = Initiator::login(&daemon.lun(0), &Login::named("guest")).expect("login");
    // The first command reports the power-on.
    sense_key(&mut guest, lun);
    let is_ready = sense_key(&mut guest, lun) != Some(NOT_READY);
    guest.logout().expect("logout");
    is_ready
}

#[test]
fn a_file_serves_one_lun_in_one_daemon() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::create_dir(directory.path().join("sub")).expect("made");
    let path = directory.path().join("disk").display().to_string();
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    let (spec, same) = (format!("file:{path}"), format!("file:{}/sub/../disk", directory.path().display()));
    let daemon = Daemon::serve(["--lun", &spec, "--lun", &same]);
    assert_eq!((0..2).filter(|&lun| is_ready(&daemon, lun)).count(), 1, "{}", daemon.log());
    assert!(daemon.log().contains("in use by another LUN of this process"), "{}", daemon.log());

    let other = Daemon::serve(["--lun", &same]);
    assert!(!is_ready(&other, 0));
    assert!(
        other.log().contains(&format!("in use by process {} (lunette)", daemon.pid())),
        "{}",
        other.log()
    );
    let lunette = |arguments: &[&str]| run(Daemon::command().args(arguments), Duration::from_secs(60));
    let copy = directory.path().join("copy").display().to_string();
    lunette(&["copy", &path, &copy]).expect_success("who only reads may");
    lunette(&["bench", &path, "--runtime", "100ms"]).expect_success("who only reads may");
    for refused in [lunette(&["copy", &copy, &path]), lunette(&["bench", &path, "--rw", "write", "--yes"])] {
        assert!(refused.status.is_some_and(|status| !status.success()), "{}", refused.text);
        assert!(refused.text.contains("in use by process"), "{}", refused.text);
    }

    daemon.stop();
    wait_until("the other daemon takes over", || is_ready(&other, 0));
    assert!(is_ready(&other, 0));
    other.stop();
}

#[test]
fn a_remote_unit_that_comes_late_has_its_own_block_sizes() {
    const CAPACITY_CHANGED: [u8; 2] = [0x2a, 0x09];
    const BLOCK: usize = 4096;
    // Nobody listens on a port that was just released.
    let there = std::net::TcpListener::bind("127.0.0.1:0").and_then(|there| there.local_addr());
    let listen = there.expect("a port").to_string();
    let late = format!("iscsi://{listen}/iqn.2026-11.io.lunette:disk/0");
    let front = Daemon::serve(["--lun", &late]);
    let mut initiator = Initiator::login(&front.lun(0), &Login::named("guest")).expect("login");
    let ready = |attentions: &mut Vec<[u8; 2]>, initiator: &mut Initiator| {
        let response = initiator.read(0, &[0; 6], 0).expect("an answer");
        attentions.extend(response.sense.get(12..14).and_then(|code| <[u8; 2]>::try_from(code).ok()));
        response.status == 0
    };
    let mut reported = Vec::new();
    (0..2).for_each(|_| assert!(!ready(&mut reported, &mut initiator)));
    assert!(initiator.read(0, ReadCapacity10::new(), 8).expect("an answer").status != 0);

    let unit = "ram:8M,bs=4096,pbs=16384";
    let back = Daemon::start(Daemon::command().args(["serve", "--listen", &listen, "--lun", unit]));
    reported.clear();
    wait_until("it is ready", || ready(&mut reported, &mut initiator));
    assert!(reported.contains(&CAPACITY_CHANGED), "{reported:02x?}");
    let capacity = initiator.read(0, ReadCapacity16::new(32), 32).expect("READ CAPACITY(16)").data;
    assert_eq!(
        (&capacity[4..8], &capacity[8..12], capacity[13]),
        (&[0, 0, 7, 0xff][..], &[0, 0, 0x10, 0][..], 2)
    );
    let data = vec![7; BLOCK];
    initiator.write_blocks(0, 2047, BLOCK as u32, &data, true).expect("WRITE");
    assert_eq!(initiator.read_blocks(0, 2047, 1, BLOCK as u32).expect("READ"), data);
    initiator.logout().expect("logout");
    front.stop();
    let mut direct = Initiator::login(&back.lun(0), &Login::named("guest")).expect("login");
    assert_eq!(direct.read_blocks(0, 2047, 1, BLOCK as u32).expect("READ"), data);
    back.stop();
}

#[test]
fn a_unit_whose_reservations_cannot_be_read_is_not_served() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let state = directory.path().join("state");
    // Where the state of the unit with the serial number "S" is saved.
    std::fs::create_dir_all(state.join("reservations-53")).expect("a directory in the way of a file");
    let state = state.display().to_string();
    let daemon = Daemon::serve(["--state-dir", &state, "--lun", "ram:1M,serial=S", "--lun", "ram:1M"]);
    let mut initiator = Initiator::login(&daemon.lun(0), &Login::named("guest")).expect("login");
    initiator.ready(1).expect("the other unit is served");
    sense_key(&mut initiator, 0);
    assert_eq!(sense_key(&mut initiator, 0), Some(2));
    let log = daemon.stop();
    assert!(log.contains("saved reservations cannot be read"), "{log}");
}

#[test]
fn groups_decide_who_sees_what_and_may_write() {
    const GROUPS: &str = "[[lun]]\nname = 'a'\nram = '1M'\n[[lun]]\nname = 'b'\nram = '1M'\n\
                          [[target]]\nname = 'iqn.2026-11.a:x'\nluns = ['a', 'b']\n\
                          [[target.group]]\nname = 'out'\ninitiators = ['*:banned*']\ndeny = true\n\
                          [[target.group]]\nname = 'readers'\ninitiators = ['*:reader']\nread_only = true\n\
                          luns = [{ lun = 'b', number = 7 }]\n\
                          [[target.group]]\nname = 'rest'\nnetworks = ['127.0.0.0/8']\n";
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("lunette.toml");
    std::fs::write(&file, GROUPS).expect("written");
    let daemon = Daemon::serve(["--config".as_ref(), file.as_os_str()]);
    let url = daemon.lun(0);
    let login = |name: &str| Initiator::login(&url, &Login::named(name));
    let refused = login("banned1").err().expect("refused").to_string();
    assert!(refused.contains("status class 2, detail 2"), "forbidden, and not {refused}");
    let luns = |initiator: &mut Initiator| {
        let report = initiator.read(0, ReportLuns::new(256), 256).expect("REPORT LUNS");
        report.data[8..].chunks(8).map(|lun| lun[1]).collect::<Vec<u8>>()
    };
    let (mut reader, mut writer) = (login("reader").expect("login"), login("writer").expect("login"));
    assert_eq!((luns(&mut reader), luns(&mut writer)), (vec![7], vec![0, 1]));
    writer.write_blocks(0, 3, 512, &[1; 512], false).expect("WRITE");
    writer.write_blocks(1, 3, 512, &[2; 512], false).expect("WRITE");
    assert_eq!(reader.read_blocks(7, 3, 1, 512).expect("READ"), [2; 512], "one unit under two numbers");
    let reported = reader.write(7, write_cdb(3, 512, 512, false), &[3; 512]).expect("an answer");
    assert_eq!((reported.sense_key(), reported.sense[12]), (Some(7), 0x27), "write protected");
    let reported = reader.read(1, &[0; 6], 0).expect("an answer");
    assert_eq!((reported.sense_key(), reported.sense[12]), (Some(5), 0x25), "not a number of its own");
    assert_eq!(writer.read_blocks(1, 3, 1, 512).expect("READ"), [2; 512]);
    drop((reader, writer));
    let log = daemon.stop();
    assert!(log.contains("group out denies it"), "{log}");
}

/// The line of a log that contains all of these.
fn line_with<'a>(log: &'a str, parts: &[&str]) -> &'a str {
    let mut lines = log.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.next().unwrap_or_else(|| panic!("no line with {parts:?} in:\n{log}"))
}

#[test]
fn refusals_and_ends_of_sessions_say_who_where_and_what() {
    let daemon = Daemon::serve(["--lun", "ram:1M"]);
    let url = daemon.lun(0);
    let wrong = Url { target: "iqn.2026-11.a:absent".into(), ..url.clone() };
    let login = Login::named("wanderer");
    Initiator::login(&wrong, &login).err().expect("there is no such target");
    let mut guest = Initiator::login(&url, &login).expect("login");
    // The first answer is the unit attention of a new nexus, and the command is retried.
    guest.ready(0).expect("the unit is ready");
    guest.write_blocks(0, 3, 512, &[1; 1024], false).expect("WRITE");
    guest.read_blocks(0, 3, 1, 512).expect("READ");
    guest.logout().expect("logout");
    let log = daemon.stop();
    let portal = format!("portal={}", url.portal);
    let initiator = &login.name;
    let asked = format!("no such target (initiator {initiator}, target iqn.2026-11.a:absent)");
    line_with(&log, &["login ended: login refused: ", &asked, "from=127.0.0.1:", &portal]);
    let (who, what) = (format!("initiator={initiator}"), format!("target=\"{}\"", url.target));
    let counts = "commands=4 read_bytes=512 write_bytes=1024";
    line_with(&log, &["ended: logged out", &who, &what, "from=127.0.0.1:", &portal, "seconds=", counts]);
}

#[test]
fn all_addresses_of_both_families_go_together() {
    let daemon = Daemon::serve(["--lun", "ram:1M", "--listen", "127.0.0.1:0", "--listen", "[::1]:0"]);
    for url in daemon.urls() {
        let mut guest = Initiator::login(&url, &Login::named("guest")).expect("login");
        guest.ready(url.lun).expect("served");
        guest.logout().expect("logout");
    }
    daemon.stop();
}

#[test]
fn a_secret_on_the_command_line_is_not_repeated() {
    let spec = "iscsi://me%open-sesame@192.0.2.1/iqn.2026-11.a:x/0,bs=7";
    let outcome = run(Daemon::command().args(["serve", "--lun", spec]), Duration::from_secs(120));
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(2), "{}", outcome.text);
    assert!(outcome.text.contains("192.0.2.1") && !outcome.text.contains("sesame"), "{}", outcome.text);
}
