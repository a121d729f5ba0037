//! The traffic of a network device, as the texts that `proto` feeds to its machines: one for each TCP
//! connection to the daemon, with a line for each MPA frame.

use crate::command::Result;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The daemon's port.
const PORT: u16 = 3260;
/// Runs of at least this many equal bytes are abbreviated.
const RUN: usize = 8;

/// Reads a capture, and writes its connections next to it; returns their paths.
pub(super) fn write(capture: &Path) -> Result<Vec<PathBuf>> {
    let fault = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let bytes = fs::read(capture).map_err(|error| fault(capture, error))?;
    let texts =
        texts(&bytes).ok_or_else(|| format!("{}: no capture of whole connections", capture.display()))?;
    let mut paths = Vec::new();
    for (number, text) in (1..).zip(texts) {
        let path = capture.with_file_name(format!("{number}.txt"));
        fs::write(&path, text).map_err(|error| fault(&path, error))?;
        paths.push(path);
    }
    Ok(paths)
}

/// A text for each connection, in the order in which they began.
fn texts(capture: &[u8]) -> Option<Vec<String>> {
    let mut packets = capture.get(PCAP_HEADER..)?;
    // The magic number, in this machine's byte order.
    if number(capture, 0)? != 0xa1b2_c3d4 {
        return None;
    }
    let mut connections = Vec::new();
    let mut by_port = BTreeMap::new();
    while !packets.is_empty() {
        let len = usize::try_from(number(packets, 8)?).ok()?;
        let (packet, rest) = packets.get(PACKET_HEADER..)?.split_at_checked(len)?;
        packets = rest;
        let Some(segment) = Segment::parse(packet) else { continue };
        if segment.begins && !segment.from_daemon {
            by_port.insert(segment.port, connections.len());
            connections.push(Connection::default());
        }
        let connection = connections.get_mut(*by_port.get(&segment.port)?)?;
        connection.add(&segment)?;
    }
    Some(connections.into_iter().map(|connection| connection.text).collect())
}

/// Lengths of a capture's header, and of each packet's header.
const PCAP_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;

/// A segment between the guest and the daemon.
struct Segment<'a> {
    /// The guest's port.
    port: u16,
    from_daemon: bool,
    begins: bool,
    ends: bool,
    resets: bool,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Parses an Ethernet frame; `None` for anything other than TCP over IPv4 to or from the daemon.
    fn parse(frame: &'a [u8]) -> Option<Segment<'a>> {
        let (kind, packet) = (frame.get(12..14)?, frame.get(14..)?);
        let header = usize::from(packet.first()? & 0x0f) * 4;
        if kind != [0x08, 0x00] || *packet.get(9)? != 6 {
            return None;
        }
        // Anything after the packet is padding of the frame.
        let tcp = packet.get(header..usize::from(u16::from_be_bytes(at(packet, 2)?)))?;
        let (from, to) = (u16::from_be_bytes(at(tcp, 0)?), u16::from_be_bytes(at(tcp, 2)?));
        let flags = *tcp.get(13)?;
        let segment = Segment {
            port: if from == PORT { to } else { from },
            from_daemon: from == PORT,
            begins: flags & 0x02 != 0,
            ends: flags & 0x01 != 0,
            resets: flags & 0x04 != 0,
            sequence: u32::from_be_bytes(at(tcp, 4)?),
            payload: tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?,
        };
        (from == PORT || to == PORT).then_some(segment)
    }
}

/// Both directions of a connection.
#[derive(Default)]
struct Connection {
    text: String,
    guest: Direction,
    daemon: Direction,
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    /// The sequence number of the next byte.
    next: u32,
    /// Bytes of an incomplete frame.
    bytes: Vec<u8>,
    /// The start-up frame has arrived.
    is_started: bool,
    has_ended: bool,
}

impl Connection {
    /// `None`: bytes are missing.
    fn add(&mut self, segment: &Segment<'_>) -> Option<()> {
        let (sign, direction) =
            if segment.from_daemon { ('<', &mut self.daemon) } else { ('>', &mut self.guest) };
        if segment.begins {
            direction.next = segment.sequence.wrapping_add(1);
            return Some(());
        }
        let missing = segment.sequence.wrapping_sub(direction.next).cast_signed();
        if missing > 0 && !segment.payload.is_empty() {
            return None;
        }
        // Retransmitted bytes are already known.
        let known = usize::try_from(missing.unsigned_abs()).ok()?;
        let new = segment.payload.get(known..).unwrap_or_default();
        direction.next = direction.next.wrapping_add(u32::try_from(new.len()).ok()?);
        direction.bytes.extend(new);
        while let Some(frame) = direction.frame() {
            writeln!(self.text, "{sign} {}", packed(&frame)).ok()?;
        }
        if (segment.ends || segment.resets) && !std::mem::replace(&mut direction.has_ended, true) {
            let how = if segment.resets { "reset" } else { "end" };
            writeln!(self.text, "{sign} {how}").ok()?;
        }
        Some(())
    }
}

impl Direction {
    /// Takes the oldest frame (RFC 5044 sections 4.1 and 7.1), if it is complete.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let len = if self.is_started {
            (2 + usize::from(u16::from_be_bytes(at(&self.bytes, 0)?))).next_multiple_of(4) + 4
        } else {
            20 + usize::from(u16::from_be_bytes(at(&self.bytes, 18)?))
        };
        if self.bytes.len() < len {
            return None;
        }
        self.is_started = true;
        Some(self.bytes.drain(..len).collect())
    }
}

/// Bytes in hexadecimal; runs of equal ones as `00*1024`.
fn packed(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|a, b| a == b) {
        let (byte, len) = (run[0], run.len());
        if len < RUN {
            run.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        } else {
            text.push_str(&format!(" {byte:02x}*{len} "));
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn at<const N: usize>(bytes: &[u8], from: usize) -> Option<[u8; N]> {
    bytes.get(from..)?.first_chunk().copied()
}

fn number(bytes: &[u8], from: usize) -> Option<u32> {
    at(bytes, from).map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of a capture, from the guest's port 5 or to it.
    fn packet(from_daemon: bool, sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let ports = if from_daemon { [PORT, 5] } else { [5, PORT] };
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([0x45, 0, 0, u8::try_from(40 + payload.len()).unwrap(), 0, 0, 0, 0, 64, 6]);
        frame.extend([0; 10]);
        frame.extend(ports.map(u16::to_be_bytes).concat());
        frame.extend(sequence.to_be_bytes());
        frame.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend(payload);
        // Ethernet frames have a minimum length.
        frame.resize(frame.len().max(60), 0xee);
        let len = u32::try_from(frame.len()).unwrap().to_ne_bytes();
        [[0; 4], [0; 4], len, len].concat().into_iter().chain(frame).collect()
    }

    fn capture(packets: &[Vec<u8>]) -> Vec<u8> {
        let mut capture = 0xa1b2_c3d4_u32.to_ne_bytes().to_vec();
        capture.resize(PCAP_HEADER, 0);
        capture.extend(packets.concat());
        capture
    }

    #[test]
    fn frames_are_cut_where_they_end() {
        let start = |private: &[u8]| [&[7; 18], &[0, 2][..], private].concat();
        let fpdu = [&[0, 12][..], &[9; 14], &[1; 4]].concat();
        let (first, second) = fpdu.split_at(3);
        let texts = texts(&capture(&[
            packet(false, u32::MAX - 1, 2, &[]),
            packet(true, 100, 0x12, &[]),
            packet(false, u32::MAX, 0x10, &start(&[1, 2])),
            packet(true, 101, 0x10, &start(&[3, 4])),
            packet(false, 21, 0x10, first),
            packet(false, 21, 0x10, first),
            packet(false, 24, 0x11, second),
            packet(false, 42, 0x10, &[]),
            packet(true, 123, 0x04, &[]),
        ]));
        let expected = "> 07*18 00020102\n< 07*18 00020304\n> 000c 09*14 01010101\n> end\n< reset\n";
        assert_eq!(texts, Some(vec![expected.to_owned()]));
    }

    #[test]
    fn a_gap_is_no_connection() {
        let begin = packet(false, 0, 2, &[]);
        assert_eq!(texts(&capture(&[begin.clone(), packet(false, 2, 0x10, &[1])])), None);
        assert_eq!(texts(&capture(&[begin])), Some(vec![String::new()]));
        assert_eq!(texts(b"no capture"), None);
    }
}
