//! `iscsi://[user%secret@]host[:port]/target/lun[?option=value&...]`, libiscsi's syntax, the same with
//! `iser://`; `srp://host[:port]/guid/lun[?option=value&...]`;
//! `aoe://interface/shelf.slot[?option=value&...]`.

use super::protocol::Protocol;
use super::redact::{ends_word, redact};
use proto::iscsi::chap::{Algorithm, Credentials};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use wire::aoe::Address;
use wire::scsi::lun::{self, NUMBER_MAX as LUN_MAX};

/// The port of iSCSI (RFC 7143 section 15), and of iSER on the same portals; SRP over iWARP has no port of
/// its own.
const PORT: u16 = 3260;
/// Longest iSCSI name in bytes (RFC 7143 section 4.2.7.1).
const NAME_BYTES_MAX: usize = 223;
/// Longest interface name in bytes (IFNAMSIZ, less the terminating zero).
const INTERFACE_BYTES_MAX: usize = 15;
/// Digits of a GUID.
const GUID_DIGITS: usize = 16;
const OPTIONS: &str = "header_digest, data_digest, crc, imm, chap, secret_file, target_user, target_password, \
                       target_secret_file, initiator_name and give_up_after";
/// The longest `give_up_after`, in seconds.
const SECONDS_MAX: u64 = 3600;

/// Secret files that a URL names.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SecretFiles {
    /// For our secret.
    pub ours: Option<PathBuf>,
    /// For the target's secret.
    pub theirs: Option<PathBuf>,
}

/// A target's address, and usually a target and one of its units.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Url {
    /// The protocol.
    pub protocol: Protocol,
    /// Host name or address, without brackets; with AoE the name of our network interface.
    pub host: String,
    /// Port; AoE has none.
    pub port: u16,
    /// The target's name; with SRP its GUID, with AoE shelf and slot; `None`: any (discovery).
    pub target: Option<String>,
    /// Logical unit number.
    pub lun: Option<u16>,
    /// Our credentials (CHAP).
    pub user: Option<Credentials>,
    /// The target's credentials (mutual CHAP).
    pub target_user: Option<Credentials>,
    /// Secret files not yet read.
    pub secret_files: SecretFiles,
    /// The only CHAP algorithm to use; then there is no session without CHAP.
    pub chap: Option<Algorithm>,
    /// Our iSCSI name, instead of the default; our SRP port identifier begins with its hash.
    pub initiator_name: Option<String>,
    /// CRC32C of headers.
    pub header_digest: bool,
    /// CRC32C of data.
    pub data_digest: bool,
    /// CRC32C of everything over iWARP; also used when the target requests it.
    pub crc: bool,
    /// SRP may send data of writes inside commands.
    pub immediate: bool,
    /// How long a command waits for a target that is lost, instead of the default.
    pub give_up_after: Option<Duration>,
}

/// Why a text is not a URL: what is wrong, and how to fix it. It never quotes the text, since any part of a
/// malformed URL may be a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrlError {
    problem: String,
    remedy: String,
}

impl UrlError {
    pub(super) fn new(problem: impl Into<String>, remedy: impl Into<String>) -> UrlError {
        UrlError { problem: problem.into(), remedy: remedy.into() }
    }

    /// What is wrong.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// How to fix it.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for UrlError {}

impl Url {
    /// Whether a text is intended as such a URL, well-formed or not.
    pub fn is_meant(text: &str) -> bool {
        Protocol::is_meant(text)
    }

    /// A text fit for display: the URL it contains, or else the text without possible secrets.
    pub fn shown(text: &str) -> String {
        Url::parse(text).map_or_else(|_| redact(text), |url| url.to_string())
    }

    /// The unit's shelf and slot; `None` with other protocols than AoE, and for discovery.
    pub fn shelf_slot(&self) -> Option<Address> {
        let target = self.target.as_deref().filter(|_| self.protocol == Protocol::Aoe)?;
        target.parse().ok()
    }

    /// The eight LUN bytes: peripheral device addressing up to 255, flat space above (SAM-5 section 4.7).
    pub fn lun_bytes(&self) -> u64 {
        lun::of_number(self.lun.unwrap_or(0))
    }

    /// Checks that the URL names a unit.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_unit(&self) -> Result<(), UrlError> {
        match (&self.target, self.lun) {
            (Some(_), Some(_)) => Ok(()),
            _ => {
                Err(UrlError::new("the URL does not name a unit", format!("write {}", self.protocol.form())))
            }
        }
    }

    /// The target's port identifier in SRP: its id_ext and ioc_guid, which are the same.
    pub fn srp_port(&self) -> [u8; 16] {
        let guid = self.target.as_deref().and_then(|guid| u64::from_str_radix(guid, 16).ok());
        super::names::srp_port(guid.unwrap_or_default())
    }

    /// Requests header and data digests, even if the URL does not.
    ///
    /// # Errors
    /// When its protocol has none.
    pub fn digests(&mut self, header: bool, data: bool) -> Result<(), UrlError> {
        self.header_digest |= header;
        self.data_digest |= data;
        self.check()
    }

    fn option(&mut self, number: usize, option: &str) -> Result<(), UrlError> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value = decode("the value of an option", value)?;
        match key {
            "header_digest" => self.header_digest = digest(key, &value)?,
            "data_digest" => self.data_digest = digest(key, &value)?,
            "crc" => self.crc = boolean(key, &value)?,
            "imm" => self.immediate = boolean(key, &value)?,
            "initiator_name" => self.initiator_name = Some(iscsi_name(&value)?),
            "give_up_after" => self.give_up_after = Some(seconds(&value)?),
            "chap" => self.chap = Some(algorithm(&value)?),
            "secret_file" => self.secret_files.ours = Some(value.into()),
            "target_secret_file" => self.secret_files.theirs = Some(value.into()),
            "target_user" => self.target_identity().name = value,
            "target_password" => self.target_identity().secret = value.into_bytes(),
            _ => {
                let problem = format!("option {number} after the ? is not an option of such URLs");
                let remedy = format!("the options are {OPTIONS}; write each as NAME=VALUE, separated by &");
                return Err(UrlError::new(problem, remedy));
            }
        }
        Ok(())
    }

    fn target_identity(&mut self) -> &mut Credentials {
        self.target_user.get_or_insert_with(|| Credentials { name: String::new(), secret: Vec::new() })
    }

    pub(super) fn check(&self) -> Result<(), UrlError> {
        let has_digests = self.header_digest || self.data_digest;
        let has_chap = self.user.is_some() || self.target_user.is_some() || self.chap.is_some();
        match self.protocol {
            Protocol::Iscsi if self.crc => {
                let remedy = "write header_digest=crc32c and data_digest=crc32c";
                return Err(UrlError::new(
                    "only iSER and SRP have a CRC option, for the iWARP below them",
                    remedy,
                ));
            }
            Protocol::Iser | Protocol::Srp if has_digests => {
                let problem = "iSER and SRP have no digests (RFC 7145 section 6.1)";
                return Err(UrlError::new(problem, "write crc=on in the URL for checksums over everything"));
            }
            Protocol::Srp if has_chap => {
                let remedy = "leave user and secret out: targets identify an initiator by port and address";
                return Err(UrlError::new("SRP has no CHAP", remedy));
            }
            Protocol::Aoe if has_digests || self.crc => {
                let problem = "AoE has no digests except Ethernet's";
                return Err(UrlError::new(problem, "leave them out"));
            }
            Protocol::Aoe if has_chap => {
                let remedy =
                    "leave user and secret out: targets identify an initiator by its Ethernet address";
                return Err(UrlError::new("AoE has no CHAP", remedy));
            }
            Protocol::Iscsi | Protocol::Iser | Protocol::Aoe if !self.immediate => {
                let remedy = "leave it out; lunette bench has --no-immediate-data";
                return Err(UrlError::new("imm is an option of SRP", remedy));
            }
            Protocol::Iscsi | Protocol::Iser | Protocol::Srp | Protocol::Aoe => {}
        }
        self.check_chap()
    }

    fn check_chap(&self) -> Result<(), UrlError> {
        let remedy = "write user%secret@ before the host, with a % of the secret as %25 and an @ as %40; or user@ and \
                      secret_file=PATH; or set LIBISCSI_CHAP_USERNAME and LIBISCSI_CHAP_PASSWORD";
        match &self.user {
            Some(own) if own.name.is_empty() => {
                return Err(UrlError::new("there is a secret without a user's name", remedy));
            }
            Some(own) if own.secret.is_empty() => {
                return Err(UrlError::new("there is a user without a secret", remedy));
            }
            None if self.chap.is_some() => {
                return Err(UrlError::new("chap= needs a user and a secret", remedy));
            }
            Some(_) | None => {}
        }
        let Some(target) = &self.target_user else { return Ok(()) };
        if target.name.is_empty() || target.secret.is_empty() {
            let remedy = "give both target_user=NAME and target_secret_file=PATH or target_password=SECRET; or set \
                          LIBISCSI_CHAP_TARGET_USERNAME and LIBISCSI_CHAP_TARGET_PASSWORD";
            return Err(UrlError::new("the target's half of mutual CHAP is not complete", remedy));
        }
        match &self.user {
            None => Err(UrlError::new("mutual CHAP also needs the initiator's user and secret", remedy)),
            Some(own) if own.secret == target.secret => {
                let problem = "both directions of CHAP have the same secret (RFC 7143 section 9.2.1)";
                Err(UrlError::new(problem, "choose two"))
            }
            Some(_) => Ok(()),
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    /// From the text alone: see [`Url::given`] for secrets stored elsewhere.
    fn from_str(text: &str) -> Result<Url, UrlError> {
        let url = Url::parse(text)?;
        url.check()?;
        Ok(url)
    }
}

impl Url {
    /// Parses it; [`Url::check`] must follow.
    pub(super) fn parse(text: &str) -> Result<Url, UrlError> {
        let (protocol, rest) = Protocol::of(text).ok_or_else(|| {
            let forms = Protocol::ALL.map(Protocol::form).join(" or ");
            UrlError::new("this is not the URL of a unit", format!("write {forms}"))
        })?;
        // RFC 3986 section 2 allows none of them; when a command or a file is redacted, a URL ends at the
        // first.
        if rest.contains(ends_word) {
            let remedy = "write a space as %20, a tab as %09, \" as %22, ' as %27 and ` as %60";
            return Err(UrlError::new("a URL must not contain white space or quotation marks", remedy));
        }
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(identity(user)?), host),
            None => (None, authority),
        };
        // Except in the zone of an IPv6 address.
        if host.contains('%') && !host.starts_with('[') && protocol != Protocol::Aoe {
            let remedy = "write an @ between user%secret and host, and a / of a secret as %2F, a ? as %3F";
            return Err(UrlError::new("a host name must not contain %", remedy));
        }
        let (host, port) = match protocol {
            Protocol::Iscsi | Protocol::Iser | Protocol::Srp => {
                host_and_port(host, PORT, "iscsi://HOST/TARGET/LUN")?
            }
            Protocol::Aoe => (interface(host)?, PORT),
        };
        let (target, lun) = target_and_lun(path, protocol)?;
        let mut url = Url {
            protocol,
            host,
            port,
            target,
            lun,
            user,
            target_user: None,
            secret_files: SecretFiles::default(),
            chap: None,
            initiator_name: None,
            header_digest: false,
            data_digest: false,
            crc: false,
            immediate: true,
            give_up_after: None,
        };
        for (index, option) in options.split('&').filter(|option| !option.is_empty()).enumerate() {
            url.option(index + 1, option)?;
        }
        Ok(url)
    }
}

/// Without CHAP names and secrets: fit for a log.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colons = self.host.contains(':');
        let (open, close) = if colons { ("[", "]") } else { ("", "") };
        write!(f, "{}{open}{}{close}", self.protocol.scheme(), self.host)?;
        if self.port != PORT {
            write!(f, ":{}", self.port)?;
        }
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        if self.protocol == Protocol::Aoe {
            return Ok(());
        }
        self.lun.map_or(Ok(()), |lun| write!(f, "/{lun}"))
    }
}

/// `user%secret`, or `user` alone, with the secret elsewhere.
fn identity(text: &str) -> Result<Credentials, UrlError> {
    let (name, secret) = match text.split_once('%') {
        Some((name, secret)) => (name, Some(decode("the secret", secret)?.into_bytes())),
        None => (text, None),
    };
    let identity =
        Credentials { name: decode("the user's name", name)?, secret: secret.clone().unwrap_or_default() };
    if identity.name.is_empty() || secret.is_some_and(|secret| secret.is_empty()) {
        let remedy = "write user%secret@ before the host, with a % of the secret as %25 and an @ as %40";
        return Err(UrlError::new("the user's name or secret is empty", remedy));
    }
    Ok(identity)
}

/// A host and its port, or the default one; `form`: the syntax of the whole.
pub(super) fn host_and_port(text: &str, usual: u16, form: &str) -> Result<(String, u16), UrlError> {
    let bad_port = || {
        UrlError::new(
            "the text after the host's : is not a port",
            "write a number from 1 to 65535, or leave it out",
        )
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(|| {
                UrlError::new("a bracket is not closed", "write an IPv6 address like [::1]")
            })?;
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or_else(bad_port)?),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(UrlError::new(
                    "the host has several colons",
                    "write an IPv6 address in brackets, such as [::1]",
                ));
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::new("the host is missing", format!("write {form}")));
    }
    let port = match port {
        None => usual,
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(bad_port)?,
    };
    Ok((host.to_string(), port))
}

fn interface(text: &str) -> Result<String, UrlError> {
    let name = decode("the interface's name", text)?;
    if name.is_empty() || name.len() > INTERFACE_BYTES_MAX {
        let problem = "the name of a network interface is missing after aoe://";
        return Err(UrlError::new(problem, "write one that `ip link` shows, as aoe://eth0/1.1"));
    }
    Ok(name)
}

fn target_and_lun(path: &str, protocol: Protocol) -> Result<(Option<String>, Option<u16>), UrlError> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok((None, None));
    }
    if protocol == Protocol::Aoe {
        let address = path.parse::<Address>().ok().filter(|address| !address.is_broadcast());
        let fault = || {
            UrlError::new(
                "the text after the interface is not an AoE address",
                "write SHELF.SLOT, such as 1.1",
            )
        };
        return Ok((Some(address.ok_or_else(fault)?.to_string()), Some(0)));
    }
    let (target, lun) = match path.split_once('/') {
        Some((target, lun)) => (target, Some(lun)),
        None => (path, None),
    };
    let target = decode("the target's name", target)?;
    let target = match protocol {
        Protocol::Iscsi | Protocol::Iser | Protocol::Aoe => iscsi_name(&target)?,
        Protocol::Srp => guid(&target)?,
    };
    let bad_lun = || {
        UrlError::new("the text after the target is not a LUN", format!("write a number from 0 to {LUN_MAX}"))
    };
    let lun = match lun {
        None => None,
        Some(lun) => {
            let number = lun.parse().ok().filter(|number| *number <= LUN_MAX);
            Some(number.ok_or_else(bad_lun)?)
        }
    };
    Ok((Some(target), lun))
}

fn iscsi_name(text: &str) -> Result<String, UrlError> {
    let name = text.to_lowercase();
    let is_named = ["iqn.", "eui.", "naa."].iter().any(|start| name.starts_with(start));
    // ASCII characters forbidden by RFC 3722; other targets have names with `_` nevertheless.
    let has_foreign = name.chars().any(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-.:_".contains(c));
    if !is_named || has_foreign || name.len() > NAME_BYTES_MAX {
        return Err(UrlError::new(
            "the name is not an iSCSI name",
            "write one such as iqn.2026-11.io.lunette:disk",
        ));
    }
    Ok(name)
}

/// As 16 digits, with or without a leading `0x`.
fn guid(text: &str) -> Result<String, UrlError> {
    let text = text.to_ascii_lowercase();
    let digits = text.strip_prefix("0x").unwrap_or(&text);
    if digits.len() != GUID_DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        let remedy =
            "write the 16 hexadecimal digits of its id_ext and ioc_guid; `lunette serve` prints them";
        return Err(UrlError::new("the target is not the GUID of an SRP target", remedy));
    }
    Ok(digits.to_string())
}

fn digest(key: &str, value: &str) -> Result<bool, UrlError> {
    match value.to_ascii_lowercase().as_str() {
        "crc32c" => Ok(true),
        "none" => Ok(false),
        _ => Err(UrlError::new(format!("{key} is crc32c or none"), format!("write {key}=crc32c"))),
    }
}

fn boolean(key: &str, value: &str) -> Result<bool, UrlError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(UrlError::new(format!("{key} is on or off"), format!("write {key}=on"))),
    }
}

fn seconds(value: &str) -> Result<Duration, UrlError> {
    let seconds = value.parse().ok().filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let remedy = format!("write a number of seconds from 1 to {SECONDS_MAX}");
        UrlError::new("this is not a valid value of give_up_after", remedy)
    })
}

fn algorithm(value: &str) -> Result<Algorithm, UrlError> {
    let fault =
        || UrlError::new("this is not a valid value of chap", "choose one of md5, sha1, sha256 and sha3-256");
    Algorithm::named(value).ok_or_else(fault)
}

/// Decodes `%xx`. `what` describes the text, which may be a secret.
pub(super) fn decode(what: &str, text: &str) -> Result<String, UrlError> {
    let fault = || UrlError::new(format!("{what} is not percent-encoded UTF-8"), "write a % as %25");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2).ok_or_else(fault)?;
        let digits = std::str::from_utf8(digits).map_err(|_| fault())?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(fault());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| fault())?);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(|_| fault())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn good(text: &str) -> Url {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn fault(text: &str) -> String {
        text.parse::<Url>().expect_err(text).to_string()
    }

    #[test]
    fn all_parts_are_read() {
        let url = good(
            "iscsi://me%a%40b@host.example:860/iqn.2026-11.io.Lunette:disk/7?header_digest=CRC32C\
             &data_digest=none&initiator_name=iqn.2026-11.io.lunette:me&give_up_after=7&target_user=it&target_password=b%26c",
        );
        assert_eq!((url.host.as_str(), url.port), ("host.example", 860));
        assert_eq!(url.target.as_deref(), Some("iqn.2026-11.io.lunette:disk"));
        assert_eq!(url.lun, Some(7));
        assert_eq!(url.user, Some(Credentials { name: "me".into(), secret: b"a@b".to_vec() }));
        assert_eq!(url.target_user, Some(Credentials { name: "it".into(), secret: b"b&c".to_vec() }));
        assert!(url.header_digest && !url.data_digest);
        assert_eq!(url.initiator_name.as_deref(), Some("iqn.2026-11.io.lunette:me"));
        assert_eq!(url.give_up_after, Some(Duration::from_secs(7)));
        assert_eq!(url.to_string(), "iscsi://host.example:860/iqn.2026-11.io.lunette:disk/7");
        assert!(!format!("{url:?}").contains("a@b"), "secrets stay out of logs");
    }

    #[test]
    fn aoe_is_reached_by_an_interface() {
        let url = good("aoe://eth0.7/258.3?give_up_after=5");
        assert_eq!((url.protocol, url.host.as_str(), url.lun), (Protocol::Aoe, "eth0.7", Some(0)));
        assert_eq!(url.shelf_slot(), Some(Address { shelf: 258, slot: 3 }));
        assert_eq!(url.to_string(), "aoe://eth0.7/258.3");
        assert_eq!(good("aoe://eth0").target, None);
        for (wrong, remedy) in [
            ("aoe:///1.1", "ip link"),
            ("aoe://eth0/1", "SHELF.SLOT"),
            ("aoe://eth0/65535.1", "SHELF.SLOT"),
            ("aoe://eth0/1.1?data_digest=crc32c", "leave them out"),
            ("aoe://a%b@eth0/1.1", "by its Ethernet address"),
        ] {
            assert!(fault(wrong).contains(remedy), "{wrong}: {}", fault(wrong));
        }
    }

    #[test]
    fn iser_has_urls_of_the_same_kind() {
        let url = good("iser://me%a@host/iqn.2026-11.io.lunette:disk/7?crc=on");
        assert_eq!((url.protocol, url.port, url.lun, url.crc), (Protocol::Iser, 3260, Some(7), true));
        assert_eq!(url.to_string(), "iser://host/iqn.2026-11.io.lunette:disk/7");
        assert!(
            !good("iser://host?crc=off").crc
                && Url::is_meant("iser://")
                && Url::is_meant("Iser:h")
                && !Url::is_meant("iser")
        );
        assert!(fault("iser://h?data_digest=crc32c").contains("crc=on"));
        assert!(fault("iscsi://h?crc=on").contains("data_digest=crc32c"));
        assert!(fault("iser://h?crc=crc32c").contains("on or off"));
    }

    #[test]
    fn srp_names_its_target_by_guid() {
        let url = good("srp://host:3261/0x024C750000000001/7?crc=on&imm=off&give_up_after=7");
        assert_eq!((url.protocol, url.port, url.lun, url.crc), (Protocol::Srp, 3261, Some(7), true));
        assert_eq!(url.target.as_deref(), Some("024c750000000001"));
        assert_eq!(url.srp_port(), (0x024c_7500_0000_0001_024c_7500_0000_0001_u128).to_be_bytes());
        assert_eq!(url.to_string(), "srp://host:3261/024c750000000001/7");
        assert!(!url.immediate && good("srp://h/024c750000000001/0").immediate);
        assert!(fault("srp://h/iqn.2026-11.a:b/0").contains("16 hexadecimal digits"));
        assert!(fault("srp://h/24c750000000001/0").contains("not the GUID"));
        assert!(fault("srp://me%a@h/024c750000000001/0").contains("no CHAP"));
        assert!(fault("srp://h/024c750000000001/0?target_user=it").contains("no CHAP"));
        assert!(fault("srp://h/024c750000000001/0?data_digest=crc32c").contains("crc=on"));
        assert!(fault("iser://h?imm=off").contains("an option of SRP"));
        let whole = |text: &str| good(text).check_unit().map_err(|error| error.to_string());
        assert_eq!(whole("srp://h/024c750000000001/0"), Ok(()));
        assert_eq!(whole("srp://h"), Err("the URL does not name a unit; write srp://HOST/GUID/LUN".into()));
    }

    #[test]
    fn discovery_needs_neither_target_nor_unit() {
        for text in ["iscsi://host", "iscsi://host/", "iscsi://host:3260"] {
            let url = good(text);
            assert_eq!((url.target, url.lun, url.port), (None, None, 3260));
        }
        assert_eq!(good("iscsi://host/iqn.2026-11.io.lunette:a").lun, None);
    }

    #[test]
    fn ipv6_is_in_brackets() {
        let url = good("iscsi://[fe80::1]:3261/iqn.2026-11.io.lunette:a/0");
        assert_eq!((url.host.as_str(), url.port), ("fe80::1", 3261));
        assert_eq!(url.to_string(), "iscsi://[fe80::1]:3261/iqn.2026-11.io.lunette:a/0");
        let default = good("iscsi://[::1]");
        assert_eq!((default.host.as_str(), default.port), ("::1", 3260));
        assert!(fault("iscsi://fe80::1/").contains("brackets"));
        assert!(fault("iscsi://[::1/").contains("not closed"));
        assert!(fault("iscsi://[::1]x").contains("not a port"));
    }

    #[test]
    fn units_are_addressed_as_the_standard_has_it() {
        let lun = |lun| good(&format!("iscsi://h/iqn.2026-11.io.lunette:a/{lun}")).lun_bytes();
        assert_eq!(lun(5), 0x0005_0000_0000_0000);
        assert_eq!(lun(255), 0x00ff_0000_0000_0000);
        assert_eq!(lun(256), 0x4100_0000_0000_0000);
        assert!(fault("iscsi://h/iqn.2026-11.io.lunette:a/16384").contains("0 to 16383"));
    }

    #[test]
    fn faults_say_what_to_do() {
        assert!(fault("http://h").contains("iscsi://HOST/TARGET/LUN"));
        assert!(fault("iscsi:///iqn.2026-11.io.lunette:a/0").contains("the host is missing"));
        assert!(fault("iscsi://h:0/").contains("1 to 65535"));
        assert!(fault("iscsi://h/disk/0").contains("not an iSCSI name"));
        assert!(fault("iscsi://h/iqn.2026-11.io.lunette:a/0/1").contains("not a LUN"));
        assert!(fault("iscsi://me@h").contains("user%secret@"));
        assert!(fault("iscsi://me%a%zz@h").contains("%25"));
        assert!(fault("iscsi://me%a@h?target_user=it").contains("target_password"));
        assert!(fault("iscsi://h?target_user=it&target_password=x").contains("the initiator's user"));
        assert!(fault("iscsi://me%a@h?target_user=it&target_password=a").contains("same secret"));
        assert!(fault("iscsi://h?digest=crc32c").contains("header_digest"));
        assert!(fault("iscsi://h?initiator_name=me").contains("not an iSCSI name"));
        assert!(fault("iscsi://h?give_up_after=0").contains("1 to 3600"));
        assert!(fault("iscsi://h?data_digest=md5").contains("crc32c or none"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "(iscsi://|iser://|srp://)?\\PC{0,60}") {
            if let Ok(url) = text.parse::<Url>() {
                let again: Url = url.to_string().parse().unwrap_or_else(|error| panic!("{url}: {error}"));
                prop_assert_eq!((again.port, again.target, again.lun), (url.port, url.target, url.lun));
            }
        }
    }
}
