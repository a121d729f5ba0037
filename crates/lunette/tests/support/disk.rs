//! An AoE disk under the test's control: it answers requests, except for the writes that it is to keep.

use super::aoe::{ATA, CONFIG, IDENTIFY, SECTOR};
use super::net::{INTERFACE, Namespace, Port};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SECTORS: usize = 2048;
const READS: [u8; 2] = [0x20, 0x24];
const WRITES: [u8; 2] = [0x30, 0x34];
/// Where the argument of a request and its data are.
const ARGUMENT: usize = 24;
const DATA: usize = 36;
/// Its buffer count, and sectors per frame.
const BUFFERS: u8 = 16;
const SECTORS_AT_ONCE: u8 = 2;
/// How often it checks whether it has to end.
const TURN: Duration = Duration::from_millis(20);

/// A disk, until it is dropped.
pub struct Disk {
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

/// A write that was requested: how often, and when last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedWrite {
    /// The first byte of the data.
    pub byte: u8,
    /// When it first arrived, and last.
    pub first: Instant,
    /// The same for the last retransmission.
    pub last: Instant,
}

struct State {
    /// Shelf and slot.
    address: [u8; 3],
    medium: Vec<u8>,
    /// Writes from here on are kept, and not answered; those kept are executed without a retransmission this
    /// long after they arrived.
    keeps_from: Option<u64>,
    lands_after: Option<Duration>,
    kept: BTreeMap<u32, Vec<u8>>,
    /// Retransmissions of what is kept change nothing.
    is_stuck: bool,
    /// Writes by their tags.
    received_writes: BTreeMap<u32, ReceivedWrite>,
    is_silent: bool,
    drops_frames: bool,
    /// Writes are lost in transit to it; and whether any was.
    misses_writes: bool,
    has_missed: bool,
    is_over: bool,
}

impl Disk {
    /// A disk of zeros on a host.
    pub fn start(host: &Namespace, shelf: u16, slot: u8) -> Self {
        let [high, low] = shelf.to_be_bytes();
        let state = Arc::new(Mutex::new(State {
            address: [high, low, slot],
            medium: vec![0; SECTORS * SECTOR],
            keeps_from: None,
            lands_after: None,
            kept: BTreeMap::new(),
            is_stuck: false,
            received_writes: BTreeMap::new(),
            is_silent: false,
            drops_frames: false,
            misses_writes: false,
            has_missed: false,
            is_over: false,
        }));
        let port = host.inside(|| Port::open(INTERFACE));
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            while !lock(&shared).is_over {
                let frame = port.receive(TURN);
                lock(&shared).land();
                let answers = lock(&shared).let_go(port.mac());
                answers.iter().for_each(|answer| port.send(answer).expect("it is sent"));
                let Some(frame) = frame else { continue };
                let answer = lock(&shared).take(&frame, port.mac());
                answer.map_or(Ok(()), |answer| port.send(&answer)).expect("it is sent");
            }
        });
        Self { state, thread: Some(thread) }
    }

    /// From now on writes from this sector on are kept.
    pub fn keep_from(&self, lba: u64) {
        lock(&self.state).keeps_from = Some(lba);
    }

    /// Nothing more is kept; what was is executed and answered without a retransmission.
    pub fn go_on(&self) {
        let mut state = lock(&self.state);
        (state.keeps_from, state.is_stuck) = (None, false);
    }

    /// Nothing more is kept; what was kept still is.
    pub fn withhold_no_more(&self) {
        let mut state = lock(&self.state);
        (state.keeps_from, state.is_stuck) = (None, true);
    }

    /// From now on it answers nothing, and a write that it keeps is executed this long after its last
    /// retransmission.
    pub fn delay_writes(&self, by: Duration) {
        let mut state = lock(&self.state);
        (state.is_silent, state.lands_after) = (true, Some(by));
    }

    /// From now on it receives no frames.
    pub fn drop_frames(&self) {
        lock(&self.state).drops_frames = true;
    }

    /// From now on it receives no writes, but everything else.
    pub fn miss_writes(&self) {
        let mut state = lock(&self.state);
        (state.drops_frames, state.misses_writes) = (false, true);
    }

    /// Whether a write was lost in transit to it.
    pub fn has_missed(&self) -> bool {
        lock(&self.state).has_missed
    }

    /// It answers again, and keeps nothing more.
    pub fn recover(&self) {
        let mut state = lock(&self.state);
        (state.is_silent, state.drops_frames, state.misses_writes) = (false, false, false);
        state.keeps_from = None;
    }

    /// Whether it keeps anything.
    pub fn is_keeping(&self) -> bool {
        !lock(&self.state).kept.is_empty()
    }

    /// The writes that it received, in order of arrival.
    pub fn received_writes(&self) -> Vec<ReceivedWrite> {
        let mut writes: Vec<ReceivedWrite> = lock(&self.state).received_writes.values().copied().collect();
        writes.sort_by_key(|write| write.first);
        writes
    }

    /// The content of a sector.
    pub fn sector(&self, lba: usize) -> Vec<u8> {
        lock(&self.state).medium[lba * SECTOR..][..SECTOR].to_vec()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        lock(&self.state).is_over = true;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The answer to a frame, if it is a request to this disk.
    fn take(&mut self, frame: &[u8], own: [u8; 6]) -> Option<Vec<u8>> {
        let is_request = frame.len() >= ARGUMENT && frame[14] & 0x08 == 0;
        let to = frame.get(16..19)?;
        let is_ours = to == self.address || to == [0xFF; 3];
        if !is_request || !is_ours || self.drops_frames {
            return None;
        }
        let command = frame.get(ARGUMENT + 3).filter(|_| frame[19] == ATA);
        if self.misses_writes && command.is_some_and(|command| WRITES.contains(command)) {
            self.has_missed = true;
            return None;
        }
        let argument = match frame[19] {
            CONFIG => vec![0, BUFFERS, 0, 1, SECTORS_AT_ONCE, 0x10, 0, 0],
            ATA => self.ata(frame)?,
            command => panic!("command {command}"),
        };
        if self.is_silent {
            return None;
        }
        Some(self.answer(frame, own, argument))
    }

    fn answer(&self, frame: &[u8], own: [u8; 6], argument: Vec<u8>) -> Vec<u8> {
        let mut answer =
            [&frame[6..12], &own, &[0x88, 0xA2, 0x18, 0], &self.address, &frame[19..24]].concat();
        answer.extend(argument);
        answer.resize(answer.len().max(60), 0);
        answer
    }

    /// Executes what it no longer has to keep. Returns the answers.
    fn let_go(&mut self, own: [u8; 6]) -> Vec<Vec<u8>> {
        if self.is_stuck || self.keeps_from.is_some() || self.lands_after.is_some() {
            return Vec::new();
        }
        let kept = std::mem::take(&mut self.kept);
        kept.values().for_each(|frame| self.write(frame));
        kept.values().map(|frame| self.answer(frame, own, done(frame))).collect()
    }

    fn ata(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (count, command) = (frame[ARGUMENT + 2], frame[ARGUMENT + 3]);
        let at = lba(frame) * SECTOR;
        let data = match command {
            IDENTIFY => identity(),
            command if READS.contains(&command) => self.medium[at..][..usize::from(count) * SECTOR].to_vec(),
            command if WRITES.contains(&command) => return self.asked(frame),
            // FLUSH CACHE and the like.
            _ => Vec::new(),
        };
        Some([done(frame), data].concat())
    }

    fn asked(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let tag = u32::from_be_bytes(frame[20..24].try_into().expect("four bytes"));
        let now = Instant::now();
        let new = ReceivedWrite { byte: frame[DATA], first: now, last: now };
        self.received_writes.entry(tag).or_insert(new).last = now;
        let is_kept = self.is_stuck && self.kept.contains_key(&tag);
        if is_kept || self.keeps_from.is_some_and(|from| lba(frame) as u64 >= from) {
            self.kept.insert(tag, frame.to_vec());
            return None;
        }
        self.kept.remove(&tag);
        self.write(frame);
        Some(done(frame))
    }

    /// Executes what is late enough.
    fn land(&mut self) {
        let Some(after) = self.lands_after else { return };
        let is_due = |write: &ReceivedWrite| write.last.elapsed() >= after;
        let due: Vec<u32> = self
            .kept
            .keys()
            .filter(|tag| self.received_writes.get(tag).is_some_and(is_due))
            .copied()
            .collect();
        for frame in due.iter().filter_map(|tag| self.kept.remove(tag)).collect::<Vec<_>>() {
            self.write(&frame);
        }
    }

    fn write(&mut self, frame: &[u8]) {
        let (at, len) = (lba(frame) * SECTOR, usize::from(frame[ARGUMENT + 2]) * SECTOR);
        self.medium[at..][..len].copy_from_slice(&frame[DATA..][..len]);
    }
}

fn lba(frame: &[u8]) -> usize {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&frame[ARGUMENT + 4..ARGUMENT + 10]);
    u64::from_le_bytes(bytes) as usize
}

/// The ATA section of an answer without an error: STATUS is DRDY.
fn done(frame: &[u8]) -> Vec<u8> {
    let mut section = frame[ARGUMENT..DATA].to_vec();
    (section[1], section[3]) = (0, 0x40);
    section
}

/// IDENTIFY DEVICE data (ACS-3 section 7.12.7): an ATA device with 48-bit addresses and FLUSH CACHE EXT.
fn identity() -> Vec<u8> {
    let mut words = [0u16; SECTOR / 2];
    words[0] = 0x0040;
    (words[10..20]).fill(u16::from_be_bytes(*b"S1"));
    (words[27..47]).fill(u16::from_be_bytes(*b"D "));
    words[49] = 0x0300;
    (words[60], words[100]) = (SECTORS as u16, SECTORS as u16);
    (words[83], words[86]) = (0x7400, 0x3400);
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
