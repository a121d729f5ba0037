//! iSCSI over TCP: PDUs from a stream, and Data-In that carries the status.

use super::batch::{Batch, bytes};
use super::connection::{Ends, Input, Responder};
use super::session::{Data, Datamover, Session};
use std::io;
use wire::iscsi::{BHS_BYTES, BasicHeader, DataIn, Opcode, ReadyToTransfer, pad};
use zerocopy::IntoBytes;

/// MaxRecvDataSegmentLength: the longest data segment accepted. A PDU always fits into the input buffer.
const DATA_BYTES_MAX: u32 = 262_144;
/// Zeros for padding.
const PADDING: [u8; 3] = [0; 3];

/// One end of a connection.
pub(super) struct Iscsi {
    session: Session,
    /// The PDU whose data is being discarded.
    head: Option<[u8; BHS_BYTES]>,
}

impl Iscsi {
    pub(super) fn new(ends: Ends) -> Iscsi {
        Iscsi { session: Session::new(ends, false), head: None }
    }
}

impl Responder for Iscsi {
    fn answer(&mut self, input: &mut Input, batch: &mut Batch<'_>) -> io::Result<()> {
        while !self.session.is_over() && input.skip() {
            if let Some(head) = self.head.take() {
                self.session.pdu(&head, &[], batch)?;
                continue;
            }
            let Some((head, rest)) = input.received_at().split_first_chunk::<BHS_BYTES>() else { break };
            let Some(basic) = BasicHeader::view(head) else { break };
            let len = basic.data_segment_length.get();
            if len > DATA_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a data segment that is too long"));
            }
            let ahs = bytes(basic.ahs_bytes());
            let body = ahs + bytes(len + pad(len));
            if matches!(basic.opcode(), Opcode::SCSI_COMMAND | Opcode::DATA_OUT) {
                if body > 0 {
                    self.head = Some(*head);
                } else {
                    self.session.pdu(head, &[], batch)?;
                }
                input.pass(BHS_BYTES, body);
            } else {
                let Some(data) = rest.get(..body) else { break };
                self.session.pdu(head, &data[ahs..][..bytes(len)], batch)?;
                input.pass(BHS_BYTES + body, 0);
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.session.is_over()
    }
}

impl Datamover for Batch<'_> {
    fn send_control(&mut self, header: &[u8], data: &[u8]) -> io::Result<()> {
        let padding = &PADDING[..data.len().wrapping_neg() & 3];
        self.add(&[header, data, padding], 0)
    }

    fn put_data(&mut self, pdu: &DataIn, data: Data<'_>) -> io::Result<()> {
        match data {
            Data::Own(data) => self.send_control(pdu.as_bytes(), data),
            Data::Payload(len) => self.add(&[pdu.as_bytes()], len + pad(len)),
        }
    }

    fn get_data(&mut self, pdu: &ReadyToTransfer) -> io::Result<()> {
        self.send_control(pdu.as_bytes(), &[])
    }
}
