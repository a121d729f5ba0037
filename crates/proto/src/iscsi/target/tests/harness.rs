//! A driver that obeys [`Want`] over memory, and short ways to build PDUs.

use crate::iscsi::login::{Access, Grant, Negotiated, Offers, Refusal, SendTargets, TargetRecord};
use crate::iscsi::target::{Target, TargetConfig};
use crate::services::{Command, Down, Ending, Session, TaskId, Up};
use crate::stream::{Segment, StreamMachine, Transmit, Want};
use crate::time::Time;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wire::iscsi::{
    BHS_BYTES, BasicHeader, DataOut, FINAL, Opcode, Pdu, RejectReason, ScsiCommand, TAG_NONE, U24, pad,
};
use wire::{BufferId, Places, Span};
use zerocopy::IntoBytes;

pub(crate) const GOOD: Ending = Ending { status: 0, sense: None, read_bytes: 0, write_bytes: 0 };

/// CRC32C bit by bit.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

/// Whether logins are granted.
struct Door(bool);

impl Access for Door {
    fn authorize(
        &self,
        _: &str,
        _: Option<&str>,
        _: SocketAddr,
        _: SocketAddr,
        _: [u8; 6],
    ) -> Result<Grant, Refusal> {
        let grant = Grant { group: 1, alias: None, chap: None, session: None, queue_depth: None };
        if self.0 { Ok(grant) } else { Err(Refusal::NotFound) }
    }

    fn send_targets(
        &self,
        _: &str,
        _: SocketAddr,
        _: SocketAddr,
        which: SendTargets<'_>,
    ) -> Vec<TargetRecord> {
        let SendTargets::One(name) = which else { return Vec::new() };
        vec![TargetRecord { name: name.to_string(), portals: Vec::new() }]
    }

    fn random(&self, _: &mut [u8]) {}

    fn new_tsih(&self) -> u16 {
        1
    }
}

/// One PDU that the target sent.
#[derive(Debug)]
pub(crate) struct Got {
    pub header: [u8; BHS_BYTES],
    pub data: Vec<u8>,
}

impl Got {
    pub(crate) fn view<P: Pdu>(&self) -> P {
        assert_eq!(self.header[0] & Opcode::MASK, P::OPCODE.0, "{self:?}");
        *P::view(&self.header).unwrap()
    }
}

pub(crate) struct Driver {
    pub target: Target,
    pub now: Time,
    /// Buffer 1: where fetched data goes and pushed data comes from.
    pub memory: Vec<u8>,
    /// What the machine has not requested yet.
    pub pending: Vec<u8>,
    pub done: Vec<TaskId>,
    digests: (bool, bool),
}

impl Driver {
    /// A machine in the full feature phase.
    pub(crate) fn new(change: impl FnOnce(&mut Negotiated)) -> Driver {
        let mut negotiated = Negotiated {
            header_digest: false,
            data_digest: false,
            initial_r2t: false,
            immediate_data: true,
            max_recv_initiator: 1024,
            max_recv_target: 8192,
            first_burst: 2048,
            max_burst: 4096,
            max_outstanding_r2t: 1,
            discovery: false,
            rdma: None,
            portal_group: None,
            session: Session {
                initiator: "iqn.a".into(),
                alias: None,
                target: None,
                isid: [0; 6],
                tsih: 1,
                cid: 0,
                keeps_others: false,
                negotiated: Vec::new(),
                transport_id: Vec::new(),
            },
        };
        change(&mut negotiated);
        let mut driver = Driver::at_login();
        driver.digests = (negotiated.header_digest, negotiated.data_digest);
        driver.target.layer.begin(Box::new(negotiated));
        driver
    }

    /// A machine whose connection was just accepted.
    pub(crate) fn at_login() -> Driver {
        Driver::before(Door(false))
    }

    /// The same where all logins are granted.
    pub(crate) fn at_open_login() -> Driver {
        Driver::before(Door(true))
    }

    fn before(door: Door) -> Driver {
        let config = TargetConfig {
            queue_depth: 4,
            login_within: Duration::from_secs(10),
            idle: Duration::from_secs(5),
            crc32c,
            offers: Offers::default(),
        };
        let address = "127.0.0.1:3260".parse().unwrap();
        Driver {
            target: Target::new(config, Arc::new(door), address, address, Time(0)),
            now: Time(0),
            memory: (0..16384u32).map(|n| u8::try_from(n % 251).unwrap()).collect(),
            pending: Vec::new(),
            done: Vec::new(),
            digests: (false, false),
        }
    }

    /// Bytes `at .. at + len` of buffer 1.
    pub(crate) fn places(at: u32, len: u32) -> Places {
        Places::one(Driver::span(at, len))
    }

    pub(crate) fn span(at: u32, len: u32) -> Span {
        Span { buffer: BufferId(1), len, offset: u64::from(at) }
    }

    /// Sends one PDU with the negotiated digests.
    pub(crate) fn send(&mut self, header: &[u8], data: &[u8]) {
        let mut header = header.to_vec();
        let len = U24::new(u32::try_from(data.len()).unwrap());
        header[5..8].copy_from_slice(len.as_bytes());
        if self.digests.0 {
            let sum = crc32c(&header);
            header.extend(sum.to_le_bytes());
        }
        let mut data = data.to_vec();
        data.resize(data.len().next_multiple_of(4), 0);
        if self.digests.1 && !data.is_empty() {
            let sum = crc32c(&data);
            data.extend(sum.to_le_bytes());
        }
        self.pending.extend(header);
        self.pending.extend(data);
        self.run();
    }

    /// Provides what the machine wants as far as it is available.
    pub(crate) fn run(&mut self) {
        loop {
            let want = self.target.want();
            let (place, len, pad, digest) = match want {
                Want::Nothing => return,
                Want::Header { len } => {
                    let len = usize::try_from(len).unwrap();
                    if self.pending.len() < len {
                        return;
                    }
                    let bytes: Vec<u8> = self.pending.drain(..len).collect();
                    self.target.header(self.now, &bytes);
                    continue;
                }
                Want::Body { place, pad, digest } => (place, place.len(), pad, digest),
                Want::Skip { len, pad, digest } => (Places::EMPTY, len, pad, digest),
            };
            let body = usize::try_from(len + pad).unwrap();
            let whole = body + if digest.is_some() { 4 } else { 0 };
            if self.pending.len() < whole {
                return;
            }
            let bytes: Vec<u8> = self.pending.drain(..whole).collect();
            let ok = digest.is_none() || bytes[body..] == crc32c(&bytes[..body]).to_le_bytes();
            let mut from = 0;
            for span in place.iter() {
                let (at, len) = (usize::try_from(span.offset).unwrap(), usize::try_from(span.len).unwrap());
                self.memory[at..at + len].copy_from_slice(&bytes[from..from + len]);
                from += len;
            }
            self.target.body(self.now, ok);
        }
    }

    pub(crate) fn down(&mut self, down: Down) {
        self.target.down(self.now, down);
        self.run();
    }

    pub(crate) fn end(&mut self, task: TaskId, ending: Ending) {
        self.down(Down::End { task, ending });
    }

    pub(crate) fn up(&mut self) -> Option<Up> {
        self.target.poll()
    }

    /// The next event reports that the initiator violated the standard in this way.
    pub(crate) fn refused(&mut self, why: &str) {
        match self.up() {
            Some(Up::Refused { reason }) => assert!(reason.contains(why), "{reason}"),
            other => panic!("no refusal but {other:?}"),
        }
    }

    pub(crate) fn command(&mut self) -> Command {
        match self.up() {
            Some(Up::Command(command)) => command,
            other => panic!("no command but {other:?}"),
        }
    }

    pub(crate) fn gone(&mut self) -> String {
        match self.up() {
            Some(Up::Gone { reason }) => {
                assert!(self.target.finished());
                reason
            }
            other => panic!("not gone but {other:?}"),
        }
    }

    /// The session ends, but its last PDU has not been sent.
    pub(crate) fn leaving(&mut self) {
        assert!(matches!(self.up(), Some(Up::Leaving)));
    }

    pub(crate) fn quiet(&mut self) {
        assert!(self.up().is_none());
        assert!(self.sent().is_empty());
    }

    /// Everything that the target owes, with digests and padding checked.
    pub(crate) fn sent(&mut self) -> Vec<Got> {
        let mut bytes = Vec::new();
        while self.target.owes() {
            let mut batch = Transmit::default();
            self.target.transmit(self.now, &mut batch);
            assert!(batch.bytes.len() <= Transmit::BYTES_MAX);
            assert!(batch.segments.len() <= Transmit::SEGMENTS_MAX);
            self.done.append(&mut batch.done);
            self.flatten(&batch, &mut bytes);
        }
        self.run();
        self.parse(&bytes)
    }

    /// The PDUs of one batch.
    pub(crate) fn sent_in(&self, batch: &Transmit) -> Vec<Got> {
        let mut bytes = Vec::new();
        self.flatten(batch, &mut bytes);
        self.parse(&bytes)
    }

    fn flatten(&self, batch: &Transmit, out: &mut Vec<u8>) {
        let start = out.len();
        let (mut at, mut sum) = (0, 0);
        for segment in &batch.segments {
            match *segment {
                Segment::Bytes { len } => {
                    let len = usize::try_from(len).unwrap();
                    out.extend(&batch.bytes[at..at + len]);
                    at += len;
                }
                Segment::Payload(span) => {
                    let from = usize::try_from(span.offset).unwrap();
                    out.extend(&self.memory[from..from + usize::try_from(span.len).unwrap()]);
                }
                Segment::SumStart => sum = out.len(),
                Segment::Sum => out.extend(crc32c(&out[sum..]).to_le_bytes()),
            }
        }
        assert_eq!(at, batch.bytes.len());
        assert_eq!(out.len() - start, usize::try_from(batch.total_bytes).unwrap());
    }

    fn parse(&self, mut bytes: &[u8]) -> Vec<Got> {
        let mut all = Vec::new();
        while let Some((header, rest)) = bytes.split_first_chunk::<BHS_BYTES>() {
            bytes = rest;
            check(&mut bytes, header, self.digests.0);
            let len = BasicHeader::view(header).unwrap().data_segment_length.get();
            let (data, rest) = bytes.split_at(usize::try_from(len + pad(len)).unwrap());
            bytes = rest;
            check(&mut bytes, data, self.digests.1 && len > 0);
            let data = data[..usize::try_from(len).unwrap()].to_vec();
            all.push(Got { header: *header, data });
        }
        assert!(bytes.is_empty());
        all
    }

    /// The only PDU that the target owes.
    pub(crate) fn one<P: Pdu>(&mut self) -> (P, Vec<u8>) {
        let mut all = self.sent();
        assert_eq!(all.len(), 1, "{all:?}");
        let got = all.remove(0);
        (got.view(), got.data)
    }

    /// The target owes one Reject for this reason, of the PDU with this header, and logs that.
    pub(crate) fn rejected(&mut self, reason: RejectReason, opcode: Opcode) {
        self.refused("RFC 7143");
        let (pdu, data) = self.one::<wire::iscsi::Reject>();
        assert_eq!(pdu.reason, reason);
        assert_eq!((data.len(), data[0] & Opcode::MASK), (BHS_BYTES, opcode.0));
    }
}

/// Checks the digest of `part` where there is one.
fn check(bytes: &mut &[u8], part: &[u8], digest: bool) {
    if digest {
        let (sum, rest) = bytes.split_at(4);
        assert_eq!(sum, crc32c(part).to_le_bytes());
        *bytes = rest;
    }
}

/// A READ of `len` bytes.
pub(crate) fn read(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand {
        flags: FINAL | ScsiCommand::READ | ScsiCommand::SIMPLE,
        initiator_task_tag: tag.into(),
        expected_data_transfer_length: len.into(),
        cmd_sn: cmd_sn.into(),
        ..ScsiCommand::default()
    }
}

/// A WRITE of `len` bytes without unsolicited data.
pub(crate) fn write(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand { flags: FINAL | ScsiCommand::WRITE | ScsiCommand::SIMPLE, ..read(tag, cmd_sn, len) }
}

/// A Data-Out; unsolicited with `transfer` [`TAG_NONE`].
pub(crate) fn data_out(tag: u32, transfer: u32, data_sn: u32, offset: u32, last: bool) -> DataOut {
    DataOut {
        flags: if last { FINAL } else { 0 },
        initiator_task_tag: tag.into(),
        target_transfer_tag: transfer.into(),
        data_sn: data_sn.into(),
        buffer_offset: offset.into(),
        ..DataOut::default()
    }
}

/// Unsolicited Data-Out.
pub(crate) fn unsolicited(tag: u32, data_sn: u32, offset: u32, last: bool) -> DataOut {
    data_out(tag, TAG_NONE, data_sn, offset, last)
}
