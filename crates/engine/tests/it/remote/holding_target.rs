//! A target with one disk, under the test's control. It answers a login at once and forgets the connection
//! that is reinstated, but not its commands: a write that it is to keep is executed when the test says so.
//! Until then ORDERED commands wait, and everything later behind them (SAM-5 section 8.9.3).

use super::fake::{mode_data, naa, sense_data, standard_data};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use wire::SenseKey;
use wire::scsi::capacity::Capacity16;
use wire::scsi::command::{Inquiry, Read16};
use wire::scsi::inquiry::StandardData;
use wire::scsi::status::{BUSY, CHECK_CONDITION, GOOD};
use wire::scsi::vpd::page::{BLOCK_LIMITS, EXTENDED_INQUIRY, IDENTIFICATION, SUPPORTED};
use wire::scsi::vpd::{self, BlockLimits, ExtendedInquiry};
use wire::scsi::{code, opcode};

const BLOCK: usize = 512;
const MEDIUM: usize = 4 << 20;
const HEADER: usize = 48;
const ORDERED: u8 = 2;

/// The target, for as long as the test runs.
#[derive(Clone)]
pub struct HoldingTarget {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// ORDSUP.
    ordered: bool,
    vendor: &'static [u8; 8],
}

struct State {
    medium: Vec<u8>,
    /// A write whose data contains this is kept.
    keeps: Option<Vec<u8>>,
    kept: Option<(usize, Vec<u8>)>,
    /// A write whose data contains this is answered with BUSY.
    refuses: Option<Vec<u8>>,
    refused: usize,
    /// A write whose data contains this is answered with a unit attention, once.
    alarm: Option<Vec<u8>>,
    logins: usize,
    /// Logins are not answered.
    ignores_logins: bool,
    /// ORDERED commands that arrived, and how many of the next are answered with a unit attention on arrival.
    ordered: usize,
    ordered_refused: usize,
    /// The first one is ORDERED, and waits for what is kept; the others are queued behind it.
    waiting: VecDeque<(Arc<Connection>, Command)>,
    sockets: Vec<TcpStream>,
}

/// Where answers go, and the next StatSN.
struct Connection(Mutex<(TcpStream, u32)>);

struct Command {
    header: [u8; HEADER],
    data: Vec<u8>,
}

impl HoldingTarget {
    /// A target that supports ORDERED commands, or reports that it does not.
    pub fn start(ordered: bool) -> HoldingTarget {
        HoldingTarget::of(b"ACME    ", ordered)
    }

    /// A Lunette of a version that answers a login before commands of the old session have ended.
    pub fn earlier_lunette() -> HoldingTarget {
        HoldingTarget::of(b"LUNETTE ", true)
    }

    fn of(vendor: &'static [u8; 8], ordered: bool) -> HoldingTarget {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State {
            medium: vec![0; MEDIUM],
            keeps: None,
            kept: None,
            refuses: None,
            refused: 0,
            alarm: None,
            logins: 0,
            ignores_logins: false,
            ordered: 0,
            ordered_refused: 0,
            waiting: VecDeque::new(),
            sockets: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), ordered, vendor });
        let holding_target = HoldingTarget { address, shared };
        let serves = holding_target.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let shared = serves.shared.clone();
                shared.state().sockets.push(socket.try_clone().expect("a socket"));
                std::thread::spawn(move || shared.serve(socket));
            }
        });
        holding_target
    }

    /// The URL of its unit.
    pub fn url(&self, options: &str) -> String {
        format!("iscsi://{}/iqn.2026-11.org.example:keeper/0{options}", self.address)
    }

    /// The next write whose data contains this is kept, and not answered.
    pub fn keep(&self, data: &[u8]) {
        self.shared.state().keeps = Some(data.to_vec());
    }

    pub fn is_keeping(&self) -> bool {
        self.shared.state().kept.is_some()
    }

    /// Kept writes are executed.
    pub fn land(&self) {
        let mut state = self.shared.state();
        let (at, data) = state.kept.take().expect("it keeps a write");
        state.medium[at..at + data.len()].copy_from_slice(&data);
        self.shared.run(&mut state);
    }

    /// Writes whose data contains this get BUSY; with `None`, none do.
    pub fn refuse(&self, data: Option<&[u8]>) {
        self.shared.state().refuses = data.map(<[u8]>::to_vec);
    }

    /// The next write whose data contains this gets MODE PARAMETERS CHANGED.
    pub fn alarm(&self, data: &[u8]) {
        self.shared.state().alarm = Some(data.to_vec());
    }

    /// This many of the next ORDERED commands get POWER ON on arrival, and are ordered behind nothing.
    pub fn refuse_ordered(&self, commands: usize) {
        self.shared.state().ordered_refused = commands;
    }

    /// Writes so far that got BUSY or a unit attention.
    pub fn refused(&self) -> usize {
        self.shared.state().refused
    }

    /// Whether logins stay unanswered.
    pub fn ignore_logins(&self, ignores_logins: bool) {
        self.shared.state().ignores_logins = ignores_logins;
        self.shared.changed.notify_all();
    }

    /// Breaks all connections; new ones go through.
    pub fn cut(&self) {
        for socket in self.shared.state().sockets.drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Logins so far.
    pub fn logins(&self) -> usize {
        self.shared.state().logins
    }

    /// ORDERED commands so far.
    pub fn ordered(&self) -> usize {
        self.shared.state().ordered
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        self.shared.state().medium[at..at + len].to_vec()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics with it")
    }

    fn serve(&self, mut socket: TcpStream) {
        let writer = socket.try_clone().expect("a socket");
        let connection = Arc::new(Connection(Mutex::new((writer, 1))));
        while let Some(command) = receive(&mut socket) {
            match command.header[0] & 0x3f {
                0x01 => {
                    let mut state = self.state();
                    state.ordered += usize::from(command.is_ordered());
                    if command.is_ordered() && state.ordered_refused > 0 {
                        state.ordered_refused -= 1;
                        connection.send(
                            &command,
                            ended(
                                &command,
                                CHECK_CONDITION,
                                sense_data(SenseKey::UnitAttention, code::POWER_ON_OR_RESET),
                            ),
                        );
                        continue;
                    }
                    state.waiting.push_back((connection.clone(), command));
                    self.run(&mut state);
                }
                0x02 => self.abort(&connection, &command),
                _ => {
                    if let Some(answer) = self.answer(&command) {
                        connection.send(&command, answer);
                    }
                }
            }
        }
        let mut state = self.state();
        state.waiting.retain(|(from, _)| !Arc::ptr_eq(from, &connection));
        self.run(&mut state);
    }

    /// Executes what need not wait.
    fn run(&self, state: &mut State) {
        let is_free = |state: &State| {
            state.waiting.front().is_some_and(|(_, command)| !command.is_ordered() || state.kept.is_none())
        };
        while is_free(state) {
            let Some((connection, command)) = state.waiting.pop_front() else { return };
            if let Some(answer) = self.scsi(state, &command) {
                connection.send(&command, answer);
            }
        }
    }

    /// ABORT TASK.
    fn abort(&self, connection: &Arc<Connection>, function: &Command) {
        let mut state = self.state();
        let found = state.waiting.iter().position(|(from, command)| {
            Arc::ptr_eq(from, connection) && command.header[16..20] == function.header[20..24]
        });
        let mut header = [0; HEADER];
        (header[0], header[1], header[2]) = (0x22, 0x80, u8::from(found.is_none()));
        if let Some(at) = found {
            state.waiting.remove(at);
        }
        connection.send(function, (header, Vec::new()));
        self.run(&mut state);
    }

    /// The header of an answer, except for the common fields, and its data.
    fn answer(&self, command: &Command) -> Option<([u8; HEADER], Vec<u8>)> {
        let mut header = [0; HEADER];
        match command.header[0] & 0x3f {
            // NOP-Out that wants no answer.
            0x00 if word(&command.header, 16) == u32::MAX => None,
            0x00 => {
                (header[0], header[1]) = (0x20, 0x80);
                header[20..24].fill(0xff);
                Some((header, Vec::new()))
            }
            0x03 => {
                (header[0], header[1]) = (0x23, command.header[1]);
                header[8..14].copy_from_slice(&command.header[8..14]);
                // The full feature phase is next.
                let is_last = command.header[1] & 0x83 == 0x83;
                header[15] = u8::from(is_last);
                let state = self.changed.wait_while(self.state(), |state| state.ignores_logins);
                state.expect("a state").logins += usize::from(is_last);
                Some((header, keys(&command.data)))
            }
            0x06 => {
                (header[0], header[1]) = (0x26, 0x80);
                Some((header, Vec::new()))
            }
            _ => None,
        }
    }

    fn scsi(&self, state: &mut State, command: &Command) -> Option<([u8; HEADER], Vec<u8>)> {
        let cdb = &command.header[32..48];
        // 16-byte CDBs all have their LBA in the same place.
        let at = || Read16::read(cdb).lba as usize * BLOCK;
        let done = |data: Vec<u8>| Some((GOOD, data));
        let ending = match cdb[0] {
            opcode::TEST_UNIT_READY | opcode::SYNCHRONIZE_CACHE_16 => done(Vec::new()),
            opcode::INQUIRY => done(self.inquiry(cdb)),
            opcode::MODE_SENSE_6 => done(mode_data(false)),
            opcode::SERVICE_ACTION_IN_16 => {
                done(Capacity16::new((MEDIUM / BLOCK) as u64, BLOCK as u32).to_bytes().to_vec())
            }
            opcode::READ_16 => {
                let bytes = word(&command.header, 20) as usize;
                done(state.medium[at()..][..bytes].to_vec())
            }
            opcode::WRITE_16 | opcode::COMPARE_AND_WRITE => {
                // COMPARE AND WRITE: the data matches.
                let half = command.data.len() / 2;
                let data = if cdb[0] == opcode::COMPARE_AND_WRITE {
                    &command.data[half..]
                } else {
                    &command.data[..]
                };
                let is_it = |wanted: &Vec<u8>| data.windows(wanted.len()).any(|part| part == wanted);
                if state.keeps.as_ref().is_some_and(is_it) {
                    (state.keeps, state.kept) = (None, Some((at(), data.to_vec())));
                    None
                } else if state.alarm.as_ref().is_some_and(is_it) {
                    (state.alarm, state.refused) = (None, state.refused + 1);
                    Some((
                        CHECK_CONDITION,
                        sense_data(SenseKey::UnitAttention, code::MODE_PARAMETERS_CHANGED),
                    ))
                } else if state.refuses.as_ref().is_some_and(is_it) {
                    state.refused += 1;
                    Some((BUSY, Vec::new()))
                } else {
                    state.medium[at()..][..data.len()].copy_from_slice(data);
                    done(Vec::new())
                }
            }
            _ => {
                let sense = sense_data(SenseKey::IllegalRequest, code::INVALID_OPERATION_CODE);
                Some((CHECK_CONDITION, sense))
            }
        };
        let (status, data) = ending?;
        Some(ended(command, status, data))
    }

    fn inquiry(&self, cdb: &[u8]) -> Vec<u8> {
        let page = |code: u8, body: &[u8]| [&vpd::header(0, code, body.len())[..], body].concat();
        let Inquiry { vital, page: code, .. } = Inquiry::read(cdb);
        match (vital, code) {
            (false, _) => standard_data(StandardData {
                hierarchical: true,
                command_queuing: true,
                vendor: *self.vendor,
                product: *b"Disk            ",
                revision: *b"1.00",
                ..StandardData::ZERO
            }),
            (_, SUPPORTED) => page(code, &[SUPPORTED, IDENTIFICATION, EXTENDED_INQUIRY, BLOCK_LIMITS]),
            (_, IDENTIFICATION) => page(code, &naa(&[0x30, 0, 0, 0, 0, 0, 0, 1])),
            (_, EXTENDED_INQUIRY) => {
                let (head_of_queue, ordered) = (self.ordered, self.ordered);
                let page = ExtendedInquiry { head_of_queue, ordered, simple: true, ..ExtendedInquiry::ZERO };
                page.to_page().to_vec()
            }
            (_, _) => BlockLimits { compare_and_write_max: 8, ..BlockLimits::ZERO }.to_page().to_vec(),
        }
    }
}

impl Command {
    fn is_ordered(&self) -> bool {
        self.header[1] & 0x07 == ORDERED
    }
}

impl Connection {
    /// Sends an answer; if the connection is gone, it is lost.
    fn send(&self, command: &Command, (mut header, data): ([u8; HEADER], Vec<u8>)) {
        let mut stream = self.0.lock().expect("nobody panics with it");
        let (socket, stat_sn) = &mut *stream;
        let is_immediate = command.header[0] & 0x40 != 0;
        let expected = word(&command.header, 24).wrapping_add(u32::from(!is_immediate));
        header[16..20].copy_from_slice(&command.header[16..20]);
        header[24..28].copy_from_slice(&u32::to_be_bytes(*stat_sn));
        header[28..32].copy_from_slice(&expected.to_be_bytes());
        header[32..36].copy_from_slice(&expected.wrapping_add(63).to_be_bytes());
        header[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        *stat_sn += 1;
        let padding = vec![0; data.len().next_multiple_of(4) - data.len()];
        let _ = socket.write_all(&[&header[..], &data, &padding].concat());
    }
}

/// Sense data after its length, in a SCSI Response; or SCSI Data-In with the status.
fn ended(command: &Command, status: u8, mut data: Vec<u8>) -> ([u8; HEADER], Vec<u8>) {
    let mut header = [0; HEADER];
    let reads = command.header[1] & 0x40 != 0;
    let expected = word(&command.header, 20) as usize;
    if status != GOOD || !reads {
        (header[0], header[1], header[3]) = (0x21, 0x80, status);
    } else {
        data.truncate(expected);
        (header[0], header[1], header[3]) = (0x25, 0x81, status);
        header[20..24].fill(0xff);
    }
    if status == GOOD && reads && data.len() < expected {
        header[1] |= 0x02;
        header[44..48].copy_from_slice(&((expected - data.len()) as u32).to_be_bytes());
    }
    (header, data)
}

/// The answer to the keys of a login: everything as offered, and the first of each list.
fn keys(offered: &[u8]) -> Vec<u8> {
    let declared =
        ["InitiatorName", "InitiatorAlias", "TargetName", "SessionType", "MaxRecvDataSegmentLength"];
    let text = String::from_utf8_lossy(offered);
    let mut keys = String::new();
    for pair in text.split('\0').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("TargetName", _)) => keys += "TargetPortalGroupTag=1\0",
            Some(("MaxRecvDataSegmentLength", _)) => keys += "MaxRecvDataSegmentLength=262144\0",
            Some((key, _)) if declared.contains(&key) => {}
            Some((key, values)) => keys += &format!("{key}={}\0", values.split(',').next().unwrap_or(values)),
            None => {}
        }
    }
    keys.into_bytes()
}

fn receive(socket: &mut TcpStream) -> Option<Command> {
    let mut header = [0; HEADER];
    socket.read_exact(&mut header).ok()?;
    let len = word(&header, 4) as usize & 0x00ff_ffff;
    let mut data = vec![0; len.next_multiple_of(4)];
    socket.read_exact(&mut data).ok()?;
    data.truncate(len);
    Some(Command { header, data })
}

fn word(header: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"))
}
