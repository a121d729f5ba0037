//! GET LBA STATUS (SBC-3 section 5.4).

use crate::commands::admission::Admission;
use crate::commands::media::{failed, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::{Found, MediaOp, StoreError};
use wire::scsi::capacity::provisioning::{DEALLOCATED, MAPPED};
use wire::scsi::capacity::{LbaStatus as Descriptor, LbaStatusHeader};
use wire::scsi::command::GetLbaStatus;

const HEADER_BYTES: u32 = 8;
const DESCRIPTOR_BYTES: u32 = 16;
const _: () = assert!(LbaStatusHeader::BYTES == 8 && Descriptor::BYTES == 16);

/// The most descriptors in one answer.
const DESCRIPTORS_MAX: u32 = 1024;

/// The most queries to the store for one answer.
const EXTENTS_MAX: u32 = 4096;

/// GET LBA STATUS.
pub(crate) fn begin<P: From<LbaStatus>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let (lba, allocation) =
        (admission.cdb().get(GetLbaStatus::LBA), admission.cdb().get(GetLbaStatus::ALLOCATION));
    if lba >= admission.view.blocks() {
        return Err(Check::LBA_OUT_OF_RANGE.into());
    }
    let room = allocation.saturating_sub(HEADER_BYTES).div_ceil(DESCRIPTOR_BYTES).clamp(1, DESCRIPTORS_MAX);
    Ok(P::from(LbaStatus { allocation, room, count: 0, asked: 0, lba, blocks: 0, status: MAPPED }))
}

/// The program of GET LBA STATUS: one extent after another; equal neighbours become one descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LbaStatus {
    allocation: u32,
    /// Descriptors that fit into the answer.
    room: u32,
    /// Descriptors in the buffer.
    count: u32,
    /// Queries to the store.
    asked: u32,
    /// The last descriptor, or where the first begins.
    lba: u64,
    blocks: u32,
    status: u8,
}

impl LbaStatus {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.room.saturating_mul(DESCRIPTOR_BYTES).saturating_add(HEADER_BYTES)
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        let goes_on = match event {
            Event::Start => true,
            Event::Stored(Ok(Found::Extent { mapped, len })) => {
                let blocks = len.checked_div(u64::from(env.view.policy.block_bytes)).unwrap_or(0);
                // A partly mapped block counts as mapped.
                let status = if mapped || blocks == 0 { MAPPED } else { DEALLOCATED };
                self.take(env, status, blocks.max(1))
            }
            Event::Stored(Err(StoreError::Unsupported)) => self.take(env, MAPPED, u64::MAX),
            Event::Stored(Err(error)) => return failed(env, error),
            Event::Stored(Ok(Found::Nothing))
            | Event::Fetched
            | Event::Pushed
            | Event::Home(_)
            | Event::Detached => return unexpected(env),
        };
        if goes_on { self.ask(env) } else { self.finish(env) }
    }

    fn end(&self) -> u64 {
        self.lba.saturating_add(u64::from(self.blocks))
    }

    /// Queries what follows, as long as there is anything and the answer stays bounded.
    fn ask(&mut self, env: &mut Env<'_>) -> Step {
        while self.end() < env.view.blocks() {
            if env.view.is_thin() && self.asked == EXTENTS_MAX {
                break;
            }
            if env.view.is_thin() {
                self.asked = self.asked.saturating_add(1);
                let offset = self.end().saturating_mul(u64::from(env.view.policy.block_bytes));
                return Step::Media { unit: None, op: MediaOp::Extent { offset } };
            }
            if !self.take(env, MAPPED, u64::MAX) {
                break;
            }
        }
        self.finish(env)
    }

    /// Adds an extent, limited to the capacity and to the width of the count field; false when it does not
    /// fit.
    fn take(&mut self, env: &mut Env<'_>, status: u8, blocks: u64) -> bool {
        let blocks = blocks.min(env.view.blocks().saturating_sub(self.end()));
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        match self.blocks.checked_add(blocks) {
            Some(sum) if self.count > 0 && status == self.status => self.blocks = sum,
            _ if self.count == self.room => return false,
            _ => {
                self.lba = self.end();
                self.blocks = blocks;
                self.status = status;
                self.count = self.count.saturating_add(1);
            }
        }
        self.write_descriptor(env);
        true
    }

    /// Writes the last descriptor into the buffer.
    fn write_descriptor(&self, env: &mut Env<'_>) {
        let before = self.count.saturating_sub(1).saturating_mul(DESCRIPTOR_BYTES);
        let at = usize::try_from(before.saturating_add(HEADER_BYTES)).unwrap_or(usize::MAX);
        let descriptor = Descriptor { lba: self.lba, blocks: self.blocks, status: self.status };
        for (slot, byte) in env.buffer.iter_mut().skip(at).zip(descriptor.to_bytes()) {
            *slot = byte;
        }
    }

    fn finish(&self, env: &mut Env<'_>) -> Step {
        let body = self.count.saturating_mul(DESCRIPTOR_BYTES);
        let header = LbaStatusHeader { following_bytes: body.saturating_add(4) };
        for (slot, byte) in env.buffer.iter_mut().zip(header.to_bytes()) {
            *slot = byte;
        }
        let len = body.saturating_add(HEADER_BYTES).min(self.allocation);
        let ending = Ending::sent(u64::from(len));
        if len == 0 { Step::End(ending) } else { Step::Push { buffer: 0, len, at: 0, end: Some(ending) } }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{Bench, unit};
    use wire::scsi::command::GetLbaStatus;

    fn status(bench: &mut Bench, lba: u64, allocation: u32) -> Vec<(u8, u32, u8)> {
        let outcome = bench.read(GetLbaStatus::new(lba, allocation));
        let data = &outcome.assert_good().data;
        assert_eq!(data[..4], (data.len() as u32 - 4).to_be_bytes());
        let blocks = |part: &[u8]| u32::from_be_bytes(part[8..12].try_into().unwrap());
        data[8..].chunks(16).map(|part| (part[7], blocks(part), part[12])).collect()
    }

    #[test]
    fn extents_follow_each_other() {
        let mut bench = Bench::new();
        bench.mapped[3..5].fill(true);
        assert_eq!(status(&mut bench, 1, 56), [(1, 2, 1), (3, 2, 0), (5, 131_067, 1)]);
        assert_eq!(status(&mut bench, 4, 24), [(4, 1, 0)]);
        let beyond = GetLbaStatus::new(0x0002_0000, 24);
        bench.read(beyond).assert_check(0x5, 0x2100);
    }

    #[test]
    fn a_thick_unit_is_mapped() {
        let mut unit = unit();
        unit.thin = false;
        let mut bench = Bench::of(unit, 1 << 20);
        assert_eq!(status(&mut bench, 1, 255), [(1, 2047, 0)]);
        assert!(bench.operations.is_empty());
    }
}
