//! Mode pages (SPC-4 section 7.5, SBC-4 section 6.5).

use super::data::part;
use super::rows::{Rows, yes_no};
use serde::Serialize;
use wire::scsi::mode::{self, Caching, Control, Header6, Header10, UNRESTRICTED_REORDERING};

/// The content of mode pages.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct ModeReport {
    /// From the header: WP and DPOFUA.
    write_protected: Option<bool>,
    dpo_and_fua: Option<bool>,
    /// From the caching page.
    write_cache: Option<bool>,
    read_cache: Option<bool>,
    /// From the control page.
    software_write_protect: Option<bool>,
    descriptor_sense: Option<bool>,
    task_set_per_initiator: Option<bool>,
    aborted_tasks_are_reported: Option<bool>,
    reordering: Option<&'static str>,
    pages: Vec<ModePage>,
}

#[derive(Serialize, Debug, PartialEq)]
struct ModePage {
    page: u8,
    subpage: u8,
    name: &'static str,
}

/// The answer to MODE SENSE(10).
pub(super) fn decode_10(data: &[u8]) -> Option<ModeReport> {
    let data = part(data, 0, usize::from(Header10::FOLLOWING_BYTES.get(data)?) + 2);
    let at = Header10::BYTES + usize::from(Header10::DESCRIPTOR_BYTES.get(data)?);
    let device = (Header10::WRITE_PROTECTED.get(data), Header10::DPO_AND_FUA.get(data));
    Some(decode(device, data.get(at..).unwrap_or_default()))
}

/// The answer to MODE SENSE(6).
pub(super) fn decode_6(data: &[u8]) -> Option<ModeReport> {
    let data = part(data, 0, usize::from(Header6::FOLLOWING_BYTES.get(data)?) + 1);
    let at = Header6::BYTES + usize::from(Header6::DESCRIPTOR_BYTES.get(data)?);
    let device = (Header6::WRITE_PROTECTED.get(data), Header6::DPO_AND_FUA.get(data));
    Some(decode(device, data.get(at..).unwrap_or_default()))
}

/// `device`: WP and DPOFUA.
fn decode(device: (Option<bool>, Option<bool>), list: &[u8]) -> ModeReport {
    let find = |code| mode::pages(list).find(|page| (page.code, page.subpage) == (code, 0));
    let (caching, control) = (find(mode::page::CACHING), find(mode::page::CONTROL));
    let (caching, control) = (caching.map(|page| page.bytes), control.map(|page| page.bytes));
    let is_disk = caching.is_some();
    ModeReport {
        write_protected: device.0.filter(|_| is_disk),
        dpo_and_fua: device.1.filter(|_| is_disk),
        write_cache: caching.and_then(|page| Caching::WRITE_CACHE.get(page)),
        read_cache: caching.and_then(|page| Caching::NO_READ_CACHE.get(page)).map(|disabled| !disabled),
        software_write_protect: control.and_then(|page| Control::SOFTWARE_WRITE_PROTECT.get(page)),
        descriptor_sense: control.and_then(|page| Control::DESCRIPTOR_SENSE.get(page)),
        task_set_per_initiator: control.and_then(|page| Control::TASK_SETS.get(page)).map(|sets| sets == 1),
        aborted_tasks_are_reported: control.and_then(|page| Control::TASK_ABORTED_STATUS.get(page)),
        reordering: control.and_then(|page| Control::REORDERING.get(page)).map(
            |reordering| match reordering {
                0 => "restricted",
                UNRESTRICTED_REORDERING => "unrestricted",
                _ => "vendor-specific",
            },
        ),
        pages: mode::pages(list)
            .map(|page| ModePage {
                page: page.code,
                subpage: page.subpage,
                name: mode::page::name(page.code, page.subpage),
            })
            .collect(),
    }
}

impl ModeReport {
    pub(super) fn write(&self, rows: &mut Rows) {
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        rows.maybe("write cache", self.write_cache, on_off);
        rows.maybe("read cache", self.read_cache, on_off);
        rows.maybe("DPO and FUA", self.dpo_and_fua, yes_no);
        rows.maybe("write-protected", self.write_protected, yes_no);
        rows.maybe("software write protect", self.software_write_protect, on_off);
        rows.maybe("sense data", self.descriptor_sense, |descriptors| {
            if descriptors { "descriptor format" } else { "fixed format" }.into()
        });
        rows.maybe("reordering", self.reordering, str::to_owned);
        rows.maybe("task set", self.task_set_per_initiator, |each| {
            if each { "one for each initiator" } else { "one for all initiators" }.into()
        });
        rows.maybe("TASK ABORTED status", self.aborted_tasks_are_reported, yes_no);
        let pages: Vec<String> = self
            .pages
            .iter()
            .map(|page| match page.subpage {
                0 => format!("{:02x}h {}", page.page, page.name),
                subpage => format!("{:02x}h/{subpage:02x}h {}", page.page, page.name),
            })
            .collect();
        rows.text("mode pages", &pages.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [u8; 8 + 20 + 12 + 6] = {
        let mut pages = [0; 46];
        // Header: length, WP and DPOFUA.
        (pages[1], pages[3]) = (44, 0x90);
        (pages[8], pages[9], pages[10]) = (0x88, 18, 0x04);
        (pages[28], pages[29], pages[30], pages[31], pages[32]) = (0x0a, 10, 0x04, 0x10, 0x08);
        (pages[40], pages[41], pages[43]) = (0x4a, 0x01, 2);
        pages
    };

    #[test]
    fn caches_and_write_protection_are_shown() {
        let modes = decode_10(&PAGES).expect("pages");
        let shown = Rows::shown(|rows| modes.write(rows));
        for expected in [
            "write cache             on",
            "write-protected         yes",
            "software write protect  on",
            "descriptor format",
            "unrestricted",
            "one for all initiators",
            "08h caching, 0ah control, 0ah/01h control extension",
        ] {
            assert!(shown.contains(expected), "{expected}:\n{shown}");
        }
        // The same in the short form, with a block descriptor.
        let mut short = vec![51, 0, 0x90, 8, 0, 0, 0, 0, 0, 0, 2, 0];
        short.extend_from_slice(&PAGES[8..]);
        assert_eq!(decode_6(&short), Some(modes));
    }

    #[test]
    fn what_is_cut_off_is_not_shown() {
        let modes = decode_10(&PAGES[..10]).expect("a header");
        assert_eq!((modes.write_cache, modes.pages.len()), (None, 1));
        assert_eq!(decode_10(&PAGES[..7]), None);
        assert_eq!(decode_10(&[0, 6, 0, 0, 0, 0, 0xff, 0xff]).expect("a header").pages, []);
    }
}
