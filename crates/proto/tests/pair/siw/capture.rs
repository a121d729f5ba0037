//! Captured connections: a line for each MPA frame, with `>` for those of siw and `<` for those of the
//! daemon, `end` where a side closed the connection, and `00*1024` for repeated bytes.

use wire::iwarp::{Head, Layout, Opcode, ReadRequest, StartFrame, Tagged, Untagged};

/// What one side has sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Line {
    Frame(Vec<u8>),
    End,
}

/// Reads a capture; siw's lines, and the daemon's.
pub(super) fn sides(text: &str) -> (Vec<Line>, Vec<Line>) {
    let (mut siw, mut daemon) = (Vec::new(), Vec::new());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (side, rest) = line.split_once(' ').unwrap();
        let side = if side == ">" { &mut siw } else { &mut daemon };
        side.push(match rest {
            "end" | "reset" => Line::End,
            bytes => Line::Frame(bytes.split(' ').flat_map(unpacked).collect()),
        });
    }
    (siw, daemon)
}

fn unpacked(word: &str) -> Vec<u8> {
    let (digits, times) = word.split_once('*').unwrap_or((word, "1"));
    let bytes: Vec<u8> =
        (0..digits.len() / 2).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).unwrap()).collect();
    bytes.repeat(times.parse().unwrap())
}

/// A message, reassembled from its segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Start { flags: u8, private_data: Vec<u8> },
    Send { bytes: Vec<u8> },
    Write { stag: u32, offset: u64, data: Vec<u8> },
    ReadRequest { sink: u32, stag: u32, offset: u64, len: u32 },
    ReadResponse { sink: u32, data: Vec<u8> },
    Terminate { bytes: Vec<u8> },
}

/// The messages of one direction, whose frames have neither markers nor sums.
pub(super) fn messages<'a>(frames: impl IntoIterator<Item = &'a [u8]>) -> Vec<Message> {
    let mut frames = frames.into_iter();
    let start = frames.next().unwrap();
    let flags = StartFrame::view(start).unwrap().flags;
    let mut messages = vec![Message::Start { flags, private_data: start[StartFrame::BYTES..].to_vec() }];
    let mut is_whole = true;
    for frame in frames {
        let head = Head::view(frame).unwrap();
        let ulpdu = &frame[..2 + usize::from(head.ulpdu_length.get())];
        if is_whole {
            messages.push(begin(head, ulpdu));
        } else {
            go_on(messages.last_mut().unwrap(), ulpdu);
        }
        is_whole = head.is_last();
    }
    assert!(is_whole);
    messages
}

fn begin(head: &Head, ulpdu: &[u8]) -> Message {
    if head.is_tagged() {
        let (tagged, data) = (Tagged::view(ulpdu).unwrap(), ulpdu[Tagged::BYTES..].to_vec());
        let (stag, offset) = (tagged.stag.get(), tagged.offset.get());
        return match head.opcode() {
            Opcode::WRITE => Message::Write { stag, offset, data },
            Opcode::READ_RESPONSE => Message::ReadResponse { sink: stag, data },
            other => panic!("{other:?}"),
        };
    }
    let bytes = ulpdu[Untagged::BYTES..].to_vec();
    match head.opcode() {
        Opcode::READ_REQUEST => {
            let request = ReadRequest::view(&bytes).unwrap();
            let (sink, stag) = (request.sink_stag.get(), request.source_stag.get());
            Message::ReadRequest { sink, stag, offset: request.source_offset.get(), len: request.size.get() }
        }
        Opcode::TERMINATE => Message::Terminate { bytes },
        _ => Message::Send { bytes },
    }
}

fn go_on(message: &mut Message, ulpdu: &[u8]) {
    match message {
        Message::Write { data, .. } | Message::ReadResponse { data, .. } => {
            data.extend(&ulpdu[Tagged::BYTES..])
        }
        Message::Send { bytes } => bytes.extend(&ulpdu[Untagged::BYTES..]),
        other => panic!("{other:?} has one segment"),
    }
}

/// The frames in a stream of bytes.
pub(super) fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let len = if frames.is_empty() {
            StartFrame::BYTES + usize::from(u16::from_be_bytes([bytes[18], bytes[19]]))
        } else {
            (2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))).next_multiple_of(4) + 4
        };
        let (frame, rest) = bytes.split_at(len);
        frames.push(frame);
        bytes = rest;
    }
    frames
}
