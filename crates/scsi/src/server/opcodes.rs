//! REPORT SUPPORTED OPERATION CODES (SPC-4 section 6.35).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::server::exec::Program;
use crate::server::table::{COMMANDS, Command};
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::ReportSupportedOperationCodes as Asked;
use wire::scsi::parameters::{CommandDescriptor, CommandTimeouts, OneCommand, command_support};

/// REPORT SUPPORTED OPERATION CODES.
pub(crate) fn begin(admission: &Admission<'_>) -> Result<Program, Failure> {
    let cdb = admission.cdb();
    Ok(Program::Answer(Answer::new(*cdb, cdb.get(Asked::ALLOCATION), build)))
}

fn build(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let has_timeouts = cdb.get(Asked::TIMEOUTS);
    let offered = || COMMANDS.iter().filter(|command| command.is_offered(env.view));
    let same_opcode = || offered().filter(|command| command.opcode() == cdb.get(Asked::REQUESTED_OPCODE));
    let has_actions = same_opcode().any(|command| command.action.is_some());
    let exact = || {
        same_opcode().find(|command| command.action.map(u16::from) == Some(cdb.get(Asked::REQUESTED_ACTION)))
    };
    match cdb.get(Asked::OPTIONS) {
        0 => all(offered(), has_timeouts, data),
        1 if has_actions => return Err(Check::cdb_field(Asked::REQUESTED_OPCODE).into()),
        1 => one(same_opcode().next(), has_timeouts, data),
        2 if !has_actions && same_opcode().next().is_some() => {
            return Err(Check::cdb_field(Asked::REQUESTED_OPCODE).into());
        }
        2 => one(exact(), has_timeouts, data),
        3 if has_actions => one(exact(), has_timeouts, data),
        3 => one(same_opcode().next().filter(|_| cdb.get(Asked::REQUESTED_ACTION) == 0), has_timeouts, data),
        _ => return Err(Check::cdb_field(Asked::OPTIONS).into()),
    }
    Ok(())
}

/// The list of all commands.
fn all<'c>(commands: impl Iterator<Item = &'c Command>, has_timeouts: bool, data: &mut Vec<u8>) {
    let mut body = Vec::new();
    for command in commands {
        let descriptor = CommandDescriptor {
            opcode: command.opcode(),
            service_action: command.action.unwrap_or(0).into(),
            has_timeouts,
            has_action: command.action.is_some(),
            cdb_bytes: u16::try_from(command.usage.len()).unwrap_or(0),
        };
        body.extend_from_slice(&descriptor.to_bytes());
        if has_timeouts {
            body.extend_from_slice(&timeouts(command));
        }
    }
    data.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    data.extend_from_slice(&body);
}

/// One command with its CDB usage data.
fn one(command: Option<&Command>, has_timeouts: bool, data: &mut Vec<u8>) {
    let Some(command) = command else {
        data.extend_from_slice(&OneCommand { support: command_support::NONE, ..OneCommand::ZERO }.to_bytes());
        return;
    };
    let usage_bytes = u16::try_from(command.usage.len()).unwrap_or(0);
    let head = OneCommand { has_timeouts, support: command_support::STANDARD, usage_bytes };
    data.extend_from_slice(&head.to_bytes());
    data.extend_from_slice(&usage(command));
    if has_timeouts {
        data.extend_from_slice(&timeouts(command));
    }
}

/// The CDB usage data: ones where a bit is evaluated, except for operation code and service action, which are
/// as they are.
fn usage(command: &Command) -> Vec<u8> {
    let mut usage = command.usage.to_vec();
    if let (Some(action), Some(byte)) = (command.action, usage.get_mut(1)) {
        *byte = *byte & !0x1f | action & 0x1f;
    }
    usage
}

fn timeouts(command: &Command) -> [u8; CommandTimeouts::BYTES] {
    CommandTimeouts::recommended(command.seconds.into()).to_bytes()
}

#[cfg(test)]
mod tests {
    use crate::testing::{Bench, unit};

    fn report(options: u8, opcode: u8, action: u8) -> [u8; 12] {
        [0xa3, 0x0c, options, opcode, 0, action, 0, 0, 0xff, 0xff, 0, 0]
    }

    #[test]
    fn each_listed_command_is_reported_alone() {
        let mut bench = Bench::new();
        for (options, size) in [(0, 8), (0x80, 20)] {
            let list = bench.read(&report(options, 0, 0)).assert_good().data.clone();
            assert_eq!(list[..4], (list.len() as u32 - 4).to_be_bytes());
            for entry in list[4..].chunks(size) {
                let (opcode, action, has_action) = (entry[0], entry[3], entry[5] & 1 != 0);
                let (right, wrong) = if has_action { (2, 1) } else { (1, 2) };
                let one = bench.read(&report(right | options, opcode, action)).assert_good().data.clone();
                assert_eq!((one[1] & 0x07, one[3], one[4]), (3, entry[7], opcode));
                bench.read(&report(wrong, opcode, action)).assert_invalid_field(3);
                assert_eq!(bench.read(&report(3, opcode, action)).assert_good().data[1], 3);
            }
        }
        assert_eq!(bench.read(&report(1, 0xc0, 0)).assert_good().data, [0, 1, 0, 0]);
        bench.read(&report(7, 0, 0)).assert_invalid_field(2);
    }

    #[test]
    fn a_service_action_is_itself_in_the_usage_data() {
        let mut bench = Bench::new();
        let mut usage =
            |opcode, action| bench.read(&report(2, opcode, action)).assert_good().data[4..].to_vec();
        let long = |head: [u8; 2], rest: &[u8]| [&head[..], rest].concat();
        let range = [255; 12];
        assert_eq!(usage(0xa3, 0x0c), [0xa3, 0x0c, 0x87, 255, 255, 255, 255, 255, 255, 255, 0, 0]);
        assert_eq!(usage(0xa3, 0x0a), [0xa3, 0xea, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0]);
        let capacity = [0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0];
        assert_eq!(usage(0x9e, 0x10), long([0x9e, 0x10], &capacity));
        assert_eq!(usage(0x9e, 0x12), [&[0x9e, 0x12][..], &range, &[0, 0]].concat());
        assert_eq!(usage(0x48, 0x01), [0x48, 0xa1, 0, 0, 0, 0, 0, 255, 255, 0]);
        assert_eq!(usage(0x48, 0x1f), [0x48, 0xbf, 0, 0, 0, 0, 0, 255, 255, 0]);
        assert_eq!(usage(0x5e, 0x02), [0x5e, 0x02, 0, 0, 0, 0, 0, 255, 255, 0]);
        assert_eq!(usage(0x5f, 0x05), [0x5f, 0x05, 255, 0, 0, 255, 255, 255, 255, 0]);
        assert_eq!(usage(0x83, 0x01)[..2], [0x83, 0x01]);
        assert_eq!(usage(0x84, 0x05)[..6], [0x84, 0x05, 255, 255, 255, 255]);
    }

    #[test]
    fn what_the_unit_lacks_is_not_reported() {
        let mut unit = unit();
        unit.thin = false;
        let mut bench = Bench::of(unit, 1 << 20);
        assert_eq!(bench.read(&report(1, 0x42, 0)).assert_good().data[1], 1);
    }
}
