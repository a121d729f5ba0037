//! SEND DIAGNOSTIC, RECEIVE DIAGNOSTIC RESULTS, and READ DEFECT DATA (SPC-4 sections 6.42 and 6.27, SBC-3
//! sections 5.17 and 5.18).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::{ReadDefectData10, ReadDefectData12, ReceiveDiagnosticResults, SendDiagnostic};
use wire::scsi::parameters::{DefectList10, DefectList12, DiagnosticHeader};

/// The page that lists the pages; there are no others.
const SUPPORTED_PAGES: u8 = 0x00;

/// SEND DIAGNOSTIC: the default self-test, and the background and foreground self-tests; all of them check
/// whether the unit is ready. There are no diagnostic pages to send.
pub(crate) fn send<P: From<Ending>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let (code, default_test) = (cdb.get(SendDiagnostic::CODE), cdb.get(SendDiagnostic::SELF_TEST));
    if matches!(code, 3 | 7) || (code != 0 && default_test) {
        return Err(Check::cdb_field(SendDiagnostic::CODE).into());
    }
    if cdb.get(SendDiagnostic::LIST_BYTES) != 0 {
        return Err(Check::cdb_field(SendDiagnostic::LIST_BYTES).into());
    }
    let tests = default_test || matches!(code, 1 | 2 | 5 | 6);
    match admission.view.not_ready().filter(|_| tests) {
        Some(check) => Err(check.into()),
        None => Ok(P::from(Ending::GOOD)),
    }
}

/// RECEIVE DIAGNOSTIC RESULTS.
pub(crate) fn receive<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(ReceiveDiagnosticResults::VALID) && cdb.get(ReceiveDiagnosticResults::PAGE) != SUPPORTED_PAGES
    {
        return Err(Check::cdb_field(ReceiveDiagnosticResults::PAGE).into());
    }
    Ok(P::from(Answer::new(*cdb, cdb.get(ReceiveDiagnosticResults::ALLOCATION).into(), build_pages)))
}

fn build_pages(_: &mut Env<'_>, _: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    data.extend_from_slice(&DiagnosticHeader { code: SUPPORTED_PAGES, following_bytes: 1 }.to_bytes());
    data.push(SUPPORTED_PAGES);
    Ok(())
}

/// READ DEFECT DATA(10): there are no defects, in whatever format.
pub(crate) fn defects10<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, cdb.get(ReadDefectData10::ALLOCATION).into(), build10)))
}

/// READ DEFECT DATA(12).
pub(crate) fn defects12<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, cdb.get(ReadDefectData12::ALLOCATION), build12)))
}

fn build10(_: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let ReadDefectData10 { primary, grown, format, .. } = ReadDefectData10::read(cdb.as_bytes());
    data.extend_from_slice(&DefectList10 { primary, grown, format, list_bytes: 0 }.to_bytes());
    Ok(())
}

fn build12(_: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let ReadDefectData12 { primary, grown, format, .. } = ReadDefectData12::read(cdb.as_bytes());
    data.extend_from_slice(&DefectList12 { primary, grown, format, list_bytes: 0 }.to_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::state::home::HomeRequest;
    use crate::testing::Bench;
    use crate::vocabulary::command::Status;
    use wire::scsi::command::{
        ReadDefectData10, ReadDefectData12, ReceiveDiagnosticResults, SendDiagnostic, TestUnitReady,
    };
    use wire::scsi::opcode;

    #[test]
    fn self_tests_report_that_the_store_is_gone() {
        let mut bench = Bench::new();
        bench.ask(HomeRequest::StoreFailed("cut off".into()));
        let ready = bench.read(TestUnitReady {}).sense();
        for flags in [0x04, 0x20, 0x40, 0xa0, 0xc0] {
            let test = bench.read(&[opcode::SEND_DIAGNOSTIC, flags, 0, 0, 0, 0]);
            assert_eq!((test.ending.status, test.sense()), (Status::CheckCondition, ready));
        }
        for untested in [0x00, 0x80] {
            bench.read(&[opcode::SEND_DIAGNOSTIC, untested, 0, 0, 0, 0]).assert_good();
        }
    }

    #[test]
    fn self_tests_pass_and_there_are_no_defects() {
        let mut bench = Bench::new();
        for flags in [0x04, 0x20, 0x40, 0x80, 0xa0, 0xc0] {
            bench.read(&[opcode::SEND_DIAGNOSTIC, flags, 0, 0, 0, 0]).assert_good();
        }
        bench.read(SendDiagnostic { code: 3, ..SendDiagnostic::default() }).assert_invalid_field(1);
        bench
            .write(SendDiagnostic { page_format: true, list_bytes: 4, ..SendDiagnostic::default() }, &[0; 4])
            .assert_invalid_field(3);
        assert_eq!(
            bench
                .read(ReceiveDiagnosticResults {
                    valid: true,
                    allocation: 255,
                    ..ReceiveDiagnosticResults::default()
                })
                .assert_good()
                .data,
            [0, 0, 0, 1, 0]
        );
        bench
            .read(ReceiveDiagnosticResults { valid: true, page: 64, allocation: 255 })
            .assert_invalid_field(2);
        assert_eq!(
            bench
                .read(ReadDefectData10 { primary: true, grown: true, format: 5, ..ReadDefectData10::new(32) })
                .assert_good()
                .data,
            [0, 0x1d, 0, 0]
        );
        assert_eq!(
            bench
                .read(ReadDefectData12 { primary: true, grown: true, ..ReadDefectData12::new(32) })
                .assert_good()
                .data[..2],
            [0, 0x18]
        );
    }
}
