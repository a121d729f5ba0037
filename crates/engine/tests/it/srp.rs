//! Channels of SRP at the daemon, with hand-made frames: which continue beside which, and what they share.

use config::{Config, ServeOptions};
use engine::Daemon;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::scsi::opcode::{READ_10, RESERVE_6 as RESERVE, TEST_UNIT_READY, WRITE_10};
use wire::scsi::status::{CHECK_CONDITION, GOOD, RESERVATION_CONFLICT as CONFLICT};

const GUID: u64 = 0x024c_7500_0000_0001;
const PATIENCE: Duration = Duration::from_secs(120);
/// Multi-channel action of a login: other channels end, or continue.
const SINGLE: u8 = 0;
const MULTIPLE: u8 = 1;
/// Data may be inside commands, from this offset on.
const IMMEDIATE: u8 = 0x80;
const IMMEDIATE_AT: u16 = 68;
/// The outcome for other channels, in the response: there were none, they ended, they continue.
const NONE: u8 = 0;
const TERMINATED: u8 = 1;
const MAINTAINED: u8 = 2;
const ASYNC_EVENT: u8 = 0x82;
/// Formats of the descriptors: data-out or data-in by a direct one.
const OUT_DIRECT: u8 = 0x10;
const IN_DIRECT: u8 = 0x01;
const OUT_IMMEDIATE: u8 = 0x30;
const ABORT_TASK: u8 = 0x01;
const ABORT_TASK_SET: u8 = 0x02;
const LOGICAL_UNIT_RESET: u8 = 0x08;
/// Of DDP's and RDMAP's control fields.
const TAGGED: u8 = 0x80;
const RDMA_WRITE: u8 = 0;
const RDMA_READ: u8 = 1;
const RDMA_READ_RESPONSE: u8 = 2;
/// 32 KiB at LBA 0.
const BLOCKS: u8 = 64;
const DATA_BYTES: u32 = BLOCKS as u32 * 512;
/// Turns of a core after which it has done everything that nothing prevents, including by messages to other
/// cores.
const TURNS: u32 = 32;

fn serve() -> Daemon {
    serve_unit("ram:1M")
}

fn serve_unit(spec: &str) -> Daemon {
    serve_with(&[spec], |_| {})
}

/// A unit, and a second one that other sessions use only to make the cores turn.
fn serve_two() -> Daemon {
    serve_with(&["ram:1M", "ram:1M"], |_| {})
}

fn serve_with(specs: &[&str], change: impl FnOnce(&mut Config)) -> Daemon {
    let options = ServeOptions {
        listen: vec!["127.0.0.1:0".into()],
        srp: vec!["127.0.0.1:0".into()],
        srp_guid: Some(format!("{GUID:016x}")),
        lun: specs.iter().map(|spec| (*spec).into()).collect(),
        poll: std::env::var("LUNETTE_TEST_POLL").ok(),
        ..ServeOptions::default()
    };
    let mut config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    change(&mut config);
    Daemon::start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// An initiator's end of a channel. It answers RDMA Reads when a test says so.
struct Channel {
    stream: TcpStream,
    sent: u32,
    /// What the target has written to our memory.
    written: Vec<u8>,
}

impl Channel {
    /// The channel, and the outcome for others; `Err`: why the login was rejected.
    fn login(at: SocketAddr, port: u8, action: u8, guid: u64) -> Result<(Channel, u8), u32> {
        let mut stream = TcpStream::connect(at).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut login = [0; 56];
        login[8..11].copy_from_slice(&[0, 6, IMMEDIATE | action]);
        login[14..16].copy_from_slice(&8260u16.to_be_bytes());
        login[48..50].copy_from_slice(&IMMEDIATE_AT.to_be_bytes());
        login[31] = port;
        login[32..40].copy_from_slice(&guid.to_be_bytes());
        login[40..48].copy_from_slice(&guid.to_be_bytes());
        let frame = [b"MPA ID Req Frame", &[0x10, 2, 0, 60, 0, 4, 0, 0][..], &login].concat();
        stream.write_all(&frame).expect("a login");
        let mut head = [0; 24];
        stream.read_exact(&mut head).expect("an answer");
        assert_eq!(&head[..16], b"MPA ID Rep Frame");
        let mut answer = vec![0; usize::from(u16::from_be_bytes([head[18], head[19]])) - 4];
        stream.read_exact(&mut answer).expect("private data");
        match answer[0] {
            0xc0 => Ok((Channel { stream, sent: 0, written: Vec::new() }, answer[26] & 0x3f)),
            0xc2 => Err(u32::from_be_bytes([answer[4], answer[5], answer[6], answer[7]])),
            other => panic!("an answer {other:#x}"),
        }
    }

    /// Executes a command without data, retrying after each unit attention; returns its status.
    fn execute(&mut self, opcode: u8) -> u8 {
        loop {
            match self.try_execute(opcode) {
                CHECK_CONDITION => {}
                status => return status,
            }
        }
    }

    fn try_execute(&mut self, opcode: u8) -> u8 {
        let tag = self.command(&[opcode], 0, &[]);
        self.response(tag)[19]
    }

    /// Sends a command with direct descriptors of these formats; returns its tag.
    fn command(&mut self, cdb: &[u8], formats: u8, descriptor: &[u8]) -> u32 {
        let mut command = [0; 48];
        (command[0], command[5]) = (2, formats);
        command[32..32 + cdb.len()].copy_from_slice(cdb);
        self.send(command, descriptor)
    }

    /// Requests a task management function on LUN 0; returns its tag.
    fn manage(&mut self, function: u8, task: u32) -> u32 {
        let mut request = [0; 48];
        (request[0], request[30]) = (1, function);
        request[36..40].copy_from_slice(&task.to_be_bytes());
        self.send(request, &[])
    }

    fn send(&mut self, mut unit: [u8; 48], behind: &[u8]) -> u32 {
        self.sent += 1;
        unit[12..16].copy_from_slice(&self.sent.to_be_bytes());
        let head = [&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0][..], &self.sent.to_be_bytes(), &[0; 4]].concat();
        self.frame(&[&head[..], &unit, behind].concat());
        self.sent
    }

    fn frame(&mut self, ulpdu: &[u8]) {
        let len = u16::try_from(ulpdu.len()).expect("a short frame");
        let mut frame = [&len.to_be_bytes()[..], ulpdu].concat();
        frame.resize(frame.len().next_multiple_of(4) + 4, 0);
        self.stream.write_all(&frame).expect("a frame");
    }

    /// The next frame, from its DDP control field on.
    fn next(&mut self) -> Vec<u8> {
        let mut len = [0; 2];
        self.stream.read_exact(&mut len).expect("a frame");
        let len = usize::from(u16::from_be_bytes(len));
        let mut rest = vec![0; (len + 2).next_multiple_of(4) + 2];
        self.stream.read_exact(&mut rest).expect("a frame");
        rest.truncate(len);
        rest
    }

    /// The response with this tag, which must be next, after data that is written to our memory.
    fn response(&mut self, tag: u32) -> Vec<u8> {
        let unit = self.any_response();
        assert_eq!(unit[12..16], tag.to_be_bytes());
        unit
    }

    fn any_response(&mut self) -> Vec<u8> {
        loop {
            let frame = self.next();
            if frame[0] & TAGGED != 0 {
                assert_eq!(frame[1] & 0xf, RDMA_WRITE);
                self.written.extend_from_slice(&frame[14..]);
            } else if frame[18] == 0xc1 {
                // Credits may come in separate requests.
                return frame[18..].to_vec();
            }
        }
    }

    /// The next RDMA Read of the target.
    fn read_request(&mut self) -> Vec<u8> {
        let frame = self.next();
        assert_eq!((frame[0] & TAGGED, frame[1] & 0xf), (0, RDMA_READ));
        frame[18..].to_vec()
    }

    /// Answers it with bytes of this value.
    fn answer_read(&mut self, request: &[u8], value: u8) {
        let number = |at: usize| u32::from_be_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let (offset, len) = (number(8), number(12));
        let mut at = 0;
        while at < len {
            let part = (len - at).min(16 << 10);
            let last = if at + part == len { 0x40 } else { 0 };
            let head = [
                &[TAGGED | last | 1, 0x40 | RDMA_READ_RESPONSE][..],
                &request[..8],
                &(offset + at).to_be_bytes(),
            ];
            self.frame(&[head.concat(), vec![value; part as usize]].concat());
            at += part;
        }
    }

    /// Has the core of the channel turn: it answers a command on the second unit, and must have answered
    /// nothing else before.
    fn turn(&mut self) {
        let mut command = [0; 48];
        (command[0], command[21]) = (2, 1);
        let tag = self.send(command, &[]);
        self.response(tag);
    }

    /// Waits for the target to close the connection; returns whether it logged us out first.
    fn ends(mut self) -> bool {
        const TARGET_LOGOUT: u8 = 0x80;
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("the target closes the connection");
        let mut frames = &rest[..];
        while let [high, low, ..] = *frames {
            let (frame, next) =
                frames.split_at((usize::from(u16::from_be_bytes([high, low])) + 2).next_multiple_of(4) + 4);
            if frame.get(20) == Some(&TARGET_LOGOUT) {
                return true;
            }
            frames = next;
        }
        false
    }
}

#[test]
fn a_login_ends_all_channels_of_its_port_unless_it_keeps_them() {
    let daemon = serve();
    let at = daemon.addresses()[0];
    let login = |port, action| Channel::login(at, port, action, GUID).expect("a channel");
    let (mut other, others) = login(2, SINGLE);
    assert_eq!(others, NONE);
    let ((first, none), (second, kept), (third, also)) =
        (login(1, SINGLE), login(1, MULTIPLE), login(1, MULTIPLE));
    assert_eq!([none, kept, also], [NONE, MAINTAINED, MAINTAINED]);
    let mut earlier = [first, second, third];
    for channel in &mut earlier {
        assert_eq!(channel.execute(TEST_UNIT_READY), GOOD);
    }
    let (mut heir, ended) = login(1, SINGLE);
    assert_eq!((ended, heir.execute(TEST_UNIT_READY)), (TERMINATED, GOOD));
    assert!(earlier.into_iter().all(Channel::ends), "they are logged out");
    assert_eq!(other.execute(TEST_UNIT_READY), GOOD, "another port continues");
    assert_eq!(Channel::login(at, 1, SINGLE, GUID + 1).err(), Some(0x0001_0003), "another target port");
    daemon.stop().expect("an orderly end");
}

#[test]
fn channels_of_a_port_are_one_nexus() {
    let daemon = serve();
    let at = daemon.addresses()[0];
    let login = |port, action| Channel::login(at, port, action, GUID).expect("a channel").0;
    let (mut first, mut second, mut other) = (login(1, SINGLE), login(1, MULTIPLE), login(2, SINGLE));
    assert_eq!(first.execute(RESERVE), GOOD);
    assert_eq!(second.execute(TEST_UNIT_READY), GOOD);
    assert_eq!(other.execute(TEST_UNIT_READY), CONFLICT);
    first.stream.shutdown(std::net::Shutdown::Write).expect("an end");
    first.ends();
    assert_eq!(other.execute(TEST_UNIT_READY), CONFLICT, "the nexus continues with its second channel");
    second.stream.shutdown(std::net::Shutdown::Write).expect("an end");
    second.ends();
    // The unit's home is notified of the end of a nexus by messages between cores.
    let deadline = Instant::now() + PATIENCE;
    while other.execute(TEST_UNIT_READY) == CONFLICT {
        assert!(Instant::now() < deadline, "the reservation ends with its nexus");
    }
    daemon.stop().expect("an orderly end");
}

fn transfer(opcode: u8) -> [u8; 10] {
    [opcode, 0, 0, 0, 0, 0, 0, 0, BLOCKS, 0]
}

fn direct() -> Vec<u8> {
    [&0x1000u64.to_be_bytes()[..], &7u32.to_be_bytes(), &DATA_BYTES.to_be_bytes()].concat()
}

/// Whether the medium differs from `value`.
fn differs(channel: &mut Channel, value: u8) -> bool {
    channel.written.clear();
    let tag = channel.command(&transfer(READ_10), IN_DIRECT, &direct());
    assert_eq!(channel.response(tag)[19], GOOD);
    assert_eq!(channel.written.len(), DATA_BYTES as usize);
    channel.written.iter().any(|byte| *byte != value)
}

/// RDMA that was posted cannot be recalled: the buffer of an aborted task is not reused before it has ended.
#[test]
fn a_read_that_is_answered_after_its_abort_reaches_no_other_task() {
    let daemon = serve_two();
    let at = daemon.addresses()[0];
    let login = |port| Channel::login(at, port, SINGLE, GUID).expect("a channel").0;
    let (mut slow, mut other) = (login(1), login(2));
    assert_eq!((slow.execute(TEST_UNIT_READY), other.execute(TEST_UNIT_READY)), (GOOD, GOOD));
    let task = slow.command(&transfer(WRITE_10), OUT_DIRECT, &direct());
    let asked = slow.read_request();
    let abort = slow.manage(ABORT_TASK, task);
    // The answer waits for the read.
    (0..TURNS).for_each(|_| slow.turn());
    let write = other.command(&transfer(WRITE_10), OUT_DIRECT, &direct());
    let other_asked = other.read_request();
    slow.answer_read(&asked, 0xaa);
    assert_eq!(slow.response(abort)[39], 0);
    other.answer_read(&other_asked, 0xbb);
    assert_eq!(other.response(write)[19], GOOD);
    assert!(!differs(&mut other, 0xbb), "a write is what its initiator sent");
    assert!(!differs(&mut slow, 0xbb));
    daemon.stop().expect("an orderly end");
}

/// What an initiator requests on one channel applies to all of its channels.
#[test]
fn functions_cover_all_channels_of_their_nexus() {
    for function in [ABORT_TASK_SET, LOGICAL_UNIT_RESET] {
        let daemon = serve_two();
        let at = daemon.addresses()[0];
        let login = |action| Channel::login(at, 1, action, GUID).expect("a channel").0;
        let (mut first, mut second) = (login(SINGLE), login(MULTIPLE));
        assert_eq!((first.execute(TEST_UNIT_READY), second.execute(TEST_UNIT_READY)), (GOOD, GOOD));
        second.command(&transfer(WRITE_10), OUT_DIRECT, &direct());
        let asked = second.read_request();
        let tag = first.manage(function, 0);
        // It waits for what reads its initiator's memory on another channel.
        for _ in 0..TURNS {
            second.turn();
            first.turn();
        }
        second.answer_read(&asked, 0xaa);
        assert_eq!(first.response(tag)[39], 0);
        assert_eq!((first.execute(TEST_UNIT_READY), second.execute(TEST_UNIT_READY)), (GOOD, GOOD));
        assert!(!differs(&mut first, 0), "what was aborted is not written");
        daemon.stop().expect("an orderly end");
    }
}

#[test]
fn data_inside_a_command_is_written_from_where_it_lies() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = format!("file:{},size=1M", directory.path().join("image").display());
    for unit in ["ram:1M", &file] {
        let daemon = serve_unit(unit);
        let at = daemon.addresses()[0];
        let mut channel = Channel::login(at, 1, SINGLE, GUID).expect("a channel").0;
        assert_eq!(channel.execute(TEST_UNIT_READY), GOOD);
        // More commands than there are receives: each has to be reposted.
        for round in 0..300u32 {
            let value = round as u8;
            // At once, so that some are received while others are written.
            let write = |part: u8| {
                let len = DATA_BYTES / 8;
                let behind = [&len.to_be_bytes()[..], &[0; 16], &vec![value; len as usize]].concat();
                let cdb = [WRITE_10, 0, 0, 0, 0, part * (BLOCKS / 8), 0, 0, BLOCKS / 8, 0];
                channel.command(&cdb, OUT_IMMEDIATE, &behind)
            };
            let mut open: Vec<u32> = (0..8).map(write).collect();
            while !open.is_empty() {
                let response = channel.any_response();
                assert_eq!(response[19], GOOD);
                open.retain(|tag| response[12..16] != tag.to_be_bytes());
            }
            assert!(round % 50 > 0 || !differs(&mut channel, value), "{unit}, round {round}");
        }
        daemon.stop().expect("an orderly end");
    }
}

#[test]
fn a_unit_that_grew_is_reported_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("image");
    let file = std::fs::File::create(&image).expect("an image");
    file.set_len(1 << 20).expect("a length");
    let daemon = serve_unit(&format!("file:{}", image.display()));
    let mut channel = Channel::login(daemon.addresses()[0], 1, SINGLE, GUID).expect("a channel").0;
    assert_eq!(channel.execute(TEST_UNIT_READY), GOOD);
    file.set_len(2 << 20).expect("a length");
    let event =
        std::iter::repeat_with(|| channel.next()).find(|frame| frame[18] == ASYNC_EVENT).expect("an event");
    let sense = &event[18 + 36..];
    assert_eq!((sense[0] & 0x7f, sense[2] & 0xf, &sense[12..14]), (0x70, 6, &[0x2a, 0x09][..]));
    daemon.stop().expect("an orderly end");
}

#[test]
fn connections_that_do_not_log_in_block_no_channel() {
    let daemon = serve_with(&["ram:1M"], |config| config.logins_max = 8);
    let at = daemon.addresses()[0];
    let silent: Vec<TcpStream> = (0..32)
        .map(|n| {
            let mut stream = TcpStream::connect(at).expect("a connection");
            // Some announce RDMA, and then send nothing.
            if n % 2 == 0 {
                let frame = [b"MPA ID Req Frame", &[0x10, 2, 0, 4, 0, 4, 0, 0][..]].concat();
                stream.write_all(&frame).expect("a request");
            }
            stream
        })
        .collect();
    let (mut channel, _) = Channel::login(at, 1, SINGLE, GUID).expect("a channel");
    assert_eq!(channel.execute(TEST_UNIT_READY), GOOD);
    drop(silent);
    daemon.stop().expect("it ends in order");
}
