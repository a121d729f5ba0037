//! The data of the REPORT commands: units, port groups, commands (SPC-4 sections 6.33 to 6.37).

use super::data::{part, u8_at, u16_at, u32_at};
use super::rows::Rows;
use serde::Serialize;
use wire::scsi::{AccessState, lun, opcode};

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
    match (AccessState::of_code(code), code) {
        (Some(state), _) => state.name(),
        // Other targets may have what ours does not.
        (None, 0x4) => "logical block dependent",
        (None, 0xe) => "offline",
        (None, _) => "reserved",
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

/// A supported command.
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

/// REPORT LUNS: the units' numbers, in URL syntax where one level of addressing is enough; others in
/// hexadecimal.
pub(super) fn luns(data: &[u8]) -> Option<Vec<String>> {
    let shown = |lun| lun::number(lun).map_or_else(|| format!("{lun:016x}h"), |number| number.to_string());
    lun::list(data).map(|luns| luns.map(shown).collect())
}

fn name(opcode: u8, service_action: Option<u16>) -> &'static str {
    match opcode::name(opcode, service_action) {
        Some(name) => name,
        None if opcode >= opcode::VENDOR_SPECIFIC => "(vendor-specific)",
        None => "(unknown)",
    }
}

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
