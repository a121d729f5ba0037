//! The commands that copy, and the one that stops a copy.

use super::list::{self, CopyRequest, Format, Segment};
use crate::commands::admission::Admission;
use crate::commands::media::{refused, taken, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::state::copies::{Outcome, Place, Progress};
use crate::vocabulary::command::Ending;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::CHUNK_BYTES;
use crate::vocabulary::storage::MediaOp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::SenseKey;
use wire::scsi::code;
use wire::scsi::command::{CopyOperationAbort, ExtendedCopyLid4};

/// The longest parameter list, in bytes: more than any valid one.
const LIST_BYTES_MAX: u32 = 64 * 1024;

/// EXTENDED COPY(LID1).
pub(crate) fn extended_copy1<P: From<Box<ExtendedCopy>>>(admission: &Admission<'_>) -> Result<P, Failure> {
    extended_copy(admission, Format::Short)
}

/// EXTENDED COPY(LID4).
pub(crate) fn extended_copy4<P: From<Box<ExtendedCopy>>>(admission: &Admission<'_>) -> Result<P, Failure> {
    extended_copy(admission, Format::Long)
}

/// COPY OPERATION ABORT.
pub(crate) fn abort<P: From<Ending>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let running = admission.nexus.copies.running(admission.cdb().get(CopyOperationAbort::LIST_ID));
    let running = running.ok_or(Check::cdb_field(CopyOperationAbort::LIST_ID))?;
    running.is_aborted.store(true, Ordering::Relaxed);
    Ok(P::from(Ending::GOOD))
}

fn extended_copy<P: From<Box<ExtendedCopy>>>(
    admission: &Admission<'_>,
    format: Format,
) -> Result<P, Failure> {
    let len = admission.cdb().get(ExtendedCopyLid4::LIST_BYTES);
    if len > LIST_BYTES_MAX || admission.request.write_bytes < len {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    let service_action = admission.cdb().service_action();
    Ok(P::from(Box::new(ExtendedCopy::new(format, len, service_action))))
}

/// The program of EXTENDED COPY: piece by piece through the task's buffer.
#[derive(Debug)]
pub(crate) struct ExtendedCopy {
    format: Format,
    /// Bytes of the parameter list.
    len: u32,
    order: CopyRequest,
    /// The current segment.
    segment: usize,
    /// Bytes of it that have been copied.
    done: u64,
    /// The current piece is in the buffer.
    is_read: bool,
    /// The current piece was written without being durable.
    is_cached: bool,
    progress: Arc<Progress>,
    place: Option<Place>,
}

/// If it is aborted between two steps, it still reports its end.
impl Drop for ExtendedCopy {
    fn drop(&mut self) {
        let _ = self.progress.outcome.set(Outcome::Aborted);
    }
}

/// Bytes to copy at once.
struct Piece {
    source_at: u64,
    destination_at: u64,
    len: u32,
}

impl ExtendedCopy {
    fn new(format: Format, len: u32, service_action: u8) -> ExtendedCopy {
        ExtendedCopy {
            format,
            len,
            order: CopyRequest { list_id: None, hold: false, immediate: false, segments: Vec::new() },
            segment: 0,
            done: 0,
            is_read: false,
            is_cached: false,
            progress: Arc::new(Progress { service_action, ..Progress::default() }),
            place: None,
        }
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        if self.len == 0 { 0 } else { CHUNK_BYTES }
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.len == 0 => taken(0),
            Event::Start => Step::Fetch { at: 0, len: self.len },
            Event::Fetched => match self.begin(env) {
                Ok(()) if self.order.immediate => Step::Detach(Some(Ending::taken(u64::from(self.len)))),
                Ok(()) => self.read(env),
                Err(check) => refused(env, check),
            },
            Event::Detached => self.read(env),
            Event::Stored(Ok(_)) if self.is_read => self.flush(env).unwrap_or_else(|| self.advance(env)),
            Event::Stored(Ok(_)) => self.write(env),
            Event::Stored(Err(_)) => self.fail(env, Check::COPY_FAILED),
            Event::Pushed | Event::Home(_) => unexpected(env),
        }
    }

    fn begin(&mut self, env: &mut Env<'_>) -> Result<(), Check> {
        let list = usize::try_from(self.len).ok().and_then(|len| env.buffer.get(..len));
        let list = list.ok_or(Check::PARAMETER_LENGTH)?;
        // A new command with a list identifier discards what is held of the previous one, whatever its
        // outcome.
        if let Some(list_id) = list::list_id(self.format, list) {
            env.nexus.copies.forget(list_id);
        }
        self.order = list::parse(self.format, list, env)?;
        self.place = Some(env.view.unit.copies.take(&env.nexus.transport_id)?);
        match self.order.list_id {
            Some(list_id) => env.nexus.copies.begin(list_id, &self.progress),
            None => Ok(()),
        }
    }

    /// The first half of a piece; or the end.
    fn read(&mut self, env: &mut Env<'_>) -> Step {
        if self.progress.is_aborted.load(Ordering::Relaxed) {
            return self.end(env, Outcome::Aborted);
        }
        while let Some(segment) = self.current() {
            if self.done >= segment.len {
                self.done = 0;
                self.segment = self.segment.saturating_add(1);
                self.progress.segments.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if let Err(check) = segment.check(env) {
                return self.fail(env, check);
            }
            let piece = self.piece(&segment);
            self.is_read = false;
            let op = MediaOp::Read { offset: piece.source_at, len: piece.len, buffer: 0 };
            return Step::Media { unit: Some(segment.source), op };
        }
        self.end(env, Outcome::Good)
    }

    /// The second half.
    fn write(&mut self, env: &mut Env<'_>) -> Step {
        let Some(segment) = self.current() else { return unexpected(env) };
        if let Err(check) = segment.check(env) {
            return self.fail(env, check);
        }
        let piece = self.piece(&segment);
        self.is_read = true;
        let durable = is_durable(env, segment.destination);
        self.is_cached = !durable;
        let op = MediaOp::Write {
            offset: piece.destination_at,
            len: piece.len,
            buffer: 0,
            durable,
            atomic: false,
        };
        Step::Media { unit: Some(segment.destination), op }
    }

    /// What was written is made durable if the destination's write cache was switched off meanwhile.
    fn flush(&mut self, env: &Env<'_>) -> Option<Step> {
        let unit = self.current()?.destination;
        (std::mem::take(&mut self.is_cached) && is_durable(env, unit))
            .then_some(Step::Media { unit: Some(unit), op: MediaOp::Flush })
    }

    /// Whether it reads or writes the unit with this index.
    pub(crate) fn touches(&self, unit: u32) -> bool {
        self.order.segments.iter().any(|segment| segment.source == unit || segment.destination == unit)
    }

    /// The units that it reads.
    pub(crate) fn sources(&self) -> impl Iterator<Item = u32> {
        self.order.segments.iter().map(|segment| segment.source)
    }

    /// The units that it writes.
    pub(crate) fn destinations(&self) -> impl Iterator<Item = u32> {
        self.order.segments.iter().map(|segment| segment.destination)
    }

    fn advance(&mut self, env: &mut Env<'_>) -> Step {
        let Some(segment) = self.current() else { return unexpected(env) };
        let len = u64::from(self.piece(&segment).len);
        self.done = self.done.saturating_add(len);
        self.progress.bytes.fetch_add(len, Ordering::Relaxed);
        self.read(env)
    }

    fn current(&self) -> Option<Segment> {
        self.order.segments.get(self.segment).copied()
    }

    fn piece(&self, segment: &Segment) -> Piece {
        let left = segment.len.saturating_sub(self.done);
        let len = u32::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let skip = if segment.is_backwards() { left.saturating_sub(u64::from(len)) } else { self.done };
        Piece {
            source_at: segment.source_at.saturating_add(skip),
            destination_at: segment.destination_at.saturating_add(skip),
            len,
        }
    }

    fn fail(&mut self, env: &mut Env<'_>, check: Check) -> Step {
        self.end(env, Outcome::Failed(list::numbered(check, self.segment)))
    }

    fn end(&mut self, env: &mut Env<'_>, outcome: Outcome) -> Step {
        // It ends only once.
        let _ = self.progress.outcome.set(outcome);
        if let Some(list_id) = self.order.list_id
            && outcome == Outcome::Good
            && !self.order.hold
            && !self.order.immediate
        {
            env.nexus.copies.forget(list_id);
        }
        match outcome {
            Outcome::Good => taken(self.len),
            Outcome::Failed(check) => refused(env, check),
            Outcome::Aborted => refused(env, Check::new(SenseKey::CopyAborted, code::NO_ADDITIONAL_SENSE)),
        }
    }
}

/// Whether writes to a unit must be durable before they end.
fn is_durable(env: &Env<'_>, unit: u32) -> bool {
    env.units.view(unit).is_none_or(|view| !view.policy.modes.write_cache)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_touches_what_its_segments_name_and_reports_when_it_is_dropped() {
        let mut copy = ExtendedCopy::new(Format::Short, 0, 0);
        copy.order.segments =
            vec![Segment { source: 1, source_at: 0, destination: 2, destination_at: 0, len: 512 }];
        assert_eq!([0, 1, 2].map(|unit| copy.touches(unit)), [false, true, true]);
        let progress = Arc::clone(&copy.progress);
        drop(copy);
        assert_eq!(progress.outcome.get(), Some(&Outcome::Aborted));
    }
}
