//! Debian's aoetools, as far as they need no kernel module, against our target.

use crate::support::daemon::Daemon;
use crate::support::net::{INTERFACE, Network, TARGET};
use crate::support::tools::{Outcome, run, tool};
use std::time::Duration;

/// Arguments of each tool: shelf, slot and device.
const WHERE: [&str; 3] = ["1", "1", INTERFACE];

struct Fixture {
    network: Network,
    daemon: Daemon,
}

impl Fixture {
    fn new(mtu: u32, seed: u64) -> Self {
        let network = Network::new(mtu, seed);
        let listen = format!("{TARGET}:0");
        let unit = "ram:64M,aoe=1.1,serial=DISK0001";
        let arguments = ["--listen", &listen, "--aoe", INTERFACE, "--lun", unit];
        let daemon = Daemon::serve_within(&network.target, arguments);
        Self { network, daemon }
    }

    /// Runs a tool on the initiator's host. Without a limit, each would wait forever.
    fn run(&self, name: &str, arguments: &[&str]) -> Outcome {
        run(&mut self.network.initiator.within(tool(name).args(arguments)), Duration::from_secs(60))
    }

    fn ping(&self, options: &[&str]) -> Outcome {
        self.run("aoeping", &[options, &WHERE].concat())
    }

    /// aoecfg waits for a second where there is no answer.
    fn config(&self, command: &str, string: &str) -> String {
        let options = ["-t", "1", "-c", command, "-s", string];
        self.run("aoecfg", &[&options[..], &WHERE].concat()).expect_success(command)
    }
}

#[test]
fn aoeping_finds_a_healthy_disk() {
    let fixture = Fixture::new(1500, 1);
    fixture.ping(&[]).expect_success("an answer");
    let identity = fixture.ping(&["-I"]).expect_success("IDENTIFY DEVICE");
    for field in ["serial_number: DISK0001 ", "firmware_rev: 0001 ", "model: LUNETTE Virtual Disk "] {
        assert!(identity.contains(field), "{identity}");
    }
    // The output begins with the revision of the data, or the version of a log.
    for (command, first) in
        [("read_data", "10 00"), ("read_log:0", "01 00"), ("read_log:1", "01 00"), ("read_log:6", "01 00")]
    {
        let output = fixture.ping(&["-S", command]).expect_success(command);
        assert!(output.contains("Status: 0x40\n"), "{output}");
        let data: Vec<&str> = output.lines().skip_while(|line| *line != "SMART data:").skip(1).collect();
        assert!(data.len() == 32 && data[0].starts_with(first), "{output}");
    }
    let refused = fixture.ping(&["-S", "read_log:9"]);
    assert!(refused.status.is_some_and(|status| !status.success()), "there is no such log");
    fixture.daemon.stop();
}

#[test]
fn aoecfg_sets_a_config_string_and_asks_for_it() {
    let fixture = Fixture::new(1500, 2);
    assert_eq!(fixture.config("read", "").trim(), "");
    assert_eq!(fixture.config("set", "hello").trim(), "hello");
    assert_eq!(fixture.config("set", "other").trim(), "*badcfg*");
    for (command, string, output) in [
        ("test", "hello", "hello"),
        ("test", "hell", ""),
        ("prefix", "hell", "hello"),
        ("prefix", "ello", ""),
    ] {
        assert_eq!(fixture.config(command, string).trim(), output, "{command} {string}");
    }
    assert_eq!(fixture.config("fset", "other").trim(), "other");
    // All targets: their addresses come before their strings.
    let all = fixture.run("aoecfg", &["-t", "1", INTERFACE]).expect_success("discovery");
    assert_eq!(all.trim(), "1.1\tother");
    fixture.daemon.stop();
}

#[test]
fn aoe_sancheck_finds_how_long_frames_may_be() {
    let fixture = Fixture::new(9000, 3);
    let output = fixture.run("aoe-sancheck", &[]).expect_success("a check");
    let found = output.lines().find(|line| line.starts_with("e1.1"));
    let columns: Vec<&str> = found.unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["e1.1", "1", "8704", INTERFACE], "{output}");
    fixture.daemon.stop();
}
