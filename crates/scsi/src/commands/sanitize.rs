//! SANITIZE (SBC-4 sections 4.11 and 5.30).

use crate::commands::admission::Admission;
use crate::commands::erase::{Erase, List, Method};
use crate::commands::media::same::tile;
use crate::commands::step::Env;
use crate::vocabulary::modes::EraseKind;
use crate::vocabulary::sense::{Check, Failure};
use wire::Cdb;
use wire::scsi::command::Sanitize;
use wire::scsi::parameters::OverwriteList;

/// OVERWRITE.
pub(crate) fn overwrite<P: From<Box<Erase>>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let len = check_cdb(admission.cdb())?;
    let pattern_bytes = usize::from(len).saturating_sub(OverwriteList::BYTES);
    if pattern_bytes == 0 || u32::try_from(pattern_bytes).is_ok_and(|bytes| bytes > admission.block_bytes()) {
        return Err(Check::cdb_field(Sanitize::LIST_BYTES).into());
    }
    if admission.request.write_bytes < u32::from(len) {
        return Err(Check::PARAMETER_LENGTH.into());
    }
    let list = List::Pattern { bytes: len.into() };
    Ok(begin(admission, Method::Overwrite { passes: 0, invert: false, tile: 0 }, list))
}

/// BLOCK ERASE, and CRYPTOGRAPHIC ERASE for a store that implements it like this: afterwards all blocks read
/// as zeros and are unmapped.
pub(crate) fn erase<P: From<Box<Erase>>>(admission: &Admission<'_>) -> Result<P, Failure> {
    check_no_parameters(admission)?;
    Ok(begin(admission, Method::Zero { unmap: true }, List::None))
}

/// EXIT FAILURE MODE.
pub(crate) fn exit_failure_mode<P: From<Box<Erase>>>(admission: &Admission<'_>) -> Result<P, Failure> {
    check_no_parameters(admission)?;
    Ok(begin(admission, Method::ExitFailure, List::None))
}

/// Returns the parameter list length. Reserved bits must be zero, since what SANITIZE destroys cannot be
/// recovered.
fn check_cdb(cdb: &Cdb) -> Result<u16, Check> {
    if cdb.get(Sanitize::NO_ZONE_RESET) {
        return Err(Check::cdb_field(Sanitize::NO_ZONE_RESET));
    }
    let reserved = cdb.get(Sanitize::RESERVED).into_iter().zip(Sanitize::RESERVED.byte()..);
    match reserved.into_iter().find(|(byte, _)| *byte != 0) {
        Some((_, at)) => Err(Check::cdb_byte(at)),
        None => Ok(cdb.get(Sanitize::LIST_BYTES)),
    }
}

fn check_no_parameters(admission: &Admission<'_>) -> Result<(), Check> {
    if check_cdb(admission.cdb())? == 0 { Ok(()) } else { Err(Check::cdb_field(Sanitize::LIST_BYTES)) }
}

fn begin<P: From<Box<Erase>>>(admission: &Admission<'_>, method: Method, list: List) -> P {
    let Sanitize { immediate, unrestricted, .. } = Sanitize::read(admission.cdb().as_bytes());
    P::from(Box::new(Erase::new(EraseKind::Sanitize { unrestricted }, method, list, immediate)))
}

/// Reads the parameter list of OVERWRITE and fills the buffer with blocks of its pattern.
pub(crate) fn pattern(env: &mut Env<'_>, list_bytes: u32) -> Result<Method, Check> {
    let list = usize::try_from(list_bytes).ok().and_then(|len| env.buffer.get(..len));
    let list = list.ok_or(Check::PARAMETER_LENGTH)?;
    let OverwriteList { invert, test, passes, pattern_bytes } = OverwriteList::read(list);
    if test != 0 {
        return Err(Check::parameter_field(OverwriteList::TEST));
    }
    if passes == 0 {
        return Err(Check::parameter_field(OverwriteList::PASSES));
    }
    let pattern = list.get(OverwriteList::BYTES..).and_then(|rest| rest.get(..pattern_bytes.into()));
    let pattern = pattern.filter(|pattern| !pattern.is_empty());
    let pattern = pattern.ok_or(Check::parameter_field(OverwriteList::PATTERN_BYTES))?.to_vec();
    let block_bytes = env.view.policy.block_bytes;
    let block = usize::try_from(block_bytes).ok().and_then(|len| env.buffer.get_mut(..len));
    for (slot, byte) in block.ok_or(Check::INTERNAL)?.iter_mut().zip(pattern.iter().cycle()) {
        *slot = *byte;
    }
    let tile = tile(env.buffer, block_bytes);
    Ok(Method::Overwrite { passes, invert, tile })
}

#[cfg(test)]
mod tests {
    use crate::state::home::{Aborted, Damaged, Home, HomeRequest, Who};
    use crate::state::nexus::NexusId;
    use crate::testing::{BLOCK, Bench, Outcome, unit};
    use crate::vocabulary::command::Status;
    use crate::vocabulary::modes::EraseKind;
    use crate::vocabulary::storage::{MediaOp, StoreError};
    use wire::Cdb;
    use wire::scsi::command::{Inquiry, Read10, Release6, Reserve6, StartStopUnit, TestUnitReady};
    use wire::scsi::opcode;

    const READ: Read10 = Read10::new(0, 1);

    fn bench() -> Bench {
        let mut bench = Bench::of(unit(), 256 * 1024);
        bench.medium.fill(b'a');
        bench.mapped.fill(true);
        bench
    }

    fn cdb(action: u8, len: usize) -> [u8; 10] {
        let [high, low] = (len as u16).to_be_bytes();
        [opcode::SANITIZE, action, 0, 0, 0, 0, 0, high, low, 0]
    }

    fn overwrite(bench: &mut Bench, flags: u8, len: usize, pattern: &[u8]) -> Outcome {
        let [high, low] = (len as u16).to_be_bytes();
        let list = [&[flags, 0, high, low], pattern].concat();
        bench.write(&cdb(0x01, list.len()), &list)
    }

    #[test]
    fn a_pattern_is_repeated_in_every_block() {
        let mut bench = bench();
        overwrite(&mut bench, 0x01, 3, &[1, 2, 3]).assert_good();
        for block in bench.medium.chunks(BLOCK) {
            assert!(block.iter().zip([1, 2, 3].iter().cycle()).all(|(found, expected)| found == expected));
        }
        assert_eq!(bench.operations.last(), Some(&MediaOp::Flush));
        bench.read(READ).assert_good();
    }

    #[test]
    fn passes_are_counted_and_inverted() {
        for (flags, last) in [(0x03, 0xaa), (0x82, 0x55), (0x83, 0xaa)] {
            let mut bench = bench();
            let outcome = overwrite(&mut bench, flags, BLOCK, &[0xaa; BLOCK]);
            assert_eq!(outcome.assert_good().ending.write_bytes, BLOCK as u64 + 4);
            assert!(bench.medium.iter().all(|byte| *byte == last));
            assert_eq!(bench.operations.len(), usize::from(flags & 0x1f) * 4 + 1);
        }
    }

    #[test]
    fn bad_patterns_change_nothing() {
        let mut bench = bench();
        for len in 0..5 {
            bench.write(&cdb(0x01, len), &vec![1; len]).assert_invalid_field(7);
        }
        bench.write(&cdb(0x01, BLOCK + 5), &[1; BLOCK + 5]).assert_invalid_field(7);
        for (flags, len) in [(0x00, BLOCK), (0x01, 0), (0x01, BLOCK + 4), (0x21, BLOCK)] {
            overwrite(&mut bench, flags, len, &[0; BLOCK]).assert_check(0x5, 0x2600);
        }
        assert!(bench.medium.iter().all(|byte| *byte == b'a') && bench.published.is_none());
    }

    #[test]
    fn reserved_fields_and_unknown_actions_are_refused() {
        let mut bench = bench();
        for (at, value) in [(1, 0x42), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)] {
            let mut cdb = cdb(0x02, 0);
            cdb[at] = value;
            bench.read(&cdb).assert_invalid_field(at as u8);
        }
        for action in (0..0x1f).filter(|action| ![1, 2].contains(action)) {
            bench.read(&cdb(action, 0)).assert_invalid_field(1);
        }
        for action in [0x02, 0x1f] {
            bench.write(&cdb(action, 8), &[0; 8]).assert_invalid_field(7);
        }
        let mut unit = unit();
        unit.thin = false;
        Bench::of(unit, 1 << 20).read(&cdb(0x02, 0)).assert_invalid_field(1);
    }

    #[test]
    fn erased_blocks_are_unmapped_zeros() {
        let mut bench = bench();
        bench.read(&cdb(0x02, 0)).assert_good();
        assert!(bench.medium.iter().all(|byte| *byte == 0) && !bench.mapped.contains(&true));
        let mut bench = Bench::of(unit(), 1 << 20);
        let traits =
            crate::vocabulary::storage::Traits { cryptographic_erase: true, ..bench.view.policy.traits };
        bench.ask(HomeRequest::StoreChanged(traits));
        bench.nexuses[0].attentions.clear();
        bench.read(&cdb(0x03, 0)).assert_good();
    }

    #[test]
    fn the_unit_is_not_ready_meanwhile() {
        let mut bench = bench();
        bench.ask(HomeRequest::EraseBegin {
            from: bench.nexuses[0].identity(),
            kind: EraseKind::Sanitize { unrestricted: false },
        });
        for cdb in [
            Cdb::from(READ),
            Cdb::from(TestUnitReady {}),
            Cdb::from(StartStopUnit { start: true, ..StartStopUnit::default() }),
            Cdb::from(&cdb(0x02, 0)),
            Cdb::from(&cdb(0x1f, 0)),
        ] {
            bench.read(cdb).assert_check(0x2, 0x041b);
        }
        bench.read(Inquiry::new(96)).assert_good();
        bench.ask(HomeRequest::Reset { from: Some(NexusId(1)) });
        bench.nexuses[0].attentions.clear();
        bench.read(READ).assert_check(0x2, 0x041b);
        bench.ask(HomeRequest::EraseEnd { ok: true, kind: EraseKind::Sanitize { unrestricted: false } });
        bench.read(READ).assert_good();
    }

    #[test]
    fn all_other_commands_end_first_the_sender_s_own_too() {
        let mut bench = bench();
        let from = bench.nexuses[0].identity();
        bench.ask(HomeRequest::EraseBegin { from, kind: EraseKind::Sanitize { unrestricted: false } });
        let aborts = bench.published.unwrap().aborts;
        assert!(aborts.contains(&(Who::Only(NexusId(1)), Aborted::WithStatus)));
        assert!(aborts.contains(&(Who::Others(NexusId(1)), Aborted::Silently)));
    }

    /// A restart must not give access to what an unfinished restricted operation left (SBC-4 section 4.11).
    #[test]
    fn what_a_restart_cut_off_has_failed() {
        for unrestricted in [false, true] {
            let mut bench = bench();
            let from = bench.nexuses[0].identity();
            bench.ask(HomeRequest::EraseBegin { from, kind: EraseKind::Sanitize { unrestricted } });
            let saved = bench.published.take().unwrap().persist.unwrap();
            let mut restored = Home::new(bench.view.unit.clone(), bench.view.policy.traits);
            for damaged in [&saved[..saved.len() - 1], &[&saved[..], &[0]].concat(), b"garbage", b""] {
                assert_eq!(restored.restore(damaged), Err(Damaged), "{damaged:?}");
            }
            assert_eq!(restored.restore(&saved), Ok(()));
            bench.view.policy = restored.policy();
            bench.home = restored;
            bench.read(READ).assert_check(0x3, 0x3103);
            let exit = bench.read(&cdb(0x1f, 0));
            if unrestricted {
                exit.assert_good();
            } else {
                exit.assert_invalid_field(1);
                bench.read(&cdb(0x02, 0)).assert_good();
            }
            assert_eq!(bench.published.take().unwrap().persist, Some(Vec::new()));
            bench.read(READ).assert_good();
        }
    }

    #[test]
    fn failure_mode_is_left_as_it_was_entered() {
        for unrestricted in [false, true] {
            let mut bench = bench();
            let ause = if unrestricted { 0x20 } else { 0 };
            bench.failure = Some(StoreError::WriteFailed);
            bench.read(&cdb(ause | 0x02, 0)).assert_check(0x3, 0x3103);
            bench.read(READ).assert_check(0x3, 0x3103);
            let exit = bench.read(&cdb(0x1f, 0));
            if unrestricted {
                exit.assert_good();
            } else {
                exit.assert_invalid_field(1);
                bench.read(&cdb(0x22, 0)).assert_invalid_field(1);
                bench.read(&cdb(0x02, 0)).assert_good();
            }
            bench.read(READ).assert_good();
            bench.read(&cdb(0x1f, 0)).assert_good();
        }
    }

    #[test]
    fn protection_and_reservations_hold() {
        let mut bench = bench();
        bench.run(1, Reserve6::default(), &[], 0).assert_good();
        assert_eq!(bench.read(&cdb(0x02, 0)).ending.status, Status::ReservationConflict);
        bench.run(1, Release6::default(), &[], 0).assert_good();
        bench.nexuses[0].read_only = true;
        bench.read(&cdb(0x02, 0)).assert_check(0x7, 0x2700);
    }
}
