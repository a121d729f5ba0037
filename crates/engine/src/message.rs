//! Messages between cores and the daemon's own threads.

use crate::access::ConfiguredAccess;
use crate::core::lun::LunState;
use crate::counters::Counters;
use crate::events::Peer;
pub(crate) use crate::origin::{Origin, Requester, Waiter};
use crate::served::{Named, Served};
use crate::slots::Key;
use crate::transport::Transport;
use crate::units::NewUnit;
use proto::time::Time;
use reactor::io::{Handle, Io};
use reactor::packet::{Line, Socket};
use reactor::uring::Uring;
use scsi::nexus::Reach;
use scsi::{HomeReply, HomeRequest, Publish, sense};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use wire::aoe::{Address, Mac};

/// A message to a core.
pub(crate) enum Message<I: Io = Uring> {
    /// A logged-in connection moves here.
    Migrate(Box<MigratingConnection>),
    /// A peer requests a connection on an RDMA device; this core is to serve it.
    Arrive {
        /// The portal that it connects to.
        portal: usize,
        /// The peer.
        incoming: Box<rdma::verbs::Incoming>,
    },
    /// Move the session with this serial number to another core.
    #[cfg(test)]
    Move {
        /// Serial number of its connection.
        serial: u64,
        /// The core to move to.
        to: usize,
    },
    /// For tests: violate the machine's contract for each task of the session with this serial number.
    #[cfg(test)]
    Misuse {
        /// Serial number of its connection.
        serial: u64,
    },
    /// A request to a unit whose home this core is.
    Home {
        /// The unit.
        unit: u32,
        /// Whom to answer.
        origin: Origin,
        /// The request.
        request: HomeRequest,
    },
    /// The home's answer.
    Answer {
        /// The requester.
        origin: Origin,
        /// The answer.
        reply: HomeReply,
    },
    /// A task was aborted while the home had its request, or the connection of a task management function has ended. If
    /// the home has not begun the request, it drops it, and sends [`Message::Recalled`] to a task; otherwise it answers as
    /// usual.
    Recall {
        /// The unit.
        unit: u32,
        /// The requester.
        origin: Origin,
    },
    /// The task's request was dropped before it began, or can no longer be executed.
    Recalled {
        /// The task.
        task: Key,
    },
    /// Apply this and send [`Message::Applied`] to core `home`.
    Publish {
        /// The unit.
        unit: u32,
        /// What to apply.
        publish: Arc<Publish>,
        /// The request that caused it, whose task it does not abort.
        origin: Origin,
        /// The unit's home.
        home: usize,
    },
    /// A core has applied what the unit's home published.
    Applied {
        /// The unit.
        unit: u32,
    },
    /// Reservation state is durable, or could not be saved.
    Persisted {
        /// The unit.
        unit: u32,
        /// Whether it was saved.
        ok: bool,
    },
    /// Ordered tasks (SAM-5 section 8.9.3): see [`crate::core::gate`].
    Gate {
        /// The unit.
        unit: u32,
        /// The step.
        gate: GateMessage,
    },
    /// End the connection with this serial number, which is logging in or has a discovery session, to make room for another.
    MakeRoom {
        /// Its serial number.
        serial: u64,
        /// The portal whose core gets [`Message::RoomMade`] when it has ended.
        portal: Option<usize>,
    },
    /// A connection has ended to make room for one that waits at this portal: a descriptor is free.
    RoomMade {
        /// The portal.
        portal: usize,
    },
    /// End the connection with this serial number, and notify core `core` when it has ended: its session is
    /// reinstated (RFC 7143 section 6.3.5) by the parked connection `waiting_login` there.
    Reinstate {
        /// Serial number of the connection to end.
        serial: u64,
        /// Where the new connection waits.
        core: usize,
        /// The new connection.
        waiting_login: Key,
    },
    /// The session that connection `waiting_login` reinstates has ended.
    Reinstated {
        /// The connection that waited.
        waiting_login: Key,
    },
    /// A connection that waited for sessions to end has ended itself: nobody there needs to be notified.
    LoginAbandoned {
        /// Where it waited.
        core: usize,
        /// The connection.
        waiting_login: Key,
    },
    /// Send [`Message::NexusQuiesced`] once no RDMA is under way on this core's connections for tasks of this nexus
    /// that have ended, and no other gateway may yet execute a request of tasks that were aborted here.
    QuiesceNexus(Requester, Quiets),
    /// None is under way on that core.
    NexusQuiesced(Requester),
    /// The RDMA device with this name has failed.
    DeviceFailed {
        /// Its name.
        name: String,
    },
    /// TARGET COLD RESET: end all sessions of the target but the requester's, and send [`Message::TargetClosed`] when none of
    /// their tasks can take effect any more.
    CloseTarget {
        /// Number of the target.
        target: usize,
        /// The function to answer.
        requester: Requester,
    },
    /// None of them can on that core.
    TargetClosed(Requester),
    /// A network interface that serves AoE may have changed: see `core::aoe::reopen`.
    Interface {
        /// Its number.
        number: usize,
        /// The step.
        message: InterfaceMessage<I::Line>,
    },
    /// Blocks that AoE's commands wait for have been changed: see `core::aoe::order`.
    ChangeEnded,
    /// Get ready to serve this unit, which no session sees yet.
    AddUnit {
        /// The unit on this core.
        unit: Box<NewUnit<I>>,
        /// Notified when that is done.
        done: Done,
    },
    /// To the homes of these units: their new configuration.
    Configure {
        /// The units, on all cores.
        units: Arc<[Arc<scsi::Unit>]>,
        /// Notified when that is done.
        done: Done,
    },
    /// Serve this snapshot from now on.
    Serve {
        /// The snapshot.
        served: Arc<Served>,
        /// Notified when it is served.
        taken: Done,
        /// Notified when no task of the sessions that it ends can take effect any more.
        done: Done,
    },
    /// Report the units that are still used by sessions that a change has ended.
    ReportAwaited {
        /// Gets the report.
        to: mpsc::Sender<Vec<u32>>,
    },
    /// End what is under way on the unit, which no session sees any more, and release it: see `core::changes`.
    RemoveUnit {
        /// The unit.
        unit: u32,
        /// Notified when that is done.
        done: Done,
    },
    /// To the home of a unit being removed: a core has nothing under way on it.
    UnitQuiesced {
        /// The unit.
        unit: u32,
    },
    /// To all: nothing is under way on the unit anywhere; release it.
    DropUnit {
        /// The unit.
        unit: u32,
        /// Its store was flushed.
        is_flushed: bool,
    },
    /// Another gateway serves the unit: end its sessions, which may have waited for long.
    EndSessionsOf {
        /// The unit.
        unit: u32,
    },
    /// Show that this core is turning: see [`crate::daemon::Turns`].
    Turn(mpsc::Sender<()>),
    /// Report sessions.
    Inspect(Inspection),
    /// End the session with this serial number on behalf of an administrator.
    Disconnect {
        /// Its serial number.
        serial: u64,
        /// Notified when it has ended, or why it is not ended.
        done: mpsc::Sender<Option<DisconnectRefusal>>,
    },
    /// Finish, flush, log out and stop.
    Stop,
    /// A stopping core has no connection and no task left. It keeps serving its units' homes until all cores
    /// have sent this.
    Drained,
}

/// Whose tasks a function has ended, as far as another gateway may yet execute their requests.
#[derive(Clone, Debug)]
pub(crate) struct Quiets {
    /// Units that gateways share.
    pub(crate) units: Arc<[u32]>,
    /// Of all nexuses, not only of the requester's.
    pub(crate) of_all: bool,
}

/// Notifies whoever waits for all cores; false: not all that was acknowledged is durable.
pub(crate) type Done = mpsc::Sender<bool>;

/// What an administrator wants to see of a core's sessions.
pub(crate) struct Inspection {
    pub(crate) which: Which,
    pub(crate) reply: mpsc::Sender<SessionPage>,
}

/// Which sessions.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    /// A part of them all, from this slot of the core's connections.
    From(u32),
    /// The one with this serial number.
    Serial(u64),
}

/// Some of a core's sessions, and the slot at which the next ones begin.
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionEntry>,
    pub(crate) next: Option<u32>,
}

/// A session as its core has it; all but numbers is shared with the core.
pub(crate) struct SessionEntry {
    pub(crate) serial: u64,
    pub(crate) way: Way,
    /// With AoE: its interface, and the unit's address on it.
    pub(crate) interface: Option<(String, Address)>,
    pub(crate) session: Arc<proto::services::Session>,
    pub(crate) target: Option<Arc<Named>>,
    pub(crate) tally: Tally,
    pub(crate) counters: Arc<Counters>,
    pub(crate) age: Duration,
    pub(crate) transport: &'static str,
    /// The core's number.
    pub(crate) core: usize,
    pub(crate) state: &'static str,
    pub(crate) in_flight: usize,
}

/// Why a core does not end a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DisconnectRefusal {
    /// It is not there.
    NotHere,
    /// It is an initiator of AoE, which has no sessions.
    Sessionless,
}

/// Steps of letting an ordered task run alone on a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GateMessage {
    /// To the home: core `core` has an ordered task.
    Ask {
        /// Which core.
        core: usize,
    },
    /// To all: start nothing more on this unit, and send `Held` when nothing runs.
    Hold,
    /// To the home: nothing runs here.
    Held,
    /// To the requesting core: all others hold; run it.
    Go,
    /// To the home: it has run.
    Leave,
    /// To all: continue.
    Release,
}

/// Steps of serving a network interface that was added, removed or replaced.
pub(crate) enum InterfaceMessage<L: Line = Socket> {
    /// To its first core: check it.
    Check,
    /// To its cores: receive and send nothing more there, end its sessions, and send `Closed`.
    Close,
    /// To its first core: one of them has done so.
    Closed,
    /// To its first core: the new sockets, one for each core, or why there are none.
    Opened(io::Result<Vec<L>>),
    /// To its cores: serve it.
    Serve(Box<L>),
}

/// A connection on its way to another core: a plain value, with nothing in flight.
pub(crate) struct MigratingConnection {
    /// The protocol machine.
    pub(crate) machine: Transport,
    /// The socket.
    pub(crate) socket: Handle,
    /// Bytes read but not yet consumed.
    pub(crate) unread: Vec<u8>,
    /// What is known of the connection.
    pub(crate) facts: Facts,
    /// The LUNs of its session; none if it has not been served yet.
    pub(crate) luns: Vec<LunState>,
    /// Their eight-byte forms.
    pub(crate) lun_list: Vec<u64>,
    /// The version of the snapshot that they come from.
    pub(crate) served: Option<u64>,
    /// How it reaches units, by their numbers.
    pub(crate) reach: Vec<(u32, Reach)>,
    /// How many times all sessions of its target had been ended on the core that it comes from.
    pub(crate) closings: u64,
}

/// What is known of a connection apart from its protocol state.
#[derive(Clone)]
pub(crate) struct Facts {
    /// Unique within the daemon.
    pub(crate) serial: u64,
    /// Where it comes from, and over what.
    pub(crate) way: Way,
    /// The session, once logged in.
    pub(crate) session: Option<Arc<proto::services::Session>>,
    /// The target, once logged in to one.
    pub(crate) target: Option<Arc<Named>>,
    /// The portal group that it connected to.
    pub(crate) group: u16,
    /// The version of the snapshot that admitted it.
    pub(crate) epoch: u64,
    /// The access rules when it connected, until it has logged in.
    pub(crate) access: Option<Arc<ConfiguredAccess>>,
    /// Its login was answered.
    pub(crate) is_admitted: bool,
    /// When its initiator is to have logged out.
    pub(crate) leaves_by: Option<Time>,
    /// What it has done.
    pub(crate) tally: Tally,
    /// Counters of its commands, written by the core that has the connection.
    pub(crate) counters: Arc<Counters>,
}

/// What a connection has done, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    /// When it began.
    pub(crate) since: Time,
    /// Commands that arrived.
    pub(crate) commands: u64,
    /// Bytes that they requested to read, and to write.
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
}

impl Tally {
    /// Counts a command.
    pub(crate) fn add(&mut self, read_bytes: u32, write_bytes: u32) {
        self.commands += 1;
        self.read_bytes += u64::from(read_bytes);
        self.write_bytes += u64::from(write_bytes);
    }
}

impl Facts {
    /// For a connection that begins now.
    pub(crate) fn new(serial: u64, way: Way, served: &Served, now: Time) -> Facts {
        let tally = Tally { since: now, commands: 0, read_bytes: 0, write_bytes: 0 };
        let portal = match way {
            Way::Portal { number, .. } => served.portal(number),
            Way::Interface { .. } => None,
        };
        let group = portal.map_or(0, |(_, portal)| portal.group);
        let (epoch, access) = (served.epoch, Some(served.access.clone()));
        let (session, target, counters) = (None, None, Arc::default());
        let (is_admitted, leaves_by) = (false, None);
        Facts { serial, way, session, target, group, epoch, access, is_admitted, leaves_by, tally, counters }
    }

    /// Its peer, once that is known.
    pub(crate) fn peer(&self) -> Option<Peer> {
        Some(Peer {
            id: self.serial,
            initiator: self.session.as_ref()?.initiator.clone(),
            from: self.way.to_string(),
            target: self.target.as_ref().map(|target| target.name.clone()),
        })
    }

    /// Number of its target.
    pub(crate) fn target_number(&self) -> Option<usize> {
        self.target.as_ref().map(|target| target.number)
    }

    /// Number of the portal that it came through, if it did.
    pub(crate) fn portal(&self) -> Option<usize> {
        match self.way {
            Way::Portal { number, .. } => Some(number),
            Way::Interface { .. } => None,
        }
    }
}

/// How an initiator reaches this daemon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// By connecting to an address.
    Portal {
        /// Number of the portal.
        number: usize,
        /// The initiator's address.
        from: SocketAddr,
        /// The address it connected to.
        local: SocketAddr,
    },
    /// By frames that an interface receives.
    Interface {
        /// Number of the interface's opening on its core.
        opening_number: u32,
        /// The initiator's address.
        from: Mac,
    },
}

impl Way {
    /// The address that the initiator connected to, for the log.
    pub(crate) fn portal(&self) -> Option<SocketAddr> {
        match self {
            Way::Portal { local, .. } => Some(*local),
            Way::Interface { .. } => None,
        }
    }
}

impl<I: Io> Message<I> {
    /// What a requester gets whose request was recalled.
    pub(crate) fn recalled(origin: Origin) -> Message<I> {
        match origin.who {
            Waiter::Task(task) => Message::Recalled { task },
            _ => Message::Answer { origin, reply: HomeReply::Check(sense::Check::INTERNAL) },
        }
    }
}

/// The initiator's address, for the log.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Portal { from, .. } => from.fmt(f),
            Way::Interface { from, .. } => from.fmt(f),
        }
    }
}
