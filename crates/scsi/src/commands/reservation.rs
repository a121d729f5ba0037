//! The commands: PERSISTENT RESERVE IN and OUT, RESERVE and RELEASE.

use crate::commands::admission::Admission;
use crate::commands::answer::{Answer, Build};
use crate::commands::media::{failed, refused, taken, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::reservation::{ReserveOut, Table};
use crate::state::unit::Unit;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::Field;
use wire::scsi::command::{self, PersistentReserveIn};
use wire::scsi::opcode::service_action::persistent_reserve_in;

/// PERSISTENT RESERVE IN.
pub(crate) fn persistent_reserve_in<P: From<Answer>>(admission: &Admission<'_>) -> Result<P, Failure> {
    check_method(admission)?;
    let cdb = admission.cdb();
    let build: Build = match cdb.service_action() {
        persistent_reserve_in::READ_KEYS => {
            |env, _, data| report(env, data, |table, _, data| table.report_keys(data))
        }
        persistent_reserve_in::READ_RESERVATION => {
            |env, _, data| report(env, data, |table, _, data| table.report_reservation(data))
        }
        persistent_reserve_in::REPORT_CAPABILITIES => {
            |env, _, data| report(env, data, Table::report_capabilities)
        }
        _ => |env, _, data| report(env, data, |table, _, data| table.report_full_status(data)),
    };
    Ok(P::from(Answer::new(*cdb, cdb.get(PersistentReserveIn::ALLOCATION).into(), build)))
}

fn report(env: &Env<'_>, data: &mut Vec<u8>, build: fn(&Table, &Unit, &mut Vec<u8>)) -> Result<(), Failure> {
    build(&env.view.policy.reservations, &env.view.unit, data);
    Ok(())
}

/// PERSISTENT RESERVE OUT.
pub(crate) fn persistent_reserve_out<P: From<PersistentReserveOut>>(
    admission: &Admission<'_>,
) -> Result<P, Failure> {
    check_method(admission)?;
    let cdb = *admission.cdb();
    let len = cdb.get(command::PersistentReserveOut::LIST_BYTES);
    if len > ReserveOut::BYTES_MAX || admission.request.write_bytes < len {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    Ok(P::from(PersistentReserveOut { cdb, len }))
}

/// While RESERVE holds the unit, persistent reservations conflict for everyone (SPC-2 section 5.5.1).
fn check_method(admission: &Admission<'_>) -> Result<(), Failure> {
    if admission.view.policy.reservations.is_reserved() { Err(Failure::CONFLICT) } else { Ok(()) }
}

/// RESERVE(6).
pub(crate) fn reserve6<P: From<ReserveRelease>>(admission: &Admission<'_>) -> Result<P, Failure> {
    reserve_release(admission, &[command::Reserve6::THIRD_PARTY, command::Reserve6::EXTENT], false)
}

/// RESERVE(10).
pub(crate) fn reserve10<P: From<ReserveRelease>>(admission: &Admission<'_>) -> Result<P, Failure> {
    use command::Reserve10;
    reserve_release(admission, &[Reserve10::THIRD_PARTY, Reserve10::LONG_ID, Reserve10::EXTENT], false)
}

/// RELEASE(6).
pub(crate) fn release6<P: From<ReserveRelease>>(admission: &Admission<'_>) -> Result<P, Failure> {
    reserve_release(admission, &[command::Release6::THIRD_PARTY, command::Release6::EXTENT], true)
}

/// RELEASE(10).
pub(crate) fn release10<P: From<ReserveRelease>>(admission: &Admission<'_>) -> Result<P, Failure> {
    use command::Release10;
    reserve_release(admission, &[Release10::THIRD_PARTY, Release10::LONG_ID, Release10::EXTENT], true)
}

/// The options are all obsolete: extents, third parties and their long identifiers.
fn reserve_release<P: From<ReserveRelease>>(
    admission: &Admission<'_>,
    options: &[Field<bool>],
    release: bool,
) -> Result<P, Failure> {
    if let Some(option) = options.iter().find(|option| admission.cdb().get(**option)) {
        return Err(Check::cdb_byte(option.byte()).into());
    }
    Ok(P::from(ReserveRelease { release }))
}

/// The program of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PersistentReserveOut {
    cdb: Cdb,
    len: u32,
}

impl PersistentReserveOut {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.len
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.len > 0 => Step::Fetch { at: 0, len: self.len },
            Event::Start | Event::Fetched => {
                let list = usize::try_from(self.len).ok().and_then(|len| env.buffer.get(..len));
                match ReserveOut::parse(&self.cdb, list.unwrap_or_default()) {
                    Ok(order) => {
                        let from = env.nexus.identity();
                        Step::Home(Box::new(HomeRequest::PersistentReserveOut { from, order }))
                    }
                    Err(check) => refused(env, check),
                }
            }
            Event::Home(reply) => replied(env, &reply, self.len),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Stored(Ok(_)) | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}

/// The program of RESERVE and RELEASE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReserveRelease {
    release: bool,
}

impl ReserveRelease {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.release => Step::Home(Box::new(HomeRequest::Release(env.nexus.identity()))),
            Event::Start => Step::Home(Box::new(HomeRequest::Reserve(env.nexus.identity()))),
            Event::Home(reply) => replied(env, &reply, 0),
            Event::Fetched | Event::Stored(_) | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}

fn replied(env: &Env<'_>, reply: &HomeReply, len: u32) -> Step {
    match reply {
        HomeReply::Done => taken(len),
        HomeReply::Conflict => refused(env, Failure::CONFLICT),
        HomeReply::Check(check) => refused(env, *check),
    }
}
