//! The sessions of a running daemon, as an administrator sees them. Cores are queried by messages, for a few
//! sessions at a time, and nothing that they serve waits for the answer.

use crate::counters::Counts;
use crate::message::{DisconnectRefusal, Inspection, Message, SessionEntry, SessionPage, Way, Which};
use crate::registry::Registry;
use reactor::mailbox::Sender;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How long a core may take to answer: it finishes its turn at most.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How often a session to be ended is followed when it moves between cores.
const FOLLOWED_MAX: usize = 100;
/// How often a core is queried again for a session that the registry still has there.
const RETRIES_MAX: usize = 3;

/// A session, or an initiator of AoE with one unit.
/// Its fields are the columns of the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionSummary {
    /// Its id in the log, unique within the daemon's lifetime.
    pub id: u64,
    /// The initiator's name; with AoE, its address.
    pub initiator: String,
    /// The initiator's alias, if it gave one.
    pub alias: Option<String>,
    /// The transport.
    pub transport: &'static str,
    /// The initiator's address.
    pub from: String,
    /// The address that it has connected to.
    pub portal: Option<SocketAddr>,
    /// The interface that its frames arrive on, and the unit's AoE address.
    pub interface: Option<(String, String)>,
    /// The target's name; `None`: a discovery session, or AoE.
    pub target: Option<String>,
    /// Initiator session id and target session identifying handle of iSCSI.
    pub isid: Option<([u8; 6], u16)>,
    /// The core that serves it.
    pub core: usize,
    /// Whether it is being served, moved to another core, or ended.
    pub state: &'static str,
    /// How long ago its connection was accepted.
    pub age: Duration,
    /// Commands that have begun and not ended.
    pub in_flight: usize,
    /// Commands since it began.
    pub commands: u64,
    /// Bytes that commands requested to read.
    pub read_bytes: u64,
    /// Bytes that commands requested to write.
    pub write_bytes: u64,
    /// Commands that have ended.
    pub counts: Counts,
    /// Negotiated values, in the order of the log.
    pub keys: Vec<(&'static str, String)>,
}

/// Why a session was not ended, or not shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionError {
    /// There is no session with this id.
    NotFound,
    /// AoE has no sessions that could be ended: the initiator's next frame would be served as usual.
    Sessionless,
    /// A core does not answer.
    Silent,
    /// It is ending, and some of its commands have not ended yet.
    Ending,
}

/// Access to the sessions of a daemon, for a thread that may block.
#[derive(Clone)]
pub struct Sessions {
    mail: Vec<Sender<Message>>,
    registry: Arc<Registry>,
}

impl Sessions {
    pub(crate) fn new(mail: &[Sender<Message>], registry: &Arc<Registry>) -> Sessions {
        Sessions { mail: mail.to_vec(), registry: registry.clone() }
    }

    /// All sessions that have logged in, by id.
    ///
    /// # Errors
    /// When a core does not answer.
    pub fn list(&self) -> Result<Vec<SessionSummary>, SessionError> {
        let mut found = BTreeMap::new();
        for core in 0..self.mail.len() {
            let mut next = Some(0);
            while let Some(from) = next {
                let seen = self.ask(core, Which::From(from))?;
                next = seen.next;
                found.extend(seen.sessions.into_iter().map(|session| (session.serial, session)));
            }
        }
        // A session may have moved from a core that was yet to be queried to one that had been.
        for (serial, core) in self.registry.active() {
            if !found.contains_key(&serial) {
                found.extend(self.follow(serial, core)?.map(|session| (serial, session)));
            }
        }
        Ok(found.into_values().map(summary).collect())
    }

    /// Ends a session, and returns when nothing of it is left.
    ///
    /// # Errors
    /// When it does not exist, cannot be ended, or has not ended by then.
    pub fn end(&self, id: u64, within: Duration) -> Result<(), SessionError> {
        let until = Instant::now() + within;
        let all = 0..self.mail.len();
        for attempt in 0..FOLLOWED_MAX {
            let cores: Vec<usize> = match self.place(id) {
                Some(core) => vec![core],
                None if attempt == 0 => all.clone().collect(),
                None => return Err(SessionError::NotFound),
            };
            for core in cores {
                let (done, ended) = mpsc::channel();
                self.mail[core].post(Message::Disconnect { serial: id, done });
                let left = until.saturating_duration_since(Instant::now());
                match ended.recv_timeout(left) {
                    Ok(None) => return Ok(()),
                    Ok(Some(DisconnectRefusal::NotHere)) => {}
                    Ok(Some(DisconnectRefusal::Sessionless)) => return Err(SessionError::Sessionless),
                    Err(mpsc::RecvTimeoutError::Timeout) => return Err(SessionError::Ending),
                    Err(mpsc::RecvTimeoutError::Disconnected) => return Err(SessionError::Silent),
                }
            }
        }
        Err(SessionError::NotFound)
    }

    /// A session that was on this core, and may have moved on. One that has not logged in is not found.
    fn follow(&self, serial: u64, core: usize) -> Result<Option<SessionEntry>, SessionError> {
        let (mut place, mut retries) = (Some(core), 0);
        while let Some(core) = place.filter(|_| retries < RETRIES_MAX) {
            if let Some(session) = self.ask(core, Which::Serial(serial))?.sessions.pop() {
                return Ok(Some(session));
            }
            place = self.place(serial);
            // It may have moved away and back meanwhile.
            retries += usize::from(place == Some(core));
        }
        Ok(None)
    }

    fn place(&self, id: u64) -> Option<usize> {
        self.registry.active().into_iter().find(|(serial, _)| *serial == id).map(|(_, core)| core)
    }

    fn ask(&self, core: usize, which: Which) -> Result<SessionPage, SessionError> {
        let (reply, seen) = mpsc::channel();
        self.mail[core].post(Message::Inspect(Inspection { which, reply }));
        seen.recv_timeout(ANSWER_WITHIN).map_err(|_| SessionError::Silent)
    }
}

fn summary(seen: SessionEntry) -> SessionSummary {
    let SessionEntry { serial, way, interface, session, target, tally, counters, .. } = seen;
    let is_iscsi = session.tsih != 0;
    SessionSummary {
        id: serial,
        initiator: session.initiator.clone(),
        alias: session.alias.clone(),
        transport: seen.transport,
        from: way.to_string(),
        portal: match way {
            Way::Portal { local, .. } => Some(local),
            Way::Interface { .. } => None,
        },
        interface: interface.map(|(name, address)| (name, address.to_string())),
        target: target.map(|target| target.name.clone()),
        isid: is_iscsi.then_some((session.isid, session.tsih)),
        core: seen.core,
        state: seen.state,
        age: seen.age,
        in_flight: seen.in_flight,
        commands: tally.commands,
        read_bytes: tally.read_bytes,
        write_bytes: tally.write_bytes,
        counts: counters.read(),
        keys: session.negotiated.clone(),
    }
}
