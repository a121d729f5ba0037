//! The plans that reproduce the tables of earlier reports.

/// A plan that ships with Lunette.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Builtin {
    /// Its name for `lunette report`.
    pub name: &'static str,
    /// What it measures, in a line.
    pub about: &'static str,
    /// The plan.
    pub text: &'static str,
}

/// All built-in plans.
pub const BUILTIN: [Builtin; 5] = [
    Builtin {
        name: "stgt",
        about: "block sizes from 1K to 256K, threads, both directions, two initiators, a chain",
        text: include_str!("../../plans/stgt.toml"),
    },
    Builtin {
        name: "zeta",
        about: "transports at queue depth 32: random reads and writes of 4K, 16K and 64K",
        text: include_str!("../../plans/zeta.toml"),
    },
    Builtin {
        name: "lio",
        about: "512-byte commands over one and many connections, CPU per core",
        text: include_str!("../../plans/lio.toml"),
    },
    Builtin {
        name: "storagegear",
        about: "random I/O on one and four LUNs on pinned cores, data with and after the command",
        text: include_str!("../../plans/storagegear.toml"),
    },
    Builtin {
        name: "fastnetmon",
        about: "small commands: a local disk, loopback, a 100 Mbit/s link, AoE, iSCSI and vblade",
        text: include_str!("../../plans/fastnetmon.toml"),
    },
];

/// The plan with this name.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|plan| plan.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, Plan, Transport};
    use std::path::Path;

    #[test]
    fn every_builtin_plan_is_sound_and_has_a_ceiling_for_every_row() {
        for Builtin { name, text, .. } in BUILTIN {
            let plan = Plan::from_toml(text, Path::new(name)).unwrap_or_else(|error| panic!("{error}"));
            let rows = crate::matrix::rows(&plan);
            assert!((10..=400).contains(&rows.len()), "{name} has {} rows", rows.len());
            for row in rows {
                let has_none = row.target.kind == Kind::Ceiling
                    || matches!(row.target.transport, Transport::Aoe | Transport::Local);
                assert_eq!(row.ceiling.is_none(), has_none, "{name}: {}", row.label());
            }
            assert!(!plan.title.is_empty() && !plan.note.is_empty(), "{name} says what it is");
        }
    }
}
