//! The responder that does nothing, with real initiators.

use crate::support::Noise;
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login, Pdu, write_cdb};
use crate::support::tools::{must, run, tool};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const NO_TAG: u32 = u32::MAX;

fn ceiling(arguments: &[&str]) -> Daemon {
    Daemon::start(Daemon::command().arg("ceiling").args(arguments))
}

fn login(ceiling: &Daemon) -> Initiator {
    Initiator::login(&ceiling.lun(0), &Login::named("measurer")).expect("login")
}

/// Waits until the other side has closed.
fn is_closed(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    let mut rest = [0; 4096];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("the connection is still open: {error}"),
        }
    }
}

#[test]
fn other_initiators_open_it() {
    for poll in ["always", "never"] {
        let ceiling = ceiling(&["--size", "3G", "--poll", poll, "--cores", "0"]);
        assert!(ceiling.banner().contains("does nothing else on core 0, "), "{}", ceiling.banner());
        let url = ceiling.lun(0).to_string();
        let said = must(tool("iscsi-inq").arg(&url));
        assert!(said.contains("Product:Ceiling"), "{said}");
        let said = must(tool("iscsi-readcapacity16").arg(&url));
        assert!(said.contains("Total size:3221225472"), "{said}");
        let said = must(Daemon::command().args(["inquiry", &url]));
        assert!(said.contains("3 GiB") && said.contains("CEILING"), "{said}");
        ceiling.stop();
    }
}

#[test]
fn every_byte_that_is_requested_comes() {
    let ceiling = ceiling(&[]);
    let mut initiator = login(&ceiling);
    for bytes in [1, 2, 511, 512, 65_537, 262_144, 262_145, 1_000_003, 5 << 20] {
        let read = initiator.read(3, &[0x88; 16], bytes).expect("a read");
        assert_eq!((read.status, read.data.len()), (0, bytes));
    }
    initiator.logout().expect("logout");
    ceiling.stop();
}

#[test]
fn data_of_writes_is_taken_as_it_comes() {
    let ceiling = ceiling(&[]);
    let mut initiator = login(&ceiling);
    for bytes in [512, 65_536, 66_048, 262_144, 1 << 20] {
        let write = initiator.write(0, write_cdb(0, bytes, 512, false), &vec![1; bytes]).expect("a write");
        assert_eq!(write.status, 0);
    }
    // 1000 bytes: 100 with the command, 200 unsolicited in two PDUs, the rest by R2T.
    let number = initiator.next_cmd_sn();
    let data = |target_tag: u32, last: bool, bytes: usize| {
        Pdu::new(0x05, u8::from(last) << 7).word(16, 77).word(20, target_tag).data(&vec![1; bytes])
    };
    let command = Pdu::new(0x01, 0x20).word(16, 77).word(20, 1000).word(24, number).data(&[1; 100]);
    initiator.skip_cmd_sn();
    initiator.send(&command).expect("sent");
    initiator.send(&data(NO_TAG, false, 150)).expect("sent");
    initiator.send(&data(NO_TAG, true, 50)).expect("sent");
    let asked = initiator.receive().expect("an R2T");
    assert_eq!((asked.opcode(), asked.word_at(40), asked.word_at(44)), (0x31, 300, 700));
    initiator.send(&data(asked.word_at(20), false, 699)).expect("sent");
    initiator.send(&data(asked.word_at(20), true, 1)).expect("sent");
    let response = initiator.receive().expect("a response");
    assert_eq!((response.opcode(), response.word_at(16), response.header[3]), (0x21, 77, 0));
    ceiling.stop();
}

#[test]
fn pings_come_back_and_text_is_rejected() {
    let ceiling = ceiling(&[]);
    let mut initiator = login(&ceiling);
    let number = initiator.next_cmd_sn();
    initiator.send(&Pdu::new(0x40, 0x80).word(16, 5).word(20, NO_TAG).data(b"there?")).expect("sent");
    let pong = initiator.receive().expect("an answer");
    assert_eq!((pong.opcode(), pong.word_at(16), pong.data.as_slice()), (0x20, 5, &b"there?"[..]));
    initiator.send(&Pdu::new(0x04, 0x80).word(16, 6).word(24, number).data(b"SendTargets=\0")).expect("sent");
    let reject = initiator.receive().expect("an answer");
    assert_eq!((reject.opcode(), reject.data[0], reject.word_at(28)), (0x3f, 0x04, number + 1));
    ceiling.stop();
}

#[test]
fn a_protocol_violation_ends_only_its_own_connection() {
    let ceiling = ceiling(&[]);
    let mut good = login(&ceiling);
    let mut noise = Noise(11);
    for length in [1, 47, 48, 4096, 1 << 20] {
        let mut stream = TcpStream::connect(ceiling.lun(0).portal).expect("a connection");
        // It may be closed before all of it is sent.
        let _ = stream.write_all(&noise.bytes(length));
        let _ = stream.shutdown(std::net::Shutdown::Write);
        is_closed(&stream);
    }
    for wrong in [
        Pdu::new(0x05, 0x80).word(20, NO_TAG),
        Pdu::new(0x05, 0x80).word(20, 3),
        Pdu::new(0x40, 0x80).word(16, 5).word(20, NO_TAG).data(&vec![0; 262_145]),
    ] {
        let mut bad = login(&ceiling);
        bad.send(&wrong).expect("sent");
        is_closed(bad.stream());
    }
    for _ in 0..20 {
        let bad = login(&ceiling);
        let _ = (&mut bad.stream()).write_all(&noise.bytes(1 << 20));
        let _ = bad.stream().shutdown(std::net::Shutdown::Write);
        is_closed(bad.stream());
    }
    assert_eq!(good.read(0, &[0x88; 16], 4096).expect("a read").data.len(), 4096);
    ceiling.stop();
}

#[test]
fn a_peer_that_never_reads_delays_nobody_and_takes_no_memory() {
    let mut ceiling = ceiling(&[]);
    let initiator = login(&ceiling);
    let before = ceiling.resident_bytes();
    let mut reads = vec![0; 48 * 10_000];
    for (number, read) in (initiator.next_cmd_sn()..).zip(reads.chunks_exact_mut(48)) {
        (read[0], read[1], read[32]) = (0x01, 0xc0, 0x88);
        read[16..20].copy_from_slice(&number.to_be_bytes());
        read[20..24].copy_from_slice(&u32::MAX.to_be_bytes());
        read[24..28].copy_from_slice(&number.to_be_bytes());
    }
    (&mut initiator.stream()).write_all(&reads).expect("what waits at the target does not fill the socket");
    let mut other = login(&ceiling);
    assert_eq!(other.read(0, &[0x88; 16], 4096).expect("a read").data.len(), 4096);
    let grown = ceiling.resident_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
    ceiling.signal("INT");
    assert!(ceiling.wait().success());
}

#[test]
fn wrong_options_are_answered_with_one_line() {
    for (arguments, named) in [
        (["--size", "511"], "512 bytes"),
        (["--cores", "x"], "--cores"),
        (["--listen", "nowhere"], "nowhere"),
        (["--poll", "adaptive"], "possible values: always, never"),
    ] {
        let outcome = run(Daemon::command().arg("ceiling").args(arguments), Duration::from_secs(120));
        assert_eq!(outcome.status.and_then(|status| status.code()), Some(2), "{}", outcome.text);
        assert_eq!(outcome.text.lines().count(), 1, "{}", outcome.text);
        assert!(outcome.text.contains(named), "{}", outcome.text);
    }
}

#[test]
fn help_names_every_option() {
    let help = must(Daemon::command().args(["ceiling", "--help"]));
    for option in ["--listen", "--poll", "--cores", "--size"] {
        assert!(help.contains(option), "{option}:\n{help}");
    }
}
