//! Ways in which an initiator violates the standard, and the reaction to each.

use std::fmt;
use wire::iscsi::{AhsError, RejectReason};

/// A violation of RFC 7143. [`Violation::reaction`] is the reaction to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The header digest does not match: the length fields cannot be trusted (section 7.8).
    HeaderDigest,
    /// The digest of a request's data does not match; escalated to session recovery, which section 7.8 allows.
    DataDigest,
    /// The digest of a Data-Out does not match (section 7.8).
    DataOutDigest,
    /// A data segment longer than the target's MaxRecvDataSegmentLength (sections 11.7.1, 13.12).
    DataSegmentTooLong,
    /// Additional header segments on a PDU that has none, or malformed ones (sections 7.7, 11.2.2).
    AdditionalHeader,
    /// A malformed additional header segment of a SCSI Command (sections 7.7, 11.2.2).
    AdditionalSegment(AhsError),
    /// A data segment on a PDU that has none (section 7.7).
    UnexpectedDataSegment,
    /// A PDU other than a Login Request before the full feature phase (section 6.3).
    NotLogin,
    /// A Login Request in the full feature phase (section 6.3).
    LoginInFullFeaturePhase,
    /// A request that discovery sessions do not have (section 4.3).
    NotInDiscovery,
    /// An opcode that the standard does not define for initiators (section 11.2.1.2).
    UnknownOpcode,
    /// A command ahead of ExpCmdSN on the only connection: one before it was lost (sections 4.2.2.1, 7.13).
    CommandGap,
    /// A command ahead of one that was rejected and has not been retransmitted (section 7.3). It was valid
    /// when it was sent, but there is no room to wait for the other: hence this reason, which allows
    /// retransmission (section 11.17.1).
    BehindRejected,
    /// The reserved task tag where a task needs one (section 11.2.1.8).
    ReservedTag,
    /// A tag that already names a task in flight (section 11.2.1.8).
    TaskInProgress,
    /// More immediate commands than there are slots for (section 4.2.2.1).
    TooManyImmediate,
    /// R and W set without the bidirectional read length (section 11.3.4).
    BidirectionalLengthMissing,
    /// A command that sends nothing, without the F bit (section 11.3.1).
    FinalMissing,
    /// Immediate or unsolicited data that was not negotiated, or more than FirstBurstLength (sections
    /// 4.2.5.2, 11.4.7.2).
    UnexpectedUnsolicited,
    /// Less or more data than FirstBurstLength, or than an R2T requested (sections 11.4.7.2, 11.8).
    IncorrectAmount,
    /// A Data-Out out of order by DataSN (section 7.9).
    DataSequence,
    /// A Data-Out that does not begin where the last one ended (section 11.7.6).
    BufferOffset,
    /// A Data-Out for no task or no R2T (section 11.17.1, note 2).
    UnknownTransfer,
    /// A NOP-Out without a tag that is not immediate (section 11.18.1).
    NopNotImmediate,
    /// A SNACK, which error recovery level 0 does not have (section 11.16).
    Snack,
    /// A text request that continues nothing (section 11.10.4).
    UnknownText,
    /// C and F set together (section 11.10.2).
    ContinueAndFinal,
    /// More text than is accepted in one exchange (section 7.12).
    TextTooLong,
    /// Text that is malformed or may not be negotiated now (section 7.12).
    Negotiation,
    /// A logout reason that the standard does not define (section 11.14.1).
    LogoutReason,
}

/// The reaction to a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reaction {
    /// A Reject PDU; the PDU is discarded and the connection continues.
    Reject(RejectReason),
    /// The task ends with CHECK CONDITION, ABORTED COMMAND and this additional sense code and qualifier
    /// (section 11.4.7.2), once all its data has arrived.
    EndTask(u8, u8),
    /// The connection, and with it the session, is dropped.
    Drop,
}

impl Violation {
    /// The table of reactions.
    pub fn reaction(self) -> Reaction {
        self.row().0
    }

    /// The reaction, the description, and the section of RFC 7143.
    fn row(self) -> (Reaction, &'static str, &'static str) {
        use Reaction::{Drop, EndTask, Reject};
        match self {
            Violation::HeaderDigest => (Drop, "header digest mismatch", "7.8"),
            Violation::DataDigest => (Drop, "data digest mismatch in a request", "7.8"),
            Violation::DataOutDigest => (EndTask(0x47, 0x05), "data digest mismatch", "7.8"),
            Violation::DataSegmentTooLong => {
                (Drop, "data segment longer than MaxRecvDataSegmentLength", "13.12")
            }
            Violation::AdditionalHeader => {
                (Drop, "additional header segment on a PDU that has none", "11.2.2")
            }
            Violation::AdditionalSegment(_) => (Drop, "malformed additional header segment", "11.2.2"),
            Violation::UnexpectedDataSegment => (Drop, "data segment on a PDU that has none", "7.7"),
            Violation::NotLogin => (Drop, "no login request at login", "6.3"),
            Violation::LoginInFullFeaturePhase => (Drop, "login request after login", "6.3"),
            Violation::NotInDiscovery => (Drop, "request that discovery sessions do not have", "4.3"),
            Violation::UnknownOpcode => (Reject(RejectReason::NOT_SUPPORTED), "unknown opcode", "11.2.1.2"),
            Violation::CommandGap => (Drop, "gap in CmdSN", "4.2.2.1"),
            Violation::BehindRejected => {
                (Reject(RejectReason::LONG_OPERATION), "command behind one that was rejected", "7.3")
            }
            Violation::ReservedTag => (Drop, "reserved initiator task tag", "11.2.1.8"),
            Violation::TaskInProgress => {
                (Reject(RejectReason::TASK_IN_PROGRESS), "initiator task tag in use", "11.2.1.8")
            }
            Violation::TooManyImmediate => {
                (Reject(RejectReason::TOO_MANY_IMMEDIATE), "too many immediate commands", "4.2.2.1")
            }
            Violation::BidirectionalLengthMissing => (Drop, "no bidirectional read length", "11.3.4"),
            Violation::FinalMissing => (Drop, "F bit missing", "11.3.1"),
            Violation::UnexpectedUnsolicited => {
                (EndTask(0x0c, 0x0c), "unexpected unsolicited data", "11.4.7.2")
            }
            Violation::IncorrectAmount => (EndTask(0x0c, 0x0d), "incorrect amount of data", "11.4.7.2"),
            Violation::DataSequence => (EndTask(0x47, 0x05), "Data-Out out of order by DataSN", "7.9"),
            Violation::BufferOffset => (EndTask(0x0c, 0x0d), "Data-Out at the wrong offset", "11.7.6"),
            Violation::UnknownTransfer => {
                (Reject(RejectReason::INVALID_FIELD), "Data-Out for no task or no R2T", "11.7.4")
            }
            Violation::NopNotImmediate => (Drop, "NOP-Out without a tag is not immediate", "11.18.1"),
            Violation::Snack => {
                (Reject(RejectReason::PROTOCOL_ERROR), "SNACK at error recovery level 0", "11.16")
            }
            Violation::UnknownText => {
                (Reject(RejectReason::INVALID_FIELD), "text request continues nothing", "11.10.4")
            }
            Violation::ContinueAndFinal => (Drop, "C and F bits together", "11.10.2"),
            Violation::TextTooLong => (Reject(RejectReason::PROTOCOL_ERROR), "too much text", "7.12"),
            Violation::Negotiation => (Reject(RejectReason::PROTOCOL_ERROR), "negotiation failed", "7.12"),
            Violation::LogoutReason => {
                (Reject(RejectReason::INVALID_FIELD), "unknown logout reason", "11.14.1")
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name, section) = self.row();
        write!(f, "{name} (RFC 7143 section {section})")
    }
}

impl std::error::Error for Violation {}
