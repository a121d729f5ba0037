//! Sessions: listed, and disconnected.

use super::manage::request;
use super::reload::{Served, ask};
use crate::support::aoe::AoeInitiator;
use crate::support::net::{INTERFACE, Network};
use crate::support::segment::serve;
use serde_json::Value;

fn sessions(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn who_is_connected_is_shown_with_what_it_does_and_can_be_disconnected() {
    let served = Served::with("", "");
    assert_eq!(served.must(&["sessions"]), "Nobody is connected.\n");
    let mut one = served.session("one");
    let mut two = served.session("two");
    one.read_blocks(0, 0, 8, 512).expect("READ");
    one.write_blocks(0, 0, 512, &[1; 1024], false).expect("WRITE");

    let listed = sessions(&served.must(&["sessions", "--json"]));
    assert_eq!(listed.len(), 2, "{listed:?}");
    let first = &listed[0];
    assert!(first["initiator"].as_str().is_some_and(|name| name.ends_with("one")), "{first}");
    assert_eq!(first["transport"], "iSCSI");
    assert_eq!(first["state"], "serving");
    assert_eq!(first["target"], "iqn.2026-11.io.lunette:disk");
    assert_eq!(first["portal"], served.daemon.lun(0).portal.to_string());
    assert_eq!(first["address"], one.stream().local_addr().expect("an address").to_string());
    assert_eq!((&first["read_bytes"], &first["write_bytes"]), (&4096.into(), &1024.into()));
    assert_eq!(first["in_flight"], 0);
    assert!(first["commands"].as_u64().is_some_and(|commands| commands >= 3), "{first}");
    assert_eq!(first["keys"]["DataDigest"], "None", "{first}");
    let table = served.must(&["sessions"]);
    assert!(table.contains("IN FLIGHT") && table.contains("portal 127.0.0.1:"), "{table}");

    let socket = served.directory.path().join("admin.sock");
    let page = request(&socket, "GET", "/v1/sessions?limit=1", "", "").json();
    assert_eq!((&page["items"][0]["id"], &page["next"]), (&first["id"], &first["id"]));
    let rest = request(&socket, "GET", &format!("/v1/sessions?after={}", page["next"]), "", "").json();
    assert_eq!((&rest["items"][0]["id"], &rest["next"]), (&listed[1]["id"], &Value::Null));
    assert_eq!(request(&socket, "GET", "/v1/sessions?after=x", "", "").status, 400);
    assert_eq!(request(&socket, "GET", "/v1/sessions/x", "", "").status, 404);

    let id = first["id"].to_string();
    let dry = served.must(&["disconnect", &id, "--dry-run"]);
    assert!(dry.starts_with(&format!("disconnect session {id} of ")) && dry.contains("dry run"), "{dry}");
    one.ready(0).expect("it is still there");
    served.must(&["disconnect", &id]);
    assert!(one.ready(0).is_err(), "its connection has ended");
    two.ready(0).expect("the other one notices nothing");
    let left = sessions(&served.must(&["sessions", "--json"]));
    assert_eq!(left.iter().map(|session| &session["id"]).collect::<Vec<_>>(), [&listed[1]["id"]]);
    let again = served.ask(&["disconnect", &id]);
    assert!(
        again.text.contains("there is none with that number; list them: lunette sessions"),
        "{}",
        again.text
    );
    assert_eq!(again.status.and_then(|status| status.code()), Some(2));
    let log = served.daemon.stop();
    assert!(log.contains(&format!("session {id} ended: an administrator disconnected it")), "{log}");
    assert!(log.contains(&format!("admin: disconnect session {id} of ")), "{log}");
    assert!(log.contains(": done who=\"uid 0, pid "), "{log}");
}

#[test]
fn initiators_of_aoe_are_shown_with_their_interface_and_have_no_session_to_end() {
    let network = Network::new(1500, 21);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("admin.sock");
    let daemon = serve(&network, &["ram:1M,aoe=1.1"], &["--admin", socket.to_str().expect("UTF-8")]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    guest.read(0, 2).expect("READ SECTORS");
    let listed = sessions(&ask(&socket, &["sessions", "--json"]).expect_success("it is shown"));
    let [session] = &listed[..] else { panic!("{listed:?}") };
    let shown = [&session["transport"], &session["interface"], &session["aoe"], &session["target"]];
    assert_eq!(shown, [&"AoE".into(), &INTERFACE.into(), &"1.1".into(), &Value::Null], "{session}");
    assert_eq!((&session["read_bytes"], &session["in_flight"]), (&1024.into(), &0.into()), "{session}");
    let table = ask(&socket, &["sessions"]).expect_success("it is shown");
    let interface = format!("interface {INTERFACE}");
    assert!(table.contains("  1.1  ") && table.contains("  AoE  ") && table.contains(&interface), "{table}");
    let refused = ask(&socket, &["disconnect", &session["id"].to_string()]);
    assert!(refused.text.contains("AoE has no sessions to end"), "{}", refused.text);
    guest.read(0, 2).expect("it is served as before");
    daemon.stop();
}
