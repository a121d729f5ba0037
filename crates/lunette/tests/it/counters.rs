//! Counters of LUNs, sessions and cores in the API.

use super::manage::request;
use super::reload::Served;
use crate::support::initiator::reserve_out;
use serde_json::{Value, json};
use wire::scsi::command::Read16;
use wire::scsi::status::{CHECK_CONDITION, GOOD};

impl Served {
    fn get(&self, path: &str) -> Value {
        request(&self.directory.path().join("admin.sock"), "GET", path, "", "").json()
    }
}

/// Commands and bytes of a direction; this many failed, which are not in its histogram.
fn moved(direction: &Value, failed: u64) -> [u64; 2] {
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {direction}"));
    let list = |name: &str| direction["latency"][name].as_array().expect("a histogram");
    let (bounds, counts) = (list("le_us"), list("counts"));
    let counts: Vec<u64> = counts.iter().map(number).collect();
    assert!(counts.is_sorted(), "{direction}");
    assert_eq!(bounds.len(), counts.len(), "{direction}");
    assert_eq!(bounds.last(), Some(&Value::Null));
    let bounds = bounds.iter().map(|bound| bound.as_u64().unwrap_or(u64::MAX));
    assert!(bounds.is_sorted_by(|a, b| a < b), "{direction}");
    let commands = number(&direction["commands"]);
    assert_eq!(counts.last().map(|all| all + failed), Some(commands), "{direction}");
    assert!(direction["latency"]["sum_us"].as_f64().is_some_and(|sum| sum >= 0.0), "{direction}");
    [commands, number(&direction["bytes"])]
}

#[test]
fn what_a_session_did_is_counted_for_it_and_its_lun() {
    let served = Served::with("[[lun]]\nname = \"b\"\nram = \"1M\"\n", "");
    let mut one = served.session("one");
    let mut two = served.session("two");
    let lun = |name: &str| served.get(&format!("/v1/luns/{name}"))["stats"].clone();
    let before = lun("kept");
    for round in 0..3 {
        one.read_blocks(0, round, 8, 512).expect("READ");
        two.write_blocks(0, round, 512, &[1; 1024], false).expect("WRITE");
    }
    let beyond = one.read(0, Read16::new(1 << 40, 8), 4096).expect("an answer");
    assert_eq!((beyond.status, beyond.sense_key()), (CHECK_CONDITION, Some(5)));

    let after = lun("kept");
    let [commands, bytes] = moved(&after["read"], 1);
    let [commands_before, bytes_before] = moved(&before["read"], 0);
    assert_eq!([commands - commands_before, bytes - bytes_before], [4, 3 * 4096], "{after}");
    assert_eq!(moved(&after["write"], 0), [3, 3 * 1024]);
    let refused = |stats: &Value| stats["errors"]["illegal_request"].as_u64().unwrap_or(0);
    assert_eq!(refused(&after) - refused(&before), 1, "{after}");
    assert_eq!(moved(&lun("b")["read"], 0), [0, 0], "nobody has read the other LUN");

    let sessions = served.get("/v1/sessions");
    let of = |index: usize| &sessions["items"][index]["stats"];
    assert_eq!((moved(&of(0)["read"], 1), moved(&of(0)["write"], 0)), ([4, 3 * 4096], [0, 0]));
    assert_eq!((moved(&of(1)["read"], 0), moved(&of(1)["write"], 0)), ([0, 0], [3, 3 * 1024]));
    assert_eq!(of(0)["errors"]["illegal_request"], 1, "{sessions}");

    let cores = served.get("/v1/cores");
    let cores = cores.as_array().expect("a list");
    let sum = |key: &str| cores.iter().filter_map(|core| core[key].as_f64()).sum::<f64>();
    assert_eq!(sum("sessions"), 2.0, "{cores:?}");
    assert!(sum("busy_s") > 0.0 && sum("asleep_s") > 0.0 && sum("buffers_max_bytes") > 0.0, "{cores:?}");
    served.daemon.stop();
}

#[test]
fn who_has_reserved_a_lun_and_how_its_store_is_are_shown() {
    let served = Served::with("[[lun]]\nname = \"gone\"\nfile = \"/nowhere/at/all.img\"\n", "");
    let mut holder = served.session("holder");
    assert_eq!(reserve_out(&mut holder, 0, 0, 0, 0, 0xaa), GOOD, "REGISTER");
    let lun = served.get("/v1/luns/kept");
    assert_eq!((&lun["state"], &lun["last_error"]), (&json!("open"), &Value::Null));
    assert_eq!((&lun["write_cache_enabled"], &lun["reservation"]), (&json!(true), &Value::Null));
    assert_eq!(lun["registrations"][0]["key"], "0x00000000000000aa");
    assert_eq!(lun["registrations"][0]["holds"], false);

    assert_eq!(reserve_out(&mut holder, 0, 1, 1, 0xaa, 0), GOOD, "RESERVE, write exclusive");
    let reservation = &served.get("/v1/luns/kept")["reservation"];
    assert_eq!(reservation["type"], "write exclusive");
    let name = reservation["holders"][0].as_str().expect("a name");
    assert!(name.contains("holder,i,0x"), "{name}");

    let gone = served.get("/v1/luns/gone");
    assert_eq!(gone["state"], "late");
    assert!(gone["last_error"].as_str().is_some_and(|why| why.contains("/nowhere/at/all.img")), "{gone}");
    served.daemon.stop();
}
