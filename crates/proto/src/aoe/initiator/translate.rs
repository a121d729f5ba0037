//! Translation of SCSI commands to ATA (SAT-3), for a device with 512-byte sectors.

use super::answer::{self, Made};
use super::failure::{Failure, check, invalid_field};
use super::order::Asked;
use super::plan::{AtaTransfer, Plan, SECTOR_BYTES};
use super::trim;
use crate::iscsi::initiator::Request;
use wire::aoe::Order;
use wire::ata::{IdentifyData, PassThrough, SECTORS_28_BIT, SECTORS_48_BIT, Transfer};
use wire::scsi::cdb::SERVICE_ACTION;
use wire::scsi::command::{
    Inquiry, ModeSelect6, ModeSelect10, ModeSense6, ModeSense10, Read6, Read10, Read12, Read16,
    ReadCapacity16, ReportLuns, RequestSense, Unmap, Verify10, Write10,
};
use wire::scsi::field::{Field, Value};
use wire::scsi::{Command, code, opcode};
use wire::{Cdb, Sense, SenseData, SenseKey};

/// What fits into a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub mtu: u32,
    /// Sectors.
    pub sectors: u8,
}

/// How to carry out a command on a device with this identity. Unless it `is_fresh`, no error depends on it;
/// otherwise data-in that is not sectors is written to `made`.
pub(super) fn plan(
    request: &Request,
    identity: &IdentifyData,
    room: Room,
    is_fresh: bool,
    made: &mut Made,
) -> Plan {
    made.clear();
    let result = match request.cdb.opcode() {
        Order::OPCODE => only_unit(request).and_then(|()| Asked::of(request, room.mtu)).map(Plan::Order),
        PassThrough::OPCODE => pass_through(request, room),
        _ => match moved(&request.cdb) {
            Some(asked) => transfer(request, asked, identity, is_fresh),
            None => other(request, identity, is_fresh, made),
        },
    };
    result.unwrap_or_else(Plan::Fail)
}

/// How to carry out a command whose data-out was interpreted; what it trims goes to `extents`.
pub(super) fn with_parameters(
    cdb: &Cdb,
    list: &[u8],
    identity: &IdentifyData,
    is_fresh: bool,
    extents: &mut Vec<trim::Extent>,
) -> Plan {
    if cdb.opcode() == opcode::UNMAP {
        return trim::plan(list, identity, is_fresh, extents);
    }
    answer::mode_select(list, cdb.opcode() == opcode::MODE_SELECT_10, identity).unwrap_or_else(Plan::Fail)
}

/// ATA PASS-THROUGH (16). AoE has 8 bits for FEATURE and COUNT (AoEr11 section 3.1), and a frame for the data.
fn pass_through(request: &Request, room: Room) -> Result<Plan, Failure> {
    only_unit(request)?;
    let wrong_protocol = || invalid_field(PassThrough::PROTOCOL);
    let pass = PassThrough::from_cdb(&request.cdb).ok_or_else(wrong_protocol)?;
    let transfer = pass.transfer();
    if pass.registers.command().is_some() && pass.protocol != PassThrough::new(pass.registers).protocol {
        return Err(wrong_protocol());
    }
    if u8::try_from(pass.registers.feature).is_err() {
        return Err(invalid_field(PassThrough::FEATURE));
    }
    let has_room = match transfer {
        Transfer::Nothing => true,
        Transfer::In(_) => transfer.bytes() <= request.read.len(),
        Transfer::Out(_) => transfer.bytes() <= request.write.len(),
    };
    let fits = transfer.bytes() <= u32::from(room.sectors).saturating_mul(SECTOR_BYTES);
    if u8::try_from(pass.registers.count).is_err() || !has_room || !fits {
        return Err(invalid_field(PassThrough::COUNT));
    }
    Ok(Plan::Ata(pass))
}

/// A command that transfers sectors, as its CDB specifies.
struct Moved {
    way: AtaTransfer,
    lba: u64,
    sectors: u32,
    /// Whether it has the flags in byte 1.
    has_flags: bool,
}

fn moved(cdb: &Cdb) -> Option<Moved> {
    let way = match cdb.opcode() {
        opcode::READ_6 | opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => AtaTransfer::Read,
        opcode::WRITE_6 | opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16 => AtaTransfer::Write,
        opcode::VERIFY_10 | opcode::VERIFY_12 | opcode::VERIFY_16 => AtaTransfer::Verify,
        _ => return None,
    };
    // CDBs of the same length have the same fields.
    let (lba, sectors) = match opcode::cdb_bytes(cdb.opcode()) {
        Some(16) => (cdb.get(Read16::LBA), cdb.get(Read16::BLOCKS)),
        Some(10) => (cdb.get(Read10::LBA).into(), cdb.get(Read10::BLOCKS).into()),
        Some(12) => (cdb.get(Read12::LBA).into(), cdb.get(Read12::BLOCKS)),
        // A length of zero means 256 (SBC-3 section 5.9).
        _ => {
            let Read6 { lba, blocks } = Read6::of(cdb);
            (lba.into(), if blocks == 0 { 256 } else { blocks.into() })
        }
    };
    Some(Moved { way, lba, sectors, has_flags: opcode::cdb_bytes(cdb.opcode()) != Some(6) })
}

fn transfer(
    request: &Request,
    asked: Moved,
    identity: &IdentifyData,
    is_fresh: bool,
) -> Result<Plan, Failure> {
    let Moved { way, lba, sectors, has_flags } = asked;
    let cdb = &request.cdb;
    only_unit(request)?;
    if has_flags && cdb.get(Read10::PROTECT) != 0 {
        return Err(invalid_field(Read10::PROTECT));
    }
    if way == AtaTransfer::Verify && cdb.get(Verify10::BYTE_CHECK) != 0 {
        return Err(invalid_field(Verify10::BYTE_CHECK));
    }
    let addressable = if identity.lba48 { SECTORS_48_BIT } else { SECTORS_28_BIT };
    let end = lba.checked_add(u64::from(sectors));
    if end.is_none_or(|end| end > identity.sectors.min(addressable)) {
        // It may have grown.
        return if is_fresh {
            Err(check(SenseKey::IllegalRequest, code::LBA_OUT_OF_RANGE))
        } else {
            Ok(Plan::Ask)
        };
    }
    let moves = |bytes: u32| sectors.checked_mul(SECTOR_BYTES).is_some_and(|moved| moved <= bytes);
    let has_room = match way {
        AtaTransfer::Read => moves(request.read.len()),
        AtaTransfer::Write => moves(request.write.len()),
        AtaTransfer::Verify => true,
    };
    if !has_room {
        return Err(check(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_CDB));
    }
    let flush = way == AtaTransfer::Write && has_flags && cdb.get(Write10::FUA) && flushes(identity);
    Ok(if sectors == 0 { Plan::Made } else { Plan::Move { way, lba, sectors, flush } })
}

fn other(
    request: &Request,
    identity: &IdentifyData,
    is_fresh: bool,
    made: &mut Made,
) -> Result<Plan, Failure> {
    let cdb = &request.cdb;
    match cdb.opcode() {
        opcode::SYNCHRONIZE_CACHE_10 | opcode::SYNCHRONIZE_CACHE_16 => {
            only_unit(request)?;
            return Ok(if flushes(identity) { Plan::Flush } else { Plan::Made });
        }
        opcode::UNMAP if identity.trim_sectors > 0 => {
            only_unit(request)?;
            if cdb.get(Unmap::ANCHOR) {
                return Err(invalid_field(Unmap::ANCHOR));
            }
            return parameter_list(request, Unmap::LIST_BYTES, is_fresh);
        }
        opcode::MODE_SELECT_6 | opcode::MODE_SELECT_10 => {
            only_unit(request)?;
            if cdb.get(ModeSelect6::SAVE) || !cdb.get(ModeSelect6::PAGE_FORMAT) {
                return Err(invalid_field(ModeSelect6::PAGE_FORMAT));
            }
            return if cdb.opcode() == opcode::MODE_SELECT_6 {
                parameter_list(request, ModeSelect6::LIST_BYTES, is_fresh)
            } else {
                parameter_list(request, ModeSelect10::LIST_BYTES, is_fresh)
            };
        }
        opcode::SERVICE_ACTION_IN_16 if ReadCapacity16::from_cdb(cdb).is_none() => {
            return Err(invalid_field(SERVICE_ACTION));
        }
        opcode::TEST_UNIT_READY
        | opcode::REQUEST_SENSE
        | opcode::INQUIRY
        | opcode::MODE_SENSE_6
        | opcode::MODE_SENSE_10
        | opcode::READ_CAPACITY_10
        | opcode::SERVICE_ACTION_IN_16
        | opcode::REPORT_LUNS => {}
        _ => return Err(check(SenseKey::IllegalRequest, code::INVALID_OPERATION_CODE)),
    }
    if !is_fresh {
        return Ok(Plan::Ask);
    }
    if !matches!(cdb.opcode(), opcode::INQUIRY | opcode::REPORT_LUNS | opcode::REQUEST_SENSE) {
        only_unit(request)?;
    }
    let allocated = make_answer(request, identity, made)?;
    made.cut(allocated);
    Ok(Plan::Made)
}

/// Builds the data-in of a command that IDENTIFY DEVICE data answers, and returns its allocation length.
fn make_answer(request: &Request, identity: &IdentifyData, made: &mut Made) -> Result<u32, Failure> {
    let cdb = &request.cdb;
    Ok(match cdb.opcode() {
        opcode::TEST_UNIT_READY => 0,
        opcode::REQUEST_SENSE => {
            let missing = SenseData::new(SenseKey::IllegalRequest, code::LOGICAL_UNIT_NOT_SUPPORTED);
            let nothing = SenseData::new(SenseKey::NoSense, code::NO_ADDITIONAL_SENSE);
            let data = if request.lun == 0 { nothing } else { missing };
            made.extend(Sense::fixed(&data).as_bytes());
            u32::from(cdb.get(RequestSense::ALLOCATION))
        }
        opcode::INQUIRY => {
            answer::inquiry(cdb, request.lun == 0, identity, made)?;
            u32::from(cdb.get(Inquiry::ALLOCATION))
        }
        opcode::MODE_SENSE_6 => {
            answer::ata_mode_sense(cdb, identity, false, made)?;
            u32::from(cdb.get(ModeSense6::ALLOCATION))
        }
        opcode::MODE_SENSE_10 => {
            answer::ata_mode_sense(cdb, identity, true, made)?;
            u32::from(cdb.get(ModeSense10::ALLOCATION))
        }
        opcode::READ_CAPACITY_10 => {
            answer::capacity_10(identity, made);
            u32::MAX
        }
        opcode::SERVICE_ACTION_IN_16 => {
            answer::capacity_16(identity, made);
            cdb.get(ReadCapacity16::ALLOCATION)
        }
        _ => {
            answer::report_luns(made);
            cdb.get(ReportLuns::ALLOCATION)
        }
    })
}

/// A command with a parameter list whose length is in this field.
fn parameter_list<T: Value + Into<u32>>(
    request: &Request,
    len: Field<T>,
    is_fresh: bool,
) -> Result<Plan, Failure> {
    let bytes = request.cdb.get(len).into();
    if bytes > request.write.len() {
        return Err(invalid_field(len));
    }
    Ok(if bytes == 0 {
        Plan::Made
    } else {
        Plan::Interpret { bytes: bytes.min(trim::LIST_BYTES_MAX), is_fresh }
    })
}

/// Whether there is a command that flushes the cache.
fn flushes(identity: &IdentifyData) -> bool {
    identity.flush_cache || identity.flush_cache_ext
}

/// There is one unit, LUN 0.
fn only_unit(request: &Request) -> Result<(), Failure> {
    if request.lun == 0 {
        Ok(())
    } else {
        Err(check(SenseKey::IllegalRequest, code::LOGICAL_UNIT_NOT_SUPPORTED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aoe::initiator::answer::tests::DISK;
    use crate::services::Attribute;
    use wire::scsi::command::{
        GetLbaStatus, Inquiry, ModeSelect6, ModeSelect10, Read6, Read10, Read12, Read16, ReadCapacity10,
        SynchronizeCache10, Unmap, Verify10, Verify12, Verify16, Write6, Write10, Write12, Write16,
        WriteSame16,
    };
    use wire::{BufferId, Places, Span};

    fn request(cdb: impl Into<Cdb>, read: u32, write: u32) -> Request {
        let place = |len| Places::one(Span { buffer: BufferId(0), len, offset: 0 });
        let cdb = cdb.into();
        Request { lun: 0, attribute: Attribute::Simple, cdb, read: place(read), write: place(write) }
    }

    const ROOM: Room = Room { mtu: 1500, sectors: 2 };

    fn plan(request: &Request, identity: &IdentifyData, is_fresh: bool, made: &mut Made) -> Plan {
        super::plan(request, identity, ROOM, is_fresh, made)
    }

    fn planned(cdb: impl Into<Cdb>, read: u32, write: u32) -> Plan {
        plan(&request(cdb, read, write), &DISK, true, &mut Made::default())
    }

    fn code_of(plan: Plan) -> u16 {
        let Plan::Fail(Failure { status: 0x02, sense: Some(sense) }) = plan else { panic!("{plan:?}") };
        sense.code()
    }

    const READ: Plan = Plan::Move { way: AtaTransfer::Read, lba: 0x102, sectors: 3, flush: false };
    const WRITE: Plan = Plan::Move { way: AtaTransfer::Write, lba: 0x102, sectors: 3, flush: false };

    #[test]
    fn all_forms_of_reads_and_writes_are_known() {
        for (read, write) in [
            (planned(Read6::new(0x102, 3), 1536, 0), planned(Write6::new(0x102, 3), 0, 1536)),
            (planned(Read10::new(0x102, 3), 1536, 0), planned(Write10::new(0x102, 3), 0, 1536)),
            (planned(Read12::new(0x102, 3), 1536, 0), planned(Write12::new(0x102, 3), 0, 1536)),
            (planned(Read16::new(0x102, 3), 1536, 0), planned(Write16::new(0x102, 3), 0, 1536)),
        ] {
            assert_eq!((read, write), (READ, WRITE));
        }
        let Plan::Move { sectors, .. } = planned(Read6::new(0, 0), 131_072, 0) else { panic!() };
        assert_eq!(sectors, 256);
    }

    #[test]
    fn a_write_with_fua_is_followed_by_a_flush() {
        let cdb = Write10 { fua: true, ..Write10::new(0x102, 3) };
        let fua = Plan::Move { way: AtaTransfer::Write, lba: 0x102, sectors: 3, flush: true };
        assert_eq!(planned(cdb, 0, 1536), fua);
        let bare = IdentifyData { flush_cache: false, flush_cache_ext: false, ..DISK };
        assert_eq!(plan(&request(cdb, 0, 1536), &bare, true, &mut Made::default()), WRITE);
        let flush = request(SynchronizeCache10::new(0, 0), 0, 0);
        assert_eq!(plan(&flush, &bare, false, &mut Made::default()), Plan::Made);
        assert_eq!(plan(&flush, &DISK, false, &mut Made::default()), Plan::Flush);
    }

    #[test]
    fn data_past_the_end_is_requested_and_then_refused() {
        let past = request(Read16::new(DISK.sectors, 1), 512, 0);
        assert_eq!(plan(&past, &DISK, false, &mut Made::default()), Plan::Ask);
        assert_eq!(code_of(plan(&past, &DISK, true, &mut Made::default())), 0x2100);
        assert_eq!(code_of(planned(Read16::new(u64::MAX, 1), 512, 0)), 0x2100);
        let old = IdentifyData { lba48: false, ..DISK };
        assert_eq!(
            code_of(plan(&request(Read16::new(1 << 28, 1), 512, 0), &old, true, &mut Made::default())),
            0x2100
        );
    }

    #[test]
    fn what_ata_has_no_word_for_is_refused() {
        assert_eq!(code_of(planned(Unmap::new(24), 0, 24)), 0x2000, "UNMAP without TRIM");
        assert_eq!(
            code_of(planned(Verify10 { byte_check: 1, ..Verify10::new(0, 1) }, 0, 512)),
            0x2400,
            "BYTCHK"
        );
        assert_eq!(code_of(planned(WriteSame16::new(0, 1), 0, 512)), 0x2000, "WRITE SAME");
        assert_eq!(code_of(planned(GetLbaStatus::new(0, 24), 24, 0)), 0x2400, "GET LBA STATUS");
        assert_eq!(code_of(planned(Read10 { protect: 1, ..Read10::new(0, 1) }, 512, 0)), 0x2400, "RDPROTECT");
        assert_eq!(code_of(planned(Read10::new(0, 2), 512, 0)), 0x2400, "no room");
    }

    #[test]
    fn sectors_are_verified_without_data() {
        let verify = Plan::Move { way: AtaTransfer::Verify, lba: 0x102, sectors: 0x300, flush: false };
        assert_eq!(planned(Verify10::new(0x102, 0x300), 0, 0), verify);
        assert_eq!(planned(Verify16::new(0x102, 0x300), 0, 0), verify);
        assert_eq!(planned(Verify12::new(0x102, 0x300), 0, 0), verify);
    }

    #[test]
    fn parameter_lists_are_interpreted() {
        let trims = IdentifyData { trim_sectors: 4, ..DISK };
        let unmap = |anchor, len| request(Unmap { anchor, ..Unmap::new(len) }, 0, 24);
        let to_interpret = Plan::Interpret { bytes: 24, is_fresh: false };
        assert_eq!(plan(&unmap(false, 24), &trims, false, &mut Made::default()), to_interpret);
        assert_eq!(plan(&unmap(false, 0), &trims, false, &mut Made::default()), Plan::Made);
        assert_eq!(code_of(plan(&unmap(true, 24), &trims, true, &mut Made::default())), 0x2400, "ANCHOR");
        assert_eq!(code_of(plan(&unmap(false, 25), &trims, true, &mut Made::default())), 0x2400, "too long");
        assert_eq!(planned(ModeSelect6::new(24), 0, 24), Plan::Interpret { bytes: 24, is_fresh: true });
        assert_eq!(code_of(planned(ModeSelect6 { save: true, ..ModeSelect6::new(24) }, 0, 24)), 0x2400, "SP");
        let long = ModeSelect10 { page_format: true, save: false, list_bytes: 28 };
        assert_eq!(planned(long, 0, 28), Plan::Interpret { bytes: 28, is_fresh: true });
    }

    #[test]
    fn an_ata_command_that_fits_into_a_frame_is_passed_through() {
        use wire::ata::{Command, Registers};
        let planned = |pass: PassThrough, read, write| {
            let request = request(pass.to_cdb().unwrap(), read, write);
            super::plan(&request, &DISK, ROOM, false, &mut Made::default())
        };
        let read = PassThrough::new(Registers::new(Command::ReadDmaExt, 5, 2));
        assert_eq!(planned(read, 1024, 0), Plan::Ata(read));
        assert_eq!(code_of(planned(read, 1023, 0)), 0x2400, "no place for its data");
        let three = PassThrough::new(Registers::new(Command::ReadDmaExt, 5, 3));
        assert_eq!(code_of(planned(three, 1536, 0)), 0x2400, "more than a frame holds");
        let wide = Registers { feature: 0x100, ..Registers::new(Command::FlushCacheExt, 0, 0) };
        assert_eq!(code_of(planned(PassThrough::new(wide), 0, 0)), 0x2400);
        let many = PassThrough::new(Registers::new(Command::ReadVerifySectorsExt, 0, 0x100));
        assert_eq!(code_of(planned(many, 0, 0)), 0x2400);
        let wrong = PassThrough { protocol: wire::ata::Protocol::PioOut, ..read };
        assert_eq!(code_of(planned(wrong, 1024, 1024)), 0x2400);
        let unknown = Registers { command: 0xfe, count: 1, ..Registers::default() };
        let unknown = PassThrough { protocol: wire::ata::Protocol::PioIn, ..PassThrough::new(unknown) };
        assert_eq!(planned(unknown, 512, 0), Plan::Ata(unknown));
    }

    #[test]
    fn there_is_no_other_unit() {
        let mut other = request(Read10::new(0, 1), 512, 0);
        other.lun = 1 << 48;
        assert_eq!(code_of(plan(&other, &DISK, true, &mut Made::default())), 0x2500);
        other.cdb = Inquiry::new(96).into();
        let mut made = Made::default();
        assert_eq!(plan(&other, &DISK, true, &mut made), Plan::Made);
        assert_eq!(made.bytes()[0], 0x7f);
    }

    #[test]
    fn questions_are_answered_after_they_were_asked() {
        let capacity = request(ReadCapacity10::new(), 8, 0);
        let mut made = Made::default();
        assert_eq!(plan(&capacity, &DISK, false, &mut made), Plan::Ask);
        assert!(made.bytes().is_empty());
        assert_eq!(plan(&capacity, &DISK, true, &mut made), Plan::Made);
        assert_eq!(made.bytes(), [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
    }
}
