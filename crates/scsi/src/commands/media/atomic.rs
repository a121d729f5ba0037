//! COMPARE AND WRITE and ORWRITE (SBC-3 sections 5.3 and 5.13).

use super::{Chunks, failed, moved, taken, unexpected};
use crate::commands::admission::Admission;
use crate::commands::step::{Env, Event, Step};
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::command::{self, OrWrite16};

/// COMPARE AND WRITE: twice the blocks of data-out, first what is compared, then what is written.
pub(crate) fn compare_and_write<P: From<CompareAndWrite>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    let (lba, blocks) = (cdb.get(command::CompareAndWrite::LBA), cdb.get(command::CompareAndWrite::BLOCKS));
    let (range, len) = admission.transfer(lba, blocks.into(), command::CompareAndWrite::BLOCKS.byte())?;
    let total = len.saturating_mul(2);
    admission.blocks_out(total)?;
    if blocks > admission.view.compare_blocks_max() || admission.request.write_bytes != total {
        return Err(Check::cdb_field(command::CompareAndWrite::BLOCKS).into());
    }
    let durable = admission.is_forced();
    Ok(P::from(CompareAndWrite { offset: range.offset, len, durable }))
}

/// ORWRITE(16). A chunk at a time: OR is idempotent and its bits are independent, so other ORWRITEs see no
/// difference.
pub(crate) fn or_write<P: From<OrWrite>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    admission.check_protect()?;
    let (lba, blocks) = (cdb.get(OrWrite16::LBA), cdb.get(OrWrite16::BLOCKS));
    let (range, total) = admission.transfer(lba, blocks, OrWrite16::BLOCKS.byte())?;
    let chunks = Chunks::new(range.offset, admission.blocks_out(total)?);
    Ok(P::from(OrWrite { chunks, total, durable: admission.is_forced() }))
}

/// The program of COMPARE AND WRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompareAndWrite {
    offset: u64,
    len: u32,
    durable: bool,
}

impl CompareAndWrite {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.len.saturating_mul(2)
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.len == 0 => taken(0),
            Event::Start => Step::Fetch { at: 0, len: self.buffer_bytes() },
            Event::Fetched => Step::Media {
                unit: None,
                op: MediaOp::CompareAndWrite {
                    offset: self.offset,
                    len: self.len,
                    buffer: 0,
                    durable: self.durable,
                },
            },
            Event::Stored(Ok(_)) => taken(self.buffer_bytes()),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }
}

/// The program of ORWRITE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrWrite {
    chunks: Chunks,
    total: u32,
    durable: bool,
}

impl OrWrite {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.chunks.buffer_bytes()
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        let Some(chunk) = self.chunks.current() else { return taken(self.total) };
        match event {
            Event::Start => Step::Fetch { at: chunk.at, len: chunk.len },
            Event::Fetched => Step::Media {
                unit: None,
                op: MediaOp::OrWrite {
                    offset: chunk.offset,
                    len: chunk.len,
                    buffer: 0,
                    durable: self.durable,
                },
            },
            Event::Stored(Ok(_)) => {
                self.chunks.advance();
                self.next(env, Event::Start)
            }
            Event::Stored(Err(error)) => failed(env, moved(error, chunk.at)),
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::state::home::HomeRequest;
    use crate::testing::{BLOCK, Bench};
    use crate::vocabulary::storage::Traits;
    use wire::scsi::command::{CompareAndWrite, Inquiry, OrWrite16};

    fn compare_and_write(blocks: u8) -> CompareAndWrite {
        CompareAndWrite::new(1, blocks)
    }

    #[test]
    fn compare_and_write_writes_only_what_compares() {
        let mut bench = Bench::new();
        let mut out = vec![0; 2 * BLOCK];
        out.extend(vec![9; 2 * BLOCK]);
        let outcome = bench.write(compare_and_write(2), &out);
        assert_eq!(outcome.assert_good().ending.write_bytes, 4 * BLOCK as u64);
        assert_eq!(bench.medium[BLOCK..3 * BLOCK], [9; 2 * BLOCK]);
        out[..2 * BLOCK].fill(9);
        out[2 * BLOCK - 27] = 8;
        let outcome = bench.write(compare_and_write(2), &out);
        outcome.assert_check(0xe, 0x1d00);
        let at = (2 * BLOCK - 27) as u32;
        assert_eq!(outcome.ending.sense.unwrap().as_bytes()[3..7], at.to_be_bytes());
    }

    #[test]
    fn the_limit_of_compare_and_write_is_the_stores() {
        let mut bench = Bench::new();
        let with = |bench: &mut Bench, compare_write_bytes_max| {
            let traits = Traits { compare_write_bytes_max, ..bench.view.policy.traits };
            bench.ask(HomeRequest::StoreChanged(traits));
            bench.nexuses[0].attentions.clear();
            bench.read(Inquiry::page(0xb0, 255)).data[5]
        };
        assert_eq!(with(&mut bench, 2 * BLOCK as u32), 2);
        bench.write(compare_and_write(2), &[0; 4 * BLOCK]).assert_good();
        bench.write(compare_and_write(3), &[0; 6 * BLOCK]).assert_invalid_field(13);
        assert_eq!(with(&mut bench, 0), 0);
        bench.write(compare_and_write(1), &[0; 2 * BLOCK]).assert_check(0x5, 0x2000);
    }

    #[test]
    fn compare_and_write_wants_exactly_its_data() {
        let mut bench = Bench::new();
        bench.write(compare_and_write(1), &[0; 4 * BLOCK]).assert_invalid_field(13);
        bench.write(compare_and_write(3), &[0; 4 * BLOCK]).assert_invalid_field(13);
        bench.write(compare_and_write(255), &vec![0; 510 * BLOCK]).assert_good();
        bench.write(compare_and_write(0), &[]).assert_good();
    }

    #[test]
    fn or_write_sets_bits() {
        let mut bench = Bench::new();
        bench.medium.fill(0xa0);
        let outcome = bench.write(OrWrite16::new(0, 1025), &vec![0x05; 1025 * BLOCK]);
        assert_eq!(outcome.assert_good().ending.write_bytes, 1025 * BLOCK as u64);
        assert!(bench.medium[..1025 * BLOCK].iter().all(|byte| *byte == 0xa5));
        assert_eq!(bench.medium[1025 * BLOCK], 0xa0);
    }
}
