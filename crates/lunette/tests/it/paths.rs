//! Two portals as paths with different states (ALUA): as configured, and as initiators see and change them.

use super::manage::request;
use super::reload::Served;
use crate::support::daemon::{Daemon, Url};
use crate::support::initiator::{Initiator, Login, Response};
use std::fs;
use wire::scsi::command::{Inquiry, ReadCapacity16, ReportTargetPortGroups, SetTargetPortGroups};
use wire::scsi::status::GOOD;
use wire::scsi::vpd::page;

const STATE_CHANGED: [u8; 2] = [0x2a, 0x06];
const IN_STANDBY: [u8; 2] = [0x04, 0x0b];

const FILE: &str = r#"admin = "./admin.sock"

[[portal]]
listen = "127.0.0.1:0"

# The other network.
[[portal]]
listen = "127.0.0.2:0"
group = 2

[[portal_group]]
group = 2
state = "standby" # as long as the first is there
explicit = true
port_ids = "2000-2999"

[[lun]]
name = "disk"
ram = "16M"

[[target]]
name = "iqn.2026-11.io.lunette:disk"
"#;

/// A daemon with two portals, and the unit through each of them.
pub(crate) fn served() -> (Served, [Url; 2]) {
    served_by(FILE)
}

/// The same with this file.
pub(crate) fn served_by(text: &str) -> (Served, [Url; 2]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("lunette.toml");
    fs::write(&file, text).expect("a file");
    let served = Served { daemon: Daemon::serve_file(&file), directory };
    let portals = request(&socket(&served), "GET", "/v1/portals", "", "").json();
    let url = served.daemon.lun(0);
    let at = |index: usize| {
        let address = portals["items"][index]["address"].as_str().expect("an address");
        Url { portal: address.parse().expect("an address"), ..url.clone() }
    };
    let urls = [at(0), at(1)];
    (served, urls)
}

fn socket(served: &Served) -> std::path::PathBuf {
    served.directory.path().join("admin.sock")
}

/// A session that has consumed the unit attention of a new nexus.
fn session(url: &Url, name: &str) -> Initiator {
    let mut session = Initiator::login(url, &Login::named(name)).expect("login");
    assert_eq!(sense(&test(&mut session)), Some([0x29, 0]));
    session
}

fn test(session: &mut Initiator) -> Response {
    session.read(0, &[0; 6], 0).expect("an answer")
}

fn sense(response: &Response) -> Option<[u8; 2]> {
    (response.status != GOOD).then(|| [response.sense[12], response.sense[13]])
}

/// States by group, as in REPORT TARGET PORT GROUPS data, and the ports of each.
fn groups(session: &mut Initiator) -> Vec<(u8, u8, Vec<u16>)> {
    let asked = ReportTargetPortGroups { format: 1, ..ReportTargetPortGroups::new(256) };
    let data = session.read(0, asked, 256).expect("an answer").data;
    let mut rest = &data[8..];
    let mut groups = Vec::new();
    while let [state, _, _, tag, _, _, _, count, ..] = rest {
        let (ports, others) = rest[8..].split_at(4 * usize::from(*count));
        let ports = ports.chunks(4).map(|port| u16::from_be_bytes([port[2], port[3]])).collect();
        groups.push((*tag, *state, ports));
        rest = others;
    }
    groups
}

/// The group and the relative identifier of the port of a session, by VPD page 83h.
fn port(session: &mut Initiator) -> (u16, u16) {
    let data = session.read(0, Inquiry::page(page::IDENTIFICATION, 1024), 1024).expect("an answer").data;
    let (mut group, mut relative, mut rest) = (0, 0, &data[4..]);
    while let [_, kind, _, len, ..] = rest {
        let (designator, others) = rest[4..].split_at(usize::from(*len));
        match kind & 0x3f {
            0x14 => relative = u16::from_be_bytes([designator[2], designator[3]]),
            0x15 => group = u16::from_be_bytes([designator[2], designator[3]]),
            _ => {}
        }
        rest = others;
    }
    (group, relative)
}

#[test]
fn portals_are_groups_of_which_one_stands_by_until_a_command_of_the_administrator_makes_it_active() {
    let (served, [first, second]) = served();
    let (mut first, mut second) = (session(&first, "first"), session(&second, "second"));
    assert_eq!(sense(&test(&mut first)), None);
    assert_eq!(sense(&test(&mut second)), Some(IN_STANDBY));
    // What Linux requests when it finds a disk.
    let capacity = second.read(0, ReadCapacity16::new(32), 32).expect("an answer");
    assert_eq!((capacity.status, capacity.data.len()), (GOOD, 32));
    let inquiry = second.read(0, Inquiry::new(96), 96).expect("an answer").data;
    assert_eq!(inquiry[5] & 0x30, 0x30, "TPGS: implicit and explicit");
    let (one, other) = (port(&mut first), port(&mut second));
    assert_eq!((one.0, other.0), (1, 2));
    assert!((2000..3000).contains(&other.1), "{other:?}");
    let seen = [(1, 0, vec![one.1]), (2, 2, vec![other.1])];
    assert_eq!((groups(&mut first), groups(&mut second)), (seen.to_vec(), seen.to_vec()));

    let dry = served.must(&["portal-group", "set", "2", "state=active/non-optimized", "--dry-run"]);
    let step = "portal group 2: change state from standby to active/non-optimized\n1 step";
    assert!(dry.contains(&format!("{step}; nothing was changed")), "{dry}");
    assert_eq!(sense(&test(&mut second)), Some(IN_STANDBY));
    let done = served.must(&["portal-group", "set", "2", "state=active/non-optimized"]);
    assert!(done.contains(&format!("{step} applied")), "{done}");
    for session in [&mut first, &mut second] {
        assert_eq!(sense(&test(session)), Some(STATE_CHANGED));
        assert_eq!(sense(&test(session)), None);
    }
    assert_eq!(groups(&mut first)[1].1, 0x01);
    let file = fs::read_to_string(served.file()).expect("the file");
    let line = "state = \"active/non-optimized\" # as long as the first is there\n";
    assert_eq!(file, FILE.replace("state = \"standby\" # as long as the first is there\n", line));

    served.must(&["portal-group", "set", "1", "preferred=true"]);
    let listed = served.must(&["portal-group", "list"]);
    assert!(listed.contains("portal group 1: active/optimized, preferred, 127.0.0.1:0\n"), "{listed}");
    assert!(listed.contains("portal group 2: active/non-optimized, explicit, 127.0.0.2:0\n"), "{listed}");
    assert_eq!(sense(&test(&mut first)), Some(STATE_CHANGED));
    assert_eq!(groups(&mut first)[0].1, 0x80);
    let log = served.daemon.stop();
    assert!(log.contains("the target port group is now active/non-optimized"), "{log}");
}

#[test]
fn an_initiator_sets_a_state_of_its_lun_that_lasts_until_the_file_has_another() {
    let (served, [first, second]) = served();
    let (mut first, mut second) = (session(&first, "first"), session(&second, "second"));
    assert_eq!(sense(&test(&mut second)), Some(IN_STANDBY));
    let set = |session: &mut Initiator, tag: u8, state: u8| {
        session.write(0, SetTargetPortGroups::new(8), &[0, 0, 0, 0, state, 0, 0, tag]).expect("an answer")
    };
    assert_eq!(sense(&set(&mut first, 1, 2)), Some([0x26, 0]), "it is not explicit");
    assert_eq!(set(&mut second, 2, 0).status, GOOD);
    assert_eq!(sense(&test(&mut second)), None);
    assert_eq!(sense(&test(&mut first)), Some(STATE_CHANGED));
    let states = |served: &Served| {
        let lun = request(&socket(served), "GET", "/v1/luns/disk", "", "").json();
        lun["port_groups"][1]["state"].as_str().expect("a state").to_owned()
    };
    assert_eq!(states(&served), "active/optimized");
    assert!(!served.must(&["luns"]).contains("portal group"));
    assert!(
        served.must(&["status"]).contains("Groups    1 active/optimized, 2 standby\n"),
        "what the file says"
    );
    served.must(&["lun", "set", "disk", "product=Other"]);
    assert_eq!(states(&served), "active/optimized", "the file says as before of it");
    served.must(&["portal-group", "set", "2", "state=unavailable"]);
    assert_eq!(states(&served), "unavailable");
    assert!(served.must(&["luns"]).contains(", portal group 2 unavailable"));
    let metrics = request(&socket(&served), "GET", "/metrics", "", "").body;
    for sample in ["{lun=\"disk\",group=\"1\"} 0", "{lun=\"disk\",group=\"2\"} 3"] {
        assert!(metrics.contains(&format!("\nlunette_lun_port_group_state{sample}\n")), "{metrics}");
    }
    served.daemon.stop();
}

#[test]
fn what_is_wrong_with_a_portal_group_is_named() {
    let (served, _) = served();
    for (settings, status, named) in [
        (&["2", "state=stand-by"][..], 2, "`stand-by` is not an asymmetric access state; did you mean"),
        (&["3", "state=standby"], 2, "portal group 3"),
        (&["2", "port_ids=5-1"], 2, "`5-1` is not a range of relative target port identifiers"),
        (&["2", "port_ids=1-10"], 1, "port_ids"),
        (&["2", "group=1"], 2, "the tag of a portal group is set by its portals"),
    ] {
        let refused = served.ask(&[&["portal-group", "set"][..], settings].concat());
        assert_eq!(refused.status.and_then(|status| status.code()), Some(status), "{}", refused.text);
        assert!(refused.text.contains(named), "{settings:?}: {}", refused.text);
    }
    assert_eq!(fs::read_to_string(served.file()).expect("the file"), FILE);
    served.daemon.stop();
}
