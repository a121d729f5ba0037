//! SRP (r16a): data of reads is written by RDMA and the response follows; data of writes is in the command, or read.

use super::connection::Ends;
use super::iwarp::{Messages, Remote, Verbs};
use super::output::bytes;
use super::session::Data;
use super::{breach, unit};
use std::io;
use wire::srp::login::{FORMAT_DIRECT, FORMAT_INDIRECT};
use wire::srp::{
    CommandUnit, Descriptor, Direct, Layout as _, LoginRequest, LoginResponse, Opcode, Response,
    ResponseCode, TaskManagement,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// Requests that an initiator may have in flight: more than any of ours has.
const LIMIT: u32 = 0x4000;
/// The longest information unit that is sent.
const UNIT_BYTES: u32 = 64;

/// One end of a channel.
pub(super) struct Srp {
    blocks: u64,
    /// Writes whose data is being read; the place is that of the RDMA Reads. At most [`LIMIT`].
    writes: Vec<Option<Write>>,
    is_over: bool,
}

/// A write that is being read.
#[derive(Clone, Copy)]
struct Write {
    tag: U64,
    /// RDMA Reads that are not over.
    reads: u32,
}

impl Srp {
    /// A channel that is asked for by this login, and the answer.
    pub(super) fn accept(ends: Ends, login: &[u8]) -> io::Result<(Srp, Vec<u8>)> {
        let request = LoginRequest::from_private_data(login).filter(|it| it.opcode == Opcode::LOGIN_REQUEST);
        let request = request.ok_or_else(|| breach("no login request"))?;
        let response = LoginResponse {
            opcode: Opcode::LOGIN_RESPONSE,
            req_lim_delta: U32::new(LIMIT),
            tag: request.tag,
            max_it_iu_len: request.req_it_iu_len,
            max_ti_iu_len: U32::new(UNIT_BYTES),
            buf_fmt: U16::new(FORMAT_DIRECT | FORMAT_INDIRECT),
            rsp_flags: request.req_flags & LoginRequest::IMMEDIATE,
            ..LoginResponse::default()
        };
        let srp = Srp { blocks: ends.blocks, writes: Vec::new(), is_over: false };
        Ok((srp, response.as_bytes().to_vec()))
    }

    fn command(&mut self, unit: &CommandUnit<'_>, verbs: &mut Verbs<'_, '_>) -> io::Result<()> {
        let tag = unit.head.tag;
        match unit.data_out {
            Descriptor::None => {}
            Descriptor::Immediate { .. } => return good(tag, 0, verbs),
            Descriptor::Direct(_) | Descriptor::Indirect(_) => {
                return self.begin_write(tag, buffers(&unit.data_out)?, verbs);
            }
        }
        let expected = unit.data_in.data_bytes();
        let cdb = unit.head.cdb;
        if let Some((answer, allocated)) = unit::answer(&cdb, self.blocks) {
            let first = buffers(&unit.data_in)?.first();
            let room = first.map_or(0, |buffer| buffer.len.get());
            let data = Data::Own(answer.data(allocated.min(bytes(room))));
            if let Some(buffer) = first {
                verbs.write(remote(buffer), data)?;
            }
            return good(tag, expected.saturating_sub(data.len()), verbs);
        }
        for buffer in buffers(&unit.data_in)? {
            verbs.write(remote(buffer), Data::Payload(buffer.len.get()))?;
        }
        good(tag, 0, verbs)
    }

    fn begin_write(&mut self, tag: U64, from: &[Direct], verbs: &mut Verbs<'_, '_>) -> io::Result<()> {
        let place = self.writes.iter().position(Option::is_none).unwrap_or(self.writes.len());
        let number = u32::try_from(place).ok().filter(|place| *place < LIMIT);
        let number = number.ok_or_else(|| breach("more requests than the limit allows"))?;
        if place == self.writes.len() {
            self.writes.push(None);
        }
        self.writes[place] = Some(Write { tag, reads: u32::try_from(from.len()).unwrap_or(u32::MAX) });
        from.iter().try_for_each(|buffer| verbs.read(number, remote(buffer), buffer.len.get()))
    }
}

impl Messages for Srp {
    fn message(&mut self, message: &[u8], verbs: &mut Verbs<'_, '_>) -> io::Result<()> {
        match message.first().map(|code| Opcode(*code)) {
            Some(Opcode::COMMAND) => {
                let unit = CommandUnit::split(message);
                self.command(&unit.map_err(|fault| breach(&format!("{fault:?}")))?, verbs)
            }
            Some(Opcode::TASK_MANAGEMENT) => {
                let request = TaskManagement::view(message).ok_or_else(|| breach("a request cut short"))?;
                let response = Response {
                    flags: Response::RESPONSE_VALID,
                    resp_data_len: U32::new(Response::RESPONSE_DATA_BYTES),
                    ..response(request.tag)
                };
                verbs.send(&[response.as_bytes(), &[0, 0, 0, ResponseCode::NOT_SUPPORTED.0]], false, None)
            }
            Some(Opcode::INITIATOR_LOGOUT) => {
                self.is_over = true;
                Ok(())
            }
            _ => Err(breach("an information unit of another type")),
        }
    }

    fn read(&mut self, place: u32, verbs: &mut Verbs<'_, '_>) -> io::Result<()> {
        let slot = self.writes.get_mut(bytes(place)).ok_or_else(unasked)?;
        let write = slot.as_mut().ok_or_else(unasked)?;
        write.reads -= 1;
        if write.reads > 0 {
            return Ok(());
        }
        let tag = write.tag;
        *slot = None;
        good(tag, 0, verbs)
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

fn unasked() -> io::Error {
    breach("data that nobody asked for")
}

/// The buffers of a descriptor, all of which are in the command.
fn buffers<'a>(descriptor: &'a Descriptor<'_>) -> io::Result<&'a [Direct]> {
    match descriptor {
        Descriptor::None | Descriptor::Immediate { .. } => Ok(&[]),
        Descriptor::Direct(direct) => Ok(std::slice::from_ref(direct)),
        Descriptor::Indirect(table) => {
            let listed: u64 = table.list.iter().map(|buffer| u64::from(buffer.len.get())).sum();
            if listed == u64::from(table.len) { Ok(table.list) } else { Err(breach("a table elsewhere")) }
        }
    }
}

fn remote(buffer: &Direct) -> Remote {
    Remote { stag: buffer.key.get(), offset: buffer.address.get() }
}

fn response(tag: U64) -> Response {
    Response { opcode: Opcode::RESPONSE, req_lim_delta: U32::new(1), tag, ..Response::default() }
}

/// GOOD, with what is missing of the data-in.
fn good(tag: U64, residual: u32, verbs: &mut Verbs<'_, '_>) -> io::Result<()> {
    let flags = if residual > 0 { Response::IN_UNDERFLOW } else { 0 };
    let response = Response { flags, data_in_residual: U32::new(residual), ..response(tag) };
    verbs.send(&[response.as_bytes()], false, None)
}
