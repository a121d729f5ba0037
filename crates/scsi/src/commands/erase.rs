//! SANITIZE and FORMAT UNIT, which erase the whole medium: all other commands end first, then the unit is not
//! ready until the operation has ended, with its progress in sense data.

use crate::commands::media::same::TILE_BYTES;
use crate::commands::media::{refused, unexpected};
use crate::commands::step::{Env, Event, Step};
use crate::commands::{format, sanitize};
use crate::state::home::{HomeReply, HomeRequest};
use crate::state::policy::Erasure;
use crate::vocabulary::command::Ending;
use crate::vocabulary::modes::EraseKind;
use crate::vocabulary::sense::{Check, Failure};
use crate::vocabulary::storage::CHUNK_BYTES;
use crate::vocabulary::storage::MediaOp;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes erased between two progress updates.
const ERASE_BYTES: u64 = 64 * 1024 * 1024;

/// The program of SANITIZE and FORMAT UNIT. Once begun it cannot be aborted.
#[derive(Debug)]
pub(crate) struct Erase {
    kind: EraseKind,
    method: Method,
    list: List,
    /// Bytes of the parameter list that were consumed.
    taken: u32,
    /// IMMED.
    immediate: bool,
    phase: Phase,
    medium_bytes: u64,
    /// Bytes done, in all passes together.
    done: u64,
    progress: Arc<AtomicU32>,
}

/// How blocks are erased.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// With a pattern.
    Overwrite {
        passes: u8,
        /// Between two passes the pattern is inverted.
        invert: bool,
        /// Bytes of the buffer that hold copies of a block.
        tile: u32,
    },
    /// Blocks read as zeros afterwards.
    Zero {
        /// They are also unmapped, where possible.
        unmap: bool,
    },
    /// Not at all: this only ends the failed state of a SANITIZE.
    ExitFailure,
}

/// The parameter list that is fetched first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum List {
    /// None.
    None,
    /// The list of OVERWRITE.
    Pattern {
        /// Its length.
        bytes: u32,
    },
    /// The part of FORMAT UNIT's list that is checked.
    Format {
        /// The length of that part.
        bytes: u32,
        /// LONGLIST.
        long: bool,
    },
}

impl List {
    fn bytes(self) -> u32 {
        match self {
            List::None => 0,
            List::Pattern { bytes } | List::Format { bytes, .. } => bytes,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Waiting for the home to begin.
    Asking,
    Running,
    Flushing,
    /// The outcome is being reported to the home.
    Reporting {
        ok: bool,
    },
}

impl Erase {
    pub(crate) fn new(kind: EraseKind, method: Method, list: List, immediate: bool) -> Erase {
        Erase {
            kind,
            method,
            list,
            taken: list.bytes(),
            immediate,
            phase: Phase::Asking,
            medium_bytes: 0,
            done: 0,
            progress: Arc::default(),
        }
    }

    pub(crate) fn buffer_bytes(&self) -> u32 {
        match self.method {
            Method::Overwrite { .. } => TILE_BYTES.max(self.list.bytes()),
            Method::Zero { .. } | Method::ExitFailure => self.list.bytes(),
        }
    }

    pub(crate) fn next(&mut self, env: &mut Env<'_>, event: Event) -> Step {
        match event {
            Event::Start if self.list.bytes() > 0 => Step::Fetch { at: 0, len: self.list.bytes() },
            Event::Start => self.ask(env),
            Event::Fetched => match self.parse(env) {
                Ok(()) => self.ask(env),
                Err(check) => refused(env, check),
            },
            Event::Home(reply) => self.replied(env, &reply),
            Event::Detached => self.work(),
            Event::Stored(Ok(_)) => self.stored(env),
            Event::Stored(Err(_)) => self.report(false),
            Event::Pushed => unexpected(env),
        }
    }

    fn parse(&mut self, env: &mut Env<'_>) -> Result<(), Check> {
        match self.list {
            List::None => {}
            List::Pattern { bytes } => self.method = sanitize::pattern(env, bytes)?,
            List::Format { bytes, long } => {
                let list = usize::try_from(bytes).ok().and_then(|len| env.buffer.get(..len));
                let format = format::Parameters::parse(list.ok_or(Check::PARAMETER_LENGTH)?, long)?;
                (self.immediate, self.taken) = (format.immediate, format.bytes);
            }
        }
        Ok(())
    }

    fn ask(&self, env: &Env<'_>) -> Step {
        let from = env.nexus.identity();
        Step::Home(Box::new(match self.method {
            Method::ExitFailure => HomeRequest::SanitizeExitFailure { from },
            Method::Overwrite { .. } | Method::Zero { .. } => {
                HomeRequest::EraseBegin { from, kind: self.kind }
            }
        }))
    }

    fn replied(&mut self, env: &Env<'_>, reply: &HomeReply) -> Step {
        match reply {
            HomeReply::Conflict => return refused(env, Failure::CONFLICT),
            HomeReply::Check(check) => return refused(env, *check),
            HomeReply::Done => {}
        }
        match (self.phase, &env.view.policy.erasure, self.method) {
            (Phase::Reporting { ok: false }, _, _) => refused(env, Check::erase_failed(self.kind)),
            (Phase::Reporting { ok: true }, _, _) | (_, _, Method::ExitFailure) => Step::End(self.good()),
            (_, Some(Erasure::Running { progress, .. }), _) => {
                self.progress = Arc::clone(progress);
                self.medium_bytes = env.view.blocks().saturating_mul(u64::from(env.view.policy.block_bytes));
                self.phase = Phase::Running;
                Step::Detach(self.immediate.then(|| self.good()))
            }
            (_, Some(Erasure::Failed { .. }) | None, _) => unexpected(env),
        }
    }

    fn good(&self) -> Ending {
        Ending::taken(u64::from(self.taken))
    }

    fn stored(&mut self, env: &mut Env<'_>) -> Step {
        match self.phase {
            Phase::Running => self.advance(env),
            Phase::Flushing => self.report(true),
            Phase::Asking | Phase::Reporting { .. } => unexpected(env),
        }
    }

    /// The current piece is done: updates the progress, and inverts the pattern at the end of a pass.
    fn advance(&mut self, env: &mut Env<'_>) -> Step {
        self.done = self.done.saturating_add(self.piece().1);
        let unit = self.total().div_ceil(1 << 16).max(1);
        let progress = self.done.checked_div(unit).and_then(|done| u32::try_from(done).ok());
        self.progress.store(progress.unwrap_or(u32::MAX).min(u32::from(u16::MAX)), Ordering::Relaxed);
        if let Method::Overwrite { invert: true, .. } = self.method
            && self.at() == 0
        {
            env.buffer.iter_mut().for_each(|byte| *byte = !*byte);
        }
        self.work()
    }

    /// The next operation.
    fn work(&mut self) -> Step {
        let (offset, len) = self.piece();
        if self.done >= self.total() {
            self.phase = Phase::Flushing;
            return Step::Media { unit: None, op: MediaOp::Flush };
        }
        let op = match self.method {
            Method::Overwrite { .. } => {
                let len = u32::try_from(len).unwrap_or(0);
                MediaOp::Write { offset, len, buffer: 0, durable: false, atomic: false }
            }
            Method::Zero { unmap } => MediaOp::Zero { offset, len, unmap, durable: false },
            Method::ExitFailure => MediaOp::Flush,
        };
        Step::Media { unit: None, op }
    }

    /// The current offset on the medium.
    fn at(&self) -> u64 {
        self.done.checked_rem(self.medium_bytes).unwrap_or(0)
    }

    /// Offset and length of the current piece.
    fn piece(&self) -> (u64, u64) {
        let longest = match self.method {
            Method::Overwrite { tile, .. } => u64::from(tile.min(CHUNK_BYTES)),
            Method::Zero { .. } | Method::ExitFailure => ERASE_BYTES,
        };
        (self.at(), self.medium_bytes.saturating_sub(self.at()).min(longest))
    }

    fn total(&self) -> u64 {
        match self.method {
            Method::Overwrite { passes, .. } => self.medium_bytes.saturating_mul(u64::from(passes)),
            Method::Zero { .. } | Method::ExitFailure => self.medium_bytes,
        }
    }

    fn report(&mut self, ok: bool) -> Step {
        self.phase = Phase::Reporting { ok };
        Step::Home(Box::new(HomeRequest::EraseEnd { ok, kind: self.kind }))
    }
}
