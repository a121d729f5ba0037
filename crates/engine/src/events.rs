//! Events of a daemon, to follow as they happen. None is on the path of a successful READ or WRITE.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wire::iscsi::LoginStatus;
use wire::srp::RejectReason;

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A session has logged in, or an initiator of AoE has begun to use a unit.
    SessionBegun {
        /// The session.
        session: Peer,
        /// Its transport.
        transport: &'static str,
        /// The number of its core.
        core: usize,
    },
    /// It has ended.
    SessionEnded {
        /// The session.
        session: Peer,
        /// Its transport.
        transport: &'static str,
        /// The reason, such as "logged out".
        reason: String,
        /// How long it lasted.
        age: Duration,
        /// Commands received.
        commands: u64,
        /// Bytes that they requested to read.
        read_bytes: u64,
        /// Bytes that they requested to write.
        write_bytes: u64,
    },
    /// A login failed: its connection has ended without a session.
    LoginRefused {
        /// Why.
        why: Refusal,
    },
    /// A LUN's store has failed: it is not ready.
    StoreLost {
        /// The LUN's name.
        lun: String,
        /// Why.
        why: String,
    },
    /// The store is back.
    StoreBack {
        /// The LUN's name.
        lun: String,
    },
    /// A LUN that was removed while its store hung is gone now, and what was written to it may be lost.
    NotSaved {
        /// Its name.
        lun: String,
        /// Why.
        why: String,
    },
    /// An initiator preempted or cleared reservations or registrations of others on a LUN.
    Preempted {
        /// The LUN's name.
        lun: String,
        /// That initiator, if it still has a session.
        by: Option<String>,
    },
    /// A thin LUN uses as much space as its `warn_at`.
    ThresholdReached {
        /// The LUN's name.
        lun: String,
        /// Bytes that it uses.
        used_bytes: u64,
        /// Its size.
        size_bytes: u64,
        /// The percentage used.
        percent: u8,
    },
    /// Commands to a LUN ended with an error, on one core, since that was last reported.
    Errors {
        /// The LUN's name.
        lun: String,
        /// How many commands failed.
        count: u64,
        /// The error of the last one.
        last: String,
    },
}

/// Why a login failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The initiator has not authenticated.
    Authentication,
    /// It may not log in.
    Authorization,
    /// There is no such target.
    NotFound,
    /// No resources are free for it.
    NoRoom,
    /// It requested something else that is not possible.
    InitiatorError,
    /// The target cannot serve it now.
    TargetError,
    /// It was not refused: its connection ended, or took too long.
    Unfinished,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 7] = [
        Refusal::Authentication,
        Refusal::Authorization,
        Refusal::NotFound,
        Refusal::NoRoom,
        Refusal::InitiatorError,
        Refusal::TargetError,
        Refusal::Unfinished,
    ];

    /// As a metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Authentication => "authentication",
            Refusal::Authorization => "authorization",
            Refusal::NotFound => "not_found",
            Refusal::NoRoom => "no_room",
            Refusal::InitiatorError => "initiator_error",
            Refusal::TargetError => "target_error",
            Refusal::Unfinished => "unfinished",
        }
    }
}

/// By the status of iSCSI's login response (RFC 7143 section 11.13.5).
impl From<LoginStatus> for Refusal {
    fn from(status: LoginStatus) -> Refusal {
        match status {
            LoginStatus::AUTHENTICATION_FAILURE => Refusal::Authentication,
            LoginStatus::AUTHORIZATION_FAILURE => Refusal::Authorization,
            LoginStatus::NOT_FOUND | LoginStatus::TARGET_REMOVED => Refusal::NotFound,
            LoginStatus::OUT_OF_RESOURCES | LoginStatus::TOO_MANY_CONNECTIONS => Refusal::NoRoom,
            LoginStatus { class: 3, .. } => Refusal::TargetError,
            LoginStatus { .. } => Refusal::InitiatorError,
        }
    }
}

/// By the reason of SRP_LOGIN_REJ (SRP r16a section 6.4).
impl From<RejectReason> for Refusal {
    fn from(reason: RejectReason) -> Refusal {
        match reason {
            RejectReason::UNABLE_TO_ESTABLISH => Refusal::Authorization,
            RejectReason::UNABLE_TO_ASSOCIATE => Refusal::NotFound,
            RejectReason::INSUFFICIENT_RESOURCES | RejectReason::CHANNEL_LIMIT => Refusal::NoRoom,
            _ => Refusal::InitiatorError,
        }
    }
}

/// The peer of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The session's number in the log.
    pub id: u64,
    /// The initiator's name; with AoE, its address.
    pub initiator: String,
    /// Its address.
    pub from: String,
    /// The target's name; `None`: a discovery session, or AoE.
    pub target: Option<String>,
}

/// Where events go. The receiver does not block, and drops what does not fit.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<dyn Fn(Event) + Send + Sync>>);

impl Events {
    /// Sends events to this function.
    pub fn to(take: impl Fn(Event) + Send + Sync + 'static) -> Events {
        Events(Some(Arc::new(take)))
    }

    /// Reports an event, which is constructed only if there is a receiver.
    pub fn report(&self, event: impl FnOnce() -> Event) {
        if let Some(take) = &self.0 {
            take(event());
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Events").field(&self.0.is_some()).finish()
    }
}
