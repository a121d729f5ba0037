//! `lunette drain`: has the initiators of a portal leave it.

use crate::Failure;
use crate::manage::{ChangeArguments, path};
use clap::Args;
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// How often it is checked who is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long the end of a session that did not log out may take.
const ENDING: Duration = Duration::from_secs(10);

/// `lunette drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArguments {
    /// The portal: its name or address
    portal: String,
    /// Send logins to this address meanwhile (target moved temporarily)
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "cancel")]
    to: Option<String>,
    /// How long initiators have to log out before their sessions are ended
    #[arg(long, value_name = "TIME", default_value = "30s", conflicts_with = "cancel")]
    within: String,
    /// Take logins again
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

/// Drains a portal, and returns when nobody is there any more.
pub(crate) fn run(arguments: &DrainArguments) -> Result<String, Failure> {
    let DrainArguments { portal, to, within, cancel, change } = arguments;
    let within = (!cancel).then_some(within);
    let body = json!({ "drain": within, "redirect": to });
    let done = change.make("PATCH", &path(&["portals", portal]), Some(&body))?;
    if *cancel || change.is_dry_run() {
        return Ok(done);
    }
    match wait(change)? {
        0 => Ok(format!("{done}Nobody is there any more.\n")),
        left => Err(Failure::failed(format!(
            "{left} sessions have yet to end: lunette sessions lists them, and the log says what they wait for"
        ))),
    }
}

/// Waits for the sessions of portals that are drained; how many are left when they have had their time.
fn wait(change: &ChangeArguments) -> Result<usize, Failure> {
    let portals = change.admin().list("/v1/portals")?;
    let drained: Vec<&Value> = portals.iter().filter(|portal| !portal["drain_s"].is_null()).collect();
    let longest = drained.iter().filter_map(|portal| portal["drain_s"].as_f64()).fold(0.0, f64::max);
    let until = Instant::now() + Duration::from_secs_f64(longest) + ENDING;
    loop {
        let sessions = change.admin().list("/v1/sessions")?;
        let is_there = |session: &&Value| {
            session["target"].is_string() && drained.iter().any(|portal| is_at(session, portal))
        };
        let left = sessions.iter().filter(is_there).count();
        if left == 0 || Instant::now() >= until {
            return Ok(left);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Whether a session came by a portal, which may listen on all addresses.
fn is_at(session: &Value, portal: &Value) -> bool {
    let parse = |value: &Value| value.as_str().and_then(|text| text.parse::<std::net::SocketAddr>().ok());
    let Some((at, listens)) = parse(&session["portal"]).zip(parse(&portal["address"])) else { return false };
    at == listens || listens.ip().is_unspecified() && at.port() == listens.port()
}
