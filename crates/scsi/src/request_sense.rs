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
