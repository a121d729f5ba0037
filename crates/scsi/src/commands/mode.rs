//! MODE SENSE and the mode pages (SPC-4 sections 6.12 and 7.5, SBC-3 section 6.5).

mod select;

pub(crate) use select::{ModeSelect, select6, select10};

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::state::unit::View;
use crate::vocabulary::modes::Modes;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;

/// A mode page: what it holds for given modes, and which bits MODE SELECT may change.
pub(crate) struct Page {
    /// Page code.
    pub(crate) code: u8,
    /// Subpage code; 0 of pages without.
    pub(crate) subpage: u8,
    /// The page with its header.
    pub(crate) current: fn(&View, &Modes) -> Vec<u8>,
    /// Ones where a bit may be changed, past the header bytes.
    pub(crate) changeable: &'static [u8],
    /// The same of units with thresholds.
    with_thresholds: &'static [u8],
}

impl Page {
    /// Bytes of its header.
    pub(crate) fn header(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }

    /// Which bits of it may be changed, past the header bytes.
    pub(crate) fn changeable(&self, view: &View) -> &'static [u8] {
        if view.space().is_some() { self.with_thresholds } else { self.changeable }
    }
}

/// The pages, in the order in which they are returned (page codes ascending, SPC-4 section 6.11.3).
const PAGES: &[Page] = &[
    Page { with_thresholds: &[0, 0, 0, 0, 0, 0x80], ..page(0x01, error_recovery, &[]) },
    page(0x08, caching, &[0x04]),
    page(0x0a, control, &[0xe4, 0x06, 0x08, 0x40]),
    page(0x1c, informational_exceptions, &[]),
    Page { subpage: 0x02, ..page(0x1c, provisioning, &PROVISIONING_CHANGEABLE) },
];

const fn page(code: u8, current: fn(&View, &Modes) -> Vec<u8>, changeable: &'static [u8]) -> Page {
    Page { code, subpage: 0, current, changeable, with_thresholds: changeable }
}

/// ENABLED and THRESHOLD COUNT of the threshold descriptor.
const PROVISIONING_CHANGEABLE: [u8; 20] =
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];

/// The pages of a unit.
pub(crate) fn pages_of(view: &View) -> impl Iterator<Item = &'static Page> {
    let has_thresholds = view.space().is_some();
    PAGES.iter().filter(move |page| page.subpage == 0 || has_thresholds)
}

/// All pages.
const ALL_PAGES: u8 = 0x3f;
/// All subpages.
const ALL_SUBPAGES: u8 = 0xff;

/// MODE SENSE(6).
pub(crate) fn sense6<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, u32::from(cdb.u8(4)), build6)))
}

/// MODE SENSE(10).
pub(crate) fn sense10<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, u32::from(cdb.u16(7)), build10)))
}

fn build6(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let pages = pages(env.view, cdb)?;
    let descriptor = if cdb.u8(1) & 0x08 != 0 { Vec::new() } else { short_descriptor(env.view) };
    let len = 3usize.saturating_add(descriptor.len()).saturating_add(pages.len());
    data.push(u8::try_from(len).unwrap_or(u8::MAX));
    data.extend_from_slice(&[0, device_specific(env), u8::try_from(descriptor.len()).unwrap_or(0)]);
    data.extend_from_slice(&descriptor);
    data.extend_from_slice(&pages);
    Ok(())
}

fn build10(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let pages = pages(env.view, cdb)?;
    let long = cdb.u8(1) & 0x10 != 0;
    let descriptor = match (cdb.u8(1) & 0x08 != 0, long) {
        (true, _) => Vec::new(),
        (false, false) => short_descriptor(env.view),
        (false, true) => long_descriptor(env.view),
    };
    let len = 6usize.saturating_add(descriptor.len()).saturating_add(pages.len());
    data.extend_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    data.extend_from_slice(&[0, device_specific(env), u8::from(long && !descriptor.is_empty()), 0]);
    data.extend_from_slice(&u16::try_from(descriptor.len()).unwrap_or(0).to_be_bytes());
    data.extend_from_slice(&descriptor);
    data.extend_from_slice(&pages);
    Ok(())
}

/// WP and DPOFUA.
fn device_specific(env: &Env<'_>) -> u8 {
    0x10 | if env.view.is_write_protected(env.nexus) { 0x80 } else { 0 }
}

/// Number of blocks, capped, and block length (SBC-3 section 6.5.2.2).
pub(crate) fn short_descriptor(view: &View) -> Vec<u8> {
    let blocks = u32::try_from(view.blocks()).unwrap_or(u32::MAX);
    let [_, rest @ ..] = view.policy.block_bytes.to_be_bytes();
    let mut descriptor = blocks.to_be_bytes().to_vec();
    descriptor.push(0);
    descriptor.extend_from_slice(&rest);
    descriptor
}

/// The same with 64 bits for the number of blocks (SBC-3 section 6.5.2.3).
pub(crate) fn long_descriptor(view: &View) -> Vec<u8> {
    let mut descriptor = view.blocks().to_be_bytes().to_vec();
    descriptor.extend_from_slice(&[0; 4]);
    descriptor.extend_from_slice(&view.policy.block_bytes.to_be_bytes());
    descriptor
}

/// The pages that the CDB asks for, in the version that it asks for.
fn pages(view: &View, cdb: &Cdb) -> Result<Vec<u8>, Check> {
    let (control, code, subpage) = (cdb.u8(2) >> 6, cdb.u8(2) & 0x3f, cdb.u8(3));
    if control == 3 {
        return Err(Check::NO_SAVING);
    }
    let mut of_code = pages_of(view).filter(|page| code == ALL_PAGES || code == page.code).peekable();
    if of_code.peek().is_none() {
        return Err(Check::cdb_bit(2, 5));
    }
    let is_one = |page: &Page| page.subpage == subpage && (code != ALL_PAGES || subpage == 0);
    let mut found = Vec::new();
    for page in of_code.filter(|page| subpage == ALL_SUBPAGES || is_one(page)) {
        match control {
            0 => found.extend((page.current)(view, &view.policy.modes)),
            1 => found.extend(changeable(view, page)),
            _ => found.extend((page.current)(view, &Modes::initial(&view.unit))),
        }
    }
    if found.is_empty() { Err(Check::cdb_byte(3)) } else { Ok(found) }
}

/// The page with ones where MODE SELECT may change something.
fn changeable(view: &View, page: &Page) -> Vec<u8> {
    let (mut bytes, ones) = ((page.current)(view, &view.policy.modes), page.changeable(view));
    for (at, byte) in bytes.iter_mut().skip(page.header()).enumerate() {
        *byte = ones.get(at).copied().unwrap_or(0);
    }
    bytes
}

/// 01h, read-write error recovery: nothing is retried or relocated here, the store's word is final. LBPERE.
fn error_recovery(view: &View, modes: &Modes) -> Vec<u8> {
    let reports = modes.provisioning_errors && view.space().is_some();
    vec![0x01, 0x0a, 0, 0, 0, 0, 0, if reports { 0x80 } else { 0 }, 0, 0, 0, 0]
}

/// 1Ch/02h, logical block provisioning: one soft threshold, for what is taken as that increases (SBC-4 section 6.5.9).
fn provisioning(view: &View, modes: &Modes) -> Vec<u8> {
    let mut page = vec![0x5c, 0x02, 0, 20];
    page.resize(16, 0);
    page.extend_from_slice(&[if modes.threshold { 0x81 } else { 0x01 }, 0x02, 0, 0]);
    page.extend_from_slice(&view.threshold_sets(modes).to_be_bytes());
    page
}

/// 08h, caching: WCE.
fn caching(_: &View, modes: &Modes) -> Vec<u8> {
    let mut page = vec![0x08, 0x12, if modes.write_cache { 0x04 } else { 0 }];
    page.resize(20, 0);
    page
}

/// 0Ah, control: TST, GLTSD and D_SENSE; unrestricted reordering and QERR; SWP; TAS.
fn control(_: &View, modes: &Modes) -> Vec<u8> {
    let task_set = if modes.task_set_per_nexus { 0x20 } else { 0 };
    let format = if modes.descriptor_sense { 0x04 } else { 0 };
    let protect = if modes.software_write_protect { 0x08 } else { 0 };
    let aborted = if modes.task_aborted_status { 0x40 } else { 0 };
    let error = (modes.queue_error & 0x03) << 1;
    vec![0x0a, 0x0a, task_set | format | 0x02, 0x10 | error, protect, aborted, 0, 0, 0, 0, 0, 0]
}

/// 1Ch, informational exceptions: DEXCPT, none are reported.
fn informational_exceptions(_: &View, _: &Modes) -> Vec<u8> {
    vec![0x1c, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use crate::testing::{BLOCK, Bench};
    use wire::scsi::command::{ModeSelect6, ModeSense6, ModeSense10, TestUnitReady};

    const CONTROL: [u8; 12] = [0x0a, 0x0a, 0x02, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];

    fn sense6(bench: &mut Bench, flags: u8, page: u8, subpage: u8) -> Vec<u8> {
        bench.read(&[0x1a, flags, page, subpage, 255, 0]).assert_good().data.clone()
    }

    fn select6(bench: &mut Bench, page: &[u8]) -> crate::testing::Outcome {
        let list: Vec<u8> = [0; 4].iter().chain(page).copied().collect();
        bench.write(&[0x15, 0x10, 0, 0, list.len() as u8, 0], &list)
    }

    #[test]
    fn headers_descriptors_and_pages() {
        let mut bench = Bench::new();
        let data = sense6(&mut bench, 0, 0x3f, 0);
        assert_eq!(data[..12], [67, 0, 0x10, 8, 0, 2, 0, 0, 0, 0, 2, 0]);
        assert_eq!([data[12], data[24], data[44], data[56]], [0x01, 0x08, 0x0a, 0x1c]);
        assert_eq!(data.len(), 68);
        assert_eq!(sense6(&mut bench, 8, 0x3f, 0xff)[4..], data[12..]);
        assert_eq!(sense6(&mut bench, 8, 0x0a, 0)[4..], CONTROL);
        let changeable = [0x0a, 0x0a, 0xe4, 0x06, 0x08, 0x40, 0, 0, 0, 0, 0, 0];
        assert_eq!(sense6(&mut bench, 8, 0x4a, 0)[4..], changeable);
        assert_eq!(sense6(&mut bench, 8, 0x88, 0)[4..7], [0x08, 0x12, 0x04]);
        let long = bench
            .read(ModeSense10 { long_lba: true, ..ModeSense10::new(0x08, 255) })
            .assert_good()
            .data
            .clone();
        let header = [0, 42, 0, 0x10, 1, 0, 0, 16, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
        assert_eq!(long[..24], header);
        bench.read(ModeSense6 { control: 3, ..ModeSense6::new(0x0a, 255) }).assert_check(0x5, 0x3900);
        bench.read(ModeSense6::new(0x02, 255)).assert_invalid_field(2);
        bench.read(ModeSense6 { subpage: 1, ..ModeSense6::new(0x0a, 255) }).assert_invalid_field(3);
    }

    #[test]
    fn software_write_protect_is_set_and_cleared() {
        let mut bench = Bench::new();
        let mut page = CONTROL;
        page[4] = 0x08;
        select6(&mut bench, &page).assert_good();
        let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        bench.write(&write, &[0; BLOCK]).assert_check(0x7, 0x2702);
        assert_eq!(sense6(&mut bench, 8, 0x0a, 0)[2..], [&[0x90, 0][..], &page].concat());
        bench.run(1, TestUnitReady {}, &[], 0).assert_check(0x6, 0x2a01);
        select6(&mut bench, &CONTROL).assert_good();
        bench.write(&write, &[0; BLOCK]).assert_good();
    }

    #[test]
    fn what_cannot_be_changed_is_refused() {
        let mut bench = Bench::new();
        let mut page = CONTROL;
        page[3] = 0x20;
        select6(&mut bench, &page).assert_check(0x5, 0x2600);
        page[3] = 0x14;
        select6(&mut bench, &page).assert_check(0x5, 0x2600);
        select6(&mut bench, &[0x02, 0x02, 0, 0]).assert_check(0x5, 0x2600);
        select6(&mut bench, &[0x0a, 0x08, 2, 0x10, 0, 0, 0, 0, 0, 0]).assert_check(0x5, 0x2600);
        select6(&mut bench, &CONTROL[..11]).assert_check(0x5, 0x1a00);
        bench
            .write(ModeSelect6 { page_format: true, list_bytes: 3, ..ModeSelect6::default() }, &[0; 3])
            .assert_check(0x5, 0x1a00);
        bench
            .write(ModeSelect6 { page_format: true, save: true, list_bytes: 4 }, &[0; 4])
            .assert_invalid_field(1);
        bench.write(ModeSelect6 { list_bytes: 4, ..ModeSelect6::default() }, &[0; 4]).assert_invalid_field(1);
        let shorter = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0];
        bench
            .write(ModeSelect6 { page_format: true, list_bytes: 12, ..ModeSelect6::default() }, &shorter)
            .assert_check(0x5, 0x2600);
        let same = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0];
        bench
            .write(ModeSelect6 { page_format: true, list_bytes: 12, ..ModeSelect6::default() }, &same)
            .assert_good();
        bench.read(ModeSelect6 { page_format: true, ..ModeSelect6::default() }).assert_good();
        assert!(bench.published.is_none());
    }
}
