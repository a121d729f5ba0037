//! Connecting to a server and opening its export, with words that help when that fails.

use super::connection::Connection;
use super::socket::Socket;
use super::{NbdStore, Options};
use crate::error::OpenError;
use config::{NbdServer, NbdUrl};
use proto::nbd::{Encryption, Export, Handshake, Refusal, Step};
use scsi::storage::CHUNK_BYTES;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long connecting and the handshake may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Opens an export; blocks.
///
/// # Errors
/// When the server is not reached or refuses, or the export cannot be served.
pub fn open(url: &NbdUrl, options: Options) -> Result<Arc<NbdStore>, OpenError> {
    let (socket, export) = connect(url, &options)?;
    let no_memory = |error: io::Error| {
        OpenError::new(url, format!("cannot reserve memory: {error}"), "raise the limits (ulimit -v, -n)")
    };
    let connection = Connection::new(url.clone(), options, socket, export).map_err(no_memory)?;
    Ok(NbdStore::new(connection))
}

/// Connects, negotiates the export, and checks whether it can be served. Blocks, for a few seconds at most.
pub(super) fn connect(url: &NbdUrl, options: &Options) -> Result<(Socket, Export), OpenError> {
    let fault = |problem: String, remedy: &str| OpenError::new(url, problem, remedy);
    if url.tls.is_some() {
        return Err(fault(
            "TLS is not supported yet".into(),
            "write nbd:// or nbd+unix://, and have the server listen where nobody else can connect, or through a tunnel",
        ));
    }
    let deadline = Instant::now() + CONNECT_WITHIN;
    let socket = Socket::connect(url, deadline).map_err(|error| {
        let remedy = match url.server {
            NbdServer::Tcp(..) => "is the server running there, and is its port open to this machine?",
            NbdServer::Unix(..) => "is the server running, and may this user open its socket?",
        };
        fault(format!("the server is not reached: {error}"), remedy)
    })?;
    let export = match shake_hands(&socket, url, deadline) {
        Ok(Ok(export)) => export,
        Ok(Err(refusal)) => return Err(fault(refusal.to_string(), remedy(&refusal))),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Err(fault(
                format!("the server has not answered within {} seconds", CONNECT_WITHIN.as_secs()),
                "does it serve another client, and only one at a time (qemu-nbd --shared=N)?",
            ));
        }
        Err(error) => {
            return Err(fault(
                format!("the server ended the handshake: {error}"),
                "see the server's log; does it admit this machine?",
            ));
        }
    };
    fits(&export, options).map_err(|(problem, remedy)| OpenError::new(url, problem, remedy))?;
    socket.never_block().map_err(|error| fault(error.to_string(), "report this"))?;
    Ok((socket, export))
}

fn shake_hands(socket: &Socket, url: &NbdUrl, deadline: Instant) -> io::Result<Result<Export, Refusal>> {
    let mut handshake = match Handshake::new(&url.export, Encryption::Never) {
        Ok(handshake) => handshake,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let (mut stream, mut bytes) = (socket, Vec::new());
    loop {
        socket.block_until(deadline)?;
        stream.write_all(handshake.out())?;
        handshake.out().clear();
        bytes.resize(handshake.want(), 0);
        stream.read_exact(&mut bytes)?;
        match handshake.received(&bytes) {
            Ok(Step::More) => {}
            Ok(Step::Done(export)) => return Ok(Ok(export)),
            Ok(Step::StartTls) => return Ok(Err(Refusal::TlsRequired)),
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

fn remedy(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotNbd => "correct the host, the port or the socket",
        Refusal::TooOld => "use a server of this decade, such as nbdkit or qemu-nbd",
        Refusal::TlsRequired => {
            "TLS is not supported yet: have the server listen without it where nobody else can connect, or through a tunnel"
        }
        Refusal::NoTls(_) => "write nbd:// or nbd+unix://, if nobody else can read what is sent",
        Refusal::Unknown(_) => "name one that it has (qemu-nbd --list, nbdinfo --list)",
        Refusal::ShuttingDown => "start it again",
        Refusal::Refused(_) => "see the server's log",
        Refusal::Malformed(_) => "report this, with the server's name and version",
    }
}

/// Whether an export can be served; if not, why, and what to do about it.
fn fits(export: &Export, options: &Options) -> Result<(), (String, String)> {
    let fault = |problem: String, remedy: &str| Err((problem, remedy.to_owned()));
    if export.payload_maximum < CHUNK_BYTES {
        let problem =
            format!("it takes {} bytes at a time, and {CHUNK_BYTES} are needed", export.payload_maximum);
        return fault(problem, "raise the server's limit (nbdkit: maxdata of its blocksize filters)");
    }
    if let Some(block) = options.block_bytes {
        let minimum = export.block_minimum;
        if !block.is_multiple_of(minimum) {
            let remedy = format!("set block_size = {minimum} (bs={minimum} on the command line)");
            return Err((format!("its smallest block has {minimum} bytes, and the LUN's {block}"), remedy));
        }
        if export.size == 0 || !export.size.is_multiple_of(block.into()) {
            let problem = format!("its {} bytes are no whole number of blocks of {block}", export.size);
            return fault(problem, "make it larger");
        }
    }
    if !options.read_only && !export.is_read_only() && !export.flushes() && !export.writes_through() {
        return fault(
            "the server supports neither flush nor FUA: nobody knows whether what it acknowledges is durable"
                .into(),
            "serve it read-only (ro on the command line, read_only = true), or by a server that can flush",
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
