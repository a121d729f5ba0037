//! Incoming headers, and SCSI commands.

use super::IMMEDIATE_MAX;
use super::layer::{Data, Incoming, Layer, Phase};
use super::session::CmdSnPosition;
use super::task::Arrival;
use super::violation::{Reaction, Violation};
use crate::services::{Attribute, Command, Termination, Up};
use wire::Cdb;
use wire::iscsi::{
    Ahs, BHS_BYTES, BasicHeader, LoginResponse, LoginStatus, LogoutRequest, NopOut, Opcode, Pdu, ScsiCommand,
    TAG_NONE, TaskManagementRequest, TextRequest,
};
use zerocopy::IntoBytes as _;

impl Layer {
    /// Handles the whole header of a PDU; `incoming` is where its data segment goes.
    pub(crate) fn header(&mut self, header: &[u8]) {
        self.incoming = Incoming::Nothing;
        if let Err(violation) = self.validate(header) {
            self.refuse(violation, header);
        }
    }

    /// A violation that concerns the whole PDU.
    fn refuse(&mut self, violation: Violation, header: &[u8]) {
        match violation.reaction() {
            Reaction::Reject(reason) => {
                self.report_refusal(violation);
                self.note_gap(header);
                self.reject(reason, header);
                self.skip_data(header);
            }
            Reaction::Drop if violation == Violation::NotLogin => self.refuse_login(),
            // There is no known task to end.
            Reaction::EndTask(..) | Reaction::Drop => self.drop_for(violation),
        }
    }

    /// A numbered request that is rejected leaves a gap (section 7.3).
    pub(super) fn note_gap(&mut self, header: &[u8]) {
        let cmd_sn = match BasicHeader::view(header) {
            Some(basic) if basic.opcode & Opcode::IMMEDIATE != 0 => None,
            Some(basic) => match basic.opcode() {
                Opcode::SCSI_COMMAND => ScsiCommand::view(header).map(|pdu| pdu.cmd_sn.get()),
                Opcode::NOP_OUT => NopOut::view(header).map(|pdu| pdu.cmd_sn.get()),
                Opcode::TASK_MANAGEMENT_REQUEST => {
                    TaskManagementRequest::view(header).map(|pdu| pdu.cmd_sn.get())
                }
                Opcode::TEXT_REQUEST => TextRequest::view(header).map(|pdu| pdu.cmd_sn.get()),
                Opcode::LOGOUT_REQUEST => LogoutRequest::view(header).map(|pdu| pdu.cmd_sn.get()),
                _ => None,
            },
            None => None,
        };
        if let Some(cmd_sn) = cmd_sn {
            self.session.reject(cmd_sn);
        }
    }

    /// Once a login has begun, anything but a login request is answered before the connection ends (section 4.2.4).
    pub(super) fn refuse_login(&mut self) {
        let Phase::Login { login, .. } = &self.phase else { return };
        let Some(begun) = login.begun() else { return self.drop_for(Violation::NotLogin) };
        // It ends the login task, which has the tag of its requests.
        let pdu = LoginResponse {
            isid: begun.isid,
            initiator_task_tag: begun.initiator_task_tag,
            status: LoginStatus::INVALID_DURING_LOGIN,
            ..LoginResponse::default()
        };
        self.queue(pdu.as_bytes(), Vec::new(), true);
        self.phase = Phase::Closing(Violation::NotLogin.to_string());
    }

    /// A violation that leaves the connection open is reported for the log.
    pub(super) fn report_refusal(&mut self, violation: Violation) {
        self.up.push_back(Up::Refused { reason: violation.to_string() });
    }

    /// Discards the data segment of this PDU.
    pub(super) fn skip_data(&mut self, header: &[u8]) {
        let len = BasicHeader::view(header).map_or(0, |basic| basic.data_segment_length.get());
        if len > 0 {
            self.incoming = Incoming::Skip { len, data: None };
        }
    }

    fn validate(&mut self, header: &[u8]) -> Result<(), Violation> {
        let Some(basic) = BasicHeader::view(header) else { return Ok(()) };
        let opcode = basic.opcode();
        let len = basic.data_segment_length.get();
        let login = matches!(self.phase, Phase::Login { .. });
        if login && opcode != Opcode::LOGIN_REQUEST {
            return Err(Violation::NotLogin);
        }
        if len > self.link.max_recv {
            return Err(Violation::DataSegmentTooLong);
        }
        if opcode == Opcode::SCSI_COMMAND {
            let Some(pdu) = ScsiCommand::view(header) else { return Ok(()) };
            return self.command(pdu, header).inspect_err(|_| self.forget_unless_last(pdu));
        }
        if basic.total_ahs_length != 0 {
            return Err(Violation::AdditionalHeader);
        }
        match opcode {
            Opcode::DATA_OUT => self.data_out(header),
            Opcode::NOP_OUT => NopOut::view(header).map_or(Ok(()), |pdu| self.nop_out(pdu, header, len)),
            Opcode::TASK_MANAGEMENT_REQUEST => {
                no_data(len)?;
                TaskManagementRequest::view(header).map_or(Ok(()), |pdu| self.task_management(pdu))
            }
            Opcode::LOGIN_REQUEST if login => {
                self.gather(header, len);
                Ok(())
            }
            Opcode::LOGIN_REQUEST => Err(Violation::LoginInFullFeaturePhase),
            Opcode::TEXT_REQUEST => {
                TextRequest::view(header).map_or(Ok(()), |pdu| self.text_request(pdu, header, len))
            }
            Opcode::LOGOUT_REQUEST => {
                no_data(len)?;
                LogoutRequest::view(header).map_or(Ok(()), |pdu| self.logout(pdu))
            }
            Opcode::SNACK => Err(Violation::Snack),
            _ => Err(Violation::UnknownOpcode),
        }
    }

    /// Whether a numbered request is to be executed now; `false`: it is silently ignored (section 4.2.2.1).
    #[inline]
    pub(super) fn in_order(&self, immediate: bool, cmd_sn: u32) -> Result<bool, Violation> {
        if immediate {
            return Ok(true);
        }
        match self.session.position(cmd_sn) {
            CmdSnPosition::Next => Ok(true),
            CmdSnPosition::BehindRejected => Err(Violation::BehindRejected),
            CmdSnPosition::Gap => Err(Violation::CommandGap),
            CmdSnPosition::Outside => Ok(false),
        }
    }

    fn command(&mut self, pdu: &ScsiCommand, header: &[u8]) -> Result<(), Violation> {
        let segments = header.get(BHS_BYTES..).unwrap_or_default();
        match self.examine(pdu, || shape(pdu, segments))? {
            Some((cdb, examined)) => self.start(pdu, cdb, examined),
            None => {
                self.forget_unless_last(pdu);
                self.skip_data(header);
                Ok(())
            }
        }
    }

    /// The transfer that a command requests, with what its `shape` is derived from: data-in length and
    /// data-out length. `None`: it is silently ignored.
    #[inline]
    pub(super) fn examine<C>(
        &self,
        pdu: &ScsiCommand,
        shape: impl FnOnce() -> Result<(C, u32, u32), Violation>,
    ) -> Result<Option<(C, Examined)>, Violation> {
        let immediate = pdu.opcode & Opcode::IMMEDIATE != 0;
        let tag = pdu.initiator_task_tag.get();
        if self.link.discovery {
            return Err(Violation::NotInDiscovery);
        }
        if !self.in_order(immediate, pdu.cmd_sn.get())? {
            return Ok(None);
        }
        if tag == TAG_NONE {
            return Err(Violation::ReservedTag);
        }
        if self.tasks.find(tag).is_some() || self.functions.iter().any(|function| function.tag == tag) {
            return Err(Violation::TaskInProgress);
        }
        if !pdu.last() && !pdu.writes() {
            return Err(Violation::FinalMissing);
        }
        let (cdb, read_bytes, write_bytes) = shape()?;
        if immediate && self.immediate_in_flight >= IMMEDIATE_MAX {
            return Err(Violation::TooManyImmediate);
        }
        let len = pdu.data_segment_length.get();
        let burst = write_bytes.min(self.link.first_burst);
        let unexpected =
            len > burst || (len > 0 && !self.link.immediate_data) || (!pdu.last() && self.link.initial_r2t);
        let unsolicited_end = if pdu.last() { len } else { burst };
        Ok(Some((cdb, Examined { immediate, read_bytes, write_bytes, unsolicited_end, unexpected })))
    }

    /// The unsolicited Data-Out of a command that is not accepted is discarded as well.
    fn forget_unless_last(&mut self, pdu: &ScsiCommand) {
        if !pdu.last() {
            self.forget(pdu.initiator_task_tag.get());
        }
    }

    /// Gives the command a slot, and passes it to the engine.
    fn start(&mut self, pdu: &ScsiCommand, cdb: Cdb, examined: Examined) -> Result<(), Violation> {
        let Examined { immediate, read_bytes, write_bytes, unsolicited_end, unexpected } = examined;
        let len = pdu.data_segment_length.get();
        let task = Arrival {
            initiator_task_tag: pdu.initiator_task_tag.get(),
            immediate,
            bidirectional: pdu.reads() && pdu.writes(),
            given: !unexpected,
            lun: pdu.lun.get(),
            expected: pdu.expected_data_transfer_length.get(),
            read_bytes,
            write_bytes,
            unsolicited_end,
            unsolicited_open: !pdu.last(),
        };
        let id = self.tasks.take(task).ok_or(Violation::TooManyImmediate)?;
        if immediate {
            self.immediate_in_flight = self.immediate_in_flight.saturating_add(1);
        } else {
            self.session.receive(true);
        }
        let data = Data { task: id, len, last: false, immediate: true };
        let command = Command {
            task: id,
            lun: pdu.lun.get(),
            attribute: attribute(pdu.flags),
            cdb,
            read_bytes,
            write_bytes,
            unsolicited_bytes: unsolicited_end,
        };
        if unexpected {
            if len > 0 {
                self.incoming = Incoming::Skip { len, data: Some(data) };
            }
            self.fail(id, Violation::UnexpectedUnsolicited);
            if let Some(sense) = self.tasks.get(id).and_then(|task| task.ending?.sense) {
                let how = Termination::Sense(Box::new(sense));
                self.up.push_back(Up::Terminated { command: Box::new(command), how });
            }
            return Ok(());
        }
        if len > 0 {
            self.incoming = Incoming::Unplaced(data);
        }
        self.up.push_back(Up::Command(command));
        Ok(())
    }

    /// Gathers the text or ping data of this request before it is executed.
    pub(super) fn gather(&mut self, header: &[u8], len: u32) {
        if len == 0 {
            return self.request(header, &[]);
        }
        self.incoming = Incoming::Text { len };
    }
}

/// The transfer of a command that is to be executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Examined {
    pub immediate: bool,
    pub read_bytes: u32,
    pub write_bytes: u32,
    /// The end of the unsolicited data-out.
    pub unsolicited_end: u32,
    /// It is sent though it is not allowed.
    pub unexpected: bool,
}

/// The command's CDB, data-in length and data-out length.
fn shape(pdu: &ScsiCommand, segments: &[u8]) -> Result<(Cdb, u32, u32), Violation> {
    let ahs = if segments.is_empty() {
        Ahs::default()
    } else {
        Ahs::parse(segments, &pdu.cdb).map_err(Violation::AdditionalSegment)?
    };
    let cdb = match ahs.cdb {
        Some(cdb) => cdb,
        None => Cdb::from_bytes(&pdu.cdb).ok_or(Violation::AdditionalHeader)?,
    };
    let (read_bytes, write_bytes) = lengths(pdu, ahs.bidirectional_read_length)?;
    Ok((cdb, read_bytes, write_bytes))
}

/// Data-in length and data-out length.
#[inline]
pub(super) fn lengths(pdu: &ScsiCommand, bidirectional: Option<u32>) -> Result<(u32, u32), Violation> {
    let expected = pdu.expected_data_transfer_length.get();
    match (pdu.reads(), pdu.writes()) {
        (true, true) => Ok((bidirectional.ok_or(Violation::BidirectionalLengthMissing)?, expected)),
        (true, false) => Ok((expected, 0)),
        (false, true) => Ok((0, expected)),
        (false, false) => Ok((0, 0)),
    }
}

#[inline]
pub(super) fn attribute(flags: u8) -> Attribute {
    match flags & ScsiCommand::ATTRIBUTE_MASK {
        ScsiCommand::UNTAGGED | ScsiCommand::SIMPLE => Attribute::Simple,
        ScsiCommand::ORDERED => Attribute::Ordered,
        ScsiCommand::HEAD_OF_QUEUE => Attribute::HeadOfQueue,
        ScsiCommand::ACA => Attribute::Aca,
        unknown => Attribute::Unknown(unknown),
    }
}

fn no_data(len: u32) -> Result<(), Violation> {
    if len == 0 { Ok(()) } else { Err(Violation::UnexpectedDataSegment) }
}
