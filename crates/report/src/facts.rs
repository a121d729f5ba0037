//! The facts of a run: without them a figure is meaningless.

use super::testbed::Fact;
use std::fs;
use std::time::SystemTime;

/// The machine, as the kernel describes it.
pub(super) fn machine() -> Vec<Fact> {
    let cpuinfo = text("/proc/cpuinfo");
    let processor = line(&cpuinfo, "model name").or_else(|| line(&cpuinfo, "Model")).unwrap_or_default();
    let cores = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let virtual_machine =
        line(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
    let memory = line(&text("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let kibibytes: u64 = memory.trim_end_matches("kB").trim().parse().unwrap_or(0);
    let load = text("/proc/loadavg");
    let mut facts = vec![
        Fact::new("Lunette", env!("CARGO_PKG_VERSION")),
        Fact::new("Kernel", text("/proc/sys/kernel/osrelease").trim()),
        Fact::new("CPU", if processor.is_empty() { std::env::consts::ARCH.into() } else { processor }),
        Fact::new("Cores", format!("{count} of those online may be used: {}", cores.trim())),
        Fact::new("Memory", format!("{:.1} GiB", kibibytes as f64 / f64::from(1 << 20))),
        Fact::new("Virtual machine", if virtual_machine { "yes" } else { "no" }),
        Fact::new("Load before", load.split(' ').next().unwrap_or_default()),
    ];
    // How an idle core, virtual or physical, waits is decisive for small I/O.
    for (name, path) in [
        ("Frequency governor", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        ("guest_halt_poll_ns", "/sys/module/haltpoll/parameters/guest_halt_poll_ns"),
    ] {
        facts.extend(fs::read_to_string(path).ok().map(|value| Fact::new(name, value.trim())));
    }
    facts
}

/// RFC 3339 in UTC, to the second.
pub(super) fn now(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first line `name : value`.
fn line(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_machine_is_described() {
        let facts = machine();
        for name in ["Lunette", "Kernel", "CPU", "Cores", "Memory"] {
            let fact = facts.iter().find(|fact| fact.name == name);
            assert!(fact.is_some_and(|fact| !fact.value.is_empty()), "{name}: {facts:?}");
        }
    }

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(now(SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_248_000)), "2026-11-21T08:00:00Z");
    }
}
