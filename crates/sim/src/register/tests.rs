use super::*;

const RANGE: Range = Range { unit: 0, first: 3, blocks: 1 };

fn read(registers: &mut Registers, from: u64, to: u64, bytes: &[u8]) -> Result<(), String> {
    registers.begin_read(Time(from));
    registers.found(Time(to), Time(from), RANGE, bytes)
}

#[test]
fn what_was_acknowledged_is_read_and_what_was_before_is_not() {
    let mut registers = Registers::new(1, 1, 8, false);
    let (first, old) = registers.begin_write(Time(10), 0, RANGE);
    registers.end_write(Time(20), RANGE, first, Fate::Done).unwrap();
    registers.begin_read(Time(25));
    let (second, new) = registers.begin_write(Time(30), 0, RANGE);
    assert_eq!(read(&mut registers, 31, 32, &old), Ok(()));
    registers.end_write(Time(40), RANGE, second, Fate::Done).unwrap();
    assert!(read(&mut registers, 41, 42, &old).unwrap_err().contains("found write 1"));
    assert_eq!(read(&mut registers, 41, 43, &new), Ok(()));
    assert!(read(&mut registers, 41, 43, &vec![0; 512]).is_err());
    assert!(read(&mut registers, 41, 43, &vec![7; 512]).unwrap_err().contains("what nobody wrote"));
    // The read that began before the second may find either.
    assert_eq!(registers.found(Time(50), Time(25), RANGE, &old), Ok(()));
}

#[test]
fn nothing_takes_effect_after_its_end_was_reported() {
    let mut registers = Registers::new(1, 1, 8, false);
    let (aborted, lands) = registers.begin_write(Time(10), 0, RANGE);
    registers.end_write(Time(20), RANGE, aborted, Fate::Unsure).unwrap();
    let (second, new) = registers.begin_write(Time(30), 0, RANGE);
    assert_eq!(read(&mut registers, 31, 32, &lands), Ok(()), "as long as the second may not have begun");
    registers.end_write(Time(40), RANGE, second, Fate::Done).unwrap();
    assert_eq!(read(&mut registers, 41, 43, &new), Ok(()));
    assert!(read(&mut registers, 44, 45, &lands).is_err());
}

#[test]
fn what_ended_before_another_one_was_read_is_gone() {
    let mut registers = Registers::new(1, 1, 8, false);
    let (first, old) = registers.begin_write(Time(10), 0, RANGE);
    registers.end_write(Time(20), RANGE, first, Fate::Done).unwrap();
    let (aborted, lands) = registers.begin_write(Time(10), 0, RANGE);
    registers.begin_read(Time(15));
    registers.end_write(Time(20), RANGE, aborted, Fate::Unsure).unwrap();
    assert_eq!(read(&mut registers, 21, 22, &old), Ok(()));
    assert!(read(&mut registers, 23, 24, &lands).is_err(), "it was not there, and lands later");
    // The read that began before its end may have found it.
    assert_eq!(registers.found(Time(25), Time(15), RANGE, &lands), Ok(()));
}

#[test]
fn what_was_on_its_way_when_its_initiator_was_preempted_lands_only_once_that_may_write_again() {
    let mut registers = Registers::new(3, 1, 8, false);
    let (late, lands) = registers.begin_write(Time(10), 0, RANGE);
    let (other, also) = registers.begin_write(Time(10), 1, RANGE);
    registers.fence(Time(20), 0, 0, Time(15));
    registers.fence(Time(20), 1, 0, Time(15));
    let mut last = Vec::new();
    // Enough that the earlier ones are forgotten.
    for at in (30..1000).step_by(10) {
        let (id, bytes) = registers.begin_write(Time(at), 2, RANGE);
        registers.end_write(Time(at + 1), RANGE, id, Fate::Done).unwrap();
        last = bytes;
    }
    assert_eq!(read(&mut registers, 1000, 1001, &last), Ok(()));
    assert!(read(&mut registers, 1002, 1003, &lands).is_err(), "nothing lets it write");
    registers.let_in(0, |initiator| initiator == 0);
    assert_eq!(read(&mut registers, 1010, 1011, &lands), Ok(()));
    assert!(read(&mut registers, 1012, 1013, &also).is_err(), "the other may not write");
    registers.end_write(Time(1020), RANGE, other, Fate::Unsure).unwrap();
    registers.let_in(0, |initiator| initiator == 1);
    assert!(read(&mut registers, 1030, 1031, &also).is_err(), "its session has ended");
    registers.end_write(Time(1040), RANGE, late, Fate::Unsure).unwrap();
}

#[test]
fn what_comes_before_an_ordered_write_is_done_before_it() {
    use Attribute::{HeadOfQueue, Ordered, Simple};
    let cases = [
        (0, [Simple, Ordered], false),
        (0, [Ordered, Simple], false),
        (0, [Simple, Simple], true),
        (0, [Ordered, HeadOfQueue], true),
        (1, [Simple, Ordered], true),
    ];
    for (other, places, may_be_found) in cases {
        let mut registers = Registers::new(2, 1, 8, false);
        let first = registers.begin_placed(Time(10), 0, RANGE, places[0]);
        let second = registers.begin_placed(Time(10), other, RANGE, places[1]);
        for id in [first, second] {
            registers.end_write(Time(20), RANGE, id, Fate::Done).unwrap();
        }
        let mut bytes = [0; BLOCK_BYTES as usize];
        fill(first, RANGE, &mut bytes);
        assert_eq!(read(&mut registers, 21, 22, &bytes).is_ok(), may_be_found, "{places:?} of 0 and {other}");
    }
}

#[test]
fn a_write_that_was_seen_has_taken_effect_and_does_so_once() {
    let mut registers = Registers::new(1, 1, 8, false);
    let (_, lost) = registers.begin_write(Time(10), 0, RANGE);
    assert_eq!(read(&mut registers, 11, 12, &lost), Ok(()));
    assert!(read(&mut registers, 13, 14, &vec![0; 512]).is_err(), "it was there");
    let (second, _) = registers.begin_write(Time(30), 0, RANGE);
    registers.end_write(Time(40), RANGE, second, Fate::Done).unwrap();
    assert!(read(&mut registers, 41, 43, &lost).is_err(), "it comes again");
}

#[test]
fn what_was_flushed_or_written_with_fua_survives_and_what_is_left_is_one_of_the_rest() {
    let mut registers = Registers::new(1, 1, 8, true);
    let write = |registers: &mut Registers, at: u64, fate| {
        let (id, bytes) = registers.begin_write(Time(at), 0, RANGE);
        registers.end_write(Time(at + 1), RANGE, id, fate).unwrap();
        bytes
    };
    let old = write(&mut registers, 10, Fate::Done);
    let flushed = write(&mut registers, 20, Fate::Done);
    registers.flushed(0, 0, Time(30)).unwrap();
    let (one, other) = (write(&mut registers, 40, Fate::Done), write(&mut registers, 50, Fate::Done));
    registers.crash(Time(60), true);
    assert!(read(&mut registers, 61, 62, &old).is_err(), "a later one was flushed");
    let mut lost = Registers { units: registers.units.clone(), ..Registers::new(1, 1, 8, true) };
    lost.crashed = registers.crashed;
    assert_eq!(read(&mut lost, 61, 62, &flushed), Ok(()));
    assert!(read(&mut lost, 63, 64, &other).is_err(), "it was gone");
    assert_eq!(read(&mut registers, 61, 62, &one), Ok(()));
    assert!(read(&mut registers, 63, 64, &flushed).is_err());
    let kept = write(&mut registers, 70, Fate::Durable);
    registers.crash(Time(80), true);
    assert!(read(&mut registers, 81, 82, &one).is_err());
    assert_eq!(read(&mut registers, 81, 82, &kept), Ok(()));
}

#[test]
fn an_answer_that_comes_after_a_power_failure_says_nothing_of_what_is_left() {
    let mut registers = Registers::new(1, 1, 8, true);
    let (old, before) = registers.begin_write(Time(10), 0, RANGE);
    registers.end_write(Time(20), RANGE, old, Fate::Done).unwrap();
    let (id, bytes) = registers.begin_write(Time(30), 0, RANGE);
    registers.crash(Time(40), true);
    registers.end_write(Time(41), RANGE, id, Fate::Done).unwrap();
    assert_eq!(read(&mut registers, 50, 51, &before), Ok(()));
    assert!(read(&mut registers, 52, 53, &bytes).is_err(), "it was not left");
}

#[test]
fn a_flush_reports_what_a_disk_has_lost_to_each_initiator() {
    let mut registers = Registers::new(2, 1, 8, true);
    registers.knows(0, Time(1));
    registers.knows(1, Time(1));
    let (old, before) = registers.begin_write(Time(10), 0, RANGE);
    registers.end_write(Time(11), RANGE, old, Fate::Durable).unwrap();
    let (id, bytes) = registers.begin_write(Time(20), 0, RANGE);
    registers.end_write(Time(30), RANGE, id, Fate::Done).unwrap();
    let (lost, left) = (stamp(id, 0, 3), stamp(old, 0, 3));
    let loss = Loss { unit: 0, block: 3, lost, left, is_gone: false };
    registers.lose(Time(40), &loss).unwrap();
    assert!(registers.flushed(0, 0, Time(35)).is_err());
    registers.flush_failed(0, 0);
    registers.flushed(0, 0, Time(41)).unwrap();
    assert!(registers.flushed(1, 0, Time(41)).is_err(), "the other one has not heard of it");
    assert_eq!(read(&mut registers, 50, 51, &bytes), Ok(()), "it is still in memory");
    registers.lose(Time(60), &Loss { is_gone: true, ..loss }).unwrap();
    assert_eq!(read(&mut registers, 70, 71, &before), Ok(()));
    assert!(read(&mut registers, 72, 73, &bytes).is_err(), "it is gone");
    let loss = Loss { lost: left, left: stamp(WriteId(0), 0, 3), ..loss };
    assert!(registers.lose(Time(80), &loss).is_err(), "it was durable");
}

#[test]
fn what_is_lost_is_written_again_by_an_orwrite_that_had_read_it() {
    for (begins, is_found) in [(35, true), (45, false)] {
        let mut registers = Registers::new(1, 1, 8, true);
        let (id, bytes) = registers.begin_write(Time(20), 0, RANGE);
        registers.end_write(Time(30), RANGE, id, Fate::Done).unwrap();
        let (lost, left) = (stamp(id, 0, 3), stamp(WriteId(0), 0, 3));
        let loss = Loss { unit: 0, block: 3, lost, left, is_gone: true };
        if begins > 40 {
            registers.lose(Time(40), &loss).unwrap();
        }
        let rewrite = registers.begin_rewrite(RANGE);
        if begins < 40 {
            registers.lose(Time(40), &loss).unwrap();
        }
        assert_eq!(read(&mut registers, 50, 51, &vec![0; 512]), Ok(()), "it has not written yet");
        registers.end_write(Time(60), RANGE, rewrite, Fate::Done).unwrap();
        assert_eq!(read(&mut registers, 70, 71, &bytes).is_ok(), is_found);
        if is_found {
            assert!(read(&mut registers, 80, 81, &vec![0; 512]).is_err(), "and nobody has undone that");
        }
    }
}

#[test]
fn a_session_with_a_target_that_was_killed_is_owed_nothing() {
    for (asked, is_owed) in [(5, false), (45, true)] {
        let mut registers = Registers::new(1, 1, 8, true);
        let (id, _) = registers.begin_write(Time(10), 0, RANGE);
        registers.end_write(Time(20), RANGE, id, Fate::Done).unwrap();
        registers.crash(Time(40), false);
        registers.knows(0, Time(asked));
        let (lost, left) = (stamp(id, 0, 3), stamp(WriteId(0), 0, 3));
        registers.lose(Time(50), &Loss { unit: 0, block: 3, lost, left, is_gone: false }).unwrap();
        assert_eq!(registers.flushed(0, 0, Time(60)).is_err(), is_owed);
    }
}

#[test]
fn what_replaced_a_block_and_is_lost_may_end_after_what_replaced_it_again() {
    for (began, is_fault) in [(30, false), (51, true)] {
        let mut registers = Registers::new(1, 1, 8, true);
        let (first, _) = registers.begin_write(Time(10), 0, RANGE);
        registers.end_write(Time(20), RANGE, first, Fate::Done).unwrap();
        let (one, _) = registers.begin_write(Time(30), 0, RANGE);
        let (lost, left) = (stamp(one, 0, 3), stamp(first, 0, 3));
        registers.lose(Time(40), &Loss { unit: 0, block: 3, lost, left, is_gone: true }).unwrap();
        registers.swapped(Time(60), Time(50), RANGE, first).unwrap();
        assert_eq!(registers.swapped(Time(70), Time(began), RANGE, first).is_err(), is_fault);
    }
}

#[test]
fn a_block_is_compared_and_replaced_once_and_zeros_are_of_anybody() {
    let mut registers = Registers::new(1, 1, 8, false);
    let (first, _) = registers.begin_write(Time(10), 0, RANGE);
    registers.end_write(Time(20), RANGE, first, Fate::Done).unwrap();
    assert_eq!(registers.guess(RANGE).0, first);
    let (one, _) = registers.begin_write(Time(30), 0, RANGE);
    let (other, _) = registers.begin_write(Time(30), 0, RANGE);
    registers.swapped(Time(40), Time(30), RANGE, first).unwrap();
    registers.end_write(Time(40), RANGE, one, Fate::Done).unwrap();
    assert!(registers.swapped(Time(41), Time(30), RANGE, first).is_err());
    registers.end_write(Time(41), RANGE, other, Fate::Refused).unwrap();
    assert!(read(&mut registers, 50, 51, &vec![0; 512]).is_err());
    let zeros = registers.begin_zeros(Time(60), 0, RANGE);
    registers.end_write(Time(61), RANGE, zeros, Fate::Done).unwrap();
    assert_eq!(read(&mut registers, 62, 63, &vec![0; 512]), Ok(()));
    let two = Range { blocks: 2, ..RANGE };
    let (same, block) = registers.begin_same(Time(70), 0, two);
    registers.end_write(Time(71), two, same, Fate::Done).unwrap();
    registers.begin_read(Time(72));
    assert_eq!(registers.found(Time(73), Time(72), two, &block.repeat(2)), Ok(()));
    assert!(read(&mut registers, 74, 75, &vec![0; 512]).is_err());
}

#[test]
fn what_may_come_again_is_replaced_once_when_it_has_ended() {
    for is_over in [false, true] {
        let mut registers = Registers::new(1, 1, 8, false);
        let (first, _) = registers.begin_repeated(Time(10), 0, RANGE);
        if is_over {
            registers.end_write(Time(20), RANGE, first, Fate::Done).unwrap();
        }
        for _ in 0..2 {
            registers.begin_write(Time(30), 0, RANGE);
        }
        registers.swapped(Time(40), Time(30), RANGE, first).unwrap();
        assert_eq!(registers.swapped(Time(41), Time(30), RANGE, first).is_err(), is_over);
    }
}

#[test]
fn a_write_that_was_refused_never_lands_and_a_torn_block_is_of_writes_under_way() {
    let mut registers = Registers::new(1, 1, 8, false);
    let (first, one) = registers.begin_write(Time(10), 0, RANGE);
    let (second, other) = registers.begin_write(Time(10), 0, RANGE);
    let torn: Vec<u8> = one[..256].iter().chain(&other[256..]).copied().collect();
    assert_eq!(read(&mut registers, 11, 12, &torn), Ok(()));
    registers.end_write(Time(20), RANGE, first, Fate::Done).unwrap();
    registers.end_write(Time(20), RANGE, second, Fate::Refused).unwrap();
    assert!(read(&mut registers, 21, 22, &torn).is_err());
    assert!(read(&mut registers, 21, 22, &other).is_err());
    assert_eq!(read(&mut registers, 21, 22, &one), Ok(()));
}

#[test]
fn what_was_written_and_not_unmapped_is_not_found_without_space() {
    let mut registers = Registers::new(1, 1, 8, false);
    let finds = |registers: &mut Registers, from: u64, to: u64| {
        registers.begin_read(Time(from));
        registers.end_read(Time(from));
        registers.finds_zeros(Time(to), Time(from), RANGE)
    };
    assert_eq!(finds(&mut registers, 1, 2), Ok(()));
    let (write, _) = registers.begin_write(Time(10), 0, RANGE);
    assert_eq!(finds(&mut registers, 11, 12), Ok(()), "as long as it may not have begun");
    registers.end_write(Time(20), RANGE, write, Fate::Done).unwrap();
    assert!(finds(&mut registers, 21, 22).unwrap_err().contains("not allocated"));
    let unmap = registers.begin_zeros(Time(30), 0, RANGE);
    assert_eq!(finds(&mut registers, 31, 32), Ok(()));
    registers.end_write(Time(40), RANGE, unmap, Fate::Done).unwrap();
    assert_eq!(finds(&mut registers, 41, 42), Ok(()));
}
