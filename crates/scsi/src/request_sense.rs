//! REQUEST SENSE (SPC-4 section 6.39).

use crate::admit::Admission;
use crate::answer::Answer;
use crate::exec::{Env, Program};
use crate::sense::{Check, Failure};
use wire::Cdb;

/// REQUEST SENSE.
pub(crate) fn begin(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    Ok(Program::Answer(Answer::new(*cdb, u32::from(cdb.u8(4)), build)))
}

/// A pending unit attention, which is thereby reported; else why the unit is not ready; else NO SENSE.
fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let check = match env.nexus.take_attention() {
        Some(attention) => attention.check(),
        None => env.view.not_ready().unwrap_or(Check::NO_SENSE),
    };
    data.extend_from_slice(check.encode_as(cdb.u8(1) & 0x01 != 0).as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::attention::UnitAttention;
    use crate::home::HomeRequest;
    use crate::testing::Bench;

    #[test]
    fn sense_data_tells_what_there_is_to_tell() {
        let mut bench = Bench::new();
        assert_eq!(bench.read(&[0x03, 0, 0, 0, 252, 0]).assert_good().data[..3], [0x70, 0, 0]);
        assert_eq!(bench.read(&[0x03, 1, 0, 0, 252, 0]).assert_good().data, [0x72, 0, 0, 0, 0, 0, 0, 0]);
        bench.nexuses[0].establish(UnitAttention::CapacityChanged);
        assert_eq!(bench.read(&[0x03, 1, 0, 0, 4, 0]).assert_good().data, [0x72, 6, 0x2a, 9]);
        bench.ask(HomeRequest::StoreFailed("gone".into()));
        assert_eq!(bench.read(&[0x03, 1, 0, 0, 4, 0]).assert_good().data, [0x72, 2, 4, 0]);
    }
}
