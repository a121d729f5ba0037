//! Exports of NBD servers, in the URL syntax of NBD clients (NetworkBlockDevice/nbd, doc/uri.md):
//! `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, and the same with `nbds` for TLS; and with
//! `connections=N`, which is ours.

use super::redact::ends_word;
use super::url::{UrlError, decode, host_and_port};
use std::fmt;
use std::path::PathBuf;

/// The port registered for NBD.
const PORT: u16 = 10_809;

/// URL schemes, with whether they use TLS, and whether a Unix domain socket.
const SCHEMES: [(&str, bool, bool); 4] = [
    ("nbd://", false, false),
    ("nbds://", true, false),
    ("nbd+unix://", false, true),
    ("nbds+unix://", true, true),
];

/// The most connections that can be requested.
const CONNECTIONS_MAX: u8 = 16;

const FORMS: &str = "write nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH";

/// An export of an NBD server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdUrl {
    /// The server's address.
    pub server: NbdServer,
    /// The export's name; empty: the server's default.
    pub export: String,
    /// TLS settings; `None`: no TLS.
    pub tls: Option<NbdTls>,
    /// The most connections; `None`: the usual number.
    pub connections: Option<u8>,
}

/// The address of an NBD server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NbdServer {
    /// A host, without brackets, and a port.
    Tcp(String, u16),
    /// A Unix domain socket.
    Unix(PathBuf),
}

/// How the server is authenticated, and this client to it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NbdTls {
    /// The directory of `ca-cert.pem`, and of `client-cert.pem` and `client-key.pem` if the server requires
    /// them; `None`: the system's trusted authorities.
    pub certificates: Option<PathBuf>,
    /// The name that the server's certificate must contain; `None`: its host name.
    pub hostname: Option<String>,
}

impl NbdUrl {
    /// Whether a text is intended as such a URL, well-formed or not.
    pub fn is_meant(text: &str) -> bool {
        scheme(text).is_some()
            || matches!(text.split_once(':'), Some(("nbd" | "nbds" | "nbd+unix" | "nbds+unix", _)))
    }

    /// Parses a URL.
    ///
    /// # Errors
    /// What is wrong with it, and the correct form.
    pub fn parse(text: &str) -> Result<NbdUrl, UrlError> {
        let Some((rest, is_tls, is_unix)) = scheme(text) else {
            return Err(UrlError::new("this is not the URL of an NBD export", FORMS));
        };
        if rest.contains(ends_word) {
            let remedy = "write a space as %20, a tab as %09, \" as %22, ' as %27 and ` as %60";
            return Err(UrlError::new("a URL must not contain white space or quotation marks", remedy));
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode("the export's name", path)?;
        if export.contains('\0') {
            return Err(UrlError::new("the export's name has a NUL character", "leave it out"));
        }
        let (mut socket, mut tls, mut connections) = (None, is_tls.then(NbdTls::default), None);
        for (number, option) in (1..).zip(options.split('&').filter(|option| !option.is_empty())) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decode("the value of an option", value)?;
            match (key, &mut tls) {
                (_, _) if value.is_empty() => {
                    return Err(UrlError::new(format!("{key} has no value"), format!("write {key}=VALUE")));
                }
                ("socket", _) if is_unix => socket = Some(PathBuf::from(value)),
                ("connections", _) => connections = Some(count(&value)?),
                ("tls-certificates", Some(tls)) => tls.certificates = Some(value.into()),
                ("tls-hostname", Some(tls)) => tls.hostname = Some(value),
                _ => return Err(unknown(key, number)),
            }
        }
        let server = match (is_unix, socket) {
            (true, Some(path)) if authority.is_empty() => NbdServer::Unix(path),
            (true, Some(_)) => {
                let remedy = "write three slashes: nbd+unix:///EXPORT?socket=PATH";
                return Err(UrlError::new("a Unix domain socket has no host", remedy));
            }
            (true, None) => {
                return Err(UrlError::new("the URL names no socket", "write nbd+unix:///EXPORT?socket=PATH"));
            }
            (false, _) if authority.contains('@') => {
                return Err(UrlError::new("NBD has no users here", "leave out what precedes the @"));
            }
            (false, _) => {
                let (host, port) = host_and_port(authority, PORT, "nbd://HOST/EXPORT")?;
                NbdServer::Tcp(host, port)
            }
        };
        Ok(NbdUrl { server, export, tls, connections })
    }

    /// The same, with relative paths starting at a directory.
    pub fn at(mut self, base: &std::path::Path) -> NbdUrl {
        if let NbdServer::Unix(path) = &mut self.server {
            *path = base.join(&*path);
        }
        if let Some(path) = self.tls.as_mut().and_then(|tls| tls.certificates.as_mut()) {
            *path = base.join(&*path);
        }
        self
    }
}

fn count(value: &str) -> Result<u8, UrlError> {
    let number = value.parse().ok().filter(|number| (1..=CONNECTIONS_MAX).contains(number));
    number.ok_or_else(|| {
        let remedy = format!("write a number from 1 to {CONNECTIONS_MAX}");
        UrlError::new("connections: this is not a number of connections", remedy)
    })
}

fn unknown(key: &str, number: usize) -> UrlError {
    let (problem, remedy) = match key {
        "socket" => ("only nbd+unix has a socket", FORMS),
        "tls-certificates" | "tls-hostname" => {
            ("only TLS connections have this option", "write nbds:// or nbds+unix://")
        }
        _ => (
            "",
            "the options are connections, socket with nbd+unix, and tls-certificates and tls-hostname with nbds",
        ),
    };
    match problem {
        "" => UrlError::new(format!("option {number} after the ? is not an option of NBD URLs"), remedy),
        problem => UrlError::new(format!("{key}: {problem}"), remedy),
    }
}

/// What follows the scheme, whether it means TLS, and whether a Unix domain socket.
fn scheme(text: &str) -> Option<(&str, bool, bool)> {
    SCHEMES.iter().find_map(|(scheme, is_tls, is_unix)| {
        let (head, rest) = text.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some((rest, *is_tls, *is_unix))
    })
}

/// As given, but in its shortest form, without the TLS settings and the number of connections: the export that
/// it names.
impl fmt::Display for NbdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.is_some() { "s" } else { "" };
        let export = Escaped(&self.export);
        match &self.server {
            NbdServer::Unix(path) => {
                let path = path.to_string_lossy();
                write!(f, "nbd{tls}+unix:///{export}?socket={}", Escaped(&path))
            }
            NbdServer::Tcp(host, port) => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "nbd{tls}://{open}{host}{close}")?;
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{export}")
            }
        }
    }
}

/// A text to be percent-encoded for a URL.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'a'..=b'z'
            | b'A'..=b'Z'
            | b'0'..=b'9'
            | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b'/'
            | b':'
            | b'@'
            | b'+' => {
                write!(f, "{}", char::from(byte))
            }
            byte => write!(f, "%{byte:02X}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn good(text: &str) -> NbdUrl {
        NbdUrl::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_form_is_read_and_shown_in_its_shortest() {
        for (text, shown, server, export) in [
            ("nbd://host/disk", "nbd://host/disk", NbdServer::Tcp("host".into(), PORT), "disk"),
            ("NBD://host:10809", "nbd://host/", NbdServer::Tcp("host".into(), PORT), ""),
            ("nbd://[::1]:99//disk", "nbd://[::1]:99//disk", NbdServer::Tcp("::1".into(), 99), "/disk"),
            ("nbd://h/a%20b%3F", "nbd://h/a%20b%3F", NbdServer::Tcp("h".into(), PORT), "a b?"),
            (
                "nbd+unix:///disk?socket=/run/a%26b",
                "nbd+unix:///disk?socket=/run/a%26b",
                NbdServer::Unix("/run/a&b".into()),
                "disk",
            ),
            ("nbd+unix://?socket=s", "nbd+unix:///?socket=s", NbdServer::Unix("s".into()), ""),
        ] {
            let url = good(text);
            assert_eq!((&url.server, url.export.as_str(), &url.tls), (&server, export, &None));
            assert_eq!(url.to_string(), shown);
            assert_eq!(good(shown), url);
        }
        let url = good("nbds+unix:///d?tls-certificates=pki&socket=s&tls-hostname=h").at(Path::new("/etc"));
        assert_eq!(url.server, NbdServer::Unix("/etc/s".into()));
        let tls = NbdTls { certificates: Some("/etc/pki".into()), hostname: Some("h".into()) };
        assert_eq!((url.tls, good("nbds://h/").tls), (Some(tls), Some(NbdTls::default())));
        let url = good("nbd://h/d?connections=2");
        assert_eq!((url.connections, good("nbd://h/d").connections), (Some(2), None));
        assert_eq!(url.to_string(), "nbd://h/d", "it names the same export");
    }

    #[test]
    fn faults_name_what_is_wrong_and_how_to_write_it() {
        for (text, fault) in [
            ("iscsi://h/t/0", "not the URL of an NBD export"),
            ("nbd:host", "write nbd://HOST"),
            ("nbd://", "host"),
            ("nbd://h:x/d", "not a port"),
            ("nbd://me@h/d", "no users"),
            ("nbd://h/a b", "%20"),
            ("nbd://h/%zz", "percent-encoded"),
            ("nbd://h/%00", "NUL"),
            ("nbd://h/d?socket=/s", "only nbd+unix has a socket"),
            ("nbd://h/d?tls-hostname=x", "write nbds://"),
            ("nbds://h/d?tls-hostname=h&x=1", "option 2 after the ? is not an option"),
            ("nbd://h/d?connections=0", "write a number from 1 to 16"),
            ("nbd://h/d?connections=17", "write a number from 1 to 16"),
            ("nbd://h/d?connections=many", "write a number from 1 to 16"),
            ("nbd+unix:///d", "names no socket"),
            ("nbd+unix:///d?socket=", "socket has no value"),
            ("nbd+unix://h/d?socket=/s", "three slashes"),
        ] {
            let error = NbdUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
        assert!(
            NbdUrl::is_meant("nbd:x") && NbdUrl::is_meant("nbds+unix:///d") && !NbdUrl::is_meant("nbdx://h")
        );
    }
}
