//! What is sent: requests, and responses to requests of the target.

use super::task::Task;
use super::{IMMEDIATE_OFFSET, Initiator, Phase};
use crate::message::{Access, Advertised, Full, Post, WorkId};
use crate::services::{Attribute, FunctionId, TaskId};
use wire::srp::{
    self, AsyncEventResponse, CreditResponse, Descriptor, Direct, InitiatorLogout, Opcode, TaskAttribute,
    TaskFunction, TaskManagement,
};
use wire::{Cdb, Places};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U64;

/// Tags from here on belong to task management requests.
pub(super) const FUNCTION_TAGS: u64 = 1 << 32;
/// Tag of the ping, and of the nonexistent task that it asks to abort.
pub(super) const PING_TAG: u64 = u64::MAX;
/// The longest header: a command with the longest CDB and two descriptors.
pub(super) const HEADER_BYTES_MAX: usize = 48 + (Cdb::MAX - CDB_BYTES) + 2 * DESCRIPTOR_BYTES;
/// Length of a memory descriptor.
const DESCRIPTOR_BYTES: usize = 16;
/// Work of messages that nothing waits for.
const MESSAGE: WorkId = WorkId(u64::MAX);
/// The CDB bytes that a command always has.
const CDB_BYTES: usize = 16;

/// A message that is not a command.
#[derive(Clone, Copy, Debug)]
pub(super) enum Control {
    Function {
        id: FunctionId,
        lun: u64,
        function: TaskFunction,
        referenced: Option<TaskId>,
    },
    CreditResponse {
        tag: u64,
    },
    AsyncEventResponse {
        tag: u64,
    },
    /// SRP has no ping; aborting a task that does not exist is harmless.
    Ping,
    Logout,
}

impl Initiator {
    /// Whether there is a credit for a command.
    pub(super) fn may_send_command(&self) -> bool {
        matches!(self.phase, Phase::Full) && self.request_limit > self.link.reserve
    }

    /// Whether the next message that is not a command may be sent.
    pub(super) fn owes_control(&self) -> bool {
        match self.control.front() {
            None => false,
            Some(Control::Function { .. } | Control::Ping) => self.request_limit > 0,
            Some(Control::CreditResponse { .. } | Control::AsyncEventResponse { .. } | Control::Logout) => {
                true
            }
        }
    }

    /// Posts what is owed.
    pub(super) fn send(&mut self, to: &mut dyn Post) {
        while let Some(place) = self.freed.pop() {
            to.release(place);
        }
        while let Some(id) = self.ended.pop_front() {
            if let Some(task) = self.tasks.get(id) {
                if let Some(ended) = &mut task.ended {
                    // Whatever the residuals say.
                    let moved = |buffer: Option<Advertised>| buffer.map_or(u32::MAX, |it| to.moved(it.stag));
                    ended.read_bytes = ended.read_bytes.min(moved(task.read));
                    ended.write_bytes = ended.write_bytes.min(moved(task.write));
                }
                // What the target has read, and has not been sent in full, stays borrowed until it has.
                for buffer in [&mut task.read, &mut task.write] {
                    buffer.take_if(|buffer| to.invalidate(buffer.stag));
                }
            }
            self.complete(id);
        }
        self.report_answers();
        while self.owes_control() {
            let Some(control) = self.control.front().copied() else { return };
            if self.post_control(control, to).is_err() {
                return;
            }
            self.control.pop_front();
        }
        while self.may_send_command() {
            let Some(id) = self.commands.front().copied() else { return };
            if self.post_command(id, to).is_err() {
                return;
            }
            self.commands.pop_front();
        }
    }

    /// Reports a command that has ended, when its message has been sent and its buffers are no longer
    /// advertised.
    pub(super) fn complete(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        let Some(completion) = task.ended else { return };
        if !task.is_leaving && task.read.is_none() && task.write.is_none() {
            self.tasks.release(id);
            self.events.push_back(super::Event::Completed(completion));
        }
    }

    /// Reports functions that were answered, once all commands that have ended were reported.
    pub(super) fn report_answers(&mut self) {
        if !self.answered.is_empty() && !self.tasks.has_unreported() {
            self.events.append(&mut self.answered);
        }
    }

    /// A message has been sent.
    pub(super) fn sent(&mut self, work: WorkId) {
        if let Some(id) = Task::of_tag(work.0)
            && let Some(task) = self.tasks.get(id)
        {
            task.is_leaving = false;
            self.complete(id);
            self.report_answers();
        }
    }

    fn post_control(&mut self, control: Control, to: &mut dyn Post) -> Result<(), Full> {
        let mut post = |bytes: &[u8]| to.send(MESSAGE, bytes, Places::EMPTY, false, None);
        match control {
            Control::Function { id, lun, function, referenced } => {
                let request = TaskManagement {
                    opcode: Opcode::TASK_MANAGEMENT,
                    tag: U64::new(FUNCTION_TAGS.saturating_add(u64::from(id.0))),
                    lun: U64::new(lun),
                    function,
                    task_tag: U64::new(referenced.map_or(0, Task::tag)),
                    ..TaskManagement::default()
                };
                post(request.as_bytes())?;
                self.request_limit = self.request_limit.saturating_sub(1);
                let sent = self.tasks.sent();
                self.functions
                    .iter_mut()
                    .filter(|function| function.id == id)
                    .for_each(|it| it.before = sent);
                Ok(())
            }
            Control::Ping => {
                let request = TaskManagement {
                    opcode: Opcode::TASK_MANAGEMENT,
                    tag: U64::new(PING_TAG),
                    function: TaskFunction::ABORT_TASK,
                    task_tag: U64::new(PING_TAG),
                    ..TaskManagement::default()
                };
                post(request.as_bytes())?;
                self.request_limit = self.request_limit.saturating_sub(1);
                Ok(())
            }
            Control::CreditResponse { tag } => {
                let (opcode, tag) = (Opcode::CREDIT_RESPONSE, U64::new(tag));
                post(CreditResponse { opcode, tag, ..CreditResponse::default() }.as_bytes())
            }
            Control::AsyncEventResponse { tag } => {
                let (opcode, tag) = (Opcode::ASYNC_EVENT_RESPONSE, U64::new(tag));
                post(AsyncEventResponse { opcode, tag, ..AsyncEventResponse::default() }.as_bytes())
            }
            Control::Logout => {
                let opcode = Opcode::INITIATOR_LOGOUT;
                post(InitiatorLogout { opcode, ..InitiatorLogout::default() }.as_bytes())
            }
        }
    }

    fn post_command(&mut self, id: TaskId, to: &mut dyn Post) -> Result<(), Full> {
        let link = self.link;
        // An abort may have ended it before.
        let Some(task) = self.tasks.get(id).filter(|task| task.ended.is_none()) else { return Ok(()) };
        let request = task.request;
        advertise(&mut task.read, request.read, Access::Write, to)?;
        let offset = u32::from(IMMEDIATE_OFFSET);
        let whole = offset.checked_add(request.write.len());
        let is_immediate = link.immediate
            && !request.write.is_empty()
            && request.read.is_empty()
            && whole.is_some_and(|whole| whole <= link.max_it_iu_bytes)
            && request.cdb.as_bytes().len() <= CDB_BYTES.saturating_mul(2);
        let mut header = Header::new(id, request.lun, request.attribute, &request.cdb);
        let payload = if is_immediate {
            header.immediate(request.write.len());
            request.write
        } else {
            advertise(&mut task.write, request.write, Access::Read, to)?;
            header.describe(task.write, request.write.len(), 4);
            Places::EMPTY
        };
        header.describe(task.read, request.read.len(), 0);
        to.send(WorkId(Task::tag(id)), header.bytes(), payload, false, None)?;
        self.tasks.post(id);
        self.request_limit = self.request_limit.saturating_sub(1);
        Ok(())
    }
}

/// Lets the target access the places of one direction, if it may not yet. They are one buffer, however many
/// pieces there are: each buffer would cost the target a separate RDMA operation.
fn advertise(
    buffer: &mut Option<Advertised>,
    places: Places,
    access: Access,
    to: &mut dyn Post,
) -> Result<(), Full> {
    if buffer.is_none() && !places.is_empty() {
        *buffer = Some(to.advertise(places, access)?);
    }
    Ok(())
}

/// An SRP_CMD being built.
struct Header {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
}

impl Header {
    fn new(id: TaskId, lun: u64, attribute: Attribute, cdb: &Cdb) -> Header {
        let (first, additional) = cdb.as_bytes().split_at_checked(CDB_BYTES).unwrap_or((cdb.as_bytes(), &[]));
        let padded = additional.len().next_multiple_of(4);
        let mut head = srp::Command {
            opcode: Opcode::COMMAND,
            tag: U64::new(Task::tag(id)),
            lun: U64::new(lun),
            task_attr: task_attribute(attribute).0,
            add_cdb_len: u8::try_from(padded).unwrap_or(0),
            ..srp::Command::default()
        };
        for (place, byte) in head.cdb.iter_mut().zip(first) {
            *place = *byte;
        }
        let mut header = Header { bytes: [0; HEADER_BYTES_MAX], len: 0 };
        header.extend(head.as_bytes());
        header.extend(additional);
        header.len = header.len.next_multiple_of(4);
        header
    }

    /// The formats of the descriptors are in one byte.
    fn format(&mut self, bits: u8) {
        if let Some(formats) = self.bytes.get_mut(5) {
            *formats |= bits;
        }
    }

    fn immediate(&mut self, len: u32) {
        self.format(Descriptor::IMMEDIATE << 4);
        self.extend(&len.to_be_bytes());
        self.len = usize::from(IMMEDIATE_OFFSET);
    }

    /// The buffer of one direction, whose format begins at bit `shift`.
    fn describe(&mut self, buffer: Option<Advertised>, len: u32, shift: u8) {
        if let Some(Advertised { stag, offset }) = buffer {
            self.format(Descriptor::DIRECT << shift);
            self.extend(Direct::new(offset, stag, len).as_bytes());
        }
    }

    fn extend(&mut self, piece: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.len).zip(piece) {
            *place = *byte;
        }
        self.len = self.len.saturating_add(piece.len());
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

fn task_attribute(attribute: Attribute) -> TaskAttribute {
    match attribute {
        Attribute::Simple => TaskAttribute::SIMPLE,
        Attribute::HeadOfQueue => TaskAttribute::HEAD_OF_QUEUE,
        Attribute::Ordered => TaskAttribute::ORDERED,
        Attribute::Aca => TaskAttribute::ACA,
        Attribute::Unknown(other) => TaskAttribute(other & TaskAttribute::MASK),
    }
}
