//! `lunette inquiry`: what a unit reports about itself, in readable form. The decoders in the modules below
//! are functions that handle any bytes.

mod capacity;
mod data;
mod export;
mod modes;
mod pages;
mod reports;
mod rows;
mod standard;

pub(crate) use data::printable;
pub(crate) use rows::Rows;

use crate::{Failure, print, unprinted};
use capacity::Capacity;
use clap::Args;
use config::{NbdUrl, Url};
use initiator::client::{CommandError, Reply};
use initiator::{Client, Options};
use modes::ModeReport;
use pages::{Characteristics, Designator, Extended, Limits, Port, Provisioning};
use reports::{Group, Supported};
use serde::Serialize;
use standard::InquiryData;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};
use wire::scsi::inquiry::qualifier;
use wire::scsi::status::{BUSY, GOOD, TASK_SET_FULL};
use wire::scsi::vpd::{self, page};
use wire::scsi::{Command, command, mode};
use wire::{Cdb, SenseKey};

/// Allocation length of each request: more than units report, but not too long for old ones.
const ANSWER_BYTES: u16 = 4096;
/// INQUIRY of old units has one byte for the length (SPC-2).
const STANDARD_BYTES: u16 = 255;
/// How long all requests together may take; the last one may take longer.
const WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug, Args)]
#[command(after_help = "Example: lunette inquiry iscsi://storage1/iqn.2026-11.io.lunette:disk/0")]
pub(crate) struct InquiryArguments {
    /// The unit: iscsi://[USER%SECRET@]HOST[:PORT]/IQN/LUN, the same with iser://, or srp://HOST[:PORT]/GUID/LUN; or an export of
    /// an NBD server: nbd://HOST[:PORT]/EXPORT
    url: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Add every raw answer, in hexadecimal
    #[arg(long)]
    raw: bool,
}

/// What the unit reported.
/// Its fields are the parts of the JSON document.
#[derive(Serialize, Default)]
struct Report {
    url: String,
    identity: Option<InquiryData>,
    /// Why it is not ready; `None`: it is.
    not_ready: Option<String>,
    serial: Option<String>,
    designators: Vec<Designator>,
    capacity: Option<Capacity>,
    limits: Option<Limits>,
    characteristics: Option<Characteristics>,
    provisioning: Option<Provisioning>,
    extended: Option<Extended>,
    modes: Option<ModeReport>,
    ports: Vec<Port>,
    port_groups: Option<Vec<Group>>,
    luns: Option<Vec<String>>,
    pages: Vec<u8>,
    commands: Option<Vec<Supported>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    raw: Vec<Answer>,
}

/// A raw answer.
#[derive(Serialize)]
struct Answer {
    command: String,
    /// In hexadecimal.
    cdb: String,
    data: String,
}

/// Queries the unit; returns what to print, or what is wrong.
pub(crate) fn run(arguments: &InquiryArguments) -> Result<String, Failure> {
    if NbdUrl::is_meant(&arguments.url) {
        return inquire_export(arguments);
    }
    let url = Url::given(&arguments.url).map_err(|error| Failure::wrong_input(format!("URL: {error}")))?;
    url.check_unit().map_err(|error| {
        Failure::wrong_input(format!("{url}: {error}: `lunette discover iscsi://HOST` lists targets"))
    })?;
    let mut client = Client::connect(&url, &Options::default()).map_err(Failure::failed)?;
    let command = |cdb: Cdb, bytes, patient| match patient {
        true => client.command(cdb, bytes, &[]),
        false => client.command_once(cdb, bytes),
    };
    let mut asker = Asker { command, patient: true, until: Instant::now() + WITHIN, answers: Vec::new() };
    let mut report = asker.report().map_err(|error| Failure::failed(format!("{url}: {error}")))?;
    report.url = url.to_string();
    if arguments.raw {
        report.raw = asker.answers;
    }
    let text = if arguments.json { json(&report) } else { report.text() };
    let Some(reason) = &report.not_ready else { return Ok(text) };
    print(&text).map_err(|error| Failure::failed(unprinted(&error)))?;
    Err(Failure::failed(format!("{url}: the unit is not ready: {reason}")))
}

fn inquire_export(arguments: &InquiryArguments) -> Result<String, Failure> {
    let url = NbdUrl::parse(&arguments.url).map_err(|error| Failure::wrong_input(format!("URL: {error}")))?;
    if arguments.raw {
        let why = "--raw shows answers of SCSI units; leave it out for an NBD export";
        return Err(Failure::wrong_input(why.to_owned()));
    }
    let report = export::ask(&url).map_err(|error| Failure::failed(&error))?;
    Ok(if arguments.json { json(&report) } else { report.text() })
}

fn json(report: &impl Serialize) -> String {
    format!("{}\n", serde_json::to_string_pretty(report).unwrap_or_default())
}

struct Asker<C> {
    /// Sends a CDB that reads this many bytes; with `patient`, retries while the target is busy.
    command: C,
    patient: bool,
    until: Instant,
    answers: Vec<Answer>,
}

impl<C: FnMut(Cdb, u32, bool) -> Result<Reply, CommandError>> Asker<C> {
    fn report(&mut self) -> Result<Report, String> {
        let inquiry = self.ask("INQUIRY", command::Inquiry::new(STANDARD_BYTES), STANDARD_BYTES.into())?;
        let identity = inquiry.as_deref().and_then(standard::decode).ok_or("no answer to INQUIRY")?;
        let mut report = Report::default();
        self.query_luns(&mut report)?;
        if identity.peripheral_qualifier == qualifier::NO_UNIT {
            let known = report.luns.unwrap_or_default().join(", ");
            return Err(format!("there is no unit at this LUN; the target reports LUNs {known}"));
        }
        report.not_ready = self.not_ready();
        // Commands that need the medium would wait for it.
        self.patient = report.not_ready.is_none();
        report.pages = self.page(page::SUPPORTED)?.map_or_else(Vec::new, |page| vpd::body(&page).to_vec());
        self.query_pages(&mut report)?;
        if identity.is_disk() {
            self.query_disk(&mut report)?;
        }
        self.query_modes_and_reports(&mut report)?;
        report.identity = Some(identity);
        Ok(report)
    }

    /// The result of TEST UNIT READY, unless the unit is ready, or is so for others (such as with a
    /// reservation).
    fn not_ready(&mut self) -> Option<String> {
        let reply = match (self.command)(command::TestUnitReady {}.to_cdb(), 0, false) {
            Ok(reply) if [BUSY, TASK_SET_FULL].contains(&reply.status) => return Some("it is busy".into()),
            Ok(reply) => reply,
            Err(error) => return Some(format!("TEST UNIT READY: {error}")),
        };
        let sense = reply.sense.filter(|sense| match sense.key() {
            Some(SenseKey::NotReady | SenseKey::MediumError | SenseKey::HardwareError) => true,
            Some(_) | None => false,
        });
        sense.map(|sense| sense.to_string())
    }

    fn query_luns(&mut self, report: &mut Report) -> Result<(), String> {
        let bytes = ANSWER_BYTES.into();
        let luns = self.ask("REPORT LUNS", command::ReportLuns::new(bytes), bytes)?;
        report.luns = luns.as_deref().and_then(reports::luns);
        Ok(())
    }

    fn query_pages(&mut self, report: &mut Report) -> Result<(), String> {
        // Including pages that are only shown raw.
        let codes: BTreeSet<u8> =
            report.pages.iter().copied().filter(|code| *code != page::SUPPORTED).collect();
        for code in codes {
            let Some(page) = self.page(code)? else { continue };
            let body = vpd::body(&page);
            match code {
                page::SERIAL_NUMBER => report.serial = Some(printable(body)),
                page::IDENTIFICATION => report.designators = pages::designators(body),
                page::EXTENDED_INQUIRY => report.extended = Some(Extended::decode(&page)),
                page::PORTS => report.ports = pages::ports(body),
                page::BLOCK_LIMITS => report.limits = Some(Limits::decode(&page)),
                page::CHARACTERISTICS => report.characteristics = Some(Characteristics::decode(&page)),
                page::PROVISIONING => report.provisioning = Some(Provisioning::decode(&page)),
                _ => {}
            }
        }
        Ok(())
    }

    fn query_disk(&mut self, report: &mut Report) -> Result<(), String> {
        let capacity = self.ask("READ CAPACITY(16)", command::ReadCapacity16::new(32), 32)?;
        report.capacity = capacity.as_deref().and_then(capacity::decode_16);
        if report.capacity.is_none() {
            let short = self.ask("READ CAPACITY(10)", command::ReadCapacity10::new(), 8)?;
            report.capacity = short.as_deref().and_then(capacity::decode_10);
        }
        Ok(())
    }

    fn query_modes_and_reports(&mut self, report: &mut Report) -> Result<(), String> {
        let all = ANSWER_BYTES.into();
        // With their current values, without block descriptors.
        let pages = command::ModeSense10 {
            no_descriptors: true,
            ..command::ModeSense10::new(mode::page::ALL, ANSWER_BYTES)
        };
        let long = self.ask("MODE SENSE(10)", pages, all)?;
        report.modes = long.as_deref().and_then(modes::decode_10);
        if report.modes.is_none() {
            let pages = command::ModeSense6 {
                no_descriptors: true,
                ..command::ModeSense6::new(mode::page::ALL, u8::MAX)
            };
            let short = self.ask("MODE SENSE(6)", pages, u8::MAX.into())?;
            report.modes = short.as_deref().and_then(modes::decode_6);
        }
        let groups = self.ask("REPORT TARGET PORT GROUPS", command::ReportTargetPortGroups::new(all), all)?;
        report.port_groups = groups.as_deref().and_then(reports::groups);
        let commands = self.ask(
            "REPORT SUPPORTED OPERATION CODES",
            command::ReportSupportedOperationCodes::new(all),
            all,
        )?;
        report.commands = commands.as_deref().and_then(reports::commands);
        Ok(())
    }

    /// A page of vital product data, in the length that it reports.
    fn page(&mut self, code: u8) -> Result<Option<Vec<u8>>, String> {
        let name = format!("INQUIRY, page {code:02x}h");
        let data = self.ask(&name, command::Inquiry::page(code, ANSWER_BYTES), ANSWER_BYTES.into())?;
        Ok(data.and_then(|data| vpd::part(&data, code).map(<[u8]>::to_vec)))
    }

    /// The answer to a command; `None` when the unit refuses it.
    fn ask(&mut self, name: &str, command: impl Command, bytes: u32) -> Result<Option<Vec<u8>>, String> {
        let cdb = command.to_cdb();
        if Instant::now() >= self.until {
            let asked = self.answers.len();
            return Err(format!(
                "{name}: not requested, since the first {asked} answers took more than {} s: is the target overloaded?",
                WITHIN.as_secs()
            ));
        }
        match (self.command)(cdb, bytes, self.patient) {
            Ok(reply) if reply.status == GOOD => {
                let (cdb, data) = (data::hex(cdb.as_bytes()), data::hex(&reply.data));
                self.answers.push(Answer { command: name.to_owned(), cdb, data });
                Ok(Some(reply.data))
            }
            Ok(_) => Ok(None),
            Err(error @ (CommandError::Lost(_) | CommandError::TooLong)) => Err(format!("{name}: {error}")),
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let mut rows = Rows::default();
        rows.title(&self.url);
        if let Some(identity) = &self.identity {
            identity.write(&mut rows);
        }
        rows.add("ready", self.not_ready.as_ref().map_or("yes".into(), |reason| format!("no: {reason}")));
        if let Some(serial) = &self.serial {
            rows.text("serial number", serial);
        }
        if !self.designators.is_empty() {
            rows.title("Names");
            self.designators.iter().for_each(|name| name.write(&mut rows));
        }
        self.write_geometry(&mut rows);
        if let Some(modes) = &self.modes {
            rows.title("Modes");
            modes.write(&mut rows);
        }
        if let Some(extended) = &self.extended {
            extended.write(&mut rows);
        }
        self.write_ports(&mut rows);
        if !self.pages.is_empty() {
            rows.title("Pages of vital product data");
            self.pages.iter().for_each(|code| rows.add(format!("{code:02x}h"), page::name(*code)));
        }
        rows.title("Commands");
        match &self.commands {
            Some(commands) => commands.iter().for_each(|command| command.write(&mut rows)),
            None => rows.add("not reported", "REPORT SUPPORTED OPERATION CODES is not supported"),
        }
        let mut text = rows.finish();
        self.write_raw(&mut text);
        text
    }

    fn write_geometry(&self, rows: &mut Rows) {
        let Some(capacity) = &self.capacity else { return };
        rows.title("Geometry");
        capacity.write(rows);
        if let Some(characteristics) = &self.characteristics {
            characteristics.write(rows);
        }
        if let Some(provisioning) = &self.provisioning {
            provisioning.write(rows);
        }
        if let Some(limits) = &self.limits {
            rows.title("Limits");
            limits.write(rows, Some(capacity.block_bytes));
        }
    }

    fn write_ports(&self, rows: &mut Rows) {
        rows.title("Target");
        if let Some(luns) = &self.luns {
            rows.text("LUNs", &luns.join(", "));
        }
        self.ports.iter().for_each(|port| port.write(rows));
        self.port_groups.iter().flatten().for_each(|group| group.write(rows));
    }

    /// Lines of 32 bytes.
    fn write_raw(&self, text: &mut String) {
        for Answer { command, cdb, data } in &self.raw {
            // Writing to a string cannot fail; hexadecimal digits are ASCII.
            let _ = writeln!(text, "\n{command}, CDB {cdb}");
            for (line, bytes) in data.as_bytes().chunks(64).enumerate() {
                let _ = writeln!(text, "  {:04x}  {}", line * 32, String::from_utf8_lossy(bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::Sense;
    use wire::scsi::opcode;

    /// Everything that can be decoded from some bytes, as text and as JSON.
    fn decode_all(bytes: &[u8]) -> Report {
        let page = vpd::part(bytes, bytes.get(1).copied().unwrap_or(0)).unwrap_or(bytes);
        let body = vpd::body(page);
        Report {
            identity: standard::decode(bytes),
            serial: Some(printable(bytes)),
            designators: pages::designators(body),
            capacity: capacity::decode_16(bytes).or_else(|| capacity::decode_10(bytes)),
            limits: Some(Limits::decode(page)),
            characteristics: Some(Characteristics::decode(page)),
            provisioning: Some(Provisioning::decode(page)),
            extended: Some(Extended::decode(page)),
            modes: modes::decode_10(bytes).or_else(|| modes::decode_6(bytes)),
            ports: pages::ports(body),
            port_groups: reports::groups(bytes),
            luns: reports::luns(bytes),
            pages: page.to_vec(),
            commands: reports::commands(bytes),
            ..Report::default()
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let pairs = hex.as_bytes().chunks(2).map(|pair| String::from_utf8_lossy(pair).into_owned());
        pairs.map(|pair| u8::from_str_radix(&pair, 16).expect("hexadecimal digits")).collect()
    }

    /// Answers of tgt 1.0.85, as it sent them.
    #[test]
    fn a_unit_of_tgt_is_understood() {
        let inquiry = bytes(
            "000005123d00000249455420202020205649525455414c2d4449534b2020202030303031\
             0000000000000000000000000000000000000000000004c0096003000000",
        );
        let names = bytes(
            "0083004802010024494554202020202030303031303030310000000000000000000000000000\
             0000000000000103000830000001000000010103001060000000000000000e00000000010001",
        );
        let modes = bytes(
            "00640010000000000000020e8080000a0000000000000000000008121400ffff0000ffffffff\
             80140000000000000a0a021000000000000002004a01001c0400000000000000000000000000\
             00000000000000000000000000001c0a08000000000000000000",
        );
        let limits = bytes("00b0003c0080");
        let report = Report {
            identity: standard::decode(&inquiry),
            designators: pages::designators(vpd::body(
                vpd::part(&names, page::IDENTIFICATION).expect("the page"),
            )),
            limits: vpd::part(&limits, page::BLOCK_LIMITS).map(Limits::decode),
            capacity: capacity::decode_16(&bytes("000000000001ffff00000200000300000000000000")),
            modes: modes::decode_10(&modes),
            luns: reports::luns(&bytes("000000100000000000000000000000000001000000000000")),
            ..Report::default()
        };
        let text = report.text();
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for expected in [
            "vendor IET",
            "product VIRTUAL-DISK",
            "conforms to SPC-3",
            "standards SBC-3, iSCSI, SPC-3",
            "unit T10 name IET 00010001",
            "unit NAA naa.3000000100000001",
            "unit NAA naa.60000000000000000e00000000010001",
            "capacity 64 MiB (67108864 bytes)",
            "physical blocks 4096 bytes",
            "thin no",
            "COMPARE AND WRITE up to 128 blocks (64 KiB)",
            "write cache on",
            "DPO and FUA yes",
            "write-protected no",
            "LUNs 0, 1",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected} is missing in:\n{text}");
        }
    }

    /// Answers every command with this, and counts commands.
    fn asker(
        answer: &[u8],
        until: Instant,
        count: &mut u32,
    ) -> Asker<impl FnMut(Cdb, u32, bool) -> Result<Reply, CommandError>> {
        let command = move |_: Cdb, _, _| {
            *count += 1;
            Ok(Reply { status: 0, sense: None, data: answer.to_vec() })
        };
        Asker { command, patient: true, until, answers: Vec::new() }
    }

    #[test]
    fn a_page_is_requested_once_however_often_it_is_listed() {
        let mut count = 0;
        let listed = [0x83, 0xb0].repeat(2046);
        let mut report = Report { pages: listed, ..Report::default() };
        asker(&[], Instant::now() + WITHIN, &mut count).query_pages(&mut report).expect("answers");
        assert_eq!(count, 2);
    }

    /// With BUSY, with sense data, and without a target.
    #[test]
    fn a_unit_that_is_busy_or_becoming_ready_is_described_all_the_same() {
        let becoming = Sense::from_bytes(&[0x70, 0, 2, 0, 0, 0, 0, 6, 0, 0, 0, 0, 4, 1]);
        let lost = || Err(CommandError::Lost("gone".into()));
        let refused = |status, sense| Ok(Reply { status, sense, data: Vec::new() });
        for (answer, reason) in [
            (refused(BUSY, None), "it is busy"),
            (refused(2, Some(becoming)), "BECOMING READY"),
            (lost(), "gone"),
        ] {
            let command = |cdb: Cdb, _, patient: bool| match cdb.opcode() {
                opcode::TEST_UNIT_READY => answer.clone(),
                opcode::INQUIRY | opcode::REPORT_LUNS => {
                    Ok(Reply { status: 0, sense: None, data: vec![0; 36] })
                }
                _ => {
                    assert!(!patient, "it waits for the medium");
                    refused(BUSY, None)
                }
            };
            let until = Instant::now() + WITHIN;
            let report =
                Asker { command, patient: true, until, answers: Vec::new() }.report().expect("a report");
            assert!(report.identity.is_some());
            let text = report.not_ready.expect("it is not ready");
            assert!(text.contains(reason), "{text}");
        }
    }

    #[test]
    fn nothing_is_asked_once_the_time_is_over() {
        let mut count = 0;
        let Err(error) = asker(&[0; 36], Instant::now(), &mut count).report() else { panic!("it went on") };
        assert!(error.contains("20 s"), "{error}");
        assert_eq!(count, 0);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let report = decode_all(&bytes);
            prop_assert!(!report.text().contains('\x1b'));
            serde_json::to_string(&report).expect("it is JSON");
        }

        #[test]
        fn no_length_makes_a_decoder_panic(
            bytes in proptest::collection::vec(prop_oneof![Just(0), Just(0xff), Just(1), Just(8)], 0..300)
        ) {
            decode_all(&bytes).text();
        }
    }
}
