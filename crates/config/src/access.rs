//! The admin interface over TCP: who may change the configuration, and how connections are encrypted.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::path::PathBuf;
use subtle::ConstantTimeEq as _;

/// Who may change the configuration, besides users of the socket, and how connections are encrypted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AdminAccess {
    /// The tokens that authorize; without any, nobody may.
    pub tokens: Vec<Token>,
    /// Its certificate and key; `None`: connections are not encrypted.
    pub identity: Option<CertifiedKey>,
}

impl AdminAccess {
    /// The token with these bytes, in constant time.
    pub fn find(&self, token: &[u8]) -> Option<&Token> {
        let digest = Sha256::digest(token);
        let same = |known: &&Token| bool::from(known.digest.ct_eq(digest.as_slice()));
        // All are compared, even after a match.
        self.tokens.iter().filter(same).fold(None, |_, known| Some(known))
    }
}

/// A token, stored only as a digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The name of its holder, for the log.
    pub name: String,
    digest: [u8; 32],
}

impl Token {
    pub(super) fn new(name: String, token: &str) -> Token {
        Token { name, digest: Sha256::digest(token).into() }
    }

    /// Whether both are the same token, whatever their names.
    pub(super) fn is_same(&self, other: &Token) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertifiedKey {
    /// The certificate chain.
    pub certificate: FileRead,
    /// Its private key.
    pub key: FileRead,
}

/// The contents of a file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileRead {
    /// Its path.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for FileRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRead").field("path", &self.path).finish_non_exhaustive()
    }
}
