//! A target over iSCSI that does not keep its word: it takes less data than it acknowledges, and its blocks
//! change their size.

use super::support::TARGET;
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use wire::scsi::capacity::Capacity16;
use wire::scsi::command::{Inquiry, Read16};
use wire::scsi::designator::{Designator, code_set, kind};
use wire::scsi::inquiry::{SHORT_BYTES, SPC_4, StandardData};
use wire::scsi::mode::{Caching, Header6};
use wire::scsi::status::{CHECK_CONDITION, GOOD};
use wire::scsi::vpd::{self, BlockLimits};
use wire::scsi::{code, opcode};
use wire::{Sense, SenseData, SenseKey};

const MEDIUM_BYTES: usize = 8 << 20;
const TAG_NONE: u32 = u32::MAX;
const FINAL: u8 = 0x80;

/// Opcodes (RFC 7143 section 11.2.1.2).
mod pdu {
    pub const NOP_OUT: u8 = 0x00;
    pub const SCSI_COMMAND: u8 = 0x01;
    pub const LOGIN_REQUEST: u8 = 0x03;
    pub const DATA_OUT: u8 = 0x05;
    pub const NOP_IN: u8 = 0x20;
    pub const SCSI_RESPONSE: u8 = 0x21;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const DATA_IN: u8 = 0x25;
    pub const READY_TO_TRANSFER: u8 = 0x31;
}

/// What it is, and how it misbehaves.
pub struct State {
    pub block_bytes: usize,
    pub medium: Vec<u8>,
    /// The additional sense code of a unit attention for the next command.
    pub attention: Option<u16>,
    /// The most bytes of data-out that it requests, and whether it reports a residual.
    pub takes: usize,
    pub reports_residual: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH.
    pub compare_blocks_max: u8,
    /// READ and WRITE commands that were executed.
    pub executed: u32,
}

pub struct Fake {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Fake {
    pub fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State {
            block_bytes: 512,
            medium: vec![0; MEDIUM_BYTES],
            attention: None,
            takes: usize::MAX,
            reports_residual: true,
            compare_blocks_max: 0,
            executed: 0,
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let connection = Connection {
                    socket,
                    state: shared.clone(),
                    early: VecDeque::new(),
                    stat_sn: 0,
                    exp_cmd_sn: 0,
                };
                std::thread::spawn(move || connection.serve());
            }
        });
        Fake { address, state }
    }

    pub fn url(&self) -> String {
        format!("iscsi://{}/{TARGET}/0?give_up_after=5", self.address)
    }

    pub fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("nobody panics with it"))
    }
}

struct Pdu {
    header: [u8; 48],
    data: Vec<u8>,
}

impl Pdu {
    fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(*self.header[at..].first_chunk().expect("a word"))
    }
}

/// How a command ends.
struct Answer {
    status: u8,
    data: Vec<u8>,
    /// Bytes that it was to move.
    wanted: usize,
}

impl Answer {
    fn data(data: Vec<u8>) -> Answer {
        Answer { status: GOOD, wanted: data.len(), data }
    }

    fn sense(key: SenseKey, code: u16) -> Answer {
        Answer { status: CHECK_CONDITION, data: sense_data(key, code), wanted: 0 }
    }
}

struct Connection {
    socket: TcpStream,
    state: Arc<Mutex<State>>,
    /// PDUs that arrived before the data that was awaited.
    early: VecDeque<Pdu>,
    stat_sn: u32,
    exp_cmd_sn: u32,
}

impl Connection {
    fn serve(mut self) -> Option<()> {
        loop {
            let pdu = match self.early.pop_front() {
                Some(pdu) => pdu,
                None => self.receive()?,
            };
            match pdu.opcode() {
                pdu::LOGIN_REQUEST => self.login(&pdu)?,
                pdu::NOP_OUT if pdu.word(16) == TAG_NONE => {}
                pdu::NOP_OUT => self.send(pdu::NOP_IN, FINAL, pdu.word(16), &[(20, TAG_NONE)], &[])?,
                pdu::SCSI_COMMAND => self.command(&pdu)?,
                _ => return None,
            }
        }
    }

    fn receive(&mut self) -> Option<Pdu> {
        let mut header = [0; 48];
        self.socket.read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        self.socket.read_exact(&mut data).ok()?;
        data.truncate(len);
        let pdu = Pdu { header, data };
        if pdu.opcode() == pdu::SCSI_COMMAND {
            self.exp_cmd_sn = pdu.word(24) + 1;
        }
        Some(pdu)
    }

    fn send(&mut self, code: u8, flags: u8, tag: u32, words: &[(usize, u32)], data: &[u8]) -> Option<()> {
        let mut bytes = vec![0; 48];
        (bytes[0], bytes[1]) = (code, flags);
        bytes[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        let numbers =
            [(16, tag), (24, self.stat_sn), (28, self.exp_cmd_sn), (32, self.exp_cmd_sn.wrapping_add(31))];
        for (at, word) in numbers.iter().chain(words) {
            bytes[*at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        if !matches!(code, pdu::DATA_IN | pdu::READY_TO_TRANSFER) {
            self.stat_sn += 1;
        }
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.socket.write_all(&bytes).ok()
    }

    /// Accepts everything but unsolicited data.
    fn login(&mut self, pdu: &Pdu) -> Option<()> {
        let text = String::from_utf8(pdu.data.clone()).ok()?;
        let mut answer = String::new();
        for (key, value) in text.split('\0').filter_map(|pair| pair.split_once('=')) {
            let value = match key {
                "InitiatorName" | "InitiatorAlias" | "SessionType" | "TargetName" => continue,
                "InitialR2T" => "Yes",
                "ImmediateData" => "No",
                _ => value.split(',').next()?,
            };
            answer.push_str(&format!("{key}={value}\0"));
        }
        if pdu.header[1] & 0x0c == 0 {
            answer.push_str("TargetPortalGroupTag=1\0");
        }
        self.exp_cmd_sn = pdu.word(24);
        let isid = [(8, pdu.word(8)), (12, pdu.word(12) & 0xffff_0000 | 1)];
        self.send(pdu::LOGIN_RESPONSE, pdu.header[1], pdu.word(16), &isid, answer.as_bytes())
    }

    fn command(&mut self, pdu: &Pdu) -> Option<()> {
        let (tag, expected) = (pdu.word(16), pdu.word(20) as usize);
        let cdb = &pdu.header[32..];
        let state = self.state.clone();
        let mut state = state.lock().expect("nobody panics with it");
        let answer = match (state.attention, cdb[0]) {
            (Some(code), other) if other != opcode::INQUIRY => {
                state.attention = None;
                Answer::sense(SenseKey::UnitAttention, code)
            }
            (_, opcode::WRITE_16) => self.write(&mut state, pdu, expected)?,
            _ => state.answer(cdb),
        };
        let is_good = answer.status == GOOD;
        if is_good && !answer.data.is_empty() {
            let data = &answer.data[..answer.data.len().min(expected)];
            self.send(pdu::DATA_IN, FINAL, tag, &[(20, TAG_NONE)], data)?;
        }
        let (flags, residual) = match answer.wanted {
            wanted if wanted > expected => (0x04, wanted - expected),
            wanted if wanted < expected => (0x02, expected - wanted),
            _ => (0, 0),
        };
        let head = u32::from_be_bytes([pdu::SCSI_RESPONSE, FINAL | flags, 0, answer.status]);
        let words = [(0, head), (44, residual as u32)];
        let sense = if is_good { &[][..] } else { &answer.data };
        self.send(pdu::SCSI_RESPONSE, FINAL | flags, tag, &words, sense)
    }

    /// WRITE(16), with the data-out that it requests.
    fn write(&mut self, state: &mut State, pdu: &Pdu, expected: usize) -> Option<Answer> {
        let (offset, wanted) = state.place(&pdu.header[32..]);
        let len = wanted.min(expected).min(state.takes);
        state.executed += 1;
        let mut data = Vec::new();
        if len > 0 {
            let words = [(20, 1), (44, len as u32)];
            self.send(pdu::READY_TO_TRANSFER, FINAL, pdu.word(16), &words, &[])?;
            while data.len() < len {
                let pdu = self.receive()?;
                match pdu.opcode() {
                    pdu::DATA_OUT => data.extend(pdu.data),
                    _ => self.early.push_back(pdu),
                }
            }
        }
        state.medium[offset..offset + len].copy_from_slice(&data);
        let is_short = len < wanted.min(expected);
        let wanted = match (is_short, state.reports_residual) {
            (true, true) => len,
            (true, false) => expected,
            (false, _) => wanted,
        };
        Some(Answer { status: GOOD, data: Vec::new(), wanted })
    }
}

impl State {
    /// Offset and length of READ(16) and WRITE(16).
    fn place(&self, cdb: &[u8]) -> (usize, usize) {
        let Read16 { lba, blocks, .. } = Read16::read(cdb);
        (lba as usize * self.block_bytes, blocks as usize * self.block_bytes)
    }

    fn answer(&mut self, cdb: &[u8]) -> Answer {
        match cdb[0] {
            opcode::INQUIRY if Inquiry::read(cdb).vital => self.page(Inquiry::read(cdb).page),
            opcode::INQUIRY => {
                let (vendor, product) = (*b"LIAR    ", *b"a disk, it says ");
                Answer::data(standard_data(StandardData { vendor, product, ..StandardData::ZERO }))
            }
            opcode::MODE_SENSE_6 => Answer::data(mode_data(true)),
            opcode::READ_16 => {
                let (offset, len) = self.place(cdb);
                self.executed += 1;
                Answer::data(self.medium[offset..offset + len].to_vec())
            }
            opcode::TEST_UNIT_READY | opcode::SYNCHRONIZE_CACHE_16 => Answer::data(Vec::new()),
            opcode::SERVICE_ACTION_IN_16 => {
                let blocks = (MEDIUM_BYTES / self.block_bytes) as u64;
                Answer::data(Capacity16::new(blocks, self.block_bytes as u32).to_bytes().to_vec())
            }
            _ => Answer::sense(SenseKey::IllegalRequest, code::INVALID_OPERATION_CODE),
        }
    }

    fn page(&self, code: u8) -> Answer {
        let body = match code {
            vpd::page::SUPPORTED => {
                vec![vpd::page::SUPPORTED, vpd::page::IDENTIFICATION, vpd::page::BLOCK_LIMITS]
            }
            vpd::page::IDENTIFICATION => naa(&[0x31, 1, 2, 3, 4, 5, 6, 7]),
            vpd::page::BLOCK_LIMITS => {
                let compare_and_write_max = self.compare_blocks_max;
                vpd::body(&BlockLimits { compare_and_write_max, ..BlockLimits::ZERO }.to_page()).to_vec()
            }
            _ => return Answer::sense(SenseKey::IllegalRequest, code::INVALID_FIELD_IN_CDB),
        };
        Answer::data([&vpd::header(0, code, body.len())[..], &body].concat())
    }
}

/// Standard INQUIRY data of minimum length.
pub fn standard_data(data: StandardData) -> Vec<u8> {
    let (bytes, len) = StandardData { version: SPC_4, format: 2, ..data }.cut(SHORT_BYTES);
    bytes[..len].to_vec()
}

/// The body of the device identification page, with only this designator.
pub fn naa(designator: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    Designator::of_unit(code_set::BINARY, kind::NAA, designator).write(&mut body);
    body
}

/// Sense data, after its length.
pub fn sense_data(key: SenseKey, code: u16) -> Vec<u8> {
    let sense = Sense::fixed(&SenseData::new(key, code));
    let bytes = sense.as_bytes();
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

/// The caching page, as MODE SENSE(6) returns it.
pub fn mode_data(write_cache: bool) -> Vec<u8> {
    let page = Caching { write_cache, ..Caching::ZERO }.to_page();
    let header = Header6 { following_bytes: 23, dpo_and_fua: true, ..Header6::ZERO };
    [&header.to_bytes()[..], &page].concat()
}
