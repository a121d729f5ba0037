//! Parses TOML into a plan. Every fault is reported at once: syntax, types, unknown keys, unknown words,
//! dangling references.

use super::keywords;
use super::{Direction, Kind, Matrix, Plan, REPETITIONS_MAX, ROWS_MAX, Scheduling, Store, Target, Transport};
use bench::job::Poll;
use bench::run::{DEPTH_MAX, THREADS_MAX};
use config::{Collector, Fault, Problems, Table, read_document};
use std::path::Path;
use std::time::Duration;

/// Highest core number allowed in a plan.
const CORE_MAX: u64 = 4095;

pub(super) fn read(text: &str, file: &Path) -> Result<Plan, Problems> {
    let mut problems = Collector::new(Some((file, text)));
    let plan = read_document(text, &mut problems, root);
    problems.finish(plan)
}

fn root(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> Plan {
    let title = text(table, "title", problems);
    let note = text(table, "note", problems);
    let repetitions = number(table, "repetitions", 1, u64::from(REPETITIONS_MAX), problems);
    let runtime = table.one("runtime", keywords::duration, problems);
    let ramp = table.one("ramp", keywords::duration, problems);
    let seed = number(table, "seed", 0, u64::MAX, problems);
    let mut schedulings = Scheduling::builtin();
    table.tables("scheduling", problems, |entry, problems| {
        let scheduling = scheduling(entry, problems);
        let others = schedulings.iter().map(|other| other.name.as_str());
        name_once(entry, &scheduling.name, others, problems);
        schedulings.push(scheduling);
    });
    let mut targets: Vec<Target> = Vec::new();
    table.tables("target", problems, |entry, problems| {
        for target in target(entry, problems) {
            name_once(entry, &target.name, targets.iter().map(|other| other.name.as_str()), problems);
            targets.push(target);
        }
    });
    let mut index = 0;
    let matrices = table.tables("matrix", problems, |entry, problems| {
        index += 1;
        matrix(entry, index, &targets, &schedulings, problems)
    });
    for key in ["target", "matrix"] {
        if table.is_empty(key) {
            let fix = format!("add a table under [[{key}]]");
            table.fault(key, Fault::new("there is none", fix), problems);
        }
    }
    Plan {
        title: title.unwrap_or_else(|| "Storage targets compared".into()),
        note: note.unwrap_or_default(),
        repetitions: repetitions.and_then(|number| u32::try_from(number).ok()).unwrap_or(5),
        runtime: runtime.unwrap_or(Duration::from_secs(5)),
        ramp: ramp.unwrap_or(Duration::from_secs(1)),
        seed: seed.unwrap_or(1),
        quick: false,
        targets,
        schedulings,
        matrices,
    }
}

fn text(table: &mut Table<'_, '_>, key: &'static str, problems: &mut Collector<'_>) -> Option<String> {
    table.one(key, |text| Ok(text.to_string()), problems)
}

fn number(
    table: &mut Table<'_, '_>,
    key: &'static str,
    least: u64,
    most: u64,
    problems: &mut Collector<'_>,
) -> Option<u64> {
    table.one(key, |text| keywords::number(text, least, most), problems)
}

fn name_once<'n>(
    table: &Table<'_, '_>,
    name: &str,
    mut others: impl Iterator<Item = &'n str>,
    problems: &mut Collector<'_>,
) {
    if others.any(|other| other == name) {
        table.fault("name", Fault::new(format!("`{name}` is already used"), "choose another"), problems);
    }
}

impl Scheduling {
    /// The schedulings available to every plan.
    fn builtin() -> Vec<Scheduling> {
        let make = |name: &str, target_cores: &[usize], cores: &[usize], poll| Scheduling {
            name: name.into(),
            target_cores: target_cores.into(),
            target_poll: poll,
            cores: cores.into(),
            poll,
        };
        vec![
            make("free", &[], &[], Poll::Adaptive),
            make("spinning", &[0], &[1], Poll::Always),
            make("one core", &[0], &[0], Poll::Never),
        ]
    }
}

fn scheduling(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> Scheduling {
    let core = |text: &str| keywords::number(text, 0, CORE_MAX).map(|core| core as usize);
    Scheduling {
        name: table.required("name", problems),
        target_cores: table.list("target_cores", core, problems).unwrap_or_default(),
        target_poll: table.one("target_poll", keywords::poll, problems).unwrap_or_default(),
        cores: table.list("cores", core, problems).unwrap_or_default(),
        poll: table.one("poll", keywords::poll, problems).unwrap_or_default(),
    }
}

/// A target for each transport to it.
fn target(table: &mut Table<'_, '_>, problems: &mut Collector<'_>) -> Vec<Target> {
    let name = table.required("name", problems);
    let kind = table.one("kind", Kind::word, problems);
    let url = table.one("url", keywords::url, problems);
    let store = table.one("store", keywords::store, problems);
    let transports = table.list("transport", keywords::transport, problems);
    let link = table.one("link", keywords::link, problems);
    let hops = number(table, "hops", 0, 8, problems).and_then(|hops| u32::try_from(hops).ok()).unwrap_or(0);
    let overwrite = table.one("overwrite", keywords::switch, problems).unwrap_or(false);
    if url.is_some() && kind.is_some() {
        table.fault("url", Fault::new("`kind` is given as well", "give one of them"), problems);
    }
    if url.is_some() && store.is_some() {
        table.fault("store", Fault::new("a running target has its own store", "remove it"), problems);
    }
    let kind = url.map(Kind::Url).or(kind).unwrap_or(Kind::Lunette);
    let transports = transports.unwrap_or_else(|| vec![kind.usual_transport()]);
    let own = kind == Kind::Lunette;
    let local = transports.contains(&Transport::Local);
    if local && !own {
        let fix = "only a store of Lunette can be local; write transport = \"iscsi\"";
        table.fault("transport", Fault::new("this target is reached over a network", fix), problems);
    }
    let usual = kind.usual_transport();
    if matches!(kind, Kind::Tgt | Kind::Vblade | Kind::Spdk(_) | Kind::Url(_))
        && transports.iter().any(|transport| *transport != usual)
        && !local
    {
        let fix =
            format!("only Lunette and the ceiling have several; write transport = \"{}\"", usual.word());
        table.fault("transport", Fault::new("this target has only one transport", fix), problems);
    }
    if link.is_some() && (local || matches!(kind, Kind::Url(_))) {
        let fix = "give it only to targets that the report starts itself";
        table.fault("link", Fault::new("no link can be made to this target", fix), problems);
    }
    let aoe = transports.contains(&Transport::Aoe);
    if aoe && kind == Kind::Ceiling {
        let fix = "name another transport; rows over AoE have no ceiling";
        table.fault("transport", Fault::new("the ceiling does not support AoE", fix), problems);
    }
    if aoe && link.is_none() && !matches!(kind, Kind::Url(_)) {
        let fix = "give the target a link: \"veth\", or a rate";
        table.fault("transport", Fault::new("AoE does not run over loopback", fix), problems);
    }
    if kind == Kind::Vblade && matches!(store, Some(Store::Null(_))) {
        table.fault(
            "store",
            Fault::new("vblade serves only files", "write tmpfs:SIZE or disk:SIZE"),
            problems,
        );
    }
    if hops > 0 && (!(own || kind == Kind::Tgt) || local || aoe) {
        let fix = "give it only to targets of kind lunette or tgt behind iSCSI";
        table.fault("hops", Fault::new("no chain can lead to this target", fix), problems);
    }
    let usual = if kind == Kind::Ceiling { Store::Null(1 << 30) } else { Store::Ram(1 << 30) };
    let store = store.unwrap_or(usual);
    let several = transports.len() > 1;
    let named = |transport: Transport| match several {
        true => format!("{name}, {}", transport.name()),
        false => name.clone(),
    };
    let make = |transport| {
        let (kind, store) = (kind.clone(), store.clone());
        Target { name: named(transport), kind, transport, store, link, hops, overwrite }
    };
    transports.into_iter().map(make).collect()
}

fn matrix(
    table: &mut Table<'_, '_>,
    index: usize,
    targets: &[Target],
    schedulings: &[Scheduling],
    problems: &mut Collector<'_>,
) -> Matrix {
    let count = |most: u64| move |text: &str| keywords::number(text, 1, most).map(|number| number as u32);
    let threads = count(THREADS_MAX as u64);
    let named = |text: &str, names: Vec<&str>| {
        let places: Vec<(&str, usize)> = names.into_iter().zip(0..).collect();
        keywords::known(text, &places)
    };
    let target = |text: &str| named(text, targets.iter().map(|target| target.name.as_str()).collect());
    let scheduling = |text: &str| named(text, schedulings.iter().map(|s| s.name.as_str()).collect());
    let bs = table.list("bs", keywords::block_size, problems).unwrap_or_else(|| vec![4096]);
    let detail = table.list("detail", keywords::block_size, problems);
    if detail.as_ref().is_some_and(|detail| detail.iter().any(|size| !bs.contains(size))) {
        let fix = "name block sizes that are in bs";
        table.fault("detail", Fault::new("this block size is not measured", fix), problems);
    }
    let mixed = |text: &str| keywords::number(text, 0, 100).map(|percent| percent as u8);
    let matrix = Matrix {
        title: text(table, "title", problems).unwrap_or_else(|| format!("Matrix {index}")),
        note: text(table, "note", problems).unwrap_or_default(),
        targets: table.list("targets", target, problems).unwrap_or_else(|| (0..targets.len()).collect()),
        schedulings: table.list("scheduling", scheduling, problems).unwrap_or_else(|| vec![0]),
        rw: table.list("rw", keywords::direction, problems).unwrap_or_else(|| vec![Direction::RandRead]),
        iodepth: table.list("iodepth", count(DEPTH_MAX.into()), problems).unwrap_or_else(|| vec![32]),
        numjobs: table.list("numjobs", threads, problems).unwrap_or_else(|| vec![1]),
        initiators: table.list("initiators", count(64), problems).unwrap_or_else(|| vec![1]),
        luns: table.list("luns", count(64), problems).unwrap_or_else(|| vec![1]),
        immediate_data: table
            .list("immediate_data", keywords::switch, problems)
            .unwrap_or_else(|| vec![true]),
        digests: table.list("digests", keywords::digests, problems).unwrap_or_else(|| vec![(false, false)]),
        shared: table.one("style", keywords::shared, problems).unwrap_or(false),
        rwmixread: table.one("rwmixread", mixed, problems).unwrap_or(50),
        detail: detail.unwrap_or_else(|| bs.iter().take(1).copied().collect()),
        bs,
    };
    let is_device = |place: &usize| matches!(targets[*place].store, Store::Block(_));
    if matrix.luns.iter().any(|luns| *luns > 1) && matrix.targets.iter().any(is_device) {
        let fix = "write luns = 1, or name targets without `block:`";
        table.fault("luns", Fault::new("a block device is one LUN", fix), problems);
    }
    let in_order = |rw: &Direction| matches!(rw, Direction::Read | Direction::Write | Direction::Trim);
    if matrix.shared && !matrix.rw.iter().all(in_order) {
        let fix = "write rw = [\"read\", \"write\"], or style = \"depth\"";
        table.fault(
            "style",
            Fault::new("threads that share a range must go through it in order", fix),
            problems,
        );
    }
    let rows = crate::matrix::size(&matrix);
    if rows > ROWS_MAX {
        let what = format!("{rows} rows are too many");
        table.fault("", Fault::new(what, format!("shorten its lists to at most {ROWS_MAX} rows")), problems);
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> String {
        read(text, Path::new("plan.toml")).expect_err("wrong on purpose").to_string()
    }

    #[test]
    fn all_faults_are_reported_at_once_with_place_and_fix() {
        let problems = faults(
            "repetitions = 0\nruntime = 'long'\ncolour = 1\n[[target]]\nname = 'a'\nkind = 'lunete'\n\
             [[target]]\nname = 'a'\n[[matrix]]\nbs = ['4K', 1000, '4K']\nrw = ['rread']\ntargets = 'b'\n\
             iodepth = 1.5\n",
        );
        for line in [
            "plan.toml:1:15: repetitions: `0` is out of range; choose a whole number from 1 to 100",
            "plan.toml:2:11: runtime: `long` is not a time; write a time such as 15s, 500ms or 2m",
            "plan.toml:3:1: colour: unknown key; known here: title, note, repetitions, runtime, ramp, seed, scheduling, target, matrix",
            "plan.toml:6:8: target[0].kind: `lunete` is not known; did you mean `lunette`?",
            "plan.toml:8:8: target[1].name: `a` is already used; choose another",
            "plan.toml:10:13: matrix[0].bs[1]: `1000` cannot be a block size; choose a multiple of 512 up to 256K",
            "plan.toml:10:19: matrix[0].bs[2]: it is a duplicate; remove it",
            "plan.toml:11:7: matrix[0].rw[0]: `rread` is not known; did you mean `read`?",
            "plan.toml:12:11: matrix[0].targets: `b` is not known; did you mean `a`?",
            "plan.toml:13:11: matrix[0].iodepth: this is a float; write one value, or an array of them: a string or a whole number",
        ] {
            assert!(problems.lines().any(|other| other == line), "{line}\nis missing in\n{problems}");
        }
        assert_eq!(problems.lines().count(), 10, "{problems}");
    }

    #[test]
    fn what_cannot_be_combined_is_reported() {
        let problems = faults(
            "[[target]]\nname = 'a'\nkind = 'tgt'\ntransport = 'local'\nhops = 1\n\
             [[target]]\nurl = 'iscsi://h/iqn.2001-04.com.example:x/0'\nstore = 'ram:1G'\nlink = '1gbit'\n\
             [[target]]\nname = 'd'\nkind = 'tgt'\nstore = 'block:/dev/sda'\nhops = 2\n\
             [[target]]\nname = 'c'\nkind = 'ceiling'\nhops = 1\n\
             [[target]]\nname = 'e'\nkind = 'vblade'\nstore = 'null:1G'\n\
             [[target]]\nname = 'f'\nkind = 'ceiling'\ntransport = 'aoe'\nlink = 'veth'\n\
             [[matrix]]\nstyle = 'shared'\nrw = 'randread'\ndetail = '64K'\nluns = [1, 2]",
        );
        for part in [
            "target[0].transport: ",
            "plan.toml:5:8: target[0].hops: no chain can lead to this target; ",
            "target[3].hops: ",
            "plan.toml:32:8: matrix[0].luns: a block device is one LUN; write luns = 1, or name targets without `block:`",
            "target[1].name: it is missing",
            "target[1].store: ",
            "target[1].link: ",
            "matrix[0].style: ",
            "matrix[0].detail: ",
            "target[4].transport: AoE does not run over loopback; ",
            "target[4].store: vblade serves only files; ",
            "target[5].transport: the ceiling does not support AoE; ",
        ] {
            assert!(problems.contains(part), "{part}\nis missing in\n{problems}");
        }
        assert!(!problems.contains("target[2]"), "Lunette can stand before tgt: {problems}");
        for none in ["", "target = []"] {
            assert!(faults(none).contains("add a table under [[target]]"), "{none}");
        }
        assert!(faults("title = ").contains("plan.toml:1:"));
    }

    #[test]
    fn too_many_rows_are_refused() {
        let list = (1..=200).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        let problems =
            faults(&format!("[[target]]\nname = 'a'\n[[matrix]]\niodepth = [{list}]\nnumjobs = [{list}]"));
        assert!(problems.contains("40000 rows are too many"), "{problems}");
    }

    #[test]
    fn a_target_is_measured_over_each_of_its_transports() {
        let text =
            "[[target]]\nname = 'disk'\nstore = 'disk:64M'\ntransport = ['local', 'iscsi']\n[[matrix]]";
        let plan = read(text, Path::new("p")).unwrap_or_else(|error| panic!("{error}"));
        let names: Vec<&str> = plan.targets.iter().map(|target| target.name.as_str()).collect();
        assert_eq!(names, ["disk, local", "disk, iSCSI"]);
        let text = "[[target]]\nname = 'top'\nkind = 'ceiling'\ntransport = ['iser', 'srp']\n\
                    [[target]]\nname = 'theirs'\nurl = 'iser://h/iqn.2001-04.com.example:x/0'\n[[matrix]]";
        let plan = read(text, Path::new("p")).unwrap_or_else(|error| panic!("{error}"));
        let ways: Vec<(&str, Transport)> =
            plan.targets.iter().map(|target| (target.name.as_str(), target.transport)).collect();
        let expected =
            [("top, iSER", Transport::Iser), ("top, SRP", Transport::Srp), ("theirs", Transport::Iser)];
        assert_eq!(ways, expected);
    }

    #[test]
    fn others_are_reached_in_the_one_way_that_they_have() {
        let problems = faults(
            "[[target]]\nname = 'a'\nkind = 'tgt'\ntransport = ['iscsi', 'iser']\n\
             [[target]]\nname = 'b'\nurl = 'iser://h/iqn.2001-04.com.example:x/0'\ntransport = 'srp'\n[[matrix]]",
        );
        assert!(problems.contains("target[0].transport: this target has only one transport"), "{problems}");
        assert!(
            problems.contains("target[1].transport: ") && problems.contains("write transport = \"iser\""),
            "{problems}"
        );
    }
}
