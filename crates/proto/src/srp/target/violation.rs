//! Ways in which an initiator violates the standard after login, and the reaction to each.

use std::fmt;
use wire::srp::{CommandFault, LogoutReason};

/// A violation of SRP r16a. [`Violation::reaction`] is the reaction to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// An information unit of a type that initiators do not send (section 6.1).
    UnknownType,
    /// An information unit shorter than its type or its fields require (section 6.1).
    Length,
    /// An information unit longer than the login requested (section 6.2).
    TooLong,
    /// A request beyond the request limit (section 6.3).
    RequestLimit,
    /// A tag that already names a request in flight (section 6.8).
    TagInUse,
    /// A response to no request of this side (sections 6.11, 6.13).
    SpuriousResponse,
    /// A format of the data-out descriptor that is unknown, or immediate data that was not granted (section 5.4.2).
    DataOutFormat,
    /// A format of the data-in descriptor that is unknown, or valid only for data-out (section 5.4.2).
    DataInFormat,
    /// Immediate data that begins within the descriptors, or ends beyond the information unit (SRP-2).
    ImmediateBounds,
    /// An additional CDB longer than any that is known (section 6.8).
    LongCdb,
    /// A table that is not a whole number of descriptors, or shorter than its part in the command (section
    /// 5.4.2).
    TableLength,
    /// A table of more descriptors than are accepted (section 5.4.2).
    TableTooLong,
    /// Descriptors of less data than they have to cover (section 5.4.2).
    DescriptorsTooShort,
    /// A buffer beyond the end of the address space (section 5.4.2).
    AddressWrap,
}

/// The reaction to a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// SRP_RSP with REQUEST FIELDS INVALID; the connection continues.
    Refuse,
    /// SRP_T_LOGOUT with this reason, and the connection is closed.
    Logout(LogoutReason),
}

impl Violation {
    /// The table of reactions.
    pub fn reaction(self) -> Reaction {
        self.row().0
    }

    /// The reaction, the description, and the section of SRP r16a.
    fn row(self) -> (Reaction, &'static str, &'static str) {
        use Reaction::{Logout, Refuse};
        match self {
            Violation::UnknownType => {
                (Logout(LogoutReason::INVALID_TYPE), "unknown information unit type", "6.1")
            }
            Violation::Length => {
                (Logout(LogoutReason::INVALID_LENGTH), "information unit shorter than its fields say", "6.1")
            }
            Violation::TooLong => {
                (Logout(LogoutReason::INVALID_LENGTH), "information unit longer than agreed", "6.2")
            }
            Violation::RequestLimit => {
                (Logout(LogoutReason::UNSPECIFIED), "request beyond the request limit", "6.3")
            }
            Violation::TagInUse => (Logout(LogoutReason::UNSPECIFIED), "tag in use", "6.8"),
            Violation::SpuriousResponse => {
                (Logout(LogoutReason::SPURIOUS_RESPONSE), "response to no request", "6.11")
            }
            Violation::DataOutFormat => {
                (Logout(LogoutReason::DATA_OUT_FORMAT), "unsupported data-out descriptor format", "5.4.2")
            }
            Violation::DataInFormat => {
                (Logout(LogoutReason::DATA_IN_FORMAT), "unsupported data-in descriptor format", "5.4.2")
            }
            Violation::ImmediateBounds => (
                Logout(LogoutReason::INVALID_LENGTH),
                "immediate data outside its place in the command",
                "SRP-2",
            ),
            Violation::LongCdb => (Refuse, "additional CDB too long", "6.8"),
            Violation::TableLength => (Refuse, "descriptor table of a wrong length", "5.4.2"),
            Violation::TableTooLong => (Refuse, "descriptor table too long", "5.4.2"),
            Violation::DescriptorsTooShort => {
                (Refuse, "descriptors of less data than they describe", "5.4.2")
            }
            Violation::AddressWrap => (Refuse, "buffer beyond the address space", "5.4.2"),
        }
    }
}

impl From<CommandFault> for Violation {
    fn from(fault: CommandFault) -> Violation {
        match fault {
            CommandFault::Truncated => Violation::Length,
            CommandFault::LongCdb => Violation::LongCdb,
            CommandFault::DataOutFormat => Violation::DataOutFormat,
            CommandFault::DataInFormat => Violation::DataInFormat,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, section) = self.row();
        match section.strip_prefix("SRP-2") {
            Some(_) => write!(f, "{name} (SRP-2)"),
            None => write!(f, "{name} (SRP r16a section {section})"),
        }
    }
}

impl std::error::Error for Violation {}
