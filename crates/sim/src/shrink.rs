//! Minimises a failing run: leaves out the seed's choices, piece by piece, as long as the same check still
//! fails.

use sim::Cuts;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Enough for a few hundred runs.
const LIMIT: Duration = Duration::from_secs(120);

/// The smallest failing run found; `None`: the run does not fail at all.
pub(crate) fn shrink(seed: u64, cuts: Cuts) -> Result<Option<Cuts>, String> {
    let begun = Instant::now();
    let Some(wanted) = failure(seed, &cuts)? else { return Ok(None) };
    let mut shortest = cuts;
    'again: loop {
        for tried in shortest.further() {
            if begun.elapsed() >= LIMIT {
                break 'again;
            }
            if failure(seed, &tried)?.as_ref() == Some(&wanted) {
                shortest = tried;
                continue 'again;
            }
        }
        break;
    }
    Ok(Some(shortest))
}

/// Which check fails. Uses a child process, since a failed world is not cleaned up.
fn failure(seed: u64, cuts: &Cuts) -> Result<Option<String>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut run = Command::new(program);
    run.args(["--seed", &seed.to_string(), "--cut", &cuts.to_string()]).stderr(Stdio::null());
    let ran = run.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&ran.stdout);
    let begins = format!("seed {seed} fails: ");
    Ok(said.lines().find_map(|line| line.strip_prefix(&begins)).map(check))
}

/// A failure's message, without numbers.
fn check(what: &str) -> String {
    what.split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty() && !word.contains(|letter: char| letter.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join(" ")
}
