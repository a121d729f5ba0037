//! The entries. READ and WRITE come first, for they are looked up most.

use super::{Begin, Command, Offer};
use crate::commands::media::{atomic, compare, same, sync, transfer, unmap};
use crate::commands::{
    capacity, copy, diagnostic, format, inquiry, lba_status, log, luns, mode, ports, power, request_sense,
    reservation, sanitize,
};
use crate::server::ata::pass_through;
use crate::server::opcodes;
use crate::state::readiness::Precondition;
use crate::vocabulary::command::ReservationClass as Class;

/// Every command.
pub(crate) static COMMANDS: &[Command] = &[
    reads(&[0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], transfer::read10),
    writes(&[0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], transfer::write10),
    reads(&wide(0x88, 0x18), transfer::read16),
    writes(&wide(0x8a, 0x18), transfer::write16),
    reads(&[0x08, 0x1f, 0xff, 0xff, 0xff, 0], transfer::read6),
    writes(&[0x0a, 0x1f, 0xff, 0xff, 0xff, 0], transfer::write6),
    reads(&[0xa8, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], transfer::read12),
    writes(&[0xaa, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], transfer::write12),
    writes(&[0x2e, 0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], transfer::write_verify10),
    writes(&[0xae, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], transfer::write_verify12),
    writes(&wide(0x8e, 0x16), transfer::write_verify16),
    Command {
        offer: Offer::Atomic,
        ..writes(
            &[0x9c, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0],
            transfer::write_atomic16,
        )
    },
    Command {
        offer: Offer::Compare,
        ..writes(
            &[0x89, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0, 0],
            atomic::compare_and_write,
        )
    },
    writes(&wide(0x8b, 0x18), atomic::or_write),
    reads(&[0x2f, 0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], compare::verify10),
    reads(&[0xaf, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], compare::verify12),
    reads(&wide(0x8f, 0x16), compare::verify16),
    slow(300, writes(&[0x41, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], same::write_same10)),
    slow(300, writes(&wide(0x93, 0x19), same::write_same16)),
    Command {
        offer: Offer::Thin,
        ..slow(300, writes(&[0x42, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0], unmap::begin))
    },
    slow(300, flushes(&[0x35, 0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], sync::synchronize_cache10)),
    slow(300, flushes(&wide(0x91, 0x02), sync::synchronize_cache16)),
    reads(&[0x34, 0x02, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0], sync::prefetch10),
    reads(&wide(0x90, 0x02), sync::prefetch16),
    control(&[0x00, 0, 0, 0, 0, 0], Precondition::Ready, Class::Ready, power::test_unit_ready),
    control(&[0x12, 0x01, 0xff, 0xff, 0xff, 0], Precondition::Open, Class::Always, inquiry::begin),
    control(
        &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Open,
        Class::Always,
        luns::begin,
    ),
    control(&[0x03, 0x01, 0, 0, 0xff, 0], Precondition::Open, Class::Always, request_sense::begin),
    control(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], Precondition::Ready, Class::Always, capacity::begin10),
    action(
        0x10,
        &[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Ready,
        Class::Always,
        capacity::begin16,
    ),
    action(0x12, &wide(0x9e, 0x1f), Precondition::Ready, Class::Read, lba_status::begin),
    control(&[0x1a, 0x08, 0xff, 0xff, 0xff, 0], Precondition::Control, Class::Write, mode::sense6),
    control(
        &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Write,
        mode::sense10,
    ),
    control(&[0x15, 0x11, 0, 0, 0xff, 0], Precondition::Control, Class::Write, mode::select6),
    control(&[0x55, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0], Precondition::Control, Class::Write, mode::select10),
    control(
        &[0x4d, 0x01, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Control,
        Class::Always,
        log::sense,
    ),
    control(&[0x1b, 0x01, 0, 0x0f, 0xf7, 0], Precondition::Control, Class::Ready, power::start_stop),
    control(&[0x1e, 0, 0, 0, 0x03, 0], Precondition::Control, Class::Ready, power::prevent_allow),
    control(&[0x1d, 0xfc, 0, 0xff, 0xff, 0], Precondition::Control, Class::Write, diagnostic::send),
    control(&[0x1c, 0x01, 0xff, 0xff, 0xff, 0], Precondition::Control, Class::Write, diagnostic::receive),
    control(
        &[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0],
        Precondition::Ready,
        Class::Read,
        diagnostic::defects10,
    ),
    control(
        &[0xb7, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Ready,
        Class::Read,
        diagnostic::defects12,
    ),
    action(
        0x0a,
        &[0xa3, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Control,
        Class::Always,
        ports::groups,
    ),
    action(
        0x0c,
        &[0xa3, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Control,
        Class::Write,
        opcodes::begin,
    ),
    action(
        0x0d,
        &[0xa3, 0x1f, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
        Precondition::Control,
        Class::Write,
        ports::functions,
    ),
    reserves(&[0x16, 0x11, 0, 0, 0, 0], reservation::reserve6),
    reserves(&[0x17, 0x11, 0, 0, 0, 0], reservation::release6),
    reserves(&[0x56, 0x13, 0, 0, 0, 0, 0, 0, 0, 0], reservation::reserve10),
    reserves(&[0x57, 0x13, 0, 0, 0, 0, 0, 0, 0, 0], reservation::release10),
    persistent_in(0x00),
    persistent_in(0x01),
    persistent_in(0x02),
    persistent_in(0x03),
    persistent_out(0x00),
    persistent_out(0x01),
    persistent_out(0x02),
    persistent_out(0x03),
    persistent_out(0x04),
    persistent_out(0x05),
    persistent_out(0x06),
    persistent_out(0x07),
    copies(0x00, &COPY, copy::extended_copy1),
    copies(0x01, &COPY, copy::extended_copy4),
    action(
        0x1c,
        &[0x83, 0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        Precondition::Control,
        Class::Write,
        copy::abort,
    ),
    copy_results(0x00, &RESULTS),
    copy_results(0x01, &RESULTS),
    copy_results(0x03, &[0x84, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    copy_results(0x04, &RESULTS),
    copy_results(0x05, &[0x84, 0x1f, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    slow(3600, control(&[0x04, 0xff, 0, 0, 0, 0], Precondition::Format, Class::Write, format::begin)),
    sanitizes(0x01, Offer::Always, sanitize::overwrite),
    sanitizes(0x02, Offer::Thin, sanitize::erase),
    sanitizes(0x03, Offer::Cryptographic, sanitize::erase),
    sanitizes(0x1f, Offer::Always, sanitize::exit_failure_mode),
    passes(&[0xa1, 0x1e, 0x2f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0], pass_through::begin12),
    passes(
        &[0x85, 0x1f, 0x2f, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0],
        pass_through::begin16,
    ),
];

/// A command that is always offered, with the usual timeout.
const fn control(usage: &'static [u8], gate: Precondition, reservation: Class, begin: Begin) -> Command {
    Command { usage, action: None, reservation, gate, offer: Offer::Always, seconds: 30, begin }
}

/// The same with a service action in byte 1.
const fn action(
    action: u16,
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
    control(usage, Precondition::Control, Class::Always, begin)
}

/// PERSISTENT RESERVE IN.
const fn persistent_in(service_action: u16) -> Command {
    let usage = &[0x5e, 0x1f, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
    action(service_action, usage, Precondition::Control, Class::Always, reservation::persistent_reserve_in)
}

/// PERSISTENT RESERVE OUT.
const fn persistent_out(service_action: u16) -> Command {
    let usage = &[0x5f, 0x1f, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0];
    action(service_action, usage, Precondition::Control, Class::Always, reservation::persistent_reserve_out)
}

/// EXTENDED COPY: minutes, as it may name many segments.
const fn copies(service_action: u16, usage: &'static [u8], begin: Begin) -> Command {
    slow(300, action(service_action, usage, Precondition::Ready, Class::Write, begin))
}

/// RECEIVE COPY RESULTS.
const fn copy_results(service_action: u16, usage: &'static [u8]) -> Command {
    action(service_action, usage, Precondition::Control, Class::Write, copy::receive)
}

/// Usage data of EXTENDED COPY.
const COPY: [u8; 16] = [0x83, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// Usage data of RECEIVE COPY RESULTS with a list identifier.
const RESULTS: [u8; 16] = [0x84, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// SANITIZE: an hour, as the whole medium is written.
const fn sanitizes(service_action: u16, offer: Offer, begin: Begin) -> Command {
    let usage = &[0x48, 0xbf, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
    let command = action(service_action, usage, Precondition::Sanitize, Class::Write, begin);
    Command { offer, ..slow(3600, command) }
}

/// ATA PASS-THROUGH: reservations and readiness are checked when the command in it is known.
const fn passes(usage: &'static [u8], begin: Begin) -> Command {
    Command { offer: Offer::Exported, ..control(usage, Precondition::Control, Class::Always, begin) }
}

/// With another recommended timeout.
const fn slow(seconds: u16, command: Command) -> Command {
    Command { seconds, ..command }
}

/// The usage data of most 16-byte commands: flags, eight bytes of address, four of length.
const fn wide(opcode: u8, flags: u8) -> [u8; 16] {
    [opcode, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0]
}
