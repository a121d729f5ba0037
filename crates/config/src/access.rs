//! The admin interface where it is reached by an address: who may change what is served, and what encrypts that.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::path::PathBuf;
use subtle::ConstantTimeEq as _;

/// Who may change what is served, beside users of the socket, and what encrypts that.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AdminAccess {
    /// Whoever has one of them; none: nobody.
    pub tokens: Vec<Token>,
    /// What it proves itself with; `None`: nothing is encrypted.
    pub identity: Option<Identity>,
}

impl AdminAccess {
    /// Which token this is. How long that takes says nothing about the others.
    pub fn find(&self, token: &[u8]) -> Option<&Token> {
        let digest = Sha256::digest(token);
        let same = |known: &&Token| bool::from(known.digest.ct_eq(digest.as_slice()));
        // All are compared, also behind the one that it is.
        self.tokens.iter().filter(same).fold(None, |_, known| Some(known))
    }
}

/// A token, of which only a digest is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Whose it is, for the log.
    pub name: String,
    digest: [u8; 32],
}

impl Token {
    pub(super) fn new(name: String, token: &str) -> Token {
        Token { name, digest: Sha256::digest(token).into() }
    }

    /// Whether they are one, whatever their names.
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
pub struct Identity {
    /// The certificate, with those behind it.
    pub certificate: FileRead,
    /// Its private key.
    pub key: FileRead,
}

/// What was in a file.
#[derive(Clone, PartialEq, Eq)]
pub struct FileRead {
    /// Where it is.
    pub path: PathBuf,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl fmt::Debug for FileRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRead").field("path", &self.path).finish_non_exhaustive()
    }
}
