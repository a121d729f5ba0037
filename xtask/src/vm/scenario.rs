//! The scenarios: a script for the guest, and what the host serves meanwhile.

use super::{gateways, verbs};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::time::Duration;

/// A script for the guest. Each starts with the same daemon, and a medium of zeros.
pub(super) struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What the guest does, using the functions of `guest.sh`.
    pub script: &'static str,
    /// Further arguments of `lunette serve`, which serves one LUN on 192.0.2.1:3260.
    pub serve: &'static [&'static str],
    /// Further options of that LUN.
    pub lun: &'static str,
    /// The MTU of the guest's network.
    pub mtu: u16,
    /// How long the guest's script may take on a loaded machine.
    pub limit: Duration,
    /// When it is run.
    pub tier: Tier,
    /// Whether the guest's network traffic is recorded, for test vectors.
    pub is_captured: bool,
    /// Whether the daemon runs in the guest.
    pub is_inside: bool,
    /// How two gateways share the Ceph image that they serve it, instead of one daemon.
    pub access: Option<&'static str>,
}

/// When a scenario is run. Each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// `cargo xtask test`.
    Test,
    /// `cargo xtask vm` without a name, and `cargo xtask soak`.
    Soak,
    /// `cargo xtask vm NAME`.
    ByName,
}

/// The shortest default scenario comes last, so that two at a time end together.
const SCENARIOS: &[Scenario] = &[
    // One unit over TCP, iSER and SRP at once: paths are cut, I/O continues over the others, and they
    // recover.
    Scenario {
        serve: &["--srp", "192.0.2.3:3260", "--srp-guid", "024c750000000001"],
        ..scenario("multipath", include_str!("../../vm/multipath.sh"))
    },
    // Each of Linux's initiators in turn (iSCSI, iSER and SRP over siw, AoE): a file system is made, filled
    // and checked, and the next one reads it. Then the daemon is killed under a load that verifies what it
    // reads, and restarted.
    Scenario {
        serve: &["--srp", "192.0.2.1:3260", "--srp-guid", "024c750000000001", "--aoe", "tap0"],
        lun: ",aoe=1.1",
        tier: Tier::Test,
        limit: Duration::from_secs(600),
        ..scenario("initiators", include_str!("../../vm/initiators.sh"))
    },
    // SRP without data inside commands.
    scenario("srp_reads", include_str!("../../vm/srp_reads.sh")).srp(),
    // The daemon is killed under a load over iSER, and restarted.
    scenario("iser_outage", include_str!("../../vm/iser_outage.sh")),
    // The same over SRP.
    scenario("srp_outage", include_str!("../../vm/srp_outage.sh")).srp(),
    // AoE in jumbo frames: a file system is made, filled and read again; then the daemon is killed under a
    // load, and restarted.
    Scenario {
        serve: &["--aoe", "tap0"],
        lun: ",aoe=1.1",
        mtu: 9000,
        ..scenario("aoe_jumbo", include_str!("../../vm/aoe_jumbo.sh"))
    },
    // The daemon in the guest: LUNs are added and grow, and thin ones reach their limits, under Linux's iSCSI
    // initiator and sg3_utils.
    verbs::LIVE,
    // The daemon in the guest, with two portals as paths of different priority: dm-multipath with ALUA
    // follows their states, set by the administrator's command and by SET TARGET PORT GROUPS, and a portal is
    // drained under a load.
    verbs::ALUA,
    // Two gateways that share a Ceph image, under dm-multipath with ALUA: each dies, hangs and is cut off
    // under a file system.
    gateways::ONE,
    // The same with gateways that are both active.
    gateways::ALL,
    // The daemon in the guest, on software RoCE: iSER, after which the data is read over TCP.
    verbs::ISER,
    // The same with SRP.
    verbs::SRP,
    // The same with descriptors that the daemon has to fetch first.
    verbs::TABLES,
    // The same on software iWARP: SRP, after which the data is read over iSER, and iSER.
    verbs::SIW,
    // The device is removed under a load over iSER, and comes back.
    verbs::OUTAGE,
    // `lunette rdma` in the guest, with devices and without.
    verbs::LIST,
    // Linux's software iWARP has a link, and the initiators that use it can be loaded.
    scenario("siw", include_str!("../../vm/siw.sh")),
    // The frames of a few commands over iSER and SRP.
    Scenario {
        tier: Tier::ByName,
        is_captured: true,
        ..scenario("frames", include_str!("../../vm/frames.sh")).srp()
    },
    // A measurement for comparison with the reports', over each transport.
    Scenario {
        tier: Tier::ByName,
        limit: Duration::from_secs(1200),
        ..scenario("reports", include_str!("../../vm/reports.sh")).srp()
    },
];

pub(super) const fn scenario(name: &'static str, script: &'static str) -> Scenario {
    Scenario {
        name,
        script,
        serve: &[],
        lun: "",
        mtu: 1500,
        limit: Duration::from_secs(240),
        tier: Tier::Soak,
        is_captured: false,
        is_inside: false,
        access: None,
    }
}

impl Scenario {
    /// All scenarios.
    pub(super) fn all() -> impl Iterator<Item = &'static Scenario> {
        SCENARIOS.iter()
    }

    /// Parses a scenario's name on the command line.
    pub(super) fn parser() -> impl TypedValueParser<Value = &'static Scenario> {
        let names = PossibleValuesParser::new(Scenario::all().map(|scenario| scenario.name));
        names.map(|name| {
            Scenario::all().find(|scenario| scenario.name == name).expect("the names are of these")
        })
    }

    /// Adds SRP to the portal of iSCSI and iSER. The name is also in `guest.sh`.
    const fn srp(self) -> Scenario {
        Scenario { serve: &["--srp", "192.0.2.1:3260", "--srp-guid", "024c750000000001"], ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_has_one_name() {
        let mut names: Vec<&str> = Scenario::all().map(|scenario| scenario.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Scenario::all().count());
    }
}
