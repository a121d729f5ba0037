//! The copy operations of a unit and of a nexus: how many run, their progress, and their outcomes.

use crate::vocabulary::sense::Check;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wire::SenseKey;
use wire::scsi::code;
use wire::scsi::transport_id::device;

/// Copy operations that may run on a unit at a time, of all nexuses together.
pub(crate) const COPIES_MAX: u16 = 64;
/// How many of these may belong to nexuses of one initiator.
pub(crate) const COPIES_OF_ONE_MAX: u16 = 16;

/// The copy operations that run on a unit, counted by initiator, however many sessions it has.
#[derive(Debug, Default)]
pub struct Copies(Mutex<BTreeMap<Vec<u8>, u16>>);

/// One of the unit's [`COPIES_MAX`], until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    copies: Arc<Copies>,
    initiator: Vec<u8>,
}

impl Copies {
    /// A place for a copy operation of the initiator with this TransportID.
    pub(crate) fn take(self: &Arc<Copies>, transport_id: &[u8]) -> Result<Place, Check> {
        let initiator = device(transport_id).to_vec();
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = counts.values().fold(0, |all: u16, count| all.saturating_add(*count));
        let own = counts.get(&initiator).copied().unwrap_or(0);
        if all >= COPIES_MAX || own >= COPIES_OF_ONE_MAX {
            return Err(INSUFFICIENT_RESOURCES);
        }
        counts.insert(initiator.clone(), own.saturating_add(1));
        Ok(Place { copies: Arc::clone(self), initiator })
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.copies.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.initiator) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.initiator);
            }
        }
    }
}

/// The outcomes of a nexus's copy operations on a unit, by list identifier, as long as they are held.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Oldest first.
    records: VecDeque<Record>,
}

#[derive(Clone, Debug)]
struct Record {
    list_id: u32,
    progress: Arc<Progress>,
}

/// The progress of a copy operation, and its outcome: shared with its program, which may outlive the session
/// that this is kept for.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Of the command.
    pub(crate) service_action: u8,
    pub(crate) bytes: AtomicU64,
    pub(crate) segments: AtomicU64,
    /// COPY OPERATION ABORT was sent.
    pub(crate) is_aborted: AtomicBool,
    pub(crate) outcome: OnceLock<Outcome>,
}

/// How a copy operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Good,
    Failed(Check),
    /// By COPY OPERATION ABORT or by a task management function.
    Aborted,
}

/// What is known of a copy operation.
pub(crate) struct Known {
    /// `None`: under way.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) service_action: u8,
    pub(crate) bytes: u64,
    /// SEGMENTS PROCESSED.
    pub(crate) segments: u16,
}

impl Results {
    /// Copy operations of one nexus on a unit that are under way or whose results are held.
    pub const RECORDS_MAX: usize = 16;

    /// Records that an operation begins. An older one with its identifier is forgotten.
    pub(crate) fn begin(&mut self, list_id: u32, progress: &Arc<Progress>) -> Result<(), Check> {
        if self.running(list_id).is_some() {
            return Err(Check::OPERATION_IN_PROGRESS);
        }
        self.forget(list_id);
        if self.records.len() >= Results::RECORDS_MAX {
            let oldest = self.records.iter().position(|record| record.running().is_none());
            self.records.remove(oldest.ok_or(INSUFFICIENT_RESOURCES)?);
        }
        self.records.push_back(Record { list_id, progress: Arc::clone(progress) });
        Ok(())
    }

    /// Discards what is held for an identifier, unless it is in progress.
    pub(crate) fn forget(&mut self, list_id: u32) {
        self.records.retain(|record| record.list_id != list_id || record.running().is_some());
    }

    pub(crate) fn running(&self, list_id: u32) -> Option<Arc<Progress>> {
        self.records.iter().find(|record| record.list_id == list_id)?.running()
    }

    pub(crate) fn known(&self, list_id: u32) -> Option<Known> {
        let record = self.records.iter().find(|record| record.list_id == list_id)?;
        let progress = &record.progress;
        Some(Known {
            outcome: progress.outcome.get().copied(),
            service_action: progress.service_action,
            bytes: progress.bytes.load(Ordering::Relaxed),
            segments: u16::try_from(progress.segments.load(Ordering::Relaxed)).unwrap_or(u16::MAX),
        })
    }
}

impl Record {
    fn running(&self) -> Option<Arc<Progress>> {
        self.progress.outcome.get().is_none().then(|| Arc::clone(&self.progress))
    }
}

/// INSUFFICIENT RESOURCES.
const INSUFFICIENT_RESOURCES: Check = Check::new(SenseKey::IllegalRequest, code::INSUFFICIENT_RESOURCES);
