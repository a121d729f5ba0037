//! CPU time of cores, processes and threads, as the kernel reports it in /proc (proc_stat(5),
//! proc_pid_stat(5)), and the form in which a daemon reports its own to others ([`Snapshot`]).

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Read;
use std::time::Duration;

/// Counters of a process and of its machine at a moment; none of them decreases while the process lives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process's number.
    pub pid: u32,
    /// Its version of Lunette.
    pub version: String,
    /// Identifies its machine and boot (random(4), boot_id).
    pub machine: String,
    /// How long it has been running, in seconds.
    pub uptime_seconds: f64,
    /// Its CPU time, with that of threads that have ended.
    #[serde(flatten)]
    pub times: Times,
    /// The threads that it has now.
    pub threads: Vec<Thread>,
    /// The cores of its machine.
    pub cores: Vec<CoreTimes>,
}

/// What this process, which has been running for `uptime`, and its machine have used so far.
pub fn snapshot(uptime: Duration) -> Snapshot {
    let pid = std::process::id();
    Snapshot {
        pid,
        version: env!("CARGO_PKG_VERSION").into(),
        machine: machine(),
        uptime_seconds: uptime.as_secs_f64(),
        times: process(pid).unwrap_or_default(),
        threads: threads(pid),
        cores: cores(),
    }
}

/// The value of [`Snapshot::machine`] here; empty where /proc is not mounted.
pub fn machine() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

/// Time in user space and in the kernel, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// In user space.
    #[serde(rename = "user_seconds")]
    pub user: f64,
    /// In the kernel.
    #[serde(rename = "system_seconds")]
    pub system: f64,
}

impl Times {
    /// Both.
    pub fn sum(self) -> f64 {
        self.user + self.system
    }

    /// What was used since an earlier moment.
    pub fn since(self, earlier: Times) -> Times {
        Times { user: (self.user - earlier.user).max(0.0), system: (self.system - earlier.system).max(0.0) }
    }
}

/// One core since the machine started, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct CoreTimes {
    /// Its number.
    pub core: usize,
    /// User space and kernel, including interrupts.
    #[serde(flatten)]
    pub times: Times,
    /// Idle, including waiting for I/O.
    #[serde(rename = "idle_seconds")]
    pub idle: f64,
}

/// All cores; empty where /proc is not mounted.
pub fn cores() -> Vec<CoreTimes> {
    parse_cores(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_cores(text: &str) -> Vec<CoreTimes> {
    let parse = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let core = fields.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let &[user, nice, system, idle, wait, interrupts, soft, ..] = ticks.as_slice() else { return None };
        let times = Times { user: seconds(user + nice), system: seconds(system + interrupts + soft) };
        Some(CoreTimes { core, times, idle: seconds(idle + wait) })
    };
    text.lines().filter_map(parse).collect()
}

/// A process with its threads, including those that have ended; `None`: there is none.
pub fn process(pid: u32) -> Option<Times> {
    Some(parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?.times)
}

/// One thread.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Thread {
    /// The kernel's thread id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The core that it ran on last.
    pub core: usize,
    /// The core that it is pinned to; `None`: it may run on several.
    pub pinned: Option<usize>,
    /// Its CPU time.
    #[serde(flatten)]
    pub times: Times,
}

/// The threads that a process has now.
pub fn threads(pid: u32) -> Vec<Thread> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let read = |task: std::io::Result<fs::DirEntry>| {
        parse_stat(&fs::read_to_string(task.ok()?.path().join("stat")).ok()?).map(with_pinning)
    };
    tasks.filter_map(read).collect()
}

/// The calling thread.
pub fn this_thread() -> Option<Thread> {
    parse_stat(&fs::read_to_string("/proc/thread-self/stat").ok()?).map(with_pinning)
}

/// A thread of this process, without checking what it is pinned to.
pub fn own_thread(id: u32) -> Option<Thread> {
    parse_stat(&fs::read_to_string(format!("/proc/self/task/{id}/stat")).ok()?)
}

fn with_pinning(thread: Thread) -> Thread {
    let id = i32::try_from(thread.id).ok().and_then(Pid::from_raw);
    let allowed = id.and_then(|id| sched_getaffinity(Some(id)).ok()).filter(|allowed| allowed.count() == 1);
    let pinned = allowed.and_then(|allowed| (0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)));
    Thread { pinned, ..thread }
}

fn parse_stat(text: &str) -> Option<Thread> {
    // The name may contain blanks and parentheses.
    let (head, tail) = text.rsplit_once(')')?;
    let (id, name) = head.split_once(" (")?;
    // From field 3, the state, onwards.
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Thread {
        id: id.parse().ok()?,
        name: name.to_owned(),
        core: usize::try_from(number(39)?).ok()?,
        pinned: None,
        times: Times { user: seconds(number(14)?), system: seconds(number(15)?) },
    })
}

fn seconds(ticks: u64) -> f64 {
    // SAFETY: no memory is passed. Not with rustix: valgrind hides where that reads it.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks as f64 / per_second.max(1) as f64
}

/// CPU time that the calling thread has used, in seconds, exactly.
pub fn this_thread_seconds() -> f64 {
    crate::uring::nanos(libc::CLOCK_THREAD_CPUTIME_ID) as f64 / 1e9
}

/// How long the calling thread was runnable while others had its core; zero where the kernel does not count
/// it (sched-stats in the kernel's documentation). Nothing is allocated.
pub fn this_thread_waited() -> Duration {
    let mut bytes = [0; 96];
    let length =
        File::open("/proc/thread-self/schedstat").and_then(|mut file| file.read(&mut bytes)).unwrap_or(0);
    Duration::from_nanos(parse_waited(&bytes[..length]).unwrap_or(0))
}

fn parse_waited(line: &[u8]) -> Option<u64> {
    str::from_utf8(line).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_s_line_is_read() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu3 110 10 110 140 10 5 5 900 0 0\nintr 5\ncpu0 1 2\nrubbish\n";
        let [core] = parse_cores(text)[..] else { panic!("one line is whole") };
        let times = Times { user: seconds(120), system: seconds(120) };
        assert_eq!(core, CoreTimes { core: 3, times, idle: seconds(150) });
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
        assert_eq!((parse_waited(b"196521 665156 3\n"), parse_waited(b"")), (Some(665_156), None));
        assert!(!cores().is_empty());
        assert!(snapshot(Duration::ZERO).threads.iter().any(|other| other.id == thread.id));
        assert_eq!(process(u32::MAX), None);
        assert!(threads(u32::MAX).is_empty());
    }

    #[test]
    fn a_pinned_thread_says_so() {
        let core = this_thread().unwrap().core;
        let mut only = CpuSet::new();
        only.set(core);
        rustix::thread::sched_setaffinity(None, &only).unwrap();
        assert_eq!(this_thread().unwrap().pinned, Some(core));
    }
}
