//! What limited a run.

use crate::result::{CoreLoad, LinkWait, RunResult, Sample, Side, ThreadLoad};
use config::show_cores;
use std::fmt;

/// A core or thread this busy counts as saturated.
pub(crate) const SATURATED: f64 = 0.95;

/// What was at its limit.
#[derive(Clone, PartialEq, Debug)]
pub enum Bottleneck {
    /// A thread of the target was saturated.
    Target {
        /// Its name.
        thread: String,
        /// The core that it ran on last.
        core: usize,
        /// The share of its time that was used.
        busy: f64,
    },
    /// A thread of this side was saturated.
    Initiator {
        /// Its name.
        thread: String,
        /// The core that it ran on last.
        core: usize,
        /// The share of its time that was used.
        busy: f64,
    },
    /// Threads of both sides were saturated.
    BothSides {
        /// The core of the target's busiest thread.
        target_core: usize,
        /// The core of this side's busiest thread.
        initiator_core: usize,
    },
    /// Cores of this machine were saturated, but not by any known thread alone.
    Cores {
        /// Their numbers.
        full: Vec<usize>,
        /// How many cores there are.
        of: usize,
        /// How many of them had time left.
        others: usize,
        /// Who used them.
        users: Users,
        /// Packets also queued on the way: when others used the cores, the link may be the limit.
        link: Option<LinkWait>,
    },
    /// Packets queued on the way, and no CPU was saturated.
    Link(LinkWait),
    /// No CPU was saturated: time passes on the link, in the medium, or in waking up; or the rate was
    /// limited.
    Waiting {
        /// How busy the busiest core was.
        busiest: f64,
        /// Whether the job itself limited the rate.
        by_rate: bool,
    },
}

/// Determines what limited a run.
pub fn bottleneck(result: &RunResult) -> Bottleneck {
    let busiest = |side: Side| {
        let threads = result.threads.iter().filter(move |thread| thread.side == side);
        threads.max_by(|a, b| a.busy.total_cmp(&b.busy)).filter(|thread| thread.busy >= SATURATED)
    };
    // Spinning makes a core look busy although it has time left.
    let spins = |core: usize| result.threads.iter().any(|load| load.core == core && load.spinning > 0.05);
    let anyone_spins = result.threads.iter().any(|load| load.spinning > 0.05);
    let busy = |load: &CoreLoad| 1.0 - load.idle;
    let all = result.cores.iter().map(busy).sum::<f64>() / result.cores.len().max(1) as f64;
    // Together they are saturated when each has hardly any time left.
    let full: Vec<usize> = match all >= SATURATED && !anyone_spins {
        true => result.cores.iter().map(|load| load.core).collect(),
        false => {
            let full = result.cores.iter().filter(|load| busy(load) >= SATURATED && !spins(load.core));
            full.map(|load| load.core).collect()
        }
    };
    let link = full_link(result.series.iter()).filter(|_| !result.job.is_paced());
    match (busiest(Side::Target), busiest(Side::Initiator)) {
        (Some(target), Some(initiator)) => {
            Bottleneck::BothSides { target_core: target.core, initiator_core: initiator.core }
        }
        (Some(ThreadLoad { name, core, busy, .. }), None) => {
            Bottleneck::Target { thread: name.clone(), core: *core, busy: *busy }
        }
        (None, Some(ThreadLoad { name, core, busy, .. })) => {
            Bottleneck::Initiator { thread: name.clone(), core: *core, busy: *busy }
        }
        (None, None) if !full.is_empty() => Bottleneck::Cores {
            of: result.cores.len(),
            others: result
                .cores
                .iter()
                .filter(|load| busy(load) < SATURATED && !full.contains(&load.core))
                .count(),
            users: Users::of(&full, result.series.iter(), Other::of(result)),
            full,
            link,
        },
        (None, None) => match link {
            Some(wait) => Bottleneck::Link(wait),
            None => Bottleneck::Waiting {
                busiest: result.cores.iter().map(busy).fold(0.0, f64::max),
                by_rate: result.job.is_paced(),
            },
        },
    }
}

/// Evidence that a link is saturated: every sample found packets queued there. Only the bottleneck's queue is
/// never empty.
pub(crate) fn full_link<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<LinkWait> {
    const SAMPLES_MIN: usize = 3;
    const TIMES: f64 = 4.0;
    const MORE_US: f64 = 300.0;
    let looks: Vec<LinkWait> = samples.filter_map(|sample| sample.link).collect();
    let least = looks.iter().copied().min_by(|a, b| a.loaded_us.total_cmp(&b.loaded_us))?;
    let waits = least.loaded_us >= TIMES * least.idle_us && least.loaded_us >= least.idle_us + MORE_US;
    (waits && looks.len() >= SAMPLES_MIN).then_some(least)
}

impl fmt::Display for LinkWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkWait { idle_us, loaded_us } = self;
        let (loaded, idle) = (loaded_us / 1e3, idle_us / 1e3);
        write!(f, "the round trip takes at least {loaded:.2} ms, and {idle:.2} ms without the load")
    }
}

/// The users of saturated cores, by their share of the time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Users {
    target: f64,
    initiator: f64,
    /// What may have used the rest.
    other: Other,
    /// Whether it is a single core.
    one: bool,
}

/// Users whose threads are unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Other {
    /// Possibly the target.
    Target,
    /// Other programs; interrupts too.
    Programs,
}

impl Other {
    fn of(result: &RunResult) -> Other {
        if result.target_cpu.is_some() || result.is_local() { Other::Programs } else { Other::Target }
    }
}

impl Users {
    /// The least share for which a user is listed.
    const NAMED_MIN: f64 = 0.1;

    /// Averaged over all these samples.
    pub(crate) fn of<'a>(full: &[usize], samples: impl Iterator<Item = &'a Sample>, other: Other) -> Users {
        let (mut target, mut initiator, mut count) = (0.0, 0.0, 0usize);
        for sample in samples {
            count += full.len();
            for of in sample.core_use.iter().filter(|of| full.contains(&of.core)) {
                target += of.target;
                initiator += of.initiator;
            }
        }
        let share = |sum: f64| sum / count.max(1) as f64;
        Users { target: share(target), initiator: share(initiator), other, one: full.len() == 1 }
    }

    /// Whether this side is listed.
    pub(crate) fn has_initiator(&self) -> bool {
        self.initiator >= Users::NAMED_MIN
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (is, them) = if self.one { ("it is", "it") } else { ("they are", "them") };
        let rest = (1.0 - self.target - self.initiator).max(0.0);
        let mut users = [("the target", self.target), ("this side", self.initiator), ("others", rest)];
        users.sort_by(|a, b| b.1.total_cmp(&a.1));
        let named: Vec<(&str, f64)> = users.into_iter().filter(|user| user.1 >= Users::NAMED_MIN).collect();
        match named.as_slice() {
            [("the target", _)] => write!(f, "{is} the target's")?,
            [("this side", _)] => write!(f, "this side uses {them} up")?,
            [(first, share), more @ ..] => {
                let uses = if *first == "others" { "use" } else { "uses" };
                write!(f, "{first} {uses} {:.0} % of {them}", share * 100.0)?;
                more.iter().try_for_each(|(name, share)| write!(f, ", {name} {:.0} %", share * 100.0))?;
            }
            [] => {}
        }
        if self.other == Other::Target && rest >= Users::NAMED_MIN {
            f.write_str("; --target-pid or --target-admin would show what the target uses")?;
        }
        Ok(())
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
                "both sides: the target on core {target_core} and this side on core {initiator_core} are saturated"
            ),
            Bottleneck::Cores { full, of, others, users, link } => {
                match full.as_slice() {
                    [core] => {
                        let others = match others {
                            0 => String::new(),
                            1 => ", while another core is not".into(),
                            more => format!(", while {more} other cores are not"),
                        };
                        write!(f, "core {core}: it is saturated{others}; {users}")
                    }
                    all if all.len() == *of => {
                        write!(f, "this machine: its {of} cores are saturated; {users}")
                    }
                    some => write!(f, "cores {} of {of}: they are saturated; {users}", show_cores(some)),
                }?;
                link.map_or(Ok(()), |wait| write!(f, "; or the link: {wait}"))
            }
            Bottleneck::Link(wait) => write!(f, "the link: {wait}"),
            Bottleneck::Waiting { by_rate: true, .. } => write!(f, "the requested rate"),
            Bottleneck::Waiting { busiest, by_rate: false } => write!(
                f,
                "waiting: the busiest core is {} busy, so the time is spent on the link, in the medium, or in waking \
                 up; try a larger --iodepth",
                percent(busiest)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::result::{CoreUse, Cpu};

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

    fn example_sample(result: &RunResult) -> Sample {
        Sample {
            at: 1.0,
            iops: 1.0,
            bytes_per_second: 1.0,
            p50: 1.0,
            p99: 1.0,
            cores: result.cores.clone(),
            target_cores: None,
            initiator_cores: 0.0,
            core_use: Vec::new(),
            link: None,
        }
    }

    /// With threads, none of which saturates a core.
    fn shared(loads: &[f64], uses: &[(usize, f64, f64)], target: Option<Cpu>) -> String {
        let mut result = result(loads, &[(Side::Target, 0, 0.5, 0.0), (Side::Initiator, 0, 0.5, 0.0)]);
        let core_use = |&(core, target, initiator): &(usize, f64, f64)| CoreUse { core, target, initiator };
        let core_use = uses.iter().map(core_use).collect();
        let sample = Sample { core_use, ..example_sample(&result) };
        result.targets = vec!["iscsi://h/iqn.2026-11.io.lunette:disk/0".into()];
        (result.series, result.target_cpu) = (vec![sample], target);
        bottleneck(&result).to_string()
    }

    #[test]
    fn cores_without_a_saturated_thread_are_named_with_the_sides_that_used_them() {
        let known = Some(Cpu::default());
        for (loads, uses, target, expected) in [
            (
                &[1.0, 0.2][..],
                &[(0, 0.52, 0.45)][..],
                known,
                "core 0: it is saturated, while another core is not; the target uses 52 % of it, this side 45 %",
            ),
            (
                &[1.0, 0.2],
                &[(0, 0.97, 0.0), (1, 0.0, 0.9)],
                known,
                "core 0: it is saturated, while another core is not; it is the target's",
            ),
            (
                &[1.0, 0.2],
                &[(0, 0.05, 0.3)],
                known,
                "core 0: it is saturated, while another core is not; others use 65 % of it, this side 30 %",
            ),
            (
                &[1.0, 0.2],
                &[(0, 0.0, 0.3)],
                None,
                "core 0: it is saturated, while another core is not; others use 70 % of it, this side 30 %; \
              --target-pid or --target-admin would show what the target uses",
            ),
            (
                &[1.0, 0.98],
                &[(0, 0.9, 0.0), (1, 0.5, 0.5)],
                known,
                "this machine: its 2 cores are saturated; the target uses 70 % of them, this side 25 %",
            ),
            (
                &[1.0, 0.1, 0.98],
                &[(0, 0.98, 0.0), (2, 0.95, 0.0)],
                known,
                "cores 0,2 of 3: they are saturated; they are the target's",
            ),
        ] {
            assert_eq!(shared(loads, uses, target), expected);
        }
    }

    #[test]
    fn a_link_is_named_only_with_evidence() {
        let limit = |loads: &[f64], waits: &[f64], rate: Option<u64>| {
            let mut result = result(loads, &[]);
            let sample = |&loaded_us: &f64| Sample {
                link: Some(LinkWait { idle_us: 50.0, loaded_us }),
                ..example_sample(&result)
            };
            result.series = waits.iter().map(sample).collect();
            result.job.rate = rate;
            bottleneck(&result).to_string()
        };
        let waits = [9000.0, 11_000.0, 10_000.0];
        let link = "the link: the round trip takes at least 9.00 ms, and 0.05 ms without the load";
        assert_eq!(limit(&[0.3], &waits, None), link);
        assert!(limit(&[0.3], &waits[..2], None).starts_with("waiting"), "too few looks");
        assert!(
            limit(&[0.3], &[9000.0, 60.0, 9000.0], None).starts_with("waiting"),
            "it was free in between"
        );
        assert!(limit(&[0.3], &[300.0; 9], None).starts_with("waiting"), "it may be the kernel");
        let both = limit(&[1.0, 0.1], &waits, None);
        assert!(
            both.starts_with("core 0: it is saturated") && both.ends_with(&format!("; or {link}")),
            "{both}"
        );
        assert_eq!(limit(&[0.3], &waits, Some(1)), "the requested rate");
    }

    #[test]
    fn spinning_and_idling_are_waiting() {
        assert!(text(&[1.0, 0.1], &[(Side::Initiator, 0, 0.2, 0.8)]).contains("waiting"));
        assert!(text(&[0.2, 0.1], &[]).contains("the busiest core is 20 % busy"));
        let mut paced = result(&[0.2], &[]);
        paced.job.rate_iops = Some(10);
        assert_eq!(bottleneck(&paced).to_string(), "the requested rate");
    }
}
