//! Requests that are sent, and retransmitted.

use super::abandoned::{Next, Passage};
use super::pace::{LONG_TIMEOUT, Pace};
use super::piece::{Kind, PIECES_MAX};
use super::plan::{AtaTransfer, Plan, SECTOR_BYTES};
use super::{Initiator, InitiatorConfig, Outgoing, Phase, trim};
use crate::aoe::Frame;
use crate::aoe::discover;
use crate::services::TaskId;
use crate::time::Time;
use std::ops::Range;
use std::time::Duration;
use wire::Places;
use wire::aoe::{Command as AoeCommand, Header};
use wire::ata::{Command, Registers, Section, TRIM, Transfer};
use zerocopy::IntoBytes;

/// The shortest timeout of a test, which is sent more often.
const TEST_TIMEOUT: Duration = Duration::from_millis(50);
/// Sectors that one frame can verify: COUNT is a byte.
const VERIFIED_MAX: u32 = 255;
/// Bytes of a sector in a frame.
const FRAME_DATA_BYTES: usize = 512;
const _: () = assert!(SECTOR_BYTES == 512);

impl Initiator {
    /// Whether retransmissions are allowed now.
    pub(super) fn may_retransmit(&self) -> bool {
        self.pieces.has_retransmission() && self.has_window(self.pieces.in_flight())
    }

    /// Whether the window allows one more beside this many requests of commands and the abandoned writes; one
    /// abandoned write is always allowed.
    fn has_window(&self, requests: u16) -> bool {
        requests == 0 || requests.saturating_add(self.abandoned.in_flight()) < self.pace.window()
    }

    /// Whether a command may have a new piece to send.
    pub(super) fn may_send_more(&self) -> bool {
        let unanswered = self.pieces.unanswered();
        let has_room = unanswered.saturating_add(self.abandoned.repeated()) < PIECES_MAX;
        !self.work.is_empty() && self.has_window(unanswered) && has_room
    }

    /// Whether there is something to send for an abandoned write.
    pub(super) fn may_send_abandoned(&self) -> bool {
        let may_send = self.is_resumed && self.phase == Phase::Full && !self.abandoned.is_empty();
        may_send && self.abandoned.is_due(&self.passage())
    }

    fn passage(&self) -> Passage {
        Passage {
            way: (self.config.ours, self.peer.mac),
            room: self.data_room(),
            window: self.pace.window(),
            in_flight: self.pieces.in_flight(),
            has_nop: self.orders_nop(),
        }
    }

    /// Data that fits into a frame of our interface. If the target no longer accepts it, it refuses the
    /// frame.
    pub(super) fn data_room(&self) -> usize {
        usize::from(wire::aoe::sectors_per_frame(self.config.mtu)).saturating_mul(FRAME_DATA_BYTES)
    }

    /// The next frame.
    pub(super) fn next_frame(&mut self, now: Time) -> Option<Outgoing<'_>> {
        if self.phase == Phase::Over {
            return None;
        }
        // The machine's own requests take no room from commands: there is one at a time.
        let kind = match self.own_request.take() {
            Some(kind) => kind,
            None if self.may_send_abandoned() => return self.send_abandoned(now),
            None if self.may_retransmit() => return self.retransmit(now),
            None if self.may_send_more() => self.next_piece()?,
            None => return None,
        };
        let timeout = timeout(&self.pace, kind, 0);
        let tag = self.pieces.take(kind, now, timeout, &self.abandoned)?;
        self.wait_until(now.after(timeout));
        self.frame(tag, kind)
    }

    fn retransmit(&mut self, now: Time) -> Option<Outgoing<'_>> {
        let pace = &self.pace;
        let (tag, piece) =
            self.pieces.take_retransmission(now, |piece| timeout(pace, piece.kind, piece.retries))?;
        self.wait_until(piece.deadline());
        self.frame(tag, piece.kind)
    }

    fn send_abandoned(&mut self, now: Time) -> Option<Outgoing<'_>> {
        let InitiatorConfig { ours, target, .. } = self.config;
        let passage = self.passage();
        let (Next { tag, section, data }, deadline) = self.abandoned.next(now, &passage)?;
        self.timer = Some(self.timer.map_or(deadline, |timer| timer.min(deadline)));
        let ata = Header::request(ours, self.peer.mac, target, AoeCommand::ATA, tag);
        let frame = Frame::new([ata.as_bytes(), section.as_bytes()], Places::EMPTY, None);
        Some(Outgoing { frame, made: data })
    }

    /// Keeps the unanswered writes: the buffers of their commands are free now. `gather` copies what is in
    /// places.
    pub(super) fn keep_unanswered(&mut self, mut gather: impl FnMut(&Places) -> Vec<u8>) {
        let way = (self.config.ours, self.peer.mac);
        for (tag, piece) in self.pieces.all() {
            let (kind, is_copied) = (piece.kind, piece.is_copied());
            let Some(sectors) = self.changed(kind) else { continue };
            match kind {
                Kind::Trim { task, at, ranges } => {
                    let Some(extents) = self.tasks.extents(task) else { continue };
                    trim::write(extents, at, u32::from(ranges), &mut self.body);
                    let section = trim_section(ranges);
                    self.abandoned.add(tag, way, is_copied, section, self.body.clone(), sectors);
                }
                Kind::Move { .. } => {
                    let Some((registers, payload, _)) = self.command(kind) else { continue };
                    let section = Section::request(&registers, true);
                    self.abandoned.add(tag, way, is_copied, section, gather(&payload), sectors);
                }
                Kind::Query | Kind::Identify(_) | Kind::Flush(_) | Kind::Ata(_) | Kind::Order { .. } => {}
            }
        }
    }

    /// What was sent for a task is not retransmitted.
    pub(super) fn abandon_sent(&mut self, now: Time, id: TaskId) {
        let way = (self.config.ours, self.peer.mac);
        for (tag, piece) in self.pieces.drop_task(id) {
            if let Some(sectors) = self.changed(piece.kind) {
                self.abandoned.add_abandoned(now, tag, way, piece.is_copied(), sectors);
            }
        }
    }

    /// The sectors that a request writes or trims.
    pub(super) fn changed(&mut self, kind: Kind) -> Option<Range<u64>> {
        match kind {
            Kind::Move { task, at, sectors } => {
                let Plan::Move { way: AtaTransfer::Write, lba, .. } = self.tasks.get(task)?.plan else {
                    return None;
                };
                let first = lba.saturating_add(u64::from(at));
                Some(first..first.saturating_add(u64::from(sectors)))
            }
            Kind::Trim { task, .. } => Some(trim::hull(self.tasks.extents(task)?)),
            Kind::Query | Kind::Identify(_) | Kind::Flush(_) | Kind::Ata(_) | Kind::Order { .. } => None,
        }
    }

    /// The sectors that a command will write or trim.
    pub(super) fn target_of(&mut self, id: TaskId, plan: Plan) -> Option<Range<u64>> {
        match plan {
            Plan::Move { way: AtaTransfer::Write, lba, sectors, .. } => {
                Some(lba..lba.saturating_add(u64::from(sectors)))
            }
            Plan::Trim { .. } => self.tasks.extents(id).map(|extents| trim::hull(extents)),
            Plan::Move { way: AtaTransfer::Read | AtaTransfer::Verify, .. }
            | Plan::Flush
            | Plan::Ask
            | Plan::Interpret { .. }
            | Plan::Feature(_)
            | Plan::Ata(_)
            | Plan::Order(_)
            | Plan::Made
            | Plan::Fail(_) => None,
        }
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
            Plan::Move { way, sectors, .. } if task.handed < sectors => {
                let (at, rest) = (task.handed, sectors.saturating_sub(task.handed));
                let most = if way == AtaTransfer::Verify { VERIFIED_MAX } else { per_frame };
                let sectors = u8::try_from(rest.min(most)).unwrap_or(u8::MAX);
                task.handed = at.saturating_add(u32::from(sectors));
                Kind::Move { task: id, at, sectors }
            }
            Plan::Move { flush: true, .. } if task.unanswered == 0 && !task.has_asked => Kind::Flush(id),
            Plan::Trim { ranges, most } if task.handed < ranges => {
                let (at, rest) = (task.handed, ranges.saturating_sub(task.handed));
                let most = most.min(per_frame.saturating_mul(u32::from(trim::RANGES_PER_SECTOR)));
                let ranges = u16::try_from(rest.min(most)).unwrap_or(u16::MAX);
                task.handed = at.saturating_add(u32::from(ranges));
                Kind::Trim { task: id, at, ranges }
            }
            Plan::Flush if !task.has_asked => Kind::Flush(id),
            Plan::Ask if !task.has_asked => Kind::Identify(Some(id)),
            Plan::Ata(_) | Plan::Feature(_) if !task.has_asked => Kind::Ata(id),
            Plan::Order(asked) if !task.has_asked => Kind::Order { task: id, is_test: asked.is_test },
            Plan::Move { .. }
            | Plan::Trim { .. }
            | Plan::Flush
            | Plan::Ask
            | Plan::Ata(_)
            | Plan::Feature(_)
            | Plan::Order(_)
            | Plan::Interpret { .. }
            | Plan::Made
            | Plan::Fail(_) => return None,
        };
        task.has_asked |= !matches!(kind, Kind::Move { .. } | Kind::Trim { .. });
        task.unanswered = task.unanswered.saturating_add(1);
        Some(kind)
    }

    /// The frame of a request.
    fn frame(&mut self, tag: u32, kind: Kind) -> Option<Outgoing<'_>> {
        let InitiatorConfig { ours, target, .. } = self.config;
        let request = |command| Header::request(ours, self.peer.mac, target, command, tag);
        let ata = request(AoeCommand::ATA);
        match kind {
            Kind::Query => {
                let frame = discover::query(ours, self.peer.mac, target, tag);
                Some(Outgoing { frame, made: &[] })
            }
            Kind::Order { task: id, .. } => {
                let task = self.tasks.get(id)?;
                let Plan::Order(asked) = task.plan else { return None };
                let frame = asked.frame(&request(asked.command()), &task.request.write, id);
                Some(Outgoing { frame, made: &[] })
            }
            Kind::Trim { task: id, at, ranges } => {
                trim::write(self.tasks.extents(id)?, at, u32::from(ranges), &mut self.body);
                let section = trim_section(ranges);
                let frame = Frame::new([ata.as_bytes(), section.as_bytes()], Places::EMPTY, Some(id));
                Some(Outgoing { frame, made: &self.body })
            }
            Kind::Identify(_) | Kind::Flush(_) | Kind::Move { .. } | Kind::Ata(_) => {
                let (registers, payload, task) = self.command(kind)?;
                let section = Section::request(&registers, !payload.is_empty());
                let frame = Frame::new([ata.as_bytes(), section.as_bytes()], payload, task);
                Some(Outgoing { frame, made: &[] })
            }
        }
    }

    /// The ATA command of a request, its data, and the task that owns the data.
    fn command(&mut self, kind: Kind) -> Option<(Registers, Places, Option<TaskId>)> {
        let identity = self.identity.as_ref();
        match kind {
            Kind::Identify(_) => Some((Registers::new(Command::IdentifyDevice, 0, 1), Places::EMPTY, None)),
            Kind::Flush(_) => {
                let is_extended = identity.is_some_and(|identity| identity.flush_cache_ext);
                let command = if is_extended { Command::FlushCacheExt } else { Command::FlushCache };
                Some((Registers::new(command, 0, 0), Places::EMPTY, None))
            }
            Kind::Move { task: id, at, sectors } => {
                let is_extended = identity.is_some_and(|identity| identity.lba48);
                let task = self.tasks.get(id)?;
                let Plan::Move { way, lba, .. } = task.plan else { return None };
                let command = match (way, is_extended) {
                    (AtaTransfer::Read, false) => Command::ReadSectors,
                    (AtaTransfer::Read, true) => Command::ReadSectorsExt,
                    (AtaTransfer::Write, false) => Command::WriteSectors,
                    (AtaTransfer::Write, true) => Command::WriteSectorsExt,
                    (AtaTransfer::Verify, false) => Command::ReadVerifySectors,
                    (AtaTransfer::Verify, true) => Command::ReadVerifySectorsExt,
                };
                let from = at.saturating_mul(SECTOR_BYTES);
                let bytes = u32::from(sectors).saturating_mul(SECTOR_BYTES);
                let is_write = way == AtaTransfer::Write;
                let payload = if is_write { task.request.write.slice(from, bytes) } else { Places::EMPTY };
                let lba = lba.saturating_add(u64::from(at));
                Some((Registers::new(command, lba, u16::from(sectors)), payload, Some(id)))
            }
            Kind::Ata(id) => {
                let task = self.tasks.get(id)?;
                if let Plan::Feature(feature) = task.plan {
                    let registers = Registers::new(Command::SetFeatures, 0, 0);
                    let registers = Registers { feature: u16::from(feature), ..registers };
                    return Some((registers, Places::EMPTY, Some(id)));
                }
                let Plan::Ata(pass) = task.plan else { return None };
                let payload = match pass.transfer() {
                    Transfer::Nothing | Transfer::In(_) => Places::EMPTY,
                    out @ Transfer::Out(_) => task.request.write.slice(0, out.bytes()),
                };
                Some((pass.registers, payload, Some(id)))
            }
            Kind::Query | Kind::Order { .. } | Kind::Trim { .. } => None,
        }
    }
}

/// The ATA section of a TRIM with this many ranges.
fn trim_section(ranges: u16) -> Section {
    let registers = Registers::new(Command::DataSetManagement, 0, ranges.div_ceil(trim::RANGES_PER_SECTOR));
    Section::request(&Registers { feature: TRIM, ..registers }, true)
}

/// The timeout of a request that was retransmitted this many times. A test that does not match should end
/// soon.
fn timeout(pace: &Pace, kind: Kind, retries: u8) -> Duration {
    match kind {
        Kind::Query | Kind::Identify(_) | Kind::Move { .. } => pace.timeout(retries),
        Kind::Order { is_test: true, .. } => pace.timeout(0).max(TEST_TIMEOUT),
        Kind::Flush(_) | Kind::Trim { .. } | Kind::Ata(_) | Kind::Order { .. } => {
            pace.timeout(retries).max(LONG_TIMEOUT)
        }
    }
}
