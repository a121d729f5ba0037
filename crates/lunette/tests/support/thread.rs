//! Suspending threads of the daemon.

use super::daemon::Daemon;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// A thread that is suspended until this is dropped.
pub struct Still(Pid);

impl Still {
    /// Suspends the thread of the daemon that has this name.
    pub fn new(daemon: &Daemon, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("its threads");
        let is_it = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let task = tasks.map(|task| task.expect("a thread")).find(is_it);
        let number = task.and_then(|task| task.file_name().to_str()?.parse().ok());
        let thread = Pid::from_raw(number.unwrap_or_else(|| panic!("no thread {name}")));
        ptrace::seize(thread, Options::empty()).expect("a thread of a child can be traced");
        ptrace::interrupt(thread).expect("it is asked to stop");
        waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stands still");
        Self(thread)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        // It may be gone.
        let _ = ptrace::detach(self.0, None);
    }
}
