//! Completes requests to files when their time has come.

use super::{GRAIN_BYTES_MAX, Job, Kernel};
use crate::disk::{Blocks, EAGAIN, EINTR, ENOMEM, disk_at, disk_of, transfer_error};
use crate::register::BLOCK_BYTES;
use reactor::io::{Allocate, Errno, Handle, Tag};
use reactor::memory::Loan;
use wire::Places;

impl Kernel {
    /// Its process is killed: what it is writing is written in part, or not at all.
    pub(crate) fn die(&mut self) {
        for slot in 0..self.requests.len() {
            if let Job::Write { file, at, from, .. } =
                std::mem::replace(&mut self.requests[slot].job, Job::None)
            {
                self.write_in_part(file, at, from);
            }
        }
    }

    fn write_in_part(&mut self, file: Handle, at: u64, from: Places) {
        let blocks = self.net.borrow_mut().rng.u32(0..=from.len() / BLOCK_BYTES);
        let from = from.slice(0, blocks * BLOCK_BYTES);
        self.arena.copy_out(&from, self.net.borrow_mut().disk(file).write(at, from.len()));
    }

    /// How much of a request is done, in whole blocks of any disk.
    fn share(&mut self, len: u32) -> u32 {
        let mut net = self.net.borrow_mut();
        let (short, blocks) = (net.odds.short, len / GRAIN_BYTES_MAX);
        if blocks > 1 && net.happens(short) { net.rng.u32(1..blocks) * GRAIN_BYTES_MAX } else { len }
    }

    fn fails(&mut self, writes: bool) -> Option<Errno> {
        let net = &mut *self.net.borrow_mut();
        let odds = net.faults.transfer;
        net.happens(odds).then(|| transfer_error(&mut net.rng, writes))
    }

    pub(super) fn read_now_from(&mut self, file: Handle, at: u64, into: Places) -> Result<u32, Errno> {
        let fails = self.fails(false);
        let len = self.share(into.len());
        if fails.is_none() {
            let net = self.net.borrow();
            self.arena.copy_in(disk_at(&net.disks, file).read(at, len), &into.slice(0, len));
        }
        self.unlend(into.iter(), Loan::Write);
        fails.map_or(Ok(len), Err)
    }

    pub(super) fn write_now_to(
        &mut self,
        file: Handle,
        at: u64,
        from: Places,
        durable: bool,
    ) -> Result<u32, Errno> {
        let result = match self.fails(true) {
            Some(errno @ (EINTR | EAGAIN | ENOMEM)) => Err(errno),
            Some(errno) => {
                self.write_in_part(file, at, from);
                if durable {
                    // What else it was to sync is lost with it.
                    let dirty = self.net.borrow_mut().disk(file).dirty();
                    self.sync_fails(file, &dirty)
                } else {
                    Err(errno)
                }
            }
            None => self.write_all(file, at, from, durable),
        };
        self.unlend(from.iter(), Loan::Read);
        result
    }

    fn write_all(&mut self, file: Handle, at: u64, from: Places, durable: bool) -> Result<u32, Errno> {
        let len = self.share(from.len());
        let from = from.slice(0, len);
        let net = &mut *self.net.borrow_mut();
        let odds = net.faults.write_back;
        let is_lost = net.happens(odds);
        let disk = disk_of(&mut net.disks, file);
        if let Some(ethernet) =
            net.ethernet.as_mut().filter(|ethernet| !ethernet.ended.is_empty() && !net.faults.can_fail())
        {
            ethernet.look_at_write(&self.arena.to_vec(&from), disk.read(at, from.len()));
        }
        self.arena.copy_out(&from, disk.write(at, len));
        if durable {
            disk.write_through(net.now, at, len)?;
        }
        if is_lost {
            disk.write_back_fails(&mut net.rng, &mut net.losses);
        }
        Ok(len)
    }

    pub(super) fn sync_now(&mut self, file: Handle, dirty: &Blocks) -> Result<u32, Errno> {
        let fails = {
            let mut net = self.net.borrow_mut();
            let odds = net.faults.sync;
            net.happens(odds)
        };
        if fails {
            return self.sync_fails(file, dirty);
        }
        let net = &mut *self.net.borrow_mut();
        disk_of(&mut net.disks, file).synced(net.now, dirty).map(|()| 0)
    }

    fn sync_fails(&mut self, file: Handle, dirty: &Blocks) -> Result<u32, Errno> {
        let net = &mut *self.net.borrow_mut();
        let disk = disk_of(&mut net.disks, file);
        Err(disk.sync_failed(net.now, &mut net.rng, dirty, &mut net.losses))
    }

    pub(super) fn clear_now(&mut self, file: Handle, at: u64, len: u64, how: Allocate) -> Result<u32, Errno> {
        if let Some(errno) = self.fails(true) {
            return Err(errno);
        }
        self.net.borrow_mut().disk(file).clear(at, len, how == Allocate::PunchHole);
        Ok(0)
    }

    pub(super) fn find_extent(&mut self, file: Handle, at: u64) -> Result<(bool, u64), Errno> {
        match self.fails(false) {
            Some(errno) => Err(errno),
            None => Ok(disk_at(&self.net.borrow().disks, file).extent(at)),
        }
    }

    /// Submits a job to a disk, which takes its time.
    pub(super) fn ask_disk(&mut self, tag: Tag, job: Job) {
        let mut net = self.net.borrow_mut();
        let (slow, hang) = (net.odds.slow, net.faults.hang);
        let most = if net.happens(slow) { 200_000_000 } else { 250_000 };
        let most = if net.slow_since.is_some() { most.max(3_000_000) } else { most };
        let most = if net.happens(hang) { 20_000_000_000 } else { most };
        let after = net.nanos(8_000, most);
        drop(net);
        self.begin(tag, job, after);
    }
}
