//! What the target sends. An error is its breach of the standard, and the end of the connection.

use super::send::DataOut;
use super::{Event, Initiator, Outcome, Phase, Receiving, Residual, TEXT_RESPONSE_MAX};
use crate::verbs::TaskId;
use wire::Sense;
use wire::iscsi::{
    AsyncMessage, BHS_BYTES, BasicHeader, DIGEST_BYTES, DataIn, FINAL, FunctionResponse, LoginResponse,
    LogoutOutcome, LogoutResponse, NopIn, Opcode, Pdu, ReadyToTransfer, Reject, ScsiResponse, TAG_NONE,
    TaskManagementResponse, TextResponse, pad,
};

type Judged = Result<(), String>;

fn breach(what: &str) -> Judged {
    Err(format!("breach by the target: {what}"))
}

impl Initiator {
    /// Takes the bytes that were asked for as a header.
    pub(super) fn received(&mut self, bytes: &[u8]) -> Judged {
        match self.receiving {
            Receiving::Header => self.basic_header(bytes),
            Receiving::Gather { total } => {
                self.gathered.extend_from_slice(bytes);
                let have = u32::try_from(self.gathered.len()).unwrap_or(u32::MAX);
                if have >= total { self.gathered_all() } else { Ok(()) }
            }
            Receiving::Body { .. } => Ok(()),
        }
    }

    fn basic_header(&mut self, bytes: &[u8]) -> Judged {
        let Some((header, digest)) = bytes.split_first_chunk::<BHS_BYTES>() else { return Ok(()) };
        if self.link.header_digest && digest != (self.config.crc32c)(header).to_le_bytes() {
            return breach("header digest mismatch (RFC 7143 section 7.8)");
        }
        let Some(basic) = BasicHeader::view(header) else { return Ok(()) };
        let (opcode, len) = (basic.opcode(), basic.data_segment_length.get());
        if basic.total_ahs_length != 0 {
            return breach("additional header segments");
        }
        if len > self.config.plan.offers.max_recv {
            return breach("data segment longer than MaxRecvDataSegmentLength (RFC 7143 section 13.12)");
        }
        let login = matches!(self.phase, Phase::Login { .. });
        if login != (opcode == Opcode::LOGIN_RESPONSE) {
            return breach("a PDU of another phase");
        }
        self.head = *header;
        if !login {
            self.numbers(header)?;
        }
        if opcode == Opcode::DATA_IN {
            return self.data_in();
        }
        self.gathered.clear();
        if len == 0 {
            return self.pdu();
        }
        let digest = if self.link.data_digest { 4 } else { 0 };
        self.receiving = Receiving::Gather { total: len.saturating_add(pad(len)).saturating_add(digest) };
        Ok(())
    }

    /// StatSN, ExpCmdSN and MaxCmdSN, which are at one place in all PDUs (section 4.2.2).
    fn numbers(&mut self, header: &[u8; BHS_BYTES]) -> Judged {
        let Some(pdu) = NopIn::view(header) else { return Ok(()) };
        let opcode = Opcode(pdu.opcode & Opcode::MASK);
        let (stat_sn, exp, max) = (pdu.stat_sn.get(), pdu.exp_cmd_sn.get(), pdu.max_cmd_sn.get());
        if max.wrapping_sub(self.max_cmd_sn) < 0x8000_0000
            && max.wrapping_sub(exp).wrapping_add(1) < 0x8000_0000
        {
            self.max_cmd_sn = max;
        }
        if self.cmd_sn.wrapping_sub(exp) >= 0x8000_0000 {
            return breach("ExpCmdSN beyond what was sent (RFC 7143 section 4.2.2.1)");
        }
        let own = match opcode {
            Opcode::DATA_IN => pdu.flags & DataIn::STATUS != 0,
            Opcode::NOP_IN => pdu.initiator_task_tag.get() != TAG_NONE,
            Opcode::READY_TO_TRANSFER => false,
            _ => true,
        };
        if own || opcode != Opcode::DATA_IN {
            if stat_sn != self.exp_stat_sn {
                return breach("StatSN out of order (RFC 7143 section 4.2.2.2)");
            }
            self.exp_stat_sn = stat_sn.wrapping_add(u32::from(own));
        }
        Ok(())
    }

    fn gathered_all(&mut self) -> Judged {
        self.receiving = Receiving::Header;
        let len = BasicHeader::view(&self.head).map_or(0, |basic| basic.data_segment_length.get());
        if self.link.data_digest {
            let end = self.gathered.len().saturating_sub(DIGEST_BYTES);
            let (padded, digest) = self.gathered.split_at_checked(end).unwrap_or((&[], &[]));
            if digest != (self.config.crc32c)(padded).to_le_bytes() {
                return breach("data digest mismatch (RFC 7143 section 7.8)");
            }
        }
        self.gathered.truncate(usize::try_from(len).unwrap_or(0));
        self.pdu()
    }

    /// A PDU with all its data in `gathered`.
    fn pdu(&mut self) -> Judged {
        let head = self.head;
        let data = std::mem::take(&mut self.gathered);
        let judged = match BasicHeader::view(&head).map(BasicHeader::opcode) {
            Some(Opcode::LOGIN_RESPONSE) => {
                LoginResponse::view(&head).map(|pdu| self.login_response(pdu, &data))
            }
            Some(Opcode::SCSI_RESPONSE) => {
                ScsiResponse::view(&head).map(|pdu| self.scsi_response(pdu, &data))
            }
            Some(Opcode::READY_TO_TRANSFER) => {
                ReadyToTransfer::view(&head).map(|pdu| self.ready_to_transfer(pdu))
            }
            Some(Opcode::NOP_IN) => NopIn::view(&head).map(|pdu| self.nop_in(pdu, &data)),
            Some(Opcode::TEXT_RESPONSE) => {
                TextResponse::view(&head).map(|pdu| self.text_response(pdu, &data))
            }
            Some(Opcode::TASK_MANAGEMENT_RESPONSE) => {
                TaskManagementResponse::view(&head).map(|pdu| self.function_response(pdu))
            }
            Some(Opcode::LOGOUT_RESPONSE) => LogoutResponse::view(&head).map(|pdu| self.logout_response(pdu)),
            Some(Opcode::ASYNC_MESSAGE) => AsyncMessage::view(&head).map(|pdu| self.async_message(pdu)),
            Some(Opcode::REJECT) => Reject::view(&head).map(|pdu| self.reject(pdu, &data)),
            _ => Some(breach("an opcode that targets do not send")),
        };
        self.gathered = data;
        judged.unwrap_or(Ok(()))
    }

    fn login_response(&mut self, pdu: &LoginResponse, text: &[u8]) -> Judged {
        let Phase::Login { login, begun, .. } = &mut self.phase else { return Ok(()) };
        let done = login.response(pdu, text)?;
        let stat_sn = pdu.stat_sn.get();
        if *begun && stat_sn != self.exp_stat_sn {
            return breach("StatSN out of order during login");
        }
        *begun = true;
        self.exp_stat_sn = stat_sn.wrapping_add(1);
        self.max_cmd_sn = pdu.max_cmd_sn.get();
        match done {
            Some(negotiated) => self.begin(negotiated),
            None => self.queue_login(),
        }
        Ok(())
    }

    fn data_in(&mut self) -> Judged {
        let head = self.head;
        let Some(pdu) = DataIn::view(&head) else { return Ok(()) };
        let (offset, len) = (pdu.buffer_offset.get(), pdu.data_segment_length.get());
        let Some((task, state)) = self.tasks.find(pdu.initiator_task_tag.get()) else {
            return breach("Data-In for no task");
        };
        if pdu.data_sn.get() != state.input_sn {
            return breach("DataSN out of order (RFC 7143 section 11.7.5)");
        }
        let fits = offset.checked_add(len).is_some_and(|end| end <= state.request.read.len());
        if offset != state.received || !fits {
            return breach("Data-In at a wrong offset (RFC 7143 sections 11.7.5, 13.18)");
        }
        if pdu.flags & DataIn::STATUS != 0 && pdu.flags & FINAL == 0 {
            return breach("status before the last Data-In (RFC 7143 section 11.7.3)");
        }
        state.input_sn = state.input_sn.wrapping_add(1);
        let place = state.request.read.slice(offset, len);
        if len == 0 {
            return self.data_in_done(task, 0);
        }
        self.receiving = Receiving::Body { task, place };
        Ok(())
    }

    /// A Data-In is in its place; it may carry the status.
    pub(super) fn data_in_done(&mut self, id: TaskId, len: u32) -> Judged {
        let head = self.head;
        let Some(pdu) = DataIn::view(&head) else { return Ok(()) };
        if let Some(task) = self.tasks.get(id) {
            task.received = task.received.saturating_add(len);
        }
        if pdu.flags & DataIn::STATUS != 0 {
            let residual =
                residual(pdu.flags, DataIn::OVERFLOW, DataIn::UNDERFLOW, pdu.residual_count.get())?;
            let outcome = Outcome::Status { status: pdu.status, sense: None };
            self.end(id, outcome, residual, Residual::None);
        }
        Ok(())
    }

    fn scsi_response(&mut self, pdu: &ScsiResponse, data: &[u8]) -> Judged {
        let Some((id, task)) = self.tasks.find(pdu.initiator_task_tag.get()) else {
            return breach("a response to no task");
        };
        // Older targets count R2Ts as well (RFC 3720); more than all that came means that Data-In was lost.
        if pdu.response == ScsiResponse::COMPLETED && pdu.exp_data_sn.get() > task.input_sn {
            return breach("ExpDataSN beyond what came (RFC 7143 section 11.4.8)");
        }
        let outcome = match pdu.response {
            ScsiResponse::COMPLETED => Outcome::Status { status: pdu.status, sense: sense(data)? },
            code => Outcome::TargetFailure(code),
        };
        let rest =
            residual(pdu.flags, ScsiResponse::OVERFLOW, ScsiResponse::UNDERFLOW, pdu.residual_count.get())?;
        let read_rest = residual(
            pdu.flags,
            ScsiResponse::BIDIRECTIONAL_READ_OVERFLOW,
            ScsiResponse::BIDIRECTIONAL_READ_UNDERFLOW,
            pdu.bidirectional_read_residual_count.get(),
        )?;
        self.end(id, outcome, rest, read_rest);
        Ok(())
    }

    fn ready_to_transfer(&mut self, pdu: &ReadyToTransfer) -> Judged {
        let (max_burst, max_outstanding) = (self.link.max_burst, self.link.max_outstanding_r2t);
        let (at, len) = (pdu.buffer_offset.get(), pdu.desired_data_transfer_length.get());
        let Some((id, task)) = self.tasks.find(pdu.initiator_task_tag.get()) else {
            return breach("R2T for no task");
        };
        let end = at.checked_add(len).filter(|end| *end <= task.request.write.len());
        let (Some(end), 1..) = (end, len) else {
            return breach("R2T for data that the command does not have (RFC 7143 section 11.8.4)");
        };
        if len > max_burst || task.solicited >= max_outstanding || pdu.r2t_sn.get() != task.input_sn {
            return breach("R2T against what was negotiated, or out of order (RFC 7143 section 11.8)");
        }
        if pdu.target_transfer_tag.get() == TAG_NONE {
            return breach("R2T without a tag (RFC 7143 section 11.8.5)");
        }
        task.solicited = task.solicited.saturating_add(1);
        task.input_sn = task.input_sn.wrapping_add(1);
        self.data.push_back(DataOut {
            task: id,
            tag: pdu.target_transfer_tag.get(),
            lun: pdu.lun.get(),
            at,
            end,
            data_sn: 0,
        });
        Ok(())
    }

    fn nop_in(&mut self, pdu: &NopIn, data: &[u8]) -> Judged {
        let tag = pdu.initiator_task_tag.get();
        let transfer_tag = pdu.target_transfer_tag.get();
        if tag == TAG_NONE {
            if transfer_tag != TAG_NONE {
                self.queue_nop(TAG_NONE, transfer_tag, pdu.lun.get(), &[]);
            }
            return Ok(());
        }
        match self.ping.take() {
            Some((asked, true)) if asked == tag => self.events.push_back(Event::Pong(data.to_vec())),
            Some((asked, false)) if asked == tag => {}
            _ => return breach("the answer to no ping"),
        }
        Ok(())
    }

    fn text_response(&mut self, pdu: &TextResponse, data: &[u8]) -> Judged {
        let tag = pdu.initiator_task_tag.get();
        let Some(exchange) = self.text.as_mut().filter(|exchange| exchange.tag == tag) else {
            return breach("the answer to no text request");
        };
        if exchange.received.len().saturating_add(data.len()) > TEXT_RESPONSE_MAX {
            return breach("an endless text response");
        }
        exchange.received.extend_from_slice(data);
        let transfer_tag = pdu.target_transfer_tag.get();
        let last = pdu.flags & FINAL != 0;
        if last != (transfer_tag == TAG_NONE) {
            return breach("a text response whose F bit and tag disagree (RFC 7143 section 11.11.1)");
        }
        if !last {
            self.queue_text(tag, transfer_tag, pdu.lun.get(), &[]);
        } else if let Some(exchange) = self.text.take() {
            self.events.push_back(Event::Text(exchange.received));
        }
        Ok(())
    }

    fn function_response(&mut self, pdu: &TaskManagementResponse) -> Judged {
        let tag = pdu.initiator_task_tag.get();
        if !self.functions.iter().any(|function| function.tag == tag) {
            return breach("the answer to no task management request");
        }
        self.function_done(tag, pdu.response);
        Ok(())
    }

    fn logout_response(&mut self, pdu: &LogoutResponse) -> Judged {
        if !matches!(self.phase, Phase::LoggingOut { .. }) {
            return breach("the answer to no logout request");
        }
        match pdu.response {
            LogoutOutcome::CLOSED => self.over("logged out"),
            LogoutOutcome(code) => self.over(&format!("logout failed with response {code}")),
        }
        Ok(())
    }

    fn async_message(&mut self, pdu: &AsyncMessage) -> Judged {
        let parameters = [pdu.parameter1.get(), pdu.parameter2.get(), pdu.parameter3.get()];
        self.events.push_back(Event::Async { event: pdu.event, parameters });
        Ok(())
    }

    /// What was rejected will not be answered otherwise.
    fn reject(&mut self, pdu: &Reject, data: &[u8]) -> Judged {
        let Some(rejected) = BasicHeader::view(data) else { return breach("a Reject without a header") };
        let (opcode, tag) = (rejected.opcode(), rejected.initiator_task_tag.get());
        match opcode {
            Opcode::SCSI_COMMAND => {
                if let Some((id, _)) = self.tasks.find(tag) {
                    self.end(id, Outcome::Rejected(pdu.reason), Residual::None, Residual::None);
                }
            }
            Opcode::TASK_MANAGEMENT_REQUEST => self.function_done(tag, FunctionResponse::REJECTED),
            Opcode::TEXT_REQUEST => self.text = None,
            Opcode::NOP_OUT => self.ping = None,
            _ => {}
        }
        self.events.push_back(Event::Rejected { reason: pdu.reason, opcode });
        Ok(())
    }
}

fn residual(flags: u8, over: u8, under: u8, count: u32) -> Result<Residual, String> {
    match (flags & over != 0, flags & under != 0) {
        (false, false) => Ok(Residual::None),
        (true, false) => Ok(Residual::Overflow(count)),
        (false, true) => Ok(Residual::Underflow(count)),
        (true, true) => {
            Err("breach by the target: overflow and underflow (RFC 7143 section 11.4.1)".to_string())
        }
    }
}

/// The sense data behind its length (section 11.4.7).
fn sense(data: &[u8]) -> Result<Option<Sense>, String> {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*len));
    match rest.get(..len) {
        Some(&[]) => Ok(None),
        Some(sense) => Ok(Some(Sense::from_bytes(sense))),
        None => Err("breach by the target: sense data cut short (RFC 7143 section 11.4.7)".to_string()),
    }
}
