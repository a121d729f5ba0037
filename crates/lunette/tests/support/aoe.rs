//! An AoE initiator for tests, which sends any frame (AoEr11).

use super::net::{INTERFACE, Namespace, Port};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Commands.
pub const ATA: u8 = 0;
/// Query Config Information.
pub const CONFIG: u8 = 1;
/// Mac Mask List.
pub const MASK: u8 = 2;
/// Reserve/Release.
pub const RESERVE: u8 = 3;
/// Errors in answers.
pub const UNRECOGNIZED_COMMAND: u8 = 1;
/// A wrong argument.
pub const BAD_ARGUMENT: u8 = 2;
/// There already is another config string.
pub const CONFIG_STRING_PRESENT: u8 = 4;
/// An unsupported version.
pub const UNSUPPORTED_VERSION: u8 = 5;
/// By another initiator.
pub const TARGET_IS_RESERVED: u8 = 6;
/// IDENTIFY DEVICE.
pub const IDENTIFY: u8 = 0xEC;

const READ_EXT: u8 = 0x24;
const WRITE_EXT: u8 = 0x34;
/// AFlags: a 48-bit command, and one that writes.
const EXTEND: u8 = 0x40;
const WRITE: u8 = 0x01;
/// The bits of STATUS that indicate an error (ACS-3 section 6.2).
const ERR: u8 = 0x01;
const HEADER: usize = 24;
/// The retransmission timeout.
const AGAIN: Duration = Duration::from_millis(200);
/// The most transmissions.
const TIMES: usize = 300;
/// How long an announcement is awaited.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many there were: each has its own highest byte of tags, since all of a host see what arrives.
static GUESTS: AtomicU32 = AtomicU32::new(1);

/// An initiator of one target.
pub struct AoeInitiator {
    port: Port,
    /// The address that it uses.
    pub mac: [u8; 6],
    target: [u8; 6],
    shelf: u16,
    slot: u8,
    tag: u32,
}

/// The answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The error.
    pub error: Option<u8>,
    /// Everything after the header.
    pub argument: Vec<u8>,
}

impl AoeInitiator {
    /// Finds a target that answers.
    pub fn find(host: &Namespace, shelf: u16, slot: u8) -> Self {
        let port = host.inside(|| Port::open(INTERFACE));
        let mac = port.mac();
        let tag = GUESTS.fetch_add(1, Ordering::Relaxed) << 24;
        let mut guest = Self { port, mac, target: [0xFF; 6], shelf, slot, tag };
        let query = guest.frame(CONFIG, &config(0, b""));
        guest.target = source(&guest.answer(&query, drop));
        guest
    }

    /// A new request, to its target.
    pub fn frame(&mut self, command: u8, argument: &[u8]) -> Vec<u8> {
        self.tag += 1;
        let mut frame = [self.target, self.mac].concat();
        frame.extend([0x88, 0xA2, 0x10, 0]);
        frame.extend(self.shelf.to_be_bytes());
        frame.extend([self.slot, command]);
        frame.extend(self.tag.to_be_bytes());
        frame.extend(argument);
        frame
    }

    /// Sends arbitrary bytes. The kernel refuses what is not a frame at all.
    pub fn send(&self, frame: &[u8]) {
        let _ = self.port.send(frame);
    }

    /// Retransmits a request until it is answered.
    pub fn ask(&mut self, command: u8, argument: &[u8]) -> Answer {
        let frame = self.frame(command, argument);
        self.ask_frame(&frame)
    }

    /// The same with an existing frame.
    pub fn ask_frame(&mut self, frame: &[u8]) -> Answer {
        let answer = self.answer(frame, drop);
        assert_eq!(answer[..6], frame[6..12], "to whom asked");
        assert_eq!(answer[6..12], self.target);
        assert_eq!(answer[14] & 0xF8, 0x18, "version 1, an answer");
        assert_eq!(answer[16..20], frame[16..20], "shelf, slot and command");
        let error = (answer[14] & 0x04 != 0).then_some(answer[15]);
        Answer { error, argument: answer[HEADER..].to_vec() }
    }

    /// The frame that answers this one. Others are passed to `other`.
    fn answer(&self, frame: &[u8], mut other: impl FnMut(Vec<u8>)) -> Vec<u8> {
        for _ in 0..TIMES {
            self.port.send(frame).expect("it is sent");
            // On a busy segment there is always something.
            let again = Instant::now() + AGAIN;
            let rest = || again.saturating_duration_since(Instant::now());
            while !rest().is_zero()
                && let Some(came) = self.port.receive(rest())
            {
                if is_answer(&came) && came[20..24] == frame[20..24] {
                    return came;
                }
                other(came);
            }
        }
        panic!("{:02x?} is not answered", &frame[..frame.len().min(40)]);
    }

    /// Sends a frame that must get no answer. The target must serve on one core.
    pub fn assert_unanswered(&mut self, frame: &[u8]) {
        self.settle();
        self.send(frame);
        let answered = self.settle().iter().any(|tag| tag[..] == frame[20..24]);
        assert!(!answered, "{frame:02x?} is answered");
    }

    /// Waits until everything sent was answered: a core answers what it handles in one turn in any order, but
    /// before it handles more. Returns the tags of what arrived meanwhile.
    fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut tags = Vec::new();
        for _ in 0..2 {
            let query = self.frame(CONFIG, &config(0, b""));
            self.answer(&query, |came| tags.push(came[20..24].to_vec()));
        }
        tags
    }

    /// The target has handled everything sent before, if it serves on one core.
    pub fn config_is_answered(&mut self) {
        self.settle();
    }

    /// Reads sectors; an error is one of AoE's.
    pub fn read(&mut self, lba: u64, sectors: u8) -> Result<Vec<u8>, u8> {
        let data = self.ata(&ata(READ_EXT, lba, sectors, &[]))?;
        assert_eq!(data.len(), usize::from(sectors) * SECTOR);
        Ok(data)
    }

    /// Writes whole sectors.
    pub fn write(&mut self, lba: u64, data: &[u8]) -> Result<(), u8> {
        self.ata(&write(lba, data)).map(drop)
    }

    /// The data of IDENTIFY DEVICE.
    pub fn identify(&mut self) -> Result<Vec<u8>, u8> {
        self.ata(&ata(IDENTIFY, 0, 1, &[]))
    }

    /// An ATA command, which must not fail with an ATA error.
    fn ata(&mut self, argument: &[u8]) -> Result<Vec<u8>, u8> {
        let answer = self.ask(ATA, argument);
        match answer.error {
            Some(error) => Err(error),
            None => {
                assert_eq!(answer.argument[3] & ERR, 0, "{:02x?}", &answer.argument[..12]);
                Ok(answer.argument[12..].to_vec())
            }
        }
    }

    /// The config string, if this command is answered.
    pub fn config(&mut self, command: u8, string: &[u8]) -> Result<Vec<u8>, u8> {
        let answer = self.ask(CONFIG, &config(command, string));
        let string = answer.argument.get(8..).unwrap_or_default();
        match answer.error {
            Some(error) => Err(error),
            None => {
                Ok(string[..usize::from(answer.argument[6]) << 8 | usize::from(answer.argument[7])].to_vec())
            }
        }
    }

    /// The reserve list after a command about it.
    pub fn reserve(&mut self, command: u8, macs: &[[u8; 6]]) -> Result<Vec<[u8; 6]>, u8> {
        let answer = self.ask(RESERVE, &reserve(command, macs));
        match answer.error {
            Some(error) => Err(error),
            None => {
                let macs = answer.argument[2..].chunks_exact(6).map(|mac| mac.try_into().expect("six bytes"));
                Ok(macs.take(answer.argument[1].into()).collect())
            }
        }
    }

    /// The mask list after an edit of it by commands (0 nothing, 1 add, 2 delete) and addresses; without any,
    /// it is read. An error is AoE's, or, above those, the edit's.
    pub fn mask(&mut self, directives: &[(u8, [u8; 6])]) -> Result<Vec<[u8; 6]>, u8> {
        let answer = self.ask(MASK, &mask(directives));
        match (answer.error, answer.argument.get(2)) {
            (Some(error), _) => Err(error),
            (None, Some(0)) => {
                let macs =
                    answer.argument[4..].chunks_exact(8).map(|entry| entry[2..].try_into().expect("six"));
                Ok(macs.take(answer.argument[3].into()).collect())
            }
            (None, error) => Err(0x80 | error.expect("a mask argument")),
        }
    }
}

/// Waits until a unit has been announced from this address. Other announcements and late answers to
/// retransmissions, which arrive at every port of a host, are skipped.
pub fn wait_for_announcement(port: &Port, from: [u8; 6], shelf: u16, slot: u8) {
    let address = [&shelf.to_be_bytes()[..], &[slot, CONFIG]].concat();
    let deadline = Instant::now() + PATIENCE;
    let arriving = || port.receive(deadline.saturating_duration_since(Instant::now()));
    let mut others = Vec::new();
    for frame in std::iter::from_fn(arriving) {
        let head = frame.get(..20).unwrap_or_default();
        if is_answer(&frame)
            && (&head[..6], &head[6..12], &head[16..]) == (&[0xFF; 6][..], &from[..], &address[..])
        {
            assert_eq!(frame[14..16], [0x18, 0], "version 1, a response without an error");
            return;
        }
        others.push(head.to_vec());
    }
    panic!("{shelf}.{slot} is not announced from {from:02x?}; what arrived: {others:02x?}");
}

fn is_answer(frame: &[u8]) -> bool {
    frame.len() >= HEADER && frame[14] & 0x08 != 0
}

fn source(frame: &[u8]) -> [u8; 6] {
    frame[6..12].try_into().expect("an Ethernet header")
}

/// The argument of an ATA command with a 48-bit LBA, and its data.
pub fn ata(command: u8, lba: u64, count: u8, data: &[u8]) -> Vec<u8> {
    let flags = if data.is_empty() { EXTEND } else { EXTEND | WRITE };
    [&[flags, 0, count, command], &lba.to_le_bytes()[..6], &[0, 0], data].concat()
}

/// The argument of WRITE SECTORS EXT.
pub fn write(lba: u64, data: &[u8]) -> Vec<u8> {
    ata(WRITE_EXT, lba, u8::try_from(data.len() / SECTOR).expect("sectors of a frame"), data)
}

/// The argument of a config command: 0 read, 1 test, 2 test prefix, 3 set, 4 force.
pub fn config(command: u8, string: &[u8]) -> Vec<u8> {
    let len = u16::try_from(string.len()).expect("a short string").to_be_bytes();
    [&[0, 0, 0, 0, 0, 0x10 | command], &len[..], string].concat()
}

/// The argument of a reserve command: 0 read, 1 set, 2 force.
pub fn reserve(command: u8, macs: &[[u8; 6]]) -> Vec<u8> {
    [&[command, u8::try_from(macs.len()).expect("a short list")], macs.concat().as_slice()].concat()
}

/// The argument of a command that reads or edits the mask list.
pub fn mask(directives: &[(u8, [u8; 6])]) -> Vec<u8> {
    let count = u8::try_from(directives.len()).expect("a short list");
    let entries = directives.iter().flat_map(|(command, mac)| [&[0, *command], &mac[..]].concat());
    [0, u8::from(count > 0), 0, count].into_iter().chain(entries).collect()
}
