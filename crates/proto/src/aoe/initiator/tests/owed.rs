//! Writes whose session was lost before they were answered.

use super::*;

impl Rig {
    /// The session is lost; the places of its commands are somebody else's, and the next one has begun.
    fn lost(mut self) -> Rig {
        self.machine.closed("the cable was cut");
        let memory = std::mem::take(&mut self.memory);
        let of = |span: Span| memory[span.offset as usize..][..span.len as usize].to_vec();
        self.machine.keep(|places| places.iter().flat_map(of).collect());
        self.memory = vec![0xee; memory.len()];
        self.machine = self.machine.again(CONFIG, self.now);
        self.log_in();
        self
    }
}

#[test]
fn a_write_of_a_lost_session_is_sent_again_with_its_tag_until_it_is_answered() {
    let mut rig = Rig::new();
    rig.memory.fill(7);
    rig.submit(&write_10(4, 2, 0), 0, 1024);
    rig.submit(&read_10(9, 1), 512, 0);
    let first = rig.sent()[..1].to_vec();
    let mut rig = rig.lost();
    assert!(rig.machine.owes_sectors(&(5..6)));
    assert!(
        !rig.machine.owes_sectors(&(0..4)) && !rig.machine.owes_sectors(&(6..64)),
        "reads change nothing"
    );
    assert!(rig.sent().is_empty(), "it may be another disk");
    rig.machine.pay();
    for _ in 0..4 {
        let mut frames = rig.sent();
        while frames.is_empty() {
            rig.later();
            frames = rig.sent();
        }
        assert_eq!(frames, first);
    }
    rig.submit(&read_10(0, 1), 512, 0);
    rig.run();
    assert_eq!(rig.completion().outcome, GOOD, "others go on");
    assert!(!rig.machine.take_paid() && rig.machine.owes_writes());
    let answer = rig.disk.answer(&first[0]);
    rig.receive(&answer);
    rig.receive(&answer);
    assert!(rig.machine.take_paid() && !rig.machine.take_paid() && !rig.machine.owes_writes());
    assert_eq!(rig.disk.bytes[4 * 512..6 * 512], [7; 1024]);
    assert!(rig.sent().is_empty() && rig.machine.poll().is_none());
}

#[test]
fn what_is_owed_an_answer_outlives_every_session_and_is_bounded() {
    let mut rig = Rig::new();
    for round in 0..100 {
        for _ in 0..CONFIG.queue_depth {
            rig.submit(&write_10(round % 32, 1, 0), 0, 512);
        }
        rig.sent();
        rig = rig.lost();
    }
    assert!(rig.machine.owed.len() > PIECES_MAX - BUFFERS && rig.machine.owed.len() <= PIECES_MAX);
    rig.machine.pay();
    rig.run();
    assert!(!rig.machine.owes_writes());
}

#[test]
fn writes_without_an_answer_have_turns() {
    let mut rig = Rig::new();
    for lba in [0, 8, 16] {
        rig.submit(&write_10(lba, 1, 0), 0, 512);
    }
    let first: BTreeSet<_> = rig.sent().into_iter().collect();
    assert_eq!(first.len(), 3);
    let mut rig = rig.lost();
    rig.machine.pace.limit(1);
    rig.machine.pay();
    let mut sent = BTreeSet::new();
    for _ in 0..8 {
        let frames = rig.sent();
        assert!(frames.len() <= 1, "the window is one");
        sent.extend(frames);
        rig.later();
    }
    assert!(sent.is_superset(&first), "each");
}
