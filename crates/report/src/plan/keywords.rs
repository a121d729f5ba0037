//! Parses and formats the keywords of a plan.

use super::{Direction, Kind, Link, Store, Transport};
use bench::job::Poll;
use config::Fault;
use std::time::Duration;

/// Looks up a keyword in a list.
pub(super) fn known<T: Copy>(text: &str, keywords: &[(&str, T)]) -> Result<T, Fault> {
    let found = keywords.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let fix = config::suggest(text, keywords.iter().map(|(word, _)| *word));
        Fault::new(format!("`{text}` is not known"), fix)
    })
}

const DIRECTIONS: [(&str, Direction); 8] = [
    ("read", Direction::Read),
    ("write", Direction::Write),
    ("randread", Direction::RandRead),
    ("randwrite", Direction::RandWrite),
    ("randrw", Direction::RandRw),
    ("trim", Direction::Trim),
    ("both", Direction::Both),
    ("randboth", Direction::RandBoth),
];

const POLLS: [(&str, Poll); 3] =
    [("adaptive", Poll::Adaptive), ("always", Poll::Always), ("never", Poll::Never)];

pub(super) fn direction(text: &str) -> Result<Direction, Fault> {
    known(text, &DIRECTIONS)
}

pub(super) fn poll(text: &str) -> Result<Poll, Fault> {
    known(text, &POLLS)
}

pub(super) fn transport(text: &str) -> Result<Transport, Fault> {
    let keywords = Transport::ALL.map(|transport| (transport.word(), transport));
    known(text, &keywords)
}

pub(super) fn digests(text: &str) -> Result<(bool, bool), Fault> {
    let keywords = [
        ("none", (false, false)),
        ("header", (true, false)),
        ("data", (false, true)),
        ("both", (true, true)),
    ];
    known(text, &keywords)
}

pub(super) fn switch(text: &str) -> Result<bool, Fault> {
    known(text, &[("true", true), ("false", false)])
}

pub(super) fn shared(text: &str) -> Result<bool, Fault> {
    known(text, &[("depth", false), ("shared", true)])
}

pub(super) fn url(text: &str) -> Result<String, Fault> {
    match config::Url::given(text) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(Fault::new(error.problem(), error.remedy())),
    }
}

pub(super) fn number(text: &str, least: u64, most: u64) -> Result<u64, Fault> {
    let number = text.parse::<u64>().ok().filter(|number| (least..=most).contains(number));
    let fix = || format!("choose a whole number from {least} to {most}");
    number.ok_or_else(|| Fault::new(format!("`{text}` is out of range"), fix()))
}

pub(super) fn block_size(text: &str) -> Result<u32, Fault> {
    let most = bench::run::BS_MAX;
    let size = u32::try_from(size(text)?).ok().filter(|size| (512..=most).contains(size));
    let size = size.filter(|size| size.is_multiple_of(512));
    size.ok_or_else(|| {
        Fault::new(
            format!("`{text}` cannot be a block size"),
            format!("choose a multiple of 512 up to {}", show_size(u64::from(most))),
        )
    })
}

fn size(text: &str) -> Result<u64, Fault> {
    config::parse_size(text).map_err(|error| split(&error))
}

/// `what; fix`.
fn split(error: &str) -> Fault {
    let (what, fix) = error.split_once("; ").unwrap_or((error, "see docs/report.md"));
    Fault::new(what, fix)
}

/// `5s`, `500ms`, `2m`.
pub(super) fn duration(text: &str) -> Result<Duration, Fault> {
    const HOUR: Duration = Duration::from_secs(3600);
    let time = config::parse_duration(text).map_err(|error| split(&error))?;
    match time {
        time if time <= HOUR => Ok(time),
        _ => Err(Fault::new(format!("`{text}` is too long"), "choose up to 1h")),
    }
}

/// `veth`, or the rate of a link.
pub(super) fn link(text: &str) -> Result<Link, Fault> {
    match text {
        "veth" => Ok(Link::Plain),
        _ => rate(text).map(Link::Rate),
    }
}

/// `100mbit`, `10gbit`: bits per second, in tc's notation.
fn rate(text: &str) -> Result<u64, Fault> {
    let units = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000)];
    let found = units.iter().find_map(|(unit, factor)| {
        let number = text.strip_suffix(unit)?.trim().parse::<u64>().ok()?;
        number.checked_mul(*factor).filter(|rate| *rate > 0)
    });
    found.ok_or_else(|| {
        Fault::new(
            format!("`{text}` is not a rate"),
            "write a rate such as 100mbit or 10gbit, or veth for a link without a limit",
        )
    })
}

/// `4K`, `512`: in the plan's notation.
pub(crate) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "T"), (30, "G"), (20, "M"), (10, "K")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

pub(super) fn store(text: &str) -> Result<Store, Fault> {
    const FORMS: &str = "write ram:SIZE, null:SIZE, tmpfs:SIZE, disk:SIZE or block:PATH";
    let fault = || Fault::new(format!("`{text}` is not a store"), FORMS);
    let (word, rest) = text.split_once(':').ok_or_else(fault)?;
    let sized = |make: fn(u64) -> Store| match size(rest)? {
        bytes if bytes < 1 << 20 => Err(Fault::new(format!("`{text}` is too small"), "choose at least 1M")),
        bytes => Ok(make(bytes)),
    };
    match word {
        "ram" => sized(Store::Ram),
        "null" => sized(Store::Null),
        "tmpfs" => sized(Store::Tmpfs),
        "disk" => sized(Store::Disk),
        "block" if rest.starts_with('/') => Ok(Store::Block(rest.into())),
        _ => Err(fault()),
    }
}

impl Store {
    /// Its size in bytes; `None`: that of the device.
    pub fn size(&self) -> Option<u64> {
        match self {
            Store::Ram(size) | Store::Null(size) | Store::Tmpfs(size) | Store::Disk(size) => Some(*size),
            Store::Block(_) => None,
        }
    }

    /// Its kind, in a word.
    pub fn word(&self) -> &'static str {
        match self {
            Store::Ram(_) => "ram",
            Store::Null(_) => "null",
            Store::Tmpfs(_) => "tmpfs",
            Store::Disk(_) => "disk",
            Store::Block(_) => "block",
        }
    }
}

impl std::fmt::Display for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Store::Ram(size) | Store::Null(size) | Store::Tmpfs(size) | Store::Disk(size) => {
                write!(f, "{}:{}", self.word(), show_size(*size))
            }
            Store::Block(path) => write!(f, "block:{path}"),
        }
    }
}

impl Kind {
    pub(super) fn word(text: &str) -> Result<Kind, Fault> {
        let kinds = [("lunette", 0), ("ceiling", 1), ("tgt", 2), ("vblade", 3)];
        known(text, &kinds).map(|kind| match kind {
            0 => Kind::Lunette,
            1 => Kind::Ceiling,
            2 => Kind::Tgt,
            _ => Kind::Vblade,
        })
    }

    /// The default transport to it.
    pub(super) fn usual_transport(&self) -> Transport {
        let url = match self {
            Kind::Lunette | Kind::Ceiling | Kind::Tgt | Kind::Spdk(_) => return Transport::Iscsi,
            Kind::Vblade => return Transport::Aoe,
            Kind::Url(url) => url,
        };
        let leads_there =
            |transport: &Transport| transport.scheme().is_some_and(|scheme| url.starts_with(scheme));
        Transport::ALL.into_iter().find(leads_there).unwrap_or(Transport::Iscsi)
    }
}

impl Transport {
    const ALL: [Transport; 5] =
        [Transport::Iscsi, Transport::Iser, Transport::Srp, Transport::Aoe, Transport::Local];

    pub(super) fn word(self) -> &'static str {
        match self {
            Transport::Iscsi => "iscsi",
            Transport::Iser => "iser",
            Transport::Srp => "srp",
            Transport::Aoe => "aoe",
            Transport::Local => "local",
        }
    }

    /// Its name next to a target's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Transport::Iscsi => "iSCSI",
            Transport::Iser => "iSER",
            Transport::Srp => "SRP",
            Transport::Aoe => "AoE",
            Transport::Local => "local",
        }
    }

    /// The URL scheme of units reached through it; `None`: they have no URLs.
    pub(crate) fn scheme(self) -> Option<&'static str> {
        match self {
            Transport::Iscsi => Some("iscsi://"),
            Transport::Iser => Some("iser://"),
            Transport::Srp => Some("srp://"),
            Transport::Aoe => Some("aoe://"),
            Transport::Local => None,
        }
    }

    /// Whether it is over iWARP: there CRCs replace the digests used over TCP.
    pub(crate) fn is_iwarp(self) -> bool {
        match self {
            Transport::Iser | Transport::Srp => true,
            Transport::Iscsi | Transport::Aoe | Transport::Local => false,
        }
    }
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = DIRECTIONS.iter().find(|(_, direction)| direction == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

/// The keyword for a polling mode.
pub(crate) fn show_poll(poll: Poll) -> &'static str {
    POLLS.iter().find(|(_, other)| *other == poll).map_or("", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_as_they_are_written() {
        for (word, direction) in DIRECTIONS {
            assert_eq!(direction.to_string(), word);
        }
        for word in ["ram:64M", "null:1T", "tmpfs:2G", "disk:1536M", "block:/dev/sda"] {
            assert_eq!(store(word).ok().map(|store| store.to_string()).as_deref(), Some(word));
        }
        assert_eq!(
            (show_size(512), show_size(1 << 12), Link::Rate(100_000_000).to_string()),
            ("512".into(), "4K".into(), "100 Mbit/s".into())
        );
        assert_eq!(link("veth").ok().map(|link| link.to_string()).as_deref(), Some("veth"));
    }

    #[test]
    fn unknown_options_are_answered_with_suggestions() {
        assert_eq!(
            direction("rndread").err().map(|fault| fault.fix).as_deref(),
            Some("did you mean `randread`?")
        );
        assert!(store("ram:12").err().is_some_and(|fault| fault.fix.contains("1M")));
        assert!(store("memory:1G").err().is_some_and(|fault| fault.fix.contains("ram:SIZE")));
        assert!(block_size("1000").err().is_some_and(|fault| fault.fix.contains("512")));
        assert!(duration("5 years").is_err() && duration("90m").is_err() && link("fast").is_err());
    }
}
