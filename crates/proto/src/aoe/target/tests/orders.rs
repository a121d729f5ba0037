//! Commands other than ATA.

use super::*;

#[test]
fn config_strings_are_set_by_an_order() {
    let mut session = Session::new(4);
    assert!(session.receive(&frame(Command::CONFIG, 3, b"\0\0\0\0\0\x13\0\x04", b"disk")));
    let place = session.held[0];
    let command = session.command();
    let order = Order { kind: OrderKind::SetConfig, argument_bytes: 4 };
    assert_eq!(Order::from_cdb(&command.cdb), Some(order));
    assert_eq!((command.read_bytes, command.write_bytes), (1024, 4));
    assert_eq!(session.target.immediate(command.task), Some(place.slice(32, 4)));
    session.push(command.task, 4);
    let answer = session.target.transmit().unwrap();
    assert_eq!(answer.header()[24..], *b"\x00\x04\x40\x16\x02\x13\x00\x04");
    assert_eq!((answer.payload, answer.header()[14]), (buffer(4), 0x18));
    assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));

    session.receive(&frame(Command::CONFIG, 4, b"\0\0\0\0\0\x14\0\0", &[]));
    let command = session.command();
    let present = Refusal::Error(ErrorCode::CONFIG_STRING_PRESENT).sense();
    session.end(command.task, 2, Some(present));
    let headers = session.answer().unwrap();
    assert_eq!((headers[14], headers[15], headers.len()), (0x1c, 4, 32));
    assert_eq!(headers[29], 0x10 | ConfigCommand::FORCE_SET.0);
    session.finish();
}

#[test]
fn masks_are_edited_by_an_order() {
    let mut session = Session::new(4);
    let directives = [[0, 1, 2, 0, 0, 0, 0, 9], [0, 2, 2, 0, 0, 0, 0, 8]].concat();
    session.receive(&frame(Command::MASK, 3, &[0, 1, 0, 2], &directives));
    let command = session.command();
    assert_eq!(Order::from_cdb(&command.cdb), Some(Order { kind: OrderKind::EditMask, argument_bytes: 16 }));
    session.push(command.task, 24);
    let answer = session.target.transmit().unwrap();
    assert_eq!((&answer.header()[24..], answer.payload.len()), (&[0, 1, 0, 3][..], 24));
    assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));

    session.receive(&frame(Command::MASK, 4, &[0, 1, 0, 2], &directives));
    let command = session.command();
    let full = Refusal::Mask { error: MaskError::LIST_FULL, done: 1 };
    session.end(command.task, 2, Some(full.sense()));
    let headers = session.answer().unwrap();
    assert_eq!((headers[14], &headers[24..]), (0x18, &[0, 1, 3, 1][..]));

    session.receive(&frame(Command::MASK, 5, &[0, 0, 0, 200], &[]));
    let command = session.command();
    assert_eq!((command.read_bytes, command.write_bytes), (1024, 0));
    session.end(command.task, 0, None);
    assert_eq!(session.answer().unwrap()[24..], [0, 0, 0, 0], "an empty list");
    session.finish();
}

#[test]
fn targets_are_reserved_by_an_order() {
    let mut session = Session::new(4);
    session.receive(&frame(Command::RESERVE, 3, &[1, 1], &PEER.0));
    let command = session.command();
    assert_eq!(session.target.immediate(command.task).map(|data| data.len), Some(6));
    session.end(command.task, 0x18, None);
    let headers = session.answer().unwrap();
    assert_eq!((headers[14], headers[15], &headers[24..]), (0x1c, 6, &[1, 0][..]));

    session.receive(&frame(Command::RESERVE, 4, &[2, 1], &PEER.0));
    let command = session.command();
    session.push(command.task, 6);
    let answer = session.target.transmit().unwrap();
    assert_eq!(answer.header()[24..], [ReserveCommand::FORCE_SET.0, 1]);
    assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));

    session.receive(&frame(Command::RESERVE, 5, &[0, 0], &[]));
    let command = session.command();
    session.end(command.task, 2, None);
    assert_eq!(session.answer().unwrap()[15], 3, "it could not be done");
    session.finish();
}

/// The lists may belong to others by now.
#[test]
fn a_late_copy_of_an_order_changes_nothing() {
    let mut session = Session::new(4);
    let directives = [0, 1, 2, 0, 0, 0, 0, 9];
    for (done, asked) in [
        (frame(Command::RESERVE, 3, &[1, 1], &PEER.0), OrderKind::ReadReserve),
        (frame(Command::RESERVE, 4, &[2, 1], &PEER.0), OrderKind::ReadReserve),
        (frame(Command::MASK, 5, &[0, 1, 0, 1], &directives), OrderKind::ReadMask),
        (frame(Command::CONFIG, 6, b"\0\0\0\0\0\x14\0\x04", b"disk"), OrderKind::SetConfig),
    ] {
        assert!(session.receive(&done));
        let followed = session.command();
        session.push(followed.task, 16);
        let answer = session.target.transmit().unwrap();
        assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));
        session.receive(&done);
        let abandoned = session.command().task;
        session.target.down(NOW, Down::Abort { task: abandoned });
        for _ in 0..2 {
            session.receive(&done);
            let command = session.command();
            assert!(!session.receive(&done) && session.target.poll().is_none());
            assert_eq!(Order::from_cdb(&command.cdb).unwrap().kind, asked);
            assert_eq!((command.read_bytes, command.lun), (followed.read_bytes, 0));
            session.push(command.task, 16);
            let again = session.target.transmit().unwrap();
            assert_eq!((again.header(), again.payload), (answer.header(), answer.payload));
            assert!(matches!(session.target.poll(), Some(Up::Pushed(_))));
        }
    }
    let release = frame(Command::RESERVE, 7, &[1, 0], &[]);
    session.receive(&release);
    let task = session.command().task;
    session.end(task, 0, None);
    let answer = session.answer();
    session.receive(&release);
    assert!(session.target.poll().is_none());
    assert_eq!(session.answer(), answer);
    session.finish();
}
