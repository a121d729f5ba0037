//! The available cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// Numbers of the cores that this thread may run on, in rising order.
pub fn usable_cores() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect())
}

/// Pins the current thread to one core.
pub fn pin_to(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_where_it_was_pinned() {
        std::thread::spawn(|| {
            let cores = usable_cores().unwrap();
            let last = *cores.last().unwrap();
            pin_to(last).unwrap();
            assert_eq!(usable_cores().unwrap(), [last]);
            assert!(pin_to(usize::MAX).is_err());
        })
        .join()
        .unwrap();
    }
}
