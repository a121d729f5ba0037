//! UNMAP (SBC-3 section 5.25), and ATA's TRIM (ACS-3 section 7.5), which differs only in its list.

use super::{failed, refused, taken, unexpected};
use crate::commands::admission::Admission;
use crate::commands::step::{Env, Event, Step};
use crate::state::limits::{UNMAP_BYTES_MAX, UNMAP_DESCRIPTORS_MAX};
use crate::state::unit::View;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::capacity::{UnmapDescriptor, UnmapHeader};
use wire::scsi::command;

const ENTRY_BYTES: usize = 8;

/// UNMAP.
pub(crate) fn begin<P: From<Unmap>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(command::Unmap::ANCHOR) {
        return Err(Check::cdb_field(command::Unmap::ANCHOR).into());
    }
    let len = cdb.get(command::Unmap::LIST_BYTES);
    let too_short = len > 0 && usize::from(len) < UnmapHeader::BYTES;
    let len = u32::from(len);
    if too_short || admission.request.write_bytes < len {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    Ok(P::from(Unmap { len, next: 0, list: List::Descriptors }))
}

/// How the parameter list names its ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum List {
    /// A header, then UNMAP block descriptors.
    Descriptors,
    /// LBA range entries.
    Entries,
}

/// The program of UNMAP and TRIM: its parameter list stays in the task's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unmap {
    len: u32,
    next: usize,
    list: List,
}

impl Unmap {
    /// TRIM of the ranges in this many bytes.
    pub(crate) fn trim(len: u32) -> Unmap {
        Unmap { len, next: 0, list: List::Entries }
    }

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

    /// Every range is checked before the first takes effect.
    fn check(&self, env: &Env<'_>) -> Result<(), Failure> {
        let (mut count, mut bytes) = (0u32, 0u64);
        for (lba, blocks) in self.ranges(env) {
            let range = env.view.range(lba, u64::from(blocks))?;
            count = count.saturating_add(1);
            bytes = bytes.saturating_add(range.len);
        }
        let most = match self.list {
            List::Descriptors => u64::from(UNMAP_BYTES_MAX),
            // TRIM has no limit except the length of its list.
            List::Entries => u64::MAX,
        };
        if count > UNMAP_DESCRIPTORS_MAX || bytes > most {
            return Err(Check::parameter_byte(2).into());
        }
        Ok(())
    }

    fn discard(&mut self, env: &Env<'_>) -> Step {
        for (lba, blocks) in self.ranges(env).skip(self.next) {
            self.next = self.next.saturating_add(1);
            match range(env.view, lba, blocks) {
                Ok(None) => {}
                Ok(Some(op)) => return Step::Media { unit: None, op },
                Err(failure) => return refused(env, failure),
            }
        }
        taken(self.len)
    }

    /// LBA and count of each range that is complete in the parameter list.
    fn ranges<'e>(&self, env: &'e Env<'_>) -> impl Iterator<Item = (u64, u32)> + use<'e> {
        let list = usize::try_from(self.len).ok().and_then(|len| env.buffer.get(..len)).unwrap_or_default();
        let (body, range_bytes, range): (_, _, Range) = match self.list {
            List::Descriptors => (announced(list), UnmapDescriptor::BYTES, descriptor),
            List::Entries => (list, ENTRY_BYTES, entry),
        };
        body.chunks_exact(range_bytes).filter_map(range)
    }
}

/// Reads LBA and count of a range.
type Range = fn(&[u8]) -> Option<(u64, u32)>;

/// The descriptors that the header announces, as far as they were sent.
fn announced(list: &[u8]) -> &[u8] {
    let announced = UnmapHeader::read(list).descriptor_bytes;
    let body = list.get(UnmapHeader::BYTES..).unwrap_or_default();
    body.get(..usize::from(announced).min(body.len())).unwrap_or_default()
}

fn descriptor(bytes: &[u8]) -> Option<(u64, u32)> {
    Some((UnmapDescriptor::LBA.get(bytes)?, UnmapDescriptor::BLOCKS.get(bytes)?))
}

/// Six bytes of LBA and two of length, little-endian.
fn entry(bytes: &[u8]) -> Option<(u64, u32)> {
    let [a, b, c, d, e, f, low, high] = *bytes.first_chunk()?;
    let lba = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    Some((lba, u32::from(u16::from_le_bytes([low, high]))))
}

fn range(view: &View, lba: u64, blocks: u32) -> Result<Option<MediaOp>, Failure> {
    let range = view.range(lba, u64::from(blocks))?;
    Ok((range.len > 0).then_some(MediaOp::Discard { offset: range.offset, len: range.len }))
}

#[cfg(test)]
mod tests {
    use crate::state::home::HomeRequest;
    use crate::testing::{BLOCK, Bench, unit};
    use crate::vocabulary::storage::Traits;
    use wire::scsi::command::Unmap;

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
        bench.write(Unmap::new(list.len() as u16), &list)
    }

    #[test]
    fn unmapped_blocks_read_as_zeros() {
        let mut bench = Bench::new();
        bench.medium.fill(1);
        unmap(&mut bench, &[(1, 2), (7, 0), (9, 1), (131_072, 0)]).assert_good();
        let zeros: Vec<usize> = (0..12).filter(|block| bench.medium[block * BLOCK] == 0).collect();
        assert_eq!(zeros, [1, 2, 9]);
        unmap(&mut bench, &[]).assert_good();
        bench.read(Unmap::new(0)).assert_good();
    }

    #[test]
    fn more_than_block_limits_say_is_refused() {
        let mut bench = Bench::new();
        let traits = Traits { size_bytes: 1 << 40, ..bench.view.policy.traits };
        bench.ask(HomeRequest::StoreChanged(traits));
        bench.nexuses[0].attentions.clear();
        unmap(&mut bench, &[(0, 1_048_577)]).assert_check(0x5, 0x2600);
        unmap(&mut bench, &[(0, 1_048_576), (1, 1)]).assert_check(0x5, 0x2600);
        assert!(bench.operations.is_empty());
    }

    #[test]
    fn nothing_is_unmapped_when_a_descriptor_is_wrong() {
        let mut bench = Bench::new();
        bench.medium.fill(1);
        unmap(&mut bench, &[(1, 2), (131_072, 1)]).assert_check(0x5, 0x2100);
        unmap(&mut bench, &[(1, 1); 257]).assert_check(0x5, 0x2600);
        assert!(bench.medium.iter().all(|byte| *byte == 1));
        unmap(&mut bench, &[(1, 1); 256]).assert_good();
        bench.write(Unmap::new(7), &[0; 7]).assert_check(0x5, 0x1a00);
        bench.write(Unmap { anchor: true, ..Unmap::new(8) }, &[0; 8]).assert_invalid_field(1);
        let mut unit = unit();
        unit.thin = false;
        unmap(&mut Bench::of(unit, 1 << 20), &[(1, 1)]).assert_check(0x5, 0x2000);
    }
}
