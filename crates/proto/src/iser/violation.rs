//! Ways in which a peer violates RFC 7145. All of them end the connection (sections 10.1.3.3 and 10.1.3.4).

use std::fmt;

/// A violation of the standard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// A message that is shorter than its headers.
    Short,
    /// A message whose length is not that of its headers and data segment.
    Length,
    /// Hello or HelloReply, which was not negotiated.
    Hello,
    /// An opcode that the standard does not define.
    UnknownOpcode,
    /// Data must be read from the initiator, but it has advertised no buffer.
    WriteStagMissing,
    /// Data is expected from the target, but there is no STag to write it to.
    ReadStagMissing,
    /// An STag was invalidated that does not belong to this command.
    WrongInvalidation,
    /// PDUs that carry data and are RDMA operations here.
    DataPdu,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, section) = match self {
            Violation::Short => ("message shorter than its headers", "9.1"),
            Violation::Length => ("length of the message and of its data segment differ", "9.2"),
            Violation::Hello => ("Hello that was not negotiated", "5.1.3"),
            Violation::UnknownOpcode => ("unknown opcode", "9.1"),
            Violation::WriteStagMissing => ("no write STag where there is data to be read", "9.2"),
            Violation::ReadStagMissing => ("no read STag where data is expected", "9.2"),
            Violation::WrongInvalidation => ("invalidation of an STag that is not the command's", "7.3.2"),
            Violation::DataPdu => ("data-type PDU in a message", "7.1"),
        };
        write!(f, "{name} (RFC 7145 section {section})")
    }
}

impl std::error::Error for Violation {}
