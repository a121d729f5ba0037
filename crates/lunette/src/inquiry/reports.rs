//! What the REPORT commands report: units, port groups, commands (SPC-4 sections 6.33 to 6.37).

use super::data::{part, u8_at, u16_at, u32_at};
use super::rows::Rows;
use serde::Serialize;

/// A target port group.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Group {
    group: u16,
    state: &'static str,
    preferred: bool,
    ports: Vec<u16>,
}

/// REPORT TARGET PORT GROUPS; an incomplete group ends the list.
pub(super) fn groups(data: &[u8]) -> Option<Vec<Group>> {
    let data = part(data, 4, u32_at(data, 0)? as usize);
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(first), Some(group), Some(count)) =
        (u8_at(data, at), u16_at(data, at + 2), u8_at(data, at + 7))
    {
        let ports = (0..usize::from(count)).filter_map(|n| u16_at(data, at + 8 + 4 * n + 2)).collect();
        found.push(Group { group, state: state(first & 0x0f), preferred: first & 0x80 != 0, ports });
        at += 8 + 4 * usize::from(count);
    }
    Some(found)
}

fn state(code: u8) -> &'static str {
    match code {
        0x0 => "active/optimized",
        0x1 => "active/non-optimized",
        0x2 => "standby",
        0x3 => "unavailable",
        0x4 => "logical block dependent",
        0xe => "offline",
        0xf => "transitioning",
        _ => "reserved",
    }
}

impl Group {
    pub(super) fn write(&self, rows: &mut Rows) {
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let preferred = if self.preferred { ", preferred" } else { "" };
        let value = format!("{}{preferred}, ports {}", self.state, ports.join(" "));
        rows.add(format!("port group {}", self.group), value);
    }
}

/// A command that is supported.
#[derive(Serialize, Debug, PartialEq)]
pub(crate) struct Supported {
    opcode: u8,
    service_action: Option<u16>,
    name: &'static str,
}

/// REPORT SUPPORTED OPERATION CODES, all of them; an incomplete descriptor ends the list.
pub(super) fn commands(data: &[u8]) -> Option<Vec<Supported>> {
    let data = part(data, 4, u32_at(data, 0)? as usize);
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(opcode), Some(action), Some(flags), Some(_)) =
        (u8_at(data, at), u16_at(data, at + 2), u8_at(data, at + 5), u8_at(data, at + 7))
    {
        let service_action = (flags & 0x01 != 0).then_some(action);
        found.push(Supported { opcode, service_action, name: name(opcode, service_action) });
        // CTDP: a timeouts descriptor follows.
        at += if flags & 0x02 != 0 { 20 } else { 8 };
    }
    found.sort_by_key(|command| (command.opcode, command.service_action));
    Some(found)
}

impl Supported {
    pub(super) fn write(&self, rows: &mut Rows) {
        let code = match self.service_action {
            None => format!("{:02x}h", self.opcode),
            Some(action) => format!("{:02x}h/{action:02x}h", self.opcode),
        };
        rows.add(code, self.name);
    }
}

/// REPORT LUNS: the units' numbers, as they are written in URLs where one level of addressing is enough.
pub(super) fn luns(data: &[u8]) -> Option<Vec<String>> {
    let data = part(data, 8, u32_at(data, 0)? as usize);
    let (luns, _) = data.as_chunks::<8>();
    Some(luns.iter().map(lun).collect())
}

/// Peripheral and flat space addressing (SAM-5 section 4.7.7); others in hexadecimal.
fn lun(bytes: &[u8; 8]) -> String {
    match *bytes {
        [0, number, 0, 0, 0, 0, 0, 0] => number.to_string(),
        [high @ 0x40..=0x7f, low, 0, 0, 0, 0, 0, 0] => u16::from_be_bytes([high & 0x3f, low]).to_string(),
        other => format!("{:016x}h", u64::from_be_bytes(other)),
    }
}

fn name(opcode: u8, service_action: Option<u16>) -> &'static str {
    let known = NAMES.iter().find(|(code, action, _)| {
        *code == opcode && (action.is_none() || action.map(u16::from) == service_action)
    });
    match known {
        Some((.., name)) => name,
        None if opcode >= 0xc0 => "(vendor-specific)",
        None => "(unknown)",
    }
}

/// SPC-4 table 123, SBC-4 table 32.
const NAMES: &[(u8, Option<u8>, &str)] = &[
    (0x00, None, "TEST UNIT READY"),
    (0x01, None, "REZERO UNIT"),
    (0x03, None, "REQUEST SENSE"),
    (0x04, None, "FORMAT UNIT"),
    (0x07, None, "REASSIGN BLOCKS"),
    (0x08, None, "READ(6)"),
    (0x0a, None, "WRITE(6)"),
    (0x0b, None, "SEEK(6)"),
    (0x12, None, "INQUIRY"),
    (0x15, None, "MODE SELECT(6)"),
    (0x16, None, "RESERVE(6)"),
    (0x17, None, "RELEASE(6)"),
    (0x1a, None, "MODE SENSE(6)"),
    (0x1b, None, "START STOP UNIT"),
    (0x1c, None, "RECEIVE DIAGNOSTIC RESULTS"),
    (0x1d, None, "SEND DIAGNOSTIC"),
    (0x1e, None, "PREVENT ALLOW MEDIUM REMOVAL"),
    (0x25, None, "READ CAPACITY(10)"),
    (0x28, None, "READ(10)"),
    (0x2a, None, "WRITE(10)"),
    (0x2b, None, "SEEK(10)"),
    (0x2e, None, "WRITE AND VERIFY(10)"),
    (0x2f, None, "VERIFY(10)"),
    (0x34, None, "PRE-FETCH(10)"),
    (0x35, None, "SYNCHRONIZE CACHE(10)"),
    (0x37, None, "READ DEFECT DATA(10)"),
    (0x3b, None, "WRITE BUFFER"),
    (0x3c, None, "READ BUFFER"),
    (0x3e, None, "READ LONG(10)"),
    (0x3f, None, "WRITE LONG(10)"),
    (0x41, None, "WRITE SAME(10)"),
    (0x42, None, "UNMAP"),
    (0x48, Some(0x01), "SANITIZE: OVERWRITE"),
    (0x48, Some(0x02), "SANITIZE: BLOCK ERASE"),
    (0x48, Some(0x03), "SANITIZE: CRYPTOGRAPHIC ERASE"),
    (0x48, Some(0x1f), "SANITIZE: EXIT FAILURE MODE"),
    (0x4c, None, "LOG SELECT"),
    (0x4d, None, "LOG SENSE"),
    (0x55, None, "MODE SELECT(10)"),
    (0x56, None, "RESERVE(10)"),
    (0x57, None, "RELEASE(10)"),
    (0x5a, None, "MODE SENSE(10)"),
    (0x5e, Some(0x00), "PERSISTENT RESERVE IN: READ KEYS"),
    (0x5e, Some(0x01), "PERSISTENT RESERVE IN: READ RESERVATION"),
    (0x5e, Some(0x02), "PERSISTENT RESERVE IN: REPORT CAPABILITIES"),
    (0x5e, Some(0x03), "PERSISTENT RESERVE IN: READ FULL STATUS"),
    (0x5f, Some(0x00), "PERSISTENT RESERVE OUT: REGISTER"),
    (0x5f, Some(0x01), "PERSISTENT RESERVE OUT: RESERVE"),
    (0x5f, Some(0x02), "PERSISTENT RESERVE OUT: RELEASE"),
    (0x5f, Some(0x03), "PERSISTENT RESERVE OUT: CLEAR"),
    (0x5f, Some(0x04), "PERSISTENT RESERVE OUT: PREEMPT"),
    (0x5f, Some(0x05), "PERSISTENT RESERVE OUT: PREEMPT AND ABORT"),
    (0x5f, Some(0x06), "PERSISTENT RESERVE OUT: REGISTER AND IGNORE EXISTING KEY"),
    (0x5f, Some(0x07), "PERSISTENT RESERVE OUT: REGISTER AND MOVE"),
    (0x7f, Some(0x09), "READ(32)"),
    (0x7f, Some(0x0a), "VERIFY(32)"),
    (0x7f, Some(0x0b), "WRITE(32)"),
    (0x7f, Some(0x0c), "WRITE AND VERIFY(32)"),
    (0x7f, Some(0x0d), "WRITE SAME(32)"),
    (0x83, Some(0x00), "EXTENDED COPY(LID1)"),
    (0x83, Some(0x01), "EXTENDED COPY(LID4)"),
    (0x83, Some(0x10), "POPULATE TOKEN"),
    (0x83, Some(0x11), "WRITE USING TOKEN"),
    (0x83, Some(0x1c), "COPY OPERATION ABORT"),
    (0x83, None, "EXTENDED COPY"),
    (0x84, Some(0x00), "RECEIVE COPY STATUS(LID1)"),
    (0x84, Some(0x01), "RECEIVE COPY DATA(LID1)"),
    (0x84, Some(0x03), "RECEIVE COPY OPERATING PARAMETERS"),
    (0x84, Some(0x04), "RECEIVE COPY FAILURE DETAILS(LID1)"),
    (0x84, Some(0x05), "RECEIVE COPY STATUS(LID4)"),
    (0x84, Some(0x06), "RECEIVE COPY DATA(LID4)"),
    (0x84, Some(0x07), "RECEIVE ROD TOKEN INFORMATION"),
    (0x84, Some(0x08), "REPORT ALL ROD TOKENS"),
    (0x84, None, "RECEIVE COPY RESULTS"),
    (0x85, None, "ATA PASS-THROUGH(16)"),
    (0x88, None, "READ(16)"),
    (0x89, None, "COMPARE AND WRITE"),
    (0x8a, None, "WRITE(16)"),
    (0x8b, None, "ORWRITE(16)"),
    (0x8e, None, "WRITE AND VERIFY(16)"),
    (0x8f, None, "VERIFY(16)"),
    (0x90, None, "PRE-FETCH(16)"),
    (0x91, None, "SYNCHRONIZE CACHE(16)"),
    (0x93, None, "WRITE SAME(16)"),
    (0x9c, None, "WRITE ATOMIC(16)"),
    (0x9e, Some(0x10), "READ CAPACITY(16)"),
    (0x9e, Some(0x11), "READ LONG(16)"),
    (0x9e, Some(0x12), "GET LBA STATUS"),
    (0x9e, Some(0x13), "REPORT REFERRALS"),
    (0x9f, Some(0x11), "WRITE LONG(16)"),
    (0xa0, None, "REPORT LUNS"),
    (0xa3, Some(0x05), "REPORT IDENTIFYING INFORMATION"),
    (0xa3, Some(0x0a), "REPORT TARGET PORT GROUPS"),
    (0xa3, Some(0x0b), "REPORT ALIASES"),
    (0xa3, Some(0x0c), "REPORT SUPPORTED OPERATION CODES"),
    (0xa3, Some(0x0d), "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS"),
    (0xa3, Some(0x0e), "REPORT PRIORITY"),
    (0xa3, Some(0x0f), "REPORT TIMESTAMP"),
    (0xa4, Some(0x06), "SET IDENTIFYING INFORMATION"),
    (0xa4, Some(0x0a), "SET TARGET PORT GROUPS"),
    (0xa4, Some(0x0f), "SET TIMESTAMP"),
    (0xa8, None, "READ(12)"),
    (0xaa, None, "WRITE(12)"),
    (0xae, None, "WRITE AND VERIFY(12)"),
    (0xaf, None, "VERIFY(12)"),
    (0xb7, None, "READ DEFECT DATA(12)"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_states_and_ports() {
        let data = [0, 0, 0, 24, 0x80, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
        let found = groups(&data).expect("groups");
        let shown = Rows::shown(|rows| found.iter().for_each(|group| group.write(rows)));
        assert_eq!(
            shown,
            "  port group 1  active/optimized, preferred, ports 1\n  port group 2  standby, ports 2\n"
        );
        assert_eq!(groups(&data[..14]).expect("groups").len(), 1);
        assert_eq!(groups(&data[..3]), None);
    }

    #[test]
    fn commands_have_names() {
        let data = [
            &[0, 0, 0, 44, 0x12, 0, 0, 0, 0, 0x02, 0, 6][..],
            &[0; 12],
            &[0x9e, 0, 0, 0x10, 0, 0x01, 0, 16],
            &[0xc1, 0, 0, 0, 0, 0, 0, 6],
            &[0x83, 0, 0, 0x07, 0, 0x01, 0, 16],
            &[0x12, 0],
        ]
        .concat();
        let names: Vec<&str> =
            commands(&data).expect("commands").iter().map(|command| command.name).collect();
        assert_eq!(names, ["INQUIRY", "EXTENDED COPY", "READ CAPACITY(16)", "(vendor-specific)"]);
    }

    #[test]
    fn units_are_numbered_as_in_urls() {
        let data = [
            &[0, 0, 0, 32, 0, 0, 0, 0][..],
            &[0; 8],
            &[0, 7, 0, 0, 0, 0, 0, 0],
            &[0x41, 0, 0, 0, 0, 0, 0, 0],
            &[0xc1, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(luns(&data).expect("units"), ["0", "7", "256", "c100000000000000h"]);
        assert_eq!(luns(&data[..20]).expect("units"), ["0"]);
    }
}
