//! SET FEATURES and SET MULTIPLE MODE (ACS-3 section 7.45; ATA8-ACS section 7.51).

use crate::commands::admission::Admission;
use crate::commands::media::{failed, refused, sync, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::home::{HomeReply, HomeRequest};
use crate::vocabulary::command::Ending;
use crate::vocabulary::modes::{Modes, ModesChange};
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::ata::{Registers, set_features};

pub(crate) fn begin<P: From<Ending> + From<sync::Flush> + From<WriteCache>>(
    admission: &Admission<'_>,
    registers: &Registers,
) -> Result<P, Failure> {
    let [feature, _] = registers.feature.to_le_bytes();
    let is_on = admission.view.policy.modes.write_cache;
    match feature {
        set_features::WRITE_CACHE_ON if is_on => Ok(P::from(Ending::GOOD)),
        set_features::WRITE_CACHE_ON => Ok(P::from(WriteCache { on: true })),
        set_features::WRITE_CACHE_OFF if is_on => Ok(P::from(WriteCache { on: false })),
        // A flush by whoever switched it off may still be in progress, or may have failed.
        set_features::WRITE_CACHE_OFF => Ok(P::from(sync::Flush { taken: 0 })),
        // Frames carry the data, whatever the mode.
        set_features::TRANSFER_MODE => Ok(P::from(Ending::GOOD)),
        _ => Err(Check::CDB.into()),
    }
}

/// SET MULTIPLE MODE: sectors are transferred in frames, not in blocks of this many.
pub(crate) fn set_multiple_mode<P: From<Ending>>(registers: &Registers) -> Result<P, Failure> {
    let is_size = registers.count == 0 || registers.count.is_power_of_two();
    if is_size { Ok(P::from(Ending::GOOD)) } else { Err(Check::CDB.into()) }
}

/// Switches the write cache on or off for everybody, as MODE SELECT does; when it is switched off, its
/// content is flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteCache {
    on: bool,
}

impl WriteCache {
    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        match event {
            Event::Start => {
                let modes = Modes { write_cache: self.on, ..env.view.policy.modes };
                let change = ModesChange { caching: true, ..ModesChange::none(modes) };
                Step::Home(Box::new(HomeRequest::SetModes { from: env.nexus.identity(), change }))
            }
            Event::Home(HomeReply::Done) if !self.on => Step::Media { unit: None, op: MediaOp::Flush },
            Event::Home(HomeReply::Done) | Event::Stored(Ok(_)) => Step::End(Ending::GOOD),
            Event::Home(HomeReply::Conflict) => refused(env, Failure::CONFLICT),
            Event::Home(HomeReply::Check(check)) => refused(env, check),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Fetched | Event::Pushed | Event::Detached => unexpected(env),
        }
    }
}
