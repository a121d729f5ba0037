//! iSER (RFC 7145): Data-In is an RDMA Write followed by the response, an R2T is an RDMA Read.

use super::batch::bytes;
use super::breach;
use super::connection::Ends;
use super::iwarp::{Messages, Remote, WorkQueues};
use super::session::{Data, Datamover, Session};
use std::io;
use wire::iscsi::{
    BHS_BYTES, BasicHeader, DataIn, DataOut, FINAL, Opcode, ReadyToTransfer, ScsiResponse, U24, pad,
};
use wire::iser::{Header, Layout as _, PrivateData};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

/// Zeros for padding.
const PADDING: [u8; 3] = [0; 3];

/// One end of a connection.
pub(super) struct Iser {
    session: Session,
    /// Whether the response invalidates STags that are no longer used.
    invalidates: bool,
    /// The buffers advertised by writes whose data is being read, by target transfer tag.
    writes: Vec<Write>,
}

/// A write whose data is being read.
#[derive(Clone, Copy, Default)]
struct Write {
    own: AdvertisedBuffers,
    task_tag: U32,
    /// Data that came with the command, which is not in the advertised buffer.
    unsolicited: u32,
    /// Length of the read in progress, in bytes.
    len: u32,
}

/// The buffers advertised by a command.
#[derive(Clone, Copy, Default)]
struct AdvertisedBuffers {
    write: Option<Remote>,
    read: Option<Remote>,
}

/// A session's path to the initiator while it answers one command.
struct Mover<'a, 'b, 'c> {
    queues: &'a mut WorkQueues<'b, 'c>,
    writes: &'a mut Vec<Write>,
    invalidates: bool,
    own: AdvertisedBuffers,
}

impl Iser {
    /// Accepts a connection with this private data; returns the answer's private data.
    pub(super) fn accept(ends: Ends, private_data: &[u8]) -> (Iser, Vec<u8>) {
        let announced = PrivateData::view(private_data);
        let invalidates = announced.is_some_and(|data| data.flags & PrivateData::NO_INVALIDATE == 0);
        let cannot = if invalidates { 0 } else { PrivateData::NO_INVALIDATE };
        let answer = PrivateData { flags: PrivateData::NO_ZERO_BASED | cannot, reserved: [0; 3] };
        let iser = Iser { session: Session::new(ends, true), invalidates, writes: Vec::new() };
        (iser, answer.as_bytes().to_vec())
    }
}

impl Messages for Iser {
    fn message(&mut self, message: &[u8], queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
        let short = || breach("a message that is cut short");
        let header = Header::view(message).ok_or_else(short)?;
        let (head, rest) = message
            .get(Header::BYTES..)
            .and_then(<[u8]>::split_first_chunk::<BHS_BYTES>)
            .ok_or_else(short)?;
        let basic = BasicHeader::view(head).ok_or_else(short)?;
        let segment = bytes(basic.ahs_bytes())..bytes(basic.ahs_bytes() + basic.data_segment_length.get());
        let data = rest.get(segment).ok_or_else(short)?;
        let advertised = |(stag, offset)| Remote { stag, offset };
        let own = match basic.opcode() {
            Opcode::SCSI_COMMAND => AdvertisedBuffers {
                write: header.write().map(advertised),
                read: header.read().map(advertised),
            },
            _ => AdvertisedBuffers::default(),
        };
        let (writes, invalidates) = (&mut self.writes, self.invalidates);
        self.session.pdu(head, data, &mut Mover { queues, writes, invalidates, own })
    }

    fn read(&mut self, place: u32, queues: &mut WorkQueues<'_, '_>) -> io::Result<()> {
        let write = self.writes.get(bytes(place)).copied();
        let write = write.ok_or_else(|| breach("unrequested data"))?;
        // To the session this is solicited data.
        let pdu = DataOut {
            flags: FINAL,
            data_segment_length: U24::new(write.len),
            initiator_task_tag: write.task_tag,
            target_transfer_tag: U32::new(place),
            ..DataOut::default()
        };
        let (writes, invalidates) = (&mut self.writes, self.invalidates);
        self.session.data_out(&pdu, &mut Mover { queues, writes, invalidates, own: write.own })
    }

    fn is_over(&self) -> bool {
        self.session.is_over()
    }
}

impl Datamover for Mover<'_, '_, '_> {
    fn send_control(&mut self, header: &[u8], data: &[u8]) -> io::Result<()> {
        let stag = self.own.read.or(self.own.write).map(|remote| remote.stag).filter(|_| self.invalidates);
        let padding = &PADDING[..bytes(pad(u32::try_from(data.len()).unwrap_or(0)))];
        let iser = Header::control(None, None);
        self.queues.send(&[iser.as_bytes(), header, data, padding], true, stag)
    }

    fn put_data(&mut self, pdu: &DataIn, data: Data<'_>) -> io::Result<()> {
        let to = self.own.read.ok_or_else(|| breach("a read that advertises nothing"))?;
        let offset = to.offset.wrapping_add(pdu.buffer_offset.get().into());
        self.queues.write(Remote { offset, ..to }, data)?;
        if pdu.flags & DataIn::STATUS == 0 {
            return Ok(());
        }
        let residual = if pdu.flags & DataIn::UNDERFLOW == 0 { 0 } else { ScsiResponse::UNDERFLOW };
        let response = ScsiResponse {
            flags: FINAL | residual,
            initiator_task_tag: pdu.initiator_task_tag,
            stat_sn: pdu.stat_sn,
            exp_cmd_sn: pdu.exp_cmd_sn,
            max_cmd_sn: pdu.max_cmd_sn,
            residual_count: pdu.residual_count,
            ..ScsiResponse::default()
        };
        self.send_control(response.as_bytes(), &[])
    }

    fn get_data(&mut self, pdu: &ReadyToTransfer) -> io::Result<()> {
        let place = pdu.target_transfer_tag.get();
        let (at, len) = (pdu.buffer_offset.get(), pdu.desired_data_transfer_length.get());
        if self.writes.len() <= bytes(place) {
            self.writes.resize(bytes(place) + 1, Write::default());
        }
        let write = &mut self.writes[bytes(place)];
        if pdu.r2t_sn.get() == 0 {
            *write = Write { own: self.own, task_tag: pdu.initiator_task_tag, unsolicited: at, len };
        }
        write.len = len;
        let from = write.own.write.ok_or_else(|| breach("a write that advertises nothing"))?;
        let offset = from.offset.wrapping_add(at.saturating_sub(write.unsolicited).into());
        self.queues.read(place, Remote { offset, ..from }, len)
    }
}
