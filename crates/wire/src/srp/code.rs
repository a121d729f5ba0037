//! Codes of SRP r16a clause 6, each a newtype over its raw value.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Defines a one-byte code with named values.
macro_rules! code {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
            Unaligned)]
        #[repr(C)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name($number);)*
        }
    };
}

/// Defines a four-byte code with named values.
macro_rules! reason {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable,
            Unaligned)]
        #[repr(C)]
        pub struct $name(pub U32);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name(U32::from_bytes(u32::to_be_bytes($number)));)*
        }
    };
}

code! {
    /// Information unit types (section 6.1).
    Opcode {
        /// SRP_LOGIN_REQ.
        LOGIN_REQUEST = 0x00,
        /// SRP_TSK_MGMT.
        TASK_MANAGEMENT = 0x01,
        /// SRP_CMD.
        COMMAND = 0x02,
        /// SRP_I_LOGOUT.
        INITIATOR_LOGOUT = 0x03,
        /// SRP_CRED_RSP.
        CREDIT_RESPONSE = 0x41,
        /// SRP_AER_RSP.
        ASYNC_EVENT_RESPONSE = 0x42,
        /// SRP_T_LOGOUT.
        TARGET_LOGOUT = 0x80,
        /// SRP_CRED_REQ.
        CREDIT_REQUEST = 0x81,
        /// SRP_AER_REQ.
        ASYNC_EVENT_REQUEST = 0x82,
        /// SRP_LOGIN_RSP.
        LOGIN_RESPONSE = 0xc0,
        /// SRP_RSP.
        RESPONSE = 0xc1,
        /// SRP_LOGIN_REJ.
        LOGIN_REJECT = 0xc2,
    }
}

code! {
    /// Task management functions (section 6.7).
    TaskFunction {
        /// ABORT TASK.
        ABORT_TASK = 0x01,
        /// ABORT TASK SET.
        ABORT_TASK_SET = 0x02,
        /// CLEAR TASK SET.
        CLEAR_TASK_SET = 0x04,
        /// LOGICAL UNIT RESET.
        LOGICAL_UNIT_RESET = 0x08,
        /// CLEAR ACA.
        CLEAR_ACA = 0x40,
    }
}

code! {
    /// Task attributes (section 6.8).
    TaskAttribute {
        /// SIMPLE.
        SIMPLE = 0,
        /// HEAD OF QUEUE.
        HEAD_OF_QUEUE = 1,
        /// ORDERED.
        ORDERED = 2,
        /// ACA.
        ACA = 4,
    }
}

impl TaskAttribute {
    /// The attribute's bits in its byte.
    pub const MASK: u8 = 0x07;
}

code! {
    /// Response codes, in response data (section 6.9).
    ResponseCode {
        /// No failure, or the task management function is complete.
        COMPLETE = 0,
        /// The fields of the request are invalid.
        FIELDS_INVALID = 1,
        /// The task management function is not supported.
        NOT_SUPPORTED = 4,
        /// The task management function failed.
        FAILED = 5,
    }
}

reason! {
    /// Why a login is rejected (section 6.4).
    RejectReason {
        /// Unable to establish an RDMA channel, for no reason below.
        UNABLE_TO_ESTABLISH = 0x0001_0000,
        /// Insufficient RDMA channel resources.
        INSUFFICIENT_RESOURCES = 0x0001_0001,
        /// The requested length of information units is too large.
        LENGTH_TOO_LARGE = 0x0001_0002,
        /// Unable to associate the channel with an I_T nexus.
        UNABLE_TO_ASSOCIATE = 0x0001_0003,
        /// A requested data buffer descriptor format is not supported.
        DESCRIPTOR_FORMAT = 0x0001_0004,
        /// Several channels per I_T nexus are not supported.
        MULTI_CHANNEL = 0x0001_0005,
        /// The I_T nexus has reached its limit of channels.
        CHANNEL_LIMIT = 0x0001_0006,
    }
}

reason! {
    /// Why a target logs an initiator out (section 6.6).
    LogoutReason {
        /// No reason specified.
        UNSPECIFIED = 0,
        /// Inactive RDMA channel: resources are being reclaimed.
        INACTIVE = 1,
        /// An invalid information unit type.
        INVALID_TYPE = 2,
        /// A response without a request.
        SPURIOUS_RESPONSE = 3,
        /// A new login requested that this channel be disconnected.
        MULTI_CHANNEL_ACTION = 4,
        /// An unsupported format of the data-out buffer descriptor.
        DATA_OUT_FORMAT = 5,
        /// An unsupported format of the data-in buffer descriptor.
        DATA_IN_FORMAT = 6,
        /// A length that is invalid for the type of information unit.
        INVALID_LENGTH = 8,
    }
}
