//! MODE SELECT (SPC-4 sections 6.10 and 6.11).

use super::{Page, long_descriptor, pages_of, short_descriptor};
use crate::commands::admission::Admission;
use crate::commands::media::{failed, refused, taken, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::unit::View;
use crate::vocabulary::modes::ModesChange;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;
use wire::scsi::Field;
use wire::scsi::command::{ModeSelect6, ModeSelect10};
use wire::scsi::mode::{self, Caching, Control, ErrorRecovery, Header6, Header10, Provisioning, page};

/// MODE SELECT(6).
pub(crate) fn select6<P: From<ModeSelect>>(admission: &Admission<'_>) -> Result<P, Failure> {
    begin(admission, admission.cdb().get(ModeSelect6::LIST_BYTES).into(), Header::Short)
}

/// MODE SELECT(10).
pub(crate) fn select10<P: From<ModeSelect>>(admission: &Admission<'_>) -> Result<P, Failure> {
    begin(admission, admission.cdb().get(ModeSelect10::LIST_BYTES), Header::Long)
}

fn begin<P: From<ModeSelect>>(admission: &Admission<'_>, len: u16, header: Header) -> Result<P, Failure> {
    let cdb = admission.cdb();
    if cdb.get(ModeSelect6::SAVE) {
        return Err(Check::cdb_field(ModeSelect6::SAVE).into());
    }
    if !cdb.get(ModeSelect6::PAGE_FORMAT) && len > 0 {
        return Err(Check::cdb_field(ModeSelect6::PAGE_FORMAT).into());
    }
    if (len > 0 && usize::from(len) < header.bytes()) || admission.request.write_bytes < u32::from(len) {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    Ok(P::from(ModeSelect { len, header, flush: false }))
}

/// Which of the two headers a parameter list has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Header {
    /// MODE SELECT(6)'s.
    Short,
    /// MODE SELECT(10)'s.
    Long,
}

impl Header {
    fn bytes(self) -> usize {
        match self {
            Header::Short => Header6::BYTES,
            Header::Long => Header10::BYTES,
        }
    }

    /// BLOCK DESCRIPTOR LENGTH of a list, and LONGLBA.
    fn block_descriptor(self, list: &[u8]) -> Option<(usize, bool)> {
        match self {
            Header::Short => Some((Header6::DESCRIPTOR_BYTES.get(list)?.into(), false)),
            Header::Long => {
                Some((Header10::DESCRIPTOR_BYTES.get(list)?.into(), Header10::LONG_LBA.get(list)?))
            }
        }
    }
}

/// The program of MODE SELECT: fetch, check, ask the home; when the write cache is switched off, its content
/// is flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModeSelect {
    len: u16,
    header: Header,
    flush: bool,
}

impl ModeSelect {
    pub(crate) fn buffer_bytes(&self) -> u32 {
        u32::from(self.len)
    }

    pub(crate) fn next(&mut self, env: &Env<'_>, event: Event) -> Step {
        let done = taken(u32::from(self.len));
        match event {
            Event::Start if self.len == 0 => done,
            Event::Start => Step::Fetch { at: 0, len: u32::from(self.len) },
            Event::Fetched => match self.parse(env) {
                Err(check) => refused(env, check),
                // Of gateways only the one that the others agree upon knows the present modes.
                Ok(change) if change.modes == env.view.policy.modes && !env.view.unit.is_shared() => done,
                Ok(change) => {
                    self.flush = change.caching && !change.modes.write_cache;
                    Step::Home(Box::new(HomeRequest::SetModes { from: env.nexus.identity(), change }))
                }
            },
            // In standby nothing is cached here: the active gateway's writes are durable when they are
            // acknowledged.
            Event::Home(HomeReply::Done) if self.flush && env.view.policy.serves() => {
                Step::Media { unit: None, op: MediaOp::Flush }
            }
            Event::Home(HomeReply::Done) | Event::Stored(Ok(_)) => done,
            Event::Home(HomeReply::Conflict) => refused(env, Failure::CONFLICT),
            Event::Home(HomeReply::Check(check)) => refused(env, check),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Pushed | Event::Detached => unexpected(env),
        }
    }

    /// The modes that the parameter list requests; all of it is checked before anything is changed.
    fn parse(&self, env: &Env<'_>) -> Result<ModesChange, Check> {
        let list = env.buffer.get(..usize::from(self.len)).ok_or(Check::PARAMETER_LENGTH)?;
        let (descriptor_len, long) = self.header.block_descriptor(list).ok_or(Check::PARAMETER_LENGTH)?;
        let header = self.header.bytes();
        let body = list.get(header..).unwrap_or_default();
        let (block_descriptor, pages) =
            body.split_at_checked(descriptor_len).ok_or(Check::PARAMETER_LENGTH)?;
        check_block_descriptor(env.view, block_descriptor, long, header)?;
        let mut at = header.saturating_add(descriptor_len);
        let modes = env.view.policy.modes;
        let mut change = ModesChange::none(modes);
        for page in mode::pages(pages) {
            if page.is_cut_off {
                return Err(Check::PARAMETER_LENGTH);
            }
            let is_it = |known: &&Page| (known.code, known.subpage) == (page.code, page.subpage);
            let known = pages_of(env.view).find(is_it).ok_or(parameter_byte(at, 0))?;
            check_page(env.view, known, page.bytes, at)?;
            apply(env.view, known, &mut change, page.bytes, at)?;
            at = at.saturating_add(page.bytes.len());
        }
        if at == list.len() { Ok(change) } else { Err(Check::PARAMETER_LENGTH) }
    }
}

/// The byte of a page, or of something else that begins at `at`.
fn parameter_byte(at: usize, byte: usize) -> Check {
    Check::parameter_byte(u16::try_from(at.saturating_add(byte)).unwrap_or(u16::MAX))
}

/// A field of a page that begins at `at`.
fn parameter_field<T>(at: usize, field: Field<T>) -> Check {
    let byte = u16::try_from(at).unwrap_or(u16::MAX).saturating_add(field.byte());
    Check::parameter_bit(byte, field.bit().unwrap_or(7))
}

/// A block descriptor must have the current capacity; the number of blocks may be left at zero or all ones
/// (SBC-3 section 6.5.2.2).
fn check_block_descriptor(view: &View, block_descriptor: &[u8], long: bool, at: usize) -> Result<(), Check> {
    if block_descriptor.is_empty() {
        return Ok(());
    }
    let current = if long { long_descriptor(view) } else { short_descriptor(view) };
    if block_descriptor.len() != current.len() {
        return Err(parameter_byte(at.saturating_sub(1), 0));
    }
    let count = if long { size_of::<u64>() } else { size_of::<u32>() };
    let same_length = block_descriptor.iter().zip(&current).skip(count).all(|(new, old)| new == old);
    let new_count = block_descriptor.get(..count).unwrap_or_default();
    let same_count = Some(new_count) == current.get(..count)
        || new_count.iter().all(|byte| *byte == 0)
        || new_count.iter().all(|byte| *byte == 0xff);
    if same_length && same_count { Ok(()) } else { Err(parameter_byte(at, 0)) }
}

/// The page must have its length, and bits that cannot be changed must be as they are.
fn check_page(view: &View, known: &Page, page: &[u8], at: usize) -> Result<(), Check> {
    let (current, changeable) = ((known.current)(view, &view.policy.modes), (known.changeable)(view));
    let header = known.header();
    if page.len() != current.len() {
        return Err(parameter_byte(at, header.checked_div(2).unwrap_or(1)));
    }
    let bytes = page.iter().zip(&current).zip(&changeable).enumerate().skip(header);
    for (index, ((new, old), changeable)) in bytes {
        if (new ^ old) & !changeable != 0 {
            return Err(parameter_byte(at, index));
        }
    }
    Ok(())
}

/// Applies the changes of a checked page.
fn apply(view: &View, known: &Page, change: &mut ModesChange, page: &[u8], at: usize) -> Result<(), Check> {
    let modes = &mut change.modes;
    match (known.code, known.subpage) {
        (page::ERROR_RECOVERY, _) => {
            change.error_recovery = true;
            if view.space().is_some() {
                modes.provisioning_errors = ErrorRecovery::read(page).provisioning_errors;
            }
        }
        (page::CACHING, _) => {
            change.caching = true;
            modes.write_cache = Caching::read(page).write_cache;
        }
        (page::CONTROL, _) => {
            change.control = true;
            let page = Control::read(page);
            if page.queue_error == 2 {
                return Err(parameter_field(at, Control::QUEUE_ERROR));
            }
            modes.task_set_per_nexus = match page.task_sets {
                0 => false,
                1 => true,
                _ => return Err(parameter_field(at, Control::TASK_SETS)),
            };
            modes.queue_error = page.queue_error;
            modes.descriptor_sense = page.descriptor_sense;
            modes.software_write_protect = page.software_write_protect;
            modes.task_aborted_status = page.task_aborted_status;
        }
        (_, page::LOGICAL_BLOCK_PROVISIONING) => {
            change.provisioning = true;
            let page = Provisioning::read(page);
            modes.threshold = page.enabled;
            // As long as it has its configured value, it follows the size.
            if page.count != view.threshold_sets(modes) {
                modes.threshold_sets = Some(page.count);
            }
        }
        _ => {}
    }
    Ok(())
}
