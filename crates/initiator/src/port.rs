//! The identity of a session to its target.

use reactor::io::Io;

/// An initiator port: a target takes sessions from the same port for the same session, reinstated (RFC 7143
/// section 6.3.5). SRP's port identifier is derived from the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InitiatorPort {
    /// The iSCSI name.
    pub name: String,
    /// Distinguishes the ports of one name.
    pub isid: [u8; 6],
}

impl InitiatorPort {
    /// A new, unique one: its ISID is of the random format (RFC 7143 section 11.12.5).
    pub fn fresh<I: Io>(name: String) -> InitiatorPort {
        let ([_, b, c, d], [e, f, ..]) = (I::random().to_be_bytes(), I::random().to_be_bytes());
        InitiatorPort { name, isid: [0x80, b, c, d, e, f] }
    }
}
