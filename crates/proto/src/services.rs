//! SCSI transport protocol services (SAM-5 section 5.4): the one interface between every transport and the
//! SCSI side, with data movement as in FreeBSD's CTL (datamove) and RFC 7145 (data movement primitives). The
//! SCSI side never knows whether data was transferred as immediate data, unsolicited Data-Out, by R2T, by
//! RDMA Read or inside the command.

use wire::{Cdb, Places, Sense};

/// One command in flight on one connection: a slot with a generation, so that a late message about an earlier
/// occupant is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TaskId {
    /// Index into the connection's task table.
    pub slot: u16,
    /// Counts the occupants of that slot.
    pub generation: u16,
}

/// Task attribute (SAM-5 section 8.9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Attribute {
    /// Untagged or simple.
    #[default]
    Simple,
    /// After all older tasks, before all younger ones.
    Ordered,
    /// At once.
    HeadOfQueue,
    /// Auto contingent allegiance; Lunette has no ACA and refuses it.
    Aca,
    /// A value that the transport's standard does not define.
    Unknown(u8),
}

/// A SCSI command that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The task it became.
    pub task: TaskId,
    /// The eight LUN bytes (SAM-5 section 4.7).
    pub lun: u64,
    /// Task attribute.
    pub attribute: Attribute,
    /// The command descriptor block.
    pub cdb: Cdb,
    /// Bytes that the initiator is ready to receive.
    pub read_bytes: u32,
    /// Bytes that the initiator is ready to send.
    pub write_bytes: u32,
    /// How many of the `write_bytes` are sent unsolicited (as immediate or unsolicited data), from offset 0.
    /// If not zero, the engine must answer this event with `Fetch` (from offset 0, for at least these bytes)
    /// or `End` before the driver continues.
    pub unsolicited_bytes: u32,
}

/// Task management functions (SAM-5 section 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Function {
    /// Ends one task of this nexus. `None`: no such task in the machine's table, but `lun` may exist.
    AbortTask(Option<TaskId>),
    /// Ends all tasks of this nexus on the unit.
    AbortTaskSet,
    /// Ends all tasks on the unit.
    ClearTaskSet,
    /// Resets the unit.
    LogicalUnitReset,
    /// Resets all units of the target that this nexus can see.
    TargetWarmReset,
    /// The same, and every session of the target is ended.
    TargetColdReset,
    /// Clears an ACA condition; Lunette has none.
    ClearAca,
}

/// Answers to a task management function (SAM-5 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionResponse {
    /// Done.
    Complete,
    /// The task does not exist.
    NoTask,
    /// The unit does not exist.
    NoUnit,
    /// Not supported.
    NotSupported,
    /// The nexus is not allowed to request it.
    NotAuthorized,
    /// It could not be carried out, or it is unknown whether it was.
    Failed,
}

/// Identifies a task management request until it is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FunctionId(pub u32);

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ending {
    /// SCSI status (SAM-5 section 5.3).
    pub status: u8,
    /// Sense data with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Bytes that the command had to send to the initiator, whether or not it accepted as many: with the
    /// command's `read_bytes` and `write_bytes` this determines the residual counts (RFC 7143 section
    /// 11.4.5).
    pub read_bytes: u64,
    /// Bytes that the command had to receive from the initiator.
    pub write_bytes: u64,
}

/// How a transport ends a command that it does not pass up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Termination {
    /// With CHECK CONDITION and this.
    Sense(Box<Sense>),
    /// With TASK SET FULL.
    TaskSetFull,
    /// Without a status: it was aborted, or its session has ended.
    Aborted,
}

/// From a transport to the SCSI side.
#[derive(Clone, Debug)]
pub enum Up {
    /// The login is granted. Its response waits for [`Down::Admit`]: the connection may move to its core
    /// after it, and commands follow.
    Ready(Box<Session>),
    /// A command.
    Command(Command),
    /// All bytes of the task's last `Fetch` are in place.
    Fetched(TaskId),
    /// The initiator violated the standard in the task's data-out while a `Fetch` was in progress, or not yet
    /// issued: the task has ended for the engine, and the transport ends it on the wire. The fetch's places
    /// are free again, as after [`Down::Abort`]; no RDMA was posted for them.
    FetchFailed {
        /// The task.
        task: TaskId,
        /// How the transport ends it, with CHECK CONDITION.
        sense: Box<Sense>,
    },
    /// The transport ends a command that it does not pass up. For logs and counters; nothing else has to be
    /// done.
    Terminated {
        /// The command.
        command: Box<Command>,
        /// How.
        how: Termination,
    },
    /// All bytes of the task's last `Push` have been sent: its places may be reused. With a `Push` that had
    /// the ending, the task is gone.
    ///
    /// Where data moves by RDMA, this also follows [`Down::Abort`] and [`Down::End`] of a task whose `Fetch`
    /// or `Push` was in progress, once, unless the `Fetched` or `Pushed` of that transfer was produced
    /// before: a posted transfer cannot be recalled, so its places stay borrowed until then.
    Pushed(TaskId),
    /// A task management request. Tasks that it names are still in the table; answer it with
    /// [`Down::FunctionDone`] once every task that it covers was ended with [`Down::Abort`].
    Function {
        /// For the answer.
        id: FunctionId,
        /// The eight LUN bytes.
        lun: u64,
        /// What to do.
        function: Function,
    },
    /// The session ends, by a logout or from this side. Its tasks have ended for the transport, and no
    /// command follows; the initiator is notified after [`Down::Close`], which is due when none of them can
    /// take effect any more.
    Leaving,
    /// The initiator violated the standard and the connection continues: a PDU was rejected or a task ended
    /// for it. For the log; nothing has to be done.
    Refused {
        /// Why, such as "initiator task tag in use (RFC 7143 ...)".
        reason: String,
    },
    /// An invariant of this program that is private to the connection does not hold: the connection ends with
    /// an [`Up`] after this. For the log, as a bug to report.
    Fault {
        /// The broken invariant, such as "a fetch past the command's data-out".
        what: &'static str,
    },
    /// The connection has ended: all of its tasks have ended, everything borrowed is free, nothing more may
    /// be sent.
    Gone {
        /// Why, for the log: "logged out", "connection reset by peer", "header digest mismatch (RFC 7143 ...)".
        reason: String,
    },
}

/// The reason of [`Up::Gone`] after an [`Up::Fault`].
pub(crate) const FAULT: &str = "a bug in Lunette";

/// From the SCSI side to a transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Down {
    /// Fetch bytes `at .. at + into.len()` of the task's data-out into `into`. One at a time per task, at
    /// rising offsets without gaps, never past the command's `write_bytes`.
    Fetch {
        /// The task.
        task: TaskId,
        /// Offset in the command's data-out.
        at: u32,
        /// Where the bytes go; the places stay borrowed until `Up::Fetched`, or until the task is gone.
        into: Places,
    },
    /// Send `from` as bytes `at ..` of the task's data-in; with `end`, followed by the ending. One at a time
    /// per task, at rising offsets without gaps, never past the command's `read_bytes`.
    Push {
        /// The task.
        task: TaskId,
        /// Offset in the command's data-in.
        at: u32,
        /// The bytes; the places stay borrowed until `Up::Pushed`.
        from: Places,
        /// The ending, when this is the last data.
        end: Option<Ending>,
    },
    /// End the task without (more) data.
    End {
        /// The task.
        task: TaskId,
        /// How it ended.
        ending: Ending,
    },
    /// The task was aborted: forget it and send no response. Data still in transit to it is discarded; a
    /// place that is being filled is released at once (the driver finishes or drops the transfer before it is
    /// reused), but with RDMA only by [`Up::Pushed`].
    Abort {
        /// The task.
        task: TaskId,
    },
    /// Answer a task management request.
    FunctionDone {
        /// Which.
        id: FunctionId,
        /// The answer.
        response: FunctionResponse,
    },
    /// Ask the initiator to log out, and close when it has or when `within_seconds` have passed.
    RequestLogout {
        /// Seconds.
        within_seconds: u16,
    },
    /// Accepts the login reported by [`Up::Ready`]: nothing of the session that it replaces can take effect
    /// any more.
    Admit,
    /// Refuses that login.
    Refuse(Withdrawal),
    /// Close now, after the last PDU, such as the response to a logout, where there is a session with
    /// commands: none of its tasks can take effect any more.
    Close,
}

/// Why a login that had been granted is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Withdrawal {
    /// No resources are free for it.
    NoRoom,
    /// Its target is ending all sessions.
    Unavailable,
}

/// A session that finished its login.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// The initiator's name (`iqn.`, `eui.` or `naa.`); with SRP its port identifier, `0x` and 32 hexadecimal digits.
    pub initiator: String,
    /// The initiator's alias, when it sent one.
    pub alias: Option<String>,
    /// The target's name; `None` in a discovery session. With SRP its port identifier, in the initiator's
    /// format.
    pub target: Option<String>,
    /// Initiator session id; zero with SRP, like the next two.
    pub isid: [u8; 6],
    /// Target session identifying handle.
    pub tsih: u16,
    /// Connection id.
    pub cid: u16,
    /// Other connections of the same initiator port and target port continue beside this one: channels of
    /// SRP. Otherwise it replaces them.
    pub keeps_others: bool,
    /// The negotiated keys worth a log line, as `Key=Value` in a fixed order.
    pub negotiated: Vec<(&'static str, String)>,
    /// The initiator's port, as a TransportID (SPC-4 section 7.6.4) for reservations.
    pub transport_id: Vec<u8>,
}
