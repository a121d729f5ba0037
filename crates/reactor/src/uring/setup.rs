//! Opening a ring, and explaining what is missing where that fails.

use io_uring::IoUring;
use rustix::io::Errno;
use std::io;

/// Submission queue entries. When they do not suffice, what is queued is submitted early.
const SUBMISSIONS: u32 = 512;
/// Completion queue entries. When they do not suffice, the kernel keeps the rest until there is room.
const COMPLETIONS: u32 = 8192;

/// A ring for the current thread, with the cheapest completion mode that the kernel supports.
pub(super) fn open() -> io::Result<IoUring> {
    let opened = match deferred().build(SUBMISSIONS) {
        // Before Linux 6.1.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            cooperative().build(SUBMISSIONS)
        }
        opened => opened,
    };
    let ring = opened.map_err(explain)?;
    let params = ring.params();
    if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
        return Err(explain(Errno::INVAL.into()));
    }
    Ok(ring)
}

fn deferred() -> io_uring::Builder {
    let mut builder = common();
    builder.setup_single_issuer().setup_defer_taskrun();
    builder
}

fn cooperative() -> io_uring::Builder {
    let mut builder = common();
    builder.setup_coop_taskrun();
    builder
}

fn common() -> io_uring::Builder {
    let mut builder = IoUring::builder();
    builder.dontfork().setup_cqsize(COMPLETIONS).setup_submit_all().setup_taskrun_flag();
    builder
}

fn explain(error: io::Error) -> io::Error {
    let Some(errno) = Errno::from_io_error(&error) else { return error };
    let advice = match errno {
        // Podman's default seccomp profile returns this; Docker's, EPERM.
        Errno::NOSYS => {
            "this kernel has no io_uring, or this container forbids it: Linux 5.19 or newer is needed (preferably 6.1 \
             or newer), and in a container the system calls io_uring_setup, io_uring_enter and io_uring_register"
        }
        Errno::INVAL => {
            "this kernel's io_uring is too old; Linux 5.19 or newer is needed (preferably 6.1 or newer)"
        }
        Errno::PERM | Errno::ACCESS => {
            "io_uring is forbidden here: set the sysctl kernel.io_uring_disabled to 0, and in a container allow \
             the system calls io_uring_setup, io_uring_enter and io_uring_register"
        }
        Errno::NOMEM => {
            "too little memory may be locked for io_uring: raise the limit (ulimit -l, LimitMEMLOCK=)"
        }
        Errno::MFILE | Errno::NFILE => "too many open files: raise the limit (ulimit -n, LimitNOFILE=)",
        _ => return error,
    };
    io::Error::new(error.kind(), format!("cannot open an io_uring: {advice} ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_what_is_needed() {
        let says = |errno: Errno, what: &str| assert!(explain(errno.into()).to_string().contains(what));
        says(Errno::NOSYS, "Linux 5.19");
        says(Errno::NOSYS, "in a container the system calls io_uring_setup");
        says(Errno::INVAL, "Linux 5.19");
        says(Errno::PERM, "kernel.io_uring_disabled");
        says(Errno::NOMEM, "LimitMEMLOCK");
        says(Errno::MFILE, "LimitNOFILE");
    }
}
