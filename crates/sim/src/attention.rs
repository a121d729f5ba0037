//! Unit attentions that must not be forgotten: of a new session, and of a reset by somebody else (SAM-5 section 5.14).

use proto::time::Time;

/// For each initiator, since when it is logged in, and for each unit, since when it is owed a unit attention.
#[derive(Debug)]
pub(crate) struct Attentions {
    sessions: Vec<Session>,
}

#[derive(Clone, Debug)]
struct Session {
    since: Option<Time>,
    owed: Vec<Option<Time>>,
    /// When each unit last reported one.
    reported: Vec<Time>,
}

impl Attentions {
    pub(crate) fn new(initiators: usize, units: usize) -> Attentions {
        let session = Session { since: None, owed: vec![None; units], reported: vec![Time(0); units] };
        Attentions { sessions: vec![session; initiators] }
    }

    /// An initiator has a new session: each unit owes it one.
    pub(crate) fn begins(&mut self, now: Time, initiator: usize) {
        let session = &mut self.sessions[initiator];
        session.since = Some(now);
        session.owed.fill(Some(now));
    }

    /// Its session is over.
    pub(crate) fn ends(&mut self, initiator: usize) {
        let session = &mut self.sessions[initiator];
        session.since = None;
        session.owed.fill(None);
    }

    /// An initiator's reset of a unit has ended that began then: all others who were there are owed one.
    pub(crate) fn reset(&mut self, now: Time, began: Time, initiator: usize, unit: usize) {
        for (index, session) in self.sessions.iter_mut().enumerate() {
            // What was reported meanwhile may have been this.
            let was_reported = session.reported[unit] >= began;
            if index != initiator && !was_reported && session.since.is_some_and(|since| since < began) {
                session.owed[unit] = session.owed[unit].or(Some(now));
            }
        }
    }

    /// A unit has reported one to an initiator.
    pub(crate) fn reported(&mut self, now: Time, initiator: usize, unit: usize) {
        self.sessions[initiator].reported[unit] = now;
        self.sessions[initiator].owed[unit] = None;
    }

    /// A unit has done a command that began then.
    ///
    /// # Errors
    /// When it owed a unit attention first.
    pub(crate) fn done(&self, began: Time, initiator: usize, unit: usize) -> Result<(), String> {
        match self.sessions[initiator].owed[unit] {
            Some(since) if since < began => Err(format!(
                "unit {unit} owes the initiator a unit attention since {} ns, and did a command from {} ns",
                since.0, began.0
            )),
            Some(_) | None => Ok(()),
        }
    }
}
