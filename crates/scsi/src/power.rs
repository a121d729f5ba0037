//! TEST UNIT READY, START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL (SPC-4 section 6.47, SBC-3 sections 5.25 and
//! 5.14).

use crate::admit::Admission;
use crate::command::Ending;
use crate::exec::{Env, Event, Program, Step};
use crate::home::{HomeReply, HomeRequest};
use crate::media::{failed, refused, taken, unexpected};
use crate::sense::{Check, Failure};
use crate::storage::MediaOp;
use crate::table::ReservationClass;

/// TEST UNIT READY: that it was admitted is the answer.
pub(crate) fn test_unit_ready(_: &Admission<'_>) -> Result<Program, Failure> {
    Ok(Program::End(Ending::GOOD))
}

/// START STOP UNIT. There is no spindle: power conditions are taken and change nothing. A removable unit without
/// LOEJ stays ready, as its medium stays in place.
pub(crate) fn start_stop(admission: &Admission<'_>) -> Result<Program, Failure> {
    let flags = admission.cdb().u8(4);
    let (start, load_eject) = (flags & 0x01 != 0, flags & 0x02 != 0);
    if flags >> 4 != 0 {
        return Ok(Program::End(Ending::GOOD));
    }
    let unit = &admission.view.unit;
    if load_eject && !unit.removable {
        return Err(Check::cdb_bit(4, 1).into());
    }
    if (load_eject || !start) && admission.nexus.access.conflicts(ReservationClass::Write) {
        return Err(Failure::CONFLICT);
    }
    let policy = &admission.view.policy;
    let flush = !start && flags & 0x04 == 0 && policy.failed.is_none() && !policy.ejected;
    let tell = load_eject || !unit.removable;
    Ok(Program::StartStop(StartStop { start, load_eject, flush, tell }))
}

/// PREVENT ALLOW MEDIUM REMOVAL.
pub(crate) fn prevent_allow(admission: &Admission<'_>) -> Result<Program, Failure> {
    let prevent = match admission.cdb().u8(4) & 0x03 {
        0 => false,
        1 => true,
        _ => return Err(Check::cdb_bit(4, 1).into()),
    };
    if prevent && admission.nexus.access.conflicts(ReservationClass::Write) {
        return Err(Failure::CONFLICT);
    }
    Ok(Program::Prevent(Prevent { prevent }))
}

/// The program of START STOP UNIT: flush, then tell the home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartStop {
    start: bool,
    load_eject: bool,
    flush: bool,
    tell: bool,
}

impl StartStop {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.load_eject && env.view.policy.removal_prevented => {
                refused(env, Check::REMOVAL_PREVENTED)
            }
            Event::Start if self.flush => Step::Media { unit: None, op: MediaOp::Flush },
            Event::Start | Event::Stored(Ok(_)) if self.tell => {
                Step::Home(Box::new(HomeRequest::StartStop {
                    from: env.nexus.id,
                    start: self.start,
                    load_eject: self.load_eject,
                }))
            }
            Event::Start | Event::Stored(Ok(_)) => taken(0),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Home(reply) => replied(env, reply),
            Event::Fetched | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}

/// The ending that a home's reply stands for, of a command without data.
pub(crate) fn replied(env: &Env<'_>, reply: HomeReply) -> Step {
    match reply {
        HomeReply::Done => taken(0),
        HomeReply::Conflict => refused(env, Failure::CONFLICT),
        HomeReply::Check(check) => refused(env, check),
    }
}

/// The program of PREVENT ALLOW MEDIUM REMOVAL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prevent {
    prevent: bool,
}

impl Prevent {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start => Step::Home(Box::new(HomeRequest::PreventRemoval {
                from: env.nexus.id,
                prevent: self.prevent,
            })),
            Event::Home(reply) => replied(env, reply),
            Event::Fetched | Event::Stored(_) | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}
