//! Messages of an NBD server for its client. The first byte selects the handshake or the transmission, and
//! what was negotiated; then follow the requests, a byte each, and the server's bytes, in pieces of the
//! second byte's size.

use crate::Input;
use proto::nbd::{Answer, Encryption, Event, Export, Handshake, Step, Transmission};
use wire::nbd::{Command, Layout, Request};

/// Feeds one input.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let options = input.byte();
    match options & 1 {
        0 => handshake(options, &mut input),
        _ => transmission(options, &mut input),
    }
}

fn handshake(options: u8, input: &mut Input<'_>) {
    let encryption = if options & 2 == 0 { Encryption::Never } else { Encryption::Required };
    let mut handshake = Handshake::new("disk", encryption).expect("a short name");
    loop {
        assert!(handshake.out().len() < 1024);
        handshake.out().clear();
        assert!(handshake.want() <= 8192, "no reply is longer");
        let Some(bytes) = input.take(handshake.want()) else { return };
        match handshake.received(bytes) {
            Ok(Step::More) => {}
            Ok(Step::StartTls) => handshake.encrypted(),
            Ok(Step::Done(export)) => {
                assert!(export.block_minimum.is_power_of_two());
                return assert_eq!(handshake.want(), 0);
            }
            Err(_) => return,
        }
    }
}

/// A request, and how much of its data has arrived.
struct Asked {
    command: Command,
    len: u32,
    has: Vec<bool>,
}

fn transmission(options: u8, input: &mut Input<'_>) {
    let export = Export {
        size: 1 << 20,
        flags: 0,
        block_minimum: 1,
        block_preferred: 4096,
        payload_maximum: 1 << 25,
        structured: options & 2 != 0,
        allocation: (options & 4 != 0).then_some(0),
    };
    let (mut machine, mut asked) = (Transmission::new(&export), Vec::new());
    let piece = usize::from(input.byte()).max(1);
    for _ in 0..options >> 4 {
        let choice = input.byte();
        let command = match choice & 3 {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::BlockStatus,
            _ => Command::Flush,
        };
        let (offset, len) = (u64::from(choice) << 4, u32::from(choice | 1));
        let mut out = Vec::new();
        let slot = machine.begin(command, 0, (offset, len), &mut out).expect("few requests");
        assert_eq!((slot, out.len()), (asked.len(), Request::BYTES));
        asked.push(Some(Asked { command, len, has: vec![false; len as usize] }));
    }
    let mut staged = Vec::new();
    for part in input.0.chunks(piece) {
        staged.extend_from_slice(part);
        let mut unread = &staged[..];
        loop {
            match machine.next(&mut unread) {
                Ok(Some(event)) => check(&mut asked, event),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(unread.len() < 64, "what is not taken is less than the head of a reply");
        staged = unread.to_vec();
    }
    assert_eq!(machine.open(), asked.iter().flatten().count());
}

/// Data belongs to reads in progress, each byte arrives once, and requests end once.
fn check(asked: &mut [Option<Asked>], event: Event<'_>) {
    let mut came = |slot: usize, at: u32, len: usize| {
        let read = asked[slot].as_mut().expect("it is under way");
        assert_eq!(read.command, Command::Read);
        let range = &mut read.has[at as usize..][..len];
        assert!(range.iter().all(|has| !has), "each byte comes once");
        range.fill(true);
    };
    match event {
        Event::Data { slot, at, bytes } => came(slot, at, bytes.len()),
        Event::Zeros { slot, at, len } => came(slot, at, len as usize),
        Event::Ended { slot, outcome } => {
            let ended = asked[slot].take().expect("it ends once");
            match outcome {
                Ok(Answer::Done) if ended.command == Command::Read => {
                    assert!(ended.has.iter().all(|has| *has), "a read that succeeds has all of its data");
                }
                Ok(Answer::Done) => assert_ne!(ended.command, Command::BlockStatus),
                Ok(Answer::Extent { len, .. }) => {
                    assert_eq!(ended.command, Command::BlockStatus);
                    assert!((1..=ended.len).contains(&len));
                }
                Err(number) => assert_ne!(number, 0),
            }
        }
    }
}
