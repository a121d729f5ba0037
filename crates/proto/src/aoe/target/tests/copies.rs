//! Requests that arrive more than once.

use super::*;

#[test]
fn a_copy_of_a_request_in_flight_is_dropped() {
    let mut session = Session::new(4);
    for frame in [write(1, 5, 1), read(2, 5, 1)] {
        session.receive(&frame);
        let task = session.command().task;
        for _ in 0..100 {
            assert!(!session.receive(&frame));
        }
        assert!(session.target.poll().is_none());
        session.end(task, 0, None);
        assert!(!session.receive(&frame), "its answer has not left yet");
        assert!(session.target.poll().is_none());
        assert!(session.answer().is_some());
        assert_eq!(session.answer(), None);
    }
    assert_eq!(session.target.take_counts().copies, 202);
    assert!(!session.receive(&read(2, 5, 1)), "a read that was answered is read again");
    let task = session.command().task;
    session.end(task, 0, None);
    assert!(session.answer().is_some());
    session.finish();
}

#[test]
fn a_tag_that_is_used_again_has_one_answer() {
    let mut session = Session::new(8);
    let requests = [write(1, 5, 1), write(1, 5, 2), write(1, 6, 1), read(1, 5, 1), read(1, 5, 2)];
    let tasks = requests.map(|frame| {
        session.receive(&frame);
        session.command().task
    });
    assert_eq!(session.target.take_counts().copies, 0);
    let [first, .., newest] = tasks;
    session.end(first, 0, None);
    assert_eq!(session.answer(), None, "it would be taken for an answer to the newest");
    session.push(newest, 1024);
    let answer = session.target.transmit().unwrap();
    assert_eq!((answer.task, ata_answer(answer.header()).0), (Some(newest), 1));
    assert!(matches!(session.target.poll(), Some(Up::Pushed(task)) if task == newest));
    for abandoned in &tasks[1..3] {
        session.end(*abandoned, 0, None);
    }
    session.push(tasks[3], 512);
    assert!(session.target.transmit().is_none());
    assert!(matches!(session.target.poll(), Some(Up::Pushed(task)) if task == tasks[3]));
    session.finish();
}

#[test]
fn an_answer_that_waits_is_not_sent_when_its_tag_is_used_again() {
    let mut session = Session::new(8);
    session.receive(&write(1, 5, 1));
    let first = session.command().task;
    session.receive(&write(2, 5, 1));
    session.end(first, 0, None);
    session.receive(&read(1, 5, 1));
    let second = session.command().task;
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 2, "its other tag is its own");
    assert_eq!(session.answer(), None);
    session.end(second, 0x18, None);
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 1);
    session.finish();
}

#[test]
fn a_nop_is_not_answered_before_the_request_that_it_names_is_over() {
    let mut session = Session::new(8);
    let nop = |about| ata(90, &Registers::nop(about), &[]);
    assert!(session.receive(&write(1, 5, 1)));
    let first = session.command().task;
    assert!(!session.receive(&write(3, 5, 1)), "the same under another tag");
    assert!(session.receive(&write(2, 5, 2)));
    let second = session.command().task;
    for about in [1, 2, 3] {
        assert!(!session.receive(&nop(about)) && session.target.poll().is_none(), "{about}");
    }
    session.end(second, 0, None);
    session.answer();
    assert!(!session.receive(&nop(1)) && session.target.poll().is_none());
    for about in [2, 77] {
        session.receive(&nop(about));
        let task = session.command().task;
        session.end(task, 2, None);
        assert_eq!(ata_answer(&session.answer().unwrap()).0, 90);
    }
    session.end(first, 0, None);
    session.answer();
    assert!(!session.receive(&nop(1)) && session.target.poll().is_none(), "its copy has no answer yet");
    session.answer();
    session.receive(&nop(1));
    session.command();
}

/// For initiators that retransmit a write under ever new tags, only the last of them is answered.
#[test]
fn a_nop_waits_for_a_write_some_of_whose_tags_are_forgotten() {
    let mut session = Session::new(8);
    for tag in 1..=6 {
        session.receive(&write(tag, 5, 1));
    }
    let task = session.command().task;
    for about in 1..=6 {
        session.receive(&ata(90, &Registers::nop(about), &[]));
        assert!(session.target.poll().is_none(), "{about}");
    }
    session.end(task, 0, None);
    while session.answer().is_some() {}
    session.receive(&ata(90, &Registers::nop(5), &[]));
    session.command();
}

/// A newer write may have overwritten it.
#[test]
fn a_late_copy_of_a_write_is_answered_and_not_executed() {
    let mut session = Session::new(4);
    let execute = |session: &mut Session, frame: &[u8]| {
        assert!(session.receive(frame));
        let task = session.command().task;
        session.end(task, 0, None);
        session.answer().unwrap()
    };
    let first = execute(&mut session, &write(1, 5, 0xaa));
    execute(&mut session, &write(2, 5, 0xbb));
    for _ in 0..3 {
        assert!(!session.receive(&write(1, 5, 0xaa)));
        assert!(session.target.poll().is_none(), "the newer data stays");
        assert_eq!(session.answer(), Some(first.clone()));
    }
    execute(&mut session, &write(1, 5, 0xcc));
    execute(&mut session, &write(1, 5, 0xaa));
    session.receive_at(NOW.after(Duration::from_secs(6)), &write(1, 5, 0xaa));
    session.command();
}

#[test]
fn a_write_that_failed_is_not_tried_again_by_a_copy() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    session.end(task, 0x18, None);
    let answer = session.answer();
    assert!(!session.receive(&write(1, 5, 1)));
    assert_eq!(session.answer(), answer);
    session.finish();
}

/// The cache may have been switched again.
#[test]
fn a_late_copy_of_set_features_is_answered_and_not_executed() {
    let mut session = Session::new(4);
    let set = |tag, feature| {
        let registers = Registers::new(wire::ata::Command::SetFeatures, 0, 0);
        ata(tag, &Registers { feature, ..registers }, &[])
    };
    let answers = [(1, 0x02, 0), (2, 0x82, 2)].map(|(tag, feature, status)| {
        session.receive(&set(tag, feature));
        let task = session.command().task;
        session.end(task, status, None);
        session.answer()
    });
    for (tag, feature, answer) in [(1, 0x02, &answers[0]), (2, 0x82, &answers[1])] {
        session.receive(&set(tag, feature));
        assert!(session.target.poll().is_none());
        assert_eq!(session.answer(), *answer);
    }
    session.receive(&set(1, 0x82));
    session.command();
}

/// The store reports once what it has lost.
#[test]
fn a_flush_that_failed_is_not_tried_again_by_a_copy() {
    use wire::ata::Command::{FlushCache, FlushCacheExt, Standby, StandbyImmediate};
    for command in [FlushCache, FlushCacheExt, Standby, StandbyImmediate] {
        let mut session = Session::new(4);
        let flush = |tag| ata(tag, &Registers::new(command, 0, 0), &[]);
        session.receive(&flush(1));
        let task = session.command().task;
        session.end(task, 2, None);
        let answer = session.answer();
        for _ in 0..3 {
            session.receive(&flush(1));
            assert!(session.target.poll().is_none(), "it would end well");
            assert_eq!(session.answer(), answer);
        }
        session.receive(&flush(2));
        let task = session.command().task;
        session.end(task, 0, None);
        assert!(session.answer().is_some());
        session.finish();
    }
}

/// Its initiator may have no other tag.
#[test]
fn a_flush_that_ended_well_or_never_began_is_executed_again() {
    let mut session = Session::new(4);
    let flush = ata(1, &Registers::new(wire::ata::Command::FlushCacheExt, 0, 0), &[]);
    for status in [0, 0x18, 0] {
        session.receive(&flush);
        let task = session.command().task;
        session.end(task, status, None);
        assert!(session.answer().is_some());
    }
    session.finish();
}

/// The store reports a loss once, and the answer to a late duplicate may not be received.
#[test]
fn what_a_late_copy_of_a_flush_reports_the_next_flush_reports_again() {
    let mut session = Session::new(4);
    let mut flush = |tag, status| {
        session.receive(&ata(tag, &Registers::new(wire::ata::Command::FlushCacheExt, 0, 0), &[]));
        let task = session.command().task;
        session.end(task, status, None);
        let (answered, section, _) = ata_answer(&session.answer().unwrap());
        assert_eq!(answered, tag);
        section.command & wire::ata::status::ERR == 0
    };
    assert!(flush(1, 0) && !flush(1, 2), "a copy finds that something was lost");
    assert!(!flush(2, 0), "who waits receives it");
    assert!(flush(3, 0), "and once");
    assert!(!flush(3, 2) && !flush(4, 2) && !flush(5, 0), "another failure meanwhile need not be the same");
    assert!(flush(6, 0));
    session.finish();
}

/// Linux gives each retransmission a new tag, and listens only for the last. Executed separately, the first
/// could come after a newer write that followed the answer to the second.
#[test]
fn copies_of_a_write_under_other_tags_are_one_write() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    for tag in 2..=6 {
        assert!(!session.receive(&write(tag, 5, 1)));
        assert!(!session.receive(&write(tag, 5, 1)));
    }
    assert!(session.target.poll().is_none());
    session.end(task, 0, None);
    let mut tags = Vec::new();
    while let Some(headers) = session.answer() {
        tags.push(ata_answer(&headers).0);
    }
    assert_eq!(tags, [1, 2, 3, 6], "the newest is among them");
    for tag in [1, 6] {
        assert!(!session.receive(&write(tag, 5, 1)), "each is remembered");
        assert_eq!(ata_answer(&session.answer().unwrap()).0, tag);
    }
    session.finish();
}

#[test]
fn a_copy_that_came_before_the_answer_left_is_not_executed_when_it_comes_again() {
    let mut session = Session::new(4);
    assert!(session.receive(&write(7, 1, 0xaa)));
    let UpCommand { task, .. } = session.command();
    session.end(task, 0, None);
    assert!(!session.receive(&write(8, 1, 0xaa)));
    for tag in [7, 8] {
        assert_eq!(ata_answer(&session.answer().unwrap()).0, tag);
    }
    for tag in [7, 8] {
        assert!(!session.receive(&write(tag, 1, 0xaa)), "{tag}");
        assert_eq!(ata_answer(&session.answer().unwrap()).0, tag);
    }
    session.finish();
}

#[test]
fn a_write_is_executed_when_an_answer_to_its_like_has_left() {
    let mut session = Session::new(4);
    session.receive(&write(1, 5, 1));
    let task = session.command().task;
    session.receive(&write(2, 5, 1));
    session.end(task, 0, None);
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 1);
    session.receive(&write(3, 5, 1));
    let task = session.command().task;
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 2);
    session.end(task, 0, None);
    assert_eq!(ata_answer(&session.answer().unwrap()).0, 3);
    session.finish();
}

#[test]
fn a_write_is_not_taken_for_a_copy_of_what_a_newer_one_went_over() {
    let trim = |tag| {
        let registers = Registers::new(wire::ata::Command::DataSetManagement, 0, 1);
        ata(tag, &Registers { feature: wire::ata::TRIM, ..registers }, &[7; 512])
    };
    let pair = Registers::new(wire::ata::Command::WriteSectorsExt, 4, 2);
    for (older, newer, again, copy, is_overtaken) in [
        (write(1, 5, 1), write(2, 5, 2), write(3, 5, 1), write(4, 5, 1), true),
        (write(1, 5, 1), ata(2, &pair, &[2; 1024]), write(3, 5, 1), write(4, 5, 1), true),
        (write(1, 5, 1), trim(2), write(3, 5, 1), write(4, 5, 1), true),
        (trim(1), write(2, 5, 1), trim(3), trim(4), true),
        (write(1, 6, 1), ata(2, &pair, &[2; 1024]), write(3, 6, 1), write(4, 6, 1), false),
        (write(1, 5, 1), read(2, 5, 1), write(3, 5, 1), write(4, 5, 1), false),
    ] {
        let mut session = Session::new(4);
        session.receive(&older);
        let mut tasks = vec![session.command().task];
        session.receive(&newer);
        let task = session.command().task;
        session.end(task, 0, None);
        assert!(session.answer().is_some());
        session.receive(&again);
        if is_overtaken {
            tasks.push(session.command().task);
        }
        session.receive(&copy);
        assert!(session.target.poll().is_none(), "it is one of the newest");
        tasks.into_iter().for_each(|task| session.end(task, 0, None));
        let answers = std::iter::from_fn(|| session.answer()).map(|headers| ata_answer(&headers).0);
        assert!(answers.eq([1, 3, 4]));
        session.finish();
    }
}

/// An initiator like Linux: one write of a sector at a time, each retransmission with a new tag, and only the
/// newest is listened for. The segment loses frames but keeps their order; the store is slow with each write.
struct Linux {
    session: Session,
    /// What each sector contains, and what it must contain after the write that was answered last.
    store: [u8; 3],
    expected: [u8; 3],
    /// The unanswered writes, and their newest tags.
    waiting: [Option<(u8, u32)>; 3],
    tag: u32,
    value: u8,
    requests: VecDeque<(u32, usize, u8)>,
    answers: VecDeque<u32>,
    running: Vec<(TaskId, usize, u8)>,
}

impl Linux {
    fn new() -> Linux {
        Linux {
            session: Session::new(2),
            store: [0; 3],
            expected: [0; 3],
            waiting: [None; 3],
            tag: 0,
            value: 0,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            running: Vec::new(),
        }
    }

    fn step(&mut self, what: u8, which: usize) {
        let sector = which % self.store.len();
        match what {
            0 => {
                if self.waiting[sector].is_none() {
                    self.value = self.value.wrapping_add(1);
                }
                let value = self.waiting[sector].map_or(self.value, |(value, _)| value);
                self.tag += 1;
                self.waiting[sector] = Some((value, self.tag));
                self.requests.push_back((self.tag, sector, value));
            }
            1 => self.request(),
            2 if !self.running.is_empty() => {
                let (task, sector, value) = self.running.swap_remove(which % self.running.len());
                self.store[sector] = value;
                self.session.end(task, 0, None);
            }
            3 => self.answers.extend(self.session.answer().map(|headers| ata_answer(&headers).0)),
            4 => self.answer(),
            5 if which == 0 => drop(self.requests.pop_front()),
            6 if which == 0 => drop(self.answers.pop_front()),
            _ => {}
        }
    }

    fn request(&mut self) {
        let Some((tag, sector, value)) = self.requests.pop_front() else { return };
        self.session.receive(&write(tag, sector as u64, value));
        if let Some(Up::Command(command)) = self.session.target.poll() {
            self.running.push((command.task, sector, value));
        }
    }

    fn answer(&mut self) {
        let Some(tag) = self.answers.pop_front() else { return };
        let is_it = |waiting: &Option<(u8, u32)>| waiting.is_some_and(|(_, newest)| newest == tag);
        let Some(sector) = self.waiting.iter().position(is_it) else { return };
        self.expected[sector] = self.waiting[sector].take().unwrap().0;
        assert_eq!(self.store[sector], self.expected[sector]);
        assert!(self.running.iter().all(|(_, other, _)| *other != sector), "nothing may go over it");
    }
}

proptest! {
    #[test]
    fn an_answered_write_stays_however_it_was_sent(steps in prop::collection::vec((0u8..7, 0usize..12), 0..600)) {
        let mut linux = Linux::new();
        for (what, which) in steps {
            linux.step(what, which);
        }
        while linux.waiting.iter().any(Option::is_some) {
            for sector in 0..3 {
                if linux.waiting[sector].is_some() {
                    linux.step(0, sector);
                }
            }
            (0..40).for_each(|n| linux.step(1 + n % 4, 1));
        }
        prop_assert_eq!(linux.store, linux.expected);
    }
}
