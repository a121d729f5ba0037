//! Frames for the AoE target: queries before there is a session, and requests within one. The first byte
//! configures the session, the second how the layer above answers. Then follow steps of one byte each; frames
//! are preceded by their length in two bytes.

use crate::Input;
use crate::above::Above;
use proto::aoe::target::{Config, Export, Kind, Target, announce, answer_query, classify};
use proto::services::{Down, Ending, TaskId};
use proto::time::{Stamp, Time};
use std::time::Duration;
use wire::aoe::{Address, ETHERTYPE, Header, Mac, Refusal};
use wire::ata::StatusReturn;
use wire::{BufferId, Sense, Span};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
const E1_2: Address = Address { shelf: 1, slot: 2 };
const SECTORS_MAX: u8 = 2;
/// The longest frame sent.
const FRAME_BYTES_MAX: u32 = 36 + 1024;

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (options, manners) = (input.byte(), input.byte());
    let mut session = Session::new(options, manners);
    while !input.is_empty() && !session.target.is_over() {
        session.step(&mut input);
        session.settle();
    }
    session.finish();
}

struct Session {
    target: Target,
    above: Above,
    now: Time,
    frames: u64,
    /// Frames held by the machine.
    held: Vec<Span>,
    borrowed: Vec<TaskId>,
    /// Answers are sent as soon as they are ready.
    is_prompt: bool,
}

impl Session {
    fn new(options: u8, manners: u8) -> Self {
        let config = Config {
            address: E1_2,
            ours: OURS,
            peer: PEER,
            buffers: u16::from(options & 7) + 1,
            sectors_max: SECTORS_MAX,
            firmware: 1,
            crc32c: |bytes| bytes.iter().fold(1, |sum, byte| sum.wrapping_mul(31) ^ u32::from(*byte)),
        };
        let mut above = Above::new(manners);
        // There is no login.
        above.ready = true;
        Self {
            target: Target::new(config),
            above,
            now: Time(1),
            frames: 0,
            held: Vec::new(),
            borrowed: Vec::new(),
            is_prompt: options & 8 == 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.byte();
        match what & 7 {
            0..=3 => self.frame(input, what & 8 == 0),
            4 => self.end_oldest(input),
            5 => {
                let oldest = self.above.commands.first().map(|command| command.task);
                let given = oldest.filter(|task| self.target.borrow(*task).is_some());
                self.borrowed.extend(given);
            }
            6 if what == 0xfe => self.target.down(self.now, Down::Close),
            6 if what == 0xf6 => self.target.down(self.now, Down::RequestLogout { within_seconds: 2 }),
            6 => {
                if let Some(task) = self.borrowed.pop() {
                    self.target.end_borrow(task);
                }
            }
            _ => {
                self.now = self.now.after(Duration::from_millis(u64::from(what) * 8));
                self.target.tick(self.now);
                self.transmit();
            }
        }
    }

    /// A frame arrives: from the initiator, if it is addressed properly.
    fn frame(&mut self, input: &mut Input<'_>, is_addressed: bool) {
        let len = usize::from(input.short() & 0x07ff);
        let taken = input.take(len.min(input.0.len())).unwrap_or(&[]);
        let mut frame = taken.to_vec();
        // The input need not contain the data.
        frame.resize(len, 0x5a);
        if is_addressed && let Some((head, _)) = frame.split_at_mut_checked(size_of::<Header>()) {
            head[..6].copy_from_slice(&OURS.0);
            head[6..12].copy_from_slice(&PEER.0);
            head[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
            head[14] = 0x10;
            head[16..19].copy_from_slice(&[0, 1, 2]);
        }
        self.classify(&frame);
        self.frames += 1;
        let place = Span { buffer: BufferId(2), len: frame.len() as u32, offset: self.frames << 16 };
        if self.target.receive(self.now, Stamp(self.now.0), &frame, place) {
            self.held.push(place);
        }
    }

    /// How the interface parses it before it knows its session.
    fn classify(&self, frame: &[u8]) {
        let config = [0x61; 1024];
        let len = self.frames as usize & 0x03ff;
        let export = Export {
            address: E1_2,
            ours: OURS,
            config: &config[..len],
            buffers: 16,
            sectors_max: SECTORS_MAX,
            firmware: 1,
        };
        let mut out = [0; FRAME_BYTES_MAX as usize];
        assert_eq!(announce(&export, &mut out), Some((32 + len).max(60)));
        let sight = classify(frame);
        if let Some(answered) = answer_query(frame, &export, &mut out) {
            let sight = sight.expect("only what is understood is answered");
            assert!(sight.kind == Kind::Query && sight.to.covers(E1_2));
            assert!(answered == 60 || answered == (32 + len).max(60));
            assert_eq!((&out[..6], &out[6..12]), (&sight.from.0[..], &OURS.0[..]));
        }
    }

    /// The oldest command ends in some way, or is aborted.
    fn end_oldest(&mut self, input: &mut Input<'_>) {
        let Some(task) = self.above.commands.first().map(|command| command.task) else { return };
        self.above.commands.retain(|command| command.task != task);
        let bytes: [u8; 24] = input.filled();
        let sense = match bytes[0] & 3 {
            0 => None,
            1 => Some(Sense::from_bytes(&bytes[1..])),
            2 => Some(
                StatusReturn { error: bytes[1], status: bytes[2], ..StatusReturn::default() }.available(),
            ),
            _ => Some(Refusal::Error(wire::aoe::ErrorCode(bytes[1])).sense()),
        };
        let status = bytes[23];
        let ending = Ending { status, sense, read_bytes: 0, write_bytes: 0 };
        let down = if status == 0xff { Down::Abort { task } } else { Down::End { task, ending } };
        self.target.down(self.now, down);
    }

    fn settle(&mut self) {
        loop {
            self.above.answer(&mut self.target, self.now);
            let Some((from, into)) = self.target.copy() else { break };
            assert_eq!(from.len, into.len(), "a copy has one length");
            assert!(self.held.iter().any(|place| {
                place.offset <= from.offset
                    && from.offset + u64::from(from.len) <= place.offset + u64::from(place.len)
            }));
        }
        if self.is_prompt {
            self.transmit();
        }
        self.reclaim();
        assert!(self.held.len() <= 16, "no more frames than slots");
        assert!(self.above.commands.len() <= 16);
    }

    fn transmit(&mut self) {
        let mut sent = 0;
        while let Some(frame) = self.target.transmit() {
            assert!(frame.size_bytes() <= FRAME_BYTES_MAX && frame.header().len() >= 24);
            assert_eq!(frame.header()[..12], [PEER.0, OURS.0].concat());
            assert_eq!(frame.task.is_some(), !frame.payload.is_empty());
            sent += 1;
            assert!(sent <= 64 + 16 * 4, "answers are bounded");
        }
        self.above.answer(&mut self.target, self.now);
    }

    fn reclaim(&mut self) {
        while let Some(place) = self.target.freed() {
            let at = self.held.iter().position(|held| *held == place).expect("freed once");
            self.held.swap_remove(at);
        }
    }

    fn finish(mut self) {
        if !self.target.is_over() {
            self.target.down(self.now, Down::Close);
        }
        self.above.answer(&mut self.target, self.now);
        assert!(self.above.gone && self.target.is_over());
        for task in std::mem::take(&mut self.borrowed) {
            self.target.end_borrow(task);
        }
        self.reclaim();
        assert!(self.held.is_empty() && self.target.is_idle(), "every frame came back");
        assert!(self.target.poll().is_none());
    }
}
