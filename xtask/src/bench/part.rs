//! The parts of the measurement. Each has its own plan, results and record.

use super::goals::{Goal, goals};
use super::results::Results;
use super::{aoe, peer, plan, transports};
use crate::instructions::Figures;

/// What is measured in one run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// iSCSI over TCP against its ceiling and tgt, files, polling
    Datapath,
    /// iSER and SRP over iWARP against iSCSI over TCP, each with its ceiling
    Transports,
    /// AoE against iSCSI over TCP and vblade on one Ethernet segment
    Aoe,
    /// A peer that its user has built: only when requested
    #[value(skip)]
    Peer,
}

impl Part {
    /// Those that every machine can measure.
    pub(super) const ALL: [Part; 3] = [Part::Datapath, Part::Transports, Part::Aoe];

    /// Its word on the command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Part::Datapath => "datapath",
            Part::Transports => "transports",
            Part::Aoe => "aoe",
            Part::Peer => "peer",
        }
    }

    /// The option that measures it.
    pub(super) fn option(self) -> String {
        match self {
            Part::Datapath | Part::Transports | Part::Aoe => format!("--only {}", self.word()),
            Part::Peer => "--peer spdk=PATH".into(),
        }
    }

    /// The plan for a machine with this many cores.
    pub(super) fn plan(self, cores: usize) -> String {
        match self {
            Part::Datapath => plan::plan(cores),
            Part::Transports => transports::PLAN.to_owned(),
            Part::Aoe => aoe::PLAN.to_owned(),
            Part::Peer => peer::PLAN.to_owned(),
        }
    }

    /// The plan's file.
    pub(super) fn plan_file(self) -> &'static str {
        match self {
            Part::Datapath => "target/performance.toml",
            Part::Transports => "target/transports.toml",
            Part::Aoe => "target/aoe.toml",
            Part::Peer => "target/peer.toml",
        }
    }

    /// Where results are written.
    pub(super) fn output(self) -> &'static str {
        match self {
            Part::Datapath => "target/bench",
            Part::Transports => "target/bench-transports",
            Part::Aoe => "target/bench-aoe",
            Part::Peer => "target/bench-peer",
        }
    }

    /// Where they are committed.
    pub(super) fn record(self) -> &'static str {
        match self {
            Part::Datapath => "docs/performance",
            Part::Transports => "docs/performance/transports",
            Part::Aoe => "docs/performance/aoe",
            Part::Peer => "docs/performance/peer",
        }
    }

    /// All goals, for the points present in the results.
    pub(super) fn goals(self, results: &Results, figures: &Figures) -> Vec<Goal> {
        match self {
            Part::Datapath => goals(results, figures),
            Part::Transports => transports::goals(results),
            Part::Aoe => aoe::goals(results),
            Part::Peer => peer::goals(results),
        }
    }
}
