//! The do-nothing responder as a separate process.

use super::{Row, Started};
use crate::plan::{Store, show_poll};
use bench::job::Poll;
use config::show_cores;
use lab::{Daemon, IN_ORDER};
use std::path::Path;

/// Starts `lunette ceiling`, which has a unit at every LUN. It has no store; for one in memory it reads as
/// much memory.
pub(super) fn start(program: &Path, row: &Row, started: &mut Started) -> Result<(), String> {
    let scheduling = &row.scheduling;
    // Adaptive polling is more than nothing: it is compared with the ceiling that sleeps.
    let poll = match scheduling.target_poll {
        Poll::Always => Poll::Always,
        Poll::Adaptive | Poll::Never => Poll::Never,
    };
    let place = &started.place;
    let mut arguments = vec!["ceiling".to_string(), "--listen".into(), format!("{}:0", place.address())];
    arguments.extend(["--poll".into(), show_poll(poll).into()]);
    if !scheduling.target_cores.is_empty() {
        arguments.extend(["--cores".into(), show_cores(&scheduling.target_cores)]);
    }
    if let Store::Ram(bytes) = row.target.store {
        arguments.extend(["--payload".into(), bytes.to_string()]);
    }
    let line = [place.prefix(&[]), vec!["lunette".into()], arguments.clone()].concat().join(" ");
    let daemon = Daemon::start(place.command(program, &[], IN_ORDER).args(arguments), &line)?;
    started.commands.push(line);
    started.targets = daemon.units(row.luns, row.target.transport.scheme().ok_or("it needs a transport")?)?;
    started.pid = Some(daemon.pid());
    started.daemons.push(daemon);
    Ok(())
}
