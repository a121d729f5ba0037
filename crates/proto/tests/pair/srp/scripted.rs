//! A peer without a machine: the test decides what it sends.

use super::rig::{GUID, PORT};
use proto::message::{Advertised, Answer, Message, MessageMachine, Post, Receives, WorkId};
use proto::time::Time;
use std::collections::VecDeque;
use wire::scsi::command::Read12;
use wire::srp::{
    Command, Direct, IndirectHead, Layout, LoginRequest, LoginRequestRdma, LoginResponse, Opcode, Response,
    TaskFunction, TaskManagement,
};
use wire::{Places, Span};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

/// Where immediate data begins: at the furthest offset that is granted.
const IMMEDIATE_AT: u16 = 80;

/// A login that is granted.
pub(super) fn login() -> LoginRequestRdma {
    LoginRequestRdma {
        opcode: Opcode::LOGIN_REQUEST,
        req_buf_fmt: U16::new(6),
        req_flags: LoginRequest::IMMEDIATE,
        req_it_iu_len: U32::new(u32::from(IMMEDIATE_AT) + 8192),
        initiator_port_id: PORT,
        target_port_id: GUID,
        imm_data_offset: U16::new(IMMEDIATE_AT),
        ..LoginRequestRdma::default()
    }
}

pub(super) struct ScriptedPeer {
    flags: u8,
    pub outbox: VecDeque<Vec<u8>>,
    pub inbox: VecDeque<Vec<u8>>,
    freed: Vec<Span>,
    /// Requests that it may send.
    pub limit: u32,
    pub closed: bool,
}

impl ScriptedPeer {
    pub(super) fn new(flags: u8) -> ScriptedPeer {
        let (outbox, inbox) = (VecDeque::new(), VecDeque::new());
        ScriptedPeer { flags, outbox, inbox, freed: Vec::new(), limit: 0, closed: false }
    }

    /// The oldest received message, with response data and sense data.
    pub(super) fn response(&mut self) -> (Response, Vec<u8>, Vec<u8>) {
        let unit = self.inbox.pop_front().expect("a response came");
        let (response, data, sense) = Response::split(&unit).unwrap();
        assert_eq!(response.opcode, Opcode::RESPONSE);
        (*response, data.to_vec(), sense.to_vec())
    }
}

impl MessageMachine for ScriptedPeer {
    type Event = ();

    fn request(&mut self) -> Vec<u8> {
        LoginRequestRdma { req_flags: self.flags, ..login() }.as_bytes().to_vec()
    }

    fn asked(&mut self, _: Time, _: &[u8]) -> Answer {
        unreachable!("it asks")
    }

    fn established(&mut self, _: Time, private_data: &[u8]) {
        let response = LoginResponse::view(private_data).unwrap();
        assert_eq!((response.opcode, private_data.len()), (Opcode::LOGIN_RESPONSE, 52));
        self.limit = response.req_lim_delta.get();
    }

    fn receives(&self) -> Receives {
        Receives { count: 64 - self.freed.len() as u16, bytes: 256, aligned_at: 0 }
    }

    fn received(&mut self, _: Time, message: Message<'_>) {
        if matches!(Opcode(message.bytes[0]), Opcode::RESPONSE | Opcode::CREDIT_REQUEST) {
            self.limit += u32::from_be_bytes(message.bytes[4..8].try_into().unwrap());
        }
        self.inbox.push_back(message.bytes.to_vec());
        self.freed.push(message.place);
    }

    fn finished(&mut self, _: Time, _: WorkId) {}

    fn closed(&mut self, _: Time, _: &str) {
        self.closed = true;
        self.outbox.clear();
    }

    fn poll(&mut self) -> Option<()> {
        None
    }

    fn owes(&self) -> bool {
        !self.outbox.is_empty() || !self.freed.is_empty()
    }

    fn post(&mut self, _: Time, to: &mut dyn Post) {
        for place in std::mem::take(&mut self.freed) {
            to.release(place);
        }
        while let Some(unit) = self.outbox.pop_front() {
            if to.send(WorkId(0), &unit, Places::EMPTY, false, None).is_err() {
                return self.outbox.push_front(unit);
            }
            if matches!(unit.first(), Some(1 | 2)) {
                self.limit = self.limit.saturating_sub(1);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.closed
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn tick(&mut self, _: Time) {}
}

/// How the data of one direction is described.
#[derive(Clone)]
pub(super) enum Shape {
    None,
    Direct(Direct),
    /// A table anywhere, and how many of its descriptors are in the command.
    Table {
        list: Vec<Direct>,
        listed: usize,
        at: Advertised,
        len: u32,
    },
    Immediate(Vec<u8>),
}

impl Shape {
    fn format(&self) -> u8 {
        match self {
            Shape::None => 0,
            Shape::Direct(_) => 1,
            Shape::Table { .. } => 2,
            Shape::Immediate(_) => 3,
        }
    }

    fn listed(&self) -> u8 {
        if let Shape::Table { listed, .. } = self { *listed as u8 } else { 0 }
    }

    fn descriptor(&self) -> Vec<u8> {
        match self {
            Shape::None => Vec::new(),
            Shape::Direct(direct) => direct.as_bytes().to_vec(),
            Shape::Table { list, listed, at, len } => {
                let table = Direct::new(at.offset, at.stag, list.len() as u32 * 16);
                let head = IndirectHead { table, len: U32::new(*len) };
                [head.as_bytes(), list[..*listed].as_bytes()].concat()
            }
            Shape::Immediate(data) => (data.len() as u32).to_be_bytes().to_vec(),
        }
    }
}

/// An SRP_CMD.
pub(super) fn command(tag: u64, cdb: &[u8; 16], data_out: &Shape, data_in: &Shape) -> Vec<u8> {
    let head = Command {
        opcode: Opcode::COMMAND,
        buf_fmt: (data_out.format() << 4) | data_in.format(),
        data_out_desc_cnt: data_out.listed(),
        data_in_desc_cnt: data_in.listed(),
        tag: U64::new(tag),
        cdb: *cdb,
        ..Command::default()
    };
    let mut unit = [head.as_bytes(), &data_out.descriptor(), &data_in.descriptor()].concat();
    if let Shape::Immediate(data) = data_out {
        unit.resize(IMMEDIATE_AT.into(), 0);
        unit.extend(data);
    }
    unit
}

/// A command for the device, and for tests without one: what to do, where on the disk, how many bytes.
pub(super) fn cdb(opcode: u8, disk: u32, len: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    Read12::new(disk, len).write(&mut cdb);
    cdb[0] = opcode;
    cdb
}

/// An SRP_TSK_MGMT.
pub(super) fn function(tag: u64, function: TaskFunction, task_tag: u64) -> Vec<u8> {
    let request = TaskManagement {
        opcode: Opcode::TASK_MANAGEMENT,
        tag: U64::new(tag),
        function,
        task_tag: U64::new(task_tag),
        ..TaskManagement::default()
    };
    request.as_bytes().to_vec()
}
