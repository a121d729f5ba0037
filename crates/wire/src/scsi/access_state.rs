//! Asymmetric access states of target port groups (SPC-4 section 5.15.2.4 and table 309).

/// How a logical unit can be accessed through the ports of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AccessState {
    /// Every command is accepted, with the best performance.
    #[default]
    Optimized,
    /// Every command is accepted; other groups may be faster.
    NonOptimized,
    /// Only commands that do not access the medium.
    Standby,
    /// Only a few commands that identify the unit or report and set states.
    Unavailable,
    /// In transition between two states.
    Transitioning,
}

impl AccessState {
    /// All states.
    pub const ALL: [AccessState; 5] = [
        AccessState::Optimized,
        AccessState::NonOptimized,
        AccessState::Standby,
        AccessState::Unavailable,
        AccessState::Transitioning,
    ];

    /// The bits for all of these states in a target port group descriptor: T_SUP, U_SUP, S_SUP, AN_SUP and
    /// AO_SUP.
    pub const SUPPORTED: u8 = 0x80 | 0x08 | 0x04 | 0x02 | 0x01;

    /// The value of ASYMMETRIC ACCESS STATE.
    pub const fn code(self) -> u8 {
        match self {
            AccessState::Optimized => 0x0,
            AccessState::NonOptimized => 0x1,
            AccessState::Standby => 0x2,
            AccessState::Unavailable => 0x3,
            AccessState::Transitioning => 0xf,
        }
    }

    /// The state with this value.
    pub fn of_code(code: u8) -> Option<AccessState> {
        AccessState::ALL.into_iter().find(|state| state.code() == code)
    }

    /// Its name in the standard, and in Linux's `access_state`.
    pub const fn name(self) -> &'static str {
        match self {
            AccessState::Optimized => "active/optimized",
            AccessState::NonOptimized => "active/non-optimized",
            AccessState::Standby => "standby",
            AccessState::Unavailable => "unavailable",
            AccessState::Transitioning => "transitioning",
        }
    }

    /// The state with this name.
    pub fn named(name: &str) -> Option<AccessState> {
        AccessState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether the medium may be accessed.
    pub const fn is_active(self) -> bool {
        matches!(self, AccessState::Optimized | AccessState::NonOptimized)
    }
}

/// STATUS CODE of a target port group: why it is in its state (SPC-4 table 310).
pub mod status_code {
    /// No change so far.
    pub const NONE: u8 = 0;
    /// SET TARGET PORT GROUPS.
    pub const EXPLICIT: u8 = 1;
    /// The device itself.
    pub const IMPLICIT: u8 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_found_by_its_code_and_by_its_name() {
        for state in AccessState::ALL {
            assert_eq!(AccessState::of_code(state.code()), Some(state));
            assert_eq!(AccessState::named(state.name()), Some(state));
        }
        assert_eq!(AccessState::of_code(0x4), None, "logical block dependent");
        assert_eq!(AccessState::of_code(0xe), None, "offline");
    }
}
