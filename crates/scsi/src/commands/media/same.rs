//! WRITE SAME (SBC-3 sections 5.40 to 5.42).

use super::{Chunks, failed, taken, unexpected};
use crate::commands::admission::Admission;
use crate::commands::step::{Env, Event, Step};
use crate::state::limits::{Range, SAME_BYTES_MAX};
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::command::{WriteSame10, WriteSame16};

/// Bytes of task buffer that are filled with copies of one block.
pub(crate) const TILE_BYTES: u32 = 64 * 1024;

/// WRITE SAME(10).
pub(crate) fn write_same10<P: From<WriteSame>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let (lba, blocks) = (cdb.get(WriteSame10::LBA), cdb.get(WriteSame10::BLOCKS));
    write_same(admission, lba.into(), blocks.into(), WriteSame10::BLOCKS.byte(), false)
}

/// WRITE SAME(16), where NDOB stands for a block of zeros.
pub(crate) fn write_same16<P: From<WriteSame>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let (lba, blocks) = (cdb.get(WriteSame16::LBA), cdb.get(WriteSame16::BLOCKS));
    write_same(admission, lba, blocks, WriteSame16::BLOCKS.byte(), cdb.get(WriteSame16::NO_DATA))
}

fn write_same<P: From<WriteSame>>(
    admission: &Admission<'_>,
    lba: u64,
    blocks: u32,
    length_byte: u16,
    no_data: bool,
) -> Result<P, Failure> {
    admission.check_protect()?;
    // Both lengths have the same flags.
    let unmap = admission.cdb().get(WriteSame16::UNMAP);
    if admission.cdb().get(WriteSame16::ANCHOR) {
        return Err(Check::cdb_field(WriteSame16::ANCHOR).into());
    }
    if unmap && !admission.view.is_thin() {
        return Err(Check::cdb_field(WriteSame16::UNMAP).into());
    }
    let range = admission.view.range_to_end(lba, u64::from(blocks))?;
    if range.len > u64::from(SAME_BYTES_MAX) {
        return Err(Check::cdb_byte(length_byte).into());
    }
    let taken = if no_data { 0 } else { admission.block_bytes() };
    admission.blocks_out(taken)?;
    if admission.request.write_bytes != taken {
        return Err(Check::cdb_byte(length_byte).into());
    }
    Ok(P::from(WriteSame { range, taken, unmap, chunks: Chunks::new(range.offset, 0) }))
}

/// Fills the buffer with copies of the block at its start; returns how many bytes are filled.
pub(crate) fn tile(buffer: &mut [u8], block_bytes: u32) -> u32 {
    let Ok(block) = usize::try_from(block_bytes) else { return 0 };
    let (first, rest) = match buffer.split_at_mut_checked(block) {
        Some(parts) => parts,
        None => return 0,
    };
    let mut filled = block_bytes;
    for copy in rest.chunks_exact_mut(block.max(1)) {
        copy.copy_from_slice(first);
        filled = filled.saturating_add(block_bytes);
    }
    filled
}

/// The program of WRITE SAME.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteSame {
    range: Range,
    taken: u32,
    unmap: bool,
    /// The writes of a block that is not all zeros.
    chunks: Chunks,
}

impl WriteSame {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        if self.taken == 0 { 0 } else { TILE_BYTES.max(self.taken) }
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.range.len == 0 => taken(self.taken),
            Event::Start if self.taken == 0 => self.zero(),
            Event::Start => Step::Fetch { at: 0, len: self.taken },
            Event::Fetched => self.fetched(env),
            Event::Stored(Ok(_)) => {
                self.chunks.advance();
                self.write().unwrap_or_else(|| taken(self.taken))
            }
            Event::Stored(Err(error)) => failed(env, error),
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }

    /// Zeros are written or unmapped without transferring them; any other block cannot be unmapped, as
    /// unmapped blocks read as zeros (SBC-3 section 5.40: UNMAP with a block that is not zeros is a write).
    fn fetched(&mut self, env: &mut Env<'_>) -> Step {
        let block = usize::try_from(self.taken).ok().and_then(|len| env.buffer.get(..len));
        if block.is_some_and(|block| block.iter().all(|byte| *byte == 0)) {
            return self.zero();
        }
        let tiled = tile(env.buffer, self.taken);
        let len = u32::try_from(self.range.len).unwrap_or(0);
        self.chunks = Chunks::new(self.range.offset, len);
        self.chunks.limit(tiled);
        self.write().unwrap_or_else(|| unexpected(env))
    }

    fn zero(&self) -> Step {
        let Range { offset, len } = self.range;
        Step::Media { unit: None, op: MediaOp::Zero { offset, len, unmap: self.unmap, durable: false } }
    }

    fn write(&self) -> Option<Step> {
        self.chunks.current().map(|chunk| Step::Media {
            unit: None,
            op: MediaOp::Write {
                offset: chunk.offset,
                len: chunk.len,
                buffer: 0,
                durable: false,
                atomic: false,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::state::home::HomeRequest;
    use crate::testing::{BLOCK, Bench, unit};
    use crate::vocabulary::storage::{MediaOp, Traits};
    use wire::scsi::command::{WriteSame10, WriteSame16};

    const ALL: WriteSame10 = WriteSame10::new(0, 0);

    #[test]
    fn one_block_is_written_many_times() {
        let mut bench = Bench::new();
        let block: Vec<u8> = (0..BLOCK).map(|at| at as u8 | 1).collect();
        let outcome = bench.write(WriteSame10::new(1, 300), &block);
        assert_eq!(outcome.assert_good().ending.write_bytes, BLOCK as u64);
        assert!(bench.medium[BLOCK..301 * BLOCK].chunks(BLOCK).all(|written| written == block));
        assert_eq!(bench.medium[301 * BLOCK], 0);
    }

    #[test]
    fn zeros_are_not_moved_and_can_be_unmapped() {
        let mut bench = Bench::new();
        bench.medium.fill(1);
        bench.write(ALL, &[0; BLOCK]).assert_good();
        assert!(bench.medium.iter().all(|byte| *byte == 0));
        let len = bench.medium.len() as u64;
        let zero = |unmap| MediaOp::Zero { offset: 0, len, unmap, durable: false };
        assert_eq!(bench.operations, [zero(false)]);
        bench.read(WriteSame16 { unmap: true, no_data: true, ..WriteSame16::new(0, 0) }).assert_good();
        assert_eq!(bench.operations.last(), Some(&zero(true)));
    }

    #[test]
    fn refusals() {
        let mut bench = Bench::new();
        bench
            .write(WriteSame10 { anchor: true, ..WriteSame10::new(0, 1) }, &[0; BLOCK])
            .assert_invalid_field(1);
        bench
            .write(WriteSame10 { anchor: true, unmap: true, ..WriteSame10::new(0, 1) }, &[0; BLOCK])
            .assert_invalid_field(1);
        bench
            .write(WriteSame10 { unmap: true, ..WriteSame10::new(0, 1) }, &[0; BLOCK / 2])
            .assert_check(0x5, 0x0e03);
        bench
            .write(WriteSame10 { unmap: true, ..WriteSame10::new(0, 1) }, &[0; 2 * BLOCK])
            .assert_invalid_field(7);
        bench.write(WriteSame10::new(0x0002_0001, 0), &[0; BLOCK]).assert_check(0x5, 0x2100);
        let traits = Traits { size_bytes: 1 << 40, ..bench.view.policy.traits };
        bench.ask(HomeRequest::StoreChanged(traits));
        bench.nexuses[0].attentions.clear();
        let longer = WriteSame16 { unmap: true, ..WriteSame16::new(0, 0x0002_0001) };
        bench.write(longer, &[0; BLOCK]).assert_invalid_field(10);
        let to_the_end = WriteSame16 { unmap: true, ..WriteSame16::new(0, 0) };
        bench.write(to_the_end, &[0; BLOCK]).assert_invalid_field(10);
        let mut unit = unit();
        unit.thin = false;
        let mut thick = Bench::of(unit, 1 << 20);
        thick
            .write(WriteSame10 { unmap: true, ..WriteSame10::new(0, 1) }, &[0; BLOCK])
            .assert_invalid_field(1);
        thick.write(WriteSame10::new(0, 1), &[0; BLOCK]).assert_good();
    }
}
