//! Vital product data (SPC-4 section 7.8, SBC-4 section 6.6).

use super::data::{bit, hex, part, text, u8_at, u16_at, u32_at, u64_at};
use super::rows::{Rows, list, yes_no};
use config::format_size;
use serde::Serialize;

/// The body of a page: what follows its header, if it is the page that was asked for.
pub(super) fn body(data: &[u8], code: u8) -> Option<&[u8]> {
    let len = u16_at(data, 2)?;
    (u8_at(data, 1)? == code).then(|| part(data, 4, len.into()))
}

/// What a page is about.
pub(super) fn name(code: u8) -> &'static str {
    match code {
        0x00 => "supported pages",
        0x80 => "unit serial number",
        0x83 => "device identification",
        0x84 => "software interface identification",
        0x85 => "management network addresses",
        0x86 => "extended INQUIRY data",
        0x87 => "mode page policy",
        0x88 => "SCSI ports",
        0x89 => "ATA information",
        0x8a => "power condition",
        0x8b => "device constituents",
        0x8c => "CFA profile",
        0x8d => "power consumption",
        0x8f => "third-party copy",
        0xb0 => "block limits",
        0xb1 => "block device characteristics",
        0xb2 => "logical block provisioning",
        0xb3 => "referrals",
        0xb4 => "supported block lengths and protection types",
        0xb5 => "block device characteristics extension",
        0xb6 => "zoned block device characteristics",
        0xb7 => "block limits extension",
        0xc0.. => "vendor-specific",
        _ => "unknown",
    }
}

/// A designator (page 83h) or a port's (page 88h).
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Designator {
    of: &'static str,
    kind: &'static str,
    value: String,
}

impl Designator {
    pub(super) fn write(&self, rows: &mut Rows) {
        rows.add(format!("{} {}", self.of, self.kind), &self.value);
    }
}

/// The designation descriptors of a page or port; an incomplete one ends the list.
pub(super) fn designators(mut data: &[u8]) -> Vec<Designator> {
    let mut found = Vec::new();
    while let [code_set, kind, _, len, rest @ ..] = data {
        let Some((bytes, rest)) = rest.split_at_checked(usize::from(*len)) else { break };
        data = rest;
        found.push(designator(code_set & 0x0f, *kind, bytes));
    }
    found
}

fn designator(code_set: u8, kind: u8, bytes: &[u8]) -> Designator {
    let of = match kind >> 4 & 0x03 {
        0 => "unit",
        1 => "port",
        2 => "target",
        _ => "reserved",
    };
    let number = || u16_at(bytes, 2).map_or_else(|| hex(bytes), |number| number.to_string());
    let plain = || if matches!(code_set, 2 | 3) { text(bytes) } else { hex(bytes) };
    let (kind, value) = match kind & 0x0f {
        0x0 => ("vendor-specific name", plain()),
        0x1 => ("T10 name", plain()),
        0x2 => ("EUI-64", format!("eui.{}", hex(bytes))),
        0x3 => ("NAA", format!("naa.{}", hex(bytes))),
        0x4 => ("relative port", number()),
        0x5 => ("port group", number()),
        0x6 => ("unit group", number()),
        0x7 => ("MD5 name", hex(bytes)),
        0x8 => ("SCSI name", text(bytes)),
        0x9 => ("protocol-specific port", hex(bytes)),
        0xa => ("UUID", bytes.get(2..18).map_or_else(|| hex(bytes), uuid)),
        _ => ("reserved name", hex(bytes)),
    };
    Designator { of, kind, value }
}

fn uuid(bytes: &[u8]) -> String {
    let cuts = [(0, 4), (4, 2), (6, 2), (8, 2), (10, 6)];
    cuts.map(|(at, len)| hex(part(bytes, at, len))).join("-")
}

/// A port of the target (page 88h).
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Port {
    relative: u16,
    names: Vec<Designator>,
}

impl Port {
    pub(super) fn write(&self, rows: &mut Rows) {
        let names: Vec<&str> = self.names.iter().map(|name| name.value.as_str()).collect();
        rows.text(&format!("port {}", self.relative), &names.join(", "));
    }
}

/// The ports; an incomplete one ends the list.
pub(super) fn ports(body: &[u8]) -> Vec<Port> {
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(relative), Some(initiator)) = (u16_at(body, at + 2), u16_at(body, at + 6)) {
        let target = at + 8 + usize::from(initiator);
        let Some(len) = u16_at(body, target + 2) else { break };
        found.push(Port { relative, names: designators(part(body, target + 4, len.into())) });
        at = target + 4 + usize::from(len);
    }
    found
}

/// Extended INQUIRY data (page 86h).
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Extended {
    simple_tasks: Option<bool>,
    ordered_tasks: Option<bool>,
    head_of_queue_tasks: Option<bool>,
    volatile_cache: Option<bool>,
    nonvolatile_cache: Option<bool>,
    checks_guard: Option<bool>,
}

impl Extended {
    /// Offsets are those of the body, four less than the standard's.
    pub(super) fn decode(body: &[u8]) -> Extended {
        Extended {
            simple_tasks: bit(body, 1, 0x01),
            ordered_tasks: bit(body, 1, 0x02),
            head_of_queue_tasks: bit(body, 1, 0x04),
            volatile_cache: bit(body, 2, 0x01),
            nonvolatile_cache: bit(body, 2, 0x02),
            checks_guard: bit(body, 0, 0x04),
        }
    }

    pub(super) fn write(&self, rows: &mut Rows) {
        let is = |flag: Option<bool>| flag.unwrap_or(false);
        let tasks = [
            (is(self.simple_tasks), "simple"),
            (is(self.ordered_tasks), "ordered"),
            (is(self.head_of_queue_tasks), "head of queue"),
        ];
        rows.add("task attributes", list(tasks));
        let caches = [(is(self.volatile_cache), "volatile"), (is(self.nonvolatile_cache), "non-volatile")];
        rows.add("kinds of cache", list(caches));
    }
}

/// Block limits (page B0h), in blocks; 0 is no limit reported, or for UNMAP and others not supported.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Limits {
    write_same_zero_blocks_is_refused: Option<bool>,
    compare_and_write_max: Option<u8>,
    transfer_granularity: Option<u16>,
    transfer_max: Option<u32>,
    transfer_optimal: Option<u32>,
    prefetch_max: Option<u32>,
    unmap_blocks_max: Option<u32>,
    unmap_descriptors_max: Option<u32>,
    unmap_granularity: Option<u32>,
    /// `None`: not reported, also where UGAVALID is 0.
    unmap_alignment: Option<u32>,
    write_same_max: Option<u64>,
    atomic_max: Option<u32>,
    atomic_alignment: Option<u32>,
    atomic_granularity: Option<u32>,
}

impl Limits {
    /// Offsets are those of the body.
    pub(super) fn decode(body: &[u8]) -> Limits {
        Limits {
            write_same_zero_blocks_is_refused: bit(body, 0, 0x01),
            compare_and_write_max: u8_at(body, 1),
            transfer_granularity: u16_at(body, 2),
            transfer_max: u32_at(body, 4),
            transfer_optimal: u32_at(body, 8),
            prefetch_max: u32_at(body, 12),
            unmap_blocks_max: u32_at(body, 16),
            unmap_descriptors_max: u32_at(body, 20),
            unmap_granularity: u32_at(body, 24),
            unmap_alignment: u32_at(body, 28)
                .filter(|word| word & 0x8000_0000 != 0)
                .map(|word| word & 0x7fff_ffff),
            write_same_max: u64_at(body, 32),
            atomic_max: u32_at(body, 40),
            atomic_alignment: u32_at(body, 44),
            atomic_granularity: u32_at(body, 48),
        }
    }

    /// In blocks of this size, if it is known.
    pub(super) fn write(&self, rows: &mut Rows, block_bytes: Option<u32>) {
        let blocks = |count: u64| blocks(count, block_bytes);
        let limit = |count: u64, none: &str| if count == 0 { none.to_owned() } else { blocks(count) };
        rows.maybe("longest transfer", self.transfer_max, |n| limit(n.into(), "no limit reported"));
        rows.maybe("optimal transfer", self.transfer_optimal, |n| limit(n.into(), "not reported"));
        rows.maybe("transfer granularity", self.transfer_granularity, |n| limit(n.into(), "not reported"));
        rows.maybe("longest prefetch", self.prefetch_max, |n| limit(n.into(), "no limit reported"));
        rows.maybe("COMPARE AND WRITE", self.compare_and_write_max, |n| match n {
            0 => "not supported".into(),
            n => format!("up to {}", blocks(n.into())),
        });
        rows.maybe("UNMAP", self.unmap_blocks_max, |most| {
            let descriptors = match self.unmap_descriptors_max {
                None | Some(u32::MAX) => "any number of ranges".into(),
                Some(1) => "1 range".into(),
                Some(n) => format!("{n} ranges"),
            };
            match most {
                0 => "not supported".into(),
                u32::MAX => format!("any length, {descriptors}"),
                n => format!("up to {}, {descriptors}", blocks(n.into())),
            }
        });
        rows.maybe("unmap granularity", self.unmap_granularity, |n| limit(n.into(), "not reported"));
        rows.maybe("unmap alignment", self.unmap_alignment, |n| format!("block {n}"));
        rows.maybe("longest WRITE SAME", self.write_same_max, |n| limit(n, "no limit reported"));
        rows.maybe("WRITE SAME of 0 blocks", self.write_same_zero_blocks_is_refused, |refused| {
            if refused { "refused" } else { "to the end of the medium" }.into()
        });
        rows.maybe("longest atomic write", self.atomic_max, |n| limit(n.into(), "not supported"));
        if self.atomic_max.is_some_and(|most| most > 0) {
            rows.maybe("atomic alignment", self.atomic_alignment, |n| limit(n.into(), "none"));
            rows.maybe("atomic granularity", self.atomic_granularity, |n| limit(n.into(), "none"));
        }
    }
}

fn blocks(count: u64, block_bytes: Option<u32>) -> String {
    let plural = if count == 1 { "" } else { "s" };
    match block_bytes {
        Some(bytes) => {
            format!("{count} block{plural} ({})", format_size(count.saturating_mul(bytes.into())))
        }
        None => format!("{count} block{plural}"),
    }
}

/// Block device characteristics (page B1h).
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Characteristics {
    rotation_rate: Option<u16>,
    form_factor: Option<u8>,
    zoned: Option<u8>,
}

impl Characteristics {
    /// Offsets are those of the body.
    pub(super) fn decode(body: &[u8]) -> Characteristics {
        Characteristics {
            rotation_rate: u16_at(body, 0),
            form_factor: u8_at(body, 3).map(|byte| byte & 0x0f),
            zoned: u8_at(body, 4).map(|byte| byte >> 4 & 0x03),
        }
    }

    pub(super) fn write(&self, rows: &mut Rows) {
        rows.maybe("medium", self.rotation_rate, |rate| match rate {
            0 => "rotation rate not reported".into(),
            1 => "does not rotate (solid state)".into(),
            0x0401..=0xfffe => format!("{rate} rotations a minute"),
            other => format!("reserved rotation rate {other:04x}h"),
        });
        rows.maybe("form factor", self.form_factor.filter(|factor| *factor != 0), |factor| match factor {
            1 => "5.25 inch".into(),
            2 => "3.5 inch".into(),
            3 => "2.5 inch".into(),
            4 => "1.8 inch".into(),
            5 => "less than 1.8 inch".into(),
            other => format!("reserved ({other})"),
        });
        rows.maybe("zones", self.zoned.filter(|zoned| *zoned != 0), |zoned| match zoned {
            1 => "host aware".into(),
            2 => "device managed".into(),
            other => format!("reserved ({other})"),
        });
    }
}

/// Logical block provisioning (page B2h).
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Provisioning {
    kind: Option<&'static str>,
    unmap: Option<bool>,
    write_same_16_unmaps: Option<bool>,
    write_same_10_unmaps: Option<bool>,
    unmapped_blocks_read: Option<&'static str>,
    anchors: Option<bool>,
    /// The power of two of blocks that thresholds are counted in; 0: none.
    threshold_exponent: Option<u8>,
}

impl Provisioning {
    /// Offsets are those of the body.
    pub(super) fn decode(body: &[u8]) -> Provisioning {
        Provisioning {
            kind: u8_at(body, 2).map(|byte| match byte & 0x07 {
                0 => "thick, or not reported",
                1 => "resource provisioned",
                2 => "thin",
                _ => "reserved",
            }),
            unmap: bit(body, 1, 0x80),
            write_same_16_unmaps: bit(body, 1, 0x40),
            write_same_10_unmaps: bit(body, 1, 0x20),
            unmapped_blocks_read: u8_at(body, 1).map(|byte| match byte >> 2 & 0x07 {
                0 => "as anything",
                2 => "as the provisioning initialization pattern",
                // xx1b (SBC-4 table 284).
                odd if odd & 1 == 1 => "as zeros",
                _ => "reserved",
            }),
            anchors: bit(body, 1, 0x02),
            threshold_exponent: u8_at(body, 0),
        }
    }

    pub(super) fn write(&self, rows: &mut Rows) {
        rows.maybe("provisioning", self.kind, str::to_owned);
        let is = |flag: Option<bool>| flag.unwrap_or(false);
        let ways = [
            (is(self.unmap), "UNMAP"),
            (is(self.write_same_16_unmaps), "WRITE SAME(16)"),
            (is(self.write_same_10_unmaps), "WRITE SAME(10)"),
        ];
        rows.add("unmapped by", list(ways));
        rows.maybe("unmapped blocks read", self.unmapped_blocks_read, str::to_owned);
        rows.maybe("anchored blocks", self.anchors, yes_no);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_as_long_as_it_says_and_the_one_that_was_asked_for() {
        assert_eq!(body(&[0, 0x80, 0, 2, b'a', b'b', b'c'], 0x80), Some(&b"ab"[..]));
        assert_eq!(body(&[0, 0x80, 0xff, 0xff, b'a'], 0x80), Some(&b"a"[..]));
        assert_eq!(body(&[0, 0x00, 0, 1, 0x80], 0x80), None);
        assert_eq!(body(&[0, 0x80, 0], 0x80), None);
    }

    #[test]
    fn designators_are_named() {
        let data = [
            &[0x01, 0x03, 0, 8, 0x33, 1, 2, 3, 4, 5, 6, 7][..],
            &[0x02, 0x01, 0, 8],
            b"LUNETTE ",
            &[0x51, 0x94, 0, 4, 0, 0, 1, 2],
            &[0x53, 0xa8, 0, 8],
            b"iqn.a:b\0",
            &[0x01, 0x0a, 0, 18, 0x10, 0],
            &[0xab; 16],
            // One that is cut off.
            &[0x01, 0x03, 0, 8, 0x33],
        ]
        .concat();
        let shown = Rows::shown(|rows| designators(&data).iter().for_each(|name| name.write(rows)));
        let lines: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "unit NAA naa.3301020304050607",
                "unit T10 name LUNETTE",
                "port relative port 258",
                "target SCSI name iqn.a:b",
                "unit UUID abababab-abab-abab-abab-abababababab",
            ]
        );
    }

    #[test]
    fn ports_have_names() {
        let port = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 12, 0x53, 0x98, 0, 8, b'i', b'q', b'n', 0, 0, 0, 0, 0];
        let data = [&port[..], &port[..10]].concat();
        let found = ports(&data);
        assert_eq!(found.len(), 1);
        assert!(Rows::shown(|rows| found[0].write(rows)).contains("port 1  iqn"));
    }

    #[test]
    fn limits_are_shown_in_blocks_and_bytes() {
        let mut page = vec![0u8; 60];
        page[1] = 8;
        page[4..8].copy_from_slice(&2048u32.to_be_bytes());
        page[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        page[20..24].copy_from_slice(&256u32.to_be_bytes());
        page[28..32].copy_from_slice(&0x8000_0001u32.to_be_bytes());
        let shown = Rows::shown(|rows| Limits::decode(&page).write(rows, Some(512)));
        for expected in [
            "longest transfer        2048 blocks (1 MiB)",
            "optimal transfer        not reported",
            "COMPARE AND WRITE       up to 8 blocks (4 KiB)",
            "UNMAP                   any length, 256 ranges",
            "unmap alignment         block 1",
            "longest atomic write    not supported",
        ] {
            assert!(shown.contains(expected), "{expected}:\n{shown}");
        }
        // The short page of SBC-2: what is not there is not reported.
        let short = Rows::shown(|rows| Limits::decode(&page[..12]).write(rows, None));
        assert!(short.contains("2048 blocks\n") && !short.contains("UNMAP"), "{short}");
    }

    #[test]
    fn provisioning_and_medium_are_in_words() {
        let thin = Provisioning::decode(&[0, 0xe4, 2, 0]);
        let shown = Rows::shown(|rows| thin.write(rows));
        assert!(shown.contains("UNMAP, WRITE SAME(16), WRITE SAME(10)"), "{shown}");
        assert!(shown.contains("as zeros") && shown.contains("thin"), "{shown}");
        let medium = |body: &[u8]| Rows::shown(|rows| Characteristics::decode(body).write(rows));
        assert!(medium(&[0, 1, 0, 0x03]).contains("solid state"));
        assert!(medium(&[0x1c, 0x20, 0, 0x03]).contains("7200 rotations"));
        assert_eq!(medium(&[]), "");
    }
}
