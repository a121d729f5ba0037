//! Answers to PDUs: the minimum that keeps an initiator going (RFC 7143), over any transport.

use super::batch::{PAYLOAD_BYTES, bytes};
use super::connection::Ends;
use super::login::login;
use super::{breach, unit};
use proto::iscsi::login::{LoginReply, Negotiated, TargetLogin};
use std::io;
use wire::iscsi::{
    BHS_BYTES, BasicHeader, CONTINUE, DataIn, DataOut, FINAL, FunctionResponse, LoginRequest, LoginResponse,
    LogoutOutcome, LogoutRequest, LogoutResponse, NopIn, NopOut, Opcode, Pdu, ReadyToTransfer, Reject,
    RejectReason, ScsiCommand, ScsiResponse, TAG_NONE, TaskManagementRequest, TaskManagementResponse,
    TextRequest, U24,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32};

/// Commands that an initiator may have outstanding; its window never closes.
const WINDOW: u32 = 0x8000;

/// Carries PDUs and data to the initiator, in the terms of RFC 5047.
pub(super) trait Datamover {
    /// Any other PDU, with its data.
    fn send_control(&mut self, header: &[u8], data: &[u8]) -> io::Result<()>;

    /// Data-In.
    fn put_data(&mut self, pdu: &DataIn, data: Data<'_>) -> io::Result<()>;

    /// R2T.
    fn get_data(&mut self, pdu: &ReadyToTransfer) -> io::Result<()>;
}

/// The data of a Data-In.
#[derive(Clone, Copy)]
pub(super) enum Data<'a> {
    /// The unit's own answer.
    Own(&'a [u8]),
    /// This many bytes of the payload, at most [`PAYLOAD_BYTES`].
    Payload(u32),
}

impl Data<'_> {
    /// Its length in bytes.
    pub(super) fn len(self) -> u32 {
        match self {
            Data::Own(data) => u32::try_from(data.len()).unwrap_or(u32::MAX),
            Data::Payload(len) => len,
        }
    }
}

/// One session of one connection.
pub(super) struct Session {
    phase: Phase,
    blocks: u64,
    /// MaxRecvDataSegmentLength of the initiator, limited to the payload's size.
    max_recv: u32,
    max_burst: u32,
    /// The next StatSN.
    stat_sn: u32,
    exp_cmd_sn: u32,
    /// Writes with data still to arrive; the index is the target transfer tag. At most [`WINDOW`].
    writes: Vec<Option<Write>>,
}

enum Phase {
    Login(Box<TargetLogin>),
    Full,
    Over,
}

struct Write {
    command: ScsiCommand,
    received: u32,
    /// Whether the next data was solicited by an R2T.
    solicited: bool,
    r2t_sn: u32,
}

impl Session {
    /// `rdma`: data moves by RDMA.
    pub(super) fn new(ends: Ends, rdma: bool) -> Session {
        Session {
            phase: Phase::Login(Box::new(login(ends, rdma))),
            blocks: ends.blocks,
            max_recv: 0,
            max_burst: 0,
            stat_sn: 1,
            exp_cmd_sn: 0,
            writes: Vec::new(),
        }
    }

    /// Whether nothing more will be answered.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Answers a PDU. `data` is empty for commands and Data-Out, whose data is discarded.
    pub(super) fn pdu(
        &mut self,
        head: &[u8; BHS_BYTES],
        data: &[u8],
        mover: &mut impl Datamover,
    ) -> io::Result<()> {
        let short = || breach("a header that is cut short");
        let opcode = BasicHeader::view(head).ok_or_else(short)?.opcode();
        if let Phase::Login(_) = self.phase {
            if opcode != Opcode::LOGIN_REQUEST {
                return Err(breach("a request before the login"));
            }
            return self.log_in(LoginRequest::view(head).ok_or_else(short)?, data, mover);
        }
        match opcode {
            Opcode::SCSI_COMMAND => self.command(ScsiCommand::view(head).ok_or_else(short)?, mover),
            Opcode::DATA_OUT => self.data_out(DataOut::view(head).ok_or_else(short)?, mover),
            Opcode::NOP_OUT => self.nop(NopOut::view(head).ok_or_else(short)?, data, mover),
            Opcode::LOGOUT_REQUEST => self.log_out(LogoutRequest::view(head).ok_or_else(short)?, mover),
            Opcode::TASK_MANAGEMENT_REQUEST => {
                self.function(TaskManagementRequest::view(head).ok_or_else(short)?, mover)
            }
            Opcode::TEXT_REQUEST => {
                let pdu = TextRequest::view(head).ok_or_else(short)?;
                self.count(pdu.opcode, pdu.cmd_sn);
                self.reject(head, mover)
            }
            _ => self.reject(head, mover),
        }
    }

    fn log_in(&mut self, pdu: &LoginRequest, text: &[u8], mover: &mut impl Datamover) -> io::Result<()> {
        let Phase::Login(login) = &mut self.phase else { return Ok(()) };
        let LoginReply { status, transit, cont, csg, nsg, tsih, text, close, done } =
            login.request(pdu, text);
        self.exp_cmd_sn = pdu.cmd_sn.get();
        let flags = [(transit, LoginResponse::TRANSIT), (cont, CONTINUE)];
        let flags = flags.iter().filter(|(is, _)| *is).fold(0, |flags, (_, flag)| flags | flag);
        let response = LoginResponse {
            flags: flags | LoginResponse::stages(csg, nsg),
            data_segment_length: length(&text),
            isid: pdu.isid,
            tsih: U16::new(tsih),
            initiator_task_tag: pdu.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            status,
            ..LoginResponse::default()
        };
        mover.send_control(response.as_bytes(), &text)?;
        if let Some(reason) = close {
            tracing::warn!(reason, "a login was refused");
            self.phase = Phase::Over;
        } else if let Some(Negotiated { max_recv_initiator, max_burst, rdma, .. }) = done {
            // RDMA Writes are not limited to data segments (RFC 7145 section 6.4).
            let max_recv = rdma.map_or(max_recv_initiator, |_| PAYLOAD_BYTES);
            (self.max_recv, self.max_burst) = (max_recv.min(PAYLOAD_BYTES), max_burst);
            self.phase = Phase::Full;
        }
        Ok(())
    }

    fn command(&mut self, pdu: &ScsiCommand, mover: &mut impl Datamover) -> io::Result<()> {
        self.count(pdu.opcode, pdu.cmd_sn);
        let expected = pdu.expected_data_transfer_length.get();
        if pdu.writes() {
            let received = pdu.data_segment_length.get();
            if received >= expected {
                return self.good(pdu.initiator_task_tag, 0, mover);
            }
            return self.begin_write(pdu, received, mover);
        }
        if let Some((answer, allocated)) = unit::answer(&pdu.cdb, self.blocks) {
            return self.answer_data(pdu, answer.data(allocated.min(bytes(expected))), mover);
        }
        if pdu.reads() && expected > 0 {
            return self.data_in(pdu, expected, mover);
        }
        self.good(pdu.initiator_task_tag, 0, mover)
    }

    /// Data-In from the payload, the last one with the status (section 11.7).
    fn data_in(&mut self, pdu: &ScsiCommand, expected: u32, mover: &mut impl Datamover) -> io::Result<()> {
        let (mut at, mut data_sn) = (0, 0);
        while at < expected {
            let burst = self.max_burst - at % self.max_burst;
            let len = (expected - at).min(burst).min(self.max_recv);
            let last = at + len == expected;
            let header = DataIn {
                flags: if last {
                    FINAL | DataIn::STATUS
                } else if len == burst {
                    FINAL
                } else {
                    0
                },
                data_segment_length: U24::new(len),
                initiator_task_tag: pdu.initiator_task_tag,
                target_transfer_tag: U32::new(TAG_NONE),
                stat_sn: if last { self.next_stat_sn() } else { U32::new(0) },
                exp_cmd_sn: U32::new(self.exp_cmd_sn),
                max_cmd_sn: self.max_cmd_sn(),
                data_sn: U32::new(data_sn),
                buffer_offset: U32::new(at),
                ..DataIn::default()
            };
            mover.put_data(&header, Data::Payload(len))?;
            at += len;
            data_sn += 1;
        }
        Ok(())
    }

    /// The unit's own answer, possibly shorter than expected.
    fn answer_data(&mut self, pdu: &ScsiCommand, data: &[u8], mover: &mut impl Datamover) -> io::Result<()> {
        let len = length(data);
        let residual = pdu.expected_data_transfer_length.get().saturating_sub(len.get());
        if data.is_empty() {
            return self.good(pdu.initiator_task_tag, residual, mover);
        }
        let header = DataIn {
            flags: FINAL | DataIn::STATUS | if residual > 0 { DataIn::UNDERFLOW } else { 0 },
            data_segment_length: len,
            initiator_task_tag: pdu.initiator_task_tag,
            target_transfer_tag: U32::new(TAG_NONE),
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            residual_count: U32::new(residual),
            ..DataIn::default()
        };
        mover.put_data(&header, Data::Own(data))
    }

    fn good(&mut self, tag: U32, residual: u32, mover: &mut impl Datamover) -> io::Result<()> {
        let response = ScsiResponse {
            flags: FINAL | if residual > 0 { ScsiResponse::UNDERFLOW } else { 0 },
            initiator_task_tag: tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            residual_count: U32::new(residual),
            ..ScsiResponse::default()
        };
        mover.send_control(response.as_bytes(), &[])
    }

    /// A write whose data did not all come with the command.
    fn begin_write(
        &mut self,
        pdu: &ScsiCommand,
        received: u32,
        mover: &mut impl Datamover,
    ) -> io::Result<()> {
        let place = self.writes.iter().position(Option::is_none).unwrap_or(self.writes.len());
        if place == self.writes.len() {
            if place == bytes(WINDOW) {
                return Err(breach("more commands than the window allows"));
            }
            self.writes.push(None);
        }
        self.writes[place] = Some(Write { command: *pdu, received, solicited: false, r2t_sn: 0 });
        // Without F, unsolicited data follows (section 11.3.1).
        if pdu.last() { self.ask(place, mover) } else { Ok(()) }
    }

    /// Solicited or announced data, which has been discarded.
    pub(super) fn data_out(&mut self, pdu: &DataOut, mover: &mut impl Datamover) -> io::Result<()> {
        let tag = pdu.initiator_task_tag;
        let is_it = |write: &Write| write.command.initiator_task_tag == tag;
        let place = match pdu.target_transfer_tag.get() {
            TAG_NONE => self
                .writes
                .iter()
                .position(|write| write.as_ref().is_some_and(|write| is_it(write) && !write.solicited)),
            tag => Some(bytes(tag)),
        };
        let write = place.and_then(|place| self.writes.get_mut(place)).and_then(Option::as_mut);
        let (Some(place), Some(write)) = (place, write.filter(|write| is_it(write))) else {
            return Err(breach("unrequested Data-Out"));
        };
        write.received = write.received.saturating_add(pdu.data_segment_length.get());
        if !pdu.last() {
            return Ok(());
        }
        if write.received < write.command.expected_data_transfer_length.get() {
            return self.ask(place, mover);
        }
        self.writes[place] = None;
        self.good(tag, 0, mover)
    }

    /// Solicits the next burst of a write (section 11.8).
    fn ask(&mut self, place: usize, mover: &mut impl Datamover) -> io::Result<()> {
        let (exp_cmd_sn, max_cmd_sn) = (U32::new(self.exp_cmd_sn), self.max_cmd_sn());
        let (Some(Some(write)), Ok(tag)) = (self.writes.get_mut(place), u32::try_from(place)) else {
            return Ok(());
        };
        let left = write.command.expected_data_transfer_length.get().saturating_sub(write.received);
        let pdu = ReadyToTransfer {
            flags: FINAL,
            lun: write.command.lun,
            initiator_task_tag: write.command.initiator_task_tag,
            target_transfer_tag: U32::new(tag),
            stat_sn: U32::new(self.stat_sn),
            exp_cmd_sn,
            max_cmd_sn,
            r2t_sn: U32::new(write.r2t_sn),
            buffer_offset: U32::new(write.received),
            desired_data_transfer_length: U32::new(left.min(self.max_burst)),
            ..ReadyToTransfer::default()
        };
        write.solicited = true;
        write.r2t_sn = write.r2t_sn.wrapping_add(1);
        mover.get_data(&pdu)
    }

    fn nop(&mut self, pdu: &NopOut, data: &[u8], mover: &mut impl Datamover) -> io::Result<()> {
        self.count(pdu.opcode, pdu.cmd_sn);
        if pdu.initiator_task_tag.get() == TAG_NONE {
            return Ok(());
        }
        let data = &data[..data.len().min(bytes(self.max_recv))];
        let response = NopIn {
            flags: FINAL,
            data_segment_length: length(data),
            initiator_task_tag: pdu.initiator_task_tag,
            target_transfer_tag: U32::new(TAG_NONE),
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            ..NopIn::default()
        };
        mover.send_control(response.as_bytes(), data)
    }

    fn log_out(&mut self, pdu: &LogoutRequest, mover: &mut impl Datamover) -> io::Result<()> {
        self.count(pdu.opcode, pdu.cmd_sn);
        let response = LogoutResponse {
            flags: FINAL,
            response: LogoutOutcome::CLOSED,
            initiator_task_tag: pdu.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            ..LogoutResponse::default()
        };
        self.phase = Phase::Over;
        mover.send_control(response.as_bytes(), &[])
    }

    fn function(&mut self, pdu: &TaskManagementRequest, mover: &mut impl Datamover) -> io::Result<()> {
        self.count(pdu.opcode, pdu.cmd_sn);
        let response = TaskManagementResponse {
            flags: FINAL,
            response: FunctionResponse::NOT_SUPPORTED,
            initiator_task_tag: pdu.initiator_task_tag,
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            ..TaskManagementResponse::default()
        };
        mover.send_control(response.as_bytes(), &[])
    }

    /// Text, SNACK, and anything no initiator sends (section 11.17).
    fn reject(&mut self, head: &[u8; BHS_BYTES], mover: &mut impl Datamover) -> io::Result<()> {
        let response = Reject {
            flags: FINAL,
            reason: RejectReason::NOT_SUPPORTED,
            data_segment_length: length(head),
            initiator_task_tag: U32::new(TAG_NONE),
            stat_sn: self.next_stat_sn(),
            exp_cmd_sn: U32::new(self.exp_cmd_sn),
            max_cmd_sn: self.max_cmd_sn(),
            ..Reject::default()
        };
        mover.send_control(response.as_bytes(), head)
    }

    /// Commands arrive in order on a single connection: each number is one less than the next.
    fn count(&mut self, opcode: u8, cmd_sn: U32) {
        if opcode & Opcode::IMMEDIATE == 0 {
            self.exp_cmd_sn = cmd_sn.get().wrapping_add(1);
        }
    }

    fn next_stat_sn(&mut self) -> U32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        U32::new(stat_sn)
    }

    fn max_cmd_sn(&self) -> U32 {
        U32::new(self.exp_cmd_sn.wrapping_add(WINDOW - 1))
    }
}

/// DataSegmentLength of a PDU whose data never exceeds its range.
fn length(data: &[u8]) -> U24 {
    U24::new(u32::try_from(data.len()).unwrap_or(U24::MAX))
}
