//! Log pages: data of LOG SENSE (SPC-4 section 7.3, SBC-3 section 6.4).

use super::field::layout;

/// PAGE CODE.
pub mod page {
    /// Supported log pages.
    pub const SUPPORTED: u8 = 0x00;
    /// Logical block provisioning.
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0x0c;
    /// Temperature.
    pub const TEMPERATURE: u8 = 0x0d;
    /// Start-stop cycle counter.
    pub const START_STOP: u8 = 0x0e;
    /// Subpage of supported log pages: supported pages and subpages.
    pub const ALL_SUBPAGES: u8 = 0xff;
}

layout! {
    /// The header of a log page.
    Header [4] {
        /// DS: the page is not saved.
        not_saved NOT_SAVED: bool = 0 & 0x80,
        /// SPF: it is a subpage.
        is_subpage IS_SUBPAGE: bool = 0 & 0x40,
        /// PAGE CODE ([`page`]).
        code CODE: u8 = 0 & 0x3f,
        /// SUBPAGE CODE.
        subpage SUBPAGE: u8 = 1,
        /// PAGE LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u16 = 2,
    }
}

layout! {
    /// The header of a log parameter.
    ParameterHeader [4] {
        /// PARAMETER CODE.
        code CODE: u16 = 0,
        /// FORMAT AND LINKING ([`format`]).
        format FORMAT: u8 = 2 & 0x03,
        /// PARAMETER LENGTH: of what follows this field.
        following_bytes FOLLOWING_BYTES: u8 = 3,
    }
}

/// FORMAT AND LINKING.
pub mod format {
    /// An ASCII list parameter.
    pub const ASCII_LIST: u8 = 0x01;
    /// A binary list parameter.
    pub const BINARY_LIST: u8 = 0x03;
}

layout! {
    /// The value of a parameter of the logical block provisioning page (SBC-4 section 6.4.5).
    ResourceCount [8] {
        /// RESOURCE COUNT, in threshold sets.
        count COUNT: u32 = 0,
        /// SCOPE ([`scope`]).
        scope SCOPE: u8 = 4 & 0x03,
    }
}

/// PARAMETER CODE of the logical block provisioning page.
pub mod resource {
    /// Available LBA mapping resource count.
    pub const AVAILABLE: u8 = 0x01;
    /// Used LBA mapping resource count.
    pub const USED: u8 = 0x02;
}

/// SCOPE of a resource count.
pub mod scope {
    /// Dedicated to the logical unit.
    pub const DEDICATED: u8 = 0x01;
    /// Possibly shared with other logical units.
    pub const SHARED: u8 = 0x02;
}
