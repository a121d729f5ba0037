//! What held a run back.

use crate::result::{RunResult, Side, ThreadLoad};
use std::fmt;

/// From this share of its time on a core or a thread is saturated.
pub(crate) const SATURATED: f64 = 0.95;

/// The part that was at its limit.
#[derive(Clone, PartialEq, Debug)]
pub enum Bottleneck {
    /// A thread of the target had no time left.
    Target {
        /// Its name.
        thread: String,
        /// The core that it ran on last.
        core: usize,
        /// The share of its time that was used.
        busy: f64,
    },
    /// A thread of this side had no time left.
    Initiator {
        /// Its name.
        thread: String,
        /// The core that it ran on last.
        core: usize,
        /// The share of its time that was used.
        busy: f64,
    },
    /// Threads of both sides had no time left.
    BothSides {
        /// The core of the target's busiest thread.
        target_core: usize,
        /// The core of this side's busiest thread.
        initiator_core: usize,
    },
    /// All cores of this machine together had no time left.
    AllCores {
        /// How many.
        cores: usize,
        /// The share of their time that was used.
        busy: f64,
    },
    /// One core had no time left, but no thread that is known used it up alone.
    Core {
        /// Its number.
        core: usize,
        /// How many other cores had time.
        others: usize,
        /// Whether the target's threads are known.
        target_known: bool,
    },
    /// Nobody was at a limit of CPU: time passes on the link, in the medium, or in waking up; or the rate was given.
    Waiting {
        /// The share of the time that the busiest core was used.
        busiest: f64,
        /// Whether the job itself set the pace.
        by_rate: bool,
    },
}

/// Names what held a run back.
pub fn bottleneck(result: &RunResult) -> Bottleneck {
    let busiest = |side: Side| {
        let threads = result.threads.iter().filter(move |thread| thread.side == side);
        threads.max_by(|a, b| a.busy.total_cmp(&b.busy)).filter(|thread| thread.busy >= SATURATED)
    };
    let loads: Vec<f64> = result.cores.iter().map(|load| 1.0 - load.idle).collect();
    let all = if loads.is_empty() { 0.0 } else { loads.iter().sum::<f64>() / loads.len() as f64 };
    // Spinning makes a core look busy that has time.
    let spins = |core: usize| result.threads.iter().any(|load| load.core == core && load.spinning > 0.05);
    let full = result.cores.iter().find(|load| 1.0 - load.idle >= SATURATED && !spins(load.core));
    let anyone_spins = result.threads.iter().any(|load| load.spinning > 0.05);
    match (busiest(Side::Target), busiest(Side::Initiator), full) {
        (Some(target), Some(initiator), _) => {
            Bottleneck::BothSides { target_core: target.core, initiator_core: initiator.core }
        }
        (Some(ThreadLoad { name, core, busy, .. }), None, _) => {
            Bottleneck::Target { thread: name.clone(), core: *core, busy: *busy }
        }
        (None, Some(ThreadLoad { name, core, busy, .. }), _) => {
            Bottleneck::Initiator { thread: name.clone(), core: *core, busy: *busy }
        }
        (None, None, _) if all >= SATURATED && !anyone_spins => {
            Bottleneck::AllCores { cores: loads.len(), busy: all }
        }
        (None, None, Some(load)) => Bottleneck::Core {
            core: load.core,
            others: loads.iter().filter(|&&busy| busy < SATURATED).count(),
            target_known: result.target_cpu.is_some() || result.is_local(),
        },
        (None, None, None) => Bottleneck::Waiting {
            busiest: loads.iter().copied().fold(0.0, f64::max),
            by_rate: result.job.is_paced(),
        },
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: &f64| format!("{:.0} %", share * 100.0);
        match self {
            Bottleneck::Target { thread, core, busy } => write!(
                f,
                "the target: its thread `{thread}` on core {core} is {} busy (or spins: see its poll mode)",
                percent(busy)
            ),
            Bottleneck::Initiator { thread, core, busy } => write!(
                f,
                "this side: thread `{thread}` on core {core} is {} busy; try more --numjobs",
                percent(busy)
            ),
            Bottleneck::BothSides { target_core, initiator_core } => write!(
                f,
                "both sides: the target on core {target_core} and this side on core {initiator_core} have no time left"
            ),
            Bottleneck::AllCores { cores, busy } => {
                write!(f, "this machine: its {cores} cores are {} busy", percent(busy))
            }
            Bottleneck::Core { core, others, target_known } => {
                let whose = match target_known {
                    true => "several threads share it",
                    false => "--target-pid or --target-admin would tell whether it is the target's",
                };
                let others = match others {
                    0 => String::new(),
                    1 => ", while another core has".into(),
                    more => format!(", while {more} other cores have"),
                };
                write!(f, "core {core}: it has no time left{others}; {whose}")
            }
            Bottleneck::Waiting { by_rate: true, .. } => write!(f, "the rate that was asked for"),
            Bottleneck::Waiting { busiest, by_rate: false } => write!(
                f,
                "waiting: the busiest core is {} busy, so time passes on the link, in the medium, or in waking up; \
                 try a larger --iodepth",
                percent(busiest)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::result::{CoreLoad, Cpu};

    fn result(loads: &[f64], threads: &[(Side, usize, f64, f64)]) -> RunResult {
        let thread = |&(side, core, busy, spinning): &(Side, usize, f64, f64)| ThreadLoad {
            side,
            name: format!("{side:?}"),
            core,
            busy,
            spinning,
        };
        let load =
            |(core, &busy): (usize, &f64)| CoreLoad { core, user: busy, system: 0.0, idle: 1.0 - busy };
        RunResult {
            job: Job::default(),
            targets: Vec::new(),
            seconds: 1.0,
            read: None,
            write: None,
            trim: None,
            initiator_cpu: Cpu::default(),
            target_cpu_lost: None,
            target_cpu: None,
            cores: loads.iter().enumerate().map(load).collect(),
            threads: threads.iter().map(thread).collect(),
            series: Vec::new(),
            verify: None,
            first_errors: Vec::new(),
        }
    }

    fn text(loads: &[f64], threads: &[(Side, usize, f64, f64)]) -> String {
        bottleneck(&result(loads, threads)).to_string()
    }

    #[test]
    fn the_saturated_side_is_named_with_its_core() {
        let target = (Side::Target, 2, 0.99, 0.0);
        let initiator = (Side::Initiator, 1, 0.97, 0.0);
        let quiet = (Side::Initiator, 1, 0.3, 0.69);
        assert!(
            text(&[0.1, 0.9, 1.0, 0.1], &[target, quiet])
                .contains("the target: its thread `Target` on core 2")
        );
        assert!(text(&[0.1, 1.0], &[initiator]).contains("this side: thread `Initiator` on core 1"));
        assert!(text(&[0.1, 1.0, 1.0], &[target, initiator]).contains("both sides"));
    }

    #[test]
    fn cores_without_a_saturated_thread_are_named() {
        let half = (Side::Target, 0, 0.5, 0.0);
        assert!(
            text(&[1.0, 0.2], &[half, (Side::Initiator, 0, 0.5, 0.0)])
                .contains("core 0: it has no time left")
        );
        assert!(text(&[1.0, 0.98], &[half]).contains("its 2 cores are 99 % busy"));
    }

    #[test]
    fn spinning_and_idling_are_waiting() {
        assert!(text(&[1.0, 0.1], &[(Side::Initiator, 0, 0.2, 0.8)]).contains("waiting"));
        assert!(text(&[0.2, 0.1], &[]).contains("the busiest core is 20 % busy"));
        let mut paced = result(&[0.2], &[]);
        paced.job.rate_iops = Some(10);
        assert_eq!(bottleneck(&paced).to_string(), "the rate that was asked for");
    }
}
