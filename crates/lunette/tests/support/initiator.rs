//! A small blocking iSCSI initiator (RFC 7143). It shares no code with the daemon, and so no bugs, except for
//! the layouts of commands: those are compared with the standards' bytes where they are declared.

use super::daemon::Url;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use wire::Cdb;
use wire::scsi::Command;
use wire::scsi::command::{PersistentReserveOut, Read16, SynchronizeCache16, TestUnitReady, Write16};
use wire::scsi::parameters::ReserveOutList;

/// How long the target may be silent while a PDU is expected.
const PATIENCE: Duration = Duration::from_secs(120);
/// Task attribute (RFC 7143 section 11.3.1).
const SIMPLE: u8 = 1;
const NO_TAG: u32 = u32::MAX;
const HEADER_BYTES: usize = 48;
const UNIT_ATTENTION: u8 = 6;

/// The parameters of a login.
#[derive(Clone)]
pub struct Login {
    /// The initiator's name.
    pub name: String,
    /// Initiator session id.
    pub isid: [u8; 6],
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
}

impl Login {
    /// A login by this name without digests.
    pub fn named(name: &str) -> Self {
        let isid = [0x80, 0, 0, 0, 0, 1];
        Self {
            name: format!("iqn.2026-11.io.lunette.test:{name}"),
            isid,
            header_digest: false,
            data_digest: false,
        }
    }

    /// The same with both digests.
    pub fn with_digests(self) -> Self {
        Self { header_digest: true, data_digest: true, ..self }
    }
}

/// A PDU without its digests.
pub struct Pdu {
    /// The basic header segment.
    pub header: [u8; HEADER_BYTES],
    /// The data segment without padding.
    pub data: Vec<u8>,
}

impl Pdu {
    /// A PDU with an opcode and the flags of byte 1.
    pub fn new(opcode: u8, flags: u8) -> Self {
        let mut header = [0; HEADER_BYTES];
        header[..2].copy_from_slice(&[opcode, flags]);
        Self { header, data: Vec::new() }
    }

    /// Sets the CDB.
    pub fn set_cdb(&mut self, cdb: impl Into<Cdb>) {
        let cdb = cdb.into();
        self.header[32..][..cdb.as_bytes().len()].copy_from_slice(cdb.as_bytes());
    }

    /// Sets four bytes.
    pub fn word(mut self, at: usize, value: u32) -> Self {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Sets the LUN.
    pub fn lun(mut self, lun: u16) -> Self {
        // Peripheral device addressing up to 255, flat space above (SAM-5 section 4.7.7).
        let field = if lun < 256 { lun } else { 0x4000 | lun };
        self.header[8..10].copy_from_slice(&field.to_be_bytes());
        self
    }

    /// Sets the data segment.
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    /// Reads four bytes.
    pub fn word_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().expect("four bytes"))
    }

    /// The opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Response {
    /// SCSI status.
    pub status: u8,
    /// Sense data.
    pub sense: Vec<u8>,
    /// Data-in.
    pub data: Vec<u8>,
}

impl Response {
    /// The sense key of fixed or descriptor sense data.
    pub fn sense_key(&self) -> Option<u8> {
        let at = if self.sense.first()? & 0x7f >= 0x72 { 1 } else { 2 };
        self.sense.get(at).map(|byte| byte & 0x0f)
    }
}

/// A command in flight: its data-out, and what has been received.
struct Outstanding {
    lun: u16,
    out: Vec<u8>,
    data: Vec<u8>,
}

/// A logged-in session with one connection.
pub struct Initiator {
    stream: TcpStream,
    header_digest: bool,
    data_digest: bool,
    initial_r2t: bool,
    immediate_data: bool,
    first_burst: usize,
    segment_max: usize,
    next_tag: u32,
    cmd_sn: u32,
    max_cmd_sn: u32,
    exp_stat_sn: u32,
    outstanding: BTreeMap<u32, Outstanding>,
    ended: BTreeMap<u32, Response>,
    /// What is sent by [`Initiator::release`].
    gathered: Option<Vec<u8>>,
}

impl Initiator {
    /// Connects and logs in to a normal session.
    pub fn login(url: &Url, login: &Login) -> Result<Self> {
        Self::login_over(TcpStream::connect_timeout(&url.portal, PATIENCE)?, url, login)
    }

    /// The same over this connection.
    pub fn login_over(stream: TcpStream, url: &Url, login: &Login) -> Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut initiator = Self {
            stream,
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            first_burst: 65536,
            segment_max: 8192,
            next_tag: 1,
            cmd_sn: 1,
            max_cmd_sn: 1,
            exp_stat_sn: 0,
            outstanding: BTreeMap::new(),
            ended: BTreeMap::new(),
            gathered: None,
        };
        let answers = initiator.negotiate(login, &url.target)?;
        initiator.apply_negotiated(&answers);
        Ok(initiator)
    }

    /// Sends the keys, straight to the operational stage, until the target goes to the full feature phase.
    fn negotiate(&mut self, login: &Login, target: &str) -> Result<BTreeMap<String, String>> {
        let mut text = login_text(login, target);
        let mut answers = BTreeMap::new();
        loop {
            let mut request =
                Pdu::new(0x43, 0x87).word(24, self.cmd_sn).word(28, self.exp_stat_sn).data(&text);
            request.header[8..14].copy_from_slice(&login.isid);
            self.send(&request)?;
            let response = self.receive()?;
            if response.opcode() != 0x23 || response.header[36] != 0 {
                return fault(format!(
                    "login refused: opcode {:#x}, status class {}, detail {}",
                    response.opcode(),
                    response.header[36],
                    response.header[37]
                ));
            }
            self.exp_stat_sn = response.word_at(24).wrapping_add(1);
            self.max_cmd_sn = response.word_at(32);
            answers.extend(pairs(&response.data));
            if response.header[1] & 0x83 == 0x83 {
                return Ok(answers);
            }
            text.clear();
        }
    }

    fn apply_negotiated(&mut self, answers: &BTreeMap<String, String>) {
        let is = |key: &str, value: &str| answers.get(key).is_some_and(|answer| answer == value);
        let number =
            |key: &str, default: usize| answers.get(key).and_then(|v| v.parse().ok()).unwrap_or(default);
        self.header_digest = is("HeaderDigest", "CRC32C");
        self.data_digest = is("DataDigest", "CRC32C");
        self.initial_r2t = !is("InitialR2T", "No");
        self.immediate_data = !is("ImmediateData", "No");
        self.first_burst = number("FirstBurstLength", self.first_burst);
        self.segment_max = number("MaxRecvDataSegmentLength", self.segment_max);
    }

    /// Whether both digests were negotiated.
    pub fn has_digests(&self) -> bool {
        self.header_digest && self.data_digest
    }

    /// Runs a command that reads up to `len` bytes.
    pub fn read(&mut self, lun: u16, cdb: impl Into<Cdb>, len: usize) -> Result<Response> {
        let tag = self.issue(lun, cdb, len, Vec::new())?;
        self.complete(tag)
    }

    /// Runs a command that writes `out`.
    pub fn write(&mut self, lun: u16, cdb: impl Into<Cdb>, out: &[u8]) -> Result<Response> {
        let tag = self.issue(lun, cdb, 0, out.to_vec())?;
        self.complete(tag)
    }

    /// Sends a command and its unsolicited data; its end is fetched with [`Self::complete`].
    pub fn issue(&mut self, lun: u16, cdb: impl Into<Cdb>, read_len: usize, out: Vec<u8>) -> Result<u32> {
        self.issue_as(SIMPLE, lun, cdb, read_len, out)
    }

    /// The same with another task attribute than simple.
    pub fn issue_as(
        &mut self,
        attribute: u8,
        lun: u16,
        cdb: impl Into<Cdb>,
        read_len: usize,
        out: Vec<u8>,
    ) -> Result<u32> {
        while self.cmd_sn.wrapping_sub(self.max_cmd_sn).cast_signed() > 0 {
            self.turn()?;
        }
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1) & 0x7fff_ffff;
        let immediate =
            if self.immediate_data { out.len().min(self.first_burst).min(self.segment_max) } else { 0 };
        let unsolicited = if self.initial_r2t { immediate } else { out.len().min(self.first_burst) };
        let direction = if !out.is_empty() { 0x20 } else { u8::from(read_len > 0) << 6 };
        let last = if unsolicited > immediate { 0 } else { 0x80 };
        let expected = u32::try_from(out.len().max(read_len)).expect("a command's data fits");
        let mut command = Pdu::new(0x01, last | direction | attribute)
            .lun(lun)
            .word(16, tag)
            .word(20, expected)
            .word(24, self.cmd_sn)
            .word(28, self.exp_stat_sn)
            .data(&out[..immediate]);
        command.set_cdb(cdb);
        self.skip_cmd_sn();
        self.outstanding.insert(tag, Outstanding { lun, out, data: Vec::new() });
        self.send(&command)?;
        if unsolicited > immediate {
            self.send_data(tag, NO_TAG, immediate, unsolicited)?;
        }
        Ok(tag)
    }

    /// Waits for a command's end.
    pub fn complete(&mut self, tag: u32) -> Result<Response> {
        loop {
            if let Some(response) = self.ended.remove(&tag) {
                return Ok(response);
            }
            self.turn()?;
        }
    }

    /// Waits for the end of any command that is in flight.
    pub fn complete_any(&mut self) -> Result<(u32, Response)> {
        loop {
            if let Some(first) = self.ended.pop_first() {
                return Ok(first);
            }
            self.turn()?;
        }
    }

    /// Reads blocks, after unit attentions.
    pub fn read_blocks(&mut self, lun: u16, lba: u64, blocks: u32, block_bytes: u32) -> Result<Vec<u8>> {
        let len = usize::try_from(u64::from(blocks) * u64::from(block_bytes)).expect("fits");
        let cdb = Read16::new(lba, blocks).to_cdb();
        good(cdb, || self.read(lun, cdb, len)).map(|response| response.data)
    }

    /// Writes whole blocks, after unit attentions; `durable` sets FUA.
    pub fn write_blocks(
        &mut self,
        lun: u16,
        lba: u64,
        block_bytes: u32,
        out: &[u8],
        durable: bool,
    ) -> Result<()> {
        let cdb = write_cdb(lba, out.len(), block_bytes, durable);
        good(cdb, || self.write(lun, cdb, out)).map(|_| ())
    }

    /// Makes everything written durable (SYNCHRONIZE CACHE), after unit attentions.
    pub fn synchronize(&mut self, lun: u16) -> Result<()> {
        let cdb = SynchronizeCache16::ZERO.to_cdb();
        good(cdb, || self.read(lun, cdb, 0)).map(|_| ())
    }

    /// TEST UNIT READY, after unit attentions.
    pub fn ready(&mut self, lun: u16) -> Result<()> {
        let cdb = TestUnitReady {}.to_cdb();
        good(cdb, || self.read(lun, cdb, 0)).map(|_| ())
    }

    /// Waits until a unit is ready: on a busy machine, its store may open only after the daemon has stopped
    /// waiting for it.
    pub fn wait_until_ready(&mut self, lun: u16) {
        let begin = Instant::now();
        while let Err(error) = self.ready(lun) {
            assert!(begin.elapsed() < PATIENCE, "the unit is not ready: {error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a task management request and waits for its response code. The referenced task, if any, is the
    /// last command sent.
    pub fn manage(&mut self, function: u8, lun: u16, referenced_tag: u32) -> Result<u8> {
        let tag = self.ask_to_manage(function, lun, referenced_tag)?;
        self.complete(tag).map(|response| response.status)
    }

    /// Sends a task management request; its response code is the status of [`Self::complete`].
    pub fn ask_to_manage(&mut self, function: u8, lun: u16, referenced_tag: u32) -> Result<u32> {
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1) & 0x7fff_ffff;
        let request = Pdu::new(0x42, 0x80 | function)
            .lun(lun)
            .word(16, tag)
            .word(20, referenced_tag)
            .word(24, self.cmd_sn)
            .word(28, self.exp_stat_sn)
            .word(32, self.cmd_sn.wrapping_sub(1));
        self.outstanding.insert(tag, Outstanding { lun, out: Vec::new(), data: Vec::new() });
        self.send(&request)?;
        Ok(tag)
    }

    /// Whether the target has answered a request, as far as its PDUs were received.
    pub fn has_ended(&self, tag: u32) -> bool {
        self.ended.contains_key(&tag)
    }

    /// Logs out and waits for the answer.
    pub fn logout(mut self) -> Result<()> {
        let request =
            Pdu::new(0x46, 0x80).word(16, self.next_tag).word(24, self.cmd_sn).word(28, self.exp_stat_sn);
        self.send(&request)?;
        while self.receive()?.opcode() != 0x26 {}
        Ok(())
    }

    /// The CmdSN of the next command, for tests that send their own.
    pub fn next_cmd_sn(&self) -> u32 {
        self.cmd_sn
    }

    /// How many commands the target allows from now on.
    pub fn window(&self) -> usize {
        self.max_cmd_sn.wrapping_sub(self.cmd_sn).wrapping_add(1) as usize
    }

    /// The StatSN of the next status.
    pub fn next_stat_sn(&self) -> u32 {
        self.exp_stat_sn
    }

    /// Counts a command that a test has sent itself.
    pub fn skip_cmd_sn(&mut self) {
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
    }

    /// The socket, for tests that violate rules.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Receives one PDU from the target and does what it requires.
    fn turn(&mut self) -> Result<()> {
        let pdu = self.receive()?;
        let tag = pdu.word_at(16);
        self.max_cmd_sn = pdu.word_at(32);
        match pdu.opcode() {
            0x20 => self.on_nop(&pdu),
            0x21 | 0x22 => {
                self.advance(&pdu)?;
                let (status, sense) = if pdu.opcode() == 0x22 {
                    (pdu.header[2], Vec::new())
                } else if pdu.header[2] != 0 {
                    return fault(format!("response {:#x}: not completed at target", pdu.header[2]));
                } else {
                    (pdu.header[3], pdu.data.get(2..).unwrap_or_default().to_vec())
                };
                self.end(tag, status, sense)
            }
            0x25 => self.on_data(&pdu),
            0x31 => {
                let (from, len) = (pdu.word_at(40) as usize, pdu.word_at(44) as usize);
                self.send_data(tag, pdu.word_at(20), from, from + len)
            }
            0x32 => {
                self.advance(&pdu)?;
                Err(Error::new(
                    ErrorKind::ConnectionAborted,
                    format!("asynchronous event {}", pdu.header[36]),
                ))
            }
            0x3f => fault(format!("rejected with reason {:#x}", pdu.header[2])),
            other => fault(format!("opcode {other:#x} was not expected")),
        }
    }

    fn on_nop(&mut self, ping: &Pdu) -> Result<()> {
        if ping.word_at(20) == NO_TAG {
            return Ok(());
        }
        let mut pong = Pdu::new(0x40, 0x80)
            .word(16, NO_TAG)
            .word(20, ping.word_at(20))
            .word(24, self.cmd_sn)
            .word(28, self.exp_stat_sn);
        pong.header[8..16].copy_from_slice(&ping.header[8..16]);
        self.send(&pong)
    }

    fn on_data(&mut self, pdu: &Pdu) -> Result<()> {
        let tag = pdu.word_at(16);
        let Some(command) = self.outstanding.get_mut(&tag) else {
            return fault(format!("data for no task {tag}"));
        };
        if pdu.word_at(40) as usize != command.data.len() {
            return fault(format!("data-in at {} instead of {}", pdu.word_at(40), command.data.len()));
        }
        command.data.extend_from_slice(&pdu.data);
        if pdu.header[1] & 0x01 == 0 {
            return Ok(());
        }
        self.advance(pdu)?;
        self.end(tag, pdu.header[3], Vec::new())
    }

    /// Checks and counts the status number.
    fn advance(&mut self, pdu: &Pdu) -> Result<()> {
        if pdu.word_at(24) != self.exp_stat_sn {
            return fault(format!("StatSN {} instead of {}", pdu.word_at(24), self.exp_stat_sn));
        }
        self.exp_stat_sn = self.exp_stat_sn.wrapping_add(1);
        Ok(())
    }

    fn end(&mut self, tag: u32, status: u8, sense: Vec<u8>) -> Result<()> {
        let Some(command) = self.outstanding.remove(&tag) else {
            return fault(format!("end of no task {tag}"));
        };
        self.ended.insert(tag, Response { status, sense, data: command.data });
        Ok(())
    }

    /// Sends bytes `from..to` of a command's data-out as one sequence.
    fn send_data(&mut self, tag: u32, target_tag: u32, from: usize, to: usize) -> Result<()> {
        let Some(command) = self.outstanding.get(&tag) else {
            return fault(format!("R2T for no task {tag}"));
        };
        let Some(out) = command.out.get(from..to) else { return fault(format!("R2T for {from}..{to}")) };
        let (lun, out) = (command.lun, out.to_vec());
        let mut at = from;
        for (number, piece) in (0..).zip(out.chunks(self.segment_max)) {
            let last = if at + piece.len() == to { 0x80 } else { 0 };
            let data = Pdu::new(0x05, last)
                .lun(lun)
                .word(16, tag)
                .word(20, target_tag)
                .word(28, self.exp_stat_sn)
                .word(36, number)
                .word(40, u32::try_from(at).expect("a command's data fits"))
                .data(piece);
            self.send(&data)?;
            at += piece.len();
        }
        Ok(())
    }

    /// Sends a PDU unchanged, with its length and digests.
    pub fn send(&mut self, pdu: &Pdu) -> Result<()> {
        let mut header = pdu.header;
        let len = u32::try_from(pdu.data.len()).expect("a data segment fits");
        header[5..8].copy_from_slice(&len.to_be_bytes()[1..]);
        let mut bytes = header.to_vec();
        if self.header_digest {
            bytes.extend_from_slice(&crc32c(&header).to_le_bytes());
        }
        if !pdu.data.is_empty() {
            let start = bytes.len();
            bytes.extend_from_slice(&pdu.data);
            bytes.resize(bytes.len() + pdu.data.len().next_multiple_of(4) - pdu.data.len(), 0);
            if self.data_digest {
                bytes.extend_from_slice(&crc32c(&bytes[start..]).to_le_bytes());
            }
        }
        match &mut self.gathered {
            Some(gathered) => {
                gathered.extend_from_slice(&bytes);
                Ok(())
            }
            None => self.stream.write_all(&bytes),
        }
    }

    /// From now on, output is held back: the target has to receive it together.
    pub fn gather(&mut self) {
        self.gathered = Some(Vec::new());
    }

    /// Sends what was held back, at once.
    pub fn release(&mut self) -> Result<()> {
        self.stream.write_all(&self.gathered.take().unwrap_or_default())
    }

    /// Receives the next PDU and checks its digests.
    pub fn receive(&mut self) -> Result<Pdu> {
        let mut header = [0; HEADER_BYTES];
        self.stream.read_exact(&mut header)?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        if header[4] != 0 || len > 1 << 20 {
            return fault(format!("a header with lengths {} and {len}", header[4]));
        }
        if self.header_digest && self.receive_word()? != crc32c(&header) {
            return fault("header digest".into());
        }
        let mut data = vec![0; len.next_multiple_of(4)];
        self.stream.read_exact(&mut data)?;
        if self.data_digest && len > 0 && self.receive_word()? != crc32c(&data) {
            return fault("data digest".into());
        }
        data.truncate(len);
        Ok(Pdu { header, data })
    }

    fn receive_word(&mut self) -> Result<u32> {
        let mut word = [0; 4];
        self.stream.read_exact(&mut word)?;
        Ok(u32::from_le_bytes(word))
    }
}

/// WRITE(16) of this many bytes.
pub fn write_cdb(lba: u64, bytes: usize, block_bytes: u32, durable: bool) -> Cdb {
    let blocks = u32::try_from(bytes).expect("a command's data fits") / block_bytes;
    Write16 { fua: durable, ..Write16::new(lba, blocks) }.to_cdb()
}

/// PERSISTENT RESERVE OUT with a service action, a type and both keys; its status.
pub fn reserve_out(
    initiator: &mut Initiator,
    lun: u16,
    action: u8,
    kind: u8,
    key: u64,
    action_key: u64,
) -> u8 {
    let parameters = ReserveOutList { key, action_key, ..ReserveOutList::ZERO }.to_bytes();
    let cdb = PersistentReserveOut::new(action, kind, 24);
    initiator.write(lun, cdb, &parameters).expect("an answer").status
}

/// Repeats a command while it ends with a unit attention; then it must succeed.
fn good(cdb: Cdb, mut run: impl FnMut() -> Result<Response>) -> Result<Response> {
    for _ in 0..8 {
        let response = run()?;
        if response.status == 0 {
            return Ok(response);
        }
        if response.sense_key() != Some(UNIT_ATTENTION) {
            return fault(format!(
                "{:02x?}: status {:#x}, sense {:02x?}",
                cdb.as_bytes(),
                response.status,
                response.sense
            ));
        }
    }
    fault(format!("{:02x?}: unit attentions without end", cdb.as_bytes()))
}

fn login_text(login: &Login, target: &str) -> Vec<u8> {
    let digest = |on| if on { "CRC32C" } else { "None" };
    [
        ("InitiatorName", login.name.as_str()),
        ("SessionType", "Normal"),
        ("TargetName", target),
        ("HeaderDigest", digest(login.header_digest)),
        ("DataDigest", digest(login.data_digest)),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "65536"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("MaxOutstandingR2T", "1"),
        ("MaxConnections", "1"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("ErrorRecoveryLevel", "0"),
    ]
    .iter()
    .flat_map(|(key, value)| format!("{key}={value}\0").into_bytes())
    .collect()
}

fn pairs(text: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(text);
    text.split('\0')
        .filter_map(|pair| pair.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect()
}

fn fault<T>(text: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidData, text))
}

/// CRC32C (RFC 3720 appendix B.4), a byte at a time.
pub fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |sum: u32, byte| (sum >> 8) ^ TABLE[usize::from(sum.to_le_bytes()[0] ^ byte)])
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut word = at as u32;
        let mut bit = 0;
        while bit < 8 {
            word = (word >> 1) ^ if word & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[at] = word;
        at += 1;
    }
    table
}

#[test]
fn crc32c_of_the_standard() {
    // RFC 3720 appendix B.4: 32 bytes of zeros, and of ones.
    assert_eq!(crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
    assert_eq!(crc32c(&[0xff; 32]).to_le_bytes(), [0x43, 0xab, 0xa8, 0x62]);
}
