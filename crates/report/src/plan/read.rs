//! TOML into a plan. Every fault is found at once: syntax, types, unknown keys, wrong words, names of nothing.

use super::words::{self, Fault};
use super::{
    Direction, Kind, Matrix, Plan, PlanError, REPETITIONS_MAX, ROWS_MAX, Scheduling, Store, Target, Transport,
};
use bench::job::Poll;
use bench::run::{DEPTH_MAX, THREADS_MAX};
use config::Problem;
use config::redact;
use std::path::Path;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Highest core that a plan may name.
const CORE_MAX: u64 = 4095;
/// Entries of one list.
const LIST_MAX: usize = 256;

pub(super) fn read(text: &str, file: &Path) -> Result<Plan, PlanError> {
    let mut faults = Faults { file, text, found: Vec::new() };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let what = error.message().lines().next().unwrap_or("not TOML").to_string();
        let offset = error.span().map_or(0, |span| span.start);
        faults.add("", offset, Fault::new(what, "see https://toml.io for the syntax"));
    }
    let plan = errors.is_empty().then(|| root(document.get_ref(), &mut faults));
    let mut problems = faults.found;
    problems.sort_by_key(|problem| problem.position);
    plan.filter(|_| problems.is_empty()).ok_or(PlanError(problems))
}

fn root(entries: &DeTable<'_>, faults: &mut Faults<'_>) -> Plan {
    let mut table = Table::new(entries, String::new(), 0);
    let title = table.text("title", faults);
    let note = table.text("note", faults);
    let repetitions = table.number("repetitions", 1, u64::from(REPETITIONS_MAX), faults);
    let runtime = table.one("runtime", words::duration, faults);
    let ramp = table.one("ramp", words::duration, faults);
    let seed = table.number("seed", 0, u64::MAX, faults);
    let mut schedulings = Scheduling::builtin();
    for mut entry in table.tables("scheduling", faults) {
        let scheduling = scheduling(&mut entry, faults);
        entry.name_once(&scheduling.name, schedulings.iter().map(|other| other.name.as_str()), faults);
        schedulings.push(scheduling);
        entry.finish(faults);
    }
    let mut targets: Vec<Target> = Vec::new();
    for mut entry in table.tables("target", faults) {
        for target in target(&mut entry, faults) {
            entry.name_once(&target.name, targets.iter().map(|other| other.name.as_str()), faults);
            targets.push(target);
        }
        entry.finish(faults);
    }
    let mut matrices = Vec::new();
    for mut entry in table.tables("matrix", faults) {
        let index = matrices.len();
        matrices.push(matrix(&mut entry, index, &targets, &schedulings, faults));
        entry.finish(faults);
    }
    for (missing, key) in [(targets.is_empty(), "target"), (matrices.is_empty(), "matrix")] {
        if missing && !faults.found.iter().any(|problem| problem.path.starts_with(key)) {
            faults.add(key, 0, Fault::new("there is none", format!("add a table under [[{key}]]")));
        }
    }
    table.finish(faults);
    let runtime = runtime.unwrap_or(Duration::from_secs(5));
    Plan {
        title: title.unwrap_or_else(|| "Storage targets compared".into()),
        note: note.unwrap_or_default(),
        repetitions: repetitions.and_then(|number| u32::try_from(number).ok()).unwrap_or(5),
        runtime,
        ramp: ramp.unwrap_or(Duration::from_secs(1)),
        seed: seed.unwrap_or(1),
        quick: false,
        targets,
        schedulings,
        matrices,
    }
}

impl Scheduling {
    /// Those that every plan may name.
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

fn scheduling(table: &mut Table<'_, '_>, faults: &mut Faults<'_>) -> Scheduling {
    let core = |text: &str| words::number(text, 0, CORE_MAX).map(|core| core as usize);
    Scheduling {
        name: table.required("name", faults),
        target_cores: table.list("target_cores", core, faults).unwrap_or_default(),
        target_poll: table.one("target_poll", words::poll, faults).unwrap_or_default(),
        cores: table.list("cores", core, faults).unwrap_or_default(),
        poll: table.one("poll", words::poll, faults).unwrap_or_default(),
    }
}

/// A target for each way to it.
fn target(table: &mut Table<'_, '_>, faults: &mut Faults<'_>) -> Vec<Target> {
    let name = table.required("name", faults);
    let kind = table.one("kind", Kind::word, faults);
    let url = table.one("url", words::url, faults);
    let store = table.one("store", words::store, faults);
    let transports = table.list("transport", words::transport, faults);
    let link = table.one("link", words::link, faults);
    let hops = table.number("hops", 0, 8, faults).and_then(|hops| u32::try_from(hops).ok()).unwrap_or(0);
    let overwrite = table.one("overwrite", words::switch, faults).unwrap_or(false);
    if url.is_some() && kind.is_some() {
        table.fault("url", Fault::new("`kind` is given as well", "give one of them"), faults);
    }
    if url.is_some() && store.is_some() {
        table.fault("store", Fault::new("a target that runs has its own", "remove it"), faults);
    }
    let kind = url.map(Kind::Url).or(kind).unwrap_or(Kind::Lunette);
    let transports = transports.unwrap_or_else(|| vec![kind.usual_transport()]);
    let own = kind == Kind::Lunette;
    let local = transports.contains(&Transport::Local);
    if local && !own {
        let fix = "only a store of Lunette can be local; write transport = \"iscsi\"";
        table.fault("transport", Fault::new("this target is behind a network", fix), faults);
    }
    let usual = kind.usual_transport();
    if matches!(kind, Kind::Tgt | Kind::Vblade | Kind::Spdk(_) | Kind::Url(_))
        && transports.iter().any(|transport| *transport != usual)
        && !local
    {
        let fix =
            format!("only Lunette and the ceiling have several; write transport = \"{}\"", usual.word());
        table.fault("transport", Fault::new("this target has one way to it", fix), faults);
    }
    if link.is_some() && (local || matches!(kind, Kind::Url(_))) {
        let fix = "give it only to targets that the report starts itself";
        table.fault("link", Fault::new("no link can be made to this target", fix), faults);
    }
    let aoe = transports.contains(&Transport::Aoe);
    if aoe && kind == Kind::Ceiling {
        let fix = "name another transport; rows over AoE have no ceiling";
        table.fault("transport", Fault::new("the ceiling does not speak AoE", fix), faults);
    }
    if aoe && link.is_none() && !matches!(kind, Kind::Url(_)) {
        let fix = "give the target a link: \"veth\", or a rate";
        table.fault("transport", Fault::new("AoE is not spoken over loopback", fix), faults);
    }
    if kind == Kind::Vblade && matches!(store, Some(Store::Null(_))) {
        table.fault("store", Fault::new("vblade has files only", "write tmpfs:SIZE or disk:SIZE"), faults);
    }
    if hops > 0 && (!(own || kind == Kind::Tgt) || local || aoe) {
        let fix = "give it only to targets of kind lunette or tgt behind iSCSI";
        table.fault("hops", Fault::new("nothing can stand before this target", fix), faults);
    }
    let store = store.unwrap_or(Store::Ram(1 << 30));
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
    faults: &mut Faults<'_>,
) -> Matrix {
    let count = |most: u64| move |text: &str| words::number(text, 1, most).map(|number| number as u32);
    let threads = count(THREADS_MAX as u64);
    let named = |text: &str, names: Vec<&str>| {
        let places: Vec<(&str, usize)> = names.into_iter().zip(0..).collect();
        words::known(text, &places)
    };
    let target = |text: &str| named(text, targets.iter().map(|target| target.name.as_str()).collect());
    let scheduling = |text: &str| named(text, schedulings.iter().map(|s| s.name.as_str()).collect());
    let bs = table.list("bs", words::block_size, faults).unwrap_or_else(|| vec![4096]);
    let detail = table.list("detail", words::block_size, faults);
    if detail.as_ref().is_some_and(|detail| detail.iter().any(|size| !bs.contains(size))) {
        let fix = "name block sizes that are in bs";
        table.fault("detail", Fault::new("this block size is not measured", fix), faults);
    }
    let mixed = |text: &str| words::number(text, 0, 100).map(|percent| percent as u8);
    let matrix = Matrix {
        title: table.text("title", faults).unwrap_or_else(|| format!("Matrix {}", index + 1)),
        note: table.text("note", faults).unwrap_or_default(),
        targets: table.list("targets", target, faults).unwrap_or_else(|| (0..targets.len()).collect()),
        schedulings: table.list("scheduling", scheduling, faults).unwrap_or_else(|| vec![0]),
        rw: table.list("rw", words::direction, faults).unwrap_or_else(|| vec![Direction::RandRead]),
        iodepth: table.list("iodepth", count(DEPTH_MAX.into()), faults).unwrap_or_else(|| vec![32]),
        numjobs: table.list("numjobs", threads, faults).unwrap_or_else(|| vec![1]),
        initiators: table.list("initiators", count(64), faults).unwrap_or_else(|| vec![1]),
        luns: table.list("luns", count(64), faults).unwrap_or_else(|| vec![1]),
        immediate_data: table.list("immediate_data", words::switch, faults).unwrap_or_else(|| vec![true]),
        digests: table.list("digests", words::digests, faults).unwrap_or_else(|| vec![(false, false)]),
        shared: table.one("style", words::shared, faults).unwrap_or(false),
        rwmixread: table.one("rwmixread", mixed, faults).unwrap_or(50),
        detail: detail.unwrap_or_else(|| bs.iter().take(1).copied().collect()),
        bs,
    };
    let is_device = |place: &usize| matches!(targets[*place].store, Store::Block(_));
    if matrix.luns.iter().any(|luns| *luns > 1) && matrix.targets.iter().any(is_device) {
        let fix = "write luns = 1, or name targets without `block:`";
        table.fault("luns", Fault::new("a block device is one LUN", fix), faults);
    }
    let in_order = |rw: &Direction| matches!(rw, Direction::Read | Direction::Write | Direction::Trim);
    if matrix.shared && !matrix.rw.iter().all(in_order) {
        let fix = "write rw = [\"read\", \"write\"], or style = \"depth\"";
        table.fault("style", Fault::new("threads that share one range go through it in order", fix), faults);
    }
    let rows = crate::matrix::size(&matrix);
    if rows > ROWS_MAX {
        let what = format!("{rows} rows are too many");
        table.fault("", Fault::new(what, format!("shorten its lists to at most {ROWS_MAX} rows")), faults);
    }
    matrix
}

/// All that is wrong, with places.
struct Faults<'a> {
    file: &'a Path,
    text: &'a str,
    found: Vec<Problem>,
}

impl Faults<'_> {
    fn add(&mut self, path: &str, offset: usize, fault: Fault) {
        let before = self.text.get(..offset).unwrap_or_default();
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before[line_start..].chars().count() + 1;
        let position = Some((before.matches('\n').count() + 1, column));
        let file = Some(self.file.to_path_buf());
        self.found.push(Problem::quoting(file, position, path, &fault.what, &fault.fix));
    }
}

/// A table that is being read: it remembers which keys it was asked for, so that the others are unknown.
struct Table<'a, 't> {
    entries: &'a DeTable<'t>,
    path: String,
    offset: usize,
    asked: Vec<&'static str>,
}

impl<'a, 't> Table<'a, 't> {
    fn new(entries: &'a DeTable<'t>, path: String, offset: usize) -> Table<'a, 't> {
        Table { entries, path, offset, asked: Vec::new() }
    }

    fn finish(self, faults: &mut Faults<'_>) {
        for key in self.entries.keys() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                let fix = config::suggest(name, self.asked.iter().copied());
                faults.add(&self.path_of(&redact(name)), key.span().start, Fault::new("unknown key", fix));
            }
        }
    }

    /// A fault of one key of it, or of the whole.
    fn fault(&self, key: &str, fault: Fault, faults: &mut Faults<'_>) {
        let offset = self.entries.get(key).map_or(self.offset, |value| value.span().start);
        faults.add(&self.path_of(key), offset, fault);
    }

    fn name_once<'n>(&self, name: &str, mut others: impl Iterator<Item = &'n str>, faults: &mut Faults<'_>) {
        if others.any(|other| other == name) {
            self.fault("name", Fault::new(format!("`{name}` is there already"), "choose another"), faults);
        }
    }

    fn text(&mut self, key: &'static str, faults: &mut Faults<'_>) -> Option<String> {
        self.one(key, |text| Ok(text.to_string()), faults)
    }

    fn required(&mut self, key: &'static str, faults: &mut Faults<'_>) -> String {
        let text = self.text(key, faults).filter(|text| !text.trim().is_empty());
        if text.is_none() && !faults.found.iter().any(|problem| problem.path == self.path_of(key)) {
            self.fault(key, Fault::new("it is missing", format!("write {key} = \"...\"")), faults);
        }
        text.unwrap_or_default()
    }

    fn number(&mut self, key: &'static str, least: u64, most: u64, faults: &mut Faults<'_>) -> Option<u64> {
        self.one(key, |text| words::number(text, least, most), faults)
    }

    /// A value: a string, a number or a switch.
    fn one<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Fault>,
        faults: &mut Faults<'_>,
    ) -> Option<T> {
        self.asked.push(key);
        let value = self.entries.get(key)?;
        let path = self.path_of(key);
        scalar(value, &path, "one value", &parse, faults)
    }

    /// A value, or an array of them; none twice.
    fn list<T: PartialEq>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, Fault>,
        faults: &mut Faults<'_>,
    ) -> Option<Vec<T>> {
        self.asked.push(key);
        let value = self.entries.get(key)?;
        let path = self.path_of(key);
        let Some(array) = value.get_ref().as_array() else {
            return scalar(value, &path, "one value, or an array of them", &parse, faults)
                .map(|one| vec![one]);
        };
        if array.is_empty() || array.len() > LIST_MAX {
            let fix = format!("write 1 to {LIST_MAX} values, or remove the key");
            faults.add(&path, value.span().start, Fault::new("the list has a wrong length", fix));
        }
        let mut list = Vec::new();
        for (index, item) in array.iter().take(LIST_MAX).enumerate() {
            let path = format!("{path}[{index}]");
            match scalar(item, &path, "one value", &parse, faults) {
                Some(value) if list.contains(&value) => {
                    faults.add(&path, item.span().start, Fault::new("it is there already", "remove it"));
                }
                value => list.extend(value),
            }
        }
        Some(list)
    }

    fn tables(&mut self, key: &'static str, faults: &mut Faults<'_>) -> Vec<Table<'a, 't>> {
        self.asked.push(key);
        let Some(value) = self.entries.get(key) else { return Vec::new() };
        let items = value
            .get_ref()
            .as_array()
            .map(|array| array.iter().map(|item| (item, item.get_ref().as_table())));
        let mut tables = Vec::new();
        let mut wrong = items.is_none().then(|| value.span().start);
        for (index, (item, table)) in items.into_iter().flatten().enumerate() {
            let path = format!("{}[{index}]", self.path_of(key));
            match table {
                Some(entries) => tables.push(Table::new(entries, path, item.span().start)),
                None => wrong = Some(item.span().start),
            }
        }
        if let Some(offset) = wrong {
            let fix = format!("write tables, each under a [[{key}]] header");
            faults.add(&self.path_of(key), offset, Fault::new("this is no table", fix));
        }
        tables
    }

    fn path_of(&self, key: &str) -> String {
        match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.into(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        }
    }
}

fn scalar<T>(
    value: &Spanned<DeValue<'_>>,
    path: &str,
    wanted: &str,
    parse: &impl Fn(&str) -> Result<T, Fault>,
    faults: &mut Faults<'_>,
) -> Option<T> {
    let text = match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Some(number.as_str().into()), |number| Some(number.to_string())),
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    };
    let parsed = match text {
        Some(text) => parse(&text),
        None => {
            let what = format!("the type {} does not fit", value.get_ref().type_str());
            Err(Fault::new(what, format!("write {wanted}: a string or a whole number")))
        }
    };
    match parsed {
        Ok(value) => Some(value),
        Err(fault) => {
            faults.add(path, value.span().start, fault);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> String {
        read(text, Path::new("plan.toml")).expect_err("wrong on purpose").to_string()
    }

    #[test]
    fn all_faults_are_told_at_once_with_place_and_cure() {
        let told = faults(
            "repetitions = 0\nruntime = 'long'\ncolour = 1\n[[target]]\nname = 'a'\nkind = 'lunete'\n\
             [[target]]\nname = 'a'\n[[matrix]]\nbs = ['4K', 1000, '4K']\nrw = ['rread']\ntargets = 'b'\n\
             iodepth = 1.5\n",
        );
        for line in [
            "plan.toml:1:15: repetitions: `0` is out of range; choose a whole number from 1 to 100",
            "plan.toml:2:11: runtime: `long` is not a time; write as 15s, 500ms or 2m",
            "plan.toml:3:1: colour: unknown key; known here: title, note, repetitions, runtime, ramp, seed, scheduling, target, matrix",
            "plan.toml:6:8: target[0].kind: `lunete` is not known; did you mean `lunette`?",
            "plan.toml:8:8: target[1].name: `a` is there already; choose another",
            "plan.toml:10:13: matrix[0].bs[1]: `1000` cannot be a block size; choose a multiple of 512 up to 256K",
            "plan.toml:10:19: matrix[0].bs[2]: it is there already; remove it",
            "plan.toml:11:7: matrix[0].rw[0]: `rread` is not known; did you mean `read`?",
            "plan.toml:12:11: matrix[0].targets: `b` is not known; did you mean `a`?",
            "plan.toml:13:11: matrix[0].iodepth: the type float does not fit; write one value, or an array of them: a string or a whole number",
        ] {
            assert!(told.lines().any(|other| other == line), "{line}\nis missing in\n{told}");
        }
        assert_eq!(told.lines().count(), 10, "{told}");
    }

    #[test]
    fn what_cannot_be_together_is_told() {
        let told = faults(
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
            "plan.toml:5:8: target[0].hops: nothing can stand before this target; ",
            "target[3].hops: ",
            "plan.toml:32:8: matrix[0].luns: a block device is one LUN; write luns = 1, or name targets without `block:`",
            "target[1].name: it is missing",
            "target[1].store: ",
            "target[1].link: ",
            "matrix[0].style: ",
            "matrix[0].detail: ",
            "target[4].transport: AoE is not spoken over loopback; ",
            "target[4].store: vblade has files only; ",
            "target[5].transport: the ceiling does not speak AoE; ",
        ] {
            assert!(told.contains(part), "{part}\nis missing in\n{told}");
        }
        assert!(!told.contains("target[2]"), "Lunette can stand before tgt: {told}");
        assert!(faults("").contains("add a table under [[target]]"));
        assert!(faults("title = ").contains("plan.toml:1:"));
    }

    #[test]
    fn too_many_rows_are_refused() {
        let list = (1..=200).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        let told =
            faults(&format!("[[target]]\nname = 'a'\n[[matrix]]\niodepth = [{list}]\nnumjobs = [{list}]"));
        assert!(told.contains("40000 rows are too many"), "{told}");
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
        let told = faults(
            "[[target]]\nname = 'a'\nkind = 'tgt'\ntransport = ['iscsi', 'iser']\n\
             [[target]]\nname = 'b'\nurl = 'iser://h/iqn.2001-04.com.example:x/0'\ntransport = 'srp'\n[[matrix]]",
        );
        assert!(told.contains("target[0].transport: this target has one way to it"), "{told}");
        assert!(
            told.contains("target[1].transport: ") && told.contains("write transport = \"iser\""),
            "{told}"
        );
    }
}
