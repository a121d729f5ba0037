//! SRP (r16a): data of reads is sent by RDMA Write, followed by the response; data of writes is in the
//! command, or fetched by RDMA Read.

use super::batch::bytes;
use super::connection::Ends;
use super::iwarp::{Messages, Remote, WorkQueues};
use super::session::Data;
use super::{breach, unit};
use std::io;
use wire::srp::login::FORMAT_DIRECT;
use wire::srp::{
    CommandUnit, Descriptor, Direct, Layout as _, LoginRequest, LoginResponse, Opcode, Response,
    ResponseCode, TaskManagement,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// Requests that an initiator may have in flight: more than any of ours ever has.
const LIMIT: u32 = 0x4000;
/// The longest information unit sent.
const UNIT_BYTES: u32 = 64;

/// One end of a channel.
pub(super) struct Srp {
    blocks: u64,
    /// Tags of writes whose data is being read; the index is that of the RDMA Read. At most [`LIMIT`].
    writes: Vec<Option<U64>>,
    is_over: bool,
}

impl Srp {
    /// Accepts a channel with this login; returns the answer.
    pub(super) fn accept(ends: Ends, login: &[u8]) -> io::Result<(Srp, Vec<u8>)> {
        let request = LoginRequest::from_private_data(login).filter(|it| it.opcode == Opcode::LOGIN_REQUEST);
        let request = request.ok_or_else(|| breach("no login request"))?;
        let response = LoginResponse {
            opcode: Opcode::LOGIN_RESPONSE,
            req_lim_delta: U32::new(LIMIT),
            tag: request.tag,
            max_it_iu_len: request.req_it_iu_len,
            max_ti_iu_len: U32::new(UNIT_BYTES),
            buf_fmt: U16::new(FORMAT_DIRECT),
            rsp_flags: request.req_flags & LoginRequest::IMMEDIATE,
            ..LoginResponse::default()
        };
        let srp = Srp { blocks: ends.blocks, writes: Vec::new(), is_over: false };
        Ok((srp, response.as_bytes().to_vec()))
    }

    fn command(&mut self, unit: &CommandUnit<'_>, queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
        let tag = unit.head.tag;
        match unit.data_out {
            Descriptor::None => {}
            Descriptor::Immediate { .. } => return good(tag, 0, queues),
            Descriptor::Direct(from) => return self.begin_write(tag, &from, queues),
            Descriptor::Indirect(_) => return Err(breach("a table of buffers")),
        }
        let expected = unit.data_in.data_bytes();
        let into = match unit.data_in {
            Descriptor::None | Descriptor::Immediate { .. } => None,
            Descriptor::Direct(into) => Some(into),
            Descriptor::Indirect(_) => return Err(breach("a table of buffers")),
        };
        if let Some((answer, allocated)) = unit::answer(&unit.head.cdb, self.blocks) {
            let room = into.map_or(0, |buffer| buffer.len.get());
            let data = Data::Own(answer.data(allocated.min(bytes(room))));
            if let Some(buffer) = into {
                queues.write(remote(&buffer), data)?;
            }
            return good(tag, expected.saturating_sub(data.len()), queues);
        }
        if let Some(buffer) = into {
            queues.write(remote(&buffer), Data::Payload(buffer.len.get()))?;
        }
        good(tag, 0, queues)
    }

    fn begin_write(&mut self, tag: U64, from: &Direct, queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
        let place = self.writes.iter().position(Option::is_none).unwrap_or(self.writes.len());
        let number = u32::try_from(place).ok().filter(|place| *place < LIMIT);
        let number = number.ok_or_else(|| breach("more requests than the limit allows"))?;
        if place == self.writes.len() {
            self.writes.push(None);
        }
        self.writes[place] = Some(tag);
        queues.read(number, remote(from), from.len.get())
    }
}

impl Messages for Srp {
    fn message(&mut self, message: &[u8], queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
        match message.first().map(|code| Opcode(*code)) {
            Some(Opcode::COMMAND) => {
                let unit = CommandUnit::split(message);
                self.command(&unit.map_err(|fault| breach(&format!("{fault:?}")))?, queues)
            }
            Some(Opcode::TASK_MANAGEMENT) => {
                let request = TaskManagement::view(message).ok_or_else(|| breach("a request cut short"))?;
                let response = Response {
                    flags: Response::RESPONSE_VALID,
                    resp_data_len: U32::new(Response::RESPONSE_DATA_BYTES),
                    ..response(request.tag)
                };
                queues.send(&[response.as_bytes(), &[0, 0, 0, ResponseCode::NOT_SUPPORTED.0]], false, None)
            }
            Some(Opcode::INITIATOR_LOGOUT) => {
                self.is_over = true;
                Ok(())
            }
            _ => Err(breach("an information unit of another type")),
        }
    }

    fn read(&mut self, place: u32, queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
        let tag = self.writes.get_mut(bytes(place)).and_then(Option::take).ok_or_else(unrequested)?;
        good(tag, 0, queues)
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

fn unrequested() -> io::Error {
    breach("unrequested data")
}

fn remote(buffer: &Direct) -> Remote {
    Remote { stag: buffer.key.get(), offset: buffer.address.get() }
}

fn response(tag: U64) -> Response {
    Response { opcode: Opcode::RESPONSE, req_lim_delta: U32::new(1), tag, ..Response::default() }
}

/// GOOD, with the data-in residual.
fn good(tag: U64, residual: u32, queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
    let flags = if residual > 0 { Response::IN_UNDERFLOW } else { 0 };
    let response = Response { flags, data_in_residual: U32::new(residual), ..response(tag) };
    queues.send(&[response.as_bytes()], false, None)
}
