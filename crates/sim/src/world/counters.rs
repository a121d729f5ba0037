//! The counters of a daemon's sessions add up between any two turns of a core.

use engine::world::Counted;

/// Each command that a session has received is in flight, or was counted exactly once, as ended or as
/// aborted.
pub(crate) fn check(mut sessions: impl Iterator<Item = Counted>) -> Result<(), String> {
    let wrong = sessions.find(|of| {
        let seen = of.counts.commands() + of.counts.aborted() + of.in_flight as u64;
        seen > of.commands || seen < of.commands && !of.has_copies
    });
    let Some(Counted { session, commands, in_flight, counts, .. }) = wrong else { return Ok(()) };
    Err(format!(
        "{commands} commands have come to session {session}: {in_flight} are in flight, {} are counted as ended, {} as aborted",
        counts.commands(),
        counts.aborted()
    ))
}
