//! The parts of the measurement. Each has a plan, results and a record of its own.

use super::marks::{Mark, marks};
use super::results::Results;
use super::{Figures, plan, transports};

/// What is measured in one run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Part {
    /// iSCSI over TCP against its ceiling and tgt, files, polling
    Datapath,
    /// iSER and SRP over iWARP against iSCSI over TCP, each with its ceiling
    Transports,
}

impl Part {
    pub(super) const ALL: [Part; 2] = [Part::Datapath, Part::Transports];

    /// As it is given.
    pub(super) fn word(self) -> &'static str {
        match self {
            Part::Datapath => "datapath",
            Part::Transports => "transports",
        }
    }

    /// The plan for a machine with so many cores.
    pub(super) fn plan(self, cores: usize) -> String {
        match self {
            Part::Datapath => plan::plan(cores),
            Part::Transports => transports::PLAN.to_owned(),
        }
    }

    /// Where that is written.
    pub(super) fn plan_file(self) -> &'static str {
        match self {
            Part::Datapath => "target/performance.toml",
            Part::Transports => "target/transports.toml",
        }
    }

    /// Where results are made.
    pub(super) fn output(self) -> &'static str {
        match self {
            Part::Datapath => "target/bench",
            Part::Transports => "target/bench-transports",
        }
    }

    /// Where they are kept.
    pub(super) fn record(self) -> &'static str {
        match self {
            Part::Datapath => "docs/performance",
            Part::Transports => "docs/performance/transports",
        }
    }

    /// All marks, for the points that the results have.
    pub(super) fn marks(self, results: &Results, figures: &Figures) -> Vec<Mark> {
        match self {
            Part::Datapath => marks(results, figures),
            Part::Transports => transports::marks(results),
        }
    }
}
