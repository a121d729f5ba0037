//! READ, WRITE, WRITE ATOMIC, and WRITE AND VERIFY (SBC-3 sections 5.8 to 5.12, 5.32 to 5.38; SBC-4 section 5.48).

use super::{Chunk, Chunks, failed, taken, unexpected};
use crate::commands::admission::Admission;
use crate::commands::step::{Env, Event, Step};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::command::{
    Read6, Read10, Read12, Read16, Write6, Write10, Write12, Write16, WriteAndVerify10, WriteAndVerify12,
    WriteAndVerify16, WriteAtomic16,
};

/// READ(6): 21 bits of address; a length of 0 means 256 blocks.
pub(crate) fn read6<P: From<Read>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let (lba, blocks) = short_range(admission);
    read(admission, lba, blocks, Read6::BLOCKS.byte())
}

/// READ(10).
pub(crate) fn read10<P: From<Read>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    read(
        admission,
        u64::from(cdb.get(Read10::LBA)),
        u32::from(cdb.get(Read10::BLOCKS)),
        Read10::BLOCKS.byte(),
    )
}

/// READ(12).
pub(crate) fn read12<P: From<Read>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    read(admission, u64::from(cdb.get(Read12::LBA)), cdb.get(Read12::BLOCKS), Read12::BLOCKS.byte())
}

/// READ(16).
pub(crate) fn read16<P: From<Read>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    read(admission, cdb.get(Read16::LBA), cdb.get(Read16::BLOCKS), Read16::BLOCKS.byte())
}

/// WRITE(6).
pub(crate) fn write6<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let (lba, blocks) = short_range(admission);
    write(admission, lba, blocks, Write6::BLOCKS.byte(), Kind::PLAIN)
}

/// WRITE(10).
pub(crate) fn write10<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    write(
        admission,
        u64::from(cdb.get(Write10::LBA)),
        u32::from(cdb.get(Write10::BLOCKS)),
        Write10::BLOCKS.byte(),
        plain(admission),
    )
}

/// WRITE(12).
pub(crate) fn write12<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    write(
        admission,
        u64::from(cdb.get(Write12::LBA)),
        cdb.get(Write12::BLOCKS),
        Write12::BLOCKS.byte(),
        plain(admission),
    )
}

/// WRITE(16).
pub(crate) fn write16<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    write(
        admission,
        cdb.get(Write16::LBA),
        cdb.get(Write16::BLOCKS),
        Write16::BLOCKS.byte(),
        plain(admission),
    )
}

/// WRITE AND VERIFY(10).
pub(crate) fn write_verify10<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let kind = verified(admission)?;
    write(
        admission,
        u64::from(cdb.get(WriteAndVerify10::LBA)),
        u32::from(cdb.get(WriteAndVerify10::BLOCKS)),
        WriteAndVerify10::BLOCKS.byte(),
        kind,
    )
}

/// WRITE AND VERIFY(12).
pub(crate) fn write_verify12<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let kind = verified(admission)?;
    write(
        admission,
        u64::from(cdb.get(WriteAndVerify12::LBA)),
        cdb.get(WriteAndVerify12::BLOCKS),
        WriteAndVerify12::BLOCKS.byte(),
        kind,
    )
}

/// WRITE AND VERIFY(16).
pub(crate) fn write_verify16<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let kind = verified(admission)?;
    write(
        admission,
        cdb.get(WriteAndVerify16::LBA),
        cdb.get(WriteAndVerify16::BLOCKS),
        WriteAndVerify16::BLOCKS.byte(),
        kind,
    )
}

/// WRITE ATOMIC(16): all or nothing, so all of it must be in the buffer at once, and all of it must be sent.
pub(crate) fn write_atomic16<P: From<Write>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    let (lba, blocks) = (cdb.get(WriteAtomic16::LBA), u32::from(cdb.get(WriteAtomic16::BLOCKS)));
    let blocks_byte = WriteAtomic16::BLOCKS.byte();
    let (_, len) = admission.transfer(lba, blocks, blocks_byte)?;
    if cdb.get(WriteAtomic16::BOUNDARY) != 0 {
        return Err(Check::cdb_field(WriteAtomic16::BOUNDARY).into());
    }
    if blocks > admission.view.atomic_blocks_max() || admission.blocks_out(len)? < len {
        return Err(Check::cdb_field(WriteAtomic16::BLOCKS).into());
    }
    write(admission, lba, blocks, blocks_byte, Kind { atomic: true, ..plain(admission) })
}

/// Address and length of READ(6) and WRITE(6), which have the same fields.
fn short_range(admission: &Admission<'_>) -> (u64, u32) {
    let Read6 { lba, blocks } = Read6::of(admission.cdb());
    (lba.into(), if blocks == 0 { 256 } else { blocks.into() })
}

/// A read of blocks; `length_byte` is where the CDB's length field is.
pub(crate) fn read<P: From<Read>>(
    admission: &Admission<'_>,
    lba: u64,
    blocks: u32,
    length_byte: u16,
) -> Result<P, Failure> {
    let (range, total) = admission.transfer(lba, blocks, length_byte)?;
    let block_bytes = admission.block_bytes();
    let wanted = total.min(admission.request.read_bytes);
    let whole = wanted.checked_next_multiple_of(block_bytes).unwrap_or(total);
    Ok(P::from(Read { chunks: Chunks::new(range.offset, whole), total }))
}

/// A write of blocks, durable before it ends if `forced`.
pub(crate) fn write_blocks<P: From<Write>>(
    admission: &Admission<'_>,
    lba: u64,
    blocks: u32,
    length_byte: u16,
    forced: bool,
) -> Result<P, Failure> {
    write(admission, lba, blocks, length_byte, Kind { durable: forced, ..Kind::PLAIN })
}

/// How a write is performed.
#[derive(Clone, Copy, Debug)]
struct Kind {
    durable: bool,
    atomic: bool,
    verify: Option<Verification>,
}

/// How what was written is verified (BYTCHK, SBC-3 section 5.36).
#[derive(Clone, Copy, Debug)]
enum Verification {
    /// It is readable. Another command may have overwritten it since.
    Read,
    /// It is what was written.
    Compare,
}

impl Kind {
    const PLAIN: Kind = Kind { durable: false, atomic: false, verify: None };
}

/// A write that may have FUA set.
fn plain(admission: &Admission<'_>) -> Kind {
    Kind { durable: admission.is_forced(), ..Kind::PLAIN }
}

/// WRITE AND VERIFY: what is verified must be on the medium, so the write is always durable. BYTCHK is 0 or 1.
fn verified(admission: &Admission<'_>) -> Result<Kind, Failure> {
    admission.check_protect()?;
    let verification = match admission.cdb().get(WriteAndVerify10::BYTE_CHECK) {
        0 => Verification::Read,
        1 => Verification::Compare,
        _ => return Err(Check::cdb_field(WriteAndVerify10::BYTE_CHECK).into()),
    };
    Ok(Kind { durable: true, atomic: false, verify: Some(verification) })
}

fn write<P: From<Write>>(
    admission: &Admission<'_>,
    lba: u64,
    blocks: u32,
    length_byte: u16,
    kind: Kind,
) -> Result<P, Failure> {
    let (range, total) = admission.transfer(lba, blocks, length_byte)?;
    let coming = admission.blocks_out(total)?;
    Ok(P::from(Write { chunks: Chunks::new(range.offset, coming), total, kind, verifying: false }))
}

/// READ: chunk after chunk, with the status after the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    chunks: Chunks,
    total: u32,
}

impl Read {
    /// The only chunk, if there is just one.
    #[inline]
    pub(crate) fn whole(&self) -> Option<Chunk> {
        let mut rest = self.chunks;
        let chunk = rest.current()?;
        rest.advance();
        rest.current().is_none().then_some(chunk)
    }

    /// Bytes that the command requests.
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start => {}
            Event::Pushed => self.chunks.advance(),
            Event::Stored(Err(error)) => return failed(env, error),
            Event::Fetched | Event::Stored(Ok(_)) | Event::Home(_) | Event::Detached => {
                return unexpected(env);
            }
        }
        let ending = Ending::sent(u64::from(self.total));
        let Some(chunk) = self.chunks.current() else { return Step::End(ending) };
        let mut rest = self.chunks;
        rest.advance();
        let end = rest.current().is_none().then_some(ending);
        Step::ReadPush { offset: chunk.offset, len: chunk.len, at: chunk.at, end }
    }
}

/// WRITE and its variants: fetch a chunk, write it, compare it where requested; then the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    chunks: Chunks,
    total: u32,
    kind: Kind,
    verifying: bool,
}

impl Write {
    /// The only chunk, if there is just one, with all that the command requests.
    #[inline]
    pub(crate) fn whole(&self) -> Option<Chunk> {
        let is_plain = self.kind.verify.is_none() && !self.kind.atomic;
        self.chunks.current().filter(|chunk| is_plain && chunk.len == self.total)
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.chunks.buffer_bytes()
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        let Some(chunk) = self.chunks.current() else { return taken(self.total) };
        match event {
            Event::Start => Step::Fetch { at: chunk.at, len: chunk.len },
            Event::Fetched => Step::Media {
                unit: None,
                op: MediaOp::Write {
                    offset: chunk.offset,
                    len: chunk.len,
                    buffer: 0,
                    durable: self.kind.durable,
                    atomic: self.kind.atomic,
                },
            },
            Event::Stored(Err(error)) => failed(env, super::moved(error, chunk.at)),
            Event::Stored(Ok(_)) => match self.kind.verify {
                Some(how) if !std::mem::replace(&mut self.verifying, true) => {
                    let (offset, len) = (chunk.offset, chunk.len);
                    let op = match how {
                        Verification::Read => MediaOp::Read { offset, len, buffer: 0 },
                        Verification::Compare => MediaOp::Compare { offset, len, buffer: 0 },
                    };
                    Step::Media { unit: None, op }
                }
                Some(_) | None => {
                    self.verifying = false;
                    self.chunks.advance();
                    self.next(env, Event::Start)
                }
            },
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{BLOCK, Bench};
    use crate::vocabulary::storage::CHUNK_BYTES;
    use crate::vocabulary::storage::{MediaOp, StoreError};
    use std::sync::Arc;
    use wire::Cdb;
    use wire::scsi::command::{
        CompareAndWrite, ModeSelect6, OrWrite16, Read6, Read10, Read12, Read16, Unmap, Verify10, Write6,
        Write10, Write12, Write16, WriteAndVerify10, WriteAndVerify12, WriteAndVerify16, WriteAtomic16,
    };

    #[test]
    fn what_is_written_is_read_in_all_sizes_of_cdb() {
        let mut bench = Bench::new();
        let blocks = vec![7; 3 * BLOCK];
        for cdb in [
            Cdb::from(Write10::new(2, 3)),
            Cdb::from(Write6::new(2, 3)),
            Cdb::from(Write12::new(2, 3)),
            Cdb::from(Write16::new(2, 3)),
            Cdb::from(WriteAtomic16::new(2, 3)),
            Cdb::from(WriteAndVerify10 { byte_check: 1, ..WriteAndVerify10::new(2, 3) }),
            Cdb::from(WriteAndVerify12::new(2, 3)),
            Cdb::from(WriteAndVerify16 { byte_check: 1, ..WriteAndVerify16::new(2, 3) }),
        ] {
            bench.medium.fill(0);
            let outcome = bench.write(cdb, &blocks);
            assert_eq!(outcome.assert_good().ending.write_bytes, 3 * BLOCK as u64);
            assert_eq!(bench.medium[2 * BLOCK..5 * BLOCK], blocks);
            assert_eq!(bench.medium[5 * BLOCK..6 * BLOCK], [0; BLOCK]);
        }
        for cdb in [
            Cdb::from(Read10::new(2, 3)),
            Cdb::from(Read6::new(2, 3)),
            Cdb::from(Read12::new(2, 3)),
            Cdb::from(Read16 { dpo: true, fua: true, ..Read16::new(2, 3) }),
        ] {
            assert_eq!(bench.read(cdb).assert_good().data, blocks);
        }
        assert_eq!(bench.read(Read6::new(0, 0)).assert_good().data.len(), 256 * BLOCK);
    }

    #[test]
    fn long_transfers_go_in_chunks() {
        let mut bench = Bench::new();
        let out: Vec<u8> = (0..1025 * BLOCK).map(|at| (at / 511) as u8).collect();
        bench.write(Write10::new(0, 1025), &out).assert_good();
        assert_eq!(bench.operations.len(), 3);
        assert_eq!(bench.medium[..out.len()], out);
        assert_eq!(bench.read(Read10::new(0, 1025)).assert_good().data, out);
        assert!(out.len() > 2 * CHUNK_BYTES as usize);
    }

    #[test]
    fn what_was_written_is_read_or_compared_as_bytchk_says() {
        let mut bench = Bench::new();
        for (byte_check, compares) in [(0, false), (1, true)] {
            bench.operations.clear();
            bench
                .write(WriteAndVerify10 { byte_check, ..WriteAndVerify10::new(2, 3) }, &[7; 3 * BLOCK])
                .assert_good();
            let [MediaOp::Write { durable: true, .. }, verifies] = bench.operations[..] else {
                panic!("{:?}", bench.operations)
            };
            assert_eq!(matches!(verifies, MediaOp::Compare { .. }), compares, "{verifies:?}");
            assert_eq!(matches!(verifies, MediaOp::Read { .. }), !compares, "{verifies:?}");
        }
    }

    /// The cases of libiscsi's residual tests.
    #[test]
    fn only_what_the_initiator_moves_is_moved_and_the_ending_counts_the_rest() {
        let mut bench = Bench::new();
        for (sent, written) in [(0, 0), (BLOCK, BLOCK), (4 * BLOCK, 2 * BLOCK), (4 * BLOCK + 1, 2 * BLOCK)] {
            bench.medium.fill(0);
            let outcome = bench.write(Write10::new(0, 2), &vec![1; sent]);
            assert_eq!(outcome.assert_good().ending.write_bytes, 2 * BLOCK as u64);
            assert_eq!(bench.medium.iter().filter(|byte| **byte == 1).count(), written);
        }
        for (wanted, moved) in [(0, 0), (200, 200), (BLOCK, BLOCK), (10_000, 2 * BLOCK)] {
            let outcome = bench.run(0, Read10::new(0, 2), &[], wanted as u32);
            assert_eq!(outcome.assert_good().ending.read_bytes, 2 * BLOCK as u64);
            assert_eq!(outcome.data.len(), moved);
        }
    }

    #[test]
    fn data_out_that_is_no_whole_blocks_is_refused_with_what_is_missing() {
        let mut bench = Bench::new();
        for cdb in [
            Cdb::from(Write10::new(0, 2)),
            Cdb::from(Write6::new(0, 2)),
            Cdb::from(Write12::new(0, 2)),
            Cdb::from(Write16::new(0, 2)),
            Cdb::from(WriteAtomic16::new(0, 2)),
            Cdb::from(WriteAndVerify10 { byte_check: 1, ..WriteAndVerify10::new(0, 2) }),
            Cdb::from(WriteAndVerify12::new(0, 2)),
            Cdb::from(WriteAndVerify16 { byte_check: 1, ..WriteAndVerify16::new(0, 2) }),
            Cdb::from(OrWrite16::new(0, 2)),
            Cdb::from(CompareAndWrite::new(0, 1)),
            Cdb::from(Verify10 { byte_check: 1, ..Verify10::new(0, 2) }),
        ] {
            for sent in [1, 200, BLOCK - 1, BLOCK + 1, 2 * BLOCK - 1] {
                let outcome = bench.write(cdb, &vec![1; sent]);
                outcome.assert_check(0x5, 0x0e03);
                assert_eq!(outcome.ending.write_bytes, 2 * BLOCK as u64);
            }
        }
        assert!(bench.operations.is_empty());
    }

    #[test]
    fn ranges_end_at_the_capacity() {
        let mut bench = Bench::new();
        let last = Read10::new(0x0001_ffff, 1);
        bench.read(last).assert_good();
        bench.read(Read10::new(0x0002_0000, 0)).assert_good();
        bench.read(Read10::new(0x0002_0001, 0)).assert_check(0x5, 0x2100);
        bench.read(Read10::new(0x0001_ffff, 2)).assert_check(0x5, 0x2100);
        let beyond = Read16::new(0xffff_ffff_ffff_ffff, 0xffff_ffff);
        bench.read(beyond).assert_check(0x5, 0x2100);
        bench.read(Read12 { protect: 1, ..Read12::new(0, 1) }).assert_invalid_field(1);
        bench
            .write(WriteAndVerify10 { byte_check: 2, ..WriteAndVerify10::new(0, 1) }, &[0; BLOCK])
            .assert_invalid_field(1);
    }

    #[test]
    fn force_unit_access_or_no_write_cache_makes_writes_durable() {
        let mut bench = Bench::new();
        let durable =
            |bench: &Bench| matches!(bench.operations.last(), Some(MediaOp::Write { durable: true, .. }));
        bench.write(Write10::new(0, 1), &[1; BLOCK]).assert_good();
        assert!(!durable(&bench));
        bench.write(Write10 { fua: true, ..Write10::new(0, 1) }, &[1; BLOCK]).assert_good();
        assert!(durable(&bench));
        let caching: Vec<u8> = [0, 0, 0, 0, 0x08, 0x12].into_iter().chain([0; 18]).collect();
        bench.write(ModeSelect6::new(24), &caching).assert_good();
        assert_eq!(bench.operations.last(), Some(&MediaOp::Flush));
        bench.write(Write10::new(0, 1), &[1; BLOCK]).assert_good();
        assert!(durable(&bench));
    }

    /// The write cache goes off while a long write is under way, and again between an UNMAP and its end.
    #[test]
    fn what_was_cached_is_flushed_when_the_cache_went_off_meanwhile() {
        let mut bench = Bench::new();
        bench.after = Some((1, |view| Arc::make_mut(&mut view.policy).modes.write_cache = false));
        bench.write(Write10::new(0, 1025), &vec![1; 1025 * BLOCK]).assert_good();
        let durable: Vec<_> = bench
            .operations
            .iter()
            .map(|op| match op {
                MediaOp::Write { durable, .. } => Some(*durable),
                _ => None,
            })
            .collect();
        assert_eq!(durable, [Some(false), Some(true), Some(true), None]);
        assert_eq!(bench.operations.last(), Some(&MediaOp::Flush));
        bench.operations.clear();
        let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 7], &[1, 0, 0, 0, 1, 0, 0, 0, 0]].concat();
        let outcome = bench.write(Unmap::new(24), &list);
        assert_eq!(outcome.assert_good().ending.write_bytes, 24);
        assert!(matches!(bench.operations[..], [MediaOp::Discard { .. }, MediaOp::Flush]));
        bench.operations.clear();
        bench.write(Write10::new(0, 1), &[1; BLOCK]).assert_good();
        assert!(matches!(bench.operations[..], [MediaOp::Write { durable: true, .. }]));
    }

    #[test]
    fn an_atomic_write_has_a_limit_and_comes_whole() {
        let mut bench = Bench::new();
        let atomic = |blocks| WriteAtomic16::new(0, blocks);
        bench.write(atomic(256), &vec![1; 256 * BLOCK]).assert_good();
        bench.write(atomic(257), &vec![1; 257 * BLOCK]).assert_invalid_field(12);
        bench.write(atomic(2), &[1; BLOCK]).assert_invalid_field(12);
    }

    #[test]
    fn a_store_that_fails_is_reported_by_its_sense() {
        let mut bench = Bench::new();
        for (error, key, code) in [
            (StoreError::NoSpace, 0x7, 0x2707),
            (StoreError::WriteFailed, 0x3, 0x0c00),
            (StoreError::Lost, 0x4, 0x0c00),
            (StoreError::Unavailable, 0x2, 0x0400),
        ] {
            bench.failure = Some(error);
            bench.write(Write10::new(0, 1), &[1; BLOCK]).assert_check(key, code);
        }
        bench.failure = Some(StoreError::ReadFailed { at: 3 * BLOCK as u64 });
        let outcome = bench.read(Read10::new(2, 2));
        outcome.assert_check(0x3, 0x1100);
        assert_eq!(outcome.ending.sense.unwrap().as_bytes()[..7], [0xf0, 0, 3, 0, 0, 0, 3]);
    }
}
