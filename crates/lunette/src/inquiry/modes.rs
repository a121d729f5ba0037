//! Mode pages (SPC-4 section 7.5, SBC-4 section 6.5).

use super::data::{bit, part, u8_at, u16_at};
use super::rows::{Rows, yes_no};
use serde::Serialize;

/// What mode pages report.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Modes {
    /// Of the header: WP and DPOFUA.
    write_protected: Option<bool>,
    dpo_and_fua: Option<bool>,
    /// Of the caching page.
    write_cache: Option<bool>,
    read_cache: Option<bool>,
    /// Of the control page.
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
pub(super) fn decode_10(data: &[u8]) -> Option<Modes> {
    let data = part(data, 0, usize::from(u16_at(data, 0)?) + 2);
    let pages = data.get(8 + usize::from(u16_at(data, 6)?)..).unwrap_or_default();
    Some(decode(u8_at(data, 3), pages))
}

/// The answer to MODE SENSE(6).
pub(super) fn decode_6(data: &[u8]) -> Option<Modes> {
    let data = part(data, 0, usize::from(u8_at(data, 0)?) + 1);
    let pages = data.get(4 + usize::from(u8_at(data, 3)?)..).unwrap_or_default();
    Some(decode(u8_at(data, 2), pages))
}

fn decode(device: Option<u8>, pages: &[u8]) -> Modes {
    let pages = split(pages);
    let find = |code| pages.iter().find(|(page, sub, _)| (*page, *sub) == (code, 0)).map(|(.., data)| *data);
    let flag = |page: Option<&[u8]>, at, mask| page.and_then(|page| bit(page, at, mask));
    let (caching, control) = (find(0x08), find(0x0a));
    let is_disk = caching.is_some();
    Modes {
        write_protected: device.filter(|_| is_disk).map(|byte| byte & 0x80 != 0),
        dpo_and_fua: device.filter(|_| is_disk).map(|byte| byte & 0x10 != 0),
        write_cache: flag(caching, 2, 0x04),
        read_cache: flag(caching, 2, 0x01).map(|disabled| !disabled),
        software_write_protect: flag(control, 4, 0x08),
        descriptor_sense: flag(control, 2, 0x04),
        task_set_per_initiator: control.and_then(|page| u8_at(page, 2)).map(|byte| byte >> 5 == 1),
        aborted_tasks_are_reported: flag(control, 5, 0x40),
        reordering: control.and_then(|page| u8_at(page, 3)).map(|byte| match byte >> 4 {
            0 => "restricted",
            1 => "unrestricted",
            _ => "vendor-specific",
        }),
        pages: pages
            .iter()
            .map(|(page, subpage, _)| ModePage {
                page: *page,
                subpage: *subpage,
                name: name(*page, *subpage),
            })
            .collect(),
    }
}

/// Code, subpage code and bytes of each page, with its header; one that is cut off is the last.
fn split(mut data: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut pages = Vec::new();
    while let Some(first) = u8_at(data, 0) {
        let (subpage, len) = if first & 0x40 == 0 {
            (Some(0), u8_at(data, 1).map(|len| usize::from(len) + 2))
        } else {
            (u8_at(data, 1), u16_at(data, 2).map(|len| usize::from(len) + 4))
        };
        let (Some(subpage), Some(len)) = (subpage, len) else { break };
        pages.push((first & 0x3f, subpage, part(data, 0, len)));
        data = data.get(len..).unwrap_or_default();
    }
    pages
}

fn name(page: u8, subpage: u8) -> &'static str {
    match (page, subpage) {
        (0x00, _) => "vendor-specific",
        (0x01, 0) => "read-write error recovery",
        (0x02, 0) => "disconnect-reconnect",
        (0x03, 0) => "format device",
        (0x04, 0) => "rigid disk geometry",
        (0x07, 0) => "verify error recovery",
        (0x08, 0) => "caching",
        (0x0a, 0) => "control",
        (0x0a, 1) => "control extension",
        (0x0a, 2) => "application tag",
        (0x0a, 5) => "I/O advice hints grouping",
        (0x10, 0) => "XOR control",
        (0x18, _) => "protocol-specific unit",
        (0x19, _) => "protocol-specific port",
        (0x1a, 0) => "power condition",
        (0x1a, 1) => "power consumption",
        (0x1c, 0) => "informational exceptions",
        (0x1c, 1) => "background control",
        (0x1c, 2) => "logical block provisioning",
        (0x20..=0x3e, _) => "vendor-specific",
        _ => "unknown",
    }
}

impl Modes {
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
