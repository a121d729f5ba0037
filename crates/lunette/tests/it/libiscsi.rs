//! Conformance, tested by `iscsi-test-cu` of libiscsi. The outcome of each test must be as
//! docs/conformance.md states.

use crate::support::conformance::{self, Claim, READ_ONLY, claim};
use crate::support::daemon::Daemon;
use crate::support::nbd::NbdServer;
use crate::support::tools::{LoopDevice, run, tail, tool};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;

/// Larger than the longest WRITE SAME, so that its limit is tested too.
const UNIT_BYTES: u64 = 256 << 20;
/// All tests in one process take about half a minute; a few of them wait for seconds on purpose.
const RUN_LIMIT: Duration = Duration::from_secs(900);
/// Daemons at a time when every suite gets its own.
const SUITE_WORKERS: usize = 3;

/// The unit's store.
#[derive(Clone, Copy)]
enum Medium {
    Ram,
    File,
    Block,
    Nbd,
}

/// A way to configure and reach the unit.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    medium: Medium,
    block_bytes: u32,
    /// Further options of the unit.
    options: &'static str,
    /// User and secret as in the URL (`user%secret@`); also what the daemon requires.
    login: &'static str,
    /// Parameters of the URL.
    parameters: &'static str,
}

const PLAIN: Variant = Variant {
    name: "ram-512",
    medium: Medium::Ram,
    block_bytes: 512,
    options: "",
    login: "",
    parameters: "",
};

#[test]
fn ram_512() {
    conforms(PLAIN);
}

/// The other variants, which take minutes: `cargo xtask soak` runs them.
mod soak {
    use super::{Medium, PLAIN, READ_ONLY, Variant, conforms};

    #[test]
    fn ram_4096() {
        conforms(Variant { name: "ram-4096", block_bytes: 4096, ..PLAIN });
    }

    #[test]
    fn file_512() {
        conforms(Variant { name: "file-512", medium: Medium::File, ..PLAIN });
    }

    #[test]
    fn file_4096() {
        conforms(Variant { name: "file-4096", medium: Medium::File, block_bytes: 4096, ..PLAIN });
    }

    #[test]
    fn block_512() {
        conforms(Variant { name: "block-512", medium: Medium::Block, ..PLAIN });
    }

    #[test]
    fn block_4096() {
        conforms(Variant { name: "block-4096", medium: Medium::Block, block_bytes: 4096, ..PLAIN });
    }

    #[test]
    fn nbd_512() {
        conforms(Variant { name: "nbd-512", medium: Medium::Nbd, ..PLAIN });
    }

    #[test]
    fn thick() {
        conforms(Variant { name: "thick", options: ",thin=off", ..PLAIN });
    }

    #[test]
    fn removable() {
        conforms(Variant { name: "removable", options: ",removable", ..PLAIN });
    }

    #[test]
    fn read_only() {
        conforms(Variant { name: READ_ONLY, options: ",ro", ..PLAIN });
    }

    #[test]
    fn header_digest() {
        conforms(Variant { name: "header-digest", parameters: "?header_digest=crc32c", ..PLAIN });
    }

    #[test]
    fn chap() {
        conforms(Variant { name: "chap", login: "libiscsi%a-long-secret-9@", ..PLAIN });
    }
}

/// Runs the suites both ways, all in one process and each against a fresh daemon, and compares the results
/// with the tables.
fn conforms(variant: Variant) {
    let listed = list();
    let suites: Vec<&str> = listed.keys().map(String::as_str).collect();
    let expected: BTreeSet<String> = suites
        .iter()
        .flat_map(|suite| listed[*suite].iter().map(move |test| format!("{suite}.{test}")))
        .collect();

    // The tool mostly waits: both ways run in parallel.
    let (together, apart) = std::thread::scope(|scope| {
        let together = scope.spawn(|| Mounted::new(variant).run(&suites));
        let apart = apart(variant, &suites);
        (together.join().expect("a run of the tool"), apart)
    });
    let mut faults = Vec::new();
    for (way, verdicts) in [("in one process", together), ("suite by suite", apart)] {
        faults.extend(check_verdicts(variant.name, way, &expected, &verdicts));
    }
    assert!(faults.is_empty(), "{}:\n{}", variant.name, faults.join("\n"));
}

/// Every suite against a fresh daemon and a fresh medium, a few at a time.
fn apart(variant: Variant, suites: &[&str]) -> Verdicts {
    let queue = Mutex::new(suites.iter());
    let verdicts = Mutex::new(Verdicts::new());
    std::thread::scope(|scope| {
        for _ in 0..SUITE_WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(suite) = queue.lock().expect("no worker panics").next() else { break };
                    let found = Mounted::new(variant).run(&[suite]);
                    verdicts.lock().expect("no worker panics").extend(found);
                }
            });
        }
    });
    verdicts.into_inner().expect("no worker panics")
}

/// What is wrong with these verdicts. Prints a one-line summary.
fn check_verdicts(variant: &str, way: &str, expected: &BTreeSet<String>, verdicts: &Verdicts) -> Vec<String> {
    let (mut passed, mut skipped, mut failed, mut wrong, mut writing) = (0, 0, 0, 0, 0);
    let mut faults = Vec::new();
    for (test, verdict) in verdicts {
        let claim = claim(variant, way, test);
        match (verdict, &claim) {
            (Verdict::Passed, Claim::Passes | Claim::IsWrong { may_pass: true, .. }) => passed += 1,
            (Verdict::Skipped, Claim::IsSkipped) => skipped += 1,
            (Verdict::Failed(_), Claim::Writes) => writing += 1,
            (Verdict::Failed(text), Claim::IsWrong { assertions, .. })
                if !failures(text).is_empty() && failures(text).is_subset(assertions) =>
            {
                wrong += 1;
            }
            (Verdict::Failed(text), _) => {
                failed += 1;
                faults.push(format!("{way}: {test} failed, docs/conformance.md: {claim:?}\n{}", tail(text)));
            }
            (Verdict::Passed | Verdict::Skipped, _) => {
                faults.push(format!("{way}: {test}: {verdict:?}, docs/conformance.md: {claim:?}"));
            }
        }
    }
    // Bypassing libtest's capture: this line is also printed on success.
    let _ = writeln!(
        std::io::stderr(),
        "libiscsi {variant}, {way}: {} tests, {passed} passed, {skipped} skipped, {failed} failed, \
         {wrong} wrong themselves, {writing} refused because they write",
        verdicts.len(),
    );
    let silent = expected.iter().filter(|test| !verdicts.contains_key(*test));
    faults.extend(silent.map(|test| format!("{way}: {test} has no verdict")));
    faults
}

/// The assertions that failed, as `file.c:line`.
fn failures(printed: &str) -> BTreeSet<String> {
    let place = |line: &str| {
        let (number, failure) = line.trim_start().split_once(". ")?;
        number.parse::<u32>().ok()?;
        failure.split_whitespace().next().map(str::to_owned)
    };
    printed.lines().filter_map(place).collect()
}

/// A test's name to the outcome.
type Verdicts = BTreeMap<String, Verdict>;

#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    Passed,
    /// It printed `[SKIPPED]`, anywhere; the tool counts it as passed.
    Skipped,
    /// With its output.
    Failed(String),
}

/// A variant's medium, for one daemon after another.
struct Mounted {
    variant: Variant,
    spec: String,
    /// What is behind it.
    _medium: Box<dyn Any>,
    directory: TempDir,
}

impl Mounted {
    fn new(variant: Variant) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let image = directory.path().join("image");
        let options = format!(",bs={}{}", variant.block_bytes, variant.options);
        let sparse = || {
            let file = std::fs::File::create(&image).expect("an image file");
            file.set_len(UNIT_BYTES).expect("a sparse image");
        };
        let (spec, medium): (String, Box<dyn Any>) = match variant.medium {
            Medium::Ram => (format!("ram:{UNIT_BYTES}{options}"), Box::new(())),
            Medium::File => (format!("file:{},size={UNIT_BYTES}{options}", image.display()), Box::new(())),
            Medium::Block => {
                sparse();
                let device = LoopDevice::over(&image, variant.block_bytes);
                (format!("block:{}{options}", device.path.display()), Box::new(device))
            }
            Medium::Nbd => {
                sparse();
                let server = NbdServer::qemu(&image, &[]);
                (format!("{}{options}", server.text()), Box::new(server))
            }
        };
        Self { variant, spec, _medium: medium, directory }
    }

    /// Runs suites in one process against one fresh daemon.
    fn run(&self, suites: &[&str]) -> Verdicts {
        let daemon = self.serve();
        let url = daemon.lun(0).with(self.variant.login, self.variant.parameters);
        let tests: Vec<String> = suites.iter().map(|suite| format!("ALL.{suite}")).collect();
        // Line-buffered, so that nothing is lost when the tool hangs or crashes; -V because some skips are
        // not reported without it.
        let mut command = tool("stdbuf");
        command.args(["-oL", "iscsi-test-cu", "--dataloss", "--allow-sanitize", "-V", "--verbose"]);
        command.arg(format!("--test={}", tests.join(","))).args([&url, &url]);
        let outcome = run(&mut command, RUN_LIMIT);
        let mut verdicts = parse(&outcome.text);
        if !outcome.text.contains("\nRun Summary:") {
            let (ended, end) = (outcome.status, tail(&outcome.text));
            let log = tail(&daemon.log());
            let text = format!("iscsi-test-cu broke off ({ended:?}):\n{end}\nthe daemon's log:\n{log}");
            verdicts.insert(format!("{}.", suites.join(",")), Verdict::Failed(text));
        }
        daemon.stop();
        verdicts
    }

    fn serve(&self) -> Daemon {
        let Some((user, secret)) = self.variant.login.trim_end_matches('@').split_once('%') else {
            return Daemon::serve(["--lun", &self.spec]);
        };
        // CHAP can only be required in a file.
        let file = self.directory.path().join("lunette.toml");
        let (size, block_size) = (UNIT_BYTES, self.variant.block_bytes);
        let text = format!(
            "[[lun]]\nname = \"disk\"\nram = \"{size}\"\nblock_size = {block_size}\n\
             [[target]]\nname = \"iqn.2026-11.io.lunette:chap\"\nluns = [\"disk\"]\n\
             [[target.group]]\nname = \"testers\"\nchap = {{ user = \"{user}\", secret = \"{secret}\" }}\n"
        );
        std::fs::write(&file, text).expect("a configuration file");
        Daemon::serve(["--config", &file.display().to_string()])
    }
}

/// Tests of libiscsi 1.19.
const TESTS_MIN: usize = 230;

/// What the tool can run: suites and their tests.
fn list() -> BTreeMap<String, Vec<String>> {
    let text = crate::support::tools::must(tool("iscsi-test-cu").arg("--list"));
    let mut suites: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        // Families overlap; `ALL` has everything.
        if let Some((suite, test)) = line.strip_prefix("ALL.").and_then(|name| name.split_once('.')) {
            suites.entry(suite.to_owned()).or_default().push(test.to_owned());
        }
    }
    let tests: usize = suites.values().map(Vec::len).sum();
    assert!(tests >= TESTS_MIN, "iscsi-test-cu lists {tests} tests only:\n{text}");
    suites
}

/// Finds the verdicts in the tool's output:
///
/// ```text
/// Suite: CompareAndWrite
///   Test: Simple ...    [SKIPPED] COMPAREANDWRITE is not implemented.
/// passed
///   Test: DpoFua ...FAILED
///     1. test_compareandwrite_dpofua.c:41  - CU_ASSERT_EQUAL(_r,0)
/// ```
fn parse(text: &str) -> Verdicts {
    let mut verdicts = Verdicts::new();
    for suite in text.split("\nSuite: ").skip(1) {
        let name = suite.lines().next().unwrap_or_default();
        let body = suite.split("\nRun Summary:").next().unwrap_or_default();
        for test in body.split("\n  Test: ").skip(1) {
            let (test, printed) = test.split_once(" ...").unwrap_or((test, ""));
            // What follows the verdict is the end of the suite, not of the test.
            let is_end = |line: &&str| line.starts_with("passed") || line.starts_with("FAILED");
            let skipped =
                printed.lines().take_while(|line| !is_end(line)).any(|line| line.contains("[SKIPPED]"));
            let verdict = match printed.lines().find(is_end) {
                Some(line) if line.starts_with("passed") && skipped => Verdict::Skipped,
                Some(line) if line.starts_with("passed") => Verdict::Passed,
                Some(_) | None => Verdict::Failed(printed.to_owned()),
            };
            verdicts.insert(format!("{name}.{test}"), verdict);
        }
    }
    verdicts
}

#[test]
fn the_tables_name_what_there_is() {
    let tests = list().into_iter();
    let tests = tests.flat_map(|(suite, tests)| tests.into_iter().map(move |test| format!("{suite}.{test}")));
    assert_eq!(conformance::faults(&tests.collect()), [""; 0]);
}

#[test]
fn verdicts_are_found() {
    let printed = "\nSuite: A\n  Test: One ...    [SKIPPED] why\npassed\n  Test: Two ...passed    [SKIPPED] later\n\n  \
                   Test: Three ...    [FAILED] x\nFAILED\n    1. a.c:1\n    12. b.c:23  - CU_FAIL(2. x)\nSuite: B\n  Test: One ...";
    let verdicts = parse(printed);
    assert_eq!(verdicts["A.One"], Verdict::Skipped);
    assert_eq!(verdicts["A.Two"], Verdict::Passed);
    let Verdict::Failed(three) = &verdicts["A.Three"] else { panic!("it failed") };
    assert_eq!(failures(three), ["a.c:1".to_owned(), "b.c:23".to_owned()].into());
    assert!(matches!(verdicts["B.One"], Verdict::Failed(_)));
    assert_eq!(verdicts.len(), 4);
}
