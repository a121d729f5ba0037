//! Files for the admin interface over TCP: tokens, a certificate and its key.

use super::access::{AdminAccess, CertifiedKey, FileRead, Token};
use super::place::Place;
use super::private::Named;
use super::problems::{Collector, Fault, Problems};
use super::raw::{Raw, Text};
use super::scalar;
use std::path::{Path, PathBuf};

/// Minimum length of a token. Guesses are limited only by the rate at which connections are accepted.
const TOKEN_MIN: usize = 16;
const TOKEN_MAX: usize = 256;
/// Most tokens in a file, and most bytes in any of these files.
const TOKENS_MAX: usize = 256;
const FILE_MAX: u64 = 256 << 10;

/// Why an identity cannot be used, by the faulty file.
#[derive(Debug)]
pub enum Unusable {
    /// The certificate, or the two do not match.
    Certificate(Fault),
    /// The key.
    Key(Fault),
}

/// Where an identity was configured.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    file: Option<PathBuf>,
    certificate: Place,
    key: Place,
}

impl Origin {
    pub(super) fn of(raw: &Raw, file: Option<&Path>) -> Origin {
        let place = |at: &Text, name| at.as_ref().map_or_else(|| Place::option(name), |at| at.place.clone());
        Origin {
            file: file.map(Path::to_path_buf),
            certificate: place(&raw.admin_certificate, "admin_certificate"),
            key: place(&raw.admin_key, "admin_key"),
        }
    }

    /// What is wrong, located in this text of the file.
    pub(super) fn problems(&self, text: &str, unusable: &Unusable) -> Problems {
        let (place, fault) = match unusable {
            Unusable::Certificate(fault) => (&self.certificate, fault),
            Unusable::Key(fault) => (&self.key, fault),
        };
        Problems::of_place(self.file.as_deref().map(|file| (file, text)), place, fault)
    }
}

pub(super) fn access(raw: &Raw, base: &Path, problems: &mut Collector<'_>) -> Option<AdminAccess> {
    let tokens = match &raw.admin_token_file {
        None => Some(Vec::new()),
        Some(at) => problems.check(&at.place, read_tokens(Path::new(&at.value), base)),
    };
    let identity = match (&raw.admin_certificate, &raw.admin_key) {
        (None, None) => Some(None),
        (Some(certificate), Some(key)) => {
            let certificate =
                problems.check(&certificate.place, certificate_at(Path::new(&certificate.value), base));
            let key = problems.check(&key.place, key_at(Path::new(&key.value), base));
            certificate.zip(key).map(|(certificate, key)| Some(CertifiedKey { certificate, key }))
        }
        (Some(at), None) => {
            let fix = missing(&at.place, "--admin-key FILE", "admin_key");
            problems.add(&at.place, Fault::new("the private key is missing", fix));
            None
        }
        (None, Some(at)) => {
            let fix = missing(&at.place, "--admin-certificate FILE", "admin_certificate");
            problems.add(&at.place, Fault::new("the certificate is missing", fix));
            None
        }
    };
    Some(AdminAccess { tokens: tokens?, identity: identity? })
}

/// What to add: to the command line or to the file, whichever has the other option.
fn missing(beside: &Place, option: &str, key: &str) -> String {
    if beside.offset.is_some() { format!("add `{key} = \"path\"`") } else { format!("add {option}") }
}

fn certificate_at(path: &Path, base: &Path) -> Result<FileRead, Fault> {
    let named = Named::open(path, base, "admin_certificate")?;
    Ok(FileRead { bytes: named.read(FILE_MAX)?, path: named.path })
}

fn key_at(path: &Path, base: &Path) -> Result<FileRead, Fault> {
    let named = Named::open(path, base, "admin_key")?;
    named.check_private()?;
    Ok(FileRead { bytes: named.read(FILE_MAX)?, path: named.path })
}

/// The tokens in a file with lines `NAME TOKEN`, which only its owner may access.
fn read_tokens(path: &Path, base: &Path) -> Result<Vec<Token>, Fault> {
    let named = Named::open(path, base, "admin_token_file")?;
    named.check_private()?;
    let bytes = named.read(FILE_MAX)?;
    let shown = named.path.display();
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| Fault::new(format!("{shown} is not text"), "write a line NAME TOKEN for each token"))?;
    let mut tokens: Vec<Token> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fault = |fault: Fault| Fault::new(format!("{shown}:{}: {}", index + 1, fault.what), fault.fix);
        let token = token(line).map_err(fault)?;
        if let Some(other) = tokens.iter().find(|other| other.name == token.name || other.is_same(&token)) {
            let what = format!("{} and {} share a name or a token", other.name, token.name);
            return Err(fault(Fault::new(what, "give each its own")));
        }
        if tokens.len() == TOKENS_MAX {
            return Err(fault(Fault::new("there are too many tokens", format!("use at most {TOKENS_MAX}"))));
        }
        tokens.push(token);
    }
    if tokens.is_empty() {
        return Err(Fault::new(format!("{shown} has no token"), "write a line NAME TOKEN for each token"));
    }
    // Their order does not matter.
    tokens.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(tokens)
}

/// The token with which a command authenticates: the first in a file, with or without a name before it.
///
/// # Errors
/// When there is none, or other users may access the file.
pub fn token_of(path: &Path) -> Result<String, Fault> {
    let named = Named::open(path, Path::new(""), "--admin-token-file")?;
    named.check_private()?;
    let bytes = named.read(FILE_MAX)?;
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let words: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    match words[..] {
        [token] | [_, token] if is_plain(token) => Ok(token.to_owned()),
        _ => {
            let what = match words.len() {
                0..=2 => "has no token".to_owned(),
                words => format!("has {words} fields in its first line"),
            };
            let fix = "write a line NAME TOKEN, as in the daemon's file";
            Err(Fault::new(format!("{} {what}", named.path.display()), fix))
        }
    }
}

/// The error quotes neither word, as the token may be where the name should be.
fn token(line: &str) -> Result<Token, Fault> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, token] = words[..] else {
        let plural = if words.len() == 1 { "" } else { "s" };
        let what = format!("expected NAME TOKEN, found {} field{plural}", words.len());
        return Err(Fault::new(what, "write NAME TOKEN"));
    };
    let name = scalar::label(name).map_err(|fault| Fault::new("this is not a valid name", fault.fix))?;
    if !is_plain(token) || !(TOKEN_MIN..=TOKEN_MAX).contains(&token.len()) {
        let fix = format!(
            "use {TOKEN_MIN} to {TOKEN_MAX} letters, digits, `-`, `.`, `_`, `~`, `+`, `/` and `=`, such as those of openssl \
             rand -hex 32"
        );
        return Err(Fault::new(
            format!("the token of {name} is too short or too long, or has characters that are not allowed"),
            fix,
        ));
    }
    Ok(Token::new(name, token))
}

/// Whether it can be sent in an HTTP field (RFC 6750 section 2.1).
fn is_plain(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const TOKEN: &str = "not-a-real-token-but-long";

    /// Parses a token file with this text and mode, or returns what is wrong with it.
    fn read(text: &str, mode: u32) -> Result<AdminAccess, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("tokens");
        std::fs::write(&path, text).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        let read = read_tokens(Path::new("tokens"), directory.path());
        read.map(|tokens| AdminAccess { tokens, identity: None })
            .map_err(|fault| format!("{}; {}", fault.what, fault.fix))
    }

    #[test]
    fn a_token_is_known_by_its_name_and_never_shown() {
        let access =
            read(&format!("# of the test\n\n  ops\t{TOKEN}\r\nweb {TOKEN}2\n"), 0o600).expect("good");
        let name = |token: &str| access.find(token.as_bytes()).map(|token| token.name.as_str());
        assert_eq!(name(TOKEN), Some("ops"));
        assert_eq!(name(&format!("{TOKEN}2")), Some("web"));
        for wrong in ["", "ops", &TOKEN[1..], &TOKEN.to_uppercase()] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
        assert!(!format!("{access:?}").contains(TOKEN));
        let turned = read(&format!("web {TOKEN}2\nops {TOKEN}\n"), 0o400).expect("good");
        assert_eq!(turned, access, "their order means nothing");
    }

    #[test]
    fn what_is_wrong_with_a_token_file_is_named_by_its_line_and_without_a_token() {
        let good = format!("ops {TOKEN}\n");
        for (text, mode, named) in [
            (good.clone(), 0o640, "(mode 640); chmod 600 /"),
            (String::new(), 0o600, "tokens has no token; write a line NAME TOKEN"),
            (
                format!("#\n{TOKEN}\n"),
                0o600,
                "tokens:2: expected NAME TOKEN, found 1 field; write NAME TOKEN",
            ),
            (format!("{TOKEN}=~ ops\n"), 0o600, "tokens:1: this is not a valid name; use 1 to 64 letters"),
            ("ops short\n".into(), 0o600, "tokens:1: the token of ops is too short or too long"),
            (format!("ops {TOKEN}\u{e9}\n"), 0o600, "or has characters that are not allowed; use 16 to 256"),
            (format!("{good}ops {TOKEN}2\n"), 0o600, "tokens:2: ops and ops share a name or a token"),
            (format!("{good}web {TOKEN}\n"), 0o600, "tokens:2: ops and web share a name or a token"),
        ] {
            let fault = read(&text, mode).expect_err("wrong on purpose");
            assert!(fault.contains(named) && !fault.contains(TOKEN), "{text}: {fault}");
        }
    }
}
