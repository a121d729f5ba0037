//! Connecting to a server and opening its export, with helpful error messages.

use super::connections::Connections;
use super::socket::{Socket, Until};
use super::stream::Stream;
use super::{NbdStore, Options, lingering};
use crate::error::OpenError;
use config::{NbdServer, NbdUrl};
use proto::nbd::{Encryption, Export, Handshake, Refusal, Step};
use scsi::storage::CHUNK_BYTES;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::nbd::Request;

/// How long connecting and the handshake may take, once the host's name is resolved.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Opens an export; blocks.
///
/// # Errors
/// When the server is unreachable or refuses, or the export cannot be served.
pub fn open(url: &NbdUrl, options: Options) -> Result<Arc<NbdStore>, OpenError> {
    if !options.read_only {
        lingering::check(url)?;
    }
    let (stream, export) = connect(url, &options)?;
    let no_memory = |error: io::Error| {
        OpenError::new(url, format!("cannot reserve memory: {error}"), "raise the limits (ulimit -v, -n)")
    };
    let connections = Connections::new(url.clone(), options, stream, export).map_err(no_memory)?;
    Ok(NbdStore::new(connections))
}

/// A server's description of an export, whether or not it can be served. Blocks: for a few seconds at most
/// once the host's name is resolved.
///
/// # Errors
/// When the server is unreachable or refuses.
pub fn inspect(url: &NbdUrl) -> Result<Export, OpenError> {
    let (mut stream, export) = negotiate(url)?;
    // Whether the server is still there does not matter any more.
    let _ = stream.write_all(&Request::disconnect());
    Ok(export)
}

/// Connects, negotiates the export, and checks whether it can be served. Blocks: for a few seconds at most once the host's
/// name is resolved.
pub(super) fn connect(url: &NbdUrl, options: &Options) -> Result<(Stream, Export), OpenError> {
    let (stream, export) = negotiate(url)?;
    fits(&export, options).map_err(|(problem, remedy)| OpenError::new(url, problem, remedy))?;
    let blocks = |error: io::Error| OpenError::new(url, error.to_string(), "report this");
    stream.socket.never_block().map_err(blocks)?;
    Ok((stream, export))
}

fn negotiate(url: &NbdUrl) -> Result<(Stream, Export), OpenError> {
    let fault = |problem: String, remedy: &str| OpenError::new(url, problem, remedy);
    let deadline = Instant::now() + CONNECT_WITHIN;
    let socket = Socket::connect(url, deadline).map_err(|error| {
        let remedy = match url.server {
            NbdServer::Tcp(..) => "is the server running there, and is its port open to this machine?",
            NbdServer::Unix(..) => "is the server running, and may this user open its socket?",
        };
        fault(format!("cannot reach the server: {error}"), remedy)
    })?;
    let mut stream = Stream::plain(socket);
    let export = match shake_hands(&mut stream, url, deadline) {
        Ok(export) => export,
        Err(Failed::Refused(refusal)) => return Err(fault(refusal.to_string(), remedy(&refusal))),
        Err(Failed::Insecure(problem, remedy)) => return Err(fault(problem, &remedy)),
        Err(Failed::Io(error)) if error.kind() == ErrorKind::TimedOut => {
            return Err(fault(
                format!("the server did not answer within {} seconds", CONNECT_WITHIN.as_secs()),
                "does it serve another client, and only one at a time (qemu-nbd --shared=N)?",
            ));
        }
        Err(Failed::Io(error)) => {
            return Err(fault(
                format!("the server ended the handshake: {error}"),
                "see the server's log; does it admit this machine?",
            ));
        }
    };
    Ok((stream, export))
}

/// Why a handshake fails.
enum Failed {
    Io(io::Error),
    Refused(Refusal),
    /// A problem with TLS, and the fix.
    Insecure(String, String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

fn shake_hands(stream: &mut Stream, url: &NbdUrl, deadline: Instant) -> Result<Export, Failed> {
    let encryption = if url.tls.is_some() { Encryption::Required } else { Encryption::Never };
    let mut handshake = Handshake::new(&url.export, encryption).map_err(Failed::Refused)?;
    let mut bytes = Vec::new();
    loop {
        let socket = stream.socket.clone();
        let mut until = Until { inner: &mut *stream, socket: &socket, deadline };
        until.write_all(handshake.out())?;
        handshake.out().clear();
        bytes.resize(handshake.want(), 0);
        until.read_exact(&mut bytes)?;
        match (handshake.received(&bytes).map_err(Failed::Refused)?, &url.tls) {
            (Step::More, _) => {}
            (Step::Done(export), _) => return Ok(export),
            (Step::StartTls, Some(tls)) => {
                stream
                    .secure(url, tls, deadline)
                    .map_err(|(problem, remedy)| Failed::Insecure(problem, remedy))?;
                handshake.encrypted();
            }
            (Step::StartTls, None) => return Err(Failed::Refused(Refusal::TlsRequired)),
        }
    }
}

fn remedy(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotNbd => "correct the host, the port or the socket",
        Refusal::TooOld => "use a current server, such as nbdkit or qemu-nbd",
        Refusal::TlsRequired => {
            "write nbds:// or nbds+unix://, and tls-certificates=DIRECTORY if this system does not trust its authority"
        }
        Refusal::NoTls(_) => "write nbd:// or nbd+unix:// if nobody else can read the traffic",
        Refusal::Unknown(_) => "name one that it has (qemu-nbd --list, nbdinfo --list)",
        Refusal::ShuttingDown => "start it again",
        Refusal::Refused(_) => "see the server's log",
        Refusal::Malformed(_) => "report this, with the server's name and version",
    }
}

/// Whether an export can be served; if not, the reason and the fix.
fn fits(export: &Export, options: &Options) -> Result<(), (String, String)> {
    let fault = |problem: String, remedy: &str| Err((problem, remedy.to_owned()));
    if export.payload_maximum < CHUNK_BYTES {
        let problem = format!(
            "it accepts only {} bytes at a time, and {CHUNK_BYTES} are needed",
            export.payload_maximum
        );
        return fault(problem, "raise the server's limit (nbdkit: maxdata of its blocksize filters)");
    }
    if let Some(block) = options.block_bytes {
        let minimum = export.block_minimum;
        if !block.is_multiple_of(minimum) {
            let remedy = format!("set block_size = {minimum} (bs={minimum} on the command line)");
            return Err((format!("its smallest block has {minimum} bytes, and the LUN's {block}"), remedy));
        }
        if export.size == 0 || !export.size.is_multiple_of(block.into()) {
            let problem = format!("its {} bytes are not a whole number of blocks of {block}", export.size);
            return fault(problem, "make it larger");
        }
    }
    if !options.read_only && !export.is_read_only() && !export.flushes() && !export.writes_through() {
        return fault(
            "the server supports neither flush nor FUA, so acknowledged writes may not be durable".into(),
            "serve it read-only (ro on the command line, read_only = true), or use a server that can flush",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nbd::transmission::{READ_ONLY, SEND_FLUSH, SEND_FUA};

    const EXPORT: Export = Export {
        size: 1 << 20,
        flags: SEND_FLUSH,
        block_minimum: 512,
        block_preferred: 4096,
        payload_maximum: 1 << 25,
        structured: true,
        allocation: None,
    };

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let fault = |export: &Export, options: &Options| fits(export, options).expect_err("it is refused").0;
        let options = Options::new(Some(512), false);
        assert!(fits(&EXPORT, &options).is_ok());
        assert!(
            fault(&Export { payload_maximum: 65_536, ..EXPORT }, &options).contains("65536 bytes at a time")
        );
        assert!(fault(&Export { block_minimum: 4096, ..EXPORT }, &options).contains("smallest block"));
        assert!(fits(&Export { block_minimum: 4096, ..EXPORT }, &Options::new(None, false)).is_ok());
        assert!(fault(&Export { size: 0, ..EXPORT }, &options).contains("0 bytes"));
        assert!(fault(&Export { size: 513, ..EXPORT }, &options).contains("whole number"));
        let forgets = Export { flags: 0, ..EXPORT };
        assert!(fault(&forgets, &options).contains("neither flush nor FUA"));
        assert!(fits(&forgets, &Options::new(Some(512), true)).is_ok());
        assert!(fits(&Export { flags: READ_ONLY, ..EXPORT }, &options).is_ok());
        assert!(fits(&Export { flags: SEND_FUA, ..EXPORT }, &options).is_ok());
    }
}
