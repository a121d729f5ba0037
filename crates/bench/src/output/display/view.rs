//! What is shown of a run at a given moment.

use super::frame::{Line, Paint, core_bar, legend, progress};
use crate::job::{Job, Poll};
use crate::limit::{Other, SATURATED, Users, full_link};
use crate::output::{describe, grouped, megabytes, micros};
use crate::result::{CoreLoad, Sample};
use config::{NbdUrl, Url};
use std::collections::VecDeque;

/// Seconds over which rates and loads are averaged by default: the kernel counts a core's time in hundredths of
/// a second.
const WINDOW: f64 = 1.0;
/// Most samples kept.
const SAMPLES_MAX: usize = 100;

/// The rows that are not for cores.
const OTHER_ROWS: usize = 9;
/// The widest bar of a core.
const BAR_MAX: usize = 50;
/// A core in a narrow column: number, bar, percent, mark, gap.
const NARROW_BAR: usize = 8;

/// The state of the display.
#[derive(Clone, Debug)]
pub struct View {
    title: String,
    targets: String,
    runtime: f64,
    ramp: f64,
    by_rate: bool,
    /// Job threads may spin, and thus look busy.
    spins: bool,
    /// The target runs on another machine's cores.
    target_elsewhere: bool,
    /// The target is in this process.
    is_local: bool,
    /// Seconds over which rates and loads are averaged.
    window: f64,
    /// Those of the window.
    samples: VecDeque<Sample>,
}

/// Averages over the window.
struct Mean {
    iops: f64,
    bytes_per_second: f64,
    cores: Vec<CoreLoad>,
    initiator_cores: f64,
    target_cores: Option<f64>,
}

impl View {
    /// Before any measurement.
    pub fn new(job: &Job, targets: &[String]) -> View {
        View {
            title: describe(job),
            targets: targets.join(", "),
            runtime: job.runtime.as_secs_f64(),
            ramp: job.ramp.as_secs_f64(),
            by_rate: job.is_paced(),
            spins: job.poll != Poll::Never,
            target_elsewhere: false,
            is_local: !targets.iter().any(|target| Url::is_meant(target) || NbdUrl::is_meant(target)),
            window: WINDOW,
            samples: VecDeque::new(),
        }
    }

    /// Averages over this many seconds.
    pub fn with_window(self, seconds: f64) -> View {
        View { window: seconds, ..self }
    }

    /// Sets whether the target, whose CPU time is known, runs on another machine: then the cores shown are
    /// not its own.
    pub fn with_target_elsewhere(self, target_elsewhere: bool) -> View {
        View { target_elsewhere, ..self }
    }

    /// Adds the next sample.
    pub fn add(&mut self, sample: &Sample) {
        self.samples.push_back(sample.clone());
        while self.samples.len() > SAMPLES_MAX
            || self.samples.front().is_some_and(|first| first.at <= sample.at - self.window)
        {
            self.samples.pop_front();
        }
    }

    /// The state in one line, for a log.
    pub fn line(&self) -> String {
        let (Some(last), mean) = (self.samples.back(), self.mean()) else { return String::new() };
        let when = match last.at {
            at if at < 0.0 => format!("ramp {:.0} s left", -at),
            at => format!("{at:.0} s of {:.0} s", self.runtime),
        };
        let busiest = mean.cores.iter().max_by(|a, b| busy(a).total_cmp(&busy(b)));
        let busiest = busiest.map_or(String::new(), |load| {
            format!(", busiest core {} at {:.0} %", load.core, busy(load) * 100.0)
        });
        format!(
            "{when}: {} IOPS, {} MB/s, p50 {} us, p99 {} us{busiest}",
            grouped(mean.iops),
            megabytes(mean.bytes_per_second),
            micros(last.p50),
            micros(last.p99)
        )
    }

    /// The frame for a terminal of this size; leaves the last row and column free.
    pub fn frame(&self, width: usize, height: usize) -> Vec<Line> {
        let width = width.saturating_sub(1).max(1);
        let (Some(last), mean) = (self.samples.back(), self.mean()) else { return Vec::new() };
        let mut lines = vec![
            Line::new(Paint::Strong, &self.title),
            Line::new(Paint::Faint, format!("  {}", self.targets)),
            self.progress(last.at, width),
            numbers(&mean, last),
            self.sides(&mean),
        ];
        lines.extend(cores(&mean.cores, width, height.saturating_sub(OTHER_ROWS).max(1)));
        if !mean.cores.is_empty() {
            lines.push(legend());
        }
        lines.push(self.limit(&mean));
        lines.into_iter().map(|line| line.cut(width)).collect()
    }

    fn progress(&self, at: f64, width: usize) -> Line {
        let (share, text) = match at {
            at if at < 0.0 => {
                (1.0 + at / self.ramp.max(f64::MIN_POSITIVE), format!(" ramp, {:.1} s left", -at))
            }
            at => {
                let share = at / self.runtime.max(f64::MIN_POSITIVE);
                let left = (self.runtime - at).max(0.0);
                (share, format!(" {:.0} %, {left:.1} s left", share.min(1.0) * 100.0))
            }
        };
        let mut line = progress(share, width.saturating_sub(24).clamp(4, BAR_MAX));
        line.push(Paint::Plain, text);
        line
    }

    /// Which side is the bottleneck, according to the last sample.
    fn limit(&self, mean: &Mean) -> Line {
        let full: Vec<&CoreLoad> = mean.cores.iter().filter(|load| busy(load) >= SATURATED).collect();
        let target_is_full = mean.target_cores.is_some_and(|cores| cores >= SATURATED);
        let is_known = mean.target_cores.is_some() || self.is_local;
        let other = if is_known { Other::Programs } else { Other::Target };
        let numbers: Vec<usize> = full.iter().map(|load| load.core).collect();
        let users = Users::of(&numbers, self.samples.iter(), other);
        let spinning = if self.spins && users.has_initiator() { " (or waits spinning)" } else { "" };
        let (paint, text) = match full.as_slice() {
            [] if self.by_rate => (Paint::Plain, "the requested rate".to_string()),
            [] if target_is_full && self.target_elsewhere => {
                let cores = mean.target_cores.unwrap_or_default();
                (Paint::Alarm, format!("no core of this machine; the target uses {cores:.2} of its own"))
            }
            [] => match full_link(self.samples.iter()) {
                Some(wait) => (Paint::Alarm, format!("the link: {wait}")),
                None => {
                    (Paint::Plain, "no core is saturated: the link, the medium, or waking up".to_string())
                }
            },
            [..] if full.len() == mean.cores.len() => {
                (Paint::Alarm, format!("every core of this machine is saturated; {users}{spinning}"))
            }
            [one] => (Paint::Alarm, format!("core {} is saturated; {users}{spinning}", one.core)),
            [..] => {
                let cores = mean.cores.len();
                (Paint::Alarm, format!("{} of {cores} cores are saturated; {users}{spinning}", full.len()))
            }
        };
        Line::new(Paint::Strong, "limit: ").with(paint, text)
    }

    fn sides(&self, mean: &Mean) -> Line {
        let own = mean.initiator_cores;
        let text = match mean.target_cores {
            Some(cores) => format!("this side {own:.2} cores, target {cores:.2} cores"),
            None if self.is_local => format!("this process {own:.2} cores"),
            None => format!("this side {own:.2} cores, target unknown"),
        };
        Line::new(Paint::Plain, text)
    }

    fn mean(&self) -> Mean {
        let count = self.samples.len().max(1) as f64;
        let mean = |value: &dyn Fn(&Sample) -> f64| self.samples.iter().map(value).sum::<f64>() / count;
        let cores = self.samples.back().map_or(&[][..], |last| &last.cores);
        let core = |(index, last): (usize, &CoreLoad)| {
            let share =
                |part: fn(&CoreLoad) -> f64| mean(&|sample| sample.cores.get(index).map_or(0.0, part));
            CoreLoad {
                core: last.core,
                user: share(|load| load.user),
                system: share(|load| load.system),
                idle: share(|load| load.idle),
            }
        };
        let has_target = self.samples.back().is_some_and(|last| last.target_cores.is_some());
        Mean {
            iops: mean(&|sample| sample.iops),
            bytes_per_second: mean(&|sample| sample.bytes_per_second),
            cores: cores.iter().enumerate().map(core).collect(),
            initiator_cores: mean(&|sample| sample.initiator_cores),
            target_cores: has_target.then(|| mean(&|sample| sample.target_cores.unwrap_or(0.0))),
        }
    }
}

fn busy(load: &CoreLoad) -> f64 {
    load.user + load.system
}

fn numbers(mean: &Mean, last: &Sample) -> Line {
    Line::new(Paint::Strong, grouped(mean.iops))
        .with(Paint::Plain, " IOPS   ")
        .with(Paint::Strong, megabytes(mean.bytes_per_second))
        .with(Paint::Plain, " MB/s   p50 ")
        .with(Paint::Strong, micros(last.p50))
        .with(Paint::Plain, " us   p99 ")
        .with(Paint::Strong, micros(last.p99))
        .with(Paint::Plain, " us")
}

/// All cores: one per row if they fit, otherwise in columns, otherwise only the busiest.
fn cores(cores: &[CoreLoad], width: usize, rows: usize) -> Vec<Line> {
    if cores.len() <= rows {
        return cores.iter().map(|load| wide(load, width)).collect();
    }
    let cell = NARROW_BAR + 12;
    let columns = (width / cell).max(1);
    // One row is for a note on those left out.
    let room = if cores.len() > columns * rows { columns * (rows - 1).max(1) } else { columns * rows };
    let mut shown: Vec<&CoreLoad> = cores.iter().collect();
    shown.sort_by(|a, b| busy(b).total_cmp(&busy(a)));
    let left_out = shown.split_off(room.min(shown.len()));
    shown.sort_by_key(|load| load.core);
    let down = shown.len().div_ceil(columns);
    let mut lines = vec![Line::default(); down];
    for (index, load) in shown.into_iter().enumerate() {
        lines[index % down].append(narrow(load));
    }
    if let Some(most) = left_out.first() {
        let text = format!("{} more cores, none more than {:.0} % busy", left_out.len(), busy(most) * 100.0);
        lines.push(Line::new(Paint::Faint, text));
    }
    lines
}

fn wide(load: &CoreLoad, width: usize) -> Line {
    let bar = width.saturating_sub(29).clamp(NARROW_BAR, BAR_MAX);
    let mut line = Line::new(Paint::Plain, format!("core {:<3} ", load.core));
    line.append(core_bar(load, bar));
    let (paint, mark) =
        if busy(load) >= SATURATED { (Paint::Alarm, "  SATURATED") } else { (Paint::Plain, "") };
    line.with(paint, format!(" {:>3.0} %{mark}", busy(load) * 100.0))
}

fn narrow(load: &CoreLoad) -> Line {
    let mut line = Line::new(Paint::Plain, format!("{:>3} ", load.core));
    line.append(core_bar(load, NARROW_BAR));
    let (paint, mark) = if busy(load) >= SATURATED { (Paint::Alarm, '!') } else { (Paint::Plain, ' ') };
    line.with(paint, format!(" {:>3.0}%{mark}", busy(load) * 100.0)).with(Paint::Plain, "  ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{CoreUse, LinkWait};

    fn core(core: usize, user: f64, system: f64) -> CoreLoad {
        CoreLoad { core, user, system, idle: 1.0 - user - system }
    }

    fn sample(at: f64, cores: Vec<CoreLoad>, target_cores: Option<f64>) -> Sample {
        Sample {
            at,
            iops: 100_000.0 * (1.0 + at),
            bytes_per_second: 409.6e6,
            p50: 98.25,
            p99: 1400.5,
            cores,
            target_cores,
            initiator_cores: 0.5,
            core_use: Vec::new(),
            link: None,
        }
    }

    fn used(mut sample: Sample, uses: &[(usize, f64, f64)]) -> Sample {
        let core_use = |&(core, target, initiator): &(usize, f64, f64)| CoreUse { core, target, initiator };
        sample.core_use = uses.iter().map(core_use).collect();
        sample
    }

    fn text(view: &View, width: usize, height: usize) -> String {
        view.frame(width, height).iter().map(|line| line.plain() + "\n").collect()
    }

    #[test]
    fn one_saturated_core_among_idle_ones_is_seen_at_a_glance() {
        let mut view = View::new(&Job::default(), &["iscsi://127.0.0.1/t/0".into()]);
        assert_eq!(text(&view, 80, 24), "", "nothing is known yet");
        for at in [2.0, 2.5, 3.0] {
            let cores = vec![core(0, 0.1, 0.0), core(1, 0.3, 0.7), core(2, 0.0, 0.0)];
            view.add(&used(sample(at, cores, Some(1.0)), &[(0, 0.0, 0.1), (1, 0.97, 0.0)]));
        }
        let expected = "\
randread, 4 KiB, depth 32, 1 job
  iscsi://127.0.0.1/t/0
━━━━━━━━━━━━━━━─────────────────────────────────── 30 %, 7.0 s left
375,000 IOPS   409.6 MB/s   p50 98.2 us   p99 1400 us
this side 0.50 cores, target 1.00 cores
core 0   █████·············································  10 %
core 1   ███████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒ 100 %  SATURATED
core 2   ··················································   0 %
█ user  ▒ system  · idle
limit: core 1 is saturated; it is the target's
";
        let shown = text(&view, 80, 24);
        assert_eq!(shown, expected, "{shown}");
        assert_eq!(
            view.line(),
            "3 s of 10 s: 375,000 IOPS, 409.6 MB/s, p50 98.2 us, p99 1400 us, busiest core 1 at 100 %"
        );
    }

    #[test]
    fn the_limit_is_named_as_far_as_it_is_known() {
        let limit = |job: &Job, loads: &[f64], target: Option<f64>, uses: &[(usize, f64, f64)]| {
            let mut view = View::new(job, &["iscsi://127.0.0.1/t/0".into()]);
            let cores = loads.iter().enumerate().map(|(n, &load)| core(n, load, 0.0)).collect();
            view.add(&used(sample(1.0, cores, target), uses));
            let shown = text(&view, 160, 24);
            shown.lines().last().unwrap().strip_prefix("limit: ").unwrap().to_string()
        };
        let job = Job { poll: Poll::Never, ..Job::default() };
        let own = [(0, 0.0, 0.99)];
        assert_eq!(limit(&job, &[1.0, 0.1], None, &own), "core 0 is saturated; this side uses it up");
        assert!(limit(&Job::default(), &[1.0, 0.1], None, &own).ends_with("(or waits spinning)"));
        assert!(limit(&job, &[1.0, 0.1], None, &[(0, 0.0, 0.3)]).contains("--target-pid"));
        // The target uses one core's worth elsewhere; core 0 is used by another program.
        let elsewhere = [(0, 0.0, 0.05), (1, 0.5, 0.0), (2, 0.5, 0.0)];
        assert_eq!(
            limit(&job, &[1.0, 0.5, 0.5], Some(1.0), &elsewhere),
            "core 0 is saturated; others use 95 % of it"
        );
        assert_eq!(
            limit(&job, &[1.0, 0.96], Some(1.0), &[(0, 0.6, 0.38), (1, 0.4, 0.55)]),
            "every core of this machine is saturated; the target uses 50 % of them, this side 46 %"
        );
        assert_eq!(
            limit(&job, &[1.0, 0.96, 0.1], Some(2.0), &[(0, 1.0, 0.0), (1, 0.95, 0.0)]),
            "2 of 3 cores are saturated; they are the target's"
        );
        assert!(limit(&job, &[0.5, 0.1], None, &[]).starts_with("no core is saturated"));
        let mut view = View::new(&job, &["iscsi://127.0.0.1/t/0".into()]);
        for at in [1.0, 1.3, 1.6] {
            let link = Some(LinkWait { idle_us: 60.0, loaded_us: 12_000.0 + at });
            view.add(&Sample { link, ..sample(at, vec![core(0, 0.5, 0.0)], None) });
        }
        let shown = text(&view, 160, 24);
        let expected =
            "limit: the link: the round trip takes at least 12.00 ms, and 0.06 ms without the load";
        assert_eq!(shown.lines().last(), Some(expected));
        assert_eq!(limit(&Job { rate: Some(5), ..job }, &[0.5], None, &[]), "the requested rate");
    }

    #[test]
    fn a_store_of_this_process_is_no_other_side() {
        let mut view = View::new(&Job::default(), &["ram:1G".into()]);
        view.add(&sample(1.0, vec![core(0, 1.0, 0.0), core(1, 0.1, 0.0)], None));
        let shown = text(&view, 120, 24);
        assert!(shown.contains("\nthis process 0.50 cores\n"), "{shown}");
        assert!(!shown.contains("--target-pid") && !shown.contains("unknown"), "{shown}");
    }

    #[test]
    fn cores_of_this_machine_are_not_those_of_a_target_elsewhere() {
        let limit = |load: f64| {
            let job = Job { poll: Poll::Never, ..Job::default() };
            let mut view = View::new(&job, &["ram:1G".into()]).with_target_elsewhere(true);
            let cores = vec![core(0, load, 0.0), core(1, 0.1, 0.0)];
            view.add(&Sample { initiator_cores: 0.3, ..sample(1.0, cores, Some(1.0)) });
            text(&view, 120, 24).lines().last().unwrap().to_string()
        };
        assert!(limit(1.0).ends_with("core 0 is saturated; others use 100 % of it"));
        assert!(limit(0.5).ends_with("no core of this machine; the target uses 1.00 of its own"));
    }

    #[test]
    fn many_cores_share_rows_and_the_busiest_are_never_left_out() {
        let mut view = View::new(&Job::default(), &["ram:1G".into()]);
        let cores = (0..256).map(|n| core(n, if n == 200 { 1.0 } else { n as f64 / 512.0 }, 0.0)).collect();
        view.add(&sample(0.5, cores, None));
        let shown = text(&view, 80, 24);
        assert!(shown.contains("200 ████████ 100%!"), "{shown}");
        assert!(shown.contains("214 more cores, none more than 42 % busy"), "{shown}");
        assert!(shown.lines().count() < 24 && shown.lines().all(|line| line.chars().count() < 80), "{shown}");
    }

    #[test]
    fn every_size_of_a_terminal_is_filled_but_not_overrun() {
        for count in [0, 1, 2, 8, 64, 300] {
            let mut view = View::new(&Job::default(), &["x".repeat(500)]);
            view.add(&sample(-0.5, (0..count).map(|n| core(n, 0.5, 0.5)).collect(), None));
            for (width, height) in [(0, 0), (1, 1), (20, 10), (80, 24), (200, 60), (1000, 1000)] {
                let frame = view.frame(width, height);
                assert!(frame.iter().all(|line| line.width() < width.max(2)), "{width}");
                assert!(frame.len() < height.max(12), "{count} cores, {height} rows: {}", frame.len());
            }
        }
    }

    #[test]
    fn the_ramp_is_marked() {
        let mut view = View::new(&Job::default(), &["ram:1G".into()]);
        view.add(&sample(-0.25, Vec::new(), None));
        assert!(text(&view, 80, 24).contains("ramp, 0.2 s left"), "{}", text(&view, 80, 24));
        assert!(view.line().starts_with("ramp 0 s left: 75,000 IOPS"), "{}", view.line());
    }
}
