//! Vital product data (SPC-4 section 7.8, SBC-4 section 6.6).

use super::data::{hex, part, text, u16_at};
use super::rows::{Rows, list, yes_no};
use config::format_size;
use serde::Serialize;
use wire::scsi::designator::{self, association, code_set, kind};
use wire::scsi::vpd::{self, BlockLimits, ExtendedInquiry, UNMAP_ALIGNMENT_VALID};

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
pub(super) fn designators(list: &[u8]) -> Vec<Designator> {
    designator::designators(list).map(designator).collect()
}

fn designator(found: designator::Designator<'_>) -> Designator {
    let bytes = found.bytes;
    let of = match found.association {
        association::UNIT => "unit",
        association::PORT => "port",
        association::DEVICE => "target",
        _ => "reserved",
    };
    let number = || u16_at(bytes, 2).map_or_else(|| hex(bytes), |number| number.to_string());
    let is_text = matches!(found.code_set, code_set::ASCII | code_set::UTF_8);
    let plain = || if is_text { text(bytes) } else { hex(bytes) };
    let (kind, value) = match found.kind {
        kind::VENDOR_SPECIFIC => ("vendor-specific name", plain()),
        kind::T10_VENDOR_ID => ("T10 name", plain()),
        kind::EUI_64 => ("EUI-64", format!("eui.{}", hex(bytes))),
        kind::NAA => ("NAA", format!("naa.{}", hex(bytes))),
        kind::RELATIVE_PORT => ("relative port", number()),
        kind::PORT_GROUP => ("port group", number()),
        kind::UNIT_GROUP => ("unit group", number()),
        kind::MD5 => ("MD5 name", hex(bytes)),
        kind::SCSI_NAME => ("SCSI name", text(bytes)),
        kind::PROTOCOL_SPECIFIC => ("protocol-specific port", hex(bytes)),
        kind::UUID => ("UUID", bytes.get(2..18).map_or_else(|| hex(bytes), uuid)),
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
    vpd::ports(body).map(|(relative, names)| Port { relative, names: designators(names) }).collect()
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
    pub(super) fn decode(page: &[u8]) -> Extended {
        Extended {
            simple_tasks: ExtendedInquiry::SIMPLE.get(page),
            ordered_tasks: ExtendedInquiry::ORDERED.get(page),
            head_of_queue_tasks: ExtendedInquiry::HEAD_OF_QUEUE.get(page),
            volatile_cache: ExtendedInquiry::VOLATILE_CACHE.get(page),
            nonvolatile_cache: ExtendedInquiry::NONVOLATILE_CACHE.get(page),
            checks_guard: ExtendedInquiry::CHECKS_GUARD.get(page),
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

/// Block limits (page B0h), in blocks; 0 means that no limit is reported, or for UNMAP and others that they
/// are not supported.
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
    pub(super) fn decode(page: &[u8]) -> Limits {
        Limits {
            write_same_zero_blocks_is_refused: BlockLimits::WRITE_SAME_NONZERO.get(page),
            compare_and_write_max: BlockLimits::COMPARE_AND_WRITE_MAX.get(page),
            transfer_granularity: BlockLimits::TRANSFER_GRANULARITY.get(page),
            transfer_max: BlockLimits::TRANSFER_MAX.get(page),
            transfer_optimal: BlockLimits::TRANSFER_OPTIMAL.get(page),
            prefetch_max: BlockLimits::PREFETCH_MAX.get(page),
            unmap_blocks_max: BlockLimits::UNMAP_BLOCKS_MAX.get(page),
            unmap_descriptors_max: BlockLimits::UNMAP_DESCRIPTORS_MAX.get(page),
            unmap_granularity: BlockLimits::UNMAP_GRANULARITY.get(page),
            unmap_alignment: BlockLimits::UNMAP_ALIGNMENT
                .get(page)
                .filter(|word| word & UNMAP_ALIGNMENT_VALID != 0)
                .map(|word| word & !UNMAP_ALIGNMENT_VALID),
            write_same_max: BlockLimits::WRITE_SAME_MAX.get(page),
            atomic_max: BlockLimits::ATOMIC_MAX.get(page),
            atomic_alignment: BlockLimits::ATOMIC_ALIGNMENT.get(page),
            atomic_granularity: BlockLimits::ATOMIC_GRANULARITY.get(page),
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
    pub(super) fn decode(page: &[u8]) -> Characteristics {
        Characteristics {
            rotation_rate: vpd::Characteristics::ROTATION_RATE.get(page),
            form_factor: vpd::Characteristics::FORM_FACTOR.get(page),
            zoned: vpd::Characteristics::ZONED.get(page),
        }
    }

    pub(super) fn write(&self, rows: &mut Rows) {
        rows.maybe("medium", self.rotation_rate, |rate| match rate {
            0 => "rotation rate not reported".into(),
            vpd::SOLID_STATE => "does not rotate (solid state)".into(),
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
    /// The exponent of the number of blocks that is the unit of thresholds; 0: none.
    threshold_exponent: Option<u8>,
}

impl Provisioning {
    pub(super) fn decode(page: &[u8]) -> Provisioning {
        Provisioning {
            kind: vpd::Provisioning::KIND.get(page).map(|kind| match kind {
                0 => "thick, or not reported",
                1 => "resource provisioned",
                vpd::THIN => "thin",
                _ => "reserved",
            }),
            unmap: vpd::Provisioning::UNMAP.get(page),
            write_same_16_unmaps: vpd::Provisioning::WRITE_SAME_16.get(page),
            write_same_10_unmaps: vpd::Provisioning::WRITE_SAME_10.get(page),
            unmapped_blocks_read: vpd::Provisioning::ZEROS.get(page).map(|zeros| match zeros {
                0 => "as anything",
                2 => "as the provisioning initialization pattern",
                // xx1b (SBC-4 table 284).
                odd if odd & 1 == 1 => "as zeros",
                _ => "reserved",
            }),
            anchors: vpd::Provisioning::ANCHORS.get(page),
            threshold_exponent: vpd::Provisioning::THRESHOLD_EXPONENT.get(page),
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
            // A truncated one.
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
        let page = BlockLimits {
            compare_and_write_max: 8,
            transfer_max: 2048,
            unmap_blocks_max: u32::MAX,
            unmap_descriptors_max: 256,
            unmap_alignment: 0x8000_0001,
            ..BlockLimits::default()
        };
        let page = page.to_page();
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
        // The short page of SBC-2: missing fields are not reported.
        let short = Rows::shown(|rows| Limits::decode(&page[..16]).write(rows, None));
        assert!(short.contains("2048 blocks\n") && !short.contains("UNMAP"), "{short}");
    }

    #[test]
    fn provisioning_and_medium_are_described() {
        let thin = Provisioning::decode(&[0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
        let shown = Rows::shown(|rows| thin.write(rows));
        assert!(shown.contains("UNMAP, WRITE SAME(16), WRITE SAME(10)"), "{shown}");
        assert!(shown.contains("as zeros") && shown.contains("thin"), "{shown}");
        let medium = |page: &[u8]| Rows::shown(|rows| Characteristics::decode(page).write(rows));
        assert!(medium(&[0, 0xb1, 0, 4, 0, 1, 0, 0x03]).contains("solid state"));
        assert!(medium(&[0, 0xb1, 0, 4, 0x1c, 0x20, 0, 0x03]).contains("7200 rotations"));
        assert_eq!(medium(&[]), "");
    }
}
