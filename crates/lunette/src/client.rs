//! Commands that ask a running daemon, over its admin interface: one request over a connection of its own.

use crate::manage::encoded;
use crate::{Failure, place};
use clap::Args;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How long a daemon may take for an answer: it waits for the end of commands that are in flight.
const PATIENCE: Duration = Duration::from_secs(130);
/// Bytes of an answer.
const ANSWER_MAX: u64 = 64 << 20;

/// Where the daemon is.
#[derive(Debug, Args)]
pub(crate) struct AdminArguments {
    /// The daemon's admin interface: the path of its socket, or http://HOST:PORT [default: LUNETTE_ADMIN, else
    /// /run/lunette/lunette.sock, for users $XDG_RUNTIME_DIR/lunette.sock]
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) admin: Option<String>,
}

/// What a daemon answers.
pub(crate) struct Answer {
    status: u16,
    body: String,
}

impl AdminArguments {
    /// The place to ask at.
    fn place(&self) -> Result<String, Failure> {
        let variable = || std::env::var(place::VARIABLE).ok().filter(|text| !text.is_empty());
        let usual = || place::to_ask().map(|path| path.display().to_string());
        self.admin.clone().or_else(variable).or_else(usual).ok_or_else(|| {
            Failure::wrong_input("XDG_RUNTIME_DIR is not set; name the daemon's socket with --admin")
        })
    }

    /// Asks for a resource.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.ask("GET", path, None)
    }

    /// Asks for a whole list, page by page.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let answer = self.get(&format!("{path}?limit=1000{after}"))?;
            if answer.is_conflict() && !after.is_empty() {
                // It has changed between two pages.
                (all, after) = (Vec::new(), String::new());
                continue;
            }
            let page = answer.json()?;
            all.extend(page["items"].as_array().cloned().unwrap_or_default());
            match &page["next"] {
                Value::String(next) => after = format!("&after={}", encoded(next)),
                Value::Number(next) => after = format!("&after={next}"),
                _ => return Ok(all),
            }
        }
    }

    /// Asks for a change.
    pub(crate) fn change(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        self.ask(method, path, body)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        let place = self.place()?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: lunette\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let failed = |error: io::Error| {
            let fix = match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    "only root, the daemon's user and members of its admin_group may use it: try sudo"
                }
                _ => "is a daemon running (lunette serve)? name its socket with --admin PATH",
            };
            Failure::failed(format!("{place}: {error}; {fix}"))
        };
        let answer = exchange(&place, request.as_bytes()).map_err(failed)?;
        read(&answer).ok_or_else(|| {
            Failure::failed(format!("{place}: this is no admin interface of Lunette; name it with --admin"))
        })
    }
}

fn exchange(place: &str, request: &[u8]) -> io::Result<Vec<u8>> {
    if let Some(address) = place.strip_prefix("http://") {
        let address = address.trim_end_matches('/').to_socket_addrs()?.next();
        let address = address.ok_or_else(|| io::Error::other("that host has no address"))?;
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        return converse(stream, request);
    }
    let stream = UnixStream::connect(place)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    converse(stream, request)
}

fn converse(mut stream: impl Read + Write, request: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Takes apart a whole answer, whose body reaches to its end (RFC 9112 section 6.3).
fn read(answer: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Answer { status, body: body.into() })
}

impl Answer {
    /// Whether something has changed meanwhile.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status == 409
    }

    /// What was asked for.
    ///
    /// # Errors
    /// When it was refused: with all that is wrong, each thing on a line of its own.
    pub(crate) fn text(self) -> Result<String, Failure> {
        match self.status {
            200 | 201 => Ok(self.body),
            202 => Err(Failure::failed("the change is still under way; the daemon's log shows how it ends")),
            status => Err(refusal(status, &self.body)),
        }
    }

    /// The same as JSON.
    pub(crate) fn json(self) -> Result<Value, Failure> {
        let text = self.text()?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("the daemon's answer is not understood: {error}")))
    }

    /// What was done, or would be, in words.
    pub(crate) fn done(self, dry_run: bool) -> Result<String, Failure> {
        let json = self.json()?;
        let texts = |key: &str| {
            let list = json[key].as_array().cloned().unwrap_or_default();
            list.iter().filter_map(|text| text.as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        let mut lines: Vec<String> =
            texts("warnings").into_iter().map(|warning| format!("warning: {warning}")).collect();
        let steps = texts("steps");
        let count = steps.len();
        lines.extend(steps);
        let plural = if count == 1 { "" } else { "s" };
        lines.push(match (count, dry_run) {
            (0, _) => "Nothing to change.".into(),
            (_, true) => format!("{count} step{plural}; nothing was changed (dry run)."),
            (_, false) => format!("{count} step{plural} applied."),
        });
        Ok(lines.join("\n") + "\n")
    }
}

fn refusal(status: u16, body: &str) -> Failure {
    let json: Value = serde_json::from_str(body).unwrap_or_default();
    let title = json["title"]
        .as_str()
        .map_or_else(|| format!("the daemon answers with status {status}"), str::to_owned);
    let text = |fault: &Value, key: &str| fault[key].as_str().unwrap_or_default().to_owned();
    let faults = json["problems"].as_array().cloned().unwrap_or_default();
    let lines = faults.iter().map(|fault| {
        format!("\nlunette: {}: {}; {}", text(fault, "place"), text(fault, "what"), text(fault, "fix"))
    });
    let text = title + &lines.collect::<String>();
    match status {
        400 | 404 | 422 => Failure::wrong_input(text),
        _ => Failure::failed(text),
    }
}
