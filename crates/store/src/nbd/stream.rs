//! A connection's bytes: its socket, with TLS if the URL requires that.

use super::socket::{Socket, Until};
use config::{NbdServer, NbdTls, NbdUrl};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Files of a certificate directory, as nbdkit, QEMU and libvirt name them.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// A problem with TLS, and the fix.
pub(super) type Insecure = (String, String);

/// A socket, and its encryption.
pub(super) struct Stream {
    pub(super) socket: Arc<Socket>,
    tls: Option<Box<ClientConnection>>,
}

impl Stream {
    pub(super) fn plain(socket: Socket) -> Stream {
        Stream { socket: Arc::new(socket), tls: None }
    }

    /// Encrypts it from here on: the server has to authenticate itself. Blocks.
    ///
    /// # Errors
    /// The problem and the fix.
    pub(super) fn secure(&mut self, url: &NbdUrl, tls: &NbdTls, deadline: Instant) -> Result<(), Insecure> {
        let name = server_name(url, tls)?;
        let config = Arc::new(config(tls)?);
        let fault = |error: String| {
            let remedy = "does the server's certificate have this name, and is its authority trusted here \
                          (tls-hostname=, tls-certificates=)?";
            (format!("TLS with the server failed: {error}"), remedy.to_owned())
        };
        let mut connection = ClientConnection::new(config, name).map_err(|error| fault(error.to_string()))?;
        let mut until = Until { inner: &*self.socket, socket: &self.socket, deadline };
        connection.complete_io(&mut until).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => {
                ("the server does not continue the TLS handshake".into(), "does it hang? see its log".into())
            }
            _ => fault(error.to_string()),
        })?;
        self.tls = Some(Box::new(connection));
        Ok(())
    }

    /// Whether encrypted data has not been sent yet.
    pub(super) fn owes(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether it holds bytes that are no longer in the socket, which does not show them: read until there
    /// are none.
    pub(super) fn holds_bytes(&mut self) -> bool {
        let state = self.tls.as_mut().map(|tls| tls.process_new_packets());
        state.is_some_and(|state| state.is_ok_and(|state| state.plaintext_bytes_to_read() > 0))
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&*self.socket).read(into) };
        if let Some(read) = decrypted(tls, into) {
            return read;
        }
        if tls.read_tls(&mut &*self.socket)? == 0 {
            return Ok(0);
        }
        tls.process_new_packets().map_err(io::Error::other)?;
        // Received data may contain nothing to read: how often that is retried is up to the caller.
        decrypted(tls, into).unwrap_or_else(|| Err(ErrorKind::Interrupted.into()))
    }
}

/// What has been decrypted; `None`: nothing.
fn decrypted(tls: &mut ClientConnection, into: &mut [u8]) -> Option<io::Result<usize>> {
    match tls.reader().read(into) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        // The transport has ended, whether or not TLS had.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Some(Ok(0)),
        read => Some(read),
    }
}

impl Write for Stream {
    /// Accepts what fits, even if all of it has to wait in the buffers of TLS.
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else { return (&*self.socket).write(from) };
        while tls.wants_write() {
            tls.write_tls(&mut &*self.socket)?;
        }
        let taken = tls.writer().write(from)?;
        while tls.wants_write() {
            match tls.write_tls(&mut &*self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn server_name(url: &NbdUrl, tls: &NbdTls) -> Result<ServerName<'static>, Insecure> {
    let name = match (&tls.hostname, &url.server) {
        (Some(name), _) | (None, NbdServer::Tcp(name, _)) => name.clone(),
        (None, NbdServer::Unix(_)) => {
            let remedy = "write &tls-hostname=NAME, as the server's certificate has it";
            return Err(("a Unix domain socket has no host name for a certificate".into(), remedy.into()));
        }
    };
    ServerName::try_from(name).map_err(|error| {
        (
            format!("the server's name: {error}"),
            "write &tls-hostname=NAME, as the server's certificate has it".into(),
        )
    })
}

fn config(tls: &NbdTls) -> Result<ClientConfig, Insecure> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder =
        builder.with_safe_default_protocol_versions().expect("the provider has a suite for each version");
    let Some(directory) = &tls.certificates else {
        let native = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(native.certs);
        if roots.is_empty() {
            let remedy = "install ca-certificates, or name a directory with ca-cert.pem by tls-certificates=";
            return Err(("this system has no trusted certificate authorities".into(), remedy.into()));
        }
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    };
    let wrong = |path: &Path, error: String| {
        let remedy = "write it as PEM, readable by this user (tls-certificates= names its directory)";
        (format!("{}: {error}", path.display()), remedy.to_owned())
    };
    let certificates = |file: &str| {
        let path = directory.join(file);
        let all = CertificateDer::pem_file_iter(&path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        all.map_err(|error| wrong(&path, error.to_string()))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(AUTHORITY)? {
        roots.add(certificate).map_err(|error| wrong(&directory.join(AUTHORITY), error.to_string()))?;
    }
    let builder = builder.with_root_certificates(roots);
    let key = directory.join(KEY);
    if !key.exists() {
        return Ok(builder.with_no_client_auth());
    }
    // The library's own message may contain the key.
    let parsed =
        PrivateKeyDer::from_pem_file(&key).map_err(|_| wrong(&key, "it is not a private key".into()))?;
    let authenticated = builder.with_client_auth_cert(certificates(CERTIFICATE)?, parsed);
    authenticated.map_err(|error| wrong(&directory.join(CERTIFICATE), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{ServerConfig, ServerConnection};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    #[test]
    fn bytes_that_the_socket_no_longer_has_are_known_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let certified = rcgen::generate_simple_self_signed(vec!["server".into()]).unwrap();
        std::fs::write(directory.path().join(AUTHORITY), certified.cert.pem()).unwrap();
        let tls = NbdTls { certificates: Some(directory.path().into()), hostname: Some("server".into()) };
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = config.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        let serving = std::thread::spawn(move || {
            server.complete_io(&mut theirs).unwrap();
            server.writer().write_all(&[7; 1000]).unwrap();
            while server.wants_write() {
                server.write_tls(&mut theirs).unwrap();
            }
            theirs
        });
        let mut stream = Stream::plain(Socket::Unix(ours));
        let url = NbdUrl::parse("nbds+unix:///?socket=/nonexistent").unwrap();
        stream.secure(&url, &tls, Instant::now() + Duration::from_secs(60)).unwrap();
        let _theirs = serving.join().unwrap();
        let (mut bytes, mut come) = ([0; 100], 0);
        while come < 1000 {
            match stream.read(&mut bytes) {
                Ok(more) => come += more,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted),
            }
            assert!(come == 0 || stream.holds_bytes() == (come < 1000), "{come} have come");
        }
    }
}
