//! MODE SELECT (SPC-4 sections 6.10 and 6.11).

use super::{Page, long_descriptor, pages_of, short_descriptor};
use crate::commands::admission::Admission;
use crate::commands::media::{failed, refused, taken, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::unit::View;
use crate::vocabulary::modes::{Modes, ModesChange};
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::MediaOp;

/// MODE SELECT(6).
pub(crate) fn select6<P: From<ModeSelect>>(admission: &Admission<'_>) -> Result<P, Failure> {
    begin(admission, u16::from(admission.cdb().u8(4)), 4)
}

/// MODE SELECT(10).
pub(crate) fn select10<P: From<ModeSelect>>(admission: &Admission<'_>) -> Result<P, Failure> {
    begin(admission, admission.cdb().u16(7), 8)
}

fn begin<P: From<ModeSelect>>(admission: &Admission<'_>, len: u16, header: u16) -> Result<P, Failure> {
    let flags = admission.cdb().u8(1);
    if flags & 0x01 != 0 {
        return Err(Check::cdb_bit(1, 0).into());
    }
    if flags & 0x10 == 0 && len > 0 {
        return Err(Check::cdb_bit(1, 4).into());
    }
    if (len > 0 && len < header) || admission.request.write_bytes < u32::from(len) {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    Ok(P::from(ModeSelect { len, header, flush: false }))
}

/// The program of MODE SELECT: fetch, check, ask the home; when the write cache goes off, what it held is
/// flushed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModeSelect {
    len: u16,
    header: u16,
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
                Ok(change) if change.modes == env.view.policy.modes => done,
                Ok(change) => {
                    self.flush = change.caching && !change.modes.write_cache;
                    Step::Home(Box::new(HomeRequest::SetModes { from: env.nexus.identity(), change }))
                }
            },
            Event::Home(HomeReply::Done) if self.flush => Step::Media { unit: None, op: MediaOp::Flush },
            Event::Home(HomeReply::Done) | Event::Stored(Ok(_)) => done,
            Event::Home(HomeReply::Conflict) => refused(env, Failure::CONFLICT),
            Event::Home(HomeReply::Check(check)) => refused(env, check),
            Event::Stored(Err(error)) => failed(env, error),
            Event::Pushed | Event::Detached => unexpected(env),
        }
    }

    /// The modes that the parameter list asks for; all of it is checked before anything is changed.
    fn parse(&self, env: &Env<'_>) -> Result<ModesChange, Check> {
        let list = env.buffer.get(..usize::from(self.len)).ok_or(Check::PARAMETER_LENGTH)?;
        let header = usize::from(self.header);
        let (descriptor_len, long) = match *list {
            [_, _, _, len, ..] if self.header == 4 => (usize::from(len), false),
            [_, _, _, _, flags, _, high, low, ..] => {
                (usize::from(u16::from_be_bytes([high, low])), flags & 0x01 != 0)
            }
            _ => return Err(Check::PARAMETER_LENGTH),
        };
        let body = list.get(header..).unwrap_or_default();
        let (descriptor, mut pages) = body.split_at_checked(descriptor_len).ok_or(Check::PARAMETER_LENGTH)?;
        check_descriptor(env.view, descriptor, long, self.header)?;
        let mut at = self.header.saturating_add(u16::try_from(descriptor_len).unwrap_or(u16::MAX));
        let modes = env.view.policy.modes;
        let mut change = ModesChange::none(modes);
        while let [code, second, ..] = *pages {
            let (subpage, whole) = match *pages {
                [_, _, high, low, ..] if code & SUBPAGE_FORMAT != 0 => {
                    (second, usize::from(u16::from_be_bytes([high, low])).saturating_add(4))
                }
                _ => (0, usize::from(second).saturating_add(2)),
            };
            let (page, rest) = pages.split_at_checked(whole).ok_or(Check::PARAMETER_LENGTH)?;
            let is_it = |known: &&Page| (known.code, known.subpage) == (code & 0x3f, subpage);
            let known = pages_of(env.view).find(is_it).ok_or(Check::parameter_byte(at))?;
            check_page(env.view, known, page, at)?;
            change.modes = apply(env.view, known, change.modes, page, at)?;
            change.error_recovery |= known.code == 0x01;
            change.caching |= known.code == 0x08;
            change.control |= known.code == 0x0a;
            change.provisioning |= known.subpage != 0;
            at = at.saturating_add(u16::try_from(whole).unwrap_or(u16::MAX));
            pages = rest;
        }
        if pages.is_empty() { Ok(change) } else { Err(Check::PARAMETER_LENGTH) }
    }
}

/// A block descriptor must have the current capacity; the number of blocks may be left at zero or all ones
/// (SBC-3 section 6.5.2.2).
fn check_descriptor(view: &View, descriptor: &[u8], long: bool, at: u16) -> Result<(), Check> {
    if descriptor.is_empty() {
        return Ok(());
    }
    let current = if long { long_descriptor(view) } else { short_descriptor(view) };
    if descriptor.len() != current.len() {
        return Err(Check::parameter_byte(at.saturating_sub(1)));
    }
    let count = if long { 8 } else { 4 };
    let same_length = descriptor.iter().zip(&current).skip(count).all(|(new, old)| new == old);
    let new_count = descriptor.get(..count).unwrap_or_default();
    let same_count = Some(new_count) == current.get(..count)
        || new_count.iter().all(|byte| *byte == 0)
        || new_count.iter().all(|byte| *byte == 0xff);
    if same_length && same_count { Ok(()) } else { Err(Check::parameter_byte(at)) }
}

/// SPF.
const SUBPAGE_FORMAT: u8 = 0x40;

/// The page must have its length, and its bits that cannot be changed must be as they are.
fn check_page(view: &View, known: &Page, page: &[u8], at: u16) -> Result<(), Check> {
    let current = (known.current)(view, &view.policy.modes);
    let (header, ones) = (known.header(), known.changeable(view));
    if page.len() != current.len() {
        return Err(Check::parameter_byte(at.saturating_add(if header == 2 { 1 } else { 2 })));
    }
    for (index, (new, old)) in page.iter().zip(&current).enumerate().skip(header) {
        let changeable = ones.get(index.saturating_sub(header)).copied().unwrap_or(0);
        if (new ^ old) & !changeable != 0 {
            return Err(Check::parameter_byte(at.saturating_add(u16::try_from(index).unwrap_or(0))));
        }
    }
    Ok(())
}

/// The modes with what a checked page changes.
fn apply(view: &View, known: &Page, modes: Modes, page: &[u8], at: u16) -> Result<Modes, Check> {
    match (known.code, known.subpage, page) {
        (0x01, 0, [_, _, _, _, _, _, _, errors, ..]) if view.space().is_some() => {
            Ok(Modes { provisioning_errors: errors & 0x80 != 0, ..modes })
        }
        (0x08, 0, [_, _, cache, ..]) => Ok(Modes { write_cache: cache & 0x04 != 0, ..modes }),
        (0x0a, 0, [_, _, first, second, third, fourth, ..]) => {
            let queue_error = second >> 1 & 0x03;
            if queue_error == 2 {
                return Err(Check::parameter_bit(at.saturating_add(3), 2));
            }
            let task_set_per_nexus = match first >> 5 {
                0 => false,
                1 => true,
                _ => return Err(Check::parameter_bit(at.saturating_add(2), 7)),
            };
            Ok(Modes {
                task_set_per_nexus,
                queue_error,
                descriptor_sense: first & 0x04 != 0,
                software_write_protect: third & 0x08 != 0,
                task_aborted_status: fourth & 0x40 != 0,
                ..modes
            })
        }
        (0x1c, 0x02, [.., enabled, _, _, _, a, b, c, d]) => {
            let sets = u32::from_be_bytes([*a, *b, *c, *d]);
            // As long as it is what the unit is configured with, it follows the size.
            let is_as_before = sets == view.threshold_sets(&modes);
            let threshold_sets = if is_as_before { modes.threshold_sets } else { Some(sets) };
            Ok(Modes { threshold: enabled & 0x80 != 0, threshold_sets, ..modes })
        }
        _ => Ok(modes),
    }
}
