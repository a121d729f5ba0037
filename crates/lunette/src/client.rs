//! The client of a running daemon's admin interface: a separate connection for each request.

mod connection;

use crate::manage::encoded;
use crate::{Failure, admin_address};
use admin::{Authorities, Insecure};
use clap::Args;
use connection::{Host, Place, Timed};
use serde_json::Value;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long a daemon may take to answer: it waits for commands in flight to end.
const PATIENCE: Duration = Duration::from_secs(130);
/// The same for requests that are repeated, where a late answer is useless.
const PATIENCE_REPEATED: Duration = Duration::from_secs(5);
/// The same for requests during a measurement.
const PATIENCE_MEASURING: Duration = Duration::from_secs(2);
/// The longest answer, in bytes.
const ANSWER_MAX: u64 = 64 << 20;

/// The environment variable with the path of the token's file, unless an option names it.
const TOKEN_VARIABLE: &str = "LUNETTE_ADMIN_TOKEN_FILE";
/// The first byte of a TLS alert, with which a server refuses connections without TLS (RFC 8446 section 5.1).
const TLS_ALERT: u8 = 21;

/// Where the daemon is.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArguments {
    /// The daemon's admin interface: the path of its socket, or http://HOST:PORT, or https://HOST:PORT [default:
    /// LUNETTE_ADMIN, else /run/lunette/lunette.sock, for users $XDG_RUNTIME_DIR/lunette.sock]
    #[arg(long, value_name = "PATH|URL")]
    pub(crate) admin: Option<String>,
    /// File with a token of the daemon's admin_token_file, for changes over http or https [default:
    /// LUNETTE_ADMIN_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Certificates (PEM) of the authorities that are trusted to certify an https host [default: the system's]
    #[arg(long, value_name = "FILE")]
    admin_ca: Option<PathBuf>,
    /// How long the daemon may take to answer.
    #[arg(skip = PATIENCE)]
    patience: Duration,
    /// The option that specified the daemon.
    #[arg(skip = "--admin")]
    option: &'static str,
    /// The authorities of `admin_ca`, once they have been read.
    #[arg(skip)]
    authorities: OnceLock<Authorities>,
    /// The addresses of the daemon's host, once its name has been looked up.
    #[arg(skip)]
    addresses: OnceLock<Vec<SocketAddr>>,
}

/// A daemon's answer.
pub(crate) struct Answer {
    status: u16,
    body: String,
}

impl AdminArguments {
    /// The daemon of `--target-admin`, which may also be HOST:PORT.
    pub(crate) fn of_target(name: &str, admin_ca: Option<PathBuf>) -> AdminArguments {
        let is_address = name.contains(':') && !name.contains('/');
        let admin = if is_address { format!("http://{name}") } else { name.into() };
        AdminArguments {
            admin: Some(admin),
            admin_token_file: None,
            admin_ca,
            patience: PATIENCE_MEASURING,
            option: "--target-admin",
            authorities: OnceLock::new(),
            addresses: OnceLock::new(),
        }
    }

    /// The same for requests that are repeated.
    pub(crate) fn repeated(&self) -> AdminArguments {
        AdminArguments { patience: PATIENCE_REPEATED, ..self.clone() }
    }

    /// Where the daemon is.
    fn place(&self) -> Result<Place, Failure> {
        let variable = || std::env::var(admin_address::VARIABLE).ok().filter(|text| !text.is_empty());
        let usual = || admin_address::to_ask().map(|path| path.display().to_string());
        let text = self.admin.clone().or_else(variable).or_else(usual).ok_or_else(|| {
            Failure::wrong_input("XDG_RUNTIME_DIR is not set; name the daemon's socket with --admin")
        })?;
        let place = Place::parse(&text)
            .map_err(|(what, fix)| Failure::wrong_input(format!("{} {text}: {what}; {fix}", self.option)))?;
        if self.admin_ca.is_some() && !matches!(place, Place::Https(_)) {
            let text = format!(
                "--admin-ca: {place} uses no TLS; name an https:// place with {}, or leave it out",
                self.option
            );
            return Err(Failure::wrong_input(text));
        }
        Ok(place)
    }

    /// Gets a resource.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.ask("GET", path, None)
    }

    /// Gets a whole list, page by page.
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

    /// Gets the cores; none from a daemon that does not report them.
    pub(crate) fn cores(&self) -> Result<Vec<Value>, Failure> {
        let answer = self.get("/v1/cores")?;
        if answer.status == 404 {
            return Ok(Vec::new());
        }
        let json = answer.json()?;
        let cores = json.as_array().or_else(|| json["items"].as_array());
        Ok(cores.cloned().unwrap_or_default())
    }

    /// Gets the events after this one that the daemon still has, as server-sent events; a comment marks their
    /// end.
    pub(crate) fn events(&self, after: &str) -> Result<String, Failure> {
        // Without chunks, which HTTP/1.0 does not have.
        let place = self.place()?;
        let request = format!("GET /v1/events HTTP/1.0\r\nHost: lunette\r\nLast-Event-ID: {after}\r\n\r\n");
        self.exchange(&place, false, &request, Some(b"\n\n:\n"))?.text()
    }

    /// Requests a change.
    pub(crate) fn change(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        self.ask(method, path, body)
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        let place = self.place()?;
        // Reading needs no token, and none is disclosed.
        let token = if method == "GET" || matches!(place, Place::Socket(_)) { None } else { self.token()? };
        let body = body.map(Value::to_string).unwrap_or_default();
        let authorization =
            token.as_ref().map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: lunette\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n{authorization}\r\n{body}",
            body.len()
        );
        self.exchange(&place, token.is_some(), &request, None)
    }

    /// Sends a request, and reads the answer to its end or up to `until`.
    fn exchange(
        &self,
        place: &Place,
        has_token: bool,
        request: &str,
        until: Option<&[u8]>,
    ) -> Result<Answer, Failure> {
        let answer = self.received(place, has_token, request.as_bytes(), until)?;
        if matches!(place, Place::Http(_)) && answer.first() == Some(&TLS_ALERT) {
            let text = format!("{place}: the daemon uses TLS here; use https:// instead of http://");
            return Err(Failure::failed(text));
        }
        read(&answer).ok_or_else(|| {
            let option = self.option;
            Failure::failed(format!(
                "{place}: this is not Lunette's admin interface; name that with {option}"
            ))
        })
    }

    /// Sends a request and returns the answer. Unencrypted, a token is only sent to this machine.
    fn received(
        &self,
        place: &Place,
        has_token: bool,
        request: &[u8],
        until: Option<&[u8]>,
    ) -> Result<Vec<u8>, Failure> {
        let failed = |error: io::Error| self.failed(place, &error);
        let answer = match place {
            Place::Socket(path) => {
                let stream = Timed::unix(path, self.deadline()).map_err(failed)?;
                converse(stream, request, until)
            }
            Place::Http(host) => {
                let addresses = self.addresses(host).map_err(failed)?;
                let remote = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
                if let Some(remote) = remote.filter(|_| has_token) {
                    let text = format!(
                        "{place}: the token would travel to {} unencrypted, and was not sent; use https://, or ssh -L and \
                         http://localhost:PORT",
                        remote.ip()
                    );
                    return Err(Failure::wrong_input(text));
                }
                converse(self.connect(place, addresses)?, request, until)
            }
            Place::Https(host) => {
                let authorities = self.authorities()?;
                let stream = self.connect(place, self.addresses(host).map_err(failed)?)?;
                let stream = admin::secure(stream, &host.name, authorities)
                    .map_err(|why| self.insecure(place, why))?;
                converse(stream, request, until)
            }
        };
        answer.map_err(failed)
    }

    /// The deadline of an exchange that begins now.
    fn deadline(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// The addresses of the daemon's host. Its name is looked up once, as lookups have no timeout.
    fn addresses(&self, host: &Host) -> io::Result<&[SocketAddr]> {
        if let Some(addresses) = self.addresses.get() {
            return Ok(addresses);
        }
        let addresses = host.resolve()?;
        Ok(self.addresses.get_or_init(|| addresses))
    }

    fn connect(&self, place: &Place, addresses: &[SocketAddr]) -> Result<Timed, Failure> {
        Timed::tcp(addresses, self.deadline()).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => Failure::failed(format!(
                "{place}: not connected within {} seconds; check the host and the port, and that no firewall is in the way",
                self.patience.as_secs()
            )),
            _ => self.failed(place, &error),
        })
    }

    /// The token that authorizes changes over TCP.
    fn token(&self) -> Result<Option<String>, Failure> {
        let variable = || std::env::var_os(TOKEN_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let Some(file) = self.admin_token_file.clone().or_else(variable) else { return Ok(None) };
        let token = config::token_of(&file).map_err(|fault| {
            Failure::wrong_input(format!("--admin-token-file: {}; {}", fault.what, fault.fix))
        })?;
        Ok(Some(token))
    }

    fn authorities(&self) -> Result<&Authorities, Failure> {
        if let Some(authorities) = self.authorities.get() {
            return Ok(authorities);
        }
        let authorities = Authorities::of(self.admin_ca.as_deref())
            .map_err(|fault| Failure::wrong_input(format!("{}; {}", fault.what, fault.fix)))?;
        Ok(self.authorities.get_or_init(|| authorities))
    }

    fn failed(&self, place: &Place, error: &io::Error) -> Failure {
        let fix = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "only root, the daemon's user and members of its admin_group may use it: try sudo"
            }
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                let time = self.patience.as_secs();
                let text = format!(
                    "{place}: no answer within {time} seconds: the daemon is stopped or overloaded; see its log"
                );
                return Failure::failed(text);
            }
            _ => {
                let option = self.option;
                let text = format!(
                    "{place}: {error}; is a daemon running (lunette serve)? name its socket or its address with {option}"
                );
                return Failure::failed(text);
            }
        };
        Failure::failed(format!("{place}: {error}; {fix}"))
    }

    fn insecure(&self, place: &Place, why: Insecure) -> Failure {
        let fix = match &why {
            Insecure::NoTls => "write http:// for a daemon without a certificate",
            Insecure::Certificate(_) => {
                "name the authority's certificate with --admin-ca, and the host as in the daemon's certificate"
            }
            Insecure::Other(error) => return self.failed(place, error),
        };
        Failure::failed(format!("{place}: {why}; {fix}"))
    }
}

fn converse(mut stream: impl Read + Write, request: &[u8], until: Option<&[u8]>) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let Some(until) = until else {
        stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
        return Ok(answer);
    };
    let mut stream = BufReader::new(stream.take(ANSWER_MAX));
    while !answer.ends_with(until) && stream.read_until(b'\n', &mut answer)? > 0 {}
    Ok(answer)
}

/// Parses a whole answer, whose body extends to its end (RFC 9112 section 6.3).
fn read(answer: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
    Some(Answer { status, body: body.into() })
}

impl Answer {
    /// Whether something has changed meanwhile.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status == 409
    }

    /// The body of an answer that succeeded.
    ///
    /// # Errors
    /// The refusal, with everything that is wrong, one line each.
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
            .map_err(|error| Failure::failed(format!("cannot parse the daemon's answer: {error}")))
    }

    /// Describes what was done, or would be.
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    use std::net::TcpStream;

    #[test]
    fn a_host_that_lets_nobody_connect_is_not_said_to_be_overloaded() {
        let full = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&full, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        listen(&full, 0).expect("it listens");
        let address = SocketAddr::try_from(getsockname(&full).expect("an address")).expect("of IPv4");
        let connected = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let accepted: Vec<TcpStream> = std::iter::from_fn(connected).collect();
        let mut client = AdminArguments::of_target(&address.to_string(), None);
        client.patience = Duration::from_millis(200);
        let failure = client.get("/v1/cpu").map(|_| ()).expect_err("it does not connect").text;
        assert!(failure.contains("not connected within") && failure.contains("firewall"), "{failure}");
        drop(accepted);
    }
}
