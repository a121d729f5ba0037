//! What is played: a script for the guest, and what the host serves meanwhile.

use super::verbs;
use clap::ValueEnum;
use std::time::Duration;

/// SRP on the portal of iSCSI and iSER. The name is also in `guest.sh`.
const SERVE_SRP: &[&str] = &["--srp", "192.0.2.1:3260", "--srp-guid", "024c750000000001"];

/// A script for the guest. Each begins with the same daemon, and a medium of zeros.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Scenario {
    /// Linux's iSCSI initiator: a file system is made, filled, checked and read again.
    IscsiTcp,
    /// The daemon is killed under a load that verifies what it reads, and started again.
    Outage,
    /// Linux's iWARP in software has a link, and the initiators that use it can be loaded.
    Siw,
    /// iSER over it: the same, and the data is read over TCP then.
    Iser,
    /// The daemon is killed under such a load over iSER.
    IserOutage,
    /// SRP over it, with data inside commands: the same, and the data is read over TCP then.
    Srp,
    /// SRP without data inside commands.
    SrpReads,
    /// The daemon is killed under such a load over SRP.
    SrpOutage,
    /// The daemon in the guest, on RoCE in software: iSER, and the data is read over TCP then.
    VerbsIser,
    /// The same with SRP.
    VerbsSrp,
    /// The device is removed under a load over iSER, and comes back.
    VerbsOutage,
    /// `lunette rdma` in the guest, with devices and without.
    VerbsList,
}

impl Scenario {
    pub(super) fn name(self) -> &'static str {
        match self {
            Scenario::IscsiTcp => "iscsi_tcp",
            Scenario::Outage => "outage",
            Scenario::Siw => "siw",
            Scenario::Iser => "iser",
            Scenario::IserOutage => "iser_outage",
            Scenario::Srp => "srp",
            Scenario::SrpReads => "srp_reads",
            Scenario::SrpOutage => "srp_outage",
            Scenario::VerbsIser => "verbs_iser",
            Scenario::VerbsSrp => "verbs_srp",
            Scenario::VerbsOutage => "verbs_outage",
            Scenario::VerbsList => "verbs_list",
        }
    }

    /// What the guest does, in the words of `guest.sh`.
    pub(super) fn script(self) -> &'static str {
        match self {
            Scenario::IscsiTcp => include_str!("../../vm/iscsi_tcp.sh"),
            Scenario::Outage => include_str!("../../vm/outage.sh"),
            Scenario::Siw => include_str!("../../vm/siw.sh"),
            Scenario::Iser => include_str!("../../vm/iser.sh"),
            Scenario::IserOutage => include_str!("../../vm/iser_outage.sh"),
            Scenario::Srp => include_str!("../../vm/srp.sh"),
            Scenario::SrpReads => include_str!("../../vm/srp_reads.sh"),
            Scenario::SrpOutage => include_str!("../../vm/srp_outage.sh"),
            Scenario::VerbsIser => verbs::ISER,
            Scenario::VerbsSrp => verbs::SRP,
            Scenario::VerbsOutage => verbs::OUTAGE,
            Scenario::VerbsList => verbs::LIST,
        }
    }

    /// Further arguments of `lunette serve`, which serves one LUN on 192.0.2.1:3260.
    pub(super) fn serve(self) -> &'static [&'static str] {
        match self {
            Scenario::IscsiTcp | Scenario::Outage | Scenario::Siw | Scenario::Iser | Scenario::IserOutage => {
                &[]
            }
            Scenario::Srp | Scenario::SrpReads | Scenario::SrpOutage => SERVE_SRP,
            Scenario::VerbsIser | Scenario::VerbsSrp | Scenario::VerbsOutage | Scenario::VerbsList => &[],
        }
    }

    /// How long the guest's script may take on a loaded machine.
    pub(super) fn limit(self) -> Duration {
        match self {
            Scenario::IscsiTcp
            | Scenario::Outage
            | Scenario::Iser
            | Scenario::IserOutage
            | Scenario::Srp
            | Scenario::SrpReads
            | Scenario::SrpOutage
            | Scenario::VerbsIser
            | Scenario::VerbsSrp
            | Scenario::VerbsOutage => Duration::from_secs(240),
            Scenario::Siw | Scenario::VerbsList => Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_has_one_name() {
        for scenario in Scenario::value_variants() {
            let value = scenario.to_possible_value().expect("none is hidden");
            assert_eq!(value.get_name(), scenario.name());
        }
    }
}
