//! LOG SENSE (SPC-4 sections 6.7 and 7.3, SBC-3 section 6.4). There is no LOG SELECT: nothing here can be
//! changed.

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::state::space::Space;
use crate::state::unit::View;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::LogSense;
use wire::scsi::log::format::{ASCII_LIST, BINARY_LIST};
use wire::scsi::log::page::{ALL_SUBPAGES, LOGICAL_BLOCK_PROVISIONING, START_STOP, SUPPORTED, TEMPERATURE};
use wire::scsi::log::{Header, ParameterHeader, ResourceCount, resource, scope};

/// LOG SENSE.
pub(crate) fn sense<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(LogSense::SAVE) {
        return Err(Check::cdb_field(LogSense::SAVE).into());
    }
    Ok(P::from(Answer::new(*cdb, cdb.get(LogSense::ALLOCATION).into(), build)))
}

fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let LogSense { page: code, subpage, pointer, .. } = LogSense::read(cdb.as_bytes());
    let body = match (code, subpage) {
        (SUPPORTED, 0x00) => pages(env.view).collect(),
        (SUPPORTED, ALL_SUBPAGES) => {
            let list = pages(env.view).flat_map(|page| [page, 0]);
            [SUPPORTED, 0, SUPPORTED, ALL_SUBPAGES].into_iter().chain(list.skip(2)).collect()
        }
        (LOGICAL_BLOCK_PROVISIONING, 0x00) if env.view.is_thin() => resources(env.view, pointer)?,
        (TEMPERATURE, 0x00) => parameters(pointer, &TEMPERATURE_PARAMETERS)?,
        (START_STOP, 0x00) => parameters(pointer, &START_STOP_PARAMETERS)?,
        (SUPPORTED | LOGICAL_BLOCK_PROVISIONING | TEMPERATURE | START_STOP, 1..) => {
            return Err(Check::cdb_field(LogSense::SUBPAGE).into());
        }
        _ => return Err(Check::cdb_field(LogSense::PAGE).into()),
    };
    let header = Header {
        not_saved: code == LOGICAL_BLOCK_PROVISIONING,
        is_subpage: subpage != 0,
        code,
        subpage,
        following_bytes: u16::try_from(body.len()).unwrap_or(u16::MAX),
    };
    data.extend(header.to_bytes());
    data.extend(body);
    Ok(())
}

fn pages(view: &View) -> impl Iterator<Item = u8> + use<> {
    let thin = view.is_thin();
    [SUPPORTED, LOGICAL_BLOCK_PROVISIONING, TEMPERATURE, START_STOP]
        .into_iter()
        .filter(move |page| thin || *page != LOGICAL_BLOCK_PROVISIONING)
}

/// Available space, which others may use as well, and used space (SBC-4 section 6.4.5). Not every store knows
/// these.
fn resources(view: &View, pointer: u16) -> Result<Vec<u8>, Check> {
    let Some((used, available)) = view.space().and_then(Space::sets) else { return Ok(Vec::new()) };
    let available = ResourceCount { count: available, scope: scope::SHARED }.to_bytes();
    let used = ResourceCount { count: used, scope: scope::DEDICATED }.to_bytes();
    let list = [(resource::AVAILABLE, &available), (resource::USED, &used)];
    parameters(pointer, &list.map(|(code, value)| (code.into(), BINARY_LIST, &value[..])))
}

/// Code, format and value of a log parameter.
type Parameter<'a> = (u16, u8, &'a [u8]);

/// Temperature and reference temperature: not available.
const TEMPERATURE_PARAMETERS: [Parameter<'static>; 2] =
    [(0, BINARY_LIST, &[0, 0xff]), (1, BINARY_LIST, &[0, 0xff])];

/// Dates that were never set, and cycles: specified and accumulated, none.
const START_STOP_PARAMETERS: [Parameter<'static>; 4] = [
    (1, ASCII_LIST, b"      "),
    (2, ASCII_LIST, b"      "),
    (3, BINARY_LIST, &[0, 0, 0, 0]),
    (4, BINARY_LIST, &[0, 0, 0, 0]),
];

/// The parameters from the one in PARAMETER POINTER on, which must not exceed the last (SPC-4 section 6.7).
fn parameters(pointer: u16, list: &[Parameter<'_>]) -> Result<Vec<u8>, Check> {
    let mut body = Vec::new();
    for (code, format, value) in list.iter().filter(|(code, ..)| *code >= pointer) {
        let following_bytes = u8::try_from(value.len()).unwrap_or(0);
        body.extend(ParameterHeader { code: *code, format: *format, following_bytes }.to_bytes());
        body.extend_from_slice(value);
    }
    if body.is_empty() { Err(Check::cdb_field(LogSense::POINTER)) } else { Ok(body) }
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use wire::scsi::command::LogSense;
    use wire::scsi::opcode;

    #[test]
    fn every_page_that_is_listed_is_there() {
        let mut bench = Bench::new();
        let sense =
            |page, subpage| LogSense { control: 1, page, subpage, allocation: 255, ..LogSense::default() };
        let list = bench.read(sense(0, 0)).assert_good().data.clone();
        assert_eq!(list, [0, 0, 0, 4, 0x00, 0x0c, 0x0d, 0x0e]);
        for page in &list[4..] {
            assert_eq!(bench.read(sense(*page, 0)).assert_good().data[0] & 0x3f, *page);
        }
        let pairs = bench.read(sense(0, 0xff)).assert_good().data.clone();
        assert_eq!(pairs, [0x40, 0xff, 0, 10, 0, 0, 0, 0xff, 0x0c, 0, 0x0d, 0, 0x0e, 0]);
        bench.read(sense(0x02, 0)).assert_invalid_field(2);
        bench.read(sense(0x0d, 1)).assert_invalid_field(3);
        bench.read(&[opcode::LOG_SELECT, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]).assert_check(0x5, 0x2000);
    }

    #[test]
    fn the_parameter_pointer_skips() {
        let mut bench = Bench::new();
        let data = bench
            .read(LogSense { control: 1, page: 0x0d, pointer: 1, allocation: 255, ..LogSense::default() })
            .assert_good()
            .data
            .clone();
        assert_eq!(data, [0x0d, 0, 0, 6, 0, 1, 3, 2, 0, 0xff]);
        bench
            .read(LogSense { control: 1, page: 0x0d, pointer: 2, allocation: 255, ..LogSense::default() })
            .assert_invalid_field(5);
    }
}
