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
use wire::scsi::command::{ModeSense6, ModeSense10};
use wire::scsi::log::resource;
use wire::scsi::mode::{
    ARMED_INCREASING, Caching, Control, ErrorRecovery, Header6, Header10, InformationalExceptions,
    LongDescriptor, Provisioning, ShortDescriptor, UNRESTRICTED_REORDERING, control, page,
};

/// A mode page: its content for given modes, and which bits MODE SELECT may change.
pub(crate) struct Page {
    /// Page code.
    pub(crate) code: u8,
    /// Subpage code; 0 for pages without one.
    pub(crate) subpage: u8,
    /// The page with its header.
    pub(crate) current: fn(&View, &Modes) -> Vec<u8>,
    /// The page with its header, and ones where a bit may be changed.
    pub(crate) changeable: fn(&View) -> Vec<u8>,
}

impl Page {
    /// Bytes of its header.
    pub(crate) fn header(&self) -> usize {
        if self.subpage == 0 { 2 } else { 4 }
    }
}

/// The pages, in the order in which they are returned (page codes ascending, SPC-4 section 6.11.3).
const PAGES: &[Page] = &[
    Page {
        code: page::ERROR_RECOVERY,
        subpage: 0,
        current: error_recovery,
        changeable: |view| {
            let provisioning_errors = view.space().is_some();
            ErrorRecovery { provisioning_errors }.to_page().to_vec()
        },
    },
    Page {
        code: page::CACHING,
        subpage: 0,
        current: caching,
        changeable: |_| Caching { write_cache: true, ..Caching::ZERO }.to_page().to_vec(),
    },
    Page { code: page::CONTROL, subpage: 0, current: control, changeable: control_changeable },
    Page {
        code: page::INFORMATIONAL_EXCEPTIONS,
        subpage: 0,
        current: |_, _| InformationalExceptions { disabled: true }.to_page().to_vec(),
        changeable: |_| InformationalExceptions::ZERO.to_page().to_vec(),
    },
    Page {
        code: page::INFORMATIONAL_EXCEPTIONS,
        subpage: page::LOGICAL_BLOCK_PROVISIONING,
        current: provisioning,
        changeable: |_| {
            Provisioning { enabled: true, count: u32::MAX, ..Provisioning::ZERO }.to_page().to_vec()
        },
    },
];

/// The pages of a unit.
pub(crate) fn pages_of(view: &View) -> impl Iterator<Item = &'static Page> {
    let has_thresholds = view.space().is_some();
    PAGES.iter().filter(move |page| page.subpage == 0 || has_thresholds)
}

/// MODE SENSE(6).
pub(crate) fn sense6<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, u32::from(cdb.get(ModeSense6::ALLOCATION)), build6)))
}

/// MODE SENSE(10).
pub(crate) fn sense10<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    Ok(P::from(Answer::new(*cdb, u32::from(cdb.get(ModeSense10::ALLOCATION)), build10)))
}

fn build6(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let asked = ModeSense6::read(cdb.as_bytes());
    let pages = pages(env.view, asked.control, asked.page, asked.subpage)?;
    let descriptor = if asked.no_descriptors { Vec::new() } else { short_descriptor(env.view) };
    let len = descriptor.len().saturating_add(pages.len()).saturating_add(3);
    let header = Header6 {
        following_bytes: u8::try_from(len).unwrap_or(u8::MAX),
        write_protected: env.view.is_write_protected(env.nexus),
        dpo_and_fua: true,
        descriptor_bytes: u8::try_from(descriptor.len()).unwrap_or(0),
    };
    data.extend(header.to_bytes());
    data.extend(descriptor);
    data.extend(pages);
    Ok(())
}

fn build10(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let asked = ModeSense10::read(cdb.as_bytes());
    let pages = pages(env.view, asked.control, asked.page, asked.subpage)?;
    let descriptor = match (asked.no_descriptors, asked.long_lba) {
        (true, _) => Vec::new(),
        (false, false) => short_descriptor(env.view),
        (false, true) => long_descriptor(env.view),
    };
    let len = descriptor.len().saturating_add(pages.len()).saturating_add(6);
    let header = Header10 {
        following_bytes: u16::try_from(len).unwrap_or(u16::MAX),
        write_protected: env.view.is_write_protected(env.nexus),
        dpo_and_fua: true,
        long_lba: asked.long_lba && !descriptor.is_empty(),
        descriptor_bytes: u16::try_from(descriptor.len()).unwrap_or(0),
    };
    data.extend(header.to_bytes());
    data.extend(descriptor);
    data.extend(pages);
    Ok(())
}

/// Number of blocks, capped, and block length.
pub(crate) fn short_descriptor(view: &View) -> Vec<u8> {
    let blocks = u32::try_from(view.blocks()).unwrap_or(u32::MAX);
    ShortDescriptor { blocks, block_bytes: view.policy.block_bytes }.to_bytes().to_vec()
}

/// The same with 64 bits for the number of blocks.
pub(crate) fn long_descriptor(view: &View) -> Vec<u8> {
    LongDescriptor { blocks: view.blocks(), block_bytes: view.policy.block_bytes }.to_bytes().to_vec()
}

/// The requested pages, in the requested version.
fn pages(view: &View, version: u8, code: u8, subpage: u8) -> Result<Vec<u8>, Check> {
    if version == control::SAVED {
        return Err(Check::NO_SAVING);
    }
    let mut of_code = pages_of(view).filter(|page| code == page::ALL || code == page.code).peekable();
    if of_code.peek().is_none() {
        return Err(Check::cdb_field(ModeSense6::PAGE));
    }
    let is_one = |page: &Page| page.subpage == subpage && (code != page::ALL || subpage == 0);
    let mut found = Vec::new();
    for page in of_code.filter(|page| subpage == page::ALL_SUBPAGES || is_one(page)) {
        match version {
            control::CURRENT => found.extend((page.current)(view, &view.policy.modes)),
            control::CHANGEABLE => found.extend((page.changeable)(view)),
            _ => found.extend((page.current)(view, &Modes::initial(&view.unit))),
        }
    }
    if found.is_empty() { Err(Check::cdb_field(ModeSense6::SUBPAGE)) } else { Ok(found) }
}

/// Nothing is retried or reallocated here: the store's answer is final.
fn error_recovery(view: &View, modes: &Modes) -> Vec<u8> {
    let provisioning_errors = modes.provisioning_errors && view.space().is_some();
    ErrorRecovery { provisioning_errors }.to_page().to_vec()
}

/// One soft threshold for used space, armed on increase (SBC-4 section 6.5.9).
fn provisioning(view: &View, modes: &Modes) -> Vec<u8> {
    let page = Provisioning {
        enabled: modes.threshold,
        threshold_type: 0,
        arming: ARMED_INCREASING,
        resource: resource::USED,
        count: view.threshold_sets(modes),
    };
    page.to_page().to_vec()
}

fn caching(_: &View, modes: &Modes) -> Vec<u8> {
    Caching { write_cache: modes.write_cache, ..Caching::ZERO }.to_page().to_vec()
}

fn control(_: &View, modes: &Modes) -> Vec<u8> {
    let page = Control {
        task_sets: u8::from(modes.task_set_per_nexus),
        descriptor_sense: modes.descriptor_sense,
        no_log_saving: true,
        reordering: UNRESTRICTED_REORDERING,
        queue_error: modes.queue_error,
        software_write_protect: modes.software_write_protect,
        task_aborted_status: modes.task_aborted_status,
    };
    page.to_page().to_vec()
}

fn control_changeable(view: &View) -> Vec<u8> {
    let page = Control {
        task_sets: if view.sees_all() { u8::MAX } else { 0 },
        descriptor_sense: true,
        no_log_saving: false,
        reordering: 0,
        queue_error: u8::MAX,
        software_write_protect: true,
        task_aborted_status: true,
    };
    page.to_page().to_vec()
}

#[cfg(test)]
mod tests {
    use super::{Header6, control, page};
    use crate::testing::{BLOCK, Bench};
    use wire::scsi::command::{ModeSelect6, ModeSense6, ModeSense10, TestUnitReady, Write10};

    const CONTROL: [u8; 12] = [0x0a, 0x0a, 0x02, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];

    /// MODE SENSE(6) without block descriptors.
    const SENSE: ModeSense6 = ModeSense6::page_only(page::CONTROL, 255);

    fn sense6(bench: &mut Bench, command: ModeSense6) -> Vec<u8> {
        bench.read(command).assert_good().data.clone()
    }

    fn select6(bench: &mut Bench, page: &[u8]) -> crate::testing::Outcome {
        let list = [&[0; Header6::BYTES], page].concat();
        bench.write(ModeSelect6 { page_format: true, save: false, list_bytes: list.len() as u8 }, &list)
    }

    #[test]
    fn headers_descriptors_and_pages() {
        let mut bench = Bench::new();
        let data = sense6(&mut bench, ModeSense6::new(page::ALL, 255));
        assert_eq!(data[..12], [67, 0, 0x10, 8, 0, 2, 0, 0, 0, 0, 2, 0]);
        assert_eq!([data[12], data[24], data[44], data[56]], [0x01, 0x08, 0x0a, 0x1c]);
        assert_eq!(data.len(), 68);
        let all = ModeSense6 { page: page::ALL, subpage: page::ALL_SUBPAGES, ..SENSE };
        assert_eq!(sense6(&mut bench, all)[4..], data[12..]);
        assert_eq!(sense6(&mut bench, SENSE)[4..], CONTROL);
        let changeable = [0x0a, 0x0a, 0xe4, 0x06, 0x08, 0x40, 0, 0, 0, 0, 0, 0];
        assert_eq!(sense6(&mut bench, ModeSense6 { control: control::CHANGEABLE, ..SENSE })[4..], changeable);
        let default = ModeSense6 { control: control::DEFAULT, page: page::CACHING, ..SENSE };
        assert_eq!(sense6(&mut bench, default)[4..7], [0x08, 0x12, 0x04]);
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
        let write = Write10::new(0, 1);
        bench.write(write, &[0; BLOCK]).assert_check(0x7, 0x2702);
        assert_eq!(sense6(&mut bench, SENSE)[2..], [&[0x90, 0][..], &page].concat());
        bench.run(1, TestUnitReady {}, &[], 0).assert_check(0x6, 0x2a01);
        select6(&mut bench, &CONTROL).assert_good();
        bench.write(write, &[0; BLOCK]).assert_good();
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
        bench.write(ModeSelect6::new(3), &[0; 3]).assert_check(0x5, 0x1a00);
        bench
            .write(ModeSelect6 { page_format: true, save: true, list_bytes: 4 }, &[0; 4])
            .assert_invalid_field(1);
        bench.write(ModeSelect6 { list_bytes: 4, ..ModeSelect6::default() }, &[0; 4]).assert_invalid_field(1);
        let shorter = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0];
        bench.write(ModeSelect6::new(12), &shorter).assert_check(0x5, 0x2600);
        let same = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 2, 0];
        bench.write(ModeSelect6::new(12), &same).assert_good();
        bench.read(ModeSelect6 { page_format: true, ..ModeSelect6::default() }).assert_good();
        assert!(bench.published.is_none());
    }
}
