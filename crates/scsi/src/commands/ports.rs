//! REPORT TARGET PORT GROUPS and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 sections 6.37 and 6.36).

use crate::commands::admission::Admission;
use crate::commands::answer::Answer;
use crate::commands::step::Env;
use crate::state::unit::Port;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::{ReportSupportedFunctions, ReportTargetPortGroups};
use wire::scsi::parameters::{GroupPort, PortGroup};

/// ATS, ATSS, CTSS, LURS and TRS: ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, target resets.
const FUNCTIONS: u8 = 0x80 | 0x40 | 0x10 | 0x08 | 0x02;

/// PARAMETER DATA FORMAT: with an extended header, whose format is this and whose implicit transition time is none.
const EXTENDED: u8 = 1;
const EXTENDED_HEADER: [u8; 4] = [EXTENDED << 4, 0, 0, 0];

/// REPORT TARGET PORT GROUPS.
pub(crate) fn groups<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(ReportTargetPortGroups::FORMAT) > EXTENDED {
        return Err(Check::cdb_field(ReportTargetPortGroups::FORMAT).into());
    }
    Ok(P::from(Answer::new(*cdb, cdb.get(ReportTargetPortGroups::ALLOCATION), build_groups)))
}

fn build_groups(env: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    let mut body = Vec::new();
    let mut ports: Vec<&Port> = env.nexus.ports(&env.view.unit).collect();
    ports.sort_by_key(|port| port.group);
    for members in ports.chunk_by(|one, other| one.group == other.group) {
        let group = members.first().map_or(0, |port| port.group);
        let ports = u8::try_from(members.len()).unwrap_or(u8::MAX);
        // Active/optimized is the one state that a group is ever in.
        let group = PortGroup { can_be_optimized: true, group, ports, ..PortGroup::ZERO };
        body.extend_from_slice(&group.to_bytes());
        for port in members.iter().take(usize::from(ports)) {
            body.extend_from_slice(&GroupPort { relative_id: port.relative_id }.to_bytes());
        }
    }
    let extended: &[u8] =
        if cdb.get(ReportTargetPortGroups::FORMAT) == EXTENDED { &EXTENDED_HEADER } else { &[] };
    let len = body.len().saturating_add(extended.len());
    data.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
    data.extend_from_slice(extended);
    data.extend_from_slice(&body);
    Ok(())
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub(crate) fn functions<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let cdb = admission.cdb();
    let allocation = cdb.get(ReportSupportedFunctions::ALLOCATION);
    if allocation < 4 {
        return Err(Check::cdb_field(ReportSupportedFunctions::ALLOCATION).into());
    }
    Ok(P::from(Answer::new(*cdb, allocation, build_functions)))
}

/// REPD asks for the extended form, without timeouts.
fn build_functions(_: &mut Env<'_>, cdb: &Cdb, data: &mut Vec<u8>) -> Result<(), Failure> {
    if !cdb.get(ReportSupportedFunctions::EXTENDED) {
        data.extend_from_slice(&[FUNCTIONS, 0, 0, 0]);
    } else {
        data.extend_from_slice(&[FUNCTIONS, 0, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use wire::scsi::command::{Inquiry, ReportSupportedFunctions, ReportTargetPortGroups};

    #[test]
    fn groups_hold_their_ports() {
        let mut bench = Bench::new();
        let body = [0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2];
        let data = bench.read(ReportTargetPortGroups::new(256)).assert_good().data.clone();
        assert_eq!(data, [&[0, 0, 0, 24][..], &body].concat());
        let data = bench
            .read(ReportTargetPortGroups { format: 1, ..ReportTargetPortGroups::new(256) })
            .assert_good()
            .data
            .clone();
        assert_eq!(data, [&[0, 0, 0, 28, 0x10, 0, 0, 0][..], &body].concat());
    }

    #[test]
    fn ports_that_are_hidden_from_an_initiator_are_reported_to_others_alone() {
        let mut bench = Bench::new();
        let mut pages = || {
            [0, 1].map(|nexus| {
                bench.run(nexus, Inquiry::page(0x88, 1024), &[], 1024).assert_good().data.clone()
            })
        };
        let [all, same] = pages();
        assert!(all == same && all.len() > 4);
        bench.nexuses[1].hidden_ports = [2].into();
        let mut pages = || {
            [0, 1].map(|nexus| {
                bench.run(nexus, Inquiry::page(0x88, 1024), &[], 1024).assert_good().data.clone()
            })
        };
        let [first, second] = pages();
        assert!(first == all && all[4..].starts_with(&second[4..]) && second.len() < all.len());
        let groups = bench.run(1, ReportTargetPortGroups::new(256), &[], 256).assert_good().data.clone();
        assert_eq!(groups, [0, 0, 0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]);
    }

    #[test]
    fn functions_in_both_forms() {
        let mut bench = Bench::new();
        let report =
            |extended, len| ReportSupportedFunctions { extended, ..ReportSupportedFunctions::new(len) };
        assert_eq!(bench.read(report(false, 4)).assert_good().data, [0xda, 0, 0, 0]);
        assert_eq!(bench.read(report(true, 16)).assert_good().data.len(), 16);
        bench.read(report(false, 3)).assert_invalid_field(6);
    }
}
