//! Sense data in words, as a person is shown it: SPC's names, and the numbers for who looks them up.

use super::{Sense, SenseKey};
use std::fmt;

/// Additional sense codes that people meet (SPC-4 annex F), ascending.
const CODES: [(u16, &str); 40] = [
    (0x0401, "LOGICAL UNIT IS IN PROCESS OF BECOMING READY"),
    (0x0402, "LOGICAL UNIT NOT READY, INITIALIZING COMMAND REQUIRED"),
    (0x0403, "LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED"),
    (0x0404, "LOGICAL UNIT NOT READY, FORMAT IN PROGRESS"),
    (0x0407, "LOGICAL UNIT NOT READY, OPERATION IN PROGRESS"),
    (0x0409, "LOGICAL UNIT NOT READY, SELF-TEST IN PROGRESS"),
    (0x040a, "LOGICAL UNIT NOT ACCESSIBLE, ASYMMETRIC ACCESS STATE TRANSITION"),
    (0x040b, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN STANDBY STATE"),
    (0x040c, "LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT IN UNAVAILABLE STATE"),
    (0x041b, "LOGICAL UNIT NOT READY, SANITIZE IN PROGRESS"),
    (0x0800, "LOGICAL UNIT COMMUNICATION FAILURE"),
    (0x0c00, "WRITE ERROR"),
    (0x0e03, "INVALID FIELD IN COMMAND INFORMATION UNIT"),
    (0x1100, "UNRECOVERED READ ERROR"),
    (0x1a00, "PARAMETER LIST LENGTH ERROR"),
    (0x1d00, "MISCOMPARE DURING VERIFY OPERATION"),
    (0x2000, "INVALID COMMAND OPERATION CODE"),
    (0x2002, "ACCESS DENIED - NO ACCESS RIGHTS"),
    (0x2100, "LOGICAL BLOCK ADDRESS OUT OF RANGE"),
    (0x2400, "INVALID FIELD IN CDB"),
    (0x2500, "LOGICAL UNIT NOT SUPPORTED"),
    (0x2600, "INVALID FIELD IN PARAMETER LIST"),
    (0x2700, "WRITE PROTECTED"),
    (0x2707, "SPACE ALLOCATION FAILED WRITE PROTECT"),
    (0x2800, "NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED"),
    (0x2900, "POWER ON, RESET, OR BUS DEVICE RESET OCCURRED"),
    (0x2a09, "CAPACITY DATA HAS CHANGED"),
    (0x2c00, "COMMAND SEQUENCE ERROR"),
    (0x3100, "MEDIUM FORMAT CORRUPTED"),
    (0x3101, "FORMAT COMMAND FAILED"),
    (0x3115, "SANITIZE COMMAND FAILED"),
    (0x3a00, "MEDIUM NOT PRESENT"),
    (0x3e00, "LOGICAL UNIT HAS NOT SELF-CONFIGURED YET"),
    (0x3e01, "LOGICAL UNIT FAILURE"),
    (0x3f0e, "REPORTED LUNS DATA HAS CHANGED"),
    (0x4400, "INTERNAL TARGET FAILURE"),
    (0x4700, "SCSI PARITY ERROR"),
    (0x5302, "MEDIUM REMOVAL PREVENTED"),
    (0x5500, "SYSTEM RESOURCE FAILURE"),
    (0x5503, "INSUFFICIENT RESOURCES"),
];

impl fmt::Display for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SenseKey::NoSense => "NO SENSE",
            SenseKey::RecoveredError => "RECOVERED ERROR",
            SenseKey::NotReady => "NOT READY",
            SenseKey::MediumError => "MEDIUM ERROR",
            SenseKey::HardwareError => "HARDWARE ERROR",
            SenseKey::IllegalRequest => "ILLEGAL REQUEST",
            SenseKey::UnitAttention => "UNIT ATTENTION",
            SenseKey::DataProtect => "DATA PROTECT",
            SenseKey::BlankCheck => "BLANK CHECK",
            SenseKey::CopyAborted => "COPY ABORTED",
            SenseKey::AbortedCommand => "ABORTED COMMAND",
            SenseKey::VolumeOverflow => "VOLUME OVERFLOW",
            SenseKey::Miscompare => "MISCOMPARE",
            SenseKey::Completed => "COMPLETED",
        })
    }
}

/// `NOT READY, MEDIUM NOT PRESENT (3Ah/00h)`.
impl fmt::Display for Sense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(key) = self.key() else { return f.write_str("sense data of no current error") };
        let code = self.code();
        let [high, low] = code.to_be_bytes();
        match CODES.binary_search_by_key(&code, |(code, _)| *code).ok().and_then(|found| CODES.get(found)) {
            Some((_, name)) => write!(f, "{key}, {name} ({high:02X}h/{low:02X}h)"),
            None => write!(f, "{key} ({high:02X}h/{low:02X}h)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SenseData;

    #[test]
    fn sense_data_are_shown_in_the_standards_words() {
        let shown = |key, code| {
            let data = SenseData { key, code, information: None, command_specific: None, specific: None };
            Sense::fixed(&data).to_string()
        };
        assert_eq!(shown(SenseKey::NotReady, 0x3a00), "NOT READY, MEDIUM NOT PRESENT (3Ah/00h)");
        assert_eq!(shown(SenseKey::NotReady, 0x0400), "NOT READY (04h/00h)");
        assert_eq!(Sense::from_bytes(&[0x71, 0, 6]).to_string(), "sense data of no current error");
        assert!(CODES.is_sorted_by_key(|(code, _)| *code));
    }
}
