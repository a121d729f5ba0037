//! Mode pages, their headers and block descriptors (SPC-4 section 7.5, SBC-3 section 6.5).

use super::field::layout;

/// PAGE CODE.
pub mod page {
    /// Read-write error recovery.
    pub const ERROR_RECOVERY: u8 = 0x01;
    /// Caching.
    pub const CACHING: u8 = 0x08;
    /// Control.
    pub const CONTROL: u8 = 0x0a;
    /// Informational exceptions control.
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
    /// All pages.
    pub const ALL: u8 = 0x3f;
    /// All subpages.
    pub const ALL_SUBPAGES: u8 = 0xff;
    /// Subpage of informational exceptions control: logical block provisioning.
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0x02;

    /// What a page is about.
    pub fn name(code: u8, subpage: u8) -> &'static str {
        match (code, subpage) {
            (0x00, _) => "vendor-specific",
            (ERROR_RECOVERY, 0) => "read-write error recovery",
            (0x02, 0) => "disconnect-reconnect",
            (0x03, 0) => "format device",
            (0x04, 0) => "rigid disk geometry",
            (0x07, 0) => "verify error recovery",
            (CACHING, 0) => "caching",
            (CONTROL, 0) => "control",
            (CONTROL, 1) => "control extension",
            (CONTROL, 2) => "application tag",
            (CONTROL, 5) => "I/O advice hints grouping",
            (0x10, 0) => "XOR control",
            (0x18, _) => "protocol-specific unit",
            (0x19, _) => "protocol-specific port",
            (0x1a, 0) => "power condition",
            (0x1a, 1) => "power consumption",
            (INFORMATIONAL_EXCEPTIONS, 0) => "informational exceptions",
            (INFORMATIONAL_EXCEPTIONS, 1) => "background control",
            (INFORMATIONAL_EXCEPTIONS, LOGICAL_BLOCK_PROVISIONING) => "logical block provisioning",
            (0x20..=0x3e, _) => "vendor-specific",
            _ => "unknown",
        }
    }
}

/// PAGE CONTROL: which values MODE SENSE requests (SPC-4 table 369).
pub mod control {
    /// Current.
    pub const CURRENT: u8 = 0;
    /// Changeable: ones where a value can be changed.
    pub const CHANGEABLE: u8 = 1;
    /// Default.
    pub const DEFAULT: u8 = 2;
    /// Saved.
    pub const SAVED: u8 = 3;
}

layout! {
    /// The header of MODE SENSE(6) and MODE SELECT(6), with the device-specific parameter of block devices.
    Header6 [4] {
        /// MODE DATA LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u8 = 0,
        /// WP.
        write_protected WRITE_PROTECTED: bool = 2 & 0x80,
        /// DPOFUA.
        dpo_and_fua DPO_AND_FUA: bool = 2 & 0x10,
        /// BLOCK DESCRIPTOR LENGTH.
        descriptor_bytes DESCRIPTOR_BYTES: u8 = 3,
    }
}

layout! {
    /// The header of MODE SENSE(10) and MODE SELECT(10), likewise.
    Header10 [8] {
        /// MODE DATA LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u16 = 0,
        /// WP.
        write_protected WRITE_PROTECTED: bool = 3 & 0x80,
        /// DPOFUA.
        dpo_and_fua DPO_AND_FUA: bool = 3 & 0x10,
        /// LONGLBA: the block descriptor is a long one.
        long_lba LONG_LBA: bool = 4 & 0x01,
        /// BLOCK DESCRIPTOR LENGTH.
        descriptor_bytes DESCRIPTOR_BYTES: u16 = 6,
    }
}

layout! {
    /// A short block descriptor (SBC-3 section 6.5.2.2).
    ShortDescriptor [8] {
        /// NUMBER OF LOGICAL BLOCKS; all ones when it does not fit.
        blocks BLOCKS: u32 = 0,
        /// LOGICAL BLOCK LENGTH, of 24 bits, after a reserved byte.
        block_bytes BLOCK_BYTES: u32 = 4,
    }
}

layout! {
    /// A long block descriptor (SBC-3 section 6.5.2.3).
    LongDescriptor [16] {
        /// NUMBER OF LOGICAL BLOCKS.
        blocks BLOCKS: u64 = 0,
        /// LOGICAL BLOCK LENGTH.
        block_bytes BLOCK_BYTES: u32 = 12,
    }
}

/// Declares mode pages: `Name = CODE / SUBPAGE [bytes with the header] { fields }`.
macro_rules! pages {
    ($(
        $(#[$doc:meta])*
        $name:ident = $code:ident $(/ $subpage:ident)? [$len:literal] { $($fields:tt)* }
    )*) => { $(
        layout! {
            $(#[$doc])*
            $name [$len] { $($fields)* }
        }

        impl $name {
            /// The page with its header.
            pub fn to_page(self) -> [u8; $len] {
                let mut bytes = self.to_bytes();
                write_header(page::$code, [$(page::$subpage)?].first().copied(), &mut bytes);
                bytes
            }
        }
    )* };
}

/// The header of a mode page of this many bytes (SPC-4 tables 393 and 394).
fn write_header(code: u8, subpage: Option<u8>, page: &mut [u8]) {
    let len = page.len();
    match (page, subpage) {
        ([first, second, high, low, ..], Some(subpage)) => {
            let following = u16::try_from(len.saturating_sub(4)).unwrap_or(u16::MAX);
            (*first, *second) = (code | SUBPAGE_FORMAT, subpage);
            [*high, *low] = following.to_be_bytes();
        }
        ([first, second, ..], _) => {
            (*first, *second) = (code, u8::try_from(len.saturating_sub(2)).unwrap_or(u8::MAX));
        }
        _ => {}
    }
}

pages! {
    /// Read-write error recovery (SBC-3 section 6.5.8).
    ErrorRecovery = ERROR_RECOVERY [12] {
        /// LBPERE: thresholds of logical block provisioning are reported (SBC-4 section 6.5.10).
        provisioning_errors PROVISIONING_ERRORS: bool = 7 & 0x80,
    }

    /// Caching (SBC-3 section 6.5.6).
    Caching = CACHING [20] {
        /// WCE.
        write_cache WRITE_CACHE: bool = 2 & 0x04,
        /// RCD.
        no_read_cache NO_READ_CACHE: bool = 2 & 0x01,
        /// DRA.
        no_read_ahead NO_READ_AHEAD: bool = 12 & 0x20,
    }

    /// Control (SPC-4 section 7.5.8).
    Control = CONTROL [12] {
        /// TST; 1: a separate task set per nexus.
        task_sets TASK_SETS: u8 = 2 & 0xe0,
        /// D_SENSE.
        descriptor_sense DESCRIPTOR_SENSE: bool = 2 & 0x04,
        /// GLTSD: log parameters are not saved implicitly.
        no_log_saving NO_LOG_SAVING: bool = 2 & 0x02,
        /// QUEUE ALGORITHM MODIFIER; 1: unrestricted reordering.
        reordering REORDERING: u8 = 3 & 0xf0,
        /// QERR.
        queue_error QUEUE_ERROR: u8 = 3 & 0x06,
        /// SWP.
        software_write_protect SOFTWARE_WRITE_PROTECT: bool = 4 & 0x08,
        /// TAS.
        task_aborted_status TASK_ABORTED_STATUS: bool = 5 & 0x40,
    }

    /// Informational exceptions control (SBC-3 section 6.5.7).
    InformationalExceptions = INFORMATIONAL_EXCEPTIONS [12] {
        /// DEXCPT: reporting is disabled.
        disabled DISABLED: bool = 2 & 0x08,
    }

    /// Logical block provisioning with one threshold descriptor (SBC-4 section 6.5.9).
    Provisioning = INFORMATIONAL_EXCEPTIONS / LOGICAL_BLOCK_PROVISIONING [24] {
        /// ENABLED.
        enabled ENABLED: bool = 16 & 0x80,
        /// THRESHOLD TYPE; 0: soft.
        threshold_type THRESHOLD_TYPE: u8 = 16 & 0x38,
        /// THRESHOLD ARMING ([`ARMED_INCREASING`]).
        arming ARMING: u8 = 16 & 0x07,
        /// THRESHOLD RESOURCE: the log parameter that counts it ([`super::log::resource`]).
        resource RESOURCE: u8 = 17,
        /// THRESHOLD COUNT, in threshold sets.
        count COUNT: u32 = 20,
    }
}

/// THRESHOLD ARMING: when an increasing resource reaches it.
pub const ARMED_INCREASING: u8 = 1;

/// QUEUE ALGORITHM MODIFIER: unrestricted reordering.
pub const UNRESTRICTED_REORDERING: u8 = 1;

/// A mode page as received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page<'a> {
    /// PAGE CODE.
    pub code: u8,
    /// SUBPAGE CODE; zero for pages without one.
    pub subpage: u8,
    /// Its bytes, header included; fewer than its length says when it is truncated.
    pub bytes: &'a [u8],
    /// The list ends before the page does.
    pub is_cut_off: bool,
}

/// The pages in a list, in both formats (SPC-4 section 7.5.7); a truncated one is the last.
pub fn pages(list: &[u8]) -> impl Iterator<Item = Page<'_>> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let (subpage, len) = match *rest {
            [first, len, ..] if first & SUBPAGE_FORMAT == 0 => (0, usize::from(len).saturating_add(2)),
            [first, subpage, high, low, ..] if first & SUBPAGE_FORMAT != 0 => {
                (subpage, usize::from(u16::from_be_bytes([high, low])).saturating_add(4))
            }
            _ => return None,
        };
        let code = rest.first()? & 0x3f;
        let is_cut_off = rest.len() < len;
        let bytes = rest.get(..len).unwrap_or(rest);
        rest = rest.get(len..).unwrap_or_default();
        Some(Page { code, subpage, bytes, is_cut_off })
    })
}

/// SPF.
const SUBPAGE_FORMAT: u8 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_laid_out_as_the_standard_has_them() {
        let caching = Caching { write_cache: true, ..Caching::default() };
        assert_eq!(caching.to_page()[..4], [0x08, 0x12, 0x04, 0]);
        let control = Control { no_log_saving: true, reordering: 1, ..Control::default() };
        assert_eq!(control.to_page(), [0x0a, 0x0a, 0x02, 0x10, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Control { queue_error: 3, ..control }.to_page()[3], 0x16);
        let threshold = Provisioning {
            enabled: true,
            arming: ARMED_INCREASING,
            resource: 2,
            count: 51,
            ..Provisioning::ZERO
        };
        assert_eq!(threshold.to_page()[..4], [0x5c, 2, 0, 20]);
        assert_eq!(threshold.to_page()[16..], [0x81, 2, 0, 0, 0, 0, 0, 51]);
        let header =
            Header10 { following_bytes: 42, dpo_and_fua: true, long_lba: true, ..Header10::default() };
        assert_eq!(header.to_bytes(), [0, 42, 0, 0x10, 1, 0, 0, 0]);
        let short = ShortDescriptor { blocks: 2048, block_bytes: 512 };
        assert_eq!(short.to_bytes(), [0, 0, 8, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn pages_of_both_formats_follow_each_other() {
        let list = [&[0x88, 2, 1, 2, 0x4a, 1, 0, 3, 7, 8, 9][..], &[0x1c, 9, 1]].concat();
        let shape = |page: Page<'_>| (page.code, page.subpage, page.bytes.len(), page.is_cut_off);
        let found: Vec<_> = pages(&list).map(shape).collect();
        assert_eq!(found, [(0x08, 0, 4, false), (0x0a, 1, 7, false), (0x1c, 0, 3, true)]);
        assert_eq!(pages(&list[..5]).count(), 1);
    }
}
