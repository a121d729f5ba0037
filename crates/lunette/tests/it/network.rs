//! The network of AoE tests behaves as they assume.

use crate::support::daemon::Daemon;
use crate::support::load::Load;
use crate::support::net::{Faults, INTERFACE, Network, Passed, Port, TARGET};
use crate::support::tools::{must, tool};
use crate::support::vblade::Vblade;
use crate::support::wait_until;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// Frames in transit to the bridge: a core's backlog holds 1000 for all links of the machine
/// (net.core.netdev_max_backlog), and when the machine is busy more are dropped, those of other tests as
/// well.
const BURST: u64 = 200;

/// A port of each host.
fn ports(network: &Network) -> [Port; 2] {
    [&network.initiator, &network.target].map(|host| host.inside(|| Port::open(INTERFACE)))
}

/// A broadcast of this many bytes, beginning with this number.
fn frame(from: &Port, number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = [&[0xFF; 6][..], &from.mac(), &[0x88, 0xA2], &number.to_be_bytes()].concat();
    frame.resize(14 + bytes, 0x5A);
    frame
}

fn number(frame: &[u8]) -> u32 {
    frame[14..18].try_into().map(u32::from_be_bytes).expect("a frame of ours")
}

/// Sends these frames from one port, and receives all that arrive at the other.
fn exchange(
    network: &Network,
    [from, to]: &[Port; 2],
    numbers: Range<u32>,
    bytes: usize,
) -> (Vec<u32>, Passed) {
    let before = network.passed();
    let frames = numbers.len() as u64;
    for (sent, number) in (1..).zip(numbers) {
        from.send(&frame(from, number, bytes)).expect("it is sent");
        if sent % BURST == 0 || sent == frames {
            wait_until("the bridge has all of them", || network.passed().sent == before.sent + sent);
        }
    }
    let after = network.passed();
    let passed = Passed {
        sent: frames,
        lost: after.lost - before.lost,
        repeated: after.repeated - before.repeated,
        delayed: after.delayed - before.delayed,
    };
    let arrive = frames - passed.lost + passed.repeated;
    let arrived = (0..arrive).map(|_| number(&to.receive(PATIENCE).expect("a frame that was not lost")));
    (arrived.collect(), passed)
}

#[test]
fn frames_of_both_sizes_cross_unharmed_and_larger_ones_do_not() {
    for mtu in [1500, 9000] {
        let network = Network::new(mtu, 1);
        let [initiator, target] = ports(&network);
        for (from, to) in [(&initiator, &target), (&target, &initiator)] {
            let sent = frame(from, 7, mtu as usize);
            from.send(&sent).expect("a frame of the MTU");
            assert_eq!(to.receive(PATIENCE), Some(sent));
            assert!(from.send(&frame(from, 8, mtu as usize + 1)).is_err());
        }
        assert_eq!(network.passed(), Passed { sent: 2, ..Passed::default() });
    }
}

#[test]
fn faults_happen_as_often_as_requested() {
    const FRAMES: u32 = 2000;
    let network = Network::new(1500, 2);
    let ports = ports(&network);
    for (name, lost, repeated, delayed) in
        [("lost", 100, 0, 0), ("repeated", 0, 100, 0), ("delayed", 0, 0, 100)]
    {
        network.set(Faults { lost, repeated, delayed, rate: None });
        let (arrived, passed) = exchange(&network, &ports, 0..FRAMES, 50);
        let faults = [passed.lost, passed.repeated, passed.delayed];
        assert_eq!(
            faults.map(|faults| faults > 0),
            [lost, repeated, delayed].map(|share| share > 0),
            "{name}"
        );
        assert!((100..300).contains(&faults.iter().sum::<u64>()), "{name}: {passed:?}");
        assert_eq!(arrived.is_sorted(), delayed == 0, "{name}");
        let each: BTreeSet<u32> = arrived.into_iter().collect();
        assert_eq!(each.len() as u64, u64::from(FRAMES) - passed.lost, "{name}");
    }
    network.set(Faults::CUT);
    assert_eq!(exchange(&network, &ports, 0..FRAMES, 50).0, Vec::<u32>::new());
    network.set(Faults::NONE);
    let later = FRAMES..2 * FRAMES;
    assert_eq!(exchange(&network, &ports, later.clone(), 50).0, later.collect::<Vec<u32>>());
}

#[test]
fn a_slow_segment_drops_what_it_cannot_hold() {
    let network = Network::new(1500, 3);
    // What follows would take it 3 s.
    network.set(Faults { rate: Some(8_000_000), ..Faults::NONE });
    let (arrived, passed) = exchange(&network, &ports(&network), 0..2000, 1500);
    assert!(passed.lost > 0 && arrived.is_sorted() && arrived.first() == Some(&0), "{passed:?}");
}

#[test]
fn a_program_of_others_answers_over_it() {
    let network = Network::new(1500, 4);
    let medium = tempfile::NamedTempFile::new().expect("a temporary file");
    medium.as_file().set_len(1 << 20).expect("a larger file");
    let _vblade = Vblade::start(&network.target, 7, 3, medium.path());
    let port = network.initiator.inside(|| Port::open(INTERFACE));
    // A config query to all shelves and slots.
    let header =
        [&[0xFF; 6][..], &port.mac(), &[0x88, 0xA2, 0x10, 0, 0xFF, 0xFF, 0xFF, 1, 1, 2, 3, 4]].concat();
    let query = [&header[..], &[0; 36]].concat();
    port.send(&query).expect("it is sent");
    let mut answers = std::iter::from_fn(|| port.receive(PATIENCE));
    let answer = answers.find(|frame| frame.get(20..24) == Some(&[1, 2, 3, 4])).expect("an answer");
    assert_eq!(answer[..6], port.mac());
    assert_eq!(answer[14..20], [0x18, 0, 0, 7, 3, 1], "version 1, a response, of shelf 7 and slot 3");
}

#[test]
fn programs_run_inside_and_see_only_that() {
    let network = Network::new(1500, 5);
    let devices = must(&mut network.target.within(tool("ls").arg("/sys/class/net")));
    assert_eq!(devices.split_whitespace().collect::<Vec<_>>(), [INTERFACE, "ip0", "lo"]);
    let unit = ["--listen", &format!("{TARGET}:0"), "--lun", "ram:8M"];
    let daemon = Daemon::serve_within(&network.target, unit);
    let url = daemon.lun(0).to_string();
    assert!(url.starts_with(&format!("iscsi://{TARGET}:")), "{url}");
    let mut load = Load::within(&network.initiator, &url, &[]);
    load.wait_for_progress();
    load.stop();
    daemon.stop();
    let here = std::env::current_dir().expect("a directory");
    assert_eq!(must(&mut network.target.within(&tool("pwd"))).trim(), here.display().to_string());
}

/// In the namespace that belongs to a process that is killed.
const DOOMED: &str = "LUNETTE_TEST_DOOMED";

#[test]
fn a_test_that_is_killed_leaves_nothing() {
    let of = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net"));
    if let Some(file) = std::env::var_os(DOOMED) {
        let network = Network::new(1500, 6);
        let mut sleep = network.target.within(tool("sleep").arg("1h"));
        let mut child = sleep.spawn().expect("a program");
        let inside = network.target.inside(|| std::fs::read_link("/proc/thread-self/ns/net"));
        wait_until("it runs inside", || of(child.id()).ok() == inside.as_ref().ok().cloned());
        std::fs::write(&file, format!("{}", child.id())).expect("a file");
        child.wait().expect("it is waited for until this process is killed");
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("pid");
    let mut this = std::process::Command::new(std::env::current_exe().expect("a program"));
    this.args(["--exact", "network::a_test_that_is_killed_leaves_nothing"]).env(DOOMED, &file);
    let mut this = this.spawn().expect("it runs");
    let pid = || std::fs::read_to_string(&file).ok()?.parse::<u32>().ok();
    wait_until("the network of the other is up", || pid().is_some());
    let inside = pid().and_then(|pid| of(pid).ok()).expect("a process in a namespace");
    this.kill().and_then(|()| this.wait()).expect("it is killed");
    wait_until("nothing is left in the namespace", || {
        let processes = std::fs::read_dir("/proc").expect("processes").filter_map(Result::ok);
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.filter_map(|pid| of(pid).ok()).all(|other| other != inside)
    });
}
