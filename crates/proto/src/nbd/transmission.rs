//! The transmission phase: requests, and their simple and structured replies.

use super::Export;
use std::fmt;
use wire::nbd::{
    self, BlockStatus, ChunkHead, Command, ErrorHead, Hole, Layout, Request, STRING_BYTES_MAX, SimpleReply,
    chunk, command_flag, state,
};
use zerocopy::IntoBytes;

/// The most requests of one connection at a time.
pub const REQUESTS_MAX: usize = 512;

/// The most disjoint pieces of an answer at a time.
const PIECES_MAX: usize = 1024;

/// The longest error chunk: its head, a message, and an offset.
const ERROR_BYTES_MAX: usize = 6 + STRING_BYTES_MAX + 64;

/// How a server violates the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// No reply begins like this.
    Magic,
    /// A structured reply, which was not negotiated.
    NotNegotiated,
    /// A reply to no request.
    Cookie,
    /// A simple reply to a request whose reply must have a payload.
    Simple,
    /// A chunk of a type that is invalid for its request.
    Type,
    /// A chunk whose length is invalid for its type.
    Length,
    /// A chunk outside the requested range.
    Outside,
    /// Data that was sent already.
    Overlap,
    /// More pieces than any server has reason to send.
    Pieces,
    /// A read that ends without all of its data.
    Missing,
    /// A block status of another metadata context, or none, or an empty one.
    Status,
    /// An error chunk with error number zero.
    NoError,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Violation::Magic => "a reply has the wrong magic number",
            Violation::NotNegotiated => "a structured reply, which was not negotiated",
            Violation::Cookie => "a reply to no request",
            Violation::Simple => "a simple reply where a structured one is required",
            Violation::Type => "a chunk of a type that does not belong to its request",
            Violation::Length => "a chunk of a length that its type does not have",
            Violation::Outside => "a chunk outside the requested range",
            Violation::Overlap => "a chunk of data that was sent already",
            Violation::Pieces => "a reply in too many pieces",
            Violation::Missing => "a reply that lacks data",
            Violation::Status => "a block status that was not requested",
            Violation::NoError => "an error chunk without an error",
        })
    }
}

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It succeeded, and all data read was received.
    Done,
    /// This many bytes of the requested range are a hole, or are not.
    Extent {
        /// Bytes.
        len: u32,
        /// Whether nothing is allocated, so that zeros are read.
        is_hole: bool,
    },
}

/// An event of the replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// Bytes that were read.
    Data {
        /// The request.
        slot: usize,
        /// Their offset in its range.
        at: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A part of what was read is zeros.
    Zeros {
        /// The request.
        slot: usize,
        /// Its offset in its range.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// A request has ended, and its slot is free.
    Ended {
        /// The request.
        slot: usize,
        /// Its answer, or the server's error number.
        outcome: Result<Answer, u32>,
    },
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Transmission {
    structured: bool,
    allocation: Option<u32>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    reading: Reading,
}

#[derive(Debug, Default)]
struct Slot {
    /// Counts its requests, so that a reply to an earlier one is not taken for this one's.
    generation: u32,
    request: Option<Open>,
    /// Received parts of a read, from the start of its range, ascending.
    pieces: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    command: Command,
    offset: u64,
    len: u32,
    error: Option<u32>,
    extent: Option<Answer>,
}

/// The position in the stream of replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    Head,
    /// In data of a read.
    Data {
        slot: usize,
        at: u32,
        left: u32,
        is_last: bool,
    },
    /// In an error's message.
    Message {
        slot: usize,
        left: usize,
        is_last: bool,
    },
    /// After the last chunk of a request.
    End(usize),
}

impl Transmission {
    /// On a connection to this export.
    pub fn new(export: &Export) -> Transmission {
        Transmission {
            structured: export.structured,
            allocation: export.allocation,
            slots: Vec::new(),
            free: Vec::new(),
            reading: Reading::Head,
        }
    }

    /// Outstanding requests.
    pub fn open(&self) -> usize {
        self.slots.len().saturating_sub(self.free.len())
    }

    /// Begins a request: appends it to what is sent; the data of a write follows. Returns its slot; `None`:
    /// there are too many requests.
    pub fn begin(
        &mut self,
        command: Command,
        flags: u16,
        (offset, len): (u64, u32),
        out: &mut Vec<u8>,
    ) -> Option<usize> {
        let number = match self.free.pop() {
            Some(free) => free,
            None if self.slots.len() < REQUESTS_MAX => {
                self.slots.push(Slot::default());
                self.slots.len().saturating_sub(1)
            }
            None => return None,
        };
        let slot = self.slots.get_mut(number)?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.request = Some(Open { command, offset, len, error: None, extent: None });
        slot.pieces.clear();
        // One descriptor is enough, and its length is bounded by the request.
        let flags = if command == Command::BlockStatus { flags | command_flag::REQ_ONE } else { flags };
        let cookie = cookie(number, slot.generation);
        out.extend_from_slice(Request::new(command, flags, cookie, offset, len).as_bytes());
        Some(number)
    }

    /// The next event, whose bytes are taken from the unread ones; `None`: more bytes are needed.
    ///
    /// # Errors
    /// When the server violates the protocol: nothing after that can be understood.
    pub fn next<'a>(&mut self, unread: &mut &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        loop {
            match self.reading {
                Reading::Head => {
                    let before = unread.len();
                    if let Some(event) = self.head(unread)? {
                        return Ok(Some(event));
                    }
                    if unread.len() == before {
                        return Ok(None);
                    }
                }
                Reading::Data { slot, at, left, is_last } => {
                    let len = u32::try_from(unread.len()).unwrap_or(u32::MAX).min(left);
                    let Some(bytes) = take(unread, usize::try_from(len).unwrap_or(0)).filter(|_| len > 0)
                    else {
                        return Ok(None);
                    };
                    let (next, left) = (at.saturating_add(len), left.saturating_sub(len));
                    self.reading = match left {
                        0 => Reading::behind(slot, is_last),
                        left => Reading::Data { slot, at: next, left, is_last },
                    };
                    return Ok(Some(Event::Data { slot, at, bytes }));
                }
                Reading::Message { slot, left, is_last } => {
                    let len = unread.len().min(left);
                    take(unread, len);
                    match left.saturating_sub(len) {
                        0 => self.reading = Reading::behind(slot, is_last),
                        left => {
                            self.reading = Reading::Message { slot, left, is_last };
                            return Ok(None);
                        }
                    }
                }
                Reading::End(slot) => {
                    self.reading = Reading::Head;
                    return self.end(slot).map(Some);
                }
            }
        }
    }

    /// The head of a reply, with the fixed-length part after it.
    fn head<'a>(&mut self, unread: &mut &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        let Some(magic) = unread.first_chunk() else { return Ok(None) };
        match u32::from_be_bytes(*magic) {
            nbd::SIMPLE_REPLY_MAGIC => {
                let Some(reply) = SimpleReply::view(unread).copied() else { return Ok(None) };
                take(unread, SimpleReply::BYTES);
                self.simple(reply).map(|()| None)
            }
            nbd::STRUCTURED_REPLY_MAGIC if self.structured => self.chunk(unread),
            nbd::STRUCTURED_REPLY_MAGIC => Err(Violation::NotNegotiated),
            _ => Err(Violation::Magic),
        }
    }

    fn simple(&mut self, reply: SimpleReply) -> Result<(), Violation> {
        let structured = self.structured;
        let (slot, request) = self.find(reply.cookie.get())?;
        self.reading = match (reply.error.get(), request.command) {
            (0, Command::Read) if !structured => {
                let len = request.len;
                self.arrived(slot, 0, len)?;
                Reading::Data { slot, at: 0, left: len, is_last: true }
            }
            (0, Command::Read | Command::BlockStatus) => return Err(Violation::Simple),
            (0, _) => Reading::End(slot),
            (error, _) => {
                request.error = Some(error);
                Reading::End(slot)
            }
        };
        Ok(())
    }

    fn chunk<'a>(&mut self, unread: &mut &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        let Some(head) = ChunkHead::view(unread).copied() else { return Ok(None) };
        let is_last = head.flags.get() & chunk::DONE != 0;
        let (len, kind) = (usize::try_from(head.len.get()).unwrap_or(usize::MAX), head.kind.get());
        let (slot, request) = self.find(head.cookie.get())?;
        let Open { command, offset, len: requested, .. } = *request;
        let behind = unread.get(ChunkHead::BYTES..).unwrap_or_default();
        let fixed = match (kind, command) {
            (chunk::NONE, _) if len == 0 && is_last => {
                self.reading = Reading::End(slot);
                0
            }
            (chunk::OFFSET_DATA, Command::Read) => {
                let left = head.len.get().checked_sub(8).filter(|left| (1..=requested).contains(left));
                let left = left.ok_or(Violation::Length)?;
                let Some(start) = behind.first_chunk() else { return Ok(None) };
                let at = within(u64::from_be_bytes(*start), offset)?;
                self.arrived(slot, at, left)?;
                self.reading = Reading::Data { slot, at, left, is_last };
                8
            }
            (chunk::OFFSET_HOLE, Command::Read) if len == Hole::BYTES => {
                let Some(hole) = Hole::view(behind).copied() else { return Ok(None) };
                let (at, len) = (within(hole.offset.get(), offset)?, hole.len.get());
                self.arrived(slot, at, len)?;
                self.reading = Reading::behind(slot, is_last);
                take(unread, ChunkHead::BYTES.saturating_add(Hole::BYTES));
                return Ok(Some(Event::Zeros { slot, at, len }));
            }
            (chunk::BLOCK_STATUS, Command::BlockStatus) if len == BlockStatus::BYTES => {
                let Some(status) = BlockStatus::view(behind).copied() else { return Ok(None) };
                self.status(slot, &status)?;
                self.reading = Reading::behind(slot, is_last);
                BlockStatus::BYTES
            }
            (kind, _) if kind & chunk::ERROR != 0 && (ErrorHead::BYTES..=ERROR_BYTES_MAX).contains(&len) => {
                let Some(error) = ErrorHead::view(behind).copied() else { return Ok(None) };
                let left = len.saturating_sub(ErrorHead::BYTES);
                if usize::from(error.message_len.get()) > left {
                    return Err(Violation::Length);
                }
                if error.error.get() == 0 {
                    return Err(Violation::NoError);
                }
                request.error.get_or_insert(error.error.get());
                self.reading = Reading::Message { slot, left, is_last };
                ErrorHead::BYTES
            }
            (chunk::NONE | chunk::OFFSET_HOLE | chunk::BLOCK_STATUS, _) => return Err(Violation::Length),
            (kind, _) if kind & chunk::ERROR != 0 => return Err(Violation::Length),
            _ => return Err(Violation::Type),
        };
        take(unread, ChunkHead::BYTES.saturating_add(fixed));
        Ok(None)
    }

    fn status(&mut self, slot: usize, status: &BlockStatus) -> Result<(), Violation> {
        let allocation = self.allocation;
        let request =
            self.slots.get_mut(slot).and_then(|slot| slot.request.as_mut()).ok_or(Violation::Cookie)?;
        let len = status.len.get();
        let is_asked = Some(status.context.get()) == allocation && request.extent.is_none();
        if !is_asked || !(1..=request.len).contains(&len) {
            return Err(Violation::Status);
        }
        let of_hole = state::HOLE | state::ZERO;
        request.extent = Some(Answer::Extent { len, is_hole: status.flags.get() & of_hole == of_hole });
        Ok(())
    }

    fn find(&mut self, given: u64) -> Result<(usize, &mut Open), Violation> {
        let number = usize::try_from(given & u64::from(u32::MAX)).map_err(|_| Violation::Cookie)?;
        let slot = self.slots.get_mut(number).ok_or(Violation::Cookie)?;
        let is_current = cookie(number, slot.generation) == given;
        let request = slot.request.as_mut().filter(|_| is_current).ok_or(Violation::Cookie)?;
        Ok((number, request))
    }

    /// A part of a read comes.
    fn arrived(&mut self, slot: usize, at: u32, len: u32) -> Result<(), Violation> {
        let slot = self.slots.get_mut(slot).ok_or(Violation::Cookie)?;
        let requested = slot.request.map_or(0, |request| request.len);
        let end = at.checked_add(len).filter(|end| *end <= requested && len > 0).ok_or(Violation::Outside)?;
        let pieces = &mut slot.pieces;
        let next = pieces.partition_point(|(_, before)| *before <= at);
        if pieces.get(next).is_some_and(|(start, _)| *start < end) {
            return Err(Violation::Overlap);
        }
        if let Some((_, before)) = next.checked_sub(1).and_then(|before| pieces.get_mut(before))
            && *before == at
        {
            *before = end;
        } else if pieces.len() < PIECES_MAX {
            pieces.insert(next, (at, end));
        } else {
            return Err(Violation::Pieces);
        }
        Ok(())
    }

    fn end<'a>(&mut self, number: usize) -> Result<Event<'a>, Violation> {
        let slot = self.slots.get_mut(number).ok_or(Violation::Cookie)?;
        let request = slot.request.take().ok_or(Violation::Cookie)?;
        self.free.push(number);
        let outcome = match (request.error, request.command) {
            (Some(error), _) => Err(error),
            (None, Command::Read) => {
                let come = slot.pieces.iter().map(|(start, end)| u64::from(end.saturating_sub(*start)));
                if come.sum::<u64>() != u64::from(request.len) {
                    return Err(Violation::Missing);
                }
                Ok(Answer::Done)
            }
            (None, Command::BlockStatus) => Ok(request.extent.ok_or(Violation::Status)?),
            (None, Command::Write | Command::Flush | Command::WriteZeroes | Command::Disconnect) => {
                Ok(Answer::Done)
            }
        };
        Ok(Event::Ended { slot: number, outcome })
    }
}

impl Reading {
    fn behind(slot: usize, is_last: bool) -> Reading {
        if is_last { Reading::End(slot) } else { Reading::Head }
    }
}

/// The cookie of a request: its slot in the low half, its generation in the high half.
fn cookie(slot: usize, generation: u32) -> u64 {
    u64::from(generation).rotate_left(32) | u64::try_from(slot).unwrap_or(u64::from(u32::MAX))
}

/// The offset relative to `start`.
fn within(offset: u64, start: u64) -> Result<u32, Violation> {
    let at = offset.checked_sub(start).ok_or(Violation::Outside)?;
    u32::try_from(at).map_err(|_| Violation::Outside)
}

fn take<'a>(unread: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = unread.split_at_checked(len)?;
    *unread = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nbd::error::EINVAL;

    const EXPORT: Export = Export {
        size: 1 << 30,
        flags: 0,
        block_minimum: 1,
        block_preferred: 4096,
        payload_maximum: 1 << 25,
        structured: true,
        allocation: Some(5),
    };
    const OFFSET: u64 = 1 << 20;

    /// A connection with one request, of 4 KiB at [`OFFSET`], and its cookie.
    fn asked(export: Export, command: Command) -> (Transmission, u64) {
        let (mut machine, mut out) = (Transmission::new(&export), Vec::new());
        assert_eq!(machine.begin(command, 0, (OFFSET, 4096), &mut out), Some(0));
        let request = Request::view(&out).expect("a request");
        assert_eq!((request.offset.get(), request.len.get()), (OFFSET, 4096));
        (machine, request.cookie.get())
    }

    fn simple(error: u32, cookie: u64) -> Vec<u8> {
        let magic = nbd::SIMPLE_REPLY_MAGIC.into();
        SimpleReply { magic, error: error.into(), cookie: cookie.into() }.as_bytes().to_vec()
    }

    fn chunk(kind: u16, flags: u16, cookie: u64, payload: &[&[u8]]) -> Vec<u8> {
        let payload = payload.concat();
        let head = ChunkHead {
            magic: nbd::STRUCTURED_REPLY_MAGIC.into(),
            flags: flags.into(),
            kind: kind.into(),
            cookie: cookie.into(),
            len: u32::try_from(payload.len()).unwrap().into(),
        };
        [head.as_bytes(), &payload].concat()
    }

    fn data(flags: u16, cookie: u64, at: u64, bytes: &[u8]) -> Vec<u8> {
        chunk(chunk::OFFSET_DATA, flags, cookie, &[&(OFFSET + at).to_be_bytes(), bytes])
    }

    fn hole(flags: u16, cookie: u64, at: u64, len: u32) -> Vec<u8> {
        let hole = Hole { offset: (OFFSET + at).into(), len: len.into() };
        chunk(chunk::OFFSET_HOLE, flags, cookie, &[hole.as_bytes()])
    }

    fn status(flags: u16, cookie: u64, [context, len, state]: [u32; 3]) -> Vec<u8> {
        let status = BlockStatus { context: context.into(), len: len.into(), flags: state.into() };
        chunk(chunk::BLOCK_STATUS, flags, cookie, &[status.as_bytes()])
    }

    fn error(kind: u16, flags: u16, cookie: u64, number: u32, message: &[u8]) -> Vec<u8> {
        let message_len = u16::try_from(message.len()).unwrap().into();
        let head = ErrorHead { error: number.into(), message_len };
        chunk(chunk::ERROR | kind, flags, cookie, &[head.as_bytes(), message])
    }

    /// The data read, and how the request ended.
    type Read = (Vec<u8>, Option<Result<Answer, u32>>);

    /// Reads a stream that arrives in pieces of this many bytes.
    fn read(machine: &mut Transmission, stream: &[u8], piece: usize) -> Result<Read, Violation> {
        let (mut bytes, mut ended) = (vec![0xEE; 4096], None);
        let mut staged = Vec::new();
        for part in stream.chunks(piece) {
            staged.extend_from_slice(part);
            let mut unread = &staged[..];
            while let Some(event) = machine.next(&mut unread)? {
                match event {
                    Event::Data { slot: 0, at, bytes: come } => {
                        bytes[at as usize..][..come.len()].copy_from_slice(come);
                    }
                    Event::Zeros { slot: 0, at, len } => bytes[at as usize..][..len as usize].fill(0),
                    Event::Ended { slot: 0, outcome } => assert!(ended.replace(outcome).is_none()),
                    other => panic!("{other:?}"),
                }
            }
            staged = unread.to_vec();
        }
        assert!(staged.is_empty() || ended.is_none(), "all is taken");
        Ok((bytes, ended))
    }

    fn violation(export: Export, command: Command, stream: impl Fn(u64) -> Vec<u8>) -> Violation {
        let mut seen = Vec::new();
        for piece in [1, 7, 1 << 16] {
            let (mut machine, cookie) = asked(export, command);
            seen.push(read(&mut machine, &stream(cookie), piece).expect_err("it is wrong"));
        }
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
        seen[0]
    }

    #[test]
    fn reads_come_whole_or_in_pieces_in_any_order() {
        let plain = Export { structured: false, ..EXPORT };
        let (last, done) = (chunk::DONE, Some(Ok(Answer::Done)));
        for piece in [1, 3, 20, 4096, 1 << 16] {
            let (mut machine, cookie) = asked(plain, Command::Read);
            let stream = [simple(0, cookie), vec![7; 4096]].concat();
            assert_eq!(read(&mut machine, &stream, piece), Ok((vec![7; 4096], done)));
            let (mut machine, cookie) = asked(EXPORT, Command::Read);
            let stream = [
                data(0, cookie, 2048, &[3; 1024]),
                hole(0, cookie, 0, 1024),
                data(0, cookie, 1024, &[2; 1024]),
                data(last, cookie, 3072, &[4; 1024]),
            ];
            let expected = [[0; 1024], [2; 1024], [3; 1024], [4; 1024]].concat();
            assert_eq!(read(&mut machine, &stream.concat(), piece), Ok((expected, done)));
            assert_eq!(machine.open(), 0);
            let (mut machine, cookie) = asked(EXPORT, Command::Read);
            let stream = [data(0, cookie, 0, &[9; 4096]), chunk(chunk::NONE, last, cookie, &[])].concat();
            assert_eq!(read(&mut machine, &stream, piece), Ok((vec![9; 4096], done)));
        }
    }

    #[test]
    fn errors_end_their_request_and_nothing_else() {
        let plain = Export { structured: false, ..EXPORT };
        let failed = Some(Err(EINVAL));
        let ended = |export, command, stream: &dyn Fn(u64) -> Vec<u8>| {
            let (mut machine, cookie) = asked(export, command);
            let (_, ended) = read(&mut machine, &stream(cookie), 11).expect("it is right");
            assert_eq!(machine.open(), 0);
            ended
        };
        assert_eq!(ended(plain, Command::Read, &|cookie| simple(EINVAL, cookie)), failed);
        assert_eq!(ended(EXPORT, Command::Write, &|cookie| simple(EINVAL, cookie)), failed);
        let with_message = |cookie| error(1, chunk::DONE, cookie, EINVAL, b"no such block");
        assert_eq!(ended(EXPORT, Command::Write, &with_message), failed);
        // The offset follows the message; an unknown error type is an error, too.
        for kind in [2, 77] {
            let stream = |cookie| {
                let head = ErrorHead { error: EINVAL.into(), message_len: 2.into() };
                let at = (OFFSET + 512).to_be_bytes();
                let failed = chunk(chunk::ERROR | kind, 0, cookie, &[head.as_bytes(), b"no", &at]);
                [data(0, cookie, 0, &[1; 512]), failed, chunk(chunk::NONE, chunk::DONE, cookie, &[])].concat()
            };
            assert_eq!(ended(EXPORT, Command::Read, &stream), failed);
        }
    }

    #[test]
    fn extents_are_what_the_server_says() {
        for (flags, is_hole) in [(0, false), (state::HOLE, false), (state::ZERO, false), (7, true)] {
            let (mut machine, cookie) = asked(EXPORT, Command::BlockStatus);
            let stream = status(chunk::DONE, cookie, [5, 1024, flags]);
            let (_, ended) = read(&mut machine, &stream, 5).unwrap();
            assert_eq!(ended, Some(Ok(Answer::Extent { len: 1024, is_hole })));
        }
    }

    /// A server may end the reply with a separate chunk, and both arrive together: nothing follows that would
    /// trigger handling the rest.
    #[test]
    fn what_comes_behind_an_extent_is_not_left_for_later() {
        let (mut machine, cookie) = asked(EXPORT, Command::BlockStatus);
        let reply = [status(0, cookie, [5, 4096, 0]), chunk(chunk::NONE, chunk::DONE, cookie, &[])].concat();
        let (_, ended) = read(&mut machine, &reply, reply.len()).unwrap();
        assert_eq!(ended, Some(Ok(Answer::Extent { len: 4096, is_hole: false })));
    }

    #[test]
    fn all_protocol_violations_are_named() {
        let (last, plain) = (chunk::DONE, Export { structured: false, ..EXPORT });
        let of_read = |stream: &dyn Fn(u64) -> Vec<u8>| violation(EXPORT, Command::Read, stream);
        assert_eq!(of_read(&|_| b"GARBAGE that is no reply".to_vec()), Violation::Magic);
        assert_eq!(of_read(&|cookie| simple(0, cookie)), Violation::Simple);
        assert_eq!(of_read(&|cookie| data(last, cookie + 1, 0, &[0; 4096])), Violation::Cookie);
        assert_eq!(of_read(&|cookie| data(last, cookie ^ 1 << 40, 0, &[0; 4096])), Violation::Cookie);
        assert_eq!(of_read(&|cookie| data(last, cookie, 0, &[0; 4097])), Violation::Length);
        assert_eq!(of_read(&|cookie| data(last, cookie, 0, &[])), Violation::Length);
        assert_eq!(of_read(&|cookie| data(last, cookie, 1, &[0; 4096])), Violation::Outside);
        assert_eq!(of_read(&|cookie| data(last, cookie, u64::MAX - OFFSET, &[0; 1])), Violation::Outside);
        assert_eq!(of_read(&|cookie| hole(last, cookie, 0, 0)), Violation::Outside);
        assert_eq!(of_read(&|cookie| hole(last, cookie, 4095, 2)), Violation::Outside);
        assert_eq!(of_read(&|cookie| data(last, cookie, 0, &[0; 4095])), Violation::Missing);
        assert_eq!(of_read(&|cookie| chunk(chunk::NONE, last, cookie, &[])), Violation::Missing);
        assert_eq!(of_read(&|cookie| chunk(chunk::NONE, 0, cookie, &[])), Violation::Length);
        assert_eq!(of_read(&|cookie| chunk(chunk::NONE, last, cookie, &[b"x"])), Violation::Length);
        assert_eq!(of_read(&|cookie| chunk(9, last, cookie, &[])), Violation::Type);
        assert_eq!(of_read(&|cookie| status(last, cookie, [5, 512, 0])), Violation::Length);
        assert_eq!(of_read(&|cookie| error(1, last, cookie, 0, b"")), Violation::NoError);
        assert_eq!(of_read(&|cookie| chunk(chunk::ERROR | 1, last, cookie, &[b"short"])), Violation::Length);
        assert_eq!(of_read(&|cookie| error(1, last, cookie, 5, &[b'x'; 5000])), Violation::Length);
        let twice = |cookie| [data(0, cookie, 0, &[0; 8]), data(0, cookie, 7, &[0; 8])].concat();
        assert_eq!(of_read(&twice), Violation::Overlap);
        let backwards = |cookie| [data(0, cookie, 8, &[0; 8]), data(0, cookie, 0, &[0; 9])].concat();
        assert_eq!(of_read(&backwards), Violation::Overlap);
        let scattered =
            |cookie| (0..2000).flat_map(|nth| data(0, cookie, 2 * nth, &[0])).collect::<Vec<u8>>();
        assert_eq!(of_read(&scattered), Violation::Pieces);
        let long_message = |cookie| {
            let head = ErrorHead { error: 5.into(), message_len: 9.into() };
            chunk(chunk::ERROR | 1, last, cookie, &[head.as_bytes(), b"short"])
        };
        assert_eq!(of_read(&long_message), Violation::Length);
        assert_eq!(
            violation(EXPORT, Command::Write, |cookie| data(last, cookie, 0, &[0; 1])),
            Violation::Type
        );
        assert_eq!(
            violation(plain, Command::Read, |cookie| hole(last, cookie, 0, 1)),
            Violation::NotNegotiated
        );
        let of_status = |given| violation(EXPORT, Command::BlockStatus, |cookie| status(last, cookie, given));
        assert_eq!(of_status([4, 512, 0]), Violation::Status);
        assert_eq!(of_status([5, 0, 0]), Violation::Status);
        assert_eq!(of_status([5, 4097, 0]), Violation::Status);
        let none = |cookie| chunk(chunk::NONE, last, cookie, &[]);
        assert_eq!(violation(EXPORT, Command::BlockStatus, none), Violation::Status);
    }

    #[test]
    fn requests_are_bounded_and_a_late_reply_is_none_to_the_next_in_its_slot() {
        let (mut machine, mut out) = (Transmission::new(&EXPORT), Vec::new());
        let slots: Vec<usize> =
            std::iter::from_fn(|| machine.begin(Command::Flush, 0, (0, 0), &mut out)).collect();
        assert_eq!((slots.len(), machine.open()), (REQUESTS_MAX, REQUESTS_MAX));
        let cookies: Vec<u64> =
            out.chunks(Request::BYTES).map(|request| Request::view(request).unwrap().cookie.get()).collect();
        let reply = simple(0, cookies[9]);
        let mut unread = &reply[..];
        let ended = Event::Ended { slot: 9, outcome: Ok(Answer::Done) };
        assert_eq!(machine.next(&mut unread), Ok(Some(ended)));
        assert_eq!(machine.begin(Command::Flush, 0, (0, 0), &mut out), Some(9));
        assert_eq!(machine.next(&mut &reply[..]), Err(Violation::Cookie));
    }
}
