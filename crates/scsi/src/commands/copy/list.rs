//! The parameter list of EXTENDED COPY: header, CSCD descriptors, segment descriptors.

use super::{CSCDS_MAX, DESCRIPTOR_BYTES_MAX, SEGMENTS_MAX};
use crate::commands::step::Env;
use crate::state::nexus::Reach;
use crate::state::unit::View;
use crate::vocabulary::command::ReservationClass;
use crate::vocabulary::sense::Check;
use wire::scsi::code;
use wire::scsi::copy::{
    BlockSegment, CopyListLid1, CopyListLid4, IdentificationCscd, copy_descriptor, copy_list_format,
};
use wire::scsi::designator::{association, code_set, kind};
use wire::{SenseKey, Specific};

/// Which of the two parameter list formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    /// LID1: a list identifier of one byte.
    Short,
    /// LID4: a list identifier of four bytes.
    Long,
}

/// What to copy.
#[derive(Debug)]
pub(super) struct CopyRequest {
    /// `None`: nothing is recorded of the operation.
    pub(super) list_id: Option<u32>,
    /// The results are held after success, too.
    pub(super) hold: bool,
    /// The command ends before the operation.
    pub(super) immediate: bool,
    pub(super) segments: Vec<Segment>,
}

/// Bytes of one unit that go to another, or to another range of the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    /// Number of the unit.
    pub(super) source: u32,
    /// First byte.
    pub(super) source_at: u64,
    /// Number of the unit.
    pub(super) destination: u32,
    /// First byte.
    pub(super) destination_at: u64,
    /// Bytes, whole blocks of both.
    pub(super) len: u64,
}

const CSCD_BYTES: usize = IdentificationCscd::BYTES;
const SEGMENT_BYTES: usize = BlockSegment::BYTES;

/// The list identifier of a parameter list, if it is long enough to have one.
pub(super) fn list_id(format: Format, list: &[u8]) -> Option<u32> {
    match format {
        Format::Short => CopyListLid1::LIST_ID.get(list).map(u32::from),
        Format::Long => CopyListLid4::LIST_ID.get(list),
    }
}

/// Reads a parameter list; all segments are checked before anything is copied.
pub(super) fn parse(format: Format, list: &[u8], env: &Env<'_>) -> Result<CopyRequest, Check> {
    let header = match format {
        Format::Short => short_header(list)?,
        Format::Long => long_header(list)?,
    };
    let list_id = list_id(format, list).unwrap_or(0);
    match header.usage {
        0b00 | 0b10 => {}
        // Its end could not be queried (SPC-4 section 6.4.3.4).
        0b11 if header.immediate => return Err(Check::parameter_bit(1, 4)),
        0b11 if list_id == 0 => {}
        0b11 => return Err(Check::parameter_byte(if format == Format::Short { 0 } else { 20 })),
        _ => return Err(Check::parameter_bit(1, 4)),
    }
    let descriptor_bytes = header.cscd_bytes.saturating_add(header.segment_bytes);
    if descriptor_bytes > usize::from(DESCRIPTOR_BYTES_MAX) {
        return Err(Check::PARAMETER_LENGTH);
    }
    if header.has_inline_data {
        return Err(Check::INLINE_DATA);
    }
    let (_, body) = list.split_at_checked(header.len).ok_or(Check::PARAMETER_LENGTH)?;
    let (cscds, rest) = body.split_at_checked(header.cscd_bytes).ok_or(Check::PARAMETER_LENGTH)?;
    let segments = rest.get(..header.segment_bytes).ok_or(Check::PARAMETER_LENGTH)?;
    let cscds = parse_cscds(cscds, header.len, env)?;
    Ok(CopyRequest {
        list_id: (header.usage != 0b11).then_some(list_id),
        hold: header.usage == 0b00,
        immediate: header.immediate,
        segments: parse_segments(segments, &cscds, env)?,
    })
}

struct Header {
    len: usize,
    usage: u8,
    cscd_bytes: usize,
    segment_bytes: usize,
    has_inline_data: bool,
    immediate: bool,
}

fn short_header(list: &[u8]) -> Result<Header, Check> {
    let header = list.get(..CopyListLid1::BYTES).ok_or(Check::PARAMETER_LENGTH)?;
    let header = CopyListLid1::read(header);
    Ok(Header {
        len: CopyListLid1::BYTES,
        usage: header.usage,
        cscd_bytes: usize::from(header.cscd_bytes),
        segment_bytes: usize::try_from(header.segment_bytes).unwrap_or(usize::MAX),
        has_inline_data: header.inline_bytes != 0,
        immediate: false,
    })
}

fn long_header(list: &[u8]) -> Result<Header, Check> {
    let header = list.get(..CopyListLid4::BYTES).ok_or(Check::PARAMETER_LENGTH)?;
    let header = CopyListLid4::read(header);
    if header.format != copy_list_format::FORMAT {
        return Err(Check::parameter_byte(0));
    }
    if header.header_cscd_bytes != copy_list_format::HEADER_CSCD_BYTES {
        return Err(Check::parameter_byte(2));
    }
    if header.header_cscd_type != copy_list_format::HEADER_CSCD_TYPE {
        return Err(Check::parameter_byte(16));
    }
    Ok(Header {
        len: CopyListLid4::BYTES,
        usage: header.usage,
        cscd_bytes: usize::from(header.cscd_bytes),
        segment_bytes: usize::from(header.segment_bytes),
        has_inline_data: header.inline_bytes != 0,
        immediate: header.immediate,
    })
}

/// What a CSCD descriptor names: a unit, or why it cannot be copied from or to.
type Cscd = Result<u32, Check>;

fn parse_cscds(mut rest: &[u8], mut at: usize, env: &Env<'_>) -> Result<Vec<Cscd>, Check> {
    let mut cscds = Vec::new();
    while let Some(kind) = rest.first() {
        if cscds.len() >= usize::from(CSCDS_MAX) {
            return Err(Check::TOO_MANY_TARGETS);
        }
        if *kind != copy_descriptor::IDENTIFICATION {
            return Err(Check::TARGET_TYPE);
        }
        let (cscd, next) = rest.split_first_chunk().ok_or(Check::PARAMETER_LENGTH)?;
        cscds.push(parse_cscd(cscd, at, env)?);
        rest = next;
        at = at.saturating_add(CSCD_BYTES);
    }
    Ok(cscds)
}

/// An identification descriptor. LU ID TYPE does not matter here, and NUL is obsolete (SPC-4 section
/// 6.4.5.1).
fn parse_cscd(cscd: &[u8; CSCD_BYTES], at: usize, env: &Env<'_>) -> Result<Cscd, Check> {
    let cscd = IdentificationCscd::read(cscd);
    let pointing_at =
        |byte: u16| Check::parameter_byte(u16::try_from(at).unwrap_or(u16::MAX).saturating_add(byte));
    let name = cscd.designator.get(..usize::from(cscd.designator_bytes));
    let name = name.ok_or(pointing_at(IdentificationCscd::DESIGNATOR_BYTES.byte()))?;
    if cscd.association != association::UNIT {
        return Err(pointing_at(IdentificationCscd::ASSOCIATION.byte()));
    }
    let names_it = |view: &View| match (cscd.code_set, cscd.designator_type) {
        (code_set::BINARY, kind::NAA) => view.naa() == name,
        (code_set::BINARY, kind::EUI_64) => view.eui() == name,
        _ => false,
    };
    let Some(view) = env.units.find(&names_it) else {
        return Ok(Err(Check::COPY_UNREACHABLE));
    };
    let block_bytes = cscd.block_bytes();
    let is_disk = cscd.device_type == 0 && (block_bytes == 0 || block_bytes == view.policy.block_bytes);
    Ok(if is_disk { Ok(view.unit.index) } else { Err(Check::COPY_DEVICE_TYPE) })
}

fn parse_segments(mut rest: &[u8], cscds: &[Cscd], env: &Env<'_>) -> Result<Vec<Segment>, Check> {
    let mut segments = Vec::new();
    // Types are checked before content: a list with an unknown type has no effect at all.
    let mut bodies = Vec::new();
    while let Some(kind) = rest.first() {
        if bodies.len() >= usize::from(SEGMENTS_MAX) {
            return Err(Check::TOO_MANY_SEGMENTS);
        }
        if *kind != copy_descriptor::BLOCK_TO_BLOCK {
            return Err(Check::SEGMENT_TYPE);
        }
        let (body, next) = rest.split_first_chunk::<SEGMENT_BYTES>().ok_or(Check::PARAMETER_LENGTH)?;
        bodies.push(body);
        rest = next;
    }
    for (number, body) in bodies.into_iter().enumerate() {
        let segment = parse_segment(body, cscds, env).map_err(|check| numbered(check, number))?;
        segments.push(segment);
    }
    Ok(segments)
}

/// The segment's number goes into the COMMAND-SPECIFIC INFORMATION field (SPC-4 section 5.17.7.4).
pub(super) fn numbered(check: Check, segment: usize) -> Check {
    Check { command_specific: u64::try_from(segment).ok(), ..check }
}

fn parse_segment(body: &[u8; SEGMENT_BYTES], cscds: &[Cscd], env: &Env<'_>) -> Result<Segment, Check> {
    let body = BlockSegment::read(body);
    if body.following_bytes != BlockSegment::FOLLOWING {
        return Err(aborted_at(Check::SEGMENT_TYPE.code, 2));
    }
    let cscd = |index: u16, byte| match cscds.get(usize::from(index)) {
        Some(Ok(unit)) => Ok(*unit),
        Some(Err(check)) => Err(*check),
        None => Err(aborted_at(Check::COPY_UNREACHABLE.code, byte)),
    };
    let (source, destination) = (cscd(body.source, 4)?, cscd(body.destination, 6)?);
    let block_bytes = |index| block_bytes(env, index).ok_or(Check::COPY_UNREACHABLE);
    let (source_block, destination_block) = (block_bytes(source)?, block_bytes(destination)?);
    let counted = if body.in_destination_blocks { destination_block } else { source_block };
    let len = u64::from(body.blocks).saturating_mul(counted);
    let is_whole = |block| len.checked_rem(block) == Some(0);
    if !is_whole(source_block) || !is_whole(destination_block) {
        return Err(Check::new(SenseKey::CopyAborted, code::UNEXPECTED_INEXACT_SEGMENT));
    }
    let place = |lba: u64, block: u64, byte| {
        lba.checked_mul(block).ok_or(aborted_at(0, byte)) // Any such place is past the end.
    };
    let segment = Segment {
        source,
        source_at: place(body.source_lba, source_block, 12)?,
        destination,
        destination_at: place(body.destination_lba, destination_block, 20)?,
        len,
    };
    segment.check(env).map(|()| segment)
}

fn block_bytes(env: &Env<'_>, index: u32) -> Option<u64> {
    let view = env.units.view(index)?;
    Some(u64::from(view.policy.block_bytes))
}

/// COPY ABORTED, pointing at a byte of the segment descriptor.
fn aborted_at(code: u16, byte: u16) -> Check {
    let specific = Specific::Segment { in_descriptor: true, byte, bit: None };
    Check { specific: Some(specific), ..Check::new(SenseKey::CopyAborted, code) }
}

impl Segment {
    /// Whether the nexus may currently read the source and write the destination, and both include the
    /// ranges.
    pub(super) fn check(&self, env: &Env<'_>) -> Result<(), Check> {
        check_unit(env, self.source, self.source_at, self.len, false)?;
        check_unit(env, self.destination, self.destination_at, self.len, true)
    }

    /// Whether it is copied from its end to its beginning: the destination overlaps the source's later part.
    pub(super) fn is_backwards(&self) -> bool {
        self.source == self.destination
            && self.source_at < self.destination_at
            && self.destination_at < self.source_at.saturating_add(self.len)
    }
}

fn check_unit(env: &Env<'_>, index: u32, at: u64, len: u64, writes: bool) -> Result<(), Check> {
    let view = env.units.view(index).ok_or(Check::COPY_UNREACHABLE)?;
    let reach = env.reach.iter().find(|(number, _)| *number == index);
    let is_writable = match reach.map_or(Reach::No, |(_, reach)| *reach) {
        Reach::No => return Err(Check::COPY_UNREACHABLE),
        Reach::ReadOnly => false,
        Reach::Full => {
            let policy = &view.policy;
            !(view.unit.read_only || policy.traits.read_only || policy.modes.software_write_protect)
        }
    };
    let nexus = &*env.nexus;
    let access = view.policy.reservations.access(nexus.id, &nexus.transport_id, nexus.target_port);
    let class = if writes { ReservationClass::Write } else { ReservationClass::Read };
    let is_active = view.policy.groups.state_of(nexus.target_port).is_active();
    if !is_active || view.not_ready().is_some() || access.conflicts(class) || (writes && !is_writable) {
        return Err(Check::COPY_FAILED);
    }
    let end = view.blocks().saturating_mul(u64::from(view.policy.block_bytes));
    match at.checked_add(len) {
        Some(last) if last <= end => Ok(()),
        Some(_) | None => Err(aborted_at(0, if writes { 20 } else { 12 })),
    }
}
