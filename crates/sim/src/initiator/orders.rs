//! PERSISTENT RESERVE OUT, RESERVE and RELEASE: how they are sent, and the checks when one of them or a
//! medium command has ended.

use super::{ATTENTION_WORD, BUSY_WORD, CONFLICT_WORD, FAILED_WORD, GOOD_WORD, ILLEGAL_WORD};
use super::{Initiator, Kind, Task, settings};
use super::{MISCOMPARE_WORD, STANDBY_WORD};
use crate::attention::{Act, RESERVATIONS};
use crate::reservations::{Action, Type, Verdict};
use fastrand::Rng;
use proto::iscsi::initiator::{Completion, Outcome, Request};
use proto::services::Attribute;
use proto::time::Time;
use reactor::io::Io;
use wire::scsi::command::{PersistentReserveOut, Release6, Reserve6};
use wire::scsi::opcode::service_action::persistent_reserve_out;
use wire::scsi::parameters::ReserveOutList;
use wire::{Cdb, Places};

/// Bytes of its parameter list.
const LIST_BYTES: u8 = 24;
/// The keys of each initiator.
const KEYS: u64 = 3;

impl Initiator {
    /// Begins one of these commands.
    pub(super) fn begin_order(&mut self) {
        let now = self.kernel.now();
        let unit = self.net.borrow_mut().rng.usize(0..self.place.units);
        if !self.reservations.borrow()[unit].has_room() {
            return;
        }
        let (keys, is_classic, is_held) = {
            let unit = &self.reservations.borrow()[unit];
            (unit.keys(), unit.is_classic(), unit.is_held() || !self.has_paths())
        };
        let (key, action) = {
            let (rng, own) = (&mut self.net.borrow_mut().rng, self.index);
            if is_classic && rng.bool() {
                (0, if rng.bool() { Action::Hold } else { Action::LetGo })
            } else if self.habits.preempts && rng.u32(0..4) < if self.has_paths() { 3 } else { 2 } {
                preempt(rng, &keys, own, is_held)
            } else if self.has_paths() && rng.u32(0..5) == 0 {
                (0, Action::SetModes { write_cache: rng.bool() })
            } else {
                draw(rng, &keys, own)
            }
        };
        let list = list(key, action);
        let Some(place) = self.take(list.len() as u32) else { return };
        self.fill_place(&list, &place);
        let (lun, attribute) = ((unit as u64) << 48, Attribute::Simple);
        let (cdb, read) = (cdb(action), Places::EMPTY);
        let request = Request { lun, attribute, cdb, read, write: place };
        let taken = self.link.as_mut().and_then(|link| link.machine.submit(request));
        let Some(id) = taken else { return self.give(&place) };
        let order = self.order(unit, key, action);
        for code in RESERVATIONS {
            self.attentions.borrow_mut().may_cause(self.index, Act::Command(id), unit, code);
        }
        self.note(&[8, u64::from(id.slot), unit as u64, key], || {
            format!("command {} is order {order} of unit {unit} with key {key:x}: {action:x?}", id.slot)
        });
        self.sent(Task::new(id, unit, Kind::Order(order), place, now), false);
    }

    /// Begins a change of a unit's reservations; returns its number.
    pub(super) fn order(&self, unit: usize, key: u64, action: Action) -> u64 {
        let reservations = &mut self.reservations.borrow_mut()[unit];
        let order = reservations.order(self.index, key, action);
        self.registers.borrow_mut().let_in(unit, |initiator| reservations.may_write(initiator));
        order
    }

    /// Checks whether reservations allow a command to end like this.
    pub(super) fn look_at_reservations(&self, now: Time, task: &Task, outcome: &str) -> Result<(), String> {
        let unit = &mut self.reservations.borrow_mut()[task.unit];
        if matches!(task.kind, Kind::Modes | Kind::Move | Kind::Groups) {
            return Ok(());
        }
        let Kind::Order(id) = task.kind else {
            let conflicts = match outcome {
                _ if !self.is_served_since(task.began) => None,
                FAILED_WORD if self.has_paths() => None,
                GOOD_WORD | FAILED_WORD | MISCOMPARE_WORD => Some(false),
                CONFLICT_WORD => Some(true),
                _ => None,
            };
            return unit.accessed(task.access, conflicts);
        };
        let verdict = match outcome {
            GOOD_WORD => Verdict::Good,
            // In standby it refuses MODE SELECT by what it knows of reservations.
            CONFLICT_WORD if !self.knows_since(task.began) && unit.sets_modes(id) => return unit.refused(id),
            CONFLICT_WORD | ILLEGAL_WORD if self.is_unaware_since(task.began) => return unit.refused(id),
            CONFLICT_WORD => Verdict::Conflict,
            ILLEGAL_WORD => Verdict::Check,
            BUSY_WORD | ATTENTION_WORD | STANDBY_WORD => return unit.refused(id),
            // It could not be saved, or was aborted.
            _ => {
                unit.forget(id);
                return Ok(());
            }
        };
        for victim in unit.ordered(id, verdict)? {
            let writes = self.registers.borrow_mut().fence(now, victim, task.unit, task.began);
            self.note(&[15, victim as u64], || {
                format!("has preempted nexus {victim} and {writes} blocks of writes")
            });
        }
        Ok(())
    }
}

/// An action that an initiator may want, and the key that it thinks it has. `keys`: those of all.
fn draw(rng: &mut Rng, keys: &[u64], own: usize) -> (u64, Action) {
    let key = if rng.u32(0..20) == 0 { 1 } else { keys[own] };
    let kind = Type::ALL[rng.usize(0..Type::ALL.len())];
    let new = (own as u64 + 1) << 8 | rng.u64(0..KEYS);
    let victim = keys[rng.usize(0..keys.len())];
    let victim = if victim == key { 0 } else { victim };
    let action = match rng.u32(0..20) {
        0..6 => {
            let new = if rng.u32(0..4) == 0 { 0 } else { new };
            Action::Register { new, ignores: rng.bool(), aptpl: rng.bool() }
        }
        6..12 => Action::Reserve(kind),
        12..15 => Action::Release(kind),
        15 => Action::Clear,
        _ => Action::Preempt { victim, kind, aborts: rng.bool() },
    };
    (key, action)
}

/// PREEMPT AND ABORT of another initiator that has a key, once there is a reservation that keeps it out.
fn preempt(rng: &mut Rng, keys: &[u64], own: usize, is_held: bool) -> (u64, Action) {
    let victims: Vec<u64> = keys.iter().copied().filter(|key| ![0, keys[own]].contains(key)).collect();
    if keys[own] == 0 || victims.is_empty() {
        let new = (own as u64 + 1) << 8;
        return (keys[own], Action::Register { new, ignores: true, aptpl: rng.bool() });
    }
    if !is_held {
        return (keys[own], Action::Reserve(Type::WriteExclusiveRegistrantsOnly));
    }
    let kind = if rng.bool() { Type::WriteExclusive } else { Type::WriteExclusiveRegistrantsOnly };
    (keys[own], Action::Preempt { victim: victims[rng.usize(0..victims.len())], kind, aborts: true })
}

/// The command (SPC-4 section 6.14, SPC-2 sections 7.21 and 7.23).
fn cdb(action: Action) -> Cdb {
    let (service, kind) = match action {
        Action::SetModes { .. } => return settings::select(),
        Action::Hold => return Reserve6::ZERO.into(),
        Action::LetGo => return Release6::ZERO.into(),
        Action::Lose { .. } => unreachable!("no command"),
        Action::Register { ignores: false, .. } => (persistent_reserve_out::REGISTER, None),
        Action::Reserve(kind) => (persistent_reserve_out::RESERVE, Some(kind)),
        Action::Release(kind) => (persistent_reserve_out::RELEASE, Some(kind)),
        Action::Clear => (persistent_reserve_out::CLEAR, None),
        Action::Preempt { kind, aborts: false, .. } => (persistent_reserve_out::PREEMPT, Some(kind)),
        Action::Preempt { kind, aborts: true, .. } => (persistent_reserve_out::PREEMPT_AND_ABORT, Some(kind)),
        Action::Register { ignores: true, .. } => {
            (persistent_reserve_out::REGISTER_AND_IGNORE_EXISTING_KEY, None)
        }
    };
    let kind = kind.map_or(0, |kind| kind as u8);
    PersistentReserveOut::new(service, kind, LIST_BYTES.into()).into()
}

/// Its parameter list.
fn list(key: u64, action: Action) -> Vec<u8> {
    let (other, aptpl) = match action {
        Action::Hold | Action::LetGo | Action::Lose { .. } => return Vec::new(),
        Action::SetModes { write_cache } => return settings::list(write_cache),
        Action::Register { new, aptpl, .. } => (new, aptpl),
        Action::Preempt { victim, .. } => (victim, false),
        Action::Reserve(_) | Action::Release(_) | Action::Clear => (0, false),
    };
    ReserveOutList { key, action_key: other, persist: aptpl, ..ReserveOutList::ZERO }.to_bytes().to_vec()
}

/// ADDITIONAL SENSE CODE and qualifier, from fixed format sense data (SPC-4 section 4.5.3).
pub(super) fn additional_code(completion: &Completion) -> u16 {
    let Outcome::Status { sense: Some(sense), .. } = &completion.outcome else { return 0 };
    let bytes = sense.as_bytes();
    bytes.get(12..14).map_or(0, |code| u16::from_be_bytes([code[0], code[1]]))
}
