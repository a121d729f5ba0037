//! Sense data as text for people: SPC's names, and the numbers for looking them up.

use super::{Sense, SenseKey, code};
use std::fmt;

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
        let Some(key) = self.key() else { return f.write_str("sense data without a current error") };
        let [high, low] = self.code().to_be_bytes();
        match code::name(self.code()) {
            Some(name) => write!(f, "{key}, {name} ({high:02X}h/{low:02X}h)"),
            None => write!(f, "{key} ({high:02X}h/{low:02X}h)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::SenseData;

    #[test]
    fn sense_data_are_shown_in_the_standards_words() {
        let shown = |key, code| {
            let data = SenseData { key, code, information: None, command_specific: None, specific: None };
            Sense::fixed(&data).to_string()
        };
        assert_eq!(shown(SenseKey::NotReady, 0x3a00), "NOT READY, MEDIUM NOT PRESENT (3Ah/00h)");
        assert_eq!(shown(SenseKey::NotReady, 0x04ff), "NOT READY (04h/FFh)");
        assert_eq!(Sense::from_bytes(&[0x71, 0, 6]).to_string(), "sense data without a current error");
    }
}
