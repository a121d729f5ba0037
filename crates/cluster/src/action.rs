//! The actions that a gateway's machine requests, and its status.

#[cfg(doc)]
use crate::machine::Machine;
use crate::record::{Member, Port, Record};

/// A gateway's identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Me {
    /// Its name.
    pub gateway: String,
    /// Its client of the cluster, through which it accesses the medium.
    pub client: String,
    /// Its target ports for the unit.
    pub ports: Vec<Port>,
    /// What others have to know about it.
    pub member: Member,
}

/// How many gateways have access to the medium of a unit at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The active one.
    One,
    /// All. One of them is active: it makes the changes of state, which are complete when they are in force at
    /// all others.
    All,
}

/// An action to take. A call is answered by the method for it. There is at most one call to the object (`Read`,
/// `Replace`), and at most one that concerns the image (`Promote`, `CatchUp`, `Fence`, `Demote`, `Reopen`), at a time;
/// the latter may take long, and must not delay the former, which show that the gateway is alive. Requests to the unit's home (`Adopt`, `Join`,
/// `Activate`, `Deactivate`) by [`Machine::applied`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read the object.
    Read,
    /// Replace the object's version, or create the object.
    Replace {
        /// The version that it must have; `None`: it must not exist.
        expected: Option<u64>,
        /// The new content.
        record: Box<Record>,
    },
    /// Fence these clients, wait until this gateway's requests carry that, and acquire the right to write.
    Promote {
        /// Clients.
        fence: Vec<String>,
    },
    /// Wait until this gateway's requests carry all that was fenced before, and acquire the right to write.
    /// [`Machine::caught_up`] answers.
    CatchUp,
    /// Fence these clients, of which this gateway's own may be one, and wait until its requests carry that.
    /// [`Machine::fenced_others`] answers.
    Fence {
        /// Clients.
        clients: Vec<String>,
    },
    /// Make all writes durable, and release the right to write.
    Demote,
    /// Access the medium as a new client.
    Reopen,
    /// The unit belongs to another gateway, and this is its latest state. At a home that serves the medium it is
    /// applied when what it forbids can no longer reach the medium.
    Adopt {
        /// As last saved.
        saved: Vec<u8>,
    },
    /// Make the unit's ports active, with this state of the unit, although another gateway decides on that.
    Join {
        /// As last saved.
        saved: Vec<u8>,
    },
    /// Make the unit's ports active, with this state of the unit.
    Activate {
        /// As last saved.
        saved: Vec<u8>,
    },
    /// Put the ports in standby; applied when nothing received through them can reach the medium any more.
    Deactivate {
        /// The unit already belongs to others: its sessions have nothing to wait for. With [`Access::All`] its
        /// client is fenced by then for all of them, and whatever it has begun has ended.
        lost: bool,
    },
    /// The answer to [`Machine::save`]: whether the state is durable.
    Saved(bool),
    /// The home must execute this for another gateway. [`Machine::executed`] answers.
    Execute {
        /// The request.
        body: Vec<u8>,
    },
    /// The answer to [`Machine::ask`].
    Answer {
        /// The request's number.
        id: u64,
        /// Its outcome.
        outcome: Outcome,
    },
}

/// The outcome of a request of this gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The active gateway has executed it, and this one's home knows the resulting state; with the reply.
    Executed(Vec<u8>),
    /// It was not executed, and will not be.
    NotExecuted,
    /// It may have been executed, or may yet be.
    Unknown,
}

/// Why the object was not replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplaceError {
    /// It has a different version.
    Conflict,
    /// It is unknown whether it was.
    Failed(String),
}

/// The role of a gateway for a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another gateway is active, or none.
    Standby,
    /// It is becoming active, or ceasing to be.
    Transitioning,
    /// It serves the medium, and another one decides, or is about to.
    Serving,
    /// It serves the medium, and decides.
    Active,
}

/// The status shown to people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// This gateway's role.
    pub role: Role,
    /// The object as last seen.
    pub record: Record,
    /// Why this gateway cannot become or stay active, if so.
    pub fault: Option<String>,
}
