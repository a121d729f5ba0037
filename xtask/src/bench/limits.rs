//! Upper limits, measured by separate programs.

use crate::command::{DIST, Result, cargo, describe, lunette};
use crate::instructions::Figures;
use std::process::Stdio;

/// A figure printed by another program.
pub(super) struct Limit {
    /// Its name in the file of figures.
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    /// Arguments of cargo.
    command: &'static [&'static str],
    /// The text right before the figure.
    label: &'static str,
    pub(super) at_most: f64,
}

/// The command's tests that measure the memory used per session.
const TEN_THOUSAND: &str = "idle::soak::so_it_does_among_ten_thousand";

pub(super) const LIMITS: [Limit; 5] = [
    Limit {
        name: "quiet_p99",
        what: "p99 latency of 100 quiet sessions beside a loud one, of theirs alone",
        command: &["bench", "--locked", "--package", "lunette", "--bench", "fairness"],
        label: "beside a loud session / alone, median of 5: ",
        at_most: 3.0,
    },
    Limit {
        name: "idle_cpu_percent",
        what: "CPU of a daemon with 100 idle sessions, adaptive polling, % of a core",
        command: &["bench", "--locked", "--package", "lunette", "--bench", "idle"],
        label: "100 idle sessions, % of a core: ",
        at_most: 0.2,
    },
    Limit {
        name: "idle_10000_cpu_percent",
        what: "CPU of a daemon with 10,000 idle sessions, adaptive polling, % of a core",
        command: &["bench", "--locked", "--package", "lunette", "--bench", "idle"],
        label: "10000 idle sessions, % of a core: ",
        at_most: 0.2,
    },
    Limit {
        name: "small_bytes",
        what: "memory of a daemon with 100 LUNs and 100 sessions beside its arenas, bytes",
        command: &["bench", "--locked", "--package", "lunette", "--bench", "idle"],
        label: "100 LUNs and 100 sessions, bytes: ",
        at_most: 24e6,
    },
    Limit {
        name: "idle_session_bytes",
        what: "memory of each of 10,000 idle sessions, bytes",
        command: &[
            "test",
            "--release",
            "--locked",
            "--package",
            "lunette",
            "--test",
            "it",
            "--",
            "--exact",
            TEN_THOUSAND,
        ],
        label: " idle sessions: ",
        at_most: 16384.0,
    },
];

/// Measures them one by one.
pub(super) fn measure(figures: &mut Figures) -> Result {
    for limit in &LIMITS {
        println!("measuring: {}", limit.what);
        let mut command = cargo();
        command.env("LUNETTE_TEST_PROGRAM", lunette(DIST)).args(limit.command);
        let line = describe(&command);
        let output = command.stderr(Stdio::piped()).output();
        let output = output.map_err(|error| format!("cannot run `{line}`: {error}"))?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        print!("{text}");
        // Such a program fails when its limit is exceeded; we report that.
        let figure = figure_after(limit.label, &text)
            .ok_or_else(|| format!("`{line}` printed no figure: {}", output.status))?;
        figures.insert(limit.name.into(), figure);
    }
    Ok(())
}

/// The number after this label.
fn figure_after(label: &str, text: &str) -> Option<f64> {
    let (_, rest) = text.rsplit_once(label)?;
    rest.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_behind_their_words() {
        let text = "99 idle sessions: 5 bytes\nwarm-up over, 100 idle sessions: 14210 bytes of memory each\n";
        assert_eq!(figure_after(" idle sessions: ", text), Some(14210.0));
        let text = "beside a loud session / alone, median of 5: 2.71\nbeside hostile peers / alone, median of 5: 1.04\n";
        assert_eq!(figure_after(LIMITS[0].label, text), Some(2.71));
        assert_eq!(figure_after("alone: ", text), None);
        assert_eq!(figure_after("median of 5: ", "median of 5: none"), None);
    }

    /// Cargo runs no test, and reports success, if a filter matches none.
    #[test]
    fn the_test_that_counts_what_sessions_take_is_there() {
        let (module, test) = TEN_THOUSAND.split_once("::soak::").expect("a soak test");
        let path = crate::command::root().join(format!("crates/lunette/tests/it/{module}.rs"));
        let text = std::fs::read_to_string(path).expect("a module of the command's tests");
        assert!(text.contains(&format!("fn {test}()")));
    }
}
