//! The protocols of a remote unit, and their URL schemes.

/// The protocol of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// iSCSI over TCP.
    Iscsi,
    /// iSER over iWARP.
    Iser,
    /// SRP over iWARP.
    Srp,
    /// ATA over Ethernet.
    Aoe,
}

impl Protocol {
    pub(super) const ALL: [Protocol; 4] = [Protocol::Iscsi, Protocol::Iser, Protocol::Srp, Protocol::Aoe];

    /// The scheme of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi://",
            Protocol::Iser => "iser://",
            Protocol::Srp => "srp://",
            Protocol::Aoe => "aoe://",
        }
    }

    /// The syntax of a unit's URL.
    pub(super) fn form(self) -> &'static str {
        match self {
            Protocol::Iscsi => "iscsi://HOST/TARGET/LUN",
            Protocol::Iser => "iser://HOST/TARGET/LUN",
            Protocol::Srp => "srp://HOST/GUID/LUN",
            Protocol::Aoe => "aoe://INTERFACE/SHELF.SLOT",
        }
    }

    /// The protocol of a URL, and what follows the scheme.
    pub(super) fn of(text: &str) -> Option<(Protocol, &str)> {
        Protocol::ALL.into_iter().find_map(|protocol| Some((protocol, text.strip_prefix(protocol.scheme())?)))
    }

    /// Whether a text begins with one of these schemes, in any case, with or without slashes.
    pub(super) fn is_meant(text: &str) -> bool {
        let Some((scheme, _)) = text.split_once(':') else { return false };
        Protocol::ALL.iter().any(|protocol| {
            protocol.scheme().strip_suffix("://").is_some_and(|own| own.eq_ignore_ascii_case(scheme))
        })
    }
}
