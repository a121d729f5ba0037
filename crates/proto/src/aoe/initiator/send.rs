//! What goes out: requests, once and again.

use super::piece::Kind;
use super::translate::{Plan, SECTOR_BYTES};
use super::{Initiator, InitiatorConfig, Phase};
use crate::aoe::Frame;
use crate::aoe::discover;
use crate::time::Time;
use crate::verbs::TaskId;
use std::time::Duration;
use wire::Places;
use wire::aoe::{Command as AoeCommand, Header};
use wire::ata::{Command, Registers, Section};
use zerocopy::IntoBytes;

/// The shortest time for a flush: all of a cache may have to go to the medium.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

impl Initiator {
    /// Whether what is to be sent again may be.
    pub(super) fn may_send_again(&self) -> bool {
        self.pieces.has_again() && self.pieces.flying() < self.pace.window()
    }

    /// Whether there may be a new piece of a command to send.
    pub(super) fn may_send_more(&self) -> bool {
        !self.work.is_empty() && self.pieces.unanswered() < self.pace.window()
    }

    /// The next frame.
    pub(super) fn next_frame(&mut self, now: Time) -> Option<Frame> {
        if self.phase == Phase::Over {
            return None;
        }
        // What the machine itself asks takes no room from commands: there is one at a time.
        let kind = match self.errand.take() {
            Some(kind) => kind,
            None if self.may_send_again() => return self.send_again(now),
            None if self.may_send_more() => self.next_piece()?,
            None => return None,
        };
        let timeout = timeout(self.pace.timeout(0), kind);
        let tag = self.pieces.take(kind, now, timeout)?;
        self.wait_until(now.after(timeout));
        self.frame(tag, kind)
    }

    fn send_again(&mut self, now: Time) -> Option<Frame> {
        let pace = &self.pace;
        let (tag, piece) =
            self.pieces.again(now, |piece| timeout(pace.timeout(piece.retries), piece.kind))?;
        self.wait_until(piece.deadline());
        self.frame(tag, piece.kind)
    }

    fn wait_until(&mut self, deadline: Time) {
        self.timer = Some(self.timer.map_or(deadline, |timer| timer.min(deadline)));
    }

    /// The next piece of the oldest command that has one.
    fn next_piece(&mut self) -> Option<Kind> {
        while let Some(id) = self.work.front().copied() {
            if let Some(kind) = self.piece_of(id) {
                return Some(kind);
            }
            self.work.pop_front();
        }
        None
    }

    fn piece_of(&mut self, id: TaskId) -> Option<Kind> {
        let per_frame = u32::from(self.peer.sectors);
        let task = self.tasks.get(id).filter(|task| task.failure.is_none())?;
        let kind = match task.plan {
            Plan::Move { sectors, .. } if task.handed < sectors => {
                let (at, rest) = (task.handed, sectors.saturating_sub(task.handed));
                let sectors = u8::try_from(rest.min(per_frame)).unwrap_or(u8::MAX);
                task.handed = at.saturating_add(u32::from(sectors));
                Kind::Move { task: id, at, sectors }
            }
            Plan::Move { flush: true, .. } if task.unanswered == 0 && !task.has_asked => Kind::Flush(id),
            Plan::Flush if !task.has_asked => Kind::Flush(id),
            Plan::Ask if !task.has_asked => Kind::Identify(Some(id)),
            Plan::Move { .. } | Plan::Flush | Plan::Ask | Plan::Made | Plan::Fail(_) => return None,
        };
        task.has_asked |= !matches!(kind, Kind::Move { .. });
        task.unanswered = task.unanswered.saturating_add(1);
        Some(kind)
    }

    /// The frame of a request.
    fn frame(&mut self, tag: u32, kind: Kind) -> Option<Frame> {
        let (registers, payload, task) = match kind {
            Kind::Query => {
                return Some(discover::query(self.config.ours, self.peer.mac, self.config.target, tag));
            }
            Kind::Identify(_) => (Registers::new(Command::IdentifyDevice, 0, 1), Places::EMPTY, None),
            Kind::Flush(_) => {
                let is_extended = self.identity.as_ref().is_some_and(|identity| identity.flush_cache_ext);
                let command = if is_extended { Command::FlushCacheExt } else { Command::FlushCache };
                (Registers::new(command, 0, 0), Places::EMPTY, None)
            }
            Kind::Move { task: id, at, sectors } => {
                let is_extended = self.identity.as_ref().is_some_and(|identity| identity.lba48);
                let task = self.tasks.get(id)?;
                let Plan::Move { is_write, lba, .. } = task.plan else { return None };
                let command = match (is_write, is_extended) {
                    (false, false) => Command::ReadSectors,
                    (false, true) => Command::ReadSectorsExt,
                    (true, false) => Command::WriteSectors,
                    (true, true) => Command::WriteSectorsExt,
                };
                let from = at.saturating_mul(SECTOR_BYTES);
                let bytes = u32::from(sectors).saturating_mul(SECTOR_BYTES);
                let payload = if is_write { task.request.write.slice(from, bytes) } else { Places::EMPTY };
                let lba = lba.saturating_add(u64::from(at));
                (Registers::new(command, lba, u16::from(sectors)), payload, Some(id))
            }
        };
        let InitiatorConfig { ours, target, .. } = self.config;
        let header = Header::request(ours, self.peer.mac, target, AoeCommand::ATA, tag);
        let section = Section::request(&registers, !payload.is_empty());
        Some(Frame::new([header.as_bytes(), section.as_bytes()], payload, task))
    }
}

/// How long the answer to a request may take.
fn timeout(by_pace: Duration, kind: Kind) -> Duration {
    match kind {
        Kind::Flush(_) => by_pace.max(FLUSH_TIMEOUT),
        Kind::Query | Kind::Identify(_) | Kind::Move { .. } => by_pace,
    }
}
