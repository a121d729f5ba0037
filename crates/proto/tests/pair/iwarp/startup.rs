//! The exchange of MPA frames: what is negotiated, with which peers, and when it fails.

use crate::support::crc32c;
use crate::support::link::{CONFIG, Link, Side, Solo};
use proto::iwarp::setup::{Depths, ReadyToReceive};
use proto::iwarp::{Agreed, Config, Event, QueuePair, Refused};
use proto::time::Time;
use std::time::Duration;
use wire::Places;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

fn frame(key: &[u8; 16], head: [u8; 2], private_data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(private_data.len()).unwrap().to_be_bytes();
    [&key[..], &head, &len, private_data].concat()
}

fn initiator(config: Config) -> Solo {
    Solo::new(QueuePair::initiator(config, b"", Time(1_000_000)).unwrap())
}

#[test]
fn both_ends_agree() {
    let small = Depths { ird: 1, ord: 2 };
    for n in 0..16 {
        let [enhanced, one_crc, other_crc, long] = [n & 1, n & 2, n & 4, n & 8].map(|bit| bit != 0);
        let one = Config { enhanced, crc: one_crc, long_fpdus: long, ..CONFIG };
        let other = Config { crc: other_crc, long_fpdus: true, depths: small, segment_bytes: 9000, ..CONFIG };
        let mut link = Link::established(one, other, 1, 5);
        let agreed = |link: &mut Link, side| link.end(side).agreed().unwrap();
        let ours = agreed(&mut link, Side::Initiator);
        let theirs = agreed(&mut link, Side::Responder);
        assert_eq!((ours.crc, ours.markers), (one_crc || other_crc, false));
        assert_eq!((theirs.crc, theirs.markers), (ours.crc, false));
        let ulpdu = if long { (65_530, 65_530) } else { (1442, 8994) };
        assert_eq!((ours.ulpdu_max, theirs.ulpdu_max), ulpdu);
        let depths = if enhanced {
            (Depths { ird: 4, ord: 1 }, Depths { ird: 1, ord: 2 })
        } else {
            (CONFIG.depths, small)
        };
        assert_eq!((ours.depths, theirs.depths), depths);
    }
}

/// What Linux's siw sent for ib_iser and ib_srp, and what it is known to accept as an answer.
#[test]
fn siw_gets_the_answer_that_it_takes() {
    let config = Config { crc: false, long_fpdus: true, depths: Depths { ird: 16, ord: 16 }, ..CONFIG };
    let cases: [(&[u8], &[u8], &[u8]); 3] = [
        (&[0, 1, 0, 1], &[0xc0, 0, 0, 0], &[0, 1, 0, 1]),
        (&[0, 0x80, 0, 1, 0x80, 0, 0, 0], &[0xc0, 0, 0, 0], &[0, 1, 0, 16]),
        (&[&[0, 4, 0, 0][..], &[0x11; 56]].concat(), &[0xc0; 52], &[0, 0, 0, 4]),
    ];
    for (asked, private_data, depths) in cases {
        let mut solo = Solo::responder(config);
        assert!(solo.exchange(&frame(REQUEST, [0x10, 2], asked)).is_empty());
        let theirs = Depths { ird: u16::from(asked[1]), ord: u16::from(asked[3]) };
        let request = Event::Request { revision: 2, depths: Some(theirs), private_data: asked[4..].to_vec() };
        assert_eq!(solo.events.pop(), Some(request));
        solo.end.machine.accept(solo.now, private_data).unwrap();
        assert_eq!(solo.exchange(&[]), frame(REPLY, [0x10, 2], &[depths, private_data].concat()));
        let Some(Event::Established { agreed, depths, .. }) = solo.events.pop() else { panic!() };
        assert_eq!((agreed.crc, agreed.ulpdu_max, depths), (false, 1442, Some(theirs)));
    }
}

/// With CRCs requested by the responder, siw was seen to accept 0x5002.
#[test]
fn a_responder_may_ask_for_crcs() {
    let mut solo = Solo::responder(CONFIG);
    solo.exchange(&frame(REQUEST, [0x10, 2], &[0, 1, 0, 1]));
    solo.end.machine.accept(solo.now, b"").unwrap();
    assert_eq!(solo.exchange(&[]), frame(REPLY, [0x50, 2], &[0, 1, 0, 1]));
}

/// Depths of all ones are left to the upper layer (RFC 6581 section 9.1).
#[test]
fn unspecified_depths_are_left_as_they_are() {
    let mut solo = Solo::responder(CONFIG);
    solo.exchange(&frame(REQUEST, [0x10, 2], &[0x3f, 0xff, 0x3f, 0xff]));
    solo.end.machine.accept(solo.now, b"").unwrap();
    assert_eq!(solo.exchange(&[]), frame(REPLY, [0x50, 2], &[0x3f, 0xff, 0x3f, 0xff]));
    assert_eq!(solo.end.machine.agreed().unwrap().depths, CONFIG.depths);
    let mut solo = initiator(CONFIG);
    solo.exchange(&frame(REPLY, [0x50, 2], &[0x3f, 0xff, 0x3f, 0xff]));
    assert_eq!(solo.end.machine.agreed().unwrap().depths, CONFIG.depths);
}

/// Control flags A to D (RFC 6581 section 9.2).
#[test]
fn a_peer_to_peer_reply_names_what_is_known() {
    let mut solo = Solo::responder(CONFIG);
    solo.exchange(&frame(REQUEST, [0x10, 2], &[0x80, 4, 0x40, 0]));
    solo.end.machine.accept(solo.now, b"").unwrap();
    assert_eq!(solo.exchange(&[]), frame(REPLY, [0x50, 2], &[0xc0, 1, 0xc0, 4]));
    let none = Config { depths: Depths { ird: 0, ord: 0 }, ..CONFIG };
    let mut solo = Solo::responder(none);
    solo.exchange(&frame(REQUEST, [0x10, 2], &[0xc0, 4, 0xc0, 0]));
    solo.end.machine.accept(solo.now, b"").unwrap();
    assert_eq!(solo.exchange(&[]), frame(REPLY, [0x50, 2], &[0xc0, 0, 0x80, 0]));
}

#[test]
fn a_plain_peer_gets_a_plain_answer() {
    // Reserved bits are not checked in revision 1.
    for (head, answer) in [([0x00, 1], [0x40, 1]), ([0x1f, 1], [0x40, 1]), ([0x00, 2], [0x40, 2])] {
        let mut solo = Solo::responder(CONFIG);
        solo.exchange(&frame(REQUEST, head, b"words"));
        let private_data = b"words".to_vec();
        let request = Event::Request { revision: head[1], depths: None, private_data };
        assert_eq!(solo.events.pop(), Some(request));
        solo.end.machine.accept(solo.now, b"yes").unwrap();
        assert_eq!(solo.exchange(&[]), frame(REPLY, answer, b"yes"));
        assert_eq!(solo.end.machine.agreed().unwrap().depths, CONFIG.depths);
    }
}

#[test]
fn a_rejection_carries_private_data() {
    for enhanced in [false, true] {
        let mut link = Link::new(Config { enhanced, ..CONFIG }, CONFIG, 1, 3);
        link.run();
        link.responder.machine.reject(link.now, b"no room").unwrap();
        link.run();
        let depths = enhanced.then_some(CONFIG.depths);
        assert_eq!(link.initiator_events[0], Event::Rejected { depths, private_data: b"no room".to_vec() });
        assert_eq!(link.gone(Side::Initiator), "rejected by the peer");
        assert_eq!(link.gone(Side::Responder), "rejected by this side");
    }
}

#[test]
fn wrong_requests_end_the_connection() {
    let long = [0; 513];
    let cases = [
        (b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec(), "wrong key"),
        (frame(REPLY, [0x10, 2], &[0, 1, 0, 1]), "wrong key"),
        (frame(REQUEST, [0x10, 0], &[0, 1, 0, 1]), "revision"),
        (frame(REQUEST, [0x10, 3], &[0, 1, 0, 1]), "revision"),
        (frame(REQUEST, [0x00, 1], &long), "longer than 512"),
        (frame(REQUEST, [0x10, 2], &[0, 1, 0]), "too short for IRD"),
    ];
    for (bytes, reason) in cases {
        let mut solo = Solo::responder(CONFIG);
        assert!(solo.exchange(&bytes).is_empty(), "it is not answered");
        assert!(solo.gone().contains(reason), "{}", solo.gone());
    }
}

#[test]
fn wrong_replies_end_the_connection() {
    let cases = [
        (frame(REQUEST, [0x10, 2], &[0, 1, 0, 1]), "both ends are MPA initiators"),
        (frame(REPLY, [0x00, 1], b""), "answered with 1: it does not support enhanced connections"),
        (frame(REPLY, [0x00, 2], b""), "answered with 2"),
        (frame(REPLY, [0x10, 9], &[0, 1, 0, 1]), "revision"),
        (frame(REPLY, [0x10, 2], &[0; 600]), "longer than 512"),
    ];
    for (bytes, reason) in cases {
        let mut solo = initiator(CONFIG);
        solo.exchange(&bytes);
        assert!(solo.gone().contains(reason), "{}", solo.gone());
    }
}

/// As peers do that do not know enhanced connections (RFC 6581 section 10).
#[test]
fn a_peer_that_closes_instead_of_answering_may_know_no_revision_2() {
    for (enhanced, reason) in
        [(true, "start-up: it speaks no iWARP there, or not MPA revision 2"), (false, "start-up")]
    {
        use proto::stream::StreamMachine as _;
        let mut solo = initiator(Config { enhanced, ..CONFIG });
        solo.exchange(&[]);
        solo.end.machine.closed(solo.now, None);
        solo.exchange(&[]);
        assert!(solo.gone().ends_with(reason), "{}", solo.gone());
    }
}

/// A peer that cannot be served gets a message with the reason, since it is already connected (RFC 6581
/// section 9).
#[test]
fn what_cannot_be_agreed_on_is_refused_with_the_reason() {
    let ready = ReadyToReceive { by_send: false, by_write: true, by_read: false };
    let cases: [(Config, [u8; 4], u8); 3] = [
        (CONFIG, [0, 1, 0, 5], 6),
        (Config { ready: Some(ready), ..CONFIG }, [0xc0, 1, 0x40, 1], 7),
        (Config { ready: Some(ready), ..CONFIG }, [0, 1, 0, 1], 7),
    ];
    for (config, words, code) in cases {
        let mut solo = initiator(Config { crc: false, ..config });
        solo.exchange(&[]);
        let answer = solo.exchange(&frame(REPLY, [0x10, 2], &words));
        assert_eq!(answer.len(), 2 + 18 + 4 + 4);
        assert_eq!(answer[..4], [0, 22, 0x41, 0x47]);
        assert_eq!(answer[20..24], [0x20, code, 0, 0]);
        assert!(solo.gone().contains("RFC 6581"), "{}", solo.gone());
    }
}

#[test]
fn silence_ends_the_connection() {
    let mut solo = Solo::responder(CONFIG);
    let mut link = Link::new(CONFIG, CONFIG, 1, 100);
    link.pass(Duration::from_secs(11));
    assert_eq!(link.gone(Side::Initiator), "no MPA reply in time", "nobody has accepted it");
    use proto::stream::StreamMachine as _;
    assert_eq!(solo.end.machine.deadline(), Some(solo.now.after(Duration::from_secs(5))));
    solo.end.machine.tick(solo.now.after(Duration::from_secs(5)));
    solo.exchange(&[]);
    assert_eq!(solo.gone(), "no MPA request in time");
    let mut solo = Solo::responder(CONFIG);
    solo.exchange(&frame(REQUEST, [0x10, 2], &[0x80, 4, 0x40, 0]));
    solo.end.machine.accept(solo.now, b"").unwrap();
    solo.exchange(&[]);
    solo.end.machine.tick(solo.now.after(Duration::from_secs(10)));
    solo.exchange(&[]);
    assert!(solo.gone().contains("ready-to-receive"), "{}", solo.gone());
}

#[test]
fn private_data_must_fit() {
    let now = Time(0);
    let plain = Config { enhanced: false, ..CONFIG };
    assert!(QueuePair::initiator(plain, &[0; 512], now).is_ok());
    assert_eq!(QueuePair::initiator(plain, &[0; 513], now).err(), Some(Refused::TooLong));
    assert_eq!(QueuePair::initiator(CONFIG, &[0; 509], now).err(), Some(Refused::TooLong));
    let mut link = Link::new(CONFIG, CONFIG, 1, 3);
    assert_eq!(link.responder.machine.accept(link.now, b""), Err(Refused::State));
    link.run();
    assert_eq!(link.responder.machine.accept(link.now, &[0; 509]), Err(Refused::TooLong));
    assert_eq!(link.responder.machine.reject(link.now, &[0; 509]), Err(Refused::TooLong));
    assert_eq!(link.responder.machine.accept(link.now, &[0; 508]), Ok(()));
    link.run();
    assert!(matches!(link.initiator_events[0], Event::Established { .. }));
}

/// Figures 5 and 6 of RFC 5044, sent to a peer that requires markers.
#[test]
fn markers_are_where_the_standard_has_them() {
    let mut solo = initiator(CONFIG);
    solo.exchange(&[]);
    solo.exchange(&frame(REPLY, [0xd0, 2], &[0, 4, 0, 4]));
    let Some(Event::Established { agreed, .. }) = solo.events.pop() else { panic!() };
    let ulpdu_max = 1448 - 6 - 12;
    assert_eq!(agreed, Agreed { crc: true, markers: true, ulpdu_max, depths: CONFIG.depths });
    solo.end.machine.send(1, &[0; 24], Places::EMPTY, false, None).unwrap();
    let first = solo.exchange(&[]);
    let head = [0, 0, 0, 0, 0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(first, [&head[..], &[0; 24], &[0x52, 0x23, 0x99, 0x83]].concat());

    let mut solo = initiator(CONFIG);
    solo.exchange(&[]);
    solo.exchange(&frame(REPLY, [0xd0, 2], &[0, 4, 0, 4]));
    // With its marker the first FPDU takes 492 bytes.
    let rest = Side::Initiator.places(0, 492 - 4 - 20 - 4);
    solo.end.machine.send(1, &[], rest, false, None).unwrap();
    assert_eq!(solo.exchange(&[]).len(), 492);
    solo.end.machine.send(2, &[0; 24], Places::EMPTY, false, None).unwrap();
    let second = solo.exchange(&[]);
    let head = [0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    let tail = [0x84, 0x92, 0x58, 0x98];
    assert_eq!(second, [&head[..], &[0, 0, 0, 0x14], &[0; 24], &tail].concat());
}

/// Every 512 bytes of the stream there is a marker that points to the FPDU it is in, and CRCs cover it.
#[test]
fn a_peer_that_insists_gets_markers() {
    for (crc, len) in [(true, 40_000), (false, 40_000), (true, 1), (true, 461), (true, 464)] {
        let mut solo = Solo::responder(Config { crc, ..CONFIG });
        solo.exchange(&frame(REQUEST, [0x90, 2], &[0, 4, 0, 4]));
        solo.end.machine.accept(solo.now, b"").unwrap();
        assert_eq!(solo.exchange(&[])[16] & 0x80, 0, "none are asked for");
        // The initiator's first message.
        let mut fpdu = vec![0, 14, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        fpdu.extend(if crc { crc32c(&fpdu).to_le_bytes() } else { [0; 4] });
        solo.exchange(&fpdu);
        for id in 0..4 {
            solo.end.machine.send(id, b"header", Side::Responder.places(0, len), false, None).unwrap();
        }
        let stream = solo.exchange(&[]);
        let messages = unmarked(&stream, crc);
        let memory = &solo.memory.regions[1][..len as usize];
        assert_eq!(messages, vec![[b"header", memory].concat(); 4]);
    }
}

/// Parses a stream of Sends and checks every marker in it.
fn unmarked(stream: &[u8], crc: bool) -> Vec<Vec<u8>> {
    let mut messages = vec![Vec::new()];
    let mut at = 0;
    while at < stream.len() {
        let mut summed = Vec::new();
        let mut bytes = Vec::new();
        let start = if at % 512 == 0 { at + 4 } else { at };
        let mut whole = usize::MAX;
        while bytes.len() < whole {
            if at % 512 == 0 {
                let pointer = at.saturating_sub(start) as u16;
                assert_eq!(stream[at..at + 4], u32::from(pointer).to_be_bytes());
                summed.extend(&stream[at..at + 4]);
                at += 4;
            }
            summed.push(stream[at]);
            bytes.push(stream[at]);
            at += 1;
            if bytes.len() == 2 {
                whole = (2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))).next_multiple_of(4) + 4;
            }
        }
        let sum = summed.split_off(summed.len() - 4);
        assert_eq!(sum, if crc { crc32c(&summed).to_le_bytes() } else { [0; 4] });
        let ulpdu = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        assert!(ulpdu <= 1430);
        messages.last_mut().unwrap().extend(&bytes[20..2 + ulpdu]);
        if bytes[2] & 0x40 != 0 {
            messages.push(Vec::new());
        }
    }
    assert_eq!(messages.pop(), Some(Vec::new()));
    messages
}
