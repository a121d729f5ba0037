//! `lunette status`.

use crate::Failure;
use crate::client::AdminArguments;
use crate::luns;
use crate::table::Column::{self, Figures};
use crate::table::{NONE, Table, number, seconds, size, word};
use crate::watch::{self, WatchArguments, pretty};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use wire::scsi::AccessState;
use wire::shown;

/// `lunette status`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 if all is well, 3 if a LUN is not, 1 if the daemon does not answer")]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    watch: WatchArguments,
    #[command(flatten)]
    admin: AdminArguments,
}

/// Exit status when the daemon runs, but a LUN has a problem.
const NOT_WELL: u8 = 3;
/// The number of events shown.
const EVENTS: usize = 8;
/// How many LUNs with problems are listed; more are counted.
const LUNS: usize = 20;

/// Shows the daemon's status.
pub(crate) fn run(arguments: &StatusArguments) -> Result<String, Failure> {
    let admin = arguments.watch.admin(&arguments.admin);
    let mut before = None;
    let mut events = Events::default();
    let mut last = Vec::new();
    let text = arguments.watch.run(|| {
        let status = Status::read(&admin, &mut events)?;
        let text = match (arguments.watch.json, arguments.watch.is_repeated()) {
            (true, false) => pretty(&status.json()),
            (true, true) => format!("{}\n", status.json()),
            (false, _) => status.text(before.as_ref()),
        };
        last = status.ill();
        before = Some(status);
        Ok(text)
    })?;
    if arguments.watch.is_repeated() || last.is_empty() {
        return Ok(text);
    }
    watch::show(&text)?;
    Err(Failure { text: not_well(&last), status: NOT_WELL })
}

fn not_well(ill: &[(String, String)]) -> String {
    let names: Vec<&str> = ill.iter().take(LUNS).map(|(name, _)| name.as_str()).collect();
    let more = match ill.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more (lunette luns shows all)"),
    };
    format!("not well: LUN {}{more}", names.join(", "))
}

/// A reading of a daemon's state.
struct Status {
    /// The process.
    daemon: Value,
    cores: Vec<Value>,
    portals: Vec<Value>,
    portal_groups: Vec<Value>,
    luns: Vec<Value>,
    sessions: Vec<Value>,
    /// The last events, the latest at the end.
    events: Vec<Event>,
}

impl Status {
    fn read(admin: &AdminArguments, events: &mut Events) -> Result<Status, Failure> {
        let daemon = admin.get("/v1/cpu")?.json()?;
        events.read_on(admin);
        Ok(Status {
            daemon,
            cores: admin.cores()?,
            portals: admin.list("/v1/portals")?,
            portal_groups: admin.list("/v1/portal-groups")?,
            luns: admin.list("/v1/luns")?,
            sessions: admin.list("/v1/sessions")?,
            events: events.last.clone(),
        })
    }

    /// LUNs with problems, and what they are.
    fn ill(&self) -> Vec<(String, String)> {
        self.luns.iter().filter_map(|lun| Some((word(&lun["name"]), luns::trouble(lun)?))).collect()
    }

    /// How many sessions each transport has.
    fn by_transport(&self) -> BTreeMap<String, usize> {
        self.sessions.iter().fold(BTreeMap::new(), |mut counts, session| {
            *counts.entry(word(&session["transport"])).or_default() += 1;
            counts
        })
    }

    fn json(&self) -> Value {
        let ill = self.ill();
        let ill: Vec<Value> = ill.iter().map(|(name, why)| json!({ "name": name, "why": why })).collect();
        json!({
            "version": self.daemon["version"],
            "pid": self.daemon["pid"],
            "uptime_seconds": self.daemon["uptime_seconds"],
            "cores": self.cores,
            "portals": self.portals,
            "portal_groups": self.portal_groups,
            "luns": { "count": self.luns.len(), "not_well": ill },
            "sessions": { "count": self.sessions.len(), "by_transport": self.by_transport() },
            "events": self.events.iter().map(Event::json).collect::<Vec<_>>(),
        })
    }

    fn text(&self, before: Option<&Status>) -> String {
        let mut text = format!(
            "Lunette {}, process {}, up {}\n\n",
            word(&self.daemon["version"]),
            number(&self.daemon["pid"]),
            seconds(&self.daemon["uptime_seconds"])
        );
        if !self.cores.is_empty() {
            text += &cores(&self.cores, before.map_or(&[], |before| &before.cores));
            text += "\n";
        }
        text += &format!("Portals   {}\n", self.portals.iter().map(portal).collect::<Vec<_>>().join(", "));
        if self.portal_groups.len() > 1 || self.portal_groups.iter().any(|group| group["state"] != OPTIMIZED)
        {
            let groups: Vec<String> = self.portal_groups.iter().map(portal_group).collect();
            text += &format!("Groups    {}\n", groups.join(", "));
        }
        let by: Vec<String> =
            self.by_transport().iter().map(|(transport, count)| format!("{count} {transport}")).collect();
        let by = if by.is_empty() { String::new() } else { format!(": {}", by.join(", ")) };
        text += &format!("Sessions  {}{by}\n", self.sessions.len());
        let ill = self.ill();
        text += &match ill.len() {
            0 => format!("LUNs      {}, all well\n", self.luns.len()),
            count => format!("LUNs      {}, of which {count} not well\n", self.luns.len()),
        };
        for (name, why) in ill.iter().take(LUNS) {
            text += &format!("          {name}: {why}\n");
        }
        if ill.len() > LUNS {
            text += "          ... (lunette luns has all)\n";
        }
        if !self.events.is_empty() {
            text += "\n";
            let lines = self.events.iter().map(|event| event.text() + "\n");
            text += &lines.collect::<String>();
        }
        text
    }
}

fn portal(portal: &Value) -> String {
    let transports: Vec<String> = portal["transports"].as_array().into_iter().flatten().map(word).collect();
    let drained = if portal["drain_s"].is_null() { "" } else { ", drained" };
    let redirect = portal["redirect"].as_str().map_or(String::new(), |to| format!(", to {}", shown(to)));
    format!("{} ({}{drained}{redirect})", word(&portal["address"]), transports.join(" "))
}

/// The state of a group without configuration.
pub(crate) const OPTIMIZED: &str = AccessState::Optimized.name();

fn portal_group(group: &Value) -> String {
    let preferred = if group["preferred"] == true { " (preferred)" } else { "" };
    format!("{} {}{preferred}", word(&group["name"]), word(&group["state"]))
}

const CORES: [Column; 7] = [
    Figures("CORE"),
    Figures("BUSY"),
    Figures("POLLING"),
    Figures("ASLEEP"),
    Figures("SESSIONS"),
    Figures("TASKS"),
    Figures("BUFFERS"),
];

/// How cores spent their time, since the last reading or the start.
fn cores(cores: &[Value], before: &[Value]) -> String {
    let mut table = Table::new(&CORES);
    for core in cores {
        let earlier = before.iter().find(|earlier| earlier["core"] == core["core"]);
        let mut row = vec![number(&core["core"])];
        row.extend(parts(core, earlier).map(percent));
        row.push(number(&core["sessions"]));
        row.push(number(&core["tasks"]));
        row.push(format!("{} of {}", size(&core["buffers_bytes"]), size(&core["buffers_max_bytes"])));
        table.add(row, String::new());
    }
    table.text(None, &[])
}

/// The fractions of its time that a core was busy, polling and asleep.
pub(crate) fn parts(core: &Value, before: Option<&Value>) -> [Option<f64>; 3] {
    let times = |core: &Value| ["busy_s", "polling_s", "asleep_s"].map(|key| core[key].as_f64());
    let now = times(core);
    let before = before.map_or([None; 3], times);
    // The counters of a restarted daemon begin at zero.
    let is_anew = now.iter().zip(&before).any(|(now, before)| now < before);
    let before = if is_anew { [None; 3] } else { before };
    let times: [Option<f64>; 3] =
        std::array::from_fn(|part| now[part].map(|now| now - before[part].unwrap_or(0.0)));
    let all: f64 = times.iter().flatten().sum();
    times.map(|time| time.filter(|_| all > 0.0).map(|time| time / all))
}

/// A fraction as a percentage.
pub(crate) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| NONE.into(), |part| format!("{:.0}%", part * 100.0))
}

/// An event.
#[derive(Clone, PartialEq, Debug)]
struct Event {
    kind: String,
    data: Value,
}

impl Event {
    fn json(&self) -> Value {
        let mut json = self.data.clone();
        json["event"] = self.kind.as_str().into();
        json
    }

    /// A line: when, what, and details.
    fn text(&self) -> String {
        let fields = self.data.as_object().into_iter().flatten();
        let fields = fields.filter(|(key, value)| *key != "time" && !value.is_null() && !value.is_array());
        let fields: Vec<String> = fields
            .map(|(key, value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), |text| shown(text).to_string());
                format!("{}={value}", shown(key))
            })
            .collect();
        let kind = shown(&self.kind).to_string();
        format!("{}  {kind:<17} {}", word(&self.data["time"]), fields.join(" "))
    }
}

/// The last events, read from where the previous reading ended.
#[derive(Default)]
struct Events {
    last: Vec<Event>,
    /// Identifies the last one.
    id: Option<String>,
}

impl Events {
    /// If too many clients follow events, there are none to show. A daemon that does not answer at all is
    /// detected by the other requests.
    fn read_on(&mut self, admin: &AdminArguments) {
        if let Ok(text) = admin.events(self.id.as_deref().unwrap_or("0")) {
            self.take(&text);
        }
    }

    /// Server-sent events (HTML section 9.2), each with an identifier, a kind and a line of data.
    fn take(&mut self, text: &str) {
        for block in text.split("\n\n") {
            let field =
                |name: &str| block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            if let Some(id) = field("id") {
                self.id = Some(id.into());
            }
            let data = field("data").and_then(|data| serde_json::from_str(data).ok());
            if let (Some(kind), Some(data)) = (field("event"), data) {
                self.last.push(Event { kind: kind.into(), data });
            }
        }
        self.last.drain(..self.last.len().saturating_sub(EVENTS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let lun = |name: &str, not_opened: Value| json!({ "name": name, "store": "ram:1", "not_opened": not_opened });
        let core = |busy: u64| {
            json!({
                "core": 0, "busy_s": busy, "polling_s": 2, "asleep_s": 7, "sessions": 3, "tasks": 5,
                "buffers_bytes": 1 << 20, "buffers_max_bytes": 64 << 20,
            })
        };
        Status {
            daemon: json!({ "version": "0.1.0", "pid": 7, "uptime_seconds": 61.0 }),
            cores: vec![core(1)],
            portals: vec![json!({ "address": "127.0.0.1:3260", "transports": ["iscsi", "iser"] })],
            portal_groups: vec![json!({ "name": "1", "state": OPTIMIZED, "preferred": false })],
            luns: vec![lun("a", Value::Null), lun("b", "gone".into())],
            sessions: ["iSCSI", "AoE", "iSCSI"].map(|transport| json!({ "transport": transport })).into(),
            events: Vec::new(),
        }
    }

    #[test]
    fn a_screen_shows_what_is_well_and_what_is_not() {
        let text = status().text(None);
        let expected = "Lunette 0.1.0, process 7, up 1m01s\n\n\
            CORE  BUSY  POLLING  ASLEEP  SESSIONS  TASKS               BUFFERS\n   \
            0   10%      20%     70%         3      5  1.00 MiB of 64.0 MiB\n\n\
            Portals   127.0.0.1:3260 (iscsi iser)\nSessions  3: 1 AoE, 2 iSCSI\n\
            LUNs      2, of which 1 not well\n          b: late: gone\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn paths_of_different_worth_are_shown_and_portals_that_are_drained() {
        let mut status = status();
        status.portals[0]["drain_s"] = 30.0.into();
        status.portals[0]["redirect"] = "192.0.2.1:3260".into();
        status.portal_groups.push(json!({ "name": "2", "state": "standby", "preferred": true }));
        let expected = "Portals   127.0.0.1:3260 (iscsi iser, drained, to 192.0.2.1:3260)\n\
                        Groups    1 active/optimized, 2 standby (preferred)\nSessions";
        assert!(status.text(None).contains(expected), "{}", status.text(None));
        status.portal_groups.remove(0);
        assert!(status.text(None).contains("Groups    2 standby"), "{}", status.text(None));
    }

    #[test]
    fn names_that_are_not_shown_are_counted() {
        let ill = |count: usize| vec![("a".to_owned(), "gone".to_owned()); count];
        assert_eq!(not_well(&ill(2)), "not well: LUN a, a");
        assert!(not_well(&ill(LUNS + 3)).ends_with(", a and 3 more (lunette luns shows all)"));
    }

    #[test]
    fn a_core_s_time_is_what_it_was_since_the_last_time() {
        let core = |busy: f64, asleep: f64| json!({ "busy_s": busy, "polling_s": 0.0, "asleep_s": asleep });
        assert_eq!(parts(&core(10.0, 90.0), None), [Some(0.1), Some(0.0), Some(0.9)]);
        assert_eq!(parts(&core(13.0, 91.0), Some(&core(10.0, 90.0))), [Some(0.75), Some(0.0), Some(0.25)]);
        assert_eq!(parts(&core(1.0, 1.0), Some(&core(10.0, 90.0))), [Some(0.5), Some(0.0), Some(0.5)]);
        // Restarted, and busier than before already.
        assert_eq!(parts(&core(15.0, 15.0), Some(&core(10.0, 90.0))), [Some(0.5), Some(0.0), Some(0.5)]);
        assert_eq!(parts(&json!({}), None), [None; 3]);
    }

    #[test]
    fn the_last_events_are_kept_and_read_on_from_there() {
        let mut events = Events::default();
        let text = |number: usize| {
            format!(
                "id: ab-{number}\nevent: errors\ndata: {{\"lun\":\"a\\u001b\",\"count\":{number},\"time\":\"T\"}}\n\n"
            )
        };
        events.take("retry: 2000\n\n:\n\n");
        assert_eq!((events.last.len(), &events.id), (0, &None));
        events.take(&(0..EVENTS + 3).map(text).collect::<String>());
        assert_eq!((events.last.len(), events.id.as_deref()), (EVENTS, Some("ab-10")));
        assert_eq!(events.last[0].text(), "T  errors            count=3 lun=a\\x1b");
    }
}
