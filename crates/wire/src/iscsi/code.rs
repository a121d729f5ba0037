//! Codes of RFC 7143 section 11 and RFC 7144, each a newtype over its raw value.

use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Defines a one-byte code with named values.
macro_rules! code {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, FromBytes, IntoBytes, KnownLayout,
            Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name($number);)*
        }
    };
}

code! {
    /// Opcodes without the I bit (section 11.2.1.2).
    Opcode {
        /// NOP-Out.
        NOP_OUT = 0x00,
        /// SCSI Command.
        SCSI_COMMAND = 0x01,
        /// Task Management Function Request.
        TASK_MANAGEMENT_REQUEST = 0x02,
        /// Login Request.
        LOGIN_REQUEST = 0x03,
        /// Text Request.
        TEXT_REQUEST = 0x04,
        /// SCSI Data-Out.
        DATA_OUT = 0x05,
        /// Logout Request.
        LOGOUT_REQUEST = 0x06,
        /// SNACK Request.
        SNACK = 0x10,
        /// NOP-In.
        NOP_IN = 0x20,
        /// SCSI Response.
        SCSI_RESPONSE = 0x21,
        /// Task Management Function Response.
        TASK_MANAGEMENT_RESPONSE = 0x22,
        /// Login Response.
        LOGIN_RESPONSE = 0x23,
        /// Text Response.
        TEXT_RESPONSE = 0x24,
        /// SCSI Data-In.
        DATA_IN = 0x25,
        /// Logout Response.
        LOGOUT_RESPONSE = 0x26,
        /// Ready To Transfer.
        READY_TO_TRANSFER = 0x31,
        /// Asynchronous Message.
        ASYNC_MESSAGE = 0x32,
        /// Reject.
        REJECT = 0x3f,
    }
}

impl Opcode {
    /// The I bit, in byte 0 of requests.
    pub const IMMEDIATE: u8 = 0x40;
    /// The opcode's bits in byte 0.
    pub const MASK: u8 = 0x3f;
}

code! {
    /// Task management functions (section 11.5.1; RFC 7144 section 6.1).
    TaskFunction {
        /// Aborts the task that the referenced task tag names.
        ABORT_TASK = 1,
        /// Aborts all tasks of this session on the unit.
        ABORT_TASK_SET = 2,
        /// Clears an auto contingent allegiance.
        CLEAR_ACA = 3,
        /// Aborts all tasks on the unit.
        CLEAR_TASK_SET = 4,
        /// Resets the unit.
        LOGICAL_UNIT_RESET = 5,
        /// Resets all units of the target.
        TARGET_WARM_RESET = 6,
        /// Resets all units of the target and closes all its sessions.
        TARGET_COLD_RESET = 7,
        /// Moves a task to this connection.
        TASK_REASSIGN = 8,
        /// Queries whether the task is in the task set.
        QUERY_TASK = 9,
        /// Queries whether any task of this session is in the task set.
        QUERY_TASK_SET = 10,
        /// Simulates the loss of the I_T nexus.
        I_T_NEXUS_RESET = 11,
        /// Queries whether a unit attention is pending.
        QUERY_ASYNCHRONOUS_EVENT = 12,
    }
}

code! {
    /// Responses to task management functions (section 11.6.1; RFC 7144 section 6.2).
    FunctionResponse {
        /// Function complete.
        COMPLETE = 0,
        /// Task does not exist.
        NO_TASK = 1,
        /// LUN does not exist.
        NO_LUN = 2,
        /// Task still allegiant.
        STILL_ALLEGIANT = 3,
        /// Task allegiance reassignment not supported.
        REASSIGN_NOT_SUPPORTED = 4,
        /// Task management function not supported.
        NOT_SUPPORTED = 5,
        /// Function authorization failed.
        AUTHORIZATION_FAILED = 6,
        /// Function succeeded (RFC 7144).
        SUCCEEDED = 7,
        /// Function rejected.
        REJECTED = 255,
    }
}

code! {
    /// Why a PDU was rejected (section 11.17.1).
    RejectReason {
        /// Data (payload) digest error.
        DATA_DIGEST = 0x02,
        /// SNACK reject.
        SNACK = 0x03,
        /// Protocol error.
        PROTOCOL_ERROR = 0x04,
        /// Command not supported.
        NOT_SUPPORTED = 0x05,
        /// Too many immediate commands.
        TOO_MANY_IMMEDIATE = 0x06,
        /// Task in progress.
        TASK_IN_PROGRESS = 0x07,
        /// Invalid data ack.
        INVALID_DATA_ACK = 0x08,
        /// Invalid PDU field.
        INVALID_FIELD = 0x09,
        /// Out of resources for a target transfer tag.
        LONG_OPERATION = 0x0a,
        /// Waiting for logout.
        WAITING_FOR_LOGOUT = 0x0c,
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            RejectReason::DATA_DIGEST => "data digest error",
            RejectReason::SNACK => "SNACK reject",
            RejectReason::PROTOCOL_ERROR => "protocol error",
            RejectReason::NOT_SUPPORTED => "command not supported",
            RejectReason::TOO_MANY_IMMEDIATE => "too many immediate commands",
            RejectReason::TASK_IN_PROGRESS => "task in progress",
            RejectReason::INVALID_DATA_ACK => "invalid data ack",
            RejectReason::INVALID_FIELD => "invalid PDU field",
            RejectReason::LONG_OPERATION => "long operation reject",
            RejectReason::WAITING_FOR_LOGOUT => "waiting for logout",
            RejectReason(code) => return write!(f, "reason {code:02x}h"),
        };
        f.write_str(text)
    }
}

code! {
    /// Why an initiator logs out (section 11.14.1).
    LogoutReason {
        /// Close the session.
        CLOSE_SESSION = 0,
        /// Close the connection.
        CLOSE_CONNECTION = 1,
        /// Remove the connection for recovery.
        RECOVERY = 2,
    }
}

code! {
    /// Answers to a logout (section 11.15.1).
    LogoutOutcome {
        /// Closed.
        CLOSED = 0,
        /// CID not found.
        CID_NOT_FOUND = 1,
        /// Connection recovery is not supported.
        RECOVERY_NOT_SUPPORTED = 2,
        /// Cleanup failed.
        CLEANUP_FAILED = 3,
    }
}

code! {
    /// Asynchronous events (section 11.9.1).
    AsyncEvent {
        /// A SCSI event with sense data.
        SCSI = 0,
        /// The target requests logout.
        LOGOUT_REQUEST = 1,
        /// The connection will be dropped.
        CONNECTION_DROP = 2,
        /// All connections of the session will be dropped.
        SESSION_DROP = 3,
        /// The target requests negotiation.
        NEGOTIATION_REQUEST = 4,
        /// All tasks of a LUN are being terminated.
        TASK_TERMINATION = 5,
        /// Vendor-specific codes start here.
        VENDOR = 248,
    }
}

code! {
    /// SNACK types (section 11.16.1).
    SnackType {
        /// Retransmit Data-In or R2T.
        DATA_R2T = 0,
        /// Retransmit responses.
        STATUS = 1,
        /// Acknowledges Data-In.
        DATA_ACK = 2,
        /// Retransmit Data-In, with new boundaries.
        R_DATA = 3,
    }
}

code! {
    /// Login stages: CSG and NSG (section 11.12.3).
    Stage {
        /// Security negotiation.
        SECURITY = 0,
        /// Operational parameter negotiation.
        OPERATIONAL = 1,
        /// Full feature phase.
        FULL_FEATURE = 3,
    }
}

/// Status of a login response: class, then detail (section 11.13.5).
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct LoginStatus {
    /// Status-Class: 0 success, 1 redirection, 2 initiator error, 3 target error.
    pub class: u8,
    /// Status-Detail.
    pub detail: u8,
}

/// Defines login statuses.
macro_rules! login_status {
    ($($(#[$doc:meta])* $name:ident = $class:expr, $detail:expr;)*) => {
        impl LoginStatus {
            $($(#[$doc])* pub const $name: LoginStatus = LoginStatus { class: $class, detail: $detail };)*
        }
    };
}

login_status! {
    /// Login is proceeding.
    SUCCESS = 0, 0x00;
    /// Target moved temporarily.
    MOVED_TEMPORARILY = 1, 0x01;
    /// Target moved permanently.
    MOVED_PERMANENTLY = 1, 0x02;
    /// Initiator error.
    INITIATOR_ERROR = 2, 0x00;
    /// Authentication failure.
    AUTHENTICATION_FAILURE = 2, 0x01;
    /// Authorization failure.
    AUTHORIZATION_FAILURE = 2, 0x02;
    /// Target not found.
    NOT_FOUND = 2, 0x03;
    /// Target removed.
    TARGET_REMOVED = 2, 0x04;
    /// Unsupported version.
    UNSUPPORTED_VERSION = 2, 0x05;
    /// Too many connections.
    TOO_MANY_CONNECTIONS = 2, 0x06;
    /// Missing parameter.
    MISSING_PARAMETER = 2, 0x07;
    /// Can't include in session.
    CANT_INCLUDE_IN_SESSION = 2, 0x08;
    /// Session type not supported.
    SESSION_TYPE_NOT_SUPPORTED = 2, 0x09;
    /// Session does not exist.
    NO_SUCH_SESSION = 2, 0x0a;
    /// Invalid request type during login.
    INVALID_DURING_LOGIN = 2, 0x0b;
    /// Target error.
    TARGET_ERROR = 3, 0x00;
    /// Service unavailable.
    SERVICE_UNAVAILABLE = 3, 0x01;
    /// Out of resources.
    OUT_OF_RESOURCES = 3, 0x02;
}
