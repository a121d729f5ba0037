//! Verified load over each transport while everything that it does not use is added, removed and changed.

use super::{ask, lun, numbers};
use crate::support::Noise;
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use crate::support::load::Load;
use crate::support::net::{INTERFACE, Network, TARGET};
use crate::support::tools::{must, tool};
use std::fs;

#[test]
fn load_over_every_transport_notices_nothing_of_many_reloads() {
    reload_under_load(12);
}

mod soak {
    #[test]
    fn load_over_every_transport_notices_nothing_of_500_reloads() {
        super::reload_under_load(500);
    }
}

/// An interface with nothing behind it, and its other end.
const SPARE: [&str; 2] = ["spare0", "spare1"];
/// LUNs under load, by the transport used for each, and its number in the target; AoE has an address.
const KEPT: [&str; 4] = ["iscsi", "iser", "srp", "aoe"];

fn reload_under_load(count: usize) {
    let network = Network::new(1500, 17);
    let spare = ["link", "add", SPARE[0], "up", "type", "veth", "peer", "name", SPARE[1]];
    must(&mut network.target.within(tool("ip").args(spare)));
    must(&mut network.target.within(tool("ip").args(["link", "set", SPARE[1], "up"])));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (file, socket) = (directory.path().join("lunette.toml"), directory.path().join("admin.sock"));
    let write = |text: &str| fs::write(&file, text).expect("a file");
    write(&text("", "", ""));
    let daemon = Daemon::serve_within(&network.target, ["--config".as_ref(), file.as_os_str()]);
    let over = |index: u16| {
        let url = daemon.url_over(KEPT[usize::from(index)]);
        let (rest, _) = url.rsplit_once('/').expect("a LUN at the end");
        format!("{rest}/{index}")
    };
    let urls = [over(0), over(1), over(2), format!("aoe://{INTERFACE}/1.1")];
    let options = ["--bs", "4K", "--iodepth", "32", "--size", "8M"];
    let mut loads = urls.map(|url| Load::within(&network.initiator, &url, &options));
    loads.iter_mut().for_each(Load::wait_for_progress);

    let watcher = network.initiator.inside(|| Initiator::login(&daemon.lun(0), &Login::named("watcher")));
    let mut watcher = watcher.expect("login");
    watcher.ready(0).expect("the unit is ready");
    let mut noise = Noise(17);
    for _ in 0..count {
        let (text, mut taken) = variant(&mut noise);
        write(&text);
        ask(&socket, &["reload"]).expect_success("it is reloaded");
        taken.sort_unstable();
        assert_eq!(numbers(&mut watcher), taken);
        loads.iter_mut().for_each(Load::assert_running);
    }
    loads.iter_mut().for_each(Load::wait_for_progress);
    loads.into_iter().for_each(Load::stop);
    daemon.stop();
}

/// Some of the LUNs that come and go, with target numbers and AoE addresses, and some of what is not under
/// load; and the numbers that the target shows then.
fn variant(noise: &mut Noise) -> (String, Vec<u8>) {
    let mut taken = vec![0, 1, 2];
    let (mut luns, mut list) = (String::new(), String::new());
    let all = ["a", "b", "c", "d"].map(|name| (name, 3 + noise.below(9) as u8));
    let chosen: Vec<_> = all.into_iter().filter(|_| noise.below(2) == 0).collect();
    for (place, (name, number)) in chosen.into_iter().enumerate() {
        let number = (number..).find(|number| !taken.contains(number)).expect("there are enough");
        taken.push(number);
        list += &format!(", {{ lun = \"{name}\", number = {number} }}");
        luns += &lun(name);
        luns += ["read_only = true\n", "product = \"Other\"\n", ""][noise.below(3) as usize];
        if noise.below(2) == 0 {
            luns += &format!("aoe = \"2.{}\"\n", 2 * place as u64 + noise.below(2));
        }
    }
    let rest = [
        [
            "",
            "[[target]]\nname = \"iqn.2026-11.io.lunette:other\"\nluns = [\"iscsi\"]\nportals = [\"192.0.2.1:3262\"]\n",
        ],
        ["", "[[aoe]]\ninterface = \"spare0\"\n"],
        ["", "[[aoe]]\ninterface = \"spare1\"\ndeny = [\"02:00:00:00:00:09\"]\n"],
    ];
    let chosen = rest.map(|form| form[noise.below(2) as usize]).concat();
    (text(&luns, &list, &chosen), taken)
}

/// The LUNs under load, and these lines.
fn text(luns: &str, list: &str, rest: &str) -> String {
    let portals = [("3260", "\"iscsi\", \"iser\""), ("3261", "\"srp\""), ("3262", "\"iscsi\"")];
    let portal = |(port, transports)| {
        format!("[[portal]]\nlisten = \"{TARGET}:{port}\"\ntransports = [{transports}]\n")
    };
    let kept = |name: &str| format!("[[lun]]\nname = \"{name}\"\nram = \"16M\"\n");
    let portals: String = portals.map(portal).concat();
    let kept: String = KEPT.map(kept).concat();
    format!(
        "admin = \"./admin.sock\"\nsrp_guid = \"024c750000000017\"\n{portals}{kept}aoe = \"1.1\"\n{luns}\
         [[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\nluns = [\"iscsi\", \"iser\", \"srp\"{list}]\n\
         portals = [\"{TARGET}:3260\", \"{TARGET}:3261\"]\n[[aoe]]\ninterface = \"{INTERFACE}\"\n{rest}"
    )
}
