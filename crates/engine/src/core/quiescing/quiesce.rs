//! How memory that RDMA may still access is kept until it is free, and what waits for that.

use super::Quiescing;
use crate::core::Core;
use crate::core::buffer::Purpose;
use crate::core::task::{State, Task};
use crate::message::{Message, Quiets, Requester};
use crate::slots::Key;
use proto::services::TaskId;
use reactor::io::Io;
use scsi::NexusId;
use wire::{Places, Span};

impl<I: Io> Core<I> {
    /// The task has ended: if its data is in transit by RDMA, its buffer stays allocated until the transport
    /// reports that it is free.
    pub(in crate::core) fn quiesce_buffer(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.is_transferring()) else { return };
        let (origin, unit, wire, purpose) = (task.origin, task.unit, task.wire, task.purpose);
        let Some(conn) = self.connections.get_mut(origin).filter(|conn| conn.machine.is_rdma()) else {
            return;
        };
        let buffer = std::mem::replace(&mut task.buffer, Places::EMPTY);
        conn.quiescing.push(Quiescing {
            task: wire,
            unit,
            buffer: Some((buffer, purpose)),
            since: self.io.now(),
        });
    }

    /// The same where there is no task: for a READ of this unit whose data was borrowed from the store or
    /// read to this buffer, or a command whose descriptors were still being read. Returns the buffer if
    /// nothing accesses it.
    pub(in crate::core) fn quiesce_transfer(
        &mut self,
        connection: Key,
        wire: TaskId,
        unit: u32,
        buffer: Option<Span>,
    ) -> Option<Span> {
        let now = self.io.now();
        let rdma = self.connections.get_mut(connection).filter(|conn| conn.machine.is_rdma());
        let Some(conn) = rdma else { return buffer };
        let buffer = buffer.map(|buffer| (Places::one(buffer), Purpose::Step));
        conn.quiescing.push(Quiescing { task: wire, unit, buffer, since: now });
        None
    }

    /// RDMA no longer accesses anything of this task, which has ended.
    pub(in crate::core) fn release_quiesced(&mut self, key: Key, wire: TaskId) {
        let Some(conn) = self.connections.get_mut(key) else { return };
        if let Some(index) = conn.quiescing.iter().position(|one| one.task == wire) {
            let one = conn.quiescing.swap_remove(index);
            self.release_quiescing(key, &one);
            self.report_quiesced();
        }
    }

    /// The connection has ended: releases everything kept for it.
    pub(in crate::core) fn release_all_quiescing(&mut self, key: Key, all: &[Quiescing]) {
        all.iter().for_each(|one| self.release_quiescing(key, one));
        self.report_quiesced();
    }

    fn release_quiescing(&mut self, key: Key, one: &Quiescing) {
        if let Some((buffer, purpose)) = &one.buffer {
            self.return_buffer(key, one.unit, buffer, *purpose);
        }
    }

    /// A function of this nexus must not be answered while RDMA of tasks that it has ended is in progress,
    /// here or on other channels: its initiator reuses its buffers after that.
    /// Nor while another gateway may execute what tasks requested that it has ended.
    pub(in crate::core) fn quiesce_nexus(&mut self, requester: Requester, quiets: Quiets) {
        self.functions.requesters.push((requester, quiets));
        self.report_quiesced();
    }

    pub(in crate::core) fn report_quiesced(&mut self) {
        let mut requesters = std::mem::take(&mut self.functions.requesters);
        requesters.retain(|(requester, quiets)| {
            let is_busy = self.is_busy(requester.nexus) || self.is_requesting(requester.nexus, quiets);
            if !is_busy {
                self.post(requester.core, Message::NexusQuiesced(*requester));
            }
            is_busy
        });
        self.functions.requesters = requesters;
    }

    /// Whether the request of an aborted task may yet be executed.
    fn is_requesting(&self, nexus: NexusId, quiets: &Quiets) -> bool {
        let is_its = |task: &Task| self.connections.get(task.origin).is_some_and(|conn| conn.nexus == nexus);
        let is_one = |task: &Task| {
            let is_meant = quiets.units.contains(&task.unit) && task.aborted && task.state == State::AtHome;
            is_meant && (quiets.of_all || is_its(task))
        };
        !quiets.units.is_empty() && self.tasks.iter().any(|(_, task)| is_one(task))
    }

    /// Whether RDMA of ended tasks of this nexus is in progress on this core.
    fn is_busy(&self, nexus: NexusId) -> bool {
        self.connections.iter().any(|(_, conn)| conn.nexus == nexus && !conn.quiescing.is_empty())
    }
}
