//! SYNCHRONIZE CACHE and PRE-FETCH (SBC-3 sections 5.7, 5.23 and 5.24).

use super::{failed, unexpected};
use crate::commands::admission::Admission;
use crate::commands::step::{Env, Event, Step};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::Failure;
use crate::vocabulary::storage::MediaOp;
use wire::scsi::command::{PreFetch10, PreFetch16, SynchronizeCache10, SynchronizeCache16};

/// SYNCHRONIZE CACHE(10). The whole medium is flushed, and with IMMED the status still comes after that: both
/// are more than requested.
pub(crate) fn synchronize_cache10<P: From<Flush>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission
        .view
        .range_to_end(cdb.get(SynchronizeCache10::LBA).into(), cdb.get(SynchronizeCache10::BLOCKS).into())?;
    Ok(P::from(Flush { taken: 0 }))
}

/// SYNCHRONIZE CACHE(16).
pub(crate) fn synchronize_cache16<P: From<Flush>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission
        .view
        .range_to_end(cdb.get(SynchronizeCache16::LBA), cdb.get(SynchronizeCache16::BLOCKS).into())?;
    Ok(P::from(Flush { taken: 0 }))
}

/// PRE-FETCH(10): GOOD means that not all blocks fit into the cache, which is true: there is none.
pub(crate) fn prefetch10<P: From<Ending>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.view.range_to_end(cdb.get(PreFetch10::LBA).into(), cdb.get(PreFetch10::BLOCKS).into())?;
    Ok(P::from(Ending::GOOD))
}

/// PRE-FETCH(16).
pub(crate) fn prefetch16<P: From<Ending>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.view.range_to_end(cdb.get(PreFetch16::LBA), cdb.get(PreFetch16::BLOCKS).into())?;
    Ok(P::from(Ending::GOOD))
}

/// A flush of the medium and the ending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flush {
    /// Bytes of data-out that the command consumed.
    pub(crate) taken: u64,
}

impl Flush {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start => Step::Media { unit: None, op: MediaOp::Flush },
            Event::Stored(Ok(_)) => Step::End(Ending::taken(self.taken)),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Fetched | Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::vocabulary::storage::{MediaOp, StoreError};
    use wire::Cdb;
    use wire::scsi::command::{PreFetch10, PreFetch16, SynchronizeCache10, SynchronizeCache16};

    #[test]
    fn the_cache_is_flushed_and_ranges_are_checked() {
        let mut bench = Bench::new();
        let flush = |lba| SynchronizeCache16 { immediate: true, ..SynchronizeCache16::new(lba, 1) };
        let fetch = |lba| PreFetch16 { immediate: true, ..PreFetch16::new(lba, 1) };
        for cdb in [Cdb::from(SynchronizeCache10::new(1, 0)), flush(0).into()] {
            bench.operations.clear();
            bench.read(cdb).assert_good();
            assert_eq!(bench.operations, [MediaOp::Flush]);
        }
        bench.failure = Some(StoreError::WriteFailed);
        bench.read(flush(0)).assert_check(0x3, 0x0c00);
        bench.read(fetch(0)).assert_good();
        bench.read(PreFetch10 { immediate: true, ..PreFetch10::new(0, 1) }).assert_good();
        bench.read(fetch(1 << 63)).assert_check(0x5, 0x2100);
        bench.read(flush(1 << 63)).assert_check(0x5, 0x2100);
    }
}
