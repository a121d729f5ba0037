//! VERIFY (SBC-3 sections 5.27 to 5.30).

use super::{Chunks, failed, moved, same, taken, unexpected};
use crate::commands::admission::Admission;
use crate::commands::step::{Env, Event, Step};
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::command::{Verify10, Verify12, Verify16};

/// VERIFY(10).
pub(crate) fn verify10<P: From<Verify>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    verify(
        admission,
        u64::from(cdb.get(Verify10::LBA)),
        u32::from(cdb.get(Verify10::BLOCKS)),
        Verify10::BLOCKS.byte(),
    )
}

/// VERIFY(12).
pub(crate) fn verify12<P: From<Verify>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    verify(admission, u64::from(cdb.get(Verify12::LBA)), cdb.get(Verify12::BLOCKS), Verify12::BLOCKS.byte())
}

/// VERIFY(16).
pub(crate) fn verify16<P: From<Verify>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    verify(admission, cdb.get(Verify16::LBA), cdb.get(Verify16::BLOCKS), Verify16::BLOCKS.byte())
}

fn verify<P: From<Verify>>(
    admission: &Admission<'_>,
    lba: u64,
    blocks: u32,
    length_byte: u16,
) -> Result<P, Failure> {
    admission.check_protect()?;
    let (range, len) = admission.transfer(lba, blocks, length_byte)?;
    let (against, taken) = match admission.cdb().get(Verify10::BYTE_CHECK) {
        0 => (Against::Nothing, 0),
        1 => (Against::Data, len),
        3 if len > 0 => (Against::Block, admission.block_bytes()),
        3 => (Against::Nothing, 0),
        _ => return Err(Check::cdb_field(Verify10::BYTE_CHECK).into()),
    };
    if admission.blocks_out(taken)? < taken {
        return Err(Check::cdb_byte(length_byte).into());
    }
    let block_bytes = admission.block_bytes();
    Ok(P::from(Verify { chunks: Chunks::new(range.offset, len), against, taken, block_bytes, tiled: 0 }))
}

/// What the medium is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Against {
    /// Nothing: it must only be readable.
    Nothing,
    /// As much data-out.
    Data,
    /// One block of data-out.
    Block,
}

/// The program of VERIFY.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verify {
    chunks: Chunks,
    against: Against,
    taken: u32,
    block_bytes: u32,
    /// Bytes of the buffer that are filled with copies of the block.
    tiled: u32,
}

impl Verify {
    /// Checks that a range can be read.
    pub(crate) fn readable(offset: u64, len: u32, block_bytes: u32) -> Verify {
        let chunks = Chunks::new(offset, len);
        Verify { chunks, against: Against::Nothing, taken: 0, block_bytes, tiled: 0 }
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        match self.against {
            Against::Nothing | Against::Data => self.chunks.buffer_bytes(),
            Against::Block => same::TILE_BYTES.max(self.block_bytes),
        }
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        let Some(chunk) = self.chunks.current() else { return taken(self.taken) };
        match event {
            Event::Start => match self.against {
                Against::Nothing => Step::Media {
                    unit: None,
                    op: MediaOp::Read { offset: chunk.offset, len: chunk.len, buffer: 0 },
                },
                Against::Data => Step::Fetch { at: chunk.at, len: chunk.len },
                Against::Block if self.tiled == 0 => Step::Fetch { at: 0, len: self.block_bytes },
                Against::Block => self.compare(),
            },
            Event::Fetched => {
                if self.against == Against::Block {
                    self.tiled = same::tile(env.buffer, self.block_bytes);
                    self.chunks.limit(self.tiled);
                }
                self.compare()
            }
            Event::Stored(Ok(_)) => {
                self.chunks.advance();
                self.next(env, Event::Start)
            }
            Event::Stored(Err(error)) => failed(env, moved(error, chunk.at)),
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }

    fn compare(&self) -> Step {
        match self.chunks.current() {
            Some(chunk) => Step::Media {
                unit: None,
                op: MediaOp::Compare { offset: chunk.offset, len: chunk.len, buffer: 0 },
            },
            None => taken(self.taken),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{BLOCK, Bench};
    use wire::scsi::command::{Verify10, Verify12, Verify16};

    #[test]
    fn verify_compares_data_or_one_block_or_only_reads() {
        let mut bench = Bench::new();
        bench.medium[..2000 * BLOCK].fill(3);
        bench.read(Verify10::new(0, 2000)).assert_good();
        bench
            .write(Verify10 { byte_check: 1, ..Verify10::new(0, 2000) }, &vec![3; 2000 * BLOCK])
            .assert_good();
        let outcome = bench.write(Verify12 { byte_check: 3, ..Verify12::new(0, 2000) }, &[3; BLOCK]);
        assert_eq!(outcome.assert_good().ending.write_bytes, BLOCK as u64);
        bench.medium[1900 * BLOCK + 1] = 0;
        let at = (1900 * BLOCK + 1) as u32;
        for (byte_check, out) in [(1, vec![3; 2000 * BLOCK]), (3, vec![3; BLOCK])] {
            let outcome = bench.write(Verify16 { byte_check, ..Verify16::new(0, 2000) }, &out);
            outcome.assert_check(0xe, 0x1d00);
            assert_eq!(outcome.ending.sense.unwrap().as_bytes()[3..7], at.to_be_bytes());
        }
    }

    #[test]
    fn verify_refuses_what_it_does_not_know() {
        let mut bench = Bench::new();
        bench.read(Verify10 { byte_check: 2, ..Verify10::new(0, 1) }).assert_invalid_field(1);
        bench.read(Verify10 { protect: 7, ..Verify10::new(0, 1) }).assert_invalid_field(1);
        bench.write(Verify10 { byte_check: 1, ..Verify10::new(0, 2) }, &[0; BLOCK]).assert_invalid_field(7);
        bench.read(Verify10 { byte_check: 1, ..Verify10::new(0xffff_ffff, 0) }).assert_check(0x5, 0x2100);
    }
}
