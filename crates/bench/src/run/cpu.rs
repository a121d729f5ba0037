//! CPU time of cores, processes and threads, as the kernel tells it in /proc (proc_stat(5), proc_pid_stat(5)).

use crate::result::CoreLoad;
use std::fs;

/// Time in user space and in the kernel, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Times {
    pub(crate) user: f64,
    pub(crate) system: f64,
}

impl Times {
    pub(crate) fn sum(self) -> f64 {
        self.user + self.system
    }

    pub(crate) fn since(self, earlier: Times) -> Times {
        Times { user: (self.user - earlier.user).max(0.0), system: (self.system - earlier.system).max(0.0) }
    }
}

/// One core since the machine started.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CoreTimes {
    core: usize,
    user: u64,
    system: u64,
    idle: u64,
}

/// All cores; empty where /proc is not mounted.
pub(crate) fn cores() -> Vec<CoreTimes> {
    parse_cores(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_cores(text: &str) -> Vec<CoreTimes> {
    let parse = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core = fields.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let &[user, nice, system, idle, wait, interrupts, soft, ..] = ticks.as_slice() else { return None };
        Some(CoreTimes { core, user: user + nice, system: system + interrupts + soft, idle: idle + wait })
    };
    text.lines().filter_map(parse).collect()
}

/// The load of every core between two moments. Time that a hypervisor took away is not counted: shares are of the
/// time that this machine had.
pub(crate) fn loads(before: &[CoreTimes], after: &[CoreTimes]) -> Vec<CoreLoad> {
    let load = |now: &CoreTimes| {
        let then = before.iter().find(|then| then.core == now.core)?;
        let user = now.user.saturating_sub(then.user) as f64;
        let system = now.system.saturating_sub(then.system) as f64;
        let idle = now.idle.saturating_sub(then.idle) as f64;
        let all = user + system + idle;
        let share = |part: f64, without: f64| if all > 0.0 { part / all } else { without };
        let (user, system, idle) = (share(user, 0.0), share(system, 0.0), share(idle, 1.0));
        Some(CoreLoad { core: now.core, user, system, idle })
    };
    after.iter().filter_map(load).collect()
}

/// A process with its threads, those that have ended included; `None`: there is none.
pub(crate) fn process(pid: u32) -> Option<Times> {
    Some(parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.times)
}

/// One thread.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Thread {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// The core that it ran on last.
    pub(crate) core: usize,
    pub(crate) times: Times,
}

/// The threads that a process has now.
pub(crate) fn threads(pid: u32) -> Vec<Thread> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let read = |task: std::io::Result<fs::DirEntry>| {
        parse_stat(&fs::read_to_string(task.ok()?.path().join("stat")).ok()?)
    };
    tasks.filter_map(read).collect()
}

/// The calling thread.
pub(crate) fn this_thread() -> Option<Thread> {
    parse_stat(&fs::read_to_string("/proc/thread-self/stat").ok()?)
}

/// A thread of this process.
pub(crate) fn own_thread(id: u32) -> Option<Times> {
    Some(parse_stat(&fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?)?.times)
}

fn parse_stat(text: &str) -> Option<Thread> {
    // The name may hold blanks and parentheses.
    let (head, tail) = text.rsplit_once(')')?;
    let (id, name) = head.split_once(" (")?;
    // From field 3, the state, on.
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let second = rustix::param::clock_ticks_per_second() as f64;
    Some(Thread {
        id: id.parse().ok()?,
        name: name.to_owned(),
        core: usize::try_from(number(39)?).ok()?,
        times: Times { user: number(14)? as f64 / second, system: number(15)? as f64 / second },
    })
}

/// CPU time that the calling thread has used, in seconds, exactly.
pub(crate) fn this_thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_core_are_of_the_time_it_had() {
        let line = |text: &str| parse_cores(&format!("cpu  9 9 9 9 9 9 9 9 0 0\n{text}\nintr 5\n"));
        let before = line("cpu3 100 0 100 100 0 0 0 0 0 0");
        let after = line("cpu3 110 10 110 140 10 5 5 900 0 0");
        let load = loads(&before, &after)[0];
        assert_eq!((load.core, load.user, load.system), (3, 20.0 / 90.0, 20.0 / 90.0));
        assert!((load.idle - 50.0 / 90.0).abs() < 1e-9);
        assert_eq!(loads(&after, &after)[0].idle, 1.0);
        assert!(parse_cores("cpu0 1 2\nrubbish\n").is_empty());
    }

    #[test]
    fn a_name_with_blanks_and_parentheses_is_read() {
        let fields: Vec<String> = (3..=52).map(|n| if n == 3 { "S".into() } else { n.to_string() }).collect();
        let thread = parse_stat(&format!("77 (a ) (b) c) {}\n", fields.join(" "))).unwrap();
        assert_eq!((thread.id, thread.name.as_str(), thread.core), (77, "a ) (b) c", 39));
        assert!(thread.times.user > 0.0 && thread.times.system > thread.times.user);
        assert!(parse_stat("").is_none());
        assert!(parse_stat("1 (a) S 1").is_none());
    }

    #[test]
    fn this_process_and_its_threads_are_found() {
        let me = std::process::id();
        let thread = this_thread().unwrap();
        assert!(process(me).is_some());
        assert!(threads(me).iter().any(|other| other.id == thread.id && other.name == thread.name));
        assert!(own_thread(thread.id).is_some());
        assert!(this_thread_seconds() > 0.0);
        assert!(!cores().is_empty());
        assert_eq!(process(u32::MAX), None);
        assert!(threads(u32::MAX).is_empty());
    }
}
