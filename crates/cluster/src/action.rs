//! What a gateway's machine is asked to do, and what it shows.

#[cfg(doc)]
use crate::machine::Machine;
use crate::record::{Member, Port, Record};

/// Who a gateway is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Me {
    /// Its name.
    pub gateway: String,
    /// The client by which it has the medium.
    pub client: String,
    /// Its target ports of the unit.
    pub ports: Vec<Port>,
    /// What others have to know.
    pub member: Member,
}

/// Something to be done. A call (`Read`, `Replace`, `Promote`, `Demote`, `Reopen`) is answered by the method of its name, and the next
/// one comes only then; what the unit's home is asked (`Adopt`, `Activate`, `Deactivate`) by [`Machine::applied`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read the object.
    Read,
    /// Replace the object's version, or create it where there is none.
    Replace {
        /// The version that it must have.
        expected: Option<u64>,
        /// The new content.
        record: Box<Record>,
    },
    /// Shut these clients out, wait until this gateway's requests carry that, and get the right to write.
    Promote {
        /// Clients.
        fence: Vec<String>,
    },
    /// Make durable what was written, and return the right to write.
    Demote,
    /// Use the medium as a new client.
    Reopen,
    /// The unit is still another gateway's, with this state of the unit by now.
    Adopt {
        /// As it was last saved.
        saved: Vec<u8>,
    },
    /// The unit's ports become active, with this state of the unit.
    Activate {
        /// As it was last saved.
        saved: Vec<u8>,
    },
    /// They go to standby; applied when nothing that came by them can reach the medium.
    Deactivate {
        /// The unit is another gateway's already: its sessions have nothing to wait for.
        lost: bool,
    },
    /// The answer to [`Machine::save`]: whether it is durable.
    Saved(bool),
    /// The home is to execute this for another gateway. [`Machine::executed`] answers.
    Execute {
        /// The request.
        body: Vec<u8>,
    },
    /// The answer to [`Machine::ask`].
    Answer {
        /// Of which request.
        id: u64,
        /// What it led to.
        outcome: Outcome,
    },
}

/// What a request of this gateway led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The active gateway has executed it, and this one's home knows the state that it led to: its answer.
    Executed(Vec<u8>),
    /// Nobody has executed it, nor will.
    NotExecuted,
    /// It may have been executed, or be in a moment.
    Unknown,
}

/// Why the object was not replaced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplaceError {
    /// It has another version.
    Conflict,
    /// Nobody knows whether it was.
    Failed(String),
}

/// What a gateway is for a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Another one is active, or none.
    Standby,
    /// It is becoming active, or ceases to be.
    Transitioning,
    /// It serves the medium.
    Active,
}

/// What people are shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// This gateway's role.
    pub role: Role,
    /// The object as it was last seen.
    pub record: Record,
    /// Why this gateway cannot become or stay active, if it cannot.
    pub fault: Option<String>,
}
