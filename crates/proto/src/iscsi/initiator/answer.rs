//! Interprets the PDUs of the target. An error is a violation of the standard, and ends the connection.

use super::layer::{LOGIN_TAG, Layer, Phase};
use super::{Event, Outcome, Residual, TEXT_PARTS_MAX, TEXT_RESPONSE_MAX};
use wire::Sense;
use wire::iscsi::{
    AsyncMessage, BHS_BYTES, BasicHeader, DataIn, FINAL, FunctionResponse, LoginResponse, LogoutOutcome,
    LogoutResponse, NopIn, Opcode, Pdu, Reject, ScsiResponse, TAG_NONE, TaskManagementResponse, TextResponse,
};

pub(crate) type Checked = Result<(), String>;

pub(super) fn breach(what: &str) -> Checked {
    Err(format!("protocol violation by the target: {what}"))
}

impl Layer {
    /// Validates the header of a PDU.
    pub(crate) fn header(&mut self, header: &[u8; BHS_BYTES]) -> Checked {
        let Some(basic) = BasicHeader::view(header) else { return Ok(()) };
        if basic.total_ahs_length != 0 {
            return breach("additional header segments");
        }
        if basic.data_segment_length.get() > self.config.plan.offers.max_recv {
            return breach("data segment longer than MaxRecvDataSegmentLength (RFC 7143 section 13.12)");
        }
        let login = matches!(self.phase, Phase::Login { .. });
        if login != (basic.opcode() == Opcode::LOGIN_RESPONSE) {
            return breach("a PDU of another phase");
        }
        if login { Ok(()) } else { self.numbers(header) }
    }

    /// StatSN, ExpCmdSN and MaxCmdSN, which are at the same place in all PDUs (section 4.2.2).
    pub(super) fn numbers(&mut self, header: &[u8; BHS_BYTES]) -> Checked {
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
        if exp.wrapping_sub(self.exp_cmd_sn) < 0x8000_0000 {
            self.exp_cmd_sn = exp;
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

    /// A PDU with all its data.
    pub(crate) fn pdu(&mut self, head: &[u8], data: &[u8]) -> Checked {
        let checked = match BasicHeader::view(head).map(BasicHeader::opcode) {
            Some(Opcode::LOGIN_RESPONSE) => {
                LoginResponse::view(head).map(|pdu| self.login_response(pdu, data))
            }
            Some(Opcode::SCSI_RESPONSE) => ScsiResponse::view(head).map(|pdu| self.scsi_response(pdu, data)),
            Some(Opcode::NOP_IN) => NopIn::view(head).map(|pdu| self.nop_in(pdu, data)),
            Some(Opcode::TEXT_RESPONSE) => TextResponse::view(head).map(|pdu| self.text_response(pdu, data)),
            Some(Opcode::TASK_MANAGEMENT_RESPONSE) => {
                TaskManagementResponse::view(head).map(|pdu| self.function_response(pdu))
            }
            Some(Opcode::LOGOUT_RESPONSE) => LogoutResponse::view(head).map(|pdu| self.logout_response(pdu)),
            Some(Opcode::ASYNC_MESSAGE) => AsyncMessage::view(head).map(|pdu| self.async_message(pdu)),
            Some(Opcode::REJECT) => Reject::view(head).map(|pdu| self.reject(pdu, data)),
            _ => Some(breach("an opcode that targets do not send")),
        };
        checked.unwrap_or(Ok(()))
    }

    fn login_response(&mut self, pdu: &LoginResponse, text: &[u8]) -> Checked {
        let Phase::Login { login, begun, .. } = &mut self.phase else { return Ok(()) };
        let done = login.response(pdu, text);
        if let Some(to) = login.moved().cloned() {
            self.events.push_back(Event::Moved { to });
        }
        let done = done?;
        if pdu.initiator_task_tag.get() != LOGIN_TAG {
            return breach("a login response with another task tag (RFC 7143 section 11.13)");
        }
        if pdu.isid != login.plan().isid {
            return breach("a login response for another ISID (RFC 7143 section 11.13)");
        }
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

    fn scsi_response(&mut self, pdu: &ScsiResponse, data: &[u8]) -> Checked {
        let Some((id, task)) = self.tasks.find(pdu.initiator_task_tag.get()) else {
            return breach("a response to no task");
        };
        let input_sn = task.input_sn;
        // Older targets count R2Ts as well (RFC 3720); a number above everything received means that Data-In
        // was lost. Over RDMA nothing is counted.
        if self.rdma.is_none() && pdu.response == ScsiResponse::COMPLETED && pdu.exp_data_sn.get() > input_sn
        {
            return breach("ExpDataSN beyond the data received (RFC 7143 section 11.4.8)");
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

    fn nop_in(&mut self, pdu: &NopIn, data: &[u8]) -> Checked {
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

    fn text_response(&mut self, pdu: &TextResponse, data: &[u8]) -> Checked {
        let tag = pdu.initiator_task_tag.get();
        let Some(exchange) = self.text.as_mut().filter(|exchange| exchange.tag == tag) else {
            return breach("the answer to no text request");
        };
        exchange.parts = exchange.parts.saturating_add(1);
        let is_long = exchange.received.len().saturating_add(data.len()) > TEXT_RESPONSE_MAX;
        if is_long || exchange.parts > TEXT_PARTS_MAX {
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

    fn function_response(&mut self, pdu: &TaskManagementResponse) -> Checked {
        let tag = pdu.initiator_task_tag.get();
        if !self.functions.iter().any(|function| function.tag == tag) {
            return breach("the answer to no task management request");
        }
        self.function_done(tag, pdu.response);
        Ok(())
    }

    fn logout_response(&mut self, pdu: &LogoutResponse) -> Checked {
        if !matches!(self.phase, Phase::LoggingOut { .. }) {
            return breach("the answer to no logout request");
        }
        match pdu.response {
            LogoutOutcome::CLOSED => self.over("logged out"),
            LogoutOutcome(code) => self.over(&format!("logout failed with response {code}")),
        }
        Ok(())
    }

    fn async_message(&mut self, pdu: &AsyncMessage) -> Checked {
        let parameters = [pdu.parameter1.get(), pdu.parameter2.get(), pdu.parameter3.get()];
        self.events.push_back(Event::Async { event: pdu.event, parameters });
        Ok(())
    }

    /// What was rejected gets no other answer.
    fn reject(&mut self, pdu: &Reject, data: &[u8]) -> Checked {
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

/// A residual count of zero, which some targets report, means no residual.
pub(super) fn residual(flags: u8, over: u8, under: u8, count: u32) -> Result<Residual, String> {
    match (flags & over != 0, flags & under != 0) {
        (false, false) => Ok(Residual::None),
        (true, false) | (false, true) if count == 0 => Ok(Residual::None),
        (true, false) => Ok(Residual::Overflow(count)),
        (false, true) => Ok(Residual::Underflow(count)),
        (true, true) => {
            Err("protocol violation by the target: overflow and underflow (RFC 7143 section 11.4.1)"
                .to_string())
        }
    }
}

/// The sense data after its length (section 11.4.7).
fn sense(data: &[u8]) -> Result<Option<Sense>, String> {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes(*len));
    match rest.get(..len) {
        Some(&[]) => Ok(None),
        Some(sense) => Ok(Some(Sense::from_bytes(sense))),
        None => {
            Err("protocol violation by the target: sense data cut short (RFC 7143 section 11.4.7)"
                .to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_residual_of_nothing_is_none() {
        let of = |flags, count| residual(flags, ScsiResponse::OVERFLOW, ScsiResponse::UNDERFLOW, count);
        assert_eq!(of(0, 7), Ok(Residual::None));
        assert_eq!(of(ScsiResponse::UNDERFLOW, 7), Ok(Residual::Underflow(7)));
        assert_eq!(of(ScsiResponse::OVERFLOW, 7), Ok(Residual::Overflow(7)));
        for flag in [ScsiResponse::OVERFLOW, ScsiResponse::UNDERFLOW] {
            assert_eq!(of(flag, 0), Ok(Residual::None));
        }
        assert!(of(ScsiResponse::OVERFLOW | ScsiResponse::UNDERFLOW, 0).is_err());
    }
}
