//! A store that executes operations in any order, as a device or another target does: operations on the same
//! blocks are ordered only if the caller waits.

use reactor::io::{Completion, Handle, Io, Tag};
use scsi::storage::{Found, StoreError, Traits};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use store::lane::{Backend, Lane, Op, OpId, Outcome, Store, Submitted};
use wire::{Places, Span};

/// Most outstanding operations per lane.
const OPERATIONS_MAX: usize = 4096;

/// A device: a kernel file, without the ordering that the file store adds.
pub(crate) struct Device {
    pub(crate) file: File,
    pub(crate) size_bytes: u64,
}

impl Device {
    fn handle(&self) -> Handle {
        Handle(self.file.as_raw_fd())
    }
}

impl Store for Device {
    fn traits(&self) -> Traits {
        Traits { size_bytes: self.size_bytes, volatile_cache: true, ..Traits::NONE }
    }

    fn refresh(&self) -> Result<Option<Traits>, String> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "a device".into()
    }
}

impl<I: Io> Backend<I> for Device {
    fn lane(self: Arc<Self>, tags: Tag) -> Box<dyn Lane<I>> {
        Box::new(DeviceLane { device: self, tags, under_way: Vec::new() })
    }
}

struct DeviceLane {
    device: Arc<Device>,
    tags: Tag,
    /// The purpose of each request.
    under_way: Vec<Option<Transfer>>,
}

/// The rest of an operation.
#[derive(Clone, Copy)]
enum Transfer {
    Read { id: OpId, at: u64, into: Places },
    Write { id: OpId, at: u64, from: Places, durable: bool },
    Sync { id: OpId },
}

impl Transfer {
    fn of(id: OpId, op: &Op) -> Option<Transfer> {
        match *op {
            Op::Read { offset: at, into } => Some(Transfer::Read { id, at, into }),
            Op::Write { offset: at, from, durable, .. } => Some(Transfer::Write { id, at, from, durable }),
            Op::Flush => Some(Transfer::Sync { id }),
            Op::Zero { .. }
            | Op::Discard { .. }
            | Op::CompareAndWrite { .. }
            | Op::OrWrite { .. }
            | Op::Compare { .. }
            | Op::Extent { .. } => None,
        }
    }

    fn issue<I: Io>(&self, io: &mut I, file: Handle, tag: Tag) {
        match *self {
            Transfer::Read { at, into, .. } => io.read(file, at, &into, tag),
            Transfer::Write { at, from, durable, .. } => io.write(file, at, &from, durable, tag),
            Transfer::Sync { .. } => io.sync(file, tag),
        }
    }

    fn failed(self) -> (OpId, Outcome) {
        match self {
            Transfer::Read { id, at, .. } => (id, Err(StoreError::ReadFailed { at })),
            Transfer::Write { id, .. } | Transfer::Sync { id } => (id, Err(StoreError::WriteFailed)),
        }
    }

    /// What is left after this many bytes were moved; if nothing, the operation it belongs to.
    fn moved(self, bytes: u32) -> Result<Transfer, OpId> {
        let on = |at: u64| at + u64::from(bytes);
        match self {
            Transfer::Read { id, at, into } if bytes < into.len() => {
                Ok(Transfer::Read { id, at: on(at), into: into.slice(bytes, u32::MAX) })
            }
            Transfer::Write { id, at, from, durable } if bytes < from.len() => {
                Ok(Transfer::Write { id, at: on(at), from: from.slice(bytes, u32::MAX), durable })
            }
            Transfer::Read { id, .. } | Transfer::Write { id, .. } | Transfer::Sync { id } => Err(id),
        }
    }
}

impl<I: Io> Lane<I> for DeviceLane {
    fn borrow(&mut self, _offset: u64, _len: u32) -> Option<Span> {
        None
    }

    fn submit(&mut self, io: &mut I, id: OpId, op: &Op) -> Submitted {
        let free = self.under_way.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.under_way.len());
        if slot == OPERATIONS_MAX {
            return Submitted::Done(Err(StoreError::Busy));
        }
        let Some(transfer) = Transfer::of(id, op) else {
            return Submitted::Done(Err(StoreError::Unsupported));
        };
        if slot == self.under_way.len() {
            self.under_way.push(None);
        }
        self.under_way[slot] = Some(transfer);
        transfer.issue(io, self.device.handle(), Tag(self.tags.0 + slot as u64));
        Submitted::Later
    }

    fn completed(&mut self, io: &mut I, completion: Completion, done: &mut Vec<(OpId, Outcome)>) {
        let slot = (completion.tag.0 - self.tags.0) as usize;
        let transfer = self.under_way[slot].take().expect("a completion is of a request");
        let bytes = match completion.result {
            Ok(bytes) => bytes,
            Err(_) => return done.push(transfer.failed()),
        };
        match transfer.moved(bytes) {
            Ok(rest) => {
                rest.issue(io, self.device.handle(), completion.tag);
                self.under_way[slot] = Some(rest);
            }
            Err(id) => done.push((id, Ok(Found::Nothing))),
        }
    }

    fn flush(&mut self, _io: &mut I, _done: &mut Vec<(OpId, Outcome)>) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        self.under_way.iter().flatten().count()
    }
}
