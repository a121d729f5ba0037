//! Interfaces that serve AoE, and AoE addresses of LUNs, which change while a daemon serves.

use super::ask;
use crate::support::aoe::{ATA, AoeInitiator, SECTOR, wait_for_announcement, write};
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login};
use crate::support::load::Load;
use crate::support::net::{INTERFACE, Network, TARGET};
use crate::support::tools::{Outcome, must, tool};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const SPARE: &str = "[[aoe]]\ninterface = \"spare0\"\n";
const WITNESS: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// A configuration file, and the socket of the daemon that uses it.
struct Place(TempDir);

impl Place {
    fn new(text: &str) -> Place {
        let place = Place(tempfile::tempdir().expect("a temporary directory"));
        place.write(text);
        place
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("lunette.toml")
    }

    fn write(&self, text: &str) {
        fs::write(self.file(), text).expect("a file");
    }

    fn reload(&self, text: &str) -> Outcome {
        self.write(text);
        ask(&self.0.path().join("admin.sock"), &["reload"])
    }

    /// The same, which succeeds; returns what was done.
    fn must(&self, text: &str) -> String {
        self.reload(text).expect_success(text)
    }
}

/// On one core, so that what was sent first is handled first.
fn text(listen: &str, address: &str, interfaces: &str) -> String {
    format!(
        "admin = \"./admin.sock\"\ncores = \"0\"\nportal = [{{ listen = \"{listen}:3260\" }}]\n\
         [[lun]]\nname = \"kept\"\nram = \"16M\"\n[[lun]]\nname = \"disk\"\nram = \"1M\"\n{address}\n\
         [[target]]\nname = \"iqn.2026-11.io.lunette:disk\"\nluns = [\"kept\", \"disk\"]\n{interfaces}"
    )
}

fn serve(network: &Network, file: &Path) -> Daemon {
    Daemon::serve_within(&network.target, ["--config".as_ref(), file.as_os_str()])
}

#[test]
fn interfaces_and_addresses_change_and_load_over_iscsi_continues() {
    let network = Network::new(1500, 1);
    let spare = ["link", "add", "spare0", "up", "type", "veth", "peer", "name", "spare1"];
    must(&mut network.target.within(tool("ip").args(spare)));
    let with = |address: &str, rest: &str| {
        text(
            TARGET,
            &format!("aoe = \"{address}\""),
            &format!("{SPARE}[[aoe]]\ninterface = \"{INTERFACE}\"\n{rest}"),
        )
    };
    let place = Place::new(&text(TARGET, "aoe = \"1.1\"", SPARE));
    let daemon = serve(&network, &place.file());
    let mut load = Load::within(&network.initiator, &daemon.lun(0).to_string(), &["--iodepth", "32"]);
    load.wait_for_progress();

    // It is added, and its units announce themselves.
    let [listener, target] = [&network.initiator, &network.target]
        .map(|host| host.inside(|| crate::support::net::Port::open(INTERFACE)));
    let done = place.must(&with("1.1", ""));
    assert!(done.contains("serve AoE on aoe0\n1 step applied."), "{done}");
    wait_for_announcement(&listener, target.mac(), 1, 1);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let mut witness = AoeInitiator::find(&network.initiator, 1, 1);
    witness.mac = WITNESS;
    guest.write(3, &[1; SECTOR]).expect("WRITE SECTORS");

    // The access list changes: others continue.
    let mac = guest.mac.map(|byte| format!("{byte:02x}")).join(":");
    let done = place.must(&with("1.1", &format!("deny = [\"{mac}\"]\n")));
    assert!(done.contains("change which hosts are served over AoE on aoe0"), "{done}");
    let refused = guest.frame(ATA, &write(3, &[2; SECTOR]));
    guest.send(&refused);
    witness.config_is_answered();
    assert_eq!(witness.read(3, 1), Ok(vec![1; SECTOR]));
    place.must(&with("1.1", ""));
    guest.write(3, &[3; SECTOR]).expect("WRITE SECTORS");

    // A LUN gets another address, then none, and one again.
    place.must(&with("1.2", ""));
    let late = guest.frame(ATA, &write(3, &[4; SECTOR]));
    guest.send(&late);
    let mut moved = AoeInitiator::find(&network.initiator, 1, 2);
    assert_eq!(moved.read(3, 1), Ok(vec![3; SECTOR]));
    let kept = with("1.1", "").replace("name = \"kept\"", "name = \"kept\"\naoe = \"1.1\"");
    place.must(&kept.replace("ram = \"1M\"\naoe = \"1.1\"", "ram = \"1M\""));
    assert_eq!(guest.identify().expect("IDENTIFY DEVICE")[200..204], (16u32 << 11).to_le_bytes());
    place.must(&with("1.1", ""));
    assert_eq!(guest.read(3, 1), Ok(vec![3; SECTOR]));

    // It is removed, and added again with other cores.
    let done = place.must(&text(TARGET, "aoe = \"1.1\"", SPARE));
    assert!(done.contains("stop serving AoE on aoe0; its sessions end\n1 step applied."), "{done}");
    let lost = guest.frame(ATA, &write(3, &[5; SECTOR]));
    guest.send(&lost);
    place.must(&with("1.1", ""));
    assert_eq!(guest.read(3, 1), Ok(vec![3; SECTOR]));
    load.wait_for_progress();
    load.stop();
    let log = daemon.stop();
    for why in ["its address is no longer served", "its unit was removed", "AoE is no longer served"] {
        assert!(log.contains(why), "{why}:\n{log}");
    }
}

#[test]
fn without_the_right_to_raw_frames_the_change_is_refused_and_all_continues() {
    let place = Place::new(&text("127.0.0.1", "", "").replace("3260", "0"));
    let mut command = tool("setpriv");
    command.args(["--bounding-set", "-net_raw"]).arg(Daemon::program()).args(["serve", "--config"]);
    let daemon = Daemon::start(command.arg(place.file()));
    let mut session = Initiator::login(&daemon.lun(0), &Login::named("stayer")).expect("login");
    session.ready(0).expect("the unit is ready");
    let aoe = |name: &str| format!("[[aoe]]\ninterface = \"{name}\"\n");
    let with = |name: &str| text("127.0.0.1", "aoe = \"1.1\"", &aoe(name)).replace("3260", "0");
    let refused = place.reload(&with("lo"));
    let named = "AoE on lo: raw Ethernet frames need the capability CAP_NET_RAW";
    assert!(refused.text.contains(named) && refused.text.contains("were undone"), "{}", refused.text);
    session.ready(1).expect("everything continues");
    let shown = ask(&place.0.path().join("admin.sock"), &["config", "show"]).expect_success("what runs");
    assert!(!shown.contains("aoe"), "{shown}");
    session.logout().expect("an answer");
    daemon.stop();
}
