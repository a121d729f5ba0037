//! `lunette aoe smart`: the health of a disk (ACS-3 section 7.48).

use super::UnitArguments;
use super::unit::Unit;
use crate::Failure;
use crate::inquiry::{Rows, printable};
use serde::Serialize;
use wire::ata::smart::{self, Data, Function, Thresholds};

/// Attributes that report degrees Celsius in the lowest byte of their raw value.
const TEMPERATURES: [u8; 2] = [194, 190];

#[derive(Serialize)]
struct Report {
    url: String,
    model: String,
    serial: String,
    /// No threshold was exceeded; `None`: that is not reported.
    healthy: Option<bool>,
    temperature_celsius: Option<u8>,
    attributes: Vec<Attribute>,
}

#[derive(Serialize)]
struct Attribute {
    id: u8,
    name: Option<&'static str>,
    value: u8,
    worst: u8,
    threshold: Option<u8>,
    raw: u64,
}

pub(super) fn run(asked: &UnitArguments) -> Result<String, Failure> {
    let mut unit = Unit::connect(&asked.url)?;
    let identity = unit.identify()?;
    if !identity.smart.supported {
        return Err(unit.failed("it does not support SMART"));
    }
    if !identity.smart.enabled {
        let remedy = format!("`lunette aoe feature {} smart on` switches it on", unit.url());
        return Err(unit.failed(format!("SMART is disabled; {remedy}")));
    }
    let (end, _) = unit.ata(Function::ReturnStatus.registers(0), "SMART RETURN STATUS")?;
    let (_, data) = unit.ata(Function::ReadData.registers(1), "SMART READ DATA")?;
    let data = Data::decode(&data).ok_or_else(|| unit.failed("it returned invalid SMART data"))?;
    // Obsolete: not all disks have them.
    let thresholds = unit.ata(Function::ReadThresholds.registers(1), "SMART READ THRESHOLDS").ok();
    let thresholds = thresholds.and_then(|(_, page)| Thresholds::decode(&page));
    let attributes = attributes(&data, thresholds.as_ref());
    let report = Report {
        url: unit.url(),
        model: printable(&identity.model),
        serial: printable(&identity.serial),
        healthy: healthy(end.lba),
        temperature_celsius: temperature(&attributes),
        attributes,
    };
    Ok(asked.render(&report, |rows| report.write(rows)))
}

/// The result of SMART RETURN STATUS.
fn healthy(lba: u64) -> Option<bool> {
    if lba == smart::status_lba(lba, false) {
        return Some(true);
    }
    (lba == smart::status_lba(lba, true)).then_some(false)
}

fn attributes(data: &Data, thresholds: Option<&Thresholds>) -> Vec<Attribute> {
    let threshold = |id: u8| {
        let found = thresholds?.thresholds.iter().find(|one| one.id == id)?;
        Some(found.threshold)
    };
    let there = data.attributes.iter().filter(|attribute| attribute.id != 0);
    there
        .map(|attribute| {
            let [a, b, c, d, e, f] = attribute.raw;
            Attribute {
                id: attribute.id,
                name: name(attribute.id),
                value: attribute.current,
                worst: attribute.worst,
                threshold: threshold(attribute.id),
                raw: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            }
        })
        .collect()
}

fn temperature(attributes: &[Attribute]) -> Option<u8> {
    let of = |id: &u8| attributes.iter().find(|attribute| attribute.id == *id);
    let [celsius, ..] = TEMPERATURES.iter().find_map(of)?.raw.to_le_bytes();
    Some(celsius)
}

/// The usual meaning of an attribute, on which nearly all vendors agree.
fn name(id: u8) -> Option<&'static str> {
    Some(match id {
        1 => "read errors",
        3 => "spin-up time",
        4 => "starts and stops",
        5 => "reallocated sectors",
        7 => "seek errors",
        9 => "power-on hours",
        10 => "spin-up retries",
        12 => "power cycles",
        170 => "spare blocks",
        171 => "program failures",
        172 => "erase failures",
        173 => "erase cycles",
        174 | 192 => "unexpected power losses",
        177 => "wear",
        183 => "interface downshifts",
        184 => "end-to-end errors",
        187 => "uncorrectable errors",
        188 => "command timeouts",
        190 | 194 => "temperature",
        193 => "head loads",
        196 => "reallocations",
        197 => "pending sectors",
        198 => "uncorrectable sectors",
        199 => "transfer errors",
        231 => "life left",
        233 => "wear-out",
        241 => "written",
        242 => "read",
        _ => return None,
    })
}

impl Report {
    fn write(&self, rows: &mut Rows) {
        rows.text("model", &self.model);
        rows.text("serial number", &self.serial);
        let health = match self.healthy {
            Some(true) => "well",
            Some(false) => "about to fail: back up its data",
            None => "not reported",
        };
        rows.add("health", health);
        if let Some(celsius) = self.temperature_celsius {
            rows.add("temperature", format!("{celsius} \u{b0}C"));
        }
        if self.attributes.is_empty() {
            return rows.add("attributes", "none");
        }
        rows.title("Attributes");
        self.attributes.iter().for_each(|attribute| attribute.write(rows));
    }
}

impl Attribute {
    fn write(&self, rows: &mut Rows) {
        let Attribute { id, name, value, worst, threshold, raw } = self;
        let name = name.map_or(String::new(), |name| format!(" {name}"));
        let limit = threshold.filter(|threshold| *threshold > 0);
        let limit = limit.map_or(String::new(), |threshold| {
            let is_past = if *value <= threshold { ", exceeded" } else { "" };
            format!(", threshold {threshold}{is_past}")
        });
        // Above the temperature may be its minimum and maximum.
        let raw = match raw.to_le_bytes() {
            [celsius, ..] if TEMPERATURES.contains(id) => format!("{celsius} \u{b0}C"),
            _ => raw.to_string(),
        };
        rows.add(format!("{id}{name}"), format!("{raw} (value {value}, worst {worst}{limit})"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (Data, Thresholds) {
        let (mut data, mut thresholds) = (Data::new(), Thresholds::new());
        let of = |id, current, raw| smart::Attribute { id, current, worst: 90, raw, ..Default::default() };
        data.attributes[0] = of(5, 10, [7, 1, 0, 0, 0, 0]);
        data.attributes[3] = of(194, 64, [36, 0, 20, 0, 40, 0]);
        data.attributes[4] = of(250, 100, [0; 6]);
        thresholds.thresholds[9] = smart::Threshold { id: 5, threshold: 10, ..Default::default() };
        (data, thresholds)
    }

    #[test]
    fn a_disk_is_described_in_words() {
        let (data, thresholds) = disk();
        let attributes = attributes(&data, Some(&thresholds));
        let report = Report {
            url: "aoe://eth0/1.1".into(),
            model: "disk".into(),
            serial: String::new(),
            healthy: healthy(0x002c_f401),
            temperature_celsius: temperature(&attributes),
            attributes,
        };
        let mut rows = Rows::default();
        report.write(&mut rows);
        let expected = "  model          disk
  serial number  (none)
  health         about to fail: back up its data
  temperature    36 \u{b0}C

Attributes
  5 reallocated sectors  263 (value 10, worst 90, threshold 10, exceeded)
  194 temperature        36 \u{b0}C (value 64, worst 90)
  250                    0 (value 100, worst 90)
";
        assert_eq!(rows.finish(), expected);
        assert_eq!((healthy(0x00c2_4f00), healthy(0)), (Some(true), None));
    }

    #[test]
    fn a_disk_without_attributes_reports_its_health() {
        assert!(attributes(&Data::new(), None).is_empty());
        assert_eq!(temperature(&[]), None);
    }
}
