//! Two gateways that share a Ceph image, each in its own network: one link to the guest, one to the
//! cluster.

use super::daemon::Daemon;
use super::guest::Host;
use super::scenario::{Scenario, scenario};
use crate::command::{Result, administration, succeed};
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[allow(clippy::expect_used, clippy::panic, reason = "a test's")]
#[path = "../../../crates/store/tests/support/ceph.rs"]
mod ceph;

use ceph::{Ceph, POOL};

/// The cluster's address, from everywhere. All addresses are in the range for benchmarks (RFC 2544 appendix
/// C.2.2), which the guest reaches through the host.
const CLUSTER: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const RANGE: &str = "198.18.0.0/15";
const GUESTS: &str = "192.0.2.0/24";

const NAMES: [&str; 2] = ["a", "b"];
const IMAGE: &str = "disk";
const IMAGE_BYTES: u64 = 256 << 20;

/// A scenario with this value of `access`, whose script follows the one shared by all of these.
macro_rules! shared {
    ($name:literal, $access:literal, $script:literal, $minutes:literal) => {
        Scenario {
            limit: Duration::from_secs(60 * $minutes),
            access: Some($access),
            ..scenario($name, concat!(include_str!("../../vm/gateways.sh"), include_str!($script)))
        }
    };
}

pub(super) const ONE: Scenario = shared!("gateways", "one", "../../vm/gateways_one.sh", 15);
pub(super) const ALL: Scenario = shared!("gateways_all", "all", "../../vm/gateways_all.sh", 30);

/// The cluster with its gateways.
pub(super) struct Gateways {
    ceph: Ceph,
    gateways: [Daemon; 2],
    /// Of their configuration files and logs.
    directory: PathBuf,
    /// How they share the image.
    access: &'static str,
}

impl Gateways {
    /// Starts them with this access to the image; they log to this directory.
    pub(super) fn serve(program: &Path, directory: &Path, access: &'static str) -> Result<Self> {
        // The names of network namespaces are stored there; these are only this scenario's.
        succeed(administration("mount").args(["-t", "tmpfs", "tmpfs", "/run"]))?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(|error| error.to_string())?;
        ip(&format!("address add {CLUSTER}/32 dev lo"))?;
        // Packets to a gateway that is cut off are lost, as in a network, rather than refused.
        ip(&format!("route add blackhole {RANGE}"))?;
        let ceph = Ceph::persistent_at(CLUSTER);
        ceph.create_shared(IMAGE, IMAGE_BYTES);
        if access == "all" {
            ceph.rbd(&["feature", "disable", &format!("{POOL}/{IMAGE}"), "exclusive-lock"]);
        }
        let daemons = NAMES.map(|name| daemon(program, directory, name));
        let mut gateways = Self { gateways: daemons, ceph, directory: directory.to_owned(), access };
        for (number, name) in (1..).zip(NAMES) {
            link_up(name, number)?;
            gateways.configure(name, number, "")?;
        }
        gateways.gateways.iter_mut().try_for_each(Daemon::serve)?;
        Ok(gateways)
    }

    fn gateway(&mut self, name: &str) -> Result<&mut Daemon> {
        index(name).map(|index| &mut self.gateways[index])
    }

    /// Writes the configuration file of a gateway, with these further lines.
    fn configure(&self, name: &str, number: u8, more: &str) -> Result {
        let text = configuration(name, number, self.access, &self.ceph.conf()) + more;
        let file = self.directory.join(format!("{name}.toml"));
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Lets initiators move the disk to this gateway.
    fn make_explicit(&mut self, name: &str) -> Result {
        let number = index(name)? as u8 + 1;
        let group = format!("\n[[portal_group]]\ngroup = {number}\nexplicit = true\n");
        self.configure(name, number, &group)?;
        self.gateway(name)?.signal("HUP")
    }
}

impl Host for Gateways {
    fn act(&mut self, request: &str) -> Result {
        let words: Vec<&str> = request.split(' ').collect();
        match words[..] {
            ["kill", "osd"] => self.ceph.kill_osd(),
            ["serve", "osd"] => self.ceph.start_osd(),
            ["kill", name] => self.gateway(name)?.kill()?,
            ["stop", name] => self.gateway(name)?.stop()?,
            ["serve", name] => self.gateway(name)?.serve()?,
            ["freeze", name] => self.gateway(name)?.signal("STOP")?,
            ["continue", name] => self.gateway(name)?.signal("CONT")?,
            ["explicit", name] => self.make_explicit(name)?,
            // `guest` or `cluster`, as in the links' names.
            ["cut", side, name] => ip(&format!("link set {side}-{name} down"))?,
            ["mend", side, name] => ip(&format!("link set {side}-{name} up"))?,
            _ => return Err("there is no such request".into()),
        }
        Ok(())
    }

    fn stop(&mut self) -> Result {
        self.gateways.iter_mut().try_for_each(Daemon::stop)
    }

    fn last_lines(&self) -> String {
        let logs = NAMES.iter().zip(&self.gateways);
        logs.map(|(name, gateway)| format!("gateway {name}:\n{}\n", gateway.last_lines())).collect()
    }
}

fn index(name: &str) -> Result<usize> {
    NAMES.iter().position(|known| *known == name).ok_or_else(|| format!("there is no gateway {name}"))
}

/// Creates the network of a gateway: it sees this machine as 198.18.N.1, and the guest sees it as 198.18.N.2.
fn link_up(name: &str, number: u8) -> Result {
    let back = number + 100;
    [
        format!("netns add {name}"),
        format!("-n {name} link set lo up"),
        format!("link add guests-{name} type veth peer name guests netns {name}"),
        format!("address add 198.18.{number}.1/30 dev guests-{name}"),
        format!("link set guests-{name} up"),
        format!("-n {name} address add 198.18.{number}.2/30 dev guests"),
        format!("-n {name} link set guests up"),
        format!("-n {name} route add {GUESTS} via 198.18.{number}.1"),
        format!("link add cluster-{name} type veth peer name cluster netns {name}"),
        format!("address add 198.18.{back}.1/30 dev cluster-{name}"),
        format!("link set cluster-{name} up"),
        format!("-n {name} address add 198.18.{back}.2/30 dev cluster"),
        format!("-n {name} link set cluster up"),
        format!("-n {name} route add {CLUSTER} via 198.18.{back}.1"),
    ]
    .iter()
    .try_for_each(|line| ip(line))
}

fn ip(line: &str) -> Result {
    succeed(administration("ip").args(line.split(' ')))
}

fn daemon(program: &Path, directory: &Path, name: &str) -> Daemon {
    let file = directory.join(format!("{name}.toml")).display().to_string();
    let program = program.display().to_string();
    let line = ["ip", "netns", "exec", name, &program, "serve", "--config", &file];
    Daemon::new(line.map(String::from).to_vec(), directory.join(format!("{name}.log")))
}

/// As in docs/cluster.md.
fn configuration(name: &str, number: u8, access: &str, conf: &str) -> String {
    format!(
        "admin = \"none\"

[cluster]
name = \"disks\"
gateway = \"{name}\"
pool = \"{POOL}\"
conf = \"{conf}\"
osd_map_delay = \"7s\"

[[portal]]
listen = \"198.18.{number}.2:3260\"
group = {number}

[[lun]]
name = \"disk\"
rbd = \"{POOL}/{IMAGE}\"
conf = \"{conf}\"
access = \"{access}\"

[[target]]
name = \"iqn.2026-11.io.lunette:disk\"
"
    )
}
