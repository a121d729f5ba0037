//! Requests before there is a session: what they need, and answers to those that need none.

use super::violation::{Reaction, Violation};
use wire::aoe::{
    Address, CONFIG_BYTES_MAX, Command, ConfigArgument, ConfigCommand, ETHERTYPE, ErrorCode, Header, Mac,
};
use wire::iwarp::Layout;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U16;

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestInfo {
    /// The sender.
    pub from: Mac,
    /// The target, or targets.
    pub to: Address,
    /// What it needs.
    pub kind: Kind,
}

/// What a request needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No session: [`answer_query`] from all targets that it is addressed to.
    Query,
    /// A session with one target: [`super::Target::receive`].
    Session,
}

/// A target as queries see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export<'a> {
    /// Its address.
    pub address: Address,
    /// The interface's Ethernet address.
    pub ours: Mac,
    /// Its config string.
    pub config: &'a [u8],
    /// Requests of one initiator that it can queue.
    pub buffers: u16,
    /// Sectors in a frame.
    pub sectors_max: u8,
    /// Its firmware version.
    pub firmware: u16,
}

/// Parses a request; an invalid frame is not answered.
pub fn classify(frame: &[u8]) -> Result<RequestInfo, Violation> {
    let header = head(frame)?;
    let (from, to) = (header.source, header.address());
    if needs_session(header, frame)? {
        let info = RequestInfo { from, to, kind: Kind::Session };
        return if to.is_broadcast() { Err(Violation::Broadcast) } else { Ok(info) };
    }
    Ok(RequestInfo { from, to, kind: Kind::Query })
}

/// The header of a frame that may be a request.
pub(super) fn head(frame: &[u8]) -> Result<&Header, Violation> {
    let header = Header::view(frame).ok_or(Violation::Truncated)?;
    if header.ethertype.get() != ETHERTYPE {
        return Err(Violation::EtherType);
    }
    if header.source.is_group() {
        return Err(Violation::Source);
    }
    if header.is_response() {
        return Err(Violation::Response);
    }
    Ok(header)
}

/// Whether a request is for a session. One that is not understood is not: it is refused.
pub(super) fn needs_session(header: &Header, frame: &[u8]) -> Result<bool, Violation> {
    if header.version() != Header::VERSION {
        return Ok(false);
    }
    match header.command {
        Command::ATA | Command::MASK | Command::RESERVE => Ok(true),
        Command::CONFIG => {
            let argument = argument(frame).ok_or(Violation::Truncated)?;
            Ok(matches!(argument.command(), ConfigCommand::SET | ConfigCommand::FORCE_SET))
        }
        _ => Ok(false),
    }
}

fn argument(frame: &[u8]) -> Option<&ConfigArgument> {
    ConfigArgument::view(frame.get(Header::BYTES..)?)
}

/// Writes the answer of a target to a request that needs no session into `out`; returns its length, if an
/// answer is due.
pub fn answer_query(frame: &[u8], export: &Export<'_>, out: &mut [u8]) -> Option<usize> {
    let header = head(frame).ok()?;
    let to = header.address();
    if !to.covers(export.address) {
        return None;
    }
    match validate(header, frame, export.config) {
        Ok(None) => None,
        Ok(Some(command)) => {
            let header = header.answer(export.ours, export.address, ErrorCode::NONE);
            write_frame(out, [header.as_bytes(), export.argument(command).as_bytes(), export.config])
        }
        Err(violation) => match violation.reaction() {
            Reaction::Refuse(error) if !to.is_broadcast() => {
                let header = header.answer(export.ours, export.address, error);
                write_frame(out, [header.as_bytes(), &[], &[]])
            }
            Reaction::Refuse(_) | Reaction::Drop => None,
        },
    }
}

/// Writes what a target announces to all stations when it starts: an unsolicited answer to a query. Hosts
/// that listen need not query then.
pub fn announce(export: &Export<'_>, out: &mut [u8]) -> Option<usize> {
    let all = Header::request(Mac::BROADCAST, export.ours, export.address, Command::CONFIG, 0);
    let header = all.answer(export.ours, export.address, ErrorCode::NONE);
    write_frame(out, [header.as_bytes(), export.argument(ConfigCommand::READ).as_bytes(), export.config])
}

/// The config command to answer; `None` where a test fails.
fn validate(header: &Header, frame: &[u8], config: &[u8]) -> Result<Option<ConfigCommand>, Violation> {
    if header.version() != Header::VERSION {
        return Err(Violation::Version);
    }
    match header.command {
        Command::CONFIG => {}
        Command::ATA | Command::MASK | Command::RESERVE => return Ok(None),
        _ => return Err(Violation::Command),
    }
    let argument = argument(frame).ok_or(Violation::Truncated)?;
    let command = argument.command();
    let string = || {
        if argument.len.get() > CONFIG_BYTES_MAX {
            return Err(Violation::TooMuch);
        }
        let rest = frame.get(Header::BYTES.saturating_add(ConfigArgument::BYTES)..).unwrap_or_default();
        rest.get(..usize::from(argument.len.get())).ok_or(Violation::DataLength)
    };
    let is_due = match command {
        ConfigCommand::READ => true,
        ConfigCommand::TEST => config == string()?,
        ConfigCommand::TEST_PREFIX => config.starts_with(string()?),
        ConfigCommand::SET | ConfigCommand::FORCE_SET => false,
        _ => return Err(Violation::Subcommand),
    };
    Ok(is_due.then_some(command))
}

impl Export<'_> {
    /// The argument before the config string.
    fn argument(&self, command: ConfigCommand) -> ConfigArgument {
        ConfigArgument {
            buffer_count: U16::new(self.buffers),
            firmware: U16::new(self.firmware),
            sector_count: self.sectors_max,
            version_command: (Header::VERSION << 4) | command.0,
            len: U16::new(u16::try_from(self.config.len()).unwrap_or(0)),
        }
    }
}

/// The shortest frame, without its checksum (IEEE 802.3 section 3.2.8). Not every device pads to this length,
/// and aoetools accept nothing shorter.
const FRAME_BYTES_MIN: usize = 60;

/// Writes a frame of these parts; returns its length, if it fits.
fn write_frame(out: &mut [u8], parts: [&[u8]; 3]) -> Option<usize> {
    let mut at = 0usize;
    for part in parts {
        let end = at.checked_add(part.len())?;
        out.get_mut(at..end)?.copy_from_slice(part);
        at = end;
    }
    let end = at.max(FRAME_BYTES_MIN);
    out.get_mut(at..end)?.fill(0);
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);
    const E1_2: Address = Address { shelf: 1, slot: 2 };
    const EXPORT: Export<'static> =
        Export { address: E1_2, ours: OURS, config: b"disk", buffers: 16, sectors_max: 2, firmware: 0x4016 };

    fn config(to: Address, command: ConfigCommand, string: &[u8]) -> Vec<u8> {
        let mut frame = Header::request(PEER, Mac::BROADCAST, to, Command::CONFIG, 7).as_bytes().to_vec();
        let len = u8::try_from(string.len()).unwrap();
        frame.extend([0, 0, 0, 0, 0, 0x10 | command.0, 0, len]);
        frame.extend(string);
        // Ethernet's minimum frame length.
        frame.resize(frame.len().max(60), 0);
        frame
    }

    fn answer(frame: &[u8]) -> Option<Vec<u8>> {
        let mut out = [0xee; 100];
        let len = answer_query(frame, &EXPORT, &mut out)?;
        assert!(out[len..].iter().all(|byte| *byte == 0xee));
        Some(out[..len].to_vec())
    }

    #[test]
    fn discovery_is_answered_with_the_config_string() {
        for to in
            [Address::BROADCAST, E1_2, Address { shelf: 1, slot: 255 }, Address { shelf: 65535, slot: 2 }]
        {
            let frame = config(to, ConfigCommand::READ, b"");
            assert_eq!(classify(&frame), Ok(RequestInfo { from: PEER, to, kind: Kind::Query }));
            let answer = answer(&frame).unwrap();
            assert_eq!(answer[..14], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xa2]);
            assert_eq!(answer[14..24], [0x18, 0, 0, 1, 2, 1, 0, 0, 0, 7]);
            assert_eq!(answer[24..36], *b"\x00\x10\x40\x16\x02\x10\x00\x04disk");
            assert!(answer.len() == 60 && answer[36..].iter().all(|byte| *byte == 0), "Ethernet's shortest");
        }
        assert_eq!(answer(&config(Address { shelf: 2, slot: 255 }, ConfigCommand::READ, b"")), None);
        assert_eq!(answer(&config(Address { shelf: 1, slot: 3 }, ConfigCommand::READ, b"")), None);
        assert_eq!(answer_query(&config(E1_2, ConfigCommand::READ, b""), &EXPORT, &mut [0; 59]), None);
    }

    #[test]
    fn a_test_is_answered_where_it_holds() {
        let is_answered =
            |command, string: &[u8]| answer(&config(Address::BROADCAST, command, string)).is_some();
        assert!(is_answered(ConfigCommand::TEST, b"disk"));
        assert!(!is_answered(ConfigCommand::TEST, b"dis") && !is_answered(ConfigCommand::TEST, b"disks"));
        for prefix in [&b"disk"[..], b"dis", b""] {
            assert!(is_answered(ConfigCommand::TEST_PREFIX, prefix));
        }
        assert!(!is_answered(ConfigCommand::TEST_PREFIX, b"isk"));
        assert!(!is_answered(ConfigCommand::TEST_PREFIX, b"disks"));
    }

    #[test]
    fn what_is_not_understood_is_refused_where_it_was_meant_for_one() {
        let plain = config(E1_2, ConfigCommand::READ, b"");
        let refused = |at: usize, byte: u8| {
            let (mut one, mut all) = (plain.clone(), config(Address::BROADCAST, ConfigCommand::READ, b""));
            (one[at], all[at]) = (byte, byte);
            assert_eq!(answer(&all), None, "not a storm of refusals");
            assert_eq!(classify(&one).unwrap().kind, Kind::Query);
            let answer = answer(&one).unwrap();
            assert_eq!((answer.len(), answer[14]), (60, 0x1c));
            answer[15]
        };
        assert_eq!(refused(14, 0x20), 5);
        assert_eq!(refused(19, 4), 1);
        assert_eq!(refused(29, 0x15), 2);
        let mut long = config(E1_2, ConfigCommand::TEST, b"disk");
        long[30..32].copy_from_slice(&[4, 1]);
        assert_eq!(answer(&long).unwrap()[15], 2, "longer than config strings are");
        long[30..32].copy_from_slice(&[0, 29]);
        assert_eq!(answer(&long).unwrap()[15], 2, "longer than the frame");
    }

    #[test]
    fn frames_that_are_no_requests_are_dropped() {
        let frame = config(E1_2, ConfigCommand::READ, b"");
        for len in 0..32 {
            assert_eq!(classify(&frame[..len]), Err(Violation::Truncated));
            assert_eq!(answer(&frame[..len]), None);
        }
        for (at, byte, violation) in [
            (12, 8, Violation::EtherType),
            (6, 0xff, Violation::Source),
            (6, 1, Violation::Source),
            (14, 0x18, Violation::Response),
        ] {
            let mut frame = frame.clone();
            frame[at] = byte;
            assert_eq!(classify(&frame), Err(violation));
            assert_eq!(answer(&frame), None);
        }
    }

    #[test]
    fn what_changes_something_is_for_a_session_with_one_target() {
        let frames = |to| {
            [Command::ATA, Command::MASK, Command::RESERVE]
                .map(|command| Header::request(PEER, OURS, to, command, 7).as_bytes().to_vec())
                .into_iter()
                .chain([ConfigCommand::SET, ConfigCommand::FORCE_SET].map(|command| config(to, command, b"")))
        };
        for (one, all) in frames(E1_2).zip(frames(Address::BROADCAST)) {
            assert_eq!(classify(&one), Ok(RequestInfo { from: PEER, to: E1_2, kind: Kind::Session }));
            assert_eq!(classify(&all), Err(Violation::Broadcast));
            assert_eq!((answer(&one), answer(&all)), (None, None));
        }
    }

    #[test]
    fn a_target_announces_itself() {
        let mut out = [0; 100];
        let len = announce(&EXPORT, &mut out).unwrap();
        assert_eq!(out[..12], [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1]);
        assert_eq!(out[12..24], [0x88, 0xa2, 0x18, 0, 0, 1, 2, 1, 0, 0, 0, 0]);
        assert_eq!((len, &out[24..36]), (60, &b"\x00\x10\x40\x16\x02\x10\x00\x04disk"[..]));
    }
}
