//! COMPARE AND WRITE, ORWRITE, UNMAP, VERIFY, WRITE AND VERIFY and WRITE SAME (SBC-3 sections 5.2, 5.5, 5.25, 5.27, 5.36 and
//! 5.40).

use super::{Initiator, Kind, Task};
use crate::register::{BLOCK_BYTES, Range, WriteId};
use proto::iscsi::initiator::Request;
use proto::services::Attribute;
use proto::time::Time;
use reactor::io::Io;
use wire::scsi::capacity::unmap_list;
use wire::scsi::command::{CompareAndWrite, OrWrite16, Unmap, Verify10, WriteAndVerify10, WriteSame10};
use wire::{Cdb, Places};

/// The most blocks of one of them.
const BLOCKS_MAX: u32 = 64;

/// A command ready to be sent.
pub(super) struct Ready<'a> {
    pub(super) what: &'a str,
    pub(super) range: Range,
    pub(super) kind: Kind,
    pub(super) compares: Option<WriteId>,
    pub(super) cdb: Cdb,
    pub(super) place: Places,
}

impl Initiator {
    /// Begins one of them, on a unit that supports them.
    pub(super) fn begin_other(&mut self) {
        // Of a unit with several paths, what all of them have in common as well.
        let kinds = if self.has_paths() { 14 } else { 9 };
        let (unit, which, flag, most, first) = {
            let rng = &mut self.net.borrow_mut().rng;
            let unit = rng.usize(0..self.place.units);
            (unit, rng.u32(0..kinds), rng.bool(), rng.u32(1..=BLOCKS_MAX), rng.u32(0..self.place.blocks))
        };
        if self.place.plain[unit] {
            return;
        }
        let now = self.kernel.now();
        if self.habits.duels {
            let range = Range { unit, first: 0, blocks: 1 };
            // Where all gateways are active, ORWRITE is not offered.
            return if which == 0 && !self.has_paths() { self.or(now, range) } else { self.swap(now, range) };
        }
        // Few blocks, or no two initiators would ever choose the same.
        let one = Range { unit, first: first % 4, blocks: 1 };
        let many = Range { unit, first, blocks: most.min(self.place.blocks - first) };
        match which {
            0..3 => self.swap(now, one),
            3 => self.unmap(now, many),
            4 => self.write_same(now, many, flag),
            5 => self.write_and_verify(now, many, flag),
            6 => self.verify(now, many),
            9..12 => self.sense_modes(now, unit),
            12.. => self.report_groups(now, unit),
            7 => self.ask_allocation(now, Range { blocks: self.place.blocks - first, ..many }),
            _ => self.verify_data(now, one),
        }
    }

    fn swap(&mut self, now: Time, range: Range) {
        let Some(place) = self.take(2 * BLOCK_BYTES) else { return };
        let (compares, mut bytes) = self.registers.borrow().guess(range);
        let (id, writes) = self.registers.borrow_mut().begin_write(now, self.index, range);
        bytes.extend(writes);
        self.fill_place(&bytes, &place);
        let cdb = CompareAndWrite::new(range.first.into(), 1).into();
        let (kind, compares) = (Kind::Write(range, id), Some(compares));
        self.send(now, Ready { what: "compares and writes", range, kind, compares, cdb, place });
    }

    /// ORWRITE of zeros: it reads and writes, and must not undo what others write meanwhile.
    fn or(&mut self, now: Time, range: Range) {
        let Some(place) = self.take(range.bytes()) else { return };
        self.fill_place(&vec![0; range.bytes() as usize], &place);
        let id = self.registers.borrow_mut().begin_rewrite(range);
        let (kind, cdb) = (Kind::Write(range, id), OrWrite16::new(range.first.into(), range.blocks).into());
        self.send(now, Ready { what: "changes nothing of", range, kind, compares: None, cdb, place });
    }

    fn unmap(&mut self, now: Time, range: Range) {
        let list = unmap_list(range.first.into(), range.blocks);
        let Some(place) = self.take(list.len() as u32) else { return };
        self.fill_place(&list, &place);
        let id = self.registers.borrow_mut().begin_zeros(now, self.index, range);
        let (kind, cdb) = (Kind::Write(range, id), Unmap::new(list.len() as u16).into());
        self.send(now, Ready { what: "unmaps", range, kind, compares: None, cdb, place });
    }

    /// Of zeros with the UNMAP bit, in which case a unit may treat it as UNMAP, or of something else.
    fn write_same(&mut self, now: Time, range: Range, unmaps: bool) {
        let Some(place) = self.take(BLOCK_BYTES) else { return };
        let (id, bytes) = if unmaps {
            let id = self.registers.borrow_mut().begin_zeros(now, self.index, range);
            (id, vec![0; BLOCK_BYTES as usize])
        } else {
            self.registers.borrow_mut().begin_same(now, self.index, range)
        };
        self.fill_place(&bytes, &place);
        let kind = Kind::Write(range, id);
        let cdb = WriteSame10 { unmap: unmaps, ..WriteSame10::new(range.first, range.blocks as u16) }.into();
        self.send(now, Ready { what: "writes the same to", range, kind, compares: None, cdb, place });
    }

    /// What it verifies is on the medium, and thus durable; with BYTCHK, others may have written meanwhile.
    fn write_and_verify(&mut self, now: Time, range: Range, compares: bool) {
        let Some(place) = self.take(range.bytes()) else { return };
        let kind = self.fill(now, range, (true, Attribute::Simple), &place);
        let whole = WriteAndVerify10::new(range.first, range.blocks as u16);
        let cdb = WriteAndVerify10 { byte_check: compares.into(), ..whole }.into();
        let compares = if let (Kind::Durable(_, id), true) = (kind, compares) { Some(id) } else { None };
        self.send(now, Ready { what: "writes and verifies", range, kind, compares, cdb, place });
    }

    fn verify(&mut self, now: Time, range: Range) {
        self.registers.borrow_mut().begin_read(now);
        let (kind, cdb, place) =
            (Kind::Read(range), Verify10::new(range.first, range.blocks as u16).into(), Places::EMPTY);
        self.send(now, Ready { what: "verifies", range, kind, compares: None, cdb, place });
    }

    /// If it ends with GOOD status, it has read what it is compared with.
    fn verify_data(&mut self, now: Time, range: Range) {
        let Some(place) = self.take(BLOCK_BYTES) else { return };
        let (compares, bytes) = self.registers.borrow().guess(range);
        self.fill_place(&bytes, &place);
        self.registers.borrow_mut().begin_read(now);
        let cdb = Verify10 { byte_check: 1, ..Verify10::new(range.first, range.blocks as u16) }.into();
        let (kind, compares) = (Kind::Read(range), Some(compares));
        self.send(now, Ready { what: "compares", range, kind, compares, cdb, place });
    }

    pub(super) fn send(&mut self, now: Time, ready: Ready<'_>) {
        let Ready { what, range, kind, compares, cdb, place } = ready;
        let unit = range.unit;
        let (lun, attribute) = ((unit as u64) << 48, Attribute::Simple);
        let (read, write) = match kind {
            Kind::Allocation(_) => (place, Places::EMPTY),
            _ => (Places::EMPTY, place),
        };
        let request = Request { lun, attribute, cdb, read, write };
        let taken = self.link.as_mut().and_then(|link| link.machine.submit(request));
        let Some(id) = taken else { return self.withdraw(now, kind, &place) };
        let (writes, write) = match kind {
            Kind::Write(_, write) | Kind::Durable(_, write) => (true, write.0),
            _ => (false, 0),
        };
        self.note(&[10, u64::from(id.slot), unit as u64, u64::from(range.first)], || {
            format!("command {} {what} {range:?}, write {write}, {compares:?}", id.slot)
        });
        let access = self.reservations.borrow_mut()[unit].access(self.index, writes);
        if compares.is_some() {
            self.registers.borrow_mut().begin_read(now);
        }
        self.meter.borrow_mut().begins(now);
        self.sent(Task { access, compares, ..Task::new(id, unit, kind, place, now) }, false);
    }
}
