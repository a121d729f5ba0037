//! READ CAPACITY (SBC-3 sections 5.15 and 5.16).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::capacity::{Capacity10, Capacity16};
use wire::scsi::command::{ReadCapacity10, ReadCapacity16};

/// READ CAPACITY(10) has no allocation length.
const ANSWER_BYTES: u32 = 8;

/// READ CAPACITY(10): the PMI bit and its address are obsolete and must be zero.
pub(crate) fn begin10<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(ReadCapacity10::PARTIAL) {
        return Err(Check::cdb_field(ReadCapacity10::PARTIAL).into());
    }
    if cdb.get(ReadCapacity10::LBA) != 0 {
        return Err(Check::cdb_field(ReadCapacity10::LBA).into());
    }
    Ok(P::from(Answer::new(*cdb, ANSWER_BYTES, build10)))
}

/// READ CAPACITY(16).
pub(crate) fn begin16<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, cdb.get(ReadCapacity16::ALLOCATION), build16)))
}

fn build10(env: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    data.extend_from_slice(&Capacity10::new(env.view.blocks(), env.view.policy.block_bytes).to_bytes());
    Ok(())
}

fn build16(env: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let policy = &env.view.policy;
    let per_physical = policy.physical_block_bytes.checked_div(policy.block_bytes).unwrap_or(1).max(1);
    let exponent = u8::try_from(per_physical.trailing_zeros()).unwrap_or(0);
    let capacity = Capacity16 {
        physical_exponent: exponent,
        thin: env.view.is_thin(),
        zeros: env.view.is_thin(),
        ..Capacity16::new(env.view.blocks(), policy.block_bytes)
    };
    data.extend_from_slice(&capacity.to_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use wire::scsi::command::{ReadCapacity10, ReadCapacity16};

    #[test]
    fn capacity_in_both_sizes() {
        let mut bench = Bench::new();
        let short = ReadCapacity10::new();
        assert_eq!(bench.read(short).assert_good().data, [0, 1, 0xff, 0xff, 0, 0, 2, 0]);
        bench.read(ReadCapacity10 { lba: 1, ..ReadCapacity10::default() }).assert_invalid_field(2);
        bench.read(ReadCapacity10 { partial: true, ..ReadCapacity10::default() }).assert_invalid_field(8);
        let long = ReadCapacity16::new;
        let data = bench.read(long(32)).assert_good().data.clone();
        assert_eq!(data[..16], [0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(bench.read(long(7)).assert_good().data, data[..7]);
    }
}
