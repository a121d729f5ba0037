//! TLS for the admin interface on an address: the daemon's side and the commands' side.

use config::{AdminAccess, CertifiedKey, Fault, Token, Unusable};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls;

/// The application protocol (RFC 7301 section 6).
const PROTOCOL: &[u8] = b"http/1.1";

/// Who may make changes over TCP, and how connections are encrypted.
#[derive(Clone, Default, Debug)]
pub struct Access {
    pub(crate) rights: Arc<AdminAccess>,
    /// `None`: unencrypted.
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

impl Access {
    /// From the configuration. If the certificate is unchanged, clients may resume their TLS sessions.
    ///
    /// # Errors
    /// When its certificate and key cannot be used.
    pub fn with(&self, rights: &Arc<AdminAccess>) -> Result<Access, Unusable> {
        let tls = match &rights.identity {
            same if *same == self.rights.identity => self.tls.clone(),
            Some(identity) => Some(Arc::new(server(identity)?)),
            None => None,
        };
        Ok(Access { rights: rights.clone(), tls })
    }

    /// Who may make changes.
    pub fn rights(&self) -> &Arc<AdminAccess> {
        &self.rights
    }

    /// Whether this token is still valid; without one, true.
    pub fn admits(&self, token: Option<&Token>) -> bool {
        token.is_none_or(|token| self.rights.tokens.contains(token))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn server(identity: &CertifiedKey) -> Result<ServerConfig, Unusable> {
    let CertifiedKey { certificate, key } = identity;
    let shown = certificate.path.display();
    let chain = CertificateDer::pem_slice_iter(&certificate.bytes).collect::<Result<Vec<_>, pem::Error>>();
    let wrong = |what: String, fix: &str| Unusable::Certificate(Fault::new(what, fix));
    let chain =
        chain.map_err(|error| wrong(format!("{shown} is not PEM: {error}"), "write certificates as PEM"))?;
    if chain.is_empty() {
        let fix =
            "write the daemon's certificate, followed by those of the authorities between it and the root";
        return Err(wrong(format!("{shown} has no certificate"), fix));
    }
    let shown_key = key.path.display();
    let key = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|error| {
        // The library's error message may contain the key, as it quotes the file.
        let what = match error {
            pem::Error::NoItemsFound => "has no private key",
            pem::Error::MissingSectionEnd { .. } => "is not PEM: a section has no END line",
            pem::Error::IllegalSectionStart { .. } => "is not PEM: a BEGIN line is damaged",
            pem::Error::Base64Decode(_) => "is not PEM: the text between BEGIN and END is not Base64",
            _ => "is not PEM",
        };
        let fix = "write the key as PEM, without a passphrase";
        Unusable::Key(Fault::new(format!("{shown_key} {what}"), fix))
    })?;
    let unusable = |error: rustls::Error| {
        let fix = "give a certificate and its private key";
        wrong(format!("{shown} and {shown_key} cannot be used: {error}"), fix)
    };
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let mut config =
        builder.map_err(unusable)?.with_no_client_auth().with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = vec![PROTOCOL.into()];
    Ok(config)
}

/// A connection to a daemon whose host has proved its identity.
pub type Secured<S> = StreamOwned<ClientConnection, S>;

/// The trusted certificate authorities. Another connection with the same ones resumes the TLS session.
#[derive(Clone, Debug)]
pub struct Authorities(Arc<ClientConfig>);

impl Authorities {
    /// Those in a file; without one, the system's.
    ///
    /// # Errors
    /// When there are none.
    pub fn of(file: Option<&Path>) -> Result<Authorities, Fault> {
        let mut roots = RootCertStore::empty();
        let Some(path) = file else {
            let native = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(native.certs);
            if !roots.is_empty() {
                return Ok(Authorities::with(roots));
            }
            let why = native.errors.first().map_or(String::new(), |error| format!(": {error}"));
            let fix = "install ca-certificates, or name the certificate of an authority with --admin-ca";
            return Err(Fault::new(format!("this system has no trusted certificate authorities{why}"), fix));
        };
        let wrong = |what: &str| {
            Fault::new(format!("--admin-ca {}: {what}", path.display()), "name a file of certificates in PEM")
        };
        let bytes = std::fs::read(path).map_err(|error| wrong(&error.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            let certificate = certificate.map_err(|error| wrong(&error.to_string()))?;
            roots.add(certificate).map_err(|error| wrong(&error.to_string()))?;
        }
        if roots.is_empty() { Err(wrong("it has no certificate")) } else { Ok(Authorities::with(roots)) }
    }

    fn with(roots: RootCertStore) -> Authorities {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.expect("the provider has a suite for each version");
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![PROTOCOL.into()];
        Authorities(Arc::new(config))
    }
}

/// Starts TLS on a connection: the host has to prove its identity.
///
/// # Errors
/// Why it is not trusted, or does not answer.
pub fn secure<S: Read + Write>(
    mut stream: S,
    host: &str,
    authorities: &Authorities,
) -> Result<Secured<S>, Insecure> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(authorities.0.clone(), name).map_err(io::Error::other)?;
    // Before sending anything that only that host may see.
    connection.complete_io(&mut stream)?;
    Ok(StreamOwned::new(connection, stream))
}

/// Whether a certificate can name this host: by a DNS name or an address.
pub fn is_host(host: &str) -> bool {
    ServerName::try_from(host).is_ok()
}

/// Why a connection is not secure.
#[derive(Debug)]
pub enum Insecure {
    /// The peer does not speak TLS.
    NoTls,
    /// Its certificate is not for this host, or not from a trusted authority.
    Certificate(io::Error),
    /// Any other failure.
    Other(io::Error),
}

impl From<io::Error> for Insecure {
    fn from(error: io::Error) -> Insecure {
        match error.get_ref().and_then(|error| error.downcast_ref()) {
            Some(rustls::Error::InvalidMessage(_)) => Insecure::NoTls,
            Some(rustls::Error::InvalidCertificate(_)) => Insecure::Certificate(error),
            Some(_) | None => Insecure::Other(error),
        }
    }
}

impl fmt::Display for Insecure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Insecure::NoTls => f.write_str("the peer does not use TLS"),
            Insecure::Certificate(error) | Insecure::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Insecure {}
