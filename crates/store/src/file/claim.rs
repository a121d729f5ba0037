//! Keeps a file from being served twice: each store has its own locks, so with two over one file, COMPARE AND
//! WRITE and partly covered blocks could tear, and their units would know nothing of each other's
//! reservations.
//!
//! Files are locked by flock(2), which works across processes and ends with them. Block devices are not:
//! O_EXCL claims them better (also against mounts, and a disk against its partitions), and udev ignores a
//! device that is locked.

use crate::error::OpenError;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// What a file or device is used for, and so what else may use it at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    /// It is written: nobody else may serve or write it.
    Sole,
    /// It is served for reading only: others may do so too, and nobody may write it.
    Shared,
    /// It is only read, whatever others do with it.
    None,
}

impl Claim {
    /// The claim of a server of a file.
    pub fn to_serve(read_only: bool) -> Claim {
        if read_only { Claim::Shared } else { Claim::Sole }
    }

    /// The claim of a program that only reads a file, or writes it.
    pub fn to_use(read_only: bool) -> Claim {
        if read_only { Claim::None } else { Claim::Sole }
    }

    /// Whether nothing is written.
    pub(super) fn is_read_only(self) -> bool {
        self != Claim::Sole
    }
}

/// Requests in flight keep a killed process's claim for a moment; a restart waits for them.
pub(super) fn patiently<T, E>(
    is_taken: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    // In total less than startup waits for stores, so that it can report which process uses a file.
    const TRIES: u32 = 14;
    const PAUSE: Duration = Duration::from_millis(100);
    for _ in 1..TRIES {
        match attempt() {
            Err(error) if is_taken(&error) => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
    attempt()
}

/// Locks a file until it is closed.
pub(super) fn lock(path: &Path, file: &File, claim: Claim) -> Result<(), OpenError> {
    let attempt = || match claim {
        Claim::Sole => file.try_lock(),
        Claim::Shared => file.try_lock_shared(),
        Claim::None => Ok(()),
    };
    match patiently(|error| matches!(error, TryLockError::WouldBlock), attempt) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let problem = format!("it is in use by {}", name(holder(file)));
            let remedy = "a file serves one LUN: to export it twice, list that LUN in several targets; otherwise stop the other use";
            Err(OpenError::new(path.display(), problem, remedy))
        }
        Err(TryLockError::Error(error)) => {
            tracing::warn!(
                path = %path.display(), %error,
                "the file system does not support locks: make sure that nothing else serves or writes the file"
            );
            Ok(())
        }
    }
}

/// The process that has locked the file, if the kernel reports it.
fn holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    find(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// The process of the first lock on this inode, from lines like `1: FLOCK ADVISORY WRITE 4711 fe:01:131 0
/// EOF`. Devices are not compared: some file systems report another one there than to stat(2).
fn find(locks: &str, inode: u64) -> Option<u32> {
    let inode = inode.to_string();
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "FLOCK").skip(3);
        let process = words.next()?.parse().ok()?;
        (words.next()?.rsplit(':').next()? == inode).then_some(process)
    })
}

fn name(process: Option<u32>) -> String {
    match process {
        Some(process) if process == std::process::id() => "another LUN of this process".into(),
        Some(process) => match std::fs::read_to_string(format!("/proc/{process}/comm")) {
            Ok(program) => format!("process {process} ({})", program.trim_end()),
            Err(_) => format!("process {process}"),
        },
        None => "another program".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:01:131 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 fe:01:1310 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 9 fe:01:131 0 EOF\n";
        assert_eq!(find(locks, 131), Some(4711));
        assert_eq!(find(locks, 132), None);
    }

    #[test]
    fn a_claim_that_ends_soon_is_waited_for() {
        let mut left = 2;
        let taken = patiently(
            |error: &bool| *error,
            || {
                left -= 1;
                if left == 0 { Ok(()) } else { Err(true) }
            },
        );
        assert_eq!((taken, left), (Ok(()), 0));
        assert_eq!(patiently(|error: &bool| *error, || Err::<(), _>(false)), Err(false));
    }
}
