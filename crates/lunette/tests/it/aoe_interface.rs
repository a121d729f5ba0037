//! Network interfaces that are removed, return and change while AoE is served, and used, on them.

use crate::support::aoe::{AoeInitiator, BAD_ARGUMENT, CONFIG, SECTOR, config, wait_for_announcement};
use crate::support::daemon::Daemon;
use crate::support::load::Load;
use crate::support::net::{INITIATOR, INTERFACE, Namespace, Network, Port};
use crate::support::tools::{must, tool};
use crate::support::wait_until;
use std::path::Path;
use std::time::Duration;

/// The unit that most tests serve, whose answers may take long on a busy machine.
const URL: &str = "aoe://aoe0/1.1?give_up_after=120";
/// Addresses of interfaces.
const ONE: &str = "02:00:00:00:01:01";
const OTHER: &str = "02:00:00:00:01:02";
/// The offset in a config response of the number of sectors per frame (AoEr11 section 3.2).
const SECTORS_AT: usize = 4;

/// A host on the segment whose own interface can be removed separately: a bridge connects it to the segment.
struct Host<'a>(&'a Namespace);

impl<'a> Host<'a> {
    fn new(host: &'a Namespace, mtu: u32, mac: &str) -> Self {
        let host = Self(host);
        host.ip(&[
            &format!("link set {INTERFACE} down"),
            &format!("link set {INTERFACE} name wire0"),
            &format!("link add name bridge0 mtu {mtu} type bridge"),
            "link set wire0 master bridge0",
            "link set wire0 up",
            "link set bridge0 up",
        ]);
        host.make(mtu, mac);
        host
    }

    fn make(&self, mtu: u32, mac: &str) {
        self.ip(&[
            &format!("link add {INTERFACE} mtu {mtu} address {mac} type veth peer name plug0 mtu {mtu}"),
            "link set plug0 master bridge0",
            "link set plug0 up",
            &format!("link set {INTERFACE} up"),
        ]);
    }

    fn remove(&self) {
        self.ip(&[&format!("link delete {INTERFACE}")]);
    }

    fn set(&self, what: &str) {
        self.ip(&[&format!("link set {INTERFACE} {what}")]);
    }

    fn ip(&self, lines: &[&str]) {
        let script = "printf '%s\\n' \"$@\" | ip -batch -";
        must(&mut self.0.within(tool("sh").args(["-ec", script, "sh"]).args(lines)));
    }
}

/// A daemon that serves these units over AoE.
fn serve(network: &Network, units: &[&str]) -> Daemon {
    let units = units.iter().flat_map(|unit| ["--lun", unit]);
    Daemon::serve_within(&network.target, ["--aoe", INTERFACE].into_iter().chain(units))
}

/// How often the daemon has logged this.
fn said(daemon: &Daemon, words: &str) -> usize {
    daemon.log().matches(words).count()
}

const GONE: &str = "there is no such network interface";
const AGAIN: &str = "aoe0: it is served again";

fn sectors(guest: &mut AoeInitiator) -> u8 {
    guest.ask(CONFIG, &config(0, b"")).argument[SECTORS_AT]
}

#[test]
fn verified_load_continues_when_the_targets_interface_is_made_again() {
    let network = Network::new(1500, 1);
    let host = Host::new(&network.target, 1500, ONE);
    let daemon = serve(&network, &["ram:32M,aoe=1.1"]);
    let mut load = Load::within(&network.initiator, URL, &["--bs", "4K", "--iodepth", "16"]);
    load.wait_for_progress();
    // Another address is found by the next login, after the old one has been silent for long enough.
    for (round, mac) in [ONE, ONE, OTHER].into_iter().enumerate() {
        host.remove();
        wait_until("it is missed", || said(&daemon, GONE) > round);
        load.assert_running();
        host.make(1500, mac);
        wait_until("it is served again", || said(&daemon, AGAIN) > round);
        load.wait_for_progress();
        assert_eq!((said(&daemon, GONE), said(&daemon, AGAIN)), (round + 1, round + 1), "{}", daemon.log());
    }
    // An interface that was down is unchanged when it is up again.
    host.set("down");
    wait_until("it is missed", || said(&daemon, "is down") > 0);
    host.set("up");
    load.wait_for_progress();
    assert_eq!(said(&daemon, AGAIN), 3, "{}", daemon.log());
    load.stop();
    daemon.stop();
}

#[test]
fn verified_load_continues_while_the_mtu_changes() {
    let network = Network::new(9000, 2);
    let host = Host::new(&network.target, 9000, ONE);
    host.set("mtu 1500");
    // With two cores its frames arrive at the second, which the first notifies that the interface has
    // changed.
    let address = format!("link set {INTERFACE} address 02:00:00:00:02:14");
    must(&mut network.initiator.within(tool("ip").args(address.split(' '))));
    let daemon = serve(&network, &["ram:32M,aoe=1.1"]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let mut load = Load::within(&network.initiator, URL, &["--bs", "16K", "--iodepth", "8"]);
    load.wait_for_progress();
    let data = vec![7; 17 * SECTOR];
    for _ in 0..2 {
        host.set("mtu 9000");
        wait_until("larger frames are taken", || sectors(&mut guest) == 17);
        load.wait_for_progress();
        host.set("mtu 1500");
        wait_until("they are not", || sectors(&mut guest) == 2);
        assert_eq!(guest.read(0, 3), Err(BAD_ARGUMENT));
        guest.read(0, 2).expect("READ SECTORS");
        load.wait_for_progress();
    }
    load.stop();
    host.set("mtu 9000");
    wait_until("larger frames are taken", || sectors(&mut guest) == 17);
    guest.write(0, &data).expect("WRITE SECTORS");
    assert_eq!(guest.read(0, 17), Ok(data.clone()));

    // AoE needs more than this.
    host.set("mtu 1000");
    wait_until("the log says why", || said(&daemon, "its MTU is 1000, but at least 1046 is needed") == 1);
    let query = guest.frame(CONFIG, &config(0, b""));
    guest.send(&query);
    host.set("mtu 1500");
    wait_until("it is served again", || sectors(&mut guest) == 2);
    assert_eq!(guest.read(15, 2), Ok(data[..2 * SECTOR].to_vec()));
    let log = daemon.stop();
    assert_eq!(log.matches("is needed").count(), 1, "{log}");
}

#[test]
fn another_address_is_announced_and_answers_come_from_it() {
    let network = Network::new(1500, 3);
    let host = Host::new(&network.target, 1500, ONE);
    let daemon = serve(&network, &["ram:1M,aoe=1.1"]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    guest.write(3, &[5; SECTOR]).expect("WRITE SECTORS");
    let listener = network.initiator.inside(|| Port::open(INTERFACE));
    host.set(&format!("address {OTHER}"));
    wait_for_announcement(&listener, [2, 0, 0, 0, 1, 2], 1, 1);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    assert_eq!(guest.read(3, 1), Ok(vec![5; SECTOR]));
    daemon.stop();
}

#[test]
fn what_is_still_in_a_store_is_over_before_its_initiator_is_served_again() {
    let network = Network::new(1500, 5);
    let host = Host::new(&network.target, 1500, ONE);
    let behind = ["--listen", &format!("{INITIATOR}:0"), "--lun", "ram:1M"];
    let behind = Daemon::serve_within(&network.initiator, behind);
    let slow = format!("{},aoe=1.1", behind.lun(0));
    let daemon = serve(&network, &[&slow, "ram:1M,aoe=1.2"]);
    let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
    let mut witness = AoeInitiator::find(&network.initiator, 1, 2);
    guest.write(0, &[1; SECTOR]).expect("WRITE SECTORS");

    behind.freeze();
    let late = guest.frame(crate::support::aoe::ATA, &crate::support::aoe::write(0, &[2; SECTOR]));
    guest.send(&late);
    witness.config(0, b"").expect("an answer");
    for round in 1..=3 {
        host.remove();
        host.make(1500, ONE);
        wait_until("the interface is served again", || said(&daemon, AGAIN) >= round);
        witness.write(0, &[round as u8; SECTOR]).expect("no other unit waits for it");
        // The first write is in the store, or on its way there: this one must not overtake it.
        let newer = guest.frame(crate::support::aoe::ATA, &crate::support::aoe::write(0, &[3; SECTOR]));
        guest.send(&newer);
    }
    behind.signal("CONT");
    guest.write(0, &[4; SECTOR]).expect("WRITE SECTORS");
    assert_eq!(guest.read(0, 1), Ok(vec![4; SECTOR]));
    daemon.stop();
    behind.stop();
}

#[test]
fn a_copy_continues_when_the_targets_interface_is_made_again() {
    let network = Network::new(1500, 7);
    let host = Host::new(&network.target, 1500, ONE);
    let daemon = serve(&network, &["ram:16M,aoe=1.1"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = file(&directory.path().join("source"));
    let sessions = || said(&daemon, "has begun");
    let copy = std::thread::scope(|scope| {
        let copy = scope.spawn(|| {
            let mut command = Daemon::command();
            command.args(["copy", &source, URL, "--verify", "--yes"]);
            crate::support::tools::run(&mut network.initiator.within(&command), Duration::from_secs(300))
        });
        wait_until("the copy begins", || sessions() == 1);
        host.remove();
        host.make(1500, ONE);
        wait_until("it continues", || sessions() == 2);
        copy.join().expect("it does not panic")
    });
    assert!(copy.expect_success("copy").contains("no byte differs"));
    daemon.stop();
}

/// A file of noise.
fn file(path: &Path) -> String {
    std::fs::write(path, crate::support::Noise(11).bytes(16 << 20)).expect("a file");
    path.to_str().expect("UTF-8").to_owned()
}

/// They take a minute: `cargo xtask soak` runs them.
mod soak {
    use super::*;

    #[test]
    fn hundreds_of_removals_cost_no_memory() {
        const CYCLES: usize = 200;
        const GROWTH_BYTES_MAX: u64 = 8 << 20;
        let network = Network::new(1500, 4);
        let host = Host::new(&network.target, 1500, ONE);
        let daemon = serve(&network, &["ram:1M,aoe=1.1"]);
        let descriptors =
            || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("its descriptors").count();
        let mut guest = AoeInitiator::find(&network.initiator, 1, 1);
        let mut before = None;
        for cycle in 0..CYCLES {
            // Not each of them is served before it is removed again.
            if cycle % 4 == 0 {
                guest.write(cycle as u64, &[cycle as u8; SECTOR]).expect("WRITE SECTORS");
            }
            host.remove();
            host.make(1500, ONE);
            // The first cycles touch memory that is reused later.
            if cycle == CYCLES / 10 {
                guest.config(0, b"").expect("it is served");
                before = Some((daemon.resident_bytes(), descriptors()));
            }
        }
        assert_eq!(guest.read(CYCLES as u64 - 4, 1), Ok(vec![CYCLES as u8 - 4; SECTOR]));
        let (memory, count) = before.expect("there were some");
        let grown = daemon.resident_bytes().saturating_sub(memory);
        assert!(grown < GROWTH_BYTES_MAX, "memory grew by {grown} bytes");
        wait_until("old sockets are closed", || descriptors() <= count + 2);
        daemon.stop();
    }

    #[test]
    fn an_initiators_own_interface_may_go_and_change_under_verified_load() {
        let network = Network::new(9000, 6);
        let host = Host::new(&network.initiator, 9000, ONE);
        let daemon = serve(&network, &["ram:32M,aoe=1.1"]);
        let front = ["--listen", &format!("{INITIATOR}:0"), "--lun", URL];
        let front = Daemon::serve_within(&network.initiator, front);
        let url = front.lun(0).to_string();
        let mut load = Load::within(&network.initiator, &url, &["--bs", "16K", "--iodepth", "8"]);
        load.wait_for_progress();
        host.remove();
        wait_until("it is missed", || said(&front, GONE) > 0);
        host.make(9000, ONE);
        load.wait_for_progress();
        host.set(&format!("address {OTHER}"));
        load.wait_for_progress();
        for mtu in ["mtu 1500", "mtu 9000"] {
            host.set(mtu);
            load.wait_for_progress();
        }
        load.stop();
        front.stop();
        daemon.stop();
    }
}
