//! READ CAPACITY (SBC-3 sections 5.15 and 5.16).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;

/// LBPME and LBPRZ.
const THIN: u8 = 0xc0;

/// READ CAPACITY(10): the PMI bit and its address are obsolete and must be zero.
pub(crate) fn begin10<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.u8(8) & 0x01 != 0 {
        return Err(Check::cdb_bit(8, 0).into());
    }
    if cdb.u32(2) != 0 {
        return Err(Check::cdb_byte(2).into());
    }
    Ok(P::from(Answer::new(*cdb, 8, build10)))
}

/// READ CAPACITY(16).
pub(crate) fn begin16<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, cdb.u32(10), build16)))
}

fn build10(env: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let last = u32::try_from(env.view.blocks().saturating_sub(1)).unwrap_or(u32::MAX);
    data.extend_from_slice(&last.to_be_bytes());
    data.extend_from_slice(&env.view.policy.block_bytes.to_be_bytes());
    Ok(())
}

fn build16(env: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let policy = &env.view.policy;
    let per_physical = policy.physical_block_bytes.checked_div(policy.block_bytes).unwrap_or(1).max(1);
    let exponent = u8::try_from(per_physical.trailing_zeros()).unwrap_or(0);
    data.extend_from_slice(&env.view.blocks().saturating_sub(1).to_be_bytes());
    data.extend_from_slice(&policy.block_bytes.to_be_bytes());
    data.extend_from_slice(&[0, exponent & 0x0f, if env.view.is_thin() { THIN } else { 0 }, 0]);
    data.resize(32, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;

    #[test]
    fn capacity_in_both_sizes() {
        let mut bench = Bench::new();
        let short = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(bench.read(&short).assert_good().data, [0, 1, 0xff, 0xff, 0, 0, 2, 0]);
        bench.read(&[0x25, 0, 0, 0, 0, 1, 0, 0, 0, 0]).assert_invalid_field(2);
        bench.read(&[0x25, 0, 0, 0, 0, 0, 0, 0, 1, 0]).assert_invalid_field(8);
        let long = |len| [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, len, 0, 0];
        let data = bench.read(&long(32)).assert_good().data.clone();
        assert_eq!(data[..16], [0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(bench.read(&long(7)).assert_good().data, data[..7]);
    }
}
