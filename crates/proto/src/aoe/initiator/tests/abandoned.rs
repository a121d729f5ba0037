//! Writes whose session was lost before they were answered.

use super::*;
use crate::aoe::target::COPIES_WITHIN;
use wire::ata::identify;

const EVERYWHERE: Range<u64> = 0..u64::MAX;

impl Rig {
    /// The session is lost; the buffers of its commands have been reused, and the next session has begun.
    fn lost(self) -> Rig {
        self.lost_to(CONFIG)
    }

    fn lost_to(mut self, config: InitiatorConfig) -> Rig {
        self.machine.closed("the cable was cut");
        let memory = std::mem::take(&mut self.memory);
        let of = |span: Span| memory[span.offset as usize..][..span.len as usize].to_vec();
        self.machine.keep(|places| places.iter().flat_map(of).collect());
        self.memory = vec![0xee; memory.len()];
        self.machine = self.machine.relogin(config, self.now);
        self.log_in();
        self
    }

    /// On a target that orders NOP behind earlier requests.
    fn on_vblade() -> Rig {
        let mut rig = Rig::with(CONFIG);
        rig.disk.identity.model = identify::text("Coraid EtherDrive vblade");
        rig.log_in();
        rig
    }

    /// The frames that the machine sends, without config queries.
    fn requests(&mut self) -> Vec<Vec<u8>> {
        let is_ata = |frame: &Vec<u8>| Header::view(frame).unwrap().command == AoeCommand::ATA;
        self.sent().into_iter().filter(is_ata).collect()
    }

    /// Time passes while the target answers everything. Returns how many writes to the medium and NOPs it
    /// received.
    fn wait(&mut self, time: Duration) -> (usize, usize) {
        let (end, mut seen) = (self.now.after(time), (0, 0));
        while self.now < end {
            for frame in self.sent() {
                if Header::view(&frame).unwrap().command == AoeCommand::ATA {
                    let section = Section::view(&frame[24..]).unwrap();
                    seen.0 += usize::from(frame.len() > 36);
                    seen.1 += usize::from(section.nop_tag().is_some());
                }
                let answer = self.disk.answer(&frame);
                self.receive(&answer);
            }
            self.now = self.machine.deadline().unwrap().min(end);
            self.machine.tick(self.now);
        }
        seen
    }
}

#[test]
fn a_write_of_a_lost_session_is_sent_again_with_its_tag_until_it_is_answered() {
    let mut rig = Rig::new();
    rig.memory.fill(7);
    rig.submit(write_10(4, 2), 0, 1024);
    rig.submit(read_10(9, 1), 512, 0);
    let first = rig.sent()[..1].to_vec();
    let mut rig = rig.lost();
    assert!(rig.machine.may_change(&(5..6)));
    assert!(!rig.machine.may_change(&(0..4)) && !rig.machine.may_change(&(6..64)), "reads change nothing");
    assert!(rig.sent().is_empty(), "it may be another disk");
    rig.machine.resume(rig.now);
    for _ in 0..4 {
        let mut frames = rig.sent();
        while frames.is_empty() {
            rig.later();
            frames = rig.sent();
        }
        assert_eq!(frames, first);
    }
    rig.submit(read_10(0, 1), 512, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD, "others go on");
    assert!(!rig.machine.take_proven() && rig.machine.has_abandoned());
    let answer = rig.disk.answer(&first[0]);
    rig.receive(&answer);
    rig.receive(&answer);
    assert!(rig.machine.take_proven() && !rig.machine.take_proven() && !rig.machine.has_abandoned());
    assert_eq!(rig.disk.bytes[4 * 512..6 * 512], [7; 1024]);
    assert!(rig.sent().is_empty() && rig.machine.poll().is_none());
}

#[test]
fn an_abandoned_write_is_never_retransmitted_and_only_its_answer_frees_its_sectors() {
    let mut rig = Rig::new();
    rig.memory.fill(7);
    rig.submit(write_10(4, 2), 0, 1024);
    rig.submit(write_10(20, 1), 0, 512);
    let first = rig.sent();
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    assert_eq!(rig.sent().len(), 2);
    rig.machine.abandon(rig.now, &(5..6));
    assert_eq!(
        rig.wait(Duration::from_secs(3600)),
        (1, 0),
        "the other one, and no NOP, which proves nothing"
    );
    assert!(rig.machine.may_change(&(4..5)) && !rig.machine.may_change(&(20..21)));
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    assert_eq!(rig.wait(Duration::from_secs(3600)), (0, 0));
    assert_ne!(rig.disk.bytes[4 * 512..6 * 512], [7; 1024]);
    assert!(rig.machine.may_change(&(4..5)));
    rig.machine.take_proven();
    let answer = rig.disk.answer(&first[0]);
    rig.receive(&answer);
    assert!(rig.machine.take_proven() && !rig.machine.has_abandoned());
}

#[test]
fn a_target_that_orders_nop_behind_a_write_proves_that_it_is_over_once_no_copy_can_come_any_more() {
    let mut rig = Rig::on_vblade();
    rig.submit(write_10(4, 2), 0, 1024);
    rig.submit(write_10(20, 1), 0, 512);
    rig.sent();
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    rig.sent();
    rig.machine.abandon(rig.now, &EVERYWHERE);
    assert_eq!(rig.wait(COPIES_WITHIN - Duration::from_millis(1)), (0, 0));
    assert!(rig.machine.may_change(&(4..5)) && rig.machine.may_change(&(20..21)));
    assert_eq!(rig.wait(Duration::from_secs(1)), (0, 2));
    assert!(rig.machine.take_proven() && !rig.machine.has_abandoned());
}

#[test]
fn an_abandoned_command_is_not_retransmitted_and_its_session_continues() {
    let mut rig = Rig::on_vblade();
    rig.machine.resume(rig.now);
    let task = rig.submit(write_10(4, 5), 0, 5 * 512);
    let first = rig.sent();
    assert!(rig.machine.abandon_task(rig.now, task) && !rig.machine.abandon_task(rig.now, task));
    assert_eq!(rig.wait(COPIES_WITHIN - Duration::from_millis(1)), (0, 0));
    let answer = rig.disk.answer(&first[0]);
    rig.receive(&answer);
    assert!(rig.machine.take_proven(), "an answer frees what it is for");
    assert!(!rig.machine.may_change(&(4..5)) && rig.machine.may_change(&(8..9)));
    rig.submit(write_10(20, 1), 0, 512);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
    assert_eq!(rig.wait(Duration::from_secs(1)), (0, first.len() - 1));
    assert!(!rig.machine.has_abandoned() && rig.machine.poll().is_none());
}

#[test]
fn an_abandoned_command_ends_at_once_if_none_of_it_was_sent() {
    let mut rig = Rig::new();
    rig.machine.pace.limit(1);
    let first = rig.submit(write_10(4, 6), 0, 6 * 512);
    let second = rig.submit(write_10(20, 1), 0, 512);
    assert_eq!(rig.sent().len(), 1);
    for task in [second, first] {
        assert!(rig.machine.abandon_task(rig.now, task));
    }
    assert_eq!(rig.wait(Duration::from_secs(3600)), (0, 0));
    assert!(rig.machine.may_change(&(4..5)));
    assert!(!rig.machine.may_change(&(9..10)) && !rig.machine.may_change(&(20..21)), "they never left");
    rig.submit(read_10(0, 1), 512, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
}

#[test]
fn a_nop_that_was_not_sent_has_no_answer() {
    let mut rig = Rig::on_vblade();
    rig.submit(write_10(4, 1), 0, 512);
    let frame = rig.sent().remove(0);
    let mut rig = rig.lost();
    rig.machine.abandon(rig.now, &EVERYWHERE);
    rig.machine.resume(rig.now);
    let answer = rig.disk.answer(&frame);
    for number in 0..=u16::MAX {
        let [high, low] = number.to_be_bytes();
        let tag = [CONFIG.lane, high, low, 0xff];
        rig.receive(&[&answer[..20], &tag, &answer[24..]].concat());
    }
    assert!(rig.machine.has_abandoned());
}

#[test]
fn a_nop_is_asked_again_also_by_a_new_session_until_it_is_answered() {
    let mut rig = Rig::on_vblade();
    rig.submit(write_10(4, 2), 0, 1024);
    let tag = tag(&rig.sent()[0]);
    let mut rig = rig.lost();
    rig.machine.abandon(rig.now, &EVERYWHERE);
    rig.now = rig.now.after(Duration::from_secs(4));
    let mut rig = rig.lost();
    assert_eq!(rig.wait(Duration::from_secs(60)), (0, 0), "it may be another disk");
    rig.machine.resume(rig.now);
    for _ in 0..3 {
        let mut frames = rig.requests();
        while frames.is_empty() {
            rig.later();
            frames = rig.requests();
        }
        let nop = Section::view(&frames[0][24..]).unwrap();
        assert_eq!((frames.len(), nop.nop_tag()), (1, Some(tag)));
    }
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    assert_eq!(rig.wait(Duration::from_secs(1)), (0, 1));
    assert!(!rig.machine.has_abandoned());
}

#[test]
fn a_nop_from_another_address_proves_nothing() {
    let mut rig = Rig::on_vblade();
    rig.submit(write_10(4, 2), 0, 1024);
    rig.sent();
    let mut rig = rig.lost_to(InitiatorConfig { mtu: 1400, ..CONFIG });
    rig.machine.abandon(rig.now, &EVERYWHERE);
    assert!(rig.machine.can_be_proven(&(4..6)));
    rig.machine.peer.mac = Mac([2, 0, 0, 0, 0, 8]);
    assert!(!rig.machine.can_be_proven(&(4..6)) && rig.machine.can_be_proven(&(6..64)));
    rig.machine.resume(rig.now);
    rig.now = rig.now.after(Duration::from_secs(6));
    rig.machine.tick(rig.now);
    assert!(rig.requests().is_empty());
    let mut rig = rig.lost();
    assert!(rig.machine.can_be_proven(&(4..6)));
    rig.machine.resume(rig.now);
    assert_eq!(rig.wait(Duration::from_secs(60)), (0, 1));
    assert!(!rig.machine.has_abandoned());
}

#[test]
fn a_command_waits_for_the_answers_to_what_was_sent_for_its_sectors_before() {
    let mut rig = Rig::new();
    rig.submit(write_10(4, 2), 0, 1024);
    let first = rig.sent();
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    rig.memory.fill(9);
    rig.submit(write_10(5, 1), 0, 512);
    rig.submit(write_10(6, 1), 0, 512);
    let frames = rig.sent();
    assert_eq!((frames.len(), &frames[0]), (2, &first[0]), "what is beside it does not");
    let answers: Vec<_> = frames.iter().map(|frame| rig.disk.answer(frame)).collect();
    answers.iter().for_each(|answer| rig.receive(answer));
    rig.run();
    assert_eq!([rig.completion().outcome, rig.completion().outcome], [GOOD; 2]);
    assert_eq!(rig.disk.bytes[5 * 512..7 * 512], [9; 1024]);
}

#[test]
fn a_command_does_not_wait_for_what_was_abandoned() {
    let mut rig = Rig::new();
    rig.submit(write_10(4, 2), 0, 1024);
    rig.sent();
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    rig.sent();
    rig.submit(write_10(5, 1), 0, 512);
    assert!(rig.sent().is_empty());
    rig.machine.abandon(rig.now, &(4..5));
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
    assert!(rig.machine.may_change(&(5..6)), "whoever gave it up knows");
}

#[test]
fn an_abandoned_write_that_no_longer_fits_into_a_frame_is_dropped() {
    let mut rig = Rig::on_vblade();
    rig.submit(write_10(4, 2), 0, 1024);
    rig.sent();
    let mut rig = rig.lost_to(InitiatorConfig { mtu: 1000, ..CONFIG });
    rig.machine.resume(rig.now);
    rig.submit(write_10(4, 2), 0, 1024);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD, "it goes in two frames");
    assert!(rig.machine.may_change(&(4..6)));
    assert_eq!(rig.wait(Duration::from_secs(6)), (0, 1));
    assert!(!rig.machine.has_abandoned());
}

#[test]
fn only_retransmissions_are_counted_as_such() {
    let mut rig = Rig::new();
    rig.submit(write_10(4, 1), 0, 512);
    rig.submit(write_10(20, 1), 0, 512);
    let first = rig.sent();
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    assert_eq!(rig.machine.abandoned.repeated(), 2);
    for _ in 0..2 {
        rig.machine.abandon(rig.now, &(4..5));
        assert_eq!(rig.machine.abandoned.repeated(), 1);
    }
    let task = rig.submit(write_10(8, 1), 0, 512);
    rig.sent();
    assert!(rig.machine.abandon_task(rig.now, task));
    assert_eq!(rig.machine.abandoned.repeated(), 1);
    for (frame, left) in first.iter().zip([1, 0]) {
        let answer = rig.disk.answer(frame);
        rig.receive(&answer);
        assert_eq!(rig.machine.abandoned.repeated(), left);
    }
    assert!(rig.machine.has_abandoned());
}

#[test]
fn retransmissions_are_bounded() {
    let mut rig = Rig::new();
    for round in 0..100 {
        for _ in 0..CONFIG.queue_depth {
            rig.submit(write_10(round % 32, 1), 0, 512);
        }
        rig.sent();
        rig = rig.lost();
    }
    assert!(rig.machine.abandoned.repeated() <= PIECES_MAX);
    rig.machine.resume(rig.now);
    rig.run();
    assert!(!rig.machine.has_abandoned());
}

#[test]
fn with_too_many_abandoned_writes_writes_fail_and_reads_continue() {
    let mut rig = Rig::new();
    let mut lost = 0;
    while lost < 1024 {
        for _ in 0..CONFIG.queue_depth {
            rig.submit(write_10(3, 1), 0, 512);
        }
        lost += rig.sent().len();
        rig = rig.lost();
        rig.machine.abandon(rig.now, &EVERYWHERE);
    }
    rig.submit(write_10(50, 1), 0, 512);
    assert_eq!(rig.sense(), (SenseKey::NotReady, 0x0400));
    rig.submit(read_10(50, 1), 512, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD);
}

#[test]
fn writes_without_an_answer_have_turns() {
    let mut rig = Rig::new();
    for lba in [0, 8, 16] {
        rig.submit(write_10(lba, 1), 0, 512);
    }
    let first: BTreeSet<_> = rig.sent().into_iter().collect();
    assert_eq!(first.len(), 3);
    let mut rig = rig.lost();
    rig.machine.pace.limit(1);
    rig.machine.resume(rig.now);
    let mut sent = BTreeSet::new();
    for _ in 0..8 {
        let frames = rig.sent();
        assert!(frames.len() <= 1, "the window is one");
        sent.extend(frames);
        rig.later();
    }
    assert!(sent.is_superset(&first), "each");
}

#[test]
fn retransmissions_and_new_requests_share_a_window_and_one_new_request_is_always_in_flight() {
    let mut rig = Rig::new();
    for lba in [0, 4, 8, 12] {
        rig.submit(write_10(lba, 1), 0, 512);
    }
    let first = rig.sent();
    let mut rig = rig.lost();
    rig.machine.resume(rig.now);
    for lba in [20, 24] {
        rig.submit(read_10(lba, 1), 512, 0);
    }
    let frames = rig.sent();
    assert_eq!((first.len(), frames.len(), &frames[..4]), (4, 5, &first[..]));
    let answer = rig.disk.answer(&frames[4]);
    rig.receive(&answer);
    rig.completion();
    assert_eq!(rig.sent().len(), 1);
    let answers: Vec<_> = frames[..2].iter().map(|frame| rig.disk.answer(frame)).collect();
    answers.iter().for_each(|answer| rig.receive(answer));
    for lba in [28, 32, 36] {
        rig.submit(read_10(lba, 1), 512, 0);
    }
    assert_eq!(rig.sent().len(), 1, "with two of the first and one that is new it is full");
}

/// The refusal of a request.
fn refusal(request: &[u8]) -> Vec<u8> {
    let answer = Header::view(request).unwrap().answer(THEIRS, TARGET, ErrorCode::TARGET_IS_RESERVED);
    [answer.as_bytes(), &request[24..36]].concat()
}

#[test]
fn the_refusal_of_a_copy_proves_nothing_of_the_first_unless_the_target_does_one_after_the_other() {
    for (mut rig, is_proof) in [(Rig::new(), false), (Rig::on_vblade(), true)] {
        rig.submit(write_10(4, 1), 0, 512);
        let frame = rig.sent().remove(0);
        let mut rig = rig.lost();
        rig.machine.resume(rig.now);
        assert_eq!(rig.sent(), [&frame[..]]);
        rig.receive(&refusal(&frame));
        assert_eq!(rig.machine.take_proven(), is_proof);
        assert_eq!(rig.machine.has_abandoned(), !is_proof);
        let answer = rig.disk.answer(&frame);
        rig.receive(&answer);
        assert!(!rig.machine.has_abandoned());
    }
}

#[test]
fn the_refusal_of_what_was_sent_once_is_an_answer() {
    let mut rig = Rig::new();
    rig.submit(write_10(4, 1), 0, 512);
    let frame = rig.sent().remove(0);
    let mut rig = rig.lost();
    rig.machine.abandon(rig.now, &EVERYWHERE);
    rig.receive(&refusal(&frame));
    assert!(rig.machine.take_proven() && !rig.machine.has_abandoned());
}

#[test]
fn a_command_does_not_end_by_the_refusal_of_a_copy() {
    for (mut rig, ends) in [(Rig::new(), false), (Rig::on_vblade(), true)] {
        rig.submit(write_10(4, 1), 0, 512);
        let frame = rig.sent().remove(0);
        rig.later();
        assert_eq!(rig.sent(), [&frame[..]]);
        rig.receive(&refusal(&frame));
        assert_eq!(rig.machine.poll().is_some(), ends);
        if !ends {
            rig.later();
            rig.run();
            assert_eq!(rig.completion().outcome, GOOD, "it is asked again");
        }
    }
    let mut rig = Rig::new();
    rig.submit(write_10(4, 1), 0, 512);
    let frame = rig.sent().remove(0);
    rig.receive(&refusal(&frame));
    assert_eq!(rig.completion().outcome, Outcome::Status { status: 0x18, sense: None });
}
