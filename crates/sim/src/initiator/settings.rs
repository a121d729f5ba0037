//! What all gateways of a unit have in common besides reservations: mode parameters (SPC-4 sections 6.9 and 6.11), and which of them is
//! active, which initiators may change (section 6.45).

use super::{GOOD_WORD, Initiator, Kind, Task};
use proto::iscsi::initiator::{Completion, Request};
use proto::services::Attribute;
use proto::time::Time;
use reactor::io::Io;
use wire::scsi::command::{ModeSelect6, ModeSense6, SetTargetPortGroups};
use wire::scsi::mode::{Caching, Header6, page};
use wire::scsi::parameters::SetPortGroup;
use wire::scsi::{AccessState, Command as _};
use wire::{Cdb, Places};

/// Bytes of a caching page with its header.
const PAGE_BYTES: usize = 20;
/// Bytes of MODE SELECT's parameter list, and of what MODE SENSE returns.
const LIST_BYTES: u8 = (Header6::BYTES + PAGE_BYTES) as u8;

/// MODE SELECT, which turns the write cache on or off.
pub(super) fn select() -> Cdb {
    ModeSelect6 { page_format: true, save: false, list_bytes: LIST_BYTES }.to_cdb()
}

/// Its parameter list.
pub(super) fn list(write_cache: bool) -> Vec<u8> {
    let page = Caching { write_cache, ..Caching::ZERO }.to_page();
    [&[0; Header6::BYTES][..], &page[..]].concat()
}

impl Initiator {
    /// Queries what MODE SELECT sets.
    pub(super) fn sense_modes(&mut self, now: Time, unit: usize) {
        let Some(place) = self.take(LIST_BYTES.into()) else { return };
        let cdb = ModeSense6::page_only(page::CACHING, LIST_BYTES).to_cdb();
        let id = self.start(unit, cdb, place, Places::EMPTY);
        let Some(id) = id else { return self.give(&place) };
        self.note(&[11, u64::from(id.slot)], || format!("command {} queries mode parameters", id.slot));
        let access = self.reservations.borrow_mut()[unit].access(self.index, false);
        self.sent(Task { access, ..Task::new(id, unit, Kind::Modes, place, now) }, false);
    }

    /// Requests that its gateway be the active one.
    pub(super) fn move_unit(&mut self, now: Time, unit: usize) {
        let group = self.paths.at as u16 + 1;
        let group = SetPortGroup { state: AccessState::Optimized.code(), group };
        let list = [&[0; 4][..], &group.to_bytes()].concat();
        let Some(place) = self.take(list.len() as u32) else { return };
        self.fill_place(&list, &place);
        let cdb = SetTargetPortGroups::new(list.len() as u32).to_cdb();
        let Some(id) = self.start(unit, cdb, Places::EMPTY, place) else { return self.give(&place) };
        let at = self.paths.at;
        self.note(&[12, u64::from(id.slot)], || {
            format!("command {} wants gateway {at} to be active", id.slot)
        });
        self.sent(Task::new(id, unit, Kind::Move, place, now), false);
    }

    pub(super) fn start(
        &mut self,
        unit: usize,
        cdb: Cdb,
        read: Places,
        write: Places,
    ) -> Option<proto::services::TaskId> {
        let request = Request { lun: (unit as u64) << 48, attribute: Attribute::Simple, cdb, read, write };
        self.link.as_mut().and_then(|link| link.machine.submit(request))
    }

    /// Checks how one of them has ended.
    pub(super) fn look_at_settings(
        &mut self,
        task: &Task,
        completion: &Completion,
        outcome: &str,
    ) -> Result<(), String> {
        match task.kind {
            Kind::Modes => {
                let is_known = outcome == GOOD_WORD && self.knows_since(task.began);
                let data = self.kernel.arena().to_vec(&task.places);
                let flags = data.get(Header6::BYTES + 2).filter(|_| is_known && completion.read_bytes > 0);
                let found = flags.map(|flags| flags & 0x04 != 0);
                self.reservations.borrow_mut()[task.unit].sensed(task.access, found)
            }
            Kind::Move if outcome == GOOD_WORD => {
                let truth = self.place.truth.as_ref();
                let was_active = truth.is_none_or(|truth| truth.borrow().held(self.paths.at, task.began));
                let was_active = was_active || self.is_unaware_since(task.began);
                let at = self.paths.at;
                was_active
                    .then_some(())
                    .ok_or_else(|| format!("gateway {at} was not active since an initiator requested it"))
            }
            _ => Ok(()),
        }
    }
}
