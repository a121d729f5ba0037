//! iSER's target, and an initiator played by the test.

use super::rig::target;
use crate::support::fabric::{Node, Op};
use crate::support::rig::START;
use crate::support::{DISK, INITIATOR, Memory, Random, Setup, TARGET};
use proto::iser::target::Target;
use proto::message::{Answer, MessageMachine, WorkId};
use proto::services::{Command, Down, Ending, Session, Up};
use proto::time::Time;
use wire::iscsi::{
    BHS_BYTES, BasicHeader, FINAL, LoginRequest, LoginResponse, Opcode, Pdu, Reject, RejectReason,
    ScsiCommand, U24,
};
use wire::iser::Header;
use wire::{BufferId, Places, Span};
use zerocopy::IntoBytes;

pub(super) const GOOD: Ending = Ending { status: 0, sense: None, read_bytes: 0, write_bytes: 0 };
/// What Linux offers in its operational stage.
pub(super) const LINUX: &str = "HeaderDigest=None\0DataDigest=None\0DefaultTime2Wait=2\0DefaultTime2Retain=0\0IFMarker=No\0\
    OFMarker=No\0ErrorRecoveryLevel=0\0InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=16776192\0\
    FirstBurstLength=262144\0MaxOutstandingR2T=1\0MaxConnections=1\0DataPDUInOrder=Yes\0DataSequenceInOrder=Yes\0\
    RDMAExtensions=Yes\0InitiatorRecvDataSegmentLength=262144\0TargetRecvDataSegmentLength=8192\0";

/// A target, and what its initiator sees.
pub(super) struct Raw {
    pub node: Node<Target>,
    pub memory: Memory,
    random: Random,
    pub now: Time,
    pub session: Option<Session>,
}

impl Raw {
    pub(super) fn new(private_data: &[u8]) -> Raw {
        let mut random = Random::new(1);
        let memory = Memory::new(&mut random);
        let mut machine = target(&mut Setup::default());
        assert!(matches!(machine.asked(START, private_data), Answer::Accept(_)));
        machine.established(START, &[]);
        let mut raw =
            Raw { node: Node::new(machine, BufferId(3)), memory, random, now: START, session: None };
        raw.post();
        raw
    }

    /// Logged in with these keys.
    pub(super) fn logged_in(keys: &str) -> (Raw, String) {
        let mut raw = Raw::new(&[0x80, 0, 0, 0]);
        let text = raw.login(keys);
        (raw, text)
    }

    pub(super) fn login(&mut self, keys: &str) -> String {
        self.login_to(&format!("TargetName={TARGET}\0SessionType=Normal\0{keys}"))
    }

    pub(super) fn login_to(&mut self, keys: &str) -> String {
        let pdu = LoginRequest {
            opcode: Opcode::LOGIN_REQUEST.0 | Opcode::IMMEDIATE,
            flags: LoginRequest::TRANSIT | 0x07,
            cmd_sn: 1.into(),
            ..LoginRequest::default()
        };
        let text = format!("InitiatorName={INITIATOR}\0{keys}");
        self.send(Header::control(None, None), pdu.as_bytes(), text.as_bytes());
        if let Some(Up::Ready(session)) = self.node.machine.poll() {
            assert_eq!(session.initiator, INITIATOR);
            self.quiet();
            self.session = Some(*session);
            self.down(Down::Admit);
        }
        let (bhs, text, _) = self.sent::<LoginResponse>();
        assert!(bhs.status.class != 0 || bhs.flags & LoginResponse::TRANSIT != 0, "{bhs:?}");
        String::from_utf8(text).unwrap()
    }

    pub(super) fn post(&mut self) {
        while self.node.post(self.now, &mut self.memory, &mut self.random) {}
    }

    /// A message arrives, with a PDU and its data.
    pub(super) fn send(&mut self, header: Header, pdu: &[u8], data: &[u8]) {
        let mut pdu = pdu.to_vec();
        pdu[5..8].copy_from_slice(U24::new(data.len() as u32).as_bytes());
        self.send_bytes([header.as_bytes(), &pdu, data].concat());
    }

    pub(super) fn send_bytes(&mut self, bytes: Vec<u8>) {
        self.node.inject(self.now, &mut self.memory, &bytes, None);
        self.post();
    }

    pub(super) fn down(&mut self, down: Down) {
        self.node.machine.down(self.now, down);
        self.post();
    }

    pub(super) fn up(&mut self) -> Up {
        self.node.machine.poll().expect("an event")
    }

    pub(super) fn command(&mut self) -> Command {
        match self.up() {
            Up::Command(command) => command,
            other => panic!("{other:?}"),
        }
    }

    /// Why the connection has ended, which is reported once it is closed.
    pub(super) fn gone(&mut self) -> String {
        assert!(self.node.machine.is_over());
        self.node.close(self.now, "closed");
        loop {
            match self.up() {
                Up::Gone { reason } => {
                    assert!(self.node.machine.poll().is_none(), "the end comes last");
                    return reason;
                }
                Up::Command(_) | Up::Refused { .. } | Up::FetchFailed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Work is finished.
    pub(super) fn finished(&mut self, work: WorkId) {
        self.node.machine.finished(self.now, work);
        self.post();
    }

    /// The oldest work that the target has posted.
    pub(super) fn posted(&mut self) -> Op {
        self.node.port.queue.pop_front().expect("posted work")
    }

    /// The oldest work is a message with this PDU, which is then reported as finished.
    pub(super) fn sent<P: Pdu>(&mut self) -> (P, Vec<u8>, Option<u32>) {
        match self.posted() {
            Op::Send { work, header, payload, invalidate, .. } => {
                assert!(payload.is_empty());
                self.finished(work);
                let pdu = &header[28..];
                let basic = BasicHeader::view(pdu).unwrap();
                assert_eq!((header[0], basic.opcode()), (0x10, P::OPCODE), "{header:?}");
                let len = basic.data_segment_length.get() as usize;
                (*P::view(pdu).unwrap(), pdu[BHS_BYTES..BHS_BYTES + len].to_vec(), invalidate)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn rejected(&mut self, reason: RejectReason) {
        assert!(matches!(self.up(), Up::Refused { .. }));
        assert_eq!(self.sent::<Reject>().0.reason, reason);
    }

    pub(super) fn quiet(&mut self) {
        assert!(self.node.machine.poll().is_none() && self.node.port.queue.is_empty());
    }
}

pub(super) fn read(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand {
        flags: FINAL | ScsiCommand::READ | ScsiCommand::SIMPLE,
        initiator_task_tag: tag.into(),
        expected_data_transfer_length: len.into(),
        cmd_sn: cmd_sn.into(),
        ..ScsiCommand::default()
    }
}

pub(super) fn write(tag: u32, cmd_sn: u32, len: u32) -> ScsiCommand {
    ScsiCommand { flags: FINAL | ScsiCommand::WRITE | ScsiCommand::SIMPLE, ..read(tag, cmd_sn, len) }
}

pub(super) fn disk(at: u32, len: u32) -> Places {
    Places::one(Span { buffer: DISK, offset: at.into(), len })
}
