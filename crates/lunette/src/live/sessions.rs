//! Sessions as JSON, and ending them by an administrator.

use super::{events, fault, readings, refused};
use admin::{Hub, Refusal, Refused};
use engine::{SessionError, SessionSummary};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// How long a client waits for the end of a session.
const END_WITHIN: Duration = Duration::from_secs(115);

/// The sessions of a daemon, for clients of the admin interface.
pub(crate) struct Sessions(pub(crate) engine::Sessions);

impl admin::Sessions for Sessions {
    fn list(&self) -> Result<Vec<Value>, Refused> {
        let listed = self.0.list().map_err(|error| why(error, 0))?;
        Ok(listed.iter().map(json).collect())
    }

    fn end(&self, id: u64, dry_run: bool, who: &str, hub: &Hub) -> Result<Vec<String>, Refused> {
        let dry = if dry_run { " (dry run)" } else { "" };
        let ended = self.0.list().and_then(|sessions| {
            let session = sessions.into_iter().find(|session| session.id == id);
            let session = session.ok_or(SessionError::NotFound)?;
            if session.interface.is_some() {
                return Err(SessionError::Sessionless);
            }
            if !dry_run {
                self.0.end(id, END_WITHIN)?;
            }
            let SessionSummary { initiator, from, .. } = session;
            Ok(format!("disconnect session {id} of {} at {from}", wire::shown(&initiator)))
        });
        let answer = ended.map(|step| vec![step]).map_err(|error| why(error, id));
        let what = format!("disconnect session {id}");
        let (outcome, steps) = match &answer {
            Ok(steps) => {
                tracing::info!(who, "admin: {}{dry}: done", steps.concat());
                ("done", &steps[..])
            }
            Err(Refused { title, .. }) => {
                tracing::warn!(who, "admin: {what}{dry}: {title}");
                (title.as_str(), &[][..])
            }
        };
        if !dry_run {
            let data = events::change(who, &what, outcome, steps);
            hub.report("change", &events::timed(data));
        }
        answer
    }
}

pub(super) fn why(error: SessionError, id: u64) -> Refused {
    let place = format!("session {id}");
    match error {
        SessionError::NotFound => {
            let fault = fault(&place, "there is none with that number", "list them: lunette sessions");
            refused(Refusal::NotFound, "not found; nothing was changed", vec![fault])
        }
        SessionError::Sessionless => {
            let what = "AoE has no sessions to end: the initiator's next frame would be served as usual";
            let fix = "hide the unit from it with its MAC mask list (lunette aoe mask)";
            let fault = fault(&place, what, fix);
            refused(Refusal::Conflict, "it cannot be disconnected", vec![fault])
        }
        SessionError::Ending => refused(Refusal::UnderWay, "it is already ending", Vec::new()),
        SessionError::Silent => {
            let fault = fault("cores", "a core does not answer", "see the log; try again");
            refused(Refusal::Silent, "the daemon does not answer", vec![fault])
        }
    }
}

fn json(session: &SessionSummary) -> Value {
    let keys: Map<String, Value> =
        session.keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into())).collect();
    let isid = |(isid, _): &([u8; 6], u16)| isid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    json!({
        "id": session.id,
        "initiator": session.initiator,
        "alias": session.alias,
        "transport": session.transport,
        "address": session.from,
        "portal": session.portal.map(|portal| portal.to_string()),
        "interface": session.interface.as_ref().map(|(name, _)| name),
        "aoe": session.interface.as_ref().map(|(_, address)| address),
        "target": session.target,
        "isid": session.isid.as_ref().map(isid),
        "tsih": session.isid.map(|(_, tsih)| tsih),
        "core": session.core,
        "state": session.state,
        "age_seconds": session.age.as_millis() as f64 / 1e3,
        "in_flight": session.in_flight,
        "commands": session.commands,
        "read_bytes": session.read_bytes,
        "write_bytes": session.write_bytes,
        "stats": readings::stats(&session.counts),
        "keys": keys,
    })
}
