//! From a plan to rows, and from rows to the order in which they run.

use super::plan::{Direction, Kind, Matrix, Plan, Scheduling, Target, Transport, show_size};
use bench::job::{Job, Rw, Style};

/// A row of a report: everything that is measured separately.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Its index in the plan.
    pub index: usize,
    /// Its matrix's index in the plan.
    pub matrix: usize,
    /// The target measured.
    pub target: Target,
    /// Cores and polling of both sides.
    pub scheduling: Scheduling,
    /// Concurrent initiators.
    pub initiators: u32,
    /// Concurrent LUNs.
    pub luns: u32,
    /// Order and direction.
    pub direction: Direction,
    /// The workload of one initiator on one LUN; its seed is set by the repetition.
    pub job: Job,
    /// The ceiling's row with which it is compared.
    pub ceiling: Option<usize>,
}

/// The parameters varied by a matrix, in the order of table columns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Axis {
    /// Target.
    Target,
    /// Cores and polling.
    Scheduling,
    /// Order and direction.
    Direction,
    /// Whether data of writes is immediate.
    ImmediateData,
    /// Digests.
    Digests,
    /// LUNs.
    Luns,
    /// Initiators.
    Initiators,
    /// Jobs.
    Jobs,
    /// Queue depth.
    Depth,
    /// Block size.
    BlockSize,
}

impl Axis {
    /// All axes.
    pub const ALL: [Axis; 10] = [
        Axis::Target,
        Axis::Scheduling,
        Axis::Direction,
        Axis::ImmediateData,
        Axis::Digests,
        Axis::Luns,
        Axis::Initiators,
        Axis::Jobs,
        Axis::Depth,
        Axis::BlockSize,
    ];

    /// Its heading.
    pub fn title(self) -> &'static str {
        match self {
            Axis::Target => "Target",
            Axis::Scheduling => "Scheduling",
            Axis::Direction => "Direction",
            Axis::ImmediateData => "Write data",
            Axis::Digests => "Digests",
            Axis::Luns => "LUNs",
            Axis::Initiators => "Initiators",
            Axis::Jobs => "Jobs",
            Axis::Depth => "Queue depth",
            Axis::BlockSize => "Block size",
        }
    }

    /// A value, phrased to be understood by itself.
    pub fn phrase(self, row: &Row) -> String {
        let value = self.value(row);
        let counted = |one: &str, many: &str| format!("{value} {}", if value == "1" { one } else { many });
        match self {
            Axis::Target | Axis::Direction => value,
            Axis::Scheduling => format!("scheduling: {value}"),
            Axis::ImmediateData => format!("data {value}"),
            Axis::Digests => format!("digests: {value}"),
            Axis::Luns => counted("LUN", "LUNs"),
            Axis::Initiators => counted("initiator", "initiators"),
            Axis::Jobs => counted("job", "jobs"),
            Axis::Depth => format!("QD {value}"),
            Axis::BlockSize if row.job.bs < 1024 => format!("{value} bytes"),
            Axis::BlockSize => value,
        }
    }

    /// The value of a row.
    pub fn value(self, row: &Row) -> String {
        match self {
            Axis::Target => row.target.name.clone(),
            Axis::Scheduling => row.scheduling.name.clone(),
            Axis::Direction => row.direction.phrase().into(),
            Axis::ImmediateData => match row.job.immediate_data {
                true => "with the command".into(),
                false => "when requested".into(),
            },
            Axis::Digests => match row.job.digests {
                (false, false) => "none".into(),
                (true, false) => "header".into(),
                (false, true) => "data".into(),
                (true, true) => "header and data".into(),
            },
            Axis::Luns => row.luns.to_string(),
            Axis::Initiators => row.initiators.to_string(),
            Axis::Jobs => row.job.numjobs.to_string(),
            Axis::Depth => row.job.iodepth.to_string(),
            Axis::BlockSize => show_size(row.job.bs.into()),
        }
    }

    /// Whether the value is the default, which is mentioned only if it varies.
    pub(super) fn is_usual(self, row: &Row) -> bool {
        match self {
            Axis::Luns => row.luns == 1,
            Axis::Initiators => row.initiators == 1,
            Axis::Digests => row.job.digests == (false, false),
            Axis::ImmediateData => row.job.immediate_data || !row.direction.writes(),
            Axis::Target
            | Axis::Scheduling
            | Axis::Direction
            | Axis::Jobs
            | Axis::Depth
            | Axis::BlockSize => false,
        }
    }

    /// The value as a number, if it is one: its position in a chart.
    pub(super) fn number(self, row: &Row) -> Option<f64> {
        match self {
            Axis::Luns => Some(row.luns.into()),
            Axis::Initiators => Some(row.initiators.into()),
            Axis::Jobs => Some(row.job.numjobs.into()),
            Axis::Depth => Some(row.job.iodepth.into()),
            Axis::BlockSize => Some(row.job.bs.into()),
            Axis::Target | Axis::Scheduling | Axis::Direction | Axis::ImmediateData | Axis::Digests => None,
        }
    }

    /// The axes on which these rows differ.
    pub fn varying(rows: &[&Row]) -> Vec<Axis> {
        let differs = |axis: &Axis| {
            let mut values = rows.iter().map(|row| axis.value(row));
            values.next().is_some_and(|first| values.any(|value| value != first))
        };
        Axis::ALL.into_iter().filter(differs).collect()
    }
}

impl Row {
    /// Everything that distinguishes it from other rows, in one line.
    pub fn label(&self) -> String {
        let said = Axis::ALL.iter().filter(|axis| !axis.is_usual(self));
        let phrases: Vec<String> = said.map(|axis| axis.phrase(self)).collect();
        phrases.join(", ")
    }

    /// The job of one of its runs.
    pub fn job(&self, repetition: u32) -> Job {
        Job { seed: self.job.seed.wrapping_add(repetition.into()), ..self.job.clone() }
    }
}

/// Number of rows of a matrix.
pub(super) fn size(matrix: &Matrix) -> usize {
    let Matrix { targets, schedulings, rw, bs, iodepth, numjobs, initiators, luns, .. } = matrix;
    [
        targets.len(),
        schedulings.len(),
        rw.len(),
        bs.len(),
        iodepth.len(),
        numjobs.len(),
        initiators.len(),
        luns.len(),
        matrix.immediate_data.len(),
        matrix.digests.len(),
    ]
    .into_iter()
    .fold(1, usize::saturating_mul)
}

/// All rows of a plan. Targets vary fastest, so that those compared run one after the other.
pub fn rows(plan: &Plan) -> Vec<Row> {
    let mut rows = Vec::new();
    for (place, matrix) in plan.matrices.iter().enumerate() {
        let first = rows.len();
        for combination in combinations(matrix) {
            rows.extend(row(plan, place, &combination).map(|row| Row { index: rows.len(), ..row }));
        }
        for index in first..rows.len() {
            rows[index].ceiling = ceiling(&rows[first..], &rows[index]);
        }
    }
    rows
}

/// Every run of a plan: repetition, counted from 1, and row. All rows run once before any runs again, so that
/// changes over time affect all alike.
pub fn schedule(plan: &Plan, rows: &[Row]) -> Vec<(u32, usize)> {
    (1..=plan.repetitions).flat_map(|repetition| (0..rows.len()).map(move |row| (repetition, row))).collect()
}

/// For each list of a matrix, the index of the value selected; the targets last.
fn combinations(matrix: &Matrix) -> Vec<[usize; 10]> {
    let lengths = [
        matrix.schedulings.len(),
        matrix.digests.len(),
        matrix.immediate_data.len(),
        matrix.rw.len(),
        matrix.luns.len(),
        matrix.initiators.len(),
        matrix.numjobs.len(),
        matrix.iodepth.len(),
        matrix.bs.len(),
        matrix.targets.len(),
    ];
    (0..size(matrix))
        .map(|number| {
            let mut rest = number;
            let mut combination = [0; 10];
            for (place, length) in combination.iter_mut().zip(lengths).rev() {
                *place = rest % length;
                rest /= length;
            }
            combination
        })
        .collect()
}

/// The row for a combination; `None` if it would duplicate another.
fn row(plan: &Plan, place: usize, combination: &[usize; 10]) -> Option<Row> {
    let matrix = &plan.matrices[place];
    let [scheduling, digests, immediate, rw, luns, initiators, jobs, depth, bs, target] = *combination;
    let target = plan.targets[matrix.targets[target]].clone();
    let scheduling = plan.schedulings[matrix.schedulings[scheduling]].clone();
    let direction = matrix.rw[rw];
    let local = target.transport == Transport::Local;
    let aoe = target.transport == Transport::Aoe;
    // With iWARP, CRCs cover everything or nothing.
    let is_summed = |(header, data): &(bool, bool)| *header || *data;
    let (before, now) = matrix.digests.split_at(digests);
    let sums_again = now.first().is_some_and(|now| before.iter().any(|it| is_summed(it) == is_summed(now)));
    // AoE has a single way to write and no digests, and distinguishes initiators by their network device.
    let repeats = (local && (digests > 0 || immediate > 0))
        || (aoe && (digests > 0 || immediate > 0 || initiators > 0))
        || (target.transport.is_iwarp() && sums_again)
        || (matches!(target.kind, Kind::Url(_) | Kind::Vblade) && matrix.luns[luns] > 1)
        || (matrix.shared && depth > 0)
        || (!direction.writes() && immediate > 0);
    if repeats {
        return None;
    }
    let (order, both) = match direction {
        Direction::Read => (Rw::Read, false),
        Direction::Write => (Rw::Write, false),
        Direction::RandRead => (Rw::RandRead, false),
        Direction::RandWrite => (Rw::RandWrite, false),
        Direction::RandRw => (Rw::RandRw, false),
        Direction::Trim => (Rw::Trim, false),
        Direction::Both => (Rw::Read, true),
        Direction::RandBoth => (Rw::RandRead, true),
    };
    let style = match (both, matrix.shared) {
        (true, _) => Style::Bidirectional,
        (false, true) => Style::Shared,
        (false, false) => Style::Depth,
    };
    let job = Job {
        rw: order,
        style,
        rwmixread: matrix.rwmixread,
        bs: matrix.bs[bs],
        iodepth: if matrix.shared { 1 } else { matrix.iodepth[depth] },
        numjobs: matrix.numjobs[jobs],
        runtime: plan.runtime,
        ramp: plan.ramp,
        seed: plan.seed,
        cores: scheduling.cores.clone(),
        poll: scheduling.poll,
        digests: matrix.digests[digests],
        immediate_data: matrix.immediate_data[immediate],
        ..Job::default()
    };
    Some(Row {
        index: 0,
        matrix: place,
        target,
        scheduling,
        initiators: matrix.initiators[initiators],
        luns: matrix.luns[luns],
        direction,
        job,
        ceiling: None,
    })
}

/// The row in which the do-nothing responder ran the same job over the same transport and link.
fn ceiling(rows: &[Row], row: &Row) -> Option<usize> {
    let same = |other: &&Row| {
        other.target.kind == Kind::Ceiling
            && (other.target.transport, other.target.link) == (row.target.transport, row.target.link)
            && Axis::ALL[1..].iter().all(|axis| axis.value(other) == axis.value(row))
    };
    let own = row.target.kind == Kind::Ceiling || row.target.transport == Transport::Local;
    if own { None } else { rows.iter().find(same).map(|ceiling| ceiling.index) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn plan(text: &str) -> Plan {
        let targets = "[[target]]\nname = 'a'\n[[target]]\nname = 'top'\nkind = 'ceiling'\n";
        Plan::from_toml(&format!("{targets}{text}"), Path::new("p")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_list_is_multiplied_and_targets_alternate() {
        let plan = plan("[[matrix]]\nbs = ['4K', '64K']\nnumjobs = [1, 2]\nrw = ['randread', 'randwrite']");
        let rows = rows(&plan);
        assert_eq!(rows.len(), 16);
        assert!(rows.iter().enumerate().all(|(index, row)| row.index == index));
        assert!(rows.chunks(2).all(|pair| pair[0].target.name == "a" && pair[1].target.name == "top"));
        assert!(rows.chunks(2).all(|pair| pair[0].job == pair[1].job));
        assert!(
            rows.chunks(2).all(|pair| pair[0].ceiling == Some(pair[1].index) && pair[1].ceiling.is_none())
        );
        let all: Vec<&Row> = rows.iter().collect();
        assert_eq!(Axis::varying(&all), [Axis::Target, Axis::Direction, Axis::Jobs, Axis::BlockSize]);
    }

    #[test]
    fn repetitions_are_interleaved() {
        let plan = plan("[[matrix]]");
        let rows = rows(&plan);
        let schedule = schedule(&plan, &rows);
        assert_eq!(schedule[..4], [(1, 0), (1, 1), (2, 0), (2, 1)]);
        assert_eq!(schedule.len(), 10);
        assert_ne!(rows[0].job(1).seed, rows[0].job(2).seed);
    }

    #[test]
    fn a_share_is_of_the_ceiling_over_the_same_link() {
        let text = "[[target]]\nname = 'slow'\nlink = '1mbit'\n[[target]]\nname = 'slow top'\nkind = 'ceiling'\n\
                    link = '1mbit'\n[[target]]\nname = 'disk'\ntransport = 'local'\n[[matrix]]";
        let rows = rows(&plan(text));
        let ceilings: Vec<Option<usize>> = rows.iter().map(|row| row.ceiling).collect();
        assert_eq!(ceilings, [Some(1), None, Some(3), None, None]);
    }

    #[test]
    fn a_share_is_of_the_ceiling_over_the_same_transport() {
        let text = "[[target]]\nname = 'b'\ntransport = ['iser', 'srp']\n\
                    [[target]]\nname = 'fast'\nkind = 'ceiling'\ntransport = ['iser', 'srp']\n[[matrix]]";
        let rows = rows(&plan(text));
        let ceilings: Vec<Option<usize>> = rows.iter().map(|row| row.ceiling).collect();
        assert_eq!(ceilings, [Some(1), None, Some(4), Some(5), None, None]);
    }

    #[test]
    fn over_iwarp_all_digests_are_one() {
        let text = "[[target]]\nname = 'b'\ntransport = 'srp'\n\
                    [[matrix]]\ndigests = ['header', 'none', 'data', 'both']";
        let rows = rows(&plan(text));
        let digests = |name: &str| -> Vec<(bool, bool)> {
            rows.iter().filter(|row| row.target.name == name).map(|row| row.job.digests).collect()
        };
        assert_eq!(digests("a").len(), 4);
        assert_eq!(digests("b"), [(true, false), (false, false)]);
    }

    #[test]
    fn over_aoe_what_it_does_not_have_is_measured_once() {
        let text = "[[target]]\nname = 'b'\nlink = 'veth'\ntransport = 'aoe'\n\
                    [[matrix]]\nrw = 'write'\ndigests = ['none', 'data']\nimmediate_data = [true, false]\n\
                    initiators = [1, 2]";
        let rows = rows(&plan(text));
        let of = |name: &str| rows.iter().filter(|row| row.target.name == name).count();
        assert_eq!((of("a"), of("b")), (8, 1));
    }

    #[test]
    fn reads_do_not_repeat_for_the_data_of_writes() {
        let rows = rows(&plan("[[matrix]]\nrw = ['read', 'write']\nimmediate_data = [true, false]"));
        assert_eq!(rows.iter().filter(|row| row.direction == Direction::Read).count(), 2);
        assert_eq!(rows.iter().filter(|row| row.direction == Direction::Write).count(), 4);
    }

    #[test]
    fn streams_of_both_directions_and_shared_ranges_are_their_own_styles() {
        let rows =
            rows(&plan("[[matrix]]\nrw = 'both'\n[[matrix]]\nrw = 'write'\nstyle = 'shared'\nnumjobs = 10"));
        assert_eq!(rows[0].job.style, Style::Bidirectional);
        assert_eq!((rows[2].job.style, rows[2].job.numjobs), (Style::Shared, 10));
    }
}
