//! The loop of a connection: receive, answer all that came, send.

use super::output::{Output, again, bytes};
use super::session::Session;
use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use wire::iscsi::{BHS_BYTES, BasicHeader, Opcode, pad};

/// Room for what one call receives.
const RECEIVE_BYTES: usize = 1 << 20;
/// MaxRecvDataSegmentLength: the longest data segment that is taken. A PDU always fits into the room.
const DATA_BYTES_MAX: u32 = 262_144;

/// What came and was not looked at yet: `begin .. end` of `room`.
struct Input {
    room: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Bytes of the PDU with this header that are to be thrown away.
    skip: usize,
    head: [u8; BHS_BYTES],
}

/// Serves a connection from there to here, until its end.
pub(super) fn serve(
    socket: &TcpStream,
    (from, portal): (SocketAddr, SocketAddr),
    size_bytes: u64,
) -> io::Result<()> {
    let mut input = Input {
        room: vec![0; RECEIVE_BYTES].into_boxed_slice(),
        begin: 0,
        end: 0,
        skip: 0,
        head: [0; BHS_BYTES],
    };
    let mut output = Output::new(socket);
    let mut session = Session::new(from, portal, size_bytes);
    while !session.is_over() && input.receive(socket)? {
        let answered = input.answer(&mut session, &mut output);
        output.send()?;
        answered?;
    }
    Ok(())
}

impl Input {
    /// Makes one call that receives something; `false` at the end of the connection.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        self.room.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        loop {
            match socket.read(&mut self.room[self.end..]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count > 0);
                }
                Err(error) => again(error)?,
            }
        }
    }

    /// Answers every PDU that is complete.
    fn answer(&mut self, session: &mut Session, output: &mut Output<'_>) -> io::Result<()> {
        while !session.is_over() {
            if self.skip > 0 {
                let step = self.skip.min(self.end - self.begin);
                self.begin += step;
                self.skip -= step;
                if self.skip > 0 {
                    break;
                }
                session.pdu(&self.head, &[], output)?;
            }
            let came = &self.room[self.begin..self.end];
            let Some((head, rest)) = came.split_first_chunk::<BHS_BYTES>() else { break };
            let Some(basic) = BasicHeader::view(head) else { break };
            let len = basic.data_segment_length.get();
            if len > DATA_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a data segment that is too long"));
            }
            let ahs = bytes(basic.ahs_bytes());
            let body = ahs + bytes(len + pad(len));
            if matches!(basic.opcode(), Opcode::SCSI_COMMAND | Opcode::DATA_OUT) {
                self.begin += BHS_BYTES;
                if body > 0 {
                    (self.skip, self.head) = (body, *head);
                } else {
                    session.pdu(head, &[], output)?;
                }
            } else {
                let Some(data) = rest.get(..body) else { break };
                session.pdu(head, &data[ahs..][..bytes(len)], output)?;
                self.begin += BHS_BYTES + body;
            }
        }
        Ok(())
    }
}
