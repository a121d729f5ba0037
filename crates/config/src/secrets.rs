//! CHAP names and secrets kept out of URLs, where everyone who lists processes would see them: from files,
//! and from the environment variables that libiscsi uses. Passphrases come from files only.

use super::private::read_secret;
use super::problems::Fault;
use super::protocol::Protocol;
use super::rbd::RbdImage;
use super::url::{Url, UrlError};
use proto::iscsi::chap::Credentials;
use std::path::{Path, PathBuf};

/// Where one side's name and secret come from: libiscsi's environment variables for both, and the option that
/// names a file.
struct Source {
    name: &'static str,
    secret: &'static str,
    file: &'static str,
}

const OURS: Source =
    Source { name: "LIBISCSI_CHAP_USERNAME", secret: "LIBISCSI_CHAP_PASSWORD", file: "secret_file" };
const THEIRS: Source = Source {
    name: "LIBISCSI_CHAP_TARGET_USERNAME",
    secret: "LIBISCSI_CHAP_TARGET_PASSWORD",
    file: "target_secret_file",
};

impl Url {
    /// A URL as given by a person: missing CHAP names and secrets come from the files that it names, or else
    /// from the environment.
    ///
    /// # Errors
    /// When it is not a URL, a file cannot be used, or a name has no secret.
    pub fn given(text: &str) -> Result<Url, UrlError> {
        Url::given_at(text, Path::new(""))
    }

    /// The same; relative paths start at `base`.
    ///
    /// # Errors
    /// As [`Url::given`].
    pub fn given_at(text: &str, base: &Path) -> Result<Url, UrlError> {
        complete(Url::parse(text)?, base, |name| std::env::var(name).ok())
    }
}

impl RbdImage {
    /// The passphrase of an image encrypted by LUKS: the first line of its file, as Ceph's tools read it.
    ///
    /// # Errors
    /// When the file cannot be read, is empty, or users other than its owner can access it; with the fix.
    pub fn luks_passphrase(&self) -> Result<Option<Vec<u8>>, Fault> {
        let Some(path) = &self.luks_passphrase_file else { return Ok(None) };
        let passphrase = read_secret(path, Path::new(""), "luks_passphrase_file")?;
        if passphrase.is_empty() {
            let what = format!("{}: its first line, the passphrase, is empty", path.display());
            return Err(Fault::new(what, "write the passphrase into the file"));
        }
        Ok(Some(passphrase))
    }
}

fn complete(mut url: Url, base: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Url, UrlError> {
    let has_chap = matches!(url.protocol, Protocol::Iscsi | Protocol::Iser);
    // For other protocols, the environment variables are not meant for us.
    let variable = |name| variable(name).filter(|value| has_chap && !value.is_empty());
    let files = std::mem::take(&mut url.secret_files);
    url.user = identity(url.user.take(), files.ours, &OURS, base, &variable)?;
    url.target_user = identity(url.target_user.take(), files.theirs, &THEIRS, base, &variable)?;
    url.check()?;
    Ok(url)
}

fn identity(
    given: Option<Credentials>,
    file: Option<PathBuf>,
    source: &Source,
    base: &Path,
    variable: &impl Fn(&'static str) -> Option<String>,
) -> Result<Option<Credentials>, UrlError> {
    let Credentials { name, secret } =
        given.unwrap_or_else(|| Credentials { name: String::new(), secret: Vec::new() });
    let name = if name.is_empty() { variable(source.name).unwrap_or_default() } else { name };
    let secret = match (secret.is_empty(), file) {
        (false, Some(_)) => {
            let problem = format!("the secret is given twice, in the URL and by {}", source.file);
            return Err(UrlError::new(problem, "keep one of them"));
        }
        (false, None) => secret,
        (true, Some(path)) => {
            read_secret(&path, base, source.file).map_err(|fault| UrlError::new(fault.what, fault.fix))?
        }
        // A secret without a name is ignored.
        (true, None) if name.is_empty() => return Ok(None),
        (true, None) => variable(source.secret).unwrap_or_default().into_bytes(),
    };
    Ok(Some(Credentials { name, secret }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const UNIT: &str = "h/iqn.2026-11.io.lunette:a/0";

    fn given(text: &str, variables: &[(&str, &str)], base: &Path) -> Result<Url, String> {
        let variable = |name: &str| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        };
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        complete(url, base, variable).map_err(|error| error.to_string())
    }

    fn who(identity: &Option<Credentials>) -> Option<(&str, &[u8])> {
        identity.as_ref().map(|identity| (identity.name.as_str(), identity.secret.as_slice()))
    }

    const ALL: [(&str, &str); 4] = [
        ("LIBISCSI_CHAP_USERNAME", "me"),
        ("LIBISCSI_CHAP_PASSWORD", "mine"),
        ("LIBISCSI_CHAP_TARGET_USERNAME", "it"),
        ("LIBISCSI_CHAP_TARGET_PASSWORD", "its"),
    ];

    #[test]
    fn the_environment_has_what_the_url_lacks() {
        let here = Path::new("");
        let url = given(&format!("iscsi://{UNIT}"), &ALL, here).expect("a URL");
        assert_eq!(
            (who(&url.user), who(&url.target_user)),
            (Some(("me", &b"mine"[..])), Some(("it", &b"its"[..])))
        );
        let url = given(&format!("iser://you%yours@{UNIT}"), &ALL[..2], here).expect("a URL");
        assert_eq!((who(&url.user), who(&url.target_user)), (Some(("you", &b"yours"[..])), None));
        let url = given(&format!("iscsi://you@{UNIT}"), &ALL[..2], here).expect("a URL");
        assert_eq!(who(&url.user), Some(("you", &b"mine"[..])));
        let url = given(&format!("iscsi://{UNIT}"), &[("LIBISCSI_CHAP_USERNAME", "")], here).expect("a URL");
        assert_eq!(who(&url.user), None);
        let url = given("srp://h/024c750000000001/0", &ALL, here).expect("a URL");
        assert_eq!(who(&url.user), None, "SRP has no CHAP");
        let half = given(&format!("iscsi://{UNIT}"), &ALL[..1], here).expect_err("half of it");
        assert!(half.contains("LIBISCSI_CHAP_PASSWORD"), "{half}");
        let url = given(&format!("iscsi://{UNIT}"), &ALL[1..2], here).expect("a URL");
        assert_eq!(who(&url.user), None, "a secret alone is nobody's");
    }

    #[test]
    fn secrets_come_from_files_that_only_their_owner_may_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str, mode| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        };
        write("mine", "my secret\n", 0o600);
        write("its", "its secret", 0o400);
        write("open", "everybody's", 0o644);
        let url = format!("iscsi://me@{UNIT}?secret_file=mine&target_user=it&target_secret_file=its");
        let url = given(&url, &[], directory.path()).expect("a URL");
        let expected = (Some(("me", &b"my secret"[..])), Some(("it", &b"its secret"[..])));
        assert_eq!((who(&url.user), who(&url.target_user)), expected);
        for (text, why) in [
            ("me@", "secret_file=open", "chmod 600"),
            ("me@", "secret_file=none", "cannot read"),
            ("me%a@", "secret_file=mine", "given twice"),
            ("", "secret_file=mine", "name"),
        ]
        .map(|(user, option, why)| (format!("iscsi://{user}{UNIT}?{option}"), why))
        {
            let error = given(&text, &[], directory.path()).expect_err(&text);
            assert!(error.contains(why), "{text}: {error}");
        }
        let error =
            given("srp://h/024c750000000001/0?secret_file=mine", &[], directory.path()).expect_err("SRP");
        assert!(error.contains("no CHAP"), "{error}");
    }

    #[test]
    fn a_passphrase_is_the_first_line_of_a_file_that_only_its_owner_may_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let read = |text: &str, mode| {
            let path = directory.path().join("passphrase");
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
            let image = RbdImage::parse("p/disk").expect("it is one");
            RbdImage { luks_passphrase_file: Some(path), ..image }.luks_passphrase()
        };
        assert_eq!(read("a secret\n", 0o600), Ok(Some(b"a secret".to_vec())));
        assert_eq!(read("a secret", 0o400), Ok(Some(b"a secret".to_vec())));
        assert!(read("a secret", 0o640).is_err_and(|fault| fault.fix.contains("chmod 600")));
        assert!(read("\n", 0o600).is_err_and(|fault| fault.what.contains("is empty")));
        assert_eq!(RbdImage::parse("p/disk").expect("it is one").luks_passphrase(), Ok(None));
    }
}
