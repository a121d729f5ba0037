//! SCSI target ports of a configuration: one for each protocol in each portal group of a target. iSCSI over
//! TCP and iSER count as one protocol here.

use super::model::{Config, Portal, Target};
use std::collections::BTreeMap;

/// A target port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetPort {
    /// Index of its target.
    pub target: usize,
    /// Target portal group tag.
    pub group: u16,
    /// An SRP port, otherwise an iSCSI one.
    pub is_srp: bool,
}

impl Config {
    /// The target that SRP reaches through a portal: the first that has it.
    pub fn srp_target(&self, portal: usize) -> Option<usize> {
        srp_target(&self.targets, portal)
    }

    /// All target ports, by target and group.
    pub fn target_ports(&self) -> Vec<TargetPort> {
        target_ports(&self.portals, &self.targets)
    }
}

fn srp_target(targets: &[Target], portal: usize) -> Option<usize> {
    targets.iter().position(|target| target.portals.contains(&portal))
}

pub(super) fn target_ports(portals: &[Portal], targets: &[Target]) -> Vec<TargetPort> {
    let mut ports = Vec::new();
    for (target, settings) in targets.iter().enumerate() {
        let mut groups = BTreeMap::<u16, (bool, bool)>::new();
        for portal in &settings.portals {
            let (group, transports) = (portals[*portal].group, portals[*portal].transports);
            let (iscsi, srp) = groups.entry(group).or_default();
            *iscsi |= transports.any_iscsi();
            *srp |= transports.srp && srp_target(targets, *portal) == Some(target);
        }
        for (group, (iscsi, srp)) in groups {
            let is_there = [(false, iscsi), (true, srp)].into_iter().filter(|(_, is_there)| *is_there);
            ports.extend(is_there.map(|(is_srp, _)| TargetPort { target, group, is_srp }));
        }
    }
    ports
}
