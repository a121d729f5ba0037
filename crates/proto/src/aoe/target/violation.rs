//! Ways in which a request is invalid, and the reaction to each.

use std::fmt;
use wire::aoe::ErrorCode;

/// A violation of AoEr11. [`Violation::reaction`] is the reaction to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A frame shorter than its headers.
    Truncated,
    /// A frame of another protocol.
    EtherType,
    /// A frame from an address that no station can have.
    Source,
    /// An answer.
    Response,
    /// A request to other targets, or from another initiator, than those of the session.
    Stranger,
    /// A request to several targets that must be for one.
    Broadcast,
    /// A request that needs no session ([`super::look`]).
    Sessionless,
    /// An unknown version of the protocol.
    Version,
    /// An unknown command.
    Command,
    /// An unknown subcommand.
    Subcommand,
    /// More data than fits into a frame, or is allowed.
    TooMuch,
    /// A frame that ends before its data.
    DataLength,
}

/// The reaction to a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// The frame is dropped.
    Drop,
    /// The request is answered with this error, if it was to one target only.
    Refuse(ErrorCode),
}

impl Violation {
    /// The table of reactions.
    pub fn reaction(self) -> Reaction {
        self.row().0
    }

    /// The reaction, the description, and the section of AoEr11.
    fn row(self) -> (Reaction, &'static str, &'static str) {
        use Reaction::{Drop, Refuse};
        match self {
            Violation::Truncated => (Drop, "frame shorter than its headers", "2"),
            Violation::EtherType => (Drop, "frame of another protocol", "2.1"),
            Violation::Source => (Drop, "frame from a group address", "2.1"),
            Violation::Response => (Drop, "answer to no request", "2.3"),
            Violation::Stranger => (Drop, "frame of another session", "2.5"),
            Violation::Broadcast => (Drop, "request that only one target may have", "2.5"),
            Violation::Sessionless => (Drop, "request without a session", "3.2"),
            Violation::Version => (Refuse(ErrorCode::UNSUPPORTED_VERSION), "unknown version", "2.2"),
            Violation::Command => (Refuse(ErrorCode::UNRECOGNIZED_COMMAND), "unknown command", "2.6"),
            Violation::Subcommand => (Refuse(ErrorCode::BAD_ARGUMENT), "unknown subcommand", "3"),
            Violation::TooMuch => (Refuse(ErrorCode::BAD_ARGUMENT), "more data than a frame holds", "3"),
            Violation::DataLength => (Refuse(ErrorCode::BAD_ARGUMENT), "frame shorter than its data", "3"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, section) = self.row();
        write!(f, "{name} (AoEr11 section {section})")
    }
}

impl std::error::Error for Violation {}
