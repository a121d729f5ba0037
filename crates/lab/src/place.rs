//! Where a target runs: beside the initiator, or behind a slow link in a network namespace of its own.

use crate::tools::Tools;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// Addresses of links: the range for benchmarks (RFC 2544 appendix C.2.2), four per link.
const NETWORK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// Links for which the range has room.
const LINKS: u32 = 1 << 15;
/// How many ranges are tried while they are in use.
const TRIES: usize = 16;
/// A link's burst size and, before it drops packets, the longest time that it delays them.
const BURST: &str = "16k";
const LATENCY: &str = "50ms";
/// The signal sent to a target when the report exits.
pub const IN_ORDER: &str = "TERM";
pub(crate) const AT_ONCE: &str = "KILL";

/// A pair of network devices, with the target behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Link {
    /// At full speed.
    Plain,
    /// At this many bits per second.
    Rate(u64),
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Link::Plain => f.write_str("veth"),
            Link::Rate(bits) => f.write_str(&show_rate(*bits)),
        }
    }
}

/// `100 Mbit/s`.
fn show_rate(bits: u64) -> String {
    for (unit, factor) in [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1000)] {
        if bits >= factor && bits.is_multiple_of(factor) {
            return format!("{} {unit}", bits / factor);
        }
    }
    format!("{bits} bit/s")
}

/// Where a target runs; a link is removed when this is dropped.
#[derive(Debug)]
pub struct Place {
    tools: Tools,
    link: Option<Pair>,
}

impl Place {
    /// Behind a link, or on loopback.
    pub fn new(tools: &Tools, link_kind: Option<Link>) -> Result<Place, String> {
        let link = link_kind.map(|link_kind| Pair::make(tools, link_kind)).transpose()?;
        Ok(Place { tools: tools.clone(), link })
    }

    /// The address on which a target listens.
    pub fn address(&self) -> Ipv4Addr {
        self.link.as_ref().map_or(Ipv4Addr::LOCALHOST, |link| link.inside)
    }

    /// The link's network devices: the initiator's, and the target's.
    pub fn devices(&self) -> Option<(&str, &str)> {
        self.link.as_ref().map(|link| (link.outer.as_str(), link.inner.as_str()))
    }

    /// A command that starts a program there, on these cores, or on all if none are given. The child process
    /// execs the program, so it has its process ID. Ctrl-C does not reach it: it is stopped gracefully, or by
    /// this signal when the thread that starts it exits.
    pub fn command(&self, program: &Path, cores: &[usize], death: &str) -> Command {
        let mut line = ["setpriv", "--pdeathsig", death].map(String::from).to_vec();
        line.extend(self.prefix(cores));
        line.push(program.display().to_string());
        let mut command = self.tools.command(Path::new(&line[0]));
        command.args(&line[1..]).process_group(0);
        command
    }

    /// The prefix of a command that makes it run there.
    pub fn prefix(&self, cores: &[usize]) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        if let Some(link) = &self.link {
            words.extend(["ip", "netns", "exec", &link.name].map(String::from));
        }
        if !cores.is_empty() {
            let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            words.extend(["taskset".into(), "--cpu-list".into(), list]);
        }
        words
    }

    /// The programs of this machine.
    pub fn tools(&self) -> &Tools {
        &self.tools
    }

    /// Limits the link to its rate, if it has one. Until then it runs at full speed.
    pub fn slow_down(&mut self) -> Result<(), String> {
        self.link.as_mut().map_or(Ok(()), |link| link.slow_down(&self.tools))
    }

    /// The commands that created the link.
    pub fn commands(&self) -> &[String] {
        self.link.as_ref().map_or(&[], |link| &link.commands)
    }

    /// The link's rate limit, as the kernel reports it.
    pub fn discipline(&self) -> Result<String, String> {
        let Some(link) = &self.link else { return Ok(String::new()) };
        let text = self.tools.run(&["tc", "qdisc", "show", "dev", &link.outer])?;
        Ok(text.lines().next().unwrap_or_default().trim().to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            link.remove(&self.tools);
        }
    }
}

/// A pair of network devices, one here, the other in a namespace.
#[derive(Debug)]
struct Pair {
    /// The namespace.
    name: String,
    /// The device here, and the one in the namespace.
    outer: String,
    inner: String,
    inside: Ipv4Addr,
    link_kind: Link,
    commands: Vec<String>,
}

impl Pair {
    fn make(tools: &Tools, link_kind: Link) -> Result<Pair, String> {
        // Reports that run at the same time have their own links.
        let number = fastrand::u32(..);
        let base = unused(tools)?;
        let mut link = Pair {
            name: format!("lunette-{number:08x}"),
            outer: format!("lun{number:08x}o"),
            inner: format!("lun{number:08x}i"),
            inside: Ipv4Addr::from_bits(base + 2),
            link_kind,
            commands: Vec::new(),
        };
        let addresses = [1, 2].map(|host| format!("{}/30", Ipv4Addr::from_bits(base + host)));
        let made = link.set_up(tools, &addresses);
        if let Err(error) = made {
            link.remove(tools);
            return Err(format!(
                "cannot create a link ({link_kind}): {error}; this needs root and CAP_NET_ADMIN: run lunette report with \
                 them, or leave out targets with a link"
            ));
        }
        Ok(link)
    }

    fn set_up(&mut self, tools: &Tools, [outside, inside]: &[String; 2]) -> Result<(), String> {
        let Pair { name, outer, inner, .. } = &*self;
        let lines = [
            format!("ip netns add {name}"),
            format!("ip link add {outer} type veth peer name {inner} netns {name}"),
            format!("ip address add {outside} dev {outer}"),
            format!("ip link set {outer} up"),
            format!("ip -n {name} address add {inside} dev {inner}"),
            format!("ip -n {name} link set {inner} up"),
            format!("ip -n {name} link set lo up"),
        ];
        lines.into_iter().try_for_each(|line| self.run(tools, line))
    }

    fn slow_down(&mut self, tools: &Tools) -> Result<(), String> {
        let Pair { name, outer, inner, link_kind, .. } = &*self;
        let Link::Rate(rate) = link_kind else { return Ok(()) };
        let tbf = format!("root tbf rate {rate}bit burst {BURST} latency {LATENCY}");
        let lines =
            [format!("tc qdisc add dev {outer} {tbf}"), format!("tc -n {name} qdisc add dev {inner} {tbf}")];
        lines.into_iter().try_for_each(|line| self.run(tools, line))
    }

    fn run(&mut self, tools: &Tools, line: String) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        tools.run(&words)?;
        self.commands.push(line);
        Ok(())
    }

    /// The device first: a namespace disappears when its last process exits, and its devices some time later.
    fn remove(&self, tools: &Tools) {
        let _ = tools.run(&["ip", "link", "delete", &self.outer]);
        let _ = tools.run(&["ip", "netns", "delete", &self.name]);
    }
}

/// A range of four addresses to which this machine has no route, except the default.
fn unused(tools: &Tools) -> Result<u32, String> {
    for _ in 0..TRIES {
        let base = NETWORK.to_bits() + 4 * fastrand::u32(..LINKS);
        let range = format!("{}/30", Ipv4Addr::from_bits(base));
        let inside = tools.run(&["ip", "-4", "route", "show", "root", &range])?;
        let around = tools.run(&["ip", "-4", "route", "show", "match", &range])?;
        if is_unused(&inside, &around) {
            return Ok(base);
        }
    }
    Err(format!("no addresses are left for a link: {NETWORK}/15 is in use here; remove routes into it"))
}

/// Judging by the routes into parts of a range, and those to ranges that contain it.
fn is_unused(inside: &str, around: &str) -> bool {
    inside.is_empty() && around.lines().all(|route| route.starts_with("default "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    /// Needs root, to create a network namespace.
    #[test]
    fn links_stand_side_by_side_and_go_even_when_what_is_behind_them_fails() {
        let tools = Tools::here();
        let places = [1_000_000, 2_000_000].map(|rate| {
            let mut place =
                Place::new(&tools, Some(Link::Rate(rate))).unwrap_or_else(|error| panic!("{error}"));
            place.slow_down().unwrap();
            place
        });
        assert_ne!(places[0].address(), places[1].address());
        for (place, rate) in places.iter().zip(["1Mbit", "2Mbit"]) {
            assert!(place.discipline().unwrap().contains(&format!("rate {rate} burst 16Kb lat 50ms")));
        }
        let names = places.each_ref().map(|place| place.prefix(&[]).pop().unwrap());
        let mut child =
            places[0].command(Path::new("cat"), &[], IN_ORDER).stdin(Stdio::piped()).spawn().unwrap();
        let inside = format!("/proc/{}/comm", child.id());
        let begin = std::time::Instant::now();
        while std::fs::read_to_string(&inside).unwrap() != "cat\n" {
            assert!(begin.elapsed().as_secs() < 30, "it does not become the program");
        }
        drop(places);
        let left = tools.run(&["ip", "netns", "list"]).unwrap();
        assert!(names.iter().all(|name| !left.contains(name)), "{left}");
        child.kill().and_then(|()| child.wait()).unwrap();
    }

    #[test]
    fn a_range_that_somebody_routes_is_not_taken() {
        assert!(is_unused("", "") && is_unused("", "default via 192.0.2.1 dev eth0 \n"));
        assert!(!is_unused("198.18.0.4 dev vpn scope link", "default via 192.0.2.1 dev eth0"));
        assert!(!is_unused("", "default via 192.0.2.1 dev eth0 \n198.18.0.0/15 via 192.0.2.9 dev vpn"));
    }

    #[test]
    fn loopback_needs_nothing() {
        let place = Place::new(&Tools::here(), None).unwrap();
        assert_eq!((place.address(), place.commands().len()), (Ipv4Addr::LOCALHOST, 0));
        assert_eq!(place.prefix(&[0, 1, 3]), ["taskset", "--cpu-list", "0,1,3"]);
    }
}
