//! Requests that are too many, too short or invalid.

use super::*;

#[test]
fn requests_without_a_slot_are_dropped() {
    let mut session = Session::new(2);
    assert_eq!(session.target.config.slots(), 4);
    let frames: Vec<_> = (0..10).map(|tag| read(tag, u64::from(tag), 1)).collect();
    frames.iter().for_each(|frame| assert!(!session.receive(frame)));
    assert_eq!(session.target.take_counts().crowded, 6);
    for _ in 0..4 {
        let Some(Up::Command(command)) = session.target.poll() else { panic!("a command") };
        assert!(command.task.slot < 4);
        session.end(command.task, 0, None);
        assert!(session.answer().is_some());
    }
    session.receive(&frames[9]);
    let task = session.command().task;
    session.end(task, 0, None);
    assert!(session.answer().is_some());
    session.finish();
}

/// Others would find no frame for theirs.
#[test]
fn a_session_holds_no_more_frames_than_it_may() {
    let mut session = Session::new(4);
    let mut tag = 0;
    let mut fill = |session: &mut Session| {
        let before = session.held.len();
        (0..10).for_each(|_| {
            tag += 1;
            session.receive(&write(tag, u64::from(tag), 1));
        });
        session.held.len() - before
    };
    session.target.limit_frames(1);
    assert_eq!(fill(&mut session), 1);
    session.target.limit_frames(4);
    assert_eq!(fill(&mut session), 3);
    session.target.limit_frames(0);
    assert_eq!((fill(&mut session), session.target.take_counts().crowded), (0, 26));
    assert!(!session.receive(&read(99, 1, 1)), "it needs no frame");
    let tasks: Vec<_> = std::iter::from_fn(|| match session.target.poll() {
        Some(Up::Command(command)) => Some(command.task),
        _ => None,
    })
    .collect();
    assert_eq!(tasks.len(), 5);
    session.target.borrow(tasks[0]).unwrap();
    for task in &tasks {
        session.end(*task, 0, None);
        assert!(session.answer().is_some());
    }
    session.target.limit_frames(4);
    session.reclaim();
    assert_eq!(fill(&mut session), 3, "a store still reads one");
    session.target.end_borrow(tasks[0]);
    session.reclaim();
    assert_eq!(fill(&mut session), 1);
}

#[test]
fn lengths_are_validated() {
    let mut session = Session::new(4);
    let long = Registers::new(wire::ata::Command::ReadSectorsExt, 0, 3);
    let zero = Registers::new(wire::ata::Command::ReadSectors, 0, 0);
    let two = Registers::new(wire::ata::Command::WriteSectorsExt, 0, 2);
    let short = ata(9, &two, &[1; 1023]);
    for frame in [ata(9, &long, &[]), ata(9, &zero, &[]), short.clone(), ata(9, &long, &[1; 1536])] {
        assert!(!session.receive(&frame));
        let headers = session.answer().unwrap();
        let (tag, section, error) = ata_answer(&headers);
        assert_eq!((tag, error), (9, ErrorCode::BAD_ARGUMENT));
        assert_eq!(section.as_bytes(), &frame[24..36]);
    }
    let mut padded = ata(9, &two, &[1; 1024]);
    padded.extend([0; 40]);
    assert!(session.receive(&padded));
    assert!(matches!(session.target.poll(), Some(Up::Refused { .. })));
    let task = session.command().task;
    assert_eq!(session.target.immediate(task).unwrap().len, 1024);
    assert_eq!(session.target.take_counts().refused, 4);
}

#[test]
fn frames_of_every_length_are_validated() {
    let set = frame(Command::CONFIG, 3, b"\0\0\0\0\0\x13\0\x40", &[b'x'; 64]);
    for whole in [write(1, 5, 1), read(2, 5, 1), set] {
        let mut session = Session::new(4);
        let mut commands = 0;
        for len in 0..whole.len() {
            session.receive(&whole[..len]);
            while let Some(event) = session.target.poll() {
                commands += usize::from(matches!(event, Up::Command(_)));
            }
            while let Some(headers) = session.answer() {
                assert_eq!(headers[15], 2, "the data is too short");
            }
        }
        let is_read = usize::from(whole.len() == 60);
        assert_eq!(commands, is_read);
    }
}

#[test]
fn what_is_wrong_is_refused_or_dropped_and_reported_once_a_second() {
    let mut session = Session::new(4);
    let with = |at: usize, byte: u8| {
        let mut frame = read(1, 5, 1);
        frame[at] = byte;
        frame
    };
    for (frame, error) in [(with(14, 0x20), 5), (with(19, 77), 1)] {
        session.receive(&frame);
        let headers = session.answer().unwrap();
        assert_eq!(
            (headers[14], headers[15], headers.len()),
            (0x1c, error, if error == 1 { 24 } else { 36 })
        );
    }
    for (frame, error) in [
        (frame(Command::MASK, 1, &[0, 2, 0, 0], &[]), 2),
        (frame(Command::RESERVE, 1, &[3, 0], &[]), 2),
        (frame(Command::RESERVE, 1, &[1, 129], &[0; 774]), 2),
        (frame(Command::MASK, 1, &[0, 1, 0, 40], &[0; 319]), 2),
        (frame(Command::CONFIG, 1, b"\0\0\0\0\0\x14\x04\x01", &[0; 1025]), 2),
    ] {
        session.receive(&frame);
        assert_eq!(session.answer().unwrap()[15], error);
    }
    let query = frame(Command::CONFIG, 1, b"\0\0\0\0\0\x10\0\0", &[]);
    let dropped = [with(14, 0x18), with(12, 8), with(11, 8), with(17, 9), with(16, 0xff), with(6, 3), query];
    for frame in &dropped {
        session.receive(frame);
        assert_eq!(session.answer(), None);
    }
    assert_eq!(session.target.take_counts().refused, 14);
    assert!(matches!(session.target.poll(), Some(Up::Refused { .. })));
    assert!(session.target.poll().is_none(), "once a second");
    session.receive_at(NOW.after(Duration::from_secs(1)), &dropped[0]);
    let Some(Up::Refused { reason }) = session.target.poll() else { panic!("it is reported again") };
    assert_eq!(reason, "answer to no request (AoEr11 section 2.3)");
    session.finish();
}

#[test]
fn a_flood_takes_no_memory() {
    let mut session = Session::new(2);
    let bad = frame(Command::RESERVE, 1, &[3, 0], &[]);
    for tag in 0..10_000 {
        session.receive(&bad);
        session.receive(&read(tag, 5, 1));
        session.receive(&write(tag, 5, 1));
    }
    let target = &session.target;
    assert_eq!(target.replies.len(), REPLIES_MAX);
    assert_eq!(target.up.len(), 4 + 1);
    assert!(session.held.len() <= 4);
}

/// The engine violates its contract: the session ends, the daemon does not.
#[test]
fn a_transfer_that_cannot_be_ends_its_session_alone() {
    let places = |len| Places::one(Span { buffer: BUFFERS, offset: 0, len });
    let fetch = |at, len| move |task| Down::Fetch { task, at, into: places(len) };
    let push = |at, len, end| move |task| Down::Push { task, at, from: places(len), end };
    let good = Ending { status: 0, sense: None, read_bytes: 512, write_bytes: 0 };
    type Verb = Box<dyn Fn(TaskId) -> Down>;
    let wrong: [(Vec<u8>, Verb, &str); 5] = [
        (write(1, 5, 1), Box::new(fetch(4, 100)), "continue where the last one ended"),
        (write(1, 5, 1), Box::new(fetch(0, 513)), "past the command's data-out"),
        (read(1, 5, 1), Box::new(push(0, 513, Some(good))), "past the command's data-in"),
        (read(1, 5, 1), Box::new(push(0, 512, None)), "several frames"),
        (read(1, 5, 1), Box::new(push(1, 511, Some(good))), "several frames"),
    ];
    for (frame, verb, words) in wrong {
        let mut session = Session::new(4);
        session.receive(&frame);
        let task = session.command().task;
        session.target.down(NOW, verb(task));
        match session.target.poll() {
            Some(Up::Fault { what }) => assert!(what.contains(words), "{what}"),
            other => panic!("{words}: {other:?}"),
        }
        assert!(matches!(session.target.poll(), Some(Up::Gone { reason }) if reason == "a bug in Lunette"));
        assert!(session.target.is_over() && session.target.poll().is_none());
    }
    let mut session = Session::new(4);
    let frame = write(1, 5, 1);
    assert!(!session.target.receive(NOW, Stamp(NOW.0), &frame, Span { buffer: RING, offset: 0, len: 7 }));
    assert!(matches!(session.target.poll(), Some(Up::Fault { what: "a frame of two lengths" })));
}
