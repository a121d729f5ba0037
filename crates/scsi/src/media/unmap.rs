//! UNMAP (SBC-3 section 5.25).

use super::{failed, refused, taken, unexpected};
use crate::admit::Admission;
use crate::exec::{Env, Event, Program, Step};
use crate::limits::UNMAP_DESCRIPTORS_MAX;
use crate::sense::{Check, Failure};
use crate::storage::MediaOp;
use crate::unit::View;

const HEADER_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 16;

/// UNMAP.
pub(crate) fn begin(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    if cdb.u8(1) & 0x01 != 0 {
        return Err(Check::cdb_bit(1, 0).into());
    }
    let len = u32::from(cdb.u16(7));
    let too_short = len > 0 && usize::from(cdb.u16(7)) < HEADER_BYTES;
    if too_short || admission.request.write_bytes < len {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    Ok(Program::Unmap(Unmap { len, next: 0 }))
}

/// The program of UNMAP: its parameter list stays in the task's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmap {
    len: u32,
    next: usize,
}

impl Unmap {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.len
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.len == 0 => taken(0),
            Event::Start => Step::Fetch { at: 0, len: self.len },
            Event::Fetched => match self.check(env) {
                Ok(()) => self.discard(env),
                Err(failure) => refused(env, failure),
            },
            Event::Stored(Ok(_)) => self.discard(env),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Pushed | Event::Home(_) | Event::Detached => unexpected(env),
        }
    }

    /// Every descriptor is judged before the first takes effect.
    fn check(&self, env: &Env<'_>) -> Result<(), Failure> {
        let mut count = 0u32;
        for (lba, blocks) in self.descriptors(env) {
            env.view.range(lba, u64::from(blocks))?;
            count = count.saturating_add(1);
        }
        if count > UNMAP_DESCRIPTORS_MAX { Err(Check::parameter_byte(2).into()) } else { Ok(()) }
    }

    fn discard(&mut self, env: &Env<'_>) -> Step {
        for (lba, blocks) in self.descriptors(env).skip(self.next) {
            self.next = self.next.saturating_add(1);
            match range(env.view, lba, blocks) {
                Ok(None) => {}
                Ok(Some(op)) => return Step::Media { unit: None, op },
                Err(failure) => return refused(env, failure),
            }
        }
        taken(self.len)
    }

    /// LBA and count of every whole descriptor that the parameter list announces and holds.
    fn descriptors<'e>(&self, env: &'e Env<'_>) -> impl Iterator<Item = (u64, u32)> + use<'e> {
        let list = usize::try_from(self.len).ok().and_then(|len| env.buffer.get(..len)).unwrap_or_default();
        let announced = list.get(2..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes);
        let body = list.get(HEADER_BYTES..).unwrap_or_default();
        let body = body.get(..usize::from(announced).min(body.len())).unwrap_or_default();
        body.chunks_exact(DESCRIPTOR_BYTES).filter_map(|descriptor| {
            let (lba, rest) = descriptor.split_first_chunk::<8>()?;
            let (blocks, _) = rest.split_first_chunk::<4>()?;
            Some((u64::from_be_bytes(*lba), u32::from_be_bytes(*blocks)))
        })
    }
}

fn range(view: &View, lba: u64, blocks: u32) -> Result<Option<MediaOp>, Failure> {
    let range = view.range(lba, u64::from(blocks))?;
    Ok((range.len > 0).then_some(MediaOp::Discard { offset: range.offset, len: range.len }))
}

#[cfg(test)]
mod tests {
    use crate::testing::{BLOCK, Bench, unit};

    fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
        let len = ranges.len() as u16 * 16;
        let mut list = (len + 6).to_be_bytes().to_vec();
        list.extend(len.to_be_bytes());
        list.extend([0; 4]);
        for (lba, blocks) in ranges {
            list.extend(lba.to_be_bytes());
            list.extend(blocks.to_be_bytes());
            list.extend([0; 4]);
        }
        list
    }

    fn unmap(bench: &mut Bench, ranges: &[(u64, u32)]) -> crate::testing::Outcome {
        let list = list(ranges);
        let [high, low] = (list.len() as u16).to_be_bytes();
        bench.write(&[0x42, 0, 0, 0, 0, 0, 0, high, low, 0], &list)
    }

    #[test]
    fn unmapped_blocks_read_as_zeros() {
        let mut bench = Bench::new();
        bench.medium.fill(1);
        unmap(&mut bench, &[(1, 2), (7, 0), (9, 1), (131_072, 0)]).assert_good();
        let zeros: Vec<usize> = (0..12).filter(|block| bench.medium[block * BLOCK] == 0).collect();
        assert_eq!(zeros, [1, 2, 9]);
        unmap(&mut bench, &[]).assert_good();
        bench.read(&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0]).assert_good();
    }

    #[test]
    fn nothing_is_unmapped_when_a_descriptor_is_wrong() {
        let mut bench = Bench::new();
        bench.medium.fill(1);
        unmap(&mut bench, &[(1, 2), (131_072, 1)]).assert_check(0x5, 0x2100);
        unmap(&mut bench, &[(1, 1); 257]).assert_check(0x5, 0x2600);
        assert!(bench.medium.iter().all(|byte| *byte == 1));
        unmap(&mut bench, &[(1, 1); 256]).assert_good();
        bench.write(&[0x42, 0, 0, 0, 0, 0, 0, 0, 7, 0], &[0; 7]).assert_check(0x5, 0x1a00);
        bench.write(&[0x42, 1, 0, 0, 0, 0, 0, 0, 8, 0], &[0; 8]).assert_invalid_field(1);
        let mut unit = unit();
        unit.thin = false;
        unmap(&mut Bench::of(unit, 1 << 20), &[(1, 1)]).assert_check(0x5, 0x2000);
    }
}
