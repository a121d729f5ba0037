//! The identity of a unit, so that after a login no command goes to another disk.

use super::continuity::Incarnation;
use std::fmt;
use wire::scsi::designator::{self, association, code_set, kind};
use wire::scsi::inquiry::{StandardData, lunette};
use wire::scsi::vpd::{self, PAGE_CODE, page};
use wire::shown;

/// How a unit is distinguished from others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitIdentity {
    proof: Proof,
    /// Vendor and product.
    model: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Proof {
    /// A designator of the unit (SPC-4 section 7.8.6): code set and type, and its bytes.
    Designator { kind: (u8, u8), bytes: Vec<u8> },
    /// The unit serial number (SPC-4 section 7.8.15).
    Serial(String),
    /// Nothing but vendor and product.
    None,
}

/// Designator types that identify the unit, the best first: NAA, EUI-64, UUID, SCSI name string, T10 vendor
/// ID.
const KINDS: [u8; 5] = [kind::NAA, kind::EUI_64, kind::UUID, kind::SCSI_NAME, kind::T10_VENDOR_ID];

impl UnitIdentity {
    /// From INQUIRY data and the best of the unit's pages; `page` requests one.
    pub(super) fn query(inquiry: &[u8], pages: &[u8], mut page: impl FnMut(u8) -> Vec<u8>) -> UnitIdentity {
        let mut ask = |code: u8| if pages.contains(&code) { page(code) } else { Vec::new() };
        let designation = ask(page::IDENTIFICATION);
        let best =
            designators(&designation).min_by_key(|(kind, _)| KINDS.iter().position(|one| *one == kind.1));
        let proof = match best {
            Some((kind, bytes)) => Proof::Designator { kind, bytes: bytes.to_vec() },
            None => match text(vpd::body(&ask(page::SERIAL_NUMBER))) {
                serial if serial.is_empty() => Proof::None,
                serial => Proof::Serial(serial),
            },
        };
        UnitIdentity { proof, model: model(inquiry) }
    }

    /// The page that contains it, if there is one.
    pub(super) fn page(&self) -> Option<u8> {
        match self.proof {
            Proof::Designator { .. } => Some(page::IDENTIFICATION),
            Proof::Serial(_) => Some(page::SERIAL_NUMBER),
            Proof::None => None,
        }
    }

    /// How a unit with this INQUIRY data and page is identified in a message.
    pub(super) fn found(&self, inquiry: &[u8], page: &[u8]) -> UnitIdentity {
        let pages = self.page().filter(|code| PAGE_CODE.get(page) == Some(*code));
        UnitIdentity::query(inquiry, pages.as_slice(), |_| page.to_vec())
    }

    /// Whether the unit with this INQUIRY data and page is the right one.
    pub(super) fn is_of(&self, inquiry: &[u8], page: &[u8]) -> bool {
        let is_page = self.page().is_none_or(|code| PAGE_CODE.get(page) == Some(code));
        is_page
            && match &self.proof {
                Proof::Designator { kind, bytes } => {
                    designators(page).any(|(one, name)| one == *kind && name == bytes)
                }
                Proof::Serial(serial) => text(vpd::body(page)) == *serial && model(inquiry) == self.model,
                Proof::None => model(inquiry) == self.model,
            }
    }
}

impl fmt::Display for UnitIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.proof {
            Proof::Designator { kind: (code_set::BINARY, _), bytes } => {
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Proof::Designator { bytes, .. } => write!(f, "{}", shown(&text(bytes))),
            Proof::Serial(serial) => write!(f, "{} {}", shown(&self.model), shown(serial)),
            Proof::None => write!(f, "{}", shown(&self.model)),
        }
    }
}

/// The incarnation that a Lunette reports for its store's cache, in the vendor specific bytes of INQUIRY
/// data.
pub(super) fn incarnation(inquiry: &[u8]) -> Option<Incarnation> {
    let incarnation = lunette::INCARNATION.get(inquiry)?;
    (is_lunette(inquiry) && incarnation != [0; 16]).then_some(incarnation)
}

/// Whether INQUIRY data is that of a Lunette that answers nothing on a session, including its login, before
/// the commands of the one that it replaces have ended. Older versions answer the login first.
pub(super) fn withholds_logins(inquiry: &[u8]) -> bool {
    is_lunette(inquiry) && lunette::WITHHOLDS_LOGINS.get(inquiry) == Some(true)
}

/// Whether INQUIRY data is that of a Lunette.
fn is_lunette(inquiry: &[u8]) -> bool {
    StandardData::VENDOR.get(inquiry).is_some_and(|vendor| vendor == lunette::VENDOR.as_bytes())
}

/// The complete designators of the unit itself that identify it: code set and type, and bytes.
fn designators(page: &[u8]) -> impl Iterator<Item = ((u8, u8), &[u8])> {
    designator::designators(vpd::body(page))
        .filter(|one| {
            one.association == association::UNIT && KINDS.contains(&one.kind) && !one.bytes.is_empty()
        })
        .map(|one| ((one.code_set, one.kind), one.bytes))
}

/// Vendor and product in INQUIRY data.
fn model(inquiry: &[u8]) -> String {
    let StandardData { vendor, product, .. } = StandardData::read(inquiry);
    text([&vendor[..], &product].concat().as_slice())
}

/// Text without padding.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INQUIRY: &[u8; 36] = b"\0\0\x06\x12\x5b\0\0\x02ACME    Disk            1.00";

    fn page(code: u8, body: &[u8]) -> Vec<u8> {
        [&[0, code, 0, body.len() as u8], body].concat()
    }

    #[test]
    fn a_unit_is_known_by_its_own_best_designator() {
        let t10 = [2, 1, 0, 4, b'A', b'C', b'M', b'E'];
        let port = [0x51, 0x94, 0, 4, 0, 0, 0, 1];
        let naa = |n| [1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0, 0, n];
        let whole = page(page::IDENTIFICATION, &[&t10[..], &port, &naa(1)].concat());
        let identity =
            UnitIdentity::query(INQUIRY, &[0, page::SERIAL_NUMBER, page::IDENTIFICATION], |_| whole.clone());
        assert_eq!(
            (identity.page(), identity.to_string().as_str()),
            (Some(page::IDENTIFICATION), "3000000000000001")
        );
        assert!(identity.is_of(INQUIRY, &whole));
        let moved = page(page::IDENTIFICATION, &[&naa(9)[..], &naa(1)].concat());
        assert!(identity.is_of(&[], &moved), "another firmware may report more");
        let other = page(page::IDENTIFICATION, &[&t10[..], &port, &naa(2)].concat());
        assert!(!identity.is_of(INQUIRY, &other));
        assert!(!identity.is_of(INQUIRY, &whole[..whole.len() - 1]));
        assert!(!identity.is_of(INQUIRY, &[]));
    }

    #[test]
    fn only_a_mark_says_that_logins_are_withheld() {
        let mut inquiry = [0; 96];
        inquiry[8..16].copy_from_slice(b"LUNETTE ");
        inquiry[36..52].fill(9);
        assert!(!withholds_logins(&inquiry) && incarnation(&inquiry) == Some([9; 16]));
        inquiry[52] = 1;
        assert!(withholds_logins(&inquiry) && !withholds_logins(&inquiry[..52]));
        inquiry[8..16].copy_from_slice(b"ACME    ");
        assert!(!withholds_logins(&inquiry));
    }

    #[test]
    fn no_unit_forges_a_line_of_the_log() {
        let name = page(page::IDENTIFICATION, b"\x02\x08\0\x0ex\nERROR \x1b[31mX");
        let inquiry = b"\0\0\x06\x12\x5b\0\0\x02AC\nE    Di\x1bk            1.00";
        let designator = UnitIdentity::query(inquiry, &[0, page::IDENTIFICATION], |_| name.clone());
        assert_eq!(designator.to_string(), "x\\x0aERROR \\x1b[31mX");
        let serial =
            UnitIdentity::query(inquiry, &[0, page::SERIAL_NUMBER], |_| page(page::SERIAL_NUMBER, b"A\r1"));
        assert_eq!(serial.to_string(), "AC\\x0aE    Di\\x1bk A\\x0d1");
        assert_eq!(UnitIdentity::query(inquiry, &[0], |_| Vec::new()).to_string(), "AC\\x0aE    Di\\x1bk");
    }

    #[test]
    fn without_a_designator_the_serial_number_and_the_name_identify() {
        let serial = page(page::SERIAL_NUMBER, b"  A-1 ");
        let identity = UnitIdentity::query(INQUIRY, &[0, page::SERIAL_NUMBER], |_| serial.clone());
        assert_eq!(identity.to_string(), "ACME    Disk A-1");
        assert!(identity.is_of(INQUIRY, &page(page::SERIAL_NUMBER, b"A-1")));
        assert!(!identity.is_of(INQUIRY, &page(page::SERIAL_NUMBER, b"A-2")));
        let identity = UnitIdentity::query(INQUIRY, &[0], |_| Vec::new());
        assert_eq!(identity.page(), None);
        assert!(identity.is_of(INQUIRY, &[]));
        assert!(!identity.is_of(&[b'x'; 36], &[]));
    }
}
