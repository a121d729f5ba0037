//! Resource limits of a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files, for this process and the daemon that it starts.
pub fn raise_descriptor_limit(wanted: u64) -> u64 {
    let hard = getrlimit(Resource::Nofile).maximum;
    let raise =
        |limit: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: Some(limit) });
    match hard {
        // Only root may go further.
        Some(hard) if hard < wanted && raise(wanted).is_err() => {
            raise(hard).expect("the soft limit may be the hard one");
            hard
        }
        Some(hard) if hard < wanted => wanted,
        Some(_) | None => {
            let all = Rlimit { current: Some(wanted), maximum: hard };
            setrlimit(Resource::Nofile, all).expect("the soft limit may be below the hard one");
            wanted
        }
    }
}
