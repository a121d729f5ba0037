//! FORMAT UNIT (SBC-3 section 5.3): all blocks read as zeros afterwards, and are unmapped on a thin unit. There are no
//! defects to list, no protection information, and one block length.

use crate::commands::admission::Admission;
use crate::commands::erase::{Erase, List, Method};
use crate::vocabulary::modes::EraseKind;
use crate::vocabulary::sense::{Check, Failure};
use wire::scsi::command::FormatUnit;
use wire::scsi::parameters::{FormatLongHeader, FormatOptions, FormatShortHeader, InitializationPattern};

/// FORMAT UNIT.
pub(crate) fn begin<P: From<Box<Erase>>>(admission: &Admission<'_>) -> Result<P, Failure> {
    let asked = FormatUnit::read(admission.cdb().as_bytes());
    if asked.protection != 0 {
        return Err(Check::cdb_field(FormatUnit::PROTECTION).into());
    }
    if asked.defect_format != 0 {
        return Err(Check::cdb_field(FormatUnit::DEFECT_FORMAT).into());
    }
    let long = asked.long_list;
    let list = if asked.has_data {
        if admission.request.write_bytes < list_bytes(long, false) {
            return Err(Check::PARAMETER_LENGTH.into());
        }
        let bytes = admission.request.write_bytes.min(list_bytes(long, true));
        List::Format { bytes, long }
    } else if long || asked.complete_list {
        // Both require a parameter list.
        let field = if long { FormatUnit::LONG_LIST } else { FormatUnit::COMPLETE_LIST };
        return Err(Check::cdb_field(field).into());
    } else {
        List::None
    };
    let method = Method::Zero { unmap: admission.view.is_thin() };
    Ok(P::from(Box::new(Erase::new(EraseKind::Format, method, list, false))))
}

/// Length of a parameter list, with or without an initialization pattern descriptor.
fn list_bytes(long: bool, has_pattern: bool) -> u32 {
    let header = if long { FormatLongHeader::BYTES } else { FormatShortHeader::BYTES };
    let pattern = if has_pattern { InitializationPattern::BYTES } else { 0 };
    u32::try_from(header.saturating_add(pattern)).unwrap_or(u32::MAX)
}

/// The content of a parameter list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parameters {
    /// IMMED.
    pub(crate) immediate: bool,
    /// Length of the list.
    pub(crate) bytes: u32,
}

impl Parameters {
    /// Reads header and initialization pattern descriptor at the start of `list`.
    pub(crate) fn parse(list: &[u8], long: bool) -> Result<Parameters, Check> {
        let header_bytes = list_bytes(long, false);
        let split = usize::try_from(header_bytes).ok().and_then(|bytes| list.split_at_checked(bytes));
        let (header, pattern) = split.ok_or(Check::PARAMETER_LENGTH)?;
        let options = FormatOptions::read(header);
        if options.protection_usage != 0 {
            return Err(Check::parameter_field(FormatOptions::PROTECTION_USAGE));
        }
        let FormatOptions { disable_primary, disable_certification, stop, has_pattern, immediate, .. } =
            options;
        if !options.valid && (disable_primary || disable_certification || stop || has_pattern) {
            return Err(Check::parameter_field(FormatOptions::VALID));
        }
        check_lists(header, long)?;
        if has_pattern {
            check_pattern(pattern, u16::try_from(header_bytes).unwrap_or(0))?;
        }
        Ok(Parameters { immediate, bytes: list_bytes(long, has_pattern) })
    }
}

/// There must be neither defects nor protection information.
fn check_lists(header: &[u8], long: bool) -> Result<(), Check> {
    let FormatLongHeader { protection, defect_bytes } = FormatLongHeader::read(header);
    if long && protection != 0 {
        return Err(Check::parameter_field(FormatLongHeader::PROTECTION));
    }
    if long && defect_bytes != 0 {
        return Err(Check::parameter_field(FormatLongHeader::DEFECT_BYTES));
    }
    if !long && FormatShortHeader::read(header).defect_bytes != 0 {
        return Err(Check::parameter_field(FormatShortHeader::DEFECT_BYTES));
    }
    Ok(())
}

/// Only the default pattern, which is zeros and has no length. The descriptor is at byte `at` of the list.
fn check_pattern(descriptor: &[u8], at: u16) -> Result<(), Check> {
    let fields = descriptor.get(..InitializationPattern::BYTES).map(InitializationPattern::read);
    let InitializationPattern { options, kind, pattern_bytes } = fields.ok_or(Check::PARAMETER_LENGTH)?;
    if options != 0 {
        return Err(Check::parameter_byte(at.saturating_add(InitializationPattern::OPTIONS.byte())));
    }
    if kind != 0 || pattern_bytes != 0 {
        return Err(Check::parameter_byte(at.saturating_add(InitializationPattern::KIND.byte())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::state::home::{Home, HomeRequest, Who};
    use crate::state::nexus::NexusId;
    use crate::state::policy::Erasure;
    use crate::testing::{Bench, unit};
    use crate::vocabulary::modes::EraseKind;
    use crate::vocabulary::storage::{MediaOp, StoreError};
    use std::sync::atomic::Ordering;
    use wire::Cdb;
    use wire::scsi::command::FormatUnit;
    use wire::scsi::command::{
        Inquiry, LogSense, ModeSense6, ModeSense10, PersistentReserveIn, Read10,
        ReportSupportedOperationCodes, RequestSense, SanitizeBlockErase, SanitizeExitFailureMode,
        TestUnitReady, Write10,
    };
    use wire::scsi::opcode;

    const FORMAT: FormatUnit = FormatUnit::ZERO;
    const READ: Read10 = Read10::new(0, 1);

    fn bench() -> Bench {
        let mut bench = Bench::of(unit(), 256 * 1024);
        bench.medium.fill(b'a');
        bench.mapped.fill(true);
        bench
    }

    fn begun(bench: &mut Bench) {
        let from = bench.nexuses[0].identity();
        bench.ask(HomeRequest::EraseBegin { from, kind: EraseKind::Format });
    }

    #[test]
    fn a_formatted_unit_reads_as_zeros() {
        let lists: [(u8, &[u8]); 6] = [
            (0x00, &[]),
            (0x10, &[0, 0, 0, 0]),
            (0x18, &[0, 0x02, 0, 0]),
            (0x10, &[0, 0xe2, 0, 0]),
            (0x30, &[0; 8]),
            (0x10, &[0, 0x88, 0, 0, 0, 0, 0, 0]),
        ];
        for (flags, list) in lists {
            let mut bench = bench();
            let outcome = bench.write(&[opcode::FORMAT_UNIT, flags, 0, 0, 0, 0], list);
            assert_eq!(outcome.assert_good().ending.write_bytes, list.len() as u64, "{flags:02x} {list:?}");
            assert!(bench.medium.iter().all(|byte| *byte == 0) && !bench.mapped.contains(&true));
            assert_eq!(bench.operations.last(), Some(&MediaOp::Flush));
            bench.read(READ).assert_good();
        }
    }

    #[test]
    fn a_thick_unit_stays_mapped() {
        let mut unit = unit();
        unit.thin = false;
        let mut bench = Bench::of(unit, 256 * 1024);
        bench.medium.fill(1);
        bench.read(FORMAT).assert_good();
        assert!(bench.medium.iter().all(|byte| *byte == 0) && !bench.mapped.contains(&false));
    }

    #[test]
    fn other_formats_are_refused_and_change_nothing() {
        let mut bench = bench();
        // FMTPINFO, LONGLIST and CMPLST without a list, DEFECT LIST FORMAT.
        for flags in [0x80, 0x40, 0x20, 0x08, 0x01, 0x14, 0x17] {
            bench.write(&[opcode::FORMAT_UNIT, flags, 0, 0, 0, 0], &[0; 8]).assert_invalid_field(1);
        }
        for (flags, list) in [(0x10, &[0; 3][..]), (0x30, &[0; 7]), (0x10, &[0, 0x88, 0, 0, 0, 0])] {
            bench.write(&[opcode::FORMAT_UNIT, flags, 0, 0, 0, 0], list).assert_check(0x5, 0x1a00);
        }
        // PROTECTION FIELD USAGE, options without FOV, a defect list, a pattern; protection intervals in a
        // long header.
        let lists: [(u8, [u8; 8]); 9] = [
            (0x10, [1, 0, 0, 0, 0, 0, 0, 0]),
            (0x10, [0, 0x08, 0, 0, 0, 0, 0, 0]),
            (0x10, [0, 0x20, 0, 0, 0, 0, 0, 0]),
            (0x10, [0, 0, 0, 4, 0, 0, 0, 0]),
            (0x10, [0, 0x88, 0, 0, 0x20, 0, 0, 0]),
            (0x10, [0, 0x88, 0, 0, 0, 1, 0, 4]),
            (0x10, [0, 0x88, 0, 0, 0, 0, 0, 4]),
            (0x30, [0, 0, 0, 1, 0, 0, 0, 0]),
            (0x30, [0, 0, 0, 0, 0, 0, 0, 8]),
        ];
        for (flags, list) in lists {
            bench.write(&[opcode::FORMAT_UNIT, flags, 0, 0, 0, 0], &list).assert_check(0x5, 0x2600);
        }
        assert!(bench.medium.iter().all(|byte| *byte == b'a') && bench.published.is_none());
    }

    #[test]
    fn the_unit_reports_the_progress_and_is_not_ready() {
        let mut bench = bench();
        begun(&mut bench);
        assert!(
            bench.published.as_ref().unwrap().aborts.iter().any(|(who, _)| *who == Who::Only(NexusId(1)))
        );
        match &bench.view.policy.erasure {
            Some(Erasure::Running { progress, .. }) => progress.store(0x1234, Ordering::Relaxed),
            other => panic!("{other:?}"),
        }
        for cdb in [
            Cdb::from(READ),
            Cdb::from(FORMAT),
            Cdb::from(TestUnitReady {}),
            Cdb::from(SanitizeBlockErase::default()),
        ] {
            bench.read(cdb).assert_check(0x2, 0x0404);
        }
        let sense = bench.read(RequestSense::new(252)).assert_good().data.clone();
        assert_eq!((sense[2], &sense[12..14], &sense[15..18]), (0x2, &[4, 4][..], &[0x80, 0x12, 0x34][..]));
        bench.read(Inquiry::new(96)).assert_good();
        bench.ask(HomeRequest::EraseEnd { ok: true, kind: EraseKind::Format });
        bench.read(READ).assert_good();
    }

    #[test]
    fn a_format_that_failed_or_was_interrupted_is_repaired_by_another() {
        let mut bench = bench();
        bench.failure = Some(StoreError::WriteFailed);
        bench.read(FORMAT).assert_check(0x3, 0x3101);
        bench.read(READ).assert_check(0x3, 0x3100);
        bench.write(Write10::new(0, 1), &[0; 512]).assert_check(0x3, 0x3100);
        bench.read(TestUnitReady {}).assert_check(0x3, 0x3100);
        // EXIT FAILURE MODE applies to SANITIZE.
        bench.read(SanitizeExitFailureMode {}).assert_good();
        bench.read(READ).assert_check(0x3, 0x3100);
        bench.read(FORMAT).assert_good();
        bench.read(READ).assert_good();
        begun(&mut bench);
        let saved = bench.published.take().unwrap().persist.unwrap();
        let mut restored = Home::new(bench.view.unit.clone(), bench.view.policy.traits);
        assert_eq!(restored.restore(&saved), Ok(()));
        bench.view.policy = restored.policy();
        bench.home = restored;
        bench.read(READ).assert_check(0x3, 0x3100);
        bench.read(FORMAT).assert_good();
        bench.read(READ).assert_good();
    }

    #[test]
    fn what_does_not_access_the_medium_is_answered_after_a_failed_format() {
        let mode_sense = ModeSense6::new(0x3f, 255);
        let mode_sense10 = ModeSense10::new(0x01, 252);
        let log_sense = LogSense { control: 1, allocation: 255, ..LogSense::default() };
        let opcodes =
            ReportSupportedOperationCodes { allocation: 1024, ..ReportSupportedOperationCodes::default() };
        let read_keys = PersistentReserveIn::new(0, 8);
        let no_medium: [Cdb; 5] =
            [mode_sense.into(), mode_sense10.into(), log_sense.into(), opcodes.into(), read_keys.into()];
        let mut bench = bench();
        begun(&mut bench);
        for cdb in no_medium {
            bench.read(cdb).assert_check(0x2, 0x0404);
        }
        bench.ask(HomeRequest::EraseEnd { ok: false, kind: EraseKind::Format });
        for cdb in no_medium {
            bench.read(cdb).assert_good();
        }
        bench.read(READ).assert_check(0x3, 0x3100);
        bench.read(FORMAT).assert_good();
        bench.read(READ).assert_good();
    }

    #[test]
    fn an_interrupted_sanitize_is_not_cleared_by_format() {
        let mut bench = bench();
        bench.failure = Some(StoreError::WriteFailed);
        bench.read(SanitizeBlockErase::default()).assert_check(0x3, 0x3103);
        bench.read(FORMAT).assert_check(0x3, 0x3103);
    }
}
