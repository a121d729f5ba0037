//! REPORT LUNS (SPC-4 section 6.33), and commands to a LUN where there is no unit.

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::inquiry;
use crate::commands::step::Env;
use crate::state::attention::UnitAttention;
use crate::vocabulary::command::{Ending, Request, Status};
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::{Inquiry, ReportLuns, RequestSense};
use wire::scsi::{lun, opcode};

/// The shortest ALLOCATION LENGTH that the standard allows.
const ALLOCATION_MIN: u32 = 16;

/// REPORT LUNS.
pub(crate) fn begin<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    check(cdb)?;
    Ok(P::from(Answer::new(*cdb, cdb.get(ReportLuns::ALLOCATION), build)))
}

/// Reporting the list clears the unit attention for its change.
fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    env.nexus.attentions.retain(|attention| *attention != UnitAttention::LunsChanged);
    list(cdb, env.luns, data);
    Ok(())
}

fn check(cdb: &Cdb) -> Result<(), Check> {
    if !matches!(cdb.get(ReportLuns::SELECT), 0x00..=0x02 | 0x10..=0x12) {
        return Err(Check::cdb_field(ReportLuns::SELECT));
    }
    if cdb.get(ReportLuns::ALLOCATION) < ALLOCATION_MIN {
        Err(Check::cdb_field(ReportLuns::ALLOCATION))
    } else {
        Ok(())
    }
}

/// There are no well-known, administrative or subsidiary logical units.
fn list(cdb: &Cdb, luns: &[u64], data: &mut Vec<u8>) {
    let luns = match cdb.get(ReportLuns::SELECT) {
        0x00 | 0x02 => luns,
        _ => &[],
    };
    data.extend_from_slice(&lun::list_header(luns.len()));
    for lun in luns {
        data.extend_from_slice(&lun.to_be_bytes());
    }
}

/// A command to a LUN where there is no unit (SPC-4 section 4.2.5.3, SAM-5 section 4.7.4): INQUIRY, REPORT
/// LUNS and REQUEST SENSE are answered, all others end with LOGICAL UNIT NOT SUPPORTED. The data-in is
/// appended to `data`; the caller truncates it to what the initiator accepts.
pub fn no_unit(request: &Request<'_>, luns: &[u64], data: &mut Vec<u8>) -> Ending {
    let cdb = request.cdb;
    let answer = match cdb.opcode() {
        opcode::INQUIRY => inquiry::build_no_unit(cdb, data).map(|()| cdb.get(Inquiry::ALLOCATION).into()),
        opcode::REPORT_LUNS => check(cdb).map(|()| {
            list(cdb, luns, data);
            cdb.get(ReportLuns::ALLOCATION)
        }),
        opcode::REQUEST_SENSE => {
            data.extend_from_slice(Check::NO_UNIT.encode_as(cdb.get(RequestSense::DESCRIPTOR)).as_bytes());
            Ok(cdb.get(RequestSense::ALLOCATION).into())
        }
        _ => Err(Check::NO_UNIT),
    };
    match answer {
        Ok(allocation) => {
            let allocation = allocation.min(Answer::BYTES_MAX);
            data.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
            Ending::sent(u64::try_from(data.len()).unwrap_or(0))
        }
        Err(check) => {
            data.clear();
            refused(check)
        }
    }
}

/// The end of a command that waited while its LUN was hidden from the session: LOGICAL UNIT NOT SUPPORTED
/// (SPC-4 section 4.5.2).
pub fn hidden_unit() -> Ending {
    refused(Check::NO_UNIT)
}

fn refused(check: Check) -> Ending {
    Ending { sense: Some(check.encode_as(false)), ..Ending::of(Status::CheckCondition) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bench;
    use wire::Cdb;
    use wire::scsi::command::{Inquiry, ReportLuns, RequestSense, TestUnitReady};

    #[test]
    fn the_list_depends_on_what_is_asked_for() {
        let mut bench = Bench::new();
        let list = |select| ReportLuns { select, ..ReportLuns::new(256) };
        for select in [0, 2] {
            let data = bench.read(list(select)).assert_good().data.clone();
            assert_eq!(data, [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        for select in [1, 0x10, 0x11, 0x12] {
            assert_eq!(bench.read(list(select)).assert_good().data, [0; 8]);
        }
        bench.read(list(3)).assert_invalid_field(2);
        bench.read(ReportLuns::new(15)).assert_invalid_field(6);
    }

    #[test]
    fn where_there_is_no_unit_three_commands_are_answered() {
        let ask = |cdb: Cdb| {
            let attribute = crate::Attribute::Simple;
            let request = Request { cdb: &cdb, attribute, read_bytes: 255, write_bytes: 0 };
            let mut data = Vec::new();
            let ending = no_unit(&request, &[0], &mut data);
            (ending, data)
        };
        let (ending, data) = ask(Inquiry::new(36).into());
        assert_eq!((ending, data.len(), data[0]), (Ending::sent(36), 36, 0x7f));
        let (ending, data) = ask(ReportLuns::new(256).into());
        assert_eq!((ending, data.len()), (Ending::sent(16), 16));
        let (ending, data) = ask(RequestSense::new(18).into());
        assert_eq!((ending, data[2], data[12]), (Ending::sent(18), 5, 0x25));
        let (ending, data) = ask(TestUnitReady {}.into());
        assert_eq!((ending.status, data.len()), (Status::CheckCondition, 0));
        assert_eq!(ending.sense.unwrap().as_bytes()[12], 0x25);
    }
}
