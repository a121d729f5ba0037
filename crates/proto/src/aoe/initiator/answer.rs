//! Data-in in SCSI's form, which no ATA device has: it is built from IDENTIFY DEVICE data (SAT-3 clauses 8
//! and 10).

use super::failure::{Failure, check, invalid_field};
use super::plan::{Plan, SECTOR_BYTES};
use super::trim;
use wire::ata::{IdentifyData, set_features};
use wire::scsi::capacity::{Capacity10, Capacity16};
use wire::scsi::command::{Inquiry, ModeSense6};
use wire::scsi::designator::{Designator, code_set, kind};
use wire::scsi::inquiry::{FORMAT, SPC_4, StandardData, device_type, qualifier, standard};
use wire::scsi::mode::{self, Caching, Control, Header6, Header10, UNRESTRICTED_REORDERING};
use wire::scsi::vpd::{self, BlockLimits, Characteristics, Provisioning, page};
use wire::scsi::{Field, code, lun};
use wire::{Cdb, SenseKey};

/// The longest answer, in bytes.
const MADE_BYTES_MAX: usize = 256;

/// The data that was built.
#[derive(Debug)]
pub(super) struct Made {
    bytes: [u8; MADE_BYTES_MAX],
    len: usize,
}

impl Default for Made {
    fn default() -> Made {
        Made { bytes: [0; MADE_BYTES_MAX], len: 0 }
    }
}

impl Made {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn extend(&mut self, piece: &[u8]) {
        for (slot, byte) in self.bytes.iter_mut().skip(self.len).zip(piece) {
            *slot = *byte;
            self.len = self.len.saturating_add(1);
        }
    }

    pub(super) fn cut(&mut self, len: u32) {
        self.len = self.len.min(usize::try_from(len).unwrap_or(usize::MAX));
    }

    fn set(&mut self, at: usize, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(at) {
            *slot = byte;
        }
    }

    /// Sets the length byte at `at` to the number of bytes that follow it.
    fn close(&mut self, at: usize) {
        let behind = self.len.saturating_sub(at.saturating_add(1));
        self.set(at, u8::try_from(behind).unwrap_or(u8::MAX));
    }
}

impl Extend<u8> for Made {
    fn extend<T: IntoIterator<Item = u8>>(&mut self, piece: T) {
        piece.into_iter().for_each(|byte| Made::extend(self, &[byte]));
    }
}

/// The vendor identification of every translated device (SAT-3 section 8.1.2).
const VENDOR: [u8; 8] = *b"ATA     ";

/// INQUIRY (SAT-3 section 8.1).
pub(super) fn inquiry(
    cdb: &Cdb,
    is_unit: bool,
    identity: &IdentifyData,
    made: &mut Made,
) -> Result<(), Failure> {
    let Inquiry { vital, page, .. } = Inquiry::read(cdb.as_bytes());
    // CMDDT, which is obsolete, and reserved bits.
    let flags: Field<u8> = Field::at(Inquiry::VITAL.byte());
    if cdb.get(flags) != u8::from(vital) {
        return Err(invalid_field(flags));
    }
    let (qualifier, device_type) = match is_unit {
        true => (qualifier::CONNECTED, device_type::DISK),
        false => (qualifier::NO_UNIT, device_type::NONE),
    };
    if vital {
        made.extend(&vpd::header(qualifier << 5 | device_type, page, 0));
        pages(page, identity, made)?;
        made.close(3);
    } else if page == 0 {
        made.extend(&standard(qualifier, device_type, identity).cut(StandardData::BYTES).0);
    } else {
        return Err(invalid_field(Inquiry::PAGE));
    }
    Ok(())
}

fn standard(qualifier: u8, device_type: u8, identity: &IdentifyData) -> StandardData {
    // The last four characters, unless they are blank (SAT-3 table 15).
    let (head, tail) = identity.firmware.split_at(4);
    let revision = if tail == b"    " { head } else { tail };
    let standards = [standard::SAM_5, standard::SPC_4, standard::SBC_3, standard::SAT_3, 0, 0, 0, 0];
    StandardData {
        qualifier,
        device_type,
        version: SPC_4,
        hierarchical: true,
        format: FORMAT,
        command_queuing: true,
        vendor: VENDOR,
        product: identity.model.first_chunk().copied().unwrap_or_default(),
        revision: revision.first_chunk().copied().unwrap_or_default(),
        standards,
        ..StandardData::default()
    }
}

/// The body of a page of vital product data.
fn pages(code: u8, identity: &IdentifyData, made: &mut Made) -> Result<(), Failure> {
    match code {
        page::SUPPORTED => {
            made.extend(&[page::SUPPORTED, page::SERIAL_NUMBER, page::IDENTIFICATION]);
            made.extend(&[page::BLOCK_LIMITS, page::CHARACTERISTICS]);
            made.extend(if trims(identity) { &[page::PROVISIONING] } else { &[] });
        }
        page::SERIAL_NUMBER => made.extend(&identity.serial),
        page::IDENTIFICATION => {
            if let Some(name) = identity.world_wide_name {
                Designator::of_unit(code_set::BINARY, kind::NAA, &name.to_be_bytes()).write(made);
            }
            // Vendor, model and serial number (SAT-3 table 21).
            let name = [&VENDOR[..], &identity.model, &identity.serial].concat();
            Designator::of_unit(code_set::ASCII, kind::T10_VENDOR_ID, &name).write(made);
        }
        page::BLOCK_LIMITS => {
            // There are no other limits.
            let limits = match trims(identity) {
                true => BlockLimits {
                    unmap_blocks_max: trim::SECTORS_MAX,
                    unmap_descriptors_max: trim::DESCRIPTORS_MAX,
                    ..BlockLimits::default()
                },
                false => BlockLimits::default(),
            };
            made.extend(vpd::body(&limits.to_page()));
        }
        page::PROVISIONING if trims(identity) => {
            let (zeros, kind) = (u8::from(identity.trim_zeros), vpd::THIN);
            let page = Provisioning { unmap: true, zeros, kind, ..Provisioning::default() };
            made.extend(vpd::body(&page.to_page()));
        }
        page::CHARACTERISTICS => {
            let page =
                Characteristics { rotation_rate: identity.rotation_rate, ..Characteristics::default() };
            made.extend(vpd::body(&page.to_page()));
        }
        _ => return Err(invalid_field(Inquiry::PAGE)),
    }
    Ok(())
}

/// Whether the device supports TRIM, which UNMAP is translated to.
fn trims(identity: &IdentifyData) -> bool {
    identity.trim_sectors > 0
}

/// READ CAPACITY(10) (SAT-3 section 9.6).
pub(super) fn capacity_10(identity: &IdentifyData, made: &mut Made) {
    made.extend(&Capacity10::new(identity.sectors, SECTOR_BYTES).to_bytes());
}

/// READ CAPACITY(16) (SAT-3 section 9.7).
pub(super) fn capacity_16(identity: &IdentifyData, made: &mut Made) {
    let capacity = Capacity16 {
        physical_exponent: identity.physical_exponent,
        thin: trims(identity),
        zeros: trims(identity) && identity.trim_zeros,
        ..Capacity16::new(identity.sectors, SECTOR_BYTES)
    };
    made.extend(&capacity.to_bytes());
}

/// REPORT LUNS: LUN 0.
pub(super) fn report_luns(made: &mut Made) {
    made.extend(&lun::list_header(1));
    made.extend(&lun::of_number(0).to_be_bytes());
}

/// MODE SENSE (SAT-3 section 10.1), without block descriptors.
pub(super) fn ata_mode_sense(
    cdb: &Cdb,
    identity: &IdentifyData,
    is_long: bool,
    made: &mut Made,
) -> Result<(), Failure> {
    // Both forms have these fields.
    let ModeSense6 { control, page: wanted, subpage, .. } = ModeSense6::read(cdb.as_bytes());
    if control == mode::control::SAVED {
        return Err(check(SenseKey::IllegalRequest, code::SAVING_PARAMETERS_NOT_SUPPORTED));
    }
    if !(subpage == 0 || wanted == mode::page::ALL && subpage == mode::page::ALL_SUBPAGES) {
        return Err(invalid_field(ModeSense6::SUBPAGE));
    }
    if ![mode::page::CACHING, mode::page::CONTROL, mode::page::ALL].contains(&wanted) {
        return Err(invalid_field(ModeSense6::PAGE));
    }
    if is_long {
        made.extend(&Header10 { dpo_and_fua: true, ..Header10::default() }.to_bytes());
    } else {
        made.extend(&Header6 { dpo_and_fua: true, ..Header6::default() }.to_bytes());
    }
    let is_changeable = control == mode::control::CHANGEABLE;
    if wanted != mode::page::CONTROL {
        made.extend(&caching(identity, is_changeable).to_page());
    }
    if wanted != mode::page::CACHING {
        let reordering = if is_changeable { 0 } else { UNRESTRICTED_REORDERING };
        made.extend(&Control { reordering, ..Control::default() }.to_page());
    }
    made.close(if is_long { 1 } else { 0 });
    Ok(())
}

fn caching(identity: &IdentifyData, is_changeable: bool) -> Caching {
    let (write_cache, no_read_ahead) = if is_changeable {
        (identity.write_cache.supported, false)
    } else {
        (has_volatile_cache(identity), identity.look_ahead.supported && !identity.look_ahead.enabled)
    };
    Caching { write_cache, no_read_ahead, ..Caching::default() }
}

/// MODE SELECT (SAT-3 section 10.1): the caching page, of which only WCE may change.
pub(super) fn mode_select(list: &[u8], is_long: bool, identity: &IdentifyData) -> Result<Plan, Failure> {
    let wrong = |code| check(SenseKey::IllegalRequest, code);
    let cut = || wrong(code::PARAMETER_LIST_LENGTH_ERROR);
    let (page_at, descriptors) = if is_long {
        (Header10::BYTES, Header10::DESCRIPTOR_BYTES.get(list).map(usize::from).ok_or_else(cut)?)
    } else {
        (Header6::BYTES, Header6::DESCRIPTOR_BYTES.get(list).map(usize::from).ok_or_else(cut)?)
    };
    let page = list.get(descriptors.saturating_add(page_at)..).ok_or_else(cut)?;
    let is_on = Caching::WRITE_CACHE.get(page).ok_or_else(cut)?;
    if page.len() < Caching::BYTES && page.first() == Some(&mode::page::CACHING) {
        return Err(cut());
    }
    let asked = Caching { write_cache: is_on, ..caching(identity, false) };
    let feature = identity.write_cache.supported;
    if page != asked.to_page() || (!feature && is_on != has_volatile_cache(identity)) {
        return Err(wrong(code::INVALID_FIELD_IN_PARAMETER_LIST));
    }
    Ok(match (feature, is_on) {
        (false, _) => Plan::Made,
        (true, true) => Plan::Feature(set_features::WRITE_CACHE_ON),
        (true, false) => Plan::Feature(set_features::WRITE_CACHE_OFF),
    })
}

/// Whether written data may be lost before it is flushed. A device without a cache that can be switched, but
/// with a command that flushes it, is assumed to have one.
fn has_volatile_cache(identity: &IdentifyData) -> bool {
    let flushes = identity.flush_cache || identity.flush_cache_ext;
    identity.write_cache.enabled || (!identity.write_cache.supported && flushes)
}

#[cfg(test)]
pub(in crate::aoe::initiator) mod tests {
    use super::*;
    use wire::ata::{Feature, identify};
    use wire::scsi::command::ModeSense10;
    use wire::scsi::opcode;

    pub(in crate::aoe::initiator) const DISK: IdentifyData = IdentifyData {
        serial: *b"SERIAL7             ",
        firmware: *b"1.2     ",
        model: *b"Lunette test disk                       ",
        sectors: 1 << 40,
        lba48: true,
        flush_cache: true,
        flush_cache_ext: true,
        fua: false,
        write_cache: Feature::ON,
        look_ahead: Feature { supported: true, enabled: false },
        smart: Feature { supported: false, enabled: false },
        smart_logs: false,
        sector_bytes: 512,
        physical_exponent: 3,
        rotation_rate: 1,
        trim_sectors: 0,
        trim_zeros: false,
        world_wide_name: Some(0x5001_2345_6789_abcd),
        nop_waits: false,
    };

    const WCE: u8 = 0x04;
    const DRA: u8 = 0x20;

    fn asked(cdb: impl Into<Cdb>, identity: &IdentifyData) -> Vec<u8> {
        let (cdb, mut made) = (cdb.into(), Made::default());
        inquiry(&cdb, true, identity, &mut made).unwrap();
        made.bytes().to_vec()
    }

    fn modes(cdb: impl Into<Cdb>, identity: &IdentifyData) -> Vec<u8> {
        let (cdb, mut made) = (cdb.into(), Made::default());
        ata_mode_sense(&cdb, identity, cdb.opcode() == wire::scsi::opcode::MODE_SENSE_10, &mut made).unwrap();
        made.bytes().to_vec()
    }

    #[test]
    fn a_device_is_called_as_sat_has_it() {
        let data = asked(Inquiry::new(96), &DISK);
        assert_eq!((data.len(), data[4]), (96, 91));
        assert_eq!(&data[8..36], b"ATA     Lunette test dis1.2 ");
        let newer = IdentifyData { firmware: identify::text("abcd5678"), ..DISK };
        assert_eq!(&asked(Inquiry::new(96), &newer)[32..36], b"5678");
    }

    #[test]
    fn pages_identify_the_device() {
        let pages = asked(Inquiry::page(vpd::page::SUPPORTED, 252), &DISK);
        assert_eq!(pages, [0, 0, 0, 5, 0, 0x80, 0x83, 0xb0, 0xb1]);
        for code in &pages[4..] {
            let data = asked(Inquiry::page(*code, 252), &DISK);
            assert_eq!((data[1], usize::from(data[3])), (*code, data.len() - 4));
        }
        let data = asked(Inquiry::page(vpd::page::IDENTIFICATION, 252), &DISK);
        assert_eq!(data[4..16], [1, 3, 0, 8, 0x50, 1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd]);
        assert_eq!(&data[20..28], b"ATA     ");
        assert_eq!(&data[data.len() - 20..], DISK.serial);
        assert_eq!(asked(Inquiry::page(vpd::page::CHARACTERISTICS, 252), &DISK)[4..6], [0, 1]);
    }

    #[test]
    fn the_capacity_is_reported_in_both_formats() {
        let mut made = Made::default();
        capacity_16(&IdentifyData { sectors: 0x0102_0304_0506, ..DISK }, &mut made);
        assert_eq!(made.bytes()[..16], [0, 0, 1, 2, 3, 4, 5, 5, 0, 0, 2, 0, 0, 3, 0, 0]);
        assert_eq!(made.bytes().len(), 32);
        made.clear();
        capacity_10(&IdentifyData { sectors: 0x0102_0304, ..DISK }, &mut made);
        assert_eq!(made.bytes(), [1, 2, 3, 3, 0, 0, 2, 0]);
    }

    #[test]
    fn mode_pages_describe_the_cache() {
        let data = modes(ModeSense6::page_only(mode::page::CACHING, 252), &DISK);
        assert_eq!((data.len(), data[0], data[2]), (24, 23, 0x10));
        assert_eq!((data[4], data[6], data[16]), (8, WCE, DRA));
        let through = IdentifyData { write_cache: Feature { supported: true, enabled: false }, ..DISK };
        assert_eq!(modes(ModeSense6::page_only(mode::page::CACHING, 252), &through)[6], 0);
        let silent = IdentifyData { write_cache: Feature::default(), ..DISK };
        assert_eq!(modes(ModeSense6::page_only(mode::page::CACHING, 252), &silent)[6], WCE);
        let all =
            modes(ModeSense10 { no_descriptors: true, ..ModeSense10::new(mode::page::ALL, 256) }, &DISK);
        assert_eq!((all.len(), all[1], all[8], all[28]), (40, 38, 8, 10));
        let changeable = modes(
            ModeSense6 {
                no_descriptors: true,
                control: mode::control::CHANGEABLE,
                ..ModeSense6::new(mode::page::ALL, 252)
            },
            &DISK,
        );
        assert_eq!((changeable[6], changeable[16], changeable[27]), (WCE, 0, 0), "the write cache alone");
        let fixed = IdentifyData { write_cache: Feature::default(), ..DISK };
        assert_eq!(
            modes(
                ModeSense10 {
                    no_descriptors: true,
                    control: mode::control::CHANGEABLE,
                    ..ModeSense10::new(mode::page::ALL, 256)
                },
                &fixed
            )[10],
            0
        );
    }

    #[test]
    fn the_write_cache_is_switched_by_its_page() {
        let now = modes(ModeSense6::page_only(mode::page::CACHING, 252), &DISK);
        let changed = |at: usize, mask: u8| {
            let mut list = now.clone();
            (list[0], list[2], list[at]) = (0, 0, list[at] ^ mask);
            list
        };
        let feature = |code| Ok(Plan::Feature(code));
        assert_eq!(mode_select(&changed(2, 0), false, &DISK), feature(0x02));
        assert_eq!(mode_select(&changed(6, WCE), false, &DISK), feature(0x82));
        let long = [&[0; 7][..], &[8], &[0; 8], &changed(6, WCE)[4..]].concat();
        assert_eq!(mode_select(&long, true, &DISK), feature(0x82), "behind a block descriptor");
        let code_of = |result: Result<Plan, Failure>| result.unwrap_err().sense.unwrap().code();
        for other in
            [changed(7, 1), changed(16, DRA), changed(4, 2), changed(5, 1), [now.clone(), vec![8]].concat()]
        {
            assert_eq!(code_of(mode_select(&other, false, &DISK)), code::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        for len in 0..24 {
            assert_eq!(
                code_of(mode_select(&changed(2, 0)[..len], false, &DISK)),
                code::PARAMETER_LIST_LENGTH_ERROR
            );
        }
        let fixed = IdentifyData { write_cache: Feature::default(), ..DISK };
        assert_eq!(mode_select(&changed(2, 0), false, &fixed), Ok(Plan::Made));
        assert_eq!(
            code_of(mode_select(&changed(6, WCE), false, &fixed)),
            code::INVALID_FIELD_IN_PARAMETER_LIST
        );
    }

    #[test]
    fn what_can_be_trimmed_is_thin() {
        let thin = IdentifyData { trim_sectors: 4, trim_zeros: true, ..DISK };
        let pages = asked(Inquiry::page(vpd::page::SUPPORTED, 252), &thin);
        assert_eq!(pages[4..], [0, 0x80, 0x83, 0xb0, 0xb1, 0xb2]);
        assert_eq!(asked(Inquiry::page(vpd::page::PROVISIONING, 252), &thin), [0, 0xb2, 0, 4, 0, 0x84, 2, 0]);
        let limits = asked(Inquiry::page(vpd::page::BLOCK_LIMITS, 252), &thin);
        assert_eq!(limits[20..28], [0, 0x7f, 0xff, 0x80, 0, 0, 0, 64]);
        assert_eq!(asked(Inquiry::page(vpd::page::BLOCK_LIMITS, 252), &DISK)[20..28], [0; 8]);
        for (identity, flags) in [(thin, 0xc0), (IdentifyData { trim_zeros: false, ..thin }, 0x80), (DISK, 0)]
        {
            let mut made = Made::default();
            capacity_16(&identity, &mut made);
            assert_eq!(made.bytes()[14], flags);
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let refused = |cdb: Cdb| {
            let mut made = Made::default();
            let result = match cdb.opcode() {
                0x12 => inquiry(&cdb, true, &DISK, &mut made),
                _ => ata_mode_sense(&cdb, &DISK, false, &mut made),
            };
            result.unwrap_err().sense.unwrap().code()
        };
        assert_eq!(refused(Inquiry { page: vpd::page::SERIAL_NUMBER, ..Inquiry::new(96) }.into()), 0x2400);
        assert_eq!(refused(Inquiry::page(vpd::page::PROVISIONING, 96).into()), 0x2400);
        assert_eq!(refused(Cdb::from(&[opcode::INQUIRY, 2, 0, 0, 96, 0])), 0x2400);
        assert_eq!(
            refused(
                ModeSense6 {
                    no_descriptors: true,
                    control: mode::control::SAVED,
                    ..ModeSense6::new(mode::page::CACHING, 96)
                }
                .into()
            ),
            0x3900
        );
        assert_eq!(refused(ModeSense6::page_only(mode::page::INFORMATIONAL_EXCEPTIONS, 96).into()), 0x2400);
        assert_eq!(
            refused(
                ModeSense6 { no_descriptors: true, subpage: 1, ..ModeSense6::new(mode::page::CACHING, 96) }
                    .into()
            ),
            0x2400
        );
    }
}
