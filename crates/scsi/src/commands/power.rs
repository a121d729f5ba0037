//! TEST UNIT READY, START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL (SPC-4 section 6.47, SBC-3 sections 5.25 and
//! 5.14).

use crate::commands::admission::Admission;
use crate::commands::media::{failed, refused, taken, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::home::{HomeReply, HomeRequest};
use crate::vocabulary::command::Ending;
use crate::vocabulary::command::ReservationClass;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::command::{PreventAllowMediumRemoval, StartStopUnit};

/// TEST UNIT READY: GOOD, since it was admitted.
pub(crate) fn test_unit_ready<P: From<Ending>>(_: &Admission<'_>) -> Result<P, Failure> {
    Ok(P::from(Ending::GOOD))
}

/// START STOP UNIT. There is no spindle: power conditions are accepted without effect. A removable unit
/// without LOEJ stays ready, as its medium stays in place.
pub(crate) fn start_stop<P: From<Ending> + From<StartStop>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let asked = StartStopUnit::read(admission.cdb().as_bytes());
    let StartStopUnit { start, load_eject, .. } = asked;
    if asked.power != 0 {
        return Ok(P::from(Ending::GOOD));
    }
    let unit = &admission.view.unit;
    if load_eject && !unit.removable {
        return Err(Check::cdb_field(StartStopUnit::LOAD_EJECT).into());
    }
    if (load_eject || !start) && admission.nexus.access.conflicts(ReservationClass::Write) {
        return Err(Failure::CONFLICT);
    }
    let policy = &admission.view.policy;
    let flush = !start && !asked.no_flush && policy.failed.is_none() && !policy.ejected;
    let asks_home = load_eject || !unit.removable;
    Ok(P::from(StartStop { start, load_eject, flush, asks_home }))
}

/// PREVENT ALLOW MEDIUM REMOVAL.
pub(crate) fn prevent_allow<P: From<Prevent>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let prevent = match admission.cdb().get(PreventAllowMediumRemoval::PREVENT) {
        0 => false,
        1 => true,
        _ => return Err(Check::cdb_field(PreventAllowMediumRemoval::PREVENT).into()),
    };
    if prevent && admission.nexus.access.conflicts(ReservationClass::Write) {
        return Err(Failure::CONFLICT);
    }
    Ok(P::from(Prevent { prevent }))
}

/// The program of START STOP UNIT: flush, then ask the home.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StartStop {
    start: bool,
    load_eject: bool,
    flush: bool,
    asks_home: bool,
}

impl StartStop {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.load_eject && env.view.policy.removal_prevented => {
                refused(env, Check::REMOVAL_PREVENTED)
            }
            Event::Start if self.flush => Step::Media { unit: None, op: MediaOp::Flush },
            Event::Start | Event::Stored(Ok(_)) if self.asks_home => {
                Step::Home(Box::new(HomeRequest::StartStop {
                    from: env.nexus.identity(),
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

/// The ending that corresponds to a home's reply, for a command without data.
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
                from: env.nexus.identity(),
                prevent: self.prevent,
            })),
            Event::Home(reply) => replied(env, reply),
            Event::Fetched | Event::Stored(_) | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::state::home::HomeRequest;
    use crate::state::nexus::NexusId;
    use crate::testing::{Bench, unit};
    use crate::vocabulary::storage::MediaOp;
    use wire::scsi::command::TestUnitReady;
    use wire::scsi::opcode;

    const READY: TestUnitReady = TestUnitReady {};

    fn start_stop(flags: u8) -> [u8; 6] {
        [opcode::START_STOP_UNIT, 0, 0, 0, flags, 0]
    }

    fn prevent(flags: u8) -> [u8; 6] {
        [opcode::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, flags, 0]
    }

    fn removable() -> Bench {
        let mut unit = unit();
        unit.removable = true;
        Bench::of(unit, 1 << 20)
    }

    #[test]
    fn a_fixed_unit_stops_and_starts() {
        let mut bench = Bench::new();
        bench.read(&start_stop(0)).assert_good();
        assert_eq!(bench.operations, [MediaOp::Flush]);
        bench.read(READY).assert_check(0x2, 0x0402);
        bench.read(&start_stop(1)).assert_good();
        bench.read(READY).assert_good();
        bench.read(&start_stop(2)).assert_invalid_field(4);
        bench.read(&start_stop(0x30)).assert_good();
        bench.read(READY).assert_good();
    }

    #[test]
    fn a_removable_unit_only_minds_ejecting() {
        let mut bench = removable();
        for flags in [0, 1, 4, 5, 0xf2] {
            bench.read(&start_stop(flags)).assert_good();
            bench.read(READY).assert_good();
        }
        bench.read(&start_stop(2)).assert_good();
        bench.read(READY).assert_check(0x2, 0x3a00);
        bench.read(&start_stop(2)).assert_good();
        bench.read(&start_stop(3)).assert_good();
        bench.read(READY).assert_good();
        bench.run(1, READY, &[], 0).assert_check(0x6, 0x2800);
    }

    #[test]
    fn removal_can_be_prevented_by_any_nexus_for_as_long_as_it_lives() {
        let mut bench = removable();
        bench.read(&prevent(1)).assert_good();
        bench.read(&start_stop(2)).assert_check(0x5, 0x5302);
        bench.run(1, &start_stop(2), &[], 0).assert_check(0x5, 0x5302);
        bench.run(1, &prevent(0), &[], 0).assert_good();
        bench.read(&start_stop(2)).assert_check(0x5, 0x5302);
        bench.ask(HomeRequest::NexusLost(NexusId(1)));
        bench.run(1, &start_stop(2), &[], 0).assert_good();
        bench.run(1, &prevent(1), &[], 0).assert_good();
        bench.read(&start_stop(3)).assert_check(0x5, 0x5302);
        bench.ask(HomeRequest::Reset { from: None });
        bench.run(1, READY, &[], 0).assert_check(0x6, 0x2903);
        bench.run(1, &start_stop(3), &[], 0).assert_good();
        bench.run(1, READY, &[], 0).assert_good();
        bench.run(1, &prevent(2), &[], 0).assert_invalid_field(4);
    }
}
