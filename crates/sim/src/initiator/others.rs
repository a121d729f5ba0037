//! COMPARE AND WRITE and UNMAP (SBC-3 sections 5.2 and 5.25).

use super::{Initiator, Kind, Task};
use crate::register::{BLOCK_BYTES, Range, WriteId};
use proto::iscsi::initiator::Request;
use proto::time::Time;
use proto::verbs::Attribute;
use reactor::io::Io;
use wire::{Cdb, Places};

/// The most blocks of one UNMAP.
const UNMAP_BLOCKS_MAX: u32 = 64;

impl Initiator {
    /// Begins one of them, of a unit that does them.
    pub(super) fn begin_other(&mut self) {
        let (unit, swaps, most, first) = {
            let rng = &mut self.net.borrow_mut().rng;
            let unit = rng.usize(0..self.place.units);
            (unit, rng.bool(), rng.u32(1..=UNMAP_BLOCKS_MAX), rng.u32(0..self.place.blocks))
        };
        if self.place.plain[unit] {
            return;
        }
        let now = self.kernel.now();
        if swaps {
            // Few blocks, or no two would ever want the same.
            self.swap(now, Range { unit, first: first % 4, blocks: 1 });
        } else {
            self.unmap(now, Range { unit, first, blocks: most.min(self.place.blocks - first) });
        }
    }

    fn swap(&mut self, now: Time, range: Range) {
        let Some(place) = self.take(2 * BLOCK_BYTES) else { return };
        let (compares, mut bytes) = self.registers.borrow().guess(range);
        let (id, writes) = self.registers.borrow_mut().begin_write(now, self.index, range);
        bytes.extend(writes);
        self.put(&bytes, &place);
        let [a, b, c, d] = range.first.to_be_bytes();
        let cdb = [0x89, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 1, 0, 0];
        self.send(now, range, id, Some(compares), &cdb, place);
    }

    fn unmap(&mut self, now: Time, range: Range) {
        const LIST_BYTES: u8 = 24;
        let Some(place) = self.take(LIST_BYTES.into()) else { return };
        let mut list = vec![0, LIST_BYTES - 2, 0, LIST_BYTES - 8, 0, 0, 0, 0];
        list.extend(u64::from(range.first).to_be_bytes());
        list.extend(range.blocks.to_be_bytes());
        list.extend([0; 4]);
        self.put(&list, &place);
        let id = self.registers.borrow_mut().begin_zeros(now, self.index, range);
        self.send(now, range, id, None, &[0x42, 0, 0, 0, 0, 0, 0, 0, LIST_BYTES, 0], place);
    }

    fn send(
        &mut self,
        now: Time,
        range: Range,
        write: WriteId,
        compares: Option<WriteId>,
        cdb: &[u8],
        place: Places,
    ) {
        let (unit, kind) = (range.unit, Kind::Write(range, write));
        let cdb = Cdb::from_bytes(cdb).expect("a CDB");
        let (lun, attribute, read) = ((unit as u64) << 48, Attribute::Simple, Places::EMPTY);
        let request = Request { lun, attribute, cdb, read, write: place };
        let taken = self.link.as_mut().and_then(|link| link.machine.submit(request));
        let Some(id) = taken else { return self.give_up(now, kind, &place) };
        let what = compares.map_or("unmaps", |_| "compares and writes");
        self.note(&[10, u64::from(id.slot), unit as u64, u64::from(range.first)], || {
            format!("command {} {what} {range:?}, write {}, {compares:?}", id.slot, write.0)
        });
        let access = self.reservations.borrow_mut()[unit].access(self.index, true);
        let is_aborting = false;
        if compares.is_some() {
            self.registers.borrow_mut().begin_read(now);
        }
        self.tasks.push(Task { id, unit, kind, places: place, began: now, access, compares, is_aborting });
    }
}
