//! `lunette drain`: makes the initiators of a portal leave it.

use crate::Failure;
use crate::manage::{ChangeArguments, path};
use clap::Args;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// How often the remaining sessions are checked.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// How long ending a session that did not log out may take.
const ENDING: Duration = Duration::from_secs(10);

/// `lunette drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArguments {
    /// The portal: its name or address
    portal: String,
    /// Redirect logins to this address meanwhile (target moved temporarily)
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "cancel")]
    to: Option<String>,
    /// How long initiators have to log out before their sessions are ended
    #[arg(long, value_name = "TIME", default_value = "30s", conflicts_with = "cancel")]
    within: String,
    /// Accept logins again
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    change: ChangeArguments,
}

/// Drains a portal, and returns when no sessions are left.
pub(crate) fn run(arguments: &DrainArguments) -> Result<String, Failure> {
    let DrainArguments { portal, to, within, cancel, change } = arguments;
    let within = (!cancel).then_some(within);
    let body = json!({ "drain": within, "redirect": to });
    let done = change.make("PATCH", &path(&["portals", portal]), Some(&body))?;
    if *cancel || change.is_dry_run() {
        return Ok(done);
    }
    match wait(portal, change)? {
        0 => Ok(format!("{done}No sessions are left.\n")),
        left => Err(Failure::failed(format!(
            "{left} sessions have not ended yet: lunette sessions lists them, and the log shows what they wait for"
        ))),
    }
}

/// Waits for the sessions of a drained portal; returns how many are left after the time limit.
fn wait(portal: &str, change: &ChangeArguments) -> Result<usize, Failure> {
    let portals = change.admin().list("/v1/portals")?;
    let index = place(portal, &portals)?;
    let within = portals[index]["drain_s"].as_f64().unwrap_or_default();
    let until = Instant::now() + Duration::from_secs_f64(within) + ENDING;
    loop {
        let sessions = change.admin().list("/v1/sessions")?;
        let is_there =
            |session: &&Value| session["target"].is_string() && portal_of(session, &portals) == Some(index);
        let left = sessions.iter().filter(is_there).count();
        if left == 0 || Instant::now() >= until {
            return Ok(left);
        }
        thread::sleep(CHECK_EVERY);
    }
}

/// The index of a portal that was just drained.
fn place(portal: &str, portals: &[Value]) -> Result<usize, Failure> {
    let index = portals.iter().position(|other| is_called(other, portal));
    index.ok_or_else(|| {
        Failure::failed(format!(
            "portal {portal} was drained, but the daemon does not list it, so its remaining sessions are unknown: lunette sessions lists \
             all sessions, each with its portal"
        ))
    })
}

/// Whether this is the portal's name, or its address in the file.
fn is_called(portal: &Value, name: &str) -> bool {
    let address = config::parse_listen(name).ok();
    portal["name"] == name || address.is_some_and(|address| portal["listen"] == address.to_string())
}

/// The portal of a session, by index.
fn portal_of(session: &Value, portals: &[Value]) -> Option<usize> {
    let parse = |value: &Value| value.as_str()?.parse::<SocketAddr>().ok();
    let addresses: Option<Vec<_>> = portals.iter().map(|portal| parse(&portal["address"])).collect();
    config::portal_of(&addresses?, parse(&session["portal"])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_at_the_portal_that_took_its_connection() {
        let portals = ["0.0.0.0:3260", "[::]:3260", "192.0.2.1:3260", "192.0.2.1:3261"];
        let portals = portals.map(|address| json!({ "address": address }));
        for (at, portal) in [
            ("192.0.2.1:3260", Some(2)),
            ("192.0.2.2:3260", Some(0)),
            ("[2001:db8::1]:3260", Some(1)),
            ("192.0.2.1:3261", Some(3)),
            ("192.0.2.2:3261", None),
        ] {
            assert_eq!(portal_of(&json!({ "portal": at }), &portals), portal, "{at}");
        }
        assert_eq!(portal_of(&json!({ "portal": null }), &portals), None, "AoE");
    }

    #[test]
    fn a_portal_is_called_by_its_name_or_its_address() {
        let portal = json!({ "name": "fast", "listen": "192.0.2.1:3260", "address": "192.0.2.1:3260" });
        assert!(["fast", "192.0.2.1", "192.0.2.1:3260"].iter().all(|name| is_called(&portal, name)));
        assert!(["slow", "192.0.2.2", "192.0.2.1:3261"].iter().all(|name| !is_called(&portal, name)));
    }

    #[test]
    fn sessions_at_unlisted_portals_are_not_shown() {
        let portals = [json!({ "name": "fast", "listen": "192.0.2.1:3260" })];
        assert_eq!(place("fast", &portals).ok(), Some(0));
        let failure = place("slow", &portals).expect_err("it is not there");
        let found = (
            failure.text.starts_with("portal slow was drained, but the daemon does not list it"),
            failure.status,
        );
        assert_eq!(found, (true, 1), "{}", failure.text);
    }
}
