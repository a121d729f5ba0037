//! The entries. READ and WRITE come first, as they are looked up most often.

use super::{Begin, Command, Offer};
use crate::commands::media::{atomic, compare, same, sync, transfer, unmap};
use crate::commands::{
    capacity, copy, diagnostic, format, inquiry, lba_status, log, luns, mode, ports, power, request_sense,
    reservation, sanitize,
};
use crate::server::ata::pass_through;
use crate::server::opcodes;
use crate::state::port_groups::Accepted;
use crate::state::readiness::Precondition;
use crate::vocabulary::command::ReservationClass as Class;
use wire::scsi::opcode;
use wire::scsi::opcode::service_action::{
    extended_copy, maintenance_in, maintenance_out, persistent_reserve_in, persistent_reserve_out,
    receive_copy_results, sanitize as sanitize_action, service_action_in_16,
};

/// Every command.
pub(crate) static COMMANDS: &[Command] = &[
    reads(&ten(opcode::READ_10, 0x18), transfer::read10),
    writes(&ten(opcode::WRITE_10, 0x18), transfer::write10),
    reads(&wide(opcode::READ_16, 0x18), transfer::read16),
    writes(&wide(opcode::WRITE_16, 0x18), transfer::write16),
    reads(&[opcode::READ_6, 0x1f, 0xff, 0xff, 0xff, 0], transfer::read6),
    writes(&[opcode::WRITE_6, 0x1f, 0xff, 0xff, 0xff, 0], transfer::write6),
    reads(&twelve(opcode::READ_12, 0x18), transfer::read12),
    writes(&twelve(opcode::WRITE_12, 0x18), transfer::write12),
    writes(&ten(opcode::WRITE_AND_VERIFY_10, 0x16), transfer::write_verify10),
    writes(&twelve(opcode::WRITE_AND_VERIFY_12, 0x16), transfer::write_verify12),
    writes(&wide(opcode::WRITE_AND_VERIFY_16, 0x16), transfer::write_verify16),
    Command {
        offer: Offer::Atomic,
        ..writes(&addressed(opcode::WRITE_ATOMIC_16, 0x18, [0, 0, 0xff, 0xff]), transfer::write_atomic16)
    },
    Command {
        offer: Offer::Compare,
        ..writes(&addressed(opcode::COMPARE_AND_WRITE, 0x18, [0, 0, 0, 0xff]), atomic::compare_and_write)
    },
    alone(writes(&wide(opcode::ORWRITE_16, 0x18), atomic::or_write)),
    reads(&ten(opcode::VERIFY_10, 0x16), compare::verify10),
    reads(&twelve(opcode::VERIFY_12, 0x16), compare::verify12),
    reads(&wide(opcode::VERIFY_16, 0x16), compare::verify16),
    slow(300, writes(&ten(opcode::WRITE_SAME_10, 0x18), same::write_same10)),
    slow(300, writes(&wide(opcode::WRITE_SAME_16, 0x19), same::write_same16)),
    Command {
        offer: Offer::Thin,
        ..slow(300, writes(&[opcode::UNMAP, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0], unmap::begin))
    },
    slow(300, flushes(&ten(opcode::SYNCHRONIZE_CACHE_10, 0x02), sync::synchronize_cache10)),
    slow(300, flushes(&wide(opcode::SYNCHRONIZE_CACHE_16, 0x02), sync::synchronize_cache16)),
    reads(&ten(opcode::PRE_FETCH_10, 0x02), sync::prefetch10),
    reads(&wide(opcode::PRE_FETCH_16, 0x02), sync::prefetch16),
    control(
        &[opcode::TEST_UNIT_READY, 0, 0, 0, 0, 0],
        Precondition::Ready,
        Class::Ready,
        power::test_unit_ready,
    ),
    always(control(
        &[opcode::INQUIRY, 0x01, 0xff, 0xff, 0xff, 0],
        Precondition::Open,
        Class::Always,
        inquiry::begin,
    )),
    always(control(
        &[opcode::REPORT_LUNS, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Open,
        Class::Always,
        luns::begin,
    )),
    always(control(
        &[opcode::REQUEST_SENSE, 0x01, 0, 0, 0xff, 0],
        Precondition::Open,
        Class::Always,
        request_sense::begin,
    )),
    in_standby(control(
        &[opcode::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        Precondition::Ready,
        Class::Always,
        capacity::begin10,
    )),
    in_standby(action(
        service_action_in_16::READ_CAPACITY_16,
        &[opcode::SERVICE_ACTION_IN_16, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Ready,
        Class::Always,
        capacity::begin16,
    )),
    action(
        service_action_in_16::GET_LBA_STATUS,
        &wide(opcode::SERVICE_ACTION_IN_16, 0x1f),
        Precondition::Ready,
        Class::Read,
        lba_status::begin,
    ),
    in_standby(control(
        &[opcode::MODE_SENSE_6, 0x08, 0xff, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Write,
        mode::sense6,
    )),
    in_standby(control(
        &[opcode::MODE_SENSE_10, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Write,
        mode::sense10,
    )),
    in_standby(control(
        &[opcode::MODE_SELECT_6, 0x11, 0, 0, 0xff, 0],
        Precondition::Control,
        Class::Write,
        mode::select6,
    )),
    in_standby(control(
        &[opcode::MODE_SELECT_10, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Write,
        mode::select10,
    )),
    in_standby(control(
        &[opcode::LOG_SENSE, 0x01, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Always,
        log::sense,
    )),
    control(
        &[opcode::START_STOP_UNIT, 0x01, 0, 0x0f, 0xf7, 0],
        Precondition::Control,
        Class::Ready,
        power::start_stop,
    ),
    alone(control(
        &[opcode::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0x03, 0],
        Precondition::Control,
        Class::Ready,
        power::prevent_allow,
    )),
    in_standby(control(
        &[opcode::SEND_DIAGNOSTIC, 0xfc, 0, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Write,
        diagnostic::send,
    )),
    in_standby(control(
        &[opcode::RECEIVE_DIAGNOSTIC_RESULTS, 0x01, 0xff, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Write,
        diagnostic::receive,
    )),
    control(
        &[opcode::READ_DEFECT_DATA_10, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Ready,
        Class::Read,
        diagnostic::defects10,
    ),
    control(
        &[opcode::READ_DEFECT_DATA_12, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Ready,
        Class::Read,
        diagnostic::defects12,
    ),
    always(action(
        maintenance_in::REPORT_TARGET_PORT_GROUPS,
        &[opcode::MAINTENANCE_IN, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Control,
        Class::Always,
        ports::groups,
    )),
    in_standby(action(
        maintenance_in::REPORT_SUPPORTED_OPERATION_CODES,
        &[opcode::MAINTENANCE_IN, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Control,
        Class::Write,
        opcodes::begin,
    )),
    in_standby(action(
        maintenance_in::REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS,
        &[opcode::MAINTENANCE_IN, 0x1f, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Control,
        Class::Write,
        ports::functions,
    )),
    Command {
        accepted: Accepted::Settled,
        offer: Offer::Explicit,
        ..action(
            maintenance_out::SET_TARGET_PORT_GROUPS,
            &[opcode::MAINTENANCE_OUT, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
            Precondition::Control,
            Class::Write,
            ports::set_groups,
        )
    },
    reserves(&[opcode::RESERVE_6, 0x11, 0, 0, 0, 0], reservation::reserve6),
    reserves(&[opcode::RELEASE_6, 0x11, 0, 0, 0, 0], reservation::release6),
    reserves(&[opcode::RESERVE_10, 0x13, 0, 0, 0, 0, 0, 0, 0, 0], reservation::reserve10),
    reserves(&[opcode::RELEASE_10, 0x13, 0, 0, 0, 0, 0, 0, 0, 0], reservation::release10),
    persistent_in(persistent_reserve_in::READ_KEYS),
    persistent_in(persistent_reserve_in::READ_RESERVATION),
    persistent_in(persistent_reserve_in::REPORT_CAPABILITIES),
    persistent_in(persistent_reserve_in::READ_FULL_STATUS),
    persistent_out(persistent_reserve_out::REGISTER),
    persistent_out(persistent_reserve_out::RESERVE),
    persistent_out(persistent_reserve_out::RELEASE),
    persistent_out(persistent_reserve_out::CLEAR),
    persistent_out(persistent_reserve_out::PREEMPT),
    persistent_out(persistent_reserve_out::PREEMPT_AND_ABORT),
    persistent_out(persistent_reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY),
    persistent_out(persistent_reserve_out::REGISTER_AND_MOVE),
    copies(extended_copy::LID1, &COPY, copy::extended_copy1),
    copies(extended_copy::LID4, &COPY, copy::extended_copy4),
    action(
        extended_copy::COPY_OPERATION_ABORT,
        &[opcode::EXTENDED_COPY, 0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        Precondition::Control,
        Class::Write,
        copy::abort,
    ),
    copy_results(receive_copy_results::COPY_STATUS_LID1, &RESULTS),
    copy_results(receive_copy_results::COPY_DATA_LID1, &RESULTS),
    copy_results(
        receive_copy_results::OPERATING_PARAMETERS,
        &[opcode::RECEIVE_COPY_RESULTS, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    copy_results(receive_copy_results::FAILURE_DETAILS_LID1, &RESULTS),
    copy_results(
        receive_copy_results::COPY_STATUS_LID4,
        &[
            opcode::RECEIVE_COPY_RESULTS,
            0x1f,
            0xff,
            0xff,
            0xff,
            0xff,
            0,
            0,
            0,
            0,
            0xff,
            0xff,
            0xff,
            0xff,
            0,
            0,
        ],
    ),
    alone(slow(
        3600,
        control(&[opcode::FORMAT_UNIT, 0xff, 0, 0, 0, 0], Precondition::Format, Class::Write, format::begin),
    )),
    sanitizes(sanitize_action::OVERWRITE, Offer::Alone, sanitize::overwrite),
    sanitizes(sanitize_action::BLOCK_ERASE, Offer::BlockErase, sanitize::erase),
    sanitizes(sanitize_action::CRYPTOGRAPHIC_ERASE, Offer::Cryptographic, sanitize::erase),
    sanitizes(sanitize_action::EXIT_FAILURE_MODE, Offer::Alone, sanitize::exit_failure_mode),
    passes(
        &[opcode::ATA_PASS_THROUGH_12, 0x1e, 0x2f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        pass_through::begin12,
    ),
    passes(
        &[
            opcode::ATA_PASS_THROUGH_16,
            0x1f,
            0x2f,
            255,
            255,
            255,
            255,
            255,
            255,
            255,
            255,
            255,
            255,
            255,
            255,
            0,
        ],
        pass_through::begin16,
    ),
];

/// A command that is always offered, with the usual timeout.
const fn control(usage: &'static [u8], gate: Precondition, reservation: Class, begin: Begin) -> Command {
    let (accepted, offer) = (Accepted::WhileActive, Offer::Always);
    Command { usage, action: None, reservation, gate, accepted, offer, seconds: 30, begin }
}

/// The same with a service action in byte 1.
const fn action(
    action: u8,
    usage: &'static [u8],
    gate: Precondition,
    reservation: Class,
    begin: Begin,
) -> Command {
    Command { action: Some(action), ..control(usage, gate, reservation, begin) }
}

/// A command that reads the medium.
const fn reads(usage: &'static [u8], begin: Begin) -> Command {
    control(usage, Precondition::Ready, Class::Read, begin)
}

/// A command that writes the medium.
const fn writes(usage: &'static [u8], begin: Begin) -> Command {
    control(usage, Precondition::Write, Class::Write, begin)
}

/// A command that makes what was written durable.
const fn flushes(usage: &'static [u8], begin: Begin) -> Command {
    control(usage, Precondition::Ready, Class::Write, begin)
}

/// A command that checks reservations itself.
const fn reserves(usage: &'static [u8], begin: Begin) -> Command {
    alone(control(usage, Precondition::Control, Class::Always, begin))
}

/// PERSISTENT RESERVE IN.
const fn persistent_in(service_action: u8) -> Command {
    let usage = &[opcode::PERSISTENT_RESERVE_IN, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
    in_standby(action(
        service_action,
        usage,
        Precondition::Control,
        Class::Always,
        reservation::persistent_reserve_in,
    ))
}

/// PERSISTENT RESERVE OUT.
const fn persistent_out(service_action: u8) -> Command {
    let usage = &[opcode::PERSISTENT_RESERVE_OUT, 0x1f, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];
    in_standby(action(
        service_action,
        usage,
        Precondition::Control,
        Class::Always,
        reservation::persistent_reserve_out,
    ))
}

/// EXTENDED COPY: minutes, as it may have many segments.
const fn copies(service_action: u8, usage: &'static [u8], begin: Begin) -> Command {
    slow(300, action(service_action, usage, Precondition::Ready, Class::Write, begin))
}

/// RECEIVE COPY RESULTS.
const fn copy_results(service_action: u8, usage: &'static [u8]) -> Command {
    action(service_action, usage, Precondition::Control, Class::Write, copy::receive)
}

/// Usage data of EXTENDED COPY.
const COPY: [u8; 16] = [opcode::EXTENDED_COPY, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// Usage data of RECEIVE COPY RESULTS with a list identifier.
const RESULTS: [u8; 16] =
    [opcode::RECEIVE_COPY_RESULTS, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// SANITIZE: an hour, as the whole medium is written.
const fn sanitizes(service_action: u8, offer: Offer, begin: Begin) -> Command {
    let usage = &[opcode::SANITIZE, 0xbf, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
    let command = action(service_action, usage, Precondition::Sanitize, Class::Write, begin);
    Command { offer, ..slow(3600, command) }
}

/// ATA PASS-THROUGH: reservations and readiness are checked when the command in it is known.
const fn passes(usage: &'static [u8], begin: Begin) -> Command {
    Command { offer: Offer::Exported, ..control(usage, Precondition::Control, Class::Always, begin) }
}

/// Accepted by ports in standby too: what SPC-4 section 5.15.2.4.4 lists, and what an initiator requests when
/// it first sees a unit, so that its path is ready when it becomes active.
const fn in_standby(command: Command) -> Command {
    Command { accepted: Accepted::InStandby, ..command }
}

/// Accepted in every asymmetric access state.
const fn always(command: Command) -> Command {
    Command { accepted: Accepted::Always, ..command }
}

/// Not where gateways serve a unit at the same time.
const fn alone(command: Command) -> Command {
    Command { offer: Offer::Alone, ..command }
}

/// With another recommended timeout.
const fn slow(seconds: u16, command: Command) -> Command {
    Command { seconds, ..command }
}

/// The usage data of most 10-byte commands: flags, four bytes of address, two of length.
const fn ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 255, 255, 255, 255, 0, 255, 255, 0]
}

/// Of most 12-byte commands: flags, four bytes of address, four of length.
const fn twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0]
}

/// Of most 16-byte commands: flags, eight bytes of address, four of length.
const fn wide(opcode: u8, flags: u8) -> [u8; 16] {
    addressed(opcode, flags, [255; 4])
}

/// Of a 16-byte command with an address, and these bytes behind it.
const fn addressed(opcode: u8, flags: u8, [a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [opcode, flags, 255, 255, 255, 255, 255, 255, 255, 255, a, b, c, d, 0, 0]
}
