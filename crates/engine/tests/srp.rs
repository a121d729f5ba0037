//! Channels of SRP at the daemon, with frames of our own: who goes on beside whom, and what they share.

use engine::Daemon;
use engine::config::{Config, ServeOptions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const GUID: u64 = 0x024c_7500_0000_0001;
const PATIENCE: Duration = Duration::from_secs(20);
/// Multi-channel action of a login: other channels end, or go on.
const SINGLE: u8 = 0;
const MULTIPLE: u8 = 1;
/// What became of others, in the answer: there were none, they ended, they go on.
const NONE: u8 = 0;
const TERMINATED: u8 = 1;
const MAINTAINED: u8 = 2;
const TEST_UNIT_READY: u8 = 0x00;
const RESERVE: u8 = 0x16;
const GOOD: u8 = 0x00;
const CONFLICT: u8 = 0x18;

fn serve() -> Daemon {
    let options = ServeOptions {
        listen: vec!["127.0.0.1:0".into()],
        srp: vec!["127.0.0.1:0".into()],
        srp_guid: Some(format!("{GUID:016x}")),
        lun: vec!["ram:1M".into()],
        poll: Some("never".into()),
        ..ServeOptions::default()
    };
    let config = Config::from_options(&options).unwrap_or_else(|problems| panic!("{problems}"));
    Daemon::start(config).unwrap_or_else(|error| panic!("{error}"))
}

/// An initiator's end of a channel, without buffers that the target could reach.
struct Channel {
    stream: TcpStream,
    sent: u32,
}

impl Channel {
    /// The channel, and what became of others; or why the login was rejected.
    fn login(at: SocketAddr, port: u8, action: u8, guid: u64) -> Result<(Channel, u8), u32> {
        let mut stream = TcpStream::connect(at).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut login = [0; 56];
        login[8..11].copy_from_slice(&[0, 6, action]);
        login[14..16].copy_from_slice(&300u16.to_be_bytes());
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
            0xc0 => Ok((Channel { stream, sent: 0 }, answer[26])),
            0xc2 => Err(u32::from_be_bytes([answer[4], answer[5], answer[6], answer[7]])),
            other => panic!("an answer {other:#x}"),
        }
    }

    /// Executes a command without data, once more after each unit attention; its status.
    fn execute(&mut self, opcode: u8) -> u8 {
        loop {
            match self.try_execute(opcode) {
                2 => {}
                status => return status,
            }
        }
    }

    fn try_execute(&mut self, opcode: u8) -> u8 {
        self.sent += 1;
        let mut command = [0; 48];
        (command[0], command[15], command[32]) = (2, self.sent as u8, opcode);
        let mut frame = vec![0, 18 + 48, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0];
        frame.extend(self.sent.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(command);
        frame.extend([0; 4]);
        self.stream.write_all(&frame).expect("a command");
        loop {
            let mut len = [0; 2];
            self.stream.read_exact(&mut len).expect("an answer");
            let padded = (usize::from(u16::from_be_bytes(len)) + 2).next_multiple_of(4) - 2;
            let mut rest = vec![0; padded + 4];
            self.stream.read_exact(&mut rest).expect("an answer");
            let unit = &rest[18..];
            // Credits may come by requests of their own.
            if unit[0] == 0xc1 {
                return unit[19];
            }
        }
    }

    /// Waits for the target to close the connection; whether it has logged us out before.
    fn ends(mut self) -> bool {
        const TARGET_LOGOUT: u8 = 0x80;
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("the target closes the connection");
        let mut frames = &rest[..];
        while let [high, low, ..] = *frames {
            let (frame, next) = frames.split_at((usize::from(u16::from_be_bytes([high, low])) + 2).next_multiple_of(4) + 4);
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
    assert!(earlier.into_iter().all(Channel::ends), "they are told");
    assert_eq!(other.execute(TEST_UNIT_READY), GOOD, "another port goes on");
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
    assert_eq!(other.execute(TEST_UNIT_READY), CONFLICT, "the nexus goes on with its second channel");
    second.stream.shutdown(std::net::Shutdown::Write).expect("an end");
    second.ends();
    // The end of a nexus reaches the unit's home by messages between cores.
    let deadline = Instant::now() + PATIENCE;
    while other.execute(TEST_UNIT_READY) == CONFLICT {
        assert!(Instant::now() < deadline, "the reservation ends with its nexus");
    }
    daemon.stop().expect("an orderly end");
}
